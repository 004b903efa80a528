//! Extracts image features and class probabilities with a classifier, for FID and inception score.

use super::frechet::FeatureStatistics;
use crate::layer::Precision;
use crate::layer::lowering::LayerLowering;
use crate::model::Model;
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use crate::model::batch::Batch;
use crate::model::compiled_steps::PredictStep;
use std::sync::Arc;
use systole_ir::{DType, Literal, Result, ensure, err};
use systole_runtime::backend;

/// Batch size of feature extraction.
const AT_ONCE: usize = 250;

/// A trained image classifier used as a feature extractor for scores.
pub struct FeatureNetwork {
    model: Model,
    maps: PredictStep,
    scores: PredictStep,
    scale: f64,
}

/// Features and class probabilities of images.
pub struct ImageFeatures {
    /// Statistics of the feature maps before the head, averaged over positions.
    pub statistics: FeatureStatistics,
    /// Probabilities `f32[N, classes]`, row by row.
    pub probabilities: Vec<f32>,
    /// Number of classes.
    pub classes: usize,
}

impl FeatureNetwork {
    /// Wraps a built classifier that ends with a dense head on feature maps; pixels, 0 to 255, are multiplied by
    /// `scale`.
    ///
    /// # Errors
    /// If the model is not such a classifier.
    pub fn new(model: Model, scale: f64) -> Result<FeatureNetwork> {
        let wrong = |why: &str| {
            err!(Config, "this model cannot be used as a feature extractor")
                .because(why)
                .hint("train a classifier on the same images: systole train cifar-cnn --out runs/features")
        };
        let whole = model.architecture.clone();
        let lowering = |node: &LayerNode| node.layer.layer().lowering();
        let head =
            whole.nodes.iter().rposition(|node| matches!(lowering(node), Ok(LayerLowering::Dense { .. })));
        let head = head.ok_or_else(|| wrong("it has no dense layer as head"))?;
        if model.output_type().is_none_or(|t| t.rank() != 1) || whole.inputs.len() != 1 {
            return Err(wrong("its output is not one number per class"));
        }
        let mut output = whole.nodes[head].inputs.first().copied().unwrap_or(NodeInput::Input(0));
        // Uses the maps before layers that only reshape them, so that they can be averaged.
        while let NodeInput::Layer(i) = output {
            if !matches!(
                lowering(&whole.nodes[i]),
                Ok(LayerLowering::Flatten | LayerLowering::Regularization)
            ) {
                break;
            }
            output = whole.nodes[i].inputs.first().copied().unwrap_or(NodeInput::Input(0));
        }
        ensure!(!matches!(output, NodeInput::Input(_)), wrong("its head reads the pixels directly"));
        let (on, precision) = (backend("auto")?, Precision::Float32);
        let cut = Arc::new(Architecture { output, ..(*whole).clone() });
        let (maps, scores) =
            (PredictStep::new(&cut, precision, &on), PredictStep::new(&whole, precision, &on));
        Ok(FeatureNetwork { model, maps, scores, scale })
    }

    /// Extracts features of images, `images: u8[N, H, W, C]`, and adds them to `seen`.
    ///
    /// # Errors
    /// If the network expects images of another size, or outputs more features than can be compared.
    pub fn look(&self, pictures: &Literal, seen: &mut Option<ImageFeatures>) -> Result<()> {
        let &[count, h, w, c] = pictures.shape().dims() else {
            return Err(err!(Data, "expected images, got {}", pictures.ty()));
        };
        let taken = self.model.architecture.inputs.first().and_then(|i| i.ty.clone());
        if taken.as_ref().is_some_and(|ty| ty.shape.dims() != [h, w, c]) {
            return Err(err!(Config, "the feature network does not accept images of size {h} × {w} × {c}")
                .hint(format!(
                    "train the classifier on images of that size: --set data.image_size=[{h},{w}]"
                )));
        }
        for start in (0..count).step_by(AT_ONCE) {
            let n = AT_ONCE.min(count - start);
            let bytes = &pictures.bytes()[start * h * w * c..(start + n) * h * w * c];
            let pixels: Vec<f32> = bytes.iter().map(|b| (f64::from(*b) * self.scale) as f32).collect();
            self.look_at(Literal::from_slice([n, h, w, c], &pixels)?, seen)?;
        }
        Ok(())
    }

    /// Extracts features of scaled images, `x: f32[N, H, W, C]`.
    fn look_at(&self, x: Literal, seen: &mut Option<ImageFeatures>) -> Result<()> {
        let n = x.shape()[0];
        let run = |step: &PredictStep| -> Result<Literal> {
            let batch = Batch { inputs: vec![x.clone()], ..Batch::default() };
            let outputs = step.run(&self.model.state, batch.buffers().0)?;
            Ok(outputs[0].to_literal()?.convert(DType::F32))
        };
        let (maps, scores) = (run(&self.maps)?, run(&self.scores)?);
        let width = maps.shape().last().copied().unwrap_or(1);
        let features = match seen {
            Some(features) => features,
            None => seen.insert(ImageFeatures {
                statistics: FeatureStatistics::new(width)?,
                probabilities: Vec::new(),
                classes: scores.shape().last().copied().unwrap_or(1),
            }),
        };
        let values = maps.to_f32s();
        let places = values.len() / (n * width).max(1);
        for picture in values.chunks_exact((places * width).max(1)) {
            features.statistics.add(&means(picture, width));
        }
        features.probabilities.extend(probabilities(&scores.to_f32s(), features.classes));
        Ok(())
    }
}

/// Averages maps with `width` features over positions.
fn means(maps: &[f32], width: usize) -> Vec<f32> {
    let places = (maps.len() / width).max(1) as f32;
    let mut sums = vec![0f32; width];
    for place in maps.chunks_exact(width) {
        sums.iter_mut().zip(place).for_each(|(s, x)| *s += x);
    }
    sums.iter().map(|s| s / places).collect()
}

/// Returns rows that are probabilities unchanged; applies softmax to others.
fn probabilities(rows: &[f32], classes: usize) -> Vec<f32> {
    let is_share =
        |row: &[f32]| row.iter().all(|p| *p >= 0.0) && (row.iter().sum::<f32>() - 1.0).abs() < 1e-3;
    let softmax = |row: &[f32]| -> Vec<f32> {
        let top = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let all: Vec<f32> = row.iter().map(|x| (x - top).exp()).collect();
        let sum: f32 = all.iter().sum();
        all.iter().map(|x| x / sum).collect()
    };
    let rows = rows.chunks_exact(classes.max(1));
    rows.flat_map(|row| if is_share(row) { row.to_vec() } else { softmax(row) }).collect()
}
