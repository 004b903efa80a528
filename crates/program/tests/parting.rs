//! Where two devices part, and the smallest program with which they do: on a device that is wrong on purpose.

use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_base::{Literal, Result};
use systole_ir::op::{Op, Unary};
use systole_ir::{Graph, interp};
use systole_program::bisect::{Compared, Pair, first_difference, run};
use systole_program::compare::Tolerance;
use systole_program::inputs;
use systole_program::open::open;
use systole_program::shrink::{Case, Judge, shrink};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, DeviceInfo, Executable, ReferenceBackend};

/// What the wrong device does with `tanh`.
#[derive(Clone, Copy)]
enum Fault {
    /// Computes the sine.
    Wrong,
    /// Computes the sine where the operand is a product: as if the two were one kernel.
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

fn pair(fault: Fault) -> Pair {
    Pair {
        devices: [Arc::new(Faulty(fault)), Arc::new(ReferenceBackend)],
        names: ["faulty".into(), "ref".into()],
        tolerance: Tolerance::default(),
    }
}

fn case() -> Case {
    let program = open(PROGRAM).unwrap().imported;
    let arguments = inputs::random(&program.interface.arguments, 0).unwrap();
    Case { graph: program.program.graph, arguments: arguments.into_iter().flatten().collect() }
}

fn op(graph: &Graph, node: usize) -> &str {
    graph.nodes[node].op.name()
}

#[test]
fn the_first_op_that_differs_is_found() {
    let Case { graph, arguments } = case();
    let found = first_difference(&pair(Fault::Wrong), &graph, &arguments).unwrap();
    assert_eq!(op(&graph, found.node), "tanh");
    let Compared::Differs(0, d) = &found.what else { panic!("{:?}", found.what) };
    assert_eq!(d.elements, 128);
    let x = found.operands[0].at(&d.index).as_f64();
    assert!((d.first.as_f64() - x.sin()).abs() < 1e-6 && (d.second.as_f64() - x.tanh()).abs() < 1e-6);
    assert!(matches!(found.alone, Some(Compared::Differs(..))), "the op alone is wrong too");
    assert!(found.runs <= 8, "{}", found.runs);
}

#[test]
fn what_differs_only_together_is_told_apart() {
    let Case { graph, arguments } = case();
    let found = first_difference(&pair(Fault::WrongBehindProduct), &graph, &arguments).unwrap();
    assert_eq!(op(&graph, found.node), "tanh");
    assert!(matches!(found.alone, Some(Compared::Same)), "{:?}", found.alone);
}

#[test]
fn errors_and_panics_are_found_as_differences_are() {
    for fault in [Fault::Refuses, Fault::Panics] {
        let Case { graph, arguments } = case();
        let found = first_difference(&pair(fault), &graph, &arguments).unwrap();
        assert_eq!(op(&graph, found.node), "tanh");
        let Compared::Failed(0, e) = &found.what else { panic!("{:?}", found.what) };
        assert!(e.what().contains("tanh"), "{e}");
        assert!(matches!(found.alone, Some(Compared::Failed(0, _))));
    }
    let Case { graph, arguments } = case();
    let same =
        Pair { devices: [Arc::new(ReferenceBackend), Arc::new(ReferenceBackend)], ..pair(Fault::Wrong) };
    assert!(first_difference(&same, &graph, &arguments).is_none());
}

struct Test {
    pair: Pair,
    kind: Compared,
    tried: usize,
}

impl Judge for Test {
    fn fails(&mut self, case: &Case) -> bool {
        self.tried += 1;
        self.pair.compare(&case.graph, &case.arguments).is_like(&self.kind)
    }
    fn values(&mut self, case: &Case) -> Option<Vec<Literal>> {
        run(&case.graph, &case.arguments, &ReferenceBackend).ok()
    }
    fn smaller(&mut self, case: &Case) {
        assert!(self.pair.compare(&case.graph, &case.arguments).is_like(&self.kind));
    }
}

fn smallest(fault: Fault, hinted: bool) -> (Case, usize) {
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
