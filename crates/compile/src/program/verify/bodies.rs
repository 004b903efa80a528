//! Verifies signatures of bodies: the parameters and results of nested programs match those of their step.

use crate::program::kernel::{Kernel, ProgramSchedule, Step};
use crate::program::nested_kernels::RowBlockLoop;
use crate::program::storage::ResultPlan;
use crate::program::type_check::{CheckResult, alike, holds, same};
use systole_ir::{DType, TensorType};

/// Checks that the bodies of a step have matching parameters and results; does not check their steps.
pub fn check(step: &Step) -> CheckResult {
    let (ins, outs) = (&step.input_types[..], &step.output_types[..]);
    match &step.kernel {
        Kernel::While { captures, starts, cond, body } => {
            let states = body.params.get(*captures..).ok_or("a loop has more captures than parameters")?;
            alike("loop state", states, outs)?;
            alike("next loop state", &results(body), outs)?;
            alike("parameter of the loop condition", &cond.params, &body.params)?;
            alike("result of the loop condition", &results(cond), &[TensorType::scalar(DType::Bool)])?;
            alike(
                "loop capture",
                &body.params[..*captures],
                ins.get(..*captures).ok_or("captures are missing")?,
            )?;
            starts_in_range(starts, *captures, ins, outs)?;
            states_stay(body, *captures)
        }
        Kernel::Case { branches } => {
            let (index, operands) = ins.split_last().ok_or("the branch index is missing")?;
            same("branch index", index, &TensorType::scalar(DType::I32))?;
            branches.iter().try_for_each(|branch| {
                alike("parameter of a branch", &branch.params, operands)?;
                alike("result of a branch", &results(branch), outs)
            })
        }
        Kernel::Blocks(b) => blocks(b, ins, outs),
        kernel => holds(kernel.bodies().is_empty(), || "the bodies of this kernel are not checked".into()),
    }
}

fn results(body: &ProgramSchedule) -> Vec<TensorType> {
    body.results.iter().map(|r| r.ty.clone()).collect()
}

/// Checks that each state has its own initial value among the inputs after the captures, or none.
fn starts_in_range(
    starts: &[Option<usize>],
    captures: usize,
    ins: &[TensorType],
    states: &[TensorType],
) -> CheckResult {
    holds(starts.len() == states.len(), || {
        "the number of initial values differs from the number of states".into()
    })?;
    let mut taken = vec![false; ins.len()];
    for (k, (start, ty)) in starts.iter().zip(states).enumerate() {
        let Some(start) = *start else { continue };
        let given = ins.get(start).filter(|_| start >= captures);
        let given = given.ok_or_else(|| {
            format!(
                "the initial value of state {k} is input {start}, which is not in {captures}..{}",
                ins.len()
            )
        })?;
        same("initial value of a state", given, ty)?;
        holds(!taken[start], || format!("input {start} is the initial value of two states"))?;
        taken[start] = true;
    }
    let unused = taken.iter().skip(captures).position(|taken| !taken);
    unused
        .map_or(Ok(()), |i| Err(format!("input {} is neither a capture nor an initial value", captures + i)))
}

/// Checks that result `k` of a body reuses the memory of its own parameter `first + k`, or of none. With that of
/// another state, the next iteration would read the wrong value.
fn states_stay(body: &ProgramSchedule, first: usize) -> CheckResult {
    let moved = |(k, r): (usize, &ResultPlan)| Some((k, r.reuse.filter(|&p| p != first + k)?));
    match body.results.iter().enumerate().find_map(moved) {
        Some((k, p)) => {
            Err(format!("result {k} of `{}` reuses parameter {p} instead of {}", body.name, first + k))
        }
        None => Ok(()),
    }
}

fn blocks(b: &RowBlockLoop, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let sums = b.sums.len();
    holds(b.inputs.len() == ins.len(), || "row blocks: the row size of an input is missing".into())?;
    holds(sums + b.outputs.len() == outs.len(), || "row blocks: the row size of a result is missing".into())?;
    alike("a sum", &outs[..sums], &b.sums)?;
    let whole = outs[sums..].iter().zip(&b.outputs).all(|(ty, row)| ty.bytes() == row * b.rows);
    holds(whole, || format!("row sizes of {:?} bytes do not match the results {outs:?}", b.outputs))?;
    let rest = b.rest.iter().map(|body| (body, b.rows % b.block));
    for (body, rows) in std::iter::once((&b.body, b.block)).chain(rest) {
        let (so_far, operands) =
            body.params.split_at_checked(sums).ok_or("a row block has fewer parameters than sums")?;
        alike("running sum of a row block", so_far, &b.sums)?;
        states_stay(body, 0)?;
        let (added, made) = (results(body), &b.outputs);
        holds(added.len() == outs.len() && operands.len() == ins.len(), || {
            format!(
                "a row block has {} parameters and {} results, which do not match its step",
                body.params.len(),
                added.len()
            )
        })?;
        alike("sum of a row block", &added[..sums], &b.sums)?;
        let read = operands.iter().zip(&b.inputs).zip(ins);
        let reads = |((param, row), ty): ((&TensorType, &Option<usize>), &TensorType)| {
            param.bytes() == row.map_or(ty.bytes(), |row| row * rows)
        };
        let gives = added[sums..].iter().zip(made).all(|(ty, row)| ty.bytes() == row * rows);
        holds({ read }.all(reads) && gives, || {
            format!("operand or result sizes do not match a block of {rows} rows")
        })?;
    }
    Ok(())
}
