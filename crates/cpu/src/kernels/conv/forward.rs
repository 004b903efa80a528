//! `x: [B, …, C], kernel → y: [B, …', F]`, and the input's gradient, which is such a convolution of the cotangent.
//!
//! Along each dimension the output falls into phases that see the same taps: one where the input has no holes, as many
//! as the stride in the gradient of a convolution with strides. Each phase is a convolution without holes, so no zero
//! is multiplied. For each strip of pixels: products of `[pixels, taps · C]` and the packed kernel `[taps · C, F]`.
//!
//! Where the machine multiplies pairs of bf16, two channels are one: words of 32 bits that nothing here looks into.

use crate::kernel::convolution::is_forward;
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv::batch_statistics::Moments;
use crate::kernels::conv::microkernel::{Across, CHAIN, Out, Panel, TOGETHER, panels};
use crate::kernels::conv::operands::{Arrays, bias_rounding, is_paired};
use crate::kernels::conv::staging::{Ahead, Axis, FEWEST_TASKS, Stage, group, put, runs};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{Pairs, narrow, widen};
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use std::ops::Range;
use systole_compile::ALIGN;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// Output pixels of a strip.
const PIXELS: usize = 384;

pub struct Forward {
    stage: Stage,
    phases: Vec<Phase>,
    panels: Vec<Panel>,
    /// Panels that one task computes.
    groups: Vec<Range<usize>>,
    channels: usize,
    features: usize,
    bias: bool,
    /// Distance between images of the result, and how it is rounded where it is narrow.
    image: usize,
    element: usize,
    narrow: Option<TileFn>,
    /// How a bias is added to narrow results.
    round: Option<TileFn>,
    kernel: Weights,
    packed: usize,
    /// Gathers statistics of the result; where it is narrow, of what it was rounded to.
    moments: Option<Moments>,
    widen: Option<TileFn>,
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

/// How the kernel lies in memory.
pub(crate) struct Weights {
    pub channel: usize,
    pub feature: usize,
    element: usize,
    widen: Option<TileFn>,
    /// Of channels that are pairs: what makes such words, and how far apart its two lie.
    pairs: Option<(Pairs, usize)>,
    /// The kernel lies as it would be packed.
    in_order: bool,
}

/// A phase of one dimension: taps as (coordinate in the kernel, staged coordinate), pixels.
pub(crate) struct AxisPhase {
    pub taps: Vec<(usize, usize)>,
    pub count: usize,
}

/// One dimension's phases: a pixel is every `phases.len()`-th output.
pub(crate) fn axis(
    c: &Convolution,
    i: usize,
    size: usize,
    window: usize,
    out: usize,
) -> (Axis, Vec<AxisPhase>) {
    let (holes, stride, dilation) = (c.lhs_dilation[i], c.strides[i], c.rhs_dilation[i]);
    let common = (1..=holes.min(stride)).rev().find(|g| holes % g == 0 && stride % g == 0).unwrap_or(1);
    let (count, step) = (holes / common, stride / common);
    let taps_of = |phase: usize| -> Vec<(usize, i64)> {
        let at = |w: usize| (phase * stride + w * dilation) as i64 - c.padding[i][0];
        let meets = (0..window).filter(|&w| at(w).rem_euclid(holes as i64) == 0);
        let place = |w: usize| if c.reversal[i] { window - 1 - w } else { w };
        meets.map(|w| (place(w), at(w).div_euclid(holes as i64))).collect()
    };
    let all: Vec<Vec<(usize, i64)>> = (0..count).map(taps_of).collect();
    let places = || all.iter().flatten().map(|t| t.1);
    let (low, high) = (places().min().unwrap_or(0), places().max().unwrap_or(0));
    // Of an input of which every pixel sees one element, only those are staged.
    let (unit, step) = if low == high && count == 1 { (step, 1) } else { (1, step) };
    let reach = (high - low) as usize + 1;
    let axis = Axis { size, holes: 1, low, unit, step, reach, count: out.div_ceil(count) };
    let phase = |(p, taps): (usize, &Vec<(usize, i64)>)| AxisPhase {
        taps: taps.iter().map(|&(w, at)| (w, (at - low) as usize)).collect(),
        count: out.saturating_sub(p).div_ceil(count),
    };
    (axis, all.iter().enumerate().map(phase).collect())
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
        x: &TensorType,
        k: &TensorType,
        y: &TensorType,
        level: Level,
    ) -> Option<Forward> {
        let (d, n) = (&c.dims, c.dims.input_spatial.len());
        if !is_forward(c) {
            return None;
        }
        let paired = is_paired(level, x, k);
        let (words, vectors) = (in_words(x), level.vectors());
        let (x, products) = if paired { (&words, level) } else { (x, vectors) };
        let (channels, features) = (x.shape[n + 1], y.shape[n + 1]);
        let (axes, along): (Vec<Axis>, Vec<Vec<AxisPhase>>) =
            (0..n).map(|i| axis(c, i, x.shape[i + 1], k.shape[d.kernel_spatial[i]], y.shape[i + 1])).unzip();
        let stage = Stage::new(x, axes, PIXELS, k.elements(), vectors);
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
            let phase = Phase::new(&stage, &along, &choice, &spatial, y, packed);
            packed += phase.taps.len() * channels * padded;
            phases.push(phase);
        }
        let natural = phases[0].taps.iter().enumerate().all(|(t, at)| *at == t * channels * features);
        kernel.in_order = kernel.widen.is_none()
            && kernel.feature == 1
            && kernel.channel == features
            && (phases.len(), panels.len(), padded, stage.slices) == (1, 1, features, 1)
            && natural;
        let groups = group(panels.len(), FEWEST_TASKS.div_ceil(stage.strips()));
        Some(Forward {
            packed: if kernel.in_order { 0 } else { packed },
            image: y.elements() / y.shape[0],
            element: y.dtype.size(),
            narrow: narrow(y.dtype, vectors),
            round: bias_rounding(bias, y, vectors),
            stage,
            phases,
            panels,
            groups,
            channels,
            features,
            bias,
            kernel,
            moments: None,
            widen: widen(y.dtype, vectors),
        })
    }

    /// Two more results: the sums of each image's features, and of the squares of their distances from their means.
    /// For convolutions without holes in the input.
    pub fn with_moments(mut self, level: Level) -> Forward {
        let strips = self.stage.strips_of_image();
        let parts = strips.map(|s| self.phases[0].pixels(1, s.row, s.rows)).collect();
        self.moments = Some(Moments::new(self.features, parts, level));
        self
    }

    fn padded(&self) -> usize {
        self.panels.iter().map(|p| p.shape.columns).sum()
    }

    fn packed_bytes(&self) -> usize {
        (self.packed * 4).next_multiple_of(ALIGN)
    }

    fn bias_bytes(&self) -> usize {
        (self.padded() * 4).next_multiple_of(ALIGN)
    }

    /// Where the packed kernel of a block begins, for panels side by side of `products` rows each.
    fn packed_at(&self, phase: &Phase, slice: usize, block: &Block) -> usize {
        (phase.packed / self.padded() + slice * phase.taps.len() * self.stage.width + block.first)
            * self.padded()
    }

    /// Packs the kernel for one block of products.
    unsafe fn pack(&self, kernel: *const u8, phase: &Phase, slice: usize, block: &Block, to: *mut f32) {
        let width = self.stage.width;
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

    /// One task: some columns of one strip.
    unsafe fn strip(&self, task: usize, to: &Arrays) {
        let strip = self.stage.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let from = group[0].from;
        let columns: usize = group.iter().map(|p| p.columns).sum();
        let most = self.phases.iter().map(|p| p.out.len()).max().unwrap_or(0);
        // Sums of narrow results need working memory; it has its own tables of rows.
        let sums = if self.narrow.is_some() { most * columns * self.phases.len() } else { 0 };
        let local: Vec<usize> = if sums > 0 { (0..most).map(|p| p * columns).collect() } else { Vec::new() };
        let staged = self.stage.elements().next_multiple_of(16);
        let part = strip.row / self.stage.strip(0).rows;
        let measure = |c: *mut f32, rows: &[usize], from: usize, columns: usize| {
            let Some(m) = &self.moments else { return };
            let all = to.moments.elem(0);
            // SAFETY: rows of this task's part of the result; it leaves what belongs to these columns.
            unsafe { m.gather(strip.image, strip.images, part, c, rows, from, columns, all) };
        };
        let mut ahead = self.next(task + 1, group, to.x.at(0));
        with_scratch((staged + sums) * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            for slice in 0..self.stage.slices {
                // SAFETY: operands have the shapes of `new`, scratch is laid out as above, tasks write disjoint parts.
                unsafe {
                    let a = self.stage.load(to.x.at(0), strip, slice, scratch.cast()).cast::<f32>();
                    for (i, phase) in self.phases.iter().enumerate() {
                        let pixels = phase.pixels(strip.images, strip.row, strip.rows);
                        let at = strip.image * self.image + phase.at(strip.row);
                        for panel in group {
                            let (c, rows) = if self.narrow.is_some() {
                                (scratch.add(staged + i * most * columns + panel.from - from), &local)
                            } else {
                                (to.y.elem::<f32>(at + panel.from), &phase.out)
                            };
                            self.product(phase, slice, pixels, a, to, c, rows, panel, &mut ahead);
                            if self.narrow.is_none() && slice + 1 == self.stage.slices {
                                measure(c, rows, panel.from, panel.columns);
                            }
                        }
                    }
                }
            }
            let Some(narrow) = self.narrow else { return };
            for (i, phase) in self.phases.iter().enumerate() {
                let at = strip.image * self.image + phase.at(strip.row) + from;
                let pixels = phase.pixels(strip.images, strip.row, strip.rows);
                let sums = scratch.wrapping_add(staged + i * most * columns);
                // SAFETY: the rows of this task's part of the result.
                unsafe {
                    for p in 0..pixels {
                        let y = to.y.at((at + phase.out[p]) * self.element);
                        let row = sums.add(p * columns).cast::<u8>();
                        if let Some(round) = self.round {
                            let bias = to.bias.elem::<f32>(from).cast_const().cast();
                            round(row, row, bias, (&raw const columns).cast(), 1);
                        }
                        narrow(y, row, row, row, columns);
                        if let (Some(widen), Some(_)) = (self.widen, &self.moments) {
                            widen(row, y, y, y, columns);
                        }
                    }
                }
                measure(sums, &local, from, columns);
            }
        });
    }

    /// The input of the task that this thread does next, to be fetched while it works with `group`.
    fn next(&self, task: usize, group: &[Panel], x: *const u8) -> Ahead {
        let strip = task / self.groups.len();
        if strip >= self.stage.strips() {
            return Ahead::none();
        }
        let strip = self.stage.strip(strip);
        let of_phase = |p: &Phase| {
            let pixels = p.pixels(strip.images, strip.row, strip.rows);
            p.blocks.len() * group.iter().map(|panel| pixels.div_ceil(panel.shape.rows)).sum::<usize>()
        };
        let calls = self.stage.slices * self.phases.iter().map(of_phase).sum::<usize>();
        Ahead::new([self.stage.input_of(x, strip), (x, 0)], calls)
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
        ahead: &mut Ahead,
    ) {
        let last = phase.blocks.len() - 1;
        let shape = &panel.shape;
        for (i, block) in phase.blocks.iter().enumerate() {
            let ends = slice + 1 == self.stage.slices && i == last;
            let at = self.packed_at(phase, slice, block) + panel.from * block.products;
            let bias = from.bias.elem::<f32>(panel.from).cast_const();
            for (p, count) in pieces(pixels, shape.rows) {
                let t = Across {
                    a: a.wrapping_add(block.from),
                    rows: phase.pixel[p..].as_ptr(),
                    runs: phase.runs[block.runs.clone()].as_ptr(),
                    count: block.runs.len(),
                    length: block.length,
                    ahead: ahead.next(block.runs.len() * (block.length / TOGETHER)),
                    b: from.kernel.elem::<f32>(at),
                    out: Out {
                        c,
                        rows: rows[p..].as_ptr(),
                        columns: panel.columns,
                        add: slice + i > 0,
                        bias: if ends && self.bias && self.round.is_none() { bias } else { std::ptr::null() },
                    },
                };
                // SAFETY: tables stay inside the strip, its part of the result and the packed kernel.
                unsafe { (shape.across)(count, &t) };
            }
        }
    }
}

