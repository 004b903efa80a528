//! Text generation with language models: incremental decoding and sampling.

pub(crate) mod decoder;
pub(crate) mod sampling;
pub(crate) mod text_generator;
