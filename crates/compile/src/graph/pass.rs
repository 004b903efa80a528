//! The list of graph passes, and the driver that runs them.

use systole_ir::{Graph, Result, ResultExt, knobs};

/// A rewrite of a graph into an equivalent one.
pub struct Pass {
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
pub const PASSES: &[Pass] = &[
    Pass { name: "prune", doc: "drops nodes that no result needs", run: super::prune::run, exact: true },
    Pass {
        name: "simplify",
        doc: "exact identities, constant folding, chains of moves",
        run: super::simplify::run,
        exact: true,
    },
    Pass {
        name: "ranges",
        doc: "whole numbers that are known to be small in 32 bits",
        run: super::ranges::run,
        exact: true,
    },
    Pass { name: "cse", doc: "computes equal expressions once", run: super::cse::run, exact: true },
    Pass { name: "simplify", doc: "once more, on merged values", run: super::simplify::run, exact: true },
    Pass {
        name: "pad_sums",
        doc: "sums of padded pieces that fill an array",
        run: super::pad_sums::run,
        exact: true,
    },
    Pass {
        name: "arg_max",
        doc: "the place of an extreme element by two plain folds",
        run: super::arg_max::run,
        exact: true,
    },
    Pass {
        name: "folds",
        doc: "reductions by bodies of several ops as element-wise ops on neighbours",
        run: super::folds::run,
        exact: true,
    },
    Pass {
        name: "sort_keys",
        doc: "sorts by a function of either element by its values",
        run: super::sort_keys::run,
        exact: true,
    },
    Pass {
        name: "captures",
        doc: "states of a loop that never change as captures",
        run: super::invariants::captures,
        exact: true,
    },
    Pass { name: "loops", doc: "sums of all trips of a loop after it", run: super::loops::run, exact: true },
    Pass {
        name: "invariants",
        doc: "what a loop moves of its captures before it",
        run: super::invariants::run,
        exact: true,
    },
    Pass {
        name: "derived",
        doc: "what a loop keeps and is a cheap function of what else it keeps is computed where it is read",
        run: super::derived::run,
        exact: true,
    },
    Pass {
        name: "linear",
        doc: "sums of linear combinations by sums that exist",
        run: super::linear::run,
        exact: true,
    },
    Pass {
        name: "batch_variance",
        doc: "variances by way of each sample's own",
        run: super::batch_variance::run,
        exact: true,
    },
    Pass {
        name: "window_sums",
        doc: "sums over windows of convolutions by sums of their inputs",
        run: super::window_sums::run,
        exact: true,
    },
    Pass {
        name: "window_sums",
        doc: "those of narrow floats: they are not rounded on the way",
        run: super::window_sums::run_narrow,
        exact: false,
    },
    Pass {
        name: "slices",
        doc: "slices before element-wise work, not after it",
        run: super::slices::run,
        exact: true,
    },
    Pass {
        name: "transpose_weights",
        doc: "weights of few columns by columns",
        run: super::transpose_weights::run,
        exact: true,
    },
    Pass {
        name: "recompute",
        doc: "copies of cheap nodes for late readers",
        run: super::recompute::run,
        exact: true,
    },
    Pass {
        name: "prune",
        doc: "drops what the others made superfluous",
        run: super::prune::run,
        exact: true,
    },
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

fn run(graph: &Graph, passes: &[Pass], excess_precision: bool) -> Result<(Graph, Vec<PassStat>)> {
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
