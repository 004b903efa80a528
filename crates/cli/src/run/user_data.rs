//! User data named on the command line with a saved model: image folders, record files, text files.

use crate::args::exit_status::CommandError;
use crate::models::command_target::CommandTarget;
use crate::models::model_data::set_columns;
use std::path::{Path, PathBuf};
use systole_config::{ConfigDraft, RunConfig};
use systole_data::input_file::absolute;
use systole_datasets::{holds_records, is_of_records};
use systole_ir::Result;
use systole_nn::Model;

/// Location and kind of user data.
pub(crate) struct UserData {
    /// Value for `data.dataset`.
    pub(crate) dataset: &'static str,
    dir: PathBuf,
    /// The record file, if a single file is named.
    file: Option<String>,
}

impl UserData {
    /// Resolves a command-line name to user data; `None` if it names something else.
    pub(crate) fn of(name: &str) -> Result<Option<UserData>, CommandError> {
        let own = |dataset, dir, file| Ok(Some(UserData { dataset, dir, file }));
        match CommandTarget::of(name).map_err(CommandError::usage)? {
            CommandTarget::Folder(dir) if holds_records(&dir) => own("records", dir, None),
            CommandTarget::Folder(dir) => own("folder", dir, None),
            CommandTarget::Model(file) if is_of_records(&file) => {
                let whole = absolute(Path::new(&file))?;
                let file = whole.file_name().map(|n| n.to_string_lossy().into_owned());
                own("records", whole.parent().unwrap_or(Path::new("/")).to_path_buf(), file)
            }
            CommandTarget::Model(file) if file.to_lowercase().ends_with(".txt") => {
                own("text", absolute(Path::new(&file))?, None)
            }
            _ => Ok(None),
        }
    }

    /// Makes a configuration read this data instead of its own. `name` is the command-line name for messages. Images
    /// are resized to the model's input size.
    pub(crate) fn set(&self, draft: &mut ConfigDraft, name: &str, config: Option<&RunConfig>, model: &Model) {
        draft.set_text(name, "data.dir", &self.dir.display().to_string());
        draft.set_text(name, "data.dataset", self.dataset);
        // The file patterns are those of the training data.
        if config.is_some_and(|config| config.data.records.is_some()) {
            for key in ["train", "test", "pictures"] {
                draft.set(name, &format!("data.records.{key}"), "none");
            }
        }
        if let Some(file) = &self.file {
            draft.set(name, "data.records.train", &format!("[{file:?}]"));
        }
        let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.shape.to_vec());
        if let Some([height, width, channels @ (1 | 3)]) = takes.as_deref() {
            draft.set(name, "data.image_size", &format!("[{height}, {width}]"));
            draft.set(name, "data.color_mode", if *channels == 1 { "grayscale" } else { "rgb" });
        }
    }
}

/// Returns a saved model's configuration changed to read the user data `name`; `None` if `name` is not matching user
/// data.
///
/// If `adapts` is set, the model may have been trained on a published dataset.
pub(crate) fn beside_model(
    name: &str,
    model: &Model,
    path: &str,
    config: Option<RunConfig>,
    adapts: bool,
) -> Result<Option<ConfigDraft>, CommandError> {
    let (Some(own), Some(config)) = (UserData::of(name)?, config) else { return Ok(None) };
    let is_text = config.data.dataset == "text";
    if (own.dataset == "text") != is_text || !(is_text || adapts || config.data.is_own()) {
        return Ok(None);
    }
    let mut draft = ConfigDraft::parse(&config.to_toml()?, &format!("the configuration stored in {path}"))?;
    set_columns(&mut draft, &config, model, path);
    own.set(&mut draft, name, Some(&config), model);
    if adapts {
        // These keys describe the original training data.
        ["fit.steps_per_epoch", "data.train_samples", "data.test_samples", "fit.class_weight"]
            .iter()
            .for_each(|key| draft.set(name, key, "none"));
    }
    Ok(Some(draft))
}
