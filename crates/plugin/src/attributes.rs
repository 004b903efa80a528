//! Reads types of values, and attributes of operations and functions, of MLIR programs.

use systole_mlir::syntax::{
    Attribute, ElementData, FunctionValue, MlirFunction, MlirType, NamedAttributes, find,
};

/// Mesh axes that split each dimension, followed by [`OPEN`](systole_mlir::syntax::OPEN) if further axes may.
pub(crate) type DimAxes = Vec<Vec<String>>;

/// Returns mesh, axes, and unreduced axes of a sharding.
pub(crate) fn stated(sharding: &Attribute) -> Option<(&str, &DimAxes, Vec<String>)> {
    match sharding {
        Attribute::Sharding(mesh, dims) => Some((mesh, dims, Vec::new())),
        Attribute::Struct(_, fields) => {
            let Some(Attribute::Sharding(mesh, dims)) = find(fields, "sharding") else { return None };
            let Some(Attribute::List(axes)) = find(fields, "axes") else { return None };
            let name = |a: &Attribute| match a {
                Attribute::String(name) => Some(name.clone()),
                _ => None,
            };
            Some((mesh, dims, axes.iter().filter_map(name).collect()))
        }
        _ => None,
    }
}

/// Returns the dimensions of an array; `None` if they are not all known.
pub(crate) fn dims(f: &MlirFunction, value: FunctionValue) -> Option<Vec<u64>> {
    match f.values.get(value)? {
        MlirType::Tensor(t) => t.dims.iter().copied().collect(),
        _ => None,
    }
}

/// Returns a list of numbers; empty if there is none.
pub(crate) fn numbers(attributes: &NamedAttributes, name: &str) -> Vec<usize> {
    let int = |item: &Attribute| match item {
        Attribute::Int(i) => usize::try_from(*i).ok(),
        _ => None,
    };
    match find(attributes, name) {
        Some(Attribute::Array(_, items) | Attribute::List(items)) => items.iter().filter_map(int).collect(),
        Some(Attribute::Dense(dense)) => match &dense.elements {
            ElementData::List(_, words) | ElementData::Splat(words) => {
                words.iter().filter_map(|w| w.parse().ok()).collect()
            }
            _ => Vec::new(),
        },
        Some(one) => int(one).into_iter().collect(),
        None => Vec::new(),
    }
}
