//! Exact rewrites to a normal form: constant folding, identities, common subexpressions, dead code.

pub mod cse;
pub mod dead_code;
pub mod narrow_integers;
pub mod pad_sums;
pub mod simplify;
