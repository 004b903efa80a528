//! Flame graph (SVG) of kernel time, from the output of `--profile=kernels`.
//!
//! Each program is a bar with its layers below and their kernels below those, as wide as their share of the time.
//! Tooltips name each rectangle; the SVG has no script.

use crate::escape::escaped;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
/// Row height, and the gap between programs.
const ROW: f64 = 20.0;
const GAP: f64 = 30.0;
/// Width of a letter; narrower rectangles have no text.
const LETTER: f64 = 7.0;
/// Number of hues, selected by a hash of the name.
const COLOURS: u64 = 40;

/// A node of the flame graph.
#[derive(Default)]
struct FlameNode {
    name: String,
    /// Percentage of the program's time.
    share: f64,
    inner: Vec<FlameNode>,
}

impl FlameNode {
    fn add(&mut self, path: &[&str], share: f64) {
        self.share += share;
        let Some((first, rest)) = path.split_first() else { return };
        let at = self.inner.iter().position(|f| f.name == *first).unwrap_or_else(|| {
            self.inner.push(FlameNode { name: first.to_string(), ..FlameNode::default() });
            self.inner.len() - 1
        });
        self.inner[at].add(rest, share);
    }

    fn depth(&self) -> usize {
        1 + self.inner.iter().map(FlameNode::depth).max().unwrap_or(0)
    }

    fn draw(&self, x: f64, y: f64, scale: f64, svg: &mut String) {
        let width = self.share * scale;
        if width < 0.3 {
            return;
        }
        let hue =
            5 + self.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into())) % COLOURS;
        let name = escaped(&self.name);
        let _ = write!(
            svg,
            "<g><title>{name}: {:.1} %</title><rect x='{x:.1}' y='{y:.1}' width='{:.1}' height='{}' fill='hsl({hue} 85% 62%)'/>",
            self.share,
            (width - 0.6).max(0.3),
            ROW - 1.0
        );
        let letters = ((width - 8.0) / LETTER).max(0.0) as usize;
        if letters >= 3 {
            let cut: String = match self.name.chars().count() > letters {
                true => self.name.chars().take(letters - 1).chain(['…']).collect(),
                false => self.name.clone(),
            };
            let _ = write!(svg, "<text x='{:.1}' y='{:.1}'>{}</text>", x + 4.0, y + 14.0, escaped(&cut));
        }
        svg.push_str("</g>");
        let mut at = x;
        for frame in &self.inner {
            frame.draw(at, y + ROW, scale, svg);
            at += frame.share * scale;
        }
    }
}

/// Parses a profile row: nesting depth, kernel, share in percent, layer.
fn row(line: &str) -> Option<(usize, String, f64, &str)> {
    let depth = line.chars().take_while(|c| *c == ' ').count() / 2;
    let (_, result) = line.rsplit_once("  ")?;
    let layer = result.split_once(" of ").map_or("(no layer)", |(_, layer)| layer);
    let words: Vec<&str> = line.split_whitespace().collect();
    // Columns: calls, ms per call, share, %.
    let is_calls = |i: usize| {
        words[i].parse::<u64>().is_ok()
            && words[i + 1].parse::<f64>().is_ok()
            && words.get(i + 3) == Some(&"%")
    };
    let calls = (1..words.len().saturating_sub(3)).find(|i| is_calls(*i))?;
    let kernel = words.get(1..calls)?.join(" ");
    Some((depth, kernel, words[calls + 2].parse().ok()?, layer))
}

/// Builds the flame graph of one program from its profile; `None` if the text is not a kernel profile.
fn of_profile(text: &str) -> Option<FlameNode> {
    let (title, table) = text.split_once('\n')?;
    let rows: Vec<_> =
        table.lines().skip_while(|l| !l.starts_with("kernel ")).skip(1).map_while(row).collect();
    let name = title.trim_start_matches("kernels of ").trim_end_matches(':').to_string();
    let mut all = FlameNode { name, ..FlameNode::default() };
    for (i, (depth, kernel, share, layer)) in rows.iter().enumerate() {
        // A container row includes the time of its children, so it is skipped.
        let is_container = rows.get(i + 1).is_some_and(|next| next.0 > *depth);
        if !is_container {
            let path: Vec<&str> = layer.split('/').chain([kernel.as_str()]).collect();
            all.add(&path, *share);
        }
    }
    (all.share > 0.0).then_some(all)
}

/// Draws the flame graph of kernel profiles as SVG; `None` if there is no kernel profile.
pub fn graph(profiles: &[String]) -> Option<String> {
    let programs: Vec<FlameNode> = profiles.iter().filter_map(|text| of_profile(text)).collect();
    if programs.is_empty() {
        return None;
    }
    let height: f64 = programs.iter().map(|p| p.depth() as f64 * ROW + GAP).sum();
    let mut svg = format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' role='img' aria-label='Time by layer and kernel'>\
         <style>svg{{background:#fff}}text{{font:12px ui-monospace,monospace;fill:#111}}.t{{font:13px sans-serif;fill:#333}}\
         @media(prefers-color-scheme:dark){{svg{{background:#111}}.t{{fill:#ddd}}}}</style>"
    );
    let mut y = 0.0;
    for program in &programs {
        let _ = write!(
            svg,
            "<text class='t' x='4' y='{:.1}'>{}: layers, with their kernels below</text>",
            y + 18.0,
            escaped(&program.name)
        );
        program.draw(0.0, y + GAP - 4.0, WIDTH / program.share, &mut svg);
        y += program.depth() as f64 * ROW + GAP;
    }
    Some(svg + "</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "kernels of train step:
ceilings of 2 threads: FMA 0, int8 0 GFLOP/s;
  L2 177 GB/s
kernel                               calls   ms/call   share  GFLOP/s    GB/s    of ceiling  result
3 convolution+max_pool+relu              2    21.880  60.0 %      0.0     0.0      32 % FMA  f32[16, 13, 13, 2] of conv2d
4 blocks                                 2    10.581  30.0 %      0.0     0.0      16 % FMA  f32[3, 3, 1, 2] of top/dense
  1 dot_general+bias                     2     0.803  20.0 %      0.1     0.0     above FMA  f32[16, 10] of top/dense
  2 map[2]                               2     0.803  10.0 %      0.1     0.0     above FMA  f32[16, 10] of top/<b>
0 map[10]                                2     0.069  10.0 %      0.0     0.0       0 % FMA  f32[]
";

    #[test]
    fn rows_become_layers_and_kernels() {
        let all = of_profile(TABLE).unwrap();
        let names = |f: &FlameNode| f.inner.iter().map(|f| (f.name.clone(), f.share)).collect::<Vec<_>>();
        let own = |n: &[(&str, f64)]| n.iter().map(|(n, s)| (n.to_string(), *s)).collect::<Vec<_>>();
        assert_eq!(names(&all), own(&[("conv2d", 60.0), ("top", 30.0), ("(no layer)", 10.0)]));
        assert_eq!(names(&all.inner[1]), own(&[("dense", 20.0), ("<b>", 10.0)]));
        assert_eq!(names(&all.inner[1].inner[0]), own(&[("dot_general+bias", 20.0)]));
        let svg = graph(&[TABLE.into()]).unwrap();
        assert!(
            svg.contains("train step: layers") && svg.contains("&lt;b&gt;") && !svg.contains("NaN"),
            "{svg}"
        );
        assert_eq!(graph(&["kernels of x:\n1 run\nlayer  forward\n".into()]), None);
    }
}
