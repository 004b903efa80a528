//! Systole's CPU engine as a PJRT plugin: a library that exports `GetPjrtApi`.
//!
//! It takes StableHLO, as Systole prints it and as other systems do, and offers as many logical devices as the option `num_devices` asks
//! for, all of them this machine's cores: they show numerics, not speed. Programs that are split over devices (`sdy`) become
//! the program of each device with collectives, by the partitioner of `systole-dist`. It is the test bed of `systole-pjrt` where no
//! accelerator is, and JAX runs its programs on it, which come as bytecode.
//!
//! Several processes may be the hosts of one slice (options `num_processes`, `process_id`, `coordinator_address`,
//! `timeout_seconds`): each drives `num_devices` of its devices, and `hosts` carries what these exchange.
//!
//! Runs are over when their calls return. With `step_milliseconds` they end so much later and one after the other, as on a
//! device that works by itself.
//!
//! `table` answers calls by the C API's rules, `device`, `array` and `program` are what the calls are about.
//!
//! This crate has `unsafe` code: what callers pass are pointers, which the C API says are valid.
#![allow(unsafe_code)]

mod annotations;
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
mod layout;
mod multi_host;
mod options;
mod profiler;
mod queue;
mod serialized;
mod table;
mod transfer;

pub use table::GetPjrtApi;
