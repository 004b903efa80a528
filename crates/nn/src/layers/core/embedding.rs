//! Embedding, PositionEmbedding and ReversibleEmbedding layers: learned vectors for integer ids.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: I[B, …] → T[B, …, output_dim]`: looks up row `x` of an embedding table.
    ///
    /// Ids outside 0..input_dim are clamped. Weight: `embeddings: f32[input_dim, output_dim]`.
    pub struct Embedding {
        /// Vocabulary size: ids are 0..input_dim. Required.
        pub input_dim: usize = 0,
        /// Embedding size. Required.
        pub output_dim: usize = 0,
        /// Initializer of the table. Default: `random_uniform`, from −0.05 to 0.05.
        pub embeddings_initializer: Initializer = Initializer::RandomUniform { minval: -0.05, maxval: 0.05 },
        /// Whether id 0 is padding, masked in later layers and losses. Default: false.
        pub mask_zero: bool = false,
        /// Another id that is padding, such as 1 in RoBERTa; masked like 0 with `mask_zero`. Default: none.
        pub padding_token: Option<u32> = None,
    }
}

impl Arguments for Embedding {
    fn check(&self) -> Result<()> {
        ensure!(self.input_dim != 0, wrong("Embedding", "input_dim of at least 1", self.input_dim));
        ensure!(self.output_dim != 0, wrong("Embedding", "output_dim of at least 1", self.output_dim));
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        // Like Keras: numbers of a table are floats here.
        let x = &if x.dtype().is_int() { x.clone() } else { x.convert(DType::I32) };
        let shape = [self.input_dim, self.output_dim];
        sized("Embedding", "embeddings", &shape)?;
        let rows = match cx.packed_rows("embeddings", &shape, x) {
            Some(rows) => rows,
            None => cx.variable("embeddings", &shape, &self.embeddings_initializer, true).take(x),
        };
        // Casts after the lookup, because the table may be far larger than a batch.
        let y = cast(cx, &rows);
        if let Some(padding) = self.padding() {
            cx.set_mask(&y, &x.not_equal(&(x.zeros_like() + f64::from(padding))));
        }
        Ok(y)
    }
}

impl Embedding {
    /// Id of padding, which is masked.
    fn padding(&self) -> Option<u32> {
        self.padding_token.or(self.mask_zero.then_some(0))
    }
}

impl Layer for Embedding {
    named!("Embedding", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::Embedding { rows: self.input_dim, mask_zero: self.padding().is_some() })
    }

    weights!("embeddings" => "weight");
}

arguments! {
    /// `x: T[B, …, S, D] → T[B, …, S, D]`: a learned vector for each position, independent of x's values.
    ///
    /// Add it to x, as with KerasHub's. Weight: `embeddings: f32[sequence_length, D]`. Sequences may be shorter than
    /// the table.
    pub struct PositionEmbedding {
        /// Maximum sequence length. Required.
        pub sequence_length: usize = 0,
        /// Initializer of the table. Default: `glorot_uniform`.
        pub initializer: Initializer = Initializer::GlorotUniform,
    }
}

impl Arguments for PositionEmbedding {
    fn check(&self) -> Result<()> {
        if self.sequence_length == 0 {
            return Err(wrong("PositionEmbedding", "sequence_length of at least 1", self.sequence_length));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let rank = x.rank();
        if rank < 3 || x.dim(-2) > self.sequence_length {
            let needs = format!("at most {} positions of features [B, S, D]", self.sequence_length);
            return Err(unfit("PositionEmbedding", &needs, x.ty()).hint("increase sequence_length"));
        }
        let (places, features) = (x.dim(-2), x.dim(-1));
        let shape = [self.sequence_length, features];
        let table = weight(cx, "PositionEmbedding", "embeddings", &shape, &self.initializer)?;
        let used = match cx.decoding() {
            Some(_) => table,
            None => table.slice_dim(0, 0, places),
        };
        let used = cx.rounded_constant(used);
        let rows = match cx.decoding() {
            Some(decoding) => {
                let from = decoding.position();
                used.dynamic_slice(&[&from, &from.zeros_like()], &[places, features])
            }
            None => used.clone(),
        };
        let y = rows.broadcast_in_dim(x.shape(), &[rank - 2, rank - 1]);
        cx.same_levels(&y, &used);
        Ok(y)
    }
}

impl Layer for PositionEmbedding {
    named!("PositionEmbedding", one_input);

