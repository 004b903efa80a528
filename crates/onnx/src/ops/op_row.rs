//! What a row of the table of operators says: name, versions, how the operator is read and written.

use super::call::{NodeCall, RuleResult};
use super::graph_builder::OnnxBuilder;
use systole_base::Result;
use systole_tflite::{TfliteModel as Lite, TfliteOp, TfliteOperator, TfliteTensor};

/// A row of the table.
pub(crate) struct OnnxOpRow {
    /// ONNX's name.
    pub name: &'static str,
    /// The versions of the first and of the newest definition that is followed.
    pub opsets: (i64, i64),
    /// Reads a node.
    pub import: fn(&mut NodeCall) -> RuleResult,
    /// Operators of `.tflite` whose last node is this one.
    pub exports: &'static [ExportRule],
}

/// How an operator of `.tflite` is written.
pub(crate) struct ExportRule {
    pub op: TfliteOp,
    pub write: fn(&mut OnnxBuilder, &TfliteSource) -> Result<()>,
    /// Whether it would take many samples as it takes one, each by itself.
    pub by_sample: fn(&BatchCheck) -> bool,
}

/// Rows of the table: `"Name" first..newest: import [=> Op write [, if by_sample]]…;`
macro_rules! operators {
    (@by_sample) => { |_| true };
    (@by_sample $by_sample:expr) => { $by_sample };
    ($($name:literal $first:literal..$newest:literal: $import:expr
       $(=> $op:ident $write:expr $(, if $by_sample:expr)?)*;)*) => {
        pub(super) const OPERATORS: &[$crate::ops::op_row::OnnxOpRow] = &[$($crate::ops::op_row::OnnxOpRow {
            name: $name,
            opsets: ($first, $newest),
            import: $import,
            exports: &[$($crate::ops::op_row::ExportRule {
                op: systole_tflite::TfliteOp::$op,
                write: $write,
                by_sample: operators!(@by_sample $($by_sample)?),
            }),*],
        }),*];
    };
}
pub(super) use operators;

/// An operator of `.tflite` that is written: the operator, the tensor of its first result, ONNX's name of its row.
pub(crate) struct TfliteSource<'a> {
    pub o: &'a TfliteOperator,
    pub y: usize,
    pub name: &'static str,
}

/// An operator of `.tflite`, of which is asked whether it takes sample by sample.
pub(crate) struct BatchCheck<'a> {
    pub lite: &'a Lite,
    pub operator: &'a TfliteOperator,
}

impl<'a> BatchCheck<'a> {
    /// An operand.
    pub fn input(&self, i: usize) -> Option<&'a TfliteTensor> {
        self.lite.tensors.get(self.operator.inputs.get(i).copied().flatten()?)
    }

    /// Operands that are no constants.
    pub fn computed(&self) -> impl Iterator<Item = usize> + '_ {
        let is_computed = |t: &usize| self.lite.tensors.get(*t).is_some_and(|t| t.data.is_none());
        self.operator.inputs.iter().flatten().copied().filter(is_computed)
    }

    /// Whole numbers of a constant operand; none where it is no constant.
    pub fn integers(&self, i: usize) -> Vec<i64> {
        let data = self.input(i).and_then(|t| t.data.as_ref());
        data.map_or(Vec::new(), |d| (0..d.ty().elements()).map(|i| d.get(i).as_i64()).collect())
    }

    /// Dimensions of the first operand.
    pub fn rank(&self) -> usize {
        self.input(0).map_or(0, |t| t.dims().len())
    }
}
