//! TFLite interpreter: runs operators in order with the arithmetic of LiteRT's reference kernels; bit-exact, not fast.

use crate::kernels::{OperatorCall, RunContext, row};
use crate::model::{TfliteModel, broken};
use crate::op::TfliteOp;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use systole_base::{Literal, Result, ensure, err};

/// Maximum depth of graphs that run each other.
const MOST_DEPTH: usize = 16;

/// Operators that support operands without elements: loops over lists of tensors start with such slices.
const OF_EMPTY: [TfliteOp; 8] = [
    TfliteOp::Slice,
    TfliteOp::StridedSlice,
    TfliteOp::Concatenation,
    TfliteOp::Shape,
    TfliteOp::Rank,
    TfliteOp::If,
    TfliteOp::While,
    TfliteOp::Call,
];

/// Maximum number of operators that control flow runs: loops of damaged files would not end.
const MOST_OPERATORS: usize = 2_000_000;

/// State of a run: variables by handle, and the number of operators in loops and branches so far.
#[derive(Default)]
struct InterpreterState {
    variables: RefCell<BTreeMap<i64, Literal>>,
    operators: Cell<usize>,
}

/// A checked model, ready to run from any number of threads.
pub struct TfliteInterpreter<'a> {
    model: &'a TfliteModel,
    /// Other graphs of the file, which control flow runs.
    graphs: &'a [TfliteModel],
    /// Last operator that reads each tensor; afterwards its memory is freed.
    last_reads: Vec<usize>,
}

impl<'a> TfliteInterpreter<'a> {
    /// Creates an interpreter for a TFLite model.
    ///
    /// # Errors
    /// If the graph is invalid ([`TfliteModel::check`]).
    pub fn new(model: &'a TfliteModel) -> Result<TfliteInterpreter<'a>> {
        model.check()?;
        Ok(TfliteInterpreter::of_graph(model, &model.subgraphs))
    }

    fn of_graph(model: &'a TfliteModel, graphs: &'a [TfliteModel]) -> TfliteInterpreter<'a> {
        let mut last_reads = vec![0; model.tensors.len()];
        for (n, o) in model.operators.iter().enumerate() {
            for &i in o.inputs.iter().flatten().chain(&o.outputs) {
                last_reads[i] = n;
            }
        }
        model.outputs.iter().for_each(|&i| last_reads[i] = usize::MAX);
        TfliteInterpreter { model, graphs, last_reads }
    }

