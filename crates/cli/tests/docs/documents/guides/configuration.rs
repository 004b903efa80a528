//! Generates the tables of the configuration guide: every key, from the parser's definitions.

use super::source::{Item, Source};
use super::table::{code, key, listed, snake, table, written};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::str::FromStr;
use systole::config::{
    CompileSection, DATASETS, DataSection, FineTuneSection, FitSection, LoraSection, LrFindSection,
    PruningSection, QuantizeSection, RunConfig, StrategySection, augmentations,
};
use systole::datasets::RecordOptions;
use systole_nn::applications::biggan::BigGan;
use systole_nn::applications::{APPLICATIONS, TABLE};
use systole_nn::callback::{CALLBACK_NAMES, defaults_of};
use systole_nn::layers::{BuiltIn, LAYER_NAMES};
use systole_nn::loss::{self, Loss};
use systole_nn::metric::{self, Metric};
use systole_nn::optimizer::{self, Optimizer};
use systole_nn::schedule::Schedule;
use systole_nn::{Activation, Initializer, Precision};

const HEADER: [&str; 4] = ["key", "type", "default", "meaning"];

#[test]
fn the_configuration_guide_lists_every_key() {
    let config = Source::read("crates/config/src/lib.rs");
    let fine_tune = Source::read("crates/config/src/fine_tune.rs");
    let lora = Source::read("crates/config/src/lora.rs");
    let pruning = Source::read("crates/config/src/pruning.rs");
    let lr_find = Source::read("crates/config/src/lr_find.rs");
    let quantize = Source::read("crates/config/src/quantize.rs");
    let biggan = Source::read("crates/nn/src/applications/biggan/options.rs");
    let records = Source::read("crates/datasets/src/records/options.rs");
    let columns = Source::read("crates/datasets/src/records/columns.rs");
    let whole = "[data]\ndataset = \"glyphs\"\n[optimizer]\n[compile]\nloss = \"?\"\n[fit]\nepochs = 1\nbatch_size = 1";
    let column = toml::from_str::<RecordOptions>("[[columns]]\n\"?\" = 1").expect_err("no such key");
    let parts = [
        ("whole", section::<RunConfig>(&config, "RunConfig", whole)),
        ("data", section::<DataSection>(&config, "DataSection", "dataset = \"glyphs\"")),
        (
            "augment",
            table(
                ["name", "value", "effect on the image"],
                augmentations()
                    .into_iter()
                    .map(|(n, v, a)| [code(n), v.map_or("–".into(), |v| code(&v.to_string())), a.into()]),
            ),
        ),
        ("records", section::<RecordOptions>(&records, "RecordOptions", "")),
        ("columns", keys_of(&columns, "ColumnEncoding", &listed(column.message()), &["name"], &Value::Null)),
        ("model", applications()),
        ("layers", layers()),
        ("biggan", section::<BigGan>(&biggan, "BigGan", "")),
        ("optimizer", optimizers()),
        ("callbacks", callbacks()),
        ("schedules", schedules()),
        ("compile", section::<CompileSection>(&config, "CompileSection", "loss = \"mse\"")),
        ("losses", losses()),
        ("metrics", metrics()),
        ("fit", section::<FitSection>(&config, "FitSection", "epochs = 1\nbatch_size = 1")),
        ("strategy", section::<StrategySection>(&config, "StrategySection", "")),
        ("fine_tune", section::<FineTuneSection>(&fine_tune, "FineTuneSection", "")),
        ("lora", section::<LoraSection>(&lora, "LoraSection", "")),
        ("pruning", section::<PruningSection>(&pruning, "PruningSection", "")),
        ("lr_find", section::<LrFindSection>(&lr_find, "LrFindSection", "")),
        ("quantize", section::<QuantizeSection>(&quantize, "QuantizeSection", "")),
        ("activations", activations()),
        ("initializers", initializers()),
    ];
    super::same_parts("configuration", &parts);
}

/// Table of the keys that serde reads into `T`; `least` is the smallest accepted TOML.
fn section<T: DeserializeOwned + Serialize>(source: &Source, name: &str, least: &str) -> String {
    let Err(unknown) = toml::from_str::<T>("\"?\" = 1") else { panic!("{name} takes any key") };
    let required: toml::Table = least.parse().expect("TOML");
    let required: Vec<&str> = required.keys().map(String::as_str).collect();
    let least = toml::from_str::<T>(least).unwrap_or_else(|e| panic!("{name}: {e}"));
    let defaults = serde_json::to_value(least).expect("JSON");
    let items = source.items(&[&format!("pub struct {name} {{")]);
    // Aliases are listed with their key.
    let is_alias = |key: &String| items.iter().any(|i| i.attributes.contains(&format!("alias = {key:?}")));
    let keys: Vec<String> = listed(unknown.message()).into_iter().filter(|key| !is_alias(key)).collect();
    keys_of(source, name, &keys, &required, &defaults)
}

