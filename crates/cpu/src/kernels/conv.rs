//! Convolution without patches in memory: register kernels read the input through tables of offsets.
//!
//! For an output pixel p and a kernel position w with channel c the input element lies at `pixel[p] + tap[w, c]`
//! (in a copy with explicit zeros where there is padding or dilation). So
//! * the product over taps with the kernel as a matrix is the output (also the input's gradient, which is a
//!   convolution of the output's gradient), and
//! * the product over pixels with the output's gradient is the kernel's gradient, which arrives here as a convolution
//!   whose batch and features have changed places.
//!
//! Layouts are channels-last. Every other combination of attributes goes the general way: plain loops, in parallel.

use super::gemm::{IndirectKernel, KC, TileArgs, View, indirect_shape, pack_right, packed_len};
use super::moves::{BoxCopy, Dim, fill};
use super::{Io, Kernel, Ptr};
use crate::detect::Level;
use crate::exec::{Cx, with_scratch};
use smallvec::SmallVec;
use systole_compile::Step;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// Output pixels that one block of the parallel loop computes.
const PIXELS: usize = 384;
/// Most partial sums of a kernel gradient.
const MOST_PARTS: usize = 32;

/// The kernel for a step; `None` where the element types have no path here.
pub fn bind(c: &Convolution, bias: bool, step: &Step, level: Level) -> Option<Box<dyn Kernel>> {
    let (x, k, y) = (&step.input_types[0], &step.input_types[1], &step.output_types[0]);
    let empty = [x, k, y].iter().any(|t| t.elements() == 0);
    if x.dtype == DType::F32 && y.dtype == DType::F32 && !empty {
        if let Some(kernel) = Forward::new(c, bias, x, k, y, level) {
            return Some(Box::new(kernel));
        }
        if let Some(kernel) = super::depthwise::bind(c, bias, step, level) {
            return Some(kernel);
        }
        if !bias && let Some(kernel) = KernelGradient::new(c, x, k, y, level) {
            return Some(Box::new(kernel));
        }
    }
    General::new(c, bias, x, k, y).map(|g| Box::new(g) as Box<dyn Kernel>)
}

/// The input with its padding and holes written out, and where it then lies.
pub struct Padded {
    /// Copies the input into zeros; `None`: it is used where it lies.
    copy: Option<BoxCopy>,
    elements: usize,
    /// Distance between images, and along each spatial dimension.
    pub image: usize,
    pub strides: SmallVec<[usize; 3]>,
}

