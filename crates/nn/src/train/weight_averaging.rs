//! Replaces weights with their averages (EMA or SWA) at the end of training; after SWA, recomputes the statistics of
//! batch normalization.

use crate::layer::Cx;
use crate::model::Model;
use crate::model::batch::DeviceBatch;
use crate::model::compiled_steps::{TracedStep, union};
use crate::model::step_input::values;
use crate::model::train_step::{BatchTree, StepCx};
use systole_data::Dataset;
use systole_ir::{DType, Result, Tensor};
use systole_runtime::{Buffer, Params, jit};

/// Inputs of the statistics function: trainable and frozen weights, the batch, and (step, seed, weight of the batch in
/// the mean).
type StatisticsInputs = (Params, Params, BatchTree, (Tensor, Tensor, Tensor));

/// Which averages replaced the weights at the end of a run.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum AveragedWeights {
    Nothing,
    /// Exponential moving averages: close to the weights, so batch statistics stay as they are, as in Keras.
    RunningMeans,
    /// Means over epochs (SWA): batch statistics must be recomputed.
    MeansOfEpochs,
}

impl AveragedWeights {
    /// Describes the weights for [`WEIGHTS_NOTE`](crate::model::history::WEIGHTS_NOTE).
    pub(crate) fn description(self) -> Option<&'static str> {
        match self {
            AveragedWeights::Nothing => None,
            AveragedWeights::RunningMeans => Some("exponential moving averages (EMA)"),
            AveragedWeights::MeansOfEpochs => Some("mean of the last epochs (SWA)"),
        }
    }
}

impl Model {
    /// Replaces weights with their averages if the optimizer keeps any.
    pub(crate) fn take_averages(&mut self) -> Result<AveragedWeights> {
        let Some(optimizer) = self.compile_config().map(|c| c.optimizer.clone()) else {
            return Ok(AveragedWeights::Nothing);
        };
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
        Ok(match (took, optimizer.swa.is_some()) {
            (false, _) => AveragedWeights::Nothing,
            (true, false) => AveragedWeights::RunningMeans,
            (true, true) => AveragedWeights::MeansOfEpochs,
        })
    }

    /// Swaps weights and their exponential moving averages if the optimizer keeps them; returns whether it did.
    pub(crate) fn swap_averages(&mut self) -> bool {
        let Some(optimizer) = self.compile_config().map(|c| c.optimizer.clone()) else { return false };
        let names: Vec<String> = self.state.trainable.names().map(str::to_string).collect();
        let steps = self.steps();
        let mut swapped = false;
        for name in &names {
            let Some(key) = optimizer.average_of(name, steps) else { continue };
            let pair = (self.state.trainable.get(name).cloned(), self.state.optimizer.get(&key).cloned());
            if let (Some(weight), Some(mean)) = pair {
                self.state.trainable.insert(name, mean);
                self.state.optimizer.insert(key, weight);
                swapped = true;
            }
        }
        swapped
    }

    /// Recomputes moving statistics as means over one pass of the data. Source: PyTorch's `update_bn`.
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
            // Updates of trainable weights by layers are not statistics.
            for (name, value) in new.iter().filter(|(name, _)| self.state.trainable.get(name).is_none()) {
                self.state.frozen.insert(name, value.clone());
            }
        }
        Ok(())
    }

    /// Traces the forward pass of a training step and returns its updates of non-trainable weights.
    fn statistics(&self) -> Result<TracedStep<StatisticsInputs, Params>> {
        let compiled = self.compiled()?;
        let (architecture, precision) = (self.architecture.clone(), compiled.config.precision);
        let own = compiled.config.train_step.clone();
        let traced: Box<dyn Fn(StatisticsInputs) -> Params + Send + Sync> =
            Box::new(move |(trainable, frozen, batch, (step, seed, part))| {
                let mut cx = Cx::new(step.builder(), union(&trainable, &frozen), precision)
                    .training_with(&seed, &step)
                    .with_statistics_part(&part);
                if let Some(own) = &own {
                    return StepCx::statistics(&**own, cx, architecture.clone(), batch, trainable);
                }
                architecture.call(&mut cx, &values(batch.0));
                cx.take_updates()
            });
        // Compiled with the same options as the training step.
        let function = jit(traced).flush_denormals(true).winograd(true).excess_precision(true);
        Ok(function.batch(2).on(compiled.backend.clone()).named("batch statistics"))
    }
}
