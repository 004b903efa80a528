//! Reads texts and labels from files: columns of CSV tables, fields of JSON lines, plain text files.

use crate::records::RecordOptions;
use crate::records::label_name;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use systole_base::{DType, Error, Result, ResultExt, err};
use systole_data::format::text_encoding::to_utf8;
use systole_data::{CsvTable, input_file};

/// Extensions of JSON lines.
const JSON_LINES: [&str; 2] = [".jsonl", ".ndjson"];
/// Extensions of tables.
const TABLES: [&str; 4] = [".csv", ".tsv", ".csv.gz", ".tsv.gz"];
/// Extensions of plain text.
const PLAIN: [&str; 3] = [".txt", ".text", ".md"];
/// Usual names of the column with the text.
const TEXTS: [&str; 8] = ["text", "sentence", "review", "content", "message", "comment", "document", "sms"];
/// Rows that are inspected to find the column with the text.
const LOOKED_AT: usize = 200;

/// A text, its label, and its location for messages.
#[derive(Clone, Debug)]
pub(super) struct LabeledText {
    pub text: String,
    /// Empty if unlabeled.
    pub label: String,
    pub place: String,
}

/// The fields of a file that are used, and those that are not.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct TextFields {
    /// Field with the text; empty for a plain text file.
    pub text: String,
    pub label: Option<String>,
    unused: Vec<String>,
}

impl TextFields {
    /// Returns notes on the fields of `texts`, such as "the texts".
    pub(super) fn notes(&self, texts: &str) -> Vec<String> {
        let label = self.label.as_ref().map_or(String::new(), |label| format!(", the labels in `{label}`"));
        let mut notes = vec![format!("{texts} are in the field `{}`{label}", self.text)];
        if !self.unused.is_empty() {
            let names: Vec<String> = self.unused.iter().map(|name| format!("`{name}`")).collect();
            let [are, s] = if names.len() == 1 { ["is", ""] } else { ["are", "s"] };
            notes.push(format!("the field{s} {} {are} not used", names.join(", ")));
        }
        notes
    }
}

/// Rows of a file as texts.
struct TextTable {
    names: Vec<String>,
    /// Location and cells of each row.
    rows: Vec<(String, Vec<String>)>,
}

fn ends_with_one_of(file: &Path, ends: &[&str]) -> bool {
    let name = file.file_name().map_or(String::new(), |n| n.to_string_lossy().to_lowercase());
    ends.iter().any(|end| name.ends_with(end))
}

/// Whether a file's name is that of plain text: `.txt`, `.text`, `.md`.
pub fn is_plain_text(file: impl AsRef<Path>) -> bool {
    ends_with_one_of(file.as_ref(), &PLAIN)
}

/// Whether a file's name is that of JSON lines: `.jsonl`, `.ndjson`.
pub fn is_json_lines(file: impl AsRef<Path>) -> bool {
    ends_with_one_of(file.as_ref(), &JSON_LINES)
}

/// Whether a file may contain a text in each row: a table or JSON lines.
pub(super) fn has_text_rows(file: &Path) -> bool {
    is_json_lines(file) || ends_with_one_of(file, &TABLES)
}

/// Reads a plain text file as UTF-8.
pub(super) fn plain_text(file: &Path, options: &RecordOptions) -> Result<String> {
    let name = file.display().to_string();
    let bytes = input_file::read(file).map_err(|e| Error::io("cannot read", file, e))?;
    let (bytes, _) = to_utf8(&name, bytes, options.written()?.encoding)?;
    String::from_utf8(bytes).map_err(|e| {
        err!(Data, "the text file is not UTF-8")
            .at(name)
            .because(e.to_string())
            .hint_setting("save it as UTF-8, or name its encoding: data.records.encoding=latin1")
    })
}

/// Reads the texts of a file, and their labels if `labeled`; returns the fields that they are in too. A plain text file
/// is one text.
pub(super) fn read_texts(
    file: &Path,
    options: &RecordOptions,
    labeled: bool,
) -> Result<(Vec<LabeledText>, TextFields)> {
    if !has_text_rows(file) {
        let one = LabeledText {
            text: plain_text(file, options)?,
            label: String::new(),
            place: file.display().to_string(),
        };
        return Ok((vec![one], TextFields::default()));
    }
    let table = TextTable::read(file, options)?;
    let (text, label) = table.columns(file, options, labeled)?;
    let fields = table.fields(text, label);
    let cell = |cells: &[String], at: usize| cells.get(at).cloned().unwrap_or_default();
    let mut all = Vec::with_capacity(table.rows.len());
    for (place, cells) in &table.rows {
        let label = label.map_or(String::new(), |at| cell(cells, at).trim().to_string());
        if labeled && label.is_empty() {
            return Err(err!(Data, "a text has no label")
                .at(place.clone())
                .hint_setting("enter the label, remove the row, or name another field: data.records.label"));
        }
        all.push(LabeledText { text: cell(cells, text), label, place: place.clone() });
    }
    Ok((all, fields))
}

impl TextTable {
    fn read(file: &Path, options: &RecordOptions) -> Result<TextTable> {
        let table = match is_json_lines(file) {
            true => TextTable::of_json_lines(file, options)?,
            false => TextTable::of_csv(file, options)?,
        };
        match table.rows.is_empty() {
            true => Err(err!(Data, "the file has no texts")
                .at(file.display().to_string())
                .hint("check that the file was written completely")),
            false => Ok(table),
        }
    }

