//! Recurrent kernels over sequences: UNIDIRECTIONAL_SEQUENCE_LSTM and UNIDIRECTIONAL_SEQUENCE_RNN, from a state of 0.

use super::call::{KernelOperand, OperatorCall};
use super::conv::dot_f32;
use super::op_row::operators;
use super::quantize_cast::{dequantized, rounded};
use crate::model::broken;
use crate::op::{FusedActivation, OptionField};
use systole_base::{DType, Literal, Result, ensure};

operators! {
    UnidirectionalSequenceRnn "UNIDIRECTIONAL_SEQUENCE_RNN" 35;
        options 31 [0 TimeMajor, 1 Activation, 2 AsymmetricInputs]; versions 1 2; NoInt8; rnn
    UnidirectionalSequenceLstm "UNIDIRECTIONAL_SEQUENCE_LSTM" 44;
        options 71 [0 Activation, 1 CellClip, 2 ProjClip, 3 TimeMajor, 4 AsymmetricInputs];
        versions 1 2; NoInt8; lstm
}

/// Schema code of tanh, which other operators do not have as an activation.
const TANH: i64 = 4;

/// Weights of a product with rows of an input; int8 weights round the rows to int8 too.
struct RecurrentWeights {
    values: Vec<f32>,
    columns: usize,
    is_hybrid: bool,
}

impl RecurrentWeights {
    /// Returns the matrix of operand `n`, `[rows, columns]`; `None` if it is absent.
    fn new(call: &OperatorCall, n: usize) -> Result<Option<RecurrentWeights>> {
        let Some(w) = call.optional(n)? else { return Ok(None) };
        let [rows, columns] = w.of_rank::<2>()?;
        let values = match w.dtype() {
            DType::F32 => w.elements::<f32>()?.to_vec(),
            DType::I8 | DType::U8 => dequantized(&w, rows)?,
            other => return Err(call.unsupported(format_args!("weights of {other}"))),
        };
        Ok(Some(RecurrentWeights { values, columns, is_hybrid: w.dtype() != DType::F32 }))
    }

    fn rows(&self) -> usize {
        self.values.len() / self.columns.max(1)
    }

    /// Adds the product with a row to `sums`.
    fn add(&self, x: &[f32], sums: &mut [f32], asymmetric: bool) {
        let short = self.is_hybrid.then(|| rounded(x, 1, !asymmetric));
        let x = short.as_deref().unwrap_or(x);
        sums.iter_mut().zip(self.values.chunks_exact(self.columns)).for_each(|(s, w)| *s += dot_f32(x, w));
    }
}

/// Returns a fused activation, of which tanh is one here.
fn activation(call: &OperatorCall) -> Result<impl Fn(f32) -> f32> {
    let is_tanh = call.operator.int(OptionField::Activation) == TANH;
    let (low, high) = if is_tanh { FusedActivation::None } else { call.operator.activation()? }.bounds();
    Ok(move |x: f32| if is_tanh { x.tanh() } else { x.max(low).min(high) })
}

/// Sequences `[batch, time, size]`, or `[time, batch, size]`.
struct Sequences<'a> {
    x: &'a [f32],
    batch: usize,
    time: usize,
    size: usize,
    is_time_major: bool,
}

impl<'a> Sequences<'a> {
    fn new(call: &OperatorCall<'a>, outputs: usize) -> Result<Sequences<'a>> {
        let x: KernelOperand<'a> = call.input(0)?;
        let [a, b, size] = x.of_rank::<3>()?;
        ensure!(x.dtype() == DType::F32, call.unsupported(format_args!("inputs of {}", x.dtype())));
        call.check_output(&[a, b, outputs])?;
        let is_time_major = call.operator.is(OptionField::TimeMajor);
        let (batch, time) = if is_time_major { (b, a) } else { (a, b) };
        Ok(Sequences { x: x.elements()?, batch, time, size, is_time_major })
    }

    /// Calls `step` for each sample and step in order, with the row and where its output goes.
    fn each(&self, outputs: usize, mut step: impl FnMut(usize, &[f32], &mut [f32])) -> Vec<f32> {
        let mut y = vec![0f32; self.batch * self.time * outputs];
        for t in 0..self.time {
            for b in 0..self.batch {
                let row = if self.is_time_major { t * self.batch + b } else { b * self.time + t };
                let x = &self.x[row * self.size..(row + 1) * self.size];
                step(b, x, &mut y[row * outputs..(row + 1) * outputs]);
            }
        }
        y
    }
}

/// Returns a vector operand of `n` floats; `None` if it is absent.
fn vector(call: &OperatorCall, at: usize, n: usize) -> Result<Option<Vec<f32>>> {
    let Some(x) = call.optional(at)? else { return Ok(None) };
    ensure!(
        x.ty().elements() == n && x.dtype() == DType::F32,
        call.unsupported(format_args!("{} as operand {at}", x.ty()))
    );
    Ok(Some(x.elements::<f32>()?.to_vec()))
}

fn required<T>(found: Option<T>, what: &str) -> Result<T> {
    found.ok_or_else(|| broken(format!("the {what} are missing")))
}

/// Computes UNIDIRECTIONAL_SEQUENCE_RNN: `h = activation(W x + R h + b)`.
fn rnn(call: &OperatorCall) -> Result<Vec<Literal>> {
    let w = required(RecurrentWeights::new(call, 1)?, "weights")?;
    let r = required(RecurrentWeights::new(call, 2)?, "recurrent weights")?;
    let (n, of) = (w.rows(), activation(call)?);
    let x = Sequences::new(call, n)?;
    ensure!(
        w.columns == x.size && r.columns == n && r.rows() == n,
        broken("the weights do not match the input".into())
    );
    let bias = vector(call, 3, n)?.unwrap_or_else(|| vec![0.0; n]);
    let asymmetric = call.operator.is(OptionField::AsymmetricInputs);
    let mut state = vec![vec![0f32; n]; x.batch];
    let y = x.each(n, |b, x, y| {
        let mut sums = bias.clone();
        w.add(x, &mut sums, asymmetric);
        r.add(&state[b], &mut sums, asymmetric);
        sums.iter_mut().for_each(|v| *v = of(*v));
        y.copy_from_slice(&sums);
        state[b] = sums;
    });
    call.made(&y)
}

/// A gate: weights of input and state, of the cell (peephole), and bias.
struct LstmGate {
    w: RecurrentWeights,
    r: RecurrentWeights,
    peephole: Option<Vec<f32>>,
    bias: Vec<f32>,
}

impl LstmGate {
    /// Reads gate `n`: input, forget, cell, output. The input gate may be absent.
    fn new(call: &OperatorCall, n: usize, cells: usize) -> Result<Option<LstmGate>> {
        let (w, r) = (RecurrentWeights::new(call, 1 + n)?, RecurrentWeights::new(call, 5 + n)?);
        let Some(w) = w else { return Ok(None) };
        let r = required(r, "recurrent weights")?;
        ensure!(w.rows() == cells && r.rows() == cells, broken("the gates differ in size".into()));
        let peephole = match n {
            2 => None,
            3 => vector(call, 11, cells)?,
            n => vector(call, 9 + n, cells)?,
        };
        let bias = vector(call, 12 + n, cells)?.unwrap_or_else(|| vec![0.0; cells]);
        Ok(Some(LstmGate { w, r, peephole, bias }))
    }

