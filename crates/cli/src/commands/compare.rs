//! `systole compare`: compares metrics and differing settings of several training runs.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::config_of;
use crate::models::imported;
use crate::models::run_directory::{BEST, LAST, model_file};
use crate::render::screen::{Screen, grouped, table};
use clap::Args;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use systole_ir::{Result, err};
use systole_nn::callback::grows;
use systole_nn::did_you_mean::suggestion;

/// Maximum number of columns of a sparkline.
const COLUMNS: usize = 24;
/// Sparkline characters by height.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Run folders or model files
    #[arg(value_name = "RUN", required = true, num_args = 1..)]
    runs: Vec<String>,
    /// Compare this metric: loss, val_loss or the name of a metric
    ///
    /// [default: the metric of the first run, on test data if it was measured there]
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
}

impl RunCommand for CompareArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let runs = self.runs.iter().map(|name| FinishedRun::read(name)).collect::<Result<Vec<_>>>()?;
        let metric = metric(&self, &runs)?;
        let differing = differing(&runs);
        if screen.json {
            let each = |r: &FinishedRun| {
                let own = differing.iter().map(|key| (key.clone(), json!(r.settings.get(key))));
                json!({
                    "run": r.name, "epochs": r.epochs.len(), "steps": r.steps, "weights": r.weights,
                    "best": r.best(&metric).map(|(epoch, value)| json!({"epoch": epoch, "value": value})),
                    "last": r.curve(&metric).last().map(|p| p.1), "curve": r.curve(&metric), "settings": own.collect::<Map<_, _>>(),
                })
            };
            screen.object(&json!({"metric": metric, "runs": runs.iter().map(each).collect::<Vec<_>>()}));
            return Ok(0);
        }
        screen.line(results(&runs, &metric));
        match differing.is_empty() {
            true if runs.len() > 1 => screen.line("\nThe runs have the same settings."),
            true => {}
            false => screen.line(format!("\n{}", settings(&runs, &differing))),
        }
        Ok(0)
    }
}

/// A training run, read from its model file.
struct FinishedRun {
    name: String,
    steps: u64,
    weights: u64,
    /// Metrics by name for each epoch number.
    epochs: Vec<(u64, BTreeMap<String, f64>)>,
    /// Flattened configuration with dotted keys.
    settings: BTreeMap<String, String>,
}

impl FinishedRun {
    fn read(name: &str) -> Result<FinishedRun> {
        // The last model has the whole history; the best model only the epochs before it.
        let file = model_file(name)?;
        let last = file.strip_suffix(BEST).map(|stem| format!("{stem}{LAST}"));
        let file = last.filter(|last| std::path::Path::new(last).is_file()).unwrap_or(file);
        let model = imported::load_to_predict(&file)?;
        let history: Vec<Value> =
            model.notes.get("history").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let mut settings = BTreeMap::new();
        if let Some(config) = config_of(&model, &file)? {
            let written: toml::Table = toml::from_str(&config.to_toml()?)
                .map_err(|e| err!(Bug, "cannot parse a written configuration").because(e.to_string()))?;
            flatten("", &toml::Value::Table(written), &mut settings);
        }
        let weights = model.weights().iter().map(|(_, w)| w.ty().elements() as u64).sum();
        let epochs = history.iter().filter_map(values_of).collect();
        Ok(FinishedRun {
            name: name.trim_end_matches('/').into(),
            steps: model.steps(),
            weights,
            epochs,
            settings,
        })
    }

    /// Returns the epochs in which `metric` was measured.
    fn curve(&self, metric: &str) -> Vec<(u64, f64)> {
        self.epochs.iter().filter_map(|(n, values)| Some((*n, *values.get(metric)?))).collect()
    }

    fn best(&self, metric: &str) -> Option<(u64, f64)> {
        let (curve, grows) = (self.curve(metric).into_iter(), grows(metric));
        let finite = curve.filter(|(_, value)| value.is_finite());
        finite.reduce(|best, at| if (at.1 > best.1) == grows && at.1 != best.1 { at } else { best })
    }
}

