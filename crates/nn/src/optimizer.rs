//! Optimizers as two functions: `init` makes the state, `update` (traced) gives new parameters and new state from
//! gradients. Names, formulas and order of operations are Keras's. Also loss scaling for `mixed_float16`.

use crate::activation::nearest;
use crate::schedule::Schedule;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use systole_ir::{DType, Error, ErrorKind, Result, Tensor, TensorType};
use systole_runtime::{Buffer, Params};

/// The rule by which a gradient becomes a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "class_name", content = "config", deny_unknown_fields)]
pub enum OptimizerKind {
    /// m ← μ·m − lr·g, p ← p + m; with `nesterov` p ← p + μ·m − lr·g.
    #[serde(rename = "SGD")]
    Sgd {
        /// μ; 0: plain descent without state.
        momentum: f64,
        /// Look ahead along the momentum.
        nesterov: bool,
    },
    /// Kingma and Ba, 2015, with ε outside the square root ("epsilon hat").
    Adam {
        /// Decay of the first moment.
        beta_1: f64,
        /// Decay of the second moment.
        beta_2: f64,
        /// ε.
        epsilon: f64,
        /// Divide by the greatest second moment so far.
        amsgrad: bool,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    AdamW {
        /// Decay of the first moment.
        beta_1: f64,
        /// Decay of the second moment.
        beta_2: f64,
        /// ε.
        epsilon: f64,
        /// Divide by the greatest second moment so far.
        amsgrad: bool,
    },
    /// Divides by a running mean of the gradient's size.
    #[serde(rename = "RMSprop")]
    RmsProp {
        /// Decay of the running mean.
        rho: f64,
        /// Momentum of the changes.
        momentum: f64,
        /// ε, inside the square root.
        epsilon: f64,
        /// Divide by the variance instead of the second moment.
        centered: bool,
    },
}

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
}

/// What an update needs besides parameters, gradients and state. Inputs of the graph: changing them never recompiles.
#[derive(Clone, Debug)]
pub struct UpdateInputs {
    /// `f32[]`: [`Optimizer::learning_rate`] at this step.
    pub learning_rate: Tensor,
    /// `i64[]`: number of earlier steps; with gradient accumulation each micro-batch is a step.
    pub step: Tensor,
}

/// Stochastic gradient descent without momentum. Keras's default rate is 0.01.
pub fn sgd(learning_rate: impl Into<Schedule>) -> Optimizer {
    Optimizer::of(OptimizerKind::Sgd { momentum: 0.0, nesterov: false }, learning_rate)
}

/// Adam with Keras's β₁ 0.9, β₂ 0.999, ε 1e-7. Keras's default rate is 0.001.
pub fn adam(learning_rate: impl Into<Schedule>) -> Optimizer {
    let kind = OptimizerKind::Adam { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-7, amsgrad: false };
    Optimizer::of(kind, learning_rate)
}

/// Adam with decoupled weight decay, 0.004 unless set. Keras's default rate is 0.001.
pub fn adamw(learning_rate: impl Into<Schedule>) -> Optimizer {
    let kind = OptimizerKind::AdamW { beta_1: 0.9, beta_2: 0.999, epsilon: 1e-7, amsgrad: false };
    Optimizer::of(kind, learning_rate).weight_decay(0.004)
}

/// RMSprop with Keras's ρ 0.9, ε 1e-7. Keras's default rate is 0.001.
pub fn rmsprop(learning_rate: impl Into<Schedule>) -> Optimizer {
    let kind = OptimizerKind::RmsProp { rho: 0.9, momentum: 0.0, epsilon: 1e-7, centered: false };
    Optimizer::of(kind, learning_rate)
}

/// The names that [`Optimizer::from_str`] takes.
pub const NAMES: [&str; 4] = ["sgd", "adam", "adamw", "rmsprop"];

impl FromStr for Optimizer {
    type Err = Error;

