//! Tests convolutions and their gradients against the interpreter with random attributes, layouts, shapes and types.
//!
//! Shapes cause every kind of partition into strips, slices, phases and panels. Runs at every instruction-set level of
//! this machine; results must be bit-identical for 1, 2, 3, 4 and 8 threads.

mod common;

use common::{arguments, backend, distance, levels, oracle, relative, run, run_with};
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level};
use systole_ir::DType::*;
use systole_ir::op::Convolution;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, Literal, TensorType, vjp};
use systole_runtime::CompileOptions;

fn backends() -> Vec<Vec<CpuBackend>> {
    levels().map(|l| [1, 2, 3, 4, 8].map(|t| backend(l, t)).into()).collect()
}

fn check(backends: &[Vec<CpuBackend>], graph: &Arc<Graph>, seed: u64, what: &str) {
    let args = arguments(graph, -1.0, 1.0, seed);
    let want = oracle(graph, &args);
    for of_level in backends {
        let first = run(&of_level[0], graph, &args);
        for (k, (got, want)) in first.iter().zip(&want).enumerate() {
            // Narrow sums may round to the other side of a tie.
            let near = match got.dtype() {
                F32 => relative(got, want) <= 2e-6,
                _ => distance(got, want, true).0 <= 1.0,
            };
            assert!(near, "{what}, result {k}: {:e}\n{got:?}\n{want:?}", relative(got, want));
        }
        for more in &of_level[1..] {
            assert!(first == run(more, graph, &args), "{what} depends on threads");
        }
    }
}

/// One convolution; `None` if the attributes do not match the shapes, or the result is empty.
fn forward(dtype: DType, x: &[usize], k: &[usize], op: &Convolution, bias: bool) -> Option<Arc<Graph>> {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(dtype, x), "x");
    let k = g.parameter(TensorType::new(dtype, k), "k");
    let mut y = x.convolution(&k, op.clone());
    if y.is_poisoned() || y.ty().elements() == 0 {
        return None;
    }
    if bias {
        let features = y.shape()[y.rank() - 1];
        let b = g.parameter(TensorType::new(dtype, [features]), "b");
        y = &y + b.broadcast_to(y.shape());
    }
    g.finish(&[y]).ok()
}

/// A convolution and both its gradients; the cotangent is a parameter.
fn with_gradients(dtype: DType, x: &[usize], k: &[usize], op: &Convolution) -> Option<Arc<Graph>> {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(dtype, x), "x");
    let k = g.parameter(TensorType::new(dtype, k), "k");
    let y = x.convolution(&k, op.clone());
    if y.is_poisoned() || y.ty().elements() == 0 {
        return None;
    }
    let dy = g.parameter(y.ty().clone(), "dy");
    let gradients = vjp(&[&y], &[&dy], &[&x, &k]);
    g.finish(&[vec![y], gradients].concat()).ok()
}

