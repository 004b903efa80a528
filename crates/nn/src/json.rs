//! Conversion of arguments to and from JSON values; called by the code of the derive macros of `systole-derive`.
//!
//! A type is converted by one function in each direction. Serde's generic methods build or read a [`Value`] and pass it on, whatever
//! the format is.

use serde::de::{self, DeserializeOwned, Error as _, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Error;
use std::str::FromStr;

pub(crate) use serde::de::{Deserialize, Deserializer};
pub(crate) use serde::ser::{Error as SerializeError, Serialize, Serializer};
pub(crate) use serde_json::{Map, Result, Value};
pub(crate) use systole_derive::{Deserialize, Serialize};

/// Conversion to a JSON value.
pub(crate) trait ToJson {
    /// Returns the value as stored in files.
    fn to_json(&self) -> Result<Value>;
}

/// Conversion from a JSON value.
pub(crate) trait FromJson: Sized {
    /// Reads the value as stored in files.
    ///
    /// # Errors
    /// If a key is unknown or missing, or a value has another type.
    fn from_json(value: Value) -> Result<Self>;
}

/// Serializes through a JSON value.
pub(crate) fn serialize<T: ToJson + ?Sized, S: Serializer>(
    value: &T,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    value.to_json().map_err(S::Error::custom)?.serialize(to)
}

/// Deserializes through a JSON value.
pub(crate) fn deserialize<'de, T: FromJson, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<T, D::Error> {
    T::from_json(Value::deserialize(from)?).map_err(D::Error::custom)
}

/// Returns a field's value as JSON.
pub(crate) fn value<T: Serialize + ?Sized>(field: &T) -> Result<Value> {
    serde_json::to_value(field)
}

/// Reads a field's value.
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value)
}

/// Reads a value by its name; the error is on one line, for use inside other messages.
pub(crate) fn parse<T: FromStr<Err = systole_ir::Error>>(name: &Value) -> Result<T> {
    name.as_str().unwrap_or_default().parse().map_err(|e| custom(&one_line(&e)))
}

/// Formats an error and its hint on one line, for use inside other messages.
pub(crate) fn one_line(e: &systole_ir::Error) -> String {
    match e.hint_text() {
        Some(hint) => format!("{}; {hint}", e.what()),
        None => e.what().to_string(),
    }
}

/// Adds a field to an object.
pub(crate) fn put<T: Serialize + ?Sized>(map: &mut Map<String, Value>, key: &str, field: &T) -> Result<()> {
    map.insert(key.into(), value(field)?);
    Ok(())
}

/// Returns an object with a single key.
pub(crate) fn single(key: &str, content: Value) -> Value {
    let mut map = Map::new();
    map.insert(key.into(), content);
    map.into()
}

/// Returns a variant of an adjacently tagged enum: `{"class_name": "Huber", "config": {…}}`.
pub(crate) fn tagged(tag: &str, name: &str, content: Option<(&str, Value)>) -> Value {
    let mut map = Map::new();
    map.insert(tag.into(), name.into());
    if let Some((key, content)) = content {
        map.insert(key.into(), content);
    }
    map.into()
}

/// The fields of a JSON object that are not read yet.
pub(crate) struct ObjectFields(Map<String, Value>);

impl ObjectFields {
    /// Checks that `value` is an object and, if `strict`, that all of its keys are `known`.
    pub(crate) fn new(
        value: Value,
        expected: &str,
        known: &'static [&'static str],
        strict: bool,
    ) -> Result<ObjectFields> {
        let Value::Object(map) = value else { return Err(invalid_type(&value, expected)) };
        match map.keys().find(|key| strict && !known.contains(&key.as_str())) {
            Some(key) => Err(Error::unknown_field(key, known)),
            None => Ok(ObjectFields(map)),
        }
    }

    /// Removes a field's JSON value; `None` if it is missing.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key)
    }

    /// Reads a field; `None` if it is missing.
    pub(crate) fn find<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        self.0.remove(key).map(serde_json::from_value).transpose()
    }

    /// Reads a field. A missing one is an error, except an `Option`, which is `None`.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<T> {
        match self.0.remove(key) {
            Some(value) => serde_json::from_value(value),
            None => T::deserialize(Missing(key)),
        }
    }
}

