//! Programs of several devices: groups that exchange arrays, what each device computes by itself, how arrays lie on them.

pub(super) mod groups;
mod manual;
pub(super) mod parallel;
pub(super) mod spread;

use super::call::OpRow;

pub(super) const OPERATIONS: [&[OpRow]; 2] = [manual::OPERATIONS, parallel::OPERATIONS];
