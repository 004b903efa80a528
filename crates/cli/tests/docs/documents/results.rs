//! Generates `docs/results/current.md` from `docs/results/measurements.csv`: the newest measurement of each workload,
//! precision and machine. A new measurement is a new line of the data file.

use super::{read, same_or_bless};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Columns of the data file, in their order.
const COLUMNS: &[&str] = &[
    "group",
    "workload",
    "precision",
    "class",
    "machine",
    "ours",
    "unit",
    "peer",
    "theirs",
    "ratio",
    "low",
    "high",
    "aim",
    "mib",
    "peer_mib",
    "date",
    "command",
    "note",
];
/// Groups in the order of the page, with their titles.
const GROUPS: &[(&str, &str)] = &[
    ("training step", "Training steps"),
    ("prediction", "Predictions"),
    ("product", "Matrix products"),
    ("element-wise", "Element-wise work"),
    ("variant", "Variants of the training workloads"),
    ("layer", "Networks of one layer type"),
    ("input pipeline", "Input pipelines"),
    ("program", "Compile times, builds and accuracy"),
];
/// The machines' labels and processors; `machines.md` describes them.
const PROCESSORS: &[(&str, &str)] = &[
    ("A", "AMD Zen 4"),
    ("B", "Intel Cascade Lake"),
    ("C", "AMD Zen 3"),
    ("D", "Intel Xeon AMX"),
    ("E", "Intel Xeon, no AMX"),
    ("F", "AMD Zen 5"),
    ("G", "Intel Xeon AMX"),
];
/// Instruction-set levels, the most capable first.
const CLASSES: &[&str] = &["amx", "avx512bf16", "avx512", "avx2", "portable"];
const PRECISIONS: &[&str] = &["float32", "mixed_bfloat16", "bfloat16", "int8"];

type Row = BTreeMap<&'static str, String>;

/// Splits a CSV line into fields; fields with commas are quoted.
fn fields(line: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => found.push(String::new()),
            c => found.last_mut().expect("a field").push(c),
        }
    }
    found
}

fn measurements() -> Vec<Row> {
    let text = read("docs/results/measurements.csv");
    let mut lines = text.lines();
    assert_eq!(lines.next().map(fields).expect("a heading"), COLUMNS, "measurements.csv:1");
    let mut rows = Vec::new();
    for (i, line) in lines.enumerate() {
        let place = format!("measurements.csv:{}", i + 2);
        let values = fields(line);
        assert_eq!(values.len(), COLUMNS.len(), "{place}: fields");
        let row: Row = COLUMNS.iter().copied().zip(values).collect();
        for column in ["ours", "theirs", "ratio", "low", "high", "aim", "mib", "peer_mib"] {
            let value = &row[column];
            assert!(value.is_empty() || value.parse::<f64>().is_ok(), "{place}: {column} is no number");
        }
        assert!(GROUPS.iter().any(|(g, _)| *g == row["group"]), "{place}: no such group");
        assert!(CLASSES.contains(&row["class"].as_str()), "{place}: no such class");
        assert!(row["date"].len() == 10 && row["date"].starts_with("20"), "{place}: the date is YYYY-MM-DD");
        assert!(!row["command"].is_empty(), "{place}: a figure without its command");
        rows.push(row);
    }
    rows
}

/// Returns the newest row of each workload, precision and machine (the later line within a day), in page order.
fn newest(rows: &[Row]) -> Vec<&Row> {
    let mut kept: BTreeMap<[&str; 3], &Row> = BTreeMap::new();
    for row in rows {
        let key = [row["workload"].as_str(), &row["precision"], &row["machine"]];
        let other = kept.entry(key).or_insert(row);
        if other["date"] <= row["date"] {
            *other = row;
        }
    }
    let mut found: Vec<&Row> = kept.into_values().collect();
    let place = |list: &[&str], value: &str| list.iter().position(|v| *v == value).unwrap_or(list.len());
    let first = |workload: &str| rows.iter().position(|r| r["workload"] == workload);
    found.sort_by_key(|r| {
        let group = GROUPS.iter().position(|(g, _)| *g == r["group"]);
        let precision = place(PRECISIONS, &r["precision"]);
        (group, first(&r["workload"]), precision, place(CLASSES, &r["class"]), r["machine"].clone())
    });
    found
}

/// Formats a number with thousands separators, or a dash if it is missing.
fn shown(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut grouped = String::new();
    for (i, c) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(c);
    }
    if number.is_empty() { "–".to_string() } else { grouped + rest }
}

/// Formats the target and whether it is met.
fn target(row: &Row) -> String {
    let (Ok(aim), Ok(ratio)) = (row["aim"].parse::<f64>(), row["ratio"].parse::<f64>()) else {
        return "–".to_string();
    };
    let word = if ratio >= aim { "met" } else { "**not met**" };
    format!("{}: {word}", row["aim"])
}

