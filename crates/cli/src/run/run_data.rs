//! Data that a saved model was trained on: finds its location, loads it, and rejects other data.
//!
//! All commands that load data for a saved model or a run get it here. A model file contains no local paths: the
//! location is in `run.json` next to the model, the fingerprint is in the model. Data that the command line names is
//! used as named; otherwise no other dataset replaces the run's.

use crate::args::common::{DataArgs, LabelArgs};
use crate::args::exit_status::{CommandError, CommandResult};
use crate::models::command_target::config_of;
use crate::models::model_data::{check_samples, check_tokens, set_columns, tokenizer_of, with_its_classes};
use crate::models::preprocessing::{PIXEL_SCALE, stored_scale};
use crate::models::run_directory::{self, RunRecord};
use crate::render::screen::{Screen, note};
use crate::run::training::load_data;
use crate::run::user_data::{UserData, beside_imported};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use systole_config::{ConfigDraft, PRESETS, RunConfig, shown_scale};
use systole_datasets::TrainingData;
use systole_ir::{Result, ResultExt, err};
use systole_nn::Model;

/// Alternative to renaming the classes of data for an evaluation.
pub(crate) const OTHER_CLASSES: &str = "evaluate a model that was trained on this data";
/// Key of [`DataNote`] in a model file.
const NOTE: &str = "data";

/// Training data of a model, stored in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct DataNote {
    name: String,
    /// Fingerprint, if the data may change.
    identity: Option<String>,
    /// Number of training elements.
    train: usize,
    /// Whether the user named the location.
    is_own: bool,
}

/// Stores name and fingerprint of the training data with the model.
pub(crate) fn keep_data(model: &mut Model, config: &RunConfig, data: &TrainingData) {
    model.notes.remove(NOTE);
    let is_own = config.data.dir.is_some();
    if !is_own && data.identity.is_none() {
        return;
    }
    let (name, identity) = (data.name.clone(), data.identity.clone());
    let note = DataNote { name, identity, train: data.train_len, is_own };
    if let Ok(text) = serde_json::to_string(&note) {
        model.notes.insert(NOTE.into(), text);
    }
}

/// Data that the command line names.
#[derive(Default)]
pub(crate) struct NamedData<'a> {
    /// Image folder, record file or text file, all of which is used for testing.
    pub(crate) source: Option<&'a str>,
    /// `--dataset`.
    pub(crate) dataset: Option<&'a str>,
    /// `--data-dir`.
    pub(crate) dir: Option<&'a Path>,
    /// `--label`.
    pub(crate) label: Option<(String, &'a str)>,
}

impl<'a> NamedData<'a> {
    pub(crate) fn of(dataset: &'a Option<String>, data: &'a DataArgs) -> NamedData<'a> {
        NamedData { dataset: dataset.as_deref(), dir: data.data_dir.as_deref(), ..NamedData::default() }
    }
}

/// Relation of loaded data to the run's data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DataMatch {
    /// The run's data with the run's test split.
    Same,
    /// The run's location, but files were added, removed or replaced since training.
    Changed,
    /// Other data, or another split of the run's.
    Other,
}

/// Training data of a saved model, as far as the model file and the run's folder describe it.
pub(crate) struct RunData {
    file: String,
    /// The configuration stored in the model.
    pub(crate) config: Option<RunConfig>,
    /// Location of the data, from the run's folder.
    dir: Option<PathBuf>,
    note: Option<DataNote>,
    /// Whether the command line states the pixel scale.
    states_scale: bool,
    /// Option of the command that leaves pixels unscaled.
    scale_option: &'static str,
}

impl RunData {
    /// Sets whether `--scale`, if the command has it, or `--set` states the pixel scale.
    pub(crate) fn with_scale_options(self, scale: Option<&Option<String>>, sets: &[String]) -> RunData {
        let states_scale = scale.is_some_and(Option::is_some)
            || sets.iter().any(|set| set.split('=').next().is_some_and(|key| key.trim() == "data.scale"));
        let scale_option = if scale.is_some() { "pass --scale 1" } else { self.scale_option };
        RunData { states_scale, scale_option, ..self }
    }

