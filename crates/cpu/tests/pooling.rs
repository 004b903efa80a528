//! Tests pooled convolutions, with relu before or after, and their gradients, against the interpreter.
//!
//! At every instruction-set level of this machine and on 1, 2 and 3 threads. Numbers are small integers, so that sums
//! are exact in any order and results are bit-identical; they also cause many ties.

mod common;

use common::{arguments, backend, levels, oracle, run_with};
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level};
use systole_ir::DType::*;
use systole_ir::op::{Convolution, Monoid, Window};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType, grad};
use systole_runtime::{Backend, CompileOptions};

fn backends() -> Vec<CpuBackend> {
    levels().flat_map(|l| [1, 2, 3].map(|threads| backend(l, threads))).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Act {
    None,
    Before,
    After,
}

struct Case {
    dtype: DType,
    /// Batch, height, width, channels.
    x: [usize; 4],
    /// Height, width, filters.
    kernel: [usize; 3],
    conv_stride: usize,
    same: bool,
    window: [usize; 2],
    strides: [usize; 2],
    act: Act,
    bias: bool,
    /// Whether the bias is f32, as in mixed precision.
    wide_bias: bool,
    /// Whether rows of the dense weights are contiguous, so that the pooled gradient is computed by its reader.
    turned: bool,
}

impl Case {
    fn new(dtype: DType, x: [usize; 4], kernel: [usize; 3], window: [usize; 2]) -> Case {
        let (strides, act) = (window, Act::After);
        Case {
            dtype,
            x,
            kernel,
            conv_stride: 1,
            same: false,
            window,
            strides,
            act,
            bias: true,
            wide_bias: false,
            turned: false,
        }
    }

    /// The parameters `x`, `kernel` and `bias`, and their pooled convolution.
    fn pooled(&self, g: &GraphBuilder) -> [Tensor; 4] {
        let x = g.parameter(TensorType::new(self.dtype, self.x), "x");
        let [height, width, filters] = self.kernel;
        let kt = TensorType::new(self.dtype, [height, width, self.x[3], filters]);
        let k = g.parameter(kt.clone(), "kernel");
        let kept = if self.wide_bias { F32 } else { self.dtype };
        let b = g.parameter(TensorType::new(kept, [filters]), "bias");
        let strides = [self.conv_stride; 2];
        let conv = match self.same {
            true => Convolution::same(x.ty(), &kt, &strides, &[1, 1], 1),
            false => Convolution::valid(x.ty(), &strides, &[1, 1], 1),
        };
        let mut h = x.convolution(&k, conv);
        if self.bias {
            h = h + b.convert(self.dtype);
        }
        if self.act == Act::Before {
            h = h.relu();
        }
        let window = Window::new(
            &[1, self.window[0], self.window[1], 1],
            &[1, self.strides[0], self.strides[1], 1],
            &[[0, 0]; 4],
        );
        let mut y = Monoid::Maximum.over_windows(&h, window);
        if self.act == Act::After {
            y = y.relu();
        }
        [x, k, b, y]
    }

    /// `(x, kernel, bias, dense, weights) → (pooled, dkernel, dbias[, dx])` of Σ (pooled · dense) weights.
    fn graph(&self, with_input: bool) -> Arc<Graph> {
        let g = GraphBuilder::new("pooling");
        let [x, k, b, y] = self.pooled(&g);
        // The gradient comes from later steps, as in a network.
        let flat = y.reshape([self.x[0], y.ty().elements() / self.x[0]]);
        let features = flat.dim(1);
        let shape = if self.turned { [2, features] } else { [features, 2] };
        let dense = g.parameter(TensorType::new(self.dtype, shape), "dense");
        let weights = g.parameter(TensorType::new(self.dtype, [self.x[0], 2]), "weights");
        let inner = usize::from(self.turned);
        let logits = flat.dot_general(&dense, &[], &[], &[1], &[inner]);
        let loss = (logits * &weights).convert(F32).sum_all();
        let mut wanted = vec![&k];
        wanted.extend(self.bias.then_some(&b));
        wanted.extend(with_input.then_some(&x));
        let mut results = vec![y.clone()];
        results.extend(grad(&loss, &wanted));
        g.finish(&results).unwrap_or_else(|e| panic!("{e}"))
    }

    /// `(x, kernel, bias, right[, shift]) → (pooled · rightᵀ + shift[, dkernel])`, with `columns` columns.
    fn product(&self, columns: usize, shifted: bool, gradient: bool) -> Arc<Graph> {
        let g = GraphBuilder::new("product");
        let [_, k, _, y] = self.pooled(&g);
        let flat = y.reshape([self.x[0], y.ty().elements() / self.x[0]]);
        let right = g.parameter(TensorType::new(self.dtype, [columns, flat.dim(1)]), "right");
        let mut product = flat.dot_general(&right, &[], &[], &[1], &[1]);
        if shifted {
            product = product + g.parameter(TensorType::new(self.dtype, [columns]), "shift");
        }
        let mut results = vec![product.clone()];
        if gradient {
            results.extend(grad(&product.convert(F32).sum_all(), &[&k]));
        }
        g.finish(&results).unwrap_or_else(|e| panic!("{e}"))
    }

    fn label(&self) -> String {
        let act = ["none", "before", "after"][self.act as usize];
        format!(
            "{:?} {:?} kernel {:?}/{} same {} window {:?}/{:?} relu {act}",
            self.dtype, self.x, self.kernel, self.conv_stride, self.same, self.window, self.strides
        )
    }
}

fn integers(graph: &Graph, seed: u64) -> Vec<Literal> {
    some_integers(graph, seed, 5)
}

/// Integers from −2 to 2, five in `of`; the others are 0.
fn some_integers(graph: &Graph, seed: u64, of: u64) -> Vec<Literal> {
    let draw = |(i, ty): (usize, &TensorType)| {
        let mut s = RandomStream::new(seed, 5, i as u64);
        let mut b = LiteralBuilder::new(ty.clone());
        let mut value = || [0.0, -2.0, -1.0, 1.0, 2.0].get(s.below(of) as usize).copied().unwrap_or(0.0);
        (0..ty.elements()).for_each(|k| b.set(k, Scalar::of(ty.dtype, value())));
        b.finish()
    };
    graph.param_types().iter().enumerate().map(draw).collect()
}

fn listing(graph: &Arc<Graph>) -> String {
    let exe = backend(levels().next().unwrap(), 1).compile(graph, &CompileOptions::default()).unwrap();
    exe.listing()
}

fn same(a: &Literal, b: &Literal) -> bool {
    let equal = |x: Scalar, y: Scalar| match (x, y) {
        (Scalar::Float(x), Scalar::Float(y)) => x == y || (x.is_nan() && y.is_nan()),
        _ => x == y,
    };
    a.ty() == b.ty() && (0..a.ty().elements()).all(|i| equal(a.get(i), b.get(i)))
}

/// Checks with rounding after each op, and with excess precision: sums of small integers are exact in both.
fn check(backends: &[CpuBackend], graph: &Arc<Graph>, args: &[Literal], label: &str) {
    check_with(backends, graph, args, &CompileOptions::default(), label);
    if graph.param_types().iter().any(|t| matches!(t.dtype, BF16 | F16)) {
        let excess = CompileOptions { excess_precision: true, ..CompileOptions::default() };
        check_with(backends, graph, args, &excess, &format!("{label} with excess precision"));
    }
}

fn check_with(
    backends: &[CpuBackend],
    graph: &Arc<Graph>,
    args: &[Literal],
    options: &CompileOptions,
    label: &str,
) {
    let want = oracle(graph, args);
    for b in backends {
        for (k, (got, want)) in run_with(b, graph, args, options).iter().zip(&want).enumerate() {
            assert!(same(got, want), "{label}, result {k}\n{got:?}\n{want:?}\n{}", listing(graph));
        }
    }
}

#[test]
fn pooled_convolutions_and_their_gradients() {
    let backends = backends();
    let mut cases = Vec::new();
    // Filters: part of a vector, one vector, several and a tail, two, three.
    for filters in [1, 5, 16, 20, 32, 48] {
        cases.push(Case::new(F32, [3, 9, 8, 1], [3, 3, filters], [2, 2]));
    }
    for (kernel, window, channels) in [
        ([5, 5, 48], [2, 2], 1),
        ([1, 1, 7], [2, 1], 1),
        ([3, 2, 33], [1, 3], 2),
        ([3, 3, 16], [3, 3], 3),
        ([2, 3, 18], [4, 4], 1),
        ([2, 2, 6], [2, 5], 1),
        ([3, 3, 34], [5, 5], 2),
        ([4, 4, 8], [2, 2], 17),
        // All taps of a window fit into a vector, and whole vectors of filters.
        ([2, 2, 16], [2, 2], 1),
        ([1, 1, 48], [2, 2], 2),
        ([1, 3, 32], [1, 3], 1),
        ([2, 1, 16], [4, 1], 1),
        // Or more taps, contiguous.
        ([6, 3, 48], [2, 2], 1),
        ([4, 5, 16], [2, 2], 1),
    ] {
        cases.push(Case::new(F32, [2, 13, 12, channels], kernel, window));
        cases.extend([BF16, F16].map(|dtype| Case::new(dtype, [2, 13, 12, channels], kernel, window)));
    }
    // Gaps between windows, rows and columns outside all windows, padding, strides.
    cases.push(Case { strides: [3, 4], ..Case::new(F32, [2, 12, 11, 1], [3, 3, 9], [2, 2]) });
    cases.push(Case { strides: [3, 4], ..Case::new(F32, [2, 12, 11, 1], [3, 3, 32], [2, 2]) });
    cases.push(Case { same: true, ..Case::new(F32, [2, 7, 9, 2], [3, 3, 20], [2, 2]) });
    cases.push(Case { conv_stride: 2, same: true, ..Case::new(F32, [2, 15, 14, 1], [5, 3, 16], [2, 2]) });
    cases.push(Case { conv_stride: 2, ..Case::new(BF16, [2, 15, 14, 1], [3, 3, 24], [2, 3]) });
    cases.push(Case { bias: false, ..Case::new(BF16, [2, 8, 8, 1], [3, 3, 17], [2, 2]) });
    cases.push(Case { bias: false, ..Case::new(F16, [2, 8, 8, 1], [3, 3, 17], [2, 2]) });
    cases.push(Case { wide_bias: true, ..Case::new(BF16, [2, 8, 8, 1], [3, 3, 17], [2, 2]) });
    cases.push(Case { wide_bias: true, ..Case::new(F16, [2, 8, 8, 2], [3, 3, 32], [2, 2]) });
    for mut case in cases {
        for act in [Act::After, Act::Before, Act::None] {
            case.act = act;
            let graph = case.graph(false);
            check(&backends, &graph, &integers(&graph, 3), &case.label());
        }
        let graph = case.graph(true);
        check(&backends, &graph, &integers(&graph, 4), &format!("{} with input", case.label()));
    }
}

/// A dense layer over the channels of each pooled pixel: rows of its product are pixels, not images, and its gradient
/// is not computed by its reader.
#[test]
fn gradients_of_a_dense_layer_over_pooled_channels() {
    let backends = backends();
    for dtype in [F32, BF16, F16] {
        let case = Case::new(dtype, [2, 6, 6, 1], [3, 3, 256], [2, 2]);
        let g = GraphBuilder::new("pixels");
        let [_, k, b, y] = case.pooled(&g);
        let pixels = y.reshape([y.ty().elements() / 256, 256]);
        let dense = g.parameter(TensorType::new(dtype, [2, 256]), "dense");
        let weights = g.parameter(TensorType::new(dtype, [pixels.dim(0), 2]), "weights");
        let logits = pixels.dot_general(&dense, &[], &[], &[1], &[1]);
        let loss = (logits * &weights).convert(F32).sum_all();
        let graph = g.finish(&grad(&loss, &[&k, &b])).unwrap();
        check(&backends, &graph, &integers(&graph, 5), &case.label());
    }
}

/// Winograd convolutions: their transforms add and halve, so that sums of small integers stay exact.
#[test]
fn pooled_convolutions_from_fewer_products() {
    let backends = backends();
    let transforms = CompileOptions { winograd: true, ..CompileOptions::default() };
    for (x, filters, same) in [
        // One strip and several, of rows and of images; rows and columns outside all windows.
        ([3, 14, 14, 40], 40, false),
        ([1, 21, 41, 40], 48, true),
        ([9, 8, 8, 48], 40, true),
        ([3, 13, 15, 41], 70, false),
    ] {
        for dtype in [F32, BF16, F16] {
            let mut case = Case { same, ..Case::new(dtype, x, [3, 3, filters], [2, 2]) };
            let acts = [(Act::After, true), (Act::Before, false), (Act::None, true)];
            // The interpreter is slow for so many products.
            for (act, bias) in acts.into_iter().skip(if dtype == F32 { 0 } else { 2 }) {
                (case.act, case.bias) = (act, bias);
                let label = format!("{} with Winograd", case.label());
                for graph in [case.graph(true), case.product(10, bias, false)] {
                    let args = some_integers(&graph, 6, 12);
                    check_with(&backends, &graph, &args, &transforms, &label);
                    // Non-integers show different rounding.
                    let args = arguments(&graph, -1.0, 1.0, 6);
                    let pair = [&CompileOptions::default(), &transforms]
                        .map(|o| run_with(&backends[0], &graph, &args, o));
                    assert!(dtype != F32 || pair[0][0] != pair[1][0], "{label}: direct convolution");
                }
            }
        }
    }
}

/// As above, if Winograd does not pay off as matrix products.
#[test]
fn pooled_convolutions_of_few_channels_from_fewer_products() {
    let backends = backends();
    let transforms = CompileOptions { winograd: true, excess_precision: true, ..CompileOptions::default() };
    for (x, kernel, padded) in [
        // Filters: part of a vector, several and a tail, several; rows and columns outside all windows.
        ([3, 28, 28, 1], [3, 3, 64], false),
        ([2, 9, 8, 1], [3, 3, 5], false),
        ([2, 7, 11, 1], [3, 3, 20], true),
        // More windows per row than are transformed together.
        ([1, 5, 150, 1], [3, 3, 33], false),
        ([2, 9, 12, 2], [3, 3, 16], false),
        ([2, 8, 9, 3], [3, 3, 40], true),
        ([2, 6, 37, 8], [3, 3, 32], false),
        // Kernels in parts: of three and two, of two only, of different ones for rows and columns; several passes.
        ([2, 28, 28, 1], [5, 5, 48], false),
        ([2, 9, 10, 1], [4, 4, 5], true),
        ([1, 8, 90, 1], [5, 3, 17], false),
        ([1, 7, 21, 1], [2, 6, 16], false),
        ([2, 8, 9, 4], [2, 2, 16], true),
        ([1, 9, 13, 3], [5, 5, 40], true),
        ([1, 14, 15, 2], [7, 6, 20], false),
        ([1, 12, 43, 8], [5, 5, 16], false),
    ] {
        for dtype in [F32, BF16, F16] {
            let mut case = Case { same: padded, ..Case::new(dtype, x, kernel, [2, 2]) };
            for (act, bias) in [(Act::After, true), (Act::Before, false), (Act::None, true)] {
                (case.act, case.bias) = (act, bias);
                let label = format!("{} with Winograd", case.label());
                let (graph, product) = (case.graph(false), case.product(10, bias, false));
                check_with(&backends, &product, &some_integers(&product, 6, 12), &transforms, &label);
                let mut args = some_integers(&graph, 6, 12);
                check_with(&backends, &graph, &args, &transforms, &label);
                // Rows of windows that read such numbers are computed by direct convolution.
                for strange in [f64::INFINITY, f64::NAN, 3e38].into_iter().filter(|_| dtype == F32) {
                    args[0] = with(&args[0], x[2] * x[3] * 2 + 3, strange);
                    let want = &oracle(&graph, &args)[0];
                    for b in &backends {
                        let got = &run_with(b, &graph, &args, &transforms)[0];
                        assert!(same(got, want), "{label}, {strange}\n{got:?}\n{want:?}");
                    }
                }
            }
            let levels = match kernel[..2] == [3, 3] && x[3] == 1 {
                true => levels().collect::<Vec<_>>(),
                false => [Level::Avx512].into_iter().filter(|l| l.is_available()).collect(),
            };
            for level in levels.into_iter().filter(|_| dtype == F32) {
                let graph = case.graph(false);
                let args = arguments(&graph, -1.0, 1.0, 6);
                let pair = [&CompileOptions::default(), &transforms]
                    .map(|o| run_with(&backend(level, 1), &graph, &args, o));
                assert!(pair[0][0] != pair[1][0], "{}: direct convolution", case.label());
            }
        }
    }
}

/// A copy with another number at one position.
fn with(x: &Literal, at: usize, number: f64) -> Literal {
    let mut b = LiteralBuilder::new(x.ty().clone());
    (0..x.ty().elements()).for_each(|k| b.set(k, x.get(k)));
    b.set(at, Scalar::Float(number));
    b.finish()
}

#[test]
fn more_images_than_parts() {
    let case = Case::new(F32, [75, 6, 6, 1], [3, 3, 10], [2, 2]);
    let graph = case.graph(false);
    check(&backends(), &graph, &integers(&graph, 8), &case.label());
}

#[test]
fn gradients_of_few_terms_are_made_where_they_are_read() {
    let backends = backends();
    let plain = |dtype, x, kernel, window| Case {
        turned: true,
        act: Act::Before,
        ..Case::new(dtype, x, kernel, window)
    };
    let mut cases = Vec::new();
    // One image, one group of them, several and a tail; one strip of windows and several; features in part of a vector.
    for (x, kernel) in [
        ([1, 20, 22, 1], [3, 3, 32]),
        ([16, 20, 22, 1], [3, 3, 32]),
        ([19, 31, 29, 1], [3, 3, 20]),
        ([37, 11, 12, 2], [2, 3, 17]),
        ([64, 10, 10, 1], [3, 3, 16]),
        // Vectors of features: three; as many taps as one pass supports, and more.
        ([23, 16, 15, 1], [3, 3, 48]),
        ([37, 11, 12, 2], [2, 3, 16]),
        ([5, 18, 13, 1], [5, 5, 32]),
        ([19, 18, 13, 1], [5, 4, 16]),
    ] {
        cases.extend([F32, BF16, F16].map(|dtype| plain(dtype, x, kernel, [2, 2])));
    }
    cases.push(plain(F32, [18, 17, 14, 1], [3, 3, 48], [3, 3]));
    cases.push(Case { strides: [3, 4], same: true, ..plain(F32, [17, 24, 41, 1], [3, 3, 9], [2, 3]) });
    for case in cases {
        let graph = case.graph(false);
        assert!(listing(&graph).contains("product+unpooled"), "{}", listing(&graph));
        // Few enough that sums of bf16 stay exact.
        let of = if case.dtype == BF16 { 40 } else { 5 };
        check(&backends, &graph, &some_integers(&graph, 9, of), &case.label());
    }
    // Not with many rows, nor if the array itself is needed.
    let many = plain(F32, [65, 10, 10, 1], [3, 3, 16], [2, 2]).graph(false);
    assert!(!listing(&many).contains("product+unpooled"));
    let wanted = plain(F32, [3, 20, 22, 1], [3, 3, 16], [2, 2]).graph(true);
    assert!(!listing(&wanted).contains("product+unpooled"));
}

#[test]
fn products_with_what_is_pooled_are_summed_while_that_is_made() {
    let backends = backends();
    let mut cases = Vec::new();
    // One image and several; more than are multiplied together; a row of windows that is one vector, and longer ones
    // than a block of products; windows in registers and through a tile.
    for (x, kernel, window) in [
        ([1, 20, 22, 1], [3, 3, 32], [2, 2]),
        ([5, 8, 68, 1], [3, 3, 64], [2, 2]),
        ([71, 34, 3, 1], [3, 2, 16], [2, 2]),
        ([3, 13, 26, 2], [2, 3, 24], [3, 3]),
    ] {
        cases.extend([F32, BF16, F16].map(|dtype| Case::new(dtype, x, kernel, window)));
    }
    for case in cases {
        for (columns, shifted, gradient) in [(1, true, false), (10, true, true), (16, false, false)] {
            let graph = case.product(columns, shifted, gradient);
            assert!(listing(&graph).contains("max_pool+relu+product"), "{}", listing(&graph));
            // Few enough that sums of bf16 stay exact.
            let of = if case.dtype == BF16 { 60 } else { 5 };
            check(&backends, &graph, &some_integers(&graph, 9, of), &format!("{columns} × {}", case.label()));
        }
    }
    // Not with many columns, nor if rows of windows end within a vector.
    let alone = |case: Case, columns| !listing(&case.product(columns, true, false)).contains("+product");
    assert!(alone(Case::new(F32, [5, 20, 22, 1], [3, 3, 32], [2, 2]), 17));
    assert!(alone(Case::new(F32, [5, 20, 22, 1], [3, 3, 17], [2, 2]), 10));
}

#[test]
fn nan_infinities_and_zeros_of_both_signs_are_pooled_as_two_ops_would() {
    let backends = backends();
    for (dtype, window, channels) in
        [(F32, [2, 2], 70), (BF16, [2, 2], 3), (F16, [2, 2], 70), (F32, [3, 2], 5), (F16, [1, 4], 66)]
    {
        let g = GraphBuilder::new("pool");
        let x = g.parameter(TensorType::new(dtype, [2, 7, 9, channels]), "x");
        let w = Window::new(&[1, window[0], window[1], 1], &[1, window[0], window[1], 1], &[[0, 0]; 4]);
        let plain = Monoid::Maximum.over_windows(&x, w.clone());
        let rectified = Monoid::Maximum.over_windows(&x.relu(), w);
        let both: Vec<Tensor> = vec![plain.relu(), rectified, plain];
        let dy = g.parameter(both[0].ty().clone(), "dy");
        let mut results = both.clone();
        for y in &both {
            results.extend(grad(&(y * &dy).convert(F32).sum_all(), &[&x]));
        }
        let graph = g.finish(&results).unwrap();
        let mut s = RandomStream::new(7, 1, channels as u64);
        let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, 1.0, -1.0, 2.0, -0.0, 0.0];
        let mut args = integers(&graph, 2);
        let mut b = LiteralBuilder::new(x.ty().clone());
        (0..x.ty().elements()).for_each(|i| b.set(i, Scalar::of(dtype, values[s.below(10) as usize])));
        args[0] = b.finish();
        check(&backends, &graph, &args, &format!("{dtype:?} {window:?} {channels}"));
    }
}

