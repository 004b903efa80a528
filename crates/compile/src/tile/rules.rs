//! For each op, the op that computes a block of rows of its result.
//!
//! A value has `rows` rows if the sizes of its leading dimensions multiply to `rows`. An op works by rows if a row of
//! its result depends on the same row of some operands ([`Use::Rows`]) and on nothing but the whole of others
//! ([`Use::Whole`]), or if it sums over the rows, so that the sums of the blocks add up to its result.

use crate::graph::layout::transpose_weights::FEW;
use smallvec::{SmallVec, smallvec};
use systole_ir::op::{
    Binary, BroadcastInDim, Concatenate, Convolution, DotGeneral, Gather, Iota, Monoid, Pad, Reduce,
    ReduceWindow, Reshape, Reverse, SelectAndScatter, Slice, Sort, Transpose,
};
use systole_ir::{DType, Dims, Graph, Node, Op, Shape, TensorType};

/// The part of an operand that a block of rows reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Use {
    /// The same rows.
    Rows,
    /// All of it.
    Whole,
    /// All of it, a matrix, transposed. Kernels read a right operand `[K, N]` along its rows, unless it has few columns
    /// (see [`crate::graph::layout::transpose_weights`]); it is transposed once, not in each block.
    Turned,
}

/// An op for a block of rows.
pub struct RowOp {
    /// The op on values whose row dimensions are collapsed into one.
    pub op: Op,
    /// How it reads each operand.
    pub uses: SmallVec<[Use; 3]>,
    /// Whether it sums over the rows. Narrow floats are then accumulated in f32.
    pub sums: bool,
}

impl RowOp {
    fn rows(op: impl Into<Op>, uses: impl IntoIterator<Item = Use>) -> Option<RowOp> {
        Some(RowOp { op: op.into(), uses: uses.into_iter().collect(), sums: false })
    }
}

/// The least number of leading dimensions whose sizes multiply to `rows`.
pub fn prefix(ty: &TensorType, rows: usize) -> Option<usize> {
    let mut product = 1usize;
    for (d, &n) in ty.shape.iter().enumerate() {
        product = product.checked_mul(n)?;
        if product >= rows {
            return (product == rows).then_some(d + 1);
        }
    }
    None
}

/// The type of `block` rows of a value that has `rows` rows: its row dimensions become one of size `block`.
pub fn block_type(ty: &TensorType, rows: usize, block: usize) -> Option<TensorType> {
    Some(ty.with_shape(Cut { p: prefix(ty, rows)?, block }.shape(ty)))
}

