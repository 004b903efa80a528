//! Text generation of any length with a language model.
//!
//! When the context is full, generation restarts from the last half of it.

use crate::generate::decoder::Decoder;
use crate::generate::sampling::Sampling;
use systole_ir::Result;

/// Generates tokens, each sampled from the model's scores after all earlier tokens.
///
/// Only the last tokens of a prompt longer than the context are used. When the context is full, the last half of it is
/// fed again; this slower step occurs once per half context.
///
/// ```
/// use systole_ir::{DType::I32, TensorType};
/// use systole_nn::{applications::Gpt2, TextGenerator, Model, Sampling};
/// let small = Gpt2 { vocabulary_size: 50, num_layers: 1, num_heads: 2, hidden_dim: 8, intermediate_dim: 16,
///                    max_sequence_length: 12, ..Default::default() };
/// let mut model = Model::new(small.architecture()?);
/// model.build(&[TensorType::new(I32, [12])])?;
/// let mut text = TextGenerator::new(model.decoder()?, &[3, 1, 4], Sampling { seed: 7, ..Sampling::default() })?;
/// let tokens = (0..20).map(|_| text.next_token()).collect::<Result<Vec<u32>, _>>()?;
/// assert!(tokens.iter().all(|token| *token < 50));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct TextGenerator {
    decoder: Decoder,
    sampling: Sampling,
    /// Tokens fed to the decoder since its last start.
    window: Vec<u32>,
    scores: Vec<f32>,
    /// The last sampled token, not fed yet.
    waiting: Option<u32>,
    drawn: u64,
    /// Tokens that are never sampled.
    ruled_out: Vec<usize>,
}

impl TextGenerator {
    /// Creates a generator and feeds the prompt, which must have at least one token.
    ///
    /// # Errors
    /// If an argument of `sampling` is invalid, the prompt is empty, or one of its tokens is outside the vocabulary.
    pub fn new(mut decoder: Decoder, prompt: &[u32], sampling: Sampling) -> Result<TextGenerator> {
        sampling.check()?;
        decoder.restart();
        let from = prompt.len().saturating_sub(decoder.context());
        let window = prompt.get(from..).unwrap_or_default().to_vec();
        let scores = decoder.feed(&window)?;
        Ok(TextGenerator {
            decoder,
            sampling,
            window,
            scores,
            waiting: None,
            drawn: 0,
            ruled_out: Vec::new(),
        })
    }

    /// Samples only tokens for which `is_so` is true, such as those with a text.
    pub fn only(mut self, is_so: impl Fn(u32) -> bool) -> TextGenerator {
        self.ruled_out = (0..self.decoder.vocabulary_size()).filter(|id| !is_so(*id as u32)).collect();
        self
    }

    /// Generates the next token of the text.
    ///
    /// # Errors
    /// If the model's scores are NaN.
    pub fn next_token(&mut self) -> Result<u32> {
        if let Some(token) = self.waiting.take() {
            self.feed(token)?;
        }
        for id in &self.ruled_out {
            if let Some(score) = self.scores.get_mut(*id) {
                *score = f32::NEG_INFINITY;
            }
        }
        let token = self.sampling.pick(&self.scores, self.drawn)?;
        self.drawn += 1;
        self.waiting = Some(token);
        Ok(token)
    }

    fn feed(&mut self, token: u32) -> Result<()> {
        let is_full = self.decoder.position() == self.decoder.context();
        self.window.push(token);
        if !is_full {
            self.scores = self.decoder.feed(&[token])?;
            return Ok(());
        }
        let half = (self.decoder.context() / 2).max(1);
        self.window = self.window.split_off(self.window.len() - half);
        self.decoder.restart();
        self.scores = self.decoder.feed(&self.window)?;
        Ok(())
    }
}
