//! DINOv2 in Hugging Face's layout: ViT with layer scale.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "DINOv2",
    model_types: &["dinov2"],
    about: "images: classes, features",
    prefix: |files| {
        files.prefix(FAMILY.model_types, &["dinov2.", ""], "encoder.layer.0.layer_scale1.lambda1")
    },
    architecture,
    is_one: |model| has_layer(model, "encoder.layer.0.layer_scale1.lambda1"),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |_, _, name| name.ends_with("mask_token"),
};

const MODULES: ModuleNames = ModuleNames {
    attention: ["attention.query", "attention.key", "attention.value", "output.dense"],
    renamed: &[("predictions", "classifier")],
};

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [width, channels, patch, _] = sizes.of("embeddings.patch_embeddings.projection.weight")?;
    let [_, positions, _] = sizes.of("embeddings.position_embeddings")?;
    config.only("use_swiglu_ffn", false)?;
    let [inside, _] = sizes.of("encoder.layer.0.mlp.fc1.weight")?;
    let layers = sizes.count("encoder.layer.{}.mlp.fc1.weight");
    let side = patch_side(&config, positions, 1)?;
    for (key, size) in [
        ("hidden_size", width),
        ("num_hidden_layers", layers),
        ("num_channels", channels),
        ("patch_size", patch),
        ("image_size", side * patch),
    ] {
        config.same(key, size)?;
    }
    config.check_encoder()?;
    config.only("qkv_bias", true)?;
    config.ignore(&[
        "mlp_ratio",
        "layerscale_value",
        "drop_path_rate",
        "use_mask_token",
        "apply_layernorm",
        "reshape_hidden_states",
    ]);
    let block = BlockLayers {
        dropout: config.dropout("hidden_dropout_prob", 0.0, &["attention_probs_dropout_prob"])?,
        epsilon: config.number_or("layer_norm_eps", 1e-6, 1e-6)?,
        activation: HiddenActivation::of(&config, "hidden_act", "gelu")?,
        ..BlockLayers::new(config.heads("num_attention_heads", width)?, width)
    };
    let image = any_input("image");
    let x = patches(&image, [width, side, patch], true, "embeddings.patch_embeddings.projection")
        .apply(class_token().name("embeddings.cls_token"));
    let places = x.apply(position_embedding(positions).name("embeddings.position_embeddings"));
    let mut x = add().on(&[&x, &places]);
    for i in 0..layers {
        x = encoder_block(&block, &x, [inside, width], &format!("encoder.layer.{i}"));
    }
    let x = block.norm(&x, "layernorm".into());
    let first = x.apply(first_step().name("first_step"));
    let classes = sizes.find::<2>("classifier.weight").map_or(0, |[n, _]| n);
    let head = config.head(classes)?;
    let y = match classes {
        0 => first,
        n => {
            let others = x.apply(cropping1d((1, 0))).apply(global_average_pooling1d().name("mean_pooling"));
            classified(&concatenate(-1).on(&[&first, &others]), n, head)
        }
    };
    value_model(&image, &y, &[side * patch, side * patch, channels], config)
}

fn encoder_block(block: &BlockLayers, x: &Symbol, widths: [usize; 2], name: &str) -> Symbol {
    let scaled = |y: Symbol, i: usize| y.apply(layer_scale(1.0).name(format!("{name}.layer_scale{i}.lambda1")));
    let y = block.attention(&block.norm(x, format!("{name}.norm1")), None, format!("{name}.attention"));
    let x = block.residual(x, &scaled(y, 1));
    let names = ["fc1", "fc2"].map(|part| format!("{name}.mlp.{part}"));
    let y = block.feed_forward(&block.norm(&x, format!("{name}.norm2")), widths, names);
    block.residual(&x, &scaled(y, 2))
}
