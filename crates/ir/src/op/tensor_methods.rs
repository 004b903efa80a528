//! [`Tensor`] methods for ops: element-wise, comparison, shape, reduction and matrix product. Methods of more complex
//! ops are in the op's file.

use super::tensor_arithmetic::{broadcast_shape, emit, emit1};
use super::*;
use crate::graph::{binary_ops, unary_ops};

macro_rules! unary_methods {
    ($($op:ident = $dialect:ident $name:literal, $method:ident, $doc:literal, { $($rules:tt)* };)*) => {
        /// Element-wise unary ops: `x: T[…] → T[…]`.
        impl Tensor {
            $(#[doc = $doc] #[track_caller] pub fn $method(&self) -> Tensor {
                emit1(Unary::$op, &[self])
            })*
        }
    };
}

unary_ops!(unary_methods);

macro_rules! binary_method {
    // The op has an operator instead of a method.
    ($op:ident, _, $doc:literal) => {};
    ($op:ident, $method:ident, $doc:literal) => {
        #[doc = $doc]
        #[track_caller]
        pub fn $method(&self, other: &Tensor) -> Tensor {
            let (a, b) = self.broadcast_with(other);
            emit1(Binary::$op, &[&a, &b])
        }
    };
}

macro_rules! binary_methods {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        /// Element-wise binary ops with NumPy broadcasting: `a: T[…], b: T[…] → T[…]`.
        impl Tensor { $(binary_method!($op, $method, $doc);)* }
    };
}

binary_ops!(binary_methods);

