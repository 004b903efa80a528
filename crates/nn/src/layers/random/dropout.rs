//! Dropout: noise that keeps a network from relying on single features.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::setters;

/// `x: T[…] → T[…]`: while training, each element is 0 with probability `rate` and else divided by `1 − rate`, so
/// that its mean stays; otherwise the input.
///
/// Which elements is a function of the model's seed, the step and the layer's name: the same run drops the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dropout {
    /// Fraction that is dropped, 0 to 1. Required in Keras, 0 here.
    pub rate: f64,
    /// The shape of what is drawn: sizes of 1 drop whole dimensions together, 0 (Keras's None) is the input's size.
    /// Default: the input's shape.
    pub noise_shape: Option<NoiseShape>,
}

/// Sizes of what Dropout draws; 0 for that of the input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Option<usize>>")]
pub struct NoiseShape(Vec<usize>);

impl From<Vec<Option<usize>>> for NoiseShape {
    fn from(sizes: Vec<Option<usize>>) -> NoiseShape {
        NoiseShape(sizes.into_iter().map(|size| size.unwrap_or(0)).collect())
    }
}

impl NoiseShape {
    /// `kept` of this shape, for each element of `x`.
    fn kept(&self, cx: &mut Cx, x: &Tensor, rate: f64) -> Result<Option<Tensor>> {
        let sizes = x.shape().dims().iter().zip(&self.0);
        let drawn: Vec<usize> =
            sizes.clone().map(|(is, size)| if *size == 0 { *is } else { *size }).collect();
        let fits =
            self.0.len() == x.rank() && x.shape().dims().iter().zip(&drawn).all(|(is, n)| *n == 1 || n == is);
        if !fits {
            let needs = format!("an input that its noise_shape {:?} fits", self.0);
            return Err(unfit("Dropout", &needs, x.ty()).hint("sizes are the input's, 0 for those, or 1"));
        }
        let dims: Vec<usize> = (0..x.rank()).collect();
        Ok(kept(cx, &drawn, rate).map(|kept| kept.broadcast_in_dim(x.shape(), &dims)))
    }
}

impl Arguments for Dropout {
    fn check(&self) -> Result<()> {
        check_rate("Dropout", "rate", self.rate)
    }
}

impl Layer for Dropout {
    named!("Dropout");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            let x = cast(cx, x);
            if self.rate == 0.0 || !cx.training() {
                return Ok(x);
            }
            if self.rate == 1.0 {
                return Ok(x.zeros_like());
            }
            let kept = match &self.noise_shape {
                Some(shape) => shape.kept(cx, &x, self.rate)?,
                None => kept(cx, x.shape().dims(), self.rate),
            };
            let Some(kept) = kept else { return Ok(x) };
            Ok(kept.select(&(&x * (1.0 / (1.0 - self.rate))), &x.zeros_like()))
        })
    }

    fn lowering(&self) -> Result<LayerLowering> {
        Ok(LayerLowering::Regularization)
    }
}

/// `→ bool[shape]`: which elements stay, each with probability `1 − rate`. `None` when not training.
pub(in crate::layers) fn kept(cx: &mut Cx, shape: &[usize], rate: f64) -> Option<Tensor> {
    let bits = cx.random_bits(shape)?;
    // An element is kept when its 32 bits, read as a fraction of 2³², reach the rate.
    let threshold = (rate * 2f64.powi(32)).round().min(f64::from(u32::MAX));
    Some(bits.greater_equal(&bits.scalar_like(threshold)))
}

/// Errors unless `rate` is a fraction that can be dropped.
pub(in crate::layers) fn check_rate(class: &str, argument: &str, rate: f64) -> Result<()> {
    match (0.0..=1.0).contains(&rate) {
        true => Ok(()),
        false => Err(wrong(class, &format!("a {argument} from 0 to 1"), rate)),
    }
}

/// `x: T[…] → T[…]`: while training, zeros a share `rate` of the elements; else nothing. Arguments: [`Dropout`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::dropout, Model};
/// let layer = dropout(0.5);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [128])])?;
/// assert_eq!(output.shape.dims(), [128]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn dropout(rate: f64) -> LayerSpec {
    LayerSpec::of(Dropout { rate, ..Default::default() })
}

setters!(LayerSpec:
    /// The shape of what Dropout draws.
    noise_shape: impl Into<Vec<usize>> as Vec<usize>;
);

/// Layers with inputs that they take and refuse.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(dropout(0.5), &[2, 5], &[2, 5], &[], None),
        LayerSample::new(dropout(0.5).noise_shape([0, 1, 1, 1]), IMAGE, IMAGE, &[], None),
    ]
}

/// Cases of the parity test are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
