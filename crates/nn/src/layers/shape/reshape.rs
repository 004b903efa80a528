//! Flatten and Reshape layers; the batch dimension is kept.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::constructors;

/// `x: T[B, …] → T[B, N]`: flattens each sample into one dimension.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flatten {}

impl Arguments for Flatten {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let (batch, features) = split_batch("Flatten", x)?;
        Ok(cast_floats(cx, x).reshape([batch, features]))
    }
}

impl Layer for Flatten {
    named!("Flatten", one_input);

    lowered!(Flatten);
}

/// `x: T[B, …] → T[B, target_shape…]`: reshapes each sample in row-major order.
///
/// ```
/// use systole_nn::layers::reshape;
/// assert!(reshape([28, 28, 1]).check().is_ok());
/// assert!(reshape([-1, 8]).check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reshape {
    /// Shape of a sample; one entry may be −1, which is inferred. Required.
    pub target_shape: Vec<i64>,
}

impl Reshape {
    /// Infers −1 in the target shape; an error if `features` elements do not match it.
    fn resolve(&self, features: usize, x: &Tensor) -> Result<Vec<usize>> {
        let mut known = self.target_shape.iter().filter(|d| **d >= 0).map(|d| *d as usize);
        let known = known.try_fold(1, usize::checked_mul);
        let inferred = self.target_shape.contains(&-1);
        let rest = known.filter(|k| *k > 0).map_or(0, |k| features / k);
        let fits = if inferred {
            known.is_some_and(|k| k * rest == features && k > 0)
        } else {
            known == Some(features)
        };
        if !fits {
            let needs = format!("samples that fill {:?}", self.target_shape);
            return Err(unfit("Reshape", &needs, x.ty())
                .because(format!("a sample has {features} elements"))
                .hint("choose sizes with that product, or use one −1"));
        }
        Ok(self.target_shape.iter().map(|&d| usize::try_from(d).unwrap_or(rest)).collect())
    }
}

impl Arguments for Reshape {
    fn check(&self) -> Result<()> {
        let unknown = self.target_shape.iter().filter(|d| **d == -1).count();
        if unknown > 1 || self.target_shape.iter().any(|d| *d < -1) {
            let needs = "a target_shape of sizes with at most one −1";
            return Err(wrong("Reshape", needs, format!("{:?}", self.target_shape)));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let (batch, features) = split_batch("Reshape", x)?;
        let mut shape = self.resolve(features, x)?;
        shape.insert(0, batch);
        Ok(cast_floats(cx, x).reshape(shape))
    }
}

impl Layer for Reshape {
    named!("Reshape", one_input);

    lowered!(Reshape);
}

/// Returns the batch size and the number of elements per sample.
fn split_batch(class: &str, x: &Tensor) -> Result<(usize, usize)> {
    match x.shape().dims() {
        [batch, features @ ..] => Ok((*batch, features.iter().product())),
        [] => Err(unfit(class, "a batch [B, …]", x.ty()).hint("feed batches: data.batch(32)")),
    }
}

constructors!(LayerSpec:
    /// `x: T[B, …] → T[B, N]`: flattens each sample into one dimension. Arguments: [`Flatten`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::flatten, Model};
    /// let layer = flatten();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [784]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn flatten() = Flatten {};

    /// `x: T[B, …] → T[B, target_shape…]`: reshapes each sample; a size of −1 is inferred. Arguments: [`Reshape`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::reshape, Model};
    /// let layer = reshape([28, -1]);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [784])])?;
    /// assert_eq!(output.shape.dims(), [28, 28]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn reshape(target_shape: impl AsRef<[i64]>) = Reshape { target_shape: target_shape.as_ref().into() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(flatten(), IMAGE, &[2, 90], &[], Some(&[])),
        LayerSample::new(flatten(), &[2], &[2, 1], &[], Some(&[])),
        LayerSample::new(reshape([-1, 15]), IMAGE, &[2, 6, 15], &[], Some(&[2, 7])),
        LayerSample::new(reshape([90]), IMAGE, &[2, 90], &[], Some(&[2, 7])),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
