//! `TensorBoard` callback: writes event files with Keras's tags.
//!
//! Each process of a run writes its own files. A resumed run truncates the previous process's files to the state of its
//! backup, so that no step appears twice.

use super::callback_trait::{Callback, CallbackState, FitCx, WriteRetry};
use super::config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback, checked};
use crate::json::{Deserialize, Serialize};
use crate::model::architecture::{Architecture, InputSpec, LayerNode, NodeInput};
use crate::setters::field_setters;
use serde::{Deserializer, Serializer};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;
use systole_data::file_system::{FileSystem, OsFileSystem, append, cut};
use systole_data::format::png;
use systole_data::format::tensorboard_events::{self, HParamValue, SummaryValue, TensorBoardGraphNode};
use systole_ir::{Error, Literal, Result, err};

/// Maximum bytes buffered while a file cannot be written.
const MOST: usize = 16 << 20;
/// Maximum number of images per weight, as in TensorFlow.
const PICTURES: usize = 3;

/// How often [`TensorBoard`] writes loss and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateFreq {
    /// After each epoch.
    #[default]
    Epoch,
    /// Also after each step.
    Batch,
    /// Also after every this many steps.
    Steps(u64),
}

/// Serialized form in configurations.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"epoch\", \"batch\" or a number of steps")]
enum SerializedUpdateFreq {
    Named(NamedFreq),
    Steps(u64),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NamedFreq {
    Epoch,
    Batch,
}

impl Serialize for UpdateFreq {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            UpdateFreq::Epoch => SerializedUpdateFreq::Named(NamedFreq::Epoch),
            UpdateFreq::Batch => SerializedUpdateFreq::Named(NamedFreq::Batch),
            UpdateFreq::Steps(n) => SerializedUpdateFreq::Steps(*n),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for UpdateFreq {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<UpdateFreq, D::Error> {
        Ok(match SerializedUpdateFreq::deserialize(deserializer)? {
            SerializedUpdateFreq::Named(NamedFreq::Epoch) => UpdateFreq::Epoch,
            SerializedUpdateFreq::Named(NamedFreq::Batch) => UpdateFreq::Batch,
            SerializedUpdateFreq::Steps(n) => UpdateFreq::Steps(n),
        })
    }
}

/// Callback that writes loss, metrics, learning rate, weights and the model's layers as event files for TensorBoard.
///
/// Training goes to `log_dir/train`, validation to `log_dir/validation`, texts and hyperparameters to `log_dir` itself;
/// tags are Keras's. Events that cannot be written are reported, kept, and written after a later epoch, so that a full
/// disk does not end training. If the folder is not writable, a new run fails before its first step; a resumed run does
/// not.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::{TensorBoard, UpdateFreq}, Fit};
/// let dir = std::env::temp_dir().join(format!("doc-tensorboard-{}", std::process::id()));
/// let log = TensorBoard::new(&dir).histogram_freq(1).update_freq(UpdateFreq::Batch);
/// let (validation, callbacks) = (Some(data.clone()), vec![Box::new(log) as _]);
/// model.fit(&data, Fit { epochs: 2, validation, callbacks, ..Default::default() })?;
/// // tensorboard --logdir …
/// assert!(dir.join("train").is_dir() && dir.join("validation").is_dir());
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound(serialize = "", deserialize = "F: FileSystem + Default"))]
pub struct TensorBoard<F: FileSystem = OsFileSystem> {
    /// Log folder, in the run's folder.
    pub log_dir: PathBuf,
    /// Epochs between histograms of the weights; 0: no histograms.
    pub histogram_freq: usize,
    /// Whether to write the layers as a graph.
    pub write_graph: bool,
    /// Whether to write weights as images, along with their histograms.
    pub write_images: bool,
    /// Whether to write gradient histograms of the epoch's last batch, along with those of the weights.
    pub write_grads: bool,
    /// Whether to write steps per second.
    pub write_steps_per_second: bool,
    /// How often to write loss and metrics: after epochs, also after each step, or after every this many steps.
    pub update_freq: UpdateFreq,
    #[serde(skip)]
    files: F,
    #[serde(skip)]
    overwrite: bool,
    #[serde(skip)]
    names: BTreeMap<String, String>,
    #[serde(skip)]
    texts: Vec<(String, String)>,
    #[serde(skip)]
    hparams: Vec<(String, HParamValue)>,
    /// Name of this process's event files.
    #[serde(skip)]
    name: String,
    #[serde(skip)]
    runs: [EventFile; 3],
    /// File position in the resumed backup.
    #[serde(skip)]
    resumed: Option<ResumedEventFile>,
    #[serde(skip)]
    delay: WriteRetry,
    /// Whether events were dropped because too many could not be written.
    #[serde(skip)]
    is_lossy: bool,
    /// When the epoch started or resumed, and at which step; likewise for the last logged step.
    #[serde(skip)]
    epoch_began: StepStart,
    #[serde(skip)]
    batch_began: StepStart,
}

