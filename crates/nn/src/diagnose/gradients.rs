//! Computes the gradients of one batch for inspection, outside of training steps.

use crate::layer::Cx;
use crate::model::Model;
use crate::model::batch::Batch;
use crate::model::compiled_steps::{TracedStep, controls, union};
use crate::model::step_input::values;
use crate::model::train_step::BatchTree;
use systole_ir::{Literal, Result, Tensor, err, grad};
use systole_runtime::{Params, jit};

/// Trainable and frozen weights, the batch, step and seed.
type GradientInputs = (Params, Params, BatchTree, (Tensor, Tensor));

impl Model {
    /// Returns the gradient of each trainable weight as of the next step on `batch`: before clipping and accumulation,
    /// of the unscaled loss. Compiles a program.
    ///
    /// # Errors
    /// If the model is not compiled, or the batch is incompatible with it.
    pub fn gradients(&self, batch: &Batch) -> Result<Vec<(String, Literal)>> {
        self.check_batch(batch)?;
        let compiled = self.compiled()?;
        if compiled.config.train_step.is_some() {
            let e = err!(Unsupported, "gradients of a custom training step are not available");
            return Err(e
                .because("a custom training step may have several losses")
                .hint("log gradient norms in the step with cx.log(…)"));
        }
        // Labels of a validation batch are in the loss's format.
        let soft = batch.label.as_ref().is_some_and(|label| label.dtype().is_float());
        let goals = compiled.goals.clone();
        let architecture = self.architecture.clone();
        let precision = compiled.config.precision;
        let traced: Box<dyn Fn(GradientInputs) -> Params + Send + Sync> =
            Box::new(move |(trainable, frozen, (inputs, labels, weights), (step, seed))| {
                let cx = Cx::new(step.builder(), union(&trainable, &frozen), precision);
                let mut cx = cx.training_with(&seed, &step);
                let outputs = architecture.call_all(&mut cx, &values(inputs));
                let loss = goals.outcome(&mut cx, &outputs, (&labels, &weights), soft).loss;
                let leaves: Vec<&Tensor> = trainable.values().collect();
                trainable.names().map(str::to_string).zip(grad(&loss, &leaves)).collect()
            });
        let function: TracedStep<GradientInputs, Params> = jit(traced).flush_denormals(true).batch(2);
        let function = function.on(compiled.backend.clone()).named("gradients");
        let (_, step, seed) =
            controls(compiled.config.optimizer.values_at(0), self.step, compiled.config.seed);
        let state = (self.state.trainable.clone(), self.state.frozen.clone());
        let all = function.call((state.0, state.1, batch.buffers(), (step, seed)))?;
        all.iter().map(|(name, value)| Ok((name.to_string(), self.whole(value)?))).collect()
    }
}
