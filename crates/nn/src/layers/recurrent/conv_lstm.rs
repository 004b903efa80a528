//! ConvLSTM1D, ConvLSTM2D and ConvLSTM3D layers: LSTM whose products are convolutions.

use crate::layer::activation::Activation;
use crate::layers::built_in::*;
use crate::layers::random::dropout::check_rate;
use crate::layers::recurrent::rnn::{dropped, scanned, steps_mask};
use crate::layers::sample::*;
use crate::layers::sliding_window::SlidingWindow;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, S, …, C] → T[B, …', filters]`, or `T[B, S, …', filters]` with `return_sequences`: convolutional LSTM over
    /// `N` spatial dimensions.
    ///
    /// Gates `i, f, o = recurrent_activation(conv(x, kernel) + conv(h, recurrent_kernel) + bias)` and a candidate `g =
    /// activation(…)` give the cell state `c ← f · c + i · g` and the hidden state `h ← o · activation(c)`, from zeros. The
    /// convolution of the state has padding "same". Source: Shi et al. 2015.
    pub struct ConvLSTM<const N: usize> {
        /// Number of output channels. Required.
        pub filters: usize = 0,
        /// Size of the window along each spatial dimension. Required.
        pub kernel_size: Sizes<N> = Sizes([0; N]),
        /// Strides of the window over the input; 1 each by default.
        pub strides: Sizes<N> = Sizes([1; N]),
        /// Padding mode of the input: "valid" or "same". Default: "valid".
        pub padding: Padding = Padding::Valid,
        /// Dilation of the window over the input; 1 each by default.
        pub dilation_rate: Sizes<N> = Sizes([1; N]),
        /// Activation of candidate and new state. Default: tanh.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Tanh,
        /// Activation of the gates. Default: sigmoid.
        #[serde(deserialize_with = "argument::activation")]
        pub recurrent_activation: Activation = Activation::Sigmoid,
        /// Whether a bias is added. Default: true.
        pub use_bias: bool = true,
        /// Whether the forget gate's bias is initialized to 1. Default: true.
        pub unit_forget_bias: bool = true,
        /// Initializer of the input kernel. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the recurrent kernel. Default: `orthogonal`.
        pub recurrent_initializer: Initializer = Initializer::Orthogonal { gain: 1.0 },
        /// Initializer of the bias. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
        /// Dropout rate of the input, with the same mask at every step. Default: 0.
        pub dropout: f64 = 0.0,
        /// Dropout rate of the state, with the same mask at every step. Default: 0.
        pub recurrent_dropout: f64 = 0.0,
        /// Whether the output contains every step's state instead of the last one. Default: false.
        pub return_sequences: bool = false,
        /// Whether the sequence is processed in reverse; outputs are then in that order. Default: false.
        pub go_backwards: bool = false,
        /// Whether the output at masked steps is 0 instead of the previous step's. Default: false.
        pub zero_output_for_mask: bool = false,
        /// Whether hidden and cell state follow the outputs as two further steps. Default: false.
        pub return_state: bool = false,
    }
}

/// `x: T[B, S, W, C] → T[B, W', filters]`: convolutional LSTM over sequences of rows.
///
/// Weights: `kernel: f32[k, C, 4·filters]`, `recurrent_kernel: f32[k, filters, 4·filters]`, `bias: f32[4·filters]`.
pub type ConvLSTM1D = ConvLSTM<1>;

/// `x: T[B, S, H, W, C] → T[B, H', W', filters]`: convolutional LSTM over sequences of images.
///
/// Weights: `kernel: f32[kh, kw, C, 4·filters]`, `recurrent_kernel: f32[kh, kw, filters, 4·filters]`, `bias:
/// f32[4·filters]`.
pub type ConvLSTM2D = ConvLSTM<2>;

/// `x: T[B, S, D, H, W, C] → T[B, D', H', W', filters]`: convolutional LSTM over sequences of volumes.
///
/// Weights: `kernel: f32[kd, kh, kw, C, 4·filters]`, `recurrent_kernel: f32[kd, kh, kw, filters, 4·filters]`, `bias:
/// f32[4·filters]`.
pub type ConvLSTM3D = ConvLSTM<3>;

impl<const N: usize> ConvLSTM<N> {
    fn sliding(&self) -> SlidingWindow {
        SlidingWindow::of_kernel(
            self.class_name(),
            self.kernel_size,
            self.strides,
            self.dilation_rate,
            self.padding,
        )
    }

