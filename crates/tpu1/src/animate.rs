//! Animates the systolic array's wavefront as a self-contained SVG or HTML page, without scripts.

use crate::chip::Tpu1Chip;
use crate::explain::row_in;
use std::fmt::Write;

/// Side of the array in the drawing, and its position.
const SIDE: f64 = 320.0;
const LEFT: f64 = 170.0;
const TOP: f64 = 120.0;
/// Seconds per animation cycle.
const SECONDS: f64 = 12.0;
/// Largest array that is drawn cell by cell.
const MOST_CELLS: usize = 16;

/// Start and end of each phase of a pass, in cycles: shift, rows, drain.
struct PassTimeline {
    n: usize,
    rows: usize,
}

impl PassTimeline {
    fn all(&self) -> f64 {
        (self.n + self.rows + 2 * self.n - 1) as f64
    }

    /// Returns a cycle as a fraction of the animation.
    fn at(&self, cycle: f64) -> f64 {
        (cycle / self.all()).clamp(0.0, 1.0)
    }
}

/// Draws a pass of `rows` rows over the systolic array as an animated SVG.
pub fn svg(chip: &Tpu1Chip, rows: usize) -> String {
    let film = PassTimeline { n: chip.matrix, rows };
    let mut s = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 660 640\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"660\" height=\"640\" fill=\"#fbfaf7\"/>\n",
    );
    text(
        &mut s,
        330.0,
        28.0,
        "middle",
        17,
        &format!("A block of {rows} rows passes through an array of {0} × {0} multipliers", film.n),
    );
    surroundings(&mut s, chip, &film);
    if film.n <= MOST_CELLS {
        cells(&mut s, &film)
    } else {
        band(&mut s, &film)
    }
    accumulators(&mut s, &film);
    timeline(&mut s, &film);
    s + "</svg>\n"
}

/// Returns an HTML page with the animation of the systolic array and the explanation in words.
pub fn html(chip: &Tpu1Chip, rows: usize) -> String {
    let walk = crate::explain::explain(chip, rows).replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>The array of the first TPU</title>\n\
         <style>body {{ max-width: 60rem; margin: 1rem auto; font-family: system-ui, sans-serif }} svg {{ max-width: 44rem; \
         display: block; margin: auto }} pre {{ overflow-x: auto; font-size: 0.85rem }}</style></head>\n<body>\n{}<pre>{walk}</pre>\n\
         </body>\n</html>\n",
        svg(chip, rows)
    )
}

fn text(s: &mut String, x: f64, y: f64, anchor: &str, size: usize, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        s,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{words}</text>"
    );
}

/// Animates an attribute in discrete steps.
fn jumps(attribute: &str, frames: &[(f64, String)]) -> String {
    let times: Vec<String> = frames.iter().map(|f| format!("{:.4}", f.0)).collect();
    let values: Vec<&str> = frames.iter().map(|f| f.1.as_str()).collect();
    format!(
        "<animate attributeName=\"{attribute}\" calcMode=\"discrete\" dur=\"{SECONDS}s\" repeatCount=\"indefinite\" \
         keyTimes=\"{}\" values=\"{}\"/>",
        times.join(";"),
        values.join(";")
    )
}

/// Animates an attribute linearly between two times.
fn moves(attribute: &str, [from, to]: [f64; 2], [begin, end]: [f64; 2]) -> String {
    format!(
        "<animate attributeName=\"{attribute}\" dur=\"{SECONDS}s\" repeatCount=\"indefinite\" \
         keyTimes=\"0;{begin:.4};{end:.4};1\" values=\"{from:.2};{from:.2};{to:.2};{to:.2}\"/>"
    )
}

