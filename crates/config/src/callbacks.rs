//! `[[callbacks]]`: callback tables with a `type` and the callback's arguments, and the default logger.

use super::key_error::{KeyError, from_serde, unknown};
use super::model_sections::to_json;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::path::{Component, Path};
use systole_ir::Result;
use systole_nn::callback::{CALLBACK_NAMES, ConfigCallback, HParamValue, class_of, from_table};
use toml::{Table, Value};

/// Logger that records a training run (`--logger`), in addition to the model, backups and report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Logger {
    /// The `TensorBoard` callback, added with its defaults if missing.
    TensorBoard,
    /// No logger: removes `TensorBoard` from the callbacks.
    None,
}

/// Name of the callback that implements [`Logger::TensorBoard`].
pub(super) const LOGGER: &str = "TensorBoard";

/// One `[[callbacks]]` table.
pub(super) struct CallbackSection {
    pub class: &'static str,
    pub callback: Box<dyn ConfigCallback>,
    pub path: String,
}

/// Keras callbacks that cannot be configured in TOML, and what replaces them.
const OF_PROGRAMS: [(&str, &str); 6] = [
    ("LambdaCallback", "it takes closures: add it in a Rust program"),
    (
        "LearningRateScheduler",
        "it takes a closure; use a schedule: optimizer.learning_rate = { type = \"CosineDecay\", … }",
    ),
    ("BackupAndRestore", "every run already writes backups and resumes: use --save-seconds or --save-steps"),
    ("RemoteMonitor", "runs never contact a server; use CSVLogger or TensorBoard"),
    ("History", "it is always on: see run.json and `systole compare`"),
    ("ProgbarLogger", "it is always on: pass --quiet to disable it"),
];

/// Returns the logger's table with its defaults.
pub(super) fn logger_table() -> Table {
    Table::from_iter([("type".to_string(), Value::String(LOGGER.into()))])
}

/// Parses the callback table at index `at`.
pub(super) fn section(at: usize, table: &Table) -> Result<CallbackSection, KeyError> {
    let path = format!("callbacks.{at}");
    let Some(name) = table.get("type").and_then(Value::as_str) else {
        return Err(KeyError::new(&path, "the callback table has no key `type`")
            .hint_setting(format!("set {path}.type; available: {}", CALLBACK_NAMES.join(", "))));
    };
    let no_such = || {
        let kind = format!("{path}.type");
        match OF_PROGRAMS.iter().find(|(known, _)| *known == name) {
            Some((_, instead)) => KeyError::new(&kind, format!("{name} cannot be set in a configuration"))
                .hint_setting(*instead),
            None => KeyError::of(&kind, unknown("unknown callback", name, CALLBACK_NAMES)),
        }
    };
    let class = class_of(name).ok_or_else(no_such)?;
    let arguments = table.iter().filter(|(key, _)| *key != "type");
    let arguments: Map<_, _> = arguments.map(|(key, value)| (key.clone(), to_json(value))).collect();
    let read = |arguments: &Map<_, _>| from_table(class, arguments.clone()).ok_or_else(no_such);
    let callback = read(&arguments)?.map_err(|e| {
        // Report the first argument that is rejected on its own.
        let alone = |(key, value): &(&String, &serde_json::Value)| {
            let one = Map::from_iter([((*key).clone(), (*value).clone())]);
            from_table(class, one).is_some_and(|read| read.is_err())
        };
        let key = arguments.iter().find(alone).map_or(String::new(), |(key, _)| format!(".{key}"));
        KeyError::of(&format!("{path}{key}"), from_serde(&e.to_string()).at(format!("callback {class}")))
    })?;
    let blame = |(argument, e)| KeyError::of(&format!("{path}.{argument}"), e);
    for (argument, file) in callback.files() {
        check_file(&format!("{path}.{argument}"), file, STAYING.contains(&class))?;
    }
    callback.check().map_err(blame)?;
    Ok(CallbackSection { class, callback, path })
}

/// Callbacks whose files must be inside the run directory; others may use any path.
const STAYING: [&str; 2] = ["ModelCheckpoint", "SpikeDetection"];

/// Returns a similar name of a file that callbacks may write into the run directory.
pub(super) fn inside(file: &str) -> String {
    let name = file.trim_end_matches('/').rsplit('/').find(|part| !part.is_empty() && *part != "..");
    format!("my-{}", name.unwrap_or("log"))
}

fn check_file(path: &str, file: &str, stays: bool) -> Result<(), KeyError> {
    let wrong = |what: &str| {
        let e = KeyError::new(path, format!("`{file}` {what}"));
        Err(e.hint_setting(format!("use a file inside the run directory: {path}={:?}", inside(file))))
    };
    let parts = || Path::new(file).components();
    if file.is_empty() {
        let name = path.rsplit('.').next().unwrap_or(path);
        return Err(KeyError::new(path, format!("{name} is empty"))
            .hint_setting(format!("name a file or folder inside the run directory: {path}=\"log\"")));
    }
    if file.ends_with('/') && !path.ends_with("log_dir") {
        return wrong("is not a file name");
    }
    if stays && parts().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return wrong("is outside the run directory");
    }
    let first = parts().find(|part| matches!(part, Component::Normal(_)));
    match first.map(|part| part.as_os_str()) {
        Some(name) if name == "backups" || file == "run.json" => wrong("is reserved for the run itself"),
        _ => Ok(()),
    }
}

/// Collects the scalar values below a key, by path.
pub(super) fn hparams(path: &str, value: &Value, found: &mut Vec<(String, HParamValue)>) {
    let value = match value {
        Value::Table(table) => {
            return table.iter().for_each(|(key, value)| hparams(&format!("{path}.{key}"), value, found));
        }
        Value::Integer(n) => HParamValue::Number(*n as f64),
        Value::Float(x) => HParamValue::Number(*x),
        Value::Boolean(yes) => HParamValue::Bool(*yes),
        Value::String(text) => HParamValue::Text(text.clone()),
        Value::Datetime(_) | Value::Array(_) => HParamValue::Text(value.to_string()),
    };
    found.push((path.into(), value));
}
