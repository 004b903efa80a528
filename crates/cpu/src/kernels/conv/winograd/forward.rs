//! `x: [B, H, W, C], kernel [3, 3, C, F] → y: [B, H', W', F]`, and the input's gradient.
//!
//! A strip of tiles at a time: its input is transformed, and for a few panels of features after the other 16 products
//! are taken and transformed back while they are near.

use crate::kernel::convolution::{has_unit_steps, is_forward};
use crate::kernel::padded::offsets;
use crate::kernel::{Cx, with_scratch};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv::batch_statistics::Moments;
use crate::kernels::conv::forward::Weights;
use crate::kernels::conv::microkernel::{Across, CHAIN, Out, Panel, TOGETHER, panels};
use crate::kernels::conv::operands::{Arrays, bias_rounding};
use crate::kernels::conv::staging::{Ahead, FEWEST_TASKS, Stage, Strip, group};
use crate::kernels::conv::winograd::tiling::{APART, Costs, Sizes, axes, padded};
use crate::simd::level::{Level, TileFn};
use crate::simd::loops::{narrow, widen};
use crate::simd::narrow_bias::sum_rounding;
use crate::simd::pool_row::{Row, pool_row};
use crate::simd::ranges::pieces;
use crate::simd::winograd::{COMPONENTS, Pixels, Tiles, Transforms, Window};
use std::ops::Range;
use systole_compile::{ALIGN, Pool, Relu};
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// Tiles of a strip, and features whose products wait to be transformed back.
const TILES: usize = 64;
const TOGETHER_FEATURES: usize = 64;
const COSTS: Costs = Costs { channel: 290, feature: 300, strip: 4 };
/// Channels whose kernel is transformed at once.
const PIECE: usize = 32;

pub struct Forward {
    stage: Stage,
    /// Offsets of a strip's tiles in the staged input, and of its pixels in the result.
    tiles: Vec<usize>,
    pixels: Vec<usize>,
    /// Tiles across an image; pixels of one along both dimensions.
    columns: usize,
    height: usize,
    width: usize,
    panels: Vec<Panel>,
    /// Panels that one task computes, and how many of them together.
    groups: Vec<Range<usize>>,
    together: usize,
    channels: usize,
    features: usize,
    /// Distances between transformed tiles and between arrays of their components, and the same of their products.
    pitch: usize,
    component: usize,
    back_pitch: usize,
    back_component: usize,
    /// Rows of a register kernel's tile in both.
    rows: Vec<usize>,
    back_rows: Vec<usize>,
    bias: bool,
    element: usize,
    narrow: Option<TileFn>,
    /// How a bias is added to narrow results.
    round: Option<TileFn>,
    /// How sums of narrow operands are rounded where they are not stored.
    round_sums: Option<TileFn>,
    widen: Option<TileFn>,
    level: Level,
    kernel: Weights,
    /// Offsets of the window's elements in the kernel, as the input meets them.
    taps: Vec<usize>,
    moments: Option<Moments>,
    pooling: Option<Pooling>,
    transforms: Transforms,
}

/// Max pooling of 2 by 2, of which each window is a tile: instead of the convolution's result come its maxima and
/// perhaps argmax.
struct Pooling {
    relu: Relu,
    /// Rows and columns of windows.
    rows: usize,
    columns: usize,
    row: TileFn,
    /// Rounds pixels to what the operand's type holds, adds the bias and rounds again.
    round: Option<TileFn>,
}

