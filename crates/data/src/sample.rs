//! Pipeline element: named host arrays in a fixed order.

use crate::HostArray;
use crate::host_array::at_user_line;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use systole_base::{Error, Literal, Result, TensorType, err};

/// Pipeline element: named host arrays, for example `image: ui8[28, 28, 1], label: i32[]`.
///
/// Functions of a sample carry errors along like [`HostArray`]: mapping a missing field poisons the sample, and the
/// error surfaces when the pipeline yields it, with the element's index and source.
///
/// ```
/// use systole_base::{DType, Literal};
/// use systole_data::Sample;
/// let s = Sample::new([("image", Literal::from_slice([2], &[0u8, 255])?)])
///     .with("label", Literal::scalar(DType::I32, 3.0))
///     .map("image", |x| x.cast(DType::F32) / 255.0);
/// assert_eq!(s.spec()?.to_string(), "image: f32[2], label: i32[]");
/// assert!(s.get("lable").unwrap_err().to_string().contains("image, label"));
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Sample {
    fields: Vec<(Arc<str>, HostArray)>,
    error: Option<Error>,
    origin: Option<SampleOrigin>,
    /// Index in the input order of a stage whose function draws random numbers.
    number: u64,
}

/// Source of a sample, for error messages.
#[derive(Clone, Debug)]
pub(crate) struct SampleOrigin {
    pub source: Arc<str>,
    pub index: u64,
}

impl Sample {
    /// Creates a sample from its fields. A duplicate name makes it an error.
    #[track_caller]
    pub fn new<N: Into<Arc<str>>, A: Into<HostArray>>(fields: impl IntoIterator<Item = (N, A)>) -> Sample {
        let mut sample = Sample::default();
        for (name, array) in fields {
            let name = name.into();
            if sample.find(&name).is_some() {
                sample.poison(err!(Data, "the sample has two fields named {name}"));
            }
            sample.fields.push((name, array.into()));
        }
        sample
    }

    /// Returns the array of a field. Errors if the field is missing, or with the error it carries.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<&Literal> {
        match self.find(name) {
            Some(i) => self.fields[i].1.get().map_err(|e| e.at(format!("field {name}"))),
            None => Err(of_caller(self.missing(name))),
        }
    }

    /// Returns the text of a byte field, `ui8[n]`. Errors if the field is missing, or not UTF-8 text.
    #[track_caller]
    pub fn text(&self, name: &str) -> Result<&str> {
        let x = self.get(name)?;
        let text = x.as_slice::<u8>().ok().and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.ok_or_else(|| err!(Data, "field {name}: {} is not UTF-8 text", x.ty()))
    }

    /// Iterates over the field names of the sample, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// Iterates over field names and arrays of the sample, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &HostArray)> {
        self.fields.iter().map(|(name, array)| (&**name, array))
    }

    /// Replaces the field, or appends it if there is none with that name.
    pub fn with(mut self, name: &str, array: impl Into<HostArray>) -> Sample {
        match self.find(name) {
            Some(i) => self.fields[i].1 = array.into(),
            None => self.fields.push((name.into(), array.into())),
        }
        self
    }

    /// Applies a function to a field of the sample.
    #[track_caller]
    pub fn map(mut self, name: &str, f: impl FnOnce(HostArray) -> HostArray) -> Sample {
        match self.find(name) {
            Some(i) => {
                // Moved out, so that the function can modify unshared storage in place.
                let array = std::mem::replace(&mut self.fields[i].1, HostArray::poisoned(unset()));
                self.fields[i].1 = f(array);
            }
            None => self.poison(self.missing(name)),
        }
        self
    }

    /// Renames a field of the sample; the order stays.
    #[track_caller]
    pub fn rename(mut self, from: &str, to: &str) -> Sample {
        match (self.find(from), self.find(to)) {
            (Some(_), Some(_)) if from != to => {
                self.poison(err!(Data, "cannot rename {from}: the field {to} already exists"))
            }
            (Some(i), _) => self.fields[i].0 = to.into(),
            (None, _) => self.poison(self.missing(from)),
        }
        self
    }

    /// Removes a field of the sample.
    #[track_caller]
    pub fn without(mut self, name: &str) -> Sample {
        match self.find(name) {
            Some(i) => drop(self.fields.remove(i)),
            None => self.poison(self.missing(name)),
        }
        self
    }

    /// Keeps the named fields, in the given order.
    #[track_caller]
    pub fn select(mut self, names: &[&str]) -> Sample {
        let mut kept = Vec::with_capacity(names.len());
        for name in names {
            match self.find(name) {
                Some(i) => kept.push(self.fields[i].clone()),
                None => self.poison(self.missing(name)),
            }
        }
        self.fields = kept;
        self
    }

    /// Returns the sample, or its first error with the field's name and the origin.
    pub fn check(self) -> Result<Sample> {
        let error = self.error.clone().or_else(|| {
            self.fields
                .iter()
                .find_map(|(name, array)| array.ty().err().map(|e| e.at(format!("field {name}"))))
        });
        match error {
            None => Ok(self),
            Some(e) => Err(self.locate(e)),
        }
    }

    /// Returns names and types of the fields.
    pub fn spec(&self) -> Result<ElementSpec> {
        let fields = self.fields.iter().map(|(name, array)| Ok((name.clone(), array.ty()?.clone())));
        Ok(ElementSpec(fields.collect::<Result<_>>()?))
    }

    /// Adds the element's origin to an error about it.
    pub(crate) fn locate(&self, error: Error) -> Error {
        match &self.origin {
            Some(o) => error.at(format!("element {} of {}", o.index, o.source)),
            None => error,
        }
    }

    /// Returns the total size of the sample's arrays in bytes.
    pub fn bytes(&self) -> usize {
        self.fields.iter().map(|(_, array)| array.ty().map_or(0, TensorType::bytes)).sum()
    }

    pub(crate) fn origin(&self) -> Option<SampleOrigin> {
        self.origin.clone()
    }

    pub(crate) fn with_origin(mut self, origin: Option<SampleOrigin>) -> Sample {
        self.origin = origin;
        self
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn with_number(mut self, number: u64) -> Sample {
        self.number = number;
        self
    }

    pub(crate) fn from_parts(fields: Vec<(Arc<str>, HostArray)>, origin: Option<SampleOrigin>) -> Sample {
        Sample { fields, error: None, origin, number: 0 }
    }

    pub(crate) fn into_fields(self) -> Vec<(Arc<str>, HostArray)> {
        self.fields
    }

    pub(crate) fn shared_name(&self, i: usize) -> Arc<str> {
        self.fields[i].0.clone()
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(n, _)| &**n == name)
    }

    #[track_caller]
    fn poison(&mut self, error: Error) {
        self.error.get_or_insert(of_caller(error));
    }

    fn missing(&self, name: &str) -> Error {
        let names: Vec<&str> = self.names().collect();
        err!(Data, "the sample has no field `{name}`")
            .because(format!("the fields of the sample are {}", names.join(", ")))
    }
}

