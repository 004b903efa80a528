//! [`ConfigCallback`]: callbacks that configurations can create; their arguments are serde fields.

use super::callback_trait::Callback;
use std::path::{Path, PathBuf};
use systole_data::format::tensorboard_events::HParamValue;
use systole_ir::{Error, Result};

/// Result of checking a callback's arguments: the invalid argument and the error.
pub type ArgumentCheck = std::result::Result<(), (&'static str, Error)>;

/// A callback that configurations can name. Its public fields are the keys of its table, with serde's `default` and
/// `deny_unknown_fields`; fields for training state are skipped.
///
/// ```
/// use systole_nn::callback::{ConfigCallback, EarlyStopping, ModelCheckpoint};
/// let all: [Box<dyn ConfigCallback>; 2] =
///     [Box::new(EarlyStopping::new("val_loss", 3)), Box::new(ModelCheckpoint::new("m.safetensors"))];
/// assert_eq!((all[0].monitor(), all[1].files()), (Some("val_loss"), vec![("filepath", "m.safetensors")]));
/// assert!(all.iter().all(|callback| callback.check().is_ok()));
/// ```
pub trait ConfigCallback: Callback {
    /// Validates the arguments, independently of a run. Also called by `on_train_begin`.
    fn check(&self) -> ArgumentCheck {
        Ok(())
    }
    /// Returns the monitored value, if any.
    fn monitor(&self) -> Option<&str> {
        None
    }
    /// Returns the arguments that name a file or folder in the run's folder, with their values.
    fn files(&self) -> Vec<(&'static str, &str)> {
        Vec::new()
    }
    /// Adapts paths and names to the run.
    fn take_place(&mut self, _place: &CallbackRunInfo<'_>) {}
}

/// Run-dependent values for callbacks of a configuration.
pub struct CallbackRunInfo<'a> {
    /// Folder of the run's files.
    pub folder: &'a Path,
    /// Returns the name under which a value is logged: `accuracy` may mean several metrics.
    pub logged: &'a dyn Fn(&str) -> String,
    /// Logged names of values, with their names in the configuration.
    pub names: Vec<(String, String)>,
    /// Text of the whole configuration.
    pub text: String,
    /// Scalar values of the configuration by key.
    pub hparams: Vec<(String, HParamValue)>,
    /// Returns the devices' peak operations per second, if known.
    pub peak_flops: &'a dyn Fn() -> Option<f64>,
}

impl CallbackRunInfo<'_> {
    /// Returns the path of a file in the run's folder.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }
}

/// Converts the result of [`ConfigCallback::check`] to an error of the named callback.
pub(super) fn checked(callback: &impl ConfigCallback, name: &str) -> Result<()> {
    callback.check().map_err(|(argument, e)| e.at(format!("{argument} of {name}")))
}
