//! Tests of FFTs, matrix decompositions and triangular solves: NumPy's values, defining properties, and invalid input.

use systole_base::{ErrorKind, Literal};
use systole_ir::interp;
use systole_mlir::{import, read_text, text};

/// Returns the results of a program as f32.
#[track_caller]
fn results(program: &str, arguments: &[&Literal]) -> Vec<Vec<f32>> {
    let read = read_text(program).unwrap_or_else(|e| panic!("{program}\n{e}"));
    let results = interp::run(&read.graph, arguments).unwrap_or_else(|e| panic!("{program}\n{e}"));
    results.iter().map(Literal::to_f32s).collect()
}

#[track_caller]
fn close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= tolerance * y.abs().max(1.0), "element {i} is {x}, not {y}");
    }
}

/// Returns pseudo-random numbers between −1 and 1.
fn numbers(n: usize, mut seed: u32) -> Vec<f32> {
    let next = |_| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

fn fft(kind: &str, from: &str, length: &str, to: &str) -> String {
    format!(
        "func.func @main(%x: tensor<{from}>) -> tensor<{to}> {{
           %r = stablehlo.fft %x, type = {kind}, length = [{length}] : (tensor<{from}>) -> tensor<{to}>
           return %r : tensor<{to}>
         }}"
    )
}

#[test]
fn transforms_of_small_arrays_are_those_of_numpy() {
    let array = |shape: &[usize], data: &[f32]| Literal::from_slice(shape, data).unwrap();
    let (re, im) = ([-1.5f32, -0.5, 0.5, 1.5, 2.5], [6.25f32, 2.25, 0.25, 0.25, 2.25]);
    let of = |kind: &str, x: &[&Literal]| results(&fft(kind, "5xcomplex<f32>", "5", "5xcomplex<f32>"), x);
    let made = of("FFT", &[&array(&[5], &re), &array(&[5], &im)]);
    let expected = [11.25, 10.67702, 3.576231, 1.951633, 3.795113];
    close(&made[0], &[2.5, -2.5, -2.5, -2.5, -2.5], 1e-5);
    close(&made[1], &expected, 1e-5);
    let back = of("IFFT", &[&array(&[5], &made[0]), &array(&[5], &made[1])]);
    close(&back[0], &re, 1e-5);
    close(&back[1], &im, 1e-5);
    let real =
        results(&fft("RFFT", "6xf32", "6", "4xcomplex<f32>"), &[&array(&[6], &[1., 2., -1., 0.5, 3., -2.])]);
    close(&real[0], &[3.5, -0.5, 0.5, 2.5], 1e-5);
    close(&real[1], &[0.0, 0.0, -6.928203, 0.0], 1e-5);
    let inverse = fft("IRFFT", "3xcomplex<f32>", "5", "5xf32");
    let made = results(&inverse, &[&array(&[3], &[1.0, 2.0, 0.5]), &array(&[3], &[0.0, -1.0, 3.0])]);
    close(&made[0], &[1.2, -0.0395095, 0.9909717, -1.761792, 0.6103299], 1e-5);
}

/// One product, two, three, a prime by products and one by convolution, against the defining sums in f64.
#[test]
fn transforms_of_every_kind_of_length_are_sums_of_roots() {
    for n in [1usize, 2, 30, 64, 96, 127, 263, 1050] {
        let (re, im) = (numbers(n, 1), numbers(n, 2));
        let program = fft("FFT", &format!("{n}xcomplex<f32>"), &n.to_string(), &format!("{n}xcomplex<f32>"));
        let array = |x: &[f32]| Literal::from_slice([n], x).unwrap();
        let made = results(&program, &[&array(&re), &array(&im)]);
        for k in [0, 1, n / 3, n - 1] {
            let sum = (0..n).fold((0.0, 0.0), |(a, b), j| {
                let (s, c) = (-2.0 * std::f64::consts::PI * (j * k % n) as f64 / n as f64).sin_cos();
                let (x, y) = (f64::from(re[j]), f64::from(im[j]));
                (a + x * c - y * s, b + x * s + y * c)
            });
            let tolerance = 2e-6 * (n as f32).sqrt() * 4.0;
            close(&[made[0][k % n], made[1][k % n]], &[sum.0 as f32, sum.1 as f32], tolerance);
        }
    }
}

