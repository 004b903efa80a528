//! Training progress line on standard error, fitted to the terminal's width; without a terminal, one line per epoch as
//! in Keras.

use crate::terminal::{self, columns, cut};
use crate::{debug_build, recorder};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use systole_nn::progress::ProgressEvent;
use systole_nn::{Logs, counted};

/// Heading of the current epoch, and its steps from before the run was resumed.
static CURRENT: Mutex<(String, usize)> = Mutex::new((String::new(), 0));

/// Callback that receives each progress event before it is shown.
pub type EventListener = fn(&ProgressEvent<'_>);

/// The registered callback.
static WATCHER: Mutex<Option<EventListener>> = Mutex::new(None);

/// Registers a callback that receives progress events, or removes it.
pub fn set_watcher(watcher: Option<EventListener>) {
    *WATCHER.lock().unwrap_or_else(PoisonError::into_inner) = watcher;
}

/// Display names of metrics, by metric name.
static ASKED: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());

/// Sets the display name of a metric on the progress line, such as `accuracy` for the accuracy metric that the loss
/// selected.
pub fn call(metric: &str, asked: &str) {
    let mut names = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    names.insert(metric.into(), asked.into());
}

/// Returns the display name of a value in the logs.
pub fn called(name: &str) -> String {
    let names = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let (prefix, metric) = name.strip_prefix(VAL).map_or(("", name), |metric| (VAL, metric));
    format!("{prefix}{}", names.get(metric).map_or(metric, String::as_str))
}

/// Shows one progress event. Write errors (a closed terminal) do not end training.
pub fn show(event: &ProgressEvent<'_>) {
    recorder::take(event);
    let watcher = *WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
    watcher.into_iter().for_each(|watch| watch(event));
    let Ok(mut current) = CURRENT.lock() else { return };
    let width = terminal::width();
    match event {
        ProgressEvent::EpochBegin { epoch, epochs, before, .. } => {
            debug_build::note().into_iter().for_each(terminal::tell);
            *current = (format!("Epoch {}/{epochs}", epoch + 1), *before);
        }
        ProgressEvent::Batch { step, steps, elapsed, data_wait, device_wait, logs } => {
            let at = EpochPosition { step: *step, steps: *steps, elapsed: *elapsed, data_wait: *data_wait };
            if let Some(width) = width {
                terminal::draw(&LineParts::new(&current, at, *device_wait, logs).running(width));
            }
        }
        ProgressEvent::Note(text) => terminal::tell(text),
        ProgressEvent::Validation { step, logs } => {
            let values = logs.iter().filter(|(name, _)| name.starts_with(VAL));
            let values: Vec<String> = values.map(|(name, v)| format!("{}: {v:.4}", called(name))).collect();
            terminal::tell(&format!("{}, after {step} steps of it: {}", current.0, values.join("  ")));
        }
        ProgressEvent::EpochEnd { step, steps, elapsed, data_wait, device_wait, logs } => {
            let at = EpochPosition { step: *step, steps: *steps, elapsed: *elapsed, data_wait: *data_wait };
            terminal::print(&match width {
                Some(width) => LineParts::new(&current, at, *device_wait, logs).finished(width),
                None => plain(current.1, &current.0, at, *device_wait, logs, false),
            });
        }
    }
}

/// Progress within an epoch: steps done, total and times.
#[derive(Clone, Copy, Debug)]
pub struct EpochPosition {
    /// Number of steps done.
    pub step: usize,
    /// Number of steps in the epoch, if known.
    pub steps: Option<usize>,
    /// Time of the steps done.
    pub elapsed: Duration,
    /// Share of the time spent waiting for data, 0 to 1.
    pub data_wait: f64,
}

/// Formats a progress line: `Epoch 1/5  30/60 [=====>    ] 1s 23ms/step, 1s left, 2% data wait  loss: 0.7155  accuracy:
/// 0.71`.
pub fn line(heading: &str, at: EpochPosition, logs: &Logs, running: bool) -> String {
    line_since(0, heading, at, logs, running)
}

/// Like [`line()`], but `elapsed` excludes the first `before` steps.
fn line_since(before: usize, heading: &str, at: EpochPosition, logs: &Logs, running: bool) -> String {
    plain(before, heading, at, 0.0, logs, running)
}

fn plain(before: usize, heading: &str, at: EpochPosition, device: f64, logs: &Logs, running: bool) -> String {
    let EpochPosition { step, steps, elapsed, data_wait } = at;
    let per_step = elapsed.as_secs_f64() / step.saturating_sub(before).max(1) as f64;
    let mut text = match steps {
        Some(n) => format!("{heading}  {step:>w$}/{n} {}", bar(step, n), w = n.to_string().len()),
        None => format!("{heading}  {}", counted(step as u64, "step")),
    };
    text += &format!(" {} {}/step", seconds(elapsed.as_secs_f64()), short_time(per_step));
    if let (true, Some(n)) = (running, steps) {
        text += &format!(", {} left", seconds(per_step * n.saturating_sub(step) as f64));
    }
    text += &format!(", {}", waits(device, data_wait));
    logs.iter().for_each(|(name, v)| text += &format!("  {}", value(&called(name), v)));
    text
}

