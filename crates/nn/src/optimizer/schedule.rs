//! Learning-rate schedules: pure functions of the step, with Keras's names and formulas.
//!
//! They run on the host; the rate is an input of the compiled step, so changing it never recompiles.

use crate::did_you_mean::with_reason;
use crate::json::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::f64::consts::PI;
use systole_ir::{Error, ErrorKind, Result, err};

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
    /// Constant rate.
    Constant(f64),
    /// initial · rate^(step / decay_steps), the exponent rounded down with `staircase`.
    ExponentialDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps per factor of `decay_rate`.
        decay_steps: u64,
        /// Factor applied every `decay_steps` steps.
        decay_rate: f64,
        /// Whether the rate changes only every `decay_steps` steps.
        #[serde(default)]
        staircase: bool,
    },
    /// Linear warm-up to `warmup_target` (if set), then half a cosine down to `alpha` of the top.
    CosineDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps of the cosine, excluding the warm-up.
        decay_steps: u64,
        /// Final rate as a fraction of the top.
        #[serde(default)]
        alpha: f64,
        /// Rate at the end of the warm-up. `None`: no warm-up.
        #[serde(default)]
        warmup_target: Option<f64>,
        /// Steps of the warm-up.
        #[serde(default)]
        warmup_steps: u64,
    },
    /// `values[i]` up to and including step `boundaries[i]`, then the last value.
    PiecewiseConstantDecay {
        /// Last step of each value but the last, ascending.
        boundaries: Vec<u64>,
        /// Rates; one more than `boundaries`.
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
        /// Whether the schedule restarts with a longer period after its end.
        #[serde(default)]
        cycle: bool,
    },
    /// initial / (1 + rate · step / decay_steps), the quotient rounded down with `staircase`.
    InverseTimeDecay {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps per unit of decay.
        decay_steps: u64,
        /// Decay per unit.
        decay_rate: f64,
        /// Whether the rate changes only every `decay_steps` steps.
        #[serde(default)]
        staircase: bool,
    },
    /// Cosine decays from the top to `alpha` of it with warm restarts, each `t_mul` times as long and `m_mul` times as
    /// high as the one before. fastai's `fit_sgdr`, whose `cycle_mult` is `t_mul`.
    CosineDecayRestarts {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps of the first cosine.
        first_decay_steps: u64,
        /// Length of each cosine relative to the previous one. Keras: 2.
        #[serde(default = 2.0)]
        t_mul: f64,
        /// Height of each cosine relative to the previous one. Keras: 1.
        #[serde(default = 1.0)]
        m_mul: f64,
        /// Lowest rate as a fraction of the first.
        #[serde(default)]
        alpha: f64,
    },
    /// One-cycle policy: half a cosine up from `max_learning_rate / div` over the first `pct_start` of the steps, then
    /// half a cosine down to `max_learning_rate / div_final`. Source: fastai's `fit_one_cycle`.
    OneCycle {
        /// Highest rate.
        max_learning_rate: f64,
        /// Steps of the cycle; 0: all steps of the run, filled in by `fit`.
        #[serde(default)]
        total_steps: u64,
        /// First step of the cycle, filled in by `fit`.
        #[serde(default)]
        begin: u64,
        /// Fraction of the steps with rising rate.
        #[serde(default = 0.25)]
        pct_start: f64,
        /// Highest rate divided by the first.
        #[serde(default = 25.0)]
        div: f64,
        /// Highest rate divided by the last.
        #[serde(default = 1e5)]
        div_final: f64,
    },
    /// Momentum of a one-cycle run, opposite to its learning rate: half a cosine from `moms[0]` to `moms[1]` over the
    /// first `pct_start` of the steps, then half a cosine to `moms[2]`. Source: fastai's `fit_one_cycle`.
    OneCycleMomentum {
        /// First, middle and last momentum.
        #[serde(default = "usual_moms")]
        moms: [f64; 3],
        /// Steps of the cycle; 0: all steps of the run, filled in by `fit`.
        #[serde(default)]
        total_steps: u64,
        /// First step of the cycle, filled in by `fit`.
        #[serde(default)]
        begin: u64,
        /// Fraction of the steps until the middle value.
        #[serde(default = 0.25)]
        pct_start: f64,
    },
    /// Constant rate for the first `pct_start` of the steps, then half a cosine down to 0. Source: fastai's
    /// `fit_flat_cos`.
    FlatCosine {
        /// Initial rate.
        learning_rate: f64,
        /// Total steps; 0: all steps of the run, filled in by `fit`.
        #[serde(default)]
        total_steps: u64,
        /// First step of the schedule, filled in by `fit`.
        #[serde(default)]
        begin: u64,
        /// Fraction of the steps before the decay.
        #[serde(default = 0.75)]
        pct_start: f64,
    },
    /// Linear warm-up to the first rate of another schedule, which then starts at its own step 0.
    LinearWarmup {
        /// Rate at step 0.
        initial_learning_rate: f64,
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// Schedule after the warm-up.
        then: Box<Schedule>,
    },
}

