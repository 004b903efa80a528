//! Draws the terminal dashboard, from 40 columns by 10 lines: progress bars, curves, wait times, memory, log.

use super::canvas::{Area, BOLD, CharacterGrid, CurveSeries, DIM, PLAIN, REVERSED, Style};
use super::state::DashboardState;
use crate::terminal::{columns, wrapped};

/// Minimum width for two columns of panels.
const WIDE: usize = 78;
/// Height of the header: a title and two bars.
const HEAD: usize = 3;
/// Minimum height of a chart.
const CURVE: usize = 7;
/// Height of the log below the time panel.
const LOG: usize = 4;
/// Height of the time panel.
const TIMES: usize = 6;

/// Width of the time panel if the log is next to it.
const TIMES_WIDTH: usize = 38;

const BLUE: Style = "34";
const GREEN: Style = "32";
const YELLOW: Style = "33";

/// Draws the whole dashboard.
pub(super) fn draw(canvas: &mut CharacterGrid, state: &DashboardState, is_plain: bool) {
    let paint = Palette { is_plain };
    let [head, rest] = canvas.area.split_rows(HEAD);
    paint.head(canvas, head, state);
    let is_wide = rest.width >= WIDE;
    let below = if is_wide { TIMES } else { TIMES + LOG };
    let curves = if rest.height >= below + CURVE { rest.height - below } else { 0 };
    let [curves, panels] = rest.split_rows(curves);
    if curves.height > 0 {
        paint.curves(canvas, curves, state, is_wide);
    }
    let [times, log] = if is_wide { panels.split_columns(TIMES_WIDTH) } else { panels.split_rows(TIMES) };
    paint.times(canvas, times, state);
    log_panel(canvas, log, state);
}

/// Colors, or none if NO_COLOR is set.
struct Palette {
    is_plain: bool,
}

impl Palette {
    fn color(&self, color: Style) -> Style {
        if self.is_plain { PLAIN } else { color }
    }

    fn head(&self, canvas: &mut CharacterGrid, area: Area, state: &DashboardState) {
        let hint = if state.is_stopping { "stopping after this step" } else { "q stops after this step" };
        let time = clock(state.began.elapsed().as_secs_f64());
        let values: Vec<String> =
            state.values.iter().map(|(name, v)| format!("{name} {}", short(*v))).collect();
        let used = canvas.text(area, (0, 0), "systole ", BOLD);
        let used = canvas.text(area, (used, 0), &format!("{time}  {}", values.join("  ")), PLAIN);
        if used + 1 + columns(hint) < area.width {
            canvas.text(area, (area.width - columns(hint), 0), hint, DIM);
        }
        let [of_epoch, of_run] = state.done();
        let (each, left) = state.pace();
        let told = format!("epoch {}/{}", (state.epoch + 1).min(state.epochs.max(1)), state.epochs);
        let [run, epoch] = area.split_rows(1)[1].split_rows(1);
        self.gauge(canvas, run, &told, of_run, "7;34");
        let count =
            state.steps.map_or(format!("step {}", state.step), |n| format!("step {}/{n}", state.step));
        let left = left.map_or(String::new(), |s| format!(", {} left", clock(s)));
        self.gauge(canvas, epoch, &format!("{count}, {:.1} ms{left}", 1e3 * each), of_epoch, "7;32");
    }

    fn gauge(&self, canvas: &mut CharacterGrid, area: Area, label: &str, share: f64, color: Style) {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        canvas.gauge(area, label, share, if self.is_plain { REVERSED } else { color });
    }

    fn curves(&self, canvas: &mut CharacterGrid, area: Area, state: &DashboardState, is_wide: bool) {
        let (name, [train, test]) = state.metric();
        let by_step: Vec<(f64, f64)> = state.by_step.iter().copied().filter(|p| p.1.is_finite()).collect();
        let training = self.color(BLUE);
        let [left, right] = area.split_columns(if is_wide { area.width / 2 } else { area.width });
        chart(canvas, left, "loss by step", vec![("training", training, by_step)]);
        if is_wide {
            let both = vec![("training", training, train), ("test", self.color(YELLOW), test)];
            chart(canvas, right, &format!("{name} by epoch"), both);
        }
    }

    fn times(&self, canvas: &mut CharacterGrid, area: Area, state: &DashboardState) {
        let inside = canvas.bordered(area, "time and memory");
        let waits = [("waits for data", state.data_wait), ("waits for device", state.device_wait)];
        let width = area.width.saturating_sub(28);
        for (y, (name, share)) in waits.into_iter().enumerate() {
            let full = ((share * width as f64).round() as usize).min(width);
            let style = self.color(if share > 0.2 { YELLOW } else { GREEN });
            let x = canvas.text(inside, (0, y), &format!("{name:<17}{:>4.0} % ", 100.0 * share), PLAIN);
            canvas.text(inside, (x, y), &"█".repeat(full), style);
        }
        let mut y = waits.len();
        if let Some(mib) = state.memory {
            canvas.text(inside, (0, y), &format!("{:<17}{mib:>6.0} MiB", "memory"), PLAIN);
            y += 1;
        }
        let (each, _) = state.pace();
        if each > 0.0 {
            canvas.text(inside, (0, y), &format!("{:<17}{:>6.1}", "steps per second", 1.0 / each), PLAIN);
        }
    }
}

