//! Builds the HTML report page of a training run ([`RunReport`]) from a model and its history.

use crate::html::{Bar, Card};
use crate::run_findings::EpochMetrics;
use crate::{HtmlTile, Page, Plot, PlotSeries, SectionBlock, Tone, matrix, run_findings};
use std::collections::BTreeMap;
use std::path::Path;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::Result;
use systole_nn::optimizer::{Optimizer, ScheduledValue};
use systole_nn::{History, Model, counted, grouped};

/// Maximum number of points of a schedule curve.
const POINTS: u64 = 400;
/// Color indices of training, validation and other curves.
const TRAIN: usize = 0;
const VALIDATION: usize = 1;
const OTHER: usize = 2;

/// A misclassified or badly predicted sample.
#[derive(Clone, Debug, Default)]
pub struct WrongPrediction {
    /// PNG image of the sample.
    pub png: Option<Vec<u8>>,
    /// Text of the sample, if it is not an image.
    pub text: Option<String>,
    /// True class or value.
    pub is: String,
    /// Predicted class or value.
    pub taken_for: String,
    /// Predicted probability, 0 to 1.
    pub probability: Option<f64>,
}

/// HTML report of a training run; [`RunReport::write`] writes the file.
///
/// ```
/// use systole::prelude::*;
/// let x = Literal::from_slice([8, 1], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
/// let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// let mut model = Sequential::new([dense(1)]);
/// model.compile(Compile { optimizer: sgd(0.01), loss: mean_squared_error(), ..default() })?;
/// let history = model.fit(&data, Fit { epochs: 3, validation: Some(data.clone()), verbose: 0, ..default() })?;
///
/// let file = std::env::temp_dir().join(format!("doc-report-{}.html", std::process::id()));
/// RunReport::new("a line", &model, &history).command("cargo run --example line").write(&file)?;
/// assert!(std::fs::read_to_string(&file).unwrap().contains("a line"));
/// # std::fs::remove_file(file).unwrap();
/// # Ok::<(), Error>(())
/// ```
pub struct RunReport {
    /// Heading of the page.
    pub title: String,
    /// Sentence below the heading.
    pub lead: String,
    /// Metrics of each epoch.
    pub epochs: Vec<EpochMetrics>,
    /// Test values of the final model, with names that start with `val_`. Default: those of the last epoch.
    pub tested: BTreeMap<String, f64>,
    /// Mean loss of consecutive steps, by the number of the last step.
    pub by_step: Vec<(f64, f64)>,
    /// Label, value and note of each number at the top.
    pub tiles: Vec<(String, String, String)>,
    /// Findings about the run, with their rating.
    pub verdicts: Vec<(Tone, String)>,
    /// Seconds by phase.
    pub phases: Vec<(String, f64)>,
    /// Output of `--profile`.
    pub profile: Vec<String>,
    /// Lines about the input pipeline.
    pub data: Vec<String>,
    /// Name and value of each machine property.
    pub machine: Vec<(String, String)>,
    /// Display names of metrics, by metric name.
    names: BTreeMap<String, String>,
    step_ms: Vec<f64>,
    /// Scheduled values by name.
    schedules: Vec<(String, Vec<(f64, f64)>)>,
    layers: Vec<[String; 3]>,
    confusion: Option<(Vec<String>, Vec<Vec<u64>>)>,
    mistakes: Vec<WrongPrediction>,
    /// Sentence about the mistakes.
    mistakes_told: String,
    stages: Option<String>,
    configuration: Option<String>,
    commands: Vec<(String, String)>,
}

