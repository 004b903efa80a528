//! Host arrays: dense, row-major, cheap to clone (shared until written).

use crate::aligned_words::AlignedWords;
use crate::{DType, Element, Error, ErrorKind, Result, Scalar, Shape, TensorType};
use std::fmt;
use std::sync::Arc;

/// A host array of any element type.
///
/// Storage is shared between clones and copied when one of them is written. Memory is 8-byte aligned.
///
/// ```
/// use systole_base::Literal;
/// let x = Literal::from_slice([2, 3], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
/// assert_eq!(x.ty().to_string(), "f32[2, 3]");
/// assert_eq!(x.as_slice::<f32>().unwrap()[4], 5.0);
/// ```
#[derive(Clone)]
pub struct Literal {
    ty: TensorType,
    words: Arc<AlignedWords>,
}

impl Literal {
    /// An array of zeros (`false` for bool).
    pub fn zeros(ty: TensorType) -> Literal {
        let words = Arc::new(AlignedWords::zeros(ty.bytes().div_ceil(8)));
        Literal { ty, words }
    }

    /// An array that is about to be written from end to end: until then its elements are whatever an array before it
    /// left in the memory. For bool it is [`Literal::zeros`], since not every byte is one.
    pub fn unfilled(ty: TensorType) -> Literal {
        if ty.dtype == DType::Bool {
            return Literal::zeros(ty);
        }
        let words = Arc::new(AlignedWords::unfilled(ty.bytes().div_ceil(8)));
        Literal { ty, words }
    }

    /// An array of one repeated value, converted to the element type.
    pub fn splat(ty: TensorType, value: Scalar) -> Literal {
        let mut b = LiteralBuilder::new(ty);
        let value = value.convert_to(b.ty.dtype);
        for i in 0..b.ty.elements() {
            b.set(i, value);
        }
        b.finish()
    }

    /// A rank-0 array; `value` is converted to `dtype`.
    pub fn scalar(dtype: DType, value: f64) -> Literal {
        Literal::splat(TensorType::scalar(dtype), Scalar::Float(value))
    }

    /// An array from elements in row-major order. Errors when their number is not that of the shape.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, data: &[T]) -> Result<Literal> {
        Literal::from_bytes(TensorType::new(T::DTYPE, shape), bytemuck::cast_slice(data))
    }

    /// A bool array from elements in row-major order.
    pub fn from_bools(shape: impl Into<Shape>, data: &[bool]) -> Result<Literal> {
        let bytes: Vec<u8> = data.iter().map(|&b| b as u8).collect();
        Literal::from_bytes(TensorType::new(DType::Bool, shape), &bytes)
    }

    /// An array from its bytes (little endian). Errors when the length is not that of the type.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Literal> {
        let expected = ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size()));
        if expected != Some(bytes.len()) {
            return Err(Error::new(
                ErrorKind::Data,
                format!("{} bytes do not make an array of type {ty}", bytes.len()),
            )
            .because(match expected {
                Some(n) => format!("that type takes {n} bytes"),
                None => "that size overflows".into(),
            }));
        }
        let mut out = Literal { ty, words: Arc::new(AlignedWords::of(bytes)) };
        if out.ty.dtype == DType::Bool {
            out.bytes_mut().iter_mut().for_each(|b| *b = (*b != 0) as u8);
        }
        Ok(out)
    }

    /// Element type and shape.
    #[inline]
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Shape.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The raw bytes, row-major, little endian.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice::<u64, u8>(&self.words)[..self.ty.bytes()]
    }

    /// The raw bytes for writing; copies first when the storage is shared. A bool byte must be 0 or 1.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.ty.bytes();
        let words: &mut AlignedWords = Arc::make_mut(&mut self.words);
        &mut bytemuck::cast_slice_mut::<u64, u8>(words)[..n]
    }

    /// The elements. Errors when `T` is not the element type.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        Ok(bytemuck::cast_slice(self.bytes()))
    }

    /// The elements for writing; copies first when the storage is shared.
    #[inline]
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_dtype::<T>()?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut()))
    }

    fn check_dtype<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.ty.dtype {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Graph, format!("this array is {}, not {}", self.ty, T::DTYPE))
            .hint("convert it first, or read it as the type it has"))
    }

    /// The elements as bools (`!= 0`).
    pub fn to_bools(&self) -> Vec<bool> {
        (0..self.ty.elements()).map(|i| self.get(i).as_bool()).collect()
    }

    /// The elements as f64, whatever their type.
    pub fn to_f64s(&self) -> Vec<f64> {
        (0..self.ty.elements()).map(|i| self.get(i).as_f64()).collect()
    }

    /// The elements as f32, whatever their type.
    pub fn to_f32s(&self) -> Vec<f32> {
        match self.as_slice::<f32>() {
            Ok(s) => s.to_vec(),
            Err(_) => (0..self.ty.elements()).map(|i| self.get(i).as_f64() as f32).collect(),
        }
    }

    /// The element at row-major position `i`.
    ///
    /// # Panics
    /// When `i` is not below the number of elements.
    pub fn get(&self, i: usize) -> Scalar {
        let size = self.ty.dtype.size();
        let mut raw = [0u8; 8];
        raw[..size].copy_from_slice(&self.bytes()[i * size..(i + 1) * size]);
        Scalar::from_bits(self.ty.dtype, u64::from_le_bytes(raw))
    }

    /// The element at coordinates `index`.
    pub fn at(&self, index: &[usize]) -> Scalar {
        self.get(self.ty.shape.ravel(index))
    }

    /// The same elements under another shape. Errors when the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Literal> {
        let shape = shape.into();
        if shape.checked_elements() != Some(self.ty.elements()) {
            return Err(Error::new(ErrorKind::Graph, format!("cannot reshape {} to {shape}", self.ty))
                .because("the number of elements differs"));
        }
        Ok(Literal { ty: self.ty.with_shape(shape), words: self.words.clone() })
    }

    /// Every element converted as StableHLO `convert` does.
    pub fn convert(&self, dtype: DType) -> Literal {
        if dtype == self.ty.dtype {
            return self.clone();
        }
        let mut b = LiteralBuilder::new(self.ty.with_dtype(dtype));
        for i in 0..self.ty.elements() {
            b.set(i, self.get(i).convert_to(dtype));
        }
        b.finish()
    }

    /// True when no clone shares the storage.
    #[inline]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.words) == 1
    }

    /// True when every element has the same bits as the first (and there is one).
    pub fn is_splat(&self) -> bool {
        let size = self.ty.dtype.size();
        let bytes = self.bytes();
        !bytes.is_empty() && bytes.chunks_exact(size).all(|c| c == &bytes[..size])
    }
}

