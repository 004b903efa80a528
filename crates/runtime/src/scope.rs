//! Names for parts of functions that are being traced, as profiles show them.

use std::cell::RefCell;
use systole_ir::GraphBuilder;

thread_local! {
    /// The graphs that functions are traced into on this thread, the innermost last.
    static TRACED: RefCell<Vec<GraphBuilder>> = const { RefCell::new(Vec::new()) };
}

/// Takes its graph out again, whatever ends the tracing.
struct TracingGuard;

impl Drop for TracingGuard {
    fn drop(&mut self) {
        TRACED.with_borrow_mut(Vec::pop);
    }
}

/// Runs `f`, during which [`named_scope`] names what is added to `g`.
pub(crate) fn traced<R>(g: &GraphBuilder, f: impl FnOnce() -> R) -> R {
    TRACED.with_borrow_mut(|graphs| graphs.push(g.clone()));
    let _traced = TracingGuard;
    f()
}

/// Runs `f`; profiles, traces and programs' locations show the ops that it makes as those of a layer `name`, and their gradients
/// as its backward pass: JAX's `jax.named_scope`, PyTorch's `record_function`. Names within names are joined: `block/attention`.
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
                // A function that is traced meanwhile has a graph of its own.
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
        // Outside of a function that is traced it only runs what it is given.
        assert_eq!(named_scope("nowhere", || 7), 7);
    }
}
