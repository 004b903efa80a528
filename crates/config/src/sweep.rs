//! Hyperparameter sweep from TOML: grid search, random search or successive halving.
//!
//! The trials differ in some keys of one configuration and are a function of the file alone.

use super::key_error::{KeyError, from_serde, line_at, line_of, unknown};
use super::{ConfigDraft, ConfigError, PRESETS, RunConfig};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use std::path::Path;
use systole_base::rng::{RandomStream, hash_name};
use systole_data::with_defaults;
use systole_ir::{Error, ErrorKind, Result, err};
use toml::{Table, Value};

/// Search methods that `sweep.method` accepts.
pub const METHODS: [&str; 3] = ["grid", "random", "halving"];
/// Values of `sweep.direction`.
const DIRECTIONS: [&str; 2] = ["min", "max"];
/// Default number of trials of `random` and `halving`.
const TRIALS: usize = 10;
/// Maximum number of combinations; more are a mistake.
const MOST: usize = 10_000;
/// Maximum number of redraws of a trial that was drawn before.
const TRIES: u64 = 100;

/// Search method of a hyperparameter sweep: grid, random or successive halving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepMethod {
    /// Grid search: every combination of the values.
    Grid,
    /// Random search: values drawn with the seed.
    Random,
    /// Successive halving: random trials train for `min_epochs`, the best of them for `factor` times as many, and so
    /// on.
    Halving,
}

with_defaults! {
    /// The `[sweep]` table.
    #[derive(Clone, Debug, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct SweepSection {
        /// Preset, or TOML file next to this one; default: the rest of this file.
        base: Option<String> = None,
        method: String = "grid".into(),
        metric: Option<String> = None,
        direction: Option<String> = None,
        trials: Option<usize> = None,
        seed: u64 = 0,
        min_epochs: usize = 1,
        factor: usize = 3,
        parameters: Table = Table::new(),
    }
}

/// Values of one key.
#[derive(Clone, Debug, PartialEq)]
enum SearchSpace {
    List(Vec<Value>),
    Range { min: f64, max: f64, log: bool, n: Option<usize>, is_whole: bool },
}

/// Key and its values.
#[derive(Clone, Debug)]
struct SweepParameter {
    key: String,
    /// Location in the file.
    place: String,
    space: SearchSpace,
}

/// One run of a sweep: its own keys and its complete configuration.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Name of the trial and its directory: `trial-001`.
    pub name: String,
    /// Dotted keys and their values as TOML.
    pub settings: Vec<(String, Value)>,
    /// Complete configuration of the trial.
    pub config: RunConfig,
}

/// Hyperparameter sweep: runs that differ in some keys.
///
/// ```
/// use systole::config::Sweep;
/// let text = r#"
///     [sweep]
///     base = "glyphs"
///     metric = "loss"
///     [sweep.parameters]
///     optimizer.learning_rate = [0.1, 0.01]
///     fit.batch_size = { min = 16, max = 64, n = 3, log = true }
/// "#;
/// let trials = Sweep::parse(text, "sweep.toml")?.trials()?;
/// assert_eq!(trials.len(), 6);
/// assert_eq!((trials[5].name.as_str(), trials[5].config.fit.batch_size), ("trial-006", 64));
/// # Ok::<(), systole::ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Search method.
    pub method: SweepMethod,
    /// Whether to maximize the metric; `None`: decided by its name.
    pub maximizes: Option<bool>,
    /// Epochs of the first round of [`SweepMethod::Halving`].
    pub min_epochs: usize,
    /// Halving factor: one of this many trials advances to the next round, with this many times the epochs.
    pub factor: usize,
    base: ConfigDraft,
    trials: Option<usize>,
    seed: u64,
    parameters: Vec<SweepParameter>,
}

