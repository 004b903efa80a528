//! `[fine_tune]`: training that begins with the weights of another model.

use super::RunConfig;
use super::key_error::KeyError;
use serde::{Deserialize, Serialize};
use systole_datasets::TrainingData;
use systole_nn::{FineTune, FrozenBatchNorm};
use toml::Value;

/// The `fine_tune` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FineTuneSection {
    /// The saved model whose weights training begins with; `--from` of the command line goes before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The first layer of the head: those before it are frozen at first. Default: the last one that has weights
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_until: Option<String>,
    /// Whether the frozen layers train, too, once `freeze_epochs` are over, with fastai's two cycles of the learning rate. `false`: they
    /// never do, and the rate is the optimizer's.
    #[serde(default = "yes")]
    pub unfreeze: bool,
    /// Epochs in which only the head trains; `fit.epochs` come after them.
    #[serde(default = "freeze_epochs")]
    pub freeze_epochs: usize,
    /// The highest learning rate while only the head trains; afterwards it is half of it.
    #[serde(default = "base_lr")]
    pub base_lr: f64,
    /// The head's learning rate over that of the layers next to the input, once all train.
    #[serde(default = "lr_mult")]
    pub lr_mult: f64,
    /// The part of the second cycle in which the rate rises.
    #[serde(default = "pct_start")]
    pub pct_start: f64,
    /// The highest rate of the second cycle over its first.
    #[serde(default = "div")]
    pub div: f64,
    /// Parts of the model with a rate of their own: the head and, of equal numbers of layers, those before it.
    #[serde(default = "groups")]
    pub groups: usize,
    /// What batch normalisations among frozen layers do: `"train"`, as in fastai, or `"inference"`, as in Keras.
    #[serde(default)]
    pub frozen_batch_norm: FrozenBatchNorm,
}

fn yes() -> bool {
    true
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
    /// With the epochs of the second phase.
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
            return Err(KeyError::new(&format!("fine_tune.{key}"), what).hint(hint));
        }
        let scheduler = "GradientAccumulationScheduler";
        let is_there =
            self.callbacks.iter().any(|c| c.get("type").and_then(Value::as_str) == Some(scheduler));
        match is_there && section.unfreeze {
            true => Err(KeyError::new("fine_tune", format!("there are both fine_tune and a {scheduler}")).hint(
                "both compile the step anew between epochs: leave one of them out, or set unfreeze = false",
            )),
            false => Ok(()),
        }
    }

    /// Epochs of the whole run: with fine-tuning those of the head come first.
    pub fn epochs(&self) -> usize {
        let first = self.fine_tune.as_ref().filter(|section| section.unfreeze);
        self.fit.epochs + first.map_or(0, |section| section.freeze_epochs)
    }

    /// Gives the head a value for each class of the data: the last layer with `units`, or the application's `classes`.
    pub fn fit_head(&mut self, data: &TrainingData) {
        let classes = data.class_names.len() as i64;
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
