//! Tests programs as JAX emits them: multi-op reductions, sorts with JAX's comparators, 64-bit iota.

mod common;

use common::{backend, levels, oracle, run};
use std::sync::Arc;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, Literal, LiteralBuilder, Scalar, TensorType, text};

/// JAX's body of argmax: the first maximum; NaN wins.
fn argmax(dims: &str, shape: &str, out: &str) -> Arc<Graph> {
    text::parse(&argmax_text(dims, shape, out)).unwrap_or_else(|e| panic!("{e}"))
}

fn argmax_text(dims: &str, shape: &str, out: &str) -> String {
    format!(
        r#"module @m {{ func.func public @main(%x: tensor<{shape}xf32>, %i: tensor<{shape}xi32>) -> (tensor<{out}f32>, tensor<{out}i32>) {{
  %a = "stablehlo.constant"() <{{value = dense<0xFF800000> : tensor<f32>}}> : () -> tensor<f32>
  %b = "stablehlo.constant"() <{{value = dense<0> : tensor<i32>}}> : () -> tensor<i32>
  %0:2 = "stablehlo.reduce"(%x, %i, %a, %b) <{{dimensions = array<i64: {dims}>}}> ({{
  ^bb0(%p: tensor<f32>, %q: tensor<i32>, %r: tensor<f32>, %s: tensor<i32>):
    %2 = "stablehlo.compare"(%p, %r) <{{comparison_direction = #stablehlo<comparison_direction GT>, compare_type = #stablehlo<comparison_type FLOAT>}}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %3 = "stablehlo.compare"(%p, %p) <{{comparison_direction = #stablehlo<comparison_direction NE>, compare_type = #stablehlo<comparison_type FLOAT>}}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %4 = "stablehlo.or"(%2, %3) : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %5 = "stablehlo.compare"(%p, %r) <{{comparison_direction = #stablehlo<comparison_direction EQ>, compare_type = #stablehlo<comparison_type FLOAT>}}> : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %6 = "stablehlo.compare"(%q, %s) <{{comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>}}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %7 = "stablehlo.and"(%5, %6) : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %8 = "stablehlo.or"(%4, %7) : (tensor<i1>, tensor<i1>) -> tensor<i1>
    %9 = "stablehlo.select"(%4, %p, %r) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %10 = "stablehlo.select"(%8, %q, %s) : (tensor<i1>, tensor<i32>, tensor<i32>) -> tensor<i32>
    "stablehlo.return"(%9, %10) : (tensor<f32>, tensor<i32>) -> ()
  }}) : (tensor<{shape}xf32>, tensor<{shape}xi32>, tensor<f32>, tensor<i32>) -> (tensor<{out}f32>, tensor<{out}i32>)
  return %0#0, %0#1 : tensor<{out}f32>, tensor<{out}i32>
}} }}"#
    )
}

/// Few different numbers, so that many are equal, plus special numbers.
fn drawn(shape: &[usize], seed: u64) -> Literal {
    let ty = TensorType::new(DType::F32, shape);
    let mut s = RandomStream::new(seed, 0, 0);
    let values = [0.0, -0.0, 1.0, -1.0, 2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN, 1e-40];
    let mut b = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let odd = s.below(40);
        let value = if odd < 10 { values[odd as usize] } else { s.below(50) as f64 * 0.25 - 6.0 };
        b.set(i, Scalar::Float(value));
    }
    b.finish()
}

fn bits(l: &Literal) -> Vec<u64> {
    (0..l.ty().elements())
        .map(|i| match l.get(i) {
            Scalar::Float(v) if v.is_nan() => u64::MAX,
            v => v.to_bits(l.dtype()),
        })
        .collect()
}

fn check(graph: &Arc<Graph>, args: &[Literal]) {
    let want = oracle(graph, args);
    for level in levels() {
        let got = run(&backend(level, 2), graph, args);
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(bits(got) == bits(want), "result {k} on {level:?}");
        }
    }
}

