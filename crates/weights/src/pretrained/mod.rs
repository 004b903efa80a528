//! Pretrained models by name: downloads, verifies and opens `keras:ResNet50`, `torchvision:resnet50` and `hf:OWNER/NAME`.
//!
//! Addresses and digests are copied from the publishers' packages, none is computed from a download of our own.

mod entry;
mod hugging_face;
mod keras;
mod torchvision;

pub use entry::{FetchedModel, PretrainedEntry};

use std::path::Path;
use systole_datasets::DataDir;
use systole_ir::{Result, err};
use systole_nn::did_you_mean::{nearest_three, suggestion};

/// All pretrained models of Keras and torchvision.
pub fn pretrained_entries() -> impl Iterator<Item = &'static PretrainedEntry> {
    keras::ENTRIES.iter().chain(torchvision::ENTRIES)
}

/// Name of a pretrained model.
#[derive(Clone, Debug)]
pub enum PretrainedName {
    /// Repository of Hugging Face's hub: its name, and a branch, tag or commit.
    HuggingFace {
        /// `OWNER/NAME`.
        repository: String,
        /// Branch, tag or commit.
        revision: String,
    },
    /// Entry of [`pretrained_entries`].
    Entry(&'static PretrainedEntry),
}

impl PretrainedName {
    /// Parses `keras:NAME`, `torchvision:NAME[@WEIGHTS]` or `hf:OWNER/NAME[@REVISION]`; `None` for another name, or the name
    /// of an existing file.
    ///
    /// # Errors
    /// `Config` if the publisher has no model of this name.
    pub fn parse(text: &str) -> Result<Option<PretrainedName>> {
        let Some((publisher, rest)) = text.split_once(':') else { return Ok(None) };
        if !["hf", "keras", "torchvision"].contains(&publisher) || Path::new(text).exists() {
            return Ok(None);
        }
        let (name, revision) = rest.split_once('@').map_or((rest, None), |(name, rev)| (name, Some(rev)));
        if publisher == "hf" {
            let revision = revision.unwrap_or("main");
            hugging_face::check_names(name, revision)?;
            let (repository, revision) = (name.to_string(), revision.to_string());
            return Ok(Some(PretrainedName::HuggingFace { repository, revision }));
        }
        let of_publisher = || pretrained_entries().filter(|entry| entry.publisher == publisher);
        let mut found = of_publisher().filter(|entry| entry.name.eq_ignore_ascii_case(name)).peekable();
        if found.peek().is_none() {
            let mut names: Vec<String> =
                of_publisher().map(|entry| format!("{publisher}:{}", entry.name)).collect();
            names.dedup();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(err!(Config, "unknown pretrained model `{text}`")
                .because(format!("{publisher} has no model `{name}` that Systole reads"))
                .hint_command(nearest_three(text, &names, "systole import --list")));
        }
        let all: Vec<&'static PretrainedEntry> = found.collect();
        match revision {
            None => Ok(all.first().map(|entry| PretrainedName::Entry(entry))),
            Some(revision) => {
                let entry = all.iter().find(|entry| entry.revision == revision).ok_or_else(|| {
                    let names: Vec<String> =
                        all.iter().map(|e| format!("{publisher}:{}@{}", e.name, e.revision)).collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    err!(Config, "unknown weights `{revision}` of `{publisher}:{name}`")
                        .hint_command(suggestion(text, &names))
                })?;
                Ok(Some(PretrainedName::Entry(entry)))
            }
        }
    }

    /// Returns the model's files, after a download to the cache if no location has them.
    ///
    /// # Errors
    /// `Io` if the files cannot be downloaded: what to get, where, and where to put it; `Data` if they are damaged.
    pub fn fetch(&self, dir: &DataDir) -> Result<FetchedModel> {
        match self {
            PretrainedName::HuggingFace { repository, revision } => {
                hugging_face::fetch(repository, revision, dir)
            }
            PretrainedName::Entry(entry) => entry.fetch(dir),
        }
    }
}

#[cfg(test)]
mod tests;