/// Attributes that layers and their gradients never combine.
#[test]
fn any_attributes() {
    let (backends, s) = (backends(), &mut RandomStream::new(1, 2, 3));
    let mut done = 0;
    for case in 0..240 {
        let dtype = [F32, F32, F32, BF16, F16][case % 5];
        let n = 1 + s.below(3) as usize;
        let mut of = |choice: &[usize]| choice[s.below(choice.len() as u64) as usize];
        let (channels, features) = (of(&[1, 2, 3, 5, 16, 19]), of(&[1, 7, 16, 17, 33, 40, 48, 70]));
        let side = [0, 30, 9, 5][n];
        let x: Vec<usize> = [of(&[1, 2, 5])]
            .into_iter()
            .chain((0..n).map(|_| of(&[1, 2, side / 2, side])))
            .chain([channels])
            .collect();
        let window: Vec<usize> = (0..n).map(|_| of(&[1, 2, 3])).collect();
        let mut op = Convolution::channels_last(
            &(0..n).map(|_| of(&[1, 1, 2, 3])).collect::<Vec<_>>(),
            &(0..n).map(|_| [of(&[0, 1, 2, 4]) as i64 - 1, of(&[0, 1, 2, 4]) as i64 - 1]).collect::<Vec<_>>(),
            &(0..n).map(|_| of(&[1, 1, 2, 3])).collect::<Vec<_>>(),
            1,
            dtype,
        );
        op.lhs_dilation = (0..n).map(|_| of(&[1, 1, 2, 3, 4])).collect();
        op.reversal = (0..n).map(|_| of(&[0, 1]) == 1).collect();
        // The kernel in the layers' layout, with its features exchanged, and with them first.
        let mut k = window.clone();
        match of(&[0, 1, 2]) {
            0 => k.extend([channels, features]),
            1 => {
                k.extend([features, channels]);
                (op.dims.kernel_input_feature, op.dims.kernel_output_feature) = (n + 1, n);
            }
            _ => {
                k = [features, channels].into_iter().chain(window).collect();
                (op.dims.kernel_input_feature, op.dims.kernel_output_feature) = (1, 0);
                op.dims.kernel_spatial = (2..n + 2).collect();
            }
        }
        let bias = of(&[0, 1]) == 1;
        if let Some(graph) = forward(dtype, &x, &k, &op, bias) {
            check(&backends, &graph, case as u64, &format!("{op:?} of {dtype} {x:?} and {k:?}"));
            done += 1;
        }
    }
    assert!(done > 120, "{done}");
}

/// Gradients of convolutions with every stride, dilation and padding that layers have.
#[test]
fn gradients_of_layers() {
    let (backends, s) = (backends(), &mut RandomStream::new(3, 2, 1));
    let mut done = 0;
    for case in 0..120 {
        let dtype = [F32, F32, BF16, F16][case % 4];
        let n = 1 + case % 3;
        let mut of = |choice: &[usize]| choice[s.below(choice.len() as u64) as usize];
        let (channels, features) = (of(&[1, 3, 16, 20, 35]), of(&[1, 10, 16, 32, 48, 65]));
        let side = [0, 25, 9, 4][n];
        let x: Vec<usize> = [of(&[1, 3, 9])]
            .into_iter()
            .chain((0..n).map(|_| of(&[side - 1, side])))
            .chain([channels])
            .collect();
        let k: Vec<usize> = (0..n).map(|_| of(&[1, 2, 3])).chain([channels, features]).collect();
        let (x_ty, k_ty) = (TensorType::new(dtype, &x[..]), TensorType::new(dtype, &k[..]));
        let strides: Vec<usize> = (0..n).map(|_| of(&[1, 2, 3])).collect();
        let dilation: Vec<usize> = (0..n).map(|_| of(&[1, 1, 2])).collect();
        let op = match of(&[0, 1]) {
            0 => Convolution::same(&x_ty, &k_ty, &strides, &dilation, 1),
            _ => Convolution::valid(&x_ty, &strides, &dilation, 1),
        };
        if let Some(graph) = with_gradients(dtype, &x, &k, &op) {
            check(&backends, &graph, case as u64, &format!("{op:?} of {dtype} {x:?} and {k:?}"));
            done += 1;
        }
    }
    assert!(done > 60, "{done}");
}

