//! Tests of complex numbers, narrow integers and 8-bit floats against NumPy and ml_dtypes.

use systole_base::{DType, Literal, Scalar, TensorType};
use systole_ir::interp;
use systole_mlir::import::{self, ImportedProgram};
use systole_mlir::interface::SourceElement;
use systole_mlir::narrow_types::Narrow;
use systole_mlir::text;

fn imported(text: &str) -> ImportedProgram {
    let module = text::parse(text).unwrap_or_else(|e| panic!("{text}\n{e}"));
    import::program(&module).unwrap_or_else(|e| panic!("{text}\n{e}"))
}

/// Runs a program without arguments and evaluates its assertions.
#[track_caller]
fn holds(body: &str) {
    let program = imported(&format!("func.func @main() {{\n{body}\n return\n}}"));
    let results = interp::run(&program.program.graph, &[]).unwrap_or_else(|e| panic!("{body}\n{e}"));
    let mut results = results.iter();
    assert!(!program.checks.is_empty());
    for check in &program.checks {
        let arrays: Vec<&Literal> = results.by_ref().take(check.arrays()).collect();
        check.run(&arrays).unwrap_or_else(|what| panic!("{body}\n{what}"));
    }
    assert_eq!(results.count(), 0);
}

fn expect(value: &str, expected: &str, ty: &str) -> String {
    format!(
        "%expected = stablehlo.constant dense<{expected}> : {ty}
         check.expect_almost_eq {value}, %expected {{tolerance = 1.0e-6 : f64}} : {ty}"
    )
}

const Z: &str = "[(0.5, 0.25), (-1.5, 2.0), (-0.125, -3.0), (2.0, -0.5)]";
const W: &str = "[(1.0, -1.0), (0.5, 0.5), (-2.0, 0.25), (-0.75, -1.5)]";
const FOUR: &str = "tensor<4xcomplex<f32>>";

