//! `[[callbacks]]`: tables with a `type` and Keras's arguments.

use super::blame::{Wrong, from_serde, unknown};
use serde::{Deserialize, Serialize};
use std::path::Path;
use systole_nn::callback::{
    CSVLogger, Callback, EarlyStopping, HParam, Mode, ModelCheckpoint, ReduceLROnPlateau, TensorBoard,
    TerminateOnNaN, UpdateFreq,
};
use toml::{Table, Value};

/// A callback of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum CallbackSection {
    /// Ends training once a value has not improved for some epochs.
    EarlyStopping {
        /// What is watched.
        #[serde(default = "val_loss")]
        monitor: String,
        /// Changes smaller than this are no improvement.
        #[serde(default)]
        min_delta: f64,
        /// Epochs without improvement that are waited for.
        #[serde(default)]
        patience: usize,
        /// Which direction is better.
        #[serde(default)]
        mode: Direction,
        /// A value that must be beaten for waiting to start over. Default: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        baseline: Option<f64>,
        /// Whether the weights of the best epoch are put back at the end.
        #[serde(default)]
        restore_best_weights: bool,
        /// Epochs before this one do not count.
        #[serde(default)]
        start_from_epoch: usize,
    },
    /// Lowers the learning rate, which must be a number, once a value has not improved for some epochs.
    ReduceLROnPlateau {
        /// What is watched.
        #[serde(default = "val_loss")]
        monitor: String,
        /// What the rate is multiplied by.
        #[serde(default = "tenth")]
        factor: f64,
        /// Epochs without improvement that are waited for.
        #[serde(default = "ten")]
        patience: usize,
        /// Epochs after a change that do not count.
        #[serde(default)]
        cooldown: usize,
        /// The lowest rate.
        #[serde(default)]
        min_lr: f64,
    },
    /// Saves the model after epochs, beside what the run saves by itself.
    ModelCheckpoint {
        /// The file, in the run's folder; `{epoch:02}` and `{val_loss:.2}` are filled in.
        filepath: String,
        /// What the best is known by.
        #[serde(default = "val_loss")]
        monitor: String,
        /// Whether to save only when it is the best so far.
        #[serde(default)]
        save_best_only: bool,
        /// Which direction is better.
        #[serde(default)]
        mode: Direction,
    },
    /// A line of values for each epoch.
    CSVLogger {
        /// The file, in the run's folder.
        filename: String,
        /// Whether to add to a file that exists.
        #[serde(default)]
        append: bool,
    },
    /// Ends training where the loss is not finite.
    TerminateOnNaN {},
    /// Writes event files for TensorBoard.
    TensorBoard {
        /// The folder, in the run's folder.
        #[serde(default = "tensorboard")]
        log_dir: String,
        /// After how many epochs each histograms of the weights are written; 0: never.
        #[serde(default)]
        histogram_freq: usize,
        /// Whether the layers are written as a graph.
        #[serde(default = "yes")]
        write_graph: bool,
        /// Whether weights are written as pictures beside their histograms.
        #[serde(default)]
        write_images: bool,
        /// Whether steps per second are written.
        #[serde(default)]
        write_steps_per_second: bool,
        /// How often loss and metrics are written: after epochs, after each step too, or after every so many.
        #[serde(default)]
        update_freq: Frequency,
    },
}

/// The types of [`CallbackSection`].
pub const CALLBACKS: [&str; 6] =
    ["EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "CSVLogger", "TerminateOnNaN", "TensorBoard"];

/// What `--logger` adds to the callbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logger {
    /// [`CallbackSection::TensorBoard`] with its defaults, where there is none.
    TensorBoard,
    /// Nothing; those that there are are taken out.
    None,
}

/// See [`UpdateFreq`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"epoch\", \"batch\" or a number of steps")]
pub enum Frequency {
    /// By name.
    Named(Named),
    /// After every so many steps, too.
    Steps(u64),
}

