//! Types of arrays as the IR has them, and errors about modules.

use crate::syntax::Type;
use systole_base::{DType, Error, ErrorKind, Result, TensorType};

/// An error about a module that contradicts itself.
pub(super) fn wrong(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what)
}

/// An error about what is not here.
pub(super) fn not_there(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what)
}

/// Whether all sizes of a type are known.
pub(super) fn is_settled(ty: &Type) -> bool {
    !matches!(ty, Type::Tensor(ranked) if ranked.dims.contains(&None))
}

/// An error about a type with sizes that nothing tells.
pub(super) fn unsettled(ty: &Type) -> Error {
    not_there(format!("{ty}: sizes that are known only when it runs"))
        .because("arrays have sizes that are known when the program is compiled")
        .hint("export the program with sizes instead of names for its dimensions")
}

/// Whether an array is of a type; sizes that the type leaves open fit all.
pub(super) fn fits(said: &Type, ty: &TensorType) -> bool {
    let Type::Tensor(ranked) = said else { return false };
    let sizes = || ranked.dims.iter().zip(ty.shape.iter()).all(|(d, n)| d.is_none_or(|d| d == *n as u64));
    tensor_type(said).is_ok_and(|said| said.dtype == ty.dtype) && ranked.dims.len() == ty.rank() && sizes()
}

/// A type of an array as the IR's; sizes that are left open are 1 (see [`is_settled`]).
pub(super) fn tensor_type(ty: &Type) -> Result<TensorType> {
    let Type::Tensor(ranked) = ty else { return Err(wrong(format!("{ty} is no array"))) };
    let name = match ranked.element.as_str() {
        "index" => "i64",
        name => name,
    };
    let known = DType::parse(name).filter(|d| d.name() == name);
    let dtype = known
        .ok_or_else(|| not_there(format!("{ty}: elements of type {} are not supported", ranked.element)))?;
    let dims: Vec<usize> = ranked.dims.iter().map(|d| d.map_or(1, |d| d as usize)).collect();
    let bytes = dims.iter().try_fold(dtype.size(), |n, d| n.checked_mul((*d).max(1)));
    match bytes {
        Some(n) if n < 1 << 46 => Ok(TensorType::new(dtype, &dims[..])),
        _ => Err(wrong(format!("{ty} is too large"))),
    }
}
