//! Recognizes dequantized 8-bit values: `scale · (q − zero point)` in floats, or `q − zero point` in int32.

use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Binary, Reshape, Slice, Transpose};
use systole_ir::{DType, Literal, Node, Op, Shape, TensorType, ValueId};

/// A scale or zero point: one number for all elements, or one for each index of a dimension.
#[derive(Clone, PartialEq, Debug)]
pub enum QuantParam {
    /// The same for all elements.
    All(f64),
    /// One for each index of a dimension.
    Along(usize, Vec<f64>),
}

/// Maximum length of a list of scales or zero points.
const LONGEST: usize = 1 << 16;
/// Maximum number of ops between a constant and the number that is computed from it.
const MOST_STEPS: usize = 10;

impl QuantParam {
    /// Reads a constant, or computes it from constants: conversions, sums, products, reshapes and broadcasts.
    pub fn of(g: &Rewriter, v: ValueId) -> Option<QuantParam> {
        QuantParam::within(g, v, MOST_STEPS)
    }

    /// Like [`QuantParam::of`], with at most `steps` ops one after the other.
    fn within(g: &Rewriter, v: ValueId, steps: usize) -> Option<QuantParam> {
        let node = g.node(v);
        let left = steps.checked_sub(1)?;
        let inner = || QuantParam::within(g, *node.inputs.first()?, left);
        match &node.op {
            Op::Constant(c) => QuantParam::of_literal(&c.value),
            Op::Convert(c) => inner()?.converted(g.ty(node.inputs[0]).dtype, c.to),
            Op::Binary(op) => {
                let (a, b) = (inner()?, QuantParam::within(g, *node.inputs.get(1)?, left)?);
                a.computed(*op, &b, node.outs[0].dtype)
            }
            Op::Reshape(r) => match inner()? {
                QuantParam::Along(_, all) => {
                    let dim = only_long_dim(&r.shape)?;
                    Some(QuantParam::Along(dim, all))
                }
                one => Some(one),
            },
            Op::BroadcastInDim(b) => match inner()? {
                QuantParam::Along(dim, all) => {
                    let to = *b.dims.get(dim)?;
                    (b.shape[to] == all.len()).then_some(QuantParam::Along(to, all))
                }
                one => Some(one),
            },
            Op::Transpose(t) => Some(inner()?.transposed(t)),
            _ => None,
        }
    }

    fn of_literal(value: &Literal) -> Option<QuantParam> {
        let n = value.ty().elements();
        if n > 0 && value.is_splat() {
            return Some(QuantParam::All(value.get(0).as_f64()));
        }
        let dim = only_long_dim(&value.ty().shape).filter(|_| n <= LONGEST)?;
        Some(QuantParam::Along(dim, (0..n).map(|i| value.get(i).as_f64()).collect()))
    }

    /// Converts integers to f32 or int32.
    fn converted(self, from: DType, to: DType) -> Option<QuantParam> {
        let is_narrow = || self.numbers().iter().all(|v| v.abs() < 16_777_216.0);
        match to {
            _ if from == to => Some(self),
            DType::F32 if from.is_int() => Some(self.map(|v| f64::from(v as f32))),
            DType::I32 if from.is_int() && is_narrow() => Some(self),
            _ => None,
        }
    }

    /// Applies an op to f32 or small int32 numbers.
    fn computed(&self, op: Binary, other: &QuantParam, dtype: DType) -> Option<QuantParam> {
        let apply = |a: f64, b: f64| match op {
            Binary::Add => a + b,
            Binary::Subtract => a - b,
            _ => a * b,
        };
        let is_known = matches!(op, Binary::Add | Binary::Subtract | Binary::Multiply);
        let all = self.with(other, apply).filter(|_| is_known)?;
        match dtype {
            DType::F32 => Some(all.map(|v| f64::from(v as f32))),
            DType::I32 => Some(all).filter(|all| all.numbers().iter().all(|v| v.abs() < 16_777_216.0)),
            _ => None,
        }
    }

