//! Lowers recurrent layers (SimpleRNN, LSTM, GRU, Bidirectional) to TFLite by unrolling their steps.

use super::activations::activate;
use super::call::QuantLayerCall;
use super::matmul::{parts, product, sum, times};
use super::merge_layers::operator;
use systole_ir::{Literal, Result, err};
use systole_nn::{Activation, ElementWise, RecurrentCell as Kind, RecurrentLowering as Layer};
use systole_onnx::{OnnxRecurrent, OnnxRecurrentKind};
use systole_tflite::{OptionField, TfliteOp, TfliteOperator};

/// Maximum number of unrolled steps.
const MOST_STEPS: usize = 512;

/// Inputs of a step.
struct StepInputs<'a> {
    name: &'a str,
    /// Input projection `f32[1, columns]`.
    x: usize,
    /// Previous state `f32[1, units]`; `None` at the first step, where it is 0.
    state: Option<usize>,
}

/// Order of steps, and which states are returned.
#[derive(Clone, Copy)]
struct UnrollOrder {
    backwards: bool,
    sequences: bool,
}

/// Unrolls `step` over `x: f32[1, S, K] → f32[1, units]` or `f32[1, S, units]`. A reversed layer returns its states in
/// processing order; within Bidirectional in input order.
fn over(
    call: &mut QuantLayerCall,
    (kernel, bias): (&[f32], &[f32]),
    UnrollOrder { backwards, sequences }: UnrollOrder,
    mut step: impl FnMut(&mut QuantLayerCall, StepInputs) -> Result<usize>,
) -> Result<usize> {
    let (name, x) = (call.name(), call.input());
    let steps = call.dims().get(1).copied().unwrap_or(0);
    if steps == 0 || steps > MOST_STEPS {
        return Err(err!(Unsupported, "cannot unroll {steps} steps")
            .hint(format!("export a model of sequences with 1 to {MOST_STEPS} steps")));
    }
    let shares = product(call.b, &format!("{name}/inputs"), x, kernel, bias)?;
    let mut shares = parts(call.b, &format!("{name}/steps"), shares, 1, steps)?;
    if backwards {
        shares.reverse();
    }
    let (mut state, mut all) = (None, Vec::new());
    for (k, share) in shares.into_iter().enumerate() {
        let own = format!("{name}/step{k}");
        let x = call.b.reshape(&format!("{own}/input"), share, vec![1, bias.len()])?;
        let next = step(call, StepInputs { name: &own, x, state })?;
        state = Some(next);
        if sequences {
            let dims = call.b.dims(next);
            all.push(call.b.reshape(&format!("{own}/output"), next, vec![1, 1, dims[1]])?);
        }
    }
    if backwards && call.inner.is_some() {
        all.reverse();
    }
    match (all.as_slice(), state) {
        ([], Some(last)) => Ok(last),
        ([one], _) => Ok(*one),
        _ => {
            let units = state.and_then(|last| call.b.dims(last).get(1).copied()).unwrap_or(0);
            let output = vec![1, steps, units];
            let operator = TfliteOperator::new(TfliteOp::Concatenation, all, []).with(OptionField::Axis, 1.0);
            Ok(call.b.push(&name, output, operator))
        }
    }
}

/// Returns columns `from..to` of a row-major matrix with `columns` columns.
fn columns(matrix: &[f32], columns: usize, from: usize, to: usize) -> Vec<f32> {
    matrix.chunks_exact(columns.max(1)).flat_map(|row| row[from..to].to_vec()).collect()
}

/// Computes `z + state · kernel`, if there is a state.
fn with_state(call: &mut QuantLayerCall, s: &StepInputs, kernel: &[f32], bias: &[f32]) -> Result<usize> {
    let Some(state) = s.state else { return Ok(s.x) };
    let y = product(call.b, &format!("{}/state", s.name), state, kernel, bias)?;
    Ok(sum(call.b, &format!("{}/sum", s.name), s.x, y))
}

fn simple(call: &mut QuantLayerCall, a: &Layer) -> Result<usize> {
    let way = UnrollOrder { backwards: a.go_backwards, sequences: a.return_sequences };
    let (kernel, recurrent) = (floats(call.weight("kernel")?), floats(call.weight("recurrent_kernel")?));
    let bias = call.bias(a.use_bias, a.units)?;
    let zeros = vec![0.0; a.units];
    over(call, (&kernel, &bias), way, |call, s| {
        let z = with_state(call, &s, &recurrent, &zeros)?;
        activate(call.b, s.name, z, a.activation)
    })
}

