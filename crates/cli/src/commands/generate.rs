//! `systole generate`: generates text from a prompt with a language model.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::config_of;
use crate::models::imported;
use crate::models::model_data::tokenizer_of;
use crate::models::run_directory;
use crate::render::screen::{Screen, counted, note};
use clap::Args;
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use systole_datasets::Tokenizer;
use systole_ir::{Error, Result, ResultExt, err};
use systole_nn::{Decoder, Model, Sampling, TextGenerator};

#[derive(Args)]
pub(crate) struct GenerateArgs {
    /// Language model file, or run folder (its best model)
    model: String,
    /// Continue this prompt; `-` reads standard input [default: a new line]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Generate at most N tokens
    ///
    /// Generation stops earlier at an end-of-text token.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    max_tokens: u64,
    /// Set the sampling temperature; 0 selects the most likely token (greedy)
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    temperature: f64,
    /// Sample only from the K most likely tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample only from the smallest token set with total probability P (nucleus)
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Set the random seed; the same seed generates the same text
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Use this tokenizer if the model contains none
    ///
    /// A tokenizer.json, a vocab.json next to merges.txt, or a folder with these files.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
}

impl RunCommand for GenerateArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let sampling =
            Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, seed: self.seed };
        sampling.check().map_err(CommandError::usage)?;
        let file = run_directory::model_file(&self.model)?;
        let model = imported::load_to_predict(&file)?;
        let decoder = model.decoder().at(|| file.clone())?;
        let tokenizer = tokenizer(&self, &model, &file)?;
        let prompt = prompt(&self)?;
        let tokens = tokenizer.encode(&prompt).at(|| "--prompt".into())?;
        tell_of_length(tokens.len(), &decoder);
        let began = Instant::now();
        let mut text = TextGenerator::new(decoder, &tokens, sampling)?.only(|id| tokenizer.has(id));
        let read = began.elapsed().as_secs_f64();
        screen.piece(&prompt);
        let mut told = Utf8Stream::default();
        let (mut made, mut ended) = (Vec::new(), false);
        let began = Instant::now();
        while (made.len() as u64) < self.max_tokens {
            let token = text.next_token()?;
            if tokenizer.end_of_text() == Some(token) {
                ended = true;
                break;
            }
            made.push(token);
            screen.piece(&told.whole(&tokenizer.decode(&[token])));
        }
        let seconds = began.elapsed().as_secs_f64();
        screen.piece(&told.rest());
        screen.piece("\n");
        let rate = made.len() as f64 / seconds.max(1e-9);
        if !screen.quiet {
            note(&format!(
                "{} in {seconds:.2} s, {rate:.1} tokens/s; the prompt's {} took {read:.2} s",
                counted(made.len() as u64, "token"),
                counted(tokens.len() as u64, "token"),
            ));
        }
        if screen.json {
            screen.object(&json!({
                "model_file": file, "prompt": prompt, "text": told.text, "tokens": made, "prompt_tokens": tokens.len(),
                "ended": ended, "seconds": seconds, "tokens_per_second": rate,
            }));
        }
        Ok(0)
    }

    fn only_prints(&self) -> bool {
        true
    }
}

/// Returns the prompt; an empty prompt becomes a line break, because at least one token is needed.
fn prompt(args: &GenerateArgs) -> Result<String> {
    let mut text = args.prompt.clone().unwrap_or_default();
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).map_err(|e| {
            Error::io("cannot read", "standard input", e)
                .hint_command("provide UTF-8 text, or pass the prompt with --prompt")
        })?;
    }
    Ok(if text.is_empty() { "\n".into() } else { text })
}

/// A prompt longer than the context window is not an error; reports the truncation.
fn tell_of_length(tokens: usize, decoder: &Decoder) {
    if tokens > decoder.context() {
        note(&format!(
            "the prompt has {}, but the context window has {}: only the last tokens of the prompt are used",
            counted(tokens as u64, "token"),
            decoder.context()
        ));
    }
}

/// Returns the tokenizer: from --tokenizer, the model, the file next to it, or bytes for text models from before
/// tokenizers were stored.
fn tokenizer(args: &GenerateArgs, model: &Model, file: &str) -> Result<Arc<Tokenizer>> {
    if let Some(path) = &args.tokenizer {
        return Tokenizer::read(path).map(Arc::new).at(|| "--tokenizer".into());
    }
    if let Some(own) = tokenizer_of(model)? {
        return Ok(own);
    }
    let beside = Path::new(file).with_file_name("tokenizer.json");
    if beside.is_file() {
        return Tokenizer::read(&beside).map(Arc::new);
    }
    match config_of(model, file)?.is_some_and(|config| config.data.dataset == "text") {
        true => Ok(Arc::new(Tokenizer::bytes())),
        false => Err(err!(Config, "{file} contains no tokenizer")
            .hint_command("pass the model's tokenizer.json with --tokenizer, or put it next to the model")),
    }
}

/// Incremental UTF-8 decoder: a token may end within a character.
#[derive(Default)]
struct Utf8Stream {
    text: String,
    waiting: Vec<u8>,
}

impl Utf8Stream {
    /// Adds bytes and returns the completed characters.
    fn whole(&mut self, bytes: &[u8]) -> String {
        self.waiting.extend_from_slice(bytes);
        let mut whole = String::new();
        loop {
            let (valid, wrong) = match std::str::from_utf8(&self.waiting) {
                Ok(all) => (all.len(), None),
                Err(e) => (e.valid_up_to(), e.error_len()),
            };
            let rest = self.waiting.split_off(valid);
            whole.push_str(&String::from_utf8_lossy(&self.waiting));
            self.waiting = rest;
            let Some(wrong) = wrong else { break };
            whole.push(char::REPLACEMENT_CHARACTER);
            self.waiting = self.waiting.split_off(wrong);
        }
        self.text.push_str(&whole);
        whole
    }

    /// Returns the incomplete rest at the end.
    fn rest(&mut self) -> String {
        let rest = String::from_utf8_lossy(&std::mem::take(&mut self.waiting)).into_owned();
        self.text.push_str(&rest);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_shown_when_they_are_whole() {
        let mut told = Utf8Stream::default();
        let smile = "🙂".as_bytes();
        assert_eq!(told.whole(b"a"), "a");
        assert_eq!(told.whole(&smile[..1]), "");
        assert_eq!(told.whole(&smile[1..3]), "");
        assert_eq!(told.whole(&[&smile[3..], b"b"].concat()), "🙂b");
        assert_eq!(told.whole(b"\xffc\xc3"), "\u{fffd}c");
        assert_eq!(told.rest(), "\u{fffd}");
        assert_eq!(told.text, "a🙂b\u{fffd}c\u{fffd}");
    }
}