    /// Keras's defaults, its learning rate included. Case does not matter.
    fn from_str(name: &str) -> Result<Optimizer> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "sgd" => sgd(0.01),
            "adam" => adam(0.001),
            "adamw" => adamw(0.001),
            "rmsprop" => rmsprop(0.001),
            other => {
                return Err(Error::new(ErrorKind::Config, format!("there is no optimizer `{name}`"))
                    .hint(format!("did you mean `{}`? All: {}", nearest(other, &NAMES), NAMES.join(", "))));
            }
        })
    }
}

/// Settings, to be chained. One that the rule does not have changes nothing.
impl Optimizer {
    fn of(kind: OptimizerKind, learning_rate: impl Into<Schedule>) -> Optimizer {
        Optimizer {
            kind,
            learning_rate: learning_rate.into(),
            weight_decay: None,
            exclude_from_weight_decay: Vec::new(),
            clipnorm: None,
            clipvalue: None,
            global_clipnorm: None,
            gradient_accumulation_steps: None,
        }
    }

    /// Momentum of SGD or RMSprop; no effect on the others.
    pub fn momentum(mut self, value: f64) -> Self {
        match &mut self.kind {
            OptimizerKind::Sgd { momentum, .. } | OptimizerKind::RmsProp { momentum, .. } => {
                *momentum = value
            }
            OptimizerKind::Adam { .. } | OptimizerKind::AdamW { .. } => {}
        }
        self
    }

    /// Nesterov momentum of SGD; no effect on the others.
    pub fn nesterov(mut self, yes: bool) -> Self {
        if let OptimizerKind::Sgd { nesterov, .. } = &mut self.kind {
            *nesterov = yes;
        }
        self
    }

    /// β₁ and β₂ of Adam and AdamW; no effect on the others.
    pub fn betas(mut self, first: f64, second: f64) -> Self {
        if let OptimizerKind::Adam { beta_1, beta_2, .. } | OptimizerKind::AdamW { beta_1, beta_2, .. } =
            &mut self.kind
        {
            (*beta_1, *beta_2) = (first, second);
        }
        self
    }

    /// ε; no effect on SGD.
    pub fn epsilon(mut self, value: f64) -> Self {
        match &mut self.kind {
            OptimizerKind::Adam { epsilon, .. }
            | OptimizerKind::AdamW { epsilon, .. }
            | OptimizerKind::RmsProp { epsilon, .. } => *epsilon = value,
            OptimizerKind::Sgd { .. } => {}
        }
        self
    }

    /// AMSGrad for Adam and AdamW; no effect on the others.
    pub fn amsgrad(mut self, yes: bool) -> Self {
        if let OptimizerKind::Adam { amsgrad, .. } | OptimizerKind::AdamW { amsgrad, .. } = &mut self.kind {
            *amsgrad = yes;
        }
        self
    }

    /// ρ of RMSprop; no effect on the others.
    pub fn rho(mut self, value: f64) -> Self {
        if let OptimizerKind::RmsProp { rho, .. } = &mut self.kind {
            *rho = value;
        }
        self
    }

    /// Centered RMSprop; no effect on the others.
    pub fn centered(mut self, yes: bool) -> Self {
        if let OptimizerKind::RmsProp { centered, .. } = &mut self.kind {
            *centered = yes;
        }
        self
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
}

/// State and updates.
impl Optimizer {
    /// Keras's name of the rule.
    pub fn name(&self) -> &'static str {
        match self.kind {
            OptimizerKind::Sgd { .. } => "sgd",
            OptimizerKind::Adam { .. } => "adam",
            OptimizerKind::AdamW { .. } => "adamw",
            OptimizerKind::RmsProp { .. } => "rmsprop",
        }
    }

    /// An error where a setting makes no sense.
    pub fn check(&self) -> Result<()> {
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
        for (name, value) in self.fractions() {
            if !(0.0..=1.0).contains(&value) {
                return refuse(format!("{name} is {value}"), "choose a value between 0 and 1");
            }
        }
        self.learning_rate.check()
    }

