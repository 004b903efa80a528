//! A plan as text, as JSON and as a page.

use super::args::PlanArgs;
use crate::cli::screen::{Screen, table};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use systole_plan::{Advice, Choice, DISPATCH, KernelTime, Machine, Tables, Wish, dollars, duration};

const NOT_VALIDATED: &str =
    "Times are estimates without a measurement behind them (not validated): likely (least to most).";

/// A table and the advice.
pub(super) struct Plan {
    pub(super) title: String,
    pub(super) choices: Vec<Choice>,
    /// Machines that cannot run it, and why.
    pub(super) refused: Vec<(String, String)>,
    pub(super) advice: Advice,
    pub(super) steps: Option<f64>,
    pub(super) wish: Wish,
}

/// Today as `YYYY-MM-DD`, UTC.
pub(super) fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400) as i64;
    // Days to civil date, for years after 1970 (Hinnant's algorithm).
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

const HEAD: [&str; 12] = [
    "machine",
    "HBM need",
    "of",
    "fits",
    "device",
    "host",
    "samples/s",
    "MFU",
    "limit",
    "$/h",
    "run",
    "cost (spot)",
];

fn row(c: &Choice) -> Vec<String> {
    let e = &c.estimate;
    let bill = c.bill.as_ref();
    let run = c
        .run
        .map_or("-".into(), |r| format!("{} ({} to {})", duration(r[1]), duration(r[0]), duration(r[2])));
    vec![
        c.machine.title(),
        gib(e.memory.total()),
        gib(e.memory.limit),
        if e.memory.fits() { "yes" } else { "NO" }.into(),
        format!("{} ({} to {})", duration(e.device.likely), duration(e.device.low), duration(e.device.high)),
        duration(e.host.total()),
        format!("{:.0}", c.rate()),
        format!("{:.1} %", 100.0 * e.mfu()),
        e.limit().into(),
        match (bill, &c.machine) {
            (Some(b), _) => format!("{:.2}{}", b.per_hour, if b.old { "*" } else { "" }),
            (None, Machine::Cpu(_)) => "0".into(),
            (None, _) => "?".into(),
        },
        run,
        match (c.dollars(false), c.bill.as_ref().and_then(|b| b.spot_run)) {
            (Some(d), Some(s)) => format!("{} ({})", dollars(d), dollars(s)),
            (Some(d), None) => dollars(d),
            (None, _) => "?".into(),
        },
    ]
}

fn gib(bytes: f64) -> String {
    match bytes / (1u64 << 30) as f64 {
        g if !g.is_finite() => "?".into(),
        g if g < 0.1 => format!("{:.0} MiB", g * 1024.0),
        g => format!("{g:.2} GiB"),
    }
}

pub(super) fn text(plan: &Plan, args: &PlanArgs, tables: &Tables, screen: &Screen) {
    let by =
        if args.compiled { "TPUs: from libtpu's program; others: analytic model" } else { "analytic model" };
    screen.line(format!("{} ({by})", plan.title));
    let mut rows = vec![HEAD.map(String::from).to_vec()];
    rows.extend(plan.choices.iter().map(row));
    screen.line(table(&rows));
    for (machine, why) in &plan.refused {
        screen.line(format!("{machine}: {why}"));
    }
    for c in plan.choices.iter().filter(|c| !c.estimate.memory.fits()) {
        screen.line(format!("{}: {}", c.machine.title(), too_much(c)));
    }
    for c in plan.choices.iter().filter(|c| !c.notes.is_empty()) {
        screen.detail(format!("{}: {}", c.machine.title(), c.notes.join("; ")));
    }
    screen.detail(NOT_VALIDATED);
    if args.layers {
        plan.choices.iter().for_each(|c| layers(c, screen));
    }
    if args.explain {
        explain(plan, tables, screen);
    }
    if let Some(n) = plan.steps {
        screen.line(format!("Advice for {n} steps:"));
        plan.advice.reasons.iter().for_each(|r| screen.line(format!("  {r}")));
    }
}

/// What an out-of-memory line says: by how much, what is large, what would help.
fn too_much(c: &Choice) -> String {
    let m = &c.estimate.memory;
    let parts: Vec<String> = m.parts().iter().take(3).map(|(n, b)| format!("{n} {}", gib(*b))).collect();
    let by_batch = m.activations + m.temporaries + m.inputs;
    let help = match m.total() - by_batch <= m.limit {
        true => {
            let share = (m.limit - (m.total() - by_batch)) / by_batch;
            format!("a batch of about {:.0} would fit", (c.samples * share * 0.95).floor().max(1.0))
        }
        false => "no batch size would: weights and optimizer state alone are too much for one device".into(),
    };
    format!("too large by {} ({}); {help}", gib(m.total() - m.limit), parts.join(", "))
}

