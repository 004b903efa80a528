//! Tests whole programs against the interpreter: random element-wise graphs, train steps, donation, odd sizes.

mod common;

use common::net::{Net, train_step};
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use systole_cpu::Level;
use systole_ir::DType::*;
use systole_ir::op::{ArgDomain, Convolution, Monoid, Reduce};
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, Shape, Tensor, TensorType, control_builders, grad};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg};

/// A multilayer perceptron's train step: loss and updated weights.
fn mlp_step(batch: usize, sizes: &[usize]) -> Arc<Graph> {
    let g = GraphBuilder::new("mlp");
    let x = g.parameter(TensorType::new(F32, [batch, sizes[0]]), "x");
    let labels = g.parameter(TensorType::new(I32, [batch]), "labels");
    let lr = g.parameter(TensorType::scalar(F32), "lr");
    let mut params = Vec::new();
    let mut h = x;
    for (l, pair) in sizes.windows(2).enumerate() {
        let w = g.parameter(TensorType::new(F32, [pair[0], pair[1]]), &format!("w{l}"));
        let b = g.parameter(TensorType::new(F32, [pair[1]]), &format!("b{l}"));
        h = h.dot(&w) + &b;
        if l + 2 < sizes.len() {
            h = h.relu();
        }
        params.extend([w, b]);
    }
    let loss = cross_entropy(&h, &labels);
    let refs: Vec<&Tensor> = params.iter().collect();
    let grads = grad(&loss, &refs);
    let mut results = vec![loss];
    results.extend(params.iter().zip(&grads).map(|(p, d)| p - &(d * &lr)));
    g.finish(&results).unwrap()
}

/// Mean cross-entropy of logits `[B, C]` with labels `[B]`.
fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let top = logits.reduce_max(&[1]).broadcast_except(logits.shape(), &[1]);
    let shifted = logits - &top;
    let norm = shifted.exp().sum(&[1]).log().broadcast_except(logits.shape(), &[1]);
    let hot = labels.one_hot(logits.shape()[1], logits.dtype());
    -((shifted - norm) * hot).sum(&[1]).mean(&[0])
}

fn step_arguments(graph: &Graph, classes: f64) -> Vec<Literal> {
    let domain = |t: &TensorType| match t.dtype {
        I32 => ArgDomain::Uniform(0.0, classes - 1.0),
        // The learning rate.
        _ if t.rank() == 0 => ArgDomain::Uniform(0.0, 0.2),
        _ => ArgDomain::Uniform(-0.5, 0.5),
    };
    let draw = |(i, t): (usize, &TensorType)| domain(t).draw(t, &mut RandomStream::new(5, 6, i as u64));
    graph.param_types().iter().enumerate().map(draw).collect()
}

#[test]
fn mlp_train_step() {
    // The last one's weight is transposed.
    for (batch, sizes) in [(7, vec![5, 9, 3]), (33, vec![70, 65, 10]), (1, vec![3, 2]), (140, vec![2100, 10])]
    {
        let graph = mlp_step(batch, &sizes);
        let args = step_arguments(&graph, *sizes.last().unwrap() as f64);
        check_near(&graph, &args, 2e-6);
    }
}

#[test]
fn conv_net_train_step() {
    for (batch, side, channels, filters, kernel, same) in
        [(3, 8, 1, 16, 3, false), (2, 9, 2, 5, 3, true), (35, 6, 1, 33, 2, false), (2, 7, 3, 40, 5, true)]
    {
        let net = Net { batch, side, channels, filters, kernel, classes: 10, same };
        let graph = train_step(&net);
        let args = step_arguments(&graph, 10.0);
        check_near(&graph, &args, 5e-6);
    }
}

