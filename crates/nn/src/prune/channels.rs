//! Structured pruning: zeroes the channels with the smallest weights, and removes zeroed channels from the model.

use crate::layer::capability::ChannelPruning;
use crate::layers::{LayerKind, LayerSpec};
use crate::model::Model;
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use crate::model::sparsity::{MASK, Pruning};
use crate::name_pattern::means;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Literal, Result, ensure, err};

/// Number of channels removed from a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedChannels {
    /// Layer name.
    pub layer: String,
    /// Channels before.
    pub before: usize,
    /// Channels after.
    pub after: usize,
}

/// Weights that must all be zero to remove a channel of a layer: its own and those of following layers up to the next
/// matrix product.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PrunableChannels {
    pub(crate) layer: String,
    kernel: String,
    /// Weights of the channels, with the number of consecutive elements per channel.
    members: Vec<(String, usize)>,
}

impl Architecture {
    /// For each layer that mixes channels: the weights to zero for channel pruning, or the reason why it cannot be
    /// pruned.
    pub(crate) fn channels(&self) -> Vec<(&str, std::result::Result<PrunableChannels, String>)> {
        let able = |node: &LayerNode| match node.layer.layer().channels() {
            Ok(ChannelPruning::Mixes { use_bias, groups, keeps_zeros, .. }) => {
                Some((use_bias, groups, keeps_zeros))
            }
            _ => None,
        };
        let all = self.nodes.iter().enumerate().filter_map(|(i, node)| Some((i, node, able(node)?)));
        all.map(|(i, node, own)| (node.name.as_str(), self.channels_of(i, own))).collect()
    }

    fn channels_of(
        &self,
        i: usize,
        (use_bias, groups, keeps_zeros): (bool, usize, bool),
    ) -> std::result::Result<PrunableChannels, String> {
        let node = &self.nodes[i];
        if self.nodes.iter().filter(|other| other.name == node.name).count() > 1 {
            return Err("it is used twice".into());
        }
        if !matches!(node.layer.kind(), LayerKind::BuiltIn(_)) {
            return Err("it is a custom layer, which must remove its channels itself".into());
        }
        ensure!(groups == 1, "it is a grouped convolution".into());
        ensure!(keeps_zeros, "its activation maps zero to other values".into());
        let name = &node.name;
        let mut found =
            PrunableChannels { layer: name.clone(), kernel: format!("{name}/kernel"), members: Vec::new() };
        found.members.push((found.kernel.clone(), 1));
        if use_bias {
            found.members.push((format!("{name}/bias"), 1));
        }
        self.follow(i, 1, &mut found)?;
        Ok(found)
    }

    /// Collects the readers of a layer's output up to the next matrix product; each channel appears `repeat` times
    /// there.
    fn follow(
        &self,
        i: usize,
        repeat: usize,
        found: &mut PrunableChannels,
    ) -> std::result::Result<(), String> {
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

    fn follow_into(
        &self,
        r: usize,
        repeat: usize,
        found: &mut PrunableChannels,
    ) -> std::result::Result<(), String> {
        let reader = &self.nodes[r];
        let name = &reader.name;
        let unfit = || Err(format!("its output goes through {name} ({})", reader.layer.class_name()));
        if self.nodes.iter().filter(|other| other.name == *name).count() > 1 {
            return unfit();
        }
        match reader.layer.layer().channels() {
            Ok(ChannelPruning::Mixes { groups: 1, .. }) => Ok(()),
            Ok(ChannelPruning::PerChannel { multiplier, zeroed, .. }) => {
                let repeat = repeat * multiplier;
                found.members.extend(zeroed.into_iter().map(|own| (format!("{name}/{own}"), repeat)));
                self.follow(r, repeat, found)
            }
            Ok(ChannelPruning::Passes) => self.follow(r, repeat, found),
            _ => unfit(),
        }
    }
}

impl Pruning {
    /// Returns the layers of an architecture whose channels are pruned.
    ///
    /// # Errors
    /// If a pattern matches no layer whose channels can be pruned; names the layer and the reason.
    pub(crate) fn channels_of(&self, architecture: &Architecture) -> Result<Vec<PrunableChannels>> {
        let all = architecture.channels();
        for pattern in &self.layers {
            let meant: Vec<_> = all.iter().filter(|(name, _)| means(pattern, name)).collect();
            if meant.iter().any(|(_, found)| found.is_ok()) {
                continue;
            }
            let able: Vec<&str> = all.iter().filter(|(_, f)| f.is_ok()).map(|(name, _)| *name).collect();
            let e = match meant.first() {
                Some((name, Err(why))) => {
                    err!(Unsupported, "channels of layer `{name}` cannot be pruned").because(why.clone())
                }
                _ => err!(Config, "pattern `{pattern}` matches no layer with channels"),
            };
            return Err(e.hint(match able.is_empty() {
                true => "prune weights instead of channels".to_string(),
                false => format!("choose from: {}", able.join(", ")),
            }));
        }
        let meant = |(name, found): (&str, std::result::Result<PrunableChannels, String>)| {
            found.ok().filter(|_| self.layers.iter().any(|pattern| means(pattern, name)))
        };
        Ok(all.into_iter().filter_map(meant).collect())
    }

