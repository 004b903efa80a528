//! Whole channels of a model: which layers can lose some, which of them are least, and the smaller model without those that are zero.

use crate::layer::activation::Activation;
use crate::layers::LayerSpec;
use crate::model::Model;
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use crate::model::sparsity::{MASK, Pruning};
use crate::pattern::means;
use serde_json::Value;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Literal, Result};

/// How many channels a layer has lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedChannels {
    /// The layer's name.
    pub layer: String,
    /// Its channels before.
    pub before: usize,
    /// Its channels now.
    pub after: usize,
}

/// The weights that must be zero for a channel of a layer to be none: its own, and those of what follows before the next sums.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Channels {
    pub(crate) layer: String,
    kernel: String,
    /// Each with the number of elements that follow each other and are of one channel.
    members: Vec<(String, usize)>,
}

/// Classes whose output is zero where their input is, channel by channel.
const PASSING: [&str; 23] = [
    "Identity",
    "Dropout",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "GaussianNoise",
    "GaussianDropout",
    "ActivityRegularization",
    "MaxPooling1D",
    "MaxPooling2D",
    "AveragePooling1D",
    "AveragePooling2D",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "Cropping1D",
    "Cropping2D",
    "UpSampling2D",
    "Flatten",
    "LeakyReLU",
    "ELU",
];

/// Classes that lose channels, and whose kernels lose the inputs.
const SUMS: [&str; 3] = ["Conv2D", "Conv1D", "Dense"];

fn argument<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|value| !value.is_null())
}

fn is_true(config: &Value, key: &str, default: bool) -> bool {
    argument(config, key).and_then(Value::as_bool).unwrap_or(default)
}

/// Whether a layer's own activation leaves zeros as they are.
fn keeps_zeros(config: &Value) -> bool {
    let activation = argument(config, "activation").cloned();
    match activation.map(serde_json::from_value::<Activation>) {
        None => true,
        Some(Ok(activation)) => {
            !matches!(activation, Activation::Sigmoid | Activation::Softmax | Activation::Softplus)
        }
        Some(Err(_)) => false,
    }
}

impl Architecture {
    /// What each layer with sums would need to lose channels, or why it cannot.
    pub(crate) fn channels(&self) -> Vec<(&str, std::result::Result<Channels, String>)> {
        let is_sum = |node: &LayerNode| SUMS.contains(&node.layer.class_name());
        let all = self.nodes.iter().enumerate().filter(|(_, node)| is_sum(node));
        all.map(|(i, node)| (node.name.as_str(), self.channels_of(i))).collect()
    }

    fn channels_of(&self, i: usize) -> std::result::Result<Channels, String> {
        let node = &self.nodes[i];
        let config = node.layer.layer().config();
        if self.nodes.iter().filter(|other| other.name == node.name).count() > 1 {
            return Err("it is used twice".into());
        }
        if argument(&config, "groups").and_then(Value::as_i64).unwrap_or(1) != 1 {
            return Err("its channels are of groups".into());
        }
        if !keeps_zeros(&config) {
            return Err("its activation makes other numbers of zeros".into());
        }
        let name = &node.name;
        let mut found =
            Channels { layer: name.clone(), kernel: format!("{name}/kernel"), members: Vec::new() };
        found.members.push((found.kernel.clone(), 1));
        if is_true(&config, "use_bias", true) {
            found.members.push((format!("{name}/bias"), 1));
        }
        self.follow(i, 1, &mut found)?;
        Ok(found)
    }

    /// What reads a layer's output, up to the next sums; each channel is `repeat` ones there.
    fn follow(&self, i: usize, repeat: usize, found: &mut Channels) -> std::result::Result<(), String> {
        if self.outputs().any(|output| output == NodeInput::Layer(i)) {
            return Err("the model's output depends on it directly".into());
        }
        for (r, reader) in self.nodes.iter().enumerate() {
            if reader.inputs.contains(&NodeInput::Layer(i)) {
                self.follow_into(r, repeat, found)?;
            }
        }
        Ok(())
    }

