//! [`Optimizer`]: what all optimizers have besides their rule: learning rate, decay, clipping, accumulation.

use super::rule::OptimizerKind;
use super::swa::Swa;
use crate::did_you_mean::with_reason;
use crate::optimizer::schedule::Schedule;
use crate::setters::{field_setters, setters};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::Location;
use systole_ir::{Error, ErrorKind, Result, Tensor};

/// An optimizer: its rule, learning rate, weight decay, clipping and gradient accumulation.
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
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// The rule.
    pub kind: OptimizerKind,
    /// Learning rate of each step.
    pub learning_rate: Schedule,
    /// Before each update, parameters shrink by this times the learning rate. All of them, as in Keras.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Parameters whose path contains one of these do not decay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude_from_weight_decay: Vec<String>,
    /// Greatest norm of each parameter's gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clipnorm: Option<f64>,
    /// Greatest size of each element of a gradient.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clipvalue: Option<f64>,
    /// Greatest norm of all gradients together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_clipnorm: Option<f64>,
    /// Parameters change every this many steps, by the mean of the gradients since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_accumulation_steps: Option<usize>,
    /// Keeps a running mean of each parameter over the steps; at the end of `fit` the means are the weights.
    #[serde(default, skip_serializing_if = "is_no")]
    pub use_ema: bool,
    /// How much of the mean stays in each step, with `use_ema`.
    #[serde(default = "ema_momentum", skip_serializing_if = "is_usual_ema")]
    pub ema_momentum: f64,
    /// Parameters become their means every this many steps, with `use_ema`; none: only at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_overwrite_frequency: Option<usize>,
    /// Momentum of each step (β₁ of Adam and its kin), in place of the rule's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub momentum_schedule: Option<Schedule>,
    /// Parameters return half of the way to where they were this many updates ago: Lookahead's k.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookahead_steps: Option<usize>,
    /// The part of the way that stays, with `lookahead_steps`.
    #[serde(default = "half", skip_serializing_if = "is_half")]
    pub lookahead_alpha: f64,
    /// Weights become the mean of those of the last epochs (stochastic weight averaging).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swa: Option<Swa>,
    /// The learning rate of layers by name, in parts of `learning_rate`: discriminative rates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lr_mult: BTreeMap<String, f64>,
    /// Optimizers of their own of layers by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub optimizer_map: BTreeMap<String, Optimizer>,
    /// Settings that the rule does not take.
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

/// Wrong settings, of which [`Optimizer::check`] tells the first.
#[derive(Clone, Debug, Default)]
pub(super) struct SettingErrors(Vec<Error>);

impl PartialEq for SettingErrors {
    fn eq(&self, other: &SettingErrors) -> bool {
        self.0.iter().map(Error::what).eq(other.0.iter().map(Error::what))
    }
}

