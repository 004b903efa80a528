//! TransformerBlock layer: self-attention and feed-forward network, each with residual connection and layer
//! normalization.

use super::multi_head_attention::MultiHeadAttention;
use crate::layer::activation::Activation;
use crate::layers::built_in::*;
use crate::layers::core::dense::Dense;
use crate::layers::norm::normalization::LayerNormalization;
use crate::layers::random::dropout::{Dropout, check_rate};
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, S, D] → T[B, S, D]`: self-attention and feed-forward network, each with residual and layer
    /// normalization.
    ///
    /// Arguments and weights are those of KerasHub's `TransformerDecoder` without cross-attention or, without the
    /// causal mask, `TransformerEncoder`: `self_attention/…` (see [`MultiHeadAttention`]),
    /// `self_attention_layer_norm/…`, `feedforward_intermediate_dense/…`, `feedforward_output_dense/…`,
    /// `feedforward_layer_norm/…`. Source: Vaswani et al. 2017; pre-norm: Radford et al. 2019.
    ///
    /// ```
    /// use systole_nn::layers::transformer_block;
    /// let block = transformer_block(3072, 12).normalize_first(true).use_causal_mask(true).dropout(0.1);
    /// assert!(block.check().is_ok());
    /// ```
    pub struct TransformerBlock {
        /// Hidden width of the feed-forward network. Required.
        pub intermediate_dim: usize = 0,
        /// Number of attention heads, a divisor of the features. Required.
        pub num_heads: usize = 0,
        /// Dropout rate of attention weights and of the outputs of both sublayers. Default: 0.
        pub dropout: f64 = 0.0,
        /// Activation inside the feed-forward network. Default: relu.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Relu,
        /// Epsilon added to variances. Default: 1e-5.
        pub layer_norm_epsilon: f64 = 1e-5,
        /// Initializer of the kernels. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the biases. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
        /// Whether each sublayer's input is normalized (pre-norm) instead of its sum with the output. Default: false.
        pub normalize_first: bool = false,
        /// Whether each position attends only to itself and earlier positions. Default: false.
        pub use_causal_mask: bool = false,
    }
}

impl Arguments for TransformerBlock {
    fn check(&self) -> Result<()> {
        for (name, size) in [("intermediate_dim", self.intermediate_dim), ("num_heads", self.num_heads)] {
            ensure!(size != 0, wrong("TransformerBlock", &format!("{name} of at least 1"), size));
        }
        at_least_0("TransformerBlock", "layer_norm_epsilon", self.layer_norm_epsilon)?;
        check_rate("TransformerBlock", "dropout", self.dropout)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let fits = x.rank() == 3 && x.dim(2) > 0 && x.dim(2).is_multiple_of(self.num_heads);
        if !fits {
            let needs = format!("a feature count divisible by its {} heads [B, S, D]", self.num_heads);
            return Err(unfit("TransformerBlock", &needs, x.ty())
                .hint("choose num_heads that divides the last dimension"));
        }
        let mask = cx.mask_of(x);
        let x = cast(cx, x);
        Ok(cx.weights_in_order(&PARTS, |cx| {
            let x = self.part(cx, &x, PARTS[1], |cx, x| {
                if let Some(mask) = &mask {
                    cx.set_mask(x, mask);
                }
                self.attend(cx, x)
            });
            self.part(cx, &x, PARTS[4], |cx, x| self.feed_forward(cx, x))
        }))
    }
}

/// Sublayers in Keras's weight order.
const PARTS: [&str; 5] = [
    "self_attention",
    "self_attention_layer_norm",
    "feedforward_intermediate_dense",
    "feedforward_output_dense",
    "feedforward_layer_norm",
];

impl Layer for TransformerBlock {
    named!("TransformerBlock", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::TransformerBlock {
            heads: self.num_heads,
            causal: self.use_causal_mask,
            activation: self.activation,
            epsilon: self.layer_norm_epsilon,
            normalize_first: self.normalize_first,
        })
    }

    /// Roles in `nn.TransformerEncoderLayer`.
    fn weight_roles(&self) -> Vec<WeightRole> {
        let role = |name: &str, torch: &str, layout| WeightRole::new(name, torch, layout);
        let mut all = attention_roles("self_attention/", "self_attn.");
        for (ours, theirs) in
            [("feedforward_intermediate_dense", "linear1"), ("feedforward_output_dense", "linear2")]
        {
            all.push(role(&format!("{ours}/kernel"), &format!("{theirs}.weight"), WeightLayout::Transposed));
            all.push(role(&format!("{ours}/bias"), &format!("{theirs}.bias"), WeightLayout::Same));
        }
        for (ours, theirs) in [("self_attention_layer_norm", "norm1"), ("feedforward_layer_norm", "norm2")] {
            all.push(role(&format!("{ours}/gamma"), &format!("{theirs}.weight"), WeightLayout::Same));
            all.push(role(&format!("{ours}/beta"), &format!("{theirs}.bias"), WeightLayout::Same));
        }
        all
    }
}

