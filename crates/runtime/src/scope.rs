//! `named_scope`: names groups of traced ops for profiles, like JAX's `named_scope`.

use std::cell::RefCell;
use systole_ir::GraphBuilder;

thread_local! {
    /// The graphs being traced on this thread, innermost last.
    static TRACED: RefCell<Vec<GraphBuilder>> = const { RefCell::new(Vec::new()) };
}

/// Pops the graph from the stack when tracing ends, also on panic.
struct TracingGuard;

impl Drop for TracingGuard {
    fn drop(&mut self) {
        TRACED.with_borrow_mut(Vec::pop);
    }
}

/// Runs `f` with `g` as the graph to which [`named_scope`] applies.
pub(crate) fn traced<R>(g: &GraphBuilder, f: impl FnOnce() -> R) -> R {
    TRACED.with_borrow_mut(|graphs| graphs.push(g.clone()));
    let _traced = TracingGuard;
    f()
}

/// Runs `f` and labels the ops that it traces with the layer name `name`, in profiles, traces and program locations.
/// Their gradients are shown as its backward pass. Like JAX's `jax.named_scope` and PyTorch's `record_function`. Nested
/// names are joined: `block/attention`.
///
/// Outside of [`jit`](crate::jit) it only runs `f`.
///
/// ```
/// use systole_runtime::{jit, named_scope};
/// use systole_ir::{DType::F32, Literal, Tensor};
/// let mlp = jit(|(x, w): (Tensor, Tensor)| {
///     let hidden = named_scope("hidden", || x.matmul(&w).tanh());
///     named_scope("norm", || (&hidden * &hidden).sum(&[0, 1]))
/// });
/// let ones = || Literal::from_slice([2, 2], &[1f32; 4]).unwrap().into();
/// let y = mlp.call((ones(), ones())).unwrap();
/// assert!((y.to_literal().unwrap().to_f32s()[0] - 3.7172).abs() < 1e-3);
/// ```
pub fn named_scope<R>(name: &str, f: impl FnOnce() -> R) -> R {
    match TRACED.with_borrow(|graphs| graphs.last().cloned()) {
        Some(g) => g.scope(name, f),
        None => f(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType::F32, TensorType, grad};

    #[test]
    fn ops_and_their_gradients_have_the_names_around_them() {
        let g = GraphBuilder::new("main");
        let (y, dx) = traced(&g, || {
            let x = g.parameter(TensorType::new(F32, [3]), "x");
            let y = named_scope("block", || {
                let inner = named_scope("inner", || x.exp());
                // A function traced inside another one has its own graph.
                let other = GraphBuilder::new("other");
                traced(&other, || named_scope("else", || other.scalar(F32, 1.0)));
                inner.tanh()
            });
            let y = y.sum(&[0]);
            let dx = grad(&y, &[&x]).remove(0);
            (y, dx)
        });
        let graph = g.finish(&[y, dx]).unwrap();
        let named = |path: &str, derivative: bool| {
            let is = |n: &&systole_ir::Node| graph.scope(n) == path && graph.is_derivative(n) == derivative;
            graph.nodes.iter().filter(is).count()
        };
        assert_eq!((named("block/inner", false), named("block", false)), (1, 1));
        assert!(named("block/inner", true) > 0 && named("block", true) > 0);
        assert!(graph.scopes.iter().all(|s| !s.contains("else")), "{:?}", graph.scopes);
        // Outside of tracing it only runs its closure.
        assert_eq!(named_scope("nowhere", || 7), 7);
    }
}
