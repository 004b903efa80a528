//! Lowers ops with nested graphs to kernels: loops, branches, and outlined graphs (attention, dequantization of
//! weights).

use crate::graph::optimize_with;
use crate::nested_compiler::NestedCompiler;
use crate::options::{PipelineOptions, RoundingOptions};
use crate::program::{DequantizeStep, Kernel};
use std::sync::Arc;
use systole_ir::attention::AttentionMatch;
use systole_ir::op::Case;
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::{DType, Graph, Op, Result};

/// Returns the kernel description of a node that becomes a separate step. `blank`: for each state of a loop, whether
/// its initial value is never read (see `loops::blank_states`).
pub fn kernel_of(
    op: &Op,
    bias: bool,
    blank: Option<&Vec<bool>>,
    rounding: RoundingOptions,
    compiler: &NestedCompiler,
) -> Result<Kernel> {
    let alone = PipelineOptions { rounding, ..PipelineOptions::default() };
    let compile = |g: &Graph, options: &PipelineOptions| {
        (compiler.schedule)(&optimize_with(g, options.rounding.excess_precision)?.0, options)
    };
    Ok(match op {
        Op::While(w) => {
            let states = w.captures..w.body.params.len();
            let body = compile(
                &w.body,
                &PipelineOptions { donated: states.collect(), state_at: Some(w.captures), ..alone.clone() },
            )?;
            let cond = Arc::new(compile(&w.cond, &alone)?);
            let mut next = w.captures;
            let starts = blank.into_iter().flatten().map(|&blank| {
                next += !blank as usize;
                (!blank).then(|| next - 1)
            });
            let starts = starts.collect();
            Kernel::While { captures: w.captures, starts, cond, body: Arc::new(body) }
        }
        Op::Case(c) if let Some(found) = attention_of(c) => Kernel::Attention(found),
        Op::Case(c) if let Some(found) = matrix_of(c) => Kernel::Packed(found),
        Op::Case(c) => {
            let branches = c.branches.iter().map(|b| compile(b, &alone).map(Arc::new));
            Kernel::Case { branches: branches.collect::<Result<_>>()? }
        }
        op => Kernel::Op { op: op.clone(), bias },
    })
}

/// The weight matrix that a single-branch `case` dequantizes.
fn matrix_of(c: &Case) -> Option<DequantizeStep> {
    let [branch] = &c.branches[..] else { return None };
    let (unpack, at) = DequantizeWeights::of(branch)?;
    (unpack.elements() > 0).then_some(DequantizeStep { unpack, at, product: None })
}

/// The attention that a single-branch `case` computes, if a kernel for its element types exists.
fn attention_of(c: &Case) -> Option<AttentionMatch> {
    let [branch] = &c.branches[..] else { return None };
    let found = AttentionMatch::of(branch)?;
    let types = branch.param_types();
    let fits = |&i: &usize| {
        types[i].elements() > 0 && matches!(types[i].dtype, DType::F32 | DType::BF16 | DType::F16)
    };
    [found.q, found.k, found.v].iter().all(fits).then_some(found)
}
