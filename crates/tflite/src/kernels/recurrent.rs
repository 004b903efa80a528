//! Recurrent kernels, from a state of 0: LSTM, RNN and SVDF of one step; UNIDIRECTIONAL_SEQUENCE_LSTM and _RNN and
//! BIDIRECTIONAL_SEQUENCE_LSTM and _RNN over sequences.

use super::call::{KernelOperand, OperatorCall};
use super::conv::dot_f32;
use super::op_row::operators;
use super::quantize_cast::{dequantized, rounded};
use crate::model::broken;
use crate::op::{FusedActivation, OptionField, TfliteOp};
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Lstm "LSTM" 16; options 14 [0 Activation, 1 CellClip, 2 ProjClip, 3 KernelType, 4 AsymmetricInputs];
        versions 1 3; NoInt8; |call| if call.operator.int(OptionField::KernelType) == 0 { lstm(call) } else { basic_lstm(call) }
    Rnn "RNN" 24; options 7 [0 Activation, 1 AsymmetricInputs]; versions 1 2; NoInt8; rnn
    Svdf "SVDF" 27; options 6 [0 Rank, 1 Activation, 2 AsymmetricInputs]; versions 1 2; NoInt8; svdf
    BidirectionalSequenceRnn "BIDIRECTIONAL_SEQUENCE_RNN" 46;
        options 70 [0 TimeMajor, 1 Activation, 2 MergeOutputs, 3 AsymmetricInputs]; versions 1 2; NoInt8; rnn_both_ways
    BidirectionalSequenceLstm "BIDIRECTIONAL_SEQUENCE_LSTM" 52;
        options 69 [0 Activation, 1 CellClip, 2 ProjClip, 3 MergeOutputs, 4 TimeFirst, 5 AsymmetricInputs];
        versions 1 2; NoInt8; lstm_both_ways
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

/// Sequences `[batch, time, size]`, or `[time, batch, size]`; rows `[batch, size]` are one step.
struct Sequences<'a> {
    x: &'a [f32],
    dims: Vec<usize>,
    batch: usize,
    time: usize,
    size: usize,
    is_time_major: bool,
}

