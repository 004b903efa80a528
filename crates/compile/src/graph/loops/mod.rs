//! Loop passes: loop-invariant code motion, hoisting of sums, and removal of derived states.

mod counted_loop;
pub mod derived_states;
pub mod hoist_sums;
pub mod licm;
