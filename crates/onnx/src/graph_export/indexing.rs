//! Lookups and slices at positions that are known at run time, in ONNX.

use super::arrays;
use super::writer::{Exported, ExportedValue, GraphWriter, unsupported};
use crate::model::{OnnxAttribute, OnnxNode};
use systole_base::{DType, Result, TensorType};
use systole_ir::op::Gather;

/// Clamps indices to `0..=most`, as i64; returns the name.
fn clamped(w: &mut GraphWriter, index: &ExportedValue, most: usize) -> String {
    let name =
        if index.ty.dtype == DType::I64 { index.name.clone() } else { w.cast(&index.name, DType::I64) };
    let (zero, most) = (w.scalar(DType::I64, 0.0), w.scalar(DType::I64, most as f64));
    let name = w.emit("Max", &[&name, &zero]);
    w.emit("Min", &[&name, &most])
}

/// The first index of a block of `size` along a dimension, `i64[1]`, and the index after it.
fn bounds(w: &mut GraphWriter, start: &ExportedValue, dim: usize, size: usize) -> Result<[String; 2]> {
    let from = clamped(w, start, dim - size);
    let from = w.reshaped(&from, &[1])?;
    let size = w.ints(&[size as i64]);
    let to = w.emit("Add", &[&from, &size]);
    Ok([from, to])
}

pub(super) fn dynamic_slice(
    w: &mut GraphWriter,
    operands: &[ExportedValue],
    sizes: &[usize],
    ty: TensorType,
) -> Exported {
    let (x, starts) = (&operands[0], &operands[1..]);
    let mut name = w.expanded(x)?;
    for (i, &size) in sizes.iter().enumerate().filter(|(i, size)| x.ty.shape[*i] != **size) {
        if w.is_batch(x.ty.shape[i]) {
            return Err(unsupported("a slice of the batch cannot be exported to ONNX".into()));
        }
        let [from, to] = bounds(w, &starts[i], x.ty.shape[i], size)?;
        let axis = w.ints(&[i as i64]);
        name = w.emit("Slice", &[&name, &from, &to, &axis]);
    }
    Ok(ExportedValue::whole(name, ty))
}

pub(super) fn dynamic_update_slice(
    w: &mut GraphWriter,
    operands: &[ExportedValue],
    ty: TensorType,
) -> Exported {
    let (x, update, starts) = (&operands[0], &operands[1], &operands[2..]);
    let part: Vec<usize> = (0..x.ty.rank()).filter(|&i| x.ty.shape[i] != update.ty.shape[i]).collect();
    let (before, new) = (w.expanded(x)?, w.expanded(update)?);
    let axis = match part[..] {
        [] => return Ok(ExportedValue::whole(new, ty)),
        [axis] if !w.is_batch(x.ty.shape[axis]) => axis,
        _ => return Err(unsupported("ONNX cannot overwrite a block in several dimensions".into())),
    };
    let [from, to] = bounds(w, &starts[axis], x.ty.shape[axis], update.ty.shape[axis])?;
    let (first, last, at) = (w.ints(&[0]), w.ints(&[i64::MAX]), w.ints(&[axis as i64]));
    let head = w.emit("Slice", &[&before, &first, &from, &at]);
    let tail = w.emit("Slice", &[&before, &to, &last, &at]);
    let node = OnnxNode::new("Concat", [head, new, tail], "");
    let name = w.emit_with(node.with("axis", OnnxAttribute::Int(axis as i64)));
    Ok(ExportedValue::whole(name, ty))
}

/// Takes entries along one dimension of a table.
pub(super) fn gather(
    w: &mut GraphWriter,
    [table, indices]: [&ExportedValue; 2],
    op: &Gather,
    ty: TensorType,
) -> Exported {
    let unfit = || unsupported("ONNX can look up entries along one dimension only".into());
    let ([axis], [map]) = (&op.collapsed_slice_dims[..], &op.start_index_map[..]) else {
        return Err(unfit());
    };
    let whole = (0..table.ty.rank()).all(|i| i == *axis || op.slice_sizes[i] == table.ty.shape[i]);
    let has_vector = op.index_vector_dim < indices.ty.rank();
    let is_scalar = !has_vector || indices.ty.shape[op.index_vector_dim] == 1;
    if axis != map || !whole || !is_scalar || !op.operand_batching_dims.is_empty() {
        return Err(unfit());
    }
    let most = table.ty.shape[*axis].saturating_sub(1);
    let places = indices.ty.shape.iter().enumerate().filter(|(i, _)| *i != op.index_vector_dim);
    let places = indices.ty.with_shape(places.map(|(_, d)| *d).collect::<systole_base::Shape>());
    let rank = places.rank();
    let indices = arrays::reshape(w, indices, places)?;
    let indices = ExportedValue { name: clamped(w, &indices, most), constant: None, ..indices };
    let indices = ExportedValue { ty: TensorType::new(DType::I64, indices.ty.shape.clone()), ..indices };
    let (table, indices) = (w.expanded(table)?, w.expanded(&indices)?);
    let node = OnnxNode::new("Gather", [table, indices], "").with("axis", OnnxAttribute::Int(*axis as i64));
    let name = w.emit_with(node);
    // ONNX has the places of the lookup where the dimension was; StableHLO puts the rest at `offset_dims`.
    let mut place = (*axis..*axis + rank).collect::<Vec<_>>().into_iter();
    let mut rest =
        (0..ty.shape.len()).filter(|d| !(*axis..*axis + rank).contains(d)).collect::<Vec<_>>().into_iter();
    let of = |i: usize| if op.offset_dims.contains(&i) { rest.next() } else { place.next() };
    let order: Vec<usize> = (0..ty.shape.len()).filter_map(of).collect();
    Ok(ExportedValue::whole(w.permuted(&name, &order), ty))
}
