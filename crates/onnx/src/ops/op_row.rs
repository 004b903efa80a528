//! Table row of an ONNX operator: name, opset versions, import and export functions.

use super::call::{NodeCall, RuleResult, unsupported};
use super::graph_builder::OnnxBuilder;
use systole_base::Result;
use systole_tflite::{TfliteModel as Lite, TfliteOp, TfliteOperator, TfliteTensor};

/// Table row.
pub(crate) struct OnnxOpRow {
    /// Name of the operator.
    pub name: &'static str,
    /// First and newest supported opset version of its definition.
    pub opsets: (i64, i64),
    /// Imports a node.
    pub import: fn(&mut NodeCall) -> RuleResult,
    /// TFLite operators that are exported to it.
    pub exports: &'static [ExportRule],
}

impl OnnxOpRow {
    /// Rejects an opset that does not define the operator.
    pub fn defined_in(&self, opset: i64) -> Result<()> {
        let wrong = |why: String| {
            Err(unsupported(format!("opset {opset} does not define operator `{}`", self.name))
                .because(why)
                .hint("export the model again, or correct its opset"))
        };
        match self.name {
            _ if opset < self.opsets.0 => wrong(format!("opset {} introduces it", self.opsets.0)),
            "Upsample" if opset > self.opsets.1 => wrong("opset 10 replaces it by Resize".into()),
            _ => Ok(()),
        }
    }
}

/// Export rule of a TFLite operator.
pub(crate) struct ExportRule {
    pub op: TfliteOp,
    pub write: fn(&mut OnnxBuilder, &TfliteSource) -> Result<()>,
    /// Whether it processes the samples of a batch independently.
    pub by_sample: fn(&BatchCheck) -> bool,
}

/// Defines table rows: `"Name" first..newest: import [=> Op write [, if by_sample]]…;`
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

/// A TFLite operator being exported: the operator, its first output tensor, and the ONNX name of its row.
pub(crate) struct TfliteSource<'a> {
    pub o: &'a TfliteOperator,
    pub y: usize,
    pub name: &'static str,
}

/// A TFLite operator that is checked for independent samples.
pub(crate) struct BatchCheck<'a> {
    pub lite: &'a Lite,
    pub operator: &'a TfliteOperator,
}

impl<'a> BatchCheck<'a> {
    /// Returns an operand of the TFLite operator.
    pub fn input(&self, i: usize) -> Option<&'a TfliteTensor> {
        self.lite.tensors.get(self.operator.inputs.get(i).copied().flatten()?)
    }

    /// Returns the operands of the TFLite operator that are not constants.
    pub fn computed(&self) -> impl Iterator<Item = usize> + '_ {
        let is_computed = |t: &usize| self.lite.tensors.get(*t).is_some_and(|t| t.data.is_none());
        self.operator.inputs.iter().flatten().copied().filter(is_computed)
    }

    /// Returns the integers of a constant operand of the TFLite operator; empty if it is not constant.
    pub fn integers(&self, i: usize) -> Vec<i64> {
        let data = self.input(i).and_then(|t| t.data.as_ref());
        data.map_or(Vec::new(), |d| (0..d.ty().elements()).map(|i| d.get(i).as_i64()).collect())
    }

    /// Returns the rank of the TFLite operator's first operand.
    pub fn rank(&self) -> usize {
        self.input(0).map_or(0, |t| t.dims().len())
    }
}
