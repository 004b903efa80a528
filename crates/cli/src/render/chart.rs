//! Line chart of one curve, as terminal text and as SVG.

use std::fmt::Write;

/// Scale of the x axis.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum ChartAxis {
    /// Positive learning rates on a logarithmic scale. The y axis ends a little above the curve's start, because the
    /// end may be many times as high and would flatten the rest.
    Rates,
    /// Steps on a linear scale; the y axis includes 0.
    Steps,
}

/// A curve with named marks on the x axis.
pub(crate) struct Chart<'a> {
    pub(crate) axis: ChartAxis,
    /// Increasing x values.
    pub(crate) x: &'a [f64],
    /// One y value per x; non-finite values are skipped.
    pub(crate) y: &'a [f64],
    pub(crate) marks: &'a [(&'a str, f64)],
    pub(crate) labels: [&'a str; 2],
}

/// Value ranges of both axes; maps values to 0 … 1.
struct ChartScale {
    axis: ChartAxis,
    x: [f64; 2],
    y: [f64; 2],
}

impl ChartScale {
    fn across(&self, x: f64) -> f64 {
        match self.axis {
            ChartAxis::Rates => {
                (x.ln() - self.x[0].ln()) / (self.x[1] / self.x[0]).ln().max(f64::MIN_POSITIVE)
            }
            ChartAxis::Steps => (x - self.x[0]) / (self.x[1] - self.x[0]).max(f64::MIN_POSITIVE),
        }
    }

    /// Label of an x value.
    fn told(&self, x: f64) -> String {
        if self.axis == ChartAxis::Rates { format!("{x:.1e}") } else { x.to_string() }
    }

    /// Labeled ticks of the x axis.
    fn ticks(&self) -> Vec<(f64, String)> {
        match self.axis {
            ChartAxis::Rates => {
                let decades = self.x[0].log10().ceil() as i32..=self.x[1].log10().floor() as i32;
                decades.map(|decade| (10f64.powi(decade), format!("1e{decade}"))).collect()
            }
            ChartAxis::Steps => self.x.iter().map(|x| (*x, self.told(*x))).collect(),
        }
    }

