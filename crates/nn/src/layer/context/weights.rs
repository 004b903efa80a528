//! Weights of a trace: bound, recorded, updated, adapted.

use crate::layer::adapter::Adapters;
use crate::layer::initializer::Initializer;
use std::sync::Arc;
use systole_ir::DType;
use systole_runtime::Params;

/// A weight that a layer asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightSpec {
    /// `dense/kernel`.
    pub path: String,
    /// Shape.
    pub shape: Vec<usize>,
    /// Element type: f32, but for weights that are packed.
    pub dtype: DType,
    /// How it starts.
    pub initializer: Initializer,
    /// Whether the optimizer changes it.
    pub trainable: bool,
}

/// The weights that layers ask for.
#[derive(Default)]
pub(crate) struct TraceWeights {
    /// By their paths.
    pub(crate) bound: Params,
    /// What was asked for while collecting, in order.
    pub(crate) specs: Vec<WeightSpec>,
    /// Whether unknown weights are recorded.
    pub(crate) collecting: bool,
    /// New values of weights that a training step changes by itself.
    pub(crate) updates: Params,
    /// Whether the layer's weights do not train.
    pub(crate) frozen: bool,
    /// The adapters of the layer that is called, and how many parts of the path stand before it.
    pub(crate) adapters: Option<(usize, Arc<Adapters>)>,
}
