//! Text output of `systole plan`: a table of 100 columns, or all columns with `--wide`.

use super::args::PlanArgs;
use super::planned_program::RunLength;
use crate::render::screen::{Screen, table, wrapped};
use systole_plan::{
    Advice, ChipTables, DISPATCH, Energy, KernelTime, Machine, MachineChoice, PlanLimits, digits, dollars,
    duration, joules,
};

pub(super) const NOT_VALIDATED: &str = "Times are estimates that are not validated by a measurement, unless a note says so: treat them as ranges.";

/// Line width without `--wide`.
const WIDTH: usize = 100;

/// Rows of the plan and the advice.
pub(super) struct PlanTable {
    pub(super) title: String,
    pub(super) choices: Vec<MachineChoice>,
    /// Energy of each choice, if the chip's power is published.
    pub(super) energy: Vec<Option<Energy>>,
    /// Machines that cannot run the program, with the reason.
    pub(super) refused: Vec<(String, String)>,
    pub(super) advice: Advice,
    pub(super) length: Option<RunLength>,
    pub(super) wish: PlanLimits,
}

/// One row of the table.
pub(super) struct PlanRow<'a> {
    choice: &'a MachineChoice,
    energy: Option<&'a Energy>,
    spot: bool,
}

impl PlanTable {
    pub(super) fn rows(&self) -> impl Iterator<Item = PlanRow<'_>> {
        let energy = self.energy.iter().map(Option::as_ref);
        let spot = self.wish.spot;
        let row = move |(choice, energy)| PlanRow { choice, energy, spot };
        self.choices.iter().zip(energy).map(row)
    }
}

pub(super) type PlanColumn = (&'static str, fn(&PlanRow<'_>) -> String);

/// Columns of the narrow table, and the columns dropped first if it exceeds [`WIDTH`].
const NARROW: [PlanColumn; 9] = [
    ("machine", |r| r.choice.machine.title()),
    ("GiB need/has", need),
    ("fits", fits),
    ("step", |r| duration(r.choice.estimate.step().likely)),
    ("samples/s", |r| format!("{:.0}", r.choice.rate())),
    ("limit", |r| r.choice.estimate.limit().into()),
    ("$/h", hourly),
    ("run", |r| r.choice.run.map_or("-".into(), |t| duration(t[1]))),
    ("cost", cost),
];
const SPARE: [&str; 2] = ["samples/s", "$/h"];

/// All columns.
pub(super) const WIDE: [PlanColumn; 16] = [
    ("machine", |r| r.choice.machine.title()),
    ("HBM need", |r| gib(r.choice.estimate.memory.total())),
    ("of", |r| gib(r.choice.estimate.memory.limit)),
    ("fits", fits),
    ("device", |r| {
        let d = &r.choice.estimate.device;
        ranged([d.low, d.likely, d.high])
    }),
    ("host", |r| duration(r.choice.estimate.host.total())),
    ("samples/s", |r| format!("{:.0}", r.choice.rate())),
    ("MFU", |r| format!("{:.1} %", 100.0 * r.choice.estimate.mfu())),
    ("limit", |r| r.choice.estimate.limit().into()),
    ("W", |r| r.energy.map_or("?".into(), |e| format!("{:.0}", e.watts))),
    ("energy/step", |r| r.energy.map_or("?".into(), |e| joules(e.step))),
    ("samples/J", |r| r.energy.map_or("?".into(), |e| digits(e.samples_per_joule))),
    ("$/h", hourly),
    ("hosts $/h", hosts),
    ("run", |r| r.choice.run.map_or("-".into(), ranged)),
    ("cost (spot)", both_costs),
];

fn ranged([low, likely, high]: [f64; 3]) -> String {
    format!("{} ({} to {})", duration(likely), duration(low), duration(high))
}

