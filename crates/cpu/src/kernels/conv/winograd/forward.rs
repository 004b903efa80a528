//! Winograd forward convolution and input gradient: `x: [B, H, W, C], kernel: [3, 3, C, F] → y: [B, H', W', F]`.
//!
//! Each task transforms the input of one strip of tiles. Then, for a few panels of features at a time, it computes the
//! 16 GEMMs and transforms their results back while these are in cache.

use crate::kernel::convolution::{has_unit_steps, is_forward};
use crate::kernel::padded_input::offsets;
use crate::kernel::{KernelContext, OutputBlock, Ptr, with_scratch};
use crate::kernels::conv::microkernel::{AcrossArgs, ColumnPanel, KC, TileDestination, UNROLL, panels};
use crate::kernels::conv::staging::filter_packing::FilterLayout;
use crate::kernels::conv::staging::{FEWEST_TASKS, PixelStrip, SoftwarePrefetch, Staging, group};
use crate::kernels::conv::strips::StripConvolution;
use crate::kernels::conv::strips::batch_statistics::BatchStatistics;
use crate::kernels::conv::strips::strip_arrays::{NO_LAYER, ResultConversion, StripArrays};
use crate::kernels::conv::winograd::tiling::{
    APART, NO_GAIN, NO_WINDOW, WinogradCosts, WinogradSizes, axes, may_transform, padded,
};
use crate::select::SelectResult;
use crate::simd::level::{CompileTarget, Level, TileFn};
use crate::simd::narrow_bias::sum_rounding;
use crate::simd::pool_row::{PoolRowArgs, pool_row};
use crate::simd::ranges::pieces;
use crate::simd::winograd::{COMPONENTS, FilterTransforms, InputTiles, OutputTiles, WinogradTransforms};
use std::ops::Range;
use systole_compile::{ALIGN, MaxPoolArgmax, Relu};
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Tiles of a strip (M of the GEMMs), and features whose sums are transformed back together.
const TILES: usize = 64;
const TOGETHER_FEATURES: usize = 64;
const COSTS: WinogradCosts = WinogradCosts { channel: 290, feature: 300, strip: 4 };
/// Channels of the filter that one task transforms.
const PIECE: usize = 32;

/// Kernel of Winograd forward convolutions and input gradients.
pub struct WinogradForward {
    staging: Staging,
    /// Offsets of a strip's tiles in the staged input, and of its pixels in the result.
    tiles: Vec<usize>,
    pixels: Vec<usize>,
    /// Tiles across an image; height and width of the result in pixels.
    columns: usize,
    height: usize,
    width: usize,
    panels: Vec<ColumnPanel>,
    /// Panels that one task computes, and panels that are transformed back together.
    groups: Vec<Range<usize>>,
    together: usize,
    channels: usize,
    features: usize,
    /// Elements between transformed tiles, and between the arrays of their components; then the same for the results of
    /// the GEMMs.
    pitch: usize,
    component: usize,
    back_pitch: usize,
    back_component: usize,
    /// Row offsets of a register tile, in the transformed tiles and in the results of the GEMMs.
    rows: Vec<usize>,
    back_rows: Vec<usize>,
    bias: bool,
    stored: ResultConversion,
    /// Rounds the sums of narrow operands if they are pooled instead of stored.
    round_sums: Option<TileFn>,
    level: Level,
    kernel: FilterLayout,
    /// Offsets of the filter's nine taps, in the order of the input elements that they are multiplied by.
    taps: Vec<usize>,
    statistics: Option<BatchStatistics>,
    pooling: Option<WinogradPooling>,
    transforms: WinogradTransforms,
}

/// Fused 2×2 max pooling: each window is a tile. Maxima, and optionally argmax, are stored instead of the convolution's
/// result.
struct WinogradPooling {
    relu: Relu,
    /// Rows and columns of windows.
    rows: usize,
    columns: usize,
    row: TileFn,
    /// Rounds pixels to narrow values; if there is a bias, adds it and rounds again. `None`: operands are f32.
    round: Option<TileFn>,
}

