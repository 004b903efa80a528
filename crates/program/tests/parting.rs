//! Tests of bisection and minimization with a deliberately wrong device.

use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_base::{Literal, Result};
use systole_ir::op::{Op, Unary};
use systole_ir::{Graph, interp};
use systole_program::bisect::{DevicePair, RunComparison, first_difference, run};
use systole_program::compare::Tolerance;
use systole_program::inputs;
use systole_program::program_file::open;
use systole_program::shrink::{FailingCase, FailureOracle, shrink};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ReferenceBackend};

/// How the wrong device computes `tanh`.
#[derive(Clone, Copy)]
enum Fault {
    /// As sine.
    Wrong,
    /// As sine if the operand is a product, as if the two were fused.
    WrongBehindProduct,
    Refuses,
    Panics,
}

struct Faulty(Fault);

impl Backend for Faulty {
    fn name(&self) -> &str {
        "faulty"
    }
    fn devices(&self) -> Vec<DeviceInfo> {
        ReferenceBackend.devices()
    }
    fn compile(&self, graph: &Arc<Graph>, options: &CompileOptions) -> Result<Arc<dyn Executable>> {
        let mut broken = (**graph).clone();
        for i in 0..broken.nodes.len() {
            if broken.nodes[i].op.name() != "tanh" {
                continue;
            }
            let of_product = broken.node(broken.nodes[i].inputs[0]).op.name() == "dot_general";
            match self.0 {
                Fault::Wrong => broken.nodes[i].op = Op::Unary(Unary::Sine),
                Fault::WrongBehindProduct if of_product => broken.nodes[i].op = Op::Unary(Unary::Sine),
                Fault::WrongBehindProduct => {}
                Fault::Refuses => {
                    let what = format!("tanh is not there: {}", broken.nodes[i].outs[0]);
                    return Err(systole_base::Error::new(systole_base::ErrorKind::Unsupported, what));
                }
                Fault::Panics => panic!("tanh of {} elements", broken.nodes[i].outs[0].elements()),
            }
        }
        ReferenceBackend.compile(&Arc::new(broken), options)
    }
    fn put(&self, value: &Literal, device: DeviceId) -> Result<Buffer> {
        ReferenceBackend.put(value, device)
    }
}

/// A small network: products, tanh, a softmax, sums, a loop.
const PROGRAM: &[u8] = br#"
func.func @main(%arg0: tensor<16x32xf32>, %arg1: tensor<32x8xf32>, %arg2: tensor<8x8xf32>, %arg3: tensor<16xi32>)
    -> (tensor<16x8xf32>, tensor<f32>, tensor<16xi32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<16x32xf32>, tensor<32x8xf32>) -> tensor<16x8xf32>
  %1 = stablehlo.exponential %0 : tensor<16x8xf32>
  %2 = stablehlo.logistic %1 : tensor<16x8xf32>
  %3 = stablehlo.dot_general %2, %arg2, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>
  %4 = stablehlo.tanh %3 : tensor<16x8xf32>
  %5 = stablehlo.add %4, %2 : tensor<16x8xf32>
  %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x8xf32>, tensor<f32>) -> tensor<f32>
  %7 = stablehlo.add %arg3, %arg3 : tensor<16xi32>
  return %5, %6, %7 : tensor<16x8xf32>, tensor<f32>, tensor<16xi32>
}"#;

fn pair(fault: Fault) -> DevicePair {
    DevicePair {
        devices: [Arc::new(Faulty(fault)), Arc::new(ReferenceBackend)],
        names: ["faulty".into(), "ref".into()],
        tolerance: Tolerance::default(),
    }
}

fn case() -> FailingCase {
    let program = open(PROGRAM).unwrap().imported;
    let arguments = inputs::random(&program.interface.arguments, 0).unwrap();
    FailingCase { graph: program.program.graph, arguments: arguments.into_iter().flatten().collect() }
}

fn op(graph: &Graph, node: usize) -> &str {
    graph.nodes[node].op.name()
}

