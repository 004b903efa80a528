//! End-to-end tests of `systole data` on files written by the tests.

use crate::program::{Done, Folder};
use serde_json::{Value, json};
use std::fs;
use systole_data::Dataset;
use systole_data::format::example::parse_example;
use systole_data::format::{npy, png};
use systole_ir::Literal;

/// Six pictures of two classes.
fn album(f: &Folder) {
    for (k, class) in ["day", "night"].iter().enumerate() {
        for i in 0..3u8 {
            // Each one packs to another number of bytes.
            let pixels: Vec<u8> = (0..(4 + i) * 5).map(|p| 200 - 150 * k as u8 + p * i % 3).collect();
            let picture = Literal::from_slice([4 + i as usize, 5, 1], &pixels).unwrap();
            f.write(&format!("album/{class}/{i}.png"), png::to_bytes(&picture).unwrap());
        }
    }
}

#[test]
fn any_source_is_converted_to_records_and_read_back() {
    let f = Folder::with_data("data-convert");
    album(&f);
    f.write("table.csv", "height,name\n1.5,ann\n2,bob\n3.25,cy\n");
    f.write("lines.txt", "one\ntwo\nthree\n");
    npy::write(f.path("x.npy"), &Literal::from_slice([3, 2], &[1f32, 2., 3., 4., 5., 6.]).unwrap()).unwrap();
    let idx = "data/fashion-mnist/t10k-images-idx3-ubyte.gz";
    let cases = [
        ("album", "folder of classes", 6, "image: ui8[?], label: i32[]"),
        ("table.csv", "CSV", 3, "height: f32[], name: ui8[?]"),
        ("lines.txt", "text", 3, "line: ui8[?]"),
        ("x.npy", "NumPy array", 3, "value: f32[2]"),
        (idx, "IDX", 32, "value: ui8[28, 28]"),
    ];
    for (i, (source, kind, elements, features)) in cases.into_iter().enumerate() {
        let o = f.run(&["data", "inspect", source, "--json", "-n", "1"]).ok().json();
        assert_eq!((&o["kind"], o["first"].as_array().unwrap().len()), (&kind.into(), 1), "{o}");
        let (prefix, dir) = (format!("out{i}/part"), format!("out{i}"));
        let args = ["data", "convert", source, &prefix, "--shards=2", "--compression=gzip", "--json"];
        let o = f.run(&args).ok().json();
        assert_eq!((&o["elements"], &o["features"]), (&elements.into(), &features.into()), "{source}");
        assert_eq!(o["files"][1], format!("{prefix}-00001-of-00002.tfrecord"));
        let o = f.run(&["data", "inspect", &dir, "--json"]).ok().json();
        assert_eq!(
            (&o["kind"], &o["files"], &o["features"]),
            (&"TFRecord".into(), &2.into(), &features.into())
        );
        let o = f.run(&["data", "verify", &dir, "--json"]).ok().json();
        assert_eq!((&o["whole"], &o["records"]), (&true.into(), &elements.into()));
    }
    // Pictures are kept as the files that they are, with the names of their classes.
    let o = f.run(&["data", "inspect", "out0", "--json"]).ok().json();
    assert_eq!(o["classes"], json!(["day", "night"]));
    let records = Dataset::tfrecord([f.path("out0/part-00000-of-00002.tfrecord")]);
    let second =
        records.map(parse_example("image: ui8[?], label: i64[]".parse().unwrap())).iter().nth(2).unwrap();
    let bytes = second.unwrap().get("image").unwrap().bytes().to_vec();
    assert_eq!(bytes, fs::read(f.path("album/night/1.png")).unwrap());
    let o = f.run(&["data", "convert", "album", "pixels/p", "--decode", "--json"]).ok().json();
    assert_eq!(o["features"], "image: ui8[?], image/shape: i64[3], label: i32[]");

    f.run(&["data", "convert", "album", "pixels/p"])
        .fails("io", &["pixels/p-00000-of-00001.tfrecord", "--force"]);
    f.run(&["data", "convert", "album", "pixels/p", "--force", "--quiet"]).ok();
    f.run(&["data", "convert", "album", "p", "--shards=0"]).fails("usage", &[]);
    f.run(&["data", "convert", "nowhere", "p"]).fails("io", &["`nowhere`"]);
}

