//! Settings next to the weights of a Hugging Face folder: image processor, and pooling of sentence-transformers.

use crate::huggingface;
use crate::names::family::TextPooling;
use serde_json::Value;
use std::path::Path;
use systole_ir::{Error, ErrorKind, Result, ResultExt};

/// How images are prepared for a model: `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    /// Mean of each channel, for pixels from 0 to 255.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel, for pixels from 0 to 255.
    pub deviation: Vec<f64>,
    /// How images are resized first, if they are.
    pub resize: Option<ResizeTarget>,
    /// Interpolation: `nearest`, `bilinear` or `bicubic`.
    pub method: &'static str,
    /// Height and width of the center that is cut out after resizing.
    pub crop: Option<[usize; 2]>,
}

/// Size that images are resized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTarget {
    /// Height and width.
    Exact([usize; 2]),
    /// Length of the shorter side; the longer one keeps the aspect ratio.
    ShortestEdge(usize),
}

impl ImageProcessor {
    /// Returns height and width of the prepared images, if the settings state them.
    pub fn size(&self) -> Option<[usize; 2]> {
        match (self.crop, self.resize) {
            (Some(crop), _) => Some(crop),
            (None, Some(ResizeTarget::Exact(size))) => Some(size),
            _ => None,
        }
    }
}

/// Reads the image processor of a folder, if it has one.
///
/// # Errors
/// If a setting is not supported.
pub(crate) fn image_processor(folder: &Path) -> Result<Option<ImageProcessor>> {
    for (name, part) in
        [("preprocessor_config.json", None), ("processor_config.json", Some("image_processor"))]
    {
        let path = folder.join(name);
        if !path.is_file() {
            continue;
        }
        let all = huggingface::json(&path)?;
        let settings = match part {
            Some(part) => all.get(part).filter(|v| v.is_object()),
            None => Some(&all),
        };
        // Processors of sound have no image settings.
        if let Some(settings) =
            settings.filter(|s| s.get("do_normalize").is_some() && s.get("image_mean").is_some())
        {
            return parsed(settings).map(Some).at(|| path.display().to_string());
        }
    }
    Ok(None)
}

fn parsed(settings: &Value) -> Result<ImageProcessor> {
    let flag = |key: &str, default: bool| settings.get(key).and_then(Value::as_bool).unwrap_or(default);
    let factor = match flag("do_rescale", true) {
        true => settings.get("rescale_factor").and_then(Value::as_f64).unwrap_or(1.0 / 255.0),
        false => 1.0,
    };
    let list = |key: &str, default: f64| -> Result<Vec<f64>> {
        match settings.get(key).filter(|_| flag("do_normalize", true)) {
            None | Some(Value::Null) => Ok(vec![default; 3]),
            Some(value) => {
                let list =
                    value.as_array().and_then(|v| v.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
                list.filter(|v| matches!(v.len(), 1 | 3))
                    .ok_or_else(|| wrong(key, value, "a list of 1 or 3 numbers"))
            }
        }
    };
    let (mean, deviation) = (list("image_mean", 0.0)?, list("image_std", 1.0)?);
    let crop = match settings.get("crop_size").filter(|_| flag("do_center_crop", false)) {
        Some(value) => Some(exact(value).ok_or_else(|| wrong("crop_size", value, "height and width"))?),
        None => None,
    };
    let resize = settings.get("size").filter(|_| flag("do_resize", true));
    let kind = ["image_processor_type", "feature_extractor_type"];
    let kind = kind.iter().find_map(|key| settings.get(*key)?.as_str()).unwrap_or_default();
    // Of early files with one number, those that cut the center mean the shorter side, except DeiT's.
    let is_edge = (crop.is_some() || settings.get("crop_pct").is_some()) && !kind.starts_with("DeiT");
    let resize = resize
        .map(|value| target(value, is_edge).ok_or_else(|| wrong("size", value, "a size")))
        .transpose()?;
    let (resize, crop) = with_crop_fraction(settings, resize, crop);
    let usual = if ["CLIP", "DeiT", "Bit"].iter().any(|start| kind.starts_with(start)) { 3 } else { 2 };
    let method = match settings.get("resample").and_then(Value::as_u64).unwrap_or(usual) {
        0 => "nearest",
        2 => "bilinear",
        3 => "bicubic",
        other => return Err(wrong("resample", &other.into(), "0 (nearest), 2 (bilinear) or 3 (bicubic)")),
    };
    let in_pixels = |values: Vec<f64>| values.into_iter().map(|v| v / factor).collect();
    Ok(ImageProcessor { mean: in_pixels(mean), deviation: in_pixels(deviation), resize, method, crop })
}

/// ConvNeXt's `crop_pct`: below 384 pixels, images are resized to the shortest edge divided by it, and cropped.
fn with_crop_fraction(
    settings: &Value,
    resize: Option<ResizeTarget>,
    crop: Option<[usize; 2]>,
) -> (Option<ResizeTarget>, Option<[usize; 2]>) {
    let fraction = settings.get("crop_pct").and_then(Value::as_f64).filter(|f| *f > 0.0);
    match (fraction, resize) {
        (Some(f), Some(ResizeTarget::ShortestEdge(n))) if n < 384 => {
            (Some(ResizeTarget::ShortestEdge((n as f64 / f) as usize)), Some([n, n]))
        }
        (Some(_), Some(ResizeTarget::ShortestEdge(n))) => (Some(ResizeTarget::Exact([n, n])), crop),
        _ => (resize, crop),
    }
}

/// Parses a size; `is_edge`: one number is the length of the shorter side.
fn target(value: &Value, is_edge: bool) -> Option<ResizeTarget> {
    let edge = value.get("shortest_edge").or(Some(value).filter(|_| is_edge)).and_then(Value::as_u64);
    match edge {
        Some(n) => usize::try_from(n).ok().map(ResizeTarget::ShortestEdge),
        None => exact(value).map(ResizeTarget::Exact),
    }
}

/// Parses `{"height": 224, "width": 224}`, or one number for both.
fn exact(value: &Value) -> Option<[usize; 2]> {
    let number =
        |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..1 << 16).contains(n));
    match value {
        Value::Number(_) => number(value).map(|n| [n, n]),
        _ => Some([number(value.get("height")?)?, number(value.get("width")?)?]),
    }
}

