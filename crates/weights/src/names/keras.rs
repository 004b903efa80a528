//! Maps a Keras file's weights to a model's: layer by layer in the same weight order, or by Systole weight paths.

use crate::weight_mapping::{OTHER_MODEL, WeightPart, WeightRule, is_weight};
use std::collections::{HashMap, HashSet};
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::LayerLowering;
use systole_nn::Model;

/// A layer of a Keras file with the paths of its arrays, in order.
#[derive(Debug, PartialEq)]
pub(crate) struct KerasLayerWeights {
    /// Layer name in the model, if the file contains it.
    pub name: Option<String>,
    /// Group: the class in snake case, numbered.
    pub group: String,
    pub arrays: Vec<String>,
}

/// A layer of the model: name, group in Keras files, class, and its weights with their shapes.
struct TargetLayer<'a> {
    name: &'a str,
    group: String,
    layer: &'a dyn systole_nn::Layer,
    weights: Vec<(&'a str, Vec<usize>)>,
}

/// Returns a model's distinct layers with their Keras groups (class in snake case, numbered).
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

/// Returns the rules for a Keras file's layers and how they are matched: by name, by group if the names are from another
/// session, or by order if legacy `.h5` names have the numbers of another session.
///
/// # Errors
/// If a layer is missing in the file, or has a different number of arrays.
pub(crate) fn rules(
    model: &Model,
    file: &[KerasLayerWeights],
    arrays: &[(String, Literal)],
) -> Result<(Vec<WeightRule>, &'static str)> {
    let ours: Vec<TargetLayer<'_>> = layers(model).into_iter().filter(|l| !l.weights.is_empty()).collect();
    let shapes: ArrayShapes<'_> =
        arrays.iter().filter(|(n, v)| is_weight(n, v)).map(|(n, v)| (n.as_str(), v.shape().dims())).collect();
    let named = |l: &TargetLayer<'_>| file.iter().find(|f| f.name.as_deref() == Some(l.name));
    let grouped = |l: &TargetLayer<'_>| file.iter().find(|f| f.group == l.group);
    let by_name = ours.iter().all(|l| named(l).is_some());
    let (mut found, mut note): (Vec<_>, _) =
        (ours.iter().map(|l| if by_name { named(l) } else { grouped(l) }).collect(), "by layer names");
    if found.contains(&None)
        && let Some(ordered) = by_order(&ours, file, &shapes)
    {
        found = ordered.into_iter().map(Some).collect();
        note = "by layer order, because Keras numbers layers by session: classes and shapes agree";
    }
    let mut all = Vec::new();
    for (layer, found) in ours.iter().zip(found) {
        let found = found.ok_or_else(|| missing_layer(layer, file))?;
        let paths: Vec<&String> = found.arrays.iter().filter(|p| shapes.contains_key(p.as_str())).collect();
        if paths.len() != layer.weights.len() {
            let what = format!(
                "layer {} has {} arrays in the file, but {} weights in the model",
                layer.name,
                paths.len(),
                layer.weights.len()
            );
            return Err(Error::new(ErrorKind::Data, what).hint_command(OTHER_MODEL));
        }
        let pairs = layer.weights.iter().zip(paths);
        all.extend(pairs.map(|((ours, dims), path)| {
            WeightRule::of(ours, dims, WeightPart::new(path.clone(), dims, Vec::new()))
        }));
    }
    Ok((all, note))
}

/// Shapes of a file's weight arrays by path.
type ArrayShapes<'a> = HashMap<&'a str, &'a [usize]>;

/// Matches a file's layers with weights to the model's by order; `None` if their numbers, classes or shapes differ.
fn by_order<'a>(
    ours: &[TargetLayer<'_>],
    file: &'a [KerasLayerWeights],
    shapes: &ArrayShapes<'_>,
) -> Option<Vec<&'a KerasLayerWeights>> {
    let dims = |f: &KerasLayerWeights| -> Vec<&[usize]> {
        f.arrays.iter().filter_map(|p| shapes.get(p.as_str()).copied()).collect()
    };
    let theirs: Vec<&KerasLayerWeights> = file.iter().filter(|f| !dims(f).is_empty()).collect();
    let classes: HashSet<&str> = ours.iter().map(|l| class(&l.group)).collect();
    // A custom name does not contain the class.
    let is_same_class = |f: &KerasLayerWeights, l: &TargetLayer<'_>| {
        class(&f.group) == class(&l.group) || !classes.contains(class(&f.group))
    };
    let agrees = |(f, l): (&&KerasLayerWeights, &TargetLayer<'_>)| {
        is_same_class(f, l) && dims(f).into_iter().eq(l.weights.iter().map(|(_, dims)| dims.as_slice()))
    };
    (theirs.len() == ours.len() && theirs.iter().zip(ours).all(agrees)).then_some(theirs)
}

/// Returns a group's class without its number: `conv2d` for `conv2d_3`.
fn class(group: &str) -> &str {
    let numbered = group.rsplit_once('_').filter(|(_, n)| n.bytes().all(|b| b.is_ascii_digit()));
    numbered.map_or(group, |(class, _)| class)
}

