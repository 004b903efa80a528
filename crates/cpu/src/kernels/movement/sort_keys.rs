//! Comparators that compare one function of either element: each element has a key, and the order of keys, as whole
//! numbers, is that of the elements. JAX's comparators are such: they make −0 and 0, and all NaN, the same first.

use std::collections::HashSet;
use systole_ir::op::{Compare, CompareType, Direction};
use systole_ir::{DType, Graph, Op, Scalar, ValueId};

/// A comparator as keys of the elements of one operand.
pub struct SortKeys {
    /// The operand that is compared.
    pub operand: usize,
    compare: Compare,
    is_descending: bool,
    dtype: DType,
    /// The function: its nodes in order, the element's and the key's.
    nodes: Vec<usize>,
    element: usize,
    key: usize,
    /// Values of all nodes, with those of constants.
    values: Vec<Scalar>,
}

impl SortKeys {
    /// `None`: the comparator is no comparison, below or above, of one function of both elements of an operand.
    pub fn of(body: &Graph) -> Option<SortKeys> {
        let node = body.node(*body.results.first()?);
        let Op::Compare(compare) = &node.op else { return None };
        let [a, b] = [*node.inputs.first()?, *node.inputs.get(1)?];
        let (p, q) = (source(body, a)?, source(body, b)?);
        if p / 2 != q / 2 || p == q || !alike(body, a, b) {
            return None;
        }
        let is_descending = match compare.direction {
            Direction::Lt => p > q,
            Direction::Gt => p < q,
            _ => return None,
        };
        let mut needed = vec![false; body.nodes.len()];
        needed[a.index()] = true;
        for i in (0..=a.index()).rev().filter(|&i| i < body.nodes.len()) {
            if needed[i] {
                body.nodes[i].inputs.iter().for_each(|v| needed[v.index()] = true);
            }
        }
        let values = body.nodes.iter().map(|n| match &n.op {
            Op::Constant(c) => c.value.get(0),
            _ => Scalar::Bool(false),
        });
        let is_step =
            |i: &usize| needed[*i] && !matches!(body.nodes[*i].op, Op::Parameter(_) | Op::Constant(_));
        let (element, dtype) = (body.params.get(p)?.index(), body.ty(a).dtype);
        Some(SortKeys {
            operand: p / 2,
            compare: *compare,
            is_descending,
            dtype,
            nodes: (0..body.nodes.len()).filter(is_step).collect(),
            element,
            key: a.index(),
            values: values.collect(),
        })
    }

    /// Values of the function's nodes, to be handed to [`SortKeys::key`].
    pub fn memory(&self) -> Vec<Scalar> {
        self.values.clone()
    }

    /// Bits of a key.
    pub fn bits(&self) -> usize {
        self.dtype.bits() as usize
    }

    /// The key of an element; `None` where it has no place in the order.
    pub fn key(&self, body: &Graph, x: Scalar, values: &mut [Scalar]) -> Option<u64> {
        values[self.element] = x;
        for &i in &self.nodes {
            let node = &body.nodes[i];
            let at = |k: usize| node.inputs.get(k).map_or(Scalar::Bool(false), |v| values[v.index()]);
            let args = [at(0), at(1), at(2)];
            values[i] = node.op.rule().eval_scalar(args.get(..node.inputs.len())?, node.outs[0].dtype)?;
        }
        let key = self.ordered(values[self.key])?;
        Some(if self.is_descending { !key & (u64::MAX >> (64 - self.bits())) } else { key })
    }

    /// A number as one whose order as a whole number is the comparison's.
    fn ordered(&self, x: Scalar) -> Option<u64> {
        let sign = 1 << (self.bits() - 1);
        let bits = match x {
            Scalar::Float(v) if self.compare.compare_type != CompareType::TotalOrder => {
                if v.is_nan() {
                    return None;
                }
                Scalar::Float(v + 0.0).to_bits(self.dtype)
            }
            x => x.to_bits(self.dtype),
        };
        let mask = u64::MAX >> (64 - self.bits());
        Some(match x {
            Scalar::Float(_) if bits & sign != 0 => !bits & mask,
            Scalar::Float(_) => bits | sign,
            Scalar::Int(_) => (bits ^ sign) & mask,
            _ => bits & mask,
        })
    }
}

/// The one parameter that a value depends on.
fn source(body: &Graph, v: ValueId) -> Option<usize> {
    // Of each node: none yet, one, or several.
    let mut of: Vec<Result<Option<usize>, ()>> = Vec::with_capacity(v.index() + 1);
    for node in body.nodes.iter().take(v.index() + 1) {
        let join = |a: Result<Option<usize>, ()>, b: Result<Option<usize>, ()>| match (a?, b?) {
            (Some(a), Some(b)) if a != b => Err(()),
            (a, b) => Ok(a.or(b)),
        };
        let mut found = node.inputs.iter().try_fold(None, |all, v| join(Ok(all), of[v.index()]));
        if let Op::Parameter(p) = &node.op {
            found = Ok(Some(p.index));
        }
        of.push(found);
    }
    of.pop()?.ok()?
}

/// Whether two values are the same function of their parameter.
fn alike(body: &Graph, a: ValueId, b: ValueId) -> bool {
    let (mut seen, mut open) = (HashSet::new(), vec![(a, b)]);
    while let Some((a, b)) = open.pop() {
        if !seen.insert((a, b)) {
            continue;
        }
        let (x, y) = (body.node(a), body.node(b));
        let same = x.op == y.op || matches!((&x.op, &y.op), (Op::Parameter(_), Op::Parameter(_)));
        if !same || x.inputs.len() != y.inputs.len() {
            return false;
        }
        open.extend(x.inputs.iter().copied().zip(y.inputs.iter().copied()));
    }
    true
}
