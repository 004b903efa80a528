//! Linear combinations of integers, `Σ scale · convert(q) + offset`: sums and scales of dequantized values.

use super::dequantized::QuantParam;
use crate::graph::rewrite::Rewriter;
use systole_ir::op::{Binary, CompareType, Convert, Direction};
use systole_ir::{DType, Node, Op, ValueId};

/// Maximum number of arrays of integers.
const MOST_TERMS: usize = 3;

/// A linear combination of integers.
pub struct LinearTerms {
    /// Arrays of int8 or int32, converted to f32, and their scales.
    terms: Vec<(ValueId, QuantParam)>,
    offset: QuantParam,
}

impl LinearTerms {
    /// Recognizes a linear combination of integers with constant scales.
    pub fn of(g: &mut Rewriter, x: ValueId, like: &Node) -> Option<LinearTerms> {
        let node = g.node(x).clone();
        let known = |g: &Rewriter, k: usize| QuantParam::of(g, *node.inputs.get(k)?);
        match node.op {
            Op::Convert(Convert { to: DType::F32 }) => LinearTerms::integers(g, x, like),
            Op::Binary(Binary::Multiply) => {
                let (k, scale) = [0, 1].into_iter().find_map(|k| Some((k, known(g, k)?)))?;
                LinearTerms::of(g, node.inputs[1 - k], like)?.scaled(&scale)
            }
            Op::Binary(Binary::Add) => {
                if let Some((k, more)) = [0, 1].into_iter().find_map(|k| Some((k, known(g, k)?))) {
                    return LinearTerms::of(g, node.inputs[1 - k], like)?.plus(&more);
                }
                let mut all = LinearTerms::of(g, node.inputs[0], like)?;
                let more = LinearTerms::of(g, node.inputs[1], like)?;
                all.terms.extend(more.terms);
                all.plus(&more.offset).filter(|all| all.terms.len() <= MOST_TERMS)
            }
            Op::Binary(Binary::Subtract) => {
                let less = known(g, 1)?.map(|v| -v);
                LinearTerms::of(g, node.inputs[0], like)?.plus(&less)
            }
            _ => None,
        }
    }

    /// Recognizes converted integers; a constant that is added to int32 sums becomes an offset.
    fn integers(g: &mut Rewriter, x: ValueId, like: &Node) -> Option<LinearTerms> {
        let q = g.node(x).inputs[0];
        let sum = g.node(q).clone();
        let one =
            |x: ValueId, offset: QuantParam| LinearTerms { terms: vec![(x, QuantParam::All(1.0))], offset };
        match g.ty(q).dtype {
            DType::I32 if sum.op == Op::Binary(Binary::Add) => match QuantParam::of(g, sum.inputs[1]) {
                Some(offset) => {
                    let x = g.push(Convert { to: DType::F32 }, &[sum.inputs[0]], like);
                    Some(one(x, offset))
                }
                None => Some(one(x, QuantParam::All(0.0))),
            },
            DType::I8 | DType::I32 => Some(one(x, QuantParam::All(0.0))),
            _ => None,
        }
    }

    /// Multiplies everything by a constant.
    pub fn scaled(self, by: &QuantParam) -> Option<LinearTerms> {
        let product = |p: &QuantParam| p.with(by, |a, b| a * b);
        let terms = self.terms.iter().map(|(x, scale)| Some((*x, product(scale)?)));
        Some(LinearTerms { terms: terms.collect::<Option<_>>()?, offset: product(&self.offset)? })
    }

    /// Adds a constant.
    pub fn plus(self, more: &QuantParam) -> Option<LinearTerms> {
        Some(LinearTerms { offset: self.offset.with(more, |a, b| a + b)?, ..self })
    }

    /// Appends the combination to a graph.
    pub fn push(&self, g: &mut Rewriter, like: &Node) -> Option<ValueId> {
        let mut sum = None;
        for (x, scale) in &self.terms {
            let ty = g.ty(*x).clone();
            let scale = scale.push(g, &ty, like);
            let term = g.push(Binary::Multiply, &[*x, scale], like);
            sum = Some(match sum {
                Some(sum) => g.push(Binary::Add, &[sum, term], like),
                None => term,
            });
        }
        let sum = sum?;
        let ty = g.ty(sum).clone();
        let offset = self.offset.push(g, &ty, like);
        Some(g.push(Binary::Add, &[sum, offset], like))
    }
}

/// The operand of `select(x ≤ 0, 0, x)` or `max(x, 0)`.
pub fn relu(g: &Rewriter, v: ValueId) -> Option<ValueId> {
    let node = g.node(v);
    let is_zero = |v: ValueId| QuantParam::of(g, v).and_then(|p| p.one()) == Some(0.0);
    match &node.op {
        Op::Select(_) => {
            let (test, x) = (g.node(node.inputs[0]), node.inputs[2]);
            let Op::Compare(c) = &test.op else { return None };
            let fits = c.direction == Direction::Le
                && c.compare_type != CompareType::TotalOrder
                && test.inputs[0] == x
                && is_zero(test.inputs[1])
                && is_zero(node.inputs[1]);
            fits.then_some(x)
        }
        Op::Binary(Binary::Maximum) if is_zero(node.inputs[1]) => Some(node.inputs[0]),
        _ => None,
    }
}