impl Sweep {
    /// Reads a sweep file.
    ///
    /// # Errors
    /// Names the invalid key and its line.
    pub fn read(path: impl AsRef<Path>) -> Result<Sweep> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Error::io("cannot read", path, e)
                .hint_command("pass a TOML file with a [sweep] table: see docs/guide/toolbox.md")
        })?;
        Sweep::with_folder(&text, &path.display().to_string(), path.parent().unwrap_or(Path::new("")))
    }

    /// Parses TOML; `origin` is the file name in messages, and `sweep.base` a preset or a path relative to the current
    /// directory.
    ///
    /// # Errors
    /// See [`Sweep::read`].
    pub fn parse(text: &str, origin: &str) -> Result<Sweep> {
        Sweep::with_folder(text, origin, Path::new(""))
    }

    fn with_folder(text: &str, origin: &str, folder: &Path) -> Result<Sweep> {
        let table: Table = toml::from_str(text).map_err(|e| invalid_toml(text, origin, &e))?;
        let Some(sweep) = table.get("sweep").and_then(Value::as_table) else {
            let e = err!(Config, "the table [sweep] is missing").at(origin.to_string());
            return Err(e.hint_setting(
                "add [sweep] with `base` and `method`, and [sweep.parameters] with keys and their values",
            ));
        };
        let located = |wrong: KeyError| {
            let line = line_of(text, &wrong.path);
            wrong.error.at(line.map_or(origin.to_string(), |line| format!("{origin}, line {line}")))
        };
        let section: SweepSection = sweep
            .clone()
            .try_into()
            .map_err(|e: toml::de::Error| located(KeyError::of("sweep", from_serde(e.message()))))?;
        section.check().map_err(located)?;
        let mut parameters = Vec::new();
        collect(&mut vec!["sweep".into(), "parameters".into()], "", &section.parameters, &mut parameters)
            .map_err(located)?;
        if parameters.is_empty() {
            let wrong = KeyError::new("sweep.parameters", "[sweep.parameters] is empty");
            return Err(located(
                wrong.hint_setting("add parameters with their values: optimizer.learning_rate = [0.1, 0.01]"),
            ));
        }
        let parameters = parameters.into_iter().map(|(path, key, space)| {
            let line = line_of(text, &path);
            SweepParameter {
                key,
                space,
                place: line.map_or(origin.to_string(), |line| format!("{origin}, line {line}")),
            }
        });
        let mut base = base_of(&section, &table, text, (origin, folder)).map_err(|e| match e {
            Ok(error) => error,
            Err(wrong) => located(wrong),
        })?;
        if let Some(metric) = &section.metric {
            base.set_text(format!("sweep.metric of {origin}"), "fit.monitor", metric);
        }
        let method = section.method();
        if method == SweepMethod::Halving {
            // Rounds are ranked by their last epochs.
            base.set(format!("sweep.method of {origin}"), "fit.validation_freq", "1");
        }
        Ok(Sweep {
            method,
            maximizes: section.direction.as_ref().map(|d| d == "max"),
            min_epochs: section.min_epochs,
            factor: section.factor,
            base,
            trials: section.trials,
            seed: section.seed,
            parameters: parameters.collect(),
        })
    }

    /// Overrides a key of the configuration that all trials share.
    pub fn set(&mut self, flag: impl Into<String>, key: &str, value: &str) {
        self.base.set(flag, key, value);
    }

    /// Returns all trials in order, with validated configurations.
    ///
    /// # Errors
    /// Names the invalid key and value.
    pub fn trials(&self) -> Result<Vec<Trial>> {
        self.base.finish().map_err(|r| r.error)?;
        let combinations = match self.method {
            SweepMethod::Grid => self.grid()?,
            SweepMethod::Random | SweepMethod::Halving => self.drawn(),
        };
        let digits = combinations.len().to_string().len().max(3);
        let trial = |(i, values): (usize, Vec<Value>)| {
            let mut draft = self.base.clone();
            for (parameter, value) in self.parameters.iter().zip(&values) {
                let told = format!("{}: {} = {value}", parameter.place, parameter.key);
                match value.as_str() {
                    Some("none") => draft.set(told, &parameter.key, "none"),
                    _ => draft.set(told, &parameter.key, &value.to_string()),
                }
            }
            let config = draft.finish().map_err(|refused: ConfigError| refused.error)?;
            if config.lr_find.is_some() {
                let e = err!(Config, "a sweep cannot be combined with [lr_find]");
                return Err(e
                    .at("[lr_find]")
                    .hint_setting("remove [lr_find], and sweep optimizer.learning_rate"));
            }
            let keys = self.parameters.iter().map(|p| p.key.clone());
            Ok(Trial {
                name: format!("trial-{:0digits$}", i + 1),
                settings: keys.zip(values).collect(),
                config,
            })
        };
        combinations.into_iter().enumerate().map(trial).collect()
    }

    /// Returns, for each round of [`SweepMethod::Halving`], its last epoch (all of `epochs` in the last round) and its
    /// number of trials out of `n`.
    pub fn rounds(&self, epochs: usize, n: usize) -> Vec<(usize, usize)> {
        let mut rounds = Vec::new();
        let (mut until, mut left) = (self.min_epochs.min(epochs), n);
        loop {
            rounds.push((until, left));
            if until >= epochs {
                return rounds;
            }
            left = (left / self.factor).max(1);
            until = if left == 1 { epochs } else { (until * self.factor).min(epochs) };
        }
    }

    /// Returns the sweep's definition, which decides whether a folder contains the same sweep.
    pub fn definition(&self, trials: &[Trial]) -> Json {
        let one = |t: &Trial| json!({"name": t.name, "config": t.config});
        json!({
            "method": format!("{:?}", self.method), "maximizes": self.maximizes, "min_epochs": self.min_epochs,
            "factor": self.factor, "trials": trials.iter().map(one).collect::<Vec<_>>(),
        })
    }

    /// Continues the sweep of an earlier [`Sweep::definition`]: its trials come first and keep their names, and further
    /// trials are numbered after them.
    ///
    /// # Errors
    /// The reason why it is another sweep: other rules, or trials that this sweep does not have.
    pub fn grow(&self, mut trials: Vec<Trial>, earlier: &Json) -> Result<Vec<Trial>, String> {
        let now = self.definition(&trials);
        for key in ["method", "maximizes", "min_epochs", "factor"] {
            if now[key] != earlier[key] {
                let [now, was] = [&now[key], &earlier[key]].map(|v| v.to_string().to_lowercase());
                return Err(format!("{key} is {now}, was {was}"));
            }
        }
        let before = earlier["trials"].as_array().map_or(&[][..], Vec::as_slice);
        let mut all = Vec::with_capacity(trials.len());
        for known in before {
            let Some(at) = trials.iter().position(|t| json!(t.config) == known["config"]) else { continue };
            let name = known["name"].as_str().unwrap_or_default().to_string();
            all.push(Trial { name, ..trials.remove(at) });
        }
        if all.len() < before.len() {
            let (lost, n) = (before.len() - all.len(), before.len());
            return Err(format!(
                "{lost} of its {n} trials are not in this sweep, or have another configuration"
            ));
        }
        let digits = (all.len() + trials.len()).to_string().len().max(3);
        for trial in trials {
            let name = format!("trial-{:0digits$}", all.len() + 1);
            all.push(Trial { name, ..trial });
        }
        Ok(all)
    }

    fn grid(&self) -> Result<Vec<Vec<Value>>> {
        let told = |p: &SweepParameter, e: Error| e.at(format!("{}: {}", p.place, p.key));
        let each = self.parameters.iter().map(|p| p.space.all().map_err(|e| told(p, e)));
        let each = each.collect::<Result<Vec<_>>>()?;
        let all = each.iter().try_fold(1usize, |n, values| n.checked_mul(values.len()));
        let all = all.filter(|n| *n <= MOST).ok_or_else(|| {
            err!(Config, "the grid has more than {MOST} combinations")
                .at("sweep.parameters")
                .hint_setting("use fewer values, or method = \"random\" with `trials`")
        })?;
        // The last key changes fastest, as in nested loops.
        let combination = |mut i: usize| {
            let mut values: Vec<Value> = Vec::new();
            for choices in each.iter().rev() {
                values.insert(0, choices[i % choices.len()].clone());
                i /= choices.len();
            }
            values
        };
        Ok((0..all).map(combination).collect())
    }

    /// Draws values with the seed, without repeating a combination.
    fn drawn(&self) -> Vec<Vec<Value>> {
        let n = self.trials.unwrap_or(TRIALS);
        let mut all: Vec<Vec<Value>> = Vec::new();
        let mut index = 0;
        while all.len() < n && index < n as u64 * TRIES {
            let draw = |p: &SweepParameter| {
                p.space.draw(&mut RandomStream::new(self.seed, hash_name(&p.key), index))
            };
            let values: Vec<Value> = self.parameters.iter().map(draw).collect();
            if !all.contains(&values) {
                all.push(values);
            }
            index += 1;
        }
        all
    }
}

