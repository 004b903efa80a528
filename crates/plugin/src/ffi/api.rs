//! Function table `XLA_FFI_Api`, which FFI handlers call.

use super::abi::{self, FfiError, FfiHandlers, FfiHeader, FfiVersion, args};
use super::call_site;
use super::context::{self, FfiFuture, FfiState};
use super::handlers::{self, FfiApiTable};
use super::threads::{self, FfiTask};
use super::untyped::UntypedFunction;
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// A function of the table. Most return an error or null.
type TableFunction = unsafe extern "C" fn(*mut c_void) -> *mut FfiError;

#[repr(C)]
struct FfiApi {
    header: FfiHeader,
    version: FfiVersion,
    internal: *const c_void,
    functions: [TableFunction; 18],
}

// SAFETY: constant numbers and functions; the pointers are null.
unsafe impl Sync for FfiApi {}

static API: FfiApi = FfiApi {
    header: FfiHeader { size: size_of::<FfiApi>(), extensions: std::ptr::null_mut() },
    version: FfiVersion {
        header: FfiHeader { size: size_of::<FfiVersion>(), extensions: std::ptr::null_mut() },
        major: abi::VERSION.0,
        minor: abi::VERSION.1,
    },
    internal: std::ptr::null(),
    functions: [
        error_create,
        error_message,
        error_destroy,
        handler_register,
        stream_get,
        type_register,
        context_get,
        state_set,
        state_get,
        memory_allocate,
        memory_free,
        pool_schedule,
        pool_threads,
        future_create,
        future_set_available,
        future_set_error,
        run_id,
        device_ordinal,
    ],
};

/// Registers handlers, which get this table.
pub(super) fn register(name: &str, platform: &str, stages: FfiHandlers) -> Result<(), FfiError> {
    let table = FfiApiTable(std::ptr::from_ref(&API).cast());
    handlers::register(name, platform, stages, table, call_site::call)
}

/// Registers an untyped function.
pub(super) fn register_untyped(
    name: &str,
    platform: &str,
    function: Option<UntypedFunction>,
) -> Result<(), FfiError> {
    handlers::register_untyped(name, platform, function, call_site::call)
}

/// # Safety
/// `args` is null or a structure of that type.
unsafe fn given<'a, T>(args: *mut c_void) -> Result<&'a mut T, FfiError> {
    // SAFETY: same contract as this function.
    unsafe { args.cast::<T>().as_mut() }
        .ok_or_else(|| FfiError::new(abi::INVALID_ARGUMENT, "the arguments are null"))
}

fn answer(made: Result<(), FfiError>) -> *mut FfiError {
    made.err().map_or(std::ptr::null_mut(), FfiError::object)
}

/// Defines functions of the table: name, argument structure, body.
macro_rules! functions {
    ($($name:ident($args:ident: $type:ty) $body:block)*) => {
        $(unsafe extern "C" fn $name(args: *mut c_void) -> *mut FfiError {
            let call = || -> Result<(), FfiError> {
                // SAFETY: handlers pass the structure of the function.
                let $args = unsafe { given::<$type>(args)? };
                $body
                Ok(())
            };
            answer(call())
        })*
    };
}

unsafe extern "C" fn error_create(args: *mut c_void) -> *mut FfiError {
    // SAFETY: handlers pass the structure of the function.
    let Ok(args) = (unsafe { given::<args::ErrorCreate>(args) }) else { return std::ptr::null_mut() };
    // SAFETY: null or a text that ends with a zero byte.
    let text = if args.message.is_null() { c"" } else { unsafe { CStr::from_ptr(args.message) } };
    FfiError::new(args.code, text.to_string_lossy()).object()
}

unsafe extern "C" fn stream_get(_: *mut c_void) -> *mut FfiError {
    FfiError::new(abi::UNIMPLEMENTED, "a CPU has no streams").object()
}

