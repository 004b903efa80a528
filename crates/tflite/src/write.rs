//! Serializes a [`TfliteModel`] to the bytes of a `.tflite` file.

use crate::flatbuffer_write::{FlatbufferField, FlatbufferNode, file};
use crate::kernels::{OperandTypes, TfliteOpRow, row};
use crate::model::{TfliteModel, TfliteOperator, TfliteQuantization, TfliteTensor, broken};
use crate::op::FieldStorage;
use systole_base::{DType, Result, err};

/// Returns the schema code of an element type.
pub(crate) fn code_of(dtype: DType) -> Option<u8> {
    TYPES.iter().find(|(d, _)| *d == dtype).map(|(_, code)| *code)
}

/// Returns the element type of a schema code.
pub(crate) fn dtype_of(code: u8) -> Option<DType> {
    TYPES.iter().find(|(_, c)| *c == code).map(|(dtype, _)| *dtype)
}

const TYPES: &[(DType, u8)] = &[
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::I32, 2),
    (DType::U8, 3),
    (DType::I64, 4),
    (DType::Bool, 6),
    (DType::I16, 7),
    (DType::I8, 9),
    (DType::F64, 10),
    (DType::U32, 15),
    (DType::U16, 16),
];

impl TfliteModel {
    /// Returns the bytes of the `.tflite` file. Operators with version 0 get the lowest version that supports their
    /// types.
    ///
    /// # Errors
    /// If the graph is invalid ([`TfliteModel::check`]), or an element type has no schema code.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        if !self.subgraphs.is_empty() {
            return Err(err!(
                Unsupported,
                "cannot write a .tflite file with {} graphs",
                1 + self.subgraphs.len()
            )
            .hint("use the original file"));
        }
        let mut codes: Vec<(i32, i32)> = Vec::new();
        let mut operators = Vec::new();
        for o in &self.operators {
            let row = row(o.op.code()).ok_or_else(|| broken(format!("unknown operator {}", o.op)))?;
            let code = (o.op.code(), version(self, o, row));
            let index = codes.iter().position(|c| *c == code).unwrap_or_else(|| {
                codes.push(code);
                codes.len() - 1
            });
            operators.push(operator(o, row, index));
        }
        // Buffer 0 is empty: for tensors that are not constants.
        let mut buffers = vec![FlatbufferNode::Table(Vec::new())];
        let mut tensors = Vec::new();
        for t in &self.tensors {
            tensors.push(tensor(t, &mut buffers)?);
        }
        let mut metadata = Vec::new();
        for (name, note) in &self.notes {
            let buffer = FlatbufferField::int(buffers.len() as i32);
            buffers.push(bytes(note.as_bytes()));
            metadata.push(FlatbufferNode::Table(vec![(0, text(name)), (1, buffer)]));
        }
        let graph = vec![
            (0, list(tensors)),
            (1, ints(&self.inputs)),
            (2, ints(&self.outputs)),
            (3, list(operators)),
            (4, text("main")),
        ];
        let mut root = vec![
            (0, FlatbufferField::Word(3)),
            (1, list(codes.iter().map(code).collect())),
            (2, list(vec![FlatbufferNode::Table(graph)])),
            (3, text(&self.description)),
            (4, list(buffers)),
        ];
        if !metadata.is_empty() {
            root.push((6, list(metadata)));
        }
        Ok(file(b"TFL3", &FlatbufferNode::Table(root)))
    }
}

fn text(text: &str) -> FlatbufferField {
    FlatbufferField::Node(FlatbufferNode::Text(text.into()))
}

fn list(nodes: Vec<FlatbufferNode>) -> FlatbufferField {
    FlatbufferField::Node(FlatbufferNode::List(nodes))
}

fn ints(values: &[usize]) -> FlatbufferField {
    FlatbufferField::Node(FlatbufferNode::Ints(values.iter().map(|&v| v as i32).collect()))
}

