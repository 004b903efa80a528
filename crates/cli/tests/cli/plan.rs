//! End-to-end tests of `systole plan`.

use crate::program::Folder;
use serde_json::Value;
use systole::config::ConfigDraft;
use systole_plan::{ChipTables, CpuCeilings, HalfType, KernelList, Machine, analytic};

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
    assert!(told.contains("printed 11.00 ms per step") && told.contains("was host"), "{told}");
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
    f.run(&args).fails("usage", &["--compiled"]);
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
    assert!(text.contains("too large by") && text.contains("a batch size of about"), "{text}");
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
    f.run(&["plan", "mlp", "--targets", "v5p-7"]).fails("usage", &["v5p-7", "v5p-8"]);
    f.run(&["plan", "mlp", "--targets", "9*h100"]).fails("usage", &["8*h100"]);
    f.run(&["plan", "mpl"]).fails("usage", &["`mlp`"]);
    f.run(&["plan", "--matmul", "3x4"]).fails("usage", &["4096x4096x4096"]);
    let split = f.run(&["plan", "mlp", "--batch-size", "4", "--targets", "v5e-16"]).ok().out;
    assert!(split.contains("cannot be split over 16 devices"), "{split}");
}

/// Compares the model with steps measured in milliseconds on Intel Cascade Lake (2 threads, float32, 2026-11-22). The peak rates are
/// those of docs/results/machines.md. The bandwidth of the L2 caches is not on that page: 2 × 64 bytes per cycle at
/// 3.8 GHz is 486 GB/s, of which alternating loads and stores reach less than half.
#[test]
fn steps_of_a_cpu_are_within_a_factor_of_two_of_those_measured() {
    let cpu = CpuCeilings {
        flops: 445e9,
        bf16_flops: 445e9,
        tiers: vec![(2.1e6, 200e9), (26e6, 52e9), (f64::INFINITY, 23e9)],
        threads: 2,
        memory: 2e10,
    };
    let tables = ChipTables::built_in().unwrap();
    let measured = [
        ("fashion-mnist", 10.46),
        ("mlp", 1.10),
        ("cifar-cnn", 132.3),
        ("lstm", 222.6),
        ("resnet50", 16.0 / 9.064 * 1e3),
        ("gpt2-small", 4.0 * 256.0 / 387.7 * 1e3),
    ];
    for (preset, ms) in measured {
        let config = ConfigDraft::preset(preset).unwrap().finish().map_err(|r| r.error).unwrap();
        let graph = config.untrained().unwrap().train_graph(config.fit.batch_size).unwrap();
        let step =
            analytic(&KernelList::of(&graph), &Machine::Cpu(cpu.clone()), &tables, HalfType::Bf16).unwrap();
        let ratio = step.device.likely * 1e3 / ms;
        assert!(ratio > 0.5 && ratio < 2.0, "{preset}: {ratio:.2} of {ms} ms");
    }
}

/// Lines of a plan as a user of a usual terminal sees them.
#[test]
fn what_plan_prints_fits_100_columns() {
    let f = Folder::new("plan-width");
    let v = "v2-8,v3-2048,2*v5e-256,v5litepod-256,tpu7x-16x24x24,v4:4x4x192,8*h100,b200";
    let runs: [&[&str]; 5] = [
        &["plan", "fashion-mnist", "--batch-size", "36864", "--targets", v, "--explain", "--layers"],
        &["plan", "resnet50", "--targets", "v3-8,v3-32,v2-512,v100", "--explain"],
        &["plan", "mlp", "--spot", "--budget", "0.001", "--region", "mars"],
        &["plan", "fashion-mnist", "--batch-size", "60000", "--targets", "v5e-1,v2-8", "--layers"],
        &["chips"],
    ];
    for args in runs {
        let text = f.run(args).ok().out;
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{args:?}: {} columns: {line}", line.chars().count());
        }
    }
    // --wide has what there was no room for.
    let wide = f.run(&["plan", "mlp", "--targets", "v2-8,v100", "--wide"]).ok().out;
    for part in ["MFU", "samples/J", "hosts $/h", "cost (spot)", " to "] {
        assert!(wide.contains(part), "{part}: {wide}");
    }
}