functions! {
    error_message(args: args::ErrorMessage) {
        // SAFETY: an error of this table, or null.
        args.message = unsafe { args.error.as_ref() }.map_or(c"".as_ptr(), |e| e.message.as_ptr());
    }
    error_destroy(args: args::ErrorDestroy) {
        if !args.error.is_null() {
            // SAFETY: an error of this table, which the caller returns once.
            drop(unsafe { Box::from_raw(args.error) });
        }
    }
    handler_register(args: args::HandlerRegister) {
        // SAFETY: texts of that length.
        let (name, platform) = unsafe { (text(args.name), text(args.platform)) };
        register(&name, &platform, FfiHandlers { ..args.handlers })?;
    }
    type_register(args: args::TypeRegister) {
        // SAFETY: a text of that length.
        let name = unsafe { text(args.name) };
        let info = match args.header.size >= size_of::<args::TypeRegisterInfo>() {
            // SAFETY: the structure has the field, which is null or the type's description.
            true => unsafe { (*std::ptr::from_mut(args).cast::<args::TypeRegisterInfo>()).info.as_ref() },
            false => None,
        };
        // SAFETY: null or the type's id.
        let id = unsafe { args.type_id.as_mut() };
        let id = id.ok_or_else(|| FfiError::new(abi::INVALID_ARGUMENT, "the type has no id"))?;
        *id = context::register_type(&name, *id, info.and_then(|info| info.deleter))?;
    }
    memory_allocate(args: args::MemoryAllocate) {
        let layout = memory_layout(args.bytes, args.alignment.max(BLOCK))?;
        // SAFETY: the size is not 0.
        args.data = unsafe { alloc(layout) }.cast();
        if args.data.is_null() {
            let what = format!("cannot allocate {} bytes", args.bytes);
            return Err(FfiError::new(abi::RESOURCE_EXHAUSTED, what));
        }
    }
    memory_free(args: args::MemoryFree) {
        if !args.data.is_null() {
            // SAFETY: allocated above with this size and at most this alignment.
            unsafe { dealloc(args.data.cast(), memory_layout(args.bytes, BLOCK)?) };
        }
    }
    pool_schedule(args: args::PoolSchedule) {
        let task = args.task.ok_or_else(|| FfiError::new(abi::INVALID_ARGUMENT, "the task is null"))?;
        threads::schedule(FfiTask(task, args.data));
    }
    pool_threads(args: args::PoolThreads) {
        if args.header.size < size_of::<args::PoolThreads>() {
            return Err(FfiError::new(abi::UNIMPLEMENTED, "futures need JAX 0.5 or newer"));
        }
        // SAFETY: null or the caller's number.
        if let Some(count) = unsafe { args.count.as_mut() } {
            *count = threads::num_threads() as i64;
        }
    }
    future_create(args: args::Future) { args.future = FfiFuture::object(); }
    future_set_available(args: args::Future) {
        // SAFETY: a future of this table; its second owner ends it once.
        unsafe { Arc::from_raw(args.future.cast::<FfiFuture>()) }.set(Ok(()));
    }
    future_set_error(args: args::FutureError) {
        // SAFETY: an error of this table, which is given away.
        let error = unsafe { Box::from_raw(args.error) };
        // SAFETY: as above.
        unsafe { Arc::from_raw(args.future.cast::<FfiFuture>()) }.set(Err(*error));
    }
    context_get(args: args::ContextGet) {
        // SAFETY: the context of a call in progress, and null or the type's id.
        let (context, id) = unsafe { (args.context.as_ref(), args.type_id.as_ref()) };
        let context = context.ok_or_else(no_context)?;
        args.data = context.user_data.get(id.copied().unwrap_or(0))?;
    }
    run_id(args: args::RunId) {
        // SAFETY: the context of a call in progress.
        args.id = unsafe { args.context.as_ref() }.map_or(0, |context| context.run);
    }
    device_ordinal(args: args::DeviceOrdinal) {
        // A program on several devices may call once for all.
        args.ordinal = -1;
    }
    state_set(args: args::StateStart) {
        // SAFETY: the context of a call in progress.
        let context = unsafe { args.context.as_ref() }.ok_or_else(no_context)?;
        let start = std::ptr::from_mut(args);
        let (stage, id, pointer, deleter) = if context.minor >= 3 {
            // SAFETY: the structure of this version.
            let own = unsafe { &*start.cast::<args::StagedState>() };
            (own.stage, own.type_id, own.state, None)
        } else if context.minor == 1 && args.header.size >= size_of::<args::OwnedState>() {
            // SAFETY: as above.
            let own = unsafe { &*start.cast::<args::OwnedState>() };
            (abi::INSTANTIATE, own.state.type_id, own.state.state, own.deleter)
        } else {
            // SAFETY: as above.
            let own = unsafe { &*start.cast::<args::State>() };
            (abi::INSTANTIATE, own.type_id, own.state, None)
        };
        // SAFETY: null or the type's id.
        let type_id = unsafe { id.as_ref() }.copied().unwrap_or(0);
        let deleter = if deleter.is_none() { context::deleter(type_id)? } else { deleter };
        context.set(stage, FfiState { type_id, pointer, deleter })?;
    }
    state_get(args: args::StateStart) {
        // SAFETY: the context of a call in progress.
        let context = unsafe { args.context.as_ref() }.ok_or_else(no_context)?;
        let start = std::ptr::from_mut(args);
        // SAFETY: null or the type's id.
        let number = |id: *const i64| unsafe { id.as_ref() }.copied().unwrap_or(0);
        if context.minor >= 3 {
            // SAFETY: the structure of this version.
            let own = unsafe { &mut *start.cast::<args::StagedState>() };
            own.state = context.get(own.stage, number(own.type_id))?;
        } else {
            // SAFETY: as above.
            let own = unsafe { &mut *start.cast::<args::State>() };
            own.state = context.get(abi::INSTANTIATE, number(own.type_id))?;
        }
    }
}

fn no_context() -> FfiError {
    FfiError::new(abi::INVALID_ARGUMENT, "the execution context is null")
}

/// Minimum alignment of memory; callers do not state it when they return memory.
const BLOCK: usize = 64;

fn memory_layout(bytes: usize, alignment: usize) -> Result<Layout, FfiError> {
    let wrong = || FfiError::new(abi::INVALID_ARGUMENT, format!("alignments are at most {BLOCK}"));
    if alignment > BLOCK { None } else { Layout::from_size_align(bytes.max(1), alignment).ok() }
        .ok_or_else(wrong)
}

/// # Safety
/// The span has that length.
unsafe fn text(span: abi::ByteSpan) -> String {
    // SAFETY: same contract as this function.
    String::from_utf8_lossy(unsafe { crate::call::list(span.ptr, span.len) }).into_owned()
}
