//! Tests of CHLO ops against SciPy's and NumPy's f64 values, in every float type, at ordinary numbers, zeros, poles,
//! infinities and NaN.

use systole_base::{DType, Literal, LiteralBuilder, Scalar, TensorType};
use systole_ir::interp;
use systole_mlir::read_text;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// Op, and its argument and result in f64.
#[rustfmt::skip]
#[allow(clippy::approx_constant, reason = "values of functions")]
const UNARY: &[(&str, &[(f64, f64)])] = &[
    ("acos", &[(-1.0, 3.141592653589793), (-0.5, 2.0943951023931957), (-0.0, 1.5707963267948966), (0.0, 1.5707963267948966), (0.25, 1.318116071652818), (0.9990234375, 0.04419777114571532), (1.0, 0.0), (1.5, NAN), (NAN, NAN), (INF, NAN)]),
    ("acosh", &[(0.5, NAN), (1.0, 0.0), (1.125, 0.4949329230945269), (2.0, 1.3169578969248166), (100000.0, 12.206072645505174), (1e+30, 69.77069997038132), (INF, INF), (NAN, NAN)]),
    ("asin", &[(-1.0, -1.5707963267948966), (-0.5, -0.5235987755982989), (-0.0, -0.0), (0.0, 0.0), (1e-08, 1e-08), (0.25, 0.25268025514207865), (0.9990234375, 1.5265985556491812), (1.0, 1.5707963267948966), (1.5, NAN), (NAN, NAN)]),
    ("asinh", &[(-INF, -INF), (-1e+30, -69.77069997038132), (-2.0, -1.4436354751788103), (-0.0, -0.0), (0.0, 0.0), (1e-08, 9.999999999999999e-09), (0.5, 0.48121182505960347), (3.0, 1.8184464592320668), (1e+30, 69.77069997038132), (INF, INF), (NAN, NAN)]),
    ("atan", &[(-INF, -1.5707963267948966), (-2.0, -1.1071487177940904), (-0.0, -0.0), (0.0, 0.0), (1e-08, 1e-08), (0.5, 0.4636476090008061), (3.0, 1.2490457723982544), (1e+30, 1.5707963267948966), (INF, 1.5707963267948966), (NAN, NAN)]),
    ("atanh", &[(-1.0, -INF), (-0.5, -0.5493061443340548), (-0.0, -0.0), (0.0, 0.0), (1e-08, 1.0000000000000002e-08), (0.25, 0.25541281188299536), (0.9990234375, 3.8120652928306447), (1.0, INF), (1.5, NAN), (NAN, NAN)]),
    ("bessel_i1e", &[(-20.0, -0.08750622218328867), (-3.0, -0.19682671329730084), (0.0, 0.0), (0.5, 0.15642080318487173), (7.875, 0.1350869452573716), (8.125, 0.1332171064779173), (100.0, 0.03974415302513025), (NAN, NAN)]),
    ("cosh", &[(-INF, INF), (-5.0, 74.20994852478785), (-0.0, 1.0), (0.5, 1.1276259652063807), (3.0, 10.067661995777765), (80.0, 2.770311192196755e+34), (INF, INF), (NAN, NAN)]),
    ("digamma", &[(-2.5, 1.1031566406452433), (-0.25, 2.9141391202135245), (0.0009765625, -1024.5756104293407), (0.5, -1.9635100260214235), (1.0, -0.5772156649015329), (2.5, 0.7031566406452432), (10.0, 2.251752589066721), (1000.0, 6.907255195648812), (INF, INF), (NAN, NAN)]),
    ("erf", &[(-INF, -1.0), (-2.0, -0.9953222650189527), (-0.0, -0.0), (0.0, 0.0), (1e-08, 1.1283791670955125e-08), (0.5, 0.5204998778130465), (1.5, 0.9661051464753108), (3.0, 0.9999779095030014), (INF, 1.0), (NAN, NAN)]),
    ("erfc", &[(-INF, 2.0), (-2.0, 1.9953222650189528), (-0.5, 1.5204998778130465), (-0.0, 1.0), (0.0, 1.0), (0.5, 0.4795001221869535), (1.0, 0.15729920705028516), (1.5, 0.03389485352468927), (2.5, 0.00040695201744495886), (5.0, 1.5374597944280347e-12), (8.5, 2.7623240713337712e-33), (INF, 0.0), (NAN, NAN)]),
    ("erf_inv", &[(-1.0, -INF), (-0.5, -0.4769362762044699), (0.0, 0.0), (0.25, 0.2253120550121781), (0.9990234375, 2.3314677736219473), (1.0, INF), (1.5, NAN), (NAN, NAN)]),
    ("lgamma", &[(-2.5, -0.05624371649767401), (-2.0, INF), (-0.25, 1.5895753125511858), (-0.0, INF), (0.0, INF), (0.0009765625, 6.9309089024194614), (0.5, 0.5723649429247), (1.25, -0.09827183642181311), (3.5, 1.2009736023470743), (10.0, 12.801827480081469), (1000.0, 5905.220423209181), (INF, INF), (NAN, NAN)]),
    ("sinh", &[(-INF, -INF), (-5.0, -74.20321057778875), (-0.0, -0.0), (1e-08, 1.0000000000000002e-08), (0.5, 0.5210953054937474), (3.0, 10.017874927409903), (80.0, 2.770311192196755e+34), (INF, INF), (NAN, NAN)]),
    ("square", &[(-3.0, 9.0), (-0.0, 0.0), (0.0009765625, 9.5367431640625e-07), (INF, INF), (NAN, NAN)]),
    ("tan", &[(-1.25, -3.0095696738628313), (-0.0, -0.0), (0.0, 0.0), (0.5, 0.5463024898437905), (3.0, -0.1425465430742778), (NAN, NAN), (INF, NAN)]),
];

