//! Infers the kind of labels from all records: class indices, class names, one-hot rows or regression targets.

use super::columns::{not_finite, signed_numbers};
use std::collections::BTreeSet;
use systole_base::{DType, Error, ErrorKind, Literal, Result, ensure, err};
use systole_data::{HostArray, TableColumn};

/// Maximum number of integer classes; larger labels are classes only as names, if each occurs in several records.
const MOST_NUMBERED: i64 = 1000;
/// Maximum number of distinct integers to collect.
const MOST_KEPT: usize = 1001;
/// Minimum number of records to decide whether labels are classes.
const TELLING: usize = 20;

/// Label encoding.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LabelEncoding {
    /// Class indices, unchanged.
    Classes,
    /// Class names, sorted.
    Names(Vec<String>),
    /// Classes whose names are integers, sorted.
    Numbered(Vec<i64>),
    /// One-hot row.
    OneHot,
    /// Regression targets.
    Values,
}

/// Inferred label encoding.
#[derive(Debug)]
pub(super) struct LabelDecision {
    pub labels: LabelEncoding,
    /// Class names; empty if the labels are not classes.
    pub class_names: Vec<String>,
    pub note: Option<String>,
}

/// Statistics of the labels seen so far.
pub(super) struct LabelStatistics {
    field: String,
    rows: usize,
    texts: BTreeSet<String>,
    has_texts: bool,
    dtype: DType,
    /// Number of values per label.
    width: usize,
    whole: bool,
    one_hot: bool,
    distinct: BTreeSet<i64>,
    min: f64,
    max: f64,
}

impl LabelStatistics {
    pub fn new(field: &str) -> LabelStatistics {
        LabelStatistics {
            field: field.into(),
            rows: 0,
            texts: BTreeSet::new(),
            has_texts: false,
            dtype: DType::F32,
            width: 1,
            whole: true,
            one_hot: true,
            distinct: BTreeSet::new(),
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
        }
    }

    /// Adds a record's label to the statistics; `place` returns its location.
    pub fn add(&mut self, label: &Literal, place: impl Fn() -> String) -> Result<()> {
        let width = label.ty().elements();
        if self.rows == 0 {
            self.has_texts = is_text(label);
            (self.dtype, self.width) = (label.dtype(), width);
        }
        self.rows += 1;
        if self.has_texts {
            let text = text(label)?;
            ensure!(!text.is_empty(), self.wrong("a record has no label", place()));
            if !self.texts.contains(text) {
                self.texts.insert(text.into());
            }
            return Ok(());
        }
        if width != self.width {
            let what = format!("a label has {width} values, but the first one has {}", self.width);
            return Err(self.wrong(what, place()));
        }
        let mut ones = 0;
        for v in label.to_f64s() {
            ensure!(v.is_finite(), not_finite(&self.field, &v.to_string(), &place()));
            (self.min, self.max) = (self.min.min(v), self.max.max(v));
            self.whole &= v.fract() == 0.0 && v.abs() < 9e15;
            self.one_hot &= v == 0.0 || v == 1.0;
            ones += u32::from(v == 1.0);
            if self.whole && self.distinct.len() < MOST_KEPT {
                self.distinct.insert(v as i64);
            }
        }
        self.one_hot &= ones == 1;
        Ok(())
    }

    fn wrong(&self, what: impl Into<String>, place: String) -> Error {
        Error::new(ErrorKind::Data, what)
            .at(place)
            .at(format!("field {}", self.field))
            .hint_setting("correct the record, or name the field to predict: data.records.label")
    }

    /// Chooses the label encoding from the labels seen, the given class names and the task.
    ///
    /// `told`: class names, or empty if none are given. `numbers`: true for regression, false for classification,
    /// `None` if unknown.
    pub fn decide(self, told: &[String], numbers: Option<bool>) -> Result<LabelDecision> {
        let seen = if self.has_texts { self.texts.len() } else { self.distinct.len() };
        let is_alone = seen == 1 && self.width == 1 && self.whole;
        let mut decided = self.decide_what(told, numbers)?;
        if is_alone && !decided.class_names.is_empty() {
            decided.note = Some("all records are of one class: a classifier needs at least two".into());
        }
        Ok(decided)
    }

