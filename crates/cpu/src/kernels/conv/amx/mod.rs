//! Convolutions on AMX tile registers; a tile row is a line of pixels.

pub mod filter;
pub mod forward;
pub mod gradient;

pub use crate::kernels::conv::amx::forward::AmxForward;
pub use crate::kernels::conv::amx::gradient::AmxKernelGradient;

#[cfg(test)]
mod tests;
