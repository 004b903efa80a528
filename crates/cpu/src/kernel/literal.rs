//! Arrays as values of the interpreter, for kernels that follow its rules element by element.

use systole_ir::{Literal, Result, TensorType};

/// A host copy of an array.
///
/// # Safety
/// `ptr` points to an array of type `ty`.
pub unsafe fn literal(ty: &TensorType, ptr: *const u8) -> Result<Literal> {
    // SAFETY: by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(ptr, ty.bytes()) };
    Literal::from_bytes(ty.clone(), bytes)
}
