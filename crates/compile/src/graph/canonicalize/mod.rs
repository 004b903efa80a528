//! Exact rewrites to a normal form: constant folding, identities, common subexpressions, dead code.

pub mod cse;
pub mod pad_sums;
pub mod prune;
pub mod ranges;
pub mod simplify;
