//! Prints a graph as StableHLO text for a PJRT plugin.

use crate::debug_locations::located;
use systole_ir::text::print_program;
use systole_ir::{Graph, Shardings};

/// Prints a graph as StableHLO text of `@main` for a plugin. Parameters in `donated` are aliased with the first
/// unaliased result of their type: states keep their order, so each weight is aliased with its update.
pub fn program_text(graph: &Graph, donated: &[usize]) -> String {
    print_program(graph, &pairs(graph, donated, None), None)
}

/// Like [`program_text`] and [`spread_text`], with layer paths for profiles.
pub(crate) fn located_text(
    graph: &Graph,
    module: &str,
    donated: &[usize],
    spread: Option<&Shardings>,
) -> String {
    located(graph, &print_program(graph, &pairs(graph, donated, spread), spread), module)
}

/// Like [`program_text`], for the devices of a mesh. Only arrays with equal shardings are aliased.
pub fn spread_text(graph: &Graph, donated: &[usize], spread: &Shardings) -> String {
    print_program(graph, &pairs(graph, donated, Some(spread)), Some(spread))
}

fn pairs(graph: &Graph, donated: &[usize], spread: Option<&Shardings>) -> Vec<(usize, usize)> {
    let results = graph.result_types();
    let alike = |p: usize, r: usize| spread.is_none_or(|s| s.params.get(p) == s.results.get(r));
    let mut free: Vec<usize> = (0..results.len()).collect();
    let mut pairs = Vec::new();
    for &p in donated {
        let ty = graph.ty(graph.params[p]);
        if let Some(at) = free.iter().position(|&r| results[r] == *ty && alike(p, r)) {
            pairs.push((p, free.remove(at)));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, GraphBuilder, Sharding, TensorType};

    #[test]
    fn memory_goes_to_results_of_the_same_type_and_split() {
        let g = GraphBuilder::new("main");
        let ty = TensorType::new(DType::F32, [4]);
        let (a, b) = (g.parameter(ty.clone(), "a"), g.parameter(ty, "b"));
        let graph = g.finish(&[&a + 1.0, &b + 1.0]).unwrap();
        assert_eq!(pairs(&graph, &[0, 1], None), [(0, 0), (1, 1)]);
        let (whole, split) = (Sharding::replicated(1), Sharding::replicated(1).split(0, 0));
        let spread = Shardings {
            mesh: "data=2".parse().unwrap(),
            params: vec![split.clone(), whole.clone()],
            results: vec![whole, split],
        };
        assert_eq!(pairs(&graph, &[0, 1], Some(&spread)), [(0, 1), (1, 0)]);
    }
}
