//! `x: [B, …, C], kernel → y: [B, …', F]`, and the input's gradient, which is such a convolution of the cotangent.
//!
//! Along each dimension the output falls into phases that see the same taps: one where the input has no holes, as many
//! as the stride in the gradient of a convolution with strides. Each phase is a convolution without holes, so no zero
//! is multiplied. For each strip of pixels: products of `[pixels, taps · C]` and the packed kernel `[taps · C, F]`.
//!
//! Where the machine multiplies pairs of bf16, two channels are one: words of 32 bits that nothing here looks into.

use crate::kernel::Ptr;
use crate::kernel::convolution::is_forward;
use crate::kernel::{Cx, with_scratch};
use crate::kernels::conv::batch_statistics::BatchStatistics;
use crate::kernels::conv::microkernel::{Across, CHAIN, Out, Panel, TOGETHER, panels};
use crate::kernels::conv::operands::{Arrays, NO_LAYER, Stored, is_paired};
use crate::kernels::conv::phases::{AxisPhase, axis, choices};
use crate::kernels::conv::staging::{Axis, FEWEST_TASKS, Prefetch, Staging, Strip, group, runs};
use crate::kernels::conv::strips::Strips;
use crate::kernels::conv::weights::Weights;
use crate::select::Refusal;
use crate::simd::level::{Level, Target, TileFn};
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use std::ops::Range;
use systole_compile::ALIGN;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType};

/// Output pixels of a strip.
const PIXELS: usize = 384;

pub struct Forward {
    staging: Staging,
    phases: Vec<Phase>,
    panels: Vec<Panel>,
    /// Panels that one task computes.
    groups: Vec<Range<usize>>,
    channels: usize,
    features: usize,
    bias: bool,
    /// Distance between images of the result.
    image: usize,
    stored: Stored,
    kernel: Weights,
    packed: usize,
    /// Gathers statistics of the result; where it is narrow, of what it was rounded to.
    statistics: Option<BatchStatistics>,
}

/// Output positions that see the same taps.
struct Phase {
    /// Offset of each tap in the kernel.
    taps: Vec<usize>,
    runs: Vec<usize>,
    blocks: Vec<Block>,
    /// Offsets of the pixels of a whole strip, in the staged input and in the result.
    pixel: Vec<usize>,
    out: Vec<usize>,
    /// Pixels along the first dimension, and pixels for each of them.
    rows: usize,
    row: usize,
    /// Where the phase begins in the result, and the distance between its rows.
    base: usize,
    step: usize,
    /// Where its kernel lies among the packed ones.
    packed: usize,
}

/// Products that one accumulator sums: some whole runs, or a part of one.
struct Block {
    runs: Range<usize>,
    from: usize,
    length: usize,
    /// Products before this block, and in it.
    first: usize,
    products: usize,
}

/// An array whose pairs of channels are taken as one, if there are pairs.
fn in_words(x: &TensorType) -> TensorType {
    let mut dims = x.shape.to_vec();
    dims.iter_mut().next_back().into_iter().for_each(|channels| *channels /= 2);
    TensorType::new(DType::F32, dims)
}

