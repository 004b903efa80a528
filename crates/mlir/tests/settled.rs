//! Tests of dynamic shapes with constant operands, bodies with captured values, and decomposed ops.

use systole_base::{ErrorKind, Literal};
use systole_ir::interp;
use systole_mlir::import::program;
use systole_mlir::{read_text, text};

/// Runs a function without arguments.
fn results(text: &str) -> Vec<Vec<f64>> {
    let graph = read_text(text).unwrap_or_else(|e| panic!("{e}\n{text}")).graph;
    interp::run(&graph, &[]).unwrap().iter().map(Literal::to_f64s).collect()
}

/// Runs a program whose assertions must hold.
fn holds(source: &str) {
    let imported = program(&text::parse(source).unwrap()).unwrap_or_else(|e| panic!("{e}\n{source}"));
    assert!(!imported.checks.is_empty(), "nothing is claimed");
    let results = interp::run(&imported.program.graph, &[]).unwrap();
    let mut rest = results.as_slice();
    for check in &imported.checks {
        let (these, others) = rest.split_at(check.arrays());
        check.run(&these.iter().collect::<Vec<_>>()).unwrap();
        rest = others;
    }
}

/// Returns the error of a program.
fn refused(text: &str) -> (ErrorKind, String) {
    let error = read_text(text).expect_err(text);
    (error.kind(), error.to_string())
}

#[test]
fn shapes_computed_of_constants_are_settled_also_through_calls() {
    let out = results(
        "func.func @main() -> (tensor<2x3xi32>, tensor<6xi32>) {
            %n = stablehlo.constant dense<3> : tensor<i64>
            %x = stablehlo.constant dense<[7, 8, 9]> : tensor<3xi32>
            %0 = call @rows(%n, %x) : (tensor<i64>, tensor<3xi32>) -> tensor<2x3xi32>
            %1 = call @flat(%0) : (tensor<2x3xi32>) -> tensor<6xi32>
            return %0, %1 : tensor<2x3xi32>, tensor<6xi32>
        }
        func.func private @rows(%n: tensor<i64>, %x: tensor<?xi32>) -> tensor<2x?xi32> {
            %two = stablehlo.constant dense<2> : tensor<1xi32>
            %0 = stablehlo.convert %n : (tensor<i64>) -> tensor<i32>
            %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
            %2 = stablehlo.concatenate %two, %1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
            %3 = stablehlo.dynamic_broadcast_in_dim %x, %2, dims = [1] : (tensor<?xi32>, tensor<2xi32>) -> tensor<2x?xi32>
            return %3 : tensor<2x?xi32>
        }
        func.func private @flat(%x: tensor<2x?xi32>) -> tensor<?xi32> {
            %n = stablehlo.get_dimension_size %x, dim = 1 : (tensor<2x?xi32>) -> tensor<i32>
            %two = stablehlo.constant dense<2> : tensor<i32>
            %0 = stablehlo.multiply %n, %two : tensor<i32>
            %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
            %2 = stablehlo.dynamic_reshape %x, %1 : (tensor<2x?xi32>, tensor<1xi32>) -> tensor<?xi32>
            return %2 : tensor<?xi32>
        }",
    );
    assert_eq!(out[0], [7.0, 8.0, 9.0, 7.0, 8.0, 9.0]);
    assert_eq!(out[1], out[0]);
}

