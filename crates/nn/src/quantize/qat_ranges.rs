//! Enables and removes quantization-aware training of a model, and returns the trained ranges.

use crate::layer::Precision;
use crate::layer::lowering::LayerLowering;
use crate::layer::quantizer::{QuantizeRanges, Quantizer};
use crate::model::Model;
use crate::model::compile::Compile;
use crate::model::quantize_options::Quantize;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result, err};

/// Value range of a tensor of a layer, learned by quantization-aware training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedRange {
    /// Layer name.
    pub layer: String,
    /// Tensor within the layer: `output`; `rows`: embedding rows looked up for tokens; `inner`: before an activation
    /// that is an op of its own; `parts`: between the kernels of a separable convolution; `input`, `input_1`, …:
    /// inputs. Inside composite layers a path: `self_attention/query/output`.
    pub place: String,
    /// Minimum and maximum value.
    pub range: (f32, f32),
}

/// Quantization parameters found by quantization-aware training.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedRanges {
    /// Ranges of tensors.
    pub places: Vec<TrainedRange>,
    /// Learned step sizes of weights, by layer and weight: one per tensor, or one per channel.
    pub steps: BTreeMap<(String, String), Vec<f32>>,
    /// Layers kept in float.
    pub floats: Vec<String>,
    /// Whether convolution kernels have a step size per channel.
    pub per_channel: bool,
}

