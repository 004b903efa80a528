//! Imports multi-device programs: collectives, manual computations and shardings.

pub(super) mod groups;
mod manual_computation;
pub(super) mod run_parallel;
pub(super) mod sharding_import;

use super::call::OpImport;

pub(super) const OPERATIONS: [&[OpImport]; 2] = [manual_computation::OPERATIONS, run_parallel::OPERATIONS];
