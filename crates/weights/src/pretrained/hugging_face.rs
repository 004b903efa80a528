//! Downloads a repository of Hugging Face's hub: resolves the revision to a commit, picks the files that an import reads,
//! verifies them by the server's LFS SHA-256, and records commit and digests (`fetched.json`).

use super::entry::{FetchedModel, RECORD};
use crate::huggingface;
use crate::names::language_models;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use systole_datasets::{DataDir, FileDigest, PublishedFiles, RemoteFile, get, is_trusted, sha256};
use systole_ir::{Error, Result, ensure, err, knobs};

/// Address of the hub, if neither `--mirror` nor `HF_ENDPOINT` names another.
const HUB: &str = "https://huggingface.co";
/// Maximum size of the hub's description of a repository.
const MAX_DESCRIPTION: u64 = 16 << 20;

/// Files next to the weights that an import reads.
const SETTINGS: [&str; 10] = [
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
];

/// File of a repository, as the hub describes it.
#[derive(Debug)]
struct RepositoryFile {
    name: String,
    size: Option<u64>,
    /// SHA-256 of files in LFS, or recorded by an earlier fetch of the same commit.
    sha256: Option<String>,
}

/// Commit of a repository, as the hub describes it.
struct Commit {
    id: String,
    license: String,
    files: Vec<RepositoryFile>,
}

/// Checks the names of a repository and of a revision.
///
/// # Errors
/// `Config` if they cannot be such names.
pub(super) fn check_names(repository: &str, revision: &str) -> Result<()> {
    let is_word = |word: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !word.is_empty() && !word.starts_with('.') && !word.contains("..") && word.chars().all(is_part)
    };
    let is_name = repository.split('/').count() <= 2 && repository.split('/').all(is_word);
    let is_revision = revision.split('/').all(is_word);
    ensure!(
        is_name && is_revision,
        err!(Config, "`hf:{repository}@{revision}` does not name a repository of Hugging Face's hub")
            .hint_command("write hf:OWNER/NAME or hf:OWNER/NAME@REVISION, such as hf:openai-community/gpt2")
    );
    Ok(())
}

/// Returns the folder of a repository's commit, after a download to the cache if no location has it. A branch or tag stays
/// at the commit of the first fetch.
///
/// # Errors
/// `Io` if the hub cannot be reached or has no such repository; `Data` for wrong digests; `Unsupported` for a large language
/// model, before its weights are downloaded.
pub(super) fn fetch(repository: &str, revision: &str, dir: &DataDir) -> Result<FetchedModel> {
    let hub = Hub::new(repository, revision, dir);
    if let Some(folder) = hub.located(dir) {
        return hub.fetched(folder, false);
    }
    if !dir.downloads() {
        return Err(hub.unavailable(&err!(Io, "downloads are disabled")));
    }
    let commit = hub.commit(dir)?;
    let recorded = hub.published(&commit.id, Vec::new(), vec![RECORD]).locate(dir);
    let recorded = recorded.and_then(|folder| huggingface::json(&folder.join(RECORD)).ok());
    let mut files = needed(commit.files).map_err(|e| e.at(hub.name()))?;
    for file in files.iter_mut().filter(|file| file.sha256.is_none()) {
        let digest = recorded.as_ref().and_then(|r| r["files"][&file.name]["sha256"].as_str());
        file.sha256 = digest.map(String::from);
    }
    let digests: Vec<Vec<FileDigest<'_>>> =
        files.iter().map(|file| file.sha256.iter().map(|hex| FileDigest::Sha256(hex)).collect()).collect();
    let remote: Vec<RemoteFile<'_>> = files
        .iter()
        .zip(&digests)
        .map(|(file, digests)| RemoteFile { file: &file.name, size: file.size, digests })
        .collect();
    // A large language model is rejected before its weights are downloaded.
    let (settings, weights): (Vec<_>, Vec<_>) = remote.iter().partition(|file| file.file == "config.json");
    hub.published(&commit.id, settings, vec!["config.json"])
        .fetch(dir, |folder| huggingface::config(folder)?.as_ref().map_or(Ok(()), language_models::refuse))?;
    let mut contents: Vec<&str> = remote.iter().map(|file| file.file).collect();
    contents.push(RECORD);
    let finish = |folder: &Path| hub.record(folder, &commit.id, &commit.license, &remote);
    let folder = hub.published(&commit.id, weights, contents).fetch(dir, finish)?;
    hub.fetched(folder, true)
}

