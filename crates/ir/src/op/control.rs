//! Ops whose bodies run any number of times: while, case; and optimization_barrier.
//!
//! Operands that the bodies capture come first among the operands; bodies take them as their first parameters.

use super::*;
use std::sync::Arc;

/// `captures…, state₀, … → state₀, …`: runs `body` while `cond`. Spec: while.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct While {
    /// How many leading operands are captures, passed to both bodies and not changed.
    pub captures: usize,
    /// `(captures…, state…) → bool[]`.
    pub cond: Arc<Graph>,
    /// `(captures…, state…) → state…`.
    pub body: Arc<Graph>,
    /// Number of trips when it is known while building; its derivative needs it.
    pub trip_count: Option<usize>,
}

/// `index: i32[], captures… → results…`: runs the branch that `index` names, the last when it is out of range.
/// Spec: case.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// `(captures…) → results…`, all of one type.
    pub branches: Vec<Arc<Graph>>,
}

/// `x₀, … → x₀, …`: the same values; keeps passes from moving work across it. Spec: optimization_barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OptimizationBarrier {
    /// Whether gradients stop here.
    pub stop_gradient: bool,
}

impl OpRule for While {
    fn name(&self) -> &'static str {
        "while"
    }
    fn infer(&self, _args: &[&TensorType]) -> Result<Outs, Constraint> {
        Err(Constraint::new("-", "is not built yet"))
    }
    fn eval(&self, _cx: &mut EvalCx, _args: &[&Literal], _outs: &Outs) -> Result<Vec<Literal>> {
        systole_base::bug!("not built yet")
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero; x.len()]
    }
    fn lower(&self) -> Lowering {
        Lowering::Control
    }
}

impl OpRule for Case {
    fn name(&self) -> &'static str {
        "case"
    }
    fn infer(&self, _args: &[&TensorType]) -> Result<Outs, Constraint> {
        Err(Constraint::new("-", "is not built yet"))
    }
    fn eval(&self, _cx: &mut EvalCx, _args: &[&Literal], _outs: &Outs) -> Result<Vec<Literal>> {
        systole_base::bug!("not built yet")
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero; x.len()]
    }
    fn lower(&self) -> Lowering {
        Lowering::Control
    }
}

impl OpRule for OptimizationBarrier {
    fn name(&self) -> &'static str {
        "optimization_barrier"
    }
    fn infer(&self, _args: &[&TensorType]) -> Result<Outs, Constraint> {
        Err(Constraint::new("-", "is not built yet"))
    }
    fn eval(&self, _cx: &mut EvalCx, _args: &[&Literal], _outs: &Outs) -> Result<Vec<Literal>> {
        systole_base::bug!("not built yet")
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero; x.len()]
    }
    fn lower(&self) -> Lowering {
        Lowering::Map
    }
}
