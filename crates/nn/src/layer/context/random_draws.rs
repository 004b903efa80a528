//! Random number state while a layer's training graph is traced.

use systole_ir::{Literal, Tensor};

/// State of random draws.
#[derive(Default)]
pub(crate) struct RandomDraws {
    /// `u64[]`: key of the step; `None` outside training.
    pub(crate) key: Option<Tensor>,
    /// Number of draws so far.
    pub(crate) count: usize,
    /// `u64[]`: step number; `None` outside training.
    pub(crate) step: Option<Tensor>,
}

/// SplitMix64 finalizer over `u64[]`, the graph version of [`rng::mix`].
pub(crate) fn mix(z: &Tensor) -> Tensor {
    let g = z.builder();
    let word = |v: u64| match Literal::from_slice([], &[v]) {
        Ok(l) => g.constant(l),
        Err(e) => z.fail(e),
    };
    let step = |z: &Tensor, shift: u64| z.xor(&z.shift_right_logical(&word(shift)));
    let z = step(z, 30) * word(0xbf58_476d_1ce4_e5b9);
    let z = step(&z, 27) * word(0x94d0_49bb_1331_11eb);
    step(&z, 31)
}
