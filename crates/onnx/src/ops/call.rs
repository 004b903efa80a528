//! Arguments of an ONNX import rule: a node's attributes, its operands, and their constant values.

use super::values::{RuleOutput, ValueTable};
use crate::model::{OnnxAttribute, OnnxGraph, OnnxNode, broken};
use std::cell::RefCell;
use std::collections::BTreeSet;
use systole_base::{DType, Error, ErrorKind, Literal, Result, ensure};
use systole_ir::{GraphBuilder, Tensor};

/// Maximum elements of a value; products of two sizes do not overflow.
pub(super) const MOST_ELEMENTS: usize = 1 << 31;

/// Maximum rank of a value.
const MOST_DIMENSIONS: usize = 64;

/// Maximum offset of slices and pads.
const MOST_MOVED: i64 = 1 << 31;

/// A node being imported.
pub(crate) struct NodeCall<'a, 'm> {
    pub node: &'a OnnxNode,
    pub g: GraphBuilder,
    pub values: &'a mut ValueTable<'m>,
    pub opset: i64,
    /// Names of the attributes that the rule read.
    read: RefCell<BTreeSet<String>>,
}

/// Attributes that change no result that is computed here: they apply to training, to unsupported outputs, element types
/// or modes, or leave a choice.
const WITHOUT_EFFECT: [(&str, &[&str]); 11] = [
    ("BatchNormalization", &["momentum"]),
    ("Cast", &["saturate", "round_mode"]),
    ("CastLike", &["saturate", "round_mode"]),
    ("Dropout", &["ratio", "seed"]),
    ("GRU", &["activation_alpha", "activation_beta"]),
    ("LSTM", &["activation_alpha", "activation_beta"]),
    ("MaxPool", &["storage_order"]),
    ("QuantizeLinear", &["saturate"]),
    ("Resize", &["cubic_coeff_a", "exclude_outside", "extrapolation_value"]),
    ("RNN", &["activation_alpha", "activation_beta"]),
    ("TopK", &["sorted"]),
];

/// Result of an import rule: one value per output.
pub(crate) type RuleResult = Result<Vec<RuleOutput>>;

/// Returns one output.
pub(super) fn output(t: Tensor) -> RuleResult {
    Ok(vec![RuleOutput::Tensor(t)])
}

/// Returns an error about an unsupported feature.
pub(super) fn unsupported(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, what.into())
}

/// Returns the error of a value that must be known and depends on the inputs.
fn depends_on_data(what: &str) -> Error {
    unsupported(format!("{what} depends on the input data"))
        .because("shapes, axes and counts must be known at compile time")
        .hint("export the model for inputs with a fixed shape, or run it with the values: systole run FILE.onnx --input FILE.npz")
}

impl<'a, 'm> NodeCall<'a, 'm> {
    pub fn new(node: &'a OnnxNode, values: &'a mut ValueTable<'m>, opset: i64) -> NodeCall<'a, 'm> {
        NodeCall { node, g: values.g.clone(), values, opset, read: RefCell::default() }
    }

