//! Graph passes preserve results: on every sample of every op, and on graphs built to be simplified.

use systole_compile::{PASSES, PipelineOptions, optimize, schedule};
use systole_ir::DType::*;
use systole_ir::op::{Binary, ConvDims, Convolution, TABLE};
use systole_ir::{
    Graph, GraphBuilder, Literal, Op, Scalar, Tensor, TensorType, control_builders, grad, interp,
};

/// Whether arrays have the same bits; all NaNs count as equal.
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
    for pass in PASSES.iter().filter(|pass| pass.exact) {
        now = (pass.run)(&now);
        now.verify().unwrap_or_else(|e| panic!("{label} after {}: {e}", pass.name));
        let got = interp::run(&now, &refs).unwrap();
        for (got, want) in got.iter().zip(&want) {
            assert!(same(got, want), "{label} after {}:\n{got:?}\n{want:?}", pass.name);
        }
    }
    let plan = schedule(&now, &PipelineOptions::default()).unwrap();
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
    // x + 0 turns −0 into 0, so it is not simplified.
    assert_eq!(count(&after, |op| matches!(op, Op::Binary(_))), 1, "{after:?}");
    assert_eq!(count(&after, |op| matches!(op, Op::Transpose(_) | Op::Reshape(_))), 0);
    let x = Literal::from_slice([2, 3], &[-0.0f32, 0.0, 1.0, f32::INFINITY, f32::NAN, -3.0]).unwrap();
    check(&before, &[x], "identities");
}

/// Splat constants from files become scalars for kernels, not arrays in memory.
#[test]
fn constants_of_one_value_are_numbers() {
    let ty = TensorType::new(F32, [40, 50]);
    let mut values = vec![2.5; 2000];
    let mut whole = |last: f32| {
        values[1999] = last;
        Literal::from_slice([40, 50], &values).unwrap()
    };
    let (one, many) = (whole(2.5), whole(-0.0));
    let (before, after) = optimized(|g| {
        let x = g.parameter(ty.clone(), "x");
        let [one, many] = [&one, &many].map(|c| g.constant(c.clone()));
        vec![&x * &one + &one, &x * &many, one]
    });
    let is_array = |op: &Op| matches!(op, Op::Constant(c) if c.value.ty().elements() > 1);
    assert_eq!((count(&before, is_array), count(&after, is_array)), (2, 1));
    let x: Vec<f32> = (0..2000).map(|i| i as f32 / 7.0 - 100.0).collect();
    check(&before, &[Literal::from_slice([40, 50], &x).unwrap()], "constants");
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
    // The gradient of a padded value is sliced out of that of the padded array.
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
    let plan = schedule(&optimize(&graph).unwrap().0, &PipelineOptions::default()).unwrap();
    assert_eq!(plan.steps.len(), 1, "{plan}");
}

/// Elements around `centre`, in a pattern without repeats of the dimensions.
fn around(dims: &[usize], centre: f32) -> Literal {
    let n = dims.iter().product::<usize>();
    let values: Vec<f32> = (0..n).map(|i| centre + ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
    Literal::from_slice(dims, &values).unwrap()
}

#[test]
fn distances_from_the_mean_sum_to_zero_without_a_pass() {
    let dims = [6, 5, 4, 3];
    let (before, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F32, dims), "x");
        let scale = g.parameter(TensorType::new(F32, [3]), "scale");
        let wide = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[3]);
        let centred = &x - &wide(&x.mean(&[0, 1, 2]));
        // By itself, and as one of two terms if the other sum exists.
        let alone = centred.sum(&[0, 1, 2]);
        let both = (&centred * &wide(&scale) + &x * &wide(&scale)).sum(&[0, 1, 2]);
        vec![x.sum(&[0, 1, 2]), alone, both, centred.abs().sum(&[0, 1, 2])]
    });
    // Sums of x and of the absolute distances.
    assert_eq!(count(&before, |op| matches!(op, Op::Reduce(_))), 5);
    assert_eq!(count(&after, |op| matches!(op, Op::Reduce(_))), 2, "{after:?}");
    let args = [around(&dims, 0.5), around(&[3], 2.0)];
    let args: Vec<&Literal> = args.iter().collect();
    let (want, got) = (interp::run(&before, &args).unwrap(), interp::run(&after, &args).unwrap());
    assert!(got[1].to_f64s().iter().all(|&zero| zero == 0.0), "{got:?}");
    for (want, got) in want.iter().zip(&got) {
        let apart = want.to_f64s().iter().zip(got.to_f64s()).map(|(w, g)| (w - g).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-3, "{want:?} {got:?}");
    }
}

