//! Weight initializers by Keras name, as pure functions of seed, weight path and element index.

use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize};
use std::str::FromStr;
use std::thread;
use systole_ir::rng::{RandomStream, hash_name};
use systole_ir::{DType, Error, Literal, Result, TensorType};

/// Distribution of a weight's initial values, with Keras's names and definitions.
///
/// ```
/// use systole_nn::Initializer;
/// let kernel = Initializer::GlorotUniform.make(&[784, 10], 7, "dense/kernel");
/// assert_eq!(kernel.ty().to_string(), "f32[784, 10]");
/// assert_eq!(kernel, Initializer::GlorotUniform.make(&[784, 10], 7, "dense/kernel"));
/// assert_ne!(kernel, Initializer::GlorotUniform.make(&[784, 10], 7, "dense_1/kernel"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields, from_str)]
pub enum Initializer {
    /// Uniform with variance 2 / (fan_in + fan_out).
    GlorotUniform,
    /// Normal, truncated at two σ, with variance 2 / (fan_in + fan_out).
    GlorotNormal,
    /// Uniform with variance 2 / fan_in.
    HeUniform,
    /// Normal, truncated at two σ, with variance 2 / fan_in.
    HeNormal,
    /// Uniform with variance 1 / fan_in.
    LecunUniform,
    /// Normal, truncated at two σ, with variance 1 / fan_in.
    LecunNormal,
    /// Uniform between two values. Keras: ±0.05.
    RandomUniform {
        /// Minimum.
        minval: f64,
        /// Maximum.
        maxval: f64,
    },
    /// Normal. Keras: mean 0, σ 0.05.
    RandomNormal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        stddev: f64,
    },
    /// Normal; values beyond two σ are redrawn. Keras: mean 0, σ 0.05 (before truncation).
    TruncatedNormal {
        /// Mean.
        mean: f64,
        /// Standard deviation before truncation.
        stddev: f64,
    },
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// A constant.
    Constant {
        /// The value.
        value: f64,
    },
    /// Orthonormal columns (or rows, if there are fewer) of the matrix \[product of leading axes, last axis\], times a
    /// gain.
    Orthogonal {
        /// Factor. Keras: 1.
        gain: f64,
    },
    /// Bias of an LSTM, `[4·units]`: 1 for the forget gate, the second quarter.
    UnitForgetBias {
        /// Initializer of the other three quarters.
        others: Box<Initializer>,
    },
}

/// Names of initializers accepted by [`Initializer::from_str`].
pub const NAMES: [&str; 13] = [
    "glorot_uniform",
    "glorot_normal",
    "he_uniform",
    "he_normal",
    "lecun_uniform",
    "lecun_normal",
    "random_uniform",
    "random_normal",
    "truncated_normal",
    "zeros",
    "ones",
    "constant",
    "orthogonal",
];

/// Standard deviation of a standard normal truncated at ±2; Keras divides by it to get the requested variance.
const TRUNCATED_STDDEV: f64 = 0.879_625_661_034_239_8;

/// Resolved distribution of all elements.
enum WeightDistribution {
    Constant(f64),
    Uniform { low: f64, high: f64 },
    Normal { mean: f64, stddev: f64, limit: f64 },
    Orthogonal { gain: f64 },
}

impl Initializer {
    /// Generates initial values of the weight at `path`: `→ f32[shape]`.
    ///
    /// Kernels have Keras's layout `[…window, in, out]`. The axes of a two-dimensional shape are in and out.
    pub fn make(&self, shape: &[usize], seed: u64, path: &str) -> Literal {
        if let Initializer::UnitForgetBias { others } = self {
            let others = others.make(shape, seed, path).to_f32s();
            let quarter = others.len() as u64 / 4;
            let forgets = quarter..2 * quarter;
            return filled(shape, |i| if forgets.contains(&i) { 1.0 } else { f64::from(others[i as usize]) });
        }
        let stream = hash_name(path);
        match self.law(shape) {
            WeightDistribution::Constant(value) => filled(shape, |_| value),
            WeightDistribution::Uniform { low, high } => {
                let mut draws = RandomStream::new(seed, stream, 0);
                // An offset of half a step keeps the draws symmetric.
                let unit = 1.0 / (1u64 << 32) as f64;
                filled(shape, |_| low + (high - low) * ((draws.next_u32() as f64 + 0.5) * unit))
            }
            WeightDistribution::Normal { mean, stddev, limit } => filled_by_index(shape, |i| {
                mean + stddev * normal_within(&mut RandomStream::new(seed, stream, i), limit)
            }),
            WeightDistribution::Orthogonal { gain } => {
                orthogonal(shape, gain, RandomStream::new(seed, stream, 0))
            }
        }
    }

