//! What a layer knows of being trained for eight bits: which of its weights are rounded, where its values are, and by which ranges.
//! Which layers have such, the plan of a structure says.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_ir::Tensor;

/// How ranges of what layers give are found while a model trains.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum QuantizeRanges {
    /// The least and the greatest of each batch, followed slowly: TF-MOT's `MovingAverageQuantize`. The first batch sets them. Weights
    /// have the range that they have at the moment.
    MovingAverage {
        /// How much of the old range a step keeps. `None`: `min(0.999, (1 + n) / (10 + n))` in step n, as TensorFlow's
        /// `ExponentialMovingAverage` with `num_updates`: values of the first steps, which weights soon leave behind, are not
        /// kept for a thousand.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ema_decay: Option<f64>,
    },
    /// Steps are trained, of weights too: LSQ, Esser et al. 2020.
    Learned,
}

/// A layer's part in training for eight bits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quantizer {
    pub(crate) ranges: QuantizeRanges,
    /// Its weights that are rounded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) kernels: Vec<QuantizedKernel>,
    /// What is rounded where the layer reads it, by the place among its inputs: what the model is given, or a layer of floats gives.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inputs: Vec<Option<QuantizationPoint>>,
    /// Between the two kernels of a separable convolution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<QuantizationPoint>,
    /// Before an activation that is an operator of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inner: Option<QuantizationPoint>,
    /// What it gives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<QuantizationPoint>,
    /// What it gives for tokens: rows of a table. Kernels, inputs and output are then those of its calls on floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rows: Option<QuantizationPoint>,
    /// Whether it gives a constant, which has the range of its values.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_constant: bool,
    /// Values on the way, by name: those of a layer normalisation, which is several operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) within: Vec<(String, QuantizationPoint)>,
    /// The range of what its kernel reads, where its bias is rounded to whole steps of the sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sums: Option<QuantizationPoint>,
    /// The step from which a batch normalisation uses its moving statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) freeze_bn_delay: Option<u64>,
    /// Whether the layer stays in floats.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_float: bool,
    /// Those of layers within it, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) layers: BTreeMap<String, Quantizer>,
}

/// The quantiser of the layer that is called: how many parts the path has there, and at the layer of the model that it is within.
#[derive(Clone)]
pub(crate) struct ScopedQuantizer {
    pub(crate) depth: usize,
    pub(crate) of_node: usize,
    pub(crate) own: Arc<Quantizer>,
}

impl ScopedQuantizer {
    /// That of a layer within, at a path of so many parts.
    pub(crate) fn within(&self, name: &str, depth: usize) -> Option<ScopedQuantizer> {
        let own = self.own.layers.get(name).filter(|_| self.depth + 1 == depth)?;
        Some(ScopedQuantizer { depth, own: Arc::new(own.clone()), ..*self })
    }
}

/// A weight that is rounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuantizedKernel {
    pub(crate) name: String,
    /// The dimensions of the output's channels, from the last one (1) on; none: one step for all.
    pub(crate) channels: Vec<usize>,
    /// The batch normalisation that is folded into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) folded: Option<FoldedBatchNorm>,
}

/// A batch normalisation that is folded into the weights before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FoldedBatchNorm {
    pub(crate) layer: String,
    pub(crate) epsilon: f64,
    /// Whether it has a gamma.
    pub(crate) scale: bool,
    /// The kernel's dimensions of the channels, from the last one (1) on.
    pub(crate) channels: Vec<usize>,
}

/// A place where values are rounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum QuantizationPoint {
    /// The operator has its own levels.
    Fixed { scale: f64, zero_point: f64 },
    /// By the range that is found here, where it is `own`, together with those of other places: `conv2d/output`.
    Range {
        own: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        joint: Vec<String>,
    },
}

impl QuantizationPoint {
    pub(crate) const SIGMOID: QuantizationPoint =
        QuantizationPoint::Fixed { scale: 1.0 / 256.0, zero_point: -128.0 };
    pub(crate) const TANH: QuantizationPoint =
        QuantizationPoint::Fixed { scale: 1.0 / 128.0, zero_point: 0.0 };
}

impl Quantizer {
    pub(crate) fn new(ranges: QuantizeRanges) -> Quantizer {
        Quantizer {
            ranges,
            kernels: Vec::new(),
            inputs: Vec::new(),
            parts: None,
            inner: None,
            output: None,
            rows: None,
            is_constant: false,
            within: Vec::new(),
            sums: None,
            freeze_bn_delay: None,
            is_float: false,
            layers: BTreeMap::new(),
        }
    }

    /// That of a layer within it, by its path: `self_attention/query`.
    pub(crate) fn within_mut(&mut self, path: &str) -> &mut Quantizer {
        let ranges = self.ranges;
        path.split('/').fold(self, |own, name| {
            own.layers.entry(name.to_string()).or_insert_with(|| Quantizer::new(ranges))
        })
    }

    /// Its weights that are rounded and those of layers within it, by path.
    pub(crate) fn all_kernels(&self) -> Vec<String> {
        let own = self.kernels.iter().map(|kernel| kernel.name.clone());
        let inner = self.layers.iter().flat_map(|(name, inner)| {
            inner.all_kernels().into_iter().map(move |kernel| format!("{name}/{kernel}"))
        });
        own.chain(inner).collect()
    }

    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Quantizer::new(self.ranges)
    }

    /// Places that have a range of their own, by name.
    pub(crate) fn own_ranges(&self) -> Vec<String> {
        let inputs = self.inputs.iter().enumerate().map(|(k, slot)| (input_name(k), slot.as_ref()));
        let others =
            [("parts", &self.parts), ("inner", &self.inner), ("output", &self.output), ("rows", &self.rows)];
        let others = others.into_iter().map(|(name, slot)| (name.to_string(), slot.as_ref()));
        let others = others.chain(self.within.iter().map(|(name, slot)| (name.clone(), Some(slot))));
        let own = inputs
            .chain(others)
            .filter(|(_, slot)| matches!(slot, Some(QuantizationPoint::Range { own: true, .. })));
        let inner = self.layers.iter().flat_map(|(layer, inner)| {
            inner.own_ranges().into_iter().map(move |place| format!("{layer}/{place}"))
        });
        own.map(|(name, _)| name).chain(inner).collect()
    }

    /// What a call on these inputs has of it, where that is not all: tokens are looked up, in a table whose rows are rounded as what
    /// the layer gives, floats are multiplied with one of weights.
    pub(crate) fn of_call(&self, inputs: &[Tensor]) -> Option<Quantizer> {
        let rows = self.rows.clone()?;
        Some(match inputs.iter().all(|x| x.dtype().is_int()) {
            true => Quantizer { rows: Some(rows), ..Quantizer::new(self.ranges) },
            false => Quantizer { rows: None, ..self.clone() },
        })
    }
}

/// What the range of an input is called among the layer's weights.
pub(crate) fn input_name(k: usize) -> String {
    if k == 0 { "input".into() } else { format!("input_{k}") }
}
