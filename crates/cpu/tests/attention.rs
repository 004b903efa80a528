//! Tests attention and its three gradients against the interpreter and against the unfused ops.
//!
//! Covers several lengths, heads and widths, with and without causal mask and dropout, narrow floats, every level;
//! results must be bit-identical for any number of threads.

mod common;

use common::*;
use std::sync::Arc;
use systole_ir::DType::{self, *};
use systole_ir::attention::{AttentionConfig, AttentionDropout};
use systole_ir::op::ArgDomain;
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType, vjp};
use systole_runtime::{Backend, CompileOptions};

/// Batch, queries, keys, heads, width of queries and keys, width of values.
type Sizes = [usize; 6];

/// `(q, k, v, random, dy) → (y, dq, dk, dv)` of some attention.
fn with_gradients(
    dtype: DType,
    [batch, queries, keys, heads, width, depth]: Sizes,
    attend: impl Fn(&[Tensor]) -> Tensor,
) -> Arc<Graph> {
    let g = GraphBuilder::new("attention");
    let array = |places: usize, features: usize| TensorType::new(dtype, [batch, places, heads, features]);
    let types = [array(queries, width), array(keys, width), array(keys, depth), TensorType::new(U64, [2])];
    let x: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let y = attend(&x);
    let dy = g.parameter(y.ty().clone(), "dy");
    let grads = vjp(&[&y], &[&dy], &[&x[0], &x[1], &x[2]]);
    g.finish(&[&[y], &grads[..]].concat()).unwrap()
}

fn attention(dtype: DType, sizes: Sizes, attention: AttentionConfig) -> Arc<Graph> {
    with_gradients(dtype, sizes, |x| attention.of(&x[0], &x[1], &x[2], attention.dropout.map(|_| &x[3])))
}

fn draw(graph: &Graph) -> Vec<Literal> {
    let one = |(i, t): (usize, &TensorType)| match t.dtype {
        U64 => Literal::from_slice([2], &[0x0123_4567_89ab_cdefu64, 41]).unwrap(),
        _ => ArgDomain::Uniform(-2.0, 2.0).draw(t, &mut RandomStream::new(7, 8, i as u64)),
    };
    graph.param_types().iter().enumerate().map(one).collect()
}

fn kernels(graph: &Arc<Graph>) -> usize {
    let exe = backend(levels().last().unwrap(), 1).compile(graph, &CompileOptions::default()).unwrap();
    exe.listing().lines().filter(|l| l.contains("= attention")).count()
}

fn check(graph: &Arc<Graph>, label: &str, tolerance: f64) {
    let args = draw(graph);
    let want = oracle(graph, &args);
    for level in levels() {
        let first = run(&backend(level, 1), graph, &args);
        for (k, (got, want)) in first.iter().zip(&want).enumerate() {
            let d = relative(got, want);
            assert!(d <= tolerance, "{label} result {k} on {level:?}: {d:e}");
        }
        for threads in [2, 3, 8] {
            assert!(first == run(&backend(level, threads), graph, &args), "{label} on {level:?} and threads");
        }
    }
}

const SIZES: [Sizes; 8] = [
    [1, 1, 1, 1, 1, 1],
    [2, 5, 7, 3, 4, 6],
    [1, 33, 17, 2, 16, 8],
    [2, 48, 48, 2, 32, 32],
    // Few heads: several tasks per head, whose sums are joined.
    [1, 150, 150, 1, 8, 12],
    [1, 70, 140, 2, 20, 24],
    // Many heads, lengths around tile edges.
    [4, 57, 31, 5, 9, 3],
    [1, 29, 97, 9, 10, 17],
];

#[test]
fn near_the_interpreter_with_every_option() {
    for sizes in SIZES {
        for causal in [false, true] {
            for dropout in [None, Some(AttentionDropout::rate(0.3))] {
                let what = AttentionConfig { scale: 1.0 / (sizes[4] as f64).sqrt(), causal, dropout };
                let graph = attention(F32, sizes, what);
                assert_eq!(kernels(&graph), 2, "{sizes:?}: not recognized");
                check(&graph, &format!("{sizes:?} {what:?}"), 2e-6);
            }
        }
    }
}

#[test]
fn narrow_floats_are_rounded_once() {
    for (dtype, tolerance) in [(BF16, 2e-2), (F16, 3e-3)] {
        let what = AttentionConfig { scale: 0.25, causal: true, dropout: Some(AttentionDropout::rate(0.1)) };
        let graph = attention(dtype, [2, 40, 40, 3, 16, 16], what);
        assert_eq!(kernels(&graph), 2);
        check(&graph, &format!("{dtype}"), tolerance);
    }
}

#[test]
fn f64_is_computed_op_by_op() {
    let graph =
        attention(F64, [2, 9, 9, 2, 4, 4], AttentionConfig { scale: 0.5, causal: true, dropout: None });
    assert_eq!(kernels(&graph), 0);
    // Softmax is computed in f32 for every type.
    check(&graph, "f64", 1e-6);
}

#[test]
fn near_the_same_ops_one_by_one() {
    let sizes = [2, 70, 70, 3, 32, 32];
    let fused = attention(F32, sizes, AttentionConfig { scale: 0.125, causal: false, dropout: None });
    let plain = with_gradients(F32, sizes, |x| {
        let scores = (&x[0] * 0.125).dot_general(&x[1], &[0, 2], &[0, 2], &[3], &[3]);
        scores.softmax().dot_general(&x[2], &[0, 1], &[0, 2], &[3], &[1]).transpose(&[0, 2, 1, 3])
    });
    assert_eq!((kernels(&fused), kernels(&plain)), (2, 0));
    let args = draw(&fused);
    for level in levels() {
        let (a, b) = (run(&backend(level, 2), &fused, &args), run(&backend(level, 2), &plain, &args));
        for (k, (a, b)) in a.iter().zip(&b).enumerate() {
            assert!(relative(a, b) < 2e-6, "result {k} on {level:?}: {:e}", relative(a, b));
        }
    }
}

#[test]
fn long_sequences_never_have_all_their_scores() {
    let sizes = [1, 2048, 2048, 2, 8, 8];
    let graph = attention(F32, sizes, AttentionConfig { scale: 0.35, causal: true, dropout: None });
    let exe = backend(levels().last().unwrap(), 1).compile(&graph, &CompileOptions::default()).unwrap();
    let scores = 2 * 2048 * 2048 * 4;
    // Partial sums of two gradients, but no scores.
    assert!(exe.report().arena_bytes * 4 < scores, "{} of {scores}", exe.report().arena_bytes);
}

#[test]
fn rows_beyond_all_bounds_stay_numbers() {
    let graph =
        attention(F32, [1, 20, 20, 2, 8, 8], AttentionConfig { scale: 100.0, causal: true, dropout: None });
    let args = draw(&graph);
    for level in levels() {
        let got = run(&backend(level, 2), &graph, &args);
        assert!(got.iter().all(|x| x.to_f64s().iter().all(|v| v.is_finite())), "{level:?}");
    }
}
