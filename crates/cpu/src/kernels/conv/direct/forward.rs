//! Direct forward convolution and input gradient (implicit GEMM): `x: [B, …, C], kernel → y: [B, …', F]`.
//!
//! Each strip of pixels is an implicit GEMM `[pixels, taps · C] · [taps · C, F]` with the packed filter. The input
//! gradient is the same convolution applied to `dy`. If the layer has strides, the input of this convolution is
//! dilated. It is then split into phases without dilation ([`crate::kernels::conv::staging::phases`]), so no inserted
//! zero is multiplied.
//!
//! At the level with VDPBF16PS, two bf16 channels are one element: an opaque 32-bit word.

use crate::kernel::convolution::{is_forward, is_forward_of_groups};
use crate::kernel::{KernelContext, OutputBlock, Ptr, with_scratch};
use crate::kernels::conv::microkernel::{
    AcrossArgs, ColumnPanel, KC, TileDestination, UNROLL, grouped_panels,
};
use crate::kernels::conv::staging::filter_packing::FilterLayout;
use crate::kernels::conv::staging::phases::{AxisPhase, axis, choices};
use crate::kernels::conv::staging::{
    FEWEST_TASKS, PixelStrip, SoftwarePrefetch, StagedAxis, Staging, group, runs,
};
use crate::kernels::conv::strips::StripConvolution;
use crate::kernels::conv::strips::batch_statistics::BatchStatistics;
use crate::kernels::conv::strips::strip_arrays::{NO_LAYER, ResultConversion, StripArrays, is_paired};
use crate::select::SelectResult;
use crate::simd::level::{CompileTarget, TileFn};
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use std::ops::Range;
use systole_compile::ALIGN;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Output pixels of a strip.
const PIXELS: usize = 384;

/// Kernel of direct forward convolutions and input gradients.
pub struct DirectForward {
    staging: Staging,
    phases: Vec<DirectPhase>,
    panels: Vec<ColumnPanel>,
    /// Panels that one task computes.
    groups: Vec<Range<usize>>,
    /// Input channels of a group.
    channels: usize,
    /// Channels of a group that are staged at a time: K steps for each tap.
    depth: usize,
    features: usize,
    bias: bool,
    /// Elements of an image of the result.
    image: usize,
    stored: ResultConversion,
    kernel: FilterLayout,
    packed: usize,
    /// Gathers statistics of the result, after rounding if the result is narrow.
    statistics: Option<BatchStatistics>,
}

/// Output positions that use the same taps.
struct DirectPhase {
    /// Offset of each tap in the filter, and of each run of taps in the staged input.
    taps: Vec<usize>,
    runs: Vec<usize>,
    blocks: Vec<KBlock>,
    /// Offsets of the pixels of a full strip, in the staged input and in the result.
    pixel: Vec<usize>,
    out: Vec<usize>,
    /// Pixels along the first dimension, and pixels per row of it.
    rows: usize,
    row: usize,
    /// Offset of the phase in an image of the result, and the elements between its rows.
    base: usize,
    step: usize,
    /// Offset of the phase's packed filter.
    packed: usize,
}

/// Block of K that one accumulator sums: some whole runs, or a part of one run.
struct KBlock {
    runs: Range<usize>,
    /// Part of each run: `length` elements starting at `from`.
    from: usize,
    length: usize,
    /// K steps before this block, and in it.
    first: usize,
    products: usize,
}

/// Returns the type of an array in which two bf16 channels form one 32-bit element.
fn in_words(x: &TensorType) -> TensorType {
    let mut dims = x.shape.to_vec();
    dims.iter_mut().next_back().into_iter().for_each(|channels| *channels /= 2);
    TensorType::new(DType::F32, dims)
}

impl KBlock {
    /// Cuts runs of equal length into blocks of at most [`KC`] K steps. Without runs there is one empty block.
    fn all(runs: usize, length: usize) -> Vec<KBlock> {
        if runs == 0 {
            return vec![KBlock { runs: 0..0, from: 0, length: 0, first: 0, products: 0 }];
        }
        let together = (KC / length).max(1);
        let mut blocks = Vec::new();
        for (at, n) in pieces(runs, together) {
            for (from, part) in pieces(length, KC) {
                blocks.push(KBlock {
                    runs: at..at + n,
                    from,
                    length: part,
                    first: at * length + from,
                    products: n * part,
                });
            }
        }
        blocks
    }
}