    /// Reads what `model`, loaded from `file`, and the run's folder around the file contain about the data.
    pub(crate) fn of(model: &Model, file: &str) -> Result<RunData> {
        let config = config_of(model, file)?;
        let note = model.notes.get(NOTE).map(|text| serde_json::from_str::<DataNote>(text));
        let note = note.transpose().map_err(|e| {
            let e = err!(Data, "cannot parse the training data's name").because(e.to_string());
            e.at(file.to_string()).hint("train the model again, or use another copy of the file")
        })?;
        let folder = Path::new(file).parent().filter(|f| !f.as_os_str().is_empty());
        let record = RunRecord::read(folder.unwrap_or(Path::new(".")))?;
        // The folder may contain a newer run on other data.
        let is_its = |r: &RunRecord| {
            config.as_ref().is_some_and(|c| c.data.dataset == r.config.data.dataset)
                && note.as_ref().is_none_or(|n| r.data.is_none() || n.identity == r.data)
        };
        let dir = record.filter(is_its).and_then(|r| r.config.data.dir);
        let scale_option = "pass --set data.scale=1";
        Ok(RunData { file: file.into(), config, dir, note, states_scale: false, scale_option })
    }

    /// Returns the stored configuration with the location of the run's data; `None` if the model contains none.
    pub(crate) fn draft(&self, model: &Model) -> Result<Option<ConfigDraft>> {
        let Some(config) = &self.config else { return Ok(None) };
        let mut draft = self.stored_draft(config)?;
        set_columns(&mut draft, config, model, &self.file);
        self.set_dir(&mut draft);
        Ok(Some(draft))
    }

    fn stored_draft(&self, config: &RunConfig) -> Result<ConfigDraft> {
        ConfigDraft::parse(&config.to_toml()?, &format!("the configuration stored in {}", self.file))
    }

    fn set_dir(&self, draft: &mut ConfigDraft) {
        if let Some(dir) = &self.dir {
            draft.set_text(&self.file, "data.dir", &dir.display().to_string());
        }
    }

    /// Returns the configuration for the data that the command line names, otherwise for the run's data.
    ///
    /// # Errors
    /// If nothing is named and the model does not contain its configuration.
    pub(crate) fn draft_of(&self, model: &Model, named: &NamedData<'_>) -> CommandResult<ConfigDraft> {
        let folder = named.dir.filter(|_| named.dataset == Some("folder")).and_then(Path::to_str);
        let own = named.source.or(folder).map(|name| user_data(name).map(|own| (name, own))).transpose()?;
        let own = own.map(|(name, own)| (name, own.for_model(self.config.as_ref())));
        if let Some(draft) = self.imported_draft(model, named)? {
            return Ok(draft);
        }
        let mut draft = match (&self.config, named.dataset) {
            (Some(config), _) => self.stored_draft(config)?,
            (None, None) if own.is_some() => ConfigDraft::preset("folder")?,
            (None, Some(dataset)) => preset_of(dataset).map_err(CommandError::usage)?,
            (None, None) => {
                let e = err!(Config, "{} does not contain its training dataset", self.file);
                return Err(CommandError::usage(
                    e.hint_command("name the dataset with --dataset, or your own data with --data-dir"),
                ));
            }
        };
        let is_other =
            named.dataset.is_some_and(|d| self.config.as_ref().is_none_or(|k| k.data.dataset != d));
        if let Some(name) = named.dataset {
            draft.set_text(format!("--dataset {name}"), "data.dataset", name);
        }
        match self.config.as_ref().filter(|_| !is_other) {
            Some(config) => {
                set_columns(&mut draft, config, model, &self.file);
                self.set_dir(&mut draft);
            }
            // Number of test samples of the original dataset does not apply to the named one.
            None => draft.set("--dataset", "data.test_samples", "none"),
        }
        if let Some((name, own)) = &own {
            own.set(&mut draft, name, self.config.as_ref(), model);
            draft.set(*name, "data.test_samples", "none");
        }
        if let Some(dir) = named.dir {
            draft.set_text("--data-dir", "data.dir", &dir.display().to_string());
        }
        if let Some((flag, label)) = &named.label {
            draft.set_text(flag, LabelArgs::KEY, label);
        }
        if let Some(scale) = self.stored_scale(model)? {
            draft.set(&self.file, "data.scale", &scale.to_string());
        }
        Ok(draft)
    }

