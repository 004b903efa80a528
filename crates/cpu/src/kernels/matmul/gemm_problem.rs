//! Problem description of a GEMM step: sizes, element types, strides and epilogue.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, count, roles};
use crate::select::{Problem, SelectResult};
use crate::simd::level::CompileTarget;
use systole_compile::Kernel as Plan;
use systole_ir::{DType, Op};

/// A GEMM problem `[M, K] · [K, N] → [M, N]`, or a batch of them.
pub struct GemmProblem {
    /// Dimensions of A; its free dimensions are M.
    pub left: OperandDims,
    /// Dimensions of B; its free dimensions are N.
    pub right: OperandDims,
    /// Element type of A and B, and of C.
    pub types: [DType; 2],
    pub epilogue: Epilogue,
    pub target: CompileTarget,
}

impl GemmProblem {
    /// Describes a program step as a GEMM problem.
    pub fn of(p: &Problem<'_>) -> SelectResult<GemmProblem> {
        let Plan::Op { op: Op::DotGeneral(d), bias } = &p.step.kernel else {
            return Err("not a product".into());
        };
        let (a, b) = (&p.step.input_types[0], &p.step.input_types[1]);
        let left = roles(a, &d.lhs_batch, &d.lhs_free(a.rank()), &d.lhs_contract);
        let right = roles(b, &d.rhs_batch, &d.rhs_free(b.rank()), &d.rhs_contract);
        let epilogue = Epilogue { bias: *bias, accumulate: false };
        Ok(GemmProblem { left, right, types: [a.dtype, d.element_type], epilogue, target: p.target })
    }

    /// Returns M, N and K of the GEMM.
    pub fn size(&self) -> [usize; 3] {
        [&self.left.free, &self.right.free, &self.left.inner].map(|dims| count(dims))
    }

    /// Returns the problem unchanged, or rejects it if it has an epilogue.
    pub fn without_bias(self) -> SelectResult<GemmProblem> {
        if self.epilogue == Epilogue::default() { Ok(self) } else { Err("it adds a bias".into()) }
    }
}
