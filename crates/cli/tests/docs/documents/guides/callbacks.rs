//! Generates the tables of the guides to callbacks and training loops: arguments of `fit` and `compile`, callbacks and
//! their settings.

use super::source::{Item, Source};
use super::table::{code, table};

#[test]
fn the_training_guide_lists_the_arguments_of_compile_and_fit() {
    let fit = arguments(&Source::read("crates/nn/src/train/fit/options.rs"), "Fit");
    let compile = arguments(&Source::read("crates/nn/src/model/compile.rs"), "Compile");
    super::same_parts("training-loops", &[("compile", compile), ("fit", fit)]);
}

#[test]
fn the_callbacks_guide_lists_every_callback_with_its_settings() {
    let sources = Source::folder("crates/nn/src/callback");
    let callbacks = sources.iter().flat_map(callbacks_of);
    let mut settings = Vec::new();
    let rows =
        callbacks.clone().map(|(source, name)| [code(name), made(source, name), described(source, name)]);
    let all = table(["callback", "constructor", "description"], rows);
    let files = [
        ("KeepBest", "crates/nn/src/checkpoint/best_model.rs"),
        ("BackupAndRestore", "crates/nn/src/checkpoint/backup.rs"),
    ];
    callbacks.for_each(|(source, name)| settings.extend(settings_of(source, name)));
    let source = &Source::read("crates/nn/src/callback/callback_trait.rs");
    let mut kept = Vec::new();
    files.iter().for_each(|(name, file)| kept.extend(settings_of(&Source::read(file), name)));
    let header = ["callback", "setting", "default", "meaning"];
    let hooks = source.functions("pub trait Callback: Send {");
    let hooks = hooks.into_iter().map(|f| [code(&f.name), f.doc.trim_end_matches('.').to_string()]);
    let cx = source.items(&["pub struct FitCx<'a> {"]).into_iter();
    let cx = cx.map(|f| [code(&f.name), f.doc.trim_end_matches('.').to_string()]);
    let parts = [
        ("callbacks", all),
        ("settings", table(header, settings)),
        ("kept", table(["argument", "setting", "default", "meaning"], kept)),
        ("hooks", table(["method", "description"], hooks)),
        ("context", table(["field", "description"], cx)),
    ];
    super::same_parts("callbacks", &parts);
}

/// The callbacks of a file.
fn callbacks_of(source: &Source) -> impl Iterator<Item = (&Source, &str)> + Clone {
    let heads = source.lines_with(" Callback for ").filter(|l| l.starts_with("impl"));
    let after = heads.filter_map(|l| l.split_once(" Callback for ").map(|(_, after)| after));
    let names: Vec<&str> = after.filter_map(|after| after.split([' ', '<']).next()).collect();
    names.into_iter().map(move |name| (source, name))
}

/// The fields of a struct of options, with their defaults.
fn arguments(source: &Source, name: &str) -> String {
    let rows = source.items(&[&format!("pub struct {name} {{")]).into_iter().map(|field| {
        assert!(!field.default.is_empty(), "{name}: no default of {}", field.name);
        let doc = field.doc.trim_end_matches('.').to_string();
        [code(&field.name), code(&field.ty), in_rust(&field.default), doc]
    });
    table(["field", "type", "default", "meaning"], rows)
}

/// A value of Rust, in short.
fn in_rust(value: &str) -> String {
    match value {
        "None" => "none".into(),
        "Vec::new()" | "BTreeMap::new()" => "empty".into(),
        "Strategy::default()" => code("Strategy::one_device()"),
        _ if value.starts_with("Loss::SparseCategoricalCrossentropy") => {
            code("sparse_categorical_crossentropy()")
        }
        _ => code(value.trim_start_matches("crate::optimizer::")),
    }
}

/// The blocks in which a callback's functions stand.
fn blocks(name: &str) -> [String; 2] {
    [format!("impl {name} {{"), format!("impl<F: FileSystem> {name}<F> {{")]
}

fn described(source: &Source, name: &str) -> String {
    let heads = [" {", "<", "(", ";"].map(|end| format!("pub struct {name}{end}"));
    let doc = heads.iter().find_map(|head| source.doc(head));
    doc.unwrap_or_else(|| panic!("{name} has no description")).trim_end_matches('.').to_string()
}

/// How it is made: `new` with its arguments, or its name where it has none.
fn made(source: &Source, name: &str) -> String {
    let functions = blocks(name).into_iter().flat_map(|b| source.functions(&b)).find(|f| f.name == "new");
    match (functions, source.rest(&format!("pub struct {name}<F>("))) {
        (Some(new), _) => {
            let arguments = new.ty.split(", ").filter_map(|a| Some(a.split_once(": ")?.0));
            code(&format!("{name}::new({})", arguments.collect::<Vec<_>>().join(", ")))
        }
        (None, Some(_)) => code(&format!("{name}(f)")),
        (None, None) => code(name),
    }
}

/// A callback's setters: what each is without it, and what it does.
fn settings_of(source: &Source, name: &str) -> Vec<[String; 4]> {
    let blocks = blocks(name);
    let constructed = |block: &String| -> Vec<Item> {
        let literal = format!("{name} {{");
        let of = |function: &str| source.items(&[block, function, &literal]);
        let fields = source.items(&[&format!("pub struct {name} {{")]);
        let defaults = fields.into_iter().map(|field| Item { ty: field.default.clone(), ..field });
        [of("pub fn new("), of("pub fn with_files("), defaults.collect()].concat()
    };
    let values: Vec<Item> = blocks.iter().flat_map(constructed).collect();
    let functions = blocks.iter().flat_map(|b| source.functions(b));
    let setters = functions.filter(|f| f.ty.starts_with("mut self, "));
    let row = |(i, f): (usize, Item)| {
        let first = if i == 0 { code(name) } else { String::new() };
        let call = code(&format!("{}({})", f.name, f.ty.trim_start_matches("mut self, ")));
        let (meaning, said) = match f.doc.split_once(" Default: ") {
            Some((meaning, said)) => (meaning, Some(said.trim_end_matches('.').to_string())),
            None => (f.doc.as_str(), None),
        };
        let value = values.iter().find(|v| v.name == f.name && !v.ty.is_empty()).map(|v| in_rust(&v.ty));
        let default = said.or(value).unwrap_or_else(|| panic!("{name}::{} does not say its default", f.name));
        [first, call, default, meaning.trim_end_matches('.').to_string()]
    };
    setters.enumerate().map(row).collect()
}
