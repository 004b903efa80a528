//! Backups of a training run: resume a killed run bit-identically, even in the middle of an epoch.
//!
//! A backup is a model file that also holds the run's position, metrics in progress and callback state. Steps pause
//! only while arrays are copied; a thread writes the file.

use crate::callback::CallbackState;
use crate::json::{Deserialize, Serialize};
use crate::layers::CustomLayers;
use crate::model::Model;
use crate::model::history::{History, Logs, Validation};
use crate::model::model_file::ModelFile;
use crate::setters::field_setters;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use systole_data::PipelinePosition;
use systole_data::file_system::{AtomicFile, FileSystem, OsFileSystem, sweep};
use systole_ir::{Error, Literal, Result, ResultExt, err};

/// Backs up a training run in a folder and resumes it from there; Keras's callback of that name, as an argument of
/// `fit` ([`crate::Fit::backup`]).
///
/// A killed run that is started again with the same folder resumes at its last backup, even in the middle of an epoch,
/// and ends with the same bits as an uninterrupted run. A finished run is not trained further. The model must be the
/// same, compiled the same way; the data pipeline must yield the same elements.
///
/// ```
/// use systole_data::Dataset;
/// use systole_ir::Literal;
/// use systole_nn::{layers::*, loss::mean_squared_error, optimizer::sgd, BackupAndRestore, Compile, Fit, Model};
/// let x = Literal::from_slice([8, 1], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
/// let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.shuffle(8, 0).batch(2);
/// let dir = std::env::temp_dir().join(format!("doc-backup-{}", std::process::id()));
/// let train = |epochs| -> systole_ir::Result<Literal> {
///     let mut model = Model::sequential([dense(1)]);
///     model.compile(Compile { optimizer: sgd(0.01), loss: mean_squared_error(), ..Default::default() })?;
///     let backup = Some(BackupAndRestore::new(&dir).every_steps(3));
///     model.fit(&data, Fit { epochs, backup, ..Default::default() })?;
///     model.weight("dense/kernel")
/// };
/// let first = train(2)?;
/// assert_eq!(train(2)?, first); // finished: nothing is trained again
/// assert_ne!(train(3)?, first); // one more epoch
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BackupAndRestore {
    dir: PathBuf,
    every: Option<Duration>,
    every_steps: Option<u64>,
    every_epoch: bool,
    keep: usize,
    restart: bool,
}

impl BackupAndRestore {
    /// Creates backups in `dir`, which is created if missing: after every epoch and every 60 seconds, keeping the last
    /// two.
    pub fn new(dir: impl AsRef<Path>) -> BackupAndRestore {
        BackupAndRestore {
            dir: dir.as_ref().into(),
            every: Some(Duration::from_secs(60)),
            every_steps: None,
            every_epoch: true,
            keep: 2,
            restart: false,
        }
    }

    /// Loads the latest backup in a process that does not write to the folder.
    pub(crate) fn found(&self) -> Result<Option<LoadedBackup>> {
        if self.restart { Ok(None) } else { latest(&self.dir) }
    }

    /// Loads the model of the newest intact backup. A resumed run uses it instead of the saved model it started from.
    ///
    /// # Errors
    /// If no backup is intact, or the model has custom layers.
    pub fn model(&self) -> Result<Option<Model>> {
        let model = |found: LoadedBackup| {
            let path = found.path.display().to_string();
            Model::from_file(found.file, &CustomLayers::default()).at(|| path)
        };
        latest(&self.dir)?.map(model).transpose()
    }

    /// Returns the position of the run in the folder; `None` if there is none.
    ///
    /// # Errors
    /// If no backup is intact.
    pub fn place(&self) -> Result<Option<RunPosition>> {
        Ok(latest(&self.dir)?.map(|found| found.run.place))
    }
}

field_setters! {
    impl BackupAndRestore {
        /// Sets the time between backups; `None`: not by time. Default: 60 seconds.
        every(time: impl Into<Option<Duration>>) => time.into();
        /// Also backs up after every this many steps of the run.
        every_steps(steps: u64) => Some(steps.max(1));
        /// Sets whether to back up after every epoch.
        every_epoch(yes: bool);
        /// Sets the number of backups to keep, at least one.
        keep(backups: usize) => backups.max(1);
        /// Sets whether to discard the run in the folder and delete its backups.
        restart(yes: bool);
    }
}

