//! Dynamic loss scaling for `mixed_float16`.

use super::optimizer_config::{Optimizer, UpdateInputs};
use crate::json::{Deserialize, Serialize};
use crate::setters::with_defaults;
use systole_ir::op::Monoid;
use systole_ir::{DType, Tensor, TensorType, err};
use systole_runtime::{Buffer, Params};

with_defaults! {
    /// Dynamic loss scaling for `mixed_float16`: the loss is multiplied by a scale so that small gradients do not underflow
    /// in f16. If any gradient overflows, the step is skipped and the scale halved; after `dynamic_growth_steps` good steps
    /// it is doubled. The state is part of the graph. Source: Keras's `LossScaleOptimizer`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct LossScale {
        /// Initial scale.
        pub initial_scale: f64 = 32768.0,
        /// Good steps until the scale doubles.
        pub dynamic_growth_steps: u64 = 2000,
    }
}

const SCALE: &str = "loss_scale/scale";
const GOOD_STEPS: &str = "loss_scale/good_steps";
const SKIPPED: &str = "loss_scale/skipped";

/// State and traced update. The state is part of the optimizer's: add [`LossScale::init`] to [`Optimizer::init`].
impl LossScale {
    /// Returns the types of the loss scaling state: `loss_scale/scale: f32[]`, `good_steps: i64[]` since the scale last
    /// changed, and `skipped: i64[]` steps, which Adam's bias correction and gradient accumulation do not count.
    pub fn state(&self) -> Params<TensorType> {
        let types = [(SCALE, DType::F32), (GOOD_STEPS, DType::I64), (SKIPPED, DType::I64)];
        types.into_iter().map(|(name, dtype)| (name.to_string(), TensorType::scalar(dtype))).collect()
    }

    /// Returns the initial state of loss scaling.
    pub fn init(&self) -> Params<Buffer> {
        self.state()
            .map(|name, ty| Buffer::scalar(ty.dtype, if name == SCALE { self.initial_scale } else { 0.0 }))
    }

    /// Traced: returns the scaled loss to differentiate, `f32[] → f32[]`.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor, state: &Params) -> Tensor {
        loss * own(state, SCALE, loss).convert(loss.dtype())
    }

    /// Traced: calls `optimizer.update` with gradients of the scaled loss. If any gradient is not finite, parameters
    /// and slots stay unchanged and the step does not count.
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

/// Returns a field of the loss scale's state, or a poisoned tensor if it is missing.
fn own(state: &Params, name: &str, like: &Tensor) -> Tensor {
    state.get(name).cloned().unwrap_or_else(|| {
        like.fail(
            err!(Graph, "the optimizer's state lacks {name}")
                .hint("add LossScale::init to the optimizer's state"),
        )
    })
}

/// `→ bool[]`: whether every element of every gradient is finite. Uses the maximum magnitude: a maximum is NaN if any
/// element is, and reducing floats avoids an array of bools.
fn all_finite(grads: &Params, like: &Tensor) -> Tensor {
    let each = grads.values().filter(|g| g.ty().elements() > 0).map(|g| {
        let dims: Vec<usize> = (0..g.rank()).collect();
        if dims.is_empty() { g.is_finite() } else { Monoid::Maximum.over(&g.abs(), &dims).is_finite() }
    });
    each.reduce(|a, b| a.and(&b)).unwrap_or_else(|| like.builder().scalar(DType::Bool, 1.0))
}
