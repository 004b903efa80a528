//! Datasets of labeled texts for text classification: text files by class, tables, JSON lines.
//!
//! Like Keras's `text_dataset_from_directory`, and Hugging Face's `csv` and `json` loaders. Texts become token ids between
//! a start and an end token, padded to one length.

mod text_table;

pub use text_table::{is_json_lines, is_plain_text, is_table_of_texts};

use crate::data_dir::DataDir;
use crate::images::splits;
use crate::records::{RecordOptions, is_for_testing};
use crate::{Tokenizer, TrainingData};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::rng::{fnv1a, hash_name, mix};
use systole_base::{DType, Error, Literal, Result, TensorType, err};
use systole_data::input_file::{entries, is_dir};
use systole_data::tools::files_of;
use systole_data::{Dataset, ImageFolder};
use text_table::{LabeledText, has_text_rows, plain_text, read_texts};

/// Minimum number of texts to decide whether labels are classes.
const TELLING: usize = 20;
/// Multiple of which an inferred sequence length is.
const STEP: usize = 8;

/// Options for loading labeled texts.
#[derive(Clone, Debug)]
pub struct SentenceOptions {
    /// Sequence length in tokens, with start and end; `None`: that of the longest text, at most `most`.
    pub sequence_length: Option<usize>,
    /// Maximum of an inferred sequence length.
    pub most: usize,
    /// Tokenizer; `None`: words of the training texts.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Vocabulary size of the words.
    pub vocabulary: usize,
    /// Whether the model has an input for segment ids.
    pub has_segments: bool,
    /// Fraction of each class that is held out for testing if there are no test files; 1: all.
    pub validation_split: f64,
    /// Random seed of the train/test split.
    pub seed: u64,
    /// Files, and the fields of text and label.
    pub records: RecordOptions,
}

/// Training texts, and those for testing if files name them.
struct FoundTexts {
    train: Vec<LabeledText>,
    test: Option<Vec<LabeledText>>,
    /// Field of the texts; empty for text files.
    column: String,
    notes: Vec<String>,
}

/// Whether a folder contains one folder of text files per class, and no images.
pub fn holds_sentences(dir: impl AsRef<Path>) -> bool {
    let root = dir.as_ref();
    let root = splits::parts(root).ok().flatten().map_or(root.to_path_buf(), |parts| parts.train);
    let is_class =
        |dir: &PathBuf| entries(dir).is_ok_and(|all| all.iter().any(|e| !e.is_dir && is_plain_text(&e.path)));
    let has_texts = class_folders(&root).is_ok_and(|classes| classes.iter().any(|(_, dir)| is_class(dir)));
    // Images may have text files next to them.
    has_texts && ImageFolder::open(&root).is_err()
}

/// Loads labeled texts: `tokens: i32[S], label: i32[]`, with `segments: i32[S]` of zeros if the model needs them.
///
/// `dir` has one folder of text files per class (or split folders that do), or files of
/// [`RecordOptions::train`](crate::RecordOptions): tables or JSON lines.
///
/// # Errors
/// `Io` if there are no files; `Data` if a text has no label, or the labels are not classes.
pub fn sentences(dir: impl Into<DataDir>, options: &SentenceOptions) -> Result<TrainingData> {
    let dir = dir.into();
    let root = dir.named().ok_or_else(not_named)?;
    let found = find(root, options)?;
    let all: Vec<&LabeledText> = found.train.iter().chain(found.test.iter().flatten()).collect();
    let class_names = classes_of(&all, root)?;
    let identity = identity(&all);
    let is_all = options.validation_split >= 1.0;
    let has_test_split = found.test.is_some();
    let (train, test) = match found.test {
        Some(test) if !is_all => (found.train, test),
        test if is_all => (Vec::new(), found.train.into_iter().chain(test.into_iter().flatten()).collect()),
        _ => split(found.train, &class_names, options),
    };
    if test.is_empty() {
        return Err(err!(Data, "there are no texts to test on")
            .at(root.display().to_string())
            .because("each class keeps at least one text for training")
            .hint("add texts: at least two for each class, better a hundred"));
    }
    let tokenizer = match &options.tokenizer {
        Some(tokenizer) => tokenizer.clone(),
        None => {
            let texts = if is_all { &test } else { &train };
            Arc::new(Tokenizer::words_of(texts.iter().map(|t| t.text.as_str()), options.vocabulary)?)
        }
    };
    let mut encoder = TextEncoder { options, tokenizer, length: 0, class_names: &class_names, cut: 0 };
    encoder.length = encoder.sequence_length(train.iter().chain(&test))?;
    let name = name_of(root, &options.records);
    let (train_len, test_len) = (train.len(), test.len());
    let train = if is_all { Dataset::range(0) } else { encoder.dataset(&train, format!("{name} train"))? };
    let test = encoder.dataset(&test, format!("{name} test"))?;
    let mut notes = found.notes;
    notes.extend(encoder.notes());
    Ok(TrainingData {
        origin: root.display().to_string(),
        name,
        train,
        test,
        train_len,
        test_len,
        has_test_split,
        element: TensorType::new(DType::I32, [encoder.length]),
        tokenizer: Some(encoder.tokenizer),
        class_names,
        fields: Some(found.column).filter(|c| !c.is_empty()).into_iter().collect(),
        columns: Vec::new(),
        elements: "texts",
        notes,
        identity: Some(identity),
        streamed: None,
        language: None,
    })
}

