//! Test programs that together have every kind of step, for tests of candidates of all families.

#![allow(clippy::type_complexity, reason = "tables of cases")]

use super::net::{Net, train_step};
use std::sync::Arc;
use systole_ir::DType::{self, *};
use systole_ir::attention::{AttentionConfig, AttentionDropout};
use systole_ir::op::{ArgDomain, Convolution, Monoid, Window};
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType, control_builders, grad, vjp};

/// Random arguments: small numbers, class labels, keys of random bits.
pub fn draw(graph: &Graph) -> Vec<Literal> {
    let domain = |t: &TensorType| match t.dtype {
        I32 => ArgDomain::Uniform(0.0, 2.0),
        U64 => ArgDomain::Uniform(1.0, 1e9),
        _ if t.rank() == 0 => ArgDomain::Uniform(0.0, 0.2),
        _ => ArgDomain::Uniform(-1.0, 1.0),
    };
    let one = |(i, t): (usize, &TensorType)| domain(t).draw(t, &mut RandomStream::new(3, 4, i as u64));
    graph.param_types().iter().enumerate().map(one).collect()
}

/// Returns the programs, each with the same program in f32: narrow floats are summed in f32, unlike in the interpreter.
pub fn all() -> Vec<[Arc<Graph>; 2]> {
    let net =
        |batch, filters, same| Net { batch, side: 8, channels: 1, filters, kernel: 3, classes: 10, same };
    let nets = [(3, 16, false), (2, 24, true), (17, 16, false)].map(|(b, f, s)| train_step(&net(b, f, s)));
    let wide = of(F32);
    let alone = wide.iter().cloned().chain(nets).map(|g| [g.clone(), g]);
    let narrow = of(BF16).into_iter().zip(wide.iter().cloned()).map(|(narrow, wide)| [narrow, wide]);
    let half = some_of(F16).into_iter().zip(some_of(F32)).map(|(half, wide)| [half, wide]);
    alone.chain(narrow).chain(half).collect()
}

/// The programs with most kernels, of one element type.
fn some_of(dtype: DType) -> Vec<Arc<Graph>> {
    let mut all = [products(dtype), convolutions(dtype), pooled(dtype)].concat();
    all.push(attention(dtype, None));
    all
}

/// The programs of one element type.
fn of(dtype: DType) -> Vec<Arc<Graph>> {
    let mut all = [products(dtype), convolutions(dtype), large(dtype), pooled(dtype), rows(dtype)].concat();
    all.push(attention(dtype, None));
    all.push(attention(dtype, Some(AttentionDropout { threshold: 1 << 30, factor: 4.0 / 3.0 })));
    all.push(recurrent(dtype));
    all
}

