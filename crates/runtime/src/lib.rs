//! What every backend is to the rest of Systole: [`Backend`] compiles a graph into an [`Executable`] that runs on
//! [`Buffer`]s. Also [`jit`] for functions over trees of tensors, the list of backends, the reference backend, and what
//! compiling for machines that are not here means ([`AheadOfTime`], [`AheadSlice`]).
//!
//! This crate knows no particular device. The facade registers the backends it was built with.

mod ahead_of_time;
mod backend;
mod buffer;
mod cache_dir;
pub mod events;
mod in_flight;
mod jit;
pub mod layer_times;
pub mod protobuf;
mod reference;
mod registry;
mod scope;
pub mod sharded_array;
pub mod trace;
mod tree;

pub use ahead_of_time::{AotCompiler, AotMemory, AotReport, AotRequest, AotTopology};
pub use backend::{
    Backend, CompileOptions, DeviceId, DeviceInfo, Executable, ExecutableArg, ExecutableReport, HostGroup,
    ValueRoles,
};
pub use buffer::{Buffer, DeviceData};
pub use cache_dir::cache_folder;
pub use in_flight::{FinishedStep, InFlight, ReadyEvent, STEPS_IN_FLIGHT};
pub use jit::{Jit, jit, value_and_grad};
pub use reference::{NullBackend, ReferenceBackend};
pub use registry::{BackendProvider, backend, provider_names, register};
pub use scope::named_scope;
pub use sharded_array::ShardedArray;
pub use tree::{Params, TensorTree, TreeStructure};
