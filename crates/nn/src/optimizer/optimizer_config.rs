//! [`Optimizer`]: settings common to all optimizers: learning rate, weight decay, clipping, gradient accumulation.

use super::rule::{ErasedOptimizerRule, OptimizerKind};
use super::swa::Swa;
use crate::did_you_mean::with_reason;
use crate::json::{Deserialize, Serialize};
use crate::optimizer::schedule::Schedule;
use crate::setters::{field_setters, setters};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::Location;
use systole_ir::{Error, ErrorKind, Result, Tensor, err};

/// An optimizer: its update rule, learning rate, weight decay, clipping and gradient accumulation.
///
/// ```
/// use systole_nn::optimizer::{sgd, UpdateInputs};
/// use systole_ir::{DType::{F32, I64}, Literal, Tensor};
/// use systole_runtime::{jit, Buffer, Params};
/// let optimizer = sgd(0.5).momentum(0.9);
/// let mut params: Params<Buffer> = Params::new();
/// params.insert("w", Buffer::from(Literal::from_slice([2], &[1f32, 2.]).unwrap()));
/// let state = optimizer.init(&params).unwrap();
/// let step = jit(|(params, state, learning_rate, step): (Params, Params, Tensor, Tensor)| {
///     let grads = params.map(|_, p| p * 2.0); // of Σ p²
///     optimizer.update(&UpdateInputs { learning_rate, step }, &params, &grads, &state)
/// });
/// let inputs = (params, state, Buffer::scalar(F32, optimizer.learning_rate.at(0)), Buffer::scalar(I64, 0.0));
/// let (params, _state) = step.call(inputs).unwrap();
/// assert_eq!(params["w"].to_literal().unwrap().to_f32s(), [0.0, 0.0]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, skip_serializing_none)]
pub struct Optimizer {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Learning rate of each step.
    pub learning_rate: Schedule,
    /// Decoupled weight decay: before each update, all parameters shrink by this times the learning rate, as in Keras.
    pub weight_decay: Option<f64>,
    /// Parameters whose path contains one of these strings are not decayed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_from_weight_decay: Vec<String>,
    /// Maximum norm of each parameter's gradient.
    pub clipnorm: Option<f64>,
    /// Maximum magnitude of each gradient element.
    pub clipvalue: Option<f64>,
    /// Maximum norm of all gradients together.
    pub global_clipnorm: Option<f64>,
    /// Parameters are updated every this many steps, by the mean of the gradients since the last update.
    pub gradient_accumulation_steps: Option<usize>,
    /// Whether to keep an exponential moving average (EMA) of each parameter; at the end of `fit` it replaces the
    /// weights.
    #[serde(default, skip_serializing_if = "is_no")]
    pub use_ema: bool,
    /// EMA decay per step, with `use_ema`.
    #[serde(default = "ema_momentum", skip_serializing_if = "is_usual_ema")]
    pub ema_momentum: f64,
    /// Replaces parameters with their EMA every this many steps, with `use_ema`. `None`: only at the end.
    pub ema_overwrite_frequency: Option<usize>,
    /// Momentum of each step (β₁ of Adam and its variants), in place of the rule's own.
    pub momentum_schedule: Option<Schedule>,
    /// Lookahead's k: every this many updates, parameters move part of the way back to their earlier values.
    pub lookahead_steps: Option<usize>,
    /// Lookahead's α, the fraction of the change that is kept, with `lookahead_steps`.
    #[serde(default = "half", skip_serializing_if = "is_half")]
    pub lookahead_alpha: f64,
    /// Stochastic weight averaging: weights become the mean over the last epochs.
    pub swa: Option<Swa>,
    /// Learning-rate factors by layer name or pattern: discriminative rates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lr_mult: BTreeMap<String, f64>,
    /// Other optimizers for some layers, by layer name or pattern.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub optimizer_map: BTreeMap<String, Optimizer>,
    /// Settings that the rule does not support.
    #[serde(skip)]
    pub(super) mistakes: SettingErrors,
}

