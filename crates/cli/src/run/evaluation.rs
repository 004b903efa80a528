//! Evaluates a model on test data sample by sample: confusion matrix, worst mistakes, sample images.

use crate::models::binary_output::BinaryOutput;
use crate::run::confusion::Confusion;
use std::time::{Duration, Instant};
use systole_config::RunConfig;
use systole_data::format::png;
use systole_data::{HostArray, Sample};
use systole_datasets::{ColumnEncoding, TrainingData};
use systole_ir::{DType, Literal, Result};
use systole_nn::loss::Loss;
use systole_nn::{Model, grouped};
use systole_report::WrongPrediction;

/// Rows and columns of the sample image grid.
const GRID: usize = 5;
/// Number of mistakes to keep.
const WORST: usize = 12;
/// Maximum side length of an image in pixels; larger images are scaled down.
const SIDE: usize = 160;
/// Maximum number of output values per batch. More would use too much memory for a report.
const VALUES: usize = 16 << 20;
/// Number of context tokens shown before a wrong token.
const CONTEXT: usize = 60;
/// Number of fields shown of a table row.
const FIELDS: usize = 12;

/// Predictions on test data: confusion matrix, worst mistakes and sample images.
pub(crate) struct TestPredictions {
    /// For classifiers only.
    pub(crate) confusion: Option<Confusion>,
    /// The first test images.
    samples: Vec<Literal>,
    /// The worst mistakes first, each with its badness.
    worst: Vec<(f64, WrongPrediction)>,
    seen: u64,
    wrong: u64,
    /// Whether all test data was evaluated within the time limit.
    is_whole: bool,
    kind: PredictionTask,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PredictionTask {
    Classes,
    /// One output for two classes.
    Binary(BinaryOutput),
    Tokens,
    Numbers,
}

impl TestPredictions {
    /// Runs the model on all test data, or for about `limit`.
    pub(crate) fn gather(
        model: &mut Model,
        config: &RunConfig,
        data: &TrainingData,
        limit: Option<Duration>,
    ) -> Result<Option<TestPredictions>> {
        let Some(kind) = kind_of(model, data) else { return Ok(None) };
        let values = model.output_type().map_or(0, |t| t.elements()) * config.fit.batch_size;
        if limit.is_some() && values > VALUES {
            return Ok(None);
        }
        let is_counted = matches!(kind, PredictionTask::Classes | PredictionTask::Binary(_))
            && !data.class_names.is_empty();
        let mut answers = TestPredictions {
            confusion: is_counted.then(|| Confusion::new(model.class_names.clone())),
            samples: Vec::new(),
            worst: Vec::new(),
            seen: 0,
            wrong: 0,
            is_whole: true,
            kind,
        };
        let test = config.test_pipeline(data);
        let (began, most) = (Instant::now(), limit.and(config.tested_batches(data)?).unwrap_or(usize::MAX));
        for batch in test.iter().take(most) {
            if answers.seen > 0 && limit.is_some_and(|limit| began.elapsed() > limit) {
                answers.is_whole = false;
                break;
            }
            answers.take(model, &batch?, config, data)?;
        }
        Ok(Some(answers))
    }

    /// Returns the worst mistakes.
    pub(crate) fn worst(&self) -> impl Iterator<Item = &WrongPrediction> {
        self.worst.iter().map(|(_, mistake)| mistake)
    }

    /// Encodes the first test images as a PNG grid; `None` if the data has no images.
    pub(crate) fn grid(&self) -> Result<Option<Vec<u8>>> {
        let Some(first) = self.samples.first() else { return Ok(None) };
        let [h, w, c] = [0, 1, 2].map(|axis| first.shape()[axis]);
        let rows = self.samples.len().div_ceil(GRID);
        let mut pixels = vec![0u8; rows * h * GRID * w * c];
        for (i, picture) in self.samples.iter().enumerate() {
            for (y, line) in picture.bytes().chunks_exact(w * c).enumerate() {
                let at = ((i / GRID * h + y) * GRID + i % GRID) * w * c;
                pixels[at..at + w * c].copy_from_slice(line);
            }
        }
        png::to_bytes(&Literal::from_slice([rows * h, GRID * w, c], &pixels)?).map(Some)
    }