/// Error for a layer of the model that a file does not have.
fn missing_layer(layer: &TargetLayer<'_>, file: &[KerasLayerWeights]) -> Error {
    let there: Vec<&str> = file.iter().map(|f| f.name.as_deref().unwrap_or(&f.group)).collect();
    let group = if layer.group == layer.name { String::new() } else { format!(" ({})", layer.group) };
    Error::new(ErrorKind::Data, format!("the file has no layer {}{group}", layer.name))
        .because(format!("it has {}", there.join(", ")))
        .hint_command(OTHER_MODEL)
}

/// Layer groups of a file, each with the layer's name.
pub(crate) type LayerGroups = Vec<(String, String)>;

/// Returns the rules for writing a file, and the groups of all layers with their names.
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

/// Returns the groups of layers with a random seed state in Keras files.
pub(crate) fn dropping(model: &Model) -> Vec<String> {
    let layers = layers(model).into_iter().filter(|l| l.layer.class_name().ends_with("Dropout"));
    layers.map(|l| format!("layers/{}", l.group)).collect()
}

/// Returns the subgroup in which Keras stores a weight.
fn part(layer: &dyn systole_nn::Layer, first: &str) -> &'static str {
    match (layer.lowering(), first) {
        (Ok(LayerLowering::Recurrent(_)), _) => "cell",
        (Err(_), _) if layer.config().get("recurrent_initializer").is_some() => "cell",
        (Ok(LayerLowering::Attention { .. }), "query") => "query_dense",
        (Ok(LayerLowering::Attention { .. }), "key") => "key_dense",
        (Ok(LayerLowering::Attention { .. }), "value") => "value_dense",
        (Ok(LayerLowering::Attention { .. }), "attention_output") => "output_dense",
        _ => "",
    }
}

/// Returns the rules if the file contains every weight under its Systole path.
pub(crate) fn ours(model: &Model, theirs: &[(String, Literal)]) -> Option<Vec<WeightRule>> {
    let names: HashSet<&str> = theirs.iter().map(|(n, _)| n.as_str()).collect();
    let rule = |path: &str, dims: &[usize]| {
        let all = ["weights/", ""].into_iter().map(|p| format!("{p}{path}"));
        let name = all.into_iter().find(|n| names.contains(n.as_str()))?;
        Some(WeightRule::of(path, dims, WeightPart::new(name, dims, Vec::new())))
    };
    model.weights().into_iter().map(|(path, b)| rule(path, b.ty().shape.dims())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, TensorType};
    use systole_nn::layers::{conv2d, dense, flatten};
    use systole_testing::assert_error;

    /// A legacy `.h5` file: `(layer, shapes of its arrays)`.
    fn file(layers: &[(&str, &[&[usize]])]) -> (Vec<KerasLayerWeights>, Vec<(String, Literal)>) {
        let (mut weights, mut tensors) = (Vec::new(), Vec::new());
        for (name, shapes) in layers {
            let arrays: Vec<String> = (0..shapes.len()).map(|i| format!("{name}/{i}")).collect();
            let zeros = |dims: &&[usize]| Literal::zeros(TensorType::new(DType::F32, *dims));
            tensors.extend(arrays.iter().cloned().zip(shapes.iter().map(zeros)));
            weights.push(KerasLayerWeights { name: Some(name.to_string()), group: name.to_string(), arrays });
        }
        (weights, tensors)
    }

    #[test]
    fn layers_that_another_session_numbered_match_by_order_if_classes_and_shapes_agree() {
        let mut model = Model::sequential([conv2d(2, [3, 3]), flatten(), dense(3), dense(3)]);
        model.build(&[TensorType::new(DType::F32, [4, 4, 1])]).unwrap();
        let conv: (&str, &[&[usize]]) = ("conv2d_4", &[&[3, 3, 1, 2], &[2]]);
        let (first, second): (&[&[usize]], &[&[usize]]) = (&[&[8, 3], &[3]], &[&[3, 3], &[3]]);
        let (weights, tensors) = file(&[conv, ("flatten_2", &[]), ("dense_8", first), ("dense_9", second)]);
        let (found, note) = rules(&model, &weights, &tensors).unwrap();
        let pairs: Vec<String> =
            found.iter().map(|rule| format!("{} {}", rule.ours, rule.parts[0].theirs)).collect();
        assert_eq!(
            pairs,
            [
                "conv2d/kernel conv2d_4/0",
                "conv2d/bias conv2d_4/1",
                "dense/kernel dense_8/0",
                "dense/bias dense_8/1",
                "dense_1/kernel dense_9/0",
                "dense_1/bias dense_9/1"
            ]
        );
        assert!(note.contains("order"), "{note}");
        // Another order, another class, a layer too many, and a layer too few.
        let other_class: (&str, &[&[usize]]) = ("dense_9", &[&[3, 3, 1, 2], &[2]]);
        for layers in [
            &[conv, ("dense_8", second), ("dense_9", first)][..],
            &[other_class, ("dense_8", first), ("dense_10", second)],
            &[conv, ("dense_8", first), ("dense_9", second), ("dense_10", second)],
            &[conv, ("dense_8", first)],
        ] {
            let (weights, tensors) = file(layers);
            let e = rules(&model, &weights, &tensors).unwrap_err();
            assert_error(&e, ErrorKind::Data, &["conv2d", "--model"]);
        }
    }
}
