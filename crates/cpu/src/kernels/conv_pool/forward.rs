//! A convolution whose result is only max-pooled: rows of it are pooled while they are in the nearest cache, and a
//! product with few columns of what that makes is summed before it leaves the next one.

use crate::kernel::convert::convert;
use crate::kernel::convolution::has_unit_steps;
use crate::kernel::inner_products::InnerProducts;
use crate::kernel::padded::{Padded, offsets};
use crate::kernel::product::{Epilogue, roles};
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv_pool::amx;
use crate::kernels::conv_pool::amx::TilePool;
use crate::kernels::conv_pool::microkernel::{Minimal, Stored, Windows, WindowsShape, windows_shape};
use crate::machine::team::inside;
use crate::select::Problem;
use crate::simd::amx::fused::fused_of;
use crate::simd::gemm::{IndirectKernel, KC, TileArgs, View, indirect_shape, pack_right, packed_len};
use crate::simd::level::{Isa, Level, Target, Tile, TileFn};
use crate::simd::loops::{lanes, widen};
use crate::simd::narrow_bias::sum_rounding;
use crate::simd::pool_row::{Row, pool_row};
use systole_compile::Kernel as Plan;
use systole_compile::{Pool, Step};
use systole_ir::op::Convolution;
use systole_ir::{DType, Op, Result, TensorType};

/// Operations that one block of the parallel loop does, at the least.
const BLOCK: f64 = 1e6;
/// Images whose rows of windows are multiplied together, and how many bytes of pooled values these are at the most.
const IMAGES: usize = 32;
const ROW_BYTES: usize = 1 << 18;

/// The kernel of a pooled convolution; `None` for types that have no path here.
pub fn bind(pool: &Pool, problem: &Problem<'_>) -> Option<Box<dyn Kernel>> {
    let Problem { step, target, .. } = *problem;
    let level = target.level.vectors();
    let conv = pool.conv.as_ref()?;
    if target.winograd
        && let Some(kernel) = Transformed::new(conv, pool, problem)
    {
        return Some(Box::new(kernel));
    }
    let general = ConvPoolKernel::new(conv, pool, step, target)?;
    // Sums that begin with the bias are rounded once.
    let exact = step.input_types.len() - pool.product == 2;
    Some(match fused_of(target.level).filter(|_| exact || target.excess_precision) {
        Some(fused) => TilePool::bind(fused, conv, pool, step, (general, level)),
        None => Box::new(general),
    })
}

/// A convolution from fewer products, pooled strip by strip of windows, and then a product with all of them perhaps.
struct Transformed {
    conv: Box<dyn Kernel>,
    product: Option<InnerProducts>,
    /// Inputs of the convolution.
    operands: usize,
}

impl Transformed {
    fn new(c: &Convolution, pool: &Pool, problem: &Problem<'_>) -> Option<Transformed> {
        let Problem { step, target, .. } = *problem;
        let (inputs, of_product) = step.input_types.split_at(step.input_types.len() - pool.product);
        let y = &step.output_types[0];
        let conv = Step {
            kernel: Plan::Op { op: Op::from(c.clone()), bias: inputs.len() > 2 },
            inputs: step.inputs[..inputs.len()].to_vec(),
            input_types: inputs.to_vec(),
            outputs: step.outputs[..1].to_vec(),
            output_types: vec![pool.operand.clone()],
            ..step.clone()
        };
        // Of the vectors' level: pairs of bf16 and tile registers transform nothing.
        let vectors = Target { level: target.level.vectors(), ..target };
        let mut conv = Problem { target: vectors, ..*problem }.bind(&conv).ok()?;
        if !conv.pool_result(pool, y) {
            return None;
        }
        let product = if of_product.is_empty() { None } else { Some(dots(y, of_product, 0, target.level)?) };
        Some(Transformed { conv, product, operands: inputs.len() })
    }

