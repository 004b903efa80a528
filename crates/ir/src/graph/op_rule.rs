//! What an op must say of itself: [`OpRule`], and how the rules of bodies are run ([`EvalCx`]).

use super::attr::AttrList;
use super::{Graph, Op, Tensor, check_args, op::structural_ops};
use smallvec::SmallVec;
use std::sync::Arc;
use systole_base::{DType, Error, ErrorKind, Literal, Result, ResultExt, Scalar, TensorType};

/// Result types of a node.
pub type ResultTypes = SmallVec<[TensorType; 1]>;

/// A violated constraint of the StableHLO specification: its label there (`C1`, …) and what does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecConstraint {
    /// The label in the op's section of the specification, e.g. `C3`; `-` for conditions on operand count or type.
    pub label: &'static str,
    /// What does not hold, with the offending numbers.
    pub message: String,
}

impl SpecConstraint {
    /// A violated constraint.
    pub fn new(label: &'static str, message: impl Into<String>) -> SpecConstraint {
        SpecConstraint { label, message: message.into() }
    }
}

/// Errors with `label` and the formatted message unless the condition holds.
#[macro_export]
macro_rules! require {
    ($cond:expr, $label:literal, $($arg:tt)*) => {
        if !$cond {
            return Err($crate::op::SpecConstraint::new($label, format!($($arg)*)));
        }
    };
}

/// Gradient with respect to one operand.
#[derive(Clone, Debug)]
pub enum Grad {
    /// The cotangent of the operand, of the operand's type.
    Of(Tensor),
    /// Does not depend on the operand (or only through integers).
    Zero,
    /// There is no derivative, and why.
    None {
        /// A reason for the user.
        why: &'static str,
    },
}

/// What an op does to elements, coarsely: what a compiler needs to know to group nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoweringClass {
    /// A parameter or constant.
    Leaf,
    /// Result element `i` depends on element `i` of each operand (scalars for some operands of `clamp`, `select`).
    Map,
    /// Moves elements to other places without arithmetic.
    Move,
    /// Folds many elements into one.
    Fold,
    /// Sums of products: dot and convolution.
    Contract,
    /// Draws random bits.
    Draw,
    /// Has bodies that run any number of times.
    Control,
    /// Depends on other devices.
    Exchange,
}

/// Work of one node: arithmetic operations and bytes that must move at the least.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OpCost {
    /// Floating-point (or integer) operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes of operands and results.
    pub bytes: f64,
}

/// All rules of one op. See the module text for how they are used.
pub trait OpRule {
    /// Result types from operand types: shape rule and verifier in one.
    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint>;

    /// How many results the op has with `args` operands, whether or not their types fit.
    fn result_count(&self, _args: usize) -> usize {
        1
    }

    /// Results by naive loops; the oracle that all backends are tested against. Types were checked by `infer`.
    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>>;

    /// Gradients with respect to each operand `x` from results `y` and their cotangents `dy` (`None`: zero).
    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad>;

    /// The op to run instead when its derivative needs more results, and the operands that it takes after the op's
    /// own ones. The new results come after the op's own results.
    fn augment(&self, _x: &[Tensor]) -> Option<(Op, Vec<Tensor>)> {
        None
    }

    /// The value at one element, for ops whose result element depends on one element of each operand: bodies of folds
    /// and sorts run without arrays in between.
    fn eval_scalar(&self, _args: &[Scalar], _out: DType) -> Option<Scalar> {
        None
    }

    /// What it does to elements.
    fn lower(&self) -> LoweringClass;

    /// Attributes in text order; the parser reads them back.
    fn attrs(&self) -> AttrList {
        AttrList::default()
    }

    /// Bodies, in text order.
    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::new()
    }

    /// How many leading operands are values that the bodies capture.
    fn captures(&self) -> usize {
        0
    }

    /// Work. The default counts one operation for each result element.
    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        OpCost { flops: outs.iter().map(|t| t.elements() as f64).sum(), bytes: moved_bytes(args, outs) }
    }
}

