//! Parses a `.tflite` file to a [`TfliteModel`].

use crate::flatbuffer_read::{FlatbufferBytes, FlatbufferTable};
use crate::kernels::{TfliteOpRow, row};
use crate::model::{TfliteModel, TfliteOperator, TfliteQuantization, TfliteTensor, broken};
use crate::op::{FieldStorage, TfliteOp};
use crate::write::dtype_of;
use systole_base::{Error, ErrorKind, Literal, Result, Shape, TensorType, ensure, err};

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
    let [graph] = &graphs[..] else {
        return Err(err!(Unsupported, "unsupported model with {} graphs", graphs.len())
            .hint("use a model with one graph: control flow is not supported"));
    };
    let codes = root.tables(1)?.iter().map(code).collect::<Result<Vec<_>>>()?;
    let buffers = root.tables(4)?;
    let tensors = graph.tables(0)?.iter().map(|t| tensor(t, &buffers)).collect::<Result<Vec<_>>>()?;
    let operators = graph.tables(3)?.iter().map(|o| operator(o, &codes)).collect::<Result<Vec<_>>>()?;
    let mut model = TfliteModel {
        description: root.text(3)?,
        inputs: indices(&graph.ints(1)?)?,
        outputs: indices(&graph.ints(2)?)?,
        tensors,
        operators,
        ..TfliteModel::default()
    };
    for note in root.tables(6)? {
        let at = note.word(1)?.unwrap_or(0) as usize;
        let buffer = buffers.get(at).ok_or_else(|| broken(format!("buffer {at} does not exist")))?;
        model.notes.insert(note.text(0)?, buffer.text(0)?);
    }
    model.check()?;
    Ok(model)
}

/// Returns code and version; support is checked on use.
fn code(table: &FlatbufferTable) -> Result<(i32, i32, String)> {
    let old = table.byte(0)?.map_or(0, |b| i32::from(b as i8));
    let new = table.int(3)?.unwrap_or(0);
    Ok((old.max(new), table.int(2)?.unwrap_or(1), table.text(1)?))
}

fn indices(found: &[i32]) -> Result<Vec<usize>> {
    let one = |&i: &i32| usize::try_from(i).map_err(|_| broken(format!("tensor {i} does not exist")));
    found.iter().map(one).collect()
}

fn tensor(table: &FlatbufferTable, buffers: &[FlatbufferTable]) -> Result<TfliteTensor> {
    let name = table.text(3)?;
    let code = table.byte(1)?.unwrap_or(0);
    let dtype = dtype_of(code).ok_or_else(|| {
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
    let data = bytes.map(|b| Literal::from_bytes(ty.clone(), b)).transpose();
    let data = data.map_err(|e| e.at(format!("tensor {name}")))?;
    let quantization = table.table(4)?.map(|q| quantization(&q)).transpose()?.flatten();
    Ok(TfliteTensor { name, ty, data, quantization })
}

fn quantization(table: &FlatbufferTable) -> Result<Option<TfliteQuantization>> {
    let (scale, zero_point) = (table.floats(2)?, table.longs(3)?);
    let dimension = table.int(6)?.unwrap_or(0);
    let dimension =
        usize::try_from(dimension).map_err(|_| broken(format!("dimension {dimension} does not exist")))?;
    Ok((!scale.is_empty()).then_some(TfliteQuantization { scale, zero_point, dimension }))
}

fn operator(table: &FlatbufferTable, codes: &[(i32, i32, String)]) -> Result<TfliteOperator> {
    let at = table.word(0)?.unwrap_or(0) as usize;
    let (code, version, custom) =
        codes.get(at).ok_or_else(|| broken(format!("operator code {at} does not exist")))?;
    let row = row(*code).ok_or_else(|| {
        let what = match custom.as_str() {
            "" => format!("unknown operator code {code}"),
            custom => format!("unsupported custom operator {custom}"),
        };
        Error::new(ErrorKind::Unsupported, what).hint("run this file with the LiteRT runtime")
    })?;
    let mut o = TfliteOperator::new(row.op, [], indices(&table.ints(2)?)?);
    o.version = *version;
    for i in table.ints(1)? {
        let index =
            (i != -1).then(|| usize::try_from(i).map_err(|_| broken(format!("tensor {i} does not exist"))));
        o.inputs.push(index.transpose()?);
    }
    let union = table.byte(3)?.unwrap_or(0);
    let Some(options) = table.table(4)?.filter(|_| union != 0) else { return Ok(o) };
    refuse_other_options(row, &options, union)?;
    for &(slot, field) in row.fields {
        let value = match field.stored() {
            FieldStorage::Byte => options.byte(slot)?.map(|b| f64::from(b as i8)),
            FieldStorage::Int => options.int(slot)?.map(f64::from),
            FieldStorage::Float => options.word(slot)?.map(|w| f64::from(f32::from_bits(w))),
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

/// Redundant fields: the tensors contain the type of a bias and the size of a resized image.
const WITHOUT_EFFECT: [(TfliteOp, u16); 4] = [
    (TfliteOp::Conv2D, 6),
    (TfliteOp::FullyConnected, 4),
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
        // STRIDED_SLICE: five masks, then `offset`, which changes the meaning of `end`.
        assert_eq!(refused(TfliteOp::StridedSlice, 32, &[(4, 1), (5, 0)]), Ok(()));
        let what = refused(TfliteOp::StridedSlice, 32, &[(5, 1)]).unwrap_err();
        assert_eq!(what, "operator STRIDED_SLICE has the unknown option number 5");
        let what = refused(TfliteOp::Softmax, 8, &[]).unwrap_err();
        assert_eq!(what, "operator SOFTMAX has options of type 8, expected 9");
        assert_eq!(refused(TfliteOp::FullyConnected, 8, &[(4, 2)]), Ok(()));
        assert_eq!(refused(TfliteOp::Exp, 33, &[]), Ok(()));
    }
}
