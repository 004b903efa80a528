//! LoRA: trains low-rank adapters of frozen kernels, and merges them when the model is saved.

use crate::did_you_mean::unknown;
use crate::layer::adapter::{Adapters, adapter_paths, is_adaptable, is_adapter};
use crate::layer::quantized_weight::{QuantizedWeight, packed_paths};
use crate::layer::{Precision, WeightSpec};
use crate::layers::LayerSpec;
use crate::model::architecture::{Architecture, LayerNode};
use crate::model::model_file::ModelFile;
use crate::model::{Model, drawn_when_read, infer_specs};
use crate::name_pattern::means;
use crate::setters::with_defaults;
use crate::train::transfer_learning::layer_of;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, err};
use systole_runtime::Buffer;

with_defaults! {
    /// LoRA options: which layers get adapters, and their rank. Source: Hu et al. 2021, with Keras's terms.
    #[derive(Clone, Debug, PartialEq)]
    pub struct LoraOptions {
        /// Rank: columns of A and rows of B. Default: 8.
        pub rank: usize = 8,
        /// Scale of the adapters: their product is multiplied by `alpha / rank`. Default: the rank.
        pub alpha: Option<f64> = None,
        /// Layers that get adapters, by path or its last component, with `*` as a wildcard: `*attention*`, `query`.
        /// Default: all layers with a `kernel` or `embeddings`.
        pub layers: Vec<String> = vec!["*".into()],
        /// Layers that train fully, without adapters, such as a new head. Default: none.
        pub train: Vec<String> = Vec::new(),
    }
}

/// Format name in the metadata of adapter files.
const FORMAT: &str = "lora";

impl LoraOptions {
    /// Returns the first invalid LoRA argument, the problem and a hint.
    pub fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        let alpha = self.alpha.filter(|a| !(a.is_finite() && *a > 0.0));
        if self.rank == 0 || self.rank > 1 << 16 {
            return Some((
                "rank",
                format!("`rank` is {}", self.rank),
                "choose an integer of at least 1, such as 8",
            ));
        }
        if let Some(alpha) = alpha {
            return Some((
                "alpha",
                format!("`alpha` is {alpha}"),
                "choose a value above 0, such as the rank or twice the rank",
            ));
        }
        let none = self.layers.is_empty();
        none.then(|| {
            ("layers", "layers is an empty list".into(), "list layers: [\"*attention*\"], or all: [\"*\"]")
        })
    }
}

/// Returns the layer that owns a weight; looks inside nested models.
fn inner_layer<'a>(layer: &'a LayerSpec, path: &str) -> Option<&'a LayerSpec> {
    let Some(model) = layer.nested() else { return Some(layer) };
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let inside = model.layers().into_iter().find(|(name, _)| *name == first);
    inside.and_then(|(_, layer)| inner_layer(layer, rest))
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(layer, _)| layer)
}

