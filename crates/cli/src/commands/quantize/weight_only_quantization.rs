//! Weight-only quantization to int8 or int4 (`systole quantize --activations none`), with loss and metrics before and
//! after.

use crate::args::exit_status::{ACCURACY_LOST, CommandResult};
use crate::commands::quantize::QuantArgs;
use crate::models::imported;
use crate::models::run_directory;
use crate::render::screen::{Screen, counted, grouped, program, quoted, table, values};
use serde_json::{Map, Value, json};
use std::path::Path;
use systole_ir::ResultExt;
use systole_nn::layers::CustomObjects;
use systole_nn::loss::Loss;
use systole_nn::{Logs, Model, QuantizedWeightReport, WeightBits};
use systole_progress::progress::called;

/// Writes the model with quantized weights and reports its size, and loss and metrics before and after.
pub(crate) fn make(
    model: &str,
    bits: WeightBits,
    args: &QuantArgs,
    out: &Path,
    screen: &Screen,
) -> CommandResult {
    let file = run_directory::model_file(model)?;
    let mut before = imported::load(&file)?;
    let mut made = before.to_file().at(|| file.clone())?;
    let weights = made.pack_weights(bits).at(|| file.clone())?;
    made.save(out)?;
    let size = std::fs::metadata(out).map_or(0, |about| about.len());
    let mut after = Model::from_file(made, &CustomObjects::new())?;
    let found = match args.test_samples {
        Some(0) => None,
        _ => Some(measured((&mut before, &mut after), &file, args, screen)?),
    };
    let excess = found.as_ref().and_then(|found| found.excess(args));
    let code = if excess.is_some() { ACCURACY_LOST } else { 0 };
    if !screen.json {
        show(&weights, found.as_ref(), screen);
        screen.line(format!("{}: {}", out.display(), counted(size, "byte")));
    }
    if let Some(excess) = excess {
        screen.line(excess);
        screen.line(match bits {
            WeightBits::Int4 => "  try: pass --weights int8 --force".to_string(),
            WeightBits::Int8 => format!(
                "  try: train adapters on the quantized weights: {} train --from {} --lora 4 --epochs 1",
                program(),
                quoted(out)
            ),
        });
    }
    if !screen.json {
        return Ok(code);
    }
    let one = |w: &QuantizedWeightReport| json!({"weight": w.path, "bytes": w.bytes.0, "packed_bytes": w.bytes.1, "error": w.error});
    let mut object = json!({"model_file": file, "file": out, "bytes": size, "weights": weights.iter().map(one).collect::<Vec<_>>()});
    if let Some(found) = &found {
        object["before"] = found.json(&found.before);
        object["after"] = found.json(&found.after);
        object["samples"] = json!(found.samples);
        object["accepted"] = json!(code == 0);
    }
    screen.object(&object);
    Ok(code)
}

/// Loss and metrics before and after quantization.
struct WeightOnlyReport {
    before: Logs,
    after: Logs,
    samples: usize,
    /// Name of the test data.
    data: String,
    /// Whether the loss is the mean negative log-likelihood of tokens.
    is_text: bool,
}

impl WeightOnlyReport {
    /// Returns a message if an accuracy drops, or else the loss rises, by more than accepted.
    fn excess(&self, args: &QuantArgs) -> Option<String> {
        let pairs = || self.before.iter().filter_map(|(name, x)| Some((name, x, self.after.get(name)?)));
        let mut accuracies = pairs().filter(|(name, ..)| name.contains("accuracy")).peekable();
        match accuracies.peek() {
            Some(_) => accuracies.find_map(|(_, x, y)| args.limits.excess_of_accuracy(x, y)),
            None => pairs()
                .filter(|(name, ..)| *name == "loss")
                .find_map(|(_, x, y)| args.limits.excess_of_error("loss", x, y, 0.0)),
        }
    }

    fn perplexity(&self, logs: &Logs) -> Option<f64> {
        logs.get("loss").filter(|_| self.is_text).map(f64::exp)
    }

    fn json(&self, logs: &Logs) -> Value {
        let mut all: Map<String, Value> = logs.iter().map(|(n, v)| (n.to_string(), json!(v))).collect();
        self.perplexity(logs).into_iter().for_each(|p| drop(all.insert("perplexity".into(), json!(p))));
        all.into()
    }

    fn text(&self, logs: &Logs) -> String {
        let perplexity = self.perplexity(logs).map_or(String::new(), |p| format!(", perplexity {p:.3}"));
        values(logs, |n| Some(called(n))) + &perplexity
    }
}

fn measured(
    (before, after): (&mut Model, &mut Model),
    file: &str,
    args: &QuantArgs,
    screen: &Screen,
) -> CommandResult<WeightOnlyReport> {
    let (config, data) = args.load(before, file, screen)?;
    let test = config.test_pipeline(&data);
    let batch = config.samples_per_step();
    let most = args.test_samples.map_or(1000, |n| n as usize);
    let steps = Some(most.div_ceil(batch.max(1)));
    let there = config.data.test_samples.map_or(data.test_len, |n| data.test_len.min(n as usize));
    let loss = before.compile_config().map(|c| c.loss.clone());
    let is_tokens = |loss: &Loss| matches!(loss.base(), Loss::SparseCategoricalCrossentropy { .. });
    Ok(WeightOnlyReport {
        before: before.evaluate_steps(&test, steps)?,
        after: after.evaluate_steps(&test, steps)?,
        samples: most.next_multiple_of(batch.max(1)).min(there),
        data: data.name.to_string(),
        is_text: data.language.is_some() && loss.as_ref().is_some_and(is_tokens),
    })
}

fn show(weights: &[QuantizedWeightReport], found: Option<&WeightOnlyReport>, screen: &Screen) {
    let mut rows = vec![["Weight", "bytes", "packed", "error"].map(String::from).to_vec()];
    for w in weights {
        let error = format!("{:.2} %", 100.0 * w.error);
        rows.push(vec![w.path.clone(), grouped(w.bytes.0 as u64), grouped(w.bytes.1 as u64), error]);
    }
    let sum = |of: fn(&QuantizedWeightReport) -> usize| grouped(weights.iter().map(of).sum::<usize>() as u64);
    rows.push(vec!["all".into(), sum(|w| w.bytes.0), sum(|w| w.bytes.1), String::new()]);
    screen.line(table(&rows).trim_end());
    if let Some(found) = found {
        screen.line(format!("Before: {}", found.text(&found.before)));
        screen.line(format!(
            "After: {} on {} of {}",
            found.text(&found.after),
            counted(found.samples as u64, "test sample"),
            found.data
        ));
    }
}
