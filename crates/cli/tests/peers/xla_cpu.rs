//! Tests of `--device xla` with the real XLA CPU plugin: every operation, the presets' kinds of model in each
//! precision, every strategy on four devices, donated buffers, and runs that move between Systole's engine and XLA.
//!
//! Finds the plugin the same way as the program does: from `systole setup xla-cpu`, or from the package in the Python
//! that SYSTOLE_PYTHON names.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use crate::program::{Done, Folder, TINY};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use systole::devices::find_plugin;
use systole::ir::{DType, GraphBuilder, Literal, Scalar, TensorType};
use systole::pjrt::{
    AcceleratorPlatform, Client, PjrtBackend, Plugin, PluginValue as OptionValue, RunInput, program_text,
};
use systole::runtime::{Backend, Buffer, CompileOptions, DeviceData, ExecutableArg};

fn plugin(test: &str) -> Option<PathBuf> {
    let found = find_plugin(AcceleratorPlatform::Xla, None).plugin().map(|place| place.path.clone());
    if found.is_none() {
        println!("SKIPPED {test}: XLA's CPU plugin is not installed (`systole setup xla-cpu` fetches it)");
    }
    found
}

/// The program in a folder of its own, with the plugin.
struct Runs {
    folder: Folder,
    plugin: PathBuf,
}

impl Runs {
    /// `None`: there is no plugin.
    fn new(test: &str, name: &str) -> Option<Runs> {
        plugin(test).map(|plugin| Runs { folder: Folder::with_data(&format!("xla-cpu-{name}")), plugin })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.folder.command(args);
        for name in ["SYSTOLE_PJRT_OPTIONS", "TF_CPP_MIN_LOG_LEVEL"] {
            command.env_remove(name);
        }
        command.env("SYSTOLE_PJRT_PLUGIN", &self.plugin);
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).output().unwrap(), args)
    }

    /// Trains on one device into the folder `DEVICE`.
    fn losses(&self, device: &str, args: &[&str]) -> Vec<f64> {
        let place = ["--device", device, "--out", device, "--strategy=one_device", "--resume=never"];
        losses(&self.run(&[&["train", "--json"], args, &place].concat()).ok())
    }

    /// The same run on our engine and on XLA: losses of every epoch, of training and test.
    fn compare(&self, args: &[&str], tolerance: f64) {
        let (ours, theirs) = (self.losses("cpu", args), self.losses("xla", args));
        near(&theirs, &ours, tolerance, &args.join(" "));
    }
}

fn losses(done: &Done) -> Vec<f64> {
    let told = done.json();
    let epochs = told["history"].as_array().unwrap_or_else(|| panic!("no history: {told}"));
    let of = |epoch: &Value| ["loss", "val_loss"].map(|key| epoch[key].as_f64());
    epochs.iter().flat_map(of).flatten().collect()
}

#[track_caller]
fn near(theirs: &[f64], ours: &[f64], tolerance: f64, what: &str) {
    assert!(!ours.is_empty() && ours.len() == theirs.len(), "{what}: {ours:?} {theirs:?}");
    for (a, b) in theirs.iter().zip(ours) {
        // Written so that NaN fails.
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-3), "{what}: XLA {theirs:?}, ours {ours:?}");
    }
}

#[test]
fn every_sample_of_every_op_and_the_tutorials_training() {
    let name = "every_sample_of_every_op_and_the_tutorials_training";
    let Some(r) = Runs::new(name, "selftest") else { return };
    let args =
        ["selftest", "--device=xla", "--steps=12", "--batch-size=8", "--report=r.json", "--json", "-q"];
    let o = r.run(&args).ok().json();
    assert_eq!((&o["passed"], &o["results"]["machine"]["backend"]), (&true.into(), &"xla".into()), "{o}");
    let ops = &o["results"]["ops"];
    assert!(ops["samples"].as_u64() > Some(1000) && ops["wrong"] == 0, "{ops}");
    are_curves_of_one_device(&o);
}

