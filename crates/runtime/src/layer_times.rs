//! Profile table of time per layer, split into forward, backward and update, in 80 columns.

/// Maximum number of layers in the table, and the minimum share of the time to be listed.
const LAYERS: usize = 20;
const LEAST: f64 = 0.005;
/// Width of the name column.
const NAMES: usize = 28;

/// Part of the training step: forward, backward or weight update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LayerPhase {
    /// Computes outputs.
    Forward,
    /// Computes gradients.
    Backward,
    /// Computes updated weights.
    Update,
}

impl LayerPhase {
    /// Derives the phase of an op from its layer's path and whether it belongs to a derivative.
    pub fn of(layer: &str, is_derivative: bool) -> LayerPhase {
        match layer.split('/').next() {
            Some("optimizer") => LayerPhase::Update,
            _ if is_derivative => LayerPhase::Backward,
            _ => LayerPhase::Forward,
        }
    }
}

/// Prefix and suffix that mark a layer's path in a derivative.
const DERIVATIVE: (&str, &str) = ("transpose(jvp(", "))");

/// Formats the location of an op like JAX: `dense/add`, or `transpose(jvp(dense))/add` in a derivative.
pub fn location(layer: &str, is_derivative: bool, op: &str) -> String {
    match is_derivative {
        _ if layer.is_empty() => op.to_string(),
        true => format!("{}{layer}{}/{op}", DERIVATIVE.0, DERIVATIVE.1),
        false => format!("{layer}/{op}"),
    }
}

/// Parses an op's location into the layer's path and whether the op belongs to a derivative.
///
/// ```
/// use systole_runtime::layer_times::layer_of;
/// assert_eq!(layer_of("block_0/dense/add"), ("block_0/dense", false));
/// assert_eq!(layer_of("transpose(jvp(dense))/add"), ("dense", true));
/// assert_eq!(layer_of("add"), ("", false));
/// ```
pub fn layer_of(location: &str) -> (&str, bool) {
    let path = location.rsplit_once('/').map_or("", |(path, _)| path);
    match path.strip_prefix(DERIVATIVE.0).and_then(|path| path.strip_suffix(DERIVATIVE.1)) {
        Some(path) => (path, true),
        None => (path, false),
    }
}

/// Time spent on one phase of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTime {
    /// Path of the layer; empty for ops outside of layers.
    pub layer: String,
    /// Phase.
    pub kind: LayerPhase,
    /// Total wall-clock time of all calls.
    pub seconds: f64,
}

/// A row of the table: seconds per phase.
struct LayerTimeRow {
    name: String,
    seconds: [f64; 3],
}

impl LayerTimeRow {
    fn total(&self) -> f64 {
        self.seconds.iter().sum()
    }

    fn line(&self, total: f64, per_run: f64) -> String {
        let ms = |s: f64| match s * per_run {
            0.0 => String::new(),
            ms @ 100.0.. => format!("{ms:.1}"),
            ms @ 1.0.. => format!("{ms:.2}"),
            ms => format!("{ms:.3}"),
        };
        let [forward, backward, update] = self.seconds.map(ms);
        let (name, all, share) =
            (ending(&self.name, NAMES - 1), ms(self.total()), percent(self.total() / total));
        format!("{name:<NAMES$}{forward:>10}{backward:>10}{update:>10}{all:>11}{share:>10}\n")
    }
}

/// Formats a table of time per layer from `parts`, which took `total` seconds. `per_run` converts seconds to
/// milliseconds per run.
pub fn layer_table(parts: &[LayerTime], total: f64, per_run: f64) -> String {
    let mut layers = by_layer(parts, total);
    let sums = [0, 1, 2].map(|k| layers.iter().map(|l| l.seconds[k]).sum());
    let mut shares: Vec<f64> = layers.iter().map(LayerTimeRow::total).collect();
    shares.sort_by(|a, b| b.total_cmp(a));
    let least = shares.get(LAYERS).copied().unwrap_or(0.0).max(LEAST * total);
    let others: Vec<LayerTimeRow> = layers.extract_if(.., |l| l.total() <= least).collect();
    if !others.is_empty() {
        let seconds = [0, 1, 2].map(|k| others.iter().map(|l| l.seconds[k]).sum());
        let name = match others.len() {
            1 => others[0].name.clone(),
            n => format!("{n} others"),
        };
        layers.push(LayerTimeRow { name, seconds });
    }
    layers.push(LayerTimeRow { name: "total".into(), seconds: sums });
    let mut text = format!(
        "{:<NAMES$}{:>10}{:>10}{:>10}{:>11}{:>10}\n",
        "layer", "forward", "backward", "update", "total", "share"
    );
    layers.iter().for_each(|l| text += &l.line(total, per_run));
    text
}

