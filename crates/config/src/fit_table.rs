//! Adapts a preset to the user's data: epochs and batch size for few samples; last layers, loss and metrics for a
//! regression.

use super::RunConfig;
use systole_datasets::TrainingData;
use systole_ir::Result;
use systole_nn::LABEL_FIELDS;
use toml::{Table, Value};

/// Training length of the presets for the user's data.
struct TrainingLength {
    /// Noun for the samples.
    samples: &'static str,
    /// Steps that the preset's network needs to converge from random weights with its learning rate.
    steps: usize,
    /// Limit of the epochs for tiny data.
    epochs: usize,
}

const TABLES: TrainingLength = TrainingLength { samples: "rows", steps: 1_500, epochs: 300 };
const IMAGES: TrainingLength = TrainingLength { samples: "images", steps: 600, epochs: 120 };
const LABELED_TEXTS: TrainingLength = TrainingLength { samples: "texts", steps: 600, epochs: 200 };
const LANGUAGE: TrainingLength = TrainingLength { samples: "sequences", steps: 300, epochs: 40 };

/// Batch sizes for few images: a smaller last batch would spoil the statistics of batch normalization.
const IMAGE_BATCHES: [usize; 3] = [32, 16, 8];
/// Steps per epoch of few images.
const IMAGE_STEPS: usize = 5;
/// Rows from which the mean and the standard deviation of the target are computed.
const MAX_ROWS: usize = 100_000;

impl RunConfig {
    /// Raises the number of epochs so that few samples train for enough steps. Returns a note if it did.
    ///
    /// For callers that know that the user did not set the epochs.
    pub fn fit_epochs(&mut self, data: &TrainingData) -> Option<String> {
        let length = self.training_length(data).filter(|_| self.fit.steps_per_epoch.is_none())?;
        let (samples, steps) = (self.train_len(data), self.batches_per_epoch(data).max(1));
        let epochs = length.steps.div_ceil(steps).min(length.epochs);
        if epochs <= self.fit.epochs {
            return None;
        }
        self.fit.epochs = epochs;
        Some(format!(
            "{epochs} epochs, because {samples} {} are only {steps} steps per epoch; set another number with --epochs",
            length.samples
        ))
    }

    /// Lowers the batch size for few images, so that an epoch has several steps. Returns a note if it did.
    ///
    /// For callers that know that the user did not set the batch size.
    pub fn fit_batch_size(&mut self, data: &TrainingData) -> Option<String> {
        if !(self.data.is_own() && data.is_pictures()) || self.biggan.is_some() {
            return None;
        }
        let images = self.train_len(data);
        let fits = |batch: &usize| batch * IMAGE_STEPS <= images;
        let [.., smallest] = IMAGE_BATCHES;
        let batch = IMAGE_BATCHES.into_iter().find(fits).unwrap_or(smallest);
        if batch >= self.fit.batch_size {
            return None;
        }
        self.fit.batch_size = batch;
        Some(format!(
            "batches of {batch}, because there are only {images} images; set another size with --batch-size"
        ))
    }

    fn training_length(&self, data: &TrainingData) -> Option<TrainingLength> {
        match self.data.kind() {
            "records" | "folder" if data.is_pictures() => Some(IMAGES).filter(|_| self.biggan.is_none()),
            "records" => Some(TABLES),
            "sentences" => Some(LABELED_TEXTS),
            "text" => Some(LANGUAGE).filter(|_| self.data.dir.is_some()),
            _ => None,
        }
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
