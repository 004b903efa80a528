//! GroupQueryAttention (GQA) layer: several query heads share one key and value head.

use crate::layers::attention::multi_head_attention::ATTENTION;
use crate::layers::built_in::*;
use crate::layers::masked_attention;
use crate::layers::random::dropout::{check_rate, kept};
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, setters};
use systole_ir::attention::{AttentionConfig, AttentionDropout};

arguments! {
    /// `query: T[B, S, D], value: T[B, T, D] (, key: T[B, T, E]) → T[B, S, D]`: grouped-query attention (GQA): groups
    /// of query heads share key and value heads.
    ///
    /// With one input, it is also value and key. Like [`MultiHeadAttention`](crate::layers::MultiHeadAttention), but
    /// each key and value head serves `num_query_heads / num_key_value_heads` query heads. Weights: `query/kernel:
    /// f32[D, num_query_heads, head_dim]`, `key/kernel: f32[E, num_key_value_heads, head_dim]`, `value/…` likewise,
    /// `attention_output/kernel: f32[num_query_heads, head_dim, D]`, with `use_gate` `gate/…` like `query/…`, each with
    /// its `bias`. Source: Ainslie et al. 2023.
    ///
    /// ```
    /// use systole_nn::layers::group_query_attention;
    /// assert!(group_query_attention(64, 8, 2).use_causal_mask(true).sliding_window(128).check().is_ok());
    /// let e = group_query_attention(64, 8, 3).check().unwrap_err().to_string();
    /// assert!(e.contains("num_key_value_heads that divide its 8 num_query_heads"), "{e}");
    /// ```
    pub struct GroupQueryAttention {
        /// Width of each head. Required.
        pub head_dim: usize = 0,
        /// Number of query heads. Required.
        pub num_query_heads: usize = 0,
        /// Number of key and value heads, a divisor of the number of query heads. Required.
        pub num_key_value_heads: usize = 0,
        /// Fraction of the attention weights dropped in training. Default: 0.
        pub dropout: f64 = 0.0,
        /// Whether projections add biases. Default: true.
        pub use_bias: bool = true,
        /// Each position attends only to positions less than this far away. Default: all positions.
        pub sliding_window: Option<usize> = None,
        /// Whether the heads are multiplied by a learned gate computed from the query. Default: false.
        pub use_gate: bool = false,
        /// Whether each position attends only to itself and earlier positions; a call argument in Keras. Default:
        /// false.
        pub use_causal_mask: bool = false,
        /// Initializer of the kernels. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the biases. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
    }
}

const CLASS: &str = "GroupQueryAttention";

impl Arguments for GroupQueryAttention {
    fn check(&self) -> Result<()> {
        let sizes = [
            ("head_dim", self.head_dim),
            ("num_query_heads", self.num_query_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("sliding_window", self.sliding_window.unwrap_or(1)),
        ];
        if let Some((name, is)) = sizes.into_iter().find(|(_, n)| *n == 0) {
            return Err(wrong(CLASS, &format!("{name} of at least 1"), is));
        }
        if !self.num_query_heads.is_multiple_of(self.num_key_value_heads) {
            let needs =
                format!("num_key_value_heads that divide its {} num_query_heads", self.num_query_heads);
            return Err(wrong(CLASS, &needs, self.num_key_value_heads));
        }
        check_rate(CLASS, "dropout", self.dropout)
    }
}

impl Layer for GroupQueryAttention {
    named!(CLASS);

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        query_value_key(self, cx, inputs, "group_query_attention(64, 8, 2)", |cx, [query, value, key]| {
            self.attend(cx, query, value, key)
        })
    }

    masked!(First);
}

