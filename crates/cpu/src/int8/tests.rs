//! Tests int8 kernels on every instruction set of this machine, and on emulated AMX, against scalar references.

use super::*;
use crate::machine::thread_pool::ThreadPool;
use systole_ir::rng::RandomStream;
use systole_tflite::{multiply_by_quantized_multiplier, quantize_multiplier};

fn units() -> Vec<Int8Isa> {
    Int8Isa::all().into_iter().chain([Int8Isa::emulated()]).collect()
}

fn bytes(stream: &mut RandomStream, n: usize) -> Vec<i8> {
    (0..n).map(|_| stream.next_u32() as i8).collect()
}

/// Scales with shifts from left to far right.
fn scale(stream: &mut RandomStream, n: usize, is_fixed: bool) -> OutputScale {
    let real = |stream: &mut RandomStream| {
        f64::from(stream.range(0.3, 1.0)) * 0.5f64.powi(stream.below(14) as i32 - 1)
    };
    match is_fixed {
        true => OutputScale::Fixed((0..n).map(|_| quantize_multiplier(real(stream))).collect()),
        false => OutputScale::Factor((0..n).map(|_| real(stream)).collect()),
    }
}

fn end(output: &OutputQuantization, column: usize, sum: i32) -> i8 {
    let of = |n: usize| if n == 1 { 0 } else { column };
    let y = match &output.scale {
        OutputScale::Fixed(all) => {
            let (m, shift) = all[of(all.len())];
            multiply_by_quantized_multiplier(sum, m, shift)
        }
        OutputScale::Factor(all) => (f64::from(sum) * all[of(all.len())]).round() as i32,
    };
    y.saturating_add(output.zero).max(output.low).min(output.high) as i8
}

#[test]
fn dense_layers_have_the_sums_of_the_definition() {
    let mut stream = RandomStream::new(5, 1, 0);
    // Rows, K, columns: one row, tails of tiles, K steps and panels, K shorter than a word.
    for (n, [m, k, columns]) in
        [[1, 1, 1], [3, 64, 32], [17, 65, 33], [32, 3, 16], [40, 130, 49], [2, 7, 70], [65, 128, 8]]
            .into_iter()
            .enumerate()
    {
        let (x, w) = (bytes(&mut stream, m * k), bytes(&mut stream, columns * k));
        let bias: Vec<i32> = (0..columns).map(|_| stream.below(4001) as i32 - 2000).collect();
        let zero = stream.below(256) as i32 - 128;
        let several = if n % 3 == 1 { 1 } else { columns };
        let output = OutputQuantization {
            bias: (n % 4 != 3).then_some(&bias[..]),
            scale: scale(&mut stream, several, n % 2 == 0),
            zero: stream.below(256) as i32 - 128,
            low: [-128, -100, -5][n % 3],
            high: [127, 90][n % 2],
        };
        let expected: Vec<i8> = (0..m * columns)
            .map(|at| {
                let (row, column) = (&x[at / columns * k..][..k], &w[at % columns * k..][..k]);
                let products = row.iter().zip(column).map(|(x, w)| (i32::from(*x) - zero) * i32::from(*w));
                let bias = output.bias.map_or(0, |b| b[at % columns]);
                end(&output, at % columns, products.sum::<i32>() + bias)
            })
            .collect();
        for unit in units() {
            let dense = Int8Matmul::dense(unit, &w, k, zero, &output).unwrap();
            for threads in [1, 3] {
                let mut y = vec![0; m * columns];
                dense.run(&ThreadPool::new(threads), &x, &mut y);
                assert!(y == expected, "{unit:?}, {m} rows, K {k}, {columns} columns, {threads} threads");
            }
        }
    }
}

/// Window geometry of one dimension, with padding.
fn along(
    size: usize,
    window: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    after: usize,
) -> Int8WindowDim {
    let positions = (size + before + after - (window - 1) * dilation - 1) / stride + 1;
    Int8WindowDim { size, window, stride, dilation, before, positions }
}

