//! Runs one int8 operator in the TFLite interpreter on chosen operands, to tabulate its results or to see where it moves
//! each element.

use crate::op_context::OpContext;
use systole_base::{DType, Literal, Shape, TensorType};
use systole_tflite::{TfliteInterpreter, TfliteModel, TfliteTensor};

/// A replaced operand of a probe.
pub(crate) struct ProbeOperand {
    /// Index of the operand.
    pub operand: usize,
    /// Value of the operand; its element type may differ from the file's.
    pub value: Literal,
}

/// Evaluates the operator with other operands. Outputs have this shape and type (`None`: the file's types). Returns
/// `None` if the interpreter rejects the operands.
pub(crate) fn probe(
    site: &OpContext,
    probes: Vec<ProbeOperand>,
    shape: Option<&[usize]>,
    dtype: Option<DType>,
) -> Option<Vec<Literal>> {
    let mut model = TfliteModel::default();
    let mut operator = site.operator.clone();
    let mut values = Vec::new();
    for (n, input) in site.operator.inputs.iter().enumerate() {
        let Some(own) = input else { continue };
        let mut tensor = site.model.tensors.get(*own)?.clone();
        let at = model.tensors.len();
        if let Some(p) = probes.iter().find(|p| p.operand == n) {
            if p.value.dtype() != tensor.ty.dtype {
                tensor.quantization = None;
            }
            (tensor.ty, tensor.data) = (p.value.ty().clone(), None);
            model.inputs.push(at);
            values.push(p.value.clone());
        } else if tensor.data.is_none() {
            return None;
        }
        model.tensors.push(tensor);
        operator.inputs[n] = Some(at);
    }
    operator.outputs.clear();
    for own in &site.operator.outputs {
        let own = site.model.tensors.get(*own)?;
        let dims = shape.map_or_else(|| own.ty.shape.clone(), Shape::from);
        let ty = TensorType::new(dtype.unwrap_or(own.ty.dtype), dims);
        let quantization = own.quantization.clone().filter(|_| dtype.is_none());
        operator.outputs.push(model.tensors.len());
        model.outputs.push(model.tensors.len());
        model.tensors.push(TfliteTensor {
            name: own.name.clone(),
            ty,
            data: None,
            quantization,
            is_dynamic: false,
            is_variable: false,
        });
    }
    model.operators = vec![operator];
    TfliteInterpreter::new(&model).ok()?.run(&values).ok()
}

/// Returns all int8 values from −128 on, in a shape of 256 elements.
pub(crate) fn all_bytes(shape: &[usize]) -> Option<Literal> {
    let all: Vec<i8> = (-128..=127).collect();
    Literal::from_slice(shape, &all).ok()
}
