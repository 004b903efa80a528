//! Operators on single elements.

use super::call::{Call, Makes, made, unsupported};
use super::values::Made;
use crate::model::{broken, dtype_of};
use systole_base::{DType, Result};
use systole_ir::Tensor;

/// One operand.
pub(super) fn unary(c: &mut Call, f: impl FnOnce(&Tensor) -> Tensor) -> Makes {
    let (x, is_last) = c.oriented(0)?;
    made(f(&x), is_last)
}

/// Two operands.
pub(super) fn binary(c: &mut Call, f: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> Makes {
    let (x, is_last) = c.aligned(&[0, 1])?;
    match &x[..] {
        [a, b] => made(f(a, b), is_last),
        _ => Err(broken("it takes two operands")),
    }
}

/// Any number of operands, folded.
pub(super) fn several(c: &mut Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Makes {
    let (t, is_last) = folded(c, f)?;
    made(t, is_last)
}

fn folded(c: &mut Call, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Result<(Tensor, bool)> {
    let (x, is_last) = c.aligned(&(0..c.node.inputs.len()).collect::<Vec<_>>())?;
    let all = x.into_iter().reduce(|a, b| f(&a, &b));
    Ok((all.ok_or_else(|| broken("it has no operands"))?, is_last))
}

pub(super) fn mean(c: &mut Call) -> Makes {
    let n = c.node.inputs.len() as f64;
    let (sum, is_last) = folded(c, |a, b| a + b)?;
    made(sum / n, is_last)
}

/// What is passed on as it is.
pub(super) fn identity(c: &mut Call) -> Makes {
    c.one_output()?;
    unary(c, Clone::clone)
}

pub(super) fn dropout(c: &mut Call) -> Makes {
    if c.has(2) && c.known(2)?.get(0).as_bool() {
        return Err(
            unsupported("it drops out while the model predicts").hint("export the model in evaluation mode")
        );
    }
    identity(c)
}

pub(super) fn cast(c: &mut Call) -> Makes {
    let code = c.int("to", 0);
    let to = dtype_of(code).ok_or_else(|| unsupported(format!("elements of ONNX's type {code}")))?;
    unary(c, |x| converted(x, to))
}

pub(super) fn cast_like(c: &mut Call) -> Makes {
    let to = c.plain(1)?.dtype();
    unary(c, |x| converted(x, to))
}

/// Numbers are true where they are not 0.
fn converted(x: &Tensor, to: DType) -> Tensor {
    if to == DType::Bool && x.dtype() != DType::Bool { x.not_equal(&x.zeros_like()) } else { x.convert(to) }
}

pub(super) fn choose(c: &mut Call) -> Makes {
    let (x, is_last) = c.aligned(&[0, 1, 2])?;
    match &x[..] {
        [condition, a, b] => made(condition.select(a, b), is_last),
        _ => Err(broken("it takes three operands")),
    }
}

pub(super) fn clip(c: &mut Call) -> Makes {
    let (mut x, is_last) = c.oriented(0)?;
    let dtype = x.dtype();
    let bound = |c: &mut Call, i: usize, name: &str| -> Result<Option<Tensor>> {
        match c.node.attributes.contains_key(name) {
            true => Ok(Some(c.scalar(dtype, c.float(name, 0.0)))),
            false => c.optional(i),
        }
    };
    if let Some(low) = bound(c, 1, "min")? {
        x = x.maximum(&low);
    }
    if let Some(high) = bound(c, 2, "max")? {
        x = x.minimum(&high);
    }
    made(x, is_last)
}

/// The base's type is that of the result.
pub(super) fn power(c: &mut Call) -> Makes {
    if let Some(two) = c.perhaps_known(1)?
        && two.ty().elements() == 1
    {
        match two.get(0).as_f64() {
            2.0 => return unary(c, |x| x * x),
            0.5 => return unary(c, Tensor::sqrt),
            1.0 => return unary(c, Clone::clone),
            _ => {}
        }
    }
    binary(c, |x, y| x.power(&y.convert(x.dtype())))
}

pub(super) fn modulo(c: &mut Call) -> Makes {
    let is_c = c.int("fmod", 0) == 1;
    binary(c, |x, y| {
        let r = x.remainder(y);
        if is_c || x.dtype().is_unsigned_int() {
            return r;
        }
        // The result has the sign of the divisor.
        let zero = r.zeros_like();
        let differs = r.less(&zero).not_equal(&y.less(&y.zeros_like()));
        let moves = differs.and(&r.not_equal(&zero));
        moves.select(&(&r + y), &r)
    })
}

pub(super) fn prelu(c: &mut Call) -> Makes {
    binary(c, |x, slope| x.greater_equal(&x.zeros_like()).select(x, &(x * slope)))
}

pub(super) fn leaky_relu(c: &mut Call) -> Makes {
    let slope = c.float("alpha", 0.01);
    unary(c, |x| x.leaky_relu(slope))
}

pub(super) fn elu(c: &mut Call) -> Makes {
    let alpha = c.float("alpha", 1.0);
    unary(c, |x| x.elu(alpha))
}

pub(super) fn celu(c: &mut Call) -> Makes {
    let alpha = c.float("alpha", 1.0);
    unary(c, |x| (x / alpha).elu(1.0) * alpha)
}

pub(super) fn selu(c: &mut Call) -> Makes {
    let alpha = c.float("alpha", 1.673_263_192_176_818_8);
    let gamma = c.float("gamma", 1.050_701_022_148_132_3);
    unary(c, |x| x.elu(alpha) * gamma)
}

pub(super) fn gelu(c: &mut Call) -> Makes {
    let by_tanh = c.word("approximate", "none") == "tanh";
    unary(c, |x| if by_tanh { x.gelu_tanh() } else { x.gelu() })
}

pub(super) fn hard_sigmoid(c: &mut Call) -> Makes {
    let (alpha, beta) = (c.float("alpha", 0.2), c.float("beta", 0.5));
    unary(c, |x| between(&(x * alpha + beta), 0.0, 1.0))
}

pub(super) fn hard_swish(c: &mut Call) -> Makes {
    unary(c, |x| x * between(&(x / 6.0 + 0.5), 0.0, 1.0))
}

fn between(x: &Tensor, low: f64, high: f64) -> Tensor {
    x.maximum(&x.scalar_like(low)).minimum(&x.scalar_like(high))
}

pub(super) fn thresholded_relu(c: &mut Call) -> Makes {
    let alpha = c.float("alpha", 1.0);
    unary(c, |x| x.greater(&x.scalar_like(alpha)).select(x, &x.zeros_like()))
}

pub(super) fn is_infinite(c: &mut Call) -> Makes {
    unary(c, |x| x.is_finite().not().and(&x.equal(x)))
}

/// Outputs of a node that hands on several values.
pub(super) fn all_plain(all: Vec<Tensor>) -> Makes {
    Ok(all.into_iter().map(Made::Plain).collect())
}
