//! Image operations on host arrays: resizing, geometry, color, augmentation.
//!
//! Images are `[H, W, C]` in u8 (0 to 255) or f32 (0 to 1). Names and results are tf.image's. Random functions take a
//! [`systole_base::rng::RandomStream`], which [`crate::Dataset::map_random`] provides for each element.

mod aug_transforms;
mod augment;
mod color;
mod geometry;
mod mixup;
mod resize;

pub use aug_transforms::AugTransforms;
pub use augment::{RandAugment, RandomResizedCrop};
pub use mixup::{cutmix, mixup, mixup_each};
pub use resize::Resize;

pub(crate) use resize::resize;

use crate::host_array::bad;
use systole_base::{DType, Literal, Result};

/// Returns height, width and channels of an image.
pub(crate) fn dims(x: &Literal, what: &str) -> Result<[usize; 3]> {
    match (x.dtype(), x.shape().dims()) {
        (DType::U8 | DType::F32, &[h, w, c]) => Ok([h, w, c]),
        _ => Err(bad(
            format!("{what} does not support {}", x.ty()),
            "it requires ui8 or f32 images [height, width, channels]",
        )),
    }
}

// Names of the previous version.
systole_base::renamed! { ResizedCrop => RandomResizedCrop }
