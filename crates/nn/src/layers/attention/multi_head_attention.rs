//! MultiHeadAttention layer: self-attention and cross-attention, with a KV cache for incremental decoding.

use crate::layers::built_in::*;
use crate::layers::masked_attention;
use crate::layers::random::dropout::{Dropout, check_rate};
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};
use systole_ir::attention::{AttentionConfig, AttentionDropout, HIDDEN};

arguments! {
    /// `query: T[B, S, D], value: T[B, T, E] (, key: T[B, T, E']) → T[B, S, output_shape]`: multi-head scaled
    /// dot-product attention.
    ///
    /// With one input, it is also value and key (self-attention); `[query, value]` and `[query, value, key]` are
    /// cross-attention. Each head weights `value · W_v` by `softmax((query · W_q / √key_dim) · (key · W_k)ᵀ)`; the
    /// concatenated heads are projected to the output. Weights: `query/kernel: f32[D, num_heads, key_dim]`,
    /// `query/bias: f32[num_heads, key_dim]`, `key/…` and `value/…` likewise, `attention_output/kernel: f32[num_heads,
    /// value_dim, output]`, `attention_output/bias`. Source: Vaswani et al. 2017.
    ///
    /// ```
    /// use systole_nn::layers::multi_head_attention;
    /// assert!(multi_head_attention(8, 64).use_causal_mask(true).dropout(0.1).check().is_ok());
    /// let e = multi_head_attention(0, 64).check().unwrap_err().to_string();
    /// assert!(e.contains("num_heads of at least 1"), "{e}");
    /// ```
    pub struct MultiHeadAttention {
        /// Number of heads. Required.
        pub num_heads: usize = 0,
        /// Width of each head's queries and keys. Required.
        pub key_dim: usize = 0,
        /// Width of each head's values. Default: `key_dim`.
        pub value_dim: Option<usize> = None,
        /// Fraction of the attention weights dropped in training. Default: 0.
        pub dropout: f64 = 0.0,
        /// Whether projections add biases. Default: true.
        pub use_bias: bool = true,
        /// Features of the output. Default: those of the query.
        pub output_shape: Option<usize> = None,
        /// Dimensions to attend over. Default: all but the first and the last.
        pub attention_axes: Option<Axes> = None,
        /// Whether each position attends only to itself and earlier positions; a call argument in Keras. Default:
        /// false.
        pub use_causal_mask: bool = false,
        /// Whether the last input is a bias `T[B, num_heads, S, T]` that is added to the scores, such as that of
        /// [`RelativePositionBias`](crate::layers::RelativePositionBias). Not in Keras. Default: false.
        pub use_attention_bias: bool = false,
        /// Initializer of the kernels. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the biases. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
    }
}

impl Arguments for MultiHeadAttention {
    fn check(&self) -> Result<()> {
        let sizes = [
            ("num_heads", self.num_heads),
            ("key_dim", self.key_dim),
            ("value_dim", self.value_dim()),
            ("output_shape", self.output_shape.unwrap_or(1)),
        ];
        if let Some((name, is)) = sizes.into_iter().find(|(_, n)| *n == 0) {
            return Err(wrong("MultiHeadAttention", &format!("{name} of at least 1"), is));
        }
        if self.attention_axes.as_ref().is_some_and(|a| a.0.is_empty()) {
            return Err(wrong("MultiHeadAttention", "at least one attention axis", "an empty list"));
        }
        check_rate("MultiHeadAttention", "dropout", self.dropout)
    }
}

impl Layer for MultiHeadAttention {
    named!("MultiHeadAttention");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let (inputs, bias) = match inputs.split_last() {
            Some((bias, others)) if self.use_attention_bias => (others, Some(bias)),
            _ => (inputs, None),
        };
        if let Some(bias) = bias.filter(|bias| bias.is_poisoned()) {
            return bias.clone();
        }
        query_value_key(self, cx, inputs, "multi_head_attention(8, 64)", |cx, inputs| {
            self.attend(cx, inputs, bias)
        })
    }

    fn lowering(&self) -> Result<LayerLowering> {
        if self.use_attention_bias {
            return Err(no_operators(self.class_name()));
        }
        Ok(LayerLowering::Attention {
            heads: self.num_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim.unwrap_or(self.key_dim),
            use_bias: self.use_bias,
            causal: self.use_causal_mask,
            axes: self.attention_axes.as_ref().map(|axes| axes.0.clone()),
        })
    }

    fn masks(&self) -> Result<MaskPropagation> {
        Ok(MaskPropagation::First)
    }

    fn weight_roles(&self) -> Vec<WeightRole> {
        attention_roles("", "")
    }
}

impl MultiHeadAttention {
    fn value_dim(&self) -> usize {
        self.value_dim.unwrap_or(self.key_dim)
    }

