//! A grid of styled characters: text, boxes, gauges and line charts (Braille), and the escape sequences that show it.

use crate::terminal::columns;
use std::fmt::Write;

/// Style of a character, as the parameters of an ANSI SGR sequence: `""` (plain), `"1"`, `"34"`.
pub(super) type Style = &'static str;

pub(super) const PLAIN: Style = "";
pub(super) const BOLD: Style = "1";
pub(super) const DIM: Style = "2";
pub(super) const REVERSED: Style = "7";

/// A rectangle of a canvas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Area {
    /// Splits off the first `height` rows, or all if there are fewer.
    pub(super) fn split_rows(self, height: usize) -> [Area; 2] {
        let height = height.min(self.height);
        [Area { height, ..self }, Area { y: self.y + height, height: self.height - height, ..self }]
    }

    /// Splits off the first `width` columns, or all if there are fewer.
    pub(super) fn split_columns(self, width: usize) -> [Area; 2] {
        let width = width.min(self.width);
        [Area { width, ..self }, Area { x: self.x + width, width: self.width - width, ..self }]
    }

    /// The area within a border.
    fn inside(self) -> Area {
        let [width, height] = [self.width, self.height].map(|n| n.saturating_sub(2));
        Area { x: self.x + 1, y: self.y + 1, width, height }
    }
}

/// Name, style and points of a curve.
pub(super) type CurveSeries<'a> = (&'a str, Style, Vec<(f64, f64)>);

/// A grid of characters with their styles. The second column of a wide character holds `'\0'`.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct CharacterGrid {
    pub(super) area: Area,
    cells: Vec<(char, Style)>,
}

impl CharacterGrid {
    /// Creates a blank canvas.
    pub(super) fn new(width: usize, height: usize) -> CharacterGrid {
        CharacterGrid { area: Area { x: 0, y: 0, width, height }, cells: vec![(' ', PLAIN); width * height] }
    }

    fn set(&mut self, x: usize, y: usize, cell: (char, Style)) {
        if x < self.area.width && y < self.area.height {
            self.cells[y * self.area.width + x] = cell;
        }
    }

    fn get(&self, x: usize, y: usize) -> (char, Style) {
        self.cells.get(y * self.area.width + x).copied().unwrap_or((' ', PLAIN))
    }

    /// Writes text from column `from` of an area's row `y`, cut at the area's end; returns the column after it.
    pub(super) fn text(&mut self, area: Area, (from, y): (usize, usize), text: &str, style: Style) -> usize {
        let mut x = from;
        for c in text.chars().filter(|_| y < area.height) {
            let wide = columns(c.encode_utf8(&mut [0; 4]));
            if wide == 0 || x + wide > area.width {
                continue;
            }
            self.set(area.x + x, area.y + y, (c, style));
            (1..wide).for_each(|i| self.set(area.x + x + i, area.y + y, ('\0', style)));
            x += wide;
        }
        x
    }

    /// Draws a box with a title; returns the area inside.
    pub(super) fn bordered(&mut self, area: Area, title: &str) -> Area {
        if area.width < 2 || area.height < 2 {
            return Area { width: 0, height: 0, ..area };
        }
        let (right, bottom) = (area.x + area.width - 1, area.y + area.height - 1);
        for x in area.x + 1..right {
            self.set(x, area.y, ('─', PLAIN));
            self.set(x, bottom, ('─', PLAIN));
        }
        for y in area.y + 1..bottom {
            self.set(area.x, y, ('│', PLAIN));
            self.set(right, y, ('│', PLAIN));
        }
        for (x, y, corner) in
            [(area.x, area.y, '┌'), (right, area.y, '┐'), (area.x, bottom, '└'), (right, bottom, '┘')]
        {
            self.set(x, y, (corner, PLAIN));
        }
        self.text(Area { width: area.width - 1, ..area }, (1, 0), title, PLAIN);
        area.inside()
    }

    /// Draws a progress bar with a centered label in the first row of an area; `full` is the style of the part done.
    pub(super) fn gauge(&mut self, area: Area, label: &str, share: f64, full: Style) {
        let filled = (share * area.width as f64).round() as usize;
        let start = area.width.saturating_sub(columns(label)) / 2;
        self.text(area, (start, 0), label, PLAIN);
        for x in (0..filled.min(area.width)).filter(|_| area.height > 0) {
            let (c, _) = self.get(area.x + x, area.y);
            self.set(area.x + x, area.y, (c, full));
        }
    }