    /// Returns the worst mistakes and a sentence that describes them.
    pub(crate) fn mistakes(self, elements: &str) -> (Vec<WrongPrediction>, String) {
        let what = match self.kind {
            PredictionTask::Tokens => "tokens",
            _ => elements,
        };
        let of = match self.is_whole {
            true => format!("{} test {what}", grouped(self.seen)),
            false => format!("the first {} test {what} (within the time limit)", grouped(self.seen)),
        };
        let told = match self.kind {
            PredictionTask::Numbers => format!("The largest errors among {of}."),
            _ if self.wrong == 0 => format!("None: all of {of} are correct."),
            _ => format!(
                "{} of {of} are wrong; shown are those with the lowest probability for the true class.",
                grouped(self.wrong)
            ),
        };
        (self.worst.into_iter().map(|(_, m)| m).collect(), told)
    }

    fn take(
        &mut self,
        model: &mut Model,
        batch: &Sample,
        config: &RunConfig,
        data: &TrainingData,
    ) -> Result<()> {
        let name = batch.names().find(|n| *n != "label").unwrap_or("image").to_string();
        let input = batch.get(&name)?;
        let outputs = model.predict_on_sample(batch)?;
        let labels = batch.get("label")?.to_f64s();
        let rows = outputs.to_f32s();
        let width = rows.len() / labels.len().max(1);
        if width == 0 {
            return Ok(());
        }
        let each = labels.len() / input.shape()[0].max(1);
        for sample in self.samples.len()..(GRID * GRID).min(input.shape()[0]) {
            self.samples.extend(picture(input, sample, (config, data))?);
        }
        for (i, (row, label)) in rows.chunks_exact(width).zip(&labels).enumerate() {
            let shown =
                |of: WrongPrediction| shown(of, input, i / each.max(1), i % each.max(1), (config, data));
            self.judge(row, *label, &model.class_names, shown)?;
        }
        Ok(())
    }

    /// Scores one prediction; `shown` adds an image or a text to a mistake that is kept.
    fn judge(
        &mut self,
        row: &[f32],
        label: f64,
        names: &[String],
        shown: impl FnOnce(WrongPrediction) -> Result<WrongPrediction>,
    ) -> Result<()> {
        self.seen += 1;
        if self.kind == PredictionTask::Numbers {
            let error = (f64::from(row[0]) - label).abs();
            let of = WrongPrediction {
                is: format!("{label:.4}"),
                taken_for: format!("{:.4}", row[0]),
                ..WrongPrediction::default()
            };
            return self.keep(if error.is_nan() { f64::INFINITY } else { error }, of, shown);
        }
        let p = match (self.kind, row) {
            (PredictionTask::Binary(output), [p]) => output.probabilities(*p).to_vec(),
            _ => probabilities(row),
        };
        let best = p.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(k, _)| k);
        let is = label as usize;
        self.confusion.iter_mut().for_each(|c| c.add(is, best));
        if best == is {
            return Ok(());
        }
        self.wrong += 1;
        let name = |k: usize| match self.kind {
            PredictionTask::Tokens => token(k),
            _ => names.get(k).cloned().unwrap_or_else(|| format!("class {k}")),
        };
        let of = WrongPrediction {
            is: name(is),
            taken_for: name(best),
            probability: p.get(best).map(|p| f64::from(*p)),
            ..WrongPrediction::default()
        };
        self.keep(-f64::from(p.get(is).copied().unwrap_or(0.0)), of, shown)
    }

    fn keep(
        &mut self,
        bad: f64,
        of: WrongPrediction,
        shown: impl FnOnce(WrongPrediction) -> Result<WrongPrediction>,
    ) -> Result<()> {
        let at = self.worst.partition_point(|(b, _)| *b >= bad);
        if at < WORST {
            self.worst.insert(at, (bad, shown(of)?));
            self.worst.truncate(WORST);
        }
        Ok(())
    }
}

/// Returns the prediction task, or `None` if single samples cannot be judged.
fn kind_of(model: &Model, data: &TrainingData) -> Option<PredictionTask> {
    let output = model.output_type()?;
    let loss = model.compile_config().map(|c| c.loss.base())?;
    match (output.rank(), loss) {
        (2, Loss::SparseCategoricalCrossentropy { .. }) if data.element.dtype == DType::I32 => {
            Some(PredictionTask::Tokens)
        }
        (1, Loss::BinaryCrossentropy { .. }) if output.elements() == 1 => {
            Some(PredictionTask::Binary(BinaryOutput::of_layers(model)))
        }
        (1, _) if output.elements() == 1 && data.class_names.is_empty() => Some(PredictionTask::Numbers),
        (1, _) if output.elements() == data.class_names.len() => Some(PredictionTask::Classes),
        _ => None,
    }
}

