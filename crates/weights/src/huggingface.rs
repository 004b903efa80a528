//! Reads Hugging Face model directories: config.json with model.safetensors, a shard index, or pytorch_model.bin.

use crate::{safetensors, torch};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use systole_ir::{Error, Literal, Result, ResultExt, err};

/// Maximum size of JSON files.
const MAX_JSON: u64 = 64 << 20;

pub(crate) fn file(path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path and the file's permissions"))
}

pub(crate) fn json(path: &Path) -> Result<Value> {
    let about = fs::metadata(path).map_err(|e| Error::io("cannot read", path, e))?;
    if about.len() > MAX_JSON {
        return Err(err!(Data, "{} has {} bytes, which is too large", path.display(), about.len())
            .hint("download the JSON file again"));
    }
    parsed(&path.display().to_string(), &file(path)?)
}

pub(crate) fn parsed(name: &str, json: &[u8]) -> Result<Value> {
    serde_json::from_slice(json).map_err(|e| {
        err!(Data, "{name} is not valid JSON").because(e.to_string()).hint("download the JSON file again")
    })
}

/// Reads config.json of a directory, if it exists.
pub(crate) fn config(folder: &Path) -> Result<Option<Value>> {
    let path = folder.join("config.json");
    if path.is_file() { json(&path).map(Some) } else { Ok(None) }
}

/// Reads all tensors of a directory.
///
/// # Errors
/// If it contains no weights, or a shard is missing or damaged.
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
    Err(err!(Data, "{} contains no weights", folder.display())
        .because(
            "the directory has neither model.safetensors, model.safetensors.index.json nor \
        pytorch_model.bin",
        )
        .hint_command("pass a Hugging Face model directory, or a weight file"))
}

fn shards(folder: &Path, index: &Value) -> Result<Vec<(String, Literal)>> {
    let wrong = |why: String| {
        err!(Data, "the shard index is invalid").because(why).hint("download the whole directory again")
    };
    let map = index.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| wrong("it has no weight_map".into()))?;
    let names: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
    let mut all = Vec::new();
    for name in names {
        // An index must not refer to files outside its directory.
        if name.contains(['/', '\\']) || name.starts_with('.') {
            return Err(wrong(format!("`{name}` is not a file in its directory")));
        }
        let path = folder.join(name);
        all.extend(safetensors::read(&file(&path)?).at(|| path.display().to_string())?);
    }
    match map.keys().find(|name| !all.iter().any(|(n, _)| n == *name)) {
        Some(name) => Err(wrong(format!("tensor {name} is missing in all shards"))),
        None => Ok(all),
    }
}
