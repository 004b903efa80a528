//! Builds a configuration from a file or preset plus overrides from the command line, and locates errors.

use super::auto_batch_size::AUTO;
use super::key_error::{KeyError, from_serde, line_at, line_of, split, unknown};
use super::{PRESETS, RunConfig, SourcePlace};
use std::path::Path;
use systole_ir::{Error, Result, err};
use toml::{Table, Value};

/// Sections that every configuration has.
const REQUIRED: [&str; 4] = ["data", "optimizer", "compile", "fit"];

/// Unvalidated configuration: TOML text plus key overrides.
#[derive(Clone, Debug)]
pub struct ConfigDraft {
    origin: String,
    text: String,
    table: Table,
    settings: Vec<KeyOverride>,
}

/// Override of one key.
#[derive(Clone, Debug)]
struct KeyOverride {
    /// Flag as the user wrote it: `--epochs 5`.
    flag: String,
    path: Vec<String>,
    /// New value; `None` removes the key.
    value: Option<Value>,
}

/// Configuration error, and whether an override (rather than the file) caused it.
#[derive(Clone, Debug)]
pub struct ConfigError {
    /// The error with its location.
    pub error: Error,
    /// Whether an override caused the error.
    pub in_setting: bool,
}

impl From<Error> for ConfigError {
    fn from(error: Error) -> ConfigError {
        ConfigError { error, in_setting: false }
    }
}

impl ConfigDraft {
    /// Parses TOML; `origin` is the file name in messages.
    ///
    /// # Errors
    /// If the text is not valid TOML, or a key is unknown, missing or of the wrong type; names the line.
    pub fn parse(text: &str, origin: &str) -> Result<ConfigDraft> {
        let located = |e: Error, span: Option<std::ops::Range<usize>>| match span {
            Some(span) => e.at(format!("{origin}, line {}", line_at(text, span.start))),
            None => e.at(origin),
        };
        let help = "run `systole init` for a complete, commented file";
        let table: Table = toml::from_str(text).map_err(|e| {
            let error = err!(Config, "invalid TOML").because(e.message());
            located(error, e.span()).hint_setting(help)
        })?;
        toml::from_str::<RunConfig>(text).map_err(|e| {
            let missing: Vec<&&str> = REQUIRED.iter().filter(|name| !table.contains_key(**name)).collect();
            let error = match missing.as_slice() {
                [] => located(from_serde(e.message()), e.span()),
                _ if !e.message().starts_with("missing field") => located(from_serde(e.message()), e.span()),
                all => {
                    let names: Vec<String> = all.iter().map(|name| format!("`{name}`")).collect();
                    err!(Config, "the configuration has no section {}", names.join(" and no section "))
                        .at(origin)
                }
            };
            error.hint_setting(help)
        })?;
        Ok(ConfigDraft { origin: origin.into(), text: text.into(), table, settings: Vec::new() })
    }

