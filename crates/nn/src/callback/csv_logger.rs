//! `CSVLogger` callback: writes one line per epoch to a CSV file.

use super::callback_trait::{Callback, CallbackState, FitCx, WriteRetry};
use super::config_callback::{CallbackRunInfo, ConfigCallback};
use crate::json::{Deserialize, Serialize};
use serde_json::json;
use std::path::{Path, PathBuf};
use systole_data::file_system::{FileSystem, OsFileSystem, append, cut};
use systole_ir::{Error, Result, err};

/// Callback that writes one line per epoch to a CSV file.
///
/// A line that cannot be written is reported, kept, and written with the next one, so that a full disk does not end
/// training. If the file cannot be created, a new run fails before its first step; a resumed run does not.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::CSVLogger, Fit};
/// let path = std::env::temp_dir().join(format!("doc-log-{}.csv", std::process::id()));
/// let log = CSVLogger::new(&path);
/// model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(log)], ..Default::default() })?;
/// assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3); // names and two epochs
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound(serialize = "", deserialize = "F: FileSystem + Default"))]
pub struct CSVLogger<F: FileSystem = OsFileSystem> {
    /// File name, in the run's folder. Required.
    pub filename: PathBuf,
    /// Whether to append to an existing file.
    pub append: bool,
    #[serde(skip)]
    files: F,
    #[serde(skip)]
    columns: Vec<String>,
    /// Lines not written yet.
    #[serde(skip)]
    pending: String,
    /// Line of the last epoch, to which a validation may be added.
    #[serde(skip)]
    last: String,
    /// File length at the time of the resumed backup.
    #[serde(skip)]
    resumed_at: Option<u64>,
    /// Length to truncate the file to: later lines are from another run, or from steps that will be repeated.
    #[serde(skip)]
    cut: Option<u64>,
    #[serde(skip)]
    delay: WriteRetry,
}

impl<F: FileSystem + Default> Default for CSVLogger<F> {
    fn default() -> CSVLogger<F> {
        CSVLogger::with_files(F::default(), "")
    }
}

impl CSVLogger {
    /// Creates a logger that overwrites the file.
    pub fn new(path: impl AsRef<Path>) -> CSVLogger {
        CSVLogger::with_files(OsFileSystem, path)
    }
}

impl<F: FileSystem> CSVLogger<F> {
    /// Like [`CSVLogger::new`], on another file system.
    pub fn with_files(files: F, path: impl AsRef<Path>) -> CSVLogger<F> {
        CSVLogger {
            filename: path.as_ref().into(),
            append: false,
            files,
            columns: Vec::new(),
            pending: String::new(),
            last: String::new(),
            resumed_at: None,
            cut: None,
            delay: WriteRetry::default(),
        }
    }

    /// Appends to the file if it exists.
    pub fn append(mut self, yes: bool) -> Self {
        self.append = yes;
        self
    }

    /// Returns the length of the file to keep, in bytes.
    fn length(&self) -> u64 {
        let length = std::fs::metadata(&self.filename).map_or(0, |m| m.len());
        self.cut.map_or(length, |cut| length.min(cut))
    }

    /// Returns the columns in the header of the file to append to.
    fn columns_of_file(&self) -> Option<Vec<String>> {
        let text =
            std::fs::read_to_string(&self.filename).ok().filter(|_| self.append && self.length() > 0)?;
        let header = text.lines().next()?.strip_prefix("epoch,learning_rate,")?;
        Some(header.split(',').map(str::to_string).collect())
    }

    /// Formats the line of an epoch.
    fn line(&self, cx: &FitCx<'_>) -> String {
        let cell = |column: &String| cx.logs.get(column).map_or(String::new(), |v| v.to_string());
        let cells: Vec<String> = self.columns.iter().map(cell).collect();
        format!("{},{},{}\n", cx.epoch, cx.model.learning_rate(), cells.join(","))
    }

