//! Types of layer arguments that accept several spellings: `3` or `(3, 3)`, `"relu"` or a value.

use crate::did_you_mean::unknown;
use crate::layer::activation::Activation;
use crate::layer::initializer::Initializer;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use systole_ir::{Error, Result, bug};

/// A size for each of `N` dimensions of places: `3` stands for all of them.
///
/// ```
/// use systole_nn::layers::Sizes;
/// assert_eq!(Sizes::<3>::from(2), Sizes([2, 2, 2]));
/// assert_eq!(Sizes([1, 2, 3]).to_string(), "(1, 2, 3)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes<const N: usize>(pub [usize; N]);

impl<const N: usize> Sizes<N> {
    /// As an array.
    pub fn dims(self) -> [usize; N] {
        self.0
    }
}

impl<const N: usize> From<usize> for Sizes<N> {
    fn from(all: usize) -> Sizes<N> {
        Sizes([all; N])
    }
}

impl<const N: usize> From<[usize; N]> for Sizes<N> {
    fn from(sizes: [usize; N]) -> Sizes<N> {
        Sizes(sizes)
    }
}

impl From<(usize, usize)> for Sizes<2> {
    fn from((height, width): (usize, usize)) -> Sizes<2> {
        Sizes([height, width])
    }
}

impl From<(usize, usize, usize)> for Sizes<3> {
    fn from((depth, height, width): (usize, usize, usize)) -> Sizes<3> {
        Sizes([depth, height, width])
    }
}

impl<const N: usize> fmt::Display for Sizes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(&self.0))
    }
}

impl<const N: usize> Serialize for Sizes<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl<'de, const N: usize> Deserialize<'de> for Sizes<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sizes<N>, D::Error> {
        let size = |v: &Value| usize::try_from(v.as_u64()?).ok();
        let sizes = match &Value::deserialize(deserializer)? {
            Value::Array(list) => list.iter().map(size).collect::<Option<Vec<usize>>>(),
            one => size(one).map(|n| vec![n; N]),
        };
        sizes.and_then(|list| list.try_into().ok()).map(Sizes).ok_or_else(|| {
            D::Error::custom(match N {
                1 => "it takes a size: 3".to_string(),
                2 => "it takes a size or two: 3 or [3, 3]".to_string(),
                _ => format!("it takes a size or {N} of them: 3 or {:?}", [3; N]),
            })
        })
    }
}

/// Places before and after along each of `N` dimensions: `1`, one size for both sides of each dimension, or all of them as
/// pairs; for one dimension `(2, 1)` is before and after.
///
/// ```
/// use systole_nn::layers::Edges;
/// assert_eq!(Edges::<1>::from((2, 1)), Edges([[2, 1]]));
/// assert_eq!(Edges::<2>::from([2, 1]), Edges([[2, 2], [1, 1]]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edges<const N: usize>(pub [[usize; 2]; N]);

impl<const N: usize> From<usize> for Edges<N> {
    fn from(all: usize) -> Edges<N> {
        Edges([[all; 2]; N])
    }
}

impl From<(usize, usize)> for Edges<1> {
    fn from((before, after): (usize, usize)) -> Edges<1> {
        Edges([[before, after]])
    }
}

impl From<(usize, usize)> for Edges<2> {
    fn from((rows, columns): (usize, usize)) -> Edges<2> {
        Edges([[rows; 2], [columns; 2]])
    }
}

impl From<((usize, usize), (usize, usize))> for Edges<2> {
    fn from((rows, columns): ((usize, usize), (usize, usize))) -> Edges<2> {
        Edges([rows.into(), columns.into()])
    }
}

impl<const N: usize> From<[usize; N]> for Edges<N> {
    fn from(sizes: [usize; N]) -> Edges<N> {
        Edges(sizes.map(|n| [n; 2]))
    }
}

impl<const N: usize> From<[[usize; 2]; N]> for Edges<N> {
    fn from(sides: [[usize; 2]; N]) -> Edges<N> {
        Edges(sides)
    }
}

impl<const N: usize> Serialize for Edges<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            all => all.serialize(serializer),
        }
    }
}

