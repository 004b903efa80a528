//! Pruning masks of weights: when they are recomputed, and the resulting sparsity.

use crate::model::Model;
use crate::model::sparsity::MASK;
use systole_ir::{Literal, Result, err};

/// Number of zero elements of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSparsity {
    /// Path, such as `dense/kernel`.
    pub path: String,
    /// Number of zeros.
    pub zeros: usize,
    /// Number of elements.
    pub weights: usize,
}

impl Model {
    /// Recomputes and applies the masks if due before the next step.
    pub(crate) fn renew_masks(&mut self) -> Result<()> {
        let Some(pruning) = self.compile_config().and_then(|c| c.pruning.clone()) else { return Ok(()) };
        if !pruning.is_due(self.step) {
            return Ok(());
        }
        if pruning.channels {
            return self.renew_channels(&pruning);
        }
        let paths = self.masked();
        let weights = paths.iter().map(|path| self.weight(path)).collect::<Result<Vec<Literal>>>()?;
        let values = weights.iter().map(|w| Ok((w.as_slice::<f32>()?, w.shape().dims())));
        let masks = pruning.masks(&values.collect::<Result<Vec<_>>>()?, self.step);
        for ((path, weight), mask) in paths.iter().zip(&weights).zip(masks) {
            let mask = Literal::from_slice(weight.shape().dims().to_vec(), &mask)?;
            self.set_weight(path, times(weight, &mask)?)?;
            self.state.optimizer.insert(format!("{MASK}{path}"), mask.into());
        }
        Ok(())
    }

    /// Applies the masks to weights changed outside of a step, such as averages over many steps.
    pub(crate) fn apply_masks(&mut self) -> Result<()> {
        for path in self.masked() {
            let Some(mask) = self.state.optimizer.get(&format!("{MASK}{path}")) else { continue };
            let (weight, mask) = (self.weight(&path)?, self.whole(mask)?);
            self.set_weight(&path, times(&weight, &mask)?)?;
        }
        Ok(())
    }

    /// Restores masks of an earlier optimizer state after the state was reset.
    pub(crate) fn keep_masks(&mut self, earlier: &systole_runtime::Params<systole_runtime::Buffer>) {
        for path in self.masked() {
            let name = format!("{MASK}{path}");
            if let Some(mask) = earlier.get(&name) {
                self.state.optimizer.insert(name, mask.clone());
            }
        }
    }

    /// Returns the paths of the weights that have masks.
    fn masked(&self) -> Vec<String> {
        let own = self.state.optimizer.names().filter_map(|name| name.strip_prefix(MASK));
        own.map(str::to_string).collect()
    }

    /// Returns an error if pruning would affect no weight of the model.
    pub(crate) fn check_pruning(&self) -> Result<()> {
        let Some(pruning) = self.compile_config().and_then(|c| c.pruning.as_ref()) else { return Ok(()) };
        if pruning.channels {
            return pruning.channels_of(&self.architecture).map(drop);
        }
        let is_pruned =
            |spec: &&crate::WeightSpec| self.trains(spec) && pruning.prunes(&spec.path, &spec.shape);
        if self.specs.iter().any(|spec| is_pruned(&spec)) {
            return Ok(());
        }
        let all = self.specs.iter().filter_map(|s| s.path.rsplit_once('/')).map(|(layer, _)| layer);
        let mut all: Vec<&str> = all.collect();
        all.dedup();
        Err(err!(Config, "pruning finds no weights to prune")
            .because(format!("no layer with a trainable kernel matches {}", pruning.layers.join(", ")))
            .hint(format!("choose from the layers with weights: {}", all.join(", "))))
    }

    /// Counts zeros of each kernel and embedding table, the weights that pruning can zero.
    ///
    /// # Errors
    /// See [`Model::weight`].
    pub fn sparsity(&self) -> Result<Vec<WeightSparsity>> {
        let is_kernel = |path: &str| path.ends_with("kernel") || path.ends_with("embeddings");
        let specs = self.specs.iter().filter(|s| s.shape.len() > 1 && is_kernel(&s.path));
        let of = |spec: &crate::WeightSpec| {
            let value = self.weight(&spec.path)?;
            let zeros = value.as_slice::<f32>()?.iter().filter(|w| **w == 0.0).count();
            Ok(WeightSparsity { path: spec.path.clone(), zeros, weights: value.ty().elements() })
        };
        specs.map(of).collect()
    }
}

fn times(weight: &Literal, mask: &Literal) -> Result<Literal> {
    let both = weight.as_slice::<f32>()?.iter().zip(mask.as_slice::<f32>()?);
    // Not a product: masked elements become 0, not −0.
    let kept: Vec<f32> = both.map(|(w, m)| if *m == 0.0 { 0.0 } else { *w }).collect();
    Literal::from_slice(weight.shape().dims().to_vec(), &kept)
}
