//! Imports and exports ONNX reductions (sum, mean, max), softmax, argmax and cumulative sums.

use super::call::{NodeCall, RuleResult, axes, axis, output};
use super::conv_pool::sums_in;
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of, place_in};
use super::op_row::{BatchCheck, TfliteSource, operators};
use crate::model::{OnnxAttribute, OnnxNode};
use systole_base::{DType, Result, err};
use systole_ir::Tensor;
use systole_ir::op::{Monoid, Window};
use systole_tflite::{FusedActivation, OptionField};

operators! {
    "ArgMax" 1..13: |c| arg_max(c, false);
    "ArgMin" 1..13: |c| arg_max(c, true);
    "CumProd" 26..26: |c| cumulative(c, Monoid::Multiply);
    "CumSum" 11..14: |c| cumulative(c, Monoid::Add);
    "Hardmax" 1..13: hardmax;
    "LogSoftmax" 1..13: |c| softmax(c, true) => LogSoftmax write_softmax, if |s| s.rank() >= 2;
    "ReduceL1" 1..18: |c| reduce(c, ReduceKind::L1);
    "ReduceL2" 1..18: |c| reduce(c, ReduceKind::L2);
    "ReduceLogSum" 1..28: |c| reduce(c, ReduceKind::LogSum);
    "ReduceLogSumExp" 1..28: |c| reduce(c, ReduceKind::LogSumExp);
    "ReduceMax" 1..20: |c| reduce(c, ReduceKind::Max) => ReduceMax write_reduce, if folds_within_samples;
    "ReduceMean" 1..18: |c| reduce(c, ReduceKind::Mean) => Mean write_reduce, if folds_within_samples;
    "ReduceMin" 1..20: |c| reduce(c, ReduceKind::Min) => ReduceMin write_reduce, if folds_within_samples;
    "ReduceProd" 1..18: |c| reduce(c, ReduceKind::Prod) => ReduceProd write_reduce, if folds_within_samples;
    "ReduceSum" 1..13: |c| reduce(c, ReduceKind::Sum) => Sum write_reduce, if folds_within_samples;
    "ReduceSumSquare" 1..18: |c| reduce(c, ReduceKind::SumSquare);
    "Softmax" 1..13: |c| softmax(c, false) => Softmax write_softmax, if |s| s.rank() >= 2;
}

/// Kind of reduction.
#[derive(Clone, Copy)]
pub(super) enum ReduceKind {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    SumSquare,
    LogSum,
    LogSumExp,
}

fn reduce(c: &mut NodeCall, fold: ReduceKind) -> RuleResult {
    let listed = c.list("axes", 1)?.filter(|l| !l.is_empty());
    let keeps = c.is("keepdims", true)?;
    let does_nothing = c.is("noop_with_empty_axes", false)?;
    if listed.is_none() && does_nothing && !fold.has_elementwise_part() {
        return super::elementwise::identity(c);
    }
    let x = c.tensor(0)?;
    let rank = x.rank();
    let dims = match &listed {
        Some(list) => axes(list, rank)?,
        None if does_nothing => Vec::new(),
        None => (0..rank).collect(),
    };
    let y = folded(&x, fold, &dims);
    output(if keeps { kept(&y, &x, &dims) } else { y })
}

/// Keeps reduced dimensions with size 1.
fn kept(y: &Tensor, x: &Tensor, dims: &[usize]) -> Tensor {
    let mut shape = x.shape().to_vec();
    shape.iter_mut().enumerate().filter(|(d, _)| dims.contains(d)).for_each(|(_, s)| *s = 1);
    y.reshape(shape)
}

impl ReduceKind {
    /// Whether it changes elements even if no dimension is reduced.
    fn has_elementwise_part(self) -> bool {
        matches!(self, ReduceKind::L1 | ReduceKind::L2 | ReduceKind::SumSquare | ReduceKind::LogSum)
    }
}

/// Reduces dimensions; f16 and bf16 are accumulated in f32, since their sums and squares overflow.
fn folded(x: &Tensor, fold: ReduceKind, dims: &[usize]) -> Tensor {
    if dims.is_empty() && !fold.has_elementwise_part() {
        return x.clone();
    }
    let dtype = x.dtype();
    let x = &x.convert(sums_in(dtype));
    listed(x, fold, dims).unwrap_or_else(|| accumulated(x, fold, dims)).convert(dtype)
}

