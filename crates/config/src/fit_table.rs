//! Adapts a preset to the user's table: epochs for few rows; last layers, loss and metrics for a regression.

use super::RunConfig;
use systole_datasets::TrainingData;
use systole_ir::Result;
use systole_nn::LABEL_FIELDS;
use toml::{Table, Value};

/// Steps that a small network needs to converge from random weights with Adam's default rate.
const MIN_STEPS: usize = 1_500;
/// Limit of the epochs for tiny tables.
const MAX_EPOCHS: usize = 300;
/// Rows from which the mean and the standard deviation of the target are computed.
const MAX_ROWS: usize = 100_000;

impl RunConfig {
    /// Raises the number of epochs so that a table of few rows trains for enough steps. Returns a note if it did.
    ///
    /// For callers that know that the user did not set the epochs.
    pub fn fit_epochs(&mut self, data: &TrainingData) -> Option<String> {
        if self.data.dataset != "records" || data.is_pictures() || self.fit.steps_per_epoch.is_some() {
            return None;
        }
        let (rows, steps) = (self.train_len(data), self.batches_per_epoch(data).max(1));
        let epochs = MIN_STEPS.div_ceil(steps).min(MAX_EPOCHS);
        if epochs <= self.fit.epochs {
            return None;
        }
        self.fit.epochs = epochs;
        Some(format!(
            "{epochs} epochs, because {rows} rows are only {steps} steps per epoch; set another number with --epochs"
        ))
    }

    /// Sets the last layers, the loss and the metrics for numeric labels, if they still have the presets' values.
    /// Returns notes about what was chosen.
    pub(super) fn fit_regression(&mut self, data: &TrainingData) -> Result<Vec<String>> {
        let preset = RunConfig::preset("folder")?;
        let has_preset_loss = self.compile.loss == preset.compile.loss;
        if !has_preset_loss && self.labels_are_numbers() != Some(true) {
            return Ok(Vec::new());
        }
        let mut notes = Vec::new();
        if let Some(last) = self.layers.last_mut().filter(|last| Some(&**last) == preset.layers.last()) {
            last.insert("units".into(), 1i64.into());
            last.remove("activation");
            if has_preset_loss {
                self.compile.loss = "mean_squared_error".into();
            }
            if let Some((mean, deviation)) = self.target_statistics(data)? {
                let rescaling: [(&str, Value); 3] =
                    [("type", "Rescaling".into()), ("scale", deviation.into()), ("offset", mean.into())];
                let rescaling: Table =
                    rescaling.map(|(key, value)| (key.to_string(), value)).into_iter().collect();
                self.layers.push(rescaling);
                notes.push(format!(
                    "the target has mean {mean:.4} and standard deviation {deviation:.4}: the last layer rescales to them"
                ));
            }
        }
        if self.compile.metrics == preset.compile.metrics {
            self.compile.metrics =
                ["mean_absolute_error", "root_mean_squared_error", "r2_score"].map(Into::into).to_vec();
        }
        Ok(notes)
    }

    /// Mean and standard deviation of a table's scalar target. `None` for other data, or if all targets are equal.
    fn target_statistics(&self, data: &TrainingData) -> Result<Option<(f64, f64)>> {
        if self.data.dataset != "records" || data.is_pictures() {
            return Ok(None);
        }
        let (mut count, mut mean, mut squares) = (0.0, 0.0, 0.0);
        for sample in self.train_elements(data).0.iter().take(MAX_ROWS) {
            let sample = match &data.streamed {
                Some(s) => s.prepare.call(sample?)?,
                None => sample?,
            };
            let label = LABEL_FIELDS.iter().find_map(|name| sample.get(name).ok());
            let Some(label) = label.filter(|l| l.shape().elements() == 1) else { return Ok(None) };
            let y = label.get(0).as_f64();
            if !y.is_finite() {
                return Ok(None);
            }
            // Welford's update: exact for large means.
            count += 1.0;
            let delta = y - mean;
            mean += delta / count;
            squares += delta * (y - mean);
        }
        let deviation = (squares / f64::max(count, 1.0)).sqrt();
        Ok((deviation > 0.0).then_some((mean, deviation)))
    }
}