fn bytes(bytes: &[u8]) -> FlatbufferNode {
    FlatbufferNode::Table(vec![(0, FlatbufferField::Node(FlatbufferNode::Bytes(bytes.into())))])
}

/// Returns the operator version to write: the lowest that works, since compilers of 2021 reject later ones.
fn version(model: &TfliteModel, o: &TfliteOperator, row: &TfliteOpRow) -> i32 {
    if o.version > 0 { o.version } else { (row.version)(&OperandTypes::new(model, o, row.versions)) }
}

/// Old readers only know the one-byte field.
fn code(&(code, version): &(i32, i32)) -> FlatbufferNode {
    FlatbufferNode::Table(vec![
        (0, FlatbufferField::Byte(code.min(127) as u8)),
        (2, FlatbufferField::int(version)),
        (3, FlatbufferField::int(code)),
    ])
}

fn operator(o: &TfliteOperator, row: &TfliteOpRow, index: usize) -> FlatbufferNode {
    let inputs: Vec<i32> = o.inputs.iter().map(|i| i.map_or(-1, |i| i as i32)).collect();
    let mut fields = vec![
        (0, FlatbufferField::int(index as i32)),
        (1, FlatbufferField::Node(FlatbufferNode::Ints(inputs))),
        (2, ints(&o.outputs)),
    ];
    if row.union != 0 {
        fields.push((3, FlatbufferField::Byte(row.union)));
        fields.push((4, FlatbufferField::Node(FlatbufferNode::Table(options(o, row)))));
    }
    FlatbufferNode::Table(fields)
}

fn options(o: &TfliteOperator, row: &TfliteOpRow) -> Vec<(u16, FlatbufferField)> {
    let field = |&(slot, field): &(u16, crate::op::OptionField)| {
        let number = o.number(field);
        let value = match field.stored() {
            FieldStorage::List if o.list(field).is_empty() => return None,
            FieldStorage::List => FlatbufferField::Node(FlatbufferNode::Ints(o.list(field).to_vec())),
            _ if number == field.default() => return None,
            // The name itself is not kept; its hash names the same variables.
            FieldStorage::Text => text(&format!("variable {number}")),
            FieldStorage::Byte => FlatbufferField::Byte(number as i8 as u8),
            FieldStorage::Int => FlatbufferField::int(number as i32),
            FieldStorage::Float => FlatbufferField::Word((number as f32).to_bits()),
        };
        Some((slot, value))
    };
    row.fields.iter().filter_map(field).collect()
}

fn tensor(t: &TfliteTensor, buffers: &mut Vec<FlatbufferNode>) -> Result<FlatbufferNode> {
    let code = code_of(t.ty.dtype).ok_or_else(|| {
        err!(Unsupported, "cannot store tensor {} of type {} in a .tflite file", t.name, t.ty)
    })?;
    let mut fields = vec![
        (0, ints(t.dims())),
        (1, FlatbufferField::Byte(code)),
        (3, text(&t.name)),
        (8, FlatbufferField::Byte(1)),
    ];
    if t.is_variable {
        fields.push((5, FlatbufferField::Byte(1)));
    } else if let Some(data) = &t.data {
        fields.push((2, FlatbufferField::int(buffers.len() as i32)));
        buffers.push(bytes(data.bytes()));
    }
    if let Some(q) = &t.quantization {
        fields.push((4, FlatbufferField::Node(FlatbufferNode::Table(quantization(q)))));
    }
    Ok(FlatbufferNode::Table(fields))
}

fn quantization(q: &TfliteQuantization) -> Vec<(u16, FlatbufferField)> {
    vec![
        (2, FlatbufferField::Node(FlatbufferNode::Floats(q.scale.clone()))),
        (3, FlatbufferField::Node(FlatbufferNode::Longs(q.zero_point.clone()))),
        (6, FlatbufferField::int(q.dimension as i32)),
    ]
}
