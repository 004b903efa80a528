//! How files of records become a data set: the table `data.records`.

use super::columns::ColumnEncoding;
use serde::{Deserialize, Deserializer, Serialize};
use systole_base::{Error, ErrorKind, Result};
use systole_data::CsvFormat;
use systole_data::format::example::FeatureSpecs;
use systole_data::format::tfrecord::TfRecordCompression;

/// Fields that hold the label where nobody says which, in order of preference.
pub(super) const LABELS: [&str; 6] = ["label", "labels", "y", "target", "class", "cls"];

/// How files of records become a data set: the table `data.records`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordOptions {
    /// Patterns of the files to train on, below `data.dir`; none: those in the folder that are not for testing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,
    /// Patterns of the files to test on; none: those whose names begin with `test` or `val`, else a part of the records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub test: Vec<String>,
    /// What Examples hold: `image: ui8[28, 28, 1], label: i64[]`; none: the file `PREFIX.features` beside them, or what
    /// the first record shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// The field with the picture, or the fields whose numbers are put side by side; none: `image`, else all others.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "names")]
    pub inputs: Vec<String>,
    /// The field to predict; none: the first of `label`, `labels`, `y`, `target`, `class`, `cls`, whatever their case.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "name")]
    pub label: Option<String>,
    /// Around TFRecord files: `auto`, `plain`, `gzip`, `zlib`.
    pub compression: RecordCompression,
    /// Damaged records that may be left out of each file; of tables and arrays: of all files.
    pub skip: u64,
    /// Files that are read at a time.
    pub cycle_length: usize,
    /// Records that each of them gives in turn.
    pub block_length: usize,
    /// Records that a shuffle draws from; none: all where they lie in memory, else 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle_buffer: Option<usize>,
    /// The folder, below `data.dir`, of the pictures that a column of a table names; none: that of the table, or one beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pictures: Option<String>,
    /// What the text of tables is: `utf-8`, `latin1`, `windows-1252`, `utf-16`, `utf-16be`; none: UTF-8, or UTF-16 where the
    /// first bytes say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// `,` where numbers of tables are written 3,25, else `.`; none: told by the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decimal: Option<String>,
    /// How the columns of tables become numbers, where that is known: training finds it out and keeps it with the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnEncoding>,
}

/// A column's name, or its number where a table has no header.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected the name of a field, or its number")]
enum ColumnName {
    Text(String),
    Number(u32),
}

impl From<ColumnName> for String {
    fn from(name: ColumnName) -> String {
        match name {
            ColumnName::Text(text) => text,
            ColumnName::Number(number) => number.to_string(),
        }
    }
}

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<ColumnName>::deserialize(deserializer)?.map(String::from))
}

fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Vec::<ColumnName>::deserialize(deserializer)?.into_iter().map(String::from).collect())
}

/// [`Compression`] as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum RecordCompression {
    #[default]
    Auto,
    Plain,
    Gzip,
    Zlib,
}

impl From<RecordCompression> for TfRecordCompression {
    fn from(packed: RecordCompression) -> TfRecordCompression {
        match packed {
            RecordCompression::Auto => TfRecordCompression::Auto,
            RecordCompression::Plain => TfRecordCompression::None,
            RecordCompression::Gzip => TfRecordCompression::Gzip,
            RecordCompression::Zlib => TfRecordCompression::Zlib,
        }
    }
}

impl RecordOptions {
    /// [`RecordOptions::features`], read.
    ///
    /// # Errors
    /// When they are not written as features are.
    pub fn parse_features(&self) -> Result<Option<FeatureSpecs>> {
        self.features.as_ref().map(|text| text.parse()).transpose()
    }

    /// How tables are written, as far as that is told.
    ///
    /// # Errors
    /// When there is no such encoding, or `decimal` is neither a comma nor a point.
    pub fn written(&self) -> Result<CsvFormat> {
        let decimal_comma = match self.decimal.as_deref() {
            None => None,
            Some(",") => Some(true),
            Some(".") => Some(false),
            Some(other) => {
                let e = Error::new(ErrorKind::Config, format!("numbers have no decimal sign `{other}`"));
                return Err(e.hint("write data.records.decimal=, for numbers such as 3,25, or data.records.decimal=. for 3.25"));
            }
        };
        Ok(CsvFormat {
            encoding: self.encoding.as_ref().map(|name| name.parse()).transpose()?,
            decimal_comma,
        })
    }
}

impl Default for RecordOptions {
    /// tf.data's tutorials: four files at a time, 16 records of each in turn.
    fn default() -> RecordOptions {
        RecordOptions {
            train: Vec::new(),
            test: Vec::new(),
            features: None,
            inputs: Vec::new(),
            label: None,
            compression: RecordCompression::Auto,
            skip: 0,
            cycle_length: 4,
            block_length: 16,
            shuffle_buffer: None,
            pictures: None,
            encoding: None,
            decimal: None,
            columns: Vec::new(),
        }
    }
}