/// For the CPU engine, transforms are calls; lengths with large prime factors are convolutions by transforms.
#[test]
fn calls_of_the_cpu_engine_agree_with_matrix_products() {
    for (n, is_called) in
        [(1usize, true), (2, true), (30, true), (61, true), (67, false), (127, false), (526, false)]
    {
        let half = n / 2 + 1;
        let (complex, real) = (format!("3x{n}xcomplex<f32>"), format!("3x{n}xf32"));
        let spectrum = format!("3x{half}xcomplex<f32>");
        let kinds = [
            ("FFT", &complex, n, &complex),
            ("IFFT", &complex, n, &complex),
            ("RFFT", &real, n, &spectrum),
            ("IRFFT", &spectrum, half, &real),
        ];
        for (kind, from, len, to) in kinds {
            let module = text::parse(&fft(kind, from, &n.to_string(), to)).unwrap();
            let programs =
                [import::program(&module), import::on_devices(&module, &[])].map(|p| p.unwrap().program);
            let calls = programs[1].graph.nodes.iter().filter(|n| n.op.name() == "custom_call").count();
            assert_eq!(calls, if is_called { 1 } else { usize::from(n > 256) * 2 }, "{kind} {n}");
            let args = [1, 2].map(|k| Literal::from_slice([3, len], &numbers(3 * len, k)).unwrap());
            let args: Vec<&Literal> = args.iter().take(if kind == "RFFT" { 1 } else { 2 }).collect();
            let [products, own] = programs.map(|p| interp::run(&p.graph, &args).unwrap());
            for (a, b) in own.iter().zip(&products) {
                close(&a.to_f32s(), &b.to_f32s(), 1e-5 * (n as f32).sqrt());
            }
        }
    }
}

/// A long transform of an inner dimension is one of the last dimension, between two transposes.
#[test]
fn long_inner_dimensions_are_transposed() {
    let ty = "32768x2xcomplex<f32>";
    let module = text::parse(&fft("FFT", ty, "32768, 2", ty)).unwrap();
    let graph = import::on_devices(&module, &[]).unwrap().program.graph;
    let configs = graph.nodes.iter().filter_map(|n| match &n.op {
        systole_ir::Op::CustomCall(c) => Some(c.config.clone()),
        _ => None,
    });
    assert_eq!(configs.collect::<Vec<_>>(), ["FFT dim=1 length=2", "FFT dim=1 length=32768"]);
}

#[test]
fn cholesky_of_a_hermitian_matrix_is_that_of_numpy() {
    let program = "func.func @main() -> tensor<2x2xcomplex<f32>> {
        %a = stablehlo.constant dense<[[(4.0, 0.0), (1.0, 2.0)], [(1.0, -2.0), (6.0, 0.0)]]> : tensor<2x2xcomplex<f32>>
        %r = stablehlo.cholesky %a, lower = true : tensor<2x2xcomplex<f32>>
        return %r : tensor<2x2xcomplex<f32>>
    }";
    let made = results(program, &[]);
    close(&made[0], &[2.0, 0.0, 0.5, 2.179449], 1e-6);
    close(&made[1], &[0.0, 0.0, -1.0, 0.0], 1e-6);
}

/// Multiplies n × n matrices.
fn product(a: &[f32], b: &[f32], n: usize) -> Vec<f32> {
    let one =
        |i: usize, j: usize| (0..n).map(|k| f64::from(a[i * n + k]) * f64::from(b[k * n + j])).sum::<f64>();
    (0..n * n).map(|p| one(p / n, p % n) as f32).collect()
}

fn turned(a: &[f32], n: usize) -> Vec<f32> {
    (0..n * n).map(|p| a[p % n * n + p / n]).collect()
}

#[test]
fn cholesky_times_its_transpose_is_the_matrix() {
    for n in [1usize, 3, 32, 41] {
        let x = numbers(n * n, 3);
        let mut a = product(&x, &turned(&x, n), n);
        (0..n).for_each(|i| a[i * n + i] += 1.0);
        for lower in [true, false] {
            let program = format!(
                "func.func @main(%a: tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32> {{
                   %r = stablehlo.cholesky %a, lower = {lower} : tensor<{n}x{n}xf32>
                   return %r : tensor<{n}x{n}xf32>
                 }}"
            );
            // The other triangle is not read.
            let mut half = a.clone();
            (0..n * n)
                .filter(|p| (p / n < p % n) == lower && p / n != p % n)
                .for_each(|p| half[p] = f32::NAN);
            let made = results(&program, &[&Literal::from_slice([n, n], &half).unwrap()]).remove(0);
            let l = if lower { made } else { turned(&made, n) };
            close(&product(&l, &turned(&l, n), n), &a, 2e-4);
        }
    }
}

