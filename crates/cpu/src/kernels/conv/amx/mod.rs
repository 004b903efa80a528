//! Convolutions by AMX tile registers whose tile rows are lines of pixels.

pub mod filter;
pub mod forward;
pub mod gradient;

pub use crate::kernels::conv::amx::forward::AmxForward;
pub use crate::kernels::conv::amx::gradient::AmxKernelGradient;

#[cfg(test)]
mod tests;
