//! `[[callbacks]]`: tables with a `type` and the callback's arguments, which are read where callbacks are.

use super::key_error::{KeyError, from_serde, unknown};
use super::model_sections::to_json;
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::path::{Component, Path};
use systole_nn::callback::{CALLBACK_NAMES, ConfigCallback, HParamValue, class_of, from_table};
use toml::{Table, Value};

/// What a run is written for, beside its model, backups and report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Logger {
    /// The callback `TensorBoard`, with its defaults where there is none.
    TensorBoard,
    /// Nothing: a `TensorBoard` among the callbacks is left out.
    None,
}

/// The callback that writes for [`Logger::TensorBoard`].
pub(super) const LOGGER: &str = "TensorBoard";

/// A callback of a configuration.
pub(super) struct CallbackSection {
    pub class: &'static str,
    pub callback: Box<dyn ConfigCallback>,
    pub path: String,
}

/// Callbacks of Keras that no table can say, and what does their work there.
const OF_PROGRAMS: [(&str, &str); 6] = [
    ("LambdaCallback", "it is made of closures: add it in a program"),
    (
        "LearningRateScheduler",
        "it is made of a closure; a schedule is optimizer.learning_rate = { type = \"CosineDecay\", … }",
    ),
    ("BackupAndRestore", "every run is saved, and goes on: --save-seconds, --save-steps"),
    ("RemoteMonitor", "no run talks to a server; CSVLogger and TensorBoard write what it would send"),
    ("History", "it is always there: run.json and `systole compare` have it"),
    ("ProgbarLogger", "it is always there: --quiet leaves it out"),
];

/// The table of the logger with its defaults.
pub(super) fn logger_table() -> Table {
    Table::from_iter([("type".to_string(), Value::String(LOGGER.into()))])
}

/// The callback of the table at this place.
pub(super) fn section(at: usize, table: &Table) -> Result<CallbackSection, KeyError> {
    let path = format!("callbacks.{at}");
    let Some(name) = table.get("type").and_then(Value::as_str) else {
        return Err(KeyError::new(&path, "a callback has no `type`")
            .hint(format!("one of: {}", CALLBACK_NAMES.join(", "))));
    };
    let no_such = || {
        let kind = format!("{path}.type");
        match OF_PROGRAMS.iter().find(|(known, _)| *known == name) {
            Some((_, instead)) => {
                KeyError::new(&kind, format!("{name} cannot be told in a configuration")).hint(*instead)
            }
            None => KeyError::of(&kind, unknown("there is no callback", name, CALLBACK_NAMES)),
        }
    };
    let class = class_of(name).ok_or_else(no_such)?;
    let arguments = table.iter().filter(|(key, _)| *key != "type");
    let arguments: Map<_, _> = arguments.map(|(key, value)| (key.clone(), to_json(value))).collect();
    let read = |arguments: &Map<_, _>| from_table(class, arguments.clone()).ok_or_else(no_such);
    let callback = read(&arguments)?.map_err(|e| {
        // The first argument that is refused on its own is to blame.
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

/// Callbacks whose files must be in the run's folder; others may name any place.
const STAYING: [&str; 2] = ["ModelCheckpoint", "SpikeDetection"];

fn check_file(path: &str, file: &str, stays: bool) -> Result<(), KeyError> {
    let wrong = |what: &str| {
        let e = KeyError::new(path, format!("`{file}` {what}"));
        Err(e.hint("name a file within the run's folder"))
    };
    let parts = || Path::new(file).components();
    if file.is_empty() {
        let name = path.rsplit('.').next().unwrap_or(path);
        return Err(KeyError::new(path, format!("{name} is empty"))
            .hint("name a file or folder within the run's folder"));
    }
    if file.ends_with('/') && !path.ends_with("log_dir") {
        return wrong("is no file's name");
    }
    if stays && parts().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return wrong("leaves the run's folder");
    }
    let first = parts().find(|part| matches!(part, Component::Normal(_)));
    match first.map(|part| part.as_os_str()) {
        Some(name) if name == "backups" || file == "run.json" => wrong("is where the run itself is kept"),
        _ => Ok(()),
    }
}

/// The plain values below a key by their paths.
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