impl Forward {
    /// `None` where the definition is as fast or other attributes ask for it.
    pub fn new(
        c: &Convolution,
        bias: bool,
        x: &TensorType,
        k: &TensorType,
        y: &TensorType,
        level: Level,
    ) -> Option<Forward> {
        let window = |&s: &usize| k.shape[s] == 3;
        if !has_unit_steps(c) || !is_forward(c) || !c.dims.kernel_spatial.iter().all(window) {
            return None;
        }
        let (height, width) = (y.shape[1], y.shape[2]);
        let (channels, features) = (x.shape[3], y.shape[3]);
        let stage = Stage::new(x, axes(x, &c.padding, [height, width], 4), TILES, k.elements(), level);
        let (batch, strips) = (y.shape[0], stage.strips());
        if !COSTS.pays(&Sizes { batch, pixels: [height, width], channels, features, strips }) {
            return None;
        }
        let columns = width.div_ceil(2);
        let tiles = stage.pixels(&[height.div_ceil(2), columns]);
        let strips = stage.strip(0);
        let rows = height.min(2 * strips.rows);
        let pixels = offsets(
            [(strips.images, height * width * features), (rows, width * features), (width, features)]
                .into_iter(),
        );
        let panels = panels(level, features);
        let own = k.shape.strides();
        let tap =
            |d: usize, t: usize| (if c.reversal[d] { 2 - t } else { t }) * own[c.dims.kernel_spatial[d]];
        let taps = (0..9).map(|t| tap(0, t / 3) + tap(1, t % 3)).collect();
        let pitch = padded(channels);
        let together = (TOGETHER_FEATURES / panels[0].shape.columns).max(1);
        let back_pitch = panels.chunks(together).map(wide).max().unwrap_or(0);
        let most = panels.iter().map(|p| p.shape.rows).max().unwrap_or(0);
        let groups = group(panels.len(), FEWEST_TASKS.div_ceil(stage.strips()));
        Some(Forward {
            component: tiles.len() * pitch + APART,
            back_component: tiles.len() * back_pitch + APART,
            back_pitch,
            rows: (0..most).map(|i| i * pitch).collect(),
            back_rows: (0..most).map(|i| i * back_pitch).collect(),
            tiles,
            pixels,
            columns,
            height,
            width,
            together,
            panels,
            groups,
            channels,
            features,
            pitch,
            bias,
            element: y.dtype.size(),
            narrow: narrow(y.dtype, level),
            round: bias_rounding(bias, y, level),
            round_sums: sum_rounding(x.dtype, bias, level),
            widen: widen(y.dtype, level),
            level,
            kernel: Weights::new(c, k, level),
            taps,
            moments: None,
            pooling: None,
            transforms: Transforms::of(level),
            stage,
        })
    }

    /// Two more results: the sums of each image's features, and of the squares of their distances from their means.
    pub fn with_moments(mut self, level: Level) -> Forward {
        let rows = |s: Strip| self.rows(s.row, s.rows) * self.width;
        let parts = self.stage.strips_of_image().map(rows).collect();
        self.moments = Some(Moments::new(self.features, parts, level));
        self
    }

    /// Rows of pixels of some rows of tiles.
    fn rows(&self, row: usize, rows: usize) -> usize {
        (2 * rows).min(self.height - 2 * row)
    }

    /// Features in whole vectors.
    fn wide(&self) -> usize {
        self.panels.iter().map(|p| p.shape.columns).sum()
    }

    /// Distance between components of the transformed kernel.
    fn kernel_component(&self) -> usize {
        self.channels * self.wide() + APART
    }

    fn packed_bytes(&self) -> usize {
        (COMPONENTS * self.kernel_component() * 4).next_multiple_of(ALIGN)
    }

    fn bias_bytes(&self) -> usize {
        (self.wide() * 4).next_multiple_of(ALIGN)
    }

    /// Transforms the kernel and packs it, panel by panel.
    unsafe fn pack(&self, cx: &Cx<'_>, kernel: Ptr, packed: Ptr) {
        let cuts: Vec<(usize, usize)> = pieces(self.channels, PIECE).collect();
        let body = |task: usize| {
            let (panel, (first, n)) = (&self.panels[task / cuts.len()], cuts[task % cuts.len()]);
            let wide = panel.shape.columns;
            let at = panel.from * self.channels + first * wide;
            with_scratch(9 * n * wide * 4, |scratch| {
                let scratch = scratch.cast::<f32>();
                // SAFETY: pieces of the kernel; scratch holds them, the packed kernel has components for them.
                unsafe {
                    for (t, tap) in self.taps.iter().enumerate() {
                        let from = tap + first * self.kernel.channel + panel.from * self.kernel.feature;
                        let to = scratch.add(t * n * wide);
                        self.kernel.pack(kernel.at(0), from, n, panel.columns, wide, to);
                    }
                    (self.transforms.kernel)(&Window {
                        taps: scratch,
                        tap: n * wide,
                        row: 0,
                        components: packed.elem::<f32>(at),
                        component: self.kernel_component(),
                        wide: 0,
                        rows: 1,
                        elements: n * wide,
                        add: false,
                    });
                }
            });
        };
        let work = (self.channels * self.wide()) as f64 * 3.0;
        cx.team.run_with(self.panels.len() * cuts.len(), work, cx.flush, &body);
    }

