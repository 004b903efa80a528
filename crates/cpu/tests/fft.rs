//! Tests Fourier transforms against the interpreter, which computes them in f64.
//!
//! Covers all radices, layouts, two-step transforms, every level, any number of threads, and NaN next to numbers.

mod common;

use common::*;
use std::sync::Arc;
use systole_ir::op::fft::{FftCall, FftType};
use systole_ir::{DType, Graph, GraphBuilder, Literal, TensorType};

const KINDS: [FftType; 4] = [FftType::Fft, FftType::Ifft, FftType::Rfft, FftType::Irfft];

/// Returns a program that transforms dimension `dim` of arrays whose real (or complex) sizes are `shape`.
fn program(kind: FftType, dtype: DType, shape: &[usize], dim: usize) -> Arc<Graph> {
    let g = GraphBuilder::new(&format!("{kind} {dtype} {shape:?} {dim}"));
    let mut dims = shape.to_vec();
    if kind == FftType::Irfft {
        dims[dim] = shape[dim] / 2 + 1;
    }
    let parts = if kind == FftType::Rfft { 1 } else { 2 };
    let x: Vec<_> = (0..parts).map(|_| g.parameter(TensorType::new(dtype, &dims[..]), "x")).collect();
    let fft = FftCall { kind, dim, length: shape[dim] };
    g.finish(&fft.emit(&x.iter().collect::<Vec<_>>())).unwrap()
}

fn check(dtype: DType, shape: &[usize], dim: usize) {
    let tolerance = if dtype == DType::F32 { 4e-7 } else { 2e-15 };
    for kind in KINDS {
        let graph = program(kind, dtype, shape, dim);
        check_near(&graph, &arguments(&graph, -1.0, 1.0, 3), tolerance);
    }
}

#[test]
fn every_radix_and_their_products() {
    for n in (1..=64).chain([72, 90, 105, 122, 128, 169, 210, 243, 256, 500, 59 * 61]) {
        check(DType::F32, &[3, n], 1);
        check(DType::F64, &[n, 3], 0);
    }
}

#[test]
fn whole_and_partial_groups_of_lanes() {
    for outer in [1, 7, 8, 16, 17, 33] {
        check(DType::F32, &[outer, 24], 1);
        check(DType::F64, &[outer, 15], 1);
    }
    for inner in [2, 4, 8, 15, 16, 40, 256, 300] {
        check(DType::F32, &[2, 12, inner], 1);
        check(DType::F64, &[2, 9, inner], 1);
    }
}

#[test]
fn two_steps() {
    for n in [256, 272, 512, 513, 1000, 1024, 2310, 4096, 7200] {
        check(DType::F32, &[2, n], 1);
        check(DType::F64, &[2, n], 1);
    }
}

/// All threads transform one array.
#[test]
fn long_arrays() {
    for n in [1 << 15, 3 * 14_641] {
        check(DType::F32, &[2, n], 1);
    }
    check(DType::F64, &[1 << 16], 0);
}

/// What is not finite reaches every element of its array, in one part at least, and no other array: those have the same
/// bits as without it.
#[test]
fn what_is_not_finite_stays_in_its_array() {
    for (n, kind) in [12, 30, 256, 512].into_iter().flat_map(|n| KINDS.map(|kind| (n, kind))) {
        let graph = program(kind, DType::F32, &[5, n], 1);
        let args = arguments(&graph, -1.0, 1.0, 5);
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut marked = args.clone();
            let mut values = args[0].to_f32s();
            let row = values.len() / 5;
            values[2 * row + 1] = odd;
            marked[0] = Literal::from_slice(args[0].shape(), &values).unwrap();
            for level in levels() {
                let backend = backend(level, 2);
                let (plain, odd) = (run(&backend, &graph, &args), run(&backend, &graph, &marked));
                let rows = |x: &Literal| {
                    let all = x.to_f32s();
                    all.chunks(all.len() / 5).map(<[f32]>::to_vec).collect::<Vec<_>>()
                };
                let (plain, odd): (Vec<_>, Vec<_>) =
                    (plain.iter().map(rows).collect(), odd.iter().map(rows).collect());
                for i in (0..5).filter(|i| *i != 2) {
                    assert!(plain.iter().zip(&odd).all(|(a, b)| a[i] == b[i]), "{kind} {n} {level:?}, {i}");
                }
                let is_odd = |k: usize| odd.iter().any(|part| !part[2][k].is_finite());
                assert!((0..odd[0][2].len()).all(is_odd), "{kind} {n} on {level:?}");
            }
        }
    }
}

/// A length with a large prime factor has no kernel, but the same meaning.
#[test]
fn large_primes_are_evaluated() {
    check(DType::F32, &[2, 67], 1);
}
