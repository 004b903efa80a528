//! Describes how an op is split into row blocks ([`RowOp`]) and sharded over devices ([`ShardingFactor`]).
//!
//! The compiler splits leading dimensions, collapsed into one, to keep intermediate arrays in the cache. The
//! partitioner splits any single dimension, and shapes keep their rank.

use super::Monoid;
use crate::graph::{Constant, Op};
use crate::{Graph, Node, ValueId};
use smallvec::SmallVec;
use systole_base::{DType, Dims, Shape, TensorType};

/// A node in its graph, with accessors for the types and constants of its operands.
#[derive(Clone, Copy)]
pub struct NodeView<'g> {
    /// The graph that holds the node.
    pub graph: &'g Graph,
    /// The node.
    pub node: &'g Node,
}

impl<'g> NodeView<'g> {
    /// Type of the node's operand `k`.
    pub fn ty(self, k: usize) -> &'g TensorType {
        self.graph.ty(self.node.inputs[k])
    }

    /// Type of the node's first result.
    pub fn out(self) -> &'g TensorType {
        &self.node.outs[0]
    }

    /// Returns operand `k` of the node if it is a constant.
    pub fn constant(self, k: usize) -> Option<&'g Constant> {
        match &self.graph.node(*self.node.inputs.get(k)?).op {
            Op::Constant(c) => Some(c),
            _ => None,
        }
    }

    /// Creates sharding factors for the result dimensions that `keep` accepts. The first `n` operands are split along
    /// the same dimension, the others are replicated.
    pub fn same_dims(self, n: usize, keep: impl Fn(usize) -> bool) -> Vec<ShardingFactor> {
        let operands = |d: usize| (0..self.node.inputs.len()).map(move |k| (k < n).then_some(d));
        (0..self.out().rank()).filter(|&d| keep(d)).map(|d| ShardingFactor::dim(operands(d), d)).collect()
    }
}

/// Part of an operand that a row block reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowUse {
    /// The same rows.
    Rows,
    /// The whole operand.
    Whole,
    /// The whole operand, a matrix, transposed.
    Transposed,
}

/// Op that computes one row block of a node.
///
/// A value has `rows` rows if the sizes of its leading dimensions multiply to `rows`. An op works by rows if each row
/// of its result depends only on the same row of some operands ([`RowUse::Rows`]) and on other operands as a whole
/// ([`RowUse::Whole`]). It also works by rows if it sums over the rows, so that the sums of the blocks add up to its
/// result.
pub struct RowOp {
    /// The op on values whose row dimensions are collapsed into one.
    pub op: Op,
    /// Part of each operand that it reads.
    pub uses: SmallVec<[RowUse; 3]>,
    /// Whether it sums over the rows. Bf16 and f16 are then accumulated in f32.
    pub sums: bool,
}

impl RowOp {
    /// Creates an op that computes rows of its result.
    pub fn rows(op: impl Into<Op>, uses: impl IntoIterator<Item = RowUse>) -> Option<RowOp> {
        Some(RowOp { op: op.into(), uses: uses.into_iter().collect(), sums: false })
    }

    /// Creates an op that sums over the rows of its [`RowUse::Rows`] operands.
    pub fn sum(op: impl Into<Op>, uses: impl IntoIterator<Item = RowUse>) -> Option<RowOp> {
        Some(RowOp { op: op.into(), uses: uses.into_iter().collect(), sums: true })
    }
}

/// Rule for splitting `rows` rows (at least 2) into blocks of `block` rows.
#[derive(Clone, Copy)]
pub struct RowBlocking {
    /// Total number of rows.
    pub rows: usize,
    /// Rows per block.
    pub block: usize,
}

impl RowBlocking {
    /// Row dimensions of a value of this type; `None` if it does not have this number of rows.
    pub fn cut(self, ty: &TensorType) -> Option<RowDims> {
        Some(RowDims { dims: row_dims(ty, self.rows)?, block: self.block })
    }
}

/// Smallest number of leading dimensions whose sizes multiply to `rows`.
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

/// Row dimensions of a value: collapses the first `dims` dimensions into one of size `block`.
#[derive(Clone, Copy)]
pub struct RowDims {
    /// Number of leading dimensions that make up the rows.
    pub dims: usize,
    /// Rows per block.
    pub block: usize,
}

