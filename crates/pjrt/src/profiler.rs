//! Controls a plugin's profiler through the PJRT extension; returns the recording as a serialized `XSpace` for
//! [`xspace`](crate::xspace).

use crate::plugin::{Plugin, text};
use crate::sys::profiler::{
    Api, CollectData, ErrorCodeArgs, ProfilerArgs, ProfilerCreateArgs, ProfilerExtension, TYPE,
};
use crate::sys::{self, ApiFunction, OpaquePtr};
use std::ffi::c_void;
use systole_ir::{Error, ErrorKind, Result, err};
use systole_runtime::protobuf::ProtoMessage;
use systole_runtime::{events, trace};

/// Whether profiling is enabled.
pub(crate) fn wanted() -> bool {
    events::wanted(2) || trace::is_on()
}

/// A running profiler of a plugin.
pub(crate) struct ProfilerSession {
    plugin: Plugin,
    api: *const Api,
    object: OpaquePtr,
}

// SAFETY: the table is constant, and one thread at a time has the object.
unsafe impl Send for ProfilerSession {}

impl ProfilerSession {
    /// Starts recording; `None` if the plugin has no profiler.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub(crate) fn start(plugin: &Plugin) -> Result<Option<ProfilerSession>> {
        let Some(extension) = plugin.extension(TYPE) else { return Ok(None) };
        // SAFETY: the extension of this type has this layout and is permanent.
        let api = unsafe { (*extension.cast::<ProfilerExtension>()).profiler_api };
        if api.is_null() {
            return Ok(None);
        }
        // `tensorflow.ProfileOptions`: host events, device events, the version, programs.
        let options = ProtoMessage::default().int(2, 1).int(3, 1).int(5, 1).int(7, 1).done();
        let mut args = ProfilerCreateArgs {
            struct_size: size_of::<ProfilerCreateArgs>(),
            options: options.as_ptr(),
            options_size: options.len(),
            profiler: std::ptr::null_mut(),
        };
        let mut profiler = ProfilerSession { plugin: plugin.clone(), api, object: std::ptr::null_mut() };
        profiler.call(|api| api.create, &raw mut args, "PLUGIN_Profiler_Create")?;
        profiler.object = args.profiler;
        let mut args = profiler.one();
        profiler.call(|api| api.start, &raw mut args, "PLUGIN_Profiler_Start")?;
        Ok(Some(profiler))
    }

    /// Stops recording and returns the recording.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub(crate) fn stop(self) -> Result<Vec<u8>> {
        let mut args = self.one();
        self.call(|api| api.stop, &raw mut args, "PLUGIN_Profiler_Stop")?;
        let mut args = CollectData {
            struct_size: size_of::<CollectData>(),
            profiler: self.object,
            buffer: std::ptr::null_mut(),
            buffer_size: 0,
        };
        let name = "PLUGIN_Profiler_CollectData";
        self.call(|api| api.collect_data, &raw mut args, name)?;
        if !args.buffer.is_null() {
            // SAFETY: the plugin's memory of that length, valid until the profiler is destroyed.
            return Ok(unsafe { std::slice::from_raw_parts(args.buffer, args.buffer_size) }.to_vec());
        }
        let mut bytes = vec![0u8; args.buffer_size];
        if !bytes.is_empty() {
            args.buffer = bytes.as_mut_ptr();
            self.call(|api| api.collect_data, &raw mut args, name)?;
        }
        Ok(bytes)
    }

    fn one(&self) -> ProfilerArgs {
        ProfilerArgs { struct_size: size_of::<ProfilerArgs>(), profiler: self.object }
    }

    fn function(&self, pick: fn(&Api) -> Option<ApiFunction>) -> Option<ApiFunction> {
        // SAFETY: a plugin's constant table.
        pick(unsafe { &*self.api })
    }

    /// Calls a function with its argument structure.
    fn call<A>(&self, pick: fn(&Api) -> Option<ApiFunction>, args: *mut A, name: &str) -> Result<()> {
        let Some(function) = self.function(pick) else {
            let e = err!(Unsupported, "the plugin does not offer {name}");
            return Err(e.at(self.plugin.path().display().to_string()));
        };
        // SAFETY: the function takes this structure (ensured by the callers).
        let error = unsafe { function(args.cast()) };
        if error.is_null() { Ok(()) } else { Err(self.error(error, name)) }
    }

    /// Converts an error object and frees it.
    fn error(&self, error: OpaquePtr, name: &str) -> Error {
        let private = std::ptr::null_mut();
        let mut args = sys::profiler::ErrorMessageArgs {
            struct_size: size_of::<sys::profiler::ErrorMessageArgs>(),
            private,
            error,
            message: std::ptr::null(),
            message_size: 0,
        };
        self.tell(|api| api.error_message, &raw mut args);
        // SAFETY: the message belongs to the error, which is freed below.
        let said = unsafe { text(args.message, args.message_size) };
        let mut args = ErrorCodeArgs {
            struct_size: size_of::<ErrorCodeArgs>() - size_of::<u64>(),
            private,
            error,
            code: 0,
        };
        self.tell(|api| api.error_destroy, &raw mut args);
        Error::new(ErrorKind::Unsupported, said).at(name)
    }

    /// Calls a function without a result.
    fn tell<A>(&self, pick: fn(&Api) -> Option<ApiFunction>, args: *mut A) {
        if let Some(function) = self.function(pick) {
            // SAFETY: as in `call`; the result is ignored.
            unsafe { function(args.cast::<c_void>()) };
        }
    }
}

impl Drop for ProfilerSession {
    fn drop(&mut self) {
        if !self.object.is_null() {
            let mut args = self.one();
            let _ = self.call(|api| api.destroy, &raw mut args, "PLUGIN_Profiler_Destroy");
        }
    }
}
