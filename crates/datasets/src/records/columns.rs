//! How the columns of a table become numbers: as they are, with the median where a cell is empty; texts as 0 and 1 for each
//! category; true and false as 1 and 0. What was chosen in training is kept with the model, so that others' rows are read
//! the same way.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use systole_base::{DType, Error, ErrorKind, Literal, Result};
use systole_data::format::csv;
use systole_data::{ColumnKind, CsvTable, Dataset, HostArray, Sample, TableColumn};

/// A column with more different texts is no list of categories.
const MOST_CATEGORIES: usize = 100;
/// Categories that are named in messages.
const NAMED: usize = 8;

/// How a column becomes numbers: an entry of `data.records.columns`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnEncoding {
    /// The column's name.
    pub name: String,
    /// What stands where a number is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// The texts; each becomes a number that is 1 where the cell has it, else 0. The empty one stands for empty cells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Whether the cells are true and false.
    #[serde(default, skip_serializing_if = "is_false")]
    pub boolean: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl ColumnEncoding {
    /// A column of numbers without gaps.
    pub(super) fn number(name: &str) -> ColumnEncoding {
        ColumnEncoding { name: name.into(), median: None, categories: Vec::new(), boolean: false }
    }

    /// How many numbers a cell becomes.
    pub fn width(&self) -> usize {
        self.categories.len().max(1)
    }

    fn is_text(&self) -> bool {
        self.boolean || !self.categories.is_empty()
    }

    /// By what the column of a name holds in these tables; the other one: why it cannot be learned from.
    fn of(name: &str, tables: &[&CsvTable]) -> Result<ColumnEncoding, String> {
        let columns: Vec<&TableColumn> = tables.iter().filter_map(|t| t.column(name)).collect();
        let filled = || columns.iter().filter(|c| c.kind != ColumnKind::Empty);
        let all = |kinds: &[ColumnKind]| filled().all(|c| kinds.contains(&c.kind));
        let has_gaps = columns.iter().any(|c| c.gaps > 0);
        let mut code = ColumnEncoding::number(name);
        if filled().next().is_none() {
            return Err("it has no values".into());
        }
        if all(&[ColumnKind::Integer, ColumnKind::Number]) {
            code.median = filled().find_map(|c| c.median);
        } else if all(&[ColumnKind::Boolean]) && !has_gaps {
            code.boolean = true;
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

    /// Refuses a column whose cells are not as in training: each with its place.
    fn check(&self, table: &CsvTable) -> Result<()> {
        let Some(column) = table.column(&self.name) else { return Err(no_field(&self.name, table)) };
        if let Some((value, place)) = &column.not_finite {
            return Err(not_finite(&self.name, value, place));
        }
        let (name, is_number) = (&self.name, !self.is_text());
        match (&column.not_a_number, &column.first_gap) {
            (Some((value, place)), _) if is_number => {
                return Err(Error::new(ErrorKind::Data, format!("the field `{name}` holds text: {value:?}"))
                    .at(place.clone())
                    .because("the other cells of this column are numbers, or were in training")
                    .hint(
                        "put a number there, or leave the cell empty: then the column's median stands there",
                    ));
            }
            (_, Some(place)) if (is_number && self.median.is_none()) || self.boolean => {
                return Err(Error::new(ErrorKind::Data, format!("the field `{name}` is empty"))
                    .at(place.clone())
                    .hint("fill it in; in training this column had no empty cells"));
            }
            _ => {}
        }
        self.check_texts(column)
    }

    fn check_texts(&self, column: &TableColumn) -> Result<()> {
        let known = |text: &String| match self.boolean {
            true => csv::boolean(text).is_some(),
            false => self.categories.contains(text),
        };
        if self.is_text() && column.texts.is_none() {
            return Err(Error::new(
                ErrorKind::Data,
                format!("the field `{}` has more than 1000 different texts", self.name),
            )
            .because("in training it had a few, each a category")
            .hint("check that the column is the one that training had under this name"));
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
        Err(Error::new(
            ErrorKind::Data,
            format!("the field `{}` has a value that training did not have: {value:?}", self.name),
        )
        .at(place.clone())
        .because(format!("its values were {there}"))
        .hint("correct the cell, or train again with such rows"))
    }

    /// Appends the numbers of a row whose cells are texts; what training would refuse is an error about this row.
    fn put_text(&self, row: &Sample, decimal_comma: bool, out: &mut Vec<f32>) -> Result<()> {
        let (cell, name) = (row.text(&self.name)?.trim(), &self.name);
        let wrong =
            |what: String| Error::new(ErrorKind::Data, what).because("the cells of training were not so");
        let is_gap = csv::is_missing(cell);
        if !self.is_text() {
            let number = match (cell.parse::<f64>(), csv::comma_number(cell)) {
                (Ok(v), _) => Some(v),
                (_, Some(v)) if decimal_comma => Some(v),
                _ => None,
            };
            let value = match (number, self.median, is_gap) {
                (Some(v), ..) if v.is_finite() => v,
                (Some(_), ..) => return Err(wrong(format!("the field `{name}` is not finite: {cell}"))),
                (None, Some(median), true) => median,
                (None, None, true) => return Err(wrong(format!("the field `{name}` is empty"))),
                (None, _, false) => return Err(wrong(format!("the field `{name}` holds text: {cell:?}"))),
            };
            out.push(value as f32);
            return Ok(());
        }
        let text = if is_gap { "" } else { cell };
        let unknown =
            || wrong(format!("the field `{name}` has a value that training did not have: {text:?}"));
        if self.boolean {
            out.push(f32::from(csv::boolean(text).ok_or_else(unknown)?));
            return Ok(());
        }
        let at = self.categories.iter().position(|c| c == text).ok_or_else(unknown)?;
        out.extend((0..self.categories.len()).map(|k| f32::from(k == at)));
        Ok(())
    }

    /// Appends a row's numbers.
    fn put(&self, row: &Sample, out: &mut Vec<f32>) -> Result<()> {
        let lost = |text: &str| {
            Error::new(ErrorKind::Data, format!("the field `{}` has the new value {text:?}", self.name))
                .because("the file was read before and did not have it: it was changed")
        };
        if !self.is_text() {
            let values = row.get(&self.name)?.convert(DType::F32).to_f32s();
            let median = self.median.map_or(f32::NAN, |m| m as f32);
            out.extend(values.iter().map(|v| if v.is_nan() { median } else { *v }));
            return Ok(());
        }
        let text = row.text(&self.name)?;
        if self.boolean {
            out.push(f32::from(csv::boolean(text).ok_or_else(|| lost(text))?));
            return Ok(());
        }
        let at = self.categories.iter().position(|c| c == text).ok_or_else(|| lost(text))?;
        out.extend((0..self.categories.len()).map(|k| f32::from(k == at)));
        Ok(())
    }
}

/// The codes of the columns to learn from, and what is to be said of those that are left out.
///
/// `told` are codes that are known already, `inputs` the columns that are asked for; none: all but the label.
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
            None if inputs.is_empty() && numbers_rows(column) => "it numbers the rows".into(),
            None => match ColumnEncoding::of(name, tables) {
                Ok(code) => {
                    all.push(code);
                    continue;
                }
                Err(reason) => reason,
            },
        };
        if !inputs.is_empty() {
            return Err(Error::new(
                ErrorKind::Data,
                format!("nothing can be learned from the column `{name}`"),
            )
            .because(reason)
            .hint("leave it out of data.records.inputs"));
        }
        if column.is_named || column.kind != ColumnKind::Empty {
            notes.push(format!("the column `{name}` is left out: {reason}"));
        }
    }
    all.sort_by_key(|c| wanted().position(|name| *name == c.name));
    tables.iter().try_for_each(|t| all.iter().try_for_each(|c| c.check(t)))?;
    Ok((all, notes))
}

