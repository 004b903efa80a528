//! Models that are trained for eight bits: how they become such, and what their ranges are in the end.

use crate::layer::Precision;
use crate::layer::lowering::LayerLowering;
use crate::layer::quantizer::{QuantizeRanges, Quantizer};
use crate::model::Model;
use crate::model::compile::Compile;
use crate::model::quantize_options::Quantize;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result};

/// The range of values at a place of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedRange {
    /// The layer's name.
    pub layer: String,
    /// `output`; `rows`: what a table gives for tokens; `inner`: before an activation that is an operator of its own; `parts`: between the
    /// kernels of a separable convolution; `input`, `input_1`, …: what it reads. Within layers of several, by path:
    /// `self_attention/query/output`.
    pub place: String,
    /// The least and the greatest value.
    pub range: (f32, f32),
}

/// What a model that was trained for eight bits knows of its integers.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedRanges {
    /// Ranges of values.
    pub places: Vec<TrainedRange>,
    /// Steps of weights that were trained, by layer and weight: one, or one for each channel.
    pub steps: BTreeMap<(String, String), Vec<f32>>,
    /// Layers that stay in floats.
    pub floats: Vec<String>,
    /// Whether convolutions have a step for each channel.
    pub per_channel: bool,
}

impl Model {
    /// Trains for eight bits from now on: layers get places to round at. Weights stay; what the optimizer had gathered is given up.
    /// [`Compile::quantize`] does the same.
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
    /// When the model is not built, an argument makes no sense, or a layer has no form in eight bits: names it.
    pub fn enable_quantization(&mut self, options: &Quantize) -> Result<()> {
        if !self.is_built() {
            return Err(Error::new(ErrorKind::Config, "the model has no weights yet")
                .hint("build it first: model.build(&[…]), or name quantize in compile"));
        }
        let architecture = self.architecture().without_quantizers().quantized(options)?;
        if architecture.to_json() == self.architecture().to_json() {
            return Ok(());
        }
        self.restructure(architecture, BTreeMap::new())
    }

    /// Makes it a plain model with the weights that it has, unrounded.
    ///
    /// # Errors
    /// As [`Model::compile`].
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

    /// Whether the model is trained for eight bits.
    pub fn is_quantized(&self) -> bool {
        self.architecture().is_quantized()
    }

    /// An error for what cannot be trained for eight bits.
    pub(crate) fn check_quantize(&self, config: &Compile) -> Result<()> {
        let Some(quantize) = &config.quantize else { return Ok(()) };
        quantize.check()?;
        let refuse = |what: &str, hint: &str| Err(Error::new(ErrorKind::Unsupported, what).hint(hint));
        if config.train_step.is_some() {
            return refuse(
                "a step of one's own is not trained for eight bits",
                "leave quantize or train_step out",
            );
        }
        if config.pruning.as_ref().is_some_and(|pruning| pruning.channels) {
            return refuse(
                "channels are not removed of what is trained for eight bits",
                "prune channels first, then train the smaller model with quantize",
            );
        }
        if config.precision != Precision::Float32 {
            return refuse(
                "training for eight bits computes in f32, so that the int8 file gives the same",
                "set precision to float32",
            );
        }
        Ok(())
    }

    /// Gives layers their places to round at, where the model was compiled so and is built.
    pub(crate) fn requantize(&mut self) -> Result<()> {
        match self.compile_config().and_then(|c| c.quantize.clone()) {
            Some(quantize) if self.is_built() => self.enable_quantization(&quantize),
            _ => Ok(()),
        }
    }

    /// What was found of the integers while training; `None` of a model that was not trained for eight bits.
    ///
    /// # Errors
    /// When a range was never found, because the model has not trained since: names the layer.
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
            // A layer that is used twice has its ranges once.
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
        // Scores of which a mask hides some have no step that trains.
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

/// Of a step that training has brought to 0 or below, or that never began.
fn no_step(layer: &str, place: &str, step: f32) -> Error {
    if step == 0.0 {
        return untrained(layer);
    }
    Error::new(ErrorKind::Numeric, format!("its trained step of {place} is {step:e}, which is none"))
        .at(format!("layer {layer}"))
        .because("the last update took more from it than it was")
        .hint("train with a smaller learning_rate: Adam moves small steps as much as large weights")
}

fn untrained(layer: &str) -> Error {
    Error::new(ErrorKind::Config, "its ranges were never found")
        .at(format!("layer {layer}"))
        .because("the model was made for training in eight bits and has not trained since")
        .hint("train it for some steps, or strip_quantization() and calibrate")
}
