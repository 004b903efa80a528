//! Tests matrix products and convolutions with a fused element-wise epilogue against the interpreter, at every level.
//!
//! Results must be bit-identical to storing the product first, and for any number of threads. Products of bf16 and f16
//! reach the epilogue in f32, unrounded.

mod common;

use common::*;
use std::sync::Arc;
use systole_ir::DType::{self, BF16, F16, F32};
use systole_ir::op::Convolution;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType};
use systole_runtime::{Backend, CompileOptions, DeviceId, ExecutableArg};

/// Rows, columns, and K.
type Size = (usize, usize, usize);

/// Around tiles, several groups of columns, small K, and a K too large for the epilogue.
const SIZES: [Size; 5] = [(97, 64, 40), (61, 130, 256), (33, 1000, 200), (80, 60, 3), (66, 64, 300)];

/// `(x: [k, m], d: [k, n], w, m, v: [m, n]) → (w, m, v)` after an Adam-like step with the gradient `xᵀ·d`, which is
/// also a result if `stored`.
fn update((m, n, k): Size, stored: bool) -> Arc<Graph> {
    let g = GraphBuilder::new("update");
    let array =
        |rows: usize, columns: usize, name: &str| g.parameter(TensorType::new(F32, [rows, columns]), name);
    let (x, d, rate) =
        (array(k, m, "x"), array(k, n, "d"), g.parameter(TensorType::new(F32, [0; 0]), "rate"));
    let [w, first, second] = ["w", "m", "v"].map(|name| array(m, n, name));
    let gradient = x.transpose(&[1, 0]).dot(&d);
    let first = &first + (&gradient - &first) * 0.1;
    let second = &second + (&gradient * &gradient - &second) * 0.001;
    let w = &w - &first * &rate / (second.abs() + 1.0).sqrt();
    let results = [w, first, second];
    let more = if stored { vec![gradient] } else { vec![] };
    g.finish(&[&results[..], &more].concat()).unwrap()
}

/// `relu(x·w + b)`.
fn layer((m, n, k): Size) -> Arc<Graph> {
    let g = GraphBuilder::new("layer");
    let array = |dims: &[usize], name: &str| g.parameter(TensorType::new(F32, dims), name);
    let (x, w, b) = (array(&[m, k], "x"), array(&[k, n], "w"), array(&[n], "b"));
    g.finish(&[(x.dot(&w) + &b).relu()]).unwrap()
}

fn listing(graph: &Arc<Graph>) -> String {
    let backend = backend(levels().last().unwrap(), 1);
    backend.compile(graph, &CompileOptions::default()).unwrap().listing()
}

fn check(graph: &Arc<Graph>, size: Size) -> Vec<Vec<Literal>> {
    let args = arguments(graph, -1.0, 1.0, 5);
    let want = oracle(graph, &args);
    let of_level = |level| {
        let got = run(&backend(level, 2), graph, &args);
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            let d = relative(got, want);
            assert!(d <= 2e-6, "result {k} of {size:?} on {level:?}: {d:e}");
        }
        for threads in [1, 3, 8] {
            assert!(
                run(&backend(level, threads), graph, &args) == got,
                "{size:?} on {level:?}, {threads} threads"
            );
        }
        got
    };
    levels().map(of_level).collect()
}

#[test]
fn an_update_in_the_product_that_is_its_gradient() {
    for size in SIZES {
        let (alone, stored) = (update(size, false), update(size, true));
        let handed_on = size.2 <= 256;
        assert_eq!(listing(&alone).contains("dot_general+map"), handed_on, "{size:?}\n{}", listing(&alone));
        assert!(!listing(&stored).contains("dot_general+map"), "{}", listing(&stored));
        let [got, apart] = [&alone, &stored].map(|graph| check(graph, size));
        for (got, apart) in got.iter().zip(&apart) {
            assert!(got[..] == apart[..3], "{size:?}: a stored gradient gives other bits");
        }
    }
}

#[test]
fn an_activation_in_its_layer() {
    for size in SIZES.into_iter().filter(|s| s.2 <= 256) {
        let graph = layer(size);
        assert!(listing(&graph).contains("dot_general+bias+map"), "{}", listing(&graph));
        check(&graph, size);
    }
}

