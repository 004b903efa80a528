//! What a model has of another one: its weights, layers of it that stay as they are, and a part that is new.
//!
//! The part that may be new is the head: the last layer with weights, or all layers from a named one on.

use crate::did_you_mean::unknown;
use crate::layer::lowering::LayerLowering;
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_ir::{Error, ErrorKind, Result};

/// What batch normalisations among frozen layers do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrozenBatchNorm {
    /// They train: gamma, beta and the moving statistics follow the new data, whose pictures may be lit otherwise.
    /// fastai's `train_bn=True`.
    #[default]
    Train,
    /// They stay as they are and use their moving statistics, as every frozen layer in Keras.
    Inference,
}

/// Which weights [`Model::take_weights`] took, by path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransferredWeights {
    /// Those of the other model.
    pub taken: Vec<String>,
    /// Those that begin anew.
    pub new: Vec<String>,
    /// Those of the other model that nothing here has a place for.
    pub left: Vec<String>,
}

impl Model {
    /// The first layer of the head: the one named, or the last one that has weights.
    fn head(&self, from: Option<&str>) -> Result<usize> {
        let nodes = &self.architecture.nodes;
        if let Some(name) = from {
            let names: Vec<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
            let missing = || unknown(&format!("the model has no layer `{name}`"), name, &names);
            return names.iter().position(|n| *n == name).ok_or_else(missing);
        }
        let with_weights: BTreeSet<&str> = self.specs.iter().map(|s| layer_of(&s.path)).collect();
        nodes.iter().rposition(|n| with_weights.contains(n.name.as_str())).ok_or_else(|| {
            let e = Error::new(ErrorKind::Config, "the model has no layer with weights");
            e.hint(if self.is_built() { "add one" } else { "build it first: model.build(&[…])" })
        })
    }

    /// Names of the layers before the head, and of those from there on.
    pub(crate) fn body_and_head(&self, from: Option<&str>) -> Result<(Vec<String>, Vec<String>)> {
        let head = self.head(from)?;
        let names = |nodes: &[crate::LayerNode]| nodes.iter().map(|n| n.name.clone()).collect::<Vec<_>>();
        let (body, head) = self.architecture.nodes.split_at(head);
        let (mut body, head) = (names(body), names(head));
        // A layer that is in both shares its weights: it is of the head.
        body.retain(|name| !head.contains(name));
        Ok((body, head))
    }

    /// Takes the weights of the same names from another model. From the layer `head` on (by default the last one that has
    /// weights) those of other shapes begin anew, and with `anew` all of them do: the head of another number of classes.
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
    /// When a weight before the head is missing there or has another shape: names both.
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

    /// A weight that another model has not, or of another shape.
    fn misfit(&self, from: &Model, path: &str, shape: &[usize]) -> Error {
        let theirs = from.specs.iter().find(|s| s.path == path);
        let layers =
            |m: &Model| m.architecture.nodes.iter().map(|n| n.name.clone()).collect::<Vec<_>>().join(", ");
        match theirs {
            Some(theirs) => {
                let what = format!(
                    "weight {path} is f32{shape:?} here and f32{:?} in the saved model",
                    theirs.shape
                );
                Error::new(ErrorKind::Config, what)
                    .because("only the head may have other shapes, which begins anew")
                    .hint("give the layer the arguments that it has there, or begin the head earlier: freeze_until")
            }
            None => {
                let what = format!("the saved model has no weight {path}, f32{shape:?} here");
                Error::new(ErrorKind::Config, what)
                    .because(format!("its layers are {}; those here are {}", layers(from), layers(self)))
                    .hint("use its layers, with their names")
            }
        }
    }

    /// Freezes all layers before `layer` (by default before the last one that has weights): the optimizer leaves their weights as they
    /// are. Returns the names of those that have any. State that the optimizer has gathered is given up.
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
    /// When there is no such layer (names the nearest), or nothing is left that trains.
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
            let e = Error::new(ErrorKind::Config, "nothing is left that trains");
            return Err(e.hint("freeze fewer layers: name the first one that is to train"));
        }
        let has_weights: BTreeSet<&str> = self.specs.iter().map(|s| layer_of(&s.path)).collect();
        Ok(frozen.into_iter().filter(|name| has_weights.contains(name.as_str())).collect())
    }

    /// Which of the layers train, in their order.
    pub(crate) fn trainable_flags(&self) -> Vec<bool> {
        self.architecture.nodes.iter().map(|n| n.layer.is_trainable()).collect()
    }

    /// Says of each layer whether it trains. Weights stay; what is compiled is compiled anew.
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
            had.get(&spec.path)
                .cloned()
                .ok_or_else(|| Error::new(ErrorKind::Bug, format!("no weight {}", spec.path)))
        })?;
        self.recompile()
    }
}

/// The layer that a weight belongs to.
pub(crate) fn layer_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}