    fn decide_what(self, told: &[String], numbers: Option<bool>) -> Result<LabelDecision> {
        let names = |labels, class_names| Ok(LabelDecision { labels, class_names, note: None });
        if self.has_texts {
            return self.named(numbers == Some(true));
        }
        if numbers == Some(true) {
            return names(LabelEncoding::Values, Vec::new());
        }
        if self.width > 1 {
            let classes = (0..self.width).map(|k| told.get(k).cloned().unwrap_or_else(|| k.to_string()));
            return match self.one_hot {
                true => names(LabelEncoding::OneHot, classes.collect()),
                false => names(LabelEncoding::Values, Vec::new()),
            };
        }
        if self.dtype == DType::Bool {
            return names(LabelEncoding::Classes, vec!["false".into(), "true".into()]);
        }
        if !told.is_empty() && self.whole {
            return match self.min >= 0.0 && self.max < told.len() as f64 {
                true => names(LabelEncoding::Classes, told.to_vec()),
                false => Err(self.beyond(told.len())),
            };
        }
        match self.classes(numbers == Some(false)) {
            Some(labels @ LabelEncoding::Classes) => {
                names(labels, (0..=self.max as i64).map(|k| k.to_string()).collect())
            }
            Some(labels) => names(labels, self.distinct.iter().map(i64::to_string).collect()),
            None => Ok(LabelDecision {
                labels: LabelEncoding::Values,
                class_names: Vec::new(),
                note: Some(self.as_numbers()),
            }),
        }
    }

    /// Interprets integers as classes; `None`: they are regression targets.
    fn classes(&self, known: bool) -> Option<LabelEncoding> {
        let (kept, rows) = (self.distinct.len(), self.rows);
        if !self.whole || kept >= MOST_KEPT {
            return None;
        }
        let numbered = || LabelEncoding::Numbered(self.distinct.iter().copied().collect());
        let is_numbered = self.min >= 0.0 && self.max < MOST_NUMBERED as f64;
        let each_is_rare = kept * 2 > rows && rows >= TELLING;
        if known {
            return Some(if is_numbered { LabelEncoding::Classes } else { numbered() });
        }
        if self.dtype.is_float() {
            // 0.0 and 1.0 are classes; missing cells elsewhere turned the column into floats.
            let all = is_numbered && !each_is_rare && kept as f64 == self.max + 1.0;
            return all.then_some(LabelEncoding::Classes);
        }
        match is_numbered {
            true => (!each_is_rare).then_some(LabelEncoding::Classes),
            false => (kept * 10 <= rows || kept <= 2).then(numbered),
        }
    }

    fn named(self, numbers: bool) -> Result<LabelDecision> {
        let field = self.field;
        if numbers {
            return Err(err!(Data, "the labels `{field}` are text, not numbers")
                .because("the loss expects numbers")
                .hint_setting("set compile.loss to sparse_categorical_crossentropy, or name another field: data.records.label"));
        }
        if self.rows >= TELLING && self.texts.len() * 2 > self.rows {
            let e = err!(Data, "the labels `{field}` do not look like classes");
            let signs = signed_numbers(self.texts.iter());
            let n = self.texts.len();
            let why = format!(
                "{} records have {n} different texts{}",
                self.rows,
                signs.clone().unwrap_or_default()
            );
            return Err(e.because(why).hint_setting(match signs {
                Some(_) => "remove the signs so that the labels become numbers",
                None => "name the field to predict: data.records.label",
            }));
        }
        let all: Vec<String> = self.texts.into_iter().collect();
        Ok(LabelDecision { labels: LabelEncoding::Names(all.clone()), class_names: all, note: None })
    }

    fn beyond(&self, classes: usize) -> Error {
        let label = if self.min < 0.0 { self.min } else { self.max };
        err!(Data, "label {label} is out of range")
            .because(format!("the classes file names {classes} classes"))
            .hint("add a line for each class to the file PREFIX.classes, or remove the file")
    }

    fn as_numbers(&self) -> String {
        format!(
            "`{}` looks like a number to predict (from {} to {}), not like classes: loss mean_squared_error",
            self.field, self.min, self.max
        )
    }
}

/// Returns the class names as the label columns of tables write them: `01` or `1.0` for the class `1`, if all cells of
/// the class are written alike.
pub(super) fn as_written<'t>(
    names: Vec<String>,
    columns: impl Iterator<Item = &'t TableColumn>,
) -> Vec<String> {
    let texts: BTreeSet<&String> =
        columns.flat_map(|c| c.texts.iter().flat_map(|texts| texts.keys())).collect();
    let written = |name: String| -> String {
        let Ok(number) = name.parse::<i64>() else { return name };
        let mut same = texts.iter().filter(|text| text.parse::<f64>() == Ok(number as f64));
        match (same.next(), same.next()) {
            (Some(only), None) => only.to_string(),
            _ => name,
        }
    };
    names.into_iter().map(written).collect()
}

/// Bytes are text unless all of them are 0 or 1, as in a one-hot row.
fn is_text(label: &Literal) -> bool {
    label.dtype() == DType::U8 && label.ty().rank() == 1 && label.bytes().iter().any(|b| *b > 1)
        || label.dtype() == DType::U8 && label.ty().elements() == 0
}

/// Decodes a label as text; NumPy pads strings with zeros.
fn text(label: &Literal) -> Result<&str> {
    std::str::from_utf8(label.bytes()).map(|t| t.trim_end_matches('\0').trim()).map_err(|_| {
        err!(Data, "a text label of the records is not UTF-8").hint("save the text file as UTF-8")
    })
}

