//! Parses and writes tf.train.Example and SequenceExample, the usual messages of TFRecord files.
//!
//! [`FeatureSpecs`] describes the fields, like the dictionary of tf.io.parse_single_example. It has a text form (`image:
//! ui8[28, 28, 1], label: i64[]`) for command lines and files. There are no string arrays: bytes become `ui8[n]`, and
//! lists of byte strings one `ui8[total]` with row splits.

use super::protobuf_wire::{ProtoFieldValue, ProtoFields, put_bytes, put_varint};
use crate::host_array::cast;
use crate::sample::{ElementSpec, Sample};
use crate::{Dataset, HostArray};
use smallvec::{SmallVec, smallvec};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use systole_base::{DType, Error, Literal, Result, Shape, TensorType, ensure, err};

/// Description of one feature of a tf.train.Example, and the array it is parsed to.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureSpec {
    /// `T[shape]` from a list of exactly that many numbers (tf.io.FixedLenFeature).
    Fixed {
        /// Type: integers are read from int64 lists, floats from float lists.
        ty: TensorType,
        /// Default if the record lacks the feature; without it that is an error.
        default: Option<Literal>,
    },
    /// `T[steps, shape…]` from any number of complete rows (tf.io.FixedLenSequenceFeature).
    Sequence {
        /// Type of one row.
        row: TensorType,
    },
    /// `T[n]` from a list of any length, empty if missing (tf.io.VarLenFeature, converted to dense).
    VarLen {
        /// Element type.
        dtype: DType,
    },
    /// `NAME: T[n]` and `NAME/row_splits: i64[rows + 1]` for each partition (tf.io.RaggedFeature).
    Ragged {
        /// Element type of the values.
        dtype: DType,
        /// Name of the feature that contains the values.
        values: Arc<str>,
        /// Row partitions, outermost first.
        partitions: Vec<RaggedPartition>,
    },
    /// `ui8[n]` from one byte string (FixedLenFeature([], tf.string)): a file's content, a text.
    Bytes {
        /// Default if the record lacks the feature.
        default: Option<Vec<u8>>,
    },
    /// `NAME: ui8[total]` and `NAME/row_splits: i64[k + 1]` from any number of byte strings.
    ByteLists,
    /// `T[shape]` from one byte string with the array's little-endian bytes (tf.io.decode_raw).
    Raw {
        /// Type of the array.
        ty: TensorType,
    },
}

/// Row partition of a ragged feature (tf.io.RaggedFeature.Row*).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaggedPartition {
    /// The named int64 feature contains 0 and the end of each row.
    RowSplits(Arc<str>),
    /// Length of each row.
    RowLengths(Arc<str>),
    /// Start of each row.
    RowStarts(Arc<str>),
    /// End of each row.
    RowLimits(Arc<str>),
    /// Row index of each value.
    ValueRowids(Arc<str>),
    /// Rows of equal length.
    UniformRowLength(usize),
}

/// Features to parse from a record, in the order of the sample's fields.
///
/// ```
/// use systole_data::format::example::FeatureSpecs;
/// let features: FeatureSpecs = "image: ui8[28, 28, 1], tokens: i64[?], label: i64[]".parse()?;
/// assert_eq!(features.to_string(), "image: ui8[28, 28, 1], tokens: i64[?], label: i64[]");
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeatureSpecs {
    list: Vec<(Arc<str>, FeatureSpec)>,
}

impl FeatureSpecs {
    /// Creates an empty list of features.
    pub fn new() -> FeatureSpecs {
        FeatureSpecs::default()
    }

    /// Adds a feature to the list.
    pub fn with(mut self, name: impl Into<Arc<str>>, feature: FeatureSpec) -> FeatureSpecs {
        self.list.push((name.into(), feature));
        self
    }

    /// Adds `name: T[shape]` from exactly that many numbers.
    pub fn fixed(self, name: impl Into<Arc<str>>, dtype: DType, shape: impl Into<Shape>) -> FeatureSpecs {
        self.with(name, FeatureSpec::Fixed { ty: TensorType::new(dtype, shape), default: None })
    }

    /// Adds `name: T[n]` from any number of numbers.
    pub fn var_len(self, name: impl Into<Arc<str>>, dtype: DType) -> FeatureSpecs {
        self.with(name, FeatureSpec::VarLen { dtype })
    }

    /// Adds `name: ui8[n]` from one byte string.
    pub fn bytes(self, name: impl Into<Arc<str>>) -> FeatureSpecs {
        self.with(name, FeatureSpec::Bytes { default: None })
    }

    /// Adds `name: T[shape]` from one byte string with the array's bytes.
    pub fn raw(self, name: impl Into<Arc<str>>, dtype: DType, shape: impl Into<Shape>) -> FeatureSpecs {
        self.with(name, FeatureSpec::Raw { ty: TensorType::new(dtype, shape) })
    }

