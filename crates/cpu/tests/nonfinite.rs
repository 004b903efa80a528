//! Tests every op with NaN, infinities, subnormals and signed zeros against the interpreter.
//!
//! Also through activations and their derivatives. Results must be non-finite in the same places, and of the same
//! class.

mod common;

use common::odd::{Allowed, ODD, convolves, difference, with_odd};
use common::{backend, levels, oracle, run_with, sums};
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level};
use systole_ir::DType::*;
use systole_ir::op::fft::FFT;
use systole_ir::op::{Op, OpSample, TABLE};
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType, grad};
use systole_runtime::{Backend, Buffer, CompileOptions, Executable, ExecutableArg};

/// One program, compiled for every level of this machine.
fn compiled(backends: &[(Level, CpuBackend)], graph: &Arc<Graph>) -> Vec<(Level, Arc<dyn Executable>)> {
    let compile = |b: &CpuBackend| b.compile(graph, &CompileOptions::default()).unwrap();
    backends.iter().map(|(level, b)| (*level, compile(b))).collect()
}

/// Returns the wrong results of a sample with special numbers in one operand.
fn wrongs(
    sample: &OpSample,
    args: &[Literal],
    operand: usize,
    programs: &[(Level, Arc<dyn Executable>)],
) -> Vec<String> {
    let want = oracle(&sample.graph, args);
    let is_sum = sums(&sample.graph);
    let allowed = Allowed { other_class: false, spread: operand == 1 && convolves(&sample.graph) };
    let mut wrong = Vec::new();
    for (level, program) in programs {
        let given = args.iter().map(|a| ExecutableArg::Donate(Buffer::from(a.clone()))).collect();
        let got = program.run(given).unwrap();
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            let got = got.to_literal().unwrap();
            let tolerance = match got.dtype() {
                _ if !got.dtype().is_float() => 0.0,
                F16 | BF16 if is_sum => 3e-2,
                F16 | BF16 => 1e-2,
                _ => 1e-5,
            };
            let why = difference(&got, want, allowed, tolerance);
            wrong.extend(why.map(|why| format!("operand {operand}, result {k} on {level:?}: {why}")));
        }
    }
    wrong
}

/// Every sample of every op, with special numbers in each of its floating-point operands.
#[test]
fn every_op_keeps_what_is_not_finite() {
    let backends: Vec<(Level, CpuBackend)> = levels().map(|level| (level, backend(level, 2))).collect();
    let mut wrong = Vec::new();
    for (number, entry) in TABLE.iter().enumerate() {
        for sample in (entry.samples)() {
            let plain = sample.arguments(0);
            let is_odd = |x: &Literal| x.dtype().is_float() && x.ty().elements() > 0;
            // Which parts of a transform are not finite depends on its factors: radix 2 multiplies by no zero. That other
            // arrays stay finite is tested with the transforms.
            let is_transform = |n: &systole_ir::Node| matches!(&n.op, Op::CustomCall(c) if c.target == FFT);
            if !plain.iter().any(is_odd) || sample.graph.nodes.iter().any(is_transform) {
                continue;
            }
            let programs = compiled(&backends, &sample.graph);
            for operand in (0..plain.len()).filter(|&i| is_odd(&plain[i])) {
                for (o, (odd, values, count)) in ODD.iter().enumerate() {
                    let mut s = RandomStream::new(number as u64, operand as u64, o as u64);
                    let mut args = plain.clone();
                    args[operand] = with_odd(&args[operand], values, *count, &mut s);
                    let found = wrongs(&sample, &args, operand, &programs);
                    wrong.extend(
                        found.iter().map(|why| format!("{}, {}: {odd} in {why}", entry.name, sample.label)),
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} results are wrong: {wrong:#?}", wrong.len());
}

type Activation = fn(&Tensor) -> Tensor;

/// One special number at a time through an activation after a product.
#[test]
fn activations_pass_nan_on() {
    let f: [(&str, Activation); 9] = [
        ("relu", |x| x.relu()),
        ("leaky_relu", |x| x.leaky_relu(0.2)),
        ("elu", |x| x.elu(1.0)),
        ("softplus", |x| x.softplus()),
        ("gelu", |x| x.gelu()),
        ("silu", |x| x.silu()),
        ("tanh", |x| x.tanh()),
        ("sigmoid", |x| x.logistic()),
        ("softmax", |x| x.softmax()),
    ];
    for dtype in [F32, BF16, F16, F64] {
        for (name, f) in f {
            let g = GraphBuilder::new(name);
            let x = g.parameter(TensorType::new(dtype, [3, 40]), "x");
            let y = f(&x);
            let dx = grad(&y.sum_all(), &[&x]).remove(0);
            let graph = g.finish(&[y, dx, x.argmax(1)]).unwrap();
            let ones = Literal::splat(TensorType::new(dtype, [3, 40]), Scalar::of(dtype, 1.0));
            let mut b = LiteralBuilder::new(ones.ty().clone());
            (0..120).for_each(|k| b.set(k, ones.get(k)));
            b.set(57, Scalar::of(dtype, f64::NAN));
            let x = b.finish();
            let want = oracle(&graph, std::slice::from_ref(&x));
            assert!(want[0].to_f64s()[57].is_nan(), "{name} of {dtype}");
            assert_eq!(want[2].to_f64s(), [0.0, 17.0, 0.0], "the argmax");
            for level in levels() {
                let got = run_with(
                    &backend(level, 1),
                    &graph,
                    std::slice::from_ref(&x),
                    &CompileOptions::default(),
                );
                assert!(got[0].to_f64s()[57].is_nan(), "{name} of {dtype} on {level:?}");
                let finite = got[0].to_f64s().iter().filter(|v| v.is_finite()).count();
                let wanted = want[0].to_f64s().iter().filter(|v| v.is_finite()).count();
                assert_eq!(finite, wanted, "{name} of {dtype} on {level:?}");
                let class = |x: &Literal| x.to_f64s().iter().map(|v| v.is_nan()).collect::<Vec<_>>();
                assert_eq!(class(&got[1]), class(&want[1]), "d {name} of {dtype} on {level:?}");
                assert_eq!(got[2], want[2], "{name} of {dtype} on {level:?}");
            }
        }
    }
}

/// ReLU: NaN passes, −0 becomes 0, and so do cotangents; one half never results.
#[test]
fn relu_and_its_derivative_at_every_kind_of_number() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, -1e-40, 2.0, -2.0];
    let y = [f32::NAN, f32::INFINITY, 0.0, 0.0, 0.0, 1e-40, 0.0, 2.0, 0.0];
    let dx = [3.0, 3.0, 0.0, 0.0, 0.0, 3.0, 0.0, 3.0, 0.0];
    let g = GraphBuilder::new("relu");
    let x = g.parameter(TensorType::new(F32, [45]), "x");
    let r = x.relu();
    let d = grad(&(&r * 3.0).sum_all(), &[&x]).remove(0);
    let graph = g.finish(&[r, d]).unwrap();
    let x = Literal::from_slice([45], &odd.repeat(5)).unwrap();
    let bits = |l: &Literal| {
        l.to_f32s().iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect::<Vec<u32>>()
    };
    let want = |v: &[f32]| bits(&Literal::from_slice([45], &v.repeat(5)).unwrap());
    let results = levels()
        .map(|level| {
            run_with(&backend(level, 1), &graph, std::slice::from_ref(&x), &CompileOptions::default())
        })
        .chain([oracle(&graph, std::slice::from_ref(&x))]);
    for got in results {
        assert_eq!(bits(&got[0]), want(&y));
        assert_eq!(bits(&got[1]), want(&dx));
    }
}
