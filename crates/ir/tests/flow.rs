//! Loops, branches and sorting: values, and derivatives against finite differences in f64.

use systole_ir::{
    DType, ErrorKind, GraphBuilder, Literal, Op, Tensor, TensorType, control_builders, grad, interp,
    rng::RandomStream,
};
use systole_testing::assert_error;

fn random(shape: &[usize], seed: u64) -> Literal {
    let mut s = RandomStream::new(seed, 1, 2);
    let n = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|_| s.uniform_f64() * 2.0 - 1.0).collect();
    Literal::from_slice(shape, &values).unwrap()
}

/// Compares the gradient of a scalar function with central differences along one random direction.
fn check_gradient(shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Tensor) {
    let g = GraphBuilder::new("main");
    let xs: Vec<Tensor> = shapes.iter().map(|&s| g.parameter(TensorType::new(DType::F64, s), "x")).collect();
    let y = f(&xs);
    let dx = grad(&y, &xs.iter().collect::<Vec<_>>());
    let graph = g.finish(&[vec![y], dx].concat()).unwrap();
    graph.verify().unwrap();
    let at = |step: f64| {
        let move_by = |(i, s): (usize, &&[usize])| {
            let (x, v) = (random(s, i as u64), random(s, 100 + i as u64));
            let moved: Vec<f64> = x.to_f64s().iter().zip(v.to_f64s()).map(|(x, v)| x + step * v).collect();
            Literal::from_slice(*s, &moved).unwrap()
        };
        let args: Vec<Literal> = shapes.iter().enumerate().map(move_by).collect();
        interp::run(&graph, &args.iter().collect::<Vec<_>>()).unwrap()
    };
    let h = 1e-5;
    let differences = (at(h)[0].get(0).as_f64() - at(-h)[0].get(0).as_f64()) / (2.0 * h);
    let derivative: f64 = (at(0.0)[1..].iter().enumerate())
        .map(|(i, d)| {
            let v = random(shapes[i], 100 + i as u64).to_f64s();
            d.to_f64s().iter().zip(v).map(|(d, v)| d * v).sum::<f64>()
        })
        .sum();
    assert!(
        (derivative - differences).abs() <= 1e-7 * (1.0 + differences.abs()),
        "derivative {derivative}, finite differences {differences}"
    );
    assert!(derivative != 0.0, "a zero derivative tests nothing");
}

/// h ← tanh(h·w + x): recurrent network with a captured weight.
fn rnn(h: &Tensor, w: &Tensor, xs: &Tensor) -> Tensor {
    let (last, ys) = control_builders::scan(&[h], &[xs], |carry, x| {
        let h = (carry[0].dot(w) + &x[0]).tanh();
        (vec![h.clone()], vec![&h * &h])
    });
    last[0].sum_all() + ys[0].sin_sum()
}

trait SinSum {
    fn sin_sum(&self) -> Tensor;
}

impl SinSum for Tensor {
    fn sin_sum(&self) -> Tensor {
        self.sine().sum_all()
    }
}

#[test]
fn scan_with_captures() {
    check_gradient(&[&[2, 3], &[3, 3], &[5, 2, 3]], |x| rnn(&x[0], &x[1], &x[2]));
}

/// A layer with matrix products, a reduction and a loop, whose results are stored.
fn layers(x: &Tensor, weights: &Tensor) -> Tensor {
    let (last, sums) = control_builders::scan_keeping(&[x], &[weights], |carry, w| {
        let h = carry[0].dot(&w[0]);
        let sum = h.sum(&[0]);
        let turned = control_builders::fori_loop(2, &[&h], |_, t| vec![(&t[0] * &sum).sine()]).remove(0);
        (vec![turned + &h * &sum], vec![sum])
    });
    last[0].sin_sum() + sums[0].sin_sum()
}

#[test]
fn scan_that_keeps_the_results_of_work() {
    check_gradient(&[&[2, 3], &[3, 3, 3]], |x| layers(&x[0], &x[1]));
}

#[test]
fn second_derivatives_through_what_a_scan_kept() {
    check_gradient(&[&[2, 3], &[2, 3, 3]], |x| {
        let slope = grad(&layers(&x[0], &x[1]), &[&x[1]]).remove(0);
        (&slope * &slope).sum_all()
    });
}

/// `c: [2, 3], p: [2, 6], w: [3, 6], xs: [5, 2, 6]`: recurrent cell with two gates; the product with the weights is
/// carried to the next iteration, as in recurrent layers.
fn gated(c: &Tensor, p: &Tensor, w: &Tensor, xs: &Tensor) -> Tensor {
    let (last, all) = control_builders::scan(&[c, p], &[xs], |carry, x| {
        let z = &x[0] + &carry[1];
        let gate = z.slice_dim(1, 0, 3).logistic();
        let c = &gate * &carry[0] + (1.0 - &gate) * z.slice_dim(1, 3, 6).tanh();
        let h = c.tanh();
        (vec![c, h.dot(w)], vec![h])
    });
    last[0].sum_all() + all[0].sin_sum()
}

