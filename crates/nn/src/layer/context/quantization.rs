//! Quantization-aware training state during a layer trace.

use crate::layer::fixed_point::ScaledSum;
use crate::layer::quantizer::ScopedQuantizer;
use systole_ir::{Tensor, ValueId};

/// Quantizer of the current layer, and quantization scales of known values.
#[derive(Default)]
pub(crate) struct TraceQuantization {
    /// Quantizer of the current layer.
    pub(crate) quantizer: Option<ScopedQuantizer>,
    /// Scale of the most recently requested kernel (`f32[]` or one per channel), and whether it belongs to a dense
    /// layer.
    pub(crate) weight_steps: Option<(Tensor, bool)>,
    /// Scales (`f32[]`) of values that are integer multiples of them.
    pub(crate) levels: Vec<(ValueId, Tensor)>,
    /// Integer expressions of values that are not yet rounded.
    pub(crate) made: Vec<(ValueId, ScaledSum)>,
}
