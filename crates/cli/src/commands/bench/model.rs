//! Benchmarks training steps and predictions of whole models on one batch in memory.

use super::measure::{BenchTiming, measure};
use super::workload::is_file;
use std::num::NonZeroUsize;
use std::time::Duration;
use systole_config::{ConfigDraft, RunConfig};
use systole_ir::Result;
use systole_nn::{Batch, Model};

/// How a model is measured.
pub(super) struct ModelSettings<'a> {
    /// Precision policy.
    pub(super) precision: &'a str,
    /// Samples of a batch; `None`: as configured.
    pub(super) batch_size: Option<NonZeroUsize>,
}

/// Measures training steps as `fit` runs them: forward, loss, backward, update and metrics.
pub(super) fn train(target: &str, settings: &ModelSettings<'_>, time: Duration) -> Result<BenchTiming> {
    let (mut model, batch) = model_and_batch(target, settings)?;
    let mut step = model.device_batch_training(&batch)?;
    let items = items(batch);
    let m = measure(time, || step.run().map(|()| step.ready_event()))?;
    Ok(BenchTiming { flops: step.report().flops, items, compile_ms: step.compile_ms(), ..m })
}

/// Measures predictions.
pub(super) fn predict(target: &str, settings: &ModelSettings<'_>, time: Duration) -> Result<BenchTiming> {
    let (mut model, batch) = model_and_batch(target, settings)?;
    let mut prediction = model.device_batch_prediction(&batch)?;
    let items = items(batch);
    let m = measure(time, || prediction.run().map(|outputs| outputs.ready_event()))?;
    Ok(BenchTiming { flops: prediction.report().flops, items, compile_ms: prediction.compile_ms(), ..m })
}

fn model_and_batch(target: &str, settings: &ModelSettings<'_>) -> Result<(Model, Batch)> {
    let draft = if is_file(target) { ConfigDraft::read(target)? } else { ConfigDraft::preset(target)? };
    of_draft(draft, settings)
}

/// Builds the model of a configuration and a batch for it.
pub(super) fn of_draft(mut draft: ConfigDraft, settings: &ModelSettings<'_>) -> Result<(Model, Batch)> {
    let precision = settings.precision;
    draft.set(format!("--precision {precision}"), "compile.precision", precision);
    if let Some(n) = settings.batch_size {
        draft.set(format!("--batch-size {n}"), "fit.batch_size", &n.to_string());
    }
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
