//! Tests of AMX, small-image and depthwise convolutions against plain loops.
//!
//! Operands are small integers, so results must be equal. Tests run on emulated tile registers on every machine, and on
//! the machine's own tile registers if it has them.

use crate::kernel::convolution::is_forward;
use crate::kernel::{Io, Kernel, KernelContext};
use crate::kernels::conv::amx::forward::AmxForward;
use crate::kernels::conv::amx::gradient::AmxKernelGradient;
use crate::kernels::conv::general::GeneralConvolution;
use crate::kernels::conv::{amx_images, depthwise};
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;
use crate::simd::amx;
use crate::simd::level::{CompileTarget, Level};
use systole_ir::op::Convolution;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, GraphBuilder, Literal, LiteralBuilder, Op, Scalar, TensorType, bf16, vjp};

/// A convolution, and the types of input, filter and result.
type Case = (Convolution, [TensorType; 3]);

/// Returns a bf16 layer, and the convolutions that are its two gradients.
fn cases(x: &[usize], k: &[usize], op: &Convolution) -> Vec<Case> {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::BF16, x), "x");
    let k = g.parameter(TensorType::new(DType::BF16, k), "k");
    let y = x.convolution(&k, op.clone());
    let dy = g.parameter(y.ty().clone(), "dy");
    let gradients = vjp(&[&y], &[&dy], &[&x, &k]);
    let graph = g.finish(&[vec![y], gradients].concat()).unwrap();
    let mut cases = Vec::new();
    for node in &graph.nodes {
        if let Op::Convolution(c) = &node.op {
            let [x, k] = [0, 1].map(|i| graph.ty(node.inputs[i]).clone());
            cases.push((c.clone(), [x, k, node.outs[0].clone()]));
        }
    }
    assert_eq!(cases.len(), 3);
    cases
}

fn whole_numbers(ty: &TensorType, s: &mut RandomStream) -> Vec<f32> {
    (0..ty.elements()).map(|_| s.below(9) as f32 - 4.0).collect()
}

fn literal(ty: &TensorType, values: &[f32]) -> Literal {
    let mut b = LiteralBuilder::new(ty.clone());
    values.iter().enumerate().for_each(|(i, &x)| b.set(i, Scalar::Float(x.into())));
    b.finish()
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::BF16 => {
            bytes.chunks(2).map(|b| bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32()).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
    }
}

/// Runs a kernel on arrays of bytes; returns its results.
fn run(kernel: &dyn Kernel, threads: usize, inputs: &[&Literal], results: &[&TensorType]) -> Vec<Vec<u8>> {
    let mut outputs: Vec<Vec<u8>> = results.iter().map(|t| vec![0; t.bytes()]).collect();
    let to: Vec<*mut u8> = outputs.iter_mut().map(|o| o.as_mut_ptr()).collect();
    let from: Vec<*const u8> = inputs.iter().map(|i| i.bytes().as_ptr()).collect();
    let scratch = AlignedMemory::new(kernel.scratch().max(64)).unwrap();
    let io = Io { inputs: &from, outputs: &to, scratch: scratch.ptr() };
    // SAFETY: all arrays have the sizes of the convolution.
    unsafe { kernel.run(&KernelContext { team: &ThreadPool::new(threads), flush: true }, &io).unwrap() };
    outputs
}

/// Returns the result of a convolution of integers, which is exact.
fn sums((c, [x, k, y]): &Case, a: &[f32], b: &[f32]) -> Vec<f32> {
    let wide = |t: &TensorType| t.with_dtype(DType::F32);
    let [x, k, y] = [wide(x), wide(k), wide(y)];
    let plain = GeneralConvolution::new(c, false, [&x, &k, &y]).expect("floats");
    numbers(DType::F32, &run(&plain, 1, &[&literal(&x, a), &literal(&k, b)], &[&y])[0])
}

fn target(level: Level) -> CompileTarget {
    CompileTarget { level, tensor_float_32: false, winograd: true, excess_precision: true, flush: true }
}

/// Emulated tile registers, and those of this machine.
fn units() -> impl Iterator<Item = &'static amx::AmxKernels> {
    std::iter::once(&amx::EMULATED).chain(amx::kernels_of(Level::best()))
}