impl<'a> Sequences<'a> {
    fn new(call: &OperatorCall<'a>) -> Result<Sequences<'a>> {
        let x: KernelOperand<'a> = call.input(0)?;
        ensure!(x.dtype() == DType::F32, call.unsupported(format_args!("inputs of {}", x.dtype())));
        let order = match call.operator.op {
            TfliteOp::BidirectionalSequenceLstm => OptionField::TimeFirst,
            _ => OptionField::TimeMajor,
        };
        let is_time_major = call.operator.is(order);
        let (batch, time, size) = match *x.dims() {
            [batch, size] => (batch, 1, size),
            [time, batch, size] if is_time_major => (batch, time, size),
            [batch, time, size] => (batch, time, size),
            _ => return Err(broken(format!("the input is {}, expected 2 or 3 dimensions", x.ty()))),
        };
        let dims = x.dims()[..x.dims().len() - 1].to_vec();
        Ok(Sequences { x: x.elements()?, dims, batch, time, size, is_time_major })
    }

    /// Shape of outputs with this size.
    fn output(&self, size: usize) -> Vec<usize> {
        [&self.dims[..], &[size]].concat()
    }

    /// Calls `step` for each sample and step in order, backwards if `reverse`, with the row and where its output goes.
    fn each(
        &self,
        outputs: usize,
        reverse: bool,
        mut step: impl FnMut(usize, &[f32], &mut [f32]),
    ) -> Vec<f32> {
        let mut y = vec![0f32; self.batch * self.time * outputs];
        for t in 0..self.time {
            let t = if reverse { self.time - 1 - t } else { t };
            for b in 0..self.batch {
                let row = if self.is_time_major { t * self.batch + b } else { b * self.time + t };
                let x = &self.x[row * self.size..(row + 1) * self.size];
                step(b, x, &mut y[row * outputs..(row + 1) * outputs]);
            }
        }
        y
    }

    /// Returns the outputs of both directions: one tensor each, or concatenated.
    fn both_ways(&self, call: &OperatorCall, ways: [(usize, Vec<f32>); 2]) -> Result<Vec<Literal>> {
        let [(n, forward), (m, backward)] = ways;
        if !call.operator.is(OptionField::MergeOutputs) {
            call.check_output(&self.output(n))?;
            let backward = Literal::from_slice(self.output(m), &backward)?;
            return Ok([call.made(&forward)?, vec![backward]].concat());
        }
        call.check_output(&self.output(n + m))?;
        let rows = forward.chunks_exact(n.max(1)).zip(backward.chunks_exact(m.max(1)));
        call.made(&rows.flat_map(|(a, b)| [a, b].concat()).collect::<Vec<_>>())
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

/// Computes RNN and UNIDIRECTIONAL_SEQUENCE_RNN: `h = activation(W x + R h + b)`.
fn rnn(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = Sequences::new(call)?;
    let (n, y) = rnn_one_way(call, &x, 1, false)?;
    call.check_output(&x.output(n))?;
    call.made(&y)
}

/// Computes BIDIRECTIONAL_SEQUENCE_RNN, without auxiliary inputs.
fn rnn_both_ways(call: &OperatorCall) -> Result<Vec<Literal>> {
    no_auxiliary(call, 9)?;
    let x = Sequences::new(call)?;
    x.both_ways(call, [rnn_one_way(call, &x, 1, false)?, rnn_one_way(call, &x, 5, true)?])
}

fn no_auxiliary(call: &OperatorCall, from: usize) -> Result<()> {
    let has_any = call.operator.inputs.iter().skip(from).any(Option::is_some);
    ensure!(!has_any, call.unsupported("auxiliary inputs"));
    Ok(())
}

/// Returns the size and the outputs of one direction, whose weights start at operand `first`.
fn rnn_one_way(call: &OperatorCall, x: &Sequences, first: usize, reverse: bool) -> Result<(usize, Vec<f32>)> {
    let w = required(RecurrentWeights::new(call, first)?, "weights")?;
    let r = required(RecurrentWeights::new(call, first + 1)?, "recurrent weights")?;
    let (n, of) = (w.rows(), activation(call)?);
    ensure!(
        w.columns == x.size && r.columns == n && r.rows() == n,
        broken("the weights do not match the input".into())
    );
    let bias = vector(call, first + 2, n)?.unwrap_or_else(|| vec![0.0; n]);
    let asymmetric = call.operator.is(OptionField::AsymmetricInputs);
    let mut state = vec![vec![0f32; n]; x.batch];
    let y = x.each(n, reverse, |b, x, y| {
        let mut sums = bias.clone();
        w.add(x, &mut sums, asymmetric);
        r.add(&state[b], &mut sums, asymmetric);
        sums.iter_mut().for_each(|v| *v = of(*v));
        y.copy_from_slice(&sums);
        state[b] = sums;
    });
    Ok((n, y))
}

/// Computes SVDF: each unit sums `rank` filters, which multiply the feature of the input with its newest time weight. Older
/// features are 0.
fn svdf(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = Sequences::new(call)?;
    let features = required(RecurrentWeights::new(call, 1)?, "weights of features")?;
    let times = required(RecurrentWeights::new(call, 2)?, "weights of time")?;
    let (filters, rank, of) = (features.rows(), call.at_least_1(OptionField::Rank)?, activation(call)?);
    ensure!(
        x.dims.len() == 1 && features.columns == x.size && times.rows() == filters && times.columns > 0,
        broken("the weights do not match the input".into())
    );
    ensure!(filters % rank == 0, broken(format!("{filters} filters are no multiple of the rank {rank}")));
    let units = filters / rank;
    call.check_output(&x.output(units))?;
    let bias = vector(call, 3, units)?.unwrap_or_else(|| vec![0.0; units]);
    let asymmetric = call.operator.is(OptionField::AsymmetricInputs);
    let y = x.each(units, false, |_, x, y| {
        let mut sums = vec![0f32; filters];
        features.add(x, &mut sums, asymmetric);
        for (unit, y) in y.iter_mut().enumerate() {
            let own = unit * rank..(unit + 1) * rank;
            let sum: f32 = own.map(|f| sums[f] * times.values[(f + 1) * times.columns - 1]).sum();
            *y = of(sum + bias[unit]);
        }
    });
    call.made(&y)
}

/// Operands of an LSTM in one direction: the first of each group of gates.
struct LstmPlaces {
    input: usize,
    recurrent: usize,
    peephole: usize,
    bias: usize,
    projection: usize,
    /// Coefficients of layer normalization, if the operator can have them.
    norm: Option<usize>,
}

const FORWARD: LstmPlaces =
    LstmPlaces { input: 1, recurrent: 5, peephole: 9, bias: 12, projection: 16, norm: None };
const BACKWARD: LstmPlaces =
    LstmPlaces { input: 18, recurrent: 22, peephole: 26, bias: 29, projection: 33, norm: None };

/// A gate: weights of input and state, of the cell (peephole), bias, and coefficients of layer normalization.
struct LstmGate {
    w: RecurrentWeights,
    r: RecurrentWeights,
    peephole: Option<Vec<f32>>,
    bias: Vec<f32>,
    norm: Option<Vec<f32>>,
}

impl LstmGate {
    /// Reads gate `n`: input, forget, cell, output. The input gate may be absent.
    fn new(call: &OperatorCall, at: &LstmPlaces, n: usize, cells: usize) -> Result<Option<LstmGate>> {
        let w = RecurrentWeights::new(call, at.input + n)?;
        let r = RecurrentWeights::new(call, at.recurrent + n)?;
        let Some(w) = w else { return Ok(None) };
        let r = required(r, "recurrent weights")?;
        ensure!(w.rows() == cells && r.rows() == cells, broken("the gates differ in size".into()));
        let peephole = match n {
            2 => None,
            3 => vector(call, at.peephole + 2, cells)?,
            n => vector(call, at.peephole + n, cells)?,
        };
        let bias = vector(call, at.bias + n, cells)?.unwrap_or_else(|| vec![0.0; cells]);
        let norm = at.norm.map_or(Ok(None), |norm| vector(call, norm + n, cells))?;
        Ok(Some(LstmGate { w, r, peephole, bias, norm }))
    }

    fn sums(&self, x: &[f32], state: &[f32], cell: &[f32], asymmetric: bool) -> Vec<f32> {
        let mut sums = if self.norm.is_some() { vec![0.0; self.bias.len()] } else { self.bias.clone() };
        self.w.add(x, &mut sums, asymmetric);
        self.r.add(state, &mut sums, asymmetric);
        if let Some(peephole) = &self.peephole {
            sums.iter_mut().zip(peephole.iter().zip(cell)).for_each(|(s, (p, c))| *s += p * c);
        }
        if let Some(norm) = &self.norm {
            let n = sums.len().max(1) as f32;
            let mean = sums.iter().sum::<f32>() / n;
            let variance = sums.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / n;
            let scale = 1.0 / (variance + 1e-8).sqrt();
            let own = norm.iter().zip(&self.bias);
            sums.iter_mut().zip(own).for_each(|(s, (w, b))| *s = (*s - mean) * scale * w + b);
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

/// Computes LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM.
fn lstm(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = Sequences::new(call)?;
    let (n, y) = lstm_one_way(call, &x, &LstmPlaces { norm: Some(20), ..FORWARD }, false)?;
    call.check_output(&x.output(n))?;
    call.made(&y)
}

/// Computes BIDIRECTIONAL_SEQUENCE_LSTM, without auxiliary inputs.
fn lstm_both_ways(call: &OperatorCall) -> Result<Vec<Literal>> {
    no_auxiliary(call, 39)?;
    let x = Sequences::new(call)?;
    x.both_ways(call, [lstm_one_way(call, &x, &FORWARD, false)?, lstm_one_way(call, &x, &BACKWARD, true)?])
}

/// Weights of an LSTM in one direction.
struct LstmWeights {
    /// `None`: 1 − the forget gate.
    input: Option<LstmGate>,
    forget: LstmGate,
    candidate: LstmGate,
    output: LstmGate,
    projection: Option<RecurrentWeights>,
    projection_bias: Option<Vec<f32>>,
    cells: usize,
    /// Size of the output.
    size: usize,
}

impl LstmWeights {
    fn new(call: &OperatorCall, at: &LstmPlaces, inputs: usize) -> Result<LstmWeights> {
        let cells = call.input(at.input + 1)?.of_rank::<2>()?[0];
        let gate = |n, what| required(LstmGate::new(call, at, n, cells)?, what);
        let input = LstmGate::new(call, at, 0, cells)?;
        let forget = gate(1, "weights of the forget gate")?;
        let candidate = gate(2, "weights of the cell")?;
        let output = gate(3, "weights of the output gate")?;
        let projection = RecurrentWeights::new(call, at.projection)?;
        let size = projection.as_ref().map_or(cells, RecurrentWeights::rows);
        let projection_bias = vector(call, at.projection + 1, size)?;
        let fits = |gate: &LstmGate| gate.w.columns == inputs && gate.r.columns == size;
        ensure!(
            input.iter().chain([&forget, &candidate, &output]).all(fits)
                && projection.as_ref().is_none_or(|p| p.columns == cells),
            broken("the weights do not match the input".into())
        );
        Ok(LstmWeights { input, forget, candidate, output, projection, projection_bias, cells, size })
    }
}

/// Returns the size and the outputs of one direction.
fn lstm_one_way(
    call: &OperatorCall,
    x: &Sequences,
    at: &LstmPlaces,
    reverse: bool,
) -> Result<(usize, Vec<f32>)> {
    let weights = LstmWeights::new(call, at, x.size)?;
    let (cells, size) = (weights.cells, weights.size);
    let (of, number) = (activation(call)?, |field| call.operator.number(field) as f32);
    let (cell_clip, clip) = (number(OptionField::CellClip), number(OptionField::ProjClip));
    let asymmetric = call.operator.is(OptionField::AsymmetricInputs);
    let mut state = vec![(vec![0f32; size], vec![0f32; cells]); x.batch];
    let y = x.each(size, reverse, |b, x, y| {
        let (h, c) = &mut state[b];
        let gate = |gate: &LstmGate, c: &[f32], h: &[f32]| gate.sums(x, h, c, asymmetric);
        let f: Vec<f32> = gate(&weights.forget, c, h).into_iter().map(sigmoid).collect();
        let i: Vec<f32> = match &weights.input {
            Some(input) => gate(input, c, h).into_iter().map(sigmoid).collect(),
            None => f.iter().map(|f| 1.0 - f).collect(),
        };
        let g = gate(&weights.candidate, c, h);
        for k in 0..cells {
            c[k] = f[k] * c[k] + i[k] * of(g[k]);
        }
        clipped(c, cell_clip);
        let o = gate(&weights.output, c, h);
        let made: Vec<f32> = o.iter().zip(c.iter()).map(|(o, c)| sigmoid(*o) * of(*c)).collect();
        *h = match &weights.projection {
            None => made,
            Some(p) => {
                let mut sums = weights.projection_bias.clone().unwrap_or_else(|| vec![0.0; size]);
                p.add(&made, &mut sums, asymmetric);
                clipped(&mut sums, clip);
                sums
            }
        };
        y.copy_from_slice(h);
    });
    Ok((size, y))
}

/// Computes LSTM of the basic kind: gates input, cell, forget, output of one product with input and previous output. Results:
/// output, state, the operand and the result of the product.
fn basic_lstm(call: &OperatorCall) -> Result<Vec<Literal>> {
    let operands = [call.input(0)?, call.input(1)?, call.input(4)?];
    let [[batch, inputs], [_, n], [_, cells]] =
        [operands[0].of_rank()?, operands[1].of_rank()?, operands[2].of_rank()?];
    let w = required(RecurrentWeights::new(call, 2)?, "weights")?;
    let bias = required(vector(call, 3, 4 * n)?, "biases")?;
    let fits = cells == n && w.rows() == 4 * n && w.columns == inputs + n;
    ensure!(
        fits && operands.iter().all(|x| x.dims()[0] == batch && x.dtype() == DType::F32),
        call.unsupported("these operands")
    );
    call.check_output(&[batch, n])?;
    let [x, h, c] = [operands[0].elements::<f32>()?, operands[1].elements()?, operands[2].elements()?];
    let (mut y, mut states, mut joined, mut products) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for b in 0..batch {
        let row = [&x[b * inputs..(b + 1) * inputs], &h[b * n..(b + 1) * n]].concat();
        let mut sums = bias.clone();
        w.add(&row, &mut sums, false);
        for k in 0..n {
            let gate = |i: usize| sigmoid(sums[i * n + k]);
            let state = gate(0) * sums[n + k].tanh() + gate(2) * c[b * n + k];
            y.push(gate(3) * state.tanh());
            states.push(state);
        }
        joined.extend(row);
        products.extend(sums);
    }
    let more = [(n, states), (inputs + n, joined), (4 * n, products)];
    let mut all = call.made(&y)?;
    for (size, values) in more.iter().take(call.operator.outputs.len().saturating_sub(1)) {
        all.push(Literal::from_slice([batch, *size], values)?);
    }
    Ok(all)
}
