//! Layout passes: move slices and transposes to where they cost less time.

pub mod channels_last;
pub mod slices;
pub mod transpose_weights;