/// Checks a convolution with bf16 and f32 results, with a bias and statistics if it supports them.
fn check(case: &Case, seed: u64, what: &str) {
    let mut s = RandomStream::new(seed, 2, 3);
    let (c, [x, k, y]) = case;
    let (a, b) = (whole_numbers(x, &mut s), whole_numbers(k, &mut s));
    let (la, lb) = (literal(x, &a), literal(k, &b));
    let features = y.shape[y.rank() - 1];
    let row = TensorType::new(DType::BF16, [features]);
    let bias = whole_numbers(&row, &mut s);
    let lbias = literal(&row, &bias);
    let sums = sums(case, &a, &b);
    let round = |x: f32| bf16::from_f32(x).to_f32();
    for (i, unit) in units().enumerate() {
        // Levels that pack in different ways; only one of them for emulated registers, which are slow.
        let levels: Vec<Level> =
            [Level::Portable, Level::Avx512].into_iter().filter(|l| l.is_available()).collect();
        let one = seed as usize % levels.len();
        for &level in if i == 0 { &levels[one..=one] } else { &levels[..] } {
            for dtype in [DType::BF16, DType::F32] {
                let y = y.with_dtype(dtype);
                let stored = |x: f32| if dtype == DType::BF16 { round(x) } else { x };
                let want: Vec<f32> = sums.iter().map(|&x| stored(x)).collect();
                let types = [x, k, &y];
                let same = |kernel: &dyn Kernel, inputs: &[&Literal], want: &[f32]| {
                    for threads in if i == 0 { 3..4 } else { 1..4 } {
                        let got = numbers(dtype, &run(kernel, threads, inputs, &[&y])[0]);
                        let differs = got.iter().zip(want).position(|(a, b)| a != b);
                        assert_eq!(differs, None, "{what}, {level:?}, {dtype}: an element differs");
                    }
                };
                let (t, spread) = (target(level), &unit.spread);
                if !is_forward(c) {
                    let lines = AmxKernelGradient::with(spread, c, types, t).expect("fits");
                    let images = amx_images::AmxImagesKernelGradient::with(spread, c, types, t);
                    same(&lines, &[&la, &lb], &want);
                    same(&images.expect("fits"), &[&la, &lb], &want);
                } else {
                    let biased = |(i, x): (usize, &f32)| stored(x + bias[i % features]);
                    let with_bias: Vec<f32> = want.iter().enumerate().map(biased).collect();
                    let lines = |bias| AmxForward::with(spread, c, bias, types, t).expect("fits");
                    let images =
                        |bias| amx_images::AmxImagesForward::with(spread, c, bias, types, t).expect("fits");
                    for bias in [false, true].into_iter().filter(|bias| !bias || dtype == DType::BF16) {
                        let inputs = if bias { &[&la, &lb, &lbias][..] } else { &[&la, &lb] };
                        let want = if bias { &with_bias } else { &want };
                        same(&lines(bias), inputs, want);
                        same(&images(bias), inputs, want);
                    }
                    if c.lhs_dilation.iter().all(|&d| d == 1) {
                        check_moments(&lines(false).with_statistics(t), [&la, &lb], &want, &y, what);
                        if let Ok(kernel) = images(false).with_statistics(t) {
                            check_moments(&kernel, [&la, &lb], &want, &y, what);
                        }
                    }
                }
            }
        }
    }
}

/// Checks for each image and feature the sum, and the sum of squared deviations from the mean.
fn check_moments(kernel: &dyn Kernel, inputs: [&Literal; 2], y: &[f32], ty: &TensorType, what: &str) {
    let (batch, features) = (ty.shape[0], ty.shape[ty.rank() - 1]);
    let rows = TensorType::new(DType::F32, [batch, features]);
    let got = run(kernel, 2, &inputs, &[ty, &rows, &rows]);
    let [sums, squares] = [1, 2].map(|i| numbers(DType::F32, &got[i]));
    for image in 0..batch {
        for f in 0..features {
            let own = &y[image * y.len() / batch..(image + 1) * y.len() / batch];
            let all: Vec<f64> = own.iter().skip(f).step_by(features).map(|&x| x.into()).collect();
            let (count, sum) = (all.len() as f64, all.iter().sum::<f64>());
            let square: f64 = all.iter().map(|x| (x - sum / count).powi(2)).sum();
            let size: f64 = all.iter().map(|x| x.abs()).sum();
            let at = image * features + f;
            assert!(
                (f64::from(sums[at]) - sum).abs() <= 4e-6 * size,
                "{what}: got {}, expected {sum}",
                sums[at]
            );
            assert!(
                (f64::from(squares[at]) - square).abs() <= 1e-5 * (square + sum * sum / count / 1e4),
                "{what}: got {}, expected {square}",
                squares[at]
            );
        }
    }
}

