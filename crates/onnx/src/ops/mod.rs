//! Table of supported ONNX operators: one module per family, with import and export functions.

mod attention;
mod bitwise;
mod call;
mod constants;
mod control_flow;
mod conv_pool;
mod data_movement;
mod einsum;
mod elementwise;
mod graph_builder;
mod grid_sample;
mod indexing;
mod integer_products;
mod losses;
mod matmul;
mod non_max_suppression;
mod normalizations;
mod op_row;
mod pooling;
mod quantization;
mod rearrange;
mod recurrent;
mod reductions;
mod resize;
mod resize_weights;
mod roi_align;
mod scatter;
mod sequences;
mod trigonometry;
mod unique;
mod values;

use std::collections::HashMap;
use std::sync::LazyLock;
use systole_base::Error;
use systole_tflite::TfliteOp;

pub(crate) use call::{NodeCall, checked};
pub(crate) use graph_builder::{ChannelOrder, OnnxBuilder};
pub(crate) use op_row::{BatchCheck, ExportRule, OnnxOpRow, TfliteSource};
pub(crate) use recurrent::write_recurrent;
pub use recurrent::{OnnxRecurrent, OnnxRecurrentKind};
pub(crate) use values::{RuleOutput, ValueTable};

/// Rows of all families.
const FAMILIES: [&[OnnxOpRow]; 26] = [
    attention::OPERATORS,
    bitwise::OPERATORS,
    control_flow::OPERATORS,
    einsum::OPERATORS,
    elementwise::OPERATORS,
    grid_sample::OPERATORS,
    integer_products::OPERATORS,
    losses::OPERATORS,
    non_max_suppression::OPERATORS,
    roi_align::OPERATORS,
    unique::OPERATORS,
    pooling::OPERATORS,
    rearrange::OPERATORS,
    scatter::OPERATORS,
    sequences::OPERATORS,
    trigonometry::OPERATORS,
    indexing::OPERATORS,
    data_movement::OPERATORS,
    normalizations::OPERATORS,
    matmul::OPERATORS,
    quantization::OPERATORS,
    recurrent::OPERATORS,
    reductions::OPERATORS,
    resize::OPERATORS,
    constants::OPERATORS,
    conv_pool::OPERATORS,
];

fn rows() -> impl Iterator<Item = &'static OnnxOpRow> {
    FAMILIES.into_iter().flatten()
}

/// A supported ONNX operator: name, opset versions, import and export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OnnxOperator {
    /// Name: `Conv`.
    pub name: &'static str,
    /// Opset version that first defines it.
    pub first: i64,
    /// Newest opset version whose definition is supported.
    pub newest: i64,
    /// Whether [`export`](crate::export) writes it.
    pub is_written: bool,
}

/// Returns the names of the ONNX operators that can be imported.
pub fn operators() -> impl Iterator<Item = &'static str> {
    coverage().into_iter().map(|o| o.name)
}

/// Returns the ONNX operators that can be imported, sorted by name.
pub fn coverage() -> Vec<OnnxOperator> {
    let of = |row: &OnnxOpRow| {
        let is_written = !row.exports.is_empty() || matches!(row.name, "LSTM" | "GRU");
        OnnxOperator { name: row.name, first: row.opsets.0, newest: row.opsets.1, is_written }
    };
    let mut all: Vec<OnnxOperator> = rows().map(of).collect();
    all.sort();
    all
}

/// Returns the table row of a node's operator.
pub(crate) fn find_row(op: &str, domain: &str) -> Option<&'static OnnxOpRow> {
    static BY_NAME: LazyLock<HashMap<&str, &OnnxOpRow>> =
        LazyLock::new(|| rows().map(|row| (row.name, row)).collect());
    matches!(domain, "" | "ai.onnx").then(|| BY_NAME.get(op).copied()).flatten()
}

/// Like [`find_row`], or an error; [`UnsupportedOperators`](crate::unsupported_operators) names all of a model.
pub(crate) fn row(op: &str, domain: &str) -> Result<&'static OnnxOpRow, Error> {
    find_row(op, domain).ok_or_else(|| call::unsupported(format!("unsupported operator `{op}`")))
}

/// Returns the export rule of a TFLite operator and the ONNX name; `None` if it has no counterpart.
pub(crate) fn export_of(op: TfliteOp) -> Option<(&'static str, &'static ExportRule)> {
    rows().find_map(|row| Some((row.name, row.exports.iter().find(|e| e.op == op)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_one_row() {
        let all = coverage();
        assert!(all.windows(2).all(|two| two[0].name < two[1].name), "{all:?}");
        assert!(all.iter().all(|o| 0 < o.first && o.first <= o.newest), "{all:?}");
        assert!(row("Conv", "").is_ok() && row("Conv", "com.mine").is_err());
        let mut written: Vec<TfliteOp> = rows().flat_map(|row| row.exports).map(|e| e.op).collect();
        let count = written.len();
        written.sort();
        written.dedup();
        assert_eq!(written.len(), count);
    }
}
