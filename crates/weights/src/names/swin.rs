//! Swin transformer in Hugging Face's layout: attention within shifted windows, and patches that are merged.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use crate::weight_mapping::WeightRule;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Model, Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "Swin",
    model_types: &["swin"],
    about: "images: classes, features",
    prefix: |files| {
        files.prefix(FAMILY.model_types, &["swin.", ""], &format!("{FIRST}.layernorm_before.weight"))
    },
    architecture,
    is_one: |model| has_layer(model, &format!("{FIRST}.attention")),
    rules,
    is_unused: |_, _, name| {
        // The index follows from the size of the windows.
        ["relative_position_index", "mask_token"].iter().any(|end| name.ends_with(end))
            || name.starts_with("decoder.")
    },
};

const FIRST: &str = "encoder.layers.0.blocks.0";
const TABLE: &str = "relative_position_bias_table";

const MODULES: ModuleNames = ModuleNames {
    attention: ["self.query", "self.key", "self.value", "output.dense"],
    renamed: &[("predictions", "classifier")],
};

fn rules(model: &Model, files: &WeightFiles<'_>, prefix: &'static str) -> Result<Vec<WeightRule>> {
    let mut all = MODULES.rules(model, files.tensors, prefix)?;
    for part in all.iter_mut().flat_map(|rule| &mut rule.parts) {
        part.theirs =
            part.theirs.replace(&format!(".attention.{TABLE}"), &format!(".attention.self.{TABLE}"));
    }
    Ok(all)
}

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [first, channels, patch, _] = sizes.of("embeddings.patch_embeddings.projection.weight")?;
    let stages = sizes.count("encoder.layers.{}.blocks.0.layernorm_before.weight");
    config.same_all(&[
        ("embed_dim", first),
        ("num_channels", channels),
        ("patch_size", patch),
        ("num_layers", stages),
    ])?;
    config.check_encoder()?;
    config.only("qkv_bias", true)?;
    config.only("use_absolute_embeddings", false)?;
    config.ignore(&["drop_path_rate", "mlp_ratio", "path_norm"]);
    let side = config.count("image_size")?.unwrap_or(224);
    let window = config.count("window_size")?.unwrap_or(7);
    let epsilon = config.number_or("layer_norm_eps", 1e-5, 1e-5)?;
    let block = BlockLayers {
        dropout: config.dropout("hidden_dropout_prob", 0.0, &["attention_probs_dropout_prob"])?,
        epsilon,
        activation: HiddenActivation::of(&config, "hidden_act", "gelu")?,
        ..BlockLayers::new(1, first)
    };
    let image = any_input("image");
    let projection = conv2d(first, patch).strides(patch).name("embeddings.patch_embeddings.projection");
    let mut x = block.norm(&image.apply(projection), "embeddings.norm".into());
    let (mut size, mut depths, mut all_heads) = (side / patch.max(1), Vec::new(), Vec::new());
    for stage in 0..stages {
        let name = format!("encoder.layers.{stage}");
        let depth = sizes.count(&format!("{name}.blocks.{{}}.layernorm_before.weight"));
        let [width] = sizes.of(&format!("{name}.blocks.0.layernorm_before.weight"))?;
        let [inside, _] = sizes.of(&format!("{name}.blocks.0.intermediate.dense.weight"))?;
        let [_, heads] = sizes.of(&format!("{name}.blocks.0.attention.self.{TABLE}"))?;
        for i in 0..depth {
            let shift = if i % 2 == 1 { window / 2 } else { 0 };
            let attention = window_attention(heads, window).shift_size(shift).dropout(block.dropout);
            x = encoder_block(&block, &x, attention, [inside, width], &format!("{name}.blocks.{i}"));
        }
        if sizes.find::<2>(&format!("{name}.downsample.reduction.weight")).is_some() {
            if size % 2 == 1 {
                return Err(config.wrong(format!("stage {stage} has an odd side of {size} patches")));
            }
            size /= 2;
            x = merged(&block, &x, size, width, &format!("{name}.downsample"));
        }
        depths.push(depth);
        all_heads.push(heads);
    }
    config.same_list("depths", &depths)?;
    config.same_list("num_heads", &all_heads)?;
    config.ignore(&["hidden_size"]);
    let y = block.norm(&x, "layernorm".into()).apply(global_average_pooling2d().name("avg_pool"));
    let classes = sizes.find::<2>("classifier.weight").map_or(0, |[n, _]| n);
    let head = config.head(classes)?;
    value_model(&image, &classified(&y, classes, head), &[side, side, channels], config)
}

fn encoder_block(
    block: &BlockLayers,
    x: &Symbol,
    attention: LayerSpec,
    widths: [usize; 2],
    name: &str,
) -> Symbol {
    let y = block.norm(x, format!("{name}.layernorm_before"));
    let x = block.residual(x, &y.apply(attention.name(format!("{name}.attention"))));
    let names = ["intermediate", "output"].map(|part| format!("{name}.{part}.dense"));
    let y = block.feed_forward(&block.norm(&x, format!("{name}.layernorm_after")), widths, names);
    block.residual(&x, &y)
}

/// Patch merging: `x: T[B, 2·side, 2·side, C] → T[B, side, side, 2·C]`; of each 2×2 patches, rows vary fastest.
fn merged(block: &BlockLayers, x: &Symbol, side: usize, width: usize, name: &str) -> Symbol {
    let (n, c) = (side as i64, width as i64);
    let x = x.apply(reshape([n, 2, n, 2, c])).apply(permute([1, 3, 4, 2, 5])).apply(reshape([n, n, 4 * c]));
    block
        .norm(&x, format!("{name}.norm"))
        .apply(dense(2 * width).use_bias(false).name(format!("{name}.reduction")))
}