/// Of texts that are numbers but for signs of money, shares or thousands: one of them, and what could be done.
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
        format!(
            ", such as `{text}`: it would be a number without its signs ($ % , …), take them out of the file"
        )
    })
}

/// Whether programs wrote the number of the row into a column of its own. It would tell the label of sorted data.
fn numbers_rows(column: &TableColumn) -> bool {
    let name = column.name.to_lowercase();
    column.counts_up && (!column.is_named || ["index", "id", "unnamed: 0"].contains(&name.as_str()))
}

/// Refuses rows without a label, and labels that are not finite.
pub(super) fn check_label(table: &CsvTable, label: &str) -> Result<()> {
    let Some(column) = table.column(label) else { return Err(no_field(label, table)) };
    match (&column.first_gap, &column.not_finite) {
        (Some(place), _) => Err(Error::new(ErrorKind::Data, format!("a row has no `{label}`"))
            .at(place.clone())
            .because(format!(
                "{} of {} rows have none, and it is what is to be predicted",
                column.gaps, table.rows
            ))
            .hint("fill it in, take the row out, or name another column: data.records.label")),
        (_, Some((value, place))) => Err(not_finite(label, value, place)),
        _ => Ok(()),
    }
}

/// An error about a value that is not finite.
pub(super) fn not_finite(field: &str, value: &str, place: &str) -> Error {
    Error::new(ErrorKind::Data, format!("the field `{field}` is not finite: {value}"))
        .at(place)
        .because("training on it makes all weights NaN")
        .hint("put a number there; in a table an empty cell stands for the column's median")
}

fn no_field(name: &str, table: &CsvTable) -> Error {
    let there: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
    let e = Error::new(ErrorKind::Data, format!("the records have no field `{name}`"))
        .at(table.files.first().map_or(String::new(), |f| f.display().to_string()))
        .because(format!("their fields are {}", there.join(", ")));
    match table.has_header {
        true => e.hint("give the columns the names that they had in training, or name others: data.records.inputs, data.records.label"),
        false => e.hint("the first line holds numbers, so that columns go by their number from 0: data.records.label=2; or give the file a line of names"),
    }
}

/// The rows of a table with what the codes need of them, and the label where there is one.
pub(super) fn rows(table: &CsvTable, codes: &[ColumnEncoding], label: Option<&str>) -> Dataset {
    table.dataset_as(|column| {
        if label == Some(column.name.as_str()) {
            return Some(column.dtype());
        }
        let code = codes.iter().find(|c| c.name == column.name)?;
        Some(if code.is_text() { DType::U8 } else { DType::F32 })
    })
}

/// The rows of a table with the cells that the codes need as texts, and the numbers that these become: `x: f32[n]`. What
/// is wrong with a row is an error in its place.
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

/// A row as a model takes it: `x: f32[n]`.
pub(super) fn encode(row: &Sample, codes: &[ColumnEncoding], count: usize) -> Result<HostArray> {
    let mut all = Vec::with_capacity(count);
    codes.iter().try_for_each(|code| code.put(row, &mut all))?;
    Ok(Literal::from_slice([count], &all)?.into())
}
