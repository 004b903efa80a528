//! Dense linear algebra: LAPACK's decompositions of f32, f64 and complex matrices.
//!
//! [`call`] executes a routine by LAPACK's name on arrays, as JAX's programs for CPUs call them. The decompositions are
//! functions on column-major [`matrix::Matrix`]es; their inner loops are in [`kernels`].
#![deny(missing_docs)]
#![allow(clippy::needless_range_loop, reason = "loops over the indices of formulas")]

pub mod eig;
pub mod eigh;
mod householder;
pub mod kernels;
mod lapack;
mod matrix_slice;

pub mod lu;
pub mod matrix;
pub mod qr;
pub mod scalar;
pub mod schur;
pub mod svd;
pub mod tridiagonal;

pub use lapack::{LapackRoutine, call, routine};
