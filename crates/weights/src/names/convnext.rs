//! ConvNeXt in Hugging Face's layout.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "ConvNeXt",
    model_types: &["convnext"],
    about: "images: classes, features",
    prefix: |files| {
        files.prefix(FAMILY.model_types, &["convnext.", ""], "encoder.stages.0.layers.0.dwconv.weight")
    },
    architecture,
    is_one: |model| has_layer(model, "encoder.stages.0.layers.0.dwconv"),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |_, _, _| false,
};

const MODULES: ModuleNames = ModuleNames { attention: [""; 4], renamed: &[("predictions", "classifier")] };

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [_, channels, patch, _] = sizes.of("embeddings.patch_embeddings.weight")?;
    let stages = sizes.count("encoder.stages.{}.layers.0.dwconv.weight");
    config.same("num_channels", channels)?;
    config.same("patch_size", patch)?;
    config.same("num_stages", stages)?;
    config.check_encoder()?;
    config.ignore(&["drop_path_rate", "layer_scale_init_value"]);
    let activation = HiddenActivation::of(&config, "hidden_act", "gelu")?;
    let side = config.count("image_size")?.unwrap_or(224);
    let [height, wide] = files.image_size.unwrap_or([side, side]);
    let image = any_input("image");
    let (mut x, mut depths, mut widths) = (image.clone(), Vec::new(), Vec::new());
    for stage in 0..stages {
        let name = format!("encoder.stages.{stage}");
        let [width, ..] = sizes.of::<4>(&format!("{name}.layers.0.dwconv.weight"))?;
        x = match stage {
            0 => x
                .apply(conv2d(width, patch).strides(patch).name("embeddings.patch_embeddings"))
                .apply(norm("embeddings.layernorm".into())),
            _ => x
                .apply(norm(format!("{name}.downsampling_layer.0")))
                .apply(conv2d(width, 2).strides(2).name(format!("{name}.downsampling_layer.1"))),
        };
        let depth = sizes.count(&format!("{name}.layers.{{}}.dwconv.weight"));
        for i in 0..depth {
            let name = format!("{name}.layers.{i}");
            let scales = sizes.find::<1>(&format!("{name}.layer_scale_parameter")).is_some();
            x = block(&x, width, activation, scales, &name);
        }
        depths.push(depth);
        widths.push(width);
    }
    config.same_list("depths", &depths)?;
    config.same_list("hidden_sizes", &widths)?;
    let epsilon = config.number_or("layer_norm_eps", 1e-12, 1e-12)?;
    let y = x
        .apply(global_average_pooling2d().name("avg_pool"))
        .apply(layer_normalization().epsilon(epsilon).name("layernorm"));
    let classes = sizes.find::<2>("classifier.weight").map_or(0, |[n, _]| n);
    let head = config.head(classes)?;
    value_model(&image, &classified(&y, classes, head), &[height, wide, channels], config)
}

fn norm(name: String) -> LayerSpec {
    layer_normalization().epsilon(1e-6).name(name)
}

fn block(x: &Symbol, width: usize, activation: HiddenActivation, scales: bool, name: &str) -> Symbol {
    let depthwise = conv2d(width, 7).padding("same").groups(width as i64).name(format!("{name}.dwconv"));
    let y = x.apply(depthwise).apply(norm(format!("{name}.layernorm")));
    let y = activation.after(&y, dense(4 * width).name(format!("{name}.pwconv1")));
    let y = y.apply(dense(width).name(format!("{name}.pwconv2")));
    let y = if scales { y.apply(layer_scale(1e-6).name(format!("{name}.layer_scale_parameter"))) } else { y };
    add().on(&[x, &y])
}
