//! GPT-2 language model: pre-norm transformer blocks with causal attention, as in KerasHub.

use super::common::*;

arguments! {
    /// GPT-2: `tokens: I[B, S] → T[B, S, vocabulary_size]`: next-token logits at each position, as KerasHub's
    /// `GPT2CausalLM`.
    ///
    /// Token and position embeddings, `num_layers` pre-norm transformer blocks with causal attention, layer
    /// normalization, and the token embedding as the output head. Source: Radford et al. 2019.
    ///
    /// ```
    /// use systole_nn::{Model, applications::Gpt2};
    /// use systole_ir::{DType, TensorType};
    /// let mut small = Model::new(
    ///     Gpt2 { vocabulary_size: 50, num_layers: 2, num_heads: 2, hidden_dim: 8, intermediate_dim: 16,
    ///            max_sequence_length: 12, ..Default::default() }.architecture()?,
    /// );
    /// small.build(&[TensorType::new(DType::I32, [12])])?;
    /// assert_eq!(small.output_type().unwrap().shape.dims(), [12, 50]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub struct Gpt2 {
        /// Vocabulary size. Default: 50257.
        pub vocabulary_size: usize = 50257,
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
        /// Maximum sequence length. Default: 1024.
        pub max_sequence_length: usize = 1024,
        /// Whether the head shares the token embedding. Default: true.
        pub tie_weights: bool = true,
        /// Whether the backward pass recomputes blocks (rematerialization). Default: false.
        pub remat: bool = false,
    }
}

/// GPT-2's initializer: normal with σ = 0.02.
const GPT2_INITIALIZER: Initializer = Initializer::RandomNormal { mean: 0.0, stddev: 0.02 };

impl Gpt2 {
    /// Returns the variant with this depth and hidden size; heads have size 64, as in all published models.
    pub(super) fn of(num_layers: usize, hidden_dim: usize) -> Gpt2 {
        Gpt2 {
            num_layers,
            num_heads: hidden_dim / 64,
            hidden_dim,
            intermediate_dim: 4 * hidden_dim,
            ..Gpt2::default()
        }
    }

    /// Builds GPT-2's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        at_least_1("gpt2", "vocabulary_size", self.vocabulary_size)?;
        at_least_1("gpt2", "hidden_dim", self.hidden_dim)?;
        at_least_1("gpt2", "max_sequence_length", self.max_sequence_length)?;
        at_most("gpt2", "num_layers", self.num_layers, MOST_BLOCKS)?;
        let tokens = any_input("tokens");
        let table = reversible_embedding(self.vocabulary_size, self.hidden_dim)
            .tie_weights(self.tie_weights)
            .embeddings_initializer(GPT2_INITIALIZER)
            .name("token_embedding");
        let x = tokens.apply(table.clone());
        let positions = position_embedding(self.max_sequence_length)
            .initializer(GPT2_INITIALIZER)
            .name("position_embedding");
        let x = add().name("embeddings_add").on(&[&x, &x.apply(positions)]);
        let mut x = x.apply(dropout(self.dropout).name("embeddings_dropout"));
        for i in 0..self.num_layers {
            x = x.apply(self.block().name(format!("transformer_layer_{i}")).remat(self.remat));
        }
        let x = x.apply(layer_normalization().epsilon(1e-5).name("layer_norm"));
        Architecture::functional(&[tokens], &x.apply(table))
    }

    fn block(&self) -> LayerSpec {
        transformer_block(self.intermediate_dim, self.num_heads)
            .dropout(self.dropout)
            .activation(Activation::Gelu { approximate: true })
            .layer_norm_epsilon(1e-5)
            .kernel_initializer(GPT2_INITIALIZER)
            .normalize_first(true)
            .use_causal_mask(true)
    }
}
