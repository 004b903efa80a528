//! Generates the tables of the model guide: available layers and models, their constructors and descriptions.

use super::source::{Item, Source};
use super::table::{code, listed, table};
use serde_json::{Value, json};
use systole_ir::{DType, TensorType};
use systole_nn::applications::{Application, TABLE};
use systole_nn::layers::LAYER_NAMES;
use systole_nn::loss::{self, Loss};
use systole_nn::metric::{self, Metric};
use systole_nn::optimizer::{self, Optimizer};
use systole_nn::schedule::Schedule;
use systole_runtime::Params;

#[test]
fn the_models_guide_lists_what_there_is() {
    let parts = [
        ("applications", applications()),
        ("layers", layers()),
        ("capabilities", capabilities()),
        ("importers", super::parity::importers()),
        ("losses", losses()),
        ("metrics", metrics()),
        ("optimizers", optimizers()),
        ("schedules", schedules()),
    ];
    super::same_parts("models", &parts);
}

/// Functions of a file that give a `what`: name and call.
fn constructors(sources: &[Source], what: &str) -> Vec<(String, String)> {
    let gives = format!(") -> {what} {{");
    let of_file = |s: &Source| -> Vec<(String, String)> {
        let lines =
            s.lines_with(&gives).filter_map(|l| l.strip_prefix("pub fn ")).filter(|l| !l.contains("self"));
        let lines = lines.filter_map(|l| l.strip_suffix(&gives)?.split_once('('));
        lines.map(|(name, args)| (name.to_string(), format!("{name}({})", names_of(args)))).collect()
    };
    sources.iter().flat_map(of_file).collect()
}

/// `filters: usize, kernel_size: impl Into<Pair>` without the types.
fn names_of(arguments: &str) -> String {
    let names = arguments.split(", ").filter_map(|a| Some(a.split_once(": ")?.0));
    names.collect::<Vec<_>>().join(", ")
}

fn call_of(known: &[(String, String)], name: &str) -> String {
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    let found = known.iter().find(|(n, _)| plain(n) == plain(name));
    code(&found.unwrap_or_else(|| panic!("{name} has no function that makes it")).1)
}

fn sentence(doc: Option<String>, name: &str) -> String {
    let doc = doc.filter(|d| !d.is_empty()).unwrap_or_else(|| panic!("{name} has no description"));
    doc.trim_end_matches('.').to_string()
}

/// What there is, and what of it `crates/nn/tests/applications.rs` compares with Keras, by the fixture that it reads.
fn applications() -> String {
    let fixture: Value =
        serde_json::from_str(&crate::documents::read("fixtures/keras/applications.json")).expect("JSON");
    let cases = fixture["cases"].as_array().expect("cases");
    let of_family = |case: &&Value, row: &Application| {
        let small = TABLE.iter().find(|other| case["name"] == other.name).expect("an application");
        case["full"] == false && small.family == row.family
    };
    let rows = TABLE.iter().map(|row| {
        let defaults = row.defaults().expect("JSON");
        let arguments: Vec<String> = defaults.as_object().expect("a table").keys().map(|k| code(k)).collect();
        let full = cases.iter().find(|c| c["full"] == true && c["name"] == row.name);
        let relatives = cases.iter().any(|case| of_family(&case, row));
        let whole = full.is_some_and(|c| c["norm"].is_number());
        let checked = match (full.is_some(), relatives) {
            (true, true) if whole => {
                "names, shapes and order of all weights, and outputs; gradients of small variants"
            }
            (true, true) => "names, shapes and order of all weights; outputs and gradients of small variants",
            (true, false) => "names, shapes and order of all weights",
            (false, _) if row.family.0 == "Gpt2" => {
                "outputs, gradients and training of a small variant (`crates/nn/tests/networks.rs`)"
            }
            (false, _) if row.family.0 == "ResNet18" => {
                "torchvision's parameter count; outputs of a small variant with transformers weights"
            }
            (false, true) => "outputs and gradients of small variants, built from Keras layers",
            (false, false) => panic!("{} is compared with nothing", row.name),
        };
        let parameters = full.and_then(|c| c["parameters"].as_u64()).map_or("–".into(), systole_nn::grouped);
        [code(row.name), arguments.join(", "), parameters, checked.to_string()]
    });
    table(["application", "arguments", "parameters", "checked"], rows)
}

