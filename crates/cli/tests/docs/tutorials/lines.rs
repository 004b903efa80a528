//! Runs every line of the tutorials page whose status is "runs". Placeholders in capitals get a small model and small
//! data; lines that cannot be run as printed are listed in `BY_HAND`.

use super::rust;
use crate::program::{Done, Folder, TINY};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A row of the page's tables.
struct Row {
    taught: String,
    here: String,
    status: String,
}

impl Row {
    fn spans(&self) -> Vec<&str> {
        self.here.split('`').chain(["|"]).chain(self.status.split('`')).skip(1).step_by(2).collect()
    }
}

fn rows() -> Vec<Row> {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/guide/tutorials.md")).unwrap();
    let lines = page.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| taught"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [taught, here, status] = cells[..] else { panic!("three cells, not {}: {line}", cells.len()) };
        Row { taught: taught.into(), here: here.into(), status: status.into() }
    };
    lines.map(row).collect()
}

/// Function that runs a line of the page.
type Run = fn(&Lines);

/// Tests for lines that show no complete command, by the start of the line.
const BY_HAND: &[(&str, Run)] = &[
    ("an error when none is attached", no_tpu_is_an_error),
    ("`TPU_NAME`, `TPU_ZONE`, `TPU_PROJECT`", the_clouds_variables_are_read),
    ("a preemptible TPU can be taken", a_terminated_run_goes_on_with_the_same_bits),
    ("`with strategy.scope():`", |_| rust::the_strategy_is_an_argument()),
    ("`Sequential` of Conv2D", |_| rust::the_tutorials_network_is_trained()),
    ("`compile` with Adam", |_| rust::the_tutorials_network_is_trained()),
    ("`tpu.rewrite`", |_| rust::a_function_is_compiled()),
    ("`from_tensor_slices`", |_| rust::stages_have_the_same_names()),
    ("resize to 224×224", |_| rust::pictures_are_resized_and_scaled()),
    ("`list_files` and `interleave`", |l| rust::records_are_interleaved(&l.folder.path("recs"))),
    ("`parse_single_example`", |l| rust::records_are_interleaved(&l.folder.path("recs"))),
    ("options with autotuning", |_| rust::tuning_explains_itself()),
    ("the input must not become", waiting_is_shown),
    ("zero the gradients", |_| rust::a_loop_of_ones_own_takes_gradients()),
    ("inference", |_| rust::the_tutorials_network_is_trained()),
    ("its limits", wrong_layers_are_named_and_new_shapes_told),
    ("Lightning", |l| rust::callbacks_and_backups_are_kept(&l.folder.path("lightning"))),
    ("Accelerate: one to many", |_| rust::a_function_is_compiled()),
    ("fastai: images in folders", confused_classes_are_told),
    ("fastai: pretrained models", a_model_is_adapted_to_other_classes),
    ("fastai: freeze", discriminative_rates_and_averaged_predictions),
    ("BigGAN", accumulated_gradients_are_trained),
    ("memory pools", memory_is_planned_before_a_run),
    ("a pipeline that prefetches", |_| rust::stages_have_the_same_names()),
    ("debugger", |_| rust::a_pipeline_is_debugged()),
    ("profiler, kernel profiler", the_timeline_is_json),
];

/// Runs the page's commands in a folder and remembers which ones have run.
pub struct Lines {
    folder: Folder,
    done: RefCell<BTreeMap<String, String>>,
}

impl Lines {
    fn new() -> Lines {
        let folder = Folder::with_data("tutorials-lines");
        folder.train("model");
        folder.convert("recs", "2", &[]);
        let keras = Path::new(ROOT).join("fixtures/weights/cnn.keras");
        std::fs::copy(keras, folder.path("MODEL.keras")).unwrap();
        for (class, kind) in [("even", 0), ("odd", 1)] {
            (0..12)
                .for_each(|i| drop(folder.write(&format!("album/{class}/{i}.png"), rust::picture(kind, i))));
        }
        Lines { folder, done: RefCell::default() }
    }

    /// Returns the output of a command. A command that has already run is not run again.
    fn run(&self, args: &[&str]) -> String {
        let what = args.join(" ");
        let known = self.done.borrow().get(&what).cloned();
        known.unwrap_or_else(|| {
            let done = self.folder.run(args).ok();
            let printed = done.out + &done.err;
            self.done.borrow_mut().insert(what, printed.clone());
            printed
        })
    }

    fn train(&self, out: &str, more: &[&str]) -> Vec<String> {
        let args = [&["train", "fashion-mnist", "--data-dir=data", "--out", out], &TINY[..], more].concat();
        args.into_iter().map(String::from).collect()
    }

