//! Direct convolutions by the definition: register tiles over the staged input.

mod forward;
mod gradient;

pub use crate::kernels::conv::direct::forward::DirectForward;
pub use crate::kernels::conv::direct::gradient::DirectKernelGradient;
