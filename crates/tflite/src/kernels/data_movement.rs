//! TFLite kernels that only move elements (RESHAPE, PAD, CONCATENATION, TRANSPOSE …), for any element type.

use super::binary::sources;
use super::call::{KernelOperand, OperatorCall};
use super::op_row::operators;
use crate::model::broken;
use crate::op::{OptionField, TfliteOp};
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Concatenation "CONCATENATION" 2; options 10 [0 Axis, 1 Activation]; versions 1 2; Same; concatenation
    Reshape "RESHAPE" 22; options 17 [0 NewShape]; versions 1 1; Same; reshape
    Pad "PAD" 34; options 22 []; versions 1 2 or |t| if t.rank() > 4 { 4 } else { t.base }; Same; pad
    PadV2 "PADV2" 60; options 43 []; versions 1 2; Same; pad
    Transpose "TRANSPOSE" 39; options 26 [];
        versions 1 2 or |t| match t.rank() { 0..5 => t.base, 5 => 4, _ => 6 }; Same; transpose
    Squeeze "SQUEEZE" 43; options 30 [0 SqueezeDims]; versions 1 1; Same; reshape
    ExpandDims "EXPAND_DIMS" 70; options 52 []; versions 1 1; Same; reshape
    Densify "DENSIFY" 124; options 99 []; versions 1 1; NoInt8; |call| Ok(vec![call.input(0)?.value.clone()])
    BroadcastTo "BROADCAST_TO" 130; options 104 []; versions 2 3; Same; broadcast_to
}

/// Returns the output, gathering each element from an index of the operand.
pub(super) fn picked(call: &OperatorCall, x: &KernelOperand, places: &[usize]) -> Result<Vec<Literal>> {
    Ok(vec![taken(x, &call.output_type()?.shape, places)?])
}

/// Gathers `places.len()` elements of an operand into another shape.
pub(super) fn taken(x: &KernelOperand, shape: &[usize], places: &[usize]) -> Result<Literal> {
    let size = x.dtype().size();
    let from = x.value.bytes();
    let mut bytes = Vec::with_capacity(places.len() * size);
    for &p in places {
        let element = from.get(p * size..(p + 1) * size);
        bytes.extend_from_slice(element.ok_or_else(|| broken(format!("element {p} does not exist")))?);
    }
    Literal::from_bytes(x.ty().with_shape(shape), &bytes)
}

/// Computes RESHAPE, SQUEEZE, EXPAND_DIMS: the output has the shape in the file, or, if that is open, RESHAPE's operand.
fn reshape(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    if !call.output()?.is_dynamic {
        return Ok(vec![x.value.reshape(&call.output_type()?.shape)?]);
    }
    let wanted = call.optional(1)?.filter(|_| call.operator.op == TfliteOp::Reshape);
    let wanted = wanted.ok_or_else(|| call.unsupported("an open shape"))?.indices()?;
    let known: i64 = wanted.iter().filter(|v| **v >= 0).fold(1, |n, v| n.saturating_mul(*v));
    let rest = (x.ty().elements() as i64).checked_div(known).unwrap_or(0);
    let dims: Vec<usize> = wanted.iter().map(|&v| if v < 0 { rest } else { v } as usize).collect();
    Ok(vec![x.value.reshape(dims)?])
}

/// Computes PAD and PADV2, `x: T[…]`, paddings `[rank, 2]`, and PADV2's padding value; PAD's is the output's zero.
fn pad(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, paddings) = (call.input(0)?, call.input(1)?.indices()?);
    let rank = x.dims().len();
    if paddings.len() != 2 * rank || paddings.iter().any(|p| !(0..1 << 30).contains(p)) {
        return Err(broken(format!("paddings {paddings:?} do not match rank {rank}")));
    }
    let edges: Vec<(usize, usize)> =
        paddings.chunks_exact(2).map(|p| (p[0] as usize, p[1] as usize)).collect();
    let dims: Vec<usize> = x.dims().iter().zip(&edges).map(|(d, (a, b))| a + d + b).collect();
    let n = call.check_output(&dims)?;
    let size = x.dtype().size();
    let zero = match (call.optional(2)?, x.dtype()) {
        (Some(value), dtype) if value.dtype() == dtype && value.ty().elements() == 1 => {
            value.value.bytes().to_vec()
        }
        (Some(value), _) => return Err(broken(format!("the padding value is {}", value.ty()))),
        (None, DType::I8) if call.output()?.quantization.is_some() => vec![call.output_scale()?.1 as u8],
        (None, _) => vec![0; size],
    };
    let mut bytes = zero.repeat(n);
    let mut targets = vec![0usize];
    let mut stride = n;
    for ((&own, &(before, _)), &whole) in x.dims().iter().zip(&edges).zip(&dims) {
        stride /= whole.max(1);
        let step = |k: usize| (before + k) * stride;
        targets = targets.iter().flat_map(|&at| (0..own).map(move |k| at + step(k))).collect();
    }
    for (&to, element) in targets.iter().zip(x.value.bytes().chunks_exact(size)) {
        bytes[to * size..(to + 1) * size].copy_from_slice(element);
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}

