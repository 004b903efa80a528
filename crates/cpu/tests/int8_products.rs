//! Tests products of dequantized values, which run in int8, against the interpreter's floats, at every level.
//!
//! Sums are exact; a rounded result may differ by one step. Results are bit-identical for any number of threads and at
//! every level.

mod common;

use common::quantized::{bytes, dense, dynamic, residual, rows, sums, windows};
use common::*;
use std::sync::Arc;
use systole_ir::DType::{I8, U8};
use systole_ir::{Graph, Literal};
use systole_runtime::CompileOptions;

/// Returns the largest difference of two arrays.
fn apart(got: &Literal, want: &Literal) -> f64 {
    assert_eq!(got.ty(), want.ty());
    got.to_f64s().iter().zip(want.to_f64s()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Returns the names of the kernels.
fn kernels(graph: &Arc<Graph>) -> Vec<String> {
    let steps = backend(levels().last().unwrap(), 1).explain(graph, &CompileOptions::default()).unwrap();
    steps.into_iter().map(|s| s.kernel.name).collect()
}

/// Runs a program at every level and with several threads, with the same bits, and returns the results.
fn alike(graph: &Arc<Graph>, args: &[Literal]) -> Vec<Literal> {
    let first = run(&backend(levels().next().unwrap(), 1), graph, args);
    for level in levels() {
        for threads in [1, 3] {
            let got = run(&backend(level, threads), graph, args);
            assert!(got == first, "{} on {level:?} with {threads} threads differs", graph.name);
        }
    }
    first
}

#[test]
fn dense_layers_of_quantized_values_run_in_int8() {
    for (dtype, weight) in [(I8, I8), (U8, I8), (U8, U8)] {
        for size in [[1, 3, 1], [5, 70, 33], [40, 130, 64], [33, 64, 200]] {
            let graph = dense(dtype, weight, size);
            let used = kernels(&graph);
            assert!(used.iter().any(|k| k.starts_with("int8_product/")), "{size:?}: {used:?}");
            let args = arguments(&graph, -1.2, 1.2, 7);
            let got = alike(&graph, &args);
            let far = apart(&got[0], &oracle(&graph, &args)[0]);
            assert!(far <= 1.0, "{dtype} · {weight} {size:?}: {far}");
        }
    }
}

#[test]
fn convolutions_of_quantized_values_run_in_int8() {
    for dtype in [I8, U8] {
        for (size, stride) in
            [([2, 7, 3, 5], 1), ([1, 9, 16, 40], 2), ([2, 6, 64, 64], 1), ([1, 5, 130, 33], 2)]
        {
            let graph = residual(dtype, size, stride);
            let used = kernels(&graph);
            let count = used.iter().filter(|k| k.starts_with("int8_product/")).count();
            assert_eq!(count, 3, "{size:?}: {used:?}");
            assert!(used.iter().all(|k| !k.starts_with("conv/")), "{size:?}: {used:?}");
            let args = arguments(&graph, -1.2, 1.2, 7);
            let (got, want) = (alike(&graph, &args), oracle(&graph, &args));
            // A step of an inner layer is up to 0.02 in the result before the sum, whose own step is 0.043.
            assert!(apart(&got[0], &want[0]) <= 3.0, "{dtype} {size:?}: {}", apart(&got[0], &want[0]));
            assert!(apart(&got[1], &want[1]) <= 0.1, "{dtype} {size:?}: {}", apart(&got[1], &want[1]));
            let same = got[0].to_f64s().iter().zip(want[0].to_f64s()).filter(|(a, b)| **a == *b).count();
            assert!(same * 100 >= got[0].ty().elements() * 99, "{dtype} {size:?}: {same} are equal");
        }
    }
}

#[test]
fn int8_sums_are_those_of_the_interpreter() {
    let programs = [[1, 3, 1], [5, 70, 33], [40, 130, 64]].map(sums).into_iter();
    let convolved =
        [([2, 7, 3, 5], 3, 1), ([1, 9, 16, 40], 3, 2), ([2, 6, 64, 64], 3, 1), ([1, 6, 8, 8], 1, 2)]
            .map(|(size, window, stride)| windows(size, window, stride));
    for graph in programs.chain(convolved) {
        let used = kernels(&graph);
        assert!(used.iter().all(|k| k == "int8_product/by_blocks"), "{used:?}");
        let types = graph.param_types();
        let args: Vec<Literal> =
            types.iter().enumerate().map(|(i, t)| bytes(t.dtype, &t.shape, 30 + i as u64)).collect();
        assert!(alike(&graph, &args) == oracle(&graph, &args), "{}", graph.name);
    }
}

#[test]
fn dynamically_quantized_products_run_in_int8() {
    for size in [[1, 3, 1], [5, 70, 33], [40, 384, 64]] {
        let graph = dynamic(size);
        let used = kernels(&graph);
        assert!(used.iter().any(|k| k.starts_with("int8_product/")), "{size:?}: {used:?}");
        let args = arguments(&graph, -0.7, 2.0, 7);
        let (got, want) = (alike(&graph, &args), oracle(&graph, &args));
        assert!(got[1] == want[1], "{size:?}: the sums differ by {}", apart(&got[1], &want[1]));
        assert!(relative(&got[0], &want[0]) <= 1e-6, "{size:?}");
    }
}

#[test]
fn rows_of_a_quantized_table_are_gathered_before_they_are_dequantized() {
    let graph = rows();
    let args = [Literal::from_slice([5], &[3i32, 899, 0, 17, 3]).unwrap()];
    assert!(alike(&graph, &args) == oracle(&graph, &args));
    let exe = systole_runtime::Backend::compile(
        &backend(levels().next().unwrap(), 1),
        &graph,
        &CompileOptions::default(),
    );
    let listing = exe.unwrap().listing();
    assert!(!listing.contains("f32[900,48]") && !listing.contains("f32[900, 48]"), "{listing}");
}
