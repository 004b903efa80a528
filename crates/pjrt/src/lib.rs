//! PJRT client for TPUs and GPUs through installed plugins: `libtpu.so`, `xla_cuda_plugin.so` and others.
//!
//! [`discover`] finds a plugin, [`Plugin`] loads it, [`Topology`] describes remote machines, and [`AheadCompiler`]
//! compiles for them in child processes. Systole includes no plugin: libtpu is Google's, and the user's agreement with
//! Google applies.
//!
//! This crate contains `unsafe` code for calls through the C API; `sys` has the layouts and `plugin` the calling rules.
#![allow(unsafe_code)]

mod backend;
mod cache;
mod client;
mod compile_options;
mod compiler_process;
mod debug_locations;
mod device_nodes;
mod discover;
mod grpc;
mod open;
mod plugin;
mod profile;
mod profiler;
mod program_text;
pub mod sys;
mod topology;
mod tpu_cluster;
mod tpu_metrics;
mod xla_workarounds;
pub mod xspace;

pub use backend::PjrtBackend;
pub use cache::CompileCache;
pub use client::{Client, LoadedExecutable, PjrtBuffer, PjrtDevice, REJECTED_CONNECTIONS, RunInput};
pub use compile_options::device_assignment;
pub use compiler_process::{AheadCompiler, COMMAND, serve};
pub use debug_locations::with_layers;
pub use device_nodes::device_nodes;
pub use discover::{AcceleratorPlatform, Search, SearchPath, discover};
pub use open::{open, open_file, open_plugin};
pub use plugin::{Plugin, PluginValue};
pub use program_text::{program_text, spread_text};
pub use topology::{AheadExecutable, Topology, TopologyDevice};
pub use tpu_cluster::{ClusterWarning, TpuClusterResolver, TpuEnvironment, refuse_retired};
pub use tpu_metrics::{TpuLoad, TpuMetricsPorts};

// Names of the previous version.
systole_ir::renamed! { Array => PjrtBuffer, Compiled => AheadExecutable, Device => PjrtDevice, Doubt => ClusterWarning, Loaded => LoadedExecutable, Platform => AcceleratorPlatform, Surroundings => TpuEnvironment, Value => PluginValue }
#[doc(hidden)]
pub use self::RunInput as Input;
