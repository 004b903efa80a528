//! Weights by the layers of a file of Keras, whose order in a layer is ours; and by our own names.

use crate::weight_mapping::{WeightPart, WeightRule, is_weight};
use std::collections::{HashMap, HashSet};
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::LayerLowering;
use systole_nn::Model;

/// A layer of a file with the paths of its arrays, in Keras's order.
#[derive(Debug)]
pub(crate) struct KerasLayerWeights {
    /// Its name in the model, where the file says it.
    pub name: Option<String>,
    /// Its group: the class in snake case, numbered.
    pub group: String,
    pub arrays: Vec<String>,
}

/// A layer of ours: name, group in Keras's files, class, its weights with their shapes.
struct TargetLayer<'a> {
    name: &'a str,
    group: String,
    layer: &'a dyn systole_nn::Layer,
    weights: Vec<(&'a str, Vec<usize>)>,
}

/// The layers of a model, each once, with Keras's groups: the class in snake case, numbered.
fn layers(model: &Model) -> Vec<TargetLayer<'_>> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let all = model.weights();
    for node in &model.architecture().nodes {
        if !seen.insert(node.name.as_str()) {
            continue;
        }
        let base = node.layer.default_name();
        let count = counts.entry(base.clone()).or_insert(0);
        let group = if *count == 0 { base } else { format!("{base}_{count}") };
        *count += 1;
        let start = format!("{}/", node.name);
        let own = all.iter().filter(|(path, _)| path.starts_with(&start));
        let weights = own.map(|(path, b)| (*path, b.ty().shape.to_vec())).collect();
        found.push(TargetLayer { name: &node.name, group, layer: node.layer.layer(), weights });
    }
    found
}

/// Rules for a model from a file's layers: by their names, or, where those are of another session, by their groups.
///
/// # Errors
/// When a layer of the model is not in the file, or has another number of arrays there.
pub(crate) fn rules(
    model: &Model,
    file: &[KerasLayerWeights],
    arrays: &[(String, Literal)],
) -> Result<Vec<WeightRule>> {
    let ours: Vec<TargetLayer<'_>> = layers(model).into_iter().filter(|l| !l.weights.is_empty()).collect();
    let numbers: HashSet<&str> =
        arrays.iter().filter(|(n, v)| is_weight(n, v)).map(|(n, _)| n.as_str()).collect();
    let named = |l: &TargetLayer<'_>| file.iter().find(|f| f.name.as_deref() == Some(l.name));
    let by_name = ours.iter().all(|l| named(l).is_some());
    let mut all = Vec::new();
    for layer in &ours {
        let found = if by_name { named(layer) } else { file.iter().find(|f| f.group == layer.group) };
        let found = found.ok_or_else(|| {
            let there: Vec<&str> = file.iter().map(|f| f.name.as_deref().unwrap_or(&f.group)).collect();
            let what = format!("the file has no layer {} ({})", layer.name, layer.group);
            Error::new(ErrorKind::Data, what)
                .because(format!("it has {}", there.join(", ")))
                .hint("name the model that these weights are of with --model")
        })?;
        let paths: Vec<&String> = found.arrays.iter().filter(|p| numbers.contains(p.as_str())).collect();
        if paths.len() != layer.weights.len() {
            let what = format!(
                "layer {} has {} arrays in the file, and {} weights in the model",
                layer.name,
                paths.len(),
                layer.weights.len()
            );
            return Err(Error::new(ErrorKind::Data, what)
                .hint("name the model that these weights are of with --model"));
        }
        let pairs = layer.weights.iter().zip(paths);
        all.extend(pairs.map(|((ours, dims), path)| {
            WeightRule::of(ours, dims, WeightPart::new(path.clone(), dims, Vec::new()))
        }));
    }
    Ok(all)
}

/// Groups of layers in a file, each with the layer's name.
pub(crate) type LayerGroups = Vec<(String, String)>;

/// Rules for a file that is written, and the groups of all layers with their names.
pub(crate) fn written(model: &Model) -> Result<(Vec<WeightRule>, LayerGroups)> {
    let (mut rules, mut groups) = (Vec::new(), Vec::new());
    for layer in layers(model) {
        let at = format!("layers/{}", layer.group);
        groups.push((at.clone(), layer.name.to_string()));
        let mut counts: HashMap<String, usize> = HashMap::new();
        for (path, dims) in &layer.weights {
            let part = part(layer.layer, path[layer.name.len() + 1..].split('/').next().unwrap_or_default());
            let group = if part.is_empty() { at.clone() } else { format!("{at}/{part}") };
            let index = counts.entry(group.clone()).or_insert(0);
            rules.push(WeightRule::of(
                path,
                dims,
                WeightPart::new(format!("{group}/vars/{index}"), dims, Vec::new()),
            ));
            *index += 1;
        }
    }
    Ok((rules, groups))
}

/// The groups of layers that keep the state of random numbers in Keras's files.
pub(crate) fn dropping(model: &Model) -> Vec<String> {
    let layers = layers(model).into_iter().filter(|l| l.layer.class_name().ends_with("Dropout"));
    layers.map(|l| format!("layers/{}", l.group)).collect()
}

/// Where Keras keeps a weight within its layer.
fn part(layer: &dyn systole_nn::Layer, first: &str) -> &'static str {
    match (layer.lowering(), first) {
        (Ok(LayerLowering::Recurrent(_)), _) => "cell",
        (Ok(LayerLowering::Attention { .. }), "query") => "query_dense",
        (Ok(LayerLowering::Attention { .. }), "key") => "key_dense",
        (Ok(LayerLowering::Attention { .. }), "value") => "value_dense",
        (Ok(LayerLowering::Attention { .. }), "attention_output") => "output_dense",
        _ => "",
    }
}

/// Rules where every weight stands in the file under its own path, as Systole's model files have it.
pub(crate) fn ours(model: &Model, theirs: &[(String, Literal)]) -> Option<Vec<WeightRule>> {
    let names: HashSet<&str> = theirs.iter().map(|(n, _)| n.as_str()).collect();
    let rule = |path: &str, dims: &[usize]| {
        let all = ["weights/", ""].into_iter().map(|p| format!("{p}{path}"));
        let name = all.into_iter().find(|n| names.contains(n.as_str()))?;
        Some(WeightRule::of(path, dims, WeightPart::new(name, dims, Vec::new())))
    };
    model.weights().into_iter().map(|(path, b)| rule(path, b.ty().shape.dims())).collect()
}
