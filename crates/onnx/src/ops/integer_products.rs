//! Imports ONNX integer products: MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv; and DynamicQuantizeLinear.

use super::call::{NodeCall, RuleResult, output, unsupported};
use super::conv_pool::convolved;
use super::elementwise::several_outputs;
use super::matmul::product;
use super::op_row::operators;
use crate::model::broken;
use systole_base::{DType, Result};
use systole_ir::Tensor;

operators! {
    "ConvInteger" 10..10: conv_integer;
    "DynamicQuantizeLinear" 11..11: dynamic_quantize;
    "MatMulInteger" 10..10: matmul_integer;
    "QLinearConv" 10..10: qlinear_conv;
    "QLinearMatMul" 10..21: qlinear_matmul;
}

/// Dimension of a matrix that has one zero point or scale per index.
#[derive(Clone, Copy)]
enum QuantizedDim {
    Row,
    Column,
}

/// Returns scales or zero points in a shape that broadcasts to the matrices.
fn spread(t: Tensor, dim: QuantizedDim) -> Tensor {
    match (t.shape().dims(), dim) {
        ([1], _) => t.reshape([]),
        (&[n], QuantizedDim::Row) => t.reshape([n, 1]),
        _ => t,
    }
}

/// Returns an integer operand minus its optional zero point, as int32.
fn centered(c: &mut NodeCall, i: usize, zero: usize, dim: QuantizedDim) -> Result<Tensor> {
    let x = integers(c.tensor(i)?)?;
    Ok(match c.optional(zero)? {
        Some(zero) => x - spread(zero, dim).convert(DType::I32),
        None => x,
    })
}

fn integers(x: Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::I8 | DType::U8 => Ok(x.convert(DType::I32)),
        _ => Err(unsupported(format!("the operand is {}, expected int8 or uint8", x.ty()))),
    }
}

fn matmul_integer(c: &mut NodeCall) -> RuleResult {
    let a = centered(c, 0, 2, QuantizedDim::Row)?;
    let b = centered(c, 1, 3, QuantizedDim::Column)?;
    output(product(&a, &b)?)
}

/// Imports QLinearMatMul: round(a · b · (a_scale · b_scale / y_scale)) + y_zero_point.
fn qlinear_matmul(c: &mut NodeCall) -> RuleResult {
    let a = centered(c, 0, 2, QuantizedDim::Row)?;
    let b = centered(c, 3, 5, QuantizedDim::Column)?;
    let sums = product(&a, &b)?;
    let a_scale = spread(c.tensor(1)?, QuantizedDim::Row).convert(DType::F32);
    let b_scale = spread(c.tensor(4)?, QuantizedDim::Column).convert(DType::F32);
    let y_scale = spread(c.tensor(6)?, QuantizedDim::Row).convert(DType::F32);
    let zero = spread(c.tensor(7)?, QuantizedDim::Row);
    output(requantized(&sums, &(a_scale * b_scale / y_scale), &zero))
}

/// Scales int32 sums, and rounds them to the zero point's type.
fn requantized(sums: &Tensor, factor: &Tensor, zero: &Tensor) -> Tensor {
    let rounded = (sums.convert(DType::F32) * factor).round_nearest_even() + zero.convert(DType::F32);
    clamped(&rounded, zero.dtype())
}

/// Clamps rounded floats to an integer type.
fn clamped(x: &Tensor, dtype: DType) -> Tensor {
    let (low, high) = (dtype.lowest().as_f64(), dtype.max_value().as_f64());
    x.maximum(&x.scalar_like(low)).minimum(&x.scalar_like(high)).convert(dtype)
}

/// Returns the weights `[F, C, …]` minus their zero points, one for all or one per output channel.
fn centered_weights(c: &mut NodeCall, i: usize, zero: usize) -> Result<Tensor> {
    let w = integers(c.tensor(i)?)?;
    let Some(zero) = c.optional(zero)? else { return Ok(w) };
    let zero = zero.convert(DType::I32);
    match zero.shape().dims() {
        [] => Ok(w - zero),
        [1] => Ok(w - zero.reshape([])),
        [n] if w.shape().first() == Some(n) => Ok(&w - zero.broadcast_in_dim(w.shape(), &[0])),
        _ => Err(broken(format!("zero points {} do not match weights {}", zero.ty(), w.ty()))),
    }
}

fn centered_image(c: &mut NodeCall, i: usize, zero: usize) -> Result<Tensor> {
    let x = integers(c.tensor(i)?)?;
    Ok(match c.optional(zero)? {
        Some(zero) => x - zero.reshape([]).convert(DType::I32),
        None => x,
    })
}

fn conv_integer(c: &mut NodeCall) -> RuleResult {
    let (x, w) = (centered_image(c, 0, 2)?, centered_weights(c, 1, 3)?);
    output(convolved(c, &x, &w)?)
}

/// Imports QLinearConv; scales of weights are one for all or one per output channel.
fn qlinear_conv(c: &mut NodeCall) -> RuleResult {
    let (x, w) = (centered_image(c, 0, 2)?, centered_weights(c, 3, 5)?);
    let mut sums = convolved(c, &x, &w)?;
    if let Some(bias) = c.optional(8)? {
        sums = &sums + bias.broadcast_in_dim(sums.shape(), &[1]);
    }
    let scalar = |c: &mut NodeCall, i: usize| Ok::<_, systole_base::Error>(c.tensor(i)?.reshape([]));
    let (x_scale, y_scale, zero) = (scalar(c, 1)?, scalar(c, 6)?, scalar(c, 7)?);
    let factor = x_scale * spread(c.tensor(4)?, QuantizedDim::Column) / y_scale;
    let factor = if factor.rank() == 0 { factor } else { factor.broadcast_in_dim(sums.shape(), &[1]) };
    output(requantized(&sums, &factor, &zero))
}

