//! Compiles a graph into a program of kernel calls: graph passes ([`PASSES`]), then lowering and fusion stages
//! ([`STAGES`]).
//!
//! The stages outline row blocks (loop tiling over the batch), lower nodes to steps, fuse steps, order them, and assign
//! every array an offset in one arena.
//!
//! The result is a pure function of the graph and the options. Thread count, timings and the machine's cache sizes have
//! no influence, so that the same graph always gives the same program. A step's computation is data ([`Kernel`]); the
//! backend chooses the implementation.

mod fuse;
mod graph;
mod lower;
mod memory;
mod nested_compiler;
mod options;
mod pipeline;
mod program;
mod tile;

pub use fuse::{FusionRule, RULES};
pub use graph::{
    ConstantSubgraph, GraphPass, PASSES, PassStat, hold_float16_in_float32, optimize, optimize_with, remat,
    round_product_operands,
};
pub use memory::{ArrayUsage, Footprint, footprint, largest_intermediates};
pub use options::{PipelineOptions, RoundingOptions, RowBlocksMode};
pub use pipeline::{CompileStage, STAGES, StageOutput, form_after, schedule, stages};
pub use program::*;

// Names of the previous version.
systole_ir::renamed! { Blocking => RowBlocksMode, Blocks => RowBlockLoop, Expr => MapRegister, Form => StageOutput, Holding => ArrayUsage, Instr => MapInstr, Load => MapLoad, Moments => ConvWithMoments, Options => PipelineOptions, Packed => DequantizeStep, PackedProduct => DequantizedGemm, Pass => GraphPass, Pool => MaxPoolArgmax, Rows => FusedRows, Rule => FusionRule, Schedule => ProgramSchedule, Scope => LayerScope, Slot => SlotId, Stage => CompileStage, Storage => SlotStorage, Store => StridedStore, View => SlotView }