/// Gates in one product, as in recurrent layers, and all gradients: loops with captured kernels, sums over all
/// iterations, and arrays with one entry per iteration.
fn recurrent_step(steps: usize, batch: usize, units: usize) -> Arc<Graph> {
    let g = GraphBuilder::new("recurrent");
    let param = |shape: &[usize]| g.parameter(TensorType::new(F32, shape), "x");
    let (w, b, xs) = (param(&[units, 2 * units]), param(&[2 * units]), param(&[steps, batch, 2 * units]));
    let start = g.full(&TensorType::new(F32, [batch, units]), 0.0);
    let (last, ys) = control_builders::scan(&[&start], &[&xs], |carry, x| {
        let z = carry[0].dot(&w) + &x[0] + &b;
        let (gate, new) = (z.slice_dim(1, 0, units).logistic(), z.slice_dim(1, units, 2 * units).tanh());
        let h = &gate * &carry[0] + (1.0 - &gate) * new;
        (vec![h.clone()], vec![h])
    });
    let loss = (&ys[0] * &ys[0]).sum_all() + last[0].sum_all();
    let mut results = vec![loss.clone(), ys[0].clone()];
    results.extend(grad(&loss, &[&w, &b, &xs]));
    g.finish(&results).unwrap()
}

#[test]
fn recurrent_train_step() {
    // With few rows kernels are read in place; with more they are packed once for the loop.
    for (steps, batch, units) in [(1, 3, 4), (7, 5, 9), (5, 60, 40), (4, 70, 300)] {
        let graph = recurrent_step(steps, batch, units);
        check_near(&graph, &step_arguments(&graph, 2.0), 5e-6);
    }
}

/// A random element-wise program over values of one shape and their broadcasts, with occasional reductions.
fn random_program(seed: u64, dtype: systole_ir::DType, shape: &[usize]) -> Arc<Graph> {
    let g = GraphBuilder::new("random");
    let mut s = RandomStream::new(seed, 1, 2);
    let ty = TensorType::new(dtype, shape);
    let mut values: Vec<Tensor> = (0..3).map(|i| g.parameter(ty.clone(), &format!("x{i}"))).collect();
    let row = g.parameter(TensorType::new(dtype, &shape[1..]), "row");
    let column = g.parameter(TensorType::new(dtype, &shape[..1]), "column");
    values.push(row.broadcast_to(&ty.shape));
    values.push(column.broadcast_in_dim(&ty.shape, &[0]));
    values.push(g.full(&ty, 2.0));
    let mut results = Vec::new();
    for _ in 0..25 {
        let a = values[s.below(values.len() as u64) as usize].clone();
        let b = values[s.below(values.len() as u64) as usize].clone();
        let float = dtype.is_float();
        values.push(match s.below(14) {
            0 => &a + &b,
            1 => &a - &b,
            2 => &a * &b,
            3 => a.maximum(&b),
            4 => a.minimum(&b),
            5 => a.greater(&b).select(&a, &b),
            6 => -&a,
            7 if float => a.sqrt(),
            8 if float => &a / &b,
            9 => a.equal(&b).convert(dtype),
            10 if !dtype.is_unsigned_int() => a.abs(),
            11 => a.reduce_max(&[1]).broadcast_in_dim(&ty.shape, &[0]),
            12 => g.iota(ty.clone(), 1),
            13 if float => a.convert(I32).convert(dtype),
            _ => a.clamp(&a.scalar_like(0.0), &b),
        });
        if s.below(4) == 0 {
            results.extend(values.last().cloned());
        }
    }
    results.extend(values.last().cloned());
    g.finish(&results).unwrap()
}

#[test]
fn random_elementwise_programs_have_the_interpreters_bits() {
    // Every op here is exact or correctly rounded, so fusion must not change a bit.
    for (k, dtype) in [F32, F64, BF16, F16, I32, I64, U8, I8].into_iter().enumerate() {
        for (seed, shape) in
            [vec![3, 5], vec![1, 700], vec![129, 8], vec![0, 4], vec![4, 0]].iter().enumerate()
        {
            let graph = random_program((k * 10 + seed) as u64, dtype, shape);
            let args = arguments(&graph, 0.0, 6.0, seed as u64);
            let want = oracle(&graph, &args);
            for level in levels() {
                for threads in [1, 3] {
                    let got = run(&backend(level, threads), &graph, &args);
                    for (got, want) in got.iter().zip(&want) {
                        let (d, at) = distance(got, want, false);
                        assert!(d == 0.0, "{dtype} {shape:?} {level:?} element {at}\n{got:?}\n{want:?}");
                    }
                }
            }
        }
    }
}

