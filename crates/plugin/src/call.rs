//! How a call comes in, how an answer and an error go out.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use systole_ir::{Error, ErrorKind};
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr, code};

/// An error on its way out, with the code that callers see.
#[derive(Clone, Debug)]
pub(crate) struct CallError {
    pub(crate) code: i32,
    pub(crate) message: String,
}

/// Whether the last client was made by a caller whose header says less of how to make one.
pub(crate) static IS_OLD: AtomicBool = AtomicBool::new(false);

/// What a function of the plugin returns.
pub(crate) type CallResult = Result<(), CallError>;

impl CallError {
    pub(crate) fn invalid(message: impl Into<String>) -> CallError {
        CallError { code: code::INVALID_ARGUMENT, message: message.into() }
    }

    pub(crate) fn exhausted(message: impl Into<String>) -> CallError {
        CallError { code: code::RESOURCE_EXHAUSTED, message: message.into() }
    }

    pub(crate) fn unimplemented(message: impl Into<String>) -> CallError {
        CallError { code: code::UNIMPLEMENTED, message: message.into() }
    }
}

impl From<Error> for CallError {
    fn from(e: Error) -> CallError {
        let code = match e.kind() {
            ErrorKind::Unsupported => code::UNIMPLEMENTED,
            ErrorKind::Bug => code::INTERNAL,
            _ => code::INVALID_ARGUMENT,
        };
        CallError { code, message: e.to_string() }
    }
}

/// A function of the C API, as a method of its arguments.
pub(crate) trait ApiCall: ApiArgs {
    /// Bytes that callers have room for, whatever size they state.
    const LEAST: usize = 0;

    /// # Safety
    /// Pointers in the arguments are as the C API says.
    unsafe fn handle(&mut self) -> CallResult;
}

/// Functions on an object that callers were given: name, the arguments and the object as the body calls them, the object's
/// type, and the argument that it is.
macro_rules! handle {
    ($($name:ident: |$args:ident, $object:ident: $type:ty| $from:ident => $body:block)*) => {
        $(impl ApiCall for sys::$name {
            unsafe fn handle(&mut self) -> CallResult {
                let $args = self;
                // SAFETY: callers hand back what they were given.
                let $object: &$type = unsafe { seen($args.$from)? };
                $body
                Ok(())
            }
        })*
    };
}

/// Functions that callers give an object back by: name, and the argument that it is.
macro_rules! destroy {
    ($($name:ident: $type:ty, $from:ident;)*) => {
        $(impl ApiCall for sys::$name {
            unsafe fn handle(&mut self) -> CallResult {
                if !self.$from.is_null() {
                    // SAFETY: a box of that type that was given away, given back once.
                    drop(unsafe { Box::from_raw(self.$from.cast::<$type>()) });
                }
                Ok(())
            }
        })*
    };
}

pub(crate) use {destroy, handle};

/// The object behind `PJRT_Error*`. Since version 0.117 it begins with a pointer to its own functions.
#[repr(C)]
struct ErrorObject {
    functions: *const ErrorFunctions,
    failure: CallError,
}

#[repr(C)]
struct ErrorFunctions {
    struct_size: usize,
    instance_size: usize,
    extension_start: *const c_void,
    functions: [Option<sys::ApiFunction>; 4],
}

// SAFETY: constant numbers and functions.
unsafe impl Sync for ErrorFunctions {}

static ERROR_FUNCTIONS: ErrorFunctions = ErrorFunctions {
    struct_size: size_of::<ErrorFunctions>(),
    instance_size: size_of::<usize>(),
    extension_start: std::ptr::null(),
    functions: [
        Some(entry::<sys::Error_Destroy>),
        Some(entry::<sys::Error_Message>),
        Some(entry::<sys::Error_GetCode>),
        Some(entry::<sys::Error_ForEachPayload>),
    ],
};

/// An error object, which the caller destroys.
pub(crate) fn error(failure: CallError) -> OpaquePtr {
    Box::into_raw(Box::new(ErrorObject { functions: &raw const ERROR_FUNCTIONS, failure })).cast()
}

/// # Safety
/// `object` is a pointer that this plugin handed out for a `T` that is alive.
pub(crate) unsafe fn seen<'a, T>(object: OpaquePtr) -> Result<&'a T, CallError> {
    // SAFETY: passed on.
    unsafe { object.cast::<T>().as_ref() }.ok_or_else(|| CallError::invalid("an object is null"))
}

/// # Safety
/// `start` is null or points to `len` values.
pub(crate) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    // SAFETY: passed on.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// How every call comes in. Callers may have been compiled with a shorter or a longer structure: only what both know
/// is read and written. A panic must not cross into C.
pub(crate) unsafe extern "C" fn entry<A: ApiCall>(args: *mut c_void) -> OpaquePtr {
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let mut own = A::new();
        // SAFETY: every structure begins with its size.
        let known = unsafe { *args.cast::<usize>() }.max(A::LEAST).min(A::SIZE);
        // SAFETY: both are at least that long, and any bytes of the caller's are integers and pointers.
        unsafe { std::ptr::copy_nonoverlapping(args.cast::<u8>(), (&raw mut own).cast(), known) };
        // SAFETY: the caller follows the C API.
        let answer = unsafe { own.handle() };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), args.cast(), known) };
        answer
    }));
    match answer {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(failure)) => error(failure),
        Err(_) => error(CallError { code: code::INTERNAL, message: "a defect of Systole's plugin".into() }),
    }
}

handle! {
    Error_Message: |args, object: ErrorObject| error => {
        (args.message, args.message_size) = chars(&object.failure.message);
    }
    Error_GetCode: |args, object: ErrorObject| error => { args.code = object.failure.code; }
}

impl ApiCall for sys::Error_ForEachPayload {
    /// There are none. It must not fail: callers would ask the failure for its payloads, for ever.
    unsafe fn handle(&mut self) -> CallResult {
        Ok(())
    }
}

/// Pointer and length of a text.
pub(crate) fn chars(text: &str) -> (sys::CharPtr, usize) {
    (text.as_ptr(), text.len())
}

destroy! {
    Error_Destroy: ErrorObject, error;
}