/// Two arguments and their result.
type Triples = &'static [(f64, f64, f64)];

/// Like [`UNARY`], with two arguments.
#[rustfmt::skip]
const BINARY: &[(&str, Triples)] = &[
    ("polygamma", &[(0.0, 2.5, 0.7031566406452432), (1.0, 0.5, 4.93480220054468), (2.0, 3.0, -0.15411380631918856), (3.0, 10.0, 0.0023199013042898686), (1.0, -0.5, 8.934802200544679)]),
    ("zeta", &[(2.0, 1.0, 1.6449340668482266), (1.5, 3.0, 1.2588219580922144), (4.0, 0.5, 16.23484850566707), (10.0, 2.0, 0.0009945751278180857), (1.0, 2.0, INF), (0.5, 2.0, NAN), (2.0, -1.0, INF), (2.5, -0.5, NAN), (200.0, 2.0, 6.223015277861142e-61)]),
];

/// Returns numbers as an array of a type.
fn array(dtype: DType, values: &[f64]) -> Literal {
    let mut b = LiteralBuilder::new(TensorType::new(dtype, [values.len()]));
    values.iter().enumerate().for_each(|(i, v)| b.set(i, Scalar::of(dtype, *v)));
    b.finish()
}

/// Runs an op on arrays of one type.
fn run(name: &str, dtype: DType, args: &[&[f64]], result: &str) -> Vec<f64> {
    let n = args[0].len();
    let ty = format!("tensor<{n}x{}>", dtype.name());
    let names: Vec<String> = (0..args.len()).map(|i| format!("%{i}")).collect();
    let parameters: Vec<String> = (0..args.len()).map(|i| format!("%a{i}: {ty}")).collect();
    let names = names.iter().map(|n| n.replace('%', "%a")).collect::<Vec<_>>().join(", ");
    let types = vec![ty.clone(); args.len()].join(", ");
    let to = format!("tensor<{n}x{result}>");
    let text = format!(
        "func.func @main({}) -> {to} {{ %r = chlo.{name} {names} : {types} -> {to} return %r : {to} }}",
        parameters.join(", ")
    );
    let program = read_text(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let args: Vec<Literal> = args.iter().map(|values| array(dtype, values)).collect();
    interp::run(&program.graph, &args.iter().collect::<Vec<_>>()).unwrap()[0].to_f64s()
}

/// Whether a result matches within the type's precision. `sum`: terms cancel, so the error is that of numbers near 1.
fn agrees(dtype: DType, sum: bool, got: f64, stated: f64) -> bool {
    let (share, least) = match dtype {
        DType::F64 => (2e-13, 1e-13),
        DType::F32 => (5e-6, 4e-6),
        DType::F16 => (2e-3, 1e-3),
        _ => (1e-2, 1e-2),
    };
    let stated = Scalar::of(dtype, stated).as_f64();
    if stated.is_nan() || stated.is_infinite() {
        return got.to_bits() == stated.to_bits() || got.is_nan() && stated.is_nan();
    }
    if stated == 0.0 && got == 0.0 {
        return got.is_sign_negative() == stated.is_sign_negative();
    }
    (got - stated).abs() <= share * stated.abs() + if sum { least } else { 0.0 }
}

/// Element types; an argument must be representable in them.
const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

fn fits(dtype: DType, v: f64) -> bool {
    let held = Scalar::of(dtype, v).as_f64();
    v.is_nan() || held == v || (dtype == DType::F32 && held.is_finite() && held != 0.0)
}

#[test]
fn functions_have_their_values_in_every_float_type() {
    let mut wrong = Vec::new();
    for (name, all) in UNARY {
        for dtype in TYPES {
            let cases: Vec<&(f64, f64)> = all.iter().filter(|(x, _)| fits(dtype, *x)).collect();
            let x: Vec<f64> = cases.iter().map(|(x, _)| *x).collect();
            let sum = matches!(*name, "lgamma" | "digamma");
            for (got, (x, stated)) in run(name, dtype, &[&x], dtype.name()).into_iter().zip(cases) {
                if !agrees(dtype, sum, got, *stated) {
                    wrong.push(format!("{name}({x}) in {dtype}: {got}, not {stated}"));
                }
            }
        }
    }
    for (name, all) in BINARY {
        for dtype in [DType::F64, DType::F32] {
            let (x, y): (Vec<f64>, Vec<f64>) = all.iter().map(|(x, y, _)| (*x, *y)).unzip();
            for (got, (x, y, stated)) in run(name, dtype, &[&x, &y], dtype.name()).into_iter().zip(*all) {
                if !agrees(dtype, true, got, *stated) {
                    wrong.push(format!("{name}({x}, {y}) in {dtype}: {got}, not {stated}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn poles_and_infinities_are_those_of_the_decomposition() {
    // ln |Γ| is +∞ at both infinities; ζ at odd x and a pole of q, and polygamma of a non-natural number, are
    // undefined.
    assert_eq!(run("lgamma", DType::F64, &[&[-INF]], "f64"), [INF]);
    assert!(run("digamma", DType::F64, &[&[0.0, -0.0, -1.0, -INF]], "f64").iter().all(|v| v.is_nan()));
    assert!(run("zeta", DType::F64, &[&[3.0], &[-1.0]], "f64")[0].is_nan());
    let undefined = run("polygamma", DType::F64, &[&[1.5, -1.0], &[2.0, 2.0]], "f64");
    assert!(undefined.iter().all(|v| v.is_nan()), "{undefined:?}");
}

#[test]
fn infinities_are_told_apart() {
    let x = [-INF, -1.0, NAN, INF];
    assert_eq!(run("is_inf", DType::F32, &[&x], "i1"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(run("is_pos_inf", DType::F32, &[&x], "i1"), [0.0, 0.0, 0.0, 1.0]);
    assert_eq!(run("is_neg_inf", DType::F32, &[&x], "i1"), [1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn next_after_steps_one_number_through_zero_and_to_infinity() {
    let tiny = f64::from(f32::from_bits(1));
    let (x, y) = (
        [0.0, -0.0, 1.0, 1.0, 0.0, tiny, f64::from(f32::MAX), NAN],
        [1.0, -1.0, 2.0, 0.0, -0.0, -1.0, INF, 0.0],
    );
    let got = run("next_after", DType::F32, &[&x, &y], "f32");
    let up = f64::from(f32::from_bits(1f32.to_bits() + 1));
    let down = f64::from(f32::from_bits(1f32.to_bits() - 1));
    assert_eq!(got[..4], [tiny, -tiny, up, down]);
    assert!(got[4] == 0.0 && got[4].is_sign_negative() && got[5] == 0.0);
    assert!(got[6] == INF && got[7].is_nan());
}

#[test]
fn mulhi_is_the_high_half_in_every_width() {
    let of = |ty: &str, a: i128, b: i128| {
        let text = format!(
            "func.func @main() -> tensor<{ty}> {{
                %a = stablehlo.constant dense<{a}> : tensor<{ty}>
                %b = stablehlo.constant dense<{b}> : tensor<{ty}>
                %r = chlo.mulhi %a, %b : tensor<{ty}>, tensor<{ty}> -> tensor<{ty}>
                return %r : tensor<{ty}> }}"
        );
        let graph = read_text(&text).unwrap_or_else(|e| panic!("{e}")).graph;
        interp::run(&graph, &[]).unwrap()[0].get(0)
    };
    assert_eq!(of("i8", -128, 127).as_i64(), (-128 * 127) >> 8);
    assert_eq!(of("ui16", 65535, 65535).as_i64(), (65535 * 65535) >> 16);
    assert_eq!(of("i32", -7, 1 << 30).as_i64(), (-7i64 << 30) >> 32);
    let (a, b) = (-0x1234_5678_9abc_def0i64, 0x7fff_ffff_0000_ffffi64);
    assert_eq!(of("i64", a.into(), b.into()).as_i64(), ((i128::from(a) * i128::from(b)) >> 64) as i64);
    let u = u64::MAX - 5;
    assert_eq!(of("ui64", u.into(), u.into()), Scalar::Uint(((u128::from(u) * u128::from(u)) >> 64) as u64));
}

/// Runs a function without arguments.
fn results(text: &str) -> Vec<Vec<f64>> {
    let graph = read_text(text).unwrap_or_else(|e| panic!("{e}\n{text}")).graph;
    interp::run(&graph, &[]).unwrap().iter().map(Literal::to_f64s).collect()
}

#[test]
fn top_k_takes_nan_first_and_earlier_places_before_later_ones() {
    let out = results(
        "func.func @main() -> (tensor<2x3xf32>, tensor<2x3xi32>) {
            %x = stablehlo.constant dense<[[1.0, 3.0, 3.0, -2.0], [0.0, 0x7FC00000, -0.0, 5.0]]> : tensor<2x4xf32>
            %v, %i = chlo.top_k(%x, k = 3) : tensor<2x4xf32> -> (tensor<2x3xf32>, tensor<2x3xi32>)
            return %v, %i : tensor<2x3xf32>, tensor<2x3xi32> }",
    );
    assert_eq!(out[1], [1.0, 2.0, 0.0, 1.0, 3.0, 0.0]);
    assert_eq!(out[0][..3], [3.0, 3.0, 1.0]);
    assert!(out[0][3].is_nan());
    let error = read_text(
        "func.func @main(%x: tensor<2xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
            %v, %i = chlo.top_k(%x, k = 3) : tensor<2xf32> -> (tensor<3xf32>, tensor<3xi32>)
            return %v, %i : tensor<3xf32>, tensor<3xi32> }",
    );
    assert!(error.unwrap_err().to_string().contains("2 elements"));
}

#[test]
fn operands_are_broadcast_as_dimensions_say_or_as_numpy_does() {
    let out = results(
        "func.func @main() -> (tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi1>) {
            %x = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
            %r = stablehlo.constant dense<[10, 20, 30]> : tensor<3xi32>
            %c = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
            %0 = chlo.broadcast_add %x, %r : (tensor<2x3xi32>, tensor<3xi32>) -> tensor<2x3xi32>
            %1 = chlo.broadcast_multiply %x, %c {broadcast_dimensions = array<i64: 0>} : (tensor<2x3xi32>, tensor<2xi32>) -> tensor<2x3xi32>
            %2 = chlo.broadcast_compare %x, %r {comparison_direction = #chlo<comparison_direction LT>} : (tensor<2x3xi32>, tensor<3xi32>) -> tensor<2x3xi1>
            return %0, %1, %2 : tensor<2x3xi32>, tensor<2x3xi32>, tensor<2x3xi1> }",
    );
    assert_eq!(out[0], [11.0, 22.0, 33.0, 14.0, 25.0, 36.0]);
    assert_eq!(out[1], [1.0, 2.0, 3.0, 8.0, 10.0, 12.0]);
    assert_eq!(out[2], [1.0; 6]);
}

#[test]
fn custom_calls_that_keep_chlo_are_its_ops() {
    let out = results(
        "func.func @main() -> (tensor<2xf32>, tensor<1xf32>, tensor<1xi32>) {
            %x = stablehlo.constant dense<[0.5, 0.0]> : tensor<2xf32>
            %0 = stablehlo.custom_call @mhlo.erf(%x) {mhlo.attributes = {}, mhlo.version = 1 : i64} : (tensor<2xf32>) -> tensor<2xf32>
            %1:2 = stablehlo.custom_call @mhlo.topk(%x) {mhlo.attributes = {k = 1 : i64, largest = false}, mhlo.version = 1 : i64} : (tensor<2xf32>) -> (tensor<1xf32>, tensor<1xi32>)
            return %0, %1#0, %1#1 : tensor<2xf32>, tensor<1xf32>, tensor<1xi32> }",
    );
    assert!((out[0][0] - 0.520_499_88).abs() < 1e-6 && out[0][1] == 0.0);
    assert_eq!((out[1][0], out[2][0]), (0.0, 1.0));
}
