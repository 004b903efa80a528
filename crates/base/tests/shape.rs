//! Shapes: strides, indices, overflow of sizes.

use systole_base::{DType, Shape, TensorType};

#[test]
fn ravel_inverts_unravel() {
    let shape = Shape::new([2, 3, 5]);
    assert_eq!(&shape.strides()[..], [15, 5, 1]);
    for i in 0..shape.elements() {
        assert_eq!(shape.ravel(&shape.unravel(i)), i);
    }
    assert_eq!(Shape::new([2, 0, 5]).indices().count(), 0);
    assert_eq!(Shape::scalar().indices().count(), 1);
}

#[test]
fn overflowing_sizes_are_seen() {
    assert_eq!(Shape::new([usize::MAX, 2]).checked_elements(), None);
    // Empty, but the strides overflow.
    assert_eq!(Shape::new([0, usize::MAX, 2]).checked_elements(), None);
    assert_eq!(Shape::new([3, 0, 2]).checked_elements(), Some(0));
    assert_eq!(TensorType::new(DType::BF16, [2, 3]).bytes(), 12);
    assert_eq!(TensorType::new(DType::F32, [2, 3]).to_string(), "f32[2, 3]");
}