    /// Iterates over feature names and descriptions, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &FeatureSpec)> {
        self.list.iter().map(|(n, f)| (&**n, f))
    }

    /// Returns the features that [`encode`] writes for samples of these types.
    pub fn of(spec: &ElementSpec) -> FeatureSpecs {
        let feature = |ty: &TensorType| match ty.dtype {
            DType::U8 => FeatureSpec::Raw { ty: ty.clone() },
            _ => FeatureSpec::Fixed { ty: ty.clone(), default: None },
        };
        FeatureSpecs { list: spec.fields().map(|(name, ty)| (name.into(), feature(ty))).collect() }
    }

    /// Infers the features of a tf.train.Example record, for inspecting unknown files.
    pub fn guess(record: &[u8]) -> Result<FeatureSpecs> {
        let mut found = FeatureSpecs::new();
        let mut entries = Vec::new();
        each_entry(record, |name, feature| entries.push((name, feature)))?;
        for (name, feature) in entries {
            let name: Arc<str> = std::str::from_utf8(name).map_err(|_| not_utf8(name))?.into();
            let feature = match FeatureValues::of(feature)? {
                FeatureValues::Bytes(list) if strings(list)?.len() == 1 => {
                    FeatureSpec::Bytes { default: None }
                }
                FeatureValues::Bytes(_) => FeatureSpec::ByteLists,
                FeatureValues::Ints(list) => guessed(DType::I64, integers(list)?.len()),
                FeatureValues::Floats(list) => guessed(DType::F32, floats(list)?.len()),
                FeatureValues::Empty => FeatureSpec::VarLen { dtype: DType::I64 },
            };
            found.list.push((name, feature));
        }
        found.list.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// Parses a serialized tf.train.Example (tf.io.parse_single_example).
    ///
    /// # Errors
    /// If the bytes are not an Example, or a feature is missing or has another type or number of elements.
    pub fn parse(&self, record: &[u8]) -> Result<Sample> {
        let mut found: SmallVec<[Option<&[u8]>; 8]> = smallvec![None; self.list.len()];
        let mut extra = Vec::new();
        let wants_more = self.list.iter().any(|(_, f)| matches!(f, FeatureSpec::Ragged { .. }));
        each_entry(record, |name, feature| {
            if let Some(i) = self.list.iter().position(|(n, _)| n.as_bytes() == name) {
                found[i] = Some(feature);
            }
            if wants_more {
                extra.push((name, feature));
            }
        })?;
        let mut fields = Vec::with_capacity(self.list.len());
        for ((name, feature), message) in self.list.iter().zip(found) {
            let done = match feature {
                FeatureSpec::Ragged { dtype, values, partitions } => {
                    ragged(&mut fields, name, *dtype, values, partitions, &extra)
                }
                _ => single(&mut fields, name, feature, message),
            };
            done.map_err(|e| e.at(format!("feature {name}")))?;
        }
        Ok(Sample::from_parts(fields, None))
    }
}

fn guessed(dtype: DType, n: usize) -> FeatureSpec {
    let shape: Vec<usize> = if n == 1 { Vec::new() } else { vec![n] };
    FeatureSpec::Fixed { ty: TensorType::new(dtype, shape), default: None }
}

/// Features of a serialized tf.train.SequenceExample: context features and per-step features.
///
/// Step features of kind `Fixed`, `Bytes` and `Raw` are stacked (`T[steps, shape…]`); all others become `NAME:
/// T[total]` with `NAME/row_splits: i64[steps + 1]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceFeatureSpecs {
    /// Features of the whole sequence.
    pub context: FeatureSpecs,
    /// Features of each step.
    pub steps: FeatureSpecs,
}

impl SequenceFeatureSpecs {
    /// Parses a serialized SequenceExample (tf.io.parse_single_sequence_example).
    ///
    /// # Errors
    /// Like [`FeatureSpecs::parse`].
    pub fn parse(&self, record: &[u8]) -> Result<Sample> {
        let (mut context, mut lists) = (Vec::new(), &[][..]);
        for field in ProtoFields::of(record) {
            match field? {
                // `Features` is field 1 of both messages, so the context parses as an Example.
                (1, ProtoFieldValue::Bytes(bytes)) => put_bytes(&mut context, 1, bytes),
                (2, ProtoFieldValue::Bytes(bytes)) => lists = bytes,
                _ => {}
            }
        }
        let mut sample = self.context.parse(&context)?.into_fields();
        let mut entries = Vec::new();
        each_map_entry(lists, |name, list| entries.push((name, list)))?;
        for (name, feature) in &self.steps.list {
            let list = entries.iter().rev().find(|(n, _)| *n == name.as_bytes()).map(|(_, l)| *l);
            steps(&mut sample, name, feature, list).map_err(|e| e.at(format!("sequence feature {name}")))?;
        }
        Ok(Sample::from_parts(sample, None))
    }
}

