//! What a run keeps on disk: model files, backups, the best epoch.

pub(crate) mod backup;
pub(crate) mod best_model;
pub(crate) mod model_io;