    /// Settings that must lie between 0 and 1.
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        match self.kind {
            OptimizerKind::Sgd { momentum, .. } => vec![("momentum", momentum)],
            OptimizerKind::Adam { beta_1, beta_2, .. } | OptimizerKind::AdamW { beta_1, beta_2, .. } => {
                vec![("beta_1", beta_1), ("beta_2", beta_2)]
            }
            OptimizerKind::RmsProp { rho, momentum, .. } => vec![("rho", rho), ("momentum", momentum)],
        }
    }

    /// Steps between updates, where there is more than one.
    fn accumulation(&self) -> Option<usize> {
        self.gradient_accumulation_steps.filter(|&k| k > 1)
    }

    /// Names of what is kept for each parameter.
    fn slot_names(&self) -> Vec<&'static str> {
        let mut names = match self.kind {
            OptimizerKind::Sgd { momentum, .. } if momentum > 0.0 => vec!["momentum"],
            OptimizerKind::Sgd { .. } => vec![],
            OptimizerKind::Adam { amsgrad, .. } | OptimizerKind::AdamW { amsgrad, .. } => {
                if amsgrad {
                    vec!["momentum", "velocity", "velocity_hat"]
                } else {
                    vec!["momentum", "velocity"]
                }
            }
            OptimizerKind::RmsProp { momentum, centered, .. } => {
                let mut names = vec!["velocity"];
                if momentum > 0.0 {
                    names.push("momentum");
                }
                if centered {
                    names.push("average_gradient");
                }
                names
            }
        };
        if self.accumulation().is_some() {
            names.push(ACCUMULATOR);
        }
        names
    }

    /// Types of the state: `momentum/<param>`, …, each of its parameter's type.
    pub fn slots(&self, params: &Params<TensorType>) -> Params<TensorType> {
        let slots = self.slot_names();
        let each = slots.iter().flat_map(|s| params.iter().map(move |(p, ty)| (key(s, p), ty.clone())));
        each.collect()
    }

    /// The state before the first step: zeros.
    ///
    /// # Errors
    /// When a setting makes no sense.
    pub fn init(&self, params: &Params<Buffer>) -> Result<Params<Buffer>> {
        self.check()?;
        Ok(self.slots(&params.map(|_, b| b.ty().clone())).map(|_, ty| Buffer::zeros(ty.clone())))
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
        let rate = self.effective_rate(learning_rate, updates);
        let mut new_state = state.clone();
        let new_params = params.map(|name, p| {
            let decayed = self.decay(name, p, learning_rate);
            let mut slots = Slots { name, like: p, state: &mut new_state };
            self.step(&decayed, &grads[name], &rate.convert(p.dtype()), &mut slots)
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
        match self.weight_decay {
            Some(decay)
                if !self.exclude_from_weight_decay.iter().any(|part| name.contains(part.as_str())) =>
            {
                p - (p * decay) * learning_rate.convert(p.dtype())
            }
            _ => p.clone(),
        }
    }

    /// The learning rate with what is common to all parameters: Adam's correction of its moments' start at zero.
    fn effective_rate(&self, learning_rate: &Tensor, updates: &Tensor) -> Tensor {
        match self.kind {
            OptimizerKind::Adam { beta_1, beta_2, .. } | OptimizerKind::AdamW { beta_1, beta_2, .. } => {
                let t = updates.convert(DType::F32) + 1.0;
                // Powers in f32 of betas rounded to f32, as Keras does it.
                let power = |beta: f64| t.scalar_like(beta).power(&t);
                learning_rate * (1.0 - power(beta_2)).sqrt() / (1.0 - power(beta_1))
            }
            OptimizerKind::Sgd { .. } | OptimizerKind::RmsProp { .. } => learning_rate.clone(),
        }
    }

    /// The parameter after one change by gradient `g`.
    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut Slots) -> Tensor {
        match self.kind {
            OptimizerKind::Sgd { momentum, nesterov } => sgd_step(p, g, rate, momentum, nesterov, slots),
            OptimizerKind::Adam { beta_1, beta_2, epsilon, amsgrad }
            | OptimizerKind::AdamW { beta_1, beta_2, epsilon, amsgrad } => {
                let (m, v) = (slots.get("momentum"), slots.get("velocity"));
                let m = &m + (g - &m) * (1.0 - beta_1);
                let v = &v + (g * g - &v) * (1.0 - beta_2);
                slots.set("momentum", &m);
                slots.set("velocity", &v);
                let size = if amsgrad {
                    let greatest = slots.get("velocity_hat").maximum(&v);
                    slots.set("velocity_hat", &greatest);
                    greatest
                } else {
                    v
                };
                p - (m * rate) / (size.sqrt() + epsilon)
            }
            OptimizerKind::RmsProp { rho, momentum, epsilon, centered } => {
                let v = slots.get("velocity") * rho + (g * g) * (1.0 - rho);
                slots.set("velocity", &v);
                let size = if centered {
                    let mean = slots.get("average_gradient") * rho + g * (1.0 - rho);
                    slots.set("average_gradient", &mean);
                    v - &mean * &mean
                } else {
                    v
                };
                let change = (rate * g) / (size + epsilon).sqrt();
                if momentum > 0.0 {
                    let m = slots.get("momentum") * momentum + change;
                    slots.set("momentum", &m);
                    return p - m;
                }
                p - change
            }
        }
    }
}

