//! Writes `report.html` in a run's folder: adds command, machine and predictions to the page of `systole_report`.

use crate::render::screen::{self, counted, grouped, note, program, quoted, shown_value};
use crate::run::evaluation::TestPredictions;
use crate::run::input_bottleneck;
use crate::run::run_summary::{RunSummary, peak_rss_mib, step_time, threads};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use systole_base::rng::fnv1a;
use systole_ir::{Result, knobs};
use systole_nn::Model;
use systole_progress::progress::called;
use systole_progress::recorder::recorded;
use systole_report::{RunReport, Tone, duration};
use systole_runtime::{Buffer, backend};

/// File name of the report.
const FILE: &str = "report.html";
/// Fraction of a run's time that the report may use for predictions, and its minimum.
const SHARE: f64 = 0.05;
const LEAST: Duration = Duration::from_secs(2);

/// Time limit for predictions in the report of a run that took `seconds`.
pub(crate) fn time_to_ask(seconds: f64) -> Duration {
    Duration::from_secs_f64((SHARE * seconds).max(0.0)).max(LEAST)
}

/// A report page that is rewritten when profiles arrive.
pub(crate) struct ReportPage {
    page: RunReport,
    path: PathBuf,
}

impl ReportPage {
    /// Writes the page; an error is only reported.
    pub(crate) fn new(
        run: &RunSummary<'_>,
        model: &Model,
        answers: Result<Option<TestPredictions>>,
        folder: &Path,
    ) -> Option<ReportPage> {
        let written = ReportPage { page: page(run, model, answers, folder), path: folder.join(FILE) };
        written.write().then_some(written)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds the `--profile` output, which is complete only after the programs are dropped.
    pub(crate) fn with_profile(mut self) {
        self.page.profile = screen::profiles();
        if !self.page.profile.is_empty() {
            self.write();
        }
    }

    fn write(&self) -> bool {
        match self.page.write(&self.path) {
            Ok(()) => true,
            Err(e) => {
                note(&format!("cannot write the report: {e}"));
                false
            }
        }
    }
}

fn page(
    run: &RunSummary<'_>,
    model: &Model,
    answers: Result<Option<TestPredictions>>,
    folder: &Path,
) -> RunReport {
    let (config, data) = (run.config, run.data);
    let name = folder.file_name().map_or(data.name.clone(), |n| n.to_string_lossy().into_owned());
    let mut page = RunReport::new(name, model, &run.history)
        .lead(run.lead(model))
        .configuration(config.to_shown_toml().unwrap_or_default())
        .command(command());
    page = page.command_to("Repeat the run from its configuration, saved as a file", again(run, folder));
    for name in run.history.epochs.iter().flat_map(|logs| logs.iter().map(|(name, _)| name)) {
        if called(name) != name && !name.starts_with("val_") {
            page = page.call(name, called(name));
        }
    }
    page.epochs = run.epochs_of(model);
    page.tested = run.tested.iter().map(|(name, value)| (name.to_string(), value)).collect();
    if let Some(weights) = &run.weights {
        let text =
            format!("Test figures, confusion matrix, mistakes and model file have these weights: {weights}.");
        page.verdicts.push((Tone::Plain, text));
    }
    page.data = vec![origin(run)];
    page.data.extend(data.notes.iter().cloned());
    let verdict = input_bottleneck::of(&run.history, config);
    page.data.extend(Some(verdict).filter(|v| !v.is_empty()));
    let seen = recorded();
    page.by_step = seen.by_step;
    tiles(&mut page, run);
    let known: f64 = page.phases.iter().map(|p| p.1).sum();
    let testing = seen.testing.as_secs_f64();
    page.phases.push(("testing after epochs".into(), testing));
    page.phases
        .push(("loading, building, saving and other".into(), (run.seconds - known - testing).max(0.0)));
    machine(&mut page, model);
    match answers {
        Ok(Some(mut answers)) => {
            if let Some((names, counts)) = answers.confusion.take().map(|c| c.table()) {
                page = page.confusion(names, counts);
            }
            let (worst, told) = answers.mistakes(data.elements);
            page.mistakes(worst, told)
        }
        Ok(None) => page,
        Err(e) => page.mistakes(Vec::new(), format!("Not computed: {}", e.what())),
    }
}

fn origin(run: &RunSummary<'_>) -> String {
    let data = run.data;
    let from = if data.origin.starts_with("generated") { "" } else { "from " };
    let (train, test) = (grouped(data.train_len as u64), grouped(data.test_len as u64));
    format!(
        "{}, {}: {train} {} for training and {test} for testing, {from}{}",
        data.name, run.reason, data.elements, data.origin
    )
}

fn tiles(page: &mut RunReport, run: &RunSummary<'_>) {
    let mut add = |label: &str, value: String, note: String| page.tiles.push((label.into(), value, note));
    if run.steps > 0 {
        let told = format!("{} a second", counted(run.samples_per_second() as u64, "sample"));
        add("a step", step_time(run.history.median_step_ms()), told);
    }
    if let Some(mib) = peak_rss_mib() {
        add("peak memory", format!("{mib:.0} MiB"), String::new());
    }
    add("time", duration(run.seconds), "since this start, including loading".into());
}

fn machine(page: &mut RunReport, model: &Model) {
    let mut add = |what: &str, told: String| page.machine.push((what.into(), told));
    if let Ok(backend) = backend("auto") {
        let device = backend.devices().into_iter().next().map(|d| d.description);
        add("device", format!("{}: {}", backend.name(), device.unwrap_or_default()));
    }
    add("threads", threads().to_string());
    let set: Vec<String> = knobs::KNOBS
        .iter()
        .filter(|knob| std::env::var_os(knob.name).is_some())
        .map(|knob| format!("{}={}", knob.name, shown_value(knob)))
        .collect();
    if !set.is_empty() {
        add("variables", set.join(", "));
    }
    if let (index, count @ 2..) = model.host() {
        add("host", format!("{} of {count}", index + 1));
    }
    if let Some(mark) = mark(model) {
        add("weights fingerprint", mark);
    }
}

/// Fingerprint of the weights: equal for bit-identical weights.
fn mark(model: &Model) -> Option<String> {
    let one = |sum: u64, value: &Buffer| Some(sum.rotate_left(1) ^ fnv1a(value.to_literal().ok()?.bytes()));
    let here = model.host().1 == 1;
    let sum = here.then(|| model.weights().into_iter().try_fold(0, |sum, (_, value)| one(sum, value)))?;
    sum.map(|sum| format!("{sum:016x}"))
}

/// Whether a word of the command line is an option that only `launch` sets.
fn is_of_launcher(word: &OsStr) -> bool {
    #[cfg(feature = "launch")]
    let option = Some(systole_launch::END_WITH_STDIN);
    #[cfg(not(feature = "launch"))]
    let option: Option<&str> = None;
    option.is_some_and(|option| word.to_str().and_then(|word| word.strip_prefix("--")) == Some(option))
}

/// Returns the command line of this process.
fn command() -> String {
    let words = std::env::args_os().skip(1).filter(|word| !is_of_launcher(word));
    let words = words.map(|word| quoted(PathBuf::from(word)));
    [program()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

fn again(run: &RunSummary<'_>, folder: &Path) -> String {
    let out = format!("{}-again", folder.display().to_string().trim_end_matches('/'));
    let from = run.from.as_ref().map_or(String::new(), |from| format!(" --from {}", quoted(from)));
    format!("{} train FILE.toml{from} --out {}", program(), quoted(out))
}