/// `(w, x) → (w − 0.1·x, Σ w·x, w)` and a few aliases.
fn states() -> Arc<Graph> {
    let g = GraphBuilder::new("states");
    let ty = TensorType::new(F32, [6, 50]);
    let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty, "x"));
    let new = &w - &(&x * 0.1);
    let total = (&w * &x).sum_all();
    let flat = new.reshape([300]);
    g.finish(&[new, total, w.clone(), flat, x.reshape([300]), w]).unwrap()
}

#[test]
fn donated_arguments_are_reused_and_shared_ones_are_kept() {
    let graph = states();
    let args = arguments(&graph, -1.0, 1.0, 3);
    let want = oracle(&graph, &args);
    let cpu = backend(Level::best(), 2);
    let exe = cpu.compile(&graph, &CompileOptions { donated: vec![0, 1], ..Default::default() }).unwrap();
    let put = |l: &Literal| cpu.put(l, DeviceId(0)).unwrap();
    let literals = |out: &[Buffer]| -> Vec<Literal> { out.iter().map(|b| b.to_literal().unwrap()).collect() };
    // Unique, shared and borrowed arguments, on the device and on the host.
    let (w, x) = (put(&args[0]), put(&args[1]));
    let kept = w.clone();
    let out = exe.run(vec![ExecutableArg::Donate(w), ExecutableArg::Donate(x)]).unwrap();
    let near = literals(&out).iter().zip(&want).all(|(a, b)| relative(a, b) < 1e-5);
    assert!(near, "{out:?}\n{want:?}");
    let want = literals(&out);
    assert_eq!(kept.to_literal().unwrap(), args[0]);
    let out =
        exe.run(vec![ExecutableArg::Borrow(&kept), ExecutableArg::Donate(args[1].clone().into())]).unwrap();
    assert_eq!(literals(&out), want);
    assert_eq!(kept.to_literal().unwrap(), args[0]);
    let out = exe.run(vec![ExecutableArg::Donate(kept), ExecutableArg::Donate(put(&args[1]))]).unwrap();
    assert_eq!(literals(&out), want);
    let wrong = exe.run(vec![ExecutableArg::Donate(put(&args[0]))]).unwrap_err();
    assert!(wrong.to_string().contains("takes 2 arguments"), "{wrong}");
}

#[test]
fn a_step_repeated_in_place_stays_the_interpreters() {
    let graph = mlp_step(16, &[12, 20, 4]);
    let args = step_arguments(&graph, 4.0);
    let cpu = backend(Level::best(), 2);
    let state: Vec<usize> = (3..args.len()).collect();
    let exe = cpu.compile(&graph, &CompileOptions { donated: state, ..Default::default() }).unwrap();
    let mut ours: Vec<Buffer> = args[3..].iter().map(|a| cpu.put(a, DeviceId(0)).unwrap()).collect();
    let mut theirs = args.clone();
    for _ in 0..10 {
        let fixed = args[..3].iter().map(|a| ExecutableArg::Donate(a.clone().into()));
        let mut out = exe.run(fixed.chain(ours.into_iter().map(ExecutableArg::Donate)).collect()).unwrap();
        let want = oracle(&graph, &theirs);
        assert!((out.remove(0).to_f64().unwrap() - want[0].to_f64s()[0]).abs() < 1e-5);
        ours = out;
        theirs.splice(3.., want.into_iter().skip(1));
    }
    for (got, want) in ours.iter().zip(&theirs[3..]) {
        assert!(relative(&got.to_literal().unwrap(), want) < 1e-5);
    }
}