fn line(row: &Row) -> String {
    let spread = match (row["low"].as_str(), row["high"].as_str()) {
        ("", _) | (_, "") => String::new(),
        (low, high) => format!(" ({low} to {high})"),
    };
    let ratio =
        if row["ratio"].is_empty() { "–".to_string() } else { format!("**{}**{spread}", row["ratio"]) };
    let memory = match (row["mib"].as_str(), row["peer_mib"].as_str()) {
        ("", _) => "–".to_string(),
        (ours, theirs) => format!("{}, {}", shown(ours), shown(theirs)),
    };
    let peer = match (row["peer"].as_str(), row["theirs"].as_str()) {
        ("", _) => "–".to_string(),
        (peer, "") => peer.to_string(),
        (peer, theirs) => format!("{peer} {}", shown(theirs)),
    };
    let ours = format!("{} {}", shown(&row["ours"]), row["unit"]);
    let ours = ours.trim_end();
    let note = if row["note"].is_empty() { String::new() } else { format!(" ({})", row["note"]) };
    format!(
        "| {} | {} | {} ({}) | {ours} | {peer} | {ratio} | {} | {memory} | {} | `{}`{note} |",
        row["workload"],
        row["precision"],
        processor(&row["machine"]),
        row["machine"],
        target(row),
        row["date"],
        row["command"],
    )
}

fn processor(machine: &str) -> &'static str {
    let known = PROCESSORS.iter().find(|(label, _)| *label == machine);
    known.unwrap_or_else(|| panic!("machine {machine} has no processor in PROCESSORS")).1
}

fn page(rows: &[Row]) -> String {
    let rows = newest(rows);
    let mut text = String::from(
        "# Current results\n\n\
         Generated from [measurements.csv](measurements.csv) by `SYSTOLE_BLESS=1 cargo test --test docs documents`: the newest \
         measurement of each\nworkload, precision and machine. Do not edit this page; append a line to the data file.\n\n\
         - **processor**: every machine has two cores. [machines.md](machines.md) explains the labels in brackets, and the \
         noise of shared hosts.\n\
         - **Systole**, **fastest peer**: median time of a step in ms, or units per second.\n\
         - **ratio**: speed of Systole divided by the speed of the fastest peer, with minimum and maximum over the rounds. \
         Above 1, Systole is faster.\n\
         - **MiB**: peak memory of Systole and of the peer.\n\
         - **command**: repeats the measurement of the row. Before 2026-11-26 one command measured several rows. \
         [bench/README.md](../../bench/README.md) describes\n  the workloads and the peers.\n\n\
         What did not help is in [the log](../log/README.md).\n\n\
         | workload | precision | processor | Systole | fastest peer | ratio (range) | target | MiB | date | command |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for (group, title) in GROUPS {
        writeln!(text, "| **{title}** | | | | | | | | | |").expect("a string");
        for row in rows.iter().filter(|r| r["group"] == *group) {
            text += &line(row);
            text.push('\n');
        }
    }
    text
}

#[test]
fn todays_figures_are_those_of_the_measurements() {
    same_or_bless("docs/results/current.md", &page(&measurements()));
}

/// `machines.md` has a row for each machine of the data, with its instruction-set level.
#[test]
fn machines_of_the_measurements_are_described() {
    let described = read("docs/results/machines.md");
    for row in measurements() {
        let line = format!("| {} | `{}` |", row["machine"], row["class"]);
        assert!(described.contains(&line), "machines.md has no line {line}");
    }
}

/// The page with the headline measurements.
const RESULTS: &str = "docs/results/README.md";

/// The workload that the tutorials train.
const TUTORIAL: &str = "fashion-cnn";
const WORKLOADS: usize = 6;

/// Classes and letters of the machines that ran training steps, the most capable class first.
fn machines_with_training<'a>(rows: &[&'a Row]) -> Vec<(usize, &'a str)> {
    let mut machines: Vec<(usize, &str)> = Vec::new();
    for row in rows.iter().filter(|r| r["group"] == "training step") {
        let class = CLASSES.iter().position(|c| *c == row["class"]).expect("a class");
        machines.push((class, row["machine"].as_str()));
    }
    machines.sort_unstable();
    machines.dedup();
    machines
}

/// Geometric mean of the ratios of a machine's training steps, and of how many steps it is.
fn mean(rows: &[&Row], machine: &str, precision: &str, with_tutorial: bool) -> (f64, usize) {
    let counts = |r: &&&Row| {
        r["group"] == "training step"
            && r["machine"] == machine
            && r["precision"] == precision
            && (with_tutorial || r["workload"] != TUTORIAL)
    };
    let ratios = rows.iter().filter(counts).filter_map(|r| r["ratio"].parse::<f64>().ok());
    let logs: Vec<f64> = ratios.map(f64::ln).collect();
    ((logs.iter().sum::<f64>() / logs.len() as f64).exp(), logs.len())
}

