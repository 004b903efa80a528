//! Derive macros for JSON: serde's traits and attributes, implemented through `serde_json::Value`.
//!
//! Serde's own derives generate code that is generic over the format and compiled again for each serializer and deserializer. These
//! convert to and from a JSON value, so that a type is compiled once; the generic methods only pass the value on. The generated code
//! calls functions of `crate::json`, which the deriving crate defines.
//!
//! Supported: structs with named fields, enums of unit variants, externally tagged enums and adjacently tagged ones, with the attributes
//! that `item` reads, among them `default` with a literal (`default = 0.5`), `from_str` and `skip_serializing_none`, which serde
//! lacks. Anything else is a compile error.

mod item;

use item::{Body, Enum, Field, Item, Variant, VariantFields};
use proc_macro::TokenStream;
use std::fmt::Write;

/// Implements `serde::Serialize`.
#[proc_macro_derive(Serialize, attributes(serde))]
pub fn serialize(input: TokenStream) -> TokenStream {
    expand(input, |item| {
        let body = match &item.body {
            Body::Newtype => "crate::json::value(&self.0)".into(),
            Body::Struct(fields) => {
                format!("{}{}Ok(map.into())", NEW_MAP, writes(fields, |name| format!("&self.{name}")))
            }
            Body::Enum(of) => {
                let arms: String = of.variants.iter().map(|v| write_variant(v, of)).collect();
                format!("match self {{ {arms} }}")
            }
        };
        let conversion = format!(
            "impl{0} crate::json::ToJson for {1}{2} {{
                fn to_json(&self) -> crate::json::Result<crate::json::Value> {{ {body} }}
            }}",
            item.generics, item.name, item.arguments
        );
        if item.remote {
            return conversion;
        }
        format!(
            "{conversion} impl{0} crate::json::Serialize for {1}{2} {{
                fn serialize<S__: crate::json::Serializer>(&self, to: S__) -> ::std::result::Result<S__::Ok, S__::Error> {{
                    crate::json::serialize(self, to)
                }}
            }}",
            item.generics, item.name, item.arguments
        )
    })
}

/// Implements `serde::Deserialize`.
#[proc_macro_derive(Deserialize, attributes(serde))]
pub fn deserialize(input: TokenStream) -> TokenStream {
    expand(input, |item| {
        let body = match &item.body {
            Body::Newtype => "crate::json::read(value).map(Self)".into(),
            Body::Struct(fields) => {
                let expected = format!("struct {}", item.name);
                read_fields("Self", fields, "value", &expected, item.defaults, item.strict)
            }
            Body::Enum(of) if item.from_str => {
                format!(
                    "if value.is_string() {{ return crate::json::parse(&value); }} {}",
                    read_enum(item, of)
                )
            }
            Body::Enum(of) => read_enum(item, of),
        };
        let inherited = item.generics.strip_prefix('<').unwrap_or(">");
        let conversion = format!(
            "impl{0} crate::json::FromJson for {1}{2} {3} {{
                fn from_json(value: crate::json::Value) -> crate::json::Result<Self> {{ {body} }}
            }}",
            item.generics, item.name, item.arguments, item.bound
        );
        if item.remote {
            return conversion;
        }
        format!(
            "{conversion} impl<'de, {inherited} crate::json::Deserialize<'de> for {0}{1} {2} {{
                fn deserialize<D__: crate::json::Deserializer<'de>>(from: D__) -> ::std::result::Result<Self, D__::Error> {{
                    crate::json::deserialize(from)
                }}
            }}",
            item.name, item.arguments, item.bound
        )
    })
}

const NEW_MAP: &str = "let mut map = crate::json::Map::new();";

/// Parses the item and generates its code; reports what is unsupported as a compile error.
fn expand(input: TokenStream, generate: impl FnOnce(&Item) -> String) -> TokenStream {
    let code =
        item::parse(input).map(|item| generate(&item)).unwrap_or_else(|e| format!("compile_error!({e:?});"));
    code.parse().unwrap_or_else(|e| {
        format!("compile_error!(\"cannot parse the generated code: {e}\");").parse().unwrap_or_default()
    })
}

/// Statements that write the fields to `map`; `place` returns a reference to a field.
fn writes(fields: &[Field], place: impl Fn(&str) -> String) -> String {
    let mut code = String::new();
    for field in fields.iter().filter(|f| !f.skip) {
        let at = place(&field.name);
        let write = format!("crate::json::put(&mut map, {:?}, {at})?;", field.key);
        let _ = match &field.skip_if {
            Some(condition) => write!(code, "if !{condition}({at}) {{ {write} }}"),
            None => write!(code, "{write}"),
        };
    }
    code
}