    /// Returns an attribute, and marks it as read.
    pub fn attribute(&self, name: &str) -> Option<&'a OnnxAttribute> {
        self.read.borrow_mut().insert(name.into());
        self.node.attributes.get(name)
    }

    /// Returns an attribute that the rule did not read and that is not known to be without effect.
    pub fn unread_attribute(&self) -> Option<String> {
        let idle =
            WITHOUT_EFFECT.iter().find(|(op, _)| *op == self.node.op).map_or(&[][..], |(_, names)| names);
        let read = self.read.borrow();
        let mut left = self.node.attributes.keys();
        left.find(|n| !read.contains(*n) && !idle.contains(&n.as_str())).cloned()
    }

    /// Rejects a precision of intermediate results other than f32, which is computed here.
    pub fn stash_type(&self) -> Result<()> {
        match self.int("stash_type", 1)? {
            1 => Ok(()),
            code => Err(unsupported(format!("unsupported stash_type {code}"))
                .hint("export it with stash_type 1 (float32)")),
        }
    }

    /// Whether an operand of the ONNX node is present.
    pub fn has(&self, i: usize) -> bool {
        self.node.inputs.get(i).is_some_and(|n| !n.is_empty())
    }

    fn name(&self, i: usize) -> Result<String> {
        let name = self.node.inputs.get(i).filter(|n| !n.is_empty());
        name.cloned().ok_or_else(|| broken(format!("operand {i} is missing")))
    }

    /// Returns an operand of the ONNX node.
    pub fn tensor(&mut self, i: usize) -> Result<Tensor> {
        let name = self.name(i)?;
        self.values.tensor(&name)
    }

    /// Returns an operand of the ONNX node that is a sequence.
    pub fn sequence(&mut self, i: usize) -> Result<Vec<Tensor>> {
        let name = self.name(i)?;
        self.values.sequence(&name)
    }

    /// Returns an optional operand of the ONNX node.
    pub fn optional(&mut self, i: usize) -> Result<Option<Tensor>> {
        self.has(i).then(|| self.tensor(i)).transpose()
    }

    /// Returns the elements of an operand, which must not depend on the model's inputs.
    pub fn known(&mut self, i: usize) -> Result<Literal> {
        let mut all = self.known_together(&[i])?;
        all.pop().ok_or_else(|| broken(format!("operand {i} is missing")))
    }

    /// Like [`NodeCall::known`], for several operands: evaluates them in one stage.
    pub fn known_together(&mut self, operands: &[usize]) -> Result<Vec<Literal>> {
        let names = operands.iter().map(|&i| self.name(i)).collect::<Result<Vec<_>>>()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let known = self.values.known_together(&names)?;
        known.ok_or_else(|| depends_on_data(&format!("operand {} `{}`", operands[0], names[0])))
    }

    /// Returns the elements of a computed tensor, which must not depend on the model's inputs; `what` names it.
    pub fn known_value(&mut self, t: &Tensor, what: &str) -> Result<Literal> {
        let known = self.values.evaluated(std::slice::from_ref(t))?;
        known.and_then(|mut all| all.pop()).ok_or_else(|| depends_on_data(what))
    }

    /// Like [`NodeCall::known`]; `None` if the operand depends on the inputs.
    pub fn perhaps_known(&mut self, i: usize) -> Result<Option<Literal>> {
        let name = self.name(i)?;
        self.values.known(&name)
    }

    /// Returns the integers of a constant operand.
    pub fn numbers(&mut self, i: usize) -> Result<Vec<i64>> {
        let value = self.known(i)?;
        Ok((0..value.ty().elements()).map(|at| value.get(at).as_i64()).collect())
    }

    /// Returns an attribute if the node has it; `read` extracts a value of the expected kind.
    fn option<T>(
        &self,
        name: &str,
        kind: &str,
        read: impl Fn(&OnnxAttribute) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(given) = self.attribute(name) else { return Ok(None) };
        let wrong = || broken(format!("attribute `{name}` is {}, expected {kind}", given.kind()));
        read(given).map(Some).ok_or_else(wrong)
    }

    /// Returns an integer attribute of the ONNX node.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        let read = |a: &OnnxAttribute| if let OnnxAttribute::Int(v) = a { Some(*v) } else { None };
        Ok(self.option(name, "an integer", read)?.unwrap_or(default))
    }

    /// Returns a bool attribute of the ONNX node.
    pub fn is(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, default.into())? != 0)
    }

    /// Returns an attribute of the ONNX node that is a count of at least 1.
    pub fn count(&self, name: &str, default: i64) -> Result<usize> {
        let n = self.int(name, default)?;
        let count = usize::try_from(n).ok().filter(|n| (1..=MOST_ELEMENTS).contains(n));
        count.ok_or_else(|| broken(format!("attribute `{name}` must be at least 1, got {n}")))
    }

    /// Returns a float attribute of the ONNX node.
    pub fn float(&self, name: &str, default: f64) -> Result<f64> {
        let read =
            |a: &OnnxAttribute| if let OnnxAttribute::Float(v) = a { Some(f64::from(*v)) } else { None };
        Ok(self.option(name, "a float", read)?.unwrap_or(default))
    }

    /// Returns a string attribute of the ONNX node.
    pub fn word(&self, name: &str, default: &'static str) -> Result<String> {
        let read = |a: &OnnxAttribute| if let OnnxAttribute::Text(v) = a { Some(v.clone()) } else { None };
        Ok(self.option(name, "a string", read)?.unwrap_or_else(|| default.into()))
    }

    /// Returns the only integer of a constant operand of the ONNX node.
    pub fn number(&mut self, i: usize) -> Result<i64> {
        match self.numbers(i)?[..] {
            [one] => Ok(one),
            ref all => Err(broken(format!("operand {i} has {} numbers, expected one", all.len()))),
        }
    }

    /// Returns an attribute of the ONNX node that is a list of integers.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let read = |a: &OnnxAttribute| if let OnnxAttribute::Ints(v) = a { Some(v.clone()) } else { None };
        self.option(name, "a list of integers", read)
    }

    /// Returns an attribute of the ONNX node that is a list of sizes.
    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        let Some(list) = self.ints(name)? else { return Ok(None) };
        let size = |v: &i64| usize::try_from(*v).ok().filter(|v| *v <= MOST_ELEMENTS);
        let sizes = list.iter().map(size).collect::<Option<Vec<_>>>();
        sizes.map(Some).ok_or_else(|| broken(format!("attribute {name} must be sizes, got {list:?}")))
    }

    /// Returns an attribute of the ONNX node that is a nested graph.
    pub fn graph(&self, name: &str) -> Result<&'a OnnxGraph> {
        match self.attribute(name) {
            Some(OnnxAttribute::Graph(graph)) => Ok(graph),
            Some(other) => Err(broken(format!("attribute `{name}` is {}, expected a graph", other.kind()))),
            None => Err(broken(format!("attribute `{name}` is missing"))),
        }
    }

    /// Returns a list that is an attribute in older files and an operand in newer ones.
    pub fn list(&mut self, name: &str, operand: usize) -> Result<Option<Vec<i64>>> {
        match self.ints(name)? {
            Some(list) => Ok(Some(list)),
            None if self.has(operand) => self.numbers(operand).map(Some),
            None => Ok(None),
        }
    }

    /// Rejects an ONNX node whose additional outputs are used.
    pub fn one_output(&self) -> Result<()> {
        match self.node.outputs.iter().skip(1).find(|o| !o.is_empty()) {
            Some(other) => Err(unsupported(format!("the node's second output ({other}) is not supported"))),
            None => Ok(()),
        }
    }

    /// Rejects a file whose nodes need larger tables (indices, interpolation weights, channel factors) than any model
    /// needs.
    pub fn spend(&mut self, elements: usize) -> Result<()> {
        let left = self.values.tables.checked_sub(elements);
        self.values.tables = left.ok_or_else(|| broken("the nodes need tables of more than 2²⁴ elements"))?;
        Ok(())
    }

    /// Returns a scalar constant with a tensor's element type.
    pub fn scalar(&self, dtype: DType, value: f64) -> Tensor {
        self.g.scalar(dtype, value)
    }
}

