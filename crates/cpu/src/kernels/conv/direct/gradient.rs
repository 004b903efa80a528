//! Direct filter gradient of a convolution: `x: [B, …, C], dy: [B, …', F] → dkernel: [taps, C, F]`.
//!
//! It accepts the form that autodiff creates. GEMMs `[C · taps, pixels] · [pixels, F]` run strip by strip of pixels. A
//! task has a part of the batch, a slice of channels and a group of feature panels; the partial sums of the parts are
//! added in a binary tree. All of this follows from shapes and the instruction set, so the number of threads changes no
//! bits.
//!
//! At the level with VDPBF16PS, a K step is two adjacent pixels of a line.

use crate::kernel::convolution::is_kernel_gradient;
use crate::kernel::partial_sums::{PartialSums, kernel_of_parts};
use crate::kernel::with_scratch;
use crate::kernels::conv::microkernel::{ColumnPanel, DownArgs, SLACK, TileDestination, UNROLL, panels};
use crate::kernels::conv::staging::phases::{gradient_axes, gradient_taps};
use crate::kernels::conv::staging::{FEWEST_TASKS, SoftwarePrefetch, Staging, group, put, runs};
use crate::kernels::conv::strips::strip_arrays::NO_GRADIENT;
use crate::select::SelectResult;
use crate::simd::level::{CompileTarget, Level, TileFn};
use crate::simd::loops::{InterleaveBf16, widen};
use crate::simd::ranges::pieces;
use std::ops::Range;
use systole_ir::op::Convolution;
use systole_ir::{DType, TensorType, ensure};

/// Pixels of a strip: just above 392, the pixels of 2, 8 or half an image with sides of 14, 7 or 28, the sizes that
/// halving common photos leads to. Strips are large because each one adds to all sums.
const PIXELS: usize = 400;
/// Maximum result rows (taps · C) for which copying panels of `dy` does not pay off. Panels are copied nevertheless if
/// pixels of `dy` are a multiple of `ALIAS` bytes apart: they would map to a few sets of L2.
const FEW_ROWS: usize = 256;
const ALIAS: usize = 2048;
/// Maximum number of partial sums, and maximum elements of all of them: 16 MiB.
const MOST_PARTS: usize = 16;
const MOST_SUMS: usize = 4 << 20;

/// Kernel of direct filter gradients.
pub struct DirectKernelGradient {
    staging: Staging,
    /// Offsets of runs of rows (M) in the staged input, the elements of a run, and the offset of each row of a slice in
    /// the result.
    runs: Vec<usize>,
    length: usize,
    out: Vec<usize>,
    /// Offsets of the pixels of a strip (K), and [`SLACK`] more entries.
    pixel: Vec<usize>,
    /// Pixels of a line of the last dimension, of a row of the first dimension, and of an image.
    line: usize,
    row: usize,
    image: usize,
    /// Builds words of two pixels. `None`: K steps are single pixels. The last pixel of an odd line is paired with a
    /// zero.
    pairs: Option<InterleaveBf16>,
    panels: Vec<ColumnPanel>,
    level: Level,
    groups: Vec<Range<usize>>,
    features: usize,
    parts: PartialSums,
    strips_per_part: usize,
    element: usize,
    /// Whether `dy` is read in place, if its type and the tile's width permit, instead of packed by panels.
    in_place: bool,
    widen: Option<TileFn>,
}

/// Returns the K steps of one accumulator, for panels of `columns` columns: normally a whole strip, because the sums
/// may be far away between two calls, and small tiles finish soon. But with AVX-512, tiles of few columns load more for
/// each multiply-add, and their B must stay in L1.
fn kc(level: Level, columns: usize) -> usize {
    if level.vectors() < Level::Avx512 || columns > 32 { PIXELS } else { 96 }
}

