//! Line and scatter charts as SVG, with colors from the page's style sheet.

use crate::escape::escaped;
use std::fmt::Write;

/// Maximum number of points drawn per curve; longer curves are subsampled.
const MOST: usize = 600;
/// Curves with at most this many points get a dot for each.
const DOTTED: usize = 40;
const SIZE: [f64; 2] = [460.0, 240.0];
/// Margins: left, top, right, bottom.
const EDGE: [f64; 4] = [52.0, 10.0, 14.0, 34.0];
/// Value ratio from which the y axis is logarithmic.
const FAR: f64 = 100.0;

/// A curve of a chart: its name and points.
pub struct PlotSeries {
    /// Name in the legend.
    pub name: String,
    /// Index of one of the page's eight colors.
    pub colour: usize,
    /// Whether to draw a thin line behind the others.
    pub is_faint: bool,
    /// Whether to draw points without a line.
    pub is_dots: bool,
    /// x and y of each point.
    pub points: Vec<(f64, f64)>,
}

/// A line or scatter chart of the report.
pub struct Plot {
    /// Heading of the chart.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Curves, drawn in order.
    pub series: Vec<PlotSeries>,
    /// Whether the x axis has integer ticks, such as epochs.
    pub is_whole: bool,
    /// Whether the y axis may be logarithmic.
    pub may_be_log: bool,
    /// Whether the x axis is logarithmic.
    pub is_log_across: bool,
}

/// Value ranges and scales of both axes.
struct PlotFrame {
    x: [f64; 2],
    y: [f64; 2],
    is_log: bool,
    is_log_across: bool,
}

impl PlotFrame {
    fn across(&self, x: f64) -> f64 {
        let of = |x: f64| if self.is_log_across { x.ln() } else { x };
        let [low, high] = self.x.map(of);
        let share = if high > low { (of(x) - low) / (high - low) } else { 0.5 };
        EDGE[0] + share * (SIZE[0] - EDGE[0] - EDGE[2])
    }

