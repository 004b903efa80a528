//! Slices at places known only when running: dynamic_slice, dynamic_update_slice.

use super::*;
use systole_base::Dims;

/// `x: T[…], start₀: I[], … → T[sizes]`; starts are clamped so that the block lies inside. Spec: dynamic_slice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicSlice {
    /// Sizes of the block.
    pub sizes: Dims,
}

/// `x: T[…], update: T[…'], start₀: I[], … → T[…]`; starts are clamped likewise. Spec: dynamic_update_slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DynamicUpdateSlice;

impl OpRule for DynamicSlice {
    fn name(&self) -> &'static str {
        "dynamic_slice"
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
        Lowering::Move
    }
}

impl OpRule for DynamicUpdateSlice {
    fn name(&self) -> &'static str {
        "dynamic_update_slice"
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
        Lowering::Move
    }
}
