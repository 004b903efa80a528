//! Cost of a graph: operations and bytes.

use systole_ir::cost::cost;
use systole_ir::{DType::F32, GraphBuilder, TensorType};

#[test]
fn what_no_result_needs_costs_nothing() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [16, 16]), "x");
    let y = x.dot(&x);
    let _unused = y.dot(&x).dot(&x);
    let graph = g.finish(&[y]).unwrap();
    assert_eq!(cost(&graph).flops, 2.0 * 16.0 * 16.0 * 16.0);
}
