//! Preprocessing of images as data, for programs that run an exported model: size, color, resizing, scale.

use crate::models::command_target::config_of;
use crate::models::image_preparation::ImagePreparation;
use serde_json::{Value, json};
use systole_config::first_rescaling;
use systole_ir::Result;
use systole_nn::Model;

/// Key of the preprocessing in the metadata of exported files.
pub(crate) const PREPROCESSING: &str = "preprocessing";

/// Key of the pixel scale in exported files of models without a configuration.
pub(crate) const PIXEL_SCALE: &str = "pixel_scale";

/// Returns the factor for pixel values 0 to 255 of a model without a configuration: the one that its file contains, or
/// 1 if the model scales pixels itself.
pub(crate) fn stored_scale(model: &Model) -> Result<Option<f64>> {
    if let Some(scale) = model.notes.get(PIXEL_SCALE).and_then(|text| text.parse().ok()) {
        return Ok(Some(scale));
    }
    let is_own =
        ImagePreparation::in_model(model)?.is_some() || first_rescaling(model.architecture()).is_some();
    Ok(is_own.then_some(1.0))
}

/// Describes how images become the model's input; `None` if the model does not accept images, or does not contain its
/// configuration.
///
/// # Errors
/// If the stored configuration is invalid.
pub(crate) fn preprocessing_of(model: &Model, path: &str) -> Result<Option<Value>> {
    let [input] = model.architecture().inputs.as_slice() else { return Ok(None) };
    let dims = input.ty.as_ref().filter(|t| !t.dtype.is_int()).map(|t| t.shape.to_vec());
    let (height, width, channels) = match dims.as_deref() {
        Some(&[h, w, c @ (1 | 3)]) => (h, w, c),
        Some(&[h, w]) => (h, w, 1),
        _ => return Ok(None),
    };
    let Some(config) = config_of(model, path)? else { return Ok(None) };
    Ok(Some(json!({
        "input": input.name, "layout": "HWC", "height": height, "width": width,
        "color_mode": if channels == 1 { "grayscale" } else { "rgb" },
        "background": config.data.background.unwrap_or(0.0),
        "resize": config.data.resizing(),
        "rounding": "nearest integer, halves up",
        "scale": config.data.scale,
    })))
}
