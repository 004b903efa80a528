//! Parses an ONNX file to an [`OnnxModel`], including external data.

use crate::model::{
    DimSize, OnnxAttribute, OnnxFunction, OnnxGraph, OnnxModel, OnnxNode, ValueInfo, broken, dtype_of,
};
use crate::ops::checked;
use crate::protobuf::{add_fixed, add_ints, content, number, text};
use std::collections::{BTreeMap, btree_map::Entry};
use systole_base::{DType, Error, Literal, Result, Shape, TensorType, ensure, err};
use systole_runtime::protobuf::{ProtoValue, fields};

/// Function that reads an external data file of an ONNX model by the name that the model uses for it.
pub type ExternalData<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>>;

/// Maximum depth of nested graphs.
const MOST_NESTED: usize = 32;

/// Maximum total bytes of external data.
const MOST_BESIDE: usize = 1 << 36;

impl OnnxModel {
    /// Whether a file that starts with these bytes is ONNX: there is no magic number, but the first two fields are
    /// always the same.
    pub fn is_onnx(start: &[u8]) -> bool {
        let [0x08, 3..=0x20, next, ..] = start else { return false };
        matches!(next, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42)
    }

    /// Parses an ONNX model without external data; `name` is the file name for error messages.
    ///
    /// # Errors
    /// See [`OnnxModel::from_parts`]; also if a constant is in an external file.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<OnnxModel> {
        OnnxModel::from_parts(name, bytes, &|file| {
            Err(err!(Unsupported, "constants are in an external file, {file}")
                .hint("pass the model's path, with that file in the same directory"))
        })
    }

    /// Parses an ONNX model with external data; `name` is the file name for error messages.
    ///
    /// # Errors
    /// If the bytes are not ONNX, truncated or inconsistent, or external data cannot be read. No input causes a panic,
    /// and reading takes at most 128 times the files' size.
    pub fn from_parts(name: &str, bytes: &[u8], beside: ExternalData) -> Result<OnnxModel> {
        let mut reader = OnnxReader { beside, files: BTreeMap::new(), left: MOST_BESIDE, depth: 0 };
        reader.model(bytes).map_err(|e| {
            e.at(name).hint("create or download the ONNX file again: it is truncated or damaged")
        })
    }
}

/// Parses one model.
struct OnnxReader<'a> {
    beside: ExternalData<'a>,
    files: BTreeMap<String, Vec<u8>>,
    left: usize,
    /// Number of graphs around the current one.
    depth: usize,
}

