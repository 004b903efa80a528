//! Builds the nodes of an exported graph: values with pending repetition, names, constants and the batch size.

use crate::export::BATCH;
use crate::model::{DimSize, OnnxAttribute, OnnxGraph, OnnxNode, ValueInfo};
use std::collections::{BTreeMap, BTreeSet};
use systole_base::{Literal, Result, Shape, TensorType, err};
use systole_ir::Node;
use systole_ir::interp::EvalCx;

/// Maximum number of elements of an array that is computed during export.
const MOST_FOLDED: usize = 1 << 16;
/// Name of the batch size, `i64[1]`.
const BATCH_SIZE: &str = "batch_size";

/// A value, or why ONNX cannot express it.
pub(super) type Exported = Result<ExportedValue>;

/// A value of the graph in ONNX.
#[derive(Clone, Debug)]
pub(super) struct ExportedValue {
    /// Name in ONNX.
    pub name: String,
    /// Type in the graph.
    pub ty: TensorType,
    /// Dimensions of the ONNX array: those of the type, or 1 where elements have yet to be repeated. Element-wise
    /// operators of ONNX repeat them by themselves.
    pub dims: Shape,
    /// The array, with the dimensions `dims`, if it is known during export.
    pub constant: Option<Literal>,
}

impl ExportedValue {
    /// Creates a value without pending repetition.
    pub fn whole(name: String, ty: TensorType) -> ExportedValue {
        ExportedValue { name, dims: ty.shape.clone(), ty, constant: None }
    }

    /// Whether no repetition is pending.
    pub fn is_whole(&self) -> bool {
        self.dims == self.ty.shape
    }
}

/// Writes the nodes of a graph.
pub(super) struct GraphWriter {
    /// Batch size whose multiples are symbolic dimensions.
    batch: Option<usize>,
    /// Whether the run-time batch size has a name.
    has_batch: bool,
    pub nodes: Vec<OnnxNode>,
    pub constants: BTreeMap<String, Literal>,
    names: BTreeSet<String>,
    /// Layer of the node that is written, a part of new names.
    pub scope: String,
}

impl GraphWriter {
    pub fn new(batch: Option<usize>) -> GraphWriter {
        GraphWriter {
            batch,
            has_batch: false,
            nodes: Vec::new(),
            constants: BTreeMap::new(),
            names: BTreeSet::from([BATCH_SIZE.to_string()]),
            scope: String::new(),
        }
    }

    /// Whether a dimension depends on the batch size.
    pub fn is_batch(&self, dim: usize) -> bool {
        self.batch.is_some_and(|n| dim != 0 && dim.is_multiple_of(n))
    }

    /// Dimensions for the declaration of an input or output.
    pub fn sizes(&self, shape: &Shape) -> Vec<DimSize> {
        let size = |&dim: &usize| match self.batch {
            Some(n) if dim == n => batch_dim(),
            Some(_) if self.is_batch(dim) => DimSize::Open,
            _ => DimSize::Known(dim),
        };
        shape.iter().map(size).collect()
    }

    /// An input and its dimension that has the batch size.
    pub fn batch_place(&self, inputs: &[ExportedValue]) -> Option<(String, usize)> {
        inputs.iter().find_map(|x| {
            let dim = self.sizes(&x.ty.shape).iter().position(|size| !is_known(size))?;
            Some((x.name.clone(), dim))
        })
    }

    /// Names the run-time batch size, `i64[1]`.
    pub fn read_batch(&mut self, input: &str, dim: usize) {
        let shape = self.emit("Shape", &[input]);
        let at = self.ints(&[dim as i64]);
        self.named("Gather", &[&shape, &at], BATCH_SIZE);
        self.has_batch = true;
    }

    /// Keeps a name from being used for another array.
    pub fn reserve(&mut self, name: &str) {
        self.names.insert(name.into());
    }

    /// Returns a name that is not used yet.
    fn fresh(&mut self, what: &str) -> String {
        let stem = if self.scope.is_empty() { what.to_string() } else { format!("{}/{what}", self.scope) };
        let mut name = stem.clone();
        let mut n = 1;
        while !self.names.insert(name.clone()) {
            name = format!("{stem}_{n}");
            n += 1;
        }
        name
    }

