//! Reads and writes Keras files: `.keras` (ZIP with layers and weights) and `.weights.h5`; also reads legacy
//! whole-model `.h5`.

mod config;
mod export;
mod operations;
mod unknown_layers;

pub(crate) use export::export;

use crate::arrays::UnpackLimit;
use crate::hdf5::{self, Hdf5Tree};
use crate::names::keras::KerasLayerWeights;
use serde_json::Value;
use systole_data::format::zip::ZipArchive;
use systole_ir::{Literal, Result, ResultExt, TensorType, err};
use systole_nn::Architecture;

/// Contents of a Keras file.
pub(crate) struct KerasFile {
    /// The layers as JSON.
    config: Option<Value>,
    pub weights: Vec<KerasLayerWeights>,
    arrays: Vec<(String, Literal)>,
}

/// Sublayers of a layer whose arrays are in groups of their own, in weight order; some have an underscore in front.
const PARTS: [&str; 9] = [
    "layer",
    "forward_layer",
    "backward_layer",
    "vars",
    "cell",
    "query_dense",
    "key_dense",
    "value_dense",
    "output_dense",
];

impl KerasFile {
    /// Reads a `.keras` file; `None` for another ZIP archive.
    pub(crate) fn from_zip(bytes: &[u8]) -> Result<Option<KerasFile>> {
        let archive = ZipArchive::open(bytes)?;
        let limit = UnpackLimit::of(bytes.len()).left();
        let (Some(config), Some(weights)) =
            (archive.read("config.json", limit)?, archive.read("model.weights.h5", limit)?)
        else {
            return Ok(None);
        };
        let config = json(&config).at(|| "config.json".into())?;
        let mut keras = KerasFile::of_tree(&weights).at(|| "model.weights.h5".into())?;
        keras.config = Some(config);
        keras.take_statistics();
        Ok(Some(keras))
    }

    /// Reads a `.weights.h5` file, or a legacy `.h5` file, which may contain the layers.
    pub(crate) fn from_hdf5(bytes: &[u8]) -> Result<KerasFile> {
        let mut keras = KerasFile::of_tree(bytes)?;
        if keras.config.is_none() && keras.weights.iter().all(|l| l.arrays.is_empty()) {
            return Err(err!(Data, "the HDF5 file contains no Keras weights")
                .because("the file has neither a group `layers` nor an attribute layer_names")
                .hint(
                    "save the weights with model.save_weights(\"model.weights.h5\") or model.save(\"model.keras\")",
                ));
        }
        keras.take_statistics();
        Ok(keras)
    }

    /// Moves the mean and variance of `Normalization`, which are arguments here, from the weights to the layers.
    fn take_statistics(&mut self) {
        let Some(config) = &mut self.config else { return };
        let mut taken = Vec::new();
        config::each_normalization(config, &mut |name, arguments| {
            let Some(layer) = self.weights.iter().find(|l| l.name.as_deref() == Some(name)) else { return };
            let [mean, variance, ..] = &layer.arrays[..] else { return };
            let values =
                |path: &String| self.arrays.iter().find(|(n, _)| n == path).map(|(_, a)| a.to_f64s());
            if let (Some(mean), Some(variance)) = (values(mean), values(variance)) {
                arguments.insert("mean".into(), mean.into());
                arguments.insert("variance".into(), variance.into());
                taken.extend(layer.arrays.iter().cloned());
            }
        });
        self.arrays.retain(|(path, _)| !taken.contains(path));
        self.weights.iter_mut().for_each(|layer| layer.arrays.retain(|path| !taken.contains(path)));
    }

    fn of_tree(bytes: &[u8]) -> Result<KerasFile> {
        let mut tree = hdf5::read(bytes, &["optimizer", "optimizer_weights"])?;
        // States of seed generators are not weights, and a wrapper lists the kernel of its layer again.
        tree.arrays.retain(|(path, _)| !path.split('/').any(|part| part == "seed_generator"));
        let is_again = |path: &str| path.strip_suffix("/vars/0").is_some_and(is_spectral);
        tree.arrays.retain(|(path, _)| !is_again(path));
        let config = match tree.attribute("", "model_config") {
            Some([text, ..]) => Some(json(text.as_bytes()).at(|| "attribute model_config".into())?),
            _ => None,
        };
        let weights = match ["model_weights", ""].into_iter().find_map(|at| old_layers(&tree, at)) {
            Some(weights) => {
                without_nested(weights, &config.as_ref().map_or_else(Vec::new, config::nested_models))
            }
            None => layers(&tree),
        };
        Ok(KerasFile { config, weights, arrays: tree.arrays })
    }

    /// Splits the arrays of nested models by layers, for a file without the layers: ConvNeXt's stem. `names` are the layers.
    pub(crate) fn split_nested(&mut self, names: &[&str]) {
        let is_known = |path: &String| path.rsplit('/').nth(1).is_some_and(|parent| names.contains(&parent));
        let is_nested = |layer: &&KerasLayerWeights| {
            let is_layer = layer.name.as_deref().is_some_and(|name| names.contains(&name));
            !is_layer && !layer.arrays.is_empty() && layer.arrays.iter().all(is_known)
        };
        let nested: Vec<String> =
            self.weights.iter().filter(is_nested).filter_map(|layer| layer.name.clone()).collect();
        self.weights = without_nested(std::mem::take(&mut self.weights), &nested);
    }

