//! Parses the model, optimizer, loss and metric sections. Each item is a name, or a table with `type` and arguments.

use super::key_error::{self, KeyError, from_serde, unknown};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::applications::{APPLICATIONS, by_name};
use systole_nn::layers::LayerSpec;
use systole_nn::loss::Loss;
use systole_nn::metric::Metric;
use systole_nn::optimizer::Optimizer;
use systole_nn::schedule::Schedule;
use systole_nn::{Architecture, Symbol, any_input};
use toml::{Table, Value};

/// Parses the model's structure: an application, or layers.
pub(super) fn architecture(model: Option<&Table>, layers: &[Table]) -> Result<Architecture, KeyError> {
    match (model, layers) {
        (None, []) => Err(KeyError::new("layers", "the configuration has no layers")
            .hint_command("add [[layers]] tables; run `systole init` for an example")),
        (None, layers) => of_layers(layers),
        (Some(model), []) => application(model),
        (Some(_), _) => Err(KeyError::new("model", "[model] cannot be combined with [[layers]]")
            .hint_setting("remove [model] to train the layers, or [[layers]] to train the application")),
    }
}

/// Parses the `model` table.
fn application(table: &Table) -> Result<Architecture, KeyError> {
    let Some(name) = table.get("application").and_then(Value::as_str) else {
        return Err(KeyError::new("model", "[model] has no `application`")
            .hint_setting(format!("set model.application; available: {}", APPLICATIONS.join(", "))));
    };
    by_name(name, &Map::new()).map_err(|e| KeyError::of("model.application", e))?;
    let keys = table.iter().filter(|(k, _)| *k != "application");
    let arguments: Map<String, Json> = keys.map(|(k, v)| (k.clone(), to_json(v))).collect();
    let architecture = by_name(name, &arguments).map_err(|e| {
        // Report the argument that is invalid on its own; otherwise all of them, since some are valid only together.
        let is_to_blame = |key: &str| {
            let alone = arguments.iter().filter(|(k, _)| *k == key).map(|(k, v)| (k.clone(), v.clone()));
            by_name(name, &alone.collect::<Map<String, Json>>())
                .is_err_and(|own| own.to_string() == e.to_string())
        };
        let blamed = arguments.keys().find(|key| is_to_blame(key));
        KeyError::of(&blamed.map_or("model".into(), |key| format!("model.{key}")), e)
    })?;
    architecture.check().map_err(|e| KeyError::of("model", e))?;
    Ok(architecture)
}

/// Parses the `layers` tables: a chain, or a graph if any layer has `inputs`.
fn of_layers(tables: &[Table]) -> Result<Architecture, KeyError> {
    let specs = tables.iter().enumerate().map(|(i, t)| layer(i, t)).collect::<Result<Vec<_>, _>>()?;
    if tables.iter().all(|t| !t.contains_key(INPUTS)) {
        return Ok(Architecture::sequential(specs));
    }
    let input = any_input("input");
    let mut known: Vec<(String, Symbol)> = vec![("input".into(), input.clone())];
    let mut last = input.clone();
    for (i, (table, spec)) in tables.iter().zip(specs).enumerate() {
        let name = spec.given_name().map(str::to_string);
        let feeds = feeds(i, table, &known)?;
        last = match feeds.as_slice() {
            [] => last.apply(spec),
            feeds => spec.on(&feeds.iter().collect::<Vec<_>>()),
        };
        if let Some(name) = name {
            known.push((name, last.clone()));
        }
    }
    let architecture = Architecture::functional(&[input], &last).map_err(|e| KeyError::of("layers", e))?;
    if architecture.nodes.len() < tables.len() {
        return Err(KeyError::new("layers", "the output of a layer is not used").hint_setting(
            "connect every layer to the last one through `inputs`: the last layer is the model's output",
        ));
    }
    architecture.check().map_err(|e| KeyError::of("layers", e))?;
    Ok(architecture)
}

