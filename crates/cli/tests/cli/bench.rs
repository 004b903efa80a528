//! Tests of `systole bench` and of the options that observe a run: profile, trace and memory limit.

use crate::program::{Done, Folder};
use serde_json::Value;

/// A folder with `tiny.toml`: the tutorials' model with two filters and batches of 16.
fn tiny(name: &str) -> Folder {
    let f = Folder::with_data(name);
    let args = ["train", "fashion-mnist", "--print-config", "--batch-size=16", "--set=layers.0.filters=2"];
    let text = f.run(&args).ok().out;
    f.write("tiny.toml", text);
    f
}

fn objects(done: &Done) -> Vec<Value> {
    done.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// The events of a trace that must be whole JSON.
fn events(f: &Folder, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(f.path(name)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"))
}

fn of_category<'a>(events: &'a [Value], category: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["cat"] == category).collect()
}

#[test]
fn every_measurement_is_one_object_with_all_keys() {
    let f = tiny("bench-json");
    let args =
        ["bench", "tiny.toml", "gemm-512", "--precision=float32", "--seconds=0", "--threads=1", "--json"];
    let done = f.run(&args).ok();
    let all = objects(&done);
    let told: Vec<&str> = all.iter().filter_map(|o| o["workload"].as_str()).collect();
    assert_eq!(told, ["tiny.toml", "gemm-512"]);
    for o in &all {
        let positive = [
            "value",
            "ms_per_step",
            "best_ms",
            "cpu_ms_per_step",
            "gflops",
            "share_of_peak",
            "compile_ms",
            "peak_rss_mib",
            "peak_gflops",
        ];
        for key in positive {
            assert!(o[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {o}");
        }
        assert_eq!((&o["threads"], &o["precision"], &o["steps"]), (&1.into(), &"float32".into(), &3.into()));
        assert!(o["cpu"].as_str().is_some_and(|c| c.contains("cores")), "{o}");
        assert!(o["best_ms"].as_f64() <= o["ms_per_step"].as_f64());
    }
    assert_eq!((&all[0]["unit"], &all[1]["unit"]), (&"ms/step".into(), &"GFLOP/s".into()));
    assert_eq!(all[0]["value"], all[0]["ms_per_step"]);
    // 2·512³ operations, whatever the time was; five digits are shown.
    let flops = all[1]["gflops"].as_f64().unwrap() * all[1]["ms_per_step"].as_f64().unwrap() * 1e6;
    assert!((flops / (2.0 * 512f64.powi(3)) - 1.0).abs() < 1e-3, "{flops}");
    assert_eq!(done.err, "");
}

#[test]
fn people_get_a_table() {
    let f = tiny("bench-table");
    let text = f.run(&["bench", "tiny.toml", "--precision=mixed_bfloat16", "--seconds=0"]).ok().out;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains("GFLOP/s") && lines[1].starts_with("workload") && lines[1].contains("of peak"));
    assert!(lines[2].starts_with("tiny.toml") && lines[2].contains("mixed_bfloat16"), "{text}");
}

#[test]
fn files_and_presets_are_measured_in_their_own_precision() {
    let f = tiny("bench-own");
    let text = std::fs::read_to_string(f.path("tiny.toml")).unwrap();
    let own = text.replace("precision = \"float32\"", "precision = \"mixed_bfloat16\"");
    assert_ne!(own, text);
    f.write("own.toml", own);
    let measured = |more: &[&str]| {
        let o = f.run(&[&["bench", "own.toml", "--seconds=0", "--json"][..], more].concat()).ok().json();
        o["precision"].as_str().unwrap().to_string()
    };
    assert_eq!(measured(&[]), "mixed_bfloat16");
    assert_eq!(measured(&["--precision=float32"]), "float32");
    let o = f.run(&["bench", "glyphs", "--seconds=0", "--json"]).ok().json();
    assert_eq!((&o["workload"], &o["precision"]), (&"glyphs".into(), &"float32".into()));
}

#[test]
fn mistakes_are_told_and_one_failure_does_not_hide_the_others() {
    let f = tiny("bench-wrong");
    f.run(&["bench", "fashon-cnn"])
        .fails(2, &["unknown workload `fashon-cnn`", "did you mean `fashion-cnn`"]);
    f.run(&["bench", "gone.toml"])
        .fails(1, &["cannot read gone.toml", "try: check the path", "systole init"]);
    f.run(&["bench", "mlp", "--precision=int8"]).fails(2, &["--precision", "float32"]);
    f.run(&["bench", "--seconds=soon"]).fails(2, &["number of seconds"]);
    f.run(&["bench", "gemm", "--trace=t.json"]).fails(2, &["--trace", "one measurement"]);
    let text = std::fs::read_to_string(f.path("tiny.toml")).unwrap();
    f.write("wrong.toml", text.replace("filters", "filtres"));
    let done = f.run(&["bench", "wrong.toml", "tiny.toml", "--seconds=0", "--json"]);
    let all = objects(&done);
    assert_eq!((all.len(), &all[0]["exit_code"], &all[1]["workload"]), (2, &1.into(), &"tiny.toml".into()));
    done.fails(1, &["did you mean `filters`", "wrong.toml"]);
}

#[test]
fn a_profile_names_every_kernel_and_its_ceiling() {
    let f = tiny("bench-profile");
    let done = f.run(&["bench", "tiny.toml", "--seconds=0", "--profile", "--json"]).ok();
    for part in ["kernels of train step", "ceilings of", "of ceiling", "convolution", "of conv2d", " % "] {
        assert!(done.err.contains(part), "{part}:\n{}", done.err);
    }
    assert_eq!(objects(&done).len(), 1);
}

/// The part of a profile between a line that begins so and the next empty one, the heading left out.
fn part_of<'a>(profile: &'a str, begins: &str) -> Vec<&'a str> {
    let lines = profile.lines().skip_while(|l| !l.starts_with(begins)).skip(1);
    lines.take_while(|l| !l.is_empty()).collect()
}

