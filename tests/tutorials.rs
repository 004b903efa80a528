//! What docs/guide/tutorials.md shows as shell commands runs as it is printed; its Rust is the facade's doc-tests.

mod program;

use program::{Done, Folder};

#[test]
fn the_commands_of_the_page_run() {
    let f = Folder::with_data("tutorials-page");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/tutorials.md")).unwrap();
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
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/tutorials.md")).unwrap();
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