const ONE: &[(&str, &str)] = &[
    ("stablehlo.negate", "[(-0.5, -0.25), (1.5, -2), (0.125, 3), (-2, 0.5)]"),
    (
        "stablehlo.sign",
        "[(0.894427191, 0.447213595), (-0.6, 0.8), (-0.0416305447, -0.999133073), (0.9701425, -0.242535625)]",
    ),
    (
        "stablehlo.exponential",
        "[(1.59746652, 0.40790017), (-0.0928549103, 0.20289168), (-0.873665312, -0.12453797), (6.48450678, -3.5425022)]",
    ),
    (
        "stablehlo.exponential_minus_one",
        "[(0.597466519, 0.40790017), (-1.09285491, 0.20289168), (-1.87366531, -0.12453797), (5.48450678, -3.5425022)]",
    ),
    (
        "stablehlo.log",
        "[(-0.581575405, 0.463647609), (0.916290732, 2.21429744), (1.09947959, -1.61243891), (0.723459491, -0.244978663)]",
    ),
    (
        "stablehlo.log_plus_one",
        "[(0.419164595, 0.165148677), (0.723459491, 1.81577499), (1.13943428, -1.28700222), (1.11231178, -0.165148677)]",
    ),
    (
        "stablehlo.sqrt",
        "[(0.727673345, 0.171780375), (0.707106781, 1.41421356), (1.19950053, -1.2505205), (1.42505312, -0.175432056)]",
    ),
    (
        "stablehlo.rsqrt",
        "[(1.30170165, -0.307290076), (0.282842712, -0.565685425), (0.399486883, 0.416478796), (0.6912523, 0.0850970469)]",
    ),
    (
        "stablehlo.cbrt",
        "[(0.813955938, 0.126807471), (1.00399379, 0.913242698), (1.23925315, -0.738605795), (1.2684749, -0.103813951)]",
    ),
    (
        "stablehlo.sine",
        "[(0.494485781, 0.221688164), (-3.75277134, 0.256553956), (-1.25518308, -9.93971213), (1.02534739, 0.216852163)]",
    ),
    (
        "stablehlo.cosine",
        "[(0.905150151, -0.121108796), (0.266127195, 3.61777507), (9.98911075, -1.24897589), (-0.469257978, 0.47383062)]",
    ),
    (
        "stablehlo.tan",
        "[(0.504500703, 0.312420693), (-0.00536206092, 1.03692028), (-0.00122063552, -0.995207374), (-0.850878121, -1.32128658)]",
    ),
    (
        "stablehlo.tanh",
        "[(0.485487281, 0.19805545), (-1.0641444, -0.0803910153), (-0.12683994, 0.140298167), (0.97994085, -0.0302159873)]",
    ),
    (
        "stablehlo.logistic",
        "[(0.624275164, 0.0590029643), (-0.049842583, 0.23480734), (-3.01442797, -3.95733521), (0.890844154, -0.0516647038)]",
    ),
    (
        "chlo.asin",
        "[(0.501608853, 0.281396056), (-0.606511518, 1.62249415), (-0.0395109817, -1.81918718), (1.29304207, -1.3618009)]",
    ),
    (
        "chlo.acos",
        "[(1.06918747, -0.281396056), (2.17730784, -1.62249415), (1.61030731, 1.81918718), (0.277754257, 1.3618009)]",
    ),
    (
        "chlo.atan",
        "[(0.48425449, 0.200586618), (-1.31122327, 0.310428283), (-1.55520684, -0.345842952), (1.12655644, -0.0964156202)]",
    ),
    (
        "chlo.asinh",
        "[(0.492675683, 0.224328453), (-1.60041006, 0.887765146), (-1.76378165, -1.52663626), (1.46571535, -0.221018636)]",
    ),
    (
        "chlo.acosh",
        "[(0.281396056, 1.06918747), (1.62249415, 2.17730784), (1.81918718, -1.61030731), (1.3618009, -0.277754257)]",
    ),
    (
        "chlo.atanh",
        "[(0.50037, 0.314398143), (-0.220089681, 1.24525797), (-0.0124830922, -1.24951394), (0.50037, -1.42154686)]",
    ),
    (
        "chlo.sinh",
        "[(0.504895714, 0.278979128), (0.886092909, 2.13904001), (0.124071577, -0.142223944), (3.18286945, -1.8036927)]",
    ),
    (
        "chlo.cosh",
        "[(1.0925708, 0.128921042), (-0.97894782, -1.93614833), (-0.997736889, 0.0176859744), (3.30163733, -1.7388095)]",
    ),
];

const TWO: &[(&str, &str)] = &[
    ("stablehlo.add", "[(1.5, -0.75), (-1, 2.5), (-2.125, -2.75), (1.25, -2)]"),
    ("stablehlo.subtract", "[(-0.5, 1.25), (-2, 1.5), (1.875, -3.25), (2.75, 1)]"),
    ("stablehlo.multiply", "[(0.75, -0.25), (-1.75, 0.25), (1, 5.96875), (-2.25, -2.625)]"),
    ("stablehlo.divide", "[(0.125, 0.375), (0.5, 3.5), (-0.123076923, 1.48461538), (-0.266666667, 1.2)]"),
    (
        "stablehlo.power",
        "[(0.445899023, 0.768809986), (0.00287527247, 0.522558422), (-0.155453754, -0.0581860255), (0.249738319, -0.315652078)]",
    ),
];

#[test]
fn functions_of_complex_numbers_are_those_of_numpy() {
    for (op, expected) in ONE {
        let body =
            format!("%z = stablehlo.constant dense<{Z}> : {FOUR}\n %r = \"{op}\"(%z) : ({FOUR}) -> {FOUR}\n");
        holds(&(body + &expect("%r", expected, FOUR)));
    }
    for (op, expected) in TWO {
        let body = format!(
            "%z = stablehlo.constant dense<{Z}> : {FOUR}\n %w = stablehlo.constant dense<{W}> : {FOUR}
             %r = \"{op}\"(%z, %w) : ({FOUR}, {FOUR}) -> {FOUR}\n"
        );
        holds(&(body + &expect("%r", expected, FOUR)));
    }
    let abs = format!(
        "%z = stablehlo.constant dense<{Z}> : {FOUR}
         %r = stablehlo.abs %z : ({FOUR}) -> tensor<4xf32>\n"
    );
    holds(&(abs + &expect("%r", "[0.559016994, 2.5, 3.00260304, 2.06155281]", "tensor<4xf32>")));
}

