//! Activation functions by Keras name: relu, gelu, silu, softmax and others.

use crate::did_you_mean;
use crate::json::{Deserialize, Serialize};
use std::str::FromStr;
use systole_ir::{Error, Result, Tensor, TensorType, err};

/// Defines all activation functions. A row: documentation, variant with its parameters and their defaults in Keras, Keras
/// name, formula.
macro_rules! activations {
    ($($(#[$doc:meta])* $variant:ident $({ $($(#[$of:meta])* $field:ident: $ty:ty = $default:expr),* })?
       $name:literal |$x:ident| $formula:expr;)*) => {
        /// An activation function: `x: T[…] → T[…]`, element-wise except softmax, log_softmax, sparsemax and glu (over the last axis).
        #[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        pub enum Activation {
            $($(#[$doc])* $variant $({ $($(#[$of])* $field: $ty),* })?,)*
        }

        /// Names of activation functions accepted by [`Activation::from_str`].
        pub const NAMES: &[&str] = &[$($name,)* "swish", "hard_swish"];

        impl Activation {
            /// Applies the activation function as graph nodes.
            #[track_caller]
            pub fn apply(self, x: &Tensor) -> Tensor {
                match self {
                    $(Activation::$variant $({ $($field),* })? => {
                        let $x = x;
                        $formula
                    })*
                }
            }

            /// Keras name of the activation function.
            pub fn name(self) -> &'static str {
                match self {
                    $(Activation::$variant $({ $($field: _),* })? => $name,)*
                }
            }

            fn of_name(name: &str) -> Option<Activation> {
                Some(match name {
                    $($name => Activation::$variant $({ $($field: $default),* })?,)*
                    "swish" => Activation::Silu,
                    "hard_swish" => Activation::HardSilu,
                    _ => return None,
                })
            }
        }
    };
}

activations! {
    /// Identity: x.
    #[default]
    Linear "linear" |x| x.clone();
    /// Rectified linear unit: max(x, 0).
    Relu "relu" |x| x.relu();
    /// x if positive, otherwise `negative_slope`·x. Keras: 0.2.
    LeakyRelu {
        /// Slope for negative x.
        negative_slope: f64 = 0.2
    } "leaky_relu" |x| x.leaky_relu(negative_slope);
    /// Logistic function: 1 / (1 + e⁻ˣ).
    Sigmoid "sigmoid" |x| x.logistic();
    /// Hyperbolic tangent: tanh x.
    Tanh "tanh" |x| x.tanh();
    /// eˣ / Σ eˣ over the last axis.
    Softmax "softmax" |x| x.softmax();
    /// x·Φ(x); the tanh approximation if `approximate`.
    Gelu {
        /// Use the tanh approximation.
        approximate: bool = false
    } "gelu" |x| if approximate { x.gelu_tanh() } else { x.gelu() };
    /// x·sigmoid(x), also called swish.
    Silu "silu" |x| x.silu();
    /// x if positive, otherwise α(eˣ − 1).
    Elu {
        /// The output for negative x is bounded below by −α.
        alpha: f64 = 1.0
    } "elu" |x| x.elu(alpha);
    /// log(1 + eˣ).
    Softplus "softplus" |x| x.softplus();
    /// min(max(x, 0), 6).
    Relu6 "relu6" |x| clip(x, 0.0, 6.0);
    /// 1.0507 · elu(x) with α = 1.6733: keeps mean 0 and variance 1. Source: Klambauer et al. 2017.
    Selu "selu" |x| x.elu(1.673_263_242_354_377_2) * 1.050_700_987_355_480_5;
    /// max(x, 0) + min(eˣ − 1, 0): elu with α = 1.
    Celu "celu" |x| x.elu(1.0);
    /// eˣ.
    Exponential "exponential" |x| x.exp();
    /// x / (1 + |x|).
    Softsign "softsign" |x| x / &(x.abs() + 1.0);
    /// min(max(x / 6 + ½, 0), 1).
    HardSigmoid "hard_sigmoid" |x| clip(&(x / 6.0 + 0.5), 0.0, 1.0);
    /// x·hard_sigmoid(x), also called hard_swish.
    HardSilu "hard_silu" |x| x * &clip(&(x / 6.0 + 0.5), 0.0, 1.0);
    /// min(max(x, −1), 1).
    HardTanh "hard_tanh" |x| clip(x, -1.0, 1.0);
    /// x·tanh(softplus(x)).
    Mish "mish" |x| x * &x.softplus().tanh();
    /// −log(1 + e⁻ˣ).
    LogSigmoid "log_sigmoid" |x| -&(-x).softplus();
    /// x − log Σ eˣ over the last axis.
    LogSoftmax "log_softmax" |x| x.log_softmax();
    /// x if |x| > ½, otherwise 0.
    HardShrink "hard_shrink" |x| x.abs().greater(&(x.zeros_like() + 0.5)).select(x, &x.zeros_like());
    /// x moved by ½ towards 0; 0 between −½ and ½.
    SoftShrink "soft_shrink" |x| x - &clip(x, -0.5, 0.5);
    /// x − tanh x.
    TanhShrink "tanh_shrink" |x| x - &x.tanh();
    /// (x + √(x² + 4)) / 2.
    Squareplus "squareplus" |x| (x + &(&(x * x) + 4.0).sqrt()) * 0.5;
    /// 0 below −1, (x + 1)² / 4 up to 1, then x.
    SparsePlus "sparse_plus" |x| {
        let near = clip(x, -1.0, 1.0) + 1.0;
        (&near * &near) * 0.25 + (x - &clip(x, -1.0, 1.0)).relu()
    };
    /// min(max((x + 1) / 2, 0), 1).
    SparseSigmoid "sparse_sigmoid" |x| clip(&((x + 1.0) * 0.5), 0.0, 1.0);
    /// a·sigmoid(b), where a and b are the halves of the last axis: `x: T[…, 2·N] → T[…, N]`.
    Glu "glu" |x| halves(x, |a, b| a * &b.logistic());
    /// max(x − τ, 0) over the last axis, with τ as Keras computes it. Source: Martins and Astudillo 2016.
    Sparsemax "sparsemax" |x| sparsemax(x);
}

/// `x: T[…, 2·N] → T[…, N]`: applies a function to the halves of the last axis.
fn halves(x: &Tensor, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let last = x.rank().saturating_sub(1);
    match x.shape().last() {
        Some(n) if n % 2 == 0 => f(&x.slice_dim(last, 0, n / 2), &x.slice_dim(last, n / 2, *n)),
        _ => x.fail(err!(Graph, "glu needs an even number of features, got {}", x.ty())),
    }
}

/// `x: T[…, N] → T[…, N]`: max(x − τ, 0), with Keras's τ = (Σ of the sums of the largest 1, …, k elements − 1) / k, where k is
/// the number of elements in the support. Martins and Astudillo 2016 use only the last of these sums.
fn sparsemax(x: &Tensor) -> Tensor {
    let Some(&n) = x.shape().last().filter(|n| **n > 0) else {
        return x.fail(err!(Graph, "sparsemax needs at least one feature, got {}", x.ty()));
    };
    let last = x.rank() - 1;
    let sorted = x.sort(last, true);
    let square = TensorType::new(x.dtype(), [n, n]);
    let (row, column) = (x.builder().iota(square.clone(), 0), x.builder().iota(square, 1));
    // Sums of the largest 1, 2, … elements.
    let sums = sorted.dot(&row.less_equal(&column).convert(x.dtype()));
    let counts = x.builder().iota(x.ty().clone(), last) + 1.0;
    let support = (sorted * counts).greater(&(&sums - 1.0)).convert(x.dtype());
    let threshold = ((sums * &support).sum(&[last]) - 1.0) / support.sum(&[last]);
    let kept: Vec<usize> = (0..last).collect();
    (x - &threshold.broadcast_in_dim(x.shape(), &kept)).relu()
}

/// `min(max(x, low), high)`.
fn clip(x: &Tensor, low: f64, high: f64) -> Tensor {
    let zero = x.zeros_like();
    x.clamp(&(&zero + low), &(&zero + high))
}

impl Activation {
    /// Whether the function's input serves as the logits of its output, for numerically stable cross-entropies.
    pub fn has_logits(self) -> bool {
        matches!(self, Activation::Softmax | Activation::Sigmoid)
    }

    /// Whether a zero stays zero, whatever the other elements are.
    pub(crate) fn keeps_zeros(self) -> bool {
        use Activation::*;
        let moves = matches!(
            self,
            Sigmoid | Softmax | Softplus | Exponential | HardSigmoid | LogSigmoid | LogSoftmax
        );
        !moves && !matches!(self, Squareplus | SparsePlus | SparseSigmoid | Glu | Sparsemax)
    }

    /// Whether int8 training and .tflite files support the function.
    pub(crate) fn has_int8(self) -> bool {
        use Activation::*;
        matches!(self, Linear | Relu | LeakyRelu { .. } | Sigmoid | Tanh | Softmax | Gelu { .. } | Silu)
            || self == Elu { alpha: 1.0 }
    }
}

impl FromStr for Activation {
    type Err = Error;

    /// Parses a name; functions with parameters get Keras's defaults.
    fn from_str(name: &str) -> Result<Activation> {
        Activation::of_name(name)
            .ok_or_else(|| did_you_mean::unknown(&format!("unknown activation `{name}`"), name, NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, GraphBuilder, Literal, TensorType, interp};

    #[allow(clippy::approx_constant, reason = "values as Keras computes them")]
    const KERAS: &[(&str, [f32; 7])] = &[
        ("linear", [-3.0, -1.0, -0.3, 0.0, 0.4, 2.0, 7.0]),
        ("relu", [0.0, 0.0, 0.0, 0.0, 0.4, 2.0, 7.0]),
        ("leaky_relu", [-0.6, -0.2, -0.060000002, 0.0, 0.4, 2.0, 7.0]),
        ("sigmoid", [0.047425874, 0.26894143, 0.4255575, 0.5, 0.59868765, 0.880797, 0.999089]),
        ("tanh", [-0.9950547, -0.7615942, -0.2913126, 0.0, 0.379949, 0.9640276, 0.99999833]),
        ("gelu", [-0.004049696, -0.15865527, -0.11462659, 0.0, 0.2621687, 1.9544997, 7.0]),
        ("silu", [-0.14227763, -0.26894143, -0.12766725, 0.0, 0.23947506, 1.761594, 6.993623]),
        ("elu", [-0.95021296, -0.63212055, -0.25918177, 0.0, 0.4, 2.0, 7.0]),
        ("softplus", [0.048587352, 0.3132617, 0.55435526, 0.6931472, 0.91301525, 2.126928, 7.000911]),
        ("relu6", [0.0, 0.0, 0.0, 0.0, 0.4, 2.0, 6.0]),
        ("selu", [-1.6705688, -1.1113307, -0.4556673, 0.0, 0.42028043, 2.101402, 7.354907]),
        ("celu", [-0.95021296, -0.63212055, -0.25918177, 0.0, 0.4, 2.0, 7.0]),
        ("exponential", [0.049787067, 0.36787945, 0.7408182, 1.0, 1.4918247, 7.389056, 1096.6332]),
        ("softsign", [-0.75, -0.5, -0.23076925, 0.0, 0.2857143, 0.6666667, 0.875]),
        ("hard_sigmoid", [0.0, 0.33333334, 0.45000002, 0.5, 0.5666667, 0.8333334, 1.0]),
        ("hard_silu", [-0.0, -0.33333334, -0.135, 0.0, 0.22666669, 1.6666667, 7.0]),
        ("hard_tanh", [-1.0, -1.0, -0.3, 0.0, 0.4, 1.0, 1.0]),
        ("mish", [-0.14564745, -0.30340144, -0.15113318, 0.0, 0.28903055, 1.943959, 6.999989]),
        (
            "log_sigmoid",
            [-3.0485873, -1.3132617, -0.8543553, -0.6931472, -0.5130153, -0.126928, -0.0009114665],
        ),
        ("hard_shrink", [-3.0, -1.0, 0.0, 0.0, 0.0, 2.0, 7.0]),
        ("soft_shrink", [-2.5, -0.5, 0.0, 0.0, 0.0, 1.5, 6.5]),
        ("tanh_shrink", [-2.0049453, -0.23840582, -0.008687407, 0.0, 0.020051003, 1.0359724, 6.000002]),
        ("squareplus", [0.30277562, 0.618034, 0.86118746, 1.0, 1.2198039, 2.4142137, 7.1400547]),
        ("sparse_plus", [0.0, 0.0, 0.12249999, 0.25, 0.48999998, 2.0, 7.0]),
        ("sparse_sigmoid", [0.0, 0.0, 0.35, 0.5, 0.7, 1.0, 1.0]),
    ];

    /// Values of Keras 3.15 at −3, −1, −0.3, 0, 0.4, 2, 7.
    #[test]
    fn functions_compute_what_keras_does() {
        let x = [-3f32, -1.0, -0.3, 0.0, 0.4, 2.0, 7.0];
        for (name, expected) in KERAS {
            let g = GraphBuilder::new("main");
            let input = g.parameter(TensorType::new(DType::F32, [7]), "x");
            let graph = g.finish(&[name.parse::<Activation>().unwrap().apply(&input)]).unwrap();
            let y =
                interp::run(&graph, &[&Literal::from_slice([7], &x).unwrap()]).unwrap().remove(0).to_f32s();
            for (found, expected) in y.iter().zip(expected) {
                assert!((found - expected).abs() <= 2e-6 * (1.0 + expected.abs()), "{name}: {y:?}");
            }
            assert_eq!(
                y[3] == 0.0,
                name.parse::<Activation>().unwrap().keeps_zeros(),
                "{name} of 0 is {}",
                y[3]
            );
        }
        // All but softmax, log_softmax, glu and sparsemax; swish and hard_swish are second names.
        assert_eq!(KERAS.len(), NAMES.len() - 6);
    }

    #[test]
    fn every_name_parses_and_a_typo_finds_its_neighbour() {
        for name in NAMES {
            assert!(name.parse::<Activation>().is_ok(), "{name}");
        }
        let e = "rleu".parse::<Activation>().unwrap_err().to_string();
        assert!(e.contains("`relu`"), "{e}");
        assert_eq!(did_you_mean::nearest("fashon", &["mnist", "fashion-mnist", "glyphs"]), "fashion-mnist");
        assert_eq!(did_you_mean::nearest("filterz", &["filters", "kernel_size", "use_bias"]), "filters");
    }
}
