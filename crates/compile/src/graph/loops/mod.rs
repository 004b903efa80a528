//! Rewrites of loops: loop-invariant code motion, sums over all iterations after the loop, derived states.

mod counted_loop;
pub mod derived_states;
pub mod hoist_sums;
pub mod licm;
