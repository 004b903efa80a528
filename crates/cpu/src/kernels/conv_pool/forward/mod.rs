//! Convolution with fused max pooling on SIMD vectors; the unpooled result is never stored.
//!
//! The unit of work is one row of pooling windows of one image. 2×2 windows are computed in registers, directly or by
//! Winograd. Other windows are pooled from a row of pixels in scratch that fits L1. If a product with few columns
//! follows, it is summed row by row for several images, while their maxima are in L2.

mod microkernel;
mod winograd;

use crate::kernel::convert::convert;
use crate::kernel::convolution::has_unit_steps;
use crate::kernel::dot_product_gemm::InnerProducts;
use crate::kernel::padded_input::{PaddedConvInput, offsets};
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::conv_pool::finite_bounds::{MagnitudeBounds, MaxMagnitudeBf16, MaxMagnitudeF32};
use crate::kernels::conv_pool::forward::microkernel::{
    MicrokernelTypes, WindowKernels, WindowRowArgs, windows_shape,
};
use crate::kernels::conv_pool::forward::winograd::WinogradWindows;
use crate::kernels::conv_pool::pooled_convolution::{PoolOutputs, PooledConvolution};
use crate::machine::thread_pool::inside;
use crate::select::SelectResult;
use crate::simd::gemm::{IndirectKernel, KC, MatrixView, TileArgs, indirect_shape, pack_right, packed_len};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::widen;
use crate::simd::narrow_bias::sum_rounding;
use crate::simd::narrow_floats::{BF16, F16};
use crate::simd::pool_row::{PoolRowArgs, pool_row};
use systole_compile::MaxPoolArgmax;
use systole_ir::{DType, Result, ensure};

/// Minimum floating-point operations of one block of the parallel loop.
const BLOCK: f64 = 1e6;
/// Maximum number of images whose rows of maxima are operands of the product together.
const IMAGES: usize = 32;
/// Maximum bytes of these rows, so that they stay in L2.
const ROW_BYTES: usize = 1 << 18;

/// Operands in the layout that microkernels read.
#[derive(Clone, Copy)]
struct PreparedOperands {
    /// Padded input: f32, or bf16 for microkernels of pairs.
    x: *const u8,
    /// Packed panels of the kernel.
    kernel: *const f32,
    /// The kernel after Winograd's transform, if Winograd is used.
    transformed: *const f32,
    /// Bias padded to whole panels, or null.
    bias: *const f32,
    bounds: MagnitudeBounds,
}

// SAFETY: threads only read through the pointers, while `run` waits for them.
unsafe impl Sync for PreparedOperands {}

/// Vector (SIMD) kernel of a pooled convolution. Inputs and results are those of [`PooledConvolution`].
pub struct VectorConvPool {
    input: PaddedConvInput,
    pool: MaxPoolArgmax,
    dtype: DType,
    level: Level,
    /// Element types of operands and results in microkernels, and where sums are rounded.
    stored: MicrokernelTypes,
    /// Elements of input, kernel and bias.
    sizes: Vec<usize>,
    batch: usize,
    /// Height and width of the result.
    pooled: [usize; 2],
    features: usize,
    /// Input offsets of the pixels of one row of windows, row-major, in elements.
    pixel: Vec<usize>,
    /// Input offset of each tap, in elements.
    tap: Vec<usize>,
    /// Input offset of each word that microkernels broadcast, in bytes. A word is a pair of taps, or one tap.
    words: Vec<usize>,
    /// Pairs of taps, for microkernels of pairs.
    pairs: Vec<TapPair>,
    /// Pixels of one row of `pixel`.
    line: usize,
    /// Elements of the input between rows of windows.
    down: usize,
    /// Rows of windows in one block of the parallel loop.
    group: usize,
    /// Filters of a panel.
    columns: usize,
    magnitude: TileFn,
    method: RowMethod,
    product: Option<InnerProducts>,
}

/// Two adjacent taps of a kernel row. In a row with an odd number of taps, the last pair overlaps the previous one.
#[derive(Clone, Copy)]
struct TapPair {
    /// Index of the first tap.
    tap: usize,
    /// Whether the first tap counts; otherwise it belongs to the previous pair and has weight 0 here.
    both: bool,
}

