//! Selects microkernel, packing and epilogue of the blocked GEMM by element type (f32, bf16, f64, int8, AMX).

use crate::kernel::Kernel;
use crate::kernels::matmul::blocked::integers::IntegerGemm;
use crate::kernels::matmul::blocked::{BlockedGemm, GemmFeatures, GemmTypes, SumRounding};
use crate::kernels::matmul::gemm_problem::GemmProblem;
use crate::select::CandidateResult;
use crate::simd::amx;
#[cfg(target_arch = "x86_64")]
use crate::simd::gemm::shape_halves;
use crate::simd::gemm::{GemmElement, MicrokernelShape, shape_f32, shape_f64, shape_pairs, shape_quads};
use crate::simd::level::Level;
use crate::simd::loops::{narrow, widen};
#[cfg(target_arch = "x86_64")]
use crate::simd::pack::halves;
use crate::simd::pack::{IntegerGroup, PackFn, doubles, floats, integers};
use systole_ir::{DType, ensure};

/// Minimum M · N · K for splitting f32 into two bf16: below, it costs more than AMX saves.
const SPLIT_WORK: usize = 1 << 15;

/// Boxes a blocked GEMM as a kernel.
fn blocked<T: GemmElement>(
    d: &GemmProblem,
    shape: MicrokernelShape<T>,
    types: GemmTypes<T>,
) -> Box<dyn Kernel> {
    Box::new(BlockedGemm::new(&d.left, &d.right, shape, types, d.epilogue))
}

/// Returns the types for f32, f16 or bf16: operands are widened to f32 while packing, complete f32 sums are rounded to
/// the result's type.
fn float_types(from: DType, to: DType, level: Level) -> GemmTypes<f32> {
    let round =
        || Some(SumRounding { narrow: narrow(to, level)?, widen: widen(to, level)?, size: to.size() });
    let pack = floats(from, level);
    GemmTypes {
        size: from.size(),
        group: 1,
        pack_left: pack,
        pack_right: pack,
        plain: from == DType::F32,
        round: round(),
        correction: None,
        abilities: GemmFeatures::ALL,
    }
}

/// Returns the types for integers, with `group` reduction elements in one k-step (VNNI layout).
fn int_types(from: DType, group: usize, [pack_left, pack_right]: [PackFn<i32>; 2]) -> GemmTypes<i32> {
    GemmTypes {
        size: from.size(),
        group,
        pack_left,
        pack_right,
        plain: false,
        round: None,
        correction: None,
        abilities: GemmFeatures::NONE,
    }
}

/// Creates an AMX GEMM kernel: bf16, int8, and f32 as the sum of two bf16 if TensorFloat-32 precision is allowed.
pub fn amx(d: &GemmProblem, kernels: &amx::AmxKernels) -> CandidateResult {
    let [from, to] = d.types;
    let level = d.target.level.vectors();
    let packs = |from| amx::pack::packs(from, level).ok_or("there is no AMX packing routine for its type");
    if from.is_int() {
        let shape = match (from, to) {
            (DType::I8, DType::I32 | DType::U32) => kernels.signed,
            (DType::U8, DType::I32 | DType::U32) => kernels.unsigned,
            _ => return Err("AMX multiplies integers only as int8 with 32-bit sums".into()),
        };
        ensure!(!d.epilogue.bias && !d.epilogue.accumulate, "it adds a bias to integers".into());
        return Ok(blocked(
            d,
            shape,
            int_types(from, 4, amx::pack::packs(from, level).ok_or("no AMX packing routine")?),
        ));
    }
    let [m, n, k] = d.size();
    let (shape, group) = match (from, to) {
        (DType::BF16, DType::BF16 | DType::F32) => (kernels.bf16, 2),
        (DType::F32, DType::F32) if !d.target.tensor_float_32 => {
            return Err("f32 must keep all 24 bits of precision (tensor-float-32 is off)".into());
        }
        (DType::F32, DType::F32) if m * n * k < SPLIT_WORK => {
            return Err("it is too small for splitting f32 into two bf16 to pay off".into());
        }
        (DType::F32, DType::F32) => (kernels.split, 1),
        _ => return Err("AMX multiplies only bf16, int8, and f32 as two bf16".into()),
    };
    let [pack_left, pack_right] = packs(from)?;
    let types = GemmTypes { group, pack_left, pack_right, plain: false, ..float_types(from, to, level) };
    Ok(blocked(d, shape, types))
}