    fn follow_into(&self, r: usize, repeat: usize, found: &mut Channels) -> std::result::Result<(), String> {
        let reader = &self.nodes[r];
        let (name, class) = (&reader.name, reader.layer.class_name());
        let config = reader.layer.layer().config();
        let unfit = || Err(format!("its output goes through {name} ({class})"));
        if self.nodes.iter().filter(|other| other.name == *name).count() > 1 {
            return unfit();
        }
        match class {
            "Conv2D" | "Conv1D" | "Dense" => {
                match argument(&config, "groups").and_then(Value::as_i64).unwrap_or(1) {
                    1 => Ok(()),
                    _ => unfit(),
                }
            }
            "BatchNormalization" => {
                let is_last = argument(&config, "axis").and_then(Value::as_i64).unwrap_or(-1) == -1;
                // Without a gamma what is left of the moving mean remains.
                if !is_last || !is_true(&config, "scale", true) {
                    return unfit();
                }
                found.members.push((format!("{name}/gamma"), repeat));
                if is_true(&config, "center", true) {
                    found.members.push((format!("{name}/beta"), repeat));
                }
                self.follow(r, repeat, found)
            }
            "DepthwiseConv2D" if keeps_zeros(&config) => {
                let multiplier =
                    argument(&config, "depth_multiplier").and_then(Value::as_u64).unwrap_or(1) as usize;
                let repeat = repeat * multiplier;
                found.members.push((format!("{name}/kernel"), repeat));
                if is_true(&config, "use_bias", true) {
                    found.members.push((format!("{name}/bias"), repeat));
                }
                self.follow(r, repeat, found)
            }
            "Activation" if keeps_zeros(&config) => self.follow(r, repeat, found),
            "ReLU" if argument(&config, "threshold").and_then(Value::as_f64).unwrap_or(0.0) == 0.0 => {
                self.follow(r, repeat, found)
            }
            _ if PASSING.contains(&class) => self.follow(r, repeat, found),
            _ => unfit(),
        }
    }
}

impl Pruning {
    /// The layers of an architecture that lose channels.
    ///
    /// # Errors
    /// When a pattern means no layer that could: names it and why.
    pub(crate) fn channels_of(&self, architecture: &Architecture) -> Result<Vec<Channels>> {
        let all = architecture.channels();
        for pattern in &self.layers {
            let meant: Vec<_> = all.iter().filter(|(name, _)| means(pattern, name)).collect();
            if meant.iter().any(|(_, found)| found.is_ok()) {
                continue;
            }
            let able: Vec<&str> = all.iter().filter(|(_, f)| f.is_ok()).map(|(name, _)| *name).collect();
            let e = match meant.first() {
                Some((name, Err(why))) => {
                    let what = format!("layer {name} cannot lose channels");
                    Error::new(ErrorKind::Unsupported, what).because(why.clone())
                }
                _ => Error::new(ErrorKind::Config, format!("`{pattern}` means no layer with channels")),
            };
            return Err(e.hint(match able.is_empty() {
                true => "prune weights rather than channels".to_string(),
                false => format!("these can: {}", able.join(", ")),
            }));
        }
        let meant = |(name, found): (&str, std::result::Result<Channels, String>)| {
            found.ok().filter(|_| self.layers.iter().any(|pattern| means(pattern, name)))
        };
        Ok(all.into_iter().filter_map(meant).collect())
    }

    /// Paths of the weights that get masks where whole channels are pruned.
    pub(crate) fn channel_members(&self, architecture: &Architecture) -> Result<Vec<String>> {
        let all = self.channels_of(architecture)?;
        Ok(all.into_iter().flat_map(|c| c.members).map(|(path, _)| path).collect())
    }
}

/// 0 for the channels (the last dimension) whose weights are least in sum; one at least stays. Source: Li et al. 2017, "Pruning Filters
/// for Efficient ConvNets".
fn least_channels(kernel: &[f32], channels: usize, part: f64) -> Vec<f32> {
    let mut sums = vec![0f64; channels];
    kernel.iter().enumerate().for_each(|(at, w)| sums[at % channels.max(1)] += f64::from(w.abs()));
    let zeros = channels - ((channels as f64 * (1.0 - part)).round() as usize).clamp(1, channels.max(1));
    let mut order: Vec<usize> = (0..channels).collect();
    order.sort_by(|&a, &b| sums[a].total_cmp(&sums[b]).then(a.cmp(&b)));
    let mut mask = vec![1.0; channels];
    order.iter().take(zeros).for_each(|&c| mask[c] = 0.0);
    mask
}