#[test]
fn tile_registers_compute_layers_and_their_gradients() {
    type Layer<'a> = (&'a [usize], &'a [usize], &'a [usize], &'a [[i64; 2]]);
    let layers: [Layer; 16] = [
        // Whole K chunks; lines of one, two and partial tiles; several images in a strip.
        (&[2, 16, 16, 32], &[3, 3, 32, 32], &[1, 1], &[[1, 1]; 2]),
        (&[9, 7, 7, 64], &[3, 3, 64, 48], &[1, 1], &[[1, 1]; 2]),
        (&[1, 19, 35, 32], &[3, 3, 32, 70], &[1, 1], &[[1, 1]; 2]),
        // Strides, of even and odd sizes; windows that reach beyond the input.
        (&[2, 14, 14, 32], &[3, 3, 32, 20], &[2, 2], &[[0, 1]; 2]),
        (&[1, 13, 31, 6], &[3, 3, 6, 70], &[2, 2], &[[1, 1]; 2]),
        (&[2, 23, 23, 3], &[7, 7, 3, 17], &[2, 2], &[[3, 3]; 2]),
        // No padding and lines of odd length; negative padding; wide filters.
        (&[2, 9, 9, 16], &[3, 3, 16, 16], &[1, 1], &[[0, 0]; 2]),
        (&[1, 12, 11, 40], &[3, 3, 40, 33], &[1, 1], &[[-1, 1], [2, -2]]),
        (&[1, 10, 10, 48], &[5, 5, 48, 10], &[1, 1], &[[2, 2]; 2]),
        // 1×1 filters, in place and with strides; slices of channels.
        (&[3, 7, 7, 64], &[1, 1, 64, 96], &[1, 1], &[[0, 0]; 2]),
        (&[2, 12, 12, 64], &[1, 1, 64, 40], &[2, 2], &[[0, 0]; 2]),
        (&[2, 4, 4, 1024], &[1, 1, 1024, 34], &[1, 1], &[[0, 0]; 2]),
        (&[1, 6, 5, 128], &[3, 3, 128, 260], &[1, 1], &[[1, 1]; 2]),
        // One and three dimensions, and a size of one everywhere.
        (&[2, 40, 32], &[5, 32, 24], &[1], &[[2, 2]]),
        (&[1, 5, 6, 7, 32], &[3, 3, 3, 32, 18], &[1, 1, 1], &[[1, 1]; 3]),
        (&[1, 1, 1, 1], &[1, 1, 1, 1], &[1, 1], &[[0, 0]; 2]),
    ];
    for (i, (x, k, strides, padding)) in layers.into_iter().enumerate() {
        let dilation = vec![1; strides.len()];
        let op = Convolution::channels_last(strides, padding, &dilation, 1, DType::BF16);
        for case in &cases(x, k, &op) {
            check(case, i as u64, &format!("{x:?} by {k:?}, strides {strides:?}, {:?}", case.1));
        }
    }
}

/// Images of 1×1 to 16×16 pixels, in batches that fill tiles or not, with windows, strides, dilations and paddings of every
/// kind: rows of tiles along lines and along images, strips of all rows and of some.
#[test]
fn tile_registers_compute_small_images() {
    // Batch, side, channels, features, window, stride, dilation, padding.
    for (i, [batch, side, channels, features, window, stride, dilation, padding]) in [
        [17, 1, 32, 20, 3, 1, 1, 1],
        [33, 2, 32, 48, 3, 1, 1, 1],
        [16, 4, 64, 32, 3, 1, 1, 1],
        [18, 4, 40, 33, 3, 2, 1, 1],
        [5, 4, 32, 16, 5, 1, 1, 2],
        [17, 2, 32, 32, 7, 1, 1, 3],
        [18, 5, 33, 17, 3, 1, 2, 2],
        [3, 8, 96, 40, 3, 1, 1, 0],
        [18, 13, 32, 70, 1, 1, 1, 0],
        [2, 8, 32, 32, 1, 2, 1, 0],
        [16, 7, 352, 16, 3, 2, 1, 1],
        [1, 16, 32, 32, 3, 1, 1, 1],
        [17, 4, 32, 16, 2, 3, 1, 2],
    ]
    .into_iter()
    .enumerate()
    {
        let (d, p) = (dilation, padding as i64);
        let op = Convolution::channels_last(&[stride; 2], &[[p, p]; 2], &[d; 2], 1, DType::BF16);
        let (x, k) = ([batch, side, side, channels], [window, window, channels, features]);
        for case in &cases(&x, &k, &op) {
            check(case, i as u64, &format!("{x:?} by {k:?}, strides {stride}, dilation {d}, {:?}", case.1));
        }
    }
}