const ACCUMULATOR: &str = "gradient_accumulator";

fn key(slot: &str, param: &str) -> String {
    format!("{slot}/{param}")
}

/// The state of a parameter, or a poisoned tensor where the tree lacks it.
fn slot(state: &Params, slot: &str, param: &str, like: &Tensor) -> Tensor {
    state.get(&key(slot, param)).cloned().unwrap_or_else(|| {
        like.fail(
            Error::new(ErrorKind::Graph, format!("the optimizer's state lacks {}", key(slot, param)))
                .hint("make it with this optimizer's init and the same parameters"),
        )
    })
}

/// The state of one parameter while it is updated.
struct Slots<'a> {
    name: &'a str,
    like: &'a Tensor,
    state: &'a mut Params,
}

impl Slots<'_> {
    fn get(&self, name: &str) -> Tensor {
        slot(self.state, name, self.name, self.like)
    }

    fn set(&mut self, name: &str, value: &Tensor) {
        self.state.insert(key(name, self.name), value.clone());
    }
}

fn sgd_step(
    p: &Tensor,
    g: &Tensor,
    rate: &Tensor,
    momentum: f64,
    nesterov: bool,
    slots: &mut Slots,
) -> Tensor {
    let change = g * rate;
    if momentum <= 0.0 {
        return p - change;
    }
    let m = slots.get("momentum") * momentum - &change;
    slots.set("momentum", &m);
    if nesterov { p + (m * momentum - change) } else { p + m }
}

/// Dynamic loss scaling for `mixed_float16`: the loss is multiplied by a scale so that small gradients survive f16;
/// where any gradient overflows, the step is skipped and the scale halved; after `dynamic_growth_steps` good steps it
/// is doubled. The state lives in the graph. Source: Keras's `LossScaleOptimizer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScale {
    /// The first scale.
    pub initial_scale: f64,
    /// Good steps until the scale doubles.
    pub dynamic_growth_steps: u64,
}

impl Default for LossScale {
    fn default() -> LossScale {
        LossScale { initial_scale: 32768.0, dynamic_growth_steps: 2000 }
    }
}

const SCALE: &str = "loss_scale/scale";
const GOOD_STEPS: &str = "loss_scale/good_steps";
const SKIPPED: &str = "loss_scale/skipped";