fn half() -> f64 {
    0.5
}

fn is_half(value: &f64) -> bool {
    *value == half()
}

fn is_no(value: &bool) -> bool {
    !value
}

fn ema_momentum() -> f64 {
    0.99
}

fn is_usual_ema(value: &f64) -> bool {
    *value == ema_momentum()
}

/// Invalid settings; [`Optimizer::check`] reports the first.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingErrors(Vec<Error>);

impl PartialEq for SettingErrors {
    fn eq(&self, other: &SettingErrors) -> bool {
        self.0.iter().map(Error::what).eq(other.0.iter().map(Error::what))
    }
}

/// Inputs of an optimizer update besides parameters, gradients and state. They are inputs of the graph, so changing
/// them never recompiles.
#[derive(Clone, Debug)]
pub struct UpdateInputs {
    /// `f32[]`: [`Optimizer::learning_rate`] at this step; `f32[N]` if more values change from step to step:
    /// [`Optimizer::values_at`].
    pub learning_rate: Tensor,
    /// `i64[]`: number of earlier steps; with gradient accumulation each micro-batch is a step.
    pub step: Tensor,
}

setters!(Optimizer:
    /// Momentum of SGD or RMSprop.
    momentum: f64 as f64;
    /// ε of Adam, AdamW or RMSprop.
    epsilon: f64 as f64;
);

/// Chainable settings. A setting that the rule does not have is remembered; [`Optimizer::check`], which models call
/// when they are compiled, reports it.
///
/// ```
/// use systole_nn::optimizer::adam;
/// let e = adam(0.001).momentum(0.9).check().unwrap_err().to_string();
/// assert!(e.contains("adam has no argument `momentum`"), "{e}");
/// ```
impl Optimizer {
    /// Creates an optimizer with this rule, without decay, clipping or accumulation.
    pub(super) fn of(
        rule: impl ErasedOptimizerRule + 'static,
        learning_rate: impl Into<Schedule>,
    ) -> Optimizer {
        Optimizer {
            kind: OptimizerKind::of(rule),
            learning_rate: learning_rate.into(),
            weight_decay: None,
            exclude_from_weight_decay: Vec::new(),
            clipnorm: None,
            clipvalue: None,
            global_clipnorm: None,
            gradient_accumulation_steps: None,
            use_ema: false,
            ema_momentum: ema_momentum(),
            ema_overwrite_frequency: None,
            momentum_schedule: None,
            lookahead_steps: None,
            lookahead_alpha: half(),
            swa: None,
            lr_mult: BTreeMap::new(),
            optimizer_map: BTreeMap::new(),
            mistakes: SettingErrors::default(),
        }
    }

    /// Sets β₁ and β₂ of Adam, AdamW or Lion.
    #[track_caller]
    pub fn betas(self, first: f64, second: f64) -> Self {
        self.set("beta_1", first.into()).set("beta_2", second.into())
    }

    /// Excludes parameters whose path contains one of `parts` from weight decay.
    pub fn exclude_from_weight_decay<S: Into<String>>(mut self, parts: impl IntoIterator<Item = S>) -> Self {
        self.exclude_from_weight_decay = parts.into_iter().map(Into::into).collect();
        self
    }

    /// Keeps an exponential moving average of the parameters with decay `momentum`; it replaces the weights at the end
    /// of `fit`.
    pub fn ema(mut self, momentum: f64) -> Self {
        (self.use_ema, self.ema_momentum) = (true, momentum);
        self
    }

    /// Lookahead (Zhang et al., 2019): every `steps` updates, parameters go back to their earlier values plus `alpha`
    /// times the change since. The paper's values: 5 and 0.5; fastai's: 6 and 0.5.
    pub fn lookahead(mut self, steps: usize, alpha: f64) -> Self {
        (self.lookahead_steps, self.lookahead_alpha) = (Some(steps), alpha);
        self
    }

