//! List of graph passes, and the driver that runs and verifies them.

use crate::graph::canonicalize::{cse, dead_code, narrow_integers, pad_sums, simplify};
use crate::graph::layout::{channels_last, slices, transpose_weights};
use crate::graph::loops::{derived_states, hoist_sums, licm};
use crate::graph::memory::recompute;
use crate::graph::quantized::int8_products;
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
    /// Runs the pass.
    pub run: fn(&Graph) -> Graph,
    /// Whether bf16 and f16 intermediate results are rounded as before. Inexact passes run only with excess precision.
    pub exact: bool,
}

impl GraphPass {
    /// Creates an exact pass.
    const fn new(name: &'static str, doc: &'static str, run: fn(&Graph) -> Graph) -> GraphPass {
        GraphPass { name, doc, run, exact: true }
    }
}

/// Node counts of a graph before and after one pass.
#[derive(Clone, Debug)]
pub struct PassStat {
    /// Name of the pass.
    pub name: &'static str,
    /// Number of nodes before it.
    pub before: usize,
    /// Number of nodes after it.
    pub after: usize,
}

/// All graph passes, in execution order. `simplify` runs again after `cse`, because merged values expose new
/// identities.
#[rustfmt::skip]
pub const PASSES: &[GraphPass] = &[
    GraphPass::new("prune", "dead-code elimination", dead_code::run),
    GraphPass::new("channels_last", "computes channels-first convolutions and what follows them with channels last",
        channels_last::run),
    GraphPass::new("int8", "computes products, maxima and gathers of dequantized values in int8", int8_products::run),
    GraphPass::new("simplify", "algebraic simplification, constant folding, merging of data movement", simplify::run),
    GraphPass::new("ranges", "narrows small integers to 32 bits", narrow_integers::run),
    GraphPass::new("cse", "common-subexpression elimination", cse::run),
    GraphPass::new("simplify", "simplifies again, on merged values", simplify::run),
    GraphPass::new("pad_sums", "rewrites sums of zero-padded pieces as concatenations", pad_sums::run),
    GraphPass::new("arg_max", "splits argmax and argmin into two plain reductions", arg_max::run),
    GraphPass::new("folds", "rewrites reductions with multi-op bodies as element-wise ops on halves", multi_op_reduce::run),
    GraphPass::new("sort_keys", "precomputes sort keys", sort_keys::run),
    GraphPass::new("captures", "turns unchanged loop states into captures", licm::captures),
    GraphPass::new("loops", "moves sums over all iterations after the loop", |graph| {
        hoist_sums::run(graph, |body| Some(optimize(body).ok()?.0))
    }),
    GraphPass::new("invariants", "loop-invariant code motion", licm::run),
    GraphPass::new("derived", "recomputes stacked loop states that are cheap functions of others",
        derived_states::run),
    GraphPass::new("linear", "splits sums of linear combinations to reuse existing sums", sum_linearity::run),
    GraphPass::new("batch_variance", "computes batch variances from per-sample variances", batch_variance::run),
    GraphPass::new("window_sums", "moves average pooling before the convolution", window_sums::run),
    GraphPass {
        exact: false,
        ..GraphPass::new(
            "window_sums",
            "the same for bf16 and f16, without intermediate rounding",
            window_sums::run_narrow,
        )
    },
    GraphPass::new("slices", "moves slices before element-wise ops", slices::run),
    GraphPass::new("transpose_weights", "transposes weights with few columns", transpose_weights::run),
    GraphPass::new("recompute", "recomputes cheap values for late readers", recompute::run),
    GraphPass::new("prune", "removes nodes made dead by other passes", dead_code::run),
];

/// Runs the exact [`PASSES`].
pub fn optimize(graph: &Graph) -> Result<(Graph, Vec<PassStat>)> {
    optimize_with(graph, false)
}

/// Runs the [`PASSES`], including inexact ones if `excess_precision` is set. Debug builds, and other builds with
/// `SYSTOLE_PARANOID` set, verify the graph after each pass.
pub fn optimize_with(graph: &Graph, excess_precision: bool) -> Result<(Graph, Vec<PassStat>)> {
    run(graph, PASSES, excess_precision)
}

/// Runs the graph passes up to and including the last one named `name`; `None` if no pass has that name.
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
            graph.verify().at(|| format!("graph after pass {}", pass.name))?;
        }
        stats.push(PassStat { name: pass.name, before, after: graph.nodes.len() });
    }
    Ok((graph, stats))
}
