//! HTML page of a plan, self-contained and without scripts.

use super::text_table::{
    EXPLANATIONS, NOT_VALIDATED, PlanRow, PlanTable, WIDE, explanation, gib, lines_of, seconds_of_run,
    too_much,
};
use std::fmt::Write as _;
use systole_data::clock::today;
use systole_plan::{ChipTables, MachineChoice, dollars, duration};
use systole_report::escaped;

const STYLE: &str = "
:root{color-scheme:light dark;--line:#8884;--bar:#3b82c4;--bad:#c4453b;--soft:#8882}
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em}
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}
.scroll{overflow-x:auto}table{border-collapse:collapse;white-space:nowrap}
td,th{padding:.3em .7em;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}tr.chosen{background:var(--soft);font-weight:600}
.box{border-left:4px solid var(--bar);background:var(--soft);padding:.6em 1em}
.bar{display:flex;height:.9em;background:var(--soft);min-width:12em;width:24em}
.bar i{display:block;height:100%;background:var(--bar)}.bar.over i{background:var(--bad)}
.p0{opacity:1}.p1{opacity:.8}.p2{opacity:.62}.p3{opacity:.48}.p4{opacity:.36}.p5{opacity:.26}.p6{opacity:.18}
small,footer{color:#777}
";

pub(super) fn html(plan: &PlanTable, tables: &ChipTables) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{0}</title>\n<style>{STYLE}</style>\n<h1>{0}</h1>\n",
        escaped(&plan.title),
    );
    if let Some(length) = &plan.length {
        page += &cell("p", &length.words());
    }
    let reasons: String = plan.advice.reasons.iter().map(|r| cell("p", r)).collect();
    let _ = writeln!(page, "<div class=\"box\"><h2 style=\"margin-top:0\">Advice</h2>{reasons}</div>");
    page += &cell("p", NOT_VALIDATED);
    for section in
        [whole_table(plan), runs(plan), memory(plan), layers(plan), notes(plan), sources(plan, tables)]
    {
        page += &section;
    }
    let _ = writeln!(page, "<footer>systole {}, {}</footer>\n</html>", env!("CARGO_PKG_VERSION"), today());
    page
}

fn cell(tag: &str, text: &str) -> String {
    format!("<{tag}>{}</{tag}>\n", escaped(text))
}

fn section(title: &str, body: &str) -> String {
    format!("<h2>{title}</h2>\n<div class=\"scroll\">{body}</div>\n")
}

fn whole_table(plan: &PlanTable) -> String {
    let head: String = WIDE.iter().map(|c| cell("th", c.0)).collect();
    let line = |(i, r): (usize, PlanRow<'_>)| {
        let cells: String = WIDE.iter().map(|c| cell("td", &c.1(&r))).collect();
        let class = if plan.advice.choice == Some(i) { " class=\"chosen\"" } else { "" };
        format!("<tr{class}>{cells}</tr>\n")
    };
    let rows: String = plan.rows().enumerate().map(line).collect();
    let legend = "<small>Likely (minimum to maximum). W, energy: chips only. *: the price is older than one year.</small>";
    section("Machines", &format!("<table>\n<tr>{head}</tr>\n{rows}</table>\n{legend}"))
}

/// Bars of the run time, or of the step time if the run's length is unknown.
fn runs(plan: &PlanTable) -> String {
    let fitting = || plan.choices.iter().filter(|c| c.estimate.memory.fits());
    let longest = fitting().map(seconds_of_run).fold(0.0, f64::max);
    let line = |c: &MachineChoice| {
        let t = seconds_of_run(c);
        let cost = c.dollars(plan.wish.spot).map_or("price unknown".into(), dollars);
        let words = if c.run.is_some() { format!("{}, {cost}", duration(t)) } else { duration(t) };
        let share = bar(&[t / longest.max(1e-12)], false);
        format!(
            "<tr><td>{}</td><td>{share}</td><td>{}</td></tr>\n",
            escaped(&c.machine.title()),
            escaped(&words)
        )
    };
    let rows: String = fitting().map(line).collect();
    let title = if plan.length.is_some() { "Time and cost of the run" } else { "Time of one step" };
    section(title, &format!("<table>{rows}</table>"))
}

