//! Draws the terminal dashboard, from 40 columns by 10 lines: progress bars, curves, wait times, memory, log.

use super::state::DashboardState;
use crate::terminal::wrapped;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};

/// Minimum width for two columns of panels.
const WIDE: u16 = 78;
/// Height of the header: a title and two bars.
const HEAD: u16 = 3;
/// Minimum height of a chart.
const CURVE: u16 = 7;
/// Height of the log below the time panel.
const LOG: u16 = 4;
/// Height of the time panel.
const TIMES: u16 = 6;

/// Draws the whole dashboard.
pub(super) fn draw(frame: &mut Frame<'_>, state: &DashboardState, is_plain: bool) {
    let paint = Palette { is_plain };
    let [head, rest] = Layout::vertical([Constraint::Length(HEAD), Constraint::Min(0)]).areas(frame.area());
    paint.head(frame, head, state);
    let is_wide = rest.width >= WIDE;
    let below = if is_wide { TIMES } else { TIMES + LOG };
    let [curves, panels] = match rest.height >= below + CURVE {
        true => Layout::vertical([Constraint::Min(CURVE), Constraint::Length(below)]).areas(rest),
        false => Layout::vertical([Constraint::Length(0), Constraint::Min(0)]).areas(rest),
    };
    if curves.height > 0 {
        paint.curves(frame, curves, state, is_wide);
    }
    let halves = [Constraint::Length(TIMES.min(panels.height)), Constraint::Min(0)];
    let [times, log] = match is_wide {
        true => Layout::horizontal([Constraint::Length(38), Constraint::Min(0)]).areas(panels),
        false => Layout::vertical(halves).areas(panels),
    };
    paint.times(frame, times, state);
    paint.log(frame, log, state);
}

/// Name, color and points of a curve.
type CurveSeries<'a> = (&'a str, Color, Vec<(f64, f64)>);

/// Colors, or none if NO_COLOR is set.
struct Palette {
    is_plain: bool,
}

impl Palette {
    fn colour(&self, colour: Color) -> Style {
        if self.is_plain { Style::new() } else { Style::new().fg(colour) }
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect, state: &DashboardState) {
        let [title, run, epoch] = Layout::vertical([Constraint::Length(1); 3]).areas(area);
        let hint = if state.is_stopping { "stopping after this step" } else { "q stops after this step" };
        let time = clock(state.began.elapsed().as_secs_f64());
        let values: Vec<String> =
            state.values.iter().map(|(name, v)| format!("{name} {}", short(*v))).collect();
        let mut spans = vec![
            Span::styled("systole ", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!("{time}  {}", values.join("  "))),
        ];
        let used: usize = spans.iter().map(Span::width).sum();
        let room = usize::from(title.width).saturating_sub(used + hint.len() + 1);
        if room > 0 {
            spans.push(Span::raw(" ".repeat(room + 1)));
            spans.push(Span::styled(hint, Style::new().add_modifier(Modifier::DIM)));
        }
        frame.render_widget(Line::from(spans), title);
        let [of_epoch, of_run] = state.done();
        let (each, left) = state.pace();
        let told = format!("epoch {}/{}", (state.epoch + 1).min(state.epochs.max(1)), state.epochs);
        frame.render_widget(self.gauge(told, of_run, Color::Blue), run);
        let count =
            state.steps.map_or(format!("step {}", state.step), |n| format!("step {}/{n}", state.step));
        let left = left.map_or(String::new(), |s| format!(", {} left", clock(s)));
        frame.render_widget(
            self.gauge(format!("{count}, {:.1} ms{left}", 1e3 * each), of_epoch, Color::Green),
            epoch,
        );
    }