fn keys_of(source: &Source, name: &str, keys: &[String], required: &[&str], defaults: &Value) -> String {
    let items = source.items(&[&format!("pub struct {name} {{")]);
    let rows = keys.iter().map(|k| {
        let mut item = described(&items, k, name);
        item.doc = in_full(&item.doc);
        let is_required = required.contains(&k.as_str());
        if is_required {
            item.doc += " Required.";
        }
        key(&item, defaults.get(k).filter(|_| !is_required), name)
    });
    table(HEADER, rows)
}

/// The item of a key, by its Rust name or its serde name.
fn described(items: &[Item], name: &str, place: &str) -> Item {
    let renamed = format!("rename = {name:?}");
    let found = items.iter().find(|i| i.name == name || i.attributes.contains(&renamed));
    let found = found.unwrap_or_else(|| panic!("{place}: the sources say nothing of `{name}`"));
    Item { name: name.into(), ..found.clone() }
}

/// Replaces the names of lists by their contents.
fn in_full(doc: &str) -> String {
    let list = |names: &[&str]| names.iter().map(|n| code(n)).collect::<Vec<_>>().join(", ");
    doc.replace("one of `APPLICATIONS`", &format!("one of {}", list(APPLICATIONS)))
        .replace("One of `DATASETS`", &format!("One of {}", list(&DATASETS)))
        .replace("One of `Precision::NAMES`", &format!("One of {}", list(&Precision::NAMES)))
}

fn applications() -> String {
    let rows = TABLE.iter().flat_map(|row| {
        let (family, file) = row.family;
        let source = Source::read(&format!("crates/nn/src/applications/{file}.rs"));
        let items = source.items(&[&format!("pub struct {family} {{")]);
        grouped(row.name, arguments(&items, &row.defaults().expect("JSON"), row.name))
    });
    table(["application", "key", "type", "default", "meaning"], rows)
}

/// Table rows for the keys of an object.
fn arguments(items: &[Item], defaults: &Value, place: &str) -> Vec<[String; 4]> {
    let defaults = defaults.as_object().into_iter().flatten();
    defaults.map(|(name, value)| key(&described(items, name, place), Some(value), place)).collect()
}

/// Rows grouped under a name, which is shown in the first row.
fn grouped(name: &str, rows: Vec<[String; 4]>) -> Vec<[String; 5]> {
    let first = |i: usize| if i == 0 { code(name) } else { String::new() };
    rows.into_iter().enumerate().map(|(i, [a, b, c, d])| [first(i), a, b, c, d]).collect()
}

fn layers() -> String {
    let sources = Source::folder("crates/nn/src/layers");
    let mut without = Vec::new();
    let mut rows = Vec::new();
    for class in LAYER_NAMES {
        let defaults = BuiltIn::with_defaults(class).expect("a layer").layer().config();
        match arguments(&fields_of(&sources, class), &defaults, class) {
            none if none.is_empty() => without.push(code(class)),
            keys => rows.extend(grouped(class, keys)),
        }
    }
    let header = ["layer", "key", "type", "default", "meaning"];
    format!("{}\nLayers without keys: {}.", table(header, rows), without.join(", "))
}

/// Fields of a layer: of its own struct, of the struct of its family, or from the macro of its file.
pub fn fields_of(sources: &[Source], class: &str) -> Vec<Item> {
    if let Some((family, places)) = family_of(sources, class) {
        let head = format!("pub struct {family}<const N: usize> {{");
        let of_class = |item: Item| Item { ty: item.ty.replace("<N>", &format!("<{places}>")), ..item };
        return sources.iter().flat_map(|s| s.items(&[&head])).map(of_class).collect();
    }
    let head = match class {
        "Activation" => "pub struct ActivationLayer {".to_string(),
        _ => format!("pub struct {class} {{"),
    };
    let own = format!("{class} {{");
    let find = |head: &str| sources.iter().find(|s| s.rest(head).is_some());
    match (find(&head), find(&own)) {
        (Some(source), _) => source.items(&[&head]),
        (None, Some(source)) => [source.items(&["pub struct $class {"]), source.items(&[&own])].concat(),
        (None, None) => Vec::new(),
    }
}

/// For `pub type Conv2D = Conv<2>;`: the struct of the layer's family and the number of spatial dimensions.
fn family_of<'a>(sources: &'a [Source], class: &str) -> Option<(&'a str, &'a str)> {
    let alias = sources.iter().find_map(|s| s.rest(&format!("pub type {class} = ")))?;
    alias.strip_suffix(">;")?.split_once('<')
}