fn lstm(call: &mut QuantLayerCall, a: &Layer) -> Result<usize> {
    let way = UnrollOrder { backwards: a.go_backwards, sequences: a.return_sequences };
    let (kernel, recurrent) = (floats(call.weight("kernel")?), floats(call.weight("recurrent_kernel")?));
    let bias = call.bias(a.use_bias, 4 * a.units)?;
    let zeros = vec![0.0; 4 * a.units];
    let mut memory = None;
    let (first, x) = (call.b.model.operators.len(), call.input());
    let y = over(call, (&kernel, &bias), way, |call, s| {
        let z = with_state(call, &s, &recurrent, &zeros)?;
        let gates = parts(call.b, &format!("{}/gates", s.name), z, 1, 4)?;
        let named = |what: &str| format!("{}/{what}", s.name);
        let mut gate = |k: usize, what: &str, of| activate(call.b, &named(what), gates[k], of);
        let input = gate(0, "input_gate", a.recurrent_activation)?;
        let forget = gate(1, "forget_gate", a.recurrent_activation)?;
        let candidate = gate(2, "candidate", a.activation)?;
        let output = gate(3, "output_gate", a.recurrent_activation)?;
        let mut now = times(call.b, &named("new"), input, candidate);
        if let Some(before) = memory {
            let kept = times(call.b, &named("kept"), forget, before);
            now = sum(call.b, &named("memory"), kept, now);
        }
        memory = Some(now);
        let shown = activate(call.b, &named("shown"), now, a.activation)?;
        Ok(times(call.b, s.name, output, shown))
    })?;
    if is_usual(a.recurrent_activation, a.activation) {
        // ONNX has the output gate second.
        let order = [0, 3, 1, 2];
        let own =
            OnnxWeights { kind: OnnxRecurrentKind::Lstm, units: a.units, order: &order, zeros_after: true };
        let loop_ = own.recurrent(call, (first, x, y), way, [&kernel, &recurrent, &bias])?;
        call.loops.push(loop_);
    }
    Ok(y)
}

fn gru(call: &mut QuantLayerCall, a: &Layer, reset_after: bool) -> Result<usize> {
    let way = UnrollOrder { backwards: a.go_backwards, sequences: a.return_sequences };
    let (units, all) = (a.units, 3 * a.units);
    let (kernel, recurrent) = (floats(call.weight("kernel")?), floats(call.weight("recurrent_kernel")?));
    let both = if a.use_bias { floats(call.weight("bias")?) } else { vec![0.0; 2 * all] };
    let (bias, inner_bias) = (both[..all].to_vec(), both.get(all..).unwrap_or_default().to_vec());
    let of_gates = columns(&recurrent, all, 0, 2 * units);
    let of_candidate = columns(&recurrent, all, 2 * units, all);
    let (update_of, candidate_of) = (a.recurrent_activation, a.activation);
    let (first, from) = (call.b.model.operators.len(), call.input());
    let y = over(call, (&kernel, &bias), way, |call, s| {
        let named = |what: &str| format!("{}/{what}", s.name);
        let x = parts(call.b, &named("inputs"), s.x, 1, 3)?;
        // Contribution of the state to the gates and the candidate.
        let (gates, candidate) = match (reset_after, s.state) {
            (true, None) => {
                let part = |k: usize| &inner_bias[k * units..(k + 1) * units];
                let mut share = |k: usize| call.b.floats(named(&format!("bias{k}")), [1, units], part(k));
                ([Some(share(0)?), Some(share(1)?)], Some(share(2)?))
            }
            (true, Some(state)) => {
                let y = product(call.b, &named("state"), state, &recurrent, &inner_bias)?;
                let y = parts(call.b, &named("shares"), y, 1, 3)?;
                ([Some(y[0]), Some(y[1])], Some(y[2]))
            }
            (false, None) => ([None; 2], None),
            (false, Some(state)) => {
                let y = product(call.b, &named("state"), state, &of_gates, &vec![0.0; 2 * units])?;
                let y = parts(call.b, &named("shares"), y, 1, 2)?;
                ([Some(y[0]), Some(y[1])], None)
            }
        };
        let mut gate = |k: usize, what: &str| {
            let z = gates[k].map_or(x[k], |y| sum(call.b, &named(&format!("{what}_sum")), x[k], y));
            activate(call.b, &named(what), z, update_of)
        };
        let (update, reset) = (gate(0, "update_gate")?, gate(1, "reset_gate")?);
        let share = match (candidate, s.state) {
            (Some(share), _) => Some(times(call.b, &named("reset"), reset, share)),
            (None, Some(state)) => {
                let seen = times(call.b, &named("reset"), reset, state);
                Some(product(call.b, &named("seen"), seen, &of_candidate, &vec![0.0; units])?)
            }
            (None, None) => None,
        };
        let z = share.map_or(x[2], |y| sum(call.b, &named("candidate_sum"), x[2], y));
        let candidate = activate(call.b, &named("candidate"), z, candidate_of)?;
        mixed(call, &s, update, candidate)
    })?;
    if is_usual(a.recurrent_activation, a.activation) {
        let kind = OnnxRecurrentKind::Gru { linear_before_reset: reset_after };
        let has_both = both.len() == 2 * all;
        let own = OnnxWeights { kind, units, order: &[0, 1, 2], zeros_after: !has_both };
        let loop_ = own.recurrent(call, (first, from, y), way, [&kernel, &recurrent, &both])?;
        call.loops.push(loop_);
    }
    Ok(y)
}

