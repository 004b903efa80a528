//! Registration of FFI handlers from Python and by PJRT's extension.

use super::abi::{self, FfiDeleter, FfiError, FfiHandler, FfiHandlers};
use super::context::{FfiState, FfiUserData};
use super::handlers::PLATFORMS;
use super::untyped::UntypedFunction;
use super::{api, context};
use crate::call::{ApiCall, CallError, CallResult, entry, list, seen};
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use systole_pjrt::sys::{self, OpaquePtr};

/// Frees the text of an error.
///
/// # Safety
/// `text` is null, or a text that a registration returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systole_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: same contract as this function.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Returns an error's text to Python: null, or a text for [`systole_free_text`].
fn to_python(made: Result<(), FfiError>) -> *mut c_char {
    made.err().map_or(std::ptr::null_mut(), |e| e.message.into_raw())
}

/// Registers a handler: the functions of the stages (null if absent) in the order of XLA's bundle.
///
/// # Safety
/// `name` has `len` bytes, and the functions are FFI handlers that live until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systole_register_ffi_handler(
    name: *const u8,
    len: usize,
    stages: *const [usize; 4],
) -> *mut c_char {
    // SAFETY: same contract as this function.
    let name = String::from_utf8_lossy(unsafe { list(name, len) }).into_owned();
    // SAFETY: four addresses of functions or zeros, which have the layout of the bundle.
    let handlers = unsafe { *stages.cast::<FfiHandlers>() };
    to_python(api::register(&name, PLATFORMS[0], handlers))
}

/// Registers a C function without typed arguments (`api_version=0`).
///
/// # Safety
/// `name` has `len` bytes, and `function` is null or a function that lives until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systole_register_custom_call(
    name: *const u8,
    len: usize,
    function: *const c_void,
) -> *mut c_char {
    // SAFETY: same contract as this function.
    let name = String::from_utf8_lossy(unsafe { list(name, len) }).into_owned();
    to_python(api::register_untyped(&name, PLATFORMS[0], UntypedFunction::at(function)))
}

/// Registers a type of users' objects; `id` is read, and written if it is 0.
///
/// # Safety
/// `name` has `len` bytes, and `id` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systole_register_ffi_type(
    name: *const u8,
    len: usize,
    id: *mut i64,
    deleter: Option<unsafe extern "C" fn(*mut c_void)>,
) -> *mut c_char {
    // SAFETY: same contract as this function.
    let name = String::from_utf8_lossy(unsafe { list(name, len) }).into_owned();
    // SAFETY: same contract as this function.
    let id = unsafe { &mut *id };
    to_python(context::register_type(&name, *id, deleter as Option<FfiDeleter>).map(|new| *id = new))
}

/// Functions of PJRT's FFI extension.
pub(crate) const FFI_FUNCTIONS: [sys::ApiFunction; 3] =
    [entry::<sys::FFI_Type_Register>, entry::<sys::FFI_UserData_Add>, register_handler];

impl From<FfiError> for CallError {
    fn from(e: FfiError) -> CallError {
        CallError { code: e.code, message: e.text() }
    }
}

impl ApiCall for sys::FFI_Type_Register {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller's text has that length.
        let name = String::from_utf8_lossy(unsafe { list(self.type_name, self.type_name_size) });
        // SAFETY: null or the type's description.
        let info = unsafe { self.type_info.cast::<abi::FfiTypeInfo>().as_ref() };
        self.type_id = context::register_type(&name, self.type_id, info.and_then(|info| info.deleter))?;
        Ok(())
    }
}

impl ApiCall for sys::FFI_UserData_Add {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a context that this plugin returned.
        let context = unsafe { seen::<Arc<FfiUserData>>(self.context)? };
        // SAFETY: null or the user's function, of the header's type.
        let deleter = unsafe { std::mem::transmute::<*const c_void, Option<FfiDeleter>>(self.deleter) };
        Ok(context.add(FfiState { type_id: self.type_id, pointer: self.data, deleter })?)
    }
}

/// `PJRT_FFI_Register_Handler`, whose arguments have no list of extensions.
#[repr(C)]
struct RegisterHandlerArgs {
    size: usize,
    name: *const u8,
    name_size: usize,
    api_version: i32,
    handler: Option<FfiHandler>,
    platform: *const u8,
    platform_size: usize,
}

unsafe extern "C" fn register_handler(args: *mut c_void) -> OpaquePtr {
    // SAFETY: null or the structure.
    let Some(args) = (unsafe { args.cast::<RegisterHandlerArgs>().as_ref() }) else {
        return crate::call::error(CallError::invalid("the arguments are null"));
    };
    if args.size < size_of::<RegisterHandlerArgs>() || !(0..=1).contains(&args.api_version) {
        let what = format!("expected api_version 0 or 1 of a custom call, got {}", args.api_version);
        return crate::call::error(CallError::unimplemented(what));
    }
    // SAFETY: texts of that length.
    let (name, platform) =
        unsafe { (list(args.name, args.name_size), list(args.platform, args.platform_size)) };
    let (name, platform) = (String::from_utf8_lossy(name), String::from_utf8_lossy(platform));
    let made = match args.api_version {
        0 => {
            let address = args.handler.map_or(std::ptr::null(), |f| f as *const c_void);
            api::register_untyped(&name, &platform, UntypedFunction::at(address))
        }
        _ => {
            let execute = args.handler;
            let handlers = FfiHandlers { instantiate: None, prepare: None, initialize: None, execute };
            api::register(&name, &platform, handlers)
        }
    };
    made.err().map_or(std::ptr::null_mut(), |e| crate::call::error(e.into()))
}