/// Returns the tap pairs of a kernel with `lines` rows of `length` contiguous taps.
fn pairs(lines: usize, length: usize) -> Vec<TapPair> {
    let of_line = |line: usize| {
        let first = (0..length.div_ceil(2)).map(move |p| (2 * p).min(length - 2));
        first.enumerate().map(move |(p, at)| TapPair { tap: line * length + at, both: at == 2 * p })
    };
    (0..lines).flat_map(of_line).collect()
}

/// Method that computes a row of windows.
enum RowMethod {
    /// Window by window in registers; by Winograd if it is available and sums are finite. `right`, `down`: bytes of the
    /// input between adjacent pixels of the result.
    Registers { shape: WindowKernels, right: usize, down: usize, winograd: Option<WinogradWindows> },
    /// All pixels of the row in scratch, `rows` pixels per call of `run`; `narrow` rounds them, then they are pooled.
    Rows { run: IndirectKernel, rows: usize, narrow: Option<TileFn>, pool: TileFn },
}

/// Method of a pooled convolution that a kernel candidate requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequestedMethod {
    /// Windows in registers, by Winograd.
    Winograd,
    /// Windows in registers.
    Registers,
    /// Rows of pixels in scratch.
    Rows,
}

/// Reason why windows cannot be computed in registers.
const NO_REGISTERS: &str = "its windows are not 2×2, or its kernel has more taps than one block of products: \
                            registers hold the four sums of a window, and larger windows would need separate \
                            microkernels";

/// Returns element types and rounding in microkernels, and whether windows can be computed in registers.
fn storage(p: &PooledConvolution<'_>, ask: RequestedMethod) -> (MicrokernelTypes, bool) {
    let (x, k, excess) = (&p.inputs[0], &p.inputs[1], p.target.excess_precision);
    // Contiguous taps of a kernel row.
    let line_taps = k.shape[1] * k.shape[2];
    let in_registers = p.pool.window == [2, 2] && k.shape[0] * line_taps <= KC;
    let can_pair = in_registers && ask != RequestedMethod::Rows && line_taps > 1 && p.c.rhs_dilation[1] == 1;
    let format = if x.dtype == DType::F16 { F16 } else { BF16 };
    let stored = match (x.dtype, p.target.level) {
        (DType::F32, _) => MicrokernelTypes::Wide,
        (DType::BF16, Level::Avx512Bf16) if excess && can_pair => MicrokernelTypes::Pairs,
        _ if excess => MicrokernelTypes::Once(format),
        _ => MicrokernelTypes::Rounded(format),
    };
    (stored, in_registers)
}

impl RowMethod {
    /// Returns the requested method and the filters per panel, or why the method does not support the problem. `pixel`:
    /// elements of the input from a pixel of the result to the pixel below and to the pixel on the right.
    fn new(
        p: &PooledConvolution<'_>,
        ask: RequestedMethod,
        (stored, in_registers): (MicrokernelTypes, bool),
        pixel: [usize; 2],
    ) -> SelectResult<(RowMethod, usize)> {
        let (x, k, level) = (&p.inputs[0], &p.inputs[1], p.target.level.vectors());
        let features = k.shape[3];
        if ask == RequestedMethod::Rows {
            let narrow = sum_rounding(x.dtype, p.has_bias(), level);
            let pool = pool_row(DType::F32, p.y.dtype, level)
                .ok_or("no pooling loop writes the element type of its result")?;
            let (run, rows, columns) = indirect_shape(level, features);
            return Ok((RowMethod::Rows { run, rows, narrow, pool }, columns));
        }
        ensure!(in_registers, NO_REGISTERS.into());
        let winograd = match ask {
            RequestedMethod::Winograd if !p.target.winograd => {
                return Err("Winograd is disabled (option winograd, SYSTOLE_WINOGRAD)".into());
            }
            RequestedMethod::Winograd if !has_unit_steps(p.c) || p.pool.strides != p.pool.window => {
                return Err("it has strides or dilations, or its pooling windows are not adjacent".into());
            }
            RequestedMethod::Winograd => {
                let winograd = WinogradWindows::new([k.shape[0], k.shape[1]], k.shape[2], stored, level);
                Some(
                    winograd
                        .ok_or("Winograd does not pay off here, or its microkernel exceeds the registers")?,
                )
            }
            _ => None,
        };
        let shape = windows_shape(level, stored);
        let [down, right] = pixel.map(|elements| elements * stored.size());
        Ok((RowMethod::Registers { shape, right, down, winograd }, shape.panel(features)))
    }
}

