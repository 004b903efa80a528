//! JIT compiler for element-wise programs: one AVX-512 or AVX2 loop that keeps all values in registers.
//!
//! Pipeline: `lower` turns a program into `steps` on vectors (`functions` expands exp, tanh and others), `emit`
//! allocates registers and builds the loop, `avx512` and `avx2` select the instructions of each step, `encode`
//! assembles them (`opcodes` has the opcodes), and `executable_memory` makes the code executable. `tail` runs the last
//! elements through padded buffers if a loop supports whole vectors only. Results are bit-identical to those of the
//! interpreter (`kernel::elementwise`), except for NaN payloads, and for subnormal numbers if a level's instructions
//! flush them to zero. The interpreter runs everything that is not supported here: other element types, rare ops,
//! programs with too many live values (with groups of their other instructions compiled, `kernel::jit_groups`), and
//! machines or systems that do not allow generated code.

mod avx2;
mod avx512;
mod emit;
mod encode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod executable_memory;
mod functions;
mod lower;
mod opcodes;
pub mod scalar_code;
mod scalar_emit;
pub mod scalar_function;
pub mod scalar_lower;
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

/// An element-wise program compiled to machine code.
pub struct JitLoop {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    code: executable_memory::ExecutableMemory,
    /// Runs the tail, if the loop supports whole vectors only.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    rest: Option<tail::LoopTail>,
    nanoseconds: f64,
}

/// Whether the environment variable `SYSTOLE_JIT` allows JIT compilation.
pub fn is_wanted() -> bool {
    knobs::JIT.get() != "off"
}

/// Whether this platform has scalar code ([`scalar_code`]).
pub fn has_scalar_code() -> bool {
    cfg!(all(target_arch = "x86_64", target_os = "linux"))
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl JitLoop {
    /// Compiles a program whose loads are read as given by `access`; returns `None` if the interpreter has to run it.
    pub fn new(map: &Map, access: &[LoadAccess], sink: ResultSink, level: Level) -> Option<JitLoop> {
        let steps = lower::lower(map, access, sink, instructions(level)?)?;
        let code = emit::emit(&steps)?;
        let rest = (!code.any).then(|| tail::LoopTail::new(&steps));
        let code = executable_memory::ExecutableMemory::new(&code.bytes)?;
        Some(JitLoop { code, rest, nanoseconds: emit::cycles(&steps) / 2.5 })
    }

    /// Whether the ops and element types of a program have vector forms.
    pub fn supports(map: &Map, access: &[LoadAccess], level: Level) -> bool {
        let set = instructions(level);
        set.is_some_and(|set| lower::lower(map, access, ResultSink::Arrays, set).is_some())
    }

    /// Runs the compiled loop on `n` elements. `arrays` holds the input pointers, then the output pointers.
    ///
    /// # Safety
    /// The machine has the level that the loop was compiled for. Each load has `n` elements at its address, or one if
    /// it is broadcast; each result has room for `n`, or for [`ACCUMULATORS`] if it is reduced along the loop. Results
    /// overlap neither each other nor loads, except that a result may exactly coincide with a load of the same element
    /// size.
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

/// Returns the instruction set of a level, and whether it rounds to bf16.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn instructions(level: Level) -> Option<(LoopIsa, bool)> {
    match level {
        Level::Avx512 => Some((LoopIsa::Avx512, false)),
        Level::Avx512Bf16 => Some((LoopIsa::Avx512, true)),
        Level::Avx2 if is_x86_feature_detected!("f16c") => Some((LoopIsa::Avx2, false)),
        _ => None,
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl JitLoop {
    /// Stub: no code generation on this platform.
    pub fn new(_: &Map, _: &[LoadAccess], _: ResultSink, _: Level) -> Option<JitLoop> {
        None
    }

    /// Stub for platforms without JIT: no op is supported.
    pub fn supports(_: &Map, _: &[LoadAccess], _: Level) -> bool {
        false
    }

    /// Stub for platforms without JIT: never called, because no loop is compiled there.
    ///
    /// # Safety
    /// None needed.
    pub unsafe fn run(&self, _: &[*mut u8], _: usize) {}
}

impl JitLoop {
    /// Returns the estimated time per element in nanoseconds.
    pub fn nanoseconds(&self) -> f64 {
        self.nanoseconds
    }
}
