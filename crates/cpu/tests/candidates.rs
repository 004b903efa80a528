//! Every candidate of every family, on every program of the tests that it accepts and on every level that this machine has,
//! against the interpreter. A candidate that nothing exercises fails the test.

#![allow(
    clippy::type_complexity,
    clippy::print_stdout,
    reason = "a case has its own measure; levels that are not here are told"
)]

mod common;

use common::{backend, distance, levels, oracle, programs, relative, run_with, sums};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level, RowBlocksMode, kernel_names, kernel_tables};
use systole_ir::op::TABLE;
use systole_ir::{DType, Graph, Literal, TensorType};
use systole_runtime::CompileOptions;

/// A program, its arguments, what the interpreter gives, and how far results may be from that.
struct Case {
    name: String,
    graph: Arc<Graph>,
    args: Vec<Literal>,
    want: Vec<Literal>,
    options: CompileOptions,
    near: Box<dyn Fn(&Literal, &Literal) -> bool>,
}

/// A sample of each op, by the tolerance that it names.
fn samples() -> impl Iterator<Item = Case> {
    let all = TABLE.iter().flat_map(|entry| (entry.samples)().into_iter().map(move |s| (entry.name, s)));
    all.map(|(op, sample)| {
        let args = sample.arguments(0);
        let is_sum = sums(&sample.graph);
        let ulp = sample.ulp as f64;
        Case {
            name: format!("{op}, {}", sample.label),
            want: oracle(&sample.graph, &args),
            args,
            graph: sample.graph,
            options: CompileOptions::default(),
            near: Box::new(move |got, want| distance(got, want, is_sum).0 <= ulp),
        }
    })
}

/// Programs of many ops, as training compiles them and op by op.
fn fused() -> impl Iterator<Item = Case> {
    programs::all().into_iter().flat_map(|[graph, wide]| {
        let args = programs::draw(&graph);
        let convert = |(x, t): (&Literal, &TensorType)| x.convert(t.dtype);
        let want = oracle(&wide, &args.iter().zip(&wide.param_types()).map(convert).collect::<Vec<_>>());
        let tolerance = tolerance(&graph);
        let training = CompileOptions { winograd: true, excess_precision: true, ..CompileOptions::default() };
        [CompileOptions::default(), training].map(move |options| Case {
            name: graph.name.clone(),
            graph: graph.clone(),
            args: args.clone(),
            want: want.clone(),
            options,
            near: Box::new(move |got, want| relative(got, want) <= tolerance),
        })
    })
}

/// Products with matrices of whole numbers: few rows, many, and a small matrix.
fn packed() -> impl Iterator<Item = Case> {
    [(2, 96), (12, 96), (2, 20)].into_iter().map(|(rows, side)| {
        let how = systole_ir::quantized_weights::DequantizeWeights {
            is_halves: false,
            shape: [side, side][..].into(),
            inputs: side,
            by_output: false,
            block: side,
            by_block: false,
        };
        let g = systole_ir::GraphBuilder::new("packed");
        let x = g.parameter(TensorType::new(DType::F32, [rows, side]), "x");
        let [numbers, scales] = how.types().map(|ty| g.parameter(ty, "w"));
        let w = how.node(&numbers, &scales);
        let graph = g.finish(&[x.dot_general(&w, &[], &[], &[1], &[0])]).unwrap();
        let draw = |ty: &TensorType| {
            let all: Vec<f32> = (0..ty.elements()).map(|i| ((i * 37) % 19) as f32 - 9.0).collect();
            Literal::from_slice(ty.shape.dims(), &all).unwrap().convert(ty.dtype)
        };
        let args: Vec<Literal> = graph.param_types().iter().map(draw).collect();
        let want = oracle(&graph, &args);
        let near = Box::new(|got: &Literal, want: &Literal| relative(got, want) <= 1e-5);
        Case { name: "packed".into(), graph, args, want, options: CompileOptions::default(), near }
    })
}