fn need(r: &PlanRow<'_>) -> String {
    let number = |bytes: f64| match bytes / GIB {
        g if !g.is_finite() => "?".into(),
        g if g < 0.01 => "<0.01".into(),
        g if g < 100.0 => format!("{g:.2}"),
        g => format!("{g:.0}"),
    };
    let m = &r.choice.estimate.memory;
    format!("{}/{}", number(m.total()), number(m.limit))
}

fn fits(r: &PlanRow<'_>) -> String {
    if r.choice.estimate.memory.fits() { "yes" } else { "NO" }.into()
}

fn hourly(r: &PlanRow<'_>) -> String {
    match (&r.choice.bill, &r.choice.machine) {
        (Some(b), _) => {
            let hour = if r.spot { b.spot_per_hour.unwrap_or(b.per_hour) } else { b.per_hour };
            let hour = if hour < 1000.0 { format!("{hour:.2}") } else { format!("{hour:.0}") };
            format!("{hour}{}", if b.old { "*" } else { "" })
        }
        (None, Machine::Cpu(_)) => "0".into(),
        (None, _) => "?".into(),
    }
}

/// Hourly price of the hosts, if billed separately.
fn hosts(r: &PlanRow<'_>) -> String {
    match &r.choice.bill {
        Some(b) if b.host_per_hour > 0.0 => format!("{:.2}", b.host_per_hour),
        Some(_) => "included".into(),
        None => "-".into(),
    }
}

fn cost(r: &PlanRow<'_>) -> String {
    match (r.choice.run, r.choice.dollars(r.spot)) {
        (None, _) => "-".into(),
        (_, Some(d)) => dollars(d),
        (_, None) => "?".into(),
    }
}

fn both_costs(r: &PlanRow<'_>) -> String {
    match (r.choice.run, r.choice.dollars(false), r.choice.bill.as_ref().and_then(|b| b.spot_run)) {
        (None, ..) => "-".into(),
        (_, Some(d), Some(s)) => format!("{} ({})", dollars(d), dollars(s)),
        (_, Some(d), None) => dollars(d),
        (_, None, _) => "?".into(),
    }
}

/// Likely seconds of the run, or of a step if the run's length is unknown.
pub(super) fn seconds_of_run(c: &MachineChoice) -> f64 {
    c.run.map_or(c.estimate.step().likely, |r| r[1])
}

const GIB: f64 = (1u64 << 30) as f64;

pub(super) fn gib(bytes: f64) -> String {
    match bytes / GIB {
        g if !g.is_finite() => "?".into(),
        g if g < 0.1 => format!("{:.0} MiB", g * 1024.0),
        g => format!("{g:.2} GiB"),
    }
}

/// Wraps text to [`WIDTH`] columns with indented continuation lines; no wrapping with `--wide`.
struct WrappedText<'a> {
    screen: &'a Screen,
    wide: bool,
}

impl WrappedText<'_> {
    fn line(&self, text: impl AsRef<str>) {
        self.screen.line(self.wrapped(text.as_ref()));
    }

    fn detail(&self, text: impl AsRef<str>) {
        self.screen.detail(self.wrapped(text.as_ref()));
    }

    fn wrapped(&self, text: &str) -> String {
        if self.wide { text.into() } else { wrapped(text, WIDTH) }
    }
}

/// Drops spare columns one by one until the table fits the width.
fn fitted(mut rows: Vec<Vec<String>>, spare: &[&str], width: usize) -> String {
    for name in spare {
        let text = table(&rows);
        if text.lines().all(|l| l.chars().count() <= width) {
            return text;
        }
        if let Some(column) = rows.first().and_then(|head| head.iter().position(|h| h == name)) {
            rows.iter_mut().for_each(|r| drop(r.remove(column)));
        }
    }
    table(&rows)
}

