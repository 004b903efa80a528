//! `[lr_find]`: learning-rate range test before the first training step.

use super::RunConfig;
use super::key_error::{KeyError, unknown};
use serde::{Deserialize, Serialize};
use systole_data::with_defaults;
use systole_ir::Result;
use systole_nn::{LrFind, SUGGESTIONS};
use toml::{Table, Value};

with_defaults! {
    /// The `[lr_find]` table: learning-rate range test.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct LrFindSection {
        /// Suggestion to use: `valley`, `slide`, `minimum` or `steep`.
        pub suggest: String = SUGGESTIONS[0].into(),
        /// First learning rate.
        pub start_lr: f64 = LrFind::default().start_lr,
        /// Last learning rate.
        pub end_lr: f64 = LrFind::default().end_lr,
        /// Number of weight updates; each has a higher learning rate than the one before.
        pub num_it: usize = LrFind::default().num_it,
        /// Whether to stop once the loss exceeds four times its minimum.
        pub stop_div: bool = LrFind::default().stop_div,
        /// Learning rate found, as stored in run.json. Default: run the test
        pub found: Option<f64> = None,
    }
}

impl LrFindSection {
    /// Returns the arguments of [`Model::lr_find`](systole_nn::Model::lr_find).
    pub fn options(&self) -> LrFind {
        let LrFindSection { start_lr, end_lr, num_it, stop_div, .. } = *self;
        LrFind { start_lr, end_lr, num_it, stop_div }
    }
}

/// Names of a schedule's learning rate, the highest first.
const RATES: [&str; 3] = ["max_learning_rate", "learning_rate", "initial_learning_rate"];

/// Returns the optimizer's learning rate, or the highest one of its schedule.
fn rate_of(optimizer: &mut Table) -> Option<&mut Value> {
    let mut place = optimizer.entry("learning_rate").or_insert(Value::Float(0.0));
    loop {
        let Value::Table(schedule) = place else { return Some(place) };
        let key = RATES.into_iter().find(|key| schedule.contains_key(*key));
        place = schedule.get_mut(key.unwrap_or("then"))?;
    }
}

impl RunConfig {
    pub(super) fn check_lr_find(&self) -> Result<(), KeyError> {
        let Some(section) = &self.lr_find else { return Ok(()) };
        if !SUGGESTIONS.contains(&section.suggest.as_str()) {
            let e = unknown("unknown suggestion", &section.suggest, &SUGGESTIONS);
            return Err(KeyError::of("lr_find.suggest", e));
        }
        section.options().check().map_err(|e| KeyError::of("lr_find", e))?;
        let other = [("biggan", self.biggan.is_some()), ("fine_tune", self.fine_tune.is_some())];
        if let Some((name, _)) = other.into_iter().find(|(_, is_there)| *is_there) {
            let what = format!("lr_find cannot be combined with {name}");
            return Err(KeyError::new("lr_find", what).hint_setting(format!("remove [lr_find], or [{name}]")));
        }
        match rate_of(&mut self.optimizer.clone()) {
            Some(_) => Ok(()),
            None => Err(KeyError::new(
                "optimizer.learning_rate",
                "lr_find cannot set the learning rate of this schedule",
            )
            .hint_setting(
                "write a number, or a schedule with one learning rate, such as { type = \"OneCycle\", … }",
            )),
        }
    }

    /// Sets the learning rate, or the highest one of a schedule, to the rate found.
    pub fn set_found_rate(&mut self, rate: f64) {
        if let Some(section) = &mut self.lr_find {
            section.found = Some(rate);
        }
        if let Some(place) = rate_of(&mut self.optimizer) {
            *place = Value::Float(rate);
        }
    }
}