impl VectorConvPool {
    /// Creates the kernel with the first method, in the order of the candidates, that supports the problem.
    pub fn any(p: &PooledConvolution<'_>) -> SelectResult<VectorConvPool> {
        let in_registers = VectorConvPool::new(p, RequestedMethod::Winograd)
            .or_else(|_| VectorConvPool::new(p, RequestedMethod::Registers));
        in_registers.or_else(|_| VectorConvPool::new(p, RequestedMethod::Rows))
    }

    /// Creates the kernel with the requested method, or returns why the method does not support the problem.
    pub fn new(p: &PooledConvolution<'_>, ask: RequestedMethod) -> SelectResult<VectorConvPool> {
        let &PooledConvolution { c, pool, inputs, y, target, .. } = p;
        let level = target.level.vectors();
        let (x, k) = (&inputs[0], &inputs[1]);
        let (channels, features) = (k.shape[2], k.shape[3]);
        let (stored, in_registers) = storage(p, ask);
        let size = stored.size();
        let input = PaddedConvInput::of_size(size, x, &c.padding, &c.lhs_dilation);
        let input = input.ok_or("its padding crops more elements than there are")?;
        // If windows are adjacent, the columns beyond the last window are not computed.
        let line = match pool.strides[1] == pool.window[1] {
            true => y.shape[2] * pool.window[1],
            false => pool.operand.shape[2],
        };
        let pixel_step = [0, 1].map(|i| input.strides[i] * c.strides[i]);
        let (method, columns) = RowMethod::new(p, ask, (stored, in_registers), pixel_step)?;
        let pixel = offsets([(pool.window[0], pixel_step[0]), (line, pixel_step[1])].into_iter());
        let lines = [0, 1].map(|i| (k.shape[i], input.strides[i] * c.rhs_dilation[i]));
        let tap = offsets(lines.into_iter().chain([(channels, 1)]));
        let pairs = match stored {
            MicrokernelTypes::Pairs => pairs(k.shape[0], k.shape[1] * channels),
            _ => Vec::new(),
        };
        let words = match &pairs[..] {
            [] => tap.iter().map(|&at| at * size).collect(),
            pairs => pairs.iter().map(|p| tap[p.tap] * size).collect(),
        };
        let work = 2.0 * (pixel.len() * tap.len() * features) as f64;
        Ok(VectorConvPool {
            down: pixel_step[0] * pool.strides[0],
            input,
            pool: pool.clone(),
            dtype: x.dtype,
            level,
            stored,
            sizes: inputs.iter().map(|t| t.elements()).collect(),
            batch: x.shape[0],
            pooled: [y.shape[1], y.shape[2]],
            features,
            pixel,
            tap,
            words,
            pairs,
            line,
            group: ((BLOCK / work).ceil() as usize).clamp(1, y.shape[1]),
            columns,
            magnitude: match stored {
                MicrokernelTypes::Pairs => level.tile::<MaxMagnitudeBf16>(),
                _ => level.tile::<MaxMagnitudeF32>(),
            },
            method,
            product: p.product(y.shape[2] * y.shape[3], target.level)?,
        })
    }

    fn padded_features(&self) -> usize {
        self.features.next_multiple_of(self.columns)
    }

    fn packed_bytes(&self) -> usize {
        (packed_len(self.columns, self.tap.len(), self.features) * 4).next_multiple_of(64)
    }

    fn bias_bytes(&self) -> usize {
        (self.padded_features() * 4).next_multiple_of(64)
    }

    /// Bytes of operand `k` converted to f32; 0 if it is read as stored.
    fn wide_bytes(&self, k: usize) -> usize {
        match (self.dtype, self.sizes.get(k)) {
            (DType::F32, _) | (_, None) => 0,
            // Microkernels of pairs read bf16; only the bias is f32.
            _ if self.stored == MicrokernelTypes::Pairs && k < 2 => 0,
            (_, Some(n)) => (n * 4).next_multiple_of(64),
        }
    }

