//! Values of an ONNX graph during import, in the file's layout; the compiler chooses its own.

use crate::model::{OnnxFunction, OnnxNode, broken};
use crate::stages::StageRunner;
use std::collections::{BTreeMap, HashMap, HashSet};
use systole_base::{Error, Literal, Result, TensorType, err};
use systole_ir::{GraphBuilder, Tensor};

/// Output of an operator.
#[derive(Clone)]
pub(crate) enum RuleOutput {
    /// A tensor.
    Tensor(Tensor),
    /// A sequence of tensors.
    Sequence(Vec<Tensor>),
}

impl RuleOutput {
    /// Returns the tensor; `None` for a sequence.
    fn tensor(&self) -> Option<&Tensor> {
        match self {
            RuleOutput::Sequence(_) => None,
            RuleOutput::Tensor(t) => Some(t),
        }
    }

    /// Returns the type of an ONNX tensor; `None` for a sequence.
    pub fn ty(&self) -> Option<TensorType> {
        self.tensor().map(|t| t.ty().clone())
    }
}

/// Maximum elements of all constants computed during import.
const MOST_IN_TABLES: usize = 1 << 24;

/// Maximum nodes of nested graphs that are imported, each as often as it is unrolled.
const MOST_NESTED_NODES: usize = 1 << 16;

/// Maximum depth of nested graphs and functions.
const MOST_CALLS: usize = 64;

/// Maximum unknown attributes that an error names.
const MOST_ATTRIBUTES: usize = 20;

/// Function that imports a node and adds its outputs to the values; returns their types.
pub(crate) type NodeImport = fn(&OnnxNode, &mut ValueTable<'_>, i64) -> Result<Vec<(String, TensorType)>>;

/// All values computed so far.
pub(crate) struct ValueTable<'m> {
    pub g: GraphBuilder,
    /// Remaining elements of constants that may be computed during import.
    pub tables: usize,
    /// Imports a node of a nested graph.
    pub import: NodeImport,
    /// First error of a nested graph.
    pub nested_error: Option<Error>,
    /// Whether an operand of the current node must be known at compile time and is not.
    pub needs_a_value: bool,
    /// Whether a node's operator is not supported.
    pub lacks_an_operator: bool,
    /// Attributes without a meaning here, with their nodes.
    attributes: Vec<String>,
    /// Evaluates values that depend on the inputs; `None` for a program that serves all inputs.
    pub stages: Option<StageRunner>,
    /// Remaining nodes of nested graphs that may be imported.
    nested_nodes: usize,
    /// Model-local functions.
    pub functions: &'m [OnnxFunction],
    /// Number of graphs and functions around the current one.
    depth: usize,
    /// The model's constants; `None` in a function, which does not see them.
    constants: Option<&'m BTreeMap<String, Literal>>,
    slots: HashMap<String, RuleOutput>,
}

