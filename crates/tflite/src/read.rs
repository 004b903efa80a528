//! Parses a `.tflite` file to a [`TfliteModel`].

use crate::custom_operators::{builtin_code, with_options, with_output_shape};
use crate::flatbuffer_read::{FlatbufferBytes, FlatbufferTable};
use crate::kernels::{TfliteOpRow, row};
use crate::model::{TfliteModel, TfliteOperator, TfliteQuantization, TfliteTensor, broken};
use crate::op::{FieldStorage, TfliteOp};
use crate::schema_names::SCHEMA_NAMES;
use crate::sparse::dense;
use crate::write::dtype_of;
use systole_base::{DType, Error, ErrorKind, Literal, Result, Shape, TensorType, ensure, err};

impl TfliteModel {
    /// Parses a `.tflite` file; `name` is the file name for error messages.
    ///
    /// # Errors
    /// If the bytes are not a .tflite file, truncated or inconsistent, or use an unknown operator or element type. No
    /// input causes a panic, and reading takes at most a few times the file's size.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<TfliteModel> {
        read(bytes).map_err(|e| {
            e.at(name).hint("create or download the file again: the file is truncated or damaged")
        })
    }
}

fn read(bytes: &[u8]) -> Result<TfliteModel> {
    let file = FlatbufferBytes::new(bytes);
    if file.identifier() != Some(b"TFL3") {
        return Err(broken("bytes 4 to 7 are not TFL3".into()).hint("pass a valid .tflite file"));
    }
    let root = file.root()?;
    ensure!(root.int(0)? == Some(3), broken("its schema version is not 3".into()));
    let graphs = root.tables(2)?;
    let codes = root.tables(1)?.iter().map(code).collect::<Result<Vec<_>>>()?;
    check_operators(&graphs, &codes)?;
    let buffers = root.tables(4)?;
    let mut graphs = graphs.iter().map(|table| graph(table, &codes, &buffers)).collect::<Result<Vec<_>>>()?;
    ensure!(!graphs.is_empty(), broken("it has no graph".into()));
    let is_sized_by_data = |o: &TfliteOperator| [TfliteOp::Where, TfliteOp::Unique].contains(&o.op);
    if graphs.len() == 1 && !graphs[0].operators.iter().any(is_sized_by_data) {
        // Otherwise sizes of the file hold: an open one is the batch.
        graphs.iter_mut().flat_map(|graph| &mut graph.tensors).for_each(|t| t.is_dynamic = false);
    }
    let mut model = graphs.remove(0);
    (model.subgraphs, model.description) = (graphs, root.text(3)?);
    for note in root.tables(6)? {
        let at = note.word(1)?.unwrap_or(0) as usize;
        let buffer = buffers.get(at).ok_or_else(|| broken(format!("buffer {at} does not exist")))?;
        model.notes.insert(note.text(0)?, buffer.text(0)?);
    }
    model.check()?;
    Ok(model)
}

/// Reads a graph: its tensors, operators, inputs and outputs.
fn graph(
    table: &FlatbufferTable,
    codes: &[OperatorCode],
    buffers: &[FlatbufferTable],
) -> Result<TfliteModel> {
    let mut tensors = table.tables(0)?.iter().map(|t| tensor(t, buffers)).collect::<Result<Vec<_>>>()?;
    let mut operators = Vec::new();
    for o in table.tables(3)? {
        let custom = code_of(&o, codes)?.2.as_str();
        let mut o = operator(&o, codes)?;
        if builtin_code(custom).is_some() {
            with_output_shape(&mut o, &mut tensors)?;
        }
        operators.push(o);
    }
    let (inputs, outputs) = (indices(&table.ints(1)?)?, indices(&table.ints(2)?)?);
    let is_complex =
        table.tables(0)?.iter().map(|t| Ok(t.byte(1)? == Some(COMPLEX))).collect::<Result<Vec<_>>>()?;
    check_complex(&operators, [&inputs, &outputs].into_iter().flatten(), &is_complex)?;
    Ok(TfliteModel { inputs, outputs, tensors, operators, ..TfliteModel::default() })
}

/// Code, version, and the name of a custom operator.
type OperatorCode = (i32, i32, String);

