//! Strategies: how one program is split over several devices.
//!
//! A model is traced once, as if one device ran it on the whole batch. A [`Strategy`] says how the program's arguments lie
//! on the devices of a mesh ([`Spread`](systole_ir::Spread)); [`Strategy::on`] wraps a backend in one that compiles for
//! all of them. Where the backend splits programs by itself (XLA through PJRT), it gets program and spread. For others
//! [`partition`] makes the program of each device, with the exchanges between them as collectives, and [`SimulatedMesh`] runs it
//! on logical devices in one process, the exchanges on the host: that shows numerics, not speed.
//!
//! For plugins and tools: [`partition`] is a plain function of graph and spread, [`SimulatedMesh`] runs any program with
//! collectives on any backend of one device.

mod backend;
mod partition;
mod simulated_mesh;
mod strategy;

pub use backend::DistributedBackend;
pub use partition::partition;
pub use simulated_mesh::{DeviceOwnership, ProcessExchange, SimulatedMesh};
pub use strategy::Strategy;
