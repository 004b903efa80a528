//! Configuration table `[data.records]`: which record files to read, and how.

use super::columns::ColumnEncoding;
use serde::{Deserialize, Deserializer, Serialize};
use systole_base::{Result, err};
use systole_data::format::example::FeatureSpecs;
use systole_data::format::tfrecord::TfRecordCompression;
use systole_data::{CsvFormat, with_defaults};

/// Default names of the label field, in order of preference.
pub(super) const LABELS: [&str; 6] = ["label", "labels", "y", "target", "class", "cls"];

with_defaults! {
    /// The `[data.records]` table: which record files to read, and how.
    ///
    /// Defaults as in tf.data's tutorials: four files at a time, 16 records of each in turn.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub struct RecordOptions {
        /// File patterns of the training set, relative to `data.dir`; default: all files except test files.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub train: Vec<String> = Vec::new(),
        /// File patterns of the test set; default: files whose names start with `test` or `val`, otherwise a fraction of
        /// the records.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub test: Vec<String> = Vec::new(),
        /// Features of Examples: `image: ui8[28, 28, 1], label: i64[]`; default: the file `PREFIX.features` next to them,
        /// or inferred from the first record.
        pub features: Option<String> = None,
        /// Image field, or numeric fields to concatenate; default: `image`, otherwise all fields except the label.
        #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "names")]
        pub inputs: Vec<String> = Vec::new(),
        /// Label field; default: the first of `label`, `labels`, `y`, `target`, `class`, `cls`, ignoring case.
        #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "name")]
        pub label: Option<String> = None,
        /// Compression of TFRecord files: `auto`, `plain`, `gzip`, `zlib`.
        pub compression: RecordCompression = RecordCompression::Auto,
        /// Maximum number of damaged records to skip, per TFRecord file; for tables and arrays, in total.
        pub skip: u64 = 0,
        /// Number of files to interleave.
        pub cycle_length: usize = 4,
        /// Number of consecutive records from each file.
        pub block_length: usize = 16,
        /// Shuffle buffer size in records; default: all records if they are in memory, otherwise 10,000.
        pub shuffle_buffer: Option<usize> = None,
        /// Folder, relative to `data.dir`, of the images that a table column lists; default: that of the table, or one next
        /// to it.
        pub pictures: Option<String> = None,
        /// Text encoding of tables: `utf-8`, `latin1`, `windows-1252`, `utf-16`, `utf-16be`; default: UTF-8, or UTF-16 if
        /// there is a byte order mark.
        pub encoding: Option<String> = None,
        /// Decimal separator of tables: `,` for numbers such as 3,25, or `.`; default: inferred.
        pub decimal: Option<String> = None,
        /// Encodings of table columns; set by training and stored with the model.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub columns: Vec<ColumnEncoding> = Vec::new(),
    }
}

/// Name of a column, or its index if a table has no header.
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

/// Serialized form of [`TfRecordCompression`], for configurations.
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
    /// Parses the feature list in [`RecordOptions::features`].
    ///
    /// # Errors
    /// If the syntax is invalid.
    pub fn parse_features(&self) -> Result<Option<FeatureSpecs>> {
        self.features.as_ref().map(|text| text.parse()).transpose()
    }

    /// Returns the table format, as far as the options set it.
    ///
    /// # Errors
    /// If the encoding is unknown, or `decimal` is neither a comma nor a point.
    pub fn written(&self) -> Result<CsvFormat> {
        let decimal_comma = match self.decimal.as_deref() {
            None => None,
            Some(",") => Some(true),
            Some(".") => Some(false),
            Some(other) => {
                let e = err!(Config, "invalid decimal separator `{other}`");
                return Err(e.hint_setting("write data.records.decimal=, for numbers such as 3,25, or data.records.decimal=. for 3.25"));
            }
        };
        Ok(CsvFormat {
            encoding: self.encoding.as_ref().map(|name| name.parse()).transpose()?,
            decimal_comma,
        })
    }
}
