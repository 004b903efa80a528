//! Backend interface and `jit`: a [`Backend`] compiles a graph into an [`Executable`] that runs on [`Buffer`]s.
//!
//! Also contains [`jit`] for functions over trees of tensors, the registry of backends, the reference backend, and
//! ahead-of-time compilation ([`AotCompiler`], [`AotTopology`]).
//!
//! This crate depends on no particular device. The facade crate registers the backends.

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

// Names of the previous version.
systole_ir::renamed! { AheadMemory => AotMemory, AheadReport => AotReport, AheadRequest => AotRequest, AheadSlice => AotTopology, Provider => BackendProvider, Report => ExecutableReport, Roles => ValueRoles, Skeleton => TreeStructure }
#[doc(hidden)]
pub use self::{
    AotCompiler as AheadOfTime, ExecutableArg as Arg, FinishedStep as Ended, HostGroup as Hosts,
    TensorTree as Tree,
};
systole_ir::renamed! { mod event => events, mod pieces => sharded_array, mod proto => protobuf }
