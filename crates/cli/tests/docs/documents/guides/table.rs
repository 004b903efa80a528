//! Markdown tables, and values and types formatted in configuration syntax.

use super::source::Item;
use serde_json::Value;
use std::str::FromStr;
use systole_nn::{Activation, Initializer};

/// Formats a Markdown table.
pub fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: [String; N]| format!("| {} |\n", cells.map(|c| c.replace('|', "\\|")).join(" | "));
    let mut out = line(header.map(str::to_string));
    out += &format!("|{}\n", "---|".repeat(N));
    rows.into_iter().for_each(|cells| out += &line(cells));
    out
}

/// Formats text as inline code.
pub fn code(text: &str) -> String {
    format!("`{text}`")
}

/// Table cells of a key: name, type, default, description. `value` is the program's default.
pub fn key(item: &Item, value: Option<&Value>, place: &str) -> [String; 4] {
    let name = &item.name;
    assert!(!item.doc.is_empty(), "{place}: `{name}` has no description");
    let value = value.filter(|v| !v.is_null());
    let (meaning, said) = parted(&item.doc, value.is_some_and(Value::is_number));
    let default = match (meaning.strip_suffix("Required."), value, said) {
        (Some(_), ..) => "required".into(),
        (None, Some(value), Some(said)) => {
            let shown = written(value);
            assert!(
                same(&shown, said),
                "{place}: `{name}` is {shown} by default, its description says {said}"
            );
            if said.contains(';') || said.contains(' ') && !value.is_array() {
                said.to_string()
            } else {
                code(&shown)
            }
        }
        (None, Some(value), None) => code(&written(value)),
        (None, None, Some(said)) if !said.contains(' ') => code(said.trim_matches('`')),
        (None, None, Some(said)) => said.to_string(),
        (None, None, None) => "–".into(),
    };
    let meaning = meaning.strip_suffix("Required.").unwrap_or(meaning).trim();
    [code(name), kind(&item.ty, &item.attributes, place), default, meaning.trim_end_matches('.').to_string()]
}

/// Splits a description from the default named at its end; for numbers, Keras's default also counts.
fn parted(doc: &str, is_number: bool) -> (&str, Option<&str>) {
    let parts = doc.split_once("Default: ").or_else(|| doc.split_once("Keras: ").filter(|_| is_number));
    match parts {
        Some((before, default)) => (before.trim_end(), Some(default.trim_end_matches('.'))),
        None => (doc, None),
    }
}

/// Whether a description starts with the value.
fn same(value: &str, said: &str) -> bool {
    let normal =
        |text: &str| text.replace('−', "-").replace('(', "[").replace(')', "]").replace(['`', '"'], "");
    let (value, said) = (normal(value), normal(said));
    let first = said.split([' ', ',', ';']).next().unwrap_or("");
    match (value.parse::<f64>(), first.parse::<f64>()) {
        (Ok(a), Ok(b)) => a == b,
        _ => said.starts_with(&value),
    }
}

/// Formats a value as TOML; activations and initializers by name if they have no other arguments.
pub fn written(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => match (map.get("class_name").and_then(Value::as_str), map.iter().next()) {
            (Some(class), _) => initializer(class, value),
            (None, Some((name, _))) => {
                let whole = serde_json::from_value::<Activation>(value.clone()).ok();
                let usual = whole.is_some_and(|a| Activation::from_str(name).is_ok_and(|usual| usual == a));
                assert!(usual, "{value} cannot be written as a name");
                format!("{name:?}")
            }
            (None, None) => "none".into(),
        },
        other => other.to_string(),
    }
}

/// Name of an initializer, with its non-default arguments.
fn initializer(class: &str, value: &Value) -> String {
    let name = snake(class);
    let usual = Initializer::from_str(&name).ok().and_then(|i| serde_json::to_value(i).ok());
    let config = value["config"].as_object().filter(|_| usual.as_ref() != Some(value));
    let arguments = config.map(|c| c.iter().map(|(k, v)| format!("{k} {v}")).collect::<Vec<_>>().join(", "));
    arguments.map_or(format!("{name:?}"), |a| format!("{name:?} with {a}"))
}

/// Converts `GlorotUniform` to `glorot_uniform`.
pub fn snake(class: &str) -> String {
    let mut name = String::new();
    for c in class.chars() {
        if c.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(c.to_lowercase());
    }
    name
}

