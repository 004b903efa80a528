//! Types of layer arguments that accept several spellings: `3` or `(3, 3)`, `"relu"` or a value.

use crate::activation::Activation;
use crate::initializer::Initializer;
use crate::nearest::unknown;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use systole_ir::{Error, Result};

/// Height and width: `3` stands for `(3, 3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair(pub usize, pub usize);

impl Pair {
    /// Both as an array.
    pub fn dims(self) -> [usize; 2] {
        [self.0, self.1]
    }

    /// Whether both are at least 1.
    pub(super) fn is_positive(self) -> bool {
        self.0 > 0 && self.1 > 0
    }
}

impl From<usize> for Pair {
    fn from(both: usize) -> Pair {
        Pair(both, both)
    }
}

impl From<(usize, usize)> for Pair {
    fn from((height, width): (usize, usize)) -> Pair {
        Pair(height, width)
    }
}

impl From<[usize; 2]> for Pair {
    fn from([height, width]: [usize; 2]) -> Pair {
        Pair(height, width)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.0, self.1)
    }
}

impl From<Pair> for Value {
    fn from(pair: Pair) -> Value {
        Value::from(pair.dims().to_vec())
    }
}

impl Serialize for Pair {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.dims().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pair, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let both = value.as_u64().map(|n| (n, n));
        let pair = both.or_else(|| match value.as_array()?.as_slice() {
            [h, w] => Some((h.as_u64()?, w.as_u64()?)),
            _ => None,
        });
        let pair = pair.and_then(|(h, w)| Some(Pair(h.try_into().ok()?, w.try_into().ok()?)));
        pair.ok_or_else(|| D::Error::custom("it takes a size or two: 3 or [3, 3]"))
    }
}

/// Dimensions of an input: `-1` is the last. One or several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axes(pub Vec<i64>);

impl From<i64> for Axes {
    fn from(axis: i64) -> Axes {
        Axes(vec![axis])
    }
}

impl<const N: usize> From<[i64; N]> for Axes {
    fn from(axes: [i64; N]) -> Axes {
        Axes(axes.into())
    }
}

impl From<Vec<i64>> for Axes {
    fn from(axes: Vec<i64>) -> Axes {
        Axes(axes)
    }
}

impl From<Axes> for Value {
    fn from(axes: Axes) -> Value {
        match axes.0.as_slice() {
            [one] => Value::from(*one),
            _ => Value::from(axes.0),
        }
    }
}

impl Serialize for Axes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Value::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Axes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Axes, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let axes = match &value {
            Value::Array(list) => list.iter().map(Value::as_i64).collect(),
            one => one.as_i64().map(|a| vec![a]),
        };
        axes.map(Axes).ok_or_else(|| D::Error::custom("it takes a dimension or a list: -1 or [1, 2]"))
    }
}

/// What a window does at the border.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Padding {
    /// It stays inside: `⌊(n − reach) / stride⌋ + 1` positions. Keras's default.
    #[default]
    Valid,
    /// `⌈n / stride⌉` positions; what lies outside counts as nothing.
    Same,
}

impl Padding {
    /// The names that [`Padding::from_str`] takes.
    pub const NAMES: [&'static str; 2] = ["valid", "same"];

    /// Keras's name.
    pub fn name(self) -> &'static str {
        match self {
            Padding::Valid => "valid",
            Padding::Same => "same",
        }
    }
}

impl FromStr for Padding {
    type Err = Error;
    fn from_str(name: &str) -> Result<Padding> {
        match name {
            "valid" => Ok(Padding::Valid),
            "same" => Ok(Padding::Same),
            _ => Err(unknown(&format!("there is no padding `{name}`"), name, &Padding::NAMES)),
        }
    }
}

impl Serialize for Padding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.name().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Padding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Padding, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|e| D::Error::custom(one_line(&e)))
    }
}

impl From<Activation> for Value {
    fn from(activation: Activation) -> Value {
        config_of(&activation)
    }
}

impl From<Initializer> for Value {
    fn from(initializer: Initializer) -> Value {
        config_of(&initializer)
    }
}

/// A value by its name alone (`"he_normal"`, with Keras's defaults) or in full.
pub(super) fn named<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + FromStr<Err = Error>,
{
    match Value::deserialize(deserializer)? {
        Value::String(name) => name.parse().map_err(|e| D::Error::custom(one_line(&e))),
        value => serde_json::from_value(value).map_err(D::Error::custom),
    }
}

/// As [`named`]; `null` is Keras's `None`: no activation.
pub(super) fn activation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Activation, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Activation::Linear),
        value => named(value).map_err(D::Error::custom),
    }
}

/// What and hint of an error in one line, for messages inside others.
pub(super) fn one_line(e: &Error) -> String {
    match e.hint_text() {
        Some(hint) => format!("{}; {hint}", e.what()),
        None => e.what().to_string(),
    }
}

/// A layer's arguments for model files.
pub(super) fn config_of(layer: &impl Serialize) -> Value {
    // Only a map with keys that are not text fails, which no layer has.
    serde_json::to_value(layer).unwrap_or(Value::Null)
}