/// Names all operators of the file that are not supported.
fn check_operators(graphs: &[FlatbufferTable], codes: &[OperatorCode]) -> Result<()> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    for (subgraph, graph) in graphs.iter().enumerate() {
        for (i, o) in graph.tables(3)?.iter().enumerate() {
            let at = o.word(0)?.unwrap_or(0) as usize;
            let Some((code, _, custom)) = codes.get(at).filter(|(code, ..)| row(*code).is_none()) else {
                continue;
            };
            let name = match usize::try_from(*code).ok().and_then(|code| SCHEMA_NAMES.get(code)) {
                Some(&"CUSTOM") => format!("custom `{custom}`"),
                Some(name) => format!("`{name}`"),
                None => format!("number {code}"),
            };
            let place = if subgraph == 0 { i.to_string() } else { format!("{i} of subgraph {subgraph}") };
            match found.iter_mut().find(|(other, _)| *other == name) {
                Some((_, places)) => places.push(place),
                None => found.push((name, vec![place])),
            }
        }
    }
    let names: Vec<String> = found.iter().map(|(name, places)| named(name, places)).collect();
    ensure!(
        found.is_empty(),
        err!(Unsupported, "the file uses unsupported operators: {}", names.join(", "))
            .because("`systole ops --tflite` lists the supported ones")
            .hint("run this file with the LiteRT runtime, or convert the original model to ONNX")
    );
    Ok(())
}

/// `` `MULTINOMIAL` (operators 0, 4, 7 and 12 more) ``
fn named(operator: &str, places: &[String]) -> String {
    const MOST: usize = 3;
    let plural = if places.len() == 1 { "" } else { "s" };
    let more = match places.len().saturating_sub(MOST) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{operator} (operator{plural} {}{more})", places[..places.len().min(MOST)].join(", "))
}

/// Returns code, version and name; support is checked on use.
fn code(table: &FlatbufferTable) -> Result<OperatorCode> {
    let old = table.byte(0)?.map_or(0, |b| i32::from(b as i8));
    let new = table.int(3)?.unwrap_or(0);
    let custom = table.text(1)?;
    let code = builtin_code(&custom).unwrap_or(old.max(new));
    Ok((code, table.int(2)?.unwrap_or(1), custom))
}

fn indices(found: &[i32]) -> Result<Vec<usize>> {
    let one = |&i: &i32| usize::try_from(i).map_err(|_| broken(format!("tensor {i} does not exist")));
    found.iter().map(one).collect()
}

/// Operators that compute complex numbers, or move them without computing.
const OF_COMPLEX: [TfliteOp; 13] = [
    TfliteOp::Rfft2d,
    TfliteOp::Real,
    TfliteOp::Imag,
    TfliteOp::ComplexAbs,
    TfliteOp::Reshape,
    TfliteOp::Transpose,
    TfliteOp::Slice,
    TfliteOp::StridedSlice,
    TfliteOp::Squeeze,
    TfliteOp::ExpandDims,
    TfliteOp::Gather,
    TfliteOp::Pack,
    TfliteOp::Unpack,
];

/// Rejects complex numbers as inputs or outputs of the graph, and for operators that would compute with their bits.
fn check_complex<'a>(
    operators: &[TfliteOperator],
    mut ports: impl Iterator<Item = &'a usize>,
    is_complex: &[bool],
) -> Result<()> {
    let is_complex = |i: &usize| is_complex.get(*i) == Some(&true);
    ensure!(
        !ports.any(is_complex),
        err!(Unsupported, "complex numbers as inputs or outputs are not supported").hint(OTHER_RUNTIME)
    );
    let wrong = operators
        .iter()
        .find(|o| !OF_COMPLEX.contains(&o.op) && o.inputs.iter().flatten().chain(&o.outputs).any(is_complex));
    match wrong {
        Some(o) => Err(err!(Unsupported, "{} of complex numbers is not supported", o.op).hint(OTHER_RUNTIME)),
        None => Ok(()),
    }
}

const OTHER_RUNTIME: &str = "run this file with the LiteRT runtime";

/// Schema code of complex numbers of two floats, which are elements of 8 bytes here.
const COMPLEX: u8 = 8;

/// Schema code of the element type of variables' handles.
const RESOURCE: u8 = 13;

