//! Recurrent layers: SimpleRNN, LSTM and GRU.
//!
//! The input projections of all gates are one matrix product over all steps, outside the loop; the loop contains only
//! what depends on the state. Each iteration ends with the recurrent product of its new state, which the next iteration
//! starts from. So that product is among the loop's outputs, and the backward pass does not recompute it.

use crate::layer::activation::Activation;
use crate::layers::built_in::*;
use crate::layers::random::dropout::{check_rate, kept};
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{constructors, setters};
use systole_ir::{control_builders, err};

macro_rules! recurrent {
    ($(#[$doc:meta])* $class:ident { $($(#[$own_doc:meta])* $own:ident: $ty:ty = $default:expr,)* } $kind:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $class {
            /// Size of the state and of the output. Required.
            pub units: usize,
            /// Activation of the new state. Default: tanh.
            #[serde(deserialize_with = "argument::activation")]
            pub activation: Activation,
            $($(#[$own_doc])* pub $own: $ty,)*
            /// Whether a bias is added. Default: true.
            pub use_bias: bool,
            /// Initializer of the input kernel. Default: `glorot_uniform`.
            pub kernel_initializer: Initializer,
            /// Initializer of the recurrent kernel. Default: `orthogonal`.
            pub recurrent_initializer: Initializer,
            /// Initializer of the bias. Default: `zeros`.
            pub bias_initializer: Initializer,
            /// Dropout rate of the input features, with the same mask at every step. Default: 0.
            pub dropout: f64,
            /// Dropout rate of the state, with the same mask at every step. Default: 0.
            pub recurrent_dropout: f64,
            /// Whether the output contains every step's state instead of the last one. Default: false.
            pub return_sequences: bool,
            /// Whether the sequence is processed in reverse; outputs are then in that order. Default: false.
            pub go_backwards: bool,
            /// Whether the steps are unrolled in the graph instead of a loop, with the same results. Default: false.
            pub unroll: bool,
            /// Whether the output at masked steps is 0 instead of the previous step's. Default: false.
            pub zero_output_for_mask: bool,
            /// Whether the final states follow the outputs as further steps: `T[B, S + n, units]` for n states, S = 1 without
            /// `return_sequences`. Default: false.
            pub return_state: bool,
            /// Whether the initial states `T[B, units]` are further inputs, instead of zeros. As in Keras, a mask that
            /// the sequence carries is then passed on, but no step is skipped. Default: false.
            pub initial_state: bool,
        }

        impl Default for $class {
            fn default() -> $class {
                $class {
                    units: 0,
                    activation: Activation::Tanh,
                    $($own: $default,)*
                    use_bias: true,
                    kernel_initializer: Initializer::GlorotUniform,
                    recurrent_initializer: Initializer::Orthogonal { gain: 1.0 },
                    bias_initializer: Initializer::Zeros,
                    dropout: 0.0,
                    recurrent_dropout: 0.0,
                    return_sequences: false,
                    go_backwards: false,
                    unroll: false,
                    zero_output_for_mask: false,
                    return_state: false,
                    initial_state: false,
                }
            }
        }

        impl Arguments for $class {
            fn check(&self) -> Result<()> {
                ensure!(self.units != 0, wrong(stringify!($class), "units of at least 1", self.units));
                check_rate(stringify!($class), "dropout", self.dropout)?;
                check_rate(stringify!($class), "recurrent_dropout", self.recurrent_dropout)
            }

        }

        impl $class {
            fn states_and_outputs(&self, cx: &mut Cx, x: &Tensor, initial: &[Tensor]) -> Result<Tensor> {
                let run = Recurrence {
                    class: stringify!($class),
                    units: self.units,
                    dropout: self.dropout,
                    recurrent_dropout: self.recurrent_dropout,
                    return_sequences: self.return_sequences,
                    return_state: self.return_state,
                    go_backwards: self.go_backwards,
                    unroll: self.unroll,
                    zero_output_for_mask: self.zero_output_for_mask,
                    mask: steps_mask(cx, x, self.go_backwards).filter(|_| !self.initial_state),
                    passed: steps_mask(cx, x, false),
                    initial: if self.initial_state { Some(initial) } else { None },
                };
                run.check_states($kind(self).0, x)?;
                let steps = run.inputs(cx, x)?;
                self.build(cx, &run, &steps)
            }
        }

        impl Layer for $class {
            named!(stringify!($class));

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                built(self, cx, inputs, |cx, inputs| match inputs {
                    [x, initial @ ..] if self.initial_state || initial.is_empty() => {
                        self.states_and_outputs(cx, x, initial)
                    }
                    _ => Err(wrong_number(self, "one input", inputs)
                        .hint("combine several inputs with concatenate or add first; set initial_state to pass states")),
                })
            }

            fn lowering(&self) -> Result<LayerLowering> {
                ensure!(!self.return_state && !self.initial_state, no_operators(stringify!($class)));
                let (kind, recurrent_activation) = $kind(self);
                Ok(LayerLowering::Recurrent(lowering::RecurrentLowering {
                    kind,
                    units: self.units,
                    activation: self.activation,
                    recurrent_activation,
                    use_bias: self.use_bias,
                    go_backwards: self.go_backwards,
                    return_sequences: self.return_sequences,
                }))
            }

            fn masks(&self) -> Result<MaskPropagation> {
                ensure!(self.return_sequences, wrong(stringify!($class), "return_sequences to pass masks on", false));
                Ok(MaskPropagation::First)
            }

            /// PyTorch has two summed biases where Keras has one, except for GRU.
            fn weight_roles(&self) -> Vec<WeightRole> {
                let (order, both_biases) = match $kind(self).0 {
                    RecurrentCell::Simple => (vec![0], false),
                    RecurrentCell::Lstm => (vec![0, 1, 2, 3], false),
                    RecurrentCell::Gru { .. } => (vec![1, 0, 2], true),
                };
                let kernel = |name, torch| WeightRole::new(name, torch, WeightLayout::Gates(order.clone()));
                let bias = WeightLayout::GateBiases { order: order.clone(), both: both_biases };
                vec![
                    kernel("kernel", "weight_ih_l0"),
                    kernel("recurrent_kernel", "weight_hh_l0"),
                    WeightRole::new("bias", "bias_ih_l0", bias),
                ]
            }
        }
    };
}

recurrent!(
    /// `x: T[B, S, K] → T[B, units]`, or `T[B, S, units]` with `return_sequences`: fully connected recurrent layer
    /// (Elman network).
    ///
    /// `h ← activation(x · kernel + h · recurrent_kernel + bias)`, from zeros. Weights: `kernel: f32[K, units]`,
    /// `recurrent_kernel: f32[units, units]`, `bias: f32[units]`.
    SimpleRNN {} |_: &SimpleRNN| (RecurrentCell::Simple, Activation::Linear)
);

recurrent!(
    /// `x: T[B, S, K] → T[B, units]`, or `T[B, S, units]` with `return_sequences`: long short-term memory.
    ///
    /// Gates `i, f, o = recurrent_activation(x · kernel + h · recurrent_kernel + bias)` and a candidate `g =
    /// activation(…)` give the cell state `c ← f · c + i · g` and the hidden state `h ← o · activation(c)`, from zeros.
    /// Weights, with columns in the order i, f, g, o: `kernel: f32[K, 4·units]`, `recurrent_kernel: f32[units,
    /// 4·units]`, `bias: f32[4·units]`. Source: Hochreiter and Schmidhuber 1997, Gers, Schmidhuber and Cummins 2000.
    ///
    /// ```
    /// use systole_nn::layers::lstm;
    /// assert!(lstm(256).return_sequences(true).recurrent_dropout(0.2).check().is_ok());
    /// ```
    LSTM {
        /// Activation of the gates. Default: sigmoid.
        #[serde(deserialize_with = "argument::activation")]
        recurrent_activation: Activation = Activation::Sigmoid,
        /// Whether the forget gate's bias is initialized to 1. Default: true.
        unit_forget_bias: bool = true,
    } |own: &LSTM| (RecurrentCell::Lstm, own.recurrent_activation)
);

recurrent!(
    /// `x: T[B, S, K] → T[B, units]`, or `T[B, S, units]` with `return_sequences`: gated recurrent unit.
    ///
    /// Gates `z, r = recurrent_activation(x · kernel + h · recurrent_kernel + bias)` and a candidate `g = activation(x
    /// · kernel + r · (h · recurrent_kernel + bias₁) + bias₀)` give `h ← z · h + (1 − z) · g`, from zeros. Without
    /// `reset_after` the candidate uses `(r · h) · recurrent_kernel`. Weights, with columns in the order z, r, g:
    /// `kernel: f32[K, 3·units]`, `recurrent_kernel: f32[units, 3·units]`, `bias: f32[2, 3·units]` (for inputs and
    /// state) or, without `reset_after`, `f32[3·units]`. Source: Cho et al. 2014.
    GRU {
        /// Activation of the gates. Default: sigmoid.
        #[serde(deserialize_with = "argument::activation")]
        recurrent_activation: Activation = Activation::Sigmoid,
        /// Whether the reset gate is applied after the recurrent matrix product. Default: true.
        reset_after: bool = true,
    } |own: &GRU| (RecurrentCell::Gru { reset_after: own.reset_after }, own.recurrent_activation)
);

/// Settings common to all recurrent layers, for one call.
struct Recurrence<'a> {
    class: &'static str,
    units: usize,
    dropout: f64,
    recurrent_dropout: f64,
    return_sequences: bool,
    return_state: bool,
    go_backwards: bool,
    unroll: bool,
    zero_output_for_mask: bool,
    /// `bool[S, B]`: mask in processing order.
    mask: Option<Tensor>,
    /// `bool[S, B]`: mask in the order of the input, which the outputs have too.
    passed: Option<Tensor>,
    /// Initial states `T[B, units]`; `None`: zeros.
    initial: Option<&'a [Tensor]>,
}