    /// Multiplies the learning rate by `part` for layers whose path matches `pattern`.
    ///
    /// ```
    /// use systole_nn::optimizer::adam;
    /// let slow_body = adam(1e-3).lr_mult("conv*", 0.01).lr_mult("embedding", 0.1);
    /// assert!(slow_body.check().is_ok());
    /// ```
    pub fn lr_mult(mut self, pattern: &str, part: f64) -> Self {
        self.lr_mult.insert(pattern.into(), part);
        self
    }

    /// Discriminative learning rates: grow geometrically from `1 / mult` of the rate for the first group of layers to
    /// the full rate for the last, as fastai's `slice(lr / mult, lr)`. Each group is a path pattern.
    pub fn discriminative(mut self, groups: &[&str], mult: f64) -> Self {
        let steps = groups.len().saturating_sub(1).max(1) as f64;
        for (i, group) in groups.iter().enumerate() {
            self.lr_mult.insert(group.to_string(), mult.powf(i as f64 / steps - 1.0));
        }
        self
    }

    /// Uses another optimizer for the layers whose path matches `pattern`. Source: Keras's `OptimizerMap`.
    ///
    /// ```
    /// use systole_nn::optimizer::{adagrad, adam};
    /// let mixed = adam(1e-3).map_optimizer("embedding*", adagrad(0.01));
    /// assert!(mixed.check().is_ok());
    /// ```
    pub fn map_optimizer(mut self, pattern: &str, optimizer: Optimizer) -> Self {
        self.optimizer_map.insert(pattern.into(), optimizer);
        self
    }
}

field_setters! {
    impl Optimizer {
        /// Sets decoupled weight decay.
        weight_decay(value: f64) => Some(value);
        /// Clips each parameter's gradient to this norm.
        clipnorm(value: f64) => Some(value);
        /// Clips each element of a gradient to ± this.
        clipvalue(value: f64) => Some(value);
        /// Clips all gradients together to this norm.
        global_clipnorm(value: f64) => Some(value);
        /// Updates parameters every `steps` steps, by the mean of the gradients since.
        gradient_accumulation_steps(steps: usize) => Some(steps);
        /// Schedules the momentum, in place of the rule's own: fastai's `moms` are [`Schedule::momentum_cycle`].
        momentum_schedule(schedule: impl Into<Schedule>) => Some(schedule.into());
        /// Averages the weights of the last epochs, with a separate learning rate: see [`Swa`].
        swa(swa: Swa) => Some(swa);
        /// Also replaces parameters with their EMA every `steps` steps.
        ema_overwrite_frequency(steps: usize) => Some(steps);
    }
}

/// Arguments that every optimizer has.
const COMMON: [&str; 16] = [
    "learning_rate",
    "weight_decay",
    "exclude_from_weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "momentum_schedule",
    "lookahead_steps",
    "lookahead_alpha",
    "swa",
    "lr_mult",
    "optimizer_map",
];

/// Access to arguments by name.
impl Optimizer {
    /// Replaces one argument of the rule; an error is remembered for [`Optimizer::check`].
    #[track_caller]
    pub(crate) fn set(mut self, key: &str, value: Value) -> Optimizer {
        match self.kind.with(key, value, &COMMON) {
            Ok(kind) => self.kind = kind,
            Err(e) => {
                let caller = Location::caller();
                self.mistakes.0.push(e.at(format!("{}:{}", caller.file(), caller.line())));
            }
        }
        self
    }

