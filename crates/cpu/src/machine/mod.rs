//! Host machine: instruction-set levels, thread pool, memory, and measured peak rates.

mod level;
pub mod memory;
pub mod peak;
pub mod thread_pool;
pub mod trace_spans;
