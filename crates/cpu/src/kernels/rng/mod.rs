//! Random bit kernels (`rng_bit_generator`): counter-based Philox and Threefry, many counters per vector loop.
//!
//! Bit-identical to the op's rule in `systole_ir::op::rng`, whose documentation defines which word becomes which
//! element.

mod philox;
mod rng_types;
mod threefry;

use crate::kernels::rng::rng_types::Draw;
use crate::select::{EVERY, Family, KernelCandidate, Problem, SelectResult};
use systole_compile::Kernel as Plan;
use systole_ir::op::{RngAlgorithm, RngBitGenerator};
use systole_ir::{Op, ensure};

/// Returns the types of a step that uses the wanted algorithm, or why it does not.
fn draw<'a>(p: &Problem<'a>, wanted: RngAlgorithm) -> SelectResult<Draw<'a>> {
    let Plan::Op { op: Op::RngBitGenerator(RngBitGenerator { algorithm, .. }), .. } = &p.step.kernel else {
        return Err("not a random bit generator".into());
    };
    ensure!(*algorithm == wanted, "it uses another algorithm".into());
    // 64-bit elements are written as two words, low first.
    ensure!(!cfg!(target_endian = "big"), "this machine is big-endian".into());
    Ok(Draw { state: &p.step.input_types[0], bits: &p.step.output_types[1] })
}

/// Kernel family for random bits.
pub static FAMILY: Family = Family {
    name: "rng",
    doc: "random bits from counter-based generators",
    takes: |step| matches!(&step.kernel, Plan::Op { op: Op::RngBitGenerator(_), .. }),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("philox", EVERY, "Philox4x32-10: four words of each counter, many counters in vectors",
            |p| {
                let draw = draw(p, RngAlgorithm::Philox)?;
                Ok(Box::new(philox::PhiloxKernel::new(&draw, p.target.level.vectors())))
            }),
        KernelCandidate::new("threefry", EVERY, "Threefry2x32-20: two words of each counter, many counters in \
             vectors",
            |p| {
                let draw = draw(p, RngAlgorithm::ThreeFry)?;
                Ok(Box::new(threefry::ThreefryKernel::new(draw.bits, p.target.level.vectors())))
            }),
        crate::kernels::reference::CANDIDATE,
    ],
};
