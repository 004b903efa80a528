//! Host arrays ([`Literal`]): dense, row-major, copy-on-write.

use crate::aligned_words::{AlignedWords, ForeignMemory};
use crate::{DType, Element, Result, Scalar, Shape, TensorType, err};
use std::fmt;
use std::sync::Arc;

/// A dense host array of any element type.
///
/// Clones share the storage; it is copied on write. Memory is 8-byte aligned.
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
    /// Creates an array of zeros (`false` for bool).
    pub fn zeros(ty: TensorType) -> Literal {
        let words = Arc::new(AlignedWords::zeros(ty.bytes().div_ceil(8)));
        Literal { ty, words }
    }

    /// Creates an array with unspecified contents, for code that overwrites every element. Bool arrays are zeroed,
    /// since not every byte is a valid bool.
    pub fn unfilled(ty: TensorType) -> Literal {
        if ty.dtype == DType::Bool {
            return Literal::zeros(ty);
        }
        let words = Arc::new(AlignedWords::unfilled(ty.bytes().div_ceil(8)));
        Literal { ty, words }
    }

    /// Creates an array in which every element is `value`, converted to the element type.
    pub fn splat(ty: TensorType, value: Scalar) -> Literal {
        let mut b = LiteralBuilder::new(ty);
        let value = value.convert_to(b.ty.dtype);
        for i in 0..b.ty.elements() {
            b.set(i, value);
        }
        b.finish()
    }

    /// Creates a rank-0 array; `value` is converted to `dtype`.
    pub fn scalar(dtype: DType, value: f64) -> Literal {
        Literal::splat(TensorType::scalar(dtype), Scalar::Float(value))
    }

    /// Creates an array from elements in row-major order. Errors if their number does not match the shape.
    pub fn from_slice<T: Element>(shape: impl Into<Shape>, data: &[T]) -> Result<Literal> {
        Literal::from_bytes(TensorType::new(T::DTYPE, shape), T::as_bytes(data))
    }

    /// Creates a bool array from elements in row-major order.
    pub fn from_bools(shape: impl Into<Shape>, data: &[bool]) -> Result<Literal> {
        Literal::from_bytes(TensorType::new(DType::Bool, shape), bytemuck::cast_slice(data))
    }

    /// Creates an array from its bytes (little endian). Errors if the length does not match the type.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Literal> {
        let expected = ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size()));
        if expected != Some(bytes.len()) {
            return Err(err!(Data, "got {} bytes for an array of type {ty}", bytes.len()).because(
                match expected {
                    Some(n) => format!("expected {n} bytes"),
                    None => "the size overflows".into(),
                },
            ));
        }
        let mut out = Literal { ty, words: Arc::new(AlignedWords::of(bytes)) };
        if out.ty.dtype == DType::Bool {
            out.bytes_mut().iter_mut().for_each(|b| *b = (*b != 0) as u8);
        }
        Ok(out)
    }

    /// Wraps memory of another library without a copy. `None` if its size, alignment (8 bytes) or bool elements do not fit.
    pub fn from_foreign(ty: TensorType, memory: Arc<dyn ForeignMemory>) -> Option<Literal> {
        let bytes = memory.bytes();
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(8);
        let is_valid = ty.dtype != DType::Bool || bytes.iter().all(|b| *b <= 1);
        let fits = is_aligned && is_valid && bytes.len() == ty.bytes();
        fits.then(|| Literal { ty, words: Arc::new(AlignedWords::foreign(memory)) })
    }

    /// Whether the elements are memory of another owner ([`Literal::from_foreign`]).
    pub fn is_foreign(&self) -> bool {
        self.words.is_foreign()
    }

    /// Element type and shape of the array.
    #[inline]
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Element type of the array.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Shape of the array.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The raw bytes of the array, row-major, little endian.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.words.bytes(self.ty.bytes())
    }

    /// The raw bytes of the array for writing; copies first if the storage is shared. A bool byte must be 0 or 1.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.ty.bytes();
        Arc::make_mut(&mut self.words).bytes_mut(n)
    }

    /// The elements as a slice. Errors if `T` is not the element type.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>()?;
        Ok(T::from_bytes(self.bytes()))
    }

    /// The elements as a mutable slice; copies first if the storage is shared.
    #[inline]
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_dtype::<T>()?;
        Ok(T::from_bytes_mut(self.bytes_mut()))
    }

    fn check_dtype<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.ty.dtype {
            return Ok(());
        }
        Err(err!(Graph, "the array has type {}, expected {}", self.ty, T::DTYPE)
            .hint("convert the array, or read it with its own element type"))
    }

    /// Copies the elements as bools (`!= 0`).
    pub fn to_bools(&self) -> Vec<bool> {
        (0..self.ty.elements()).map(|i| self.get(i).as_bool()).collect()
    }

    /// Copies the elements as f64, whatever the element type.
    pub fn to_f64s(&self) -> Vec<f64> {
        (0..self.ty.elements()).map(|i| self.get(i).as_f64()).collect()
    }

    /// Copies the elements as f32, whatever the element type.
    pub fn to_f32s(&self) -> Vec<f32> {
        match self.as_slice::<f32>() {
            Ok(s) => s.to_vec(),
            Err(_) => (0..self.ty.elements()).map(|i| self.get(i).as_f64() as f32).collect(),
        }
    }

    /// Returns the element at row-major index `i`.
    ///
    /// # Panics
    /// If `i` is out of bounds.
    pub fn get(&self, i: usize) -> Scalar {
        let size = self.ty.dtype.size();
        let mut raw = [0u8; 8];
        raw[..size].copy_from_slice(&self.bytes()[i * size..(i + 1) * size]);
        Scalar::from_bits(self.ty.dtype, u64::from_le_bytes(raw))
    }

    /// Returns the element at coordinates `index`.
    pub fn at(&self, index: &[usize]) -> Scalar {
        self.get(self.ty.shape.ravel(index))
    }

    /// Returns the array with another shape. Errors if the number of elements differs.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Literal> {
        let shape = shape.into();
        if shape.checked_elements() != Some(self.ty.elements()) {
            return Err(err!(Graph, "cannot reshape {} to {shape}", self.ty)
                .because("the number of elements differs"));
        }
        Ok(Literal { ty: self.ty.with_shape(shape), words: self.words.clone() })
    }

    /// Converts every element like StableHLO `convert`.
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

    /// Whether no clone shares the array's storage.
    #[inline]
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.words) == 1
    }

    /// Whether all elements have the same bits. False for empty arrays.
    pub fn is_splat(&self) -> bool {
        let size = self.ty.dtype.size();
        let bytes = self.bytes();
        !bytes.is_empty() && bytes.chunks_exact(size).all(|c| c == &bytes[..size])
    }
}