#[test]
fn the_ends_of_the_range_and_the_sides_of_a_cut_are_kept() {
    let cases = [
        (
            "abs",
            "[(3.0e38, 3.0e38), (1.0e-30, 0.0), (0.0, 0.0), (0x7F800000, 0x7FC00000)]",
            "[0x7F800000, 1.0e-30, 0.0, 0x7F800000]",
            "tensor<4xf32>",
        ),
        (
            "abs",
            "[(2.0e38, 2.0e38), (3.0e-30, 4.0e-30), (0.0, -2.0), (-5.0, 12.0)]",
            "[2.82842712e38, 5.0e-30, 2.0, 13.0]",
            "tensor<4xf32>",
        ),
        (
            "sqrt",
            "[(-4.0, 0.0), (-4.0, -0.0), (3.2e38, 0.0), (0.0, 2.0e38)]",
            "[(0.0, 2.0), (0.0, -2.0), (1.78885438e19, 0.0), (1.0e19, 1.0e19)]",
            FOUR,
        ),
        (
            "log",
            "[(-1.0, 0.0), (-1.0, -0.0), (3.0e38, 3.0e38), (0.0, 1.0)]",
            "[(0.0, 3.14159265), (0.0, -3.14159265), (88.9434195, 0.785398163), (0.0, 1.57079633)]",
            FOUR,
        ),
        (
            "exponential_minus_one",
            "[(0xFF800000, 0x7F800000), (0xFF800000, 0.0), (0.0, 0.0), (1.0, 0x7FC00000)]",
            "[(0x7FC00000, 0x7FC00000), (-1.0, 0.0), (0.0, 0.0), (0x7FC00000, 0x7FC00000)]",
            FOUR,
        ),
        (
            "tan",
            "[(0x7F800000, 20.0), (1.0, 20.0), (1.0, -20.0), (0xFF800000, 0x7F800000)]",
            "[(0x7FC00000, 0x7FC00000), (0.0, 1.0), (0.0, -1.0), (0.0, 1.0)]",
            FOUR,
        ),
    ];
    for (op, z, expected, ty) in cases {
        let body = format!(
            "%z = stablehlo.constant dense<{z}> : {FOUR}
             %r = \"stablehlo.{op}\"(%z) : ({FOUR}) -> {ty}\n"
        );
        holds(&(body + &expect("%r", expected, ty)));
    }
}

/// Infinite and zero quotients: ISO C, annex G.5.2, with the values of JAX's CPU backend.
#[test]
fn quotients_of_infinite_complex_numbers_are_infinite_or_zero() {
    let (inf, nan) = ("0x7F800000", "0x7FC00000");
    let quotients = [
        // Infinite above, finite below.
        ((inf, inf), ("1.0", "0.0"), (inf, inf)),
        ((inf, nan), ("1.0", "1.0"), (inf, "0xFF800000")),
        ((nan, inf), ("0.0", "1.0"), (inf, nan)),
        // Division by zero.
        ((inf, "1.0"), ("0.0", "0.0"), (inf, inf)),
        (("1.0", nan), ("0.0", "0.0"), (inf, nan)),
        (("0.0", "0.0"), ("0.0", "0.0"), (nan, nan)),
        // Infinite below, finite above.
        (("1.0", "1.0"), (inf, inf), ("0.0", "0.0")),
        (("1.0", "-2.0"), (nan, inf), ("0.0", "0.0")),
        // Neither.
        ((nan, "1.0"), ("1.0", "1.0"), (nan, nan)),
        ((inf, inf), (inf, inf), (nan, nan)),
        (("3.0", "4.0"), ("1.0", "2.0"), ("2.2", "-0.4")),
    ];
    for ((a, b), (c, d), (re, im)) in quotients {
        let ty = "tensor<1xcomplex<f32>>";
        let body = format!(
            "%z = stablehlo.constant dense<[({a}, {b})]> : {ty}
             %w = stablehlo.constant dense<[({c}, {d})]> : {ty}
             %r = stablehlo.divide %z, %w : {ty}\n"
        );
        holds(&(body + &expect("%r", &format!("[({re}, {im})]"), ty)));
    }
}