/// Rejects layouts, windows and strides that these transforms do not support.
fn may_take(c: &Convolution, [x, k]: [&TensorType; 2], target: CompileTarget) -> SelectResult<()> {
    may_transform(target, [x, k])?;
    ensure!(is_forward(c), NO_LAYER.into());
    ensure!(has_unit_steps(c) && c.dims.kernel_spatial.iter().all(|&s| k.shape[s] == 3), NO_WINDOW.into());
    Ok(())
}

impl WinogradForward {
    /// Creates the kernel. Rejects convolutions that the direct kernel computes as fast, and unsupported attributes.
    pub fn new(
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<WinogradForward> {
        let level = target.level.vectors();
        may_take(c, [x, k], target)?;
        let (height, width) = (y.shape[1], y.shape[2]);
        let (channels, features) = (x.shape[3], y.shape[3]);
        let staging = Staging::new(x, axes(x, &c.padding, [height, width], 4), TILES, k.elements(), level);
        let (batch, strips) = (y.shape[0], staging.strips());
        if !COSTS.pays(&WinogradSizes { batch, pixels: [height, width], channels, features, strips }) {
            return Err(NO_GAIN.into());
        }
        let columns = width.div_ceil(2);
        let tiles = staging.pixels(&[height.div_ceil(2), columns]);
        let strip = staging.strip(0);
        let rows = height.min(2 * strip.rows);
        let image = height * width * features;
        let lines = [(strip.images, image), (rows, width * features), (width, features)];
        let panels = panels(level, features);
        let pitch = padded(channels);
        let together = (TOGETHER_FEATURES / panels[0].shape.columns).max(1);
        let back_pitch = panels.chunks(together).map(wide).max().unwrap_or(0);
        let most = panels.iter().map(|p| p.shape.rows).max().unwrap_or(0);
        let groups = group(panels.len(), FEWEST_TASKS.div_ceil(staging.strips()));
        Ok(WinogradForward {
            component: tiles.len() * pitch + APART,
            back_component: tiles.len() * back_pitch + APART,
            back_pitch,
            rows: (0..most).map(|i| i * pitch).collect(),
            back_rows: (0..most).map(|i| i * back_pitch).collect(),
            tiles,
            pixels: offsets(lines.into_iter()),
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
            stored: ResultConversion::new(bias, y, level),
            round_sums: sum_rounding(x.dtype, bias, level),
            level,
            kernel: FilterLayout::new(c, k, level),
            taps: taps(c, k),
            statistics: None,
            pooling: None,
            transforms: WinogradTransforms::of(level),
            staging,
        })
    }

    /// Adds two results for each image and feature: the sum, and the sum of squared deviations from the mean.
    pub fn with_statistics(mut self, target: CompileTarget) -> WinogradForward {
        let rows = |s: PixelStrip| self.rows(s.row, s.rows) * self.width;
        let parts = self.staging.strips_of_image().map(rows).collect();
        self.statistics = Some(BatchStatistics::new(self.features, parts, target.level.vectors()));
        self
    }

    /// Number of pixel rows of `rows` rows of tiles starting at row `row`.
    fn rows(&self, row: usize, rows: usize) -> usize {
        (2 * rows).min(self.height - 2 * row)
    }

    /// Number of features, with each panel rounded up to whole vectors.
    fn wide(&self) -> usize {
        self.panels.iter().map(|p| p.shape.columns).sum()
    }

    /// Elements between components of the transformed filter.
    fn kernel_component(&self) -> usize {
        self.channels * self.wide() + APART
    }

    /// Runs one task: a group of panels of one strip.
    unsafe fn strip(&self, task: usize, to: &StripArrays) {
        let strip = self.staging.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let count = strip.images * strip.rows * self.columns;
        let staged = self.staging.elements().next_multiple_of(16);
        // Pixels that are not stored directly need scratch: for a block of features if they are narrow, for all
        // features if they are pooled.
        let wide = match (&self.pooling, self.stored.narrow) {
            (Some(_), _) => self.features,
            (None, Some(_)) => self.back_pitch,
            (None, None) => 0,
        };
        let local: Vec<usize> =
            if wide > 0 { (0..self.pixels.len()).map(|p| p * wide).collect() } else { vec![] };
        let at = (strip.image * self.height + 2 * strip.row) * self.width * self.features;
        let mut prefetch = self.next(task + 1, group, count, to.x.at(0));
        let elements =
            staged + COMPONENTS * (self.component + self.back_component) + self.pixels.len() * wide;
        with_scratch(elements * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            let input = scratch.wrapping_add(staged);
            let back = input.wrapping_add(COMPONENTS * self.component);
            let sums = back.wrapping_add(COMPONENTS * self.back_component);
            // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint parts.
            unsafe {
                self.transform_input(strip, to.x.at(0), scratch, input);
                for panels in group.chunks(self.together) {
                    let from = panels[0].from;
                    let columns = panels.iter().map(|p| p.columns).sum();
                    self.products(panels, count, input, back, to.kernel.elem(0), &mut prefetch);
                    let (y, rows, pixel) = match (&self.pooling, wide) {
                        (Some(_), _) => (sums.add(from), &local, wide),
                        (None, 0) => (to.y.elem(at + from), &self.pixels, self.features),
                        (None, _) => (sums, &local, wide),
                    };
                    self.transform_back(strip, back, (y, pixel, wide > 0), (from, columns), to);
                    if self.pooling.is_none() {
                        self.store(strip, (y, rows), wide > 0, (from, columns), to);
                    }
                }
                if let Some(pooling) = &self.pooling {
                    self.pool_strip(pooling, strip, sums, to);
                }
            }
        });
    }

