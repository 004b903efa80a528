//! Tests of `systole selftest` on the CPU engine, on the interpreter and through a PJRT plugin.

use crate::program::Folder;
use serde_json::Value;
use std::path::PathBuf;

const SHORT: [&str; 3] = ["selftest", "--steps=12", "--batch-size=8"];

/// The workspace's own plugin, which `cargo test --workspace` builds.
fn plugin() -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file())
}

fn report(f: &Folder, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(f.path(name)).unwrap()).unwrap()
}

#[test]
fn the_engine_passes_and_the_report_says_what_was_tested() {
    let f = Folder::new("selftest");
    let done = f.run(&[&SHORT[..], &["--device=cpu"]].concat()).ok();
    assert!(done.out.contains("selftest on cpu: passed"), "{}", done.out);
    let o = report(&f, "systole-selftest-cpu.json");
    assert_eq!((&o["passed"], o["failures"].as_array().unwrap().len()), (&true.into(), 0), "{o}");
    let ops = &o["results"]["ops"];
    assert!(ops["samples"].as_u64().unwrap() > 1000 && ops["equal"] == ops["samples"], "{ops}");
    let training = &o["results"]["training"];
    assert_eq!(training["losses"], training["losses_of_the_cpu"]);
    assert!(o["results"]["speed"]["steps"][0]["ms_per_step"].as_f64().unwrap() > 0.0);
    // Nothing of this machine's names.
    let text = o.to_string();
    assert!(!text.contains(&f.0.display().to_string()), "{text}");
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was skipped")]
fn a_plugin_passes_by_its_file() {
    let Some(library) = plugin() else {
        println!("SKIPPED a_plugin_passes_by_its_file: `cargo build -p systole-plugin` was not run");
        return;
    };
    let f = Folder::new("selftest-plugin");
    let device = format!("--device=pjrt:{}", library.display());
    let o = f.run(&[&SHORT[..], &[&device, "--report=r.json", "--json", "-q"]].concat()).ok().json();
    assert_eq!((&o["passed"], &o["results"]["machine"]["backend"]), (&true.into(), &"pjrt".into()), "{o}");
    assert_eq!(o, report(&f, "r.json"));
    assert!(!o.to_string().contains(&library.parent().unwrap().display().to_string()), "{o}");
}

#[test]
fn what_is_missing_hangs_or_dies_is_in_the_report() {
    let f = Folder::new("selftest-fails");
    f.write("no.so", "no library");
    let done = f.run(&[&SHORT[..], &["--device=pjrt:no.so"]].concat());
    assert_eq!(done.code, Some(1), "{}", done.err);
    let o = report(&f, "systole-selftest-pjrt.json");
    assert_eq!((&o["passed"], &o["failures"][0]["check"]), (&false.into(), &"device".into()), "{o}");
    assert!(o["summary"][1].as_str().unwrap().contains("not reached"), "{o}");
    // The interpreter takes far longer for a step of these.
    let slow = ["selftest", "--device=ref", "--batch-size=2000", "--time-limit=6"];
    assert_eq!(f.run(&slow).code, Some(1));
    let o = report(&f, "systole-selftest-ref.json");
    assert_eq!(o["failures"][0]["check"], "training, step 1", "{o}");
    assert!(o["failures"][0]["what"].as_str().unwrap().contains("no check finished within 6 s"), "{o}");
    assert!(o["results"]["ops"]["wrong"] == 0, "{o}");
}
