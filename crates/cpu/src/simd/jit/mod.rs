//! JIT compilation of element-wise programs: a whole program becomes one AVX-512 or AVX2 loop that keeps values in
//! registers.
//!
//! Pipeline: `lower` turns a program into `steps` on vectors (`functions` expands exp, tanh and others), `emit`
//! allocates registers and builds the loop, `avx512` and `avx2` select the instructions of each step, `encode`
//! assembles them (`ops` has the opcodes), and `memory` makes the code executable. `tail` runs the last elements
//! through padded buffers where a loop takes whole vectors only. Results are bit-identical to those of the interpreter
//! (`kernel::program`), except for NaN payloads, and for subnormal numbers where a level's instructions flush them to
//! zero. The interpreter runs what is not supported here: other element types, rare ops, programs with too many live
//! values, and machines or systems that do not allow generated code.

mod avx2;
mod avx512;
mod emit;
mod encode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod executable_memory;
mod functions;
mod lower;
mod opcodes;
mod steps;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod tail;

pub use crate::simd::jit::lower::{LoadAccess, ResultSink};
pub use crate::simd::jit::steps::ACCUMULATORS;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::jit::steps::LoopIsa;
use crate::simd::level::Level;
use systole_compile::Map;
use systole_ir::knobs;

/// A program compiled to machine code.
pub struct JitLoop {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    code: executable_memory::ExecutableMemory,
    /// Where the loop takes whole vectors only: runs it on the remaining elements.
    rest: Option<tail::LoopTail>,
    nanoseconds: f64,
}

/// Whether the knob `SYSTOLE_JIT` allows compilation.
pub fn is_wanted() -> bool {
    knobs::JIT.get() != "off"
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl JitLoop {
    /// Compiles a program whose loads are read as `access` says; `None` if the interpreter has to run it.
    pub fn new(map: &Map, access: &[LoadAccess], sink: ResultSink, level: Level) -> Option<JitLoop> {
        let set = match level {
            Level::Avx512 => (LoopIsa::Avx512, false),
            Level::Avx512Bf16 => (LoopIsa::Avx512, true),
            Level::Avx2 if is_x86_feature_detected!("f16c") => (LoopIsa::Avx2, false),
            _ => return None,
        };
        let steps = lower::lower(map, access, sink, set)?;
        let code = emit::emit(&steps)?;
        let rest = (!code.any).then(|| tail::LoopTail::new(&steps));
        let code = executable_memory::ExecutableMemory::new(&code.bytes)?;
        Some(JitLoop { code, rest, nanoseconds: emit::cycles(&steps) / 2.5 })
    }

    /// Runs the program on `n` elements. `arrays`: pointers to its loads, then to its results.
    ///
    /// # Safety
    /// The machine has the level that the loop was made for. Each load has `n` elements at its address, or one if it is
    /// broadcast; each result has room for `n`, or for [`ACCUMULATORS`] if it is reduced along the loop. Results
    /// overlap neither each other nor loads, except that a result may lie exactly where a load of the same element size
    /// does.
    #[inline]
    pub unsafe fn run(&self, arrays: &[*mut u8], n: usize) {
        // SAFETY: `emit` generated a function of this type and calling convention: it writes no callee-saved register,
        // and no memory except the results.
        unsafe {
            let run: tail::LoopFn = std::mem::transmute(self.code.entry());
            match &self.rest {
                Some(rest) => rest.run(run, arrays, n),
                None => run(arrays.as_ptr(), n),
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl Loop {
    /// No code generation on this platform.
    pub fn new(_: &Map, _: &[Access], _: Sink, _: Level) -> Option<Loop> {
        None
    }

    /// Never called: there is no such loop.
    ///
    /// # Safety
    /// None needed.
    pub unsafe fn run(&self, _: &[*mut u8], _: usize) {}
}

impl JitLoop {
    /// Estimated time for one element.
    pub fn nanoseconds(&self) -> f64 {
        self.nanoseconds
    }
}
