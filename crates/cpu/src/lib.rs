//! CPU backend: compiles graphs to programs of vectorized kernels and runs them on a thread pool.
//!
//! Reading order, from the top: `backend` (compile and run), `run/` (execution of programs), `kernels/` (one folder and
//! one table of candidate kernels per family), `select` (kernel dispatch), [`int8`](mod@int8) (kernels for quantized
//! models, outside of programs), `kernel` (the kernel trait, and code shared by several families), `machine/`
//! (instruction-set levels, threads, memory), `simd/` (vectors, loops over them, GEMM microkernels). A module imports
//! only from those after it.
//!
//! Results depend on the graph and the instruction-set level, never on the number of threads: blocks and trees of
//! partial sums are functions of shapes.
//!
//! This crate has `unsafe` code. The invariant behind most of it is stated once, in `kernel.rs`: a kernel gets pointers
//! to arrays of its step's types, which the buffer plan keeps disjoint or validly in place.
#![allow(unsafe_code)]

mod backend;
pub mod int8;
mod kernel;
mod kernels;
mod machine;
mod run;
mod select;
mod simd;

pub use crate::backend::{CpuBackend, kernel_names, kernel_tables, provider};
pub use crate::machine::checked_allocator::CheckedAllocator;
pub use crate::machine::interrupt::{InterruptMark, note_interrupt};
pub use crate::machine::memory::available as available_memory;
pub use crate::machine::peak::{Peak, Tier, peak, process_cpu_seconds, thread_cpu_seconds};
pub use crate::machine::thread_pool::{ThreadPool, with_subnormals};
pub use crate::run::buffer::buffer_from_bytes;
pub use crate::run::explain::{ChosenKernel, StepKernel, kernel_listing};
pub use crate::run::memory_limit::check_memory;
pub use crate::simd::level::Level;
pub use crate::simd::loops::has_vector_form;
pub use systole_compile::RowBlocksMode;

// Names of the previous version.
systole_ir::renamed! { Blocking => RowBlocksMode, Team => ThreadPool }