impl RunReport {
    /// Creates the report of a model and its history.
    pub fn new(title: impl Into<String>, model: &Model, history: &History) -> RunReport {
        let weights: usize = model.weights().iter().map(|(_, w)| w.ty().elements()).sum();
        let layers = model.summary_rows().iter().map(|row| {
            let shape: Vec<String> = row.output_shape.dims().iter().map(usize::to_string).collect();
            [row.layer.clone(), shape.join(" × "), grouped(row.params as u64)]
        });
        let total = ["total".to_string(), String::new(), grouped(weights as u64)];
        let optimizer = model.compile_config().map(|c| &c.optimizer);
        let first = history.initial_epoch as u64;
        let epoch = |(i, logs): (usize, &systole_nn::Logs)| {
            (first + i as u64 + 1, logs.iter().map(|(n, v)| (n.to_string(), v)).collect())
        };
        RunReport {
            title: title.into(),
            lead: String::new(),
            epochs: history.epochs.iter().enumerate().map(epoch).collect(),
            tested: BTreeMap::new(),
            by_step: Vec::new(),
            tiles: vec![("weights".into(), grouped(weights as u64), counted(layers.len() as u64, "layer"))],
            verdicts: run_findings::of_end(history).into_iter().collect(),
            phases: phases(history),
            profile: Vec::new(),
            data: [history.verdict()].into_iter().filter(|v| !v.is_empty()).collect(),
            machine: machine(),
            names: BTreeMap::new(),
            step_ms: history.step_ms.iter().map(|ms| f64::from(*ms)).collect(),
            schedules: optimizer.map_or(Vec::new(), |o| schedules(o, model.steps())),
            layers: layers.chain([total]).collect(),
            confusion: None,
            mistakes: Vec::new(),
            mistakes_told: String::new(),
            stages: history.data.as_ref().map(|report| report.to_string()),
            configuration: None,
            commands: Vec::new(),
        }
    }

    /// Sets the sentence below the report's title.
    pub fn lead(mut self, text: impl Into<String>) -> RunReport {
        self.lead = text.into();
        self
    }

    /// Sets the confusion matrix: rows are true classes, columns are predicted classes.
    pub fn confusion(mut self, classes: Vec<String>, counts: Vec<Vec<u64>>) -> RunReport {
        self.confusion = Some((classes, counts));
        self
    }

    /// Sets the worst mistakes of the model, worst first, and a sentence about them.
    pub fn mistakes(mut self, mistakes: Vec<WrongPrediction>, told: impl Into<String>) -> RunReport {
        (self.mistakes, self.mistakes_told) = (mistakes, told.into());
        self
    }

    /// Sets the run's configuration shown in the report, as TOML.
    pub fn configuration(mut self, toml: impl Into<String>) -> RunReport {
        self.configuration = Some(toml.into());
        self
    }

    /// Adds the command that repeats the run to the report.
    pub fn command(mut self, command: impl Into<String>) -> RunReport {
        self.commands.push(("Command".into(), command.into()));
        self
    }

    /// Adds another command with its purpose to the report.
    pub fn command_to(mut self, what: &str, command: String) -> RunReport {
        self.commands.push((what.into(), command));
        self
    }

    /// Sets the display name of a metric in the report, such as `accuracy`.
    pub fn call(mut self, metric: impl Into<String>, asked: impl Into<String>) -> RunReport {
        self.names.insert(metric.into(), asked.into());
        self
    }