macro_rules! compare_methods {
    ($($(#[$doc:meta])* $method:ident => $direction:ident),* $(,)?) => {
        /// Comparisons with NumPy broadcasting: `a: T[…], b: T[…] → bool[…]`.
        impl Tensor {
            $($(#[$doc])* #[track_caller] pub fn $method(&self, other: &Tensor) -> Tensor {
                self.compare(other, Direction::$direction)
            })*
        }
    };
}

compare_methods!(
    /// self == other.
    equal => Eq,
    /// self != other.
    not_equal => Ne,
    /// self >= other.
    greater_equal => Ge,
    /// self > other.
    greater => Gt,
    /// self <= other.
    less_equal => Le,
    /// self < other.
    less => Lt,
);

/// Selection and type conversion.
impl Tensor {
    /// `→ bool[…]`: compares elements, with NumPy broadcasting.
    #[track_caller]
    pub fn compare(&self, other: &Tensor, direction: Direction) -> Tensor {
        let (a, b) = self.broadcast_with(other);
        emit1(Compare { direction, compare_type: CompareType::of(a.dtype()) }, &[&a, &b])
    }

    /// `self: bool[…] → T[…]`: `on_true` if true, otherwise `on_false`, with NumPy broadcasting.
    #[track_caller]
    pub fn select(&self, on_true: &Tensor, on_false: &Tensor) -> Tensor {
        let (t, f) = on_true.broadcast_with(on_false);
        if self.rank() == 0 || self.shape() == t.shape() {
            return emit1(Select, &[self, &t, &f]);
        }
        let Some(shape) = broadcast_shape(self.shape(), t.shape()) else {
            return emit1(Select, &[self, &t, &f]);
        };
        emit1(Select, &[&self.broadcast_to(&shape), &t.broadcast_to(&shape), &f.broadcast_to(&shape)])
    }

    /// `min(max(x, low), high)`; the bounds are scalars or have the shape of `x`.
    #[track_caller]
    pub fn clamp(&self, low: &Tensor, high: &Tensor) -> Tensor {
        emit1(Clamp, &[low, self, high])
    }

    /// `x: T[…] → U[…]`; adds no node if the type is already `to`.
    #[track_caller]
    pub fn convert(&self, to: DType) -> Tensor {
        if self.dtype() == to { self.clone() } else { emit1(Convert { to }, &[self]) }
    }

    /// Reinterprets the bits of the elements as another element type.
    #[track_caller]
    pub fn bitcast_convert(&self, to: DType) -> Tensor {
        emit1(BitcastConvert { to }, &[self])
    }

    /// Rounds elements to fewer exponent and mantissa bits.
    #[track_caller]
    pub fn reduce_precision(&self, exponent_bits: u32, mantissa_bits: u32) -> Tensor {
        emit1(ReducePrecision { exponent_bits, mantissa_bits }, &[self])
    }

    /// Returns the same value without gradient flow.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        emit1(OptimizationBarrier { stop_gradient: true }, &[self])
    }
}

/// Data movement.
impl Tensor {
    /// `x: T[…] → T[shape]`: same elements in row-major order.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if *self.shape() == shape { self.clone() } else { emit1(Reshape { shape }, &[self]) }
    }

    /// Permutes dimensions: result dimension `i` is operand dimension `permutation[i]`.
    #[track_caller]
    pub fn transpose(&self, permutation: &[usize]) -> Tensor {
        if permutation.iter().copied().eq(0..self.rank()) {
            return self.clone();
        }
        emit1(Transpose { permutation: permutation.into() }, &[self])
    }

    /// Reverses the order of the elements along `dims`.
    #[track_caller]
    pub fn reverse(&self, dims: &[usize]) -> Tensor {
        emit1(Reverse { dims: dims.into() }, &[self])
    }

    /// Elements `start, start + stride, …` below `limit`, in each dimension.
    #[track_caller]
    pub fn slice(&self, start: &[usize], limit: &[usize], strides: &[usize]) -> Tensor {
        emit1(Slice { start: start.into(), limit: limit.into(), strides: strides.into() }, &[self])
    }

    /// Returns elements `start..limit` of one dimension.
    #[track_caller]
    pub fn slice_dim(&self, dim: usize, start: usize, limit: usize) -> Tensor {
        let (mut starts, mut limits) = (vec![0; self.rank()], self.shape().to_vec());
        if dim < self.rank() {
            (starts[dim], limits[dim]) = (start, limit);
        }
        self.slice(&starts, &limits, &vec![1; self.rank()])
    }

    /// Pads with `value: T[]` around and between the elements.
    #[track_caller]
    pub fn pad(&self, value: &Tensor, low: &[i64], high: &[i64], interior: &[usize]) -> Tensor {
        emit1(Pad { low: low.into(), high: high.into(), interior: interior.into() }, &[self, value])
    }

    /// Joins tensors along `dim`. `parts` must not be empty.
    #[track_caller]
    pub fn concatenate(parts: &[&Tensor], dim: usize) -> Tensor {
        emit1(Concatenate { dim }, parts)
    }

    /// Extracts the block of `sizes` at `start` (scalar integer tensors, clamped into range).
    #[track_caller]
    pub fn dynamic_slice(&self, start: &[&Tensor], sizes: &[usize]) -> Tensor {
        let inputs: Vec<&Tensor> = std::iter::once(self).chain(start.iter().copied()).collect();
        emit1(DynamicSlice { sizes: sizes.into() }, &inputs)
    }

    /// Returns this tensor with `update` written at `start` (scalar integer tensors, clamped into range).
    #[track_caller]
    pub fn dynamic_update_slice(&self, update: &Tensor, start: &[&Tensor]) -> Tensor {
        let inputs: Vec<&Tensor> = [self, update].into_iter().chain(start.iter().copied()).collect();
        emit1(DynamicUpdateSlice, &inputs)
    }

    /// Gathers slices of this tensor at `indices`. Spec: gather.
    #[track_caller]
    pub fn gather(&self, indices: &Tensor, spec: Gather) -> Tensor {
        emit1(spec, &[self, indices])
    }

    /// `self: T[N, …], indices: I[…] → T[indices…, …]`: rows by index, clamped into range (embedding lookup).
    #[track_caller]
    pub fn take(&self, indices: &Tensor) -> Tensor {
        emit1(Gather::rows(self.ty(), indices.rank()), &[self, indices])
    }

    /// Combines `updates` into this tensor at `indices`. Spec: scatter.
    #[track_caller]
    pub fn scatter(&self, indices: &Tensor, updates: &Tensor, spec: Scatter) -> Tensor {
        emit1(spec, &[self, indices, updates])
    }
}