/// Returns the mask of `x: T[B, S, K]` as `bool[S, B]`, in processing order; `None` if it has no mask.
pub(super) fn steps_mask(cx: &Cx, x: &Tensor, backwards: bool) -> Option<Tensor> {
    let mask = cx.mask_of(x).filter(|mask| mask.shape().dims() == &x.shape()[..2])?;
    let steps = mask.transpose(&[1, 0]);
    Some(if backwards { steps.reverse(&[0]) } else { steps })
}

/// Selects rows: `of: bool[B], a, b: T[B, N] → T[B, N]`, `a` if `of` is true, otherwise `b`.
fn rows(of: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    of.broadcast_in_dim(a.shape(), &[0]).select(a, b)
}

impl Recurrence<'_> {
    /// Rejects another number or type of initial states than the cell has.
    fn check_states(&self, cell: RecurrentCell, x: &Tensor) -> Result<()> {
        let Some(initial) = self.initial else { return Ok(()) };
        let arrays = if matches!(cell, RecurrentCell::Lstm) { 2 } else { 1 };
        let dims = [x.shape().first().copied().unwrap_or(0), self.units];
        let needs = format!("a sequence and {arrays} initial states [{}, {}]", dims[0], dims[1]);
        let hint = "pass the states of a layer with the same units: layer.on(&[&x, &state])";
        if initial.len() != arrays {
            return Err(wrong(self.class, &needs, format!("{} states", initial.len())).hint(hint));
        }
        match initial.iter().find(|state| state.shape().dims() != dims) {
            Some(state) => Err(unfit(self.class, &needs, state.ty()).hint(hint)),
            None => Ok(()),
        }
    }

    /// Prepares the inputs: `x: T[B, S, K] → T[S, B, K]`, in processing order, with input dropout.
    fn inputs(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 3 || x.dim(1) == 0 || x.dim(2) == 0 {
            return Err(unfit(self.class, "sequences of at least one step and feature [B, S, K]", x.ty())
                .hint("put reshape([steps, features]) or an embedding before the layer"));
        }
        if cx.decoding().is_some() && (self.go_backwards || !self.return_sequences) {
            return Err(err!(Unsupported, "the model cannot generate token by token")
                .because("the recurrent layer does not output one state per token in token order")
                .hint(
                    "train a model whose recurrent layers have return_sequences = true and go_backwards = false",
                ));
        }
        let x = cast(cx, x);
        let dropped = match dropped(cx, &[x.dim(0), x.dim(2)], self.dropout, x.dtype()) {
            Some(factor) => &x * factor.broadcast_in_dim(x.shape(), &[0, 2]),
            None => x,
        };
        let steps = dropped.transpose(&[1, 0, 2]);
        Ok(if self.go_backwards { steps.reverse(&[0]) } else { steps })
    }

    /// Runs the recurrence: `steps: T[S, B, N] → T[B, units]` or `T[B, S, units]`.
    ///
    /// `step(state, state[0] · kernel, one of steps)` returns the next state, whose first array is the output. The
    /// state starts as `arrays` zeros `T[B, units]`.
    fn over(
        &self,
        cx: &mut Cx,
        steps: &Tensor,
        kernel: &Tensor,
        arrays: usize,
        step: impl Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Tensor>,
    ) -> Tensor {
        let batch = steps.dim(1);
        let widths = std::iter::repeat_n(self.units, arrays).chain([kernel.dim(1)]);
        let start = widths.enumerate().map(|(i, width)| {
            let zeros = || cx.builder().full(&TensorType::new(steps.dtype(), [batch, width]), 0.0);
            cx.kept(&format!("state_{i}"), steps.dtype(), &[batch, width]).unwrap_or_else(zeros)
        });
        let mut start: Vec<Tensor> = start.collect();
        // Dropout applies to the state only in the recurrent product, not in the stored state.
        let factor = dropped(cx, &[batch, self.units], self.recurrent_dropout, steps.dtype());
        let seen = |state: &Tensor| factor.as_ref().map_or(state.clone(), |f| state * f);
        if let Some(initial) = self.initial {
            start = initial.iter().map(|state| cast(cx, state)).collect();
            start.push(seen(&start[0]).dot(kernel));
        }
        let step = |state: &[Tensor], x: &[Tensor]| {
            let (state, product) = state.split_at(arrays);
            let mut next = step(state, &product[0], &x[0]);
            if let Some(counts) = x.get(1) {
                // A masked step leaves the state unchanged.
                next = next.iter().zip(state).map(|(new, old)| rows(counts, new, old)).collect();
            }
            next.push(seen(&next[0]).dot(kernel));
            next
        };
        let fed: Vec<&Tensor> = std::iter::once(steps).chain(&self.mask).collect();
        let (last, all) = if self.unroll { unrolled(&fed, start, step) } else { scanned(&fed, start, step) };
        last.iter().enumerate().for_each(|(i, state)| cx.keep(&format!("state_{i}"), state));
        let (mut y, zeroes) = match self.return_sequences {
            true => (all.transpose(&[1, 0, 2]), self.mask.as_ref().map(|mask| mask.transpose(&[1, 0]))),
            false => {
                let end = self.mask.as_ref().map(|mask| mask.slice_dim(0, mask.dim(0) - 1, mask.dim(0)));
                (last[0].clone(), end.map(|end| end.reshape([batch])))
            }
        };
        if let Some(counts) = zeroes.filter(|_| self.zero_output_for_mask) {
            let dims: Vec<usize> = (0..counts.rank()).collect();
            y = counts.broadcast_in_dim(y.shape(), &dims).select(&y, &y.zeros_like());
        }
        if !self.return_state {
            return y;
        }
        let as_step = |t: &Tensor| if t.rank() == 2 { t.reshape([batch, 1, self.units]) } else { t.clone() };
        let steps: Vec<Tensor> = std::iter::once(&y).chain(&last[..arrays]).map(as_step).collect();
        let y = Tensor::concatenate(&steps.iter().collect::<Vec<_>>(), 1);
        if let Some(mask) = self.passed.as_ref().filter(|_| self.return_sequences) {
            // The states are valid.
            let mask = mask.transpose(&[1, 0]);
            let valid = cx.builder().full(&TensorType::new(DType::Bool, [batch, arrays]), 1.0);
            cx.set_mask(&y, &Tensor::concatenate(&[&mask, &valid], 1));
        }
        y
    }

    /// Projects the inputs of all gates: `steps: T[S, B, K] → T[S, B, columns]`.
    fn project(
        &self,
        cx: &mut Cx,
        steps: &Tensor,
        columns: usize,
        initializer: &Initializer,
    ) -> Result<Tensor> {
        Ok(steps.dot(&weight(cx, self.class, "kernel", &[steps.dim(2), columns], initializer)?))
    }
}