/// Stacked bar of parts of a whole.
fn bar(parts: &[f64], over: bool) -> String {
    let part = |(i, share): (usize, &f64)| {
        format!("<i class=\"p{}\" style=\"width:{:.2}%\"></i>", i.min(6), (100.0 * share).clamp(0.0, 100.0))
    };
    let parts: String = parts.iter().enumerate().map(part).collect();
    format!("<span class=\"bar{}\">{parts}</span>", if over { " over" } else { "" })
}

fn memory(plan: &PlanTable) -> String {
    let line = |c: &MachineChoice| {
        let m = &c.estimate.memory;
        let whole = if m.limit.is_finite() { m.limit.max(m.total()) } else { m.total() };
        let parts: Vec<(&str, f64)> = m.parts().into_iter().filter(|p| p.1 > 0.0).collect();
        let shares: Vec<f64> = parts.iter().map(|p| p.1 / whole).collect();
        let words: Vec<String> = parts.iter().map(|(n, b)| format!("{n} {}", gib(*b))).collect();
        format!(
            "<tr><td>{}</td><td>{}</td><td>{} of {}</td><td style=\"text-align:left\"><small>{}</small></td></tr>\n",
            escaped(&c.machine.title()),
            bar(&shares, !m.fits()),
            gib(m.total()),
            gib(m.limit),
            escaped(&words.join(", ")),
        )
    };
    let rows: String = plan.choices.iter().map(line).collect();
    section("Memory per device", &format!("<table>{rows}</table>"))
}

/// The slowest layers of each machine.
fn layers(plan: &PlanTable) -> String {
    const MOST: usize = 12;
    let one = |c: &MachineChoice| {
        let mut lines = lines_of(c);
        lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let whole: f64 = lines.iter().map(|l| l.seconds).sum();
        let rows = lines.iter().take(MOST).map(|l| {
            format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.0} %</td><td>{}</td></tr>\n",
                escaped(&l.name),
                bar(&[l.seconds / whole.max(1e-12)], false),
                duration(l.seconds),
                100.0 * l.mxu,
                l.limit,
            )
        });
        let rows: String = rows.collect();
        let head = "<tr><th>layer</th><th></th><th>time</th><th>MXU utilization</th><th>limit</th></tr>";
        let title = escaped(&c.machine.title());
        format!("<details><summary>{title}</summary><table>{head}{rows}</table></details>\n")
    };
    let each: String = plan.choices.iter().map(one).collect();
    section(&format!("Time of a step: the {MOST} slowest layers"), &each)
}

fn notes(plan: &PlanTable) -> String {
    let of_choice = |c: &MachineChoice| {
        let large = (!c.estimate.memory.fits()).then(|| too_much(c));
        let title = c.machine.title();
        large.into_iter().chain(c.notes.clone()).map(move |n| format!("{title}: {n}"))
    };
    let refused = plan.refused.iter().map(|(m, why)| format!("{m}: {why}"));
    let items: String =
        plan.choices.iter().flat_map(of_choice).chain(refused).map(|n| cell("li", &n)).collect();
    if items.is_empty() { items } else { section("Notes", &format!("<ul>{items}</ul>")) }
}

fn sources(plan: &PlanTable, tables: &ChipTables) -> String {
    let how: String = EXPLANATIONS.iter().map(|t| cell("li", t)).collect();
    let each = plan.rows().flat_map(|r| explanation(&r)).map(|line| cell("li", line.trim()));
    let each: String = each.collect();
    let sources: String = tables.sources.iter().map(|s| cell("li", s)).collect();
    format!(
        "<h2>How the figures are computed</h2>\n<ul>{how}</ul>\n<details><summary>Each machine: memory, host, price, \
         energy</summary><ul>{each}</ul></details>\n<details><summary>Sources of the tables</summary><ul>{sources}</ul>\
         </details>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_escape_and_bars_stay_within_their_whole() {
        assert_eq!(cell("td", "a<b&c\""), "<td>a&lt;b&amp;c&quot;</td>\n");
        assert!(bar(&[2.0], true).contains("width:100.00%") && bar(&[], true).contains("over"));
    }
}
