//! `systole plan` as a user meets it.

mod program;

use program::Folder;
use serde_json::Value;

fn choice<'a>(plan: &'a Value, machine: &str) -> &'a Value {
    let found = plan["choices"].as_array().unwrap().iter().find(|c| c["machine"] == machine);
    found.unwrap_or_else(|| panic!("{machine} is not in {plan}"))
}

#[test]
fn the_tutorial_on_v2_is_limited_by_its_host_and_the_plan_says_so() {
    let f = Folder::new("plan-tutorial");
    let plan = f.run(&["plan", "fashion-mnist", "--targets", "v2-8,v5e-1,cpu", "--json"]).ok().json();
    let v2 = choice(&plan, "v2-8");
    let number = |key: &str| v2[key].as_f64().unwrap_or_else(|| panic!("{key}: {v2}"));
    assert!(number("host_seconds") > 0.0 && number("collective_seconds") > 0.0);
    let device = &v2["device_seconds"];
    assert!(device["low"].as_f64() <= device["likely"].as_f64());
    assert!(device["likely"].as_f64() <= device["high"].as_f64());
    assert_eq!(
        (&v2["validated"], &v2["estimator"], &v2["fits"]),
        (&false.into(), &"analytic".into(), &true.into())
    );
    let parts: f64 = v2["hbm"].as_object().unwrap().values().map(|p| p.as_f64().unwrap()).sum();
    assert!((parts - number("hbm_bytes")).abs() < 1.0, "{v2}");
    // 5 epochs of 60 steps on 4 chips at $1.125 an hour; the price is from 2018.
    assert_eq!(plan["steps"], 300.0);
    assert_eq!(
        (&v2["price"]["dollars_per_hour"], &v2["price"]["older_than_a_year"]),
        (&4.5.into(), &true.into())
    );
    let seconds = v2["run_seconds"]["likely"].as_f64().unwrap().ceil();
    assert!((number("dollars") - 4.5 * seconds / 3600.0).abs() < 1e-9, "{v2}");
    assert_eq!(choice(&plan, "this CPU")["dollars"], 0.0);
    assert!(plan["advice"]["machine"].is_string() && plan["advice"]["reasons"][0].is_string(), "{plan}");
}

#[test]
fn a_product_takes_what_its_operations_need() {
    let f = Folder::new("plan-matmul");
    let args =
        ["plan", "--matmul", "8192x8192x8192", "--dtype", "bf16", "--targets", "v5e-1,v6e-1", "--json"];
    let plan = f.run(&args).ok().json();
    for (machine, peak) in [("v5litepod-1", 197e12), ("v6e-1", 918e12)] {
        let c = choice(&plan, machine);
        let ideal = 2.0 * 8192f64.powi(3) / peak;
        let likely = c["device_seconds"]["likely"].as_f64().unwrap();
        assert!(likely > ideal && likely < 1.25 * ideal, "{machine}: {likely} against {ideal}");
        assert_eq!(c["limit"], "MXU");
    }
    let text = f.run(&["plan", "--matmul", "8192x8192x8192", "--targets", "v5e-1", "--explain"]).ok().out;
    assert!(text.contains("not validated") && text.contains("Source:"), "{text}");
}

#[test]
fn what_does_not_fit_says_by_how_much_and_what_would() {
    let f = Folder::new("plan-memory");
    let args = ["plan", "fashion-mnist", "--batch-size", "60000", "--targets", "v5e-1", "--json"];
    let plan = f.run(&args).ok().json();
    let c = choice(&plan, "v5litepod-1");
    assert_eq!(c["fits"], false, "{c}");
    assert!(plan["advice"]["machine"].is_null());
    let text = f.run(&args[..6]).ok().out;
    assert!(text.contains("too large by") && text.contains("a batch of about"), "{text}");
}

#[test]
fn layers_tell_padding_and_its_remedy() {
    let f = Folder::new("plan-layers");
    let text = f.run(&["plan", "fashion-mnist", "--targets", "v2-8", "--layers"]).ok().out;
    assert!(text.contains("conv2d") && text.contains("padded to 128"), "{text}");
}

#[test]
fn pages_and_tables_of_ones_own() {
    let f = Folder::new("plan-html");
    let mine = "[[price]]\nchip = 'v5e'\nregion = 'here'\non_demand = 0.5\ndate = '2026-11-01'\nsource = 'a contract'\n";
    f.write("mine.toml", mine);
    let args = [
        "plan",
        "mlp",
        "--targets",
        "v5e-1",
        "--tables",
        "mine.toml",
        "--region",
        "here",
        "--html",
        "plan.html",
    ];
    f.run(&args).ok();
    let page = std::fs::read_to_string(f.path("plan.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<td>0.50</td>"), "{page}");
}

#[test]
fn mistakes_are_told() {
    let f = Folder::new("plan-mistakes");
    f.run(&["plan", "mlp", "--targets", "v5p-7"]).fails(2, &["v5p-7", "v5p-8"]);
    f.run(&["plan", "mlp", "--targets", "9*h100"]).fails(2, &["8*h100"]);
    f.run(&["plan", "mpl"]).fails(2, &["did you mean `mlp`"]);
    f.run(&["plan", "--matmul", "3x4"]).fails(2, &["4096x4096x4096"]);
    let split = f.run(&["plan", "mlp", "--batch-size", "4", "--targets", "v5e-16"]).ok().out;
    assert!(split.contains("cannot be split over 16 devices"), "{split}");
}

/// The names that plans take are those that programs are compiled for.
#[test]
fn both_tables_of_slices_agree() {
    let tables = systole_plan::Tables::built_in().unwrap();
    for s in systole_plan::Slice::all(&tables) {
        let other: systole_runtime::Slice =
            s.libtpu(&tables).parse().unwrap_or_else(|e| panic!("{}: {e}", s.name));
        assert_eq!((other.chips(), other.devices()), (s.chips, s.devices), "{}", s.name);
    }
}
