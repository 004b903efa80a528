//! Kernel family of control flow.

use crate::run::control_flow::{CaseKernel, WhileKernel};
use crate::run::loop_code::kernel as jit_loop;
use crate::run::row_blocks::BlocksKernel;
use crate::select::{AVX2_UP, EVERY, Family, KernelCandidate};
use systole_compile::Kernel as Plan;

/// Kernel family of steps with nested programs (loops, branches, row blocks).
pub static FAMILY: Family = Family {
    name: "control",
    doc: "loops, branches, blocks of rows: programs inside a program",
    takes: |step| matches!(step.kernel, Plan::While { .. } | Plan::Case { .. } | Plan::Blocks(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("jit_while", AVX2_UP, "loops over small arrays: machine code for the whole loop, which \
             computes with single elements", jit_loop::bind),
        KernelCandidate::new("while", EVERY, "loops: the state is stored in the results",
            |p| match &p.step.kernel {
                Plan::While { captures, starts, cond, body } => {
                    Ok(Box::new(WhileKernel::new(*captures, starts, [cond, body], p)?))
                }
                _ => Err("not a loop".into()),
            }),
        KernelCandidate::new("case", EVERY, "branches",
            |p| match &p.step.kernel {
                Plan::Case { branches } => Ok(Box::new(CaseKernel::new(branches, p)?)),
                _ => Err("not a branch".into()),
            }),
        KernelCandidate::new("row_blocks", EVERY, "a part of the program for a few rows at a time",
            |p| match &p.step.kernel {
                Plan::Blocks(b) => Ok(Box::new(BlocksKernel::new(b, p)?)),
                _ => Err("not blocks of rows".into()),
            }),
    ],
};
