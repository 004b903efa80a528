//! How images of any size become the model's input: color, background, aspect ratio, resize method.

use serde::{Deserialize, Deserializer, Serialize};
use systole_base::{Result, err};
use systole_data::HostArray;
use systole_data::image_ops::Resize;

/// Resize method, with the names of tf.image; the results are tf.image's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResizeMethod {
    /// Area along shrinking axes, bilinear along growing axes.
    #[default]
    Fit,
    /// Bilinear.
    Bilinear,
    /// Bicubic (Keys's kernel).
    Bicubic,
    /// Mean of the covered area.
    Area,
    /// Nearest neighbor.
    Nearest,
}

/// Resizing of images to the model's input size: `data.resize`. Names as in Keras's `image_dataset_from_directory` and
/// tf.image.resize. Pixels are rounded to the nearest integer, halves up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImageResizing {
    /// Resize method.
    pub method: ResizeMethod,
    /// Whether `bilinear` and `bicubic` average over all covered pixels when shrinking. Default: false.
    pub antialias: bool,
    /// Whether to crop the center to the target's aspect ratio instead of stretching the image. Default: false.
    pub crop_to_aspect_ratio: bool,
    /// Whether to pad with black to the target's aspect ratio instead of stretching the image. Default: false.
    pub pad_to_aspect_ratio: bool,
}

/// Serialized form: the name of a method, or a table.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected fit, bilinear, bicubic, area or nearest, or a table such as { method = \"bilinear\", antialias = \
                 true, crop_to_aspect_ratio = true } (or pad_to_aspect_ratio)"
)]
enum WrittenResizing {
    Name(ResizeMethod),
    Table(ResizingTable),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ResizingTable {
    method: ResizeMethod,
    antialias: bool,
    crop_to_aspect_ratio: bool,
    pad_to_aspect_ratio: bool,
}

impl<'de> Deserialize<'de> for ImageResizing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ImageResizing, D::Error> {
        Ok(match WrittenResizing::deserialize(deserializer)? {
            WrittenResizing::Name(method) => ImageResizing { method, ..ImageResizing::default() },
            WrittenResizing::Table(t) => ImageResizing {
                method: t.method,
                antialias: t.antialias,
                crop_to_aspect_ratio: t.crop_to_aspect_ratio,
                pad_to_aspect_ratio: t.pad_to_aspect_ratio,
            },
        })
    }
}

impl ImageResizing {
    /// Returns an error for arguments that exclude each other.
    ///
    /// # Errors
    /// If an image is both cropped and padded, or antialiasing is set for a method that has none.
    pub fn check(&self) -> Result<()> {
        if self.crop_to_aspect_ratio && self.pad_to_aspect_ratio {
            return Err(err!(Config, "crop_to_aspect_ratio cannot be combined with pad_to_aspect_ratio")
                .hint_setting(
                    "set only one of data.resize.crop_to_aspect_ratio and data.resize.pad_to_aspect_ratio",
                ));
        }
        let has_antialias = matches!(self.method, ResizeMethod::Bilinear | ResizeMethod::Bicubic);
        match self.antialias && !has_antialias {
            true => Err(err!(Config, "antialias applies only to bilinear and bicubic")
                .hint_setting("remove data.resize.antialias: fit and area average over all covered pixels")),
            false => Ok(()),
        }
    }

    /// Resizes `x: u8[H, W, C] → u8[height, width, C]`.
    pub fn apply(&self, x: HostArray, height: usize, width: usize) -> HostArray {
        let method = match (self.method, self.antialias) {
            (ResizeMethod::Fit, _) => Resize::Fit,
            (ResizeMethod::Bilinear, false) => Resize::Bilinear,
            (ResizeMethod::Bilinear, true) => Resize::BilinearAntialias,
            (ResizeMethod::Bicubic, false) => Resize::Bicubic,
            (ResizeMethod::Bicubic, true) => Resize::BicubicAntialias,
            (ResizeMethod::Area, _) => Resize::Area,
            (ResizeMethod::Nearest, _) => Resize::Nearest,
        };
        if self.pad_to_aspect_ratio {
            return x.resize_with_pad(height, width, method);
        }
        let x = if self.crop_to_aspect_ratio { x.crop_to_aspect_ratio(height, width) } else { x };
        x.resize_with(height, width, method)
    }
}

