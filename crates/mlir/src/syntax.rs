//! Syntax tree of an MLIR module (functions, ops with regions, types, attributes) before ops are interpreted. The text
//! parser and the bytecode reader both produce it.

use std::fmt;

/// Attributes of an MLIR op by name, in order.
pub type NamedAttributes = Vec<(String, Attribute)>;

/// Returns the MLIR attribute with this name.
pub fn find<'a>(attributes: &'a NamedAttributes, name: &str) -> Option<&'a Attribute> {
    attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

/// Removes and returns the MLIR attribute with this name (swap-remove).
pub fn take(attributes: &mut NamedAttributes, name: &str) -> Option<Attribute> {
    let i = attributes.iter().position(|(n, _)| n == name)?;
    Some(attributes.swap_remove(i).1)
}

/// A value of a function: an index into [`MlirFunction::values`].
pub type FunctionValue = usize;

/// An MLIR module: functions and resources.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirModule {
    /// Module attributes, such as `mhlo.num_partitions`.
    pub attributes: NamedAttributes,
    /// Functions, in order.
    pub functions: Vec<MlirFunction>,
    /// Shardy meshes.
    pub meshes: Vec<ShardyMesh>,
    /// Contents of the resources that `dense_resource` attributes refer to, by name.
    pub resources: Vec<(String, Vec<u8>)>,
}

/// `sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[…]>`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardyMesh {
    /// Name.
    pub name: String,
    /// Axes with their sizes, slowest first.
    pub axes: Vec<(String, u64)>,
    /// Device at each position, in row-major order; empty for 0, 1, 2 …
    pub devices: Vec<u64>,
}

impl MlirModule {
    /// Returns the mesh with this name.
    pub fn mesh(&self, name: &str) -> Option<&ShardyMesh> {
        self.meshes.iter().find(|mesh| mesh.name == name)
    }

    /// Returns the contents of the resource with this name.
    pub fn resource(&self, name: &str) -> Option<&Vec<u8>> {
        self.resources.iter().find(|(n, _)| n == name).map(|(_, bytes)| bytes)
    }
}

/// An MLIR function (`func.func`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirFunction {
    /// Name, without `@`.
    pub name: String,
    /// Whether the function is private to the module.
    pub is_private: bool,
    /// Attributes of each parameter; the parameters themselves are the arguments of `body`.
    pub parameters: Vec<NamedAttributes>,
    /// Parameter names, if locations contain them.
    pub names: Vec<String>,
    /// Types and attributes of the results.
    pub results: Vec<(MlirType, NamedAttributes)>,
    /// Function attributes.
    pub attributes: NamedAttributes,
    /// Types of all values of the body and its regions.
    pub values: Vec<MlirType>,
    /// Body; its last op is the return.
    pub body: MlirRegion,
}

/// An MLIR region with one block: its arguments and ops.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirRegion {
    /// Block arguments.
    pub arguments: Vec<FunctionValue>,
    /// Ops; the last one is the terminator.
    pub operations: Vec<Operation>,
}

/// An MLIR operation: name, operands, attributes, regions and result types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    /// Name with its dialect: `stablehlo.add`.
    pub name: String,
    /// Operands.
    pub operands: Vec<FunctionValue>,
    /// Results.
    pub results: Vec<FunctionValue>,
    /// Attributes.
    pub attributes: NamedAttributes,
    /// Regions.
    pub regions: Vec<MlirRegion>,
    /// Position in the source.
    pub place: SourceSpan,
}

/// Position in the MLIR source text or bytecode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSpan {
    /// Line in text, from 1; 0 in bytecode.
    pub line: usize,
    /// Column in text, from 1; byte offset in bytecode.
    pub column: usize,
}

impl fmt::Display for SourceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "byte {}", self.column),
            line => write!(f, "line {line}:{}", self.column),
        }
    }
}