#[test]
fn dynamic_ops_are_the_static_ones_with_their_shapes() {
    let out = results(
        "func.func @main() -> (tensor<?xi32>, tensor<?xf32>, tensor<?xi32>) {
            %x = stablehlo.constant dense<[1, 2, 3, 4]> : tensor<4xi32>
            %zero = stablehlo.constant dense<0> : tensor<i32>
            %a = stablehlo.constant dense<1> : tensor<1xi64>
            %b = stablehlo.constant dense<4> : tensor<1xi64>
            %s = stablehlo.constant dense<2> : tensor<1xi64>
            %0 = stablehlo.real_dynamic_slice %x, %a, %b, %s : (tensor<4xi32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?xi32>
            %1 = stablehlo.dynamic_iota %b, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
            %2 = stablehlo.dynamic_pad %0, %zero, %a, %s, %a : (tensor<?xi32>, tensor<i32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<?xi32>
            return %0, %1, %2 : tensor<?xi32>, tensor<?xf32>, tensor<?xi32> }",
    );
    assert_eq!(out[0], [2.0, 4.0]);
    assert_eq!(out[1], [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(out[2], [0.0, 2.0, 0.0, 4.0, 0.0, 0.0]);
}

#[test]
fn a_loop_keeps_the_sizes_of_its_start() {
    let out = results(
        "func.func @main() -> tensor<?xf32> {
            %n = stablehlo.constant dense<2> : tensor<1xi32>
            %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
            %c = stablehlo.constant dense<0> : tensor<i32>
            %1:2 = stablehlo.while(%i = %c, %x = %0) : tensor<i32>, tensor<?xf32>
            cond {
                %k = stablehlo.constant dense<3> : tensor<i32>
                %2 = stablehlo.compare LT, %i, %k : (tensor<i32>, tensor<i32>) -> tensor<i1>
                stablehlo.return %2 : tensor<i1>
            } do {
                %one = stablehlo.constant dense<1> : tensor<i32>
                %3 = stablehlo.add %i, %one : tensor<i32>
                %4 = stablehlo.add %x, %x : tensor<?xf32>
                stablehlo.return %3, %4 : tensor<i32>, tensor<?xf32>
            }
            return %1#1 : tensor<?xf32> }",
    );
    assert_eq!(out[0], [0.0, 8.0]);
}

#[test]
fn what_nothing_settles_is_refused_with_the_op_and_what_to_do() {
    let (kind, said) = refused(
        "func.func @main(%n: tensor<1xi32>) -> tensor<?xf32> {
            %0 = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
            return %0 : tensor<?xf32> }",
    );
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(
        said.contains("line 2:18, stablehlo.dynamic_iota") && said.contains("only at run time"),
        "{said}"
    );
    let (kind, said) =
        refused("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }");
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(said.contains("tensor<?xf32>") && said.contains("argument"), "{said}");
    let (_, said) = refused(
        "func.func @main() {
            %f = stablehlo.constant dense<false> : tensor<i1>
            %n = stablehlo.constant dense<3> : tensor<i32>
            stablehlo.custom_call @shape_assertion(%f, %n) {error_message = \"size {0} is odd\", has_side_effect = true} : (tensor<i1>, tensor<i32>) -> ()
            return }",
    );
    assert!(said.contains("size {0} is odd") && said.contains("[3]"), "{said}");
    for (op, name) in [("infeed", "infeed"), ("recv", "recv")] {
        let (kind, said) = refused(&format!(
            "func.func @main() -> tensor<f32> {{
                %t = stablehlo.create_token : !stablehlo.token
                %0:2 = \"stablehlo.{op}\"(%t) : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
                return %0#0 : tensor<f32> }}"
        ));
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(said.contains(&format!("unsupported op stablehlo.{name}")), "{said}");
    }
}

#[test]
fn bodies_use_constants_and_numbers_from_outside() {
    let out = results(
        "func.func @main() -> (tensor<2xf32>, tensor<3xf32>, tensor<3xf32>) {
            %x = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
            %k = stablehlo.constant dense<2.0> : tensor<f32>
            %zero = stablehlo.constant dense<0.0> : tensor<f32>
            %0 = \"stablehlo.reduce\"(%x, %zero) ({^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %1 = stablehlo.multiply %b, %k : tensor<f32>
                %2 = stablehlo.add %a, %1 : tensor<f32>
                stablehlo.return %2 : tensor<f32>}) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
            %v = stablehlo.constant dense<[3.0, -1.0, 2.0]> : tensor<3xf32>
            %c = \"stablehlo.reduce\"(%v, %zero) ({^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %1 = stablehlo.add %a, %b : tensor<f32>
                stablehlo.return %1 : tensor<f32>}) {dimensions = array<i64: 0>} : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
            %3 = \"stablehlo.sort\"(%v) ({^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %4 = stablehlo.subtract %a, %c : tensor<f32>
                %5 = stablehlo.subtract %b, %c : tensor<f32>
                %6 = stablehlo.abs %4 : tensor<f32>
                %7 = stablehlo.abs %5 : tensor<f32>
                %8 = stablehlo.compare LT, %6, %7 : (tensor<f32>, tensor<f32>) -> tensor<i1>
                stablehlo.return %8 : tensor<i1>}) {dimension = 0 : i64, is_stable = true} : (tensor<3xf32>) -> tensor<3xf32>
            %9 = \"stablehlo.map\"(%v) ({^bb0(%a: tensor<f32>):
                %10 = stablehlo.add %a, %c : tensor<f32>
                stablehlo.return %10 : tensor<f32>}) {dimensions = array<i64: 0>} : (tensor<3xf32>) -> tensor<3xf32>
            return %0, %3, %9 : tensor<2xf32>, tensor<3xf32>, tensor<3xf32> }",
    );
    assert_eq!(out[0], [12.0, 30.0]);
    assert_eq!(out[1], [3.0, 2.0, -1.0]);
    assert_eq!(out[2], [7.0, 3.0, 6.0]);
}

