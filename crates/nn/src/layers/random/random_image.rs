//! Random image augmentation layers: flip, translation, rotation, zoom, brightness, contrast.
//!
//! Each image of a batch gets its own draw in training. Draws depend on the step's seed, so a resumed run repeats them.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::shape::upsampling::Interpolation;
use crate::layers::sliding_window::check_images;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};
use serde::Deserializer;
use serde::de::Error as _;

/// Range of a random factor: `0.2` is −0.2 to 0.2, `[0.1, 0.3]` is 0.1 to 0.3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FactorRange(pub [f64; 2]);

impl From<f64> for FactorRange {
    fn from(most: f64) -> FactorRange {
        FactorRange([-most.abs(), most.abs()])
    }
}

impl From<(f64, f64)> for FactorRange {
    fn from((least, most): (f64, f64)) -> FactorRange {
        FactorRange([least, most])
    }
}

impl<'de> Deserialize<'de> for FactorRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<FactorRange, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let both = || serde_json::from_value::<[f64; 2]>(value.clone()).ok().map(FactorRange);
        let found = value.as_f64().map(FactorRange::from).or_else(both);
        found.ok_or_else(|| D::Error::custom("expected a number, or minimum and maximum: 0.2 or [-0.1, 0.3]"))
    }
}

impl FactorRange {
    fn check(&self, class: &str, argument: &str, within: [f64; 2]) -> Result<()> {
        let [least, most] = self.0;
        match least <= most && within[0] <= least && most <= within[1] {
            true => Ok(()),
            false => {
                let needs = format!("{argument} from {} to {}, minimum first", within[0], within[1]);
                Err(wrong(class, &needs, format!("{least} to {most}")))
            }
        }
    }

    /// Draws one factor per sample: `→ f32[n]`. `None` outside training.
    fn draw(&self, cx: &mut Cx, n: usize) -> Option<Tensor> {
        let bits = cx.random_bits(&[n])?;
        let unit = bits.shift_right_logical(&bits.scalar_like(8.0)).convert(DType::F32) * 2f64.powi(-24);
        Some(unit * (self.0[1] - self.0[0]) + self.0[0])
    }
}

/// How pixels outside a transformed image are filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FillMode {
    /// Mirrors the image at its edge.
    #[default]
    Reflect,
    /// Repeats the image.
    Wrap,
    /// Uses `fill_value`.
    Constant,
    /// Repeats the edge pixel.
    Nearest,
}

/// Samples pixels of transformed images.
#[derive(Clone, Copy)]
struct PixelSampler {
    mode: FillMode,
    value: f64,
    interpolation: Interpolation,
}

impl PixelSampler {
    fn check(&self, class: &str) -> Result<()> {
        match self.interpolation {
            Interpolation::Nearest | Interpolation::Bilinear => Ok(()),
            other => Err(wrong(class, "an interpolation of nearest or bilinear", format!("{other:?}"))),
        }
    }

    /// Maps coordinates `at: f32[B, H, W]` along `length` pixels into the image (except for `Constant`).
    fn inside(&self, at: &Tensor, length: usize) -> Tensor {
        let n = length as f64;
        let floored = |x: &Tensor, by: f64| x - (x * (1.0 / by)).floor() * by;
        let folded = match self.mode {
            FillMode::Constant => return at.clone(),
            FillMode::Nearest => at.clone(),
            // As in TensorFlow, where the last and the first pixel are one apart at the seam.
            FillMode::Wrap if length > 1 => {
                let turns = |x: Tensor| (x * (1.0 / (n - 1.0))).floor();
                let zero = at.zeros_like();
                let below = at + (turns(at * -1.0) + 1.0) * n;
                let beyond = at - turns(at.clone()) * n;
                let high = at.greater(&at.scalar_like(n - 1.0)).select(&beyond, at);
                at.less(&zero).select(&below, &high)
            }
            FillMode::Wrap => at.zeros_like(),
            FillMode::Reflect => {
                let twice = floored(at, 2.0 * n);
                twice.greater_equal(&twice.scalar_like(n)).select(&(&twice * -1.0 + (2.0 * n - 1.0)), &twice)
            }
        };
        folded.clamp(&folded.scalar_like(0.0), &folded.scalar_like(n - 1.0))
    }

