//! Reads and writes Keras files: `.keras` (ZIP with layers and weights) and `.weights.h5`; also reads legacy
//! whole-model `.h5`.

mod config;
mod export;

pub(crate) use export::export;

use crate::arrays::UnpackLimit;
use crate::hdf5::{self, Hdf5Tree};
use crate::names::keras::KerasLayerWeights;
use serde_json::Value;
use systole_data::format::zip::ZipArchive;
use systole_ir::{Error, ErrorKind, Literal, Result, ResultExt, TensorType};
use systole_nn::Architecture;

/// Contents of a Keras file.
pub(crate) struct KerasFile {
    /// The layers as JSON.
    config: Option<Value>,
    pub weights: Vec<KerasLayerWeights>,
    arrays: Vec<(String, Literal)>,
}

/// Sublayers of a layer whose arrays are in groups of their own, in weight order.
const PARTS: [&str; 6] = ["vars", "cell", "query_dense", "key_dense", "value_dense", "output_dense"];

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
        let mut keras = KerasFile::from_hdf5(&weights).at(|| "model.weights.h5".into())?;
        keras.config = Some(config);
        Ok(Some(keras))
    }

    /// Reads a `.weights.h5` file, or a legacy `.h5` file, which may contain the layers.
    pub(crate) fn from_hdf5(bytes: &[u8]) -> Result<KerasFile> {
        let mut tree = hdf5::read(bytes, &["optimizer", "optimizer_weights"])?;
        let config = match tree.attribute("", "model_config") {
            Some([text, ..]) => Some(json(text.as_bytes()).at(|| "attribute model_config".into())?),
            _ => None,
        };
        let weights = match ["model_weights", ""].into_iter().find_map(|at| old_layers(&tree, at)) {
            Some(weights) => weights,
            None => layers(&tree),
        };
        // Seed generator states are not weights.
        tree.arrays.retain(|(path, _)| !path.split('/').any(|part| part == "seed_generator"));
        if weights.iter().all(|l| l.arrays.is_empty()) {
            return Err(Error::new(ErrorKind::Data, "the HDF5 file contains no Keras weights")
                .because("the file has neither a group `layers` nor an attribute layer_names")
                .hint(
                    "save the weights with model.save_weights(\"model.weights.h5\") or model.save(\"model.keras\")",
                ));
        }
        Ok(KerasFile { config, weights, arrays: tree.arrays })
    }

    pub(crate) fn tensors(&self) -> Result<Vec<(String, Literal)>> {
        Ok(self.arrays.clone())
    }

    /// Returns the layers, if the file contains them.
    pub(crate) fn architecture(&self) -> Result<Option<(Architecture, Vec<TensorType>)>> {
        self.config.as_ref().map(config::architecture).transpose()
    }

    /// Returns the arguments of layers that change further training only and are not used.
    pub(crate) fn unused_settings(&self) -> Vec<String> {
        self.config.as_ref().map_or_else(Vec::new, config::unused_settings)
    }
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|e| {
        Error::new(ErrorKind::Data, "the model config is not valid JSON")
            .because(e.to_string())
            .hint("download or save the file again")
    })
}

/// Returns the layer of an array path: `conv2d` for `layers/conv2d/vars/0`, `sequential/layers/conv2d` for a nested
/// one.
fn group(path: &str) -> Option<&str> {
    let below = path.strip_prefix("layers/")?;
    let start = below.rfind("/layers/").map_or(0, |at| at + "/layers/".len());
    let end = start + below[start..].find('/')?;
    Some(&below[..end])
}

/// Collects `layers/conv2d/vars/0`, with the layer's name from an attribute of `vars`.
fn layers(tree: &Hdf5Tree) -> Vec<KerasLayerWeights> {
    let mut found: Vec<KerasLayerWeights> = Vec::new();
    for (path, _) in &tree.arrays {
        let Some(group) = group(path) else { continue };
        if path.contains("/seed_generator/") {
            continue;
        }
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
            let part = parts.next().and_then(|p| PARTS.iter().position(|k| *k == p)).unwrap_or(PARTS.len());
            let index: usize = path.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            (part, index)
        });
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
    Some(names.iter().map(layer).collect())
}
