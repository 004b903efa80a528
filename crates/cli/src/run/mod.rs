//! What train, resume, evaluate and quantize share: data, training, signals, results.

pub(crate) mod answers;
pub(crate) mod confusion;
pub(crate) mod event_pictures;
pub(crate) mod own_data;
pub(crate) mod prepare;
pub(crate) mod pruned;
pub(crate) mod report;
pub(crate) mod run_report;
pub(crate) mod scores;
pub(crate) mod stop;
pub(crate) mod training;
pub(crate) mod verdict;