    /// One task: some features of one strip.
    unsafe fn strip(&self, task: usize, to: &Arrays, argmax: Option<Ptr>) {
        let strip = self.stage.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let count = strip.images * strip.rows * self.columns;
        let staged = self.stage.elements().next_multiple_of(16);
        // Sums that are not the result yet need working memory: some features of all pixels, or all of them.
        let wide = match (&self.pooling, self.narrow) {
            (Some(_), _) => self.features,
            (None, Some(_)) => self.back_pitch,
            (None, None) => 0,
        };
        let local: Vec<usize> =
            if wide > 0 { (0..self.pixels.len()).map(|p| p * wide).collect() } else { vec![] };
        let height = self.rows(strip.row, strip.rows);
        let part = strip.row / self.stage.strip(0).rows;
        let at = (strip.image * self.height + 2 * strip.row) * self.width * self.features;
        let mut ahead = self.next(task + 1, group, count, to.x.at(0));
        let elements =
            staged + COMPONENTS * (self.component + self.back_component) + self.pixels.len() * wide;
        with_scratch(elements * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            let input = scratch.wrapping_add(staged);
            let back = input.wrapping_add(COMPONENTS * self.component);
            let sums = back.wrapping_add(COMPONENTS * self.back_component);
            // SAFETY: operands have the shapes of `new`, scratch is laid out as above, tasks write disjoint parts.
            unsafe {
                for slice in 0..self.stage.slices {
                    (self.transforms.input)(&Tiles {
                        from: self.stage.load(to.x.at(0), strip, slice, scratch.cast()).cast(),
                        offsets: self.tiles.as_ptr(),
                        count,
                        row: self.stage.strides[0],
                        column: self.stage.strides[1],
                        channels: self.stage.width,
                        to: input.add(slice * self.stage.width),
                        pitch: self.pitch,
                        component: self.component,
                    });
                }
                for panels in group.chunks(self.together) {
                    let from = panels[0].from;
                    let columns = panels.iter().map(|p| p.columns).sum();
                    self.products(panels, count, input, back, to.kernel.elem(0), &mut ahead);
                    let (y, rows, pixel, line) = match (&self.pooling, wide) {
                        (Some(_), _) => (sums.add(from), &local, wide, height),
                        (None, 0) => (to.y.elem(at + from), &self.pixels, self.features, self.height),
                        (None, _) => (sums, &local, wide, height),
                    };
                    (self.transforms.result)(&Pixels {
                        from: back,
                        pitch: self.back_pitch,
                        component: self.back_component,
                        images: strip.images,
                        rows: strip.rows,
                        columns: self.columns,
                        height,
                        width: self.width,
                        to: y,
                        image: line * self.width * pixel,
                        line: self.width * pixel,
                        pixel,
                        features: columns,
                        bias: if self.adds_bias() { to.bias.elem(from) } else { std::ptr::null_mut() },
                    });
                    if self.pooling.is_some() {
                        continue;
                    }
                    if let Some(narrow) = self.narrow {
                        for p in 0..strip.images * height * self.width {
                            let y = to.y.at((at + self.pixels[p] + from) * self.element);
                            let row = sums.add(p * wide).cast::<u8>();
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
                    if let Some(m) = &self.moments {
                        let all = to.moments.elem(0);
                        m.gather(strip.image, strip.images, part, y, rows, from, columns, all);
                    }
                }
                if let Some(pooling) = &self.pooling {
                    self.pool(pooling, strip, height, sums, to, argmax);
                }
            }
        });
    }

    /// Whether a bias is added to sums as they are transformed back. Narrow ones are rounded before they are pooled.
    fn adds_bias(&self) -> bool {
        self.bias && self.round.is_none() && self.pooling.as_ref().is_none_or(|p| p.round.is_none())
    }

    /// Pools the pixels of a strip; `argmax`: where the number of each window's greatest element goes.
    unsafe fn pool(
        &self,
        pooling: &Pooling,
        strip: Strip,
        height: usize,
        sums: *mut f32,
        to: &Arrays,
        argmax: Option<Ptr>,
    ) {
        let (pixels, line) = (strip.images * height * self.width, self.width * self.features);
        // SAFETY: sums hold the strip's pixels; its windows' results are this task's alone.
        unsafe {
            if let Some(round) = pooling.round {
                let (bias, width) = (to.bias.at(0).cast_const(), (&raw const self.features).cast());
                round(sums.cast(), sums.cast(), bias, width, pixels);
            }
            for i in 0..strip.images {
                for r in 0..strip.rows.min(pooling.rows.saturating_sub(strip.row)) {
                    let row = (strip.image + i) * pooling.rows + strip.row + r;
                    let at = row * pooling.columns * self.features;
                    let windows = Row {
                        window: [2, 2],
                        step: 2 * self.features,
                        line,
                        channels: self.features,
                        relu: pooling.relu,
                        argmax: argmax.map_or(std::ptr::null_mut(), |p| p.at(at)),
                    };
                    let from = sums.add((i * height + 2 * r) * line).cast::<u8>();
                    let y = to.y.at(at * self.element);
                    (pooling.row)(y, from, (&raw const windows).cast(), from, pooling.columns);
                }
            }
        }
    }

    /// The 16 products of `count` tiles and some panels.
    unsafe fn products(
        &self,
        panels: &[Panel],
        count: usize,
        input: *const f32,
        to: *mut f32,
        kernel: *const f32,
        ahead: &mut Ahead,
    ) {
        let run = 0;
        for p in 0..COMPONENTS {
            for panel in panels {
                let (wide, at) = (panel.shape.columns, panel.from - panels[0].from);
                for (first, length) in pieces(self.channels, CHAIN) {
                    let b = p * self.kernel_component() + panel.from * self.channels + first * wide;
                    for (tile, rows) in pieces(count, panel.shape.rows) {
                        let t = Across {
                            a: input.wrapping_add(p * self.component + tile * self.pitch + first),
                            rows: self.rows.as_ptr(),
                            runs: &run,
                            count: 1,
                            length,
                            ahead: ahead.next(length / TOGETHER),
                            b: kernel.wrapping_add(b),
                            out: Out {
                                c: to.wrapping_add(p * self.back_component + tile * self.back_pitch + at),
                                rows: self.back_rows.as_ptr(),
                                columns: wide,
                                add: first > 0,
                                bias: std::ptr::null(),
                            },
                        };
                        // SAFETY: tables stay inside the transformed strip and kernel.
                        unsafe { (panel.shape.across)(rows, &t) };
                    }
                }
            }
        }
    }

    /// The input of the task that this thread does next, to be fetched while it works with `group`.
    fn next(&self, task: usize, group: &[Panel], count: usize, x: *const u8) -> Ahead {
        let strip = task / self.groups.len();
        if strip >= self.stage.strips() {
            return Ahead::none();
        }
        let tiles = group.iter().map(|p| count.div_ceil(p.shape.rows)).sum::<usize>();
        let calls = COMPONENTS * self.channels.div_ceil(CHAIN) * tiles;
        Ahead::new([self.stage.input_of(x, self.stage.strip(strip)), (x, 0)], calls)
    }
}

/// Columns of some panels, in whole vectors.
fn wide(panels: &[Panel]) -> usize {
    panels.iter().map(|p| p.shape.columns).sum()
}

impl Kernel for Forward {
    fn pool_result(&mut self, pool: &Pool, y: &TensorType) -> bool {
        // Each window must be a tile.
        if pool.window != [2, 2] || pool.strides != [2, 2] {
            return false;
        }
        let Some(row) = pool_row(DType::F32, y.dtype, self.level) else { return false };
        // Whole pixels are pooled.
        self.groups = group(self.panels.len(), 1);
        let round = self.round_sums;
        self.pooling = Some(Pooling { relu: pool.relu, rows: y.shape[1], columns: y.shape[2], row, round });
        true
    }

