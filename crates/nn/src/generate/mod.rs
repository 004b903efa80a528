//! Text from a language model, token by token.

pub(crate) mod decoder;
pub(crate) mod sampling;
pub(crate) mod text_generator;