#[test]
fn what_is_not_positive_definite_has_no_root() {
    // An indefinite, a singular and a valid matrix.
    let program = "func.func @main() -> tensor<3x2x2xf32> {
        %a = stablehlo.constant dense<[[[1.0, 2.0], [2.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 2.0]]]> : tensor<3x2x2xf32>
        %r = stablehlo.cholesky %a, lower = true : tensor<3x2x2xf32>
        return %r : tensor<3x2x2xf32>
    }";
    let made = results(program, &[]).remove(0);
    assert!(made[..8].iter().all(|v| v.is_nan()), "{made:?}");
    assert_eq!(made[8..], [1.0, 0.0, 1.0, 1.0]);
}

#[test]
fn triangular_systems_of_every_kind_are_solved() {
    for (n, columns) in [(3usize, 2usize), (34, 1)] {
        for case in (0..24).step_by(if n == 3 { 1 } else { 7 }) {
            let (left, lower, unit) = (case & 1 == 1, case & 2 == 2, case & 4 == 4);
            let transpose = ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"][case / 8];
            let mut a: Vec<f32> = numbers(n * n, 4).iter().map(|x| x / n as f32).collect();
            (0..n).for_each(|i| a[i * n + i] = if unit { f32::NAN } else { 2.0 });
            (0..n * n).filter(|p| (p / n < p % n) == lower && p / n != p % n).for_each(|p| a[p] = f32::NAN);
            let (rows, width) = if left { (n, columns) } else { (columns, n) };
            let b = numbers(rows * width, 5);
            let program = format!(
                "func.func @main(%a: tensor<{n}x{n}xf32>, %b: tensor<{rows}x{width}xf32>) -> tensor<{rows}x{width}xf32> {{
                   %r = \"stablehlo.triangular_solve\"(%a, %b) <{{left_side = {left}, lower = {lower},
                     unit_diagonal = {unit}, transpose_a = #stablehlo<transpose {transpose}>}}> :
                     (tensor<{n}x{n}xf32>, tensor<{rows}x{width}xf32>) -> tensor<{rows}x{width}xf32>
                   return %r : tensor<{rows}x{width}xf32>
                 }}"
            );
            let arrays =
                [Literal::from_slice([n, n], &a).unwrap(), Literal::from_slice([rows, width], &b).unwrap()];
            let x = results(&program, &[&arrays[0], &arrays[1]]).remove(0);
            let element = |i: usize, j: usize| {
                let (i, j) = if transpose == "NO_TRANSPOSE" { (i, j) } else { (j, i) };
                match (i == j, (i > j) == lower) {
                    (true, _) => {
                        if unit {
                            1.0
                        } else {
                            f64::from(a[i * n + j])
                        }
                    }
                    (_, true) => f64::from(a[i * n + j]),
                    _ => 0.0,
                }
            };
            let at = |i: usize, j: usize| match left {
                true => (0..n).map(|k| element(i, k) * f64::from(x[k * width + j])).sum::<f64>(),
                false => (0..n).map(|k| f64::from(x[i * width + k]) * element(k, j)).sum::<f64>(),
            };
            let back: Vec<f32> = (0..rows * width).map(|p| at(p / width, p % width) as f32).collect();
            close(&back, &b, 1e-5);
        }
    }
}

