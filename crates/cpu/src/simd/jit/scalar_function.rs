//! Scalar code as a function that can be called.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::jit::executable_memory::ExecutableMemory;
use crate::simd::jit::scalar_code::ScalarCode;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::jit::scalar_emit::{HostFunctions, emit};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::simd::level::TileFn;
use std::ffi::c_void;

/// The caller's function: `(context, number of the call)` → 0, or an error code.
pub type HostCall = unsafe extern "C" fn(*mut c_void, usize) -> u32;

/// Scalar code compiled to machine code.
pub struct ScalarFunction {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    code: ExecutableMemory,
    /// Bytes of its frame.
    pub frame: usize,
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
/// Calls a vector loop, whose calling convention is Rust's.
unsafe extern "C" fn run_tile(
    run: *const c_void,
    to: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    count: usize,
) {
    // SAFETY: the code passes the address of a `TileFn`, and `count` numbers of the frame for each operand.
    unsafe { std::mem::transmute::<*const c_void, TileFn>(run)(to, a, b, c, count) }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl ScalarFunction {
    /// Compiles scalar code, which calls `call`; `None` if it is too large or the system does not allow machine code.
    pub fn new(code: &ScalarCode, call: HostCall) -> Option<ScalarFunction> {
        let host = HostFunctions { call: call as usize as u64, tile: run_tile as *const () as usize as u64 };
        let emitted = emit(code, host)?;
        Some(ScalarFunction { code: ExecutableMemory::new(&emitted.bytes)?, frame: emitted.frame })
    }

    /// Runs the code; returns 0, or what the caller's function returned.
    ///
    /// # Safety
    /// The machine has AVX2 and FMA. `frame` has [`ScalarFunction::frame`] bytes and holds the code's constants;
    /// pointers in it point to arrays of the sizes that the code accesses. `context` is what `call` expects.
    pub unsafe fn run(&self, frame: *mut u8, context: *mut c_void) -> u32 {
        // SAFETY: `emit` generated a function of this type and calling convention.
        unsafe {
            let run: unsafe extern "C" fn(*mut u8, *mut c_void) -> u32 =
                std::mem::transmute(self.code.entry());
            run(frame, context)
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl ScalarFunction {
    /// Stub: no code generation on this platform.
    pub fn new(_: &ScalarCode, _: HostCall) -> Option<ScalarFunction> {
        None
    }

    /// Stub: never called, because nothing is compiled on this platform.
    ///
    /// # Safety
    /// None needed.
    pub unsafe fn run(&self, _: *mut u8, _: *mut c_void) -> u32 {
        0
    }
}
