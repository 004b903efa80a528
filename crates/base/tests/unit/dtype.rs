//! Unit tests of private functions in `dtype.rs`, kept apart from the source.

use super::*;

fn round_bf16(x: f64) -> f64 {
    bf16::from_bits(bf16_bits(x)).to_f64()
}

#[test]
fn bf16_rounds_once() {
    // Just above a tie: through f32 it would become the tie and round to even.
    let x = 1.0 + 1.0 / 256.0 + 1e-12;
    assert_eq!(round_bf16(x), 1.0 + 1.0 / 128.0);
    assert_eq!(round_bf16(1.0 + 1.0 / 256.0), 1.0);
    assert_eq!(round_bf16(-x), -(1.0 + 1.0 / 128.0));
    assert!(round_bf16(f64::NAN).is_nan());
    assert_eq!(round_bf16(1e300), f64::INFINITY);
}