/// A captured value that is known only at run time, in reduction bodies.
#[test]
fn folds_take_a_number_that_is_no_constant() {
    let text = "func.func @main(%k: tensor<f32>) -> (tensor<2xf32>, tensor<3xf32>) {
        %x = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = \"stablehlo.reduce\"(%x, %zero) ({^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %1 = stablehlo.multiply %b, %k : tensor<f32>
            %2 = stablehlo.add %a, %1 : tensor<f32>
            stablehlo.return %2 : tensor<f32>}) {dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>
        %v = stablehlo.constant dense<[1.0, 1.0, 1.0]> : tensor<3xf32>
        %i = stablehlo.constant dense<[[2], [2]]> : tensor<2x1xi32>
        %u = stablehlo.constant dense<[5.0, 7.0]> : tensor<2xf32>
        %3 = \"stablehlo.scatter\"(%v, %i, %u) ({^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %4 = stablehlo.multiply %b, %k : tensor<f32>
            %5 = stablehlo.add %a, %4 : tensor<f32>
            stablehlo.return %5 : tensor<f32>}) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>} : (tensor<3xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<3xf32>
        return %0, %3 : tensor<2xf32>, tensor<3xf32> }";
    let graph = read_text(text).unwrap_or_else(|e| panic!("{e}")).graph;
    let k = Literal::scalar(systole_base::DType::F32, 10.0);
    let out = interp::run(&graph, &[&k]).unwrap();
    assert_eq!(out[0].to_f64s(), [60.0, 150.0]);
    assert_eq!(out[1].to_f64s(), [1.0, 1.0, 121.0]);
}

#[test]
fn einsums_are_products_sums_and_orders() {
    let out = results(
        "func.func @main() -> (tensor<2x2xf32>, tensor<2xf32>, tensor<3x2xf32>) {
            %a = stablehlo.constant dense<[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]> : tensor<2x3xf32>
            %b = stablehlo.constant dense<[[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]]> : tensor<2x3xf32>
            %0 = stablehlo.einsum %a, %b, config = \"ab,cb->ca\" : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
            %1 = stablehlo.einsum %a, %b, config = \"ab,ab->a\" : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2xf32>
            %2 = \"stablehlo.unary_einsum\"(%a) {einsum_config = \"ab->ba\"} : (tensor<2x3xf32>) -> tensor<3x2xf32>
            return %0, %1, %2 : tensor<2x2xf32>, tensor<2xf32>, tensor<3x2xf32> }",
    );
    assert_eq!(out[0], [4.0, 10.0, 4.0, 10.0]);
    assert_eq!(out[1], [4.0, 10.0]);
    assert_eq!(out[2], [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let (_, said) = refused(
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
            %0 = \"stablehlo.unary_einsum\"(%a) {einsum_config = \"ab->b\"} : (tensor<2xf32>) -> tensor<2xf32>
            return %0 : tensor<2xf32> }",
    );
    assert!(said.contains("stablehlo.unary_einsum") && said.contains("`ab->b`"), "{said}");
}