/// Bytes of all operands and results.
pub fn moved_bytes(args: &[&TensorType], outs: &[TensorType]) -> f64 {
    args.iter().map(|t| t.bytes() as f64).chain(outs.iter().map(|t| t.bytes() as f64)).sum()
}

macro_rules! op_dispatch {
    ($($file:ident { $($variant:ident = $name:literal, $doc:literal;)* })*) => {
        impl Op {
            /// The rules of this op.
            pub fn rule(&self) -> &dyn OpRule {
                match self {
                    Op::Parameter(op) => op, Op::Unary(op) => op, Op::Binary(op) => op,
                    $($(Op::$variant(op) => op),*),*
                }
            }
        }
    };
}

structural_ops!(op_dispatch);

/// What `eval` rules may use besides their operands: running bodies.
#[derive(Default)]
pub struct EvalCx {
    depth: usize,
}

/// Bodies nested deeper than this are refused: hostile text must not overflow the stack.
pub(crate) const MAX_DEPTH: usize = 64;

impl EvalCx {
    /// Runs a body on arrays.
    pub fn run(&mut self, graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
        if self.depth == MAX_DEPTH {
            return Err(too_deep());
        }
        self.depth += 1;
        let result = run_nodes(self, graph, args);
        self.depth -= 1;
        result
    }

    /// Runs a body of rank-0 parameters and results on single elements.
    pub fn run_scalars(&mut self, graph: &Graph, args: &[Scalar]) -> Result<Vec<Scalar>> {
        if let Some(values) = run_elementwise(graph, args) {
            return Ok(values);
        }
        let arrays: Vec<Literal> = graph
            .params
            .iter()
            .zip(args)
            .map(|(&p, &s)| Literal::splat(TensorType::scalar(graph.ty(p).dtype), s))
            .collect();
        let refs: Vec<&Literal> = arrays.iter().collect();
        Ok(self.run(graph, &refs)?.iter().map(|l| l.get(0)).collect())
    }
}

/// A body of element-wise ops without arrays in between; `None` when it has others.
fn run_elementwise(graph: &Graph, args: &[Scalar]) -> Option<Vec<Scalar>> {
    let mut values: Vec<Scalar> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let value = match &node.op {
            Op::Parameter(p) => args[p.index],
            Op::Constant(c) => c.value.get(0),
            op => {
                let args: SmallVec<[Scalar; 3]> = node.inputs.iter().map(|v| values[v.index()]).collect();
                op.rule().eval_scalar(&args, node.outs[0].dtype)?
            }
        };
        values.push(value);
    }
    Some(graph.results.iter().map(|r| values[r.index()]).collect())
}

pub(crate) fn too_deep() -> Error {
    Error::new(ErrorKind::Unsupported, format!("bodies nest deeper than {MAX_DEPTH}"))
}

fn run_nodes(cx: &mut EvalCx, graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
    let types: Vec<&TensorType> = args.iter().map(|a| a.ty()).collect();
    check_args(graph, &types)?;
    let mut uses_left = graph.use_counts();
    let mut values: Vec<Vec<Literal>> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let outs = match &node.op {
            Op::Parameter(p) => vec![args[p.index].clone()],
            op => {
                let inputs: Vec<&Literal> =
                    node.inputs.iter().map(|v| &values[v.index()][v.out as usize]).collect();
                op.rule().eval(cx, &inputs, &node.outs).at(|| match graph.scope(node) {
                    "" => op.name().to_string(),
                    place => format!("{} of layer {place}", op.name()),
                })?
            }
        };
        values.push(outs);
        for v in &node.inputs {
            uses_left[v.index()] -= 1;
            if uses_left[v.index()] == 0 {
                values[v.index()].clear();
            }
        }
    }
    Ok(graph.results.iter().map(|r| values[r.index()][r.out as usize].clone()).collect())
}