pub(super) fn text(plan: &PlanTable, args: &PlanArgs, tables: &ChipTables, screen: &Screen) {
    let paper = WrappedText { screen, wide: args.wide };
    let by =
        if args.compiled { "TPUs: compiled by libtpu; others: analytic model" } else { "analytic model" };
    paper.line(format!("{} ({by})", plan.title));
    if let Some(length) = &plan.length {
        paper.line(length.words());
    }
    let columns: &[PlanColumn] = if args.wide { &WIDE } else { &NARROW };
    let mut rows = vec![columns.iter().map(|c| c.0.to_string()).collect::<Vec<_>>()];
    rows.extend(plan.rows().map(|r| columns.iter().map(|c| c.1(&r)).collect()));
    if rows.len() > 1 {
        screen.line(if args.wide { table(&rows) } else { fitted(rows, &SPARE, WIDTH) });
    }
    for (machine, why) in &plan.refused {
        paper.line(format!("{machine}: {why}"));
    }
    for c in plan.choices.iter().filter(|c| !c.estimate.memory.fits()) {
        paper.line(format!("{}: {}", c.machine.title(), too_much(c)));
    }
    for c in plan.choices.iter().filter(|c| !c.notes.is_empty()) {
        paper.detail(format!("{}: {}", c.machine.title(), c.notes.join("; ")));
    }
    paper.detail(NOT_VALIDATED);
    if !args.wide {
        paper.detail("--wide: ranges, hosts, MFU, energy, spot prices. *: the price is older than one year.");
    }
    if args.layers {
        plan.choices.iter().for_each(|c| layers(c, &paper));
    }
    if args.explain {
        explain(plan, tables, &paper);
    }
    let of = plan.length.as_ref().map_or(String::new(), |l| format!(" for {}", l.steps_words()));
    paper.line(format!("Advice{of}:"));
    plan.advice.reasons.iter().for_each(|r| paper.line(format!("  {r}")));
}

/// Explains an out-of-memory row: the excess, the largest parts, and a batch size that fits.
pub(super) fn too_much(c: &MachineChoice) -> String {
    let m = &c.estimate.memory;
    let parts: Vec<String> = m.parts().iter().take(3).map(|(n, b)| format!("{n} {}", gib(*b))).collect();
    let by_batch = m.activations + m.temporaries + m.inputs;
    let help = match m.total() - by_batch <= m.limit {
        true => {
            let share = (m.limit - (m.total() - by_batch)) / by_batch;
            format!("a batch size of about {:.0} would fit", (c.samples * share * 0.95).floor().max(1.0))
        }
        false => "no batch size fits: weights and optimizer state alone exceed one device".into(),
    };
    format!("too large by {} ({});\n  {help}", gib(m.total() - m.limit), parts.join(", "))
}

/// Groups kernels by layer, in the order of each layer's first kernel.
/// Name of kernels that belong to no layer.
const NO_LAYER: &str = "(no layer)";

fn by_layer(c: &MachineChoice) -> Vec<(String, Vec<&KernelTime>)> {
    let mut layers: Vec<(String, Vec<&KernelTime>)> = Vec::new();
    for k in &c.estimate.kernels {
        let scope = if k.scope.is_empty() { NO_LAYER } else { &k.scope };
        match layers.iter_mut().find(|l| l.0 == scope) {
            Some(l) => l.1.push(k),
            None => layers.push((scope.into(), vec![k])),
        }
    }
    layers
}

/// Cost of a layer: seconds, useful MXU utilization, bytes, padding.
pub(super) struct LayerCost {
    pub(super) name: String,
    pub(super) seconds: f64,
    pub(super) mxu: f64,
    pub(super) bytes: f64,
    pub(super) limit: &'static str,
    pub(super) padding: Vec<String>,
}

