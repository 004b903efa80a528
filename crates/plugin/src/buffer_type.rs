//! What arrays are made of: element types and sizes as callers name them, and the arrays of the engine that hold them.

use crate::call::CallError;
use std::fmt;
use std::sync::Arc;
use systole_ir::{DType, Literal, TensorType};
use systole_mlir::device_sharding::DeviceSharding;
use systole_mlir::interface::{ProgramPort, SourceElement};
use systole_mlir::narrow_types::Narrow;
use systole_pjrt::sys;

/// More bytes than any machine has: a shape like that is a mistake or an attack.
const MOST_BYTES: usize = 1 << 42;

/// The type of an array as callers see it.
#[derive(Clone, Debug)]
pub(crate) struct BufferType {
    pub(crate) face: ProgramPort,
    /// The number of its element type.
    pub(crate) code: i32,
    pub(crate) dims: Vec<i64>,
    /// How callers see its elements in memory; the engine's arrays are in row-major order all the same.
    pub(crate) minor_to_major: Vec<i64>,
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

/// Arguments and results of a program.
pub(crate) struct ProgramSignature {
    /// Of one device.
    pub(crate) arguments: Vec<Arc<BufferType>>,
    pub(crate) results: Vec<Arc<BufferType>>,
    pub(crate) argument_tiles: Vec<DeviceSharding>,
    pub(crate) result_tiles: Vec<DeviceSharding>,
    /// Results of which each device makes a term of its own.
    pub(crate) terms: Vec<bool>,
    /// The arrays that hold each argument of all devices together.
    pub(crate) wholes: Vec<Vec<TensorType>>,
    /// Arguments that are given away.
    pub(crate) donated: Vec<bool>,
}

/// The numbers of element types that the IR has none for, by their names.
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

/// The number of an element type.
fn code(element: SourceElement) -> Result<i32, CallError> {
    if let SourceElement::Plain(dtype) = element {
        return Ok(sys::buffer_type(dtype));
    }
    let name = element.name();
    let found = OTHERS.iter().find(|(_, n)| *n == name);
    found.map(|(code, _)| *code).ok_or_else(|| CallError::unimplemented(format!("arrays of {name}")))
}

/// The element type of a number.
fn element(code: i32) -> Result<SourceElement, CallError> {
    if let Some(dtype) = sys::element_type(code) {
        return Ok(SourceElement::Plain(dtype));
    }
    match OTHERS.iter().find(|(c, _)| *c == code).map(|(_, name)| *name) {
        Some("complex<f32>") => Ok(SourceElement::Complex(DType::F32)),
        Some("complex<f64>") => Ok(SourceElement::Complex(DType::F64)),
        Some(name) => match Narrow::parse(name) {
            Some(narrow) => Ok(SourceElement::Narrow(narrow)),
            None => Err(CallError::unimplemented(format!("arrays of {name} are not implemented"))),
        },
        None => Err(CallError::invalid(format!("there is no element type {code}"))),
    }
}

impl BufferType {
    pub(crate) fn new(element: SourceElement, dims: &[usize]) -> Result<BufferType, CallError> {
        let code = code(element)?;
        let bytes = dims.iter().try_fold(element.size(), |n, d| n.checked_mul(*d));
        if bytes.is_none_or(|bytes| bytes > MOST_BYTES) {
            let what = format!("an array of {dims:?} elements does not fit any memory");
            return Err(CallError::exhausted(what));
        }
        Ok(BufferType {
            face: ProgramPort { dims: dims.to_vec(), element, first: 0 },
            code,
            dims: dims.iter().map(|d| *d as i64).collect(),
            minor_to_major: (0..dims.len() as i64).rev().collect(),
        })
    }

    /// Of what callers say of an array.
    pub(crate) fn of_caller(code: i32, dims: &[i64]) -> Result<BufferType, CallError> {
        let dims = dims.iter().map(|d| usize::try_from(*d)).collect::<Result<Vec<usize>, _>>();
        let dims = dims.map_err(|_| CallError::invalid("a dimension is negative"))?;
        BufferType::new(element(code)?, &dims)
    }

    /// Of an array of the engine.
    pub(crate) fn of_type(ty: &TensorType) -> Result<BufferType, CallError> {
        BufferType::new(SourceElement::Plain(ty.dtype), &ty.shape)
    }

    /// In memory in this order of dimensions.
    pub(crate) fn ordered(self, minor_to_major: &[i64]) -> Result<BufferType, CallError> {
        let mut seen = minor_to_major.to_vec();
        seen.sort_unstable();
        if !seen.into_iter().eq(0..self.dims.len() as i64) {
            let what = format!("{minor_to_major:?} is no order of {} dimensions", self.dims.len());
            return Err(CallError::invalid(what));
        }
        Ok(BufferType { minor_to_major: minor_to_major.to_vec(), ..self })
    }

    pub(crate) fn is_row_major(&self) -> bool {
        self.minor_to_major.iter().rev().copied().eq(0..self.dims.len() as i64)
    }

    /// Its layout as XLA writes it.
    pub(crate) fn layout(&self) -> String {
        let order: Vec<String> = self.minor_to_major.iter().map(ToString::to_string).collect();
        format!("{{{}}}", order.join(","))
    }

    /// Bytes of one element in memory of callers.
    pub(crate) fn size(&self) -> usize {
        self.face.element.size()
    }

    /// Bytes of all elements in memory of callers.
    pub(crate) fn bytes(&self) -> usize {
        self.face.bytes()
    }

    /// The arrays of the engine that hold elements in row-major order.
    pub(crate) fn split(&self, bytes: &[u8]) -> Result<Vec<Literal>, CallError> {
        Ok(self.face.split(bytes)?)
    }
}
