//! Fourier transforms along one dimension of real and complex arrays, in f32 and f64.
//!
//! Vectors hold elements of different transforms ([`lanes`]), or of different columns and rows of one that is split in
//! two steps ([`steps`]). Both need shuffles only to transpose contiguous arrays.

mod lanes;
mod passes;
mod plan;
mod spec;
mod steps;

use self::lanes::{GroupArrays, LaneLayout, group_buffers};
use self::spec::{FftMethod, FftSpec};
use self::steps::Planes;
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::simd::level::{Level, by_level};
use crate::simd::vector::{Portable32, Portable64};
use crate::simd::zip_lanes::ZipLanes;
use std::ops::{Add, Sub};
use systole_compile::Step;
use systole_ir::op::CustomCall;
use systole_ir::op::fft::{FFT, FftCall, FftType};
use systole_ir::{DType, Result};

#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V4x64, V8x32, V8x64, V16x32};

/// Elements of an array that all threads transform together; smaller arrays are divided among them.
const SHARED: usize = 1 << 15;

/// Elements of the arrays that a thread takes at a time.
const BLOCK: usize = 1 << 13;

/// Arrays of one call.
#[derive(Clone, Copy)]
struct FftArrays<T> {
    from: Planes<T>,
    to: Planes<T>,
}

/// Part of a transform that one thread computes.
enum FftTask<T> {
    /// A group of arrays, one per lane.
    Group(GroupArrays<T>, GroupArrays<T>),
    /// One array in two steps, with its scratch.
    Array(FftArrays<T>, ArrayScratch<T>),
    /// What an array needs before and after its complex transform.
    Prepare(FftArrays<T>, ArrayScratch<T>),
    Finish(FftArrays<T>, ArrayScratch<T>),
    /// Columns or rows of an array.
    Columns(usize, FftArrays<T>, ArrayScratch<T>),
    Rows(usize, FftArrays<T>, ArrayScratch<T>),
}

/// Memory of the two steps of one array: operand and result of the complex transform if they are not the call's, and
/// the table between the steps.
#[derive(Clone, Copy)]
struct ArrayScratch<T> {
    from: Planes<T>,
    to: Planes<T>,
    table: Planes<T>,
}

impl<T> ArrayScratch<T> {
    /// Returns the number of elements that [`ArrayScratch::at`] divides.
    fn elements<V: ZipLanes<T = T>>(spec: &FftSpec<T>) -> usize {
        let table = spec.steps().map_or(0, |s| s.table::<V>());
        2 * (2 * spec.n + table)
    }

    fn at(spec: &FftSpec<T>, memory: *mut T, table: usize) -> ArrayScratch<T> {
        let planes = |first: usize, n: usize| Planes {
            re: memory.wrapping_add(first),
            im: memory.wrapping_add(first + n),
        };
        let n = spec.n;
        ArrayScratch { from: planes(0, n), to: planes(2 * n, n), table: planes(4 * n, table) }
    }
}

/// Returns the operand and the result of an array's complex transform; parts are exchanged for inverse transforms.
fn complex<T>(spec: &FftSpec<T>, arrays: FftArrays<T>, scratch: ArrayScratch<T>) -> FftArrays<T> {
    let given = match (spec.kind, spec.is_paired()) {
        (FftType::Fft | FftType::Ifft, _) => arrays.from,
        (FftType::Rfft, false) => Planes { re: arrays.from.re, im: scratch.from.im },
        _ => scratch.from,
    };
    let made = if spec.kind.is_real() { scratch.to } else { arrays.to };
    match spec.kind.is_inverse() {
        true => FftArrays { from: given.swapped(), to: made.swapped() },
        false => FftArrays { from: given, to: made },
    }
}

#[inline(always)]
unsafe fn prepare<V: ZipLanes>(spec: &FftSpec<V::T>, x: FftArrays<V::T>, scratch: ArrayScratch<V::T>)
where
    V::T: Add<Output = V::T> + Sub<Output = V::T>,
{
    let (n, h, own) = (spec.n, spec.n / 2, scratch.from);
    // SAFETY: by the contract of `work`.
    unsafe {
        match (spec.kind, spec.is_paired()) {
            (FftType::Rfft, true) => steps::split_pairs::<V>(h, x.from.re, own),
            (FftType::Irfft, true) => steps::pairs::<V>(h, x.from, own, [&spec.roots.0, &spec.roots.1]),
            (FftType::Rfft, false) => {
                for j in 0..n {
                    *own.im.add(j) = V::scalar(0.0);
                }
            }
            (FftType::Irfft, false) => {
                (*own.re, *own.im) = (*x.from.re, V::scalar(0.0));
                for k in 1..=h {
                    let (re, im) = (*x.from.re.add(k), *x.from.im.add(k));
                    (*own.re.add(k), *own.im.add(k)) = (re, im);
                    (*own.re.add(n - k), *own.im.add(n - k)) = (re, V::scalar(0.0) - im);
                }
            }
            (FftType::Fft | FftType::Ifft, _) => {}
        }
    }
}