#[test]
fn weights_and_moments_are_updated_where_they_lie() {
    let graph = update(SIZES[1], false);
    let args = arguments(&graph, -1.0, 1.0, 9);
    for level in levels() {
        let cpu = backend(level, 2);
        let want = run(&cpu, &graph, &args);
        let exe =
            cpu.compile(&graph, &CompileOptions { donated: vec![3, 4, 5], ..Default::default() }).unwrap();
        let listing = exe.listing();
        assert_eq!(listing.matches("if donated").count(), 3, "{listing}");
        let put = |l: &Literal| ExecutableArg::Donate(cpu.put(l, DeviceId(0)).unwrap());
        let got = exe.run(args.iter().map(put).collect()).unwrap();
        let got: Vec<Literal> = got.iter().map(|b| b.to_literal().unwrap()).collect();
        assert!(got == want, "other bits in place on {level:?}");
    }
}

/// `(x: [k, m], d: [k, n], w: f32[m, n]) → (w − xᵀ·d · w², tanh(xᵀ·d))`, each with its own product, computed in
/// `computed`.
fn narrow((m, n, k): Size, stored: DType, computed: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("narrow");
    let read = |rows: usize, columns: usize, name: &str| {
        g.parameter(TensorType::new(stored, [rows, columns]), name).convert(computed)
    };
    let (x, d, e) = (read(k, m, "x"), read(k, n, "d"), read(k, n, "e"));
    let w = g.parameter(TensorType::new(F32, [m, n]), "w");
    let product = |d| x.transpose(&[1, 0]).dot(d);
    g.finish(&[&w - product(&d).convert(F32) * &w * &w, product(&e).tanh().convert(stored)]).unwrap()
}

#[test]
fn narrow_products_are_not_rounded_on_the_way() {
    let excess = CompileOptions { excess_precision: true, ..CompileOptions::default() };
    for size in SIZES.into_iter().filter(|s| s.2 <= 256) {
        for stored in [BF16, F16] {
            let [rounding, exact] = [stored, F32].map(|computed| narrow(size, stored, computed));
            let args = arguments(&rounding, -1.0, 1.0, 5);
            let [rounded, want] = [&rounding, &exact].map(|graph| oracle(graph, &args));
            assert!(relative(&rounded[0], &want[0]) > 1e-5, "{size:?} {stored}: rounding shows");
            for level in levels() {
                let cpu = backend(level, 2);
                let listing = |o| cpu.compile(&rounding, o).unwrap().listing();
                assert_eq!(listing(&excess).matches("dot_general+map").count(), 2, "{}", listing(&excess));
                assert!(!listing(&CompileOptions::default()).contains("dot_general+map"));
                let got = run_with(&cpu, &rounding, &args, &excess);
                let d = relative(&got[0], &want[0]);
                assert!(d <= 2e-6, "{size:?} {stored} on {level:?}: {d:e}");
                let (d, at) = distance(&got[1], &want[1], false);
                assert!(d <= 1.0, "{size:?} {stored} on {level:?}, element {at}: {d} units");
                for threads in [1, 3, 8] {
                    let again = run_with(&backend(level, threads), &rounding, &args, &excess);
                    assert!(again == got, "{size:?} {stored} on {level:?}, {threads} threads");
                }
            }
        }
    }
}

/// `(x: [2, m, k], w: [k, n], b: [n], r: [2, m]) → tanh(x·w + b) · r`, computed in `computed`: programs that read one
/// element per column, and one per row.
fn scaled_layer((m, n, k): Size, stored: DType, computed: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("layer");
    let read =
        |dims: &[usize], name: &str| g.parameter(TensorType::new(stored, dims), name).convert(computed);
    let (x, w, b, r) = (read(&[2, m, k], "x"), read(&[k, n], "w"), read(&[n], "b"), read(&[2, m], "r"));
    let y = (x.dot(&w) + &b).tanh();
    let r = r.broadcast_in_dim(y.shape(), &[0, 1]);
    g.finish(&[(y * r).convert(stored)]).unwrap()
}

#[test]
fn narrow_products_meet_elements_of_columns_and_of_rows() {
    let excess = CompileOptions { excess_precision: true, ..CompileOptions::default() };
    for size in SIZES.into_iter().filter(|s| s.2 <= 256 && s.0 * s.1 >= 4096) {
        for stored in [BF16, F16] {
            let [graph, exact] = [stored, F32].map(|computed| scaled_layer(size, stored, computed));
            let args = arguments(&graph, -0.5, 0.5, 9);
            let want = oracle(&exact, &args);
            for level in levels() {
                let cpu = backend(level, 2);
                let listing = cpu.compile(&graph, &excess).unwrap().listing();
                assert_eq!(listing.matches("dot_general+map").count(), 1, "{listing}");
                let got = run_with(&cpu, &graph, &args, &excess);
                // Sums near zero have the errors of their terms.
                let (d, at) = distance(&got[0], &want[0], true);
                assert!(d <= 1.0, "{size:?} {stored} on {level:?}, element {at}: {d} units");
                for threads in [1, 3, 8] {
                    let again = run_with(&backend(level, threads), &graph, &args, &excess);
                    assert!(again == got, "{size:?} {stored} on {level:?}, {threads} threads");
                }
            }
        }
    }
}

