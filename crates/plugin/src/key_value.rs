//! Key-value store of the caller's processes (`jax.distributed.initialize`), through which process 0 publishes where it
//! listens.

use crate::call::{CallError, CallResult, chars, error, list, taken};
use std::ffi::c_void;
use std::time::Duration;
use systole_pjrt::sys::{self, ApiArgs, ApiFunction, OpaquePtr};

/// The caller's functions to read and write the store.
pub(crate) struct KeyValueStore {
    get: ApiFunction,
    get_arg: *mut c_void,
    put: ApiFunction,
    put_arg: *mut c_void,
}

/// Creates the error that a callback returns.
unsafe extern "C" fn callback_error(code: i32, message: *const u8, size: usize) -> OpaquePtr {
    // SAFETY: the callback's text has that length.
    let message = String::from_utf8_lossy(unsafe { list(message, size) }).into_owned();
    error(CallError { code, message })
}

type CallbackError = unsafe extern "C" fn(i32, *const u8, usize) -> OpaquePtr;
static CALLBACK_ERROR: CallbackError = callback_error;

/// Function that frees a value of the store.
type ValueDeleter = unsafe extern "C" fn(*mut u8);

impl KeyValueStore {
    /// Returns the store of a caller that has one.
    pub(crate) fn of(args: &sys::Client_Create) -> Option<KeyValueStore> {
        let function = |pointer: *mut c_void| {
            // SAFETY: null or a function of that type.
            unsafe { std::mem::transmute::<*mut c_void, Option<ApiFunction>>(pointer) }
        };
        Some(KeyValueStore {
            get: function(args.kv_get_callback)?,
            get_arg: args.kv_get_user_arg,
            put: function(args.kv_put_callback)?,
            put_arg: args.kv_put_user_arg,
        })
    }

    /// Waits for a value.
    pub(crate) fn get(&self, key: &str, patience: Duration) -> CallResult<String> {
        let (key, key_size) = chars(key);
        let mut args = sys::KeyValueGetCallback {
            key,
            key_size,
            timeout_in_ms: i32::try_from(patience.as_millis()).unwrap_or(i32::MAX),
            callback_error: (&raw const CALLBACK_ERROR).cast(),
            user_arg: self.get_arg,
            ..ApiArgs::new()
        };
        // SAFETY: the caller's function with its arguments.
        let failure = unsafe { (self.get)((&raw mut args).cast()) };
        // SAFETY: null or an error of this plugin.
        unsafe { taken(failure)? };
        // SAFETY: the value has that length.
        let value =
            String::from_utf8_lossy(unsafe { list(args.value.cast_const(), args.value_size) }).into_owned();
        if let Some(delete) = args.value_deleter_callback {
            // SAFETY: the function frees a value, which is returned once.
            unsafe { std::mem::transmute::<sys::Deleter, ValueDeleter>(delete)(args.value) };
        }
        Ok(value)
    }

    pub(crate) fn put(&self, key: &str, value: &str) -> CallResult {
        let ((key, key_size), (value, value_size)) = (chars(key), chars(value));
        let mut args = sys::KeyValuePutCallback {
            key,
            key_size,
            value,
            value_size,
            callback_error: (&raw const CALLBACK_ERROR).cast(),
            user_arg: self.put_arg,
            ..ApiArgs::new()
        };
        // SAFETY: the caller's function with its arguments.
        let failure = unsafe { (self.put)((&raw mut args).cast()) };
        // SAFETY: null or an error of this plugin.
        unsafe { taken(failure) }
    }
}
