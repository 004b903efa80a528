//! ALBERT in Hugging Face's layout: BERT's blocks with shared weights, and narrower embeddings.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "ALBERT",
    model_types: &["albert"],
    about: "texts: classes, features",
    prefix: |files| files.prefix(FAMILY.model_types, &["albert.", ""], &format!("{MAPPING}.weight")),
    architecture,
    is_one: |model| has_layer(model, MAPPING),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |model, _, name| {
        let is_head = ["predictions.", "sop_classifier.", "qa_outputs."].iter().any(|h| name.starts_with(h));
        is_head || (name.contains("pooler.") && !has_layer(model, "pooled_dense"))
    },
};

const MAPPING: &str = "encoder.embedding_hidden_mapping_in";

const MODULES: ModuleNames = ModuleNames {
    attention: ["query", "key", "value", "dense"],
    renamed: &[
        ("token_embedding", "embeddings.word_embeddings"),
        ("pooled_dense", "pooler"),
        ("predictions", "classifier"),
    ],
};

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [rows, narrow] = sizes.of("embeddings.word_embeddings.weight")?;
    let [length, _] = sizes.of("embeddings.position_embeddings.weight")?;
    let [kinds, _] = sizes.of("embeddings.token_type_embeddings.weight")?;
    let [width, _] = sizes.of(&format!("{MAPPING}.weight"))?;
    let [inside, _] = sizes.of("encoder.albert_layer_groups.0.albert_layers.0.ffn.weight")?;
    let groups = sizes.count("encoder.albert_layer_groups.{}.albert_layers.0.ffn.weight");
    let inner = sizes.count("encoder.albert_layer_groups.0.albert_layers.{}.ffn.weight");
    config.same_all(&[
        ("vocab_size", rows),
        ("embedding_size", narrow),
        ("hidden_size", width),
        ("max_position_embeddings", length),
        ("type_vocab_size", kinds),
        ("intermediate_size", inside),
        ("num_hidden_groups", groups),
        ("inner_group_num", inner),
    ])?;
    config.check_encoder()?;
    config.ignore(&[
        "classifier_dropout_prob",
        "down_scale_factor",
        "gap_size",
        "net_structure_type",
        "num_memory_blocks",
    ]);
    let layers = config.count("num_hidden_layers")?.unwrap_or(12);
    if layers > 1000 || layers < groups {
        return Err(config.wrong(format!("num_hidden_layers is {layers}, but there are {groups} groups")));
    }
    let block = BlockLayers {
        dropout: config.dropout("hidden_dropout_prob", 0.0, &["attention_probs_dropout_prob"])?,
        epsilon: config.number_or("layer_norm_eps", 1e-12, 1e-12)?,
        activation: HiddenActivation::of(&config, "hidden_act", "gelu_new")?,
        ..BlockLayers::new(config.heads("num_attention_heads", width)?, width)
    };
    let (tokens, segments) = (any_input("tokens"), any_input("segments"));
    let x = tokens.apply(token_embedding(files, rows, narrow));
    let places = x.apply(position_embedding(length).name("embeddings.position_embeddings"));
    let kind = embedding(kinds, narrow).mask_zero(files.padding.is_some());
    let kind = segments.apply(kind.name("embeddings.token_type_embeddings"));
    let x = block.norm(&add().on(&[&x, &places, &kind]), "embeddings.LayerNorm".into());
    let mut x = x.apply(dense(width).name(MAPPING));
    for i in 0..layers {
        for j in 0..inner {
            let name = format!("encoder.albert_layer_groups.{}.albert_layers.{j}", i * groups / layers);
            x = encoder_block(&block, &x, [inside, width], &name);
        }
    }
    let classes = sizes.find::<2>("classifier.weight").map_or(0, |[n, _]| n);
    let (y, pooling) = text_output(&sizes, &x, [width, classes], "pooler.weight")?;
    text_model(&[tokens, segments], &y, length, pooling, config)
}

fn encoder_block(block: &BlockLayers, x: &Symbol, widths: [usize; 2], name: &str) -> Symbol {
    let y = block.attention(x, None, format!("{name}.attention"));
    let x = block.norm(&block.residual(x, &y), format!("{name}.attention.LayerNorm"));
    let y = block.feed_forward(&x, widths, ["ffn", "ffn_output"].map(|part| format!("{name}.{part}")));
    block.norm(&block.residual(&x, &y), format!("{name}.full_layer_layer_norm"))
}
