//! Convolutions with the max pooling after them, and their gradients.

pub mod amx;
pub mod amx_gradient;
pub mod forward;
pub mod gradient;
pub mod im2col;
pub mod microkernel;
pub mod winograd;