fn surroundings(s: &mut String, chip: &Tpu1Chip, film: &PassTimeline) {
    let _ = writeln!(
        s,
        "<rect x=\"{LEFT}\" y=\"58\" width=\"{SIDE}\" height=\"26\" rx=\"4\" fill=\"#cfe0f3\"/>\n\
         <rect x=\"24\" y=\"{TOP}\" width=\"104\" height=\"{SIDE}\" rx=\"4\" fill=\"#fde3c8\"/>\n\
         <rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"#ece9e2\" stroke=\"#77736a\"/>"
    );
    text(s, LEFT + SIDE / 2.0, 75.0, "middle", 13, "weights, from the weight FIFO");
    let middle = TOP + SIDE / 2.0;
    text(s, 76.0, middle - 26.0, "middle", 13, "input rows,");
    text(s, 76.0, middle - 9.0, "middle", 13, "row k of the");
    text(s, 76.0, middle + 8.0, "middle", 13, "array k cycles");
    text(s, 76.0, middle + 25.0, "middle", 13, "late");
    arrow(s, [LEFT + SIDE / 2.0, 88.0], [LEFT + SIDE / 2.0, TOP - 5.0]);
    arrow(s, [132.0, middle], [LEFT - 5.0, middle]);
    arrow(s, [LEFT + SIDE / 2.0, TOP + SIDE + 4.0], [LEFT + SIDE / 2.0, TOP + SIDE + 24.0]);
    let fetch = chip.fetch_cycles();
    for (n, words) in [
        format!("{0} × {0} cells", film.n),
        format!("tile: {} bytes", chip.tile_bytes()),
        if fetch < 10.0 { format!("fetch: {fetch:.1} cycles") } else { format!("fetch: {fetch:.0} cycles") },
        format!("shift: {} cycles", film.n),
        format!("rows: {} cycles", film.rows),
        format!("drain: {} cycles", 2 * film.n - 1),
    ]
    .iter()
    .enumerate()
    {
        text(s, LEFT + SIDE + 22.0, TOP + 24.0 + 24.0 * n as f64, "start", 13, words);
    }
    for (n, (colour, words)) in
        [("#9dbfe6", "weights loaded"), ("#f08c2e", "multiplies a row"), ("#ece9e2", "waits")]
            .iter()
            .enumerate()
    {
        let y = TOP + SIDE - 70.0 + 24.0 * n as f64;
        let x = LEFT + SIDE + 22.0;
        let _ = writeln!(
            s,
            "<rect x=\"{x}\" y=\"{:.1}\" width=\"14\" height=\"14\" fill=\"{colour}\" stroke=\"#77736a\"/>",
            y - 12.0
        );
        text(s, x + 20.0, y, "start", 12, words);
    }
}

fn arrow(s: &mut String, [x, y]: [f64; 2], [to_x, to_y]: [f64; 2]) {
    let (dx, dy) = ((to_x - x).signum(), (to_y - y).signum());
    let (back_x, back_y) = (to_x - 7.0 * dx * f64::from(to_x != x), to_y - 7.0 * dy * f64::from(to_y != y));
    let (side_x, side_y) = if to_y == y { (0.0, 5.0) } else { (5.0, 0.0) };
    let _ = writeln!(
        s,
        "<path d=\"M{x:.1} {y:.1}L{to_x:.1} {to_y:.1}M{:.1} {:.1}L{to_x:.1} {to_y:.1}L{:.1} {:.1}\" stroke=\"#555\" stroke-width=\"1.5\" fill=\"none\"/>",
        back_x - side_x,
        back_y - side_y,
        back_x + side_x,
        back_y + side_y
    );
}

