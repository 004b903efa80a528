//! Files of a run: model files, backups, the best model.

pub(crate) mod backup;
pub(crate) mod best_model;
pub(crate) mod model_io;
