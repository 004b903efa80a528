//! Text from a language model, token by token.

pub(crate) mod decoder;
pub(crate) mod generation;
pub(crate) mod sampling;
