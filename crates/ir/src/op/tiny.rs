//! Tiny one-op programs: how the samples of structural ops are put together, and a quick check of their derivatives.

use super::{Domain, Sample};
use crate::{GraphBuilder, Tensor};
use systole_base::TensorType;

/// A sample whose parameters have the given types and domains and whose results are those of `build`.
pub(crate) fn sample(
    label: String,
    params: &[(TensorType, Domain)],
    ulp: u32,
    differentiable: bool,
    build: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Sample {
    // There are hundreds of these closures: only what must be is compiled for each.
    let (g, x) = parameters(params);
    finished(label, params, (ulp, differentiable), &g, &build(&x))
}

fn parameters(params: &[(TensorType, Domain)]) -> (GraphBuilder, Vec<Tensor>) {
    let g = GraphBuilder::new("main");
    let make = |(i, (ty, _)): (usize, &(TensorType, Domain))| g.parameter(ty.clone(), &format!("x{i}"));
    let x = params.iter().enumerate().map(make).collect();
    (g, x)
}

fn finished(
    label: String,
    params: &[(TensorType, Domain)],
    (ulp, differentiable): (u32, bool),
    g: &GraphBuilder,
    results: &[Tensor],
) -> Sample {
    match g.finish(results) {
        Ok(graph) => {
            let domains = params.iter().map(|p| p.1).collect();
            Sample { label, graph, domains, ulp, differentiable }
        }
        Err(e) => systole_base::bug!("the sample {label} does not build: {e}"),
    }
}

/// Values that tests draw where an op puts no limits on them.
pub(crate) const WIDE: Domain = Domain::Uniform(-4.0, 4.0);

#[cfg(test)]
pub(crate) mod check {
    use super::*;
    use crate::{grad, interp};
    use systole_base::{DType, Literal, rng::Stream};

    /// Arguments of a sample.
    pub(crate) fn arguments(s: &Sample, rng: &mut Stream) -> Vec<Literal> {
        s.graph.param_types().iter().zip(&s.domains).map(|(t, d)| d.draw(t, rng)).collect()
    }

    /// Runs every sample, and for those over f64 compares the derivative in a random direction with a difference.
    pub(crate) fn all(samples: &[Sample]) {
        assert!(!samples.is_empty());
        let mut checked = 0;
        for (i, s) in samples.iter().enumerate() {
            s.graph.verify().unwrap();
            let mut rng = Stream::new(7, 1, i as u64);
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

    /// y·w and its gradients with respect to the f64 parameters, as one graph.
    fn with_gradients(s: &Sample, rng: &mut Stream) -> std::sync::Arc<crate::Graph> {
        let g = GraphBuilder::new("check");
        let xs: Vec<Tensor> = s.graph.param_types().into_iter().map(|t| g.parameter(t, "x")).collect();
        let ys = g.inline(&s.graph, &xs.iter().collect::<Vec<_>>());
        let mut loss = g.scalar(DType::F64, 0.0);
        for y in ys.iter().filter(|y| y.dtype() == DType::F64) {
            let w = g.constant(Domain::Uniform(0.5, 1.5).draw(y.ty(), rng));
            loss = loss + (y * &w).sum_all();
        }
        let floats: Vec<&Tensor> = xs.iter().filter(|x| x.dtype() == DType::F64).collect();
        let grads = grad(&loss, &floats);
        g.finish(&[vec![loss], grads].concat()).unwrap_or_else(|e| panic!("{}: {e}", s.label))
    }

    fn derivative(s: &Sample, args: &[Literal], rng: &mut Stream) {
        let graph = with_gradients(s, rng);
        let is_float: Vec<bool> = args.iter().map(|a| a.dtype() == DType::F64).collect();
        let toward: Vec<Literal> =
            args.iter().map(|a| Domain::Uniform(-1.0, 1.0).draw(a.ty(), rng)).collect();
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
        assert!((analytic - difference).abs() < 1e-6 * scale, "{}: {analytic} {difference}", s.label);
        assert!(analytic.is_finite());
    }

    fn shifted(x: &Literal, d: &Literal, t: f64) -> Literal {
        let sum: Vec<f64> = x.to_f64s().iter().zip(d.to_f64s()).map(|(x, d)| x + t * d).collect();
        Literal::from_slice(x.shape(), &sum).unwrap()
    }
}