/// A convolution of `x: dtype[n, 20, 18, c]` with 3 × 3 filters in groups, or 1 × 1, and what is computed from its result.
struct ConvolutionLayer {
    images: usize,
    channels: [usize; 2],
    groups: usize,
    window: usize,
    stride: usize,
    dtype: DType,
}

impl ConvolutionLayer {
    /// The result of the epilogue, and with `stored` that of the convolution, so that the two are not fused.
    fn graph(&self, epilogue: fn(&Tensor, &Tensor, &Tensor) -> Tensor, stored: bool) -> Arc<Graph> {
        let g = GraphBuilder::new("layer");
        let array = |dims: &[usize], name: &str| g.parameter(TensorType::new(self.dtype, dims), name);
        let [from, to] = self.channels;
        let x = array(&[self.images, 20, 18, from], "x");
        let kernel = array(&[self.window, self.window, from / self.groups, to], "k");
        let pad = (self.window / 2) as i64;
        let conv =
            Convolution::channels_last(&[self.stride; 2], &[[pad, pad]; 2], &[1, 1], self.groups, self.dtype);
        let y = x.convolution(&kernel, conv);
        let bias = array(&[to], "bias");
        let y = &y + bias.broadcast_to(y.shape());
        let (residual, scale) = (array(y.shape(), "residual"), array(&[to], "scale"));
        let z = epilogue(&y, &residual, &scale.broadcast_to(y.shape()));
        g.finish(&if stored { vec![z, y] } else { vec![z] }).unwrap()
    }
}

#[test]
fn activations_and_residual_sums_in_their_convolution() {
    let layer = |images, channels, groups, window, stride, dtype| ConvolutionLayer {
        images,
        channels,
        groups,
        window,
        stride,
        dtype,
    };
    // Kernels: direct in several panels, by phases of one image and of many, Winograd, depthwise, small groups, pairs.
    let layers = [
        layer(1, [7, 144], 1, 1, 1, F32),
        layer(9, [24, 20], 1, 3, 2, F32),
        layer(2, [64, 64], 1, 3, 1, F32),
        layer(1, [21, 21], 21, 3, 1, F32),
        layer(2, [40, 40], 10, 3, 2, F32),
        layer(2, [48, 48], 3, 3, 1, F32),
        layer(2, [16, 40], 1, 3, 1, BF16),
        layer(2, [16, 24], 1, 1, 1, F16),
    ];
    let epilogues: [fn(&Tensor, &Tensor, &Tensor) -> Tensor; 4] = [
        |y, _, _| y.relu(),
        |y, residual, _| (y + residual).relu(),
        |y, _, scale| (y * scale).tanh(),
        |y, residual, scale| residual * scale + y * (y + 3.0).maximum(&(y * 0.0)),
    ];
    for (k, layer) in layers.iter().enumerate() {
        for (e, epilogue) in epilogues.into_iter().enumerate() {
            let [alone, stored] = [false, true].map(|stored| layer.graph(epilogue, stored));
            assert!(listing(&alone).contains("+map["), "{k}, {e}: {}", listing(&alone));
            assert!(!listing(&stored).contains("+map["), "{}", listing(&stored));
            same_as_apart(&alone, &stored, &format!("layer {k}, epilogue {e}"));
        }
    }
}

/// Checks that a fused program has the bits of one that stores the convolution's result, for any number of threads.
fn same_as_apart(alone: &Arc<Graph>, stored: &Arc<Graph>, what: &str) {
    let args = arguments(alone, -1.0, 1.0, 5);
    for options in [false, true].map(|winograd| CompileOptions { winograd, ..Default::default() }) {
        for level in levels() {
            let want = run_with(&backend(level, 2), stored, &args, &options);
            for threads in [1, 2, 8] {
                let got = run_with(&backend(level, threads), alone, &args, &options);
                assert!(got[0] == want[0], "{what} on {level:?}, {threads} threads");
            }
        }
    }
}
