//! The contract of kernels: what a step is bound to, and what that gets when it runs.
//!
//! [`Kernel::run`]: `inputs` and `outputs` point to arrays of the step's types, aligned to their elements. Outputs overlap
//! neither each other nor the inputs, except where the buffer plan lets a step write in place (element-wise steps on
//! inputs they read at the same index; `dynamic_update_slice` on its operand); those kernels look for equal pointers
//! themselves. `scratch` points to as many bytes as the kernel asked for.

pub mod convert;
pub mod convolution;
pub mod copy;
pub mod few_rows;
pub mod inner_products;
pub mod literal;
pub mod padded;
pub mod partial_sums;
pub mod product;
pub mod program;
use crate::machine::memory::Memory;
use crate::machine::team::Team;
use std::borrow::Cow;
use std::cell::RefCell;
use systole_compile::{Pool, Step};
use systole_ir::{Result, TensorType};

/// What kernels may use while they run.
pub struct Cx<'a> {
    /// Threads.
    pub team: &'a Team,
    /// Whether tiny numbers are flushed to zero.
    pub flush: bool,
}

thread_local! {
    /// Working memory of this thread, reused from call to call; several while calls nest.
    static SCRATCH: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

/// Lends `bytes` of this thread's working memory to `f`. Its contents are left over from earlier use.
pub fn with_scratch<R>(bytes: usize, f: impl FnOnce(*mut u8) -> R) -> R {
    let mine = SCRATCH.with(|s| s.borrow_mut().pop());
    let memory = match mine {
        Some(m) if m.len() >= bytes => m,
        _ => match Memory::new(bytes.next_power_of_two()) {
            Ok(m) => m,
            // A few MiB at most; without them nothing can go on.
            Err(e) => panic!("{e}"),
        },
    };
    let result = f(memory.ptr());
    SCRATCH.with(|s| s.borrow_mut().push(memory));
    result
}

/// Addresses of one call's arrays.
pub struct Io<'a> {
    /// Operands.
    pub inputs: &'a [*const u8],
    /// Results.
    pub outputs: &'a [*mut u8],
    /// Working memory of the size that [`Kernel::scratch`] names.
    pub scratch: *mut u8,
}

/// A rectangle of a result `[rows, columns]`: neighbouring columns of some neighbouring rows.
#[derive(Clone, Copy, Debug)]
pub struct OutputBlock {
    /// Its first element, and elements from row to row, in the result.
    pub first: usize,
    pub row: usize,
    /// Elements from row to row where the block's values lie while they are not stored.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
}

/// What takes the values of a block, which lie at the address.
pub type TakeBlock<'a> = &'a (dyn Fn(&OutputBlock, *const u8) + Sync);

/// A matrix that may lie in panels of columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The right operand.
    Right,
    /// The result's arrays.
    Result,
}

/// A step bound to this machine.
pub trait Kernel: Send + Sync {
    /// Computes the outputs.
    ///
    /// # Safety
    /// See the module text.
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()>;

    /// Where in its first operand lies the part that it slices, in bytes.
    ///
    /// # Safety
    /// The indices among `inputs` can be read.
    unsafe fn part_at(&self, inputs: &[*const u8]) -> usize {
        let _ = inputs;
        0
    }

    /// Bytes of working memory that all threads of one call share.
    fn scratch(&self) -> usize {
        0
    }

    /// Bytes of what it can make once of the operands that are the `same` for many calls; 0: nothing.
    fn kept(&self, same: &[bool]) -> usize {
        let _ = same;
        0
    }

