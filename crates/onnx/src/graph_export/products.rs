//! Matrix products and convolutions in ONNX.

use super::arrays::{dilated, padded, zero};
use super::writer::{Exported, ExportedValue, GraphWriter, unsupported};
use crate::model::{OnnxAttribute, OnnxNode};
use systole_base::{DType, TensorType};
use systole_ir::op::{Convolution, DotGeneral};

pub(super) fn dot(
    w: &mut GraphWriter,
    [a, b]: [&ExportedValue; 2],
    op: &DotGeneral,
    ty: TensorType,
) -> Exported {
    let [left, right] = [w.expanded(a)?, w.expanded(b)?];
    let [left, right] = [(left, a.ty.dtype), (right, b.ty.dtype)]
        .map(|(name, dtype)| if dtype == op.element_type { name } else { w.cast(&name, op.element_type) });
    let free = |rank: usize, batch: &[usize], contract: &[usize]| -> Vec<usize> {
        (0..rank).filter(|d| !batch.contains(d) && !contract.contains(d)).collect()
    };
    let a_free = free(a.ty.rank(), &op.lhs_batch, &op.lhs_contract);
    let b_free = free(b.ty.rank(), &op.rhs_batch, &op.rhs_contract);
    let is_matrix = op.lhs_contract.len() == 1 && b_free.len() == 1;
    // MatMul broadcasts a matrix on the right over all but the last two dimensions of the left.
    if is_matrix && !a_free.is_empty() && (op.lhs_batch.is_empty() || a_free.len() == 1) {
        let left = w.permuted(&left, &[&op.lhs_batch[..], &a_free, &op.lhs_contract].concat());
        let right = w.permuted(&right, &[&op.rhs_batch[..], &op.rhs_contract, &b_free].concat());
        let y = w.emit("MatMul", &[&left, &right]);
        return Ok(ExportedValue::whole(y, ty));
    }
    let letter = |i: usize| (b'a' + i as u8) as char;
    if a.ty.rank() + b_free.len() > 26 {
        return Err(unsupported("a product has too many dimensions for ONNX".into()));
    }
    let a_letters: Vec<char> = (0..a.ty.rank()).map(letter).collect();
    let mut b_letters = vec![' '; b.ty.rank()];
    let pairs = op.lhs_batch.iter().zip(op.rhs_batch.iter());
    for (i, j) in pairs.chain(op.lhs_contract.iter().zip(op.rhs_contract.iter())) {
        b_letters[*j] = a_letters[*i];
    }
    b_free.iter().enumerate().for_each(|(n, &j)| b_letters[j] = letter(a.ty.rank() + n));
    let result = op.lhs_batch.iter().chain(&a_free).map(|&i| a_letters[i]);
    let result: String = result.chain(b_free.iter().map(|&j| b_letters[j])).collect();
    let text = |letters: Vec<char>| letters.into_iter().collect::<String>();
    let equation = format!("{},{}->{result}", text(a_letters), text(b_letters));
    let node = OnnxNode::new("Einsum", [left, right], "").with("equation", OnnxAttribute::Text(equation));
    let y = w.emit_with(node);
    Ok(ExportedValue::whole(y, ty))
}

pub(super) fn convolution(
    w: &mut GraphWriter,
    [x, kernel]: [&ExportedValue; 2],
    op: &Convolution,
    ty: TensorType,
) -> Exported {
    if op.batch_groups != 1 || op.element_type != x.ty.dtype || x.ty.dtype != kernel.ty.dtype {
        return Err(unsupported(
            "cannot export a convolution with groups of the batch, or of mixed types".into(),
        ));
    }
    let d = &op.dims;
    let spatial = d.input_spatial.len();
    let input_order = [&[d.input_batch, d.input_feature][..], &d.input_spatial].concat();
    let kernel_order = [&[d.kernel_output_feature, d.kernel_input_feature][..], &d.kernel_spatial].concat();
    let (input, filter) = (w.expanded(x)?, w.expanded(kernel)?);
    let mut input = w.permuted(&input, &input_order);
    let mut filter = w.permuted(&filter, &kernel_order);
    let flipped: Vec<usize> = (0..spatial).filter(|&i| op.reversal[i]).map(|i| i + 2).collect();
    if !flipped.is_empty() {
        let dims = kernel_order.iter().map(|&i| kernel.ty.shape[i]).collect::<systole_base::Shape>();
        let value = ExportedValue::whole(filter, TensorType::new(kernel.ty.dtype, dims));
        filter = super::arrays::reverse(w, &value, &flipped, value.ty.clone())?.name;
    }
    let mut dims: Vec<usize> = input_order.iter().map(|&i| x.ty.shape[i]).collect();
    let nothing = zero(w, x.ty.dtype);
    for i in 0..spatial {
        if op.lhs_dilation[i] > 1 {
            input = dilated(w, &input, &mut dims, i + 2, op.lhs_dilation[i] - 1, &nothing)?;
        }
    }
    let mut pads: Vec<[i64; 2]> = op.padding.clone();
    if pads.iter().flatten().any(|n| *n < 0) {
        // Conv has no negative padding.
        let side = |k: usize| [vec![0, 0], pads.iter().map(|p| p[k].min(0)).collect::<Vec<i64>>()].concat();
        input = padded(w, &input, &side(0), &side(1), &nothing);
        pads.iter_mut().flatten().for_each(|n| *n = (*n).max(0));
    }
    let ints = |all: &[usize]| all.iter().map(|&v| v as i64).collect::<Vec<i64>>();
    let shape: Vec<i64> = d.kernel_spatial.iter().map(|&i| kernel.ty.shape[i] as i64).collect();
    let node = OnnxNode::new("Conv", [input, filter], "")
        .ints("kernel_shape", shape)
        .ints("strides", ints(&op.strides))
        .ints("dilations", ints(&op.rhs_dilation))
        .ints("pads", pads.iter().map(|p| p[0]).chain(pads.iter().map(|p| p[1])))
        .with("group", OnnxAttribute::Int(op.feature_groups as i64));
    let y = w.emit_with(node);
    let mut order = vec![0; spatial + 2];
    (order[d.output_batch], order[d.output_feature]) = (0, 1);
    d.output_spatial.iter().enumerate().for_each(|(i, &at)| order[at] = i + 2);
    Ok(ExportedValue::whole(w.permuted(&y, &order), ty))
}

/// Sums windows of `x: f32[N, 1, …]` by a convolution with ones; returns the name.
pub(super) fn window_sums(
    w: &mut GraphWriter,
    x: &str,
    dtype: DType,
    sizes: &[i64],
    attributes: impl FnOnce(OnnxNode) -> OnnxNode,
) -> String {
    let ones = w.scalar(dtype, 1.0);
    let shape = w.ints(&[&[1, 1][..], sizes].concat());
    let ones = w.emit("Expand", &[&ones, &shape]);
    w.emit_with(attributes(OnnxNode::new("Conv", [x, &ones], "")))
}