/// Reads texts without labels for prediction: a text file is one text, tables and JSON lines have one in each row.
///
/// # Errors
/// If the file cannot be read, or no field contains texts.
pub fn unlabeled_texts(file: impl AsRef<Path>, options: &RecordOptions) -> Result<Vec<String>> {
    let (texts, _) = read_texts(file.as_ref(), options, false)?;
    Ok(texts.into_iter().map(|t| t.text).collect())
}

fn not_named() -> Error {
    err!(Config, "the path of the texts is not set").hint_setting(
        "pass the folder that contains one folder of text files per class, or a .csv or .jsonl file, with --data-dir or \
         data.dir",
    )
}

fn find(root: &Path, options: &SentenceOptions) -> Result<FoundTexts> {
    if options.records.train.is_empty() && is_dir(root) && holds_sentences(root) {
        return of_folders(root, &options.records);
    }
    let all = |patterns: &[String]| -> Result<Vec<PathBuf>> {
        let found = patterns.iter().map(|p| files_of(&root.join(p))).collect::<Result<Vec<_>>>()?;
        Ok(found.concat())
    };
    let (train, test) = match options.records.train.is_empty() {
        true if is_dir(root) => {
            let files = files_of(root)?.into_iter().filter(|f| has_text_rows(f));
            let (test, train): (Vec<_>, Vec<_>) = files.partition(|f| is_for_testing(f));
            (train, if options.records.test.is_empty() { test } else { all(&options.records.test)? })
        }
        true => (vec![root.to_path_buf()], Vec::new()),
        false => (all(&options.records.train)?, all(&options.records.test)?),
    };
    let Some(first) = train.first().filter(|f| has_text_rows(f)) else {
        return Err(err!(Io, "{} has no labeled texts", root.display()).hint(
            "use one folder of .txt files per class, or a .csv or .jsonl file with a text and a label in each row",
        ));
    };
    let (_, fields) = read_texts(first, &options.records, true)?;
    let mut notes = fields.notes("the texts");
    let mut read = |files: &[PathBuf]| -> Result<Vec<LabeledText>> {
        let mut all = Vec::new();
        for file in files {
            let (texts, of_file) = read_texts(file, &options.records, true)?;
            if of_file != fields {
                notes.extend(of_file.notes(&format!("the texts of {}", file.display())));
            }
            all.extend(texts);
        }
        Ok(all)
    };
    let is_same = test == train;
    let test = if test.is_empty() || is_same { None } else { Some(read(&test)?) };
    let train = read(&train)?;
    notes.extend(empty_texts(train.iter().chain(test.iter().flatten())));
    Ok(FoundTexts { train, test, column: fields.text, notes })
}

/// Returns a note about texts without a word, of which there are `NA` cells and missing JSON fields.
fn empty_texts<'a>(texts: impl Iterator<Item = &'a LabeledText>) -> Option<String> {
    let mut empty = texts.filter(|t| t.text.trim().is_empty());
    let first = empty.next()?;
    Some(match empty.count() {
        0 => format!("1 text is empty: {}", first.place),
        more => format!("{} texts are empty, the first is {}", more + 1, first.place),
    })
}