impl Model {
    /// Freezes the model and adds low-rank adapters to the kernels of the selected layers: `kernel + alpha / rank · A ·
    /// B` with `lora_kernel_a: f32[…, rank]` (he_uniform) and `lora_kernel_b: f32[rank, out]` (zeros), so that outputs
    /// are unchanged at first. Only adapters and the layers in [`LoraOptions::train`] train. Kernels that
    /// [`ModelFile::pack_weights`] stored as integers stay integers in memory ([`Model::packed_weights`]). Returns the
    /// paths of the kernels. The optimizer's state is reset. [`Model::save`] writes merged kernels; backups of a run
    /// keep the adapters.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dense, LoraOptions, Model};
    /// let mut model = Model::sequential([dense(8).name("body"), dense(3).name("head")]);
    /// model.build(&[TensorType::new(F32, [4])])?;
    /// let train = vec!["head".to_string()];
    /// assert_eq!(model.enable_lora(LoraOptions { rank: 2, train, ..Default::default() })?, ["body/kernel"]);
    /// assert!(model.summary().contains("Trainable: 51; not trainable: 40")); // 2 · (4 + 8) + the head's 27
    /// model.merge_lora()?;
    /// assert_eq!(model.weights().len(), 4);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the model is not built or has adapters, an argument is invalid, or a pattern matches no layer (suggests the
    /// nearest).
    pub fn enable_lora(&mut self, options: LoraOptions) -> Result<Vec<String>> {
        if let Some((key, what, hint)) = options.wrong() {
            return Err(Error::new(ErrorKind::Config, what).at(format!("{key} of LoRA")).hint(hint));
        }
        self.check_for_lora()?;
        let adapted = self.adapted_by(&options)?;
        let alpha = options.alpha.unwrap_or(options.rank as f64);
        let mut architecture = (*self.architecture).clone();
        let mut values = BTreeMap::new();
        for node in &mut architecture.nodes {
            if options.train.iter().any(|pattern| means(pattern, &node.name)) {
                continue;
            }
            let prefix = format!("{}/", node.name);
            let own = adapted.iter().filter_map(|path| path.strip_prefix(&prefix));
            let weights = Some(own.map(str::to_string).collect());
            let held = self.packed_of(&prefix);
            for (path, held) in &held {
                let [numbers, scales] = packed_paths(&format!("{prefix}{path}"));
                values.insert(numbers, held.numbers.clone().into());
                values.insert(scales, held.scales.clone().into());
            }
            let packed = held.into_iter().map(|(path, held)| (path, held.packing.clone())).collect();
            let own = Adapters { rank: options.rank, alpha, weights, others_train: false, packed };
            node.layer = node.layer.clone().with_adapters(Some(own));
        }
        self.restructure(architecture, values)?;
        Ok(adapted)
    }

    /// Returns a layer's unchanged integer weights from a file, by path within the layer.
    pub(crate) fn packed_of(&self, prefix: &str) -> Vec<(String, Arc<QuantizedWeight>)> {
        let one =
            |(path, value): (&str, &Buffer)| Some((path.strip_prefix(prefix)?.to_string(), value.origin()?));
        self.weights().into_iter().filter_map(one).collect()
    }

    /// Returns the paths of weights kept as integers (quantized) in memory, next to LoRA adapters.
    pub fn packed_weights(&self) -> Vec<String> {
        let of = |node: &&LayerNode| {
            let own = node.layer.adapters().map(|own| own.packed.keys().cloned().collect::<Vec<_>>());
            own.unwrap_or_default()
                .into_iter()
                .map(|path| format!("{}/{path}", node.name))
                .collect::<Vec<_>>()
        };
        self.named_layers().iter().flat_map(of).collect()
    }

    /// Whether a weight holds the integers or scales of a quantized weight.
    pub(crate) fn is_of_packed(&self, path: &str) -> bool {
        let (layer, rest) = path.split_once('/').unwrap_or((path, ""));
        let node = self.architecture.nodes.iter().find(|node| node.name == layer);
        node.and_then(|node| node.layer.adapters()).is_some_and(|own| own.is_of_packed(rest))
    }

    fn check_for_lora(&self) -> Result<()> {
        let refuse = |what: &str, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        if !self.is_built() {
            return refuse("the model has no weights yet", "build it first with model.build(&[…])");
        }
        if self.has_adapters() {
            return refuse("the model already has adapters", "call merge_lora() first");
        }
        if !self.architecture.networks.is_empty() {
            return refuse(
                "LoRA does not support models with several networks",
                "use a model with a single network",
            );
        }
        Ok(())
    }