    fn transposed(self, t: &Transpose) -> QuantParam {
        match self {
            QuantParam::Along(dim, all) => {
                let to = t.permutation.iter().position(|&d| d == dim).unwrap_or(dim);
                QuantParam::Along(to, all)
            }
            one => one,
        }
    }

    /// The number for all elements, or that of each index.
    pub fn numbers(&self) -> &[f64] {
        match self {
            QuantParam::All(v) => std::slice::from_ref(v),
            QuantParam::Along(_, all) => all,
        }
    }

    /// The number, if it is one for all elements.
    pub fn one(&self) -> Option<f64> {
        match self {
            QuantParam::All(v) => Some(*v),
            QuantParam::Along(..) => None,
        }
    }

    /// Applies a function to each number.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> QuantParam {
        match self {
            QuantParam::All(v) => QuantParam::All(f(*v)),
            QuantParam::Along(dim, all) => QuantParam::Along(*dim, all.iter().map(|v| f(*v)).collect()),
        }
    }

    /// Combines the numbers of both; `None` if they run along different dimensions.
    pub fn with(&self, other: &QuantParam, f: impl Fn(f64, f64) -> f64) -> Option<QuantParam> {
        Some(match (self, other) {
            (own, QuantParam::All(b)) => own.map(|a| f(a, *b)),
            (QuantParam::All(a), other) => other.map(|b| f(*a, b)),
            (QuantParam::Along(d, all), QuantParam::Along(e, others))
                if d == e && all.len() == others.len() =>
            {
                QuantParam::Along(*d, all.iter().zip(others).map(|(a, b)| f(*a, *b)).collect())
            }
            _ => return None,
        })
    }

    /// Appends it to a graph, broadcast to an array type.
    pub fn push(&self, g: &mut Rewriter, ty: &TensorType, like: &Node) -> ValueId {
        match self {
            QuantParam::All(v) => g.full(ty, *v, like),
            QuantParam::Along(dim, all) => vector(g, ty, *dim, all, like),
        }
    }
}

/// Appends a list of numbers along dimension `dim`, broadcast to an array type.
pub fn vector(g: &mut Rewriter, ty: &TensorType, dim: usize, all: &[f64], like: &Node) -> ValueId {
    use systole_ir::op::{BroadcastInDim, Constant};
    let mut value = systole_ir::LiteralBuilder::new(TensorType::new(ty.dtype, [all.len()]));
    all.iter().enumerate().for_each(|(i, v)| value.set(i, systole_ir::Scalar::of(ty.dtype, *v)));
    let list = g.push(Constant { value: value.finish() }, &[], like);
    let dims = systole_ir::Dims::from_slice(&[dim]);
    g.push(BroadcastInDim { dims, shape: ty.shape.clone() }, &[list], like)
}

/// The dimension of a shape that is not 1, if there is only one.
fn only_long_dim(shape: &Shape) -> Option<usize> {
    let mut long = (0..shape.rank()).filter(|&d| shape[d] != 1);
    let dim = long.next()?;
    long.next().is_none().then_some(dim)
}

/// A zero point.
#[derive(Clone, PartialEq, Debug)]
pub enum ZeroPoint {
    /// A constant.
    Known(QuantParam),
    /// A scalar of type int32.
    Computed(ValueId),
}

/// A dequantized value: `scale · (q − zero)`.
#[derive(Clone, PartialEq, Debug)]
pub struct DequantizationMatch {
    /// Array of int8 or uint8.
    pub q: ValueId,
    /// Zero point, in the type of `q`.
    pub zero: ZeroPoint,
    /// Scale; 1 for int32 values.
    pub scale: QuantParam,
}

