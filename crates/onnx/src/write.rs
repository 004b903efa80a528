//! Serializes an [`OnnxModel`] to the bytes of an ONNX file.

use crate::model::{DimSize, OnnxAttribute, OnnxGraph, OnnxModel, OnnxNode, ValueInfo, code_of};
use systole_base::Literal;
use systole_runtime::protobuf::ProtoMessage;

impl OnnxModel {
    /// Returns the bytes of the ONNX file, with all constants inline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let note = |(key, value): (&String, &String)| ProtoMessage::default().text(1, key).text(2, value);
        ProtoMessage::default()
            .int(1, self.ir_version)
            .text(2, &self.producer)
            .message(7, graph(&self.graph))
            .message(8, ProtoMessage::default().int(2, self.opset))
            .messages(14, self.notes.iter().map(note))
            .done()
    }
}

fn graph(g: &OnnxGraph) -> ProtoMessage {
    ProtoMessage::default()
        .messages(1, g.nodes.iter().map(node))
        .text(2, &g.name)
        .messages(5, g.constants.iter().map(|(name, value)| tensor(name, value)))
        .messages(11, g.inputs.iter().map(port))
        .messages(12, g.outputs.iter().map(port))
}

fn node(n: &OnnxNode) -> ProtoMessage {
    ProtoMessage::default()
        .texts(1, &n.inputs)
        .texts(2, &n.outputs)
        .text(3, &n.name)
        .text(4, &n.op)
        .messages(5, n.attributes.iter().map(|(name, a)| attribute(name, a)))
        .text(7, &n.domain)
}

fn attribute(name: &str, a: &OnnxAttribute) -> ProtoMessage {
    let m = ProtoMessage::default().text(1, name);
    let (m, kind) = match a {
        OnnxAttribute::Float(v) => (m.float(2, *v), 1),
        OnnxAttribute::Int(v) => (m.int(3, *v), 2),
        OnnxAttribute::Text(v) => (m.bytes(4, v.as_bytes()), 3),
        OnnxAttribute::Tensor(v) => (m.message(5, tensor("", v)), 4),
        OnnxAttribute::Floats(v) => (m.floats(7, v), 6),
        OnnxAttribute::Ints(v) => (m.packed(8, v.iter().copied()), 7),
        OnnxAttribute::Texts(v) => (m.texts(9, v), 8),
        OnnxAttribute::Graph(g) => (m.message(6, graph(g)), 5),
        OnnxAttribute::Reference(name) => (m.text(21, name), 0),
        OnnxAttribute::Other => (m, 0),
    };
    m.int(20, kind)
}

fn tensor(name: &str, value: &Literal) -> ProtoMessage {
    let m = ProtoMessage::default();
    let m = match value.shape().rank() {
        0 => m,
        _ => m.packed(1, value.shape().iter().map(|&d| d as i64)),
    };
    m.int(2, code_of(value.dtype())).text(8, name).bytes(9, value.bytes())
}

fn port(p: &ValueInfo) -> ProtoMessage {
    let dim = |size: &DimSize| match size {
        DimSize::Known(n) => ProtoMessage::default().int(1, *n as i64),
        DimSize::Named(name) => ProtoMessage::default().text(2, name),
        DimSize::Open => ProtoMessage::default(),
    };
    let tensor = ProtoMessage::default().int(1, p.dtype.map_or(0, code_of));
    let tensor = match &p.sizes {
        Some(sizes) => tensor.message(2, ProtoMessage::default().messages(1, sizes.iter().map(dim))),
        None => tensor,
    };
    ProtoMessage::default().text(1, &p.name).message(2, ProtoMessage::default().message(1, tensor))
}