type SampleFields = Vec<(Arc<str>, HostArray)>;

/// Adds the fields of one feature of a record.
fn single(
    fields: &mut SampleFields,
    name: &Arc<str>,
    feature: &FeatureSpec,
    message: Option<&[u8]>,
) -> Result<()> {
    let list = message.map(FeatureValues::of).transpose()?.unwrap_or(FeatureValues::Empty);
    let is_there = !matches!(list, FeatureValues::Empty);
    let x = match feature {
        FeatureSpec::Fixed { default: Some(x), .. } if !is_there => x.clone(),
        FeatureSpec::Fixed { ty, .. } => shaped(numbers(ty.dtype, some(list)?)?, ty.shape.clone())?,
        FeatureSpec::Sequence { row } => rows_of(numbers(row.dtype, list)?, row)?,
        FeatureSpec::VarLen { dtype: DType::U8 } | FeatureSpec::ByteLists => {
            let list = byte_strings(list)?;
            let splits = row_splits(list.iter().map(|s| s.len()));
            fields.push((name.clone(), bytes_array(&list.concat())?.into()));
            fields.push((splits_name(name), integers_array(&splits)?.into()));
            return Ok(());
        }
        FeatureSpec::VarLen { dtype } => numbers(*dtype, list)?,
        FeatureSpec::Bytes { default: Some(bytes) } if !is_there => bytes_array(bytes)?,
        FeatureSpec::Bytes { .. } => bytes_array(one_string(some(list)?)?)?,
        FeatureSpec::Raw { ty } => raw(ty, one_string(some(list)?)?)?,
        FeatureSpec::Ragged { .. } => return Ok(()),
    };
    fields.push((name.clone(), x.into()));
    Ok(())
}

fn ragged(
    fields: &mut SampleFields,
    name: &Arc<str>,
    dtype: DType,
    values: &str,
    partitions: &[RaggedPartition],
    record: &[(&[u8], &[u8])],
) -> Result<()> {
    let find = |key: &str| {
        let found = record.iter().rev().find(|(n, _)| *n == key.as_bytes());
        found.map_or(Ok(FeatureValues::Empty), |(_, feature)| FeatureValues::of(feature))
    };
    let values = numbers(dtype, find(values)?)?;
    // From the innermost partition outward: the rows of one are the values of the next.
    let mut count = values.ty().elements();
    let mut splits = Vec::new();
    for partition in partitions.iter().rev() {
        let rows = partition.row_splits(count, |key| Ok(integer_list(find(key)?)?.into_vec()))?;
        count = rows.len() - 1;
        splits.push(rows);
    }
    fields.push((name.clone(), values.into()));
    for (i, rows) in splits.iter().rev().enumerate() {
        let suffix =
            if partitions.len() == 1 { splits_name(name) } else { format!("{name}/row_splits_{i}").into() };
        fields.push((suffix, integers_array(rows)?.into()));
    }
    Ok(())
}

impl RaggedPartition {
    fn row_splits(&self, values: usize, list: impl Fn(&str) -> Result<Vec<i64>>) -> Result<Vec<i64>> {
        let n = values as i64;
        let splits = match self {
            RaggedPartition::RowSplits(key) => list(key)?,
            RaggedPartition::RowLengths(key) => {
                let mut end = 0i64;
                let ends = list(key)?.into_iter().map(|len| {
                    end = end.saturating_add(len);
                    end
                });
                std::iter::once(0).chain(ends).collect()
            }
            RaggedPartition::RowStarts(key) => list(key)?.into_iter().chain([n]).collect(),
            RaggedPartition::RowLimits(key) => std::iter::once(0).chain(list(key)?).collect(),
            RaggedPartition::ValueRowids(key) => {
                let ids = list(key)?;
                if ids.len() != values {
                    return Err(uneven(format!("there are {} row ids for {values} values", ids.len())));
                }
                let rows =
                    ids.last().map_or(0, |&last| last.saturating_add(1)).clamp(0, n.saturating_add(1 << 20));
                (0..=rows).map(|row| ids.partition_point(|&id| id < row) as i64).collect()
            }
            RaggedPartition::UniformRowLength(len) => {
                let len = *len.max(&1);
                (0..=values / len).map(|i| (i * len) as i64).collect()
            }
        };
        let is_sorted = splits.first() == Some(&0) && splits.last() == Some(&n) && splits.is_sorted();
        if is_sorted { Ok(splits) } else { Err(uneven(format!("the rows do not cover the {values} values"))) }
    }
}

fn uneven(why: String) -> Error {
    err!(Data, "the values do not match the row partition").because(why)
}

