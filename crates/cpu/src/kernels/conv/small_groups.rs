//! Depthwise convolutions, and others with up to eight channels and filters per group, in f32.
//!
//! The input is read in place: taps in the padding are left out. Pixels with the same taps inside the input are a region;
//! a strip of rows has up to nine for a 3 × 3 filter. A vector holds the channels of several groups. Sums of a few pixels
//! stay in registers, and the innermost loop runs along the channels, which are contiguous.

use crate::kernel::convolution::is_forward_of_groups;
use crate::kernel::{EpilogueFn, Io, Kernel, KernelContext, OutputBlock, Ptr};
use crate::select::SelectResult;
use crate::simd::group_lanes::GroupLanes;
use crate::simd::level::{CompileTarget, Level, by_level};
use crate::simd::vector::Portable32;
use std::ops::Range;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType, ensure};

/// Elements of the result that a strip has at most, unless one row has more: 64 KiB.
const STRIP: usize = 16 << 10;

/// Pixels that have the same taps inside the input, and the tables of a microkernel call.
struct PixelRegion {
    /// Offset of each tap in the input, from the pixel's first one.
    left: Vec<usize>,
    /// Offset of each tap in the filter.
    taps: Vec<usize>,
    /// Offset of each pixel's first tap in an image, and of each pixel in an image of the result.
    at: Vec<usize>,
    to: Vec<usize>,
}

/// Rows of pixels that one task computes.
struct RowStrip {
    pixels: Range<usize>,
    regions: Vec<PixelRegion>,
}

/// Arguments of the microkernel: `y[to[p]] = Σᵢⱼ x[at[p] + left[i]] · filter[taps[i] + j · channels] + bias` along the
/// channels, where `j` is a channel of each group, and its value is spread over the group; `bias` may be null.
struct RegionArgs<'a> {
    region: &'a PixelRegion,
    channels: usize,
    x: *const f32,
    filter: *const f32,
    bias: *const f32,
    y: *mut f32,
}

/// Computes the pixels of a region, nine at a time: the filter is read once for all of them. `G`: channels of a group.
#[inline(always)]
unsafe fn all_pixels<V: GroupLanes, const G: usize>(r: &RegionArgs<'_>) {
    let count = r.region.to.len();
    let mut p = 0;
    // SAFETY: the caller's tables are inside its arrays; the level is available.
    unsafe {
        while p < count {
            match count - p {
                9.. => p += pixels::<V, G, 9>(r, p),
                5..9 => p += pixels::<V, G, 5>(r, p),
                3..5 => p += pixels::<V, G, 3>(r, p),
                _ => p += pixels::<V, G, 1>(r, p),
            }
        }
    }
}

/// Computes `P` pixels from pixel `p` on, and returns their number.
#[inline(always)]
unsafe fn pixels<V: GroupLanes, const G: usize, const P: usize>(r: &RegionArgs<'_>, p: usize) -> usize {
    let whole = r.channels / V::LANES * V::LANES;
    // SAFETY: as for `all_pixels`; lanes end with the channels.
    unsafe {
        for c in (0..whole).step_by(V::LANES) {
            sums::<V, G, P, true>(r, p, c, V::LANES);
        }
        if whole < r.channels {
            sums::<V, G, P, false>(r, p, whole, r.channels - whole);
        }
    }
    P
}

/// Computes some channels of `P` pixels. Each element is one chain of multiply-adds in the order of taps and channels, as
/// in the kernel `direct`.
#[inline(always)]
unsafe fn sums<V: GroupLanes, const G: usize, const P: usize, const WHOLE: bool>(
    r: &RegionArgs<'_>,
    p: usize,
    c: usize,
    lanes: usize,
) {
    // SAFETY: as for `all_pixels`; groups do not reach over the end of a vector.
    unsafe {
        let load = |from: *const f32| if WHOLE { V::load(from) } else { V::load_part(from, lanes) };
        let (at, left) = (r.region.at.as_ptr().add(p), r.region.left.as_ptr());
        let at: [usize; P] = std::array::from_fn(|i| *at.add(i) + c);
        let channel: [V::Lanes; G] = std::array::from_fn(|j| V::lanes(G, j));
        let mut acc = [V::splat(0.0); P];
        for (i, tap) in r.region.taps.iter().enumerate() {
            let (x, filter) = (r.x.add(*left.add(i)), r.filter.add(tap + c));
            if G == 1 {
                let b = load(filter);
                for (acc, at) in acc.iter_mut().zip(at) {
                    *acc = load(x.add(at)).mul_add(b, *acc);
                }
                continue;
            }
            let x: [V; P] = std::array::from_fn(|i| load(x.add(at[i])));
            for (j, &channel) in channel.iter().enumerate() {
                let b = load(filter.add(j * r.channels));
                for (acc, x) in acc.iter_mut().zip(x) {
                    *acc = x.pick(channel).mul_add(b, *acc);
                }
            }
        }
        let bias = if r.bias.is_null() { V::splat(0.0) } else { load(r.bias.add(c)) };
        for (i, acc) in acc.into_iter().enumerate() {
            let (y, to) = (acc.add(bias), r.y.add(*r.region.to.as_ptr().add(p + i) + c));
            if WHOLE { y.store(to) } else { y.store_part(to, lanes) }
        }
    }
}