    /// Adds a node without attributes; returns the name of its output.
    pub fn emit(&mut self, op: &str, inputs: &[&str]) -> String {
        self.emit_with(OnnxNode::new(op, inputs.iter().copied(), ""))
    }

    /// Adds a node whose output gets a new name; returns the name.
    pub fn emit_with(&mut self, mut node: OnnxNode) -> String {
        let name = self.fresh(&node.op.to_lowercase());
        node.name.clone_from(&name);
        node.outputs = vec![name.clone()];
        self.nodes.push(node);
        name
    }

    /// Adds a node without attributes whose output has this name.
    pub fn named(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.names.insert(output.into());
        self.nodes.push(OnnxNode::new(op, inputs.iter().copied(), output));
    }

    /// Adds nodes that form a nested graph; `f` writes them and returns the names of its outputs.
    pub fn nested(
        &mut self,
        inputs: Vec<ValueInfo>,
        f: impl FnOnce(&mut GraphWriter) -> Result<Vec<ValueInfo>>,
    ) -> Result<OnnxGraph> {
        let outside = std::mem::take(&mut self.nodes);
        let outputs = f(self);
        let nodes = std::mem::replace(&mut self.nodes, outside);
        Ok(OnnxGraph { name: "body".into(), nodes, inputs, outputs: outputs?, ..OnnxGraph::default() })
    }

    /// Reserves a name for an input of a nested graph.
    pub fn input_name(&mut self, what: &str) -> String {
        self.fresh(what)
    }

    /// Adds a weight with its own name.
    pub fn weight(&mut self, name: &str, value: &Literal) -> ExportedValue {
        let name = self.fresh(name);
        self.constants.insert(name.clone(), value.clone());
        ExportedValue::whole(name, value.ty().clone())
    }

    /// Adds a constant of this type; `value` has its elements without pending repetition.
    pub fn constant(&mut self, value: Literal, ty: TensorType) -> ExportedValue {
        let name = self.fresh("constant");
        self.constants.insert(name.clone(), value.clone());
        ExportedValue { name, dims: value.shape().clone(), ty, constant: Some(value) }
    }

    /// Adds a constant `i64[n]`; returns its name.
    pub fn ints(&mut self, values: &[i64]) -> String {
        let name = self.fresh("ints");
        let value = Literal::from_bytes(
            TensorType::new(systole_base::DType::I64, [values.len()]),
            &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
        );
        if let Ok(value) = value {
            self.constants.insert(name.clone(), value);
        }
        name
    }

    /// Adds a scalar constant; returns its name.
    pub fn scalar(&mut self, dtype: systole_base::DType, value: f64) -> String {
        let name = self.fresh("scalar");
        self.constants.insert(name.clone(), Literal::scalar(dtype, value));
        name
    }

    /// Computes a node whose operands are known; `None` if it is not small, or depends on the batch.
    pub fn folded(&mut self, node: &Node, inputs: &[ExportedValue]) -> Result<Option<Vec<ExportedValue>>> {
        let is_small =
            |ty: &TensorType| ty.elements() <= MOST_FOLDED && !ty.shape.iter().any(|d| self.is_batch(*d));
        let known = inputs.iter().all(|x| x.constant.is_some() && x.is_whole());
        if !known || !node.outs.iter().all(is_small) || node.op.variant() == "RngBitGenerator" {
            return Ok(None);
        }
        let values: Vec<&Literal> = inputs.iter().filter_map(|x| x.constant.as_ref()).collect();
        let made = node.op.rule().eval(&mut EvalCx::default(), &values, &node.outs)?;
        Ok(Some(made.into_iter().zip(&node.outs).map(|(v, ty)| self.constant(v, ty.clone())).collect()))
    }

