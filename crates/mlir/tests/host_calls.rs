//! Tests of Python callbacks: calls with side effects run once each, in program order, also after the graph passes of a
//! reader that drops unused values.

use std::sync::{Arc, Mutex, PoisonError};
use systole_ir::op::custom_call::register;
use systole_ir::{DType, Literal, interp};
use systole_mlir::import::effects::TARGET;
use systole_mlir::read_text;

/// Function id and first operand of each call.
static CALLS: Mutex<Vec<(String, f64)>> = Mutex::new(Vec::new());

/// Runs a program on an argument; returns its results, and the calls in order.
fn run(text: &str, argument: f64) -> (Vec<Vec<f64>>, Vec<(String, f64)>) {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    calls.clear();
    drop(calls);
    register(
        TARGET,
        Arc::new(|config: &str, args: &[&Literal], outs: &[systole_ir::TensorType]| {
            let id = config.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
            calls.push((id, args.first().map_or(0.0, |a| a.get(0).as_f64())));
            Ok(outs.iter().map(|ty| Literal::zeros(ty.clone())).collect())
        }),
    );
    let program = read_text(text).unwrap_or_else(|e| panic!("{e}"));
    let out = interp::run(&program.graph, &[&Literal::scalar(DType::I32, argument)]).unwrap();
    let calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (out.iter().map(Literal::to_f64s).collect(), calls)
}

const PROGRAM: &str = r#"
func.func private @say(%x: tensor<i32>) {
  stablehlo.custom_call @systole_python_callback(%x) {backend_config = "1 20 all", has_side_effect = true} : (tensor<i32>) -> ()
  return
}
func.func @main(%n: tensor<i32>) -> tensor<i32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %t0 = stablehlo.create_token : !stablehlo.token
  %t1 = stablehlo.custom_call @systole_python_callback(%t0, %n) {backend_config = "1 10 all", has_side_effect = true} : (!stablehlo.token, tensor<i32>) -> !stablehlo.token
  %unused = stablehlo.custom_call @systole_python_callback(%n) {backend_config = "1 11 all"} : (tensor<i32>) -> tensor<i32>
  %last:2 = stablehlo.while(%i = %n, %t = %t1) : tensor<i32>, !stablehlo.token
  cond {
    stablehlo.custom_call @systole_python_callback(%i) {backend_config = "1 30 all", has_side_effect = true} : (tensor<i32>) -> ()
    %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %first = stablehlo.compare EQ, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    "stablehlo.if"(%first) ({
      func.call @say(%i) : (tensor<i32>) -> ()
      stablehlo.return
    }, {
      stablehlo.return
    }) : (tensor<i1>) -> ()
    %next = stablehlo.subtract %i, %one : tensor<i32>
    %after = stablehlo.custom_call @systole_python_callback(%t, %next) {backend_config = "1 40 all", has_side_effect = true} : (!stablehlo.token, tensor<i32>) -> !stablehlo.token
    stablehlo.return %next, %after : tensor<i32>, !stablehlo.token
  }
  return %last#0 : tensor<i32>
}"#;

#[test]
fn calls_with_side_effects_run_in_program_order_through_loops_branches_and_functions() {
    let (out, calls) = run(PROGRAM, 2.0);
    // The last result is the order token.
    assert_eq!(out, [[0.0], [0.0]]);
    let expected = [
        ("10", 2.0),
        ("11", 2.0),
        ("30", 2.0),
        ("40", 1.0),
        ("30", 1.0),
        ("20", 1.0),
        ("40", 0.0),
        ("30", 0.0),
    ];
    // The interpreter also runs the pure call, which nothing reads.
    assert_eq!(calls.iter().map(|(id, x)| (id.as_str(), *x)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_configuration_that_is_not_of_the_package_is_refused() {
    for config in ["", "1 2", "1 2 x", "1 2 3 4"] {
        let text = format!(
            "func.func @main() {{ stablehlo.custom_call @systole_python_callback() {{backend_config = \"{config}\"}} : () -> () return }}"
        );
        let e = read_text(&text).expect_err(config);
        assert_eq!(e.kind(), systole_base::ErrorKind::Data, "{e}");
    }
}
