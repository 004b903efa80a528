//! Programs with quantized types (`!quant.uniform`), computed by the interpreter of the IR.

use systole_base::{DType, Literal};
use systole_mlir::read_text;

/// Runs `main` on 8-bit arguments.
fn run(text: &str, arguments: &[Literal]) -> Literal {
    let program = read_text(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let arguments: Vec<&Literal> = arguments.iter().collect();
    systole_ir::interp::run(&program.graph, &arguments).unwrap().remove(0)
}

fn i8s(dims: &[usize], all: &[i8]) -> Literal {
    Literal::from_slice(dims, all).unwrap()
}

fn f32s(all: &[f32]) -> Literal {
    Literal::from_slice([all.len()], all).unwrap()
}

#[test]
fn the_specifications_examples_hold() {
    let q = "!quant.uniform<i8:f32:0, {0.1:-30, 0.5:-20}>";
    let of = |op: &str, from: &str, to: &str| {
        format!(
            "func.func @main(%a: tensor<2x{from}>) -> tensor<2x{to}> {{
               %0 = \"stablehlo.{op}\"(%a) : (tensor<2x{from}>) -> tensor<2x{to}>
               return %0 : tensor<2x{to}> }}"
        )
    };
    let y = run(&of("uniform_dequantize", q, "f32"), &[i8s(&[2], &[10, 10])]);
    assert_eq!(y.to_f32s(), [4.0, 15.0]);
    let y = run(&of("uniform_quantize", "f32", q), &[f32s(&[4.0, 15.0])]);
    assert_eq!((y.dtype(), y.to_f32s()), (DType::I8, vec![10.0, 10.0]));
    let other = "!quant.uniform<i8:f32:0, {0.1:-20, 0.2:-30}>";
    let y = run(&of("uniform_quantize", q, other), &[i8s(&[2], &[10, 10])]);
    assert_eq!(y.to_f32s(), [20.0, 45.0]);
    // Beyond the range of the integers, and of a narrower stated range.
    let y = run(&of("uniform_quantize", "f32", q), &[f32s(&[1000.0, -1000.0])]);
    assert_eq!(y.to_f32s(), [127.0, -128.0]);
    let narrow = "!quant.uniform<u8<1:200>:f32, 1.0:128>";
    let y = run(&of("uniform_quantize", "f32", narrow), &[f32s(&[1000.0, -1000.0])]);
    assert_eq!((y.dtype(), y.to_f32s()), (DType::U8, vec![200.0, 1.0]));
}

#[test]
fn products_and_sums_are_computed_on_reals_and_rounded() {
    let text = "func.func @main(%a: tensor<1x3x!quant.uniform<i8:f32, 0.5:-4>>, %b: tensor<3x2x!quant.uniform<i8:f32:1, {0.25, 0.125}>>)
        -> tensor<1x2x!quant.uniform<i8:f32, 0.75:10>> {
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
        : (tensor<1x3x!quant.uniform<i8:f32, 0.5:-4>>, tensor<3x2x!quant.uniform<i8:f32:1, {0.25, 0.125}>>) -> tensor<1x2x!quant.uniform<i8:f32, 0.75:10>>
      %1 = stablehlo.add %0, %0 : tensor<1x2x!quant.uniform<i8:f32, 0.75:10>>
      return %1 : tensor<1x2x!quant.uniform<i8:f32, 0.75:10>>
    }";
    let (a, b) = ([5i8, -7, 20], [3i8, -2, 9, 4, -11, 6]);
    let y = run(text, &[i8s(&[1, 3], &a), i8s(&[3, 2], &b)]);
    let expected = [0, 1].map(|column| {
        let scale = [0.25, 0.125][column];
        let dot: f64 =
            (0..3).map(|k| 0.5 * (f64::from(a[k]) + 4.0) * scale * f64::from(b[2 * k + column])).sum();
        let q = (dot / 0.75).round_ties_even() + 10.0;
        ((2.0 * 0.75 * (q - 10.0) / 0.75).round_ties_even() + 10.0).clamp(-128.0, 127.0)
    });
    assert_eq!(y.to_f64s(), expected);
}

#[test]
fn movement_constants_and_reductions_keep_integers() {
    let q = "!quant.uniform<i8:f32, 0.5:3>";
    let text = format!(
        "func.func @main(%a: tensor<2x2x{q}>) -> tensor<2x{q}> {{
           %c = stablehlo.constant() {{value = dense<7> : tensor<i8>}} : () -> tensor<{q}>
           %0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x2x{q}>) -> tensor<2x2x{q}>
           %1 = stablehlo.reduce(%0 init: %c) applies stablehlo.maximum across dimensions = [1]
             : (tensor<2x2x{q}>, tensor<{q}>) -> tensor<2x{q}>
           return %1 : tensor<2x{q}> }}"
    );
    let program = read_text(&text).unwrap();
    let y = run(&text, &[i8s(&[2, 2], &[1, 90, -5, 20])]);
    assert_eq!((y.dtype(), y.to_f32s()), (DType::I8, vec![7.0, 90.0]));
    assert!(program.graph.nodes.iter().all(|n| !n.op.name().contains("multiply")), "{:?}", program.graph);
}

#[test]
fn what_is_no_quantized_type_is_refused() {
    let of = |from: &str, to: &str| {
        format!(
            "func.func @main(%a: tensor<2x{from}>) -> tensor<2x{to}> {{
               %0 = stablehlo.uniform_quantize %a : (tensor<2x{from}>) -> tensor<2x{to}>
               return %0 : tensor<2x{to}> }}"
        )
    };
    for (text, part) in [
        (of("f32", "f32"), "quantized type"),
        (of("f32", "!quant.uniform<i8:f32:0, {0.1, 0.2, 0.3}>"), "3 scales"),
        (of("f32", "!quant.uniform<i8:f32:{0:1, 1:2}, {{0.1}, {0.2}}>"), "per tensor or per axis"),
        (of("f32", "!quant.uniform<i8:f32, {0.1, 0.2}>"), "no axis"),
    ] {
        let told = read_text(&text).map(|_| ()).unwrap_err().to_string();
        assert!(told.contains(part), "{told}");
    }
}
