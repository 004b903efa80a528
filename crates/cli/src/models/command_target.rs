//! Resolves a command's argument to a model file, a preset, a TOML file or an image folder.

use crate::args::exit_status::{CommandError, CommandResult};
use crate::args::missing_path::missing;
use crate::models::imported;
use crate::models::pretrained::{PATIENCE, is_pretrained};
use crate::models::run_directory::model_file;
use crate::render::download_progress::with_progress;
use crate::render::screen::note;
use std::path::{Path, PathBuf};
use systole_config::{ConfigDraft, PRESETS, RunConfig};
use systole_data::input_file::{absolute, entries, is_file, is_remote};
use systole_datasets::{CATALOG, DataDir};
use systole_ir::{Result, ensure, err};
use systole_nn::Model;
use systole_nn::did_you_mean::suggestion;

/// A resolved command-line argument.
pub(crate) enum CommandTarget {
    Preset(&'static str),
    Toml(String),
    Model(String),
    Folder(PathBuf),
}

impl CommandTarget {
    /// Resolves a name: a preset, `….toml`, an existing file or folder, or else a published dataset that is a folder (`imdb`,
    /// `flowers`), which is downloaded.
    pub(crate) fn of(name: &str) -> Result<CommandTarget> {
        if let Some(preset) = PRESETS.iter().find(|d| **d == name) {
            return Ok(CommandTarget::Preset(preset));
        }
        if is_pretrained(name) {
            return Ok(CommandTarget::Model(name.into()));
        }
        let path = Path::new(name);
        if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
            return Ok(CommandTarget::Toml(name.into()));
        }
        if is_file(path) {
            return Ok(CommandTarget::Model(name.into()));
        }
        if is_remote(path) {
            return match entries(path)?.as_slice() {
                [] => Err(err!(Io, "no object or prefix {name} exists")
                    .hint("check the bucket and the name: gcloud storage ls, aws s3 ls")),
                _ => Ok(CommandTarget::Folder(path.into())),
            };
        }
        if path.is_dir() {
            // Absolute, so that the run can be resumed from any directory.
            return absolute(path).map(CommandTarget::Folder);
        }
        ensure!(!is_path(name), missing(path));
        if let Some(entry) = CATALOG.iter().find(|entry| entry.name == name && entry.is_folder()) {
            let dir = with_progress(DataDir::default().timeout(PATIENCE));
            return entry.fetch(&dir).map(CommandTarget::Folder);
        }
        Err(err!(Io, "`{name}` is not a file, a folder or a preset").hint_command(suggestion(name, &PRESETS)))
    }

    /// Like [`Target::of`], but a run's folder resolves to its model.
    pub(crate) fn of_model(name: &str) -> Result<CommandTarget> {
        match CommandTarget::of(name)? {
            CommandTarget::Folder(_) if imported::is_model_folder(name) => {
                Ok(CommandTarget::Model(name.into()))
            }
            CommandTarget::Folder(_) => CommandTarget::of(&model_file(name)?),
            other => Ok(other),
        }
    }

    /// Returns a compiled model: loaded, or built from a configuration for its dataset's default image size.
    pub(crate) fn model(&self) -> Result<Model> {
        match (self, self.config()?) {
            (CommandTarget::Model(path), _) => imported::load(path),
            (_, Some(config)) => untrained(&config),
            (_, None) => Err(err!(Bug, "the command's target has no training configuration")),
        }
    }

    /// Returns the configuration that it names; `None` for a model file, which may contain one ([`config_of`]).
    pub(crate) fn config(&self) -> Result<Option<RunConfig>> {
        let draft = match self {
            CommandTarget::Model(_) => return Ok(None),
            CommandTarget::Preset(name) => ConfigDraft::preset(name)?,
            CommandTarget::Toml(path) => ConfigDraft::read(path)?,
            CommandTarget::Folder(path) => {
                let e = err!(Config, "{} is a folder", path.display());
                return Err(e.hint_command("name a model file, a preset or a TOML file"));
            }
        };
        draft.finish().map(Some).map_err(|r| r.error)
    }
}

/// Builds a configuration's model with fresh weights, without reading data. Reports the sample size if only the user's
/// data would tell it.
pub(crate) fn untrained(config: &RunConfig) -> Result<Model> {
    let data = &config.data;
    if data.dataset == "records" || data.kind() == "folder" && data.image_size.is_none() {
        note(&format!("the data is not read: samples of type {} are assumed", config.usual_sample()));
    }
    config.untrained()
}

/// Whether a name can only be a path, not a misspelled preset.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains(['.', '/', std::path::MAIN_SEPARATOR])
}

/// Returns the configuration stored in a model, if there is one.
pub(crate) fn config_of(model: &Model, path: &str) -> Result<Option<RunConfig>> {
    let Some(text) = model.notes.get("config") else { return Ok(None) };
    RunConfig::parse(text, &format!("the configuration stored in {path}")).map(Some)
}

/// Applies the settings of `--set KEY=VALUE` to a configuration.
pub(crate) fn set_all(draft: &mut ConfigDraft, sets: &[String]) -> CommandResult<()> {
    set_each(sets, |flag, key, value| draft.set(flag, key, value))
}

/// Applies the settings of `--set KEY=VALUE` one by one, each with its flag for error messages.
pub(crate) fn set_each(sets: &[String], mut set_one: impl FnMut(String, &str, &str)) -> CommandResult<()> {
    for set in sets {
        let Some((key, value)) = set.split_once('=') else {
            let e = err!(Config, "--set {set}: expected KEY=VALUE");
            return Err(CommandError::usage(
                e.hint_setting("write --set as --set KEY=VALUE, for example --set data.scale=1/255"),
            ));
        };
        set_one(format!("--set {set}"), key.trim(), value.trim());
    }
    Ok(())
}

/// Applies the settings of `--set` to a model's configuration.
pub(crate) fn with_settings(
    config: Option<RunConfig>,
    sets: &[String],
    path: &str,
) -> CommandResult<Option<RunConfig>> {
    match (config, sets) {
        (config, []) => Ok(config),
        (Some(config), sets) => {
            let mut draft =
                ConfigDraft::parse(&config.to_toml()?, &format!("the configuration stored in {path}"))?;
            set_all(&mut draft, sets)?;
            Ok(Some(draft.finish()?))
        }
        (None, _) => {
            let e = err!(Config, "{path} has no training configuration");
            Err(CommandError::usage(e.hint_command("remove --set: there is no configuration to change")))
        }
    }
}