impl Model {
    /// Makes the masks of whole channels anew, and applies them.
    pub(crate) fn renew_channels(&mut self, pruning: &Pruning) -> Result<()> {
        for channels in pruning.channels_of(&self.architecture)? {
            let kernel = self.weight(&channels.kernel)?;
            let count = kernel.shape().dims().last().copied().unwrap_or(1);
            let mask = least_channels(kernel.as_slice::<f32>()?, count, pruning.sparsity_at(self.step));
            for (path, inner) in &channels.members {
                let weight = self.weight(path)?;
                let of = |at: usize| mask[at / inner % count];
                let own: Vec<f32> = (0..weight.ty().elements()).map(of).collect();
                let masked = weight.as_slice::<f32>()?.iter().zip(&own);
                let masked: Vec<f32> = masked.map(|(w, m)| if *m == 0.0 { 0.0 } else { *w }).collect();
                let shape = weight.shape().to_vec();
                self.set_weight(path, Literal::from_slice(shape.clone(), &masked)?)?;
                if self.state.optimizer.get(&format!("{MASK}{path}")).is_some() {
                    let own = Literal::from_slice(shape, &own)?;
                    self.state.optimizer.insert(format!("{MASK}{path}"), own.into());
                }
            }
        }
        Ok(())
    }

    /// Takes channels out of which nothing is left: layers get fewer units or filters, those after them fewer inputs. What the model
    /// predicts stays; what the optimizer had gathered is given up. Returns the layers that have lost some.
    ///
    /// ```
    /// use systole_ir::{DType::F32, Literal, TensorType};
    /// use systole_nn::{layers::dense, Model};
    /// let mut model = Model::sequential([dense(3).activation("relu"), dense(1)]);
    /// model.build(&[TensorType::new(F32, [2])])?;
    /// model.set_weight("dense/kernel", Literal::from_slice([2, 3], &[1f32, 0., 2., 3., 0., 4.])?)?;
    /// let x = Literal::from_slice([1, 2], &[1f32, 2.])?;
    /// let before = model.predict_on_batch(&x)?;
    /// let removed = model.remove_channels()?;
    /// assert_eq!((removed[0].layer.as_str(), removed[0].before, removed[0].after), ("dense", 3, 2));
    /// assert_eq!(model.predict_on_batch(&x)?, before);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the model is not built, or has adapters or places to round at.
    pub fn remove_channels(&mut self) -> Result<Vec<RemovedChannels>> {
        if !self.is_built() || self.has_adapters() || self.is_quantized() {
            let what = "channels are removed of built models without adapters and places to round at";
            return Err(
                Error::new(ErrorKind::Config, what).hint("merge_lora() and strip_quantization() first")
            );
        }
        let mut kept: BTreeMap<String, Vec<bool>> = BTreeMap::new();
        for (_, found) in self.architecture.channels() {
            let Ok(channels) = found else { continue };
            let stays = self.channels_left(&channels)?;
            if stays.contains(&false) {
                kept.insert(channels.layer, stays);
            }
        }
        if kept.is_empty() {
            return Ok(Vec::new());
        }
        let (architecture, values) = self.without(&kept)?;
        let values = values.into_iter().map(|(path, value)| (path, value.into())).collect();
        self.restructure(architecture, values)?;
        let told = |(layer, stays): (String, Vec<bool>)| RemovedChannels {
            layer,
            before: stays.len(),
            after: stays.iter().filter(|stays| **stays).count(),
        };
        Ok(kept.into_iter().map(told).collect())
    }

    /// Which channels of a layer have weights that are not zero; one at least.
    fn channels_left(&self, channels: &Channels) -> Result<Vec<bool>> {
        let count = self.weight(&channels.kernel)?.shape().dims().last().copied().unwrap_or(1);
        let mut stays = vec![false; count];
        for (path, inner) in &channels.members {
            // What a depthwise kernel makes of zeros is zero.
            if path.ends_with("/kernel") && *path != channels.kernel {
                continue;
            }
            for (at, w) in self.weight(path)?.as_slice::<f32>()?.iter().enumerate() {
                stays[at / inner % count] |= *w != 0.0;
            }
        }
        if !stays.contains(&true) {
            stays.iter_mut().take(1).for_each(|first| *first = true);
        }
        Ok(stays)
    }