#[test]
fn damage_is_found_skipped_up_to_a_quota_and_put_aside() {
    let f = Folder::new("data-damage");
    album(&f);
    f.write("album/day/cut.png", &fs::read(f.path("album/day/1.png")).unwrap()[..40]);
    let done = f.run(&["data", "verify", "album"]);
    assert_eq!(done.code, Some(1));
    assert!(
        done.out.contains("cut.png") && done.out.contains("DAMAGED: 1 records; 6 readable"),
        "{}",
        done.out
    );

    f.run(&["data", "convert", "album", "out/p", "--decode"]).fails("data", &["album/day/cut.png"]);
    assert!(!f.files("out").iter().any(|n| n.ends_with(".tfrecord")), "{:?}", f.files("out"));
    let args =
        ["data", "convert", "album", "out/p", "--decode", "--skip=1", "--quarantine=bad.txt", "--json"];
    let o = f.run(&args).ok().json();
    assert_eq!((&o["elements"], &o["left_out"]), (&6.into(), &1.into()));
    let aside = fs::read_to_string(f.path("bad.txt")).unwrap();
    assert!(aside.lines().count() == 1 && aside.contains("cut.png"), "{aside}");

    let record = f.path("out/p-00000-of-00001.tfrecord");
    let mut bytes = fs::read(&record).unwrap();
    bytes[30] ^= 1;
    fs::write(&record, bytes).unwrap();
    let done = f.run(&["data", "verify", "out", "--json"]);
    assert_eq!(done.code, Some(1));
    let o = done.json();
    assert_eq!((&o["whole"], &o["damaged"], &o["records"]), (&false.into(), &1.into(), &5.into()));
    let text = o["files"][0]["damage"][0].as_str().unwrap();
    assert!(text.contains("record 0, byte 0"), "{text}");
}

#[test]
fn stats_count_values_and_classes() {
    let f = Folder::with_data("data-stats");
    album(&f);
    let o = f.run(&["data", "stats", "album", "--json"]).ok().json();
    let field = |name: &str| -> Value {
        o["fields"].as_array().unwrap().iter().find(|x| x["name"] == name).unwrap().clone()
    };
    assert_eq!(o["elements"], 6);
    assert_eq!(field("label")["counts"], json!({"0": 3, "1": 3}));
    assert_eq!((&field("image")["min"], &field("image")["max"]), (&json!(50.0), &json!(202.0)));
    let text =
        f.run(&["data", "stats", "fashion-mnist", "--data-dir=data", "--part=test", "--limit=20"]).ok().out;
    assert!(text.starts_with("Data: fashion-mnist") && text.contains("\n20 elements, 0 errors"), "{text}");
    assert!(text.contains("0: 2, 1: 2"), "{text}");
}