#[test]
fn the_first_op_that_differs_is_found() {
    let FailingCase { graph, arguments } = case();
    let found = first_difference(&pair(Fault::Wrong), &graph, &arguments).unwrap();
    assert_eq!(op(&graph, found.node), "tanh");
    let RunComparison::Differs(0, d) = &found.what else { panic!("{:?}", found.what) };
    assert_eq!(d.elements, 128);
    let x = found.operands[0].at(&d.index).as_f64();
    assert!((d.first.as_f64() - x.sin()).abs() < 1e-6 && (d.second.as_f64() - x.tanh()).abs() < 1e-6);
    assert!(matches!(found.alone, Some(RunComparison::Differs(..))), "the op alone is wrong too");
    assert!(found.runs <= 8, "{}", found.runs);
}

#[test]
fn what_differs_only_together_is_told_apart() {
    let FailingCase { graph, arguments } = case();
    let found = first_difference(&pair(Fault::WrongBehindProduct), &graph, &arguments).unwrap();
    assert_eq!(op(&graph, found.node), "tanh");
    assert!(matches!(found.alone, Some(RunComparison::Same)), "{:?}", found.alone);
}

#[test]
fn errors_and_panics_are_found_as_differences_are() {
    for fault in [Fault::Refuses, Fault::Panics] {
        let FailingCase { graph, arguments } = case();
        let found = first_difference(&pair(fault), &graph, &arguments).unwrap();
        assert_eq!(op(&graph, found.node), "tanh");
        let RunComparison::Failed(0, e) = &found.what else { panic!("{:?}", found.what) };
        assert!(e.what().contains("tanh"), "{e}");
        assert!(matches!(found.alone, Some(RunComparison::Failed(0, _))));
    }
    let FailingCase { graph, arguments } = case();
    let same = DevicePair {
        devices: [Arc::new(ReferenceBackend), Arc::new(ReferenceBackend)],
        ..pair(Fault::Wrong)
    };
    assert!(first_difference(&same, &graph, &arguments).is_none());
}

struct Test {
    pair: DevicePair,
    kind: RunComparison,
    tried: usize,
}

impl FailureOracle for Test {
    fn fails(&mut self, case: &FailingCase) -> bool {
        self.tried += 1;
        self.pair.compare(&case.graph, &case.arguments).is_like(&self.kind)
    }
    fn values(&mut self, case: &FailingCase) -> Option<Vec<Literal>> {
        run(&case.graph, &case.arguments, &ReferenceBackend).ok()
    }
    fn smaller(&mut self, case: &FailingCase) {
        assert!(self.pair.compare(&case.graph, &case.arguments).is_like(&self.kind));
    }
}

fn smallest(fault: Fault, hinted: bool) -> (FailingCase, usize) {
    let whole = case();
    let pair = pair(fault);
    let kind = pair.compare(&whole.graph, &whole.arguments);
    let hint = first_difference(&pair, &whole.graph, &whole.arguments).filter(|_| hinted).map(|c| c.node);
    let mut test = Test { pair, kind, tried: 0 };
    let small = shrink(&whole, hint, &mut test, Instant::now() + Duration::from_secs(60));
    let refs: Vec<&Literal> = small.arguments.iter().collect();
    interp::run(&small.graph, &refs).expect("what is left is a program");
    (small, test.tried)
}

#[test]
fn what_is_left_is_the_op_at_fault_with_small_operands() {
    for (fault, hinted) in
        [(Fault::Wrong, true), (Fault::Wrong, false), (Fault::Refuses, true), (Fault::Panics, false)]
    {
        let (small, tried) = smallest(fault, hinted);
        let ops: Vec<&str> = small.graph.nodes.iter().map(|n| n.op.name()).collect();
        let kept: Vec<&&str> = ops.iter().filter(|n| !["parameter", "constant"].contains(n)).collect();
        assert_eq!(kept, [&"tanh"], "{ops:?}");
        assert_eq!(small.graph.result_types()[0].elements(), 1, "{:?}", small.graph.result_types());
        assert!(tried < 150, "{tried} programs");
    }
}

