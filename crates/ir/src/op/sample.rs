//! Test samples of ops: small graphs with the domains of their arguments, from which the tests of every op are
//! generated. Includes a quick gradient check.

use super::monoid::Monoid;
use crate::graph::{Node, Op, ValueId};
use crate::{Graph, GraphBuilder, Tensor};
use std::sync::Arc;
use systole_base::rng::{RandomStream, hash_name};
use systole_base::{DType, Literal, LiteralBuilder, Scalar, TensorType};

/// Domain from which a test draws the elements of an argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ArgDomain {
    /// Uniform in an interval, rounded to integers for integer types; a coin flip for bool.
    Uniform(f64, f64),
    /// Distinct values in random order, at least the given gap apart: no ties.
    Distinct(f64),
}

impl ArgDomain {
    /// Draws an array of type `ty` from this domain.
    pub fn draw(self, ty: &TensorType, rng: &mut RandomStream) -> Literal {
        let n = ty.elements();
        let mut values: Vec<f64> = match self {
            ArgDomain::Uniform(..) if ty.dtype == DType::Bool => {
                (0..n).map(|_| rng.below(2) as f64).collect()
            }
            ArgDomain::Uniform(low, high) => (0..n).map(|_| low + (high - low) * rng.uniform_f64()).collect(),
            ArgDomain::Distinct(gap) => {
                (0..n).map(|i| gap * (i as f64 - n as f64 / 2.0) * (1.0 + rng.uniform_f64() / 1e3)).collect()
            }
        };
        if matches!(self, ArgDomain::Distinct(_)) {
            (1..n).rev().for_each(|i| values.swap(i, rng.below(i as u64 + 1) as usize));
        }
        let mut b = LiteralBuilder::new(ty.clone());
        for (i, v) in values.into_iter().enumerate() {
            let whole = match self {
                // Rounding must not leave the interval: a divisor must not become 0.
                ArgDomain::Uniform(low, high) => v.round().clamp(low.ceil(), high.floor()),
                ArgDomain::Distinct(_) => v.round(),
            };
            b.set(i, Scalar::of(ty.dtype, if ty.dtype.is_float() { v } else { whole }));
        }
        b.finish()
    }
}

/// Small test program for an op.
#[derive(Clone, Debug)]
pub struct OpSample {
    /// Name of the case in test output; unique within its op.
    pub label: String,
    /// The program.
    pub graph: Arc<Graph>,
    /// Domain of each parameter.
    pub domains: Vec<ArgDomain>,
    /// Tolerance of a backend's floats relative to the interpreter, in units in the last place (ULP) of the result
    /// type.
    pub ulp: u32,
    /// Whether the derivative is checked against finite differences.
    pub differentiable: bool,
}

impl OpSample {
    /// Returns arguments for the test program; a pure function of the label and `seed`.
    pub fn arguments(&self, seed: u64) -> Vec<Literal> {
        let types = self.graph.param_types();
        let draw = |(i, (ty, domain)): (usize, (&TensorType, &ArgDomain))| {
            domain.draw(ty, &mut RandomStream::new(seed, hash_name(&self.label), i as u64))
        };
        types.iter().zip(&self.domains).enumerate().map(draw).collect()
    }

    /// Like [`arguments`](OpSample::arguments), restricted to inputs for which the specification defines a single
    /// result. Initial values of reductions are the identities of their bodies, because implementations differ in how
    /// often another value is included (StableHLO: reduce, reduce_window, select_and_scatter). Order-dependent scatters
    /// write no element twice, or the same value.
    pub fn specified_arguments(&self, seed: u64) -> Vec<Literal> {
        let mut arguments = self.arguments(seed);
        for node in &self.graph.nodes {
            self.write_once(node, seed, &mut arguments);
            for (init, body) in initial_values(node) {
                let at = self.graph.params.iter().position(|p| *p == init);
                if let Some((argument, monoid)) = at.map(|i| &mut arguments[i]).zip(Monoid::of(body)) {
                    let ty = argument.ty().clone();
                    let identity = monoid.identity(ty.dtype);
                    *argument = Literal::splat(ty, identity);
                }
            }
        }
        arguments
    }

    fn write_once(&self, node: &Node, seed: u64, arguments: &mut [Literal]) {
        let Op::Scatter(op) = &node.op else { return };
        if Monoid::of(&op.body).is_some() || op.unique_indices {
            return;
        }
        let half = node.inputs.len() / 2;
        let place = |input: ValueId| self.graph.params.iter().position(|p| *p == input);
        if let Some(i) = place(node.inputs[half]) {
            let mut rng = RandomStream::new(seed, hash_name(&self.label), i as u64);
            arguments[i] = ArgDomain::Distinct(1.0).draw(arguments[i].ty(), &mut rng);
        }
        // Windows with different starts may still overlap.
        let apart = |dim: &usize| op.inserted_window_dims.contains(dim);
        if !op.scatter_dims_to_operand_dims.iter().any(apart) {
            for i in node.inputs[half + 1..].iter().filter_map(|input| place(*input)) {
                let ty = arguments[i].ty().clone();
                arguments[i] = Literal::splat(ty.clone(), Scalar::of(ty.dtype, 1.0));
            }
        }
    }
}

/// Initial values of a node's reductions, with their bodies.
fn initial_values(node: &Node) -> Vec<(ValueId, &Graph)> {
    let half = node.inputs.len() / 2;
    match &node.op {
        Op::Reduce(op) => node.inputs[half..].iter().map(|init| (*init, &*op.body)).collect(),
        Op::ReduceWindow(op) => node.inputs[half..].iter().map(|init| (*init, &*op.body)).collect(),
        Op::SelectAndScatter(op) => vec![(node.inputs[2], &*op.scatter)],
        _ => Vec::new(),
    }
}