    /// Draws curves with axes. `x` and `y` are the ends of the axes, with their labels.
    pub(super) fn chart(
        &mut self,
        area: Area,
        series: &[CurveSeries<'_>],
        (x, x_labels): ([f64; 2], [String; 2]),
        (y, y_labels): ([f64; 2], [String; 2]),
    ) {
        let margin = y_labels.iter().map(|label| columns(label)).max().unwrap_or(0);
        let [plot, labels] = area.split_rows(area.height.saturating_sub(1));
        let [_, plot] = plot.split_columns(margin + 1);
        let [plot, axis] = plot.split_rows(plot.height.saturating_sub(1));
        if plot.width == 0 || plot.height == 0 {
            return;
        }
        self.text(area, (0, 0), &y_labels[1], PLAIN);
        self.text(area, (0, plot.height - 1), &y_labels[0], PLAIN);
        for row in 0..plot.height {
            self.set(plot.x - 1, plot.y + row, ('│', PLAIN));
        }
        self.set(axis.x - 1, axis.y, ('└', PLAIN));
        (0..axis.width).for_each(|i| self.set(axis.x + i, axis.y, ('─', PLAIN)));
        self.text(labels, (margin, 0), &x_labels[0], PLAIN);
        self.text(labels, (labels.width.saturating_sub(columns(&x_labels[1])), 0), &x_labels[1], PLAIN);
        for (_, style, points) in series {
            let at = |p: &(f64, f64)| {
                [
                    share(p.0, x) * (2 * plot.width - 1) as f64,
                    (1.0 - share(p.1, y)) * (4 * plot.height - 1) as f64,
                ]
            };
            let dots: Vec<[f64; 2]> = points.iter().map(at).collect();
            dots.iter().for_each(|&to| self.line(plot, to, to, style));
            dots.windows(2).for_each(|pair| self.line(plot, pair[0], pair[1], style));
        }
        for (row, (name, style, _)) in series.iter().enumerate().filter(|_| plot.width > 30) {
            self.text(plot, (plot.width - columns(name), row), name, style);
        }
    }

    /// Draws a line between two dots of an area; a character has two dots by four.
    fn line(&mut self, area: Area, from: [f64; 2], to: [f64; 2], style: Style) {
        let steps = (to[0] - from[0]).abs().max((to[1] - from[1]).abs()).ceil().max(1.0);
        for i in 0..=steps as usize {
            let part = i as f64 / steps;
            let [x, y] = [0, 1].map(|d| (from[d] + (to[d] - from[d]) * part).round().max(0.0) as usize);
            let (column, row) = (area.x + x / 2, area.y + y / 4);
            let bit = [[0, 1, 2, 6], [3, 4, 5, 7]][x % 2][y % 4];
            let before = match self.get(column, row).0 as u32 {
                code @ 0x2800..=0x28ff => code,
                _ => 0x2800,
            };
            self.set(column, row, (char::from_u32(before | 1 << bit).unwrap_or(' '), style));
        }
    }

    /// Returns row `y` as text without styles.
    #[cfg(test)]
    pub(super) fn row(&self, y: usize) -> String {
        (0..self.area.width).map(|x| self.get(x, y).0).filter(|c| *c != '\0').collect()
    }

    /// Returns the escape sequences that show this canvas on a terminal that shows `before`.
    pub(super) fn update(&self, before: Option<&CharacterGrid>) -> String {
        let before = before.filter(|canvas| canvas.area == self.area);
        let mut text = if before.is_none() { "\x1b[2J".to_string() } else { String::new() };
        for y in 0..self.area.height {
            let row = y * self.area.width..(y + 1) * self.area.width;
            if before.is_some_and(|canvas| canvas.cells[row.clone()] == self.cells[row.clone()]) {
                continue;
            }
            let _ = write!(text, "\x1b[{};1H", y + 1);
            let mut current = PLAIN;
            for &(c, style) in &self.cells[row] {
                if style != current {
                    let _ = write!(text, "\x1b[0{}{style}m", if style.is_empty() { "" } else { ";" });
                    current = style;
                }
                text.extend(Some(c).filter(|c| *c != '\0'));
            }
            if current != PLAIN {
                text += "\x1b[0m";
            }
        }
        text
    }
}

/// Position of a value between the ends of an axis, 0 to 1.
fn share(value: f64, [low, high]: [f64; 2]) -> f64 {
    ((value - low) / (high - low)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_rows_are_written() {
        let mut canvas = CharacterGrid::new(6, 2);
        let before = canvas.clone();
        assert_eq!(before.update(None), "\x1b[2J\x1b[1;1H      \x1b[2;1H      ");
        canvas.text(canvas.area, (1, 1), "日x", BOLD);
        assert_eq!(canvas.update(Some(&before)), "\x1b[2;1H \x1b[0;1m日x\x1b[0m  ");
        assert_eq!(canvas.update(Some(&canvas)), "");
    }

    #[test]
    fn a_rising_line_goes_from_the_lower_left_to_the_upper_right() {
        let mut canvas = CharacterGrid::new(10, 6);
        let ends = || [String::from("0"), String::from("1")];
        let series = [("", PLAIN, vec![(0.0, 0.0), (1.0, 1.0)])];
        canvas.chart(canvas.area, &series, ([0.0, 1.0], ends()), ([0.0, 1.0], ends()));
        assert_eq!(canvas.row(0).trim_end().chars().next_back(), Some('⠊'), "{}", canvas.row(0));
        assert_eq!(canvas.row(3).chars().nth(2), Some('⡠'), "{}", canvas.row(3));
        assert_eq!((canvas.row(4), canvas.row(5)), (" └────────".into(), " 0       1".into()));
    }
}