/// Returns the files that an import reads.
///
/// # Errors
/// If the repository has no config.json or no weights.
fn needed(files: Vec<RepositoryFile>) -> Result<Vec<RepositoryFile>> {
    let has = |name: &str| files.iter().any(|file| file.name == name);
    let lacks = |what: &str| {
        err!(Unsupported, "the repository has no {what}")
            .hint("choose a repository with config.json, and with weights in one of these files")
    };
    ensure!(has("config.json"), lacks("config.json"));
    let index = "model.safetensors.index.json";
    let is_weights: fn(&str) -> bool = match () {
        () if has("model.safetensors") => |name| name == "model.safetensors",
        () if has(index) => |name| {
            let is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
            is_shard && !name.contains('/') || name == "model.safetensors.index.json"
        },
        () if has("pytorch_model.bin") => |name| name == "pytorch_model.bin",
        () => return Err(lacks("model.safetensors and no pytorch_model.bin")),
    };
    // Modules of sentence-transformers are folders: 1_Pooling.
    let is_module = |name: &str| {
        let folder = name.strip_suffix("/config.json").unwrap_or_default();
        folder.starts_with(|c: char| c.is_ascii_digit())
            && folder.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let is_needed = |file: &RepositoryFile| {
        SETTINGS.contains(&&*file.name) || is_weights(&file.name) || is_module(&file.name)
    };
    Ok(files.into_iter().filter(is_needed).collect())
}

/// Repository and revision on a hub.
struct Hub<'a> {
    repository: &'a str,
    revision: &'a str,
    address: String,
}

