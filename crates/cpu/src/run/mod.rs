//! Executes compiled programs: binds kernels to steps, runs them, and implements steps with nested programs.

pub mod arena_pool;
pub mod buffer;
pub mod control_flow;
pub mod control_kernels;
pub mod executor;
pub mod explain;
pub mod loop_code;
pub mod memory_limit;
pub mod panel_layout;
pub mod profile;
pub mod profile_tables;
pub mod row_blocks;

use crate::kernels::FAMILIES;
use crate::select::Family;

const COUNT: usize = {
    let (mut count, mut folder) = (1, 0);
    while folder < FAMILIES.len() {
        count += FAMILIES[folder].len();
        folder += 1;
    }
    count
};

/// All kernel families in the order in which they are tried. Control flow comes first; it is defined here, because its
/// kernels need the executor.
pub static ALL_FAMILIES: &[&Family] = &{
    let mut all = [&control_kernels::FAMILY; COUNT];
    let (mut next, mut folder) = (1, 0);
    while folder < FAMILIES.len() {
        let mut i = 0;
        while i < FAMILIES[folder].len() {
            all[next] = FAMILIES[folder][i];
            (next, i) = (next + 1, i + 1);
        }
        folder += 1;
    }
    all
};
