//! Element-wise programs: interpreted tile by tile, or machine code.

pub mod jit;
pub mod map;
