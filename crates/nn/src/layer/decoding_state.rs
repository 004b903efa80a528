//! Incremental decoding state that layers keep between calls: KV caches of attention, states of recurrent layers.

use systole_ir::{DType, Tensor, TensorType};
use systole_runtime::Params;

/// State of a model call that continues the previous one.
pub(crate) struct DecodingState {
    /// `i32[]`: number of tokens before those of this call.
    position: Tensor,
    /// Context length: maximum number of tokens over all calls.
    context: usize,
    kept: Params,
    new: Params,
}

impl DecodingState {
    /// Creates the state of a call; `kept` is what the previous call kept, empty for the first.
    pub(crate) fn new(position: &Tensor, context: usize, kept: Params) -> DecodingState {
        DecodingState { position: position.clone(), context, kept, new: Params::new() }
    }

    /// `i32[]`: number of tokens before those of this call.
    pub(crate) fn position(&self) -> Tensor {
        self.position.clone()
    }

    /// Context length: maximum number of tokens over all calls.
    pub(crate) fn context(&self) -> usize {
        self.context
    }

    /// `→ T[shape]`: the value kept under this path, initially zeros.
    pub(crate) fn kept(&self, path: &str, dtype: DType, shape: &[usize]) -> Tensor {
        let zeros = || self.position.builder().full(&TensorType::new(dtype, shape), 0.0);
        self.kept.get(path).cloned().unwrap_or_else(zeros)
    }

    /// Keeps a value for the next call.
    pub(crate) fn keep(&mut self, path: String, value: &Tensor) {
        self.new.insert(path, value.clone());
    }

    /// Returns all values that this call keeps.
    pub(crate) fn into_new(self) -> Params {
        self.new
    }
}