    lowered!(PositionEmbedding);

    fn adapters(&self) -> Result<()> {
        Err(no_adapters(self.class_name()))
    }

    weights!("embeddings" => "weight");
}

/// `x: I[B, …] → T[B, …, output_dim]`: embedding lookup. In reverse, `x: T[B, …, output_dim] → T[B, …, input_dim]`:
/// logits, the products with all rows.
///
/// Integers are looked up, floats are projected: apply one layer of a given name twice to share the table with the head
/// of a language model (tied embeddings), like KerasHub's layer. Weights: `embeddings: f32[input_dim, output_dim]` and,
/// if not tied, `reverse_embeddings: f32[output_dim, input_dim]`.
///
/// ```
/// use systole_nn::{any_input, layers::*, Model};
/// let tokens = any_input("tokens");
/// let table = reversible_embedding(50, 8).name("tokens");
/// let logits = tokens.apply(table.clone()).apply(dense(8)).apply(table);
/// assert_eq!(Model::functional(&[tokens], &logits)?.architecture().nodes.len(), 3);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReversibleEmbedding {
    /// Vocabulary size: ids are 0..input_dim. Required.
    pub input_dim: usize,
    /// Embedding size. Required.
    pub output_dim: usize,
    /// Whether the reverse direction uses the same table. Default: true.
    pub tie_weights: bool,
    /// Soft cap of the logits: `cap · tanh(x / cap)`. Default: none.
    pub logit_soft_cap: Option<f64>,
    /// Initializer of the tables. Default: `random_uniform`, from −0.05 to 0.05.
    pub embeddings_initializer: Initializer,
}

impl Default for ReversibleEmbedding {
    fn default() -> ReversibleEmbedding {
        let Embedding { input_dim, output_dim, embeddings_initializer, .. } = Embedding::default();
        ReversibleEmbedding {
            input_dim,
            output_dim,
            tie_weights: true,
            logit_soft_cap: None,
            embeddings_initializer,
        }
    }
}

impl ReversibleEmbedding {
    fn table(&self) -> Embedding {
        Embedding {
            input_dim: self.input_dim,
            output_dim: self.output_dim,
            embeddings_initializer: self.embeddings_initializer.clone(),
            ..Default::default()
        }
    }

    fn reverse(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.dim(-1) != self.output_dim {
            let needs = format!("integers, or vectors of its output_dim [B, …, {}]", self.output_dim);
            return Err(unfit("ReversibleEmbedding", &needs, x.ty())
                .hint("put a dense layer with output_dim units before the layer"));
        }
        let (class, x) = ("ReversibleEmbedding", cast(cx, x));
        let logits = if self.tie_weights {
            let shape = [self.input_dim, self.output_dim];
            let table = weight(cx, class, "embeddings", &shape, &self.embeddings_initializer)?;
            x.dot_general(&table, &[], &[], &[x.rank() - 1], &[1])
        } else {
            let shape = [self.output_dim, self.input_dim];
            x.dot(&weight(cx, class, "reverse_embeddings", &shape, &self.embeddings_initializer)?)
        };
        Ok(self.logit_soft_cap.map_or(logits.clone(), |cap| (&logits * (1.0 / cap)).tanh() * cap))
    }
}