/// One phase for each dimension, in every combination.
pub(crate) fn choices(counts: &[usize]) -> Vec<SmallVec<[usize; 3]>> {
    let mut all = vec![SmallVec::new()];
    for &count in counts {
        let with = |c: &SmallVec<[usize; 3]>, p: usize| {
            let mut c = c.clone();
            c.push(p);
            c
        };
        all = all.iter().flat_map(|c| (0..count).map(move |p| with(c, p))).collect();
    }
    all
}

impl Phase {
    fn new(
        stage: &Stage,
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
        let (runs, length) = runs(stage, &places);
        Phase {
            blocks: Block::all(runs.len(), length),
            taps,
            runs,
            pixel: stage.pixels(&counts),
            out: stage.table(&counts, own[0], steps.iter().copied()),
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

impl Weights {
    pub(crate) fn new(c: &Convolution, k: &TensorType, level: Level) -> Weights {
        let own = k.shape.strides();
        Weights {
            channel: own[c.dims.kernel_input_feature],
            feature: own[c.dims.kernel_output_feature],
            element: k.dtype.size(),
            widen: widen(k.dtype, level),
            pairs: None,
            in_order: false,
        }
    }

    /// Of pairs of channels.
    fn paired(self, level: Level) -> Weights {
        Weights { channel: 2 * self.channel, pairs: Some((Pairs::new(level), self.channel)), ..self }
    }

    /// Copies elements from `at` on as numbers, or as words of pairs.
    #[inline(always)]
    unsafe fn put(&self, kernel: *const u8, at: usize, to: *mut f32, n: usize) {
        let from = |at: usize| kernel.wrapping_add(at * self.element);
        // SAFETY: by the caller's promise.
        unsafe {
            match &self.pairs {
                None => put(self.widen, from(at), to, n),
                Some((pairs, next)) => pairs.put(Some(from(at)), Some(from(at + next)), to, n),
            }
        }
    }

    /// Copies channels that lie together.
    #[inline(always)]
    unsafe fn put_channels(&self, kernel: *const u8, at: usize, to: *mut f32, n: usize) {
        let from = kernel.wrapping_add(at * self.element);
        // SAFETY: by the caller's promise; pairs that lie together are words.
        unsafe {
            match self.pairs {
                None => put(self.widen, from, to, n),
                Some(_) => std::ptr::copy_nonoverlapping(from, to.cast(), n * 4),
            }
        }
    }

    /// Packs `n` channels of `columns` features, rows `wide` apart, with zeros between.
    ///
    /// # Safety
    /// The kernel has those elements, and `to` room for `n` rows.
    pub(crate) unsafe fn pack(
        &self,
        kernel: *const u8,
        at: usize,
        n: usize,
        columns: usize,
        wide: usize,
        to: *mut f32,
    ) {
        // Channels of a block that is turned around in the first-level cache.
        const TURN: usize = 32;
        // A word for each channel or pair, and how far apart they lie where they follow each other.
        let together = if self.pairs.is_some() { 2 } else { 1 };
        // SAFETY: by the caller's promise.
        unsafe {
            if self.feature == 1 {
                for k in 0..n {
                    self.put(kernel, at + k * self.channel, to.add(k * wide), columns);
                }
            } else if self.channel == together {
                let mut turned = [[0f32; TURN]; 64];
                for (k0, count) in pieces(n, TURN) {
                    for (j, line) in turned[..columns].iter_mut().enumerate() {
                        let at = at + k0 * together + j * self.feature;
                        self.put_channels(kernel, at, line.as_mut_ptr(), count);
                    }
                    for k in 0..count {
                        let row = std::slice::from_raw_parts_mut(to.add((k0 + k) * wide), columns);
                        row.iter_mut().zip(&turned).for_each(|(to, line)| *to = line[k]);
                    }
                }
            } else {
                for k in 0..n {
                    for j in 0..columns {
                        let at = at + k * self.channel + j * self.feature;
                        self.put(kernel, at, to.add(k * wide + j), 1);
                    }
                }
            }
            if columns < wide {
                (0..n).for_each(|k| {
                    std::slice::from_raw_parts_mut(to.add(k * wide + columns), wide - columns).fill(0.0)
                });
            }
        }
    }
}

impl Forward {
    /// Packs the whole kernel.
    unsafe fn pack_all(&self, cx: &Cx<'_>, kernel: Ptr, packed: Ptr) {
        let mut blocks = Vec::new();
        for phase in &self.phases {
            for slice in 0..self.stage.slices {
                blocks.extend(phase.blocks.iter().map(|block| (phase, slice, block)));
            }
        }
        let body = |i: usize| {
            let (phase, slice, block) = blocks[i];
            let to = packed.elem::<f32>(self.packed_at(phase, slice, block));
            // SAFETY: blocks are disjoint parts of the packed kernel.
            unsafe { self.pack(kernel.at(0), phase, slice, block, to) };
        };
        cx.team.run_with(blocks.len(), self.packed as f64 * 0.5, cx.flush, &body);
    }
}

impl Kernel for Forward {
    fn scratch(&self) -> usize {
        let moments = self.moments.as_ref().map_or(0, |m| m.elements(self.stage.batch()));
        self.packed_bytes() + self.bias_bytes() + moments * 4
    }

    fn kept(&self, same: &[bool]) -> usize {
        if same[1] && !self.kernel.in_order { self.packed_bytes() } else { 0 }
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.pack_all(cx, Ptr::of(inputs[1]), Ptr(kept)) };
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch has room for the packed kernel.
        unsafe {
            if self.kernel.in_order {
                return self.run_kept(cx, io, io.inputs[1]);
            }
            self.pack_all(cx, Ptr::of(io.inputs[1]), Ptr(io.scratch));
            self.run_kept(cx, io, io.scratch)
        }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let parts = [self.packed_bytes(), self.bias_bytes()];
        let bias = self.bias.then_some((self.widen, self.features));
        // SAFETY: scratch has those parts.
        let arrays = unsafe { Arrays::new(io, kept, parts, bias) };
        // SAFETY: the kernel is packed; tasks write disjoint parts of the result.
        let body = |task: usize| unsafe { self.strip(task, &arrays) };
        let products: usize = self.phases.iter().map(|p| p.out.len() * p.taps.len()).sum();
        let tasks = self.stage.strips() * self.groups.len();
        let work = (products * self.channels * self.features * self.stage.strips()) as f64 / 50.0;
        cx.team.run_with(tasks, work, cx.flush, &body);
        if let Some(m) = &self.moments {
            // SAFETY: every strip has left its part; two more results have a value for each feature of each image.
            unsafe { m.write(self.stage.batch(), arrays.moments, io) };
        }
        Ok(())
    }
}
