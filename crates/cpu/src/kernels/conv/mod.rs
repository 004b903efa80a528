//! Convolution without patches in memory: register kernels read the input where it lies, or strips of it that were
//! copied to a thread's cache with explicit zeros, through tables of offsets.
//!
//! Layouts are channels-last. [`forward`] also computes the input's gradient, [`gradient`] the kernel's, [`stage`] is
//! how both read the input, [`tiles`] the register kernels. Wide ones that read single pixels are products of matrices:
//! [`pointwise`]. Machines with tile registers have kernels of their own for bf16: [`tiled`], [`tiled_gradient`]. Every other
//! combination of attributes goes the general way: plain loops, in parallel.

mod amx;
mod amx_gradient;
mod batch_statistics;
pub mod depthwise;
mod forward;
mod gradient;
mod microkernel;
mod pointwise;
mod staging;
pub mod winograd;

pub use crate::kernels::conv::amx::Forward;

use crate::kernel::Cx;
use crate::kernel::copy::{BoxCopy, Dim, fill};
use crate::kernel::{Io, Kernel, Ptr};
use crate::select::{Candidate, EVERY, Family, Problem, Refusal};
use crate::simd::level::{Level, Target, TileFn};
use crate::simd::loops::narrow;
use crate::simd::narrow_bias::NarrowBias;
use smallvec::SmallVec;
use systole_compile::Kernel as Plan;
use systole_compile::{ALIGN, Moments, Pool, Step};
use systole_ir::Op;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// The kernel of a convolution of narrow or f32 floats in one of the layouts of layers; `None`: another one.
pub fn bind_dense(c: &Convolution, bias: bool, step: &Step, target: Target) -> Option<Box<dyn Kernel>> {
    let level = target.level.vectors();
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    let known = |t: &TensorType| matches!(t.dtype, DType::F32 | DType::BF16 | DType::F16) && t.elements() > 0;
    if ![x, k, y].into_iter().all(known) {
        return None;
    }
    if let Some(kernel) = amx::Forward::new(c, bias, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    if let Some(kernel) = pointwise::Pointwise::forward(c, bias, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    if !bias && let Some(kernel) = amx_gradient::KernelGradient::new(c, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    if !bias && let Some(kernel) = pointwise::Pointwise::gradient(c, [x, k, y], target) {
        return Some(Box::new(kernel));
    }
    // Pairs are as many products at once as transforms save, and nothing is transformed.
    if target.winograd && !is_paired(target.level, x, k) {
        if let Some(kernel) = winograd::Forward::new(c, bias, x, k, y, level) {
            return Some(Box::new(kernel));
        }
        if !bias && let Some(kernel) = winograd::KernelGradient::new(c, x, k, y, level) {
            return Some(Box::new(kernel));
        }
    }
    if let Some(kernel) = forward::Forward::new(c, bias, x, k, y, target.level) {
        return Some(Box::new(kernel));
    }
    let kernel =
        if bias { None } else { gradient::KernelGradient::new(c, x, k, y, target.level, target.winograd) };
    kernel.map(|k| Box::new(k) as Box<dyn Kernel>)
}

/// The kernel of a convolution that also gives the statistics of its result.
pub fn bind_moments(m: &Moments, step: &Step, target: Target) -> Option<Box<dyn Kernel>> {
    let level = target.level.vectors();
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    if let Some(kernel) = amx::Forward::new(&m.conv, m.bias, [x, k, y], target) {
        return Some(Box::new(kernel.with_moments(target)));
    }
    if let Some(product) = pointwise::Pointwise::forward(&m.conv, m.bias, [x, k, y], target) {
        return Some(Box::new(product.with_moments(y, target)));
    }
    if target.winograd
        && !is_paired(target.level, x, k)
        && let Some(kernel) = winograd::Forward::new(&m.conv, m.bias, x, k, y, level)
    {
        return Some(Box::new(kernel.with_moments(level)));
    }
    let kernel = forward::Forward::new(&m.conv, m.bias, x, k, y, target.level)?;
    Some(Box::new(kernel.with_moments(level)))
}

/// A convolution from fewer products that is max-pooled; `None` where that is not faster. `round` rounds narrow results.
pub fn bind_pooled(
    c: &Convolution,
    pool: &Pool,
    inputs: &[TensorType],
    y: &TensorType,
    level: Level,
    round: Option<TileFn>,
) -> Option<Box<dyn Kernel>> {
    let kernel = winograd::Forward::new(c, inputs.len() > 2, &inputs[0], &inputs[1], &pool.operand, level)?;
    Some(Box::new(kernel.with_pooling(pool, y, level, round)?))
}

/// The kernel of any other convolution; `None` where the element types have no path here.
pub fn bind(c: &Convolution, bias: bool, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    if let Some(kernel) = crate::kernels::conv::depthwise::bind(c, bias, step, level) {
        return Some(kernel);
    }
    General::new(c, bias, x, k, y).map(|g| Box::new(g) as Box<dyn Kernel>)
}

/// The input with its padding and holes written out, and where it then lies.
pub struct Padded {
    /// Copies the input into zeros; `None`: it is used where it lies.
    copy: Option<BoxCopy>,
    elements: usize,
    /// Bytes of an element.
    size: usize,
    /// Distance between images, and along each spatial dimension.
    pub image: usize,
    pub strides: SmallVec<[usize; 3]>,
}

impl Padded {
    /// `x: [B, …, C]`, spatial dimensions `1..`, of f32. Padding may be negative: then the input is cropped.
    pub fn new(x: &TensorType, padding: &[[i64; 2]], dilation: &[usize]) -> Option<Padded> {
        Padded::of_size(4, x, padding, dilation)
    }

    /// As [`Padded::new`], for elements of so many bytes.
    pub fn of_size(bytes: usize, x: &TensorType, padding: &[[i64; 2]], dilation: &[usize]) -> Option<Padded> {
        let (batch, channels, n) = (x.shape[0], x.shape[x.rank() - 1], padding.len());
        let own = x.shape.strides();
        if padding.iter().all(|p| *p == [0, 0]) && dilation.iter().all(|&d| d == 1) {
            let strides = (1..=n).map(|d| own[d]).collect();
            return Some(Padded { copy: None, elements: 0, size: bytes, image: own[0], strides });
        }
        let mut sizes: SmallVec<[usize; 3]> = SmallVec::new();
        let mut dims: Vec<Dim> = vec![Dim { size: batch, src: own[0] as isize, dst: 0 }];
        let (mut src_at, mut dst_at, mut places) = (0isize, SmallVec::<[isize; 3]>::new(), Vec::new());
        for i in 0..n {
            let (size, step) = (x.shape[i + 1] as i64, dilation[i] as i64);
            let [low, high] = padding[i];
            let padded = (size - 1) * step + 1 + low + high;
            let first = if low < 0 { (-low + step - 1) / step } else { 0 };
            let end = ((padded - low + step - 1).div_euclid(step)).min(size);
            sizes.push(usize::try_from(padded).ok()?);
            places.push((usize::try_from((end - first).max(0)).ok()?, step as isize));
            src_at += first as isize * own[i + 1] as isize;
            dst_at.push((low + first * step) as isize);
        }
        let mut strides: SmallVec<[usize; 3]> = SmallVec::from_elem(channels, n);
        for i in (0..n.saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * sizes[i + 1];
        }
        let image = sizes.iter().product::<usize>() * channels;
        dims[0].dst = image as isize;
        for i in 0..n {
            let (size, step) = places[i];
            dims.push(Dim { size, src: own[i + 1] as isize, dst: strides[i] as isize * step });
        }
        dims.push(Dim { size: channels, src: 1, dst: 1 });
        let at = dst_at.iter().zip(&strides).map(|(&p, &s)| p * s as isize).sum();
        let copy = Some(BoxCopy::new(bytes, &dims, src_at, at));
        Some(Padded { copy, elements: batch * image, size: bytes, image, strides })
    }

    pub fn bytes(&self) -> usize {
        (self.elements * self.size).next_multiple_of(64)
    }

    /// The input as kernels read it.
    pub unsafe fn prepare(&self, cx: &Cx<'_>, x: *const u8, scratch: *mut u8) -> *const f32 {
        let Some(copy) = &self.copy else { return x.cast() };
        let zero = 0f32;
        // SAFETY: scratch has `elements` elements, into which the box was built.
        unsafe {
            fill(cx, scratch, self.elements, self.size, (&raw const zero).cast());
            copy.run(cx, x, scratch);
        }
        scratch.cast_const().cast()
    }
}

/// Every sum of one offset of each dimension, in row-major order.
pub fn offsets(dims: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut all = vec![0];
    for (size, stride) in dims {
        all = all.iter().flat_map(|&at| (0..size).map(move |i| at + i * stride)).collect();
    }
    all
}

/// Batch first, features last, spatial dimensions in order.
pub fn is_channels_last(batch: usize, feature: usize, spatial: &[usize]) -> bool {
    batch == 0 && feature == spatial.len() + 1 && spatial.iter().copied().eq(1..=spatial.len())
}

/// Whether a convolution is one of layers, of one group, or such an input's gradient: `x: [B, …, C]` gives `[B, …', F]`.
fn is_forward(c: &Convolution) -> bool {
    let d = &c.dims;
    !d.input_spatial.is_empty()
        && c.feature_groups == 1
        && c.batch_groups == 1
        && is_channels_last(d.input_batch, d.input_feature, &d.input_spatial)
        && is_channels_last(d.output_batch, d.output_feature, &d.output_spatial)
}

/// What rounds sums of narrow results to which a bias is added after rounding, and rounds again: see [`NarrowBias`].
fn bias_rounding(bias: bool, y: &TensorType, level: Level) -> Option<TileFn> {
    (bias && y.dtype == DType::BF16).then(|| level.tile::<NarrowBias<true>>())
}

/// Whether products run along pairs of channels of bf16.
fn is_paired(level: Level, x: &TensorType, k: &TensorType) -> bool {
    let channels = x.shape[x.rank() - 1];
    level == Level::Avx512Bf16 && [x.dtype, k.dtype] == [DType::BF16; 2] && channels.is_multiple_of(2)
}

/// Whether a convolution is that which autodiff makes of a kernel's gradient, of one group: `x: [B, …, C]` by
/// `dy: [B, …', F]` gives `[…, C, F]`.
fn is_kernel_gradient(c: &Convolution) -> bool {
    let (d, n) = (&c.dims, c.dims.input_spatial.len());
    n > 0
        && c.feature_groups == 1
        && c.batch_groups == 1
        && c.reversal.iter().all(|r| !r)
        && is_channels_last(d.input_feature, d.input_batch, &d.input_spatial)
        && is_channels_last(d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial)
        && d.output_batch == n
        && d.output_feature == n + 1
        && d.output_spatial.iter().copied().eq(0..n)
}

/// The sums of a kernel's gradient: of each part of the batch apart, or where there is one part in the result.
pub struct Parts {
    pub count: usize,
    /// Elements of the result.
    pub size: usize,
    narrow: Option<TileFn>,
    /// The sum is added to what the result holds.
    onto: bool,
}

impl Parts {
    pub fn new(count: usize, y: &TensorType, level: Level) -> Parts {
        Parts { count, size: y.elements(), narrow: narrow(y.dtype, level), onto: false }
    }

    fn are_apart(&self) -> bool {
        self.count > 1 || self.narrow.is_some()
    }

    /// Bytes of working memory.
    pub fn bytes(&self) -> usize {
        if self.are_apart() { (self.count * self.size * 4).next_multiple_of(ALIGN) } else { 0 }
    }

    /// Asks for the sum to be added to what the result holds; whether it will.
    pub fn add_to_result(&mut self) -> bool {
        self.onto = self.narrow.is_none();
        self.onto
    }

    /// Whether the first of a part's sums are added to what is there.
    pub fn begin_with_result(&self) -> bool {
        self.onto && !self.are_apart()
    }

    /// Runs `per_part` tasks for each part, which add to its sums from input and cotangent, and puts the parts together.
    ///
    /// # Safety
    /// Tasks of a part have sums of their own, all of which they set; there is the working memory that was asked for.
    unsafe fn sum(
        &self,
        cx: &Cx<'_>,
        io: &Io<'_>,
        per_part: usize,
        work: f64,
        task: &(dyn Fn(usize, *const u8, *const u8, *mut f32) + Sync),
    ) {
        let (x, dy, sums) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), self.place(io));
        let body = |i: usize| task(i, x.at(0), dy.at(0), sums.elem(0));
        cx.team.run_with(self.count * per_part, work, cx.flush, &body);
        // SAFETY: every task has left its sums.
        unsafe { self.finish(cx, io) };
    }

    /// Where the first part's sums go.
    fn place(&self, io: &Io<'_>) -> Ptr {
        Ptr(if self.are_apart() { io.scratch } else { io.outputs[0] })
    }

    /// Puts the parts' sums together.
    ///
    /// # Safety
    /// They are complete, and lie where [`Parts::place`] says.
    unsafe fn finish(&self, cx: &Cx<'_>, io: &Io<'_>) {
        if self.are_apart() {
            let finish =
                if self.onto { Finish::Add } else { self.narrow.map_or(Finish::Copy, Finish::Narrow) };
            // SAFETY: by the caller's promise; the result has `size` elements.
            unsafe { sum_parts(cx, io.scratch.cast(), self.count, self.size, io.outputs[0], finish) };
        }
    }
}

/// Arrays of one call of a kernel that works strip by strip: operands, the kernel packed, the result, and what each strip
/// leaves for statistics.
struct Arrays {
    x: Ptr,
    kernel: Ptr,
    bias: Ptr,
    y: Ptr,
    moments: Ptr,
}

impl Arrays {
    /// Working memory has the packed kernel, of so many bytes, the bias as f32 in whole vectors, and statistics. The bias
    /// is widened: by what, and how many features it has.
    ///
    /// # Safety
    /// Working memory has those parts, and a third operand is there where `bias` is.
    unsafe fn new(
        io: &Io<'_>,
        kept: *const u8,
        [packed, bias_bytes]: [usize; 2],
        bias: Option<(Option<TileFn>, usize)>,
    ) -> Arrays {
        let to = Ptr(io.scratch.wrapping_add(packed));
        if let Some((widen, features)) = bias {
            // SAFETY: by the caller's promise.
            unsafe { staging::put(widen, io.inputs[2], to.elem(0), features) };
        }
        Arrays {
            x: Ptr::of(io.inputs[0]),
            kernel: Ptr::of(kept),
            bias: to,
            y: Ptr(io.outputs[0]),
            moments: Ptr(to.at(bias_bytes)),
        }
    }
}

/// What becomes of a sum.
#[derive(Clone, Copy)]
pub enum Finish {
    Copy,
    /// Added to what the result holds.
    Add,
    /// Rounded by this loop to 16 bits.
    Narrow(TileFn),
}

/// Sums `parts` rows of `size` elements in a tree, and writes the sum.
///
/// # Safety
/// `rows` holds that many elements, which are overwritten; `out` has room for one row.
pub unsafe fn sum_parts(
    cx: &Cx<'_>,
    rows: *mut f32,
    parts: usize,
    size: usize,
    out: *mut u8,
    finish: Finish,
) {
    const BLOCK: usize = 4096;
    let (rows, out) = (Ptr(rows.cast()), Ptr(out));
    let body = |block: usize| {
        let from = block * BLOCK;
        let n = BLOCK.min(size - from);
        let mut step = 1;
        while step < parts {
            for p in (0..parts - step).step_by(2 * step) {
                // SAFETY: two different rows; blocks are disjoint parts of them.
                let (sum, more) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(rows.elem::<f32>(p * size + from), n),
                        std::slice::from_raw_parts(rows.elem::<f32>((p + step) * size + from), n),
                    )
                };
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
            step *= 2;
        }
        let sum = rows.elem::<f32>(from).cast_const();
        // SAFETY: blocks are disjoint parts of the result.
        unsafe {
            match finish {
                Finish::Narrow(f) => f(out.at(from * 2), sum.cast(), sum.cast(), sum.cast(), n),
                Finish::Copy => std::ptr::copy_nonoverlapping(sum, out.elem(from), n),
                Finish::Add => {
                    let (sum, out) = (
                        std::slice::from_raw_parts(sum, n),
                        std::slice::from_raw_parts_mut(out.elem::<f32>(from), n),
                    );
                    out.iter_mut().zip(sum).for_each(|(out, sum)| *out += sum);
                }
            }
        }
    };
    cx.team.run_with(size.div_ceil(BLOCK), (parts * size) as f64 * 0.3, cx.flush, &body);
}

