//! Ops with shapes that are operands, as the ops with shapes that are attributes: what constants settle is settled while the
//! program is read, the rest is refused.

use super::attribute::{size, text};
use super::fold;
use super::types::{is_settled, not_there, wrong};
use crate::syntax::{Attribute, Dense, Elements, Operation, Ranked, Type};
use systole_base::{Result, TensorType};
use systole_ir::Tensor;

/// An op that stands for another: itself, its operands and the types of its results.
pub(super) type Settled = (Operation, Vec<Tensor>, Vec<TensorType>);

/// The op with its shapes as attributes; `None`: its shapes are no operands.
pub(super) fn settle(op: &Operation, operands: &[Tensor], results: &[TensorType]) -> Result<Option<Settled>> {
    let element = || results.first().map(|ty| ty.dtype).ok_or_else(|| wrong("a result is missing"));
    let typed = |shape: Vec<usize>| Ok::<_, systole_base::Error>(vec![TensorType::new(element()?, shape)]);
    let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
    Ok(Some(match (name, operands) {
        ("dynamic_broadcast_in_dim", [x, shape]) => {
            let shape = fold::shape(shape, "the shape")?;
            (renamed(op, "broadcast_in_dim"), vec![x.clone()], typed(shape)?)
        }
        ("dynamic_reshape", [x, shape]) => {
            let shape = fold::shape(shape, "the shape")?;
            (renamed(op, "reshape"), vec![x.clone()], typed(shape)?)
        }
        ("dynamic_iota", [shape]) => {
            (renamed(op, "iota"), Vec::new(), typed(fold::shape(shape, "the shape")?)?)
        }
        ("dynamic_pad", [x, value, low, high, interior]) => {
            let mut pad = renamed(op, "pad");
            for (name, t) in
                [("edge_padding_low", low), ("edge_padding_high", high), ("interior_padding", interior)]
            {
                with(&mut pad, name, array(&fold::ints(t, name)?));
            }
            (pad, vec![x.clone(), value.clone()], results.to_vec())
        }
        ("real_dynamic_slice", [x, start, limit, strides]) => {
            let mut slice = renamed(op, "slice");
            for (name, t) in [("start_indices", start), ("limit_indices", limit), ("strides", strides)] {
                with(&mut slice, name, array(&fold::ints(t, name)?));
            }
            (slice, vec![x.clone()], results.to_vec())
        }
        ("dynamic_gather", [x, indices, slice_sizes]) => {
            let mut gather = renamed(op, "gather");
            with(&mut gather, "slice_sizes", array(&fold::ints(slice_sizes, "slice_sizes")?));
            (gather, vec![x.clone(), indices.clone()], results.to_vec())
        }
        ("dynamic_conv", [x, kernel, padding]) => {
            let mut conv = renamed(op, "convolution");
            with(&mut conv, "padding", pairs(&fold::ints(padding, "padding")?));
            (conv, vec![x.clone(), kernel.clone()], results.to_vec())
        }
        _ => return Ok(None),
    }))
}

/// What needs no op of its own: sizes, and claims about them.
pub(super) fn write(op: &Operation, operands: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
    let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
    match (name, operands) {
        ("set_dimension_size", [x, new]) => set_size(op, x, new).map(|t| Some(vec![t])),
        ("custom_call", [holds, ..]) if text(op, "call_target_name") == Some("shape_assertion") => {
            if fold::ints_or_bools(holds, "the claim about a shape")?.first() == Some(&0) {
                let numbers: Result<Vec<_>> = operands[1..].iter().map(|t| fold::ints(t, "a size")).collect();
                let said = text(op, "error_message").unwrap_or("shape_assertion");
                return Err(wrong(format!(
                    "the shapes are not those that the program was exported for: {said}"
                ))
                .because(format!("sizes: {:?}", numbers?.concat())));
            }
            Ok(Some(Vec::new()))
        }
        _ => Ok(None),
    }
}

/// The size of a dimension as another that is known now: the elements before it.
fn set_size(op: &Operation, x: &Tensor, new: &Tensor) -> Result<Tensor> {
    let dim = size(op, "dimension").filter(|d| *d < x.rank());
    let dim = dim.ok_or_else(|| wrong("there is no such dimension"))?;
    let now = x.shape()[dim];
    match fold::sizes(new, "the size")?.as_slice() {
        [n] if *n == now => Ok(x.clone()),
        [n] if *n < now => Ok(x.slice_dim(dim, 0, *n)),
        [n] => Err(wrong(format!("the size {n} is more than {now}"))),
        _ => Err(wrong("the size is not one number")),
    }
}

/// Refuses sizes that nothing tells: ops that take their shape from the type of their result.
pub(super) fn check_result(op: &Operation, ty: &Type) -> Result<()> {
    const SHAPED: [&str; 6] = [
        "stablehlo.broadcast_in_dim",
        "stablehlo.broadcast",
        "stablehlo.iota",
        "stablehlo.reshape",
        "stablehlo.rng_bit_generator",
        "stablehlo.constant",
    ];
    if is_settled(ty) || !SHAPED.contains(&op.name.as_str()) {
        return Ok(());
    }
    Err(not_there(format!("{ty}: sizes that are known only when it runs")))
}

fn renamed(op: &Operation, name: &str) -> Operation {
    let mut new = Operation { name: format!("stablehlo.{name}"), ..op.clone() };
    new.regions.clear();
    new
}

fn with(op: &mut Operation, name: &str, value: Attribute) {
    op.attributes.retain(|(n, _)| n != name);
    op.attributes.push((name.into(), value));
}

fn array(values: &[i64]) -> Attribute {
    Attribute::Array("i64".into(), values.iter().map(|&v| Attribute::Int(v.into())).collect())
}

fn pairs(values: &[i64]) -> Attribute {
    let dims = vec![Some(values.len() as u64 / 2), Some(2)];
    let words = values.iter().map(i64::to_string).collect();
    Attribute::Dense(Dense {
        ty: Type::Tensor(Ranked { dims, element: "i64".into(), encoding: None }),
        elements: Elements::List(vec![values.len() / 2, 2], words),
    })
}
