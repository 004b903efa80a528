//! Imports and exports ONNX operators that move elements or return sizes: Reshape, Transpose, Slice, Pad, Concat and
//! others.

use super::call::{NodeCall, RuleResult, axes, axis, checked, moved, output, unsupported};
use super::elementwise::several_outputs;
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of, place_in};
use super::op_row::{BatchCheck, TfliteSource, operators};
use super::values::RuleOutput;
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{Result, ensure};
use systole_ir::Tensor;
use systole_tflite::{FusedActivation, OptionField};

operators! {
    "Concat" 1..13: concat => Concatenation write_concatenation, if joins_within_samples;
    "Expand" 8..13: expand;
    "Flatten" 1..25: flatten;
    "Pad" 1..25: pad => Pad write_pad, if |s| s.integers(1).get(..2) == Some(&[0, 0]);
    "Reshape" 1..25: reshape => Reshape write_reshape => Squeeze write_reshape => ExpandDims write_reshape;
    "Slice" 1..13: slice
        => Slice write_slice, if |s| s.integers(1).first() == Some(&0)
        => Split write_split, if |s| s.integers(0).first().is_some_and(|&axis| axis > 0)
        => StridedSlice write_strided_slice, if |_| false;
    "Split" 1..18: split;
    "Squeeze" 1..25: squeeze;
    "Tile" 1..13: tile => Tile write_tile, if |s| s.integers(1).first() == Some(&1);
    "TopK" 1..24: top_k;
    "Transpose" 1..25: transpose => Transpose write_transpose, if |s| s.integers(1).first() == Some(&0);
    "Trilu" 14..14: triangle;
    "Unsqueeze" 1..25: unsqueeze;
}

fn reshape(c: &mut NodeCall) -> RuleResult {
    let wanted = match c.ints("shape")? {
        Some(shape) => shape,
        None => c.numbers(1)?,
    };
    let x = c.tensor(0)?;
    let keeps_zeros = c.is("allowzero", false)?;
    let mut dims = Vec::new();
    for (d, &size) in wanted.iter().enumerate() {
        dims.push(match size {
            0 if !keeps_zeros => x
                .shape()
                .get(d)
                .copied()
                .ok_or_else(|| broken(format!("shape {wanted:?} is invalid for {}", x.ty())))?,
            -1 => 1,
            size => usize::try_from(size).map_err(|_| broken(format!("invalid dimension size {size}")))?,
        });
    }
    let known = checked(dims.clone())?.iter().product::<usize>();
    match wanted.iter().filter(|s| **s == -1).count() {
        0 => {}
        1 if known > 0 => {
            let at = wanted.iter().position(|s| *s == -1).unwrap_or(0);
            dims[at] = x.shape().elements() / known;
        }
        _ => return Err(broken(format!("shape {wanted:?} contains more than one -1"))),
    }
    output(x.reshape(dims))
}

fn flatten(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let at = c.int("axis", 1)?;
    let at = if at == x.rank() as i64 { x.rank() } else { axis(at, x.rank())? };
    let (before, after) = x.shape().split_at(at);
    output(x.reshape([before.iter().product(), after.iter().product()]))
}

fn squeeze(c: &mut NodeCall) -> RuleResult {
    let listed = c.list("axes", 1)?;
    let x = c.tensor(0)?;
    let gone = match listed {
        Some(list) => axes(&list, x.rank())?,
        None => (0..x.rank()).filter(|&d| x.shape()[d] == 1).collect(),
    };
    if let Some(&d) = gone.iter().find(|&&d| x.shape()[d] != 1) {
        return Err(broken(format!("cannot squeeze dimension {d} of {}: its size is not 1", x.ty())));
    }
    let dims: Vec<usize> = (0..x.rank()).filter(|d| !gone.contains(d)).map(|d| x.shape()[d]).collect();
    output(x.reshape(dims))
}

fn unsqueeze(c: &mut NodeCall) -> RuleResult {
    let list = c.list("axes", 1)?.ok_or_else(|| broken("axes are missing"))?;
    let x = c.tensor(0)?;
    checked(vec![1; x.rank() + list.len()])?;
    let new = axes(&list, x.rank() + list.len())?;
    let mut dims = x.shape().to_vec();
    new.iter().for_each(|&d| dims.insert(d, 1));
    output(x.reshape(dims))
}

fn transpose(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let rank = x.rank();
    let order = match c.sizes("perm")? {
        Some(order) => order,
        None => (0..rank).rev().collect(),
    };
    output(x.transpose(&order))
}