    fn up(&self, y: f64) -> f64 {
        ((y - self.y[0]) / (self.y[1] - self.y[0]).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
    }
}

impl Chart<'_> {
    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.x
            .iter()
            .copied()
            .zip(self.y.iter().copied())
            .filter(|(x, y)| (*x > 0.0 || self.axis == ChartAxis::Steps) && y.is_finite())
    }

    /// Value ranges to draw, or `None` if there are no points.
    fn frame(&self) -> Option<ChartScale> {
        let first = self.points().next()?;
        let last = self.points().last()?;
        let least = self.points().map(|p| p.1).fold(f64::INFINITY, f64::min);
        let most = self.points().map(|p| p.1).fold(f64::NEG_INFINITY, f64::max);
        let top = most.min(first.1 + 0.25 * (first.1 - least).max(0.1 * first.1.abs()));
        let y = match self.axis {
            ChartAxis::Rates => [least, top.max(least)],
            ChartAxis::Steps => [least.min(0.0), most],
        };
        Some(ChartScale { axis: self.axis, x: [first.0, last.0], y })
    }

    /// Draws the chart as text at most `width` columns wide: curve, marks with names, axis limits.
    pub(crate) fn text(&self, width: usize, height: usize) -> String {
        let Some(frame) = self.frame() else { return String::new() };
        let side = 9;
        let columns = width.saturating_sub(side + 1).max(16);
        let mut cells = vec![vec![' '; columns]; height];
        let at = |share: f64, n: usize| ((share * (n - 1) as f64).round() as usize).min(n - 1);
        for (_, x) in self.marks {
            let column = at(frame.across(*x), columns);
            cells.iter_mut().for_each(|row| row[column] = '┊');
        }
        for (x, y) in self.points() {
            cells[height - 1 - at(frame.up(y), height)][at(frame.across(x), columns)] = '•';
        }
        let mut text = String::new();
        for (i, row) in cells.iter().enumerate() {
            let label = match i {
                0 => format!("{:.4}", frame.y[1]),
                _ if i == height - 1 => format!("{:.4}", frame.y[0]),
                _ if i == height / 2 => self.labels[1].to_string(),
                _ => String::new(),
            };
            let row: String = row.iter().collect();
            let _ = writeln!(text, "{label:>side$} {}", row.trim_end());
        }
        let mut names = vec![' '; columns];
        for (name, x) in self.marks {
            let from = at(frame.across(*x), columns).min(columns.saturating_sub(name.len()));
            names.iter_mut().skip(from).zip(name.chars()).for_each(|(place, c)| *place = c);
        }
        let names: String = names.into_iter().collect();
        let _ = writeln!(text, "{:>side$} {}", "", names.trim_end());
        let [left, right] = frame.x.map(|x| frame.told(x));
        let between = columns.saturating_sub(left.len() + right.len());
        let _ = write!(text, "{:>side$} {left}{:^between$}{right}", "", self.labels[0]);
        text
    }

    /// Draws the chart as a self-contained SVG file without scripts or external fonts, for light and dark backgrounds.
    pub(crate) fn svg(&self, title: &str) -> String {
        const SIZE: [f64; 2] = [640.0, 360.0];
        const EDGE: [f64; 4] = [64.0, 40.0, 20.0, 48.0]; // left, top, right, bottom
        let mut body = String::new();
        if let Some(frame) = self.frame() {
            let across = |x: f64| EDGE[0] + frame.across(x) * (SIZE[0] - EDGE[0] - EDGE[2]);
            let down = |y: f64| EDGE[1] + (1.0 - frame.up(y)) * (SIZE[1] - EDGE[1] - EDGE[3]);
            let points: Vec<String> =
                self.points().map(|(x, y)| format!("{:.1},{:.1}", across(x), down(y))).collect();
            for (name, x) in self.marks {
                let (x, bottom) = (across(*x), SIZE[1] - EDGE[3]);
                let _ = write!(
                    body,
                    "<path d='M{x:.1} {}V{bottom}' class='m'/><text x='{x:.1}' y='{}' text-anchor='middle'>{name}</text>",
                    EDGE[1],
                    EDGE[1] - 6.0
                );
            }
            let _ = write!(body, "<polyline class='c' points='{}'/>", points.join(" "));
            for (x, told) in frame.ticks() {
                let (x, y) = (across(x), SIZE[1] - EDGE[3] + 16.0);
                let _ = write!(body, "<text x='{x:.1}' y='{y}' text-anchor='middle'>{told}</text>");
            }
            for y in frame.y {
                let _ = write!(
                    body,
                    "<text x='{}' y='{:.1}' text-anchor='end'>{y:.4}</text>",
                    EDGE[0] - 6.0,
                    down(y)
                );
            }
        }
        let [x, y] = self.labels;
        let (right, bottom) = (SIZE[0] - EDGE[2], SIZE[1] - EDGE[3]);
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {0} {1}' role='img' aria-label='{title}'>\
             <style>svg{{background:#fff}}text{{font:12px sans-serif;fill:#333}}.c{{fill:none;stroke:#0a6;stroke-width:2}}\
             .m{{stroke:#888;stroke-dasharray:3 3}}.a{{fill:none;stroke:#888}}@media(prefers-color-scheme:dark){{\
             svg{{background:#111}}text{{fill:#ddd}}}}</style><path class='a' d='M{2} {3}V{bottom}H{right}'/>{body}\
             <text x='{4}' y='{5}' text-anchor='middle'>{x}</text><text x='{2}' y='16'>{y}</text></svg>\n",
            SIZE[0],
            SIZE[1],
            EDGE[0],
            EDGE[1],
            (EDGE[0] + right) / 2.0,
            SIZE[1] - 8.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(x: &'a [f64], y: &'a [f64], marks: &'a [(&'a str, f64)]) -> Chart<'a> {
        Chart { axis: ChartAxis::Rates, x, y, marks, labels: ["learning rate", "loss"] }
    }

    #[test]
    fn a_curve_keeps_its_shape_and_its_width() {
        let x: Vec<f64> = (0..60).map(|i| 1e-6 * 10f64.powf(i as f64 / 10.0)).collect();
        let y: Vec<f64> = (0..60).map(|i| if i > 50 { 40.0 } else { 2.0 - i as f64 / 50.0 }).collect();
        let marks = [("valley", 1e-3)];
        for width in [40, 80, 120] {
            let text = of(&x, &y, &marks).text(width, 12);
            assert!(text.lines().all(|l| l.chars().count() <= width), "{width}\n{text}");
            assert_eq!(text.lines().count(), 14);
            assert!(text.contains('•') && text.contains("valley") && text.contains("1.0e-6"), "{text}");
            // The end is cut off at a quarter above the begin: the fall fills most of the height.
            let rows: Vec<usize> =
                text.lines().enumerate().filter(|l| l.1.contains('•')).map(|l| l.0).collect();
            assert_eq!((rows[0], rows[rows.len() - 1]), (0, 11), "{text}");
        }
        let svg = of(&x, &y, &marks).svg("Learning rates");
        assert!(
            svg.starts_with("<svg") && svg.contains("valley") && svg.contains("1e-3") && !svg.contains("NaN")
        );
    }

    #[test]
    fn what_is_no_curve_is_no_panic() {
        assert_eq!(of(&[], &[], &[]).text(80, 12), "");
        assert!(!of(&[1.0], &[f64::NAN], &[]).svg("").contains("NaN"));
        let one = of(&[1e-3], &[2.0], &[("valley", 1e-3)]);
        assert!(one.text(10, 3).contains('•') && !one.svg("").contains("NaN"));
        let flat = of(&[1e-3, 1e-2], &[2.0, 2.0], &[]);
        assert!(flat.text(80, 4).contains("2.0000") && !flat.svg("").contains("NaN"));
    }
}
