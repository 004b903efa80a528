//! The compiler as its own stages see it: programs inside programs (bodies of loops, branches, blocks of rows) are
//! compiled by the whole pipeline, which is handed down to the stages that need it.

use crate::options::Options;
use crate::program::{Blocks, Schedule};
use std::collections::HashMap;
use systole_ir::{Graph, Result};

/// What stages may ask of the pipeline that runs them.
pub struct Compiler {
    /// The finished program of an optimised graph.
    pub schedule: fn(&Graph, &Options) -> Result<Schedule>,
    /// The fused steps of a graph in which some nodes run by blocks of rows, by which the gain of blocks is estimated.
    pub estimate: fn(&Graph, &HashMap<usize, Blocks>, &Options) -> Result<Schedule>,
}