impl SweepSection {
    /// Returns the search method; its name was validated before.
    fn method(&self) -> SweepMethod {
        match self.method.as_str() {
            "grid" => SweepMethod::Grid,
            "random" => SweepMethod::Random,
            _ => SweepMethod::Halving,
        }
    }

    fn check(&self) -> Result<(), KeyError> {
        if !METHODS.contains(&self.method.as_str()) {
            return Err(KeyError::of("sweep.method", unknown("unknown method", &self.method, &METHODS)));
        }
        if let Some(d) = self.direction.as_ref().filter(|d| !DIRECTIONS.contains(&d.as_str())) {
            return Err(KeyError::of("sweep.direction", unknown("unknown direction", d, &DIRECTIONS)));
        }
        if self.trials.is_some() && self.method == "grid" {
            let wrong = KeyError::new(
                "sweep.trials",
                "trials cannot be combined with method = \"grid\": a grid search runs every combination",
            );
            return Err(wrong.hint_setting("remove `trials`, or set method = \"random\""));
        }
        let numbers = [
            ("trials", self.trials.unwrap_or(1), 1),
            ("min_epochs", self.min_epochs, 1),
            ("factor", self.factor, 2),
        ];
        match numbers.into_iter().find(|(_, n, least)| n < least) {
            Some((key, n, least)) => {
                let wrong = KeyError::new(&format!("sweep.{key}"), format!("{key} is {n}"));
                Err(wrong.hint_setting(format!("choose a {key} of at least {least}")))
            }
            None => Ok(()),
        }
    }
}

