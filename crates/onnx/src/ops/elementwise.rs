//! Imports and exports element-wise ONNX operators.

use super::call::{NodeCall, RuleResult, output, unsupported};
use super::conv_pool::sums_in;
use super::graph_builder::{OnnxBuilder, operand_of};
use super::op_row::{BatchCheck, TfliteSource, operators};
use super::values::RuleOutput;
use crate::model::{OnnxAttribute, OnnxNode, broken, code_of, dtype_of};
use systole_base::{DType, Result};
use systole_ir::Tensor;
use systole_tflite::{FusedActivation, OptionField};

operators! {
    "Abs" 1..13: |c| unary(c, Tensor::abs) => Abs write_unary;
    "Add" 1..14: |c| binary(c, |a, b| a + b) => Add write_binary, if are_alike;
    "And" 1..7: |c| binary(c, Tensor::and) => LogicalAnd write_binary, if are_alike;
    "Cast" 1..28: cast => Cast write_cast;
    "CastLike" 15..25: cast_like;
    "Ceil" 1..13: |c| unary(c, Tensor::ceil) => Ceil write_unary;
    "Celu" 12..28: celu;
    "Clip" 1..13: clip
        => Relu6 |e, site| write_clip(e, site, 0.0, 6.0)
        => ReluN1To1 |e, site| write_clip(e, site, -1.0, 1.0);
    "Cos" 7..22: |c| unary(c, Tensor::cosine) => Cos write_unary;
    "Div" 1..14: |c| binary(c, |a, b| a / b) => Div write_binary, if are_alike;
    "Dropout" 1..22: dropout;
    "Elu" 1..22: elu => Elu write_unary;
    "Equal" 1..19: |c| binary(c, Tensor::equal) => Equal write_binary, if are_alike;
    "Erf" 9..13: |c| unary(c, Tensor::erf);
    "Exp" 1..13: |c| unary(c, Tensor::exp) => Exp write_unary;
    "Floor" 1..13: |c| unary(c, Tensor::floor) => Floor write_unary;
    "Gelu" 20..20: gelu => Gelu write_gelu;
    "Greater" 1..13: |c| binary(c, Tensor::greater) => Greater write_binary, if are_alike;
    "GreaterOrEqual" 12..16: |c| binary(c, Tensor::greater_equal) => GreaterEqual write_binary, if are_alike;
    "HardSigmoid" 1..22: hard_sigmoid;
    "HardSwish" 14..22: hard_swish => HardSwish write_unary;
    "Identity" 1..25: identity;
    "IsInf" 10..20: is_infinite;
    "IsNaN" 9..20: |c| unary(c, |x| x.not_equal(x));
    "LeakyRelu" 1..16: leaky_relu => LeakyRelu write_leaky_relu;
    "Less" 1..13: |c| binary(c, Tensor::less) => Less write_binary, if are_alike;
    "LessOrEqual" 12..16: |c| binary(c, Tensor::less_equal) => LessEqual write_binary, if are_alike;
    "Log" 1..13: |c| unary(c, Tensor::log) => Log write_unary;
    "Max" 1..13: |c| several(c, Tensor::maximum) => Maximum write_binary, if are_alike;
    "Mean" 1..13: mean;
    "Min" 1..13: |c| several(c, Tensor::minimum) => Minimum write_binary, if are_alike;
    "Mish" 18..22: |c| unary(c, |x| x * x.softplus().tanh());
    "Mod" 10..28: modulo;
    "Mul" 1..14: |c| binary(c, |a, b| a * b)
        => Mul write_binary, if are_alike
        => SquaredDifference write_squared_difference, if are_alike
        => Square write_square;
    "Neg" 1..13: |c| unary(c, Tensor::negate) => Neg write_unary;
    "Not" 1..1: |c| unary(c, Tensor::not) => LogicalNot write_unary;
    "Or" 1..7: |c| binary(c, Tensor::or) => LogicalOr write_binary, if are_alike;
    "PRelu" 1..16: prelu => Prelu write_binary, if are_alike;
    "Pow" 1..15: power => Pow write_binary, if are_alike;
    "Reciprocal" 1..13: |c| unary(c, |x| 1.0 / x) => Rsqrt write_inverse_root;
    "Relu" 1..14: |c| unary(c, Tensor::relu) => Relu write_unary;
    "Round" 11..22: |c| unary(c, Tensor::round_nearest_even) => Round write_unary;
    "Selu" 1..22: selu;
    "Sigmoid" 1..13: |c| unary(c, Tensor::logistic) => Logistic write_unary;
    "Sign" 9..13: |c| unary(c, Tensor::sign) => Sign write_unary;
    "Sin" 7..22: |c| unary(c, Tensor::sine) => Sin write_unary;
    "Shrink" 9..9: shrink;
    "Softplus" 1..22: |c| unary(c, Tensor::softplus);
    "Softsign" 1..22: |c| unary(c, |x| x / (x.abs() + 1.0));
    "Sqrt" 1..13: |c| unary(c, Tensor::sqrt) => Sqrt write_unary;
    "Sub" 1..14: |c| binary(c, |a, b| a - b) => Sub write_binary, if are_alike;
    "Sum" 1..13: sum;
    "Swish" 24..24: swish;
    "Tan" 7..22: |c| unary(c, Tensor::tan);
    "Tanh" 1..13: |c| unary(c, Tensor::tanh) => Tanh write_unary;
    "ThresholdedRelu" 10..22: thresholded_relu;
    "Where" 9..16: choose => SelectV2 write_select, if are_alike;
    "Xor" 1..7: |c| binary(c, Tensor::xor);
}

