//! Converts dynamic-shape ops to static ops if the shape operands are constant, and rejects the rest.

use super::attribute::{size, text};
use super::call::{ArrayCall, ComplexRule, ImportRule, OpImport, OpResults, call, op};
use super::chlo;
use super::complex::{PADDED_PRODUCT, SHAPED_IOTA};
use super::const_eval;
use super::types::wrong;
use crate::syntax::{Attribute, DenseElements, ElementData, MlirType, Operation, RankedTensorType};
use systole_base::{Result, TensorType};

pub(super) const OPERATIONS: &[OpImport] = &[
    op("stablehlo.dynamic_broadcast_in_dim")
        .complex(ComplexRule::Parts)
        .arrays(|c| shaped(c, "broadcast_in_dim")),
    op("stablehlo.dynamic_reshape").complex(ComplexRule::Parts).arrays(|c| shaped(c, "reshape")),
    op("stablehlo.dynamic_iota").complex(SHAPED_IOTA).arrays(|c| shaped(c, "iota")),
    op("stablehlo.dynamic_pad").complex(ComplexRule::Parts).arrays(pad),
    op("stablehlo.real_dynamic_slice").complex(ComplexRule::Parts).arrays(slice),
    op("stablehlo.dynamic_gather").complex(ComplexRule::Parts).arrays(gather),
    op("stablehlo.dynamic_conv").complex(PADDED_PRODUCT).arrays(convolution),
    op("stablehlo.set_dimension_size").arrays(set_size),
    call("shape_assertion", ImportRule::Arrays(assert_shape)),
    // JAX's top_k with a symbolic number of elements.
    call("stablehlo.dynamic_top_k", ImportRule::Arrays(top_k)),
];

/// Imports as the static op; the last operand is the result shape.
fn shaped(c: &ArrayCall, name: &str) -> OpResults {
    let (shape, x) = c.operands.split_last().ok_or_else(|| wrong("an operand is missing"))?;
    let ty = TensorType::new(c.result()?.dtype, const_eval::shape(shape, "the shape")?);
    c.emit(&renamed(c.op, name), x.to_vec(), vec![ty], Vec::new()).map(Some)
}

/// Imports as the static op on the first operands; the other operands become its attributes.
fn with_lists(c: &ArrayCall, name: &str, operands: usize, lists: &[&str]) -> OpResults {
    if c.operands.len() != operands + lists.len() {
        return Err(wrong(format!("got {} operands, expected {}", c.operands.len(), operands + lists.len())));
    }
    let mut op = renamed(c.op, name);
    for (i, list) in lists.iter().enumerate() {
        with(&mut op, list, array(&const_eval::ints(c.operand(operands + i)?, list)?));
    }
    c.emit(&op, c.operands[..operands].to_vec(), c.results.to_vec(), Vec::new()).map(Some)
}

fn pad(c: &ArrayCall) -> OpResults {
    with_lists(c, "pad", 2, &["edge_padding_low", "edge_padding_high", "interior_padding"])
}

fn slice(c: &ArrayCall) -> OpResults {
    with_lists(c, "slice", 1, &["start_indices", "limit_indices", "strides"])
}

fn gather(c: &ArrayCall) -> OpResults {
    with_lists(c, "gather", 2, &["slice_sizes"])
}

fn convolution(c: &ArrayCall) -> OpResults {
    let [x, kernel, padding] = c.all::<3>()?;
    let mut conv = renamed(c.op, "convolution");
    with(&mut conv, "padding", pairs(&const_eval::ints(padding, "padding")?));
    c.emit(&conv, vec![x.clone(), kernel.clone()], c.results.to_vec(), Vec::new()).map(Some)
}

fn assert_shape(c: &ArrayCall) -> OpResults {
    if const_eval::ints_or_bools(c.operand(0)?, "the shape assertion")?.first() == Some(&0) {
        let numbers: Result<Vec<_>> = c.operands[1..].iter().map(|t| const_eval::ints(t, "a size")).collect();
        let said = text(c.op, "error_message").unwrap_or("shape_assertion");
        return Err(wrong(format!("the shapes differ from those the program was exported for: {said}"))
            .because(format!("sizes: {:?}", numbers?.concat())));
    }
    Ok(Some(Vec::new()))
}

fn top_k(c: &ArrayCall) -> OpResults {
    let [x, k] = c.all::<2>()?;
    match const_eval::sizes(k, "k")?[..] {
        [k] => chlo::top_k(x, k, true).map(Some),
        _ => Err(wrong("k must be a scalar")),
    }
}

/// Imports `set_dimension_size` with a constant size: keeps the elements before it.
fn set_size(c: &ArrayCall) -> OpResults {
    let [x, new] = c.all::<2>()?;
    let dim = size(c.op, "dimension")?.filter(|d| *d < x.rank());
    let dim = dim.ok_or_else(|| wrong("dimension out of range"))?;
    let now = x.shape()[dim];
    match const_eval::sizes(new, "the size")?.as_slice() {
        [n] if *n == now => Ok(Some(vec![x.clone()])),
        [n] if *n < now => Ok(Some(vec![x.slice_dim(dim, 0, *n)])),
        [n] => Err(wrong(format!("size {n} is greater than the current size {now}"))),
        _ => Err(wrong("the size must be a scalar")),
    }
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
    Attribute::Dense(DenseElements {
        ty: MlirType::Tensor(RankedTensorType { dims, element: "i64".into(), encoding: None }),
        elements: ElementData::List(vec![values.len() / 2, 2], words),
    })
}