impl Block {
    /// Cuts runs of one length into blocks of at most [`CHAIN`] products; one without products where there are none.
    fn all(runs: usize, length: usize) -> Vec<Block> {
        if runs == 0 {
            return vec![Block { runs: 0..0, from: 0, length: 0, first: 0, products: 0 }];
        }
        let together = (CHAIN / length).max(1);
        let mut blocks = Vec::new();
        for (at, n) in pieces(runs, together) {
            for (from, part) in pieces(length, CHAIN) {
                blocks.push(Block {
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

impl Forward {
    pub fn new(
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        target: Target,
    ) -> std::result::Result<Forward, Refusal> {
        let (d, n, level) = (&c.dims, c.dims.input_spatial.len(), target.level);
        if !is_forward(c) {
            return Err(NO_LAYER.into());
        }
        let paired = is_paired(level, x, k);
        let (words, vectors) = (in_words(x), level.vectors());
        let (x, products) = if paired { (&words, level) } else { (x, vectors) };
        let (channels, features) = (x.shape[n + 1], y.shape[n + 1]);
        let (axes, along): (Vec<Axis>, Vec<Vec<AxisPhase>>) =
            (0..n).map(|i| axis(c, i, x.shape[i + 1], k.shape[d.kernel_spatial[i]], y.shape[i + 1])).unzip();
        let staging = Staging::new(x, axes, PIXELS, k.elements(), vectors);
        let panels = panels(products, features);
        let own = k.shape.strides();
        let mut kernel = Weights::new(c, k, vectors);
        if paired {
            kernel = kernel.paired(vectors);
        }
        let spatial: SmallVec<[usize; 3]> = d.kernel_spatial.iter().map(|&s| own[s]).collect();
        let padded: usize = panels.iter().map(|p| p.shape.columns).sum();
        let (mut phases, mut packed) = (Vec::new(), 0);
        let counts: Vec<usize> = along.iter().map(Vec::len).collect();
        for choice in choices(&counts) {
            let phase = Phase::new(&staging, &along, &choice, &spatial, y, packed);
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
        Ok(Forward {
            packed: if kernel.in_order { 0 } else { packed },
            image: y.elements() / y.shape[0],
            stored: Stored::new(bias, y, vectors),
            staging,
            phases,
            panels,
            groups,
            channels,
            features,
            bias,
            kernel,
            statistics: None,
        })
    }

    /// Two more results: the sums of each image's features, and of the squares of their distances from their means.
    /// For convolutions without holes in the input.
    pub fn with_statistics(mut self, level: Level) -> Forward {
        let strips = self.staging.strips_of_image();
        let parts = strips.map(|s| self.phases[0].pixels(1, s.row, s.rows)).collect();
        self.statistics = Some(BatchStatistics::new(self.features, parts, level));
        self
    }

    fn padded(&self) -> usize {
        self.panels.iter().map(|p| p.shape.columns).sum()
    }

    /// Where the packed kernel of a block begins, for panels side by side of `products` rows each.
    fn packed_at(&self, phase: &Phase, slice: usize, block: &Block) -> usize {
        (phase.packed / self.padded() + slice * phase.taps.len() * self.staging.width + block.first)
            * self.padded()
    }

    /// Packs the kernel for one block of products.
    unsafe fn pack_block(&self, kernel: *const u8, phase: &Phase, slice: usize, block: &Block, to: *mut f32) {
        let width = self.staging.width;
        for panel in &self.panels {
            let columns = panel.shape.columns;
            let to = to.wrapping_add(panel.from * block.products);
            let mut k = 0;
            while k < block.products {
                // A piece of one tap's channels.
                let (tap, c) = ((block.first + k) / width, (block.first + k) % width);
                let n = (width - c).min(block.products - k);
                let at = phase.taps[tap]
                    + (slice * width + c) * self.kernel.channel
                    + panel.from * self.kernel.feature;
                // SAFETY: a piece of the kernel; the panel has room for all products of the block.
                unsafe { self.kernel.pack(kernel, at, n, panel.columns, columns, to.add(k * columns)) };
                k += n;
            }
        }
    }

    /// The sums of one task, which has columns `from` on of one strip: where narrow results are made of them, in working
    /// memory.
    unsafe fn strip(&self, task: usize, to: &Arrays) {
        let strip = self.staging.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let from = group[0].from;
        let columns: usize = group.iter().map(|p| p.columns).sum();
        let most = self.phases.iter().map(|p| p.out.len()).max().unwrap_or(0);
        let narrow = self.stored.narrow.is_some();
        // Sums in working memory have their own tables of rows.
        let sums = if narrow { most * columns * self.phases.len() } else { 0 };
        let local: Vec<usize> = if sums > 0 { (0..most).map(|p| p * columns).collect() } else { Vec::new() };
        let staged = self.staging.elements().next_multiple_of(16);
        let mut prefetch = self.next(task + 1, group, to.x.at(0));
        with_scratch((staged + sums) * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            let sums_of = |phase: usize| scratch.wrapping_add(staged + phase * most * columns);
            for slice in 0..self.staging.slices {
                let last = slice + 1 == self.staging.slices;
                // SAFETY: operands have the shapes of `new`, scratch is laid out as above, tasks write disjoint parts.
                unsafe {
                    let a = self.staging.load(to.x.at(0), strip, slice, scratch.cast()).cast::<f32>();
                    for (i, phase) in self.phases.iter().enumerate() {
                        let pixels = phase.pixels(strip.images, strip.row, strip.rows);
                        let at = strip.image * self.image + phase.at(strip.row);
                        for panel in group {
                            let (c, rows) = match narrow {
                                true => (sums_of(i).add(panel.from - from), &local),
                                false => (to.y.elem::<f32>(at + panel.from), &phase.out),
                            };
                            self.product(phase, slice, pixels, a, to, c, rows, panel, &mut prefetch);
                            if last && !narrow {
                                self.measure(strip, (c, rows), (panel.from, panel.columns), to);
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

    /// Stores the sums of one phase of a strip, of some columns, as narrow results.
    unsafe fn store(
        &self,
        phase: &Phase,
        strip: Strip,
        (sums, rows): (*mut f32, &[usize]),
        (from, columns): (usize, usize),
        to: &Arrays,
    ) {
        let at = strip.image * self.image + phase.at(strip.row) + from;
        let bias = to.bias.elem::<f32>(from);
        // SAFETY: the rows of this task's part of the result.
        unsafe {
            for p in 0..phase.pixels(strip.images, strip.row, strip.rows) {
                let y = to.y.at((at + phase.out[p]) * self.stored.element);
                self.stored.put(sums.add(p * columns), bias, y, columns, self.statistics.is_some());
            }
            self.measure(strip, (sums, rows), (from, columns), to);
        }
    }

    /// Leaves the statistics of a strip's pixels, of some columns.
    unsafe fn measure(
        &self,
        strip: Strip,
        (c, rows): (*mut f32, &[usize]),
        (from, columns): (usize, usize),
        to: &Arrays,
    ) {
        let Some(statistics) = &self.statistics else { return };
        let part = strip.row / self.staging.strip(0).rows;
        let all = to.statistics.elem(0);
        // SAFETY: rows of this task's part of the result; it leaves what belongs to these columns.
        unsafe { statistics.gather((strip.image, strip.images, part), (c, rows), (from, columns), all) };
    }

    /// The input of the task that this thread does next, to be fetched while it works with `group`.
    fn next(&self, task: usize, group: &[Panel], x: *const u8) -> Prefetch {
        let strip = task / self.groups.len();
        if strip >= self.staging.strips() {
            return Prefetch::none();
        }
        let strip = self.staging.strip(strip);
        let of_phase = |p: &Phase| {
            let pixels = p.pixels(strip.images, strip.row, strip.rows);
            p.blocks.len() * group.iter().map(|panel| pixels.div_ceil(panel.shape.rows)).sum::<usize>()
        };
        let calls = self.staging.slices * self.phases.iter().map(of_phase).sum::<usize>();
        Prefetch::new([self.staging.input_of(x, strip), (x, 0)], calls)
    }

    /// The products of one panel over one slice of the channels.
    #[allow(clippy::too_many_arguments)]
    unsafe fn product(
        &self,
        phase: &Phase,
        slice: usize,
        pixels: usize,
        a: *const f32,
        from: &Arrays,
        c: *mut f32,
        rows: &[usize],
        panel: &Panel,
        prefetch: &mut Prefetch,
    ) {
        let last = phase.blocks.len() - 1;
        let shape = &panel.shape;
        for (i, block) in phase.blocks.iter().enumerate() {
            let ends = slice + 1 == self.staging.slices && i == last;
            let at = self.packed_at(phase, slice, block) + panel.from * block.products;
            let bias = from.bias.elem::<f32>(panel.from).cast_const();
            for (p, count) in pieces(pixels, shape.rows) {
                let t = Across {
                    a: a.wrapping_add(block.from),
                    rows: phase.pixel[p..].as_ptr(),
                    runs: phase.runs[block.runs.clone()].as_ptr(),
                    count: block.runs.len(),
                    length: block.length,
                    ahead: prefetch.next(block.runs.len() * (block.length / TOGETHER)),
                    b: from.kernel.elem::<f32>(at),
                    out: Out {
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
                // SAFETY: tables stay inside the strip, its part of the result and the packed kernel.
                unsafe { (shape.across)(count, &t) };
            }
        }
    }
}

impl Phase {
    fn new(
        staging: &Staging,
        along: &[Vec<AxisPhase>],
        choice: &[usize],
        spatial: &[usize],
        y: &TensorType,
        packed: usize,
    ) -> Phase {
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
        let (runs, length) = runs(staging, &places);
        Phase {
            blocks: Block::all(runs.len(), length),
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

    /// How many pixels a strip has in this phase.
    fn pixels(&self, images: usize, row: usize, rows: usize) -> usize {
        images * self.rows.min(row + rows).saturating_sub(row) * self.row
    }

    /// Where a strip that begins at a row begins in an image of the result.
    fn at(&self, row: usize) -> usize {
        self.base + row * self.step
    }
}

impl Strips for Forward {
    fn staging(&self) -> &Staging {
        &self.staging
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

    unsafe fn pack(&self, cx: &Cx<'_>, kernel: Ptr, packed: Ptr) {
        let mut blocks = Vec::new();
        for phase in &self.phases {
            for slice in 0..self.staging.slices {
                blocks.extend(phase.blocks.iter().map(|block| (phase, slice, block)));
            }
        }
        let body = |i: usize| {
            let (phase, slice, block) = blocks[i];
            let to = packed.elem::<f32>(self.packed_at(phase, slice, block));
            // SAFETY: blocks are disjoint parts of the packed kernel.
            unsafe { self.pack_block(kernel.at(0), phase, slice, block, to) };
        };
        cx.team.run_with(blocks.len(), self.packed as f64 * 0.5, cx.flush, &body);
    }

    fn tasks(&self) -> (usize, f64) {
        let products: usize = self.phases.iter().map(|p| p.out.len() * p.taps.len()).sum();
        let work = (products * self.channels * self.features * self.staging.strips()) as f64 / 50.0;
        (self.staging.strips() * self.groups.len(), work)
    }

    unsafe fn task(&self, task: usize, to: &Arrays) {
        // SAFETY: by the caller's promise.
        unsafe { self.strip(task, to) };
    }
}
