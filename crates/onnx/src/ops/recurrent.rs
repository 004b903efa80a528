//! Imports and exports ONNX LSTM and GRU, and imports RNN, as loops over time steps, in one or both directions.

use super::call::{NodeCall, RuleResult, unsupported};
use super::elementwise::several_outputs;
use super::graph_builder::{ChannelOrder, OnnxBuilder};
use super::op_row::operators;
use crate::model::{OnnxAttribute, OnnxNode, broken};
use std::ops::Range;
use systole_base::{Literal, Result};
use systole_ir::{Tensor, control_builders};
use systole_tflite::FusedActivation;

operators! {
    "GRU" 1..22: gru;
    "LSTM" 1..22: lstm;
    "RNN" 1..22: rnn;
}

/// Description of a recurrent operator.
struct CellSpec {
    name: &'static str,
    /// Number of gates of `H` columns each.
    gates: usize,
    /// Operands with initial states, the output first.
    states: &'static [usize],
    /// Unsupported operands and attributes.
    unread: (&'static [usize], &'static [&'static str]),
    activations: &'static [&'static str],
    /// Computes a step after the input products.
    step: fn(&CellWeights, &[Tensor], &Tensor, usize) -> Vec<Tensor>,
    /// Whether a gate's recurrent bias may be added to its input bias.
    is_plain_sum: fn(gate: usize, linear: bool) -> bool,
}

/// Imports LSTM: `x: [S, N, I]`, weights `[D, 4H, I]` and `[D, 4H, H]` in the order input, output, forget, cell → `[S,
/// D, N, H]`, and the final states `[D, N, H]`.
fn lstm(c: &mut NodeCall) -> RuleResult {
    let kind = CellSpec {
        name: "LSTM",
        gates: 4,
        states: &[5, 6],
        unread: (&[4, 7], &["clip", "input_forget", "layout"]),
        activations: &["Sigmoid", "Tanh", "Tanh"],
        step: |weights, states, x, h| {
            let all = x + weights.of_state(&states[0], &weights.r);
            let gate = |i: usize| all.slice_dim(1, i * h, (i + 1) * h);
            let (input, output, forget) = (gate(0).logistic(), gate(1).logistic(), gate(2).logistic());
            let cell = forget * &states[1] + input * gate(3).tanh();
            vec![output * cell.tanh(), cell]
        },
        is_plain_sum: |_, _| true,
    };
    over_steps(c, &kind)
}

/// Imports GRU: `x: [S, N, I]`, weights `[D, 3H, I]` and `[D, 3H, H]` in the order update, reset, new → `[S, D, N, H]`,
/// and the final state `[D, N, H]`. With `linear_before_reset` (PyTorch, Keras's `reset_after`) the reset gate is
/// applied after the product with the state, otherwise before it.
fn gru(c: &mut NodeCall) -> RuleResult {
    let kind = CellSpec {
        name: "GRU",
        gates: 3,
        states: &[5],
        unread: (&[4], &["clip", "layout"]),
        activations: &["Sigmoid", "Tanh"],
        step: |weights, states, x, h| {
            let state = &states[0];
            let part = |t: &Tensor, from: usize, to: usize| t.slice_dim(1, from * h, to * h);
            let rows = |from: usize, to: usize| weights.r.slice_dim(0, from * h, to * h);
            let gates = part(x, 0, 2) + weights.of_state(state, &rows(0, 2));
            let (update, reset) = (part(&gates, 0, 1).logistic(), part(&gates, 1, 2).logistic());
            let of_new = |state: &Tensor| weights.of_state(state, &rows(2, 3));
            let seen = match (weights.linear, &weights.inner_bias) {
                (true, Some(bias)) => reset * (of_new(state) + bias.slice_dim(0, 2 * h, 3 * h)),
                (true, None) => reset * of_new(state),
                (false, _) => of_new(&(reset * state)),
            };
            let new = (part(x, 2, 3) + seen).tanh();
            vec![&new + update * (state - &new)]
        },
        is_plain_sum: |gate, linear| gate < 2 || !linear,
    };
    over_steps(c, &kind)
}

/// Imports RNN with tanh or ReLU: `x: [S, N, I]`, weights `[D, H, I]` and `[D, H, H]` → `[S, D, N, H]`, and the final
/// state `[D, N, H]`.
fn rnn(c: &mut NodeCall) -> RuleResult {
    let is_relu = match c.attribute("activations") {
        Some(OnnxAttribute::Texts(t)) => t.iter().all(|t| t == "Relu"),
        _ => false,
    };
    let kind = CellSpec {
        name: "RNN",
        gates: 1,
        states: &[5],
        unread: (&[4], &["clip", "layout"]),
        activations: if is_relu { &["Relu"] } else { &["Tanh"] },
        step: match is_relu {
            true => |weights, states, x, _| vec![(x + weights.of_state(&states[0], &weights.r)).relu()],
            false => |weights, states, x, _| vec![(x + weights.of_state(&states[0], &weights.r)).tanh()],
        },
        is_plain_sum: |_, _| true,
    };
    over_steps(c, &kind)
}

fn over_steps(c: &mut NodeCall, kind: &CellSpec) -> RuleResult {
    let x = c.tensor(0)?;
    let (w, r) = (c.tensor(1)?, c.tensor(2)?);
    let (&[steps, n, _], &[directions, _, h]) = (x.shape().dims(), r.shape().dims()) else {
        return Err(broken(format!(
            "{}: input {} does not match recurrent weights {}",
            a(kind),
            x.ty(),
            r.ty()
        )));
    };
    plain_form(c, kind, h)?;
    let linear = kind.name == "GRU" && c.is("linear_before_reset", false)?;
    let bias = c.optional(3)?;
    let zeros = c.scalar(x.dtype(), 0.0).broadcast_to(&[directions, n, h].into());
    let mut states = Vec::new();
    for &i in kind.states {
        states.push(c.optional(i)?.unwrap_or_else(|| zeros.clone()));
    }
    let word = c.word("direction", "forward")?;
    let is_known = matches!((word.as_str(), directions), ("forward" | "reverse", 1) | ("bidirectional", 2));
    if !is_known || steps == 0 {
        return Err(broken(format!(
            "{}: unsupported sequence of {steps} steps, direction {word}, {directions} directions",
            a(kind)
        )));
    }
    for t in [&w].into_iter().chain(&states).chain(&bias) {
        if t.shape().first() != Some(&directions) {
            return Err(broken(format!(
                "{} with {directions} directions has an operand {}",
                a(kind),
                t.ty()
            )));
        }
    }
    let mut outputs = Vec::new();
    let mut last = vec![Vec::new(); states.len()];
    for d in 0..directions {
        let own = |t: &Tensor| {
            let dims = t.shape()[1..].to_vec();
            t.slice_dim(0, d, d + 1).reshape(dims)
        };
        let backwards = word == "reverse" || d == 1;
        let seen = if backwards { x.reverse(&[0]) } else { x.clone() };
        let weights = CellWeights::new(kind, [own(&w), own(&r)], bias.as_ref().map(own), linear, h)?;
        let (ys, ends) = direction(kind, &seen, &weights, &states.iter().map(own).collect::<Vec<_>>(), h)?;
        let ys = if backwards { ys.reverse(&[0]) } else { ys };
        outputs.push(ys.reshape([steps, 1, n, h]));
        last.iter_mut().zip(ends).for_each(|(all, end)| all.push(end.reshape([1, n, h])));
    }
    let joined = |all: &[Tensor], dim: usize| match all {
        [one] => one.clone(),
        all => Tensor::concatenate(&all.iter().collect::<Vec<_>>(), dim),
    };
    several_outputs(
        std::iter::once(joined(&outputs, 1)).chain(last.iter().map(|all| joined(all, 0))).collect(),
    )
}

/// Returns `an LSTM` or `a GRU`.
fn a(kind: &CellSpec) -> String {
    format!("{} {}", if kind.name.starts_with(['L', 'R']) { "an" } else { "a" }, kind.name)
}

/// Rejects variants that PyTorch does not export.
fn plain_form(c: &NodeCall, kind: &CellSpec, h: usize) -> Result<()> {
    let stated = c.int("hidden_size", h as i64)?;
    if usize::try_from(stated) != Ok(h) {
        return Err(broken(format!("hidden_size is {stated}, but the recurrent weights have {h}")));
    }
    let usual = |a: &OnnxAttribute| match a {
        OnnxAttribute::Texts(t) => t.chunks(kind.activations.len()).all(|t| t == kind.activations),
        _ => false,
    };
    let (operands, options) = kind.unread;
    let is_set = |name: &&&str| c.attribute(name).is_some_and(|a| !matches!(a, OnnxAttribute::Int(0)));
    let mut set: Vec<&str> = options.iter().filter(is_set).copied().collect();
    if !c.attribute("activations").is_none_or(usual) {
        set.push("activations");
    }
    if !set.is_empty() || operands.iter().any(|&i| c.has(i)) {
        let which = if set.is_empty() {
            "an optional operand".to_string()
        } else {
            format!("attribute {}", set.join(", "))
        };
        return Err(unsupported(format!(
            "{} with custom activations, peepholes, clipping, sequence lengths or layout is not supported",
            a(kind)
        ))
        .because(format!("the node has {which}"))
        .hint(format!("export the recurrent layer like PyTorch's nn.{}", kind.name)));
    }
    Ok(())
}

struct CellWeights {
    w: Tensor,
    r: Tensor,
    /// Bias of the input products: `[gates · H]`.
    bias: Option<Tensor>,
    /// Separate bias of the state products: `[gates · H]`.
    inner_bias: Option<Tensor>,
    /// Whether the reset gate is applied after the product.
    linear: bool,
}

impl CellWeights {
    fn new(
        kind: &CellSpec,
        [w, r]: [Tensor; 2],
        bias: Option<Tensor>,
        linear: bool,
        h: usize,
    ) -> Result<CellWeights> {
        let all = kind.gates * h;
        if r.shape().dims() != [all, h] || w.rank() != 2 || w.shape()[0] != all {
            return Err(broken(format!("{} has invalid weights {} and {}", a(kind), w.ty(), r.ty())));
        }
        let Some(both) = bias else { return Ok(CellWeights { w, r, bias: None, inner_bias: None, linear }) };
        if both.shape().dims() != [2 * all] {
            return Err(broken(format!("{} has an invalid bias {}", a(kind), both.ty())));
        }
        let inner = both.slice_dim(0, all, 2 * all);
        let parts: Vec<Tensor> = (0..kind.gates)
            .map(|gate| {
                let own = both.slice_dim(0, gate * h, (gate + 1) * h);
                match (kind.is_plain_sum)(gate, linear) {
                    true => own + inner.slice_dim(0, gate * h, (gate + 1) * h),
                    false => own,
                }
            })
            .collect();
        let bias = Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 0);
        Ok(CellWeights { w, r, bias: Some(bias), inner_bias: Some(inner), linear })
    }

