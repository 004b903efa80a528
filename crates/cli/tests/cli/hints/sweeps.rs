//! Hints about sweep files and folders of sweeps.

use super::{Case, case, with_table};
use crate::program::Folder;

const BASE: &str = "[sweep]\nbase = \"run.toml\"\nmethod = \"random\"\ntrials = 1\n";
const VALUES: &str = "[sweep.parameters]\n\"optimizer.learning_rate\" = [0.1, 0.01]\n";

/// Name of a file, its text, and the text after following the hint.
const ROWS: &[(&str, &str, &str)] = &[
    ("toml", "[sweep\n", ""),
    ("none", "[fit]\nepochs = 1\n", ""),
    ("empty", "BASE[sweep.parameters]\n", ""),
    ("method", "[sweep]\nbase = \"run.toml\"\nmethod = \"randm\"\nVALUES", ""),
    ("direction", "BASEdirection = \"up\"\nVALUES", ""),
    ("trials", "[sweep]\nbase = \"run.toml\"\nmethod = \"grid\"\ntrials = 3\nVALUES", ""),
    ("zero", "[sweep]\nbase = \"run.toml\"\nmethod = \"random\"\ntrials = 0\nVALUES", ""),
    ("both", "BASEVALUES[fit]\nepochs = 1\n", ""),
    ("alone", "[sweep]\nmethod = \"random\"\ntrials = 1\nVALUES", ""),
    ("base", "[sweep]\nbase = \"tabel\"\nmethod = \"random\"\nVALUES", ""),
    ("value", "BASE[sweep.parameters]\n\"optimizer.learning_rate\" = 0.1\n", ""),
    ("order", "BASE[sweep.parameters]\n\"optimizer.learning_rate\" = { min = 2.0, max = 1.0 }\n", ""),
    (
        "log",
        "BASE[sweep.parameters]\n\"optimizer.learning_rate\" = { min = 0.0, max = 1.0, log = true }\n",
        "",
    ),
    ("few", "BASE[sweep.parameters]\n\"optimizer.learning_rate\" = { min = 0.1, max = 1.0, n = 1 }\n", ""),
    ("text", "BASE[sweep.parameters]\n\"optimizer.learning_rate\" = { min = \"a\", max = 1.0 }\n", ""),
    (
        "range",
        "[sweep]\nbase = \"run.toml\"\nmethod = \"grid\"\n[sweep.parameters]\n\"optimizer.learning_rate\" = { min = 0.1, max = 1.0 }\n",
        "",
    ),
    (
        "many",
        "[sweep]\nbase = \"run.toml\"\nmethod = \"grid\"\n[sweep.parameters]\n\"optimizer.learning_rate\" = { min = 0.1, max = 1.0, n = 1000 }\n\"seed\" = { min = 1, max = 1000, n = 1000 }\n",
        "",
    ),
    ("find", "BASEVALUES", ""),
];

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-sweeps");
    let good = format!("{BASE}{VALUES}");
    let preset = f.run(&["init", "table"]).ok().out;
    f.write("run.toml", &preset);
    f.write("find.toml", preset.clone() + "\n[lr_find]\nnum_it = 20\n");
    let whole = |text: &str| text.replace("BASE", BASE).replace("VALUES", VALUES);
    let more = "--set=data.dir=t.csv --set=fit.epochs=1 --set=fit.steps_per_epoch=1 --threads=1 --quiet";
    let mut cases = Vec::new();
    for (name, wrong, _) in ROWS {
        let file: &'static str = format!("{name}.sweep.toml").leak();
        let text = whole(wrong);
        f.write(file, if *name == "find" { text.replace("run.toml", "find.toml") } else { text });
        cases.push(case(&format!("sweep {file} --out=out {more}")).mend(file, good.clone()));
    }
    f.write("good.toml", &good);
    f.write("other.toml", good.replace("0.1, 0.01", "0.3, 0.2"));
    f.run(&["train", "t.csv", "--out=run", "--epochs=1", "--threads=1", "--quiet"]).ok();
    f.run(&[&["sweep", "good.toml", "--out=swept"], more.split(' ').collect::<Vec<_>>().as_slice()].concat())
        .ok();
    f.write("file", "");
    let sweep = |file: &str, out: &str| format!("sweep {file} --out={out} {more}");
    for (file, out) in [("good.toml", "run"), ("other.toml", "swept"), ("good.toml", "file/below")] {
        cases.push(case(&sweep(file, out)).typed(&sweep(file, "out")).own("out"));
    }
    cases.push(case(&sweep("absent.toml", "out")).typed(&sweep("good.toml", "out")).own("good.toml"));
    (f, cases)
}
