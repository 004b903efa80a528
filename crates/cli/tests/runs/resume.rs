//! Tests that a killed run, when resumed, ends with the same result as an uninterrupted one.

#![allow(clippy::print_stdout, reason = "says how many kills there were")]

use crate::program::{Done, Folder, TINY};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use systole_base::rng::RandomStream;

/// A run of 4 epochs of 30 steps into `out`.
fn train<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args =
        vec!["train", "fashion-mnist", "--data-dir=data", "--out", out, "--save-steps=1", "--json"];
    args.extend(TINY.iter().filter(|a| !a.starts_with("--threads")));
    args.extend(["--set=fit.epochs=4", "--set=fit.steps_per_epoch=30"]);
    args.extend(more);
    args
}

fn model(f: &Folder, out: &str) -> Vec<u8> {
    std::fs::read(f.path(out).join("fashion-mnist.safetensors")).unwrap()
}

/// Starts the run again and again, each time with another number of threads, and kills it after a random time, until it
/// comes to its end.
fn kill_until_done(f: &Folder, args: &[&str], draws: &mut RandomStream, longest: Duration) -> usize {
    for kills in 0.. {
        let mut start = f.command(args);
        start.arg(format!("--threads={}", 1 + kills % 3)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = start.spawn().unwrap();
        let until = Instant::now() + longest.mul_f64(draws.below(1000) as f64 / 1000.0);
        while Instant::now() < until {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        let ended = child.try_wait().unwrap().is_some();
        let _ = child.kill();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("error:") && !text.contains("panicked"), "after {kills} kills: {text}");
        if ended {
            assert_eq!(output.status.code(), Some(0), "{text}");
            return kills;
        }
    }
    unreachable!()
}

fn temporary_files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.ends_with(".tmp")).collect()
}