#[inline(always)]
unsafe fn finish<V: ZipLanes>(spec: &FftSpec<V::T>, x: FftArrays<V::T>, scratch: ArrayScratch<V::T>)
where
    V::T: Add<Output = V::T> + Sub<Output = V::T>,
{
    let (n, h, made) = (spec.n, spec.n / 2, scratch.to);
    // SAFETY: by the contract of `work`.
    unsafe {
        match (spec.kind, spec.is_paired()) {
            (FftType::Rfft, true) => steps::spectrum::<V>(h, made, x.to, [&spec.roots.0, &spec.roots.1]),
            (FftType::Irfft, true) => steps::join_pairs::<V>(h, made, x.to.re),
            (FftType::Rfft, false) => {
                std::ptr::copy_nonoverlapping(made.re, x.to.re, h + 1);
                std::ptr::copy_nonoverlapping(made.im, x.to.im, h + 1);
            }
            (FftType::Irfft, false) => std::ptr::copy_nonoverlapping(made.re, x.to.re, n),
            (FftType::Fft | FftType::Ifft, _) => {}
        }
    }
}

/// Runs a task.
///
/// # Safety
/// The CPU has the level of `V`; the arrays have the elements, and `buffers` [`FftKernel::buffers`].
#[inline(always)]
unsafe fn work<V: ZipLanes>(spec: &FftSpec<V::T>, task: &FftTask<V::T>, buffers: *mut V::T)
where
    V::T: Add<Output = V::T> + Sub<Output = V::T>,
{
    // SAFETY: by the caller's promise.
    unsafe {
        let two = match &spec.method {
            FftMethod::TwoSteps(two) => two,
            FftMethod::Lanes(plan) => {
                if let FftTask::Group(from, to) = *task {
                    lanes::group::<V>(spec, plan, from, to, buffers);
                }
                return;
            }
        };
        let scale = V::scalar(if spec.kind.is_inverse() { 1.0 / spec.n as f64 } else { 1.0 });
        match *task {
            FftTask::Group(..) => {}
            FftTask::Array(x, scratch) => {
                prepare::<V>(spec, x, scratch);
                let z = complex(spec, x, scratch);
                for g in 0..two.n2.div_ceil(V::LANES) {
                    steps::columns::<V>(two, g, z.from, scratch.table, buffers);
                }
                for g in 0..two.n1.div_ceil(V::LANES) {
                    steps::rows::<V>(two, g, scratch.table, z.to, scale, buffers);
                }
                finish::<V>(spec, x, scratch);
            }
            FftTask::Prepare(x, scratch) => prepare::<V>(spec, x, scratch),
            FftTask::Finish(x, scratch) => finish::<V>(spec, x, scratch),
            FftTask::Columns(g, x, scratch) => {
                steps::columns::<V>(two, g, complex(spec, x, scratch).from, scratch.table, buffers);
            }
            FftTask::Rows(g, x, scratch) => {
                steps::rows::<V>(two, g, scratch.table, complex(spec, x, scratch).to, scale, buffers);
            }
        }
    }
}