/// Resolves the `inputs` of layer `index`: one or several names of earlier layers.
fn feeds(index: usize, table: &Table, known: &[(String, Symbol)]) -> Result<Vec<Symbol>, KeyError> {
    let path = format!("layers.{index}.{INPUTS}");
    let names: Vec<&Value> = match table.get(INPUTS) {
        None => return Ok(Vec::new()),
        Some(Value::Array(names)) => names.iter().collect(),
        Some(name) => vec![name],
    };
    let find = |name: &Value| {
        let Some(name) = name.as_str() else {
            let hint = "write the names of earlier layers: inputs = [\"a\", \"b\"]";
            return Err(
                KeyError::new(&path, format!("expected the name of a layer, got {name}")).hint_setting(hint)
            );
        };
        let found = known.iter().rev().find(|(n, _)| n == name).map(|(_, s)| s.clone());
        found.ok_or_else(|| {
            let all: Vec<&str> = known.iter().map(|(n, _)| n.as_str()).collect();
            KeyError::of(&path, unknown("unknown earlier layer", name, &all))
        })
    };
    match names.is_empty() {
        true => Err(KeyError::new(&path, "inputs is an empty list").hint_setting(
            "remove `inputs` to use the output of the previous layer, or write inputs = [\"input\"]",
        )),
        false => names.into_iter().map(find).collect(),
    }
}

/// Key that lists a layer's inputs; all other keys are layer arguments.
const INPUTS: &str = "inputs";

/// Parses layer `index`.
fn layer(index: usize, table: &Table) -> Result<LayerSpec, KeyError> {
    let path = format!("layers.{index}");
    let class = kind(&path, table)?;
    if NESTED.contains(&class) {
        return nested(&path, class, table);
    }
    let arguments = |keep: &dyn Fn(&str) -> bool| -> Json {
        table
            .iter()
            .filter(|(k, _)| *k != "type" && *k != INPUTS && keep(k))
            .map(|(k, v)| (k.clone(), to_json(v)))
            .collect::<Map<_, _>>()
            .into()
    };
    LayerSpec::from_table(class, &arguments(&|_| true)).map_err(|error| {
        // Report the first argument that is rejected on its own; otherwise the layer as a whole.
        let base = LayerSpec::from_table(class, &arguments(&|_| false)).err().map(|e| e.what().to_string());
        let alone = |key: &&String| {
            let e = LayerSpec::from_table(class, &arguments(&|k| k == *key)).err();
            e.is_some_and(|e| Some(e.what()) != base.as_deref() && e.what() == error.what())
        };
        let class_is_wrong =
            base.as_deref() == Some(error.what()) && error.what().starts_with("unknown layer");
        match table.keys().filter(|k| *k != "type" && *k != INPUTS).find(alone) {
            Some(key) => KeyError::of(&format!("{path}.{key}"), error.at(path.clone())),
            None if class_is_wrong => KeyError::of(&format!("{path}.type"), error.at(path.clone())),
            None => KeyError::of(&path, error.at(path.clone())),
        }
    })
}

/// Parses a model used as a layer: `type = "Sequential"` with its own `layers`, and weights under its name.
fn nested(path: &str, class: &str, table: &Table) -> Result<LayerSpec, KeyError> {
    let inside = |wrong: KeyError| KeyError {
        path: [key_error::split(path), wrong.path].concat(),
        error: wrong.error,
    };
    let tables = table.get("layers").and_then(Value::as_array).into_iter().flatten();
    let tables: Option<Vec<Table>> = tables.map(|layer| layer.as_table().cloned()).collect();
    let tables = tables.filter(|tables| !tables.is_empty()).ok_or_else(|| {
        KeyError::new(&format!("{path}.layers"), format!("{class} requires a list of layers"))
            .hint_setting("write layers = [{ type = \"Dense\", units = 8 }]")
    })?;
    let mut spec = LayerSpec::from(of_layers(&tables).map_err(inside)?);
    for (key, value) in table.iter().filter(|(k, _)| !["type", "layers", INPUTS].contains(&k.as_str())) {
        spec = match (key.as_str(), value) {
            ("name", Value::String(name)) => spec.name(name.clone()),
            ("trainable", Value::Boolean(yes)) => spec.trainable(*yes),
            ("remat", Value::Boolean(yes)) => spec.remat(*yes),
            _ => {
                let known = ["layers", "name", "trainable", "remat", INPUTS];
                let what = format!("{class} does not support this value of argument `{key}`:");
                return Err(KeyError::of(&format!("{path}.{key}"), unknown(&what, key, &known)));
            }
        };
    }
    spec.check().map_err(|e| KeyError::of(path, e))?;
    Ok(spec)
}

/// Model types that can be used as layers.
const NESTED: [&str; 2] = ["Sequential", "Functional"];