/// `kill -9` at random instants, `SYSTOLE_KILLS` of them (200). Every start goes on, and model, metrics and history
/// equal those of a run that was never killed, bit for bit. The recorded run of docs/guide/reliability.md takes 1,000.
#[test]
fn killed_runs_end_with_the_same_bits() {
    let wanted = std::env::var("SYSTOLE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let f = Folder::with_data("kills");
    let whole = f.run(&train("whole", &[])).ok().json();
    let took = Instant::now();
    f.run(&train("again", &[])).ok();
    let longest = took.elapsed();
    assert_eq!(model(&f, "again"), model(&f, "whole"));
    let mut draws = RandomStream::new(7, 0, 0);
    let (mut kills, mut runs) = (0, 0);
    while kills < wanted {
        let _ = std::fs::remove_dir_all(f.path("cut"));
        kills += kill_until_done(&f, &train("cut", &[]), &mut draws, longest / 2);
        runs += 1;
        assert_eq!(model(&f, "cut"), model(&f, "whole"), "run {runs}");
        let told = f.run(&train("cut", &["--threads=3"])).ok().json();
        for key in ["history", "loss", "val_loss", "total_steps", "total_epochs"] {
            assert_eq!(told[key], whole[key], "{key}");
        }
        for folder in ["cut", "cut/backups"] {
            assert_eq!(temporary_files(&f.path(folder)), [""; 0], "{folder}");
        }
    }
    println!("{kills} kills in {runs} runs");
}

/// As above, with steps that are split over devices: their parts are put together for a backup and split again.
#[test]
fn killed_runs_of_several_devices_end_with_the_same_bits() {
    let f = Folder::with_data("kills-split");
    for (at, strategy) in ["data_parallel", "fully_sharded"].into_iter().enumerate() {
        let split = [&format!("--strategy={strategy}")[..], "--devices=4"];
        let out = |name: &str| format!("{strategy}-{name}");
        let began = Instant::now();
        let whole = f.run(&train(&out("whole"), &split)).ok().json();
        let longest = began.elapsed() / 2;
        let mut draws = RandomStream::new(11, at as u64, 0);
        let mut kills = 0;
        while kills < 10 {
            let _ = std::fs::remove_dir_all(f.path(&out("cut")));
            kills += kill_until_done(&f, &train(&out("cut"), &split), &mut draws, longest);
            assert!(model(&f, &out("cut")) == model(&f, &out("whole")), "{strategy}, {kills} kills");
        }
        let told = f.run(&train(&out("cut"), &split)).ok().json();
        for key in ["history", "loss", "val_loss", "total_steps", "total_epochs"] {
            assert_eq!(told[key], whole[key], "{strategy}: {key}");
        }
    }
}

/// As above, with optimizers whose state is of other types and first values than the weights, rates and momentum over the whole
/// run, means of the weights, layers with optimizers and rates of their own, mixed pictures, and callbacks of the configuration.
#[test]
fn killed_runs_of_other_optimizers_end_with_the_same_bits() {
    let f = Folder::with_data("kills-optimizers");
    let optimizers = [
        ("adafactor", "use_ema=true"),
        ("muon", "momentum_schedule={ type = \"OneCycleMomentum\" }"),
        ("nadam", "optimizer_map={ dense = { type = \"sgd\", learning_rate = 0.01, momentum = 0.9 } }"),
        ("schedulefreeadamw", "swa={ swa_lrs = 0.005, swa_epoch_start = 0.5, annealing_epochs = 1 }"),
    ];
    for (at, (optimizer, own)) in optimizers.into_iter().enumerate() {
        let own = format!("--set=optimizer.{own}");
        let kind = format!("--set=optimizer.type={optimizer}");
        let callbacks = "--set=callbacks=[{ type = \"EarlyStopping\", monitor = \"loss\", patience = 1, min_delta = 0.05 }, \
                         { type = \"CSVLogger\", filename = \"log.csv\" }]";
        let back = "--set=optimizer.lookahead_steps=6";
        let more = [
            &kind[..],
            "--one-cycle=0.01",
            &own,
            back,
            "--set=optimizer.lr_mult={\"*/bias\"=0.5}",
            "--augment=mixup=0.4,cutmix,flip",
            callbacks,
        ];
        let log = |out: &str| std::fs::read_to_string(f.path(out).join("log.csv")).unwrap();
        let out = |name: &str| format!("{optimizer}-{name}");
        let began = Instant::now();
        let whole = f.run(&train(&out("whole"), &more)).ok().json();
        let longest = began.elapsed() / 2;
        let mut draws = RandomStream::new(12, at as u64, 0);
        let mut kills = 0;
        while kills < 5 {
            let _ = std::fs::remove_dir_all(f.path(&out("cut")));
            kills += kill_until_done(&f, &train(&out("cut"), &more), &mut draws, longest);
            assert!(model(&f, &out("cut")) == model(&f, &out("whole")), "{optimizer}, {kills} kills");
            assert_eq!(log(&out("cut")), log(&out("whole")), "{optimizer}, {kills} kills");
        }
        let told = f.run(&train(&out("cut"), &more)).ok().json();
        assert_eq!((&told["history"], &told["loss"]), (&whole["history"], &whole["loss"]), "{optimizer}");
    }
}

/// As above, with all callbacks of the configuration that decide, save and write, and validation in the middle of epochs.
/// `SYSTOLE_CALLBACK_KILLS` of them (5); the recorded run takes more.
#[test]
fn killed_runs_with_all_callbacks_decide_the_same() {
    let wanted = std::env::var("SYSTOLE_CALLBACK_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let f = Folder::with_data("kills-callbacks");
    let callbacks = "--set=callbacks=[\
        { type = \"EarlyStopping\", patience = 4, min_delta = 0.02, restore_best_weights = true }, \
        { type = \"ModelCheckpoint\", filename = \"{epoch}-{step}-{val_loss:.3f}\", monitor = \"val_loss\", save_top_k = 2, save_last = true }, \
        { type = \"ModelCheckpoint\", dirpath = \"fixed\", filename = \"m\", save_top_k = -1, every_n_train_steps = 17 }, \
        { type = \"ReduceLROnPlateau\", monitor = \"loss\", factor = 0.5, patience = 1 }, \
        { type = \"LearningRateMonitor\", log_momentum = true }, { type = \"CSVLogger\", filename = \"log.csv\" }, \
        { type = \"TensorBoard\", update_freq = 10 }, { type = \"Timer\", duration = \"05:00:00\" }, \
        { type = \"GradientAccumulationScheduler\", scheduling = { 1 = 3, 2 = 2 } }, { type = \"SpikeDetection\", rtol = 1e9 }, { type = \"TerminateOnNaN\" }]";
    let more = [
        callbacks,
        "--val-check-interval=0.4",
        "--check-val-every-n-epoch=1",
        "--set=optimizer.learning_rate=0.01",
    ];
    let left = |out: &str| {
        let bytes = |name: String| (name.clone(), std::fs::read(f.path(out).join(name)).unwrap());
        let within = |dir: &str| {
            let files = f.files(&format!("{out}/{dir}")).into_iter();
            files.map(|name| bytes(format!("{dir}/{name}"))).collect::<Vec<_>>()
        };
        [within("checkpoints"), within("fixed"), vec![bytes("log.csv".into())]].concat()
    };
    let began = Instant::now();
    let whole = f.run(&train("whole", &more)).ok().json();
    let (longest, files) = (began.elapsed() / 2, left("whole"));
    assert!(files.len() > 4 && whole["validations"].as_array().unwrap().len() > 2, "{whole}");
    let mut draws = RandomStream::new(13, 0, 0);
    let mut kills = 0;
    while kills < wanted {
        let _ = std::fs::remove_dir_all(f.path("cut"));
        // What a kill in the middle of a save leaves.
        for dir in ["cut/checkpoints", "cut/fixed"] {
            std::fs::create_dir_all(f.path(dir)).unwrap();
            std::fs::write(f.path(dir).join(".systole-1-0.tmp"), b"half").unwrap();
        }
        kills += kill_until_done(&f, &train("cut", &more), &mut draws, longest);
        assert!(model(&f, "cut") == model(&f, "whole"), "{kills} kills");
        let (names, same) = (f.files("cut/checkpoints"), left("cut") == files);
        assert!(same, "{kills} kills: {names:?}");
        let told = f.run(&train("cut", &more)).ok().json();
        for key in ["history", "validations", "stopped_because", "loss", "val_loss", "total_steps"] {
            assert_eq!(told[key], whole[key], "{key}, {kills} kills");
        }
    }
    println!("{kills} kills");
}

/// As above, of a generator and a discriminator: parts of batches, running means, grids of pictures. `SYSTOLE_GAN_KILLS` of them (2); the
/// recorded run takes more.
#[test]
fn killed_runs_of_a_gan_end_with_the_same_bits() {
    let wanted = std::env::var("SYSTOLE_GAN_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let f = Folder::new("kills-gan");
    let run = |out: &str| -> Vec<String> {
        let mut args = vec![
            "train",
            "biggan",
            "--out",
            out,
            "--save-steps=1",
            "--json",
            "--batch-size=4",
            "--no-report",
        ];
        args.extend(["--epochs=2", "--steps-per-epoch=4", "--set=data.train_samples=60"]);
        let sets =
            "G_ch=1 D_ch=1 dim_z=8 shared_dim=4 num_D_steps=1 num_D_accumulations=2 ema_start=3 save_every=3";
        let sets = sets.split(' ').map(|set| format!("--set=biggan.{set}"));
        args.iter().map(|a| a.to_string()).chain(sets).collect()
    };
    let left = |out: &str| {
        let files = [
            "colour-glyphs.safetensors",
            "samples.png",
            "samples/step-0000003.png",
            "samples/step-0000006.png",
        ];
        files.map(|name| std::fs::read(f.path(out).join(name)).unwrap())
    };
    let began = Instant::now();
    let whole = run("whole");
    let whole = f.run(&whole.iter().map(String::as_str).collect::<Vec<_>>()).ok().json();
    // Most of a short run is its start: killed within half of its time it would hardly get on.
    let longest = began.elapsed();
    let mut draws = RandomStream::new(14, 0, 0);
    let cut = run("cut");
    let cut: Vec<&str> = cut.iter().map(String::as_str).collect();
    let mut kills = 0;
    while kills < wanted {
        let _ = std::fs::remove_dir_all(f.path("cut"));
        kills += kill_until_done(&f, &cut, &mut draws, longest);
        assert!(left("cut") == left("whole"), "{kills} kills");
    }
    let told = f.run(&cut).ok().json();
    for key in ["history", "loss", "D_loss", "G_loss", "total_steps"] {
        assert_eq!(told[key], whole[key], "{key}, {kills} kills");
    }
    println!("{kills} kills");
}

#[test]
fn a_run_moves_to_other_devices_when_it_is_told_to_and_says_so() {
    let f = Folder::with_data("moved");
    let on = |n: usize| ["--strategy=data_parallel".to_string(), format!("--devices={n}")];
    let (two, four) = (on(2), on(4));
    let [two, four] = [&two, &four].map(|flags| [flags[0].as_str(), flags[1].as_str()]);
    let whole = f.run(&train("whole", &two)).ok().json();
    kill_after_backups(&f, "out", &two);
    f.run(&train("out", &four)).fails("config", &["strategy.devices", "4", "2", "--resume=force"]);
    f.run(&train("out", &[])).fails("config", &["strategy.type", "--resume=force"]);
    let plain: Vec<&str> = train("out", &four).into_iter().filter(|a| *a != "--json").collect();
    let done = f.run(&[&plain[..], &["--resume=force"]].concat()).ok();
    let says = "The run was on data_parallel over 2 devices of cpu and continues on data_parallel over 4 devices of cpu";
    assert!(done.out.contains("Resuming at epoch") && done.out.contains(says), "{}", done.out);
    let moved = f.run(&train("out", &four)).ok().json();
    let loss = |o: &serde_json::Value| o["loss"].as_f64().unwrap();
    assert!((loss(&moved) - loss(&whole)).abs() <= 1e-4 * loss(&whole), "{moved} {whole}");
    assert_eq!(moved["total_steps"], whole["total_steps"]);
}

/// Starts a run and kills it when some of it is saved.
fn kill_after_backups(f: &Folder, out: &str, more: &[&str]) {
    let mut child = f.command(&train(out, more)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let saved = |name: &String| name.ends_with(".safetensors");
    while !f.files(&format!("{out}/backups")).iter().any(saved) {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_goes_on_by_the_same_command_and_by_resume() {
    let f = Folder::with_data("go-on");
    f.run(&train("whole", &[])).ok();
    kill_after_backups(&f, "a", &[]);
    let o = f.run(&train("a", &["--threads=3"])).ok().json();
    assert!(o["resumed_at"]["step"].is_number() && model(&f, "a") == model(&f, "whole"), "{o}");
    kill_after_backups(&f, "b", &[]);
    let done = f.run(&["resume", "b", "--threads=2"]).ok();
    assert!(done.out.contains("Resuming at epoch") && model(&f, "b") == model(&f, "whole"), "{}", done.out);
    // Finished: the same command, and resume, print the result.
    let done = f.run(&["resume", "b"]).ok();
    assert!(done.out.contains("is finished") && done.out.contains("Test: "), "{}", done.out);
    assert!(model(&f, "b") == model(&f, "whole"));
    f.run(&["resume", "nothing"]).fails("io", &["`nothing`"]);
}

#[test]
fn another_configuration_is_refused_with_every_difference() {
    let f = Folder::with_data("differs");
    f.run(&train("out", &[])).ok();
    let before = model(&f, "out");
    let other = ["--set=fit.epochs=5", "--set=optimizer.learning_rate=0.5"];
    f.run(&train("out", &other)).fails(
        "config",
        &["`out`", "fit.epochs", "5", "4", "optimizer.learning_rate", "0.5", "0.001", "--resume=force"],
    );
    assert_eq!(model(&f, "out"), before);
    let o = f.run(&train("out", &["--set=fit.epochs=5", "--resume=force"])).ok().json();
    assert_eq!((&o["total_epochs"], &o["resumed_at"]["epoch"]), (&5.into(), &5.into()));
    let o = f.run(&train("out", &["--resume=never"])).ok().json();
    assert_eq!((&o["total_epochs"], &o["resumed_at"]), (&4.into(), &serde_json::Value::Null));
    assert_eq!(model(&f, "out"), before);
    // Where no folder is named, a run does not meet finished ones of other configurations.
    for (epochs, folder) in [("1", "mnist"), ("2", "mnist-2"), ("1", "mnist"), ("2", "mnist-2")] {
        f.write_set("data/mnist", 64, 32);
        let mut args = vec!["train", "mnist", "--data-dir=data", "--json", "--set=fit.batch_size=16"];
        args.extend(["--set=fit.steps_per_epoch=2", "--set=layers.1.units=4", "--epochs", epochs]);
        let done = f.run(&args).ok();
        assert_eq!(done.json()["model_file"], format!("runs/{folder}/mnist.safetensors"));
        let is_told =
            done.err.contains("runs/mnist has a finished run") && done.err.contains("fit.epochs is 2, was 1");
        assert_eq!(is_told, folder == "mnist-2", "{}", done.err);
    }
    // A longer run from the finished one's model is a new run.
    let from = ["--from", "out/fashion-mnist.safetensors"];
    let o = f.run(&train("out", &from)).ok().json();
    assert_eq!(o["total_epochs"], 8);
}

#[test]
fn two_runs_do_not_share_a_folder() {
    let f = Folder::with_data("shared");
    let mut endless = train("out", &[]);
    endless.extend(["--set=fit.epochs=100000"]);
    let mut child = f.command(&endless).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while f.files("out/backups").len() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    f.run(&endless).fails("io", &["`out/backups`"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The command, with files that cannot grow beyond so many blocks of 512 bytes: what a full disk is to what it saves.
fn on_a_full_disk(command: &Command, blocks: u32) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$@\""), "sh"]);
    limited.arg(command.get_program()).args(command.get_args());
    command.get_current_dir().map(|dir| limited.current_dir(dir));
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(key, value),
            None => limited.env_remove(key),
        };
    }
    limited
}

#[test]
fn a_full_disk_costs_the_backups_but_not_the_training_and_is_told() {
    let f = Folder::with_data("full-disk");
    let output = on_a_full_disk(&f.command(&train("out", &[])), 16).output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    for part in ["the run is not backed up: cannot save", "while writing", "fashion-mnist.safetensors"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Trained to its end; only the model could not be written.
    assert!(output.status.code() == Some(1) && !told.contains("panicked"), "{told}");
    assert!(temporary_files(&f.path("out/backups")).is_empty() && temporary_files(&f.path("out")).is_empty());
    // With room, the same command trains it.
    f.run(&train("out", &[])).ok();
    f.run(&train("whole", &[])).ok();
    assert_eq!(model(&f, "out"), model(&f, "whole"));
}

#[test]
fn a_disk_without_room_for_the_account_of_a_run_is_told_before_any_training_and_costs_no_earlier_run() {
    let f = Folder::with_data("full-account");
    let full = |args: &[&str]| {
        let output = on_a_full_disk(&f.command(args), 1).output().unwrap();
        let done = Done::of(output, args).fails("io", &["run.json"]);
        assert!(!done.err.contains("Epoch ") && !done.out.contains("Epoch "), "{}\n{}", done.out, done.err);
    };
    full(&train("out", &[]));
    assert!(!f.path("out").exists(), "{:?}", f.files("out"));
    // In a folder that holds a run: it is as it was, and goes on.
    f.run(&train("whole", &[])).ok();
    f.run(&train("out", &[])).ok();
    let (files, account) = (f.files("out"), std::fs::read(f.path("out/run.json")).unwrap());
    full(&train("out", &["--resume=force", "--set=optimizer.learning_rate=0.5"]));
    assert_eq!(f.files("out"), files);
    assert_eq!(std::fs::read(f.path("out/run.json")).unwrap(), account);
    f.run(&train("out", &[])).ok();
    assert_eq!(model(&f, "out"), model(&f, "whole"));
}