#[test]
fn complex_systems_are_those_of_numpy() {
    let program = "func.func @main() -> tensor<2x2xcomplex<f32>> {
        %a = stablehlo.constant dense<[[(2.0, 0.0), (0.0, 0.0)], [(1.0, 1.0), (3.0, 0.0)]]> : tensor<2x2xcomplex<f32>>
        %b = stablehlo.constant dense<[[(1.0, 0.0), (2.0, 0.0)], [(3.0, 0.0), (0.0, 4.0)]]> : tensor<2x2xcomplex<f32>>
        %r = \"stablehlo.triangular_solve\"(%a, %b) <{left_side = LEFT, lower = true, unit_diagonal = false,
          transpose_a = #stablehlo<transpose KIND>}> :
          (tensor<2x2xcomplex<f32>>, tensor<2x2xcomplex<f32>>) -> tensor<2x2xcomplex<f32>>
        return %r : tensor<2x2xcomplex<f32>>
    }";
    let made = results(&program.replace("LEFT", "true").replace("KIND", "ADJOINT"), &[]);
    close(&made[0], &[0.0, 0.3333333, 1.0, 0.0], 1e-6);
    close(&made[1], &[0.5, -0.6666667, 0.0, 1.333333], 1e-6);
    let made = results(&program.replace("LEFT", "false").replace("KIND", "NO_TRANSPOSE"), &[]);
    close(&made[0], &[0.1666667, 0.6666667, 2.166667, 0.0], 1e-6);
    close(&made[1], &[-0.3333333, 0.0, -0.6666667, 1.333333], 1e-6);
}

/// Q · R is the matrix, Q has orthonormal columns, and R's diagonal has LAPACK's signs.
#[test]
fn reflectors_make_q_and_r() {
    for n in [1usize, 2, 31, 41] {
        let program = format!(
            "func.func @main(%a: tensor<{n}x{n}xf32>) -> (tensor<{n}x{n}xf32>, tensor<{n}x{n}xf32>) {{
               %0:2 = stablehlo.custom_call @Qr(%a) : (tensor<{n}x{n}xf32>) -> (tensor<{n}x{n}xf32>, tensor<{n}xf32>)
               %1 = stablehlo.custom_call @ProductOfElementaryHouseholderReflectors(%0#0, %0#1) : (tensor<{n}x{n}xf32>, tensor<{n}xf32>) -> tensor<{n}x{n}xf32>
               return %0#0, %1 : tensor<{n}x{n}xf32>, tensor<{n}x{n}xf32>
             }}"
        );
        let a = numbers(n * n, 6);
        let made = results(&program, &[&Literal::from_slice([n, n], &a).unwrap()]);
        let r: Vec<f32> = (0..n * n).map(|p| if p / n > p % n { 0.0 } else { made[0][p] }).collect();
        close(&product(&made[1], &r, n), &a, 2e-5);
        let unit: Vec<f32> = (0..n * n).map(|p| if p / n == p % n { 1.0 } else { 0.0 }).collect();
        close(&product(&turned(&made[1], n), &made[1], n), &unit, 2e-5);
        assert!(n == 1 || r[0] * a[0] < 0.0);
    }
}

/// The permuted rows equal L · U, no factor is larger than one, and the pivots give the permutation.
#[test]
fn exchanged_rows_are_l_times_u() {
    for (m, n) in [(1usize, 1usize), (3, 3), (5, 2), (2, 5), (41, 41), (70, 35), (35, 70)] {
        let least = m.min(n);
        let types = format!("tensor<{m}x{n}xf32>, tensor<{least}xi32>, tensor<{m}xi32>");
        let program = format!(
            "func.func @main(%a: tensor<{m}x{n}xf32>) -> ({types}) {{
               %0:3 = stablehlo.custom_call @LuDecomposition(%a) : (tensor<{m}x{n}xf32>) -> ({types})
               return %0#0, %0#1, %0#2 : {types}
             }}"
        );
        let a = numbers(m * n, 9);
        let made = results(&program, &[&Literal::from_slice([m, n], &a).unwrap()]);
        let (whole, pivots, order) = (&made[0], &made[1], &made[2]);
        let mut expected: Vec<f32> = (0..m).map(|i| i as f32).collect();
        (0..least).for_each(|i| expected.swap(i, pivots[i] as usize));
        assert_eq!(*order, expected);
        let factor = &|i: usize, k: usize| if i == k { 1.0 } else { whole[i * n + k] };
        assert!((0..m * least).all(|p| p / least <= p % least || factor(p / least, p % least).abs() <= 1.0));
        let at =
            |i: usize, j: usize| (0..=i.min(j).min(least - 1)).map(move |k| factor(i, k) * whole[k * n + j]);
        let back: Vec<f32> = (0..m * n).map(|p| at(p / n, p % n).sum()).collect();
        let turned: Vec<f32> = (0..m * n).map(|p| a[order[p / n] as usize * n + p % n]).collect();
        close(&back, &turned, 2e-5);
    }
}