/// Up to eight channels per group, read in place: taps in the padding are left out, and the bits are those of the kernels
/// that pad.
#[test]
fn small_groups() {
    let backends = backends();
    // Input without batch and channels, kernel, channels of a group, groups.
    let cases: [(&[usize], &[usize], usize, usize); 8] = [
        (&[9, 12], &[3, 3], 1, 37),
        (&[30, 31], &[5, 3], 1, 16),
        (&[1, 3], &[3, 5], 1, 5),
        (&[17, 40], &[3, 3], 2, 9),
        (&[12, 7], &[3, 2], 4, 13),
        (&[8, 9], &[3, 3], 8, 5),
        (&[64], &[7], 4, 3),
        (&[64], &[4], 1, 40),
    ];
    for (i, (space, window, group, groups)) in cases.into_iter().enumerate() {
        let n = space.len();
        for (k, [stride, dilation, low, high]) in
            [[1, 1, 1, 1], [2, 1, 2, 0], [1, 2, 3, 2], [3, 1, 0, 4], [1, 1, -1, 2]].into_iter().enumerate()
        {
            let (step, wide) = (vec![stride as usize; n], vec![dilation as usize; n]);
            let conv = Convolution::channels_last(&step, &vec![[low, high]; n], &wide, groups, F32);
            let x = [&[2][..], space, &[group * groups]].concat();
            let filter = [window, &[group, group * groups][..]].concat();
            let Some(graph) = forward(F32, &x, &filter, &conv, k % 2 == 0) else { continue };
            let what = format!("groups of {group}, case {i}, attributes {k}");
            check(&backends, &graph, 3, &what);
            let other = if group == 1 { "conv/depthwise" } else { "conv/grouped" };
            for level in levels() {
                let padding = backend(level, 2).with_kernel(other).unwrap();
                let mut args = arguments(&graph, -1.0, 1.0, 4);
                let bits = |cpu: &CpuBackend, args: &[Literal]| run(cpu, &graph, args);
                assert!(bits(&backend(level, 2), &args) == bits(&padding, &args), "{what} on {level:?}");
                // The definition multiplies no padding; a portable vector is narrower than eight channels.
                if group == 8 && level == Level::Portable {
                    continue;
                }
                let mut weights = args[1].to_f32s();
                weights[0] = f32::INFINITY;
                args[1] = Literal::from_slice(&filter[..], &weights).unwrap();
                let [own, want] =
                    [bits(&backend(level, 2), &args), oracle(&graph, &args)].map(|r| r[0].to_f32s());
                let kind = |x: &f32| (x.is_nan(), *x == f32::INFINITY, *x == f32::NEG_INFINITY);
                assert!(own.iter().map(kind).eq(want.iter().map(kind)), "{what}, infinite, on {level:?}");
            }
        }
    }
}

/// Shapes large enough to be partitioned: strips of rows, strips of images, slices of channels, blocks of products,
/// groups of panels, parts of the batch. Some have pixels a power of two apart.
#[test]
fn shapes_that_are_cut() {
    let backends = backends();
    // Batch, side, channels, features, window, stride.
    for (i, [batch, side, channels, features, window, stride]) in [
        [1, 40, 2, 5, 3, 1],
        [2, 33, 3, 16, 7, 2],
        [24, 5, 8, 20, 3, 1],
        [1, 5, 256, 17, 3, 1],
        [3, 4, 512, 24, 3, 2],
        [2, 3, 2048, 20, 1, 1],
        [2, 3, 20, 1100, 1, 1],
        [3, 5, 1024, 12, 1, 2],
        [9, 7, 20, 150, 1, 2],
        // Matrix products, or almost.
        [2, 4, 512, 520, 1, 1],
        [2, 5, 520, 512, 1, 2],
        [3, 3, 128, 130, 1, 1],
        [3, 3, 127, 130, 1, 1],
    ]
    .into_iter()
    .enumerate()
    {
        for dtype in [F32, BF16] {
            let (x, k) = ([batch, side, side, channels], [window, window, channels, features]);
            let (x_ty, k_ty) = (TensorType::new(dtype, x), TensorType::new(dtype, k));
            let op = Convolution::same(&x_ty, &k_ty, &[stride, stride], &[1, 1], 1);
            let graph = with_gradients(dtype, &x, &k, &op).unwrap();
            check(&backends, &graph, i as u64, &format!("{dtype} {x:?} by {k:?}, stride {stride}"));
        }
    }
}

