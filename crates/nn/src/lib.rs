//! Models with Keras's names: layers, losses, optimizers, metrics, `compile`, `fit`, callbacks, model files.
//!
//! Knows no backend: graphs go to whichever one [`systole_runtime::backend`] gives.