    /// Convolves the inputs of all steps at once: `x: T[B, S, …, C] → T[S, B, …', 4·filters]`, in processing order.
    fn inputs(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let (class, columns, sliding) = (self.class_name(), 4 * self.filters, self.sliding());
        let mut x = cast(cx, x);
        let (batch, steps) = (x.dim(0), x.dim(1));
        let one_step = [&[batch], &x.shape()[2..]].concat();
        if let Some(factor) = dropped(cx, &one_step, self.dropout, x.dtype()) {
            let dims: Vec<usize> = (0..x.rank()).filter(|d| *d != 1).collect();
            x = &x * factor.broadcast_in_dim(x.shape(), &dims);
        }
        let order: Vec<usize> = [1, 0].into_iter().chain(2..x.rank()).collect();
        let frames = x.transpose(&order).reshape([&[steps * batch], &one_step[1..]].concat());
        let padding = sliding.padding_for(&frames)?;
        let shape = [&self.kernel_size.0[..], &[channels_of(class, &frames)?, columns]].concat();
        let kernel = weight(cx, class, "kernel", &shape, &self.kernel_initializer)?;
        let y = sliding.convolve(&frames, &kernel, &padding, 1);
        let y = y.reshape([&[steps, batch], &y.shape()[1..]].concat());
        Ok(if self.go_backwards { y.reverse(&[0]) } else { y })
    }

    /// Returns the recurrent kernel and the bias.
    fn weights(&self, cx: &mut Cx) -> Result<(Tensor, Option<Tensor>)> {
        let (class, columns) = (self.class_name(), 4 * self.filters);
        let shape = [&self.kernel_size.0[..], &[self.filters, columns]].concat();
        let kernel = weight(cx, class, "recurrent_kernel", &shape, &self.recurrent_initializer)?;
        let others = self.bias_initializer.clone();
        let initializer = match self.unit_forget_bias {
            true => Initializer::UnitForgetBias { others: Box::new(others) },
            false => others,
        };
        let bias = self.use_bias.then(|| weight(cx, class, "bias", &[columns], &initializer));
        Ok((kernel, bias.transpose()?))
    }

    /// Computes the next hidden and cell state from the sum `z: T[B, …, 4·filters]` of both convolutions.
    fn cell(&self, z: &Tensor, memory: &Tensor) -> Vec<Tensor> {
        let part = |k: usize| z.slice_dim(z.rank() - 1, k * self.filters, (k + 1) * self.filters);
        let gate = |k: usize| self.recurrent_activation.apply(&part(k));
        let memory = gate(1) * memory + gate(0) * self.activation.apply(&part(2));
        vec![gate(3) * self.activation.apply(&memory), memory]
    }
}

/// Selects rows: `of: bool[B], a, b: T[B, …] → T[B, …]`, `a` if `of` is true, otherwise `b`.
fn rows(of: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    of.broadcast_in_dim(a.shape(), &[0]).select(a, b)
}

impl<const N: usize> Arguments for ConvLSTM<N> {
    fn check(&self) -> Result<()> {
        let class = self.class_name();
        check_filters(class, self.filters)?;
        check_rate(class, "dropout", self.dropout)?;
        check_rate(class, "recurrent_dropout", self.recurrent_dropout)?;
        self.sliding().check()
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() != N + 3 || x.dim(1) == 0 {
            let needs = ["sequences of rows [B, S, W, C]", "sequences of images [B, S, H, W, C]"];
            let needs = needs.get(N - 1).copied().unwrap_or("sequences of volumes [B, S, D, H, W, C]");
            return Err(unfit(self.class_name(), needs, x.ty()).hint("put a reshape before the layer"));
        }
        let inputs = self.inputs(cx, x)?;
        let (kernel, bias) = self.weights(cx)?;
        let inputs = bias.map_or(inputs.clone(), |bias| inputs + bias);
        let same = SlidingWindow {
            strides: vec![1; N],
            dilation: vec![1; N],
            padding: Padding::Same,
            ..self.sliding()
        };
        let state = [&inputs.shape()[1..=N + 1], &[self.filters]].concat();
        let zeros = inputs.builder().full(&TensorType::new(inputs.dtype(), &state[..]), 0.0);
        let padding = same.padding_for(&zeros)?;
        let factor = dropped(cx, &state, self.recurrent_dropout, inputs.dtype());
        let mask = steps_mask(cx, x, self.go_backwards);
        let fed: Vec<&Tensor> = std::iter::once(&inputs).chain(&mask).collect();
        let (last, all) = scanned(&fed, vec![zeros.clone(), zeros], |state, x| {
            let seen = factor.as_ref().map_or(state[0].clone(), |f| &state[0] * f);
            let next = self.cell(&(&x[0] + same.convolve(&seen, &kernel, &padding, 1)), &state[1]);
            match x.get(1) {
                Some(counts) => next.iter().zip(state).map(|(new, old)| rows(counts, new, old)).collect(),
                None => next,
            }
        });
        Ok(self.collected(&last, &all, mask.as_ref()))
    }
}