fn optimizers() -> String {
    let sources = Source::folder("crates/nn/src/optimizer");
    let common =
        Source::read("crates/nn/src/optimizer/optimizer_config.rs").items(&["pub struct Optimizer {"]);
    let unknown = serde_json::from_value::<Optimizer>(json!({"?": 1})).expect_err("no such key").to_string();
    let names: Vec<String> = listed(&unknown).into_iter().filter(|n| n != "kind").collect();
    let all = names.iter().map(|name| {
        let mut item = described(&common, name, "Optimizer");
        if name == "learning_rate" {
            item.doc += " Default: see below.";
        }
        key(&item, None, "Optimizer")
    });
    let rows = optimizer::NAMES.iter().flat_map(|name| {
        let made: Optimizer = name.parse().expect("an optimizer");
        let whole = serde_json::to_value(&made).expect("JSON");
        let differs = names.iter().filter_map(|n| Some((n, whole.get(n)?)));
        let mut rows: Vec<[String; 4]> = differs
            .map(|(n, value)| {
                let value = value.get("config").unwrap_or(value);
                key(&described(&common, n, name), Some(value), name)
            })
            .collect();
        // Its own file first, since some layers take the arguments of another.
        let (own, others): (Vec<_>, Vec<_>) =
            sources.iter().partition(|s| s.file.ends_with(&format!("/{name}.rs")));
        let items: Vec<Item> = own.into_iter().chain(others).flat_map(own_arguments).collect();
        rows.extend(arguments(&items, &Value::Object(made.kind.config()), name));
        grouped(name, rows)
    });
    let own = table(["`type`", "key", "type", "default", "meaning"], rows);
    format!("Keys of every optimizer:\n\n{}\nKeys of each optimizer:\n\n{own}", table(HEADER, all))
}

/// Arguments of the macro rule in a file.
fn own_arguments(source: &Source) -> Vec<Item> {
    let heads: Vec<&str> = source.lines_with("pub struct ").filter(|l| l.ends_with('{')).collect();
    heads.iter().flat_map(|head| source.items(&[head])).collect()
}

/// Arguments of an enum variant with the names `keys`; `value` has their defaults.
fn variant(sources: &[Source], kind: &str, class: &str, keys: &[String], value: &Value) -> Vec<[String; 4]> {
    let (of_enum, own) = (format!("pub enum {kind} {{"), format!("pub struct {class} {{"));
    let of = |s: &Source| [s.items(&[&of_enum, &format!("{class} {{")]), s.items(&[&own])].concat();
    let items: Vec<Item> = sources.iter().flat_map(of).collect();
    let rows = keys.iter().map(|name| key(&described(&items, name, class), value.get(name), class));
    rows.collect()
}

/// Keys of a variant written as `class_name` and `config`.
fn keys_of_variant<T: DeserializeOwned>(class: &str) -> Vec<String> {
    let unknown = serde_json::from_value::<T>(json!({"class_name": class, "config": {"?": 1}}));
    let message = unknown.err().map_or(String::new(), |e| e.to_string());
    let has_keys = message.starts_with("unknown field") && !message.contains("there are no fields");
    if has_keys { listed(&message) } else { Vec::new() }
}

/// Default of a schedule's key.
fn named_default(items: &[Item], class: &str, name: &str) -> Value {
    let required = items.iter().filter(|i| !i.attributes.contains("default"));
    let config: serde_json::Map<String, Value> = required.map(|i| (i.name.clone(), json!(1))).collect();
    let made: Schedule =
        serde_json::from_value(json!({"class_name": class, "config": config})).expect("a schedule");
    serde_json::to_value(made).expect("JSON")["config"][name].clone()
}

fn callbacks() -> String {
    let sources = Source::folder("crates/nn/src/callback");
    let rows = CALLBACK_NAMES.iter().flat_map(|class| {
        let made = defaults_of(class).expect("a callback");
        let head = |end: &str| format!("pub struct {class}{end}");
        let of = |source: &Source| [" {", "<F: FileSystem = Disk> {"].map(|end| source.items(&[&head(end)]));
        let items: Vec<Item> = sources.iter().flat_map(of).flatten().collect();
        let keys = items.iter().filter(|i| !i.attributes.contains("serde(skip)"));
        let rows: Vec<[String; 4]> = keys
            .map(|item| {
                key(item, Some(&made[&item.name]).filter(|_| !item.doc.ends_with("Required.")), class)
            })
            .collect();
        let doc = sources.iter().find_map(|source| source.doc(&head(" {"))).unwrap_or_default();
        let none = [["–".into(), "–".into(), "–".into(), doc.trim_end_matches('.').to_string()]];
        grouped(class, if rows.is_empty() { none.to_vec() } else { rows })
    });
    table(["`type`", "key", "type", "default", "meaning"], rows)
}

