//! Convolutions by the definition: register tiles over the staged input.

mod forward;
mod gradient;

pub use crate::kernels::conv::direct::forward::Forward;
pub use crate::kernels::conv::direct::gradient::KernelGradient;