    /// Transforms the tiles of a strip, one slice of channels after another.
    unsafe fn transform_input(&self, strip: PixelStrip, x: *const u8, staged: *mut f32, input: *mut f32) {
        for slice in 0..self.staging.slices {
            // SAFETY: the caller's input has the strip; there is room for the staged strip and for all components.
            unsafe {
                (self.transforms.input)(&InputTiles {
                    from: self.staging.load(x, strip, slice, staged.cast()).cast(),
                    offsets: self.tiles.as_ptr(),
                    count: strip.images * strip.rows * self.columns,
                    row: self.staging.strides[0],
                    column: self.staging.strides[1],
                    channels: self.staging.width,
                    to: input.add(slice * self.staging.width),
                    pitch: self.pitch,
                    component: self.component,
                });
            }
        }
    }

    /// Transforms sums back to pixels at `y`, which are `pixel` elements apart. `alone`: `y` holds only this strip,
    /// otherwise the whole result.
    unsafe fn transform_back(
        &self,
        strip: PixelStrip,
        back: *const f32,
        (y, pixel, alone): (*mut f32, usize, bool),
        (from, columns): (usize, usize),
        to: &StripArrays,
    ) {
        let height = self.rows(strip.row, strip.rows);
        let lines = if alone { height } else { self.height };
        // SAFETY: the caller has the components of the strip's tiles, and room for its pixels.
        unsafe {
            (self.transforms.result)(&OutputTiles {
                from: back,
                pitch: self.back_pitch,
                component: self.back_component,
                images: strip.images,
                rows: strip.rows,
                columns: self.columns,
                height,
                width: self.width,
                to: y,
                image: lines * self.width * pixel,
                line: self.width * pixel,
                pixel,
                features: columns,
                bias: if self.adds_bias() { to.bias.elem(from) } else { std::ptr::null_mut() },
            });
        }
    }

    /// Rounds and stores a block of features of a strip's pixels if they are narrow, and gathers their statistics.
    unsafe fn store(
        &self,
        strip: PixelStrip,
        (sums, rows): (*mut f32, &[usize]),
        narrow: bool,
        (from, columns): (usize, usize),
        to: &StripArrays,
    ) {
        let at = (strip.image * self.height + 2 * strip.row) * self.width * self.features + from;
        let pixels = if narrow { strip.images * self.rows(strip.row, strip.rows) * self.width } else { 0 };
        // SAFETY: pixels of this task's part of the result.
        unsafe {
            if pixels > 0 {
                let y = (to.y.at(at * self.stored.element), &self.pixels[..pixels]);
                let bias = to.bias.elem::<f32>(from);
                self.stored.put((sums, &rows[..pixels]), bias, y, columns, self.statistics.is_some());
            }
            let Some(statistics) = &self.statistics else { return };
            let part = strip.row / self.staging.strip(0).rows;
            let all = to.statistics.elem(0);
            statistics.gather((strip.image, strip.images, part), (sums, rows), (from, columns), all);
        }
    }

