//! Run-time code generation for element-wise programs: the whole program as one loop of AVX-512 or AVX2 whose values
//! stay in registers.
//!
//! `lower` turns a program into `steps` on vectors (`functions`: exp, tanh and others as such steps), `emit` gives
//! them registers and makes a loop of them (`avx512`, `avx2`: each step as instructions), `encode` knows the bytes (`ops`: of which instructions),
//! `memory` makes them executable, `rest` has the elements that fill no vector. Results are bit
//! for bit those of the interpreter in `map`, NaN payloads apart (and numbers below the normal range, where a level's
//! instructions take them as zero), which runs what this does not know: other element
//! types, rare ops, programs with too many values at a time, and everything where the machine or the system does not
//! allow it.

mod avx2;
mod avx512;
mod emit;
mod encode;
mod functions;
mod lower;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod memory;
mod ops;
mod steps;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tail;

pub use crate::simd::jit::lower::{Access, Sink};
pub use crate::simd::jit::steps::ACCUMULATORS;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::jit::steps::Set;
use crate::simd::level::Level;
use systole_compile::Map;
use systole_ir::knobs;

/// A program as machine code.
pub struct Loop {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    code: memory::Executable,
    /// Where the loop takes whole vectors only: what runs it for the elements that are left.
    rest: Option<tail::Rest>,
    nanoseconds: f64,
}

/// Whether programs may be compiled: what the knob `SYSTOLE_JIT` says.
pub fn is_wanted() -> bool {
    knobs::JIT.get() != "off"
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Loop {
    /// The loop for a program whose loads are read as `access` says; `None` where the interpreter has to run it.
    pub fn new(map: &Map, access: &[Access], sink: Sink, level: Level) -> Option<Loop> {
        let set = match level {
            Level::Avx512 => (Set::Avx512, false),
            Level::Avx512Bf16 => (Set::Avx512, true),
            Level::Avx2 if is_x86_feature_detected!("f16c") => (Set::Avx2, false),
            _ => return None,
        };
        let steps = lower::lower(map, access, sink, set)?;
        let code = emit::emit(&steps)?;
        let rest = (!code.any).then(|| tail::Rest::new(&steps));
        let code = memory::Executable::new(&code.bytes)?;
        Some(Loop { code, rest, nanoseconds: emit::cycles(&steps) / 2.5 })
    }

    /// Runs the program for `n` elements from the given addresses on: of its loads, then of its results.
    ///
    /// # Safety
    /// The machine has the level that the loop was made for. Each load has `n` elements at its address, or
    /// one where it is spread, each result room for as many, or for [`ACCUMULATORS`] of a fold along. Results
    /// overlap neither each other nor loads, but that a result may lie exactly where a load of its element size does.
    #[inline]
    pub unsafe fn run(&self, arrays: &[*mut u8], n: usize) {
        // SAFETY: `emit` made a function of this type, which keeps to the calling convention: it writes no register
        // that belongs to its caller and no memory but the results.
        unsafe {
            let run: tail::Code = std::mem::transmute(self.code.entry());
            match &self.rest {
                Some(rest) => rest.run(run, arrays, n),
                None => run(arrays.as_ptr(), n),
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl Loop {
    /// No machine code here.
    pub fn new(_: &Map, _: &[Access], _: Sink, _: Level) -> Option<Loop> {
        None
    }

    /// There is no such loop.
    ///
    /// # Safety
    /// None needed.
    pub unsafe fn run(&self, _: &[*mut u8], _: usize) {}
}

impl Loop {
    /// An estimate of the time for one element.
    pub fn nanoseconds(&self) -> f64 {
        self.nanoseconds
    }
}
