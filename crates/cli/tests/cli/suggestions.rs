//! Tests "did you mean" suggestions: names used by other frameworks are preferred over similar spellings, nothing is
//! suggested if nothing fits, and suggested commands keep the form of the typed one.

use crate::program::{Done, Folder, TINY};
use std::os::unix::process::CommandExt;

#[test]
fn commands_and_options_of_other_programs_lead_to_ours() {
    let f = Folder::new("suggest-commands");
    let cases: [(&[&str], &str); 7] = [
        (&["fit"], "`train`"),
        (&["train", "--preset", "glyphs"], "--preset"),
        (&["train", "glyphs", "--lr", "0.1"], "`--learning-rate`"),
        (&["train", "glyphs", "--optimizer", "lion"], "--set optimizer.type=lion"),
        (&["data", "info", "x.csv"], "`inspect`"),
        (&["plan", "glyphs", "--target", "v5e-8"], "`--targets`"),
        (&["zebra"], "'zebra'"),
    ];
    for (args, part) in cases {
        let done = f.run(args).fails("usage", &[part]);
        for misleading in ["in-this-process", "as a value", "--resume", "init`"] {
            assert!(!done.err.contains(misleading), "{misleading}: {}", done.err);
        }
    }
    // What is said leads on: each is followed.
    f.run(&["train", "glyphs", "--print-config", "--learning-rate", "0.1"]).ok();
    f.run(&["train", "glyphs", "--print-config", "--set", "optimizer.type=lion"]).ok();
}

#[test]
fn a_file_that_is_not_there_is_no_preset_misspelt() {
    let f = Folder::new("suggest-files");
    f.write("mydata.csv", "a,label\n1,x\n2,y\n");
    let all: [(&[&str], &str); 6] = [
        (&["train", "nosuch.csv"], "usage"),
        (&["summary", "nosuch.safetensors"], "io"),
        (&["show", "./glyphs"], "io"),
        (&["plan", "nosuch.csv"], "usage"),
        (&["bench", "nosuch/mlp"], "usage"),
        (&["init", "run.toml"], "usage"),
    ];
    for (args, kind) in all {
        let done = f.run(args).fails(kind, &[args[1]]);
        assert!(!done.err.contains("did you mean") && !done.err.contains("fashion-mnist"), "{}", done.err);
    }
    f.run(&["train", "mydate.csv"]).fails("usage", &["mydate.csv", "`mydata.csv`"]);
    f.run(&["train", "glyhps"]).fails("usage", &["`glyphs`"]);
    f.run(&["train", "elephants"]).fails("usage", &["`elephants`"]);
    f.run(&["train", "glyphs", "--set=data.dataset=my.csv"]).fails("usage", &["data.dir", "`my.csv`"]);
}

#[test]
fn keys_and_values_of_other_systems_lead_to_ours() {
    let f = Folder::new("suggest-keys");
    let cases = [
        ("layers.4.type=Linear", "`Dense`"),
        ("compile.loss=cross_entropy", "`sparse_categorical_crossentropy`"),
        ("optimizer.type=shampoo", "`shampoo`"),
        ("fit.early_stopping=3", "EarlyStopping"),
        ("fit.lr=0.1", "`optimizer.learning_rate`"),
        ("data.batch_size=7", "`fit.batch_size`"),
        ("epochs=7", "`fit.epochs`"),
        ("fit.device=tpu", "--device"),
        ("layers.0.out_channels=7", "`filters`"),
        ("compile.precision=bf16", "`mixed_bfloat16`"),
        ("layers.4.units=\"10\"", "10"),
        ("fit.epochs=\"7\"", "7"),
        ("fit.epochs=7.0", "7"),
    ];
    for (set, part) in cases {
        let done = f.run(&["train", "glyphs", "--print-config", "--set", set]).fails("usage", &[part]);
        assert!(!done.err.contains("usize") && !done.err.contains("u64"), "{}", done.err);
    }
    let whole = f.run(&["train", "glyphs", "--print-config", "--set", "layers.4.units=\"10\""]);
    whole.fails("usage", &["`units`"]);
    for set in
        ["layers.4.units=10", "fit.epochs=7", "compile.precision=mixed_bfloat16", "optimizer.type=lion"]
    {
        f.run(&["train", "glyphs", "--print-config", "--set", set]).ok();
    }
}

#[test]
fn a_wrong_folder_has_nothing_to_do_with_the_network() {
    let f = Folder::with_data("suggest-dir");
    for args in [["--data-dir", "nowhere"], ["--set", "data.dir=nowhere"]] {
        let done = f.run(&[&["train", "fashion-mnist"][..], &args[..]].concat());
        let done = done.fails("io", &["`nowhere`", "train-images-idx3-ubyte.gz", "data.dir"]);
        assert!(!done.err.contains("network"), "{}", done.err);
    }
    // Nor has a cache that cannot be written to, which is told in few words.
    let done = f.run(&["train", "fashion-mnist"]).fails("io", &["SYSTOLE_CACHE"]);
    assert!(!done.err.contains("check the network"), "{}", done.err);
    assert!(done.err.lines().count() <= 4, "{}", done.err);
}