fn invalid_toml(text: &str, origin: &str, e: &toml::de::Error) -> Error {
    let line = e.span().map(|span| line_at(text, span.start));
    err!(Config, "invalid TOML")
        .because(e.message())
        .at(line.map_or(origin.to_string(), |line| format!("{origin}, line {line}")))
        .hint_setting("correct the line: keys are written as KEY = VALUE, tables as [TABLE]")
}

/// Returns the configuration that all trials share.
fn base_of(
    section: &SweepSection,
    table: &Table,
    text: &str,
    (origin, folder): (&str, &Path),
) -> Result<ConfigDraft, Result<Error, KeyError>> {
    let others: Vec<&String> = table.keys().filter(|k| *k != "sweep").collect();
    match &section.base {
        Some(_) if !others.is_empty() => {
            let what = format!("`base` cannot be combined with a configuration (`{}`)", others[0]);
            Err(Err(KeyError::new("sweep.base", what)
                .hint_setting("keep only `base`, or only the configuration in this file")))
        }
        Some(name) if PRESETS.contains(&name.as_str()) => ConfigDraft::preset(name).map_err(Ok),
        Some(name) if name.ends_with(".toml") => ConfigDraft::read(folder.join(name)).map_err(Ok),
        Some(name) => Err(Err(KeyError::of("sweep.base", unknown("unknown preset", name, &PRESETS)))),
        None if others.is_empty() => {
            Err(Err(KeyError::new("sweep", "the sweep has no configuration to train").hint_setting(
                "set `base` to a preset or a TOML file, or write the configuration into this file",
            )))
        }
        None => ConfigDraft::parse(&without_sweep(text), origin).map_err(Ok),
    }
}

