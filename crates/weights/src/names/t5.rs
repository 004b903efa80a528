//! T5's encoder in Hugging Face's layout: RMS normalization, relative position biases, no other biases.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "T5 encoder",
    model_types: &["t5", "mt5"],
    about: "texts: features",
    prefix: |files| files.prefix(FAMILY.model_types, &[""], &format!("{BIAS}.weight")),
    architecture,
    is_one: |model| has_layer(model, BIAS),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |_, _, name| {
        ["decoder.", "lm_head.", "encoder.embed_tokens."].iter().any(|start| name.starts_with(start))
    },
};

const BIAS: &str = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias";
/// Longest text: relative positions have no limit.
const LENGTH: usize = 512;

const MODULES: ModuleNames = ModuleNames {
    attention: ["q", "k", "v", "o"],
    renamed: &[("token_embedding", "shared"), ("token_embedding", "encoder.embed_tokens")],
};

/// Sizes of the encoder's blocks.
struct T5Block {
    block: BlockLayers,
    width: usize,
    inside: usize,
    is_gated: bool,
}

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let table = sizes.find::<2>("shared.weight");
    let [rows, width] = table.map_or_else(|| sizes.of("encoder.embed_tokens.weight"), Ok)?;
    let [inner, _] = sizes.of("encoder.block.0.layer.0.SelfAttention.q.weight")?;
    let [buckets, heads] = sizes.of(&format!("{BIAS}.weight"))?;
    let layers = sizes.count("encoder.block.{}.layer.0.SelfAttention.q.weight");
    let dense = "encoder.block.0.layer.1.DenseReluDense";
    let is_gated = sizes.find::<2>(&format!("{dense}.wi_0.weight")).is_some();
    let [inside, _] = sizes.of(&format!("{dense}.{}.weight", if is_gated { "wi_0" } else { "wi" }))?;
    config.same_all(&[
        ("vocab_size", rows),
        ("d_model", width),
        ("d_ff", inside),
        ("d_kv", inner / heads.max(1)),
        ("num_heads", heads),
        ("num_layers", layers),
        ("relative_attention_num_buckets", buckets),
    ])?;
    config.ignore(&[
        "classifier_dropout",
        "dense_act_fn",
        "is_decoder",
        "is_encoder_decoder",
        "is_gated_act",
        "n_positions",
        "num_decoder_layers",
        "scale_decoder_outputs",
        "tie_word_embeddings",
    ]);
    config.ignore_head();
    let distance = config.count("relative_attention_max_distance")?.unwrap_or(128);
    let blocks = T5Block {
        block: BlockLayers {
            dropout: config.dropout("dropout_rate", 0.1, &[])?,
            epsilon: config.number_or("layer_norm_epsilon", 1e-6, 1e-6)?,
            activation: feed_forward_activation(&config, is_gated)?,
            use_bias: false,
            ..BlockLayers::new(heads, inner)
        },
        width,
        inside,
        is_gated,
    };
    let tokens = any_input("tokens");
    let mut x = tokens.apply(token_embedding(files, rows, width));
    let bias = relative_position_bias(heads).num_buckets(buckets).max_distance(distance).name(BIAS);
    let bias = x.apply(bias);
    for i in 0..layers {
        x = blocks.apply(&x, &bias, &format!("encoder.block.{i}"));
    }
    let x = blocks.norm(&x, "encoder.final_layer_norm".into());
    text_model(&[tokens], &x, LENGTH, files.pooling, config)
}

/// Reads `feed_forward_proj`: `relu`, or `gated-gelu`, which means GELU's approximation.
fn feed_forward_activation(config: &FamilyConfig<'_>, is_gated: bool) -> Result<HiddenActivation> {
    let kind = config.text_or("feed_forward_proj", "relu")?;
    let name = kind.strip_prefix("gated-").unwrap_or(kind);
    if kind.starts_with("gated-") != is_gated {
        return Err(config.wrong(format!("config.json: feed_forward_proj is {kind}, unlike the tensors")));
    }
    match name {
        "relu" => Ok(HiddenActivation::Plain(systole_nn::Activation::Relu)),
        "gelu" => Ok(HiddenActivation::Plain(systole_nn::Activation::Gelu { approximate: is_gated })),
        "silu" | "swish" => Ok(HiddenActivation::Plain(systole_nn::Activation::Silu)),
        other => {
            Err(config.wrong(format!("its feed_forward_proj is {other}; supported are relu, gelu and silu")))
        }
    }
}

impl T5Block {
    fn norm(&self, x: &Symbol, name: String) -> Symbol {
        x.apply(rms_normalization().epsilon(self.block.epsilon).name(name))
    }

    fn apply(&self, x: &Symbol, bias: &Symbol, name: &str) -> Symbol {
        let y = self.norm(x, format!("{name}.layer.0.layer_norm"));
        // T5 does not divide the scores by the root of the heads' width.
        let query = y.apply(rescaling((self.block.head_dim as f64).sqrt()));
        let attention = multi_head_attention(self.block.heads, self.block.head_dim)
            .use_bias(false)
            .dropout(self.block.dropout)
            .use_attention_bias(true)
            .name(format!("{name}.layer.0.SelfAttention"));
        let x = self.block.residual(x, &attention.on(&[&query, &y, bias]));
        let y = self.norm(&x, format!("{name}.layer.1.layer_norm"));
        let inside = |part: &str| {
            dense(self.inside).use_bias(false).name(format!("{name}.layer.1.DenseReluDense.{part}"))
        };
        let y = match self.is_gated {
            true => {
                let gate = self.block.activation.after(&y, inside("wi_0"));
                multiply().on(&[&gate, &y.apply(inside("wi_1"))])
            }
            false => self.block.activation.after(&y, inside("wi")),
        };
        let out = dense(self.width).use_bias(false).name(format!("{name}.layer.1.DenseReluDense.wo"));
        self.block.residual(&x, &y.apply(out))
    }
}
