//! A node as its rule sees it: options, operands in the layout that suits, what is known of them.

use super::values::{RuleOutput, ValueTable, place_in_last, to_last};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{DType, Error, ErrorKind, Literal, Result};
use systole_ir::{GraphBuilder, Tensor};

/// Elements that a value may have: of two such ones products of sizes do not overflow.
pub(super) const MOST_ELEMENTS: usize = 1 << 31;

/// Dimensions that a value may have.
const MOST_DIMENSIONS: usize = 64;

/// Amounts by which sizes may be moved.
const MOST_MOVED: i64 = 1 << 31;

/// A node that becomes ops.
pub(crate) struct NodeCall<'a, 'm> {
    pub node: &'a OnnxNode,
    pub g: GraphBuilder,
    pub values: &'a mut ValueTable<'m>,
    pub opset: i64,
}

/// What a rule makes: one value for each output.
pub(crate) type RuleResult = Result<Vec<RuleOutput>>;

/// One value, as the file has it.
pub(super) fn plain(t: Tensor) -> RuleResult {
    Ok(vec![RuleOutput::Plain(t)])
}

/// One value, in either order.
pub(super) fn made(t: Tensor, is_last: bool) -> RuleResult {
    Ok(vec![if is_last { RuleOutput::Last(t) } else { RuleOutput::Plain(t) }])
}

/// What is there in ONNX, and not here.
pub(super) fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what.into())
}

impl NodeCall<'_, '_> {
    /// Whether an operand is given.
    pub fn has(&self, i: usize) -> bool {
        self.node.inputs.get(i).is_some_and(|n| !n.is_empty())
    }

    fn name(&self, i: usize) -> Result<String> {
        let name = self.node.inputs.get(i).filter(|n| !n.is_empty());
        name.cloned().ok_or_else(|| broken(format!("its operand {i} is missing")))
    }

    /// An operand as the file has it.
    pub fn plain(&mut self, i: usize) -> Result<Tensor> {
        let name = self.name(i)?;
        self.values.plain(&name)
    }

    /// An operand with channels last.
    pub fn last(&mut self, i: usize) -> Result<Tensor> {
        let name = self.name(i)?;
        self.values.last(&name)
    }

    /// An operand in the order in which it is there, and whether that has channels last.
    pub fn oriented(&mut self, i: usize) -> Result<(Tensor, bool)> {
        let name = self.name(i)?;
        let is_last = self.values.is_last(&name)?;
        let t = if is_last { self.values.last(&name)? } else { self.values.plain(&name)? };
        Ok((t, is_last))
    }

    /// Whether an operand is there with channels last alone.
    pub fn is_last(&mut self, i: usize) -> Result<bool> {
        let name = self.name(i)?;
        self.values.is_last(&name)
    }

    /// An operand that may be left out, as the file has it.
    pub fn optional(&mut self, i: usize) -> Result<Option<Tensor>> {
        self.has(i).then(|| self.plain(i)).transpose()
    }

    /// Operands that are taken element by element, in one order, and whether that has channels last. Those of fewer
    /// dimensions get ones in front where that is needed.
    pub fn aligned(&mut self, operands: &[usize]) -> Result<(Vec<Tensor>, bool)> {
        let names = operands.iter().map(|&i| self.name(i)).collect::<Result<Vec<_>>>()?;
        let ranks = names.iter().map(|n| self.values.rank(n)).collect::<Result<Vec<_>>>()?;
        let rank = ranks.iter().copied().max().unwrap_or(0);
        let mut is_last = false;
        for (name, own) in names.iter().zip(&ranks) {
            is_last |= *own == rank && self.values.is_last(name)?;
        }
        let mut all = Vec::new();
        for (name, own) in names.iter().zip(ranks) {
            all.push(match () {
                () if !is_last || own == 0 => self.values.plain(name)?,
                () if own == rank => self.values.last(name)?,
                () => {
                    let t = self.values.plain(name)?;
                    let dims = [&vec![1; rank - own][..], t.shape().dims()].concat();
                    t.reshape(dims).transpose(&to_last(rank))
                }
            });
        }
        Ok((all, is_last))
    }

    /// The elements of an operand, which must not depend on what is given.
    pub fn known(&mut self, i: usize) -> Result<Literal> {
        let name = self.name(i)?;
        self.values.known(&name)?.ok_or_else(|| {
            unsupported(format!("its operand {i} ({name}) depends on the data that is given"))
                .because("shapes, axes and counts must be known before a program runs")
                .hint("export the model for inputs of a fixed shape")
        })
    }

    /// As [`NodeCall::known`]; `None` where it does depend on them.
    pub fn perhaps_known(&mut self, i: usize) -> Result<Option<Literal>> {
        let name = self.name(i)?;
        self.values.known(&name)
    }

    /// Whole numbers of an operand.
    pub fn numbers(&mut self, i: usize) -> Result<Vec<i64>> {
        let value = self.known(i)?;
        Ok((0..value.ty().elements()).map(|at| value.get(at).as_i64()).collect())
    }