/// Maximum length of a list that is reduced element by element.
const SHORT: usize = 16;

/// Reduces a short list of constants, such as a shape, element by element: then the result is known while the graph is
/// built, and may be a shape.
fn listed(x: &Tensor, fold: ReduceKind, dims: &[usize]) -> Option<Tensor> {
    let &[n @ 1..=SHORT] = x.shape().dims() else { return None };
    let step: fn(&Tensor, &Tensor) -> Tensor = match fold {
        ReduceKind::Sum => |a, b| a + b,
        ReduceKind::Prod => |a, b| a * b,
        ReduceKind::Max => Tensor::maximum,
        ReduceKind::Min => Tensor::minimum,
        _ => return None,
    };
    let all = (0..n).map(|i| x.slice_dim(0, i, i + 1).reshape([0usize; 0]));
    (dims == [0] && x.known().is_some()).then(|| all.reduce(|a, b| step(&a, &b)))?
}

fn accumulated(x: &Tensor, fold: ReduceKind, dims: &[usize]) -> Tensor {
    match fold {
        ReduceKind::Sum => x.sum(dims),
        ReduceKind::Mean if x.dtype().is_int() => {
            let n: usize = dims.iter().map(|&d| x.shape()[d]).product();
            x.sum(dims) / n as f64
        }
        ReduceKind::Mean => x.mean(dims),
        ReduceKind::Max => x.reduce_max(dims),
        ReduceKind::Min => x.reduce_min(dims),
        ReduceKind::Prod => x.prod(dims),
        ReduceKind::L1 => x.abs().sum(dims),
        ReduceKind::L2 => (x * x).sum(dims).sqrt(),
        ReduceKind::SumSquare => (x * x).sum(dims),
        ReduceKind::LogSum => x.sum(dims).log(),
        ReduceKind::LogSumExp => {
            let top = x.reduce_max(dims);
            let shifted = x - top.broadcast_except(x.shape(), dims);
            top + shifted.exp().sum(dims).log()
        }
    }
}

/// Returns the dimensions over which softmax normalizes: before opset 13 all from `axis` on.
fn normalised(c: &NodeCall, rank: usize) -> Result<Vec<usize>> {
    if c.opset >= 13 {
        return Ok(vec![axis(c.int("axis", -1)?, rank)?]);
    }
    Ok((axis(c.int("axis", 1)?, rank.max(1))?..rank).collect())
}

fn softmax(c: &mut NodeCall, is_log: bool) -> RuleResult {
    let x = c.tensor(0)?;
    let (rank, dtype) = (x.rank(), x.dtype());
    let x = x.convert(sums_in(dtype));
    let dims = normalised(c, rank)?;
    if dims[..] == [rank.saturating_sub(1)] && rank > 0 {
        let y = if is_log { x.log_softmax() } else { x.softmax() };
        return output(y.convert(dtype));
    }
    let top = x.reduce_max(&dims).broadcast_except(x.shape(), &dims);
    let shifted = &x - top;
    let e = shifted.exp();
    let sum = e.sum(&dims).broadcast_except(x.shape(), &dims);
    let y = if is_log { shifted - sum.log() } else { e / sum };
    output(y.convert(dtype))
}

fn arg_max(c: &mut NodeCall, is_least: bool) -> RuleResult {
    let keeps = c.is("keepdims", true)?;
    let takes_last = c.is("select_last_index", false)?;
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", 0)?, x.rank())?;
    let own = if takes_last { x.reverse(&[dim]) } else { x.clone() };
    let place = if is_least { (-&own).argmax(dim) } else { own.argmax(dim) };
    let place = place.convert(DType::I64);
    let place = if takes_last { (x.shape()[dim] as f64 - 1.0) - place } else { place };
    output(if keeps { kept(&place, &x, &[dim]) } else { place })
}