    fn of_csv(file: &Path, options: &RecordOptions) -> Result<TextTable> {
        let table = CsvTable::read_written(&[file.to_path_buf()], options.written()?)?;
        let names: Vec<String> = table.columns.iter().map(|c| c.name.clone()).collect();
        let mut rows = Vec::new();
        for row in table.dataset_as(|_| Some(DType::U8)).iter() {
            let row = row?;
            let cells = names.iter().map(|name| row.text(name).map(str::to_string)).collect::<Result<_>>()?;
            rows.push((format!("{}, record {}", file.display(), rows.len()), cells));
        }
        Ok(TextTable { names, rows })
    }

    fn of_json_lines(file: &Path, options: &RecordOptions) -> Result<TextTable> {
        let text = plain_text(file, options)?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let mut objects: Vec<(String, Map<String, Value>)> = Vec::new();
        for (i, line) in lines {
            let place = format!("{}, line {}", file.display(), i + 1);
            let object = serde_json::from_str(line).map_err(|e| {
                err!(Data, "a line is not a JSON object")
                    .at(place.clone())
                    .because(e.to_string())
                    .hint("write one object per line: {\"text\": \"…\", \"label\": \"…\"}")
            })?;
            objects.push((place, object));
        }
        let mut names: Vec<String> = Vec::new();
        for name in objects.iter().flat_map(|(_, object)| object.keys()) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let cell = |object: &Map<String, Value>, name: &String| match object.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let rows =
            objects.iter().map(|(place, o)| (place.clone(), names.iter().map(|n| cell(o, n)).collect()));
        Ok(TextTable { rows: rows.collect(), names })
    }

    fn fields(&self, text: usize, label: Option<usize>) -> TextFields {
        let name = |at: usize| self.names.get(at).cloned();
        let is_unused = |at: &usize| *at != text && Some(*at) != label;
        TextFields {
            text: name(text).unwrap_or_default(),
            label: label.and_then(name),
            unused: (0..self.names.len()).filter(is_unused).filter_map(name).collect(),
        }
    }

    /// Mean number of words in a column's first cells.
    fn mean_words(&self, at: usize) -> f64 {
        let cells = self.rows.iter().take(LOOKED_AT).filter_map(|(_, cells)| cells.get(at));
        let counts: Vec<usize> = cells.map(|cell| cell.split_whitespace().count()).collect();
        counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64
    }

    /// Returns the indices of the text's column and, if `labeled`, of the label's.
    fn columns(&self, file: &Path, options: &RecordOptions, labeled: bool) -> Result<(usize, Option<usize>)> {
        let place = || file.display().to_string();
        let find = |name: &str| self.names.iter().position(|n| n == name);
        let missing = |key: &str, name: &str| {
            err!(Data, "the texts have no field `{name}`")
                .because(format!("the fields are `{}`", self.names.join("`, `")))
                .hint_setting(format!("name one of the fields: {key}"))
        };
        let label = label_name(self.names.iter().map(String::as_str), options);
        let label = match &label {
            Ok(name) => find(name),
            Err(_) => None,
        };
        let text = match options.inputs.as_slice() {
            [name] => find(name).ok_or_else(|| missing("data.records.inputs", name)).at(place)?,
            _ => self.text_column(label).ok_or_else(|| {
                err!(Data, "no field contains texts")
                    .at(place())
                    .because(format!("the fields are `{}`", self.names.join("`, `")))
                    .hint_setting("name the field with the texts: data.records.inputs")
            })?,
        };
        if !labeled {
            return Ok((text, None));
        }
        // Of two columns, the one that is not the text is the label.
        let other = (self.names.len() == 2 && options.label.is_none()).then_some(1 - text.min(1));
        match label.filter(|at| *at != text).or(other) {
            Some(label) => Ok((text, Some(label))),
            None => label_name(
                self.names.iter().enumerate().filter(|(at, _)| *at != text).map(|(_, n)| n.as_str()),
                options,
            )
            .at(place)
            .map(|name| (text, find(&name))),
        }
    }

    fn text_column(&self, label: Option<usize>) -> Option<usize> {
        let named =
            TEXTS.iter().find_map(|text| self.names.iter().position(|n| n.eq_ignore_ascii_case(text)));
        named.filter(|at| Some(*at) != label).or_else(|| {
            let others = (0..self.names.len()).filter(|at| Some(*at) != label);
            others.max_by(|a, b| self.mean_words(*a).total_cmp(&self.mean_words(*b)))
        })
    }
}

/// Whether a table's only input is a column of texts, which a table model cannot use: at least three words in the mean,
/// and hardly two of them equal.
///
/// # Errors
/// If the file cannot be read.
pub fn is_table_of_texts(file: impl AsRef<Path>, options: &RecordOptions) -> Result<bool> {
    let file: PathBuf = file.as_ref().to_path_buf();
    if is_json_lines(&file) {
        return Ok(true);
    }
    let table = CsvTable::read_written(std::slice::from_ref(&file), options.written()?)?;
    let Ok(label) = label_name(table.columns.iter().map(|c| c.name.as_str()), options) else {
        // Of two columns, the one that is not the text is the label.
        if options.label.is_some() || table.columns.len() != 2 {
            return Ok(false);
        }
        let texts = TextTable::of_csv(&file, options)?;
        return Ok((0..2).filter(|at| texts.mean_words(*at) >= 3.0).count() == 1);
    };
    if crate::records::has_table_inputs(&table, &label, options) {
        return Ok(false);
    }
    let texts = TextTable::of_csv(&file, options)?;
    let others = (0..texts.names.len()).filter(|at| texts.names.get(*at).is_some_and(|n| *n != label));
    Ok(others.into_iter().any(|at| texts.mean_words(at) >= 3.0))
}
