//! Exports a TFLite graph as an ONNX model: float operators as they are, int8 operators in QDQ form (QuantizeLinear and
//! DequantizeLinear around float operators), which runtimes fuse to integer operators.

use crate::model::{DimSize, OnnxModel, ValueInfo};
use crate::ops::{
    BatchCheck, ChannelOrder, OnnxBuilder, OnnxRecurrent, TfliteSource, export_of, write_recurrent,
};
use systole_base::{Result, ResultExt, err};
use systole_tflite::{TfliteModel as Lite, TfliteOp, TfliteOperator};

/// Opset version that exported ONNX models have.
pub const OPSET: i64 = 17;

/// IR version (file format) that exported ONNX models have.
pub const IR_VERSION: i64 = 8;

/// Name of the batch dimension in exported ONNX models.
pub const BATCH: &str = "N";

/// Exports a TFLite graph as an ONNX model with the same inputs and outputs; images are `[N, H, W, C]`. The batch
/// dimension is symbolic (`N`) if every operator processes samples independently, otherwise 1.
///
/// # Errors
/// If an operator has no ONNX counterpart; names it.
///
/// ```
/// use systole_base::DType;
/// use systole_tflite::{TfliteModel, TfliteOp, TfliteOperator, TfliteTensor};
/// let lite = TfliteModel {
///     tensors: vec![TfliteTensor::new("x", [1, 3], DType::F32), TfliteTensor::new("y", [1, 3], DType::F32)],
///     operators: vec![TfliteOperator::new(TfliteOp::Relu, [0], [1])],
///     inputs: vec![0],
///     outputs: vec![1],
///     ..TfliteModel::default()
/// };
/// let onnx = systole_onnx::export(&lite)?;
/// assert_eq!(onnx.graph.nodes[0].op, "Relu");
/// assert_eq!(onnx.graph.inputs[0].to_string(), "f32[N, 3]");
/// # Ok::<(), systole_base::Error>(())
/// ```
pub fn export(lite: &Lite) -> Result<OnnxModel> {
    export_with_loops(lite, &[])
}

/// Like [`export`], for a float graph in which some groups of operators are a recurrent layer each: these become one
/// ONNX operator.
///
/// # Errors
/// See [`export`].
pub fn export_with_loops(lite: &Lite, loops: &[OnnxRecurrent]) -> Result<OnnxModel> {
    lite.check()?;
    let open = lite.operators.iter().all(|o| is_by_sample(lite, o)) && ends_are_by_sample(lite);
    let mut e = OnnxBuilder::new(lite, open);
    for &t in &lite.inputs {
        e.given(t)?;
    }
    for (n, o) in lite.operators.iter().enumerate() {
        if let Some(of) = loops.iter().find(|of| of.operators.contains(&n)) {
            if n == of.operators.start {
                write_recurrent(&mut e, of).at(|| lite.place(n))?;
            }
            continue;
        }
        operator(&mut e, o).at(|| lite.place(n))?;
    }
    let port = |e: &OnnxBuilder, t: usize, name: String| -> Result<ValueInfo> {
        let ty = &e.tensor(t)?.ty;
        let mut sizes: Vec<DimSize> = ty.shape.iter().map(|&d| DimSize::Known(d)).collect();
        if let Some(first) = sizes.first_mut()
            && open
        {
            *first = DimSize::Named(BATCH.into());
        }
        Ok(ValueInfo { name, dtype: Some(ty.dtype), sizes: Some(sizes) })
    };
    let mut outputs = Vec::new();
    for &t in &lite.outputs {
        let is_given = lite.inputs.contains(&t);
        let now = if e.tensor(t)?.is_quantized() {
            e.codes(t, ChannelOrder::Plain)?
        } else {
            e.real(t, ChannelOrder::Plain)?
        };
        let name = if is_given { e.made(&format!("{now}/output"), "Identity", [now.as_str()]) } else { now };
        outputs.push(port(&e, t, name)?);
    }
    e.graph.inputs = lite.inputs.iter().map(|&t| port(&e, t, e.names[t].clone())).collect::<Result<_>>()?;
    e.graph.outputs = outputs;
    e.graph.name = "main".into();
    Ok(OnnxModel {
        ir_version: IR_VERSION,
        opset: OPSET,
        producer: "Systole".into(),
        graph: e.graph,
        notes: lite.notes.clone(),
        ..OnnxModel::default()
    })
}

fn operator(e: &mut OnnxBuilder, operator: &TfliteOperator) -> Result<()> {
    let (name, export) = export_of(operator.op).ok_or_else(|| {
        err!(Unsupported, "cannot export {} to ONNX", operator.op)
            .hint("export the model as .tflite, or remove the layer with this operator")
    })?;
    let y = match operator.outputs[..] {
        [y] => y,
        [y, ..] if operator.op == TfliteOp::Split => y,
        _ => {
            return Err(err!(Unsupported, "cannot export an operator with several outputs")
                .hint("export the model as .tflite, or remove the layer with this operator"));
        }
    };
    (export.write)(e, &TfliteSource { o: operator, y, name })
}

fn ends_are_by_sample(lite: &Lite) -> bool {
    lite.inputs.iter().chain(&lite.outputs).all(|&t| begins_with_one(lite, t))
}

fn begins_with_one(lite: &Lite, t: usize) -> bool {
    lite.tensors.get(t).is_some_and(|t| t.dims().first() == Some(&1))
}

/// Whether an operator processes the samples of a batch independently.
fn is_by_sample(lite: &Lite, operator: &TfliteOperator) -> bool {
    let sample = BatchCheck { lite, operator };
    let computed: Vec<usize> = sample.computed().collect();
    !computed.is_empty()
        && computed.iter().chain(&operator.outputs).all(|&t| begins_with_one(lite, t))
        && export_of(operator.op).is_none_or(|(_, export)| (export.by_sample)(&sample))
}