fn tensor(table: &FlatbufferTable, buffers: &[FlatbufferTable]) -> Result<TfliteTensor> {
    let name = table.text(3)?;
    let code = table.byte(1)?.unwrap_or(0);
    // Handles of variables are integers here.
    let dtype = match code {
        RESOURCE => Some(DType::I32),
        COMPLEX => Some(DType::U64),
        _ => dtype_of(code),
    };
    let dtype = dtype.ok_or_else(|| {
        err!(Unsupported, "tensor {name} has unsupported element type code {code}")
            .hint("use a model of f32, int8 or other plain integers")
    })?;
    let size = |&d: &i32| {
        usize::try_from(d).map_err(|_| broken(format!("tensor {name} has invalid dimension size {d}")))
    };
    let dims = table.ints(0)?.iter().map(size).collect::<Result<Vec<_>>>()?;
    let ty = TensorType::new(dtype, Shape::from(dims));
    if ty.shape.checked_elements().and_then(|n| n.checked_mul(dtype.size())).is_none() {
        return Err(broken(format!("the size of tensor {name} overflows")));
    }
    let at = table.word(2)?.unwrap_or(0) as usize;
    let buffer = buffers.get(at).ok_or_else(|| broken(format!("buffer {at} does not exist")))?;
    let bytes = buffer.bytes(0)?.filter(|b| !b.is_empty());
    let is_variable = table.byte(5)?.unwrap_or(0) != 0;
    let data = match (bytes, table.table(6)?) {
        (Some(bytes), Some(sparsity)) => {
            table.spend_dense(ty.bytes())?;
            Some(dense(&ty, bytes, &sparsity))
        }
        (Some(bytes), None) => Some(Literal::from_bytes(ty.clone(), bytes)),
        // The state of a recurrent layer: 0 at the start of each run.
        (None, _) if is_variable => {
            table.spend_dense(ty.bytes())?;
            Some(Ok(Literal::zeros(ty.clone())))
        }
        (None, _) if ty.shape.dims() == [0] => Some(Ok(Literal::zeros(ty.clone()))),
        (None, _) => None,
    };
    let data = data.transpose().map_err(|e| e.at(format!("tensor {name}")))?;
    let quantization = table.table(4)?.map(|q| quantization(&q)).transpose()?.flatten();
    let is_dynamic = table.ints(7)?.contains(&-1) && data.is_none();
    Ok(TfliteTensor { name, ty, data, quantization, is_dynamic, is_variable })
}

fn quantization(table: &FlatbufferTable) -> Result<Option<TfliteQuantization>> {
    let (scale, zero_point) = (table.floats(2)?, table.longs(3)?);
    let dimension = table.int(6)?.unwrap_or(0);
    let dimension =
        usize::try_from(dimension).map_err(|_| broken(format!("dimension {dimension} does not exist")))?;
    Ok((!scale.is_empty()).then_some(TfliteQuantization { scale, zero_point, dimension }))
}

/// Returns the operator code that an operator refers to.
fn code_of<'a>(table: &FlatbufferTable, codes: &'a [OperatorCode]) -> Result<&'a OperatorCode> {
    let at = table.word(0)?.unwrap_or(0) as usize;
    codes.get(at).ok_or_else(|| broken(format!("operator code {at} does not exist")))
}

fn operator(table: &FlatbufferTable, codes: &[OperatorCode]) -> Result<TfliteOperator> {
    let (code, version, custom) = code_of(table, codes)?;
    let row = row(*code).ok_or_else(|| broken(format!("unknown operator code {code}")))?;
    let mut o = TfliteOperator::new(row.op, [], indices(&table.ints(2)?)?);
    o.version = *version;
    for i in table.ints(1)? {
        let index =
            (i != -1).then(|| usize::try_from(i).map_err(|_| broken(format!("tensor {i} does not exist"))));
        o.inputs.push(index.transpose()?);
    }
    if builtin_code(custom).is_some() {
        return with_options(o, table.bytes(5)?.unwrap_or_default());
    }
    let union = table.byte(3)?.unwrap_or(0);
    let Some(options) = table.table(4)?.filter(|_| union != 0) else { return Ok(o) };
    refuse_other_options(row, &options, union)?;
    for &(slot, field) in row.fields {
        let value = match field.stored() {
            FieldStorage::Byte => options.byte(slot)?.map(|b| f64::from(b as i8)),
            FieldStorage::Int => options.int(slot)?.map(f64::from),
            FieldStorage::Float => options.word(slot)?.map(|w| f64::from(f32::from_bits(w))),
            FieldStorage::Text => options.bytes(slot)?.map(|name| f64::from(hash(name))),
            FieldStorage::List => {
                let list = options.ints(slot)?;
                if !list.is_empty() {
                    o = o.with_list(field, list);
                }
                None
            }
        };
        if let Some(value) = value {
            o = o.with(field, value);
        }
    }
    Ok(o)
}

/// Hashes the name of a variable (FNV-1a), which is all that is needed of it.
fn hash(name: &[u8]) -> i32 {
    name.iter().fold(0x811c_9dc5u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193)) as i32
}

