//! From a graph to steps: which nodes are computed together, and the kernels that compute them.

mod bodies;
mod emit;
mod groups;
mod inline;
mod map_builder;

use crate::compiler::Compiler;
use crate::program::{Blocks, Schedule};
use std::collections::HashMap;
use systole_ir::{Graph, Result};

/// The steps of a graph in which some nodes run by blocks of rows, before they are fused.
pub fn lower(
    graph: &Graph,
    blocks: &HashMap<usize, Blocks>,
    excess_precision: bool,
    compiler: &Compiler,
) -> Result<Schedule> {
    let mut fusion = groups::Fusion::of(graph);
    fusion.find_inlined();
    emit::Emit::new(&fusion, blocks, excess_precision, compiler).run()
}
