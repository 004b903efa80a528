//! CLIP in Hugging Face's layout: the encoder of images or that of texts, with its projection into the common space.

use super::encoder_layers::*;
use super::family::{ModelFamily, Tower, WeightFiles, has_layer};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::module_names::ModuleNames;
use systole_ir::Result;
use systole_nn::layers::*;
use systole_nn::{Model, Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "CLIP",
    model_types: &["clip", "clip_vision_model", "clip_text_model"],
    about: "images or texts: features in a common space",
    prefix: |files| {
        let types = FAMILY.model_types;
        files.prefix(types, &[""], IMAGES).or_else(|| files.prefix(types, &[""], TEXTS))
    },
    architecture,
    is_one: |model| is_of_images(model) || has_layer(model, "text_model.final_layer_norm"),
    rules: |model, files, prefix| MODULES.rules(model, files.tensors, prefix),
    is_unused: |model, _, name| {
        let others = if is_of_images(model) { "text_" } else { "vis" };
        name == "logit_scale" || name.starts_with(others)
    },
};

const IMAGES: &str = "vision_model.embeddings.class_embedding";
const TEXTS: &str = "text_model.embeddings.token_embedding.weight";

const MODULES: ModuleNames = ModuleNames {
    attention: ["q_proj", "k_proj", "v_proj", "out_proj"],
    renamed: &[("token_embedding", "text_model.embeddings.token_embedding")],
};

fn is_of_images(model: &Model) -> bool {
    has_layer(model, "vision_model.pre_layrnorm")
}

fn architecture(files: &WeightFiles<'_>, _: &'static str) -> Result<DerivedModel> {
    let tower = match (files.has(IMAGES), files.has(TEXTS)) {
        (true, true) => files.tower,
        (true, false) => Tower::Images,
        _ => Tower::Texts,
    };
    let (key, kind) = match tower {
        Tower::Images => ("vision_config", "clip_vision_model"),
        Tower::Texts => ("text_config", "clip_text_model"),
    };
    // A folder of both has the settings of each in a part.
    let nested = files.config.and_then(|c| c.get(key));
    let config = FamilyConfig::new(FAMILY.name, &[kind], nested.or(files.config))?;
    config.check_encoder()?;
    config.ignore(&["projection_dim", "dropout"]);
    match tower {
        Tower::Images => images(files, config),
        Tower::Texts => texts(files, config),
    }
}

fn block_of(config: &FamilyConfig<'_>, width: usize, causal: bool) -> Result<BlockLayers> {
    Ok(BlockLayers {
        dropout: config.dropout("attention_dropout", 0.0, &[])?,
        epsilon: config.number_or("layer_norm_eps", 1e-5, 1e-5)?,
        activation: HiddenActivation::of(config, "hidden_act", "quick_gelu")?,
        causal,
        ..BlockLayers::new(config.heads("num_attention_heads", width)?, width)
    })
}

fn images(files: &WeightFiles<'_>, config: FamilyConfig<'_>) -> Result<DerivedModel> {
    let sizes = TensorSizes { files, prefix: "", config: &config };
    let embeddings = "vision_model.embeddings";
    let [width, channels, patch, _] = sizes.of(&format!("{embeddings}.patch_embedding.weight"))?;
    let [positions, _] = sizes.of(&format!("{embeddings}.position_embedding.weight"))?;
    let side = patch_side(&config, positions, 1)?;
    config.same_all(&[
        ("hidden_size", width),
        ("num_channels", channels),
        ("patch_size", patch),
        ("image_size", side * patch),
    ])?;
    let block = block_of(&config, width, false)?;
    let image = any_input("image");
    let x = patches(&image, [width, side, patch], false, &format!("{embeddings}.patch_embedding"))
        .apply(class_token().name(IMAGES));
    let places = x.apply(position_embedding(positions).name(format!("{embeddings}.position_embedding")));
    let x = block.norm(&add().on(&[&x, &places]), "vision_model.pre_layrnorm".into());
    let x = encoder(&sizes, &block, x, "vision_model")?;
    let y = block.norm(&x.apply(first_step().name("first_step")), "vision_model.post_layernorm".into());
    let y = projected(&sizes, &y, "visual_projection");
    value_model(&image, &y, &[side * patch, side * patch, channels], config)
}

fn texts(files: &WeightFiles<'_>, config: FamilyConfig<'_>) -> Result<DerivedModel> {
    let sizes = TensorSizes { files, prefix: "", config: &config };
    let [rows, width] = sizes.of(TEXTS)?;
    let [length, _] = sizes.of("text_model.embeddings.position_embedding.weight")?;
    config.same_all(&[("vocab_size", rows), ("hidden_size", width), ("max_position_embeddings", length)])?;
    let block = block_of(&config, width, true)?;
    let tokens = any_input("tokens");
    let x = tokens.apply(embedding(rows, width).name("token_embedding"));
    let places = x.apply(position_embedding(length).name("text_model.embeddings.position_embedding"));
    let x = encoder(&sizes, &block, add().on(&[&x, &places]), "text_model")?;
    let x = block.norm(&x, "text_model.final_layer_norm".into());
    // Files of before 2023 state 2, where the end of text is the largest token.
    let end = match config.count("eos_token_id")?.unwrap_or(49407) {
        2 => token_step(),
        token => token_step().token(token as u32),
    };
    let y = projected(&sizes, &end.name("end_of_text").on(&[&x, &tokens]), "text_projection");
    text_model(&[tokens], &y, length, None, config)
}

fn encoder(sizes: &TensorSizes<'_>, block: &BlockLayers, mut x: Symbol, tower: &str) -> Result<Symbol> {
    let layers = sizes.count(&format!("{tower}.encoder.layers.{{}}.mlp.fc1.weight"));
    let [inside, width] = sizes.of(&format!("{tower}.encoder.layers.0.mlp.fc1.weight"))?;
    sizes.config.same("num_hidden_layers", layers)?;
    sizes.config.same("intermediate_size", inside)?;
    for i in 0..layers {
        let name = format!("{tower}.encoder.layers.{i}");
        let y = block.norm(&x, format!("{name}.layer_norm1"));
        x = block.residual(&x, &block.attention(&y, None, format!("{name}.self_attn")));
        let names = ["fc1", "fc2"].map(|part| format!("{name}.mlp.{part}"));
        let y = block.feed_forward(&block.norm(&x, format!("{name}.layer_norm2")), [inside, width], names);
        x = block.residual(&x, &y);
    }
    Ok(x)
}

fn projected(sizes: &TensorSizes<'_>, y: &Symbol, name: &str) -> Symbol {
    match sizes.find::<2>(&format!("{name}.weight")) {
        Some([units, _]) => y.apply(dense(units).use_bias(false).name(name)),
        None => y.clone(),
    }
}