/// Like JAX's sort of complex numbers: the comparator captures a constant.
#[test]
fn complex_numbers_are_sorted_by_a_comparator_with_a_constant_from_outside() {
    let scalar = "tensor<complex<f32>>";
    let distance = |x: &str| {
        format!(
            "%r{x} = stablehlo.real %{x} : ({scalar}) -> tensor<f32>
             %s{x} = stablehlo.subtract %r{x}, %c : tensor<f32>
             %d{x} = stablehlo.abs %s{x} : tensor<f32>\n"
        )
    };
    let sorted = format!(
        "%z = stablehlo.constant dense<{Z}> : {FOUR}
         %c = stablehlo.constant dense<0.5> : tensor<f32>
         %r = \"stablehlo.sort\"(%z) <{{dimension = 0 : i64, is_stable = true}}> ({{
         ^bb0(%a: {scalar}, %b: {scalar}):
           {}{}
           %p = stablehlo.compare LT, %da, %db : (tensor<f32>, tensor<f32>) -> tensor<i1>
           stablehlo.return %p : tensor<i1>
         }}) : ({FOUR}) -> {FOUR}\n",
        distance("a"),
        distance("b")
    );
    holds(&(sorted + &expect("%r", "[(0.5, 0.25), (-0.125, -3.0), (2.0, -0.5), (-1.5, 2.0)]", FOUR)));
}

#[test]
fn complex_numbers_pass_through_loops_folds_sorts_and_scatters() {
    let z = format!("%z = stablehlo.constant dense<{Z}> : {FOUR}\n");
    let scalar = "tensor<complex<f32>>";
    // A product is not a sum: the parts are reduced as separate values.
    let fold = |op: &str| {
        format!(
        "{z} %c = stablehlo.constant dense<(1.0, 0.0)> : {scalar}
         %r = stablehlo.reduce(%z init: %c) applies stablehlo.{op} across dimensions = [0] : ({FOUR}, {scalar}) -> {scalar}\n"
    )
    };
    holds(&(fold("add") + &expect("%r", "(1.875, -1.25)", scalar)));
    holds(&(fold("multiply") + &expect("%r", "(5.8984375, 6.328125)", scalar)));
    let sorted = format!(
        "{z} %r = \"stablehlo.sort\"(%z) <{{dimension = 0 : i64, is_stable = true}}> ({{
         ^bb0(%a: {scalar}, %b: {scalar}):
           %x = stablehlo.real %a : ({scalar}) -> tensor<f32>
           %y = stablehlo.real %b : ({scalar}) -> tensor<f32>
           %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
           stablehlo.return %p : tensor<i1>
         }}) : ({FOUR}) -> {FOUR}\n"
    );
    holds(&(sorted + &expect("%r", "[(-1.5, 2.0), (-0.125, -3.0), (0.5, 0.25), (2.0, -0.5)]", FOUR)));
    let repeated = format!(
        "{z} %i = stablehlo.constant dense<0> : tensor<i32>
         %r:2 = stablehlo.while(%k = %i, %s = %z) : tensor<i32>, {FOUR}
         cond {{
           %n = stablehlo.constant dense<2> : tensor<i32>
           %p = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
           stablehlo.return %p : tensor<i1>
         }} do {{
           %one = stablehlo.constant dense<1> : tensor<i32>
           %next = stablehlo.add %k, %one : tensor<i32>
           %t = stablehlo.multiply %s, %z : {FOUR}
           stablehlo.return %next, %t : tensor<i32>, {FOUR}
         }}\n"
    );
    let cubes = "[(0.03125, 0.171875), (14.625, 5.5), (3.37304688, 26.859375), (6.5, -5.875)]";
    holds(&(repeated + &expect("%r#1", cubes, FOUR)));
    let scattered = format!(
        "{z} %at = stablehlo.constant dense<[[1], [1]]> : tensor<2x1xi32>
         %u = stablehlo.constant dense<[(1.0, 1.0), (0.0, 2.0)]> : tensor<2xcomplex<f32>>
         %r = \"stablehlo.scatter\"(%z, %at, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<
           inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
         ^bb0(%a: {scalar}, %b: {scalar}):
           %t = stablehlo.multiply %a, %b : {scalar}
           stablehlo.return %t : {scalar}
         }}) : ({FOUR}, tensor<2x1xi32>, tensor<2xcomplex<f32>>) -> {FOUR}\n"
    );
    let expected = "[(0.5, 0.25), (-1.0, -7.0), (-0.125, -3.0), (2.0, -0.5)]";
    holds(&(scattered + &expect("%r", expected, FOUR)));
}