#[test]
fn the_place_of_the_greatest_is_found_by_neighbours() {
    let cases: [(&str, &[usize], &str); 6] = [
        ("1", &[40, 300], "40x"),
        ("0", &[301, 33], "33x"),
        ("0, 1", &[64, 65], ""),
        ("1", &[16, 257, 3], "16x3x"),
        ("0, 2", &[17, 16, 31], "16x"),
        ("1", &[3, 5], "3x"),
    ];
    for (seed, (dims, shape, out)) in cases.into_iter().enumerate() {
        let named = shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        let x = drawn(shape, seed as u64);
        let n = x.ty().elements() as i32;
        let places = Literal::from_slice(shape, &(0..n).map(|i| i * 7919 % n).collect::<Vec<_>>()).unwrap();
        check(&argmax(dims, &named, out), &[x, places]);
    }
}

/// As JAX calls the body: positions come from iota, and only the position is a result.
#[test]
fn the_place_of_an_extreme_is_two_plain_folds() {
    for (dims, shape, out, along) in
        [("1", "40x300", "40x", 1), ("0", "301x33", "33x", 0), ("1", "16x257x3", "16x3x", 1)]
    {
        for direction in ["GT", "LT"] {
            let (ty, places) = (format!("tensor<{shape}xf32>"), format!("tensor<{shape}xi32>"));
            let numbered = format!(
                "(%x: {ty}) -> (tensor<{out}i32>) {{\n  %i = \"stablehlo.iota\"() <{{iota_dimension = {along} : i64}}> : () -> {places}"
            );
            let given = format!("(%x: {ty}, %i: {places}) -> (tensor<{out}f32>, tensor<{out}i32>) {{");
            let text = argmax_text(dims, shape, out)
                .replace(&given, &numbered)
                .replace("comparison_direction GT", &format!("comparison_direction {direction}"))
                .replace("0xFF800000", if direction == "GT" { "0xFF800000" } else { "0x7F800000" })
                .replace(&format!("return %0#0, %0#1 : tensor<{out}f32>, "), "return %0#1 : ");
            let graph = text::parse(&text).unwrap_or_else(|e| panic!("{e}"));
            let (optimized, _) = systole_compile::optimize(&graph).unwrap();
            let folds = optimized.nodes.iter().filter(|n| matches!(n.op, systole_ir::Op::Reduce(_))).count();
            assert_eq!(folds, 2, "{optimized:?}");
            let dims: Vec<usize> = shape.split('x').map(|d| d.parse().unwrap()).collect();
            let x = drawn(&dims, 3);
            check(&graph, std::slice::from_ref(&x));
            // Rows without NaN, and rows of infinities only.
            let values = x.to_f32s();
            let finite: Vec<f32> = values.iter().map(|v| if v.is_nan() { -0.0 } else { *v }).collect();
            check(&graph, &[Literal::from_slice(&dims[..], &finite).unwrap()]);
            let low = if direction == "GT" { f32::NEG_INFINITY } else { f32::INFINITY };
            check(&graph, &[Literal::from_slice(&dims[..], &vec![low; values.len()]).unwrap()]);
        }
    }
}

/// A sort of f32[4, 600] along with the positions.
fn sort(comparator: &str) -> Arc<Graph> {
    sort_along(1, comparator, "return %0#0, %0#1 : tensor<4x600xf32>, tensor<4x600xi32>")
}

fn sort_along(dim: usize, comparator: &str, and_then: &str) -> Arc<Graph> {
    let results = and_then.rsplit_once(" : ").unwrap().1;
    let text = format!(
        r#"module @m {{ func.func public @main(%x: tensor<4x600xf32>, %i: tensor<4x600xi32>) -> ({results}) {{
  %0:2 = "stablehlo.sort"(%x, %i) <{{dimension = {dim} : i64, is_stable = true}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):
{comparator}
  }}) : (tensor<4x600xf32>, tensor<4x600xi32>) -> (tensor<4x600xf32>, tensor<4x600xi32>)
  {and_then}
}} }}"#
    );
    text::parse(&text).unwrap_or_else(|e| panic!("{e}"))
}

fn compare(a: &str, b: &str, direction: &str, kind: &str, ty: &str) -> String {
    format!(
        r#""stablehlo.compare"({a}, {b}) <{{comparison_direction = #stablehlo<comparison_direction {direction}>, compare_type = #stablehlo<comparison_type {kind}>}}> : (tensor<{ty}>, tensor<{ty}>) -> tensor<i1>"#
    )
}

