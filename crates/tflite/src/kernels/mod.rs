//! The table of operators: a file for each family, with a row and a kernel for each operator. Shapes and types come from files
//! of strangers: each kernel checks what it reads.

mod binary;
mod call;
mod conv;
mod data_movement;
mod dense;
mod op_row;
mod pool;
mod quantize_cast;
mod reduce;
mod resize;
mod slicing;
mod softmax;
mod unary;
mod window;

use crate::op::{ScaleRule, TfliteOp};
pub(crate) use call::OperatorCall;
pub(crate) use op_row::{OperandTypes, TfliteOpRow};
pub use softmax::IntegerSoftmax;
use std::sync::LazyLock;
pub use window::WindowStride;

/// The rows of all families.
const FAMILIES: [&[TfliteOpRow]; 11] = [
    binary::OPERATORS,
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

/// All rows, in the order of the schema's numbers.
static TABLE: LazyLock<Vec<&'static TfliteOpRow>> = LazyLock::new(|| {
    let mut rows: Vec<&TfliteOpRow> = FAMILIES.into_iter().flatten().collect();
    rows.sort_by_key(|row| row.op.code());
    rows
});

/// The row of the schema's number.
pub(crate) fn row(code: i32) -> Option<&'static TfliteOpRow> {
    TABLE.binary_search_by_key(&code, |row| row.op.code()).ok().map(|i| TABLE[i])
}

impl TfliteOp {
    /// The operator of the schema's number.
    pub fn of_code(code: i32) -> Option<TfliteOp> {
        row(code).map(|row| row.op)
    }

    /// Every operator that is read and computed, in the order of the schema's numbers.
    pub fn all() -> impl Iterator<Item = TfliteOp> {
        TABLE.iter().map(|row| row.op)
    }

    /// Its versions for floats and for int8, where options and operands do not raise them.
    pub fn versions(self) -> (i32, i32) {
        row(self.code()).map_or((1, 1), |row| row.versions)
    }

    /// Which scales it takes on int8.
    pub fn scales(self) -> ScaleRule {
        row(self.code()).map_or(ScaleRule::None, |row| row.scales)
    }

    /// Whether it is a function of each element of one operand.
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