type RegionFn = unsafe fn(&RegionArgs<'_>);

macro_rules! levels {
    ($name:ident, $v:ty $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const G: usize>(r: &RegionArgs<'_>) {
            // SAFETY: the caller's promises are those of `all_pixels`.
            unsafe { all_pixels::<$v, G>(r) }
        }
    };
}
levels!(portable, Portable32);
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
#[cfg(target_arch = "x86_64")]
levels!(avx2, V8x32, "avx2,fma");
#[cfg(target_arch = "x86_64")]
levels!(avx512, V16x32, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// Returns the microkernel for groups of some channels; `None`: a vector does not hold whole groups.
fn microkernel(level: Level, group: usize) -> Option<RegionFn> {
    Some(match group {
        1 => by_level!(level, avx512::<1>, avx2::<1>, portable::<1>),
        2 => by_level!(level, avx512::<2>, avx2::<2>, portable::<2>),
        4 => by_level!(level, avx512::<4>, avx2::<4>, portable::<4>),
        // A portable vector has four lanes.
        8 if level != Level::Portable => by_level!(level, avx512::<8>, avx2::<8>, portable::<1>),
        _ => return None,
    })
}

/// One spatial dimension of the convolution.
#[derive(Clone, Copy)]
struct GroupedConvAxis {
    size: usize,
    window: usize,
    stride: usize,
    dilation: usize,
    low: i64,
    count: usize,
}

impl GroupedConvAxis {
    const ONE: GroupedConvAxis =
        GroupedConvAxis { size: 1, window: 1, stride: 1, dilation: 1, low: 0, count: 1 };

    /// Coordinate in the input of a pixel's tap; outside it in the padding.
    fn coordinate(&self, pixel: usize, tap: usize) -> i64 {
        (pixel * self.stride + tap * self.dilation) as i64 - self.low
    }

    /// Taps of a pixel that are inside the input: they follow each other.
    fn inside(&self, pixel: usize) -> Range<usize> {
        let is_inside = |&tap: &usize| (0..self.size as i64).contains(&self.coordinate(pixel, tap));
        let first = (0..self.window).find(is_inside).unwrap_or(0);
        first..first + (first..self.window).take_while(is_inside).count()
    }

    /// Divides some pixels into ranges with the same taps inside the input.
    fn ranges(&self, pixels: Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
        let mut all: Vec<(Range<usize>, Range<usize>)> = Vec::new();
        for pixel in pixels {
            let taps = self.inside(pixel);
            match all.last_mut() {
                Some((pixels, same)) if *same == taps => pixels.end = pixel + 1,
                _ => all.push((pixel..pixel + 1, taps)),
            }
        }
        all
    }
}

impl PixelRegion {
    fn new(
        [along_y, along_x]: &[GroupedConvAxis; 2],
        [channels, group]: [usize; 2],
        (rows, row_taps): &(Range<usize>, Range<usize>),
        (columns, column_taps): &(Range<usize>, Range<usize>),
    ) -> PixelRegion {
        let inside = |y: usize, x: usize| row_taps.contains(&y) && column_taps.contains(&x);
        let mut region = PixelRegion { left: vec![], taps: vec![], at: vec![], to: vec![] };
        for (y, x) in (0..along_y.window).flat_map(|y| (0..along_x.window).map(move |x| (y, x))) {
            if !inside(y, x) {
                continue;
            }
            let down = (y - row_taps.start) * along_y.dilation * along_x.size;
            region.left.push((down + (x - column_taps.start) * along_x.dilation) * channels);
            region.taps.push((y * along_x.window + x) * group * channels);
        }
        for (y, x) in rows.clone().flat_map(|y| columns.clone().map(move |x| (y, x))) {
            let first = along_y.coordinate(y, row_taps.start) * along_x.size as i64
                + along_x.coordinate(x, column_taps.start);
            // Without a tap inside the input nothing is read.
            region.at.push(if region.taps.is_empty() { 0 } else { first as usize * channels });
            region.to.push((y * along_x.count + x) * channels);
        }
        region
    }
}

/// Grouped convolution kernel: `x: f32[B, H, W, C], kernel: f32[h, w, G, C] → y: f32[B, H', W', C]`; also with one spatial
/// dimension.
pub struct SmallGroups {
    strips: Vec<RowStrip>,
    batch: usize,
    channels: usize,
    /// Elements of an image of the input, and pixels of an image of the result.
    image: usize,
    pixels: usize,
    /// Elements of the filter.
    filter: usize,
    bias: bool,
    run: RegionFn,
}

impl SmallGroups {
    /// Creates the kernel, or returns why it does not support the convolution.
    pub fn new(
        c: &Convolution,
        bias: bool,
        types: [&TensorType; 3],
        target: CompileTarget,
    ) -> SelectResult<SmallGroups> {
        let ([x, k, y], d, n) = (types, &c.dims, c.dims.input_spatial.len());
        let (batch, channels) = (x.shape[0], x.shape[x.rank() - 1]);
        let fits = is_forward_of_groups(c)
            && c.feature_groups > 1
            && channels == y.shape[n + 1]
            && d.kernel_spatial.iter().copied().eq(0..n);
        ensure!(
            fits,
            "it has one group, more or fewer filters than channels, or is not channels-last".into()
        );
        let group = channels / c.feature_groups;
        let run = microkernel(target.level.vectors(), group)
            .ok_or("its groups have other sizes than 1, 2, 4, 8")?;
        // Without groups of several channels both dimensions of the filter hold the channels.
        ensure!(
            group == 1 || d.kernel_input_feature == n,
            "its filters are stored by rows of channels".into()
        );
        let is_plain = (1..=2).contains(&n)
            && c.lhs_dilation.iter().all(|&dilation| dilation == 1)
            && !c.reversal.iter().any(|&r| r);
        ensure!(is_plain, "it has three spatial dimensions, input dilation, or a reversed kernel".into());
        ensure!(types.iter().all(|t| t.dtype == DType::F32), "its elements are not f32".into());
        let axis = |i: usize| GroupedConvAxis {
            size: x.shape[i + 1],
            window: k.shape[i],
            stride: c.strides[i],
            dilation: c.rhs_dilation[i],
            low: c.padding[i][0],
            count: y.shape[i + 1],
        };
        let axes = if n == 2 { [axis(0), axis(1)] } else { [GroupedConvAxis::ONE, axis(0)] };
        Ok(SmallGroups {
            strips: strips(&axes, [channels, group]),
            batch,
            channels,
            image: x.elements() / batch,
            pixels: axes[0].count * axes[1].count,
            filter: k.elements(),
            bias,
            run,
        })
    }

    fn work(&self) -> f64 {
        (self.batch * self.pixels * self.filter) as f64 * 0.1
    }

    /// Computes the strips of all images; `take` receives each.
    unsafe fn compute(&self, cx: &KernelContext<'_>, io: &Io<'_>, take: Option<EpilogueFn<'_>>) {
        let (xp, kp, yp) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let body = |task: usize| {
            let (image, strip) = (task / self.strips.len(), &self.strips[task % self.strips.len()]);
            let y = yp.elem::<f32>(image * self.pixels * self.channels);
            for region in &strip.regions {
                let args = RegionArgs {
                    region,
                    channels: self.channels,
                    x: xp.elem::<f32>(image * self.image),
                    filter: kp.elem(0),
                    bias: bias.at(0).cast(),
                    y,
                };
                // SAFETY: regions are inside the image, the filter and this task's part of the result.
                unsafe { (self.run)(&args) };
            }
            let Some(take) = take else { return };
            let first = (image * self.pixels + strip.pixels.start) * self.channels;
            let (rows, channels) = (strip.pixels.len(), self.channels);
            let block = OutputBlock { first, row: channels, stride: channels, rows, columns: channels };
            take(&block, yp.elem::<f32>(first).cast());
        };
        cx.team.run_with(self.batch * self.strips.len(), self.work(), cx.flush, &body);
    }
}

/// Divides an image into strips of rows, and these into regions.
fn strips(axes: &[GroupedConvAxis; 2], [channels, group]: [usize; 2]) -> Vec<RowStrip> {
    let (height, width) = (axes[0].count, axes[1].count);
    let rows = (STRIP / (width * channels).max(1)).clamp(1, height.max(1));
    let columns = axes[1].ranges(0..width);
    let strip = |first: usize| {
        let last = (first + rows).min(height);
        let along = axes[0].ranges(first..last);
        let regions = along.iter().flat_map(|rows| {
            columns.iter().map(move |columns| PixelRegion::new(axes, [channels, group], rows, columns))
        });
        RowStrip { pixels: first * width..last * width, regions: regions.collect() }
    };
    (0..height).step_by(rows).map(strip).collect()
}

impl Kernel for SmallGroups {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.compute(cx, io, None) };
        Ok(())
    }

    fn hand_over_blocks(&mut self) -> bool {
        true
    }

    unsafe fn run_by_blocks(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        take: EpilogueFn<'_>,
        _kept: *const u8,
    ) {
        // SAFETY: by the caller's promise.
        unsafe { self.compute(cx, io, Some(take)) };
    }
}
