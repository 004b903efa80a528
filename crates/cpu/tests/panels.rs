//! Tests panel layout of weights: bit-identical to row-major, step after step, whatever else reads the weights.

mod common;

use common::*;
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level};
use systole_ir::DType::{BF16, F32};
use systole_ir::{DType, Graph, GraphBuilder, Literal, Tensor, TensorType, grad};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, Executable, ExecutableArg};

/// Batch size, features, units.
type Size = (usize, usize, usize);

/// Units are multiples of the tile width, of AVX2's only, or of no level's; few rows are read in place; long sums.
const SIZES: [Size; 5] = [(60, 141, 512), (100, 800, 544), (50, 140, 528), (50, 140, 517), (300, 130, 512)];

/// `(w: [K, N], m: [K, N], x: [B, K], b: [N]) → (w, m, loss)` after a momentum step computed in `computed`.
fn step((rows, k, n): Size, computed: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("step");
    let array = |dims: &[usize], name: &str| g.parameter(TensorType::new(F32, dims), name);
    let (w, m, x, b) = (array(&[k, n], "w"), array(&[k, n], "m"), array(&[rows, k], "x"), array(&[n], "b"));
    let y = (x.convert(computed).dot(&w.convert(computed)).convert(F32) + &b).tanh();
    let loss = (&y * &y).sum_all() / (rows * n) as f64;
    let gradient = grad(&loss, &[&w]).remove(0);
    let m = m * 0.9 + gradient;
    g.finish(&[w - &m * 0.1, m, loss]).unwrap()
}

fn compiled(cpu: &CpuBackend, graph: &Arc<Graph>) -> Arc<dyn Executable> {
    let donated = (0..graph.params.len()).collect();
    let options = CompileOptions { donated, excess_precision: true, ..CompileOptions::default() };
    cpu.compile(graph, &options).unwrap()
}

fn in_panels(exe: &Arc<dyn Executable>) -> usize {
    exe.listing().matches("stored in panels of").count()
}

fn put(cpu: &CpuBackend, l: &Literal) -> Buffer {
    cpu.put(l, DeviceId(0)).unwrap()
}

/// Runs one step; replaces the state.
fn run_step(exe: &Arc<dyn Executable>, state: &mut Vec<Buffer>, batch: &[Buffer]) -> Literal {
    let given = std::mem::take(state).into_iter().map(ExecutableArg::Donate);
    *state = exe.run(given.chain(batch.iter().map(ExecutableArg::Borrow)).collect()).unwrap();
    state.pop().unwrap().to_literal().unwrap()
}

/// Returns the losses of some steps, and the state after them.
fn train(cpu: &CpuBackend, exe: &Arc<dyn Executable>, args: &[Literal]) -> Vec<Literal> {
    let all: Vec<Buffer> = args.iter().map(|l| put(cpu, l)).collect();
    let (mut state, batch) = (all[..2].to_vec(), all[2..].to_vec());
    drop(all);
    let mut results: Vec<Literal> = (0..3).map(|_| run_step(exe, &mut state, &batch)).collect();
    results.extend(state.iter().map(|b| b.to_literal().unwrap()));
    results
}

/// Columns per tile; `None` at the portable level, where element-wise programs are not JIT-compiled and products have
/// no epilogue.
fn width(level: Level) -> Option<usize> {
    match level {
        Level::Portable => None,
        Level::Avx2 => Some(16),
        _ => Some(32),
    }
}