#[test]
fn sums_around_other_values_stay() {
    // The mean of another array, a mean over other dimensions, and a sum divided by another number.
    let dims = [6, 4, 3];
    let (before, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F32, dims), "x");
        let y = g.parameter(TensorType::new(F32, dims), "y");
        let by_feature = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[2]);
        let of_other = &x - &by_feature(&y.mean(&[0, 1]));
        let of_part = &x - &x.mean(&[1]).broadcast_in_dim(x.shape(), &[0, 2]);
        let of_more = &x - &by_feature(&(x.sum(&[0, 1]) * (1.0 / 20.0)));
        vec![of_other.sum(&[0, 1]), of_part.sum(&[0]), of_more.sum(&[0, 1])]
    });
    let args = [around(&dims, 0.5), around(&dims, 3.0)];
    let args: Vec<&Literal> = args.iter().collect();
    let (want, got) = (interp::run(&before, &args).unwrap(), interp::run(&after, &args).unwrap());
    for (want, got) in want.iter().zip(&got) {
        assert!(want.to_f64s().iter().any(|w| w.abs() > 1e-2), "{want:?}");
        let apart = want.to_f64s().iter().zip(got.to_f64s()).map(|(w, g)| (w - g).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-4, "{want:?} {got:?}");
    }
}

#[test]
fn variances_by_samples_are_exact_far_from_zero() {
    let dims = [7, 5, 4, 3];
    let (before, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F32, dims), "x");
        let centred = &x - &x.mean(&[0, 1, 2]).broadcast_in_dim(x.shape(), &[3]);
        vec![(&centred * &centred).mean(&[0, 1, 2])]
    });
    // Per-sample sums, and sums of squared deviations from per-sample means, have an array with both dimensions.
    let of_samples = |n: &systole_ir::Node| matches!(n.op, Op::Reduce(_)) && n.outs[0].shape[..] == [7, 3];
    assert_eq!(after.nodes.iter().filter(|n| of_samples(n)).count(), 2, "{after:?}");
    let x = around(&dims, 1000.0);
    let values = x.to_f64s();
    let (want, got) = (interp::run(&before, &[&x]).unwrap(), interp::run(&after, &[&x]).unwrap());
    for feature in 0..3 {
        let own: Vec<f64> = values.iter().skip(feature).step_by(3).copied().collect();
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        let exact = own.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / own.len() as f64;
        // The spacing of floats here is 6e-5, a ten-thousandth of the deviation, which limits the accuracy of means.
        let error = |l: &Literal| (l.to_f64s()[feature] / exact - 1.0).abs();
        assert!(error(&got[0]) < 1e-5 && error(&want[0]) < 1e-5, "{got:?} {want:?} {exact}");
    }
}