    /// Returns the name of the array with all elements repeated.
    pub fn expanded(&mut self, x: &ExportedValue) -> Result<String> {
        if x.is_whole() {
            return Ok(x.name.clone());
        }
        let missing = |i: usize| x.dims[i] != x.ty.shape[i];
        let rank = x.dims.len();
        let fixed =
            |i: usize| if missing(i) && !self.is_batch(x.ty.shape[i]) { x.ty.shape[i] as i64 } else { 1 };
        let sizes: Vec<i64> = (0..rank).map(fixed).collect();
        let Some(batch) =
            self.batch.filter(|_| (0..rank).any(|i| missing(i) && self.is_batch(x.ty.shape[i])))
        else {
            let shape = self.ints(&sizes);
            return Ok(self.emit("Expand", &[&x.name, &shape]));
        };
        if !self.has_batch {
            return Err(unsupported("an array depends on the batch, and no input does".into()));
        }
        // Run-time sizes: factor · batch size + fixed size.
        let factor = |i: usize| match missing(i) && self.is_batch(x.ty.shape[i]) {
            true => (x.ty.shape[i] / batch) as i64,
            false => 0,
        };
        let factors: Vec<i64> = (0..rank).map(factor).collect();
        let rest: Vec<i64> = factors.iter().zip(&sizes).map(|(f, s)| if *f > 0 { 0 } else { *s }).collect();
        let (factors, rest) = (self.ints(&factors), self.ints(&rest));
        let scaled = self.emit("Mul", &[&factors, BATCH_SIZE]);
        let shape = self.emit("Add", &[&scaled, &rest]);
        Ok(self.emit("Expand", &[&x.name, &shape]))
    }

    /// Reshapes an array to these dimensions, of which at most one depends on the batch; returns the name.
    pub fn reshaped(&mut self, name: &str, dims: &[usize]) -> Result<String> {
        let open = dims.iter().filter(|d| self.is_batch(**d)).count();
        if open > 1 {
            return Err(unsupported("a reshape has two dimensions that depend on the batch".into()));
        }
        let sizes: Vec<i64> = dims.iter().map(|&d| if self.is_batch(d) { -1 } else { d as i64 }).collect();
        let shape = self.ints(&sizes);
        Ok(self.emit("Reshape", &[name, &shape]))
    }

    /// Permutes dimensions unless they stay in place; returns the name.
    pub fn permuted(&mut self, name: &str, order: &[usize]) -> String {
        if order.iter().copied().eq(0..order.len()) {
            return name.into();
        }
        let order = order.iter().map(|&d| d as i64);
        self.emit_with(OnnxNode::new("Transpose", [name], "").ints("perm", order))
    }

    /// Converts to another element type; returns the name.
    pub fn cast(&mut self, name: &str, to: systole_base::DType) -> String {
        let code = OnnxAttribute::Int(crate::model::code_of(to));
        self.emit_with(OnnxNode::new("Cast", [name], "").with("to", code))
    }

    /// Returns the graph, without nodes and constants that no output needs.
    pub fn finish(mut self, outputs: &[ValueInfo]) -> OnnxGraph {
        let mut needed: BTreeSet<String> = outputs.iter().map(|o| o.name.clone()).collect();
        let mut kept = Vec::new();
        for node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.outputs.iter().any(|name| needed.contains(name)) {
                uses(&node, &mut needed);
                kept.push(node);
            }
        }
        kept.reverse();
        self.constants.retain(|name, _| needed.contains(name));
        OnnxGraph { nodes: kept, constants: self.constants, ..OnnxGraph::default() }
    }
}

/// Adds the names that a node reads, also in its nested graphs.
fn uses(node: &OnnxNode, needed: &mut BTreeSet<String>) {
    needed.extend(node.inputs.iter().cloned());
    for attribute in node.attributes.values() {
        if let OnnxAttribute::Graph(body) = attribute {
            body.nodes.iter().for_each(|inner| uses(inner, needed));
            needed.extend(body.outputs.iter().map(|o| o.name.clone()));
        }
    }
}

/// Returns the error for what ONNX cannot express.
pub(super) fn unsupported(what: String) -> systole_base::Error {
    err!(Unsupported, "{what}").hint("remove the layer with this op, or run the model with Systole")
}

/// Whether a dimension has a fixed size.
fn is_known(size: &DimSize) -> bool {
    matches!(size, DimSize::Known(_))
}

/// Name of the batch dimension.
fn batch_dim() -> DimSize {
    DimSize::Named(BATCH.into())
}
