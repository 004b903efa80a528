//! A deep-learning framework with the names of Keras and tf.data. It trains models on the CPU and, through XLA, on NVIDIA GPUs
//! (an H100 is the only one tried so far); the same training steps compile for TPUs, where nobody has executed them yet.
//!
//! # First program
//!
//! ```
//! use systole::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let data = datasets::glyphs(0)?; // synthetic 28×28 images, ten classes
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
//! # What to open first
//!
//! 1. [`prelude`]: every name that a program usually needs, including all layers, losses, metrics, optimizers and callbacks.
//! 2. [`nn::Model`] with its methods `compile`, `fit`, `evaluate`, `predict` and `save`; their options are [`nn::Compile`] and [`nn::Fit`].
//! 3. [`data::Dataset`]: input pipelines, and [`datasets`] for the built-in ones.
//! 4. [`Sequential`] and [`functional`] to build models, [`load_model`] to read one, [`backend`] to choose a device.
//! 5. [`jit`] to compile your own functions of [`ir::Tensor`]s, and [`nn::Accelerator`] for custom training loops.
//!
//! # Modules
//!
//! Used by most programs:
//!
//! | module | content | start with |
//! |---|---|---|
//! | [`prelude`] | everything for `use systole::prelude::*` | its list of re-exports |
//! | [`nn`] | models, layers, losses, metrics, optimizers, callbacks, training, model files | [`nn::Model`], [`nn::layers`], [`nn::Layer`] |
//! | [`data`] | input pipelines with tf.data's names, file formats, images | [`data::Dataset`], [`data::Sample`] |
//! | [`datasets`] | datasets by name, folders of images, records, tables, text, tokenizers | [`datasets::fashion_mnist`], [`datasets::folder`] |
//! | [`dist`] | data parallelism and sharding over several devices | [`dist::Strategy`] |
//! | [`config`] | training runs as TOML, presets | [`config::RunConfig`] |
//! | [`report`] | HTML reports of runs | [`report::RunReport`] |
//! | [`progress`] | progress on standard error | |
//!
//! Lower levels:
//!
//! | module | content | start with |
//! |---|---|---|
//! | [`ir`] | element types, shapes, host arrays, errors, the StableHLO graph, autodiff, interpreter | [`ir::Tensor`], [`ir::Literal`], [`ir::Graph`] |
//! | [`runtime`] | the interface of backends, buffers, `jit`, `value_and_grad` | [`runtime::Backend`], [`runtime::Buffer`] |
//! | [`compile`] | the compiler from graphs to programs of CPU kernels | |
//! | [`cpu`] | the CPU backend: kernels, threads, measured peaks | |
//! | [`devices`] | devices by name | |
//! | [`pjrt`] | TPUs and GPUs through PJRT plugins, ahead-of-time compilation | |
//!
//! Behind cargo features: `cloud` (scripts for clouds, clusters and notebooks), `launch` (several processes as the hosts of one run),
//! `tpu1` (a simulator of the first TPU) and `tui` (a dashboard in the terminal). The features `object-stores`, `parquet`, `parquet-zstd`, `gif`
//! and `webp` add sources of data. To embed a trained model, `default-features = false` leaves [`nn`], [`data`] (arrays, text, CSV, TFRecord) and
//! the CPU backend, 25 crates in all; the feature `training`, on by default, adds the rest of the table.
//!
//! # Concepts
//!
//! - **Nothing is eager.** Layers and tensor methods append operations to a graph. A training step is traced once for each type of its arguments,
//!   compiled, and run many times.
//! - **Four types.** [`ir::TensorType`] is an element type with a shape, [`ir::Literal`] a host array, [`runtime::Buffer`] an array on a device,
//!   and [`ir::Tensor`] a value in a graph.
//! - **Options** with defaults are structs: `Fit { epochs: 5, ..default() }`. Optional arguments of layers and optimizers are methods:
//!   `dense(10).activation("softmax")`.
//! - **Errors.** An invalid layer argument does not panic; it is reported when the model is built or compiled, with the line of your code.
//! - **Determinism.** Results depend on the seed, not on the number of threads.
//!
//! This crate re-exports the member crates and registers the backends. The command-line program is the package `systole-cli`. The
//! guides are in `docs/`, the structure of the code is in `ARCHITECTURE.md`.

/// The TPU tutorials line by line; its Rust code runs in the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/tutorials.md")]
struct Tutorials;

/// The guides whose Rust code runs in the tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/from-keras.md")]
#[doc = include_str!("../docs/guide/from-pytorch.md")]
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
#[cfg(feature = "training")]
pub use systole_config as config;
pub use systole_cpu as cpu;
pub use systole_data as data;
#[cfg(feature = "training")]
pub use systole_datasets as datasets;
#[cfg(feature = "training")]
pub use systole_devices as devices;
pub use systole_dist as dist;
pub use systole_ir as ir;
#[cfg(feature = "launch")]
pub use systole_launch as launch;
pub use systole_nn as nn;
#[cfg(feature = "training")]
pub use systole_pjrt as pjrt;
#[cfg(feature = "training")]
pub use systole_progress::progress;
#[cfg(all(feature = "tui", unix))]
pub use systole_progress::tui;
#[cfg(feature = "training")]
pub use systole_report as report;
pub use systole_runtime as runtime;
#[cfg(feature = "tpu1")]
pub use systole_tpu1 as tpu1;