#[test]
fn what_fails_only_together_keeps_both_ops() {
    let (small, _) = smallest(Fault::WrongBehindProduct, true);
    let ops: Vec<&str> = small.graph.nodes.iter().map(|n| n.op.name()).collect();
    assert!(ops.contains(&"tanh") && ops.contains(&"dot_general"), "{ops:?}");
    assert_eq!(small.ops() - ops.iter().filter(|n| **n == "constant").count(), 2, "{ops:?}");
}

/// A function, a branch and a loop, each with more than the failing part.
const NESTED: &[u8] = br#"
func.func private @f(%x: tensor<6xf32>) -> tensor<6xf32> {
  %0 = stablehlo.exponential %x : tensor<6xf32>
  %1 = stablehlo.tanh %0 : tensor<6xf32>
  %2 = stablehlo.sqrt %1 : tensor<6xf32>
  return %2 : tensor<6xf32>
}
func.func @main(%x: tensor<6xf32>, %p: tensor<i1>) -> tensor<6xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<6xf32>
  cond {
    %1 = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  } do {
    %1 = stablehlo.add %i, %one : tensor<i32>
    %2 = "stablehlo.if"(%p) ({
      %3 = stablehlo.cosine %s : tensor<6xf32>
      %4 = func.call @f(%3) : (tensor<6xf32>) -> tensor<6xf32>
      %5 = stablehlo.add %4, %s : tensor<6xf32>
      stablehlo.return %5 : tensor<6xf32>
    }, {
      stablehlo.return %s : tensor<6xf32>
    }) : (tensor<i1>) -> tensor<6xf32>
    %6 = stablehlo.logistic %2 : tensor<6xf32>
    stablehlo.return %1, %6 : tensor<i32>, tensor<6xf32>
  }
  return %0#1 : tensor<6xf32>
}"#;

/// Fails if a graph satisfies a predicate.
struct Holds(fn(&Graph) -> bool);

impl FailureOracle for Holds {
    fn fails(&mut self, case: &FailingCase) -> bool {
        (self.0)(&case.graph) && run(&case.graph, &case.arguments, &ReferenceBackend).is_ok()
    }
    fn values(&mut self, case: &FailingCase) -> Option<Vec<Literal>> {
        run(&case.graph, &case.arguments, &ReferenceBackend).ok()
    }
    fn smaller(&mut self, case: &FailingCase) {
        assert!((self.0)(&case.graph));
    }
}

/// Returns the op names of a graph and its bodies, without parameters and constants.
fn names(graph: &Graph) -> Vec<&str> {
    let inner = graph.nodes.iter().flat_map(|n| n.op.rule().regions()).flat_map(|g| names(g));
    let own = graph.nodes.iter().map(|n| n.op.name());
    own.chain(inner).filter(|n| !["parameter", "constant"].contains(n)).collect()
}

fn nested(holds: fn(&Graph) -> bool) -> FailingCase {
    let program = open(NESTED).unwrap().imported;
    let arguments = inputs::random(&program.interface.arguments, 0).unwrap();
    let whole =
        FailingCase { graph: program.program.graph, arguments: arguments.into_iter().flatten().collect() };
    let mut judge = Holds(holds);
    assert!(judge.fails(&whole));
    shrink(&whole, None, &mut judge, Instant::now() + Duration::from_secs(60))
}

#[test]
fn what_fails_by_itself_is_taken_out_of_bodies() {
    let small = nested(|g| names(g).contains(&"tanh"));
    assert_eq!(names(&small.graph), ["tanh"]);
}

#[test]
fn what_fails_only_in_a_loop_stays_there_alone() {
    let small = nested(|g| {
        g.nodes.iter().any(|n| {
            n.op.name() == "while" && n.op.rule().regions().iter().any(|b| names(b).contains(&"tanh"))
        })
    });
    let left = names(&small.graph);
    assert!(left.contains(&"while") && left.contains(&"tanh"), "{left:?}");
    // The loop ends, and no branch or call is left.
    for gone in ["exponential", "sqrt", "cosine", "logistic"] {
        assert!(!left.contains(&gone), "{left:?}");
    }
    assert!(left.len() <= 7, "{left:?}");
}
