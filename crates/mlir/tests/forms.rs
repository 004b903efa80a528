//! Tests that the pretty form of every op equals its generic form, and that every op sample round-trips.

use systole_base::{ErrorKind, Literal};
use systole_ir::{interp, op, text};
use systole_mlir::read_text;

/// Returns a program with one function.
fn program(parameters: &str, body: &str, results: &str) -> String {
    format!("func.func @main({parameters}) -> ({results}) {{\n{body}\n}}")
}

/// Asserts that two bodies give the same graph.
#[track_caller]
fn same(parameters: &str, results: &str, pretty: &str, generic: &str) {
    let read = |body: &str| {
        let text = program(parameters, body, results);
        read_text(&text).unwrap_or_else(|e| panic!("{text}\n{e}")).graph
    };
    assert_eq!(text::print(&read(pretty)), text::print(&read(generic)), "{pretty}");
}

#[test]
fn every_sample_of_every_op_is_read_as_it_was_written() {
    let mut count = 0;
    for entry in op::TABLE.iter() {
        for sample in (entry.samples)() {
            let written = text::print(&sample.graph);
            let read = read_text(&written).unwrap_or_else(|e| panic!("{}: {e}\n{written}", entry.name));
            assert_eq!(text::print(&read.graph), written, "{}", entry.name);
            count += 1;
        }
    }
    assert!(count > 1000, "{count}");
}

/// Runs a program of one argument `x: f32[2]` on [3, 4].
fn run(body: &str, results: &str) -> Vec<Vec<f64>> {
    let read =
        read_text(&program("%x: tensor<2xf32>", body, results)).unwrap_or_else(|e| panic!("{body}\n{e}"));
    let x = Literal::from_slice([2], &[3f32, 4.0]).unwrap();
    interp::run(&read.graph, &[&x]).unwrap().iter().map(Literal::to_f64s).collect()
}

/// A large array of equal elements is a broadcast scalar; 2³³ elements fit as one.
#[test]
fn equal_elements_are_not_expanded() {
    let program = |ty: &str, value: &str| {
        format!(
            "func.func @main() -> tensor<{ty}> {{\n%0 = stablehlo.constant dense<{value}> : tensor<{ty}>\nreturn %0 : tensor<{ty}>\n}}"
        )
    };
    for (ty, value) in [
        ("2000xf32", "1.5"),
        ("40x50xi1", "true"),
        ("2000xi4", "-3"),
        ("2000xcomplex<f32>", "(1.5, -2.0)"),
        ("2000xf8E4M3FN", "0.5"),
    ] {
        let (large, small) =
            (program(ty, value), program(&ty.replacen("2000", "2", 1).replacen("40x50", "2", 1), value));
        let run = |text: &str| interp::run(&read_text(text).unwrap().graph, &[]).unwrap();
        let (large, small) = (run(&large), run(&small));
        assert_eq!(large.len(), small.len());
        for (large, small) in large.iter().zip(&small) {
            assert_eq!((large.dtype(), large.ty().elements()), (small.dtype(), 2000), "{ty}");
            assert!(large.to_f64s().iter().all(|x| *x == small.to_f64s()[0]), "{ty}");
        }
    }
    let read = read_text(&program("131072x65536xf32", "2.5")).unwrap();
    let held = |n: &systole_ir::Node| matches!(&n.op, op::Op::Constant(c) if c.value.ty().elements() > 1);
    assert!(!read.graph.nodes.iter().any(held));
}