/// Draws each cell with its state and the row that it multiplies.
fn cells(s: &mut String, film: &PassTimeline) {
    let n = film.n;
    let side = SIDE / n as f64;
    for k in 0..n {
        for m in 0..n {
            let (x, y) = (LEFT + m as f64 * side, TOP + k as f64 * side);
            // Weights shift in from the top; columns are skewed like rows.
            let loaded = film.at((k + m) as f64);
            let begin = film.at((n + k + m) as f64);
            let end = film.at((n + k + m + film.rows) as f64);
            let colours = [(0.0, "#ece9e2"), (loaded, "#9dbfe6"), (begin, "#f08c2e"), (end, "#ece9e2")];
            let mut frames: Vec<(f64, String)> = Vec::new();
            for (time, colour) in colours {
                if frames.last().is_some_and(|f| f.0 >= time) {
                    frames.pop();
                }
                frames.push((time, colour.into()));
            }
            let _ = writeln!(
                s,
                "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{side:.2}\" height=\"{side:.2}\" fill=\"#ece9e2\" stroke=\"#b5b0a4\">{}</rect>",
                jumps("fill", &frames)
            );
            digits(s, film, [k, m], [x + side / 2.0, y + side / 2.0 + 4.0]);
        }
    }
}

/// Draws the number of the row that a cell multiplies: one text per row, visible for one cycle. Omitted for many rows.
fn digits(s: &mut String, film: &PassTimeline, [k, m]: [usize; 2], [x, y]: [f64; 2]) {
    if film.n > 8 || film.rows > 12 {
        return;
    }
    for cycle in 0..film.rows + 2 * film.n {
        let Some(row) = row_in(cycle, k, m, film.rows) else { continue };
        let begin = film.at((film.n + cycle) as f64);
        let end = film.at((film.n + cycle + 1) as f64);
        let seen = jumps("opacity", &[(0.0, "0".into()), (begin, "1".into()), (end, "0".into())]);
        let _ = writeln!(
            s,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" fill=\"#fff\" opacity=\"0\">{row}{seen}</text>"
        );
    }
}

/// Draws a large array: the active cells are a band that moves along the diagonal.
fn band(s: &mut String, film: &PassTimeline) {
    let unit = SIDE / film.n as f64;
    let _ = writeln!(
        s,
        "<clipPath id=\"array\"><rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\"/></clipPath>"
    );
    // Weights fill the array from the top; loaded cells are blue.
    let shift = [0.0, film.at(film.n as f64)];
    let _ = writeln!(
        s,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"0\" fill=\"#9dbfe6\">{}</rect>",
        moves("height", [0.0, SIDE], shift)
    );
    // Loaded weights are ahead of the band, waiting cells behind it. Cells with k + m = c start in cycle c.
    let travel = (film.rows + 2 * film.n) as f64 * unit;
    let (begin, end) = (film.at(film.n as f64), 1.0);
    let diagonal = |from: f64, to: f64, colour: &str, s: &mut String| {
        let points: Vec<String> =
            [(from, 0.0), (to, 0.0), (to - 2.0 * SIDE, 2.0 * SIDE), (from - 2.0 * SIDE, 2.0 * SIDE)]
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", LEFT + x, TOP + y))
                .collect();
        let _ = writeln!(
            s,
            "<g clip-path=\"url(#array)\"><polygon points=\"{}\" fill=\"{colour}\"><animateTransform attributeName=\"transform\" \
             type=\"translate\" dur=\"{SECONDS}s\" repeatCount=\"indefinite\" keyTimes=\"0;{begin:.4};{end}\" \
             values=\"0 0;0 0;{travel:.1} 0\"/></polygon></g>",
            points.join(" ")
        );
    };
    let width = film.rows as f64 * unit;
    diagonal(-width - travel, -width, "#ece9e2", s);
    diagonal(-width, 0.0, "#f08c2e", s);
    let _ = writeln!(
        s,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#77736a\"/>"
    );
}