/// Reference sums of each window; pixels outside are the zero point.
fn windows(
    x: &[i8],
    [rows, columns]: [Int8WindowDim; 2],
    channels: usize,
    n: usize,
    mut sum: impl FnMut(usize, &dyn Fn(usize, usize, usize) -> Option<i8>) -> i8,
) -> Vec<i8> {
    let images = x.len() / (rows.size * columns.size * channels);
    let mut y = Vec::new();
    for image in 0..images {
        for (oy, ox) in (0..rows.positions).flat_map(|y| (0..columns.positions).map(move |x| (y, x))) {
            let at = |ky: usize, kx: usize, c: usize| {
                let (py, px) = rows.place(oy, ky).zip(columns.place(ox, kx))?;
                Some(x[((image * rows.size + py) * columns.size + px) * channels + c])
            };
            y.extend((0..n).map(|o| sum(o, &at)));
        }
    }
    y
}

#[test]
fn convolutions_have_the_sums_of_the_definition() {
    let mut stream = RandomStream::new(6, 1, 0);
    let cases = [
        // 1×1 convolutions; gathered windows with padding, strides and dilation; channels that fill whole K steps.
        ([along(5, 1, 1, 1, 0, 0), along(3, 1, 1, 1, 0, 0)], 9, 5),
        ([along(6, 3, 2, 1, 0, 1), along(5, 2, 1, 1, 1, 0)], 3, 35),
        ([along(7, 3, 1, 2, 2, 2), along(9, 2, 1, 3, 0, 0)], 5, 4),
        ([along(5, 3, 1, 1, 1, 1), along(12, 3, 1, 1, 1, 1)], 64, 7),
        ([along(4, 2, 1, 2, 0, 0), along(33, 3, 1, 1, 2, 0)], 128, 2),
        ([along(2, 7, 1, 1, 3, 3), along(3, 7, 1, 1, 3, 3)], 1, 6),
    ];
    for (n, (along, channels, columns)) in cases.into_iter().enumerate() {
        let [rows, line] = along;
        let k = rows.window * line.window * channels;
        let x = bytes(&mut stream, 2 * rows.size * line.size * channels);
        let w = bytes(&mut stream, columns * k);
        let zero = stream.below(256) as i32 - 128;
        let scale = scale(&mut stream, columns, true);
        let output = OutputQuantization {
            bias: None,
            scale,
            zero: 3,
            low: -128,
            high: if n % 2 == 0 { 127 } else { 40 },
        };
        let expected = windows(&x, along, channels, columns, |o, at| {
            let mut sum = 0;
            for (i, w) in w[o * k..(o + 1) * k].iter().enumerate() {
                let (tap, c) = (i / channels, i % channels);
                let x = at(tap / line.window, tap % line.window, c);
                sum += x.map_or(0, |x| i32::from(x) - zero) * i32::from(*w);
            }
            end(&output, o, sum)
        });
        for unit in units() {
            let layer = Int8Matmul::convolution(unit, &w, along, channels, zero, &output).unwrap();
            for threads in [1, 2] {
                let mut y = vec![0; expected.len()];
                layer.run(&ThreadPool::new(threads), &x, &mut y);
                assert!(y == expected, "{unit:?}, case {n}, {threads} threads");
            }
        }
    }
}