/// The specification's example for inference; the others by its formulas.
#[test]
fn batches_are_normalised_by_feature() {
    let out = results(
        "func.func @main() -> (tensor<2x2x2xf64>, tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2x2xbf16>) {
            %x = stablehlo.constant dense<[[[1.0, 2.0], [3.0, 4.0]], [[3.0, 4.0], [1.0, 2.0]]]> : tensor<2x2x2xf64>
            %one = stablehlo.constant dense<1.0> : tensor<2xf64>
            %m = stablehlo.constant dense<[2.0, 3.0]> : tensor<2xf64>
            %0 = \"stablehlo.batch_norm_inference\"(%x, %one, %one, %m, %one) {epsilon = 0.0 : f32, feature_index = 2 : i64} : (tensor<2x2x2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>, tensor<2xf64>) -> tensor<2x2x2xf64>
            %y = stablehlo.constant dense<[[1.0, 2.0], [3.0, 6.0]]> : tensor<2x2xf32>
            %s = stablehlo.constant dense<[2.0, 1.0]> : tensor<2xf32>
            %o = stablehlo.constant dense<[0.5, -1.0]> : tensor<2xf32>
            %1:3 = \"stablehlo.batch_norm_training\"(%y, %s, %o) {epsilon = 0.0 : f32, feature_index = 1 : i64} : (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>)
            %b = stablehlo.constant dense<[[1.0, 2.0], [3.0, 6.0]]> : tensor<2x2xbf16>
            %c = stablehlo.constant dense<[2.0, 1.0]> : tensor<2xbf16>
            %2:3 = \"stablehlo.batch_norm_training\"(%b, %c, %c) {epsilon = 0.0 : f32, feature_index = 1 : i64} : (tensor<2x2xbf16>, tensor<2xbf16>, tensor<2xbf16>) -> (tensor<2x2xbf16>, tensor<2xbf16>, tensor<2xbf16>)
            return %0, %1#0, %1#1, %1#2, %2#0 : tensor<2x2x2xf64>, tensor<2x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2x2xbf16> }",
    );
    assert_eq!(out[0], [0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0]);
    assert_eq!(out[1], [-1.5, -2.0, 2.5, 0.0]);
    assert_eq!((&out[2][..], &out[3][..]), (&[2.0, 4.0][..], &[1.0, 4.0][..]));
    assert_eq!(out[4], [0.0, 0.0, 4.0, 2.0]);
    let out = results(
        "func.func @main() -> (tensor<3x1xf32>, tensor<1xf32>, tensor<1xf32>) {
            %x = stablehlo.constant dense<[[0.0], [1.0], [5.0]]> : tensor<3x1xf32>
            %s = stablehlo.constant dense<2.0> : tensor<1xf32>
            %m = stablehlo.constant dense<2.0> : tensor<1xf32>
            %v = stablehlo.constant dense<4.5> : tensor<1xf32>
            %g = stablehlo.constant dense<[[1.0], [0.0], [0.0]]> : tensor<3x1xf32>
            %0:3 = \"stablehlo.batch_norm_grad\"(%x, %s, %m, %v, %g) {epsilon = 4.5 : f32, feature_index = 1 : i64} : (tensor<3x1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<1xf32>, tensor<3x1xf32>) -> (tensor<3x1xf32>, tensor<1xf32>, tensor<1xf32>)
            return %0#0, %0#1, %0#2 : tensor<3x1xf32>, tensor<1xf32>, tensor<1xf32> }",
    );
    // scale/3/3 · (3 g − 1 − (x − 2) · (−2)/9)
    let expected = [2.0f64 - 4.0 / 9.0, -1.0 - 2.0 / 9.0, -1.0 + 6.0 / 9.0].map(|v| v * 2.0 / 9.0);
    assert!(out[0].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{:?} {expected:?}", out[0]);
    assert!((out[1][0] + 2.0 / 3.0).abs() < 1e-6 && out[2] == [1.0], "{out:?}");
    let (_, said) = refused(
        "func.func @main(%x: tensor<2x3xf32>, %s: tensor<2xf32>) -> tensor<2x3xf32> {
            %0:3 = \"stablehlo.batch_norm_training\"(%x, %s, %s) {epsilon = 0.0 : f32, feature_index = 1 : i64} : (tensor<2x3xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)
            return %0#0 : tensor<2x3xf32> }",
    );
    assert!(said.contains("stablehlo.batch_norm_training") && said.contains("3 features"), "{said}");
}

#[test]
fn slices_are_selected_by_index_with_and_without_a_batch() {
    let out = results(
        "func.func @main() -> (tensor<2x2xi32>, tensor<2x2xi32>) {
            %x = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
            %i = stablehlo.constant dense<[2, 0]> : tensor<2xi32>
            %0 = \"stablehlo.torch_index_select\"(%x, %i) {dim = 1 : i64, batch_dims = 0 : i64} : (tensor<2x3xi32>, tensor<2xi32>) -> tensor<2x2xi32>
            %j = stablehlo.constant dense<[[2, 1], [0, 0]]> : tensor<2x2xi32>
            %1 = \"stablehlo.torch_index_select\"(%x, %j) {dim = 1 : i64, batch_dims = 1 : i64} : (tensor<2x3xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
            return %0, %1 : tensor<2x2xi32>, tensor<2x2xi32> }",
    );
    assert_eq!(out[0], [3.0, 1.0, 6.0, 4.0]);
    assert_eq!(out[1], [3.0, 2.0, 4.0, 4.0]);
}

