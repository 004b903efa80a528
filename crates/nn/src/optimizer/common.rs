//! [`Optimizer`]: what all optimizers have besides their rule: learning rate, decay, clipping, accumulation.

use super::rule::{OptimizerKind, Slots, Start, key, slot};
use crate::nearest::with_reason;
use crate::schedule::Schedule;
use crate::setters::setters;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::panic::Location;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Scalar, Tensor, TensorType};
use systole_runtime::{Buffer, Params};

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
    /// Settings that the rule does not take.
    #[serde(skip)]
    mistakes: Mistakes,
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
struct Mistakes(Vec<Error>);

impl PartialEq for Mistakes {
    fn eq(&self, other: &Mistakes) -> bool {
        self.0.iter().map(Error::what).eq(other.0.iter().map(Error::what))
    }
}

/// What an update needs besides parameters, gradients and state. Inputs of the graph: changing them never recompiles.
#[derive(Clone, Debug)]
pub struct UpdateInputs {
    /// `f32[]`: [`Optimizer::learning_rate`] at this step.
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
            mistakes: Mistakes::default(),
        }
    }

    /// β₁ and β₂ of Adam, AdamW or Lion.
    #[track_caller]
    pub fn betas(self, first: f64, second: f64) -> Self {
        self.set("beta_1", first.into()).set("beta_2", second.into())
    }

    /// Decoupled weight decay.
    pub fn weight_decay(mut self, value: f64) -> Self {
        self.weight_decay = Some(value);
        self
    }

    /// Parameters whose path contains one of `parts` do not decay.
    pub fn exclude_from_weight_decay<S: Into<String>>(mut self, parts: impl IntoIterator<Item = S>) -> Self {
        self.exclude_from_weight_decay = parts.into_iter().map(Into::into).collect();
        self
    }

    /// Clips each parameter's gradient to this norm.
    pub fn clipnorm(mut self, value: f64) -> Self {
        self.clipnorm = Some(value);
        self
    }

    /// Clips each element of a gradient to ± this.
    pub fn clipvalue(mut self, value: f64) -> Self {
        self.clipvalue = Some(value);
        self
    }

    /// Clips all gradients together to this norm.
    pub fn global_clipnorm(mut self, value: f64) -> Self {
        self.global_clipnorm = Some(value);
        self
    }

    /// Changes parameters every `steps` steps, by the mean of the gradients since.
    pub fn gradient_accumulation_steps(mut self, steps: usize) -> Self {
        self.gradient_accumulation_steps = Some(steps);
        self
    }

    /// Keeps running means of the parameters, of which `momentum` stays in each step: what they are at the end of `fit`.
    pub fn ema(mut self, momentum: f64) -> Self {
        (self.use_ema, self.ema_momentum) = (true, momentum);
        self
    }

    /// Parameters become their running means every `steps` steps too.
    pub fn ema_overwrite_frequency(mut self, steps: usize) -> Self {
        self.ema_overwrite_frequency = Some(steps);
        self
    }
}

