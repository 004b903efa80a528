//! The verifier accepts the programs of all op samples, with any division into row blocks.

use systole_compile::{PipelineOptions, RoundingOptions, RowBlocksMode, optimize_with, schedule, verify};
use systole_ir::op::TABLE;

#[test]
fn programs_of_all_samples_are_verified() {
    let mut steps = 0;
    for entry in TABLE {
        for sample in (entry.samples)() {
            for (blocks, excess_precision) in [(RowBlocksMode::Off, false), (RowBlocksMode::Rows(2), true)] {
                let donated: Vec<usize> = (0..sample.graph.params.len()).collect();
                let (graph, _) = optimize_with(&sample.graph, excess_precision).unwrap();
                let rounding = RoundingOptions { excess_precision, contraction: excess_precision };
                let options = PipelineOptions { blocks, rounding, donated, ..PipelineOptions::default() };
                let name = || format!("{}/{} {blocks:?}", entry.name, sample.label);
                let s = schedule(&graph, &options).unwrap_or_else(|e| panic!("{}: {e}", name()));
                verify(&s, &options.donated).unwrap_or_else(|e| panic!("{}: {e}\n{s}", name()));
                steps += s.steps.len();
            }
        }
    }
    assert!(steps > 1000, "{steps} steps");
}