fn concat(c: &mut NodeCall) -> RuleResult {
    let x = (0..c.node.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<_>>>()?;
    let rank = x.first().map_or(0, Tensor::rank);
    let dim = axis(c.int("axis", 0)?, rank)?;
    let total = x.iter().fold(0usize, |n, t| n.saturating_add(t.shape().get(dim).copied().unwrap_or(0)));
    checked(vec![total])?;
    output(Tensor::concatenate(&x.iter().collect::<Vec<_>>(), dim))
}

fn split(c: &mut NodeCall) -> RuleResult {
    let listed = c.list("split", 1)?;
    let count = c.int("num_outputs", c.node.outputs.len() as i64)?;
    if usize::try_from(count) != Ok(c.node.outputs.len()) {
        return Err(broken(format!(
            "num_outputs is {count}, but the node has {} outputs",
            c.node.outputs.len()
        )));
    }
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", 0)?, x.rank())?;
    let (size, parts) = (x.shape()[dim], c.node.outputs.len().max(1));
    let sizes = match listed {
        Some(list) => list.iter().map(|&s| usize::try_from(s).unwrap_or(usize::MAX)).collect(),
        None => {
            let each = size.div_ceil(parts).max(1);
            (0..parts).map(|i| size.saturating_sub(i * each).min(each)).collect::<Vec<usize>>()
        }
    };
    if sizes.iter().try_fold(0usize, |n, s| n.checked_add(*s)) != Some(size) {
        return Err(broken(format!("split sizes {sizes:?} do not match {}", x.ty())));
    }
    let mut at = 0;
    let mut all = Vec::new();
    for size in sizes {
        all.push(RuleOutput::Tensor(x.slice_dim(dim, at, at + size)));
        at += size;
    }
    Ok(all)
}

fn slice(c: &mut NodeCall) -> RuleResult {
    let missing = || broken("starts or ends are missing");
    let starts = c.list("starts", 1)?.ok_or_else(missing)?;
    let ends = c.list("ends", 2)?.ok_or_else(missing)?;
    let listed = c.list("axes", 3)?;
    let steps = if c.has(4) { c.numbers(4)? } else { vec![1; starts.len()] };
    let mut x = c.tensor(0)?;
    let rank = x.rank();
    let dims = listed.unwrap_or((0..starts.len() as i64).collect());
    if ends.len() != starts.len() || dims.len() != starts.len() || steps.len() != starts.len() {
        return Err(broken(format!("got {} starts and {} ends", starts.len(), ends.len())));
    }
    for (((&start, &end), &step), &dim) in starts.iter().zip(&ends).zip(&steps).zip(&dims) {
        let dim = axis(dim, rank)?;
        x = cut(&x, dim, start, end, step)?;
    }
    output(x)
}

/// Slices one dimension: elements start, start + step, … before `end`; negative indices count from the end.
fn cut(x: &Tensor, dim: usize, start: i64, end: i64, step: i64) -> Result<Tensor> {
    let size = x.shape()[dim] as i64;
    let own = |v: i64, low: i64, high: i64| (if v < 0 { v.saturating_add(size) } else { v }).clamp(low, high);
    let along = |x: &Tensor, start: i64, end: i64, step: i64| {
        let (mut from, mut to, mut by) = (vec![0; x.rank()], x.shape().to_vec(), vec![1; x.rank()]);
        (from[dim], to[dim], by[dim]) = (start as usize, end.max(start) as usize, step as usize);
        x.slice(&from, &to, &by)
    };
    match step {
        0 => Err(broken("the slice step is 0")),
        1.. => Ok(along(x, own(start, 0, size), own(end, 0, size), step)),
        _ => {
            // A negative step slices the reversed dimension.
            let (first, last) = (own(start, -1, size - 1), own(end, -1, size - 1));
            let turned = x.reverse(&[dim]);
            let step = step.checked_neg().ok_or_else(|| broken("the slice step is too large"))?;
            Ok(along(&turned, size - 1 - first, size - 1 - last, step))
        }
    }
}

fn pad(c: &mut NodeCall) -> RuleResult {
    let pads = c.list("pads", 1)?.ok_or_else(|| broken("pads are missing"))?;
    let x = c.tensor(0)?;
    let rank = x.rank();
    let dims = match c.has(3) {
        true => {
            let list = c.numbers(3)?;
            list.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>>>()?
        }
        false => (0..rank).collect(),
    };
    ensure!(pads.len() == 2 * dims.len(), broken(format!("pads {pads:?} do not match {}", x.ty())));
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    for (i, &d) in dims.iter().enumerate() {
        (low[d], high[d]) = (moved(pads[i])?, moved(pads[i + dims.len()])?);
    }
    let value = c.float("value", 0.0)?;
    let y = match c.word("mode", "constant")?.as_str() {
        "constant" => {
            let value = match c.optional(2)? {
                Some(value) => value.reshape([]),
                None => c.scalar(x.dtype(), value),
            };
            x.pad(&value, &low, &high, &vec![0; rank])
        }
        "reflect" => around(&x, &low, &high, 1)?,
        "edge" => edges(&x, &low, &high)?,
        "wrap" => wrapped(&x, &low, &high)?,
        other => {
            return Err(unsupported(format!("unsupported pad mode {other}"))
                .hint("use Pad mode constant, reflect, edge or wrap"));
        }
    };
    output(y)
}

/// Pads by reflection at the border elements.
fn around(x: &Tensor, low: &[i64], high: &[i64], skips: usize) -> Result<Tensor> {
    let mut y = x.clone();
    for d in 0..x.rank() {
        let size = y.shape()[d];
        let amounts = [low[d], high[d]].map(|n| usize::try_from(n).ok().filter(|n| *n + skips <= size));
        let [Some(before), Some(after)] = amounts else {
            return Err(unsupported(format!(
                "cannot reflect {} and {} elements of {}",
                low[d],
                high[d],
                x.ty()
            )));
        };
        let first = y.slice_dim(d, skips, skips + before).reverse(&[d]);
        let last = y.slice_dim(d, size - skips - after, size - skips).reverse(&[d]);
        let parts: Vec<&Tensor> = [(&first, before), (&y, 1), (&last, after)]
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(t, _)| t)
            .collect();
        y = Tensor::concatenate(&parts, d);
    }
    Ok(y)
}