/// Draws the accumulators, which fill with sums; later columns fill later.
fn accumulators(s: &mut String, film: &PassTimeline) {
    let y = TOP + SIDE + 28.0;
    let _ = writeln!(
        s,
        "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{SIDE}\" height=\"44\" fill=\"#e3efdd\" stroke=\"#77736a\"/>"
    );
    let columns = film.n.min(64);
    let width = SIDE / columns as f64;
    for c in 0..columns {
        let m = (c * film.n / columns) as f64;
        let first = film.at(2.0 * film.n as f64 + m);
        let last = film.at(2.0 * film.n as f64 + m + film.rows as f64);
        let _ = writeln!(
            s,
            "<rect x=\"{:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"0\" fill=\"#6aa84f\">{}</rect>",
            LEFT + c as f64 * width,
            moves("height", [0.0, 44.0], [first, last])
        );
    }
    text(s, LEFT + SIDE + 22.0, y + 20.0, "start", 13, "accumulators:");
    text(s, LEFT + SIDE + 22.0, y + 37.0, "start", 13, "int32 sums");
}

/// Draws the timeline of the phases with a moving cursor.
fn timeline(s: &mut String, film: &PassTimeline) {
    let (x, y, width) = (40.0, 570.0, 580.0);
    let (shift, rows) = (film.n as f64, (film.n + film.rows) as f64);
    for (from, to, colour, words) in [
        (0.0, shift, "#9dbfe6", "shift"),
        (shift, rows, "#f08c2e", "rows enter"),
        (rows, film.all(), "#6aa84f", "the last rows drain"),
    ] {
        let (a, b) = (x + width * film.at(from), x + width * film.at(to));
        let _ = writeln!(
            s,
            "<rect x=\"{a:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>",
            b - a
        );
        if b - a > 7.0 * words.len() as f64 {
            text(s, f64::midpoint(a, b), y + 13.5, "middle", 12, words);
        }
        text(s, a, y + 34.0, if from == 0.0 { "start" } else { "middle" }, 12, &format!("{from:.0}"));
    }
    text(s, x + width, y + 34.0, "end", 12, &format!("cycle {:.0}", film.all()));
    let _ = writeln!(
        s,
        "<rect x=\"{x}\" y=\"{:.1}\" width=\"2\" height=\"26\" fill=\"#222\">{}</rect>",
        y - 4.0,
        moves("x", [x, x + width], [0.0, 1.0])
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balanced(text: &str) -> bool {
        ["svg", "text", "polygon", "g", "clipPath"].iter().all(|tag| {
            let opened = text.matches(&format!("<{tag} ")).count();
            opened == text.matches(&format!("</{tag}>")).count()
        })
    }

    #[test]
    fn pictures_are_whole_and_ask_for_nothing_from_elsewhere() {
        for n in [1, 3, 8, 16, 17, 256] {
            for rows in [1, 5, 200] {
                let chip = Tpu1Chip { matrix: n, ..Tpu1Chip::v1() };
                for page in [svg(&chip, rows), html(&chip, rows)] {
                    assert!(
                        balanced(&page) && !page.contains("NaN") && !page.contains("<script"),
                        "{n} {rows}"
                    );
                    assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"));
                    assert!(page.len() < 900_000, "{n} {rows}: {}", page.len());
                }
            }
        }
        // Small arrays have cells, large ones a band.
        assert_eq!(
            svg(&Tpu1Chip { matrix: 8, ..Tpu1Chip::v1() }, 8).matches("stroke=\"#b5b0a4\"").count(),
            64
        );
        assert!(svg(&Tpu1Chip::v1(), 200).contains("clip-path"));
    }

    /// Key times of an animation must increase, or nothing moves.
    #[test]
    fn times_rise() {
        for n in [1, 2, 8, 16, 256] {
            let page = svg(&Tpu1Chip { matrix: n, ..Tpu1Chip::v1() }, 6);
            for times in page.split("keyTimes=\"").skip(1) {
                let times: Vec<f64> =
                    times.split('"').next().unwrap().split(';').map(|t| t.parse().unwrap()).collect();
                assert!(
                    times[0] == 0.0
                        && times.windows(2).all(|w| w[0] <= w[1])
                        && times.iter().all(|t| *t <= 1.0),
                    "{times:?}"
                );
            }
        }
    }
}
