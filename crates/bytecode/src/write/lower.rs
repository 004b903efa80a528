//! Lowers StableHLO attributes to VHLO attributes: adds defaults, splits struct attributes into fields.

use super::elements::of_ints;
use super::writer::{ModuleWriter, refused};
use crate::read::is_default;
use crate::vhlo_tables::{
    LAYOUTS, OpVersion, VhloAttributeKind, VhloDefault, default, gathered, kind, versions,
};
use systole_base::{Error, Result, err};
use systole_mlir::syntax::{
    Attribute, DenseElements, ElementData, MlirType, NamedAttributes, Operation, RankedTensorType, find, take,
};

fn lacks(name: &str) -> Error {
    err!(Data, "attribute `{name}` is missing or invalid")
}

impl ModuleWriter<'_> {
    /// Returns the version of an op that the artifact's version has.
    pub(super) fn version_of(&self, op: &str) -> Result<OpVersion> {
        let target = self.version.ops();
        let found =
            versions(op).find(|row| row.since <= target && row.until.is_none_or(|until| target < until));
        match (found, versions(op).next()) {
            (Some(row), _) => Ok(row),
            (None, Some(first)) => {
                self.since(first.since, &format!("stablehlo.{op}"))?;
                Err(refused(format!("cannot write stablehlo.{op}")))
            }
            (None, None) => Err(refused(format!("stablehlo.{op} is not a StableHLO op"))),
        }
    }

    /// Returns the op's own attributes by VHLO name, in order, and all other attributes.
    pub(super) fn lower(&self, op: &Operation, name: &str) -> Result<(NamedAttributes, NamedAttributes)> {
        let row = self.version_of(name)?;
        let newest = versions(name).last().unwrap_or(row);
        let mut rest = op.attributes.clone();
        let mut parts = taken_apart(name, &mut rest)?;
        let window = window(name, &parts, &rest);
        let mut own = NamedAttributes::new();
        for attribute in newest.attributes() {
            let given = take(&mut parts, attribute).or_else(|| take(&mut rest, attribute));
            let default = default(name, attribute);
            let is_typed = matches!(find(&rest, "api_version"), Some(Attribute::Int(4)));
            let value = match (given, default) {
                (Some(value), _) => formed(attribute, value)?,
                (None, Some(VhloDefault::Text)) if attribute == "backend_config" && typed(&own, is_typed) => {
                    Attribute::Dictionary(Vec::new())
                }
                (None, Some(default)) => fill(attribute, default, window),
                (None, None) => return Err(lacks(attribute)),
            };
            if row.attributes().any(|a| a == attribute) {
                own.push((attribute.into(), value));
            } else if !default.is_some_and(|d| is_default(&value, d)) {
                self.since(newest.since, &format!("`{attribute}` of stablehlo.{name}"))?;
            }
        }
        if row.version != newest.version {
            self.fits_older(op, name, newest)?;
        }
        Ok((own, rest))
    }

    /// Checks that an older version of the op supports its operands and regions.
    fn fits_older(&self, op: &Operation, name: &str, newest: OpVersion) -> Result<()> {
        let single = matches!(name, "all_gather" | "all_reduce" | "all_to_all" | "collective_broadcast");
        if single && op.operands.len() != 1 {
            return self.since(newest.since, &format!("stablehlo.{name} with several operands"));
        }
        if name == "composite" && !op.regions.is_empty() {
            return self.since(newest.since, "stablehlo.composite with regions");
        }
        Ok(())
    }
}

fn typed(own: &NamedAttributes, rest: bool) -> bool {
    rest || matches!(find(own, "api_version"), Some(Attribute::Int(4)))
}

/// Splits struct attributes, which are removed from `rest`, into VHLO attributes.
fn taken_apart(op: &str, rest: &mut NamedAttributes) -> Result<NamedAttributes> {
    let mut parts = NamedAttributes::new();
    for g in gathered(op) {
        let fields = match take(rest, g.name) {
            Some(Attribute::Struct(_, fields)) => fields,
            None if g.name == "algorithm" => continue,
            _ => return Err(lacks(g.name)),
        };
        for name in g.fields.split_ascii_whitespace() {
            let given = find(&fields, name).cloned();
            let absent = match name {
                "index_vector_dim" => Attribute::Int(0),
                _ => Attribute::List(Vec::new()),
            };
            let value = match given.unwrap_or(absent) {
                Attribute::List(items) => Attribute::Array("i64".into(), items),
                value => value,
            };
            parts.push((name.into(), value));
        }
    }
    if matches!(op, "convolution" | "dynamic_conv") {
        let Some(Attribute::Convolution(layouts)) = take(rest, "dimension_numbers") else {
            return Err(lacks("dimension_numbers"));
        };
        layouts.iter().zip(LAYOUTS).try_for_each(|(layout, names)| dimensions(layout, names, &mut parts))?;
    }
    if let Some(Attribute::Struct(_, fields)) = take(rest, "channel_handle") {
        let field = |name: &str| find(&fields, name).cloned().unwrap_or(Attribute::Int(0));
        parts.push(("channel_id".into(), field("handle")));
        parts.push(("channel_type".into(), field("type")));
    }
    Ok(parts)
}

