//! Benchmarks training steps and predictions of whole models on one batch in memory.

use super::measure::{BenchTiming, measure};
use super::workload::is_file;
use std::time::Duration;
use systole_config::{ConfigDraft, RunConfig};
use systole_ir::Result;
use systole_nn::{Batch, Model};

/// Measures training steps as `fit` runs them: forward, loss, backward, update and metrics.
pub(super) fn train(target: &str, precision: &str, time: Duration) -> Result<BenchTiming> {
    let (mut model, batch) = model_and_batch(target, precision)?;
    let mut step = model.device_batch_training(&batch)?;
    let items = items(batch);
    let m = measure(time, || step.run().map(|()| step.ready_event()))?;
    Ok(BenchTiming { flops: step.report().flops, items, compile_ms: step.compile_ms(), ..m })
}

/// Measures predictions.
pub(super) fn predict(target: &str, precision: &str, time: Duration) -> Result<BenchTiming> {
    let (mut model, batch) = model_and_batch(target, precision)?;
    let mut prediction = model.device_batch_prediction(&batch)?;
    let items = items(batch);
    let m = measure(time, || prediction.run().map(|outputs| outputs.ready_event()))?;
    Ok(BenchTiming { flops: prediction.report().flops, items, compile_ms: prediction.compile_ms(), ..m })
}

fn model_and_batch(target: &str, precision: &str) -> Result<(Model, Batch)> {
    let draft = if is_file(target) { ConfigDraft::read(target)? } else { ConfigDraft::preset(target)? };
    of_draft(draft, precision)
}

/// Builds the model of a configuration and a batch for it.
pub(super) fn of_draft(mut draft: ConfigDraft, precision: &str) -> Result<(Model, Batch)> {
    draft.set(format!("--precision {precision}"), "compile.precision", precision);
    let config: RunConfig = draft.finish().map_err(|refused| refused.error)?;
    let model = config.untrained()?;
    let batch = config.synthetic_batch(&model)?;
    Ok((model, batch))
}

/// Counts the images or tokens of a batch and drops the host copy.
fn items(batch: Batch) -> f64 {
    count(&batch)
}

/// Counts the images or tokens of a batch.
pub(super) fn count(batch: &Batch) -> f64 {
    let tokens = batch.inputs.first().filter(|x| x.dtype().is_int());
    tokens.map_or(batch.size(), |x| x.ty().elements()) as f64
}