impl Padded {
    /// `x: [B, …, C]`, spatial dimensions `1..`. Padding may be negative: then the input is cropped.
    pub fn new(x: &TensorType, padding: &[[i64; 2]], dilation: &[usize]) -> Option<Padded> {
        let (batch, channels, n) = (x.shape[0], x.shape[x.rank() - 1], padding.len());
        let own = x.shape.strides();
        if padding.iter().all(|p| *p == [0, 0]) && dilation.iter().all(|&d| d == 1) {
            let strides = (1..=n).map(|d| own[d]).collect();
            return Some(Padded { copy: None, elements: 0, image: own[0], strides });
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
        let copy = Some(BoxCopy::new(4, &dims, src_at, at));
        Some(Padded { copy, elements: batch * image, image, strides })
    }

    pub fn bytes(&self) -> usize {
        (self.elements * 4).next_multiple_of(64)
    }

    /// The input as kernels read it.
    pub unsafe fn prepare(&self, cx: &Cx<'_>, x: *const u8, scratch: *mut u8) -> *const f32 {
        let Some(copy) = &self.copy else { return x.cast() };
        let zero = 0f32;
        // SAFETY: scratch has `elements` elements, into which the box was built.
        unsafe {
            fill(cx, scratch, self.elements, 4, (&raw const zero).cast());
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

/// `x: f32[B, …, C], kernel → y: f32[B, …', F]`.
struct Forward {
    input: Padded,
    /// Brings the kernel to `[taps · C, F]` where it does not lie so.
    kernel: Option<BoxCopy>,
    pixel: Vec<usize>,
    tap: Vec<usize>,
    batch: usize,
    features: usize,
    bias: bool,
    /// The result is added to what is there.
    add: bool,
    run: IndirectKernel,
    rows: usize,
    columns: usize,
}

impl Forward {
    fn new(
        c: &Convolution,
        bias: bool,
        x: &TensorType,
        k: &TensorType,
        y: &TensorType,
        level: Level,
    ) -> Option<Forward> {
        let d = &c.dims;
        let fits = c.feature_groups == 1
            && c.batch_groups == 1
            && is_channels_last(d.input_batch, d.input_feature, &d.input_spatial)
            && is_channels_last(d.output_batch, d.output_feature, &d.output_spatial);
        if !fits {
            return None;
        }
        let n = d.input_spatial.len();
        let input = Padded::new(x, &c.padding, &c.lhs_dilation)?;
        let own = k.shape.strides();
        let (channels, features) = (k.shape[d.kernel_input_feature], k.shape[d.kernel_output_feature]);
        let window: Vec<usize> = d.kernel_spatial.iter().map(|&s| k.shape[s]).collect();
        let taps =
            offsets((0..n).map(|i| (window[i], input.strides[i] * c.rhs_dilation[i])).chain([(channels, 1)]));
        let pixel = offsets((0..n).map(|i| (y.shape[i + 1], input.strides[i] * c.strides[i])));
        let (mut dims, mut at) = (Vec::new(), 0isize);
        for i in 0..n {
            let stride = own[d.kernel_spatial[i]] as isize;
            let back = c.reversal[i];
            at += if back { (window[i] as isize - 1) * stride } else { 0 };
            dims.push(Dim { size: window[i], src: if back { -stride } else { stride }, dst: 0 });
        }
        dims.push(Dim { size: channels, src: own[d.kernel_input_feature] as isize, dst: 0 });
        dims.push(Dim { size: features, src: own[d.kernel_output_feature] as isize, dst: 0 });
        let mut stride = 1;
        for dim in dims.iter_mut().rev() {
            dim.dst = stride;
            stride *= dim.size as isize;
        }
        let in_order = dims.iter().all(|d| d.size == 1 || d.src == d.dst);
        let (run, rows, columns) = indirect_shape(level, features);
        Some(Forward {
            input,
            kernel: (!in_order).then(|| BoxCopy::new(4, &dims, at, 0)),
            pixel,
            tap: taps,
            batch: x.shape[0],
            features,
            bias,
            add: false,
            run,
            rows,
            columns,
        })
    }

    fn kernel_bytes(&self) -> usize {
        (self.tap.len() * self.features * 4).next_multiple_of(64)
    }

    fn packed_bytes(&self) -> usize {
        (packed_len(self.columns, self.tap.len(), self.features) * 4).next_multiple_of(64)
    }

    fn padded_features(&self) -> usize {
        self.features.next_multiple_of(self.columns)
    }
}

impl Kernel for Forward {
    fn scratch(&self) -> usize {
        self.input.bytes() + self.kernel_bytes() + self.packed_bytes() + self.padded_features() * 4 + 64
    }

    fn add_to_result(&mut self) -> bool {
        self.add = true;
        true
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let ordered = io.scratch.wrapping_add(self.input.bytes());
        let packed = ordered.wrapping_add(self.kernel_bytes());
        let bias = packed.wrapping_add(self.packed_bytes());
        let (taps, features) = (self.tap.len(), self.features);
        let padded = self.padded_features();
        // SAFETY: scratch is laid out as `scratch()` counts it; operands and result have the shapes of `new`.
        unsafe {
            let x = self.input.prepare(cx, io.inputs[0], io.scratch);
            let mut kernel = io.inputs[1];
            if let Some(copy) = &self.kernel {
                copy.run(cx, kernel, ordered);
                kernel = ordered;
            }
            for kb in (0..taps).step_by(KC) {
                let k = KC.min(taps - kb);
                let view = View { ptr: kernel.cast::<f32>().add(kb * features), row: features, col: 1 };
                pack_right(self.columns, view, k, features, packed.cast::<f32>().add(kb * padded));
            }
            if self.bias {
                std::ptr::copy_nonoverlapping(io.inputs[2], bias, features * 4);
            }
            let bias = if self.bias { bias.cast_const().cast() } else { std::ptr::null() };
            self.blocks(cx, x, packed.cast_const().cast(), bias, io.outputs[0].cast());
        }
        Ok(())
    }
}

impl Forward {
    unsafe fn blocks(&self, cx: &Cx<'_>, x: *const f32, kernel: *const f32, bias: *const f32, y: *mut f32) {
        let (pixels, taps, features) = (self.pixel.len(), self.tap.len(), self.features);
        let strips = pixels.div_ceil(PIXELS);
        // Equal strips: a short last one would leave threads idle.
        let strip = pixels.div_ceil(strips.max(1)).next_multiple_of(self.rows);
        let strips = pixels.div_ceil(strip.max(1));
        let (xp, kp, bp, yp) =
            (Ptr::of(x.cast()), Ptr::of(kernel.cast()), Ptr::of(bias.cast()), Ptr(y.cast()));
        let padded = self.padded_features();
        let body = |task: usize| {
            let (image, from) = (task / strips, task % strips * strip);
            let to = (from + strip).min(pixels);
            let a = xp.elem::<f32>(image * self.input.image).cast_const();
            let bias = bp.at(0).cast_const().cast::<f32>();
            for kb in (0..taps).step_by(KC) {
                let k = KC.min(taps - kb);
                let last = kb + k == taps && !bias.is_null();
                for p in (from..to).step_by(self.rows) {
                    let rows = self.rows.min(to - p);
                    for j in (0..features).step_by(self.columns) {
                        let t = TileArgs {
                            k,
                            a,
                            b: kp.elem::<f32>(kb * padded + j * k).cast_const(),
                            b_k: self.columns,
                            c: yp.elem::<f32>((image * pixels + p) * features + j),
                            c_row: features,
                            add: self.add || kb > 0,
                            bias: if last { bias.wrapping_add(j) } else { std::ptr::null() },
                            columns: self.columns.min(features - j),
                        };
                        // SAFETY: tables stay inside one (padded) image; tasks write disjoint pixels.
                        unsafe {
                            (self.run)(rows, &t, self.pixel.as_ptr().add(p), self.tap.as_ptr().add(kb))
                        };
                    }
                }
            }
        };
        let work = 2.0 * (self.batch * pixels * features) as f64 * taps as f64 / 60.0;
        cx.team.run_with(self.batch * strips, work, cx.flush, &body);
    }
}

/// `x: f32[B, …, C], dy: f32[B, …', F] → dkernel: f32[…, C, F]`, as the convolution that autodiff makes of it.
struct KernelGradient {
    input: Padded,
    pixel: Vec<usize>,
    tap: Vec<usize>,
    batch: usize,
    features: usize,
    images_per_part: usize,
    /// The sum is added to what is there.
    add: bool,
    run: IndirectKernel,
    rows: usize,
    columns: usize,
}

impl KernelGradient {
    fn new(
        c: &Convolution,
        x: &TensorType,
        dy: &TensorType,
        y: &TensorType,
        level: Level,
    ) -> Option<KernelGradient> {
        let d = &c.dims;
        let n = d.input_spatial.len();
        let fits = c.feature_groups == 1
            && c.batch_groups == 1
            && c.reversal.iter().all(|r| !r)
            && is_channels_last(d.input_feature, d.input_batch, &d.input_spatial)
            && is_channels_last(d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial)
            && d.output_batch == n
            && d.output_feature == n + 1
            && d.output_spatial.iter().copied().eq(0..n);
        if !fits {
            return None;
        }
        let input = Padded::new(x, &c.padding, &c.lhs_dilation)?;
        let (channels, features) = (x.shape[n + 1], dy.shape[n + 1]);
        let tap =
            offsets((0..n).map(|i| (y.shape[i], input.strides[i] * c.strides[i])).chain([(channels, 1)]));
        let pixel = offsets((0..n).map(|i| (dy.shape[i + 1], input.strides[i] * c.rhs_dilation[i])));
        let (run, rows, columns) = indirect_shape(level, features);
        let batch = x.shape[0];
        let images_per_part = batch.div_ceil(MOST_PARTS);
        let add = false;
        Some(KernelGradient { input, pixel, tap, batch, features, images_per_part, add, run, rows, columns })
    }

    fn parts(&self) -> usize {
        self.batch.div_ceil(self.images_per_part)
    }

    /// Sums over the images of one part.
    unsafe fn part(&self, part: usize, x: *const f32, dy: *const f32, sum: *mut f32) {
        let (pixels, taps, features) = (self.pixel.len(), self.tap.len(), self.features);
        let images = part * self.images_per_part..((part + 1) * self.images_per_part).min(self.batch);
        let direct = features.is_multiple_of(self.columns);
        with_scratch(packed_len(self.columns, KC, features) * 4, |memory| {
            let packed = memory.cast::<f32>();
            let mut add = false;
            for image in images {
                let a = x.wrapping_add(image * self.input.image);
                for pb in (0..pixels).step_by(KC) {
                    let k = KC.min(pixels - pb);
                    let b = dy.wrapping_add((image * pixels + pb) * features);
                    if !direct {
                        let view = View { ptr: b, row: features, col: 1 };
                        // SAFETY: `k` pixels of the cotangent; scratch has room for a block.
                        unsafe { pack_right(self.columns, view, k, features, packed) };
                    }
                    for j in (0..features).step_by(self.columns) {
                        let (b, b_k) = if direct {
                            (b.wrapping_add(j), features)
                        } else {
                            (packed.cast_const().wrapping_add(j * k), self.columns)
                        };
                        for i in (0..taps).step_by(self.rows) {
                            let t = TileArgs {
                                k,
                                a,
                                b,
                                b_k,
                                c: sum.wrapping_add(i * features + j),
                                c_row: features,
                                add,
                                bias: std::ptr::null(),
                                columns: self.columns.min(features - j),
                            };
                            let rows = self.rows.min(taps - i);
                            // SAFETY: tables stay inside one (padded) image; the sum is this part's.
                            unsafe {
                                (self.run)(rows, &t, self.tap.as_ptr().add(i), self.pixel.as_ptr().add(pb))
                            };
                        }
                    }
                    add = true;
                }
            }
        });
    }
}

impl Kernel for KernelGradient {
    fn scratch(&self) -> usize {
        self.input.bytes() + self.parts() * self.tap.len() * self.features * 4 + 64
    }

    fn add_to_result(&mut self) -> bool {
        self.add = true;
        true
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let size = self.tap.len() * self.features;
        let parts = self.parts();
        // SAFETY: scratch is laid out as `scratch()` counts it; operands and result have the shapes of `new`.
        unsafe {
            let x = self.input.prepare(cx, io.inputs[0], io.scratch);
            let sums = io.scratch.wrapping_add(self.input.bytes());
            let (xp, dyp, sp) = (Ptr::of(x.cast()), Ptr::of(io.inputs[1]), Ptr(sums));
            let body = |part: usize| {
                let (x, dy) = (xp.elem::<f32>(0).cast_const(), dyp.elem::<f32>(0).cast_const());
                self.part(part, x, dy, sp.elem::<f32>(part * size));
            };
            let work = 2.0 * (self.batch * self.pixel.len()) as f64 * size as f64 / 50.0;
            cx.team.run_with(parts, work, cx.flush, &body);
            if self.add {
                // What is there is one part more, at the end of the tree.
                let (out, sum) = (io.outputs[0].cast::<f32>(), sums.cast::<f32>());
                sum_parts(sum, parts, size, sum);
                for i in 0..size {
                    *out.add(i) += *sum.add(i);
                }
            } else {
                sum_parts(sums.cast(), parts, size, io.outputs[0].cast());
            }
        }
        Ok(())
    }
}

/// Sums `parts` rows of `size` elements in a tree and writes the sum.
///
/// # Safety
/// `parts` holds that many elements, which are overwritten; `out` has room for one row.
pub unsafe fn sum_parts(rows: *mut f32, parts: usize, size: usize, out: *mut f32) {
    let mut step = 1;
    // SAFETY: by the caller's promise.
    unsafe {
        while step < parts {
            for p in (0..parts - step).step_by(2 * step) {
                for i in 0..size {
                    *rows.add(p * size + i) += *rows.add((p + step) * size + i);
                }
            }
            step *= 2;
        }
        std::ptr::copy(rows.cast_const(), out, size);
    }
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
