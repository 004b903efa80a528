//! Learning-rate schedules: pure functions of the step, with Keras's names and formulas. They run on the host; the
//! rate is an input of the compiled step, so that changing it never recompiles.

use crate::nearest::with_reason;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::f64::consts::PI;
use systole_ir::{Error, ErrorKind, Result};

/// A learning rate for each step; the first step is step 0.
///
/// ```
/// use systole_nn::schedule::Schedule;
/// let rate = Schedule::step_decay(0.1, 1000, 0.5);
/// assert_eq!((rate.at(999), rate.at(1000)), (0.1, 0.05));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields)]
pub enum Schedule {
    /// The same for every step.
    Constant(f64),
    /// initial · rate^(step / decay_steps), the exponent rounded down when `staircase`.
    ExponentialDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps for one factor of `decay_rate`.
        decay_steps: u64,
        /// Factor.
        decay_rate: f64,
        /// Change only every `decay_steps` steps.
        #[serde(default)]
        staircase: bool,
    },
    /// Linear warm-up to `warmup_target` (when set), then half a cosine down to `alpha` of the top.
    CosineDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps of the cosine, warm-up not counted.
        decay_steps: u64,
        /// Final rate as a fraction of the top.
        #[serde(default)]
        alpha: f64,
        /// Rate at the end of the warm-up; none: no warm-up.
        #[serde(default)]
        warmup_target: Option<f64>,
        /// Steps of the warm-up.
        #[serde(default)]
        warmup_steps: u64,
    },
    /// `values[i]` up to and including step `boundaries[i]`, then the last value.
    PiecewiseConstantDecay {
        /// Last steps of all values but the last, ascending.
        boundaries: Vec<u64>,
        /// One more than boundaries.
        values: Vec<f64>,
    },
    /// (initial − end)·(1 − step / decay_steps)^power + end.
    PolynomialDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps until the end.
        decay_steps: u64,
        /// Final rate. Keras: 1e-4.
        end_learning_rate: f64,
        /// Exponent. Keras: 1, linear.
        power: f64,
        /// Beyond the end, start again with a longer period.
        #[serde(default)]
        cycle: bool,
    },
    /// initial / (1 + rate · step / decay_steps), the quotient rounded down when `staircase`.
    InverseTimeDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps for one unit of decay.
        decay_steps: u64,
        /// Decay for one unit.
        decay_rate: f64,
        /// Change only every `decay_steps` steps.
        #[serde(default)]
        staircase: bool,
    },
    /// A straight line to the first rate of another schedule, which then starts at its own step 0.
    LinearWarmup {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// What follows.
        then: Box<Schedule>,
    },
}

/// A schedule of a configuration as model files have it.
fn stored(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let rest = map.iter().filter(|(k, _)| *k != "type");
            let config: Map<String, Value> =
                rest.map(|(k, v)| (k.clone(), if k == "then" { stored(v) } else { v.clone() })).collect();
            json!({"class_name": map.get("type").cloned().unwrap_or(Value::Null), "config": config})
        }
        rate => json!({"class_name": "Constant", "config": rate}),
    }
}

impl From<f64> for Schedule {
    fn from(rate: f64) -> Schedule {
        Schedule::Constant(rate)
    }
}

impl Schedule {
    /// As configurations write it: a rate, or an object with `type` and the schedule's arguments.
    ///
    /// ```
    /// use serde_json::json;
    /// use systole_nn::schedule::Schedule;
    /// let cosine = json!({ "type": "CosineDecay", "initial_learning_rate": 0.1, "decay_steps": 10 });
    /// assert_eq!(Schedule::from_config(&cosine)?, Schedule::cosine_decay(0.1, 10));
    /// assert_eq!(Schedule::from_config(&json!(0.1))?, Schedule::Constant(0.1));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no such schedule (names the nearest), or an argument is missing, unknown or of the wrong type.
    pub fn from_config(value: &Value) -> Result<Schedule> {
        serde_json::from_value(stored(value)).map_err(|e| {
            let error = Error::new(ErrorKind::Config, format!("{value} is no learning rate and no schedule"));
            with_reason(error, &e.to_string())
        })
    }

    /// Multiplies the rate by `factor` every `every` steps (Keras: `ExponentialDecay` with `staircase`).
    pub fn step_decay(initial: f64, every: u64, factor: f64) -> Schedule {
        Schedule::ExponentialDecay {
            initial_learning_rate: initial,
            decay_steps: every,
            decay_rate: factor,
            staircase: true,
        }
    }

