//! Tests of what `dtype.rs` keeps to itself. They lie here so that who reads the crate need not read them.

use super::*;

#[test]
fn bf16_rounds_once() {
    // Just above a tie: via f32 it would land on the tie and go to even.
    let x = 1.0 + 1.0 / 256.0 + 1e-12;
    assert_eq!(round_bf16(x), 1.0 + 1.0 / 128.0);
    assert_eq!(round_bf16(1.0 + 1.0 / 256.0), 1.0);
    assert_eq!(round_bf16(-x), -(1.0 + 1.0 / 128.0));
    assert!(round_bf16(f64::NAN).is_nan());
    assert_eq!(round_bf16(1e300), f64::INFINITY);
}
