//! Host arrays: sharing, sizes, conversions.

use systole_base::{DType, Literal, Scalar, TensorType};

#[test]
fn clones_share_until_written() {
    let a = Literal::from_slice([3], &[1i32, 2, 3]).unwrap();
    let mut b = a.clone();
    assert!(!a.is_unique());
    b.as_mut_slice::<i32>().unwrap()[0] = 9;
    assert_eq!(a.as_slice::<i32>().unwrap(), [1, 2, 3]);
    assert_eq!(b.as_slice::<i32>().unwrap(), [9, 2, 3]);
    assert!(a.is_unique());
}

#[test]
fn wrong_sizes_and_types_are_errors() {
    assert!(Literal::from_slice([2, 2], &[1f32]).unwrap_err().to_string().contains("16 bytes"));
    assert!(Literal::from_bytes(TensorType::new(DType::F64, [usize::MAX, 8]), &[]).is_err());
    let x = Literal::zeros(TensorType::new(DType::F32, [2]));
    assert!(x.as_slice::<f64>().is_err());
    assert!(x.reshape([3]).is_err());
}

#[test]
fn odd_sizes_and_zero_sizes() {
    let x = Literal::from_bools([3], &[true, false, true]).unwrap();
    assert_eq!(x.bytes(), [1, 0, 1]);
    assert_eq!(x.convert(DType::F32).to_f32s(), [1.0, 0.0, 1.0]);
    let empty = Literal::zeros(TensorType::new(DType::BF16, [0, 7]));
    assert!(empty.bytes().is_empty() && !empty.is_splat());
    assert!(Literal::splat(TensorType::new(DType::F16, [5]), Scalar::Float(0.1)).is_splat());
}
