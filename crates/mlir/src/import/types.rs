//! Converts MLIR tensor types to IR types, and constructs the importer's errors.

use crate::interface::SourceElement;
use crate::narrow_types::Narrow;
use crate::syntax::MlirType;
use systole_base::{DType, Error, ErrorKind, Result, TensorType};
use systole_ir::Tensor;

/// Returns an error about an inconsistent module.
pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what)
}

/// Returns an error about an unsupported feature.
pub(super) fn not_there(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

/// Whether all sizes of a type are known.
pub(super) fn is_settled(ty: &MlirType) -> bool {
    !matches!(ty, MlirType::Tensor(ranked) if ranked.dims.contains(&None))
}

/// Returns an error about a type with unknown sizes.
pub(super) fn unsettled(ty: &MlirType) -> Error {
    not_there(format!("the type {ty} has sizes that are known only at run time"))
        .because("array sizes must be known at compile time")
        .hint("export the program with fixed sizes instead of symbolic dimensions")
}

/// Whether arrays match a type; unknown sizes match all.
pub(super) fn fits(said: &MlirType, parts: &[Tensor]) -> bool {
    let (MlirType::Tensor(ranked), Ok(element)) = (said, element(said)) else { return false };
    let one = |(t, dtype): (&Tensor, DType)| {
        let sizes =
            || ranked.dims.iter().zip(t.shape().iter()).all(|(d, n)| d.is_none_or(|d| d == *n as u64));
        t.dtype() == dtype && ranked.dims.len() == t.rank() && sizes()
    };
    let held = element.held();
    held.len() == parts.len() && parts.iter().zip(held).all(one)
}

/// Returns the element type of a tensor type.
pub(super) fn element(ty: &MlirType) -> Result<SourceElement> {
    let MlirType::Tensor(ranked) = ty else { return Err(wrong(format!("expected a tensor type, got {ty}"))) };
    let name = match ranked.element.as_str() {
        "index" => "i64",
        name => name,
    };
    let plain = |name: &str| DType::parse(name).filter(|d| d.name() == name);
    let part = name.strip_prefix("complex<").and_then(|rest| rest.strip_suffix('>')).map(str::trim);
    let found = match part {
        Some(part) => {
            plain(part).filter(|d| matches!(d, DType::F32 | DType::F64)).map(SourceElement::Complex)
        }
        None => {
            plain(name).map(SourceElement::Plain).or_else(|| Narrow::parse(name).map(SourceElement::Narrow))
        }
    };
    found.ok_or_else(|| not_there(format!("{ty}: unsupported element type {}", ranked.element)))
}

/// Returns the narrow type of the elements, if it is one.
pub(super) fn narrow(ty: &MlirType) -> Option<Narrow> {
    match element(ty) {
        Ok(SourceElement::Narrow(narrow)) => Some(narrow),
        _ => None,
    }
}

/// Returns the types of the arrays that hold a tensor: two for complex numbers, none for a token. Unknown sizes are 1
/// (see [`is_settled`]).
pub(super) fn held(ty: &MlirType) -> Result<Vec<TensorType>> {
    if *ty == MlirType::Token {
        return Ok(Vec::new());
    }
    let element = element(ty)?;
    let MlirType::Tensor(ranked) = ty else { return Err(wrong(format!("expected a tensor type, got {ty}"))) };
    let dims: Vec<usize> = ranked.dims.iter().map(|d| d.map_or(1, |d| d as usize)).collect();
    let one = |dtype: DType| {
        let bytes = dims.iter().try_fold(dtype.size(), |n, d| n.checked_mul((*d).max(1)));
        match bytes {
            Some(n) if n < 1 << 46 => Ok(TensorType::new(dtype, &dims[..])),
            _ => Err(wrong(format!("{ty} is too large"))),
        }
    };
    element.held().into_iter().map(one).collect()
}

/// Returns the IR type of a tensor that one array holds.
pub(super) fn tensor_type(ty: &MlirType) -> Result<TensorType> {
    let mut parts = held(ty)?;
    match (parts.pop(), parts.pop()) {
        (Some(one), None) => Ok(one),
        _ => Err(not_there(format!("{ty}: expected real elements, got complex numbers"))),
    }
}
