//! The list of graph passes, and the driver that runs them.

use crate::graph::canonicalize::{cse, dead_code, narrow_integers, pad_sums, simplify};
use crate::graph::layout::{slices, transpose_weights};
use crate::graph::loops::{derived_states, hoist_sums, licm};
use crate::graph::memory::recompute;
use crate::graph::reductions::{
    arg_max, batch_variance, multi_op_reduce, sort_keys, sum_linearity, window_sums,
};
use systole_ir::{Graph, Result, ResultExt, knobs};

/// A rewrite of a graph into an equivalent one.
pub struct GraphPass {
    /// Name in listings.
    pub name: &'static str,
    /// One-line description.
    pub doc: &'static str,
    /// The rewrite.
    pub run: fn(&Graph) -> Graph,
    /// Whether intermediate results of narrow float types are rounded as before. Other passes run only with excess
    /// precision.
    pub exact: bool,
}

impl GraphPass {
    /// An exact pass.
    const fn new(name: &'static str, doc: &'static str, run: fn(&Graph) -> Graph) -> GraphPass {
        GraphPass { name, doc, run, exact: true }
    }
}

/// Statistics of one pass.
#[derive(Clone, Debug)]
pub struct PassStat {
    /// Name of the pass.
    pub name: &'static str,
    /// Number of nodes before it.
    pub before: usize,
    /// Number of nodes after it.
    pub after: usize,
}

/// All passes, in execution order. `simplify` runs again after `cse`, because merged values expose new identities.
#[rustfmt::skip]
pub const PASSES: &[GraphPass] = &[
    GraphPass::new("prune", "drops nodes that no result needs", dead_code::run),
    GraphPass::new("simplify", "exact identities, constant folding, chains of moves", simplify::run),
    GraphPass::new("ranges", "whole numbers that are known to be small in 32 bits", narrow_integers::run),
    GraphPass::new("cse", "computes equal expressions once", cse::run),
    GraphPass::new("simplify", "once more, on merged values", simplify::run),
    GraphPass::new("pad_sums", "sums of padded pieces that fill an array", pad_sums::run),
    GraphPass::new("arg_max", "the place of an extreme element by two plain folds", arg_max::run),
    GraphPass::new("folds", "reductions by bodies of several ops as element-wise ops on neighbours", multi_op_reduce::run),
    GraphPass::new("sort_keys", "sorts by a function of either element by its values", sort_keys::run),
    GraphPass::new("captures", "states of a loop that never change as captures", licm::captures),
    GraphPass::new("loops", "sums of all trips of a loop after it", |graph| {
        hoist_sums::run(graph, |body| Some(optimize(body).ok()?.0))
    }),
    GraphPass::new("invariants", "what a loop moves of its captures before it", licm::run),
    GraphPass::new("derived", "what a loop keeps and is a cheap function of what else it keeps is computed where it is read",
        derived_states::run),
    GraphPass::new("linear", "sums of linear combinations by sums that exist", sum_linearity::run),
    GraphPass::new("batch_variance", "variances by way of each sample's own", batch_variance::run),
    GraphPass::new("window_sums", "sums over windows of convolutions by sums of their inputs", window_sums::run),
    GraphPass {
        exact: false,
        ..GraphPass::new(
            "window_sums",
            "those of narrow floats: they are not rounded on the way",
            window_sums::run_narrow,
        )
    },
    GraphPass::new("slices", "slices before element-wise work, not after it", slices::run),
    GraphPass::new("transpose_weights", "weights of few columns by columns", transpose_weights::run),
    GraphPass::new("recompute", "copies of cheap nodes for late readers", recompute::run),
    GraphPass::new("prune", "drops what the others made superfluous", dead_code::run),
];

/// Runs the [`PASSES`] that are exact.
pub fn optimize(graph: &Graph) -> Result<(Graph, Vec<PassStat>)> {
    optimize_with(graph, false)
}

/// Runs the [`PASSES`]; those that are not exact only with `excess_precision`. Debug builds, and other builds with
/// `SYSTOLE_PARANOID` set, verify the graph after each.
pub fn optimize_with(graph: &Graph, excess_precision: bool) -> Result<(Graph, Vec<PassStat>)> {
    run(graph, PASSES, excess_precision)
}

/// Runs the passes up to and including the last one of that name; `None` if there is none.
pub fn optimize_until(graph: &Graph, excess_precision: bool, name: &str) -> Result<Option<Graph>> {
    let Some(last) = PASSES.iter().rposition(|pass| pass.name == name) else { return Ok(None) };
    Ok(Some(run(graph, &PASSES[..=last], excess_precision)?.0))
}

fn run(graph: &Graph, passes: &[GraphPass], excess_precision: bool) -> Result<(Graph, Vec<PassStat>)> {
    let check = cfg!(debug_assertions) || knobs::PARANOID.get_usize() != 0;
    let mut stats = Vec::with_capacity(passes.len());
    let mut graph = graph.clone();
    for pass in passes.iter().filter(|pass| pass.exact || excess_precision) {
        let before = graph.nodes.len();
        graph = (pass.run)(&graph);
        if check {
            graph.verify().at(|| format!("the graph after pass {}", pass.name))?;
        }
        stats.push(PassStat { name: pass.name, before, after: graph.nodes.len() });
    }
    Ok((graph, stats))
}