    pub(crate) fn tensors(&self) -> Result<Vec<(String, Literal)>> {
        Ok(self.arrays.clone())
    }

    /// Returns the layers, if the file contains them.
    pub(crate) fn architecture(&self) -> Result<Option<(Architecture, Vec<TensorType>)>> {
        self.config.as_ref().map(unknown_layers::architecture).transpose()
    }

    /// Returns the arguments of layers that change further training only and are not used.
    pub(crate) fn unused_settings(&self) -> Vec<String> {
        self.config.as_ref().map_or_else(Vec::new, config::unused_settings)
    }
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|e| {
        err!(Data, "the model config is not valid JSON")
            .because(e.to_string())
            .hint("download or save the file again")
    })
}

/// Whether a group is that of a `SpectralNormalization`, whose vector is its second weight here.
fn is_spectral(group: &str) -> bool {
    group.rsplit('/').next().is_some_and(|name| name.starts_with("spectral_normalization"))
}

/// Moves the vector of a `SpectralNormalization` in front of the bias.
fn order_spectral(layer: &mut KerasLayerWeights) {
    if is_spectral(&layer.group)
        && let [_, bias, vector] = &mut layer.arrays[..]
    {
        std::mem::swap(bias, vector);
    }
}

/// Returns the layer of an array path: `conv2d` for `layers/conv2d/vars/0`, `sequential/layers/conv2d` for a nested
/// one, `rnn/cell/cells/lstm_cell` for a stacked cell.
fn group(path: &str) -> Option<&str> {
    let below = path.strip_prefix("layers/")?;
    let inner = ["/layers/", "/cells/"].into_iter().filter_map(|mark| Some(below.rfind(mark)? + mark.len()));
    let start = inner.max().unwrap_or(0);
    let end = start + below[start..].find('/')?;
    Some(&below[..end])
}

/// Collects `layers/conv2d/vars/0`, with the layer's name from an attribute of `vars`.
fn layers(tree: &Hdf5Tree) -> Vec<KerasLayerWeights> {
    let mut found: Vec<KerasLayerWeights> = Vec::new();
    for (path, _) in &tree.arrays {
        let Some(group) = group(path) else { continue };
        let at = found.iter().position(|l| l.group == group).unwrap_or_else(|| {
            let named = tree.attribute(&format!("layers/{group}/vars"), "name");
            let name = named.and_then(|n| n.first().cloned());
            found.push(KerasLayerWeights { name, group: group.into(), arrays: Vec::new() });
            found.len() - 1
        });
        found[at].arrays.push(path.clone());
    }
    for layer in &mut found {
        layer.arrays.sort_by_key(|path| {
            let mut parts = path["layers/".len() + layer.group.len()..].split('/').skip(1);
            let of = |part: &str| PARTS.iter().position(|known| *known == part.trim_start_matches('_'));
            let part = parts.next().and_then(of).unwrap_or(PARTS.len());
            let index: usize = path.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            (part, index)
        });
        order_spectral(layer);
    }
    found
}

/// Splits the arrays of nested models by the models' layers: `model_weights/chain/chain/dense/kernel`.
fn without_nested(weights: Vec<KerasLayerWeights>, nested: &[String]) -> Vec<KerasLayerWeights> {
    let mut found: Vec<KerasLayerWeights> = Vec::new();
    for layer in weights {
        if !layer.name.as_ref().is_some_and(|name| nested.contains(name)) {
            found.push(layer);
            continue;
        }
        for path in layer.arrays {
            let mut parts = path.rsplit('/').skip(1);
            let inner = parts.next().unwrap_or_default().to_string();
            match found.last_mut().filter(|last| last.name.as_ref() == Some(&inner)) {
                Some(last) => last.arrays.push(path),
                None => found.push(KerasLayerWeights {
                    name: Some(inner.clone()),
                    group: inner,
                    arrays: vec![path],
                }),
            }
        }
    }
    found
}

/// Collects the layers of a legacy file; attributes name their order and arrays.
fn old_layers(tree: &Hdf5Tree, root: &str) -> Option<Vec<KerasLayerWeights>> {
    let names = tree.attribute(root, "layer_names")?;
    let below = |name: &str| if root.is_empty() { name.to_string() } else { format!("{root}/{name}") };
    let layer = |name: &String| {
        let group = below(name);
        let arrays = tree.attribute(&group, "weight_names").unwrap_or(&[]);
        KerasLayerWeights {
            name: Some(name.clone()),
            group: name.clone(),
            arrays: arrays.iter().map(|a| format!("{group}/{a}")).collect(),
        }
    };
    let mut found: Vec<KerasLayerWeights> = names.iter().map(layer).collect();
    found.iter_mut().for_each(order_spectral);
    Some(found)
}
