//! Comparisons with other systems: Keras, JAX, XLA and libtpu. Most need a Python with their packages, named by SYSTOLE_PYTHON.

#[path = "../program/mod.rs"]
mod program;

mod jax_programs;
mod keras_parity;
mod tpu;
mod wheel;
mod xla;
mod xla_cpu;
