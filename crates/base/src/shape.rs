//! Static shapes ([`Shape`]) and tensor types ([`TensorType`]). Row-major: the last dimension is contiguous.

use crate::{DType, conversions};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// List of dimension sizes or indices; inline storage for up to four.
pub type Dims = SmallVec<[usize; 4]>;

/// Sizes of the dimensions, outermost first. Rank 0 is a scalar; a size of 0 is legal.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Shape {
    /// Creates a shape from the sizes of its dimensions.
    pub fn new(dims: impl AsRef<[usize]>) -> Shape {
        Shape(SmallVec::from_slice(dims.as_ref()))
    }

    /// Returns the shape of a single element (rank 0).
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// Number of dimensions of the shape.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Sizes of the shape's dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of elements of an array with this shape; 1 for a scalar.
    pub fn elements(&self) -> usize {
        self.0.iter().product()
    }

    /// Number of elements, or `None` if it overflows `usize` (malicious input), also without the dimensions of size 0:
    /// strides are products of some of the sizes.
    pub fn checked_elements(&self) -> Option<usize> {
        let all = self.0.iter().try_fold(1usize, |a, &d| a.checked_mul(d.max(1)))?;
        Some(if self.0.contains(&0) { 0 } else { all })
    }

    /// Row-major strides of the dimensions, in elements.
    pub fn strides(&self) -> Dims {
        let mut strides: Dims = SmallVec::from_elem(1, self.rank());
        for i in (0..self.rank().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.0[i + 1];
        }
        strides
    }

    /// Coordinates of the element at row-major index `linear`.
    pub fn unravel(&self, linear: usize) -> Dims {
        let mut rest = linear;
        let mut index: Dims = SmallVec::from_elem(0, self.rank());
        for i in (0..self.rank()).rev() {
            index[i] = rest % self.0[i];
            rest /= self.0[i];
        }
        index
    }

    /// Row-major index of the element at `index`. Coordinates must be in range.
    pub fn ravel(&self, index: &[usize]) -> usize {
        debug_assert_eq!(index.len(), self.rank());
        index.iter().zip(self.0.iter()).fold(0, |at, (&i, &d)| at * d + i)
    }

    /// Iterates over all coordinates in row-major order.
    pub fn indices(&self) -> impl Iterator<Item = Dims> + use<> {
        let shape = self.clone();
        (0..self.elements()).map(move |i| shape.unravel(i))
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

conversions! {
    const N, [usize; N] => Shape: |dims| Shape::new(dims);
    &[usize] => Shape: |dims| Shape::new(dims);
    Vec<usize> => Shape: |dims| Shape(SmallVec::from_vec(dims));
    &Shape => Shape: |shape| shape.clone();
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Shape {
        Shape(dims.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Element type and shape of a value. Displayed as `f32[2, 3]`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes of the dimensions.
    pub shape: Shape,
}

impl TensorType {
    /// Creates a type from element type and shape.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// Creates the type of a rank-0 array.
    pub fn scalar(dtype: DType) -> TensorType {
        TensorType::new(dtype, Shape::scalar())
    }

    /// Number of dimensions of the type.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements of an array with this type.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Size of an array with this type in bytes, without padding.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Returns the same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> TensorType {
        TensorType { dtype, shape: self.shape.clone() }
    }

    /// Returns the same element type with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype: self.dtype, shape: shape.into() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
