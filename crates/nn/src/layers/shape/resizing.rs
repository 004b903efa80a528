//! Image resizing layers: Resizing, CenterCrop, RandomCrop.

use super::upsampling::Interpolation;
use crate::layers::built_in::*;
use crate::layers::resample::mixed_along;
use crate::layers::sample::*;
use crate::layers::sliding_window::check_images;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: T[B, H, W, C] → T[B, height, width, C]`: resizes images.
    ///
    /// Uses half-pixel centers.
    ///
    /// ```
    /// use systole_nn::layers::resizing;
    /// assert!(resizing(64, 48).interpolation("nearest").crop_to_aspect_ratio(true).check().is_ok());
    /// ```
    pub struct Resizing {
        /// Output height. Required.
        pub height: usize = 0,
        /// Output width. Required.
        pub width: usize = 0,
        /// Interpolation method. Default: "bilinear".
        pub interpolation: Interpolation = Interpolation::Bilinear,
        /// Whether to keep the aspect ratio by cropping both sides. Default: false.
        pub crop_to_aspect_ratio: bool = false,
        /// Whether to keep the aspect ratio by padding with `fill_value`. Default: false.
        pub pad_to_aspect_ratio: bool = false,
        /// Fill value of the padding. Default: 0.
        pub fill_value: f64 = 0.0,
        /// Whether to antialias when downsampling, so that every input pixel contributes. Default: false.
        pub antialias: bool = false,
    }
}

impl Arguments for Resizing {
    fn check(&self) -> Result<()> {
        check_size("Resizing", self.height, self.width)?;
        if self.crop_to_aspect_ratio && self.pad_to_aspect_ratio {
            let what =
                "Resizing has both crop_to_aspect_ratio and pad_to_aspect_ratio: they exclude each other";
            return Err(Error::new(ErrorKind::Config, what).hint("set only one of the two options"));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_images("Resizing", x)?;
        check_some_pixels("Resizing", x)?;
        let mut y = cast(cx, x).convert(DType::F32);
        if self.crop_to_aspect_ratio {
            y = of_aspect_ratio(&y, self.height, self.width);
        }
        if self.pad_to_aspect_ratio {
            y = between_margins(&y, self.height, self.width, self.fill_value);
        }
        Ok(cast(cx, &resized(&y, [self.height, self.width], self.interpolation, self.antialias)))
    }
}

impl Layer for Resizing {
    named!("Resizing", one_input);
}

/// `x: T[B, H, W, C] → T[B, height, width, C]`: crops the center of an image; smaller images are cropped to the aspect
/// ratio and enlarged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CenterCrop {
    /// Output height. Required.
    pub height: usize,
    /// Output width. Required.
    pub width: usize,
}

/// `x: T[B, H, W, C] → T[B, height, width, C]`: in training, crops a random region, the same for all images of a batch.
///
/// In inference, and for images that are not larger, crops to the aspect ratio and resizes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomCrop {
    /// Output height. Required.
    pub height: usize,
    /// Output width. Required.
    pub width: usize,
}

macro_rules! crops {
    ($($class:ident => $crop:ident;)*) => { $(
        impl Arguments for $class {
            fn check(&self) -> Result<()> {
                check_size(stringify!($class), self.height, self.width)
            }

            fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
                check_images(stringify!($class), x)?;
                check_some_pixels(stringify!($class), x)?;
                let x = cast(cx, x);
                Ok($crop(cx, &x, self.height, self.width))
            }
        }

        impl Layer for $class {
            named!(stringify!($class), one_input);
        }
    )* };
}

crops!(
    CenterCrop => middle;
    RandomCrop => some_part;
);

fn middle(_: &mut Cx, x: &Tensor, height: usize, width: usize) -> Tensor {
    let (rows, columns) = (x.dim(1), x.dim(2));
    if rows >= height && columns >= width {
        let (top, left) = ((rows - height) / 2, (columns - width) / 2);
        return x.slice_dim(1, top, top + height).slice_dim(2, left, left + width);
    }
    fitted(x, height, width)
}

