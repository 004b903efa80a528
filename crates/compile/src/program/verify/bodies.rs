//! Signatures of bodies: the parameters and results of nested programs fit the operands and results of their step.

use crate::program::kernel::{Kernel, ProgramSchedule, Step};
use crate::program::nested_kernels::RowBlockLoop;
use crate::program::storage::ResultPlan;
use crate::program::type_check::{CheckResult, alike, holds, same};
use systole_ir::{DType, TensorType};

/// Checks the parameters and results of the bodies of a step, not their steps.
pub fn check(step: &Step) -> CheckResult {
    let (ins, outs) = (&step.input_types[..], &step.output_types[..]);
    match &step.kernel {
        Kernel::While { captures, starts, cond, body } => {
            let states = body.params.get(*captures..).ok_or("a loop captures more than it takes")?;
            alike("the state", states, outs)?;
            alike("the next state", &results(body), outs)?;
            alike("the condition's parameter", &cond.params, &body.params)?;
            alike("the condition", &results(cond), &[TensorType::scalar(DType::Bool)])?;
            alike("the capture", &body.params[..*captures], ins.get(..*captures).ok_or("no captures")?)?;
            starts_in_range(starts, *captures, ins, outs)?;
            states_stay(body, *captures)
        }
        Kernel::Case { branches } => {
            let (index, operands) = ins.split_last().ok_or("no index of a branch")?;
            same("the index", index, &TensorType::scalar(DType::I32))?;
            branches.iter().try_for_each(|branch| {
                alike("a branch's parameter", &branch.params, operands)?;
                alike("a branch's result", &results(branch), outs)
            })
        }
        Kernel::Blocks(b) => blocks(b, ins, outs),
        kernel => holds(kernel.bodies().is_empty(), || "bodies that nothing checks".into()),
    }
}

fn results(body: &ProgramSchedule) -> Vec<TensorType> {
    body.results.iter().map(|r| r.ty.clone()).collect()
}

/// Each state has its own initial value among the inputs after the captures, or none.
fn starts_in_range(
    starts: &[Option<usize>],
    captures: usize,
    ins: &[TensorType],
    states: &[TensorType],
) -> CheckResult {
    holds(starts.len() == states.len(), || "a state without a start".into())?;
    let mut taken = vec![false; ins.len()];
    for (k, (start, ty)) in starts.iter().zip(states).enumerate() {
        let Some(start) = *start else { continue };
        let given = ins.get(start).filter(|_| start >= captures);
        let given = given.ok_or_else(|| {
            format!("state {k} starts as input {start}, which is not in {captures}..{}", ins.len())
        })?;
        same("the start of a state", given, ty)?;
        holds(!taken[start], || format!("input {start} is the start of two states"))?;
        taken[start] = true;
    }
    let unused = taken.iter().skip(captures).position(|taken| !taken);
    unused.map_or(Ok(()), |i| Err(format!("input {} is neither a capture nor a start", captures + i)))
}

/// Result `k` of a body takes the memory of its own parameter `first + k`, or of none. In that of another state, the
/// next iteration would read the wrong value.
fn states_stay(body: &ProgramSchedule, first: usize) -> CheckResult {
    let moved = |(k, r): (usize, &ResultPlan)| Some((k, r.reuse.filter(|&p| p != first + k)?));
    match body.results.iter().enumerate().find_map(moved) {
        Some((k, p)) => Err(format!("result {k} of `{}` takes parameter {p}, not {}", body.name, first + k)),
        None => Ok(()),
    }
}

fn blocks(b: &RowBlockLoop, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let sums = b.sums.len();
    holds(b.inputs.len() == ins.len(), || "inputs of blocks without a size".into())?;
    holds(sums + b.outputs.len() == outs.len(), || "results of blocks without a size".into())?;
    alike("a sum", &outs[..sums], &b.sums)?;
    let whole = outs[sums..].iter().zip(&b.outputs).all(|(ty, row)| ty.bytes() == row * b.rows);
    holds(whole, || format!("rows of {:?} bytes do not make up {outs:?}", b.outputs))?;
    let rest = b.rest.iter().map(|body| (body, b.rows % b.block));
    for (body, rows) in std::iter::once((&b.body, b.block)).chain(rest) {
        let (so_far, operands) =
            body.params.split_at_checked(sums).ok_or("a block does not take the sums so far")?;
        alike("a sum so far", so_far, &b.sums)?;
        states_stay(body, 0)?;
        let (added, made) = (results(body), &b.outputs);
        holds(added.len() == outs.len() && operands.len() == ins.len(), || {
            format!("a block takes {} and gives {}", body.params.len(), added.len())
        })?;
        alike("a block's sum", &added[..sums], &b.sums)?;
        let read = operands.iter().zip(&b.inputs).zip(ins);
        let reads = |((param, row), ty): ((&TensorType, &Option<usize>), &TensorType)| {
            param.bytes() == row.map_or(ty.bytes(), |row| row * rows)
        };
        let gives = added[sums..].iter().zip(made).all(|(ty, row)| ty.bytes() == row * rows);
        holds({ read }.all(reads) && gives, || format!("a block of {rows} rows has other sizes"))?;
    }
    Ok(())
}