#[test]
fn gates_are_kept_instead_of_their_sums() {
    let shapes: [&[usize]; 4] = [&[2, 3], &[2, 6], &[3, 6], &[5, 2, 6]];
    check_gradient(&shapes, |x| gated(&x[0], &x[1], &x[2], &x[3]));
    check_gradient(&shapes, |x| {
        let slope = grad(&gated(&x[0], &x[1], &x[2], &x[3]), &[&x[2]]).remove(0);
        (&slope * &slope).sum_all()
    });
    let g = GraphBuilder::new("main");
    let xs = shapes.map(|s| g.parameter(TensorType::new(DType::F64, s), "x"));
    let y = gated(&xs[0], &xs[1], &xs[2], &xs[3]);
    let graph = g.finish(&grad(&y, &[&xs[2]])).unwrap();
    let kept = graph.nodes.iter().find_map(|n| match &n.op {
        Op::While(w) => Some((w.recorded.as_ref()?, &w.body)),
        _ => None,
    });
    let (kept, body) = kept.expect("a loop that records");
    // The state c, both gates, and h = tanh(c), but not the pre-activations of the gates.
    let types: Vec<&TensorType> =
        body.results[body.results.len() - kept.len()..].iter().map(|&r| body.ty(r)).collect();
    assert_eq!(types, [&TensorType::new(DType::F64, [5, 2, 3]); 3]);
}

#[test]
fn nested_loops_and_repeated_captures() {
    check_gradient(&[&[3]], |x| {
        let y = control_builders::fori_loop(3, &[&x[0]], |i, s| {
            let inner = control_builders::fori_loop(2, &[&s[0]], |_, t| vec![(&t[0] * &x[0]).sine() + &s[0]]);
            vec![&inner[0] * &(i.convert(DType::F64) + 1.0)]
        });
        y[0].sum_all()
    });
}

#[test]
fn second_derivatives_and_two_losses_through_one_loop() {
    check_gradient(&[&[3]], |x| {
        let y = control_builders::fori_loop(3, &[&x[0]], |_, s| vec![&s[0] * &s[0] + &x[0]]);
        let first = grad(&y[0].sum_all(), &[&x[0]]).remove(0);
        let second = grad(&y[0].sin_sum(), &[&x[0]]).remove(0);
        (first * second).sum_all()
    });
}

#[test]
fn a_derivative_inside_a_body() {
    check_gradient(&[&[3]], |x| {
        let descend = |_: &Tensor, s: &[Tensor]| {
            let loss = (&s[0] * &s[0] * &x[0]).sin_sum();
            vec![&s[0] - &(grad(&loss, &[&s[0]]).remove(0) * 0.1)]
        };
        control_builders::fori_loop(3, &[&x[0]], descend)[0].sum_all()
    });
}

#[test]
fn branches() {
    for index in [-1.0, 0.0, 1.0, 7.0] {
        check_gradient(&[&[3], &[3]], |x| {
            let i = x[0].builder().scalar(DType::I32, index);
            let y = control_builders::case(
                &i,
                &[&|| vec![&x[0] * &x[1], x[1].clone()], &|| vec![x[0].sine(), &x[0] + &x[1]]],
            );
            (&y[0] * &y[1].exp()).sum_all()
        });
    }
}

#[test]
fn only_the_chosen_branch_runs_and_belongs_to_the_case() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::scalar(DType::F32), "x");
    let y = control_builders::cond(&x.less(&x.scalar_like(0.0)), || vec![x.exp().sine()], || vec![x.clone()]);
    let graph = g.finish(&y).unwrap();
    assert!(graph.nodes.iter().all(|n| n.op.name() != "exponential"), "the body stays in its branch");
    graph.verify().unwrap();
}

#[test]
fn sorting() {
    check_gradient(&[&[3, 4], &[3, 4]], |x| {
        let (top, _) = (&x[0] * 3.0).top_k(2);
        let sorted = x[1].sort(0, true);
        let weights = x[0].builder().iota(sorted.ty().clone(), 0);
        (sorted * weights).sine().sum_all() + top.sin_sum()
    });
    // Several operands sorted by the first one.
    check_gradient(&[&[5], &[5]], |x| {
        let g = GraphBuilder::new("comparator");
        let p: Vec<Tensor> = (0..4).map(|_| g.parameter(TensorType::scalar(DType::F64), "element")).collect();
        let comparator = g.finish(&[p[0].less(&p[1])]).unwrap();
        let y = Tensor::sort_by(&[&x[0], &x[1]], 0, true, comparator);
        let weights = x[0].builder().iota(y[0].ty().clone(), 0);
        (&y[1] * &weights).sin_sum() + (&y[0] * &y[1] * &weights).sum_all()
    });
}

