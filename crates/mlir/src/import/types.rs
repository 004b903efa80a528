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

/// A type of an array as the IR's.
pub(super) fn tensor_type(ty: &Type) -> Result<TensorType> {
    let Type::Tensor(ranked) = ty else { return Err(wrong(format!("{ty} is no array"))) };
    let name = match ranked.element.as_str() {
        "index" => "i64",
        name => name,
    };
    let known = DType::parse(name).filter(|d| d.name() == name);
    let dtype = known
        .ok_or_else(|| not_there(format!("{ty}: elements of type {} are not supported", ranked.element)))?;
    let dims = ranked.dims.iter().map(|d| d.map(|d| d as usize)).collect::<Option<Vec<usize>>>();
    let dims = dims.ok_or_else(|| not_there(format!("{ty}: sizes that are known only when it runs")))?;
    let bytes = dims.iter().try_fold(dtype.size(), |n, d| n.checked_mul((*d).max(1)));
    match bytes {
        Some(n) if n < 1 << 46 => Ok(TensorType::new(dtype, &dims[..])),
        _ => Err(wrong(format!("{ty} is too large"))),
    }
}
