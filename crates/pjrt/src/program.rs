//! A graph as the text that a plugin compiles.

use systole_ir::Graph;
use systole_ir::text::print_program;

/// StableHLO text of `@main`. Parameters in `donated` give their memory to the first result of their type that nobody
/// has yet: states keep their order, so each weight meets its own update.
pub fn program_text(graph: &Graph, donated: &[usize]) -> String {
    print_program(graph, &pairs(graph, donated), None)
}

fn pairs(graph: &Graph, donated: &[usize]) -> Vec<(usize, usize)> {
    let results = graph.result_types();
    let mut free: Vec<usize> = (0..results.len()).collect();
    let mut pairs = Vec::new();
    for &p in donated {
        let ty = graph.ty(graph.params[p]);
        if let Some(at) = free.iter().position(|&r| results[r] == *ty) {
            pairs.push((p, free.remove(at)));
        }
    }
    pairs
}
