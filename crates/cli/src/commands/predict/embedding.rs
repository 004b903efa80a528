//! Embeddings of samples (`--embed`): features before the classification layer, and similarity to candidates.

use crate::models::model_data::tokenizer_of;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::{Activation, LayerLowering, Model, NodeInput};

/// Returns the model without its classification layer: a dense layer, and what follows it.
///
/// A model that does not end in softmax, sigmoid or a layer named `predictions` returns features already.
///
/// # Errors
/// If the model cannot be rebuilt.
pub(super) fn without_head(model: Model) -> Result<Model> {
    let nodes = &model.architecture().nodes;
    let last = nodes.last().is_some_and(|node| node.name == "predictions");
    let activation = model.architecture().output_activation(0).map(|(_, activation)| activation);
    if !last && !matches!(activation, Some(Activation::Softmax | Activation::Sigmoid)) {
        return Ok(model);
    }
    let mut source = model.architecture().output;
    while let NodeInput::Layer(i) = source {
        let Some(node) = nodes.get(i) else { break };
        let Some(before) = node.inputs.first() else { break };
        source = *before;
        if matches!(node.layer.layer().lowering(), Ok(LayerLowering::Dense { .. })) {
            break;
        }
    }
    let NodeInput::Layer(last) = source else {
        return Err(Error::new(ErrorKind::Unsupported, "the model has no features before its last layer")
            .at("--embed")
            .hint("use a model with layers before the classification layer"));
    };
    let mut layers = model.architecture().clone();
    layers.nodes.truncate(last + 1);
    (layers.output, layers.more_outputs) = (source, Vec::new());
    let inputs = layers.inputs.iter().filter_map(|input| input.ty.clone()).collect::<Vec<_>>();
    let mut features = Model::new(layers);
    features.build(&inputs)?;
    let paths: Vec<String> = features.weights().iter().map(|(path, _)| path.to_string()).collect();
    for path in paths {
        features.set_weight(&path, model.weight(&path)?)?;
    }
    features.notes = model.notes.clone();
    Ok(features)
}

/// Means of features over the positions of a sample: `x: f32[B, …, D] → f32[B, D]`. Padding of `tokens: i32[B, S]` does not
/// count.
///
/// # Errors
/// If the model's tokenizer is damaged.
pub(super) fn pooled(x: &Literal, tokens: Option<&Literal>, model: &Model) -> Result<Literal> {
    let [batch, .., width] = *x.shape().dims() else { return Ok(x.clone()) };
    let (values, positions) = (x.to_f32s(), x.ty().elements() / (batch * width).max(1));
    if x.shape().rank() == 2 {
        return Ok(x.clone());
    }
    let padding = tokenizer_of(model)?.filter(|t| t.has_own_padding()).and_then(|t| t.padding());
    let ids = tokens.filter(|ids| ids.ty().elements() == batch * positions).map(Literal::to_f32s);
    let is_counted = |i: usize| match (&ids, padding) {
        (Some(ids), Some(padding)) => ids.get(i).is_none_or(|id| *id as u32 != padding),
        _ => true,
    };
    let mut out = vec![0f32; batch * width];
    for (sample, sums) in out.chunks_exact_mut(width.max(1)).enumerate() {
        let counted: Vec<usize> =
            (0..positions).map(|p| sample * positions + p).filter(|i| is_counted(*i)).collect();
        for at in &counted {
            let row = &values[at * width..(at + 1) * width];
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value / counted.len() as f32);
        }
    }
    Literal::from_slice([batch, width], &out)
}

/// Embeddings of the candidates of `--candidate`, of length 1.
pub(super) struct Candidates {
    pub embeddings: Vec<Vec<f32>>,
    /// Factor of similarities before the softmax, if the model states it: CLIP.
    pub scale: Option<f32>,
}

impl Candidates {
    /// Returns the similarity to each candidate: probabilities if the model scales them, otherwise cosines.
    pub fn similarities(&self, embedding: &[f32]) -> Vec<f32> {
        let own = unit(embedding);
        let cosine = |other: &Vec<f32>| own.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
        let cosines: Vec<f32> = self.embeddings.iter().map(cosine).collect();
        let Some(scale) = self.scale else { return cosines };
        let most = cosines.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
        let powers: Vec<f32> = cosines.iter().map(|c| ((c - most) * scale).exp()).collect();
        let sum: f32 = powers.iter().sum();
        powers.into_iter().map(|p| p / sum).collect()
    }
}

/// Scales a vector to length 1.
pub(super) fn unit(values: &[f32]) -> Vec<f32> {
    let length = values.iter().map(|v| v * v).sum::<f32>().sqrt().max(1e-12);
    values.iter().map(|v| v / length).collect()
}
