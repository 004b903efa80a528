//! End-to-end tests of `systole lr-find`.

use crate::program::{Done, Folder, TINY};

fn lr_find(f: &Folder, more: &[&str]) -> Done {
    let mut args = vec!["lr-find", "fashion-mnist", "--data-dir=data", "--end-lr=1"];
    if !more.contains(&"--num-it") {
        args.push("--num-it=40");
    }
    args.extend(more);
    args.extend(TINY);
    f.run(&args)
}

#[test]
fn a_curve_its_suggestions_and_the_line_that_trains_with_one() {
    let f = Folder::with_data("lr-find");
    let done = lr_find(&f, &["--out", "curve.svg"]).ok();
    for part in ["learning rate", "Suggestions: valley ", "steep ", "40 updates"] {
        assert!(done.out.contains(part), "{part}: {}", done.out);
    }
    assert!(done.out.lines().all(|l| l.starts_with("Next:") || l.chars().count() <= 100), "{}", done.out);
    let svg = std::fs::read_to_string(f.path("curve.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("valley") && !svg.contains("<script"), "{svg}");

    let told = lr_find(&f, &["--json"]).ok().json();
    let valley = told["suggestions"]["valley"].as_f64().unwrap();
    assert_eq!((told["rates"].as_array().unwrap().len(), &told["num_it"]), (40, &40.into()));
    assert!(["slide", "minimum", "steep"].iter().all(|name| told["suggestions"][name].is_number()), "{told}");
    assert!(done.out.contains(&format!("valley {valley:.1e}")), "the same each time: {}", done.out);

    let next = done.out.lines().find(|l| l.starts_with("Next: ")).unwrap();
    let words: Vec<&str> = next.split_whitespace().skip_while(|w| *w != "train").collect();
    assert!(!words.contains(&"--out") && words.contains(&"--learning-rate"), "{next}");
    f.run(&[&words[..], &["--out", "run"]].concat()).ok();
    let csv = std::fs::read_to_string(f.path("run/run.json")).unwrap();
    assert!(csv.contains(&format!("{}", format!("{valley:.1e}").parse::<f64>().unwrap())), "{csv}");
}

#[test]
fn apply_trains_with_the_rate_and_mistakes_are_told() {
    let f = Folder::with_data("lr-find-apply");
    let whole = lr_find(&f, &["--apply", "--suggest=steep", "--out", "run", "--json"]).ok().json();
    assert_eq!(
        (&whole["steps"], whole["suggestions"].is_null()),
        (&4.into(), true),
        "one object, the run's: {whole}"
    );
    for (args, kind, names) in [
        (&["--out", "curve"][..], "usage", ["--out", ".svg"]),
        (&["--start-lr", "2"], "config", ["start_lr", "end_lr"]),
        (&["--num-it", "5"], "config", ["num_it", "20"]),
    ] {
        lr_find(&f, args).fails(kind, &names);
    }
}

/// `[lr_find]`: the rate that the command finds is what a run takes, once.
#[test]
fn a_table_has_the_rate_looked_for_before_the_first_step() {
    let f = Folder::with_data("lr-find-table");
    let table = ["--set=lr_find.end_lr=1", "--set=lr_find.num_it=40", "--set=lr_find.suggest=steep"];
    let steep = lr_find(&f, &["--json"]).ok().json()["suggestions"]["steep"].as_f64().unwrap();
    let steep: f64 = format!("{steep:.1e}").parse().unwrap();
    let train = |out: &str, more: &[&str]| {
        let args = ["train", "fashion-mnist", "--data-dir=data", "--out", out];
        f.run(&[&args[..], &TINY, &table, more].concat())
    };
    let first = train("run", &["--json"]).ok();
    assert!(
        first.err.contains("Learning rate: ") && first.err.contains("suggestion `steep`"),
        "{}",
        first.err
    );
    let record = std::fs::read_to_string(f.path("run/run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["config"]["optimizer"]["learning_rate"], steep);
    assert_eq!(record["config"]["lr_find"]["found"], steep);
    // Keys that are not set are left out, as in the TOML of a configuration.
    assert!(!record["config"].to_string().contains("null"), "{record}");
    // The same command and `resume` find the run, and look for nothing.
    let again = train("run", &["--json"]).ok();
    assert!(!again.err.contains("Learning rate: ") && again.json()["steps"] == 0, "{}", again.err);
    assert!(!f.run(&["resume", "run"]).ok().out.contains("Learning rate: "));
    // Trained with that rate by hand it is the same model; a schedule has it at its top.
    let rate = format!("{steep:e}");
    f.run(
        &[
            &["train", "fashion-mnist", "--data-dir=data", "--out=by-hand", "--learning-rate", &rate][..],
            &TINY,
        ]
        .concat(),
    )
    .ok();
    let arrays = |out: &str| {
        let file = std::fs::read(f.path(out).join("fashion-mnist.safetensors")).unwrap();
        file[8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize..].to_vec()
    };
    assert!(arrays("run") == arrays("by-hand"));
    train("cycle", &["--set=optimizer.learning_rate={ type = \"OneCycle\", max_learning_rate = 1 }"]).ok();
    let record = std::fs::read_to_string(f.path("cycle/run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    assert!(
        record["config"]["optimizer"]["learning_rate"]["max_learning_rate"].as_f64() != Some(1.0),
        "{record}"
    );
    // What a flag says is not looked for.
    assert!(!train("named", &["--learning-rate=0.01"]).ok().out.contains("Learning rate: "));
    for (set, name) in
        [("lr_find.suggest=best", "`best`"), ("lr_find.num_it=5", "num_it"), ("lr_find.rate=1", "`rate`")]
    {
        train("wrong", &[&format!("--set={set}")]).fails("usage", &[name]);
        assert!(!f.path("wrong").exists(), "{set}");
    }
}

#[test]
fn a_schedule_is_shown_over_the_steps_of_its_run() {
    let f = Folder::new("schedule");
    let printed = f.run(&["train", "glyphs", "--one-cycle", "0.05", "--epochs", "4", "--print-config"]).ok();
    f.write("c.toml", &printed.out);
    let shown = f.run(&["show", "c.toml", "--schedule", "--out", "rate.svg"]).ok();
    assert!(shown.out.contains("240 steps: first 2.000e-3, maximum 5.000e-2"), "{}", shown.out);
    assert!(std::fs::read_to_string(f.path("rate.svg")).unwrap().contains("<polyline"));
    let o = f.run(&["show", "c.toml", "--schedule", "--steps", "1000", "--json"]).ok().json();
    let curve = o["learning_rate"].as_array().unwrap();
    let rate = |step: u64| curve.iter().find(|p| p[0] == step).map(|p| p[1].as_f64().unwrap());
    let schedule = systole::nn::schedule::Schedule::one_cycle(0.05).over(1000);
    assert_eq!(curve.last().unwrap()[0], 999);
    for step in [0, 300, 600, 999] {
        assert_eq!(rate(step), Some(schedule.at(step)), "step {step}");
    }
    // The rates are those that training takes.
    let run = f
        .run(&[
            "train",
            "c.toml",
            "--set=fit.epochs=1",
            "--out",
            "run",
            "--json",
            "--set=fit.steps_per_epoch=3",
        ])
        .ok();
    let three = f.run(&["show", "c.toml", "--schedule", "--steps", "3", "--json"]).ok().json();
    assert!(run.json()["learning_rate"].as_f64().unwrap() <= three["learning_rate"][2][1].as_f64().unwrap());
    let of_run = f.run(&["show", "run", "--schedule", "--json"]).ok().json();
    assert_eq!((&of_run["steps"], &of_run["learning_rate"]), (&3.into(), &three["learning_rate"]));
    let moms = ["train", "glyphs", "--one-cycle=0.05", "--moms=0.9,0.8,0.9", "--epochs=4", "--print-config"];
    f.write("m.toml", &f.run(&moms).ok().out);
    let shown = f.run(&["show", "m.toml", "--schedule", "--out", "m.svg"]).ok();
    assert!(shown.out.contains("Momentum, 240 steps: first 9.000e-1"), "{}", shown.out);
    assert!(f.path("m.svg").exists() && f.path("m-momentum.svg").exists());
    let o = f.run(&["show", "m.toml", "--schedule", "--json"]).ok().json();
    assert_eq!(o["momentum"][60], serde_json::json!([60, 0.8]));
    f.write(
        "s.toml",
        &f.run(&[
            "train",
            "glyphs",
            "--epochs=10",
            "--set=optimizer.swa={swa_lrs=0.5,annealing_epochs=1}",
            "--print-config",
        ])
        .ok()
        .out,
    );
    let o = f.run(&["show", "s.toml", "--schedule", "--steps=400", "--json"]).ok().json();
    assert_eq!((&o["learning_rate"][320][1], &o["learning_rate"][360][1]), (&0.001.into(), &0.5.into()));
    for (moms, name) in [("0.9,0.8", "moms"), ("0.9,x,0.9", "--moms"), ("0.9,0.8,1.5", "1.5")] {
        let e = f.run(&["train", "glyphs", "--one-cycle=0.05", &format!("--moms={moms}"), "--print-config"]);
        e.fails("usage", &[name]);
    }
    f.run(&["show", "c.toml", "--schedule", "--stage", "grad"]).fails("usage", &["--stage"]);
}

#[test]
fn a_schedule_spans_the_samples_that_the_configuration_trains_on() {
    let f = Folder::new("schedule-samples");
    let run = ["train", "glyphs", "--one-cycle=0.01", "--print-config", "--epochs=3"];
    let set = ["--set=data.train_samples=400", "--set=fit.steps_per_epoch=none", "--batch-size=64"];
    f.write("c.toml", &f.run(&[&run[..], &set].concat()).ok().out);
    let o = f.run(&["show", "c.toml", "--schedule", "--json"]).ok().json();
    assert_eq!(o["steps"], 3 * 7, "{o}");
}