    /// `x: f32[B, H, W, C], row, column: f32[B, H, W]` → the pixels at these coordinates, `f32[B, H, W, C]`.
    fn read(&self, x: &Tensor, row: &Tensor, column: &Tensor) -> Tensor {
        let [b, h, w, c] = [0, 1, 2, 3].map(|d| x.dim(d));
        let flat = x.reshape([b * h * w, c]);
        let ints = |x: &Tensor| x.ty().with_dtype(DType::I32);
        let sample = x.builder().iota(ints(row), 0);
        let tap = |row: &Tensor, column: &Tensor| {
            let zero = row.zeros_like();
            let within = |at: &Tensor, n: usize| {
                at.greater_equal(&zero).and(&at.less_equal(&at.scalar_like(n as f64 - 1.0)))
            };
            let whole = |at: &Tensor, n: usize| {
                at.clamp(&at.scalar_like(0.0), &at.scalar_like(n as f64 - 1.0)).convert(DType::I32)
            };
            let place = (&sample * sample.scalar_like(h as f64) + whole(row, h))
                * sample.scalar_like(w as f64)
                + whole(column, w);
            let pixel = flat.take(&place);
            let seen = within(row, h).and(&within(column, w)).broadcast_in_dim(pixel.shape(), &[0, 1, 2]);
            seen.select(&pixel, &pixel.builder().full(pixel.ty(), self.value))
        };
        let (row, column) = (self.inside(row, h), self.inside(column, w));
        if self.interpolation == Interpolation::Nearest {
            return tap(&(row + 0.5).floor(), &(column + 0.5).floor());
        }
        let (top, left) = (row.floor(), column.floor());
        let (down, right) = (&row - &top, &column - &left);
        let share =
            |weight: Tensor, pixel: Tensor| &pixel * weight.broadcast_in_dim(pixel.shape(), &[0, 1, 2]);
        let (below, beside) = (&top + 1.0, &left + 1.0);
        let (up, back) = (&down * -1.0 + 1.0, &right * -1.0 + 1.0);
        share(&up * &back, tap(&top, &left))
            + share(&up * &right, tap(&top, &beside))
            + share(&down * &back, tap(&below, &left))
            + share(&down * &right, tap(&below, &beside))
    }

    /// Affine transform of `x: T[B, H, W, C]`: reads each pixel at `(a₀ x + a₁ y + a₂, b₀ x + b₁ y + b₂)`, with
    /// coefficients `f32[B]`.
    fn transformed(&self, cx: &Cx, x: &Tensor, [a, b]: [[Tensor; 3]; 2]) -> Tensor {
        let x32 = cast(cx, x).convert(DType::F32);
        let places = TensorType::new(DType::F32, &x32.shape()[..3]);
        let (row, column) = (x.builder().iota(places.clone(), 1), x.builder().iota(places.clone(), 2));
        let at = |m: &[Tensor; 3]| {
            let wide = |t: &Tensor| t.broadcast_in_dim(&places.shape, &[0]);
            &column * wide(&m[0]) + &row * wide(&m[1]) + wide(&m[2])
        };
        cast(cx, &self.read(&x32, &at(&b), &at(&a)))
    }
}

/// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, flips each image with probability ½, drawn separately per
/// direction.
///
/// ```
/// use systole_nn::layers::random_flip;
/// assert!(random_flip("horizontal").check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RandomFlip {
    /// "horizontal" (left-right), "vertical", or both: "horizontal_and_vertical". Default: "horizontal_and_vertical".
    pub mode: FlipMode,
}

/// Directions in which images are flipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlipMode {
    /// Left and right.
    Horizontal,
    /// Top and bottom.
    Vertical,
    /// Both.
    #[default]
    HorizontalAndVertical,
}

impl RandomFlip {
    fn change(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let mut y = cast(cx, x);
        for (dim, other) in [(2, FlipMode::Vertical), (1, FlipMode::Horizontal)] {
            if self.mode == other {
                continue;
            }
            let Some(bits) = cx.random_bits(&[x.dim(0)]) else { return y };
            let half = bits.greater_equal(&bits.scalar_like(2f64.powi(31)));
            y = half.broadcast_in_dim(y.shape(), &[0]).select(&y.reverse(&[dim]), &y);
        }
        y
    }

    fn check_own(&self) -> Result<()> {
        Ok(())
    }
}

arguments! {
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, translates images randomly.
    pub struct RandomTranslation {
        /// Range of the downward shift, as a fraction of the height. Required.
        pub height_factor: FactorRange = FactorRange::default(),
        /// Range of the shift to the right, as a fraction of the width. Required.
        pub width_factor: FactorRange = FactorRange::default(),
        /// How pixels outside the image are filled. Default: "reflect".
        pub fill_mode: FillMode = FillMode::Reflect,
        /// "bilinear" or "nearest". Default: "bilinear".
        pub interpolation: Interpolation = Interpolation::Bilinear,
        /// Fill value of "constant". Default: 0.
        pub fill_value: f64 = 0.0,
    }
}