pub(super) fn recurrent(call: &mut QuantLayerCall, own: &Layer) -> Result<usize> {
    match own.kind {
        Kind::Simple => simple(call, own),
        Kind::Lstm => lstm(call, own),
        Kind::Gru { reset_after } => gru(call, own, reset_after),
    }
}

/// Lowers Bidirectional: a forward and a reversed layer, joined.
pub(super) fn bidirectional(
    call: &mut QuantLayerCall,
    directions: &[(String, Layer); 2],
    join: Option<ElementWise>,
) -> Result<usize> {
    let mut made = Vec::new();
    for (name, own) in directions {
        call.inner = Some(name.clone());
        made.push(recurrent(call, own)?);
    }
    call.inner = None;
    let (name, dims) = (call.name(), call.output.clone());
    let Some(join) = join else {
        let last = dims.len().saturating_sub(1) as f64;
        let operator = TfliteOperator::new(TfliteOp::Concatenation, made, []).with(OptionField::Axis, last);
        return Ok(call.b.push(&name, dims, operator));
    };
    let y = call.b.apply(&name, operator(join), &made, dims.clone());
    if join != ElementWise::Average {
        return Ok(y);
    }
    let half = call.b.floats(format!("{name}/share"), [1], &[0.5])?;
    Ok(call.b.apply(&format!("{name}/mean"), TfliteOp::Mul, &[y, half], dims))
}

/// Whether the activations are ONNX's defaults.
fn is_usual(gates: Activation, states: Activation) -> bool {
    (gates, states) == (Activation::Sigmoid, Activation::Tanh)
}

/// Weights of a layer in the layout of ONNX's operator.
struct OnnxWeights<'a> {
    kind: OnnxRecurrentKind,
    units: usize,
    /// Position of each ONNX gate in the layer.
    order: &'a [usize],
    /// Whether the recurrent products have no bias of their own.
    zeros_after: bool,
}

impl OnnxWeights<'_> {
    /// Transposes `kernel: [K, gates · H], recurrent: [H, gates · H] → [1, gates · H, K], [1, gates · H, H]`.
    fn recurrent(
        &self,
        call: &QuantLayerCall,
        (first, input, output): (usize, usize, usize),
        way: UnrollOrder,
        [kernel, recurrent, bias]: [&[f32]; 3],
    ) -> Result<OnnxRecurrent> {
        let (h, all) = (self.units, self.order.len() * self.units);
        let places: Vec<usize> = self.order.iter().flat_map(|gate| gate * h..(gate + 1) * h).collect();
        let turned = |w: &[f32]| {
            let rows = w.len() / all.max(1);
            let values: Vec<f32> = places
                .iter()
                .flat_map(|at| (0..rows).map(move |row| row * all + at))
                .map(|at| w[at])
                .collect();
            Literal::from_slice([1, all, rows], &values)
        };
        let half = |from: usize| places.iter().map(move |at| bias.get(from + at).copied().unwrap_or(0.0));
        let of_states: Vec<f32> = if self.zeros_after { vec![0.0; all] } else { half(all).collect() };
        let both: Vec<f32> = half(0).chain(of_states).collect();
        Ok(OnnxRecurrent {
            operators: first..call.b.model.operators.len(),
            input,
            output,
            kind: self.kind,
            backwards: way.backwards,
            sequences: way.sequences,
            in_own_order: call.inner.is_none(),
            weights: [turned(kernel)?, turned(recurrent)?, Literal::from_slice([1, 2 * all], &both)?],
        })
    }
}

/// Computes `update · state + (1 − update) · candidate` as `candidate + update · (state − candidate)`.
fn mixed(call: &mut QuantLayerCall, s: &StepInputs, update: usize, candidate: usize) -> Result<usize> {
    let dims = call.b.dims(candidate);
    let named = |what: &str| format!("{}/{what}", s.name);
    match s.state {
        Some(state) => {
            let way = call.b.apply(&named("way"), TfliteOp::Sub, &[state, candidate], dims);
            let part = times(call.b, &named("part"), update, way);
            Ok(sum(call.b, s.name, candidate, part))
        }
        None => {
            let part = times(call.b, &named("part"), update, candidate);
            Ok(call.b.apply(s.name, TfliteOp::Sub, &[candidate, part], dims))
        }
    }
}

fn floats(x: Literal) -> Vec<f32> {
    x.to_f32s()
}
