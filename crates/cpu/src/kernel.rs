//! The [`Kernel`] trait: the interface between a step of a compiled program and the code that computes it.
//!
//! Contract of [`Kernel::run`]: `inputs` and `outputs` point to dense row-major arrays of the step's types, aligned to
//! their elements. Outputs alias neither each other nor the inputs, except where the buffer plan makes a step run
//! in-place: element-wise steps on inputs that they read at the index they write, and `dynamic_update_slice` on its
//! operand. Those kernels compare pointers themselves. `scratch` points to [`Kernel::scratch`] bytes.

pub mod convert;
pub mod convolution;
pub mod copy;
pub mod dot_product_gemm;
pub mod elementwise;
pub mod gemm_dims;
pub mod jit_groups;
pub mod literal;
pub mod padded_input;
pub mod partial_sums;
pub mod skinny_gemm;
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;
use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use systole_compile::{MaxPoolArgmax, Step};
use systole_ir::{Result, TensorType};

/// Execution context of a kernel: thread pool and denormal mode.
pub struct KernelContext<'a> {
    /// Thread pool.
    pub team: &'a ThreadPool,
    /// Whether worker threads run with denormals flushed to zero.
    pub flush: bool,
}

thread_local! {
    /// Free scratch buffers of this thread, reused from call to call. Nested calls take one each.
    static SCRATCH: RefCell<Vec<AlignedMemory>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `bytes` bytes of this thread's scratch. The contents are uninitialized or left over from earlier use.
pub fn with_scratch<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let mine = SCRATCH.with(|s| s.borrow_mut().pop());
    let memory = match mine {
        Some(m) if m.len() >= bytes => m,
        _ => match AlignedMemory::new(bytes.next_power_of_two()) {
            Ok(m) => m,
            // A few MiB at most; kernels cannot run without it, and `f` cannot return an error.
            Err(e) => panic!("{e}"),
        },
    };
    let result = f(memory.ptr());
    SCRATCH.with(|s| s.borrow_mut().push(memory));
    result
}

/// Addresses of the arrays of one kernel call.
pub struct Io<'a> {
    /// Operands of the step.
    pub inputs: &'a [*const u8],
    /// Results of the step.
    pub outputs: &'a [*mut u8],
    /// [`Kernel::scratch`] bytes.
    pub scratch: *mut u8,
}

/// A rectangle `[rows, columns]` of a GEMM result that an epilogue processes. All counts are in elements.
#[derive(Clone, Copy, Debug)]
pub struct OutputBlock {
    /// Index of its first element in the result, and the result's row stride.
    pub first: usize,
    pub row: usize,
    /// Row stride of the block's sums in the caller's buffer.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
}

/// Epilogue callback: receives a block and the address of its accumulators.
pub type EpilogueFn<'a> = &'a (dyn Fn(&OutputBlock, *const u8) + Sync);

/// GEMM operand that may have panel layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GemmSide {
    /// Right operand (B).
    Right,
    /// Arrays that the epilogue reads and writes.
    Result,
}

/// Implementation of one step for one machine.
pub trait Kernel: Send + Sync {
    /// Computes the outputs.
    ///
    /// # Safety
    /// See the module documentation.
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()>;

    /// Returns the byte offset of a slice in the first operand (slices only).
    ///
    /// # Safety
    /// The indices among `inputs` are readable.
    unsafe fn part_at(&self, inputs: &[*const u8]) -> usize {
        let _ = inputs;
        0
    }

    /// Returns the size of the scratch memory that all threads of one call share, in bytes.
    fn scratch(&self) -> usize {
        0
    }

    /// Returns the bytes that the kernel can precompute from operands that are the `same` for many calls, such as
    /// packed weights; 0 if it precomputes nothing.
    fn kept(&self, same: &[bool]) -> usize {
        let _ = same;
        0
    }