    /// Convolves all pixels of a row of windows, adds the bias unless it is null, and writes `out: f32[pixels,
    /// features]`.
    unsafe fn convolve(
        &self,
        (run, rows): (IndirectKernel, usize),
        &PreparedOperands { x, kernel, bias, .. }: &PreparedOperands,
        out: *mut f32,
    ) {
        let (taps, padded) = (self.tap.len(), self.padded_features());
        for kb in (0..taps).step_by(KC) {
            let k = KC.min(taps - kb);
            let last = kb + k == taps && !bias.is_null();
            for p in (0..self.pixel.len()).step_by(rows) {
                for j in (0..self.features).step_by(self.columns) {
                    let t = TileArgs {
                        k,
                        a: x.cast(),
                        b: kernel.wrapping_add(kb * padded + j * k),
                        b_k: self.columns,
                        c: out.wrapping_add(p * self.features + j),
                        c_row: self.features,
                        add: kb > 0,
                        bias: if last { bias.wrapping_add(j) } else { std::ptr::null() },
                        columns: self.columns.min(self.features - j),
                    };
                    let rows = rows.min(self.pixel.len() - p);
                    // SAFETY: offsets stay inside one padded image; the caller has room for all pixels.
                    unsafe { run(rows, &t, self.pixel.as_ptr().add(p), self.tap.as_ptr().add(kb)) };
                }
            }
        }
    }

    fn winograd(&self) -> Option<&WinogradWindows> {
        match &self.method {
            RowMethod::Registers { winograd, .. } => winograd.as_ref(),
            RowMethod::Rows { .. } => None,
        }
    }

