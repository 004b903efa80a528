//! Transfer learning: copies weights from another model, replaces the head, freezes layers.
//!
//! The head is the last layer with weights, or all layers from a named one on.

use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize};
use crate::layer::lowering::LayerLowering;
use crate::model::Model;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_ir::{Error, Result, err};

/// Behavior of batch normalization in frozen layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrozenBatchNorm {
    /// Trains: gamma, beta and the moving statistics adapt to the new data, such as images with other lighting.
    /// fastai's `train_bn=True`.
    #[default]
    Train,
    /// Frozen, using the moving statistics, as every frozen layer in Keras.
    Inference,
}

/// Result of [`Model::take_weights`]: paths of copied, new and unused weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransferredWeights {
    /// Weights copied from the other model.
    pub taken: Vec<String>,
    /// Newly initialized weights.
    pub new: Vec<String>,
    /// Weights of the other model that were not used.
    pub left: Vec<String>,
}

impl Model {
    /// Returns the index of the head's first layer: the named one, or the last with weights.
    fn head(&self, from: Option<&str>) -> Result<usize> {
        let nodes = &self.architecture.nodes;
        if let Some(name) = from {
            let names: Vec<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
            let missing = || unknown(&format!("the model has no layer `{name}`"), name, &names);
            return names.iter().position(|n| *n == name).ok_or_else(missing);
        }
        let with_weights: BTreeSet<&str> = self.specs.iter().map(|s| layer_of(&s.path)).collect();
        nodes.iter().rposition(|n| with_weights.contains(n.name.as_str())).ok_or_else(|| {
            let e = err!(Config, "the model has no layer with weights");
            e.hint(if self.is_built() {
                "add a layer with weights"
            } else {
                "build it first with model.build(&[…])"
            })
        })
    }

    /// Returns the names of the layers before the head, and of those in the head.
    pub(crate) fn body_and_head(&self, from: Option<&str>) -> Result<(Vec<String>, Vec<String>)> {
        let head = self.head(from)?;
        let names = |nodes: &[crate::LayerNode]| nodes.iter().map(|n| n.name.clone()).collect::<Vec<_>>();
        let (body, head) = self.architecture.nodes.split_at(head);
        let (mut body, head) = (names(body), names(head));
        // A layer in both shares its weights and belongs to the head.
        body.retain(|name| !head.contains(name));
        Ok((body, head))
    }

    /// Copies weights with the same paths from another model. From the layer `head` on (default: the last one with
    /// weights), weights with other shapes are newly initialized, and with `anew` all are: a head for another number of
    /// classes.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dense, Model};
    /// let of_classes = |classes| {
    ///     let mut model = Model::sequential([dense(8).name("body"), dense(classes).name("head")]);
    ///     model.build(&[TensorType::new(F32, [4])]).map(|()| model)
    /// };
    /// let (ten, mut three) = (of_classes(10)?, of_classes(3)?);
    /// let weights = three.take_weights(&ten, None, false)?;
    /// assert_eq!(weights.taken, ["body/kernel", "body/bias"]);
    /// assert_eq!(weights.new, ["head/kernel", "head/bias"]);
    /// assert_eq!(three.weight("body/kernel")?, ten.weight("body/kernel")?);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a weight before the head is missing in the other model or has another shape; names both.
    pub fn take_weights(
        &mut self,
        from: &Model,
        head: Option<&str>,
        anew: bool,
    ) -> Result<TransferredWeights> {
        let (_, head) = self.body_and_head(head)?;
        let theirs: BTreeMap<&str, &[usize]> =
            from.specs.iter().map(|s| (s.path.as_str(), s.shape.as_slice())).collect();
        let mut new_layers: BTreeSet<&str> = BTreeSet::new();
        for spec in &self.specs {
            let fits = theirs.get(spec.path.as_str()).is_some_and(|shape| **shape == *spec.shape);
            let layer = layer_of(&spec.path);
            match head.iter().any(|name| name == layer) {
                true if anew || !fits => drop(new_layers.insert(layer)),
                false if !fits => return Err(self.misfit(from, &spec.path, &spec.shape)),
                _ => {}
            }
        }
        let mut all = TransferredWeights::default();
        for spec in &self.specs {
            let is_new = new_layers.contains(layer_of(&spec.path));
            if is_new { &mut all.new } else { &mut all.taken }.push(spec.path.clone());
        }
        all.left = theirs
            .keys()
            .filter(|path| !all.taken.iter().any(|t| t == *path))
            .map(|p| p.to_string())
            .collect();
        for path in &all.taken {
            self.take_weight(path, from)?;
        }
        Ok(all)
    }