/// JAX's asynchronous collectives: their results are there when they start.
#[test]
fn asynchronous_ops_run_in_order() {
    let body = "%0 = \"stablehlo.async_start\"(%x) ({
        ^bb0(%a: tensor<2xf32>):
          %3 = \"stablehlo.multiply\"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
          stablehlo.return %3 : tensor<2xf32>
        }) : (tensor<2xf32>) -> !stablehlo.future<tensor<2xf32>>
        stablehlo.custom_call @control_dep(%0, %x) {has_side_effect = true} : (!stablehlo.future<tensor<2xf32>>, tensor<2xf32>) -> ()
        %1 = \"stablehlo.async_done\"(%0) : (!stablehlo.future<tensor<2xf32>>) -> tensor<2xf32>
        return %1 : tensor<2xf32>";
    assert_eq!(run(body, "tensor<2xf32>"), [[9.0, 16.0]]);
    let wrong = read_text(&program(
        "%x: tensor<2xf32>",
        "%0 = \"stablehlo.async_done\"(%x) : (tensor<2xf32>) -> tensor<2xf32>
        return %0 : tensor<2xf32>",
        "tensor<2xf32>",
    ));
    let e = wrong.unwrap_err();
    assert!(e.kind() == ErrorKind::Data && e.to_string().contains("future"), "{e}");
}

/// Products that overflow the operands' type: 100 · 100 + 100 · 100, and two trues.
#[test]
fn products_of_integers_may_have_floating_point_results() {
    for to in ["f32", "f64", "bf16"] {
        let body = format!(
            "%0 = stablehlo.constant dense<100> : tensor<2xi8>
            %1 = \"stablehlo.dot_general\"(%0, %0) <{{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0],
              rhs_contracting_dimensions = [0]>}}> : (tensor<2xi8>, tensor<2xi8>) -> tensor<{to}>
            return %1 : tensor<{to}>"
        );
        let wanted = if to == "bf16" { 19968.0 } else { 20000.0 };
        assert_eq!(run(&body, &format!("tensor<{to}>")), [[wanted]]);
    }
    for to in ["i32", "ui8", "f32"] {
        let body = format!(
            "%0 = stablehlo.constant dense<true> : tensor<2xi1>
            %1 = \"stablehlo.dot_general\"(%0, %0) <{{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [0],
              rhs_contracting_dimensions = [0]>}}> : (tensor<2xi1>, tensor<2xi1>) -> tensor<{to}>
            return %1 : tensor<{to}>"
        );
        assert_eq!(run(&body, &format!("tensor<{to}>")), [[2.0]]);
    }
}

/// Powers by small constants are products, divisions and roots with the values of the op; others stay.
#[test]
fn powers_by_small_constants_become_products() {
    let special = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, -1.0, -2.5, 1e30, -1e-30];
    let value = |i: usize| if i < special.len() { special[i] } else { i as f64 * 0.013 - 2.0 };
    let values: Vec<f64> = (0..300).map(value).collect();
    for (dtype, tolerance) in [("f64", 4e-16), ("f32", 2e-7), ("bf16", 2e-7)] {
        for exponent in ["-1.0", "0.5", "2.0", "3.0", "4.0", "2.5"] {
            // The exponent of `pow` is a constant array, that of `kept` an argument.
            let ty = format!("tensor<300x{dtype}>");
            let text = |own: &str, name: &str| {
                let body = format!("{own}%0 = stablehlo.power %x, {name} : {ty}\nreturn %0 : {ty}");
                program(&format!("%x: {ty}, %y: {ty}"), &body, &ty)
            };
            let constant = format!("%c = stablehlo.constant dense<{exponent}> : {ty}\n");
            let [short, kept] = [text(&constant, "%c"), text("", "%y")].map(|t| read_text(&t).unwrap().graph);
            let stays = exponent == "2.5" || dtype == "bf16" && ["3.0", "4.0"].contains(&exponent);
            let has_power = short.nodes.iter().any(|n| n.op.name() == "power");
            assert_eq!(has_power, stays, "{dtype} {exponent}");
            let x = Literal::from_slice([300], &values).unwrap().convert(short.param_types()[0].dtype);
            let exponents = [exponent.parse::<f64>().unwrap(); 300];
            let y = Literal::from_slice([300], &exponents).unwrap().convert(x.dtype());
            let [a, b] = [kept, short].map(|g| interp::run(&g, &[&x, &y]).unwrap().remove(0).to_f64s());
            for ((a, b), x) in a.iter().zip(&b).zip(&values) {
                let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                let is_near = *a != 0.0 && (a - b).abs() <= a.abs() * tolerance;
                assert!(same || is_near, "{dtype}: {x} ^ {exponent} = {a} or {b}");
            }
        }
    }
}