/// Statistics that are gathered during the convolution, over strips of all kinds; those of features far from zero are
/// equally accurate.
#[test]
fn statistics_of_results() {
    let backends = backends();
    // Batch, side, channels, features, window, stride.
    for (i, [batch, side, channels, features, window, stride]) in [
        [5, 9, 3, 33, 3, 1],
        [2, 33, 4, 80, 3, 2],
        [9, 7, 20, 150, 1, 1],
        [1, 5, 256, 17, 3, 1],
        [3, 1, 8, 5, 1, 1],
        [3, 3, 520, 512, 1, 1],
        [2, 5, 512, 513, 1, 2],
        [1, 20, 512, 512, 1, 1],
        [35, 3, 32, 17, 3, 1],
    ]
    .into_iter()
    .enumerate()
    {
        for (dtype, bias) in [(F32, false), (F32, true), (BF16, false), (BF16, true), (F16, true)] {
            let g = GraphBuilder::new("main");
            let x = g.parameter(TensorType::new(dtype, [batch, side, side, channels]), "x");
            let k = g.parameter(TensorType::new(dtype, [window, window, channels, features]), "k");
            let mut y = x.convolution(&k, Convolution::same(x.ty(), k.ty(), &[stride, stride], &[1, 1], 1));
            if bias {
                y = &y
                    + (g.parameter(TensorType::new(dtype, [features]), "b") + 100.0).broadcast_to(y.shape());
            }
            let wide = y.convert(F32);
            let mean = wide.mean(&[0, 1, 2]);
            let centred = &wide - mean.broadcast_to(wide.shape());
            let variance = (&centred * &centred).mean(&[0, 1, 2]);
            let graph = g.finish(&[y, mean, variance]).unwrap();
            // The interpreter rounds a narrow result at another point, which also changes its differences.
            let what = format!("statistics {i} of {dtype}, bias {bias}");
            if dtype == F32 && !bias {
                check(&backends, &graph, i as u64, &what);
                continue;
            }
            let args = arguments(&graph, -1.0, 1.0, i as u64);
            let want = oracle(&graph, &args);
            for of_level in &backends {
                let got = run(&of_level[0], &graph, &args);
                assert!(of_level[1..].iter().all(|more| got == run(more, &graph, &args)), "{what}");
                for (got, want) in got.iter().zip(&want) {
                    let bound = if dtype == F32 { 3e-5 } else { 4e-3 };
                    assert!(relative(got, want) <= bound, "{what}: {:e}", relative(got, want));
                }
            }
        }
    }
}

/// Checks a graph with Winograd convolutions: close to the interpreter, bit-identical for any number of threads.
/// Results `transformed` must differ from direct convolution, which would run if transforms did not pay off.
fn check_transformed(backends: &[Vec<CpuBackend>], graph: &Arc<Graph>, transformed: &[usize], what: &str) {
    let args = arguments(graph, -1.0, 1.0, 7);
    let want = oracle(graph, &args);
    let options = CompileOptions { winograd: true, ..CompileOptions::default() };
    for of_level in backends {
        let first = run_with(&of_level[0], graph, &args, &options);
        let direct = run(&of_level[0], graph, &args);
        for (k, (got, want)) in first.iter().zip(&want).enumerate() {
            let near = match got.dtype() {
                F32 => relative(got, want) <= 2e-6,
                _ => distance(got, want, true).0 <= 1.0,
            };
            assert!(near, "{what}, result {k}: {:e}", relative(got, want));
        }
        for &k in transformed {
            assert!(
                first[k].dtype() != F32 || first[k] != direct[k],
                "{what}, result {k} is not transformed"
            );
        }
        for more in &of_level[1..] {
            assert!(first == run_with(more, graph, &args, &options), "{what} depends on threads");
        }
    }
}