    /// Error for a weight that is missing in the other model or has another shape there.
    fn misfit(&self, from: &Model, path: &str, shape: &[usize]) -> Error {
        let theirs = from.specs.iter().find(|s| s.path == path);
        let layers =
            |m: &Model| m.architecture.nodes.iter().map(|n| n.name.clone()).collect::<Vec<_>>().join(", ");
        match theirs {
            Some(theirs) => {
                err!(Config, "weight {path} has shape {shape:?}, but {:?} in the saved model", theirs.shape)
                    .because("only the weights of the newly initialized head may have other shapes")
                    .hint(
                        "give the layer the saved model's arguments, or set freeze_until to an earlier layer",
                    )
            }
            None => err!(Config, "the saved model lacks weight {path} of shape {shape:?}")
                .because(format!(
                    "the saved model's layers are {}; this model's layers are {}",
                    layers(from),
                    layers(self)
                ))
                .hint("use the saved model's layers and names"),
        }
    }

    /// Freezes all layers before `layer` (default: before the last one with weights), so that the optimizer does not
    /// change their weights. Returns the names of frozen layers that have weights. The optimizer's state is reset.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dense, FrozenBatchNorm, Model};
    /// let mut model = Model::sequential([dense(8).name("body"), dense(3).name("head")]);
    /// model.build(&[TensorType::new(F32, [4])])?;
    /// assert_eq!(model.freeze_until(Some("head"), FrozenBatchNorm::Train)?, ["body"]);
    /// assert!(model.summary().contains("not trainable: 40"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is no such layer (suggests the nearest), or no trainable layer remains.
    pub fn freeze_until(&mut self, layer: Option<&str>, batch_norm: FrozenBatchNorm) -> Result<Vec<String>> {
        let (body, _) = self.body_and_head(layer)?;
        let freezes = |node: &crate::LayerNode| {
            let trains = batch_norm == FrozenBatchNorm::Train
                && matches!(node.layer.layer().lowering(), Ok(LayerLowering::BatchNormalization { .. }));
            body.contains(&node.name) && !trains
        };
        let flags: Vec<bool> =
            self.architecture.nodes.iter().map(|n| n.layer.is_trainable() && !freezes(n)).collect();
        let frozen: Vec<String> =
            self.architecture.nodes.iter().filter(|n| freezes(n)).map(|n| n.name.clone()).collect();
        self.set_trainable(&flags)?;
        if self.is_built() && self.state.trainable.is_empty() {
            let e = err!(Config, "no trainable layer remains");
            return Err(e.hint("freeze fewer layers: name the first layer to train"));
        }
        let has_weights: BTreeSet<&str> = self.specs.iter().map(|s| layer_of(&s.path)).collect();
        Ok(frozen.into_iter().filter(|name| has_weights.contains(name.as_str())).collect())
    }

    /// Returns for each layer whether it trains.
    pub(crate) fn trainable_flags(&self) -> Vec<bool> {
        self.architecture.nodes.iter().map(|n| n.layer.is_trainable()).collect()
    }

    /// Sets for each layer whether it trains. Weights are kept; a compiled model is recompiled.
    pub(crate) fn set_trainable(&mut self, flags: &[bool]) -> Result<()> {
        let mut architecture = (*self.architecture).clone();
        for (node, flag) in architecture.nodes.iter_mut().zip(flags) {
            node.layer = node.layer.clone().trainable(*flag);
        }
        self.architecture = Arc::new(architecture);
        let had: BTreeMap<String, _> =
            self.weights().into_iter().map(|(path, value)| (path.to_string(), value.clone())).collect();
        let specs = std::mem::take(&mut self.specs);
        self.adopt(specs, |spec, _| {
            had.get(&spec.path).cloned().ok_or_else(|| err!(Bug, "no weight {}", spec.path))
        })?;
        self.recompile()
    }
}

/// Returns the layer that a weight belongs to.
pub(crate) fn layer_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}
