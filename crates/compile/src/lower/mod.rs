//! Lowers a graph to program steps: groups nodes into steps and chooses the kernel description of each.

mod emit;
mod grouping;
mod inline;
mod map_builder;
mod nested_ops;

use crate::nested_compiler::NestedCompiler;
use crate::options::RoundingOptions;
use crate::program::{ProgramSchedule, RowBlockLoop};
use std::collections::HashMap;
use systole_ir::{Graph, Result};

/// Lowers a graph in which the nodes of `blocks` run as row blocks. The result is neither fused nor ordered yet.
pub fn lower(
    graph: &Graph,
    blocks: &HashMap<usize, RowBlockLoop>,
    rounding: RoundingOptions,
    compiler: &NestedCompiler,
) -> Result<ProgramSchedule> {
    let mut fusion = grouping::FusionGroups::of(graph);
    fusion.find_inlined();
    emit::StepEmitter::new(&fusion, blocks, rounding, compiler).run()
}