/// Element type of the accumulator for sums of `dtype` over blocks.
pub fn sum_type(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Collapses the first `p` dimensions into one of size `block`.
#[derive(Clone, Copy)]
struct Cut {
    p: usize,
    block: usize,
}

impl Cut {
    fn of(ty: &TensorType, rows: usize, block: usize) -> Option<Cut> {
        Some(Cut { p: prefix(ty, rows)?, block })
    }

    fn shape(self, ty: &TensorType) -> Shape {
        self.list(&ty.shape, self.block).into_iter().collect()
    }

    /// A list with one entry per dimension, after the collapse; `first` is the entry of the row dimension.
    fn list<T: Clone>(self, all: &[T], first: T) -> Vec<T> {
        std::iter::once(first).chain(all[self.p..].iter().cloned()).collect()
    }

    /// The new index of a dimension that is none of the rows'.
    fn dim(self, d: usize) -> Option<usize> {
        (d >= self.p).then(|| d + 1 - self.p)
    }

    fn dims(self, dims: &[usize]) -> Option<Dims> {
        dims.iter().map(|&d| self.dim(d)).collect()
    }

    /// A list of dimensions that begins with exactly the row dimensions, after the collapse.
    fn leading(self, dims: &[usize]) -> Option<Dims> {
        let (rows, rest) = dims.split_at_checked(self.p)?;
        if !rows.iter().copied().eq(0..self.p) {
            return None;
        }
        Some(std::iter::once(0).chain(self.dims(rest)?).collect())
    }
}

/// The op of `node` for `block` of `rows` rows (at least 2); `None` where it does not work by rows.
pub fn row_op(graph: &Graph, node: &Node, rows: usize, block: usize) -> Option<RowOp> {
    let ty = |k: usize| graph.ty(node.inputs[k]);
    let cut = |t: &TensorType| Cut::of(t, rows, block);
    match &node.op {
        Op::BroadcastInDim(b) => broadcast(b, ty(0), &node.outs[0], rows, block),
        Op::Iota(iota) => {
            let c = cut(&iota.ty)?;
            RowOp::rows(Iota { dim: c.dim(iota.dim)?, ty: iota.ty.with_shape(c.shape(&iota.ty)) }, [])
        }
        Op::Reshape(_) => {
            cut(ty(0))?;
            RowOp::rows(Reshape { shape: cut(&node.outs[0])?.shape(&node.outs[0]) }, [Use::Rows])
        }
        Op::Transpose(t) => {
            RowOp::rows(Transpose { permutation: cut(ty(0))?.leading(&t.permutation)? }, [Use::Rows])
        }
        Op::Reverse(r) => RowOp::rows(Reverse { dims: cut(ty(0))?.dims(&r.dims)? }, [Use::Rows]),
        Op::Concatenate(c) => {
            let dim = cut(&node.outs[0])?.dim(c.dim)?;
            RowOp::rows(Concatenate { dim }, node.inputs.iter().map(|_| Use::Rows))
        }
        Op::Slice(s) => slice(s, ty(0), rows, block),
        Op::Pad(p) => pad(p, ty(0), rows, block),
        Op::Gather(g) => gather(g, ty(1), rows, block),
        Op::DotGeneral(d) => dot(d, ty(0), ty(1), rows, block),
        Op::Convolution(c) => convolution(c, ty(0), ty(1), rows),
        Op::Reduce(r) => reduce(graph, node, r, rows, block),
        Op::ReduceWindow(w) => window(node, w, ty(0), rows, block),
        Op::SelectAndScatter(s) => select_and_scatter(s, ty(0), rows, block),
        Op::Sort(s) => {
            let op = Sort { dim: cut(ty(0))?.dim(s.dim)?, ..s.clone() };
            RowOp::rows(op, node.inputs.iter().map(|_| Use::Rows))
        }
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select(_)
        | Op::Clamp(_)
        | Op::Convert(_)
        | Op::ReducePrecision(_) => map(graph, node, rows),
        // Inputs of a segment; there is nothing to compute.
        Op::Parameter(_) | Op::Constant(_) => None,
        // Nothing may be moved across a barrier, which fusing it into a segment could do.
        Op::OptimizationBarrier(_) => None,
        // It may add or remove a dimension, so the rows may differ between operand and result. Not supported.
        Op::BitcastConvert(_) => None,
        // They read or write at data-dependent indices, which may be in other rows.
        Op::DynamicSlice(_) | Op::DynamicUpdateSlice(_) | Op::Scatter(_) => None,
        // The bits of an element depend on the shape of the whole array.
        Op::RngBitGenerator(_) => None,
        // Bodies are graphs over all rows.
        Op::While(_) | Op::Case(_) => None,
        // They synchronise with other devices.
        Op::AllReduce(_) | Op::AllGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_) => None,
        Op::CollectivePermute(_) | Op::PartitionId(_) | Op::ReplicaId(_) => None,
    }
}

/// Only slices that keep all rows.
fn slice(s: &Slice, x: &TensorType, rows: usize, block: usize) -> Option<RowOp> {
    let c = Cut::of(x, rows, block)?;
    let all = (0..c.p).all(|d| s.start[d] == 0 && s.limit[d] == x.shape[d] && s.strides[d] == 1);
    let list = |dims: &Dims, first: usize| c.list(dims, first).into_iter().collect();
    let op = Slice { start: list(&s.start, 0), limit: list(&s.limit, block), strides: list(&s.strides, 1) };
    if all { RowOp::rows(op, [Use::Rows]) } else { None }
}

/// Only padding that adds no rows.
fn pad(p: &Pad, x: &TensorType, rows: usize, block: usize) -> Option<RowOp> {
    let c = Cut::of(x, rows, block)?;
    let none = (0..c.p).all(|d| p.low[d] == 0 && p.high[d] == 0 && p.interior[d] == 0);
    let op = Pad { low: c.list(&p.low, 0), high: c.list(&p.high, 0), interior: c.list(&p.interior, 0) };
    if none { RowOp::rows(op, [Use::Rows, Use::Whole]) } else { None }
}

