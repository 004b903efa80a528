//! Tests of `report.html`, written at the end of a run: it is complete, self-contained and escaped, and a failure to
//! write it does not fail the run.

use crate::program::{Folder, TINY};
use std::collections::BTreeSet;

const OWN: [&str; 4] = ["train", "fashion-mnist", "--data-dir=data", "--set=fit.validation_freq=1"];
/// Elements that HTML never closes.
const VOID: [&str; 3] = ["meta", "link", "img"];

fn page(f: &Folder, run: &str) -> String {
    std::fs::read_to_string(f.path(&format!("{run}/report.html"))).unwrap()
}

/// Fails where an element is not closed in its turn, an attribute is not quoted, or a bare `&` stands in the text; the elements' names.
fn well_formed(html: &str) -> BTreeSet<String> {
    let mut open: Vec<String> = Vec::new();
    let mut names = BTreeSet::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a document type");
    while let Some((text, tail)) = rest.split_once('<') {
        assert!(!text.contains('>') || open.last().is_some_and(|o| o == "style"), "a bare > in {text:?}");
        for (i, _) in text.match_indices('&') {
            let entity = text[i + 1..].split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&entity), "&{entity}");
        }
        let (tag, tail) = tail.split_once('>').expect("the end of a tag");
        rest = tail;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed out of turn");
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |t| (t, true));
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split_whitespace().next().unwrap().to_string();
        names.insert(name.clone());
        if !is_empty {
            assert!(!VOID.contains(&name.as_str()), "{tag}");
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest:?}");
    names
}

/// Nothing is fetched, run or asked for.
fn self_contained(html: &str, names: &BTreeSet<String>) {
    for name in ["script", "iframe", "object", "embed", "form", "base", "video", "audio"] {
        assert!(!names.contains(name), "{name}");
    }
    for attribute in ["src=\"", "href=\"", "url(", "@import", "srcset="] {
        for (i, _) in html.match_indices(attribute) {
            let to = &html[i + attribute.len()..][..5];
            assert!(to.starts_with('#') || to == "data:", "{attribute}{to}…");
        }
    }
    assert!(html.contains("default-src 'none'"));
    assert!(html.contains("prefers-color-scheme:dark") && html.contains("width=device-width"));
    assert!(!html.contains("NaN"), "a number that is none");
}

fn sections(html: &str) -> Vec<&str> {
    html.match_indices("<section id=\"")
        .map(|(i, s)| html[i + s.len()..].split('"').next().unwrap())
        .collect()
}

#[test]
fn a_run_leaves_a_page_that_needs_nothing_else() {
    let f = Folder::with_data("report");
    let args = ["--json", "--out", "run", "--one-cycle=0.01", "--moms=0.9,0.8,0.9", "--profile"];
    let done = f.run(&[&OWN[..], &TINY, &args].concat()).ok();
    let told = done.json();
    assert_eq!(told["report"], "run/report.html");
    assert!(done.err.contains("Report: run/report.html"), "{}", done.err);
    let html = page(&f, "run");
    self_contained(&html, &well_formed(&html));
    let all = [
        "curves",
        "schedule",
        "confusion",
        "mistakes",
        "layers",
        "time",
        "data",
        "configuration",
        "machine",
        "reproduce",
    ];
    assert_eq!(sections(&html), all);
    // What was measured is what is shown.
    let accuracy = told["val_sparse_categorical_accuracy"].as_f64().unwrap();
    assert!(html.contains(&format!("<span class=\"value\">{accuracy:.4}</span>")), "{accuracy}");
    assert!(html.contains("data:image/png;base64,iVBORw0KGgo") && html.contains("learning rate by step"));
    assert!(html.contains("momentum by step"));
    assert!(html.contains("compute-bound") || html.contains("input-bound"));
    assert!(
        html.contains("--one-cycle=0.01 --moms=0.9,0.8,0.9 --profile")
            && html.contains("type = &quot;OneCycle&quot;")
    );
    assert!(html.contains("By layer") && html.contains("kernels of train step"), "the profile is part of it");
    // Each test picture is counted once.
    let (right, told) = html.split_once(" of 32 are correct").unwrap();
    let right: f64 = right.rsplit(' ').next().unwrap().rsplit('>').next().unwrap().parse().unwrap();
    assert!((right / 32.0 - accuracy).abs() < 1e-6, "{right} of 32, {accuracy}: {}", &told[..20]);
}

#[test]
fn names_of_classes_cannot_leave_their_place() {
    let f = Folder::new("report-escapes");
    for class in ["<img src=x onerror=alert(1)>", "a\"b&'c"] {
        for i in 0..6u8 {
            let pixels: Vec<u8> = (0..64u8).map(|k| (k * 3).wrapping_add(i * 20)).collect();
            let picture = systole_ir::Literal::from_slice([8, 8, 1], &pixels).unwrap();
            f.write(
                &format!("pictures/{class}/{i}.png"),
                systole_data::format::png::to_bytes(&picture).unwrap(),
            );
        }
    }
    f.run(&["train", "pictures", "--epochs=1", "--batch-size=4", "--out", "run", "--quiet"]).ok();
    let html = page(&f, "run");
    let names = well_formed(&html);
    self_contained(&html, &names);
    assert!(html.contains("&lt;img src=x onerror=alert(1)&gt;"));
}

#[test]
fn three_doors_leave_it_out_and_nothing_else_changes() {
    let f = Folder::with_data("report-without");
    let train =
        |out: &str, more: &[&str]| f.run(&[&OWN[..], &TINY, &["--out", out, "--quiet"], more].concat()).ok();
    train("with", &[]);
    train("flag", &["--no-report"]);
    let done = train("key", &["--set=fit.report=false"]);
    assert!(!done.out.contains("Report:"), "{}", done.out);
    let model = |run: &str| std::fs::read(f.path(&format!("{run}/fashion-mnist.safetensors"))).unwrap();
    assert!(f.path("with/report.html").is_file());
    for run in ["flag", "key"] {
        assert!(!f.path(&format!("{run}/report.html")).exists());
        assert!(model(run) == model("with"), "the model is the same");
    }
    // It is no other run: the folder's goes on.
    let again = train("flag", &[]);
    assert!(again.out.contains("finished") && f.path("flag/report.html").is_file(), "{}", again.out);
}

#[test]
fn a_page_that_cannot_be_written_ends_no_run() {
    let f = Folder::with_data("report-fails");
    std::fs::create_dir_all(f.path("run/report.html/in the way")).unwrap();
    let done = f.run(&[&OWN[..], &TINY, &["--out", "run", "--json"]].concat()).ok();
    assert!(done.err.contains("cannot write the report"), "{}", done.err);
    assert!(done.json()["report"].is_null() && f.path("run/fashion-mnist.safetensors").is_file());
}

#[test]
#[cfg(unix)]
fn a_stopped_run_has_its_page_too() {
    use std::process::Stdio;
    use std::time::Duration;
    let f = Folder::with_data("report-stopped");
    let args = [&OWN[..], &TINY[..1], &["--epochs=100000", "--batch-size=16", "--out", "run"]].concat();
    let child = f.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !f.path("run/backups").is_dir() || f.files("run/backups").is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let kill = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(143));
    let html = page(&f, "run");
    self_contained(&html, &well_formed(&html));
    assert!(
        html.contains("Stopped on request") && sections(&html).contains(&"curves"),
        "{:?}",
        sections(&html)
    );
}
