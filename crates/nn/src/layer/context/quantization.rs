//! Training for eight bits, of a trace.

use crate::layer::fixed_point::ScaledSum;
use crate::layer::quantizer::ScopedQuantizer;
use systole_ir::{Tensor, ValueId};

/// How the layer that is called is trained for eight bits, and what is known of values.
#[derive(Default)]
pub(crate) struct TraceQuantization {
    /// The quantiser of the layer.
    pub(crate) quantizer: Option<ScopedQuantizer>,
    /// `f32[]` or one for each channel: the steps of the kernel that was asked for last; and whether that is a dense layer.
    pub(crate) weight_steps: Option<(Tensor, bool)>,
    /// `f32[]`: the steps that values are whole numbers of.
    pub(crate) levels: Vec<(ValueId, Tensor)>,
    /// How values that are not rounded yet are made of whole numbers.
    pub(crate) made: Vec<(ValueId, ScaledSum)>,
}