    fn attend(
        &self,
        cx: &mut Cx,
        [query, value, key]: [&Tensor; 3],
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        if cx.has_rounded_layers() && bias.is_none() {
            return self.attend_rounded(cx, [query, key, value]);
        }
        let fold = FoldedAxes::of(self.attention_axes.as_ref(), query)?;
        let [q, v, k] = [query, value, key].map(|x| fold.apply(&cast(cx, x)));
        let (q, v, k) = (q?, v?, k?);
        let fits = v.dim(1) == k.dim(1) && v.dim(0) == q.dim(0) && k.dim(0) == q.dim(0);
        if !fits {
            let got = format!("query is {}, value {}, key {}", query.ty(), value.ty(), key.ty());
            return Err(err!(Graph, "MultiHeadAttention's inputs have incompatible shapes")
                .because(got)
                .hint("use equal batch sizes, and as many value positions as key positions"));
        }
        let features = self.output_shape.unwrap_or(q.dim(2));
        let q = self.project(cx, "query", &q, self.key_dim)?;
        let k = self.project(cx, "key", &k, self.key_dim)?;
        let v = self.project(cx, "value", &v, self.value_dim())?;
        if cx.decoding().is_some() {
            let is_of_itself = bias.is_none() && query.id() == value.id() && query.id() == key.id();
            let heads = self.attend_to_kept(cx, [&q, &k, &v], is_of_itself && query.rank() == 3)?;
            return Ok(fold.undo(&self.join(cx, &heads, features)?));
        }
        let seen = match query.rank() {
            3 => masked_attention::seen(cx, [query, value, key], self.use_causal_mask),
            _ => None,
        };
        if seen.is_some() || bias.is_some() {
            let scale = 1.0 / (self.key_dim as f64).sqrt();
            let seen = seen.or_else(|| self.use_causal_mask.then(|| masked_attention::causal(&q, &k)));
            check_bias(bias, &q, &k)?;
            let heads = masked_attention::weigh(cx, [&q, &k, &v], scale, (seen.as_ref(), bias), self.dropout);
            return Ok(fold.undo(&self.join(cx, &heads, features)?));
        }
        let random = if self.dropout > 0.0 { cx.random_state() } else { None };
        let attention = AttentionConfig {
            scale: 1.0 / (self.key_dim as f64).sqrt(),
            causal: self.use_causal_mask,
            dropout: random.as_ref().map(|_| AttentionDropout::rate(self.dropout)),
        };
        let heads = attention.of(&q, &k, &v, random.as_ref());
        Ok(fold.undo(&self.join(cx, &heads, features)?))
    }

    /// Computes attention with fake quantization, operator by operator as the int8 file.
    fn attend_rounded(&self, cx: &mut Cx, [query, key, value]: [&Tensor; 3]) -> Result<Tensor> {
        if [query, key, value].iter().any(|x| x.rank() != 3 || cx.mask_of(x).is_some()) {
            return Err(unfit("MultiHeadAttention", "sequences [B, S, D] without masks", query.ty())
                .because("quantization-aware training does not support masks")
                .hint("keep the layer in float: add its name to skip of quantize"));
        }
        let features = self.output_shape.unwrap_or(query.dim(2));
        let q = self.project(cx, "query", query, self.key_dim)?;
        let mut k = self.project(cx, "key", key, self.key_dim)?;
        let mut v = self.project(cx, "value", value, self.value_dim())?;
        let mut first = None;
        if cx.decoding().is_some() {
            let is_of_itself = query.id() == value.id() && query.id() == key.id();
            first = Some(self.place_to_go_on(cx, is_of_itself)?);
            for (name, new) in [("key", &mut k), ("value", &mut v)] {
                let all = with_kept(cx, name, new)?;
                cx.same_levels(&all, new);
                *new = all;
            }
        }
        let scores = q.dot_general(&k, &[0, 2], &[0, 2], &[3], &[3]);
        cx.made_as_matmul(&scores, [&q, &k]);
        let seen = self.use_causal_mask.then(|| looking_back(&scores, first.as_ref()));
        let scores = cx.rounded_scores("scores", scores, seen.as_ref());
        let weights = cx.rounded_softmax(&scores);
        let weights = Dropout { rate: self.dropout, ..Default::default() }.call(cx, &[weights]);
        let heads = weights.dot_general(&v, &[0, 1], &[0, 2], &[3], &[1]);
        cx.made_as_matmul(&heads, [&weights, &v]);
        let heads = cx.rounded_within("heads", heads);
        self.join(cx, &heads.transpose(&[0, 2, 1, 3]), features)
    }

