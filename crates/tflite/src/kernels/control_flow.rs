//! Control flow and variables: IF, WHILE, CALL, CALL_ONCE, VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE. Variables exist
//! for one run of the model.

use super::call::OperatorCall;
use super::op_row::operators;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{Literal, Result, ensure};

operators! {
    Call "CALL" 31; options 16 [0 Graph]; versions 1 1; NoInt8; |call| graph(call, OptionField::Graph, 0)
    If "IF" 118; options 92 [0 Graph, 1 ElseGraph]; versions 1 1; NoInt8; choose
    While "WHILE" 119; options 93 [0 CondGraph, 1 BodyGraph]; versions 1 1; NoInt8; repeat
    CallOnce "CALL_ONCE" 129; options 103 [0 Graph]; versions 1 1; NoInt8; |call| graph(call, OptionField::Graph, 0)
    VarHandle "VAR_HANDLE" 142; options 111 [1 SharedName]; versions 1 1; NoInt8;
        |call| call.made_ints(&vec![name_of(call); call.output_type()?.elements()])
    ReadVariable "READ_VARIABLE" 143; options 112 []; versions 1 1; NoInt8; read
    AssignVariable "ASSIGN_VARIABLE" 144; options 113 []; versions 1 1; NoInt8; assign
}

fn name_of(call: &OperatorCall) -> i64 {
    call.operator.int(OptionField::SharedName)
}

fn operands(call: &OperatorCall, from: usize) -> Result<Vec<Literal>> {
    (from..call.operator.inputs.len()).map(|n| Ok(call.input(n)?.value.clone())).collect()
}

fn run(call: &OperatorCall, field: OptionField, inputs: &[Literal]) -> Result<Vec<Literal>> {
    let index = usize::try_from(call.operator.int(field)).ok();
    let index = index.ok_or_else(|| broken(format!("graph {} does not exist", call.operator.int(field))))?;
    (call.context.run_graph)(index, inputs)
}

fn graph(call: &OperatorCall, field: OptionField, from: usize) -> Result<Vec<Literal>> {
    run(call, field, &operands(call, from)?)
}

fn truth(found: &Literal) -> Result<bool> {
    ensure!(found.ty().elements() == 1, broken(format!("a condition is {}, expected one bool", found.ty())));
    Ok(found.get(0).as_bool())
}

fn choose(call: &OperatorCall) -> Result<Vec<Literal>> {
    let is_true = truth(call.input(0)?.value)?;
    graph(call, if is_true { OptionField::Graph } else { OptionField::ElseGraph }, 1)
}

fn repeat(call: &OperatorCall) -> Result<Vec<Literal>> {
    let mut values = operands(call, 0)?;
    // The interpreter limits the number of operators; a condition has at least one.
    loop {
        let condition = run(call, OptionField::CondGraph, &values)?;
        if !truth(condition.first().ok_or_else(|| broken("the condition has no output".into()))?)? {
            return Ok(values);
        }
        values = run(call, OptionField::BodyGraph, &values)?;
    }
}

fn handle(call: &OperatorCall) -> Result<i64> {
    let found = call.ints(&call.input(0)?)?;
    found.first().copied().ok_or_else(|| broken("the variable has no handle".into()))
}

fn read(call: &OperatorCall) -> Result<Vec<Literal>> {
    let variables = call.context.variables.borrow();
    let found = variables.get(&handle(call)?).cloned();
    Ok(vec![found.ok_or_else(|| broken("a variable is read before it is assigned".into()))?])
}

fn assign(call: &OperatorCall) -> Result<Vec<Literal>> {
    call.context.variables.borrow_mut().insert(handle(call)?, call.input(1)?.value.clone());
    Ok(Vec::new())
}
