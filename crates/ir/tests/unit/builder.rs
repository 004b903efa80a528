//! Tests of the builder's memory, which need its fields.

use super::*;

#[test]
fn builders_are_freed_with_their_regions() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::scalar(DType::F32), "x");
    let inner = g.child("body");
    let y = inner.parameter(TensorType::scalar(DType::F32), "y");
    let region = inner.finish_region(&[&y + &x], std::slice::from_ref(&x)).unwrap();
    assert_eq!(region.params.len(), 2);
    let builders = [&g, &inner].map(|b| Rc::downgrade(&b.0));
    drop((g, inner, x, y));
    assert!(builders.iter().all(|b| b.upgrade().is_none()));
}
