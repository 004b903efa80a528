//! Layout passes: move slices and transposes to where they cost less time.

pub mod slices;
pub mod transpose_weights;
