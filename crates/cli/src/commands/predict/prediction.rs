//! Prediction of one sample, formatted as text, JSON or a CSV row.

use super::sample_sources::InputKind;
use crate::render::screen::Screen;
use serde_json::{Value, json};
use std::path::Path;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Model;

/// Prediction of one sample.
pub(super) struct SamplePrediction {
    pub path: String,
    pub index: usize,
    /// Whether the file has several samples.
    pub many: bool,
    pub values: Vec<f32>,
    /// Whether the values are regression outputs rather than class probabilities.
    pub is_of_values: bool,
    /// Whether the values are cosines of candidates rather than probabilities.
    pub is_similarity: bool,
}

impl SamplePrediction {
    /// Returns the `top` most likely classes.
    fn best(&self, top: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_by(|a, b| self.values[*b].total_cmp(&self.values[*a]));
        order.truncate(top);
        order
    }

    pub fn show(&self, screen: &Screen, model: &Model, takes: InputKind, top: usize) {
        if screen.json {
            return screen.object(&self.json(model, takes, top));
        }
        let place = if self.many { format!("{}[{}]", self.path, self.index) } else { self.path.clone() };
        if self.is_of_values {
            let values: Vec<String> = self.values.iter().map(f32::to_string).collect();
            return screen.line(format!("{place}: {}", values.join(", ")));
        }
        let class = |k: &usize| match self.is_similarity {
            true => format!("{} {:.3}", name(model, takes, *k), self.values[*k]),
            false => format!("{} {:.1} %", name(model, takes, *k), 100.0 * self.values[*k]),
        };
        let shown: Vec<String> = self.best(top).iter().map(class).collect();
        let others = if shown.len() > 1 { format!("  ({})", shown[1..].join(", ")) } else { String::new() };
        screen.line(format!("{place}: {}{others}", shown[0]));
    }

    fn json(&self, model: &Model, takes: InputKind, top: usize) -> Value {
        let what = if matches!(takes, InputKind::Pictures(_)) { "image" } else { "file" };
        if self.is_of_values {
            return json!({what: self.path, "index": self.index, "values": self.values});
        }
        let (best, p) = (self.best(top), &self.values);
        let key = if self.is_similarity { "similarity" } else { "probability" };
        let class = |k: &usize| json!({"class": name(model, takes, *k), "label": k, key: p[*k]});
        let ranked: Vec<_> = best.iter().map(class).collect();
        json!({
            what: self.path, "index": self.index, "class": name(model, takes, best[0]), "label": best[0],
            key: p[best[0]], "top": ranked,
        })
    }

    fn csv(&self, model: &Model, takes: InputKind, top: usize) -> String {
        let place = format!("{},{}", quoted(&self.path), self.index);
        if self.is_of_values {
            return self.values.iter().fold(place, |line, v| format!("{line},{v}"));
        }
        let class = |k: &usize| format!(",{},{k},{}", quoted(&name(model, takes, *k)), self.values[*k]);
        self.best(top).iter().map(class).fold(place, |line, class| line + &class)
    }
}

/// Name of a class, or of a token for text.
fn name(model: &Model, takes: InputKind, class: usize) -> String {
    let known = model.class_names.get(class).cloned();
    let what = if matches!(takes, InputKind::Text(_)) { "token" } else { "class" };
    known.unwrap_or_else(|| format!("{what} {class}"))
}

/// Quotes a CSV field if needed.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// Format of a prediction file.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum PredictionFormat {
    Csv,
    Json,
}

impl PredictionFormat {
    /// Determines the output format of predictions (CSV or JSON) from a file extension.
    pub fn of(path: &Path) -> Result<PredictionFormat> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Ok(PredictionFormat::Csv),
            Some("json") => Ok(PredictionFormat::Json),
            _ => {
                Err(Error::new(ErrorKind::Config, format!("{} is not a .csv or .json file", path.display()))
                    .at("--out")
                    .hint_command("write predictions to a file that ends in .csv or .json"))
            }
        }
    }

    pub fn text(self, answers: &[SamplePrediction], model: &Model, takes: InputKind, top: usize) -> String {
        match self {
            PredictionFormat::Json => {
                let all: Vec<Value> = answers.iter().map(|a| a.json(model, takes, top)).collect();
                format!("{:#}\n", Value::from(all))
            }
            PredictionFormat::Csv => {
                let values = answers.first().filter(|a| a.is_of_values).map(|a| a.values.len());
                let columns: String = match values {
                    Some(n) => (0..n).map(|i| format!(",value_{i}")).collect(),
                    None => {
                        let classes = answers.iter().map(|a| a.values.len()).max().unwrap_or(1);
                        let more =
                            (2..=top.min(classes)).map(|k| format!(",class_{k},label_{k},probability_{k}"));
                        [",class,label,probability".to_string()].into_iter().chain(more).collect()
                    }
                };
                let lines = answers.iter().map(|a| a.csv(model, takes, top) + "\n");
                format!("file,index{columns}\n{}", lines.collect::<String>())
            }
        }
    }
}