    /// Factor of pixels that a model without a configuration contains, or applies itself.
    fn stored_scale(&self, model: &Model) -> Result<Option<f64>> {
        let is_needed = self.config.is_none() && !self.states_scale;
        if is_needed { stored_scale(model) } else { Ok(None) }
    }

    /// Returns the configuration for named data of a model that contains no configuration, with the model's sizes.
    fn imported_draft(&self, model: &Model, named: &NamedData<'_>) -> CommandResult<Option<ConfigDraft>> {
        let dir = named.dir.map(|dir| dir.display().to_string());
        let name = named.source.map(str::to_string).or(dir);
        let Some(name) = name.filter(|_| self.config.is_none() && named.dataset.is_none()) else {
            return Ok(None);
        };
        let Some(mut draft) = beside_imported(&name, model, &self.file, false)? else { return Ok(None) };
        let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref());
        if let Some(length) = takes.filter(|t| t.rank() == 1).map(|t| t.shape[0]) {
            draft.set_value(&self.file, "data.sequence_length", (length as i64).into());
        }
        Ok(Some(draft))
    }

    /// Loads the data of a configuration that [`RunData::draft`] or [`RunData::draft_of`] began, and matches its
    /// classes to the model's.
    ///
    /// # Errors
    /// If the location of the run's data is unknown, the text is another one, or the data does not fit the model.
    pub(crate) fn load(
        &self,
        model: &Model,
        config: &mut RunConfig,
        screen: &Screen,
    ) -> Result<TrainingData> {
        let data = self.load_unmatched(model, config, screen)?;
        self.show_notes(model, config, &data)?;
        check_samples(model, config, &data, &self.file)?;
        let data = with_its_classes(model, data, &self.file, OTHER_CLASSES)?;
        check_tokens(model, &data)?;
        Ok(data)
    }

    /// Prints the notes about loaded data, and warnings about pixels that are scaled twice.
    pub(crate) fn show_notes(&self, model: &Model, config: &RunConfig, data: &TrainingData) -> Result<()> {
        show_notes(data);
        let warnings = config.pixel_scale_warnings(model.architecture(), data, self.scale_option)?;
        warnings.iter().for_each(|text| note(text));
        Ok(())
    }

    /// Like [`RunData::load`], without matching the data to the model.
    pub(crate) fn load_unmatched(
        &self,
        model: &Model,
        config: &mut RunConfig,
        screen: &Screen,
    ) -> Result<TrainingData> {
        config.data.known_tokenizer = tokenizer_of(model)?;
        self.check_location(config)?;
        let mut data = load_data(config, screen).at(|| format!("the data for {}", self.file))?;
        self.check_replaced(model, config, &data)?;
        if self.matches(config, &data) == DataMatch::Changed {
            data.notes.push(format!("{} has changed since {} was trained", data.origin, self.file));
        }
        let is_told = self.config.is_some() || self.states_scale || model.notes.contains_key(PIXEL_SCALE);
        if data.is_pictures() && !is_told {
            data.notes.push(match self.stored_scale(model)? {
                Some(_) => format!("{} scales pixels itself: they stay between 0 and 255 (data.scale = 1)", self.file),
                None => format!(
                    "{} does not contain its pixel scale: pixels from 0 to 255 are multiplied by {} (data.scale)",
                    self.file,
                    shown_scale(config.data.scale)
                ),
            });
        }
        Ok(data)
    }

    /// Whether a configuration reads the run's data rather than data that the command line names.
    pub(crate) fn is_read_by(&self, config: &RunConfig) -> bool {
        let stored = self.config.as_ref().map(|stored| &stored.data);
        stored.is_some_and(|stored| stored.dataset == config.data.dataset) && config.data.dir == self.dir
    }

    /// Rejects a configuration that would search the default locations for data that the user named when training.
    pub(crate) fn check_location(&self, config: &RunConfig) -> Result<()> {
        let is_own = self.note.as_ref().is_some_and(|note| note.is_own) || config.data.is_own();
        let is_found = !is_own || self.dir.is_some() || config.data.is_published_folder();
        if is_found || !self.is_read_by(config) {
            return Ok(());
        }
        let name = self.note.as_ref().map_or(String::new(), |note| format!(" `{}`", note.name));
        Err(err!(Config, "{} does not contain the location of its data{name}", self.file)
            .because("only run.json in the run's folder contains it, and there is none for this model")
            .hint_command("name the data's file or folder with --data-dir, or name the run's folder instead of the model file"))
    }

    /// Rejects another text than that of training, and synthetic images in place of CIFAR-10 (or the reverse), unless
    /// the command line names them.
    fn check_replaced(&self, model: &Model, config: &RunConfig, data: &TrainingData) -> Result<()> {
        let may_be_replaced = ["text", "cifar10"].contains(&config.data.dataset.as_str());
        if !may_be_replaced || !self.is_read_by(config) {
            return Ok(());
        }
        let before = match &self.note {
            Some(note) if text_of(note.identity.as_deref()) == text_of(data.identity.as_deref()) => {
                return Ok(());
            }
            Some(note) => note.name.clone(),
            // An earlier version named the file after the data and stored no fingerprint.
            None if self.dir.is_some() || !model.notes.contains_key("history") => return Ok(()),
            None => run_directory::stem(Path::new(&self.file)).unwrap_or_default(),
        };
        if self.note.is_none() && before == data.name {
            return Ok(());
        }
        let (what, data_dir) = match data.language {
            Some(_) => ("text", "a text with --data-dir FILE.txt"),
            None => ("dataset", "the dataset's folder with --data-dir DIR"),
        };
        Err(err!(Data, "{} was not trained on this {what}", self.file)
            .at(data.origin.clone())
            .because(format!("its training data, `{before}`, was changed or is no longer found"))
            .hint_command(format!("name {data_dir}")))
    }

    /// Compares loaded data with the run's.
    pub(crate) fn matches(&self, config: &RunConfig, data: &TrainingData) -> DataMatch {
        let Some(stored) = &self.config else { return DataMatch::Other };
        let identity = self.note.as_ref().and_then(|note| note.identity.as_deref());
        let is_split =
            config.data.validation_split == stored.data.validation_split && config.seed == stored.seed;
        let is_kept = self.note.is_none() || text_of(identity) == text_of(data.identity.as_deref());
        // The same files at another location are the run's data as well.
        let is_moved = identity.is_some() && is_kept;
        match (self.is_read_by(config) || is_moved, is_split, is_kept) {
            (true, true, true) => DataMatch::Same,
            (true, true, false) => DataMatch::Changed,
            _ => DataMatch::Other,
        }
    }

    /// Number of training elements, if the model contains it.
    pub(crate) fn train_len(&self) -> Option<usize> {
        self.note.as_ref().map(|note| note.train)
    }
}