/// Pads by repeating the border elements.
fn edges(x: &Tensor, low: &[i64], high: &[i64]) -> Result<Tensor> {
    let mut y = x.clone();
    for d in 0..x.rank() {
        let size = y.shape()[d];
        let [Ok(before), Ok(after)] = [low[d], high[d]].map(usize::try_from) else {
            return Err(unsupported("negative edge padding is not supported"));
        };
        if size == 0 || (before, after) == (0, 0) {
            continue;
        }
        let repeated = |t: Tensor, n: usize| -> Result<Tensor> {
            let mut dims = t.shape().to_vec();
            dims[d] = n;
            Ok(t.broadcast_to(&checked(dims)?.into()))
        };
        let first = repeated(y.slice_dim(d, 0, 1), before)?;
        let last = repeated(y.slice_dim(d, size - 1, size), after)?;
        y = Tensor::concatenate(&[&first, &y, &last], d);
    }
    Ok(y)
}

/// Pads by the elements from the other end.
fn wrapped(x: &Tensor, low: &[i64], high: &[i64]) -> Result<Tensor> {
    let mut y = x.clone();
    for d in 0..x.rank() {
        let size = y.shape()[d];
        let amounts = [low[d], high[d]].map(|n| usize::try_from(n).ok().filter(|n| *n <= size));
        let [Some(before), Some(after)] = amounts else {
            return Err(unsupported(format!(
                "cannot wrap {} and {} elements of {}",
                low[d],
                high[d],
                x.ty()
            )));
        };
        let (first, last) = (y.slice_dim(d, size - before, size), y.slice_dim(d, 0, after));
        y = Tensor::concatenate(&[&first, &y, &last], d);
    }
    Ok(y)
}

/// Imports Expand: broadcasts in both directions, like NumPy.
fn expand(c: &mut NodeCall) -> RuleResult {
    let wanted = c.numbers(1)?;
    let x = c.tensor(0)?;
    let rank = x.rank().max(wanted.len());
    let mut dims = vec![1; rank];
    for (d, &size) in wanted.iter().enumerate() {
        dims[rank - wanted.len() + d] =
            usize::try_from(size).map_err(|_| broken(format!("invalid dimension size {size}")))?;
    }
    for (d, &size) in x.shape().iter().enumerate() {
        let at = &mut dims[rank - x.rank() + d];
        *at = if *at == 1 { size } else { *at };
    }
    output(x.broadcast_to(&checked(dims)?.into()))
}

