//! Classification accuracy of .tflite and ONNX files, and accuracy or RMSE of an int8 graph compared with its float
//! graph.

use crate::models::binary_output::BinaryOutput;
use crate::models::predictor::OperatorGraph;
use crate::models::tflite;
use serde_json::{Value, json};
use systole_data::{Dataset, Sample};
use systole_ir::{DType, Literal, Result};
use systole_nn::LABEL_FIELDS;
use systole_quant::{GraphEngine, answers, in_floats};
use systole_tflite::TfliteModel;

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
    pub(crate) fn of(
        (graph, binary_output): (&OperatorGraph, BinaryOutput),
        batches: &Dataset,
        input: &str,
    ) -> Result<CorrectCount> {
        let mut all = CorrectCount::default();
        for batch in batches.iter() {
            let batch = batch?;
            let answers = tflite::rows(&graph.predict(&field(&batch, input)?)?)?;
            let found: Vec<Vec<usize>> = answers.iter().map(|y| likeliest(y, binary_output)).collect();
            let (samples, labels) = rows(&batch, input)?.into_iter().unzip();
            let tests = LabeledSamples { samples, labels, are_values: false };
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
) -> Result<(Vec<Literal>, Vec<Vec<f64>>)> {
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
fn rows(batch: &Sample, input: &str) -> Result<Vec<(Literal, Vec<f64>)>> {
    let rows = tflite::rows(&field(batch, input)?)?;
    let label = LABEL_FIELDS.iter().find_map(|name| batch.get(name).ok());
    let given: Vec<f64> = label.map_or(Vec::new(), |y| y.to_f64s());
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

    fn of(float: &TfliteModel, int8: &TfliteModel, tests: &LabeledSamples) -> Result<Int8Accuracy> {
        let (of_float, of_int8) = (classes_in_floats(float, &tests.samples)?, classes(int8, &tests.samples)?);
        let answers = of_float.iter().map(Vec::len).sum();
        let agree = agreeing(&of_float, &of_int8);
        let (float, int8) = (tests.right(&of_float), tests.right(&of_int8));
        Ok(Int8Accuracy { answers, samples: tests.samples.len(), float, int8, agree })
    }
}

/// Root mean square error of the float and the int8 model of a regression.
pub(crate) struct Int8Error {
    pub(crate) samples: usize,
    pub(crate) float: f64,
    pub(crate) int8: f64,
    /// Root mean square difference between both models.
    pub(crate) difference: f64,
    /// Standard deviation of the targets.
    pub(crate) deviation: f64,
}

impl Int8Error {
    /// Returns `None` if the outputs do not correspond to the labels.
    fn of(float: &TfliteModel, int8: &TfliteModel, tests: &LabeledSamples) -> Result<Option<Int8Error>> {
        let values = |model: &TfliteModel| -> Result<Vec<f64>> {
            let all = answers(model, &tests.samples, tflite::engine(), tflite::threads())?;
            Ok(all.iter().flat_map(|y| y.to_f64s()).collect())
        };
        let (of_float, of_int8) = (values(float)?, values(int8)?);
        let targets: Vec<f64> = tests.labels.iter().flatten().copied().collect();
        if targets.len() != of_float.len() || targets.len() != of_int8.len() {
            return Ok(None);
        }
        let mean = targets.iter().sum::<f64>() / targets.len().max(1) as f64;
        let means = vec![mean; targets.len()];
        Ok(Some(Int8Error {
            samples: tests.samples.len(),
            float: rms(&of_float, &targets),
            int8: rms(&of_int8, &targets),
            difference: rms(&of_int8, &of_float),
            deviation: rms(&targets, &means),
        }))
    }
}

fn rms(a: &[f64], b: &[f64]) -> f64 {
    let sum: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (sum / a.len().max(1) as f64).sqrt()
}

/// Quality of an int8 graph next to its float graph, on labeled samples.
pub(crate) enum Int8Quality {
    Classes(Int8Accuracy),
    Values(Int8Error),
}

impl Int8Quality {
    /// Returns `None` without samples, or if the outputs do not correspond to the labels.
    pub(crate) fn of(
        float: &TfliteModel,
        int8: &TfliteModel,
        tests: &LabeledSamples,
    ) -> Result<Option<Int8Quality>> {
        match (tests.samples.is_empty(), tests.are_values) {
            (true, _) => Ok(None),
            (false, true) => Ok(Int8Error::of(float, int8, tests)?.map(Int8Quality::Values)),
            (false, false) => Int8Accuracy::of(float, int8, tests).map(|a| Some(Int8Quality::Classes(a))),
        }
    }

    /// The figure of the int8 model.
    pub(crate) fn int8_text(&self) -> String {
        match self {
            Int8Quality::Classes(a) => format!("{:.2} %", 100.0 * a.share(a.int8)),
            Int8Quality::Values(e) => format!("RMSE {:.4}", e.int8),
        }
    }

    pub(crate) fn json(&self) -> Value {
        match self {
            Int8Quality::Classes(a) => json!({
                "samples": a.samples, "float": a.share(a.float), "int8": a.share(a.int8), "agree": a.share(a.agree),
            }),
            Int8Quality::Values(e) => json!({
                "samples": e.samples, "float_rmse": e.float, "int8_rmse": e.int8, "difference_rms": e.difference,
                "target_std": e.deviation,
            }),
        }
    }
}

/// Returns the argmax class of each sample, or of each of its positions.
fn classes(model: &TfliteModel, samples: &[Literal]) -> Result<Vec<Vec<usize>>> {
    let binary_output = BinaryOutput::of_tflite(model);
    let all = answers(model, samples, tflite::engine(), tflite::threads())?;
    Ok(all.iter().map(|y| likeliest(y, binary_output)).collect())
}

/// Like [`classes`], for a mostly float graph: runs many samples at once if the CPU engine supports it.
pub(crate) fn classes_in_floats(model: &TfliteModel, samples: &[Literal]) -> Result<Vec<Vec<usize>>> {
    match tflite::engine() {
        GraphEngine::Reference => classes(model, samples),
        // On failure, run the samples one by one, which reports the sample at fault.
        GraphEngine::Fast => match in_floats(model, samples) {
            Ok(answers) => {
                let binary_output = BinaryOutput::of_tflite(model);
                Ok(answers.iter().map(|y| likeliest(y, binary_output)).collect())
            }
            Err(_) => classes(model, samples),
        },
    }
}

/// `y: f32[…, K]` → argmax over the K classes, per position.
pub(crate) fn likeliest(y: &Literal, binary_output: BinaryOutput) -> Vec<usize> {
    let classes = y.shape().dims().last().copied().unwrap_or(1).max(1);
    let one = |y: &[f32]| match y {
        [output] => binary_output.class(*output),
        y => (1..y.len()).fold(0, |best, k| if y[k] > y[best] { k } else { best }),
    };
    y.to_f32s().chunks(classes).map(one).collect()
}

/// Counts equal classes.
pub(crate) fn agreeing(a: &[Vec<usize>], b: &[Vec<usize>]) -> usize {
    a.iter().flatten().zip(b.iter().flatten()).filter(|(a, b)| a == b).count()
}

/// Test samples with their labels.
#[derive(Default)]
pub(crate) struct LabeledSamples {
    pub(crate) samples: Vec<Literal>,
    /// Classes or regression targets.
    labels: Vec<Vec<f64>>,
    /// Whether the labels are regression targets.
    are_values: bool,
}

impl LabeledSamples {
    pub(crate) fn take(
        batches: &Dataset,
        input: &(String, DType),
        most: usize,
        are_values: bool,
    ) -> Result<LabeledSamples> {
        let (samples, labels) = taken(batches, input, most)?;
        Ok(LabeledSamples { samples, labels, are_values })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Whether the labels are regression targets.
    pub(crate) fn are_values(&self) -> bool {
        self.are_values
    }

    /// Counts correct predictions.
    fn right(&self, found: &[Vec<usize>]) -> usize {
        let of_sample = |(found, labels): (&Vec<usize>, &Vec<f64>)| match found.len() == labels.len() {
            true => found.iter().zip(labels).filter(|(k, label)| **label == **k as f64).count(),
            false => 0,
        };
        found.iter().zip(&self.labels).map(of_sample).sum()
    }
}