impl Model {
    /// Turns on quantization-aware training: layers get fake-quantization points. Weights are kept; the optimizer's
    /// state is reset. [`Compile::quantize`] does the same.
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::dense, Model, Quantize};
    /// let mut model = Model::sequential([dense(3).activation("softmax")]);
    /// model.build(&[TensorType::new(F32, [4])])?;
    /// model.enable_quantization(&Quantize::default())?;
    /// assert!(model.weights().iter().any(|(path, _)| *path == "dense/inner_max"));
    /// model.strip_quantization()?;
    /// assert_eq!(model.weights().len(), 2);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the model is not built, an argument is invalid, or a layer has no int8 version; names the layer.
    pub fn enable_quantization(&mut self, options: &Quantize) -> Result<()> {
        if !self.is_built() {
            return Err(err!(Config, "the model has no weights yet")
                .hint("build the model first with model.build(&[…]), or set quantize in compile"));
        }
        let architecture = self.architecture().without_quantizers().quantized(options)?;
        if architecture.to_json() == self.architecture().to_json() {
            return Ok(());
        }
        self.restructure(architecture, BTreeMap::new())
    }

    /// Removes fake quantization; keeps the unrounded weights.
    ///
    /// # Errors
    /// See [`Model::compile`].
    pub fn strip_quantization(&mut self) -> Result<()> {
        if !self.architecture().is_quantized() {
            return Ok(());
        }
        let plain = self.architecture().without_quantizers();
        if let Some(compiled) = &mut self.compiled {
            compiled.config.quantize = None;
        }
        match self.is_built() {
            true => self.restructure(plain, BTreeMap::new()),
            false => {
                self.architecture = std::sync::Arc::new(plain);
                self.recompile()
            }
        }
    }

    /// Whether the model is trained with fake quantization.
    pub fn is_quantized(&self) -> bool {
        self.architecture().is_quantized()
    }

    /// Returns an error for settings that quantization-aware training does not support.
    pub(crate) fn check_quantize(&self, config: &Compile) -> Result<()> {
        let Some(quantize) = &config.quantize else { return Ok(()) };
        quantize.check()?;
        let refuse = |what: &str, hint: &str| Err(Error::new(ErrorKind::Unsupported, what).hint(hint));
        if config.train_step.is_some() {
            return refuse(
                "quantize and train_step cannot be combined: a custom training step has no fake quantization",
                "remove quantize or train_step",
            );
        }
        if config.pruning.as_ref().is_some_and(|pruning| pruning.channels) {
            return refuse(
                "quantize and channel pruning cannot be combined",
                "prune channels first, then train the smaller model with quantize",
            );
        }
        if config.precision != Precision::Float32 {
            return refuse(
                "quantize requires float32: training must compute the same values as the int8 file",
                "set precision to float32",
            );
        }
        Ok(())
    }

    /// Adds fake quantization to the layers if the model is built and compiled with it.
    pub(crate) fn requantize(&mut self) -> Result<()> {
        match self.compile_config().and_then(|c| c.quantize.clone()) {
            Some(quantize) if self.is_built() => self.enable_quantization(&quantize),
            _ => Ok(()),
        }
    }

    /// Returns the trained quantization parameters; `None` if the model was not trained with fake quantization.
    ///
    /// # Errors
    /// If a range is not known because the model has not been trained since; names the layer.
    pub fn trained_ranges(&self) -> Result<Option<TrainedRanges>> {
        if !self.is_quantized() {
            return Ok(None);
        }
        let mut all = TrainedRanges {
            places: Vec::new(),
            steps: BTreeMap::new(),
            floats: Vec::new(),
            per_channel: true,
        };
        let nodes = &self.architecture().nodes;
        for (i, node) in nodes.iter().enumerate() {
            // A layer that is used twice has one set of ranges.
            let is_known = nodes[..i].iter().any(|before| before.name == node.name);
            let Some(own) = node.layer.quantizer().filter(|_| !is_known) else { continue };
            if own.is_float {
                all.floats.push(node.name.clone());
            }
            let has_one_step = matches!(
                node.layer.layer().lowering(),
                Ok(LayerLowering::Dense { .. } | LayerLowering::ReversibleEmbedding { .. })
            );
            if own.kernels.iter().any(|k| k.channels.is_empty()) && !has_one_step {
                all.per_channel = false;
            }
            for place in own.own_ranges() {
                let range = self.range_of(&node.name, &place, own)?;
                all.places.push(TrainedRange { layer: node.name.clone(), place, range });
            }
            for kernel in own.all_kernels().into_iter().filter(|_| own.ranges == QuantizeRanges::Learned) {
                let steps = self.weight(&format!("{}/{kernel}_step", node.name))?.to_f32s();
                if let Some(step) = steps.iter().find(|step| **step <= 0.0) {
                    return Err(no_step(&node.name, &kernel, *step));
                }
                all.steps.insert((node.name.clone(), kernel), steps);
            }
        }
        Ok(Some(all))
    }

    fn range_of(&self, layer: &str, place: &str, own: &Quantizer) -> Result<(f32, f32)> {
        let scalar = |what: &str| -> Result<f32> {
            Ok(self.weight(&format!("{layer}/{place}_{what}"))?.to_f32s().first().copied().unwrap_or(0.0))
        };
        // Masked attention scores have no trainable step size: they use moving averages.
        let follows = self.weight(&format!("{layer}/{place}_min")).is_ok();
        let (low, high) = match own.ranges {
            QuantizeRanges::MovingAverage { .. } => (scalar("min")?, scalar("max")?),
            QuantizeRanges::Learned if follows => (scalar("min")?, scalar("max")?),
            QuantizeRanges::Learned => {
                let (step, zero) = (scalar("step")?, scalar("zero_point")?);
                if step < 0.0 {
                    return Err(no_step(layer, place, step));
                }
                ((-128.0 - zero) * step, (127.0 - zero) * step)
            }
        };
        if low < high { Ok((low, high)) } else { Err(untrained(layer)) }
    }
}

/// Error for a learned step size that became 0 or negative, or was never initialized.
fn no_step(layer: &str, place: &str, step: f32) -> Error {
    if step == 0.0 {
        return untrained(layer);
    }
    err!(Numeric, "the learned step size of {place} is {step:e}, expected a value above 0")
        .at(format!("layer {layer}"))
        .because("the last update was larger than the step size")
        .hint("train with a smaller learning_rate: Adam moves small step sizes as much as large weights")
}

fn untrained(layer: &str) -> Error {
    err!(Config, "quantization-aware training found no ranges for the layer")
        .at(format!("layer {layer}"))
        .because("the model has not been trained since quantization was enabled")
        .hint("train the model for a few steps, or call strip_quantization() and calibrate")
}
