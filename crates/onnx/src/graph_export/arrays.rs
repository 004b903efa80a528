//! Ops that rearrange elements, in ONNX: reshapes, transposes, slices, padding. Repetition stays pending where possible.

use super::writer::{Exported, ExportedValue, GraphWriter, unsupported};
use systole_base::{DType, Literal, Result, Shape, TensorType, err};
use systole_ir::Op;
use systole_ir::interp::EvalCx;
use systole_ir::op::Pad;

pub(super) fn iota(w: &mut GraphWriter, dim: usize, ty: TensorType) -> Exported {
    if w.is_batch(ty.shape[dim]) {
        return Err(unsupported("indices along the batch cannot be exported to ONNX".into()));
    }
    let dims: Shape = (0..ty.shape.len()).map(|i| if i == dim { ty.shape[i] } else { 1 }).collect();
    let own = TensorType::new(ty.dtype, dims);
    let op = Op::from(systole_ir::op::Iota { dim, ty: own.clone() });
    let made = op.rule().eval(&mut EvalCx::default(), &[], &[own].into_iter().collect())?;
    let value = made.into_iter().next().ok_or_else(|| err!(Bug, "an iota without a result"))?;
    Ok(w.constant(value, ty))
}

/// Gives an array other dimensions with the same elements.
fn with_dims(w: &mut GraphWriter, x: &ExportedValue, dims: Shape, ty: TensorType) -> Exported {
    if let Some(value) = &x.constant {
        let value: Literal = value.reshape(dims)?;
        return Ok(w.constant(value, ty));
    }
    let name = if x.dims == dims { x.name.clone() } else { w.reshaped(&x.name, &dims)? };
    Ok(ExportedValue { name, ty, dims, constant: None })
}

pub(super) fn broadcast(w: &mut GraphWriter, x: &ExportedValue, to: &[usize], ty: TensorType) -> Exported {
    let mut order: Vec<usize> = (0..to.len()).collect();
    order.sort_by_key(|&i| to[i]);
    let sorted =
        transpose(w, x, &order, x.ty.with_shape(order.iter().map(|&i| x.ty.shape[i]).collect::<Shape>()))?;
    let mut dims = vec![1; ty.shape.len()];
    for (i, &from) in order.iter().enumerate() {
        dims[to[from]] = sorted.dims[i];
    }
    with_dims(w, &sorted, Shape::new(&dims), ty)
}

pub(super) fn reshape(w: &mut GraphWriter, x: &ExportedValue, ty: TensorType) -> Exported {
    let long = |shape: &Shape| shape.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
    if long(&x.ty.shape) == long(&ty.shape) {
        // Only dimensions of size 1 come or go: repetition stays pending.
        let mut own = (0..x.dims.len()).filter(|&i| x.ty.shape[i] != 1).map(|i| x.dims[i]);
        let dims: Shape =
            ty.shape.iter().map(|&d| if d == 1 { 1 } else { own.next().unwrap_or(1) }).collect();
        return with_dims(w, x, dims, ty);
    }
    let name = w.expanded(x)?;
    let name = w.reshaped(&name, &ty.shape)?;
    Ok(ExportedValue::whole(name, ty))
}

pub(super) fn transpose(w: &mut GraphWriter, x: &ExportedValue, order: &[usize], ty: TensorType) -> Exported {
    let dims: Shape = order.iter().map(|&d| x.dims[d]).collect();
    // Without a change in the order of dimensions above 1, a reshape is enough.
    let long: Vec<usize> = order.iter().copied().filter(|&d| x.dims[d] != 1).collect();
    if long.is_sorted() {
        return with_dims(w, x, dims, ty);
    }
    let name = w.permuted(&x.name, order);
    Ok(ExportedValue { name, ty, dims, constant: None })
}

pub(super) fn reverse(w: &mut GraphWriter, x: &ExportedValue, dims: &[usize], ty: TensorType) -> Exported {
    let axes: Vec<i64> = dims.iter().filter(|&&d| x.dims[d] != 1).map(|&d| d as i64).collect();
    let name = sliced(
        w,
        &x.name,
        &axes,
        [&vec![-1; axes.len()], &vec![i64::MIN; axes.len()], &vec![-1; axes.len()]],
    );
    Ok(ExportedValue { name, ty, dims: x.dims.clone(), constant: None })
}

