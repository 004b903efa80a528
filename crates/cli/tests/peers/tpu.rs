//! Tests of `systole compile` with Google's TPU compiler (libtpu), without a TPU, and of `--device pjrt:FILE`,
//! `devices` and `doctor`. Finds libtpu the same way as the program does. `bench/tpu-compiles` covers all presets and
//! slices.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use systole::devices::find_plugin;
use systole::pjrt::AcceleratorPlatform;

/// Without the cache: what an earlier run compiled would prove nothing.
fn systole(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_systole"));
    program.args(args).env("SYSTOLE_COMPILE_CACHE", "off").output().expect("the program starts")
}

fn has_libtpu(test: &str) -> bool {
    let found = find_plugin(AcceleratorPlatform::Tpu, None).plugin().is_some();
    if !found {
        println!("SKIPPED {test}: libtpu is not installed (`systole setup tpu` fetches it)");
    }
    found
}

fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tpu-{name}"));
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    dir
}

fn compiled(args: &[&str]) -> Value {
    let out = systole(&[&["compile", "--json"], args].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("one JSON object")
}

fn refused(args: &[&str]) -> String {
    let out = systole(args);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let code = out.status.code();
    assert!(matches!(code, Some(1 | 2)), "{args:?}: {code:?} {said}");
    assert!(said.contains("error["), "{said}");
    said
}

/// The tutorial's model, for each generation's smallest slice under its cloud's name.
#[test]
fn the_tutorials_step_compiles_for_every_generation() {
    if !has_libtpu("the_tutorials_step_compiles_for_every_generation") {
        return;
    }
    for (target, kind, devices) in [
        ("v2-8", "TPU v2", 8),
        ("v3-8", "TPU v3", 8),
        ("v4-8", "TPU v4", 4),
        ("v5litepod-1", "TPU v5 lite", 1),
        ("v5p-8", "TPU v5", 4),
        ("v6e-1", "TPU v6 lite", 1),
        ("tpu7x-2x2x1", "TPU7x", 8),
    ] {
        let o = compiled(&["fashion-mnist", "--batch-size", "64", "--target", target]);
        assert_eq!((o["device_kind"].as_str(), o["devices"].as_u64()), (Some(kind), Some(devices)), "{o}");
        assert_eq!(o["fits"], true, "{o}");
        let bytes = |key: &str| o["memory_bytes"][key].as_u64().unwrap_or(0);
        // The state is updated in place: nearly all results lie where arguments did.
        assert!(bytes("aliased") > 0 && bytes("outputs") - bytes("aliased") < 4096, "{o}");
        assert!(bytes("code") > 0 && o["flops"].as_f64() > Some(1e6), "{o}");
    }
}

#[test]
fn mixed_precision_and_written_files() {
    if !has_libtpu("mixed_precision_and_written_files") {
        return;
    }
    let dir = scratch("files");
    let (hlo, executable) = (dir.join("step.pb"), dir.join("step.bin"));
    let paths = [hlo.to_str().expect("a path"), executable.to_str().expect("a path")];
    let o = compiled(&[
        "fashion-mnist",
        "--batch-size",
        "64",
        "--precision",
        "mixed_bfloat16",
        "--target",
        "v5e:1x1",
        "--save-hlo",
        paths[0],
        "--save",
        paths[1],
    ]);
    assert_eq!(o["product"], "v5litepod-1");
    let hlo = std::fs::read(hlo).expect("the optimized program");
    assert!(hlo.windows(16).any(|w| w == b"estimated_cycles"), "no cycle estimates in the program");
    assert!(!std::fs::read(executable).expect("the executable").is_empty());
}

/// Equal layers are one loop: the compiler's program does not grow with the model.
#[test]
fn a_deep_model_compiles_as_a_loop_over_its_layers() {
    if !has_libtpu("a_deep_model_compiles_as_a_loop_over_its_layers") {
        return;
    }
    let dir = scratch("deep");
    let code = |layers: usize| {
        let (file, hlo) = (dir.join(format!("{layers}.toml")), dir.join(format!("{layers}.pb")));
        let text = format!(
            "[data]\ndataset = \"text\"\nsequence_length = 16\n\n[model]\napplication = \"gpt2\"\n\
             vocabulary_size = 128\nnum_layers = {layers}\nnum_heads = 2\nhidden_dim = 32\nintermediate_dim = 64\n\
             dropout = 0.1\nmax_sequence_length = 16\n\n[optimizer]\ntype = \"sgd\"\n\n[compile]\n\
             loss = {{ type = \"sparse_categorical_crossentropy\", from_logits = true }}\n\n[fit]\nepochs = 1\nbatch_size = 8\n"
        );
        std::fs::write(&file, text).expect("written");
        let (file, path) = (file.to_str().expect("a path"), hlo.to_str().expect("a path"));
        let o = compiled(&[file, "--target", "v5e:1x1", "--quick", "--save-hlo", path]);
        assert_eq!(o["quick"], true);
        let hlo = std::fs::read(&hlo).expect("the optimized program");
        assert!(hlo.windows(5).any(|w| w == b"while"), "no loop in the program of {layers} layers");
        o["memory_bytes"]["code"].as_f64().expect("bytes of code")
    };
    let (few, many) = (code(4), code(16));
    assert!(many < 1.5 * few, "4 layers: {few} bytes of code, 16 layers: {many}");
}

/// A product split over four chips: the compiler puts the sum over the split dimension between them.
#[test]
fn a_partitioned_program_gets_its_collective() {
    if !has_libtpu("a_partitioned_program_gets_its_collective") {
        return;
    }
    let dir = scratch("split");
    let (program, hlo) = (dir.join("split.mlir"), dir.join("split.pb"));
    let text = "module @split {\n  sdy.mesh @mesh = <[\"data\"=4]>\n  func.func public @main(\
        %x: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {\"data\"}]>}, \
        %w: tensor<512x128xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\"}, {}]>}) -> (tensor<64x128xf32> \
        {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {\n    %0 = stablehlo.dot_general %x, %w, \
        contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x128xf32>) -> tensor<64x128xf32>\n    \
        return %0 : tensor<64x128xf32>\n  }\n}\n";
    std::fs::write(&program, text).expect("written");
    let (program, path) = (program.to_str().expect("a path"), hlo.to_str().expect("a path"));
    let o = compiled(&[program, "--target", "v5e:2x2", "--partitions", "4", "--save-hlo", path]);
    assert_eq!(o["devices"], 4);
    let hlo = std::fs::read(hlo).expect("the optimized program");
    assert!(hlo.windows(10).any(|w| w == b"all-reduce"), "no collective in the program");
    let said = refused(&["compile", program, "--target", "v5e:1x1", "--partitions", "4"]);
    assert!(said.contains("requires 4 devices") && said.contains("larger slice"), "{said}");
}

/// How often a compiled program has a collective, and the bytes it works on.
fn collective(o: &Value, op: &str) -> (u64, f64) {
    let found = o["collectives"].as_array().expect("a list").iter().find(|c| c["op"] == op);
    found.map_or((0, 0.0), |c| (c["count"].as_u64().unwrap_or(0), c["bytes"].as_f64().unwrap_or(0.0)))
}

/// The real training step on four chips: each has a quarter of the batch, and the gradients are summed between them.
#[test]
fn training_steps_split_over_four_chips() {
    if !has_libtpu("training_steps_split_over_four_chips") {
        return;
    }
    // Bytes of the gradients, in f32.
    for (preset, weights) in [("fashion-mnist", 4.0 * 108_810.0), ("mlp", 4.0 * 407_050.0)] {
        let o = compiled(&[preset, "--batch-size", "64", "--target", "v5e:2x2"]);
        assert_eq!(
            (o["strategy"].as_str(), o["mesh"].as_str()),
            (Some("data_parallel"), Some("data=4")),
            "{o}"
        );
        assert_eq!((o["partitions"].as_u64(), o["batch_size"].as_u64()), (Some(4), Some(64)), "{o}");
        let (count, bytes) = collective(&o, "all-reduce");
        assert!(count >= 1 && bytes >= weights, "{preset}: {o}");
        let m = &o["memory_bytes"];
        assert!(m["aliased"].as_f64() >= Some(weights), "{preset}: {o}");
    }
}

/// Between slices there is the data centre's network: what is summed there is sent and received.
#[test]
fn two_slices_send_their_sums_to_each_other() {
    if !has_libtpu("two_slices_send_their_sums_to_each_other") {
        return;
    }
    let two = ["fashion-mnist", "--batch-size", "64", "--target", "v5e:2x2", "--num-slices", "2"];
    let o = compiled(&two);
    assert_eq!((o["devices"].as_u64(), o["mesh"].as_str()), (Some(8), Some("data=8")), "{o}");
    assert!(collective(&o, "send").0 > 0, "{o}");
}

/// Weights and slots are split too: each chip keeps about a quarter, and gathers what it uses.
#[test]
fn fully_sharded_steps_gather_their_weights() {
    if !has_libtpu("fully_sharded_steps_gather_their_weights") {
        return;
    }
    let of = |strategy: &str| {
        compiled(&["mlp", "--batch-size", "64", "--target", "v5e:2x2", "--strategy", strategy])
    };
    let (whole, split) = (of("data_parallel"), of("fully_sharded"));
    let bytes = |o: &Value| o["memory_bytes"]["aliased"].as_f64().expect("bytes");
    assert!(bytes(&split) < 0.4 * bytes(&whole), "{whole}\n{split}");
    assert!(collective(&split, "all-gather").0 > 0, "{split}");
    // The gradient of the greatest weight: summed, and each chip keeps its part.
    assert!(collective(&split, "reduce-scatter").1 >= 4.0 * 784.0 * 512.0, "{split}");
}

#[test]
fn what_was_compiled_before_comes_from_the_cache() {
    if !has_libtpu("what_was_compiled_before_comes_from_the_cache") {
        return;
    }
    let dir = scratch("cache");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let program = dir.join("add.mlir");
    let text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n  %y = stablehlo.add %x, %x : tensor<8xf32>\n  \
        return %y : tensor<8xf32>\n}\n";
    std::fs::write(&program, text).expect("written");
    let library =
        find_plugin(AcceleratorPlatform::Tpu, None).require(AcceleratorPlatform::Tpu).expect("there is one");
    let run = |more: &[&str]| -> (Value, Vec<u8>) {
        let saved = dir.join("add.bin");
        let mut command = Command::new(env!("CARGO_BIN_EXE_systole"));
        command.arg("compile").arg(&program).args(["--target", "v5e:1x1", "--json", "--save"]).arg(&saved);
        let out = command.arg("--plugin").arg(&library).args(more).env("SYSTOLE_CACHE", &dir).output();
        let out = out.expect("the program starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        (serde_json::from_slice(&out.stdout).expect("JSON"), std::fs::read(saved).expect("the executable"))
    };
    let (first, second) = (run(&[]), run(&[]));
    assert_eq!((&first.0["from_cache"], &second.0["from_cache"]), (&Value::from(false), &Value::from(true)));
    assert_eq!((&first.0["memory_bytes"], &first.1), (&second.0["memory_bytes"], &second.1));
    // Something else is asked.
    let hlo = dir.join("add.pb");
    assert_eq!(run(&["--save-hlo", hlo.to_str().expect("a path")]).0["from_cache"], false);
    // A damaged answer is compiled anew.
    for entry in std::fs::read_dir(dir.join("compiled")).expect("the cache").flatten() {
        std::fs::write(entry.path().join("executable.bin"), "cut").expect("written");
    }
    let third = run(&[]);
    assert_eq!(third.0["from_cache"], false, "{}", third.0);
    assert!(third.1.len() > 1000);
}

#[test]
fn meshes_that_do_not_fit_are_refused() {
    if !has_libtpu("meshes_that_do_not_fit_are_refused") {
        return;
    }
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:2x2", "--batch-size", "66"]);
    assert!(said.contains("does not divide evenly") && said.contains("multiple of 4, such as 68"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:2x2", "--mesh", "data=8"]);
    assert!(said.contains("data=8 needs 8 devices") && said.contains("v5litepod-4 has only 4"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:2x2", "--mesh", "data"]);
    assert!(said.contains("--mesh") && said.contains("data=4"), "{said}");
    let two = ["compile", "fashion-mnist", "--target", "v5e:2x2", "--num-slices", "2", "--mesh", "data=4"];
    let said = refused(&two);
    assert!(said.contains("must cover them"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:2x2", "--partitions", "4"]);
    assert!(said.contains("--strategy"), "{said}");
    let alone =
        ["compile", "fashion-mnist", "--target", "v5e:2x2", "--strategy", "one_device", "--mesh", "data=4"];
    assert!(refused(&alone).contains("--mesh"));
}

#[test]
fn bad_input_is_one_clear_error() {
    let dir = scratch("bad");
    let wrong = dir.join("wrong.mlir");
    std::fs::write(&wrong, "func.func @main() { nonsense }").expect("written");
    let wrong = wrong.to_str().expect("a path");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5litepod-7"]);
    assert!(said.contains("v5litepod-8 (v5e:2x4)"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "h10"]);
    assert!(said.contains("--target") && said.contains("did you mean h100"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "h100", "--num-slices", "2"]);
    assert!(said.contains("only TPUs have slices") && said.contains("8*h100"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "h100", "--plugin", "no-such.so"]);
    assert!(said.contains("no-such.so (not found)") && said.contains("systole setup cuda"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:1x1", "--plugin", "no-such.so"]);
    assert!(said.contains("no-such.so (not found)") && said.contains("systole setup tpu"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:1x1", "--plugin", wrong]);
    assert!(said.contains("not an ELF file"), "{said}");
    let said = refused(&["compile", wrong, "--target", "v5e:1x1", "--batch-size", "8"]);
    assert!(said.contains("are fixed"), "{said}");
    let said = refused(&["compile", "none.mlir", "--target", "v5e:1x1"]);
    assert!(said.contains("no such file or folder: none.mlir") && said.contains("check the path"), "{said}");
    let said = refused(&["train", "glyphs", "--device", "pjrt:no-such.so"]);
    assert!(said.contains("no-such.so"), "{said}");
    if !has_libtpu("bad_input_is_one_clear_error") {
        return;
    }
    let said = refused(&["compile", wrong, "--target", "v5e:1x1"]);
    assert!(said.contains("error") && said.contains("compiling for v5e:1x1"), "{said}");
    let said = refused(&["compile", "resnet50", "--target", "v5e:1x1", "--time-limit", "1"]);
    assert!(said.contains("did not end within 1 s"), "{said}");
    let said = refused(&["compile", "fashion-mnist", "--target", "v5e:1x1", "--memory-limit", "64MiB"]);
    assert!(said.contains("the memory limit of the compiler process is 64 MiB"), "{said}");
    let leftovers = std::fs::read_dir(std::env::temp_dir()).expect("a folder").flatten();
    let id = format!("systole-compile-{}", std::process::id());
    assert!(leftovers.into_iter().all(|e| !e.file_name().to_string_lossy().starts_with(&id)));
}

#[test]
fn devices_and_doctor_say_what_is_here() {
    let out = systole(&["devices", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let platforms: Vec<_> = told.as_array().expect("a list").iter().map(|o| o["platform"].clone()).collect();
    assert_eq!(platforms, ["cpu", "tpu", "cuda"]);
    let out = systole(&["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let find =
        |subject: &str| told.as_array().into_iter().flatten().find(|f| f["subject"] == subject).cloned();
    let compiler = find("compiling for a TPU").expect("a finding");
    if has_libtpu("devices_and_doctor_say_what_is_here") {
        assert!(compiler["said"].as_str().is_some_and(|s| s.starts_with("works")), "{compiler}");
    } else {
        assert!(compiler["mend"].as_str().is_some_and(|m| m.contains("systole setup tpu")), "{compiler}");
    }
}