    /// Runs the code of a line if it is a command or an option of `train`. Returns whether it was.
    fn span(&self, span: &str) -> bool {
        let words: Vec<&str> = span.split_whitespace().collect();
        let command: Vec<String> = match words[..] {
            ["systole", "train", what] => small(what),
            ["systole", "plan", ..] => {
                let targets =
                    ["--targets", "v2-8,v5e-4,h100,cpu"].iter().filter(|_| !span.contains("--targets"));
                words[1..].iter().chain(targets).map(|w| filled(w, "glyphs")).collect()
            }
            ["systole", "predict", ..] => {
                let files = ["predict", "model/fashion-mnist.safetensors", "model/fashion-mnist-example.png"];
                files.map(String::from).to_vec()
            }
            ["systole", "resume", _] => return false, // tested by hand, after a signal
            ["systole", "launch", ..] => return false, // `tests/runs/hosts.rs`, which has the plugin
            ["systole", "data", "bench", ..] => {
                let seconds = "--seconds=0.2".to_string();
                words[1..].iter().map(|w| filled(w, "glyphs")).chain([seconds]).collect()
            }
            ["systole", "quantize" | "export", ..] if span.contains(".tflite") => {
                let more = ["--data-dir=data", "--force", "--samples=20"].map(String::from);
                words[1..].iter().map(|w| filled(w, "model/fashion-mnist.safetensors")).chain(more).collect()
            }
            ["systole", ..] => words[1..].iter().map(|w| filled(w, "glyphs")).collect(),
            ["--device", "tpu"] => return false, // tested by hand: it is an error without a TPU
            [option, ..] if option.starts_with("--") => {
                let several = ["--devices", "4"].iter().filter(|_| option == "--strategy");
                let more: Vec<String> = words.iter().chain(several).map(|w| filled(w, "")).collect();
                let out = format!("options-{}", words.join(""));
                self.train(&out, &more.iter().map(String::as_str).collect::<Vec<_>>())
            }
            [path] if path.starts_with("examples/") => return is_a_test(path),
            [path] if path.starts_with("crates/cli/tests/") => return Path::new(ROOT).join(path).is_file(),
            _ => return false,
        };
        self.run(&command.iter().map(String::as_str).collect::<Vec<_>>());
        true
    }
}

/// Replaces the placeholders in capitals of a word by their values here.
fn filled(word: &str, model: &str) -> String {
    match word {
        "MODEL" => model.into(),
        "R" => "europe-west4".into(),
        "DOLLARS" => "100".into(),
        "FOLDER" => "recs".into(),
        "FILE" => "file.json".into(),
        "FILE.toml" => "file.toml".into(),
        other => other.into(),
    }
}

/// Arguments of `systole train WHAT` with the smallest settings.
fn small(what: &str) -> Vec<String> {
    let (what, more): (&str, &[&str]) = match what {
        "fashion-mnist" => (what, &["--data-dir=data", "--set=layers.0.filters=2"]),
        "mlp" => (what, &["--set=layers.1.units=8", "--set=data.test_samples=20"]),
        "cifar-cnn" => (what, &["--synthetic", "--set=data.test_samples=8"]),
        "resnet50" => {
            (what, &["--set=model.width=4", "--set=model.depths=[1,1,1,1]", "--set=data.test_samples=4"])
        }
        "biggan" => (
            what,
            &[
                "--set=biggan.G_ch=1",
                "--set=biggan.D_ch=1",
                "--set=biggan.dim_z=8",
                "--set=biggan.num_D_steps=1",
            ],
        ),
        "FOLDER" => ("recs", &["--set=data.test_samples=20"]),
        other => panic!("the page trains {other}, and this test does not know how to make it small"),
    };
    let all =
        ["train", what, "--epochs=1", "--steps-per-epoch=2", "--batch-size=4", "--seed=3", "--threads=1"];
    all.iter().chain(more).map(|w| w.to_string()).collect()
}

/// Whether an example is run by its own test.
fn is_a_test(example: &str) -> bool {
    let name = example.trim_start_matches("examples/").trim_end_matches(".rs");
    let tests = std::fs::read_to_string(Path::new(ROOT).join("crates/cli/tests/docs/examples.rs")).unwrap();
    Path::new(ROOT).join(example).is_file() && tests.contains(&format!("run(\"{name}\")"))
}

#[test]
fn every_line_that_says_runs_is_run() {
    let lines = Lines::new();
    let mut by_hand: Vec<&str> = BY_HAND.iter().map(|b| b.0).collect();
    let mut ran = 0;
    for row in rows().iter().filter(|r| r.status.starts_with("runs")) {
        let begun = Instant::now();
        let mut parts = row.spans().into_iter().filter(|span| lines.span(span)).count();
        for (_, check) in BY_HAND.iter().filter(|b| row.taught.starts_with(b.0)) {
            check(&lines);
            parts += 1;
        }
        by_hand.retain(|b| !row.taught.starts_with(b));
        assert!(
            parts > 0,
            "this line says `{}`, and nothing of it is run: {} | {}",
            row.status,
            row.taught,
            row.here
        );
        println!("{:.1} s: {}", begun.elapsed().as_secs_f64(), row.taught);
        ran += 1;
    }
    assert!(by_hand.is_empty(), "no line that says `runs` begins so: {by_hand:?}");
    assert!(ran > 35, "{ran} lines");
}