/// Imports Hardmax: one at the first maximum, zero elsewhere; before opset 13 over all dimensions from `axis` on.
fn hardmax(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dims = normalised(c, x.rank())?;
    let flat = match dims[..] {
        [_] => x.clone(),
        _ => {
            let (before, after) = x.shape().split_at(dims.first().copied().unwrap_or(0));
            x.reshape([before.iter().product::<usize>(), after.iter().product()])
        }
    };
    let dim = if let [one] = dims[..] { one } else { 1 };
    let place = flat.argmax(dim).broadcast_except(flat.shape(), &[dim]);
    let hot = place.equal(&c.g.iota(place.ty().clone(), dim)).convert(x.dtype());
    output(hot.reshape(x.shape().clone()))
}

/// Imports CumSum and CumProd as windows over all elements before, or from, each position.
fn cumulative(c: &mut NodeCall, monoid: Monoid) -> RuleResult {
    let (along, x) = (c.number(1)?, c.tensor(0)?);
    let dim = axis(along, x.rank())?;
    let (backwards, without) = (c.is("reverse", false)?, c.is("exclusive", false)?);
    let n = x.shape()[dim];
    let mut window = vec![1; x.rank()];
    window[dim] = n.max(1);
    let mut padding = vec![[0, 0]; x.rank()];
    padding[dim] = if backwards { [0, n as i64 - 1] } else { [n as i64 - 1, 0] };
    // Without the element itself the window ends one position earlier; sums minus x would lose digits.
    let (dtype, wide) = (x.dtype(), x.convert(sums_in(x.dtype())));
    let neutral = if monoid == Monoid::Multiply { 1.0 } else { 0.0 };
    let wide = match (without, backwards) {
        (false, _) => wide,
        (true, false) => shifted(&wide, dim, [1, -1], neutral),
        (true, true) => shifted(&wide, dim, [-1, 1], neutral),
    };
    let window = Window::new(&window, &vec![1; x.rank()], &padding);
    output(monoid.over_windows(&wide, window).convert(dtype))
}

/// Pads a dimension with a value; a negative count removes elements.
fn shifted(x: &Tensor, dim: usize, [before, after]: [i64; 2], value: f64) -> Tensor {
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    (low[dim], high[dim]) = (before, after);
    x.pad(&x.scalar_like(value), &low, &high, &vec![0; x.rank()])
}

fn folds_within_samples(s: &BatchCheck) -> bool {
    let axes = s.integers(1);
    !axes.is_empty() && axes.iter().all(|&a| a != 0 && a != -(s.rank() as i64))
}

/// Exports mean, sum and max reductions.
fn write_reduce(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let x = operand_of(o, 0)?;
    let rank = e.tensor(x)?.dims().len();
    let keeps = o.is(OptionField::KeepDims);
    let dims = e.integers(o, 1)?.iter().map(|&d| axis(d, rank)).collect::<Result<Vec<_>>>()?;
    let is_picture = rank == 4 && dims == [1, 2];
    let order =
        if e.is_first(x) && (keeps || is_picture) { ChannelOrder::First } else { ChannelOrder::Plain };
    let axes: Vec<i64> = dims.iter().map(|&d| place_in(d, order) as i64).collect();
    let mut inputs = vec![e.real(x, order)?];
    let own = e.names[y].clone();
    // ReduceSum takes axes as an operand from opset 13 on, ReduceMean and ReduceMax from opset 18 on.
    let is_operand = name == "ReduceSum";
    if is_operand {
        inputs.push(e.list(&format!("{own}/axes"), &axes)?);
    }
    let made = if keeps { order } else { ChannelOrder::Plain };
    e.finish(y, made, FusedActivation::None, |out| {
        let node = OnnxNode::new(name, inputs, out).with("keepdims", OnnxAttribute::Int(i64::from(keeps)));
        if is_operand { node } else { node.ints("axes", axes) }
    })
}

fn write_softmax(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let x = operand_of(o, 0)?;
    if name == "Softmax" && o.number(OptionField::Beta) != 1.0 {
        return Err(err!(Unsupported, "cannot export a softmax with beta {}", o.number(OptionField::Beta)));
    }
    let order = e.order_of(&[x], y)?;
    let last = e.tensor(x)?.dims().len().saturating_sub(1);
    let (input, axis) = (e.real(x, order)?, if order == ChannelOrder::First { 1 } else { last });
    e.finish(y, order, FusedActivation::None, |out| {
        OnnxNode::new(name, [input], out).with("axis", OnnxAttribute::Int(axis as i64))
    })
}
