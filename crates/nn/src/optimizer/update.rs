//! Optimizer state per parameter, and one traced update of all parameters.

use super::optimizer_config::{Optimizer, UpdateInputs};
use super::rule::{OptimizerSlots, SlotInit, key, slot};
use super::scheduled_values::StepValues;
use super::weight_averaging::{AVERAGE, SLOW};
use systole_ir::{DType, Literal, Result, Scalar, Tensor, TensorType, err};
use systole_runtime::{Buffer, Params};

/// Slot that accumulates gradients.
const ACCUMULATOR: &str = "gradient_accumulator";

impl Optimizer {
    /// Returns the number of steps between updates if there is more than one.
    pub(super) fn accumulation(&self) -> Option<usize> {
        self.gradient_accumulation_steps.filter(|&k| k > 1)
    }

    /// Returns the names of all state slots; some exist only for a few parameters.
    fn slot_names(&self) -> Vec<&'static str> {
        let mut names = self.kind.rule().slots();
        for slot in self.optimizer_map.values().flat_map(|own| own.kind.rule().slots()) {
            if !names.contains(&slot) {
                names.push(slot);
            }
        }
        let own = [
            (self.accumulation().is_some(), ACCUMULATOR),
            (self.use_ema || self.swa.is_some(), AVERAGE),
            (self.lookahead_steps.is_some(), SLOW),
        ];
        names.extend(own.into_iter().filter(|(is_kept, _)| *is_kept).map(|(_, name)| name));
        names
    }

    /// Returns the types of the optimizer's state: `momentum/<param>`, …, mostly with the parameter's type.
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
        if [ACCUMULATOR, AVERAGE, SLOW].contains(&slot) {
            return Some(ty.clone());
        }
        let rule = self.of_param(param).kind.rule();
        rule.slots().contains(&slot).then(|| rule.slot_type(slot, param, ty)).flatten()
    }

    /// Creates the optimizer's state before the first step: zeros, unless the rule defines another initial value.
    ///
    /// # Errors
    /// If a setting is invalid, or a parameter that initializes the state cannot be read from its device.
    pub fn init(&self, params: &Params<Buffer>) -> Result<Params<Buffer>> {
        self.check()?;
        self.check_params(params)?;
        let mut state = Params::new();
        for slot in self.slot_names() {
            for (param, buffer) in params.iter() {
                let Some(ty) = self.slot_type(slot, param, buffer.ty()) else { continue };
                let start = match slot {
                    ACCUMULATOR | AVERAGE => SlotInit::Value(0.0),
                    SLOW => SlotInit::Parameter,
                    _ => self.of_param(param).kind.rule().start(slot),
                };
                let value = match start {
                    SlotInit::Value(0.0) => Buffer::zeros(ty),
                    SlotInit::Value(value) => Literal::splat(ty, Scalar::Float(value)).into(),
                    SlotInit::Parameter => buffer.to_literal()?.into(),
                };
                state.insert(key(slot, param), value);
            }
        }
        Ok(state)
    }

    /// Traced: returns new parameters and new optimizer state. All trees use the parameters' names.
    #[track_caller]
    pub fn update(
        &self,
        cx: &UpdateInputs,
        params: &Params,
        grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let values = self.split(&cx.learning_rate);
        let (params, state) = self.changed(&values, &cx.step, params, grads, state);
        self.averaged(&cx.step, &values, params, state)
    }

    fn changed(
        &self,
        values: &StepValues,
        step: &Tensor,
        params: &Params,
        grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let Some(k) = self.accumulation() else { return self.apply(values, step, params, grads, state) };
        let sums = grads.map(|name, g| {
            let sum = slot(state, ACCUMULATOR, name, g);
            g.convert(sum.dtype()) + sum
        });
        let k_like = step.scalar_like(k as f64);
        let due = (step + 1.0).remainder(&k_like).equal(&step.zeros_like());
        let means = sums.map(|_, sum| sum / k as f64);
        let (stepped, moved) = self.apply(values, &(step / &k_like), params, &means, state);
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

    /// Applies one update; `updates: i64[]` is the number of earlier updates.
    #[track_caller]
    fn apply(
        &self,
        values: &StepValues,
        updates: &Tensor,
        params: &Params,
        grads: &Params,
        state: &Params,
    ) -> (Params, Params) {
        let grads = params.map(|name, p| match grads.get(name) {
            Some(g) => g.convert(p.dtype()),
            None => p.fail(
                err!(Graph, "there is no gradient of {name}")
                    .hint("differentiate with respect to all parameters passed to the optimizer"),
            ),
        });
        let grads = self.clip_each(&grads);
        let rates = self.rates(values, updates, params);
        let mut new_state = state.clone();
        let new_params = params.map(|name, p| {
            let (own, rate) = (self.of_param(name), &rates[&self.group_of(name)]);
            let decayed = own.decay(name, p, &rate.given);
            let momentum = values.momentum.as_ref();
            let mut slots = OptimizerSlots { name, like: p, updates, momentum, state: &mut new_state };
            own.kind.rule().step(&decayed, &grads[name], &rate.ruled.convert(p.dtype()), &mut slots)
        });
        self.look_ahead(updates, new_params, new_state)
    }

    /// Clips each gradient by the settings of its parameter's optimizer.
    fn clip_each(&self, grads: &Params) -> Params {
        let mut clipped = self.clip(&self.own_params(grads, None));
        for (pattern, own) in &self.optimizer_map {
            for (name, g) in own.clip(&self.own_params(grads, Some(pattern))).iter() {
                clipped.insert(name, g.clone());
            }
        }
        clipped
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
        // A non-finite norm must not silently become a scale of zero.
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