    /// Reads a configuration file.
    pub fn read(path: impl AsRef<Path>) -> Result<ConfigDraft> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| {
            let hint = match e.kind() {
                std::io::ErrorKind::NotFound => "check the path, or run `systole init` to write such a file",
                _ => "use a text file with read permission",
            };
            Error::io("cannot read", path, e).hint_setting(hint)
        })?;
        ConfigDraft::parse(&text, &path.display().to_string())
    }

    /// Starts a configuration from a preset.
    pub fn preset(name: &str) -> Result<ConfigDraft> {
        let text = RunConfig::preset_text(name).ok_or_else(|| unknown("unknown preset", name, &PRESETS))?;
        ConfigDraft::parse(&text, &format!("preset {name}"))
    }

    /// Overrides a key: `set("--epochs 5", "fit.epochs", "5")`. A value that is not valid TOML becomes a string; `none`
    /// removes the key, unless it is one of the key's own values (`biggan.G_param`).
    pub fn set(&mut self, flag: impl Into<String>, key: &str, value: &str) {
        let value = (value != "none").then(|| toml_value(value));
        self.settings.push(KeyOverride { flag: flag.into(), path: path_of(key), value });
    }

    /// Overrides a key with a string, without parsing it.
    pub fn set_text(&mut self, flag: impl Into<String>, key: &str, value: &str) {
        let value = Some(Value::String(value.into()));
        self.settings.push(KeyOverride { flag: flag.into(), path: path_of(key), value });
    }

    /// Overrides a key with a value.
    pub fn set_value(&mut self, flag: impl Into<String>, key: &str, value: Value) {
        self.settings.push(KeyOverride { flag: flag.into(), path: path_of(key), value: Some(value) });
    }

    /// Whether the configured batch size is `auto`.
    pub fn chooses_batch(&self) -> bool {
        let mut table = self.table.clone();
        let applied = self.settings.iter().try_for_each(|setting| setting.apply(&mut table));
        let size = table.get("fit").filter(|_| applied.is_ok()).and_then(|fit| fit.get("batch_size"));
        size.and_then(Value::as_str) == Some("auto")
    }

    /// Whether the configuration fine-tunes in two phases, which have their own learning rates.
    pub fn fine_tunes(&self) -> bool {
        let mut table = self.table.clone();
        let applied = self.settings.iter().try_for_each(|setting| setting.apply(&mut table));
        let section = table.get("fine_tune").filter(|_| applied.is_ok());
        section.is_some_and(|s| s.get("unfreeze").and_then(Value::as_bool).unwrap_or(true))
    }

    /// Applies the command-line overrides and validates the configuration.
    pub fn finish(&self) -> Result<RunConfig, ConfigError> {
        let mut table = self.table.clone();
        for setting in &self.settings {
            let setting = &setting.resolved(&table);
            setting.apply(&mut table).map_err(|e| setting.refuse(e))?;
            // Apply one override at a time, so that an invalid key is attributed to its flag.
            let parsed = table.clone().try_into::<RunConfig>();
            parsed.map_err(|e| setting.refuse(from_serde(e.message())))?;
        }
        let wrong = not_held("", &Value::Table(table.clone())).or_else(|| negative_argument(&table));
        if let Some(wrong) = wrong {
            return Err(self.blame(wrong));
        }
        let mut config: RunConfig = table.try_into().map_err(|e: toml::de::Error| {
            ConfigError::from(from_serde(e.message()).at(self.origin.clone()))
        })?;
        config.check().map_err(|wrong| self.blame(wrong))?;
        if config.fit.batch_size == AUTO {
            config.choose_batch_size().map_err(ConfigError::from)?;
        }
        config.outputs_at = SourcePlace(Some(self.place_of(&output_size(&config))));
        Ok(config)
    }

    fn blame(&self, wrong: KeyError) -> ConfigError {
        match self.override_of(&wrong.path) {
            Some(setting) => setting.refuse(wrong.error),
            None => ConfigError::from(wrong.error.at(self.place_of(&wrong.path))),
        }
    }

    /// Returns the last override of a key, or of keys below or above it.
    fn override_of(&self, path: &[String]) -> Option<&KeyOverride> {
        let related = |s: &&KeyOverride| s.path.iter().zip(path).all(|(a, b)| a == b);
        self.settings.iter().rev().find(related)
    }

    /// Returns the flag or the file and line that set a key.
    fn place_of(&self, path: &[String]) -> String {
        match (self.override_of(path), line_of(&self.text, path)) {
            (Some(setting), _) => setting.flag.clone(),
            (None, Some(line)) => format!("{}, line {line}", self.origin),
            (None, None) => self.origin.clone(),
        }
    }
}

/// Returns the path of the key that sets the number of the model's outputs.
fn output_size(config: &RunConfig) -> Vec<String> {
    if config.model.is_some() {
        return vec!["model".into()];
    }
    let sizes = ["units", "filters"];
    let sized = |layer: &Table| sizes.into_iter().find(|size| layer.contains_key(*size));
    let last = config.layers.iter().enumerate().rev().find_map(|(i, layer)| Some((i, sized(layer)?)));
    let (i, key) = last.map_or((config.layers.len().saturating_sub(1), None), |(i, key)| (i, Some(key)));
    ["layers".to_string(), i.to_string()].into_iter().chain(key.map(String::from)).collect()
}

/// Returns the path of a key. Lightning's alias of a key maps to the key's own name, so that an override replaces the
/// file's value.
fn path_of(key: &str) -> Vec<String> {
    split(if key == "fit.check_val_every_n_epoch" { "fit.validation_freq" } else { key })
}

impl KeyOverride {
    /// Decides what `none` means: the text if the key has a fixed set of texts with `none` among them, otherwise that the
    /// key is removed.
    fn resolved(&self, table: &Table) -> KeyOverride {
        let text = |value: &str| KeyOverride { value: Some(Value::String(value.into())), ..self.clone() };
        let is_valid = |value: &str| {
            let mut table = table.clone();
            text(value).apply(&mut table).is_ok() && table.try_into::<RunConfig>().is_ok()
        };
        match self.value.is_none() && is_valid("none") && !is_valid("none of its values") {
            true => text("none"),
            false => self.clone(),
        }
    }

