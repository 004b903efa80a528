//! Pooled convolutions and their gradients by AMX tile registers, for bf16.

mod forward;
mod gradient;

pub use crate::kernels::conv_pool::amx::forward::AmxConvPool;
pub use crate::kernels::conv_pool::amx::gradient::AmxConvPoolGradient;