#[test]
fn channels_on_their_own_and_poolings_have_the_sums_of_the_definition() {
    let mut stream = RandomStream::new(7, 1, 0);
    let cases = [
        ([along(6, 3, 2, 1, 0, 1), along(5, 3, 1, 1, 1, 1)], 5),
        ([along(5, 2, 1, 1, 0, 0), along(7, 3, 2, 1, 1, 1)], 37),
        ([along(4, 4, 1, 1, 0, 0), along(3, 3, 1, 1, 0, 0)], 16),
        ([along(2, 2, 1, 1, 0, 0), along(39, 37, 2, 1, 0, 0)], 1),
    ];
    for (n, (along, channels)) in cases.into_iter().enumerate() {
        let [rows, line] = along;
        let (x, taps) = (bytes(&mut stream, 2 * rows.size * line.size * channels), rows.window * line.window);
        let w = bytes(&mut stream, taps * channels);
        let zero = stream.below(256) as i32 - 128;
        let bias: Vec<i32> = (0..channels).map(|_| stream.below(401) as i32 - 200).collect();
        let scale = scale(&mut stream, channels, n % 2 == 0);
        let output = OutputQuantization { bias: Some(&bias), scale, zero: -7, low: -90, high: 127 };
        let places = || (0..taps).map(|t| (t / line.window, t % line.window));
        let by_channel = windows(&x, along, channels, channels, |c, at| {
            let product = |(t, (ky, kx)): (usize, (usize, usize))| {
                at(ky, kx, c).map_or(0, |x| (i32::from(x) - zero) * i32::from(w[t * channels + c]))
            };
            end(&output, c, places().enumerate().map(product).sum::<i32>() + bias[c])
        });
        let all = |at: &dyn Fn(usize, usize, usize) -> Option<i8>, c: usize| -> Vec<i32> {
            places().filter_map(|(ky, kx)| at(ky, kx, c)).map(i32::from).collect()
        };
        let greatest = windows(&x, along, channels, channels, |c, at| {
            all(at, c).into_iter().max().unwrap().clamp(-20, 100) as i8
        });
        let mean = windows(&x, along, channels, channels, |c, at| {
            let all = all(at, c);
            let (sum, n) = (all.iter().sum::<i32>(), all.len() as i32);
            ((sum + if sum > 0 { n / 2 } else { -(n / 2) }) / n) as i8
        });
        let scaled = OutputQuantization {
            bias: None,
            scale: OutputScale::Fixed(vec![quantize_multiplier(0.07)]),
            ..output.clone()
        };
        let sum = windows(&x, along, channels, channels, |c, at| {
            end(&scaled, c, all(at, c).iter().sum::<i32>() - zero * taps as i32)
        });
        for unit in units() {
            let team = ThreadPool::new(2);
            let mut y = vec![0; by_channel.len()];
            Int8DepthwiseConv::new(unit, &w, along, channels, zero, &output).unwrap().run(&team, &x, &mut y);
            assert!(y == by_channel, "{unit:?}, case {n}");
            let mut pools = vec![(PoolMode::Max(-20, 100), &greatest), (PoolMode::Mean(-128, 127), &mean)];
            if rows.before + line.before == 0 {
                pools.push((PoolMode::Sum(zero, scaled.clone()), &sum));
            }
            for (pooling, expected) in pools {
                Int8Pool::new(unit, along, channels, &pooling).unwrap().run(&team, &x, &mut y);
                assert!(y == *expected, "{unit:?}, case {n}, {pooling:?}");
            }
        }
    }
}

#[test]
fn depthwise_windows_have_the_sums_of_the_definition() {
    let mut stream = RandomStream::new(11, 1, 0);
    let three = |size, stride, before, after| along(size, 3, stride, 1, before, after);
    let cases = [
        // Two result rows at once, and an odd last row; channels that fill one block, a part of one, or several.
        ([three(6, 1, 1, 1), three(9, 1, 1, 1)], 64),
        ([three(7, 1, 1, 1), three(5, 1, 1, 1)], 130),
        ([three(3, 1, 0, 0), three(11, 1, 0, 0)], 32),
        ([three(5, 1, 1, 0), three(7, 1, 0, 1)], 16),
        ([three(1, 1, 1, 1), three(1, 1, 1, 1)], 32),
        // Strides and dilations.
        ([three(9, 2, 0, 1), three(8, 2, 0, 1)], 64),
        ([three(7, 2, 1, 1), three(9, 3, 1, 1)], 33),
        ([along(9, 3, 1, 2, 2, 2), along(11, 3, 1, 3, 3, 3)], 48),
        ([along(8, 2, 1, 1, 0, 1), along(7, 3, 1, 2, 2, 2)], 32),
        // Windows with more rows than a vector holds, of one row, of one column, and padding wider than the image.
        ([along(9, 5, 1, 1, 2, 2), along(8, 5, 1, 1, 2, 2)], 16),
        ([along(11, 7, 2, 1, 3, 3), along(9, 7, 2, 1, 3, 3)], 66),
        ([along(4, 1, 1, 1, 0, 0), along(13, 5, 1, 1, 4, 0)], 7),
        ([along(9, 4, 1, 1, 1, 2), along(5, 1, 1, 1, 0, 0)], 65),
        ([along(2, 3, 1, 1, 2, 3), along(2, 3, 1, 1, 5, 4)], 3),
    ];
    for (n, (along, channels)) in cases.into_iter().enumerate() {
        let [rows, line] = along;
        let (x, taps) = (bytes(&mut stream, 2 * rows.size * line.size * channels), rows.window * line.window);
        let w = bytes(&mut stream, taps * channels);
        let zero = [-128, 127, 5][n % 3];
        let bias: Vec<i32> = (0..channels).map(|_| stream.below(4001) as i32 - 2000).collect();
        let (low, y_zero) = [(-128, -128), (-128, 9), (-90, -7)][n % 3];
        let scale = scale(&mut stream, channels, n % 4 != 0);
        let output = OutputQuantization { bias: Some(&bias), scale, zero: y_zero, low, high: 127 };
        let expected = windows(&x, along, channels, channels, |c, at| {
            let product = |t: usize| {
                let x = at(t / line.window, t % line.window, c).map_or(0, |x| i32::from(x) - zero);
                x * i32::from(w[t * channels + c])
            };
            end(&output, c, (0..taps).map(product).sum::<i32>() + bias[c])
        });
        for unit in units() {
            let layer = Int8DepthwiseConv::new(unit, &w, along, channels, zero, &output).unwrap();
            for threads in [1, 3] {
                let mut y = vec![0; expected.len()];
                layer.run(&ThreadPool::new(threads), &x, &mut y);
                assert!(y == expected, "{unit:?}, case {n}, {threads} threads");
            }
        }
    }
}

