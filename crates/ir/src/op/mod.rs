//! The rules of all operations. One op (or one family of element-wise ops) is one file: shape inference (which is also
//! the verifier), evaluation, derivative, text attributes, cost, samples, and how the op is cut into blocks of rows and
//! split over devices. Attributes are data and stand in `graph/op.rs`.
//!
//! Adding an element-wise op is one row in `graph/elementwise.rs`; adding one that is composed of others is one row in
//! `op/compose.rs`. Adding a structural op is a row and an attribute struct in `graph/op.rs`, and a file with its
//! [`OpRule`] and [`StructuralOp`]. Everything else is derived from the rules.

/// What an op does to elements, in one line.
macro_rules! lowered {
    ($lowering:ident) => {
        fn lower(&self) -> Lowering {
            Lowering::$lowering
        }
    };
}

pub mod attention;
pub mod binary;
pub mod composites;
mod const_eval;
pub mod control_builders;
mod elementwise_samples;
mod monoid;
pub mod op_source;
mod partitioning;
pub mod quantized_weights;
pub mod sample;
mod structural;
mod table;
mod tensor_methods;
pub mod unary;

pub use crate::graph::attr::{self, Attr, Attrs, Field};
pub use crate::graph::op::*;
pub use crate::graph::{Binary, Unary};
pub use crate::graph::{Constraint, Cost, EvalCx, Grad, Lowering, OpRule, Outs, moved_bytes};
pub use collective::agreed;
pub use monoid::Monoid;
pub use op_source::{Source, Unread};
pub use partitioning::{Along, Cut, Factor, NodeView, RowOp, RowUse, Rows, is_zeros, row_dims, sum_type};
pub use sample::{Domain, Sample};
pub use structural::{Collective, Devices, StructuralOp};
pub use table::{Entry, TABLE, entry};

use crate::graph::structural_ops;
use crate::{Graph, Tensor};
use partitioning::{first_by_rows, shard_of};
use smallvec::SmallVec;
use std::sync::Arc;
use systole_base::{Literal, Result, TensorType};

/// Declares the files of structural ops.
macro_rules! files {
    ($($file:ident { $($row:tt)* })*) => { $(pub mod $file;)* };
}

structural_ops!(files);

/// Checks the number of operands; a missing operand is a violated constraint, not a panic.
pub fn expect_args(args: &[&TensorType], n: usize) -> Result<(), Constraint> {
    crate::require!(args.len() == n, "-", "takes {n} operands, got {}", args.len());
    Ok(())
}