#[test]
fn numbers_that_are_not_finite_reach_what_is_pooled_of_a_convolution() {
    let backends = backends();
    for dtype in [F32, BF16, F16] {
        for odd in [f64::INFINITY, f64::NAN] {
            let case = Case::new(dtype, [3, 8, 18, 1], [3, 3, 32], [2, 2]);
            let graph = case.product(10, true, false);
            let mut args = some_integers(&graph, 9, 60);
            let mut b = LiteralBuilder::new(args[0].ty().clone());
            (0..args[0].ty().elements()).for_each(|i| b.set(i, args[0].get(i)));
            b.set(170, Scalar::of(dtype, odd));
            args[0] = b.finish();
            // With excess precision an infinity may become a NaN.
            let label = format!("{odd} in {}", case.label());
            check_with(&backends, &graph, &args, &CompileOptions::default(), &label);
        }
    }
}

#[test]
fn the_training_step_of_a_pooled_convolution_has_no_full_size_array() {
    for act in [Act::After, Act::Before, Act::None] {
        for dtype in [F32, BF16, F16] {
            let text =
                listing(&Case { act, ..Case::new(dtype, [2, 9, 8, 1], [3, 3, 16], [2, 2]) }.graph(false));
            assert!(text.contains("unpooled kernel gradient") && !text.contains("7, 6, 16"), "{text}");
        }
    }
}