impl Arguments for ReversibleEmbedding {
    fn check(&self) -> Result<()> {
        let class = "ReversibleEmbedding";
        if let Some((name, is)) = [("input_dim", self.input_dim), ("output_dim", self.output_dim)]
            .into_iter()
            .find(|(_, n)| *n == 0)
        {
            return Err(wrong(class, &format!("{name} of at least 1"), is));
        }
        match self.logit_soft_cap {
            Some(cap) if cap.is_nan() || cap <= 0.0 => Err(wrong(class, "a logit_soft_cap above 0", cap)),
            _ => Ok(()),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        match x.dtype().is_int() {
            true => Ok(self.table().call(cx, std::slice::from_ref(x))),
            false if x.rank() == 0 => Err(unfit("ReversibleEmbedding", "a batch [B, …]", x.ty())),
            false => self.reverse(cx, x),
        }
    }
}

impl Layer for ReversibleEmbedding {
    named!("ReversibleEmbedding", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::ReversibleEmbedding {
            rows: self.input_dim,
            width: self.output_dim,
            tie_weights: self.tie_weights,
            is_capped: self.logit_soft_cap.is_some(),
        })
    }

    weights!("embeddings" => "weight", "reverse_embeddings" => "reverse" as Transposed);
}

constructors!(LayerSpec:
    /// `x: I[B, …] → T[B, …, output_dim]`: a learned vector for each of `input_dim` ids. Arguments: [`Embedding`].
    ///
    /// ```
    /// use systole_ir::{DType::I32, TensorType};
    /// use systole_nn::{layers::embedding, Model};
    /// let layer = embedding(65, 32);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(I32, [16])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn embedding(input_dim: usize, output_dim: usize) =
        Embedding { input_dim, output_dim, ..Default::default() };

    /// `x: T[B, …, S, D] → T[B, …, S, D]`: a learned vector for each of at most `sequence_length` positions. Arguments:
    /// [`PositionEmbedding`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::position_embedding, Model};
    /// let layer = position_embedding(64);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
    /// assert_eq!(output.shape.dims(), [16, 32]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn position_embedding(sequence_length: usize) =
        PositionEmbedding { sequence_length, ..Default::default() };

    /// `x: I[B, …] → T[B, …, output_dim]`, and in reverse `x: T[B, …, output_dim] → T[B, …, input_dim]`: one table for
    /// input embeddings and output logits. Arguments: [`ReversibleEmbedding`].
    ///
    /// ```
    /// use systole_ir::DType::I32;
    /// use systole_nn::{input_of, layers::reversible_embedding, Model};
    /// let tokens = input_of("tokens", I32, [16]);
    /// let table = reversible_embedding(65, 32).name("table");
    /// let scores = tokens.apply(table.clone()).apply(table);
    /// let model = Model::functional(&[tokens], &scores)?;
    /// assert!(model.summary().contains("(None, 16, 65)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn reversible_embedding(input_dim: usize, output_dim: usize) =
        ReversibleEmbedding { input_dim, output_dim, ..Default::default() };
);

setters!(LayerSpec:
    /// Whether id 0 is padding in Embedding, masked in later layers.
    mask_zero: bool as bool;
    /// Id that is padding in Embedding, if it is not 0.
    padding_token: u32 as u32;
    /// Initializer of Embedding's table.
    embeddings_initializer: impl Into<Value> as Value;
    /// Initializer of PositionEmbedding's table.
    initializer: impl Into<Value> as Value;
    /// Whether the reverse direction of ReversibleEmbedding uses the same table.
    tie_weights: bool as bool;
    /// Soft cap of ReversibleEmbedding's logits.
    logit_soft_cap: f64 as f64;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(embedding(7, 3), &[2, 4], &[2, 4, 3], &["embeddings"], None).of_integers(),
        LayerSample::new(position_embedding(7), &[2, 5, 4], &[2, 5, 4], &["embeddings"], Some(&[2, 8, 4])),
        LayerSample::new(reversible_embedding(7, 3), &[2, 4], &[2, 4, 3], &["embeddings"], Some(&[2, 4]))
            .of_integers(),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
