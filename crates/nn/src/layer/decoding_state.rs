//! What layers keep from one call to the next while a model generates: keys and values of attention, states of recurrent layers.

use systole_ir::{DType, Tensor, TensorType};
use systole_runtime::Params;

/// A call of a model that goes on where the one before it ended.
pub(crate) struct DecodingState {
    /// `i32[]`: how many tokens came before those of this call.
    position: Tensor,
    /// Most tokens that there may be, all calls together.
    context: usize,
    kept: Params,
    new: Params,
}

impl DecodingState {
    /// `kept` is what the call before gave; nothing before the first one.
    pub(crate) fn new(position: &Tensor, context: usize, kept: Params) -> DecodingState {
        DecodingState { position: position.clone(), context, kept, new: Params::new() }
    }

    /// `i32[]`: how many tokens came before those of this call.
    pub(crate) fn position(&self) -> Tensor {
        self.position.clone()
    }

    /// Most tokens that there may be, all calls together.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// `→ T[shape]`: what was kept under this path, at first zeros.
    pub(crate) fn kept(&self, path: &str, dtype: DType, shape: &[usize]) -> Tensor {
        let zeros = || self.position.builder().full(&TensorType::new(dtype, shape), 0.0);
        self.kept.get(path).cloned().unwrap_or_else(zeros)
    }

    /// Keeps a value for the next call.
    pub(crate) fn keep(&mut self, path: String, value: &Tensor) {
        self.new.insert(path, value.clone());
    }

    /// All that this call keeps.
    pub(crate) fn into_new(self) -> Params {
        self.new
    }
}
