//! Which ops are cheap enough to recompute instead of storing their results.

use systole_ir::Op;
use systole_ir::op::{Binary, Unary};

/// Whether an element-wise op takes about one vector instruction.
pub fn is_one_instruction(op: &Op) -> bool {
    match op {
        // The others take several instructions or are unmeasured (rounding). Not listing a new op is the safe default.
        Op::Unary(op) => {
            matches!(op, Unary::Abs | Unary::Negate | Unary::Not | Unary::IsFinite | Unary::Sign)
        }
        Op::Binary(op) => matches!(
            op,
            Binary::Add
                | Binary::Subtract
                | Binary::Multiply
                | Binary::Maximum
                | Binary::Minimum
                | Binary::And
                | Binary::Or
                | Binary::Xor
                | Binary::ShiftLeft
                | Binary::ShiftRightArithmetic
                | Binary::ShiftRightLogical
        ),
        Op::Compare(_) | Op::Select(_) | Op::Clamp(_) | Op::Convert(_) => true,
        // Several integer instructions.
        Op::ReducePrecision(_) => false,
        // No arithmetic: views and data movement.
        Op::Parameter(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::BitcastConvert(_)
        | Op::BroadcastInDim(_)
        | Op::Reshape(_)
        | Op::OptimizationBarrier(_)
        | Op::Transpose(_)
        | Op::Reverse(_)
        | Op::Concatenate(_)
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice(_)
        | Op::Gather(_) => false,
        // Many operations per element.
        Op::Scatter(_)
        | Op::DotGeneral(_)
        | Op::Convolution(_)
        | Op::Reduce(_)
        | Op::ReduceWindow(_)
        | Op::SelectAndScatter(_)
        | Op::RngBitGenerator(_)
        | Op::Sort(_)
        | Op::While(_)
        | Op::Case(_) => false,
        // Collectives, which wait for other devices, and device ids.
        Op::AllReduce(_)
        | Op::AllGather(_)
        | Op::ReduceScatter(_)
        | Op::AllToAll(_)
        | Op::CollectivePermute(_)
        | Op::PartitionId(_)
        | Op::ReplicaId(_) => false,
    }
}