fn plain_compare(a: &str, b: &str, direction: &str, kind: &str, ty: &str) -> String {
    format!("%y = {}\n\"stablehlo.return\"(%y) : (tensor<i1>) -> ()", compare(a, b, direction, kind, ty))
}

/// JAX's comparator: zeros of both signs are equal, and so are all NaN.
fn canonical(direction: &str) -> String {
    let mut all = String::from(
        "%z = \"stablehlo.constant\"() <{value = dense<0.0> : tensor<f32>}> : () -> tensor<f32>\n\
         %n = \"stablehlo.constant\"() <{value = dense<0x7FC00000> : tensor<f32>}> : () -> tensor<f32>\n",
    );
    for v in ["a", "b"] {
        let select = "(tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>";
        let (zero, nan) = (
            compare(&format!("%{v}"), "%z", "EQ", "FLOAT", "f32"),
            compare(&format!("%{v}"), &format!("%{v}"), "NE", "FLOAT", "f32"),
        );
        all += &format!(
            "%e{v} = {zero}\n%s{v} = \"stablehlo.select\"(%e{v}, %z, %{v}) : {select}\n\
             %m{v} = {nan}\n%k{v} = \"stablehlo.select\"(%m{v}, %n, %s{v}) : {select}\n"
        );
    }
    format!(
        "{all}%y = {}\n\"stablehlo.return\"(%y) : (tensor<i1>) -> ()",
        compare("%ka", "%kb", direction, "TOTALORDER", "f32")
    )
}

/// Slices of a sort: the kernel computes only the part that they read.
#[test]
fn the_first_of_sorted_lines_are_those_of_the_sort() {
    let x = drawn(&[4, 600], 5);
    let places =
        Literal::from_slice([4, 600], &(0..2400).map(|i| i * 31 % 90).collect::<Vec<i32>>()).unwrap();
    let slice = |of: usize, limits: &str, ty: &str, out: &str| {
        format!(
            "%s{of} = \"stablehlo.slice\"(%0#{of}) <{{start_indices = array<i64: 0, 0>, limit_indices = array<i64: {limits}>, strides = array<i64: 1, 1>}}> : (tensor<4x600x{ty}>) -> tensor<{out}x{ty}>\n"
        )
    };
    let by_two = "%e = \"stablehlo.add\"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>\n".to_string()
        + &plain_compare("%a", "%b", "LT", "TOTALORDER", "f32");
    let comparators =
        [canonical("GT"), canonical("LT"), plain_compare("%c", "%d", "LT", "SIGNED", "i32"), by_two];
    for comparator in &comparators {
        for (dim, limits, out) in [
            (1, "4, 1", "4x1"),
            (1, "4, 8", "4x8"),
            (1, "4, 64", "4x64"),
            (1, "4, 65", "4x65"),
            (1, "4, 599", "4x599"),
            (0, "2, 600", "2x600"),
        ] {
            let both = format!(
                "{}{}return %s0, %s1 : tensor<{out}xf32>, tensor<{out}xi32>",
                slice(0, limits, "f32", out),
                slice(1, limits, "i32", out)
            );
            let graph = sort_along(dim, comparator, &both);
            let listing = systole_compile::schedule(&graph, &Default::default()).unwrap().to_string();
            assert!(listing.contains("top_k"), "{listing}");
            check(&graph, &[x.clone(), places.clone()]);
            let one = format!("{}return %s1 : tensor<{out}xi32>", slice(1, limits, "i32", out));
            check(&sort_along(dim, comparator, &one), &[x.clone(), places.clone()]);
        }
        // Rows of another shape are other rows.
        let reshaped = "%r = \"stablehlo.reshape\"(%0#1) : (tensor<4x600xi32>) -> tensor<600x4xi32>\n\
             %s = \"stablehlo.slice\"(%r) <{start_indices = array<i64: 0, 0>, limit_indices = array<i64: 600, 1>, strides = array<i64: 1, 1>}> : (tensor<600x4xi32>) -> tensor<600x1xi32>\n\
             return %s : tensor<600x1xi32>";
        check(&sort_along(1, comparator, reshaped), &[x.clone(), places.clone()]);
        // Results with other readers are sorted completely.
        let whole = format!(
            "{}return %s0, %0#1 : tensor<4x8xf32>, tensor<4x600xi32>",
            slice(0, "4, 8", "f32", "4x8")
        );
        check(&sort_along(1, comparator, &whole), &[x.clone(), places.clone()]);
    }
}