/// Creates a sample with the given parameter types and domains; `build` computes its results.
pub(crate) fn sample(
    label: String,
    params: &[(TensorType, ArgDomain)],
    ulp: u32,
    differentiable: bool,
    build: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> OpSample {
    // There are hundreds of these closures: the generic part is kept small to limit compile time.
    let (g, x) = parameters(params);
    finished(label, params, (ulp, differentiable), &g, &build(&x))
}

fn parameters(params: &[(TensorType, ArgDomain)]) -> (GraphBuilder, Vec<Tensor>) {
    let g = GraphBuilder::new("main");
    let make = |(i, (ty, _)): (usize, &(TensorType, ArgDomain))| g.parameter(ty.clone(), &format!("x{i}"));
    let x = params.iter().enumerate().map(make).collect();
    (g, x)
}

fn finished(
    label: String,
    params: &[(TensorType, ArgDomain)],
    (ulp, differentiable): (u32, bool),
    g: &GraphBuilder,
    results: &[Tensor],
) -> OpSample {
    match g.finish(results) {
        Ok(graph) => {
            let domains = params.iter().map(|p| p.1).collect();
            OpSample { label, graph, domains, ulp, differentiable }
        }
        Err(e) => systole_base::bug!("cannot build the sample {label}: {e}"),
    }
}

/// Default domain of test inputs.
pub(crate) const WIDE: ArgDomain = ArgDomain::Uniform(-4.0, 4.0);

#[cfg(test)]
pub(crate) mod check {
    use super::*;
    use crate::{grad, interp};
    use systole_base::{DType, Literal, rng::RandomStream};

    /// Draws the arguments of a sample.
    pub(crate) fn arguments(s: &OpSample, rng: &mut RandomStream) -> Vec<Literal> {
        s.graph.param_types().iter().zip(&s.domains).map(|(t, d)| d.draw(t, rng)).collect()
    }

    /// Runs every sample; for f64 samples, compares the directional derivative with a finite difference.
    pub(crate) fn all(samples: &[OpSample]) {
        assert!(!samples.is_empty());
        let mut checked = 0;
        for (i, s) in samples.iter().enumerate() {
            s.graph.verify().unwrap();
            let mut rng = RandomStream::new(7, 1, i as u64);
            let args = arguments(s, &mut rng);
            let refs: Vec<&Literal> = args.iter().collect();
            let out = interp::run(&s.graph, &refs).unwrap();
            assert_eq!(out.iter().map(|l| l.ty().clone()).collect::<Vec<_>>(), s.graph.result_types());
            if s.differentiable {
                derivative(s, &args, &mut rng);
                checked += 1;
            }
        }
        assert!(checked > 0);
    }

    /// Builds a graph that computes y·w and its gradients with respect to the f64 parameters.
    fn with_gradients(s: &OpSample, rng: &mut RandomStream) -> std::sync::Arc<crate::Graph> {
        let g = GraphBuilder::new("check");
        let xs: Vec<Tensor> = s.graph.param_types().into_iter().map(|t| g.parameter(t, "x")).collect();
        let ys = g.inline(&s.graph, &xs.iter().collect::<Vec<_>>());
        let mut loss = g.scalar(DType::F64, 0.0);
        for y in ys.iter().filter(|y| y.dtype() == DType::F64) {
            let w = g.constant(ArgDomain::Uniform(0.5, 1.5).draw(y.ty(), rng));
            loss = loss + (y * &w).sum_all();
        }
        let floats: Vec<&Tensor> = xs.iter().filter(|x| x.dtype() == DType::F64).collect();
        let grads = grad(&loss, &floats);
        g.finish(&[vec![loss], grads].concat()).unwrap_or_else(|e| panic!("{}: {e}", s.label))
    }

    fn derivative(s: &OpSample, args: &[Literal], rng: &mut RandomStream) {
        let graph = with_gradients(s, rng);
        let is_float: Vec<bool> = args.iter().map(|a| a.dtype() == DType::F64).collect();
        let toward: Vec<Literal> =
            args.iter().map(|a| ArgDomain::Uniform(-1.0, 1.0).draw(a.ty(), rng)).collect();
        let run = |t: f64| {
            let moved: Vec<Literal> = (0..args.len())
                .map(|k| if is_float[k] { shifted(&args[k], &toward[k], t) } else { args[k].clone() })
                .collect();
            interp::run(&graph, &moved.iter().collect::<Vec<_>>()).unwrap()
        };
        let at = run(0.0);
        let directions = (0..args.len()).filter(|&k| is_float[k]).map(|k| &toward[k]);
        let dot = |a: &Literal, b: &Literal| -> f64 {
            a.to_f64s().iter().zip(b.to_f64s()).map(|(x, y)| x * y).sum()
        };
        let analytic: f64 = at[1..].iter().zip(directions).map(|(g, d)| dot(g, d)).sum();
        let step = 1e-5;
        let difference = (run(step)[0].to_f64s()[0] - run(-step)[0].to_f64s()[0]) / (2.0 * step);
        let scale = 1.0 + analytic.abs().max(difference.abs());
        assert!(
            (analytic - difference).abs() < 1e-6 * scale,
            "{}: gradient {analytic}, finite difference {difference}",
            s.label
        );
        assert!(analytic.is_finite());
    }

    fn shifted(x: &Literal, d: &Literal, t: f64) -> Literal {
        let sum: Vec<f64> = x.to_f64s().iter().zip(d.to_f64s()).map(|(x, d)| x + t * d).collect();
        Literal::from_slice(x.shape(), &sum).unwrap()
    }
}

// Names of the previous version.
systole_base::renamed! { Domain => ArgDomain, Sample => OpSample }