    fn gauge(&self, label: String, share: f64, colour: Color) -> Gauge<'static> {
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        let style = if self.is_plain {
            Style::new().add_modifier(Modifier::REVERSED)
        } else {
            Style::new().fg(colour).bg(Color::DarkGray)
        };
        Gauge::default().gauge_style(style).ratio(share).label(label).use_unicode(true)
    }

    fn curves(&self, frame: &mut Frame<'_>, area: Rect, state: &DashboardState, is_wide: bool) {
        let (name, [train, test]) = state.metric();
        let by_step: Vec<(f64, f64)> = state.by_step.iter().copied().filter(|p| p.1.is_finite()).collect();
        let loss = ("loss by step".to_string(), vec![("training", Color::Blue, by_step)]);
        let metric = (
            format!("{name} by epoch"),
            vec![("training", Color::Blue, train), ("test", Color::Yellow, test)],
        );
        if !is_wide {
            return self.chart(frame, area, &loss);
        }
        let [left, right] = Layout::horizontal([Constraint::Percentage(50); 2]).areas(area);
        self.chart(frame, left, &loss);
        self.chart(frame, right, &metric);
    }

    fn chart(&self, frame: &mut Frame<'_>, area: Rect, (title, series): &(String, Vec<CurveSeries<'_>>)) {
        let block = Block::bordered().title(title.as_str());
        let all = || series.iter().flat_map(|(_, _, points)| points);
        let ends = |of: fn(&(f64, f64)) -> f64| {
            let low = all().map(of).fold(f64::INFINITY, f64::min);
            [low, all().map(of).fold(f64::NEG_INFINITY, f64::max)]
        };
        let (x, y) = (ends(|p| p.0), ends(|p| p.1));
        if !(x[0].is_finite() && y[0].is_finite()) {
            return frame.render_widget(Paragraph::new("no values yet").block(block), area);
        }
        let apart = |[low, high]: [f64; 2]| if high > low { [low, high] } else { [low - 0.5, high + 0.5] };
        let axis = |ends: [f64; 2], told: [String; 2]| Axis::default().bounds(apart(ends)).labels(told);
        let sets = series.iter().filter(|s| !s.2.is_empty()).map(|(name, colour, points)| {
            // Draw a single epoch as a dot.
            let kind = if points.len() > 1 { GraphType::Line } else { GraphType::Scatter };
            let set = Dataset::default().name(*name).marker(Marker::Braille).graph_type(kind);
            set.style(self.colour(*colour)).data(points)
        });
        let chart = Chart::new(sets.collect())
            .block(block)
            .x_axis(axis(x, x.map(|v| format!("{v}"))))
            .y_axis(axis(y, y.map(short)));
        frame.render_widget(chart, area);
    }

    fn times(&self, frame: &mut Frame<'_>, area: Rect, state: &DashboardState) {
        let waits = [("waits for data", state.data_wait), ("waits for device", state.device_wait)];
        let width = usize::from(area.width).saturating_sub(28);
        let bar = |(name, share): (&str, f64)| {
            let full = ((share * width as f64).round() as usize).min(width);
            let style = self.colour(if share > 0.2 { Color::Yellow } else { Color::Green });
            Line::from(vec![
                Span::raw(format!("{name:<17}{:>4.0} % ", 100.0 * share)),
                Span::styled("█".repeat(full), style),
            ])
        };
        let mut lines: Vec<Line<'_>> = waits.into_iter().map(bar).collect();
        if let Some(mib) = state.memory {
            lines.push(Line::from(format!("{:<17}{mib:>6.0} MiB", "memory")));
        }
        let (each, _) = state.pace();
        if each > 0.0 {
            lines.push(Line::from(format!("{:<17}{:>6.1}", "steps per second", 1.0 / each)));
        }
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("time and memory")), area);
    }

    fn log(&self, frame: &mut Frame<'_>, area: Rect, state: &DashboardState) {
        let [room, width] = [area.height, area.width].map(|n| usize::from(n.saturating_sub(2)));
        // Show the last rows that fit, with long lines wrapped.
        let rows = state.lines.iter().rev().map(|line| wrapped(line, width.max(1)));
        let mut shown: Vec<String> = Vec::new();
        for text in rows {
            shown.splice(0..0, text.lines().map(str::to_string));
            if shown.len() >= room {
                break;
            }
        }
        let from = shown.len().saturating_sub(room);
        let lines: Vec<Line<'_>> = shown[from..].iter().map(|l| Line::from(l.as_str())).collect();
        let text = Paragraph::new(lines);
        frame.render_widget(text.block(Block::bordered().title("log")), area);
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
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
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

    fn screen(state: &DashboardState, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, true)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(row).collect()
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