/// Runs the steps in a loop. Returns the last state, whose first array is the last output `T[B, N]`, and all outputs
/// `T[S, B, N]`.
pub(super) fn scanned(
    fed: &[&Tensor],
    start: Vec<Tensor>,
    step: impl Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>,
) -> (Vec<Tensor>, Tensor) {
    let start: Vec<&Tensor> = start.iter().collect();
    let (last, mut all) = control_builders::scan(&start, fed, |state, x| {
        let next = step(state, x);
        let output = next[0].clone();
        (next, vec![output])
    });
    let all = all.pop().unwrap_or_else(|| last[0].clone());
    (last, all)
}

/// Like [`scanned`], but unrolled.
fn unrolled(
    fed: &[&Tensor],
    start: Vec<Tensor>,
    step: impl Fn(&[Tensor], &[Tensor]) -> Vec<Tensor>,
) -> (Vec<Tensor>, Tensor) {
    let mut state = start;
    let steps = fed.first().map_or(0, |steps| steps.dim(0));
    let mut outputs = Vec::with_capacity(steps);
    for s in 0..steps {
        let one = |x: &&Tensor| x.slice_dim(0, s, s + 1).reshape(&x.shape()[1..]);
        state = step(&state, &fed.iter().map(one).collect::<Vec<_>>());
        outputs.push(state[0].reshape([1, state[0].dim(0), state[0].dim(1)]));
    }
    let all = Tensor::concatenate(&outputs.iter().collect::<Vec<_>>(), 0);
    (state, all)
}