/// Position of a training run: epoch, steps and data position.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPosition {
    /// Epoch of the next step, from 0.
    pub epoch: usize,
    /// Steps done in that epoch.
    pub steps: usize,
    /// Whether the run is complete.
    pub finished: bool,
    /// Why it ended early, if a callback ended it.
    pub stopped_because: Option<String>,
    /// Training time of all starts in seconds, if `max_time` limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained_seconds: Option<f64>,
    /// Seconds since the last validation, if `val_check_interval` is a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validated_seconds: Option<f64>,
    /// Data position before the next step: `epoch:elements`.
    pub(crate) data: String,
}

/// State of a run in a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunState {
    pub(crate) place: RunPosition,
    initial_epoch: usize,
    /// Logs per epoch; values as text, because JSON has no NaN.
    epochs: Vec<NamedTexts>,
    /// Validations within epochs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    validations: Vec<(usize, u64, NamedTexts)>,
    callbacks: Vec<serde_json::Value>,
    /// Indices of the callbacks that are loggers. Earlier versions did not write it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    loggers: Vec<usize>,
}

/// Values by name, as text.
type NamedTexts = Vec<(String, String)>;

/// A loaded backup.
pub(crate) struct LoadedBackup {
    pub(crate) file: ModelFile,
    pub(crate) run: RunState,
    pub(crate) path: PathBuf,
}

const RUN: &str = "run";
pub(crate) const METRICS: &str = "metrics/";
const CALLBACKS: &str = "callbacks/";
const LOCK: &str = "lock";

impl RunState {
    pub(crate) fn new(
        place: RunPosition,
        history: &History,
        callbacks: &[CallbackState],
        loggers: Vec<usize>,
    ) -> RunState {
        let texts = |logs: &Logs| logs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        RunState {
            place,
            initial_epoch: history.initial_epoch,
            epochs: history.epochs.iter().map(texts).collect(),
            validations: history.validations.iter().map(|v| (v.epoch, v.step, texts(&v.logs))).collect(),
            callbacks: callbacks.iter().map(|c| c.values.clone()).collect(),
            loggers,
        }
    }

    /// Restores the history of the run.
    pub(crate) fn history(&self) -> Result<History> {
        let mut history = History {
            initial_epoch: self.initial_epoch,
            stopped_because: self.place.stopped_because.clone(),
            ..History::default()
        };
        let logs_of = |texts: &NamedTexts| -> Result<Logs> {
            let mut logs = Logs::new();
            for (name, text) in texts {
                let value = text.parse().map_err(|_| unreadable(format!("{name} is `{text}`")))?;
                logs.insert(name, value);
            }
            Ok(logs)
        };
        history.epochs = self.epochs.iter().map(logs_of).collect::<Result<_>>()?;
        for (epoch, step, texts) in &self.validations {
            let validation = Validation { epoch: *epoch, step: *step, logs: logs_of(texts)? };
            history.validations.push(validation);
        }
        Ok(history)
    }

    /// Adds the state to a model file's metadata.
    pub(crate) fn in_file(&self, mut file: ModelFile) -> Result<ModelFile> {
        let text = serde_json::to_string(self)
            .map_err(|e| err!(Bug, "cannot serialize the state of the run").because(e.to_string()))?;
        file.metadata.insert(RUN.into(), text);
        Ok(file)
    }

    pub(crate) fn position(&self) -> Result<PipelinePosition> {
        self.place.data.parse()
    }
}

impl LoadedBackup {
    /// Returns the state of each callback, and whether it was a logger.
    pub(crate) fn callbacks(&mut self) -> Vec<(CallbackState, bool)> {
        let tensors = |k: usize| {
            let prefix = format!("{CALLBACKS}{k}/");
            let own = self.file.tensors.iter().filter_map(|(n, x)| Some((n.strip_prefix(&prefix)?, x)));
            own.map(|(n, x)| (n.to_string(), x.clone())).collect()
        };
        let values = self.run.callbacks.iter().cloned().enumerate();
        let state =
            |(k, values)| (CallbackState { values, tensors: tensors(k) }, self.run.loggers.contains(&k));
        values.map(state).collect()
    }
}