/// Match arm that writes a variant.
fn write_variant(variant: &Variant, of: &Enum) -> String {
    let (name, key) = (&variant.name, &variant.key);
    if variant.skip {
        return format!(
            "Self::{name} {{ .. }} => Err(crate::json::custom(\"the variant {name} cannot be serialized\")),"
        );
    }
    let (pattern, content) = match &variant.fields {
        VariantFields::Unit => (String::new(), None),
        VariantFields::One => ("(content)".into(), Some("crate::json::value(content)?".into())),
        VariantFields::Named(fields) => {
            let names: String = fields.iter().map(|f| format!("{},", f.name)).collect();
            let code = format!("{{ {NEW_MAP} {} map.into() }}", writes(fields, |name| name.to_string()));
            (format!("{{ {names} }}"), Some(code))
        }
    };
    let value = match (&of.tags, content) {
        (None, Some(content)) if of.untagged.is_some() => content,
        (Some((tag, _)), None) => format!("crate::json::tagged({tag:?}, {key:?}, None)"),
        (Some((tag, key_of_content)), Some(content)) => {
            format!("crate::json::tagged({tag:?}, {key:?}, Some(({key_of_content:?}, {content})))")
        }
        (None, None) => format!("crate::json::Value::from({key:?})"),
        (None, Some(content)) => format!("crate::json::single({key:?}, {content})"),
    };
    format!("Self::{name}{pattern} => Ok({value}),")
}

/// Expression that reads named fields from the JSON value `from`.
fn read_fields(
    constructor: &str,
    fields: &[Field],
    from: &str,
    expected: &str,
    defaults: bool,
    strict: bool,
) -> String {
    let known: String = fields.iter().filter(|f| !f.skip).map(|f| format!("{:?},", f.key)).collect();
    let unused = if known.is_empty() { "let _ = &mut fields;" } else { "" };
    let mut code = format!(
        "let mut fields = crate::json::ObjectFields::new({from}, {expected:?}, &[{known}], {strict})?; {unused}"
    );
    if defaults && !fields.is_empty() {
        code += "let defaults = <Self as ::std::default::Default>::default();";
    }
    let mut members = String::new();
    for field in fields {
        let Field { name, key, .. } = field;
        let default = match (&field.default, defaults) {
            (Some(value), _) => Some(value.clone()),
            (None, true) => Some(format!("defaults.{name}")),
            (None, false) => None,
        };
        let value = match (field.skip, &field.read, default) {
            (true, _, default) => default.unwrap_or_else(|| "::std::default::Default::default()".into()),
            (_, None, None) => format!("fields.take({key:?})?"),
            (_, None, Some(default)) => {
                format!("match fields.find({key:?})? {{ Some(value) => value, None => {default} }}")
            }
            (_, Some(read), default) => {
                let missing = default.unwrap_or_else(|| format!("return Err(crate::json::missing({key:?}))"));
                format!("match fields.remove({key:?}) {{ Some(value) => {read}(value)?, None => {missing} }}")
            }
        };
        let _ = write!(members, "{name}: {value},");
    }
    format!("{code} Ok({constructor} {{ {members} }})")
}

/// Expression that reads an enum from the JSON value `value`.
fn read_enum(item: &Item, of: &Enum) -> String {
    if let Some(message) = &of.untagged {
        let try_variant = |v: &Variant| {
            format!(
                "if let Ok(content) = crate::json::read(value.clone()) {{ return Ok(Self::{}(content)); }}",
                v.name
            )
        };
        let all: String = of.variants.iter().map(try_variant).collect();
        return format!("{all} Err(crate::json::custom(\"{message}\"))");
    }
    let read: Vec<&Variant> = of.variants.iter().filter(|v| !v.skip).collect();
    let keys: String = read.iter().flat_map(|v| v.names()).map(|name| format!("{name:?},")).collect();
    let mut arms = String::new();
    for variant in read {
        let Variant { name, fields, .. } = variant;
        let names: Vec<String> = variant.names().iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(" | ");
        let content = match (fields, &of.tags) {
            (VariantFields::Unit, _) => format!("crate::json::unit(content).map(|()| Self::{name})"),
            (VariantFields::One, _) => {
                format!("{}.and_then(crate::json::read).map(Self::{name})", of.content("newtype"))
            }
            (VariantFields::Named(fields), _) => {
                let expected = format!("struct variant {}::{name}", item.name);
                let value = format!("{}?", of.content("struct"));
                read_fields(&format!("Self::{name}"), fields, &value, &expected, false, item.strict)
            }
        };
        let _ = write!(arms, "{names} => {{ {content} }}");
    }
    let parts = match &of.tags {
        Some((tag, content)) => format!(
            "crate::json::tag_and_content(value, {tag:?}, {content:?}, {:?}, {})?",
            item.name, item.strict
        ),
        None => "crate::json::name_and_content(value)?".into(),
    };
    format!(
        "let (name, content) = {parts};
        match name.as_str() {{ {arms} _ => Err(crate::json::unknown_variant(&name, &[{keys}])) }}"
    )
}