#[test]
fn products_of_complex_arrays_are_sums_of_four() {
    let z = format!(
        "%z = stablehlo.constant dense<{Z}> : {FOUR}\n %w = stablehlo.constant dense<{W}> : {FOUR}\n"
    );
    let scalar = "tensor<complex<f32>>";
    for op in ["stablehlo.dot_general %z, %w, contracting_dims = [0] x [0]", "stablehlo.dot %z, %w"] {
        let body = format!("{z} %r = {op} : ({FOUR}, {FOUR}) -> {scalar}\n");
        holds(&(body + &expect("%r", "(-2.25, 3.34375)", scalar)));
    }
    let repeated = "%z = stablehlo.constant dense<[(1.0, 2.0)]> : tensor<1xcomplex<f32>>
        %r = \"stablehlo.broadcast\"(%z) <{broadcast_sizes = array<i64: 2>}> : (tensor<1xcomplex<f32>>) -> tensor<2x1xcomplex<f32>>\n"
    .to_owned();
    holds(&(repeated + &expect("%r", "[[(1.0, 2.0)], [(1.0, 2.0)]]", "tensor<2x1xcomplex<f32>>")));
}

#[test]
fn arguments_and_results_are_pairs_that_split_and_join() {
    let program = imported(
        "func.func @main(%n: tensor<i32>, %z: tensor<2xcomplex<f32>> {tf.aliasing_output = 1 : i32}) -> (tensor<2xf32>, tensor<2xcomplex<f32>>) {
           %re = stablehlo.real %z : (tensor<2xcomplex<f32>>) -> tensor<2xf32>
           %w = stablehlo.multiply %z, %z : tensor<2xcomplex<f32>>
           return %re, %w : tensor<2xf32>, tensor<2xcomplex<f32>>
         }",
    );
    let face = &program.interface.arguments[1];
    assert_eq!((face.element, face.first), (SourceElement::Complex(DType::F32), 1));
    assert_eq!(face.element.name(), "complex<f32>");
    assert_eq!(program.program.donated, [(1, 1), (2, 2)]);
    let bytes: Vec<u8> = [1f32, 2.0, -3.0, 0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut parts = face.split(&bytes).unwrap();
    assert_eq!(parts[0].to_f32s(), [1.0, -3.0]);
    assert!(face.split(&bytes[1..]).is_err());
    parts.insert(0, Literal::scalar(DType::I32, 0.0));
    let results = interp::run(&program.program.graph, &parts.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(results[0].to_f32s(), [1.0, -3.0]);
    let joined = program.interface.results[1].join(&[&results[1], &results[2]]).unwrap();
    let expected: Vec<u8> = [-3f32, 4.0, 8.75, -3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(joined, expected);
    assert!(program.interface.results[1].join(&[&results[1]]).is_err());
}

#[test]
fn bits_of_complex_numbers_lie_as_pairs() {
    holds(
        &("%z = stablehlo.constant dense<[(1.0, 2.0), (-3.0, 0.5)]> : tensor<2xcomplex<f32>>
           %r = stablehlo.bitcast_convert %z : (tensor<2xcomplex<f32>>) -> tensor<2x2xf32>\n"
            .to_owned()
            + &expect("%r", "[[1.0, 2.0], [-3.0, 0.5]]", "tensor<2x2xf32>")),
    );
    holds(
        &("%z = stablehlo.constant dense<\"0x0000803F000000400000804000000000\"> : tensor<2xcomplex<f32>>
           %r = stablehlo.bitcast_convert %z : (tensor<2xcomplex<f32>>) -> tensor<2xi64>
           %s = stablehlo.bitcast_convert %r : (tensor<2xi64>) -> tensor<2xcomplex<f32>>\n"
            .to_owned()
            + &expect("%s", "[(1.0, 2.0), (4.0, 0.0)]", "tensor<2xcomplex<f32>>")),
    );
}

#[test]
fn whole_numbers_of_four_bits_wrap() {
    let of = |op: &str, ty: &str, a: &str, b: &str, expected: &str| {
        let ty = format!("tensor<3x{ty}>");
        holds(&format!(
            "%a = stablehlo.constant dense<{a}> : {ty}\n %b = stablehlo.constant dense<{b}> : {ty}
             %r = stablehlo.{op} %a, %b : {ty}
             check.expect_eq_const %r, dense<{expected}> : {ty}"
        ));
    };
    of("add", "i4", "[7, -8, 3]", "[1, -1, 4]", "[-8, 7, 7]");
    of("multiply", "i4", "[7, -8, 3]", "[7, -8, 4]", "[1, 0, -4]");
    of("subtract", "ui4", "[0, 15, 3]", "[1, 15, 9]", "[15, 0, 10]");
    of("shift_right_logical", "i4", "[-1, -8, 7]", "[1, 3, 2]", "[7, 1, 1]");
    of("add", "i2", "[1, -2, 0]", "[1, -1, 1]", "[-2, 1, 1]");
    of("subtract", "ui2", "[0, 3, 2]", "[1, 1, 3]", "[3, 2, 3]");
    holds(
        "%a = stablehlo.constant dense<[-1, 5]> : tensor<2xi4>
         %n = stablehlo.popcnt %a : tensor<2xi4>
         check.expect_eq_const %n, dense<[4, 2]> : tensor<2xi4>
         %b = stablehlo.bitcast_convert %a : (tensor<2xi4>) -> tensor<ui8>
         check.expect_eq_const %b, dense<95> : tensor<ui8>
         %c = stablehlo.bitcast_convert %b : (tensor<ui8>) -> tensor<2xui4>
         check.expect_eq_const %c, dense<[15, 5]> : tensor<2xui4>
         %f = stablehlo.constant dense<[-9.5, 6.5]> : tensor<2xf32>
         %i = stablehlo.convert %f : (tensor<2xf32>) -> tensor<2xi4>
         check.expect_eq_const %i, dense<[-8, 6]> : tensor<2xi4>",
    );
}

#[test]
fn eight_bit_floats_round_after_each_op() {
    holds(
        "%a = stablehlo.constant dense<[448.0, 1.0, 0x38, 0.001953125]> : tensor<4xf8E4M3FN>
         %b = stablehlo.constant dense<[448.0, 0.0625, 1.125, 0.5]> : tensor<4xf8E4M3FN>
         %s = stablehlo.add %a, %b : tensor<4xf8E4M3FN>
         check.expect_eq_const %s, dense<[0x7F, 1.0, 2.0, 0.5]> : tensor<4xf8E4M3FN>
         %p = stablehlo.multiply %a, %b : tensor<4xf8E4M3FN>
         check.expect_eq_const %p, dense<[0x7F, 0.0625, 1.125, 0.0]> : tensor<4xf8E4M3FN>
         %i = stablehlo.bitcast_convert %p : (tensor<4xf8E4M3FN>) -> tensor<4xui8>
         check.expect_eq_const %i, dense<[127, 24, 57, 0]> : tensor<4xui8>
         %w = stablehlo.convert %b : (tensor<4xf8E4M3FN>) -> tensor<4xf8E5M2>
         %x = stablehlo.convert %w : (tensor<4xf8E5M2>) -> tensor<4xf32>
         check.expect_eq_const %x, dense<[448.0, 0.0625, 1.0, 0.5]> : tensor<4xf32>",
    );
}

/// FNV-1a
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf29ce484222325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100000001b3))
}

