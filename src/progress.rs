//! Shows training progress on standard error: a line like Keras's that redraws itself on a terminal, one plain line
//! per epoch elsewhere.

use crate::debug_build;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;
use std::time::Duration;
use systole_nn::Logs;
use systole_nn::progress::ProgressEvent;

/// The epoch that is being shown: its heading, and the steps of it that a run had taken before it was stopped.
static CURRENT: Mutex<(String, usize)> = Mutex::new((String::new(), 0));

/// Shows one event. Write errors (a closed terminal) do not end training.
pub fn show(event: &ProgressEvent<'_>) {
    let Ok(mut current) = CURRENT.lock() else { return };
    let mut out = stderr().lock();
    let live = out.is_terminal();
    let _ = match event {
        ProgressEvent::EpochBegin { epoch, epochs, before, .. } => {
            if let Some(note) = debug_build::note() {
                let _ = writeln!(out, "{note}");
            }
            *current = (format!("Epoch {}/{epochs}", epoch + 1), *before);
            Ok(())
        }
        ProgressEvent::Batch { step, steps, elapsed, data_wait, logs } if live => {
            let at = Moment { step: *step, steps: *steps, elapsed: *elapsed, data_wait: *data_wait };
            // No wrapping while drawing: a long line on a narrow terminal could not be drawn over.
            write!(out, "\r\x1b[2K\x1b[?7l{}\x1b[?7h", line_since(current.1, &current.0, at, logs, true))
        }
        ProgressEvent::Batch { .. } => Ok(()),
        ProgressEvent::Note(text) if live => writeln!(out, "\r\x1b[2K{text}"),
        ProgressEvent::Note(text) => writeln!(out, "{text}"),
        ProgressEvent::EpochEnd { step, steps, elapsed, data_wait, logs } => {
            let at = Moment { step: *step, steps: *steps, elapsed: *elapsed, data_wait: *data_wait };
            let text = line_since(current.1, &current.0, at, logs, false);
            if live { writeln!(out, "\r\x1b[2K{text}") } else { writeln!(out, "{text}") }
        }
    };
    let _ = out.flush();
}

/// How far an epoch is.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Steps taken.
    pub step: usize,
    /// Steps in the epoch, where known.
    pub steps: Option<usize>,
    /// Time that they took.
    pub elapsed: Duration,
    /// The part of it that they waited for data, 0 to 1.
    pub data_wait: f64,
}

/// `Epoch 1/5  30/60 [=====>    ] 1s 23ms/step, 1s left, 2% data wait  loss: 0.7155  accuracy: 0.71`
pub fn line(heading: &str, at: Moment, logs: &Logs, running: bool) -> String {
    line_since(0, heading, at, logs, running)
}

/// As [`line()`], where the time is that of the steps after the first `before`.
fn line_since(before: usize, heading: &str, at: Moment, logs: &Logs, running: bool) -> String {
    let Moment { step, steps, elapsed, data_wait } = at;
    let per_step = elapsed.as_secs_f64() / step.saturating_sub(before).max(1) as f64;
    let mut text = match steps {
        Some(n) => format!("{heading}  {step:>w$}/{n} {}", bar(step, n), w = n.to_string().len()),
        None => format!("{heading}  {step} steps"),
    };
    text += &format!(" {} {}/step", seconds(elapsed.as_secs_f64()), short_time(per_step));
    if let (true, Some(n)) = (running, steps) {
        text += &format!(", {} left", seconds(per_step * n.saturating_sub(step) as f64));
    }
    text += &format!(", {:.0}% data wait", 100.0 * data_wait);
    for (name, value) in logs.iter() {
        text += &if value != 0.0 && value.abs() < 1e-3 {
            format!("  {name}: {value:.3e}")
        } else {
            format!("  {name}: {value:.4}")
        };
    }
    text
}

fn bar(step: usize, steps: usize) -> String {
    const WIDTH: usize = 20;
    let full = (step * WIDTH).checked_div(steps).unwrap_or(WIDTH).min(WIDTH);
    let head = if full < WIDTH { ">" } else { "" };
    format!("[{}{head}{}]", "=".repeat(full), " ".repeat(WIDTH - full - head.len()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_like_keras() {
        let mut logs = Logs::new();
        logs.insert("loss", 0.71554);
        let at = |step, steps, ms, data_wait| Moment {
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
        let at = Moment { step: 30, steps: Some(60), elapsed: Duration::from_millis(23), data_wait: 0.0 };
        let text = line_since(29, "Epoch 1/5", at, &Logs::new(), true);
        assert!(text.contains("30/60") && text.contains(" 23ms/step"), "{text}");
    }
}