/// Its state is part of the optimizer's: [`LossScale::init`] is added to what [`Optimizer::init`] gives.
impl LossScale {
    /// Types of the state: `loss_scale/scale: f32[]`, `good_steps: i64[]` since the scale last changed, and
    /// `skipped: i64[]` steps, which Adam's correction and gradient accumulation do not count.
    pub fn state(&self) -> Params<TensorType> {
        let types = [(SCALE, DType::F32), (GOOD_STEPS, DType::I64), (SKIPPED, DType::I64)];
        types.into_iter().map(|(name, dtype)| (name.to_string(), TensorType::scalar(dtype))).collect()
    }

    /// The state before the first step.
    pub fn init(&self) -> Params<Buffer> {
        self.state()
            .map(|name, ty| Buffer::scalar(ty.dtype, if name == SCALE { self.initial_scale } else { 0.0 }))
    }

    /// Traced: the loss to differentiate, `f32[] → f32[]`.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor, state: &Params) -> Tensor {
        loss * own(state, SCALE, loss).convert(loss.dtype())
    }

    /// Traced: `optimizer.update` with gradients of the scaled loss. Where one of them is not finite, parameters and
    /// slots stay as they are and the step does not count.
    #[track_caller]
    pub fn update(
        &self,
        optimizer: &Optimizer,
        cx: &UpdateInputs,
        params: &Params,
        scaled_grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let scale = own(state, SCALE, &cx.step);
        let finite = all_finite(scaled_grads, &scale);
        let grads = scaled_grads.map(|_, g| g.convert(DType::F32) / &scale);
        let step = &cx.step - own(state, SKIPPED, &cx.step);
        let counted = UpdateInputs { learning_rate: cx.learning_rate.clone(), step };
        let (new_params, new_state) = optimizer.update(&counted, params, &grads, state);
        let advanced = self.advance(&finite, state);
        let kept_params = params.map(|name, old| finite.select(&new_params[name], old));
        let kept_state = state.map(|name, old| match advanced.get(name) {
            Some(own) => own.clone(),
            None => finite.select(&new_state[name], old),
        });
        (kept_params, kept_state)
    }

    fn advance(&self, finite: &Tensor, state: &Params) -> Params {
        let [scale, good, skipped] = [SCALE, GOOD_STEPS, SKIPPED].map(|name| own(state, name, finite));
        let grows = good.equal(&good.scalar_like(self.dynamic_growth_steps as f64 - 1.0));
        // Keras has no bounds; without them a scale of 0 or infinity would never recover.
        let doubled = (&scale * 2.0).minimum(&scale.scalar_like(2f64.powi(127)));
        let halved = (&scale * 0.5).maximum(&scale.scalar_like(f32::MIN_POSITIVE as f64));
        let zero = good.zeros_like();
        let mut new = Params::new();
        new.insert(SCALE, finite.select(&grows.select(&doubled, &scale), &halved));
        new.insert(GOOD_STEPS, finite.select(&grows.select(&zero, &(&good + 1.0)), &zero));
        new.insert(SKIPPED, finite.select(&skipped, &(&skipped + 1.0)));
        new
    }
}

/// A field of the loss scale's state, or a poisoned tensor where it is missing.
fn own(state: &Params, name: &str, like: &Tensor) -> Tensor {
    state.get(name).cloned().unwrap_or_else(|| {
        like.fail(
            Error::new(ErrorKind::Graph, format!("the optimizer's state lacks {name}"))
                .hint("add LossScale::init to it"),
        )
    })
}

/// `→ bool[]`: whether every element of every gradient is finite.
fn all_finite(grads: &Params, like: &Tensor) -> Tensor {
    let each = grads.values().map(|g| {
        let dims: Vec<usize> = (0..g.rank()).collect();
        if dims.is_empty() { g.is_finite() } else { g.is_finite().all(&dims) }
    });
    each.reduce(|a, b| a.and(&b)).unwrap_or_else(|| like.builder().scalar(DType::Bool, 1.0))
}