/// `f` of parameters of these types.
fn graph(name: &str, types: &[TensorType], f: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Arc<Graph> {
    let g = GraphBuilder::new(name);
    let xs: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    g.finish(&f(&xs)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Like [`graph`], with gradients w.r.t. all floating-point parameters for a random cotangent.
fn with_gradients(name: &str, types: &[TensorType], f: impl Fn(&[Tensor]) -> Tensor) -> Arc<Graph> {
    let g = GraphBuilder::new(name);
    let xs: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let y = f(&xs);
    let dy = g.parameter(y.ty().clone(), "dy");
    let floats: Vec<&Tensor> = xs.iter().filter(|x| x.dtype().is_float()).collect();
    let results = std::iter::once(y.clone()).chain(vjp(&[&y], &[&dy], &floats));
    g.finish(&results.collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Matrix products of every shape, with a bias, an activation, an update with their gradient, accumulated onto running
/// sums.
fn products(dtype: DType) -> Vec<Arc<Graph>> {
    let matrix = |rows: usize, columns: usize| TensorType::new(dtype, [rows, columns]);
    let mut all = Vec::new();
    for (m, n, k) in [
        (1, 70, 90),
        (4, 130, 300),
        (90, 1, 70),
        (90, 10, 300),
        (90, 3, 40),
        (97, 64, 40),
        (66, 64, 300),
        (9, 9, 2100),
        (2, 2, 2100),
        (30, 600, 40),
    ] {
        let (x, w, b) = (matrix(m, k), matrix(k, n), TensorType::new(dtype, [n]));
        all.push(with_gradients("layer", &[x.clone(), w.clone(), b], |p| {
            (p[0].dot(&p[1]) + p[2].broadcast_to(&[m, n].into())).relu()
        }));
        all.push(graph("turned", &[matrix(k, m), matrix(n, k)], |p| {
            vec![p[0].dot_general(&p[1], &[], &[], &[0], &[1])]
        }));
        all.push(graph("update", &[matrix(k, m), matrix(k, n), matrix(m, n), matrix(m, n)], |p| {
            let gradient = p[0].transpose(&[1, 0]).dot(&p[1]);
            let first = &p[3] + (&gradient - &p[3]) * 0.1;
            vec![&p[2] - &first * 0.5, first]
        }));
        let sum = TensorType::new(F32, [m, n]);
        all.push(graph("running sum", &[matrix(m, k), matrix(k, n), sum], |p| {
            vec![&p[2] + p[0].dot(&p[1]).convert(F32)]
        }));
    }
    all
}

/// Convolutions large enough for algorithms that pay off only there, with gradients and batch statistics of their
/// results.
fn large(dtype: DType) -> Vec<Arc<Graph>> {
    let mut all = Vec::new();
    for (x, k) in
        [([3, 3, 3, 520], [1, 1, 520, 512]), ([2, 12, 12, 48], [3, 3, 48, 48]), ([5, 9, 9, 3], [3, 3, 3, 33])]
    {
        let types = [TensorType::new(dtype, x), TensorType::new(dtype, k)];
        let conv = |p: &[Tensor]| {
            p[0].convolution(&p[1], Convolution::same(p[0].ty(), p[1].ty(), &[1, 1], &[1, 1], 1))
        };
        all.push(with_gradients("conv", &types, conv));
        all.push(graph("batch statistics", &types, |p| {
            let y = conv(p);
            let wide = y.convert(F32);
            let mean = wide.mean(&[0, 1, 2]);
            let centred = &wide - mean.broadcast_to(wide.shape());
            vec![(&centred * &centred).mean(&[0, 1, 2]), mean, y]
        }));
    }
    all
}

/// Convolutions with gradients, with a bias and batch statistics: windows, strides, groups, 1×1.
fn convolutions(dtype: DType) -> Vec<Arc<Graph>> {
    let mut all = Vec::new();
    let cases: [([usize; 4], [usize; 4], usize, usize, bool); 9] = [
        ([2, 9, 9, 3], [3, 3, 3, 16], 1, 1, true),
        ([2, 8, 8, 16], [3, 3, 16, 32], 1, 1, true),
        ([2, 8, 8, 32], [3, 3, 32, 32], 1, 1, false),
        ([2, 9, 9, 16], [3, 3, 16, 16], 2, 1, true),
        ([2, 8, 8, 32], [1, 1, 32, 64], 1, 1, true),
        ([2, 8, 8, 32], [1, 1, 32, 32], 2, 1, true),
        ([2, 8, 8, 16], [3, 3, 1, 16], 1, 16, true),
        ([2, 6, 6, 4], [3, 3, 2, 6], 1, 2, true),
        ([1, 7, 7, 2], [5, 5, 2, 5], 1, 1, false),
    ];
    for (x, k, stride, groups, same) in cases {
        let types = [TensorType::new(dtype, x), TensorType::new(dtype, k)];
        let conv = |p: &[Tensor]| {
            let op = match same {
                true => Convolution::same(p[0].ty(), p[1].ty(), &[stride; 2], &[1, 1], groups),
                false => Convolution::valid(p[0].ty(), &[stride; 2], &[1, 1], groups),
            };
            p[0].convolution(&p[1], op)
        };
        all.push(with_gradients("conv", &types, conv));
        let bias = TensorType::new(dtype, [k[3]]);
        all.push(graph("conv bias", &[&types[..], &[bias]].concat(), |p| {
            let y = conv(p);
            vec![(&y + p[2].broadcast_to(y.shape())).relu()]
        }));
        all.push(graph("conv statistics", &types, |p| {
            let y = conv(p);
            let wide = y.convert(F32);
            vec![wide.mean(&[0, 1, 2]), (&wide * &wide).mean(&[0, 1, 2]), y]
        }));
    }
    all
}

/// Max-pooled convolutions with their gradients, and pooling alone.
fn pooled(dtype: DType) -> Vec<Arc<Graph>> {
    let mut all = Vec::new();
    let cases: [([usize; 4], [usize; 4], [usize; 2], usize); 7] = [
        ([2, 26, 26, 48], [3, 3, 48, 48], [2, 2], 2),
        ([3, 8, 8, 1], [3, 3, 1, 16], [2, 2], 2),
        ([2, 10, 10, 16], [3, 3, 16, 16], [2, 2], 2),
        ([2, 12, 12, 3], [5, 5, 3, 32], [2, 2], 2),
        ([2, 11, 11, 2], [3, 3, 2, 8], [3, 3], 2),
        ([2, 14, 14, 32], [3, 3, 32, 32], [2, 2], 2),
        ([40, 8, 8, 1], [3, 3, 1, 32], [2, 2], 2),
    ];
    for (x, k, window, stride) in cases {
        for turned in [false, true] {
            all.push(pooled_step(dtype, x, k, window, stride, turned));
        }
    }
    let image = TensorType::new(dtype, [2, 9, 8, 6]);
    for (window, stride) in [([2, 2], 2), ([3, 3], 1), ([3, 3], 2)] {
        let w = Window::new(&[1, window[0], window[1], 1], &[1, stride, stride, 1], &[[0, 0]; 4]);
        for monoid in [Monoid::Maximum, Monoid::Add] {
            all.push(with_gradients("pool", std::slice::from_ref(&image), |p| {
                monoid.over_windows(&p[0], w.clone())
            }));
        }
    }
    all
}

/// `(x, kernel, bias, dense, weights) → (dkernel, dbias, pooled · dense)`, of the gradient of Σ (pooled · dense) weights.
fn pooled_step(
    dtype: DType,
    x: [usize; 4],
    k: [usize; 4],
    window: [usize; 2],
    stride: usize,
    turned: bool,
) -> Arc<Graph> {
    let g = GraphBuilder::new("pooled");
    let batch = x[0];
    let (x, kt) = (g.parameter(TensorType::new(dtype, x), "x"), TensorType::new(dtype, k));
    let kernel = g.parameter(kt, "kernel");
    let bias = g.parameter(TensorType::new(dtype, [k[3]]), "bias");
    let h = x.convolution(&kernel, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1));
    let h = &h + bias.broadcast_to(h.shape());
    let w = Window::new(&[1, window[0], window[1], 1], &[1, stride, stride, 1], &[[0, 0]; 4]);
    let pooled = Monoid::Maximum.over_windows(&h, w).relu();
    let features = pooled.ty().elements() / batch;
    let flat = pooled.reshape([batch, features]);
    let shape = if turned { [2, features] } else { [features, 2] };
    let dense = g.parameter(TensorType::new(dtype, shape), "dense");
    let weights = g.parameter(TensorType::new(dtype, [batch, 2]), "weights");
    let logits = flat.dot_general(&dense, &[], &[], &[1], &[usize::from(turned)]);
    let loss = (&logits * &weights).convert(F32).sum_all();
    let mut results = grad(&loss, &[&kernel, &bias]);
    results.push(logits);
    g.finish(&results).unwrap_or_else(|e| panic!("{e}"))
}

/// Softmax, normalization, cross-entropy: long rows, rows of few elements, reductions over rows.
fn rows(dtype: DType) -> Vec<Arc<Graph>> {
    let mut all = Vec::new();
    for shape in [[40usize, 10], [7, 200], [3, 1300]] {
        let (x, c) = (TensorType::new(dtype, shape), TensorType::new(dtype, [shape[1]]));
        all.push(with_gradients("softmax", std::slice::from_ref(&x), |p| p[0].softmax()));
        all.push(with_gradients("layer_norm", &[x.clone(), c.clone(), c], |p| {
            let centred = &p[0] - p[0].mean(&[1]).broadcast_except(p[0].shape(), &[1]);
            let variance = (&centred * &centred).mean(&[1]);
            let scaled = centred * (variance + 1e-3).rsqrt().broadcast_except(p[0].shape(), &[1]);
            scaled * p[1].broadcast_in_dim(p[0].shape(), &[1]) + p[2].broadcast_in_dim(p[0].shape(), &[1])
        }));
        all.push(graph("folds", &[x], |p| {
            vec![p[0].sum(&[0]), p[0].reduce_max(&[1]), (&p[0] * &p[0]).sum_all()]
        }));
    }
    all
}

fn attention(dtype: DType, dropout: Option<AttentionDropout>) -> Arc<Graph> {
    let array = TensorType::new(dtype, [2, 33, 2, 16]);
    let types = [array.clone(), array.clone(), array, TensorType::new(U64, [2])];
    let options = AttentionConfig { causal: true, scale: 0.25, dropout };
    with_gradients("attention", &types, |p| options.of(&p[0], &p[1], &p[2], dropout.map(|_| &p[3])))
}

/// A loop with a product on captured weights, and gradients that are summed over all iterations.
fn recurrent(dtype: DType) -> Arc<Graph> {
    let (steps, batch, units) = (3, 20, 40);
    let g = GraphBuilder::new("recurrent");
    let param = |shape: &[usize]| g.parameter(TensorType::new(dtype, shape), "x");
    let (w, xs) = (param(&[units, units]), param(&[steps, batch, units]));
    let start = g.full(&TensorType::new(dtype, [batch, units]), 0.0);
    let (last, ys) = control_builders::scan(&[&start], &[&xs], |carry, x| {
        let h = ((carry[0].dot(&w) + &x[0]) * 0.1).tanh();
        (vec![h.clone()], vec![h])
    });
    let loss = (&ys[0] * &ys[0]).convert(F32).sum_all() + last[0].convert(F32).sum_all();
    let mut results = vec![loss.clone(), ys[0].clone()];
    results.extend(grad(&loss, &[&w, &xs]));
    g.finish(&results).unwrap_or_else(|e| panic!("{e}"))
}
