//! [`StageList`]: the stages of a running pipeline, by address and by number; what measures and tunes them needs no more.

use std::collections::HashMap;

/// Which stage of a chain something belongs to.
pub(crate) struct StageId {
    pub address: usize,
    pub label: String,
}

/// The stages of a chain in the order in which elements pass them, with an id each.
#[derive(Clone, Default)]
pub(crate) struct StageList {
    pub labels: Vec<String>,
    ids: HashMap<usize, usize>,
}

impl StageList {
    /// Adds a stage behind those that are there; a stage that two others read counts once.
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