/// Imports DynamicQuantizeLinear: uint8 with the range of the data, which is extended to contain 0.
fn dynamic_quantize(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let dims: Vec<usize> = (0..x.rank()).collect();
    let low = x.reduce_min(&dims).minimum(&x.scalar_like(0.0));
    let high = x.reduce_max(&dims).maximum(&x.scalar_like(0.0));
    let scale = (high - &low) / 255.0;
    // Zeros alone have any scale.
    let scale = scale.equal(&scale.zeros_like()).select(&scale.ones_like(), &scale);
    let zero = clamped(&(-low / &scale).round_nearest_even(), DType::U8);
    let y = clamped(&((&x / &scale).round_nearest_even() + zero.convert(x.dtype())), DType::U8);
    several_outputs(vec![y, scale, zero])
}

#[cfg(test)]
mod tests {
    use crate::model::OnnxNode;
    use crate::test_node::{array, assert_close, floats, run_node};

    /// The example of the ONNX specification.
    #[test]
    fn integer_products_subtract_zero_points() {
        let a = array([4, 3], &[11u8, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0]);
        let b = array([3, 2], &[1u8, 4, 2, 5, 3, 6]);
        let zeros = [array([1], &[12u8]), array([1], &[0u8])];
        let node = OnnxNode::new("MatMulInteger", ["a", "b", "az", "bz"], "y");
        let y = run_node(10, node, &[&a, &b, &zeros[0], &zeros[1]]).remove(0);
        assert_eq!(y.as_slice::<i32>().unwrap(), [-38, -83, -44, -98, -50, -113, -56, -128]);
    }

    /// The example of the ONNX specification.
    #[test]
    fn integer_convolutions_pad_with_the_zero_point() {
        let x = array([1, 1, 3, 3], &[2u8, 3, 4, 5, 6, 7, 8, 9, 10]);
        let (w, zero) = (array([1, 1, 2, 2], &[1u8; 4]), array([], &[1u8]));
        let node = OnnxNode::new("ConvInteger", ["x", "w", "xz"], "y").ints("pads", [1, 1, 1, 1]);
        let y = run_node(10, node, &[&x, &w, &zero]).remove(0);
        let expected = [1, 3, 5, 3, 5, 12, 16, 9, 11, 24, 28, 15, 7, 15, 17, 9];
        assert_eq!((y.shape().dims(), y.as_slice::<i32>().unwrap()), (&[1, 1, 4, 4][..], &expected[..]));
    }

    #[test]
    fn quantized_products_are_rounded_to_the_output_scale() {
        // a = 2 · (q − 1), b = 0.5 · q, y = 4 · (q − 10): [2, 4] · [1, 3] = 14 → 3.5 → 4 + 10.
        let one = |v: f32| floats([], [v]);
        let zero = |v: i8| array([], &[v]);
        let operands = [&array([1, 2], &[2i8, 3]), &one(2.0), &zero(1), &array([2, 1], &[2i8, 6]), &one(0.5)];
        let (zero_b, scale, zero_y) = (zero(0), one(4.0), zero(10));
        let names = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"];
        let node = OnnxNode::new("QLinearMatMul", names, "y");
        let y = run_node(21, node, &[&operands[..], &[&zero_b, &scale, &zero_y]].concat()).remove(0);
        assert_eq!(y.as_slice::<i8>().unwrap(), [14]);
        let (x, w) = (array([1, 1, 1], &[3u8]), array([2, 1, 1], &[2u8, 4]));
        let zero = |v: u8| array([], &[v]);
        let (scales, zeros) = (floats([2], [0.5, 1.0]), array([2], &[0u8, 1]));
        let bias = array([2], &[2i32, -2]);
        let node = OnnxNode::new("QLinearConv", names.into_iter().chain(["bias"]), "y");
        // (2 · 2 + 2) · 2 · 0.5 / 4 = 1.5 → 2; (2 · 3 − 2) · 2 · 1 / 4 = 2.
        let operands = [&x, &one(2.0), &zero(1), &w, &scales, &zeros, &one(4.0), &zero(10), &bias];
        let y = run_node(10, node, &operands).remove(0);
        assert_eq!((y.shape().dims(), y.as_slice::<u8>().unwrap()), (&[1, 2, 1][..], &[12u8, 12][..]));
    }

    /// The example of the ONNX specification.
    #[test]
    fn dynamic_ranges_contain_zero() {
        let mut node = OnnxNode::new("DynamicQuantizeLinear", ["x"], "y");
        node.outputs = ["y", "scale", "zero"].map(String::from).into();
        let y = run_node(11, node, &[&floats([6], [0.0, 2.0, -3.0, -2.5, 1.34, 0.5])]);
        assert_eq!(y[0].as_slice::<u8>().unwrap(), [153, 255, 0, 26, 221, 179]);
        assert_close(&y[1], &[5.0 / 255.0]);
        assert_eq!(y[2].as_slice::<u8>().unwrap(), [153]);
    }
}
