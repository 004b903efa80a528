//! Imports and exports ONNX normalizations: batch, layer, RMS, instance, group and Lp.

use super::call::{NodeCall, RuleResult, axes, axis, output, unsupported};
use super::conv_pool::sums_in;
use super::elementwise::several_outputs;
use super::graph_builder::{ChannelOrder, OnnxBuilder};
use super::op_row::{TfliteSource, operators};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{DType, Literal, Result, ensure};
use systole_ir::Tensor;

operators! {
    "BatchNormalization" 1..15: batch;
    "GroupNormalization" 18..21: group;
    "InstanceNormalization" 1..22: instance;
    "LayerNormalization" 17..17: |c| layer(c, true);
    "LpNormalization" 1..22: unit => L2Normalization write_unit, if |s| s.rank() >= 2;
    "MeanVarianceNormalization" 9..13: mean_variance;
    "RMSNormalization" 23..23: |c| layer(c, false);
}

/// Imports BatchNormalization in inference mode, (x − mean) / √(variance + ε) · scale + bias, as a factor and an offset
/// per channel.
fn batch(c: &mut NodeCall) -> RuleResult {
    if c.is("training_mode", false)? {
        return Err(unsupported("batch normalization in training mode is not supported")
            .hint("export the model in evaluation mode"));
    }
    c.one_output()?;
    if !c.is("spatial", true)? {
        return Err(unsupported("attribute spatial = 0 is not supported: one mean per element"));
    }
    let epsilon = c.float("epsilon", 1e-5)?;
    let x = c.tensor(0)?;
    let (channels, dtype) = (x.shape().get(1).copied().unwrap_or(0), x.dtype());
    let wide = sums_in(dtype);
    let (factor, offset) = affine(c, channels, epsilon, wide)?;
    let x = x.convert(wide);
    let wide = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[1]);
    output((&x * wide(&factor) + wide(&offset)).convert(dtype))
}

fn affine(c: &mut NodeCall, channels: usize, epsilon: f64, dtype: DType) -> Result<(Tensor, Tensor)> {
    let mut all = Vec::new();
    for i in 1..5 {
        let t = c.tensor(i)?;
        if t.shape().dims() != [channels] {
            return Err(broken(format!("operand {i} is {}, expected {channels} channels", t.ty())));
        }
        all.push((t.convert(dtype), c.perhaps_known(i)?));
    }
    if let [(_, Some(s)), (_, Some(b)), (_, Some(m)), (_, Some(v))] = &all[..] {
        c.spend(2 * channels)?;
        let [s, b, m, v] = [s, b, m, v].map(Literal::to_f64s);
        let factor: Vec<f64> = s.iter().zip(&v).map(|(s, v)| s / (v + epsilon).sqrt()).collect();
        let offset: Vec<f64> = b.iter().zip(m.iter().zip(&factor)).map(|(b, (m, f))| b - m * f).collect();
        let constant = |v: &[f64]| Ok(c.g.constant(Literal::from_slice([v.len()], v)?.convert(dtype)));
        return Ok((constant(&factor)?, constant(&offset)?));
    }
    let [scale, bias, mean, variance] = [0, 1, 2, 3].map(|i| &all[i].0);
    let factor = scale * (variance + epsilon).rsqrt();
    let offset = bias - mean * &factor;
    Ok((factor, offset))
}

/// Imports LayerNormalization and RMSNormalization over all dimensions from `axis` on.
fn layer(c: &mut NodeCall, subtracts_mean: bool) -> RuleResult {
    let x = c.tensor(0)?;
    c.stash_type()?;
    let first = axis(c.int("axis", -1)?, x.rank())?;
    let dims: Vec<usize> = (first..x.rank()).collect();
    let epsilon = c.float("epsilon", 1e-5)?;
    let y = standardized(&x, &dims, epsilon, subtracts_mean);
    let mut y = y * c.tensor(1)?;
    if subtracts_mean && let Some(bias) = c.optional(2)? {
        y = y + bias;
    }
    if c.node.outputs.len() < 2 {
        return output(y);
    }
    // The statistics are float32, with the normalized dimensions as 1.
    let wide = x.convert(sums_in(x.dtype()));
    let mut kept = x.shape().to_vec();
    kept[first..].fill(1);
    let mean = wide.mean(&dims);
    let centred = &wide - mean.broadcast_except(x.shape(), &dims);
    let factor = ((&centred * &centred).mean(&dims) + epsilon).rsqrt();
    several_outputs(vec![y, mean.reshape(kept.clone()), factor.reshape(kept)])
}

