//! Pooled convolutions and their gradients for bf16 on AMX tile registers.

mod forward;
mod gradient;

pub use crate::kernels::conv_pool::amx::forward::AmxConvPool;
pub use crate::kernels::conv_pool::amx::gradient::AmxConvPoolGradient;
