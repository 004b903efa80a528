//! rng_bit_generator: counter-based random bits as a pure function of a state.

use super::*;

/// The generator. `DEFAULT` of the specification is Philox here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RngAlgorithm {
    /// Philox4x32-10; the state is `u64[2]` or `u64[3]`: key, counter.
    Philox,
    /// Threefry2x32-20; the state is `u64[2]`: key, counter.
    ThreeFry,
}

/// `state: u64[2 or 3] → (u64[…], T[…])`: the next state and random bits. Spec: rng_bit_generator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RngBitGenerator {
    /// The generator.
    pub algorithm: RngAlgorithm,
    /// Type of the bits: unsigned or signed integers, or floats read from bits.
    pub ty: TensorType,
}

impl OpRule for RngBitGenerator {
    fn name(&self) -> &'static str {
        "rng_bit_generator"
    }
    fn infer(&self, _args: &[&TensorType]) -> Result<Outs, Constraint> {
        Err(Constraint::new("-", "is not built yet"))
    }
    fn eval(&self, _cx: &mut EvalCx, _args: &[&Literal], _outs: &Outs) -> Result<Vec<Literal>> {
        systole_base::bug!("not built yet")
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero; x.len()]
    }
    fn lower(&self) -> Lowering {
        Lowering::Draw
    }
}