    fn scratch(&self) -> usize {
        let moments = self.moments.as_ref().map_or(0, |m| m.elements(self.stage.batch()));
        self.packed_bytes() + self.bias_bytes() + moments * 4
    }

    fn kept(&self, same: &[bool]) -> usize {
        if same[1] { self.packed_bytes() } else { 0 }
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe { self.pack(cx, Ptr::of(inputs[1]), Ptr(kept)) };
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: scratch has room for the transformed kernel.
        unsafe {
            self.pack(cx, Ptr::of(io.inputs[1]), Ptr(io.scratch));
            self.run_kept(cx, io, io.scratch)
        }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let parts = [self.packed_bytes(), self.bias_bytes()];
        let bias = self.bias.then_some((self.widen, self.features));
        // SAFETY: scratch has those parts.
        let arrays = unsafe { Arrays::new(io, kept, parts, bias) };
        let argmax = io.outputs.get(1).filter(|_| self.pooling.is_some()).map(|&p| Ptr(p));
        // SAFETY: the kernel is transformed; tasks write disjoint parts of the result.
        let body = |task: usize| unsafe { self.strip(task, &arrays, argmax) };
        let tasks = self.stage.strips() * self.groups.len();
        let products = COMPONENTS * self.tiles.len() * self.stage.strips();
        let work = (products * self.channels * self.features) as f64 / 50.0;
        cx.team.run_with(tasks, work, cx.flush, &body);
        if let Some(m) = &self.moments {
            // SAFETY: every strip has left its part; two more results have a value for each feature of each image.
            unsafe { m.write(self.stage.batch(), arrays.moments, io) };
        }
        Ok(())
    }
}