#[test]
fn sums_and_tables_are_taken_element_by_element() {
    let mut stream = RandomStream::new(8, 1, 0);
    let (a, b) = (bytes(&mut stream, 3001), bytes(&mut stream, 3001));
    let factors = [0.5, 0.31, 0.9 / f64::from(1 << 19)].map(quantize_multiplier);
    let (zeros, team) = ([-3, 100], ThreadPool::new(2));
    for is_difference in [false, true] {
        let sum =
            Int8Add::new(zeros, [factors[0], factors[1]], is_difference, factors[2], (5, -128, 100)).unwrap();
        let expected = a.iter().zip(&b).map(|(a, b)| {
            let one = |q: i8, i: usize| {
                multiply_by_quantized_multiplier((i32::from(q) - zeros[i]) << 20, factors[i].0, factors[i].1)
            };
            let both = if is_difference { one(*a, 0) - one(*b, 1) } else { one(*a, 0) + one(*b, 1) };
            (multiply_by_quantized_multiplier(both, factors[2].0, factors[2].1) + 5).clamp(-128, 100) as i8
        });
        let expected: Vec<i8> = expected.collect();
        for unit in units() {
            let mut y = vec![0; a.len()];
            sum.run(unit, &team, &a, &b, &mut y);
            assert!(y == expected, "{unit:?}");
        }
    }
    // All pairs of int8 values: scales with halves on both sides of zero, a factor too large for a formula, random
    // ones.
    let all: [Vec<i8>; 2] =
        [|i: u32| (i >> 8) as i8, |i: u32| i as i8].map(|of| (0..1 << 16).map(of).collect());
    let mut shorter = 0;
    for n in 0..12 {
        let part = 0.5f64.powi(20);
        let mut real = || f64::from(stream.range(0.1, 0.99));
        let own = match n {
            0 => [0.5, 0.5, part],
            1 => [0.9, 0.8, 0.9],
            _ => [real(), real(), real() * 1.9 * part],
        };
        let factors = own.map(quantize_multiplier);
        let zeros = if n == 0 { [0, 0] } else { [(); 2].map(|()| stream.below(256) as i32 - 128) };
        let (zero, low) =
            if n == 0 { (0, -128) } else { (stream.below(100) as i32 - 50, -128 + 40 * (n % 3)) };
        let sum =
            Int8Add::new(zeros, [factors[0], factors[1]], n % 4 == 3, factors[2], (zero, low, 127)).unwrap();
        assert!(n != 1 || !sum.is_linear());
        shorter += u32::from(sum.is_linear());
        let one = |q: i8, i: usize| {
            multiply_by_quantized_multiplier((i32::from(q) - zeros[i]) << 20, factors[i].0, factors[i].1)
        };
        let expected: Vec<i8> = (all[0].iter().zip(&all[1]))
            .map(|(a, b)| {
                let both = if n % 4 == 3 { one(*a, 0) - one(*b, 1) } else { one(*a, 0) + one(*b, 1) };
                (multiply_by_quantized_multiplier(both, factors[2].0, factors[2].1) + zero).clamp(low, 127)
                    as i8
            })
            .collect();
        for unit in units() {
            let mut y = vec![0; 1 << 16];
            sum.run(unit, &team, &all[0], &all[1], &mut y);
            assert!(y == expected, "{unit:?}, case {n}, linear: {}", sum.is_linear());
        }
    }
    assert!(shorter >= 6, "{shorter} of 11 sums have a formula");
    let entries: Vec<i8> = (0..65536u32).map(|i| (i.wrapping_mul(40503) >> 7) as i8).collect();
    let at = |q: i8| (i32::from(q) + 128) as usize;
    let mut y = vec![0; a.len()];
    table(&team, entries[..256].try_into().unwrap(), &a, &mut y);
    assert!(y.iter().zip(&a).all(|(y, a)| *y == entries[at(*a)]));
}