/// Returns the number of batch parts and of panel groups: enough tasks for the threads, at the minimum cost of adding
/// partial sums (each element is written and read twice) and of reading the input again for each group.
fn cut(staging: &Staging, size: usize, panels: usize) -> (usize, usize) {
    let most = (MOST_SUMS / size).clamp(1, MOST_PARTS).min(staging.strips());
    let staged = staging.input() as f64;
    let choices = (1..=most).map(|parts| {
        let groups = FEWEST_TASKS.div_ceil(parts * staging.slices).clamp(1, panels);
        let missing = FEWEST_TASKS.saturating_sub(parts * staging.slices * groups);
        let sums = if parts > 1 { 4.0 * (parts * size) as f64 } else { 0.0 };
        (missing, sums + (groups - 1) as f64 * staged, parts, groups)
    });
    let best = choices.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.map_or((1, 1), |(_, _, parts, groups)| (parts, groups))
}

impl DirectKernelGradient {
    /// Creates the direct filter-gradient kernel. `target.winograd` permits multiplying zeros by elements that the
    /// definition does not use.
    pub fn new(
        c: &Convolution,
        [x, dy, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<DirectKernelGradient> {
        ensure!(is_kernel_gradient(c), NO_GRADIENT.into());
        let n = c.dims.input_spatial.len();
        let (channels, features) = (x.shape[n + 1], dy.shape[n + 1]);
        // Strips cut the first dimension: if there is no other dimension, each pixel is a line.
        let (level, vectors) = (target.level, target.level.vectors());
        let line = if n > 1 { dy.shape[n] } else { 1 };
        // The word of an odd line's last pixel has an element of `x` that the definition does not use. It is multiplied
        // by zero, which changes the result if it is infinite or NaN.
        let paired = level == Level::Avx512Bf16
            && [x.dtype, dy.dtype] == [DType::BF16; 2]
            && n > 1
            && (target.winograd || line.is_multiple_of(2));
        let pairs = paired.then(|| InterleaveBf16::new(vectors));
        let mut staging = Staging::new(x, gradient_axes(c, x, dy, y), PIXELS, y.elements(), vectors);
        if let Some(pairs) = pairs {
            staging = staging.paired(pairs);
        }
        let (runs, length) = runs(&staging, &gradient_taps(c, y), staging.width);
        let counts = &dy.shape[1..=n];
        let mut pixel = if paired { staging.pairs(counts) } else { staging.pixels(counts) };
        pixel.extend([0; SLACK]);
        let size = y.elements();
        let out = (0..size / channels / features)
            .flat_map(|tap| (0..staging.width).map(move |c| (tap * channels + c) * features))
            .collect();
        let panels = panels(if paired { level } else { vectors }, features);
        let (parts, groups) = cut(&staging, size, panels.len());
        let strips_per_part = staging.strips().div_ceil(parts);
        let parts = staging.strips().div_ceil(strips_per_part);
        let groups = group(panels.len(), groups);
        Ok(DirectKernelGradient {
            runs,
            length,
            out,
            pixel,
            line,
            row: dy.shape[2..=n].iter().product(),
            image: dy.shape[1..=n].iter().product(),
            panels,
            level,
            groups,
            features,
            parts: PartialSums::new(parts, y, level),
            strips_per_part,
            element: dy.dtype.size(),
            in_place: size / features <= FEW_ROWS && !(features * 4).is_multiple_of(ALIAS),
            pairs,
            widen: widen(dy.dtype, vectors),
            staging,
        })
    }

    /// Runs one task: a group of panels by the rows of one slice of channels, over the strips of one part.
    unsafe fn task(&self, task: usize, x: *const u8, dy: *const u8, sums: *mut f32) {
        let (part, rest) = (task / self.per_part(), task % self.per_part());
        let (slice, group) =
            (rest / self.groups.len(), &self.panels[self.groups[rest % self.groups.len()].clone()]);
        let first = part * self.strips_per_part;
        let widest = group.iter().map(|p| p.shape.columns).max().unwrap_or(0);
        let staged = self.staging.elements().next_multiple_of(16);
        let packed = (self.pixel.len() - SLACK) * widest;
        let sums = sums.wrapping_add(part * self.parts.size + slice * self.staging.width * self.features);
        with_scratch((staged + packed) * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            let last = (first + self.strips_per_part).min(self.staging.strips());
            for i in first..last {
                let strip = self.staging.strip(i);
                let lines = strip.images * strip.rows * (self.row / self.line);
                let products = lines * self.products();
                let at = strip.image * self.image + strip.row * self.row;
                let next = (i + 1 < last).then(|| self.staging.strip(i + 1));
                let calls = group.len()
                    * products.div_ceil(kc(self.level, group[0].shape.columns))
                    * self.runs.len()
                    * self.length.div_ceil(group[0].shape.rows);
                let mut prefetch = SoftwarePrefetch::none();
                if let Some(next) = next {
                    let size = self.features * self.element;
                    let to = (next.image * self.image + next.row * self.row) * size;
                    let bytes = next.images * next.rows * self.row * size;
                    prefetch = SoftwarePrefetch::new(
                        [self.staging.input_of(x, next), (dy.wrapping_add(to), bytes)],
                        calls,
                    );
                }
                let add = i > first || self.parts.begin_with_result();
                // SAFETY: operands have the shapes of `new`, scratch has the layout above, tasks write disjoint sums.
                unsafe {
                    let a = self.staging.load(x, strip, slice, scratch.cast()).cast::<f32>();
                    for panel in group {
                        let b = self.right(dy, at, lines, panel, scratch.add(staged));
                        self.product(a, b, products, panel, sums, add, &mut prefetch);
                    }
                }
            }
        });
    }

    /// Number of K steps of a line of pixels.
    fn products(&self) -> usize {
        if self.pairs.is_some() { self.line.div_ceil(2) } else { self.line }
    }

    /// Returns address and row stride of B for some lines of pixels and one panel: `dy` itself if the microkernel can
    /// read it, otherwise a packed copy.
    unsafe fn right(
        &self,
        dy: *const u8,
        at: usize,
        lines: usize,
        p: &ColumnPanel,
        to: *mut f32,
    ) -> (*const f32, usize) {
        let wide = p.shape.columns;
        let from = dy.wrapping_add((at * self.features + p.from) * self.element);
        if self.widen.is_none() && (self.features == wide || self.in_place && p.columns == wide) {
            return (from.cast(), self.features);
        }
        let pixel = |i: usize| from.wrapping_add(i * self.features * self.element);
        for i in 0..lines * self.products() {
            // SAFETY: one pixel's columns, or those of two; the copy has room for all K steps.
            unsafe {
                let to = to.add(i * wide);
                match &self.pairs {
                    None => put(self.widen, pixel(i), to, p.columns),
                    Some(pairs) => {
                        let (line, i) = (i / self.products(), 2 * (i % self.products()));
                        let first = line * self.line + i;
                        let second = (i + 1 < self.line).then(|| pixel(first + 1));
                        pairs.put(Some(pixel(first)), second, to, p.columns);
                    }
                }
                std::slice::from_raw_parts_mut(to.add(p.columns), wide - p.columns).fill(0.0);
            }
        }
        (to.cast_const(), wide)
    }

    #[allow(clippy::too_many_arguments)]
    unsafe fn product(
        &self,
        a: *const f32,
        (b, b_row): (*const f32, usize),
        products: usize,
        panel: &ColumnPanel,
        sums: *mut f32,
        add: bool,
        prefetch: &mut SoftwarePrefetch,
    ) {
        for (from, count) in pieces(products, kc(self.level, panel.shape.columns)) {
            for (r, run) in self.runs.iter().enumerate() {
                for (i, rows) in pieces(self.length, panel.shape.rows) {
                    let t = DownArgs {
                        a: a.wrapping_add(run + i),
                        k_offsets: self.pixel[from..].as_ptr(),
                        count,
                        ahead: prefetch.next(count / UNROLL),
                        b: b.wrapping_add(from * b_row),
                        b_row,
                        out: TileDestination {
                            c: sums.wrapping_add(panel.from),
                            rows: self.out[r * self.length + i..].as_ptr(),
                            columns: panel.columns,
                            add: add || from > 0,
                            bias: std::ptr::null(),
                        },
                    };
                    // SAFETY: tables stay inside the strip and the sums of this task.
                    unsafe { (panel.shape.down)(rows, &t) };
                }
            }
        }
    }

    fn per_part(&self) -> usize {
        self.staging.slices * self.groups.len()
    }
}

kernel_of_parts!(DirectKernelGradient, |this| {
    let strips = this.staging.strips() as f64;
    strips * (this.pixel.len() * this.parts.size) as f64 / 50.0
});
