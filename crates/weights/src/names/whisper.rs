//! Whisper's encoder in Hugging Face's layout: two convolutions over log-mel frames, then transformer blocks.

use super::encoder_layers::*;
use super::family::{ModelFamily, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "Whisper encoder",
    model_types: &["whisper"],
    about: "log-mel spectrograms [frames, mels]: features",
    prefix: |files| files.prefix(FAMILY.model_types, &["model.", ""], "encoder.conv2.weight"),
    architecture,
    is_one: |model| has_layer(model, "encoder.conv2") && has_layer(model, "encoder.embed_positions"),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |_, _, name| {
        ["decoder.", "model.decoder.", "proj_out.", "projector.", "classifier."]
            .iter()
            .any(|start| name.starts_with(start))
    },
};

const MODULES: ModuleNames =
    ModuleNames { attention: ["q_proj", "k_proj", "v_proj", "out_proj"], renamed: &[] };

/// Keys of the decoder, of training and of text generation.
const IGNORED: [&str; 28] = [
    "activation_dropout",
    "apply_spec_augment",
    "attention_dropout",
    "classifier_proj_size",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "decoder_layerdrop",
    "decoder_layers",
    "encoder_layerdrop",
    "forced_decoder_ids",
    "init_std",
    "is_decoder",
    "is_encoder_decoder",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "max_target_positions",
    "median_filter_width",
    "num_hidden_layers",
    "tie_word_embeddings",
    "use_weighted_layer_sum",
    "vocab_size",
    "hidden_size",
    "is_multilingual",
    "lang_ids",
];

fn architecture(files: &WeightFiles<'_>, prefix: &'static str) -> Result<DerivedModel> {
    let config = FamilyConfig::new(FAMILY.name, FAMILY.model_types, files.config)?;
    let sizes = TensorSizes { files, prefix, config: &config };
    let [width, mels, _] = sizes.of("encoder.conv1.weight")?;
    let [positions, _] = sizes.of("encoder.embed_positions.weight")?;
    let [inside, _] = sizes.of("encoder.layers.0.fc1.weight")?;
    let layers = sizes.count("encoder.layers.{}.fc1.weight");
    config.same_all(&[
        ("d_model", width),
        ("num_mel_bins", mels),
        ("max_source_positions", positions),
        ("encoder_ffn_dim", inside),
        ("encoder_layers", layers),
    ])?;
    config.only("scale_embedding", false)?;
    config.ignore(&IGNORED);
    config.ignore_head();
    let block = BlockLayers {
        dropout: config.dropout("dropout", 0.0, &[])?,
        epsilon: 1e-5,
        activation: HiddenActivation::of(&config, "activation_function", "gelu")?,
        ..BlockLayers::new(config.heads("encoder_attention_heads", width)?, width)
    };
    let frames = any_input("frames");
    let mut x = convolved(&frames, conv1d(width, 3), "encoder.conv1");
    x = convolved(&x, conv1d(width, 3).strides(2), "encoder.conv2");
    let places = x.apply(position_embedding(positions).name("encoder.embed_positions"));
    x = add().on(&[&x, &places]);
    for i in 0..layers {
        x = encoder_block(&block, &x, [inside, width], &format!("encoder.layers.{i}"));
    }
    let y = block.norm(&x, "encoder.layer_norm".into());
    value_model(&frames, &y, &[2 * positions, mels], config)
}

/// A convolution with one frame of padding on either side, and GELU.
fn convolved(x: &Symbol, convolution: LayerSpec, name: &str) -> Symbol {
    x.apply(zero_padding1d(1)).apply(convolution.activation("gelu").name(name))
}

fn encoder_block(block: &BlockLayers, x: &Symbol, widths: [usize; 2], name: &str) -> Symbol {
    let y = block.norm(x, format!("{name}.self_attn_layer_norm"));
    let x = block.residual(x, &block.attention(&y, None, format!("{name}.self_attn")));
    let y = block.norm(&x, format!("{name}.final_layer_norm"));
    let y = block.feed_forward(&y, widths, ["fc1", "fc2"].map(|part| format!("{name}.{part}")));
    block.residual(&x, &y)
}
