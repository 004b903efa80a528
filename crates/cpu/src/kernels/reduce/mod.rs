//! Folds along dimensions, and steps that work row by row.

pub mod fold;
pub mod rows;
pub mod rows_transposed;

use crate::machine::level::{Level, TileFn};
use systole_ir::DType;

/// The loop that adds `n` elements to those at its destination; narrow floats are not its element types.
pub(crate) fn adder(dtype: DType, level: Level) -> TileFn {
    fold::loops_of(systole_ir::op::Monoid::Add, dtype, level.vectors()).across
}
