//! Entry points for user programs: `Sequential`, `functional`, `load_model`, `jit`, `backend`.
//!
//! Each registers the backends first, so that no start-up call is needed.

use std::path::Path;
use std::sync::Arc;
use systole_ir::{Result, knobs};
use systole_nn::layers::{CustomObjects, LayerSpec};
use systole_nn::{Model, Outputs, Symbol};
use systole_runtime::{Backend, Jit, TensorTree};

/// Registers the compiled-in backends and the progress display. Every entry point below calls it; programs that use the
/// member crates directly call it once themselves.
pub fn register() {
    #[cfg(feature = "training")]
    {
        systole_devices::providers().into_iter().for_each(systole_runtime::register);
        systole_nn::progress::install(crate::progress::show);
    }
    #[cfg(not(feature = "training"))]
    systole_runtime::register(systole_cpu::provider());
}

/// A linear stack of layers: Keras's `Sequential`.
pub struct Sequential;

impl Sequential {
    /// Creates a model of the layers in order; its input shape is inferred from the first data.
    ///
    /// ```
    /// use systole::prelude::*;
    /// let mut model = Sequential::new([flatten(), dense(10).activation("softmax")]);
    /// model.build(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert!(model.summary().contains("Weights: 7,850"));
    /// # Ok::<(), Error>(())
    /// ```
    #[allow(
        clippy::new_ret_no_self,
        reason = "reads as in Keras; a stack and a graph of layers are one type of model"
    )]
    pub fn new(layers: impl IntoIterator<Item = LayerSpec>) -> Model {
        register();
        Model::sequential(layers)
    }
}

/// Creates a model from a graph of layers, from `inputs` to its outputs, `&y` or `[&a, &b]`: Keras's functional
/// `Model(inputs, outputs)`.
///
/// ```
/// use systole::prelude::*;
/// let x = input("x", [8]);
/// let wide = x.apply(dense(16).activation("relu"));
/// let y = add().on(&[&x, &wide.apply(dense(8))]).apply(dense(2));
/// let model = functional(&[x], &y)?;
/// assert!(model.summary().contains("Weights: 298"), "{}", model.summary());
/// # Ok::<(), Error>(())
/// ```
pub fn functional(inputs: &[Symbol], outputs: impl Outputs) -> Result<Model> {
    register();
    Model::functional(inputs, outputs)
}

/// Loads a saved model of built-in layers. Never executes code from the file.
pub fn load_model(path: impl AsRef<Path>) -> Result<Model> {
    register();
    Model::load(path)
}

/// Loads a saved model with custom layers, a custom loss or custom metrics.
pub fn load_model_with(path: impl AsRef<Path>, custom: &CustomObjects) -> Result<Model> {
    register();
    Model::load_with(path, custom)
}

/// Compiles a function over trees of tensors for calls on buffers; see [`systole_runtime::jit`].
pub fn jit<I: TensorTree, O: TensorTree, F: Fn(I) -> O>(f: F) -> Jit<I, O, F> {
    register();
    systole_runtime::jit(f)
}

/// Opens a device by name (`cpu`, `ref`, `tpu`, `cuda`, `pjrt:FILE` with a PJRT plugin, or `auto`: the best available),
/// for `Compile { backend, .. }`. A process opens one plugin per platform.
///
/// ```
/// use systole::prelude::*;
/// let compile = Compile { backend: Some(backend("cpu")?), ..default() };
/// assert_eq!(compile.backend.unwrap().name(), "cpu");
/// assert!(backend("gpu9").is_err_and(|e| e.to_string().contains("gpu9")));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// If there is no such device, or it cannot be opened.
pub fn backend(name: &str) -> Result<Arc<dyn Backend>> {
    register();
    let (device, plugin) = name.split_once(':').unwrap_or((name, ""));
    if !plugin.is_empty() {
        knobs::override_value(knobs::PJRT_PLUGIN, plugin);
    }
    systole_runtime::backend(device)
}