/// Compares type and bits (so `NaN == NaN` and `0.0 != -0.0`).
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

/// Fills a [`Literal`] element by element, rounding values to the element type.
pub struct LiteralBuilder {
    ty: TensorType,
    words: AlignedWords,
}

impl LiteralBuilder {
    /// Creates a builder of an array filled with zeros.
    pub fn new(ty: TensorType) -> LiteralBuilder {
        LiteralBuilder { words: AlignedWords::zeros(ty.bytes().div_ceil(8)), ty }
    }

    /// Stores `value` at row-major index `i`: floats round to nearest even, integers wrap.
    pub fn set(&mut self, i: usize, value: Scalar) {
        let (size, bits) = (self.ty.dtype.size(), value.to_bits(self.ty.dtype).to_le_bytes());
        self.words.bytes_mut((i + 1) * size)[i * size..].copy_from_slice(&bits[..size]);
    }

    /// Returns the element stored at row-major index `i`.
    pub fn get(&self, i: usize) -> Scalar {
        let size = self.ty.dtype.size();
        let mut raw = [0u8; 8];
        raw[..size].copy_from_slice(&self.words.bytes((i + 1) * size)[i * size..]);
        Scalar::from_bits(self.ty.dtype, u64::from_le_bytes(raw))
    }

    /// Returns the finished array.
    pub fn finish(self) -> Literal {
        Literal { ty: self.ty, words: Arc::new(self.words) }
    }
}