/// Lines that need hardware missing here have another status than "runs".
#[test]
fn lines_that_need_hardware_do_not_say_runs() {
    let hardware = ["--device tpu", "--device cuda", "systole compile", "systole setup", "Colab", "Kaggle"];
    for row in rows().iter().filter(|r| r.status.split([',', ';']).any(|s| s.trim() == "runs")) {
        let asked = hardware.iter().find(|h| row.here.contains(*h) || row.taught.contains(*h));
        let refused = row.taught.starts_with("an error when none is attached");
        assert!(asked.is_none() || refused, "{asked:?} says runs: {}", row.taught);
    }
}

fn no_tpu_is_an_error(l: &Lines) {
    if Path::new("/dev/accel0").exists() || Path::new("/dev/vfio/0").exists() {
        return; // no error with a TPU
    }
    let args = l.train("tpu", &["--device", "tpu"]);
    let done = l.folder.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    done.fails("unsupported", &["/dev/accel0"]);
}

fn the_clouds_variables_are_read(l: &Lines) {
    let mut command = l.folder.command(&["devices"]);
    command.envs([("TPU_NAME", "my-tpu"), ("TPU_ZONE", "us-west4-a"), ("TPU_PROJECT", "my-project")]);
    let done = Done::of(command.output().unwrap(), &["devices"]).ok();
    for part in ["my-tpu", "us-west4-a", "my-project"] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
}

fn a_terminated_run_goes_on_with_the_same_bits(l: &Lines) {
    let long = ["--set=fit.steps_per_epoch=600", "--set=fit.epochs=1", "--save-steps=1"];
    let model = |dir: &str| std::fs::read(l.folder.path(dir).join("fashion-mnist.safetensors")).unwrap();
    let of = |dir| {
        l.train(dir, &long).into_iter().filter(|a| !a.starts_with("--epochs") && !a.starts_with("--steps"))
    };
    let args: Vec<String> = of("killed").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut child = l.folder.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while l.folder.files("killed/backups").is_empty() {
        assert!(Instant::now() < until, "nothing is saved");
        std::thread::sleep(Duration::from_millis(1));
    }
    let sent = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    let code = child.wait().unwrap().code();
    assert!(sent.success() && code == Some(143), "{code:?}");
    l.folder.run(&["resume", "killed"]).ok();
    let whole: Vec<String> = of("whole").collect();
    l.folder.run(&whole.iter().map(String::as_str).collect::<Vec<_>>()).ok();
    assert!(model("killed") == model("whole"), "a run that was stopped ends with other bits");
}

fn waiting_is_shown(l: &Lines) {
    let args = l.train("waiting", &[]);
    let printed = l.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(printed.contains("waiting for data"), "{printed}");
}

fn wrong_layers_are_named_and_new_shapes_told(l: &Lines) {
    let wrong = l.train("wrong", &["--set=layers.0.kernel_size=[40, 40]"]);
    let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
    l.folder.run(&wrong).fails("graph", &["conv2d"]);
    // 64 images with batch size 24: the last batch has another shape.
    let odd = l.train("odd", &["--set=fit.batch_size=24", "-v"]);
    let odd =
        odd.iter().map(String::as_str).filter(|a| !a.starts_with("--batch") && !a.starts_with("--steps"));
    let odd: Vec<&str> = odd.collect();
    let printed = l.run(&odd);
    assert!(printed.contains("recompiling"), "{printed}");
}

fn confused_classes_are_told(l: &Lines) {
    let args = [
        "train",
        "album",
        "--epochs=1",
        "--batch-size=4",
        "--seed=3",
        "--threads=1",
        "--set=layers.0.filters=2",
    ];
    assert!(l.run(&args).contains("Most confused: "));
}

fn a_model_is_adapted_to_other_classes(l: &Lines) {
    let args =
        ["train", "album", "--from=model", "--fine-tune", "--epochs=1", "--batch-size=4", "--out=adapted"];
    let printed = l.run(&args);
    assert!(
        printed.contains("Fine-tuning: 1 epoch of only the head") && printed.contains("new: "),
        "{printed}"
    );
}

fn discriminative_rates_and_averaged_predictions(l: &Lines) {
    let args =
        ["train", "album", "--from=model", "--fine-tune", "--epochs=1", "--batch-size=4", "--out=tuned"];
    let printed = l.run(&args);
    assert!(printed.contains("layers near the input at 1/100 of the learning rate"), "{printed}");
    let printed = l.run(&["evaluate", "tuned", "--data-dir=album", "--tta"]);
    assert!(printed.contains("test-time augmentation: ") && printed.contains("Most confused: "), "{printed}");
}

fn accumulated_gradients_are_trained(l: &Lines) {
    let args = l.train("accumulated", &["--set=optimizer.gradient_accumulation_steps=4"]);
    l.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
}

fn memory_is_planned_before_a_run(l: &Lines) {
    let args = l.train("pools", &["--memory-limit=1MiB"]);
    let done = l.folder.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    done.fails("unsupported", &["1 MiB", "--memory-limit"]);
}

fn the_timeline_is_json(l: &Lines) {
    let text = std::fs::read_to_string(l.folder.path("file.json")).unwrap();
    let events: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = events["traceEvents"].as_array().or(events.as_array()).unwrap().len();
    assert!(events > 10, "{events} events");
}