#[test]
fn products_of_every_form() {
    let mut seed = 0;
    let mut check_dot = |a: &[usize], b: &[usize], batch: [&[usize]; 2], contract: [&[usize]; 2], dtype| {
        let g = GraphBuilder::new("dot");
        let x = g.parameter(TensorType::new(dtype, a), "x");
        let y = g.parameter(TensorType::new(dtype, b), "y");
        let z = x.dot_general(&y, batch[0], batch[1], contract[0], contract[1]);
        let graph = g.finish(&[z.transpose(&(0..z.rank()).rev().collect::<Vec<_>>()), z]).unwrap();
        seed += 1;
        check_near(&graph, &arguments(&graph, -2.0, 2.0, seed), if dtype == BF16 { 3e-3 } else { 1e-6 });
    };
    for dtype in [F32, F64, BF16, I32, I8] {
        check_dot(&[7, 13], &[13, 5], [&[], &[]], [&[1], &[0]], dtype);
        check_dot(&[13, 70], &[13, 5], [&[], &[]], [&[0], &[0]], dtype);
        check_dot(&[1, 3], &[3, 40], [&[], &[]], [&[1], &[0]], dtype);
        check_dot(&[3, 4, 6], &[3, 6, 5], [&[0], &[0]], [&[2], &[1]], dtype);
        check_dot(&[4, 3, 6, 2], &[6, 5, 3, 2], [&[1, 3], &[2, 3]], [&[2], &[0]], dtype);
        check_dot(&[4, 3, 6], &[6, 2, 4], [&[], &[]], [&[0, 2], &[2, 0]], dtype);
        check_dot(&[4, 0], &[0, 3], [&[], &[]], [&[1], &[0]], dtype);
        check_dot(&[0, 2], &[2, 3], [&[], &[]], [&[1], &[0]], dtype);
    }
    // Large enough for packing, strips, several blocks of products and parts of sums.
    check_dot(&[100, 530], &[530, 600], [&[], &[]], [&[1], &[0]], F32);
    check_dot(&[1100, 130], &[1100, 9], [&[], &[]], [&[0], &[0]], F32);
    check_dot(&[20, 3000], &[3000, 64], [&[], &[]], [&[1], &[0]], F32);
    check_dot(&[3, 70, 300], &[3, 300, 90], [&[0], &[0]], [&[2], &[1]], F32);
}

#[test]
fn loops_keep_their_state_in_place() {
    let g = GraphBuilder::new("loop");
    let table = g.parameter(TensorType::new(F32, [9, 4]), "table");
    let start = g.parameter(TensorType::new(F32, [4]), "start");
    let zero = g.scalar(I32, 0.0);
    let out = systole_ir::control_builders::while_loop(
        &[&zero, &table, &start],
        |s| s[0].less(&s[0].scalar_like(9.0)),
        |s| {
            let next = s[2].tanh() + 0.25;
            let row = next.reshape([1, 4]);
            let origin = s[0].scalar_like(0.0);
            vec![&s[0] + 1.0, s[1].dynamic_update_slice(&row, &[&s[0], &origin]), next]
        },
    );
    let graph = g.finish(&out).unwrap();
    check_near(&graph, &arguments(&graph, -1.0, 1.0, 1), 1e-6);
    let exe = backend(Level::best(), 1).compile(&graph, &CompileOptions::default()).unwrap();
    assert!(exe.listing().contains("while"), "{}", exe.listing());
}

/// Slices of arrays over all iterations are read in place: at clamped indices, and from an array that the same
/// iteration updates, before and after the update.
#[test]
fn slices_in_loops_are_read_in_place() {
    for late in [false, true] {
        let g = GraphBuilder::new("slices");
        let entries = g.parameter(TensorType::new(F32, [9, 3, 16]), "entries");
        let table = g.parameter(TensorType::new(F32, [9, 3, 16]), "table");
        let sum = g.parameter(TensorType::new(F32, [3, 16]), "sum");
        let zero = g.scalar(I32, 0.0);
        let out = control_builders::while_loop(
            &[&zero, &table, &sum],
            |s| s[0].less(&s[0].scalar_like(12.0)),
            |s| {
                let origin = s[0].scalar_like(0.0);
                let at = [&(&s[0] - 2.0), &origin, &origin];
                let [entry, row] = [&entries, &s[1]].map(|x| x.dynamic_slice(&at, &[1, 3, 16]));
                let made = (&row + &entry).tanh();
                let updated = s[1].dynamic_update_slice(&made, &at);
                // The old row is read once more after the table has the new one.
                let seen = if late { row.exp() } else { made.clone() };
                vec![&s[0] + 1.0, updated, &s[2] + &seen.reshape([3, 16])]
            },
        );
        let graph = g.finish(&out).unwrap();
        check_near(&graph, &arguments(&graph, -1.0, 1.0, 1), 2e-6);
        let (graph, _) = systole_compile::optimize(&graph).unwrap();
        let program = systole_compile::schedule(&graph, &Default::default()).unwrap();
        let systole_compile::Kernel::While { body, .. } = &program.steps[0].kernel else {
            panic!("{program}")
        };
        // A row that is read after it is overwritten is copied.
        assert_eq!(body.views.len(), if late { 1 } else { 2 }, "{body}");
    }
}