/// Plain loops over any attributes; sums in f64, or exactly modulo the result's width.
struct General {
    op: Convolution,
    bias: bool,
    x: TensorType,
    k: TensorType,
    y: TensorType,
}

impl General {
    fn new(c: &Convolution, bias: bool, x: &TensorType, k: &TensorType, y: &TensorType) -> Option<General> {
        let simple = |t: DType| matches!(t, DType::F32 | DType::F64);
        (simple(x.dtype) && x.dtype == y.dtype && y.elements() > 0).then(|| General {
            op: c.clone(),
            bias,
            x: x.clone(),
            k: k.clone(),
            y: y.clone(),
        })
    }

    /// The input coordinate of window element `w` at output coordinate `o` along spatial dimension `i`.
    fn source(&self, i: usize, o: usize, w: usize) -> Option<usize> {
        let c = &self.op;
        let at = (o * c.strides[i] + w * c.rhs_dilation[i]) as i64 - c.padding[i][0];
        let (at, holes) = (usize::try_from(at).ok()?, c.lhs_dilation[i]);
        (at % holes == 0 && at / holes < self.x.shape[c.dims.input_spatial[i]]).then(|| at / holes)
    }

    /// Offsets in input and kernel of the window positions that meet the input at an output position.
    fn window(&self, out: &[usize], pairs: &mut Vec<(usize, usize)>) {
        let d = &self.op.dims;
        let (xs, ks) = (self.x.shape.strides(), self.k.shape.strides());
        pairs.clear();
        pairs.push((0, 0));
        for i in 0..d.input_spatial.len() {
            let size = self.k.shape[d.kernel_spatial[i]];
            let (sx, sk) = (xs[d.input_spatial[i]], ks[d.kernel_spatial[i]]);
            let o = out[d.output_spatial[i]];
            let steps: SmallVec<[(usize, usize); 8]> = (0..size)
                .filter_map(|w| {
                    let k = if self.op.reversal[i] { size - 1 - w } else { w };
                    self.source(i, o, w).map(|at| (at * sx, k * sk))
                })
                .collect();
            *pairs = pairs.iter().flat_map(|&(x, k)| steps.iter().map(move |s| (x + s.0, k + s.1))).collect();
        }
    }