/// Parses the `optimizer` table.
pub(super) fn optimizer(table: &Table) -> Result<Optimizer, KeyError> {
    let name = kind("optimizer", table)?;
    let mut done: Optimizer = name.parse().map_err(|e| KeyError::of("optimizer.type", e))?;
    for (key, value) in table.iter().filter(|(k, _)| *k != "type") {
        let path = format!("optimizer.{key}");
        done = done.with(key, &to_json(value)).map_err(|e| KeyError::of(&path, e))?;
        done.check().map_err(|e| KeyError::of(&path, e))?;
    }
    let rate = &done.learning_rate;
    if matches!(rate, Schedule::Constant(r) if *r <= 0.0) || rate.at(0) < 0.0 {
        let what = format!("invalid learning rate {}: it must be above 0", rate.at(0));
        return Err(KeyError::new("optimizer.learning_rate", what)
            .hint_setting("try learning rate 0.001 for adam, or 0.01 for sgd"));
    }
    Ok(done)
}

/// Parses `compile.loss`.
pub(super) fn loss(value: &Value) -> Result<Loss, KeyError> {
    let loss: Loss = named("compile.loss", value, |name| name.parse())?;
    loss.check().map_err(|e| KeyError::of("compile.loss", e))?;
    Ok(loss)
}

/// Parses one metric; `output` is the shape of the model's output.
pub(super) fn metric(path: &str, value: &Value, loss: &Loss, output: &[usize]) -> Result<Metric, KeyError> {
    let resolve = |name: &str| Metric::resolve(name, loss, output);
    let class = value.get("type").and_then(Value::as_str);
    let mut metric = match class.map(resolve) {
        // A loss used as a metric takes the loss's arguments.
        Some(Ok(Metric::Loss(_))) => named::<Loss>(path, value, |name| name.parse()).map(Metric::from)?,
        _ => named(path, value, resolve)?,
    };
    if let Metric::Precision { thresholds, top_k: Some(_), .. }
    | Metric::Recall { thresholds, top_k: Some(_), .. } = &mut metric
        && value.get("thresholds").is_none()
    {
        thresholds.clear();
    }
    metric.check().map_err(|e| KeyError::of(path, e))?;
    Ok(metric)
}

/// Parses a name, or a table with `type` and arguments.
fn named<T: Serialize + DeserializeOwned>(
    path: &str,
    value: &Value,
    parse: impl Fn(&str) -> Result<T>,
) -> Result<T, KeyError> {
    let table = match value {
        Value::String(name) => return parse(name).map_err(|e| KeyError::of(path, e)),
        Value::Table(table) => table,
        other => {
            let what = format!("expected a name or a table with `type`, got {other}");
            let hint = "write a name, such as \"accuracy\", or { type = \"accuracy\" } with arguments";
            return Err(KeyError::new(path, what).hint_setting(hint));
        }
    };
    let base = parse(kind(path, table)?).map_err(|e| KeyError::of(&format!("{path}.type"), e))?;
    let mut json = serde_json::to_value(&base).map_err(|e| KeyError::new(path, e.to_string()))?;
    for (key, value) in table.iter().filter(|(k, _)| *k != "type") {
        json["config"][key] = to_json(value);
        read::<T>(&format!("{path}.{key}"), json.clone())?;
    }
    read(path, json)
}

fn kind<'a>(path: &str, table: &'a Table) -> Result<&'a str, KeyError> {
    let found = table.get("type").and_then(Value::as_str);
    found.ok_or_else(|| {
        let hint = format!("set {path}.type; `systole init` prints an example");
        KeyError::new(path, format!("{path} has no `type`")).hint_setting(hint)
    })
}

fn read<T: DeserializeOwned>(path: &str, json: Json) -> Result<T, KeyError> {
    serde_json::from_value(json).map_err(|e| {
        let error = from_serde(&e.to_string());
        let what = format!("invalid value of {path}");
        let whole = Error::new(ErrorKind::Config, what).because(error.what());
        KeyError::of(
            path,
            match error.hint_text() {
                Some(hint) => whole.hint_setting(hint),
                None => whole,
            },
        )
    })
}

pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::String(s) => s.clone().into(),
        Value::Integer(i) => (*i).into(),
        Value::Float(f) => (*f).into(),
        Value::Boolean(b) => (*b).into(),
        Value::Datetime(d) => d.to_string().into(),
        Value::Array(items) => items.iter().map(to_json).collect(),
        Value::Table(t) => t.iter().map(|(k, v)| (k.clone(), to_json(v))).collect::<Map<_, _>>().into(),
    }
}