#[test]
fn what_cannot_fit_is_refused_with_a_reason() {
    let g = GraphBuilder::new("huge");
    let x = g.parameter(TensorType::new(F32, [1 << 20]), "x");
    let y = x.reshape([1 << 20, 1]).dot(&x.reshape([1, 1 << 20]));
    let graph = g.finish(&[y.exp().sum_all()]).unwrap();
    let e = backend(Level::best(), 1).compile(&graph, &CompileOptions::default()).err().expect("no error");
    let text = e.to_string();
    assert!(text.contains("available") && text.contains("try:"), "{text}");
}

#[test]
fn convolutions_of_every_form_with_their_gradients() {
    let mut seed = 100;
    let mut check_conv = |x: &[usize], k: &[usize], build: &dyn Fn(&Tensor, &Tensor) -> Convolution| {
        for dtype in [F32, BF16, F16] {
            let g = GraphBuilder::new("conv");
            let x = g.parameter(TensorType::new(dtype, x), "x");
            let k = g.parameter(TensorType::new(dtype, k), "k");
            let y = x.convolution(&k, build(&x, &k));
            let loss = (&y * &y).convert(F32).mean_all();
            let grads = grad(&loss, &[&x, &k]);
            let graph = g.finish(&[vec![y], grads].concat()).unwrap();
            seed += 1;
            check_near(&graph, &arguments(&graph, -1.0, 1.0, seed), if dtype == F32 { 3e-6 } else { 1e-2 });
        }
    };
    let groups = |x: &Tensor, n: usize| Convolution::valid(x.ty(), &[1, 1], &[1, 1], n);
    check_conv(&[3, 7, 6, 5], &[3, 2, 5, 40], &|x, k| Convolution::same(x.ty(), k.ty(), &[1, 1], &[1, 1], 1));
    check_conv(&[2, 9, 8, 3], &[3, 3, 3, 17], &|x, k| Convolution::same(x.ty(), k.ty(), &[2, 2], &[1, 1], 1));
    check_conv(&[2, 9, 8, 3], &[2, 3, 3, 4], &|x, _| Convolution::valid(x.ty(), &[1, 2], &[2, 1], 1));
    check_conv(&[5, 4, 4, 20], &[1, 1, 20, 33], &|x, _| groups(x, 1));
    check_conv(&[35, 5, 4, 37], &[3, 3, 1, 37], &|x, _| groups(x, 37));
    check_conv(&[2, 6, 6, 8], &[3, 3, 1, 8], &|x, k| Convolution::same(x.ty(), k.ty(), &[2, 1], &[1, 1], 8));
    check_conv(&[2, 5, 4, 6], &[3, 2, 2, 9], &|x, _| groups(x, 3));
    check_conv(&[2, 5, 4, 3], &[3, 2, 1, 6], &|x, _| groups(x, 3));
    let same = |stride: usize, n: usize| {
        move |x: &Tensor, k: &Tensor| Convolution::same(x.ty(), k.ty(), &[stride; 2], &[1, 1], n)
    };
    check_conv(&[2, 9, 8, 32], &[3, 3, 4, 32], &same(1, 8));
    check_conv(&[2, 9, 8, 24], &[3, 3, 8, 60], &same(2, 3));
    check_conv(&[3, 7, 7, 34], &[1, 1, 17, 46], &same(2, 2));
    // More channels than are staged at a time.
    check_conv(&[1, 12, 12, 1024], &[3, 1, 8, 256], &same(1, 128));
    check_conv(&[4, 30, 3], &[5, 3, 8], &|x, _| Convolution::valid(x.ty(), &[3], &[1], 1));
}