/// JAX passes constants to a loop as states that are returned unchanged. Their slices and transposes are computed once.
#[test]
fn states_that_never_change_are_captured_and_moved_before_the_loop() {
    let text = r#"module @m { func.func public @main(%x: tensor<3x4xf32>, %w: tensor<5x4xf32>) -> (tensor<3x4xf32>, tensor<3x5xf32>, tensor<i32>) {
  %zero = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
  %y = "stablehlo.constant"() <{value = dense<0.5> : tensor<3x5xf32>}> : () -> tensor<3x5xf32>
  %0:4 = "stablehlo.while"(%x, %zero, %w, %y) ({
  ^bb0(%a: tensor<3x4xf32>, %i: tensor<i32>, %b: tensor<5x4xf32>, %c: tensor<3x5xf32>):
    %n = "stablehlo.constant"() <{value = dense<3> : tensor<i32>}> : () -> tensor<i32>
    %t = "stablehlo.compare"(%i, %n) <{comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
    "stablehlo.return"(%t) : (tensor<i1>) -> ()
  }, {
  ^bb0(%a: tensor<3x4xf32>, %i: tensor<i32>, %b: tensor<5x4xf32>, %c: tensor<3x5xf32>):
    %one = "stablehlo.constant"() <{value = dense<1> : tensor<i32>}> : () -> tensor<i32>
    %next = "stablehlo.add"(%i, %one) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %part = "stablehlo.slice"(%b) <{start_indices = array<i64: 0, 0>, limit_indices = array<i64: 4, 4>, strides = array<i64: 1, 1>}> : (tensor<5x4xf32>) -> tensor<4x4xf32>
    %turned = "stablehlo.transpose"(%part) <{permutation = array<i64: 1, 0>}> : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %d = "stablehlo.dot_general"(%a, %turned) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}> : (tensor<3x4xf32>, tensor<4x4xf32>) -> tensor<3x4xf32>
    %all = "stablehlo.dot_general"(%d, %b) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1]>}> : (tensor<3x4xf32>, tensor<5x4xf32>) -> tensor<3x5xf32>
    %sum = "stablehlo.add"(%all, %c) : (tensor<3x5xf32>, tensor<3x5xf32>) -> tensor<3x5xf32>
    "stablehlo.return"(%a, %next, %b, %sum) : (tensor<3x4xf32>, tensor<i32>, tensor<5x4xf32>, tensor<3x5xf32>) -> ()
  }) : (tensor<3x4xf32>, tensor<i32>, tensor<5x4xf32>, tensor<3x5xf32>) -> (tensor<3x4xf32>, tensor<i32>, tensor<5x4xf32>, tensor<3x5xf32>)
  return %0#0, %0#3, %0#1 : tensor<3x4xf32>, tensor<3x5xf32>, tensor<i32>
} }"#;
    let graph = systole_ir::text::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let numbers = |shape: [usize; 2]| {
        let all: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32 * 0.25 - 2.0).collect();
        Literal::from_slice(shape, &all).unwrap()
    };
    check(&graph, &[numbers([3, 4]), numbers([5, 4])], "a loop of constants");
    let after = optimize(&graph).unwrap().0;
    let node = after.nodes.iter().find(|n| matches!(n.op, Op::While(_))).expect("a loop");
    let Op::While(w) = &node.op else { unreachable!() };
    // Captures: x, w and the hoisted value. States: the counter and the sum.
    assert_eq!((w.captures, node.inputs.len()), (3, 5));
    let moving = |op: &Op| matches!(op, Op::Slice(_) | Op::Transpose(_));
    assert_eq!((count(&w.body, moving), count(&after, |op| matches!(op, Op::Slice(_)))), (0, 1));
}

#[test]
fn entries_that_only_gain_dimensions_and_places_counted_from_the_end() {
    let (before, after) = optimized(|g| {
        let stack = g.parameter(TensorType::new(F32, [4, 2, 3]), "stack");
        let x = g.parameter(TensorType::new(F32, [2, 3]), "x");
        let i = g.parameter(TensorType::scalar(I32), "i");
        let entry = x.broadcast_in_dim(&[1, 2, 3].into(), &[1, 2]);
        let place = (g.scalar(I32, 4.0) - &i) - g.scalar(I32, 1.0);
        let zero = g.scalar(I32, 0.0);
        vec![stack.dynamic_update_slice(&entry, &[&place, &zero, &zero])]
    });
    let numbers = |n: usize| (0..n).map(|k| k as f32).collect::<Vec<f32>>();
    let args = [
        Literal::from_slice([4, 2, 3], &numbers(24)).unwrap(),
        Literal::from_slice([2, 3], &numbers(6)).unwrap(),
        Literal::from_slice([], &[2i32]).unwrap(),
    ];
    check(&before, &args, "entry");
    assert_eq!(count(&after, |op| matches!(op, Op::BroadcastInDim(_))), 0);
    assert_eq!(count(&after, |op| *op == Op::Binary(Binary::Subtract)), 1);
}