/// Creates a backup's model file from a model and a run.
pub(crate) fn snapshot(model: &Model, run: &RunState, callbacks: Vec<CallbackState>) -> Result<ModelFile> {
    let mut file = model.to_backup()?;
    for (name, value) in model.state.metrics.iter() {
        file.tensors.push((format!("{METRICS}{name}"), model.whole(value)?));
    }
    for (k, state) in callbacks.into_iter().enumerate() {
        let named = |(name, value): (String, Literal)| (format!("{CALLBACKS}{k}/{name}"), value);
        file.tensors.extend(state.tensors.into_iter().map(named));
    }
    run.in_file(file)
}

fn unreadable(why: impl Into<String>) -> Error {
    err!(Data, "cannot read the run's state in the backup").because(why)
}

/// Lists the backups of a folder, newest first.
fn backups(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let number = path
            .file_name()
            .and_then(|n| n.to_str())
            .and_then(|n| n.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse().ok());
        all.extend(number.map(|n| (n, path)));
    }
    all.sort_unstable_by(|a, b| b.cmp(a));
    Ok(all)
}

/// Loads the newest intact backup. Errors of newer ones are ignored if an older one can be loaded.
fn latest(dir: &Path) -> Result<Option<LoadedBackup>> {
    let all = match backups(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        all => all.map_err(|e| Error::io("cannot list the backups in", dir, e))?,
    };
    let mut failed = None;
    for (_, path) in all {
        match read(&path) {
            Ok(found) => return Ok(Some(found)),
            Err(e) => failed = failed.or(Some(e)),
        }
    }
    match failed {
        None => Ok(None),
        Some(e) => Err(err!(Data, "no backup in {} is intact", dir.display())
            .because(e.to_string())
            .hint("move the folder away to train from the start")),
    }
}

fn read(path: &Path) -> Result<LoadedBackup> {
    let file = ModelFile::load(path)?;
    let text = file.metadata.get(RUN).ok_or_else(|| unreadable("the metadata entry is missing"));
    let run = text.and_then(|t| serde_json::from_str(t).map_err(|e| unreadable(e.to_string())));
    Ok(LoadedBackup { run: run.at(|| path.display().to_string())?, file, path: path.into() })
}

/// See [`BackupWriter::written_at_once`].
const WRITTEN_AT_ONCE: usize = 256 << 20;

/// Bytes of arrays that the file reads in the memory of the run.
fn shared_bytes(file: &ModelFile) -> usize {
    file.tensors.iter().filter(|(_, x)| x.is_foreign()).map(|(_, x)| x.bytes().len()).sum()
}

/// Backup folder of a run in progress, and the thread that writes to it.
pub(crate) struct BackupWriter {
    options: BackupAndRestore,
    /// Held until the run ends, so that no other process trains in the folder.
    _lock: File,
    write: Arc<BackupFn>,
    writer: Option<BackupThread>,
    last: Instant,
    at_step: u64,
    /// Bytes of the run's arrays from which a backup that reads them in place is written before the next step.
    written_at_once: usize,
}

/// Writes the backup of a step.
type BackupFn = dyn Fn(&BackupAndRestore, u64, &ModelFile) -> Result<()> + Send + Sync;

/// What the thread does for the backup of a step.
enum BackupJob {
    Write(ModelFile),
    /// Syncs a file that is written already, and gives it its name.
    Publish(AtomicFile<OsFileSystem>),
}

struct BackupThread {
    jobs: SyncSender<(u64, BackupJob)>,
    done: Receiver<Result<()>>,
    thread: JoinHandle<()>,
    /// Whether a backup is being written.
    busy: bool,
}

impl BackupWriter {
    /// Locks a folder for this run, and deletes partial files of killed processes.
    pub(crate) fn open(options: BackupAndRestore) -> Result<BackupWriter> {
        BackupWriter::open_with(
            options,
            Arc::new(|o, step, file| write(&OsFileSystem, &o.dir, o.keep, step, file)),
        )
    }