/// Start time and step of an interval.
#[derive(Clone, Copy)]
struct StepStart(Instant, u64);

impl Default for StepStart {
    fn default() -> StepStart {
        StepStart(Instant::now(), 0)
    }
}

/// One TensorBoard run: a folder with one event file of this process.
#[derive(Default)]
struct EventFile {
    /// File length in bytes.
    bytes: u64,
    /// Records not written yet.
    pending: Vec<u8>,
}

/// Event files of the previous process, and how much of each to keep.
struct ResumedEventFile {
    name: String,
    bytes: Vec<u64>,
}

const TRAIN: usize = 0;
const VALIDATION: usize = 1;
const ROOT: usize = 2;
const FOLDERS: [&str; 3] = ["train", "validation", ""];

impl<F: FileSystem + Default> Default for TensorBoard<F> {
    fn default() -> TensorBoard<F> {
        TensorBoard::with_files(F::default(), "tensorboard")
    }
}

impl TensorBoard {
    /// Creates a TensorBoard callback that writes below `log_dir` (Keras's default: `logs`), which is created if
    /// missing.
    pub fn new(log_dir: impl AsRef<Path>) -> TensorBoard {
        TensorBoard::with_files(OsFileSystem, log_dir)
    }
}

impl<F: FileSystem> TensorBoard<F> {
    /// Like [`TensorBoard::new`], on another file system.
    pub fn with_files(files: F, log_dir: impl AsRef<Path>) -> TensorBoard<F> {
        TensorBoard {
            log_dir: log_dir.as_ref().into(),
            histogram_freq: 0,
            write_graph: true,
            write_images: false,
            write_grads: false,
            write_steps_per_second: false,
            update_freq: UpdateFreq::Epoch,
            files,
            overwrite: false,
            names: BTreeMap::new(),
            texts: Vec::new(),
            hparams: Vec::new(),
            name: String::new(),
            runs: Default::default(),
            resumed: None,
            delay: WriteRetry::default(),
            is_lossy: false,
            epoch_began: StepStart::default(),
            batch_began: StepStart::default(),
        }
    }

    /// Writes the value `name` under another name: Keras logs `accuracy` under the requested name. Default: unchanged.
    pub fn call(mut self, name: &str, shown: &str) -> Self {
        self.names.insert(name.into(), shown.into());
        self
    }

    /// Writes a Markdown text at the start of the run. Default: none.
    pub fn text(mut self, tag: &str, markdown: &str) -> Self {
        self.texts.push((tag.into(), markdown.into()));
        self
    }

    /// Writes the value of a hyperparameter at the start of the run. Default: none.
    pub fn hparam(mut self, name: &str, value: HParamValue) -> Self {
        self.hparams.push((name.into(), value));
        self
    }

    fn folder(&self, run: usize) -> PathBuf {
        self.log_dir.join(FOLDERS[run])
    }

    fn folders(&self) -> [PathBuf; 3] {
        [TRAIN, VALIDATION, ROOT].map(|run| self.folder(run))
    }

    /// Buffers a record; drops it if the buffer is full.
    fn put(&mut self, run: usize, record: impl FnOnce(&mut Vec<u8>)) {
        let pending = &mut self.runs[run].pending;
        if pending.len() < MOST { record(pending) } else { self.is_lossy = true }
    }

    fn put_scalar(&mut self, run: usize, step: u64, tag: &str, value: f64) {
        self.put(run, |out| tensorboard_events::put_value(out, step, tag, &SummaryValue::Scalar(value)));
    }