/// Same type and same bits (so `NaN == NaN` and `0.0 != -0.0`).
impl PartialEq for Literal {
    fn eq(&self, other: &Literal) -> bool {
        self.ty == other.ty && self.bytes() == other.bytes()
    }
}

impl Eq for Literal {}

impl std::hash::Hash for Literal {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.ty.hash(state);
        self.bytes().hash(state);
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{", self.ty)?;
        let n = self.ty.elements();
        for i in 0..n.min(8) {
            let sep = if i == 0 { "" } else { ", " };
            match self.get(i) {
                Scalar::Bool(b) => write!(f, "{sep}{b}")?,
                Scalar::Int(v) => write!(f, "{sep}{v}")?,
                Scalar::Uint(v) => write!(f, "{sep}{v}")?,
                Scalar::Float(v) => write!(f, "{sep}{v}")?,
            }
        }
        f.write_str(if n > 8 { ", …}" } else { "}" })
    }
}

/// Fills a [`Literal`] element by element; values are rounded to the element type as they are stored.
pub struct LiteralBuilder {
    ty: TensorType,
    words: AlignedWords,
}

impl LiteralBuilder {
    /// Starts with zeros.
    pub fn new(ty: TensorType) -> LiteralBuilder {
        LiteralBuilder { words: AlignedWords::zeros(ty.bytes().div_ceil(8)), ty }
    }

    /// Stores `value` at row-major position `i`: floats round to nearest even, integers wrap.
    pub fn set(&mut self, i: usize, value: Scalar) {
        let size = self.ty.dtype.size();
        let bits = value.to_bits(self.ty.dtype).to_le_bytes();
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        bytes[i * size..(i + 1) * size].copy_from_slice(&bits[..size]);
    }

    /// The element stored at position `i`.
    pub fn get(&self, i: usize) -> Scalar {
        let size = self.ty.dtype.size();
        let bytes: &[u8] = bytemuck::cast_slice(&self.words);
        let mut raw = [0u8; 8];
        raw[..size].copy_from_slice(&bytes[i * size..(i + 1) * size]);
        Scalar::from_bits(self.ty.dtype, u64::from_le_bytes(raw))
    }

    /// The finished array.
    pub fn finish(self) -> Literal {
        Literal { ty: self.ty, words: Arc::new(self.words) }
    }
}