    /// Returns the paths of the weights that get adapters.
    fn adapted_by(&self, options: &LoraOptions) -> Result<Vec<String>> {
        let nodes = &self.architecture.nodes;
        let trains = |name: &str| options.train.iter().any(|pattern| means(pattern, name));
        let can = |spec: &&WeightSpec| {
            let (first, rest) = spec.path.split_once('/').unwrap_or((&spec.path, ""));
            let node = nodes.iter().find(|n| n.name == first);
            let layer = node.and_then(|node| inner_layer(&node.layer, rest));
            is_adaptable(&spec.path)
                && spec.shape.len() > 1
                && layer.is_none_or(|layer| layer.layer().adapters().is_ok())
        };
        let all: Vec<&str> = self.specs.iter().filter(can).map(|s| s.path.as_str()).collect();
        let named: Vec<&str> = nodes.iter().map(|n| n.name.as_str()).collect();
        let layers: Vec<&str> = all.iter().map(|path| folder_of(path)).collect();
        for (patterns, names) in [(&options.layers, &layers), (&options.train, &named)] {
            for pattern in patterns {
                if !names.iter().any(|name| means(pattern, name)) {
                    let what = format!(
                        "pattern `{pattern}` matches no layer that can {}",
                        if std::ptr::eq(names, &layers) { "have adapters" } else { "train" }
                    );
                    return Err(unknown(&what, pattern, names));
                }
            }
        }
        let meant = |path: &&&str| {
            let is_meant = options.layers.iter().any(|pattern| means(pattern, folder_of(path)));
            is_meant && !trains(layer_of(path))
        };
        let adapted: Vec<String> = all.iter().filter(meant).map(|path| path.to_string()).collect();
        if adapted.is_empty() {
            return Err(err!(Config, "no layer gets LoRA adapters")
                .because("all selected layers are trained fully, without adapters")
                .hint("choose other layers for adapters, or remove some layers from train"));
        }
        Ok(adapted)
    }

    /// Rebuilds the model with other adapters or fake quantization: weights with unchanged paths are kept unless
    /// `values` has others; new ones are initialized.
    pub(crate) fn restructure(
        &mut self,
        architecture: Architecture,
        mut values: BTreeMap<String, Buffer>,
    ) -> Result<()> {
        let precision = self.compile_config().map_or(Precision::Float32, |c| c.precision);
        let had: BTreeMap<String, Buffer> =
            self.weights().into_iter().map(|(path, value)| (path.to_string(), value.clone())).collect();
        let specs = infer_specs(&architecture, precision)?;
        self.architecture = Arc::new(architecture);
        self.build_shapes(precision)?;
        self.adopt(specs, |spec, seed| {
            let own = values.remove(&spec.path).or_else(|| had.get(&spec.path).cloned());
            Ok(own.unwrap_or_else(|| drawn_when_read(spec.clone(), seed)))
        })?;
        self.recompile()
    }

    /// Whether any layer of the model has LoRA adapters.
    pub fn has_adapters(&self) -> bool {
        self.architecture.nodes.iter().any(|node| node.layer.adapters().is_some())
    }

    /// Returns the architecture without adapters.
    pub(crate) fn plain_architecture(&self) -> Architecture {
        let plain =
            |node: &LayerNode| LayerNode { layer: node.layer.clone().with_adapters(None), ..node.clone() };
        let nodes = self.architecture.nodes.iter().map(plain).collect();
        Architecture { nodes, ..(*self.architecture).clone() }
    }

    /// Returns each layer once. A layer that is called several times, such as tied embeddings, has a node per call but
    /// one set of weights.
    fn named_layers(&self) -> Vec<&LayerNode> {
        let mut seen = BTreeSet::new();
        self.architecture.nodes.iter().filter(|node| seen.insert(node.name.as_str())).collect()
    }

