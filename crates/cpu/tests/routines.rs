//! Kernels of routines against the ops that define them, in the interpreter.

mod common;

use common::routines::{cholesky, fft, triangular_solve};
use common::{arguments, backend, check_near};
use std::sync::Arc;
use systole_cpu::Level;
use systole_ir::DType::{self, F32, F64};
use systole_ir::op::Routine;
use systole_ir::{Graph, Literal};

fn near(graph: &Arc<Graph>, dtype: DType, seed: u64) {
    check_near(graph, &arguments(graph, -1.0, 1.0, seed), if dtype == F64 { 1e-13 } else { 3e-6 });
}

/// Columns of lines, two factors, primes as factors, even and odd; one line, a part of a block, several blocks.
#[test]
fn transforms_of_lines_are_the_sums_that_define_them() {
    let kinds =
        [Routine::Fft { inverse: false }, Routine::Fft { inverse: true }, Routine::Rfft, Routine::Irfft];
    for n in [1usize, 2, 3, 4, 17, 30, 31, 48, 63, 64, 65, 99, 130, 217] {
        for (seed, kind) in kinds.into_iter().enumerate() {
            let lines = if n < 64 { [1, 5, 70][seed % 3] } else { 2 };
            for dtype in [F32, F64] {
                near(&fft(kind, lines, n, dtype), dtype, seed as u64);
            }
        }
    }
    // More columns than are taken at a time.
    near(&fft(Routine::Fft { inverse: false }, 1, 961, F32), F32, 1);
    near(&fft(Routine::Rfft, 1, 1050, F32), F32, 1);
}

#[test]
fn decompositions_are_those_by_columns() {
    for (k, n) in [(1, 1), (3, 2), (2, 31), (1, 32), (1, 33), (2, 70), (1, 130)] {
        for dtype in [F32, F64] {
            near(&cholesky(k, n, dtype), dtype, 1);
        }
    }
}

#[test]
fn triangular_systems_are_solved_row_by_row() {
    for (k, n, m) in [(1, 1, 1), (2, 3, 1), (1, 32, 33), (3, 33, 7), (1, 70, 64), (1, 101, 17)] {
        for unit in [false, true] {
            for dtype in [F32, F64] {
                near(&triangular_solve(k, n, m, unit, dtype), dtype, 2);
            }
        }
    }
}

/// What lies on the other side of a diagonal is not read, and what has no root is NaN.
#[test]
fn the_other_side_of_a_diagonal_is_not_read() {
    let graph = |routine: Routine, n: usize| {
        let g = systole_ir::GraphBuilder::new("main");
        let a = g.parameter(systole_ir::TensorType::new(F32, [1, n, n]), "a");
        let y = routine.of(&[&a], |p| vec![p[0].clone()]);
        g.finish(&y).unwrap()
    };
    let n = 35;
    let of = |above: f32, first: f32| {
        let all = (0..n * n).map(|p| match (p / n, p % n) {
            (0, 0) => first,
            (i, j) if i == j => 2.0,
            (i, j) if i > j => 0.0,
            _ => above,
        });
        Literal::from_slice([1, n, n], &all.collect::<Vec<f32>>()).unwrap()
    };
    let run = |a: Literal| {
        common::run(&backend(Level::Portable, 2), &graph(Routine::Cholesky, n), &[a])[0].to_f32s()
    };
    let y = run(of(f32::NAN, 4.0));
    assert!((0..n * n).all(|p| {
        let want = if p / n != p % n {
            0.0
        } else if p == 0 {
            2.0
        } else {
            2f32.sqrt()
        };
        y[p] == want
    }));
    assert!(run(of(0.0, -1.0))[0].is_nan());
}
