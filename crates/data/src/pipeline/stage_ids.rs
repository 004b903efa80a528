//! Stage ids of a running pipeline, from the address of each stage; used for measurements and autotuning.

use std::collections::HashMap;

/// Identifies a stage of a pipeline.
pub(crate) struct StageId {
    pub address: usize,
    pub label: String,
}

/// Stages of a pipeline in the order that elements pass them, with their ids.
#[derive(Clone, Default)]
pub(crate) struct StageList {
    pub labels: Vec<String>,
    ids: HashMap<usize, usize>,
}

impl StageList {
    /// Appends a pipeline stage to the list; a stage with two consumers is added once.
    pub fn add(&mut self, owner: StageId) {
        self.ids.entry(owner.address).or_insert_with(|| {
            self.labels.push(owner.label);
            self.labels.len() - 1
        });
    }

    pub fn id(&self, address: usize) -> Option<usize> {
        self.ids.get(&address).copied()
    }
}