#[test]
fn the_same_bits_as_in_rows() {
    for size in SIZES {
        for computed in [F32, BF16] {
            let graph = step(size, computed);
            let args = arguments(&graph, -0.3, 0.3, 7);
            for level in levels() {
                let rows = backend(level, 2).with_panels(false);
                let want = compiled(&rows, &graph);
                assert_eq!(in_panels(&want), 0);
                let want = train(&rows, &want, &args);
                // Weights that are converted first are always packed.
                let fits = computed == F32 && width(level).is_some_and(|w| size.2.is_multiple_of(w));
                for threads in [1, 2, 3, 8] {
                    let cpu = backend(level, threads);
                    let exe = compiled(&cpu, &graph);
                    let found = in_panels(&exe);
                    assert_eq!(found, if fits { 2 } else { 0 }, "{size:?} {computed} {level:?}");
                    let got = train(&cpu, &exe, &args);
                    assert!(got == want, "{size:?} {computed} on {level:?}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn the_first_step_is_the_interpreters() {
    let graph = step(SIZES[0], F32);
    let args = arguments(&graph, -0.3, 0.3, 3);
    let want = oracle(&graph, &args);
    for level in levels() {
        let cpu = backend(level, 2);
        let exe = compiled(&cpu, &graph);
        assert_eq!(in_panels(&exe), if width(level).is_some() { 2 } else { 0 }, "{}", exe.listing());
        let got = exe.run(args.iter().map(|l| ExecutableArg::Donate(put(&cpu, l))).collect()).unwrap();
        for (got, want) in got.iter().zip(&want) {
            let d = relative(&got.to_literal().unwrap(), want);
            assert!(d <= 5e-6, "{level:?}: {d:e}");
        }
    }
}

#[test]
fn whatever_reads_state_finds_rows() {
    let (rows, k, n) = SIZES[0];
    let graph = step(SIZES[0], F32);
    let args = arguments(&graph, -0.3, 0.3, 5);
    let g = GraphBuilder::new("predict");
    let (w, x) =
        (g.parameter(TensorType::new(F32, [k, n]), "w"), g.parameter(TensorType::new(F32, [rows, k]), "x"));
    let predict = g.finish(&[x.dot(&w)]).unwrap();
    let g = GraphBuilder::new("more");
    let w = g.parameter(TensorType::new(F32, [k, n]), "w");
    let ramp = g.iota(TensorType::new(F32, [k, n]), 1);
    let more = g.finish(&[w + ramp]).unwrap();
    for level in levels() {
        let cpu = backend(level, 2);
        let exe = compiled(&cpu, &graph);
        let batch: Vec<Buffer> = args[2..].iter().map(|l| put(&cpu, l)).collect();
        let mut state: Vec<Buffer> = args[..2].iter().map(|l| put(&cpu, l)).collect();
        run_step(&exe, &mut state, &batch);
        let before: Vec<Literal> = state.iter().map(|b| b.to_literal().unwrap()).collect();

        // Another program reads it, twice, and does not modify it.
        let reads = compiled(&cpu, &predict);
        let borrowed =
            || reads.run(vec![ExecutableArg::Borrow(&state[0]), ExecutableArg::Borrow(&batch[0])]).unwrap();
        let want = run(&cpu, &predict, &[before[0].clone(), args[2].clone()]);
        assert!([borrowed(), borrowed()].iter().all(|got| got[0].to_literal().unwrap() == want[0]));

        // A step on shared arrays changes only its own copy.
        let kept = state.clone();
        run_step(&exe, &mut state, &batch);
        assert!(kept.iter().zip(&before).all(|(b, l)| b.to_literal().unwrap() == *l), "{level:?}");
        let after: Vec<Literal> = state.iter().map(|b| b.to_literal().unwrap()).collect();
        assert!(after[0] != before[0]);

        // The same step starting from host arrays.
        let mut hosts: Vec<Buffer> = before.iter().cloned().map(Buffer::from).collect();
        run_step(&exe, &mut hosts, &batch);
        assert!(hosts.iter().zip(&after).all(|(b, l)| b.to_literal().unwrap() == *l), "{level:?}");

        // An element-wise in-place program that depends on element positions.
        let w = state.swap_remove(0);
        let got = compiled(&cpu, &more).run(vec![ExecutableArg::Donate(w)]).unwrap();
        let want = run(&cpu, &more, &after[..1]);
        assert!(got[0].to_literal().unwrap() == want[0], "{level:?}");
    }
}

/// Weights with other readers, or that are returned unchanged, stay row-major.
#[test]
fn only_where_all_readers_know_panels() {
    let (rows, k, n) = SIZES[0];
    let build = |reader: &dyn Fn(&Tensor, &Tensor) -> Tensor| {
        let g = GraphBuilder::new("step");
        let array = |dims: &[usize], name: &str| g.parameter(TensorType::new(F32, dims), name);
        let (w, x, d) = (array(&[k, n], "w"), array(&[rows, k], "x"), array(&[rows, n], "d"));
        let y = x.dot(&w).tanh();
        let more = reader(&w, &d);
        g.finish(&[&w - x.transpose(&[1, 0]).dot(&d) * 0.1, y, more]).unwrap()
    };
    let cpu = backend(levels().last().unwrap(), 2);
    let found = |reader: &dyn Fn(&Tensor, &Tensor) -> Tensor| in_panels(&compiled(&cpu, &build(reader)));
    assert_eq!(found(&|_, d| d.exp()), 1);
    assert_eq!(found(&|w, _| w.sum(&[0])), 0, "sums over rows");
    assert_eq!(found(&|w, d| d.dot(&w.transpose(&[1, 0]))), 0, "the gradient of the input");
    assert_eq!(found(&|w, _| w.clone()), 0, "the weights unchanged");
    assert_eq!(found(&|w, _| w.slice_dim(0, 0, 7).exp()), 0, "a part");
}