    fn sums(&self, x: &[f32], state: &[f32], cell: &[f32], asymmetric: bool) -> Vec<f32> {
        let mut sums = self.bias.clone();
        self.w.add(x, &mut sums, asymmetric);
        self.r.add(state, &mut sums, asymmetric);
        if let Some(peephole) = &self.peephole {
            sums.iter_mut().zip(peephole.iter().zip(cell)).for_each(|(s, (p, c))| *s += p * c);
        }
        sums
    }
}

fn clipped(values: &mut [f32], limit: f32) {
    if limit > 0.0 {
        values.iter_mut().for_each(|v| *v = v.clamp(-limit, limit));
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes UNIDIRECTIONAL_SEQUENCE_LSTM, without layer normalization.
fn lstm(call: &OperatorCall) -> Result<Vec<Literal>> {
    let is_normalized = (20..24).any(|n| call.operator.inputs.get(n).is_some_and(Option::is_some));
    ensure!(!is_normalized, call.unsupported("layer normalization"));
    let cells = call.input(2)?.of_rank::<2>()?[0];
    let input = LstmGate::new(call, 0, cells)?;
    let forget = required(LstmGate::new(call, 1, cells)?, "weights of the forget gate")?;
    let candidate = required(LstmGate::new(call, 2, cells)?, "weights of the cell")?;
    let output = required(LstmGate::new(call, 3, cells)?, "weights of the output gate")?;
    let projection = RecurrentWeights::new(call, 16)?;
    let outputs = projection.as_ref().map_or(cells, RecurrentWeights::rows);
    let projection_bias = vector(call, 17, outputs)?;
    let x = Sequences::new(call, outputs)?;
    let all = input.iter().chain([&forget, &candidate, &output]);
    let mut fits = all.map(|gate| gate.w.columns == x.size && gate.r.columns == outputs);
    ensure!(
        fits.all(|fits| fits) && projection.as_ref().is_none_or(|p| p.columns == cells),
        broken("the weights do not match the input".into())
    );
    let (of, number) = (activation(call)?, |field| call.operator.number(field) as f32);
    let (cell_clip, clip) = (number(OptionField::CellClip), number(OptionField::ProjClip));
    let asymmetric = call.operator.is(OptionField::AsymmetricInputs);
    let mut state = vec![(vec![0f32; outputs], vec![0f32; cells]); x.batch];
    let y = x.each(outputs, |b, x, y| {
        let (h, c) = &mut state[b];
        let gate = |gate: &LstmGate, c: &[f32], h: &[f32]| gate.sums(x, h, c, asymmetric);
        let f: Vec<f32> = gate(&forget, c, h).into_iter().map(sigmoid).collect();
        let i: Vec<f32> = match &input {
            Some(input) => gate(input, c, h).into_iter().map(sigmoid).collect(),
            None => f.iter().map(|f| 1.0 - f).collect(),
        };
        let g = gate(&candidate, c, h);
        for k in 0..cells {
            c[k] = f[k] * c[k] + i[k] * of(g[k]);
        }
        clipped(c, cell_clip);
        let o = gate(&output, c, h);
        let made: Vec<f32> = o.iter().zip(c.iter()).map(|(o, c)| sigmoid(*o) * of(*c)).collect();
        *h = match &projection {
            None => made,
            Some(p) => {
                let mut sums = projection_bias.clone().unwrap_or_else(|| vec![0.0; outputs]);
                p.add(&made, &mut sums, asymmetric);
                clipped(&mut sums, clip);
                sums
            }
        };
        y.copy_from_slice(h);
    });
    call.made(&y)
}
