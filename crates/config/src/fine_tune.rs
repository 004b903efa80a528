//! `[fine_tune]`: transfer learning from a saved model, with fastai's two-phase schedule.

use super::RunConfig;
use super::key_error::KeyError;
use serde::{Deserialize, Serialize};
use systole_datasets::TrainingData;
use systole_ir::Result;
use systole_nn::{FineTune, FrozenBatchNorm};
use toml::Value;

/// The `[fine_tune]` table: transfer learning from a saved model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FineTuneSection {
    /// Saved model to load the initial weights from; the command line's `--from` takes precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// First layer of the head; layers before it are frozen initially. Default: the last layer that has weights
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_until: Option<String>,
    /// Whether to unfreeze all layers after `freeze_epochs`, with fastai's two one-cycle learning-rate schedules.
    /// `false`: they stay frozen and the optimizer's learning rate applies.
    #[serde(default = "crate::yes")]
    pub unfreeze: bool,
    /// Epochs that train only the head, before the `fit.epochs`.
    #[serde(default = "freeze_epochs")]
    pub freeze_epochs: usize,
    /// Maximum learning rate while only the head trains; halved afterwards.
    #[serde(default = "base_lr")]
    pub base_lr: f64,
    /// Ratio of the head's learning rate to that of the layers next to the input, after unfreezing.
    #[serde(default = "lr_mult")]
    pub lr_mult: f64,
    /// Fraction of the second cycle in which the learning rate rises.
    #[serde(default = "pct_start")]
    pub pct_start: f64,
    /// Ratio of the second cycle's maximum to its initial learning rate.
    #[serde(default = "div")]
    pub div: f64,
    /// Number of layer groups with separate learning rates: the head, and equal groups of the layers before it.
    #[serde(default = "groups")]
    pub groups: usize,
    /// Mode of batch normalization in frozen layers: `"train"`, as in fastai, or `"inference"`, as in Keras.
    #[serde(default)]
    pub frozen_batch_norm: FrozenBatchNorm,
}

fn freeze_epochs() -> usize {
    FineTune::default().freeze_epochs
}

fn base_lr() -> f64 {
    FineTune::default().base_lr
}

fn lr_mult() -> f64 {
    FineTune::default().lr_mult
}

fn pct_start() -> f64 {
    FineTune::default().pct_start
}

fn div() -> f64 {
    FineTune::default().div
}

fn groups() -> usize {
    FineTune::default().groups
}

impl FineTuneSection {
    /// Returns the fine-tuning schedule with `epochs` epochs in the second phase.
    pub fn phases(&self, epochs: usize) -> FineTune {
        FineTune {
            epochs,
            freeze_epochs: self.freeze_epochs,
            base_lr: self.base_lr,
            lr_mult: self.lr_mult,
            pct_start: self.pct_start,
            div: self.div,
            groups: self.groups,
            freeze_until: self.freeze_until.clone(),
            frozen_batch_norm: self.frozen_batch_norm,
        }
    }
}

impl RunConfig {
    pub(super) fn check_fine_tune(&self) -> Result<(), KeyError> {
        let Some(section) = &self.fine_tune else { return Ok(()) };
        if let Some((key, what, hint)) = section.phases(self.fit.epochs.max(1)).wrong() {
            return Err(KeyError::new(&format!("fine_tune.{key}"), what).hint_setting(hint));
        }
        let scheduler = "GradientAccumulationScheduler";
        let is_there =
            self.callbacks.iter().any(|c| c.get("type").and_then(Value::as_str) == Some(scheduler));
        match is_there && section.unfreeze {
            true => Err(KeyError::new("fine_tune", format!("fine_tune cannot be combined with {scheduler}"))
                .hint_setting(
                    "remove fine_tune or the callback (both recompile the step between epochs), or set unfreeze \
                    = false",
                )),
            false => Ok(()),
        }
    }

    /// Number of epochs of the whole run, including the head-only epochs of fine-tuning.
    pub fn epochs(&self) -> usize {
        let first = self.fine_tune.as_ref().filter(|section| section.unfreeze);
        self.fit.epochs + first.map_or(0, |section| section.freeze_epochs)
    }

    /// Sets the head's number of outputs to the number of classes: the last layer's `units`, or the application's
    /// `classes`.
    pub fn fit_head(&mut self, data: &TrainingData) {
        let classes = data.class_names.len() as i64;
        self.fit_sequence_length(data);
        if classes == 0 {
            return;
        }
        match &mut self.model {
            Some(application) => drop(application.insert("classes".into(), classes.into())),
            None => {
                let head = self.layers.iter_mut().rev().find_map(|layer| layer.get_mut("units"));
                head.into_iter().for_each(|units| *units = classes.into());
            }
        }
    }
}