/// A zero column is skipped, stacked matrices have their own permutations, and numbers may be complex.
#[test]
fn factors_of_singular_stacked_and_complex_matrices() {
    let program = "func.func @main() -> (tensor<2x2x2xcomplex<f32>>, tensor<2x2xi32>, tensor<2x2xi32>) {
        %a = stablehlo.constant dense<[[[(0.0, 0.0), (1.0, 0.0)], [(0.0, 0.0), (2.0, 0.0)]],
                                       [[(1.0, 0.0), (3.0, 0.0)], [(0.0, 2.0), (4.0, 0.0)]]]> : tensor<2x2x2xcomplex<f32>>
        %0:3 = stablehlo.custom_call @LuDecomposition(%a) : (tensor<2x2x2xcomplex<f32>>) -> (tensor<2x2x2xcomplex<f32>>, tensor<2x2xi32>, tensor<2x2xi32>)
        return %0#0, %0#1, %0#2 : tensor<2x2x2xcomplex<f32>>, tensor<2x2xi32>, tensor<2x2xi32>
    }";
    let made = results(program, &[]);
    close(&made[0], &[0.0, 1.0, 0.0, 2.0, 0.0, 4.0, 0.0, 3.0], 1e-6);
    close(&made[1], &[0.0, 0.0, 0.0, 0.0, 2.0, 0.0, -0.5, 2.0], 1e-6);
    assert_eq!(made[2..], [[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]]);
}

#[test]
fn approximately_the_greatest_are_the_greatest() {
    let program = "func.func @by(%a: tensor<f32>, %b: tensor<f32>, %i: tensor<i32>, %j: tensor<i32>) -> tensor<i1> {
          %0 = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %0 : tensor<i1>
        }
        func.func public @main() -> (tensor<2xf32>, tensor<2xi32>) {
          %x = stablehlo.constant dense<[1.0, 7.0, -2.0, 7.5]> : tensor<4xf32>
          %i = stablehlo.iota dim = 0 : tensor<4xi32>
          %c = stablehlo.constant dense<-1> : tensor<i32>
          %n = stablehlo.constant dense<0xFF800000> : tensor<f32>
          %1:2 = stablehlo.custom_call @ApproxTopK(%x, %i, %n, %c) {called_computations = [@by], mhlo.backend_config = {aggregate_to_topk = true, reduction_dim = 0 : i64, top_k = 2 : i64}} : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
          return %1#0, %1#1 : tensor<2xf32>, tensor<2xi32>
        }";
    let made = results(program, &[]);
    assert_eq!(made, [[7.5, 7.0], [3.0, 1.0]]);
}

#[test]
fn wrong_input_is_told_with_the_op_and_its_place() {
    let of = |argument: &str, op: &str, to: &str| {
        format!(
            "func.func @main(%x: tensor<{argument}>) -> tensor<{to}> {{\n%r = {op} : (tensor<{argument}>) -> tensor<{to}>\nreturn %r : tensor<{to}>\n}}"
        )
    };
    let cases = [
        (of("8xcomplex<f32>", "stablehlo.fft %x, type = FFT, length = [7]", "8xcomplex<f32>"), "(C4, C5)"),
        (of("8xf32", "stablehlo.fft %x, type = FFT, length = [8]", "8xcomplex<f32>"), "complex"),
        (of("8xcomplex<f32>", "stablehlo.fft %x, type = RFFT, length = [8]", "5xcomplex<f32>"), "real"),
        (of("8xcomplex<f32>", "stablehlo.fft %x, type = FFT, length = [1, 8]", "8xcomplex<f32>"), "(C1, C3)"),
        (of("8xcomplex<f32>", "stablehlo.fft %x, type = FFT, length = [-8]", "8xcomplex<f32>"), "negative"),
        (of("2x3xf32", "\"stablehlo.cholesky\"(%x) <{lower = true}>", "2x3xf32"), "must be square"),
        (of("3xf32", "\"stablehlo.cholesky\"(%x) <{lower = true}>", "3xf32"), "(I1)"),
        (of("2x2xi32", "\"stablehlo.cholesky\"(%x) <{lower = true}>", "2x2xi32"), "float matrices"),
        (of("4xcomplex<f32>", "\"stablehlo.floor\"(%x)", "4xcomplex<f32>"), "of complex numbers"),
        (of("3xi4", "\"stablehlo.bitcast_convert\"(%x)", "ui8"), "bits"),
    ];
    for (program, why) in cases {
        let error = text::parse(&program).and_then(|m| import::program(&m)).expect_err(&program);
        let told = error.to_string();
        assert!(matches!(error.kind(), ErrorKind::Data | ErrorKind::Unsupported), "{told}");
        assert!(told.contains(why), "{program}\n{told}");
        assert!(told.contains("line 2") && told.contains("stablehlo."), "{told}");
    }
}

