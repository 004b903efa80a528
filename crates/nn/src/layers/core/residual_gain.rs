//! ResidualGain layer: adds a branch scaled by a learned factor that starts at 0 (SAGAN).

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

arguments! {
    /// `x: T[B, …], branch: T[B, …] → T[B, …]`: x + gamma · branch, with one learned scalar that starts at 0.
    ///
    /// The branch is blended in gradually, as in SAGAN's self-attention. Not in Keras. Weight: `gamma: f32[1]`. Source:
    /// Zhang et al. 2018.
    pub struct ResidualGain {
        /// Initializer of `gamma`. Default: `zeros`.
        pub gamma_initializer: Initializer = Initializer::Zeros,
    }
}

constructors!(LayerSpec:
    /// `x: T[B, …], branch: T[B, …] → T[B, …]`: x + gamma · branch. Arguments: [`ResidualGain`].
    ///
    /// ```
    /// use systole_nn::{input, layers::{dense, residual_gain}, Model};
    /// let x = input("x", [8]);
    /// let y = residual_gain().on(&[&x, &x.apply(dense(8))]);
    /// assert!(Model::functional(&[x], &y)?.summary().contains("Weights: 73"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn residual_gain() = ResidualGain::default();
);

impl Arguments for ResidualGain {}

impl Layer for ResidualGain {
    named!("ResidualGain");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        built(self, cx, inputs, |cx, inputs| {
            let [x, branch] = inputs else {
                return Err(wrong_number(self, "two inputs", inputs)
                    .hint("call ResidualGain with two inputs: residual_gain().on(&[&x, &branch])"));
            };
            if x.shape() != branch.shape() || x.rank() == 0 {
                let what =
                    format!("ResidualGain needs inputs of one shape, got {} and {}", x.ty(), branch.ty());
                let hint = "bring both inputs to the same shape, for example with a 1×1 conv2d";
                return Err(Error::new(ErrorKind::Graph, what).hint(hint));
            }
            let (x, branch) = (cast(cx, x), cast(cx, branch));
            let gamma = cx.weight("gamma", &[1], &self.gamma_initializer).reshape(Shape::from([0usize; 0]));
            Ok(x + gamma.broadcast_in_dim(branch.shape(), &[]) * branch)
        })
    }
}

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let of_two = LayerSample::of_two(residual_gain(), &[2, 3, 4]);
    vec![LayerSample { weights: &["gamma"], ..of_two }]
}

/// Keras parity test cases of these layers are in `fixtures/keras/parts`.
pub(in crate::layers) const PARITY: &str = "[]";
