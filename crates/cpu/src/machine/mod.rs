//! Host machine: instruction-set levels, thread pool, memory, and measured peak rates.

pub mod arenas;
pub mod checked_allocator;
pub mod interrupt;
mod level;
pub mod memory;
pub mod peak;
pub mod thread_pool;
pub mod trace_spans;
