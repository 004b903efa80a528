//! Rescaling layer: multiplies by a scale and adds an offset, for example pixels to 0..1.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `x: U[…] → T[…]`: `x · scale + offset`. Also accepts integers.
    ///
    /// ```
    /// use systole_nn::layers::rescaling;
    /// let to_unit = rescaling(1.0 / 255.0);
    /// let to_signed = rescaling(1.0 / 127.5).offset(-1.0);
    /// assert!(to_unit.check().is_ok() && to_signed.check().is_ok());
    /// ```
    pub struct Rescaling {
        /// Factor. Required in Keras, 1 here.
        pub scale: f64 = 1.0,
        /// Added constant. Default: 0.
        pub offset: f64 = 0.0,
    }
}

impl Arguments for Rescaling {
    fn check(&self) -> Result<()> {
        if !self.scale.is_finite() || !self.offset.is_finite() {
            let is = format!("{} and {}", self.scale, self.offset);
            return Err(wrong("Rescaling", "a finite scale and offset", is));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        Ok(cast(cx, x) * self.scale + self.offset)
    }
}

impl Layer for Rescaling {
    named!("Rescaling", one_input);

    lowered!(self => Ok(LayerLowering::Rescaling { scale: self.scale, offset: self.offset }));
}

constructors!(LayerSpec:
    /// `x: U[…] → T[…]`: multiplies by `scale`; also accepts integers, such as image bytes to 0..1. Arguments:
    /// [`Rescaling`].
    ///
    /// ```
    /// use systole_ir::{DType::U8, TensorType};
    /// use systole_nn::{layers::rescaling, Model};
    /// let layer = rescaling(1.0 / 255.0);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(U8, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 1]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn rescaling(scale: f64) = Rescaling { scale, ..Default::default() };
);

setters!(LayerSpec:
    /// Constant that Rescaling adds.
    offset: f64 as f64;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(rescaling(1.0 / 255.0).offset(-0.5), IMAGE, IMAGE, &[], None)]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