/// Normalizes an axis; negative ones count from the end.
pub(super) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let own = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    usize::try_from(own)
        .ok()
        .filter(|a| *a < rank)
        .ok_or_else(|| broken(format!("axis {axis} is out of range for rank {rank}")))
}

/// Normalizes distinct axes.
pub(super) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut own = list.iter().map(|&a| axis(a, rank)).collect::<Result<Vec<_>>>()?;
    own.sort_unstable();
    own.dedup();
    match own.len() == list.len() {
        true => Ok(own),
        false => Err(broken(format!("axes {list:?} contain a duplicate"))),
    }
}

/// Checks that a shape is supported.
pub(crate) fn checked(dims: Vec<usize>) -> Result<Vec<usize>> {
    ensure!(dims.len() <= MOST_DIMENSIONS, broken(format!("rank {} is too large", dims.len())));
    // Zero sizes are ignored, since parts of a shape are multiplied too.
    let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
    match elements {
        Some(n) if n <= MOST_ELEMENTS => Ok(dims),
        _ => Err(broken(format!("shape {dims:?} has more than 2³¹ elements"))),
    }
}

/// Checks an offset.
pub(super) fn moved(v: i64) -> Result<i64> {
    match v.checked_abs() {
        Some(n) if n <= MOST_MOVED => Ok(v),
        _ => Err(broken(format!("offset {v} is out of range"))),
    }
}