    /// Multiplies `state: [N, H], rows: [K, H] → [N, K]`.
    fn of_state(&self, state: &Tensor, rows: &Tensor) -> Tensor {
        state.dot_general(rows, &[], &[], &[1], &[1])
    }
}

/// Runs all steps of one direction: outputs and final states.
fn direction(
    kind: &CellSpec,
    x: &Tensor,
    weights: &CellWeights,
    states: &[Tensor],
    h: usize,
) -> Result<(Tensor, Vec<Tensor>)> {
    // Input products of all steps at once.
    let mut gates = x.dot_general(&weights.w, &[], &[], &[2], &[1]);
    if let Some(bias) = &weights.bias {
        gates = gates + bias;
    }
    let states: Vec<&Tensor> = states.iter().collect();
    let (last, mut ys) = control_builders::scan(&states, &[&gates], |carry, x| {
        let next = (kind.step)(weights, carry, &x[0], h);
        let y = next[0].clone();
        (next, vec![y])
    });
    match (ys.pop(), last.len() == states.len()) {
        (Some(ys), true) => Ok((ys, last)),
        _ => Err(broken(format!("cannot build {}", a(kind)))),
    }
}

/// Operators of a TFLite graph that form one LSTM or GRU with ONNX's default activations and zero initial states.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxRecurrent {
    /// Range of the operators; nothing outside reads their intermediate results.
    pub operators: Range<usize>,
    /// Input tensor of the sequences, `[1, S, K]`.
    pub input: usize,
    /// Output tensor, `[1, H]` or `[1, S, H]`.
    pub output: usize,
    /// LSTM or GRU.
    pub kind: OnnxRecurrentKind,
    /// Whether it runs from the last step to the first.
    pub backwards: bool,
    /// Whether it returns the states of all steps.
    pub sequences: bool,
    /// Whether a reversed layer returns its steps in processing order; otherwise in input order.
    pub in_own_order: bool,
    /// ONNX operands W, R and B: `f32[1, gates · H, K]`, `f32[1, gates · H, H]`, `f32[1, 2 · gates · H]`.
    pub weights: [Literal; 3],
}