#[test]
fn bools_and_numbers_share_bits_and_if_takes_a_branch() {
    let out = results(
        "func.func @main() -> (tensor<ui8>, tensor<8xi1>, tensor<i32>) {
            %b = stablehlo.constant dense<[true, false, true, true, false, false, false, true]> : tensor<8xi1>
            %0 = stablehlo.bitcast_convert %b : (tensor<8xi1>) -> tensor<ui8>
            %1 = stablehlo.bitcast_convert %0 : (tensor<ui8>) -> tensor<8xi1>
            %p = stablehlo.constant dense<true> : tensor<i1>
            %2 = \"stablehlo.if\"(%p) ({
                %3 = stablehlo.constant dense<1> : tensor<i32>
                stablehlo.return %3 : tensor<i32>
            }, {
                %4 = stablehlo.constant dense<2> : tensor<i32>
                stablehlo.return %4 : tensor<i32>
            }) : (tensor<i1>) -> tensor<i32>
            return %0, %1, %2 : tensor<ui8>, tensor<8xi1>, tensor<i32> }",
    );
    assert_eq!((out[0][0], out[2][0]), (0b1000_1101 as f64, 1.0));
    assert_eq!(out[1], [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn devices_of_run_parallel_exchange_their_values() {
    holds(
        "module @m {
            func.func @f(%x: tensor<2xi64>) -> tensor<2xi64> {
                %0 = \"stablehlo.all_reduce\"(%x) ({^bb0(%a: tensor<i64>, %b: tensor<i64>):
                    %1 = stablehlo.add %a, %b : tensor<i64>
                    stablehlo.return %1 : tensor<i64>}) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xi64>) -> tensor<2xi64>
                %2 = \"stablehlo.collective_permute\"(%0) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xi64>) -> tensor<2xi64>
                return %2 : tensor<2xi64>
            }
            func.func @main() {
                %a = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
                %b = stablehlo.constant dense<[30, 40]> : tensor<2xi64>
                %r:2 = \"interpreter.run_parallel\"(%a, %b) {programs = [[@f], [@f]]} : (tensor<2xi64>, tensor<2xi64>) -> (tensor<2xi64>, tensor<2xi64>)
                check.expect_eq_const %r#0, dense<[0, 0]> : tensor<2xi64>
                check.expect_eq_const %r#1, dense<[31, 42]> : tensor<2xi64>
                func.return
            }
        }",
    );
}