    fn called<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// Writes pending records; on failure they stay pending.
    fn write(&mut self) -> Result<()> {
        for run in [TRAIN, VALIDATION, ROOT] {
            if !self.runs[run].pending.is_empty() {
                self.write_run(run)?;
            }
        }
        Ok(())
    }

    /// Writes the records of one run; creates its file if needed.
    fn write_run(&mut self, run: usize) -> Result<()> {
        let folder = self.folder(run);
        std::fs::create_dir_all(&folder)
            .map_err(|e| Error::io("cannot create the folder", &folder, e).hint("choose another log_dir"))?;
        let mut bytes = Vec::new();
        if self.runs[run].bytes == 0 {
            tensorboard_events::put_header(&mut bytes);
        }
        bytes.extend_from_slice(&self.runs[run].pending);
        let path = folder.join(&self.name);
        // The last attempt may have left a partial record.
        let is_longer = std::fs::metadata(&path).is_ok_and(|m| m.len() > self.runs[run].bytes);
        let cleared = if is_longer { cut(&self.files, &path, self.runs[run].bytes) } else { Ok(()) };
        cleared.and_then(|()| append(&self.files, &path, &bytes)).map_err(|e| {
            Error::io("cannot write", &path, e).hint("free disk space, or choose another log_dir")
        })?;
        self.runs[run].bytes += bytes.len() as u64;
        self.runs[run].pending.clear();
        Ok(())
    }

    /// Truncates events of previous processes after the backup.
    fn cut_off(&self, resumed: &ResumedEventFile) -> Result<()> {
        for (folder, &length) in self.folders().iter().zip(&resumed.bytes) {
            for file in tensorboard_events::files_of(folder) {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let size = std::fs::metadata(&file).map_or(0, |m| m.len());
                let done = match name.as_ref() == resumed.name {
                    true if length > 0 && size > length => cut(&self.files, &file, length),
                    true if length == 0 => self.files.remove(&file),
                    false if *name > *resumed.name => self.files.remove(&file),
                    _ => Ok(()),
                };
                done.map_err(|e| Error::io("cannot remove later steps from", &file, e))?;
            }
        }
        Ok(())
    }

    /// Removes the event files of an earlier run.
    fn remove_all(&self) -> Result<()> {
        self.folders().iter().flat_map(|folder| tensorboard_events::files_of(folder)).try_for_each(|file| {
            self.files.remove(&file).map_err(|e| {
                Error::io("cannot remove the events of an earlier run,", &file, e)
                    .hint("choose another log_dir")
            })
        })
    }

    /// Buffers graph, texts and hyperparameters of a new run.
    fn begin(&mut self, cx: &FitCx<'_>) {
        let step = cx.model.steps();
        if self.write_graph {
            let nodes = graph(cx.model.architecture());
            self.put(TRAIN, |out| tensorboard_events::put_graph(out, step, &nodes));
        }
        for (tag, markdown) in self.texts.clone() {
            self.put(ROOT, |out| {
                tensorboard_events::put_value(out, step, &tag, &SummaryValue::Text(markdown))
            });
        }
        if !self.hparams.is_empty() {
            let hparams = self.hparams.clone();
            self.put(ROOT, |out| tensorboard_events::put_session_start(out, &hparams));
        }
    }

    /// Buffers weights as histograms and images. All hosts gather the weights together; one writes them.
    fn put_weights(&mut self, cx: &FitCx<'_>) -> Result<()> {
        let step = cx.epoch as u64;
        for (name, weight) in cx.model.weights() {
            let weight = cx.model.whole(weight)?;
            if !cx.model.leads() {
                continue;
            }
            let buckets = SummaryValue::Histogram(tensorboard_events::histogram(&weight.to_f64s()));
            self.put(TRAIN, |out| {
                tensorboard_events::put_value(out, step, &format!("{name}/histogram"), &buckets)
            });
            if self.write_images
                && let Some(pictures) = pictures(&weight)?
            {
                self.put(TRAIN, |out| {
                    tensorboard_events::put_value(out, step, &format!("{name}/image"), &pictures)
                });
            }
        }
        Ok(())
    }

