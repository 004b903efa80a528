//! Test-time augmentation as in fastai's `tta`: 1/4 of the plain prediction plus 3/4 of the mean over augmented images.

use systole_config::{RunConfig, TestTimeAugmentation};
use systole_data::{HostArray, Sample};
use systole_datasets::TrainingData;
use systole_ir::{Literal, Result, Tensor, err};
use systole_nn::loss::Reduction;
use systole_nn::metric::Metric;
use systole_nn::{Logs, Model};
use systole_runtime::{Buffer, Params, jit};

/// fastai's β: weight of the plain prediction.
const PLAIN: f32 = 0.25;

/// Blends predictions: `plain, versions: f32[B, …] → f32[B, …]`.
pub(crate) fn blended(plain: &Literal, versions: &[Literal]) -> Result<Literal> {
    let mut out = plain.to_f32s();
    let share = (1.0 - PLAIN) / versions.len().max(1) as f32;
    out.iter_mut().for_each(|v| *v *= PLAIN);
    for version in versions {
        out.iter_mut().zip(version.to_f32s()).for_each(|(o, v)| *o += share * v);
    }
    Literal::from_slice(plain.shape().clone(), &out)
}

/// Augments a batch of images `ui8[B, H, W, C]` as version `version`; `first` is the index of its first image.
pub(crate) fn version(
    x: &Literal,
    changes: &TestTimeAugmentation,
    version: u64,
    first: u64,
) -> Result<Literal> {
    let rows = x.shape()[0];
    let shape = &x.shape()[1..];
    let size = x.bytes().len() / rows.max(1);
    let mut out = x.clone();
    for (i, to) in out.bytes_mut().chunks_exact_mut(size.max(1)).enumerate() {
        let row = Literal::from_bytes(x.ty().with_shape(shape), &x.bytes()[i * size..][..size])?;
        let changed = changes.apply(HostArray::from(row), version, first + i as u64).into_literal()?;
        to.copy_from_slice(changed.bytes());
    }
    Ok(out)
}

/// Computes loss and metrics of the blended predictions on the test images. `each` gets the labels and the blended
/// predictions of each batch.
pub(crate) fn evaluate(
    model: &mut Model,
    config: &RunConfig,
    data: &TrainingData,
    versions: u64,
    mut each: impl FnMut(&Literal, &Literal),
) -> Result<Logs> {
    if !data.is_pictures() {
        let e = err!(Config, "test-time augmentation needs image data").at("--tta");
        return Err(e.hint_command("remove --tta"));
    }
    let compile = model.compile_config().cloned().ok_or_else(|| {
        err!(Config, "the model is compiled without a loss").at("--tta").hint_command("remove --tta")
    })?;
    let mut metrics: Vec<Metric> = vec![Metric::from(compile.loss.clone().reduction(Reduction::default()))];
    metrics.extend(compile.metrics.iter().chain(&compile.weighted_metrics).cloned());
    let output = model.output_type().map_or(Vec::new(), |ty| ty.shape.to_vec());
    let mut sums =
        metrics.iter().map(|m| m.initial(&output).map(|_, l| Buffer::from(l.clone()))).collect::<Vec<_>>();
    let steps: Vec<_> = metrics
        .iter()
        .map(|m| jit(move |(state, y, p): (Params, Tensor, Tensor)| m.update(&state, &y, &p, None)))
        .collect();
    let mut others: Vec<_> = (1..=versions).map(|v| config.augmented_test_pipeline(data, v).iter()).collect();
    for batch in &config.test_pipeline(data) {
        let batch = batch?;
        let name = batch.names().find(|n| *n != "label").unwrap_or("image").to_string();
        let plain = model.predict_on_batch(batch.get(&name)?)?;
        let mut answers = Vec::new();
        for other in &mut others {
            let sample: Sample = other
                .next()
                .transpose()?
                .ok_or_else(|| err!(Bug, "an augmented version of the test images has fewer batches"))?;
            answers.push(model.predict_on_batch(sample.get(&name)?)?);
        }
        let (y, p) = (batch.get("label")?, blended(&plain, &answers)?);
        each(y, &p);
        for (step, sums) in steps.iter().zip(&mut sums) {
            *sums = step.call((std::mem::take(sums), y.clone().into(), p.clone().into()))?;
        }
    }
    let mut logs = Logs::new();
    let names = std::iter::once("loss".to_string()).chain(compile.metric_names());
    for ((name, metric), sums) in names.zip(&metrics).zip(&sums) {
        let own =
            sums.iter().map(|(n, b)| Ok((n.to_string(), b.to_literal()?))).collect::<Result<Vec<_>>>()?;
        for (k, value) in metric.results(&own.into_iter().collect()).into_iter().enumerate() {
            logs.insert(if k == 0 { name.clone() } else { format!("{name}_{k}") }, value);
        }
    }
    Ok(logs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_plain() {
        let of = |v: [f32; 2]| Literal::from_slice([1, 2], &v).unwrap();
        let out = blended(&of([1.0, 0.0]), &[of([0.5, 0.5]), of([0.0, 1.0])]).unwrap();
        assert_eq!(out.to_f32s(), [0.25 + 0.1875, 0.1875 + 0.375]);
    }
}