#[test]
fn entries_that_are_cheap_functions_of_others_are_not_kept() {
    let trips = 4;
    let (before, after) = optimized(|g| {
        let xs = g.parameter(TensorType::new(F32, [trips, 2, 3]), "xs");
        let start = g.full(&TensorType::new(F32, [2, 3]), 0.5);
        let (_, kept) = control_builders::scan(&[&start], &[&xs], |carry, x| {
            let y = (&carry[0] + &x[0]).tanh();
            let slope = &y * (1.0 - &y);
            let far = y.exp();
            (vec![y.clone()], vec![slope, y, far])
        });
        let (last, all) = control_builders::scan(&[&start], &[&kept[0], &kept[1], &kept[2]], |carry, k| {
            let next = &carry[0] * &k[0] + &k[1] * &k[2];
            (vec![next.clone()], vec![next])
        });
        [last, all].concat()
    });
    let states = |graph: &Graph| {
        let each = |n: &systole_ir::Node| if let Op::While(w) = &n.op { w.body.results.len() - 1 } else { 0 };
        graph.nodes.iter().map(each).collect::<Vec<_>>().into_iter().filter(|n| *n > 0).collect::<Vec<_>>()
    };
    // The carry, and the stored values: y and its exponential.
    assert_eq!((states(&before), states(&after)), (vec![4, 2], vec![3, 2]), "{after:?}");
    let numbers: Vec<f32> = (0..24).map(|k| (k as f32 * 0.37).sin()).collect();
    check(&before, &[Literal::from_slice([trips, 2, 3], &numbers).unwrap()], "derived entries");
}

/// A convolution as PyTorch has it: `x: [N, C, H, W], kernel: [F, C/groups, H, W] → [N, F, H', W']`.
fn channels_first(x: &Tensor, kernel: &Tensor, stride: usize, groups: usize) -> Tensor {
    let like = Convolution::channels_last(&[stride; 2], &[[1, 1]; 2], &[1, 1], groups, x.dtype());
    x.convolution(kernel, Convolution { dims: ConvDims::channels_first(2), ..like })
}

/// A residual network with normalization, pooling, padding, concatenation and a classifier, and its derivatives.
fn channels_first_network(g: &GraphBuilder) -> Vec<Tensor> {
    let of = |name: &str, dims: &[usize]| g.parameter(TensorType::new(F32, dims), name);
    let (x, stem, bias) = (of("x", &[2, 3, 6, 5]), of("stem", &[4, 3, 3, 3]), of("bias", &[4]));
    let (inner, grouped, head) =
        (of("inner", &[4, 4, 3, 3]), of("grouped", &[4, 2, 3, 3]), of("head", &[8, 2]));
    let y = channels_first(&x, &stem, 1, 1);
    let y = (&y + &bias.broadcast_in_dim(y.shape(), &[1])).relu();
    let centered =
        &y - &y.reduce_max(&[2, 3]).reshape([2, 4, 1, 1]).broadcast_in_dim(y.shape(), &[0, 1, 2, 3]);
    let sum = &y + &channels_first(&centered, &inner, 1, 1);
    let pooled = sum.max_pool(&[1, 1, 2, 2], &[1, 1, 2, 2], &[[0, 0], [0, 0], [0, 0], [0, 1]]);
    let zero = g.scalar(F32, 0.0);
    let padded = pooled.pad(&zero, &[0, 0, 1, 0], &[0, 0, 0, 1], &[0; 4]).reverse(&[2]);
    let both = Tensor::concatenate(&[&padded, &padded.slice(&[0, 0, 0, 0], &[2, 4, 4, 4], &[1; 4])], 1);
    // A batch dimension of size 1, as vmap inserts it.
    let both =
        both.reshape([2, 1, 8, 4, 4]).reshape([2, 8, 4, 4]).slice(&[0, 2, 0, 0], &[2, 6, 4, 4], &[1; 4]);
    let last = channels_first(&both, &grouped, 2, 2);
    let features = Tensor::concatenate(&[&last.sum(&[2, 3]), &both.sum(&[2, 3])], 1);
    let loss = features.dot(&head).sum_all();
    let parameters = [&x, &stem, &bias, &inner, &grouped, &head];
    let mut results = grad(&loss, &parameters);
    results.extend([loss, last.transpose(&[0, 2, 3, 1]), sum]);
    results
}

