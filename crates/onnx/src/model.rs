//! An ONNX model as data: what the bytes of a file say, in plain types.

use std::collections::BTreeMap;
use systole_base::{DType, Error, ErrorKind, Literal};

/// A model: one graph, and which version of the operators it is written in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxModel {
    /// The version of the file format.
    pub ir_version: i64,
    /// The version of ONNX's own operators.
    pub opset: i64,
    /// Who wrote it.
    pub producer: String,
    /// What it computes.
    pub graph: OnnxGraph,
    /// Names of operators that the file defines itself, with their domain.
    pub functions: Vec<(String, String)>,
    /// Free notes by name.
    pub notes: BTreeMap<String, String>,
}

/// Nodes in the order of their execution.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxGraph {
    /// Its name.
    pub name: String,
    /// Each after those that feed it.
    pub nodes: Vec<OnnxNode>,
    /// Values that are given; in old files also the constants.
    pub inputs: Vec<ValueInfo>,
    /// Values that are asked for.
    pub outputs: Vec<ValueInfo>,
    /// Values that are there.
    pub constants: BTreeMap<String, Literal>,
}

/// An operator in its place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxNode {
    /// What it computes: `Conv`.
    pub op: String,
    /// Whose operator that is; empty for ONNX's own.
    pub domain: String,
    /// Its own name, often empty.
    pub name: String,
    /// Names of values; empty where an optional one is left out.
    pub inputs: Vec<String>,
    /// Names of values; empty where one is not asked for.
    pub outputs: Vec<String>,
    /// Options by name.
    pub attributes: BTreeMap<String, OnnxAttribute>,
}

/// An option of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum OnnxAttribute {
    /// A number.
    Int(i64),
    /// A number.
    Float(f32),
    /// A word.
    Text(String),
    /// An array.
    Tensor(Literal),
    /// Numbers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Words.
    Texts(Vec<String>),
    /// What is not read: graphs, sparse arrays, types.
    Other,
}

impl OnnxAttribute {
    /// What it is called in errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            OnnxAttribute::Int(_) => "an integer",
            OnnxAttribute::Float(_) => "a float",
            OnnxAttribute::Text(_) => "a string",
            OnnxAttribute::Tensor(_) => "an array",
            OnnxAttribute::Ints(_) => "a list of integers",
            OnnxAttribute::Floats(_) => "a list of floats",
            OnnxAttribute::Texts(_) => "a list of strings",
            OnnxAttribute::Other => "of a kind that is not read",
        }
    }
}

/// An input or an output of the graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// Its element type, where it is said and known here.
    pub dtype: Option<DType>,
    /// Its sizes; `None`: not even their number is said.
    pub sizes: Option<Vec<DimSize>>,
}

/// A size of a dimension.
#[derive(Clone, Debug, PartialEq)]
pub enum DimSize {
    /// A number.
    Known(usize),
    /// The same wherever this name stands.
    Named(String),
    /// Any.
    Open,
}

impl DimSize {
    /// Its name, where it has one.
    pub fn name(&self) -> Option<&str> {
        if let DimSize::Named(name) = self { Some(name) } else { None }
    }
}

impl std::fmt::Display for DimSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DimSize::Known(n) => write!(f, "{n}"),
            DimSize::Named(name) => f.write_str(name),
            DimSize::Open => f.write_str("?"),
        }
    }
}

impl std::fmt::Display for ValueInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dtype = self.dtype.map_or("?", DType::name);
        match &self.sizes {
            None => write!(f, "{dtype}[…]"),
            Some(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
                write!(f, "{dtype}[{}]", sizes.join(", "))
            }
        }
    }
}

impl OnnxGraph {
    /// The inputs that a caller gives: those that are no constants.
    pub fn given(&self) -> impl Iterator<Item = &ValueInfo> {
        self.inputs.iter().filter(|p| !self.constants.contains_key(&p.name))
    }

    /// Bytes of the constants.
    pub fn constant_bytes(&self) -> usize {
        self.constants.values().map(|c| c.ty().bytes()).sum()
    }

    /// Where a node stands, for people: `node 3, Conv /features/0/Conv`.
    pub fn place(&self, node: usize) -> String {
        let Some(n) = self.nodes.get(node) else { return format!("node {node}") };
        let name = [&n.name, n.outputs.first().unwrap_or(&n.name)].into_iter().find(|s| !s.is_empty());
        format!("node {node}, {} {}", n.op, name.map_or("", String::as_str)).trim_end().into()
    }
}

impl OnnxNode {
    /// A node without options.
    pub fn new<I: Into<String>>(
        op: &str,
        inputs: impl IntoIterator<Item = I>,
        output: impl Into<String>,
    ) -> OnnxNode {
        OnnxNode {
            op: op.into(),
            inputs: inputs.into_iter().map(Into::into).collect(),
            outputs: vec![output.into()],
            ..OnnxNode::default()
        }
    }

    /// With an option.
    pub fn with(mut self, name: &str, value: OnnxAttribute) -> OnnxNode {
        self.attributes.insert(name.into(), value);
        self
    }

    /// With an option that is a list of numbers.
    pub fn ints(self, name: &str, values: impl IntoIterator<Item = i64>) -> OnnxNode {
        self.with(name, OnnxAttribute::Ints(values.into_iter().collect()))
    }
}

/// A file or graph that is none.
pub(crate) fn broken(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, "this is no sound ONNX model").because(why)
}

/// ONNX's numbers of element types.
const DTYPES: [(i64, DType); 13] = [
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (9, DType::Bool),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
];

/// The element type of ONNX's number.
pub(crate) fn dtype_of(code: i64) -> Option<DType> {
    DTYPES.iter().find(|(c, _)| *c == code).map(|(_, d)| *d)
}

/// ONNX's number of an element type.
pub(crate) fn code_of(dtype: DType) -> i64 {
    DTYPES.iter().find(|(_, d)| *d == dtype).map_or(0, |(c, _)| *c)
}