/// Formats the share of the time spent waiting for the device (if notable) and for data.
fn waits(device: f64, data: f64) -> String {
    let device = if device < MUCH { String::new() } else { format!("{:.0}% device wait, ", 100.0 * device) };
    format!("{device}{:.0}% data wait", 100.0 * data)
}

fn value(name: &str, value: f64) -> String {
    match value != 0.0 && value.abs() < 1e-3 {
        true => format!("{name}: {value:.3e}"),
        false => format!("{name}: {value:.4}"),
    }
}

/// Minimum share of device wait that is shown.
const MUCH: f64 = 0.05;
/// Prefix of validation metrics.
const VAL: &str = "val_";
/// Metrics that `accuracy` may stand for.
const ACCURACIES: [&str; 3] = ["sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy"];
/// Below this width, single spaces separate the items.
const NARROW: usize = 60;
/// Indentation of continuation lines.
const INDENT: &str = "  ";

/// Items of a progress line on a terminal, in order.
struct LineParts {
    heading: String,
    /// Loss and metrics, with full and with short names; each for training and for validation.
    values: [[Vec<String>; 2]; 2],
    at: EpochPosition,
    /// Step count, such as `30/60`.
    count: String,
    /// Elapsed and step time, such as `0s 23ms/step`.
    time: String,
    /// Remaining time, such as `1s left`.
    left: Option<String>,
    wait: String,
}

/// Items that a running line drops if it is too long, in this order: data wait, half of the bar, the bar, remaining
/// time, time, count, double spaces, the word `Epoch`; then metrics from the last one; then the heading.
const TIME: usize = 5;
const METRICS: usize = 9;

impl LineParts {
    fn new(
        (heading, before): &(String, usize),
        at: EpochPosition,
        device_wait: f64,
        logs: &Logs,
    ) -> LineParts {
        let EpochPosition { step, steps, elapsed, data_wait } = at;
        let per_step = elapsed.as_secs_f64() / step.saturating_sub(*before).max(1) as f64;
        LineParts {
            heading: heading.clone(),
            values: [false, true].map(|short| [false, true].map(|val| values(logs, short, val))),
            at,
            count: match steps {
                Some(n) => format!("{step:>w$}/{n}", w = n.to_string().len()),
                None => counted(step as u64, "step"),
            },
            time: format!("{} {}/step", seconds(elapsed.as_secs_f64()), short_time(per_step)),
            left: steps.map(|n| format!("{} left", seconds(per_step * n.saturating_sub(step) as f64))),
            wait: waits(device_wait, data_wait),
        }
    }

    /// Formats the line of a running epoch in at most `width` columns.
    fn running(&self, width: usize) -> String {
        let values = self.values[1].iter().map(Vec::len).sum::<usize>();
        // Shorten metric names before dropping more than the bar and the estimates.
        let all = (0..TIME).map(|without| (without, false));
        let all = all.chain((0..=METRICS + values).map(|without| (without, true)));
        let mut last = String::new();
        for (without, short) in all {
            last = self.running_without(without, short);
            if columns(&last) <= width {
                return last;
            }
        }
        cut(&last, width)
    }

    fn running_without(&self, without: usize, short: bool) -> String {
        let mut items: Vec<String> = self.values[usize::from(short)].iter().flatten().cloned().collect();
        let all = items.len();
        items.truncate(all.saturating_sub((without + 1).saturating_sub(METRICS)).max(1));
        if without < METRICS + all || all == 0 {
            let short = self.heading.trim_start_matches("Epoch ");
            items.insert(0, if without < METRICS - 1 { self.heading.clone() } else { short.into() });
        }
        let bar = match (self.at.steps, without) {
            (Some(n), ..2) => format!(" {}", bar_of(20, self.at.step, n)),
            (Some(n), 2) => format!(" {}", bar_of(10, self.at.step, n)),
            _ => String::new(),
        };
        let time = if without < TIME { format!(" {}", self.time) } else { String::new() };
        let left =
            self.left.as_ref().filter(|_| without < 4).map_or(String::new(), |left| format!(", {left}"));
        let wait = if without < 1 { format!(", {}", self.wait) } else { String::new() };
        if without < 6 {
            items.push(format!("{}{bar}{time}{left}{wait}", self.count));
        }
        items.join(if without < 7 { "  " } else { " " })
    }