/// Element-wise ops: operands of the result's shape by rows, scalars whole.
fn map(graph: &Graph, node: &Node, rows: usize) -> Option<RowOp> {
    prefix(&node.outs[0], rows)?;
    let uses = node.inputs.iter().map(|&v| match graph.ty(v) {
        t if t.shape == node.outs[0].shape => Some(Use::Rows),
        t if t.rank() == 0 => Some(Use::Whole),
        _ => None,
    });
    let uses: Option<SmallVec<[Use; 3]>> = uses.collect();
    RowOp::rows(node.op.clone(), uses?)
}

fn broadcast(
    b: &BroadcastInDim,
    x: &TensorType,
    out: &TensorType,
    rows: usize,
    block: usize,
) -> Option<RowOp> {
    let c = Cut::of(out, rows, block)?;
    let shape = c.shape(out);
    let all_rows = |(k, d): (usize, &usize)| k == *d && x.shape[k] == out.shape[k];
    if b.dims.len() >= c.p && b.dims[..c.p].iter().enumerate().all(all_rows) {
        return RowOp::rows(BroadcastInDim { dims: c.leading(&b.dims)?, shape }, [Use::Rows]);
    }
    // If the rows are one dimension, an operand dimension of size 1 may be broadcast along it.
    let place = |(k, &d): (usize, &usize)| match c.dim(d) {
        None if c.p == 1 && x.shape[k] == 1 => Some(0),
        place => place,
    };
    let dims: Option<Dims> = b.dims.iter().enumerate().map(place).collect();
    RowOp::rows(BroadcastInDim { dims: dims?, shape }, [Use::Whole])
}

/// The table whole, the indices by rows.
fn gather(g: &Gather, indices: &TensorType, rows: usize, block: usize) -> Option<RowOp> {
    let c = Cut::of(indices, rows, block)?;
    if !g.operand_batching_dims.is_empty() {
        return None;
    }
    let op = Gather {
        offset_dims: c.dims(&g.offset_dims)?,
        index_vector_dim: c.dim(g.index_vector_dim)?,
        ..g.clone()
    };
    RowOp::rows(op, [Use::Whole, Use::Rows])
}

fn dot(d: &DotGeneral, a: &TensorType, b: &TensorType, rows: usize, block: usize) -> Option<RowOp> {
    let c = Cut::of(a, rows, block)?;
    if let (Some(lhs_batch), Some(rhs_batch)) = (c.leading(&d.lhs_batch), c.leading(&d.rhs_batch)) {
        let op = DotGeneral {
            lhs_batch,
            rhs_batch,
            lhs_contract: c.dims(&d.lhs_contract)?,
            rhs_contract: c.dims(&d.rhs_contract)?,
            element_type: d.element_type,
        };
        return RowOp::rows(op, [Use::Rows, Use::Rows]);
    }
    if !d.lhs_batch.is_empty() {
        return None;
    }
    if let Some(lhs_contract) = c.dims(&d.lhs_contract) {
        let op = DotGeneral { lhs_contract, ..d.clone() };
        return match d.rhs_contract[..] == [1] && b.rank() == 2 && b.shape[0] > FEW {
            true => RowOp::rows(turned(&op), [Use::Rows, Use::Turned]),
            false => RowOp::rows(op, [Use::Rows, Use::Whole]),
        };
    }
    // The rows are contracted: a sum over blocks, as in a weight gradient.
    let mut pairs: Vec<(usize, usize)> = vec![(0, 0)];
    let mut joined = 0;
    for (&l, &r) in d.lhs_contract.iter().zip(&d.rhs_contract) {
        match (c.dim(l), c.dim(r)) {
            (Some(l), Some(r)) => pairs.push((l, r)),
            (None, None) if l == r => joined += 1,
            _ => return None,
        }
    }
    let op = DotGeneral {
        lhs_contract: pairs.iter().map(|p| p.0).collect(),
        rhs_contract: pairs.iter().map(|p| p.1).collect(),
        element_type: sum_type(d.element_type),
        ..d.clone()
    };
    (joined == c.p && d.element_type != DType::Bool).then(|| RowOp {
        op: op.into(),
        uses: smallvec![Use::Rows, Use::Rows],
        sums: true,
    })
}

/// The GEMM for a right operand that is read with [`Use::Turned`].
pub fn turned(d: &DotGeneral) -> DotGeneral {
    DotGeneral { rhs_contract: smallvec![0], ..d.clone() }
}