#[test]
fn gradients_of_sums_over_windows_go_to_all_their_elements() {
    let backends = backends();
    for (dtype, window, strides) in
        [(F32, [2, 2], [2, 2]), (BF16, [3, 1], [3, 2]), (F16, [2, 2], [3, 2]), (F32, [2, 3], [4, 5])]
    {
        let g = GraphBuilder::new("sums");
        let x = g.parameter(TensorType::new(dtype, [3, 9, 11, 18]), "x");
        let w = Window::new(&[1, window[0], window[1], 1], &[1, strides[0], strides[1], 1], &[[0, 0]; 4]);
        let y = Monoid::Add.over_windows(&x, w);
        let dy = g.parameter(y.ty().clone(), "dy");
        let graph = g.finish(&grad(&(y * dy).convert(F32).sum_all(), &[&x])).unwrap();
        assert!(listing(&graph).contains("unpool"), "{}", listing(&graph));
        check(&backends, &graph, &integers(&graph, 6), &format!("{dtype:?} {window:?} {strides:?}"));
    }
}

#[test]
fn sums_over_windows_of_a_convolution_are_those_of_sums_of_its_input() {
    let backends = backends();
    let excess = CompileOptions { excess_precision: true, ..CompileOptions::default() };
    // Adjacent windows, windows with gaps, overlapping windows; rows and columns left over; padding, strides and
    // dilation.
    for (x, kernel, window, strides, steps, holes, same) in [
        ([3, 9, 8, 1], [3, 3, 20], [2, 2], [2, 2], [1, 1], [1, 1], false),
        ([2, 12, 13, 2], [3, 2, 9], [2, 3], [3, 4], [1, 1], [1, 1], false),
        ([2, 11, 11, 3], [3, 3, 5], [3, 3], [2, 2], [1, 1], [1, 1], true),
        ([2, 17, 16, 1], [3, 3, 17], [2, 2], [2, 2], [2, 1], [1, 1], true),
        ([2, 16, 19, 2], [2, 3, 6], [2, 2], [2, 2], [1, 1], [2, 3], false),
    ] {
        for dtype in [F32, BF16, F16] {
            let g = GraphBuilder::new("sums");
            let (xt, kt) =
                (TensorType::new(dtype, x), TensorType::new(dtype, [kernel[0], kernel[1], x[3], kernel[2]]));
            let x = g.parameter(xt.clone(), "x");
            let k = g.parameter(kt.clone(), "kernel");
            let b = g.parameter(TensorType::new(dtype, [kernel[2]]), "bias");
            let conv = match same {
                true => Convolution::same(&xt, &kt, &steps, &holes, 1),
                false => Convolution::valid(&xt, &steps, &holes, 1),
            };
            let h = x.convolution(&k, conv) + &b;
            let full = h.ty().shape.to_string();
            let size = &[1, window[0], window[1], 1];
            let w = Window::new(size, &[1, strides[0], strides[1], 1], &[[0, 0]; 4]);
            // Narrow floats are summed as in average pooling.
            let y = (Monoid::Add.over_windows(&h.convert(F32), w) / 4.0).convert(dtype).relu();
            let weights = g.parameter(y.ty().clone(), "weights");
            let loss = (&y * weights).convert(F32).sum_all();
            let results = [vec![y], grad(&loss, &[&k, &b])].concat();
            let graph = g.finish(&results).unwrap();
            // Quarters are exact in all types while numbers are small.
            let args = some_integers(&graph, 9, 12);
            let label = format!("{kt} {window:?} {strides:?}");
            for options in [&CompileOptions::default(), &excess] {
                let text = backends[0].compile(&graph, options).unwrap().listing();
                let whole = dtype != F32 && !options.excess_precision;
                assert_eq!(text.contains(&full), whole, "{label}: {text}");
                check_with(&backends, &graph, &args, options, &label);
            }
            // With the input's gradient, for which the full-size gradient is needed.
            let results = [results, grad(&loss, &[&x])].concat();
            let graph = g.finish(&results).unwrap();
            check_with(&backends, &graph, &args, &excess, &format!("{label} with input"));
        }
    }
}