/// Adds the fields of one feature of a sequence's steps.
fn steps(
    fields: &mut SampleFields,
    name: &Arc<str>,
    feature: &FeatureSpec,
    list: Option<&[u8]>,
) -> Result<()> {
    let mut messages = Vec::new();
    for field in ProtoFields::of(list.unwrap_or_default()) {
        if let (1, ProtoFieldValue::Bytes(message)) = field? {
            messages.push(FeatureValues::of(message)?);
        }
    }
    let is_stacked =
        matches!(feature, FeatureSpec::Fixed { .. } | FeatureSpec::Raw { .. } | FeatureSpec::Sequence { .. });
    ensure!(list.is_some() || !is_stacked, absent());
    let count = messages.len();
    match feature {
        FeatureSpec::Fixed { ty, .. } | FeatureSpec::Sequence { row: ty } => {
            let row = |list| shaped(numbers(ty.dtype, list)?, ty.shape.clone());
            let rows = messages.into_iter().map(row).collect::<Result<Vec<_>>>()?;
            fields.push((name.clone(), stacked(ty, &rows, count)?.into()));
        }
        FeatureSpec::Raw { ty } => {
            let rows =
                messages.into_iter().map(|list| raw(ty, one_string(list)?)).collect::<Result<Vec<_>>>()?;
            fields.push((name.clone(), stacked(ty, &rows, count)?.into()));
        }
        FeatureSpec::Bytes { .. } | FeatureSpec::ByteLists | FeatureSpec::VarLen { dtype: DType::U8 } => {
            let strings = messages.into_iter().map(byte_strings).collect::<Result<Vec<_>>>()?;
            let splits = row_splits(strings.iter().map(|s| s.iter().map(|b| b.len()).sum()));
            let all: Vec<u8> = strings.iter().flatten().flat_map(|s| s.iter().copied()).collect();
            fields.push((name.clone(), bytes_array(&all)?.into()));
            fields.push((splits_name(name), integers_array(&splits)?.into()));
        }
        FeatureSpec::VarLen { dtype } | FeatureSpec::Ragged { dtype, .. } => {
            let rows = messages.into_iter().map(|list| numbers(*dtype, list)).collect::<Result<Vec<_>>>()?;
            let splits = row_splits(rows.iter().map(|r| r.ty().elements()));
            let bytes: Vec<u8> = rows.iter().flat_map(|r| r.bytes()).copied().collect();
            let ty = TensorType::new(*dtype, [bytes.len() / dtype.size()]);
            fields.push((name.clone(), Literal::from_bytes(ty, &bytes)?.into()));
            fields.push((splits_name(name), integers_array(&splits)?.into()));
        }
    }
    Ok(())
}

fn stacked(row: &TensorType, rows: &[Literal], count: usize) -> Result<Literal> {
    let dims: Vec<usize> = std::iter::once(count).chain(row.shape.iter().copied()).collect();
    let bytes: Vec<u8> = rows.iter().flat_map(|r| r.bytes()).copied().collect();
    Literal::from_bytes(row.with_shape(dims), &bytes)
}

fn row_splits(lengths: impl Iterator<Item = usize>) -> Vec<i64> {
    let mut end = 0;
    let ends = lengths.map(|len| {
        end += len as i64;
        end
    });
    std::iter::once(0).chain(ends.collect::<Vec<_>>()).collect()
}

fn splits_name(name: &str) -> Arc<str> {
    format!("{name}/row_splits").into()
}

/// Passes the map entries (key, value message) in field 1 of the message to `give`, in order: later ones win.
fn each_entry<'a>(message: &'a [u8], mut give: impl FnMut(&'a [u8], &'a [u8])) -> Result<()> {
    for field in ProtoFields::of(message) {
        if let (1, ProtoFieldValue::Bytes(map)) = field? {
            each_map_entry(map, &mut give)?;
        }
    }
    Ok(())
}

fn each_map_entry<'a>(map: &'a [u8], mut give: impl FnMut(&'a [u8], &'a [u8])) -> Result<()> {
    for field in ProtoFields::of(map) {
        let (1, ProtoFieldValue::Bytes(entry)) = field? else { continue };
        let (mut key, mut feature) = (&[][..], &[][..]);
        for field in ProtoFields::of(entry) {
            match field? {
                (1, ProtoFieldValue::Bytes(bytes)) => key = bytes,
                (2, ProtoFieldValue::Bytes(bytes)) => feature = bytes,
                _ => {}
            }
        }
        give(key, feature);
    }
    Ok(())
}