/// Kernels of one layer together, in the order of their first.
fn by_layer(c: &Choice) -> Vec<(String, Vec<&KernelTime>)> {
    let mut layers: Vec<(String, Vec<&KernelTime>)> = Vec::new();
    for k in &c.estimate.kernels {
        let scope = if k.scope.is_empty() { "(no layer)" } else { &k.scope };
        match layers.iter_mut().find(|l| l.0 == scope) {
            Some(l) => l.1.push(k),
            None => layers.push((scope.into(), vec![k])),
        }
    }
    layers
}

/// A layer's line: seconds, part of the matrix units' time that is needed work, bytes, paddings.
struct Layer {
    name: String,
    seconds: f64,
    mxu: f64,
    bytes: f64,
    limit: &'static str,
    padding: Vec<String>,
}

fn layer_lines(c: &Choice, peak_seconds: impl Fn(&KernelTime) -> f64) -> Vec<Layer> {
    let line = |(name, kernels): (String, Vec<&KernelTime>)| {
        let sum = |f: &dyn Fn(&KernelTime) -> f64| kernels.iter().map(|k| f(k) * k.trips).sum::<f64>();
        let seconds = sum(&|k| k.time.total);
        let longest =
            kernels.iter().max_by(|a, b| (a.time.total * a.trips).total_cmp(&(b.time.total * b.trips)));
        let mut padding: Vec<String> = Vec::new();
        for k in &kernels {
            for p in k.padding.iter().filter(|p| p.to / p.from > 1.05) {
                let advice = remedy(p.dimension, p.from, p.to);
                let told = format!("{} of {}: {} padded to {} ({advice})", p.dimension, k.name, p.from, p.to);
                if !padding.contains(&told) {
                    padding.push(told);
                }
            }
        }
        Layer {
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

/// The change that removes a padding.
fn remedy(dimension: &str, from: f64, to: f64) -> String {
    match dimension {
        "rows" | "batch" => format!("a batch that makes it {to}"),
        "output features" | "columns" => {
            format!("{to} units or filters, or as many fewer as the tile below {from}")
        }
        _ => format!("inputs with features that fill {to}"),
    }
}

fn lines_of(c: &Choice) -> Vec<Layer> {
    // Needed operations at the peak, as the estimate's own MFU counts them.
    let flops: f64 = c.estimate.kernels.iter().map(|k| k.flops * k.trips).sum();
    let step = c.estimate.step().likely;
    let rate = if c.estimate.mfu() > 0.0 { flops / (step * c.estimate.mfu()) } else { f64::INFINITY };
    layer_lines(c, |k| k.flops / rate)
}

fn layers(c: &Choice, screen: &Screen) {
    screen.line(format!("\n{} by layer (one device):", c.machine.title()));
    let head = ["layer", "time", "of it MXU use", "bytes", "limit"];
    let mut rows = vec![head.map(String::from).to_vec()];
    let lines = lines_of(c);
    rows.extend(lines.iter().map(|l| {
        vec![
            l.name.clone(),
            duration(l.seconds),
            format!("{:.1} %", 100.0 * l.mxu),
            gib(l.bytes),
            l.limit.into(),
        ]
    }));
    screen.line(table(&rows));
    for l in &lines {
        l.padding.iter().for_each(|p| screen.line(format!("  {}: {p}", l.name)));
    }
}

fn explain(plan: &Plan, tables: &Tables, screen: &Screen) {
    screen.line("\nHow the figures came about:");
    for text in EXPLANATIONS {
        screen.line(format!("  {text}"));
    }
    let start = duration(DISPATCH);
    screen.line(format!("  Host: {start} to start a step (assumed; --dispatch), and the batch over PCIe."));
    for c in &plan.choices {
        let m = &c.estimate.memory;
        let parts: Vec<String> =
            m.parts().iter().filter(|p| p.1 > 0.0).map(|(n, b)| format!("{n} {}", gib(*b))).collect();
        screen.line(format!("  {}: memory {}", c.machine.title(), parts.join(", ")));
        let host = &c.estimate.host;
        if host.total() > 0.0 {
            let pipeline = match host.pipeline {
                0.0 => "making the batch is not counted (--input-rate)".into(),
                s => format!("making the batch {} beside that", duration(s)),
            };
            let (start, feed) = (duration(host.dispatch), duration(host.feed));
            screen.line(format!("    host: starting the step {start}, batch over PCIe {feed}, {pipeline}"));
        }
        if c.estimate.collective > 0.0 {
            screen.line(format!(
                "    sums of gradients over {} devices: {}",
                c.machine.devices(),
                duration(c.estimate.collective)
            ));
        }
        if let Some(b) = &c.bill {
            screen.line(format!("    price of {} ({}): {}", b.price.date, b.price.region, b.price.source));
        }
        if let (Some(w), Some(r)) = (c.machine.watts(tables), c.run) {
            screen.line(format!("    energy: about {:.3} kWh at {w:.0} W (chips alone)", w * r[1] / 3.6e6));
        }
    }
    tables.sources.iter().for_each(|s| screen.line(format!("  Source: {s}")));
}

const EXPLANATIONS: [&str; 5] = [
    "Device time is the sum over kernels of start + max(products with padding, moving results out, bytes, element-wise work),",
    "  plus the collectives. Constants of TPUs are fitted to libtpu's own estimates (docs/guide/plan.md); those of GPUs are assumed.",
    "Least: peak rates, no padding, no start, collectives hidden. Most: one after the other.",
    "HBM need: arguments in tiles, values alive at the fullest moment, code; results replace arguments of their type.",
    "MFU counts the multiply-adds that the program needs, without padding, over those possible in the likely time.",
];

pub(super) fn json(plan: &Plan, with_layers: bool) -> Value {
    let range = |r: systole_plan::Range| json!({"low": r.low, "likely": r.likely, "high": r.high});
    let choices: Vec<Value> = plan
        .choices
        .iter()
        .map(|c| {
            let e = &c.estimate;
            let m = &e.memory;
            let mut o = json!({
                "machine": c.machine.title(), "devices": c.machine.devices(), "estimator": e.by, "validated": false,
                "fits": m.fits(), "hbm_bytes": m.total(),
                "hbm_limit_bytes": m.limit.is_finite().then_some(m.limit),
                "hbm": {"parameters": m.parameters, "optimizer": m.optimizer, "inputs": m.inputs, "results": m.results,
                        "activations": m.activations, "temporaries": m.temporaries, "code": m.code},
                "device_seconds": range(e.device), "collective_seconds": e.collective, "host_seconds": e.host.total(),
                "host": {"dispatch": e.host.dispatch, "feed": e.host.feed,
                         "pipeline": (e.host.pipeline > 0.0).then_some(e.host.pipeline)},
                "step_seconds": range(e.step()), "samples_per_second": c.rate(), "mfu": e.mfu(), "limit": e.limit(),
                "run_seconds": c.run.map(|r| json!({"low": r[0], "likely": r[1], "high": r[2]})),
                "dollars": c.dollars(false), "dollars_spot": c.bill.as_ref().and_then(|b| b.spot_run),
                "notes": c.notes,
            });
            if let (Some(b), Some(o)) = (&c.bill, o.as_object_mut()) {
                let price = json!({"dollars_per_hour": b.per_hour, "spot_dollars_per_hour": b.spot_per_hour,
                    "region": b.price.region, "date": b.price.date, "source": b.price.source, "older_than_a_year": b.old});
                o.insert("price".into(), price);
            }
            if let (true, Some(o)) = (with_layers, o.as_object_mut()) {
                let lines = lines_of(c);
                let each = lines.iter().map(|l| json!({"layer": l.name, "seconds": l.seconds, "mxu": l.mxu,
                    "bytes": l.bytes, "limit": l.limit, "padding": l.padding}));
                o.insert("layers".into(), each.collect());
            }
            o
        })
        .collect();
    let refused = plan.refused.iter().map(|(m, why)| json!({"machine": m, "why": why})).collect::<Value>();
    json!({
        "what": plan.title, "steps": plan.steps, "choices": choices, "refused": refused,
        "wish": {"budget": plan.wish.budget, "deadline_hours": plan.wish.deadline, "spot": plan.wish.spot},
        "advice": {"machine": plan.advice.choice.map(|i| plan.choices[i].machine.title()), "reasons": plan.advice.reasons},
    })
}

/// One page without scripts or other files.
pub(super) fn html(plan: &Plan) -> String {
    let cell = |tag: &str, text: &str| format!("<{tag}>{}</{tag}>", escaped(text));
    let line = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|c| cell(tag, c)).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = line("th", &HEAD.map(String::from));
    let rows: String = plan.choices.iter().map(|c| line("td", &row(c))).collect();
    let items = |texts: Vec<String>| texts.iter().map(|t| cell("li", t)).collect::<String>();
    let notes = plan.choices.iter().flat_map(|c| {
        let large = (!c.estimate.memory.fits()).then(|| too_much(c));
        large.into_iter().chain(c.notes.clone()).map(|n| format!("{}: {n}", c.machine.title()))
    });
    let refused = plan.refused.iter().map(|(m, why)| format!("{m}: {why}"));
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n<style>body{{font:15px \
         sans-serif;margin:2em}}table{{border-collapse:collapse}}td,th{{padding:.3em .7em;border-bottom:1px solid \
         #ccc;text-align:left}}</style>\n<h1>{title}</h1>\n<p>{NOT_VALIDATED}</p>\n<table>\n{head}{rows}</table>\n\
         <h2>Advice</h2>\n<ul>{advice}</ul>\n<h2>Notes</h2>\n<ul>{notes}</ul>\n</html>\n",
        title = escaped(&plan.title),
        advice = items(plan.advice.reasons.clone()),
        notes = items(notes.chain(refused).collect()),
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn today_is_a_date_and_pages_escape() {
        let t = today();
        assert!(t.len() == 10 && t.as_str() > "2026-01-01" && t.as_str() < "2100-01-01", "{t}");
        assert_eq!(escaped("a<b&c"), "a&lt;b&amp;c");
    }
}