    /// The structure and the weights without the channels that do not stay.
    fn without(
        &self,
        kept: &BTreeMap<String, Vec<bool>>,
    ) -> Result<(Architecture, BTreeMap<String, Literal>)> {
        let mut architecture = (*self.architecture).clone();
        let mut values = BTreeMap::new();
        // Of each layer's output: which features of the last dimension stay, where some do not.
        let mut outputs: Vec<Option<Vec<bool>>> = Vec::new();
        for (i, node) in self.architecture.nodes.iter().enumerate() {
            let input = node.inputs.first().and_then(|source| match source {
                NodeInput::Layer(j) => outputs.get(*j).cloned().flatten(),
                NodeInput::Input(_) => None,
            });
            let own = kept.get(&node.name);
            if let Some(stays) = own {
                let count = stays.iter().filter(|stays| **stays).count();
                let layer = architecture.nodes[i].layer.clone();
                architecture.nodes[i].layer = resized(layer, count);
            }
            let output = self.taken(i, node, (input.as_deref(), own.map(Vec::as_slice)), &mut values)?;
            outputs.push(output);
        }
        Ok((architecture, values))
    }

    /// The weights of a node that lose something, and which features of its output stay.
    fn taken(
        &self,
        i: usize,
        node: &LayerNode,
        (input, own): (Option<&[bool]>, Option<&[bool]>),
        values: &mut BTreeMap<String, Literal>,
    ) -> Result<Option<Vec<bool>>> {
        let path = |name: &str| format!("{}/{name}", node.name);
        let mut cut = |name: &str, dim: usize, stays: &[bool]| -> Result<()> {
            let path = path(name);
            if !self.specs.iter().any(|spec| spec.path == path) {
                return Ok(());
            }
            let known = values.remove(&path).map_or_else(|| self.weight(&path), Ok)?;
            // From the last dimension on.
            let dim = known.shape().rank().saturating_sub(dim);
            values.insert(path, take(&known, dim, stays)?);
            Ok(())
        };
        match node.layer.class_name() {
            class if SUMS.contains(&class) => {
                input.map_or(Ok(()), |stays| cut("kernel", 2, stays))?;
                if let Some(stays) = own {
                    cut("kernel", 1, stays)?;
                    cut("bias", 1, stays)?;
                }
                Ok(own.map(<[bool]>::to_vec))
            }
            "BatchNormalization" => {
                for name in ["gamma", "beta", "moving_mean", "moving_variance"] {
                    input.map_or(Ok(()), |stays| cut(name, 1, stays))?;
                }
                Ok(input.map(<[bool]>::to_vec))
            }
            "DepthwiseConv2D" => {
                let Some(stays) = input else { return Ok(None) };
                cut("kernel", 2, stays)?;
                let all = self.rows.get(i).and_then(|row| row.output_shape.dims().last().copied());
                let each = all.unwrap_or(stays.len()) / stays.len().max(1);
                let wide: Vec<bool> = stays.iter().flat_map(|s| std::iter::repeat_n(*s, each)).collect();
                cut("bias", 1, &wide)?;
                Ok(Some(wide))
            }
            "Flatten" => Ok(input.map(|stays| {
                let all = self.rows.get(i).map_or(stays.len(), |row| row.output_shape.elements());
                stays.iter().copied().cycle().take(all).collect()
            })),
            _ => Ok(input.map(<[bool]>::to_vec)),
        }
    }
}

/// A layer with another number of units or filters.
fn resized(layer: LayerSpec, channels: usize) -> LayerSpec {
    let key = if layer.class_name() == "Dense" { "units" } else { "filters" };
    layer.with_argument(key, Value::from(channels))
}

/// The elements of a dimension that stay.
fn take(value: &Literal, dim: usize, stays: &[bool]) -> Result<Literal> {
    let dims = value.shape().to_vec();
    if dims.get(dim) != Some(&stays.len()) {
        let what = format!("{} channels of {}", stays.len(), value.ty());
        return Err(Error::new(ErrorKind::Bug, what));
    }
    let inner: usize = dims[dim + 1..].iter().product::<usize>().max(1);
    let stay = |at: &usize| stays[at / inner % stays.len()];
    let all = value.as_slice::<f32>()?;
    let left: Vec<f32> = (0..all.len()).filter(stay).map(|at| all[at]).collect();
    let mut dims = dims;
    dims[dim] = stays.iter().filter(|stays| **stays).count();
    Literal::from_slice(dims, &left)
}