/// Sums times by layer, in program order. Layers are the first components of paths; a layer with more than half of the
/// time is broken down into its sublayers.
fn by_layer(parts: &[LayerTime], total: f64) -> Vec<LayerTimeRow> {
    let mut depths: Vec<(String, usize)> = Vec::new();
    loop {
        let named = |path: &str| {
            let deeper = depths.iter().rev().find(|(name, _)| is_within(path, name));
            path.split('/').take(deeper.map_or(1, |(_, depth)| *depth)).collect::<Vec<_>>().join("/")
        };
        let mut layers: Vec<LayerTimeRow> = Vec::new();
        for part in parts {
            let name = if part.layer.is_empty() { "(no layer)".into() } else { named(&part.layer) };
            let at = layers.iter().position(|l| l.name == name).unwrap_or_else(|| {
                layers.push(LayerTimeRow { name, seconds: [0.0; 3] });
                layers.len() - 1
            });
            layers[at].seconds[part.kind as usize] += part.seconds;
        }
        let is_split =
            |l: &LayerTimeRow| parts.iter().any(|p| is_within(&p.layer, &l.name) && p.layer != l.name);
        let large = layers.iter().find(|l| l.total() > 0.5 * total && is_split(l));
        match large.map(|l| l.name.clone()) {
            Some(name) if !name.starts_with("optimizer") => {
                let depth = name.split('/').count() + 1;
                depths.push((name, depth));
            }
            _ => return layers,
        }
    }
}

/// Whether a path is the layer itself or inside it.
fn is_within(path: &str, layer: &str) -> bool {
    path.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Truncates a path at its start to `width` characters: the end is more informative.
fn ending(text: &str, width: usize) -> String {
    let length = text.chars().count();
    match length > width {
        true => format!("…{}", text.chars().skip(length + 1 - width).collect::<String>()),
        false => text.into(),
    }
}

/// Formats a kernel and its layer: `94 convolution of conv2d_3`.
pub fn name_within(kernel: &str, layer: &str, width: usize) -> String {
    let kernel: String = kernel.chars().take(width).collect();
    match width.checked_sub(kernel.chars().count() + 4) {
        Some(room) if room > 4 && !layer.is_empty() => format!("{kernel} of {}", ending(layer, room)),
        _ => kernel,
    }
}

/// Formats a share as `8.7 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

// Names of the previous version.
systole_ir::renamed! { Kind => LayerPhase, Part => LayerTime }

#[cfg(test)]
mod tests {
    use super::*;

    fn part(layer: &str, kind: LayerPhase, seconds: f64) -> LayerTime {
        LayerTime { layer: layer.into(), kind, seconds }
    }

    #[test]
    fn time_is_told_by_layer_and_by_what_is_done() {
        let parts = [
            part("conv2d", LayerPhase::Forward, 0.3),
            part("dense", LayerPhase::Forward, 0.1),
            part("dense", LayerPhase::Backward, 0.1),
            part("conv2d", LayerPhase::Backward, 0.4),
            part("optimizer", LayerPhase::Update, 0.1),
            part("metrics", LayerPhase::Forward, 1e-5),
            part("", LayerPhase::Forward, 2e-5),
        ];
        let total = parts.iter().map(|p| p.seconds).sum();
        let table = layer_table(&parts, total, 1e3);
        let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["conv2d", "300.0", "400.0", "700.0", "70.0", "%"]);
        assert_eq!(lines[2], ["dense", "100.0", "100.0", "200.0", "20.0", "%"]);
        assert_eq!(lines[3], ["optimizer", "100.0", "100.0", "10.0", "%"]);
        assert_eq!(lines[4], ["2", "others", "0.030", "0.030", "0.0", "%"]);
        assert_eq!(lines[5], ["total", "400.0", "500.0", "100.0", "1000.0", "100.0", "%"]);
        assert!(table.lines().all(|l| l.chars().count() <= 80), "{table}");
    }

    #[test]
    fn what_takes_most_of_the_time_is_shown_by_its_parts() {
        let block = |k: usize| part(&format!("backbone/layer_{k}/attention"), LayerPhase::Forward, 0.2);
        let parts = [block(0), block(1), block(2), part("head", LayerPhase::Forward, 0.1)];
        let names =
            |parts: &[LayerTime]| by_layer(parts, 0.7).into_iter().map(|l| l.name).collect::<Vec<_>>();
        assert_eq!(names(&parts), ["backbone/layer_0", "backbone/layer_1", "backbone/layer_2", "head"]);
        let many: Vec<LayerTime> =
            (0..300).map(|k| part(&format!("layer_{k}"), LayerPhase::Forward, 1.0)).collect();
        let table = layer_table(&many, 300.0, 1e3);
        assert!(table.lines().count() <= LAYERS + 3 && table.contains("300 others"), "{table}");
    }

    #[test]
    fn names_keep_what_tells_them_apart() {
        assert_eq!(ending("conv2d", 6), "conv2d");
        assert_eq!(ending("layer_1/conv2d", 7), "…conv2d");
        assert_eq!(name_within("94 convolution", "conv2d_3", 40), "94 convolution of conv2d_3");
        assert_eq!(
            name_within("94 convolution", "a/long/path/of/conv2d_3", 30),
            "94 convolution of …of/conv2d_3"
        );
        assert_eq!(name_within("94 convolution", "", 40), "94 convolution");
        assert_eq!(name_within("94 convolution", "conv2d", 10), "94 convolu");
    }
}
