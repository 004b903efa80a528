//! From a graph to a program of kernels: passes over graphs, fusion of element-wise work, a schedule of steps, and
//! a plan that puts every array into one arena.
//!
//! Everything here is a pure function of the graph and the options: threads, timing and cache sizes decide nothing,
//! so that the same graph always gives the same program. What a step computes is data ([`Kernel`]); how it is
//! computed is the backend's business.

mod again;
mod blocks;
mod cse;
mod footprint;
mod fuse;
mod handon;
mod linear;
mod listing;
mod loops;
mod order;
mod parts;
mod pass;
mod pieces;
mod plan;
mod prune;
mod remat;
mod rewrite;
mod rows;
mod samples;
mod schedule;
mod siblings;
mod simplify;
mod slices;
mod templates;
mod turn;
mod views;
mod widen;
mod window_sums;

pub use footprint::{Footprint, Holding, footprint, largest_intermediates};
pub use fuse::schedule;
pub use handon::{HandOn, right_operand};
pub use parts::{Part, Parts};
pub use pass::{PASSES, Pass, PassStat, optimize, optimize_with};
pub use plan::ALIGN;
pub use remat::remat;
pub use rows::Rows;
pub use schedule::{
    Blocking, Blocks, Expr, Instr, Kernel, Load, Map, Options, Place, ResultPlan, Schedule, Slot, Step,
    Storage, array_bytes,
};
pub use templates::{DEAD, Moments, Pool, Relu, Unpool, UnpooledGradient};