impl RandomTranslation {
    fn reading(&self) -> PixelSampler {
        PixelSampler { mode: self.fill_mode, value: self.fill_value, interpolation: self.interpolation }
    }

    fn change(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let n = x.dim(0);
        let (Some(down), Some(right)) = (self.height_factor.draw(cx, n), self.width_factor.draw(cx, n))
        else {
            return cast(cx, x);
        };
        let (one, zero) = (down.ones_like(), down.zeros_like());
        let a = [one.clone(), zero.clone(), right * -(x.dim(2) as f64)];
        let b = [zero, one, down * -(x.dim(1) as f64)];
        self.reading().transformed(cx, x, [a, b])
    }

    fn check_own(&self) -> Result<()> {
        self.height_factor.check("RandomTranslation", "height_factor", [-1.0, 1.0])?;
        self.width_factor.check("RandomTranslation", "width_factor", [-1.0, 1.0])?;
        self.reading().check("RandomTranslation")
    }
}

arguments! {
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, rotates images randomly around their center.
    pub struct RandomRotation {
        /// Range of the counterclockwise rotation, as a fraction of a full turn. Required.
        pub factor: FactorRange = FactorRange::default(),
        /// How pixels outside the image are filled. Default: "reflect".
        pub fill_mode: FillMode = FillMode::Reflect,
        /// "bilinear" or "nearest". Default: "bilinear".
        pub interpolation: Interpolation = Interpolation::Bilinear,
        /// Fill value of "constant". Default: 0.
        pub fill_value: f64 = 0.0,
    }
}

impl RandomRotation {
    fn reading(&self) -> PixelSampler {
        PixelSampler { mode: self.fill_mode, value: self.fill_value, interpolation: self.interpolation }
    }

    fn change(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let Some(turns) = self.factor.draw(cx, x.dim(0)) else { return cast(cx, x) };
        let angle = turns * std::f64::consts::TAU;
        let (cos, sin) = (angle.cosine(), angle.sine());
        let (middle_x, middle_y) = ((x.dim(2) as f64 - 1.0) / 2.0, (x.dim(1) as f64 - 1.0) / 2.0);
        let a = [cos.clone(), &sin * -1.0, &cos * -middle_x + &sin * middle_y + middle_x];
        let b = [sin.clone(), cos.clone(), &sin * -middle_x - &cos * middle_y + middle_y];
        self.reading().transformed(cx, x, [a, b])
    }

    fn check_own(&self) -> Result<()> {
        self.factor.check("RandomRotation", "factor", [-1.0, 1.0])?;
        self.reading().check("RandomRotation")
    }
}

arguments! {
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, zooms images randomly around their center.
    pub struct RandomZoom {
        /// Range of the zoom in height: 0.2 zooms out by a fifth, −0.2 zooms in. Required.
        pub height_factor: FactorRange = FactorRange::default(),
        /// Range of the zoom in width; the same as in height by default.
        pub width_factor: Option<FactorRange> = None,
        /// How pixels outside the image are filled. Default: "reflect".
        pub fill_mode: FillMode = FillMode::Reflect,
        /// "bilinear" or "nearest". Default: "bilinear".
        pub interpolation: Interpolation = Interpolation::Bilinear,
        /// Fill value of "constant". Default: 0.
        pub fill_value: f64 = 0.0,
    }
}

impl RandomZoom {
    fn reading(&self) -> PixelSampler {
        PixelSampler { mode: self.fill_mode, value: self.fill_value, interpolation: self.interpolation }
    }

    fn change(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let Some(tall) = self.height_factor.draw(cx, x.dim(0)) else { return cast(cx, x) };
        let wide =
            self.width_factor.and_then(|factor| factor.draw(cx, x.dim(0))).unwrap_or_else(|| tall.clone());
        let zero = tall.zeros_like();
        let (middle_x, middle_y) = ((x.dim(2) as f64 - 1.0) / 2.0, (x.dim(1) as f64 - 1.0) / 2.0);
        let a = [&wide + 1.0, zero.clone(), &wide * -middle_x];
        let b = [zero, &tall + 1.0, &tall * -middle_y];
        self.reading().transformed(cx, x, [a, b])
    }

    fn check_own(&self) -> Result<()> {
        self.height_factor.check("RandomZoom", "height_factor", [-1.0, f64::MAX])?;
        if let Some(factor) = self.width_factor {
            factor.check("RandomZoom", "width_factor", [-1.0, f64::MAX])?;
        }
        self.reading().check("RandomZoom")
    }
}

