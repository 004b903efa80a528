//! What a callback of a configuration is: its arguments are its fields, and a run gives it a place.

use super::callback_trait::Callback;
use std::path::{Path, PathBuf};
use systole_data::format::tensorboard_events::HParamValue;
use systole_ir::{Error, Result};

/// Nothing, or the argument that is to blame and what is wrong with it.
pub type ArgumentCheck = std::result::Result<(), (&'static str, Error)>;

/// A callback that configurations can name. Its public fields are the keys of its table, with serde's `default` and
/// `deny_unknown_fields`; what it finds out while training is skipped.
///
/// ```
/// use systole_nn::callback::{Configured, EarlyStopping, ModelCheckpoint};
/// let all: [Box<dyn Configured>; 2] =
///     [Box::new(EarlyStopping::new("val_loss", 3)), Box::new(ModelCheckpoint::new("m.safetensors"))];
/// assert_eq!((all[0].monitor(), all[1].files()), (Some("val_loss"), vec![("filepath", "m.safetensors")]));
/// assert!(all.iter().all(|callback| callback.check().is_ok()));
/// ```
pub trait ConfigCallback: Callback {
    /// What no run could make right. `on_train_begin` asks it, too.
    fn check(&self) -> ArgumentCheck {
        Ok(())
    }
    /// What it watches, if anything.
    fn monitor(&self) -> Option<&str> {
        None
    }
    /// The arguments that name a file or a folder within the run's folder, with these names.
    fn files(&self) -> Vec<(&'static str, &str)> {
        Vec::new()
    }
    /// Takes the place that a run gives it.
    fn take_place(&mut self, _place: &CallbackRunInfo<'_>) {}
}

/// A run that callbacks of a configuration are made for.
pub struct CallbackRunInfo<'a> {
    /// Where its files lie.
    pub folder: &'a Path,
    /// The name by which a value is logged: `accuracy` is one of several metrics.
    pub logged: &'a dyn Fn(&str) -> String,
    /// Values by the names that are logged, and as the configuration calls them.
    pub names: Vec<(String, String)>,
    /// The whole configuration.
    pub text: String,
    /// Its plain values by their keys.
    pub hparams: Vec<(String, HParamValue)>,
    /// Operations a second that the devices could do at most, where that is known.
    pub peak_flops: &'a dyn Fn() -> Option<f64>,
}

impl CallbackRunInfo<'_> {
    /// A file of the run's folder.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }
}

/// What [`ConfigCallback::check`] finds, as the callback of that name tells it.
pub(super) fn checked(callback: &impl ConfigCallback, name: &str) -> Result<()> {
    callback.check().map_err(|(argument, e)| e.at(format!("{argument} of {name}")))
}
