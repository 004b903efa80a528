//! BERT, an encoder of text: post-norm transformer blocks in which each place sees all others.

use super::common::*;
use crate::layers::*;
use crate::model::architecture::{Architecture, Symbol, any_input};
use crate::setters::with_defaults;
use crate::{Activation, Initializer};
use serde::{Deserialize, Serialize};
use systole_ir::{Error, ErrorKind, Result};

with_defaults! {
    /// BERT: `tokens: I[B, S], segments: I[B, S] → T[B, hidden_dim]`, with `output = "sequence"` `T[B, S, hidden_dim]`, with `classes` `T[B,
    /// classes]`; arguments and layers' names as KerasHub's `BertBackbone`.
    ///
    /// Tables of tokens, places and segments, a normalisation, `num_layers` post-norm transformer blocks; the pooled output is a dense layer
    /// with tanh on the first place. With `num_segments = 0` tokens are the only input. All tokens of a batch are seen: there is no mask of
    /// padding. Source: Devlin, Chang, Lee and Toutanova 2018.
    ///
    /// ```
    /// use systole_nn::{Model, applications::Bert};
    /// use systole_ir::{DType, TensorType};
    /// let small = Bert { vocabulary_size: 50, num_layers: 1, num_heads: 2, hidden_dim: 8, intermediate_dim: 16,
    ///                    max_sequence_length: 12, ..Default::default() };
    /// let mut small = Model::new(small.architecture()?);
    /// small.build(&[TensorType::new(DType::I32, [12]), TensorType::new(DType::I32, [12])])?;
    /// assert_eq!(small.output_type().unwrap().shape.dims(), [8]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Bert {
        /// Number of tokens. Default: 30522.
        pub vocabulary_size: usize = 30522,
        /// Number of blocks.
        pub num_layers: usize = 12,
        /// Heads of each attention.
        pub num_heads: usize = 12,
        /// Width.
        pub hidden_dim: usize = 768,
        /// Width inside the feed-forward part of a block.
        pub intermediate_dim: usize = 3072,
        /// Fraction that is dropped while training. Default: 0.1.
        pub dropout: f64 = 0.1,
        /// Most tokens of a sequence. Default: 512.
        pub max_sequence_length: usize = 512,
        /// Kinds of segments, Hugging Face's `type_vocab_size`; 0: no such input. Default: 2.
        pub num_segments: usize = 2,
        /// Function inside the feed-forward part of a block. Default: gelu, exactly.
        pub activation: Activation = Activation::Gelu { approximate: false },
        /// Added to variances. Default: 1e-12.
        pub layer_norm_epsilon: f64 = 1e-12,
        /// What is returned where there are no classes: `"pooled"` or `"sequence"`. Default: pooled.
        pub output: String = "pooled".into(),
        /// Number of classes of a dense layer on the pooled output; 0: none. Default: 0.
        pub classes: usize = 0,
        /// Function of that layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Whether blocks are computed again in the backward pass instead of kept. Default: false.
        pub remat: bool = false,
    }
}

/// BERT's own: truncated normal draws of σ 0.02.
const BERT_INITIALIZER: Initializer = Initializer::TruncatedNormal { mean: 0.0, stddev: 0.02 };

impl Bert {
    /// With 24 blocks of 16 heads, 1024 wide.
    pub fn large() -> Bert {
        Bert { num_layers: 24, num_heads: 16, hidden_dim: 1024, intermediate_dim: 4096, ..Bert::default() }
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("vocabulary_size", self.vocabulary_size),
            ("hidden_dim", self.hidden_dim),
            ("max_sequence_length", self.max_sequence_length),
        ];
        for (argument, value) in sizes {
            at_least_1("bert", argument, value)?;
        }
        at_most("bert", "num_layers", self.num_layers, MOST_BLOCKS)?;
        if !["pooled", "sequence"].contains(&self.output.as_str()) {
            let e = Error::new(ErrorKind::Config, format!("bert has no output `{}`", self.output));
            return Err(e.hint("one of: pooled, sequence"));
        }
        if self.output == "sequence" && self.classes > 0 {
            let e = Error::new(ErrorKind::Config, "bert has either classes or the output `sequence`");
            return Err(e.hint("classes are told from the pooled output: leave one of the two out"));
        }
        Ok(())
    }

    /// The layers.
    ///
    /// # Errors
    /// When an argument is 0 or out of its range, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        self.check()?;
        let (tokens, segments) = (any_input("tokens"), any_input("segments"));
        let mut x = self.embedded(&tokens, &segments);
        for i in 0..self.num_layers {
            x = x.apply(self.block().name(format!("transformer_layer_{i}")).remat(self.remat));
        }
        let inputs = if self.num_segments > 0 { vec![tokens, segments] } else { vec![tokens] };
        if self.output == "sequence" {
            return Architecture::functional(&inputs, &x);
        }
        let dense = |units| dense(units).kernel_initializer(BERT_INITIALIZER);
        let pooled = dense(self.hidden_dim).activation("tanh").name("pooled_dense");
        let mut y = x.apply(first_step().name("first_step")).apply(pooled);
        if self.classes > 0 {
            let head = dense(self.classes).activation(self.classifier_activation).name("predictions");
            y = y.apply(dropout(self.dropout).name("pooled_dropout")).apply(head);
        }
        Architecture::functional(&inputs, &y)
    }

    /// `tokens: I[B, S], segments: I[B, S] → T[B, S, hidden_dim]`.
    fn embedded(&self, tokens: &Symbol, segments: &Symbol) -> Symbol {
        let table = |rows: usize, name: &str| {
            embedding(rows, self.hidden_dim).embeddings_initializer(BERT_INITIALIZER).name(name)
        };
        let x = tokens.apply(table(self.vocabulary_size, "token_embedding"));
        let positions = position_embedding(self.max_sequence_length).initializer(BERT_INITIALIZER);
        let positions = x.apply(positions.name("position_embedding"));
        let sum = add().name("embeddings_add");
        let sum = match self.num_segments {
            0 => sum.on(&[&x, &positions]),
            n => sum.on(&[&x, &positions, &segments.apply(table(n, "segment_embedding"))]),
        };
        let norm = layer_normalization().epsilon(self.layer_norm_epsilon).name("embeddings_layer_norm");
        sum.apply(norm).apply(dropout(self.dropout).name("embeddings_dropout"))
    }

    fn block(&self) -> LayerSpec {
        transformer_block(self.intermediate_dim, self.num_heads)
            .dropout(self.dropout)
            .activation(self.activation)
            .layer_norm_epsilon(self.layer_norm_epsilon)
            .kernel_initializer(BERT_INITIALIZER)
    }
}
