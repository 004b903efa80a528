//! PJRT profiler extension: records the engine's kernels between start and stop as a serialized `XSpace`, for
//! `jax.profiler.trace` and Systole's `--profile`.
//!
//! A process has one recording: two concurrent profilers share it, and the first to stop gets it. Callers need not
//! state structure sizes, and JAX does not.

use crate::call::{CallError, CallResult, seen};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;
use systole_pjrt::sys::profiler::{
    Api, CollectData, ErrorCodeArgs, ErrorMessageArgs, ProfilerArgs, ProfilerCreateArgs, ProfilerExtension,
    TYPE,
};
use systole_pjrt::sys::{self, OpaquePtr, code};
use systole_pjrt::xspace::{self, XEvent, XPlane};
use systole_runtime::trace;

/// The object behind `PLUGIN_Profiler*`.
#[derive(Default)]
struct PluginProfiler {
    started: Option<Instant>,
    bytes: Vec<u8>,
}

static API: Api = Api {
    struct_size: size_of::<Api>(),
    private: null_mut(),
    error_destroy: Some(error_destroy),
    error_message: Some(error_message),
    error_get_code: Some(error_get_code),
    create: Some(create),
    destroy: Some(destroy),
    start: Some(start),
    stop: Some(stop),
    collect_data: Some(collect_data),
};

/// Returns the extension, the last one in the list.
pub(crate) fn extension() -> ProfilerExtension {
    let base =
        sys::ExtensionHeader { struct_size: size_of::<ProfilerExtension>(), type_: TYPE, next: null_mut() };
    // No context id: the plugin does not read the caller's traces.
    ProfilerExtension { base, profiler_api: &raw const API, traceme_context_id: -1 }
}

/// Returns the result of a call: null, or an error that the caller destroys. Panics must not cross into C.
fn answered(call: impl FnOnce() -> CallResult) -> OpaquePtr {
    let outcome = catch_unwind(AssertUnwindSafe(call))
        .unwrap_or_else(|_| Err(CallError { code: code::INTERNAL, message: "the profiler panicked".into() }));
    outcome.err().map_or(null_mut(), |failure| Box::into_raw(Box::new(failure)).cast())
}

unsafe extern "C" fn create(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &mut *args.cast::<ProfilerCreateArgs>() };
    answered(|| {
        args.profiler = Box::into_raw(Box::<PluginProfiler>::default()).cast();
        Ok(())
    })
}

unsafe extern "C" fn destroy(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &*args.cast::<ProfilerArgs>() };
    answered(|| {
        if !args.profiler.is_null() {
            // SAFETY: created by `create`, and returned once.
            let profiler = unsafe { Box::from_raw(args.profiler.cast::<PluginProfiler>()) };
            if profiler.started.is_some() {
                drop(trace::collected());
            }
        }
        Ok(())
    })
}

/// # Safety
/// `object` is null or a profiler of this plugin, used by one call at a time.
unsafe fn own<'a>(object: OpaquePtr) -> CallResult<&'a mut PluginProfiler> {
    // SAFETY: same contract as this function.
    unsafe { object.cast::<PluginProfiler>().as_mut() }
        .ok_or_else(|| CallError::invalid("a profiler is null"))
}

unsafe extern "C" fn start(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &*args.cast::<ProfilerArgs>() };
    answered(|| {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let profiler = unsafe { own(args.profiler)? };
        trace::collect();
        (profiler.started, profiler.bytes) = (Some(Instant::now()), Vec::new());
        Ok(())
    })
}

unsafe extern "C" fn stop(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &*args.cast::<ProfilerArgs>() };
    answered(|| {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let profiler = unsafe { own(args.profiler)? };
        if let Some(started) = profiler.started.take() {
            profiler.bytes = xspace::write(&[plane(&trace::collected(), started)]);
        }
        Ok(())
    })
}

/// Returns the module name of a text program: `module @jit_step`.
pub(crate) fn module_of(code: &[u8]) -> Arc<str> {
    let head = String::from_utf8_lossy(code.get(..code.len().min(4096)).unwrap_or_default());
    let name = head.split_once("module @").map_or("", |(_, rest)| rest.trim_start_matches('"'));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    name.split(|c| !is_part(c)).next().unwrap_or_default().into()
}

/// Converts the recording to one device plane with a line per thread.
fn plane(kernels: &[trace::KernelSpan], begin: Instant) -> XPlane {
    let event = |k: &trace::KernelSpan| XEvent {
        name: k.name.clone(),
        start: k.start.saturating_duration_since(begin).as_nanos() as f64,
        took: k.end.saturating_duration_since(k.start).as_nanos() as f64,
        path: k.path.clone(),
        module: k.program.as_deref().unwrap_or_default().into(),
        ..XEvent::default()
    };
    let mut lines: Vec<(String, Vec<XEvent>)> = Vec::new();
    let mut threads = Vec::new();
    for kernel in kernels {
        let known = threads.iter().position(|thread| *thread == kernel.thread);
        let at = known.unwrap_or_else(|| {
            threads.push(kernel.thread);
            lines.push((format!("thread {}", threads.len()), Vec::new()));
            threads.len() - 1
        });
        lines[at].1.push(event(kernel));
    }
    // Viewers show planes of unknown devices only under this name. Times smaller than the profile's start (ns since
    // 1970) are relative to it.
    XPlane { name: "/device:CUSTOM:Systole:0".into(), origin: 0, lines }
}

unsafe extern "C" fn collect_data(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &mut *args.cast::<CollectData>() };
    answered(|| {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let profiler = unsafe { own(args.profiler)? };
        if args.buffer.is_null() {
            // JAX reads from here; other callers may copy it or call again with their own memory.
            args.buffer = profiler.bytes.as_mut_ptr();
        } else {
            // SAFETY: the caller's memory has the size that the first call returned.
            unsafe {
                std::ptr::copy_nonoverlapping(profiler.bytes.as_ptr(), args.buffer, profiler.bytes.len());
            }
        }
        args.buffer_size = profiler.bytes.len();
        Ok(())
    })
}

unsafe extern "C" fn error_destroy(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure; its code field is not read.
    let error = unsafe { (*args.cast::<ErrorCodeArgs>()).error };
    if !error.is_null() {
        // SAFETY: created by `answered`, and returned once.
        drop(unsafe { Box::from_raw(error.cast::<CallError>()) });
    }
    null_mut()
}

unsafe extern "C" fn error_message(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &mut *args.cast::<ErrorMessageArgs>() };
    // SAFETY: the caller passes a pointer that this plugin returned.
    if let Ok(failure) = unsafe { seen::<CallError>(args.error) } {
        (args.message, args.message_size) = (failure.message.as_ptr(), failure.message.len());
    }
    null_mut()
}

unsafe extern "C" fn error_get_code(args: *mut c_void) -> OpaquePtr {
    // SAFETY: the caller passes this structure.
    let args = unsafe { &mut *args.cast::<ErrorCodeArgs>() };
    // SAFETY: the caller passes a pointer that this plugin returned.
    if let Ok(failure) = unsafe { seen::<CallError>(args.error) } {
        args.code = failure.code;
    }
    null_mut()
}
