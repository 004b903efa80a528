//! Text datasets for language models: token sequences from a text file, Tiny Shakespeare, or synthetic sentences.

use super::data_dir::{DataDir, roots};
use super::{Tokenizer, TrainingData};
use std::path::PathBuf;
use std::sync::Arc;
use systole_base::rng::{RandomStream, fnv1a, hash_name};
use systole_base::{DType, Error, Literal, Result, TensorType, ensure, err};
use systole_data::format::text_encoding::{TextEncoding, to_utf8};
use systole_data::{AUTOTUNE, Dataset, Sample, with_defaults};

/// Vocabulary size of the byte tokenizer: one token for each value of a byte.
pub const TEXT_TOKENS: usize = 256;

/// Kind of token: byte, character or byte pair (BPE).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TokenKind {
    /// Bytes.
    #[default]
    Bytes,
    /// Characters of the text.
    Chars,
    /// Byte-pair encoding learned from the training split.
    Bpe {
        /// Maximum vocabulary size.
        vocabulary: usize,
    },
    /// An existing tokenizer.
    Known(Arc<Tokenizer>),
}

/// Tokenizer and statistics of a text dataset.
#[derive(Clone, Debug)]
pub struct TextTokenizer {
    /// Tokenizer of the text.
    pub tokenizer: Arc<Tokenizer>,
    /// Average bytes per token in the test split.
    pub bytes_per_token: f64,
    /// Tokens of the training split.
    train: Arc<[i32]>,
    /// Sequence length in tokens.
    length: usize,
}

impl TextTokenizer {
    /// Moves each [numbered](crate::numbered) training sequence forward by a random offset below the sequence length,
    /// different in each epoch.
    pub fn at_random_offsets(&self, sequences: Dataset, seed: u64) -> Dataset {
        let (tokens, length) = (self.train.clone(), self.length);
        let moved = move |sample: Sample, draws: &mut RandomStream| -> Result<Sample> {
            let from = sample.get("index")?.get(0).as_i64().max(0) as usize * length;
            let room = tokens.len().saturating_sub(from + length + 1).min(length.saturating_sub(1));
            let from = from + draws.below(room as u64 + 1) as usize;
            let part = |from: usize| {
                let part = tokens.get(from..from + length).ok_or_else(|| {
                    err!(Data, "tokens {from} to {} are beyond the end of the text", from + length)
                        .because(format!("the text file has {} tokens", tokens.len()))
                })?;
                Literal::from_slice([length], part)
            };
            Ok(Sample::new([("tokens", part(from)?), ("label", part(from + 1)?)]))
        };
        sequences.map_random_parallel(seed ^ hash_name("offsets of sequences"), moved, AUTOTUNE)
    }
}

/// Splits a text into sequences `tokens: i32[S]` of `sequence_length` bytes, with the following bytes as `label:
/// i32[S]`. The first nine tenths of the text are for training. [`text_with`] also supports characters and byte pairs.
///
/// `dir` is a text file, a folder with `input.txt`, or one with `tiny-shakespeare/input.txt`. Without a given path the
/// latter are searched in the default locations; if none exists, sentences are generated from a small grammar, and name
/// and origin say so.
///
/// ```no_run
/// let text = systole_datasets::text("my-book.txt", 128)?;
/// println!("{} sequences of {}", text.train_len, text.name);
/// # Ok::<(), systole_base::Error>(())
/// ```
///
/// # Errors
/// `Io` if the given path does not exist, `Data` if the text is too short for a training and a test sequence.
pub fn text(dir: impl Into<DataDir>, sequence_length: usize) -> Result<TrainingData> {
    text_with(dir, &TextOptions { sequence_length, ..TextOptions::default() })
}

with_defaults! {
    /// Options for splitting a text into sequences.
    #[derive(Clone, Debug)]
    pub struct TextOptions {
        /// Sequence length in tokens. Default: 128.
        pub sequence_length: usize = 128,
        /// Kind of token. Default: bytes.
        pub tokens: TokenKind = TokenKind::Bytes,
        /// Encoding of the file; `None`: UTF-8, or UTF-16 if there is a byte order mark.
        pub encoding: Option<TextEncoding> = None,
        /// Whether to use the whole text for testing.
        pub is_for_testing: bool = false,
    }
}