/// Returns the table of `f` over all pairs, in table order.
fn of_all(f: impl Fn(i32, i32) -> i32) -> Box<[i8; 65536]> {
    let all = (-128..128).flat_map(|a| (-128..128).map(move |b| (a, b)));
    let all: Vec<i8> = all.map(|(a, b)| f(a, b).clamp(-128, 127) as i8).collect();
    all.into_boxed_slice().try_into().unwrap()
}

#[test]
fn functions_of_pairs_are_those_of_their_tables() {
    let team = ThreadPool::new(2);
    let scaled = |x: i32, by: (i32, i32)| multiply_by_quantized_multiplier(x, by.0, by.1);
    let (m, wide) = ((1_518_500_250, -6), (1_234_567_890, -9));
    let functions: [(&str, Box<[i8; 65536]>, FormulaHint, bool); 8] = [
        ("least", of_all(i32::min), FormulaHint::Least, true),
        ("greatest", of_all(i32::max), FormulaHint::Greatest, true),
        (
            "sum",
            of_all(|a, b| (f64::from(3 * a - 5 * b) / 7.3 + 2.6).floor() as i32),
            FormulaHint::Sum([3.0 / 7.3, -5.0 / 7.3]),
            true,
        ),
        (
            "product",
            of_all(|a, b| scaled((a + 3) * (b - 128), m) - 4),
            FormulaHint::Product([-3, 128], m, -4),
            true,
        ),
        (
            "square",
            of_all(|a, b| scaled((a - 11) * (b - 11), wide) - 128),
            FormulaHint::Product([11, 11], wide, -128),
            true,
        ),
        // A wrong hint is rejected.
        (
            "not a minimum",
            of_all(|a, b| if (a, b) == (7, -9) { 0 } else { a.min(b) }),
            FormulaHint::Least,
            false,
        ),
        ("not a product", of_all(|a, b| a * b / 100), FormulaHint::Product([1, 0], m, 0), false),
        ("other", of_all(|a, b| a ^ b), FormulaHint::Other, false),
    ];
    let mut s = RandomStream::new(7, 8, 9);
    let [a, b] = [0, 1].map(|_| bytes(&mut s, 40_007));
    let at = |q: i8| (i32::from(q) + 128) as usize;
    for unit in units() {
        for (name, entries, likely, is_formula) in &functions {
            let pairs = BinaryLut::new(unit, entries.clone(), *likely);
            let by_line = matches!(likely, FormulaHint::Product(..)) && !unit.rounds_downwards();
            assert_eq!(pairs.is_formula(), *is_formula && !by_line, "{name} on {unit:?}");
            // Repeated operands, one element for many, few of both; parallel blocks start inside each.
            for (others, inner) in
                [(40_007, 1), (1000, 1), (1, 1), (3, 1), (57, 33), (10, 3), (5, 40_000), (1, 17)]
            {
                let mut y = vec![0; a.len()];
                pairs.run(&team, &a, &b[..others], inner, &mut y);
                let right = |(i, y): (usize, &i8)| *y == entries[at(a[i]) * 256 + at(b[i / inner % others])];
                assert!(
                    y.iter().enumerate().all(right),
                    "{name} on {unit:?}, {others} others, each for {inner}"
                );
            }
        }
    }
}