    /// Returns kernels with adapters merged, and dequantized kernels, by path.
    pub(crate) fn merged_kernels(&self) -> Result<BTreeMap<String, Buffer>> {
        let mut merged = BTreeMap::new();
        for node in self.named_layers() {
            let Some(own) = node.layer.adapters() else { continue };
            let prefix = format!("{}/", node.name);
            for (path, packing) in &own.packed {
                let path = format!("{prefix}{path}");
                let [numbers, scales] = packed_paths(&path);
                let held = QuantizedWeight {
                    packing: packing.clone(),
                    numbers: self.weight(&numbers)?,
                    scales: self.weight(&scales)?,
                };
                merged.insert(path, held.buffer());
            }
            let kept = self.specs.iter().filter(|s| !is_adapter(&s.path) && s.dtype == DType::F32);
            let kept: Vec<String> = kept.map(|s| s.path.clone()).chain(merged.keys().cloned()).collect();
            for path in kept {
                if !path.strip_prefix(&prefix).is_some_and(|inside| !inside.is_empty() && own.adapts(inside))
                {
                    continue;
                }
                let w = merged.get(&path).map_or_else(|| self.weight(&path), Buffer::to_literal)?;
                if own.shapes(w.shape().dims()).is_none() {
                    continue;
                }
                let [a, b] = adapter_paths(&path);
                let (a, b) = (self.weight(&a)?, self.weight(&b)?);
                merged.insert(path, merge(&w, &a, &b, own.scale() as f32)?.into());
            }
        }
        Ok(merged)
    }

    /// Merges the LoRA adapters into the kernels and makes the whole model trainable again. The optimizer's state is
    /// reset.
    ///
    /// # Errors
    /// See [`Model::weight`].
    pub fn merge_lora(&mut self) -> Result<()> {
        let (plain, values) = (self.plain_architecture(), self.merged_kernels()?);
        self.restructure(plain, values)
    }

    /// Writes only the LoRA adapters: `dense/lora_kernel_a`, …, with rank and alpha in the metadata.
    ///
    /// # Errors
    /// If the model has no adapters, or the file cannot be written.
    pub fn save_adapters(&self, path: impl AsRef<Path>) -> Result<()> {
        if !self.has_adapters() {
            return Err(err!(Config, "the model has no LoRA adapters to save").hint("call enable_lora first"));
        }
        let own = self.specs.iter().filter(|spec| is_adapter(&spec.path));
        let tensors =
            own.map(|spec| Ok((spec.path.clone(), self.weight(&spec.path)?))).collect::<Result<_>>()?;
        let said = self.architecture.nodes.iter().filter_map(|node| node.layer.adapters()).next();
        let said = said.map_or(String::new(), |own| format!("rank {}, alpha {}", own.rank, own.alpha));
        let file = ModelFile { tensors, metadata: BTreeMap::from([(FORMAT.to_string(), said)]) };
        if self.leads() { file.save(path.as_ref()) } else { Ok(()) }
    }

    /// Loads the LoRA adapters of a file from [`Model::save_adapters`] into a model with the same adapters.
    ///
    /// # Errors
    /// If the file is damaged, or its adapters differ from the model's; names the first.
    pub fn load_adapters(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let file = ModelFile::load(path.as_ref())?;
        let own = self.specs.iter().filter(|spec| is_adapter(&spec.path)).count();
        if own != file.tensors.len() || !file.metadata.contains_key(FORMAT) {
            return Err(err!(
                Data,
                "{} has {} adapters, expected {own}",
                path.as_ref().display(),
                file.tensors.len()
            )
            .hint("call enable_lora first, with the options of the run that saved the adapters"));
        }
        file.tensors.into_iter().try_for_each(|(path, value)| self.set_weight(&path, value))
    }
}

/// Merges an adapter: `w: f32[…, out], a: f32[…, rank], b: f32[rank, out] → f32[…, out]`: w + scale · a · b.
fn merge(w: &Literal, a: &Literal, b: &Literal, scale: f32) -> Result<Literal> {
    let (mut all, a, b) = (w.as_slice::<f32>()?.to_vec(), a.as_slice::<f32>()?, b.as_slice::<f32>()?);
    let out = w.shape().last().copied().unwrap_or(1).max(1);
    let rank = b.len() / out;
    for (row, a) in all.chunks_mut(out).zip(a.chunks(rank.max(1))) {
        let mut sum = vec![0f32; out];
        for (a, b) in a.iter().zip(b.chunks(out)) {
            sum.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
        row.iter_mut().zip(&sum).for_each(|(w, sum)| *w += sum * scale);
    }
    Literal::from_slice(w.shape().to_vec(), &all)
}