    /// Returns the TFLite model.
    pub fn model(&self) -> &'a TfliteModel {
        self.model
    }

    /// Computes the TFLite model's outputs for its inputs, with the types and shapes in the file.
    ///
    /// # Errors
    /// If an input has the wrong type, or an operator cannot be computed; names the operator.
    pub fn run(&self, inputs: &[Literal]) -> Result<Vec<Literal>> {
        self.run_with(inputs, |_, _| {})
    }

    /// Like [`TfliteInterpreter::run`]; also calls `each` with the index and value of every computed tensor and input.
    pub fn run_with(&self, inputs: &[Literal], each: impl FnMut(usize, &Literal)) -> Result<Vec<Literal>> {
        self.run_nested(inputs, &InterpreterState::default(), 0, each)
    }

    fn run_nested(
        &self,
        inputs: &[Literal],
        state: &InterpreterState,
        depth: usize,
        mut each: impl FnMut(usize, &Literal),
    ) -> Result<Vec<Literal>> {
        ensure!(depth < MOST_DEPTH, broken(format!("more than {MOST_DEPTH} graphs run each other")));
        ensure!(
            state.operators.get() < MOST_OPERATORS,
            err!(Unsupported, "loops run more than {MOST_OPERATORS} operators")
                .hint("run this file with the LiteRT runtime")
        );
        let model = self.model;
        let mut values: Vec<Option<Literal>> = model.tensors.iter().map(|t| t.data.clone()).collect();
        if inputs.len() != model.inputs.len() {
            return Err(err!(Data, "got {} inputs, the model requires {}", inputs.len(), model.inputs.len()));
        }
        for (&i, given) in model.inputs.iter().zip(inputs) {
            let t = model.tensor(i)?;
            let is_open = t.is_dynamic && given.dtype() == t.ty.dtype && given.shape().rank() == t.ty.rank();
            if given.ty() != &t.ty && !is_open {
                return Err(err!(
                    Data,
                    "input {} has type {}, the model requires {}",
                    t.name,
                    given.ty(),
                    t.ty
                )
                .hint("run `systole summary FILE.tflite` to see the model's inputs"));
            }
            each(i, given);
            values[i] = Some(given.clone());
        }
        for (n, o) in model.operators.iter().enumerate() {
            let made = self.operator(n, &values, state, depth)?;
            for (&i, y) in o.outputs.iter().zip(made) {
                each(i, &y);
                values[i] = Some(y);
            }
            for &i in o.inputs.iter().flatten().chain(&o.outputs) {
                if self.last_reads[i] <= n {
                    values[i] = None;
                }
            }
        }
        let output = |&i: &usize| {
            values[i].clone().ok_or_else(|| broken(format!("no operator computes output tensor {i}")))
        };
        model.outputs.iter().map(output).collect()
    }

    /// Runs one TFLite operator and returns its outputs; `values` contains the current value of each tensor.
    ///
    /// # Errors
    /// If the operator does not exist or cannot be computed; names it.
    pub fn run_operator(&self, n: usize, values: &[Option<Literal>]) -> Result<Vec<Literal>> {
        self.operator(n, values, &InterpreterState::default(), 0)
    }

    /// Rejects an operand without elements, which only operators that move elements support.
    fn check_empty(&self, n: usize, values: &[Option<Literal>]) -> Result<()> {
        let Some(o) = self.model.operators.get(n).filter(|o| !OF_EMPTY.contains(&o.op)) else {
            return Ok(());
        };
        for (k, &i) in o.inputs.iter().enumerate().filter_map(|(k, i)| i.as_ref().map(|i| (k, i))) {
            let is_list = k > 0 && self.model.tensors.get(i).is_some_and(|t| t.data.is_some());
            let is_empty = values.get(i).and_then(Option::as_ref).is_some_and(|v| v.ty().elements() == 0);
            if is_empty && !is_list {
                return Err(err!(Unsupported, "{} of a tensor without elements is not supported", o.op)
                    .at(self.model.place(n))
                    .hint("run this file with the LiteRT runtime"));
            }
        }
        Ok(())
    }

    fn operator(
        &self,
        n: usize,
        values: &[Option<Literal>],
        state: &InterpreterState,
        depth: usize,
    ) -> Result<Vec<Literal>> {
        let run_graph = |index: usize, inputs: &[Literal]| {
            let graph = index.checked_sub(1).and_then(|at| self.graphs.get(at));
            let graph = graph.ok_or_else(|| broken(format!("graph {index} does not exist")))?;
            // A graph may have no operator.
            state.operators.set(state.operators.get() + 1);
            let nested = TfliteInterpreter::of_graph(graph, self.graphs);
            nested.run_nested(inputs, state, depth + 1, |_, _| {})
        };
        self.check_empty(n, values)?;
        state.operators.set(state.operators.get() + usize::from(depth > 0));
        let context = RunContext { run_graph: &run_graph, variables: &state.variables };
        let model = self.model;
        let operator =
            model.operators.get(n).ok_or_else(|| broken(format!("operator {n} does not exist")))?;
        let row =
            row(operator.op.code()).ok_or_else(|| broken(format!("unknown operator {}", operator.op)))?;
        let made = (row.kernel)(&OperatorCall {
            context: &context,
            model,
            operator,
            values,
            shape: OnceCell::new(),
        })
        .map_err(|e| e.at(model.place(n)))?;
        for (&i, y) in operator.outputs.iter().zip(&made) {
            let t = model.tensor(i)?;
            let is_open = t.is_dynamic && y.dtype() == t.ty.dtype && y.shape().rank() == t.ty.rank();
            if y.ty() != &t.ty && !is_open {
                let why = format!("it computes {}, the file states {}", y.ty(), t.ty);
                return Err(broken(why).at(model.place(n)));
            }
        }
        Ok(made)
    }
}