/// Subfolders, by name.
fn class_folders(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let all = entries(root)?.into_iter().filter(|e| e.is_dir && e.name != "__MACOSX");
    Ok(all.map(|e| (e.name, e.path)).collect())
}

/// Text files below a folder, without following links to folders.
fn text_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in entries(dir)? {
        if entry.is_dir && !entry.is_link {
            all.extend(text_files(&entry.path)?);
        } else if !entry.is_dir && is_plain_text(&entry.path) {
            all.push(entry.path);
        }
    }
    Ok(all)
}

fn of_folders(root: &Path, options: &RecordOptions) -> Result<FoundTexts> {
    let read = |dir: &Path| -> Result<Vec<LabeledText>> {
        let mut all = Vec::new();
        for (label, folder) in class_folders(dir)? {
            for file in text_files(&folder)? {
                let place = file.display().to_string();
                all.push(LabeledText { text: plain_text(&file, options)?, label: label.clone(), place });
            }
        }
        Ok(all)
    };
    Ok(match splits::parts(root)? {
        Some(parts) => FoundTexts {
            train: read(&parts.train)?,
            test: parts.test.as_deref().map(read).transpose()?,
            column: String::new(),
            notes: parts.notes,
        },
        None => FoundTexts { train: read(root)?, test: None, column: String::new(), notes: Vec::new() },
    })
}

/// Class names: sorted, integers by value.
fn classes_of(texts: &[&LabeledText], root: &Path) -> Result<Vec<String>> {
    let names: BTreeSet<&str> = texts.iter().map(|t| t.label.as_str()).collect();
    let place = || root.display().to_string();
    if names.len() < 2 {
        let only = names.first().copied().unwrap_or("none");
        return Err(err!(Data, "the texts have only one class: `{only}`")
            .at(place())
            .because("a classifier needs at least two classes")
            .hint("add texts of another class"));
    }
    if texts.len() >= TELLING && names.len() * 2 > texts.len() {
        return Err(err!(Data, "the labels of the texts do not look like classes")
            .at(place())
            .because(format!("{} texts have {} different labels", texts.len(), names.len()))
            .hint_setting("name the field with the classes: data.records.label"));
    }
    let mut names: Vec<String> = names.into_iter().map(String::from).collect();
    let numbers: Option<Vec<i64>> = names.iter().map(|n| n.parse().ok()).collect();
    if numbers.is_some() {
        names.sort_by_key(|n| n.parse::<i64>().unwrap_or(0));
    }
    Ok(names)
}

/// Holds out a fraction of each class, at least one text if it has two. The choice depends only on seed and text.
fn split(
    texts: Vec<LabeledText>,
    class_names: &[String],
    options: &SentenceOptions,
) -> (Vec<LabeledText>, Vec<LabeledText>) {
    let mut is_held = vec![false; texts.len()];
    for class in class_names {
        let mut of_class: Vec<usize> = (0..texts.len()).filter(|i| texts[*i].label == *class).collect();
        of_class.sort_by_key(|i| (mix(hash_name(&texts[*i].text) ^ mix(options.seed)), *i));
        let count = (of_class.len() as f64 * options.validation_split.clamp(0.0, 1.0)).round() as usize;
        let count = if options.validation_split > 0.0 { count.max(1) } else { 0 };
        let count = count.min(of_class.len().saturating_sub(1));
        of_class.iter().take(count).for_each(|i| is_held[*i] = true);
    }
    let (mut train, mut test) = (Vec::new(), Vec::new());
    for (text, held) in texts.into_iter().zip(is_held) {
        if held { &mut test } else { &mut train }.push(text);
    }
    (train, test)
}

/// Converts texts to padded token ids.
struct TextEncoder<'a> {
    options: &'a SentenceOptions,
    tokenizer: Arc<Tokenizer>,
    length: usize,
    class_names: &'a [String],
    /// Number of texts that were longer than the sequence length.
    cut: usize,
}