/// Creates a bf16 GEMM kernel with VDPBF16PS (AVX512_BF16).
#[cfg(target_arch = "x86_64")]
pub fn bf16_pairs(d: &GemmProblem, level: Level) -> CandidateResult {
    let [from, to] = d.types;
    if from != DType::BF16 || !matches!(to, DType::BF16 | DType::F32) {
        return Err("its operands are not bf16".into());
    }
    let shape =
        shape_halves(level, d.size()[1]).ok_or("the instruction set has no dot products of bf16 pairs")?;
    let pack = halves();
    let types =
        GemmTypes { group: 2, pack_left: pack, pack_right: pack, ..float_types(from, to, level.vectors()) };
    Ok(blocked(d, shape, types))
}

#[cfg(not(target_arch = "x86_64"))]
pub fn bf16_pairs(_: &GemmProblem, _: Level) -> CandidateResult {
    Err("this architecture has no such instruction".into())
}

/// Creates an FMA GEMM kernel of f32, f16 or bf16, accumulated in f32.
pub fn f32(d: &GemmProblem) -> CandidateResult {
    let small_float = |t: DType| matches!(t, DType::F32 | DType::F16 | DType::BF16);
    let ([from, to], level) = (d.types, d.target.level.vectors());
    ensure!(small_float(from) && small_float(to), "its elements are not f32, bf16 or f16".into());
    Ok(blocked(d, shape_f32(level, d.size()[1]), float_types(from, to, level)))
}

/// Creates an f64 GEMM kernel with FMA.
pub fn f64(d: &GemmProblem) -> CandidateResult {
    ensure!(d.types == [DType::F64; 2], "its elements are not f64".into());
    let types = GemmTypes {
        size: 8,
        group: 1,
        pack_left: doubles(),
        pack_right: doubles(),
        plain: false,
        round: None,
        correction: None,
        abilities: GemmFeatures { hand_over: false, ..GemmFeatures::ALL },
    };
    Ok(blocked(d, shape_f64(d.target.level.vectors()), types))
}

/// Creates a GEMM kernel of 8- or 16-bit integers with 32-bit sums, two or four reduction elements in one k-step.
pub fn grouped_integers(d: &GemmProblem) -> CandidateResult {
    let ([from, to], level) = (d.types, d.target.level.vectors());
    ensure!(matches!(to, DType::I32 | DType::U32), "its result is not a 32-bit integer".into());
    let packs = |groups: [IntegerGroup; 2]| {
        let [left, right] = groups.map(|group| integers(from, group, level));
        Some([left?, right?])
    };
    let wide = "its operands are not integers of at most 16 bits";
    if let (DType::I8, Some(shape)) = (from, shape_quads(level)) {
        // VPDPBUSD expects unsigned bytes on the left: A is packed with a zero point of 128, and -128 times the column
        // sums of B compensates for it.
        let correction = Some((0x0101_0101, (|sum: i32| sum.wrapping_mul(-128)) as fn(i32) -> i32));
        let packs = packs([IntegerGroup::Offset, IntegerGroup::Bytes]).ok_or(wide)?;
        return Ok(blocked(d, shape, GemmTypes { correction, ..int_types(from, 4, packs) }));
    }
    let packs = packs([IntegerGroup::Words, IntegerGroup::Words]).ok_or(wide)?;
    Ok(blocked(d, shape_pairs(level), int_types(from, 2, packs)))
}

/// Creates a scalar GEMM kernel for any integer types.
pub fn any_integers(d: &GemmProblem) -> CandidateResult {
    let [from, to] = d.types;
    ensure!(from.is_int() && to.is_int(), "its elements are not integers".into());
    Ok(Box::new(IntegerGemm::new(&d.left, &d.right, from, to)))
}
