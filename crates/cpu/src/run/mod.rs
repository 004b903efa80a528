//! Running a program: kernels bound to its steps, control flow, blocks of rows, arrays in panels, profiles.

pub mod buffer;
pub mod control;
pub mod executor;
pub mod explain;
pub mod limit;
pub mod panels;
pub mod profile;
pub mod row_blocks;

use crate::kernels::FAMILIES;
use crate::select::Family;

/// Families of kernels, those that run programs of their own first.
pub static ALL_FAMILIES: &[&Family] = &{
    let mut all = [&control::FAMILY; FAMILIES.len() + 1];
    let mut i = 0;
    while i < FAMILIES.len() {
        all[i + 1] = FAMILIES[i];
        i += 1;
    }
    all
};
