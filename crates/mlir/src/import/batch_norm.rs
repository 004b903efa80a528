//! Imports batch normalization ops as reductions over all dimensions but the feature dimension. torch_xla emits these
//! ops; JAX does not.
//!
//! Source: the StableHLO specification, batch_norm_inference, batch_norm_training and batch_norm_grad.

use super::attribute::size;
use super::call::{ArrayCall, OpImport, OpResults, op};
use super::types::wrong;
use crate::syntax::{Attribute, Operation, find};
use systole_base::{DType, Result};
use systole_ir::Tensor;

/// Operand `x: T[…, C, …]`, in at least f32, with its per-feature parameters `T[C]`.
struct FeatureParams {
    x: Tensor,
    feature: usize,
    epsilon: f64,
    /// Number of elements per feature.
    count: f64,
}

pub(super) const OPERATIONS: &[OpImport] = &[
    op("stablehlo.batch_norm_inference").arrays(inference),
    op("stablehlo.batch_norm_training").arrays(training),
    op("stablehlo.batch_norm_grad").arrays(gradient),
];

/// Converts the results to the operand's type.
fn narrowed(x: &Tensor, made: Vec<Tensor>) -> OpResults {
    Ok(Some(made.into_iter().map(|t| t.convert(x.dtype())).collect()))
}

fn inference(c: &ArrayCall) -> OpResults {
    let [x, rest @ ..] = c.all::<5>()?;
    let f = FeatureParams::new(c.op, x, rest)?;
    narrowed(x, vec![f.normalized(&rest[2], &rest[3], &rest[0], &rest[1])])
}

fn training(c: &ArrayCall) -> OpResults {
    let [x, rest @ ..] = c.all::<3>()?;
    let f = FeatureParams::new(c.op, x, rest)?;
    let mean = f.mean(&f.x);
    let centered = &f.x - &f.wide(&mean);
    let variance = f.mean(&(&centered * &centered));
    narrowed(x, vec![f.normalized(&mean, &variance, &rest[0], &rest[1]), mean, variance])
}

fn gradient(c: &ArrayCall) -> OpResults {
    let [x, scale, mean, variance, grad] = c.all::<5>()?;
    let f = FeatureParams::new(c.op, x, &c.operands[1..4])?;
    if grad.ty() != x.ty() {
        return Err(wrong(format!(
            "operand {} and gradient {} have different types (C3)",
            x.ty(),
            grad.ty()
        )));
    }
    narrowed(x, f.gradients(scale, mean, variance, &f.in_f32(grad)))
}

impl FeatureParams {
    /// `rest`: per-feature arrays.
    fn new(op: &Operation, x: &Tensor, rest: &[Tensor]) -> Result<FeatureParams> {
        let feature = size(op, "feature_index")?.filter(|d| *d < x.rank());
        let feature =
            feature.ok_or_else(|| wrong("`feature_index` is not a dimension of the operand (C1)"))?;
        let (whole, own) = (x.ty().elements(), x.shape()[feature]);
        if let Some(t) = rest.iter().find(|t| t.shape()[..] != [own] || t.dtype() != x.dtype()) {
            return Err(wrong(format!(
                "{} must have one element for each of {own} features (C2, C3)",
                t.ty()
            )));
        }
        let epsilon = match find(&op.attributes, "epsilon") {
            Some(Attribute::Float(digits, _)) => systole_ir::text::parse_element(digits, DType::F32).ok(),
            _ => None,
        };
        let epsilon = epsilon.ok_or_else(|| wrong("`epsilon` must be a number"))?;
        let features = FeatureParams {
            x: x.clone(),
            feature,
            epsilon: f64::from(f32::from_bits(epsilon as u32)),
            count: whole.checked_div(own).unwrap_or(0) as f64,
        };
        Ok(FeatureParams { x: features.in_f32(x), ..features })
    }

    fn in_f32(&self, t: &Tensor) -> Tensor {
        if t.dtype() == DType::F64 { t.clone() } else { t.convert(DType::F32) }
    }

    /// Broadcasts `T[C] → T[…, C, …]`.
    fn wide(&self, t: &Tensor) -> Tensor {
        self.in_f32(t).broadcast_in_dim(self.x.shape(), &[self.feature])
    }

    fn sum(&self, t: &Tensor) -> Tensor {
        t.sum(&(0..t.rank()).filter(|d| *d != self.feature).collect::<Vec<_>>())
    }

    fn mean(&self, t: &Tensor) -> Tensor {
        let sum = self.sum(t);
        &sum / &sum.scalar_like(self.count)
    }

    /// Returns √(variance + ε).
    fn deviation(&self, variance: &Tensor) -> Tensor {
        let variance = self.in_f32(variance);
        (&variance + &variance.scalar_like(self.epsilon)).sqrt()
    }

    fn normalized(&self, mean: &Tensor, variance: &Tensor, scale: &Tensor, offset: &Tensor) -> Tensor {
        let centered = &self.x - &self.wide(mean);
        let normal = &centered / &self.wide(&self.deviation(variance));
        &(&normal * &self.wide(scale)) + &self.wide(offset)
    }

    /// Returns the gradients of operand, scale and offset.
    fn gradients(&self, scale: &Tensor, mean: &Tensor, variance: &Tensor, grad: &Tensor) -> Vec<Tensor> {
        let centered = &self.x - &self.wide(mean);
        let deviation = self.deviation(variance);
        let (along, offset) = (self.sum(&(grad * &centered)), self.sum(grad));
        let slope = &along / &(&deviation * &deviation);
        let count = grad.scalar_like(self.count);
        let rest = &(&(grad * &count) - &self.wide(&offset)) - &(&centered * &self.wide(&slope));
        let factor = &(&self.in_f32(scale) / &deviation) / &deviation.scalar_like(self.count);
        vec![&self.wide(&factor) * &rest, &along / &deviation, offset]
    }
}
