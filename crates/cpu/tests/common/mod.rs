//! Test helpers: random arguments, running on the engine and on the interpreter, comparison.
#![allow(dead_code)]

pub mod net;
pub mod odd;
pub mod programs;
pub mod quantized;

use std::sync::Arc;
use systole_cpu::{CpuBackend, Level, ThreadPool};
use systole_ir::op::{ArgDomain, LoweringClass};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, Literal, Scalar, TensorType, interp};
use systole_runtime::{Backend, Buffer, CompileOptions, ExecutableArg};

/// Random arguments of a graph, all from one interval.
pub fn arguments(graph: &Graph, low: f64, high: f64, seed: u64) -> Vec<Literal> {
    let draw = |(i, t): (usize, &TensorType)| {
        ArgDomain::Uniform(low, high).draw(t, &mut RandomStream::new(seed, 11, i as u64))
    };
    graph.param_types().iter().enumerate().map(draw).collect()
}

/// A backend of a level and a number of threads.
pub fn backend(level: Level, threads: usize) -> CpuBackend {
    CpuBackend::with(ThreadPool::new(threads), level).unwrap()
}

/// Levels of this machine.
pub fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|l| l.is_available())
}

/// Runs a graph on a backend with host arrays.
pub fn run(backend: &CpuBackend, graph: &Arc<Graph>, args: &[Literal]) -> Vec<Literal> {
    run_with(backend, graph, args, &CompileOptions::default())
}

/// Like [`run`], compiled with these options.
pub fn run_with(
    backend: &CpuBackend,
    graph: &Arc<Graph>,
    args: &[Literal],
    options: &CompileOptions,
) -> Vec<Literal> {
    let exe = backend.compile(graph, options).unwrap_or_else(|e| panic!("{e}"));
    let args = args.iter().map(|a| ExecutableArg::Donate(Buffer::from(a.clone()))).collect();
    let out = exe.run(args).unwrap_or_else(|e| panic!("{e}"));
    out.iter().map(|b| b.to_literal().unwrap()).collect()
}

/// Runs a graph on the interpreter.
pub fn oracle(graph: &Graph, args: &[Literal]) -> Vec<Literal> {
    let refs: Vec<&Literal> = args.iter().collect();
    interp::run(graph, &refs).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the distance of two floats of one type in units in the last place of the larger one or of `at_least`. The
/// zeros coincide, and so do all NaNs. (The same as in the tests of the ops themselves.)
fn ulps(dtype: DType, a: f64, b: f64, at_least: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    if !a.is_finite() || !b.is_finite() {
        return f64::INFINITY;
    }
    // Bits of the significand and the exponent of the smallest normal value.
    let (digits, smallest) = match dtype {
        DType::F16 => (11, -14),
        DType::BF16 => (8, -126),
        DType::F32 => (24, -126),
        _ => (53, -1022),
    };
    let magnitude = a.abs().max(b.abs()).max(at_least);
    let exponent = (magnitude.log2().floor() as i32).max(smallest);
    (a - b).abs() / 2f64.powi(exponent - digits + 1)
}

/// Returns the largest distance between two arrays in units in the last place, and its position; other types must be
/// equal. The error of a sum is bounded only by the size of its terms: there the largest element of the array gives the
/// unit.
pub fn distance(got: &Literal, want: &Literal, is_sum: bool) -> (f64, usize) {
    assert_eq!(got.ty(), want.ty());
    let greatest = want.to_f64s().into_iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
    let at_least = if is_sum { greatest } else { 0.0 };
    let mut worst = (0.0, 0);
    for i in 0..got.ty().elements() {
        let d = match (got.get(i), want.get(i)) {
            (Scalar::Float(x), Scalar::Float(y)) => ulps(got.dtype(), x, y, at_least),
            (x, y) => {
                if x == y {
                    0.0
                } else {
                    f64::INFINITY
                }
            }
        };
        if d > worst.0 {
            worst = (d, i);
        }
    }
    worst
}

/// Whether a program contains sums.
pub fn sums(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| matches!(n.op.rule().lower(), LoweringClass::Fold | LoweringClass::Contract))
}

/// Returns the relative L2 distance, for results of long sums.
pub fn relative(a: &Literal, b: &Literal) -> f64 {
    let (x, y) = (a.to_f64s(), b.to_f64s());
    let diff: f64 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
    let norm: f64 = y.iter().map(|y| y * y).sum();
    if diff == 0.0 { 0.0 } else { (diff / norm.max(1e-300)).sqrt() }
}

/// Checks that results are close to the interpreter's at every level, and bit-identical for any number of threads.
pub fn check_near(graph: &Arc<Graph>, args: &[Literal], tolerance: f64) {
    let want = oracle(graph, args);
    for level in levels() {
        let first = run(&backend(level, 1), graph, args);
        for (k, (got, want)) in first.iter().zip(&want).enumerate() {
            let d = relative(got, want);
            assert!(d <= tolerance, "{} result {k} on {level:?}: {d:e}\n{got:?}\n{want:?}", graph.name);
        }
        for threads in [2, 3, 8] {
            let again = run(&backend(level, threads), graph, args);
            assert!(first == again, "{} on {level:?} depends on threads", graph.name);
        }
    }
}
