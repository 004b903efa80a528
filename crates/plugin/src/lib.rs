//! Systole's CPU engine as a PJRT plugin: a shared library that exports `GetPjrtApi`, for JAX and other programs. The
//! program `systole` links the same code and opens it with [`open_linked`].
//!
//! It compiles StableHLO from Systole and other systems, and has as many logical devices as the option `num_devices`
//! states. All use this machine's cores: they test numerics, not speed. Programs sharded over devices (`sdy`) are
//! partitioned into one program per device with collectives by `systole-dist`. The plugin is the test bed of
//! `systole-pjrt` without an accelerator, and JAX runs its programs on it, passed as bytecode.
//!
//! Several processes may be hosts of one slice (options `num_processes`, `process_id`, `coordinator_address`,
//! `timeout_seconds`): each has `num_devices` devices, and `multi_host` exchanges data between them.
//!
//! Runs are complete when their calls return. With `step_milliseconds` they complete later and one after the other,
//! like on an asynchronous device.
//!
//! `table` implements the C API; `device`, `array` and `program` are its objects.
//!
//! This crate contains `unsafe` code: callers pass pointers that are valid according to the C API.
#![allow(unsafe_code)]

mod annotations;
mod attributes;
mod auto_layout;
mod buffer;
mod buffer_type;
mod call;
mod compile;
mod device;
mod event;
mod executable;
mod executable_info;
mod execute;
mod extensions;
mod ffi;
mod handshake;
mod host_callbacks;
mod key_value;
mod layout;
mod linked;
mod multi_host;
mod options;
mod profiler;
mod propagation;
mod queue;
mod serialized;
mod signals;
mod table;
mod transfer;

pub use ffi::{
    systole_free_text, systole_register_custom_call, systole_register_ffi_handler, systole_register_ffi_type,
};
pub use host_callbacks::{systole_python_callback_uses, systole_set_python_callback};
pub use linked::open_linked;
pub use signals::systole_watch_interrupts;
pub use table::GetPjrtApi;