/// A [`Frequency`] that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Named {
    /// After each epoch.
    Epoch,
    /// After each step, too.
    Batch,
}

impl Default for Frequency {
    fn default() -> Frequency {
        Frequency::Named(Named::Epoch)
    }
}

impl From<Frequency> for UpdateFreq {
    fn from(frequency: Frequency) -> UpdateFreq {
        match frequency {
            Frequency::Named(Named::Epoch) => UpdateFreq::Epoch,
            Frequency::Named(Named::Batch) => UpdateFreq::Batch,
            Frequency::Steps(n) => UpdateFreq::Steps(n),
        }
    }
}

/// A run that callbacks are made for.
pub(super) struct Place<'a> {
    /// Where its files lie.
    pub folder: &'a Path,
    /// Values by the names that are logged, and as the configuration calls them.
    pub names: Vec<(String, String)>,
    /// The whole configuration.
    pub whole: Table,
}

/// See [`Mode`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the name.
    #[default]
    Auto,
    /// Lower is better.
    Min,
    /// Higher is better.
    Max,
}

fn val_loss() -> String {
    "val_loss".into()
}

fn tensorboard() -> String {
    "tensorboard".into()
}

fn yes() -> bool {
    true
}

fn tenth() -> f64 {
    0.1
}

fn ten() -> usize {
    10
}

impl From<Direction> for Mode {
    fn from(direction: Direction) -> Mode {
        match direction {
            Direction::Auto => Mode::Auto,
            Direction::Min => Mode::Min,
            Direction::Max => Mode::Max,
        }
    }
}

/// The callback of the table at this place.
pub(super) fn section(at: usize, table: &Table) -> Result<CallbackSection, Wrong> {
    let path = format!("callbacks.{at}");
    let Some(name) = table.get("type").and_then(Value::as_str) else {
        return Err(
            Wrong::new(&path, "a callback has no `type`").hint(format!("one of: {}", CALLBACKS.join(", ")))
        );
    };
    // As layers, in snake case too.
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let Some(class) = CALLBACKS.into_iter().find(|known| plain(known) == plain(name)) else {
        return Err(Wrong::of(&format!("{path}.type"), unknown("there is no callback", name, &CALLBACKS)));
    };
    let mut table = table.clone();
    table.insert("type".into(), class.into());
    let section = Value::Table(table).try_into::<CallbackSection>();
    let section =
        section.map_err(|e| Wrong::of(&path, from_serde(e.message()).at(format!("callback {class}"))))?;
    section.check(&path)?;
    Ok(section)
}

impl CallbackSection {
    fn check(&self, path: &str) -> Result<(), Wrong> {
        match self {
            CallbackSection::ReduceLROnPlateau { factor, .. } if !(0.0..1.0).contains(factor) => {
                let what = format!("factor is {factor}");
                Err(Wrong::new(&format!("{path}.factor"), what)
                    .hint("choose a number from 0 to below 1; 0.1 is usual"))
            }
            CallbackSection::ModelCheckpoint { filepath: file, .. }
            | CallbackSection::CSVLogger { filename: file, .. }
                if file.is_empty() || file.ends_with('/') =>
            {
                Err(Wrong::new(path, format!("`{file}` is no file's name"))
                    .hint("name a file within the run's folder"))
            }
            CallbackSection::TensorBoard { log_dir, .. } if log_dir.is_empty() => {
                Err(Wrong::new(&format!("{path}.log_dir"), "log_dir is empty")
                    .hint("name a folder within the run's folder, such as tensorboard"))
            }
            CallbackSection::TensorBoard { update_freq: Frequency::Steps(0), .. } => {
                Err(Wrong::new(&format!("{path}.update_freq"), "update_freq is 0")
                    .hint("choose \"epoch\", \"batch\" or a number of steps from 1 on"))
            }
            _ => Ok(()),
        }
    }

