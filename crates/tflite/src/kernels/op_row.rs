//! Table row of a TFLite operator: schema code, options, versions, scale rule and kernel.

use super::call::OperatorCall;
use crate::model::{TfliteModel, TfliteOperator, TfliteTensor};
use crate::op::{OptionField, ScaleRule, TfliteOp};
use systole_base::{DType, Literal, Result};

/// Computes the outputs of an operator; checks operands, options and the output shape.
pub(crate) type TfliteKernel = fn(&OperatorCall) -> Result<Vec<Literal>>;

/// Table row.
pub(crate) struct TfliteOpRow {
    pub op: TfliteOp,
    /// Schema code of its options' union; 0 if it has none.
    pub union: u8,
    /// Options of the operator: slot in the table, and field.
    pub fields: &'static [(u16, OptionField)],
    /// Versions for f32 and int8.
    pub versions: (i32, i32),
    /// Returns the version if options or operands require a higher one.
    pub version: fn(&OperandTypes) -> i32,
    pub scales: ScaleRule,
    pub kernel: TfliteKernel,
}

/// Defines table rows and the constants `Op::Name`: `Name "NAME" number; options union [slot Field, …]; versions float
/// int8 (or rule); Scales; kernel`.
macro_rules! operators {
    (@version) => { |t| t.base };
    (@version $version:expr) => { $version };
    ($($op:ident $name:literal $code:literal; options $union:literal [$($slot:literal $field:ident),*];
       versions $float:literal $int8:literal $(or $version:expr)?; $scales:expr; $kernel:expr)*) => {
        #[allow(non_upper_case_globals)]
        impl $crate::op::TfliteOp {
            $(#[doc = concat!("`", $name, "`.")]
            pub const $op: $crate::op::TfliteOp = $crate::op::TfliteOp::of_row($code, $name);)*
        }

        pub(super) const OPERATORS: &[$crate::kernels::op_row::TfliteOpRow] = {
            #[allow(unused_imports)]
            use $crate::op::{TfliteOp, ScaleRule::{Fixed, Free, Same, Weights, None as NoInt8}};
            #[allow(unused_imports)]
            use $crate::kernels::op_row::TfliteOpRow;
            &[$(TfliteOpRow {
                op: TfliteOp::$op,
                union: $union,
                fields: &[$(($slot, $crate::op::OptionField::$field)),*],
                versions: ($float, $int8),
                version: operators!(@version $($version)?),
                scales: $scales,
                kernel: $kernel,
            }),*]
        };
    };
}
pub(super) use operators;

/// Types of an operator's tensors, which determine its version.
pub(crate) struct OperandTypes<'a> {
    model: &'a TfliteModel,
    pub operator: &'a TfliteOperator,
    /// Whether it computes in int8.
    pub is_int8: bool,
    /// Base version for its type.
    pub base: i32,
}

impl<'a> OperandTypes<'a> {
    pub fn new(
        model: &'a TfliteModel,
        operator: &'a TfliteOperator,
        (float, int8): (i32, i32),
    ) -> OperandTypes<'a> {
        let mut types = OperandTypes { model, operator, is_int8: false, base: float };
        if is_int8(types.input(0)) || is_int8(types.output()) {
            (types.is_int8, types.base) = (true, int8);
        }
        types
    }

    pub fn input(&self, n: usize) -> Option<&'a TfliteTensor> {
        self.model.tensors.get(self.operator.inputs.get(n).copied().flatten()?)
    }

    pub fn output(&self) -> Option<&'a TfliteTensor> {
        self.model.tensors.get(*self.operator.outputs.first()?)
    }

    /// Whether the operator has f32 inputs and int8 weights (dynamic-range quantization).
    pub fn is_hybrid(&self) -> bool {
        !self.is_int8 && is_int8(self.input(1))
    }

    /// Returns the rank of the operator's first operand.
    pub fn rank(&self) -> usize {
        self.input(0).map_or(0, |t| t.ty.rank())
    }
}

fn is_int8(t: Option<&TfliteTensor>) -> bool {
    t.is_some_and(|t| matches!(t.ty.dtype, DType::I8 | DType::U8))
}
