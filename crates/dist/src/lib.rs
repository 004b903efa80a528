//! Distributed training strategies: data parallel and fully sharded, by partitioning one program over several devices.
//!
//! A model is traced once, as if one device ran it on the whole batch. A [`Strategy`] chooses the shardings of the
//! program's arguments and results on a mesh ([`Shardings`](systole_ir::Shardings)). [`Strategy::on`] wraps a backend
//! so that it compiles for all devices. A backend that partitions programs itself (XLA through PJRT) gets the program
//! and its shardings. For other backends, [`partition`] generates the program of each device, with collectives.
//! [`SimulatedMesh`] runs it on logical devices in one process, with collectives on the host: for testing numerics, not
//! speed.
//!
//! For plugins and tools: [`partition`] is a plain function of a graph and its shardings. [`SimulatedMesh`] runs any
//! program with collectives on any single-device backend.

mod backend;
mod partition;
mod simulated_mesh;
mod strategy;

pub use backend::DistributedBackend;
pub use partition::partition;
pub use simulated_mesh::{DeviceOwnership, ProcessExchange, SimulatedMesh};
pub use strategy::Strategy;

// Names of the previous version.
systole_ir::renamed! { Distributed => DistributedBackend, Team => DeviceOwnership }
#[doc(hidden)]
pub use self::ProcessExchange as Exchange;
