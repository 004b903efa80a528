//! Import rules of StableHLO ops: which ops map to one IR op, are decomposed, or are rejected.

use super::attribute::{literal, one_for_all, size, sizes, text};
use super::bodies;
use super::call::{ArrayCall, ComplexRule, ImportRule, OpImport, OpResults, call, op};
use super::chlo::top_k;
use super::complex::functions as of_complex;
use super::complex::{BROADCAST, CAST, CLAMP, COMPARE, CONVERT, DOT, IOTA, JOIN, PRODUCT, larger, smaller};
use super::complex_number::RealOrComplex;
use super::effects::INSPECTION;
use super::gather_dot;
use super::power::power;
use super::types::wrong;
use crate::syntax::{Attribute, find};
use systole_base::{DType, Result, TensorType, ensure};
use systole_ir::Tensor;
use systole_ir::op::{BroadcastInDim, DotGeneral};

/// Why ops of quantized types are rejected without one.
const NOT_QUANTIZED: &str = "it needs a quantized type, such as tensor<4x!quant.uniform<i8:f32, 0.5:3>>";

pub(super) const OPERATIONS: &[OpImport] = &[
    op("stablehlo.abs").unary(|z| RealOrComplex::real(z.abs())),
    op("stablehlo.add").binary(RealOrComplex::add),
    op("stablehlo.all_gather").complex(ComplexRule::Parts),
    op("stablehlo.all_reduce").complex(ComplexRule::Folds),
    op("stablehlo.all_to_all").complex(ComplexRule::Parts),
    op("stablehlo.and").keeps_elements(),
    op("stablehlo.atan2").binary(of_complex::atan2),
    op("stablehlo.bitcast_convert").complex(CAST).keeps_elements().arrays(bitcast),
    op("stablehlo.broadcast").complex(BROADCAST).keeps_elements().shaped().arrays(broadcast),
    op("stablehlo.broadcast_in_dim").moves().shaped(),
    op("stablehlo.case").complex(ComplexRule::Apart).keeps_elements(),
    op("stablehlo.cbrt").unary(of_complex::cbrt),
    op("stablehlo.clamp").complex(CLAMP).keeps_elements(),
    op("stablehlo.collective_broadcast").complex(ComplexRule::Parts),
    op("stablehlo.collective_permute").complex(ComplexRule::Parts),
    op("stablehlo.compare").complex(COMPARE),
    op("stablehlo.complex").complex(JOIN),
    op("stablehlo.concatenate").moves(),
    op("stablehlo.constant").complex(ComplexRule::Constant).keeps_elements().shaped().arrays(constant),
    op("stablehlo.convert").complex(CONVERT).keeps_elements(),
    op("stablehlo.convolution").complex(PRODUCT),
    op("stablehlo.cosine").unary(of_complex::cosine),
    op("stablehlo.divide").binary(RealOrComplex::div),
    op("stablehlo.dot").complex(DOT).arrays(dot),
    op("stablehlo.dot_general").complex(PRODUCT),
    op("stablehlo.dynamic_slice").moves(),
    op("stablehlo.dynamic_update_slice").moves(),
    op("stablehlo.einsum")
        .arrays(|c| one(gather_dot::einsum(text(c.op, "einsum_config"), c.operand(0)?, c.operand(1)?)?)),
    op("stablehlo.exponential").unary(of_complex::exp),
    op("stablehlo.exponential_minus_one").unary(of_complex::expm1),
    op("stablehlo.gather").moves(),
    op("stablehlo.get_dimension_size").arrays(dimension_size),
    op("stablehlo.if")
        .complex(ComplexRule::Apart)
        .keeps_elements()
        .import(ImportRule::Bodies(bodies::branches)),
    op("stablehlo.imag").unary(|z| RealOrComplex::real(z.imag())),
    op("stablehlo.infeed").refused("program data must be passed as arguments and returned as results"),
    op("stablehlo.iota").complex(IOTA).shaped(),
    op("stablehlo.is_finite").unary(|z| RealOrComplex::real(z.re.is_finite().and(&z.imag().is_finite()))),
    op("stablehlo.log").unary(of_complex::log),
    op("stablehlo.log_plus_one").unary(of_complex::log1p),
    op("stablehlo.logistic").unary(of_complex::logistic),
    op("stablehlo.map").complex(ComplexRule::Apart).import(ImportRule::Bodies(bodies::mapped)),
    op("stablehlo.maximum").binary(larger).keeps_elements(),
    op("stablehlo.minimum").binary(smaller).keeps_elements(),
    op("stablehlo.multiply").binary(RealOrComplex::mul),
    op("stablehlo.negate").unary(RealOrComplex::neg),
    op("stablehlo.optimization_barrier").moves(),
    op("stablehlo.or").keeps_elements(),
    op("stablehlo.outfeed").refused("program data must be passed as arguments and returned as results"),
    op("stablehlo.pad").moves(),
    op("stablehlo.power").binary(of_complex::power).arrays(power),
    op("stablehlo.real").unary(|z| RealOrComplex::real(z.re.clone())),
    op("stablehlo.recv").refused("a running program cannot communicate with other programs"),
    op("stablehlo.reduce").complex(ComplexRule::FoldsOrApart).keeps_elements(),
    op("stablehlo.reduce_scatter").complex(ComplexRule::Folds),
    op("stablehlo.reduce_window").complex(ComplexRule::FoldsOrApart).keeps_elements(),
    op("stablehlo.reshape").moves().shaped(),
    op("stablehlo.reverse").moves(),
    op("stablehlo.rng")
        .refused("its values depend on the compiler; use rng_bit_generator, which is portable"),
    op("stablehlo.rng_bit_generator").shaped(),
    op("stablehlo.rsqrt").unary(of_complex::rsqrt),
    op("stablehlo.scatter").complex(ComplexRule::FoldsOrApart).keeps_elements(),
    op("stablehlo.select").moves(),
    op("stablehlo.send").refused("a running program cannot communicate with other programs"),
    op("stablehlo.sign").unary(of_complex::sign),
    op("stablehlo.sine").unary(of_complex::sine),
    op("stablehlo.slice").moves(),
    op("stablehlo.sort").complex(ComplexRule::Apart).keeps_elements(),
    op("stablehlo.sqrt").unary(of_complex::sqrt),
    op("stablehlo.subtract").binary(RealOrComplex::sub),
    op("stablehlo.tan").unary(of_complex::tan),
    op("stablehlo.tanh").unary(of_complex::tanh),
    op("stablehlo.torch_index_select")
        .arrays(|c| one(gather_dot::select(c.op, c.operand(0)?, c.operand(1)?)?)),
    op("stablehlo.transpose").moves(),
    op("stablehlo.unary_einsum")
        .arrays(|c| one(gather_dot::unary(text(c.op, "einsum_config"), c.operand(0)?)?)),
    op("stablehlo.uniform_dequantize").refused(NOT_QUANTIZED),
    op("stablehlo.uniform_quantize").refused(NOT_QUANTIZED),
    op("stablehlo.while").complex(ComplexRule::Apart).keeps_elements(),
    op("stablehlo.xor").keeps_elements(),
    // The engine chooses layouts inside a program.
    call("LayoutConstraint", UNCHANGED).complex(ComplexRule::Nothing),
    call("Sharding", UNCHANGED).complex(ComplexRule::Nothing),
    call("TopK", ImportRule::Arrays(greatest)),
    call(INSPECTION, UNCHANGED).complex(ComplexRule::Nothing),
    call("annotate_device_placement", UNCHANGED).complex(ComplexRule::Nothing),
    // Ops run in order, and JAX marks an unused value as live; nothing is computed.
    call("control_dep", ImportRule::Importer(|_, _, _, _, _| Ok(Vec::new()))),
    call("dce_sink", ImportRule::Arrays(|_| Ok(Some(Vec::new())))),
];