impl<'m> ValueTable<'m> {
    pub fn new(
        g: GraphBuilder,
        constants: &'m BTreeMap<String, Literal>,
        functions: &'m [OnnxFunction],
        import: NodeImport,
    ) -> ValueTable<'m> {
        ValueTable {
            g,
            tables: MOST_IN_TABLES,
            import,
            nested_error: None,
            needs_a_value: false,
            lacks_an_operator: false,
            attributes: Vec::new(),
            stages: None,
            nested_nodes: MOST_NESTED_NODES,
            functions,
            depth: 0,
            constants: Some(constants),
            slots: HashMap::new(),
        }
    }

    /// Runs `f` in the scope of a nested graph: values that it adds or converts are dropped afterwards.
    pub fn nested<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.slots.clone();
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        self.slots = outer;
        result
    }

    /// Runs `f` in the scope of a function, which cannot see the values of its caller.
    ///
    /// # Errors
    /// If functions call each other more than [`MOST_CALLS`] levels deep.
    pub fn in_function<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.depth >= MOST_CALLS {
            return Err(broken(format!("functions call each other more than {MOST_CALLS} levels deep")));
        }
        let constants = self.constants.take();
        let result = self.nested(|values| {
            values.slots.clear();
            f(values)
        });
        self.constants = constants;
        result
    }

    /// Counts nodes of nested graphs and functions.
    pub fn spend_nodes(&mut self, nodes: usize) -> Result<()> {
        let left = self.nested_nodes.checked_sub(nodes + 1);
        self.nested_nodes = left.ok_or_else(|| {
            err!(Unsupported, "the loops or functions are too large to unroll")
                .because(format!("unrolled, they have more than {MOST_NESTED_NODES} nodes"))
        })?;
        Ok(())
    }

    /// Notes an attribute that has no meaning here; they are one error after all nodes.
    pub fn add_unknown_attribute(&mut self, node: &OnnxNode, attribute: &str) {
        let whose = if node.name.is_empty() { node.outputs.first() } else { Some(&node.name) };
        let named = format!("`{attribute}` of {} {}", node.op, whose.map_or("", String::as_str));
        if self.attributes.len() < MOST_ATTRIBUTES && !self.attributes.contains(&named) {
            self.attributes.push(named);
        }
    }

    /// Rejects a model with attributes that have no meaning here.
    pub fn unknown_attributes(&self, opset: i64) -> Result<()> {
        if self.attributes.is_empty() {
            return Ok(());
        }
        Err(err!(Unsupported, "unknown attributes: {}", self.attributes.join(", "))
            .because(format!("they have no meaning here in opset {opset}"))
            .hint("export the model without them, or run it with onnxruntime"))
    }

    /// Adds an ONNX value that a node or the caller has produced.
    pub fn put(&mut self, name: &str, made: RuleOutput) -> Result<()> {
        if self.depth > 0 && self.constants.is_some_and(|all| all.contains_key(name)) {
            return Err(broken(format!("value {name} of a nested graph is also a constant of the model")));
        }
        match self.slots.insert(name.into(), made) {
            // A nested graph may reuse the name of an outer value that it does not read.
            Some(_) if self.depth == 0 => Err(broken(format!("value {name} is defined twice"))),
            _ => Ok(()),
        }
    }

    fn slot(&mut self, name: &str) -> Result<&RuleOutput> {
        if !self.slots.contains_key(name)
            && let Some(value) = self.constants.and_then(|all| all.get(name))
        {
            let constant = self.g.constant(value.clone());
            self.slots.insert(name.into(), RuleOutput::Tensor(constant));
        }
        self.slots.get(name).ok_or_else(|| broken(format!("value `{name}` is used before its definition")))
    }

    /// Returns an ONNX value that is a tensor.
    pub fn tensor(&mut self, name: &str) -> Result<Tensor> {
        match self.slot(name)? {
            RuleOutput::Tensor(t) => Ok(t.clone()),
            RuleOutput::Sequence(_) => {
                Err(broken(format!("value `{name}` is a sequence, expected a tensor")))
            }
        }
    }

    /// Returns an ONNX value that is a sequence.
    pub fn sequence(&mut self, name: &str) -> Result<Vec<Tensor>> {
        match self.slot(name)? {
            RuleOutput::Sequence(all) => Ok(all.clone()),
            RuleOutput::Tensor(_) => Err(broken(format!("value {name} is a tensor, expected a sequence"))),
        }
    }

    /// Returns the elements of tensors that must be known: constants, or values of a stage. `None` if they depend on the
    /// inputs.
    pub fn evaluated(&mut self, wanted: &[Tensor]) -> Result<Option<Vec<Literal>>> {
        let known: Vec<Option<Literal>> = wanted.iter().map(Tensor::known).collect();
        if let (true, Some(stages)) = (known.contains(&None), &mut self.stages) {
            let slots = self.slots.values().filter_map(RuleOutput::tensor);
            let live: Vec<Tensor> = slots.filter(|t| !t.is_poisoned()).cloned().collect();
            return stages.run(&self.g, wanted, &live).map(Some);
        }
        self.needs_a_value |= known.contains(&None);
        Ok(known.into_iter().collect())
    }

    /// Returns the elements of ONNX values that must be known. Values of a stage become constants.
    pub fn known_together(&mut self, names: &[&str]) -> Result<Option<Vec<Literal>>> {
        let constants = self.constants;
        let constant = |name: &&str| constants.and_then(|all| all.get(*name)).cloned();
        if let Some(all) = names.iter().map(constant).collect::<Option<Vec<Literal>>>() {
            return Ok(Some(all));
        }
        let wanted = names.iter().map(|name| self.tensor(name)).collect::<Result<Vec<_>>>()?;
        let Some(all) = self.evaluated(&wanted)? else { return Ok(None) };
        for (name, value) in names.iter().zip(&all).filter(|_| self.stages.is_some()) {
            let constant = self.g.constant(value.clone());
            self.slots.insert((*name).into(), RuleOutput::Tensor(constant));
        }
        Ok(Some(all))
    }

    /// Drops a value that no later node reads, also from the values that stages keep.
    pub fn forget(&mut self, name: &str) {
        let (Some(RuleOutput::Tensor(t)), Some(stages)) = (self.slots.remove(name), &mut self.stages) else {
            return;
        };
        let is_same = |other: &RuleOutput| other.tensor().is_some_and(|other| other.id() == t.id());
        if stages.keeps(&t) && !self.slots.values().any(is_same) {
            stages.retain(|kept| kept.id() != t.id());
        }
    }

    /// Drops the values kept by stages that have no name: of nested graphs and functions that ended.
    pub fn forget_nested(&mut self) {
        if let Some(stages) = &mut self.stages {
            let named: HashSet<_> =
                self.slots.values().filter_map(RuleOutput::tensor).map(Tensor::id).collect();
            stages.retain(|t| named.contains(&t.id()));
        }
    }

    /// Returns the elements of an ONNX value if they do not depend on the model's inputs.
    pub fn known(&mut self, name: &str) -> Result<Option<Literal>> {
        match self.constants.and_then(|all| all.get(name)) {
            Some(value) => Ok(Some(value.clone())),
            None => Ok(self.tensor(name)?.known()),
        }
    }
}
