//! The callback that saves the model after epochs.

use super::common::{Callback, CallbackState, Delay, FitCx};
use super::configured::{Checked, Configured, Place, checked};
use super::template::Template;
use super::watch::{Mode, is_better, is_upward, watched};
use crate::file::ModelFile;
use crate::model::Model;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;
use systole_data::disk::{Disk, FileSystem};
use systole_ir::{Error, ErrorKind, Result};

/// Saves the model after epochs. `{epoch}` and names of values in the path are filled in.
///
/// A model that cannot be written is told, kept, and written after the next epoch unless that saves a newer one: a full disk
/// ends no training.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::{Mode, ModelCheckpoint}, Fit};
/// let dir = std::env::temp_dir().join(format!("doc-checkpoint-{}", std::process::id()));
/// let path = format!("{}/{{epoch}}.safetensors", dir.display());
/// let keep = ModelCheckpoint::new(&path).save_best_only("loss", Mode::Min);
/// model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(keep)], ..Default::default() })?;
/// assert_eq!(Model::load(dir.join("2.safetensors"))?.epochs(), 2);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound(serialize = "", deserialize = "F: FileSystem + Default"))]
pub struct ModelCheckpoint<F: FileSystem = Disk> {
    /// The file, in the run's folder; `{epoch:02}` and `{val_loss:.2}` are filled in. Required.
    pub filepath: String,
    /// What the best is known by.
    pub monitor: String,
    /// Whether to save only when it is the best so far.
    pub save_best_only: bool,
    /// Which direction is better.
    pub mode: Mode,
    #[serde(skip)]
    files: F,
    #[serde(skip)]
    best: Option<f64>,
    /// What could not be written yet, and where.
    #[serde(skip)]
    pending: Option<(PathBuf, ModelFile)>,
    #[serde(skip)]
    delay: Delay,
}

impl<F: FileSystem + Default> Default for ModelCheckpoint<F> {
    fn default() -> ModelCheckpoint<F> {
        ModelCheckpoint::with_files(F::default(), "")
    }
}

impl ModelCheckpoint {
    /// Saves to `path` after every epoch: `"runs/{epoch:02}-{val_loss:.2}.safetensors"`.
    pub fn new(path: &str) -> ModelCheckpoint {
        ModelCheckpoint::with_files(Disk, path)
    }
}

impl<F: FileSystem> ModelCheckpoint<F> {
    /// [`ModelCheckpoint::new`] on another file system.
    pub fn with_files(files: F, path: &str) -> ModelCheckpoint<F> {
        ModelCheckpoint {
            filepath: path.into(),
            monitor: "val_loss".into(),
            save_best_only: false,
            mode: Mode::Auto,
            files,
            best: None,
            pending: None,
            delay: Delay::default(),
        }
    }

    /// Saves only when `monitor` is the best so far. Default: after every epoch.
    pub fn save_best_only(mut self, monitor: &str, mode: Mode) -> Self {
        (self.monitor, self.mode, self.save_best_only) = (monitor.into(), mode, true);
        self
    }

    /// Whether this epoch's model is to be saved.
    fn wants(&mut self, cx: &FitCx<'_>) -> Result<bool> {
        if !self.save_best_only {
            return Ok(true);
        }
        let Some(value) = watched(&self.monitor, cx.logs)? else { return Ok(false) };
        let better = is_better(value, self.best, is_upward(self.mode, &self.monitor), 0.0);
        if better {
            self.best = Some(value);
        }
        Ok(better)
    }

    /// Writes what is to be written; what cannot be stays.
    fn write(&mut self) -> Result<()> {
        if let Some((path, file)) = &self.pending {
            file.save_to(&self.files, path)?;
            self.pending = None;
        }
        Ok(())
    }
}

impl<F: FileSystem + Send> Configured for ModelCheckpoint<F> {
    fn check(&self) -> Checked {
        Template::parse(&self.filepath).map(drop).map_err(|e| ("filepath", e))
    }

    fn monitor(&self) -> Option<&str> {
        self.save_best_only.then_some(self.monitor.as_str())
    }

    fn files(&self) -> Vec<(&'static str, &str)> {
        vec![("filepath", &self.filepath)]
    }

    fn take_place(&mut self, place: &Place<'_>) {
        self.monitor = (place.logged)(&self.monitor);
        self.filepath = place.file(&self.filepath).display().to_string();
    }
}

impl<F: FileSystem + Send> Callback for ModelCheckpoint<F> {
    fn state(&self) -> Result<CallbackState> {
        Ok(CallbackState { values: json!({"best": CallbackState::float(self.best)}), ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.best = state.float_of("best")?;
        Ok(())
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "ModelCheckpoint")?;
        let template = Template::parse(&self.filepath)?;
        template.check(&measured(cx.model))?;
        match template.folder().filter(|_| cx.model.leads()) {
            Some(folder) => std::fs::create_dir_all(&folder)
                .map_err(|e| Error::io("cannot make the folder", &folder, e).hint("choose another path")),
            None => Ok(()),
        }
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.wants(cx)? {
            let template = Template::parse(&self.filepath)?;
            template.check(&measured(cx.model))?;
            // Validation may run every few epochs only: a name that needs its values is known then.
            let needed = template.values().filter(|v| !v.starts_with("val_")).collect::<Vec<_>>();
            if let Some(lacking) = needed.into_iter().find(|v| cx.logs.get(v).is_none()) {
                return Err(Error::new(
                    ErrorKind::Config,
                    format!("the path `{}` needs {lacking}", self.filepath),
                )
                .because("it was not measured in this epoch")
                .hint("name values that each epoch has"));
            }
            if let Some(path) = template.fill(cx.epoch, cx.logs) {
                // All hosts put the arrays together; one writes them.
                let file = cx.model.to_file()?;
                self.pending = cx.model.leads().then_some((path, file));
            }
        }
        let written = self.write();
        self.delay.tell(written, "a checkpoint is", cx);
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the last checkpoint is", cx);
        Ok(())
    }
}

/// The values that training measures, without those of a validation.
fn measured(model: &Model) -> Vec<String> {
    let metrics = model.compile_config().map(|c| c.metrics.iter().map(|m| m.name().to_string()));
    std::iter::once("loss".to_string()).chain(metrics.into_iter().flatten()).collect()
}
