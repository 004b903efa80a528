//! Weights of a layer trace: bound values, recorded specs, updates, adapters.

use crate::layer::adapter::Adapters;
use crate::layer::initializer::Initializer;
use std::sync::Arc;
use systole_ir::DType;
use systole_runtime::Params;

/// Specification of a weight that a layer requested.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// Path: `dense/kernel`.
    pub path: String,
    /// Shape of the weight.
    pub shape: Vec<usize>,
    /// Element type: f32, except for quantized weights.
    pub dtype: DType,
    /// Initializer.
    pub initializer: Initializer,
    /// Whether the optimizer updates it.
    pub trainable: bool,
}

/// Weights that layers request during a trace.
#[derive(Default)]
pub(crate) struct TraceWeights {
    /// Bound values by path.
    pub(crate) bound: Params,
    /// Specs requested while collecting, in order.
    pub(crate) specs: Vec<WeightSpec>,
    /// Whether unknown weights are recorded.
    pub(crate) collecting: bool,
    /// New values of weights updated by the training step itself, not by the optimizer.
    pub(crate) updates: Params,
    /// Whether the layer's weights are frozen.
    pub(crate) frozen: bool,
    /// Adapters of the current layer, and the number of path components before it.
    pub(crate) adapters: Option<(usize, Arc<Adapters>)>,
}