/// Dropout factors `→ T[shape]`: 0 for dropped elements, otherwise `1 / (1 − rate)`. `None` without dropout.
pub(super) fn dropped(cx: &mut Cx, shape: &[usize], rate: f64, dtype: DType) -> Option<Tensor> {
    if rate == 0.0 {
        return None;
    }
    let kept = kept(cx, shape, rate)?;
    let value = |v: f64| cx.builder().full(&TensorType::new(dtype, shape), v);
    let stays = if rate < 1.0 { 1.0 / (1.0 - rate) } else { 0.0 };
    Some(kept.select(&value(stays), &value(0.0)))
}

/// Returns part `k` of `x: T[B, n·units] → T[B, units]`.
fn part(x: &Tensor, units: usize, k: usize) -> Tensor {
    x.slice_dim(1, k * units, (k + 1) * units)
}

impl SimpleRNN {
    fn build(&self, cx: &mut Cx, run: &Recurrence<'_>, steps: &Tensor) -> Result<Tensor> {
        let units = self.units;
        let mut x = run.project(cx, steps, units, &self.kernel_initializer)?;
        let recurrent =
            weight(cx, run.class, "recurrent_kernel", &[units, units], &self.recurrent_initializer)?;
        if self.use_bias {
            x = x + weight(cx, run.class, "bias", &[units], &self.bias_initializer)?;
        }
        Ok(run.over(cx, &x, &recurrent, 1, |_, product, x| vec![self.activation.apply(&(x + product))]))
    }
}