    /// Writes the report page atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        write_atomically(&OsFileSystem, path.as_ref(), &[self.html().as_bytes()])
    }

    /// Returns the report as an HTML page.
    pub fn html(&self) -> String {
        let mut page = Page {
            title: self.title.clone(),
            lead: self.lead.clone(),
            verdicts: self.verdicts.clone(),
            tiles: self.results(),
            foot: format!("Systole {}", env!("CARGO_PKG_VERSION")),
            ..Page::default()
        };
        page.verdicts.extend(run_findings::of_curves(&self.epochs));
        page.add("curves", "Curves", self.curves());
        page.add("schedule", "Learning rate", self.schedule());
        page.add("confusion", "Confusion matrix", self.confusions());
        page.add("mistakes", "Worst mistakes", self.worst());
        page.add("layers", "Layers", self.layer_table());
        page.add("time", "Time", self.time());
        page.add("data", "Data", self.data_blocks());
        page.add(
            "configuration",
            "Configuration",
            self.configuration.iter().cloned().map(SectionBlock::Code).collect(),
        );
        page.add("machine", "Machine and version", self.machine_table());
        page.add("reproduce", "How to reproduce", self.reproduce());
        page.html()
    }

    fn called(&self, name: &str) -> String {
        self.names.get(name).cloned().unwrap_or_else(|| name.to_string())
    }

    /// Returns the names of all metrics, loss first.
    fn metrics(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.epochs.iter().flat_map(|(_, values)| values.keys()) {
            let name = name.strip_prefix("val_").unwrap_or(name);
            if !names.iter().any(|n| n == name) {
                names.push(name.into());
            }
        }
        names.sort_by_key(|name| name != "loss");
        names
    }

    fn curve(&self, name: &str) -> Vec<(f64, f64)> {
        self.epochs.iter().filter_map(|(n, values)| Some((*n as f64, *values.get(name)?))).collect()
    }

    /// Returns the last value of each metric, of validation if available.
    fn results(&self) -> Vec<HtmlTile> {
        let mut tiles = Vec::new();
        for name in self.metrics().iter().rev() {
            let val = format!("val_{name}");
            let (kind, curve) = match self.curve(&val) {
                curve if !curve.is_empty() => ("test", curve),
                _ => ("training", self.curve(name)),
            };
            let last = self.tested.get(&val).copied().or(curve.last().map(|(_, last)| *last));
            let Some(last) = last else { continue };
            let grows = systole_nn::callback::grows(name);
            let best = curve
                .iter()
                .filter(|p| p.1.is_finite())
                .copied()
                .reduce(|best, at| if at.1 != best.1 && (at.1 > best.1) == grows { at } else { best });
            let note = match best {
                Some((epoch, value)) if curve.len() > 1 => {
                    format!("best {} in epoch {epoch}", value_of(value))
                }
                _ => String::new(),
            };
            let label = format!("{kind} {}", self.called(name));
            tiles.push(HtmlTile { label, value: value_of(last), note });
        }
        let others = self.tiles.iter().cloned();
        tiles.extend(others.map(|(label, value, note)| HtmlTile { label, value, note }));
        tiles
    }

    fn curves(&self) -> Vec<SectionBlock> {
        let mut plots: Vec<Plot> = self.metrics().iter().filter_map(|name| self.plot_of(name)).collect();
        if self.by_step.len() > 1 {
            let series = PlotSeries {
                name: "training".into(),
                colour: TRAIN,
                is_faint: false,
                is_dots: false,
                points: self.by_step.clone(),
            };
            plots.push(plot("loss by step", "step", vec![series], true));
        }
        let times: Vec<(f64, f64)> =
            self.step_ms.iter().enumerate().skip(1).map(|(i, ms)| (i as f64 + 1.0, *ms)).collect();
        if times.len() > 1 {
            // The median hides single slow steps (such as backups), which would flatten the curve.
            let series = PlotSeries {
                name: "median of neighboring steps".into(),
                colour: OTHER,
                is_faint: false,
                is_dots: false,
                points: medians(&times),
            };
            plots.push(plot("milliseconds per step", "step since this start", vec![series], true));
        }
        if plots.is_empty() { Vec::new() } else { vec![SectionBlock::Plots(plots)] }
    }

    fn plot_of(&self, name: &str) -> Option<Plot> {
        let one = |name: String, told: &str, colour| {
            let points = self.curve(&name);
            (!points.is_empty()).then(|| PlotSeries {
                name: told.into(),
                colour,
                is_faint: false,
                is_dots: false,
                points,
            })
        };
        let series = [one(name.into(), "training", TRAIN), one(format!("val_{name}"), "test", VALIDATION)];
        let series: Vec<PlotSeries> = series.into_iter().flatten().collect();
        let plot = plot(&self.called(name), "epoch", series, name == "loss");
        (!plot.series.is_empty()).then_some(plot)
    }

    fn schedule(&self) -> Vec<SectionBlock> {
        if let [(_, points)] = self.schedules.as_slice()
            && let Some((_, first)) = points.first()
            && points.iter().all(|(_, value)| value == first)
        {
            return vec![SectionBlock::Text(format!("Constant: {first}"))];
        }
        let one = |(name, points): &(String, Vec<(f64, f64)>)| {
            let (name, points) = (name.replace('_', " "), points.clone());
            let title = format!("{name} by step");
            let series = PlotSeries { name, colour: OTHER, is_faint: false, is_dots: false, points };
            plot(&title, "step", vec![series], false)
        };
        let plots: Vec<Plot> = self.schedules.iter().map(one).collect();
        if plots.is_empty() { Vec::new() } else { vec![SectionBlock::Plots(plots)] }
    }

    fn confusions(&self) -> Vec<SectionBlock> {
        let Some((names, counts)) = &self.confusion else { return Vec::new() };
        matrix::blocks(names, counts)
    }

    fn worst(&self) -> Vec<SectionBlock> {
        let mut blocks: Vec<SectionBlock> = Some(self.mistakes_told.clone())
            .filter(|t| !t.is_empty())
            .map(SectionBlock::Text)
            .into_iter()
            .collect();
        let card = |m: &WrongPrediction| Card {
            png: m.png.clone(),
            text: m.text.clone(),
            lines: vec![
                ("true".into(), m.is.clone()),
                (
                    "predicted".into(),
                    match m.probability {
                        Some(p) => format!("{}, {:.1} %", m.taken_for, 100.0 * p),
                        None => m.taken_for.clone(),
                    },
                ),
            ],
        };
        if !self.mistakes.is_empty() {
            blocks.push(SectionBlock::Cards(self.mistakes.iter().map(card).collect()));
        }
        blocks
    }

    fn layer_table(&self) -> Vec<SectionBlock> {
        let head = ["layer", "output", "weights"].map(String::from).to_vec();
        let rows = [head].into_iter().chain(self.layers.iter().map(|row| row.to_vec())).collect();
        vec![SectionBlock::Table { rows, numbers: true }]
    }

    fn time(&self) -> Vec<SectionBlock> {
        let all: f64 = self.phases.iter().map(|p| p.1).sum();
        let bar = |(name, seconds): &(String, f64)| Bar {
            name: name.clone(),
            share: seconds / all,
            told: format!("{} ({:.1} %)", duration(*seconds), 100.0 * seconds / all),
        };
        let mut blocks = Vec::new();
        if all > 0.0 {
            blocks.push(SectionBlock::Bars(self.phases.iter().filter(|p| p.1 > 0.0).map(bar).collect()));
        }
        for text in &self.profile {
            let (title, table) = text.split_once('\n').unwrap_or(("profile", text));
            let layers = run_findings::layers_of_profile(table);
            if !layers.is_empty() && title.contains("train") {
                blocks.push(SectionBlock::Text("By layer, in ms per training step".into()));
                let bar = |(name, share, ms): (String, f64, f64)| Bar {
                    name,
                    share,
                    told: format!("{ms:.3} ms ({:.1} %)", 100.0 * share),
                };
                blocks.push(SectionBlock::Bars(layers.into_iter().map(bar).collect()));
            }
            let title = format!("The {}", title.trim_end_matches(':'));
            blocks.push(SectionBlock::Folded(title, Box::new(SectionBlock::Code(table.into()))));
        }
        if self.profile.is_empty() && !blocks.is_empty() {
            blocks.push(SectionBlock::Text(
                "Train with --profile to include the time by layer and kernel.".into(),
            ));
        }
        blocks
    }

    fn data_blocks(&self) -> Vec<SectionBlock> {
        let mut blocks: Vec<SectionBlock> = self.data.iter().cloned().map(SectionBlock::Text).collect();
        if let Some(stages) = &self.stages {
            blocks.push(SectionBlock::Folded(
                "Stages of the pipeline".into(),
                Box::new(SectionBlock::Code(stages.clone())),
            ));
        }
        blocks
    }

    fn machine_table(&self) -> Vec<SectionBlock> {
        let head = vec![String::new(); 2];
        let rows = self.machine.iter().map(|(a, b)| vec![a.clone(), b.clone()]);
        vec![SectionBlock::Table { rows: [head].into_iter().chain(rows).collect(), numbers: false }]
    }

    fn reproduce(&self) -> Vec<SectionBlock> {
        let pair = |(what, command): &(String, String)| {
            [SectionBlock::Text(what.clone()), SectionBlock::Code(command.clone())]
        };
        self.commands.iter().flat_map(pair).collect()
    }
}

