//! Reductions and pooling windows in ONNX.

use super::elementwise;
use super::products::window_sums;
use super::writer::{Exported, ExportedValue, GraphWriter, unsupported};
use crate::model::{OnnxAttribute, OnnxNode};
use systole_base::{DType, Result, TensorType};
use systole_ir::op::{Monoid, Reduce, ReduceWindow};

fn monoid(body: &systole_ir::Graph) -> Result<Monoid> {
    Monoid::of(body).ok_or_else(|| unsupported("ONNX has no reduction with a body of its own".into()))
}

/// Combines a reduction with its initial value, unless that changes nothing.
fn from_init(w: &mut GraphWriter, y: ExportedValue, init: &ExportedValue, op: Monoid) -> Exported {
    let is_neutral = init.constant.as_ref().is_some_and(|c| c.get(0) == op.identity(y.ty.dtype));
    let ty = y.ty.clone();
    if is_neutral { Ok(y) } else { elementwise::binary(w, op.op(), [&y, init], ty) }
}

pub(super) fn reduce(
    w: &mut GraphWriter,
    [x, init]: [&ExportedValue; 2],
    op: &Reduce,
    ty: TensorType,
) -> Exported {
    let monoid = monoid(&op.body)?;
    let name = w.expanded(x)?;
    if op.dims.is_empty() {
        return from_init(w, ExportedValue::whole(name, ty), init, monoid);
    }
    let is_bool = x.ty.dtype == DType::Bool;
    let name = if is_bool { w.cast(&name, DType::I32) } else { name };
    let axes: Vec<i64> = op.dims.iter().map(|&d| d as i64).collect();
    let operator = match monoid {
        Monoid::Add if !is_bool => "ReduceSum",
        Monoid::Multiply if !is_bool => "ReduceProd",
        Monoid::Add | Monoid::Maximum | Monoid::Or if is_bool => "ReduceMax",
        Monoid::Multiply | Monoid::Minimum | Monoid::And if is_bool => "ReduceMin",
        Monoid::Maximum => "ReduceMax",
        Monoid::Minimum => "ReduceMin",
        _ => return Err(unsupported("ONNX has no bitwise reduction".into())),
    };
    // ReduceSum has its axes as an operand since opset 13, the others since opset 18.
    let node = match operator {
        "ReduceSum" => {
            let axes = w.ints(&axes);
            OnnxNode::new(operator, [name, axes], "")
        }
        _ => OnnxNode::new(operator, [name], "").ints("axes", axes),
    };
    let y = w.emit_with(node.with("keepdims", OnnxAttribute::Int(0)));
    let y = if is_bool { w.cast(&y, DType::Bool) } else { y };
    from_init(w, ExportedValue::whole(y, ty), init, monoid)
}

pub(super) fn window(
    w: &mut GraphWriter,
    [x, init]: [&ExportedValue; 2],
    op: &ReduceWindow,
    ty: TensorType,
) -> Exported {
    let (monoid, own) = (monoid(&op.body)?, &op.window);
    let is_spatial = |i: &usize| own.dimensions[*i] != 1 || own.strides[*i] != 1 || own.padding[*i] != [0, 0];
    let (spatial, others): (Vec<usize>, Vec<usize>) = (0..x.ty.rank()).partition(is_spatial);
    let is_pool = own.base_dilations.iter().all(|d| *d == 1) && own.padding.iter().flatten().all(|n| *n >= 0);
    if !is_pool || spatial.is_empty() || spatial.len() > 3 || x.ty.dtype != DType::F32 {
        return Err(unsupported("ONNX has no pooling of this type, dilation or number of dimensions".into()));
    }
    // To [N, 1, …]: all other dimensions count as the batch.
    let order = [&others[..], &spatial].concat();
    let name = w.expanded(x)?;
    let name = w.permuted(&name, &order);
    let count: usize = others.iter().map(|&i| x.ty.shape[i]).product();
    let flat = [vec![count, 1], spatial.iter().map(|&i| x.ty.shape[i]).collect()].concat();
    let name = w.reshaped(&name, &flat)?;
    let ints = |all: &[usize]| spatial.iter().map(|&i| all[i] as i64).collect::<Vec<i64>>();
    let sizes = ints(&own.dimensions);
    let side = |k: usize| spatial.iter().map(move |&i| own.padding[i][k]);
    let with = |node: OnnxNode| {
        node.ints("kernel_shape", sizes.clone())
            .ints("strides", ints(&own.strides))
            .ints("dilations", ints(&own.window_dilations))
            .ints("pads", side(0).chain(side(1)))
    };
    let y = match monoid {
        Monoid::Add => window_sums(w, &name, x.ty.dtype, &sizes, with),
        Monoid::Maximum => w.emit_with(with(OnnxNode::new("MaxPool", [name], ""))),
        Monoid::Minimum => {
            let negative = w.emit("Neg", &[&name]);
            let y = w.emit_with(with(OnnxNode::new("MaxPool", [negative], "")));
            w.emit("Neg", &[&y])
        }
        _ => return Err(unsupported("ONNX has no pooling by products or bits".into())),
    };
    let y = w.reshaped(&y, &order.iter().map(|&i| ty.shape[i]).collect::<Vec<_>>())?;
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &i)| back[i] = at);
    let y = w.permuted(&y, &back);
    from_init(w, ExportedValue::whole(y, ty), init, monoid)
}