    fn put_gradients(&mut self, cx: &FitCx<'_>) -> Result<()> {
        // None if the run resumed after the last step of an epoch.
        let Some(batch) = cx.last_batch.filter(|_| self.write_grads) else { return Ok(()) };
        for (name, gradient) in cx.model.gradients(batch)? {
            let buckets = SummaryValue::Histogram(tensorboard_events::histogram(&gradient.to_f64s()));
            let tag = format!("{name}_grad/histogram");
            if cx.model.leads() {
                self.put(TRAIN, |out| tensorboard_events::put_value(out, cx.epoch as u64, &tag, &buckets));
            }
        }
        Ok(())
    }

    fn has_histograms(&self, epoch: usize) -> bool {
        self.histogram_freq > 0 && epoch.is_multiple_of(self.histogram_freq)
    }

    fn put_epoch(&mut self, cx: &FitCx<'_>) {
        let (epoch, step) = (cx.epoch as u64, cx.model.steps());
        // The learning rate is written below, whichever callback logs it.
        let trained = |name: &str| !name.starts_with("val_") && name != "learning_rate";
        for (name, value) in cx.logs.iter().filter(|(name, _)| trained(name)) {
            let tag = format!("epoch_{}", self.called(name));
            self.put_scalar(TRAIN, epoch, &tag, value);
        }
        self.put_validation(cx);
        self.put_scalar(TRAIN, epoch, "epoch_learning_rate", cx.model.learning_rate());
        if self.write_steps_per_second {
            self.put_scalar(TRAIN, epoch, "epoch_steps_per_second", speed(self.epoch_began, step));
        }
    }

    /// Buffers validation values by step, and at the end of an epoch also by epoch.
    fn put_validation(&mut self, cx: &FitCx<'_>) {
        let (epoch, step) = (cx.epoch as u64, cx.model.steps());
        for (name, value) in cx.logs.iter().filter_map(|(n, v)| Some((n.strip_prefix("val_")?, v))) {
            let name = self.called(name).to_string();
            if !cx.is_within_epoch {
                self.put_scalar(VALIDATION, epoch, &format!("epoch_{name}"), value);
            }
            self.put_scalar(VALIDATION, step, &format!("evaluation_{name}_vs_iterations"), value);
        }
    }

    /// Starts both clocks.
    fn start_clocks(&mut self, cx: &FitCx<'_>) {
        self.epoch_began = StepStart(Instant::now(), cx.model.steps());
        self.batch_began = self.epoch_began;
    }

    fn writes_after(&self, step: u64) -> bool {
        match self.update_freq {
            UpdateFreq::Epoch => false,
            UpdateFreq::Batch => true,
            UpdateFreq::Steps(n) => n > 0 && step.is_multiple_of(n),
        }
    }
}

field_setters! {
    impl<F: FileSystem> TensorBoard<F> {
        /// Writes a histogram of every weight after every this many epochs; 0: never.
        histogram_freq(epochs: usize);
        /// Sets whether to write the layers as a graph.
        write_graph(yes: bool);
        /// Sets whether to write weights as images, along with their histograms: vectors, matrices and stacks of up to
        /// three of them.
        write_images(yes: bool);
        /// Sets whether to write gradient histograms of the epoch's last batch, along with those of the weights.
        /// Compiles a program for them each time.
        write_grads(yes: bool);
        /// Sets whether to write steps per second, for epochs and for `update_freq`.
        write_steps_per_second(yes: bool);
        /// Sets how often loss and metrics of the epoch so far are written. Default: `UpdateFreq::Epoch`.
        update_freq(freq: UpdateFreq);
        /// Sets whether a new run removes the event files of an earlier one; Keras appends to them.
        overwrite(yes: bool);
    }
}

/// Returns steps per second since `(time, step)`.
fn speed(StepStart(began, first): StepStart, step: u64) -> f64 {
    step.saturating_sub(first) as f64 / began.elapsed().as_secs_f64().max(1e-9)
}

