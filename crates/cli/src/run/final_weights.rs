//! Test figures of a run: measures exactly the weights that are written.

use systole_config::RunConfig;
use systole_datasets::TrainingData;
use systole_ir::Result;
use systole_nn::{History, KeepBest, Logs, Model};

/// Returns the test values (`val_…`) of the model as it is written. `is_changed`: it is not as it trained, because
/// adapters were merged or channels removed.
///
/// Measures again unless the last validation measured these weights. Compares the result with the best epoch, unless the
/// weights are those of an epoch. Returns the values of the last epoch if the run was interrupted.
pub(crate) fn test(
    model: &mut Model,
    (config, data): (&RunConfig, &TrainingData),
    best: &KeepBest,
    history: &mut History,
    is_changed: bool,
) -> Result<Logs> {
    let last = tested(&history.last());
    let test = config.test_pipeline(data);
    let batches = config.tested_batches(data)?;
    if history.interrupted || batches == Some(0) || (history.is_final_validated && !is_changed) {
        return Ok(last);
    }
    let mut values = Logs::new();
    values.extend_with_prefix("val_", &model.evaluate_steps(&test, batches)?);
    if is_changed && model.host().1 == 1 {
        best.remeasure(history, |kept| kept.evaluate_steps(&test, batches))?;
    }
    if config.restores_weights() {
        return Ok(values);
    }
    if let Some(last) = history.epochs.last_mut() {
        last.extend_with_prefix("", &values);
    }
    best.update(model, history)?;
    Ok(values)
}

/// Returns the validation values of an epoch.
pub(crate) fn tested(logs: &Logs) -> Logs {
    let mut values = Logs::new();
    logs.iter().filter(|(name, _)| name.starts_with("val_")).for_each(|(name, v)| values.insert(name, v));
    values
}
