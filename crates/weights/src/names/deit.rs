//! DeiT in Hugging Face's layout: ViT with a distillation token.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Activation, Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "DeiT",
    model_types: &["deit"],
    about: "images: classes, features",
    prefix: |files| files.prefix(FAMILY.model_types, &["deit.", ""], TOKEN),
    architecture,
    is_one: |model| has_layer(model, TOKEN),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |_, _, name| {
        name.contains("pooler.") || name.ends_with("mask_token") || name.starts_with("decoder.")
    },
};

const TOKEN: &str = "embeddings.distillation_token";

const MODULES: ModuleNames = ModuleNames {
    attention: ["attention.query", "attention.key", "attention.value", "output.dense"],
    renamed: &[("predictions", "classifier")],
};

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [width, channels, patch, _] = sizes.of("embeddings.patch_embeddings.projection.weight")?;
    let [_, positions, _] = sizes.of("embeddings.position_embeddings")?;
    let [inside, _] = sizes.of("encoder.layer.0.intermediate.dense.weight")?;
    let layers = sizes.count("encoder.layer.{}.intermediate.dense.weight");
    let side = patch_side(&config, positions, 2)?;
    config.same_all(&[
        ("hidden_size", width),
        ("intermediate_size", inside),
        ("num_hidden_layers", layers),
        ("num_channels", channels),
        ("patch_size", patch),
        ("image_size", side * patch),
    ])?;
    config.check_encoder()?;
    config.only("qkv_bias", true)?;
    let block = BlockLayers {
        dropout: config.dropout("hidden_dropout_prob", 0.0, &["attention_probs_dropout_prob"])?,
        epsilon: config.number_or("layer_norm_eps", 1e-12, 1e-12)?,
        activation: HiddenActivation::of(&config, "hidden_act", "gelu")?,
        ..BlockLayers::new(config.heads("num_attention_heads", width)?, width)
    };
    let image = any_input("image");
    let x = patches(&image, [width, side, patch], true, "embeddings.patch_embeddings.projection")
        .apply(class_token().name(TOKEN))
        .apply(class_token().name("embeddings.cls_token"));
    let places = x.apply(position_embedding(positions).name("embeddings.position_embeddings"));
    let mut x = add().on(&[&x, &places]);
    for i in 0..layers {
        x = encoder_block(&block, &x, [inside, width], &format!("encoder.layer.{i}"));
    }
    let x = block.norm(&x, "layernorm".into());
    let classes = |name: &str| sizes.find::<2>(name).map_or(0, |[n, _]| n);
    let (plain, taught) = (classes("classifier.weight"), classes("cls_classifier.weight"));
    let head = config.head(plain.max(taught))?;
    let first = x.apply(first_step().name("first_step"));
    let y = match taught {
        0 => classified(&first, plain, head),
        n => two_heads(&x, &first, n, head),
    };
    value_model(&image, &y, &[side * patch, side * patch, channels], config)
}

/// Mean of the logits of the class token and the distillation token.
fn two_heads(x: &Symbol, first: &Symbol, classes: usize, head: Activation) -> Symbol {
    let second = x.apply(cropping1d((1, 0))).apply(first_step().name("second_step"));
    let logits = [
        first.apply(dense(classes).name("cls_classifier")),
        second.apply(dense(classes).name("distillation_classifier")),
    ];
    average().on(&[&logits[0], &logits[1]]).apply(activation(head).name("predictions"))
}

fn encoder_block(block: &BlockLayers, x: &Symbol, widths: [usize; 2], name: &str) -> Symbol {
    let y = block.attention(
        &block.norm(x, format!("{name}.layernorm_before")),
        None,
        format!("{name}.attention"),
    );
    let x = block.residual(x, &y);
    let names = ["intermediate", "output"].map(|part| format!("{name}.{part}.dense"));
    let y = block.feed_forward(&block.norm(&x, format!("{name}.layernorm_after")), widths, names);
    block.residual(&x, &y)
}