#[test]
fn element_wise_ops_name_one_type_or_all() {
    let x = "%a: tensor<2xf32>, %b: tensor<2xf32>";
    let generic = "%0 = \"stablehlo.add\"(%a, %b) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
        func.return %0 : tensor<2xf32>";
    same(
        x,
        "tensor<2xf32>",
        "%0 = stablehlo.add %a, %b : tensor<2xf32>\n return %0 : tensor<2xf32>",
        generic,
    );
    let all = "%0 = stablehlo.add %a, %b : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>";
    same(x, "tensor<2xf32>", all, generic);
    same(
        "%p: tensor<2xi1>, %a: tensor<2xf32>",
        "tensor<2xf32>",
        "%0 = stablehlo.select %p, %a, %a : tensor<2xi1>, tensor<2xf32>\n return %0 : tensor<2xf32>",
        "%0 = \"stablehlo.select\"(%p, %a, %a) : (tensor<2xi1>, tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
         return %0 : tensor<2xf32>",
    );
    same(
        "%a: tensor<2xf32>",
        "tensor<2xi1>",
        "%0 = stablehlo.compare  LT, %a, %a,  FLOAT : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>\n return %0 : tensor<2xi1>",
        "%0 = \"stablehlo.compare\"(%a, %a) <{compare_type = #stablehlo<comparison_type FLOAT>,
            comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
         return %0 : tensor<2xi1>",
    );
    same(
        "%a: tensor<2xf32>",
        "tensor<2xf32>",
        "%0 = chlo.erf_inv %a : tensor<2xf32> -> tensor<2xf32>\n return %0 : tensor<2xf32>",
        "%0 = \"chlo.erf_inv\"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>",
    );
}

#[test]
fn tokens_come_and_go_as_arrays_of_no_elements() {
    let program = "func.func @main(%a: tensor<2xf32>, %t: !stablehlo.token) -> (!stablehlo.token, tensor<2xf32>, !stablehlo.token) {
        %0 = stablehlo.create_token : !stablehlo.token
        return %0, %a, %t : !stablehlo.token, tensor<2xf32>, !stablehlo.token
    }";
    let graph = read_text(program).unwrap().graph;
    let of = |types: Vec<systole_base::TensorType>| types.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(of(graph.param_types()), ["f32[2]", "i1[0]"]);
    assert_eq!(of(graph.result_types()), ["i1[0]", "f32[2]", "i1[0]"]);
}

#[test]
fn a_value_that_jax_keeps_is_no_result() {
    same(
        "%a: tensor<2xf32>",
        "tensor<2xf32>",
        "stablehlo.custom_call @dce_sink(%a) {has_side_effect = true} : (tensor<2xf32>) -> ()\n return %a : tensor<2xf32>",
        "return %a : tensor<2xf32>",
    );
}