/// Describes the type of a key for TOML authors.
fn kind(ty: &str, attributes: &str, place: &str) -> String {
    if attributes.contains("number_or_fraction") {
        return "number, or a fraction as a string".into();
    }
    if attributes.contains("auto_or_number") {
        return "integer, or `\"auto\"`".into();
    }
    let inner = ty.strip_prefix("Option<").and_then(|t| t.strip_suffix('>')).unwrap_or(ty);
    let words = match inner {
        "usize" | "u32" | "u64" | "i64" => "integer",
        "f64" => "number",
        "bool" => "boolean",
        "String" | "PathBuf" => "string",
        "Vec<String>" => "list of strings",
        "Vec<f64>" => "list of numbers",
        "Vec<u64>" | "Vec<usize>" | "Vec<i64>" | "NoiseShape" => "list of integers",
        "[usize; 2]" => "`[height, width]`",
        "ImageResizing" => "name of a method, or table",
        "SaveFreq" => "`\"epoch\"`, or an integer",
        "SaveLast" => "boolean, or `\"link\"`",
        "LoggingInterval" | "TimerInterval" => "`\"step\"` or `\"epoch\"`",
        "ValCheckInterval" => "fraction, number of batches, or time",
        "BTreeMap<usize, usize>" => "table of epochs and integers",
        "Limit" => "number of batches, or fraction",
        "Sizes<1>" => "size",
        "Sizes<2>" => "size, or `[height, width]`",
        "Sizes<3>" => "size, or `[depth, height, width]`",
        "Edges<1>" => "size, or `[before, after]`",
        "Edges<2>" => "size, `[rows, columns]`, or `[[top, bottom], [left, right]]`",
        "Edges<3>" => "size, or list of a size or `[before, after]` per dimension",
        "WrappedLayer" => "table: `{ type = \"…\", … }`",
        "Regularizer" => "`\"l1\"`, `\"l2\"`, `\"l1_l2\"`, or `{ l1 = …, l2 = … }`",
        "Constraint" => {
            "`\"max_norm\"`, `\"non_neg\"`, `\"unit_norm\"`, `\"min_max_norm\"`, or its `class_name` and `config`"
        }
        "MergeMode" => "`\"concat\"`, `\"sum\"`, `\"mul\"` or `\"ave\"`",
        "Interpolation" => "`\"nearest\"`, `\"bilinear\"`, `\"bicubic\"`, `\"lanczos3\"` or `\"lanczos5\"`",
        "FactorRange" | "Option<FactorRange>" => "number, or `[min, max]`",
        "[f64; 2]" => "`[min, max]`",
        "FillMode" => "`\"reflect\"`, `\"wrap\"`, `\"constant\"` or `\"nearest\"`",
        "FlipMode" => "`\"horizontal\"`, `\"vertical\"` or `\"horizontal_and_vertical\"`",
        "OutputMode" | "LookupOutputMode" => "`\"int\"`, `\"one_hot\"`, `\"multi_hot\"` or `\"count\"`",
        "SpectrogramWindow" => "`\"hann\"` or `\"hamming\"`",
        "ScoreMode" => "`\"dot\"` or `\"concat\"`",
        "Axes" | "AxisOrAxes" => "axis, or list of axes",
        "Padding" => "`\"valid\"` or `\"same\"`",
        "Mode" => "`\"auto\"`, `\"min\"` or `\"max\"`",
        "UpdateFreq" => "`\"epoch\"`, `\"batch\"`, or an integer",
        "AucCurve" => "`\"ROC\"`, `\"PR\"` or `\"PRGAIN\"`",
        "Summation" => "`\"interpolation\"`, `\"majoring\"` or `\"minoring\"`",
        "Average" => "`\"micro\"`, `\"macro\"` or `\"weighted\"`",
        "Aggregation" => "`\"uniform_average\"`, `\"variance_weighted_average\"` or `\"none\"`",
        "Logger" => "`\"tensorboard\"` or `\"none\"`",
        "DateFormat" => "`\"year_first\"`, `\"month_first\"`, `\"day_first\"` or `\"month_name\"`",
        "RecordCompression" => "`\"auto\"`, `\"plain\"`, `\"gzip\"` or `\"zlib\"`",
        "Activation" => "[activation](#activations)",
        "Initializer" => "[initializer](#initializers)",
        "Schedule" | "Box<Schedule>" => "number, or a [schedule](#schedules)",
        "Table" => "table",
        "Swa" => {
            "table with `swa_lrs`, `swa_epoch_start` (0.8), `annealing_epochs` (10), `annealing_strategy` (`\"cos\"`, `\"linear\"`)"
        }
        "BTreeMap<String, f64>" => "table of numbers",
        "BTreeMap<String, Optimizer>" => "table of optimizers",
        "[f64; 3]" => "three numbers",
        "Vec<Table>" => "list of tables",
        "DataSection" | "CompileSection" | "FitSection" | "StrategySection" | "RecordOptions"
        | "FineTuneSection" | "LoraSection" | "PruningSection" | "LrFindSection" | "QuantizeSection" => {
            "table"
        }
        "BigGan" => "table",
        "WeightParametrization" => "`\"SN\"` or `\"none\"`",
        "NormStyle" => "`\"bn\"` or `\"nonorm\"`",
        "Init" => "`\"ortho\"`, `\"N02\"`, `\"glorot\"` or `\"xavier\"`",
        "FrozenBatchNorm" => "`\"train\"` or `\"inference\"`",
        "Vec<ColumnEncoding>" => "list of tables",
        "Value" => "name, or a table",
        "Vec<Value>" => "list of names or tables",
        _ => panic!("{place}: there are no words for the type {ty}"),
    };
    words.into()
}

/// Names listed in serde's message about an unknown name.
pub fn listed(message: &str) -> Vec<String> {
    assert!(message.contains("expected"), "{message}");
    message.split('`').skip(1).step_by(2).skip(1).map(str::to_string).collect()
}