fn layer_lines(c: &MachineChoice, peak_seconds: impl Fn(&KernelTime) -> f64) -> Vec<LayerCost> {
    let line = |(name, kernels): (String, Vec<&KernelTime>)| {
        let sum = |f: &dyn Fn(&KernelTime) -> f64| kernels.iter().map(|k| f(k) * k.trips).sum::<f64>();
        let seconds = sum(&|k| k.time.total);
        let longest =
            kernels.iter().max_by(|a, b| (a.time.total * a.trips).total_cmp(&(b.time.total * b.trips)));
        let mut padding: Vec<String> = Vec::new();
        for k in &kernels {
            for p in k.padding.iter().filter(|p| p.to / p.from > 1.05) {
                let advice = remedy(p.dimension, p.from, p.to);
                let told =
                    format!("{} of {}: {} padded to {} (use {advice})", p.dimension, k.name, p.from, p.to);
                if !padding.contains(&told) {
                    padding.push(told);
                }
            }
        }
        LayerCost {
            name,
            seconds,
            mxu: sum(&peak_seconds) / seconds.max(1e-12),
            bytes: sum(&|k| k.bytes),
            limit: longest.map_or("-", |k| k.time.limit()),
            padding,
        }
    };
    by_layer(c).into_iter().map(line).collect()
}

/// Change that avoids the padding.
fn remedy(dimension: &str, from: f64, to: f64) -> String {
    match dimension {
        "rows" | "batch" => format!("a batch size that makes it {to}"),
        "output features" | "columns" => {
            format!("{to} units or filters, or round down to the tile size below {from}")
        }
        _ => format!("inputs with a multiple of {to} features"),
    }
}

pub(super) fn lines_of(c: &MachineChoice) -> Vec<LayerCost> {
    // Required operations at the peak rate, as counted by the estimate's MFU.
    let flops: f64 = c.estimate.kernels.iter().map(|k| k.flops * k.trips).sum();
    let step = c.estimate.step().likely;
    let rate = if c.estimate.mfu() > 0.0 { flops / (step * c.estimate.mfu()) } else { f64::INFINITY };
    layer_lines(c, |k| k.flops / rate)
}

