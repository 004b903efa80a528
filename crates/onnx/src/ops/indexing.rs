//! Imports and exports ONNX operators that read elements by index: Gather, GatherElements, GatherND, OneHot.

use super::call::{NodeCall, RuleResult, axis, checked, output, unsupported};
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of};
use super::op_row::{BatchCheck, TfliteSource, operators};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{DType, Literal, Result, TensorType, ensure};
use systole_ir::Tensor;
use systole_ir::op::Gather;
use systole_tflite::{FusedActivation, OptionField};

operators! {
    "Gather" 1..13: gather => Gather write_gather, if is_lookup;
    "GatherElements" 11..13: gather_elements;
    "GatherND" 11..13: gather_nd;
    "OneHot" 9..28: one_hot;
}

/// Normalizes indices; negative ones count from the end.
pub(super) fn places(c: &mut NodeCall, i: usize, size: usize) -> Result<Tensor> {
    let t = c.tensor(i)?;
    ensure!(t.dtype().is_int(), broken(format!("indices have type {}, expected integers", t.ty())));
    if let Some(known) = c.perhaps_known(i)? {
        c.spend(known.ty().elements())?;
        let n = size as i64;
        let own = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
        let all: Vec<i64> = (0..known.ty().elements()).map(|at| own(known.get(at).as_i64())).collect();
        if let Some(v) = all.iter().find(|v| !(0..n).contains(*v)) {
            return Err(broken(format!("index {v} is out of range for size {n}")));
        }
        return Ok(c.g.constant(Literal::from_slice(known.shape(), &all)?));
    }
    let zero = t.zeros_like();
    Ok(t.less(&zero).select(&(&t + size as f64), &t))
}

/// Imports Gather: slices along an axis, such as embedding rows.
fn gather(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", 0)?, x.rank())?;
    let at = places(c, 1, x.shape()[dim])?;
    let (rank, more) = (x.rank(), at.rank());
    let dims = [&x.shape()[..dim], at.shape().dims(), &x.shape()[dim + 1..]].concat();
    if dims.contains(&0) {
        return output(c.g.full(&TensorType::new(x.dtype(), dims), 0.0));
    }
    let mut slice_sizes = x.shape().to_vec();
    slice_sizes[dim] = 1;
    let spec = Gather {
        offset_dims: (0..dim).chain(dim + more..more + rank - 1).collect(),
        collapsed_slice_dims: vec![dim].into(),
        start_index_map: vec![dim].into(),
        index_vector_dim: more,
        slice_sizes: slice_sizes.into(),
        ..Gather::rows(x.ty(), more)
    };
    output(x.gather(&at, spec))
}

/// Imports GatherElements: one element per index, along an axis.
fn gather_elements(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", 0)?, x.rank())?;
    let at = places(c, 1, x.shape()[dim])?.convert(DType::I64);
    ensure!(at.rank() == x.rank(), broken(format!("indices {} do not match {}", at.ty(), x.ty())));
    output(element_gather(&x, dim, &at))
}

/// `x: T[…], at: i64[…'] → T[…']`: elements by their index along `dim` and their own position in the other dimensions.
pub(super) fn element_gather(x: &Tensor, dim: usize, at: &Tensor) -> Tensor {
    if at.shape().elements() == 0 {
        return x.builder().full(&at.ty().with_dtype(x.dtype()), 0.0);
    }
    // Converted to indices into the flattened array.
    let strides = x.shape().strides();
    let mut flat = at.zeros_like();
    for d in 0..x.rank() {
        let own = if d == dim { at.clone() } else { at.builder().iota(at.ty().clone(), d) };
        flat = flat + own * strides[d] as f64;
    }
    x.reshape([x.shape().elements()]).take(&flat)
}

