//! Reads ONNX files ([`OnnxModel`]), imports them as IR graphs ([`OnnxModel::import`]), and exports TFLite graphs,
//! float or int8 ([`export`]), and IR graphs ([`export_graph`]) as ONNX.
//!
//! ```
//! use systole_base::Literal;
//! use systole_onnx::{OnnxModel, OnnxNode, ValueInfo, DimSize, DimSizes};
//! let mut model = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
//! let port = |name: &str| ValueInfo {
//!     name: name.into(),
//!     dtype: Some(systole_base::DType::F32),
//!     sizes: Some(vec![DimSize::Named("N".into()), DimSize::Known(2)]),
//! };
//! model.graph.inputs.push(port("x"));
//! model.graph.outputs.push(port("y"));
//! model.graph.constants.insert("w".into(), Literal::from_slice([2, 2], &[1f32, 2.0, 3.0, 4.0])?);
//! model.graph.nodes.push(OnnxNode::new("MatMul", ["x", "w"], "y"));
//! let read = OnnxModel::from_bytes("mine.onnx", &model.to_bytes())?;
//! let program = read.import(&DimSizes::default())?;
//! assert_eq!(program.settled, [("N".to_string(), 1)]);
//! let x = Literal::from_slice([1, 2], &[1f32, 1.0])?;
//! assert_eq!(systole_ir::interp::run(&program.graph, &[&x])?[0].to_f32s(), [4.0, 6.0]);
//! # Ok::<(), systole_base::Error>(())
//! ```
//!
//! Files are untrusted: no input causes a panic, reading takes at most 128 times the file's size, and constants
//! computed during import have at most 2²⁴ elements.

mod export;
mod graph_export;
mod import;
mod model;
mod ops;
mod protobuf;
mod read;
mod stages;
#[cfg(test)]
mod test_node;
mod unsupported_operators;
mod write;

pub use export::{BATCH, IR_VERSION, OPSET, export, export_with_loops};
pub use graph_export::export_graph;
pub use import::{DimSizes, ImportedOnnx};
pub use model::{DimSize, OnnxAttribute, OnnxFunction, OnnxGraph, OnnxModel, OnnxNode, ValueInfo};
pub use ops::{OnnxOperator, OnnxRecurrent, OnnxRecurrentKind, coverage, operators};
pub use read::ExternalData;
