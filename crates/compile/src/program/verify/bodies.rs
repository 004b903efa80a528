//! Programs inside kernels take and give what the kernel's step does.

use super::types::{holds, same};
use crate::program::kernel::{Kernel, Schedule, Step};
use crate::program::nested::Blocks;
use systole_ir::{DType, TensorType};

type Checked = Result<(), String>;

/// Checks the parameters and results of the bodies of a step; not what is in them.
pub fn check(step: &Step) -> Checked {
    let (ins, outs) = (&step.input_types[..], &step.output_types[..]);
    match &step.kernel {
        Kernel::While { captures, starts, cond, body } => {
            let states = body.params.get(*captures..).ok_or("a loop captures more than it takes")?;
            alike("the state", states, outs)?;
            alike("the next state", &results(body), outs)?;
            alike("the condition's parameter", &cond.params, &body.params)?;
            alike("the condition", &results(cond), &[TensorType::scalar(DType::Bool)])?;
            holds(starts.len() == outs.len(), || "a state without a start".into())?;
            alike("the capture", &body.params[..*captures], ins.get(..*captures).ok_or("no captures")?)?;
            let begun = starts.iter().zip(outs).filter_map(|(start, ty)| Some(((*start)?, ty)));
            for (start, ty) in begun {
                same("the start of a state", ins.get(start).ok_or("a state starts as no input")?, ty)?;
            }
            Ok(())
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
        _ => Ok(()),
    }
}

fn results(body: &Schedule) -> Vec<TensorType> {
    body.results.iter().map(|r| r.ty.clone()).collect()
}

fn alike(what: &str, have: &[TensorType], want: &[TensorType]) -> Checked {
    holds(have.len() == want.len(), || format!("{what}: {} of {}", have.len(), want.len()))?;
    have.iter().zip(want).try_for_each(|(have, want)| same(what, have, want))
}

fn blocks(b: &Blocks, ins: &[TensorType], outs: &[TensorType]) -> Checked {
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
