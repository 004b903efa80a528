//! Activation functions by Keras name: relu, gelu, silu, softmax and others.

use crate::did_you_mean;
use crate::json::{Deserialize, Serialize};
use std::str::FromStr;
use systole_ir::{Error, Result, Tensor};

/// An activation function: `x: T[…] → T[…]`, element-wise except softmax (over the last axis).
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Activation {
    /// Identity: x.
    #[default]
    Linear,
    /// Rectified linear unit: max(x, 0).
    Relu,
    /// x if positive, otherwise `negative_slope`·x. Keras: 0.2.
    LeakyRelu {
        /// Slope for negative x.
        negative_slope: f64,
    },
    /// Logistic function: 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// Hyperbolic tangent: tanh x.
    Tanh,
    /// eˣ / Σ eˣ over the last axis.
    Softmax,
    /// x·Φ(x); the tanh approximation if `approximate`.
    Gelu {
        /// Use the tanh approximation.
        approximate: bool,
    },
    /// x·sigmoid(x), also called swish.
    Silu,
    /// x if positive, otherwise α(eˣ − 1).
    Elu {
        /// The output for negative x is bounded below by −α.
        alpha: f64,
    },
    /// log(1 + eˣ).
    Softplus,
}

/// Names of activation functions accepted by [`Activation::from_str`].
pub const NAMES: [&str; 11] = [
    "linear",
    "relu",
    "leaky_relu",
    "sigmoid",
    "tanh",
    "softmax",
    "gelu",
    "silu",
    "swish",
    "elu",
    "softplus",
];

impl Activation {
    /// Applies the activation function as graph nodes.
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Linear => x.clone(),
            Activation::Relu => x.relu(),
            Activation::LeakyRelu { negative_slope } => x.leaky_relu(negative_slope),
            Activation::Sigmoid => x.logistic(),
            Activation::Tanh => x.tanh(),
            Activation::Softmax => x.softmax(),
            Activation::Gelu { approximate: false } => x.gelu(),
            Activation::Gelu { approximate: true } => x.gelu_tanh(),
            Activation::Silu => x.silu(),
            Activation::Elu { alpha } => x.elu(alpha),
            Activation::Softplus => x.softplus(),
        }
    }

    /// Whether the function's input serves as the logits of its output, for numerically stable cross-entropies.
    pub fn has_logits(self) -> bool {
        matches!(self, Activation::Softmax | Activation::Sigmoid)
    }

    /// Keras name of the activation function.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Linear => "linear",
            Activation::Relu => "relu",
            Activation::LeakyRelu { .. } => "leaky_relu",
            Activation::Sigmoid => "sigmoid",
            Activation::Tanh => "tanh",
            Activation::Softmax => "softmax",
            Activation::Gelu { .. } => "gelu",
            Activation::Silu => "silu",
            Activation::Elu { .. } => "elu",
            Activation::Softplus => "softplus",
        }
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Parses a name; functions with parameters get Keras's defaults.
    fn from_str(name: &str) -> Result<Activation> {
        Ok(match name {
            "linear" => Activation::Linear,
            "relu" => Activation::Relu,
            "leaky_relu" => Activation::LeakyRelu { negative_slope: 0.2 },
            "sigmoid" => Activation::Sigmoid,
            "tanh" => Activation::Tanh,
            "softmax" => Activation::Softmax,
            "gelu" => Activation::Gelu { approximate: false },
            "silu" | "swish" => Activation::Silu,
            "elu" => Activation::Elu { alpha: 1.0 },
            "softplus" => Activation::Softplus,
            _ => {
                return Err(did_you_mean::unknown(&format!("unknown activation `{name}`"), name, &NAMES));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_and_a_typo_finds_its_neighbour() {
        for name in NAMES {
            assert!(name.parse::<Activation>().is_ok(), "{name}");
        }
        let e = "rleu".parse::<Activation>().unwrap_err().to_string();
        assert!(e.contains("did you mean `relu`"), "{e}");
        assert_eq!(did_you_mean::nearest("fashon", &["mnist", "fashion-mnist", "glyphs"]), "fashion-mnist");
        assert_eq!(did_you_mean::nearest("filterz", &["filters", "kernel_size", "use_bias"]), "filters");
    }
}
