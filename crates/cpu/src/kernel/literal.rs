//! Copies arrays to [`Literal`]s, for kernels that use the interpreter's evaluation rules.

use systole_ir::{Literal, Result, TensorType};

/// Copies an array of the backend into a [`Literal`].
///
/// # Safety
/// `ptr` points to an array of type `ty`.
pub unsafe fn literal(ty: &TensorType, ptr: *const u8) -> Result<Literal> {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { std::slice::from_raw_parts(ptr, ty.bytes()) };
    Literal::from_bytes(ty.clone(), bytes)
}
