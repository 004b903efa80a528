//! Parses optimizers by name, from configurations and model files.

use super::optimizer_config::Optimizer;
use super::rule::OptimizerKind;
use super::{NAMES, TABLE};
use crate::did_you_mean::unknown;
use crate::json::Deserialize;
use serde::{Deserializer, de};
use serde_json::Value;
use std::str::FromStr;
use systole_ir::{Error, Result};

impl FromStr for Optimizer {
    type Err = Error;

    /// Returns the named optimizer with Keras's defaults, including the learning rate. Case-insensitive.
    fn from_str(name: &str) -> Result<Optimizer> {
        let lower = name.to_ascii_lowercase();
        let found = TABLE.iter().map(|row| (row.defaults)()).find(|o| o.name() == lower);
        found.ok_or_else(|| unknown(&format!("unknown optimizer `{name}`"), &lower, NAMES))
    }
}

impl<'de> Deserialize<'de> for OptimizerKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<OptimizerKind, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct StoredOptimizerKind {
            class_name: String,
            config: Value,
        }
        let StoredOptimizerKind { class_name, config } = StoredOptimizerKind::deserialize(deserializer)?;
        let kinds = || TABLE.iter().map(|row| (row.defaults)().kind);
        let Some(kind) = kinds().find(|kind| kind.class_name() == class_name) else {
            let known: Vec<String> = kinds().map(|kind| format!("`{}`", kind.class_name())).collect();
            let known = known.join(", ");
            return Err(de::Error::custom(format!(
                "unknown variant `{class_name}`, expected one of {known}"
            )));
        };
        kind.reread(config).map_err(de::Error::custom)
    }
}