#[test]
fn shapes_are_changed_by_words() {
    let x = "%a: tensor<2x3xf32>";
    let cases = [
        (
            "tensor<4x2x3xf32>",
            "stablehlo.broadcast_in_dim %a, dims = [1, 2]",
            "\"stablehlo.broadcast_in_dim\"(%a) <{broadcast_dimensions = array<i64: 1, 2>}>",
        ),
        (
            "tensor<3x2xf32>",
            "stablehlo.transpose %a, dims = [1, 0]",
            "\"stablehlo.transpose\"(%a) {permutation = dense<[1, 0]> : tensor<2xi64>}",
        ),
        ("tensor<6xf32>", "stablehlo.reshape %a", "\"stablehlo.reshape\"(%a)"),
        (
            "tensor<1x2xf32>",
            "stablehlo.slice %a [1:2, 0:3:2]",
            "\"stablehlo.slice\"(%a) {start_indices = array<i64: 1, 0>, limit_indices = array<i64: 2, 3>, strides = array<i64: 1, 2>}",
        ),
        (
            "tensor<2x3xf32>",
            "stablehlo.reverse %a, dims = [1]",
            "\"stablehlo.reverse\"(%a) {dimensions = array<i64: 1>}",
        ),
        ("tensor<2x3xf64>", "stablehlo.convert %a", "\"stablehlo.convert\"(%a)"),
        (
            "tensor<2x3xf32>",
            "stablehlo.reduce_precision %a, format = e5m10",
            "\"stablehlo.reduce_precision\"(%a) {exponent_bits = 5 : i32, mantissa_bits = 10 : i32}",
        ),
    ];
    for (to, pretty, generic) in cases {
        let body = |op: &str| format!("%0 = {op} : (tensor<2x3xf32>) -> {to}\n return %0 : {to}");
        same(x, to, &body(pretty), &body(generic));
    }
    let parts = "(tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<4x3xf32>\n return %0 : tensor<4x3xf32>";
    same(
        x,
        "tensor<4x3xf32>",
        &format!("%0 = stablehlo.concatenate %a, %a, dim = 0 : {parts}"),
        &format!("%0 = \"stablehlo.concatenate\"(%a, %a) {{dimension = 0 : i64}} : {parts}"),
    );
    let padded = "(tensor<2x3xf32>, tensor<f32>) -> tensor<3x5xf32>\n return %0 : tensor<3x5xf32>";
    same(
        "%a: tensor<2x3xf32>, %z: tensor<f32>",
        "tensor<3x5xf32>",
        &format!("%0 = stablehlo.pad %a, %z, low = [1, 0], high = [0, 2], interior = [0, 0] : {padded}"),
        &format!(
            "%0 = \"stablehlo.pad\"(%a, %z) {{edge_padding_low = array<i64: 1, 0>, edge_padding_high = array<i64: 0, 2>,
             interior_padding = array<i64: 0, 0>}} : {padded}"
        ),
    );
}

#[test]
fn products_and_convolutions() {
    same(
        "%a: tensor<5x2x3xf32>, %b: tensor<5x3x4xf32>",
        "tensor<5x2x4xf32>",
        "%0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT]
            : (tensor<5x2x3xf32>, tensor<5x3x4xf32>) -> tensor<5x2x4xf32>
         return %0 : tensor<5x2x4xf32>",
        "%0 = \"stablehlo.dot_general\"(%a, %b) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0],
            rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>,
            precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]}>
            : (tensor<5x2x3xf32>, tensor<5x3x4xf32>) -> tensor<5x2x4xf32>
         return %0 : tensor<5x2x4xf32>",
    );
    same(
        "%a: tensor<1x8x8x2xf32>, %k: tensor<3x3x2x4xf32>",
        "tensor<1x4x4x4xf32>",
        "%0 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
            window = {stride = [2, 2], pad = [[1, 1], [1, 1]], rhs_dilate = [1, 1]}
            {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
            : (tensor<1x8x8x2xf32>, tensor<3x3x2x4xf32>) -> tensor<1x4x4x4xf32>
         return %0 : tensor<1x4x4x4xf32>",
        "%0 = \"stablehlo.convolution\"(%a, %k) <{dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>,
            window_strides = array<i64: 2, 2>, padding = dense<1> : tensor<2x2xi64>,
            batch_group_count = 1 : i64, feature_group_count = 1 : i64}>
            : (tensor<1x8x8x2xf32>, tensor<3x3x2x4xf32>) -> tensor<1x4x4x4xf32>
         return %0 : tensor<1x4x4x4xf32>",
    );
}