fn layers() -> String {
    let sources = Source::folder("crates/nn/src/layers");
    let known = constructors(&sources, "LayerSpec");
    let compared = super::parity::of_layers(LAYER_NAMES);
    let rows = LAYER_NAMES.iter().map(|class| {
        let class_of = if *class == "Activation" { "ActivationLayer" } else { class };
        let heads = [
            format!("pub struct {class_of} {{"),
            format!("pub type {class} ="),
            format!("{class} =>"),
            format!("{class} {{"),
        ];
        let doc = heads.iter().find_map(|head| sources.iter().find_map(|s| s.doc(head)));
        [code(class), call_of(&known, class), sentence(doc, class), compared[*class].clone()]
    });
    table(["layer", "in Rust", "what it does", "compared"], rows)
}

/// The matrix of `systole layers`.
fn capabilities() -> String {
    let [a, b, c, d, e, f, g] = systole_nn::CAPABILITIES;
    let rows = systole_nn::layer_capabilities().into_iter().map(|layer| {
        let [a, b, c, d, e, f, g] = layer.all.map(|own| if own.is_ok() { "yes" } else { "–" }.to_string());
        [code(layer.class), a, b, c, d, e, f, g]
    });
    table(["layer", a, b, c, d, e, f, g], rows)
}

/// The variant of an enum.
fn variant(items: &[Item], class: &Value) -> Option<String> {
    items.iter().find(|i| class == i.name.as_str()).map(|i| i.doc.clone())
}

fn losses() -> String {
    let source = Source::read("crates/nn/src/loss/mod.rs");
    let items = source.items(&["pub enum Loss {"]);
    let known = constructors(&Source::folder("crates/nn/src/loss"), "Loss");
    let rows = loss::NAMES.iter().map(|name| {
        let value = serde_json::to_value(name.parse::<Loss>().expect("a loss")).expect("JSON");
        [code(name), call_of(&known, name), sentence(variant(&items, &value["class_name"]), name)]
    });
    table(["loss", "in Rust", "value per sample"], rows)
}

fn metrics() -> String {
    let items = Source::read("crates/nn/src/metric/mod.rs").items(&["pub enum Metric {"]);
    let known = constructors(&Source::folder("crates/nn/src/metric"), "Metric");
    let rows = metric::NAMES.iter().filter(|n| **n != "accuracy").map(|name| {
        let value = serde_json::to_value(name.parse::<Metric>().expect("a metric")).expect("JSON");
        [code(name), call_of(&known, name), sentence(variant(&items, &value["class_name"]), name)]
    });
    table(["metric", "in Rust", "what it measures"], rows)
}

fn optimizers() -> String {
    let sources = Source::folder("crates/nn/src/optimizer");
    let known = constructors(&sources, "Optimizer");
    let mut weight = Params::new();
    weight.insert("w", TensorType::new(DType::F32, [1]));
    let rows = optimizer::NAMES.iter().map(|name| {
        let made: Optimizer = name.parse().expect("an optimizer");
        let slots = made.slots(&weight);
        let slots: Vec<String> = slots.names().filter_map(|n| Some(code(n.split_once('/')?.0))).collect();
        let slots = if slots.is_empty() { "–".into() } else { slots.join(", ") };
        let path = format!("crates/nn/src/optimizer/{name}.rs");
        let source = sources.iter().find(|s| s.file == path).expect("a file for each optimizer");
        let head = source.lines_with("pub struct ").next().expect("a struct");
        [
            code(name),
            call_of(&known, name),
            made.learning_rate.at(0).to_string(),
            slots,
            sentence(source.doc(head), name),
        ]
    });
    table(["optimizer", "in Rust", "default rate", "state per weight", "update rule"], rows)
}

fn schedules() -> String {
    let items = Source::read("crates/nn/src/optimizer/schedule.rs").items(&["pub enum Schedule {"]);
    let unknown =
        serde_json::from_value::<Schedule>(json!({"class_name": "?"})).expect_err("no such schedule");
    let rows = listed(&unknown.to_string()).into_iter().map(|class| {
        let doc = variant(&items, &json!(class));
        [code(&class), sentence(doc, &class)]
    });
    table(["schedule", "learning rate at a step"], rows)
}