/// [`text`] with all options.
///
/// # Errors
/// Like [`text`]; also if the file is not in the given encoding.
pub fn text_with(dir: impl Into<DataDir>, options: &TextOptions) -> Result<TrainingData> {
    let dir = dir.into();
    let places = roots(&dir);
    let files = places
        .iter()
        .flat_map(|root| [root.clone(), root.join("input.txt"), root.join("tiny-shakespeare/input.txt")]);
    match files.into_iter().find(|f| f.is_file()) {
        Some(file) => {
            let bytes = std::fs::read(&file).map_err(|e| Error::io("cannot read", &file, e))?;
            let name = file.display().to_string();
            let (bytes, marked) = to_utf8(&name, bytes, options.encoding)?;
            let stem = match file.parent().and_then(|p| p.file_name()) {
                Some(folder) if file.ends_with("input.txt") => folder.to_string_lossy(),
                _ => file.file_stem().unwrap_or_default().to_string_lossy(),
            };
            let mut data = cut(stem.into_owned(), name.clone(), &bytes, options)?;
            data.notes
                .extend(marked.map(|e| format!("{name} is decoded as {e} because of its byte order mark")));
            Ok(data)
        }
        None if dir.is_named() => Err(missing(&places)),
        None => {
            let mut data = drawn_text(options)?;
            data.origin += ", because there is no tiny-shakespeare/input.txt";
            Ok(data)
        }
    }
}

/// Synthetic sentences from a small grammar as a text dataset, 1 MiB.
///
/// # Errors
/// If the options need a longer text.
pub fn drawn_text(options: &TextOptions) -> Result<TrainingData> {
    cut("drawn-text".into(), "generated from seed 0".into(), draw(0, 1 << 20).as_bytes(), options)
}

fn missing(places: &[PathBuf]) -> Error {
    let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    err!(Io, "the text file was not found")
        .because(format!("{} is not a file and has no input.txt", places.join(", ")))
        .hint_command("pass a text file, or a folder that contains input.txt")
}

/// Training and test text, and the tokenizer.
struct TextSplits<'t> {
    train: &'t str,
    test: &'t str,
    tokenizer: Arc<Tokenizer>,
}