#[test]
fn pooling_of_every_form_with_its_gradients() {
    let mut seed = 200;
    let mut check_pool = |x: &[usize], window: &[usize], strides: &[usize], padding: &[[i64; 2]]| {
        for dtype in [F32, BF16, F16] {
            let g = GraphBuilder::new("pool");
            let x = g.parameter(TensorType::new(dtype, x), "x");
            let max = x.max_pool(window, strides, padding);
            let mean = x.avg_pool(window, strides, padding);
            let loss = ((&max * &max) + &mean).convert(F32).sum_all();
            let grads = grad(&loss, &[&x]);
            let graph = g.finish(&[vec![max, mean], grads].concat()).unwrap();
            seed += 1;
            check_near(&graph, &arguments(&graph, -1.0, 1.0, seed), if dtype == F32 { 1e-6 } else { 2e-2 });
        }
    };
    check_pool(&[3, 6, 8, 70], &[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    check_pool(&[2, 7, 7, 5], &[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    check_pool(&[2, 7, 9, 65], &[1, 3, 3, 1], &[1, 2, 2, 1], &[[0, 0], [1, 1], [1, 0], [0, 0]]);
    check_pool(&[2, 3, 6, 6], &[1, 1, 2, 3], &[1, 1, 2, 2], &[[0, 0]; 4]);
    check_pool(&[4, 12, 3], &[1, 3, 1], &[1, 1, 1], &[[0, 0]; 3]);
}

/// One step with several results: each starts with its own value, like the gradients of two biases of one sum.
#[test]
fn sums_of_one_array_are_each_results_of_their_own() {
    for dtype in [F32, BF16, I32, F64] {
        for dim in [0, 1] {
            let g = GraphBuilder::new("twice");
            let x = g.parameter(TensorType::new(dtype, [70, 90]), "x");
            let begin = |name: &str| g.parameter(TensorType::scalar(dtype), name);
            let reduce = Reduce { dims: [dim].as_slice().into(), body: Monoid::Add.body(dtype) };
            let sums = ["a", "b", "c"].map(|name| g.emit(reduce.clone(), &[&x, &begin(name)]).remove(0));
            let graph = g.finish(&sums).unwrap();
            check_near(&graph, &arguments(&graph, -4.0, 4.0, 3), if dtype == BF16 { 0.02 } else { 1e-5 });
        }
    }
}

/// Eigenvalues and vectors of a batch of matrices: threads share the matrices, and each is computed as if it were alone.
#[test]
fn decompositions_of_a_batch() {
    let program = |lead: &str| {
        let (a, w, info) = (format!("{lead}6x6xf64"), format!("{lead}6xf64"), format!("{lead}i32"));
        let text = format!(
            "func.func @main(%x: tensor<{a}>) -> (tensor<{a}>, tensor<{w}>, tensor<{info}>) {{
               %r:3 = \"stablehlo.custom_call\"(%x) <{{call_target_name = \"systole_lapack\",
                 backend_config = \"syevd mode=86 uplo=76\", has_side_effect = false}}> : (tensor<{a}>) -> (tensor<{a}>, tensor<{w}>, tensor<{info}>)
               return %r#0, %r#1, %r#2 : tensor<{a}>, tensor<{w}>, tensor<{info}>
             }}"
        );
        systole_ir::text::parse(&text).unwrap()
    };
    let (batch, alone) = (program("5x26x"), program(""));
    let domain = ArgDomain::Uniform(-1.0, 1.0);
    let x = domain.draw(&batch.param_types()[0], &mut RandomStream::new(4, 1, 2));
    let first = run(&backend(Level::best(), 1), &batch, std::slice::from_ref(&x));
    assert!(first == run(&backend(Level::best(), 3), &batch, std::slice::from_ref(&x)));
    for i in [0, 1, 77, 129] {
        let ty = alone.param_types()[0].clone();
        let each = ty.bytes();
        let one = Literal::from_bytes(ty, &x.bytes()[i * each..(i + 1) * each]).unwrap();
        for (all, want) in first.iter().zip(run(&backend(Level::best(), 1), &alone, &[one])) {
            let each = want.bytes().len();
            assert_eq!(&all.bytes()[i * each..(i + 1) * each], want.bytes(), "matrix {i}");
        }
    }
}

/// Sums over a few elements of pairs, whose operands repeat in the middle or inside: `x[:, None] - y[None]`.
#[test]
fn pairwise_distances() {
    for (n, m, k) in [(7, 5, 3), (40, 300, 3), (3, 9, 17), (2, 600, 1), (5, 1, 4)] {
        for dtype in [F32, F64, BF16] {
            let g = GraphBuilder::new("pairs");
            let x = g.parameter(TensorType::new(dtype, [n, k]), "x");
            let y = g.parameter(TensorType::new(dtype, [m, k]), "y");
            let over = |t: &Tensor, dims: &[usize]| t.broadcast_in_dim(&Shape::from([n, m, k]), dims);
            let apart = over(&x, &[0, 2]) - over(&y, &[1, 2]);
            let graph = g.finish(&[(&apart * &apart).sum(&[2]), apart.abs()]).unwrap();
            let draw = |(i, t): (usize, &TensorType)| {
                ArgDomain::Uniform(-1.0, 1.0).draw(t, &mut RandomStream::new(6, 1, i as u64))
            };
            let args: Vec<Literal> = graph.param_types().iter().enumerate().map(draw).collect();
            let want = oracle(&graph, &args);
            for level in levels() {
                for (got, want) in run(&backend(level, 2), &graph, &args).iter().zip(&want) {
                    let tolerance = if dtype == BF16 { 1e-2 } else { 1e-6 };
                    assert!(relative(got, want) <= tolerance, "{n} {m} {k} {dtype} {level:?}");
                }
            }
        }
    }
}

/// An array that is read on the host without a copy keeps its values when a later run donates it.
#[test]
fn a_shared_literal_outlives_donation() {
    let g = GraphBuilder::new("step");
    let x = g.parameter(TensorType::new(F32, [300, 40]), "x");
    let graph = g.finish(&[&x + 1.0]).unwrap();
    let options = CompileOptions { donated: vec![0], ..CompileOptions::default() };
    let exe = backend(Level::best(), 2).compile(&graph, &options).unwrap();
    let step = |x: Buffer| exe.run(vec![ExecutableArg::Donate(x)]).unwrap().remove(0);
    // A host array moves in with the first step, and is updated in place from then on.
    let first = step(Literal::zeros(TensorType::new(F32, [300, 40])).into());
    let at = first.bytes().unwrap().as_ptr();
    let second = step(first);
    assert_eq!(second.bytes().unwrap().as_ptr(), at);
    let shared = second.shared_literal().unwrap();
    assert!(shared.is_foreign() && shared.bytes().as_ptr() == at);
    let third = step(second);
    assert!(
        shared.to_f32s().iter().all(|x| *x == 2.0)
            && third.to_literal().unwrap().to_f32s().iter().all(|x| *x == 3.0)
    );
    drop(shared);
    let at = third.bytes().unwrap().as_ptr();
    assert_eq!(step(third).bytes().unwrap().as_ptr(), at);
}

/// Initial weights are drawn one by one into the memory that the results reuse.
#[test]
fn donated_lazy_arrays_are_freed_before_the_next_one_is_made() {
    let g = GraphBuilder::new("step");
    let ty = TensorType::new(F32, [30, 40]);
    let (x, y) = (g.parameter(ty.clone(), "x"), g.parameter(ty.clone(), "y"));
    let graph = g.finish(&[&x + 1.0, &y + 3.0]).unwrap();
    let options = CompileOptions { donated: vec![0, 1], ..CompileOptions::default() };
    let exe = backend(Level::best(), 2).compile(&graph, &options).unwrap();
    let zeros = ty.clone();
    let first = Buffer::lazy(ty.clone(), move || Literal::zeros(zeros.clone()));
    let (storage, is_freed) = (first.storage(), Arc::new(AtomicBool::new(false)));
    let (seen, twos) = (is_freed.clone(), Literal::from_slice([30, 40], &[2f32; 1200]).unwrap());
    let second = Buffer::lazy(ty, move || {
        seen.store(storage.strong_count() == 0, Ordering::Relaxed);
        twos.clone()
    });
    let made = exe.run(vec![ExecutableArg::Donate(first), ExecutableArg::Donate(second)]).unwrap();
    assert!(is_freed.load(Ordering::Relaxed));
    assert_eq!(made[0].to_literal().unwrap().to_f32s(), [1.0; 1200]);
    assert_eq!(made[1].to_literal().unwrap().to_f32s(), [5.0; 1200]);
}
