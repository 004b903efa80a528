//! Monoids: reduction bodies that consist of one associative op (add, max, …).

use crate::graph::{Binary, Graph, GraphBuilder, Op};
use std::sync::Arc;
use systole_base::{DType, Scalar, TensorType};

/// A reduction body that compilers and derivatives recognize: one associative op of both arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Monoid {
    Add,
    Multiply,
    Minimum,
    Maximum,
    And,
    Or,
}

impl Monoid {
    /// Recognizes a body that is a single op of its two parameters.
    pub fn of(body: &Graph) -> Option<Monoid> {
        let [result] = body.results[..] else { return None };
        let node = body.node(result);
        let mut inputs = [*node.inputs.first()?, *node.inputs.get(1)?];
        let mut params = [*body.params.first()?, *body.params.get(1)?];
        inputs.sort();
        params.sort();
        if body.params.len() != 2 || inputs != params {
            return None;
        }
        match node.op {
            Op::Binary(Binary::Add) => Some(Monoid::Add),
            Op::Binary(Binary::Multiply) => Some(Monoid::Multiply),
            Op::Binary(Binary::Minimum) => Some(Monoid::Minimum),
            Op::Binary(Binary::Maximum) => Some(Monoid::Maximum),
            Op::Binary(Binary::And) => Some(Monoid::And),
            Op::Binary(Binary::Or) => Some(Monoid::Or),
            _ => None,
        }
    }

    /// Returns the element-wise op of the reduction.
    pub fn op(self) -> Binary {
        match self {
            Monoid::Add => Binary::Add,
            Monoid::Multiply => Binary::Multiply,
            Monoid::Minimum => Binary::Minimum,
            Monoid::Maximum => Binary::Maximum,
            Monoid::And => Binary::And,
            Monoid::Or => Binary::Or,
        }
    }

    /// Returns the identity element of the reduction.
    pub fn identity(self, dtype: DType) -> Scalar {
        match self {
            Monoid::Add | Monoid::Or => Scalar::of(dtype, 0.0),
            Monoid::Multiply => Scalar::of(dtype, 1.0),
            Monoid::Minimum => dtype.highest(),
            Monoid::Maximum => dtype.lowest(),
            // All bits set.
            Monoid::And => Scalar::from_bits(dtype, u64::MAX),
        }
    }

    /// Builds the reduction body `(a, b) → a op b` over scalars of `dtype`.
    pub fn body(self, dtype: DType) -> Arc<Graph> {
        let g = GraphBuilder::new("body");
        let a = g.parameter(TensorType::scalar(dtype), "a");
        let b = g.parameter(TensorType::scalar(dtype), "b");
        let y = g.emit(Op::Binary(self.op()), &[&a, &b]).remove(0);
        match g.finish(&[y]) {
            Ok(body) => body,
            Err(e) => systole_base::bug!("{self:?} over {dtype}: {e}"),
        }
    }
}
