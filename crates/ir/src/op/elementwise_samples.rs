//! Generates test samples of element-wise ops, and helpers for the samples of other ops.

use super::sample::{WIDE, sample};
use super::*;

pub(super) const COUNTS: ArgDomain = ArgDomain::Uniform(-99.0, 99.0);

/// Samples of an element-wise op for every element type that it accepts, and for empty and rank-0 arrays.
pub(super) fn elementwise(op: impl Elementwise) -> Vec<OpSample> {
    let ((domains, ulp, differentiable), op) = (op.sampled(), op.into());
    let domains: Vec<ArgDomain> = domains.into_iter().map(|(a, b)| ArgDomain::Uniform(a, b)).collect();
    let accepts = |d: &DType| {
        let ty = TensorType::new(*d, [1]);
        op.rule().infer(&vec![&ty; domains.len()]).is_ok()
    };
    let accepted: Vec<DType> = DType::ALL.into_iter().filter(accepts).collect();
    let case = |what: &str, dtype: DType, shape: &[usize]| {
        let params: Vec<_> = domains.iter().map(|&d| (TensorType::new(dtype, shape), d)).collect();
        let checked = differentiable && dtype == DType::F64;
        sample(format!("{what}{dtype}"), &params, ulp, checked, |x| {
            x[0].builder().emit(op.clone(), &x.iter().collect::<Vec<_>>())
        })
    };
    let mut all: Vec<OpSample> = accepted.iter().map(|&d| case("", d, &[3, 5])).collect();
    for &d in accepted.iter().rev().take(1) {
        all.extend([case("empty_", d, &[0, 3]), case("scalar_", d, &[])]);
    }
    all
}

/// Element-wise ops whose samples are generated from their row.
pub(super) trait Elementwise: Copy + Into<Op> {
    /// Operand domains, tolerance in units in the last place (ULP), and whether the derivative is checked.
    fn sampled(self) -> (Vec<(f64, f64)>, u32, bool);
}

impl Elementwise for Unary {
    fn sampled(self) -> (Vec<(f64, f64)>, u32, bool) {
        (vec![self.row().domain], self.row().ulp, self != Unary::IsFinite)
    }
}

impl Elementwise for Binary {
    fn sampled(self) -> (Vec<(f64, f64)>, u32, bool) {
        (self.row().domain.to_vec(), self.row().ulp, true)
    }
}

/// Adds one sample for each further element type that the op accepts: the first f32 sample with the type replaced. Ops
/// with bodies accept only the types of their bodies.
pub(super) fn every_dtype(mut samples: Vec<OpSample>) -> Vec<OpSample> {
    let over = |s: &OpSample, d: DType| s.graph.nodes.iter().any(|n| n.outs[0].dtype == d);
    let single = |s: &&OpSample| s.graph.nodes.len() == s.graph.params.len() + 1;
    let Some(base) = samples.iter().filter(single).find(|s| over(s, DType::F32)).cloned() else {
        return samples;
    };
    let types: Vec<TensorType> = base.graph.param_types();
    let missing = DType::ALL.into_iter().filter(|&d| samples.iter().all(|s| !over(s, d)));
    for dtype in missing.collect::<Vec<_>>() {
        let swap = |t: &TensorType| if t.dtype == DType::F32 { t.with_dtype(dtype) } else { t.clone() };
        let params: Vec<_> = types.iter().map(swap).zip(base.domains.iter().copied()).collect();
        let op = match base.graph.node(base.graph.results[0]).op.clone() {
            Op::Convolution(c) => Convolution { element_type: dtype, ..c }.into(),
            op => op,
        };
        let inputs = &base.graph.node(base.graph.results[0]).inputs;
        samples.push(sample(format!("every_{dtype}"), &params, base.ulp, false, |x| {
            let inputs: Vec<&Tensor> = inputs.iter().map(|v| &x[v.index()]).collect();
            x[0].builder().emit(op, &inputs)
        }));
    }
    samples
}

/// Samples named `what_dtype`, one for each element type: the same program over arrays of `shapes`.
pub(super) fn moved(
    what: &str,
    shapes: &[&[usize]],
    build: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<OpSample> {
    let case = |dtype: DType| {
        let params: Vec<_> = shapes.iter().map(|&s| (TensorType::new(dtype, s), COUNTS)).collect();
        sample(format!("{what}_{dtype}"), &params, 0, dtype == DType::F64, &build)
    };
    DType::ALL.into_iter().map(case).collect()
}

/// Like [`moved`], for f64 only.
pub(super) fn moved_f64(
    what: &str,
    shapes: &[&[usize]],
    build: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> OpSample {
    let params: Vec<_> = shapes.iter().map(|&s| (TensorType::new(DType::F64, s), WIDE)).collect();
    sample(format!("{what}_f64"), &params, 0, true, build)
}

/// Creates a sample without parameters.
pub(super) fn program(label: &str, build: impl FnOnce(&GraphBuilder) -> Vec<Tensor>) -> OpSample {
    let g = GraphBuilder::new("main");
    match g.finish(&build(&g)) {
        Ok(graph) => {
            OpSample { label: label.into(), graph, domains: Vec::new(), ulp: 0, differentiable: false }
        }
        Err(e) => systole_base::bug!("cannot build the sample {label}: {e}"),
    }
}

pub(super) fn array(dtype: DType, shape: &[usize], values: &[f64]) -> Literal {
    let mut b = LiteralBuilder::new(TensorType::new(dtype, shape));
    values.iter().enumerate().for_each(|(i, &v)| b.set(i, Scalar::of(dtype, v)));
    b.finish()
}

pub(super) const SPECIAL: [f64; 7] = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.0];
