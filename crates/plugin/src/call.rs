//! Entry and exit of C API calls: argument structures, errors and panics.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use systole_ir::{Error, ErrorKind};
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr, code};

/// An error to return, with its PJRT code.
#[derive(Clone, Debug)]
pub(crate) struct CallError {
    pub(crate) code: i32,
    pub(crate) message: String,
}

/// Whether the last client was created with an older header that has fewer creation arguments.
pub(crate) static IS_OLD: AtomicBool = AtomicBool::new(false);

/// Result of a plugin function.
pub(crate) type CallResult<T = ()> = Result<T, CallError>;

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
            // An exception of a Python callback has the code of JAX's CPU backend.
            ErrorKind::Bug | ErrorKind::Interrupted => code::INTERNAL,
            _ => code::INVALID_ARGUMENT,
        };
        CallError { code, message: e.to_string() }
    }
}

/// A function of the C API, implemented on its argument structure.
pub(crate) trait ApiCall: ApiArgs {
    /// Minimum size of the caller's structure, whatever size it states.
    const LEAST: usize = 0;

    /// # Safety
    /// Pointers in the arguments are as the C API says.
    unsafe fn handle(&mut self) -> CallResult;
}

/// Implements functions on an object of the plugin: name, names of arguments and object in the body, the object's type,
/// and the argument that contains it.
macro_rules! handle {
    ($($name:ident: |$args:ident, $object:ident: $type:ty| $from:ident => $body:block)*) => {
        $(impl ApiCall for sys::$name {
            unsafe fn handle(&mut self) -> CallResult {
                let $args = self;
                // SAFETY: the caller passes a pointer that this plugin returned.
                let $object: &$type = unsafe { seen($args.$from)? };
                $body
                Ok(())
            }
        })*
    };
}

/// Implements destructors: name, and the argument that contains the object.
macro_rules! destroy {
    ($($name:ident: $type:ty, $from:ident;)*) => {
        $(impl ApiCall for sys::$name {
            unsafe fn handle(&mut self) -> CallResult {
                if !self.$from.is_null() {
                    // SAFETY: a box of that type that was leaked, returned once.
                    drop(unsafe { Box::from_raw(self.$from.cast::<$type>()) });
                }
                Ok(())
            }
        })*
    };
}

pub(crate) use {destroy, handle};

/// The object behind `PJRT_Error*`. Since version 0.117 it starts with a pointer to its function table.
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

/// Creates an error object, which the caller destroys.
pub(crate) fn error(failure: CallError) -> OpaquePtr {
    Box::into_raw(Box::new(ErrorObject { functions: &raw const ERROR_FUNCTIONS, failure })).cast()
}

/// Destroys an error object and returns the error.
///
/// # Safety
/// `object` is null, or an error of this plugin that the caller gives away.
pub(crate) unsafe fn taken(object: OpaquePtr) -> CallResult {
    match object.is_null() {
        true => Ok(()),
        // SAFETY: same contract as this function.
        false => Err(unsafe { Box::from_raw(object.cast::<ErrorObject>()) }.failure),
    }
}

/// # Safety
/// `object` is a pointer that this plugin handed out for a `T` that is alive.
pub(crate) unsafe fn seen<'a, T>(object: OpaquePtr) -> CallResult<&'a T> {
    // SAFETY: same contract as this function.
    unsafe { object.cast::<T>().as_ref() }.ok_or_else(|| CallError::invalid("an object is null"))
}

/// # Safety
/// `start` is null or points to `len` values.
pub(crate) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    // SAFETY: same contract as this function.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// Entry point of every call. Callers may be compiled with a shorter or longer structure: only the common prefix is
/// read and written. Panics must not cross into C.
pub(crate) unsafe extern "C" fn entry<A: ApiCall>(args: *mut c_void) -> OpaquePtr {
    if args.is_null() {
        return error(CallError::invalid("the arguments are null"));
    }
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let mut own = A::new();
        // SAFETY: every structure starts with its size.
        let known = unsafe { *args.cast::<usize>() }.max(A::LEAST).min(A::SIZE);
        // SAFETY: both are at least that long, and all fields are integers and pointers.
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
        Err(_) => error(CallError { code: code::INTERNAL, message: "a bug in Systole's plugin".into() }),
    }
}

handle! {
    Error_Message: |args, object: ErrorObject| error => {
        (args.message, args.message_size) = chars(&object.failure.message);
    }
    Error_GetCode: |args, object: ErrorObject| error => { args.code = object.failure.code; }
}

impl ApiCall for sys::Error_ForEachPayload {
    /// Errors have no payloads. This must not fail: callers would query the failure's payloads endlessly.
    unsafe fn handle(&mut self) -> CallResult {
        Ok(())
    }
}

/// Returns pointer and length of a string.
pub(crate) fn chars(text: &str) -> (sys::CharPtr, usize) {
    (text.as_ptr(), text.len())
}

destroy! {
    Error_Destroy: ErrorObject, error;
}
