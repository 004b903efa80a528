//! BERT text encoder: post-norm transformer blocks with bidirectional attention.

use super::common::*;

arguments! {
    /// BERT: `tokens: I[B, S], segments: I[B, S] → T[B, hidden_dim]`, with `output = "sequence"` `T[B, S, hidden_dim]`,
    /// with `classes` `T[B, classes]`; arguments and layer names as in KerasHub's `BertBackbone`.
    ///
    /// Token, position and segment embeddings, layer normalization, and `num_layers` post-norm transformer blocks. The
    /// pooled output is a dense layer with tanh on the first position. With `num_segments = 0` tokens are the only
    /// input. With `mask_zero`, token 0 is padding that no token attends to; otherwise all tokens of a batch are attended
    /// to. Source: Devlin, Chang, Lee and Toutanova 2018.
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
    pub struct Bert {
        /// Vocabulary size. Default: 30522.
        pub vocabulary_size: usize = 30522,
        /// Number of transformer blocks.
        pub num_layers: usize = 12,
        /// Number of attention heads.
        pub num_heads: usize = 12,
        /// Hidden size.
        pub hidden_dim: usize = 768,
        /// Hidden width of the feed-forward network.
        pub intermediate_dim: usize = 3072,
        /// Dropout rate. Default: 0.1.
        pub dropout: f64 = 0.1,
        /// Maximum sequence length. Default: 512.
        pub max_sequence_length: usize = 512,
        /// Number of segment types, Hugging Face's `type_vocab_size`; 0 removes the segment input. Default: 2.
        pub num_segments: usize = 2,
        /// Activation of the feed-forward network. Default: gelu, exactly.
        pub activation: Activation = Activation::Gelu { approximate: false },
        /// Epsilon added to variances. Default: 1e-12.
        pub layer_norm_epsilon: f64 = 1e-12,
        /// Activation of the pooled output's dense layer: tanh in BERT, relu in DistilBERT, gelu in ELECTRA. Default: tanh.
        pub pooled_activation: Activation = Activation::Tanh,
        /// Output if there are no classes: `"pooled"` or `"sequence"`. Default: pooled.
        pub output: String = "pooled".into(),
        /// Number of classes of a dense layer on the pooled output; 0 for none. Default: 0.
        pub classes: usize = 0,
        /// Activation of the classification layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Whether token 0 is padding, as in BERT's vocabularies, which attention masks. Default: false.
        pub mask_zero: bool = false,
        /// Another token that is padding, such as 1 in RoBERTa's vocabularies; masked like 0 with `mask_zero`. Default: none.
        pub padding_token: Option<u32> = None,
        /// Whether the backward pass recomputes blocks (rematerialization). Default: false.
        pub remat: bool = false,
    }
}

/// BERT's initializer: truncated normal with σ = 0.02.
const BERT_INITIALIZER: Initializer = Initializer::TruncatedNormal { mean: 0.0, stddev: 0.02 };

impl Bert {
    /// Returns BERT large: 24 blocks, 16 heads, hidden size 1024.
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
            let e = err!(Config, "unknown output `{}` of bert", self.output);
            return Err(e.hint("use one of these outputs: pooled, sequence"));
        }
        if self.output == "sequence" && self.classes > 0 {
            let e = err!(Config, "bert classes cannot be combined with output `sequence`");
            return Err(e.hint("classification uses the pooled output: remove classes or `sequence`"));
        }
        Ok(())
    }

    /// Builds BERT's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0 or out of range, or there are more than 1,000 blocks.
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
        let pooled = dense(self.hidden_dim).activation(self.pooled_activation).name("pooled_dense");
        let mut y = x.apply(first_step().name("first_step")).apply(pooled);
        if self.classes > 0 {
            let head = dense(self.classes).activation(self.classifier_activation).name("predictions");
            y = y.apply(dropout(self.dropout).name("pooled_dropout")).apply(head);
        }
        Architecture::functional(&inputs, &y)
    }

    /// Embeds the inputs: `tokens: I[B, S], segments: I[B, S] → T[B, S, hidden_dim]`.
    fn embedded(&self, tokens: &Symbol, segment_ids: &Symbol) -> Symbol {
        let table = |rows: usize, name: &str| {
            embedding(rows, self.hidden_dim).embeddings_initializer(BERT_INITIALIZER).name(name)
        };
        let words = table(self.vocabulary_size, "token_embedding").mask_zero(self.mask_zero);
        let x = tokens.apply(match self.padding_token {
            Some(token) => words.padding_token(token),
            None => words,
        });
        let positions = position_embedding(self.max_sequence_length).initializer(BERT_INITIALIZER);
        let positions = x.apply(positions.name("position_embedding"));
        let sum = add().name("embeddings_add");
        let sum = match self.num_segments {
            0 => sum.on(&[&x, &positions]),
            // A sum has a mask only if all of its terms have one; a token is valid if any of them is not zero.
            n => {
                let segments =
                    table(n, "segment_embedding").mask_zero(self.mask_zero || self.padding_token.is_some());
                sum.on(&[&x, &positions, &segment_ids.apply(segments)])
            }
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