    /// The product of what was pooled.
    unsafe fn multiply(&self, cx: &Cx<'_>, io: &Io<'_>) {
        let Some(product) = &self.product else { return };
        let inputs: Vec<*const u8> = [io.outputs[0].cast_const()]
            .into_iter()
            .chain(io.inputs[self.operands..].iter().copied())
            .collect();
        let io = Io { inputs: &inputs, outputs: &io.outputs[io.outputs.len() - 1..], scratch: io.scratch };
        // SAFETY: the maxima are there; the rest are the step's operands and result.
        unsafe { product.run(cx, &io) };
    }

    /// The arrays of the convolution.
    fn of_conv<'a>(&self, io: &Io<'a>) -> Io<'a> {
        let outputs = &io.outputs[..io.outputs.len() - usize::from(self.product.is_some())];
        Io { inputs: &io.inputs[..self.operands], outputs, scratch: io.scratch }
    }
}

impl Kernel for Transformed {
    fn scratch(&self) -> usize {
        self.conv.scratch()
    }

    fn kept(&self, same: &[bool]) -> usize {
        self.conv.kept(same)
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.conv.keep(cx, inputs, kept) };
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the module's contract.
        unsafe {
            self.conv.run(cx, &self.of_conv(io))?;
            self.multiply(cx, io);
        }
        Ok(())
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        // SAFETY: the module's contract.
        unsafe {
            self.conv.run_kept(cx, &self.of_conv(io), kept)?;
            self.multiply(cx, io);
        }
        Ok(())
    }
}

/// The product of each image's maxima, so many at a time, with the rows of a matrix, and perhaps a bias.
fn dots(y: &TensorType, of_product: &[TensorType], at_a_time: usize, level: Level) -> Option<InnerProducts> {
    let rows = y.with_shape([y.shape[0], y.elements() / y.shape[0]]);
    let [left, right] = [&rows, &of_product[0]].map(|t| roles(t, &[], &[0], &[1]));
    let epilogue = Epilogue { bias: of_product.len() > 1, accumulate: false };
    Some(
        InnerProducts::new(&left, &right, [y.dtype; 2], epilogue, level.vectors())?
            .with_pairs(level, at_a_time),
    )
}

/// Sets the number at `dst` to the greatest magnitude of `n` numbers at `a`, or to a NaN where there is one.
struct Magnitude;
impl Tile for Magnitude {
    #[inline(always)]
    unsafe fn run<I: Isa>(dst: *mut u8, a: *const u8, _: *const u8, _: *const u8, n: usize) {
        // Without their signs, floats are in the order of their bits, and NaN is above all.
        // SAFETY: as the type says.
        unsafe {
            let greatest = lanes::<u32>(a, n).iter().fold(0, |most, x| most.max(x & (u32::MAX >> 1)));
            *dst.cast::<f32>() = f32::from_bits(greatest);
        }
    }
}

/// Magnitudes and sums up to this have room for rounding: none becomes infinite.
pub const MODERATE: f32 = 1e37;

/// Operands as kernels read them.
#[derive(Clone, Copy)]
struct Operands {
    /// f32, or bf16 where products are of pairs.
    x: *const u8,
    /// Panels.
    kernel: *const f32,
    /// Transformed, where that is done.
    transformed: *const f32,
    /// Whole panels, or null.
    bias: *const f32,
    /// What a sum of products is at most for an input of magnitude 1, and the greatest bias.
    gain: f32,
    offset: f32,
}

// SAFETY: addresses and numbers; threads only read what they point to.
unsafe impl Sync for Operands {}

impl Operands {
    /// Whether no sum over inputs of this magnitude can be infinite or NaN.
    fn keep_finite(&self, magnitude: f32) -> bool {
        magnitude <= MODERATE && magnitude * self.gain + self.offset <= MODERATE
    }
}

/// Results of the pooling: maxima and perhaps places.
#[derive(Clone, Copy)]
struct Pooled {
    y: Ptr,
    place: Option<Ptr>,
}