    /// Replaces one optimizer argument, written as in configurations: the update rule's own or one that all optimizers
    /// have.
    ///
    /// ```
    /// use serde_json::json;
    /// use systole_nn::optimizer::{sgd, Optimizer};
    /// let optimizer: Optimizer = sgd(0.1).with("momentum", &json!(0.9))?.with("clipnorm", &json!(1))?;
    /// assert_eq!(optimizer, sgd(0.1).momentum(0.9).clipnorm(1.0));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such argument (suggests the nearest), or the value is invalid for it.
    pub fn with(mut self, key: &str, value: &Value) -> Result<Optimizer> {
        let name = self.name();
        match key {
            "learning_rate" => self.learning_rate = Schedule::from_config(value)?,
            "weight_decay" => self.weight_decay = read(name, key, value)?,
            "exclude_from_weight_decay" => self.exclude_from_weight_decay = read(name, key, value)?,
            "clipnorm" => self.clipnorm = read(name, key, value)?,
            "clipvalue" => self.clipvalue = read(name, key, value)?,
            "global_clipnorm" => self.global_clipnorm = read(name, key, value)?,
            "gradient_accumulation_steps" => self.gradient_accumulation_steps = read(name, key, value)?,
            "use_ema" => self.use_ema = read(name, key, value)?,
            "ema_momentum" => self.ema_momentum = read(name, key, value)?,
            "ema_overwrite_frequency" => self.ema_overwrite_frequency = read(name, key, value)?,
            "momentum_schedule" => self.momentum_schedule = Some(Schedule::from_config(value)?),
            "lookahead_steps" => self.lookahead_steps = read(name, key, value)?,
            "lookahead_alpha" => self.lookahead_alpha = read(name, key, value)?,
            "swa" => self.swa = Some(read(name, key, value)?),
            "lr_mult" => self.lr_mult = read(name, key, value)?,
            "optimizer_map" => self.optimizer_map = Optimizer::map_from_config(value)?,
            _ => self.kind = self.kind.with(key, value.clone(), &COMMON)?,
        }
        Ok(self)
    }
}

/// Parses the value of an argument that all optimizers have.
fn read<T: DeserializeOwned>(name: &str, key: &str, value: &Value) -> Result<T> {
    serde_json::from_value(value.clone()).map_err(|e| {
        with_reason(err!(Config, "invalid value for {name}'s argument `{key}`: {value}"), &e.to_string())
    })
}

impl Optimizer {
    /// Returns the update rule's name in configurations, such as `adam`.
    pub fn name(&self) -> &'static str {
        self.kind.rule().name()
    }

    /// Returns an error for optimizer settings that are invalid or that the update rule does not have.
    pub fn check(&self) -> Result<()> {
        if let Some(mistake) = self.mistakes.0.first() {
            return Err(mistake.clone());
        }
        let refuse = |what: String, hint: &str| {
            Err(Error::new(ErrorKind::Config, what).at(format!("optimizer {}", self.name())).hint(hint))
        };
        let clips = [
            ("clipnorm", self.clipnorm),
            ("clipvalue", self.clipvalue),
            ("global_clipnorm", self.global_clipnorm),
        ];
        let set: Vec<&str> = clips.iter().filter(|(_, v)| v.is_some()).map(|(n, _)| *n).collect();
        if set.len() > 1 {
            return refuse(
                format!("{} are mutually exclusive", set.join(" and ")),
                "set at most one of them",
            );
        }
        for (name, value) in clips {
            // Written so that NaN is rejected too.
            if value.is_some_and(|v| !(v > 0.0 && v.is_finite())) {
                return refuse(format!("{name} is not above 0"), "omit it to disable clipping");
            }
        }
        if self.gradient_accumulation_steps == Some(0) {
            return refuse("gradient_accumulation_steps is 0".into(), "omit it to update at every step");
        }
        if self.ema_overwrite_frequency == Some(0) {
            return refuse(
                "ema_overwrite_frequency is 0".into(),
                "omit it to apply the averages only at the end",
            );
        }
        let own = [("ema_momentum", self.ema_momentum), ("lookahead_alpha", self.lookahead_alpha)];
        for (name, value) in self.kind.rule().fractions().into_iter().chain(own) {
            if !(0.0..=1.0).contains(&value) {
                return refuse(
                    format!("{name} is {value}, expected a value between 0 and 1"),
                    "choose a value between 0 and 1",
                );
            }
        }
        self.check_averages()?;
        self.check_groups()?;
        self.check_momentum()?;
        self.learning_rate.check()
    }
}