#[test]
fn sorts_by_keys_and_by_comparisons_are_the_interpreters() {
    let x = drawn(&[4, 600], 9);
    let places =
        Literal::from_slice([4, 600], &(0..2400).map(|i| i * 31 % 90).collect::<Vec<i32>>()).unwrap();
    let plain = plain_compare;
    let two = format!(
        "%e = {}\n%l = {}\n%i2 = {}\n%t = \"stablehlo.and\"(%e, %i2) : (tensor<i1>, tensor<i1>) -> tensor<i1>\n\
         %y = \"stablehlo.or\"(%l, %t) : (tensor<i1>, tensor<i1>) -> tensor<i1>\n\"stablehlo.return\"(%y) : (tensor<i1>) -> ()",
        compare("%a", "%b", "EQ", "TOTALORDER", "f32"),
        compare("%a", "%b", "LT", "TOTALORDER", "f32"),
        compare("%c", "%d", "GT", "SIGNED", "i32")
    );
    let comparators = [
        canonical("LT"),
        canonical("GT"),
        plain("%a", "%b", "LT", "TOTALORDER", "f32"),
        plain("%b", "%a", "LT", "TOTALORDER", "f32"),
        plain("%a", "%b", "GT", "TOTALORDER", "f32"),
        plain("%c", "%d", "LT", "SIGNED", "i32"),
        plain("%c", "%d", "GT", "SIGNED", "i32"),
        plain("%d", "%c", "GE", "SIGNED", "i32"),
        two,
    ];
    for comparator in comparators {
        check(&sort(&comparator), &[x.clone(), places.clone()]);
    }
    // With NaN that is neither below nor above there is no order to preserve.
    let finite: Vec<f32> = x.to_f32s().into_iter().map(|v| if v.is_nan() { -0.0 } else { v }).collect();
    let x = Literal::from_slice([4, 600], &finite).unwrap();
    check(&sort(&plain("%a", "%b", "LT", "FLOAT", "f32")), &[x.clone(), places.clone()]);
    check(&sort(&plain("%a", "%b", "GT", "FLOAT", "f32")), &[x, places]);
}

/// `(ui64 indices of f32[rows, columns], their lower and upper halves)`, times `by`.
fn numbered(rows: usize, columns: usize, by: u64) -> Arc<Graph> {
    let ty = format!("tensor<{rows}x{columns}xui64>");
    let half = ty.replace("ui64", "ui32");
    let constant = |name: &str, value: u64| {
        format!(
            "%{name}s = \"stablehlo.constant\"() <{{value = dense<{value}> : tensor<ui64>}}> : () -> tensor<ui64>\n\
             %{name} = \"stablehlo.broadcast_in_dim\"(%{name}s) <{{broadcast_dimensions = array<i64>}}> : (tensor<ui64>) -> {ty}\n"
        )
    };
    let binary = |name: &str, op: &str, a: &str, b: &str| {
        format!("%{name} = \"stablehlo.{op}\"(%{a}, %{b}) : ({ty}, {ty}) -> {ty}\n")
    };
    let iota =
        |d: usize| format!("%i{d} = \"stablehlo.iota\"() <{{iota_dimension = {d} : i64}}> : () -> {ty}\n");
    let convert =
        |to: &str, from: &str| format!("%{to} = \"stablehlo.convert\"(%{from}) : ({ty}) -> {half}\n");
    let text = [
        format!("module @m {{ func.func public @main() -> ({ty}, {half}, {half}) {{\n"),
        [constant("c", columns as u64 * by), constant("b", 32), iota(0), iota(1)].concat(),
        [binary("r", "multiply", "c", "i0"), binary("n", "add", "r", "i1")].concat(),
        [binary("u", "shift_right_logical", "n", "b"), convert("l", "n"), convert("h", "u")].concat(),
        format!("return %n, %l, %h : {ty}, {half}, {half}\n}} }}"),
    ];
    text::parse(&text.concat()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn numbers_of_elements_have_their_halves() {
    // Small ones, and some that exceed 32 bits.
    for by in [1, 3, 1 << 20, 1 << 27, 1 << 40] {
        check(&numbered(33, 65, by), &[]);
    }
}