/// Defines [`work`] for a vector type, compiled for its level.
macro_rules! work_of {
    ($name:ident, $v:ty, $($features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $name(spec: &FftSpec<<$v as crate::simd::vector::Vector>::T>, task: &FftTask<<$v as crate::simd::vector::Vector>::T>, buffers: *mut <$v as crate::simd::vector::Vector>::T) {
            // SAFETY: guaranteed by the caller.
            unsafe { work::<$v>(spec, task, buffers) }
        }
    };
}
work_of!(portable32, Portable32,);
work_of!(portable64, Portable64,);
#[cfg(target_arch = "x86_64")]
work_of!(avx2_32, V8x32, "avx2,fma");
#[cfg(target_arch = "x86_64")]
work_of!(avx2_64, V4x64, "avx2,fma");
#[cfg(target_arch = "x86_64")]
work_of!(avx512_32, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");
#[cfg(target_arch = "x86_64")]
work_of!(avx512_64, V8x64, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

type WorkFn<T> = unsafe fn(&FftSpec<T>, &FftTask<T>, *mut T);

/// Kernel for a call of [`FFT`].
struct FftKernel<T> {
    spec: FftSpec<T>,
    work: WorkFn<T>,
    lanes: usize,
    /// Elements of the buffers of one thread, of an array's scratch, and of the part of it that is the table.
    buffers: usize,
    scratch: usize,
    table: usize,
    work_ns: f64,
}

/// Creates the kernel of a call; `None` for other calls, and for lengths that have no plan.
pub fn bind(call: &CustomCall, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    if call.target != FFT || call.has_side_effect {
        return None;
    }
    let x = step.input_types.first()?;
    let fft = FftCall::parse(&call.config).ok()?;
    let outer = x.shape.get(..fft.dim)?.iter().product();
    let inner = x.shape.get(fft.dim + 1..)?.iter().product();
    if outer == 0 || inner == 0 || fft.length == 0 {
        return None;
    }
    let shape = (fft.kind, fft.length, outer, inner);
    match x.dtype {
        DType::F32 => by_level!(
            level,
            kernel::<V16x32>(shape, avx512_32),
            kernel::<V8x32>(shape, avx2_32),
            kernel::<Portable32>(shape, portable32)
        ),
        DType::F64 => by_level!(
            level,
            kernel::<V8x64>(shape, avx512_64),
            kernel::<V4x64>(shape, avx2_64),
            kernel::<Portable64>(shape, portable64)
        ),
        _ => None,
    }
}

fn kernel<V: ZipLanes>(
    (kind, n, outer, inner): (FftType, usize, usize, usize),
    work: WorkFn<V::T>,
) -> Option<Box<dyn Kernel>>
where
    V::T: Send + Sync + 'static,
{
    let spec = FftSpec::new::<V>(kind, n, outer, inner)?;
    let groups = group_buffers(spec.wide) * spec.buffer::<V>();
    let buffers = spec.steps().map_or(groups, |s| s.buffers::<V>());
    let scratch = ArrayScratch::elements::<V>(&spec);
    let table = spec.steps().map_or(0, |s| s.table::<V>());
    // About 5 n log₂ n operations, a few in each nanosecond.
    let work_ns = (outer * inner * n) as f64 * (n as f64).log2().max(1.0) * 0.5;
    let lanes = V::LANES;
    Some(Box::new(FftKernel { spec, work, lanes, buffers, scratch, table, work_ns }))
}

impl<T: Copy + Send + Sync> FftKernel<T> {
    /// Runs a task with buffers of this thread.
    ///
    /// # Safety
    /// By the contract of [`Kernel::run`]; no other thread writes the task's results.
    unsafe fn run_task(&self, task: &FftTask<T>) {
        with_scratch(self.buffers * size_of::<T>(), |buffers| {
            // SAFETY: by the caller's promise; the level was checked when the kernel was selected.
            unsafe { (self.work)(&self.spec, task, buffers.cast()) }
        });
    }

    /// Returns the arrays from element `at` of the operands and `to` of the results on.
    fn arrays(&self, io: &FftArrays<T>, [from, to]: [usize; 2]) -> FftArrays<T> {
        let part = |p: *mut T, at: usize| if p.is_null() { p } else { p.wrapping_add(at) };
        FftArrays {
            from: Planes { re: part(io.from.re, from), im: part(io.from.im, from) },
            to: Planes { re: part(io.to.re, to), im: part(io.to.im, to) },
        }
    }

    /// Number of arrays of a group along the inner dimensions.
    fn row(&self) -> usize {
        self.spec.wide * self.lanes
    }

    /// Returns group `g` of arrays.
    fn group(&self, io: &FftArrays<T>, g: usize) -> FftTask<T> {
        let [from, to] = self.spec.lengths();
        let (first, inner, count) = if self.spec.inner == 1 {
            let first = g * self.lanes;
            (first, 0, self.lanes.min(self.spec.outer - first))
        } else {
            let groups = self.spec.inner.div_ceil(self.row());
            let inner = g % groups * self.row();
            (g / groups, inner, self.row().min(self.spec.inner - inner))
        };
        let at = |len: usize| first * len * self.spec.inner + inner;
        let part = self.arrays(io, [at(from), at(to)]);
        let of = |p: Planes<T>, len: usize| {
            let lane = if self.spec.inner == 1 { len } else { 1 };
            let layout = LaneLayout { step: self.spec.inner, lane, count };
            GroupArrays { re: p.re, im: p.im, len, layout }
        };
        FftTask::Group(of(part.from, from), of(part.to, to))
    }

    /// Transforms array `i` by all threads.
    ///
    /// # Safety
    /// By the contract of [`Kernel::run`].
    unsafe fn shared_array(&self, cx: &KernelContext<'_>, x: FftArrays<T>, scratch: ArrayScratch<T>) {
        let Some(two) = self.spec.steps() else { return };
        let (x, scratch) = (SharedTask(x), SharedTask(scratch));
        let half = self.work_ns / (2 * self.spec.outer) as f64;
        // SAFETY: the parts of each loop write different elements, and loops follow each other.
        unsafe {
            self.run_task(&FftTask::Prepare(x.get(), scratch.get()));
            cx.team.run_with(two.n2.div_ceil(self.lanes), half, cx.flush, &|g| {
                self.run_task(&FftTask::Columns(g, x.get(), scratch.get()));
            });
            cx.team.run_with(two.n1.div_ceil(self.lanes), half, cx.flush, &|g| {
                self.run_task(&FftTask::Rows(g, x.get(), scratch.get()));
            });
            self.run_task(&FftTask::Finish(x.get(), scratch.get()));
        }
    }

    /// Transforms each array by itself; `shared` is the scratch of all threads.
    ///
    /// # Safety
    /// By the contract of [`Kernel::run`].
    unsafe fn single_arrays(&self, cx: &KernelContext<'_>, io: FftArrays<T>, shared: *mut u8) {
        let [from, to] = self.spec.lengths();
        let scratch = self.scratch * size_of::<T>();
        if self.spec.n >= SHARED {
            let scratch = ArrayScratch::at(&self.spec, shared.cast(), self.table);
            for i in 0..self.spec.outer {
                // SAFETY: by the caller's promise.
                unsafe { self.shared_array(cx, self.arrays(&io, [i * from, i * to]), scratch) };
            }
            return;
        }
        let block = (BLOCK / self.spec.n).max(1);
        let io = SharedTask(io);
        let body = |b: usize| {
            with_scratch(scratch, |memory| {
                let scratch = ArrayScratch::at(&self.spec, memory.cast(), self.table);
                for i in b * block..((b + 1) * block).min(self.spec.outer) {
                    let x = self.arrays(&io.get(), [i * from, i * to]);
                    // SAFETY: by the caller's promise; arrays are disjoint.
                    unsafe { self.run_task(&FftTask::Array(x, scratch)) };
                }
            });
        };
        cx.team.run_with(self.spec.outer.div_ceil(block), self.work_ns, cx.flush, &body);
    }
}

/// Addresses that threads share.
struct SharedTask<A>(A);

// SAFETY: threads write disjoint parts behind the addresses.
unsafe impl<A> Sync for SharedTask<A> {}

impl<A: Copy> SharedTask<A> {
    fn get(&self) -> A {
        self.0
    }
}

impl<T: Copy + Send + Sync> Kernel for FftKernel<T> {
    fn scratch(&self) -> usize {
        let is_shared = self.spec.steps().is_some() && self.spec.n >= SHARED;
        if is_shared { self.scratch * size_of::<T>() } else { 0 }
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let input = |k: usize| io.inputs.get(k).map_or(std::ptr::null_mut(), |p| Ptr::of(*p).0.cast::<T>());
        let output = |k: usize| io.outputs.get(k).map_or(std::ptr::null_mut(), |p| p.cast::<T>());
        let all = FftArrays {
            from: Planes { re: input(0), im: input(1) },
            to: Planes { re: output(0), im: output(1) },
        };
        if self.spec.steps().is_some() {
            // SAFETY: by the contract of `Kernel::run`.
            unsafe { self.single_arrays(cx, all, io.scratch) };
            return Ok(());
        }
        let groups = match self.spec.inner {
            1 => self.spec.outer.div_ceil(self.lanes),
            inner => self.spec.outer * inner.div_ceil(self.row()),
        };
        let all = SharedTask(all);
        let body = |g: usize| {
            // SAFETY: as above; groups are disjoint.
            unsafe { self.run_task(&self.group(&all.get(), g)) };
        };
        cx.team.run_with(groups, self.work_ns, cx.flush, &body);
        Ok(())
    }
}
