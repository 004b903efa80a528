//! TPU and GPU through PJRT plugins that users already have: `libtpu.so`, `xla_cuda_plugin.so` and others.
//!
//! [`discover`] finds a plugin, [`Plugin`] loads it, [`Topology`] stands for machines that are not here, and
//! [`AheadCompiler`] compiles for them in child processes. No plugin is part of Systole: libtpu is Google's, and its use
//! is under the user's agreement with Google.
//!
//! This crate has `unsafe` code: calls through the C API, of which `sys` has the layouts and `plugin` the rules.
#![allow(unsafe_code)]

mod backend;
mod cache;
mod client;
mod compile_options;
mod compiler_process;
mod debug_locations;
mod device_nodes;
mod discover;
mod open;
mod plugin;
mod profile;
mod profiler;
mod program_text;
mod proto;
pub mod sys;
mod topology;
mod tpu_cluster;
mod xla_workarounds;
pub mod xspace;

pub use backend::PjrtBackend;
pub use cache::CompileCache;
pub use client::{Client, LoadedExecutable, PjrtBuffer, PjrtDevice, RunInput};
pub use compile_options::device_assignment;
pub use compiler_process::{AheadCompiler, COMMAND, serve};
pub use debug_locations::with_layers;
pub use device_nodes::device_nodes;
pub use discover::{AcceleratorPlatform, Search, SearchPath, discover};
pub use open::{open, open_file};
pub use plugin::{Plugin, PluginValue};
pub use program_text::{program_text, spread_text};
pub use topology::{AheadExecutable, Topology, TopologyDevice};
pub use tpu_cluster::{ClusterWarning, TpuClusterResolver, TpuEnvironment, refuse_retired};
