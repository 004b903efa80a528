//! From a graph to a program of kernels: passes over graphs, fusion of element-wise work, a schedule of steps, and
//! a plan that puts every array into one arena.
//!
//! Everything here is a pure function of the graph and the options: threads, timing and cache sizes decide nothing,
//! so that the same graph always gives the same program. What a step computes is data ([`Kernel`]); how it is
//! computed is the backend's business.

mod cse;
mod fuse;
mod listing;
mod pass;
mod plan;
mod prune;
mod rewrite;
mod schedule;
mod simplify;
mod templates;

pub use fuse::schedule;
pub use pass::{PASSES, Pass, PassStat, optimize};
pub use plan::ALIGN;
pub use schedule::{
    Expr, Instr, Kernel, Load, Map, Options, Place, ResultPlan, Schedule, Slot, Step, Storage, array_bytes,
};
pub use templates::{DEAD, Pool, Relu, Unpool, UnpooledGradient};
