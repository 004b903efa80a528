//! `systole chips`: lists the chip tables used by `systole plan`, and historic chips.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::commands::plan;
use crate::render::screen::{Screen, table, wrapped};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use systole_ir::{Result, err};
use systole_nn::did_you_mean::suggestion;
use systole_plan::{ChipFigures, ComparedFigure, Price};

#[derive(Args)]
pub(crate) struct ChipsArgs {
    /// Chips to list: v1, v2 … tpu7x, edgetpu, k80, v100 … [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Read chips and prices that replace or extend the built-in tables
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
}

impl RunCommand for ChipsArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let tables = plan::tables(self.tables.as_deref())?;
        let chips = chosen(&self.names, ChipFigures::all(&tables)).map_err(CommandError::usage)?;
        match screen.json {
            true => screen.object(&chips.iter().map(as_json).collect::<Value>()),
            false => text(&chips, screen),
        }
        Ok(0)
    }
}

/// Maximum line width.
const WIDTH: usize = 100;

fn chosen(names: &[String], all: Vec<ChipFigures>) -> Result<Vec<ChipFigures>> {
    if names.is_empty() {
        return Ok(all);
    }
    let known: Vec<String> = all.iter().map(|c| c.name.clone()).collect();
    let mut found = Vec::new();
    for name in names {
        let lower = name.to_lowercase();
        // `v2-8` and `8*h100` select the chip that they consist of.
        let chip = lower.rsplit('*').next().unwrap_or_default();
        let family = chip.split([':', '-']).next().unwrap_or_default();
        let is = |c: &&ChipFigures, n: &str| c.name == n || c.aliases.iter().any(|a| a == n);
        let hit = all.iter().find(|c| is(c, family));
        let hit = hit.ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            err!(Config, "unknown chip `{name}`").hint_command(suggestion(family, &known))
        })?;
        if !found.contains(hit) {
            found.push(hit.clone());
        }
    }
    Ok(found)
}