    /// An option, where the node has it; `read` takes it if it is of the kind.
    fn option<T>(
        &self,
        name: &str,
        kind: &str,
        read: impl Fn(&OnnxAttribute) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(given) = self.node.attributes.get(name) else { return Ok(None) };
        let wrong = || broken(format!("its option `{name}` is {}, where {kind} is needed", given.kind()));
        read(given).map(Some).ok_or_else(wrong)
    }

    /// An option that is an integer.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        let read = |a: &OnnxAttribute| if let OnnxAttribute::Int(v) = a { Some(*v) } else { None };
        Ok(self.option(name, "an integer", read)?.unwrap_or(default))
    }

    /// An option that is a switch.
    pub fn is(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, default.into())? != 0)
    }

    /// An option that counts something, and must be at least 1.
    pub fn count(&self, name: &str, default: i64) -> Result<usize> {
        let n = self.int(name, default)?;
        let count = usize::try_from(n).ok().filter(|n| (1..=MOST_ELEMENTS).contains(n));
        count.ok_or_else(|| broken(format!("its option `{name}` is {n}")))
    }

    /// An option that is a float.
    pub fn float(&self, name: &str, default: f64) -> Result<f64> {
        let read =
            |a: &OnnxAttribute| if let OnnxAttribute::Float(v) = a { Some(f64::from(*v)) } else { None };
        Ok(self.option(name, "a float", read)?.unwrap_or(default))
    }

    /// An option that is a word.
    pub fn word(&self, name: &str, default: &'static str) -> Result<String> {
        let read = |a: &OnnxAttribute| if let OnnxAttribute::Text(v) = a { Some(v.clone()) } else { None };
        Ok(self.option(name, "a string", read)?.unwrap_or_else(|| default.into()))
    }

    /// The one integer of an operand.
    pub fn number(&mut self, i: usize) -> Result<i64> {
        match self.numbers(i)?[..] {
            [one] => Ok(one),
            ref all => Err(broken(format!("its operand {i} has {} numbers, where one is needed", all.len()))),
        }
    }

    /// An option that is a list of integers.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let read = |a: &OnnxAttribute| if let OnnxAttribute::Ints(v) = a { Some(v.clone()) } else { None };
        self.option(name, "a list of integers", read)
    }

    /// As [`NodeCall::ints`], of sizes.
    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let Some(list) = self.ints(name)? else { return Ok(None) };
        let size = |v: &i64| usize::try_from(*v).ok().filter(|v| *v <= MOST_ELEMENTS);
        let sizes = list.iter().map(size).collect::<Option<Vec<_>>>();
        sizes.map(Some).ok_or_else(|| broken(format!("its {name} are {list:?}")))
    }

    /// A list that is an option in older files, and an operand in newer ones.
    pub fn list(&mut self, name: &str, operand: usize) -> Result<Option<Vec<i64>>> {
        match self.ints(name)? {
            Some(list) => Ok(Some(list)),
            None if self.has(operand) => self.numbers(operand).map(Some),
            None => Ok(None),
        }
    }

    /// Refuses a node whose further outputs are asked for.
    pub fn one_output(&self) -> Result<()> {
        match self.node.outputs.iter().skip(1).find(|o| !o.is_empty()) {
            Some(other) => Err(unsupported(format!("its second result ({other}) is not computed here"))),
            None => Ok(()),
        }
    }

    /// Refuses a file whose nodes ask for more tables (places, weights of pixels, factors of channels) than any model needs.
    pub fn spend(&mut self, elements: usize) -> Result<()> {
        let left = self.values.tables.checked_sub(elements);
        self.values.tables = left.ok_or_else(|| broken("its nodes need tables of more than 2²⁴ elements"))?;
        Ok(())
    }

    /// A constant of the element type of a tensor.
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor {
        self.g.scalar(dtype, value)
    }
}

/// A dimension, counted from the end where it is negative.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let own = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(own)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| broken(format!("there is no dimension {axis} in {rank}")))
}

/// Dimensions, each once.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut own = list.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>>>()?;
    own.sort_unstable();
    own.dedup();
    match own.len() == list.len() {
        true => Ok(own),
        false => Err(broken(format!("a dimension stands twice in {list:?}"))),
    }
}

/// The dimension in the order of a tensor.
pub(super) fn in_order(dim: usize, rank: usize, is_last: bool) -> usize {
    if is_last { place_in_last(dim, rank) } else { dim }
}

/// Sizes that a shape may have here.
pub(crate) fn checked(dims: Vec<usize>) -> Result<Vec<usize>> {
    if dims.len() > MOST_DIMENSIONS {
        return Err(broken(format!("a value has {} dimensions", dims.len())));
    }
    // Without those that are 0: parts of a shape are multiplied too.
    let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    match elements {
        Some(n) if n <= MOST_ELEMENTS => Ok(dims),
        _ => Err(broken(format!("a value of shape {dims:?} has more than 2³¹ elements"))),
    }
}

/// A number by which something moves.
pub(super) fn moved(v: i64) -> Result<i64> {
    match v.checked_abs() {
        Some(n) if n <= MOST_MOVED => Ok(v),
        _ => Err(broken(format!("{v} is no number of elements"))),
    }
}
