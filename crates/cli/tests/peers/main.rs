//! Test binary for packaging, and for comparisons with Keras, JAX, XLA and libtpu. Most tests need a Python with these
//! packages, named by SYSTOLE_PYTHON.

#[path = "../program/mod.rs"]
mod program;

mod jax_programs;
mod keras_parity;
mod packaging;
mod tpu;
mod wheel;
mod xla;
mod xla_cpu;