/// The tutorials' run on a pod: 90 epochs of ImageNet's size.
#[test]
fn epochs_of_resnet50_are_those_of_imagenet() {
    let f = Folder::new("plan-imagenet");
    let args = [
        "plan",
        "resnet50",
        "--targets",
        "v2-512",
        "--batch-size",
        "32768",
        "--precision",
        "mixed_bfloat16",
        "--epochs",
        "90",
    ];
    let plan = f.run(&[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!((&plan["samples"], &plan["epochs"]), (&1_281_167.into(), &90.into()));
    assert_eq!(plan["steps"], (90.0 * 1_281_167.0 / 32_768.0_f64).ceil());
    let c = choice(&plan, "v2-512");
    let minutes = c["run_seconds"]["likely"].as_f64().unwrap() / 60.0;
    // 7.9 minutes were printed.
    assert!(minutes > 4.0 && minutes < 20.0, "{minutes} minutes");
    // A pod costs $384 an hour, billed by the second.
    let dollars = c["dollars"].as_f64().unwrap();
    assert!((dollars - 384.0 * (minutes * 60.0).ceil() / 3600.0).abs() < 1e-6, "{dollars}");
    let text = f.run(&args).ok().out;
    assert!(text.contains("90 epochs of 1,281,167 samples") && text.contains("3,519 steps"), "{text}");
    let fewer = f.run(&[&args[..], &["--samples", "327680", "--json"]].concat()).ok().json();
    assert_eq!((&fewer["steps"], &fewer["samples_from"]), (&900.0.into(), &"--samples".into()));
    // A file of one's own means its own samples.
    f.run(&["init", "resnet50", "--out", "mine.toml"]).ok();
    let mine = f.run(&["plan", "mine.toml", "--targets", "v2-8", "--json"]).ok().json();
    assert_eq!((&mine["samples"], &mine["steps"]), (&1600.into(), &100.0.into()));
}

#[test]
fn what_has_no_price_keeps_to_no_limits() {
    let f = Folder::new("plan-unpriced");
    let plan = |more: &[&str]| {
        let args = [&["plan", "mlp", "--targets", "tpu7x-2x2x1", "--json"], more].concat();
        let told = f.run(&args).ok().json()["advice"].clone();
        (told["machine"].clone(), told["reasons"].to_string())
    };
    let (machine, told) = plan(&[]);
    assert_eq!(machine, "tpu7x-2x2x1");
    assert!(told.contains("price is unknown") && !told.contains("limits"), "{told}");
    let (machine, told) = plan(&["--budget", "1000"]);
    assert!(machine.is_null() && told.contains("unknown") && !told.contains("no option fits"), "{told}");
}

#[test]
fn a_batch_that_does_not_divide_is_no_lack_of_memory() {
    let f = Folder::new("plan-divide");
    let text = f.run(&["plan", "mlp", "--batch-size", "16", "--targets", "v3-32,v2-512"]).ok().out;
    assert!(!text.contains("memory") && text.contains("--batch-size 32"), "{text}");
    let some = f.run(&["plan", "mlp", "--batch-size", "16", "--targets", "v3-32,v2-8"]).ok().out;
    assert!(some.contains("cannot be split over 32 devices") && some.contains("v2-8: "), "{some}");
}

#[test]
fn options_of_training_say_nothing_of_programs() {
    let f = Folder::new("plan-program");
    for option in [["--epochs", "3"], ["--samples", "9"], ["--batch-size", "4"], ["--precision", "float32"]] {
        let args = [&["plan", "--matmul", "64x64x64", "--targets", "v2-8"], &option[..]].concat();
        f.run(&args).fails("usage", &[option[0], "--steps"]);
    }
    let text = f.run(&["plan", "--matmul", "64x64x64", "--targets", "v2-8"]).ok().out;
    assert!(text.contains("--steps N") && !text.contains("limits"), "{text}");
}

#[test]
fn energy_is_joules_and_samples_for_a_joule_or_a_question_mark() {
    let f = Folder::new("plan-energy");
    let args = ["plan", "mlp", "--targets", "v2-8,v5e-1,h100", "--steps", "1"];
    let plan = f.run(&[&args[..], &["--json"]].concat()).ok().json();
    let v2 = &choice(&plan, "v2-8")["energy"];
    let number = |key: &str| v2[key].as_f64().unwrap_or_else(|| panic!("{key}: {v2}"));
    assert_eq!(number("watts"), 4.0 * 280.0);
    assert!((number("samples_per_joule") * number("joules_per_step") / 128.0 - 1.0).abs() < 1e-9, "{v2}");
    assert_eq!(number("run_joules"), number("joules_per_step"));
    assert!(choice(&plan, "v5litepod-1")["energy"].is_null(), "nobody published the watts of v5e");
    for more in ["--explain", "--wide"] {
        let text = f.run(&[&args[..], &[more]].concat()).ok().out;
        assert!(!text.contains("kWh") && !text.contains(" 0.000 ") && text.contains('?'), "{text}");
    }
    let text = f.run(&[&args[..], &["--explain"]].concat()).ok().out;
    assert!(text.contains("energy: ? (its power") && text.contains("samples per joule"), "{text}");
    assert!(!text.to_lowercase().contains("from memory"), "{text}");
}

/// No matrix unit of a TPU multiplies f16: libtpu converts it, at no cost on v2 and v3 and at some later. V100s
/// multiply nothing else of 16 bits.
#[test]
fn f16_is_no_faster_than_bf16_on_tpus_and_a_note_says_why() {
    let f = Folder::new("plan-f16");
    let plan = |dtype: &str, machines: &str| {
        f.run(&["plan", "--matmul", "8192x8192x8192", "--dtype", dtype, "--targets", machines, "--json"])
            .ok()
            .json()
    };
    let machines = "v2-8,v4-8,v5e-1,v6e-1,tpu7x-2x2x1,v100";
    let (bf16, f16) = (plan("bf16", machines), plan("f16", machines));
    let times = |machine: &str| {
        let of = |p: &Value| choice(p, machine)["device_seconds"]["likely"].as_f64().unwrap();
        of(&f16) / of(&bf16)
    };
    // As libtpu 0.0.52 estimates the same products.
    for (machine, compiler) in
        [("v2-8", 1.0), ("v4-8", 1.14), ("v5litepod-1", 1.02), ("v6e-1", 1.06), ("tpu7x-2x2x1", 1.17)]
    {
        assert!((times(machine) - compiler).abs() < 0.03, "{machine}: {}", times(machine));
        let notes = choice(&f16, machine)["notes"].to_string();
        assert!(notes.contains("f16") && notes.contains("bf16"), "{machine}: {notes}");
        assert!(!choice(&bf16, machine)["notes"].to_string().contains("f16 "), "{machine}");
    }
    assert!(times("v100") < 0.3 && !choice(&f16, "v100")["notes"].to_string().contains("f16"));
}

#[test]
fn a_chip_without_bf16_says_what_is_planned_instead() {
    let f = Folder::new("plan-bf16");
    let mine = "[[gpu]]\nname = 'old'\nproduct = 'Old'\npeak_tflops = { f16 = 100, f32 = 10 }\nmemory_gb = 24\n\
        memory_gb_per_s = 300\nlink_gb_per_s = 0\nwatts = 72\n";
    f.write("mine.toml", mine);
    let plan = |args: &[&str]| {
        let targets = ["--targets=v100,p100,h100,v5e-1,old", "--tables=mine.toml", "--steps=1", "--json"];
        f.run(&[&["plan"], args, &targets[..]].concat()).ok().json()
    };
    let notes = |plan: &Value, machine: &str| choice(plan, machine)["notes"].to_string();
    let bf16 = plan(&["mlp", "--precision=mixed_bfloat16"]);
    for (machine, rates) in [("v100", [15.7, 125.0]), ("p100", [10.6, 21.2]), ("old", [10.0, 100.0])] {
        let said = notes(&bf16, machine);
        for part in [
            &format!("no bf16 units: planned as f32 at {} TFLOP/s", rates[0]),
            &format!("--precision mixed_float16 uses its f16 units ({} TFLOP/s)", rates[1]),
        ] {
            assert!(said.contains(part), "{machine}: {said}");
        }
    }
    for machine in ["h100", "v5litepod-1"] {
        assert!(!notes(&bf16, machine).contains("bf16 units"), "{machine}");
    }
    let f16 = plan(&["mlp", "--precision=mixed_float16"]);
    assert!(!notes(&f16, "old").contains("planned as f32"), "{f16}");
    // A product alone: bf16 takes ten times as long as f16, not the same time.
    let product = |dtype: &str| plan(&["--matmul=8192x8192x8192", "--dtype", dtype]);
    let (bf16, f16, i8) = (product("bf16"), product("f16"), product("i8"));
    let seconds = |p: &Value| choice(p, "old")["device_seconds"]["likely"].as_f64().unwrap();
    assert!(seconds(&bf16) > 8.0 * seconds(&f16), "{bf16} {f16}");
    assert!(notes(&bf16, "old").contains("f16 uses its f16 units"), "{bf16}");
    assert!(notes(&i8, "h100").contains("at the rate of 16-bit products"), "{i8}");
}

#[test]
fn the_page_shows_more_than_the_table() {
    let f = Folder::new("plan-page");
    let args = [
        "plan",
        "fashion-mnist",
        "--targets",
        "v2-8,v5e-1,tpu7x-2x2x1",
        "--html",
        "plan.html",
        "--region",
        "a\"<b",
    ];
    f.run(&args).ok();
    let page = std::fs::read_to_string(f.path("plan.html")).unwrap();
    let parts = [
        "Advice",
        "class=\"bar",
        "Memory per device",
        "conv2d",
        "samples per joule",
        "Source",
        "not validated",
    ];
    for part in parts {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(page.contains("5 epochs of 60,000 samples") && !page.contains("a\"<b"), "{page}");
    let count = |what: &str| page.matches(what).count();
    for tag in ["table", "tr", "td", "ul", "li", "p", "div", "details", "h2", "span", "i"] {
        assert_eq!(
            count(&format!("<{tag}>")) + count(&format!("<{tag} ")),
            count(&format!("</{tag}>")),
            "{tag}"
        );
    }
    assert!(!page.contains("<script") && !page.contains("http-equiv"));
}

#[test]
fn slices_of_v4_have_names_by_their_cores() {
    let f = Folder::new("plan-v4");
    let args = ["plan", "mlp", "--batch-size", "6144", "--targets", "v4-6144,v4:12x16x16", "--json"];
    let plan = f.run(&args).ok().json();
    let all = plan["choices"].as_array().unwrap();
    assert_eq!((&all[0]["machine"], &all[0]["devices"]), (&"v4-6144".into(), &3072.into()));
    assert_eq!(all[0]["step_seconds"], all[1]["step_seconds"]);
}

#[test]
fn a_short_step_of_this_cpu_is_measured() {
    let f = Folder::new("plan-here");
    let plan = f.run(&["plan", "mlp", "--targets", "cpu,v2-8", "--json"]).ok().json();
    let here = choice(&plan, "this CPU");
    assert_eq!((&here["estimator"], &here["validated"]), (&"measured".into(), &true.into()), "{here}");
    let step = |key: &str| here["step_seconds"][key].as_f64().unwrap();
    assert!(step("low") > 0.0 && step("low") <= step("likely") && step("likely") <= step("high"), "{here}");
    assert_eq!(choice(&plan, "v2-8")["validated"], false);
    // A batch that takes seconds is not tried.
    let long = f.run(&["plan", "resnet50", "--targets", "cpu", "--json"]).ok().json();
    assert_eq!(choice(&long, "this CPU")["estimator"], "analytic");
}

#[test]
fn every_generation_is_shown_with_its_sources_beside_the_tutorials() {
    let f = Folder::new("plan-chips");
    let text = f.run(&["chips"]).ok().out;
    let names = [
        "v1", "v2", "v3", "v4i", "v4", "v5e", "v5p", "v6e", "tpu7x", "tpu8t", "tpu8i", "edgetpu", "k80",
        "v100", "a100", "h100",
    ];
    for name in names {
        assert!(text.lines().any(|l| l.starts_with(&format!("{name} "))), "{name}: {text}");
    }
    for part in [
        "peak",
        "92 int8",
        "GB/s",
        "watts: 75 (TDP",
        "v2-512",
        "5.22",
        "1.566",
        "420 TFLOP/s",
        "process: 16 nm",
        "source:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let chips = f.run(&["chips", "v1", "k80", "v5litepod-16", "--json"]).ok().json();
    let [v1, k80, v5e] = chips.as_array().unwrap().as_slice() else { panic!("{chips}") };
    assert_eq!((&v1["peak_tflops"]["int8"], &v1["planned"]), (&92.0.into(), &false.into()));
    assert_eq!((&k80["memory_gb_per_s"], &k80["prices"][0]["on_demand"]), (&160.0.into(), &0.45.into()));
    assert!(v5e["watts"].is_null() && v5e["slices"].as_array().unwrap().len() == 8, "{v5e}");
    f.run(&["chips", "v9"]).fails("usage", &["`v9`", "v1", "k80"]);
    f.write("broken.toml", "[[past]]\nname = 'x'\n");
    f.run(&["chips", "--tables", "broken.toml"]).fails("config", &["broken.toml", "product"]);
}

/// The same steps, of those models that trace fast: what was measured lies within what the table calls least and most.
#[test]
fn ranges_of_a_cpu_hold_what_was_measured() {
    let cpu = CpuCeilings {
        flops: 445e9,
        bf16_flops: 445e9,
        tiers: vec![(2.1e6, 200e9), (26e6, 52e9), (f64::INFINITY, 23e9)],
        threads: 2,
        memory: 2e10,
    };
    let tables = ChipTables::built_in().unwrap();
    for (preset, ms) in [("fashion-mnist", 10.46), ("mlp", 1.10), ("cifar-cnn", 132.3), ("lstm", 222.6)] {
        let config = ConfigDraft::preset(preset).unwrap().finish().map_err(|r| r.error).unwrap();
        let graph = config.untrained().unwrap().train_graph(config.fit.batch_size).unwrap();
        let step =
            analytic(&KernelList::of(&graph), &Machine::Cpu(cpu.clone()), &tables, HalfType::Bf16).unwrap();
        let (low, high) = (step.device.low * 1e3, step.device.high * 1e3);
        assert!(low <= ms && ms <= high, "{preset}: {ms} ms is not within {low:.2} to {high:.2}");
    }
}

#[test]
fn programs_are_read_as_they_are_printed() {
    let f = Folder::new("plan-program");
    let text = f.run(&["show", "mlp", "--stage", "stablehlo"]).ok().out;
    f.write("step.mlir", text);
    let plan = f.run(&["plan", "step.mlir", "--targets", "v2-8", "--steps", "10", "--json"]).ok().json();
    assert!(choice(&plan, "v2-8")["device_seconds"]["likely"].as_f64() > Some(0.0), "{plan}");
    // As JAX prints a product and its activation.
    f.write(
        "jax.mlir",
        "module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
           func.func public @main(%arg0: tensor<64x512xf32>, %arg1: tensor<512x256xf32>) -> (tensor<64x256xf32> {jax.result_info = \"\"}) {
             %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x256xf32>) -> tensor<64x256xf32>
             %1 = call @relu(%0) : (tensor<64x256xf32>) -> tensor<64x256xf32>
             return %1 : tensor<64x256xf32>
           }
           func.func private @relu(%arg0: tensor<64x256xf32>) -> tensor<64x256xf32> {
             %cst = stablehlo.constant dense<0.000000e+00> : tensor<64x256xf32>
             %0 = stablehlo.maximum %arg0, %cst : tensor<64x256xf32>
             return %0 : tensor<64x256xf32>
           }
         }",
    );
    let plan = f.run(&["plan", "jax.mlir", "--targets", "v2-8", "--steps", "10", "--json"]).ok().json();
    assert!(choice(&plan, "v2-8")["device_seconds"]["likely"].as_f64() > Some(0.0), "{plan}");
    // What breaks off is an error with its place, no plan of something else.
    f.write(
        "other.mlir",
        "module { func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a } }",
    );
    f.run(&["plan", "other.mlir", "--targets", "v2-8"]).fails("data", &["other.mlir"]);
}

/// Commands of the guide to the first TPU, as it prints them.
#[test]
fn the_guide_to_the_first_tpu_runs() {
    let f = Folder::new("tpu1-guide");
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/tpu-v1.md")).unwrap();
    let mut ran = 0;
    for part in page.split("```sh\n").skip(1) {
        for line in part.split("```").next().unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], "systole", "{line}");
            f.run(&words[1..]).ok();
            ran += 1;
        }
    }
    assert!(ran >= 9, "the page shows only {ran} commands");
    let html = std::fs::read_to_string(f.path("wave.html")).unwrap();
    assert!(html.contains("<svg") && html.contains("One tile of 8 × 8") && !html.contains("<script"));
    // What the page says of the errors is what the program prints.
    let json = f.run(&["tpu1", "--paper", "--json"]).ok().json();
    let comparison = &json["paper_comparison"];
    for name in ["MLP0", "MLP1", "LSTM0", "LSTM1", "CNN0", "CNN1"] {
        let a = &comparison["applications"][name];
        let error = |n: usize| a["table_3"][format!("row_{n}")]["error"].as_f64().unwrap();
        let rms = ([1, 4, 5, 6].map(|n| error(n).powi(2)).iter().sum::<f64>() / 4.0).sqrt();
        let how = if a["fitted"] == true { "fitted" } else { "predicted" };
        let row = format!("| {name} | {how} | {rms:.1} | {:+.1} |", error(7));
        assert!(page.contains(&row), "the page lacks {row}");
    }
    for by in ["0.25", "0.5", "2", "4"] {
        let cell = |curve: &str| {
            let value = &comparison["figure_11"][format!("{curve} × {by}")];
            format!("{:.3} ({})", value["here"].as_f64().unwrap(), value["paper"])
        };
        let row = format!("| × {by} | {} |", ["memory", "clock", "matrix"].map(cell).join(" | "));
        assert!(page.contains(&row), "the page lacks {row}");
    }
}

