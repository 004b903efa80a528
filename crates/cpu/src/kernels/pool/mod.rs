//! Pooling and folds over windows.

pub mod max_pool;
pub mod reduce_window;
