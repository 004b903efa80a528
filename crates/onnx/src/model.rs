//! Plain data types for the contents of an ONNX file: model, graph, nodes, attributes.

use std::collections::BTreeMap;
use systole_base::{DType, Error, Literal, err};

/// An ONNX model: a graph and its opset version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxModel {
    /// IR version (file format).
    pub ir_version: i64,
    /// Opset version of the default domain.
    pub opset: i64,
    /// Producer name.
    pub producer: String,
    /// The graph.
    pub graph: OnnxGraph,
    /// Model-local functions.
    pub functions: Vec<OnnxFunction>,
    /// Metadata properties by name.
    pub notes: BTreeMap<String, String>,
}

/// A model-local function: nodes that replace a node with its name and domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxFunction {
    /// Function name: the operator of the nodes that it replaces.
    pub name: String,
    /// Domain of these nodes.
    pub domain: String,
    /// Names of the inputs; a call may omit the last ones.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Default values of attributes.
    pub defaults: BTreeMap<String, OnnxAttribute>,
    /// Nodes, each after the nodes that feed it.
    pub nodes: Vec<OnnxNode>,
    /// Opset version of the default domain; 0 for that of the model.
    pub opset: i64,
}

/// An ONNX graph: nodes in topological order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxGraph {
    /// Graph name.
    pub name: String,
    /// Nodes, each after the nodes that feed it.
    pub nodes: Vec<OnnxNode>,
    /// Inputs; in old files they include the constants.
    pub inputs: Vec<ValueInfo>,
    /// Outputs.
    pub outputs: Vec<ValueInfo>,
    /// Constants (initializers) by name.
    pub constants: BTreeMap<String, Literal>,
}

/// A node of an ONNX graph: an operator with its inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxNode {
    /// Operator type: `Conv`.
    pub op: String,
    /// Operator domain; empty for the default domain.
    pub domain: String,
    /// Node name, often empty.
    pub name: String,
    /// Input names; empty for an omitted optional input.
    pub inputs: Vec<String>,
    /// Output names; empty for an unused output.
    pub outputs: Vec<String>,
    /// Attributes by name.
    pub attributes: BTreeMap<String, OnnxAttribute>,
}

/// An attribute of an ONNX node: integer, float, string, tensor or list.
#[derive(Clone, Debug, PartialEq)]
pub enum OnnxAttribute {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f32),
    /// A string.
    Text(String),
    /// A tensor.
    Tensor(Literal),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A list of floats.
    Floats(Vec<f32>),
    /// A list of strings.
    Texts(Vec<String>),
    /// A nested graph: a branch of `If`, the body of `Loop` or `Scan`.
    Graph(Box<OnnxGraph>),
    /// The attribute of this name of the function's call, in a node of a function.
    Reference(String),
    /// An unsupported attribute: sparse tensor, type, or list of graphs.
    Other,
}

impl OnnxAttribute {
    /// Returns the attribute's kind for error messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            OnnxAttribute::Int(_) => "an integer",
            OnnxAttribute::Float(_) => "a float",
            OnnxAttribute::Text(_) => "a string",
            OnnxAttribute::Tensor(_) => "an array",
            OnnxAttribute::Ints(_) => "a list of integers",
            OnnxAttribute::Floats(_) => "a list of floats",
            OnnxAttribute::Texts(_) => "a list of strings",
            OnnxAttribute::Graph(_) => "a graph",
            OnnxAttribute::Reference(_) => "a reference to an attribute of its function",
            OnnxAttribute::Other => "of an unsupported kind",
        }
    }
}

/// An input or output of an ONNX graph: name, element type and dimensions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueInfo {
    /// Name.
    pub name: String,
    /// Element type, if stated and supported.
    pub dtype: Option<DType>,
    /// Dimension sizes; `None` if the rank is unknown.
    pub sizes: Option<Vec<DimSize>>,
}

/// Size of a dimension in an ONNX graph: fixed, symbolic or unknown.
#[derive(Clone, Debug, PartialEq)]
pub enum DimSize {
    /// A fixed size.
    Known(usize),
    /// A symbolic size; equal wherever the name occurs.
    Named(String),
    /// An unknown size.
    Open,
}

impl DimSize {
    /// Returns the dimension's symbolic name, if any.
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
    /// Returns the graph inputs that a caller passes: those that are not constants.
    pub fn given(&self) -> impl Iterator<Item = &ValueInfo> {
        self.inputs.iter().filter(|p| !self.constants.contains_key(&p.name))
    }

    /// Returns the size of the graph's constants in bytes.
    pub fn constant_bytes(&self) -> usize {
        self.constants.values().map(|c| c.ty().bytes()).sum()
    }

    /// Returns a node's position for messages: `node 3, Conv /features/0/Conv`.
    pub fn place(&self, node: usize) -> String {
        let Some(n) = self.nodes.get(node) else { return format!("node {node}") };
        let name = [&n.name, n.outputs.first().unwrap_or(&n.name)].into_iter().find(|s| !s.is_empty());
        format!("node {node}, {} {}", n.op, name.map_or("", String::as_str)).trim_end().into()
    }
}

impl OnnxNode {
    /// Creates an ONNX node without attributes.
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

    /// Adds an attribute to the node.
    pub fn with(mut self, name: &str, value: OnnxAttribute) -> OnnxNode {
        self.attributes.insert(name.into(), value);
        self
    }

    /// Adds an attribute to the node that is a list of integers.
    pub fn ints(self, name: &str, values: impl IntoIterator<Item = i64>) -> OnnxNode {
        self.with(name, OnnxAttribute::Ints(values.into_iter().collect()))
    }
}

/// Returns an error about an invalid file or graph.
pub(crate) fn broken(why: impl Into<String>) -> Error {
    err!(Data, "invalid ONNX model").because(why)
}

/// Codes of element types in ONNX.
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

/// Returns the element type of an ONNX code.
pub(crate) fn dtype_of(code: i64) -> Option<DType> {
    DTYPES.iter().find(|(c, _)| *c == code).map(|(_, d)| *d)
}

/// Returns the ONNX code of an element type.
pub(crate) fn code_of(dtype: DType) -> i64 {
    DTYPES.iter().find(|(_, d)| *d == dtype).map_or(0, |(c, _)| *c)
}