    fn open_with(options: BackupAndRestore, write: Arc<BackupFn>) -> Result<BackupWriter> {
        let dir = &options.dir;
        let hint = "choose a writable folder";
        fs::create_dir_all(dir).map_err(|e| Error::io("cannot create the folder", dir, e).hint(hint))?;
        let path = dir.join(LOCK);
        let lock = File::create(&path).map_err(|e| Error::io("cannot write", &path, e).hint(hint))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(err!(Io, "the run directory `{}` is in use", dir.display())
                    .because("another process trains a run in this directory")
                    .hint("wait for that process, stop it, or choose another folder"));
            }
            // The file system has no locks: avoiding two runs in one folder is up to the user.
            Err(fs::TryLockError::Error(_)) => {}
        }
        sweep(dir);
        if options.restart {
            for (_, path) in backups(dir).map_err(|e| Error::io("cannot list the backups in", dir, e))? {
                fs::remove_file(&path).map_err(|e| Error::io("cannot remove", &path, e))?;
            }
        }
        Ok(BackupWriter {
            options,
            _lock: lock,
            write,
            writer: None,
            last: Instant::now(),
            at_step: 0,
            written_at_once: WRITTEN_AT_ONCE,
        })
    }

    /// Loads the latest backup.
    pub(crate) fn latest(&self) -> Result<Option<LoadedBackup>> {
        latest(&self.options.dir)
    }

    /// Waits for the backup being written; returns its error, if any.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.settle(true))
    }

    /// Whether a backup is due after a step.
    pub(crate) fn is_due(&self, step: u64, epoch_ends: bool) -> bool {
        let by_steps = self.options.every_steps.is_some_and(|n| step - self.at_step.min(step) >= n);
        let by_time = self.options.every.is_some_and(|t| self.last.elapsed() >= t);
        (epoch_ends && self.options.every_epoch) || by_steps || by_time
    }

    /// Starts writing a backup. If it reads much memory of the run in place, its bytes are written before this returns,
    /// because the next step would need that memory again; the disk has the rest of the time. Skips it while an earlier one is still being written, unless `must`. Returns the error
    /// of the earlier one, if any; training can continue without it.
    pub(crate) fn save(
        &mut self,
        step: u64,
        must: bool,
        file: impl FnOnce() -> Result<ModelFile>,
    ) -> Result<()> {
        let (options, write) = (self.options.clone(), self.write.clone());
        let work = move |step, job| match job {
            // What is written is dropped before the caller hears of it: the next step updates the arrays in place if
            // nothing else holds them.
            BackupJob::Write(file) => write(&options, step, &file),
            BackupJob::Publish(file) => {
                file.publish().and_then(|()| remove_old(&OsFileSystem, &options.dir, options.keep, step))
            }
        };
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(BackupThread::start(work)?),
        };
        let earlier = writer.settle(must);
        if writer.busy {
            return earlier;
        }
        (self.last, self.at_step) = (Instant::now(), step);
        let file = file()?;
        let job = match shared_bytes(&file) >= self.written_at_once {
            true => BackupJob::Publish(file.write_unpublished(&path_of(&self.options.dir, step))?),
            false => BackupJob::Write(file),
        };
        writer.busy = writer.jobs.send((step, job)).is_ok();
        let own = if must { writer.settle(true) } else { Ok(()) };
        earlier.and(own)
    }
}

impl Drop for BackupWriter {
    /// If training fails, its last backup is finished before the folder is unlocked.
    fn drop(&mut self) {
        let Some(mut writer) = self.writer.take() else { return };
        let _ = writer.settle(true);
        drop(writer.jobs);
        let _ = writer.thread.join();
    }
}

