//! Imports ONNX bit operators: BitCast, BitShift, BitwiseAnd, BitwiseNot, BitwiseOr, BitwiseXor.

use super::call::{NodeCall, RuleResult, unsupported};
use super::elementwise::{binary, unary};
use super::op_row::operators;
use crate::model::dtype_of;
use systole_ir::Tensor;

operators! {
    "BitCast" 26..26: bit_cast;
    "BitShift" 11..11: bit_shift;
    "BitwiseAnd" 18..18: |c| binary(c, Tensor::and);
    "BitwiseNot" 18..18: |c| unary(c, Tensor::not);
    "BitwiseOr" 18..18: |c| binary(c, Tensor::or);
    "BitwiseXor" 18..18: |c| binary(c, Tensor::xor);
}

fn bit_shift(c: &mut NodeCall) -> RuleResult {
    let by: fn(&Tensor, &Tensor) -> Tensor = match c.word("direction", "")?.as_str() {
        "LEFT" => Tensor::shift_left,
        "RIGHT" if c.tensor(0)?.dtype().is_unsigned_int() => Tensor::shift_right_logical,
        "RIGHT" => Tensor::shift_right_arithmetic,
        other => return Err(unsupported(format!("unsupported direction `{other}`"))),
    };
    binary(c, by)
}

/// Imports BitCast to a type of the same size.
fn bit_cast(c: &mut NodeCall) -> RuleResult {
    let code = c.int("to", 0)?;
    let to = dtype_of(code).ok_or_else(|| unsupported(format!("unsupported ONNX element type {code}")))?;
    let from = c.tensor(0)?.dtype();
    if from.size() != to.size() {
        return Err(unsupported(format!("cannot reinterpret {from} as {to}: their sizes differ")));
    }
    unary(c, |x| x.bitcast_convert(to))
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{array, floats, run_node};

    #[test]
    fn bits_are_shifted_combined_and_reinterpreted() {
        let (x, by) = (array([3], &[16u8, 4, 129]), array([3], &[1u8, 2, 7]));
        for (direction, expected) in [("LEFT", [32u8, 16, 128]), ("RIGHT", [8, 1, 1])] {
            let node = OnnxNode::new("BitShift", ["x", "by"], "y");
            let node = node.with("direction", OnnxAttribute::Text(direction.into()));
            assert_eq!(run_node(11, node, &[&x, &by])[0].as_slice::<u8>().unwrap(), expected);
        }
        for (op, expected) in
            [("BitwiseAnd", [0u8, 0, 1]), ("BitwiseOr", [17, 6, 135]), ("BitwiseXor", [17, 6, 134])]
        {
            let y = run_node(18, OnnxNode::new(op, ["x", "by"], "y"), &[&x, &by]);
            assert_eq!(y[0].as_slice::<u8>().unwrap(), expected, "{op}");
        }
        let y = run_node(18, OnnxNode::new("BitwiseNot", ["x"], "y"), &[&array([2], &[0i32, 5])]);
        assert_eq!(y[0].as_slice::<i32>().unwrap(), [-1, -6]);
        let node = OnnxNode::new("BitCast", ["x"], "y").with("to", OnnxAttribute::Int(6));
        assert_eq!(run_node(26, node, &[&floats([1], [1.0])])[0].as_slice::<i32>().unwrap(), [0x3f80_0000]);
    }
}