/// Kind of a recurrent ONNX operator: LSTM or GRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnnxRecurrentKind {
    /// Gates in the order input, output, forget, cell.
    Lstm,
    /// Gates in the order update, reset, new.
    Gru {
        /// Whether the reset gate is applied after the product with the state.
        linear_before_reset: bool,
    },
}

/// Exports the operator from `[N, S, K]` to `[N, S, H]` or `[N, H]`.
pub(crate) fn write_recurrent(e: &mut OnnxBuilder, of: &OnnxRecurrent) -> Result<()> {
    let own = e.names[of.output].clone();
    let named = |what: &str| format!("{own}/{what}");
    let x = e.real(of.input, ChannelOrder::Plain)?;
    let steps = e.unique(&named("by_step"));
    e.push(OnnxNode::new("Transpose", [x], steps.clone()).ints("perm", [1, 0, 2]));
    let mut inputs = vec![steps];
    for (name, value) in ["W", "R", "B"].iter().zip(&of.weights) {
        inputs.push(e.constant(&named(name), value.clone()));
    }
    let units = of.weights[1].shape()[2];
    let op = if of.kind == OnnxRecurrentKind::Lstm { "LSTM" } else { "GRU" };
    let made = e.unique(&named("states"));
    let mut node =
        OnnxNode::new(op, inputs, made.clone()).with("hidden_size", OnnxAttribute::Int(units as i64));
    if of.backwards {
        node = node.with("direction", OnnxAttribute::Text("reverse".into()));
    }
    if of.kind == (OnnxRecurrentKind::Gru { linear_before_reset: true }) {
        node = node.with("linear_before_reset", OnnxAttribute::Int(1));
    }
    // The final state is the second output.
    if !of.sequences {
        node.outputs.insert(0, String::new());
    }
    e.push(node);
    // An activation may have been fused into the last operator.
    let maker = e.from.operators[of.operators.clone()].iter().rev().find(|o| o.outputs.contains(&of.output));
    let activation = maker.map_or(Ok(FusedActivation::None), |o| o.activation())?;
    if !of.sequences {
        let first = e.list(&named("first"), &[0])?;
        return e.finish(of.output, ChannelOrder::Plain, activation, |out| {
            OnnxNode::new("Squeeze", [made, first], out)
        });
    }
    // [S, 1, N, H]
    let mut seen = e.unique(&named("by_sample"));
    e.push(OnnxNode::new("Transpose", [made], seen.clone()).ints("perm", [2, 0, 1, 3]));
    if of.backwards && of.in_own_order {
        let (from, to) = (e.list(&named("last"), &[-1])?, e.list(&named("before_first"), &[i64::MIN + 1])?);
        let (axis, by) = (e.list(&named("axis"), &[1])?, e.list(&named("back"), &[-1])?);
        seen = e.made(&named("turned"), "Slice", [&*seen, &*from, &*to, &*axis, &*by]);
    }
    let direction = e.list(&named("direction"), &[2])?;
    e.finish(of.output, ChannelOrder::Plain, activation, |out| {
        OnnxNode::new("Squeeze", [seen, direction], out)
    })
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{assert_close, floats, run_node};

    #[test]
    fn simple_recurrences_use_tanh_or_relu() {
        // h ← f(2x + h + 1), twice.
        let x = floats([2, 1, 1], [-1.0, 0.25]);
        let operands = [&floats([1, 1, 1], [2.0]), &floats([1, 1, 1], [1.0]), &floats([1, 2], [0.75, 0.25])];
        let mut node = OnnxNode::new("RNN", ["x", "w", "r", "b"], "y");
        node.outputs.push("h".into());
        let operands = [&x, operands[0], operands[1], operands[2]];
        let first = (-1f32).tanh();
        let y = run_node(22, node.clone(), &operands);
        assert_close(&y[0], &[first, (1.5 + first).tanh()]);
        assert_close(&y[1], &[(1.5 + first).tanh()]);
        let node = node.with("activations", OnnxAttribute::Texts(vec!["Relu".into()]));
        assert_close(&run_node(22, node, &operands)[0], &[0.0, 1.5]);
    }
}
