//! DINOv2 in Hugging Face's layout: ViT with layer scale.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use crate::names::transformer_encoder::shape_of;
use systole_ir::{Literal, Result};
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

const POSITIONS: &str = "embeddings.position_embeddings";

const MODULES: ModuleNames = ModuleNames {
    attention: ["attention.query", "attention.key", "attention.value", "output.dense"],
    renamed: &[("predictions", "classifier")],
};

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [width, channels, patch, _] = sizes.of("embeddings.patch_embeddings.projection.weight")?;
    let [_, positions, _] = sizes.of(POSITIONS)?;
    config.only("use_swiglu_ffn", false)?;
    let [inside, _] = sizes.of("encoder.layer.0.mlp.fc1.weight")?;
    let layers = sizes.count("encoder.layer.{}.mlp.fc1.weight");
    let side = patch_side(&config, positions, 1)?;
    config.same_all(&[
        ("hidden_size", width),
        ("num_hidden_layers", layers),
        ("num_channels", channels),
        ("patch_size", patch),
    ])?;
    match files.image_size {
        // The table of positions was resized.
        Some([height, width]) if [height, width] == [side * patch; 2] => config.ignore(&["image_size"]),
        _ => config.same("image_size", side * patch)?,
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
    let places = x.apply(position_embedding(positions).name(POSITIONS));
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
    let scaled =
        |y: Symbol, i: usize| y.apply(layer_scale(1.0).name(format!("{name}.layer_scale{i}.lambda1")));
    let y = block.attention(&block.norm(x, format!("{name}.norm1")), None, format!("{name}.attention"));
    let x = block.residual(x, &scaled(y, 1));
    let names = ["fc1", "fc2"].map(|part| format!("{name}.mlp.{part}"));
    let y = block.feed_forward(&block.norm(&x, format!("{name}.norm2")), widths, names);
    block.residual(&x, &scaled(y, 2))
}

/// Resizes the table of positions to images of another size, as transformers does in each call: bicubic, of the patches only.
///
/// # Errors
/// None in practice: the resized table has the stated shape.
pub(crate) fn resize_positions(tensors: &mut [(String, Literal)], image_size: [usize; 2]) -> Result<()> {
    for prefix in ["dinov2.", ""] {
        let patch = format!("{prefix}embeddings.patch_embeddings.projection.weight");
        let Some([_, _, patch, _]) = shape_of::<4>(tensors, &patch) else { continue };
        let name = format!("{prefix}{POSITIONS}");
        let Some((_, table)) = tensors.iter_mut().find(|(n, _)| *n == name) else { continue };
        let [1, positions, width] = *table.shape().dims() else { continue };
        let (old, new) = (positions.saturating_sub(1).isqrt(), image_size[0] / patch.max(1));
        let fits = image_size == [new * patch; 2] && new > 0 && old * old + 1 == positions;
        if !fits || old == new {
            continue;
        }
        let values = table.to_f32s();
        let (first, patches) = values.split_at(width);
        let mut out = first.to_vec();
        out.extend(bicubic(patches, old, new, width));
        *table = Literal::from_slice([1, new * new + 1, width], &out)?;
    }
    Ok(())
}

/// PyTorch's bicubic interpolation: `x: f32[old, old, width] → f32[new, new, width]`.
fn bicubic(x: &[f32], old: usize, new: usize, width: usize) -> Vec<f32> {
    let taps = |i: usize| {
        let at = (i as f32 + 0.5) * (old as f32 / new as f32) - 0.5;
        let t = at - at.floor();
        let near = |d: f32| ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0;
        let far = |d: f32| ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A;
        let place = |k: i64| (at.floor() as i64 + k).clamp(0, old as i64 - 1) as usize;
        [(place(-1), far(t + 1.0)), (place(0), near(t)), (place(1), near(1.0 - t)), (place(2), far(2.0 - t))]
    };
    let mut out = Vec::with_capacity(new * new * width);
    for row in 0..new {
        for column in 0..new {
            for c in 0..width {
                let along = |y: usize| {
                    taps(column).iter().map(|(j, w)| w * x[(y * old + j) * width + c]).sum::<f32>()
                };
                out.push(taps(row).iter().map(|(y, w)| w * along(*y)).sum());
            }
        }
    }
    out
}

/// Parameter of PyTorch's bicubic kernel.
const A: f32 = -0.75;
