//! Folders of Hugging Face: config.json beside model.safetensors, or beside a list of shards, or pytorch_model.bin.

use crate::{safetensors, torch};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use systole_ir::{Error, ErrorKind, Literal, Result, ResultExt};

/// Longer descriptions are refused.
const MAX_JSON: u64 = 64 << 20;

pub(crate) fn file(path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path and the file's access rights"))
}

fn json(path: &Path) -> Result<Value> {
    let about = fs::metadata(path).map_err(|e| Error::io("cannot read", path, e))?;
    if about.len() > MAX_JSON {
        let what = format!("{} has {} bytes, more than such files have", path.display(), about.len());
        return Err(Error::new(ErrorKind::Data, what).hint("get the file again"));
    }
    parsed(&path.display().to_string(), &file(path)?)
}

pub(crate) fn parsed(name: &str, json: &[u8]) -> Result<Value> {
    serde_json::from_slice(json).map_err(|e| {
        Error::new(ErrorKind::Data, format!("{name} is no JSON"))
            .because(e.to_string())
            .hint("get the file again")
    })
}

/// config.json of a folder, where there is one.
pub(crate) fn config(folder: &Path) -> Result<Option<Value>> {
    let path = folder.join("config.json");
    if path.is_file() { json(&path).map(Some) } else { Ok(None) }
}

/// All tensors of a folder.
///
/// # Errors
/// When there are no weights in it, or a shard is missing or damaged.
pub(crate) fn tensors(folder: &Path) -> Result<Vec<(String, Literal)>> {
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return safetensors::read(&file(&single)?).at(|| single.display().to_string());
    }
    let index = folder.join("model.safetensors.index.json");
    if index.is_file() {
        return shards(folder, &json(&index)?).at(|| index.display().to_string());
    }
    let pickled = folder.join("pytorch_model.bin");
    if pickled.is_file() {
        return torch::read(&file(&pickled)?).at(|| pickled.display().to_string());
    }
    let what = format!("{} holds no weights", folder.display());
    Err(Error::new(ErrorKind::Data, what)
        .because("it has neither model.safetensors, model.safetensors.index.json nor pytorch_model.bin")
        .hint("name a folder as Hugging Face has it, or a file of weights"))
}

fn shards(folder: &Path, index: &Value) -> Result<Vec<(String, Literal)>> {
    let wrong = |why: String| {
        Error::new(ErrorKind::Data, "the list of shards cannot be followed")
            .because(why)
            .hint("get the folder again, whole")
    };
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| wrong("it has no weight_map".into()))?;
    let names: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
    let mut all = Vec::new();
    for name in names {
        // A list must not lead out of its folder.
        if name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(wrong(format!("`{name}` is no file of its folder")));
        }
        let path = folder.join(name);
        all.extend(safetensors::read(&file(&path)?).at(|| path.display().to_string())?);
    }
    match map.keys().find(|name| !all.iter().any(|(n, _)| n == *name)) {
        Some(name) => Err(wrong(format!("tensor {name} is in none of the shards"))),
        None => Ok(all),
    }
}