    /// Returns the number of positions of earlier calls: `→ i32[]`.
    fn place_to_go_on(&self, cx: &Cx, is_of_itself: bool) -> Result<Tensor> {
        if !(self.use_causal_mask && is_of_itself) {
            return Err(err!(Unsupported, "the model cannot generate token by token")
                .because("the attention layer looks at later positions, or at another sequence")
                .hint("train a model whose attention has use_causal_mask = true and one input"));
        }
        cx.decoding()
            .map(|decoding| decoding.position())
            .ok_or_else(|| err!(Bug, "missing incremental decoding state"))
    }

    /// Attends with a KV cache: `q: T[B, S, N, K], k: T[B, S, N, K], v: T[B, S, N, V] → T[B, S, N, V]`. Each of the S
    /// positions attends to itself, to earlier ones, and to the cached keys and values of earlier calls.
    fn attend_to_kept(&self, cx: &mut Cx, [q, k, v]: [&Tensor; 3], is_of_itself: bool) -> Result<Tensor> {
        let first = self.place_to_go_on(cx, is_of_itself)?;
        let (k, v) = (with_kept(cx, "key", k)?, with_kept(cx, "value", v)?);
        let scores = (q * (1.0 / (self.key_dim as f64).sqrt())).dot_general(&k, &[0, 2], &[0, 2], &[3], &[3]);
        let scores = scores.convert(DType::F32);
        let hidden = scores.builder().full(scores.ty(), HIDDEN);
        let seen = looking_back(&scores, Some(&first)).select(&scores, &hidden);
        let weights = seen.softmax().convert(q.dtype());
        Ok(weights.dot_general(&v, &[0, 1], &[0, 2], &[3], &[1]).transpose(&[0, 2, 1, 3]))
    }

    /// Projects to heads: `x: T[B, S, D] → T[B, S, num_heads, width]`.
    fn project(&self, cx: &mut Cx, name: &str, x: &Tensor, width: usize) -> Result<Tensor> {
        let (features, heads) = (x.dim(2), self.num_heads);
        let shape = [features, heads, width];
        sized("MultiHeadAttention", name, &shape)?;
        cx.scope(name, |cx| {
            let kernel = weight(cx, "MultiHeadAttention", "kernel", &shape, &self.kernel_initializer)?;
            let mut y = x.dot(&kernel.reshape([features, heads * width]));
            if self.use_bias {
                let bias = weight(cx, "MultiHeadAttention", "bias", &[heads, width], &self.bias_initializer)?;
                y = y + bias.reshape([heads * width]);
            }
            y = match name {
                "query" => cx.given_scaled(y, 1.0 / (self.key_dim as f64).sqrt()),
                _ => cx.given(std::slice::from_ref(x), y),
            };
            let by_head = y.reshape([x.dim(0), x.dim(1), heads, width]);
            cx.same_levels(&by_head, &y);
            Ok(by_head)
        })
    }

    /// Projects the heads to the output: `heads: T[B, S, N, V] → T[B, S, features]`.
    fn join(&self, cx: &mut Cx, heads: &Tensor, features: usize) -> Result<Tensor> {
        let (n, v) = (heads.dim(2), heads.dim(3));
        cx.scope("attention_output", |cx| {
            let shape = [n, v, features];
            let kernel = weight(cx, "MultiHeadAttention", "kernel", &shape, &self.kernel_initializer)?;
            let flat = heads.reshape([heads.dim(0), heads.dim(1), n * v]);
            let mut y = flat.dot(&kernel.reshape([n * v, features]));
            if self.use_bias {
                y = y + weight(cx, "MultiHeadAttention", "bias", &[features], &self.bias_initializer)?;
            }
            Ok(cx.given(&[flat], y))
        })
    }
}

/// Rejects a bias of the scores that does not have their shape.
fn check_bias(bias: Option<&Tensor>, q: &Tensor, k: &Tensor) -> Result<()> {
    let scores = [q.dim(0), q.dim(2), q.dim(1), k.dim(1)];
    match bias.filter(|bias| bias.shape().dims() != scores) {
        Some(bias) => {
            Err(unfit("MultiHeadAttention", &format!("an attention bias of shape {scores:?}"), bias.ty())
                .hint("pass the output of relative_position_bias(num_heads) as the last input"))
        }
        None => Ok(()),
    }
}

/// Appends to a cache: `new: T[B, S, N, K] → T[B, context, N, K]`. Returns the values cached under `name` with the new
/// ones, and keeps them for the next call.
fn with_kept(cx: &mut Cx, name: &str, new: &Tensor) -> Result<Tensor> {
    let Some((first, context)) = cx.decoding().map(|d| (d.position(), d.context())) else {
        return Err(err!(Bug, "missing incremental decoding state"));
    };
    let shape = [new.dim(0), context, new.dim(2), new.dim(3)];
    let old = cx.kept(name, new.dtype(), &shape).unwrap_or_else(|| new.clone());
    let zero = first.zeros_like();
    let now = old.dynamic_update_slice(new, &[&zero, &first, &zero, &zero]);
    cx.keep(name, &now);
    Ok(now)
}

