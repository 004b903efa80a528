//! Classification accuracy of .tflite and ONNX files, and of an int8 graph compared with its float graph.

use crate::models::predictor::OperatorGraph;
use crate::models::tflite;
use systole_data::{Dataset, Sample};
use systole_ir::{DType, Literal, Result};
use systole_nn::LABEL_FIELDS;
use systole_quant::{GraphEngine, answers, in_floats};

/// Number of correct predictions of a file on test data.
#[derive(Default)]
pub(crate) struct CorrectCount {
    pub(crate) samples: usize,
    /// One per sample, or one per position of a sequence.
    pub(crate) answers: usize,
    pub(crate) right: usize,
}

impl CorrectCount {
    /// Evaluates batch by batch, because the test data can be larger than memory.
    pub(crate) fn of(graph: &OperatorGraph, batches: &Dataset, input: &str) -> Result<CorrectCount> {
        let mut all = CorrectCount::default();
        for batch in batches.iter() {
            let batch = batch?;
            let answers = tflite::rows(&graph.predict(&field(&batch, input)?)?)?;
            let found: Vec<Vec<usize>> = answers.iter().map(likeliest).collect();
            let (samples, labels) = rows(&batch, input)?.into_iter().unzip();
            let tests = LabeledSamples { samples, labels };
            all.samples += tests.samples.len();
            all.answers += found.iter().map(Vec::len).sum::<usize>();
            all.right += tests.right(&found);
        }
        Ok(all)
    }
}

/// Returns the first `most` samples one by one, each with its labels: one, or one per position.
pub(crate) fn taken(
    batches: &Dataset,
    (input, dtype): &(String, DType),
    most: usize,
) -> Result<(Vec<Literal>, Vec<Vec<i64>>)> {
    let (mut samples, mut labels) = (Vec::new(), Vec::new());
    for batch in batches.iter() {
        if samples.len() >= most {
            break;
        }
        for (row, label) in rows(&batch?, input)?.into_iter().take(most - samples.len()) {
            samples.push(row.convert(*dtype));
            labels.push(label);
        }
    }
    Ok((samples, labels))
}

/// Splits a batch into samples with their labels.
fn rows(batch: &Sample, input: &str) -> Result<Vec<(Literal, Vec<i64>)>> {
    let rows = tflite::rows(&field(batch, input)?)?;
    let label = LABEL_FIELDS.iter().find_map(|name| batch.get(name).ok());
    let given: Vec<i64> = label.map_or(Vec::new(), |y| y.to_f64s().iter().map(|&y| y as i64).collect());
    let each = given.len() / rows.len().max(1);
    Ok(rows.into_iter().enumerate().map(|(i, row)| (row, given[i * each..(i + 1) * each].to_vec())).collect())
}

/// Returns the model's input by name, or the first field.
fn field(batch: &Sample, name: &str) -> Result<Literal> {
    match batch.get(name) {
        Ok(x) => Ok(x.clone()),
        Err(e) => batch.fields().next().map_or(Err(e), |(_, x)| x.get().cloned()),
    }
}

/// Number of predictions, and how many of them the float and the int8 model get right and agree on.
pub(crate) struct Int8Accuracy {
    pub(crate) answers: usize,
    pub(crate) samples: usize,
    pub(crate) float: usize,
    pub(crate) int8: usize,
    pub(crate) agree: usize,
}

impl Int8Accuracy {
    pub(crate) fn share(&self, n: usize) -> f64 {
        n as f64 / self.answers.max(1) as f64
    }

    pub(crate) fn of(
        float: &systole_tflite::TfliteModel,
        int8: &systole_tflite::TfliteModel,
        tests: &LabeledSamples,
    ) -> Result<Option<Int8Accuracy>> {
        if tests.samples.is_empty() {
            return Ok(None);
        }
        let (of_float, of_int8) = (classes_in_floats(float, &tests.samples)?, classes(int8, &tests.samples)?);
        let answers = of_float.iter().map(Vec::len).sum();
        let agree = agreeing(&of_float, &of_int8);
        let (float, int8) = (tests.right(&of_float), tests.right(&of_int8));
        Ok(Some(Int8Accuracy { answers, samples: tests.samples.len(), float, int8, agree }))
    }
}

/// Returns the argmax class of each sample, or of each of its positions.
fn classes(model: &systole_tflite::TfliteModel, samples: &[Literal]) -> Result<Vec<Vec<usize>>> {
    Ok(answers(model, samples, tflite::engine(), tflite::threads())?.iter().map(likeliest).collect())
}

/// Like [`classes`], for a mostly float graph: runs many samples at once if the CPU engine supports it.
pub(crate) fn classes_in_floats(
    model: &systole_tflite::TfliteModel,
    samples: &[Literal],
) -> Result<Vec<Vec<usize>>> {
    match tflite::engine() {
        GraphEngine::Reference => classes(model, samples),
        // On failure, run the samples one by one, which reports the sample at fault.
        GraphEngine::Fast => match in_floats(model, samples) {
            Ok(answers) => Ok(answers.iter().map(likeliest).collect()),
            Err(_) => classes(model, samples),
        },
    }
}

/// `y: f32[…, K]` → argmax over the K classes, per position.
fn likeliest(y: &Literal) -> Vec<usize> {
    let classes = y.shape().dims().last().copied().unwrap_or(1).max(1);
    let one = |y: &[f32]| (1..y.len()).fold(0, |best, k| if y[k] > y[best] { k } else { best });
    y.to_f32s().chunks(classes).map(one).collect()
}

/// Counts equal classes.
pub(crate) fn agreeing(a: &[Vec<usize>], b: &[Vec<usize>]) -> usize {
    a.iter().flatten().zip(b.iter().flatten()).filter(|(a, b)| a == b).count()
}

/// Test samples with their class labels.
#[derive(Default)]
pub(crate) struct LabeledSamples {
    pub(crate) samples: Vec<Literal>,
    labels: Vec<Vec<i64>>,
}

impl LabeledSamples {
    pub(crate) fn take(batches: &Dataset, input: &(String, DType), most: usize) -> Result<LabeledSamples> {
        let (samples, labels) = taken(batches, input, most)?;
        Ok(LabeledSamples { samples, labels })
    }

    /// Counts correct predictions.
    fn right(&self, found: &[Vec<usize>]) -> usize {
        let of_sample = |(found, labels): (&Vec<usize>, &Vec<i64>)| match found.len() == labels.len() {
            true => found.iter().zip(labels).filter(|(k, label)| **label == **k as i64).count(),
            false => 0,
        };
        found.iter().zip(&self.labels).map(of_sample).sum()
    }
}