/// Draws curves in a box, or a note if there are no points.
fn chart(canvas: &mut CharacterGrid, area: Area, title: &str, mut series: Vec<CurveSeries<'_>>) {
    let inside = canvas.bordered(area, title);
    series.retain(|(_, _, points)| !points.is_empty());
    let all = || series.iter().flat_map(|(_, _, points)| points);
    let ends = |of: fn(&(f64, f64)) -> f64| {
        let low = all().map(of).fold(f64::INFINITY, f64::min);
        [low, all().map(of).fold(f64::NEG_INFINITY, f64::max)]
    };
    let (x, y) = (ends(|p| p.0), ends(|p| p.1));
    if !(x[0].is_finite() && y[0].is_finite()) {
        canvas.text(inside, (0, 0), "no values yet", PLAIN);
        return;
    }
    let apart = |[low, high]: [f64; 2]| if high > low { [low, high] } else { [low - 0.5, high + 0.5] };
    canvas.chart(inside, &series, (apart(x), x.map(|v| format!("{v}"))), (apart(y), y.map(short)));
}

fn log_panel(canvas: &mut CharacterGrid, area: Area, state: &DashboardState) {
    let inside = canvas.bordered(area, "log");
    // Show the last rows that fit, with long lines wrapped.
    let rows = state.lines.iter().rev().map(|line| wrapped(line, inside.width.max(1)));
    let mut shown: Vec<String> = Vec::new();
    for text in rows {
        shown.splice(0..0, text.lines().map(str::to_string));
        if shown.len() >= inside.height {
            break;
        }
    }
    let from = shown.len().saturating_sub(inside.height);
    for (y, line) in shown[from..].iter().enumerate() {
        canvas.text(inside, (0, y), line, PLAIN);
    }
}

fn short(v: f64) -> String {
    if v != 0.0 && v.abs() < 1e-3 { format!("{v:.1e}") } else { format!("{v:.4}") }
}

/// Formats a time: `0:07`, `1:02:03`.
fn clock(s: f64) -> String {
    let s = s.max(0.0) as u64;
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use systole_nn::Logs;
    use systole_nn::progress::ProgressEvent;

    fn run() -> DashboardState {
        let mut state = DashboardState::new();
        for epoch in 0..3 {
            let mut logs = Logs::new();
            logs.insert("loss", 1.0 / (epoch + 1) as f64);
            logs.insert("accuracy", 0.5 + 0.1 * epoch as f64);
            state.take(&ProgressEvent::EpochBegin { epoch, epochs: 4, steps: Some(20), before: 0 });
            let (step, steps, elapsed) = (10, Some(20), Duration::from_millis(500));
            state.take(&ProgressEvent::Batch {
                step,
                steps,
                elapsed,
                data_wait: 0.25,
                device_wait: 0.0,
                logs: &logs,
            });
            state.by_step.push((20.0 * epoch as f64 + 10.0, 1.0 / (epoch + 1) as f64));
            if epoch < 2 {
                logs.insert("val_accuracy", 0.45 + 0.1 * epoch as f64);
                let (step, steps) = (20, Some(20));
                state.take(&ProgressEvent::EpochEnd {
                    step,
                    steps,
                    elapsed,
                    data_wait: 0.25,
                    device_wait: 0.0,
                    logs: &logs,
                });
            }
        }
        state.line("a note that is\nof two lines \x1b[31mwithout colours");
        state.memory = Some(123.0);
        state
    }

    fn screen(state: &DashboardState, width: usize, height: usize) -> Vec<String> {
        let mut canvas = CharacterGrid::new(width, height);
        draw(&mut canvas, state, true);
        (0..height).map(|y| canvas.row(y)).collect()
    }

    #[test]
    fn every_size_shows_what_it_has_room_for() {
        let state = run();
        for (width, height) in
            [(120, 40), (100, 30), (80, 24), (60, 24), (40, 20), (40, 10), (20, 4), (1, 1), (200, 5)]
        {
            let rows = screen(&state, width, height);
            let all = rows.join("\n");
            if width >= 40 && height >= 10 {
                assert!(
                    all.contains("epoch 3/4") && all.contains("step 10/20, 50.0 ms"),
                    "{width}x{height}\n{all}"
                );
                assert!(
                    all.contains("waits for data     25 %") && all.contains("123 MiB"),
                    "{width}x{height}\n{all}"
                );
            }
            if height >= 20 {
                assert!(
                    all.contains("loss by step") && all.contains("a note that is"),
                    "{width}x{height}\n{all}"
                );
            }
            assert_eq!(
                all.contains("accuracy by epoch"),
                width >= 78 && height >= 20,
                "{width}x{height}\n{all}"
            );
            assert!(!all.contains('\x1b'));
        }
    }

    #[test]
    fn eighty_columns_look_as_they_did() {
        let rows = screen(&run(), 80, 24);
        let text = rows.iter().map(|r| r.trim_end()).collect::<Vec<_>>().join("\n");
        assert!(rows[0].starts_with("systole 0:00  loss 0.3333  accuracy 0.7000"), "{text}");
        assert!(rows[0].trim_end().ends_with("q stops after this step"), "{text}");
        assert!(rows[3].starts_with("┌loss by step") && rows[3].contains("┌accuracy by epoch"), "{text}");
        assert!(rows[4].starts_with("│1.0000"), "{text}");
        assert!(rows[18].starts_with("┌time and memory") && rows[18].contains("┌log"), "{text}");
        assert!(rows[20].contains("of two lines"), "{text}");
        assert!(rows[21].contains("123 MiB") && rows[22].contains("steps per second"), "{text}");
    }

    #[test]
    fn values_that_are_not_finite_and_no_values_are_no_panic() {
        let mut state = DashboardState::new();
        assert!(screen(&state, 100, 30).join("\n").contains("no values yet"));
        state.by_step = vec![(1.0, f64::NAN), (2.0, f64::INFINITY)];
        state.values = vec![("loss".into(), f64::NAN)];
        assert!(screen(&state, 100, 30).join("\n").contains("loss NaN"));
    }
}
