//! Programs of all presets hold what the compiler's verifier asks for: training and evaluation, whole and by blocks of
//! rows, with the roundings of narrow floats and without.

use systole::compile::{Blocking, Form, Options, RULES, STAGES, form_after, optimize_with, schedule, verify};
use systole::config::{Config, PRESETS};

#[test]
fn programs_of_all_presets_are_verified() {
    for name in PRESETS {
        let mut model =
            Config::preset(name).and_then(|c| c.untrained()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let graph = model.train_graph(16).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (blocks, excess_precision) in [(Blocking::Off, false), (Blocking::Cache(1 << 20), true)] {
            let donated: Vec<usize> = (0..graph.params.len()).collect();
            let options = Options { donated, blocks, excess_precision, ..Options::default() };
            let (graph, _) = optimize_with(&graph, excess_precision).unwrap();
            let s = schedule(&graph, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
            verify(&s, &options.donated).unwrap_or_else(|e| panic!("{name}: {e}\n{s}"));
        }
    }
}

#[test]
fn every_stage_and_rule_leaves_a_form_of_its_own() {
    let mut model = Config::preset("mnist").and_then(|c| c.untrained()).unwrap();
    let graph = model.train_graph(16).unwrap();
    let options = Options { donated: (0..graph.params.len()).collect(), ..Options::default() };
    let after = |name: &str| form_after(&graph, &options, name).unwrap();
    assert!(matches!(after("simplify"), Form::Graph(g) if g.verify().is_ok()));
    assert!(matches!(after("tile"), Form::Graph(g) if g.verify().is_ok()));
    let steps = |name: &str| match after(name) {
        Form::Program(s) => s.steps.len(),
        Form::Graph(_) => panic!("{name} leaves a program"),
    };
    let counts: Vec<usize> = RULES.iter().map(|rule| steps(rule.name)).collect();
    assert!(counts.iter().all(|&n| n <= steps("lower") + 1), "{counts:?}");
    assert_eq!(counts.last(), Some(&steps("fuse")));
    let last = STAGES.last().map(|stage| stage.name).unwrap();
    let (graph, _) = optimize_with(&graph, false).unwrap();
    let Form::Program(s) = after(last) else { panic!("{last} leaves a program") };
    assert_eq!(s.to_string(), schedule(&graph, &options).unwrap().to_string());
    assert!(form_after(&graph, &options, "no such stage").is_err());
}
