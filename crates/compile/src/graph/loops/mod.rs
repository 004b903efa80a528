//! Rewrites of loops: loop-invariant code motion, sums over all iterations after the loop, derived states.

pub mod derived;
pub mod invariants;
pub mod sums;
mod trips;