impl OnnxReader<'_> {
    fn model(&mut self, bytes: &[u8]) -> Result<OnnxModel> {
        let mut model = OnnxModel::default();
        let mut graph = None;
        for field in fields(bytes) {
            match field? {
                (1, value) => model.ir_version = number(value)?,
                (2, value) => model.producer = text(value)?,
                (7, value) => graph = Some(content(value)?),
                (8, value) => {
                    let (domain, version) = named(value, 2, number)?;
                    if domain.is_empty() || domain == "ai.onnx" {
                        model.opset = version;
                    }
                }
                (14, value) => model.notes.extend([named(value, 2, text)?]),
                (25, value) => model.functions.push(self.function(content(value)?)?),
                _ => {}
            }
        }
        let graph = graph.ok_or_else(|| broken("the model has no graph").hint("pass a valid .onnx file"))?;
        ensure!(model.opset >= 1, broken("the opset version is missing"));
        model.graph = self.graph(graph)?;
        Ok(model)
    }

    fn graph(&mut self, bytes: &[u8]) -> Result<OnnxGraph> {
        let mut g = OnnxGraph::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => g.nodes.push(self.node(value)?),
                (2, value) => g.name = text(value)?,
                (5, value) => {
                    let (name, value) = self.tensor(content(value)?)?;
                    match g.constants.entry(name) {
                        Entry::Vacant(slot) => drop(slot.insert(value)),
                        Entry::Occupied(slot) => {
                            return Err(broken(format!("duplicate constant {}", slot.key())));
                        }
                    }
                }
                (11, value) => g.inputs.push(port(value)?),
                (12, value) => g.outputs.push(port(value)?),
                (15, _) => {
                    return Err(err!(Unsupported, "sparse constants are not supported"));
                }
                _ => {}
            }
        }
        Ok(g)
    }

    fn function(&mut self, bytes: &[u8]) -> Result<OnnxFunction> {
        let mut f = OnnxFunction::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => f.name = text(value)?,
                (4, value) => f.inputs.push(text(value)?),
                (5, value) => f.outputs.push(text(value)?),
                (7, value) => f.nodes.push(self.node(value)?),
                (9, value) => {
                    let (domain, version) = named(value, 2, number)?;
                    if domain.is_empty() || domain == "ai.onnx" {
                        f.opset = version;
                    }
                }
                (10, value) => f.domain = text(value)?,
                (11, value) => f.defaults.extend([self.attribute(content(value)?)?]),
                _ => {}
            }
        }
        Ok(f)
    }

    fn nested(&mut self, bytes: &[u8]) -> Result<OnnxGraph> {
        if self.depth == MOST_NESTED {
            return Err(broken(format!("graphs are nested more than {MOST_NESTED} levels deep")));
        }
        self.depth += 1;
        let graph = self.graph(bytes);
        self.depth -= 1;
        graph
    }

    fn node(&mut self, value: ProtoValue) -> Result<OnnxNode> {
        let mut n = OnnxNode::default();
        for field in fields(content(value)?) {
            match field? {
                (1, value) => n.inputs.push(text(value)?),
                (2, value) => n.outputs.push(text(value)?),
                (3, value) => n.name = text(value)?,
                (4, value) => n.op = text(value)?,
                (5, value) => {
                    let (name, attribute) = self.attribute(content(value)?)?;
                    n.attributes.insert(name, attribute);
                }
                (7, value) => n.domain = text(value)?,
                _ => {}
            }
        }
        ensure!(!n.op.is_empty(), broken("a node has no operator type"));
        Ok(n)
    }

    fn attribute(&mut self, bytes: &[u8]) -> Result<(String, OnnxAttribute)> {
        let (mut name, mut kind, mut single, mut reference) = (String::new(), 0, None, None);
        let (mut ints, mut floats, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for field in fields(bytes) {
            match field? {
                (1, value) => name = text(value)?,
                (2, value) => single = Some(OnnxAttribute::Float(f32::from_bits(number(value)? as u32))),
                (3, value) => single = Some(OnnxAttribute::Int(number(value)?)),
                (4, value) => single = Some(OnnxAttribute::Text(text(value)?)),
                (5, value) => single = Some(OnnxAttribute::Tensor(self.tensor(content(value)?)?.1)),
                (6, value) => single = Some(OnnxAttribute::Graph(Box::new(self.nested(content(value)?)?))),
                (10..20, _) => single = Some(OnnxAttribute::Other),
                (7, value) => add_fixed::<4>(&mut floats, value),
                (8, value) => add_ints(&mut ints, value)?,
                (9, value) => texts.push(text(value)?),
                (20, value) => kind = number(value)?,
                (21, value) => reference = Some(text(value)?).filter(|name| !name.is_empty()),
                _ => {}
            }
        }
        if !floats.len().is_multiple_of(4) {
            return Err(broken(format!("attribute `{name}`: the list of floats is truncated")));
        }
        if let Some(other) = reference {
            return Ok((name, OnnxAttribute::Reference(other)));
        }
        let of_kind = match kind {
            6 => Some(OnnxAttribute::Floats(f32s(&floats))),
            7 => Some(OnnxAttribute::Ints(ints.clone())),
            8 => Some(OnnxAttribute::Texts(texts.clone())),
            _ => None,
        };
        // Early files omit the attribute's type, and zero fields may be omitted.
        let value = of_kind.or(single).unwrap_or_else(|| match kind {
            1 => OnnxAttribute::Float(0.0),
            2 => OnnxAttribute::Int(0),
            3 => OnnxAttribute::Text(String::new()),
            _ if !ints.is_empty() => OnnxAttribute::Ints(ints),
            _ if !floats.is_empty() => OnnxAttribute::Floats(f32s(&floats)),
            _ if !texts.is_empty() => OnnxAttribute::Texts(texts),
            _ => OnnxAttribute::Other,
        });
        Ok((name, value))
    }

    fn tensor(&mut self, bytes: &[u8]) -> Result<(String, Literal)> {
        let mut t = TensorProto::default();
        for field in fields(bytes) {
            match field? {
                (1, value) => add_ints(&mut t.dims, value)?,
                (2, value) => t.code = number(value)?,
                (4, value) => add_fixed::<4>(&mut t.bytes, value),
                (5 | 7 | 11, value) => add_ints(&mut t.ints, value)?,
                (8, value) => t.name = text(value)?,
                (9, value) => t.bytes = content(value)?.to_vec(),
                (10, value) => add_fixed::<8>(&mut t.bytes, value),
                (13, value) => t.place.extend([named(value, 2, text)?]),
                (14, value) => t.is_beside = number(value)? == 1,
                _ => {}
            }
        }
        let place = format!("constant {}", t.name);
        let name = t.name.clone();
        let value = self.literal(t).map_err(|e| e.at(place))?;
        Ok((name, value))
    }

    fn literal(&mut self, t: TensorProto) -> Result<Literal> {
        let dtype = dtype_of(t.code).ok_or_else(|| {
            err!(Unsupported, "unsupported ONNX element type {}", t.code)
                .hint("supported are floats of 16 or more bits, integers of 8 or more bits, and bools")
        })?;
        let size = |&d: &i64| usize::try_from(d).map_err(|_| broken(format!("invalid dimension size {d}")));
        let dims = checked(t.dims.iter().map(size).collect::<Result<Vec<_>>>()?)?;
        let ty = TensorType::new(dtype, Shape::from(dims));
        let size = ty.shape.checked_elements().and_then(|n| n.checked_mul(dtype.size()));
        let size = size.ok_or_else(|| broken("the array size overflows"))?;
        let bytes = match () {
            () if t.is_beside => self.beside(&t.place, size)?,
            () if !t.ints.is_empty() => t.ints.iter().flat_map(|&v| of_int(v, dtype)).collect(),
            () => t.bytes,
        };
        ensure!(bytes.len() == size, broken(format!("{ty} has {} bytes, expected {size}", bytes.len())));
        ensure!(dtype != DType::Bool || bytes.iter().all(|b| *b <= 1), broken("a bool is neither 0 nor 1"));
        Literal::from_bytes(ty, &bytes)
    }

    /// Reads a constant from an external data file.
    fn beside(&mut self, place: &BTreeMap<String, String>, size: usize) -> Result<Vec<u8>> {
        let file = place.get("location").cloned().unwrap_or_default();
        let own = std::path::Path::new(&file);
        let is_plain = own.components().all(|c| matches!(c, std::path::Component::Normal(_)));
        if file.is_empty() || !is_plain {
            return Err(broken(format!(
                "invalid external data location `{file}`: expected a relative path inside the model's directory"
            )));
        }
        let word = |key: &str| place.get(key).map(|w| w.parse::<usize>()).transpose();
        let wrong = |_| broken("offset or length of external data must be a number");
        let from = word("offset").map_err(wrong)?.unwrap_or(0);
        let length = word("length").map_err(wrong)?.unwrap_or(size);
        self.left = self.left.checked_sub(length).ok_or_else(|| broken("the constants are too large"))?;
        if !self.files.contains_key(&file) {
            let bytes = (self.beside)(&file)?;
            self.left = self.left.min(bytes.len().saturating_mul(4).saturating_add(1 << 16));
            self.files.insert(file.clone(), bytes);
        }
        let bytes = self.files.get(&file).map_or(&[][..], Vec::as_slice);
        let end = from.checked_add(length);
        let found = end.and_then(|end| bytes.get(from..end)).map(<[u8]>::to_vec);
        found.ok_or_else(|| {
            broken(format!("external data file {file} ends before byte {}", from.saturating_add(length)))
        })
    }
}