/// Returns the layers as nodes, and the inputs as placeholders.
fn graph(architecture: &Architecture) -> Vec<TensorBoardGraphNode> {
    let mut names: Vec<String> = Vec::new();
    // Layers that share their weights share their name.
    let mut unique = |name: &str| {
        let again = (1..).map(|i| format!("{name}_{i}"));
        let mut names_of = std::iter::once(name.to_string()).chain(again);
        let free = names_of.find(|n| !names.contains(n)).unwrap_or_default();
        names.push(free.clone());
        free
    };
    let inputs: Vec<String> = architecture.inputs.iter().map(|input| unique(&input.name)).collect();
    let layers: Vec<String> = architecture.nodes.iter().map(|node| unique(&node.name)).collect();
    let source = |from: &NodeInput| match from {
        NodeInput::Input(i) => inputs.get(*i).cloned().unwrap_or_default(),
        NodeInput::Layer(i) => layers.get(*i).cloned().unwrap_or_default(),
    };
    let placeholder = |(input, name): (&InputSpec, &String)| TensorBoardGraphNode {
        name: name.clone(),
        op: "Placeholder".into(),
        inputs: Vec::new(),
        config: input.ty.as_ref().map_or(String::new(), ToString::to_string),
    };
    let layer = |(node, name): (&LayerNode, &String)| TensorBoardGraphNode {
        name: name.clone(),
        op: node.layer.class_name().into(),
        inputs: node.inputs.iter().map(source).collect(),
        config: node.layer.to_json().to_string(),
    };
    let nodes = architecture.inputs.iter().zip(&inputs).map(placeholder);
    nodes.chain(architecture.nodes.iter().zip(&layers).map(layer)).collect()
}

/// Converts a weight to images as Keras does, ignoring dimensions of size 1: `f32[N]` as a column, `f32[N, M]`
/// transposed, `f32[H, W, N]` as N images, of which the first few are used; other shapes have none. 0 is black, 1
/// white.
fn pictures(weight: &Literal) -> Result<Option<SummaryValue>> {
    let dims: Vec<usize> = weight.shape().dims().iter().copied().filter(|&d| d != 1).collect();
    // Height, width, number of images, and the strides of their elements.
    let (sizes, strides) = match dims[..] {
        [n] => ([n, 1, 1], [1, 0, 0]),
        [n, m] if n > m => ([m, n, 1], [1, m, 0]),
        [n, m] => ([n, m, 1], [m, 1, 0]),
        [h, w, n] => ([h, w, n], [w * n, n, 1]),
        _ => return Ok(None),
    };
    let [height, width, count] = sizes;
    if height * width * count == 0 {
        return Ok(None);
    }
    let values = weight.to_f32s();
    let mut pngs = Vec::new();
    for k in 0..count.min(PICTURES) {
        let at = |i: usize| (i / width) * strides[0] + (i % width) * strides[1] + k * strides[2];
        let shade = |i: usize| (values.get(at(i)).copied().unwrap_or(0.0) * 255.5).clamp(0.0, 255.0) as u8;
        let pixels: Vec<u8> = (0..height * width).map(shade).collect();
        pngs.push(png::to_bytes(&Literal::from_slice([height, width], &pixels)?)?);
    }
    Ok(Some(SummaryValue::Images { width, height, pngs }))
}

impl<F: FileSystem + Send> ConfigCallback for TensorBoard<F> {
    fn check(&self) -> ArgumentCheck {
        if self.write_grads && self.histogram_freq == 0 {
            let e = err!(Config, "write_grads has no effect without histogram_freq");
            return Err((
                "write_grads",
                e.hint("set histogram_freq, such as 1 for histograms after each epoch"),
            ));
        }
        match self.update_freq {
            UpdateFreq::Steps(0) => Err((
                "update_freq",
                err!(Config, "update_freq is 0")
                    .hint("choose \"epoch\", \"batch\" or a number of steps of at least 1"),
            )),
            _ => Ok(()),
        }
    }

    fn files(&self) -> Vec<(&'static str, &str)> {
        vec![("log_dir", self.log_dir.to_str().unwrap_or_default())]
    }

    /// Adds the configuration as a text, and its keys as hyperparameters.
    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.log_dir = place.file(&self.log_dir);
        self.overwrite = true;
        self.names.extend(place.names.iter().cloned());
        self.texts.push(("configuration".into(), format!("```toml\n{}```", place.text)));
        self.hparams.extend(place.hparams.iter().cloned());
    }
}