fn usual_moms() -> [f64; 3] {
    [0.95, 0.85, 0.95]
}

/// Converts a schedule of a configuration to the form stored in model files.
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
    /// Reads a learning-rate schedule as configurations write it: a rate, or an object with `type` and the schedule's
    /// arguments.
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
    /// If the schedule is unknown (suggests the nearest), or an argument is missing, unknown or of the wrong type.
    pub fn from_config(value: &Value) -> Result<Schedule> {
        serde_json::from_value(stored(value)).map_err(|e| {
            let error = err!(Config, "expected a learning rate or a schedule, got {value}");
            with_reason(error, &e.to_string())
        })
    }

    /// Creates a schedule that multiplies the rate by `factor` every `every` steps (Keras: `ExponentialDecay` with
    /// `staircase`).
    pub fn step_decay(initial: f64, every: u64, factor: f64) -> Schedule {
        Schedule::ExponentialDecay {
            initial_learning_rate: initial,
            decay_steps: every,
            decay_rate: factor,
            staircase: true,
        }
    }

    /// Creates a schedule that decays along half a cosine from `initial` to 0 over `steps`.
    pub fn cosine_decay(initial: f64, steps: u64) -> Schedule {
        Schedule::CosineDecay {
            initial_learning_rate: initial,
            decay_steps: steps,
            alpha: 0.0,
            warmup_target: None,
            warmup_steps: 0,
        }
    }

    /// One-cycle policy: rises to `highest` over a quarter of the run and falls again, with fastai's divisors.
    ///
    /// ```
    /// use systole_nn::{optimizer::adam, schedule::Schedule};
    /// let cycle = Schedule::one_cycle(0.01).over(100);
    /// assert_eq!((cycle.at(0), cycle.at(25)), (0.01 / 25.0, 0.01));
    /// assert!(cycle.at(100) <= 1.001e-7);
    /// let _ = adam(Schedule::one_cycle(0.01)); // over all steps of `fit`
    /// ```
    pub fn one_cycle(highest: f64) -> Schedule {
        Schedule::OneCycle {
            max_learning_rate: highest,
            total_steps: 0,
            begin: 0,
            pct_start: 0.25,
            div: 25.0,
            div_final: 1e5,
        }
    }

    /// One-cycle momentum: goes from the first of `moms` to the second while the rate of [`Schedule::one_cycle`] rises,
    /// and to the third while it falls. fastai's default: 0.95, 0.85, 0.95.
    pub fn momentum_cycle(moms: [f64; 3]) -> Schedule {
        Schedule::OneCycleMomentum { moms, total_steps: 0, begin: 0, pct_start: 0.25 }
    }

    /// Creates a schedule with constant `rate` for three quarters of the run, then half a cosine to 0: fastai's
    /// `fit_flat_cos`.
    pub fn flat_cosine(rate: f64) -> Schedule {
        Schedule::FlatCosine { learning_rate: rate, total_steps: 0, begin: 0, pct_start: 0.75 }
    }

    /// Sets the schedule's total number of steps, if it has one.
    pub fn over(mut self, steps: u64) -> Schedule {
        if let Some((total_steps, _)) = self.of_all_steps() {
            *total_steps = steps;
        }
        self
    }

    /// Returns the total steps and the first step of a schedule that has them.
    fn of_all_steps(&mut self) -> Option<(&mut u64, &mut u64)> {
        match self {
            Schedule::OneCycle { total_steps, begin, .. }
            | Schedule::OneCycleMomentum { total_steps, begin, .. }
            | Schedule::FlatCosine { total_steps, begin, .. } => Some((total_steps, begin)),
            _ => None,
        }
    }

    /// Returns the total steps of a schedule that has them.
    pub(crate) fn total_steps(&mut self) -> Option<u64> {
        self.of_all_steps().map(|(total, _)| *total)
    }

    /// Whether the schedule spans the whole run, whatever the run's number of steps.
    pub fn is_of_the_run(&self) -> bool {
        match self {
            Schedule::OneCycle { total_steps, .. }
            | Schedule::OneCycleMomentum { total_steps, .. }
            | Schedule::FlatCosine { total_steps, .. } => *total_steps == 0,
            Schedule::LinearWarmup { then, .. } => then.is_of_the_run(),
            _ => false,
        }
    }

    /// Sets the length of a schedule that spans the whole run: `steps` steps from step `from`.
    pub(crate) fn settle(&mut self, from: u64, steps: u64) {
        if let Schedule::LinearWarmup { warmup_steps, then, .. } = self {
            let left = warmup_steps.saturating_sub(from);
            then.settle(from.saturating_sub(*warmup_steps), steps.saturating_sub(left).max(1));
        }
        if let Some((total_steps, begin)) = self.of_all_steps().filter(|(total, _)| **total == 0) {
            (*total_steps, *begin) = (steps, from);
        }
    }

    /// Copies the length of `planned`, the same schedule resolved for another number of steps. Returns both
    /// lengths, before and after, if they differ.
    pub(crate) fn take_length(&mut self, planned: &Schedule) -> Option<(u64, u64)> {
        if let (Schedule::LinearWarmup { then, .. }, Schedule::LinearWarmup { then: planned, .. }) =
            (&mut *self, planned)
        {
            return then.take_length(planned);
        }
        if std::mem::discriminant(self) != std::mem::discriminant(planned) {
            return None;
        }
        let (mut planned, (total, _)) = (planned.clone(), self.of_all_steps()?);
        let (before, after) = (*total, planned.total_steps().filter(|n| *n > 0 && *n != *total)?);
        *total = after;
        Some((before, after))
    }

    /// Adds a linear warm-up from 0 before this schedule.
    pub fn after_warmup(self, steps: u64) -> Schedule {
        Schedule::LinearWarmup { initial_learning_rate: 0.0, warmup_steps: steps, then: Box::new(self) }
    }

    /// Returns the schedule's learning rate at a step.
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
            _ => self.of_cosines(step),
        }
    }

    /// Returns the rate of schedules that consist of several cosines.
    fn of_cosines(&self, step: u64) -> f64 {
        match self {
            Schedule::CosineDecayRestarts {
                initial_learning_rate,
                first_decay_steps,
                t_mul,
                m_mul,
                alpha,
            } => {
                let (part, height) = restarted(step, *first_decay_steps, *t_mul, *m_mul);
                let decayed = 0.5 * height * (1.0 + (PI * part).cos());
                initial_learning_rate * ((1.0 - alpha) * decayed + alpha)
            }
            Schedule::OneCycle { max_learning_rate: top, total_steps, begin, pct_start, div, div_final } => {
                match share(step, *begin, *total_steps) {
                    part if part < *pct_start => between(top / div, *top, part / pct_start),
                    part => between(*top, top / div_final, (part - pct_start) / (1.0 - pct_start)),
                }
            }
            Schedule::OneCycleMomentum { moms: [first, middle, last], total_steps, begin, pct_start } => {
                match share(step, *begin, *total_steps) {
                    part if part < *pct_start => between(*first, *middle, part / pct_start),
                    part => between(*middle, *last, (part - pct_start) / (1.0 - pct_start)),
                }
            }
            Schedule::FlatCosine { learning_rate, total_steps, begin, pct_start } => {
                match share(step, *begin, *total_steps) {
                    part if part < *pct_start => *learning_rate,
                    part => between(*learning_rate, 0.0, (part - pct_start) / (1.0 - pct_start)),
                }
            }
            _ => f64::NAN,
        }
    }

    /// Returns an error if the learning-rate schedule is undefined at some step.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        match self {
            Schedule::ExponentialDecay { decay_steps: 0, .. }
            | Schedule::CosineDecay { decay_steps: 0, .. }
            | Schedule::PolynomialDecay { decay_steps: 0, .. }
            | Schedule::InverseTimeDecay { decay_steps: 0, .. } => {
                refuse("a learning-rate schedule has decay_steps 0", "set decay_steps to at least 1")
            }
            Schedule::CosineDecayRestarts { first_decay_steps, t_mul, .. }
                if *first_decay_steps == 0 || !(*t_mul > 0.0 && t_mul.is_finite()) =>
            {
                refuse("a learning-rate schedule never restarts", "set first_decay_steps and t_mul above 0")
            }
            Schedule::OneCycle { pct_start, .. }
            | Schedule::OneCycleMomentum { pct_start, .. }
            | Schedule::FlatCosine { pct_start, .. }
                if !(0.0..1.0).contains(pct_start) =>
            {
                refuse(
                    &format!("pct_start is {pct_start}"),
                    "give a fraction of the steps: at least 0, below 1",
                )
            }
            Schedule::OneCycleMomentum { moms, .. } if moms.iter().any(|m| !(0.0..1.0).contains(m)) => {
                refuse(
                    &format!("moms are {moms:?}"),
                    "give three values of at least 0 and below 1, such as 0.95, 0.85, 0.95",
                )
            }
            Schedule::PiecewiseConstantDecay { boundaries, values }
                if values.len() != boundaries.len() + 1 || !boundaries.is_sorted() =>
            {
                refuse(
                    &format!("the schedule has {} boundaries and {} values", boundaries.len(), values.len()),
                    "give ascending boundaries, and one value more than boundaries",
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

/// Returns the fraction of a run of `steps` from `begin` that is complete at `step`.
fn share(step: u64, begin: u64, steps: u64) -> f64 {
    (step.saturating_sub(begin) as f64 / steps.max(1) as f64).min(if steps == 0 { 0.0 } else { 1.0 })
}

/// Interpolates between two rates along half a cosine. Source: fastai's `SchedCos`.
fn between(from: f64, to: f64, part: f64) -> f64 {
    from + (1.0 + (PI * (1.0 - part)).cos()) * (to - from) / 2.0
}

/// Returns the relative position of `step` in its cosine, and that cosine's relative height.
fn restarted(step: u64, first: u64, t_mul: f64, m_mul: f64) -> (f64, f64) {
    let done = step as f64 / first as f64;
    let (whole, left) = if t_mul == 1.0 {
        (done.floor(), done.fract())
    } else {
        // A series of shrinking cosines has a finite length; after it the last cosine stays.
        let whole = ((1.0 - done * (1.0 - t_mul)).max(f64::MIN_POSITIVE).ln() / t_mul.ln()).floor();
        let before = (1.0 - t_mul.powf(whole)) / (1.0 - t_mul);
        (whole, ((done - before) / t_mul.powf(whole)).clamp(0.0, 1.0))
    };
    (left, m_mul.powf(whole))
}

fn cosine(top: f64, step: u64, steps: u64, alpha: f64) -> f64 {
    let fraction = step.min(steps) as f64 / steps as f64;
    top * ((1.0 - alpha) * 0.5 * (1.0 + (PI * fraction).cos()) + alpha)
}
