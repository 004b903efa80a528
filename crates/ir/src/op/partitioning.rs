//! Describes how an op is cut into blocks of rows ([`RowOp`]) and how devices share its work ([`ShardingFactor`]).
//!
//! The compiler cuts leading dimensions, joined into one, for the sake of caches; the partitioner divides any one
//! dimension, and ops keep their form.

use super::Monoid;
use crate::graph::{Constant, Op};
use crate::{Graph, Node, ValueId};
use smallvec::SmallVec;
use systole_base::{DType, Dims, Shape, TensorType};

/// A node in its graph: types and constants of its operands.
#[derive(Clone, Copy)]
pub struct NodeView<'g> {
    /// The graph that holds the node.
    pub graph: &'g Graph,
    /// The node.
    pub node: &'g Node,
}

impl<'g> NodeView<'g> {
    /// Type of operand `k`.
    pub fn ty(self, k: usize) -> &'g TensorType {
        self.graph.ty(self.node.inputs[k])
    }

    /// Type of the first result.
    pub fn out(self) -> &'g TensorType {
        &self.node.outs[0]
    }

    /// Operand `k`, if it is a constant.
    pub fn constant(self, k: usize) -> Option<&'g Constant> {
        match &self.graph.node(*self.node.inputs.get(k)?).op {
            Op::Constant(c) => Some(c),
            _ => None,
        }
    }

    /// Factors for the result dimensions that `keep` names: the same dimension of the first `n` operands, all of the others.
    pub fn same_dims(self, n: usize, keep: impl Fn(usize) -> bool) -> Vec<ShardingFactor> {
        let operands = |d: usize| (0..self.node.inputs.len()).map(move |k| (k < n).then_some(d));
        (0..self.out().rank()).filter(|&d| keep(d)).map(|d| ShardingFactor::dim(operands(d), d)).collect()
    }
}

/// The part of an operand that a block of rows reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowUse {
    /// The same rows.
    Rows,
    /// All of it.
    Whole,
    /// All of it, a matrix, transposed.
    Transposed,
}

/// An op for a block of rows.
///
/// A value has `rows` rows if the sizes of its leading dimensions multiply to `rows`. An op works by rows if a row of
/// its result depends on the same row of some operands ([`RowUse::Rows`]) and on nothing but the whole of others
/// ([`RowUse::Whole`]), or if it sums over the rows, so that the sums of the blocks add up to its result.
pub struct RowOp {
    /// The op on values whose row dimensions are collapsed into one.
    pub op: Op,
    /// How it reads each operand.
    pub uses: SmallVec<[RowUse; 3]>,
    /// Whether it sums over the rows. Narrow floats are then accumulated in f32.
    pub sums: bool,
}

impl RowOp {
    /// An op that computes rows of its result.
    pub fn rows(op: impl Into<Op>, uses: impl IntoIterator<Item = RowUse>) -> Option<RowOp> {
        Some(RowOp { op: op.into(), uses: uses.into_iter().collect(), sums: false })
    }

    /// An op that sums over the rows, of which it reads the operands with [`RowUse::Rows`].
    pub fn sum(op: impl Into<Op>, uses: impl IntoIterator<Item = RowUse>) -> Option<RowOp> {
        Some(RowOp { op: op.into(), uses: uses.into_iter().collect(), sums: true })
    }
}

/// Blocks of `block` of `rows` rows (at least 2).
#[derive(Clone, Copy)]
pub struct RowBlocking {
    /// Rows in all.
    pub rows: usize,
    /// Rows of a block.
    pub block: usize,
}

impl RowBlocking {
    /// How a value of this type is cut; `None`: it does not have so many rows.
    pub fn cut(self, ty: &TensorType) -> Option<RowDims> {
        Some(RowDims { dims: row_dims(ty, self.rows)?, block: self.block })
    }
}

/// The smallest number of leading dimensions whose sizes multiply to `rows`.
pub fn row_dims(ty: &TensorType, rows: usize) -> Option<usize> {
    let mut product = 1usize;
    for (d, &n) in ty.shape.iter().enumerate() {
        product = product.checked_mul(n)?;
        if product >= rows {
            return (product == rows).then_some(d + 1);
        }
    }
    None
}

/// Collapses the first `dims` dimensions into one of size `block`.
#[derive(Clone, Copy)]
pub struct RowDims {
    /// How many leading dimensions make up the rows.
    pub dims: usize,
    /// Rows of a block.
    pub block: usize,
}

impl RowDims {
    /// The shape of a block.
    pub fn shape(self, ty: &TensorType) -> Shape {
        self.list(&ty.shape, self.block).into_iter().collect()
    }

