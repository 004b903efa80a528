//! ClassToken layer (prepends a learned [CLS] token) and FirstStep layer (selects it again).

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, S, D] → T[B, S + 1, D]`: prepends a learned class token to each sequence.
    ///
    /// Weight: `token: f32[D]`. Source: Devlin et al. 2018, Dosovitskiy et al. 2020.
    pub struct ClassToken {
        /// Initializer of the token. Default: `random_normal` with mean 0.0, stddev 0.02.
        pub initializer: Initializer = Initializer::RandomNormal { mean: 0.0, stddev: 0.02 },
    }
}

/// `x: T[B, S, D] → T[B, D]`: selects the first step of each sequence. Keras's `x[:, 0]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FirstStep {}

impl Arguments for ClassToken {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_sequence("ClassToken", x)?;
        let x = cast(cx, x);
        let (batch, features) = (x.dim(0), x.dim(2));
        let token = weight(cx, "ClassToken", "token", &[features], &self.initializer)?;
        let first = token.broadcast_in_dim(&Shape::new([batch, 1, features]), &[2]);
        Ok(Tensor::concatenate(&[&first, &x], 1))
    }
}

impl Arguments for FirstStep {
    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        check_sequence("FirstStep", x)?;
        let x = cast_floats(cx, x);
        Ok(x.slice_dim(1, 0, 1).reshape([x.dim(0), x.dim(2)]))
    }
}

fn check_sequence(class: &str, x: &Tensor) -> Result<()> {
    if x.rank() == 3 && x.dim(1) > 0 {
        return Ok(());
    }
    Err(unfit(class, "sequences of at least one step [B, S, D]", x.ty())
        .hint("put reshape([steps, features]) before the layer"))
}

impl Layer for ClassToken {
    named!("ClassToken", one_input);

    lowered!(ClassToken);

    weights!("token" => "token");
}

impl Layer for FirstStep {
    named!("FirstStep", one_input);

    lowered!(FirstStep);
}

constructors!(LayerSpec:
    /// `x: T[B, S, D] → T[B, S + 1, D]`: prepends a learned class token to each sequence. Arguments: [`ClassToken`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::class_token, Model};
    /// let layer = class_token();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [196, 768])])?;
    /// assert_eq!(output.shape.dims(), [197, 768]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn class_token() = ClassToken::default();

    /// `x: T[B, S, D] → T[B, D]`: selects the first step of each sequence.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::first_step, Model};
    /// let layer = first_step();
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [197, 768])])?;
    /// assert_eq!(output.shape.dims(), [768]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn first_step() = FirstStep {};
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(class_token(), SEQUENCE, &[2, 8, 4], &["token"], FLAT),
        LayerSample::new(first_step(), SEQUENCE, &[2, 4], &[], FLAT),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