fn layers(c: &MachineChoice, paper: &WrappedText<'_>) {
    paper.line(format!("\n{} by layer (one device):", c.machine.title()));
    let head = ["layer", "time", "MXU utilization", "bytes", "limit"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let lines = lines_of(c);
    rows.extend(lines.iter().map(|l| {
        vec![
            if paper.wide { l.name.clone() } else { shortened(&l.name, WIDTH - 50) },
            duration(l.seconds),
            format!("{:.1} %", 100.0 * l.mxu),
            gib(l.bytes),
            l.limit.into(),
        ]
    }));
    paper.screen.line(table(&rows));
    if let Some(networks) = networks(&lines) {
        paper.line(format!("By network: {networks}"));
    }
    for l in &lines {
        l.padding.iter().for_each(|p| paper.line(format!("  {}: {p}", l.name)));
    }
}

/// Device time of each network, by the first part of the layers' paths; `None` unless all layers are in a few networks.
fn networks(lines: &[LayerCost]) -> Option<String> {
    let mut times: Vec<(&str, f64)> = Vec::new();
    for line in lines.iter().filter(|l| l.name != NO_LAYER) {
        let (network, _) = line.name.split_once('/')?;
        match times.iter_mut().find(|t| t.0 == network) {
            Some(t) => t.1 += line.seconds,
            None => times.push((network, line.seconds)),
        }
    }
    let text = || times.iter().map(|(n, s)| format!("{n} {}", duration(*s))).collect::<Vec<_>>().join(", ");
    (2..=4).contains(&times.len()).then(text)
}

/// Keeps the end of a long path, which distinguishes the layers.
fn shortened(name: &str, most: usize) -> String {
    let n = name.chars().count();
    if n <= most {
        name.into()
    } else {
        format!("…{}", name.chars().skip(n - most + 1).collect::<String>())
    }
}

fn explain(plan: &PlanTable, tables: &ChipTables, paper: &WrappedText<'_>) {
    paper.line("\nHow the figures are computed:");
    for text in EXPLANATIONS {
        paper.line(format!("  {text}"));
    }
    let start = duration(DISPATCH);
    paper
        .line(format!("  Host: {start} to dispatch a step (assumed; --dispatch), plus the batch over PCIe."));
    for r in plan.rows() {
        for line in explanation(&r) {
            paper.line(line);
        }
    }
    tables.sources.iter().for_each(|s| paper.line(format!("  Source: {s}")));
}

/// Explains the sources of one machine's figures.
pub(super) fn explanation(r: &PlanRow<'_>) -> Vec<String> {
    let (c, m) = (r.choice, &r.choice.estimate.memory);
    let parts: Vec<String> =
        m.parts().iter().filter(|p| p.1 > 0.0).map(|(n, b)| format!("{n} {}", gib(*b))).collect();
    let mut lines = vec![format!("  {}: memory {}", c.machine.title(), parts.join(", "))];
    let host = &c.estimate.host;
    if host.total() > 0.0 {
        let pipeline = match host.pipeline {
            0.0 => {
                let needed = c.rate() / c.machine.hosts() as f64;
                format!(
                    "the input pipeline is not counted (--input-rate); below {needed:.0} samples per second and host, \
                     the devices wait"
                )
            }
            s => format!("input pipeline {} in parallel", duration(s)),
        };
        let (start, feed) = (duration(host.dispatch), duration(host.feed));
        lines.push(format!("    host: dispatch {start}, batch over PCIe {feed}, {pipeline}"));
    }
    if c.estimate.collective > 0.0 {
        let sums = duration(c.estimate.collective);
        lines.push(format!("    gradient all-reduce over {} devices: {sums}", c.machine.devices()));
    }
    if let Some(b) = &c.bill {
        let hosts = match b.host_per_hour {
            h if h > 0.0 => format!("${h:.2} of ${:.2} per hour are for hosts", b.per_hour),
            _ => "host included".into(),
        };
        lines.push(format!(
            "    price as of {} ({}; {hosts}): {}",
            b.price.date, b.price.region, b.price.source
        ));
    }
    lines.push(format!("    energy: {}", energy(r)));
    lines
}

/// Formats energy: `12.3 J per step, 81.3 samples per joule, 3.7 kJ in total (at 800 W, chips only)`.
fn energy(r: &PlanRow<'_>) -> String {
    let Some(e) = r.energy else { return "? (its power is not published)".into() };
    let run = e.run.map_or(String::new(), |j| format!(", {} in total", joules(j)));
    let (step, rate) = (joules(e.step), digits(e.samples_per_joule));
    format!("{step} per step, {rate} samples per joule{run} (at {:.0} W, chips only)", e.watts)
}

pub(super) const EXPLANATIONS: [&str; 6] = [
    "Device time is the sum over kernels of start + max(products with padding, moving results out, bytes, element-wise \
     work), plus the collectives. TPU constants are fitted to libtpu's own estimates (docs/guide/plan.md); GPU constants are assumed.",
    "Minimum: peak rates, no padding, no start time, hidden collectives. Maximum: everything in sequence.",
    "HBM need: tiled arguments, peak of live values, code; results reuse arguments of their type.",
    "float32 products are planned as XLA computes them by default: as bf16 on TPUs, as TF32 on GPUs that have it.",
    "Loops of a compiled program run as often as the largest constant of their condition says, or once if it has none.",
    "MFU: required multiply-adds without padding, relative to those possible in the likely time.",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_are_spare_go_where_the_table_is_too_wide() {
        let rows = || vec![vec!["a".to_string(), "spare".into()], vec!["1234567".into(), "x".into()]];
        assert_eq!(fitted(rows(), &["spare"], 20), "a        spare\n1234567  x");
        assert_eq!(fitted(rows(), &["spare"], 9), "a\n1234567");
        assert_eq!((shortened("abcdef", 4), shortened("abc", 4)), ("…def".into(), "abc".into()));
    }
}
