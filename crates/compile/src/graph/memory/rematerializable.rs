//! Classifies ops that are cheap enough to recompute instead of storing their results.

use systole_ir::Op;
use systole_ir::op::{Binary, Unary};

/// Whether an element-wise op takes about one vector instruction.
pub fn is_one_instruction(op: &Op) -> bool {
    match op {
        // The others take several instructions or are unmeasured (rounding).
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
        // Bit manipulation with several instructions, data movement, and ops with many operations per element.
        _ => false,
    }
}