impl LSTM {
    fn build(&self, cx: &mut Cx, run: &Recurrence<'_>, steps: &Tensor) -> Result<Tensor> {
        let (units, columns) = (self.units, 4 * self.units);
        let mut x = run.project(cx, steps, columns, &self.kernel_initializer)?;
        let recurrent =
            weight(cx, run.class, "recurrent_kernel", &[units, columns], &self.recurrent_initializer)?;
        if self.use_bias {
            let others = self.bias_initializer.clone();
            let initializer = match self.unit_forget_bias {
                true => Initializer::UnitForgetBias { others: Box::new(others) },
                false => others,
            };
            x = x + weight(cx, run.class, "bias", &[columns], &initializer)?;
        }
        let gate = |z: &Tensor, k: usize| self.recurrent_activation.apply(&part(z, units, k));
        Ok(run.over(cx, &x, &recurrent, 2, |state, product, x| {
            let z = x + product;
            let candidate = self.activation.apply(&part(&z, units, 2));
            let memory = gate(&z, 1) * &state[1] + gate(&z, 0) * candidate;
            vec![gate(&z, 3) * self.activation.apply(&memory), memory]
        }))
    }
}

impl GRU {
    fn build(&self, cx: &mut Cx, run: &Recurrence<'_>, steps: &Tensor) -> Result<Tensor> {
        let (units, columns) = (self.units, 3 * self.units);
        let mut x = run.project(cx, steps, columns, &self.kernel_initializer)?;
        let recurrent =
            weight(cx, run.class, "recurrent_kernel", &[units, columns], &self.recurrent_initializer)?;
        let mut inner_bias = None;
        if self.use_bias && self.reset_after {
            let both = weight(cx, run.class, "bias", &[2, columns], &self.bias_initializer)?;
            let row = |k: usize| both.slice_dim(0, k, k + 1).reshape([columns]);
            x = x + row(0);
            inner_bias = Some(row(1));
        } else if self.use_bias {
            x = x + weight(cx, run.class, "bias", &[columns], &self.bias_initializer)?;
        }
        let gate = |z: &Tensor| self.recurrent_activation.apply(z);
        let mix = |update: &Tensor, state: &Tensor, candidate: &Tensor| {
            update * state + (1.0 - update) * self.activation.apply(candidate)
        };
        if self.reset_after {
            return Ok(run.over(cx, &x, &recurrent, 1, |state, product, x| {
                let inner = inner_bias.as_ref().map_or(product.clone(), |b| product + b);
                let of = |k: usize| (part(x, units, k), part(&inner, units, k));
                let [(xz, hz), (xr, hr), (xg, hg)] = [of(0), of(1), of(2)];
                vec![mix(&gate(&(xz + hz)), &state[0], &(xg + gate(&(xr + hr)) * hg))]
            }));
        }
        let (of_gates, of_candidate) =
            (recurrent.slice_dim(1, 0, 2 * units), recurrent.slice_dim(1, 2 * units, columns));
        let factor = dropped(cx, &[x.dim(1), units], self.recurrent_dropout, x.dtype());
        Ok(run.over(cx, &x, &of_gates, 1, |state, product, x| {
            let of = |k: usize| gate(&(part(x, units, k) + part(product, units, k)));
            let (update, reset) = (of(0), of(1));
            let seen = factor.as_ref().map_or(state[0].clone(), |f| &state[0] * f);
            let candidate = part(x, units, 2) + (reset * seen).dot(&of_candidate);
            vec![mix(&update, &state[0], &candidate)]
        }))
    }
}