    fn down(&self, y: f64) -> f64 {
        let of = |y: f64| if self.is_log { y.ln() } else { y };
        let [low, high] = self.y.map(of);
        let share = if high > low { ((of(y) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        EDGE[1] + (1.0 - share) * (SIZE[1] - EDGE[1] - EDGE[3])
    }

    /// Draws horizontal grid lines with their values.
    fn rows(&self) -> String {
        let rows = if self.is_log { decades(self.y) } else { ticks(self.y, 5.0, false) };
        let (left, right) = (EDGE[0], SIZE[0] - EDGE[2]);
        let row = |y: f64| {
            let at = self.down(y);
            format!(
                "<path class=\"grid\" d=\"M{left} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                at + 4.0,
                short(y)
            )
        };
        rows.into_iter().map(row).collect()
    }

    /// Draws the labels of the x axis.
    fn columns(&self, is_whole: bool) -> String {
        let columns = if self.is_log_across { decades(self.x) } else { ticks(self.x, 6.0, is_whole) };
        let bottom = SIZE[1] - EDGE[3] + 16.0;
        let column = |x: f64| {
            let at = self.across(x);
            format!("<text x=\"{at:.1}\" y=\"{bottom:.1}\" text-anchor=\"middle\">{}</text>", short(x))
        };
        columns.into_iter().map(column).collect()
    }
}

/// Returns evenly spaced ticks with a step of 1, 2 or 5 times a power of ten.
fn ticks([low, high]: [f64; 2], most: f64, is_whole: bool) -> Vec<f64> {
    let range = high - low;
    if !(range.is_finite() && range > 0.0) {
        return vec![low];
    }
    let raw = range / most;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|k| k * power).find(|s| *s >= raw).unwrap_or(raw);
    let step = if is_whole { step.max(1.0).round() } else { step };
    let first = (low / step - 1e-9).ceil();
    (0..=(2.0 * most) as usize)
        .map(|i| (first + i as f64) * step)
        .take_while(|t| *t <= high + 1e-9 * range)
        .collect()
}

/// Formats an axis value compactly.
pub fn short(v: f64) -> String {
    let size = v.abs();
    match size {
        0.0 => "0".into(),
        1e6.. => format!("{v:.1e}"),
        1e4.. => format!("{:.0}k", v / 1e3),
        _ if size < 1e-3 => format!("{v:.0e}"),
        _ => {
            let text = format!("{v:.4}");
            let short = text.trim_end_matches('0').trim_end_matches('.');
            short.into()
        }
    }
}

impl Plot {
    fn finite(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.series.iter().flat_map(|s| &s.points).filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn frame(&self) -> Option<PlotFrame> {
        self.finite().next()?;
        let ends = |of: fn(&(f64, f64)) -> f64| {
            let low = self.finite().map(of).fold(f64::INFINITY, f64::min);
            [low, self.finite().map(of).fold(f64::NEG_INFINITY, f64::max)]
        };
        let ([low, high], x) = (ends(|p| p.1), ends(|p| p.0));
        let is_log = self.may_be_log && low > 0.0 && high / low > FAR;
        let room = if is_log { 0.0 } else { 0.05 * (high - low).max(1e-12 * high.abs()) };
        Some(PlotFrame {
            x,
            y: [if low >= 0.0 { (low - room).max(0.0) } else { low - room }, high + room],
            is_log,
            is_log_across: self.is_log_across && x[0] > 0.0,
        })
    }

    /// Returns the chart as an HTML figure with title and legend.
    pub fn figure(&self) -> String {
        let mut html = format!("<figure class=\"plot\"><figcaption><b>{}</b>", escaped(&self.title));
        for s in &self.series {
            let _ = write!(html, "<span class=\"key c{}\"><i></i>{}</span>", s.colour % 8, escaped(&s.name));
        }
        let lost = self.series.iter().flat_map(|s| &s.points).count() - self.finite().count();
        if lost > 0 {
            let _ = write!(html, "<span>{lost} not finite</span>");
        }
        html + "</figcaption>" + &self.svg() + "</figure>\n"
    }

    fn svg(&self) -> String {
        let [width, height] = SIZE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">",
            escaped(&self.title)
        );
        let (right, bottom) = (width - EDGE[2], height - EDGE[3]);
        let Some(frame) = self.frame() else {
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">no finite value</text></svg>",
                width / 2.0,
                height / 2.0
            );
            return svg;
        };
        svg += &frame.rows();
        svg += &frame.columns(self.is_whole);
        let _ = write!(
            svg,
            "<path class=\"axis\" d=\"M{} {bottom}H{right}\"/><text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            EDGE[0],
            height - 4.0,
            escaped(&self.x)
        );
        // Draw the first curve last, on top of the others.
        self.series.iter().rev().for_each(|s| s.write(&frame, &mut svg));
        svg + "</svg>"
    }
}

/// Returns the powers of ten in a range, or its ends if there are fewer than two.
fn decades([low, high]: [f64; 2]) -> Vec<f64> {
    let powers: Vec<f64> =
        (low.log10().ceil() as i32..=high.log10().floor() as i32).map(|d| 10f64.powi(d)).collect();
    if powers.len() < 2 { vec![low, high] } else { powers }
}

impl PlotSeries {
    fn write(&self, frame: &PlotFrame, svg: &mut String) {
        let each = self.points.len().div_ceil(MOST).max(1);
        let last = self.points.len().saturating_sub(1);
        let shown = self.points.iter().enumerate().filter(|(i, _)| i % each == 0 || *i == last);
        let faint = if self.is_faint { " faint" } else { "" };
        let mut runs: Vec<Vec<(f64, f64)>> = vec![Vec::new()];
        for (_, (x, y)) in shown {
            match (x.is_finite() && y.is_finite(), runs.last_mut()) {
                (true, Some(run)) => run.push((*x, *y)),
                _ => runs.push(Vec::new()),
            }
        }
        for run in runs.iter().filter(|run| !run.is_empty() && !self.is_dots) {
            let places: Vec<String> =
                run.iter().map(|(x, y)| format!("{:.1},{:.1}", frame.across(*x), frame.down(*y))).collect();
            let _ = write!(
                svg,
                "<polyline class=\"line{faint} c{}\" points=\"{}\"/>",
                self.colour % 8,
                places.join(" ")
            );
        }
        if (self.points.len() > DOTTED && !self.is_dots) || self.is_faint {
            return;
        }
        for (x, y) in runs.iter().flatten() {
            let _ = write!(
                svg,
                "<circle class=\"c{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{}: {} at {}</title></circle>",
                self.colour % 8,
                frame.across(*x),
                frame.down(*y),
                escaped(&self.name),
                short(*y),
                short(*x)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(points: &[(f64, f64)]) -> Plot {
        let series = PlotSeries {
            name: "loss".into(),
            colour: 0,
            is_faint: false,
            is_dots: false,
            points: points.to_vec(),
        };
        Plot {
            title: "loss".into(),
            x: "epoch".into(),
            series: vec![series],
            is_whole: true,
            may_be_log: true,
            is_log_across: false,
        }
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks([0.0, 1.0], 5.0, false).len(), 6);
        assert_eq!(ticks([1.0, 4.0], 6.0, true), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ticks([1.0, 100.0], 6.0, true), [20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks([2.0, 2.0], 5.0, false), [2.0]);
        assert_eq!([0.0, 0.5, 12.25, 60_000.0, 0.00002].map(short), ["0", "0.5", "12.25", "60k", "2e-5"]);
    }

    #[test]
    fn what_is_no_curve_is_drawn_all_the_same() {
        for points in [
            &[][..],
            &[(1.0, f64::NAN)],
            &[(1.0, 2.0)],
            &[(1.0, 0.0), (2.0, 0.0)],
            &[(1.0, 1e-9), (2.0, 1e9), (3.0, f64::INFINITY)],
        ] {
            let html = of(points).figure();
            assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        }
        assert!(of(&[(1.0, f64::NAN)]).figure().contains("1 not finite"));
        // A value that is not finite leaves a gap.
        let gap = of(&[(1.0, 1.0), (2.0, 1.5), (3.0, f64::NAN), (4.0, 1.0), (5.0, 0.5)]).figure();
        assert_eq!(gap.matches("<polyline").count(), 2, "{gap}");
    }
}
