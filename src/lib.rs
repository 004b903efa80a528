//! Systole: deep-learning training in Rust, with the names of Keras and tf.data.
//!
//! It runs on CPUs, and on NVIDIA GPUs through XLA (verified on an H100: losses match the CPU engine). The same
//! training steps compile for TPUs, where nobody has executed them yet.
//!
//! ```
//! use systole::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let data = datasets::glyphs(0)?; // synthetic 28×28 images of ten classes
//! let scale = |s: Sample| s.map("image", |x| x.cast(F32) / 255.0);
//! let train = data.train.map(scale).shuffle(60_000, 7).repeat().batch(100).prefetch(AUTOTUNE);
//!
//! let mut model = Sequential::new([
//!     flatten(), dense(32).activation("relu"), dense(10).activation("softmax"),
//! ]);
//! model.compile(Compile {
//!     optimizer: adam(1e-2),
//!     loss: sparse_categorical_crossentropy(),
//!     metrics: vec![sparse_categorical_accuracy()],
//!     ..default()
//! })?;
//! let history = model.fit(&train, Fit { epochs: 1, steps_per_epoch: Some(30), ..default() })?;
//! assert!(history.last()["sparse_categorical_accuracy"] > 0.3);
//! # Ok(())
//! # }
//! ```
//!
//! This crate is the facade: it re-exports the member crates and registers the backends it is built with. The
//! command-line program is the package `systole-cli`. `ARCHITECTURE.md` shows how the parts fit together.

/// The tutorials page, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/tutorials.md")]
struct Tutorials;

/// The guides to models, training loops, callbacks and the toolbox, as doctests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/models.md")]
#[doc = include_str!("../docs/guide/biggan.md")]
#[doc = include_str!("../docs/guide/fine-tuning.md")]
#[doc = include_str!("../docs/guide/training-loops.md")]
#[doc = include_str!("../docs/guide/callbacks.md")]
#[doc = include_str!("../docs/guide/toolbox.md")]
struct Guides;

mod entry_points;
pub mod prelude;

pub use entry_points::{Sequential, backend, functional, jit, load_model, load_model_with, register};
#[cfg(feature = "cloud")]
pub use systole_cloud as cloud;
pub use systole_compile as compile;
pub use systole_config as config;
pub use systole_cpu as cpu;
pub use systole_data as data;
pub use systole_datasets as datasets;
pub use systole_devices as devices;
pub use systole_dist as dist;
pub use systole_ir as ir;
#[cfg(feature = "launch")]
pub use systole_launch as launch;
pub use systole_nn as nn;
pub use systole_pjrt as pjrt;
pub use systole_progress::progress;
#[cfg(feature = "tui")]
pub use systole_progress::tui;
pub use systole_report as report;
pub use systole_runtime as runtime;
#[cfg(feature = "tpu1")]
pub use systole_tpu1 as tpu1;