/// Returns the text with the lines of `[sweep…]` tables blanked, so that line numbers stay valid.
fn without_sweep(text: &str) -> String {
    let mut is_sweep = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        let start = line.trim_start();
        if start.starts_with('[') {
            let name = start.trim_start_matches('[').trim_start();
            is_sweep =
                name.strip_prefix("sweep").is_some_and(|rest| rest.trim_start().starts_with([']', '.']));
        }
        lines.push(if is_sweep { "" } else { line });
    }
    lines.join("\n")
}

/// Path of a key in the file, key, and values.
type ParameterEntry = (Vec<String>, String, SearchSpace);

/// Collects the keys below a table, which may be dotted, quoted or nested tables.
fn collect(
    path: &mut Vec<String>,
    key: &str,
    table: &Table,
    found: &mut Vec<ParameterEntry>,
) -> Result<(), KeyError> {
    for (name, value) in table {
        let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        path.push(name.clone());
        let wrong = |error: Error, path: &[String]| KeyError { path: path.to_vec(), error };
        match value {
            Value::Table(range) if range.contains_key("min") || range.contains_key("max") => {
                let space = SearchSpace::range(&key, range).map_err(|e| wrong(e, path))?;
                found.push((path.clone(), key, space));
            }
            Value::Table(below) => collect(path, &key, below, found)?,
            Value::Array(values) if !values.is_empty() => {
                found.push((path.clone(), key, SearchSpace::List(values.clone())))
            }
            other => {
                let e = err!(Config, "{key} = {other}: expected a list of values");
                let e = e.hint_setting("write [0.1, 0.01], or { min = 0.001, max = 0.1, log = true }");
                return Err(wrong(e, path));
            }
        }
        path.pop();
    }
    Ok(())
}

