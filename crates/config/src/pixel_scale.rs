//! Pixel scale `data.scale`: applies it, prints it as a fraction, and detects pixels that are scaled twice.

use systole_data::{Rescale, Sample};
use systole_datasets::TrainingData;
use systole_ir::{Literal, Result};
use systole_nn::layers::{LayerKind, LayerSpec};
use systole_nn::{Architecture, LayerLowering};

/// Number of samples whose values are checked.
const CHECKED: u64 = 256;
/// A first layer with a smaller factor scales pixels from 0 to 255.
const FACTOR_OF_BYTES: f64 = 0.1;

/// Formats a pixel scale: `1/255`, `1`, `0.3`.
pub fn shown_scale(scale: f64) -> String {
    match Rescale::by(scale).divisor() {
        Some(divisor) if divisor > 1.0 => format!("1/{divisor}"),
        _ => scale.to_string(),
    }
}

/// Formats a layer's factor for a message: `1/255`, or four digits.
pub fn shown_factor(factor: f64) -> String {
    let exact = shown_scale(factor);
    if exact.len() > "1/65535".len() { format!("{factor:.3e}") } else { exact }
}

/// Returns a map function: `image: u8[…] → f32[…]`, multiplied by `scale`.
pub fn scale_pixels(scale: f64) -> impl Fn(Sample) -> Sample + Send + Sync + 'static {
    move |s| s.map("image", move |x| x.rescale(scale))
}

/// Returns the factor by which a model's first layer scales pixels from 0 to 255; `None`: it does not.
pub fn first_rescaling(architecture: &Architecture) -> Option<f64> {
    architecture.nodes.iter().map(|node| rescaling(&node.layer)).find_map(PixelLayer::factor)?
}

/// What a layer does to the values of pixels.
enum PixelLayer {
    /// Augmentation, cropping and other sizes: pixels stay in their range.
    Keeps,
    Rescales(f64),
    Other,
}

impl PixelLayer {
    /// Returns `Some` once a layer changes values, with its factor if it scales pixels from 0 to 255.
    fn factor(self) -> Option<Option<f64>> {
        match self {
            PixelLayer::Keeps => None,
            PixelLayer::Rescales(factor) => Some((factor.abs() < FACTOR_OF_BYTES).then_some(factor)),
            PixelLayer::Other => Some(None),
        }
    }
}

fn rescaling(layer: &LayerSpec) -> PixelLayer {
    use LayerLowering::{
        Cropping, Identity, Normalization, Padding, Regularization, Rescaling, Reshape, UpSampling,
    };
    if let LayerKind::Model(nested, _) = layer.kind() {
        let inner = nested.layers().into_iter().find_map(|(_, l)| rescaling(l).factor());
        return inner.flatten().map_or(PixelLayer::Other, PixelLayer::Rescales);
    }
    if let Some(factor) = normalization_factor(layer) {
        return PixelLayer::Rescales(factor);
    }
    match layer.layer().lowering() {
        Ok(Rescaling { scale, .. }) => PixelLayer::Rescales(scale),
        Ok(Normalization { scale, .. }) => PixelLayer::Rescales(scale.first().copied().unwrap_or(1.0)),
        // Layers without operators, such as Resizing, only prepare images if a Rescaling follows them.
        Ok(Identity | Regularization | Reshape | Padding(_) | Cropping(_) | UpSampling { .. }) | Err(_) => {
            PixelLayer::Keeps
        }
        Ok(_) => PixelLayer::Other,
    }
}

/// Returns the factor of a layer that divides by a stated standard deviation, as that of an image processor.
fn normalization_factor(layer: &LayerSpec) -> Option<f64> {
    let config = layer.layer().config();
    let variance = config.get("variance")?.as_array()?.iter().filter_map(serde_json::Value::as_f64);
    let deviation = variance.fold(0f64, f64::max).sqrt();
    (deviation > 0.0 && config.get("invert")?.as_bool() == Some(false)).then_some(1.0 / deviation)
}

/// Returns a warning if both the model's first layer and `scale` scale pixels.
pub fn rescaled_twice(architecture: &Architecture, scale: f64, option: &str) -> Option<String> {
    let first = first_rescaling(architecture).filter(|_| scale < 1.0)?;
    Some(format!(
        "the model's first layer rescales by {} and data.scale multiplies by {} too: {option}",
        shown_factor(first),
        shown_scale(scale)
    ))
}

/// Whether an array has floats from 0 to 1, so that its pixels are scaled already.
pub fn is_scaled(x: &Literal) -> bool {
    x.dtype().is_float() && x.to_f64s().iter().all(|v| (0.0..=1.0).contains(v))
}

/// Formats the warning about scaled pixels that are scaled again.
pub fn scaled_again(name: &str, scale: f64, option: &str) -> String {
    let scale = shown_scale(scale);
    format!("{name}: values are at most 1 and are multiplied by {scale}; {option} if they are scaled already")
}

/// Returns warnings about pixels that `scale` scales although the model or the data's author does so too.
pub(crate) fn warnings(
    architecture: &Architecture,
    data: &TrainingData,
    scale: f64,
    option: &str,
) -> Result<Vec<String>> {
    if !data.is_pictures() || scale >= 1.0 {
        return Ok(Vec::new());
    }
    let mut warnings: Vec<String> = rescaled_twice(architecture, scale, option).into_iter().collect();
    if !data.element.dtype.is_float() || data.test_len == 0 {
        return Ok(warnings);
    }
    for sample in data.test.take(CHECKED).iter() {
        if !is_scaled(sample?.get("image")?) {
            return Ok(warnings);
        }
    }
    warnings.push(scaled_again(&data.name, scale, option));
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_nn::layers::{dense, flatten, normalization, random_flip, rescaling};

    #[test]
    fn a_fraction_divides_exactly() {
        let pixels = Literal::from_slice([4], &[0u8, 1, 77, 255]).unwrap();
        let of = |scale: f64| {
            let s = scale_pixels(scale)(Sample::new([("image", pixels.clone())]));
            s.get("image").unwrap().to_f32s()
        };
        assert_eq!(of(1.0), [0.0, 1.0, 77.0, 255.0]);
        assert_eq!(of(1.0 / 255.0), [0.0, 1.0 / 255.0, 77.0 / 255.0, 1.0]);
        assert_eq!(of(0.3)[1], 0.3);
    }

    #[test]
    fn scales_are_shown_as_fractions() {
        let shown = [1.0, 1.0 / 255.0, 1.0 / 127.5, 0.3, 0.5].map(shown_scale);
        assert_eq!(shown, ["1", "1/255", &(1.0 / 127.5).to_string(), "0.3", "1/2"]);
        assert_eq!([1.0 / 255.0, 0.3, 1.0 / 58.395].map(shown_factor), ["1/255", "0.3", "1.712e-2"]);
    }

    #[test]
    fn only_a_first_layer_that_scales_bytes_is_found() {
        let of = |layers: Vec<LayerSpec>| first_rescaling(&Architecture::sequential(layers));
        assert_eq!(of(vec![random_flip("horizontal"), rescaling(1.0 / 255.0), flatten()]), Some(1.0 / 255.0));
        assert_eq!(of(vec![rescaling(2.0), flatten()]), None);
        let standardized = |variance: f64| normalization().mean([120.0]).variance([variance]);
        assert_eq!(of(vec![standardized(60.0 * 60.0), flatten()]), Some(1.0 / 60.0));
        assert_eq!(of(vec![standardized(0.25), flatten()]), None);
        assert_eq!(of(vec![flatten(), dense(3), rescaling(1.0 / 255.0)]), None);
    }
}