/// A TensorProto as read from the file.
#[derive(Default)]
struct TensorProto {
    name: String,
    code: i64,
    dims: Vec<i64>,
    ints: Vec<i64>,
    bytes: Vec<u8>,
    is_beside: bool,
    place: BTreeMap<String, String>,
}

/// Encodes an integer, or the bits of a narrow float, as an element's bytes.
fn of_int(v: i64, dtype: DType) -> impl Iterator<Item = u8> {
    v.to_le_bytes().into_iter().take(dtype.size())
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Reads a name and the value of another field.
fn named<T: Default>(
    value: ProtoValue,
    other: u64,
    read: fn(ProtoValue) -> Result<T>,
) -> Result<(String, T)> {
    let mut both = (String::new(), T::default());
    for field in fields(content(value)?) {
        match field? {
            (1, value) => both.0 = text(value)?,
            (field, value) if field == other => both.1 = read(value)?,
            _ => {}
        }
    }
    Ok(both)
}

fn port(value: ProtoValue) -> Result<ValueInfo> {
    let mut p = ValueInfo::default();
    for field in fields(content(value)?) {
        match field? {
            (1, value) => p.name = text(value)?,
            (2, value) => {
                for field in fields(content(value)?) {
                    let (kind, value) = field?;
                    ensure!(kind == 1, not_a_tensor(kind, &p.name));
                    tensor_type(value, &mut p)?;
                }
            }
            _ => {}
        }
    }
    Ok(p)
}

/// Returns the error for an input or output of another type than a tensor.
fn not_a_tensor(kind: u64, name: &str) -> Error {
    let of_kind = match kind {
        4 => "a sequence",
        5 => "a map",
        8 => "a sparse tensor",
        9 => "an optional value",
        _ => "a value of unknown type",
    };
    err!(Unsupported, "{of_kind} is not a tensor").at(format!("the ONNX graph's input or output {name}"))
}

fn tensor_type(value: ProtoValue, p: &mut ValueInfo) -> Result<()> {
    for field in fields(content(value)?) {
        match field? {
            (1, value) => p.dtype = dtype_of(number(value)?),
            (2, value) => {
                let mut sizes = Vec::new();
                for field in fields(content(value)?) {
                    if let (1, value) = field? {
                        sizes.push(size(value)?);
                    }
                }
                p.sizes = Some(sizes);
            }
            _ => {}
        }
    }
    Ok(())
}

fn size(value: ProtoValue) -> Result<DimSize> {
    let mut size = DimSize::Open;
    for field in fields(content(value)?) {
        match field? {
            // Some writers use −1 for an unknown size.
            (1, value) => size = usize::try_from(number(value)?).map_or(DimSize::Open, DimSize::Known),
            (2, value) => size = DimSize::Named(text(value)?),
            _ => {}
        }
    }
    Ok(match size {
        DimSize::Named(name) if name.is_empty() => DimSize::Open,
        size => size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_runtime::protobuf::ProtoMessage;

    fn reader() -> OnnxReader<'static> {
        OnnxReader { beside: &|file| Err(broken(file)), files: BTreeMap::new(), left: 0, depth: 0 }
    }

    #[test]
    fn a_function_has_the_version_of_its_default_domain() {
        let import = |domain: &str, version| ProtoMessage::default().text(1, domain).int(2, version);
        for domain in ["", "ai.onnx"] {
            let function = ProtoMessage::default()
                .text(1, "Gelu")
                .text(4, "x")
                .text(5, "y")
                .message(9, import(domain, 17))
                .message(9, import("com.example", 3))
                .text(10, "com.example");
            let expected = OnnxFunction {
                name: "Gelu".into(),
                domain: "com.example".into(),
                inputs: vec!["x".into()],
                outputs: vec!["y".into()],
                opset: 17,
                ..OnnxFunction::default()
            };
            assert_eq!(reader().function(&function.done()).unwrap(), expected);
        }
    }

    #[test]
    fn attributes_without_a_type_have_that_of_their_values() {
        let read = |write: fn(ProtoMessage) -> ProtoMessage| {
            let attribute = write(ProtoMessage::default().text(1, "a"));
            reader().attribute(&attribute.done()).unwrap()
        };
        let named = |value| ("a".to_string(), value);
        assert_eq!(read(|a| a.packed(8, [2, 128])), named(OnnxAttribute::Ints(vec![2, 128])));
        assert_eq!(read(|a| a.floats(7, &[0.5, -2.0])), named(OnnxAttribute::Floats(vec![0.5, -2.0])));
        assert_eq!(read(|a| a.text(9, "b")), named(OnnxAttribute::Texts(vec!["b".into()])));
        assert_eq!(read(|a| a.int(3, 7)), named(OnnxAttribute::Int(7)));
        assert_eq!(read(|a| a.int(20, 2)), named(OnnxAttribute::Int(0)));
        assert_eq!(read(|a| a), named(OnnxAttribute::Other));
    }
}