#[test]
fn the_first_tpu_tells_shares_what_if_and_today() {
    let f = Folder::new("tpu1-json");
    let json = f.run(&["tpu1", "tpu1/mlp0", "--json", "--trace", "trace.json", "--compare"]).ok().json();
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{json}"));
    let shares = &json["shares"];
    let all: f64 = ["array_active", "weight_stall", "weight_shift", "non_matrix"]
        .iter()
        .map(|k| number(&shares[*k]))
        .sum();
    assert!((all - 1.0).abs() < 1e-9 && (number(&shares["array_active"]) - 0.127).abs() < 0.005);
    assert!((number(&json["cycles_per_tile"]) - 1575.0).abs() < 20.0 && number(&json["tops"]) > 10.0);
    assert!((number(&json["what_if"]["memory × 4"]) - 3.0).abs() < 0.2);
    assert_eq!(json["today"].as_array().unwrap().len(), 5);
    assert_eq!(json["compare"]["platforms"][2]["on_chip_mib"], 28);
    let trace = std::fs::read_to_string(f.path("trace.json")).unwrap();
    assert!(trace.contains("matrix multiply") && trace.contains("fc_4"));
    let text = f.run(&["tpu1", "tpu1/cnn1"]).ok().out;
    assert!(
        text.contains("Inception with batch normalization") && text.contains("Not published, chosen here"),
        "{text}"
    );
    let listing = f.run(&["tpu1", "tpu1/mlp1", "--instructions"]).ok().out;
    assert!(
        listing.contains("read_weights") && listing.contains("matrix_multiply") && listing.contains("halt")
    );
}