#[test]
fn channels_first_networks_are_computed_with_channels_last() {
    let g = GraphBuilder::new("main");
    let graph = g.finish(&channels_first_network(&g)).unwrap();
    // Small integers, whose sums do not depend on their order.
    let of = |(k, ty): (usize, &TensorType)| {
        let all: Vec<f32> =
            (0..ty.elements()).map(|i| ((i * 7 + k * 5 + i * i / 3) % 5) as f32 - 2.0).collect();
        Literal::from_slice(ty.shape.dims(), &all).unwrap()
    };
    let arguments: Vec<Literal> = graph.param_types().iter().enumerate().map(of).collect();
    check(&graph, &arguments, "channels first");
    let optimized = optimize(&graph).unwrap().0;
    let is_last = |op: &Op| matches!(op, Op::Convolution(c) if c.dims.input_spatial[..] == [1, 2]);
    let all = count(&graph, |op| matches!(op, Op::Convolution(_)));
    assert_eq!((all, count(&optimized, is_last)), (9, 9), "{optimized:?}");
}

#[test]
fn networks_are_transposed_at_their_edges_only() {
    let (_, after) = optimized(|g| {
        let of = |name: &str, dims: &[usize]| g.parameter(TensorType::new(F32, dims), name);
        let (x, stem, bias) = (of("x", &[2, 3, 8, 8]), of("stem", &[4, 3, 3, 3]), of("bias", &[4]));
        let mut y = channels_first(&x, &stem, 1, 1);
        for k in 0..4 {
            let inner = channels_first(&y, &of(&format!("kernel{k}"), &[4, 4, 3, 3]), 1, 1);
            y = (&y + &(&inner + &bias.broadcast_in_dim(y.shape(), &[1])).relu()).max_pool(
                &[1, 1, 2, 2],
                &[1; 4],
                &[[0, 0], [0, 0], [0, 1], [0, 1]],
            );
        }
        vec![y.mean(&[2, 3])]
    });
    // The image and the five kernels.
    assert_eq!(count(&after, |op| matches!(op, Op::Transpose(_))), 6, "{after:?}");
}

/// Patches of an image become a sequence of vectors, as in a vision transformer.
#[test]
fn patches_become_rows_without_a_transpose() {
    let (before, after) = optimized(|g| {
        let x = g.parameter(TensorType::new(F32, [2, 3, 8, 6]), "x");
        let kernel = g.parameter(TensorType::new(F32, [4, 3, 3, 3]), "kernel");
        let y = channels_first(&x, &kernel, 1, 1);
        vec![y.reshape([2, 4, 48]).transpose(&[0, 2, 1]).relu(), y.reshape([1, 2, 4, 8, 6]).sum(&[4])]
    });
    // The image and the kernel; the second result is small, and has channels first.
    assert_eq!(count(&after, |op| matches!(op, Op::Transpose(_))), 3, "{after:?}");
    let of = |ty: &TensorType| {
        let all: Vec<f32> = (0..ty.elements()).map(|i| ((i * 7 + i * i / 3) % 5) as f32 - 2.0).collect();
        Literal::from_slice(ty.shape.dims(), &all).unwrap()
    };
    let arguments: Vec<Literal> = before.param_types().iter().map(of).collect();
    check(&before, &arguments, "patches");
}

#[test]
fn the_product_of_a_turned_matrix_and_a_vector_reads_the_rows_of_the_matrix() {
    let (before, after) = optimized(|g| {
        let m = g.parameter(TensorType::new(F32, [5, 3]), "m");
        let v = g.parameter(TensorType::new(F32, [5]), "v");
        vec![m.transpose(&[1, 0]).dot(&v)]
    });
    assert_eq!(count(&after, |op| matches!(op, Op::Transpose(_))), 0);
    let product = after.nodes.iter().find(|n| matches!(n.op, Op::DotGeneral(_))).unwrap();
    let ranks: Vec<usize> = product.inputs.iter().map(|v| after.ty(*v).rank()).collect();
    assert_eq!(ranks, [1, 2], "{after:?}");
    let args = [
        Literal::from_slice(
            [5, 3],
            &[0.5f32, 1.0, -2.0, 3.0, 0.25, 7.0, 1.5, 2.0, -1.0, 4.0, 0.75, 6.0, -3.0, 9.0, 2.5],
        ),
        Literal::from_slice([5], &[1.0f32, -2.0, 0.5, 3.0, 1.25]),
    ];
    check(&before, &args.map(Result::unwrap), "vector");
}
