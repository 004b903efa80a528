//! Type checks shared by several kernels. Errors name the operand or result with its actual and expected type; the
//! verifier adds the step.

use super::map::{Map, MapLoad};
use systole_ir::{Op, TensorType};

/// Result of a type check; the error is its message.
pub type CheckResult = Result<(), String>;

/// Returns an error unless the condition holds.
pub fn holds(condition: bool, what: impl FnOnce() -> String) -> CheckResult {
    if condition { Ok(()) } else { Err(what()) }
}

/// Returns an error unless two types are equal.
pub fn same(what: &str, have: &TensorType, want: &TensorType) -> CheckResult {
    holds(have == want, || format!("{what} has type {have}, expected {want}"))
}

/// Returns an error unless two lists have the same types in the same order.
pub fn alike(what: &str, have: &[TensorType], want: &[TensorType]) -> CheckResult {
    holds(have.len() == want.len(), || format!("{what}: got {} types, expected {}", have.len(), want.len()))?;
    have.iter().zip(want).try_for_each(|(have, want)| same(what, have, want))
}

/// Checks that the results have the types that the op infers from its operands.
pub fn infers(op: &Op, operands: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let operands: Vec<&TensorType> = operands.iter().collect();
    let inferred = op.rule().infer(&operands).map_err(|c| format!("({}) {}", c.label, c.message))?;
    holds(inferred[..] == *outs, || format!("results have types {outs:?}, expected {inferred:?}"))
}

/// Like [`infers`]; with `bias`, the last operand is a vector along the result's last dimension.
pub fn op_with_bias(op: &Op, bias: bool, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let Some((last, operands)) = ins.split_last().filter(|_| bias) else { return infers(op, ins, outs) };
    let out = outs.first().ok_or("the result is missing")?;
    holds(out.shape.last() == Some(&last.elements()), || format!("bias {last} does not match result {out}"))?;
    infers(op, operands, outs)
}

/// Checks an element-wise program: loads are inside their arrays, and every instruction has operands and a result of
/// its types.
pub fn map(m: &Map, ins: &[TensorType]) -> CheckResult {
    for (e, load) in m.loads.iter().enumerate() {
        let MapLoad::Array { input, dtype, strides, offset } = load else { continue };
        let ty = ins.get(*input).ok_or_else(|| format!("register {e} reads a missing input"))?;
        holds(ty.dtype == *dtype, || format!("register {e} reads {ty} as {dtype}"))?;
        inside(m, strides, *offset, ty).map_err(|what| format!("register {e} {what}"))?;
    }
    for (k, instr) in m.instrs.iter().enumerate() {
        let e = m.loads.len() + k;
        holds(instr.args.iter().all(|&a| a < e), || format!("register {e} depends on later registers"))?;
        let scalars: Vec<TensorType> = instr.args.iter().map(|&a| TensorType::scalar(m.dtype(a))).collect();
        // The product has the type of the other operand.
        let operands = if instr.contraction.is_some() { &scalars[1..] } else { &scalars[..] };
        infers(&instr.op, operands, &[TensorType::scalar(instr.to)])
            .map_err(|what| format!("register {e}: {what}"))?;
        holds(instr.contraction.is_none() || scalars.len() == 3 && scalars[0] == scalars[1], || {
            format!("register {e} is no product and sum")
        })?;
        let first = &scalars[usize::from(matches!(instr.op, Op::Select(_)))];
        holds(first.dtype == instr.from, || {
            format!("register {e} has operand {first}, expected {}", instr.from)
        })?;
    }
    let registers = m.loads.len() + m.instrs.len();
    holds(m.stores.iter().all(|&e| e < registers), || "a missing register is stored".into())
}

/// Checks that strides and offset stay inside an array for the whole index space.
pub fn inside(m: &Map, strides: &[usize], offset: usize, ty: &TensorType) -> CheckResult {
    holds(strides.len() == m.shape.rank(), || "has strides of the wrong rank".into())?;
    let last: usize = m.shape.iter().zip(strides).map(|(n, stride)| n.saturating_sub(1) * stride).sum();
    let fits = m.shape.elements() == 0 || offset + last < ty.elements();
    holds(fits, || format!("accesses element {} of {ty}", offset + last))
}

/// Checks that each store of an element-wise program fills one output completely.
pub fn stores(m: &Map, outs: &[TensorType]) -> CheckResult {
    holds(m.stores.len() == outs.len(), || {
        format!("got {} stores for {} results", m.stores.len(), outs.len())
    })?;
    for (&e, ty) in m.stores.iter().zip(outs) {
        let fits = m.dtype(e) == ty.dtype && m.shape.elements() == ty.elements();
        holds(fits, || format!("register {e} over {} cannot be stored as {ty}", m.shape))?;
    }
    Ok(())
}

/// Checks reductions of an element-wise program's stores: the inputs are those of the program, then one initial value
/// for each output.
pub fn reduce(m: &Map, folded: &[bool], ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
    let n = m.stores.len();
    let operands = ins.len().checked_sub(n).ok_or("a reduction has no initial value")?;
    holds(folded.len() == m.shape.rank() && outs.len() == n, || {
        "a reduction has the wrong dimensions or number of results".into()
    })?;
    map(m, &ins[..operands])?;
    let kept: usize = m.shape.iter().zip(folded).filter(|(_, folded)| !**folded).map(|(n, _)| n).product();
    for ((&e, init), out) in m.stores.iter().zip(&ins[operands..]).zip(outs) {
        let of_one_type = m.dtype(e) == out.dtype && init.dtype == out.dtype && init.elements() == 1;
        holds(of_one_type && out.elements() == kept, || {
            format!("{kept} reductions with initial value {init} cannot give {out}")
        })?;
    }
    Ok(())
}