#[test]
fn bench_explains_and_freezes_what_was_tuned() {
    let f = Folder::with_data("data-bench");
    let args =
        ["data", "bench", "fashion-mnist", "--data-dir=data", "--seconds=0.3", "--json", "--freeze=run.toml"];
    let o = f.run(&args).ok().json();
    assert!(
        o["elements_per_second"].as_f64().unwrap() > 0.0
            && o["ram_peak"].as_u64() <= o["ram_budget"].as_u64()
    );
    let stages: Vec<&str> =
        o["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    let expected = [
        "fashion-mnist train",
        "shuffle(64)",
        "repeat",
        "batch(1000)",
        "map",
        "prefetch(AUTOTUNE)",
        "repeat",
    ];
    assert_eq!(stages, expected);
    assert_eq!(
        (&o["queues"][0]["tuned"], &o["queues"][0]["stage"]),
        (&true.into(), &"5 prefetch(AUTOTUNE)".into())
    );
    // The frozen sizes are used as they are, and nothing else changes.
    let toml = fs::read_to_string(f.path("run.toml")).unwrap();
    assert!(toml.contains("[data.tuning.\"5 prefetch(AUTOTUNE)\"]"), "{toml}");
    let small =
        ["--set=fit.steps_per_epoch=2", "--set=fit.epochs=1", "--set=fit.batch_size=16", "--quiet", "--json"];
    let train = |target: &str, out: &str| {
        f.run(&[&["train", target, "--data-dir=data", "--out", out], &small[..]].concat()).ok().json()
    };
    assert_eq!(train("run.toml", "a")["loss"], train("fashion-mnist", "b")["loss"]);
    let o = f.run(&["data", "bench", "run.toml", "--seconds=0.1", "--json"]).ok().json();
    assert_eq!(o["queues"][0]["tuned"], false);
    f.run(&["train", "run.toml", "--set=data.tuning={x={threads=0}}"]).fails("usage", &["data.tuning"]);

    f.write("lines.txt", "a\nb\nc\nd\n");
    let files =
        ["data", "bench", "lines.txt", "--seconds=0.1", "--shuffle=4", "--batch-size=2", "--core-budget=1"];
    let done = f.run(&files);
    let text = done.ok().out;
    for part in ["shuffle(4)", "batch(2)", "per second", "Slowest stage: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    f.run(&["data", "bench", "lines.txt", "--freeze=x.toml"]).fails("usage", &["--freeze"]);
    f.run(&["data", "bench", "fashion-mnist", "--data-dir=data", "--batch-size=2"])
        .fails("usage", &["--batch-size", "--shuffle"]);
    f.run(&["data", "bench", "lines.txt", "--seconds=0"]).fails("usage", &[]);
}

#[test]
fn trace_follows_one_element_through_every_stage() {
    let f = Folder::with_data("data-trace");
    album(&f);
    let text = f.run(&["data", "trace", "fashion-mnist", "--data-dir=data", "--element=3"]).ok().out;
    let stages: Vec<&str> = text.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(
        stages,
        ["Data:", "fashion-mnist", "shuffle(64)", "repeat", "batch(1000)", "map", "prefetch(AUTOTUNE)"]
    );
    assert!(text.lines().nth(1).unwrap().ends_with("(and 999 more)"), "{text}");
    assert!(text.contains("f32[1000, 28, 28, 1]"), "{text}");
    let done = f.run(&["data", "trace", "album", "--element=4", "--pictures=seen", "--json"]).ok();
    assert_eq!(done.json()[0]["stage"], "image_folder(6)");
    let seen = png::read(f.path("seen-image.png")).unwrap();
    assert_eq!(seen, png::read(f.path("album/night/1.png")).unwrap());
    f.run(&["data", "trace", "album", "--element=6"]).fails("data", &["6", "image_folder(6)"]);
}

/// What docs/guide/data.md shows runs as it is printed.
#[test]
fn the_commands_of_the_page_run() {
    let f = Folder::with_data("data-page");
    album(&f);
    // As if it had been downloaded: there is no network.
    for (k, class) in ["daisy", "dandelion", "roses", "sunflowers", "tulips"].iter().enumerate() {
        for i in 0..4u8 {
            let picture = Literal::from_slice([6, 6, 1], &[40 * k as u8 + i; 36]).unwrap();
            f.write(&format!("data/flowers/{class}/{i}.png"), png::to_bytes(&picture).unwrap());
        }
    }
    for i in 3..6u8 {
        for class in ["day", "night"] {
            let picture =
                Literal::from_slice([6, 6, 1], &[if class == "day" { 180 + i } else { 30 + i }; 36]).unwrap();
            f.write(&format!("album/{class}/{i}.png"), png::to_bytes(&picture).unwrap());
        }
    }
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/data.md")).unwrap();
    let mut inside = false;
    let mut ran = 0;
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
            continue;
        }
        let command = line.split(" #").next().unwrap().trim();
        if !inside || command.is_empty() {
            continue;
        }
        let words: Vec<&str> = command.split_whitespace().map(|w| w.trim_matches('\'')).collect();
        assert_eq!(words[0], "systole", "{line}");
        let output = f.command(&words[1..]).env("SYSTOLE_DATA", f.path("data")).output().unwrap();
        Done::of(output, &words[1..]).ok();
        ran += 1;
    }
    assert!(ran >= 14, "the page shows only {ran} commands");
}
