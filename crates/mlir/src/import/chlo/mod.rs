//! CHLO: ops of clients that are written by StableHLO's own, as CHLO's document and its decomposition define them.

mod arrays;
mod element_wise;
mod gamma;
mod math;
mod ragged;
mod scan;
mod zeta;

use super::call::OpImport;

pub(super) use arrays::{BROADCAST, top_k};

pub(super) const OPERATIONS: [&[OpImport]; 4] =
    [arrays::OPERATIONS, element_wise::OPERATIONS, ragged::OPERATIONS, scan::OPERATIONS];