/// What an update needs besides parameters, gradients and state. Inputs of the graph: changing them never recompiles.
#[derive(Clone, Debug)]
pub struct UpdateInputs {
    /// `f32[]`: [`Optimizer::learning_rate`] at this step; `f32[N]` where more changes from step to step:
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

/// Settings, to be chained. One that the rule does not have is remembered and surfaces from [`Optimizer::check`], which
/// models call when they are compiled.
///
/// ```
/// use systole_nn::optimizer::adam;
/// let e = adam(0.001).momentum(0.9).check().unwrap_err().to_string();
/// assert!(e.contains("adam has no argument `momentum`"), "{e}");
/// ```
impl Optimizer {
    /// An optimizer of this rule without decay, clipping and accumulation.
    pub(super) fn of(kind: OptimizerKind, learning_rate: impl Into<Schedule>) -> Optimizer {
        Optimizer {
            kind,
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

    /// β₁ and β₂ of Adam, AdamW or Lion.
    #[track_caller]
    pub fn betas(self, first: f64, second: f64) -> Self {
        self.set("beta_1", first.into()).set("beta_2", second.into())
    }

    /// Parameters whose path contains one of `parts` do not decay.
    pub fn exclude_from_weight_decay<S: Into<String>>(mut self, parts: impl IntoIterator<Item = S>) -> Self {
        self.exclude_from_weight_decay = parts.into_iter().map(Into::into).collect();
        self
    }

    /// Keeps running means of the parameters, of which `momentum` stays in each step: what they are at the end of `fit`.
    pub fn ema(mut self, momentum: f64) -> Self {
        (self.use_ema, self.ema_momentum) = (true, momentum);
        self
    }

    /// Lookahead (Zhang et al., 2019): every `steps` updates parameters return to where they were that many updates ago, but
    /// for the part `alpha` of the way. The paper's values: 5 and 0.5; fastai's: 6 and 0.5.
    pub fn lookahead(mut self, steps: usize, alpha: f64) -> Self {
        (self.lookahead_steps, self.lookahead_alpha) = (Some(steps), alpha);
        self
    }

    /// The layers whose path matches `pattern` learn at `part` of the learning rate.
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

    /// Learning rates that grow geometrically from the first group of layers, `1 / mult` of the rate, to the last, which has
    /// all of it: fastai's `slice(lr / mult, lr)`. Each group is a pattern of paths.
    pub fn discriminative(mut self, groups: &[&str], mult: f64) -> Self {
        let steps = groups.len().saturating_sub(1).max(1) as f64;
        for (i, group) in groups.iter().enumerate() {
            self.lr_mult.insert(group.to_string(), mult.powf(i as f64 / steps - 1.0));
        }
        self
    }

    /// The layers whose path matches `pattern` are changed by an optimizer of their own. Source: Keras's `OptimizerMap`.
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
        /// Decoupled weight decay.
        weight_decay(value: f64) => Some(value);
        /// Clips each parameter's gradient to this norm.
        clipnorm(value: f64) => Some(value);
        /// Clips each element of a gradient to ± this.
        clipvalue(value: f64) => Some(value);
        /// Clips all gradients together to this norm.
        global_clipnorm(value: f64) => Some(value);
        /// Changes parameters every `steps` steps, by the mean of the gradients since.
        gradient_accumulation_steps(steps: usize) => Some(steps);
        /// Momentum of each step, in place of the rule's own: fastai's `moms` are [`Schedule::momentum_cycle`].
        momentum_schedule(schedule: impl Into<Schedule>) => Some(schedule.into());
        /// Weights become the mean of those of the last epochs, at a learning rate of its own: see [`Swa`].
        swa(swa: Swa) => Some(swa);
        /// Parameters become their running means every `steps` steps too.
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

/// Arguments by name.
impl Optimizer {
    /// Replaces one argument of the rule, or remembers why that cannot be.
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

    /// With one argument replaced: the rule's own or one that all have, as configurations write them.
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
    /// When it has no such argument (names the nearest), or the argument not such a value.
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

/// The value of an argument that all optimizers have.
fn read<T: DeserializeOwned>(name: &str, key: &str, value: &Value) -> Result<T> {
    serde_json::from_value(value.clone()).map_err(|e| {
        let what = format!("{name}'s argument `{key}` cannot be {value}");
        with_reason(Error::new(ErrorKind::Config, what), &e.to_string())
    })
}

impl Optimizer {
    /// Keras's name of the rule.
    pub fn name(&self) -> &'static str {
        self.kind.rule().name()
    }

    /// An error where a setting makes no sense, or the rule does not have it.
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
            return refuse(format!("{} are all set", set.join(" and ")), "set at most one of them");
        }
        for (name, value) in clips {
            // Written so that NaN is refused too.
            if value.is_some_and(|v| !(v > 0.0 && v.is_finite())) {
                return refuse(format!("{name} is not above 0"), "leave it out to clip nothing");
            }
        }
        if self.gradient_accumulation_steps == Some(0) {
            return refuse("gradient_accumulation_steps is 0".into(), "leave it out to update at every step");
        }
        if self.ema_overwrite_frequency == Some(0) {
            return refuse(
                "ema_overwrite_frequency is 0".into(),
                "leave it out to take the means at the end only",
            );
        }
        let own = [("ema_momentum", self.ema_momentum), ("lookahead_alpha", self.lookahead_alpha)];
        for (name, value) in self.kind.rule().fractions().into_iter().chain(own) {
            if !(0.0..=1.0).contains(&value) {
                return refuse(format!("{name} is {value}"), "choose a value between 0 and 1");
            }
        }
        self.check_averages()?;
        self.check_groups()?;
        self.check_momentum()?;
        self.learning_rate.check()
    }
}
