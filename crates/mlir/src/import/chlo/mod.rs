//! Decomposes CHLO ops to StableHLO ops, following CHLO's documentation and its own decompositions.

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