/// See the module text. Inputs: input, kernel and perhaps a bias, then those of a product; results: maxima, perhaps
/// places, perhaps the product.
pub struct ConvPoolKernel {
    input: Padded,
    pool: Pool,
    dtype: DType,
    level: Level,
    /// How rows of windows in registers are stored.
    stored: Stored,
    /// Elements of input, kernel and bias.
    sizes: Vec<usize>,
    batch: usize,
    /// Height and width of the result.
    pooled: [usize; 2],
    features: usize,
    /// Offsets in the input of the pixels that one row of windows sees, row by row, and of the taps.
    pixel: Vec<usize>,
    tap: Vec<usize>,
    /// Where in the input the words begin that products are of, in bytes: pairs, or the taps themselves.
    words: Vec<usize>,
    pairs: Vec<Pair>,
    /// Pixels of a row of those, and from the input of one row of windows to the next.
    line: usize,
    step: usize,
    /// Rows of windows that are one block of the parallel loop.
    group: usize,
    /// Width of the kernel's panels.
    columns: usize,
    magnitude: TileFn,
    way: Way,
    product: Option<InnerProducts>,
}

/// Two neighbours of a line of the kernel, of which the first may have been the second of another pair.
#[derive(Clone, Copy)]
struct Pair {
    /// Number of the first tap.
    tap: usize,
    /// Whether the first one counts.
    both: bool,
}

/// The pairs of a kernel's lines, each of so many taps that lie together; the last pair may overlap with the one before.
fn pairs(lines: usize, length: usize) -> Vec<Pair> {
    let of_line = |line: usize| {
        let first = (0..length.div_ceil(2)).map(move |p| (2 * p).min(length - 2));
        first.enumerate().map(move |(p, at)| Pair { tap: line * length + at, both: at == 2 * p })
    };
    (0..lines).flat_map(of_line).collect()
}

/// How a row of windows is computed.
enum Way {
    /// In registers.
    Registers { shape: WindowsShape, right: usize, down: usize, minimal: Option<Minimal> },
    /// Its pixels go to a tile first.
    Tile { run: IndirectKernel, rows: usize, narrow: Option<TileFn>, pool: TileFn },
}

