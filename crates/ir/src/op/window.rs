//! Sliding windows: reduce_window (pooling, cumulative folds) and its scatter-like inverse select_and_scatter.

use super::*;
use std::sync::Arc;
use systole_base::Dims;

/// Where a window lies and how it moves, for each dimension of the operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// Sizes.
    pub dimensions: Dims,
    /// Steps.
    pub strides: Dims,
    /// Holes between operand elements: 1 is none.
    pub base_dilations: Dims,
    /// Holes between window elements: 1 is none.
    pub window_dilations: Dims,
    /// Initial values before and after; may be negative.
    pub padding: Vec<[i64; 2]>,
}

/// `x₀: T₀[…], …, init₀: T₀[], … → T₀[…'], …`: folds each window with `body`. Spec: reduce_window.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceWindow {
    /// The window.
    pub window: Window,
    /// `(acc₀, …, x₀, …) → (acc₀, …)` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…], source: T[…'], init: T[] → T[…]`: in each window picks one element by `select` and folds the source
/// element into its place by `scatter`. Spec: select_and_scatter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SelectAndScatter {
    /// Window sizes.
    pub dimensions: Dims,
    /// Window steps.
    pub strides: Dims,
    /// Padding before and after.
    pub padding: Vec<[i64; 2]>,
    /// `(kept, candidate) → bool`: true keeps.
    pub select: Arc<Graph>,
    /// `(acc, source) → acc`.
    pub scatter: Arc<Graph>,
}

impl OpRule for ReduceWindow {
    fn name(&self) -> &'static str {
        "reduce_window"
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
        Lowering::Fold
    }
}

impl OpRule for SelectAndScatter {
    fn name(&self) -> &'static str {
        "select_and_scatter"
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
        Lowering::Fold
    }
}
