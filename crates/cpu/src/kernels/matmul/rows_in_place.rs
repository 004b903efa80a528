//! AMX GEMM without packing of A: runs as a 1×1 convolution, which loads its input into tile registers in place.

use crate::kernel::gemm_dims::{OperandDims, count, joint_stride};
use crate::kernels::matmul::gemm_problem::GemmProblem;
use crate::select::{CandidateResult, Problem};
use systole_compile::{Kernel as Plan, Step};
use systole_ir::op::Convolution;
use systole_ir::{Op, TensorType, ensure};

/// Minimum M: threads divide M and do not share packed B columns, so fewer rows would leave threads idle.
const MIN_M: usize = 64;
/// Elements of C from which packing A pays off.
const MIN_PACKED_RESULT: usize = 1 << 20;
/// Elements of bf16 in a row of a tile.
const TILE_K: usize = 32;
/// Maximum K: two row panels of A mostly fit L1.
const MAX_K: usize = 4096;

/// Returns the strides of an operand in elements: along M or N, and along K.
fn strides(r: &OperandDims) -> Option<(usize, usize)> {
    Some((joint_stride(&r.free)?, joint_stride(&r.inner)?))
}

/// Creates the convolution kernel that computes the GEMM without packing A.
pub fn bind(d: &GemmProblem, problem: &Problem<'_>) -> CandidateResult {
    let [m, n, k] = d.size();
    // The convolution's weights are B, stored `[1, K, N]` or `[1, N, K]`.
    let by_columns = match strides(&d.right) {
        Some((1, step)) if step == n => false,
        Some((column, 1)) if column == k => true,
        _ => return Err("the right operand is not a contiguous matrix".into()),
    };
    ensure!(count(&d.left.batch) == 1, "it is a batch of GEMMs".into());
    ensure!(strides(&d.left) == Some((k, 1)), "the left operand is not contiguous".into());
    ensure!(m >= MIN_M, format!("M is {m}, expected at least {MIN_M}").into());
    ensure!(m * n != 0 && k != 0, "K is 0".into());
    // The last tile of a row would continue with the next row's elements, times zero weights: a NaN there would become
    // a NaN here.
    if !k.is_multiple_of(TILE_K) {
        return Err(
            format!("K is {k}, but rows that are read in place must be whole tiles of {TILE_K}").into()
        );
    }
    ensure!(m * n < MIN_PACKED_RESULT && k <= MAX_K, "its result is so large that packing pays off".into());
    let [from, to] = d.types;
    let mut c = Convolution::channels_last(&[1], &[[0, 0]], &[1], 1, to);
    if by_columns {
        (c.dims.kernel_input_feature, c.dims.kernel_output_feature) = (2, 1);
    }
    let kernel = if by_columns { [1, n, k] } else { [1, k, n] };
    let step = Step {
        kernel: Plan::Op { op: Op::from(c), bias: false },
        input_types: vec![TensorType::new(from, [1, m, k]), TensorType::new(from, kernel)],
        output_types: vec![TensorType::new(to, [1, m, n])],
        ..problem.step.clone()
    };
    problem.ask_for("conv/amx", &step)
}