/// Returns an epoch's number and metrics.
fn values_of(epoch: &Value) -> Option<(u64, BTreeMap<String, f64>)> {
    let values = epoch.as_object()?.iter().filter(|(name, _)| *name != "epoch");
    let number = |v: &Value| v.as_f64().unwrap_or(f64::NAN);
    Some((epoch["epoch"].as_u64()?, values.map(|(name, v)| (name.clone(), number(v))).collect()))
}

fn flatten(path: &str, value: &toml::Value, into: &mut BTreeMap<String, String>) {
    let below = |key: &str| if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
    match value {
        toml::Value::Table(t) => t.iter().for_each(|(key, value)| flatten(&below(key), value, into)),
        toml::Value::Array(a) if a.iter().any(toml::Value::is_table) => {
            a.iter().enumerate().for_each(|(i, value)| flatten(&below(&i.to_string()), value, into));
        }
        other => drop(into.insert(path.into(), other.to_string())),
    }
}

/// Returns the keys whose values differ between runs.
fn differing(runs: &[FinishedRun]) -> Vec<String> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|r| r.settings.keys()).collect();
    let same = |key: &&String| runs.windows(2).all(|w| w[0].settings.get(*key) == w[1].settings.get(*key));
    keys.into_iter().filter(|key| !same(key)).cloned().collect()
}

fn metric(args: &CompareArgs, runs: &[FinishedRun]) -> CommandResult<String> {
    let all: BTreeSet<&str> =
        runs.iter().flat_map(|r| &r.epochs).flat_map(|e| e.1.keys()).map(String::as_str).collect();
    match &args.metric {
        Some(asked) if all.contains(asked.as_str()) => Ok(asked.clone()),
        Some(asked) => {
            let known: Vec<&str> = all.into_iter().collect();
            let e = err!(Config, "no run has the metric `{asked}`").at("--metric");
            Err(CommandError::usage(e.hint_command(suggestion(asked, &known))))
        }
        None => {
            let named = |name: &&&str| name.starts_with("val_") && **name != "val_loss";
            let found = all.iter().find(named).or(all.get("val_loss")).or(all.get("loss"));
            found.map(|name| name.to_string()).ok_or_else(|| {
                err!(Data, "the models have no training history")
                    .hint_command("compare models written by `systole train`")
                    .into()
            })
        }
    }
}

fn results(runs: &[FinishedRun], metric: &str) -> String {
    let all = || runs.iter().flat_map(|r| r.curve(metric)).map(|p| p.1).filter(|v| v.is_finite());
    let range = [all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max)];
    let best = format!("best {metric}");
    let mut rows = vec![
        ["run", &best, "at epoch", "last", "epochs", "steps", "weights", "curve"].map(String::from).to_vec(),
    ];
    let number = |value: Option<f64>| value.map_or("-".to_string(), |v| format!("{v:.4}"));
    for r in runs {
        let (curve, best) = (r.curve(metric), r.best(metric));
        rows.push(vec![
            r.name.clone(),
            number(best.map(|b| b.1)),
            best.map_or("-".into(), |b| b.0.to_string()),
            number(curve.last().map(|p| p.1)),
            r.epochs.len().to_string(),
            grouped(r.steps),
            grouped(r.weights),
            drawn(&curve, range),
        ]);
    }
    table(&rows)
}

/// Draws a sparkline scaled to the range over all runs.
fn drawn(curve: &[(u64, f64)], [least, most]: [f64; 2]) -> String {
    let columns = curve.len().min(COLUMNS);
    let height = |value: f64| {
        let share = (value - least) / (most - least).max(f64::MIN_POSITIVE);
        HEIGHTS[((share * 7.0).round() as usize).min(7)]
    };
    let at = |i: usize| curve[i * (curve.len() - 1) / (columns - 1).max(1)].1;
    (0..columns).map(|i| if at(i).is_finite() { height(at(i)) } else { '×' }).collect()
}

fn settings(runs: &[FinishedRun], keys: &[String]) -> String {
    let mut rows =
        vec![std::iter::once("setting".to_string()).chain(runs.iter().map(|r| r.name.clone())).collect()];
    for key in keys {
        let value = |r: &FinishedRun| r.settings.get(key).cloned().unwrap_or_else(|| "-".into());
        rows.push(std::iter::once(key.clone()).chain(runs.iter().map(value)).collect::<Vec<_>>());
    }
    table(&rows)
}