fn tile(c: &mut NodeCall) -> RuleResult {
    let repeats = c.numbers(1)?;
    let x = c.tensor(0)?;
    ensure!(repeats.len() == x.rank(), broken(format!("repeats {repeats:?} do not match {}", x.ty())));
    let (mut apart, mut wide, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (&n, &size) in repeats.iter().zip(x.shape().iter()) {
        let n = usize::try_from(n).map_err(|_| broken(format!("invalid repeat count {n}")))?;
        apart.extend([1, size]);
        wide.extend([n, size]);
        all.push(n.saturating_mul(size));
    }
    let all = checked(all)?;
    output(x.reshape(apart).broadcast_to(&wide.into()).reshape(all))
}

/// Imports Trilu: the upper or lower triangle of matrices.
fn triangle(c: &mut NodeCall) -> RuleResult {
    let by = if c.has(1) { moved(c.number(1)?)? } else { 0 };
    let x = c.tensor(0)?;
    let n = x.rank();
    ensure!(n >= 2, broken(format!("Trilu requires matrices, got {}", x.ty())));
    let places = x.ty().with_dtype(systole_base::DType::I64);
    let (row, column) = (c.g.iota(places.clone(), n - 2), c.g.iota(places, n - 1));
    let distance = column - row;
    let by = distance.scalar_like(by as f64).broadcast_to(distance.shape());
    let keeps = if c.is("upper", true)? { distance.greater_equal(&by) } else { distance.less_equal(&by) };
    output(keeps.select(&x, &x.zeros_like()))
}

/// Imports TopK: the largest elements of an axis and their indices, in descending order.
fn top_k(c: &mut NodeCall) -> RuleResult {
    let k = if c.has(1) { c.number(1)? } else { c.int("k", 1)? };
    let x = c.tensor(0)?;
    let dim = axis(c.int("axis", -1)?, x.rank())?;
    let k = usize::try_from(k).ok().filter(|k| *k <= x.shape()[dim]);
    let k = k.ok_or_else(|| broken(format!("k exceeds the size of {}", x.ty())))?;
    let greatest = c.is("largest", true)?;
    let places = x.argsort(dim, greatest).slice_dim(dim, 0, k).convert(systole_base::DType::I64);
    let values = x.sort(dim, greatest).slice_dim(dim, 0, k);
    several_outputs(vec![values, places])
}

fn joins_within_samples(s: &BatchCheck) -> bool {
    let axis = s.operator.int(OptionField::Axis);
    axis != 0 && axis != -(s.rank() as i64) && s.computed().count() == s.operator.inputs.len()
}

/// Exports Reshape; a leading 1 becomes the batch dimension.
fn write_reshape(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let x = operand_of(o, 0)?;
    let mut shape: Vec<i64> = e.tensor(y)?.dims().iter().map(|&d| d as i64).collect();
    if let Some(first) = shape.first_mut()
        && e.open_batch
    {
        // 0 copies the input's dimension.
        *first = 0;
    }
    let own = e.names[y].clone();
    let inputs = [e.real(x, ChannelOrder::Plain)?, e.list(&format!("{own}/shape"), &shape)?];
    e.finish(y, ChannelOrder::Plain, FusedActivation::None, |out| OnnxNode::new("Reshape", inputs, out))
}

fn write_transpose(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, order) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let input = e.real(x, ChannelOrder::Plain)?;
    e.finish(y, ChannelOrder::Plain, FusedActivation::None, |out| {
        OnnxNode::new("Transpose", [input], out).ints("perm", order)
    })
}

fn write_concatenation(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let operands: Vec<usize> = o.inputs.iter().flatten().copied().collect();
    let order = e.order_of(&operands, y)?;
    let axis = place_in(axis(o.int(OptionField::Axis), e.tensor(y)?.dims().len())?, order);
    let inputs = operands.iter().map(|&t| e.real(t, order)).collect::<Result<Vec<_>>>()?;
    e.finish(y, order, o.activation()?, |out| {
        OnnxNode::new("Concat", inputs, out).with("axis", OnnxAttribute::Int(axis as i64))
    })
}

fn write_pad(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, list) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let order = e.order_of(&[x], y)?;
    let rank = list.len() / 2;
    let mut pads = vec![0; 2 * rank];
    for (d, pair) in list.chunks_exact(2).enumerate() {
        let d = place_in(d, order);
        (pads[d], pads[d + rank]) = (pair[0], pair[1]);
    }
    let own = e.names[y].clone();
    let inputs = [e.real(x, order)?, e.list(&format!("{own}/pads"), &pads)?];
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Pad", inputs, out))
}

