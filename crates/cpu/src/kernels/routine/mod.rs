//! Routines: computations that a graph names beside the ops that define them ([`Routine`]): transforms of lines,
//! decompositions, triangular systems.

mod cholesky;
mod fft;
mod triangular_solve;

use crate::select::{Answer, Candidate, EVERY, Family, Problem, Refusal};
use systole_compile::{Kernel as Plan, Step};
use systole_ir::DType;
use systole_ir::op::Routine;

/// The routine of a step.
fn routine(step: &Step) -> Option<Routine> {
    match step.kernel {
        Plan::Routine(routine) => Some(routine),
        _ => None,
    }
}

/// A kernel that is written for f32 and f64.
fn of_type(
    p: &Problem<'_>,
    f32: fn(&Problem<'_>, Routine) -> Answer,
    f64: fn(&Problem<'_>, Routine) -> Answer,
) -> Answer {
    let routine = routine(p.step).ok_or_else(|| Refusal::from("it is no routine"))?;
    match p.step.input_types[0].dtype {
        DType::F32 => f32(p, routine),
        DType::F64 => f64(p, routine),
        _ => Err("its numbers are neither f32 nor f64".into()),
    }
}

/// Transforms.
static FFT: Family = Family {
    name: "fft",
    doc: "Fourier transforms of lines whose length has small factors.",
    takes: |step| matches!(routine(step), Some(Routine::Fft { .. } | Routine::Rfft | Routine::Irfft)),
    candidates: &[Candidate {
        name: "stockham",
        why: "radix 4, 2 and any prime up to 31, along contiguous columns of a line or of a block of lines",
        levels: EVERY,
        accepts: |p| of_type(p, fft::FftKernel::<f32>::answer, fft::FftKernel::<f64>::answer),
    }],
};

/// Cholesky's decomposition.
static CHOLESKY: Family = Family {
    name: "cholesky",
    doc: "Cholesky's decomposition of real matrices.",
    takes: |step| matches!(routine(step), Some(Routine::Cholesky)),
    candidates: &[Candidate {
        name: "blocked",
        why: "by blocks of rows, whose part in later rows is a product with sums in registers",
        levels: EVERY,
        accepts: |p| {
            of_type(p, cholesky::CholeskyKernel::<f32>::answer, cholesky::CholeskyKernel::<f64>::answer)
        },
    }],
};

/// Triangular systems.
static TRIANGULAR_SOLVE: Family = Family {
    name: "triangular_solve",
    doc: "Lower triangular systems of real numbers.",
    takes: |step| matches!(routine(step), Some(Routine::TriangularSolve { .. })),
    candidates: &[Candidate {
        name: "blocked",
        why: "by blocks of rows, whose part in later rows is a product with sums in registers; columns in parallel",
        levels: EVERY,
        accepts: |p| {
            of_type(
                p,
                triangular_solve::SolveKernel::<f32>::answer,
                triangular_solve::SolveKernel::<f64>::answer,
            )
        },
    }],
};

/// All routines.
pub const FAMILIES: &[&Family] = &[&FFT, &CHOLESKY, &TRIANGULAR_SOLVE];