/// As the tests of whole programs have it: sums in f32, or as many roundings to a narrow type as there are ops. Where
/// narrow results are pooled, a rounding may move a maximum to a neighbour, and with it what the gradient reads.
fn tolerance(graph: &Graph) -> f64 {
    let narrow = |t: &TensorType| matches!(t.dtype, DType::F16 | DType::BF16);
    match graph.param_types().iter().any(narrow) {
        true if graph.name == "pooled" => 5e-2,
        true => 3e-2,
        false => 5e-6,
    }
}

/// What was exercised, by path, and what went wrong.
#[derive(Default)]
struct Seen {
    used: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Seen {
    /// Runs a program and notes which kernels computed it.
    fn run(&mut self, case: &Case, cpu: &CpuBackend, level: Level, what: &str) {
        let got = run_with(cpu, &case.graph, &case.args, &case.options);
        for (k, (got, want)) in got.iter().zip(&case.want).enumerate() {
            if !(case.near)(got, want) {
                let far = relative(got, want);
                self.wrong.push(format!("{}, result {k} by {what} on {level:?}: {far:e}", case.name));
            }
        }
    }

    /// The program as it is, and with each candidate in front that it does not use by itself.
    fn check(&mut self, case: &Case, level: Level, names: &[(String, &'static [Level])]) {
        let explain = |cpu: &CpuBackend| {
            cpu.explain(&case.graph, &case.options).unwrap_or_else(|e| panic!("{}: {e}", case.name))
        };
        let blocks = backend(level, 2).with_blocks(RowBlocksMode::Rows(2));
        if explain(&blocks).iter().any(|s| s.kernel.uses("control/row_blocks")) {
            self.used.insert("control/row_blocks".into());
            self.run(case, &blocks, level, "blocks of two rows");
        }
        let plain = backend(level, 2);
        let steps = explain(&plain);
        self.run(case, &plain, level, "what is chosen");
        let families: BTreeSet<&str> = steps.iter().filter_map(|s| s.kernel.name.split('/').next()).collect();
        for (name, at) in names {
            if steps.iter().any(|s| s.kernel.uses(name)) {
                self.used.insert(name.clone());
                continue;
            }
            let family = name.split('/').next().unwrap_or_default();
            if !at.contains(&level) || !families.contains(family) {
                continue;
            }
            let forced = backend(level, 2).with_kernel(name).unwrap_or_else(|e| panic!("{e}"));
            if explain(&forced).iter().any(|s| s.kernel.uses(name)) {
                self.used.insert(name.clone());
                self.run(case, &forced, level, name);
            }
        }
    }
}

#[test]
fn every_candidate_on_every_program_that_it_accepts() {
    let names = kernel_names();
    let mut seen = Seen::default();
    for case in samples().chain(fused()).chain(packed()) {
        for level in levels() {
            seen.check(&case, level, &names);
        }
    }
    assert!(seen.wrong.is_empty(), "{} results are wrong: {:#?}", seen.wrong.len(), seen.wrong);
    let unused = names.iter().filter(|(name, _)| !seen.used.contains(name));
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        unused.partition(|(_, at)| at.iter().any(|level| level.is_available() && *level != Level::Amx));
    // Kernels of tile registers have unit tests on emulated ones, whatever the machine has.
    for (name, at) in elsewhere {
        println!("{name} was not run here: it is for {at:?}");
    }
    let here: Vec<&String> = here.iter().map(|(name, _)| name).collect();
    assert!(here.is_empty(), "no program of this test exercises {here:?}");
}

#[test]
fn a_name_that_no_kernel_has_is_an_error_that_lists_them() {
    for name in ["rng", "rng/dice", "dice/philox", ""] {
        let error = backend(Level::Portable, 1).with_kernel(name).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("`{name}` is no kernel")) && error.contains("rng/philox"), "{error}");
    }
}

/// `SYSTOLE_BLESS=1` writes the document.
#[test]
fn the_document_of_kernels_is_that_of_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/kernels.md");
    let made = kernel_tables();
    if std::env::var_os("SYSTOLE_BLESS").is_some_and(|v| v == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &made).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == made, "docs/internals/kernels.md is not what the tables say: run with SYSTOLE_BLESS=1");
}
