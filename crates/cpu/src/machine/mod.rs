//! What this machine is: levels of instructions, threads, memory, measured peaks.

mod level;
pub mod memory;
pub mod peak;
pub mod team;
pub mod watch;