/// Winograd convolutions with both gradients: odd sides, strips of rows and of images, tiles that reach over an edge,
/// slices of channels and features, partial vectors, every type, paddings that no layer has.
#[test]
fn transforms_of_windows_of_three() {
    let backends = backends();
    for (i, (batch, [height, width], channels, features, padding)) in [
        (2, [12, 12], 40, 40, [[1, 1]; 2]),
        (1, [40, 38], 40, 48, [[1, 1]; 2]),
        (1, [33, 29], 41, 56, [[1, 1]; 2]),
        (3, [9, 9], 80, 81, [[1, 1]; 2]),
        (3, [13, 14], 40, 70, [[0, 0]; 2]),
        (3, [6, 40], 48, 48, [[2, 0], [0, 2]]),
        (1, [12, 12], 256, 32, [[1, 1]; 2]),
        (1, [12, 12], 32, 256, [[1, 1]; 2]),
        (9, [6, 6], 160, 32, [[1, 1]; 2]),
        (1, [30, 30], 40, 40, [[-1, 1], [2, -2]]),
    ]
    .into_iter()
    .enumerate()
    {
        // The interpreter is slow for so many products.
        for dtype in [F32, [BF16, F16][i / 2 % 2]].into_iter().take(1 + i % 2) {
            let (x, k) = ([batch, height, width, channels], [3, 3, channels, features]);
            let op = Convolution::channels_last(&[1, 1], &padding, &[1, 1], 1, dtype);
            let graph = with_gradients(dtype, &x, &k, &op).unwrap();
            check_transformed(&backends, &graph, &[0, 1, 2], &format!("{dtype} {x:?} by {k:?}, {padding:?}"));
        }
    }
}

/// Products of two bf16 pixels; the last pixel of an odd row alone; with strides, dilation and partial rows.
#[test]
fn pairs_of_pixels_in_odd_lines() {
    let backends = backends();
    for (batch, [height, width], [channels, features], window, stride) in [
        (3, [9, 9], [20, 24], 3, 1),
        (2, [13, 31], [6, 70], 3, 2),
        (1, [40, 41], [18, 33], 5, 1),
        (2, [7, 15], [34, 5], 1, 2),
        (5, [6, 1], [3, 40], 3, 1),
        // Tiles of images.
        (33, [4, 4], [32, 20], 3, 1),
        (49, [3, 5], [20, 33], 3, 2),
    ] {
        let (x, k) = ([batch, height, width, channels], [window, window, channels, features]);
        let [tx, tk] = [TensorType::new(BF16, x), TensorType::new(BF16, k)];
        let op = Convolution::same(&tx, &tk, &[stride; 2], &[1, 1], 1);
        let graph = with_gradients(BF16, &x, &k, &op).unwrap();
        check_transformed(&backends, &graph, &[], &format!("{x:?} by {k:?}, stride {stride}"));
    }
}

/// Winograd kernels in other layouts and reversed, with a bias.
#[test]
fn transforms_of_kernels_of_any_layout() {
    let (backends, x) = (backends(), [3, 12, 12, 40]);
    for case in 0..12 {
        let mut op = Convolution::channels_last(&[1, 1], &[[1, 1]; 2], &[1, 1], 1, F32);
        op.reversal = [case % 2 == 1, case % 4 > 1].into();
        let k = match case / 4 {
            0 => [3, 3, 40, 52],
            1 => {
                (op.dims.kernel_input_feature, op.dims.kernel_output_feature) = (3, 2);
                [3, 3, 52, 40]
            }
            _ => {
                (op.dims.kernel_input_feature, op.dims.kernel_output_feature) = (1, 0);
                op.dims.kernel_spatial = vec![3, 2].into();
                [52, 40, 3, 3]
            }
        };
        for bias in [false, true] {
            let graph = forward(F32, &x, &k, &op, bias).unwrap();
            check_transformed(&backends, &graph, &[0], &format!("{op:?} of {k:?}, bias {bias}"));
        }
    }
}

