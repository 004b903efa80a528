//! Tests softmax, layer and batch normalization, cross-entropy, and their gradients, against the interpreter.
//!
//! Covers odd row lengths and counts, special values, narrow floats, every level, any number of threads.

mod common;

use common::*;
use std::sync::Arc;
use systole_cpu::Level;
use systole_ir::DType::{self, *};
use systole_ir::op::ArgDomain;
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType, vjp};
use systole_runtime::CompileOptions;

/// `f` of arrays of these types, and its gradients w.r.t. all floating-point ones for a random cotangent.
fn with_gradients(name: &str, types: &[TensorType], f: impl Fn(&[Tensor]) -> Tensor) -> Arc<Graph> {
    let g = GraphBuilder::new(name);
    let xs: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let y = f(&xs);
    let dy = g.parameter(y.ty().clone(), "dy");
    let floats: Vec<&Tensor> = xs.iter().filter(|x| x.dtype().is_float()).collect();
    let mut results = vec![y.clone()];
    results.extend(vjp(&[&y], &[&dy], &floats));
    g.finish(&results).unwrap()
}

fn layer_norm(p: &[Tensor]) -> Tensor {
    let (x, last) = (&p[0], [p[0].rank() - 1]);
    let centred = x - x.mean(&last).broadcast_except(x.shape(), &last);
    let variance = (&centred * &centred).mean(&last);
    let scaled = centred * (variance + 1e-3).rsqrt().broadcast_except(x.shape(), &last);
    scaled * p[1].broadcast_in_dim(x.shape(), &last) + p[2].broadcast_in_dim(x.shape(), &last)
}

fn batch_norm(p: &[Tensor]) -> Tensor {
    let (x, last) = (&p[0], p[0].rank() - 1);
    let others: Vec<usize> = (0..last).collect();
    let wide = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[last]);
    let centred = x - wide(&x.mean(&others));
    let variance = (&centred * &centred).mean(&others);
    let y = centred * wide(&((variance + 1e-3).rsqrt() * &p[1])) + wide(&p[2]);
    y.relu()
}

fn cross_entropy(p: &[Tensor]) -> Tensor {
    let hot = p[1].one_hot(p[0].dim(-1), p[0].dtype());
    -(p[0].log_softmax() * hot).sum(&[1]).mean(&[0])
}

fn draw(graph: &Graph, classes: usize) -> Vec<Literal> {
    let domain = |t: &TensorType| match t.dtype {
        I32 => ArgDomain::Uniform(0.0, classes as f64 - 1.0),
        _ => ArgDomain::Uniform(-2.0, 2.0),
    };
    let one = |(i, t): (usize, &TensorType)| domain(t).draw(t, &mut RandomStream::new(3, 4, i as u64));
    graph.param_types().iter().enumerate().map(one).collect()
}

fn shapes() -> Vec<Vec<usize>> {
    vec![
        vec![3, 7],
        vec![65, 513],
        vec![2, 5, 129],
        vec![1, 40],
        vec![40, 1],
        vec![17, 3, 64],
        vec![5, 20_000],
    ]
}

#[test]
fn softmax_of_rows() {
    for shape in shapes() {
        let ty = TensorType::new(F32, shape);
        for (name, f) in [("softmax", Tensor::softmax as fn(&Tensor) -> Tensor), ("log", Tensor::log_softmax)]
        {
            let graph = with_gradients(name, std::slice::from_ref(&ty), |p| f(&p[0]));
            check_near(&graph, &draw(&graph, 2), 1e-5);
        }
    }
}

#[test]
fn normalisation_of_rows_and_columns() {
    for shape in shapes() {
        let features = TensorType::new(F32, &shape[shape.len() - 1..]);
        let types = [TensorType::new(F32, shape), features.clone(), features];
        let graph = with_gradients("layer_norm", &types, layer_norm);
        check_near(&graph, &draw(&graph, 2), 1e-4);
        let graph = with_gradients("batch_norm", &types, batch_norm);
        check_near(&graph, &draw(&graph, 2), 1e-4);
    }
}

#[test]
fn cross_entropy_of_rows() {
    // With few classes rows are transposed, in blocks of up to 128 rows; also as many rows as classes.
    let few = [(128, 10), (300, 10), (129, 32), (1000, 2), (257, 33), (10, 10), (32, 32)];
    for (rows, classes) in [(5, 3), (9, 1000), (33, 257), (3, 30_000)].into_iter().chain(few) {
        let types = [TensorType::new(F32, [rows, classes]), TensorType::new(I32, [rows])];
        let graph = with_gradients("cross_entropy", &types, cross_entropy);
        check_near(&graph, &draw(&graph, classes), 1e-5);
    }
}

#[test]
fn narrow_floats_and_doubles() {
    let types = |dtype: DType| {
        [TensorType::new(dtype, [19, 131]), TensorType::new(dtype, [131]), TensorType::new(dtype, [131])]
    };
    for (dtype, tolerance) in [(BF16, 0.05), (F16, 0.01), (F64, 1e-10)] {
        for (name, f) in [("layer_norm", layer_norm as fn(&[Tensor]) -> Tensor), ("batch_norm", batch_norm)] {
            let graph = with_gradients(name, &types(dtype), f);
            check_near(&graph, &draw(&graph, 2), tolerance);
        }
        for ty in [types(dtype)[0].clone(), TensorType::new(dtype, [140, 12])] {
            let graph = with_gradients("softmax", &[ty], |p| p[0].softmax());
            check_near(&graph, &draw(&graph, 2), tolerance);
        }
    }
}