impl TextEncoder<'_> {
    /// Length of the longest text. A text for testing may be cut into more tokens, since its words can be new.
    fn sequence_length<'t>(&self, texts: impl Iterator<Item = &'t LabeledText>) -> Result<usize> {
        if let Some(length) = self.options.sequence_length {
            return Ok(length);
        }
        let mut longest = 1;
        for text in texts {
            longest = longest.max(self.tokenizer.encode_with_ends(&text.text, self.options.most)?.len());
        }
        Ok(longest.next_multiple_of(STEP).min(self.options.most).max(1))
    }

    fn dataset(&mut self, texts: &[LabeledText], source: String) -> Result<Dataset> {
        let padding = self.tokenizer.padding().unwrap_or(0) as i32;
        let (mut ids, mut labels) = (Vec::with_capacity(texts.len() * self.length), Vec::new());
        for text in texts {
            // One more token than fits tells whether the text is cut.
            let mut tokens = self.tokenizer.encode_with_ends(&text.text, self.length + 1)?;
            if tokens.len() > self.length {
                self.cut += 1;
                tokens = self.tokenizer.encode_with_ends(&text.text, self.length)?;
            }
            tokens.truncate(self.length);
            let missing = self.length - tokens.len();
            ids.extend(tokens.into_iter().map(|id| id as i32).chain(std::iter::repeat_n(padding, missing)));
            let class = self.class_names.iter().position(|name| *name == text.label);
            let class =
                class.ok_or_else(|| err!(Data, "unknown class `{}`", text.label).at(text.place.clone()))?;
            labels.push(class as i32);
        }
        let shape = [texts.len(), self.length];
        let mut fields = vec![("tokens", Literal::from_slice(shape, &ids)?)];
        if self.options.has_segments {
            fields.push(("segments", Literal::zeros(TensorType::new(DType::I32, shape))));
        }
        fields.push(("label", Literal::from_slice([texts.len()], &labels)?));
        Dataset::from_named_slices(source, fields)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "vocabulary of {} {} tokens; sequences of {} tokens",
            self.tokenizer.vocabulary_size(),
            self.tokenizer.name(),
            self.length
        )];
        match self.cut {
            0 => {}
            1 => notes.push(format!(
                "1 text is longer and is cut to {} tokens (data.sequence_length)",
                self.length
            )),
            n => notes.push(format!(
                "{n} texts are longer and are cut to {} tokens (data.sequence_length)",
                self.length
            )),
        }
        notes
    }
}

/// Name of the folder, or of the only file.
fn name_of(root: &Path, options: &RecordOptions) -> String {
    let whole = match options.train.as_slice() {
        [file] => root.join(file),
        _ => root.canonicalize().unwrap_or_else(|_| root.to_path_buf()),
    };
    whole.file_stem().map_or("texts".into(), |n| n.to_string_lossy().into_owned())
}