/// Imports MeanVarianceNormalization: (x − mean) / √variance over `axes`.
fn mean_variance(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dims = axes(&c.ints("axes")?.unwrap_or(vec![0, 2, 3]), x.rank())?;
    let wide = x.convert(sums_in(x.dtype()));
    let centred = &wide - wide.mean(&dims).broadcast_except(x.shape(), &dims);
    let deviation = (&centred * &centred).mean(&dims).sqrt() + 1e-9;
    output((&centred / deviation.broadcast_except(x.shape(), &dims)).convert(x.dtype()))
}

fn standardized(x: &Tensor, dims: &[usize], epsilon: f64, subtracts_mean: bool) -> Tensor {
    let wide = x.convert(sums_in(x.dtype()));
    let centred = match subtracts_mean {
        true => &wide - wide.mean(dims).broadcast_except(x.shape(), dims),
        false => wide,
    };
    let variance = (&centred * &centred).mean(dims);
    let factor = (variance + epsilon).rsqrt().broadcast_except(x.shape(), dims);
    (centred * factor).convert(x.dtype())
}

/// Imports InstanceNormalization: each channel of each sample separately.
fn instance(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    ensure!(x.rank() >= 3, broken(format!("cannot normalize {}", x.ty())));
    let dims: Vec<usize> = (2..x.rank()).collect();
    let y = standardized(&x, &dims, c.float("epsilon", 1e-5)?, true);
    let wide = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[1]);
    output(y * wide(&c.tensor(1)?) + wide(&c.tensor(2)?))
}

/// Imports GroupNormalization: groups of channels of each sample.
fn group(c: &mut NodeCall) -> RuleResult {
    c.stash_type()?;
    let x = c.tensor(0)?;
    let groups = c.count("num_groups", 0)?;
    let channels = x.shape().get(1).copied().unwrap_or(0);
    if x.rank() < 2 || !channels.is_multiple_of(groups) {
        return Err(broken(format!("{groups} groups do not divide the channels of {}", x.ty())));
    }
    let inner = x.shape().elements() / (x.shape()[0] * groups).max(1);
    let parts = x.reshape([x.shape()[0], groups, inner]);
    let y = standardized(&parts, &[2], c.float("epsilon", 1e-5)?, true).reshape(x.shape());
    let (scale, bias) = (c.tensor(1)?, c.tensor(2)?);
    // Before opset 21 there is one factor per group.
    let each = |t: &Tensor| match t.shape().dims() == [groups] && groups != channels {
        true => t.broadcast_in_dim(&[groups, channels / groups].into(), &[0]).reshape([channels]),
        false => t.clone(),
    };
    let wide = |t: &Tensor| each(t).broadcast_in_dim(x.shape(), &[1]);
    output(y * wide(&scale) + wide(&bias))
}

/// Imports LpNormalization: divides by the norm along an axis; 0 if the norm is 0.
fn unit(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", -1)?, x.rank())?;
    let wide = x.convert(sums_in(x.dtype()));
    let length = match c.int("p", 2)? {
        1 => wide.abs().sum(&[dim]),
        2 => (&wide * &wide).sum(&[dim]).sqrt(),
        p => {
            return Err(unsupported(format!("unsupported norm order {p}"))
                .hint("use LpNormalization of order 1 or 2"));
        }
    };
    let length = length.broadcast_except(wide.shape(), &[dim]);
    let is_zero = length.equal(&length.zeros_like());
    output(is_zero.select(&length, &(wide / &length)).convert(x.dtype()))
}

fn write_unit(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let last = e.tensor(y)?.dims().len() as i64 - 1;
    let (input, order) = e.single(o, y)?;
    let axis = OnnxAttribute::Int(if order == ChannelOrder::First { 1 } else { last });
    e.finish(y, order, o.activation()?, |out| OnnxNode::new(name, [input], out).with("axis", axis))
}