/// Values of a feature, by type.
#[derive(Clone, Copy)]
enum FeatureValues<'a> {
    Bytes(&'a [u8]),
    Floats(&'a [u8]),
    Ints(&'a [u8]),
    Empty,
}

impl<'a> FeatureValues<'a> {
    fn of(feature: &'a [u8]) -> Result<FeatureValues<'a>> {
        let mut list = FeatureValues::Empty;
        for field in ProtoFields::of(feature) {
            list = match field? {
                (1, ProtoFieldValue::Bytes(bytes)) => FeatureValues::Bytes(bytes),
                (2, ProtoFieldValue::Bytes(bytes)) => FeatureValues::Floats(bytes),
                (3, ProtoFieldValue::Bytes(bytes)) => FeatureValues::Ints(bytes),
                _ => list,
            };
        }
        Ok(list)
    }

    fn kind(&self) -> &'static str {
        match self {
            FeatureValues::Bytes(_) => "a list of byte strings",
            FeatureValues::Floats(_) => "a list of floats",
            FeatureValues::Ints(_) => "a list of integers",
            FeatureValues::Empty => "empty",
        }
    }
}

fn some(list: FeatureValues<'_>) -> Result<FeatureValues<'_>> {
    if let FeatureValues::Empty = list { Err(absent()) } else { Ok(list) }
}

fn absent() -> Error {
    err!(Data, "the record lacks the requested feature")
        .hint_command("check the name, or set a default for the feature; `systole data inspect` shows the features of a file")
}

fn other_kind(expected: &str, list: &FeatureValues) -> Error {
    err!(Data, "expected {expected}, but the record has {}", list.kind())
}

fn numbers(dtype: DType, list: FeatureValues) -> Result<Literal> {
    match (list, dtype.is_float()) {
        (FeatureValues::Empty, _) => Ok(Literal::zeros(TensorType::new(dtype, [0]))),
        (FeatureValues::Floats(bytes), true) => {
            let values = floats(bytes)?;
            Ok(cast(&Literal::from_slice([values.len()], &values)?, dtype))
        }
        (FeatureValues::Ints(_), false) => {
            let values = integer_list(list)?;
            Ok(cast(&integers_array(&values)?, dtype))
        }
        (list, true) => Err(other_kind("floats", &list)),
        (list, false) => Err(other_kind("integers", &list)),
    }
}

fn integer_list(list: FeatureValues) -> Result<SmallVec<[i64; 4]>> {
    match list {
        FeatureValues::Ints(bytes) => integers(bytes),
        FeatureValues::Empty => Ok(SmallVec::new()),
        other => Err(other_kind("integers", &other)),
    }
}

fn integers(list: &[u8]) -> Result<SmallVec<[i64; 4]>> {
    let mut out = SmallVec::new();
    for field in ProtoFields::of(list) {
        match field? {
            (1, ProtoFieldValue::Varint(v)) => out.push(v as i64),
            (1, ProtoFieldValue::Bytes(packed)) => {
                let mut packed = ProtoFields::of(packed);
                while let Some(v) = packed.packed()? {
                    out.push(v as i64);
                }
            }
            _ => {}
        }
    }
    Ok(out)
}

fn floats(list: &[u8]) -> Result<Vec<f32>> {
    let mut out = Vec::new();
    for field in ProtoFields::of(list) {
        match field? {
            (1, ProtoFieldValue::Fixed32(bytes)) => out.push(f32::from_le_bytes(bytes)),
            (1, ProtoFieldValue::Bytes(packed)) => {
                let (all, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(uneven(format!(
                        "{} bytes are not a multiple of the size of a float",
                        packed.len()
                    )));
                }
                out.extend(all.iter().map(|b| f32::from_le_bytes(*b)));
            }
            _ => {}
        }
    }
    Ok(out)
}

fn strings(list: &[u8]) -> Result<SmallVec<[&[u8]; 2]>> {
    let mut out = SmallVec::new();
    for field in ProtoFields::of(list) {
        if let (1, ProtoFieldValue::Bytes(bytes)) = field? {
            out.push(bytes);
        }
    }
    Ok(out)
}

fn byte_strings(list: FeatureValues<'_>) -> Result<SmallVec<[&[u8]; 2]>> {
    match list {
        FeatureValues::Bytes(bytes) => strings(bytes),
        FeatureValues::Empty => Ok(SmallVec::new()),
        other => Err(other_kind("byte strings", &other)),
    }
}

fn one_string(list: FeatureValues<'_>) -> Result<&[u8]> {
    let all = byte_strings(list)?;
    match all.as_slice() {
        [one] => Ok(one),
        _ => Err(err!(Data, "expected one byte string, but the record has {}", all.len())),
    }
}

fn bytes_array(bytes: &[u8]) -> Result<Literal> {
    Literal::from_slice([bytes.len()], bytes)
}

fn integers_array(values: &[i64]) -> Result<Literal> {
    Literal::from_slice([values.len()], values)
}

fn shaped(x: Literal, shape: Shape) -> Result<Literal> {
    let expected = shape.checked_elements();
    if expected != Some(x.ty().elements()) {
        return Err(err!(Data, "expected a feature of type {} and shape {shape}", x.dtype())
            .because(format!("the record has {} values", x.ty().elements())));
    }
    x.reshape(shape)
}

fn rows_of(x: Literal, row: &TensorType) -> Result<Literal> {
    let size = row.shape.checked_elements().filter(|&n| n > 0).unwrap_or(usize::MAX);
    let n = x.ty().elements();
    ensure!(n.is_multiple_of(size), uneven(format!("{n} values are not a multiple of the row size {row}")));
    let dims: Vec<usize> = std::iter::once(n / size).chain(row.shape.iter().copied()).collect();
    x.reshape(dims)
}

fn raw(ty: &TensorType, bytes: &[u8]) -> Result<Literal> {
    Literal::from_bytes(ty.clone(), bytes)
}

fn not_utf8(name: &[u8]) -> Error {
    err!(Data, "the feature name {:?} is not text", String::from_utf8_lossy(name))
}

/// Serializes a sample to a tf.train.Example, which [`FeatureSpecs::of`] reads back. `ui8` arrays become one byte string,
/// integers and bools int64 lists, floats float lists (f64 loses precision). Shapes are not stored.
///
/// # Errors
/// If the sample carries an error.
pub fn encode(sample: &Sample) -> Result<Vec<u8>> {
    let mut map = Vec::new();
    let mut names: Vec<&str> = sample.names().collect();
    // As in TensorFlow's deterministic serialization: equal samples yield equal bytes.
    names.sort_unstable();
    for name in names {
        let x = sample.get(name)?;
        let (mut feature, mut list) = (Vec::new(), Vec::new());
        let kind = match x.dtype() {
            DType::U8 => {
                put_bytes(&mut list, 1, x.bytes());
                1
            }
            dtype if dtype.is_float() => {
                put_packed(&mut list, cast(x, DType::F32).bytes());
                2
            }
            _ => {
                let mut packed = Vec::new();
                let integers = cast(x, DType::I64);
                integers.as_slice::<i64>()?.iter().for_each(|&v| put_varint(&mut packed, v as u64));
                put_packed(&mut list, &packed);
                3
            }
        };
        put_bytes(&mut feature, kind, &list);
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, name.as_bytes());
        put_bytes(&mut entry, 2, &feature);
        put_bytes(&mut map, 1, &entry);
    }
    let mut out = Vec::with_capacity(map.len() + 8);
    put_bytes(&mut out, 1, &map);
    Ok(out)
}

/// Appends a packed list; as in Protocol Buffers, an empty one is not written.
fn put_packed(list: &mut Vec<u8>, values: &[u8]) {
    if !values.is_empty() {
        put_bytes(list, 1, values);
    }
}

/// Returns a function for [`Dataset::map`] that replaces the field `record: ui8[n]` by its parsed features.
pub fn parse_example(features: FeatureSpecs) -> impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static {
    move |s| features.parse(s.get("record")?.bytes())
}

/// Like [`parse_example`], for tf.train.SequenceExample.
pub fn parse_sequence_example(
    features: SequenceFeatureSpecs,
) -> impl Fn(Sample) -> Result<Sample> + Send + Sync + 'static {
    move |s| features.parse(s.get("record")?.bytes())
}

impl Dataset {
    /// Maps `record: ui8[n]` to the features of the tf.train.Example in it, with [`parse_example`].
    pub fn parse_example(&self, features: FeatureSpecs) -> Dataset {
        self.map(parse_example(features))
    }
}

impl fmt::Display for FeatureSpecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, feature)) in self.list.iter().enumerate() {
            write!(f, "{}{name}: {feature}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Text form as in [`FeatureSpecs`]: `?` is a size that varies between records.
impl fmt::Display for FeatureSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeatureSpec::Raw { ty } if ty.dtype != DType::U8 => write!(f, "raw {ty}"),
            FeatureSpec::Fixed { ty, .. } | FeatureSpec::Raw { ty } => write!(f, "{ty}"),
            FeatureSpec::Sequence { row } => {
                let dims: String = row.shape.iter().map(|d| format!(", {d}")).collect();
                write!(f, "{}[?{dims}]", row.dtype)
            }
            FeatureSpec::VarLen { dtype } => write!(f, "{dtype}[?]"),
            FeatureSpec::Bytes { .. } => f.write_str("ui8[?]"),
            FeatureSpec::ByteLists => f.write_str("ui8[?, ?]"),
            FeatureSpec::Ragged { dtype, partitions, .. } => {
                write!(f, "{dtype}[?{}]", ", ?".repeat(partitions.len()))
            }
        }
    }
}