    fn refuse(&self, error: Error) -> ConfigError {
        let error =
            error.at(self.flag.clone()).hint_setting("`systole init` prints the keys with their values");
        ConfigError { error, in_setting: true }
    }

    fn apply(&self, root: &mut Table) -> Result<()> {
        let Some((last, parents)) = self.path.split_last() else { return Ok(()) };
        let mut here = TomlContainer::Table(root);
        for part in parents {
            here = here.enter(part)?;
        }
        match (here, &self.value) {
            (TomlContainer::Table(t), Some(v)) => drop(t.insert(last.clone(), v.clone())),
            (TomlContainer::Table(t), None) => drop(t.remove(last)),
            (TomlContainer::List(items), Some(v)) => *item(items, last)? = v.clone(),
            (TomlContainer::List(items), None) => {
                item(items, last)?;
                items.remove(last.parse().unwrap_or(0));
            }
        }
        Ok(())
    }
}

/// Returns an error for the first number that float32 cannot represent.
fn not_held(path: &str, value: &Value) -> Option<KeyError> {
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        Value::Float(x) if !(*x as f32).is_finite() => {
            let why =
                if x.is_finite() { "is outside the range of float32" } else { "is not a finite number" };
            Some(KeyError::new(path, format!("{x} {why}")).hint_setting("write a number, such as 0.001"))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(i, item)| not_held(&below(&i.to_string()), item))
        }
        Value::Table(table) => table.iter().find_map(|(key, item)| not_held(&below(key), item)),
        _ => None,
    }
}

/// Table or list that a key path leads to.
enum TomlContainer<'a> {
    Table(&'a mut Table),
    List(&'a mut Vec<Value>),
}

impl<'a> TomlContainer<'a> {
    fn enter(self, part: &str) -> Result<TomlContainer<'a>> {
        let value = match self {
            TomlContainer::Table(t) => {
                t.entry(part.to_string()).or_insert_with(|| Value::Table(Table::new()))
            }
            TomlContainer::List(items) => item(items, part)?,
        };
        match value {
            Value::Table(t) => Ok(TomlContainer::Table(t)),
            Value::Array(items) => Ok(TomlContainer::List(items)),
            other => Err(err!(Config, "`{part}` is a value ({other}) and has no keys below it")),
        }
    }
}

fn item<'a>(items: &'a mut [Value], index: &str) -> Result<&'a mut Value> {
    let n = items.len();
    index.parse::<usize>().ok().and_then(move |i| items.get_mut(i)).ok_or_else(|| {
        err!(Config, "list index `{index}` is out of range")
            .hint_setting(format!("choose an index from 0 to {}", n.saturating_sub(1)))
    })
}

/// Returns an error for a negative optimizer argument. The optimizer itself checks learning rates.
fn negative_argument(table: &Table) -> Option<KeyError> {
    let arguments = table.get("optimizer")?.as_table()?.iter().filter(|(key, _)| *key != "learning_rate");
    let mut negative = arguments.filter(|(_, value)| match value {
        Value::Float(x) => *x < 0.0,
        Value::Integer(n) => *n < 0,
        _ => false,
    });
    let (key, value) = negative.next()?;
    let wrong = KeyError::new(&format!("optimizer.{key}"), format!("{key} is {value}"));
    Some(wrong.hint_setting("choose an optimizer argument of at least 0"))
}

