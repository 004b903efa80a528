//! The machine: instruction-set levels, threads, memory, and measured peak rates.

mod level;
pub mod memory;
pub mod peak;
pub mod team;
pub mod watch;
