//! Recurrent layers that stand in a graph one step after the other, as the operators that ONNX has for them.

use super::emit::{Emit, Order};
use crate::model::{Attribute, Node};
use std::ops::Range;
use systole_base::{Literal, Result};
use systole_tflite::Activation;

/// Operators of a graph that are one LSTM or GRU, with the activations that these have in ONNX where none are named, from states of 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// Those operators: all of them, and nothing else reads what they hand on to each other.
    pub operators: Range<usize>,
    /// The tensor of the sequences, `[1, S, K]`.
    pub input: usize,
    /// The tensor that the layer gives, `[1, H]` or `[1, S, H]`.
    pub output: usize,
    /// Which one it is.
    pub kind: RecurrentKind,
    /// Whether it goes from the last step to the first.
    pub backwards: bool,
    /// Whether it gives the states of all steps.
    pub sequences: bool,
    /// Whether what a layer that goes backwards gives stands in its own order; otherwise in that of the input.
    pub in_own_order: bool,
    /// W, R and B as ONNX has them: `f32[1, gates · H, K]`, `f32[1, gates · H, H]`, `f32[1, 2 · gates · H]`.
    pub weights: [Literal; 3],
}

/// A recurrent operator of ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentKind {
    /// Gates in the order input, output, forget, cell.
    Lstm,
    /// Gates in the order update, reset, new.
    Gru {
        /// Whether the reset gate takes of the product with the state, not of the state.
        linear_before_reset: bool,
    },
}

/// The operator, between `[N, S, K]` and `[N, S, H]` or `[N, H]`.
pub(super) fn recurrent(e: &mut Emit, of: &Recurrent) -> Result<()> {
    let own = e.names[of.output].clone();
    let named = |what: &str| format!("{own}/{what}");
    let x = e.real(of.input, Order::Plain)?;
    let steps = e.unique(&named("by_step"));
    e.push(Node::new("Transpose", [x], steps.clone()).ints("perm", [1, 0, 2]));
    let mut inputs = vec![steps];
    for (name, value) in ["W", "R", "B"].iter().zip(&of.weights) {
        inputs.push(e.constant(&named(name), value.clone()));
    }
    let units = of.weights[1].shape()[2];
    let op = if of.kind == RecurrentKind::Lstm { "LSTM" } else { "GRU" };
    let made = e.unique(&named("states"));
    let mut node = Node::new(op, inputs, made.clone()).with("hidden_size", Attribute::Int(units as i64));
    if of.backwards {
        node = node.with("direction", Attribute::Text("reverse".into()));
    }
    if of.kind == (RecurrentKind::Gru { linear_before_reset: true }) {
        node = node.with("linear_before_reset", Attribute::Int(1));
    }
    // The last state is the second output.
    if !of.sequences {
        node.outputs.insert(0, String::new());
    }
    e.push(node);
    // What follows may have made an activation part of the last operator.
    let maker = e.from.operators[of.operators.clone()].iter().rev().find(|o| o.outputs.contains(&of.output));
    let activation = maker.map_or(Ok(Activation::None), |o| o.activation())?;
    if !of.sequences {
        let first = e.list(&named("first"), &[0])?;
        return e.finish(of.output, Order::Plain, activation, |out| Node::new("Squeeze", [made, first], out));
    }
    // [S, 1, N, H]
    let mut seen = e.unique(&named("by_sample"));
    e.push(Node::new("Transpose", [made], seen.clone()).ints("perm", [2, 0, 1, 3]));
    if of.backwards && of.in_own_order {
        let (from, to) = (e.list(&named("last"), &[-1])?, e.list(&named("before_first"), &[i64::MIN + 1])?);
        let (axis, by) = (e.list(&named("axis"), &[1])?, e.list(&named("back"), &[-1])?);
        seen = e.made(&named("turned"), "Slice", [&*seen, &*from, &*to, &*axis, &*by]);
    }
    let direction = e.list(&named("direction"), &[2])?;
    e.finish(of.output, Order::Plain, activation, |out| Node::new("Squeeze", [seen, direction], out))
}