impl<const N: usize> ConvLSTM<N> {
    /// Returns the outputs, with the states as further steps if requested: `all: T[S, B, …', filters]`.
    fn collected(&self, last: &[Tensor], all: &Tensor, mask: Option<&Tensor>) -> Tensor {
        let mask = mask.filter(|_| self.zero_output_for_mask);
        let by_sample: Vec<usize> = [1, 0].into_iter().chain(2..all.rank()).collect();
        let y = match self.return_sequences {
            true => {
                let zeroed =
                    mask.map(|m| m.broadcast_in_dim(all.shape(), &[0, 1]).select(all, &all.zeros_like()));
                zeroed.as_ref().unwrap_or(all).transpose(&by_sample)
            }
            false => {
                let end = mask.map(|m| m.slice_dim(0, m.dim(0) - 1, m.dim(0)).reshape([m.dim(1)]));
                end.map_or(last[0].clone(), |end| rows(&end, &last[0], &last[0].zeros_like()))
            }
        };
        if !self.return_state {
            return y;
        }
        let as_step = |t: &Tensor| match t.rank() == all.rank() {
            true => t.clone(),
            false => t.reshape([&t.shape()[..1], &[1], &t.shape()[1..]].concat()),
        };
        let steps: Vec<Tensor> = std::iter::once(&y).chain(last).map(as_step).collect();
        Tensor::concatenate(&steps.iter().collect::<Vec<_>>(), 1)
    }
}

impl<const N: usize> Layer for ConvLSTM<N> {
    named!(by_rank::<N, 3>(["ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"]), one_input);

    fn masks(&self) -> Result<MaskPropagation> {
        ensure!(self.return_sequences, wrong(self.class_name(), "return_sequences to pass masks on", false));
        Ok(MaskPropagation::First)
    }
}

constructors!(LayerSpec:
    /// `x: T[B, S, W, C] → T[B, W', filters]`: convolutional LSTM over sequences of rows. Arguments: [`ConvLSTM1D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv_lstm1d, Model};
    /// let output = Model::sequential([conv_lstm1d(4, 3)]).output_for(&[TensorType::new(F32, [5, 16, 2])])?;
    /// assert_eq!(output.shape.dims(), [14, 4]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv_lstm1d(filters: usize, kernel_size: usize) =
        ConvLSTM1D { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, S, H, W, C] → T[B, H', W', filters]`: convolutional LSTM over sequences of images. Arguments:
    /// [`ConvLSTM2D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv_lstm2d, Model};
    /// let layer = conv_lstm2d(4, 3).padding("same").return_sequences(true);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [5, 16, 16, 2])])?;
    /// assert_eq!(output.shape.dims(), [5, 16, 16, 4]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv_lstm2d(filters: usize, kernel_size: impl Into<Sizes<2>>) =
        ConvLSTM2D { filters, kernel_size: kernel_size.into(), ..Default::default() };

    /// `x: T[B, S, D, H, W, C] → T[B, D', H', W', filters]`: convolutional LSTM over sequences of volumes. Arguments:
    /// [`ConvLSTM3D`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::conv_lstm3d, Model};
    /// let layer = conv_lstm3d(2, (1, 3, 3));
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [5, 2, 8, 8, 1])])?;
    /// assert_eq!(output.shape.dims(), [2, 6, 6, 2]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn conv_lstm3d(filters: usize, kernel_size: impl Into<Sizes<3>>) =
        ConvLSTM3D { filters, kernel_size: kernel_size.into(), ..Default::default() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    const WEIGHTS: &[&str] = &["kernel", "recurrent_kernel", "bias"];
    let images = &[2, 3, 5, 4, 2];
    let last = conv_lstm2d(3, 2).return_state(true).dropout(0.2).recurrent_dropout(0.2);
    vec![
        LayerSample::new(conv_lstm1d(3, 2), &[2, 3, 5, 2], &[2, 4, 3], WEIGHTS, Some(images)),
        LayerSample::new(
            conv_lstm2d(3, 3).padding("same").strides(2).return_sequences(true),
            images,
            &[2, 3, 3, 2, 3],
            WEIGHTS,
            Some(IMAGE),
        ),
        LayerSample::new(last, images, &[2, 3, 4, 3, 3], WEIGHTS, Some(&[2, 0, 5, 4, 2])),
        LayerSample::new(
            conv_lstm3d(2, (1, 2, 2)).go_backwards(true),
            &[1, 2, 2, 3, 3, 2],
            &[1, 2, 2, 2, 2],
            WEIGHTS,
            Some(VOLUME),
        ),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "conv_lstm1d", "class": "ConvLSTM1D", "x_shape": [2, 3, 5, 2], "kwargs": {"filters": 2, "kernel_size": 3}},
    {"name": "conv_lstm2d", "class": "ConvLSTM2D", "x_shape": [2, 3, 5, 4, 2], "kwargs": {"filters": 2, "kernel_size": [2, 3], "padding": "same", "strides": 2, "return_sequences": true}},
    {"name": "conv_lstm2d_dilated", "class": "ConvLSTM2D", "x_shape": [1, 3, 5, 5, 2], "kwargs": {"filters": 2, "kernel_size": 2, "dilation_rate": 2, "go_backwards": true, "use_bias": false}},
    {"name": "conv_lstm3d", "class": "ConvLSTM3D", "x_shape": [1, 2, 3, 3, 3, 2], "kwargs": {"filters": 1, "kernel_size": 2, "recurrent_activation": "hard_sigmoid"}}
]"#;