#[test]
fn short_rows_are_independent_of_each_other() {
    // A row's result is bit-identical in a whole block, in the last block, and among few rows.
    for dtype in [F32, BF16] {
        let of = |rows: usize| {
            let g = GraphBuilder::new("short");
            let x = g.parameter(TensorType::new(dtype, [rows, 10]), "x");
            g.finish(&[x.softmax()]).unwrap()
        };
        let row: Vec<f32> = (0..10).map(|i| (i * 7 % 10) as f32 * 0.37 - 1.0).collect();
        for level in levels() {
            let of_rows = |rows: usize| {
                let x = Literal::from_slice([rows, 10], &row.repeat(rows)).unwrap().convert(dtype);
                run(&backend(level, 2), &of(rows), &[x])[0].to_f32s()
            };
            let first = of_rows(2)[..10].to_vec();
            for rows in [2, 5, 128, 131, 300] {
                assert!(of_rows(rows).chunks(10).all(|r| r == first), "{rows} rows of {dtype} on {level:?}");
            }
        }
    }
}

/// Rows with random-like bits of their own position: a choice by the largest of a few values for each row.
#[test]
fn short_rows_that_use_their_row_and_column_numbers() {
    for (rows, columns) in [(512, 2), (300, 3), (131, 32), (5, 7)] {
        for number in [I32, U32, I64] {
            let g = GraphBuilder::new("numbers");
            let ty = TensorType::new(F32, [rows, columns]);
            let x = g.parameter(ty.clone(), "x");
            let [row, column] = [0, 1].map(|d| g.iota(ty.with_dtype(number), d).convert(F32));
            let value = (&x * 3.0 + &row * 0.37 + &column * 1.7).sine() + &row * 0.01;
            let most = value.reduce_max(&[1]);
            let scaled = (&value - most.broadcast_in_dim(x.shape(), &[0])).exp();
            let shift = g.iota(TensorType::new(number, [rows]), 0).convert(F32);
            let graph = g.finish(&[scaled, &most * &shift]).unwrap();
            check_near(&graph, &draw(&graph, 2), 1e-5);
            let steps = backend(Level::best(), 1).explain(&graph, &CompileOptions::default()).unwrap();
            assert!(steps.iter().all(|s| s.kernel.uses("reduce/rows_transposed")), "{rows}×{columns}");
        }
    }
}

/// Vectors that are broadcast along few columns, of every size of elements.
#[test]
fn vectors_broadcast_along_few_columns() {
    for columns in [1, 2, 3, 4, 5, 8, 16, 17] {
        for (rows, dtype) in [(700, F32), (35, F64), (300, BF16), (1000, U8)] {
            let g = GraphBuilder::new("spread");
            let ty = TensorType::new(dtype, [rows, columns]);
            let x = g.parameter(ty.clone(), "x");
            let keep = g.parameter(TensorType::new(Bool, [rows]), "keep");
            let by = g.parameter(TensorType::new(dtype, [rows]), "by");
            let [keep, by] = [keep, by].map(|v| v.broadcast_in_dim(&ty.shape, &[0]));
            let graph = g.finish(&[keep.select(&(&x + &by), &x)]).unwrap();
            let args = draw(&graph, 2);
            let want = oracle(&graph, &args);
            for level in levels() {
                assert!(run(&backend(level, 2), &graph, &args) == want, "{rows}×{columns} {dtype} {level:?}");
            }
        }
    }
}

#[test]
fn special_values_stay_in_their_rows() {
    let graph = {
        let g = GraphBuilder::new("special");
        let x = g.parameter(TensorType::new(F32, [4, 600]), "x");
        g.finish(&[x.softmax()]).unwrap()
    };
    let mut values = vec![0.5f32; 4 * 600];
    values[600 + 3] = f32::NAN;
    values[2 * 600 + 599] = f32::INFINITY;
    values[3 * 600 + 7] = f32::NEG_INFINITY;
    let args = [Literal::from_slice([4, 600], &values).unwrap()];
    for level in levels() {
        let y = run(&backend(level, 2), &graph, &args)[0].to_f32s();
        assert!(y[..600].iter().all(|v| (v * 600.0 - 1.0).abs() < 1e-5), "{level:?}");
        assert!(y[600..3 * 600].iter().all(|v| v.is_nan() || *v == 0.0), "{level:?}");
        assert!(y[600..1200].iter().all(|v| v.is_nan()), "{level:?}");
        let last = &y[3 * 600..];
        assert!(last[7] == 0.0 && last.iter().all(|v| v.is_finite()), "{level:?}");
    }
}

#[test]
fn repeated_vectors_and_coordinates_of_every_length() {
    for (rows, columns) in [(7, 1), (100, 3), (33, 32), (9, 511), (9, 512), (9, 513), (5, 1500)] {
        for dtype in [F32, BF16, F64] {
            let g = GraphBuilder::new("repeated");
            let ty = TensorType::new(dtype, [rows, columns]);
            let x = g.parameter(ty.clone(), "x");
            let row = g.parameter(TensorType::new(dtype, [columns]), "row");
            let column = g.parameter(TensorType::new(dtype, [rows]), "column");
            let (row, column) =
                (row.broadcast_in_dim(&ty.shape, &[1]), column.broadcast_in_dim(&ty.shape, &[0]));
            let places = [0, 1].map(|d| g.iota(ty.with_dtype(I32), d).convert(dtype));
            let sum = &x + &row - &column;
            let y = sum.greater(&x).select(&(&sum + &places[0]), &(&sum - &places[1]));
            let graph = g.finish(&[y]).unwrap();
            let args = draw(&graph, 2);
            let want = oracle(&graph, &args);
            for level in levels() {
                assert!(run(&backend(level, 2), &graph, &args) == want, "{rows}×{columns} {dtype} {level:?}");
            }
        }
    }
}