arguments! {
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, adds a random constant to all pixels of an image.
    pub struct RandomBrightness {
        /// Range of the added constant, as a fraction of the value range. Required.
        pub factor: FactorRange = FactorRange::default(),
        /// Minimum and maximum pixel value; results are clamped. Default: [0.0, 255.0].
        pub value_range: [f64; 2] = [0.0, 255.0],
    }
}

impl RandomBrightness {
    fn change(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let Some(share) = self.factor.draw(cx, x.dim(0)) else { return cast(cx, x) };
        let x32 = cast(cx, x).convert(DType::F32);
        let more = share * (self.value_range[1] - self.value_range[0]);
        let lit = &x32 + more.broadcast_in_dim(x32.shape(), &[0]);
        cast(cx, &within(&lit, self.value_range))
    }

    fn check_own(&self) -> Result<()> {
        self.factor.check("RandomBrightness", "factor", [-1.0, 1.0])?;
        check_range("RandomBrightness", self.value_range)
    }
}

arguments! {
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, scales pixel distances from the channel mean of their image
    /// randomly.
    pub struct RandomContrast {
        /// Contrast from 1 − the first to 1 + the second value; a single number is the second. Required.
        pub factor: FactorRange = FactorRange::default(),
        /// Minimum and maximum pixel value; results are clamped. Default: [0.0, 255.0].
        pub value_range: [f64; 2] = [0.0, 255.0],
    }
}

impl RandomContrast {
    fn change(&self, cx: &mut Cx, x: &Tensor) -> Tensor {
        let [less, more] = self.factor.0;
        let Some(times) = FactorRange([1.0 - less.max(0.0), 1.0 + more]).draw(cx, x.dim(0)) else {
            return cast(cx, x);
        };
        let x32 = cast(cx, x).convert(DType::F32);
        let mean = x32.mean(&[1, 2]).broadcast_in_dim(x32.shape(), &[0, 3]);
        let far = (&x32 - &mean) * times.broadcast_in_dim(x32.shape(), &[0]) + mean;
        cast(cx, &within(&far, self.value_range))
    }

    fn check_own(&self) -> Result<()> {
        let FactorRange([less, more]) = self.factor;
        FactorRange([0.0, more]).check("RandomContrast", "factor", [0.0, 1.0])?;
        FactorRange([less.max(0.0), 1.0]).check("RandomContrast", "factor", [0.0, 1.0])?;
        check_range("RandomContrast", self.value_range)
    }
}

fn within(x: &Tensor, range: [f64; 2]) -> Tensor {
    x.clamp(&x.scalar_like(range[0]), &x.scalar_like(range[1]))
}

fn check_range(class: &str, [least, most]: [f64; 2]) -> Result<()> {
    match least < most && least.is_finite() && most.is_finite() {
        true => Ok(()),
        false => Err(wrong(class, "a value_range of minimum and maximum", format!("{least} and {most}"))),
    }
}

macro_rules! random_images {
    ($($class:ident)*) => { $(
        impl Arguments for $class {
            fn check(&self) -> Result<()> {
                self.check_own()
            }

            fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
                check_images(stringify!($class), x)?;
                if x.dim(1) * x.dim(2) == 0 {
                    return Err(unfit(stringify!($class), "non-empty images", x.ty()).hint("check the image data"));
                }
                Ok(self.change(cx, x))
            }
        }

        impl Layer for $class {
            named!(stringify!($class), one_input);

            lowered!(Regularization);
        }
    )* };
}

random_images!(RandomFlip RandomTranslation RandomRotation RandomZoom RandomBrightness RandomContrast);

constructors!(LayerSpec:
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, flips images randomly: "horizontal", "vertical" or
    /// "horizontal_and_vertical". Arguments: [`RandomFlip`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::random_flip, Model};
    /// let output = Model::sequential([random_flip("horizontal")]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 1]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn random_flip(mode: &str) = LayerSpec::of(RandomFlip::default()).set("mode", mode.into());
);

/// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, translates images randomly. Arguments: [`RandomTranslation`].
///
/// ```
/// use systole_nn::layers::random_translation;
/// assert!(random_translation(0.1, (-0.2, 0.3)).fill_mode("constant").check().is_ok());
/// ```
#[track_caller]
pub fn random_translation(
    height_factor: impl Into<FactorRange>,
    width_factor: impl Into<FactorRange>,
) -> LayerSpec {
    let (height_factor, width_factor) = (height_factor.into(), width_factor.into());
    LayerSpec::of(RandomTranslation { height_factor, width_factor, ..Default::default() })
}