#[test]
fn a_broadcast_between_devices_takes_the_first_of_each_group() {
    let graph = read_text(
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
            %0 = \"stablehlo.collective_broadcast\"(%x) {replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 0, type = 0>} : (tensor<2xf32>) -> tensor<2xf32>
            return %0 : tensor<2xf32> }",
    )
    .unwrap()
    .graph;
    let [a, b] = [[1f32, 2.0], [3.0, 4.0]].map(|v| Literal::from_slice([2], &v).unwrap());
    let out = interp::run_devices(&graph, systole_ir::op::DeviceCounts::replicas(2), &[vec![&a], vec![&b]])
        .unwrap();
    assert_eq!((out[0][0].to_f64s(), out[1][0].to_f64s()), (vec![3.0, 4.0], vec![3.0, 4.0]));
}

#[test]
fn a_sum_across_replicas_is_an_all_reduce() {
    let groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>";
    for (ty, values) in [("tensor<2xf32>", 1), ("tensor<2xcomplex<f32>>", 2)] {
        let graph = read_text(&format!(
            "func.func @main(%x: {ty}) -> {ty} {{
                %0 = \"stablehlo.cross-replica-sum\"(%x) {{{groups}}} : ({ty}) -> {ty}
                return %0 : {ty} }}"
        ))
        .unwrap()
        .graph;
        let [a, b] = [[1f32, 2.0], [3.0, 4.0]].map(|v| Literal::from_slice([2], &v).unwrap());
        let given = [vec![&a; values], vec![&b; values]];
        let out = interp::run_devices(&graph, systole_ir::op::DeviceCounts::replicas(2), &given).unwrap();
        assert!(out.iter().flatten().all(|y| y.to_f64s() == [4.0, 6.0]), "{ty}: {out:?}");
    }
}

#[test]
fn a_top_k_takes_a_number_that_is_computed_of_constants() {
    let source = |k: &str| {
        format!(
            "func.func @main() -> (tensor<2xf32>, tensor<2xi32>) {{
                %x = stablehlo.constant dense<[1.0, 4.0, 3.0]> : tensor<3xf32>
                %one = stablehlo.constant dense<1> : tensor<i32>
                %k = {k} : tensor<i32>
                %0:2 = stablehlo.custom_call @stablehlo.dynamic_top_k(%x, %k) : (tensor<3xf32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
                return %0#0, %0#1 : tensor<2xf32>, tensor<2xi32> }}"
        )
    };
    assert_eq!(results(&source("stablehlo.add %one, %one")), [[4.0, 3.0], [1.0, 2.0]]);
    let (kind, text) = refused(&source("stablehlo.constant dense<4>"));
    assert!(kind == ErrorKind::Data && text.contains("k = 4 is more than the 3 elements"), "{text}");
}

#[test]
fn shapes_of_complex_arrays_are_settled_too() {
    let out = results(
        "func.func @main() -> (tensor<2x2xf32>, tensor<2x2xf32>) {
            %re = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
            %im = stablehlo.negate %re : tensor<4xf32>
            %x = stablehlo.complex %re, %im : tensor<4xcomplex<f32>>
            %n = stablehlo.constant dense<[2, 2]> : tensor<2xi64>
            %y = stablehlo.dynamic_reshape %x, %n : (tensor<4xcomplex<f32>>, tensor<2xi64>) -> tensor<2x2xcomplex<f32>>
            %0 = stablehlo.real %y : (tensor<2x2xcomplex<f32>>) -> tensor<2x2xf32>
            %1 = stablehlo.imag %y : (tensor<2x2xcomplex<f32>>) -> tensor<2x2xf32>
            return %0, %1 : tensor<2x2xf32>, tensor<2x2xf32> }",
    );
    assert_eq!(out, [[1.0, 2.0, 3.0, 4.0], [-1.0, -2.0, -3.0, -4.0]]);
}