/// Deserializer of a missing field.
struct Missing(&'static str);

impl<'de> Deserializer<'de> for Missing {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value> {
        Err(missing(self.0))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        visitor.visit_none()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Returns an error with this message.
pub(crate) fn custom(message: &str) -> Error {
    de::Error::custom(message)
}

/// Returns the error for a missing field.
pub(crate) fn missing(key: &'static str) -> Error {
    Error::missing_field(key)
}

/// Returns the error for an unknown variant.
pub(crate) fn unknown_variant(name: &str, known: &'static [&'static str]) -> Error {
    Error::unknown_variant(name, known)
}

/// Splits a variant of an externally tagged enum, `"name"` or `{"name": content}`.
pub(crate) fn name_and_content(value: Value) -> Result<(String, Option<Value>)> {
    match value {
        Value::String(name) => Ok((name, None)),
        Value::Object(map) if map.len() == 1 => match map.into_iter().next() {
            Some((name, content)) => Ok((name, Some(content))),
            None => Err(de::Error::custom("expected a map with a single key")),
        },
        Value::Object(_) => Err(Error::invalid_value(Unexpected::Map, &"map with a single key")),
        other => Err(invalid_type(&other, "string or map")),
    }
}

/// Splits a variant of an adjacently tagged enum.
pub(crate) fn tag_and_content(
    value: Value,
    tag: &'static str,
    content: &'static str,
    of: &str,
    strict: bool,
) -> Result<(String, Option<Value>)> {
    let Value::Object(mut map) = value else {
        return Err(invalid_type(&value, &format!("adjacently tagged enum {of}")));
    };
    if let Some(key) = map.keys().find(|key| strict && *key != tag && *key != content) {
        return Err(Error::invalid_value(Unexpected::Str(key), &format!("{tag:?} or {content:?}").as_str()));
    }
    let name = match map.remove(tag) {
        Some(Value::String(name)) => name,
        Some(other) => return Err(invalid_type(&other, "string or map")),
        None => return Err(missing(tag)),
    };
    Ok((name, map.remove(content)))
}

/// Returns the error for a variant that lacks its content.
pub(crate) fn unit_variant(expected: &str) -> Error {
    Error::invalid_type(Unexpected::UnitVariant, &expected)
}

/// Checks that a variant without fields has no content.
pub(crate) fn unit(content: Option<Value>) -> Result<()> {
    match content {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(map)) if map.is_empty() => Ok(()),
        Some(other) => Err(invalid_type(&other, "unit")),
    }
}

/// Returns the error for a value of another type.
fn invalid_type(value: &Value, expected: &str) -> Error {
    let found = match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(b) => Unexpected::Bool(*b),
        Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(n), ..) => Unexpected::Unsigned(n),
            (_, Some(n), _) => Unexpected::Signed(n),
            (_, _, Some(n)) => Unexpected::Float(n),
            _ => Unexpected::Other("number"),
        },
        Value::String(text) => Unexpected::Str(text),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    };
    Error::invalid_type(found, &expected)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_string};

    /// The same types with serde's derives and with those of `systole-derive`.
    macro_rules! types {
        ($module:ident, $($import:tt)*) => {
            mod $module {
                $($import)*

                fn three() -> u64 {
                    3
                }

                #[derive(Debug, Default, Serialize, Deserialize)]
                #[serde(default, deny_unknown_fields)]
                pub struct SampleArguments {
                    pub units: usize,
                    pub name: Option<String>,
                    #[serde(skip_serializing_if = "Vec::is_empty")]
                    pub axes: Vec<i64>,
                    #[serde(skip)]
                    pub hidden: bool,
                }

                #[derive(Debug, Serialize, Deserialize)]
                pub struct Required<const N: usize> {
                    pub rate: f64,
                    pub limit: Option<f64>,
                    #[serde(default = "three", rename = "every")]
                    pub steps: u64,
                    pub inner: SampleArguments,
                }

                #[derive(Debug, Serialize, Deserialize)]
                #[serde(rename_all = "snake_case")]
                pub enum SampleMode {
                    FirstOrder,
                    #[serde(alias = "2nd")]
                    Second,
                }

                #[derive(Debug, Serialize, Deserialize)]
                #[serde(deny_unknown_fields)]
                pub enum Plan {
                    Off,
                    Constant(f64),
                    Ramp { from: f64, mode: SampleMode },
                }

                #[derive(Debug, Serialize, Deserialize)]
                #[serde(tag = "class_name", content = "config", deny_unknown_fields)]
                pub enum Tagged {
                    Plain,
                    Constant(f64),
                    Huber {
                        delta: f64,
                        #[serde(default)]
                        smooth: bool,
                    },
                }

                #[derive(Debug, Serialize, Deserialize)]
                #[serde(untagged, expecting = "expected a number or \"all\"")]
                pub enum Either {
                    Count(u64),
                    Share(f64),
                    SampleMode(SampleMode),
                }

                #[derive(Debug, Serialize, Deserialize)]
                pub struct Newtype(SampleMode);
            }
        };
    }
    types!(ours, use crate::json::{Deserialize, Serialize};);
    types!(serde_derives, use serde::{Deserialize, Serialize};);

    /// Reads and writes a value as type `T`; the text, or the error.
    fn round_trip<T: serde::de::DeserializeOwned + serde::Serialize>(value: &Value) -> String {
        match from_value::<T>(value.clone()) {
            Ok(read) => {
                let text = to_string(&read).unwrap();
                assert_eq!(serde_json::to_value(&read).unwrap().to_string(), text);
                text
            }
            Err(e) => format!("error: {e}"),
        }
    }

    #[test]
    fn derives_equal_those_of_serde() {
        let values = [
            json!({}),
            json!({"units": 3}),
            json!({"units": -3}),
            json!({"units": 3, "axes": [1, -1], "name": "x"}),
            json!({"unit": 3}),
            json!({"hidden": true}),
            json!(null),
            json!(3),
            json!(2.5),
            json!("x"),
            json!(true),
            json!({"rate": 1, "inner": {}}),
            json!({"rate": 1}),
            json!({"inner": {}}),
            json!({"rate": "x", "inner": {}}),
            json!({"rate": 0.1, "limit": 1e300, "every": 7, "inner": {"units": 1}, "unknown": 0}),
            json!("first_order"),
            json!("2nd"),
            json!("second"),
            json!("FirstOrder"),
            json!("Off"),
            json!("Ramp"),
            json!({"Constant": 2}),
            json!({"Off": null}),
            json!({"Ramp": {"from": 1.5, "mode": "second"}}),
            json!({"Ramp": {"from": 1.5}}),
            json!({"Ramp": {"from": 1.5, "mode": "second", "to": 3}}),
            json!({"a": 1, "b": 2}),
            json!({"class_name": "Plain"}),
            json!({"class_name": "Plain", "config": null}),
            json!({"class_name": "None"}),
            json!({"class_name": "Constant", "config": 0.25}),
            json!({"class_name": "Huber", "config": {"delta": 2.0}}),
            json!({"class_name": "Huber"}),
            json!({"class_name": "Huber", "config": {}}),
            json!({"config": {"delta": 1.0}}),
            json!({"class_name": "Huber", "config": {"delta": 2.0, "smooth": true, "x": 1}}),
            json!({"class_name": 3}),
        ];
        let mut differences = Vec::new();
        for value in &values {
            macro_rules! compare {
                ($($name:ident $(<$n:literal>)?),*) => {$(
                    let (own, serde) = (round_trip::<ours::$name $(<$n>)?>(value), round_trip::<serde_derives::$name $(<$n>)?>(value));
                    if own != serde {
                        differences.push(format!("{value} as {}: {own}, serde: {serde}", stringify!($name)));
                    }
                )*};
            }
            compare!(SampleArguments, Required<2>, SampleMode, Plan, Tagged, Either, Newtype);
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}