/// Exports Slice; only dimensions that shrink are listed.
fn write_slice(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, begin) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let order = e.order_of(&[x], y)?;
    let (mut starts, mut ends, mut axes) = (Vec::new(), Vec::new(), Vec::new());
    for (d, ((&from, &size), &all)) in
        begin.iter().zip(e.tensor(y)?.dims()).zip(e.tensor(x)?.dims()).enumerate()
    {
        if size != all {
            starts.push(from);
            ends.push(from + size as i64);
            axes.push(place_in(d, order) as i64);
        }
    }
    let (own, input) = (e.names[y].clone(), e.real(x, order)?);
    if axes.is_empty() {
        return e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Identity", [input], out));
    }
    let mut inputs = vec![input];
    for (name, list) in [("starts", &starts), ("ends", &ends), ("axes", &axes)] {
        inputs.push(e.list(&format!("{own}/{name}"), list)?);
    }
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Slice", inputs, out))
}

/// Exports STRIDED_SLICE without ellipsis and new dimensions.
fn write_strided_slice(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, [begin, end, strides]) = (operand_of(o, 0)?, [1, 2, 3].map(|n| e.integers(o, n)));
    let (begin, end, strides) = (begin?, end?, strides?);
    let bit = |field: OptionField, d: usize| o.int(field) >> d & 1 == 1;
    let others = [OptionField::EllipsisMask, OptionField::NewAxisMask, OptionField::Offset];
    if others.iter().any(|f| o.int(*f) != 0) || begin.len() > 31 {
        return Err(unsupported(
            "cannot export a STRIDED_SLICE with an ellipsis, a new dimension or an offset",
        ));
    }
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for (d, ((&from, &to), &step)) in begin.iter().zip(&end).zip(&strides).enumerate() {
        let (first, last) = if step > 0 { (0, i64::MAX) } else { (i64::MAX, i64::MIN) };
        starts.push(if bit(OptionField::BeginMask, d) { first } else { from });
        ends.push(match bit(OptionField::ShrinkAxisMask, d) {
            true if from == -1 => i64::MAX,
            true => from + 1,
            false if bit(OptionField::EndMask, d) => last,
            false => to,
        });
    }
    let axes: Vec<i64> = (0..begin.len() as i64).collect();
    let own = e.names[y].clone();
    let mut inputs = vec![e.real(x, ChannelOrder::Plain)?];
    for (name, list) in [("starts", &starts), ("ends", &ends), ("axes", &axes), ("steps", &strides)] {
        inputs.push(e.list(&format!("{own}/{name}"), list)?);
    }
    let slice = e.made(&format!("{own}/slice"), "Slice", inputs.iter().map(String::as_str));
    let shape: Vec<i64> = e.tensor(y)?.dims().iter().map(|&d| d as i64).collect();
    let shape = e.list(&format!("{own}/shape"), &shape)?;
    e.finish(y, ChannelOrder::Plain, FusedActivation::None, |out| {
        OnnxNode::new("Reshape", [slice, shape], out)
    })
}

fn write_tile(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let (x, times) = (operand_of(o, 0)?, e.integers(o, 1)?);
    let own = e.names[y].clone();
    let inputs = [e.real(x, ChannelOrder::Plain)?, e.list(&format!("{own}/repeats"), &times)?];
    e.finish(y, ChannelOrder::Plain, FusedActivation::None, |out| OnnxNode::new(name, inputs, out))
}

/// Exports equal splits as slices, since Split differs between opset versions.
fn write_split(e: &mut OnnxBuilder, &TfliteSource { o, .. }: &TfliteSource) -> Result<()> {
    let (axes, x) = (e.integers(o, 0)?, operand_of(o, 1)?);
    let dims = e.tensor(x)?.dims();
    let &[along] = &axes[..] else { return Err(broken(format!("cannot split along axes {axes:?}"))) };
    let axis = axis(along, dims.len())?;
    let own = (dims[axis] / o.outputs.len().max(1)) as i64;
    for (k, &y) in o.outputs.iter().enumerate() {
        let order = e.order_of(&[x], y)?;
        let (name, input) = (e.names[y].clone(), e.real(x, order)?);
        let mut lists = Vec::new();
        for (what, value) in [
            ("starts", k as i64 * own),
            ("ends", (k as i64 + 1) * own),
            ("axes", place_in(axis, order) as i64),
        ] {
            lists.push(e.list(&format!("{name}/{what}"), &[value])?);
        }
        let inputs = std::iter::once(input).chain(lists).collect::<Vec<_>>();
        e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Slice", inputs, out))?;
    }
    Ok(())
}