#[test]
fn folds_and_loops_have_regions() {
    let body = "({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %1 = stablehlo.maximum %x, %y : tensor<f32>
        \"stablehlo.return\"(%1) : (tensor<f32>) -> () })";
    same(
        "%a: tensor<2x3xf32>, %z: tensor<f32>",
        "tensor<2xf32>",
        "%0 = stablehlo.reduce(%a init: %z) applies stablehlo.maximum across dimensions = [1]
            : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
         return %0 : tensor<2xf32>",
        &format!(
            "%0 = \"stablehlo.reduce\"(%a, %z) <{{dimensions = array<i64: 1>}}> {body}
                : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
             return %0 : tensor<2xf32>"
        ),
    );
    let loop_of = |head: &str, arguments: &str| {
        format!(
            "%n = stablehlo.constant dense<5> : tensor<i32>
             %one = stablehlo.constant dense<1> : tensor<i32>
             {head} {{ {arguments}
                %3 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
                stablehlo.return %3 : tensor<i1>"
        )
    };
    let step = "%4 = stablehlo.add %i, %one : tensor<i32>
                %5 = stablehlo.add %x, %x : tensor<f32>
                stablehlo.return %4, %5 : tensor<i32>, tensor<f32>";
    let pretty = loop_of("%0:2 = stablehlo.while(%i = %c, %x = %a) : tensor<i32>, tensor<f32> cond", "");
    let generic = loop_of("%0:2 = \"stablehlo.while\"(%c, %a) (", "^bb0(%i: tensor<i32>, %x: tensor<f32>):");
    same(
        "%c: tensor<i32>, %a: tensor<f32>",
        "tensor<f32>",
        &format!("{pretty} }} do {{ {step} }}\n return %0#1 : tensor<f32>"),
        &format!(
            "{generic} }}, {{ ^bb0(%i: tensor<i32>, %x: tensor<f32>): {step} }})
             : (tensor<i32>, tensor<f32>) -> (tensor<i32>, tensor<f32>)\n return %0#1 : tensor<f32>"
        ),
    );
}

#[test]
fn several_arrays_are_folded_in_pairs() {
    let text = program(
        "%a: tensor<3xf32>, %i: tensor<3xi32>, %z: tensor<f32>, %n: tensor<i32>",
        "%0:2 = stablehlo.reduce(%a init: %z), (%i init: %n) across dimensions = [0]
            : (tensor<3xf32>, tensor<3xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
          reducer(%x: tensor<f32>, %y: tensor<f32>) (%p: tensor<i32>, %q: tensor<i32>) {
            %1 = stablehlo.compare GT, %x, %y, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
            %2 = stablehlo.select %1, %x, %y : tensor<i1>, tensor<f32>
            %3 = stablehlo.select %1, %p, %q : tensor<i1>, tensor<i32>
            stablehlo.return %2, %3 : tensor<f32>, tensor<i32>
          }
         return %0#0, %0#1 : tensor<f32>, tensor<i32>",
        "tensor<f32>, tensor<i32>",
    );
    let graph = read_text(&text).unwrap().graph;
    let x = Literal::from_slice([3], &[2f32, 7.0, 5.0]).unwrap();
    let i = Literal::from_slice([3], &[0i32, 1, 2]).unwrap();
    let (z, n) =
        (Literal::scalar(systole_base::DType::F32, -1.0), Literal::scalar(systole_base::DType::I32, 0.0));
    let out = interp::run(&graph, &[&x, &i, &z, &n]).unwrap();
    assert_eq!((out[0].to_f32s()[0], out[1].to_f64s()[0]), (7.0, 1.0));
}

#[test]
fn functions_are_unfolded_and_what_surrounds_them_is_read() {
    let text = r#"
#loc1 = loc("x")
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["data"=2]>
  func.func public @main(%arg0: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>, tf.aliasing_output = 0 : i32} loc("x"))
      -> (tensor<4xf32> {jax.result_info = "", mhlo.layout_mode = "default"}) {
    %0 = call @twice(%arg0) : (tensor<4xf32>) -> tensor<4xf32> loc(#loc1)
    %1 = func.call @twice(%0) : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @twice(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %cst = stablehlo.constant dense<[1.0, 0x7FC00000, 2.5e-1, -3.0]> : tensor<4xf32>
    %0 = stablehlo.add %arg0, %cst : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
#loc = loc(unknown)
"#;
    let program = read_text(text).unwrap();
    assert_eq!((program.donated.as_slice(), program.graph.nodes.len()), (&[(0, 0)][..], 5));
    let spread = program.spread.unwrap();
    assert!(spread.params[0] != spread.results[0], "the parameter is split, the result is not");
    let out = interp::run(&program.graph, &[&Literal::from_slice([4], &[0f32; 4]).unwrap()]).unwrap();
    let out = out[0].to_f32s();
    assert_eq!((out[0], out[1].is_nan(), out[2], out[3]), (2.0, true, 0.5, -6.0));
}

#[test]
fn what_is_wrong_is_told_with_line_column_and_op() {
    let cases = [
        (
            "%0 = stablehlo.add %a, %c : tensor<2xf32>\n return %0 : tensor<2xf32>",
            ErrorKind::Data,
            "`%c` has no result 0",
            "line 2:24",
        ),
        (
            "%0 = \"stablehlo.nonesuch\"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>",
            ErrorKind::Unsupported,
            "unsupported op stablehlo.nonesuch",
            "line 2:6",
        ),
        (
            "%0 = stablehlo.add %a, %a : tensor<3xf32>\n return %0 : tensor<3xf32>",
            ErrorKind::Data,
            "operand has type tensor<2xf32>",
            "line 2",
        ),
        (
            "%0 = stablehlo.custom_call @fancy(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>",
            ErrorKind::Unsupported,
            "`fancy`",
            "stablehlo.custom_call",
        ),
        (
            "%0 = stablehlo.reshape %a : (tensor<2xf32>) -> tensor<3xf32>\n return %0 : tensor<3xf32>",
            ErrorKind::Data,
            "reshape",
            "line 2:6",
        ),
        (
            "%0 = func.call @f(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>",
            ErrorKind::Data,
            "unknown function @f",
            "line 2",
        ),
        (
            "%0 = func.call @main(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32>",
            ErrorKind::Unsupported,
            "@main is recursive",
            "line 2",
        ),
    ];
    for (body, kind, what, at) in cases {
        let e = read_text(&program("%a: tensor<2xf32>", body, "tensor<2xf32>")).unwrap_err();
        let told = e.to_string();
        assert!(e.kind() == kind && told.contains(what) && told.contains(at), "{body}\n{told}");
    }
}

/// Truncated or modified text gives an error or a program, never a panic.
#[test]
fn damaged_text_is_an_error_or_a_program() {
    let whole: Vec<String> =
        op::TABLE.iter().filter_map(|entry| Some(text::print(&(entry.samples)().first()?.graph))).collect();
    let mut stream = systole_base::rng::RandomStream::new(7, 1, 2);
    for text in &whole {
        for end in (0..text.len()).step_by(7).filter(|i| text.is_char_boundary(*i)) {
            let _ = read_text(&text[..end]);
        }
        for _ in 0..20 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..3 {
                let at = stream.next_u32() as usize % bytes.len();
                bytes[at] = b"{}()<>=,:%#@!\"x0-9? \n"[stream.next_u32() as usize % 21];
            }
            let _ = read_text(&String::from_utf8_lossy(&bytes));
        }
    }
}

#[test]
fn nodes_know_the_line_of_their_op_through_calls_and_regions() {
    let text = "func.func @main(%a: tensor<2xf32>) -> tensor<f32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = call @f(%a) : (tensor<2xf32>) -> tensor<2xf32>
  %1 = stablehlo.reduce(%0 init: %c) across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
   reducer(%x: tensor<f32>, %y: tensor<f32>) {
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }
  return %1 : tensor<f32>
}
func.func private @f(%a: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.tanh %a : tensor<2xf32>
  return %0 : tensor<2xf32>
}";
    let module = systole_mlir::text::parse(text).unwrap();
    let program = systole_mlir::import::program(&module).unwrap();
    let graph = &program.program.graph;
    let line = |name: &str| {
        let node = graph.nodes.iter().position(|n| n.op.name() == name).unwrap();
        program.place(node).unwrap().line
    };
    assert_eq!([line("constant"), line("tanh"), line("reduce")], [2, 12, 4]);
    assert_eq!(program.place(graph.nodes.len()), None);
}

/// Printed modules parse unchanged, whatever form they came from.
#[test]
fn what_is_written_is_read_as_it_was() {
    fn places(region: &mut systole_mlir::syntax::MlirRegion) {
        for op in &mut region.operations {
            op.place = Default::default();
            op.regions.iter_mut().for_each(places);
        }
    }
    let read = |text: &str| {
        let mut module = systole_mlir::text::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        module.functions.iter_mut().for_each(|f| places(&mut f.body));
        module
    };
    let text = r#"module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=4]>
  sdy.mesh @turned = <["x"=2, "y"=2], device_ids=[3, 2, 1, 0]>
  func.func public @main(%a: tensor<4x?xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>} loc("a \"b\""), %p: tensor<i1>) -> (tensor<3xf32> {jax.result_info = "r"}, tensor<2x2xf32>) attributes {x.flag} {
    %c:2 = "stablehlo.if"(%p) ({
      %z = stablehlo.constant dense<[[1.0, 2.5], [-1.0e-3, 0x7F800000]]> : tensor<2x2xf32>
      stablehlo.return %z, %z : tensor<2x2xf32>, tensor<2x2xf32>
    }, {
      %z = stablehlo.constant dense<"0x00000000000000000000000000000000"> : tensor<2x2xf32>
      %i = stablehlo.constant dense<(1.0, -2.0)> : tensor<2xcomplex<f32>>
      stablehlo.return %z, %z : tensor<2x2xf32>, tensor<2x2xf32>
    }) : (tensor<i1>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %0 = stablehlo.slice %c#1 [0:1, 0:2:2] : (tensor<2x2xf32>) -> tensor<1x1xf32>
    %1 = stablehlo.custom_call @"odd name"(%0) {api_version = 4 : i32, mhlo.backend_config = {a = 3 : ui8, b = "q\22\0A"}} : (tensor<1x1xf32>) -> tensor<3xf32>
    %2 = sdy.manual_computation(%1) in_shardings=[<@mesh, [{}]>] out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%b: tensor<3xf32>) {
      %3 = stablehlo.reduce_precision %b, format = e5m7 : tensor<3xf32>
      sdy.return %3 : tensor<3xf32>
    } : (tensor<3xf32>) -> tensor<3xf32>
    %4 = stablehlo.dot_general %c#0, %c#1, contracting_dims = [1] x [0], precision = [HIGHEST, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    %5 = stablehlo.transpose %4, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %6 = sdy.sharding_constraint %5 <@mesh, [{}, {"y"}]> : tensor<2x2xf32>
    sdy.sharding_group %6 group_id=3 : tensor<2x2xf32>
    return %2, %6 : tensor<3xf32>, tensor<2x2xf32>
  }
  func.func private @nothing()
}
{-# dialect_resources: { builtin: { blob: "0x04000000FF00" } } #-}"#;
    let module = read(text);
    let written = systole_mlir::text::write(&module);
    assert_eq!(read(&written), module, "{written}");
    assert_eq!(systole_mlir::text::write(&read(&written)), written);
}