fn eigh(n: usize, config: &str) -> String {
    format!(
        "func.func @main(%a: tensor<{n}x{n}xf32>) -> (tensor<{n}x{n}xf32>, tensor<{n}xf32>) {{
           %0:2 = stablehlo.custom_call @Eigh(%a) {{backend_config = \"{config}\"}} : (tensor<{n}x{n}xf32>) -> (tensor<{n}x{n}xf32>, tensor<{n}xf32>)
           return %0#0, %0#1 : tensor<{n}x{n}xf32>, tensor<{n}xf32>
         }}"
    )
}

/// a · v = v · diag(w), orthonormal vectors, ascending values; only one triangle is read.
#[test]
fn rotations_make_eigenvalues_and_vectors() {
    for (n, is_lower) in [(1usize, true), (2, true), (3, false), (4, true), (7, true), (12, false)] {
        let x = numbers(n * n, 8);
        let a: Vec<f32> = x.iter().zip(turned(&x, n)).map(|(a, b)| a + b).collect();
        let mut half = a.clone();
        (0..n * n).filter(|p| (p / n < p % n) == is_lower && p / n != p % n).for_each(|p| half[p] = f32::NAN);
        let program = eigh(n, if is_lower { "1,1,100,1e-6" } else { "0,1,100,1e-6" });
        let made = results(&program, &[&Literal::from_slice([n, n], &half).unwrap()]);
        let (v, w) = (&made[0], &made[1]);
        let scaled: Vec<f32> = (0..n * n).map(|p| v[p] * w[p % n]).collect();
        close(&product(&a, v, n), &scaled, 1e-5);
        let unit: Vec<f32> = (0..n * n).map(|p| if p / n == p % n { 1.0 } else { 0.0 }).collect();
        close(&product(&turned(v, n), v, n), &unit, 1e-5);
        assert!(w.windows(2).all(|pair| pair[0] <= pair[1]), "{w:?}");
    }
}

#[test]
fn equal_eigenvalues_and_what_is_no_number() {
    let of = |a: &[f32; 9]| results(&eigh(3, "1,1,100,1e-6"), &[&Literal::from_slice([3, 3], a).unwrap()]);
    close(&of(&[2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0])[1], &[2.0; 3], 0.0);
    close(&of(&[0.0; 9])[1], &[0.0; 3], 0.0);
    close(&of(&[1e30, 0.0, 0.0, 1e30, 1e30, 0.0, 0.0, 0.0, 0.0])[1], &[0.0, 0.0, 2e30], 1e-6);
    assert!(of(&[f32::NAN; 9]).concat().iter().all(|x| x.is_nan()));
    let error = text::parse(&eigh(2, "")).and_then(|m| import::program(&m)).expect_err("no configuration");
    assert!(error.to_string().contains("lower,sorted"), "{error}");
}

/// A call of JAX's on its CPU, with operands and results by type.
fn lapack(target: &str, config: &str, operands: &[&str], results: &[&str]) -> String {
    let names = |n: usize, of: &str| (0..n).map(|i| format!("{of}{i}")).collect::<Vec<_>>();
    let types = |all: &[&str]| all.iter().map(|t| format!("tensor<{t}>")).collect::<Vec<_>>();
    let (ins, outs) = (types(operands), types(results).join(", "));
    let names = names(operands.len(), "%x");
    let parameters: Vec<String> = names.iter().zip(&ins).map(|(n, t)| format!("{n}: {t}")).collect();
    let made: Vec<String> = match results.len() {
        1 => vec!["%r".into()],
        n => (0..n).map(|i| format!("%r#{i}")).collect(),
    };
    let count = if results.len() == 1 { String::new() } else { format!(":{}", results.len()) };
    format!(
        "func.func @main({}) -> ({outs}) {{
           %r{count} = stablehlo.custom_call @{target}({}) {{mhlo.backend_config = {{{config}}}}} : ({}) -> ({outs})
           return {} : {outs}
         }}",
        parameters.join(", "),
        names.join(", "),
        ins.join(", "),
        made.join(", ")
    )
}

