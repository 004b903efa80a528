//! Resizing and cropping of images by the image processor of a Hugging Face folder, stored in the model file.

use serde_json::{Value, json};
use systole_data::HostArray;
use systole_data::image_ops::Resize;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Model;
use systole_weights::{ImageProcessor, ResizeTarget};

/// Key of the settings in a model file.
const NOTE: &str = "image_processor";

/// How images are resized and cropped before a model reads them. The mean and the standard deviation of pixels are a layer of
/// the model.
#[derive(Clone, Copy)]
pub(crate) struct ImagePreparation {
    resize: Option<ResizeTarget>,
    method: &'static str,
    crop: Option<[usize; 2]>,
}

impl ImagePreparation {
    pub(crate) fn of(processor: &ImageProcessor) -> ImagePreparation {
        ImagePreparation { resize: processor.resize, method: processor.method, crop: processor.crop }
    }

    pub(crate) fn keep_in(&self, model: &mut Model) {
        let resize = self.resize.map(|target| match target {
            ResizeTarget::Exact(size) => json!(size),
            ResizeTarget::ShortestEdge(n) => json!(n),
        });
        let note = json!({"resize": resize, "method": self.method, "crop": self.crop});
        model.notes.insert(NOTE.into(), note.to_string());
    }

    /// Returns the settings of a model, if its file has them.
    ///
    /// # Errors
    /// If they are damaged.
    pub(crate) fn in_model(model: &Model) -> Result<Option<ImagePreparation>> {
        let Some(text) = model.notes.get(NOTE) else { return Ok(None) };
        let damaged = || {
            Error::new(ErrorKind::Data, "the image processor stored in the model is damaged")
                .hint("import the folder again")
        };
        let note: Value = serde_json::from_str(text).map_err(|_| damaged())?;
        let pair = |value: &Value| -> Option<[usize; 2]> { serde_json::from_value(value.clone()).ok() };
        let resize = match &note["resize"] {
            Value::Null => None,
            Value::Number(n) => Some(ResizeTarget::ShortestEdge(n.as_u64().ok_or_else(damaged)? as usize)),
            size => Some(ResizeTarget::Exact(pair(size).ok_or_else(damaged)?)),
        };
        let method = ["nearest", "bilinear", "bicubic"].into_iter().find(|name| note["method"] == **name);
        let method = method.ok_or_else(damaged)?;
        Ok(Some(ImagePreparation { resize, method, crop: pair(&note["crop"]) }))
    }

    /// Returns `data.resize` of a configuration that comes near: cropped to the aspect ratio, then resized.
    pub(crate) fn resize_table(&self) -> toml::Table {
        let crops = self.crop.is_some() || matches!(self.resize, Some(ResizeTarget::ShortestEdge(_)));
        toml::Table::from_iter([
            ("method".to_string(), self.method.into()),
            ("antialias".to_string(), (self.method != "nearest").into()),
            ("crop_to_aspect_ratio".to_string(), crops.into()),
        ])
    }

    /// Resizes and crops an image: `x: u8[H, W, 1 to 4] → u8[H', W', 3]`.
    pub(crate) fn apply(&self, x: HostArray) -> HostArray {
        let x = x.to_rgb();
        let sides = x.ty().map(|ty| [ty.shape[0], ty.shape[1]]).unwrap_or([1, 1]);
        let target = self.resize.map(|target| match target {
            ResizeTarget::Exact(size) => size,
            ResizeTarget::ShortestEdge(n) => shortest(sides, n),
        });
        let method = match self.method {
            "nearest" => Resize::Nearest,
            "bicubic" => Resize::BicubicAntialias,
            _ => Resize::BilinearAntialias,
        };
        let x = match target.filter(|target| *target != sides) {
            // Pillow resizes the rows first, and rounds to bytes in between.
            Some([height, width]) => {
                x.resize_with(sides[0], width, method).resize_with(height, width, method)
            }
            None => x,
        };
        match self.crop {
            Some([height, width]) => x.resize_with_crop_or_pad(height, width),
            None => x,
        }
    }
}

/// Rejects an encoder of images without a head: its outputs are features, not classes.
pub(crate) fn check_image_head(model: &Model, path: &str) -> Result<()> {
    // A folder's families name their last layer; pretrained models of Keras have the names of the classes.
    let last = model.architecture().nodes.last();
    let has_head = last.is_some_and(|node| node.name == "predictions") || !model.class_names.is_empty();
    if has_head || ImagePreparation::in_model(model)?.is_none() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("`{path}` has no classification head"))
        .because("it returns features of images")
        .hint_command("pass --embed to `systole predict` for the features"))
}

/// Sides of an image whose shorter one becomes `n`.
fn shortest([height, width]: [usize; 2], n: usize) -> [usize; 2] {
    let longer = n.saturating_mul(height.max(width)) / height.min(width).max(1);
    if height <= width { [n, longer] } else { [longer, n] }
}
