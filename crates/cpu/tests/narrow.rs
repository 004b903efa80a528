//! Tests excess precision: programs of several narrow-float ops round only stored results.
//!
//! At every level and for any number of threads, JIT-compiled and interpreted.

mod common;

use common::{arguments, backend, distance, levels, oracle, run_with};
use systole_ir::DType::{self, *};
use systole_ir::op::Direction;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType};
use systole_runtime::CompileOptions;

/// Maximum error in units in the last place of a result rounded once: 0.5, plus the error of functions.
const ONCE: f64 = 0.51;

const TYPES: [DType; 2] = [BF16, F16];

/// The graph of `f` with parameters of `dtype`, converted to the type that `f` computes in.
fn graph(dtype: DType, computed: DType, f: &dyn Fn(&[Tensor]) -> Vec<Tensor>) -> std::sync::Arc<Graph> {
    let g = GraphBuilder::new("narrow");
    let read = |name: &str| g.parameter(TensorType::new(dtype, [6, 50]), name).convert(computed);
    let x: Vec<Tensor> = ["a", "b", "c"].into_iter().map(read).collect();
    g.finish(&f(&x)).unwrap()
}

/// Compares excess precision with f32, and with rounding after each op.
fn check(f: &dyn Fn(&[Tensor]) -> Vec<Tensor>, label: &str) {
    let excess = CompileOptions { excess_precision: true, ..CompileOptions::default() };
    for dtype in TYPES {
        let (narrow, wide) = (graph(dtype, dtype, f), graph(dtype, F32, f));
        let args = arguments(&narrow, 0.25, 2.0, 3);
        let (rounded, want) = (oracle(&narrow, &args), oracle(&wide, &args));
        // Distances from the unrounded values, in units of the narrow type.
        let worst = |got: &[Literal]| {
            let far = |(got, want): (&Literal, &Literal)| {
                let unit = match dtype {
                    BF16 => 2f64.powi(-8),
                    _ => 2f64.powi(-11),
                };
                let error =
                    |(x, y): (&f64, &f64)| (x - y).abs() / 2f64.powf(y.abs().log2().floor()) / unit / 2.0;
                got.to_f64s().iter().zip(&want.to_f64s()).map(error).fold(0.0, f64::max)
            };
            got.iter().zip(&want).map(far).fold(0.0, f64::max)
        };
        assert!(
            worst(&rounded) > 0.6,
            "{label} {dtype:?}: rounding after each op shows: {}",
            worst(&rounded)
        );
        for level in levels() {
            let first = run_with(&backend(level, 1), &narrow, &args, &excess);
            assert!(worst(&first) <= ONCE, "{label} {dtype:?} {level:?}: {}", worst(&first));
            let again = run_with(&backend(level, 3), &narrow, &args, &excess);
            assert!(first == again, "{label} {dtype:?} {level:?} depends on threads");
            let exact = run_with(&backend(level, 1), &narrow, &args, &CompileOptions::default());
            for (got, want) in exact.iter().zip(&rounded) {
                assert!(distance(got, want, false).0 <= 1.0, "{label} {dtype:?} {level:?} without");
            }
        }
    }
}

#[test]
fn programs_round_what_they_store() {
    check(&|x| vec![(&x[0] * &x[1] + &x[2]) / (&x[0] + &x[1]) - &x[2] * 0.375], "arithmetic");
    check(&|x| vec![(&x[0] * &x[1]).tanh() * &x[2]], "tanh");
    check(&|x| vec![(&x[0] * &x[1]).maximum(&x[2]).exp() + &x[0]], "maximum and exp");
}

#[test]
fn results_on_the_way_are_rounded_where_they_are_stored_only() {
    check(
        &|x| {
            let product = &x[0] * &x[1];
            let sum = &product + &x[2];
            vec![&sum * &x[1], product, sum]
        },
        "three results",
    );
}

#[test]
fn conversions_between_ops_round_nothing() {
    check(
        &|x| vec![((&x[0] * &x[1]).convert(F32) + x[2].convert(F32) * 0.3125).convert(x[0].dtype()) * &x[1]],
        "converted",
    );
}

#[test]
fn comparisons_see_what_was_not_rounded() {
    let excess = CompileOptions { excess_precision: true, ..CompileOptions::default() };
    let f = |x: &[Tensor]| {
        let product = &x[0] * &x[1];
        vec![product.compare(&x[2], Direction::Gt).select(&x[0], &x[1])]
    };
    let (narrow, wide) = (graph(BF16, BF16, &f), graph(BF16, F32, &f));
    let a = arguments(&narrow, 0.25, 2.0, 5);
    // Products that differ from the third operand by less than half a unit.
    let near: Vec<f32> = a[0].to_f32s().iter().zip(&a[1].to_f32s()).map(|(a, b)| a * b).collect();
    let args = [a[0].clone(), a[1].clone(), Literal::from_slice([6, 50], &near).unwrap().convert(BF16)];
    let want = oracle(&wide, &args)[0].convert(BF16);
    assert!(oracle(&narrow, &args)[0] != want, "rounded products are equal to it");
    for level in levels() {
        assert!(run_with(&backend(level, 2), &narrow, &args, &excess)[0] == want, "{level:?}");
    }
}

/// Products read unrounded float16 values if these may be held in float32; bf16 values are rounded as before.
#[test]
fn float16_is_held_in_float32_between_products() {
    let attention = |x: &[Tensor]| {
        let scores = (&x[0] * 0.75).dot_general(&(&x[1] * 0.375), &[], &[], &[1], &[1]);
        vec![(scores.softmax() * 0.625).dot_general(&x[2], &[], &[], &[1], &[0])]
    };
    let held = CompileOptions { wide_float16: true, ..CompileOptions::default() };
    for dtype in TYPES {
        let (narrow, wide) = (graph(dtype, dtype, &attention), graph(dtype, F32, &attention));
        let args = arguments(&narrow, 0.25, 2.0, 3);
        let want: Vec<Literal> = oracle(&wide, &args).iter().map(|x| x.convert(dtype)).collect();
        let far = |got: &[Literal]| distance(&got[0], &want[0], false).0;
        for level in levels() {
            let got = run_with(&backend(level, 1), &narrow, &args, &held);
            let rounded = run_with(&backend(level, 1), &narrow, &args, &CompileOptions::default());
            match dtype {
                F16 => assert!(far(&got) <= 1.0, "{level:?}: {}", far(&got)),
                _ => assert_eq!(got, rounded),
            }
            assert!(far(&rounded) > 1.0, "{level:?}: rounding after each op shows: {}", far(&rounded));
        }
    }
}
