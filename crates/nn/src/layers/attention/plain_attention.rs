//! Attention (Luong, dot product) and AdditiveAttention (Bahdanau) layers, without projections.

use crate::layers::built_in::*;
use crate::layers::random::dropout::{check_rate, kept};
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

/// `query: T[B, S, D], value: T[B, T, E] (, key: T[B, T, D]) → T[B, S, E]`: dot-product attention without projections.
///
/// The score of a pair is `query · key` or, with `score_mode` "concat", the sum of `tanh(query + key)`; the attention
/// weights are the softmax of the scores. Without a third input the values are also the keys. Weights: `scale: f32[]`
/// with `use_scale`, `concat_score_weight: f32[]` with "concat". Source: Luong et al. 2015.
///
/// ```
/// use systole_nn::{input, layers::attention, Model};
/// let (query, value) = (input("query", [4, 8]), input("value", [6, 8]));
/// let y = attention().use_scale(true).on(&[&query, &value]);
/// assert!(Model::functional(&[query, value], &y)?.summary().contains("(None, 4, 8)"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Attention {
    /// Whether scores are multiplied by a learned scalar. Default: false.
    pub use_scale: bool,
    /// How scores are computed. Default: "dot".
    pub score_mode: ScoreMode,
    /// Fraction of the attention weights dropped in training. Default: 0.
    pub dropout: f64,
    /// Whether each position attends only to itself and earlier positions; a call argument in Keras. Default: false.
    pub use_causal_mask: bool,
}

/// Score function of the layer [`Attention`]: dot product, or sum of tanh(query + key).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreMode {
    /// Dot product of query and key.
    #[default]
    Dot,
    /// Sum of tanh(query + key).
    Concat,
}

impl Arguments for Attention {
    fn check(&self) -> Result<()> {
        check_rate("Attention", "dropout", self.dropout)
    }
}

impl Layer for Attention {
    named!("Attention");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let own = (self.dropout, self.use_causal_mask);
        attend("Attention", self, own, cx, inputs, |cx, query, key| {
            let scale = self.use_scale.then(|| cx.weight("scale", &[], &Initializer::Ones));
            let scaled = |x: Tensor| scale.as_ref().map_or(x.clone(), |s| &x * s.broadcast_to(x.shape()));
            match self.score_mode {
                ScoreMode::Dot => scaled(products(query, &key.transpose(&[0, 2, 1]))),
                ScoreMode::Concat => {
                    let factor = cx.weight("concat_score_weight", &[], &Initializer::Ones);
                    let sums = scaled(pairs(query, key)).tanh().sum(&[3]);
                    &sums * factor.broadcast_to(sums.shape())
                }
            }
        })
    }

    masked!(First);
}

arguments! {
    /// `query: T[B, S, D], value: T[B, T, E] (, key: T[B, T, D]) → T[B, S, E]`: additive attention: scores are a
    /// learned sum of `tanh(query + key)`.
    ///
    /// Without a third input the values are also the keys. Weight: `scale: f32[D]` with `use_scale`. Source: Bahdanau,
    /// Cho and Bengio 2014.
    pub struct AdditiveAttention {
        /// Whether the features of a score have learned factors. Default: true.
        pub use_scale: bool = true,
        /// Fraction of the attention weights dropped in training. Default: 0.
        pub dropout: f64 = 0.0,
        /// Whether each position attends only to itself and earlier positions; a call argument in Keras. Default:
        /// false.
        pub use_causal_mask: bool = false,
    }
}

impl Arguments for AdditiveAttention {
    fn check(&self) -> Result<()> {
        check_rate("AdditiveAttention", "dropout", self.dropout)
    }
}

impl Layer for AdditiveAttention {
    named!("AdditiveAttention");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let own = (self.dropout, self.use_causal_mask);
        attend("AdditiveAttention", self, own, cx, inputs, |cx, query, key| {
            let sums = pairs(query, key).tanh();
            if !self.use_scale {
                return sums.sum(&[3]);
            }
            let scale = cx.weight("scale", &[query.dim(2)], &Initializer::GlorotUniform);
            (&sums * scale.broadcast_in_dim(sums.shape(), &[3])).sum(&[3])
        })
    }

    masked!(First);
}

/// Checks inputs, then averages values by the softmax of `scores` (`query: T[B, S, D], key: T[B, T, D] → T[B, S, T]`).
fn attend(
    class: &str,
    layer: &impl Arguments,
    (dropout, causal): (f64, bool),
    cx: &mut Cx,
    inputs: &[Tensor],
    scores: impl FnOnce(&mut Cx, &Tensor, &Tensor) -> Tensor,
) -> Tensor {
    if let Some(poisoned) = inputs.iter().find(|x| x.is_poisoned()) {
        return poisoned.clone();
    }
    if let Err(e) = layer.check().and_then(|()| check_inputs(class, inputs)) {
        return refuse(cx, inputs, e);
    }
    let cast: Vec<Tensor> = inputs.iter().map(|x| cast(cx, x)).collect();
    let (query, value) = (&cast[0], &cast[1]);
    let mut scores = scores(cx, query, cast.get(2).unwrap_or(value));
    let counts = cx.mask_of(&inputs[1]).map(|mask| mask.broadcast_in_dim(scores.shape(), &[0, 2]));
    let before = causal.then(|| {
        let place = |dim| scores.builder().iota(scores.ty().with_dtype(DType::I32), dim);
        place(1).greater_equal(&place(2))
    });
    let seen = match (counts, before) {
        (Some(a), Some(b)) => Some(a.and(&b)),
        (a, b) => a.or(b),
    };
    if let Some(seen) = seen {
        // Mask value: below all scores, and finite in every element type.
        let none = scores.builder().full(scores.ty(), -6e4);
        scores = seen.select(&scores, &none);
    }
    let mut weights = scores.softmax();
    if dropout > 0.0
        && let Some(kept) = kept(cx, weights.shape(), dropout)
    {
        let factor = if dropout < 1.0 { 1.0 / (1.0 - dropout) } else { 0.0 };
        weights = kept.select(&(&weights * factor), &weights.zeros_like());
    }
    let found = products(&weights, value);
    match cx.mask_of(&inputs[0]) {
        Some(mask) => mask.broadcast_in_dim(found.shape(), &[0, 1]).select(&found, &found.zeros_like()),
        None => found,
    }
}