/// Hashes of all f16 but NaN (as 0) encoded in the format, and of all codes of the format as f32 (NaN as 0x7FC00000),
/// by ml_dtypes.
const HASHES: [(Narrow, u64, u64); 11] = [
    (Narrow::F4E2M1FN, 0x4fbf3a0aa82d1d2d, 0x2403bb76b85dfea5),
    (Narrow::F6E2M3FN, 0x90a8c8f61efe1305, 0x7ffacb24ad8b0aa5),
    (Narrow::F6E3M2FN, 0xb83f0ab5f26b3905, 0x25da13434201d785),
    (Narrow::F8E3M4, 0x9637fd05fc6f4aa5, 0xf47936f19e549625),
    (Narrow::F8E4M3, 0xfcb1692ee3f905a5, 0x225eaf4799a27e65),
    (Narrow::F8E4M3B11FNUZ, 0x74ab5bc8bef325a5, 0xd90d7a600530d158),
    (Narrow::F8E4M3FN, 0x2eb882a2b43582a5, 0xdad1d9c50f749ca5),
    (Narrow::F8E4M3FNUZ, 0xbd85090eefab25a5, 0xf51851cb11c63018),
    (Narrow::F8E5M2, 0x007c0a443f4b7ba5, 0x6c1e56b6fb09c905),
    (Narrow::F8E5M2FNUZ, 0x5f8a8f17d3f809a5, 0x94ae6fc493d49818),
    (Narrow::F8E8M0FNU, 0x34cc8ed8406c9b06, 0x6d2c8b41c3f0e5a5),
];