fn token(k: usize) -> String {
    match u8::try_from(k) {
        Ok(byte) => format!("'{}'", byte.escape_ascii()),
        Err(_) => format!("token {k}"),
    }
}

/// Adds the input to a mistake: row `sample` of a batch; for text the token after position `at`.
fn shown(
    mut of: WrongPrediction,
    batch: &Literal,
    sample: usize,
    at: usize,
    (config, data): (&RunConfig, &TrainingData),
) -> Result<WrongPrediction> {
    let dims: Vec<usize> = batch.shape().dims().iter().skip(1).copied().collect();
    let n: usize = dims.iter().product();
    let values: Vec<f32> = (sample * n..(sample + 1) * n).map(|i| batch.get(i).as_f64() as f32).collect();
    match *dims.as_slice() {
        [_, _, 1..=4] if data.is_pictures() => {
            of.png =
                picture(batch, sample, (config, data))?.map(|picture| png::to_bytes(&picture)).transpose()?;
        }
        [_] if data.tokenizer.is_some() => {
            let tokenizer = data.tokenizer.iter();
            let ids: Vec<u32> = values.iter().map(|v| *v as u32).collect();
            let text = tokenizer.flat_map(|t| {
                let padding = t.padding();
                t.decode(&ids.iter().copied().filter(|id| Some(*id) != padding).collect::<Vec<_>>())
            });
            of.text = Some(String::from_utf8_lossy(&text.collect::<Vec<u8>>()).into_owned());
        }
        [t] if data.element.dtype == DType::I32 => {
            let from = (at + 1).saturating_sub(CONTEXT);
            let bytes: Vec<u8> = values[from..(at + 1).min(t)].iter().map(|v| *v as u8).collect();
            of.text = Some(format!("…{}", String::from_utf8_lossy(&bytes)));
        }
        [_] => {
            of.text = Some(record_text(&values, data));
        }
        _ => {}
    }
    Ok(of)
}

/// Formats the inputs of a record, one field per line: table columns as their cells, other fields as numbers.
fn record_text(values: &[f32], data: &TrainingData) -> String {
    let mut rest = values;
    let cell = |column: &ColumnEncoding| {
        let (cell, others) = rest.split_at_checked(column.width())?;
        rest = others;
        Some(column.describe(cell))
    };
    let name = |i: usize| match data.fields.as_slice() {
        fields if fields.len() == values.len() => fields[i].clone(),
        [only] => format!("{only}[{i}]"),
        _ => format!("input {i}"),
    };
    let lines: Vec<String> = match data.columns.as_slice() {
        [] => values.iter().take(FIELDS).enumerate().map(|(i, v)| format!("{} {v}", name(i))).collect(),
        columns => columns.iter().take(FIELDS).map_while(cell).collect(),
    };
    lines.join("\n")
}

/// Converts row `sample` of a batch to a `u8` image, scaled down if large; `None` if it is not an image.
fn picture(
    batch: &Literal,
    sample: usize,
    (config, data): (&RunConfig, &TrainingData),
) -> Result<Option<Literal>> {
    let &[_, h, w, c @ 1..=4] = batch.shape().dims() else { return Ok(None) };
    if !data.is_pictures() {
        return Ok(None);
    }
    let n = h * w * c;
    let byte = |i: usize| (batch.get(i).as_f64() / config.data.scale).round().clamp(0.0, 255.0) as u8;
    let pixels: Vec<u8> = (sample * n..(sample + 1) * n).map(byte).collect();
    let picture = Literal::from_slice([h, w, c], &pixels)?;
    let longer = h.max(w);
    if longer <= SIDE {
        return Ok(Some(picture));
    }
    let side = |n: usize| (n * SIDE / longer).max(1);
    HostArray::from(picture).resize(side(h), side(w)).into_literal().map(Some)
}

/// Returns the row if it holds probabilities, otherwise its softmax (logits).
pub(crate) fn probabilities(row: &[f32]) -> Vec<f32> {
    let sum: f32 = row.iter().sum();
    if row.iter().all(|p| (0.0..=1.0).contains(p)) && (sum - 1.0).abs() < 0.01 {
        return row.to_vec();
    }
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = row.iter().map(|v| (v - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_probabilities_and_probabilities_stay() {
        assert_eq!(probabilities(&[0.25, 0.75]), [0.25, 0.75]);
        let p = probabilities(&[1000.0, 1000.0, -1000.0]);
        assert_eq!(p, [0.5, 0.5, 0.0]);
        assert!((probabilities(&[0.1, 0.2]).iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
