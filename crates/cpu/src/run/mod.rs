//! Runs a compiled program: binds kernels to its steps, executes them, and contains the steps that run programs of
//! their own.

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

/// All families of kernels in the order in which they are asked. Control flow comes first; it is here, because its
/// kernels need the executor.
pub static ALL_FAMILIES: &[&Family] = &{
    let mut all = [&control::FAMILY; FAMILIES.len() + 1];
    let mut i = 0;
    while i < FAMILIES.len() {
        all[i + 1] = FAMILIES[i];
        i += 1;
    }
    all
};
