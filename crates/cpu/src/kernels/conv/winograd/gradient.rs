//! Winograd filter gradient: `x: [B, H, W, C], dy: [B, H', W', F] → dkernel: [3, 3, C, F]`.
//!
//! It accepts the form that autodiff creates. Each of the 16 components is a GEMM `[C, tiles] · [tiles, F]`, summed
//! strip by strip and transformed back once at the end of a task. A task has a part of the batch, a slice of channels
//! and a slice of features; the partial sums of the parts are added in a binary tree. All of this follows from shapes
//! and the instruction set, so the number of threads changes no bits.

use crate::kernel::convolution::{has_unit_steps, is_kernel_gradient};
use crate::kernel::partial_sums::{PartialSums, kernel_of_parts};
use crate::kernel::with_scratch;
use crate::kernels::conv::microkernel::{ColumnPanel, DownArgs, SLACK, TileDestination, UNROLL, panels};
use crate::kernels::conv::staging::{FEWEST_TASKS, PixelStrip, SoftwarePrefetch, Staging};
use crate::kernels::conv::strips::strip_arrays::NO_GRADIENT;
use crate::kernels::conv::winograd::tiling::{
    APART, NO_GAIN, NO_WINDOW, WinogradCosts, WinogradSizes, axes, may_transform, padded,
};
use crate::select::SelectResult;
use crate::simd::level::CompileTarget;
use crate::simd::ranges::pieces;
use crate::simd::winograd::{COMPONENTS, FilterTransforms, InputTiles, WinogradTransforms};
use systole_ir::op::Convolution;
use systole_ir::{TensorType, ensure};

/// Tiles of a strip (K of the GEMMs). Each strip adds to all sums.
const TILES: usize = 128;
const COSTS: WinogradCosts = WinogradCosts { channel: 170, feature: 170, strip: 10 };
/// Channels, and features, of a task.
const SLICE: usize = 128;
/// Maximum elements of the sums of one task: 4 MiB.
const MOST_OF_TASK: usize = 1 << 20;
/// Maximum number of partial sums, and maximum elements of all of them: 16 MiB.
const MOST_PARTS: usize = 16;
const MOST_SUMS: usize = 4 << 20;

/// Kernel of Winograd filter gradients.
pub struct WinogradKernelGradient {
    x: Staging,
    dy: Staging,
    /// Offsets of a strip's tiles in `x` and in `dy`.
    x_tiles: Vec<usize>,
    dy_tiles: Vec<usize>,
    /// Tiles across an image.
    columns: usize,
    /// Offsets of the transformed tiles of `x` (K), with [`SLACK`] more entries; elements between components of `x` and
    /// `dy`.
    k_offsets: Vec<usize>,
    x_component: usize,
    dy_component: usize,
    /// Panels of one slice of features, and their columns.
    panels: Vec<ColumnPanel>,
    wide: usize,
    /// Offsets of channels (M) in the sums, and elements between components of the sums.
    rows: Vec<usize>,
    sum_component: usize,
    channels: usize,
    features: usize,
    parts: PartialSums,
    strips_per_part: usize,
    transforms: WinogradTransforms,
}