    /// Precomputes data into `kept`. `inputs` has valid addresses only for operands that are the same.
    ///
    /// # Safety
    /// `kept` has room for [`Kernel::kept`] bytes; see also the module documentation.
    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        let _ = (cx, inputs, kept);
    }

    /// Computes the outputs using the data that [`Kernel::keep`] precomputed.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `kept` was made of the same operands.
    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let _ = kept;
        // SAFETY: guaranteed by the caller.
        unsafe { self.run(cx, io) }
    }

    /// Makes a kernel with one result accumulate into it (beta = 1). Returns whether it supports that.
    fn add_to_result(&mut self) -> bool {
        false
    }

    /// Makes a convolution fuse max pooling. Its outputs are then the maxima, of type `y`, and with some kernels their
    /// argmax. Returns whether it supports that.
    fn pool_result(&mut self, pool: &MaxPoolArgmax, y: &TensorType) -> bool {
        let _ = (pool, y);
        false
    }

    /// Makes a GEMM read a matrix in panel layout ([`crate::run::panel_layout`]), or row-major again. Returns the
    /// columns per panel, or `None` if it is not supported.
    fn take_panels(&mut self, which: GemmSide, on: bool) -> Option<usize> {
        let _ = (which, on);
        None
    }

    /// Makes a GEMM or convolution pass complete blocks of its result to an epilogue ([`Kernel::run_by_blocks`]).
    /// Returns whether it supports that.
    fn hand_over_blocks(&mut self) -> bool {
        false
    }

    /// Computes the result block by block and calls `take` for each, on any thread. Blocks are disjoint and cover the
    /// result. A GEMM does not store it; a convolution stores each block in `io.outputs`, where `take` may overwrite
    /// it. Only for kernels that accepted [`Kernel::hand_over_blocks`]. `kept` may be null.
    ///
    /// # Safety
    /// As for [`Kernel::run_kept`], but a GEMM does not use `io.outputs`.
    unsafe fn run_by_blocks(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        take: EpilogueFn<'_>,
        kept: *const u8,
    ) {
        let _ = (cx, io, take, kept);
    }

    /// Whether an element-wise program can be the epilogue of a GEMM with `columns` columns ([`Kernel::run_block`]).
    fn takes_blocks(&self, columns: usize) -> bool {
        let _ = columns;
        false
    }

    /// Computes a block on this thread. The last input holds only the block's accumulators, with
    /// [`OutputBlock::stride`].
    ///
    /// # Safety
    /// See the module documentation; the kernel [takes blocks](Kernel::takes_blocks) of results with
    /// [`OutputBlock::row`] columns.
    unsafe fn run_block(&self, inputs: &[*const u8], outputs: &[*mut u8], block: &OutputBlock) {
        let _ = (inputs, outputs, block);
    }

    /// Returns the kernel of a loop or branch, whose programs a kernel around it can run as its own.
    fn control_flow(&self) -> Option<&dyn Any> {
        None
    }

    /// Returns nested programs, such as loop bodies, for profiles.
    fn inner(&self) -> Vec<InnerProgram<'_>> {
        Vec::new()
    }
}

/// A nested program of a kernel, with its role as text.
pub(crate) type InnerProgram<'a> = (String, &'a dyn ProgramView);

/// Read access to a program and its kernels, for profiles and listings.
pub(crate) trait ProgramView: Sync {
    /// Returns the steps in execution order.
    fn steps(&self) -> &[Step];

    /// Returns the kernel of each step.
    fn kernels(&self) -> &[Box<dyn Kernel>];

    /// Returns the dispatch decision of each step.
    fn choices(&self) -> &[KernelChoice];

    /// Returns the time of a step while profiling was on; `None` if it did not run.
    fn times(&self, step: usize) -> Option<KernelTimes>;
}

/// Dispatch decision of one step.
#[derive(Clone, Debug)]
pub(crate) struct KernelChoice {
    /// Family of the step.
    pub family: &'static str,
    /// Candidate that accepted it.
    pub candidate: &'static str,
    /// Candidates that were tried before it, and why they rejected the step.
    pub refused: Vec<(&'static str, Cow<'static, str>)>,
    /// Decisions for nested kernels of the candidate.
    pub inside: Vec<KernelChoice>,
}

/// Measured time of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelTimes {
    /// Number of calls.
    pub calls: u64,
    /// Mean seconds per call, without the first call if there are several.
    pub seconds: f64,
    /// Whether it ran inside a parallel loop and therefore on one core.
    pub alone: bool,
}

/// Raw pointer that closures can send to other threads. Tasks of one kernel access disjoint parts of its array.
#[derive(Clone, Copy)]
pub(crate) struct Ptr(pub *mut u8);

// SAFETY: only the address crosses threads; each dereference justifies itself.
unsafe impl Send for Ptr {}
// SAFETY: as for `Send`.
unsafe impl Sync for Ptr {}

impl Ptr {
    pub(crate) fn of(p: *const u8) -> Ptr {
        Ptr(p.cast_mut())
    }

    /// Returns the address plus `bytes`. This is a method so that closures capture the whole `Ptr`, which is `Sync`,
    /// and not its field.
    #[inline(always)]
    pub(crate) fn at(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }

    /// Returns the address of element `i` of type `T`.
    #[inline(always)]
    pub(crate) fn elem<T>(self, i: usize) -> *mut T {
        self.0.cast::<T>().wrapping_add(i)
    }
}
