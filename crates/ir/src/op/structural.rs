//! [`StructuralOp`]: parser, samples and partitioning of ops that are not element-wise, in addition to their [`OpRule`].

use super::op_source::{OpParseResult, OpSource};
use super::partitioning::{self, FactorResult, NodeView, RowBlocking, RowOp, ShardingFactor};
use super::{LoweringClass, OpRule, OpSample};
use crate::graph::{Op, structural_ops};
use systole_base::{Literal, Result};

/// An op other than [`Unary`](super::Unary) and [`Binary`](super::Binary): parsing, test samples, splitting into row
/// blocks, and sharding over devices.
///
/// By default an op is not divided unless it is element-wise ([`LoweringClass::Map`]): every device computes all of it.
pub trait StructuralOp: OpRule {
    /// Rebuilds the op from parsed text. The inverse of [`OpRule::attrs`].
    fn parse(source: &OpSource<'_>) -> OpParseResult<Self>
    where
        Self: Sized;

    /// Small test programs.
    fn samples() -> Vec<OpSample>
    where
        Self: Sized;

    /// The op for a row block; `None` if it does not work by rows.
    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        if self.lower() == LoweringClass::Map { partitioning::elementwise_row_op(at, rows) } else { None }
    }

    /// Factors along which devices can divide the op; empty if every device computes all of it.
    fn factors(&self, at: NodeView<'_>) -> Vec<ShardingFactor> {
        if self.lower() == LoweringClass::Map { partitioning::elementwise_factors(at) } else { Vec::new() }
    }

    /// The op for one of `parts` equal shards of a factor; `None` if the op is the same because no attribute depends on
    /// the size.
    fn shard(&self, _along: FactorResult, _parts: usize) -> Option<Op> {
        None
    }

    /// Evaluation on several devices, if the op is a collective.
    fn collective(&self) -> Option<&dyn Collective> {
        None
    }
}

/// Number of devices that run a program: `replicas · partitions`, numbered with partitions fastest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCounts {
    /// Number of replicas; see [`ReplicaId`](super::ReplicaId).
    pub replicas: usize,
    /// Number of partitions of each replica; see [`PartitionId`](super::PartitionId).
    pub partitions: usize,
}

impl DeviceCounts {
    /// Counts for a single device.
    pub const ONE: DeviceCounts = DeviceCounts { replicas: 1, partitions: 1 };

    /// Counts for `n` replicas with one partition each.
    pub fn replicas(n: usize) -> DeviceCounts {
        DeviceCounts { replicas: n, partitions: 1 }
    }

    /// Total number of devices that run the program.
    pub fn count(self) -> usize {
        self.replicas * self.partitions
    }
}

/// Evaluation of a collective on all devices.
pub trait Collective {
    /// Computes the result of each device from the operands of each device, in device order.
    fn together(&self, devices: DeviceCounts, args: &[Vec<&Literal>]) -> Result<Vec<Literal>>;
}

macro_rules! structural {
    ($($file:ident { $($variant:ident = $name:literal, $doc:literal;)* })*) => {
        impl Op {
            /// Returns the structural op; `None` for parameters and for element-wise [`Unary`](super::Unary) and
            /// [`Binary`](super::Binary) ops.
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
    /// Returns the op for one of `parts` equal shards of a sharding factor: size attributes shrink, and sums have type
    /// [`sum_type`](super::partitioning::sum_type).
    pub fn shard(&self, along: FactorResult, parts: usize) -> Op {
        self.structural().and_then(|op| op.shard(along, parts)).unwrap_or_else(|| self.clone())
    }

    /// Returns the op's evaluation on several devices, if it is a collective.
    pub fn collective(&self) -> Option<&dyn Collective> {
        self.structural().and_then(StructuralOp::collective)
    }

    /// Whether the op is a collective or contains one in a body, so that devices must run it together.
    pub fn meets(&self) -> bool {
        self.collective().is_some()
            || self.rule().regions().into_iter().any(|body| body.nodes.iter().any(|n| n.op.meets()))
    }
}

impl NodeView<'_> {
    /// Returns the op that computes a row block of the node; `None` if it does not work by rows.
    pub fn row_op(self, rows: RowBlocking) -> Option<RowOp> {
        match (&self.node.op, self.node.op.structural()) {
            (_, Some(op)) => op.row_op(self, rows),
            // Input of a segment: nothing to compute.
            (Op::Parameter(_), _) => None,
            _ => partitioning::elementwise_row_op(self, rows),
        }
    }

    /// Returns the sharding factors along which devices can divide the op; empty if every device computes all of it.
    pub fn factors(self) -> Vec<ShardingFactor> {
        match (&self.node.op, self.node.op.structural()) {
            (_, Some(op)) => op.factors(self),
            // The caller knows the parameters' shardings.
            (Op::Parameter(_), _) => Vec::new(),
            _ => partitioning::elementwise_factors(self),
        }
    }
}
