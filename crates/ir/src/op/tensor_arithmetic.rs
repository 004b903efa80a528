//! Tensor arithmetic operators, constants of a tensor's type, and NumPy broadcasting.
//!
//! Operators (`+ - * /`) and methods with two operands broadcast like NumPy; ops require equal shapes. Other methods are in `tensor_methods.rs`.

use crate::graph::{Binary, BroadcastInDim, GraphBuilder, Op, Tensor, Unary};
use std::ops;
use systole_base::{Shape, TensorType};

/// The builder for an op over `tensors`: that of the innermost graph.
fn innermost(tensors: &[&Tensor]) -> GraphBuilder {
    match GraphBuilder::of(tensors) {
        Some(g) => g,
        None => systole_base::bug!("an op over tensors needs at least one operand"),
    }
}

/// Appends an op over `inputs` to their graph; returns its results.
#[track_caller]
pub(crate) fn emit(op: impl Into<Op>, inputs: &[&Tensor]) -> Vec<Tensor> {
    innermost(inputs).emit(op, inputs)
}

/// Appends an op with one result.
#[track_caller]
pub(crate) fn emit1(op: impl Into<Op>, inputs: &[&Tensor]) -> Tensor {
    emit(op, inputs).remove(0)
}

impl GraphBuilder {
    /// Returns a constant array filled with one value.
    #[track_caller]
    pub fn full(&self, ty: &TensorType, value: f64) -> Tensor {
        self.scalar(ty.dtype, value).broadcast_to(&ty.shape)
    }
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:ident);* $(;)?) => { $(
        impl ops::$trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let (a, b) = self.broadcast_with(other);
                emit1(Binary::$op, &[&a, &b])
            }
        }
        impl ops::$trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { ops::$trait::$method(self, &other) }
        }
        impl ops::$trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor { ops::$trait::$method(&self, other) }
        }
        impl ops::$trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { ops::$trait::$method(&self, &other) }
        }
        impl ops::$trait<f64> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor { ops::$trait::$method(self, &self.scalar_like(other)) }
        }
        impl ops::$trait<f64> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: f64) -> Tensor { ops::$trait::$method(&self, other) }
        }
        impl ops::$trait<&Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor { ops::$trait::$method(&other.scalar_like(self), other) }
        }
        impl ops::$trait<Tensor> for f64 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor { ops::$trait::$method(self, &other) }
        }
    )* };
}

operators!(Add, add, Add; Sub, sub, Subtract; Mul, mul, Multiply; Div, div, Divide);

impl ops::Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        emit1(Unary::Negate, &[self])
    }
}

impl ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        -&self
    }
}

/// Constants with the type of this tensor.
impl Tensor {
    /// Returns a rank-0 constant of this tensor's element type.
    #[track_caller]
    pub fn scalar_like(&self, value: f64) -> Tensor {
        self.builder().scalar(self.dtype(), value)
    }

    /// Returns zeros of this tensor's type.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.builder().full(self.ty(), 0.0)
    }

    /// Returns ones of this tensor's type.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.builder().full(self.ty(), 1.0)
    }
}

/// NumPy broadcast of two shapes, or `None` if they are incompatible.
pub(crate) fn broadcast_shape(a: &Shape, b: &Shape) -> Option<Shape> {
    let rank = a.rank().max(b.rank());
    let size = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |d| s[d]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (x, y) if x == y => Some(x),
            (1, y) => Some(y),
            (x, 1) => Some(x),
            _ => None,
        })
        .collect::<Option<Vec<usize>>>()
        .map(Shape::from)
}

/// NumPy broadcasting.
impl Tensor {
    /// Broadcasts both tensors to their common NumPy shape. Leaves them unchanged if there is none; the op then reports the error.
    #[track_caller]
    pub fn broadcast_with(&self, other: &Tensor) -> (Tensor, Tensor) {
        match broadcast_shape(self.shape(), other.shape()) {
            Some(shape) => (self.broadcast_to(&shape), other.broadcast_to(&shape)),
            None => (self.clone(), other.clone()),
        }
    }

    /// `x: T[…] → T[shape]`: broadcasts like NumPy, aligned at the last dimension.
    #[track_caller]
    pub fn broadcast_to(&self, shape: &Shape) -> Tensor {
        if self.shape() == shape {
            return self.clone();
        }
        let offset = shape.rank().saturating_sub(self.rank());
        let dims: Vec<usize> = (0..self.rank()).map(|d| d + offset).collect();
        self.broadcast_in_dim(shape, &dims)
    }

    /// `x: T[…] → T[shape]`: operand dimension `i` becomes result dimension `dims[i]`.
    #[track_caller]
    pub fn broadcast_in_dim(&self, shape: &Shape, dims: &[usize]) -> Tensor {
        emit1(BroadcastInDim { dims: dims.into(), shape: shape.clone() }, &[self])
    }

    /// Broadcasts a reduced tensor back to the shape it was reduced from, along the dimensions `reduced`.
    #[track_caller]
    pub fn broadcast_except(&self, shape: &Shape, reduced: &[usize]) -> Tensor {
        let kept: Vec<usize> = (0..shape.rank()).filter(|d| !reduced.contains(d)).collect();
        self.broadcast_in_dim(shape, &kept)
    }
}