    fn law(&self, shape: &[usize]) -> WeightDistribution {
        let (fan_in, fan_out) = fans(shape);
        // Keras's floor of 1 avoids division by zero for empty weights.
        let (input, both) = (fan_in.max(1.0), ((fan_in + fan_out) / 2.0).max(1.0));
        let uniform = |variance: f64| {
            let limit = (3.0 * variance).sqrt();
            WeightDistribution::Uniform { low: -limit, high: limit }
        };
        let normal = |variance: f64| WeightDistribution::Normal {
            mean: 0.0,
            stddev: variance.sqrt() / TRUNCATED_STDDEV,
            limit: 2.0,
        };
        match *self {
            Initializer::GlorotUniform => uniform(1.0 / both),
            Initializer::GlorotNormal => normal(1.0 / both),
            Initializer::HeUniform => uniform(2.0 / input),
            Initializer::HeNormal => normal(2.0 / input),
            Initializer::LecunUniform => uniform(1.0 / input),
            Initializer::LecunNormal => normal(1.0 / input),
            Initializer::RandomUniform { minval, maxval } => {
                WeightDistribution::Uniform { low: minval, high: maxval }
            }
            Initializer::RandomNormal { mean, stddev } => {
                WeightDistribution::Normal { mean, stddev, limit: f64::INFINITY }
            }
            Initializer::TruncatedNormal { mean, stddev } => {
                WeightDistribution::Normal { mean, stddev, limit: 2.0 }
            }
            Initializer::Zeros => WeightDistribution::Constant(0.0),
            Initializer::Ones => WeightDistribution::Constant(1.0),
            Initializer::Constant { value } => WeightDistribution::Constant(value),
            Initializer::Orthogonal { gain } => WeightDistribution::Orthogonal { gain },
            Initializer::UnitForgetBias { ref others } => others.law(shape),
        }
    }
}

/// Returns fan-in and fan-out of a weight `[…window, in, out]`.
fn fans(shape: &[usize]) -> (f64, f64) {
    match shape {
        [] => (1.0, 1.0),
        [n] => (*n as f64, *n as f64),
        [window @ .., input, output] => {
            let field: f64 = window.iter().map(|&d| d as f64).product();
            (field * *input as f64, field * *output as f64)
        }
    }
}

fn filled(shape: &[usize], mut value: impl FnMut(u64) -> f64) -> Literal {
    let mut out = Literal::zeros(TensorType::new(DType::F32, shape));
    if let Ok(elements) = out.as_mut_slice::<f32>() {
        elements.iter_mut().enumerate().for_each(|(i, x)| *x = value(i as u64) as f32);
    }
    out
}

/// Like [`filled`], but for functions of the index alone; parallel for large shapes.
fn filled_by_index(shape: &[usize], value: impl Fn(u64) -> f64 + Sync) -> Literal {
    let mut out = Literal::zeros(TensorType::new(DType::F32, shape));
    let Ok(elements) = out.as_mut_slice::<f32>() else { return out };
    let threads = match elements.len() {
        0..PARALLEL_FROM => 1,
        _ => thread::available_parallelism().map_or(1, usize::from),
    };
    let chunk = elements.len().div_ceil(threads).max(1);
    let fill = |t: usize, part: &mut [f32]| {
        part.iter_mut().enumerate().for_each(|(i, x)| *x = value((t * chunk + i) as u64) as f32);
    };
    thread::scope(|scope| {
        for (t, part) in elements.chunks_mut(chunk).enumerate() {
            match threads {
                1 => fill(t, part),
                _ => drop(scope.spawn(move || fill(t, part))),
            }
        }
    });
    out
}

/// Minimum number of elements for parallel generation.
const PARALLEL_FROM: usize = 1 << 16;

/// Draws from a standard normal until the value is within ±limit.
fn normal_within(draws: &mut RandomStream, limit: f64) -> f64 {
    loop {
        let z = draws.normal();
        if z.abs() <= limit {
            return z;
        }
    }
}

/// Gram–Schmidt on a random normal matrix: uniform over orthonormal frames, like QR with a positive diagonal of R.
fn orthogonal(shape: &[usize], gain: f64, mut draws: RandomStream) -> Literal {
    let columns = shape.last().copied().unwrap_or(1);
    let rows: usize = shape.iter().rev().skip(1).product();
    let (long, short) = (rows.max(columns), rows.min(columns));
    let mut frame: Vec<Vec<f64>> = Vec::with_capacity(short);
    for _ in 0..short {
        let mut v: Vec<f64> = (0..long).map(|_| draws.normal()).collect();
        // Uses f64, so that the loss of orthogonality stays below f32 rounding.
        for q in &frame {
            let along: f64 = q.iter().zip(&v).map(|(a, b)| a * b).sum();
            v.iter_mut().zip(q).for_each(|(x, q)| *x -= along * q);
        }
        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
        v.iter_mut().for_each(|x| *x /= norm);
        frame.push(v);
    }
    filled(shape, |i| {
        let (row, column) = (i as usize / columns, i as usize % columns);
        gain * if rows >= columns { frame[column][row] } else { frame[row][column] }
    })
}

impl FromStr for Initializer {
    type Err = Error;

    /// Parses a name; initializers with parameters get Keras's defaults.
    fn from_str(name: &str) -> Result<Initializer> {
        Ok(match name {
            "glorot_uniform" => Initializer::GlorotUniform,
            "glorot_normal" => Initializer::GlorotNormal,
            "he_uniform" => Initializer::HeUniform,
            "he_normal" => Initializer::HeNormal,
            "lecun_uniform" => Initializer::LecunUniform,
            "lecun_normal" => Initializer::LecunNormal,
            "random_uniform" | "uniform" => Initializer::RandomUniform { minval: -0.05, maxval: 0.05 },
            "random_normal" | "normal" => Initializer::RandomNormal { mean: 0.0, stddev: 0.05 },
            "truncated_normal" => Initializer::TruncatedNormal { mean: 0.0, stddev: 0.05 },
            "zeros" => Initializer::Zeros,
            "ones" => Initializer::Ones,
            "constant" => Initializer::Constant { value: 0.0 },
            "orthogonal" => Initializer::Orthogonal { gain: 1.0 },
            _ => {
                return Err(unknown(&format!("unknown initializer `{name}`"), name, &NAMES));
            }
        })
    }
}
