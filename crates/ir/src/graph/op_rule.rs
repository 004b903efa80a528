//! Op rules ([`OpRule`]): type inference, evaluation, derivative, cost and text of each op; and evaluation of bodies ([`EvalCx`]).

use super::attr::AttrList;
use super::{Graph, Op, Tensor, check_args, op::structural_ops};
use smallvec::SmallVec;
use std::sync::Arc;
use systole_base::{DType, Error, Literal, Result, ResultExt, Scalar, TensorType, ensure, err};

/// Result types of one node.
pub type ResultTypes = SmallVec<[TensorType; 1]>;

/// A violated constraint of the StableHLO specification: its label (`C1`, …) and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecConstraint {
    /// Label in the op's section of the specification, e.g. `C3`; `-` for the number and types of operands.
    pub label: &'static str,
    /// Description of the violation, with the offending numbers.
    pub message: String,
}

impl SpecConstraint {
    /// Creates a violation of a constraint of the StableHLO specification.
    pub fn new(label: &'static str, message: impl Into<String>) -> SpecConstraint {
        SpecConstraint { label, message: message.into() }
    }
}

/// Returns an error with `label` and the formatted message unless the condition holds.
#[macro_export]
macro_rules! require {
    ($cond:expr, $label:literal, $($arg:tt)*) => {
        $crate::ensure!($cond, $crate::op::SpecConstraint::new($label, format!($($arg)*)));
    };
}

/// Gradient of an op with respect to one operand: a tensor, zero, or not differentiable.
#[derive(Clone, Debug)]
pub enum Grad {
    /// Cotangent of the operand, with the operand's type.
    Of(Tensor),
    /// Zero: the result does not depend on the operand (or only through integers).
    Zero,
    /// Not differentiable.
    None {
        /// Reason, for the error message.
        why: &'static str,
    },
}

/// Class of an op by its data dependences: how a compiler may group it with others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoweringClass {
    /// A parameter or constant.
    Leaf,
    /// Element-wise: result element `i` depends on element `i` of each operand (or on scalars, as in `clamp` and `select`).
    Map,
    /// Data movement without arithmetic.
    Move,
    /// Reduction of many elements to one.
    Fold,
    /// Contraction (sums of products): dot and convolution.
    Contract,
    /// Random bit generation.
    Draw,
    /// Control flow: has bodies that run any number of times.
    Control,
    /// Collective or host call: depends on other devices or on the host program.
    Exchange,
}

/// Cost of a node: arithmetic operations and minimum bytes moved.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct OpCost {
    /// Floating-point or integer operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes of operands and results.
    pub bytes: f64,
}

/// Rules of one op: type inference, evaluation, derivative, cost and text.
pub trait OpRule {
    /// Infers and verifies the result types from the operand types.
    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint>;

    /// Number of results with `args` operands, even if their types are invalid.
    fn result_count(&self, _args: usize) -> usize {
        1
    }

    /// Computes the results with naive loops: the reference for all backends. Types have been checked by `infer`.
    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>>;

    /// Computes the gradients for the operands `x` from the results `y` and their cotangents `dy` (`None`: zero).
    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad>;

    /// Returns a variant of the op with additional results that its derivative needs, and the operands that the variant
    /// takes after the original ones. The additional results follow the original results.
    fn augment(&self, _x: &[Tensor]) -> Option<(Op, Vec<Tensor>)> {
        None
    }

    /// Computes one element, for element-wise ops. Bodies of reductions and sorts use it to run without intermediate arrays.
    fn eval_scalar(&self, _args: &[Scalar], _out: DType) -> Option<Scalar> {
        None
    }

    /// Class of the op.
    fn lower(&self) -> LoweringClass;

    /// Attributes in print order; the parser reads them back.
    fn attrs(&self) -> AttrList {
        AttrList::default()
    }

    /// Bodies, in print order.
    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::new()
    }

    /// Number of leading operands that the bodies capture.
    fn captures(&self) -> usize {
        0
    }

    /// Cost of the op. By default one operation per result element.
    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        OpCost { flops: outs.iter().map(|t| t.elements() as f64).sum(), bytes: moved_bytes(args, outs) }
    }
}

/// Total bytes of all operands and results.
pub fn moved_bytes(args: &[&TensorType], outs: &[TensorType]) -> f64 {
    args.iter().map(|t| t.bytes() as f64).chain(outs.iter().map(|t| t.bytes() as f64)).sum()
}

macro_rules! op_dispatch {
    ($($file:ident { $($variant:ident = $name:literal, $doc:literal;)* })*) => {
        impl Op {
            /// Returns the rules of this op.
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

/// Evaluation context: lets `eval` rules run bodies, with a limit on nesting.
#[derive(Default)]
pub struct EvalCx {
    depth: usize,
}

/// Maximum nesting depth of bodies: malicious input must not overflow the stack.
pub(crate) const MAX_DEPTH: usize = 64;

impl EvalCx {
    /// Runs a body (nested graph) on arrays.
    pub fn run(&mut self, graph: &Graph, args: &[&Literal]) -> Result<Vec<Literal>> {
        ensure!(self.depth != MAX_DEPTH, too_deep());
        self.depth += 1;
        let result = run_nodes(self, graph, args);
        self.depth -= 1;
        result
    }

    /// Runs a body (nested graph) with rank-0 parameters and results on single elements.
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

/// Runs a body of element-wise ops without intermediate arrays; `None` if it contains other ops.
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

/// Creates the error for bodies nested too deeply.
pub(crate) fn too_deep() -> Error {
    err!(Unsupported, "bodies (nested graphs) are nested deeper than {MAX_DEPTH} levels")
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
                    place => format!("{} in layer {place}", op.name()),
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