/// All numbers before a percent sign.
fn percents(text: &str) -> Vec<f64> {
    let before = text.split(" %").map(|t| t.rsplit(' ').next().unwrap_or_default());
    before.filter_map(|n| n.parse().ok()).collect()
}

#[test]
fn a_profile_tells_time_by_layer_and_by_kind() {
    let f = tiny("bench-layers");
    let done = f.run(&["bench", "tiny.toml", "--precision=float32", "--seconds=0", "--profile"]).ok();
    let text = done.err.split("kernels of train step:").nth(1).unwrap();
    let text = &text.split("\n\n").take(2).collect::<Vec<_>>().join("\n\n");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let layers = part_of(text, "layer ");
    let number = |line: &str, column: usize| {
        let cell = line.chars().skip(28 + 10 * column).take(10).collect::<String>();
        cell.trim().parse::<f64>().unwrap_or(0.0)
    };
    let line =
        |name: &str| *layers.iter().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    let total = line("total");
    // Where they take next to no time, optimizer and metrics are among the others.
    for (line, kinds) in [(line("conv2d"), vec![true, true, false]), (total, vec![true; 3])] {
        let has = [0, 1, 2].map(|k| number(line, k) > 0.0);
        assert_eq!(has, *kinds, "{line}: {text}");
    }
    for k in 0..3 {
        let sum: f64 = layers.iter().filter(|l| **l != total).map(|l| number(l, k)).sum();
        assert!((sum - number(total, k)).abs() <= 0.01 * sum + 0.01, "{sum}: {text}");
    }
    assert!(total.ends_with(" 100.0 %") && percents(text).iter().all(|&share| share <= 100.0), "{text}");
    assert_eq!(part_of(text, "kernel ").len(), 10, "{text}");
    assert!(text.contains("the 10 slowest of ") && text.contains("--profile=kernels shows all"), "{text}");
}

/// Depth and share of each row of `--profile=kernels`.
fn shares(kernels: &[&str]) -> Vec<(usize, f64)> {
    let depth = |l: &str| (l.len() - l.trim_start().len()) / 2;
    kernels.iter().map(|l| (depth(l), percents(l)[0])).collect()
}