/// Statistics of Winograd convolutions.
#[test]
fn transforms_with_statistics() {
    let backends = backends();
    for [batch, side, channels, features] in
        [[4, 12, 48, 49], [1, 33, 40, 80], [1, 14, 256, 33], [9, 6, 48, 72]]
    {
        for bias in [false, true] {
            let g = GraphBuilder::new("main");
            let x = g.parameter(TensorType::new(F32, [batch, side, side, channels]), "x");
            let k = g.parameter(TensorType::new(F32, [3, 3, channels, features]), "k");
            let mut y = x.convolution(&k, Convolution::same(x.ty(), k.ty(), &[1, 1], &[1, 1], 1));
            if bias {
                y = &y + g.parameter(TensorType::new(F32, [features]), "b").broadcast_to(y.shape());
            }
            let mean = y.mean(&[0, 1, 2]);
            let centred = &y - mean.broadcast_to(y.shape());
            let variance = (&centred * &centred).mean(&[0, 1, 2]);
            let graph = g.finish(&[y, mean, variance]).unwrap();
            let what = format!("statistics of {batch} {side} {channels} {features}, bias {bias}");
            check_transformed(&backends, &graph, &[0], &what);
        }
    }
}

/// Statistics of Winograd convolutions of bf16 and f16 with a narrow bias.
#[test]
fn narrow_transforms_with_bias_and_statistics() {
    let backends = backends();
    let options = CompileOptions { winograd: true, ..CompileOptions::default() };
    for (dtype, [batch, side, channels, features]) in
        [(BF16, [4, 12, 48, 49]), (BF16, [9, 6, 48, 72]), (F16, [9, 6, 48, 72])]
    {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(dtype, [batch, side, side, channels]), "x");
        let k = g.parameter(TensorType::new(dtype, [3, 3, channels, features]), "k");
        let b = g.parameter(TensorType::new(dtype, [features]), "b");
        let y = x.convolution(&k, Convolution::same(x.ty(), k.ty(), &[1, 1], &[1, 1], 1));
        let y = &y + (b * 10.0).broadcast_to(y.shape());
        let wide = y.convert(F32);
        let mean = wide.mean(&[0, 1, 2]);
        let centred = &wide - mean.broadcast_to(wide.shape());
        let variance = (&centred * &centred).mean(&[0, 1, 2]);
        let graph = g.finish(&[y, mean, variance]).unwrap();
        let args = arguments(&graph, -1.0, 1.0, 5);
        let want = oracle(&graph, &args);
        for of_level in &backends {
            let got = run_with(&of_level[0], &graph, &args, &options);
            let same = |more| got == run_with(more, &graph, &args, &options);
            assert!(
                of_level[1..].iter().all(same),
                "{batch} {side} {channels} {features} depends on threads"
            );
            for (got, want) in got.iter().zip(&want) {
                assert!(relative(got, want) <= 4e-3, "{side} {channels}: {:e}", relative(got, want));
            }
        }
    }
}

/// Approximations allowed in training are not used in strict mode: there an infinity stays where it is.
#[test]
fn infinities_stay_where_letters_count() {
    let graph = forward(
        F32,
        &[1, 8, 8, 16],
        &[3, 3, 16, 16],
        &Convolution::channels_last(&[1, 1], &[[1, 1]; 2], &[1, 1], 1, F32),
        false,
    )
    .unwrap();
    let mut x = vec![1f32; 8 * 8 * 16];
    x[0] = f32::INFINITY;
    let args = [
        Literal::from_slice([1, 8, 8, 16], &x).unwrap(),
        Literal::from_slice([3, 3, 16, 16], &[1f32; 9 * 16 * 16]).unwrap(),
    ];
    for level in levels() {
        let y = run(&backend(level, 1), &graph, &args)[0].to_f32s();
        for (p, of_pixel) in y.chunks(16).enumerate() {
            let sees = p / 8 < 2 && p % 8 < 2;
            assert!(of_pixel.iter().all(|v| !v.is_nan() && v.is_infinite() == sees), "{level:?} {p}");
        }
    }
}
