//! Passes keep what a graph computes: on every sample of every op, and on programs made to be simplified.

use systole_compile::{Options, PASSES, optimize, schedule};
use systole_ir::DType::*;
use systole_ir::op::{Convolution, TABLE};
use systole_ir::{Graph, GraphBuilder, Literal, Op, Scalar, Tensor, TensorType, grad, interp};

/// Same bits, but for which NaN a NaN is.
fn same(a: &Literal, b: &Literal) -> bool {
    let nan = |s: Scalar| matches!(s, Scalar::Float(f) if f.is_nan());
    let bits = |l: &Literal, i: usize| l.get(i).to_bits(l.dtype());
    a.ty() == b.ty()
        && (0..a.ty().elements()).all(|i| bits(a, i) == bits(b, i) || (nan(a.get(i)) && nan(b.get(i))))
}

fn check(graph: &Graph, args: &[Literal], label: &str) {
    let refs: Vec<&Literal> = args.iter().collect();
    let want = interp::run(graph, &refs).unwrap();
    let mut now = graph.clone();
    for pass in PASSES {
        now = (pass.run)(&now);
        now.verify().unwrap_or_else(|e| panic!("{label} after {}: {e}", pass.name));
        let got = interp::run(&now, &refs).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert!(same(got, want), "{label} after {}:\n{got:?}\n{want:?}", pass.name);
        }
    }
    let plan = schedule(&now, &Options::default()).unwrap();
    assert!(plan.to_string().contains("schedule"));
}

#[test]
fn samples_of_every_op() {
    let mut count = 0;
    for entry in TABLE {
        for sample in (entry.samples)() {
            check(&sample.graph, &sample.arguments(4), &format!("{} {}", entry.name, sample.label));
            count += 1;
        }
    }
    assert!(count > TABLE.len());
}

fn optimized(build: impl Fn(&GraphBuilder) -> Vec<Tensor>) -> (Graph, Graph) {
    let g = GraphBuilder::new("main");
    let results = build(&g);
    let graph = g.finish(&results).unwrap();
    (Graph::clone(&graph), optimize(&graph).unwrap().0)
}

fn count(graph: &Graph, what: impl Fn(&Op) -> bool) -> usize {
    graph.nodes.iter().filter(|n| what(&n.op)).count()
}

#[test]
fn identities_go_and_what_is_not_exact_stays() {
    let ty = TensorType::new(F32, [2, 3]);
    let (before, after) = optimized(|g| {
        let x = g.parameter(ty.clone(), "x");
        let y = ((&x * 1.0) / 1.0 - 0.0) + 0.0;
        vec![y.transpose(&[1, 0]).transpose(&[1, 0]).reshape([6]).reshape([2, 3])]
    });
    // x + 0 turns −0 into 0: it stays, alone.
    assert_eq!(count(&after, |op| matches!(op, Op::Binary(_))), 1, "{after:?}");
    assert_eq!(count(&after, |op| matches!(op, Op::Transpose(_) | Op::Reshape(_))), 0);
    let x = Literal::from_slice([2, 3], &[-0.0f32, 0.0, 1.0, f32::INFINITY, f32::NAN, -3.0]).unwrap();
    check(&before, &[x], "identities");
}

#[test]
fn transposes_around_products_vanish() {
    let (_, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F32, [5, 3]), "x");
        let w = g.parameter(TensorType::new(F32, [3, 4]), "w");
        let loss = x.dot(&w).tanh().sum_all();
        grad(&loss, &[&x, &w])
    });
    assert_eq!(count(&after, |op| matches!(op, Op::Transpose(_))), 0, "{after:?}");
}

#[test]
fn convolutions_pad_and_turn_kernels_around_themselves() {
    let (before, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F32, [2, 5, 4, 3]), "x");
        let k = g.parameter(TensorType::new(F32, [3, 2, 3, 4]), "k");
        let padded = x.pad(&x.scalar_like(0.0), &[0, 2, 1, 0], &[0, 1, 3, 0], &[0; 4]);
        let op = Convolution::valid(padded.ty(), &[2, 1], &[1, 1], 1);
        let y = padded.convolution(&k, op);
        grad(&(&y * &y).sum_all(), &[&x, &k])
    });
    // The gradient of what was padded is cut out of that of the padded array.
    let pads = |op: &Op| matches!(op, Op::Pad(p) if p.low.iter().chain(&p.high).any(|&n| n > 0));
    assert_eq!(count(&after, pads), 0, "{after:?}");
    assert_eq!(count(&after, |op| matches!(op, Op::Reverse(_))), 0, "{after:?}");
    assert_eq!(count(&after, |op| matches!(op, Op::Convolution(c) if c.reversal == [true, true])), 1);
    let draw = |dims: &[usize], from: usize| {
        let n = dims.iter().product::<usize>();
        let values: Vec<f32> = (0..n).map(|i| ((i * 7 + from) % 11) as f32 - 5.0).collect();
        Literal::from_slice(dims, &values).unwrap()
    };
    check(&before, &[draw(&[2, 5, 4, 3], 1), draw(&[3, 2, 3, 4], 4)], "convolution");
}

#[test]
fn equal_expressions_are_computed_once() {
    let (_, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F64, [4]), "x");
        vec![x.exp() + x.exp() * x.exp()]
    });
    assert_eq!(count(&after, |op| matches!(op, Op::Unary(_))), 1);
}

#[test]
fn elementwise_work_is_one_step_and_joins_the_fold_after_it() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [8, 16]), "x");
    let b = g.parameter(TensorType::new(F32, [16]), "b");
    let y = ((&x + &b).tanh() * 2.0 - &x).sum(&[1]);
    let graph = g.finish(&[y]).unwrap();
    let plan = schedule(&optimize(&graph).unwrap().0, &Options::default()).unwrap();
    assert_eq!(plan.steps.len(), 1, "{plan}");
}
