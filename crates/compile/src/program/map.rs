//! Element-wise programs (fused loops) over one index space: load, compute and store instructions on registers.
//!
//! Every register holds one element per index; there is no control flow and no reduction.

use smallvec::SmallVec;
use systole_ir::{DType, Op, Scalar, Shape};

/// Register of a [`Map`]: loads are numbered first, then instructions. Each register is written once.
pub type MapRegister = usize;

/// An element-wise program over a common index space.
#[derive(Clone, Debug)]
pub struct Map {
    /// The index space. Adjacent dimensions are collapsed if the strides of all loads allow it.
    pub shape: Shape,
    /// Registers `0..loads.len()`.
    pub loads: Vec<MapLoad>,
    /// The registers after those of the loads; each instruction reads lower registers only.
    pub instrs: Vec<MapInstr>,
    /// Register that is stored to each output.
    pub stores: Vec<MapRegister>,
}

impl Map {
    /// Element type of a register of the element-wise program.
    pub fn dtype(&self, e: MapRegister) -> DType {
        match self.loads.get(e) {
            Some(
                MapLoad::Array { dtype, .. } | MapLoad::Iota { dtype, .. } | MapLoad::Splat { dtype, .. },
            ) => *dtype,
            None => self.instrs[e - self.loads.len()].to,
        }
    }

    /// Loads of an input of the element-wise program.
    pub fn loads_of(&self, input: usize) -> impl Iterator<Item = &MapLoad> {
        self.loads.iter().filter(move |l| matches!(l, MapLoad::Array { input: i, .. } if *i == input))
    }

    /// Whether an input of an element-wise program is read only at the computed index, so that an output may alias it.
    pub fn reads_in_place(&self, input: usize) -> bool {
        self.loads_of(input).all(|l| self.is_linear(l))
    }

    /// Number of loads of an input; `None` if one of them is not linear.
    pub fn linear_loads(&self, input: usize) -> Option<usize> {
        self.loads_of(input).try_fold(0, |count, load| self.is_linear(load).then_some(count + 1))
    }

    /// Whether a load reads element `i` of its array for row-major index `i`.
    pub fn is_linear(&self, load: &MapLoad) -> bool {
        let MapLoad::Array { strides, offset: 0, .. } = load else { return false };
        let own = self.shape.strides();
        (0..self.shape.rank()).all(|d| self.shape[d] == 1 || strides[d] == own[d])
    }
}

/// Source of a register's value in an element-wise program: an array load, a scalar or an index.
#[derive(Clone, Debug)]
pub enum MapLoad {
    /// A strided read of an array.
    Array {
        /// Index of the step's input.
        input: usize,
        /// Element type of the array.
        dtype: DType,
        /// Strides in elements, one for each dimension of the index space; 0 broadcasts.
        strides: SmallVec<[usize; 4]>,
        /// Element that index 0 reads; nonzero for a slice.
        offset: usize,
    },
    /// A constant.
    Splat {
        /// The value.
        value: Scalar,
        /// Element type.
        dtype: DType,
    },
    /// Index along a dimension: `index / inner % size` for row-major `index`.
    Iota {
        /// Number of elements of the dimensions after it.
        inner: usize,
        /// Size of the dimension.
        size: usize,
        /// Element type.
        dtype: DType,
    },
}

/// One element-wise op on registers of a [`Map`].
#[derive(Clone, Debug)]
pub struct MapInstr {
    /// The op.
    pub op: Op,
    /// Operands.
    pub args: SmallVec<[MapRegister; 3]>,
    /// Element type of the operands; for `select`, of the two values.
    pub from: DType,
    /// Element type of the result.
    pub to: DType,
    /// For `add` and `subtract`: which operand is a product of two registers, rounded together with the sum.
    pub contraction: Option<Contraction>,
}

/// Place of the product in a contracted `add` or `subtract` (a fused multiply-add) of three registers a, b and c.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contraction {
    /// a · b ± c.
    Left,
    /// c ± a · b.
    Right,
}
