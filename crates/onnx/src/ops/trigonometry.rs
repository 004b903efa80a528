//! Imports ONNX inverse trigonometric and hyperbolic operators: Acos, Acosh, Asin, Asinh, Atan, Atanh, Cosh, Sinh.

use super::call::{NodeCall, RuleResult};
use super::conv_pool::sums_in;
use super::elementwise::unary;
use super::op_row::operators;
use std::f64::consts::LN_2;
use systole_ir::Tensor;

operators! {
    "Acos" 7..22: |c| wide(c, |x| cosine_of(x).atan2(x));
    "Acosh" 9..22: |c| wide(c, acosh);
    "Asin" 7..22: |c| wide(c, |x| x.atan2(&cosine_of(x)));
    "Asinh" 9..22: |c| wide(c, asinh);
    "Atan" 7..22: |c| wide(c, |x| x.atan2(&x.ones_like()));
    "Atanh" 9..22: |c| wide(c, |x| (x.log1p() - (-x).log1p()) * 0.5);
    "Cosh" 9..22: |c| wide(c, |x| (x.exp() + (-x).exp()) * 0.5);
    "Sinh" 9..22: |c| wide(c, Tensor::sinh);
}

/// Computes f16 and bf16 in f32.
fn wide(c: &mut NodeCall, f: impl FnOnce(&Tensor) -> Tensor) -> RuleResult {
    unary(c, |x| f(&x.convert(sums_in(x.dtype()))).convert(x.dtype()))
}

/// √(1 − x²), accurate near ±1.
fn cosine_of(x: &Tensor) -> Tensor {
    ((1.0 - x) * (x + 1.0)).sqrt()
}

/// Above this, x² may overflow and asinh x, acosh x = ln 2x to f32's precision.
const LARGE: f64 = 1e4;

fn acosh(x: &Tensor) -> Tensor {
    let over = x - 1.0;
    let near = (&over + (&over * (x + 1.0)).sqrt()).log1p();
    x.greater(&x.scalar_like(LARGE)).select(&(x.log() + LN_2), &near)
}

fn asinh(x: &Tensor) -> Tensor {
    let size = x.abs();
    let square = &size * &size;
    let near = (&size + &square / ((&square + 1.0).sqrt() + 1.0)).log1p();
    let far = size.log() + LN_2;
    x.sign() * size.greater(&size.scalar_like(LARGE)).select(&far, &near)
}

#[cfg(test)]
mod tests {
    use crate::model::OnnxNode;
    use crate::test_node::{assert_close, floats, run_node};

    #[test]
    fn values_are_those_of_the_standard_library() {
        type Function = fn(f32) -> f32;
        let cases: [(&str, Function, [f32; 4]); 8] = [
            ("Acos", f32::acos, [-1.0, -0.3, 0.999_99, 1.0]),
            ("Acosh", f32::acosh, [1.0, 1.001, 3.0, 1e30]),
            ("Asin", f32::asin, [-1.0, -0.3, 0.999_99, 0.0]),
            ("Asinh", f32::asinh, [-1e30, -1e-4, 0.0, 3.0]),
            ("Atan", f32::atan, [-1e9, -0.5, 0.0, 2.0]),
            ("Atanh", f32::atanh, [-0.999, -1e-4, 0.0, 0.5]),
            ("Cosh", f32::cosh, [-4.0, -1e-3, 0.0, 2.0]),
            ("Sinh", f32::sinh, [-4.0, -1e-3, 0.0, 2.0]),
        ];
        for (op, f, x) in cases {
            let y = run_node(22, OnnxNode::new(op, ["x"], "y"), &[&floats([4], x)]).remove(0);
            assert_close(&y, &x.map(f));
        }
    }
}