impl GroupQueryAttention {
    fn attend(&self, cx: &mut Cx, query: &Tensor, value: &Tensor, key: &Tensor) -> Result<Tensor> {
        if let Some(x) = [query, value, key].into_iter().find(|x| x.rank() != 3 || x.dim(2) == 0) {
            return Err(unfit(CLASS, "sequences of features [B, S, D]", x.ty())
                .hint("put reshape([steps, features]) before the layer"));
        }
        if value.dim(1) != key.dim(1) || value.dim(0) != query.dim(0) || key.dim(0) != query.dim(0) {
            let got = format!("query is {}, value {}, key {}", query.ty(), value.ty(), key.ty());
            return Err(err!(Graph, "{CLASS}'s inputs have incompatible shapes")
                .because(got)
                .hint("use equal batch sizes, and as many value positions as key positions"));
        }
        let (q, v, k) = (cast(cx, query), cast(cx, value), cast(cx, key));
        let (heads, shared, features) = (self.num_query_heads, self.num_key_value_heads, q.dim(2));
        let asked = self.project(cx, "query", &q, heads)?;
        let keys = self.repeated(&self.project(cx, "key", &k, shared)?);
        let gate = if self.use_gate { Some(self.project(cx, "gate", &q, heads)?.logistic()) } else { None };
        let values = self.repeated(&self.project(cx, "value", &v, shared)?);
        let seen = match self.sliding_window {
            None => masked_attention::seen(cx, [query, value, key], self.use_causal_mask),
            Some(_) => None,
        };
        let mut found = match seen {
            Some(seen) => {
                let scale = 1.0 / (self.head_dim as f64).sqrt();
                masked_attention::weigh(
                    cx,
                    [&asked, &keys, &values],
                    scale,
                    (Some(&seen), None),
                    self.dropout,
                )
            }
            None => self.weigh(cx, &asked, &keys, &values),
        };
        if let Some(gate) = gate {
            found = found * gate;
        }
        self.join(cx, &found, features)
    }

    /// Computes attention per head: `q: T[B, S, N, H], k, v: T[B, T, N, H] → T[B, S, N, H]`.
    fn weigh(&self, cx: &mut Cx, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let scale = 1.0 / (self.head_dim as f64).sqrt();
        let Some(window) = self.sliding_window else {
            let random = if self.dropout > 0.0 { cx.random_state() } else { None };
            let dropout = random.as_ref().map(|_| AttentionDropout::rate(self.dropout));
            return AttentionConfig { scale, causal: self.use_causal_mask, dropout }.of(
                q,
                k,
                v,
                random.as_ref(),
            );
        };
        let by_head = |x: &Tensor| x.transpose(&[0, 2, 1, 3]);
        let scores = (by_head(q) * scale).matmul(&k.transpose(&[0, 2, 3, 1]));
        let place = |dim| scores.builder().iota(scores.ty().with_dtype(DType::I32), dim);
        let (own, other) = (place(2), place(3));
        let reach = own.scalar_like(window as f64);
        let mut seen = (&own - &other).abs().less(&reach);
        if self.use_causal_mask {
            seen = seen.and(&own.greater_equal(&other));
        }
        // Mask value: below all scores, and finite in every element type.
        let none = scores.builder().full(scores.ty(), -6e4);
        let mut weights = seen.select(&scores, &none).softmax();
        if self.dropout > 0.0
            && let Some(kept) = kept(cx, weights.shape(), self.dropout)
        {
            let factor = if self.dropout < 1.0 { 1.0 / (1.0 - self.dropout) } else { 0.0 };
            weights = kept.select(&(&weights * factor), &weights.zeros_like());
        }
        by_head(&weights.matmul(&by_head(v)))
    }

    /// Repeats key or value heads: `x: T[B, T, num_key_value_heads, H] → T[B, T, num_query_heads, H]`.
    fn repeated(&self, x: &Tensor) -> Tensor {
        let [batch, places, shared, width] = [0, 1, 2, 3].map(|d| x.dim(d));
        let times = self.num_query_heads / self.num_key_value_heads;
        let wide = Shape::new([batch, places, shared, times, width]);
        x.broadcast_in_dim(&wide, &[0, 1, 2, 4]).reshape([batch, places, shared * times, width])
    }