impl DequantizationMatch {
    /// Recognizes a dequantized value, also behind transposes, reshapes and slices, which are applied to the integers.
    pub fn of(g: &mut Rewriter, v: ValueId) -> Option<DequantizationMatch> {
        if let Some(found) = DequantizationMatch::plain(g, v) {
            return Some(found);
        }
        let node = g.node(v).clone();
        let x = *node.inputs.first()?;
        match &node.op {
            Op::Transpose(t) => {
                let inner = DequantizationMatch::of(g, x)?;
                Some(inner.moved(g, t.clone().into(), &node, |p| Some(p.transposed(t)))?)
            }
            Op::Reshape(Reshape { .. }) | Op::Slice(Slice { .. }) => {
                let inner = DequantizationMatch::of(g, x)?;
                inner.moved(g, node.op.clone(), &node, |p| p.one().map(QuantParam::All))
            }
            _ => None,
        }
    }

    fn moved(
        self,
        g: &mut Rewriter,
        op: Op,
        like: &Node,
        of: impl Fn(QuantParam) -> Option<QuantParam>,
    ) -> Option<DequantizationMatch> {
        let zero = match self.zero {
            ZeroPoint::Known(p) => ZeroPoint::Known(of(p)?),
            computed => computed,
        };
        let scale = of(self.scale)?;
        Some(DequantizationMatch { q: g.push(op, &[self.q], like), zero, scale })
    }

    /// Recognizes a value that is dequantized directly from an array.
    pub fn plain(g: &Rewriter, v: ValueId) -> Option<DequantizationMatch> {
        match g.ty(v).dtype {
            DType::I32 => centered(g, v, QuantParam::All(1.0)),
            DType::F32 => {
                let node = g.node(v);
                if node.op != Op::Binary(Binary::Multiply) {
                    return None;
                }
                let (a, b) = (node.inputs[0], node.inputs[1]);
                let of = |x, scale| centered(g, x, QuantParam::of(g, scale)?);
                of(a, b).or_else(|| of(b, a))
            }
            _ => None,
        }
    }

    /// Appends the dequantized value to a graph.
    pub fn push(&self, g: &mut Rewriter, like: &Node) -> Option<ValueId> {
        use systole_ir::op::Convert;
        let ZeroPoint::Known(zero) = &self.zero else { return None };
        let x = g.push(Convert { to: DType::F32 }, &[self.q], like);
        let ty = g.ty(x).clone();
        let zero = zero.push(g, &ty, like);
        let x = g.push(Binary::Subtract, &[x, zero], like);
        let scale = self.scale.push(g, &ty, like);
        Some(g.push(Binary::Multiply, &[x, scale], like))
    }
}

/// Recognizes `convert(q) − zero`, or `convert(q)`.
fn centered(g: &Rewriter, v: ValueId, scale: QuantParam) -> Option<DequantizationMatch> {
    let node = g.node(v);
    let source = |v: ValueId| {
        let node = g.node(v);
        let q = *node.inputs.first()?;
        let is_byte = matches!(g.ty(q).dtype, DType::I8 | DType::U8);
        (matches!(node.op, Op::Convert(_)) && is_byte).then_some(q)
    };
    if let Some(q) = source(v) {
        return Some(DequantizationMatch { q, zero: ZeroPoint::Known(QuantParam::All(0.0)), scale });
    }
    if node.op != Op::Binary(Binary::Subtract) {
        return None;
    }
    let q = source(node.inputs[0])?;
    let zero = match QuantParam::of(g, node.inputs[1]) {
        Some(known) => ZeroPoint::Known(known),
        None => ZeroPoint::Computed(scalar_of(g, node.inputs[1])?),
    };
    Some(DequantizationMatch { q, zero, scale })
}

/// The int32 scalar that a value repeats.
fn scalar_of(g: &Rewriter, v: ValueId) -> Option<ValueId> {
    let node = g.node(v);
    match &node.op {
        _ if g.ty(v).rank() == 0 => (g.ty(v).dtype == DType::I32).then_some(v),
        Op::BroadcastInDim(_) => scalar_of(g, node.inputs[0]),
        _ => None,
    }
}
