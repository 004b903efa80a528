//! Tests every kernel candidate on every test program that it accepts, at every level, against the interpreter.
//!
//! A candidate that no program exercises fails the test.

#![allow(
    clippy::type_complexity,
    clippy::print_stdout,
    reason = "each case has its own measure; levels that this machine lacks are reported"
)]

mod common;

use common::{arguments, backend, distance, levels, oracle, programs, quantized, relative, run_with, sums};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level, RowBlocksMode, kernel_names, kernel_tables};
use systole_ir::op::TABLE;
use systole_ir::{DType, Graph, Literal, TensorType};
use systole_runtime::CompileOptions;

/// A program, its arguments, the interpreter's results, and the tolerance.
struct Case {
    name: String,
    graph: Arc<Graph>,
    args: Vec<Literal>,
    want: Vec<Literal>,
    options: CompileOptions,
    near: Box<dyn Fn(&Literal, &Literal) -> bool>,
}

/// Samples of each op, with the op's tolerance.
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

/// Programs of many ops, compiled as for training and op by op.
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

/// Products with int8 and int4 matrices: few rows, many rows, and a small matrix.
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

/// Sums of an element-wise program with an op that the JIT does not know.
fn sums_of_sines() -> impl Iterator<Item = Case> {
    [[40, 300], [3, 7]].into_iter().map(|dims| {
        let g = systole_ir::GraphBuilder::new("sums of sines");
        let x = g.parameter(TensorType::new(DType::F32, dims), "x");
        let y = &(&x.sine() * &x) + &x;
        let graph = g.finish(&[y.sum(&[0])]).unwrap();
        let args = arguments(&graph, -3.0, 3.0, 5);
        let want = oracle(&graph, &args);
        let near = Box::new(|got: &Literal, want: &Literal| relative(got, want) <= 1e-5);
        Case { name: graph.name.clone(), graph, args, want, options: CompileOptions::default(), near }
    })
}

/// Products of dequantized values; a result of 8 bits may differ by one step.
fn int8() -> impl Iterator<Item = Case> {
    let layers = [[5, 70, 33], [40, 130, 64]].map(|size| quantized::dense(DType::U8, DType::I8, size));
    layers.into_iter().map(|graph| {
        let args = arguments(&graph, -1.2, 1.2, 7);
        let near = Box::new(|got: &Literal, want: &Literal| {
            got.to_f64s().iter().zip(want.to_f64s()).all(|(a, b)| (a - b).abs() <= 1.0)
        });
        let want = oracle(&graph, &args);
        Case { name: "int8".into(), graph, args, want, options: CompileOptions::default(), near }
    })
}

/// Tolerances as in the tests of whole programs: sums in f32, or as many roundings to a narrow type as there are ops.
/// If narrow results are pooled, a rounding may move a maximum to a neighbor, and with it the element that the gradient
/// reads.
fn tolerance(graph: &Graph) -> f64 {
    let narrow = |t: &TensorType| matches!(t.dtype, DType::F16 | DType::BF16);
    match graph.param_types().iter().any(narrow) {
        true if graph.name == "pooled" => 5e-2,
        true => 3e-2,
        false => 5e-6,
    }
}

/// Exercised candidates by path, and wrong results.
#[derive(Default)]
struct Seen {
    used: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Seen {
    /// Runs a program and records the kernels that computed it.
    fn run(&mut self, case: &Case, cpu: &CpuBackend, level: Level, what: &str) {
        let got = run_with(cpu, &case.graph, &case.args, &case.options);
        for (k, (got, want)) in got.iter().zip(&case.want).enumerate() {
            if !(case.near)(got, want) {
                let far = relative(got, want);
                self.wrong.push(format!("{}, result {k} by {what} on {level:?}: {far:e}", case.name));
            }
        }
    }

    /// Checks the program as it is, and with each unused candidate preferred.
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
        self.run(case, &plain, level, "the default selection");
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
    for case in samples().chain(fused()).chain(packed()).chain(sums_of_sines()).chain(int8()) {
        for level in levels() {
            seen.check(&case, level, &names);
        }
    }
    assert!(seen.wrong.is_empty(), "{} results are wrong: {:#?}", seen.wrong.len(), seen.wrong);
    let unused = names.iter().filter(|(name, _)| !seen.used.contains(name));
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        unused.partition(|(_, at)| at.iter().any(|level| level.is_available() && *level != Level::Amx));
    // Tile-register kernels have unit tests on emulated registers, on any machine.
    for (name, at) in elsewhere {
        println!("{name} was not run on this machine: it needs {at:?}");
    }
    // The workspace's tests have the feature; those of this crate alone do not.
    let is_built = |name: &&String| cfg!(feature = "linalg") || *name != "movement/lapack";
    let here: Vec<&String> = here.iter().map(|(name, _)| name).filter(is_built).collect();
    assert!(here.is_empty(), "no program of this test exercises {here:?}");
}

#[test]
fn a_name_that_no_kernel_has_is_an_error_that_lists_them() {
    for name in ["rng", "rng/dice", "dice/philox", ""] {
        let error = backend(Level::Portable, 1).with_kernel(name).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("kernel `{name}`")) && error.contains("rng/philox"), "{error}");
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
    assert!(found == made, "docs/internals/kernels.md is out of date: run with SYSTOLE_BLESS=1");
}