/// Causal mask: `scores: T[B, N, S, T] → bool[B, N, S, T]`, true if a position may attend to another. `first: i32[]` is
/// the position of the first query.
fn looking_back(scores: &Tensor, first: Option<&Tensor>) -> Tensor {
    let place = |dim| scores.builder().iota(scores.ty().with_dtype(DType::I32), dim);
    let own = first.map_or_else(|| place(2), |first| place(2) + first);
    own.greater_equal(&place(3))
}

/// Reshapes inputs of any rank to `[batch, positions, features]` and the output back. The attention axes become
/// positions, all other dimensions batch.
struct FoldedAxes {
    /// Batch dimensions first, then the attention axes, then the features.
    order: Vec<usize>,
    batch_dims: usize,
    query: Shape,
}

impl FoldedAxes {
    fn of(axes: Option<&Axes>, query: &Tensor) -> Result<FoldedAxes> {
        let rank = query.rank();
        if rank < 3 {
            return Err(unfit("MultiHeadAttention", "sequences of features [B, S, D]", query.ty())
                .hint("put reshape([steps, features]) before the layer"));
        }
        let mut places: Vec<usize> = match axes {
            None => (1..rank - 1).collect(),
            Some(a) => {
                a.0.iter().map(|&a| dim_index("MultiHeadAttention", a, query)).collect::<Result<_>>()?
            }
        };
        places.sort_unstable();
        places.dedup();
        if places[0] == 0 || places.contains(&(rank - 1)) {
            return Err(wrong(
                "MultiHeadAttention",
                "attention axes between the batch and the features",
                format!("{places:?}"),
            ));
        }
        let mut order: Vec<usize> = (0..rank - 1).filter(|d| !places.contains(d)).collect();
        let batch_dims = order.len();
        order.extend(places);
        order.push(rank - 1);
        Ok(FoldedAxes { order, batch_dims, query: query.shape().clone() })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != self.order.len() {
            let needs = format!("inputs of {} dimensions, like its query", self.order.len());
            return Err(unfit("MultiHeadAttention", &needs, x.ty()));
        }
        let moved = x.transpose(&self.order);
        let (batch, places) = moved.shape().split_at(self.batch_dims);
        let (places, features) = places.split_at(places.len() - 1);
        Ok(moved.reshape([batch.iter().product(), places.iter().product(), features[0]]))
    }

    fn undo(&self, y: &Tensor) -> Tensor {
        let mut shape: Vec<usize> = self.order.iter().map(|&d| self.query[d]).collect();
        if let Some(last) = shape.last_mut() {
            *last = y.dim(2);
        }
        let mut back = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(new, &old)| back[old] = new);
        y.reshape(shape).transpose(&back)
    }
}

constructors!(LayerSpec:
    /// `query: T[B, S, D], value: T[B, T, E] (, key: T[B, T, E']) → T[B, S, D]`: multi-head attention. Arguments:
    /// [`MultiHeadAttention`].
    ///
    /// ```
    /// use systole_nn::{input, layers::multi_head_attention, Model};
    /// let x = input("x", [16, 32]);
    /// let y = multi_head_attention(4, 8).on(&[&x, &x]); // self-attention of four heads
    /// let model = Model::functional(&[x], &y)?;
    /// assert!(model.summary().contains("(None, 16, 32)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn multi_head_attention(num_heads: usize, key_dim: usize) =
        MultiHeadAttention { num_heads, key_dim, ..Default::default() };
);

setters!(LayerSpec:
    /// Width of each attention head's values.
    value_dim: usize as usize;
    /// Output features of MultiHeadAttention.
    output_shape: usize as usize;
    /// Whether the last input of MultiHeadAttention is a bias of its scores.
    use_attention_bias: bool as bool;
    /// Dimensions that MultiHeadAttention attends over.
    attention_axes: impl Into<Axes> as Axes;
);

/// Weights of an attention with biases.
pub(super) const ATTENTION: &[&str] = &[
    "query/kernel",
    "query/bias",
    "key/kernel",
    "key/bias",
    "value/kernel",
    "value/bias",
    "attention_output/kernel",
    "attention_output/bias",
];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(multi_head_attention(2, 3), &[2, 5, 4], &[2, 5, 4], ATTENTION, Some(&[2, 4])),
        LayerSample::new(
            multi_head_attention(2, 3).attention_axes(1),
            IMAGE,
            IMAGE,
            ATTENTION,
            Some(&[2, 4]),
        ),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