impl LabelEncoding {
    /// Returns a record's label as the model's target: `i32[]` for classes, `f32[n]` for numbers.
    pub fn of(&self, label: &Literal) -> Result<HostArray> {
        let gone = |name: String| {
            err!(Data, "unknown class `{name}`").because("the files have changed since they were first read")
        };
        let class = match self {
            LabelEncoding::Values => return Ok(HostArray::from(label).cast(DType::F32).flatten()),
            LabelEncoding::Classes => {
                return Ok(HostArray::from(label).cast(DType::I32).reshape([] as [usize; 0]));
            }
            LabelEncoding::Names(names) => {
                let name = text(label)?;
                names.iter().position(|n| n == name).ok_or_else(|| gone(name.into()))?
            }
            LabelEncoding::Numbered(all) => {
                let number = label.to_f64s().first().map_or(0, |v| *v as i64);
                all.binary_search(&number).map_err(|_| gone(number.to_string()))?
            }
            LabelEncoding::OneHot => {
                label.to_f64s().iter().position(|v| *v == 1.0).ok_or_else(|| gone("none".into()))?
            }
        };
        Ok(HostArray::scalar(DType::I32, class as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_testing::assert_error;

    fn decide(
        labels: impl IntoIterator<Item = Literal>,
        known: impl Into<Option<bool>>,
    ) -> Result<(LabelEncoding, usize)> {
        let mut counted = LabelStatistics::new("y");
        for (i, label) in labels.into_iter().enumerate() {
            counted.add(&label, || format!("record {i}"))?;
        }
        counted.decide(&[], known.into()).map(|d| (d.labels, d.class_names.len()))
    }

    fn ints(values: impl IntoIterator<Item = i64>) -> Vec<Literal> {
        values.into_iter().map(|v| Literal::from_slice([], &[v]).unwrap()).collect()
    }

    fn floats(values: impl IntoIterator<Item = f64>) -> Vec<Literal> {
        values.into_iter().map(|v| Literal::scalar(DType::F64, v)).collect()
    }

    #[test]
    fn numbers_are_classes_where_they_look_so() {
        let each = |n: i64, rows: i64| ints((0..rows).map(move |i| i % n));
        assert_eq!(decide(each(10, 100), None).unwrap(), (LabelEncoding::Classes, 10));
        assert_eq!(decide(each(10, 100), true).unwrap(), (LabelEncoding::Values, 0));
        assert_eq!(decide(ints((0..200).map(|i| i * 1873)), None).unwrap(), (LabelEncoding::Values, 0));
        assert_eq!(decide(ints((0..200).map(|i| i % 3 * 100_000)), None).unwrap().1, 3);
        assert_eq!(
            decide(ints((0..50).map(|i| i % 2 * 2 - 1)), None).unwrap(),
            (LabelEncoding::Numbered(vec![-1, 1]), 2)
        );
        assert_eq!(
            decide(floats((0..50).map(|i| f64::from(i % 2))), None).unwrap(),
            (LabelEncoding::Classes, 2)
        );
        assert_eq!(
            decide(floats((0..50).map(|i| f64::from(i) / 3.0)), None).unwrap(),
            (LabelEncoding::Values, 0)
        );
        assert_eq!(
            decide(ints(0..50), false).unwrap(),
            (LabelEncoding::Classes, 50),
            "as a model knows them"
        );
        let e = decide(floats([0.0, f64::NAN]), None).unwrap_err();
        assert_error(&e, ErrorKind::Data, &["record 1", "`y`", "NaN"]);
    }

    #[test]
    fn one_hot_rows_truth_values_and_texts_are_classes() {
        let row = |k: usize| {
            let values: Vec<i64> = (0..3).map(|i| i64::from(i == k)).collect();
            Literal::from_slice([3], &values).unwrap()
        };
        assert_eq!(decide((0..30).map(|i| row(i % 3)), None).unwrap(), (LabelEncoding::OneHot, 3));
        assert_eq!(decide((0..30).map(|_| row(7)), None).unwrap(), (LabelEncoding::Values, 0));
        assert_eq!(LabelEncoding::OneHot.of(&row(2)).unwrap().get().unwrap().get(0).as_i64(), 2);
        let truth = |b: bool| Literal::from_bools([], &[b]).unwrap();
        assert_eq!(decide([truth(true), truth(false)], None).unwrap(), (LabelEncoding::Classes, 2));
        let text = |t: &str| Literal::from_slice([t.len()], t.as_bytes()).unwrap();
        let (labels, n) = decide((0..30).map(|i| text(["no\0\0", "yes"][i % 2])), None).unwrap();
        assert_eq!((labels.of(&text("no")).unwrap().get().unwrap().get(0).as_i64(), n), (0, 2));
        assert!(decide([text("a"), text("")], None).is_err());
        let e = decide((0..30).map(|i| text(&format!("name {i}"))), None).unwrap_err().to_string();
        assert!(e.contains("30 different") && e.contains("data.records.label"), "{e}");
    }
}
