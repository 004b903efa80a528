//! Rules of all operations: type inference and verification, evaluation, derivative, text, cost and test samples.
//!
//! Each file contains one op or one family of element-wise ops, including how the op is split into row blocks and
//! sharded over devices. The attributes are data, defined in `graph/op.rs`.
//!
//! To add an element-wise op, add a row to `graph/elementwise.rs`. To add an op composed of others, add a function to
//! `op/composites.rs`. To add a structural op, add a row and an attribute struct to `graph/op.rs`, and a file with its
//! [`OpRule`] and [`StructuralOp`]. Everything else is derived from these.

/// Implements `OpRule::lower` in one line.
macro_rules! lowered {
    ($lowering:ident) => {
        fn lower(&self) -> LoweringClass {
            LoweringClass::$lowering
        }
    };
}

pub mod attention;
pub mod binary;
pub mod composites;
mod const_eval;
pub mod control_builders;
mod elementwise_samples;
pub mod fft;
mod monoid;
pub mod op_source;
mod partitioning;
pub mod quantized_weights;
pub mod sample;
mod structural;
mod table;
mod tensor_arithmetic;
mod tensor_methods;
pub mod unary;

pub use crate::graph::attr::{self, Attr, AttrField, AttrList};
pub use crate::graph::op::*;
pub use crate::graph::{
    Binary, EvalCx, Grad, LoweringClass, OpCost, OpRule, ResultTypes, SpecConstraint, Unary, moved_bytes,
};
pub use collective::agreed;
pub use monoid::Monoid;
pub use op_source::{OpParseResult, OpSource};
pub use partitioning::{
    FactorResult, NodeView, RowBlocking, RowDims, RowOp, RowUse, ShardingFactor, is_zeros, row_dims, sum_type,
};
pub use sample::{ArgDomain, OpSample};
pub use structural::{Collective, DeviceCounts, StructuralOp};
pub use table::{OpEntry, TABLE, entry};

use crate::graph::structural_ops;
use crate::{Graph, GraphBuilder, Tensor, require};
use partitioning::{first_by_rows, shard_of};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use systole_base::{DType, Dims, Literal, LiteralBuilder, Result, Scalar, Shape, TensorType, ensure};

/// Declares the modules of structural ops.
macro_rules! files {
    ($($file:ident { $($row:tt)* })*) => { $(pub mod $file;)* };
}

structural_ops!(files);

/// Checks the number of operands. A wrong number is a constraint violation, not a panic.
pub fn expect_args(args: &[&TensorType], n: usize) -> Result<(), SpecConstraint> {
    crate::require!(args.len() == n, "-", "expected {n} operands, got {}", args.len());
    Ok(())
}

// Names of the previous version.
systole_base::renamed! { Along => FactorResult, Attrs => AttrList, Constraint => SpecConstraint, Cost => OpCost, Cut => RowDims, Devices => DeviceCounts, Entry => OpEntry, Factor => ShardingFactor, Field => AttrField, Groups => ReplicaGroups, Lowering => LoweringClass, Outs => ResultTypes, Rows => RowBlocking }
systole_base::renamed! { mod flow => control_builders, mod packed => quantized_weights, mod source => op_source }