impl ConvPoolKernel {
    fn new(c: &Convolution, pool: &Pool, step: &Step, target: Target) -> Option<ConvPoolKernel> {
        let level = target.level.vectors();
        let (inputs, of_product) = step.input_types.split_at(step.input_types.len() - pool.product);
        let (x, k, y) = (&inputs[0], &inputs[1], &step.output_types[0]);
        let (channels, features) = (k.shape[2], k.shape[3]);
        // Taps of a line that lie together.
        let line_taps = k.shape[1] * channels;
        let in_registers = pool.window == [2, 2] && k.shape[0] * line_taps <= KC;
        let can_pair = in_registers && line_taps > 1 && c.rhs_dilation[1] == 1;
        let stored = match (x.dtype, target.level) {
            (DType::F32, _) => Stored::Wide,
            (DType::BF16, Level::Avx512Bf16) if target.excess_precision && can_pair => Stored::Pairs,
            _ if target.excess_precision => Stored::Once,
            _ => Stored::Rounded,
        };
        let plain = has_unit_steps(c) && pool.strides == pool.window;
        let minimal = if target.winograd && in_registers && plain {
            Minimal::new([k.shape[0], k.shape[1]], channels, stored, level)
        } else {
            None
        };
        let size = if stored == Stored::Pairs { 2 } else { 4 };
        let input = Padded::of_size(size, x, &c.padding, &c.lhs_dilation)?;
        // Where windows touch each other, columns beyond the last one are of no use.
        let line = match pool.strides[1] == pool.window[1] {
            true => y.shape[2] * pool.window[1],
            false => pool.operand.shape[2],
        };
        let pixel_step = [0, 1].map(|i| input.strides[i] * c.strides[i]);
        let pixel = offsets([(pool.window[0], pixel_step[0]), (line, pixel_step[1])].into_iter());
        let tap = offsets(
            [0, 1]
                .map(|i| (k.shape[i], input.strides[i] * c.rhs_dilation[i]))
                .into_iter()
                .chain([(channels, 1)]),
        );
        let pairs = if stored == Stored::Pairs { pairs(k.shape[0], line_taps) } else { Vec::new() };
        let words = match &pairs[..] {
            [] => tap.iter().map(|&at| at * size).collect(),
            pairs => pairs.iter().map(|p| tap[p.tap] * size).collect(),
        };
        let narrow = sum_rounding(x.dtype, inputs.len() > 2, level);
        let (way, columns) = if in_registers {
            let shape = windows_shape(level, stored);
            let columns = shape.panel(features);
            (
                Way::Registers { shape, right: pixel_step[1] * size, down: pixel_step[0] * size, minimal },
                columns,
            )
        } else {
            let (run, rows, columns) = indirect_shape(level, features);
            (Way::Tile { run, rows, narrow, pool: pool_row(DType::F32, y.dtype, level)? }, columns)
        };
        let work = 2.0 * (pixel.len() * tap.len() * features) as f64;
        let row = y.shape[2] * y.shape[3];
        let product =
            if of_product.is_empty() { None } else { Some(dots(y, of_product, row, target.level)?) };
        Some(ConvPoolKernel {
            step: pixel_step[0] * pool.strides[0],
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
                Stored::Pairs => level.tile::<amx::Magnitude>(),
                _ => level.tile::<Magnitude>(),
            },
            way,
            product,
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

    /// Bytes of operand `k` as f32, where it is not.
    fn wide_bytes(&self, k: usize) -> usize {
        match (self.dtype, self.sizes.get(k)) {
            (DType::F32, _) | (_, None) => 0,
            // Only the bias is added in f32.
            _ if self.stored == Stored::Pairs && k < 2 => 0,
            (_, Some(n)) => (n * 4).next_multiple_of(64),
        }
    }

    /// The pixels that a row of windows sees, as far as sums of products go.
    unsafe fn convolve(
        &self,
        (run, rows): (IndirectKernel, usize),
        &Operands { x, kernel, bias, .. }: &Operands,
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
                    // SAFETY: tables stay inside one (padded) image; the rows are the caller's.
                    unsafe { run(rows, &t, self.pixel.as_ptr().add(p), self.tap.as_ptr().add(kb)) };
                }
            }
        }
    }

    fn minimal(&self) -> Option<&Minimal> {
        match &self.way {
            Way::Registers { minimal, .. } => minimal.as_ref(),
            Way::Tile { .. } => None,
        }
    }

    /// Widened operands; kernel panels and bias behind them.
    unsafe fn prepare(&self, cx: &Cx<'_>, io: &Io<'_>) -> Operands {
        let mut at = 0;
        let mut operands: Vec<*const u8> = io.inputs[..self.sizes.len()].to_vec();
        // SAFETY: scratch is laid out as `scratch()` counts it; operands have the shapes of `new`.
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
            if self.stored == Stored::Pairs {
                self.pack_pairs(operands[1].cast(), panels.cast());
            }
            let unpaired = if self.pairs.is_empty() { taps } else { 0 };
            for kb in (0..unpaired).step_by(KC) {
                let k = KC.min(taps - kb);
                let view = View { ptr: operands[1].cast::<f32>().add(kb * features), row: features, col: 1 };
                pack_right(self.columns, view, k, features, panels.add(kb * self.padded_features()));
            }
            let padded = panels.add(self.packed_bytes() / 4);
            let transformed = padded.add(self.bias_bytes() / 4);
            let mut terms = taps as f32;
            if let Some(minimal) = self.minimal() {
                for j in (0..features).step_by(self.columns) {
                    let to = transformed.add(j * minimal.elements());
                    minimal.kernel(panels.add(j * taps), self.columns, to);
                }
                // Transforms make four times as much of an input, and of a kernel 9/4.
                terms *= 16.0;
            }
            let gain = self.magnitude(operands[1], self.sizes[1], self.magnitude) * terms;
            let mut prepared =
                Operands { x, kernel: panels, transformed, bias: std::ptr::null(), gain, offset: 0.0 };
            if let Some(&bias) = operands.get(2) {
                padded.write_bytes(0, self.padded_features());
                std::ptr::copy_nonoverlapping(bias.cast(), padded, features);
                prepared.offset = self.magnitude(padded.cast(), features, self.level.tile::<Magnitude>());
                prepared.bias = padded;
            }
            prepared
        }
    }

    unsafe fn magnitude(&self, x: *const u8, n: usize, of: TileFn) -> f32 {
        let mut most = 0f32;
        // SAFETY: the caller has `n` numbers there, of the type that `of` takes.
        unsafe { of((&raw mut most).cast(), x, x, x, n) };
        most
    }

    /// Panels of pairs.
    unsafe fn pack_pairs(&self, kernel: *const u16, to: *mut [u16; 2]) {
        let (f, steps) = (self.features, self.pairs.len());
        for j in (0..f).step_by(self.columns) {
            for (s, pair) in self.pairs.iter().enumerate() {
                for column in 0..self.columns {
                    let feature = j + column;
                    // SAFETY: the kernel has these taps and features; there is room for whole panels.
                    unsafe {
                        let at = |tap: usize| if feature < f { *kernel.add(tap * f + feature) } else { 0 };
                        let word = [if pair.both { at(pair.tap) } else { 0 }, at(pair.tap + 1)];
                        *to.add(j * steps + s * self.columns + column) = word;
                    }
                }
            }
        }
    }

    /// Bytes of an element of the input.
    fn size(&self) -> usize {
        if self.stored == Stored::Pairs { 2 } else { 4 }
    }

    /// Bytes of the tile that [`ConvPoolKernel::row`] needs.
    fn tile_bytes(&self) -> usize {
        match self.way {
            Way::Registers { .. } => self.minimal().map_or(0, Minimal::part_bytes),
            Way::Tile { .. } => self.pixel.len() * self.features * 4,
        }
    }

    /// One row of windows of one image; its results begin at `y` and `place`.
    unsafe fn row(&self, operands: &Operands, y: *mut u8, place: *mut u8, tile: *mut f32) {
        match &self.way {
            // SAFETY: by the caller's promises.
            Way::Registers { shape, right, down, .. } => unsafe {
                self.registers(shape, [*right, *down], operands, [y, place], tile);
            },
            &Way::Tile { run, rows, narrow, pool } => {
                let r = Row {
                    window: self.pool.window,
                    step: self.pool.strides[1] * self.features,
                    line: self.line * self.features,
                    channels: self.features,
                    relu: self.pool.relu,
                    argmax: place,
                };
                let bytes = tile.cast_const().cast::<u8>();
                // SAFETY: the tile has room for all pixels; the results are the caller's.
                unsafe {
                    match narrow {
                        None => self.convolve((run, rows), operands, tile),
                        Some(narrow) => {
                            let bare = Operands { bias: std::ptr::null(), ..*operands };
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

    /// A row of windows of an image, which has its place in the results.
    unsafe fn row_of_image(
        &self,
        operands: &Operands,
        (image, row): (usize, usize),
        to: Pooled,
        tile: *mut f32,
    ) {
        let x = operands.x.wrapping_add((image * self.input.image + row * self.step) * self.size());
        let at = (image * self.pooled[0] + row) * self.pooled[1] * self.features;
        let place = to.place.map_or(std::ptr::null_mut(), |p| p.at(at));
        // SAFETY: by the caller's promises.
        unsafe {
            self.row(&Operands { x, ..*operands }, to.y.at(at * self.dtype.size()), place, tile);
        }
    }

    /// All rows of windows, and the product with what they make: a row of some images at a time.
    unsafe fn run_with_product(
        &self,
        cx: &Cx<'_>,
        io: &Io<'_>,
        operands: &Operands,
        to: Pooled,
        product: &InnerProducts,
    ) {
        let [right, bias @ ..] = &io.inputs[self.sizes.len()..] else { return };
        let (right, bias) = (Ptr::of(*right), bias.first().map(|&p| Ptr::of(p)));
        let out = Ptr(io.outputs[io.outputs.len() - 1]);
        let row = self.pooled[1] * self.features;
        let most = (ROW_BYTES / (row * self.dtype.size())).clamp(1, IMAGES);
        // Blocks run by themselves; otherwise all threads should have some images.
        let parts = if inside() { 1 } else { 2 * cx.team.threads() };
        let tasks = self.batch.div_ceil(most).max(parts.min(self.batch));
        let tile_bytes = self.tile_bytes().next_multiple_of(64);
        let body = |task: usize| {
            let images = self.batch * task / tasks..self.batch * (task + 1) / tasks;
            with_scratch(tile_bytes + InnerProducts::bytes(images.len()), |tile| {
                // SAFETY: the images' results are this task's alone; scratch is this thread's.
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

    /// What the convolution takes on one core, in nanoseconds.
    fn work(&self) -> f64 {
        let products = (self.pixel.len() * self.tap.len() * self.features) as f64;
        (self.batch * self.pooled[0]) as f64 * products / 25.0
    }

    /// A row of 2×2 windows.
    unsafe fn registers(
        &self,
        shape: &WindowsShape,
        [right, down]: [usize; 2],
        operands: &Operands,
        [y, place]: [*mut u8; 2],
        tile: *mut f32,
    ) {
        let &Operands { x, kernel, transformed, bias, .. } = operands;
        let seen = [&self.pixel, &self.tap].iter().filter_map(|t| t.last()).sum::<usize>() + 1;
        // SAFETY: what the row sees lies inside one (padded) image.
        let finite = operands.keep_finite(unsafe { self.magnitude(x, seen, self.magnitude) });
        let minimal = self.minimal().filter(|_| finite);
        let (step, windows) = (right * self.pool.strides[1], self.pooled[1]);
        let most = minimal.map_or(windows, Minimal::most).max(1);
        for from in (0..windows).step_by(most) {
            let x = x.wrapping_add(from * step);
            let count = most.min(windows - from);
            if let Some(minimal) = minimal {
                // SAFETY: as above; the tile has room for the part.
                unsafe { minimal.row(x.cast(), down / 4, count, tile) };
            }
            for j in (0..self.features).step_by(self.columns) {
                let columns = self.columns.min(self.features - j);
                let at = from * self.features + j;
                let w = Windows {
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
                    place: if place.is_null() { place } else { place.wrapping_add(at) },
                    row: self.features,
                    columns,
                };
                // SAFETY: the windows lie inside one (padded) image; the results are the caller's.
                unsafe {
                    match minimal {
                        Some(m) => m.windows(&w, transformed.wrapping_add(j * m.elements()), tile),
                        None => shape.kernel(columns)(&w),
                    }
                }
            }
        }
    }
}

impl Kernel for ConvPoolKernel {
    fn scratch(&self) -> usize {
        let wide: usize = (0..3).map(|k| self.wide_bytes(k)).sum();
        let transformed = self.minimal().map_or(0, |m| self.padded_features() * m.elements() * 4);
        wide + self.input.bytes() + self.packed_bytes() + self.bias_bytes() + transformed + 64
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the module's contract.
        let operands = unsafe { self.prepare(cx, io) };
        let pooled = &io.outputs[..io.outputs.len() - usize::from(self.product.is_some())];
        let to = Pooled { y: Ptr(pooled[0]), place: pooled.get(1).map(|&p| Ptr(p)) };
        if let Some(product) = &self.product {
            // SAFETY: as above.
            unsafe { self.run_with_product(cx, io, &operands, to, product) };
            return Ok(());
        }
        let blocks = self.pooled[0].div_ceil(self.group);
        let body = |task: usize| {
            let (image, from) = (task / blocks, task % blocks * self.group);
            with_scratch(self.tile_bytes(), |tile| {
                for row in from..(from + self.group).min(self.pooled[0]) {
                    // SAFETY: the row's results are this task's alone; the tile is this thread's.
                    unsafe { self.row_of_image(&operands, (image, row), to, tile.cast()) };
                }
            });
        };
        cx.team.run_with(self.batch * blocks, self.work(), cx.flush, &body);
        Ok(())
    }
}
