//! Convolutions of small images on AMX tile registers; a tile row is the same pixel of up to sixteen images.

mod forward;
mod gradient;

pub use crate::kernels::conv::amx_images::forward::AmxImagesForward;
pub use crate::kernels::conv::amx_images::gradient::AmxImagesKernelGradient;