#[test]
fn what_the_first_tpu_cannot_do_is_told() {
    let f = Folder::new("tpu1-errors");
    f.run(&["tpu1", "tpu1/mlp0", "--batch", "5000"])
        .fails("unsupported", &["5000", "4096", "`fc_0`", "--batch 4096"]);
    f.run(&["tpu1", "tpu1/lstm0", "--batch", "8000", "--accumulators", "65535"])
        .fails("unsupported", &["24.0", "layer", "--batch"]);
    f.run(&["tpu1", "tpu1/mlp9"]).fails("usage", &["tpu1/mlp9", "tpu1/mlp0"]);
    f.run(&["tpu1", "tpu1/mlp0", "--matrix", "0"]).fails("usage", &["--matrix 256"]);
    f.run(&["tpu1", "--animate", "wave.png"]).fails("config", &[".svg", ".html"]);
    f.run(&["tpu1", "--compare", "--trace", "t.json"]).fails("usage", &["tpu1/mlp0"]);
    f.run(&["tpu1", "tpu1/mlp0", "--check"]).fails("usage", &["tpu1/mlp0", "--check"]);
    f.write("model.tflite", "x");
    f.run(&["tpu1", "model.tflite"]).fails("data", &["model.tflite"]);
    f.run(&["plan", "mlp", "--targets", "v1"]).fails("usage", &["`v1`", "systole tpu1 FILE.tflite"]);
    f.run(&["plan", "mlp", "--targets", "edgetpu"])
        .fails("usage", &["`edgetpu`", "systole export MODEL --format tflite"]);
}