impl FromStr for FeatureSpecs {
    type Err = Error;
    fn from_str(text: &str) -> Result<FeatureSpecs> {
        let mut features = FeatureSpecs::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            // Names may contain anything but a colon; types have no nested brackets.
            let (name, after) = rest.split_once(':').ok_or_else(|| unreadable(rest))?;
            let end = after.find(']').ok_or_else(|| unreadable(rest))?;
            features =
                features.with(name.trim(), feature(after[..end].trim()).ok_or_else(|| unreadable(rest))?);
            rest = after[end + 1..].trim_start_matches([',', '\n', ' ']).trim();
        }
        Ok(features)
    }
}

/// Parses a feature's type without its last bracket: `f32[2, 3`, `i64[?`, `raw f32[4`.
fn feature(text: &str) -> Option<FeatureSpec> {
    let (is_raw, text) = text.strip_prefix("raw ").map_or((false, text), |t| (true, t));
    let (dtype, dims) = text.split_once('[')?;
    let dtype = DType::parse(dtype.trim())?;
    let dims: Vec<&str> = dims.split(',').map(str::trim).filter(|d| !d.is_empty()).collect();
    let sizes = |dims: &[&str]| dims.iter().map(|d| d.parse().ok()).collect::<Option<Vec<usize>>>();
    Some(match (dims.as_slice(), dtype) {
        (["?"], DType::U8) => FeatureSpec::Bytes { default: None },
        (["?", "?"], DType::U8) => FeatureSpec::ByteLists,
        (["?"], _) => FeatureSpec::VarLen { dtype },
        (["?", rest @ ..], _) => FeatureSpec::Sequence { row: TensorType::new(dtype, sizes(rest)?) },
        (all, DType::U8) => FeatureSpec::Raw { ty: TensorType::new(dtype, sizes(all)?) },
        (all, _) if is_raw => FeatureSpec::Raw { ty: TensorType::new(dtype, sizes(all)?) },
        (all, _) => FeatureSpec::Fixed { ty: TensorType::new(dtype, sizes(all)?), default: None },
    })
}