    /// Half a cosine from `initial` to 0 over `steps`.
    pub fn cosine_decay(initial: f64, steps: u64) -> Schedule {
        Schedule::CosineDecay {
            initial_learning_rate: initial,
            decay_steps: steps,
            alpha: 0.0,
            warmup_target: None,
            warmup_steps: 0,
        }
    }

    /// Puts a linear warm-up from 0 before this schedule.
    pub fn after_warmup(self, steps: u64) -> Schedule {
        Schedule::LinearWarmup { initial_learning_rate: 0.0, warmup_steps: steps, then: Box::new(self) }
    }

    /// The learning rate of a step.
    pub fn at(&self, step: u64) -> f64 {
        let units = |steps: u64, whole: bool| {
            let quotient = step as f64 / steps as f64;
            if whole { quotient.floor() } else { quotient }
        };
        match self {
            Schedule::Constant(rate) => *rate,
            Schedule::ExponentialDecay { initial_learning_rate, decay_steps, decay_rate, staircase } => {
                initial_learning_rate * decay_rate.powf(units(*decay_steps, *staircase))
            }
            Schedule::InverseTimeDecay { initial_learning_rate, decay_steps, decay_rate, staircase } => {
                initial_learning_rate / (1.0 + decay_rate * units(*decay_steps, *staircase))
            }
            Schedule::CosineDecay {
                initial_learning_rate,
                decay_steps,
                alpha,
                warmup_target,
                warmup_steps,
            } => match warmup_target {
                Some(top) if step < *warmup_steps => line(*initial_learning_rate, *top, step, *warmup_steps),
                Some(top) => cosine(*top, step - warmup_steps, *decay_steps, *alpha),
                None => cosine(*initial_learning_rate, step, *decay_steps, *alpha),
            },
            Schedule::PiecewiseConstantDecay { boundaries, values } => {
                let i = boundaries.iter().position(|b| step <= *b);
                let value = i.map_or(values.last(), |i| values.get(i));
                value.copied().unwrap_or(f64::NAN)
            }
            Schedule::PolynomialDecay {
                initial_learning_rate,
                decay_steps,
                end_learning_rate,
                power,
                cycle,
            } => {
                let periods = if *cycle { step.div_ceil((*decay_steps).max(1)).max(1) } else { 1 };
                let end = decay_steps.saturating_mul(periods);
                let left = 1.0 - step.min(end) as f64 / end as f64;
                (initial_learning_rate - end_learning_rate) * left.powf(*power) + end_learning_rate
            }
            Schedule::LinearWarmup { initial_learning_rate, warmup_steps, then } => {
                match step.checked_sub(*warmup_steps) {
                    Some(rest) => then.at(rest),
                    None => line(*initial_learning_rate, then.at(0), step, *warmup_steps),
                }
            }
        }
    }

    /// An error for a schedule that has no value at some step.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        match self {
            Schedule::ExponentialDecay { decay_steps: 0, .. }
            | Schedule::CosineDecay { decay_steps: 0, .. }
            | Schedule::PolynomialDecay { decay_steps: 0, .. }
            | Schedule::InverseTimeDecay { decay_steps: 0, .. } => {
                refuse("a learning-rate schedule has decay_steps 0", "set decay_steps to at least 1")
            }
            Schedule::PiecewiseConstantDecay { boundaries, values }
                if values.len() != boundaries.len() + 1 || !boundaries.is_sorted() =>
            {
                refuse(
                    &format!("{} boundaries and {} values make no schedule", boundaries.len(), values.len()),
                    "give ascending boundaries and one value more than boundaries",
                )
            }
            Schedule::LinearWarmup { then, .. } => then.check(),
            _ if !self.at(0).is_finite() => refuse("the learning rate is not finite", "set a finite rate"),
            _ => Ok(()),
        }
    }
}

fn line(from: f64, to: f64, step: u64, steps: u64) -> f64 {
    from + (to - from) * (step as f64 / steps as f64)
}

fn cosine(top: f64, step: u64, steps: u64, alpha: f64) -> f64 {
    let fraction = step.min(steps) as f64 / steps as f64;
    top * ((1.0 - alpha) * 0.5 * (1.0 + (PI * fraction).cos()) + alpha)
}
