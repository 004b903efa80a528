//! Tests of `systole compare` on runs with equal and with different settings.

use crate::program::{Done, Folder, TINY};

const OWN: [&str; 4] = ["train", "fashion-mnist", "--data-dir=data", "--set=fit.validation_freq=1"];

fn train(f: &Folder, out: &str, more: &[&str]) -> Done {
    f.run(&[&OWN[..], &TINY, &["--json", "--out", out], more].concat()).ok()
}

#[test]
fn runs_are_set_side_by_side() {
    let f = Folder::with_data("compare");
    let told = train(&f, "a", &[]).json();
    train(&f, "b", &["--learning-rate=0.02", "--set=optimizer.type=adamw"]);
    train(&f, "same", &[]);
    let o = f.run(&["compare", "a", "b", "--json"]).ok().json();
    assert_eq!(o["metric"], "val_sparse_categorical_accuracy");
    let runs = o["runs"].as_array().unwrap();
    let (name, epochs, steps) = (&runs[0]["run"], &runs[0]["epochs"], &runs[0]["steps"]);
    assert_eq!((name, epochs, steps), (&"a".into(), &2.into(), &4.into()), "{o}");
    let of = |epoch: &serde_json::Value| epoch["val_sparse_categorical_accuracy"].as_f64().unwrap();
    let history: Vec<f64> = told["history"].as_array().unwrap().iter().map(of).collect();
    let curve = runs[0]["curve"].as_array().unwrap();
    assert_eq!(curve.iter().map(|p| p[1].as_f64().unwrap()).collect::<Vec<_>>(), history);
    let best = history.iter().copied().fold(0.0, f64::max);
    let first = history.iter().position(|v| *v == best).unwrap() + 1;
    assert_eq!(runs[0]["best"], serde_json::json!({"epoch": first, "value": best}));
    assert_eq!(runs[1]["settings"]["optimizer.learning_rate"], "0.02");
    assert!(runs[0]["settings"].get("seed").is_none(), "{o}");

    let text = f.run(&["compare", "a", "b", "--metric", "loss"]).ok().out;
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("run") && lines[0].contains("best loss") && lines[1].starts_with("a "),
        "{text}"
    );
    assert!(text.contains('█') && text.contains("\"adamw\""), "{text}");
    assert!(f.run(&["compare", "a", "same"]).ok().out.contains("have the same settings"));
    assert_eq!(f.run(&["compare", "a"]).ok().out.lines().count(), 2);
}

#[test]
fn what_cannot_be_compared_is_told() {
    let f = Folder::with_data("compare-wrong");
    train(&f, "a", &[]);
    for (args, kind, name) in [
        (&["compare", "a", "no/where"][..], "io", "no/where"),
        (&["compare", "a", "--metric", "val_los"], "usage", "`val_loss`"),
        (&["compare", "data"], "io", "`data`"),
        (&["compare"], "usage", "<RUN>"),
    ] {
        f.run(args).fails(kind, &[name]);
    }
}
