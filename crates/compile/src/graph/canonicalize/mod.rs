//! Canonicalization passes: algebraic simplification, constant folding, CSE, dead-code elimination. All are bit-exact.

pub mod constant_subgraph;
pub mod cse;
pub mod dead_code;
pub mod narrow_integers;
pub mod pad_sums;
pub mod simplify;