impl WinogradKernelGradient {
    /// Creates the kernel. Rejects convolutions that the direct kernel computes as fast, and unsupported attributes.
    pub fn new(
        c: &Convolution,
        [x, dy, y]: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<WinogradKernelGradient> {
        let level = target.level.vectors();
        may_transform(target, [x, dy])?;
        ensure!(is_kernel_gradient(c), NO_GRADIENT.into());
        ensure!(has_unit_steps(c) && y.shape[..2] == [3, 3], NO_WINDOW.into());
        let (channels, features) = (x.shape[3], dy.shape[3]);
        let (height, width) = (dy.shape[1], dy.shape[2]);
        let staging = |t: &TensorType, padding: &[[i64; 2]], reach: usize| {
            let axes = axes(t, padding, [height, width], reach);
            Staging::new(t, axes, TILES, y.elements(), level).sliced(SLICE)
        };
        let batch = x.shape[0];
        let (x, dy) = (staging(x, &c.padding, 4), staging(dy, &[[0, 0]; 2], 2));
        let strips = x.strips();
        if !COSTS.pays(&WinogradSizes { batch, pixels: [height, width], channels, features, strips }) {
            return Err(NO_GAIN.into());
        }
        let counts = [height.div_ceil(2), width.div_ceil(2)];
        let (x_tiles, dy_tiles) = (x.pixels(&counts), dy.pixels(&counts));
        let panels = panels(level, dy.width);
        let wide: usize = panels.iter().map(|p| p.shape.columns).sum();
        let sum_component = x.width * wide + APART;
        ensure!(COMPONENTS * sum_component <= MOST_OF_TASK, "the accumulators of one task exceed L2".into());
        let pitch = padded(x.width);
        let most = (MOST_SUMS / y.elements()).clamp(1, MOST_PARTS).min(x.strips());
        let parts = FEWEST_TASKS.div_ceil(x.slices * dy.slices).min(most);
        let strips_per_part = x.strips().div_ceil(parts);
        Ok(WinogradKernelGradient {
            columns: counts[1],
            k_offsets: (0..x_tiles.len() + SLACK).map(|t| t * pitch).collect(),
            x_component: x_tiles.len() * pitch + APART,
            dy_component: dy_tiles.len() * wide + APART,
            panels,
            wide,
            rows: (0..x.width).map(|c| c * wide).collect(),
            sum_component,
            channels,
            features,
            parts: PartialSums::new(x.strips().div_ceil(strips_per_part), y, level),
            strips_per_part,
            transforms: WinogradTransforms::of(level),
            x_tiles,
            dy_tiles,
            x,
            dy,
        })
    }

    fn per_part(&self) -> usize {
        self.x.slices * self.dy.slices
    }

    /// Runs one task: a slice of channels by a slice of features, over the strips of one part.
    unsafe fn task(&self, task: usize, x: *const u8, dy: *const u8, sums: *mut f32) {
        let (part, rest) = (task / self.per_part(), task % self.per_part());
        let (channels, features) = (rest / self.dy.slices, rest % self.dy.slices);
        let first = part * self.strips_per_part;
        let last = (first + self.strips_per_part).min(self.x.strips());
        let [staged, more] = [&self.x, &self.dy].map(|s| s.elements().next_multiple_of(16));
        let elements =
            staged.max(more) + COMPONENTS * (self.x_component + self.dy_component + self.sum_component);
        with_scratch(elements * 4, |scratch| {
            let scratch = scratch.cast::<f32>();
            let left = scratch.wrapping_add(staged.max(more));
            let right = left.wrapping_add(COMPONENTS * self.x_component);
            let components = right.wrapping_add(COMPONENTS * self.dy_component);
            for i in first..last {
                let strip = self.x.strip(i);
                let count = strip.images * strip.rows * self.columns;
                let mut prefetch = match i + 1 < last {
                    true => self.next(self.x.strip(i + 1), x, dy),
                    false => SoftwarePrefetch::none(),
                };
                // SAFETY: operands have the shapes of `new`, scratch has the layout above.
                unsafe {
                    let from = self.x.load(x, strip, channels, scratch.cast()).cast();
                    self.transform_input(from, count, left);
                    let from = self.dy.load(dy, strip, features, scratch.cast()).cast();
                    self.transform_cotangent(from, count, right);
                    self.products(left, right, count, components, i > first, &mut prefetch);
                }
            }
            let at = channels * self.x.width * self.features + features * self.dy.width;
            // SAFETY: tasks write disjoint parts of the sums.
            unsafe {
                (self.transforms.gradient)(&FilterTransforms {
                    taps: sums.add(part * self.parts.size + at),
                    tap: self.channels * self.features,
                    row: self.features,
                    components,
                    component: self.sum_component,
                    wide: self.wide,
                    rows: self.x.width,
                    elements: self.dy.width,
                    add: self.parts.begin_with_result(),
                });
            }
        });
    }

    /// Returns the prefetch of the next strip's operands during this strip.
    fn next(&self, strip: PixelStrip, x: *const u8, dy: *const u8) -> SoftwarePrefetch {
        let rows = self.x.width.div_ceil(self.panels[0].shape.rows);
        let calls = COMPONENTS * self.panels.len() * rows;
        SoftwarePrefetch::new([self.x.input_of(x, strip), self.dy.input_of(dy, strip)], calls)
    }

    /// Transforms `count` tiles of the input.
    unsafe fn transform_input(&self, from: *const f32, count: usize, to: *mut f32) {
        // SAFETY: the caller has all tiles, and room for their components.
        unsafe {
            (self.transforms.input)(&InputTiles {
                from,
                offsets: self.x_tiles.as_ptr(),
                count,
                row: self.x.strides[0],
                column: self.x.strides[1],
                channels: self.x.width,
                to,
                pitch: self.k_offsets[1],
                component: self.x_component,
            });
        }
    }

    /// Transforms `count` tiles of `dy`, panel by panel.
    unsafe fn transform_cotangent(&self, from: *const f32, count: usize, to: *mut f32) {
        for panel in &self.panels {
            // SAFETY: as for the input.
            unsafe {
                (self.transforms.cotangent)(&InputTiles {
                    from: from.add(panel.from),
                    offsets: self.dy_tiles.as_ptr(),
                    count,
                    row: self.dy.strides[0],
                    column: self.dy.strides[1],
                    channels: panel.columns,
                    to: to.add(panel.from * count),
                    pitch: panel.shape.columns,
                    component: self.dy_component,
                });
            }
        }
    }

    /// Computes the 16 GEMMs of `count` tiles.
    unsafe fn products(
        &self,
        left: *const f32,
        right: *const f32,
        count: usize,
        sums: *mut f32,
        add: bool,
        prefetch: &mut SoftwarePrefetch,
    ) {
        for p in 0..COMPONENTS {
            for panel in &self.panels {
                let wide = panel.shape.columns;
                for (row, rows) in pieces(self.x.width, panel.shape.rows) {
                    let t = DownArgs {
                        a: left.wrapping_add(p * self.x_component + row),
                        k_offsets: self.k_offsets.as_ptr(),
                        count,
                        ahead: prefetch.next(count / UNROLL),
                        b: right.wrapping_add(p * self.dy_component + panel.from * count),
                        b_row: wide,
                        out: TileDestination {
                            c: sums.wrapping_add(p * self.sum_component + panel.from),
                            rows: self.rows[row..].as_ptr(),
                            columns: wide,
                            add,
                            bias: std::ptr::null(),
                        },
                    };
                    // SAFETY: tables stay inside the transformed strips and the sums.
                    unsafe { (panel.shape.down)(rows, &t) };
                }
            }
        }
    }
}

kernel_of_parts!(WinogradKernelGradient, |this| {
    let products = COMPONENTS * this.x_tiles.len() * this.x.strips();
    (products * this.channels * this.features) as f64 / 50.0
});