const UNCHANGED: ImportRule = ImportRule::Arrays(|c| Ok(Some(c.operands.to_vec())));

fn one(made: Tensor) -> OpResults {
    Ok(Some(vec![made]))
}

/// Imports a large array of equal elements as a broadcast scalar: JAX writes such arrays for the coefficients of functions.
fn constant(c: &ArrayCall) -> OpResults {
    let Some(Attribute::Dense(dense)) = find(&c.op.attributes, "value") else { return Ok(None) };
    let Some(one) = one_for_all(dense) else { return Ok(None) };
    let shape = c.result()?.shape.clone();
    Ok(Some(vec![c.g.constant(literal(&one, c.module)?).broadcast_in_dim(&shape, &[])]))
}

/// Imports `broadcast`: new leading dimensions.
fn broadcast(c: &ArrayCall) -> OpResults {
    let (x, shape) = (c.operand(0)?, c.result()?.shape.clone());
    let new = sizes(c.op, "broadcast_sizes")?.len();
    let dims = (new..new + x.ty().rank()).collect();
    Ok(Some(c.g.emit(BroadcastInDim { dims, shape }, &[x])))
}

fn dot(c: &ArrayCall) -> OpResults {
    let [a, b] = c.all::<2>()?;
    ensure!(a.ty().rank() != 0 && b.ty().rank() != 0, wrong("dot requires vectors or matrices"));
    let dot = DotGeneral {
        lhs_batch: Default::default(),
        rhs_batch: Default::default(),
        lhs_contract: [a.ty().rank() - 1].into_iter().collect(),
        rhs_contract: [0].into_iter().collect(),
        element_type: c.result()?.dtype,
    };
    Ok(Some(c.g.emit(dot, &[a, b])))
}