/// Reductions.
impl Tensor {
    /// Sum over `dims`, which are removed.
    #[track_caller]
    pub fn sum(&self, dims: &[usize]) -> Tensor {
        Monoid::Add.over(self, dims)
    }

    /// Product over `dims`, which are removed.
    #[track_caller]
    pub fn prod(&self, dims: &[usize]) -> Tensor {
        Monoid::Multiply.over(self, dims)
    }

    /// Maximum over `dims`, which are removed.
    #[track_caller]
    pub fn reduce_max(&self, dims: &[usize]) -> Tensor {
        Monoid::Maximum.over(self, dims)
    }

    /// Minimum over `dims`, which are removed.
    #[track_caller]
    pub fn reduce_min(&self, dims: &[usize]) -> Tensor {
        Monoid::Minimum.over(self, dims)
    }

    /// Logical and over `dims` (bool).
    #[track_caller]
    pub fn all(&self, dims: &[usize]) -> Tensor {
        Monoid::And.over(self, dims)
    }

    /// Logical or over `dims` (bool).
    #[track_caller]
    pub fn any(&self, dims: &[usize]) -> Tensor {
        Monoid::Or.over(self, dims)
    }

    /// Sum of all elements: `→ T[]`.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        if self.rank() == 0 { self.clone() } else { self.sum(&(0..self.rank()).collect::<Vec<_>>()) }
    }

    /// Reduces several operands together with any body. `inits` are scalars. Spec: reduce.
    #[track_caller]
    pub fn reduce(xs: &[&Tensor], inits: &[&Tensor], dims: &[usize], body: Arc<Graph>) -> Vec<Tensor> {
        emit(Reduce { dims: dims.into(), body }, &[xs, inits].concat())
    }

    /// Reduces sliding windows with any body. Spec: reduce_window.
    #[track_caller]
    pub fn reduce_window(xs: &[&Tensor], inits: &[&Tensor], window: Window, body: Arc<Graph>) -> Vec<Tensor> {
        emit(ReduceWindow { window, body }, &[xs, inits].concat())
    }

    /// Sorts several tensors together along `dim`. Spec: sort.
    #[track_caller]
    pub fn sort_by(xs: &[&Tensor], dim: usize, stable: bool, comparator: Arc<Graph>) -> Vec<Tensor> {
        emit(Sort { dim, stable, comparator }, xs)
    }
}

/// Contractions.
impl Tensor {
    /// General batched product. Result dimensions: batch, free dimensions of `self`, free dimensions of `other`.
    #[track_caller]
    pub fn dot_general(
        &self,
        other: &Tensor,
        lhs_batch: &[usize],
        rhs_batch: &[usize],
        lhs_contract: &[usize],
        rhs_contract: &[usize],
    ) -> Tensor {
        let op = DotGeneral {
            lhs_batch: lhs_batch.into(),
            rhs_batch: rhs_batch.into(),
            lhs_contract: lhs_contract.into(),
            rhs_contract: rhs_contract.into(),
            element_type: self.dtype(),
        };
        emit1(op, &[self, other])
    }

    /// `x: T[…, K], w: T[K, …] → T[…, …]`: contracts the last dimension of `self` with the first of `other`.
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Tensor {
        if self.rank() == 0 || other.rank() == 0 {
            return self * other;
        }
        self.dot_general(other, &[], &[], &[self.rank() - 1], &[0])
    }

    /// Batched matrix product: `a: T[B…, M, K], b: T[B…, K, N] → T[B…, M, N]` with equal leading dimensions.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        let n = self.rank();
        if n < 2 || other.rank() != n {
            return self.dot(other);
        }
        let batch: Vec<usize> = (0..n - 2).collect();
        self.dot_general(other, &batch, &batch, &[n - 1], &[n - 2])
    }

    /// Convolution of this tensor with `kernel`. Spec: convolution.
    #[track_caller]
    pub fn convolution(&self, kernel: &Tensor, spec: Convolution) -> Tensor {
        emit1(spec, &[self, kernel])
    }
}
