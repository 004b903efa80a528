//! A text that a language model goes on with, of any length: where the model can look back no further, it starts anew from the
//! last half of what it saw.

use crate::generate::decoder::Decoder;
use crate::generate::sampling::Sampling;
use systole_ir::Result;

/// Tokens one after the other, each drawn from the scores that the model gives after all before it.
///
/// A prompt that is longer than the model's context counts by its last tokens. When the context is full, the model is fed the last
/// half of it anew: a step that takes longer than others, once for each half context.
///
/// ```
/// use systole_ir::{DType::I32, TensorType};
/// use systole_nn::{applications::Gpt2, Generation, Model, Sampling};
/// let small = Gpt2 { vocabulary_size: 50, num_layers: 1, num_heads: 2, hidden_dim: 8, intermediate_dim: 16,
///                    max_sequence_length: 12, ..Default::default() };
/// let mut model = Model::new(small.architecture()?);
/// model.build(&[TensorType::new(I32, [12])])?;
/// let mut text = Generation::new(model.decoder()?, &[3, 1, 4], Sampling { seed: 7, ..Sampling::default() })?;
/// let tokens = (0..20).map(|_| text.next_token()).collect::<Result<Vec<u32>, _>>()?;
/// assert!(tokens.iter().all(|token| *token < 50));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct TextGenerator {
    decoder: Decoder,
    sampling: Sampling,
    /// What the decoder was fed since it last started.
    window: Vec<u32>,
    scores: Vec<f32>,
    /// The token that was drawn last and is not fed yet.
    waiting: Option<u32>,
    drawn: u64,
    /// Tokens that are never drawn.
    ruled_out: Vec<usize>,
}

impl TextGenerator {
    /// Reads the prompt, of which there must be at least one token.
    ///
    /// # Errors
    /// When a number of `sampling` makes no sense, the prompt is empty, or one of its tokens is beyond the vocabulary.
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

    /// Never draws tokens that are not so: those that stand for no text.
    pub fn only(mut self, is_so: impl Fn(u32) -> bool) -> TextGenerator {
        self.ruled_out = (0..self.decoder.vocabulary_size()).filter(|id| !is_so(*id as u32)).collect();
        self
    }

    /// The next token.
    ///
    /// # Errors
    /// When the model's scores are no numbers.
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