/// The self-test's losses of each step on 2, 4 and 8 devices, with each strategy, are those of one.
fn are_curves_of_one_device(report: &Value) {
    let runs = report["results"]["devices"]["runs"].as_array().unwrap();
    let counts: Vec<u64> = runs.iter().map(|r| r["devices"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2, 2, 4, 4, 8, 8], "{runs:?}");
    let curve = |r: &Value| -> Vec<f64> {
        r["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
    };
    let one = curve(&runs[0]);
    assert!(one.len() == 10 && one[9] < one[0], "{one:?}");
    runs[1..].iter().for_each(|run| near(&curve(run), &one, 1e-5, &run.to_string()));
}

/// The form of programs for GPUs, as XLA for CPUs compiles it: the operations that it writes in another way, models
/// with unrolled layers, and several devices.
#[test]
fn the_form_for_gpus() {
    let Some(r) = Runs::new("the_form_for_gpus", "gpu-form") else { return };
    let args = [
        "selftest",
        "--device=xla",
        "--ops=scatter,add,dot_general,while,case,collective_broadcast",
        "--steps=12",
        "--batch-size=8",
        "--report=r.json",
        "--json",
        "-q",
    ];
    let with = |form: &str| Done::of(r.command(&args).env("SYSTOLE_XLA_FORM", form).output().unwrap(), &args);
    let o = with("cuda").ok().json();
    assert_eq!((&o["passed"], &o["results"]["ops"]["wrong"]), (&true.into(), &0.into()), "{o}");
    are_curves_of_one_device(&o);
    let wrong = with("rocm");
    assert_eq!(wrong.code, Some(1), "{}", wrong.err);
    assert!(wrong.out.contains("SYSTOLE_XLA_FORM"), "{}", wrong.out);
    let plugin = Plugin::load(&r.plugin).unwrap();
    let client = Client::open(&plugin, &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    assert!(PjrtBackend::new("xla", client.clone()).wants_loops());
    assert!(!PjrtBackend::new("xla", client.with_form("cuda")).wants_loops());
}

/// As a user starts them: `--devices N`.
#[test]
fn the_loss_curve_of_two_four_and_eight_devices() {
    let Some(r) = Runs::new("the_loss_curve_of_two_four_and_eight_devices", "curves") else { return };
    let common = [&["fashion-mnist", "--data-dir=data", "--set=data.scale=1/255"], &TINY[..]].concat();
    let on = |args: &[&str]| {
        let args = [&["train", "--json", "--device=xla", "--resume=never"], args, &common[..]].concat();
        losses(&r.run(&args).ok())
    };
    let one = on(&["--strategy=one_device"]);
    for devices in ["--devices=2", "--devices=4", "--devices=8"] {
        near(&on(&["--strategy=data_parallel", devices]), &one, 1e-5, devices);
    }
}

#[test]
fn the_tutorials_network_and_the_perceptron_with_dropout() {
    let name = "the_tutorials_network_and_the_perceptron_with_dropout";
    let Some(r) = Runs::new(name, "tutorial") else { return };
    r.compare(&[&["fashion-mnist", "--data-dir=data"], &TINY[..]].concat(), 1e-4);
    let small = ["--set=layers.1.units=16", "--epochs=2", "--steps-per-epoch=4", "--batch-size=16"];
    let few = ["--set=data.train_samples=64", "--set=data.test_samples=32", "--set=data.dataset=glyphs"];
    r.compare(&[&["mnist"][..], &small, &few].concat(), 1e-4);
}

#[test]
fn a_deep_network_with_batch_normalisation() {
    let Some(r) = Runs::new("a_deep_network_with_batch_normalisation", "cifar") else { return };
    let filters: Vec<String> =
        [0, 3, 7, 10, 14, 17].iter().map(|layer| format!("--set=layers.{layer}.filters=4")).collect();
    let mut args = vec!["cifar-cnn", "--synthetic", "--epochs=2", "--steps-per-epoch=3", "--batch-size=16"];
    args.extend(["--set=data.train_samples=64", "--set=data.test_samples=32"]);
    args.extend(filters.iter().map(String::as_str));
    r.compare(&args, 2e-3);
}

#[test]
fn networks_for_sequences() {
    let Some(r) = Runs::new("networks_for_sequences", "sequences") else { return };
    let few = [
        "--set=data.sequence_length=12",
        "--set=data.train_samples=64",
        "--set=data.test_samples=16",
        "--epochs=2",
        "--steps-per-epoch=3",
        "--batch-size=8",
    ];
    let lstm = ["lstm", "--set=layers.0.output_dim=12", "--set=layers.1.units=12", "--set=layers.2.units=12"];
    r.compare(&[&lstm[..], &few].concat(), 1e-4);
    // Three equal blocks are a loop for XLA, and dropout draws the same bits there.
    let gpt2 = [
        "gpt2-small",
        "--set=model.vocabulary_size=256",
        "--set=model.num_layers=3",
        "--set=model.num_heads=2",
        "--set=model.hidden_dim=16",
        "--set=model.intermediate_dim=32",
        "--set=model.max_sequence_length=12",
        "--set=model.dropout=0.1",
    ];
    r.compare(&[&gpt2[..], &few].concat(), 1e-3);
}

#[test]
fn narrow_floats() {
    let Some(r) = Runs::new("narrow_floats", "narrow") else { return };
    for precision in ["mixed_bfloat16", "mixed_float16"] {
        let args = ["fashion-mnist", "--data-dir=data", "--set=data.scale=1/255", "--precision", precision];
        r.compare(&[&args[..], &TINY].concat(), 2e-2);
    }
}

/// XLA's partitioner splits the step as Systole says: the losses are those of one device of ours.
#[test]
fn every_strategy_on_four_devices() {
    let Some(r) = Runs::new("every_strategy_on_four_devices", "strategies") else { return };
    let common = [&["fashion-mnist", "--data-dir=data", "--set=data.scale=1/255"], &TINY[..]].concat();
    let one = r.losses("cpu", &common);
    let four = ["train", "--json", "--device=xla", "--plugin-option=cpu_device_count=4", "--resume=never"];
    for strategy in [
        &["--strategy=data_parallel"][..],
        &["--strategy=fully_sharded"],
        &["--strategy=auto"],
        &["--strategy=one_device"],
        &["--strategy=data_parallel", "--mesh=data=2,model=2"],
    ] {
        let done = r.run(&[&four[..], strategy, &common].concat()).ok();
        near(&losses(&done), &one, 1e-4, &strategy.join(" "));
        assert!(done.err.contains("4 devices"), "{}", done.err);
        // What XLA writes by itself is for -vv.
        assert!(!done.err.contains("shardy_xla_pass"), "{}", done.err);
    }
}

#[test]
fn more_devices_are_asked_for() {
    let Some(r) = Runs::new("more_devices_are_asked_for", "devices") else { return };
    let args = ["train", "fashion-mnist", "--data-dir=data", "--device=xla", "--strategy=data_parallel"];
    let args = [&args[..], &TINY, &["--devices=8"]].concat();
    let told = r.run(&args).ok();
    assert!(told.out.contains("over data=8; 8 devices"), "{}", told.out);
    // Not where the number was given.
    let pinned = r.run(&[&args[..], &["--plugin-option=cpu_device_count=4", "--out=four"]].concat());
    pinned.fails("config", &["data=8", "data=4", "8", "4"]);
    let wrong = r.run(&[&args[..], &["--plugin-option=nonsense=1", "--out=wrong"]].concat());
    wrong.fails("config", &["nonsense", "--plugin-option"]);
    // What fails before a plugin is loaded has nothing to do with what it would have written.
    let before = r.run(&["evaluate", "none.safetensors", "--device=xla"]).fails("io", &["none.safetensors"]);
    assert!(!before.err.contains("warnings"), "{}", before.err);
    // Options of `--devices` are for what they name.
    r.folder.write("p.mlir", "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  %y = stablehlo.add %x, %x : tensor<2xf32>\n  return %y : tensor<2xf32>\n}\n");
    let checked = r.run(&["check", "p.mlir", "--devices=xla,cpu", "--plugin-option=cpu_device_count=2"]).ok();
    assert!(checked.out.contains("xla and cpu agree"), "{}", checked.out);
    let shown = r.run(&["devices", "--json"]).ok().json();
    assert_eq!(shown[0]["xla_plugin"], r.plugin.display().to_string(), "{shown}");
}

#[test]
fn options_without_a_plugin_are_refused() {
    let f = Folder::new("xla-cpu-options");
    let usage = |args: &[&str], names: &[&str]| f.run(args).fails("usage", names);
    usage(&["train", "glyphs", "--plugin-option=a=1"], &["--plugin-option a=1", "--device"]);
    usage(&["train", "glyphs", "--device=cpu", "--plugin-option=a=1"], &["--plugin-option"]);
    usage(&["train", "glyphs", "--device=xla", "--plugin-option=a"], &["KEY=VALUE"]);
    usage(&["check", "p.mlir", "--devices=cpu,ref", "--plugin-option=a=1"], &["--plugin-option"]);
    usage(&["setup", "xla-cpu", "--version=0.0.1"], &["--version"]);
    // Without the variables by which one is found.
    let mut bare = f.command(&["train", "glyphs", "--device=xla", "--epochs=1", "--steps-per-epoch=1"]);
    for name in ["SYSTOLE_PJRT_PLUGIN", "SYSTOLE_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "PATH"] {
        bare.env_remove(name);
    }
    let done = Done::of(bare.env("HOME", &f.0).output().unwrap(), &["train --device xla"]);
    if done.code != Some(0) {
        done.fails("unsupported", &["`xla`", "systole setup xla-cpu"]);
    }
}

/// A run of 4 epochs of 30 steps that saves each step.
fn long<'a>(device: &'a str, out: &'a str) -> Vec<&'a str> {
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--json", "--save-steps=1"];
    args.extend(TINY);
    args.extend(["--set=data.scale=1/255", "--set=fit.epochs=4", "--set=fit.steps_per_epoch=30"]);
    args.extend(["--strategy=one_device", "--device", device, "--out", out]);
    args
}

#[test]
fn killed_runs_go_on_and_models_are_tested_on_the_other_engine() {
    let name = "killed_runs_go_on_and_models_are_tested_on_the_other_engine";
    let Some(r) = Runs::new(name, "resume") else { return };
    let whole = losses(&r.run(&long("cpu", "whole")).ok());
    for (first, then) in [("xla", "cpu"), ("cpu", "xla")] {
        let mut start = r.command(&long(first, then));
        let mut child = start.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(120);
        let backups = format!("{then}/backups");
        while !r.folder.files(&backups).iter().any(|name| name.ends_with(".safetensors")) {
            assert!(Instant::now() < until, "nothing is saved on {first}");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let done = r.run(&long(then, then)).ok();
        assert!(
            done.err.contains(&format!("The run was on {first} and continues on {then}")),
            "{}",
            done.err
        );
        near(&losses(&done), &whole, 1e-3, &format!("{first}, then {then}"));
        assert_eq!(done.json()["total_steps"], 120);
        let model = format!("{then}/fashion-mnist.safetensors");
        let tested = |device: &str| {
            let args = ["evaluate", &model, "--data-dir=data", "--json", "--device", device];
            r.run(&args).ok().json()["loss"].as_f64().unwrap()
        };
        near(&[tested("xla")], &[tested("cpu")], 1e-4, "the model's loss");
    }
}

/// As docs/guide/distributed.md says: there are no hosts of one run over it.
#[test]
fn the_client_takes_no_other_processes() {
    let Some(file) = plugin("the_client_takes_no_other_processes") else { return };
    let plugin = Plugin::load(&file).unwrap();
    let options = ["cpu_device_count", "num_nodes", "node_id"].map(|name| (name, OptionValue::Int(1)));
    let e = Client::open(&plugin, &options).err().expect("it is none of several").to_string();
    // The option that makes several processes is unknown to it.
    assert!(e.contains("PJRT_Client_Create") && (e.contains("num_nodes") || e.contains("node_id")), "{e}");
}

/// Bytes of memory that this process holds.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

#[test]
fn donation_keeps_memory_flat_over_a_thousand_steps() {
    const N: usize = 1 << 20;
    let Some(file) = plugin("donation_keeps_memory_flat_over_a_thousand_steps") else { return };
    let plugin = Plugin::load(&file).unwrap();
    let client = Client::open(&plugin, &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let g = GraphBuilder::new("one_more");
    let x = g.parameter(TensorType::new(DType::F32, [N]), "x");
    let graph = g.finish(&[x + 1.0]).unwrap();
    let program = client.compile(&program_text(&graph, &[0]), 0).unwrap();
    let ty = TensorType::new(DType::F32, [N]);
    let first = client.put(&Literal::zeros(ty.clone()), 0).unwrap();
    let mut x = program.run(&[RunInput::Donated(&first)]).unwrap().remove(0);
    assert!(first.to_literal(&ty).is_err(), "a donated array can be read");
    let before = resident();
    for _ in 1..1000 {
        x = program.run(&[RunInput::Donated(&x)]).unwrap().remove(0);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 * N, "{} MiB more after 1,000 steps with arrays of 4 MiB", grown >> 20);
    assert!(x.to_literal(&ty).unwrap().to_f32s().iter().all(|v| *v == 1000.0));
}

/// What is given to every run, as weights of a loaded model are, is copied to the device once; what comes after it is another.
#[test]
fn arrays_of_the_host_that_are_given_again_are_those_that_they_are() {
    let Some(file) = plugin("arrays_of_the_host_that_are_given_again_are_those_that_they_are") else {
        return;
    };
    let plugin = Plugin::load(&file).unwrap();
    let client = Client::open(&plugin, &[("cpu_device_count", OptionValue::Int(1))]).unwrap();
    let backend = PjrtBackend::new("xla", client);
    let g = GraphBuilder::new("sum");
    let ty = TensorType::new(DType::F32, [1 << 18]);
    let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty.clone(), "x"));
    // Both may be written to, as a step's arguments are.
    let options = CompileOptions { donated: vec![0, 1], ..CompileOptions::default() };
    let program = backend.compile(&g.finish(&[&w + &x]).unwrap(), &options).unwrap();
    let splat = |v: f64| Buffer::from(Literal::splat(ty.clone(), Scalar::Float(v)));
    for weight in [1.0, 2.0, 3.0] {
        // Freed after three runs: the next may lie where this one lay.
        let w = splat(weight);
        for step in 0..3 {
            let x = splat(10.0 * f64::from(step));
            let y = program
                .run(vec![ExecutableArg::Donate(w.clone()), ExecutableArg::Donate(x)])
                .unwrap()
                .remove(0);
            let y = y.to_literal().unwrap().to_f32s();
            assert!(
                y.iter().all(|v| f64::from(*v) == weight + 10.0 * f64::from(step)),
                "{weight}, {step}: {}",
                y[0]
            );
        }
    }
}