/// A model of layers, quantised by the program and put on the chip: the bits of the file's interpreter.
#[test]
fn a_trained_model_runs_on_the_first_tpu() {
    let f = Folder::with_data("tpu1-model");
    let train = ["train", "fashion-mnist", "--data-dir", "data", "--out", "run", "--quiet"];
    f.run(&[&train[..], &crate::program::TINY].concat()).ok();
    let quantize = [
        "quantize",
        "run",
        "--per",
        "tensor",
        "--data-dir",
        "data",
        "--samples",
        "32",
        "--out",
        "int8.tflite",
    ];
    f.run(&quantize).ok();
    let json = f.run(&["tpu1", "int8.tflite", "--batch", "8", "--check", "--json"]).ok().json();
    let trained = f
        .run(&["tpu1", "run", "--data-dir", "data", "--samples", "32", "--batch", "8", "--json"])
        .ok()
        .json();
    assert_eq!((&trained["cycles"], &trained["shares"]), (&json["cycles"], &json["shares"]));
    let told = json["check"].as_str().unwrap();
    assert!(told.contains("all 10 output values") && told.contains("match the interpreter"), "{told}");
    assert_eq!((&json["batch"], &json["notes"][0]), (&8.into(), &"the softmax runs on the host".into()));
    f.run(&["tpu1", "int8.tflite", "--batch", "5000"]).fails("unsupported", &["--batch", "layer"]);
}
