//! `[pruning]`: magnitude pruning of weights or channels during training.

use super::RunConfig;
use super::key_error::{KeyError, unknown};
use serde::{Deserialize, Serialize};
use systole_data::with_defaults;
use systole_ir::Result;
use systole_nn::{Model, Pruning, PruningSchedule, RemovedChannels};

/// Sparsity schedules, for `pruning.type`.
const SCHEDULES: [&str; 2] = ["ConstantSparsity", "PolynomialDecay"];

with_defaults! {
    /// The `[pruning]` table: sparsity schedule and pruned layers.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct PruningSection {
        /// Sparsity schedule: `ConstantSparsity` or `PolynomialDecay`.
        #[serde(rename = "type")]
        pub schedule: String = SCHEDULES[0].into(),
        /// Target sparsity (fraction of zero weights) of ConstantSparsity.
        pub target_sparsity: f64 = 0.5,
        /// Initial sparsity of PolynomialDecay.
        pub initial_sparsity: f64 = 0.0,
        /// Final sparsity of PolynomialDecay.
        pub final_sparsity: f64 = 0.5,
        /// Exponent of PolynomialDecay; higher values prune more at the start.
        pub power: f64 = 3.0,
        /// First step that prunes.
        pub begin_step: u64 = 0,
        /// Last step that prunes; required by PolynomialDecay. Default: the end of training
        pub end_step: Option<u64> = None,
        /// Number of steps between updates of the pruning mask.
        pub frequency: u64 = Pruning::constant_sparsity(0.5).frequency,
        /// Whether the threshold is global, rather than the same sparsity for each layer.
        pub global: bool = false,
        /// N:M sparsity `[m, n]`: zeroes the m smallest of every n weights along the inputs, instead of a sparsity: `[2,
        /// 4]`.
        pub sparsity_m_by_n: Option<Vec<usize>> = None,
        /// Layers to prune, by path or last path component; `*` is a wildcard.
        pub layers: Vec<String> = vec!["*".into()],
        /// Whether to prune whole output channels of convolutions and dense layers, which are removed from the model at
        /// the end.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        pub channels: bool = false,
    }
}

impl PruningSection {
    pub(super) fn pruning(&self) -> Result<Pruning, KeyError> {
        let schedule = match self.schedule.as_str() {
            "ConstantSparsity" => PruningSchedule::ConstantSparsity { target_sparsity: self.target_sparsity },
            "PolynomialDecay" => PruningSchedule::PolynomialDecay {
                initial_sparsity: self.initial_sparsity,
                final_sparsity: self.final_sparsity,
                power: self.power,
            },
            other => {
                let e = unknown("unknown pruning schedule", other, &SCHEDULES);
                return Err(KeyError::of("pruning.type", e));
            }
        };
        let blocks = match self.sparsity_m_by_n.as_deref() {
            None => None,
            Some(&[m, n]) => Some([m, n]),
            Some(_) => {
                let what = "sparsity_m_by_n: expected a pair of integers";
                return Err(KeyError::new("pruning.sparsity_m_by_n", what)
                    .hint_setting("write sparsity_m_by_n as two integers, such as [2, 4]"));
            }
        };
        let made = Pruning {
            schedule,
            begin_step: self.begin_step,
            end_step: self.end_step,
            frequency: self.frequency,
            global: self.global,
            sparsity_m_by_n: blocks,
            layers: self.layers.clone(),
            channels: self.channels,
        };
        match made.wrong() {
            Some((key, what, hint)) => Err(KeyError::new(&format!("pruning.{key}"), what).hint_setting(hint)),
            None => Ok(made),
        }
    }
}

impl RunConfig {
    /// Updates the layer tables with the smaller widths of layers that have lost channels, where tables specify them.
    pub fn with_removed(mut self, removed: &[RemovedChannels], model: &Model) -> RunConfig {
        let nodes = &model.architecture().nodes;
        let is_chain =
            nodes.len() == self.layers.len() && self.layers.iter().all(|t| !t.contains_key("inputs"));
        for (i, table) in self.layers.iter_mut().enumerate() {
            let named = table.get("name").and_then(|name| name.as_str());
            let name = if is_chain { nodes.get(i).map(|node| node.name.as_str()) } else { named };
            let Some(own) = removed.iter().find(|r| Some(r.layer.as_str()) == name) else { continue };
            for key in ["units", "filters"] {
                if table.contains_key(key) {
                    table.insert(key.into(), (own.after as i64).into());
                }
            }
        }
        self
    }

    /// Returns notes about keys of `[pruning]` that belong to the other schedule.
    pub fn unused_pruning_keys(&self) -> Vec<String> {
        let Some(of) = &self.pruning else { return Vec::new() };
        let (usual, [constant, polynomial]) = (PruningSection::default(), SCHEDULES);
        let keys = [
            ("target_sparsity", of.target_sparsity != usual.target_sparsity, constant),
            ("initial_sparsity", of.initial_sparsity != usual.initial_sparsity, polynomial),
            ("final_sparsity", of.final_sparsity != usual.final_sparsity, polynomial),
            ("power", of.power != usual.power, polynomial),
        ];
        let unused = keys.into_iter().filter(|(_, is_set, schedule)| *is_set && of.schedule != *schedule);
        unused
            .map(|(key, _, schedule)| format!("pruning.{key} is not used: it belongs to the type {schedule}"))
            .collect()
    }

    pub(super) fn check_pruning(&self) -> Result<(), KeyError> {
        let Some(section) = &self.pruning else { return Ok(()) };
        if self.biggan.is_some() {
            return Err(KeyError::new("pruning", "pruning cannot be combined with biggan")
                .hint_setting("remove [pruning]: it does not apply to BigGAN"));
        }
        section.pruning().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use crate::ConfigDraft;

    #[test]
    fn keys_of_the_other_schedule_are_told() {
        let notes = |set: &[(&str, &str)]| {
            let mut draft = ConfigDraft::preset("mlp").unwrap();
            set.iter().for_each(|(key, value)| draft.set("the test", key, value));
            draft.finish().unwrap().unused_pruning_keys()
        };
        assert_eq!(
            notes(&[("pruning.final_sparsity", "0.9")]),
            ["pruning.final_sparsity is not used: it belongs to the type PolynomialDecay"]
        );
        assert!(notes(&[("pruning.target_sparsity", "0.9")]).is_empty());
        let decay = [
            ("pruning.type", "\"PolynomialDecay\""),
            ("pruning.end_step", "9"),
            ("pruning.final_sparsity", "0.9"),
        ];
        assert!(notes(&decay).is_empty());
    }
}