/// Imports a unary operator.
pub(super) fn unary(c: &mut NodeCall, f: impl FnOnce(&Tensor) -> Tensor) -> RuleResult {
    output(f(&c.tensor(0)?))
}

/// Imports a binary operator with broadcasting.
pub(super) fn binary(c: &mut NodeCall, f: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> RuleResult {
    output(f(&c.tensor(0)?, &c.tensor(1)?))
}

/// Imports a variadic operator as a chain of binary ones.
fn several(c: &mut NodeCall, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> RuleResult {
    output(folded(c, f)?)
}

fn folded(c: &mut NodeCall, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Result<Tensor> {
    let all = (0..c.node.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<_>>>()?;
    all.into_iter().reduce(|a, b| f(&a, &b)).ok_or_else(|| broken("the node has no operands"))
}

fn mean(c: &mut NodeCall) -> RuleResult {
    let n = c.node.inputs.len() as f64;
    let (dtype, wide) = (c.tensor(0)?.dtype(), |t: &Tensor| t.convert(sums_in(t.dtype())));
    let sum = folded(c, |a, b| wide(a) + wide(b))?;
    output((sum / n).convert(dtype))
}

fn sum(c: &mut NodeCall) -> RuleResult {
    let (dtype, wide) = (c.tensor(0)?.dtype(), |t: &Tensor| t.convert(sums_in(t.dtype())));
    let sum = folded(c, |a, b| wide(a) + wide(b))?;
    output(sum.convert(dtype))
}

/// Imports Identity.
pub(super) fn identity(c: &mut NodeCall) -> RuleResult {
    c.one_output()?;
    unary(c, Clone::clone)
}

fn dropout(c: &mut NodeCall) -> RuleResult {
    let keeps_all = c.has(1) && c.perhaps_known(1)?.is_some_and(|r| r.to_f64s() == [0.0]);
    if c.has(2) && c.known(2)?.get(0).as_bool() && !keeps_all {
        return Err(unsupported("Dropout in training mode is not supported")
            .hint("export the model in evaluation mode"));
    }
    // The mask of kept elements.
    let x = c.tensor(0)?;
    several_outputs(vec![x.clone(), x.zeros_like().equal(&x.zeros_like())])
}

fn shrink(c: &mut NodeCall) -> RuleResult {
    let (bias, limit) = (c.float("bias", 0.0)?, c.float("lambd", 0.5)?);
    unary(c, |x| {
        let bound = |v: f64| x.scalar_like(v).broadcast_to(x.shape());
        let inner = x.less(&bound(-limit)).select(&(x + bias), &x.zeros_like());
        x.greater(&bound(limit)).select(&(x - bias), &inner)
    })
}

fn swish(c: &mut NodeCall) -> RuleResult {
    let alpha = c.float("alpha", 1.0)?;
    unary(c, |x| x * (x * alpha).logistic())
}

fn cast(c: &mut NodeCall) -> RuleResult {
    let code = c.int("to", 0)?;
    let to = dtype_of(code).ok_or_else(|| unsupported(format!("unsupported ONNX element type {code}")))?;
    unary(c, |x| converted(x, to))
}

fn cast_like(c: &mut NodeCall) -> RuleResult {
    let to = c.tensor(1)?.dtype();
    unary(c, |x| converted(x, to))
}

/// Converts elements; to bool, nonzero values are true.
fn converted(x: &Tensor, to: DType) -> Tensor {
    if to == DType::Bool && x.dtype() != DType::Bool { x.not_equal(&x.zeros_like()) } else { x.convert(to) }
}

fn choose(c: &mut NodeCall) -> RuleResult {
    output(c.tensor(0)?.select(&c.tensor(1)?, &c.tensor(2)?))
}

fn clip(c: &mut NodeCall) -> RuleResult {
    let mut x = c.tensor(0)?;
    let dtype = x.dtype();
    let bound = |c: &mut NodeCall, i: usize, name: &str| -> Result<Option<Tensor>> {
        match c.node.attributes.contains_key(name) {
            true => Ok(Some(c.scalar(dtype, c.float(name, 0.0)?))),
            false => c.optional(i),
        }
    };
    if let Some(low) = bound(c, 1, "min")? {
        x = x.maximum(&low);
    }
    if let Some(high) = bound(c, 2, "max")? {
        x = x.minimum(&high);
    }
    output(x)
}

/// Imports Pow; the result has the base's type.
fn power(c: &mut NodeCall) -> RuleResult {
    if let Some(two) = c.perhaps_known(1)?
        && two.ty().elements() == 1
        && two.shape().rank() == 0
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

fn modulo(c: &mut NodeCall) -> RuleResult {
    let is_c = c.is("fmod", false)?;
    binary(c, |x, y| {
        let r = x.remainder(y);
        if is_c || x.dtype().is_unsigned_int() {
            return r;
        }
        // The result has the divisor's sign.
        let zero = r.zeros_like();
        let differs = r.less(&zero).not_equal(&y.less(&y.zeros_like()));
        let moves = differs.and(&r.not_equal(&zero));
        let moved = moves.select(&(&r + y), &r);
        if !x.dtype().is_float() {
            return moved;
        }
        // The sign of a zero too.
        let zero_of_y = y.less(&y.zeros_like()).select(&-&zero, &zero);
        r.equal(&zero).select(&zero_of_y, &moved)
    })
}

fn prelu(c: &mut NodeCall) -> RuleResult {
    binary(c, |x, slope| x.greater_equal(&x.zeros_like()).select(x, &(x * slope)))
}

fn leaky_relu(c: &mut NodeCall) -> RuleResult {
    let slope = c.float("alpha", 0.01)?;
    unary(c, |x| x.leaky_relu(slope))
}

fn elu(c: &mut NodeCall) -> RuleResult {
    let alpha = c.float("alpha", 1.0)?;
    unary(c, |x| x.elu(alpha))
}

fn celu(c: &mut NodeCall) -> RuleResult {
    let alpha = c.float("alpha", 1.0)?;
    unary(c, |x| (x / alpha).elu(1.0) * alpha)
}

fn selu(c: &mut NodeCall) -> RuleResult {
    let alpha = c.float("alpha", 1.673_263_192_176_818_8)?;
    let gamma = c.float("gamma", 1.050_701_022_148_132_3)?;
    unary(c, |x| x.elu(alpha) * gamma)
}

fn gelu(c: &mut NodeCall) -> RuleResult {
    match c.word("approximate", "none")?.as_str() {
        "none" => unary(c, Tensor::gelu),
        "tanh" => unary(c, Tensor::gelu_tanh),
        other => Err(unsupported(format!("unsupported attribute approximate = {other}"))),
    }
}

fn hard_sigmoid(c: &mut NodeCall) -> RuleResult {
    let (alpha, beta) = (c.float("alpha", 0.2)?, c.float("beta", 0.5)?);
    unary(c, |x| between(&(x * alpha + beta), 0.0, 1.0))
}

fn hard_swish(c: &mut NodeCall) -> RuleResult {
    unary(c, |x| x * between(&(x / 6.0 + 0.5), 0.0, 1.0))
}

fn between(x: &Tensor, low: f64, high: f64) -> Tensor {
    x.maximum(&x.scalar_like(low)).minimum(&x.scalar_like(high))
}

fn thresholded_relu(c: &mut NodeCall) -> RuleResult {
    let alpha = c.float("alpha", 1.0)?;
    unary(c, |x| x.greater(&x.scalar_like(alpha)).select(x, &x.zeros_like()))
}

fn is_infinite(c: &mut NodeCall) -> RuleResult {
    let (negative, positive) = (c.is("detect_negative", true)?, c.is("detect_positive", true)?);
    unary(c, |x| {
        let is_infinite = x.is_finite().not().and(&x.equal(x));
        let zero = x.zeros_like();
        match (negative, positive) {
            (true, true) => is_infinite,
            (true, false) => is_infinite.and(&x.less(&zero)),
            (false, true) => is_infinite.and(&x.greater(&zero)),
            (false, false) => is_infinite.and(&x.less(x)),
        }
    })
}

/// Returns several outputs in the file's layout.
pub(super) fn several_outputs(all: Vec<Tensor>) -> RuleResult {
    Ok(all.into_iter().map(RuleOutput::Tensor).collect())
}

/// Whether operands have the output's rank and batch size 1, or are constants of lower rank.
fn are_alike(s: &BatchCheck) -> bool {
    let tensor = |t: &usize| s.lite.tensors.get(*t);
    let rank = s.operator.outputs.first().and_then(tensor).map_or(0, |t| t.dims().len());
    s.operator.inputs.iter().flatten().filter_map(tensor).all(|t| {
        t.dims().len() < rank && t.data.is_some() || t.dims().len() == rank && t.dims().first() == Some(&1)
    })
}

/// Exports a unary operator as one node.
fn write_unary(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let (input, order) = e.single(o, y)?;
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new(name, [input], out))
}

fn write_leaky_relu(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let (input, order) = e.single(o, y)?;
    let alpha = OnnxAttribute::Float(o.number(OptionField::Alpha) as f32);
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new(name, [input], out).with("alpha", alpha))
}

/// Exports a clamp as Clip.
fn write_clip(
    e: &mut OnnxBuilder,
    &TfliteSource { o, y, name }: &TfliteSource,
    low: f32,
    high: f32,
) -> Result<()> {
    let (input, order) = e.single(o, y)?;
    let own = e.names[y].clone();
    let (low, high) = (e.number(&format!("{own}/min"), low)?, e.number(&format!("{own}/max"), high)?);
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new(name, [input, low, high], out))
}

/// Exports a binary operator.
fn write_binary(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let (a, b) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let order = e.order_of(&[a, b], y)?;
    let inputs = [e.real(a, order)?, e.real(b, order)?];
    e.finish(y, order, o.activation()?, |out| OnnxNode::new(name, inputs, out))
}

/// Exports CAST between types without a scale.
fn write_cast(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (input, order) = e.single(o, y)?;
    let to = code_of(e.tensor(y)?.ty.dtype);
    e.finish(y, order, FusedActivation::None, |out| {
        OnnxNode::new("Cast", [input], out).with("to", OnnxAttribute::Int(to))
    })
}

/// Exports SELECT_V2.
fn write_select(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let operands = [operand_of(o, 0)?, operand_of(o, 1)?, operand_of(o, 2)?];
    let order = e.order_of(&operands, y)?;
    let inputs = operands.iter().map(|&t| e.real(t, order)).collect::<Result<Vec<_>>>()?;
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new(name, inputs, out))
}

/// Exports x².
fn write_square(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (input, order) = e.single(o, y)?;
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Mul", [input.clone(), input], out))
}

/// Exports 1 / √x.
fn write_inverse_root(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (own, (input, order)) = (e.names[y].clone(), e.single(o, y)?);
    let root = e.made(&format!("{own}/sqrt"), "Sqrt", [input.as_str()]);
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Reciprocal", [root], out))
}

/// Exports (a − b)².
fn write_squared_difference(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (a, b) = (operand_of(o, 0)?, operand_of(o, 1)?);
    let order = e.order_of(&[a, b], y)?;
    let inputs = [e.real(a, order)?, e.real(b, order)?];
    let own = e.names[y].clone();
    let d = e.made(&format!("{own}/difference"), "Sub", inputs.iter().map(String::as_str));
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Mul", [d.clone(), d], out))
}

/// Exports GELU with erf or tanh, since the Gelu operator requires a later opset.
fn write_gelu(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (own, (input, order)) = (e.names[y].clone(), e.single(o, y)?);
    let named = |of: &str| format!("{own}/{of}");
    let x = input.as_str();
    let inner = if o.is(OptionField::Approximate) {
        let square = e.made(&named("square"), "Mul", [x, x]);
        let cube = e.made(&named("cube"), "Mul", [square.as_str(), x]);
        let small = e.number(&named("share"), 0.044_715)?;
        let bent = e.made(&named("bent"), "Mul", [cube.as_str(), &small]);
        let sum = e.made(&named("sum"), "Add", [x, &bent]);
        let factor = e.number(&named("factor"), (2.0 / std::f64::consts::PI).sqrt() as f32)?;
        let inner = e.made(&named("inner"), "Mul", [sum.as_str(), &factor]);
        e.made(&named("tanh"), "Tanh", [inner.as_str()])
    } else {
        let factor = e.number(&named("factor"), std::f32::consts::FRAC_1_SQRT_2)?;
        let inner = e.made(&named("inner"), "Mul", [x, &factor]);
        e.made(&named("erf"), "Erf", [inner.as_str()])
    };
    let (one, half) = (e.number(&named("one"), 1.0)?, e.number(&named("half"), 0.5)?);
    let gate = e.made(&named("gate"), "Add", [inner.as_str(), &one]);
    let both = e.made(&named("both"), "Mul", [x, &gate]);
    e.finish(y, order, FusedActivation::None, |out| OnnxNode::new("Mul", [both, half], out))
}
