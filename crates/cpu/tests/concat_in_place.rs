//! Tests element-wise programs that read slices in place and write parts of larger arrays.

mod common;

use common::*;
use std::sync::Arc;
use systole_ir::DType::*;
use systole_ir::{DType, Graph, GraphBuilder, Tensor, TensorType, control_builders, grad};

/// Element-wise work on slices of an element-wise result, concatenated again.
fn sliced(dtype: DType, shape: &[usize], dim: usize, parts: usize) -> Arc<Graph> {
    let g = GraphBuilder::new("sliced");
    let ty = TensorType::new(dtype, shape);
    let (x, y) = (g.parameter(ty.clone(), "x"), g.parameter(ty.clone(), "y"));
    let row = g.parameter(TensorType::new(dtype, &shape[shape.len() - 1..]), "row");
    let sum = &x + &y * row.broadcast_to(&ty.shape);
    let each = shape[dim] / parts;
    let part = |t: &Tensor, k: usize| t.slice_dim(dim, k * each, (k + 1) * each);
    let made: Vec<Tensor> = (0..parts)
        .map(|k| {
            let (a, b) = (part(&sum, k), part(&x, parts - 1 - k));
            // Rounding of values that slices share, a mask, and an operand that is also used as a whole.
            let top = a.maximum(&b) - part(&sum, (k + 1) % parts);
            a.greater(&b).select(&top, &(&b + &a))
        })
        .collect();
    let joined = Tensor::concatenate(&made.iter().collect::<Vec<_>>(), dim);
    let middle = joined.slice_dim(0, shape[0] / 2, shape[0]).abs();
    g.finish(&[joined, made[0].minimum(&part(&y, 0)), middle]).unwrap()
}

#[test]
fn slices_and_joined_parts_have_the_interpreters_bits() {
    // In one dimension, in rows below and above a tile, in the middle, outermost, and rows too short for it.
    let cases: [(&[usize], usize, usize); 7] = [
        (&[2 * 700], 0, 2),
        (&[6, 3 * 160], 1, 3),
        (&[3, 2 * 1300], 1, 2),
        (&[3, 4, 5, 40], 1, 4),
        (&[8, 5, 40], 0, 2),
        (&[4, 2, 133], 1, 2),
        (&[9, 4 * 7], 1, 4),
    ];
    for dtype in [F32, BF16, F16, F64, I32, I64, I8] {
        for (shape, dim, parts) in cases {
            let graph = sliced(dtype, shape, dim, parts);
            let args = arguments(&graph, -6.0, 6.0, 17);
            let want = oracle(&graph, &args);
            for level in levels() {
                for threads in [1, 2, 3, 8] {
                    let got = run(&backend(level, threads), &graph, &args);
                    assert!(
                        got == want,
                        "{dtype} {shape:?} by {parts} along {dim} on {level:?}, {threads} threads"
                    );
                }
            }
        }
    }
}

/// LSTM forward and backward pass, in a loop that keeps the values that the backward pass needs: `[loss, outputs,
/// gradients…]`.
fn lstm(dtype: DType, steps: usize, batch: usize, units: usize, backwards: bool) -> Arc<Graph> {
    let g = GraphBuilder::new("lstm");
    let param = |shape: &[usize]| g.parameter(TensorType::new(dtype, shape), "x");
    let (w, b, xs) = (param(&[units, 4 * units]), param(&[4 * units]), param(&[steps, batch, 4 * units]));
    let zeros = |columns: usize| g.full(&TensorType::new(dtype, [batch, columns]), 0.0);
    let xs_in_order = if backwards { xs.reverse(&[0]) } else { xs.clone() };
    let (last, ys) = control_builders::scan(
        &[&zeros(units), &zeros(units), &zeros(4 * units)],
        &[&xs_in_order],
        |state, x| {
            let z = &x[0] + &state[2] + &b;
            let gate = |k: usize| z.slice_dim(1, k * units, (k + 1) * units);
            let memory = gate(1).logistic() * &state[1] + gate(0).logistic() * gate(2).tanh();
            let h = gate(3).logistic() * memory.tanh();
            (vec![h.clone(), memory.clone(), h.dot(&w)], vec![h, memory])
        },
    );
    // The interpreter's sums of narrow floats round at each addition.
    let square = |x: &Tensor| (x * x).convert(F32).sum_all();
    let loss = square(&ys[0]) + square(&ys[1]) + square(&last[0]);
    let mut results = vec![loss.clone(), ys[0].clone(), ys[1].clone()];
    results.extend(grad(&loss, &[&w, &b, &xs]));
    g.finish(&results).unwrap()
}

#[test]
fn loops_write_entries_of_all_trips_where_they_lie() {
    // Columns below and above a run, one row, one iteration.
    for (steps, batch, units) in [(4, 3, 130), (1, 2, 128), (5, 1, 200), (6, 17, 144), (3, 4, 30)] {
        for backwards in [false, true] {
            let graph = lstm(F32, steps, batch, units, backwards);
            check_near(&graph, &arguments(&graph, -0.2, 0.2, 5), 5e-6);
        }
    }
}

#[test]
fn loops_of_narrow_floats_do_so_too() {
    for dtype in [BF16, F16] {
        let graph = lstm(dtype, 4, 3, 160, false);
        // Sums of products are rounded where they are stored, as in the interpreter; few of them round to the other
        // side.
        check_near(&graph, &arguments(&graph, -0.2, 0.2, 6), if dtype == BF16 { 1e-2 } else { 1e-3 });
    }
}