    /// Formats the line of a finished epoch; in a narrow terminal, validation metrics go to the next line.
    fn finished(&self, width: usize) -> String {
        let end = format!("{} {}, {}", self.count, self.time, self.wait);
        let one = |[train, val]: &[Vec<String>; 2]| {
            let all = [&self.heading].into_iter().chain(train).chain(val).chain([&end]);
            Some(all.cloned().collect::<Vec<_>>().join("  ")).filter(|line| columns(line) <= width)
        };
        if let Some(line) = self.values.iter().find_map(one) {
            return line;
        }
        let [train, val] = &self.values[1];
        let ends = [format!("{} {}", self.count, self.time), self.wait.clone()];
        let mut lines = vec![self.heading.clone()];
        train.iter().for_each(|item| append(&mut lines, item, width));
        if let Some((first, others)) = val.split_first() {
            lines.push(cut(&format!("{INDENT}{first}"), width));
            others.iter().for_each(|item| append(&mut lines, item, width));
        }
        ends.iter().for_each(|item| append(&mut lines, item, width));
        lines.join("\n")
    }
}

/// Appends an item to the last line, or to a new line if it does not fit.
fn append(lines: &mut Vec<String>, item: &str, width: usize) {
    let gap = if width < NARROW { " " } else { "  " };
    match lines.last_mut() {
        Some(line) if columns(line) + gap.len() + columns(item) <= width => *line += &format!("{gap}{item}"),
        _ => lines.push(cut(&format!("{INDENT}{item}"), width)),
    }
}

/// Formats the loss and metrics, loss first: of training, or of validation if `val` is set.
fn values(logs: &Logs, short: bool, val: bool) -> Vec<String> {
    let kinds = logs.iter().filter(|(name, _)| ACCURACIES.contains(name) || *name == "accuracy").count();
    let named = |name: &str| match name.strip_prefix(VAL).unwrap_or(name) {
        kind if short && kinds == 1 && ACCURACIES.contains(&kind) => name.replace(kind, "accuracy"),
        _ => called(name),
    };
    let is_loss = |name: &str| name.strip_prefix(VAL).unwrap_or(name) == "loss";
    let own = || logs.iter().filter(|(name, _)| name.starts_with(VAL) == val);
    let sorted = own().filter(|(n, _)| is_loss(n)).chain(own().filter(|(n, _)| !is_loss(n)));
    sorted.map(|(name, v)| value(&named(name), v)).collect()
}

fn bar(step: usize, steps: usize) -> String {
    bar_of(20, step, steps)
}

fn bar_of(width: usize, step: usize, steps: usize) -> String {
    let full = (step * width).checked_div(steps).unwrap_or(width).min(width);
    let head = if full < width { ">" } else { "" };
    format!("[{}{head}{}]", "=".repeat(full), " ".repeat(width - full - head.len()))
}

fn seconds(s: f64) -> String {
    match s as u64 {
        s if s >= 3600 => format!("{}h{:02}m", s / 3600, s % 3600 / 60),
        s if s >= 60 => format!("{}m{:02}s", s / 60, s % 60),
        s => format!("{s}s"),
    }
}

fn short_time(s: f64) -> String {
    if s >= 1.0 {
        format!("{s:.1}s")
    } else if s >= 1e-3 {
        format!("{:.0}ms", s * 1e3)
    } else {
        format!("{:.0}us", s * 1e6)
    }
}

