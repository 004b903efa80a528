//! Table of TFLite operators: one module per family, with a kernel per operator. Shapes and types come from untrusted
//! files, so each kernel checks its operands.

mod binary;
mod call;
mod comparison;
mod control_flow;
mod conv;
mod data_movement;
mod dense;
mod detection;
mod fourier;
mod indexing;
mod integer_arithmetic;
mod op_row;
mod pool;
mod quantize_cast;
mod rearrange;
mod recurrent;
mod reduce;
mod resize;
mod slicing;
mod softmax;
mod unary;
mod volumes;
mod window;

use crate::op::{ScaleRule, TfliteOp};
pub(crate) use call::{OperatorCall, RunContext};
pub(crate) use op_row::{OperandTypes, TfliteOpRow};
pub use softmax::IntegerSoftmax;
use std::sync::LazyLock;
pub use window::WindowStride;

/// Rows of all families.
const FAMILIES: [&[TfliteOpRow]; 20] = [
    binary::OPERATORS,
    comparison::OPERATORS,
    control_flow::OPERATORS,
    detection::OPERATORS,
    fourier::OPERATORS,
    indexing::OPERATORS,
    integer_arithmetic::OPERATORS,
    rearrange::OPERATORS,
    recurrent::OPERATORS,
    volumes::OPERATORS,
    conv::OPERATORS,
    quantize_cast::OPERATORS,
    dense::OPERATORS,
    data_movement::OPERATORS,
    slicing::OPERATORS,
    pool::OPERATORS,
    reduce::OPERATORS,
    resize::OPERATORS,
    softmax::OPERATORS,
    unary::OPERATORS,
];

/// All rows, sorted by schema code.
static TABLE: LazyLock<Vec<&'static TfliteOpRow>> = LazyLock::new(|| {
    let mut rows: Vec<&TfliteOpRow> = FAMILIES.into_iter().flatten().collect();
    rows.sort_by_key(|row| row.op.code());
    rows
});

/// Returns the row of a schema code.
pub(crate) fn row(code: i32) -> Option<&'static TfliteOpRow> {
    TABLE.binary_search_by_key(&code, |row| row.op.code()).ok().map(|i| TABLE[i])
}

impl TfliteOp {
    /// Returns the TFLite operator type of a schema code.
    pub fn of_code(code: i32) -> Option<TfliteOp> {
        row(code).map(|row| row.op)
    }

    /// Returns all supported TFLite operator types, sorted by schema code.
    pub fn all() -> impl Iterator<Item = TfliteOp> {
        TABLE.iter().map(|row| row.op)
    }

    /// Returns the operator's versions for f32 and int8, unless options or operands require higher ones.
    pub fn versions(self) -> (i32, i32) {
        row(self.code()).map_or((1, 1), |row| row.versions)
    }

    /// Returns the operator's requirements on int8 scales.
    pub fn scales(self) -> ScaleRule {
        row(self.code()).map_or(ScaleRule::None, |row| row.scales)
    }

    /// Whether the TFLite operator is a unary element-wise function.
    pub fn is_unary(self) -> bool {
        unary::OPERATORS.iter().any(|row| row.op == self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_and_name_has_one_row() {
        let names: std::collections::BTreeSet<&str> = TfliteOp::all().map(TfliteOp::name).collect();
        assert_eq!(names.len(), TABLE.len());
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(TfliteOp::of_code(row.op.code()), Some(row.op));
            assert!(i == 0 || TABLE[i - 1].op.code() < row.op.code(), "{}", row.op);
        }
    }
}
