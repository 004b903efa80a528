//! Element types and scalars: bits, wrapping, conversions, names.

use systole_base::DType::{self, *};
use systole_base::Scalar;

#[test]
fn bits_round_trip_for_every_16_bit_pattern() {
    for dtype in [F16, BF16, I16, U16] {
        for bits in 0..=u16::MAX as u64 {
            let s = Scalar::from_bits(dtype, bits);
            if !s.as_f64().is_nan() {
                assert_eq!(s.to_bits(dtype), bits, "{dtype} {bits:#x}");
            }
        }
    }
}

#[test]
fn integers_wrap_and_conversions_saturate() {
    assert_eq!(Scalar::Int(200).round_to(I8), Scalar::Int(-56));
    assert_eq!(Scalar::Int(-1).round_to(U16), Scalar::Uint(65535));
    assert_eq!(Scalar::Float(300.7).convert_to(U8), Scalar::Uint(255));
    assert_eq!(Scalar::Float(f64::NAN).convert_to(I32), Scalar::Int(0));
    assert_eq!(Scalar::Float(-2.9).convert_to(I64), Scalar::Int(-2));
}

#[test]
fn names_parse_back() {
    for d in DType::ALL {
        assert_eq!(DType::parse(d.name()), Some(d));
    }
    assert_eq!(DType::parse("bfloat16"), Some(BF16));
    assert_eq!(DType::parse("complex64"), None);
}
