//! Encodes table columns as numbers: numeric (median imputation), one-hot categories, boolean, parts of dates.
//!
//! The encoding found in training is stored with the model and applied to new tables.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;
use systole_base::{DType, Error, ErrorKind, Literal, Result, ensure, err};
use systole_data::format::csv;
use systole_data::format::date::{CalendarDate, DateFormat, civil_from_days};
use systole_data::{ColumnKind, CsvTable, Dataset, DateColumn, HostArray, Sample, TableColumn};

/// Maximum number of categories of a column.
const MOST_CATEGORIES: usize = 100;
/// Maximum number of categories listed in messages.
const NAMED: usize = 8;
/// Number of values for a date without a time: days, years, month, day of the month, weekday.
const DATE_PARTS: usize = 5;

/// Encoding of one table column: an entry of `data.records.columns`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnEncoding {
    /// Name of the column.
    pub name: String,
    /// Replacement for missing numbers; for dates, days since 1970-01-01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// Categories for one-hot encoding; the empty string stands for empty cells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Whether the cells are true and false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub boolean: bool,
    /// Format of dates.
    #[serde(default, with = "date_format", skip_serializing_if = "Option::is_none")]
    pub date: Option<DateFormat>,
    /// Day from which the days and years of dates are counted, in days since 1970-01-01: the earliest in training.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: i64,
    /// Whether the dates have a time of day.
    #[serde(default, skip_serializing_if = "is_false")]
    pub time: bool,
}

/// Serializes a [`DateFormat`] by name.
mod date_format {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use systole_data::format::date::DateFormat;

