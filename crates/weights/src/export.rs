//! Exports a model's weights as PyTorch, safetensors or Keras files.

use crate::names::{bert, gpt2, match_by_order, resnet, vit};
use crate::weight_mapping::{self, ExportedFile, WeightRule};
use crate::{keras, safetensors, torch};
use std::path::Path;
use systole_ir::Result;
use systole_nn::Model;

/// Format of an exported weight file: PyTorch, safetensors or Keras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// Keras: `.weights.h5`, or `.keras` with the layers, depending on the file name.
    Keras,
    /// PyTorch `.pt` with a state_dict.
    Torch,
    /// safetensors with PyTorch's state_dict names.
    Safetensors,
}

/// Returns the contents of an exported weight file; for Keras the file name `out` selects the format.
///
/// # Errors
/// If a layer has no counterpart in the format (names it), or the model has no weights.
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
        return Ok((
            bert::rules(model, bert::BertNames::of_bert())?,
            "those of BERT in Hugging Face transformers",
        ));
    }
    if vit::is_one(model) {
        return Ok((vit::rules(model, "vit.")?, "those of ViT in Hugging Face transformers"));
    }
    if gpt2::is_one(model) {
        return Ok((gpt2::rules(model, "transformer.")?, "those of GPT-2 in Hugging Face transformers"));
    }
    if resnet::is_one(model) {
        let strided = "those of torchvision; like Keras's ResNet50, the model has biases and strides in the first convolution of a \
                       block, so torchvision's own class computes something else";
        let is_theirs = model
            .architecture()
            .nodes
            .iter()
            .any(|n| n.name == "conv2_block1_2_pad" || n.name == "conv2_block1_1_pad");
        let note = if is_theirs { "those of torchvision" } else { strided };
        return Ok((resnet::rules(model, resnet::ResNetNaming::Torchvision)?, note));
    }
    Ok((match_by_order::by_layer(model)?, "those of the layers"))
}