#[test]
fn a_profile_of_all_kernels_has_no_share_above_the_whole() {
    let f = tiny("bench-kernels");
    // With loops, whose conditions and bodies are programs of their own.
    let sets = ["layers.0.output_dim=8", "layers.1.units=8", "layers.2.units=8", "data.sequence_length=8"];
    let sets: Vec<String> = sets.iter().map(|s| format!("--set={s}")).collect();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let text = f.run(&[&["train", "lstm", "--print-config", "--batch-size=4"], &sets[..]].concat()).ok().out;
    f.write("lstm.toml", text);
    for (file, threads) in
        [("tiny.toml", "--threads=1"), ("tiny.toml", "--threads=2"), ("lstm.toml", "--threads=2")]
    {
        let args = ["bench", file, "--precision=float32", "--seconds=0", "--profile=kernels", threads];
        let done = f.run(&args).ok();
        let text = done.err.split("kernels of train step:").nth(1).unwrap();
        let kernels = part_of(text, "kernel ");
        assert!(kernels.len() > 10, "{text}");
        assert!(percents(text).iter().all(|&share| share <= 100.0), "{text}");
        let shares = shares(&kernels);
        let own: f64 = shares.iter().filter(|(depth, _)| *depth == 0).map(|(_, share)| share).sum();
        assert!((95.0..=105.0).contains(&own), "{own}: {text}");
        for (k, (depth, share)) in shares.iter().enumerate() {
            let inside =
                shares[k + 1..].iter().take_while(|(d, _)| d > depth).filter(|(d, _)| *d == depth + 1);
            let (n, sum) = inside.fold((0.0, 0.0), |(n, sum), (_, share)| (n + 1.0, sum + share));
            // Each is rounded to a tenth.
            assert!(sum <= share + 0.05 * (n + 1.0), "{sum} in {share}: {text}");
        }
        let done = f.run(&["bench", file, "--precision=float32", "--seconds=0", "--profile", threads]).ok();
        assert!(part_of(&done.err, "layer ").last().unwrap().ends_with(" 100.0 %"), "{}", done.err);
    }
    f.run(&["bench", "tiny.toml", "--profile=lines"]).fails(2, &["layers", "kernels"]);
}

#[test]
fn a_trace_has_the_kernels_steps_and_waits_of_each_thread() {
    let f = tiny("bench-trace");
    f.run(&["bench", "tiny.toml", "--seconds=0", "--trace=bench.json"]).ok();
    let all = events(&f, "bench.json");
    let kernels = of_category(&all, "kernel");
    let of_conv =
        kernels.iter().filter(|e| e["args"]["layer"].as_str().is_some_and(|l| l.contains("conv2d")));
    assert!(of_conv.count() > 0, "{kernels:?}");
    for e in &kernels {
        assert!(e["dur"].as_f64().is_some_and(|d| d >= 0.0) && e["args"]["outputs"].is_array(), "{e}");
        let named = |n: &&Value| n["ph"] == "M" && n["name"] == "thread_name" && n["tid"] == e["tid"];
        assert_eq!(all.iter().filter(named).count(), 1, "{e}");
    }
    assert!(of_category(&all, "step").len() >= 5);
    assert!(of_category(&all, "compile").iter().any(|e| e["name"] == "compile train step"));

    let args =
        ["train", "tiny.toml", "--data-dir=data", "--epochs=1", "--steps-per-epoch=3", "--trace=train.json"];
    f.run(&args).ok();
    let all = events(&f, "train.json");
    for name in ["wait for data", "copy to device"] {
        assert_eq!(of_category(&all, "data").iter().filter(|e| e["name"] == name).count(), 3, "{name}");
    }
    f.run(&["train", "tiny.toml", "--data-dir=data", "--trace=no/such.json"])
        .fails(1, &["no/such.json", "--trace"]);
}

