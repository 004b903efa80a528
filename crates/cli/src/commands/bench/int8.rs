//! Benchmarks predictions of int8 quantized models, or of the same layers in float.

use super::measure::{BenchTiming, measure, timed};
use super::model::{ModelSettings, count, of_draft};
use crate::models::tflite;
use std::time::Duration;
use systole_config::ConfigDraft;
use systole_int8::{Int8Program, Settings};
use systole_ir::{Literal, Result, err};
use systole_nn::{Batch, Model};
use systole_quant::{Calibration, QuantizeOptions, lower, quantize, quantized};

/// Number of calibration samples: enough to measure speed, not accuracy.
const CALIBRATED: usize = 2;

/// Measures a batch on an application's int8 graph, or on its layers in another precision.
pub(super) fn predict(name: &str, settings: &ModelSettings<'_>, time: Duration) -> Result<BenchTiming> {
    of(draft(name)?, settings, time)
}

/// Configuration of a language model preset, or of an application with the data of the ResNet-50 preset.
fn draft(name: &str) -> Result<ConfigDraft> {
    if name == "gpt2-small" {
        return ConfigDraft::preset(name);
    }
    let mut draft = ConfigDraft::preset("resnet50")?;
    draft.set(format!("the workload {name}-int8"), "model.application", name);
    Ok(draft)
}

fn of(draft: ConfigDraft, settings: &ModelSettings<'_>, time: Duration) -> Result<BenchTiming> {
    let is_int8 = settings.precision == "int8";
    let precision = if is_int8 { "float32" } else { settings.precision };
    let (mut model, batch) = of_draft(draft, &ModelSettings { precision, ..*settings })?;
    let items = count(&batch);
    let mut prediction = model.device_batch_prediction(&batch)?;
    let flops = prediction.report().flops;
    if !is_int8 {
        let m = measure(time, || prediction.run().map(|outputs| outputs.ready_event()))?;
        return Ok(BenchTiming { flops, items, compile_ms: prediction.compile_ms(), ..m });
    }
    drop(prediction);
    let (graph, inputs) = graph(&model, &batch)?;
    let (program, compile_ms) = timed(|| Int8Program::new(graph, &Settings::from_knobs()?))?;
    let each: Vec<&[Literal]> = inputs.iter().map(std::slice::from_ref).collect();
    let m = measure(time, || program.run_all(&each).map(|_| None))?;
    Ok(BenchTiming { flops, items, compile_ms, ..m })
}

/// Quantizes the layers to an int8 graph, and the batch's samples to its input type.
fn graph(model: &Model, batch: &Batch) -> Result<(systole_tflite::TfliteModel, Vec<Literal>)> {
    let none = || err!(Bug, "the benchmark's batch has no input");
    let samples = tflite::rows(batch.inputs.first().ok_or_else(none)?)?;
    let float = lower(model)?;
    let calibration = Calibration { threads: tflite::threads(), ..Calibration::default() };
    let ranges = calibration.ranges(&float, &samples[..samples.len().min(CALIBRATED)])?;
    let graph = quantize(&float, &ranges, &QuantizeOptions::default())?;
    let input = graph.tensor(graph.inputs.first().copied().ok_or_else(none)?)?;
    let inputs = samples.iter().map(|x| quantized(x, input)).collect::<Result<_>>()?;
    Ok((graph, inputs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_are_measured_in_both_precisions() {
        let mut small = draft("resnet50").unwrap();
        for (key, value) in [
            ("model.depths", "[1]"),
            ("model.width", "4"),
            ("model.classes", "10"),
            ("data.image_size", "[32, 32]"),
            ("fit.batch_size", "2"),
        ] {
            small.set("a test", key, value);
        }
        let [int8, float] = ["int8", "float32"].map(|precision| {
            let settings = ModelSettings { precision, batch_size: None };
            of(small.clone(), &settings, Duration::ZERO).unwrap()
        });
        assert!(int8.items == 2.0 && int8.flops == float.flops && int8.flops > 1e5, "{int8:?}");
        assert!(int8.median_ms > 0.0 && float.median_ms > 0.0);
        assert!(draft("mobilenet").unwrap().finish().is_ok() && draft("mobilnet").unwrap().finish().is_err());
    }
}