constructors!(LayerSpec:
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, rotates images randomly. Arguments: [`RandomRotation`].
    ///
    /// ```
    /// use systole_nn::layers::random_rotation;
    /// assert!(random_rotation(0.1).interpolation("nearest").check().is_ok());
    /// ```
    fn random_rotation(factor: impl Into<FactorRange>) =
        RandomRotation { factor: factor.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, zooms images randomly. Arguments: [`RandomZoom`].
    ///
    /// ```
    /// use systole_nn::layers::random_zoom;
    /// assert!(random_zoom((-0.3, 0.1)).check().is_ok());
    /// ```
    fn random_zoom(height_factor: impl Into<FactorRange>) =
        RandomZoom { height_factor: height_factor.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, changes the brightness of images randomly. Arguments:
    /// [`RandomBrightness`].
    ///
    /// ```
    /// use systole_nn::layers::random_brightness;
    /// assert!(random_brightness(0.2).value_range((0.0, 1.0)).check().is_ok());
    /// ```
    fn random_brightness(factor: impl Into<FactorRange>) =
        RandomBrightness { factor: factor.into(), ..Default::default() };

    /// `x: T[B, H, W, C] → T[B, H, W, C]`: in training, changes the contrast of images randomly. Arguments:
    /// [`RandomContrast`].
    ///
    /// ```
    /// use systole_nn::layers::random_contrast;
    /// assert!(random_contrast((0.2, 0.4)).check().is_ok());
    /// ```
    fn random_contrast(factor: impl Into<FactorRange>) =
        RandomContrast { factor: factor.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// How pixels outside a transformed image are filled: "reflect", "wrap", "constant" or "nearest".
    fill_mode: impl Into<Value> as Value;
    /// Fill value of fill mode "constant" and of Resizing's padding.
    fill_value: f64 as f64;
);

impl LayerSpec {
    /// Sets the zoom range in width of RandomZoom, if it differs from the height.
    #[track_caller]
    pub fn width_factor(self, factor: impl Into<FactorRange>) -> LayerSpec {
        let FactorRange(both) = factor.into();
        self.set("width_factor", serde_json::json!(both))
    }

    /// Sets the minimum and maximum pixel value for RandomBrightness and RandomContrast.
    #[track_caller]
    pub fn value_range(self, (least, most): (f64, f64)) -> LayerSpec {
        self.set("value_range", serde_json::json!([least, most]))
    }
}

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let all = [
        random_flip("horizontal_and_vertical"),
        random_translation(0.3, 0.2),
        random_rotation(0.2).fill_mode("wrap"),
        random_zoom(0.3).fill_mode("constant").fill_value(0.5),
        random_brightness(0.2).value_range((-5.0, 5.0)),
        random_contrast(0.5).value_range((-5.0, 5.0)),
    ];
    all.into_iter().map(|layer| LayerSample::new(layer, IMAGE, IMAGE, &[], FLAT)).collect()
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file. Equal minimum and maximum make the
/// draws deterministic. Gradients are excluded, because TensorFlow's are those of the inverse transform, not of the
/// function.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "random_translation", "class": "RandomTranslation", "x_shape": [2, 5, 6, 2], "training": true, "gradients": false, "kwargs": {"height_factor": [0.3, 0.3], "width_factor": [-0.15, -0.15]}},
    {"name": "random_translation_constant", "class": "RandomTranslation", "x_shape": [2, 5, 6, 2], "training": true, "gradients": false, "kwargs": {"height_factor": [-0.3, -0.3], "width_factor": [0.55, 0.55], "fill_mode": "constant", "fill_value": 0.7}},
    {"name": "random_rotation", "class": "RandomRotation", "x_shape": [2, 5, 6, 2], "training": true, "gradients": false, "kwargs": {"factor": [0.1, 0.1]}},
    {"name": "random_rotation_nearest", "class": "RandomRotation", "x_shape": [2, 6, 5, 2], "training": true, "gradients": false, "kwargs": {"factor": [-0.2, -0.2], "fill_mode": "nearest", "interpolation": "nearest"}},
    {"name": "random_zoom", "class": "RandomZoom", "x_shape": [2, 5, 6, 2], "training": true, "gradients": false, "kwargs": {"height_factor": [0.4, 0.4], "width_factor": [-0.3, -0.3], "fill_mode": "wrap"}},
    {"name": "random_zoom_out", "class": "RandomZoom", "x_shape": [2, 5, 6, 2], "training": true, "gradients": false, "kwargs": {"height_factor": [0.7, 0.7]}},
    {"name": "random_brightness", "class": "RandomBrightness", "x_shape": [2, 4, 3, 3], "training": true, "kwargs": {"factor": [0.2, 0.2], "value_range": [-2.0, 2.5]}}
]"#;
