//! Calls of C functions without typed arguments (`jax.ffi.register_ffi_target(…, api_version=0)`), which precede XLA's FFI:
//! `void f(void* results, const void** operands)`.

use std::ffi::{c_char, c_void};
use systole_ir::{Result, ensure, err};
use systole_mlir::import::UntypedCall;

/// A C function whose arguments depend on the `custom_call_api_version` of the call.
#[derive(Clone, Copy)]
pub(super) struct UntypedFunction(usize);

/// Version 1.
type Original = unsafe extern "C" fn(*mut c_void, *const *mut c_void);
/// Version 2: also a status.
type WithStatus = unsafe extern "C" fn(*mut c_void, *const *mut c_void, *mut c_void);
/// Version 3: also the call's `backend_config`.
type WithText = unsafe extern "C" fn(*mut c_void, *const *mut c_void, *const c_char, usize, *mut c_void);

/// Bytes of a status: XLA's is an optional C++ string.
const STATUS: usize = 64;

impl UntypedFunction {
    /// Returns the function at this address; `None` for null.
    pub(super) fn at(address: *const c_void) -> Option<UntypedFunction> {
        (!address.is_null()).then_some(UntypedFunction(address.addr()))
    }

    /// Calls the function: one result is passed by its address, several by the address of a list.
    ///
    /// # Safety
    /// The address is that of a function, which reads and writes only the arrays at these addresses.
    pub(super) unsafe fn call(
        self,
        call: &UntypedCall,
        operands: &[*mut c_void],
        results: &[*mut c_void],
    ) -> Result<()> {
        let out = match results {
            [one] => *one,
            all => all.as_ptr().cast_mut().cast(),
        };
        let (args, text) = (operands.as_ptr(), &call.opaque);
        // Empty, as a C++ object and in its bytes.
        let mut status = [0u128; STATUS / 16];
        let state = status.as_mut_ptr().cast();
        let address = std::ptr::without_provenance::<c_void>(self.0);
        match call.api_version {
            // SAFETY: same contract as this function; the program states the arguments.
            1 => unsafe { std::mem::transmute::<*const c_void, Original>(address)(out, args) },
            // SAFETY: as above.
            2 => unsafe { std::mem::transmute::<*const c_void, WithStatus>(address)(out, args, state) },
            // SAFETY: as above.
            3 => unsafe {
                std::mem::transmute::<*const c_void, WithText>(address)(
                    out,
                    args,
                    text.as_ptr().cast(),
                    text.len(),
                    state,
                );
            },
            n => return Err(err!(Unsupported, "expected custom_call_api_version 1 to 4, got {n}")),
        }
        // The C++ string of the message cannot be read from here.
        ensure!(
            status.iter().all(|word| *word == 0),
            err!(Interrupted, "the function set a failure in its status")
                .hint("register a typed FFI handler, whose errors have messages")
        );
        Ok(())
    }
}