impl<'t> TextSplits<'t> {
    fn of(text: &'t str, options: &TextOptions) -> Result<TextSplits<'t>> {
        // Split at the first character boundary at or after nine tenths.
        let at = (text.len() / 10 * 9..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let (train, test) = if options.is_for_testing { (text, text) } else { text.split_at(at) };
        let tokenizer = match &options.tokens {
            TokenKind::Bytes => Arc::new(Tokenizer::bytes()),
            TokenKind::Chars => Arc::new(Tokenizer::chars_of(text)),
            TokenKind::Bpe { vocabulary } => Arc::new(Tokenizer::train_bpe(train, *vocabulary)?),
            TokenKind::Known(tokenizer) => tokenizer.clone(),
        };
        Ok(TextSplits { train, test, tokenizer })
    }

    /// Returns a fingerprint of the text, after that of a tokenizer that was learned from it.
    fn identity(&self, text: &str, tokens: &TokenKind) -> String {
        let text = format!("text {:016x}", fnv1a(text.as_bytes()));
        match tokens {
            TokenKind::Chars | TokenKind::Bpe { .. } => {
                let mark = fnv1a(self.tokenizer.to_json().as_bytes());
                format!("tokenizer {} {mark:016x}; {text}", self.tokenizer.name())
            }
            TokenKind::Bytes | TokenKind::Known(_) => text,
        }
    }
}

fn cut(name: String, origin: String, bytes: &[u8], options: &TextOptions) -> Result<TrainingData> {
    let length = options.sequence_length;
    let text = std::str::from_utf8(bytes).map_err(|e| {
        err!(Data, "the text file is not UTF-8")
            .at(origin.clone())
            .because(e.to_string())
            .hint_setting("save it as UTF-8, or name its encoding: data.records.encoding=latin1")
    })?;
    let parts = TextSplits::of(text, options)?;
    let unit = if parts.tokenizer.name() == "bytes" { "bytes" } else { "tokens" };
    let ids_of = |part: &str| -> Result<Vec<i32>> {
        let ids = parts.tokenizer.encode(part).map_err(|e| e.at(origin.clone()))?;
        Ok(ids.into_iter().map(|id| id as i32).collect())
    };
    let sequences = |ids: &[i32], which: &str| -> Result<(Dataset, usize)> {
        let count = ids.len().saturating_sub(1) / length;
        ensure!(count != 0, too_short(&origin, &format!("{} {unit}", ids.len()), which, length));
        let tokens = |from: usize| Literal::from_slice([count, length], &ids[from..from + count * length]);
        let fields = [("tokens", tokens(0)?), ("label", tokens(1)?)];
        Ok((Dataset::from_named_slices(format!("{name} {which}"), fields)?, count))
    };
    let (train_ids, test_ids) = (ids_of(parts.train)?, ids_of(parts.test)?);
    let (train, train_len) = sequences(&train_ids, "train")?;
    let (test, test_len) = sequences(&test_ids, "test")?;
    let bytes_per_token = parts.test.len() as f64 / test_ids.len() as f64;
    let told = (unit == "tokens").then(|| {
        format!(
            "vocabulary of {} {} tokens, {bytes_per_token:.2} bytes each",
            parts.tokenizer.vocabulary_size(),
            parts.tokenizer.name()
        )
    });
    Ok(TrainingData {
        name,
        origin,
        train,
        test,
        train_len,
        test_len,
        has_test_split: false,
        element: TensorType::new(DType::I32, [length]),
        class_names: Vec::new(),
        fields: Vec::new(),
        columns: Vec::new(),
        elements: "sequences",
        notes: told.into_iter().collect(),
        identity: Some(parts.identity(text, &options.tokens)),
        streamed: None,
        tokenizer: None,
        language: Some(TextTokenizer {
            tokenizer: parts.tokenizer,
            bytes_per_token,
            train: train_ids.into(),
            length,
        }),
    })
}

fn too_short(origin: &str, there_are: &str, which: &str, length: usize) -> Error {
    err!(Data, "the prompt or text is too short for the model")
        .at(origin)
        .because(format!(
            "the {which} split has {there_are}; one sequence needs {length}, plus one for the last label"
        ))
        .hint_setting("use a longer text or a smaller data.sequence_length")
}

const SUBJECTS: [&str; 8] =
    ["the king", "a sailor", "my brother", "the old miller", "she", "no one", "the moon", "his horse"];
const VERBS: [&str; 8] = ["finds", "forgets", "follows", "fears", "sings of", "sees", "sells", "loves"];
const OBJECTS: [&str; 8] =
    ["the sea", "a crown", "the long road", "her letters", "bread", "the winter", "silver", "a promise"];
const ENDS: [&str; 6] = [".", "!", "?", ", and laughs.", " at night.", ";"];

/// Returns at least `bytes` of simple sentences, deterministic for a seed.
fn draw(seed: u64, bytes: usize) -> String {
    let mut draws = RandomStream::new(seed, hash_name("text"), 0);
    let mut text = String::with_capacity(bytes + 64);
    while text.len() < bytes {
        let mut pick = |words: &[&'static str]| words[draws.below(words.len() as u64) as usize];
        let sentence = format!("{} {} {}{}", pick(&SUBJECTS), pick(&VERBS), pick(&OBJECTS), pick(&ENDS));
        let (first, rest) = sentence.split_at(1);
        text.push_str(&first.to_uppercase());
        text.push_str(rest);
        text.push(if draws.below(4) == 0 { '\n' } else { ' ' });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    #[test]
    fn labels_are_the_next_bytes() {
        let file = std::env::temp_dir().join(format!("systole-text-{}.txt", std::process::id()));
        let written: Vec<u8> = (0..100).collect();
        std::fs::write(&file, &written).unwrap();
        let data = text(file.clone(), 7).unwrap();
        assert_eq!((data.train_len, data.test_len), (12, 1));
        let second = data.train.iter().nth(1).unwrap().unwrap();
        assert_eq!(second.get("tokens").unwrap().to_f64s(), [7., 8., 9., 10., 11., 12., 13.]);
        assert_eq!(second.get("label").unwrap().to_f64s(), [8., 9., 10., 11., 12., 13., 14.]);
        let e = text(file.clone(), 50).unwrap_err();
        assert_error(&e, ErrorKind::Data, &["50", "data.sequence_length"]);
        std::fs::remove_file(&file).unwrap();
        assert!(text(file, 7).unwrap_err().to_string().contains("input.txt"));
    }

    #[test]
    fn a_text_is_cut_into_what_is_asked_for() {
        let file = std::env::temp_dir().join(format!("systole-text-tokens-{}.txt", std::process::id()));
        std::fs::write(&file, "Ein Böser hört Öl. ".repeat(40)).unwrap();
        let of = |tokens: TokenKind| {
            text_with(file.clone(), &TextOptions { sequence_length: 5, tokens, ..TextOptions::default() })
                .unwrap()
        };
        let (bytes, chars, pairs) =
            (of(TokenKind::Bytes), of(TokenKind::Chars), of(TokenKind::Bpe { vocabulary: 300 }));
        assert!(bytes.train_len > chars.train_len && chars.train_len > 3 * pairs.train_len);
        let ids = [&bytes, &chars, &pairs].map(|data| data.identity.clone().unwrap());
        assert!(ids[1].ends_with(&format!("; {}", ids[0])) && ids[1] != ids[2], "{ids:?}");
        let language = pairs.language.unwrap();
        assert!(language.bytes_per_token > 3.5, "{}", language.bytes_per_token);
        let mut text = Vec::new();
        for sample in pairs.train.iter() {
            let ids: Vec<u32> =
                sample.unwrap().get("tokens").unwrap().to_f64s().iter().map(|id| *id as u32).collect();
            text.extend(language.tokenizer.decode(&ids));
        }
        assert!(String::from_utf8(text).unwrap().starts_with("Ein Böser hört Öl. Ein Böser"));
        let again = of(TokenKind::Known(language.tokenizer.clone()));
        assert_eq!((again.train_len, again.identity), (pairs.train_len, bytes.identity));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn sequences_at_random_offsets_are_others_in_each_epoch() {
        let file = std::env::temp_dir().join(format!("systole-text-offsets-{}.txt", std::process::id()));
        let written: Vec<u8> = (0..=120).collect();
        std::fs::write(&file, &written).unwrap();
        let data = text(file.clone(), 7).unwrap();
        std::fs::remove_file(&file).unwrap();
        let moved = data.language.unwrap().at_random_offsets(crate::numbered(data.train), 5).repeat_n(3);
        let of = |s: &Sample, name: &str| s.get(name).unwrap().to_f64s();
        let starts: Vec<f64> = moved
            .iter()
            .map(|s| {
                let s = s.unwrap();
                let tokens = of(&s, "tokens");
                assert!(tokens.windows(2).all(|pair| pair[1] == pair[0] + 1.0), "{tokens:?}");
                assert_eq!(of(&s, "label"), tokens.iter().map(|t| t + 1.0).collect::<Vec<_>>());
                tokens[0]
            })
            .collect();
        // 108 bytes for training: 15 sequences; the last one can move by 2 bytes.
        assert_eq!(starts.len(), 45);
        let (first, second) = (&starts[..15], &starts[15..30]);
        assert!(first != second, "{starts:?}");
        for (i, start) in starts.iter().enumerate() {
            let from = (i % 15 * 7) as f64;
            assert!((from..from + 7.0).contains(start) && *start <= 100.0, "{i}: {start}");
        }
        let again: Vec<f64> = moved.iter().map(|s| of(&s.unwrap(), "tokens")[0]).collect();
        assert_eq!(again, starts);
    }

    #[test]
    fn drawn_text_is_the_same_for_a_seed() {
        assert_eq!(draw(1, 500), draw(1, 500));
        assert_ne!(draw(1, 500), draw(2, 500));
        assert!(draw(1, 500).contains(' ') && draw(1, 500).len() < 600);
    }
}