/// Prints the notes about loaded data, such as skipped files: `train` prints them below the dataset's name.
fn show_notes(data: &TrainingData) {
    data.notes.iter().for_each(|text| note(&format!("{}: {text}", data.name)));
}

/// Fingerprint without that of a tokenizer, which a saved model brings along.
fn text_of(identity: Option<&str>) -> Option<&str> {
    identity.map(|identity| identity.rsplit("; ").next().unwrap_or(identity))
}

/// Returns the preset of this name, otherwise the first that reads the dataset of this name.
fn preset_of(dataset: &str) -> Result<ConfigDraft> {
    let reads_it = |preset: &&str| {
        let config = ConfigDraft::preset(preset).ok().and_then(|draft| draft.finish().ok());
        config.is_some_and(|config| config.data.dataset == dataset)
    };
    let others = PRESETS.into_iter().filter(|_| !PRESETS.contains(&dataset));
    ConfigDraft::preset(others.into_iter().find(reads_it).unwrap_or(dataset))
}

fn user_data(name: &str) -> CommandResult<UserData> {
    UserData::of(name)?.ok_or_else(|| {
        let e = err!(Config, "cannot evaluate on {name}");
        CommandError::usage(e.hint_command(
            "name a folder with one folder of images or texts per class, a record file (.csv, .npz, .tfrecord, .tar, .jsonl) \
             or a text file (.txt); or name a published dataset with --dataset",
        ))
    })
}
