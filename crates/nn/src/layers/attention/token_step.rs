//! TokenStep layer: selects the step of a sequence at which a token occurs, such as CLIP's end of text.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, setters};

arguments! {
    /// `x: T[B, S, D], tokens: I[B, S] → T[B, D]`: selects the step of the first `token`; the first step of sequences
    /// without it.
    ///
    /// Without `token` it selects the first step of the largest token: `x[arange(B), tokens.argmax(1)]`, the end of text in
    /// CLIP's vocabulary. Source: Radford et al. 2021.
    pub struct TokenStep {
        /// Token that is searched. Default: the largest of each sequence.
        pub token: Option<u32> = None,
    }
}

impl Arguments for TokenStep {}

impl TokenStep {
    fn select(&self, cx: &Cx, x: &Tensor, tokens: &Tensor) -> Result<Tensor> {
        let fits = x.rank() == 3 && x.dim(1) > 0 && tokens.shape().dims() == &x.shape()[..2];
        if !fits || !tokens.dtype().is_int() {
            let needs = format!("sequences [B, S, D] and their tokens [B, S], got {} and", x.ty());
            return Err(unfit("TokenStep", &needs, tokens.ty())
                .hint("call the layer in a functional model: token_step().on(&[&x, &tokens])"));
        }
        let scores = match self.token {
            Some(token) => tokens.equal(&(tokens.zeros_like() + f64::from(token))).convert(DType::I32),
            None => tokens.clone(),
        };
        let x = cast(cx, x);
        let step = scores.argmax(1).broadcast_in_dim(tokens.shape(), &[0]);
        let place = step.builder().iota(step.ty().clone(), 1);
        let chosen = place.equal(&step).broadcast_in_dim(x.shape(), &[0, 1]);
        Ok(chosen.select(&x, &x.zeros_like()).sum(&[1]))
    }
}

impl Layer for TokenStep {
    named!("TokenStep");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        if let Some(poisoned) = inputs.iter().find(|x| x.is_poisoned()) {
            return poisoned.clone();
        }
        let built = match inputs {
            [x, tokens] => self.select(cx, x, tokens),
            _ => {
                let what = format!("TokenStep takes sequences and their tokens, got {} inputs", inputs.len());
                Err(Error::new(ErrorKind::Graph, what)
                    .hint("call the layer in a functional model: token_step().on(&[&x, &tokens])"))
            }
        };
        built.unwrap_or_else(|e| refuse(cx, inputs, e))
    }
}

/// `x: T[B, S, D], tokens: I[B, S] → T[B, D]`: selects the step of a token. Arguments: [`TokenStep`].
///
/// ```
/// use systole_nn::{any_input, layers::*, Model};
/// let tokens = any_input("tokens");
/// let x = tokens.apply(embedding(50, 8));
/// let end = token_step().token(49).on(&[&x, &tokens]);
/// assert_eq!(Model::functional(&[tokens], &end)?.architecture().nodes.len(), 2);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn token_step() -> LayerSpec {
    LayerSpec::of(TokenStep::default())
}

setters!(LayerSpec:
    /// Token whose step TokenStep selects.
    token: u32 as u32;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let tokens = TensorType::new(DType::I32, [2, 7]);
    let sample = |spec| LayerSample {
        spec,
        inputs: vec![f32s(SEQUENCE), tokens.clone()],
        output: vec![2, 4],
        weights: &[],
        refused: Some(vec![f32s(SEQUENCE), f32s(&[2, 5])]),
    };
    vec![sample(token_step()), sample(token_step().token(3))]
}

/// Not in Keras.
pub(in crate::layers) const PARITY: &str = "[]";