    /// Whether the back transform adds the bias. Narrow sums are rounded before that, when they are stored or pooled.
    fn adds_bias(&self) -> bool {
        self.bias
            && self.stored.adds_bias_to_sums()
            && self.pooling.as_ref().is_none_or(|p| p.round.is_none())
    }

    /// Pools the pixels of a strip. The second result is the argmax.
    unsafe fn pool_strip(
        &self,
        pooling: &WinogradPooling,
        strip: PixelStrip,
        sums: *mut f32,
        to: &StripArrays,
    ) {
        let height = self.rows(strip.row, strip.rows);
        let (pixels, line) = (strip.images * height * self.width, self.width * self.features);
        // SAFETY: sums hold the strip's pixels; no other task writes the results of its windows.
        unsafe {
            if let Some(round) = pooling.round {
                let (bias, width) = (to.bias.at(0).cast_const(), (&raw const self.features).cast());
                round(sums.cast(), sums.cast(), bias, width, pixels);
            }
            for i in 0..strip.images {
                for r in 0..strip.rows.min(pooling.rows.saturating_sub(strip.row)) {
                    let row = (strip.image + i) * pooling.rows + strip.row + r;
                    let at = row * pooling.columns * self.features;
                    let windows = PoolRowArgs {
                        window: [2, 2],
                        step: 2 * self.features,
                        line,
                        channels: self.features,
                        relu: pooling.relu,
                        argmax: to.second.map_or(std::ptr::null_mut(), |p| p.at(at)),
                    };
                    let from = sums.add((i * height + 2 * r) * line).cast::<u8>();
                    let y = to.y.at(at * self.stored.element);
                    (pooling.row)(y, from, (&raw const windows).cast(), from, pooling.columns);
                }
            }
        }
    }

    /// Computes the 16 GEMMs of `count` tiles and a range of panels.
    unsafe fn products(
        &self,
        panels: &[ColumnPanel],
        count: usize,
        input: *const f32,
        to: *mut f32,
        kernel: *const f32,
        prefetch: &mut SoftwarePrefetch,
    ) {
        let run = 0;
        for p in 0..COMPONENTS {
            for panel in panels {
                let (wide, at) = (panel.shape.columns, panel.from - panels[0].from);
                for (first, length) in pieces(self.channels, KC) {
                    let b = p * self.kernel_component() + panel.from * self.channels + first * wide;
                    for (tile, rows) in pieces(count, panel.shape.rows) {
                        let t = AcrossArgs {
                            a: input.wrapping_add(p * self.component + tile * self.pitch + first),
                            rows: self.rows.as_ptr(),
                            runs: &run,
                            count: 1,
                            length,
                            ahead: prefetch.next(length / UNROLL),
                            b: kernel.wrapping_add(b),
                            out: TileDestination {
                                c: to.wrapping_add(p * self.back_component + tile * self.back_pitch + at),
                                rows: self.back_rows.as_ptr(),
                                columns: wide,
                                add: first > 0,
                                bias: std::ptr::null(),
                            },
                        };
                        // SAFETY: tables stay inside the transformed strip and filter.
                        unsafe { (panel.shape.across)(rows, &t) };
                    }
                }
            }
        }
    }

    /// Returns the prefetch of the input of task `task`, this thread's next one, while it computes `group`.
    fn next(&self, task: usize, group: &[ColumnPanel], count: usize, x: *const u8) -> SoftwarePrefetch {
        let strip = task / self.groups.len();
        if strip >= self.staging.strips() {
            return SoftwarePrefetch::none();
        }
        let tiles = group.iter().map(|p| count.div_ceil(p.shape.rows)).sum::<usize>();
        let calls = COMPONENTS * self.channels.div_ceil(KC) * tiles;
        SoftwarePrefetch::new([self.staging.input_of(x, self.staging.strip(strip)), (x, 0)], calls)
    }
}