fn schedules() -> String {
    let source = Source::read("crates/nn/src/optimizer/schedule.rs");
    let unknown =
        serde_json::from_value::<Schedule>(json!({"class_name": "?"})).expect_err("no such schedule");
    let rows =
        listed(&unknown.to_string()).into_iter().filter(|class| class != "Constant").flat_map(|class| {
            let items = source.items(&["pub enum Schedule {", &format!("{class} {{")]);
            let rows = keys_of_variant::<Schedule>(&class).into_iter().map(|name| {
                let mut item = described(&items, &name, &class);
                let default = item.attributes.contains("default").then(|| match item.ty.as_str() {
                    _ if item.attributes.contains("default =") => named_default(&items, &class, &name),
                    "bool" => json!(false),
                    "f64" => json!(0.0),
                    "u64" => json!(0),
                    _ => json!(null),
                });
                if default.is_none() {
                    item.doc += " Required.";
                }
                key(&item, default.as_ref(), &class)
            });
            grouped(&class, rows.collect())
        });
    table(["`type`", "key", "type", "default", "meaning"], rows)
}

fn losses() -> String {
    let source = Source::read("crates/nn/src/loss/mod.rs");
    named::<Loss>(&[source], "Loss", &loss::NAMES)
}

fn metrics() -> String {
    let sources = Source::folder("crates/nn/src/metric");
    let names: Vec<&str> = metric::NAMES.iter().copied().filter(|n| *n != "accuracy").collect();
    named::<Metric>(&sources, "Metric", &names)
}

/// Arguments of losses or metrics, by their names in configurations.
fn named<T>(sources: &[Source], kind: &str, names: &[&str]) -> String
where
    T: Serialize + DeserializeOwned + FromStr<Err = systole_ir::Error>,
{
    let mut without = Vec::new();
    let mut rows = Vec::new();
    for name in names {
        let value = serde_json::to_value(name.parse::<T>().expect("a name")).expect("JSON");
        let class = value["class_name"].as_str().expect("a class").to_string();
        // Arguments shared by all losses are listed once.
        let of_all = |key: &str| match key {
            "reduction" => kind == "Loss",
            "axis" => kind == "Loss" && !["Dice", "Tversky"].contains(&class.as_str()),
            _ => false,
        };
        let keys = keys_of_variant::<T>(&class).into_iter().filter(|key| !of_all(key)).collect::<Vec<_>>();
        match keys {
            none if none.is_empty() => without.push(code(name)),
            keys => rows.extend(grouped(name, variant(sources, kind, &class, &keys, &value["config"]))),
        }
    }
    let all = table(["name", "key", "type", "default", "meaning"], rows);
    format!("{all}\nNames without keys: {}.", without.join(", "))
}

/// Names of activations with their descriptions.
pub fn activation_names() -> Vec<(String, Item)> {
    let items = Source::read("crates/nn/src/layer/activation.rs").items(&["activations! {"]);
    let unknown = serde_json::from_value::<Activation>(json!("?")).expect_err("no such activation");
    let find = |name: String| {
        let item = items.iter().find(|i| snake(&i.name) == name);
        let item = item.unwrap_or_else(|| panic!("the sources say nothing of the activation {name}")).clone();
        (name, item)
    };
    listed(&unknown.to_string()).into_iter().map(find).collect()
}

fn activations() -> String {
    let rows = activation_names().into_iter().map(|(name, item)| {
        let value = serde_json::to_value(name.parse::<Activation>().expect("a name")).expect("JSON");
        [code(&name), item.doc.trim_end_matches('.').into(), in_words(value.get(&name))]
    });
    table(["name", "definition", "arguments"], rows)
}

/// Formats arguments with their defaults.
fn in_words(config: Option<&Value>) -> String {
    let arguments = config.and_then(Value::as_object).into_iter().flatten();
    arguments.map(|(k, v)| format!("`{k}` = {}", written(v))).collect::<Vec<_>>().join(", ")
}

/// Initializer classes that have a name, with their descriptions.
pub fn initializer_names() -> Vec<(String, Item)> {
    let items = Source::read("crates/nn/src/layer/initializer.rs").items(&["pub enum Initializer {"]);
    let unknown =
        serde_json::from_value::<Initializer>(json!({"class_name": "?"})).expect_err("no such initializer");
    let classes =
        listed(&unknown.to_string()).into_iter().filter(|c| snake(c).parse::<Initializer>().is_ok());
    classes.map(|class| (snake(&class), described(&items, &class, "Initializer"))).collect()
}

fn initializers() -> String {
    let rows = initializer_names().into_iter().map(|(name, item)| {
        let value = serde_json::to_value(name.parse::<Initializer>().expect("a name")).expect("JSON");
        [code(&name), code(&item.name), item.doc.trim_end_matches('.').into(), in_words(value.get("config"))]
    });
    table(["name", "`class_name`", "initial values", "`config`"], rows)
}
