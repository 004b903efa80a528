//! `[fine_tune]`: transfer learning from a saved model, with fastai's two-phase schedule.

use super::RunConfig;
use super::key_error::KeyError;
use serde::{Deserialize, Serialize};
use systole_data::with_defaults;
use systole_datasets::TrainingData;
use systole_ir::Result;
use systole_nn::{FineTune, FrozenBatchNorm};
use toml::Value;

with_defaults! {
    /// The `[fine_tune]` table: transfer learning from a saved model.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct FineTuneSection {
        /// Saved model to load the initial weights from; the command line's `--from` takes precedence.
        pub from: Option<String> = None,
        /// First layer of the head; layers before it are frozen initially. Default: the last layer that has weights
        pub freeze_until: Option<String> = None,
        /// Whether to unfreeze all layers after `freeze_epochs`, with fastai's two one-cycle learning-rate schedules.
        /// `false`: they stay frozen and the optimizer's learning rate applies.
        pub unfreeze: bool = true,
        /// Epochs that train only the head, before the `fit.epochs`.
        pub freeze_epochs: usize = FineTune::default().freeze_epochs,
        /// Maximum learning rate while only the head trains; halved afterwards.
        pub base_lr: f64 = FineTune::default().base_lr,
        /// Ratio of the head's learning rate to that of the layers next to the input, after unfreezing.
        pub lr_mult: f64 = FineTune::default().lr_mult,
        /// Fraction of the second cycle in which the learning rate rises.
        pub pct_start: f64 = FineTune::default().pct_start,
        /// Ratio of the second cycle's maximum to its initial learning rate.
        pub div: f64 = FineTune::default().div,
        /// Number of layer groups with separate learning rates: the head, and equal groups of the layers before it.
        pub groups: usize = FineTune::default().groups,
        /// Mode of batch normalization in frozen layers: `"train"`, as in fastai, or `"inference"`, as in Keras.
        pub frozen_batch_norm: FrozenBatchNorm = FrozenBatchNorm::default(),
    }
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
