//! Layer argument types with several spellings: `3` or `(3, 3)`, `"relu"` or a value.

use crate::did_you_mean::unknown;
use crate::json::{Deserialize, Serialize, one_line};
use crate::layer::activation::Activation;
use crate::layer::initializer::Initializer;
use serde::de::Error as _;
use serde::{Deserializer, Serializer};
use serde_json::Value;
use std::fmt;
use std::str::FromStr;
use systole_ir::{Error, Result, bug, conversions};

/// Size along each of `N` spatial dimensions; a single number applies to all of them.
///
/// ```
/// use systole_nn::layers::Sizes;
/// assert_eq!(Sizes::<3>::from(2), Sizes([2, 2, 2]));
/// assert_eq!(Sizes([1, 2, 3]).to_string(), "(1, 2, 3)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes<const N: usize>(pub [usize; N]);

impl<const N: usize> Sizes<N> {
    /// Returns the sizes of all spatial dimensions as an array.
    pub fn dims(self) -> [usize; N] {
        self.0
    }
}

conversions! {
    const N, usize => Sizes<N>: |all| Sizes([all; N]);
    const N, [usize; N] => Sizes<N>: |sizes| Sizes(sizes);
    (usize, usize) => Sizes<2>: |(height, width)| Sizes([height, width]);
    (usize, usize, usize) => Sizes<3>: |(depth, height, width)| Sizes([depth, height, width]);
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
                1 => "expected an integer: 3".to_string(),
                2 => "expected an integer or two: 3 or [3, 3]".to_string(),
                _ => format!("expected an integer or {N} of them: 3 or {:?}", [3; N]),
            })
        })
    }
}

/// Padding or cropping amounts before and after each of `N` spatial dimensions.
///
/// `1` applies to all sides, `[1, 2]` gives one amount per dimension, `[[0, 1], [0, 1]]` gives pairs. In one dimension
/// `(2, 1)` is before and after.
///
/// ```
/// use systole_nn::layers::Edges;
/// assert_eq!(Edges::<1>::from((2, 1)), Edges([[2, 1]]));
/// assert_eq!(Edges::<2>::from([2, 1]), Edges([[2, 2], [1, 1]]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edges<const N: usize>(pub [[usize; 2]; N]);

conversions! {
    const N, usize => Edges<N>: |all| Edges([[all; 2]; N]);
    (usize, usize) => Edges<1>: |(before, after)| Edges([[before, after]]);
    (usize, usize) => Edges<2>: |(rows, columns)| Edges([[rows; 2], [columns; 2]]);
    ((usize, usize), (usize, usize)) => Edges<2>: |(rows, columns)| Edges([rows.into(), columns.into()]);
    const N, [usize; N] => Edges<N>: |sizes| Edges(sizes.map(|n| [n; 2]));
    const N, [[usize; 2]; N] => Edges<N>: |sides| Edges(sides);
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
                1 => "expected an integer or two: 1 or [2, 1]".to_string(),
                2 => "expected an integer, two, or two pairs: 1, [1, 2] or [[0, 1], [0, 1]]".to_string(),
                _ => format!("expected an integer, {N}, or {N} pairs: 1, {:?} or {:?}", [1; N], [[0, 1]; N]),
            })
        })
    }
}

/// Formats sizes: `3` or `(3, 2)`.
pub(crate) fn listed(sizes: &[usize]) -> String {
    match sizes {
        [one] => one.to_string(),
        all => format!("({})", all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Height and width; deprecated in favor of [`Sizes<2>`].
#[deprecated(note = "use Sizes<2>, or a tuple (height, width)")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair(pub usize, pub usize);

conversions! {
    #[allow(deprecated, reason = "kept for the previous version's API")]
    Pair => Sizes<2>: |Pair(height, width)| Sizes([height, width]);
    #[allow(deprecated, reason = "kept for the previous version's API")]
    Pair => SizeArgument: |Pair(height, width)| (height, width).into();
}

/// Argument of size setters, for layers with one, two or three spatial dimensions: `2`, `(2, 1)`, `(2, 1, 1)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeArgument(Value);

conversions! {
    usize => SizeArgument: |all| SizeArgument(all.into());
    (usize, usize) => SizeArgument: |(height, width)| SizeArgument(vec![height, width].into());
}

impl From<(usize, usize, usize)> for SizeArgument {
    fn from((depth, height, width): (usize, usize, usize)) -> SizeArgument {
        SizeArgument(vec![depth, height, width].into())
    }
}

conversions! {
    const N, [usize; N] => SizeArgument: |sizes| SizeArgument(sizes.to_vec().into());
    SizeArgument => Value: |each| each.0;
}

/// Axes of an input: one or several, where `-1` is the last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axes(pub Vec<i64>);

conversions! {
    i64 => Axes: |axis| Axes(vec![axis]);
    const N, [i64; N] => Axes: |axes| Axes(axes.into());
    Vec<i64> => Axes: |axes| Axes(axes);
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
        axes.map(Axes).ok_or_else(|| D::Error::custom("expected an axis or a list of axes: -1 or [1, 2]"))
    }
}

/// Padding mode of convolutions and pooling.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Padding {
    /// No padding: `⌊(n − reach) / stride⌋ + 1` positions. Keras's default.
    #[default]
    Valid,
    /// Pads to `⌈n / stride⌉` positions; padded elements do not count.
    Same,
    /// Like `Same`, but pads only before the first position, so that no output sees later inputs. Only for Conv1D.
    Causal,
}

impl Padding {
    /// Names of padding modes accepted by [`Padding::from_str`].
    pub const NAMES: [&'static str; 3] = ["valid", "same", "causal"];

    /// Keras name of the padding mode.
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
            _ => Err(unknown(&format!("unknown padding `{name}`"), name, &Padding::NAMES)),
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

conversions! {
    Activation => Value: |activation| config_of(&activation);
    Initializer => Value: |initializer| config_of(&initializer);
}

/// Reads an activation by name or with arguments; `null` (Keras's `None`) is the linear one.
pub(crate) fn activation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Activation, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Activation::Linear),
        Value::String(name) => name.parse().map_err(|e| D::Error::custom(one_line(&e))),
        value => serde_json::from_value(value).map_err(D::Error::custom),
    }
}

/// Returns a layer's arguments as JSON for model files.
pub(crate) fn config_of(layer: &impl Serialize) -> Value {
    // Serialization only fails for maps with non-string keys, which no layer has.
    serde_json::to_value(layer).unwrap_or_else(|e| bug!("cannot serialize layer arguments: {e}"))
}