/// Geometric means of the training steps on each machine, with and without the tutorial's network, and the slower workloads.
fn ratios(rows: &[&Row]) -> String {
    let ratio = |r: &Row| r["ratio"].parse::<f64>().ok();
    let mut text = String::from(
        "| machine | float32, all six | without the tutorial | mixed_bfloat16, all six | without the tutorial |\n\
         |---|---|---|---|---|\n",
    );
    for (class, machine) in machines_with_training(rows) {
        let mut cells = Vec::new();
        for precision in ["float32", "mixed_bfloat16"] {
            for with_tutorial in [true, false] {
                let (mean, count) = mean(rows, machine, precision, with_tutorial);
                let whole = WORKLOADS - usize::from(!with_tutorial);
                let of = if count == whole { String::new() } else { format!(" (of {count})") };
                cells.push(format!("{mean:.2}{of}"));
            }
        }
        let (processor, class) = (processor(machine), CLASSES[class]);
        writeln!(text, "| {machine}, {processor}, `{class}` | {} |", cells.join(" | ")).expect("a string");
    }
    let mut slower: Vec<String> = Vec::new();
    for row in rows.iter().filter(|r| ratio(r).is_some_and(|x| x < 1.0)) {
        let (name, figure) = (
            format!("`{}` {}", row["workload"], row["precision"]),
            format!("{} {}", row["machine"], row["ratio"]),
        );
        match slower.last_mut() {
            Some(last) if last.starts_with(&name) => *last += &format!(", {figure}"),
            _ => slower.push(format!("{name} {figure}")),
        }
    }
    text + "\nSlower than the fastest of them (below 1): " + &slower.join("; ") + "\n"
}

#[test]
fn the_results_state_todays_ratios_and_name_the_losses() {
    let rows = measurements();
    let page = read(RESULTS);
    let (before, rest) = page.split_once("<!-- ratios -->\n").expect("the mark <!-- ratios -->");
    let (_, after) = rest.split_once("<!-- end -->").expect("the mark <!-- end -->");
    let generated = format!("{before}<!-- ratios -->\n{}<!-- end -->{after}", ratios(&newest(&rows)));
    same_or_bless(RESULTS, &generated);
}

/// The two headline numbers of the READMEs: the least and greatest mean of the machines that ran all six workloads, and the kills.
#[test]
fn headline_numbers_of_the_readmes_are_those_of_the_measurements() {
    let rows = measurements();
    let rows = newest(&rows);
    let mut numbers = Vec::new();
    for with_tutorial in [true, false] {
        let whole = WORKLOADS - usize::from(!with_tutorial);
        let means =
            machines_with_training(&rows).into_iter().map(|(_, m)| mean(&rows, m, "float32", with_tutorial));
        let means: Vec<f64> = means.filter(|(_, count)| *count == whole).map(|(mean, _)| mean).collect();
        let least = means.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = means.iter().copied().fold(0.0, f64::max);
        numbers.extend([format!("{least:.2}"), format!("{greatest:.2}")]);
    }
    numbers.extend(["1,005", "102"].map(String::from));
    for page in ["README.md", "README.zh-CN.md"] {
        let text = read(page);
        for number in &numbers {
            assert!(text.contains(number), "{page} does not say {number}");
        }
    }
}

/// Single measurements in the text of the results page are the newest ones.
#[test]
fn figures_in_the_results_are_those_of_the_measurements() {
    let rows = measurements();
    let rows = newest(&rows);
    let figure = |workload: &str, machine: &str, column: &str| {
        let of = |r: &&&Row| {
            r["workload"] == workload && r["machine"] == machine && !r["precision"].starts_with("mixed")
        };
        rows.iter().find(of).unwrap_or_else(|| panic!("{workload} on {machine}"))[column].clone()
    };
    let text = read(RESULTS);
    for (figure, what) in [
        (format!("{} ms", figure(TUTORIAL, "F", "ours")), "a step of Systole"),
        (format!("{} ms", figure(TUTORIAL, "F", "theirs")), "a step of Keras"),
        (format!("{} s", figure("clean release build", "F", "ours")), "the build on F"),
        (format!("{} s", figure("clean release build", "C", "ours")), "the build on C"),
    ] {
        assert!(text.contains(&figure), "{RESULTS} does not say {figure}: {what}");
    }
    let kills = read("docs/guide/reliability.md");
    let kills = kills.lines().filter(|l| l.contains("SYSTOLE_KILLS=1000")).collect::<String>();
    for number in ["1,005", "102"] {
        assert!(
            kills.contains(&format!("| {number} |")) && text.contains(number),
            "{RESULTS}: {number} kills"
        );
    }
}
