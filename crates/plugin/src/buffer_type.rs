//! Buffer types: PJRT element types and dimensions, and the engine arrays that hold them.

use crate::call::{CallError, CallResult};
use std::fmt;
use std::sync::Arc;
use systole_ir::{DType, Literal, TensorType};
use systole_mlir::device_sharding::DeviceSharding;
use systole_mlir::interface::{ProgramPort, SourceElement};
use systole_mlir::narrow_types::Narrow;
use systole_pjrt::sys;

/// Maximum size of an array in bytes; larger shapes are an error.
const MOST_BYTES: usize = 1 << 42;

/// Type of a buffer as callers see it.
#[derive(Clone, Debug)]
pub(crate) struct BufferType {
    pub(crate) face: ProgramPort,
    /// PJRT code of the element type.
    pub(crate) code: i32,
    pub(crate) dims: Vec<i64>,
    /// Memory order for callers; the engine's arrays are always row-major.
    pub(crate) minor_to_major: Vec<i64>,
    /// Index of the memory kind; all kinds are the same memory.
    pub(crate) memory: usize,
}

impl PartialEq for BufferType {
    fn eq(&self, other: &BufferType) -> bool {
        self.face.element == other.face.element && self.dims == other.dims
    }
}

impl fmt::Display for BufferType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.face.element.name(), self.dims)
    }
}

/// Argument and result types of a program.
pub(crate) struct ProgramSignature {
    /// Types on one device.
    pub(crate) arguments: Vec<Arc<BufferType>>,
    pub(crate) results: Vec<Arc<BufferType>>,
    pub(crate) argument_tiles: Vec<DeviceSharding>,
    pub(crate) result_tiles: Vec<DeviceSharding>,
    /// Whether each device returns its own term of a result.
    pub(crate) terms: Vec<bool>,
    /// Types of the arrays that hold each global argument.
    pub(crate) wholes: Vec<Vec<TensorType>>,
    /// Whether each argument is donated.
    pub(crate) donated: Vec<bool>,
}

/// PJRT code of tokens.
const TOKEN: i32 = 23;

/// PJRT codes of element types that the IR lacks, by name.
const OTHERS: &[(i32, &str)] = &[
    (14, "complex<f32>"),
    (15, "complex<f64>"),
    (16, "f8E5M2"),
    (17, "f8E4M3FN"),
    (18, "f8E4M3B11FNUZ"),
    (19, "f8E5M2FNUZ"),
    (20, "f8E4M3FNUZ"),
    (21, "i4"),
    (22, "ui4"),
    (24, "i2"),
    (25, "ui2"),
    (26, "f8E4M3"),
    (27, "f8E3M4"),
    (28, "f8E8M0FNU"),
    (29, "f4E2M1FN"),
    (32, "f6E2M3FN"),
    (33, "f6E3M2FN"),
];

/// Returns the PJRT code of an element type.
fn code(element: SourceElement) -> CallResult<i32> {
    if let SourceElement::Plain(dtype) = element {
        return Ok(sys::buffer_type(dtype));
    }
    let name = element.name();
    let found = OTHERS.iter().find(|(_, n)| *n == name);
    found
        .map(|(code, _)| *code)
        .ok_or_else(|| CallError::unimplemented(format!("arrays of {name} are not supported")))
}

/// Returns the element type of a PJRT code.
fn element(code: i32) -> CallResult<SourceElement> {
    if let Some(dtype) = sys::element_type(code) {
        return Ok(SourceElement::Plain(dtype));
    }
    match OTHERS.iter().find(|(c, _)| *c == code).map(|(_, name)| *name) {
        Some("complex<f32>") => Ok(SourceElement::Complex(DType::F32)),
        Some("complex<f64>") => Ok(SourceElement::Complex(DType::F64)),
        Some(name) => match Narrow::parse(name) {
            Some(narrow) => Ok(SourceElement::Narrow(narrow)),
            None => Err(CallError::unimplemented(format!("arrays of {name} are not supported"))),
        },
        None => Err(CallError::invalid(format!("unknown element type {code}"))),
    }
}

impl BufferType {
    pub(crate) fn new(element: SourceElement, dims: &[usize]) -> CallResult<BufferType> {
        let code = code(element)?;
        let bytes = dims.iter().try_fold(element.size(), |n, d| n.checked_mul(*d));
        if bytes.is_none_or(|bytes| bytes > MOST_BYTES) {
            let what = format!("an array of {dims:?} elements is too large");
            return Err(CallError::exhausted(what));
        }
        Ok(BufferType {
            face: ProgramPort { dims: dims.to_vec(), element, first: 0 },
            code,
            dims: dims.iter().map(|d| *d as i64).collect(),
            minor_to_major: (0..dims.len() as i64).rev().collect(),
            memory: 0,
        })
    }

    /// Returns the type for a caller's element type and dimensions.
    pub(crate) fn of_caller(code: i32, dims: &[i64]) -> CallResult<BufferType> {
        let dims = dims.iter().map(|d| usize::try_from(*d)).collect::<Result<Vec<usize>, _>>();
        let dims = dims.map_err(|_| CallError::invalid("a dimension is negative"))?;
        BufferType::new(element(code)?, &dims)
    }

    /// Returns the type of an engine array.
    pub(crate) fn of_type(ty: &TensorType) -> CallResult<BufferType> {
        BufferType::new(SourceElement::Plain(ty.dtype), &ty.shape)
    }

    /// Returns the type with this memory order.
    pub(crate) fn ordered(self, minor_to_major: &[i64]) -> CallResult<BufferType> {
        let mut seen = minor_to_major.to_vec();
        seen.sort_unstable();
        if !seen.into_iter().eq(0..self.dims.len() as i64) {
            let what = format!("{minor_to_major:?} is not a permutation of {} dimensions", self.dims.len());
            return Err(CallError::invalid(what));
        }
        Ok(BufferType { minor_to_major: minor_to_major.to_vec(), ..self })
    }

    /// Returns the type of a token, which the engine holds as an empty array.
    pub(crate) fn token(self) -> BufferType {
        BufferType { code: TOKEN, ..self }
    }

    /// Returns the type in a memory of another kind.
    pub(crate) fn in_memory(self, memory: usize) -> BufferType {
        BufferType { memory, ..self }
    }

    pub(crate) fn is_row_major(&self) -> bool {
        self.minor_to_major.iter().rev().copied().eq(0..self.dims.len() as i64)
    }

    /// Returns its layout in XLA's notation.
    pub(crate) fn layout(&self) -> String {
        let order: Vec<String> = self.minor_to_major.iter().map(ToString::to_string).collect();
        format!("{{{}}}", order.join(","))
    }

    /// Returns the bytes per element in the caller's memory.
    pub(crate) fn size(&self) -> usize {
        self.face.element.size()
    }

    /// Returns the size in bytes in the caller's memory.
    pub(crate) fn bytes(&self) -> usize {
        self.face.bytes()
    }

    /// Returns engine arrays that hold row-major elements.
    pub(crate) fn split(&self, bytes: &[u8]) -> CallResult<Vec<Literal>> {
        Ok(self.face.split(bytes)?)
    }
}