impl TransformerBlock {
    /// Residual sublayer: `x + dropout(inner(norm(x)))`, or `norm(x + dropout(inner(x)))`.
    fn part(
        &self,
        cx: &mut Cx,
        x: &Tensor,
        norm_name: &str,
        inner: impl FnOnce(&mut Cx, &Tensor) -> Tensor,
    ) -> Tensor {
        let norm = LayerNormalization { epsilon: self.layer_norm_epsilon, ..Default::default() };
        let normalize = |cx: &mut Cx, x: &Tensor| {
            cx.scope(norm_name, |cx| {
                let y = norm.call(cx, std::slice::from_ref(x));
                cx.given(std::slice::from_ref(x), y)
            })
        };
        let entering = if self.normalize_first { normalize(cx, x) } else { x.clone() };
        let y = inner(cx, &entering);
        let y = Dropout { rate: self.dropout, ..Default::default() }.call(cx, &[y]);
        let sum = x + &y;
        cx.made_as_sum(&sum, [x, &y], false);
        let sum = cx.rounded_within(&norm_name.replace("layer_norm", "sum"), sum);
        if self.normalize_first { sum } else { normalize(cx, &sum) }
    }

    fn attend(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let attention = MultiHeadAttention {
            num_heads: self.num_heads,
            key_dim: x.dim(2) / self.num_heads,
            dropout: self.dropout,
            use_causal_mask: self.use_causal_mask,
            kernel_initializer: self.kernel_initializer.clone(),
            bias_initializer: self.bias_initializer.clone(),
            ..Default::default()
        };
        cx.scope(PARTS[0], |cx| attention.call(cx, std::slice::from_ref(x)))
    }

    fn feed_forward(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let dense = |units, activation| Dense {
            units,
            activation,
            kernel_initializer: self.kernel_initializer.clone(),
            bias_initializer: self.bias_initializer.clone(),
            ..Default::default()
        };
        let inside = dense(self.intermediate_dim, self.activation);
        let outside = dense(x.dim(2), Activation::Linear);
        let mut run = |name: &str, layer: &Dense, x: &Tensor| {
            cx.scope(name, |cx| {
                let y = layer.call(cx, std::slice::from_ref(x));
                cx.given(std::slice::from_ref(x), y)
            })
        };
        let y = run(PARTS[2], &inside, x);
        run(PARTS[3], &outside, &y)
    }
}

constructors!(LayerSpec:
    /// `x: T[B, S, D] → T[B, S, D]`: self-attention and feed-forward network, each with residual and layer normalization.
    /// Arguments: [`TransformerBlock`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::transformer_block, Model};
    /// let layer = transformer_block(64, 4).normalize_first(true).use_causal_mask(true);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn transformer_block(intermediate_dim: usize, num_heads: usize) =
        TransformerBlock { intermediate_dim, num_heads, ..Default::default() };
);

setters!(LayerSpec:
    /// Epsilon added to the variances in a transformer block's layer normalizations.
    layer_norm_epsilon: f64 as f64;
    /// Whether a transformer block normalizes the inputs of its sublayers (pre-norm) instead of their sums.
    normalize_first: bool as bool;
);

const BLOCK: &[&str] = &[
    "self_attention/query/kernel",
    "self_attention/query/bias",
    "self_attention/key/kernel",
    "self_attention/key/bias",
    "self_attention/value/kernel",
    "self_attention/value/bias",
    "self_attention/attention_output/kernel",
    "self_attention/attention_output/bias",
    "self_attention_layer_norm/gamma",
    "self_attention_layer_norm/beta",
    "feedforward_intermediate_dense/kernel",
    "feedforward_intermediate_dense/bias",
    "feedforward_output_dense/kernel",
    "feedforward_output_dense/bias",
    "feedforward_layer_norm/gamma",
    "feedforward_layer_norm/beta",
];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(transformer_block(8, 2), &[2, 5, 4], &[2, 5, 4], BLOCK, Some(&[2, 5, 3])),
        LayerSample::new(
            transformer_block(8, 2).normalize_first(true).use_causal_mask(true),
            &[2, 5, 4],
            &[2, 5, 4],
            BLOCK,
            Some(&[5, 4]),
        ),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