fn some_part(cx: &mut Cx, x: &Tensor, height: usize, width: usize) -> Tensor {
    let (rows, columns) = (x.dim(1), x.dim(2));
    let larger = rows > height && columns > width;
    let Some(bits) = larger.then(|| cx.random_bits(&[2])).flatten() else { return fitted(x, height, width) };
    let place = |k: usize, places: usize| {
        let bits = bits.slice_dim(0, k, k + 1).reshape([]);
        bits.remainder(&bits.scalar_like(places as f64)).convert(DType::I32)
    };
    let (top, left) = (place(0, rows - height + 1), place(1, columns - width + 1));
    let zero = top.zeros_like();
    x.dynamic_slice(&[&zero, &top, &left, &zero], &[x.dim(0), height, width, x.dim(3)])
}

/// Crops the center to the aspect ratio `height : width` and resizes it.
fn fitted(x: &Tensor, height: usize, width: usize) -> Tensor {
    let part = of_aspect_ratio(&x.convert(DType::F32), height, width);
    resized(&part, [height, width], Interpolation::Bilinear, false).convert(x.dtype())
}

/// Crops the largest center region with the aspect ratio `height : width`.
fn of_aspect_ratio(x: &Tensor, height: usize, width: usize) -> Tensor {
    let (rows, columns) = (x.dim(1), x.dim(2));
    let part =
        |of: usize, a: usize, b: usize| ((of as f64 * a as f64 / b as f64) as usize).clamp(1, of.max(1));
    let (tall, wide) = (
        part(rows, columns * height, width * rows.max(1)),
        part(columns, rows * width, height * columns.max(1)),
    );
    let (top, left) = ((rows - tall) / 2, (columns - wide) / 2);
    x.slice_dim(1, top, top + tall).slice_dim(2, left, left + wide)
}

/// Pads to the smallest image with the aspect ratio `height : width`, centered.
fn between_margins(x: &Tensor, height: usize, width: usize, fill: f64) -> Tensor {
    let (rows, columns) = (x.dim(1), x.dim(2));
    let whole = |of: usize, a: usize, b: usize| ((of as f64 * a as f64 / b as f64) as usize).max(1);
    let (tall, wide) = (rows.max(whole(columns, height, width)), columns.max(whole(rows, width, height)));
    // Both sides get equal padding; an odd remainder drops one pixel, as in Keras.
    let (above, left) = ((tall - rows) / 2, (wide - columns) / 2);
    let fill = x.scalar_like(fill);
    x.pad(&fill, &[0, above as i64, left as i64, 0], &[0, above as i64, left as i64, 0], &[0; 4])
}

/// Resizes: `x: f32[B, H, W, C] → f32[B, height, width, C]`.
fn resized(x: &Tensor, [height, width]: [usize; 2], how: Interpolation, antialias: bool) -> Tensor {
    let along = |x: &Tensor, dim: usize, size: usize| {
        let n = x.dim(dim as isize);
        if n == size {
            return x.clone();
        }
        let rows = match how.kernel() {
            Some(kernel) => kernel.weights_to(n, size, antialias),
            None => nearest(n, size),
        };
        mixed_along(x, dim, &rows)
    };
    along(&along(x, 1, height), 2, width)
}

/// Weight rows of nearest-neighbor resizing from `n` to `size` pixels.
fn nearest(n: usize, size: usize) -> Vec<Vec<f32>> {
    let place = |i: usize| (((i as f64 + 0.5) * n as f64 / size as f64) as usize).min(n.saturating_sub(1));
    (0..size).map(|i| (0..n).map(|j| f32::from(u8::from(j == place(i)))).collect()).collect()
}

