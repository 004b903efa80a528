//! Function pointers to the pipeline, for stages that compile nested programs.
//!
//! Bodies of loops, branches and row blocks are programs of their own, and the whole pipeline compiles them. The
//! indirection keeps the stages from depending on [`crate::pipeline`].

use crate::options::PipelineOptions;
use crate::program::{ProgramSchedule, RowBlockLoop};
use std::collections::HashMap;
use systole_ir::{Graph, Result};

/// Compiler functions that a stage may call to compile nested programs.
pub struct NestedCompiler {
    /// Compiles an optimized graph into a complete program, with its buffer plan.
    pub schedule: fn(&Graph, &PipelineOptions) -> Result<ProgramSchedule>,
    /// Lowers and fuses a graph in which some nodes run as row blocks, without ordering or buffers. The cost model of
    /// [`crate::tile`] uses it to decide whether row blocks pay.
    pub estimate: fn(&Graph, &HashMap<usize, RowBlockLoop>, &PipelineOptions) -> Result<ProgramSchedule>,
}
