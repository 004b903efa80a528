//! Host pictures, `[H, W, C]` in u8 (0 to 255) or f32 (0 to 1): resizing, cutting, turning, colours, augmentation.
//!
//! Names and numbers are tf.image's. Functions that draw take the numbers from a [`systole_base::rng::Stream`]:
//! [`crate::Dataset::map_random`] gives one to each element.

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

/// Height, width and channels of a picture.
pub(crate) fn dims(x: &Literal, what: &str) -> Result<[usize; 3]> {
    match (x.dtype(), x.shape().dims()) {
        (DType::U8 | DType::F32, &[h, w, c]) => Ok([h, w, c]),
        _ => {
            Err(bad(format!("{what} of {}", x.ty()), "it takes ui8 or f32 images [height, width, channels]"))
        }
    }
}
