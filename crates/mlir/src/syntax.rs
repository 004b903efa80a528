//! What programs of other systems say, before any op is understood: functions, ops with regions, types and attributes.
//! Text and bytecode are read into this one form.

use std::fmt;

/// Attributes by name, in order.
pub type NamedAttributes = Vec<(String, Attribute)>;

/// The attribute of a name.
pub fn find<'a>(attributes: &'a NamedAttributes, name: &str) -> Option<&'a Attribute> {
    attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

/// Takes the attribute of a name out; the last one takes its place.
pub fn take(attributes: &mut NamedAttributes, name: &str) -> Option<Attribute> {
    let i = attributes.iter().position(|(n, _)| n == name)?;
    Some(attributes.swap_remove(i).1)
}

/// A value of a function: an index into [`MlirFunction::values`].
pub type FunctionValue = usize;

/// A program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirModule {
    /// Its attributes, such as `mhlo.num_partitions`.
    pub attributes: NamedAttributes,
    /// Its functions, in order.
    pub functions: Vec<MlirFunction>,
    /// Meshes of Shardy: name, and the axes with their sizes.
    pub meshes: Vec<(String, Vec<(String, u64)>)>,
    /// Bytes that `dense_resource` names.
    pub resources: Vec<(String, Vec<u8>)>,
}

impl MlirModule {
    /// The elements that attributes refer to by a name.
    pub fn resource(&self, name: &str) -> Option<&Vec<u8>> {
        self.resources.iter().find(|(n, _)| n == name).map(|(_, bytes)| bytes)
    }
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirFunction {
    /// Its name, without `@`.
    pub name: String,
    /// Whether it is called from within the module alone.
    pub is_private: bool,
    /// Attributes of each parameter; the parameters are the arguments of `body`.
    pub parameters: Vec<NamedAttributes>,
    /// Names of the parameters, where locations tell them.
    pub names: Vec<String>,
    /// Types and attributes of the results.
    pub results: Vec<(MlirType, NamedAttributes)>,
    /// Attributes of the function.
    pub attributes: NamedAttributes,
    /// Types of all values of the body and its regions.
    pub values: Vec<MlirType>,
    /// What it computes; the last op is its return.
    pub body: MlirRegion,
}

/// A list of ops with arguments: one block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirRegion {
    /// What it is given.
    pub arguments: Vec<FunctionValue>,
    /// The last one is its terminator.
    pub operations: Vec<Operation>,
}

/// An op.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    /// With its dialect: `stablehlo.add`.
    pub name: String,
    /// What it takes.
    pub operands: Vec<FunctionValue>,
    /// What it gives.
    pub results: Vec<FunctionValue>,
    /// Its attributes.
    pub attributes: NamedAttributes,
    /// Its regions.
    pub regions: Vec<MlirRegion>,
    /// Where it stands.
    pub place: SourceSpan,
}

/// Where something stands in what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceSpan {
    /// The line in text, from 1; 0 in bytecode.
    pub line: usize,
    /// The column in text, from 1; the byte in bytecode.
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

/// A type.
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
    /// Any other: the text.
    Other(String),
}

/// `tensor<2x?xf32, #stablehlo.bounds<?, 3>>`
#[derive(Clone, Debug, PartialEq)]
pub struct RankedTensorType {
    /// Sizes; `None` is `?`.
    pub dims: Vec<Option<u64>>,
    /// The element type's name.
    pub element: String,
    /// What stands behind the comma.
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

/// An attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// Only its name.
    Unit,
    /// `true`
    Bool(bool),
    /// `3 : i64`
    Int(i128),
    /// `1.5 : f32`, `0x7FC00000 : f32`: the text and the type's name.
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
    /// `#stablehlo<precision HIGHEST>`: kind and word.
    Keyword(String, String),
    /// `#stablehlo.gather<offset_dims = [0]>`: kind and fields.
    Struct(String, NamedAttributes),
    /// `#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>`: the three layouts.
    Convolution([Vec<String>; 3]),
    /// `#sdy.sharding<@mesh, [{"x"}, {}]>`: the mesh and the axes of each dimension; after them [`OPEN`] where more may be
    /// added.
    Sharding(String, Vec<Vec<String>>),
    /// Any other: what names it, and the text.
    Other(String, String),
}

/// Stands behind the axes of a dimension to which more may be added, as in `{"x", ?}`.
pub const OPEN: &str = "?";

/// The axes that are said, without [`OPEN`].
pub fn closed(dims: &[Vec<String>]) -> Vec<Vec<String>> {
    dims.iter().map(|axes| axes.iter().filter(|a| *a != OPEN).cloned().collect()).collect()
}

/// Elements of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseElements {
    /// The array's type.
    pub ty: MlirType,
    /// Its elements.
    pub elements: ElementData,
}

/// Elements as they were written.
#[derive(Clone, Debug, PartialEq)]
pub enum ElementData {
    /// None.
    None,
    /// All are one; of complex types two words.
    Splat(Vec<String>),
    /// The lengths of the nested lists, and all words.
    List(Vec<usize>, Vec<String>),
    /// Little-endian bytes.
    Bytes(Vec<u8>),
    /// In a resource of the module, by name.
    Resource(String),
}