/// Normalizes index vectors, one component per size; negative components count from the end.
pub(super) fn from_start(c: &NodeCall, at: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let sizes: Vec<f64> = sizes.iter().map(|&s| s as f64).collect();
    let sizes = Literal::from_slice([sizes.len()], &sizes)?.convert(at.dtype());
    let sizes = c.g.constant(sizes).broadcast_to(at.shape());
    Ok(at.less(&at.zeros_like()).select(&(at + sizes), at))
}

/// Imports GatherND: slices indexed by the dimensions after `batch_dims`.
fn gather_nd(c: &mut NodeCall) -> RuleResult {
    let (x, at) = (c.tensor(0)?, c.tensor(1)?);
    let n = at.shape().last().copied().unwrap_or(0);
    let batch = usize::try_from(c.int("batch_dims", 0)?).unwrap_or(usize::MAX);
    let fits = n > 0 && batch < at.rank() && batch.saturating_add(n) <= x.rank() && at.dtype().is_int();
    if !fits || x.shape()[..batch] != at.shape()[..batch] {
        return Err(broken(format!("indices {} with {batch} batch_dims do not match {}", at.ty(), x.ty())));
    }
    let leading = at.rank() - 1;
    let indexed = batch..batch + n;
    let dims = [&at.shape()[..leading], &x.shape()[indexed.end..]].concat();
    if dims.contains(&0) {
        return output(c.g.full(&TensorType::new(x.dtype(), dims), 0.0));
    }
    let mut slice_sizes = x.shape().to_vec();
    slice_sizes[..indexed.end].fill(1);
    let at = from_start(c, &at, &x.shape()[indexed.clone()])?;
    let spec = Gather {
        offset_dims: (leading..leading + x.rank() - indexed.end).collect(),
        collapsed_slice_dims: indexed.clone().collect(),
        operand_batching_dims: (0..batch).collect(),
        start_indices_batching_dims: (0..batch).collect(),
        start_index_map: indexed.collect(),
        index_vector_dim: leading,
        slice_sizes: slice_sizes.into(),
        ..Gather::rows(x.ty(), leading)
    };
    output(x.gather(&at, spec))
}

fn one_hot(c: &mut NodeCall) -> RuleResult {
    let depth = c.number(1)?;
    let depth = usize::try_from(depth).map_err(|_| broken(format!("invalid number of classes {depth}")))?;
    // Indices may be floats; those out of range have no element.
    let at = c.tensor(0)?.convert(DType::I64);
    let at = at.less(&at.zeros_like()).select(&(&at + depth as f64), &at);
    let values = c.tensor(2)?;
    if values.shape().dims() != [2] {
        return Err(broken(format!("values must have two elements, got {}", values.ty())));
    }
    let dim = axis(c.int("axis", -1)?, at.rank() + 1)?;
    checked([at.shape().dims(), &[depth]].concat())?;
    let hot = at.one_hot(depth, DType::Bool);
    let [off, on] = [0, 1].map(|i| values.slice_dim(0, i, i + 1).reshape([]));
    let wide = |t: &Tensor| t.broadcast_to(hot.shape());
    let mut order: Vec<usize> = (0..at.rank()).collect();
    order.insert(dim, at.rank());
    output(hot.select(&wide(&on), &wide(&off)).transpose(&order))
}

/// Exports Gather; the indices stay integers.
fn write_gather(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, chosen) = (operand_of(o, 0)?, operand_of(o, 1)?);
    if o.int(OptionField::BatchDims) != 0 {
        return Err(unsupported("cannot export a GATHER with batch dimensions"));
    }
    let inputs = [e.real(x, ChannelOrder::Plain)?, e.real(chosen, ChannelOrder::Plain)?];
    let axis = o.int(OptionField::Axis);
    e.finish(y, ChannelOrder::Plain, FusedActivation::None, |out| {
        OnnxNode::new("Gather", inputs, out).with("axis", OnnxAttribute::Int(axis))
    })
}

/// Whether it looks up rows of a constant.
fn is_lookup(s: &BatchCheck) -> bool {
    s.operator.int(OptionField::Axis) == 0 && s.input(0).is_some_and(|t| t.data.is_some())
}