/// Parses `5`, `true`, `[3, 3]`, `"text"` as TOML; anything else becomes a string.
fn toml_value(text: &str) -> Value {
    match toml::from_str::<Table>(&format!("v = {text}")) {
        Ok(mut t) if t.len() == 1 => t.remove("v").unwrap_or_else(|| Value::String(text.into())),
        _ => Value::String(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(sets: &[(&str, &str)]) -> Result<RunConfig, ConfigError> {
        let mut draft = ConfigDraft::preset("fashion-mnist").unwrap();
        for (key, value) in sets {
            draft.set(format!("--set {key}={value}"), key, value);
        }
        draft.finish()
    }

    #[test]
    fn every_kind_of_key_can_be_set() {
        let c = with(&[
            ("seed", "7"),
            ("data.scale", "1/255"),
            ("layers.0.filters", "48"),
            ("layers.0.padding", "same"),
            ("layers.1.pool_size.0", "1"),
            ("optimizer.type", "sgd"),
            ("optimizer.momentum", "0.9"),
            (
                "optimizer.learning_rate",
                "{ type = \"CosineDecay\", initial_learning_rate = 0.1, decay_steps = 10 }",
            ),
            ("fit.steps_per_epoch", "none"),
            ("compile.metrics", "[\"accuracy\"]"),
        ])
        .unwrap();
        assert_eq!((c.seed, c.data.scale, c.fit.steps_per_epoch), (7, 1.0 / 255.0, None));
        assert_eq!(c.layers[0]["filters"].as_integer(), Some(48));
        assert_eq!(c.layers[1]["pool_size"].to_string(), "[1, 2]");
        let o = super::super::model_sections::optimizer(&c.optimizer).unwrap();
        assert_eq!((o.name(), o.learning_rate.at(10)), ("sgd", 0.0));
    }

    #[test]
    fn none_is_a_text_where_the_key_knows_it_and_removes_other_keys() {
        let gan = |value: &str| {
            let mut draft = ConfigDraft::preset("biggan").unwrap();
            draft.set("--set", "biggan.G_param", value);
            serde_json::to_value(draft.finish().unwrap().biggan).unwrap()["G_param"].clone()
        };
        assert_eq!((gan("none"), gan("SN")), ("none".into(), "SN".into()));
        assert_eq!(with(&[("fit.logger", "none")]).unwrap().fit.logger, Some(crate::Logger::None));
        let removed =
            with(&[("data.dir", "x"), ("data.dir", "none"), ("fit.steps_per_epoch", "none")]).unwrap();
        assert_eq!((removed.data.dir, removed.fit.steps_per_epoch), (None, None));
    }

    #[test]
    fn the_order_of_settings_does_not_matter_where_only_the_whole_must_fit() {
        assert!(with(&[("optimizer.momentum", "0.9"), ("optimizer.type", "sgd")]).is_ok());
    }

    #[test]
    fn every_layer_and_optimizer_of_the_tables_can_be_set() {
        let text = RunConfig::preset_text("fashion-mnist").unwrap();
        for name in systole_nn::optimizer::NAMES {
            let c = with(&[("optimizer.type", name)]).unwrap();
            assert_eq!(super::super::model_sections::optimizer(&c.optimizer).unwrap().name(), *name);
            assert!(text.contains(&format!("{name}, ")) || text.contains(&format!("{name};")), "{name}");
        }
        // An element-wise layer replaces another layer.
        let c = with(&[("layers.2", "{ type = \"PReLU\", shared_axes = [1, 2] }")]).unwrap();
        let weights =
            c.untrained().unwrap().weights().iter().map(|(path, _)| path.to_string()).collect::<Vec<_>>();
        assert!(weights.contains(&"p_re_lu/alpha".to_string()), "{weights:?}");
        let refused =
            with(&[("layers.2", "{ type = \"PReLU\", shared_axis = 1 }")]).unwrap_err().error.to_string();
        assert!(refused.contains("`shared_axes`"), "{refused}");
    }

    #[test]
    fn wrong_settings_are_blamed_by_name() {
        let cases = [
            ("data.scael", "1", "`scale`"),
            ("dta.scale", "1", "`data`"),
            ("fit.epochs", "0", "`epochs` is 0"),
            ("fit.epochs", "many", "invalid type"),
            ("fit.batch_size", "-1", "invalid value"),
            ("layers.9.filters", "1", "0 to 5"),
            ("layers.0.filtres", "1", "`filters`"),
            ("layers.0.filters.x", "1", "no keys below"),
            ("optimizer.momentum", "0.9", "adam has no argument `momentum`"),
            ("optimizer.type", "lino", "`lion`"),
            ("optimizer.learning_rate", "{ type = \"CosinDecay\" }", "`CosineDecay`"),
            ("optimizer.learning_rate", "-0.1", "must be above 0"),
            ("optimizer.learning_rate", "nan", "NaN is not a finite number"),
            ("optimizer.learning_rate", "1e40", "outside the range of float32"),
            ("layers.0.kernel_size", "[3, inf]", "inf is not a finite number"),
            ("compile.loss", "mean_sqared_error", "`mean_squared_error`"),
            ("compile.metrics", "[\"acuracy\"]", "`accuracy`"),
            ("data.scale", "255", "1/255"),
        ];
        for (key, value, part) in cases {
            let refused = with(&[(key, value)]).unwrap_err();
            let text = refused.error.to_string();
            assert!(refused.in_setting && text.contains(part), "{key}: {text}");
            assert!(text.contains(&format!("--set {key}={value}")), "{key}: {text}");
        }
    }
}