impl Hub<'_> {
    fn new<'a>(repository: &'a str, revision: &'a str, dir: &DataDir) -> Hub<'a> {
        let address = dir.mirror_address().map(String::from).or_else(|| knobs::variable("HF_ENDPOINT"));
        let address = address.unwrap_or_else(|| HUB.into()).trim_end_matches('/').to_string();
        Hub { repository, revision, address }
    }

    fn name(&self) -> String {
        format!("hf:{}@{}", self.repository, self.revision)
    }

    /// Folder of the repository below the cache.
    fn folder(&self) -> String {
        format!("models/hf/{}", self.repository.replace('/', "--"))
    }

    /// Path below the repository's folder of the file that names the commit of the revision.
    fn reference(&self) -> String {
        format!("refs-{}", self.revision.replace('/', "--"))
    }

    /// Returns the header fields for requests to the hub.
    fn fields(&self) -> Vec<(String, String)> {
        let token = knobs::variable("HF_TOKEN").filter(|_| is_trusted(&self.address));
        token.map(|token| ("Authorization".to_string(), format!("Bearer {token}"))).into_iter().collect()
    }

    fn published<'f>(
        &self,
        commit: &str,
        files: Vec<RemoteFile<'f>>,
        contents: Vec<&'f str>,
    ) -> PublishedFiles<'f> {
        PublishedFiles {
            name: self.name(),
            folder: format!("{}/{commit}", self.folder()),
            files,
            sources: vec![format!("{}/{}/resolve/{commit}/", self.address, self.repository)],
            fields: self.fields(),
            contents,
        }
    }

    /// Returns the folder of the commit that an earlier fetch recorded.
    fn located(&self, dir: &DataDir) -> Option<PathBuf> {
        let reference = PublishedFiles { folder: self.folder(), ..self.published("", Vec::new(), vec![]) };
        let name = self.reference();
        let named = || {
            let folder = PublishedFiles { contents: vec![&name], ..reference }.locate(dir)?;
            fs::read_to_string(folder.join(&name)).ok().map(|text| text.trim().to_string())
        };
        let commit = if is_commit(self.revision) { self.revision.to_string() } else { named()? };
        let folder = self.published(&commit, Vec::new(), vec![RECORD]).locate(dir)?;
        let record = huggingface::json(&folder.join(RECORD)).ok()?;
        let is_complete = |(file, about): (&String, &Value)| {
            fs::metadata(folder.join(file)).is_ok_and(|m| Some(m.len()) == about["bytes"].as_u64())
        };
        record["files"].as_object()?.iter().all(is_complete).then_some(folder)
    }

    /// Writes the record of a fetched commit, and the commit of the revision.
    fn record(&self, folder: &Path, commit: &str, license: &str, files: &[RemoteFile<'_>]) -> Result<()> {
        let mut about = serde_json::Map::new();
        for file in files {
            let path = folder.join(file.file);
            let bytes = fs::metadata(&path).map_err(|e| Error::io("cannot read", &path, e))?.len();
            let digest = if file.digests.is_empty() { "this record" } else { "the server" };
            about.insert(
                file.file.into(),
                json!({ "bytes": bytes, "sha256": sha256(&path)?, "digest_from": digest }),
            );
        }
        let record = json!({
            "repository": self.repository, "revision": self.revision, "commit": commit, "license": license, "files": about,
        });
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).map_err(|e| Error::io("cannot write", &path, e))
        };
        write(folder.join(RECORD), format!("{record:#}\n"))?;
        match folder.parent().filter(|_| !is_commit(self.revision)) {
            Some(parent) => write(parent.join(self.reference()), format!("{commit}\n")),
            None => Ok(()),
        }
    }

    /// Describes the fetched commit in `folder`.
    fn fetched(&self, folder: PathBuf, is_new: bool) -> Result<FetchedModel> {
        let record = huggingface::json(&folder.join(RECORD))?;
        let text = |key: &str| record[key].as_str().unwrap_or("unknown").to_string();
        let (revision, license) = (text("commit"), text("license"));
        let files = record["files"].as_object();
        let unverified =
            files.map_or(0, |all| all.values().filter(|f| f["digest_from"] != "the server").count());
        let verified = match unverified {
            0 => "SHA-256".to_string(),
            n => format!("SHA-256 of files in LFS; recorded that of {n} others"),
        };
        Ok(FetchedModel { folder, revision, license, verified, is_new, entry: None, class_names: Vec::new() })
    }

    /// Asks the hub for the commit of the revision and its files.
    fn commit(&self, dir: &DataDir) -> Result<Commit> {
        let url =
            format!("{}/api/models/{}/revision/{}?blobs=true", self.address, self.repository, self.revision);
        ensure!(is_trusted(&url), self.unavailable(&err!(Io, "`{url}` is not an https address")));
        let mut text = Vec::new();
        let answer = get(&url, &self.fields(), || Ok(dir.patience())).map_err(|e| self.unavailable(&e))?;
        let status = answer.status;
        let read = answer.take(MAX_DESCRIPTION).read_to_end(&mut text);
        read.map_err(|e| self.unavailable(&err!(Io, "{e}")))?;
        if status != 200 {
            let why = match status {
                401 | 403 => {
                    "the repository is gated, private or does not exist: set HF_TOKEN to a token that may read it"
                }
                404 => "there is no such repository or revision",
                _ => "the hub cannot answer now",
            };
            return Err(self.unavailable(&err!(Io, "the server returned status {status}").because(why)));
        }
        let told = huggingface::parsed(&url, &text)?;
        let id = told["sha"].as_str().filter(|id| is_commit(id));
        let files = told["siblings"].as_array().map(|all| all.iter().filter_map(described).collect());
        let (Some(id), Some(files)) = (id, files) else {
            return Err(err!(Data, "the hub's description of {} has no commit or no files", self.name())
                .at(url)
                .hint("check the address of the mirror"));
        };
        let license = told["cardData"]["license"].as_str().unwrap_or("none stated");
        Ok(Commit { id: id.into(), license: license.into(), files })
    }

    /// Adds to a failed request what to get, and how to use it.
    fn unavailable(&self, cause: &Error) -> Error {
        let mut e = err!(Io, "cannot fetch `{}`", self.name());
        for why in std::iter::once(cause.what()).chain(cause.reasons().iter().map(String::as_str)) {
            e = e.because(why.to_string());
        }
        let address = format!("{}/{}/tree/{}", self.address, self.repository, self.revision);
        e.because(format!("needed: config.json, the weights and the tokenizer's files from {address}")).hint(
            "check the network and repeat the command; or get the files on another machine, and name their folder instead",
        )
    }
}

/// Whether a revision is the full name of a commit.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.chars().all(|c| c.is_ascii_hexdigit())
}

/// Parses `{"rfilename": "model.safetensors", "size": 548105171, "lfs": {"sha256": "…", "size": 548105171}}`.
fn described(file: &Value) -> Option<RepositoryFile> {
    let digest = file["lfs"]["sha256"].as_str();
    let is_digest = |hex: &&str| hex.len() == 64 && hex.chars().all(|c| c.is_ascii_hexdigit());
    Some(RepositoryFile {
        name: file["rfilename"].as_str()?.into(),
        size: file["lfs"]["size"].as_u64().or(file["size"].as_u64()),
        sha256: digest.filter(is_digest).map(str::to_ascii_lowercase),
    })
}
