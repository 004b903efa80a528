//! MPNet in Hugging Face's layout: BERT's blocks with one relative position bias for all of them.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "MPNet",
    model_types: &["mpnet"],
    about: "texts: classes, features",
    prefix: |files| {
        files.prefix(FAMILY.model_types, &["mpnet.", ""], "encoder.relative_attention_bias.weight")
    },
    architecture,
    is_one: |model| has_layer(model, BIAS),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |model, _, name| {
        name.starts_with("lm_head.") || (name.contains("pooler.") && !has_layer(model, "pooled_dense"))
    },
};

const BIAS: &str = "encoder.relative_attention_bias";

const MODULES: ModuleNames = ModuleNames {
    attention: ["attn.q", "attn.k", "attn.v", "attn.o"],
    renamed: &[
        ("token_embedding", "embeddings.word_embeddings"),
        ("pooled_dense", "classifier.dense"),
        ("pooled_dense", "pooler.dense"),
        ("predictions", "classifier.out_proj"),
    ],
};

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [rows, width] = sizes.of("embeddings.word_embeddings.weight")?;
    let [positions, _] = sizes.of("embeddings.position_embeddings.weight")?;
    let [buckets, _] = sizes.of(&format!("{BIAS}.weight"))?;
    let [inside, _] = sizes.of("encoder.layer.0.intermediate.dense.weight")?;
    let layers = sizes.count("encoder.layer.{}.intermediate.dense.weight");
    config.same_all(&[
        ("vocab_size", rows),
        ("hidden_size", width),
        ("max_position_embeddings", positions),
        ("relative_attention_num_buckets", buckets),
        ("intermediate_size", inside),
        ("num_hidden_layers", layers),
    ])?;
    config.check_encoder()?;
    let block = BlockLayers {
        dropout: config.dropout("hidden_dropout_prob", 0.1, &["attention_probs_dropout_prob"])?,
        epsilon: config.number_or("layer_norm_eps", 1e-12, 1e-12)?,
        activation: HiddenActivation::of(&config, "hidden_act", "gelu")?,
        ..BlockLayers::new(config.heads("num_attention_heads", width)?, width)
    };
    // The first two positions are the padding token's.
    let length = positions.saturating_sub(2);
    let tokens = any_input("tokens");
    let x = tokens.apply(token_embedding(files, rows, width));
    let places = x.apply(position_embedding(length).name("embeddings.position_embeddings"));
    let mut x = block.norm(&add().on(&[&x, &places]), "embeddings.LayerNorm".into());
    let bias = x.apply(relative_position_bias(block.heads).num_buckets(buckets).name(BIAS));
    for i in 0..layers {
        x = encoder_block(&block, &x, &bias, [inside, width], &format!("encoder.layer.{i}"));
    }
    let classes = sizes.find::<2>("classifier.out_proj.weight").map_or(0, |[n, _]| n);
    let (y, pooling) = text_output(&sizes, &x, [width, classes], "pooler.dense.weight")?;
    text_model(&[tokens], &y, length, pooling, config)
}

fn encoder_block(block: &BlockLayers, x: &Symbol, bias: &Symbol, widths: [usize; 2], name: &str) -> Symbol {
    let y = block.attention(x, Some(bias), format!("{name}.attention"));
    let x = block.norm(&block.residual(x, &y), format!("{name}.attention.LayerNorm"));
    let names = ["intermediate", "output"].map(|part| format!("{name}.{part}.dense"));
    let y = block.feed_forward(&x, widths, names);
    block.norm(&block.residual(&x, &y), format!("{name}.output.LayerNorm"))
}