/// Concatenates operands along an axis.
fn concatenation(call: &OperatorCall) -> Result<Vec<Literal>> {
    let parts = (0..call.operator.inputs.len()).map(|n| call.input(n)).collect::<Result<Vec<_>>>()?;
    let first = parts.first().ok_or_else(|| broken("the operator has no operands".into()))?;
    let axis = call.axis(call.operator.int(OptionField::Axis), first.dims().len())?;
    let mut dims = first.dims().to_vec();
    dims[axis] = 0;
    for p in &parts {
        let fits = p.dims().len() == dims.len()
            && p.dtype() == first.dtype()
            && p.dims().iter().zip(&dims).enumerate().all(|(i, (a, b))| i == axis || a == b);
        ensure!(fits, broken(format!("cannot concatenate {} and {}", p.ty(), first.ty())));
        let same = p.tensor.quantization.as_ref().map(|q| (&q.scale, &q.zero_point))
            == call.output()?.quantization.as_ref().map(|q| (&q.scale, &q.zero_point));
        if first.dtype() == DType::I8 && !same {
            return Err(broken(format!("the scale of {} differs from the output's", p.tensor.name))
                .hint("insert a QUANTIZE operator before the operator"));
        }
        dims[axis] += p.dims()[axis];
    }
    let n = call.check_output(&dims)?;
    let outer: usize = dims[..axis].iter().product();
    let size = first.dtype().size();
    let inner: usize = dims[axis + 1..].iter().product::<usize>() * size;
    let mut bytes = Vec::with_capacity(n * size);
    for o in 0..outer {
        for p in &parts {
            let block = p.dims()[axis] * inner;
            bytes.extend_from_slice(&p.value.bytes()[o * block..(o + 1) * block]);
        }
    }
    Ok(vec![Literal::from_bytes(call.output_type()?, &bytes)?])
}

/// Permutes dimensions.
fn transpose(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let rank = x.dims().len();
    let order = call.input(1)?.indices()?;
    let order = order.iter().map(|&a| call.axis(a, rank)).collect::<Result<Vec<_>>>()?;
    let mut seen = vec![false; rank];
    order.iter().for_each(|&a| seen[a] = true);
    if order.len() != rank || seen.contains(&false) {
        return Err(broken(format!("{order:?} is not a permutation of {rank} dimensions")));
    }
    let dims: Vec<usize> = order.iter().map(|&a| x.dims()[a]).collect();
    call.check_output(&dims)?;
    let strides = x.ty().shape.strides();
    let mut places = vec![0usize];
    for (&axis, &size) in order.iter().zip(&dims) {
        let stride = strides[axis];
        places = places.iter().flat_map(|&at| (0..size).map(move |k| at + k * stride)).collect();
    }
    picked(call, &x, &places)
}

/// Broadcasts `x: T[…]` to a shape.
fn broadcast_to(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    let dims = match call.optional(1)?.filter(|_| call.output().is_ok_and(|y| y.is_dynamic)) {
        Some(shape) => shape.indices()?.iter().map(|&d| d.max(0) as usize).collect(),
        None => call.output()?.dims().to_vec(),
    };
    call.check_output(&dims)?;
    if super::binary::common_shape(x.dims(), &dims)? != dims {
        return Err(broken(format!("cannot broadcast {} to {dims:?}", x.ty())));
    }
    picked(call, &x, &sources(x.dims(), &dims))
}
