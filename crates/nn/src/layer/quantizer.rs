//! Per-layer settings of quantization-aware training: quantized weights, quantization points, range estimation.
//!
//! The crate-level `quantize` module decides which layers get a [`Quantizer`].

use crate::json::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_ir::Tensor;

/// How quantization ranges of activations are estimated during training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum QuantizeRanges {
    /// Moving averages of each batch's minimum and maximum, as TF-MOT's `MovingAverageQuantize`. The first batch
    /// initializes them. Weights use their current range.
    MovingAverage {
        /// Fraction of the old range kept per step. `None`: `min(0.999, (1 + n) / (10 + n))` in step n, as TensorFlow's
        /// `ExponentialMovingAverage` with `num_updates`, so that early values are forgotten quickly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ema_decay: Option<f64>,
    },
    /// Scales are trainable, for weights too: LSQ, Esser et al. 2020.
    Learned,
}

/// Quantization-aware training settings of one layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, skip_serializing_none)]
pub(crate) struct Quantizer {
    pub(crate) ranges: QuantizeRanges,
    /// Quantized weights of the layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) kernels: Vec<QuantizedKernel>,
    /// Quantization points by input index, for inputs that are model inputs or outputs of float layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inputs: Vec<Option<QuantizationPoint>>,
    /// Point between the two kernels of a separable convolution.
    pub(crate) parts: Option<QuantizationPoint>,
    /// Point before an activation that is a separate operator.
    pub(crate) inner: Option<QuantizationPoint>,
    /// Point of the output.
    pub(crate) output: Option<QuantizationPoint>,
    /// Point of the output for token inputs (table rows). Kernels, inputs and output then apply to calls on floats.
    pub(crate) rows: Option<QuantizationPoint>,
    /// Whether the output is a constant, quantized by the range of its values.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_constant: bool,
    /// Points of intermediate values by name, for layers that become several operators, such as layer normalization.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) within: Vec<(String, QuantizationPoint)>,
    /// Range of the kernel's input, if the bias is rounded to the accumulator's scale.
    pub(crate) sums: Option<QuantizationPoint>,
    /// Step from which batch normalization uses its moving statistics.
    pub(crate) freeze_bn_delay: Option<u64>,
    /// Whether the layer stays in float.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_float: bool,
    /// Quantizers of sublayers by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) layers: BTreeMap<String, Quantizer>,
}

/// Quantizer of the current layer, with the path depths of that layer and of the enclosing model node.
#[derive(Clone)]
pub(crate) struct ScopedQuantizer {
    pub(crate) depth: usize,
    pub(crate) of_node: usize,
    pub(crate) own: Arc<Quantizer>,
}

impl ScopedQuantizer {
    /// Returns the quantizer of the sublayer `name` at path depth `depth`.
    pub(crate) fn within(&self, name: &str, depth: usize) -> Option<ScopedQuantizer> {
        let own = self.own.layers.get(name).filter(|_| self.depth + 1 == depth)?;
        Some(ScopedQuantizer { depth, own: Arc::new(own.clone()), ..*self })
    }
}

/// A quantized weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuantizedKernel {
    pub(crate) name: String,
    /// Dimensions of the output channels, counted from the last (1). Empty: one scale for the whole weight.
    pub(crate) channels: Vec<usize>,
    /// Batch normalization folded into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) folded: Option<FoldedBatchNorm>,
}

/// A batch normalization folded into the preceding kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FoldedBatchNorm {
    pub(crate) layer: String,
    pub(crate) epsilon: f64,
    /// Whether it has a gamma.
    pub(crate) scale: bool,
    /// The kernel's channel dimensions, counted from the last (1).
    pub(crate) channels: Vec<usize>,
}

/// A point in the graph where values are quantized.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum QuantizationPoint {
    /// Fixed quantization parameters prescribed by the operator.
    Fixed { scale: f64, zero_point: f64 },
    /// By an estimated range: the range tracked here, if `own`, joined with those of other points such as
    /// `conv2d/output`.
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

    /// Returns the quantizer of a sublayer by path: `self_attention/query`.
    pub(crate) fn within_mut(&mut self, path: &str) -> &mut Quantizer {
        let ranges = self.ranges;
        path.split('/').fold(self, |own, name| {
            own.layers.entry(name.to_string()).or_insert_with(|| Quantizer::new(ranges))
        })
    }

    /// Returns the paths of all quantized weights, including sublayers.
    pub(crate) fn all_kernels(&self) -> Vec<String> {
        let own = self.kernels.iter().map(|kernel| kernel.name.clone());
        let inner = self.layers.iter().flat_map(|(name, inner)| {
            inner.all_kernels().into_iter().map(move |kernel| format!("{name}/{kernel}"))
        });
        own.chain(inner).collect()
    }

    /// Whether it has no settings.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Quantizer::new(self.ranges)
    }

    /// Returns the names of points that track their own range.
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

    /// Returns the subset of settings for a call on these inputs, if it differs: token ids are looked up in a table
    /// quantized like the output, floats are multiplied with quantized weights.
    pub(crate) fn of_call(&self, inputs: &[Tensor]) -> Option<Quantizer> {
        let rows = self.rows.clone()?;
        Some(match inputs.iter().all(|x| x.dtype().is_int()) {
            true => Quantizer { rows: Some(rows), ..Quantizer::new(self.ranges) },
            false => Quantizer { rows: None, ..self.clone() },
        })
    }
}

/// Returns the name of an input's range among the layer's weights.
pub(crate) fn input_name(k: usize) -> String {
    if k == 0 { "input".into() } else { format!("input_{k}") }
}
