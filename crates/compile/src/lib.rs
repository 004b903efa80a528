//! From a graph to a program of kernels: [`PASSES`] over graphs, then the [`STAGES`] of [`pipeline`]: blocks of rows, steps,
//! fusion, order and a plan that puts every array into one arena.
//!
//! Everything here is a pure function of the graph and the options: threads, timing and cache sizes decide nothing,
//! so that the same graph always gives the same program. What a step computes is data ([`Kernel`]); how it is
//! computed is the backend's business.

mod compiler;
mod fuse;
mod graph;
mod lower;
mod memory;
mod options;
pub mod pipeline;
mod program;
mod tile;

pub use fuse::{RULES, Rule};
pub use graph::{PASSES, Pass, PassStat, optimize, optimize_with, remat};
pub use memory::{Footprint, Holding, footprint, largest_intermediates};
pub use options::{Blocking, Options};
pub use pipeline::{Form, STAGES, Stage, form_after, schedule, stages};
pub use program::{
    ALIGN, Blocks, DEAD, Expr, Instr, Kernel, Load, Location, Map, Moments, Pool, ProductEpilogue, Relu,
    ResultPlan, Rows, Schedule, Slot, Step, Storage, Store, StridedMap, Unpool, UnpooledGradient, View,
    array_bytes, right_operand, verify,
};
