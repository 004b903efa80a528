//! Ops of StableHLO that the IR writes by others.

use super::attribute::{sizes, text};
use super::batch_norm;
use super::chlo::top_k;
use super::contract;
use super::types::{not_there, wrong};
use crate::syntax::Operation;
use systole_base::{DType, Error, Result, TensorType};
use systole_ir::op::{BroadcastInDim, DotGeneral};
use systole_ir::{GraphBuilder, Tensor};

/// The results of an op that is written by others; `None`: it is not one.
pub(super) fn write(
    op: &Operation,
    operands: &[Tensor],
    results: &[TensorType],
    g: &GraphBuilder,
) -> Result<Option<Vec<Tensor>>> {
    let one = |i: usize| operands.get(i).ok_or_else(|| wrong("an operand is missing"));
    let result = || results.first().ok_or_else(|| wrong("a result is missing"));
    let written = match op.name.as_str() {
        "stablehlo.broadcast" => {
            let (x, shape) = (one(0)?, result()?.shape.clone());
            let new = sizes(op, "broadcast_sizes")?.len();
            let dims = (new..new + x.ty().rank()).collect();
            g.emit(BroadcastInDim { dims, shape }, &[x])
        }
        "stablehlo.dot" => {
            let (a, b) = (one(0)?, one(1)?);
            if a.ty().rank() == 0 || b.ty().rank() == 0 {
                return Err(wrong("dot takes vectors and matrices"));
            }
            let contract = |x: &Tensor, last: bool| if last { x.ty().rank() - 1 } else { 0 };
            g.emit(
                DotGeneral {
                    lhs_batch: Default::default(),
                    rhs_batch: Default::default(),
                    lhs_contract: [contract(a, true)].into_iter().collect(),
                    rhs_contract: [contract(b, false)].into_iter().collect(),
                    element_type: result()?.dtype,
                },
                &[a, b],
            )
        }
        "stablehlo.get_dimension_size" => {
            let d = match crate::text::find(&op.attributes, "dimension") {
                Some(crate::syntax::Attribute::Int(d)) => usize::try_from(*d).ok(),
                _ => None,
            };
            let size = d.and_then(|d| one(0).ok()?.shape().get(d).copied());
            let size = size.ok_or_else(|| wrong("there is no such dimension"))?;
            vec![g.scalar(DType::I32, size as f64)]
        }
        "stablehlo.bitcast_convert" if result()?.dtype != one(0)?.dtype() => {
            match (one(0)?.dtype(), result()?.dtype) {
                (DType::Bool, to) => vec![of_bools(one(0)?, to)?],
                (_, DType::Bool) => vec![to_bools(one(0)?)],
                _ => return Ok(None),
            }
        }
        "stablehlo.einsum" => vec![contract::einsum(text(op, "einsum_config"), one(0)?, one(1)?)?],
        "stablehlo.unary_einsum" => vec![contract::unary(text(op, "einsum_config"), one(0)?)?],
        "stablehlo.torch_index_select" => vec![contract::select(op, one(0)?, one(1)?)?],
        "stablehlo.custom_call" => return custom_call(op, operands, results).map(Some),
        _ => return batch_norm::write(op, operands),
    };
    Ok(Some(written))
}

/// The unsigned type of as many bits.
fn unsigned(dtype: DType) -> DType {
    match dtype.bits() {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// `bool[…, bits] → T[…]`: the bits of each number, the lowest first.
fn of_bools(x: &Tensor, to: DType) -> Result<Tensor> {
    let last = x.rank().checked_sub(1).filter(|d| x.shape()[*d] == to.bits() as usize);
    let last =
        last.ok_or_else(|| wrong(format!("{} has not the {} bits of {}", x.ty(), to.bits(), to.name())))?;
    let bits = x.convert(DType::U64);
    let place = x.builder().iota(bits.ty().clone(), last);
    let sum = bits.shift_left(&place).sum(&[last]).convert(unsigned(to));
    Ok(if sum.dtype() == to { sum } else { sum.bitcast_convert(to) })
}

/// The inverse of [`of_bools`].
fn to_bools(x: &Tensor) -> Tensor {
    let own = unsigned(x.dtype());
    let bits = if own == x.dtype() { x.clone() } else { x.bitcast_convert(own) };
    let shape: Vec<usize> = x.shape().iter().copied().chain([x.dtype().bits() as usize]).collect();
    let wide = TensorType::new(DType::U64, &shape[..]);
    let kept: Vec<usize> = (0..x.rank()).collect();
    let bits = bits.convert(DType::U64).broadcast_in_dim(&wide.shape, &kept);
    let place = x.builder().iota(wide, x.rank());
    let bit = bits.shift_right_logical(&place).and(&place.ones_like());
    bit.not_equal(&bit.zeros_like())
}

/// Why an op of the specification is not here.
pub(super) fn refused(name: &str) -> Option<&'static str> {
    Some(match name {
        "stablehlo.infeed" | "stablehlo.outfeed" => "a program's data comes as arguments and goes as results",
        "stablehlo.send" | "stablehlo.recv" => "there is no other program to talk to while one runs",
        "stablehlo.uniform_quantize" | "stablehlo.uniform_dequantize" => "quantised types are not offered",
        "stablehlo.async_start" | "stablehlo.async_done" => {
            "ops run one after the other; call the body itself"
        }
        "stablehlo.rng" => {
            "its numbers would be others with each compiler; rng_bit_generator's are the same everywhere"
        }
        _ => return None,
    })
}

/// The error of an op that is [`refused`].
pub(super) fn refusal(name: &str) -> Error {
    not_there(format!("{name} is not supported")).because(refused(name).unwrap_or("it is not offered"))
}

/// Calls of what other systems define: those that change no value, else an error with the name.
fn custom_call(op: &Operation, operands: &[Tensor], results: &[TensorType]) -> Result<Vec<Tensor>> {
    let name = text(op, "call_target_name").unwrap_or_default();
    match name {
        "Sharding" | "SPMDFullToShardShape" | "SPMDShardToFullShape" | "annotate_device_placement"
        // How an array lies inside of a program is the engine's own.
        | "LayoutConstraint" => Ok(operands.to_vec()),
        // JAX keeps a value that nobody asks for; nothing is computed of it.
        "dce_sink" => Ok(Vec::new()),
        // The greatest of the last dimension, as many as the result has.
        "TopK" => match (operands, results.first()) {
            ([x], Some(ty)) => top_k(x, ty.shape.dims().last().copied().unwrap_or(0), true),
            _ => Err(wrong("TopK takes one array")),
        },
        "" => Err(wrong("a custom call without `call_target_name`")),
        _ => Err(not_there(format!("the custom call `{name}` is not supported"))
            .because("what it computes is defined by the system that wrote the program")),
    }
}