    /// Reports values without a column in the file; they are not written.
    fn tell_lacking(&self, cx: &mut FitCx<'_>) {
        let lacking: Vec<&str> =
            logged(cx).map(|(n, _)| n).filter(|n| !self.columns.iter().any(|c| c == n)).collect();
        if !lacking.is_empty() {
            cx.note(format!("{} has no column for {}", self.filename.display(), lacking.join(", ")));
        }
    }

    /// Writes pending lines; on failure they stay pending.
    fn write(&mut self) -> Result<()> {
        let failed = |e| Error::io("cannot write", &self.filename, e);
        if self.cut.is_some() {
            cut(&self.files, &self.filename, self.length()).map_err(failed)?;
            self.cut = None;
        }
        if !self.pending.is_empty() {
            append(&self.files, &self.filename, self.pending.as_bytes()).map_err(failed)?;
            self.pending.clear();
        }
        Ok(())
    }
}

impl<F: FileSystem + Send> ConfigCallback for CSVLogger<F> {
    fn files(&self) -> Vec<(&'static str, &str)> {
        vec![("filename", self.filename.to_str().unwrap_or_default())]
    }

    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.filename = place.file(&self.filename);
    }
}

impl<F: FileSystem + Send> Callback for CSVLogger<F> {
    fn state(&self) -> Result<CallbackState> {
        let values = json!({"bytes": self.length(), "columns": self.columns, "pending": self.pending});
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.resumed_at = Some(state.count("bytes")? as u64);
        self.pending = state.text_of("pending")?.into();
        self.columns = serde_json::from_value(state.get("columns")?.clone()).map_err(|e| {
            err!(Data, "`columns` in CSVLogger's state are not strings")
                .because(e.to_string())
        })?;
        Ok(())
    }

    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !cx.model.leads() {
            return Ok(());
        }
        let resumed_at = self.resumed_at.take();
        self.cut = Some(resumed_at.unwrap_or(if self.append { u64::MAX } else { 0 }));
        let begun = self.write();
        if resumed_at.is_none() {
            return begun;
        }
        self.delay.tell(begun, "the log is", cx);
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !cx.model.leads() {
            return Ok(());
        }
        if self.columns.is_empty()
            && let Some(columns) = self.columns_of_file()
        {
            self.columns = columns;
            self.tell_lacking(cx);
        }
        if self.columns.is_empty() {
            self.columns = logged(cx).map(|(n, _)| n.to_string()).collect();
            // Values that only some epochs have (validation) need a column from the start.
            let validated: Vec<String> = self.columns.iter().map(|c| format!("val_{c}")).collect();
            if !self.columns.iter().any(|c| c.starts_with("val_")) {
                self.columns.extend(validated);
            }
            if !(self.append && self.length() > 0) {
                self.pending += &format!("epoch,learning_rate,{}\n", self.columns.join(","));
            }
        }
        self.last = self.line(cx);
        self.pending += &self.last;
        let written = self.write();
        self.delay.tell(written, "an epoch of the log is", cx);
        Ok(())
    }

    /// Adds the final validation to the line of the last epoch.
    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.is_within_epoch || !cx.model.leads() || self.last.is_empty() {
            return Ok(());
        }
        match self.pending.strip_suffix(self.last.as_str()) {
            Some(before) => self.pending = before.into(),
            None => self.cut = Some(self.length().saturating_sub(self.last.len() as u64)),
        }
        self.last = self.line(cx);
        self.pending += &self.last;
        let written = self.write();
        self.delay.tell(written, "the last line of the log is", cx);
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.delay.tell_at_end("the last epochs of the log are", cx);
        Ok(())
    }
}

/// Returns the logged values except the learning rate, which has its own column.
fn logged<'a>(cx: &FitCx<'a>) -> impl Iterator<Item = (&'a str, f64)> + 'a {
    cx.logs.iter().filter(|(name, _)| *name != "learning_rate")
}
