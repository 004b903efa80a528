//! Checks that the compiled programs of all presets pass the IR verifier: training and evaluation, whole and split by
//! rows, with and without rounding to narrow floats.

use systole::compile::{
    PipelineOptions, RULES, RoundingOptions, RowBlocksMode, STAGES, StageOutput, form_after, optimize_with,
    schedule, verify,
};
use systole::config::{PRESETS, RunConfig};

#[test]
fn programs_of_all_presets_are_verified() {
    for name in PRESETS {
        let mut model =
            RunConfig::preset(name).and_then(|c| c.untrained()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let graph = model.train_graph(16).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (blocks, excess_precision) in [(RowBlocksMode::Off, false), (RowBlocksMode::Cache(1 << 20), true)]
        {
            let donated: Vec<usize> = (0..graph.params.len()).collect();
            let rounding = RoundingOptions { excess_precision, ..RoundingOptions::default() };
            let options = PipelineOptions { donated, blocks, rounding, ..PipelineOptions::default() };
            let (graph, _) = optimize_with(&graph, excess_precision).unwrap();
            let s = schedule(&graph, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            verify(&s, &options.donated).unwrap_or_else(|e| panic!("{name}: {e}\n{s}"));
        }
    }
}

#[test]
fn every_stage_and_rule_leaves_a_form_of_its_own() {
    let mut model = RunConfig::preset("mnist").and_then(|c| c.untrained()).unwrap();
    let graph = model.train_graph(16).unwrap();
    let options =
        PipelineOptions { donated: (0..graph.params.len()).collect(), ..PipelineOptions::default() };
    let after = |name: &str| form_after(&graph, &options, name).unwrap();
    assert!(matches!(after("simplify"), StageOutput::Graph(g) if g.verify().is_ok()));
    assert!(matches!(after("tile"), StageOutput::Graph(g) if g.verify().is_ok()));
    let steps = |name: &str| match after(name) {
        StageOutput::Program(s) => s.steps.len(),
        StageOutput::Graph(_) => panic!("{name} leaves a program"),
    };
    let counts: Vec<usize> = RULES.iter().map(|rule| steps(rule.name)).collect();
    assert!(counts.iter().all(|&n| n <= steps("lower") + 1), "{counts:?}");
    assert_eq!(counts.last(), Some(&steps("fuse")));
    let last = STAGES.last().map(|stage| stage.name).unwrap();
    let (graph, _) = optimize_with(&graph, false).unwrap();
    let StageOutput::Program(s) = after(last) else { panic!("{last} leaves a program") };
    assert_eq!(s.to_string(), schedule(&graph, &options).unwrap().to_string());
    assert!(form_after(&graph, &options, "no such stage").is_err());
}