/// Creates a chart over integers.
fn plot(title: &str, x: &str, series: Vec<PlotSeries>, may_be_log: bool) -> Plot {
    Plot { title: title.into(), x: x.into(), series, is_whole: true, may_be_log, is_log_across: false }
}

/// Formats a metric as in the program's output.
fn value_of(v: f64) -> String {
    match v {
        v if !v.is_finite() => v.to_string(),
        v if v != 0.0 && v.abs() < 1e-3 => format!("{v:.2e}"),
        v => format!("{v:.4}"),
    }
}

/// Formats a duration: `1h02m`, `3m05s`, `12.3 s`, `45 ms`.
pub fn duration(s: f64) -> String {
    match s {
        3600.0.. => format!("{}h{:02}m", s as u64 / 3600, s as u64 % 3600 / 60),
        60.0.. => format!("{}m{:02}s", s as u64 / 60, s as u64 % 60),
        1.0.. => format!("{s:.1} s"),
        _ => format!("{:.0} ms", s * 1e3),
    }
}

/// Returns the median of consecutive groups of steps, so that a few slow steps do not hide the others.
fn medians(times: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let each = times.len().div_ceil(200).max(3).min(times.len());
    let middle = |stretch: &[(f64, f64)]| {
        let mut ms: Vec<f64> = stretch.iter().map(|t| t.1).collect();
        ms.sort_by(f64::total_cmp);
        Some((stretch.last()?.0, ms[ms.len() / 2]))
    };
    times.chunks(each).filter_map(middle).collect()
}

