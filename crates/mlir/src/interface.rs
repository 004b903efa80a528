//! What the writer of a program calls its arguments and results, and the arrays of the IR that hold them: elements that the
//! IR has no type for (complex numbers, four bits, eight-bit floats) lie in arrays of others.

use crate::narrow_types::Narrow;
use systole_base::{DType, Error, ErrorKind, Literal, Result, Scalar, TensorType};

/// The elements of an argument or a result, as the program's writer has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceElement {
    /// The IR's own type: one array.
    Plain(DType),
    /// Complex numbers: an array of the real parts and one of the imaginary ones; interleaved in memory of others.
    Complex(DType),
    /// Less than eight bits, or floats of eight, in an array of wider elements; one for each byte in memory of others.
    Narrow(Narrow),
}

impl SourceElement {
    /// The name in programs: `f32`, `complex<f32>`, `i4`, `f8E4M3FN`.
    pub fn name(self) -> String {
        match self {
            SourceElement::Plain(dtype) => dtype.name().to_owned(),
            SourceElement::Complex(part) => format!("complex<{}>", part.name()),
            SourceElement::Narrow(narrow) => narrow.name().to_owned(),
        }
    }

    /// Bytes of one element in memory of others, as PJRT and NumPy lay it out.
    pub fn size(self) -> usize {
        match self {
            SourceElement::Plain(dtype) => dtype.size(),
            SourceElement::Complex(part) => 2 * part.size(),
            SourceElement::Narrow(_) => 1,
        }
    }

    /// Types of the elements of the arrays that hold it, in order.
    pub fn held(self) -> Vec<DType> {
        match self {
            SourceElement::Plain(dtype) => vec![dtype],
            SourceElement::Complex(part) => vec![part, part],
            SourceElement::Narrow(narrow) => vec![narrow.held()],
        }
    }
}

/// One argument or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPort {
    /// Sizes of its dimensions.
    pub dims: Vec<usize>,
    /// What it is made of.
    pub element: SourceElement,
    /// The index of the first array that holds it, among the graph's parameters or results; the others follow.
    pub first: usize,
}

impl ProgramPort {
    /// Types of the arrays that hold it.
    pub fn types(&self) -> Vec<TensorType> {
        self.element.held().into_iter().map(|d| TensorType::new(d, &self.dims[..])).collect()
    }

    /// Bytes of all elements in memory of others.
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.element.size()
    }

    /// Elements as others lay them out, dense and in row-major order → the arrays that hold them.
    ///
    /// # Errors
    /// `Data` when there are more or fewer bytes.
    pub fn split(&self, bytes: &[u8]) -> Result<Vec<Literal>> {
        if bytes.len() != self.bytes() {
            return Err(Error::new(
                ErrorKind::Data,
                format!("{} bytes are given where {} are needed", bytes.len(), self.bytes()),
            ));
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

    /// The arrays that hold it → elements as others lay them out.
    ///
    /// # Errors
    /// `Data` when an array is missing.
    pub fn join(&self, arrays: &[&Literal]) -> Result<Vec<u8>> {
        let one = |i: usize| {
            let found = arrays.get(i).copied();
            found.ok_or_else(|| Error::new(ErrorKind::Data, "an array of the result is missing"))
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

/// The faces of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramInterface {
    /// Of its arguments, in order.
    pub arguments: Vec<ProgramPort>,
    /// Of its results, in order; arrays that are only compared (`check.expect_eq`) are none.
    pub results: Vec<ProgramPort>,
}