impl DirectForward {
    /// Creates the kernel, or returns why it does not support the convolution.
    pub fn new(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<DirectForward> {
        if is_forward(c) { DirectForward::of_groups(c, bias, types, target) } else { Err(NO_LAYER.into()) }
    }

    /// Creates the kernel for a convolution with several feature groups, or returns why it does not support it.
    pub fn grouped(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<DirectForward> {
        let is_grouped = c.feature_groups > 1 && !c.dims.input_spatial.is_empty() && is_forward_of_groups(c);
        ensure!(is_grouped, "it has one group, or its arrays are not channels-last".into());
        let kernel = DirectForward::of_groups(c, bias, types, target)?;
        // Slices of channels contain whole groups.
        match kernel.staging.width.is_multiple_of(kernel.channels) {
            true => Ok(kernel),
            false => Err("its channels are staged in slices that cut groups".into()),
        }
    }

    fn of_groups(
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<DirectForward> {
        let (d, n, level) = (&c.dims, c.dims.input_spatial.len(), target.level);
        let own_channels = k.shape[d.kernel_input_feature];
        let paired = is_paired(level, x, k) && own_channels.is_multiple_of(2);
        let (words, vectors) = (in_words(x), level.vectors());
        let (x, products) = if paired { (&words, level) } else { (x, vectors) };
        let (channels, features) = (x.shape[n + 1] / c.feature_groups, y.shape[n + 1]);
        let (axes, along): (Vec<StagedAxis>, Vec<Vec<AxisPhase>>) =
            (0..n).map(|i| axis(c, i, x.shape[i + 1], k.shape[d.kernel_spatial[i]], y.shape[i + 1])).unzip();
        let staging = Staging::new(x, axes, PIXELS, k.elements(), vectors);
        let panels = grouped_panels(products, features, c.feature_groups, channels);
        let depth = if c.feature_groups == 1 { staging.width } else { channels };
        let own = k.shape.strides();
        let mut kernel = FilterLayout::new(c, k, vectors);
        if paired {
            kernel = kernel.paired(vectors);
        }
        let spatial: SmallVec<[usize; 3]> = d.kernel_spatial.iter().map(|&s| own[s]).collect();
        let padded: usize = panels.iter().map(|p| p.shape.columns).sum();
        let (mut phases, mut packed) = (Vec::new(), 0);
        let counts: Vec<usize> = along.iter().map(Vec::len).collect();
        for choice in choices(&counts) {
            let phase = DirectPhase::new(&staging, depth, &along, &choice, &spatial, y, packed);
            packed += phase.taps.len() * channels * padded;
            phases.push(phase);
        }
        let natural = phases[0].taps.iter().enumerate().all(|(t, at)| *at == t * channels * features);
        kernel.in_order = kernel.widen.is_none()
            && kernel.feature == 1
            && kernel.channel == features
            && (phases.len(), panels.len(), padded, staging.slices) == (1, 1, features, 1)
            && natural;
        let groups = group(panels.len(), FEWEST_TASKS.div_ceil(staging.strips()));
        Ok(DirectForward {
            packed: if kernel.in_order { 0 } else { packed },
            image: y.elements() / y.shape[0],
            stored: ResultConversion::new(bias, y, vectors),
            staging,
            phases,
            panels,
            groups,
            channels,
            depth,
            features,
            bias,
            kernel,
            statistics: None,
        })
    }

    /// Adds two results for each image and feature: the sum, and the sum of squared deviations from the mean. Only for
    /// convolutions without input dilation.
    pub fn with_statistics(mut self, target: CompileTarget) -> DirectForward {
        let strips = self.staging.strips_of_image();
        let parts = strips.map(|s| self.phases[0].pixels(1, s.row, s.rows)).collect();
        self.statistics = Some(BatchStatistics::new(self.features, parts, target.level.vectors()));
        self
    }

    fn is_grouped(&self) -> bool {
        self.panels.last().is_some_and(|panel| panel.channel > 0)
    }

    /// Whether a slice of staged channels has those of a panel.
    fn is_staged(&self, panel: &ColumnPanel, slice: usize) -> bool {
        !self.is_grouped() || panel.channel / self.staging.width == slice
    }

    fn padded(&self) -> usize {
        self.panels.iter().map(|p| p.shape.columns).sum()
    }

    /// Offset of a block's packed filter: panels one after another, each of `block.products` rows.
    fn packed_at(&self, phase: &DirectPhase, slice: usize, block: &KBlock) -> usize {
        (phase.packed / self.padded() + slice * phase.taps.len() * self.depth + block.first) * self.padded()
    }

    /// Slices of the packed filter: a group is in one of the staged slices.
    fn filter_slices(&self) -> usize {
        self.channels / self.depth
    }

    /// Packs the filter for one block of K.
    unsafe fn pack_block(
        &self,
        kernel: *const u8,
        phase: &DirectPhase,
        slice: usize,
        block: &KBlock,
        to: *mut f32,
    ) {
        let width = self.depth;
        for panel in &self.panels {
            let columns = panel.shape.columns;
            let to = to.wrapping_add(panel.packed * block.products);
            let mut k = 0;
            while k < block.products {
                // Channels of one tap.
                let (tap, c) = ((block.first + k) / width, (block.first + k) % width);
                let n = (width - c).min(block.products - k);
                let at = phase.taps[tap]
                    + (slice * width + c) * self.kernel.channel
                    + panel.from * self.kernel.feature;
                // SAFETY: channels of the filter; the panel has room for all K steps of the block.
                unsafe { self.kernel.pack(kernel, at, n, panel.columns, columns, to.add(k * columns)) };
                k += n;
            }
        }
    }

    /// Runs one task: a group of panels of one strip. f32 results are accumulated where they are stored, narrow results
    /// in scratch.
    unsafe fn strip(&self, task: usize, to: &StripArrays) {
        let strip = self.staging.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let from = group[0].from;
        let columns: usize = group.iter().map(|p| p.columns).sum();
        let most = self.phases.iter().map(|p| p.out.len()).max().unwrap_or(0);
        let narrow = self.stored.narrow.is_some();
        // Accumulators in scratch have separate row offsets.
        let sums = if narrow { most * columns * self.phases.len() } else { 0 };
        let local: Vec<usize> = if sums > 0 { (0..most).map(|p| p * columns).collect() } else { Vec::new() };
        let staged = self.staging.elements().next_multiple_of(16);
        let mut prefetch = self.next(task + 1, group, to.x.at(0));
        with_scratch((staged + sums) * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            let sums_of = |phase: usize| scratch.wrapping_add(staged + phase * most * columns);
            for slice in 0..self.staging.slices {
                let last = slice + 1 == self.staging.slices;
                // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint parts.
                unsafe {
                    let a = self.staging.load(to.x.at(0), strip, slice, scratch.cast()).cast::<f32>();
                    for (i, phase) in self.phases.iter().enumerate() {
                        let pixels = phase.pixels(strip.images, strip.row, strip.rows);
                        let at = strip.image * self.image + phase.at(strip.row);
                        for panel in group.iter().filter(|panel| self.is_staged(panel, slice)) {
                            let (c, rows) = match narrow {
                                true => (sums_of(i).add(panel.from - from), &local),
                                false => (to.y.elem::<f32>(at + panel.from), &phase.out),
                            };
                            self.product(phase, slice, pixels, a, to, c, rows, panel, &mut prefetch);
                            if last && !narrow {
                                self.gather_statistics(strip, (c, rows), (panel.from, panel.columns), to);
                            }
                        }
                        if last && narrow {
                            self.store(phase, strip, (sums_of(i), &local), (from, columns), to);
                        }
                    }
                }
            }
        });
    }

    /// Rounds and stores the accumulators of one phase of a strip: `columns` columns starting at `from`.
    unsafe fn store(
        &self,
        phase: &DirectPhase,
        strip: PixelStrip,
        (sums, rows): (*mut f32, &[usize]),
        (from, columns): (usize, usize),
        to: &StripArrays,
    ) {
        let at = strip.image * self.image + phase.at(strip.row) + from;
        let bias = to.bias.elem::<f32>(from);
        // SAFETY: rows of this task's part of the result, and of its accumulators.
        unsafe {
            let pixels = phase.pixels(strip.images, strip.row, strip.rows);
            let y = (to.y.at(at * self.stored.element), &phase.out[..pixels]);
            self.stored.put((sums, &rows[..pixels]), bias, y, columns, self.statistics.is_some());
            self.gather_statistics(strip, (sums, rows), (from, columns), to);
        }
    }

    /// Gathers the statistics of a range of columns of a strip's pixels.
    unsafe fn gather_statistics(
        &self,
        strip: PixelStrip,
        (c, rows): (*mut f32, &[usize]),
        (from, columns): (usize, usize),
        to: &StripArrays,
    ) {
        let Some(statistics) = &self.statistics else { return };
        let part = strip.row / self.staging.strip(0).rows;
        let all = to.statistics.elem(0);
        // SAFETY: rows of this task's part of the result; no other task writes the statistics of these columns and
        // pixels.
        unsafe { statistics.gather((strip.image, strip.images, part), (c, rows), (from, columns), all) };
    }

    /// Returns the prefetch of the input of task `task`, this thread's next one, while it computes `group`.
    fn next(&self, task: usize, group: &[ColumnPanel], x: *const u8) -> SoftwarePrefetch {
        let strip = task / self.groups.len();
        if strip >= self.staging.strips() {
            return SoftwarePrefetch::none();
        }
        let strip = self.staging.strip(strip);
        let of_phase = |p: &DirectPhase| {
            let pixels = p.pixels(strip.images, strip.row, strip.rows);
            p.blocks.len() * group.iter().map(|panel| pixels.div_ceil(panel.shape.rows)).sum::<usize>()
        };
        let calls = self.staging.slices * self.phases.iter().map(of_phase).sum::<usize>();
        SoftwarePrefetch::new([self.staging.input_of(x, strip), (x, 0)], calls)
    }

    /// Computes the GEMM of one panel over one slice of channels.
    #[allow(clippy::too_many_arguments)]
    unsafe fn product(
        &self,
        phase: &DirectPhase,
        slice: usize,
        pixels: usize,
        a: *const f32,
        from: &StripArrays,
        c: *mut f32,
        rows: &[usize],
        panel: &ColumnPanel,
        prefetch: &mut SoftwarePrefetch,
    ) {
        let last = phase.blocks.len() - 1;
        let shape = &panel.shape;
        // The part of the channels that is staged has whole groups, or a slice of the only group.
        let (slice, slices) = if self.is_grouped() { (0, 1) } else { (slice, self.staging.slices) };
        let a = a.wrapping_add(panel.channel % self.staging.width);
        for (i, block) in phase.blocks.iter().enumerate() {
            let ends = slice + 1 == slices && i == last;
            let at = self.packed_at(phase, slice, block) + panel.packed * block.products;
            let bias = from.bias.elem::<f32>(panel.from).cast_const();
            for (p, count) in pieces(pixels, shape.rows) {
                let t = AcrossArgs {
                    a: a.wrapping_add(block.from),
                    rows: phase.pixel[p..].as_ptr(),
                    runs: phase.runs[block.runs.clone()].as_ptr(),
                    count: block.runs.len(),
                    length: block.length,
                    ahead: prefetch.next(block.runs.len() * (block.length / UNROLL)),
                    b: from.kernel.elem::<f32>(at),
                    out: TileDestination {
                        c,
                        rows: rows[p..].as_ptr(),
                        columns: panel.columns,
                        add: slice + i > 0,
                        bias: if ends && self.bias && self.stored.adds_bias_to_sums() {
                            bias
                        } else {
                            std::ptr::null()
                        },
                    },
                };
                // SAFETY: tables stay inside the strip, its part of the result and the packed filter.
                unsafe { (shape.across)(count, &t) };
            }
        }
    }
}

impl DirectPhase {
    fn new(
        staging: &Staging,
        depth: usize,
        along: &[Vec<AxisPhase>],
        choice: &[usize],
        spatial: &[usize],
        y: &TensorType,
        packed: usize,
    ) -> DirectPhase {
        let n = choice.len();
        let chosen: SmallVec<[&AxisPhase; 3]> = (0..n).map(|i| &along[i][choice[i]]).collect();
        let counts: SmallVec<[usize; 3]> = chosen.iter().map(|p| p.count).collect();
        let own = y.shape.strides();
        let steps: SmallVec<[usize; 3]> = (0..n).map(|i| own[i + 1] * along[i].len()).collect();
        let mut taps = vec![0];
        for (phase, stride) in chosen.iter().zip(spatial) {
            taps = taps.iter().flat_map(|&at| phase.taps.iter().map(move |t| at + t.0 * stride)).collect();
        }
        let places: Vec<Vec<usize>> = chosen.iter().map(|p| p.taps.iter().map(|t| t.1).collect()).collect();
        let (runs, length) = runs(staging, &places, depth);
        DirectPhase {
            blocks: KBlock::all(runs.len(), length),
            taps,
            runs,
            pixel: staging.pixels(&counts),
            out: staging.table(&counts, own[0], steps.iter().copied()),
            rows: counts[0],
            row: counts[1..].iter().product(),
            base: (0..n).map(|i| choice[i] * own[i + 1]).sum(),
            step: steps[0],
            packed,
        }
    }

    /// Number of a strip's pixels in this phase.
    fn pixels(&self, images: usize, row: usize, rows: usize) -> usize {
        images * self.rows.min(row + rows).saturating_sub(row) * self.row
    }

    /// Offset in an image of the result of a strip that starts at pixel row `row`.
    fn at(&self, row: usize) -> usize {
        self.base + row * self.step
    }
}

impl StripConvolution for DirectForward {
    fn batch(&self) -> usize {
        self.staging.batch()
    }

    fn statistics(&self) -> Option<&BatchStatistics> {
        self.statistics.as_ref()
    }

    fn bytes(&self) -> [usize; 2] {
        [self.packed * 4, self.padded() * 4].map(|bytes| bytes.next_multiple_of(ALIGN))
    }

    fn bias(&self) -> Option<(Option<TileFn>, usize)> {
        self.bias.then_some((self.stored.widen, self.features))
    }

    fn is_packed(&self) -> bool {
        self.kernel.in_order
    }

    unsafe fn pack(&self, cx: &KernelContext<'_>, kernel: Ptr, packed: Ptr) {
        let mut blocks = Vec::new();
        for phase in &self.phases {
            for slice in 0..self.filter_slices() {
                blocks.extend(phase.blocks.iter().map(|block| (phase, slice, block)));
            }
        }
        let body = |i: usize| {
            let (phase, slice, block) = blocks[i];
            let to = packed.elem::<f32>(self.packed_at(phase, slice, block));
            // SAFETY: blocks are disjoint ranges of the packed filter.
            unsafe { self.pack_block(kernel.at(0), phase, slice, block, to) };
        };
        cx.team.run_with(blocks.len(), self.packed as f64 * 0.5, cx.flush, &body);
    }

    fn tasks(&self) -> (usize, f64) {
        let products: usize = self.phases.iter().map(|p| p.out.len() * p.taps.len()).sum();
        let work = (products * self.channels * self.features * self.staging.strips()) as f64 / 50.0;
        (self.staging.strips() * self.groups.len(), work)
    }

    fn block(&self, task: usize) -> Option<(OutputBlock, usize)> {
        // The pixels of a phase are not consecutive.
        let [phase] = &self.phases[..] else { return None };
        let strip = self.staging.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let block = OutputBlock {
            first: strip.image * self.image + phase.at(strip.row) + group[0].from,
            row: self.features,
            stride: self.features,
            rows: phase.pixels(strip.images, strip.row, strip.rows),
            columns: group.iter().map(|panel| panel.columns).sum(),
        };
        Some((block, self.stored.element))
    }

    unsafe fn task(&self, task: usize, to: &StripArrays) {
        // SAFETY: by the caller's promise.
        unsafe { self.strip(task, to) };
    }
}