/// Returns the offsets of the filter's nine taps, in the order of the input elements that they are multiplied by.
fn taps(c: &Convolution, k: &TensorType) -> Vec<usize> {
    let own = k.shape.strides();
    let tap = |d: usize, t: usize| (if c.reversal[d] { 2 - t } else { t }) * own[c.dims.kernel_spatial[d]];
    (0..9).map(|t| tap(0, t / 3) + tap(1, t % 3)).collect()
}

/// Number of columns of a range of panels, in whole vectors.
fn wide(panels: &[ColumnPanel]) -> usize {
    panels.iter().map(|p| p.shape.columns).sum()
}

impl StripConvolution for WinogradForward {
    fn batch(&self) -> usize {
        self.staging.batch()
    }

    fn statistics(&self) -> Option<&BatchStatistics> {
        self.statistics.as_ref()
    }

    fn bytes(&self) -> [usize; 2] {
        [COMPONENTS * self.kernel_component(), self.wide()].map(|n| (n * 4).next_multiple_of(ALIGN))
    }

    fn bias(&self) -> Option<(Option<TileFn>, usize)> {
        self.bias.then_some((self.stored.widen, self.features))
    }

    // Packs and transforms the filter. Each task handles one panel and a piece of its channels.
    unsafe fn pack(&self, cx: &KernelContext<'_>, kernel: Ptr, packed: Ptr) {
        let cuts: Vec<(usize, usize)> = pieces(self.channels, PIECE).collect();
        let body = |task: usize| {
            let (panel, (first, n)) = (&self.panels[task / cuts.len()], cuts[task % cuts.len()]);
            let wide = panel.shape.columns;
            let at = panel.from * self.channels + first * wide;
            with_scratch(9 * n * wide * 4, |scratch| {
                let scratch = scratch.cast::<f32>();
                // SAFETY: pieces of the filter; scratch holds them, and the packed filter has components for them.
                unsafe {
                    for (t, tap) in self.taps.iter().enumerate() {
                        let from = tap + first * self.kernel.channel + panel.from * self.kernel.feature;
                        let to = scratch.add(t * n * wide);
                        self.kernel.pack(kernel.at(0), from, n, panel.columns, wide, to);
                    }
                    (self.transforms.kernel)(&FilterTransforms {
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

    fn tasks(&self) -> (usize, f64) {
        let products = COMPONENTS * self.tiles.len() * self.staging.strips();
        let work = (products * self.channels * self.features) as f64 / 50.0;
        (self.staging.strips() * self.groups.len(), work)
    }

    fn block(&self, task: usize) -> Option<(OutputBlock, usize)> {
        if self.pooling.is_some() {
            return None;
        }
        let strip = self.staging.strip(task / self.groups.len());
        let group = &self.panels[self.groups[task % self.groups.len()].clone()];
        let block = OutputBlock {
            first: (strip.image * self.height + 2 * strip.row) * self.width * self.features + group[0].from,
            row: self.features,
            stride: self.features,
            rows: strip.images * self.rows(strip.row, strip.rows) * self.width,
            columns: group.iter().map(|panel| panel.columns).sum(),
        };
        Some((block, self.stored.element))
    }

    unsafe fn task(&self, task: usize, to: &StripArrays) {
        // SAFETY: by the caller's promise.
        unsafe { self.strip(task, to) };
    }

    fn pool(&mut self, pool: &MaxPoolArgmax, y: &TensorType) -> bool {
        // Each window must be a tile.
        if pool.window != [2, 2] || pool.strides != [2, 2] {
            return false;
        }
        let Some(row) = pool_row(DType::F32, y.dtype, self.level) else { return false };
        // Windows are pooled with all features of their pixels.
        self.groups = group(self.panels.len(), 1);
        let round = self.round_sums;
        self.pooling =
            Some(WinogradPooling { relu: pool.relu, rows: y.shape[1], columns: y.shape[2], row, round });
        true
    }
}