pub(super) fn concatenate(w: &mut GraphWriter, x: &[ExportedValue], dim: usize, ty: TensorType) -> Exported {
    let names = x.iter().map(|x| w.expanded(x)).collect::<Result<Vec<_>>>()?;
    let node = crate::model::OnnxNode::new("Concat", names, "");
    let name = w.emit_with(node.with("axis", crate::model::OnnxAttribute::Int(dim as i64)));
    Ok(ExportedValue::whole(name, ty))
}

/// Slices along some axes: starts, ends and steps.
fn sliced(w: &mut GraphWriter, name: &str, axes: &[i64], [from, to, step]: [&Vec<i64>; 3]) -> String {
    if axes.is_empty() {
        return name.into();
    }
    let [from, to, axes, step] = [w.ints(from), w.ints(to), w.ints(axes), w.ints(step)];
    w.emit("Slice", &[name, &from, &to, &axes, &step])
}

pub(super) fn slice(
    w: &mut GraphWriter,
    x: &ExportedValue,
    [start, limit, strides]: [&[usize]; 3],
    ty: TensorType,
) -> Exported {
    let mut dims = x.dims.to_vec();
    let (mut axes, mut from, mut to, mut step) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for i in 0..x.dims.len() {
        let whole = (start[i], limit[i], strides[i]) == (0, x.ty.shape[i], 1);
        let is_pending = x.dims[i] != x.ty.shape[i];
        if whole || (is_pending && ty.shape[i] != 0) {
            continue;
        }
        if w.is_batch(x.ty.shape[i]) {
            return Err(unsupported("a slice of the batch cannot be exported to ONNX".into()));
        }
        axes.push(i as i64);
        from.push(start[i] as i64);
        to.push(limit[i] as i64);
        step.push(strides[i] as i64);
        dims[i] = ty.shape[i];
    }
    let name = sliced(w, &x.name, &axes, [&from, &to, &step]);
    Ok(ExportedValue { name, ty, dims: Shape::new(&dims), constant: None })
}

pub(super) fn pad(
    w: &mut GraphWriter,
    [x, value]: [&ExportedValue; 2],
    op: &Pad,
    ty: TensorType,
) -> Exported {
    let mut name = w.expanded(x)?;
    let mut dims = x.ty.shape.to_vec();
    for (i, &gap) in op.interior.iter().enumerate().filter(|(_, gap)| **gap > 0) {
        name = dilated(w, &name, &mut dims, i, gap, &value.name)?;
    }
    if op.low.iter().chain(&op.high).any(|&n| n != 0) {
        name = padded(w, &name, &op.low, &op.high, &value.name);
    }
    let batch_moves = (0..dims.len()).any(|i| w.is_batch(x.ty.shape[i]) && (op.low[i], op.high[i]) != (0, 0));
    if batch_moves {
        return Err(unsupported("padding of the batch cannot be exported to ONNX".into()));
    }
    Ok(ExportedValue::whole(name, ty))
}

/// Adds padding before and after the elements of each dimension; returns the name.
pub(super) fn padded(w: &mut GraphWriter, name: &str, low: &[i64], high: &[i64], value: &str) -> String {
    let pads = w.ints(&[low, high].concat());
    w.emit("Pad", &[name, &pads, value])
}

/// Adds `gap` elements between those of a dimension; returns the name.
pub(super) fn dilated(
    w: &mut GraphWriter,
    name: &str,
    dims: &mut [usize],
    dim: usize,
    gap: usize,
    value: &str,
) -> Result<String> {
    let size = dims[dim];
    let mut split = dims.to_vec();
    split.insert(dim + 1, 1);
    let y = w.reshaped(name, &split)?;
    let mut after = vec![0; split.len()];
    after[dim + 1] = gap as i64;
    let y = padded(w, &y, &vec![0; split.len()], &after, value);
    let all = size * (gap + 1);
    dims[dim] = all;
    let y = w.reshaped(&y, dims)?;
    dims[dim] = all.saturating_sub(gap);
    Ok(sliced(w, &y, &[dim as i64], [&vec![0], &vec![dims[dim] as i64], &vec![1]]))
}

/// A scalar zero of this type; returns the name.
pub(super) fn zero(w: &mut GraphWriter, dtype: DType) -> String {
    w.scalar(dtype, 0.0)
}