fn dimension_size(c: &ArrayCall) -> OpResults {
    let size = size(c.op, "dimension")?.and_then(|d| c.operand(0).ok()?.shape().get(d).copied());
    one(c.g.scalar(DType::I32, size.ok_or_else(|| wrong("dimension out of range"))? as f64))
}

/// Imports a bitcast between bits and bools; other bitcasts are native.
fn bitcast(c: &ArrayCall) -> OpResults {
    let (x, to) = (c.operand(0)?, c.result()?.dtype);
    match (x.dtype(), to) {
        (from, to) if from == to => Ok(None),
        (DType::Bool, to) => one(of_bools(x, to)?),
        (_, DType::Bool) => one(to_bools(x)),
        _ => Ok(None),
    }
}

/// Imports `TopK`: the k largest elements of the last dimension, with k from the result's shape.
fn greatest(c: &ArrayCall) -> OpResults {
    let [x] = c.all::<1>()?;
    let k = c.result()?.shape.dims().last().copied();
    top_k(x, k.ok_or_else(|| wrong("TopK must not have a scalar result"))?, true).map(Some)
}

/// Returns the unsigned type with the same number of bits.
fn unsigned(dtype: DType) -> DType {
    match dtype.bits() {
        8 => DType::U8,
        16 => DType::U16,
        32 => DType::U32,
        _ => DType::U64,
    }
}

/// Packs bits `bool[…, bits] → T[…]`, the lowest first.
fn of_bools(x: &Tensor, to: DType) -> Result<Tensor> {
    let last = x.rank().checked_sub(1).filter(|d| x.shape()[*d] == to.bits() as usize);
    let last = last.ok_or_else(|| {
        wrong(format!("cannot pack {}: expected {} bits for {}", x.ty(), to.bits(), to.name()))
    })?;
    let bits = x.convert(DType::U64);
    let place = x.builder().iota(bits.ty().clone(), last);
    let sum = bits.shift_left(&place).sum(&[last]).convert(unsigned(to));
    Ok(if sum.dtype() == to { sum } else { sum.bitcast_convert(to) })
}

/// Inverse of [`of_bools`].
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