// Names of the previous version.
#[doc(hidden)]
pub use self::{EpochPosition as Moment, EventListener as Watcher};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_like_keras() {
        let mut logs = Logs::new();
        logs.insert("loss", 0.71554);
        let at = |step, steps, ms, data_wait| EpochPosition {
            step,
            steps,
            elapsed: Duration::from_millis(ms),
            data_wait,
        };
        let text = line("Epoch 1/5", at(30, Some(60), 690, 0.021), &logs, true);
        let expected =
            "Epoch 1/5  30/60 [==========>         ] 0s 23ms/step, 0s left, 2% data wait  loss: 0.7155";
        assert_eq!(text, expected);
        let done = line("Epoch 1/5", at(7, None, 70_000, 0.0), &logs, false);
        assert_eq!(done, "Epoch 1/5  7 steps 1m10s 10.0s/step, 0% data wait  loss: 0.7155");
        assert_eq!(bar(60, 60), format!("[{}]", "=".repeat(20)));
        assert_eq!(bar(0, 0), format!("[{}]", "=".repeat(20)));
    }

    #[test]
    fn a_run_that_goes_on_in_an_epoch_counts_the_time_of_its_own_steps() {
        let at =
            EpochPosition { step: 30, steps: Some(60), elapsed: Duration::from_millis(23), data_wait: 0.0 };
        let text = line_since(29, "Epoch 1/5", at, &Logs::new(), true);
        assert!(text.contains("30/60") && text.contains(" 23ms/step"), "{text}");
    }

    fn parts(step: usize, values: &[(&str, f64)]) -> LineParts {
        let mut logs = Logs::new();
        values.iter().for_each(|(name, v)| logs.insert(*name, *v));
        let at =
            EpochPosition { step, steps: Some(60), elapsed: Duration::from_millis(690), data_wait: 0.021 };
        LineParts::new(&("Epoch 1/5".into(), 0), at, 0.04, &logs)
    }

    const KERAS: [(&str, f64); 4] = [
        ("sparse_categorical_accuracy", 0.71231),
        ("loss", 0.71554),
        ("val_sparse_categorical_accuracy", 0.7),
        ("val_loss", 0.00012),
    ];

    #[test]
    fn a_running_line_fits_and_loses_the_loss_last() {
        let running = parts(30, &KERAS[..2]);
        let lines = [
            (
                160,
                "Epoch 1/5  loss: 0.7155  sparse_categorical_accuracy: 0.7123  30/60 [==========>         ] 0s 23ms/step, 0s left, 2% data wait",
            ),
            (
                119,
                "Epoch 1/5  loss: 0.7155  sparse_categorical_accuracy: 0.7123  30/60 [==========>         ] 0s 23ms/step, 0s left",
            ),
            (79, "Epoch 1/5  loss: 0.7155  accuracy: 0.7123  30/60 0s 23ms/step, 0s left"),
            (48, "Epoch 1/5  loss: 0.7155  accuracy: 0.7123  30/60"),
            (39, "Epoch 1/5 loss: 0.7155 accuracy: 0.7123"),
            (38, "1/5 loss: 0.7155 accuracy: 0.7123"),
            (20, "1/5 loss: 0.7155"),
            (12, "loss: 0.7155"),
            (5, "loss:"),
        ];
        for (width, line) in lines {
            assert_eq!(running.running(width), line, "{width}");
        }
        let many: Vec<(String, f64)> = (0..12).map(|k| (format!("metric_{k}"), 1e5 * f64::from(k))).collect();
        let many: Vec<(&str, f64)> =
            many.iter().map(|(n, v)| (n.as_str(), *v)).chain([("loss", f64::NAN)]).collect();
        for width in 12..200 {
            let texts = [&running, &parts(7, &many)].map(|p| p.running(width));
            assert!(texts.iter().all(|t| columns(t) <= width && t.contains("loss: ")), "{width}: {texts:?}");
        }
        assert_eq!(parts(30, &[]).running(39), "Epoch 1/5  30/60 0s 23ms/step, 0s left");
        assert_eq!(parts(30, &[]).running(4), "1/5");
        assert_eq!(waits(0.31, 0.021), "31% device wait, 2% data wait");
    }

    #[test]
    fn a_finished_line_loses_nothing() {
        let finished = parts(60, &KERAS);
        let [wide, usual, narrow] = [180, 79, 39].map(|width| finished.finished(width));
        assert_eq!(
            wide,
            "Epoch 1/5  loss: 0.7155  sparse_categorical_accuracy: 0.7123  val_loss: 1.200e-4  \
             val_sparse_categorical_accuracy: 0.7000  60/60 0s 12ms/step, 2% data wait"
        );
        assert_eq!(
            usual,
            "Epoch 1/5  loss: 0.7155  accuracy: 0.7123\n  val_loss: 1.200e-4  val_accuracy: 0.7000  60/60 0s 12ms/step  2% data wait"
        );
        assert_eq!(
            narrow,
            "Epoch 1/5 loss: 0.7155 accuracy: 0.7123\n  val_loss: 1.200e-4\n  val_accuracy: 0.7000\n  60/60 0s 12ms/step 2% data wait"
        );
        for width in 24..200 {
            let text = finished.finished(width);
            assert!(text.lines().all(|line| columns(line) <= width), "{width}:\n{text}");
            assert!(
                ["loss: 0.7155", "accuracy: 0.7123", "60/60", "data wait"]
                    .iter()
                    .all(|part| text.contains(part))
            );
        }
    }

    #[test]
    fn several_accuracies_keep_their_names() {
        let both = parts(30, &[("loss", 1.0), ("binary_accuracy", 0.5), ("categorical_accuracy", 0.5)]);
        let line = both.running(79);
        assert!(line.contains("binary_accuracy: ") && line.contains("  categorical_accuracy: "), "{line}");
        call("binary_accuracy_of_this_test", "accuracy");
        assert_eq!(called("val_binary_accuracy_of_this_test"), "val_accuracy");
        assert_eq!(called("recall"), "recall");
    }
}