/// An MLIR type: tensor, token, tuple, function, scalar or other.
#[derive(Clone, Debug, PartialEq)]
pub enum MlirType {
    /// `tensor<2x?xf32>`
    Tensor(RankedTensorType),
    /// `!stablehlo.token`
    Token,
    /// `tuple<…>`
    Tuple(Vec<MlirType>),
    /// `(…) -> …`
    Function(Vec<MlirType>, Vec<MlirType>),
    /// `i64`, `f32`, `index`, `complex<f32>`
    Scalar(String),
    /// Any other type, as text.
    Other(String),
}

/// A ranked tensor type: `tensor<2x?xf32, #stablehlo.bounds<?, 3>>`
#[derive(Clone, Debug, PartialEq)]
pub struct RankedTensorType {
    /// Dimension sizes; `None` is `?`.
    pub dims: Vec<Option<u64>>,
    /// Name of the element type.
    pub element: String,
    /// Encoding: the text after the comma.
    pub encoding: Option<String>,
}

impl fmt::Display for MlirType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[MlirType]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            MlirType::Tensor(t) => {
                f.write_str("tensor<")?;
                for d in &t.dims {
                    match d {
                        Some(d) => write!(f, "{d}x")?,
                        None => f.write_str("?x")?,
                    }
                }
                f.write_str(&t.element)?;
                t.encoding.iter().try_for_each(|e| write!(f, ", {e}"))?;
                f.write_str(">")
            }
            MlirType::Token => f.write_str("!stablehlo.token"),
            MlirType::Tuple(all) => write!(f, "tuple<{}>", list(all)),
            MlirType::Function(from, to) => write!(f, "({}) -> ({})", list(from), list(to)),
            MlirType::Scalar(name) | MlirType::Other(name) => f.write_str(name),
        }
    }
}

/// An MLIR attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A unit attribute: only its name.
    Unit,
    /// `true`
    Bool(bool),
    /// `3 : i64`
    Int(i128),
    /// `1.5 : f32`, `0x7FC00000 : f32`: the literal's text and the type's name.
    Float(String, String),
    /// `"text"`
    String(String),
    /// `@name`, `@outer::@inner`
    Symbol(String),
    /// `[…]`
    List(Vec<Attribute>),
    /// `{…}`
    Dictionary(NamedAttributes),
    /// `array<i64: 1, 2>`: the element type's name and the elements.
    Array(String, Vec<Attribute>),
    /// `dense<…> : tensor<…>`
    Dense(DenseElements),
    /// A type.
    Type(MlirType),
    /// `#stablehlo<precision HIGHEST>`: kind and keyword.
    Keyword(String, String),
    /// `#stablehlo.gather<offset_dims = [0]>`: kind and fields.
    Struct(String, NamedAttributes),
    /// `#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>`: the three layouts.
    Convolution([Vec<String>; 3]),
    /// `#sdy.sharding<@mesh, [{"x"}, {}]>`: the mesh and the axes of each dimension, followed by [`OPEN`] if the
    /// dimension is open to further sharding.
    Sharding(String, Vec<Vec<String>>),
    /// Any other attribute: its name and text.
    Other(String, String),
}

/// Marks a dimension in a sharding as open to further sharding, as in `{"x", ?}`; follows the axes.
pub const OPEN: &str = "?";

/// Returns a sharding's axes of each dimension, without the marker [`OPEN`].
pub fn closed(dims: &[Vec<String>]) -> Vec<Vec<String>> {
    dims.iter().map(|axes| axes.iter().filter(|a| *a != OPEN).cloned().collect()).collect()
}

/// A dense elements attribute of MLIR: type and values.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseElements {
    /// Type of the array.
    pub ty: MlirType,
    /// Element values.
    pub elements: ElementData,
}

/// Values of a dense elements attribute, in the form in which they were written.
#[derive(Clone, Debug, PartialEq)]
pub enum ElementData {
    /// No elements.
    None,
    /// One value for all elements; a complex value is two words.
    Splat(Vec<String>),
    /// Lengths of the nested lists, and all words.
    List(Vec<usize>, Vec<String>),
    /// Little-endian bytes.
    Bytes(Vec<u8>),
    /// A resource of the module, by name.
    Resource(String),
}