impl SearchSpace {
    fn range(key: &str, table: &Table) -> Result<SearchSpace> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct RangeTable {
            min: Value,
            max: Value,
            #[serde(default)]
            log: bool,
            n: Option<usize>,
        }
        let range: RangeTable =
            table.clone().try_into().map_err(|e: toml::de::Error| from_serde(e.message()))?;
        let number = |v: &Value| v.as_float().or(v.as_integer().map(|i| i as f64));
        let (Some(min), Some(max)) = (number(&range.min), number(&range.max)) else {
            let e = err!(Config, "the range of {key} is not numeric");
            return Err(e.hint_setting("write numbers: { min = 0.001, max = 0.1 }, or a list of values"));
        };
        let is_whole = range.min.is_integer() && range.max.is_integer();
        let wrong = |what: String, hint: &str| Err(Error::new(ErrorKind::Config, what).hint_setting(hint));
        if min >= max || min.is_nan() || max.is_nan() {
            return wrong(
                format!("invalid range of {key}: min = {min}, max = {max}"),
                "choose a min below max",
            );
        }
        if range.log && min <= 0.0 {
            return wrong(
                format!("invalid logarithmic range of {key}: min = {min}"),
                "choose a min above 0 for log = true",
            );
        }
        if range.n.is_some_and(|n| n < 2) {
            return wrong(
                format!("n of {key} is below 2"),
                "choose an n of at least 2: the number of grid values, including both ends",
            );
        }
        Ok(SearchSpace::Range { min, max, log: range.log, n: range.n, is_whole })
    }

    /// Returns the values for a grid search.
    fn all(&self) -> Result<Vec<Value>> {
        match self {
            SearchSpace::List(values) => Ok(values.clone()),
            SearchSpace::Range { n: None, .. } => {
                Err(err!(Config, "grid search requires the number of values of a range").hint_setting(
                    "add n: { min = 0.001, max = 0.1, log = true, n = 5 }; or set method = \"random\"",
                ))
            }
            SearchSpace::Range { n: Some(n), .. } => {
                let mut values: Vec<Value> = (0..*n).map(|i| self.at(i as f64 / (n - 1) as f64)).collect();
                values.dedup();
                Ok(values)
            }
        }
    }

    fn draw(&self, stream: &mut RandomStream) -> Value {
        match self {
            SearchSpace::List(values) => values[stream.below(values.len() as u64) as usize].clone(),
            SearchSpace::Range { .. } => self.at(stream.uniform_f64()),
        }
    }

    /// Returns the value at the fraction `share` of a range, 0 to 1.
    fn at(&self, share: f64) -> Value {
        let SearchSpace::Range { min, max, log, is_whole, .. } = self else { return Value::Boolean(false) };
        let value =
            if *log { (min.ln() + share * (max / min).ln()).exp() } else { min + share * (max - min) };
        let value = value.clamp(*min, *max);
        match is_whole {
            true => Value::Integer(value.round() as i64),
            // Round to four digits for readability.
            false => Value::Float(format!("{value:.3e}").parse().unwrap_or(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rest: &str) -> Result<Vec<Trial>> {
        Sweep::parse(&format!("[sweep]\nbase = \"glyphs\"\n{rest}"), "s.toml")?.trials()
    }

    #[test]
    fn a_grid_is_every_combination_in_the_order_of_nested_loops() {
        let trials =
            of("[sweep.parameters]\noptimizer.learning_rate = [0.1, 0.01]\n\"fit.batch_size\" = [8, 16, 32]")
                .unwrap();
        let values: Vec<(f64, usize)> =
            trials.iter().map(|t| (t.settings[0].1.as_float().unwrap(), t.config.fit.batch_size)).collect();
        assert_eq!(values, [(0.1, 8), (0.1, 16), (0.1, 32), (0.01, 8), (0.01, 16), (0.01, 32)]);
        let log =
            of("[sweep.parameters]\noptimizer.learning_rate = { min = 1e-4, max = 1e-2, log = true, n = 3 }")
                .unwrap();
        let rates: Vec<f64> = log.iter().map(|t| t.settings[0].1.as_float().unwrap()).collect();
        assert_eq!(rates, [1e-4, 1e-3, 1e-2]);
    }

    #[test]
    fn draws_are_of_the_seed_within_their_range_and_none_twice() {
        let text = |seed: u64| {
            format!(
                "method = \"random\"\ntrials = 40\nseed = {seed}\n[sweep.parameters]\noptimizer.learning_rate = {{ min = 1e-4, max = 1e-1, log = true }}\nfit.batch_size = {{ min = 4, max = 9 }}"
            )
        };
        let settings = |seed| of(&text(seed)).unwrap().into_iter().map(|t| t.settings).collect::<Vec<_>>();
        let (a, b) = (settings(1), settings(2));
        assert!(a == settings(1) && a != b && a.len() == 40);
        let rates: Vec<f64> = a.iter().map(|s| s[0].1.as_float().unwrap()).collect();
        assert!(rates.iter().all(|r| (1e-4..=1e-1).contains(r)));
        // Log-uniform: about a third is below 1e-3.
        let low = rates.iter().filter(|r| **r < 1e-3).count();
        assert!((6..=21).contains(&low), "{low} of 40");
        assert!(a.iter().all(|s| (4..=9).contains(&s[1].1.as_integer().unwrap())));
        let few = of("method = \"random\"\ntrials = 9\n[sweep.parameters]\nfit.batch_size = [4, 8]").unwrap();
        assert_eq!(few.len(), 2, "there are no more");
    }

    #[test]
    fn a_sweep_with_more_trials_keeps_the_earlier_ones() {
        let sweep =
            |rest: &str| Sweep::parse(&format!("[sweep]\nbase = \"glyphs\"\n{rest}"), "s.toml").unwrap();
        let grown = |before: &str, after: &str| {
            let (before, after) = (sweep(before), sweep(after));
            let definition = before.definition(&before.trials().unwrap());
            let trials = after.grow(after.trials().unwrap(), &definition)?;
            Ok::<_, String>(
                trials.iter().map(|t| (t.name.clone(), t.config.fit.batch_size)).collect::<Vec<_>>(),
            )
        };
        let named = |all: &[(&str, usize)]| all.iter().map(|(n, b)| (n.to_string(), *b)).collect::<Vec<_>>();
        let grid = |values: &str| format!("[sweep.parameters]\nfit.batch_size = {values}");
        assert_eq!(
            grown(&grid("[8, 32]"), &grid("[8, 16, 32]")).unwrap(),
            named(&[("trial-001", 8), ("trial-002", 32), ("trial-003", 16)])
        );
        let random =
            |n: usize| format!("method = \"random\"\ntrials = {n}\n{}", grid("{ min = 1, max = 999 }"));
        let (three, four) = (grown(&random(3), &random(3)).unwrap(), grown(&random(3), &random(4)).unwrap());
        assert!(four.len() == 4 && four[..3] == three, "{four:?}");
        assert!(grown(&grid("[8, 16]"), &grid("[8, 32]")).unwrap_err().contains("2 trials"));
        let why = grown(&grid("[8, 16]"), &random(3)).unwrap_err();
        assert!(why.contains("method is \"random\", was \"grid\""), "{why}");
    }

    #[test]
    fn rounds_of_halving_grow_as_trials_get_fewer() {
        let text = "[sweep]\nbase = \"glyphs\"\nmethod = \"halving\"\nmin_epochs = 1\nfactor = 3\n[sweep.parameters]\nseed = [1, 2]";
        let s = Sweep::parse(text, "s.toml").unwrap();
        assert_eq!(s.rounds(9, 9), [(1, 9), (3, 3), (9, 1)]);
        assert_eq!(s.rounds(20, 9), [(1, 9), (3, 3), (20, 1)]);
        assert_eq!(s.rounds(5, 30), [(1, 30), (3, 10), (5, 3)]);
        assert_eq!(s.rounds(1, 4), [(1, 4)]);
    }

    #[test]
    fn mistakes_name_their_line_before_anything_runs() {
        let cases = [
            ("[sweep.parameters]\noptimizer.lerning_rate = [1.0]", "line 4", "learning_rate"),
            ("[sweep.parameters]\nfit.batch_size = [16, 0]", "line 4: fit.batch_size = 0", "at least 1"),
            ("[sweep.parameters]\nfit.batch_size = 3", "line 4", "expected a list of values"),
            ("[sweep.parameters]\nfit.batch_size = { min = 3 }", "line 4", "max"),
            ("[sweep.parameters]\nfit.batch_size = { min = 3, max = 9 }", "line 4", "n = 5"),
            ("[sweep.parameters]\nfit.batch_size = { min = 9, max = 3 }", "line 4", "below max"),
            (
                "[sweep.parameters]\noptimizer.learning_rate = { min = 0, max = 3, log = true }",
                "line 4",
                "above 0",
            ),
            ("method = \"gird\"\n[sweep.parameters]\nseed = [1]", "line 3", "`grid`"),
            ("trials = 3\n[sweep.parameters]\nseed = [1]", "line 3", "random"),
            ("direction = \"up\"\n[sweep.parameters]\nseed = [1]", "line 3", "max"),
            ("metric = \"acuracy\"\n[sweep.parameters]\nseed = [1]", "sweep.metric", "accuracy"),
            ("tirals = 3\n[sweep.parameters]\nseed = [1]", "line 1", "`trials`"),
            ("[sweep.parameters]", "line 3", "optimizer.learning_rate"),
            ("[data]\ndataset = \"glyphs\"\n[sweep.parameters]\nseed = [1]", "line 2", "keep only"),
        ];
        for (text, place, part) in cases {
            let e = of(text).unwrap_err().to_string();
            assert!(e.contains(place) && e.contains(part), "{text}: {e}");
        }
    }

    #[test]
    fn the_base_may_stand_in_the_same_file() {
        let preset = RunConfig::preset_text("glyphs").unwrap();
        let text = format!("{preset}\n[sweep]\n[sweep.parameters]\nseed = [1, 2]\n");
        assert_eq!(Sweep::parse(&text, "s.toml").unwrap().trials().unwrap()[1].config.seed, 2);
        let at = preset.lines().position(|l| l.starts_with("epochs")).unwrap() + 1;
        let wrong = text.replacen("epochs = ", "epocs = ", 1);
        let e = Sweep::parse(&wrong, "s.toml").unwrap_err().to_string();
        assert!(e.contains(&format!("line {at}")), "{e}");
    }
}
