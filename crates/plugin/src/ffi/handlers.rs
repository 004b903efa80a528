//! Registry of FFI handlers.

use super::abi::{self, FfiArguments, FfiAttributes, FfiCallFrame, FfiError, FfiHandler};
use super::abi::{FfiHandlers, FfiHeader, FfiMetadata, FfiMetadataExtension, FfiVersion};
use super::context::lock;
use super::untyped::UntypedFunction;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use systole_ir::op::custom_call;
use systole_ir::{Literal, TensorType};
use systole_mlir::import::effects::PREFIX;

/// Platforms whose handlers run here. Those for CPUs do, because arrays are in the host's memory.
pub(super) const PLATFORMS: [&str; 3] = ["systole", "cpu", "host"];

/// A registered C function.
#[derive(Clone, Copy)]
pub(super) enum RegisteredFunction {
    Typed(RegisteredHandler),
    Untyped(UntypedFunction),
}

/// A registered FFI handler.
#[derive(Clone, Copy)]
pub(super) struct RegisteredHandler {
    pub(super) handlers: FfiHandlers,
    /// Minor version of the header that it was compiled with.
    pub(super) minor: i32,
    /// Functions that it may call.
    pub(super) api: FfiApiTable,
}

/// Address of the table of functions that handlers call.
#[derive(Clone, Copy)]
pub(super) struct FfiApiTable(pub(super) *const c_void);

// SAFETY: the address of a static that is never written.
unsafe impl Send for FfiApiTable {}
// SAFETY: as above.
unsafe impl Sync for FfiApiTable {}

/// Calls a handler by the text of its custom call.
pub(super) type CallFunction = fn(&str, &[&Literal], &[TensorType]) -> systole_ir::Result<Vec<Literal>>;

static FUNCTIONS: Mutex<Vec<(String, RegisteredFunction)>> = Mutex::new(Vec::new());

/// Returns the function of a name.
pub(super) fn find(name: &str) -> Option<RegisteredFunction> {
    lock(&FUNCTIONS).iter().find(|(known, _)| known == name).map(|(_, function)| *function)
}

/// Registers the handlers of a name, in place of previous functions.
pub(super) fn register(
    name: &str,
    platform: &str,
    handlers: FfiHandlers,
    api: FfiApiTable,
    call: CallFunction,
) -> Result<(), FfiError> {
    check_platform(name, platform)?;
    let Some(execute) = handlers.execute else {
        let what = format!("FFI handler `{name}` has no function for the stage `execute`");
        return Err(FfiError::new(abi::INVALID_ARGUMENT, what));
    };
    let (major, minor) = version(execute, api)?;
    if !(abi::OLDEST..=abi::VERSION).contains(&(major, minor)) {
        let (oldest, newest) = (abi::OLDEST, abi::VERSION);
        let what = format!(
            "FFI handler `{name}` was compiled for FFI version {major}.{minor}; supported: {}.{} to {}.{}",
            oldest.0, oldest.1, newest.0, newest.1
        );
        return Err(FfiError::new(abi::INVALID_ARGUMENT, what));
    }
    add(name, RegisteredFunction::Typed(RegisteredHandler { handlers, minor, api }), call);
    Ok(())
}

/// Registers an untyped function, in place of previous ones.
pub(super) fn register_untyped(
    name: &str,
    platform: &str,
    function: Option<UntypedFunction>,
    call: CallFunction,
) -> Result<(), FfiError> {
    check_platform(name, platform)?;
    let null = || FfiError::new(abi::INVALID_ARGUMENT, format!("the function `{name}` is null"));
    add(name, RegisteredFunction::Untyped(function.ok_or_else(null)?), call);
    Ok(())
}

fn check_platform(name: &str, platform: &str) -> Result<(), FfiError> {
    if PLATFORMS.iter().any(|known| platform.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let what = format!("FFI handler `{name}`: expected platform `systole` or `cpu`, got `{platform}`");
    Err(FfiError::new(abi::INVALID_ARGUMENT, what))
}

fn add(name: &str, function: RegisteredFunction, call: CallFunction) {
    let mut all = lock(&FUNCTIONS);
    all.retain(|(known, _)| known != name);
    all.push((name.into(), function));
    drop(all);
    custom_call::register(&format!("{PREFIX}{name}"), Arc::new(call));
}

/// Returns the header version that a handler was compiled with.
fn version(handler: FfiHandler, api: FfiApiTable) -> Result<(i32, i32), FfiError> {
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
    let mut frame = empty_frame(api);
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
pub(super) fn empty_frame(api: FfiApiTable) -> FfiCallFrame {
    let null = std::ptr::null_mut;
    let none = || FfiArguments {
        header: FfiHeader::of::<FfiArguments>(),
        size: 0,
        types: null(),
        values: std::ptr::null_mut(),
    };
    FfiCallFrame {
        header: FfiHeader { size: abi::FRAME_SIZE, extensions: std::ptr::null_mut() },
        api: api.0,
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