fn unreadable(text: &str) -> Error {
    let shown: String = text.chars().take(60).collect();
    err!(Config, "expected a list of features, got `{shown}`")
        .hint("write features as \"image: ui8[28, 28, 1], tokens: i64[?], label: i64[]\"")
}

// Names of the previous version.
systole_base::renamed! { Feature => FeatureSpec, Features => FeatureSpecs, Partition => RaggedPartition, SequenceFeatures => SequenceFeatureSpecs }

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
    }

    /// tf.train.Example with image = b"\1\2\3\4", label = [3], neg = [-1, 2], w = [0.5, -2].
    fn example() -> Vec<u8> {
        hex(
            "0a4e0a110a05696d61676512080a060a04010203040a0e0a056c6162656c12051a030a01030a160a036e6567120f1a0d0a0bffff\
             ffffffffffffff01020a110a0177120c120a0a080000003f000000c0",
        )
    }

    /// SequenceExample with context id = 7, tok = [[1, 2], [3], []], fr = [[1, 2], [3, 4]].
    fn sequence() -> Vec<u8> {
        hex(
            "0a0d0a0b0a02696412051a030a010712400a220a026672121c0a0c120a0a080000803f000000400a0c120a0a080000404000008040\
             0a1a0a03746f6b12130a061a040a0201020a051a030a01030a021a00",
        )
    }

    fn parse(features: &str) -> Result<Sample> {
        features.parse::<FeatureSpecs>()?.parse(&example())
    }

    #[test]
    fn an_example_of_tensorflow_is_read_and_written_alike() {
        let s = parse("label: i64[], w: f32[2], image: ui8[?], neg: i32[?]").unwrap();
        assert_eq!(s.spec().unwrap().to_string(), "label: i64[], w: f32[2], image: ui8[4], neg: i32[2]");
        assert_eq!(s.get("label").unwrap().as_slice::<i64>().unwrap(), [3]);
        assert_eq!(s.get("w").unwrap().as_slice::<f32>().unwrap(), [0.5, -2.0]);
        assert_eq!(s.get("image").unwrap().bytes(), [1, 2, 3, 4]);
        assert_eq!(s.get("neg").unwrap().as_slice::<i32>().unwrap(), [-1, 2]);
        assert_eq!(encode(&s).unwrap(), example(), "in any order of the fields");
        let guess = FeatureSpecs::guess(&example()).unwrap();
        assert_eq!(guess.to_string(), "image: ui8[?], label: i64[], neg: i64[2], w: f32[2]");
    }

    #[test]
    fn shapes_defaults_and_lists() {
        let s = parse("image: raw i16[2], w: f32[?, 1], image2: ui8[?, ?], no: i64[?]").unwrap();
        assert_eq!(s.get("image").unwrap().as_slice::<i16>().unwrap(), [0x0201, 0x0403]);
        assert_eq!(s.get("w").unwrap().ty().to_string(), "f32[2, 1]");
        assert_eq!(s.get("image2/row_splits").unwrap().as_slice::<i64>().unwrap(), [0]);
        assert_eq!(s.get("no").unwrap().ty().to_string(), "i64[0]");
        let default = Some(Literal::from_slice([1], &[9i64]).unwrap());
        let features = FeatureSpecs::new()
            .with("no", FeatureSpec::Fixed { ty: TensorType::new(DType::I64, [1]), default })
            .with("nothing", FeatureSpec::Bytes { default: Some(b"-".to_vec()) });
        let s = features.parse(&example()).unwrap();
        assert_eq!(
            (s.get("no").unwrap().to_f64s(), s.get("nothing").unwrap().bytes()),
            (vec![9.0], &b"-"[..])
        );
    }

    #[test]
    fn ragged_rows_are_told_in_every_way() {
        let list = |name: &str, values: &[i64]| {
            (name.to_string(), Literal::from_slice([values.len()], values).unwrap())
        };
        let record = encode(&Sample::new([
            list("v", &[1, 2, 3, 4]),
            list("splits", &[0, 1, 1, 4]),
            list("lengths", &[1, 0, 3]),
            list("starts", &[0, 1, 1]),
            list("limits", &[1, 1, 4]),
            list("ids", &[0, 2, 2, 2]),
            list("outer", &[2, 1]),
        ]))
        .unwrap();
        let ragged = |partitions| {
            FeatureSpecs::new()
                .with("x", FeatureSpec::Ragged { dtype: DType::I64, values: "v".into(), partitions })
        };
        let splits = |partitions, field: &str| {
            ragged(partitions)
                .parse(&record)
                .map(|s| s.get(field).unwrap().as_slice::<i64>().unwrap().to_vec())
        };
        for one in [
            RaggedPartition::RowSplits("splits".into()),
            RaggedPartition::RowLengths("lengths".into()),
            RaggedPartition::RowStarts("starts".into()),
            RaggedPartition::RowLimits("limits".into()),
            RaggedPartition::ValueRowids("ids".into()),
        ] {
            assert_eq!(splits(vec![one.clone()], "x/row_splits").unwrap(), [0, 1, 1, 4], "{one:?}");
        }
        assert_eq!(splits(vec![RaggedPartition::UniformRowLength(2)], "x/row_splits").unwrap(), [0, 2, 4]);
        let two = || {
            vec![RaggedPartition::RowLengths("outer".into()), RaggedPartition::RowLengths("lengths".into())]
        };
        assert_eq!(splits(two(), "x/row_splits_0").unwrap(), [0, 2, 3]);
        assert_eq!(splits(two(), "x/row_splits_1").unwrap(), [0, 1, 1, 4]);
        assert!(splits(vec![RaggedPartition::RowLengths("outer".into())], "x").is_err());
        assert!(splits(vec![RaggedPartition::UniformRowLength(3)], "x").is_err());
    }

    #[test]
    fn sequences_are_stacked_or_ragged() {
        let features = |steps: &str| SequenceFeatureSpecs {
            context: "id: i64[]".parse().unwrap(),
            steps: steps.parse().unwrap(),
        };
        let s = features("fr: f32[2], tok: i64[?]").parse(&sequence()).unwrap();
        assert_eq!(
            s.spec().unwrap().to_string(),
            "id: i64[], fr: f32[2, 2], tok: i64[3], tok/row_splits: i64[4]"
        );
        assert_eq!(s.get("fr").unwrap().to_f32s(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(s.get("tok/row_splits").unwrap().as_slice::<i64>().unwrap(), [0, 2, 3, 3]);
        for (steps, names) in
            [("fr: f32[3]", &["fr", "[3]"][..]), ("other: f32[1]", &["other"]), ("tok: f32[?]", &["tok"])]
        {
            assert_error(&features(steps).parse(&sequence()).unwrap_err(), ErrorKind::Data, names);
        }
    }

    #[test]
    fn wrong_expectations_are_named() {
        for (features, parts) in [
            ("label: i64[2]", &["label", "1"][..]),
            ("lable: i64[]", &["lable"]),
            ("label: f32[]", &["label"]),
            ("image: ui8[2, 3]", &["image", "4"]),
            ("w: f32[?, 3]", &["w"]),
            ("neg: ui8[?]", &["neg"]),
        ] {
            assert_error(&parse(features).unwrap_err(), ErrorKind::Data, parts);
        }
        for text in ["x", "x: f32", "x: what[2]", "x: f32[a]"] {
            assert_error(
                &text.parse::<FeatureSpecs>().unwrap_err(),
                ErrorKind::Config,
                &[&format!("`{text}`")],
            );
        }
    }

    #[test]
    fn damaged_messages_are_errors_or_other_values_and_never_panics() {
        let features: FeatureSpecs = "label: i64[], w: f32[?], image: ui8[?], neg: i64[?]".parse().unwrap();
        let (good, steps) = (example(), sequence());
        let reader = SequenceFeatureSpecs {
            context: features.clone(),
            steps: "tok: i64[?], fr: f32[2]".parse().unwrap(),
        };
        for bytes in [&good, &steps] {
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let _ = (
                    features.parse(&bad).is_ok(),
                    reader.parse(&bad).is_ok(),
                    FeatureSpecs::guess(&bad).is_ok(),
                );
            }
        }
        let broken = (0..good.len()).filter(|&cut| features.parse(&good[..cut]).is_err()).count();
        assert_eq!(broken, good.len());
    }
}