/// Converts `[b, 0, 1, f]` to dimension numbers.
fn dimensions(layout: &[String], names: [(&str, &str); 3], parts: &mut NamedAttributes) -> Result<()> {
    let place = |letter: &str| {
        let found = layout.iter().position(|l| l == letter);
        found.map(|i| Attribute::Int(i as i128)).ok_or_else(|| lacks("dimension_numbers"))
    };
    for (letter, name) in names {
        let value = match letter {
            "" => {
                let spatial = layout.len().saturating_sub(2);
                let all = (0..spatial).map(|i| place(&i.to_string())).collect::<Result<_>>()?;
                Attribute::Array("i64".into(), all)
            }
            letter => place(letter)?,
        };
        parts.push((name.into(), value));
    }
    Ok(())
}

/// Returns the number of window dimensions of an op.
fn window(op: &str, parts: &NamedAttributes, rest: &NamedAttributes) -> usize {
    let list = match op {
        "convolution" | "dynamic_conv" => find(parts, "input_spatial_dimensions"),
        _ => find(rest, "window_dimensions"),
    };
    match list {
        Some(Attribute::Array(_, items) | Attribute::List(items)) => items.len(),
        Some(Attribute::Dense(DenseElements { ty: MlirType::Tensor(ranked), .. })) => {
            ranked.dims.first().copied().flatten().map_or(0, |n| n as usize)
        }
        _ => 0,
    }
}

/// Converts an attribute to its VHLO form.
fn formed(name: &str, value: Attribute) -> Result<Attribute> {
    let ints = |items: &[Attribute], element: &str| of_ints(items, element).map(Attribute::Dense);
    let found = match (kind(name), value) {
        (VhloAttributeKind::Ints, Attribute::List(items) | Attribute::Array(_, items)) => ints(&items, "i64"),
        (VhloAttributeKind::Bools, Attribute::List(items) | Attribute::Array(_, items)) => ints(&items, "i1"),
        (VhloAttributeKind::Int(ty), Attribute::Int(n)) => Some(Attribute::Other(ty.into(), n.to_string())),
        (VhloAttributeKind::Unit, Attribute::Unit) => Some(Attribute::Bool(true)),
        (VhloAttributeKind::Word(code), Attribute::Keyword(_, word)) => {
            Some(Attribute::Keyword(code.to_string(), word))
        }
        (VhloAttributeKind::Word(5), value @ Attribute::Int(_)) => Some(value),
        (VhloAttributeKind::Any, Attribute::Array(element, items)) => ints(&items, &element),
        (
            VhloAttributeKind::Int(_) | VhloAttributeKind::Unit,
            value @ (Attribute::Other(..) | Attribute::Bool(_)),
        ) => Some(value),
        (VhloAttributeKind::Int(_), _) => None,
        (_, value) => Some(value),
    };
    found.ok_or_else(|| lacks(name))
}

/// Returns the default of an absent attribute.
fn fill(name: &str, default: VhloDefault, window: usize) -> Attribute {
    let tensor = |dims: Vec<usize>, element: &str, word: String| {
        let dims = dims.into_iter().map(|d| Some(d as u64)).collect();
        let elements = if window == 0 { ElementData::None } else { ElementData::Splat(vec![word]) };
        let ty = MlirType::Tensor(RankedTensorType { dims, element: element.into(), encoding: None });
        Attribute::Dense(DenseElements { ty, elements })
    };
    let float = |name: &str| (name.to_owned(), Attribute::Float("0.0".into(), "f64".into()));
    match default {
        VhloDefault::False => Attribute::Bool(false),
        VhloDefault::Int(_) if name == "compare_type" => Attribute::Keyword("4".into(), "NOTYPE".into()),
        VhloDefault::Int(n) if name == "version" => Attribute::Other("i32".into(), n.to_string()),
        VhloDefault::Int(n) => Attribute::Int(n.into()),
        VhloDefault::List => Attribute::List(Vec::new()),
        VhloDefault::Empty => of_ints(&[], "i64").map_or(Attribute::Unit, Attribute::Dense),
        VhloDefault::Text => Attribute::String(String::new()),
        VhloDefault::Dictionary => Attribute::Dictionary(Vec::new()),
        VhloDefault::Each(n) => tensor(vec![window], "i64", n.to_string()),
        VhloDefault::Pairs => tensor(vec![window, 2], "i64", "0".into()),
        VhloDefault::Falses => tensor(vec![window], "i1", "false".into()),
        VhloDefault::Precision => Attribute::List(vec![Attribute::Keyword("11".into(), "DEFAULT".into()); 2]),
        VhloDefault::Accuracy => Attribute::Struct(
            "result_accuracy".into(),
            vec![
                float("atol"),
                float("rtol"),
                ("ulps".into(), Attribute::Int(0)),
                ("mode".into(), Attribute::Other("stablehlo.result_accuracy_mode".into(), "DEFAULT".into())),
            ],
        ),
        VhloDefault::None => Attribute::Type(MlirType::Scalar("none".into())),
    }
}