#[test]
fn attributes_of_another_kind_are_errors_that_name_them() {
    let top_k = |k: &str| {
        refused(&format!(
            "func.func @main(%x: tensor<4xf32>) -> (tensor<2xf32>, tensor<2xi32>) {{
                %0:2 = \"chlo.top_k\"(%x) {{{k}}} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xi32>)
                return %0#0, %0#1 : tensor<2xf32>, tensor<2xi32> }}"
        ))
    };
    for (k, named) in
        [("k = 2.0 : f64", "`k` must be"), ("k = 2 : i64, largest = 1 : i64", "`largest` must be")]
    {
        let (kind, text) = top_k(k);
        assert!(kind == ErrorKind::Data && text.contains(named) && text.contains("chlo.top_k"), "{text}");
    }
}

#[test]
fn probes_and_tolerances_are_claims_too() {
    holds(
        "func.func @main() {
            %0 = stablehlo.constant dense<5.0> : tensor<f64>
            %1 = interpreter.probe %0, probe_id = \"p\" : tensor<f64>
            check.expect_serialized_eq %1, probe_id = \"p\" : tensor<f64>
            %2 = stablehlo.constant dense<5.05> : tensor<f64>
            check.expect_almost_eq %0, %2, tolerance = 0.1 : tensor<f64>
            check.expect_almost_eq_const %0, dense<5.1> : tensor<f64> {tolerance = 0.2 : f64}
            interpreter.print %0 : tensor<f64>
            func.return }",
    );
}

#[test]
fn a_scan_carries_and_stacks_also_backwards() {
    let out = results(
        "func.func @main() -> (tensor<3xi32>, tensor<i32>, tensor<3xi32>) {
            %x = stablehlo.constant dense<[1, 2, 4]> : tensor<3xi32>
            %z = stablehlo.constant dense<0> : tensor<i32>
            %0:2 = chlo.scan(%x) inits(%z) dimension=0 {
            ^bb0(%a: tensor<i32>, %b: tensor<i32>):
                %1 = stablehlo.add %a, %b : tensor<i32>
                stablehlo.return %1, %1 : tensor<i32>, tensor<i32>
            } : (tensor<3xi32>, tensor<i32>) -> (tensor<3xi32>, tensor<i32>)
            %2:2 = chlo.scan(%x) inits(%z) dimension=0 attributes {is_reverse = true} {
            ^bb0(%a: tensor<i32>, %b: tensor<i32>):
                %3 = stablehlo.add %a, %b : tensor<i32>
                stablehlo.return %3, %3 : tensor<i32>, tensor<i32>
            } : (tensor<3xi32>, tensor<i32>) -> (tensor<3xi32>, tensor<i32>)
            return %0#0, %0#1, %2#0 : tensor<3xi32>, tensor<i32>, tensor<3xi32> }",
    );
    assert_eq!(out[0], [1.0, 3.0, 7.0]);
    assert_eq!(out[1], [7.0]);
    assert_eq!(out[2], [7.0, 6.0, 4.0]);
}

#[test]
fn products_of_two_float_types_are_those_of_the_wider_one() {
    let out = results(
        "func.func @main() -> (tensor<f32>, tensor<f32>) {
            %a = stablehlo.constant dense<[1.001, 2.0]> : tensor<2xf32>
            %b = stablehlo.constant dense<[1.0, 0.5]> : tensor<2xbf16>
            %h = stablehlo.constant dense<[2.0, 4.0]> : tensor<2xf16>
            %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<2xf32>, tensor<2xbf16>) -> tensor<f32>
            %1 = stablehlo.dot_general %b, %h, contracting_dims = [0] x [0] : (tensor<2xbf16>, tensor<2xf16>) -> tensor<f32>
            return %0, %1 : tensor<f32>, tensor<f32> }",
    );
    assert!((out[0][0] - 2.001).abs() < 1e-6, "{out:?}");
    assert_eq!(out[1], [4.0]);
}
