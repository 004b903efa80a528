//! Opens pretrained models by name (`keras:ResNet50`, `torchvision:resnet50`, `hf:OWNER/NAME`), after a download if needed.

use crate::render::download_progress::with_progress;
use crate::render::screen::note;
use std::path::Path;
use std::time::Duration;
use systole_datasets::DataDir;
use systole_ir::Result;
use systole_weights::{FetchedModel, PretrainedName};

/// Timeout for a server's answer where no option sets it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the name is that of a pretrained model; an existing file has priority.
pub(crate) fn is_pretrained(name: &str) -> bool {
    ["keras:", "torchvision:", "hf:"].iter().any(|start| name.starts_with(start)) && !Path::new(name).exists()
}

/// Returns the pretrained model of this name with progress on a terminal; `None` for another name.
///
/// # Errors
/// If the publisher has no such model, or it is not here and cannot be downloaded.
pub(crate) fn fetched(name: &str, dir: DataDir) -> Result<Option<FetchedModel>> {
    PretrainedName::parse(name)?.map(|model| model.fetch(&with_progress(dir))).transpose()
}

/// Like [`fetched`], for the model of a command that has no options for downloads. Reports a download.
///
/// # Errors
/// See [`fetched`].
pub(crate) fn fetched_model(name: &str) -> Result<Option<FetchedModel>> {
    let found = fetched(name, DataDir::default().timeout(PATIENCE))?;
    if let Some(model) = found.as_ref().filter(|model| model.is_new) {
        note(&description(name, model));
    }
    Ok(found)
}

/// Describes a pretrained model in a line: version, how it was verified, license and folder.
pub(crate) fn description(name: &str, model: &FetchedModel) -> String {
    let how = match model.is_new {
        true => format!("verified now ({})", model.verified),
        false => "already here, not verified again".into(),
    };
    format!("{name}: {}, {how}: {}; license: {}", model.revision, model.folder.display(), model.license)
}
