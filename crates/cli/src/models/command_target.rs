//! What a command works on: a model file, a preset, a TOML file, or a folder of pictures.

use crate::args::exit_status::CommandError;
use crate::models::run_directory::model_file;
use std::path::{Path, PathBuf};
use systole_config::{ConfigDraft, PRESETS, RunConfig};
use systole_data::input_file::{absolute, entries, is_file, is_remote};
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Model;
use systole_nn::did_you_mean::{similar, suggestion};

/// A name on the command line, told apart.
pub(crate) enum CommandTarget {
    Preset(&'static str),
    Toml(String),
    Model(String),
    Folder(PathBuf),
}

impl CommandTarget {
    /// By its name: a preset's, `….toml`, or else a folder or file, which must be there.
    pub(crate) fn of(name: &str) -> Result<CommandTarget> {
        if let Some(preset) = PRESETS.iter().find(|d| **d == name) {
            return Ok(CommandTarget::Preset(preset));
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
                [] => Err(Error::new(ErrorKind::Io, format!("there is no object {name}, and none below it"))
                    .hint("check the bucket and the name: gcloud storage ls, aws s3 ls")),
                _ => Ok(CommandTarget::Folder(path.into())),
            };
        }
        if path.is_dir() {
            // Whole, so that the run can be gone on with from anywhere.
            return absolute(path).map(CommandTarget::Folder);
        }
        if is_path(name) {
            return Err(missing(path));
        }
        let e = Error::new(ErrorKind::Io, format!("`{name}` is neither a file, a folder nor a preset"));
        Err(e.hint(suggestion(name, &PRESETS)))
    }

    /// As [`CommandTarget::of`], where the folder of a run stands for its model.
    pub(crate) fn of_model(name: &str) -> Result<CommandTarget> {
        match CommandTarget::of(name)? {
            CommandTarget::Folder(_) => CommandTarget::of(&model_file(name)?),
            other => Ok(other),
        }
    }

    /// A compiled model: loaded, or built from a configuration for its data set's usual pictures.
    pub(crate) fn model(&self) -> Result<Model> {
        match (self, self.config()?) {
            (CommandTarget::Model(path), _) => Model::load(path),
            (_, Some(config)) => config.untrained(),
            (_, None) => Err(Error::new(ErrorKind::Bug, "a name without a configuration")),
        }
    }

    /// The configuration that it names; `None` of a model file, which may hold one ([`config_of`]).
    pub(crate) fn config(&self) -> Result<Option<RunConfig>> {
        let draft = match self {
            CommandTarget::Model(_) => return Ok(None),
            CommandTarget::Preset(name) => ConfigDraft::preset(name)?,
            CommandTarget::Toml(path) => ConfigDraft::read(path)?,
            CommandTarget::Folder(path) => {
                let e = Error::new(ErrorKind::Config, format!("{} is a folder", path.display()));
                return Err(e.hint("name a model file, a preset or a TOML file"));
            }
        };
        draft.finish().map(Some).map_err(|r| r.error)
    }
}

/// Whether a name can only be a file's or folder's: it is no preset, misspelt.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains(['.', '/', std::path::MAIN_SEPARATOR])
}

/// A path at which nothing is, from where on, and what lies there under a name like it.
pub(crate) fn missing(path: &Path) -> Error {
    let e = Error::new(ErrorKind::Io, format!("there is no file or folder {}", path.display()));
    let first = path.ancestors().filter(|p| !p.as_os_str().is_empty() && !p.exists()).last();
    let e = match first {
        Some(first) if first != path => e.because(format!("{} does not exist", first.display())),
        _ => e,
    };
    e.hint(match beside(first.unwrap_or(path)) {
        Some(other) => format!("check the path; did you mean `{}`?", other.display()),
        None => "check the path, and the folder that the command runs in".into(),
    })
}

/// What lies beside the place where nothing is, under a name like the one that was looked for.
fn beside(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty());
    let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
    let names: Vec<String> = entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    let name = path.file_name()?.to_str()?;
    Some(folder.map_or_else(PathBuf::new, Path::to_path_buf).join(similar(name, &names)?))
}

/// The configuration that a model was trained with, where it says so.
pub(crate) fn config_of(model: &Model, path: &str) -> Result<Option<RunConfig>> {
    let Some(text) = model.notes.get("config") else { return Ok(None) };
    RunConfig::parse(text, &format!("the configuration kept in {path}")).map(Some)
}

/// The settings of `--set KEY=VALUE`, on top of a configuration.
pub(crate) fn set_all(draft: &mut ConfigDraft, sets: &[String]) -> Result<(), CommandError> {
    set_each(sets, |flag, key, value| draft.set(flag, key, value))
}

/// The settings of `--set KEY=VALUE`, one by one, each with the flag that it is blamed on.
pub(crate) fn set_each(
    sets: &[String],
    mut set_one: impl FnMut(String, &str, &str),
) -> Result<(), CommandError> {
    for set in sets {
        let Some((key, value)) = set.split_once('=') else {
            let e = Error::new(ErrorKind::Config, format!("--set {set} has no `=`"));
            return Err(CommandError::usage(
                e.hint("write it as --set key=value, for example --set data.scale=1/255"),
            ));
        };
        set_one(format!("--set {set}"), key.trim(), value.trim());
    }
    Ok(())
}

/// The configuration of a model, with the settings of `--set`.
pub(crate) fn with_settings(
    config: Option<RunConfig>,
    sets: &[String],
    path: &str,
) -> Result<Option<RunConfig>, CommandError> {
    match (config, sets) {
        (config, []) => Ok(config),
        (Some(config), sets) => {
            let mut draft =
                ConfigDraft::parse(&config.to_toml()?, &format!("the configuration kept in {path}"))?;
            set_all(&mut draft, sets)?;
            Ok(Some(draft.finish()?))
        }
        (None, _) => {
            let e = Error::new(ErrorKind::Config, format!("{path} does not say how it was trained"));
            Err(CommandError::usage(
                e.hint("leave --set out: there is no configuration that it could change"),
            ))
        }
    }
}
