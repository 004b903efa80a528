//! Dropout layer, and the shared drawing of dropout masks.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{constructors, setters};
use serde::{Deserializer, Serializer};

/// `x: T[…] → T[…]`: in training, zeros each element with probability `rate` and divides the others by `1 − rate`;
/// otherwise the identity.
///
/// The dropped elements depend on the model's seed, the step and the layer's name, so equal runs drop the same
/// elements.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dropout {
    /// Fraction of the elements to drop, 0 to 1. Required in Keras, 0 here.
    pub rate: f64,
    /// Shape of the dropout mask: size 1 drops along the whole dimension, 0 (Keras's None) is the input's size.
    /// Default: the input's shape.
    pub noise_shape: Option<NoiseShape>,
}

/// Shape of a dropout mask; 0 stands for the size of the layer's input.
#[derive(Clone, Debug, PartialEq)]
pub struct NoiseShape(Vec<usize>);

impl Serialize for NoiseShape {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NoiseShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<NoiseShape, D::Error> {
        Vec::<Option<usize>>::deserialize(deserializer).map(NoiseShape::from)
    }
}

impl From<Vec<Option<usize>>> for NoiseShape {
    fn from(sizes: Vec<Option<usize>>) -> NoiseShape {
        NoiseShape(sizes.into_iter().map(|size| size.unwrap_or(0)).collect())
    }
}

impl NoiseShape {
    /// Draws a mask of this shape and broadcasts it to `x`.
    fn kept(&self, cx: &mut Cx, x: &Tensor, rate: f64) -> Result<Option<Tensor>> {
        let sizes = x.shape().dims().iter().zip(&self.0);
        let drawn: Vec<usize> =
            sizes.clone().map(|(is, size)| if *size == 0 { *is } else { *size }).collect();
        let fits =
            self.0.len() == x.rank() && x.shape().dims().iter().zip(&drawn).all(|(is, n)| *n == 1 || n == is);
        if !fits {
            let needs = format!("an input that matches its noise_shape {:?}", self.0);
            return Err(unfit("Dropout", &needs, x.ty())
                .hint("set each entry of noise_shape to the input's size, 0 for the input's size, or 1"));
        }
        let dims: Vec<usize> = (0..x.rank()).collect();
        Ok(kept(cx, &drawn, rate).map(|kept| kept.broadcast_in_dim(x.shape(), &dims)))
    }
}

impl Arguments for Dropout {
    fn check(&self) -> Result<()> {
        check_rate("Dropout", "rate", self.rate)
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
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
    }
}

impl Layer for Dropout {
    named!("Dropout", one_input);

    lowered!(Regularization);
}

/// `→ bool[shape]`: dropout mask; true keeps the element, with probability `1 − rate`. `None` outside training.
pub(in crate::layers) fn kept(cx: &mut Cx, shape: &[usize], rate: f64) -> Option<Tensor> {
    let bits = cx.random_bits(shape)?;
    // An element is kept if its 32 random bits, read as a fraction of 2³², are at least the rate.
    let threshold = (rate * 2f64.powi(32)).round().min(f64::from(u32::MAX));
    Some(bits.greater_equal(&bits.scalar_like(threshold)))
}

/// Rejects rates outside 0..=1.
pub(in crate::layers) fn check_rate(class: &str, argument: &str, rate: f64) -> Result<()> {
    ensure!((0.0..=1.0).contains(&rate), wrong(class, &format!("a {argument} from 0 to 1"), rate));
    Ok(())
}

constructors!(LayerSpec:
    /// `x: T[…] → T[…]`: in training, zeros a fraction `rate` of the elements; otherwise the identity. Arguments:
    /// [`Dropout`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dropout, Model};
    /// let layer = dropout(0.5);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [128])])?;
    /// assert_eq!(output.shape.dims(), [128]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn dropout(rate: f64) = Dropout { rate, ..Default::default() };
);

setters!(LayerSpec:
    /// Shape of Dropout's mask.
    noise_shape: impl Into<Vec<usize>> as Vec<usize>;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(dropout(0.5), &[2, 5], &[2, 5], &[], None),
        LayerSample::new(dropout(0.5).noise_shape([0, 1, 1, 1]), IMAGE, IMAGE, &[], None),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