    unsafe fn run_as<T: Copy + Into<f64>>(&self, cx: &Cx<'_>, io: &Io<'_>, narrow: impl Fn(f64) -> T + Sync) {
        let d = &self.op.dims;
        let (xs, ks, ys) = (self.x.shape.strides(), self.k.shape.strides(), self.y.shape.strides());
        let features = self.k.shape[d.kernel_output_feature];
        let inputs = self.k.shape[d.kernel_input_feature];
        let per_group = features / (self.op.feature_groups * self.op.batch_groups);
        let images = self.x.shape[d.input_batch] / self.op.batch_groups;
        let (sx, sk) = (xs[d.input_feature], ks[d.kernel_input_feature]);
        let positions = self.y.elements() / features.max(1);
        let mut outer = self.y.shape.dims().to_vec();
        outer[d.output_feature] = 1;
        let outer = systole_ir::Shape::from(outer);
        let (x, k, y) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let body = |p: usize| {
            let index = outer.unravel(p);
            let mut pairs = Vec::new();
            self.window(&index, &mut pairs);
            let at: usize = index.iter().zip(&ys).map(|(i, s)| i * s).sum();
            for f in 0..features {
                let group = f / per_group;
                let (bg, fg) = (
                    if self.op.batch_groups > 1 { group } else { 0 },
                    if self.op.feature_groups > 1 { group } else { 0 },
                );
                let x0 = (bg * images + index[d.output_batch]) * xs[d.input_batch] + fg * inputs * sx;
                let k0 = f * ks[d.kernel_output_feature];
                let mut sum = 0f64;
                // SAFETY: window offsets were checked against the input; each task has its own output position.
                unsafe {
                    for &(xo, ko) in &pairs {
                        for c in 0..inputs {
                            let (a, b) = (*x.elem::<T>(x0 + xo + c * sx), *k.elem::<T>(k0 + ko + c * sk));
                            sum += a.into() * b.into();
                        }
                    }
                    if self.bias {
                        // Rounded before the bias is added, as two ops would.
                        sum = narrow(sum).into() + (*bias.elem::<T>(f)).into();
                    }
                    *y.elem::<T>(at + f * ys[d.output_feature]) = narrow(sum);
                }
            }
        };
        let taps: usize = d.kernel_spatial.iter().map(|&s| self.k.shape[s]).product();
        let work = (self.y.elements() * inputs * taps) as f64 * 1.5;
        cx.team.run_with(positions, work, cx.flush, &body);
    }
}