#[test]
fn lapack_calls_of_jax_run_by_name() {
    let f32s = |shape: &[usize], data: &[f32]| Literal::from_slice(shape, data).unwrap();
    let f64s = |shape: &[usize], data: &[f64]| Literal::from_slice(shape, data).unwrap();
    let square = f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let lu = lapack("lapack_sgetrf_ffi", "", &["2x2xf32"], &["2x2xf32", "2xi32", "i32"]);
    let made = results(&lu, &[&square]);
    close(&made[0], &[3.0, 4.0, 1.0 / 3.0, 2.0 / 3.0], 1e-6);
    assert_eq!((&made[1][..], &made[2][..]), (&[2.0, 2.0][..], &[0.0][..]));

    let both = ["2x2xcomplex<f64>", "2xf64", "i32"];
    let eigh = lapack("lapack_zheevd_ffi", "mode = 86 : ui8, uplo = 76 : ui8", &["2x2xcomplex<f64>"], &both);
    let made =
        results(&eigh, &[&f64s(&[2, 2], &[2.0, 0.0, 0.0, 2.0]), &f64s(&[2, 2], &[0.0, 1.0, -1.0, 0.0])]);
    close(&made[2], &[1.0, 3.0], 1e-6);
    close(&made[3], &[0.0], 0.0);

    let outs = ["2xf32", "2xf32", "2x2xcomplex<f32>", "2x2xcomplex<f32>", "i32"];
    let eig =
        lapack("lapack_sgeev_ffi", "compute_left = 78 : ui8, compute_right = 86 : ui8", &["2x2xf32"], &outs);
    let made = results(&eig, &[&f32s(&[2, 2], &[0.0, 1.0, -1.0, 0.0])]);
    close(&made[0], &[0.0, 0.0], 1e-6);
    close(&made[1], &[1.0, -1.0], 1e-6);

    // A batch of two: x · aᵀ = b, with the diagonal of a.
    let config = "diag = 78 : ui8, side = 82 : ui8, trans_x = 84 : ui8, uplo = 76 : ui8";
    let solve = lapack("lapack_dtrsm_ffi", config, &["2x2x2xf64", "2x1x2xf64"], &["2x1x2xf64"]);
    let a = f64s(&[2, 2, 2], &[2.0, 9.0, 1.0, 4.0, 1.0, 9.0, 0.0, 1.0]);
    let made = results(&solve, &[&a, &f64s(&[2, 1, 2], &[2.0, 9.0, 5.0, 6.0])]);
    close(&made[0], &[1.0, 2.0, 5.0, 6.0], 1e-6);
}

#[test]
fn lapack_calls_that_do_not_fit_are_told() {
    let unknown = lapack("lapack_sgetrx_ffi", "", &["2x2xf32"], &["2x2xf32"]);
    let e = read_text(&unknown).unwrap_err();
    assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("lapack_sgetrx_ffi"), "{e}");
    let zeros = |shape: &[usize]| Literal::from_slice(shape, &vec![0f32; shape.iter().product()]).unwrap();
    let config = "diag = 78 : ui8, side = 76 : ui8, trans_x = 78 : ui8, uplo = 76 : ui8";
    let cases = [
        (
            lapack("lapack_strsm_ffi", config, &["2x2xf32", "3x1xf32"], &["3x1xf32"]),
            vec![zeros(&[2, 2]), zeros(&[3, 1])],
        ),
        (lapack("lapack_sgeqrf_ffi", "", &["2x2xf32"], &["2x2xf32"]), vec![zeros(&[2, 2])]),
        (
            lapack("lapack_spotrf_ffi", "uplo = 76 : ui8", &["2x2xf32"], &["1x1xf32", "i32"]),
            vec![zeros(&[2, 2])],
        ),
    ];
    for ((program, arguments), routine) in cases.iter().zip(["trsm", "geqrf", "potrf"]) {
        let read = read_text(program).unwrap();
        let e = interp::run(&read.graph, &arguments.iter().collect::<Vec<_>>()).unwrap_err();
        assert!(e.kind() == ErrorKind::Data && e.to_string().contains(&format!("`{routine}`")), "{e}");
    }
}
