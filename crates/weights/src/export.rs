//! A model's weights as files of other systems.

use crate::names::{bert, gpt2, match_by_order, resnet, vit};
use crate::weight_mapping::{self, ExportedFile, WeightRule};
use crate::{keras, safetensors, torch};
use std::path::Path;
use systole_ir::Result;
use systole_nn::Model;

/// What a file is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// Keras's `.weights.h5`, or, where the file is named so, `.keras` with the layers.
    Keras,
    /// PyTorch's `.pt`: a state_dict.
    Torch,
    /// The state_dict of PyTorch as a safetensors file.
    Safetensors,
}

/// Makes the file that `out` is to be; its name decides between Keras's two kinds.
///
/// # Errors
/// When a layer has no counterpart there (names it), or the model has no weights.
pub fn export(model: &Model, format: WeightFormat, out: &Path) -> Result<ExportedFile> {
    if format == WeightFormat::Keras {
        return keras::export(model, out);
    }
    let (rules, note) = rules(model)?;
    let (arrays, rows) = weight_mapping::taken(model, &rules)?;
    let bytes = match format {
        WeightFormat::Torch => torch::parts(&arrays)?.concat(),
        _ => safetensors::parts(&arrays, "pt").concat(),
    };
    Ok(ExportedFile { bytes, rows, notes: vec![note.into()] })
}

fn rules(model: &Model) -> Result<(Vec<WeightRule>, &'static str)> {
    if bert::is_one(model) {
        return Ok((bert::rules(model, "bert.")?, "by the names of BERT in Hugging Face's transformers"));
    }
    if vit::is_one(model) {
        return Ok((vit::rules(model, "vit.")?, "by the names of ViT in Hugging Face's transformers"));
    }
    if gpt2::is_one(model) {
        return Ok((
            gpt2::rules(model, "transformer.")?,
            "by the names of GPT-2 in Hugging Face's transformers",
        ));
    }
    if resnet::is_one(model) {
        let strided = "by torchvision's names; the model strides in the first convolution of a block, as Keras's ResNet50 does, \
                       and has biases: torchvision's own class computes something else";
        let is_theirs = model
            .architecture()
            .nodes
            .iter()
            .any(|n| n.name == "conv2_block1_2_pad" || n.name == "conv2_block1_1_pad");
        let note = if is_theirs { "by torchvision's names" } else { strided };
        return Ok((resnet::rules(model, resnet::ResNetNaming::Torchvision)?, note));
    }
    Ok((match_by_order::by_layer(model)?, "by the layers' names"))
}