#[test]
fn tile_registers_keep_to_the_letter_where_they_must() {
    let op = Convolution::channels_last(&[1, 1], &[[1, 1]; 2], &[1, 1], 1, DType::BF16);
    let exact = CompileTarget { winograd: false, ..target(Level::Portable) };
    for (channels, fits) in [(32, true), (24, false)] {
        for (c, [x, k, y]) in &cases(&[1, 8, 8, channels], &[3, 3, channels, channels], &op) {
            let types = [x, k, y];
            let forward = AmxForward::with(&amx::EMULATED.spread, c, false, types, exact);
            assert_eq!(forward.is_ok(), fits && is_forward(c));
            assert!(AmxKernelGradient::with(&amx::EMULATED.spread, c, types, exact).is_err());
        }
    }
}

/// One filter for each channel: few images and many, whole vectors of channels and parts of one, with borders, without,
/// and cropped; in f32 and narrow.
#[test]
fn depthwise_kernels_give_the_sums_of_plain_loops() {
    // Input, window, strides, padding, dilation.
    type Depthwise = ([usize; 4], [usize; 2], [usize; 2], [[i64; 2]; 2], usize);
    let shapes: &[Depthwise] = &[
        ([9, 7, 6, 16], [3, 3], [1, 1], [[1, 1], [1, 1]], 1),
        ([8, 9, 11, 40], [3, 3], [2, 2], [[0, 1], [0, 1]], 1),
        ([35, 5, 4, 37], [2, 3], [1, 2], [[1, 0], [2, 1]], 1),
        ([10, 9, 8, 24], [3, 2], [1, 1], [[-1, 2], [0, -2]], 2),
        ([10, 4, 5, 19], [1, 1], [1, 1], [[0, 0], [0, 0]], 1),
        ([10, 6, 5, 8], [2, 2], [1, 1], [[-1, 0], [0, 0]], 1),
        ([3, 20, 9, 33], [5, 5], [1, 1], [[2, 2], [2, 2]], 1),
    ];
    let levels = [Level::Portable, Level::Avx2, Level::Avx512];
    let mut met = [0, 0];
    for (seed, &(x, k, strides, padding, dilation)) in shapes.iter().enumerate() {
        let (channels, mut s) = (x[3], RandomStream::new(seed as u64, 5, 6));
        let x_type = TensorType::new(DType::BF16, x);
        let op = Convolution::channels_last(&strides, &padding, &[dilation; 2], channels, x_type.dtype);
        for (c, types) in cases(&x, &[k[0], k[1], 1, channels], &op) {
            let (a, b) = (whole_numbers(&types[0], &mut s), whole_numbers(&types[1], &mut s));
            let want = sums(&(c.clone(), types.clone()), &a, &b);
            for (dtype, level) in [DType::F32, DType::BF16].into_iter().flat_map(|d| levels.map(|l| (d, l))) {
                let [x, k, y] = &types.clone().map(|t| t.with_dtype(dtype));
                let target = target(level);
                let forward = depthwise::DepthwiseForward::new(&c, false, [x, k, y], target)
                    .map(|k| Box::new(k) as Box<dyn Kernel>);
                let gradient = depthwise::DepthwiseKernelGradient::new(&c, [x, k, y], target)
                    .map(|k| Box::new(k) as Box<dyn Kernel>);
                let (kernel, which) = match (forward, gradient) {
                    (Ok(kernel), _) => (kernel, 0),
                    (_, Ok(kernel)) => (kernel, 1),
                    (Err(_), _) => {
                        assert!(dtype == DType::BF16 && x.shape[0] < 8, "{seed}, {dtype}");
                        continue;
                    }
                };
                met[which] += 1;
                let round = |&x: &f32| if dtype == DType::BF16 { bf16::from_f32(x).to_f32() } else { x };
                let want: Vec<f32> = want.iter().map(round).collect();
                if level.is_available() {
                    let got = run(&*kernel, 1 + seed % 3, &[&literal(x, &a), &literal(k, &b)], &[y]);
                    assert_eq!(numbers(dtype, &got[0]), want, "{seed}, {dtype}, {level:?}");
                }
            }
        }
    }
    assert!(met[0] > 60 && met[1] > 30, "{met:?}");
}
