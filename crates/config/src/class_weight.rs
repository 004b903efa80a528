//! `fit.class_weight`: weights of the classes in the loss.

use super::RunConfig;
use super::key_error::KeyError;
use std::collections::BTreeMap;
use systole_datasets::TrainingData;
use systole_ir::{Result, err};
use systole_nn::LABEL_FIELDS;
use systole_nn::did_you_mean::suggestion;
use toml::Value;

const PATH: &str = "fit.class_weight";
/// Weight = samples / (classes × samples of the class), so that rare classes count as much as frequent ones.
const BALANCED: &str = "balanced";

/// Checks the value as far as possible without the data.
pub(super) fn check(value: Option<&Value>) -> Result<(), KeyError> {
    let hint = "write fit.class_weight = \"balanced\", or a weight for each class: { cat = 2.0, dog = 0.5 }";
    match value {
        None => Ok(()),
        Some(Value::String(name)) if name == BALANCED => Ok(()),
        Some(Value::Table(weights)) => {
            match weights.iter().find(|(_, w)| !number(w).is_some_and(|w| w >= 0.0 && w.is_finite())) {
                None => Ok(()),
                Some((class, w)) => {
                    let what = format!("class_weight of {class}: expected a number of at least 0, got {w}");
                    Err(KeyError::new(&format!("{PATH}.{class}"), what).hint_setting(hint))
                }
            }
        }
        Some(other) => Err(KeyError::new(PATH, format!("invalid class_weight: {other}")).hint_setting(hint)),
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

impl RunConfig {
    /// Returns the loss weight of each class by index; empty if all are 1. `balanced` reads the training data once.
    ///
    /// # Errors
    /// If a class does not occur in the data, or the labels are not classes.
    pub fn class_weight(&self, data: &TrainingData) -> Result<BTreeMap<i64, f64>> {
        match &self.fit.class_weight {
            None => Ok(BTreeMap::new()),
            Some(Value::Table(weights)) => weights
                .iter()
                .map(|(class, w)| Ok((class_of(class, data)?, number(w).unwrap_or(1.0))))
                .collect(),
            Some(_) => {
                let counts = self.class_counts(data)?;
                let (all, classes) = (counts.values().sum::<u64>() as f64, counts.len() as f64);
                Ok(counts.into_iter().map(|(class, n)| (class, all / (classes * n as f64))).collect())
            }
        }
    }

    fn class_counts(&self, data: &TrainingData) -> Result<BTreeMap<i64, u64>> {
        let mut counts = BTreeMap::new();
        for sample in self.train_elements(data).0.iter() {
            let sample = match &data.streamed {
                Some(s) => s.prepare.call(sample?)?,
                None => sample?,
            };
            let label = LABEL_FIELDS.iter().find_map(|name| sample.get(name).ok());
            let label =
                label.filter(|l| l.dtype().is_int() && l.shape().elements() == 1).ok_or_else(|| {
                    err!(Config, "class_weight requires class labels")
                        .at(PATH)
                        .hint_setting("remove fit.class_weight")
                })?;
            *counts.entry(label.get(0).as_i64()).or_default() += 1;
        }
        Ok(counts)
    }
}

/// Returns the index of a class given by name or by index.
fn class_of(class: &str, data: &TrainingData) -> Result<i64> {
    if let Some(i) = data.class_names.iter().position(|name| name == class) {
        return Ok(i as i64);
    }
    let known = |n: &i64| *n >= 0 && (data.class_names.is_empty() || (*n as usize) < data.class_names.len());
    class.parse().ok().filter(known).ok_or_else(|| {
        let names: Vec<&str> = data.class_names.iter().map(String::as_str).collect();
        err!(Config, "{} has no class `{class}`", data.name).at(PATH).hint_setting(suggestion(class, &names))
    })
}