#[test]
fn without_data_and_network_the_first_command_says_so_in_a_line() {
    let f = Folder::new("suggest-offline");
    let args = [&["train", "--set=data.test_samples=16"][..], &TINY[..]].concat();
    let out = f.run(&args).ok().out;
    let lines: Vec<&str> = out.lines().take(2).collect();
    assert!(
        lines[0].starts_with("Data: glyphs, because the files of `fashion-mnist` were not found"),
        "{out}"
    );
    assert!(lines[1].starts_with("Model: "), "{out}");
    let said = f.run(&[&args[..], &["-v", "--out=again"][..]].concat()).ok().out;
    assert!(said.contains("  why: looked in"), "{said}");
}

#[test]
fn devices_and_strategies_of_others_are_known_before_the_data_are_read() {
    let f = Folder::new("suggest-devices");
    for (option, names) in [
        ("--device=gpu", &["`gpu`", "`cuda`"][..]),
        ("--device=mps", &["`mps`"]),
        ("--strategy=ddp", &["`ddp`", "`data_parallel`"]),
        ("--strategy=fsdp", &["`fsdp`", "`fully_sharded`"]),
        ("--learning-rate=nan", &["NaN", "--learning-rate"]),
        ("--learning-rate=1e40", &["float32", "--learning-rate"]),
    ] {
        let done = f.run(&["train", "glyphs", option]).fails("usage", names);
        assert!(!done.err.contains("null") && !done.out.contains("Data:"), "{}{}", done.out, done.err);
    }
}

#[test]
fn a_debug_build_says_once_that_it_is_slow() {
    let f = Folder::with_data("suggest-debug");
    let args = [&["train", "fashion-mnist", "--data-dir=data"][..], &TINY[..]].concat();
    let err = f.run(&args).ok().err;
    assert_eq!(err.matches("debug build").count(), usize::from(cfg!(debug_assertions)), "{err}");
    assert!(!cfg!(debug_assertions) || err.contains("--release"), "{err}");
    let quiet = f.run(&[&args[..], &["--quiet", "--out=quiet"][..]].concat()).ok().err;
    assert!(!quiet.contains("debug build"), "{quiet}");
}

#[test]
fn the_next_commands_are_written_as_this_one_was() {
    let f = Folder::with_data("suggest-next");
    let args = [&["train", "fashion-mnist", "--data-dir=data", "--out=out"][..], &TINY[..]].concat();
    let run = |called: &str, in_cargo: bool, args: &[&str]| {
        let mut command = f.command(args);
        command.arg0(called).env_remove("CARGO_MANIFEST_DIR");
        if in_cargo {
            command.env("CARGO_MANIFEST_DIR", &f.0);
        }
        Done::of(command.output().unwrap(), args).ok().out
    };
    let out = run("target/release/systole", true, &args);
    let next = out.split_once("Next:\n").unwrap().1;
    assert!(next.lines().all(|l| l.starts_with("  cargo run --release -- ")), "{next}");
    let out = run("target/release/systole", false, &["init", "glyphs", "--out", "a.toml"]);
    assert!(out.contains("  target/release/systole train a.toml"), "{out}");
    let out = run("target/debug/systole", true, &["init", "glyphs", "--out", "b.toml"]);
    assert!(out.contains("  cargo run -- train b.toml"), "{out}");
}

#[test]
fn a_bench_shows_its_spread_and_each_figure_once() {
    let f = Folder::new("suggest-bench");
    let out = f.run(&["bench", "mlp", "--seconds=0"]).ok().out;
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[1].contains("ms/step") && lines[1].contains("spread"), "{out}");
    assert!(!lines[2].contains("ms/step") && lines[2].contains('±'), "{out}");
    let o = f.run(&["bench", "mlp", "--seconds=0", "--json"]).ok().json();
    assert!(o["p10_ms"].as_f64() <= o["p90_ms"].as_f64() && o["p10_ms"].is_number(), "{o}");
    let few = f.run(&["bench", "mlp", "--seconds=0", "--batch-size", "2", "--json"]).ok().json();
    let flops = |o: &serde_json::Value| o["gflops"].as_f64().unwrap() * o["ms_per_step"].as_f64().unwrap();
    assert!(few["batch_size"] == 2 && flops(&few) < flops(&o) / 4.0, "{few} {o}");
}

#[test]
fn a_slip_of_the_wording_is_found_in_the_output_of_every_run() {
    use crate::program::wording_slip;
    for line in [
        "  why: why: no answer",
        "  try: the nearest is ",
        "  why: the most similar class is",
        "  try: did you mean ``?",
        "error[config]: ",
        "  why: cannot read x; why: no answer",
    ] {
        assert!(wording_slip(line).is_some(), "{line}");
    }
    for line in [
        "error[config]: unknown layer `Dens`",
        "  try: did you mean `Dense`? similar: `PReLU`",
        "Next:",
        "  where: ",
    ] {
        assert_eq!(wording_slip(line).is_some(), line == "  where: ", "{line}");
    }
}