/// Returns the scheduled values over the steps done, subsampled.
fn schedules(optimizer: &Optimizer, steps: u64) -> Vec<(String, Vec<(f64, f64)>)> {
    let each = steps.div_ceil(POINTS).max(1);
    let last = steps.saturating_sub(1);
    let places = || (0..steps.max(1)).step_by(each as usize).chain([last]);
    let curve = |(name, at): ScheduledValue<'_>| {
        let mut points: Vec<(f64, f64)> = places().map(|step| (step as f64, at(step))).collect();
        points.dedup();
        (name, points)
    };
    optimizer.scheduled().into_iter().map(curve).collect()
}

/// Returns the seconds of each phase: steps without waiting, compilation, waiting for data, backups.
fn phases(history: &History) -> Vec<(String, f64)> {
    let seconds = |each: &[f32]| each.iter().map(|ms| f64::from(*ms)).sum::<f64>() / 1e3;
    let (steps, wait) = (seconds(&history.step_ms), seconds(&history.wait_ms));
    let first = f64::from(history.step_ms.first().copied().unwrap_or(0.0));
    let compiling =
        if history.step_ms.len() > 1 { (first - history.median_step_ms()).max(0.0) / 1e3 } else { 0.0 };
    let rows = [
        ("training steps", (steps - wait - compiling).max(0.0)),
        ("compilation, with the first step", compiling),
        ("waiting for data", wait),
        ("backups", seconds(&history.backup_ms)),
    ];
    rows.map(|(name, s)| (name.to_string(), s)).to_vec()
}

/// Describes the machine.
fn machine() -> Vec<(String, String)> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rows = [
        ("Systole", env!("CARGO_PKG_VERSION").to_string()),
        ("system", format!("{}, {}", std::env::consts::OS, std::env::consts::ARCH)),
        ("cores", cores.to_string()),
    ];
    rows.map(|(what, told)| (what.to_string(), told)).to_vec()
}