constructors!(LayerSpec:
    /// `x: T[B, S, K] → T[B, units]`, or `T[B, S, units]` with `return_sequences`: long short-term memory over a
    /// sequence. Arguments: [`LSTM`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::lstm, Model};
    /// let layer = lstm(32).return_sequences(true);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 8])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn lstm(units: usize) = LSTM { units, ..Default::default() };

    /// `x: T[B, S, K] → T[B, units]`, or `T[B, S, units]` with `return_sequences`: a gated recurrent unit over a
    /// sequence. Arguments: [`GRU`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::gru, Model};
    /// let layer = gru(32);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 8])])?;
    /// assert_eq!(output.shape.dims(), [32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn gru(units: usize) = GRU { units, ..Default::default() };

    /// `x: T[B, S, K] → T[B, units]`, or `T[B, S, units]` with `return_sequences`: a fully connected recurrent layer.
    /// Arguments: [`SimpleRNN`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::simple_rnn, Model};
    /// let layer = simple_rnn(32);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 8])])?;
    /// assert_eq!(output.shape.dims(), [32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn simple_rnn(units: usize) = SimpleRNN { units, ..Default::default() };
);

setters!(LayerSpec:
    /// Whether a recurrent layer outputs 0 at masked steps.
    zero_output_for_mask: bool as bool;
    /// Activation of a recurrent layer's gates.
    recurrent_activation: impl Into<Value> as Value;
    /// Initializer of a recurrent layer's recurrent kernel.
    recurrent_initializer: impl Into<Value> as Value;
    /// Whether the bias of LSTM's forget gate is initialized to 1.
    unit_forget_bias: bool as bool;
    /// Whether GRU's reset gate is applied after the recurrent matrix product.
    reset_after: bool as bool;
    /// Dropout rate of a recurrent layer's state.
    recurrent_dropout: f64 as f64;
    /// Whether a recurrent layer outputs every step's state instead of the last one.
    return_sequences: bool as bool;
    /// Whether a recurrent layer processes the sequence in reverse.
    go_backwards: bool as bool;
    /// Whether a recurrent layer is unrolled in the graph instead of using a loop.
    unroll: bool as bool;
    /// Whether a recurrent layer's final states follow its outputs as further steps.
    return_state: bool as bool;
    /// Whether a recurrent layer takes its initial states as further inputs.
    initial_state: bool as bool;
);

