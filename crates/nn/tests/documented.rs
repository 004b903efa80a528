//! Documentation coverage: every constructor of layers, losses, metrics, … has a runnable example.

use std::path::Path;

/// A public function or type with its documentation.
struct Item {
    place: String,
    head: String,
    docs: Vec<String>,
}

impl Item {
    /// Whether an example among the documentation is compiled and run.
    fn runs(&self) -> bool {
        let mut fences = self.docs.iter().filter_map(|l| l.trim().strip_prefix("```")).step_by(2);
        fences.any(|kind| ["", "rust"].contains(&kind))
    }

    fn name(&self) -> &str {
        let rest =
            self.head.split_once("fn ").or(self.head.split_once("struct ")).map_or("", |(_, rest)| rest);
        rest.split(['(', '<', ' ', ';']).next().unwrap_or("")
    }
}

/// Public items of a file of this crate that begin with `marks`, with the documentation before them.
fn items(file: &Path, is_one: impl Fn(&str) -> bool) -> Vec<Item> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate().filter(|(_, l)| is_one(l)) {
        let before = lines[..i].iter().rev().map(|l| l.trim());
        let docs = before.take_while(|l| l.starts_with("///") || l.starts_with("#["));
        let mut docs: Vec<String> =
            docs.filter_map(|l| l.strip_prefix("///")).map(|l| l.trim_start().into()).collect();
        docs.reverse();
        let place = format!("{}:{}", file.display(), i + 1);
        found.push(Item { place, head: line.trim().into(), docs });
    }
    found
}

fn source(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path)
}

/// The files of a folder and of those in it.
fn sources(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Free functions that return a layer, loss, metric, optimizer or symbol.
fn constructors() -> Vec<Item> {
    let mut files = vec![source("model/architecture.rs")];
    ["layers", "loss", "metric", "optimizer"]
        .iter()
        .for_each(|folder| files.extend(sources(&source(folder))));
    let makes = ["LayerSpec {", "Loss {", "Metric {", "Optimizer {", "Symbol {"];
    let is_one = |l: &str| {
        let is_function = l.starts_with("pub fn ") && makes.iter().any(|m| l.ends_with(m));
        // Rows of `constructors!`: `    fn relu() = ReLU::default();`.
        let is_row = l.starts_with("    fn ") && l.contains(") =");
        (is_function || is_row) && !l.contains("defaults()")
    };
    files.iter().flat_map(|file| items(file, is_one)).collect()
}

#[test]
fn constructors_begin_with_shapes_and_have_an_example_that_runs() {
    let all = constructors();
    assert!(all.len() > 150, "{} constructors were found", all.len());
    for item in &all {
        assert!(item.runs(), "{}: `{}` has no example that runs", item.place, item.name());
        let uses = item.docs.iter().any(|l| l.contains(&format!("{}(", item.name())));
        assert!(uses, "{}: the example of `{}` does not use it", item.place, item.name());
        let first = item.docs.first().map_or("", String::as_str);
        let is_optimizer = item.head.ends_with("Optimizer {");
        assert!(is_optimizer || first.starts_with('`'), "{}: shapes come first, not `{first}`", item.place);
    }
}

#[test]
fn types_that_train_models_have_an_example_that_runs() {
    // Structs within macros are indented.
    let is_type = |l: &str| ["pub struct ", "pub trait "].iter().any(|head| l.trim_start().starts_with(head));
    let of = |file: &str| items(&source(file), is_type);
    let named = ["FitCx", "CallbackState", "ConfigCallback", "CallbackRunInfo", "EpochPace"];
    let files = std::fs::read_dir(source("callback")).unwrap().map(|e| e.unwrap().file_name());
    let files = files.map(|name| format!("callback/{}", name.into_string().unwrap()));
    let callbacks: Vec<Item> = files.flat_map(|file| of(&file)).collect();
    assert!(callbacks.len() >= 10, "{} were found", callbacks.len());
    for item in callbacks.iter().filter(|i| !named.contains(&i.name())) {
        assert!(item.runs(), "{}: `{}` has no example that runs", item.place, item.head);
    }
    for file in [
        "train/fit/options.rs",
        "checkpoint/backup.rs",
        "checkpoint/best_model.rs",
        "model/mod.rs",
        "layer/mod.rs",
        "custom_objects.rs",
        "model/architecture.rs",
    ] {
        let wanted = [
            "Fit ",
            "BackupAndRestore ",
            "KeepBest ",
            "Model ",
            "Layer:",
            "CustomLoss:",
            "CustomMetric:",
            "Symbol(",
        ];
        for item in of(file) {
            let rest = item.head.split_whitespace().skip(2).collect::<Vec<_>>().join(" ");
            if wanted.iter().any(|w| rest.starts_with(w)) {
                assert!(item.runs(), "{}: `{}` has no example that runs", item.place, item.head);
            }
        }
    }
}

#[test]
fn no_example_of_this_crate_is_left_out() {
    let mut folders = vec![source("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            for (i, line) in std::fs::read_to_string(&entry).unwrap().lines().enumerate() {
                let kind = line.trim().strip_prefix("/// ```").unwrap_or("");
                let left_out = ["ignore", "no_run", "standalone"].iter().any(|w| kind.contains(w));
                assert!(!left_out, "{}:{}: an example that does not run", entry.display(), i + 1);
            }
        }
    }
}