/// Redundant fields: the tensors contain the type of a bias and the size of a resized image.
const WITHOUT_EFFECT: [(TfliteOp, u16); 8] = [
    (TfliteOp::Conv2D, 6),
    (TfliteOp::FullyConnected, 4),
    (TfliteOp::Cast, 0),
    (TfliteOp::Cast, 1),
    (TfliteOp::VarHandle, 0),
    (TfliteOp::SparseToDense, 0),
    (TfliteOp::ResizeBilinear, 0),
    (TfliteOp::ResizeBilinear, 1),
];
/// More fields than any table of options has.
const MOST_FIELDS: u16 = 16;

/// Returns an error for options that the operator's row does not list and that are not 0, the default of almost all.
fn refuse_other_options(row: &TfliteOpRow, options: &FlatbufferTable, union: u8) -> Result<()> {
    let unsupported = |what: String| {
        Error::new(ErrorKind::Unsupported, what)
            .because("the options change what the operator computes")
            .hint("run this file with the LiteRT runtime")
    };
    if union != row.union && !row.fields.is_empty() {
        let name = row.op;
        return Err(unsupported(format!(
            "operator {name} has options of type {union}, expected {}",
            row.union
        )));
    }
    for id in 0..MOST_FIELDS {
        let is_known =
            row.fields.iter().any(|(slot, _)| *slot == id) || WITHOUT_EFFECT.contains(&(row.op, id));
        if !is_known && options.byte(id)?.is_some_and(|value| value != 0) {
            return Err(unsupported(format!("operator {} has the unknown option number {id}", row.op)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flatbuffer_write::{FlatbufferField, FlatbufferNode, file};

    #[test]
    fn options_that_nobody_reads_are_refused_unless_they_are_0() {
        let refused = |op: TfliteOp, union: u8, fields: &[(u16, u8)]| {
            let fields = fields.iter().map(|(id, value)| (*id, FlatbufferField::Byte(*value)));
            let bytes = file(b"TEST", &FlatbufferNode::Table(fields.collect()));
            let parsed = FlatbufferBytes::new(&bytes);
            let options = parsed.root().unwrap();
            refuse_other_options(row(op.code()).unwrap(), &options, union).map_err(|e| e.what().to_string())
        };
        // STRIDED_SLICE: five masks and `offset`.
        assert_eq!(refused(TfliteOp::StridedSlice, 32, &[(4, 1), (5, 1), (6, 0)]), Ok(()));
        let what = refused(TfliteOp::StridedSlice, 32, &[(6, 1)]).unwrap_err();
        assert_eq!(what, "operator STRIDED_SLICE has the unknown option number 6");
        let what = refused(TfliteOp::Softmax, 8, &[]).unwrap_err();
        assert_eq!(what, "operator SOFTMAX has options of type 8, expected 9");
        assert_eq!(refused(TfliteOp::FullyConnected, 8, &[(4, 2)]), Ok(()));
        assert_eq!(refused(TfliteOp::Exp, 33, &[]), Ok(()));
    }

    #[test]
    fn all_unsupported_operators_are_named_at_once() {
        let table = |fields: Vec<(u16, FlatbufferField)>| FlatbufferNode::Table(fields);
        let node = |node: FlatbufferNode| FlatbufferField::Node(node);
        let code = |code: i32, custom: &str| {
            table(vec![(1, node(FlatbufferNode::Text(custom.into()))), (3, FlatbufferField::int(code))])
        };
        let codes = vec![code(149, ""), code(0, ""), code(32, "Landmarks"), code(999, "")];
        let operators = [0, 1, 2, 3, 0].map(|at| table(vec![(0, FlatbufferField::int(at))]));
        let graph = table(vec![(3, node(FlatbufferNode::List(operators.into())))]);
        let file = file(
            b"TFL3",
            &table(vec![
                (0, FlatbufferField::Word(3)),
                (1, node(FlatbufferNode::List(codes))),
                (2, node(FlatbufferNode::List(vec![graph]))),
            ]),
        );
        let e = TfliteModel::from_bytes("m.tflite", &file).unwrap_err();
        let what = e.to_string();
        for name in [
            "`MULTINOMIAL` (operators 0, 4)",
            "custom `Landmarks` (operator 2)",
            "number 999",
            "m.tflite",
            "LiteRT",
        ] {
            assert!(what.contains(name), "{what}");
        }
        assert_eq!((e.kind(), what.contains("ADD")), (ErrorKind::Unsupported, false));
    }
}
