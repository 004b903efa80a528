//! Convolutions of small images by AMX tile registers: a tile row is one pixel of each of up to sixteen images.

mod forward;
mod gradient;

pub use crate::kernels::conv::amx_images::forward::AmxImagesForward;
pub use crate::kernels::conv::amx_images::gradient::AmxImagesKernelGradient;