impl Kernel for General {
    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the arrays have the element type that is chosen.
        unsafe {
            match self.x.dtype {
                DType::F32 => self.run_as::<f32>(cx, io, |s| s as f32),
                _ => self.run_as::<f64>(cx, io, |s| s),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

/// Convolutions.
pub static FAMILY: Family = Family {
    name: "conv",
    doc: "convolutions and their gradients, with a bias where one follows",
    takes: |step| matches!(&step.kernel, Plan::Op { op: Op::Convolution(_), .. }),
    candidates: &[
        Candidate {
            name: "dense",
            why: "convolutions of layers and their gradients",
            levels: EVERY,
            accepts: |p| {
                let (c, bias) = convolution(p)?;
                bind_dense(c, bias, p.step, p.target).ok_or_else(|| "it is not dense".into())
            },
        },
        crate::kernels::via_f32::CANDIDATE,
        Candidate {
            name: "general",
            why: "any other convolution",
            levels: EVERY,
            accepts: |p| {
                let (c, bias) = convolution(p)?;
                bind(c, bias, p.step, p.target.level.vectors())
                    .ok_or_else(|| "its element types have no path".into())
            },
        },
        crate::kernels::reference::CANDIDATE,
    ],
};

fn convolution<'a>(p: &Problem<'a>) -> std::result::Result<(&'a Convolution, bool), Refusal> {
    match &p.step.kernel {
        Plan::Op { op: Op::Convolution(c), bias } => Ok((c, *bias)),
        _ => Err("no convolution".into()),
    }
}

/// Convolutions with the statistics of their results.
pub static BATCH_STATISTICS: Family = Family {
    name: "batch_statistics",
    doc: "a convolution and the sums of batch normalisation over its result",
    takes: |step| matches!(step.kernel, Plan::Moments(_)),
    candidates: &[Candidate {
        name: "conv",
        why: "takes every convolution that the compiler gives statistics",
        levels: EVERY,
        accepts: |p| match &p.step.kernel {
            Plan::Moments(m) => bind_moments(m, p.step, p.target).ok_or_else(|| "no kernel".into()),
            _ => Err("no statistics".into()),
        },
    }],
};