    /// Converts, pads and packs the operands in scratch.
    unsafe fn prepare(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> PreparedOperands {
        let mut at = 0;
        let mut operands: Vec<*const u8> = io.inputs[..self.sizes.len()].to_vec();
        // SAFETY: scratch has the layout that `scratch()` counts; operands have the shapes of `new`.
        unsafe {
            for (k, operand) in operands.iter_mut().enumerate() {
                if let Some(widen) = widen(self.dtype, self.level)
                    && self.wide_bytes(k) > 0
                {
                    let to = io.scratch.add(at);
                    convert(cx, widen, (*operand, 2), (to, 4), self.sizes[k]);
                    *operand = to;
                    at += self.wide_bytes(k);
                }
            }
            let x = self.input.prepare(cx, operands[0], io.scratch.add(at)).cast::<u8>();
            let panels = io.scratch.add(at + self.input.bytes()).cast::<f32>();
            let (taps, features) = (self.tap.len(), self.features);
            if self.stored == MicrokernelTypes::Pairs {
                self.pack_pairs(operands[1].cast(), panels.cast());
            }
            let unpaired = if self.pairs.is_empty() { taps } else { 0 };
            for kb in (0..unpaired).step_by(KC) {
                let k = KC.min(taps - kb);
                let view =
                    MatrixView { ptr: operands[1].cast::<f32>().add(kb * features), row: features, col: 1 };
                pack_right(self.columns, view, k, features, panels.add(kb * self.padded_features()));
            }
            let padded = panels.add(self.packed_bytes() / 4);
            let transformed = padded.add(self.bias_bytes() / 4);
            let mut terms = taps as f32;
            if let Some(winograd) = self.winograd() {
                for j in (0..features).step_by(self.columns) {
                    let to = transformed.add(j * winograd.elements());
                    winograd.kernel(panels.add(j * taps), self.columns, to);
                }
                // The transforms enlarge magnitudes: of the input at most 4 times, of the kernel 9/4 times.
                terms *= 16.0;
            }
            let gain = self.magnitude(operands[1], self.sizes[1], self.magnitude) * terms;
            let mut prepared = PreparedOperands {
                x,
                kernel: panels,
                transformed,
                bias: std::ptr::null(),
                bounds: MagnitudeBounds { gain, offset: 0.0 },
            };
            if let Some(&bias) = operands.get(2) {
                padded.write_bytes(0, self.padded_features());
                std::ptr::copy_nonoverlapping(bias.cast(), padded, features);
                prepared.bounds.offset =
                    self.magnitude(padded.cast(), features, self.level.tile::<MaxMagnitudeF32>());
                prepared.bias = padded;
            }
            prepared
        }
    }

    unsafe fn magnitude(&self, x: *const u8, n: usize, of: TileFn) -> f32 {
        let mut most = 0f32;
        // SAFETY: `x` has `n` elements of the type that `of` reads, by the caller's promise.
        unsafe { of((&raw mut most).cast(), x, x, x, n) };
        most
    }

    /// Packs the kernel as panels of pairs of taps (VNNI layout).
    unsafe fn pack_pairs(&self, kernel: *const u16, to: *mut [u16; 2]) {
        let (f, steps) = (self.features, self.pairs.len());
        for j in (0..f).step_by(self.columns) {
            for (s, pair) in self.pairs.iter().enumerate() {
                for column in 0..self.columns {
                    let feature = j + column;
                    // SAFETY: the kernel has these taps and features; `to` has room for whole panels.
                    unsafe {
                        let at = |tap: usize| if feature < f { *kernel.add(tap * f + feature) } else { 0 };
                        let word = [if pair.both { at(pair.tap) } else { 0 }, at(pair.tap + 1)];
                        *to.add(j * steps + s * self.columns + column) = word;
                    }
                }
            }
        }
    }

    /// Bytes of scratch for [`VectorConvPool::row`].
    fn tile_bytes(&self) -> usize {
        match self.method {
            RowMethod::Registers { .. } => self.winograd().map_or(0, WinogradWindows::part_bytes),
            RowMethod::Rows { .. } => self.pixel.len() * self.features * 4,
        }
    }

    /// Computes one row of windows of one image. Results start at `y` and `argmax` (or null).
    unsafe fn row(&self, operands: &PreparedOperands, y: *mut u8, argmax: *mut u8, tile: *mut f32) {
        match &self.method {
            // SAFETY: by the caller's promise.
            RowMethod::Registers { shape, right, down, .. } => unsafe {
                self.registers(shape, [*right, *down], operands, [y, argmax], tile);
            },
            &RowMethod::Rows { run, rows, narrow, pool } => {
                let r = PoolRowArgs {
                    window: self.pool.window,
                    step: self.pool.strides[1] * self.features,
                    line: self.line * self.features,
                    channels: self.features,
                    relu: self.pool.relu,
                    argmax,
                };
                let bytes = tile.cast_const().cast::<u8>();
                // SAFETY: the tile has room for all pixels of the row; the caller has room for its results.
                unsafe {
                    match narrow {
                        None => self.convolve((run, rows), operands, tile),
                        Some(narrow) => {
                            let bare = PreparedOperands { bias: std::ptr::null(), ..*operands };
                            self.convolve((run, rows), &bare, tile);
                            let width = (&raw const self.features).cast();
                            narrow(tile.cast(), bytes, operands.bias.cast(), width, self.pixel.len());
                        }
                    }
                    pool(y, bytes, (&raw const r).cast(), bytes, self.pooled[1]);
                }
            }
        }
    }

    /// Computes row `row` of windows of image `image`.
    unsafe fn row_of_image(
        &self,
        operands: &PreparedOperands,
        (image, row): (usize, usize),
        to: PoolOutputs,
        tile: *mut f32,
    ) {
        let x = operands.x.wrapping_add((image * self.input.image + row * self.down) * self.stored.size());
        let at = (image * self.pooled[0] + row) * self.pooled[1] * self.features;
        let argmax = to.argmax.map_or(std::ptr::null_mut(), |p| p.at(at));
        // SAFETY: by the caller's promise.
        unsafe {
            self.row(&PreparedOperands { x, ..*operands }, to.y.at(at * self.dtype.size()), argmax, tile);
        }
    }

    /// Computes all rows of windows and the product with their maxima, one row of several images at a time.
    unsafe fn run_with_product(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        operands: &PreparedOperands,
        to: PoolOutputs,
        product: &InnerProducts,
    ) {
        let [right, bias @ ..] = &io.inputs[self.sizes.len()..] else { return };
        let (right, bias) = (Ptr::of(*right), bias.first().map(|&p| Ptr::of(p)));
        let out = Ptr(io.outputs[io.outputs.len() - 1]);
        let row = self.pooled[1] * self.features;
        let most = (ROW_BYTES / (row * self.dtype.size())).clamp(1, IMAGES);
        // Inside a parallel loop this thread computes all images; otherwise the images are split among all threads.
        let parts = if inside() { 1 } else { 2 * cx.team.threads() };
        let tasks = self.batch.div_ceil(most).max(parts.min(self.batch));
        let tile_bytes = self.tile_bytes().next_multiple_of(64);
        let body = |task: usize| {
            let images = self.batch * task / tasks..self.batch * (task + 1) / tasks;
            with_scratch(tile_bytes + InnerProducts::bytes(images.len()), |tile| {
                // SAFETY: each image's results are written by one task; scratch is this thread's.
                unsafe {
                    let sums = product.start(images.clone(), to.y, right, tile.add(tile_bytes));
                    for r in 0..self.pooled[0] {
                        for image in images.clone() {
                            self.row_of_image(operands, (image, r), to, tile.cast());
                        }
                        product.add(&sums, r * row..(r + 1) * row, true);
                    }
                    product.finish(sums, bias, out);
                }
            });
        };
        cx.team.run_with(tasks, self.work(), cx.flush, &body);
    }

    /// Approximate nanoseconds of the convolution on one core.
    fn work(&self) -> f64 {
        let products = (self.pixel.len() * self.tap.len() * self.features) as f64;
        (self.batch * self.pooled[0]) as f64 * products / 25.0
    }

    /// Computes a row of 2×2 windows in registers.
    unsafe fn registers(
        &self,
        shape: &WindowKernels,
        [right, down]: [usize; 2],
        operands: &PreparedOperands,
        [y, argmax]: [*mut u8; 2],
        tile: *mut f32,
    ) {
        let &PreparedOperands { x, kernel, transformed, bias, .. } = operands;
        let seen = [&self.pixel, &self.tap].iter().filter_map(|t| t.last()).sum::<usize>() + 1;
        // SAFETY: all elements that the row reads are inside one padded image.
        let finite = operands.bounds.keep_finite(unsafe { self.magnitude(x, seen, self.magnitude) });
        let winograd = self.winograd().filter(|_| finite);
        let (step, windows) = (right * self.pool.strides[1], self.pooled[1]);
        let most = winograd.map_or(windows, WinogradWindows::most).max(1);
        for from in (0..windows).step_by(most) {
            let x = x.wrapping_add(from * step);
            let count = most.min(windows - from);
            if let Some(winograd) = winograd {
                // SAFETY: as above; the tile has room for `part_bytes`, and `count` is at most `most`.
                unsafe { winograd.row(x.cast(), down / 4, count, tile) };
            }
            for j in (0..self.features).step_by(self.columns) {
                let columns = self.columns.min(self.features - j);
                let at = from * self.features + j;
                let w = WindowRowArgs {
                    x,
                    right,
                    down,
                    step,
                    windows: count,
                    taps: self.words.as_ptr(),
                    count: self.words.len(),
                    kernel: kernel.wrapping_add(j * self.words.len()),
                    panel: self.columns,
                    bias: if bias.is_null() { bias } else { bias.wrapping_add(j) },
                    relu: self.pool.relu,
                    finite,
                    y: y.wrapping_add(at * self.dtype.size()),
                    argmax: if argmax.is_null() { argmax } else { argmax.wrapping_add(at) },
                    row: self.features,
                    columns,
                };
                // SAFETY: the windows' inputs are inside one padded image; the caller has room for the results.
                unsafe {
                    match winograd {
                        Some(m) => m.windows(&w, transformed.wrapping_add(j * m.elements()), tile),
                        None => shape.kernel(columns)(&w),
                    }
                }
            }
        }
    }
}

impl Kernel for VectorConvPool {
    fn scratch(&self) -> usize {
        let wide: usize = (0..3).map(|k| self.wide_bytes(k)).sum();
        let transformed = self.winograd().map_or(0, |m| self.padded_features() * m.elements() * 4);
        wide + self.input.bytes() + self.packed_bytes() + self.bias_bytes() + transformed + 64
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch and operands are those of the step, by the caller's promise.
        let operands = unsafe { self.prepare(cx, io) };
        let to = PoolOutputs::of(io, self.product.is_some());
        if let Some(product) = &self.product {
            // SAFETY: as above; `operands` are those of this call.
            unsafe { self.run_with_product(cx, io, &operands, to, product) };
            return Ok(());
        }
        let blocks = self.pooled[0].div_ceil(self.group);
        let body = |task: usize| {
            let (image, from) = (task / blocks, task % blocks * self.group);
            with_scratch(self.tile_bytes(), |tile| {
                for row in from..(from + self.group).min(self.pooled[0]) {
                    // SAFETY: each row's results are written by one task; the tile is this thread's.
                    unsafe { self.row_of_image(&operands, (image, row), to, tile.cast()) };
                }
            });
        };
        cx.team.run_with(self.batch * blocks, self.work(), cx.flush, &body);
        Ok(())
    }
}