    /// What it watches, if anything.
    pub fn monitor(&self) -> Option<&str> {
        match self {
            CallbackSection::EarlyStopping { monitor, .. }
            | CallbackSection::ReduceLROnPlateau { monitor, .. } => Some(monitor),
            CallbackSection::ModelCheckpoint { monitor, save_best_only: true, .. } => Some(monitor),
            _ => None,
        }
    }

    /// The callback; `monitor` is what it watches by the name that is logged.
    pub(super) fn make(&self, place: &Place<'_>, monitor: &str) -> Box<dyn Callback> {
        let file = |name: &str| place.folder.join(name).display().to_string();
        match self {
            CallbackSection::EarlyStopping {
                min_delta,
                patience,
                mode,
                baseline,
                restore_best_weights,
                start_from_epoch,
                ..
            } => {
                let stop = EarlyStopping::new(monitor, *patience)
                    .mode((*mode).into())
                    .min_delta(*min_delta)
                    .restore_best_weights(*restore_best_weights)
                    .start_from_epoch(*start_from_epoch);
                Box::new(match baseline {
                    Some(value) => stop.baseline(*value),
                    None => stop,
                })
            }
            CallbackSection::ReduceLROnPlateau { factor, patience, cooldown, min_lr, .. } => Box::new(
                ReduceLROnPlateau::new(monitor)
                    .factor(*factor)
                    .patience(*patience)
                    .cooldown(*cooldown)
                    .min_lr(*min_lr),
            ),
            CallbackSection::ModelCheckpoint { filepath, save_best_only, mode, .. } => {
                let save = ModelCheckpoint::new(&file(filepath));
                Box::new(if *save_best_only { save.save_best_only(monitor, (*mode).into()) } else { save })
            }
            CallbackSection::CSVLogger { filename, append } => {
                Box::new(CSVLogger::new(file(filename)).append(*append))
            }
            CallbackSection::TerminateOnNaN {} => Box::new(TerminateOnNaN),
            CallbackSection::TensorBoard {
                log_dir,
                histogram_freq,
                write_graph,
                write_images,
                write_steps_per_second,
                update_freq,
            } => Box::new(
                place
                    .tensorboard(log_dir)
                    .histogram_freq(*histogram_freq)
                    .write_graph(*write_graph)
                    .write_images(*write_images)
                    .write_steps_per_second(*write_steps_per_second)
                    .update_freq((*update_freq).into()),
            ),
        }
    }
}

impl Place<'_> {
    /// With the configuration as text, and its keys as hyperparameters: those of layers and callbacks would be too many columns.
    fn tensorboard(&self, log_dir: &str) -> TensorBoard {
        let board = TensorBoard::new(self.folder.join(log_dir)).overwrite(true);
        let board = self.names.iter().fold(board, |board, (name, shown)| board.call(name, shown));
        let text = toml::to_string(&self.whole).unwrap_or_default();
        let board = board.text("configuration", &format!("```toml\n{text}```"));
        let sections = self.whole.iter().filter(|(key, _)| !["layers", "callbacks"].contains(&key.as_str()));
        let mut found = Vec::new();
        sections.for_each(|(key, value)| hparams(key, value, &mut found));
        found.into_iter().fold(board, |board, (name, value)| board.hparam(&name, value))
    }
}

/// The plain values below a key by their paths.
fn hparams(path: &str, value: &Value, found: &mut Vec<(String, HParam)>) {
    let value = match value {
        Value::Table(table) => {
            return table.iter().for_each(|(key, value)| hparams(&format!("{path}.{key}"), value, found));
        }
        Value::Integer(n) => HParam::Number(*n as f64),
        Value::Float(x) => HParam::Number(*x),
        Value::Boolean(yes) => HParam::Bool(*yes),
        Value::String(text) => HParam::Text(text.clone()),
        Value::Datetime(_) | Value::Array(_) => HParam::Text(value.to_string()),
    };
    found.push((path.into(), value));
}