    /// Returns the paths of the weights that get masks in channel pruning.
    pub(crate) fn channel_members(&self, architecture: &Architecture) -> Result<Vec<String>> {
        let all = self.channels_of(architecture)?;
        Ok(all.into_iter().flat_map(|c| c.members).map(|(path, _)| path).collect())
    }
}

/// Returns 0 for the channels (last dimension) with the smallest L1 norm, 1 for the rest; at least one stays. Source:
/// Li et al. 2017, "Pruning Filters for Efficient ConvNets".
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
    /// Recomputes and applies the masks of whole channels.
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

    /// Removes channels that are entirely zero: layers get fewer units or filters, following layers fewer inputs.
    /// Predictions are unchanged; the optimizer's state is reset. Returns the changed layers.
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
    /// If the model is not built, or has LoRA adapters or fake quantization.
    pub fn remove_channels(&mut self) -> Result<Vec<RemovedChannels>> {
        if !self.is_built() || self.has_adapters() || self.is_quantized() {
            let what = "removing channels requires a built model without LoRA adapters or fake quantization";
            return Err(
                Error::new(ErrorKind::Config, what).hint("call merge_lora() and strip_quantization() first")
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

    /// Returns which channels of a layer have non-zero weights; at least one.
    fn channels_left(&self, channels: &PrunableChannels) -> Result<Vec<bool>> {
        let count = self.weight(&channels.kernel)?.shape().dims().last().copied().unwrap_or(1);
        let mut stays = vec![false; count];
        for (path, inner) in &channels.members {
            // A depthwise kernel maps zeros to zero.
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

    /// Returns the structure and the weights without the removed channels.
    fn without(
        &self,
        kept: &BTreeMap<String, Vec<bool>>,
    ) -> Result<(Architecture, BTreeMap<String, Literal>)> {
        let mut architecture = (*self.architecture).clone();
        let mut values = BTreeMap::new();
        // For each layer's output: which features of the last dimension stay, if some are removed.
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

    /// Returns the reduced weights of a node, and which features of its output stay.
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
            // Counted from the last dimension.
            let dim = known.shape().rank().saturating_sub(dim);
            values.insert(path, take(&known, dim, stays)?);
            Ok(())
        };
        let all = self.rows.get(i).and_then(|row| row.output_shape.dims().last().copied());
        match node.layer.layer().channels() {
            Ok(ChannelPruning::Mixes { .. }) => {
                input.map_or(Ok(()), |stays| cut("kernel", 2, stays))?;
                if let Some(stays) = own {
                    cut("kernel", 1, stays)?;
                    cut("bias", 1, stays)?;
                }
                Ok(own.map(<[bool]>::to_vec))
            }
            Ok(ChannelPruning::PerChannel { weights, .. }) => {
                let Some(stays) = input else { return Ok(None) };
                let each = all.unwrap_or(stays.len()) / stays.len().max(1);
                let wide: Vec<bool> = stays.iter().flat_map(|s| std::iter::repeat_n(*s, each)).collect();
                for (name, dim) in weights {
                    cut(name, dim, if dim == 1 { &wide } else { stays })?;
                }
                Ok(Some(wide))
            }
            // A flattened output repeats the channels for each position.
            _ => {
                Ok(input
                    .map(|stays| stays.iter().copied().cycle().take(all.unwrap_or(stays.len())).collect()))
            }
        }
    }
}

/// Returns the layer with another number of units or filters.
fn resized(layer: LayerSpec, channels: usize) -> LayerSpec {
    match layer.layer().channels() {
        Ok(ChannelPruning::Mixes { argument, .. }) => layer.with_argument(argument, channels.into()),
        _ => layer,
    }
}

/// Selects the elements of a dimension that stay.
fn take(value: &Literal, dim: usize, stays: &[bool]) -> Result<Literal> {
    let dims = value.shape().to_vec();
    if dims.get(dim) != Some(&stays.len()) {
        return Err(err!(Bug, "cannot select {} channels of {}", stays.len(), value.ty()));
    }
    let inner: usize = dims[dim + 1..].iter().product::<usize>().max(1);
    let stay = |at: &usize| stays[at / inner % stays.len()];
    let all = value.as_slice::<f32>()?;
    let left: Vec<f32> = (0..all.len()).filter(stay).map(|at| all[at]).collect();
    let mut dims = dims;
    dims[dim] = stays.iter().filter(|stays| **stays).count();
    Literal::from_slice(dims, &left)
}