/// Adds the caller's source line to an error.
#[track_caller]
fn of_caller(error: Error) -> Error {
    at_user_line(error, Location::caller())
}

fn unset() -> Error {
    err!(Bug, "a field was read while it was being replaced")
}

/// Names and types of a sample's fields. Displayed as `image: ui8[28, 28, 1], label: i32[]`.
#[derive(Clone, PartialEq, Debug)]
pub struct ElementSpec(Vec<(Arc<str>, TensorType)>);

impl ElementSpec {
    /// Returns the type of a field of the sample.
    pub fn get(&self, name: &str) -> Option<&TensorType> {
        self.0.iter().find(|(n, _)| &**n == name).map(|(_, ty)| ty)
    }

    /// Iterates over names and types, in order.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &TensorType)> {
        self.0.iter().map(|(name, ty)| (&**name, ty))
    }

    /// Returns the same fields with an additional leading dimension.
    pub(crate) fn stacked(mut self, count: usize) -> ElementSpec {
        for (_, ty) in &mut self.0 {
            let dims: Vec<usize> = std::iter::once(count).chain(ty.shape.iter().copied()).collect();
            *ty = ty.with_shape(dims);
        }
        self
    }
}

impl fmt::Display for ElementSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, ty)) in self.0.iter().enumerate() {
            write!(f, "{}{name}: {ty}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Return type of a map function: a sample, or a `Result` of one.
pub trait IntoSample {
    /// Returns the sample, or the error.
    fn into_sample(self) -> Result<Sample>;
}

impl IntoSample for Sample {
    fn into_sample(self) -> Result<Sample> {
        Ok(self)
    }
}

impl IntoSample for Result<Sample> {
    fn into_sample(self) -> Result<Sample> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::DType;

    fn sample() -> Sample {
        Sample::new([("a", Literal::scalar(DType::I32, 1.0)), ("b", Literal::scalar(DType::F32, 2.0))])
    }

    #[test]
    fn fields_keep_their_order() {
        let s =
            sample().with("c", Literal::scalar(DType::U8, 3.0)).with("a", Literal::scalar(DType::U8, 4.0));
        assert_eq!(s.spec().unwrap().to_string(), "a: ui8[], b: f32[], c: ui8[]");
        let s = s.rename("b", "x").without("a");
        assert_eq!(s.names().collect::<Vec<_>>(), ["x", "c"]);
        assert_eq!(s.select(&["c", "x"]).names().collect::<Vec<_>>(), ["c", "x"]);
    }

    #[test]
    fn mistakes_surface_in_check_with_the_first_error() {
        let s = sample().map("z", |x| x).map("a", |x| x / 2.0);
        assert!(s.check().unwrap_err().to_string().contains("`z`"));
        let e = sample().map("a", |x| x / 2.0).check().unwrap_err();
        assert!(e.to_string().contains("field a") && e.to_string().contains("cast"), "{e}");
        assert!(sample().rename("a", "b").check().is_err());
        assert!(sample().rename("a", "a").check().is_ok());
        assert!(sample().without("z").check().is_err() && sample().select(&["z"]).check().is_err());
        assert!(
            Sample::new([
                ("a", HostArray::scalar(DType::F32, 0.0)),
                ("a", HostArray::scalar(DType::F32, 0.0))
            ])
            .check()
            .is_err()
        );
    }
}