    /// A list with one entry per dimension, after the collapse; `first` is the entry of the row dimension.
    pub fn list<T: Clone>(self, all: &[T], first: T) -> Vec<T> {
        std::iter::once(first).chain(all[self.dims..].iter().cloned()).collect()
    }

    /// [`list`](Cut::list) of sizes or indices.
    pub fn sizes(self, all: &[usize], first: usize) -> Dims {
        self.list(all, first).into_iter().collect()
    }

    /// Whether a condition holds for all row dimensions.
    pub fn all(self, holds: impl FnMut(usize) -> bool) -> bool {
        (0..self.dims).all(holds)
    }

    /// The new index of a dimension that is none of the rows'.
    pub fn dim(self, d: usize) -> Option<usize> {
        (d >= self.dims).then(|| d + 1 - self.dims)
    }

    /// The new indices of dimensions that are none of the rows'.
    pub fn other_dims(self, dims: &[usize]) -> Option<Dims> {
        dims.iter().map(|&d| self.dim(d)).collect()
    }

    /// A list of dimensions that begins with exactly the row dimensions, after the collapse.
    pub fn leading(self, dims: &[usize]) -> Option<Dims> {
        let (rows, rest) = dims.split_at_checked(self.dims)?;
        if !rows.iter().copied().eq(0..self.dims) {
            return None;
        }
        Some(std::iter::once(0).chain(self.other_dims(rest)?).collect())
    }
}

/// The first `n` operands by rows, the others whole.
pub(super) fn first_by_rows(n: usize, operands: usize) -> impl Iterator<Item = RowUse> {
    (0..operands).map(move |k| if k < n { RowUse::Rows } else { RowUse::Whole })
}

/// Element type of the accumulator for sums of `dtype` over blocks or devices: narrow floats would be rounded once for each.
pub fn sum_type(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Where a factor is in the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FactorResult {
    /// Its dimension in every result.
    Dim(usize),
    /// Nowhere: it is folded away, and so are the results of devices that divide it.
    Fold(Monoid),
}

/// An index that an op runs over: of a product of matrices the rows, the columns or what is summed. Devices that divide one
/// factor can each do their part alone. (Shardy calls an op's factors its sharding rule.)
#[derive(Clone, Debug)]
pub struct ShardingFactor {
    /// The dimension of each operand that it runs along; `None`: every device needs all of the operand.
    pub operands: SmallVec<[Option<usize>; 3]>,
    /// Its dimension in the results, or how it is folded away.
    pub along: FactorResult,
}

impl ShardingFactor {
    /// A factor along dimension `along` of the results.
    pub fn dim(operands: impl IntoIterator<Item = Option<usize>>, along: usize) -> ShardingFactor {
        ShardingFactor { operands: operands.into_iter().collect(), along: FactorResult::Dim(along) }
    }

    /// A factor that is folded away.
    pub fn fold(operands: impl IntoIterator<Item = Option<usize>>, monoid: Monoid) -> ShardingFactor {
        ShardingFactor { operands: operands.into_iter().collect(), along: FactorResult::Fold(monoid) }
    }
}

/// Sizes of one of `parts` equal parts along dimension `d`.
pub(super) fn shard_of(dims: &[usize], d: usize, parts: usize) -> Dims {
    let mut dims = Dims::from(dims);
    dims[d] /= parts;
    dims
}

/// The row op of an element-wise op: operands of the result's shape by rows, scalars whole.
pub(super) fn elementwise_row_op(at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
    rows.cut(at.out())?;
    let uses = (0..at.node.inputs.len()).map(|k| match at.ty(k) {
        t if t.shape == at.out().shape => Some(RowUse::Rows),
        t if t.rank() == 0 => Some(RowUse::Whole),
        _ => None,
    });
    let uses: Option<SmallVec<[RowUse; 3]>> = uses.collect();
    RowOp::rows(at.node.op.clone(), uses?)
}

/// The factors of an element-wise op: operands of the result's shape along the same dimension, scalars whole.
pub(super) fn elementwise_factors(at: NodeView<'_>) -> Vec<ShardingFactor> {
    let same = |k: usize| at.ty(k).shape == at.out().shape;
    let operands = 0..at.node.inputs.len();
    if !operands.clone().all(|k| same(k) || at.ty(k).rank() == 0) {
        return Vec::new();
    }
    (0..at.out().rank())
        .map(|d| ShardingFactor::dim(operands.clone().map(|k| same(k).then_some(d)), d))
        .collect()
}

/// Whether a value is known to be all zeros.
pub fn is_zeros(graph: &Graph, v: ValueId) -> bool {
    let node = graph.node(v);
    match &node.op {
        Op::Constant(c) => c.value.bytes().iter().all(|&b| b == 0),
        Op::BroadcastInDim(_) => is_zeros(graph, node.inputs[0]),
        _ => false,
    }
}