    pub fn serialize<S: Serializer>(format: &Option<DateFormat>, serializer: S) -> Result<S::Ok, S::Error> {
        format.map(DateFormat::name).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateFormat>, D::Error> {
        let Some(name) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let known = DateFormat::ALL.map(DateFormat::name).join(", ");
        let unknown = |()| D::Error::custom(format!("unknown date format `{name}`, expected one of {known}"));
        name.parse().map(Some).map_err(unknown)
    }
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ColumnEncoding {
    /// Creates the encoding of a numeric column without missing cells.
    pub(super) fn number(name: &str) -> ColumnEncoding {
        ColumnEncoding {
            name: name.into(),
            median: None,
            categories: Vec::new(),
            boolean: false,
            date: None,
            since: 0,
            time: false,
        }
    }

    /// Number of values that a cell is encoded to.
    pub fn width(&self) -> usize {
        match self.date {
            Some(_) => DATE_PARTS + usize::from(self.time),
            None => self.categories.len().max(1),
        }
    }

    /// Formats an encoded cell as `city Oslo`; `values: f32[width]`.
    pub fn describe(&self, values: &[f32]) -> String {
        let mut text = self.name.clone();
        // Writing to a string cannot fail.
        let _ = match (self.date, values) {
            (Some(_), [days, ..]) => {
                write!(text, " {}", CalendarDate::from_days(self.since as f64 + f64::from(*days), self.time))
            }
            _ if !self.categories.is_empty() => {
                let at = values.iter().position(|v| *v == 1.0).and_then(|at| self.categories.get(at));
                write!(text, " {}", at.map_or("?", String::as_str))
            }
            (_, [value]) if self.boolean => write!(text, " {}", *value == 1.0),
            (_, values) => values.iter().try_for_each(|v| write!(text, " {v}")),
        };
        text
    }

    fn is_text(&self) -> bool {
        self.boolean || !self.categories.is_empty() || self.date.is_some()
    }

    /// Encodes the dates of a column. Missing dates become the median.
    fn of_dates(name: &str, dates: &[&DateColumn], has_gaps: bool) -> Option<ColumnEncoding> {
        let first = dates.first()?;
        let earliest = dates.iter().map(|d| d.earliest.fractional_days()).fold(f64::INFINITY, f64::min);
        Some(ColumnEncoding {
            date: Some(first.format),
            since: earliest.floor() as i64,
            time: dates.iter().any(|d| d.has_time),
            median: has_gaps.then_some(first.median),
            ..ColumnEncoding::number(name)
        })
    }

    /// Returns a note that explains how a column of dates is encoded; `None` for other columns. `is_ambiguous`: the
    /// dates could also be in another format.
    fn date_note(&self, is_ambiguous: bool) -> Option<String> {
        let format = self.date?;
        let since = CalendarDate::from_days(self.since as f64, false);
        let hour = if self.time { ", hour" } else { "" };
        let read = match is_ambiguous {
            true => format!(", read as {} (write them as 2024-12-31 to be sure)", format.pattern()),
            false => String::new(),
        };
        let name = &self.name;
        Some(format!(
            "the column `{name}` contains dates{read}: the inputs are days and years since {since}, month, day, weekday{hour}"
        ))
    }

    /// Appends the parts of a date to `out`: days and years since the first date in training, month, day of the month,
    /// weekday (Monday is 0), and the hour if the column has times.
    fn put_date(&self, date: &CalendarDate, out: &mut Vec<f32>) {
        let (year, month, day) = date.civil();
        let (first_year, _, _) = civil_from_days(self.since);
        out.push((date.fractional_days() - self.since as f64) as f32);
        out.extend([year - first_year, month, day, date.weekday()].map(|part| part as f32));
        out.extend(self.time.then(|| date.hour() as f32));
    }

    /// Parses a date cell; a missing one is the median. `None`: it is not such a date.
    fn date_of(&self, cell: &str) -> Option<CalendarDate> {
        match csv::is_missing(cell) {
            true => self.median.map(|days| CalendarDate::from_days(days, self.time)),
            false => self.date?.parse(cell),
        }
    }

    /// Chooses the encoding of a column from these tables; the error says why the column cannot be used.
    fn of(name: &str, tables: &[&CsvTable]) -> Result<ColumnEncoding, String> {
        let columns: Vec<&TableColumn> = tables.iter().filter_map(|t| t.column(name)).collect();
        let filled = || columns.iter().filter(|c| c.kind != ColumnKind::Empty);
        let all = |kinds: &[ColumnKind]| filled().all(|c| kinds.contains(&c.kind));
        let has_gaps = columns.iter().any(|c| c.gaps > 0);
        let mut code = ColumnEncoding::number(name);
        ensure!(filled().next().is_some(), "it has no values".into());
        if all(&[ColumnKind::Integer, ColumnKind::Number]) {
            code.median = filled().find_map(|c| c.median);
        } else if all(&[ColumnKind::Boolean]) && !has_gaps {
            code.boolean = true;
        } else if let Some(code) = common_dates(&columns, has_gaps, name) {
            return Ok(code);
        } else {
            let texts = filled().map(|c| c.texts.as_ref().map(|t| t.keys().cloned().collect::<Vec<_>>()));
            let Some(texts) = texts.collect::<Option<Vec<_>>>() else {
                return Err("it has more than 1000 different texts".into());
            };
            let mut texts: BTreeSet<String> = texts.into_iter().flatten().collect();
            if texts.len() > MOST_CATEGORIES {
                let signs = signed_numbers(texts.iter()).unwrap_or_default();
                return Err(format!("it has {} different texts{signs}", texts.len()));
            }
            if has_gaps {
                texts.insert(String::new());
            }
            code.categories = texts.into_iter().collect();
        }
        Ok(code)
    }

    /// Returns an error if a cell does not match the encoding; names its location.
    fn check(&self, table: &CsvTable) -> Result<()> {
        let Some(column) = table.column(&self.name) else { return Err(no_field(&self.name, table)) };
        if let Some((value, place)) = &column.not_finite {
            return Err(not_finite(&self.name, value, place));
        }
        if let Some(format) = self.date {
            return self.check_dates(column, format);
        }
        let (name, is_number) = (&self.name, !self.is_text());
        match (&column.not_a_number, &column.first_gap) {
            (Some((value, place)), _) if is_number => {
                return Err(err!(Data, "the field `{name}` holds text: {value:?}")
                    .at(place.clone())
                    .because("the column is numeric in the other rows or in the training data")
                    .hint("enter a number, or leave the cell empty to use the column's median"));
            }
            (_, Some(place)) if (is_number && self.median.is_none()) || self.boolean => {
                return Err(err!(Data, "the field `{name}` is empty")
                    .at(place.clone())
                    .hint("enter a value; in training this column had no empty cells"));
            }
            _ => {}
        }
        self.check_texts(column)
    }

    fn check_dates(&self, column: &TableColumn, format: DateFormat) -> Result<()> {
        let wrong = column.not_a_date.iter().find(|(other, _)| *other == format);
        let gap = column.first_gap.as_ref().filter(|_| self.median.is_none());
        let (what, place) = match (wrong, gap) {
            (Some((_, (cell, place))), _) => {
                (format!("is not a date of the expected format: {cell:?}"), place)
            }
            (None, Some(place)) => ("is empty".into(), place),
            (None, None) => return Ok(()),
        };
        Err(err!(Data, "the field `{}` {what}", self.name)
            .at(place.clone())
            .because(format!("in training the column had dates as {}", format.pattern()))
            .hint("correct the cell, or train again with such rows"))
    }

    fn check_texts(&self, column: &TableColumn) -> Result<()> {
        let known = |text: &String| match self.boolean {
            true => csv::boolean(text).is_some(),
            false => self.categories.contains(text),
        };
        if self.is_text() && column.texts.is_none() {
            return Err(err!(Data, "the field `{}` has more than 1000 different texts", self.name)
                .because("in training the column was categorical")
                .hint("check that this is the column used in training"));
        }
        let unknown = column.texts.iter().flatten().find(|(text, _)| self.is_text() && !known(text));
        let gap = column.first_gap.iter().find(|_| !self.categories.is_empty() && !known(&String::new()));
        let (value, place) = match (unknown, gap) {
            (Some((value, place)), _) => (value.as_str(), place),
            (None, Some(place)) => ("", place),
            (None, None) => return Ok(()),
        };
        let shown: Vec<String> = self.categories.iter().take(NAMED).map(|c| format!("{c:?}")).collect();
        let more = if self.categories.len() > NAMED { ", …" } else { "" };
        let there = if self.boolean { "true, false".into() } else { shown.join(", ") + more };
        Err(err!(Data, "the field `{}` has a value that does not occur in training: {value:?}", self.name)
            .at(place.clone())
            .because(format!("the values in training were {there}"))
            .hint("correct the cell, or train again with such rows"))
    }

    /// Encodes a row whose cells are strings and appends the values to `out`; invalid cells are an error about this
    /// row.
    fn put_text(&self, row: &Sample, decimal_comma: bool, out: &mut Vec<f32>) -> Result<()> {
        let (cell, name) = (row.text(&self.name)?.trim(), &self.name);
        let wrong = |what: String| {
            Error::new(ErrorKind::Data, what).because("the cell does not match the column's type in training")
        };
        let is_gap = csv::is_missing(cell);
        if !self.is_text() {
            let number = match (cell.parse::<f64>(), csv::comma_number(cell)) {
                (Ok(v), _) => Some(v),
                (_, Some(v)) if decimal_comma => Some(v),
                _ => None,
            };
            let value = match (number, self.median, is_gap) {
                (Some(v), ..) if v.is_finite() => v,
                (Some(_), ..) => return Err(wrong(format!("the field `{name}` is not finite: `{cell}`"))),
                (None, Some(median), true) => median,
                (None, None, true) => return Err(wrong(format!("the field `{name}` is empty"))),
                (None, _, false) => return Err(wrong(format!("the field `{name}` holds text: {cell:?}"))),
            };
            out.push(value as f32);
            return Ok(());
        }
        if let Some(format) = self.date {
            let date = self.date_of(cell).ok_or_else(|| {
                wrong(format!("the field `{name}` is not a date as {}: {cell:?}", format.pattern()))
            })?;
            self.put_date(&date, out);
            return Ok(());
        }
        let text = if is_gap { "" } else { cell };
        let unknown =
            || wrong(format!("the field `{name}` has a value that does not occur in training: {text:?}"));
        if self.boolean {
            out.push(f32::from(csv::boolean(text).ok_or_else(unknown)?));
            return Ok(());
        }
        let at = self.categories.iter().position(|c| c == text).ok_or_else(unknown)?;
        out.extend((0..self.categories.len()).map(|k| f32::from(k == at)));
        Ok(())
    }

    /// Encodes a row and appends the values to `out`.
    fn put(&self, row: &Sample, out: &mut Vec<f32>) -> Result<()> {
        let lost = |text: &str| {
            err!(Data, "the field `{}` has the new value {text:?}", self.name)
                .because("the file has changed since it was first read")
        };
        if !self.is_text() {
            let values = row.get(&self.name)?.convert(DType::F32).to_f32s();
            let median = self.median.map_or(f32::NAN, |m| m as f32);
            out.extend(values.iter().map(|v| if v.is_nan() { median } else { *v }));
            return Ok(());
        }
        let text = row.text(&self.name)?;
        if self.date.is_some() {
            self.put_date(&self.date_of(text).ok_or_else(|| lost(text))?, out);
            return Ok(());
        }
        if self.boolean {
            out.push(f32::from(csv::boolean(text).ok_or_else(|| lost(text))?));
            return Ok(());
        }
        let at = self.categories.iter().position(|c| c == text).ok_or_else(|| lost(text))?;
        out.extend((0..self.categories.len()).map(|k| f32::from(k == at)));
        Ok(())
    }
}

/// Returns the encodings of the input columns, and notes about the columns that are skipped.
///
/// `told` are known encodings; `inputs` are the selected columns, or all except the label if empty.
pub(super) fn codes(
    tables: &[&CsvTable],
    label: &str,
    inputs: &[String],
    told: &[ColumnEncoding],
) -> Result<(Vec<ColumnEncoding>, Vec<String>)> {
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    let Some(first) = tables.first() else { return Ok((all, notes)) };
    let wanted = || inputs.iter().chain(told.iter().map(|c| &c.name).filter(|_| inputs.is_empty()));
    if let Some(lacking) = wanted().find(|name| first.column(name).is_none()) {
        return Err(no_field(lacking, first));
    }
    for column in &first.columns {
        let name = &column.name;
        if *name == label || !(inputs.is_empty() || inputs.contains(name)) {
            continue;
        }
        let reason = match told.iter().find(|c| c.name == *name) {
            Some(code) => {
                all.push(code.clone());
                continue;
            }
            None if inputs.is_empty() && !told.is_empty() => continue,
            None if inputs.is_empty() && numbers_rows(column) => "it only numbers the rows".into(),
            None => match ColumnEncoding::of(name, tables) {
                Ok(code) => {
                    notes.extend(code.date_note(column.dates.len() > 1));
                    all.push(code);
                    continue;
                }
                Err(reason) => reason,
            },
        };
        if !inputs.is_empty() {
            return Err(err!(Data, "cannot use the column `{name}` as an input")
                .because(reason)
                .hint_setting(format!("remove `{name}` from data.records.inputs")));
        }
        if column.is_named || column.kind != ColumnKind::Empty {
            notes.push(format!("the column `{name}` is skipped: {reason}"));
        }
    }
    all.sort_by_key(|c| wanted().position(|name| *name == c.name));
    tables.iter().try_for_each(|t| all.iter().try_for_each(|c| c.check(t)))?;
    Ok((all, notes))
}

/// Returns the encoding of a column whose cells are dates in all tables, in a format that fits all of them.
fn common_dates(columns: &[&TableColumn], has_gaps: bool, name: &str) -> Option<ColumnEncoding> {
    let filled: Vec<&&TableColumn> = columns.iter().filter(|c| c.kind != ColumnKind::Empty).collect();
    let of = |format: DateFormat| {
        let dates = filled.iter().map(|c| c.dates.iter().find(|d| d.format == format));
        dates.collect::<Option<Vec<&DateColumn>>>()
    };
    let is_dates = filled.iter().all(|c| c.kind == ColumnKind::Date);
    let dates = DateFormat::ALL.into_iter().filter(|_| is_dates).find_map(of)?;
    ColumnEncoding::of_dates(name, &dates, has_gaps)
}

/// Returns an example and advice if the texts are numbers with currency signs, percent signs or thousands separators.
pub(super) fn signed_numbers<'t>(texts: impl Iterator<Item = &'t String>) -> Option<String> {
    let is_sign = |c: char| "$€£¥%,'_".contains(c) || c.is_whitespace();
    let plain = |text: &str| text.replace(is_sign, "").parse::<f64>().is_ok();
    let mut some = None;
    for text in texts.filter(|t| !t.is_empty()).take(100) {
        if !plain(text) {
            return None;
        }
        some = some.or_else(|| text.contains(is_sign).then(|| text.clone()));
    }
    some.map(|text| {
        format!(", such as `{text}`; remove its signs ($ % , …) from the file to make it a number")
    })
}

/// Whether the column contains row numbers, which would reveal the label of sorted data.
fn numbers_rows(column: &TableColumn) -> bool {
    let name = column.name.to_lowercase();
    column.counts_up && (!column.is_named || ["index", "id", "unnamed: 0"].contains(&name.as_str()))
}

/// Returns an error for a missing or non-finite label.
pub(super) fn check_label(table: &CsvTable, label: &str) -> Result<()> {
    let Some(column) = table.column(label) else { return Err(no_field(label, table)) };
    match (&column.first_gap, &column.not_finite) {
        (Some(place), _) => Err(err!(Data, "a row has no label `{label}`")
            .at(place.clone())
            .because(format!("the label is missing in {} of {} rows", column.gaps, table.rows))
            .hint_setting("enter the label, remove the row, or name another column: data.records.label")),
        (_, Some((value, place))) => Err(not_finite(label, value, place)),
        _ => Ok(()),
    }
}

/// Returns an error about a non-finite value.
pub(super) fn not_finite(field: &str, value: &str, place: &str) -> Error {
    err!(Data, "the field `{field}` is not finite: `{value}`")
        .at(place)
        .because("training on values that are not finite would make all weights NaN")
        .hint("enter a number; in a table, an empty cell stands for the column's median")
}

fn no_field(name: &str, table: &CsvTable) -> Error {
    let there: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
    let e = err!(Data, "the records have no field `{name}`")
        .at(table.files.first().map_or(String::new(), |f| f.display().to_string()))
        .because(format!("the fields of the records are `{}`", there.join("`, `")));
    match table.has_header {
        true => e.hint_setting("give the columns the names that they had in training, or name others: data.records.inputs, data.records.label"),
        false => e.hint_setting(
            "add a header line to the file: the first line contains numbers; or name the columns by number: data.records.inputs, \
             data.records.label",
        ),
    }
}

/// Returns the rows with the columns that the encodings need, and the label if present.
pub(super) fn rows(table: &CsvTable, codes: &[ColumnEncoding], label: Option<&str>) -> Dataset {
    table.dataset_as(|column| {
        if label == Some(column.name.as_str()) {
            return Some(column.dtype());
        }
        let code = codes.iter().find(|c| c.name == column.name)?;
        Some(if code.is_text() { DType::U8 } else { DType::F32 })
    })
}

/// Returns the encoded rows of a table: `x: f32[n]`, plus the cells as strings. An invalid row is an error in its
/// position.
pub(super) fn rows_one_by_one(table: &CsvTable, codes: &[ColumnEncoding]) -> Result<Dataset> {
    if let Some(lacking) = codes.iter().find(|code| table.column(&code.name).is_none()) {
        return Err(no_field(&lacking.name, table));
    }
    let cells = table.dataset_as(|c| codes.iter().any(|code| code.name == c.name).then_some(DType::U8));
    let (codes, decimal_comma) = (codes.to_vec(), table.has_decimal_comma());
    Ok(cells.map(move |row| {
        let mut all = Vec::new();
        codes.iter().try_for_each(|code| code.put_text(&row, decimal_comma, &mut all))?;
        Sample::new([("x", Literal::from_slice([all.len()], &all)?)]).check()
    }))
}

/// Encodes a row as the model's input: `x: f32[n]`.
pub(super) fn encode(row: &Sample, codes: &[ColumnEncoding], count: usize) -> Result<HostArray> {
    let mut all = Vec::with_capacity(count);
    codes.iter().try_for_each(|code| code.put(row, &mut all))?;
    Ok(Literal::from_slice([count], &all)?.into())
}