/// Arguments that every optimizer has.
const COMMON: [&str; 10] = [
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

/// State and updates.
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
        for (name, value) in
            self.kind.rule().fractions().into_iter().chain([("ema_momentum", self.ema_momentum)])
        {
            if !(0.0..=1.0).contains(&value) {
                return refuse(format!("{name} is {value}"), "choose a value between 0 and 1");
            }
        }
        self.learning_rate.check()
    }

    /// Steps between updates, where there is more than one.
    fn accumulation(&self) -> Option<usize> {
        self.gradient_accumulation_steps.filter(|&k| k > 1)
    }

    /// Names of what is kept for each parameter.
    fn slot_names(&self) -> Vec<&'static str> {
        let mut names = self.kind.rule().slots();
        if self.accumulation().is_some() {
            names.push(ACCUMULATOR);
        }
        if self.use_ema {
            names.push(AVERAGE);
        }
        names
    }

    /// Types of the state: `momentum/<param>`, …, mostly each of its parameter's type.
    pub fn slots(&self, params: &Params<TensorType>) -> Params<TensorType> {
        let mut types = Params::new();
        for slot in self.slot_names() {
            for (param, ty) in params.iter() {
                if let Some(of_slot) = self.slot_type(slot, param, ty) {
                    types.insert(key(slot, param), of_slot);
                }
            }
        }
        types
    }

    fn slot_type(&self, slot: &str, param: &str, ty: &TensorType) -> Option<TensorType> {
        match slot {
            ACCUMULATOR | AVERAGE => Some(ty.clone()),
            _ => self.kind.rule().slot_type(slot, param, ty),
        }
    }

    /// The state before the first step: zeros, unless the rule says otherwise.
    ///
    /// # Errors
    /// When a setting makes no sense, or a parameter that the state starts from cannot be read from its device.
    pub fn init(&self, params: &Params<Buffer>) -> Result<Params<Buffer>> {
        self.check()?;
        let mut state = Params::new();
        for slot in self.slot_names() {
            let start = match slot {
                ACCUMULATOR | AVERAGE => Start::Value(0.0),
                _ => self.kind.rule().start(slot),
            };
            for (param, buffer) in params.iter() {
                let Some(ty) = self.slot_type(slot, param, buffer.ty()) else { continue };
                let value = match start {
                    Start::Value(0.0) => Buffer::zeros(ty),
                    Start::Value(value) => Literal::splat(ty, Scalar::Float(value)).into(),
                    Start::Parameter => buffer.to_literal()?.into(),
                };
                state.insert(key(slot, param), value);
            }
        }
        Ok(state)
    }

    /// Traced: new parameters and new state. All trees use the parameters' names.
    #[track_caller]
    pub fn update(
        &self,
        cx: &UpdateInputs,
        params: &Params,
        grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let (params, state) = self.changed(cx, params, grads, state);
        if self.use_ema { self.averaged(&cx.step, params, state) } else { (params, state) }
    }

    /// Takes up the parameters into their running means. Every step counts, with gradient accumulation too, as in Keras.
    fn averaged(&self, step: &Tensor, params: Params, mut state: Params) -> (Params, Params) {
        let is_first = step.equal(&step.zeros_like());
        let means = params.map(|name, p| {
            let kept = p.scalar_like(self.ema_momentum);
            let kept = is_first.select(&kept.zeros_like(), &kept);
            &kept * slot(&state, AVERAGE, name, p) + (p.scalar_like(1.0) - &kept) * p
        });
        for (name, mean) in means.iter() {
            state.insert(key(AVERAGE, name), mean.clone());
        }
        let Some(frequency) = self.ema_overwrite_frequency else { return (params, state) };
        let due = (step + 1.0).remainder(&step.scalar_like(frequency as f64)).equal(&step.zeros_like());
        (params.map(|name, p| due.select(&means[name], p)), state)
    }

    /// The name of a parameter's running mean in the state, where means are kept.
    pub(crate) fn average_of(&self, param: &str) -> Option<String> {
        self.use_ema.then(|| key(AVERAGE, param))
    }

    fn changed(
        &self,
        cx: &UpdateInputs,
        params: &Params,
        grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let Some(k) = self.accumulation() else {
            return self.apply(&cx.learning_rate, &cx.step, params, grads, state);
        };
        let sums = grads.map(|name, g| {
            let sum = slot(state, ACCUMULATOR, name, g);
            g.convert(sum.dtype()) + sum
        });
        let k_like = cx.step.scalar_like(k as f64);
        let due = (&cx.step + 1.0).remainder(&k_like).equal(&cx.step.zeros_like());
        let means = sums.map(|_, sum| sum / k as f64);
        let (stepped, moved) = self.apply(&cx.learning_rate, &(&cx.step / &k_like), params, &means, state);
        let new_params = params.map(|name, old| due.select(&stepped[name], old));
        let new_state = state.map(|name, old| match name.split_once('/') {
            Some((ACCUMULATOR, of)) => match sums.get(of) {
                Some(sum) => due.select(&sum.zeros_like(), sum),
                None => old.clone(),
            },
            _ => due.select(moved.get(name).unwrap_or(old), old),
        });
        (new_params, new_state)
    }

    /// One update; `updates: i64[]` counts the earlier ones.
    #[track_caller]
    fn apply(
        &self,
        learning_rate: &Tensor,
        updates: &Tensor,
        params: &Params,
        grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let grads = self.clip(&params.map(|name, p| {
            match grads.get(name) {
                Some(g) => g.convert(p.dtype()),
                None => p.fail(
                    Error::new(ErrorKind::Graph, format!("there is no gradient of {name}"))
                        .hint("differentiate with respect to all parameters that the optimizer is given"),
                ),
            }
        }));
        let rate = self.kind.rule().rate(learning_rate, updates);
        let mut new_state = state.clone();
        let new_params = params.map(|name, p| {
            let decayed = self.decay(name, p, learning_rate);
            let mut slots = Slots { name, like: p, updates, state: &mut new_state };
            self.kind.rule().step(&decayed, &grads[name], &rate.convert(p.dtype()), &mut slots)
        });
        (new_params, new_state)
    }

    fn clip(&self, grads: &Params) -> Params {
        if let Some(limit) = self.clipnorm {
            return grads.map(|_, g| {
                let norm = (g * g).sum_all().sqrt();
                (g * limit) / norm.maximum(&g.scalar_like(limit))
            });
        }
        if let Some(limit) = self.clipvalue {
            return grads.map(|_, g| g.clamp(&g.scalar_like(-limit), &g.scalar_like(limit)));
        }
        let Some(limit) = self.global_clipnorm else { return grads.clone() };
        let squares = grads.values().map(|g| g.convert(DType::F32)).map(|g| (&g * &g).sum_all());
        let Some(norm) = squares.reduce(|a, b| a + b).map(|s| s.sqrt()) else { return grads.clone() };
        let scale = norm.scalar_like(1.0) / &norm;
        let scale = scale.minimum(&norm.scalar_like(1.0 / limit)) * limit;
        // A norm that is not finite must not silently become a scale of zero.
        let scale = norm.is_finite().select(&scale, &scale.scalar_like(f64::NAN));
        grads.map(|_, g| g * &scale.convert(g.dtype()))
    }

    fn decay(&self, name: &str, p: &Tensor, learning_rate: &Tensor) -> Tensor {
        match self.kind.rule().weight_decay(name, p.ty(), self.weight_decay) {
            Some(decay)
                if !self.exclude_from_weight_decay.iter().any(|part| name.contains(part.as_str())) =>
            {
                p - (p * decay) * learning_rate.convert(p.dtype())
            }
            _ => p.clone(),
        }
    }
}

const ACCUMULATOR: &str = "gradient_accumulator";
/// Keras's name of a running mean.
const AVERAGE: &str = "average";
