//! Dense (fully connected) layer.

use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;
use crate::layers::built_in::*;
use crate::layers::regularized_weight::{check_rules, finished, ruled_weight};
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …, K] → T[B, …, units]`: fully connected layer `activation(x · kernel + bias)`.
    ///
    /// Weights: `kernel: f32[K, units]`, `bias: f32[units]`.
    ///
    /// ```
    /// use systole_nn::layers::dense;
    /// let hidden = dense(128).activation("relu").kernel_initializer("he_normal");
    /// assert!(hidden.check().is_ok());
    /// ```
    pub struct Dense {
        /// Number of output features. Required.
        pub units: usize = 0,
        /// Activation of the output. Default: linear.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Linear,
        /// Whether a bias is added. Default: true.
        pub use_bias: bool = true,
        /// Initializer of the kernel. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the bias. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
        /// Penalty on the kernel, added to the loss. Default: none.
        pub kernel_regularizer: Option<Regularizer> = None,
        /// Penalty on the bias. Default: none.
        pub bias_regularizer: Option<Regularizer> = None,
        /// Penalty on the output. Default: none.
        pub activity_regularizer: Option<Regularizer> = None,
        /// Constraint on the kernel, applied after each step. Default: none.
        pub kernel_constraint: Option<Constraint> = None,
        /// Constraint on the bias, applied after each step. Default: none.
        pub bias_constraint: Option<Constraint> = None,
    }
}

impl Arguments for Dense {
    fn check(&self) -> Result<()> {
        check_rules("Dense", [self.kernel_regularizer, self.bias_regularizer, self.activity_regularizer])?;
        ensure!(self.units != 0, wrong("Dense", "units of at least 1", self.units));
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() < 2 {
            let hint = "give each sample at least one feature dimension: reshape([1]) before it";
            return Err(unfit("Dense", "features in a last dimension [B, …, K]", x.ty()).hint(hint));
        }
        let features = x.dim(-1);
        if features == 0 {
            let hint = "check the layers before it: one of them outputs no elements";
            return Err(unfit("Dense", "at least one input feature [B, …, K]", x.ty()).hint(hint));
        }
        let (shape, rules) = ([features, self.units], (self.kernel_regularizer, self.kernel_constraint));
        let kernel = ruled_weight(cx, "Dense", "kernel", &shape, &self.kernel_initializer, rules)?;
        let y = cast(cx, x).dot(&kernel);
        let rules = (self.bias_regularizer, self.bias_constraint);
        let bias = self.use_bias.then_some((&self.bias_initializer, rules));
        finished(cx, "Dense", y, bias, (self.activation, self.activity_regularizer))
    }
}

impl Layer for Dense {
    named!("Dense", one_input);

    lowered!(self => Ok(LayerLowering::Dense { use_bias: self.use_bias, activation: self.activation }));

    weights!("kernel" => "weight" as Dense, "bias" => "bias" or none);
}

constructors!(LayerSpec:
    /// `x: T[B, …, K] → T[B, …, units]`: fully connected layer. Arguments: [`Dense`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dense, Model};
    /// let layer = dense(10).activation("softmax");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [784])])?;
    /// assert_eq!(output.shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn dense(units: usize) = Dense { units, ..Default::default() };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(dense(4), &[2, 5], &[2, 4], BOTH, Some(&[5])),
        LayerSample::new(dense(4).use_bias(false), &[2, 3, 5], &[2, 3, 4], &["kernel"], Some(&[2, 0])),
    ]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