#[test]
fn what_could_leave_32_bits_is_refused() {
    let output = |scale, bias| OutputQuantization { bias, scale, zero: 0, low: -128, high: 127 };
    let unit = Int8Isa::of(crate::Level::Portable);
    let dense =
        |w: &[i8], output: &OutputQuantization| Int8Matmul::dense(unit, w, w.len(), 0, output).is_some();
    let (one, far) = (OutputScale::Fixed(vec![(1 << 30, 1)]), OutputScale::Fixed(vec![(1 << 30, 20)]));
    assert!(dense(&[1; 100], &output(one.clone(), None)));
    assert!(!dense(&[1; 100], &output(one.clone(), Some(&[i32::MAX]))));
    assert!(!dense(&[1; 100], &output(one.clone(), Some(&[0, 0]))));
    assert!(!dense(&[1; 100], &output(far, None)));
    assert!(!dense(&[1; 100], &output(OutputScale::Fixed(vec![(-5, 0)]), None)));
    assert!(!dense(&[1; 100], &output(OutputScale::Factor(vec![f64::NAN]), None)));
    assert!(!dense(&[1; 100], &output(OutputScale::Factor(vec![1e9]), None)));
    assert!(!dense(&[], &output(one.clone(), None)));
    assert!(Int8Matmul::dense(unit, &[1; 10], 10, 300, &output(one, None)).is_none());
}

/// Collects the blocks that an int8 product passes to its epilogue.
fn sums_of(
    gemm: &matmul::Int8Gemm,
    w: &[i8],
    strides: [usize; 2],
    x: &[i8],
    shape: [usize; 2],
    threads: usize,
) -> Vec<i32> {
    let mut panels = vec![0u8; gemm.packed_bytes() + 64];
    let aligned = panels.as_mut_ptr().wrapping_add(panels.as_ptr().align_offset(64));
    let y = std::sync::Mutex::new(vec![None; shape[0] * shape[1]]);
    let take = |block: &crate::kernel::OutputBlock, sums: *const u8| {
        let mut y = y.lock().unwrap();
        for (row, column) in (0..block.rows).flat_map(|r| (0..block.columns).map(move |c| (r, c))) {
            // SAFETY: the block has these rows and columns.
            let sum = unsafe { *sums.cast::<i32>().add(row * block.stride + column) };
            let before = y[block.first + row * block.row + column].replace(sum);
            assert!(before.is_none(), "row {row}, column {column} is computed twice");
        }
    };
    let team = ThreadPool::new(threads);
    let cx = crate::kernel::KernelContext { team: &team, flush: false };
    // SAFETY: the buffer has room for the panels; the weights have these strides.
    unsafe {
        gemm.pack(w.as_ptr(), strides, aligned);
        gemm.run(&cx, x, aligned, &take);
    }
    y.into_inner().unwrap().into_iter().map(|sum| sum.expect("an element is missing")).collect()
}

#[test]
fn sums_are_passed_to_an_epilogue_once() {
    let mut stream = RandomStream::new(8, 1, 0);
    let cases = [
        ([along(5, 1, 1, 1, 0, 0), along(3, 1, 1, 1, 0, 0)], 9, 5),
        ([along(6, 3, 2, 1, 0, 1), along(5, 2, 1, 1, 1, 0)], 3, 35),
        ([along(5, 3, 1, 1, 1, 1), along(12, 3, 1, 1, 1, 1)], 64, 7),
        ([along(20, 3, 1, 1, 1, 1), along(17, 3, 1, 1, 1, 1)], 64, 130),
        ([along(4, 2, 1, 2, 0, 0), along(33, 3, 1, 1, 2, 0)], 128, 2),
    ];
    for (n, (along, channels, columns)) in cases.into_iter().enumerate() {
        let [rows, line] = along;
        let k = rows.window * line.window * channels;
        let x = bytes(&mut stream, 2 * rows.size * line.size * channels);
        // Weights [N, K] or [K, N].
        let strides = if n % 2 == 0 { [k, 1] } else { [1, columns] };
        let w = bytes(&mut stream, columns * k);
        let zero = stream.below(256) as i32 - 128;
        let images = 2 * rows.positions * line.positions;
        let mut expected = Vec::new();
        windows(&x, along, channels, columns, |o, at| {
            let term = |i: usize| {
                let (tap, c) = (i / channels, i % channels);
                let x = at(tap / line.window, tap % line.window, c).unwrap_or(zero as i8);
                i32::from(x) * i32::from(w[o * strides[0] + i * strides[1]])
            };
            expected.push((0..k).map(term).sum::<i32>());
            0
        });
        for unit in units() {
            let gemm = matmul::Int8Gemm::convolution(unit, along, channels, zero as i8, columns).unwrap();
            for threads in [1, 3] {
                let got = sums_of(&gemm, &w, strides, &x, [images, columns], threads);
                assert!(got == expected, "{unit:?}, case {n}, {threads} threads");
            }
        }
    }
}
