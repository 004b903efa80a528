//! Tests of docs/guide/tutorials.md: its shell commands run as printed, and so does every line with the status "runs".
//! Its Rust code is tested by the doc-tests of the facade crate.

#![allow(clippy::print_stdout, reason = "says what each line took")]

mod lines;
mod rust;

use crate::program::{Done, Folder};

#[test]
fn the_commands_of_the_page_run() {
    let f = Folder::with_data("tutorials-page");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/tutorials.md"))
        .unwrap();
    let (mut inside, mut ran) = (false, 0);
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], "systole", "{line}");
            let output = f.command(&words[1..]).env("SYSTOLE_DATA", f.path("data")).output().unwrap();
            Done::of(output, &words[1..]).ok();
            ran += 1;
        }
    }
    assert!(ran >= 11, "the page shows only {ran} commands");
}

/// Every line of the tables has one of the words that the page promises.
#[test]
fn every_line_has_a_status() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/tutorials.md"))
        .unwrap();
    let rows = page.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| taught"));
    let known = ["runs", "compiles", "retired", "not offered", "not run yet", "estimated"];
    let mut n = 0;
    for row in rows {
        let status = row.trim_end_matches('|').rsplit('|').next().unwrap().trim();
        assert!(known.iter().any(|k| status.starts_with(k)), "{row}");
        n += 1;
    }
    assert!(n > 50, "{n} lines");
}

/// The length of a plan's run, and the cells of a machine's line.
fn cells(f: &Folder, args: &str, machine: &str) -> Vec<String> {
    let args: Vec<&str> = args.split_whitespace().collect();
    let out = f.run(&args).ok().out;
    let line = out.lines().find(|l| l.starts_with(machine)).unwrap_or_else(|| panic!("no {machine}:\n{out}"));
    let cells = line.split("  ").map(str::trim).filter(|c| !c.is_empty());
    // The title can take two lines.
    let steps = out.lines().find(|l| l.ends_with(" steps"));
    steps.into_iter().chain(cells).map(String::from).collect()
}

/// The two runs that the tutorials print a time of: each slice that the page names has a line, and what the guide says of
/// them is what the plan says.
#[test]
fn printed_runs_stand_beside_the_plans_own_figures() {
    let f = Folder::new("tutorials-printed");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/plan.md")).unwrap();
    let row = |begin: &str| page.lines().find(|l| l.starts_with(begin)).unwrap();
    let pod = "plan resnet50 --targets v2-256,v2-512,v3-512,v3-1024 --batch-size 32768 --precision mixed_bfloat16 --epochs 90";
    for slice in ["v2-256", "v2-512", "v3-512", "v3-1024"] {
        assert!(cells(&f, pod, slice).contains(&"yes".to_string()), "{slice} is planned");
    }
    let cells_of = [
        ("| ResNet-50 on a v2-512 pod", cells(&f, pod, "v2-512"), "3,519 steps"),
        (
            "| a CNN on CIFAR-10 on a V100",
            cells(&f, "plan cifar-cnn --targets v100 --epochs 1", "v100"),
            "391 steps",
        ),
        (
            "| ResNet-50, 90 epochs on eight V100",
            cells(
                &f,
                "plan resnet50 --targets 8*v100 --batch-size 2048 --precision mixed_float16 --epochs 90",
                "8*v100",
            ),
            "56,302 steps",
        ),
        (
            "| BigGAN on 1,024 TPU v3 cores",
            cells(&f, "plan biggan128 --targets v3-1024 --batch-size 16384 --steps 150000", "v3-1024"),
            "150,000 steps",
        ),
    ];
    for (begin, cells, steps) in cells_of {
        assert!(cells[0].ends_with(steps), "{cells:?}");
        let said: Vec<&String> = cells.iter().filter(|c| c.ends_with(" ms") || c.ends_with(" min")).collect();
        assert!(!said.is_empty() && said.iter().all(|c| row(begin).contains(*c)), "{begin}: {said:?}");
        assert!(row(begin).contains(steps), "{begin}: {steps}");
    }
    // The printed times are in the estimates' ranges.
    for (begin, hours) in
        [("| ResNet-50, 90 epochs on eight V100", 3.6), ("| BigGAN on 1,024 TPU v3 cores", 14.0)]
    {
        let machine = if hours == 14.0 { "v3-1024" } else { "8*v100" };
        let command = row(begin).split('`').nth(1).unwrap().strip_prefix("systole ").unwrap().to_string();
        let json = f.run(&[command.split(' ').collect(), vec!["--json"]].concat()).ok().json();
        let choice = json["choices"].as_array().unwrap().iter().find(|c| c["machine"] == machine).unwrap();
        let limits = ["low", "high"].map(|end| choice["run_seconds"][end].as_f64().unwrap() / 3600.0);
        assert!(limits[0] < hours && hours < limits[1], "{begin}: {limits:?}");
    }
    let cost = cells(&f, pod, "v2-512").pop().unwrap();
    assert!(row("| ResNet-50 on a v2-512 pod").contains(&cost), "{cost}");
}

/// Prices that the tutorials print are those of the tables.
#[test]
fn printed_prices_are_in_the_tables() {
    let f = Folder::new("tutorials-prices");
    let out = f.run(&["chips", "v2"]).ok().out;
    for (place, price) in [
        ("v2-8, United States", "4.5"),
        ("v2-8, Europe", "4.95"),
        ("v2-8, Asia-Pacific", "5.22"),
        ("v2-8 preemptible, United States", "1.35"),
        ("v2-8 preemptible, Europe", "1.485"),
        ("v2-8 preemptible, Asia-Pacific", "1.566"),
    ] {
        assert!(out.contains(&format!("{place}: {price} $/h; table value {price} $/h")), "{place}\n{out}");
    }
}