#[test]
#[cfg(unix)]
fn a_trace_is_whole_json_when_the_program_is_killed() {
    let f = tiny("bench-killed");
    let args = ["bench", "--here", "tiny.toml", "--precision=float32", "--seconds=1000", "--trace=t.json"];
    let mut child = f.command(&args).stdout(std::process::Stdio::null()).spawn().unwrap();
    let written = || std::fs::read_to_string(f.path("t.json")).unwrap_or_default();
    while !written().contains("\"cat\":\"kernel\"") {
        assert!(child.try_wait().unwrap().is_none(), "the program ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!of_category(&events(&f, "t.json"), "kernel").is_empty());
}

#[test]
#[cfg(unix)]
fn a_trace_of_one_or_two_threads_survives_a_kill() {
    let f = tiny("bench-killed-threads");
    for threads in ["--threads=1", "--threads=2"] {
        let args = ["bench", "--here", "tiny.toml", "--seconds=1000", "--trace=t.json", threads];
        let mut child = f.command(&args).stdout(std::process::Stdio::null()).spawn().unwrap();
        let written = || std::fs::read_to_string(f.path("t.json")).unwrap_or_default();
        while !written().contains("\"cat\":\"kernel\"") {
            assert!(child.try_wait().unwrap().is_none(), "the program ended");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!of_category(&events(&f, "t.json"), "kernel").is_empty());
        std::fs::remove_file(f.path("t.json")).unwrap();
    }
}

/// Each preset, with layers and pictures so small that steps take no time.
const PRESETS: [(&str, &[&str]); 15] = [
    ("fashion-mnist", &["layers.0.filters=2"]),
    ("mnist", &["layers.1.units=8"]),
    ("lstm", &["layers.0.output_dim=8", "layers.1.units=8", "layers.2.units=8", "data.sequence_length=8"]),
    ("sentences", &["layers.0.input_dim=50", "data.sequence_length=8"]),
    ("glyphs", &["layers.0.filters=2"]),
    ("mlp", &[]),
    ("cifar-cnn", &["layers.0.filters=4"]),
    ("folder", &["data.image_size=[16, 16]"]),
    ("tfrecord", &["data.image_size=[16, 16]"]),
    ("table", &[]),
    ("resnet50", &["model.depths=[1, 1]", "model.width=4", "model.classes=10", "data.image_size=[32, 32]"]),
    ("gpt-micro", &["model.num_layers=1", "model.hidden_dim=16", "data.sequence_length=16"]),
    (
        "gpt2-small",
        &[
            "model.num_layers=1",
            "model.hidden_dim=24",
            "model.intermediate_dim=24",
            "model.vocabulary_size=256",
            "data.sequence_length=16",
        ],
    ),
    ("biggan", SMALL_GAN),
    (
        "biggan128",
        &[
            "biggan.resolution=32",
            "data.image_size=[32, 32]",
            "biggan.G_ch=8",
            "biggan.D_ch=8",
            "biggan.G_attn=8",
        ],
    ),
];

const SMALL_GAN: &[&str] =
    &["biggan.G_ch=1", "biggan.D_ch=1", "biggan.dim_z=8", "biggan.shared_dim=4", "biggan.num_D_steps=1"];

#[test]
fn the_trace_of_every_preset_is_whole_json() {
    let f = Folder::new("bench-presets");
    for (preset, sets) in PRESETS {
        let sets: Vec<String> = sets.iter().map(|s| format!("--set={s}")).collect();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let text =
            f.run(&[&["train", preset, "--print-config", "--batch-size=4"], &sets[..]].concat()).ok().out;
        f.write("small.toml", text);
        for threads in ["--threads=1", "--threads=2"] {
            f.run(&["bench", "small.toml", "--seconds=0", threads, "--trace=t.json"]).ok();
            let all = events(&f, "t.json");
            assert!(!of_category(&all, "kernel").is_empty(), "{preset} {threads}");
            let nameless = all.iter().find(|e| e["name"].as_str().is_none_or(str::is_empty));
            assert!(nameless.is_none(), "{preset} {threads}: {nameless:?}");
        }
    }
}

#[test]
fn a_program_beyond_the_memory_limit_is_refused_with_what_needs_it() {
    let f = tiny("bench-memory");
    let parts =
        ["needs", "the limit is 8 MiB", "intermediate values", "of conv2d", "--batch-size", "--memory-limit"];
    f.run(&["train", "tiny.toml", "--data-dir=data", "--memory-limit=8MiB"]).fails(1, &parts);
    f.run(&["bench", "tiny.toml", "--memory-limit=8388608"]).fails(1, &parts);
    f.run(&["bench", "tiny.toml", "--memory-limit=2GiB", "--seconds=0"]).ok();
    f.run(&["bench", "tiny.toml", "--memory-limit=lots"]).fails(2, &["4GiB"]);
}
