//! Systole's core idea in about 200 lines: a closed set of ops, each with all its rules in one place; a graph;
//! an interpreter; reverse-mode differentiation that appends to the same graph. Start reading here.
//!
//! The real thing has the same parts under the same names: `crates/ir/src/{graph,build,interp,grad}.rs` and
//! `crates/ir/src/op/`. What it adds are types, shapes, regions, text, and backends that compile.
//!
//! Run it: `cargo run --release --example tiny`

#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::cell::RefCell;
use std::rc::Rc;

/// An operation. Values are vectors of one fixed length, or scalars that repeat.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Parameter(usize),
    Constant(f64),
    Add,
    Multiply,
    Negate,
    Tanh,
    /// All elements into one.
    Sum,
    /// One element to all: the transpose of `Sum`.
    Spread,
}

/// An op with its operands, which are earlier nodes.
struct Node {
    op: Op,
    inputs: Vec<usize>,
}

/// A list of nodes in an order in which they can be computed.
#[derive(Clone, Default)]
struct Graph(Rc<RefCell<Vec<Node>>>);

/// A value in a graph that is being built.
#[derive(Clone)]
struct Tensor {
    graph: Graph,
    id: usize,
}

impl Graph {
    fn emit(&self, op: Op, inputs: &[&Tensor]) -> Tensor {
        let mut nodes = self.0.borrow_mut();
        nodes.push(Node { op, inputs: inputs.iter().map(|t| t.id).collect() });
        Tensor { graph: self.clone(), id: nodes.len() - 1 }
    }

    fn parameter(&self, index: usize) -> Tensor {
        self.emit(Op::Parameter(index), &[])
    }

    fn constant(&self, value: f64) -> Tensor {
        self.emit(Op::Constant(value), &[])
    }
}

/// All rules of one op stand together: what it computes …
impl Op {
    fn eval(self, args: &[&Vec<f64>], params: &[Vec<f64>]) -> Vec<f64> {
        match self {
            Op::Parameter(i) => params[i].clone(),
            Op::Constant(c) => vec![c],
            Op::Add => zip(args[0], args[1], |a, b| a + b),
            Op::Multiply => zip(args[0], args[1], |a, b| a * b),
            Op::Negate => args[0].iter().map(|a| -a).collect(),
            Op::Tanh => args[0].iter().map(|a| a.tanh()).collect(),
            Op::Sum => vec![args[0].iter().sum()],
            Op::Spread => args[0].clone(),
        }
    }

    /// … and its derivative: from operands `x`, result `y` and the result's cotangent `dy`, one cotangent for each
    /// operand, as new nodes of the same graph.
    fn vjp(self, x: &[Tensor], y: &Tensor, dy: &Tensor) -> Vec<Tensor> {
        match self {
            Op::Parameter(_) | Op::Constant(_) => vec![],
            Op::Add => vec![dy.clone(), dy.clone()],
            Op::Multiply => vec![dy.mul(&x[1]), dy.mul(&x[0])],
            Op::Negate => vec![dy.neg()],
            Op::Tanh => vec![dy.mul(&y.graph.constant(1.0).add(&y.mul(y).neg()))],
            Op::Sum => vec![dy.graph.emit(Op::Spread, &[dy])],
            Op::Spread => vec![dy.sum()],
        }
    }
}

fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let n = a.len().max(b.len());
    (0..n).map(|i| f(a[i % a.len()], b[i % b.len()])).collect()
}

/// Methods append nodes; nothing is computed yet.
impl Tensor {
    fn add(&self, other: &Tensor) -> Tensor {
        self.graph.emit(Op::Add, &[self, other])
    }
    fn mul(&self, other: &Tensor) -> Tensor {
        self.graph.emit(Op::Multiply, &[self, other])
    }
    fn neg(&self) -> Tensor {
        self.graph.emit(Op::Negate, &[self])
    }
    fn tanh(&self) -> Tensor {
        self.graph.emit(Op::Tanh, &[self])
    }
    fn sum(&self) -> Tensor {
        self.graph.emit(Op::Sum, &[self])
    }
}

/// The interpreter: every node once, in order.
fn run(graph: &Graph, params: &[Vec<f64>], results: &[&Tensor]) -> Vec<Vec<f64>> {
    let nodes = graph.0.borrow();
    let mut values: Vec<Vec<f64>> = Vec::new();
    for node in nodes.iter() {
        let args: Vec<&Vec<f64>> = node.inputs.iter().map(|&i| &values[i]).collect();
        let value = node.op.eval(&args, params);
        values.push(value);
    }
    results.iter().map(|t| values[t.id].clone()).collect()
}

/// Reverse mode: walk back from `y`, let each op turn its result's cotangent into its operands', add where a value
/// was used twice.
fn grad(y: &Tensor, xs: &[&Tensor]) -> Vec<Tensor> {
    let graph = &y.graph;
    let mut cotangents: Vec<Option<Tensor>> = vec![None; y.id + 1];
    cotangents[y.id] = Some(graph.constant(1.0));
    for id in (0..=y.id).rev() {
        let Some(dy) = cotangents[id].clone() else { continue };
        let (op, inputs) = {
            let node = &graph.0.borrow()[id];
            (node.op, node.inputs.clone())
        };
        let at = |id: usize| Tensor { graph: graph.clone(), id };
        let x: Vec<Tensor> = inputs.iter().map(|&i| at(i)).collect();
        for (&input, dx) in inputs.iter().zip(op.vjp(&x, &at(id), &dy)) {
            cotangents[input] = Some(match &cotangents[input] {
                Some(sum) => sum.add(&dx),
                None => dx,
            });
        }
    }
    xs.iter().map(|x| cotangents[x.id].clone().unwrap_or_else(|| graph.constant(0.0))).collect()
}

/// Fits `tanh(w·x)` to data by gradient descent: one graph, built once, run many times.
fn main() {
    let graph = Graph::default();
    let (w, x, target) = (graph.parameter(0), graph.parameter(1), graph.parameter(2));
    let error = w.mul(&x).tanh().add(&target.neg());
    let loss = error.mul(&error).sum();
    let slope = grad(&loss, &[&w]).remove(0).sum();

    let data = vec![-1.0, -0.5, 0.5, 1.0];
    let goal: Vec<f64> = data.iter().map(|x: &f64| (0.8 * x).tanh()).collect();
    let mut weight = 0.0;
    for step in 0..=100 {
        let values = run(&graph, &[vec![weight], data.clone(), goal.clone()], &[&loss, &slope]);
        if step % 25 == 0 {
            println!("step {step:3}  loss {:.6}  w {weight:.4}", values[0][0]);
        }
        weight -= 0.1 * values[1][0];
    }
    assert!((weight - 0.8).abs() < 1e-3, "gradient descent must find 0.8, found {weight}");

    // The derivative agrees with a difference quotient.
    let at = |w: f64| run(&graph, &[vec![w], data.clone(), goal.clone()], &[&loss, &slope]);
    let (h, w) = (1e-6, 0.3);
    let quotient = (at(w + h)[0][0] - at(w - h)[0][0]) / (2.0 * h);
    assert!((quotient - at(w)[1][0]).abs() < 1e-8);
}
