//! `systole plan` as a user meets it.

mod program;

use program::Folder;
use serde_json::Value;
use systole::config::Draft;
use systole_plan::{Cpu, Half, Machine, Tables, Work, analytic};

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
    let told = v2["notes"].to_string();
    assert!(told.contains("printed 11.00 ms a step") && told.contains("was host"), "{told}");
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
fn a_slow_pipeline_or_a_slow_start_is_what_limits() {
    let f = Folder::new("plan-host");
    let plan = |more: &[&str]| {
        let args = [&["plan", "fashion-mnist", "--targets", "v5e-4", "--json"], more].concat();
        choice(&f.run(&args).ok().json(), "v5litepod-4").clone()
    };
    let fed = plan(&["--input-rate", "10000"]);
    assert_eq!((&fed["limit"], &fed["host"]["pipeline"]), (&"host input".into(), &0.1.into()), "{fed}");
    let slow = plan(&["--dispatch", "9"]);
    assert_eq!(
        (&slow["limit"], &slow["host"]["dispatch"]),
        (&"host dispatch".into(), &0.009.into()),
        "{slow}"
    );
    assert!(slow["step_seconds"]["likely"].as_f64() > Some(0.009));
    assert!(plan(&[])["host"]["pipeline"].is_null());
}

#[test]
fn sharded_weights_need_less_memory_and_more_of_the_links() {
    let f = Folder::new("plan-sharded");
    let plan = |strategy: &str| {
        let args = [
            "plan",
            "gpt2-small",
            "--batch-size",
            "16",
            "--targets",
            "v5e-16",
            "--strategy",
            strategy,
            "--json",
        ];
        choice(&f.run(&args).ok().json(), "v5litepod-16").clone()
    };
    let (whole, parts) = (plan("data_parallel"), plan("fully_sharded"));
    let number = |c: &Value, part: &str| c["hbm"][part].as_f64().unwrap();
    for part in ["parameters", "optimizer"] {
        assert!((number(&whole, part) / number(&parts, part) - 16.0).abs() < 1e-6, "{part}: {whole} {parts}");
    }
    let collective = |c: &Value| c["collective_seconds"].as_f64().unwrap();
    assert!((collective(&parts) / collective(&whole) - 1.5).abs() < 1e-6);
    let args = ["plan", "mlp", "--targets", "v5e-4", "--mesh", "data=4"];
    f.run(&args).fails(2, &["--compiled"]);
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

/// Steps of the machine and the day of docs/log/2026-11-22.md (machine B, 2 threads, float32), in milliseconds, beside what
/// the model makes of that machine's ceilings. The ceiling of its L2 caches is not in that page: 2 × 64 bytes a cycle
/// at 3.8 GHz is 486 GB/s, of which loads and stores that take turns reach less than half.
#[test]
fn steps_of_a_cpu_are_within_a_factor_of_two_of_those_measured() {
    let cpu = Cpu {
        flops: 445e9,
        bf16_flops: 445e9,
        tiers: vec![(2.1e6, 200e9), (26e6, 52e9), (f64::INFINITY, 23e9)],
        threads: 2,
        memory: 2e10,
    };
    let tables = Tables::built_in().unwrap();
    let measured = [
        ("fashion-mnist", 10.46),
        ("mlp", 1.10),
        ("cifar-cnn", 132.3),
        ("lstm", 222.6),
        ("resnet50", 16.0 / 9.064 * 1e3),
        ("gpt2-small", 4.0 * 256.0 / 387.7 * 1e3),
    ];
    for (preset, ms) in measured {
        let config = Draft::preset(preset).unwrap().finish().map_err(|r| r.error).unwrap();
        let graph = config.untrained().unwrap().train_graph(config.fit.batch_size).unwrap();
        let step = analytic(&Work::of(&graph), &Machine::Cpu(cpu.clone()), &tables, Half::Bf16).unwrap();
        let ratio = step.device.likely * 1e3 / ms;
        assert!(ratio > 0.5 && ratio < 2.0, "{preset}: {ratio:.2} of {ms} ms");
    }
}