    /// Projects to heads: `x: T[B, S, D] → T[B, S, heads, head_dim]`.
    fn project(&self, cx: &mut Cx, name: &str, x: &Tensor, heads: usize) -> Result<Tensor> {
        let (features, width) = (x.dim(2), self.head_dim);
        cx.scope(name, |cx| {
            let kernel = weight(cx, CLASS, "kernel", &[features, heads, width], &self.kernel_initializer)?;
            let mut y = x.dot(&kernel.reshape([features, heads * width]));
            if self.use_bias {
                let bias = weight(cx, CLASS, "bias", &[heads, width], &self.bias_initializer)?;
                y = y + bias.reshape([heads * width]);
            }
            Ok(y.reshape([x.dim(0), x.dim(1), heads, width]))
        })
    }

    /// Projects the heads to the output: `heads: T[B, S, N, H] → T[B, S, features]`.
    fn join(&self, cx: &mut Cx, heads: &Tensor, features: usize) -> Result<Tensor> {
        let (n, width) = (heads.dim(2), heads.dim(3));
        cx.scope("attention_output", |cx| {
            let kernel = weight(cx, CLASS, "kernel", &[n, width, features], &self.kernel_initializer)?;
            let flat = heads.reshape([heads.dim(0), heads.dim(1), n * width]);
            let mut y = flat.dot(&kernel.reshape([n * width, features]));
            if self.use_bias {
                y = y + weight(cx, CLASS, "bias", &[features], &self.bias_initializer)?;
            }
            Ok(y)
        })
    }
}

/// `query: T[B, S, D], value: T[B, T, D] (, key: T[B, T, E]) → T[B, S, D]`: grouped-query attention (GQA). Arguments:
/// [`GroupQueryAttention`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::group_query_attention, Model};
/// let layer = group_query_attention(8, 4, 2).use_causal_mask(true);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
/// assert_eq!(output.shape.dims(), [16, 32]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
#[rustfmt::skip]
pub fn group_query_attention(head_dim: usize, num_query_heads: usize, num_key_value_heads: usize) -> LayerSpec {
    LayerSpec::of(GroupQueryAttention {
        head_dim,
        num_query_heads,
        num_key_value_heads,
        ..Default::default()
    })
}

setters!(LayerSpec:
    /// Window of GroupQueryAttention: how far each position attends.
    sliding_window: usize as usize;
    /// Whether GroupQueryAttention multiplies its heads by a learned gate.
    use_gate: bool as bool;
);

const GATED: &[&str] =
    &["query/kernel", "key/kernel", "gate/kernel", "value/kernel", "attention_output/kernel"];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let gated = group_query_attention(3, 4, 2).use_gate(true).use_bias(false).sliding_window(2).dropout(0.2);
    vec![
        LayerSample::new(
            group_query_attention(3, 4, 2).use_causal_mask(true),
            &[2, 5, 4],
            &[2, 5, 4],
            ATTENTION,
            FLAT,
        ),
        LayerSample::new(gated, &[2, 5, 4], &[2, 5, 4], GATED, Some(IMAGE)),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "group_query", "class": "GroupQueryAttention", "x_shape": [2, 4, 3], "kwargs": {"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 2}},
    {"name": "group_query_causal", "class": "GroupQueryAttention", "x_shape": [2, 4, 3], "call": {"use_causal_mask": true}, "kwargs": {"head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 1, "use_gate": true}},
    {"name": "group_query_window", "class": "GroupQueryAttention", "x_shape": [2, 5, 3], "call": {"use_causal_mask": true}, "kwargs": {"head_dim": 2, "num_query_heads": 2, "num_key_value_heads": 2, "sliding_window": 2, "use_bias": false}},
    {"name": "group_query_value", "class": "GroupQueryAttention", "x_shape": [[2, 4, 3], [2, 5, 3]], "kwargs": {"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 2}}
]"#;
