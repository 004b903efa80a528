//! Steps of whole models: training as `fit` takes it, and prediction.

use super::measure::{Measured, measure, timed};
use std::time::Duration;
use systole::config::{Config, Draft};
use systole_ir::{DType, Literal, Result, TensorType, rng};
use systole_nn::{Batch, Model};

/// Training steps: forward, loss, backward, update and metrics.
pub(super) fn train(target: &str, precision: &str, time: Duration) -> Result<Measured> {
    let (config, mut model) = untrained(target, precision)?;
    let batch = synthetic(&model, config.fit.batch_size)?;
    let (_, first_ms) = timed(|| model.train_on_batch(&batch))?;
    let flops = systole_ir::cost::cost(&*model.train_graph(config.fit.batch_size)?).flops;
    let m = measure(time, || model.train_on_batch(&batch).map(drop))?;
    Ok(Measured { flops, items: batch.size() as f64, compile_ms: (first_ms - m.median_ms).max(0.0), ..m })
}

/// Predictions for one batch.
pub(super) fn predict(target: &str, precision: &str, time: Duration) -> Result<Measured> {
    let (config, mut model) = untrained(target, precision)?;
    let batch = synthetic(&model, config.fit.batch_size)?;
    let flops = systole_ir::cost::cost(&*model.forward_graph(config.fit.batch_size)?).flops;
    let (_, first_ms) = timed(|| model.predict_on_batch(&batch.inputs[0]))?;
    let m = measure(time, || model.predict_on_batch(&batch.inputs[0]).map(drop))?;
    Ok(Measured { flops, items: batch.size() as f64, compile_ms: (first_ms - m.median_ms).max(0.0), ..m })
}

fn untrained(target: &str, precision: &str) -> Result<(Config, Model)> {
    let mut draft = match target.to_lowercase().ends_with(".toml") {
        true => Draft::read(target)?,
        false => Draft::preset(target)?,
    };
    draft.set(format!("--precision {precision}"), "compile.precision", precision);
    let config = draft.finish().map_err(|refused| refused.error)?;
    let model = config.model(config.usual_image_shape(), &[])?;
    Ok((config, model))
}

fn synthetic(model: &Model, batch_size: usize) -> Result<Batch> {
    let shape = |t: &TensorType| [&[batch_size], t.shape.dims()].concat();
    let draw = |i: usize| (rng::mix(i as u64) >> 40) as f32 / (1 << 24) as f32;
    let mut inputs = Vec::new();
    for ty in model.architecture().inputs.iter().filter_map(|i| i.ty.as_ref()) {
        let shape = shape(ty);
        let values: Vec<f32> = (0..shape.iter().product()).map(draw).collect();
        inputs.push(Literal::from_slice(shape, &values)?.convert(DType::F32));
    }
    let classes = model.output_type().and_then(|t| t.shape.last().copied()).unwrap_or(1);
    let label: Vec<i32> = (0..batch_size).map(|i| (rng::mix(i as u64) % classes as u64) as i32).collect();
    Ok(Batch { inputs, label: Some(Literal::from_slice([batch_size], &label)?), weight: None })
}