/// The gradients of a bias before an average pooling and of one after it are the same sums.
#[test]
fn biases_before_and_after_a_pooling_have_one_gradient() {
    for dtype in [F32, BF16] {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(dtype, [2, 8, 8, 3]), "x");
        let k = g.parameter(TensorType::new(dtype, [3, 3, 3, 4]), "k");
        let before = g.parameter(TensorType::new(dtype, [4]), "before");
        let after = g.parameter(TensorType::new(dtype, [4]), "after");
        let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1));
        let h = &h + before.broadcast_in_dim(h.shape(), &[3]);
        let p = h.avg_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
        let y = &p + after.broadcast_in_dim(p.shape(), &[3]);
        let d = grad(&(&y * &y).sum_all(), &[&before, &after]);
        let graph = g.finish(&d).unwrap();
        for backend in backends() {
            let out =
                run_with(&backend, &graph, &arguments(&graph, -1.0, 1.0, 5), &CompileOptions::default());
            let (before, after) = (out[0].to_f32s(), out[1].to_f32s());
            assert!(before.iter().any(|v| *v != 0.0), "{dtype:?}");
            before.iter().zip(&after).for_each(|(a, b)| {
                assert!((a - b).abs() <= 0.02 * b.abs().max(1.0), "{dtype:?}: {before:?} {after:?}");
            });
        }
    }
}