impl<'de, const N: usize> Deserialize<'de> for Edges<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Edges<N>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let read = |v: &Value| serde_json::from_value::<Sizes<2>>(v.clone()).ok().map(Sizes::dims);
        let sides: Option<Vec<[usize; 2]>> = match &value {
            Value::Array(_) if N == 1 => read(&value).map(|pair| vec![pair]),
            Value::Array(list) => list.iter().map(read).collect(),
            one => read(one).map(|pair| vec![pair; N]),
        };
        sides.and_then(|list| list.try_into().ok()).map(Edges).ok_or_else(|| {
            D::Error::custom(match N {
                1 => "it takes a size or two: 1 or [2, 1]".to_string(),
                2 => "it takes a size, two, or two pairs: 1, [1, 2] or [[0, 1], [0, 1]]".to_string(),
                _ => format!("it takes a size, {N}, or {N} pairs: 1, {:?} or {:?}", [1; N], [[0, 1]; N]),
            })
        })
    }
}

/// `3` or `(3, 2)`.
pub(crate) fn listed(sizes: &[usize]) -> String {
    match sizes {
        [one] => one.to_string(),
        all => format!("({})", all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Height and width, before [`Sizes<2>`] took its place.
#[deprecated(note = "use Sizes<2>, or two numbers: (height, width)")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair(pub usize, pub usize);

#[allow(deprecated, reason = "the name of the version before")]
impl From<Pair> for Sizes<2> {
    fn from(Pair(height, width): Pair) -> Sizes<2> {
        Sizes([height, width])
    }
}

#[allow(deprecated, reason = "the name of the version before")]
impl From<Pair> for SizeArgument {
    fn from(Pair(height, width): Pair) -> SizeArgument {
        (height, width).into()
    }
}

/// What setters of sizes take, for layers of one, two or three dimensions of places: `2`, `(2, 1)`, `(2, 1, 1)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeArgument(Value);

impl From<usize> for SizeArgument {
    fn from(all: usize) -> SizeArgument {
        SizeArgument(all.into())
    }
}

impl From<(usize, usize)> for SizeArgument {
    fn from((height, width): (usize, usize)) -> SizeArgument {
        SizeArgument(vec![height, width].into())
    }
}

impl From<(usize, usize, usize)> for SizeArgument {
    fn from((depth, height, width): (usize, usize, usize)) -> SizeArgument {
        SizeArgument(vec![depth, height, width].into())
    }
}

impl<const N: usize> From<[usize; N]> for SizeArgument {
    fn from(sizes: [usize; N]) -> SizeArgument {
        SizeArgument(sizes.to_vec().into())
    }
}

impl From<SizeArgument> for Value {
    fn from(each: SizeArgument) -> Value {
        each.0
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
    /// As `Same`, all of it before the first place, so that none sees a later one. Of Conv1D.
    Causal,
}

impl Padding {
    /// The names that [`Padding::from_str`] takes.
    pub const NAMES: [&'static str; 3] = ["valid", "same", "causal"];

    /// Keras's name.
    pub fn name(self) -> &'static str {
        match self {
            Padding::Valid => "valid",
            Padding::Same => "same",
            Padding::Causal => "causal",
        }
    }
}

impl FromStr for Padding {
    type Err = Error;
    fn from_str(name: &str) -> Result<Padding> {
        match name {
            "valid" => Ok(Padding::Valid),
            "same" => Ok(Padding::Same),
            "causal" => Ok(Padding::Causal),
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
pub(crate) fn named<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + FromStr<Err = Error>,
{
    match Value::deserialize(deserializer)? {
        Value::String(name) => name.parse().map_err(|e| D::Error::custom(one_line(&e))),
        value => serde_json::from_value(value).map_err(D::Error::custom),
    }
}

/// As [`named`]; `null` is nothing.
pub(crate) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + FromStr<Err = Error>,
{
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(None),
        value => named(value).map(Some).map_err(D::Error::custom),
    }
}

/// As [`named`]; `null` is Keras's `None`: no activation.
pub(crate) fn activation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Activation, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Activation::Linear),
        value => named(value).map_err(D::Error::custom),
    }
}

/// What and hint of an error in one line, for messages inside others.
pub(crate) fn one_line(e: &Error) -> String {
    match e.hint_text() {
        Some(hint) => format!("{}; {hint}", e.what()),
        None => e.what().to_string(),
    }
}

/// A layer's arguments for model files.
pub(crate) fn config_of(layer: &impl Serialize) -> Value {
    // Only a map with keys that are not text fails, which no layer has.
    serde_json::to_value(layer).unwrap_or_else(|e| bug!("arguments do not serialise: {e}"))
}