impl RowDims {
    /// Shape of a block of rows of this value.
    pub fn shape(self, ty: &TensorType) -> Shape {
        self.list(&ty.shape, self.block).into_iter().collect()
    }

    /// Converts a list with one entry per dimension to collapsed dimensions; `first` is the entry of the row dimension.
    pub fn list<T: Clone>(self, all: &[T], first: T) -> Vec<T> {
        std::iter::once(first).chain(all[self.dims..].iter().cloned()).collect()
    }

    /// Like [`list`](RowDims::list), for sizes or indices.
    pub fn sizes(self, all: &[usize], first: usize) -> Dims {
        self.list(all, first).into_iter().collect()
    }

    /// Whether a condition holds for all row dimensions.
    pub fn all(self, holds: impl FnMut(usize) -> bool) -> bool {
        (0..self.dims).all(holds)
    }

    /// Index of a non-row dimension after the collapse; `None` for a row dimension.
    pub fn dim(self, d: usize) -> Option<usize> {
        (d >= self.dims).then(|| d + 1 - self.dims)
    }

    /// Indices of non-row dimensions after the collapse; `None` if one is a row dimension.
    pub fn other_dims(self, dims: &[usize]) -> Option<Dims> {
        dims.iter().map(|&d| self.dim(d)).collect()
    }

    /// Collapses a list of dimensions that starts with exactly the row dimensions; `None` if it does not.
    pub fn leading(self, dims: &[usize]) -> Option<Dims> {
        let (rows, rest) = dims.split_at_checked(self.dims)?;
        if !rows.iter().copied().eq(0..self.dims) {
            return None;
        }
        Some(std::iter::once(0).chain(self.other_dims(rest)?).collect())
    }
}

/// Reads the first `n` operands by rows, the others whole.
pub(super) fn first_by_rows(n: usize, operands: usize) -> impl Iterator<Item = RowUse> {
    (0..operands).map(move |k| if k < n { RowUse::Rows } else { RowUse::Whole })
}

/// Accumulator type for sums of `dtype` over blocks or devices: f32 for bf16 and f16, to round only once.
pub fn sum_type(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Position of a sharding factor in the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FactorResult {
    /// Dimension of every result.
    Dim(usize),
    /// Reduced: it is in no result, and the partial results of the devices must be reduced too.
    Fold(Monoid),
}

/// A sharding factor (Shardy's term): an index that an op iterates over, such as the rows, the columns or the
/// contracted dimension of a matrix product. Devices can divide the op along one factor and compute their parts
/// independently.
#[derive(Clone, Debug)]
pub struct ShardingFactor {
    /// Dimension of each operand along which the factor runs; `None` if every device needs the whole operand.
    pub operands: SmallVec<[Option<usize>; 3]>,
    /// Dimension of the results, or the reduction over the factor.
    pub along: FactorResult,
}

impl ShardingFactor {
    /// Creates a sharding factor along dimension `along` of the results.
    pub fn dim(operands: impl IntoIterator<Item = Option<usize>>, along: usize) -> ShardingFactor {
        ShardingFactor { operands: operands.into_iter().collect(), along: FactorResult::Dim(along) }
    }

    /// Creates a sharding factor that is reduced: devices hold terms of a sum, or of another monoid.
    pub fn fold(operands: impl IntoIterator<Item = Option<usize>>, monoid: Monoid) -> ShardingFactor {
        ShardingFactor { operands: operands.into_iter().collect(), along: FactorResult::Fold(monoid) }
    }
}

/// Shape of one of `parts` equal shards along dimension `d`.
pub(super) fn shard_of(dims: &[usize], d: usize, parts: usize) -> Dims {
    let mut dims = Dims::from(dims);
    dims[d] /= parts;
    dims
}

/// Row op of an element-wise op: operands with the result's shape are read by rows, scalars whole.
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

/// Sharding factors of an element-wise op: operands with the result's shape are split along the same dimension, scalars
/// are replicated.
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

/// Whether all elements of a value are known to be zero.
pub fn is_zeros(graph: &Graph, v: ValueId) -> bool {
    let node = graph.node(v);
    match &node.op {
        Op::Constant(c) => c.value.bytes().iter().all(|&b| b == 0),
        Op::BroadcastInDim(_) => is_zeros(graph, node.inputs[0]),
        _ => false,
    }
}