    /// Makes that of the operands; only those that are the same have addresses.
    ///
    /// # Safety
    /// `kept` has room for [`Kernel::kept`] bytes; see also the module text.
    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        let _ = (cx, inputs, kept);
    }

    /// Computes the outputs with what [`Kernel::keep`] made.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; `kept` was made of the same operands.
    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let _ = kept;
        // SAFETY: by the caller's promise.
        unsafe { self.run(cx, io) }
    }

    /// Asks a kernel with one result to add to what that holds instead of overwriting it; whether it will.
    fn add_to_result(&mut self) -> bool {
        false
    }

    /// Asks a convolution to max-pool its result while that is near: in its place come the maxima, of type `y`, and perhaps
    /// their argmax. Whether it will.
    fn pool_result(&mut self, pool: &Pool, y: &TensorType) -> bool {
        let _ = (pool, y);
        false
    }

    /// Asks a product to take a matrix in panels of columns ([`crate::run::panels`]) from now on, or as rows again: how many
    /// columns they have, if it can.
    fn take_panels(&mut self, which: Side, on: bool) -> Option<usize> {
        let _ = (which, on);
        None
    }

    /// Asks a product to hand complete blocks of its result to an epilogue from now on instead of storing them
    /// ([`Kernel::run_by_blocks`]); whether it will.
    fn hand_over_blocks(&mut self) -> bool {
        false
    }

    /// Computes the result block by block, for a kernel that agreed to [`Kernel::hand_over_blocks`]: each element is in
    /// one block. Nothing is stored.
    ///
    /// # Safety
    /// As for [`Kernel::run_kept`], but that there is no result.
    unsafe fn run_by_blocks(&self, cx: &Cx<'_>, io: &Io<'_>, take: TakeBlock<'_>, kept: *const u8) {
        let _ = (cx, io, take, kept);
    }

    /// Whether an element-wise program can be the epilogue of a product: computes blocks of a result of so many columns
    /// ([`Kernel::run_block`]).
    fn takes_blocks(&self, columns: usize) -> bool {
        let _ = columns;
        false
    }

    /// Computes a block on this thread; the last input has the block's elements only.
    ///
    /// # Safety
    /// See the module text; the kernel [takes blocks](Kernel::takes_blocks) of results with [`OutputBlock::row`] columns.
    unsafe fn run_block(&self, inputs: &[*const u8], outputs: &[*mut u8], block: &OutputBlock) {
        let _ = (inputs, outputs, block);
    }

    /// Programs that it runs, for profiles.
    fn inner(&self) -> Vec<Inner<'_>> {
        Vec::new()
    }
}

/// A program inside a kernel, and what it is there.
pub(crate) type Inner<'a> = (String, &'a dyn Program);

/// A program whose steps have kernels, for those who look at it: profiles and listings.
pub(crate) trait Program: Sync {
    /// What it computes, in order.
    fn steps(&self) -> &[Step];

    /// The kernel of each step.
    fn kernels(&self) -> &[Box<dyn Kernel>];

    /// How the kernel of each step was chosen.
    fn choices(&self) -> &[Choice];

    /// What a step took while somebody watched; `None` where it did not run.
    fn times(&self, step: usize) -> Option<StepTimes>;
}

/// How the kernel of a step was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The family of the step.
    pub family: &'static str,
    /// The candidate that took it.
    pub candidate: &'static str,
    /// Those of higher priority, and why they refused.
    pub refused: Vec<(&'static str, Cow<'static, str>)>,
    /// Kernels that it bound inside its own.
    pub inside: Vec<Choice>,
}

/// What a step took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTimes {
    /// How often it ran.
    pub calls: u64,
    /// Of one call.
    pub seconds: f64,
    /// Whether it ran inside a parallel loop, so on one core.
    pub alone: bool,
}

/// An address that may cross threads: blocks of one kernel touch disjoint parts of what it points to.
#[derive(Clone, Copy)]
pub(crate) struct Ptr(pub *mut u8);

// SAFETY: an address is data; what is done with it is justified where it is used.
unsafe impl Send for Ptr {}
// SAFETY: as above.
unsafe impl Sync for Ptr {}

impl Ptr {
    pub(crate) fn of(p: *const u8) -> Ptr {
        Ptr(p.cast_mut())
    }

    /// The address `bytes` further on. A method, so that closures capture the whole `Ptr`.
    #[inline(always)]
    pub(crate) fn at(self, bytes: usize) -> *mut u8 {
        self.0.wrapping_add(bytes)
    }

    /// The address of element `i` of type `T`.
    #[inline(always)]
    pub(crate) fn elem<T>(self, i: usize) -> *mut T {
        self.0.cast::<T>().wrapping_add(i)
    }
}