fn check_size(class: &str, height: usize, width: usize) -> Result<()> {
    match [("height", height), ("width", width)].into_iter().find(|(_, n)| *n == 0) {
        Some((name, is)) => Err(wrong(class, &format!("{name} of at least 1"), is)),
        None => Ok(()),
    }
}

fn check_some_pixels(class: &str, x: &Tensor) -> Result<()> {
    match x.dim(1) * x.dim(2) {
        0 => Err(unfit(class, "non-empty images", x.ty()).hint("check the image data")),
        _ => Ok(()),
    }
}

constructors!(LayerSpec:
    /// `x: T[B, H, W, C] → T[B, height, width, C]`: resizes images. Arguments: [`Resizing`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::resizing, Model};
    /// let output = Model::sequential([resizing(32, 48)]).output_for(&[TensorType::new(F32, [100, 80, 3])])?;
    /// assert_eq!(output.shape.dims(), [32, 48, 3]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn resizing(height: usize, width: usize) = Resizing { height, width, ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, height, width, C]`: crops the center of images. Arguments: [`CenterCrop`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::center_crop, Model};
    /// let output = Model::sequential([center_crop(24, 24)]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [24, 24, 1]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn center_crop(height: usize, width: usize) = CenterCrop { height, width };

    /// `x: T[B, H, W, C] → T[B, height, width, C]`: in training, crops a random region of images. Arguments:
    /// [`RandomCrop`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::random_crop, Model};
    /// let output = Model::sequential([random_crop(24, 24)]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [24, 24, 1]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn random_crop(height: usize, width: usize) = RandomCrop { height, width };
);

setters!(LayerSpec:
    /// Whether Resizing keeps the aspect ratio by cropping.
    crop_to_aspect_ratio: bool as bool;
    /// Whether Resizing keeps the aspect ratio by padding.
    pad_to_aspect_ratio: bool as bool;
    /// Whether Resizing antialiases when downsampling.
    antialias: bool as bool;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(resizing(3, 7), IMAGE, &[2, 3, 7, 3], &[], FLAT),
        LayerSample::new(center_crop(4, 3), IMAGE, &[2, 4, 3, 3], &[], FLAT),
        LayerSample::new(random_crop(4, 3), IMAGE, &[2, 4, 3, 3], &[], FLAT),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file. Bicubic cases use coordinates that
/// are in TensorFlow's coefficient table of 1024 entries.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "resizing", "class": "Resizing", "x_shape": [2, 6, 5, 2], "kwargs": {"height": 4, "width": 8}},
    {"name": "resizing_nearest", "class": "Resizing", "x_shape": [2, 6, 5, 2], "kwargs": {"height": 4, "width": 7, "interpolation": "nearest"}},
    {"name": "resizing_bicubic", "class": "Resizing", "x_shape": [2, 6, 5, 1], "kwargs": {"height": 3, "width": 10, "interpolation": "bicubic"}},
    {"name": "resizing_cropped", "class": "Resizing", "x_shape": [2, 7, 4, 1], "kwargs": {"height": 3, "width": 5, "crop_to_aspect_ratio": true}},
    {"name": "resizing_antialias", "class": "Resizing", "x_shape": [2, 9, 5, 2], "kwargs": {"height": 4, "width": 8, "antialias": true}},
    {"name": "resizing_antialias_bicubic", "class": "Resizing", "x_shape": [2, 9, 10, 1], "kwargs": {"height": 3, "width": 4, "interpolation": "bicubic", "antialias": true}},
    {"name": "resizing_padded", "class": "Resizing", "x_shape": [2, 7, 4, 1], "kwargs": {"height": 3, "width": 5, "pad_to_aspect_ratio": true, "fill_value": 0.5}},
    {"name": "center_crop", "class": "CenterCrop", "x_shape": [2, 7, 6, 2], "kwargs": {"height": 4, "width": 3}},
    {"name": "center_crop_small", "class": "CenterCrop", "x_shape": [2, 3, 6, 2], "kwargs": {"height": 4, "width": 5}}
]"#;
