//! The end of a run whose optimizer keeps means of the weights: they become the weights, and batch statistics are those of
//! the weights that are.

use crate::batch::DeviceBatch;
use crate::layer::Cx;
use crate::model::Model;
use crate::step::{Traced, union};
use crate::train_step::StepCx;
use systole_data::Dataset;
use systole_ir::{DType, Result, Tensor};
use systole_runtime::{Buffer, Params, jit};

/// Weights of both kinds, the batch, and step, seed and the part that a batch counts: new statistics.
type In = (Params, Params, (Vec<Tensor>, Tensor, Vec<Tensor>), (Tensor, Tensor, Tensor));

impl Model {
    /// Weights become their means, where the optimizer keeps those. Whether they did in a way that leaves statistics of batches
    /// behind (a mean of epochs; running means follow too closely, and Keras leaves the statistics).
    pub(crate) fn take_averages(&mut self) -> Result<bool> {
        let Some(optimizer) = self.compile_config().map(|c| c.optimizer.clone()) else { return Ok(false) };
        let names: Vec<String> = self.state.trainable.iter().map(|(name, _)| name.to_string()).collect();
        let steps = self.steps();
        let mut took = false;
        for name in &names {
            let mean = optimizer.average_of(name, steps).and_then(|key| self.state.optimizer.get(&key));
            if let Some(mean) = mean.map(|mean| self.whole(mean)).transpose()? {
                self.set_weight(name, mean)?;
                took = true;
            }
        }
        Ok(took && optimizer.swa.is_some())
    }

    /// Moving statistics become the means over one pass of the data. Source: PyTorch's `update_bn`.
    pub(crate) fn refresh_statistics(&mut self, data: &Dataset, steps: Option<usize>) -> Result<()> {
        let function = self.statistics()?;
        for (n, sample) in data.iter().take(steps.unwrap_or(usize::MAX)).enumerate() {
            let batch = self.batch_of(&sample?)?;
            let (_, step, seed) = self.controls();
            let part = Buffer::scalar(DType::F32, 1.0 / (n as f64 + 1.0));
            let batch: DeviceBatch = batch.buffers();
            let state = (self.state.trainable.clone(), self.state.frozen.clone());
            let new = function.call((state.0, state.1, batch, (step, seed, part)))?;
            if new.iter().next().is_none() {
                return Ok(());
            }
            for (name, value) in new.iter() {
                self.state.frozen.insert(name, value.clone());
            }
        }
        Ok(())
    }

    /// The forward pass of a training step, for what it changes besides the trained weights.
    fn statistics(&self) -> Result<Traced<In, Params>> {
        let compiled = self.compiled()?;
        let (architecture, precision) = (self.architecture.clone(), compiled.config.precision);
        let own = compiled.config.train_step.clone();
        let traced: Box<dyn Fn(In) -> Params + Send + Sync> =
            Box::new(move |(trainable, frozen, (inputs, label, weight), (step, seed, part))| {
                let weights = union(&trainable, &frozen);
                let mut cx = Cx::new(label.builder(), weights, precision)
                    .training_with(&seed, &step)
                    .with_statistics_part(&part);
                if let Some(own) = &own {
                    let batch = (inputs, label, weight);
                    return StepCx::statistics(&**own, cx, architecture.clone(), batch, trainable);
                }
                architecture.call(&mut cx, &inputs);
                cx.take_updates()
            });
        // As the training step is compiled.
        let function = jit(traced).flush_denormals(true).winograd(true).excess_precision(true);
        Ok(function.batch(2).on(compiled.backend.clone()).named("batch statistics"))
    }
}