/// Text such as `fit: area along shrinking axes, bilinear along growing axes; stretched to the target's aspect ratio`.
impl std::fmt::Display for ImageResizing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.method {
            ResizeMethod::Fit => "fit (area along shrinking axes, bilinear along growing axes)",
            ResizeMethod::Bilinear => "bilinear",
            ResizeMethod::Bicubic => "bicubic",
            ResizeMethod::Area => "area",
            ResizeMethod::Nearest => "nearest",
        })?;
        if self.antialias {
            f.write_str(", antialiased")?;
        }
        f.write_str(match (self.crop_to_aspect_ratio, self.pad_to_aspect_ratio) {
            (true, _) => "; cropped to the aspect ratio",
            (_, true) => "; padded to the aspect ratio with black",
            _ => "; stretched to the aspect ratio",
        })?;
        f.write_str("; rounded to the nearest integer")
    }
}

/// Conversion of images to the model's input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageFit {
    /// Height, width and channels (1: grayscale, 3: color).
    pub size: [usize; 3],
    /// Background for transparent pixels, from 0 (black) to 1 (white).
    pub background: f64,
    /// How images are resized.
    pub resizing: ImageResizing,
}

impl ImageFit {
    /// Converts an image: `x: u8[H', W', 1 to 4] → u8[H, W, C]`.
    pub fn apply(&self, x: HostArray) -> HostArray {
        let x = if self.background > 0.0 { x.on_ground(self.background) } else { x };
        let [height, width, channels] = self.size;
        let x = if channels == 1 { x.rgb_to_grayscale() } else { x.to_rgb() };
        self.resizing.apply(x, height, width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::Literal;

    fn parse(text: &str) -> Result<ImageResizing, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_method_is_a_name_or_a_table() {
        assert_eq!(parse("\"fit\"").unwrap(), ImageResizing::default());
        assert_eq!(parse("{}").unwrap(), ImageResizing::default());
        let all = parse(r#"{"method": "bicubic", "antialias": true, "crop_to_aspect_ratio": true}"#).unwrap();
        assert!(all.method == ResizeMethod::Bicubic && all.antialias && all.crop_to_aspect_ratio);
        assert_eq!(parse(&serde_json::to_string(&all).unwrap()).unwrap(), all);
        for wrong in ["\"lanczos\"", "{\"methd\": \"area\"}", "3"] {
            assert!(
                ["fit", "bilinear", "bicubic"].iter().all(|name| parse(wrong).unwrap_err().contains(name)),
                "{wrong}"
            );
        }
        assert!(ImageResizing { antialias: true, ..ImageResizing::default() }.check().is_err());
        let both = ImageResizing {
            crop_to_aspect_ratio: true,
            pad_to_aspect_ratio: true,
            ..ImageResizing::default()
        };
        assert!(both.check().is_err());
    }

    #[test]
    fn the_aspect_ratio_is_stretched_cropped_or_padded() {
        // Two rows of four columns: 0, 10, 20, 30.
        let x =
            || HostArray::from(Literal::from_slice([2, 4, 1], &[0u8, 10, 20, 30, 0, 10, 20, 30]).unwrap());
        let of = |resizing: ImageResizing| {
            ImageFit { size: [2, 2, 1], background: 0.0, resizing }
                .apply(x())
                .into_literal()
                .unwrap()
                .bytes()
                .to_vec()
        };
        let plain = ImageResizing::default();
        assert_eq!(of(plain), [5, 25, 5, 25]);
        assert_eq!(of(ImageResizing { crop_to_aspect_ratio: true, ..plain }), [10, 20, 10, 20]);
        assert_eq!(of(ImageResizing { pad_to_aspect_ratio: true, ..plain }), [5, 25, 0, 0]);
        assert_eq!(of(ImageResizing { method: ResizeMethod::Nearest, ..plain }), [10, 30, 10, 30]);
        // Bilinear reads only the two nearest columns: halves round up.
        assert_eq!(of(ImageResizing { method: ResizeMethod::Bilinear, ..plain }), [5, 25, 5, 25]);
    }
}