impl BackupThread {
    fn start(work: impl Fn(u64, BackupJob) -> Result<()> + Send + 'static) -> Result<BackupThread> {
        let (jobs, inbox) = sync_channel::<(u64, BackupJob)>(1);
        let (outbox, done) = sync_channel(1);
        let all = move || {
            for (step, job) in inbox {
                if outbox.send(work(step, job)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("systole-backup".into()).spawn(all);
        let thread = thread.map_err(|e| err!(Io, "cannot start the backup thread").because(e.to_string()))?;
        Ok(BackupThread { jobs, done, thread, busy: false })
    }

    /// Collects the result of the backup being written, if it is done or `wait` is set.
    fn settle(&mut self, wait: bool) -> Result<()> {
        if !self.busy {
            return Ok(());
        }
        let lost = || err!(Bug, "the backup thread ended unexpectedly");
        let result = match wait {
            true => self.done.recv().map_err(|_| lost()).flatten(),
            false => match self.done.try_recv() {
                Ok(result) => result,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => Err(lost()),
            },
        };
        self.busy = false;
        result
    }
}

/// Writes a backup and, once it is on disk, deletes those that are not kept.
fn write<F: FileSystem>(files: &F, dir: &Path, keep: usize, step: u64, file: &ModelFile) -> Result<()> {
    file.save_with(files, &path_of(dir, step))?;
    remove_old(files, dir, keep, step)
}

fn path_of(dir: &Path, step: u64) -> PathBuf {
    dir.join(format!("step-{step:012}.safetensors"))
}

/// Removes backups before that of a step, except for the `keep` newest.
fn remove_old<F: FileSystem>(files: &F, dir: &Path, keep: usize, step: u64) -> Result<()> {
    let old = backups(dir).map_err(|e| Error::io("cannot list the old backups in", dir, e))?;
    for (_, path) in old.into_iter().filter(|(n, _)| *n <= step).skip(keep) {
        files.remove(&path).map_err(|e| Error::io("cannot remove the old backup", &path, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use systole_ir::{DType, ErrorKind, ForeignMemory, TensorType};

    /// Memory of a run.
    struct Array(Literal);

    impl ForeignMemory for Array {
        fn bytes(&self) -> &[u8] {
            self.0.bytes()
        }
    }

    #[test]
    fn a_large_backup_lets_go_of_the_memory_of_the_run_before_the_next_step() {
        let dir = std::env::temp_dir().join(format!("systole-large-backup-{}", std::process::id()));
        let options = BackupAndRestore::new(&dir);
        let mut backups = BackupWriter::open(options).unwrap();
        backups.written_at_once = 32;
        let array = Arc::new(Array(Literal::from_slice([4], &[1u64, 2, 3, 4]).unwrap()));
        let shared = Literal::from_foreign(TensorType::new(DType::U64, [4]), array.clone()).unwrap();
        let file = ModelFile { tensors: vec![("x".into(), shared)], ..ModelFile::default() };
        backups.save(7, false, || Ok(file)).unwrap();
        assert_eq!(Arc::strong_count(&array), 1);
        backups.wait().unwrap();
        let read = ModelFile::load(path_of(&dir, 7)).unwrap();
        assert_eq!(read.tensors[0].1.as_slice::<u64>().unwrap(), [1, 2, 3, 4]);
        drop(backups);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn steps_go_on_while_a_slow_disk_takes_a_backup() {
        let dir = std::env::temp_dir().join(format!("systole-slow-disk-{}", std::process::id()));
        let (go, gate) = sync_channel::<()>(0);
        let gate = Mutex::new(gate);
        let written = Arc::new(Mutex::new(Vec::new()));
        let seen = written.clone();
        // A disk with controlled delay.
        let slow: Arc<BackupFn> = Arc::new(move |o, step, file| {
            gate.lock().unwrap().recv().unwrap();
            seen.lock().unwrap().push(step);
            write(&OsFileSystem, &o.dir, o.keep, step, file)
        });
        let options = BackupAndRestore::new(&dir).every(None).every_steps(1);
        let mut backups = BackupWriter::open_with(options, slow).unwrap();
        let made = std::cell::Cell::new(0);
        let file = || {
            made.set(made.get() + 1);
            Ok(ModelFile::default())
        };
        // If a step waited for the disk, nothing would ever open the gate.
        for step in 1..=50 {
            if backups.is_due(step, false) {
                backups.save(step, false, file).unwrap();
            }
        }
        assert_eq!(
            (made.get(), written.lock().unwrap().len()),
            (1, 0),
            "what comes due meanwhile is left out"
        );
        let opener = std::thread::spawn(move || (0..2).for_each(|_| go.send(()).unwrap()));
        // The last backup must be written.
        backups.save(50, true, file).unwrap();
        opener.join().unwrap();
        assert_eq!(*written.lock().unwrap(), [1, 50]);
        drop(backups);
        fs::remove_dir_all(dir).unwrap();
    }

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-backup-unit-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn a_backup_is_due_by_steps_by_time_or_after_an_epoch() {
        let dir = folder("due");
        let writer = |set: fn(BackupAndRestore) -> BackupAndRestore| {
            let options = set(BackupAndRestore::new(&dir).every(None).every_epoch(false));
            BackupWriter::open_with(options, Arc::new(|_, _, _| Ok(()))).unwrap()
        };
        let due = |w: &BackupWriter| {
            [(0, false), (2, false), (3, false), (4, true), (5, false), (6, true)]
                .map(|(step, ends)| w.is_due(step, ends))
        };
        assert_eq!(due(&writer(|o| o)), [false; 6]);
        assert_eq!(due(&writer(|o| o.every_epoch(true))), [false, false, false, true, false, true]);
        assert_eq!(due(&writer(|o| o.every(Duration::ZERO))), [true; 6]);
        assert_eq!(due(&writer(|o| o.every(Duration::from_secs(3600)))), [false; 6]);
        let mut by_steps = writer(|o| o.every_steps(3));
        assert_eq!(due(&by_steps), [false, false, true, true, true, true]);
        by_steps.save(3, true, || Ok(ModelFile::default())).unwrap();
        assert_eq!(due(&by_steps), [false, false, false, false, false, true], "counted from the last backup");
        drop(by_steps);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn waiting_returns_the_error_of_the_backup_in_progress_once() {
        let dir = folder("wait");
        let failing: Arc<BackupFn> = Arc::new(|_, step, _| {
            std::thread::sleep(Duration::from_millis(50));
            Err(Error::new(ErrorKind::Io, format!("disk full at step {step}")))
        });
        let mut backups = BackupWriter::open_with(BackupAndRestore::new(&dir), failing).unwrap();
        assert!(backups.wait().is_ok(), "nothing is being written");
        backups.save(7, false, || Ok(ModelFile::default())).unwrap();
        let e = backups.wait().unwrap_err();
        assert_eq!((e.kind(), e.what()), (ErrorKind::Io, "disk full at step 7"));
        assert!(backups.wait().is_ok());
        drop(backups);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_history_is_restored_as_it_was() {
        let place = RunPosition {
            epoch: 5,
            steps: 2,
            finished: false,
            stopped_because: Some("val_loss did not improve".into()),
            trained_seconds: None,
            validated_seconds: None,
            data: "5:12".into(),
        };
        let mut logs = Logs::new();
        logs.insert("loss", f64::NAN);
        logs.insert("accuracy", 0.1 + 0.2);
        let validations = vec![Validation { epoch: 4, step: 31, logs: logs.clone() }];
        let history =
            History { epochs: vec![logs.clone()], validations, initial_epoch: 4, ..History::default() };
        let state = RunState::new(place, &history, &[], vec![]);
        let restored = state.history().unwrap();
        assert_eq!(restored.initial_epoch, 4);
        assert_eq!(restored.stopped_because.as_deref(), Some("val_loss did not improve"));
        assert_eq!((restored.validations.len(), restored.epochs.len()), (1, 1));
        assert_eq!((restored.validations[0].epoch, restored.validations[0].step), (4, 31));
        for restored in [&restored.validations[0].logs, &restored.epochs[0]] {
            assert!(restored["loss"].is_nan());
            assert_eq!(restored["accuracy"], 0.1 + 0.2);
        }
        assert_eq!(state.position().unwrap(), PipelinePosition::new(5, 12));
    }

    #[test]
    fn a_missing_folder_has_no_backup_and_a_file_in_its_place_is_an_error() {
        let dir = folder("missing");
        let options = BackupAndRestore::new(&dir);
        assert!(options.place().unwrap().is_none() && options.found().unwrap().is_none());
        fs::write(&dir, "no folder").unwrap();
        for e in [options.place().unwrap_err(), options.found().err().unwrap()] {
            assert_eq!(e.kind(), ErrorKind::Io);
            assert!(e.to_string().contains(&dir.display().to_string()), "{e}");
        }
        assert!(options.restart(true).found().unwrap().is_none(), "a restarted run reads nothing");
        fs::remove_file(dir).unwrap();
    }
}