fn check_inputs(class: &str, inputs: &[Tensor]) -> Result<()> {
    let types: Vec<String> = inputs.iter().map(|x| x.ty().to_string()).collect();
    let wrong = |what: String| {
        Err(Error::new(ErrorKind::Graph, what).because(format!("got {}", types.join(", "))).hint(
            "call the layer in a functional model: attention().on(&[&query, &value]), or with a key as third \
            input",
        ))
    };
    let (query, value) = match inputs {
        [query, value] | [query, value, _] => (query, value),
        _ => {
            return wrong(format!(
                "{class} takes a query, a value and optionally a key, got {} inputs",
                inputs.len()
            ));
        }
    };
    if inputs.iter().any(|x| x.rank() != 3 || x.shape().contains(&0)) {
        return wrong(format!("{class} needs sequences of features [B, S, D]"));
    }
    let key = inputs.get(2).unwrap_or(value);
    if key.dim(2) != query.dim(2)
        || key.dim(1) != value.dim(1)
        || inputs.iter().any(|x| x.dim(0) != query.dim(0))
    {
        return wrong(format!("{class}'s inputs have incompatible shapes"));
    }
    Ok(())
}

/// Batched matrix product: `a: T[B, M, K], b: T[B, K, N] → T[B, M, N]`.
fn products(a: &Tensor, b: &Tensor) -> Tensor {
    a.matmul(b)
}

/// Sums of all pairs: `query: T[B, S, D], key: T[B, T, D] → T[B, S, T, D]`.
fn pairs(query: &Tensor, key: &Tensor) -> Tensor {
    let shape = Shape::new([query.dim(0), query.dim(1), key.dim(1), query.dim(2)]);
    query.broadcast_in_dim(&shape, &[0, 1, 3]) + key.broadcast_in_dim(&shape, &[0, 2, 3])
}

constructors!(LayerSpec:
    /// `query: T[B, S, D], value: T[B, T, E] (, key: T[B, T, D]) → T[B, S, E]`: dot-product attention. Arguments:
    /// [`Attention`].
    ///
    /// ```
    /// use systole_nn::{input, layers::attention, Model};
    /// let (query, value) = (input("query", [4, 8]), input("value", [6, 8]));
    /// let model = Model::functional(&[query.clone(), value.clone()], &attention().on(&[&query, &value]))?;
    /// assert!(model.summary().contains("(None, 4, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn attention() = Attention::default();

    /// `query: T[B, S, D], value: T[B, T, E] (, key: T[B, T, D]) → T[B, S, E]`: additive attention. Arguments:
    /// [`AdditiveAttention`].
    ///
    /// ```
    /// use systole_nn::{input, layers::additive_attention, Model};
    /// let (query, value) = (input("query", [4, 8]), input("value", [6, 8]));
    /// let model = Model::functional(&[query.clone(), value.clone()], &additive_attention().on(&[&query, &value]))?;
    /// assert!(model.summary().contains("(None, 4, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn additive_attention() = AdditiveAttention::default();
);

setters!(LayerSpec:
    /// Whether the scores of Attention or AdditiveAttention have learned factors.
    use_scale: bool as bool;
    /// Score function of Attention: "dot" or "concat".
    score_mode: impl Into<Value> as Value;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let of = |spec, weights| LayerSample {
        inputs: vec![f32s(&[2, 3, 4]), f32s(&[2, 5, 4])],
        refused: Some(vec![f32s(&[2, 3, 4]), f32s(&[2, 5, 6])]),
        ..LayerSample::new(spec, &[2, 3, 4], &[2, 3, 4], weights, None)
    };
    vec![
        of(attention().dropout(0.2), &[]),
        of(attention().score_mode("concat").use_scale(true), &["scale", "concat_score_weight"]),
        of(additive_attention().use_causal_mask(true), &["scale"]),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "dot_attention", "class": "Attention", "x_shape": [[2, 3, 4], [2, 5, 4]], "kwargs": {}},
    {"name": "dot_attention_key", "class": "Attention", "x_shape": [[2, 3, 4], [2, 5, 2], [2, 5, 4]], "kwargs": {"use_scale": true}},
    {"name": "dot_attention_causal", "class": "Attention", "x_shape": [[2, 3, 4], [2, 5, 4]], "call": {"use_causal_mask": true}, "kwargs": {}},
    {"name": "concat_attention", "class": "Attention", "x_shape": [[2, 3, 4], [2, 5, 4]], "kwargs": {"score_mode": "concat", "use_scale": true}},
    {"name": "additive_attention", "class": "AdditiveAttention", "x_shape": [[2, 3, 4], [2, 5, 4]], "kwargs": {}},
    {"name": "additive_attention_plain", "class": "AdditiveAttention", "x_shape": [[2, 3, 4], [2, 5, 4]], "kwargs": {"use_scale": false}}
]"#;
