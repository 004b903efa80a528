//! Serializes an [`OnnxModel`] to the bytes of an ONNX file.

use crate::model::{DimSize, OnnxAttribute, OnnxGraph, OnnxModel, OnnxNode, ValueInfo, code_of};
use crate::protobuf::ProtoWriter;
use systole_base::Literal;

impl OnnxModel {
    /// Returns the bytes of the ONNX file, with all constants inline.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut m = ProtoWriter::default();
        m.int(1, self.ir_version);
        m.text(2, &self.producer);
        m.message(7, graph(&self.graph));
        let mut opset = ProtoWriter::default();
        opset.text(1, "");
        opset.int(2, self.opset);
        m.message(8, opset);
        for (key, value) in &self.notes {
            let mut note = ProtoWriter::default();
            note.text(1, key);
            note.text(2, value);
            m.message(14, note);
        }
        m.done()
    }
}

fn graph(g: &OnnxGraph) -> ProtoWriter {
    let mut m = ProtoWriter::default();
    g.nodes.iter().for_each(|n| m.message(1, node(n)));
    m.text(2, &g.name);
    for (name, value) in &g.constants {
        m.message(5, tensor(name, value));
    }
    g.inputs.iter().for_each(|p| m.message(11, port(p)));
    g.outputs.iter().for_each(|p| m.message(12, port(p)));
    m
}

fn node(n: &OnnxNode) -> ProtoWriter {
    let mut m = ProtoWriter::default();
    // Empty names are written too: they keep later ones in place.
    n.inputs.iter().for_each(|i| m.bytes(1, i.as_bytes()));
    n.outputs.iter().for_each(|o| m.bytes(2, o.as_bytes()));
    m.text(3, &n.name);
    m.text(4, &n.op);
    n.attributes.iter().for_each(|(name, a)| m.message(5, attribute(name, a)));
    m.text(7, &n.domain);
    m
}

fn attribute(name: &str, a: &OnnxAttribute) -> ProtoWriter {
    let mut m = ProtoWriter::default();
    m.text(1, name);
    let kind = match a {
        OnnxAttribute::Float(v) => {
            m.float(2, *v);
            1
        }
        OnnxAttribute::Int(v) => {
            m.int(3, *v);
            2
        }
        OnnxAttribute::Text(v) => {
            m.bytes(4, v.as_bytes());
            3
        }
        OnnxAttribute::Tensor(v) => {
            m.message(5, tensor("", v));
            4
        }
        OnnxAttribute::Floats(v) => {
            m.floats(7, v);
            6
        }
        OnnxAttribute::Ints(v) => {
            m.ints(8, v);
            7
        }
        OnnxAttribute::Texts(v) => {
            v.iter().for_each(|t| m.bytes(9, t.as_bytes()));
            8
        }
        OnnxAttribute::Graph(g) => {
            m.message(6, graph(g));
            5
        }
        OnnxAttribute::Reference(name) => {
            m.text(21, name);
            0
        }
        OnnxAttribute::Other => 0,
    };
    m.int(20, kind);
    m
}

fn tensor(name: &str, value: &Literal) -> ProtoWriter {
    let mut m = ProtoWriter::default();
    let dims: Vec<i64> = value.shape().iter().map(|&d| d as i64).collect();
    if !dims.is_empty() {
        m.ints(1, &dims);
    }
    m.int(2, code_of(value.dtype()));
    m.text(8, name);
    m.bytes(9, value.bytes());
    m
}

fn port(p: &ValueInfo) -> ProtoWriter {
    let mut shape = ProtoWriter::default();
    for size in p.sizes.iter().flatten() {
        let mut dim = ProtoWriter::default();
        match size {
            DimSize::Known(n) => dim.int(1, *n as i64),
            DimSize::Named(name) => dim.text(2, name),
            DimSize::Open => {}
        }
        shape.message(1, dim);
    }
    let mut tensor = ProtoWriter::default();
    tensor.int(1, p.dtype.map_or(0, code_of));
    if p.sizes.is_some() {
        tensor.message(2, shape);
    }
    let mut ty = ProtoWriter::default();
    ty.message(1, tensor);
    let mut m = ProtoWriter::default();
    m.text(1, &p.name);
    m.message(2, ty);
    m
}