#[test]
fn sort_is_stable_and_puts_nan_last() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::F32, [5]), "x");
    let graph = g.finish(&[x.argsort(0, false), x.argsort(0, true)]).unwrap();
    let x = Literal::from_slice([5], &[2f32, f32::NAN, 1., 2., 1.]).unwrap();
    let out = interp::run(&graph, &[&x]).unwrap();
    assert_eq!(out[0].as_slice::<i32>().unwrap(), [2, 4, 0, 3, 1]);
    assert_eq!(out[1].as_slice::<i32>().unwrap(), [1, 0, 3, 2, 4]);
}

#[test]
fn loops_that_do_not_run() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::scalar(DType::F64), "x");
    let xs = g.parameter(TensorType::new(DType::F64, [0, 2]), "xs");
    let y = control_builders::fori_loop(0, &[&x], |_, s| vec![&s[0] * &x]).remove(0);
    let (last, ys) =
        control_builders::scan(&[&x], &[&xs], |c, x| (vec![&c[0] + &x[0].sum_all()], vec![x[0].sine()]));
    let loss = &y * 3.0 + &last[0];
    let d = grad(&loss, &[&x, &xs]);
    let graph = g.finish(&[vec![loss, ys[0].clone()], d].concat()).unwrap();
    let xs = Literal::zeros(TensorType::new(DType::F64, [0, 2]));
    let out = interp::run(&graph, &[&Literal::scalar(DType::F64, 2.0), &xs]).unwrap();
    assert_eq!((out[0].get(0).as_f64(), out[2].get(0).as_f64()), (8.0, 4.0));
    assert_eq!(out[1].ty(), &TensorType::new(DType::F64, [0, 2]));
}

#[test]
fn what_cannot_be_differentiated_says_why() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::scalar(DType::F64), "x");
    let y = control_builders::while_loop(&[&x], |s| s[0].less(&x), |s| vec![&s[0] * 2.0]).remove(0);
    let dx = grad(&y, &[&x]);
    assert_error(&g.finish(&dx).unwrap_err(), ErrorKind::Graph, &["`while`", "fori_loop"]);

    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::scalar(DType::F64), "x");
    let double =
        |s: &[Tensor]| control_builders::while_loop(&[&s[0]], |t| t[0].less(&x), |t| vec![&t[0] * 2.0]);
    let y = control_builders::fori_loop(3, &[&x], |_, s| double(s)).remove(0);
    let dx = grad(&y, &[&x]);
    assert_error(&g.finish(&dx).unwrap_err(), ErrorKind::Graph, &["fori_loop", "body of while"]);
}

#[test]
fn gradients_stop_at_a_barrier_that_says_so() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::scalar(DType::F64), "x");
    let y = &x.stop_gradient() * &x;
    let dx = grad(&y, &[&x]);
    let graph = g.finish(&dx).unwrap();
    let out = interp::run(&graph, &[&Literal::scalar(DType::F64, 5.0)]).unwrap();
    assert_eq!(out[0].get(0).as_f64(), 5.0);
}

#[test]
fn errors_in_bodies_surface() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::F32, [2]), "x");
    let y = control_builders::fori_loop(2, &[&x], |_, s| vec![s[0].sum(&[0])]);
    let error = g.finish(&y).unwrap_err().to_string();
    assert!(error.contains("while (C2)"), "{error}");

    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::F32, [2]), "x");
    let y = control_builders::fori_loop(2, &[&x], |_, s| vec![s[0].reshape([3])]);
    assert!(g.finish(&y).unwrap_err().to_string().contains("reshape (C2)"));
}

#[test]
fn random_draws_have_the_right_moments() {
    let g = GraphBuilder::new("main");
    let state = g.parameter(TensorType::new(DType::U64, [3]), "state");
    let (state, normal) = state.random_normal(&[100, 100]);
    let (next, coin) = state.random_bernoulli(0.3, &[10_001]);
    let mean = coin.convert(DType::F32).mean_all();
    let graph = g.finish(&[normal.mean_all(), normal.variance(&[0, 1]), mean, next]).unwrap();
    let out = interp::run(&graph, &[&Literal::from_slice([3], &[3u64, 4, 5]).unwrap()]).unwrap();
    let value = |i: usize| out[i].to_f32s()[0];
    assert!(value(0).abs() < 0.03 && (value(1) - 1.0).abs() < 0.04 && (value(2) - 0.3).abs() < 0.02);
    assert_eq!(out[3].as_slice::<u64>().unwrap(), [3, 4 + 5000 + 2501, 5]);
}