fn convolution(c: &Convolution, x: &TensorType, k: &TensorType, rows: usize) -> Option<RowOp> {
    let d = &c.dims;
    let is_row = |t: &TensorType, dim: usize| dim == 0 && t.shape[0] == rows;
    if c.batch_groups == 1 && is_row(x, d.input_batch) && d.output_batch == 0 {
        return RowOp::rows(c.clone(), [Use::Rows, Use::Whole]);
    }
    let sums = is_row(x, d.input_feature)
        && is_row(k, d.kernel_input_feature)
        && c.feature_groups == 1
        && c.batch_groups == 1;
    let op = Convolution { element_type: sum_type(c.element_type), ..c.clone() };
    (sums && c.element_type != DType::Bool).then(|| RowOp {
        op: op.into(),
        uses: smallvec![Use::Rows, Use::Rows],
        sums: true,
    })
}

fn reduce(graph: &Graph, node: &Node, r: &Reduce, rows: usize, block: usize) -> Option<RowOp> {
    let n = node.inputs.len() / 2;
    let x = graph.ty(node.inputs[0]);
    let c = Cut::of(x, rows, block)?;
    let uses = (0..2 * n).map(|k| if k < n { Use::Rows } else { Use::Whole });
    if let Some(dims) = c.dims(&r.dims) {
        return RowOp::rows(Reduce { dims, body: r.body.clone() }, uses);
    }
    let zero = match &graph.node(*node.inputs.get(1)?).op {
        Op::Constant(value) => value.value.get(0).as_f64() == 0.0,
        _ => false,
    };
    let all_rows = (0..c.p).all(|d| r.dims.contains(&d));
    let sums =
        n == 1 && x.dtype != DType::Bool && zero && all_rows && Monoid::of(&r.body) == Some(Monoid::Add);
    let dims = std::iter::once(0).chain(r.dims.iter().filter_map(|&d| c.dim(d))).collect();
    let body =
        if sum_type(x.dtype) == x.dtype { r.body.clone() } else { Monoid::Add.body(sum_type(x.dtype)) };
    sums.then(|| RowOp { op: Reduce { dims, body }.into(), uses: uses.collect(), sums: true })
}

fn window(node: &Node, w: &ReduceWindow, x: &TensorType, rows: usize, block: usize) -> Option<RowOp> {
    let c = Cut::of(x, rows, block)?;
    let own = &w.window;
    let trivial = (0..c.p).all(|d| {
        own.dimensions[d] == 1
            && own.strides[d] == 1
            && own.base_dilations[d] == 1
            && own.window_dilations[d] == 1
            && own.padding[d] == [0, 0]
    });
    if !trivial {
        return None;
    }
    let list = |dims: &Dims| c.list(dims, 1).into_iter().collect();
    let window = systole_ir::op::Window {
        dimensions: list(&own.dimensions),
        strides: list(&own.strides),
        base_dilations: list(&own.base_dilations),
        window_dilations: list(&own.window_dilations),
        padding: c.list(&own.padding, [0, 0]),
    };
    let n = node.inputs.len() / 2;
    let uses = (0..2 * n).map(|k| if k < n { Use::Rows } else { Use::Whole });
    RowOp::rows(ReduceWindow { window, body: w.body.clone() }, uses)
}

fn select_and_scatter(s: &SelectAndScatter, x: &TensorType, rows: usize, block: usize) -> Option<RowOp> {
    let c = Cut::of(x, rows, block)?;
    let trivial = (0..c.p).all(|d| s.dimensions[d] == 1 && s.strides[d] == 1 && s.padding[d] == [0, 0]);
    if !trivial {
        return None;
    }
    let list = |dims: &Dims| c.list(dims, 1).into_iter().collect();
    let op = SelectAndScatter {
        dimensions: list(&s.dimensions),
        strides: list(&s.strides),
        padding: c.list(&s.padding, [0, 0]),
        ..s.clone()
    };
    RowOp::rows(op, [Use::Rows, Use::Rows, Use::Whole])
}

/// Whether a value is free to compute again in each block: constants, broadcasts and reshapes, which lower to no kernel
/// or to strides of their readers.
pub fn is_free(op: &Op) -> bool {
    matches!(op, Op::Constant(_) | Op::Iota(_) | Op::BroadcastInDim(_) | Op::Reshape(_))
}

/// The op by which a block adds to a sum.
pub const ADD: Op = Op::Binary(Binary::Add);
