//! Argument and result types of an imported program, and the IR arrays that hold them. Element types that the IR lacks
//! (complex numbers, int4, float8) are held in arrays of other types.

use crate::narrow_types::Narrow;
use systole_base::{DType, Literal, Result, Scalar, TensorType, err};

/// Element type of an argument or result in the source program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceElement {
    /// An element type of the IR; held in one array.
    Plain(DType),
    /// A complex type: held in one array of real parts and one of imaginary parts; interleaved in external memory.
    Complex(DType),
    /// An integer of less than 8 bits or an 8-bit float: held in an array of a wider type; one byte per element in
    /// external memory.
    Narrow(Narrow),
}

impl SourceElement {
    /// Returns the type's name in MLIR: `f32`, `complex<f32>`, `i4`, `f8E4M3FN`.
    pub fn name(self) -> String {
        match self {
            SourceElement::Plain(dtype) => dtype.name().to_owned(),
            SourceElement::Complex(part) => format!("complex<{}>", part.name()),
            SourceElement::Narrow(narrow) => narrow.name().to_owned(),
        }
    }

    /// Returns the bytes per element in external memory (the layout of PJRT and NumPy).
    pub fn size(self) -> usize {
        match self {
            SourceElement::Plain(dtype) => dtype.size(),
            SourceElement::Complex(part) => 2 * part.size(),
            SourceElement::Narrow(_) => 1,
        }
    }

    /// Returns the IR element types of the arrays that hold this source type, in order.
    pub fn held(self) -> Vec<DType> {
        match self {
            SourceElement::Plain(dtype) => vec![dtype],
            SourceElement::Complex(part) => vec![part, part],
            SourceElement::Narrow(narrow) => vec![narrow.held()],
        }
    }
}

/// An argument or result of an imported program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPort {
    /// Dimension sizes.
    pub dims: Vec<usize>,
    /// Element type.
    pub element: SourceElement,
    /// Index of the first array that holds it, among the graph's parameters or results; the others follow it.
    pub first: usize,
}

impl ProgramPort {
    /// Returns the types of the IR arrays that hold this argument or result.
    pub fn types(&self) -> Vec<TensorType> {
        self.element.held().into_iter().map(|d| TensorType::new(d, &self.dims[..])).collect()
    }

    /// Returns the size in bytes of all elements in external memory.
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.element.size()
    }

    /// Converts dense row-major bytes in the external layout to the arrays that hold the elements.
    ///
    /// # Errors
    /// `Data` if the number of bytes does not match.
    pub fn split(&self, bytes: &[u8]) -> Result<Vec<Literal>> {
        if bytes.len() != self.bytes() {
            return Err(err!(Data, "the argument has {} bytes, expected {}", bytes.len(), self.bytes()));
        }
        match self.element {
            SourceElement::Plain(_) => {
                let types = self.types();
                types.into_iter().map(|ty| Literal::from_bytes(ty, bytes)).collect()
            }
            SourceElement::Complex(part) => {
                let size = part.size();
                let every = |p: usize| bytes.chunks(size).skip(p).step_by(2).flatten().copied().collect();
                let parts: [Vec<u8>; 2] = [every(0), every(1)];
                self.types().into_iter().zip(&parts).map(|(ty, b)| Literal::from_bytes(ty, b)).collect()
            }
            SourceElement::Narrow(narrow) => {
                let scalar = |b: &u8| match narrow.held() {
                    DType::I8 => Scalar::Int(narrow.decode(*b) as i64),
                    DType::U8 => Scalar::Uint(narrow.decode(*b) as u64),
                    _ => Scalar::Float(narrow.decode(*b)),
                };
                let held = narrow.held();
                let one = |b: &u8| scalar(b).to_bits(held).to_le_bytes()[..held.size()].to_vec();
                let all: Vec<u8> = bytes.iter().flat_map(one).collect();
                self.types().into_iter().map(|ty| Literal::from_bytes(ty, &all)).collect()
            }
        }
    }

    /// Converts the arrays that hold the elements to dense row-major bytes in the external layout.
    ///
    /// # Errors
    /// `Data` if an array is missing.
    pub fn join(&self, arrays: &[&Literal]) -> Result<Vec<u8>> {
        let one = |i: usize| {
            let found = arrays.get(i).copied();
            found.ok_or_else(|| err!(Data, "an array of the result is missing"))
        };
        match self.element {
            SourceElement::Plain(_) => Ok(one(0)?.bytes().to_vec()),
            SourceElement::Complex(part) => {
                let parts = one(0)?.bytes().chunks(part.size()).zip(one(1)?.bytes().chunks(part.size()));
                Ok(parts.flat_map(|(re, im)| re.iter().chain(im)).copied().collect())
            }
            SourceElement::Narrow(narrow) => {
                let array = one(0)?;
                Ok((0..array.ty().elements()).map(|i| narrow.encode(array.get(i).as_f64())).collect())
            }
        }
    }
}

/// Argument and result types of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramInterface {
    /// Arguments, in order.
    pub arguments: Vec<ProgramPort>,
    /// Results, in order; without arrays that are only compared (`check.expect_eq`).
    pub results: Vec<ProgramPort>,
}