impl<F: FileSystem + Send> Callback for TensorBoard<F> {
    fn state(&self) -> Result<CallbackState> {
        let bytes: Vec<u64> = self.runs.iter().map(|run| run.bytes).collect();
        let mut tensors = Vec::new();
        for (i, run) in self.runs.iter().enumerate().filter(|(_, run)| !run.pending.is_empty()) {
            let pending = Literal::from_slice([run.pending.len()], &run.pending)?;
            tensors.push((format!("pending/{i}"), pending));
        }
        Ok(CallbackState { values: json!({"file": self.name, "bytes": bytes}), tensors })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        let name = state.values["file"].as_str().unwrap_or_default().to_string();
        let bytes = state.values["bytes"].as_array().into_iter().flatten().filter_map(|n| n.as_u64());
        let resumed = ResumedEventFile { name, bytes: bytes.collect() };
        if !tensorboard_events::is_event_file(&resumed.name) || resumed.bytes.len() != FOLDERS.len() {
            let e = err!(Data, "TensorBoard's state in the backup names no event files");
            return Err(e.hint("resume with the callbacks of the original run"));
        }
        self.resumed = Some(resumed);
        for (i, run) in self.runs.iter_mut().enumerate() {
            let found = state.tensors.iter().find(|(name, _)| *name == format!("pending/{i}"));
            run.pending = found.map_or(Ok(Vec::new()), |(_, x)| x.as_slice::<u8>().map(<[u8]>::to_vec))?;
        }
        Ok(())
    }

    fn is_logger(&self) -> bool {
        true
    }

    fn wants_last_batch(&self, epoch: usize) -> bool {
        self.write_grads && self.has_histograms(epoch)
    }

    fn wants_batch(&self, step: u64) -> bool {
        self.writes_after(step)
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "TensorBoard")?;
        self.start_clocks(cx);
        let resumed = self.resumed.take();
        let cleared = match &resumed {
            _ if !cx.model.leads() => Ok(()),
            Some(resumed) => self.cut_off(resumed),
            None if self.overwrite && cx.model.steps() == 0 => self.remove_all(),
            None => Ok(()),
        };
        self.name = tensorboard_events::next_name(&self.folders());
        if resumed.is_some() {
            if let Err(e) = cleared {
                cx.note(format!("TensorBoard shows some steps twice: {e}"));
            }
            return Ok(());
        }
        cleared?;
        self.runs = Default::default();
        if !cx.model.leads() {
            return Ok(());
        }
        self.begin(cx);
        // Write even if nothing is pending, so that a folder that is not writable fails before training.
        self.write_run(TRAIN)?;
        self.write()
    }

    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.start_clocks(cx);
        Ok(())
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let step = cx.model.steps();
        if !self.writes_after(step) || !cx.model.leads() {
            return Ok(());
        }
        for (name, value) in cx.logs.iter() {
            let tag = format!("batch_{}", self.called(name));
            self.put_scalar(TRAIN, step, &tag, value);
        }
        if self.write_steps_per_second {
            self.put_scalar(TRAIN, step, "batch_steps_per_second", speed(self.batch_began, step));
            self.batch_began = StepStart(Instant::now(), step);
        }
        // After a failure, retry only after epochs.
        if !self.delay.is_told {
            let written = self.write();
            self.delay.tell(written, "TensorBoard's events are", cx);
        }
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.has_histograms(cx.epoch) {
            self.put_weights(cx)?;
            self.put_gradients(cx)?;
        }
        if !cx.model.leads() {
            return Ok(());
        }
        self.put_epoch(cx);
        let written = self.write();
        self.delay.tell(written, "TensorBoard's events are", cx);
        Ok(())
    }

    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.model.leads() {
            self.put_validation(cx);
            let written = self.write();
            self.delay.tell(written, "TensorBoard's events are", cx);
        }
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if !cx.model.leads() {
            return Ok(());
        }
        let is_over = cx.model.epochs() >= cx.epoch || cx.stop_because.is_some();
        if is_over && !self.hparams.is_empty() {
            self.put(ROOT, tensorboard_events::put_session_end);
        }
        let written = self.write();
        self.delay.tell(written, "TensorBoard's events are", cx);
        self.delay.tell_at_end("TensorBoard's last events are", cx);
        if self.is_lossy {
            cx.note("some TensorBoard events are missing: too many could not be written in time".into());
        }
        Ok(())
    }
}
