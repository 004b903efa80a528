//! Constant evaluation while a graph is built: values that depend only on constants, such as computed shapes.

use super::{EvalCx, LoweringClass};
use crate::graph::{Node, Op, Tensor, ValueId};
use std::collections::HashMap;
use systole_base::{Literal, Scalar, TensorType};

/// Maximum number of nodes visited, and of elements per value: shapes are small.
const MOST_NODES: usize = 1 << 14;
const MOST_ELEMENTS: usize = 1 << 16;

/// Identifies a node of one of the graphs under construction.
type GraphNodeKey = (usize, u32);

impl Tensor {
    /// `→ T[]`: the value of all elements, if the tensor is a constant of equal elements or broadcast from one. Returns
    /// `None` otherwise. For arrays of any size, unlike [`known`](Tensor::known).
    ///
    /// ```
    /// use systole_ir::{DType::F32, GraphBuilder, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.scalar(F32, 2.5).broadcast_in_dim(&[1000, 1000].into(), &[]);
    /// assert_eq!(x.known_splat().map(|v| v.as_f64()), Some(2.5));
    /// assert_eq!(g.parameter(TensorType::new(F32, [4]), "x").known_splat(), None);
    /// ```
    pub fn known_splat(&self) -> Option<Scalar> {
        let mut id = self.id();
        while !self.is_poisoned() {
            let found = self.builder().with_node(id.index(), |n| match &n.op {
                Op::Constant(c) if c.value.ty().elements() > 0 && c.value.is_splat() => Ok(c.value.get(0)),
                Op::BroadcastInDim(_) => Err(Some(n.inputs[0])),
                _ => Err(None),
            });
            match found {
                Ok(value) => return Some(value),
                Err(next) => id = next?,
            }
        }
        None
    }

    /// `→ T[…]`: evaluates the tensor if it depends only on constants, through small arrays and ops without regions.
    /// Returns `None` otherwise.
    ///
    /// ```
    /// use systole_ir::{DType::{F32, I32}, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::new(F32, [4]), "x");
    /// let n = g.constant(Literal::from_slice([2], &[2i32, 3])?);
    /// assert_eq!((&n + &n).known().map(|l| l.to_f64s()), Some(vec![4.0, 6.0]));
    /// assert_eq!(x.known(), None);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn known(&self) -> Option<Literal> {
        let mut values: HashMap<GraphNodeKey, Vec<Literal>> = HashMap::new();
        let mut open = vec![self.clone()];
        let mut looked = 0;
        while let Some(t) = open.last().cloned() {
            looked += 1;
            if looked > MOST_NODES || t.is_poisoned() {
                return None;
            }
            let key = key(&t);
            if values.contains_key(&key) {
                open.pop();
                continue;
            }
            let node = t.builder().with_node(t.id().index(), Node::clone);
            let inputs = inputs_of(&t, &node)?;
            let missing = inputs.iter().filter(|i| !values.contains_key(&self::key(i)));
            let missing: Vec<Tensor> = missing.cloned().collect();
            if missing.is_empty() {
                let found = inputs.iter().map(|i| values.get(&self::key(i))?.get(i.id().out as usize));
                let found = found.collect::<Option<Vec<&Literal>>>()?;
                let value = match &node.op {
                    Op::Parameter(_) => vec![found.first().map(|&l| l.clone())?],
                    op => op.rule().eval(&mut EvalCx::default(), &found, &node.outs).ok()?,
                };
                values.insert(key, value);
                open.pop();
            }
            open.extend(missing);
        }
        values.get(&key(self))?.get(self.id().out as usize).cloned()
    }
}

fn key(t: &Tensor) -> GraphNodeKey {
    (t.builder().address(), t.id().node)
}

/// Values that a node depends on: its operands, or the outer value of a captured parameter. `None` if the node is not
/// constant or too large.
fn inputs_of(t: &Tensor, node: &Node) -> Option<Vec<Tensor>> {
    // Loops over an array without elements run over its other dimensions.
    let extent = |ty: &TensorType| ty.shape.iter().fold(1usize, |n, &d| n.saturating_mul(d.max(1)));
    if node.outs.iter().any(|ty| extent(ty) > MOST_ELEMENTS) || !node.op.rule().regions().is_empty() {
        return None;
    }
    match &node.op {
        Op::Parameter(_) => Some(vec![t.builder().captured_as(t.id())?]),
        // Contractions are slow, and shapes do not depend on them.
        op if op.rule().lower() == LoweringClass::Contract => None,
        op if op.rule().lower() == LoweringClass::Exchange => None,
        _ => Some(node.inputs.iter().map(|&v: &ValueId| t.builder().value(v)).collect()),
    }
}
