//! [`StructuralOp`]: parser, samples and division of the ops of the table `structural_ops!`, in addition to their [`OpRule`].

use super::op_source::{OpParseResult, OpSource};
use super::partitioning::{self, FactorResult, NodeView, RowBlocking, RowOp, ShardingFactor};
use super::{LoweringClass, OpRule, OpSample};
use crate::graph::{Op, structural_ops};
use systole_base::{Literal, Result};

/// An op that is not one of [`Unary`](super::Unary) or [`Binary`](super::Binary): how text and tests build it, how it is cut into
/// blocks of rows, and how devices share its work.
///
/// By default an op is not divided, unless it is element-wise ([`Lowering::Map`]): it is computed whole, on every device.
pub trait StructuralOp: OpRule {
    /// Rebuilds the op from text: the inverse of [`OpRule::attrs`].
    fn parse(source: &OpSource<'_>) -> OpParseResult<Self>
    where
        Self: Sized;

    /// Tiny programs for the tests.
    fn samples() -> Vec<OpSample>
    where
        Self: Sized;

    /// The op for a block of rows; `None`: it does not work by rows.
    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        if self.lower() == LoweringClass::Map { partitioning::elementwise_row_op(at, rows) } else { None }
    }

    /// The indices that it runs over and devices can divide; empty: every device computes all of it.
    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        if self.lower() == LoweringClass::Map { partitioning::elementwise_factors(at) } else { Vec::new() }
    }

    /// The op for one of `parts` equal parts of a factor; `None`: the same op, as no attribute holds a size.
    fn shard(&self, _along: FactorResult, _parts: usize) -> Option<Op> {
        None
    }

    /// Its meaning on several devices, if it depends on them.
    fn collective(&self) -> Option<&dyn Collective> {
        None
    }
}

/// How many devices run a program: `replicas · partitions`, numbered with partitions fastest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCounts {
    /// Copies of the program that differ by [`ReplicaId`](super::ReplicaId).
    pub replicas: usize,
    /// Parts of each copy, which differ by [`PartitionId`](super::PartitionId).
    pub partitions: usize,
}

impl DeviceCounts {
    /// A program that runs alone.
    pub const ONE: DeviceCounts = DeviceCounts { replicas: 1, partitions: 1 };

    /// `n` replicas of one partition each.
    pub fn replicas(n: usize) -> DeviceCounts {
        DeviceCounts { replicas: n, partitions: 1 }
    }

    /// How many.
    pub fn count(self) -> usize {
        self.replicas * self.partitions
    }
}

/// What a collective does on all devices at once: their operands in, in order of devices; their results out.
pub trait Collective {
    /// The results of all devices.
    fn together(&self, devices: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>>;
}

macro_rules! structural {
    ($($file:ident { $($variant:ident = $name:literal, $doc:literal;)* })*) => {
        impl Op {
            /// The structural op; `None` for parameters and for the element-wise ops of [`Unary`](super::Unary) and
            /// [`Binary`](super::Binary).
            pub fn structural(&self) -> Option<&dyn StructuralOp> {
                match self {
                    Op::Parameter(_) | Op::Unary(_) | Op::Binary(_) => None,
                    $($(Op::$variant(op) => Some(op),)*)*
                }
            }
        }
    };
}

structural_ops!(structural);

impl Op {
    /// The op for one of `parts` equal parts of a factor: attributes that hold sizes shrink, sums are of
    /// [`sum_type`](split::sum_type).
    pub fn shard(&self, along: FactorResult, parts: usize) -> Op {
        self.structural().and_then(|op| op.shard(along, parts)).unwrap_or_else(|| self.clone())
    }

    /// The meaning on several devices, for ops that depend on them.
    pub fn collective(&self) -> Option<&dyn Collective> {
        self.structural().and_then(StructuralOp::collective)
    }

    /// Whether devices meet in it: it is a collective, or has one in a body.
    pub fn meets(&self) -> bool {
        self.collective().is_some()
            || self.rule().regions().into_iter().any(|body| body.nodes.iter().any(|n| n.op.meets()))
    }
}

impl NodeView<'_> {
    /// The op for a block of rows; `None`: it does not work by rows.
    pub fn row_op(self, rows: RowBlocking) -> Option<RowOp> {
        match (&self.node.op, self.node.op.structural()) {
            (_, Some(op)) => op.row_op(self, rows),
            // Inputs of a segment; there is nothing to compute.
            (Op::Parameter(_), _) => None,
            _ => partitioning::elementwise_row_op(self, rows),
        }
    }

    /// The indices that the op runs over and devices can divide; none: each device computes all of it.
    pub fn factors(self) -> Vec<ShardingFactor> {
        match (&self.node.op, self.node.op.structural()) {
            (_, Some(op)) => op.factors(self),
            // The caller says how these lie.
            (Op::Parameter(_), _) => Vec::new(),
            _ => partitioning::elementwise_factors(self),
        }
    }
}