fn text(chips: &[ChipFigures], screen: &Screen) {
    let head = ["chip", "product", "since", "peak 10¹²/s", "memory", "GB/s", "W", "$/h"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(chips.iter().map(row));
    screen.line(table(&rows));
    screen.detail(
        "\nFigures are per chip or GPU. W: kind of figure below. ?: not published, or no price found.\n",
    );
    for c in chips {
        about(c).iter().for_each(|line| screen.line(wrapped(line, WIDTH)));
    }
}

fn row(c: &ChipFigures) -> Vec<String> {
    let peak = c.peak().map_or("?".into(), |(kind, peak)| format!("{} {kind}", plain(peak)));
    let watts = c.watts.as_ref().map_or("?".into(), |w| plain(w.0));
    vec![
        c.name.clone(),
        c.product.clone(),
        c.year.map_or("?".into(), |y| y.to_string()),
        peak,
        memory(c.memory_gib),
        c.memory_gb_per_s.map_or("-".into(), |b| format!("{b:.0}")),
        watts,
        c.prices.first().map_or("?".into(), |p| plain(p.on_demand + p.host)),
    ]
}

fn memory(gib: f64) -> String {
    match gib {
        g if g < 0.1 => format!("{:.0} MB", g * 1_073.741_824),
        g => format!("{} GiB", plain((g * 10.0).round() / 10.0)),
    }
}

/// Formats a number with at most four decimals and no trailing zeros.
fn plain(x: f64) -> String {
    let text = format!("{x:.4}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

/// Details of a chip below the table.
fn about(c: &ChipFigures) -> Vec<String> {
    let mut lines = vec![format!("{} ({})", c.name, c.product)];
    let peaks: Vec<String> = c.peaks.iter().map(|(kind, peak)| format!("{kind} {}", plain(*peak))).collect();
    lines.push(format!("  peak, 10¹² operations per second: {}", peaks.join(", ")));
    lines.push(match &c.watts {
        Some((w, kind)) => format!("  watts: {} ({kind})", plain(*w)),
        None => "  watts: ? (not published)".into(),
    });
    lines.extend(c.process_nm.map(|nm| format!("  process: {} nm", plain(nm))));
    match &c.unplanned {
        Some(why) => lines.push(format!("  not supported by plan: {why}")),
        None => lines.push(format!("  names: {}", c.slices.join(" "))),
    }
    lines.extend(c.prices.iter().map(price));
    if c.prices.is_empty() {
        lines.push("  price: ? (not found)".into());
    }
    lines.push(format!("  source: {}", c.source));
    lines.extend(c.printed.iter().map(compared));
    lines
}

fn price(p: &Price) -> String {
    let spot = p.spot.map_or(String::new(), |s| format!(", spot {}", plain(s)));
    let pod = p.pod.map_or(String::new(), |pod| format!(", in pods {}", plain(pod)));
    let host = match p.host {
        h if h > 0.0 => format!(", plus host {}", plain(h)),
        _ => ", host included".into(),
    };
    let node = p.node_vm.map_or(String::new(), |vm| format!(", as a legacy TPU node plus a {vm} machine"));
    let (region, date, source) = (&p.region, &p.date, &p.source);
    format!("  $/h in {region}: {}{spot}{pod}{host}{node} ({date}: {source})", plain(p.on_demand))
}

fn compared(c: &ComparedFigure) -> String {
    let p = &c.printed;
    let unit = if p.unit.is_empty() { String::new() } else { format!(" {}", p.unit) };
    let here = c.here.map_or(String::new(), |here| format!("; table value {}{unit}", plain(here)));
    format!("  printed in tutorials: {}: {}{unit}{here}", p.what, p.value)
}

fn as_json(c: &ChipFigures) -> Value {
    let prices = c.prices.iter().map(|p| {
        json!({"region": p.region, "on_demand": p.on_demand, "spot": p.spot, "pod": p.pod, "pod_spot": p.pod_spot,
               "host": p.host, "host_spot": p.host_spot, "node_vm": p.node_vm, "date": p.date, "source": p.source})
    });
    let printed = c.printed.iter().map(|p| {
        json!({"what": p.printed.what, "printed": p.printed.value, "unit": p.printed.unit, "here": p.here})
    });
    json!({
        "name": c.name, "aliases": c.aliases, "product": c.product, "since": c.year, "peak_tflops": c.peaks,
        "memory_gib": c.memory_gib, "memory_gb_per_s": c.memory_gb_per_s,
        "watts": c.watts.as_ref().map(|w| w.0), "watts_note": c.watts.as_ref().map(|w| &w.1),
        "process_nm": c.process_nm,
        "slices": if c.unplanned.is_none() { c.slices.clone() } else { Vec::new() },
        "planned": c.unplanned.is_none(), "why_not_planned": c.unplanned,
        "prices": prices.collect::<Value>(), "source": c.source, "tutorials": printed.collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_plan::ChipTables;

    #[test]
    fn chips_are_found_by_names_of_slices_too() {
        let all = ChipFigures::all(&ChipTables::built_in().unwrap());
        let of = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
            chosen(&names, all.clone()).map(|found| found.iter().map(|c| c.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["v5litepod-16", "8*h100", "V1", "v1"]).unwrap(), ["v5e", "h100", "v1"]);
        let e = of(&["v9"]).unwrap_err().to_string();
        assert!(e.contains("`v9`") && e.contains("edgetpu"), "{e}");
        assert_eq!(of(&[]).unwrap().len(), all.len());
        assert_eq!([plain(92.0), plain(0.37125), plain(4.0 * 1.305)], ["92", "0.3713", "5.22"]);
        for c in &all {
            let lines = about(c).join("\n");
            assert!(lines.contains("source: ") && lines.contains("watts: "), "{lines}");
        }
    }
}