const RECURRENT: &[&str] = &["kernel", "recurrent_kernel", "bias"];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(lstm(4), &[2, 5, 3], &[2, 4], RECURRENT, Some(&[2, 5])),
        LayerSample::new(
            lstm(4).return_sequences(true).dropout(0.3),
            &[2, 5, 3],
            &[2, 5, 4],
            RECURRENT,
            Some(&[2, 0, 3]),
        ),
        LayerSample::new(
            gru(4).return_sequences(true).unroll(true),
            &[2, 5, 3],
            &[2, 5, 4],
            RECURRENT,
            Some(&[2, 5, 0]),
        ),
        LayerSample::new(
            gru(4).reset_after(false).recurrent_dropout(0.3),
            &[2, 5, 3],
            &[2, 4],
            RECURRENT,
            Some(&[2, 5]),
        ),
        LayerSample::new(simple_rnn(4).go_backwards(true), &[2, 5, 3], &[2, 4], RECURRENT, Some(&[2, 5])),
        LayerSample::new(
            lstm(4).return_sequences(true).return_state(true),
            &[2, 5, 3],
            &[2, 7, 4],
            RECURRENT,
            Some(&[2, 5]),
        ),
        LayerSample {
            spec: gru(4).initial_state(true).return_state(true),
            inputs: vec![f32s(&[2, 5, 3]), f32s(&[2, 4])],
            output: vec![2, 2, 4],
            weights: RECURRENT,
            refused: Some(vec![f32s(&[2, 5, 3]), f32s(&[2, 3])]),
        },
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
