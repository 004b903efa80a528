//! Row block rules: return the op that computes a block of rows of a graph node's result.
//!
//! Refines the op's own description ([`StructuralOp::row_op`](systole_ir::op::StructuralOp::row_op)) for the layouts
//! that kernels prefer.

use crate::graph::layout::transpose_weights::FEW;
use smallvec::smallvec;
use systole_ir::op::{Binary, DotGeneral, NodeView, RowBlocking, RowOp};
use systole_ir::{Graph, Node, Op, TensorType};

pub use systole_ir::op::{RowUse as Use, row_dims as prefix, sum_type};

/// Maximum bytes of an operand that is transposed before the blocks run.
const TRANSPOSED: usize = 32 << 20;

/// Type of `block` rows of a value that has `rows` rows: its row dimensions become one of size `block`.
pub fn block_type(ty: &TensorType, rows: usize, block: usize) -> Option<TensorType> {
    Some(ty.with_shape(RowBlocking { rows, block }.cut(ty)?.shape(ty)))
}

/// Returns the op that computes `block` of the `rows` rows (at least 2) of `node`; `None` if it does not work by rows.
///
/// Kernels read a right operand `[K, N]` along its rows, unless it has few columns (see
/// [`crate::graph::layout::transpose_weights`]); it is transposed once, not in each block. An operand that fits no cache
/// is read as it is.
pub fn row_op(graph: &Graph, node: &Node, rows: usize, block: usize) -> Option<RowOp> {
    let at = NodeView { graph, node };
    let row = at.row_op(RowBlocking { rows, block })?;
    match &row.op {
        Op::DotGeneral(d)
            if row.uses[..] == [Use::Rows, Use::Whole]
                && d.rhs_contract[..] == [1]
                && at.ty(1).rank() == 2
                && at.ty(1).shape[0] > FEW
                && at.ty(1).bytes() <= TRANSPOSED =>
        {
            RowOp::rows(transposed(d), [Use::Rows, Use::Transposed])
        }
        _ => Some(row),
    }
}

/// Returns the GEMM for a right operand that is read with [`Use::Transposed`].
pub fn transposed(d: &DotGeneral) -> DotGeneral {
    DotGeneral { rhs_contract: smallvec![0], ..d.clone() }
}

/// Whether a value costs nothing to recompute in each block: constants, broadcasts and reshapes, which lower to no
/// kernel or to strides of their readers.
pub fn is_free(op: &Op) -> bool {
    matches!(op, Op::Constant(_) | Op::Iota(_) | Op::BroadcastInDim(_) | Op::Reshape(_))
}

/// Op that adds a block's result to a running sum: `add`.
pub const ADD: Op = Op::Binary(Binary::Add);
