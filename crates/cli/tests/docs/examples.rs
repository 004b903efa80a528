//! Runs the examples; their own assertions must hold.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use systole_base::rng::RandomStream;

/// Where cargo puts examples: beside the program, built by the same `cargo test`.
fn program(name: &str) -> PathBuf {
    let bin = Path::new(env!("CARGO_BIN_EXE_systole"));
    bin.parent().expect("a folder").join("examples").join(name)
}

fn run(name: &str) -> String {
    finished(name, &mut command(name))
}

/// The example in a scratch folder of its own.
fn command(name: &str) -> Command {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{name}"));
    std::fs::create_dir_all(&dir).expect("a scratch folder");
    let path = program(name);
    if !path.is_file() {
        // `cargo test --test docs` builds no examples.
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "--example", name])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .status();
        assert!(built.is_ok_and(|s| s.success()), "{name} does not build");
    }
    let mut command = Command::new(&path);
    command.current_dir(&dir);
    command
}

/// What a program prints that ends well.
fn finished(name: &str, command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{name}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{name}: {text}\n{}", String::from_utf8_lossy(&out.stderr));
    text
}

#[test]
fn tiny() {
    assert!(run("tiny").contains("w 0.8000"));
}

#[test]
fn axpy() {
    assert!(run("axpy").contains("3 * x + y = [13.0, 26.0, 39.0, 52.0]"));
}

#[test]
fn custom_loop() {
    let mut watched = command("custom_loop");
    let told = finished("custom_loop", watched.env("SYSTOLE_PROFILE", "layers"));
    assert!(told.contains("epoch 2: loss"));
    // The part that it names is a row of the profile's table by layer.
    assert!(told.lines().any(|l| l.starts_with("hidden ")), "{told}");
}

#[test]
fn custom_loss() {
    assert!(run("custom_loss").contains("confidence "));
}

/// Races and bank conflicts are found by rule: the same ones whatever the threads' luck.
#[test]
fn grid() {
    let text = run("grid");
    for told in
        ["vector sum: 1000 elements in 16 blocks", "13824 reads of a", "1728 with tiles", "32-way", "1-way"]
    {
        assert!(text.contains(told), "{told}\n{text}");
    }
    assert!(text.contains("races, the first of them\n  tile_a[0]: thread 0 of block 0 writes"), "{text}");
    assert_eq!(text, run("grid"));
}

#[test]
fn gan() {
    assert!(run("gan").contains("generated points lie at radius"));
}

#[test]
fn fashion_mnist() {
    let data = std::env::var("SYSTOLE_DATA").ok().filter(|d| Path::new(d).is_dir());
    if data.is_none() {
        println!("SKIPPED fashion_mnist: SYSTOLE_DATA names no folder with the data set");
        return;
    }
    assert!(run("fashion_mnist").contains("test accuracy 0.8"));
}

/// The tutorials' programs: the configurations on a few synthetic images; the Rust programs need the real data.
#[test]
fn tutorials() {
    for name in ["cnn", "mlp", "loop"] {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../examples/tutorials/{name}.toml"));
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tutorial-{name}"));
        let few = ["--epochs=1", "--steps-per-epoch=2", "--batch-size=16", "--set=data.test_samples=20"];
        let mut train = Command::new(env!("CARGO_BIN_EXE_systole"));
        train.arg("train").arg(&file).arg("--out").arg(&out).arg("--synthetic").args(few);
        let text = finished(name, &mut train);
        assert!(text.contains("Test: loss") && text.contains("on 20 images"), "{name}: {text}");
    }
    let data = std::env::var("SYSTOLE_DATA").ok().filter(|d| Path::new(d).is_dir());
    if data.is_none() {
        println!("SKIPPED tutorials in Rust: SYSTOLE_DATA names no folder with the data sets");
        return;
    }
    for (name, least) in [("tutorial_cnn", 0.84), ("tutorial_mlp", 0.85), ("tutorial_loop", 0.95)] {
        let text = run(name);
        let accuracy = text.lines().find_map(|l| l.strip_prefix("test accuracy ")?.parse::<f64>().ok());
        assert!(accuracy.is_some_and(|a| a > least), "{name}: {text}");
    }
}

/// The last line of a loop: its steps, and a digest of its weights.
fn loop_ends(arguments: &[&str]) -> String {
    let text = finished("pytorch_loop", command("pytorch_loop").args(arguments));
    let last = text.lines().last().unwrap_or_default().to_string();
    assert!(last.starts_with("finished after 20 steps"), "{text}");
    last
}

/// The loop of the PyTorch tutorials on one device and on eight, in bf16, and with ResNet-50; `bench/pytorch-loop` runs it on plugins.
#[test]
fn pytorch_loop() {
    let cnn = ["cnn", "--steps", "20", "--batch", "8"];
    let whole = loop_ends(&cnn);
    assert_eq!(loop_ends(&cnn), whole, "the same bits");
    loop_ends(&[&cnn[..], &["--devices", "8"]].concat());
    loop_ends(&[&cnn[..], &["--precision", "mixed_bfloat16", "--accumulate", "2"]].concat());
    let resnet = ["resnet50", "--steps", "1", "--batch", "4"];
    assert!(
        finished("pytorch_loop", command("pytorch_loop").args(resnet)).contains("finished after 1 steps")
    );
    // Unchanged on the plugin that `cargo test --workspace` builds.
    let exe = std::env::current_exe().expect("a path");
    let plugin =
        exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    match plugin {
        Some(plugin) => {
            let device = format!("pjrt:{}", plugin.display());
            drop(loop_ends(&[&cnn[..], &["--device", &device]].concat()));
        }
        None => println!("SKIPPED pytorch_loop on the plugin: `cargo build -p systole-plugin` was not run"),
    }
    let wrong = command("pytorch_loop").args(["--batch", "many"]).output().expect("it runs");
    assert!(!wrong.status.success() && String::from_utf8_lossy(&wrong.stderr).contains("many"));
}

/// `kill -9` at random instants, `SYSTOLE_LOOP_KILLS` of them (5): the same bits as without.
#[test]
fn a_killed_pytorch_loop_ends_with_the_same_bits() {
    let wanted = std::env::var("SYSTOLE_LOOP_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let began = Instant::now();
    let whole = loop_ends(&["--steps", "20", "--batch", "8"]);
    let longest = began.elapsed();
    let (mut draws, mut kills) = (RandomStream::new(3, 0, 0), 0);
    while kills < wanted {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("example-pytorch_loop/killed");
        let _ = std::fs::remove_dir_all(&out);
        let arguments = ["--steps", "20", "--batch", "8", "--out", out.to_str().expect("a path")];
        for _ in 0..4 {
            let mut child =
                command("pytorch_loop").args(arguments).stdout(Stdio::null()).spawn().expect("it runs");
            let until = Instant::now() + longest.mul_f64(draws.below(1000) as f64 / 1000.0);
            while Instant::now() < until && child.try_wait().expect("a state").is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            kills += usize::from(child.try_wait().expect("a state").is_none());
            let _ = child.kill();
            child.wait().expect("it ends");
        }
        assert_eq!(loop_ends(&arguments), whole, "after {kills} kills");
    }
}