/// Fingerprint of the texts and labels.
fn identity(texts: &[&LabeledText]) -> String {
    let mark =
        texts.iter().fold(0, |mark, t| mix(mark ^ fnv1a(t.text.as_bytes()) ^ mix(fnv1a(t.label.as_bytes()))));
    format!("{} texts, mark {mark:016x}", texts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str) -> Temporary {
            let dir = std::env::temp_dir().join(format!("systole-sentences-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Temporary(dir)
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn options(train: &[&str]) -> SentenceOptions {
        let train = train.iter().map(|t| t.to_string()).collect();
        SentenceOptions {
            sequence_length: None,
            most: 32,
            tokenizer: None,
            vocabulary: 500,
            has_segments: false,
            validation_split: 0.25,
            seed: 0,
            records: RecordOptions { train, ..RecordOptions::default() },
        }
    }

    #[test]
    fn folders_tables_and_json_lines_are_the_same_texts() {
        let dir = Temporary::new("same");
        let (mut csv, mut lines) = ("id,review,sentiment\n".to_string(), String::new());
        for i in 0..8 {
            let (word, class) = if i % 2 == 0 { ("good", "pos") } else { ("bad", "neg") };
            let text = format!("film {i}, it was {word}");
            dir.write(&format!("all/{class}/{i}.txt"), &text);
            csv += &format!("{i},\"{text}\",{class}\n");
            lines += &format!("{{\"text\": \"{text}\", \"label\": \"{class}\"}}\n");
        }
        dir.write("a.csv", &csv);
        dir.write("b.jsonl", &lines);
        assert!(holds_sentences(dir.0.join("all")) && !holds_sentences(&dir.0));
        let mut by_column = options(&["a.csv"]);
        by_column.records.label = Some("sentiment".into());
        assert!(is_table_of_texts(dir.0.join("a.csv"), &by_column.records).unwrap());
        let all = [
            sentences(dir.0.join("all"), &options(&[])).unwrap(),
            sentences(dir.0.clone(), &by_column).unwrap(),
            sentences(dir.0.clone(), &options(&["b.jsonl"])).unwrap(),
        ];
        for data in &all {
            assert_eq!((data.train_len, data.test_len), (6, 2), "{}", data.name);
            assert_eq!(data.class_names, ["neg", "pos"]);
            assert_eq!(data.element.to_string(), "i32[8]");
            assert_eq!(data.tokenizer, all[0].tokenizer, "{}", data.name);
            let first = data.test.iter().next().unwrap().unwrap();
            let tokens = first.get("tokens").unwrap().to_f64s();
            assert!(tokens[0] == 2.0 && tokens[6..].contains(&3.0), "{tokens:?}");
        }
        assert_eq!(all.each_ref().map(|d| d.fields.len()), [0, 1, 1]);
        let mut cut = options(&["b.jsonl"]);
        (cut.sequence_length, cut.has_segments) = (Some(4), true);
        let cut = sentences(dir.0.clone(), &cut).unwrap();
        assert!(cut.notes.iter().any(|n| n.contains("8 texts are longer")), "{:?}", cut.notes);
        assert_eq!(
            cut.train.element_spec().unwrap().to_string(),
            "tokens: i32[4], segments: i32[4], label: i32[]"
        );
    }

    #[test]
    fn fields_that_are_used_and_not_used_are_told() {
        let dir = Temporary::new("fields");
        let line = |i: usize, rest: &str| {
            format!("{{\"text\": \"film {i} was good\", \"label\": \"{}\"{rest}}}\n", i % 2)
        };
        // The third line alone has a source; the last has no text.
        let mut lines: String =
            (0..8).map(|i| line(i, if i == 2 { ", \"source\": \"a\"" } else { "" })).collect();
        lines += "{\"text\": null, \"label\": \"1\"}\n";
        dir.write("a.jsonl", &lines);
        dir.write("b.csv", "id,review,label\n1,a film as bad as the other,0\n2,a film that is long,1\n");
        let data = sentences(dir.0.clone(), &options(&["a.jsonl", "b.csv"])).unwrap();
        let expected = [
            "the texts are in the field `text`, the labels in `label`",
            "the field `source` is not used",
            "b.csv are in the field `review`, the labels in `label`",
            "the field `id` is not used",
            "1 text is empty: ",
        ];
        for (note, part) in data.notes.iter().zip(expected) {
            assert!(note.contains(part), "{:?}", data.notes);
        }
        assert!(data.notes.len() >= expected.len() && !data.has_test_split, "{:?}", data.notes);
    }

    #[test]
    fn wrong_texts_are_errors_about_texts() {
        let dir = Temporary::new("wrong");
        dir.write("one.csv", "text,label\na b c,x\nd e f,x\n");
        dir.write("gap.csv", "text,label\na b c,x\nd e f,\n");
        dir.write("json.jsonl", "{\"text\": \"a\", \"label\": 1}\nnonsense\n");
        dir.write("fields.jsonl", "{\"a\": \"some words here\", \"b\": 1, \"c\": 2}\n");
        let e = |file: &str| sentences(dir.0.clone(), &options(&[file])).unwrap_err().to_string();
        assert!(e("one.csv").contains("`x`"));
        assert!(e("gap.csv").contains("no label") && e("gap.csv").contains("record 1"));
        assert!(e("json.jsonl").contains("json.jsonl, line 2"));
        assert!(e("fields.jsonl").contains("data.records.label"));
        let none = sentences(dir.0.join("nowhere"), &options(&[])).unwrap_err().to_string();
        assert!(none.contains("texts"), "{none}");
    }
}