fn wrong(key: &str, value: &Value, expected: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the image processor's `{key}` is {value}, expected {expected}"),
    )
    .hint("remove the file to prepare the images yourself")
}

/// Reads the pooling of a sentence-transformers folder, if it is one.
///
/// # Errors
/// If a module is not supported.
pub(crate) fn pooling(folder: &Path) -> Result<Option<TextPooling>> {
    let path = folder.join("modules.json");
    if !path.is_file() {
        return Ok(None);
    }
    let modules = huggingface::json(&path)?;
    let mut found = None;
    for module in modules.as_array().into_iter().flatten() {
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
        match (text("type").rsplit('.').next().unwrap_or_default(), &mut found) {
            ("Transformer" | "CLIPModel", _) => {}
            ("Pooling", found) => {
                *found = Some(TextPooling { mean: is_mean(folder, text("path"))?, normalize: false });
            }
            ("Normalize", Some(pooling)) => pooling.normalize = true,
            (other, _) => {
                let what = format!("the sentence-transformers module `{other}` is not supported");
                return Err(Error::new(ErrorKind::Unsupported, what)
                    .at(path.display().to_string())
                    .hint("use a model with the modules Transformer, Pooling and Normalize"));
            }
        }
    }
    Ok(found)
}

/// Whether the pooling is the mean of the tokens; otherwise the first token.
fn is_mean(folder: &Path, name: &str) -> Result<bool> {
    if name.split(['/', '\\']).any(|part| part == "..") || Path::new(name).is_absolute() {
        let what = format!("`{name}` of modules.json is not in its folder");
        return Err(Error::new(ErrorKind::Data, what).hint("download the whole folder again"));
    }
    let path = folder.join(name).join("config.json");
    let settings = huggingface::json(&path)?;
    let is = |mode: &str| settings.get(format!("pooling_mode_{mode}")) == Some(&Value::Bool(true));
    let on = [
        "cls_token",
        "mean_tokens",
        "max_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    ];
    match on.into_iter().filter(|mode| is(mode)).collect::<Vec<_>>()[..] {
        ["mean_tokens"] => Ok(true),
        ["cls_token"] => Ok(false),
        ref other => {
            Err(Error::new(ErrorKind::Unsupported, format!("pooling by {other:?} is not supported"))
                .at(path.display().to_string())
                .hint("use a model that pools by mean_tokens or cls_token"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(settings: Value) -> ImageProcessor {
        parsed(&settings).unwrap()
    }

    #[test]
    fn files_of_every_age_state_size_and_crop() {
        let edge = |n| Some(ResizeTarget::ShortestEdge(n));
        let half = [0.5, 0.5, 0.5];
        let vit = of(json!({"size": 224, "do_normalize": true, "image_mean": half, "image_std": half}));
        assert_eq!(
            (vit.resize, vit.crop, vit.method),
            (Some(ResizeTarget::Exact([224; 2])), None, "bilinear")
        );
        assert_eq!(vit.mean, [127.5; 3]);
        let early = |size: usize, kind: &str| {
            let settings = json!({"size": size, "crop_size": 224, "do_center_crop": true});
            let mut settings = settings.as_object().unwrap().clone();
            settings.insert("feature_extractor_type".into(), format!("{kind}FeatureExtractor").into());
            of(settings.into())
        };
        let clip = early(224, "CLIP");
        assert_eq!((clip.resize, clip.size(), clip.method), (edge(224), Some([224, 224]), "bicubic"));
        assert_eq!(early(256, "DeiT").resize, Some(ResizeTarget::Exact([256, 256])));
        let convnext = of(json!({"size": 224, "crop_pct": 0.875}));
        assert_eq!((convnext.resize, convnext.crop), (edge(256), Some([224, 224])));
        let large = of(json!({"size": {"shortest_edge": 384}, "crop_pct": 1.0}));
        assert_eq!((large.resize, large.crop), (Some(ResizeTarget::Exact([384, 384])), None));
        let plain = of(json!({"do_resize": false, "do_normalize": false, "size": 9}));
        assert_eq!((plain.resize, plain.mean, plain.deviation), (None, vec![0.0; 3], vec![255.0; 3]));
        assert!(parsed(&json!({"size": "big"})).is_err() && parsed(&json!({"resample": 1})).is_err());
    }
}
