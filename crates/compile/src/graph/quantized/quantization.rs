//! Recognizes quantization to 8 bits, `clamp(round(x / scale) + zero point)`, and rewrites it to int8.

use super::dequantized::QuantParam;
use super::linear_terms::{LinearTerms, relu};
use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Binary, Clamp, Convert, Unary};
use systole_ir::{DType, Node, Op, ValueId};

/// A value that is quantized to int8 or uint8.
pub struct QuantizationMatch {
    /// The divided value, before it is rounded.
    scaled: ValueId,
    /// The value and its scale, if the scale is constant.
    pub source: Option<(ValueId, QuantParam)>,
    /// The zero point, in floats: an array, and its number if it is constant.
    zero: Option<ValueId>,
    pub known_zero: Option<QuantParam>,
    /// Element type of the result.
    pub dtype: DType,
}

impl QuantizationMatch {
    /// Recognizes the conversion of `x` to a type of 8 bits.
    pub fn of(g: &Rewriter, x: ValueId, dtype: DType) -> Option<QuantizationMatch> {
        if !matches!(dtype, DType::I8 | DType::U8) || g.ty(x).dtype != DType::F32 {
            return None;
        }
        let inner = clamped(g, x, [dtype.lowest().as_f64(), dtype.highest().as_f64()])?;
        let rounded = |v: ValueId| {
            let node = g.node(v);
            (node.op == Op::Unary(Unary::RoundNearestEven)).then(|| node.inputs[0])
        };
        let node = g.node(inner);
        let (scaled, zero) = match (&node.op, rounded(inner)) {
            (_, Some(scaled)) => (scaled, None),
            (Op::Binary(Binary::Add), None) => {
                let (a, b) = (node.inputs[0], node.inputs[1]);
                match (rounded(a), rounded(b)) {
                    (Some(scaled), _) => (scaled, Some(b)),
                    (None, Some(scaled)) => (scaled, Some(a)),
                    _ => return None,
                }
            }
            _ => return None,
        };
        let known_zero = zero.map_or(Some(QuantParam::All(0.0)), |z| QuantParam::of(g, z));
        let division = g.node(scaled);
        let source = match division.op {
            Op::Binary(Binary::Divide) => {
                QuantParam::of(g, division.inputs[1]).map(|scale| (division.inputs[0], scale))
            }
            _ => None,
        };
        Some(QuantizationMatch { scaled, source, zero, known_zero, dtype })
    }

    /// Appends the quantization to int8; uint8 values are shifted by 128. A constant scale becomes a factor, which may
    /// change a value by one step.
    pub fn push_signed(&self, g: &mut Rewriter, like: &Node) -> ValueId {
        if let Some(value) = self.push_linear(g, like) {
            return value;
        }
        let ty = g.ty(self.scaled).clone();
        let shift = self.shift();
        let scaled = match &self.source {
            Some((x, scale)) => {
                let factor = scale.map(|s| f64::from(1.0 / s as f32)).push(g, &ty, like);
                g.push(Binary::Multiply, &[*x, factor], like)
            }
            None => self.scaled,
        };
        let rounded = g.push(Unary::RoundNearestEven, &[scaled], like);
        let zero = match (&self.known_zero, self.zero) {
            (Some(known), _) => known.map(|z| z - shift).push(g, &ty, like),
            (None, Some(zero)) => {
                let shift = g.full(&ty, shift, like);
                g.push(Binary::Subtract, &[zero, shift], like)
            }
            (None, None) => g.full(&ty, -shift, like),
        };
        let y = g.push(Binary::Add, &[rounded, zero], like);
        push_int8(g, y, -128.0, like)
    }

    /// Difference of the values and the int8 values.
    fn shift(&self) -> f64 {
        if self.dtype == DType::U8 { 128.0 } else { 0.0 }
    }

    /// The same for a value that is a linear combination of integers, also below 0 if they are cut off: scales and zero
    /// points are multiplied here, and the zero point is added before the value is rounded.
    fn push_linear(&self, g: &mut Rewriter, like: &Node) -> Option<ValueId> {
        let (source, scale) = self.source.as_ref()?;
        let zero = self.known_zero.as_ref()?.map(|z| z - self.shift());
        let (x, low) = match relu(g, *source) {
            Some(x) => (x, zero.one()?.max(-128.0)),
            None => (*source, -128.0),
        };
        let inverse = scale.map(|s| 1.0 / s);
        let terms = LinearTerms::of(g, x, like)?.scaled(&inverse)?.plus(&zero)?;
        let y = terms.push(g, like)?;
        let y = g.push(Unary::RoundNearestEven, &[y], like);
        Some(push_int8(g, y, low, like))
    }
}

/// Appends the conversion of whole numbers to int8, clamped to `low..=127`.
fn push_int8(g: &mut Rewriter, y: ValueId, low: f64, like: &Node) -> ValueId {
    let [low, high] = [low, 127.0].map(|v| g.scalar(DType::F32, v, like));
    let y = g.push(Clamp, &[low, y, high], like);
    g.push(Convert { to: DType::I8 }, &[y], like)
}

/// The operand of a clamp to a range, written as `clamp` or as `min(max(x, low), high)`.
fn clamped(g: &Rewriter, v: ValueId, [low, high]: [f64; 2]) -> Option<ValueId> {
    let node = g.node(v);
    let is = |v: ValueId, bound: f64| QuantParam::of(g, v).and_then(|p| p.one()) == Some(bound);
    match node.op {
        Op::Clamp(_) => (is(node.inputs[0], low) && is(node.inputs[2], high)).then(|| node.inputs[1]),
        Op::Binary(Binary::Minimum) if is(node.inputs[1], high) => {
            let inner = g.node(node.inputs[0]);
            let fits = inner.op == Op::Binary(Binary::Maximum) && is(inner.inputs[1], low);
            fits.then(|| inner.inputs[0])
        }
        _ => None,
    }
}