#[test]
fn every_f16_becomes_the_bits_that_ml_dtypes_makes_of_it() {
    for (narrow, encoded, decoded) in HASHES {
        let bits = (0..=u16::MAX).map(|b| Scalar::from_bits(DType::F16, b.into()).as_f64());
        let bits = bits.map(|x| if x.is_nan() { 0 } else { narrow.encode(x) });
        assert_eq!(hash(bits), encoded, "{}", narrow.name());
        let all = (0..1u16 << narrow.bits()).map(|b| narrow.decode(b as u8) as f32);
        let all = all.map(|x| if x.is_nan() { 0x7FC00000 } else { x.to_bits() });
        assert_eq!(hash(all.flat_map(u32::to_le_bytes)), decoded, "{}", narrow.name());
    }
}

#[test]
fn the_graph_rounds_as_one_number_is_rounded() {
    let halves: Vec<f32> = (0..=u16::MAX)
        .step_by(7)
        .map(|b| Scalar::from_bits(DType::F16, b.into()).as_f64() as f32)
        .filter(|x| !x.is_nan())
        .chain([f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1e-40, 5.9e-39, 0.0, -0.0])
        .collect();
    let n = halves.len();
    for (narrow, ..) in HASHES {
        let name = narrow.name();
        let program = imported(&format!(
            "func.func @main(%x: tensor<{n}xf32>) -> tensor<{n}x{name}> {{
               %r = stablehlo.convert %x : (tensor<{n}xf32>) -> tensor<{n}x{name}>
               return %r : tensor<{n}x{name}>
             }}"
        ));
        let x = Literal::from_slice([n], &halves).unwrap();
        let results = interp::run(&program.program.graph, &[&x]).unwrap();
        let bytes = program.interface.results[0].join(&[&results[0]]).unwrap();
        for (x, byte) in halves.iter().zip(&bytes) {
            assert_eq!(*byte, narrow.encode(f64::from(*x)), "{name} of {x}");
        }
        let back = program.interface.results[0].split(&bytes).unwrap().remove(0);
        assert_eq!(back.ty(), &TensorType::new(DType::F32, [n]));
        let same = |i: usize| {
            let (a, b) = (back.get(i).as_f64(), results[0].get(i).as_f64());
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        };
        assert!((0..n).all(same), "{name}");
    }
}
