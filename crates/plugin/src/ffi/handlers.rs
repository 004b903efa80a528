//! Registry of FFI handlers, their registration from Python, and the PJRT extension for registration.

use super::abi::{self, FfiArguments, FfiAttributes, FfiCallFrame, FfiDeleter, FfiError, FfiHandler};
use super::abi::{FfiHandlers, FfiHeader, FfiMetadata, FfiMetadataExtension, FfiVersion};
use super::context::{self, lock};
use super::{api, call_site};
use crate::call::{ApiCall, CallError, CallResult, entry, list};
use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Mutex};
use systole_ir::op::custom_call;
use systole_mlir::import::effects::PREFIX;
use systole_pjrt::sys::{self, OpaquePtr};

/// Platforms whose handlers run here. Those for CPUs do, because arrays are in the host's memory.
const PLATFORMS: [&str; 3] = ["systole", "cpu", "host"];

/// A registered handler.
#[derive(Clone, Copy)]
pub(super) struct RegisteredHandler {
    pub(super) handlers: FfiHandlers,
    /// Minor version of the header that it was compiled with.
    pub(super) minor: i32,
}

static HANDLERS: Mutex<Vec<(String, RegisteredHandler)>> = Mutex::new(Vec::new());

/// Returns the handler of a name.
pub(super) fn find(name: &str) -> Option<RegisteredHandler> {
    lock(&HANDLERS).iter().find(|(known, _)| known == name).map(|(_, handler)| *handler)
}

/// Registers the handlers of a name, in place of previous ones.
pub(super) fn register(name: &str, platform: &str, handlers: FfiHandlers) -> Result<(), FfiError> {
    if !PLATFORMS.iter().any(|known| platform.eq_ignore_ascii_case(known)) {
        let what = format!("FFI handler `{name}`: expected platform `systole` or `cpu`, got `{platform}`");
        return Err(FfiError::new(abi::INVALID_ARGUMENT, what));
    }
    let Some(execute) = handlers.execute else {
        let what = format!("FFI handler `{name}` has no function for the stage `execute`");
        return Err(FfiError::new(abi::INVALID_ARGUMENT, what));
    };
    let (major, minor) = version(execute)?;
    if !(abi::OLDEST..=abi::VERSION).contains(&(major, minor)) {
        let (oldest, newest) = (abi::OLDEST, abi::VERSION);
        let what = format!(
            "FFI handler `{name}` was compiled for FFI version {major}.{minor}; supported: {}.{} to {}.{}",
            oldest.0, oldest.1, newest.0, newest.1
        );
        return Err(FfiError::new(abi::INVALID_ARGUMENT, what));
    }
    let mut all = lock(&HANDLERS);
    all.retain(|(known, _)| known != name);
    all.push((name.into(), RegisteredHandler { handlers, minor }));
    drop(all);
    let function = |config: &str, args: &[&systole_ir::Literal], types: &[systole_ir::TensorType]| {
        call_site::call(config, args, types)
    };
    custom_call::register(&format!("{PREFIX}{name}"), Arc::new(function));
    Ok(())
}

/// Returns the header version that a handler was compiled with.
fn version(handler: FfiHandler) -> Result<(i32, i32), FfiError> {
    let mut metadata = FfiMetadata {
        size: size_of::<FfiMetadata>(),
        version: FfiVersion { header: FfiHeader::of::<FfiVersion>(), major: 0, minor: 0 },
        traits: 0,
        state_type: 0,
    };
    let mut extension = FfiMetadataExtension {
        size: size_of::<FfiMetadataExtension>(),
        type_: abi::METADATA,
        next: std::ptr::null_mut(),
        metadata: &raw mut metadata,
    };
    let mut frame = empty_frame();
    frame.header.extensions = (&raw mut extension).cast();
    // SAFETY: a frame with the extension, which handlers answer without reading the rest.
    let failure = unsafe { handler(&raw mut frame) };
    // SAFETY: null or an error of this API.
    unsafe { outcome(failure)? };
    Ok((metadata.version.major, metadata.version.minor))
}

/// Returns the outcome of a handler.
///
/// # Safety
/// `failure` is null or an error of this API, which is destroyed.
pub(super) unsafe fn outcome(failure: *mut FfiError) -> Result<(), FfiError> {
    match failure.is_null() {
        true => Ok(()),
        // SAFETY: same contract as this function.
        false => Err(*unsafe { Box::from_raw(failure) }),
    }
}

/// Returns a frame without arguments, results and attributes.
pub(super) fn empty_frame() -> FfiCallFrame {
    let null = std::ptr::null_mut;
    let none = || FfiArguments {
        header: FfiHeader::of::<FfiArguments>(),
        size: 0,
        types: null(),
        values: std::ptr::null_mut(),
    };
    FfiCallFrame {
        header: FfiHeader { size: abi::FRAME_SIZE, extensions: std::ptr::null_mut() },
        api: api::table(),
        context: std::ptr::null_mut(),
        stage: abi::EXECUTE,
        arguments: none(),
        results: none(),
        attributes: FfiAttributes {
            header: FfiHeader::of::<FfiAttributes>(),
            size: 0,
            types: null(),
            names: std::ptr::null_mut(),
            values: std::ptr::null_mut(),
        },
        future: std::ptr::null_mut(),
    }
}

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
    to_python(register(&name, PLATFORMS[0], handlers))
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
        Err(CallError::unimplemented("user data of FFI handlers is not supported"))
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
    if args.size < size_of::<RegisterHandlerArgs>() || args.api_version != 1 {
        return crate::call::error(CallError::unimplemented(
            "only FFI handlers of api_version 1 are supported",
        ));
    }
    // SAFETY: texts of that length.
    let (name, platform) =
        unsafe { (list(args.name, args.name_size), list(args.platform, args.platform_size)) };
    let handlers = FfiHandlers { instantiate: None, prepare: None, initialize: None, execute: args.handler };
    let made = register(&String::from_utf8_lossy(name), &String::from_utf8_lossy(platform), handlers);
    made.err().map_or(std::ptr::null_mut(), |e| crate::call::error(e.into()))
}
