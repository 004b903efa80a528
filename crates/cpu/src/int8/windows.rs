//! Int8 depthwise convolution and pooling (max, mean, sum).

use crate::int8::isa::Int8Isa;
use crate::int8::output_quantization::{OutputQuantization, fast_ends, starts};
use crate::int8::parallel_blocks::{SharedAddress, in_chunks};
use crate::kernel::with_scratch;
use crate::machine::thread_pool::ThreadPool;
use crate::simd::int8::COLUMNS;
use crate::simd::int8::depthwise::{BLOCK, DepthwiseDotRows, GROUP, channel, depth_rows, scratch};
use crate::simd::int8::requantize::RequantizeParams;
use crate::simd::int8::windows::{DepthwiseRow, Int8PoolRow, MOST_TAPS, PoolReduce, depth_row, pool_row};

pub use crate::simd::int8::windows::Int8WindowDim;

/// Int8 depthwise convolution: `x: i8[B, H, W, C]`, `w: i8[h, w, C] → i8[B, H', W', C]`.
pub struct Int8DepthwiseConv {
    unit: Int8Isa,
    rows: Int8WindowDim,
    columns: Int8WindowDim,
    channels: usize,
    zero: i8,
    kernel: DepthwiseMethod,
    ends: RequantizeParams,
}

/// Algorithm of a depthwise convolution.
enum DepthwiseMethod {
    /// Tap by tap, in int16.
    Places(Vec<i32>),
    /// Dot products over four image rows, with weights for one result row and for two.
    Quads { pixels: usize, one: Vec<i32>, two: Option<Vec<i32>> },
}

impl Int8DepthwiseConv {
    /// Creates an int8 depthwise kernel. `along`: window geometry of rows and columns. Returns `None` if an accumulator
    /// could overflow 32 bits, the sizes do not match, or windows are too large.
    pub fn new(
        unit: Int8Isa,
        w: &[i8],
        along: [Int8WindowDim; 2],
        channels: usize,
        input_zero: i32,
        output: &OutputQuantization,
    ) -> Option<Int8DepthwiseConv> {
        let [rows, columns] = along;
        let taps = rows.window.checked_mul(columns.window).filter(|t| (1..=MOST_TAPS).contains(t))?;
        if channels == 0 || Some(w.len()) != taps.checked_mul(channels) {
            return None;
        }
        let of =
            |c: usize| Box::new(w.iter().copied().skip(c).step_by(channels)) as Box<dyn Iterator<Item = i8>>;
        let (start, bounds) = starts(output, channels, input_zero, of)?;
        let ends = fast_ends(unit, output, &start, &bounds)?;
        let zero = i8::try_from(input_zero).ok()?;
        let made = Int8DepthwiseConv {
            unit,
            rows,
            columns,
            channels,
            zero,
            kernel: DepthwiseMethod::Places(Vec::new()),
            ends,
        };
        Some(if unit.has_quads() { made.with_quads(w) } else { made.with_places(w) })
    }

    /// Packs weights as [`DepthwiseRow`] reads them.
    fn with_places(mut self, w: &[i8]) -> Int8DepthwiseConv {
        let padded = self.channels.next_multiple_of(COLUMNS);
        let mut weights = vec![0; self.rows.window * self.columns.window * padded];
        for (tap, w) in w.chunks_exact(self.channels).enumerate() {
            for (to, w) in weights[tap * padded..].iter_mut().zip(w) {
                *to = i32::from(i16::from(*w) as u16);
            }
        }
        self.kernel = DepthwiseMethod::Places(weights);
        self
    }

    /// Packs weights as [`DepthwiseDotRows`] reads them.
    fn with_quads(mut self, w: &[i8]) -> Int8DepthwiseConv {
        let (c, rows) = (self.channels, self.rows);
        let pixels = if self.columns.stride == 1 && [16, 32].contains(&c) { BLOCK / c } else { 1 };
        let places = c.div_ceil(BLOCK) * BLOCK;
        let own = |at: usize| at / BLOCK * BLOCK + channel(at % BLOCK);
        let order: Vec<usize> = (0..places).map(own).map(|o| if pixels > 1 { o % c } else { o }).collect();
        self.ends = self.ends.in_order(&order);
        // Input bytes are offset by 128 (uint8).
        for (bias, c) in self.ends.bias.iter_mut().zip(&order).filter(|(_, c)| **c < self.channels) {
            let sum: i32 = w.iter().skip(*c).step_by(self.channels).map(|w| i32::from(*w)).sum();
            *bias = bias.wrapping_sub(sum * 128);
        }
        let one = self.quads(w, &order, 1);
        let has_two = rows.window < GROUP && rows.stride == 1 && rows.dilation == 1 && rows.positions > 1;
        let two = has_two.then(|| self.quads(w, &order, 2));
        self.kernel = DepthwiseMethod::Quads { pixels, one, two };
        self
    }

    /// Packs weights for `results` result rows; the second result row starts one image row further down.
    fn quads(&self, w: &[i8], order: &[usize], results: usize) -> Vec<i32> {
        let (places, groups) = (self.columns.window, self.rows.window.div_ceil(GROUP));
        let mut all = Vec::with_capacity(order.len() * results * places * groups);
        let tap = |ky: Option<usize>, kx: usize, c: usize| match ky.filter(|ky| *ky < self.rows.window) {
            Some(ky) if c < self.channels => w[(ky * places + kx) * self.channels + c] as u8,
            _ => 0,
        };
        for block in order.chunks_exact(BLOCK) {
            for (row, kx) in (0..results).flat_map(|row| (0..places).map(move |kx| (row, kx))) {
                for group in 0..groups {
                    let word = |c: &usize| {
                        let of = |n: usize| tap((group * GROUP + n).checked_sub(row), kx, *c);
                        i32::from_le_bytes(std::array::from_fn(of))
                    };
                    all.extend(block.iter().map(word));
                }
            }
        }
        all
    }

    /// Computes the depthwise convolution of all images of `x` into `y`.
    pub fn run(&self, team: &ThreadPool, x: &[i8], y: &mut [i8]) {
        let (c, rows, columns) = (self.channels, self.rows, self.columns);
        let images = x.len() / (rows.size * columns.size * c);
        assert_eq!(y.len(), images * rows.positions * columns.positions * c, "the result of {images} images");
        match &self.kernel {
            DepthwiseMethod::Places(weights) => self.run_places(team, x, y, weights),
            DepthwiseMethod::Quads { pixels, one, two } => {
                self.run_quads(team, x, y, *pixels, [Some(one), two.as_ref()])
            }
        }
    }

    fn run_places(&self, team: &ThreadPool, x: &[i8], y: &mut [i8], weights: &[i32]) {
        let (c, rows, columns) = (self.channels, self.rows, self.columns);
        let line = columns.size * c;
        let kernel = depth_row(self.unit.level());
        let outside = vec![self.zero; c];
        let work = (x.len() * rows.positions * rows.window * columns.window) as f64;
        in_chunks(team, y, columns.positions * c, work / (8 * rows.size) as f64, |at, y| {
            let (image, oy) = (at / rows.positions, at % rows.positions);
            let x = &x[image * rows.size * line..(image + 1) * rows.size * line];
            let row = |ky: usize| rows.place(oy, ky).map_or(std::ptr::null(), |py| x[py * line..].as_ptr());
            let lines: Vec<*const i8> = (0..rows.window).map(row).collect();
            let args = DepthwiseRow {
                rows: &lines,
                columns,
                channels: c,
                outside: outside.as_ptr(),
                weights: weights.as_ptr(),
                padded: c.next_multiple_of(COLUMNS),
                ends: &self.ends,
                to: y.as_mut_ptr(),
            };
            // SAFETY: rows are whole image rows; weights and requantization parameters have whole panels of channels.
            unsafe { kernel(&args) };
        });
    }

    /// Runs one task per result row, or per two result rows if `weights` has weights for two.
    fn run_quads(
        &self,
        team: &ThreadPool,
        x: &[i8],
        y: &mut [i8],
        pixels: usize,
        weights: [Option<&Vec<i32>>; 2],
    ) {
        let (c, rows, columns) = (self.channels, self.rows, self.columns);
        let (line, result) = (columns.size * c, columns.positions * c);
        let each = if weights[1].is_some() { 2 } else { 1 };
        let (images, tasks) = (x.len() / (rows.size * line), rows.positions.div_ceil(each));
        let groups = rows.window.div_ceil(GROUP);
        let work = (y.len() * groups * columns.window) as f64 / 12.0;
        let y = SharedAddress(y.as_mut_ptr());
        team.run(images * tasks, work, &|task| {
            let (image, oy) = (task / tasks, task % tasks * each);
            let x = &x[image * rows.size * line..(image + 1) * rows.size * line];
            let results = each.min(rows.positions - oy);
            let met = rows.window + results - 1;
            let at = |ky: usize| {
                let place = rows.place(oy, ky).filter(|_| ky < met);
                place.map_or(std::ptr::null(), |py| x[py * line..].as_ptr())
            };
            let lines: Vec<*const i8> = (0..groups * GROUP).map(at).collect();
            let first = y.at((image * rows.positions + oy) * result);
            let second = if results > 1 { first.wrapping_add(result) } else { std::ptr::null_mut() };
            let Some(weights) = weights[results - 1] else { return };
            with_scratch(scratch(&columns, groups), |scratch| {
                let args = DepthwiseDotRows {
                    lines: &lines,
                    columns,
                    channels: c,
                    pixels,
                    outside: (self.zero as u8) ^ 0x80,
                    weights: weights.as_ptr(),
                    ends: &self.ends,
                    to: [first, second],
                    scratch,
                };
                // SAFETY: rows are whole image rows; tasks write to disjoint whole result rows; the machine has the
                // instructions.
                unsafe { depth_rows(&args) };
            });
        });
    }
}

/// Reduction of a pooling window; padding is excluded.
#[derive(Clone, Debug)]
pub enum PoolMode<'a> {
    /// Maximum, clamped to a range.
    Max(i32, i32),
    /// Mean, rounded half away from zero and clamped to a range.
    Mean(i32, i32),
    /// Sum of values minus the zero point, scaled by a fixed-point factor. Windows must be entirely inside the image.
    Sum(i32, OutputQuantization<'a>),
}

/// Int8 pooling: `x: i8[B, H, W, C] → i8[B, H', W', C]`.
pub struct Int8Pool {
    unit: Int8Isa,
    rows: Int8WindowDim,
    columns: Int8WindowDim,
    channels: usize,
    how: PoolMethod,
}

enum PoolMethod {
    Max(i32, i32),
    Mean(i32, i32),
    Sum(Box<RequantizeParams>),
}

/// Maximum window size: sums of this many int8 values are exact in f32.
const MOST_PLACES: usize = 1 << 15;

impl Int8Pool {
    /// Creates an int8 pooling kernel. `along`: window geometry of rows and columns, without dilation. Returns `None` if
    /// a value could overflow or windows are too large.
    pub fn new(
        unit: Int8Isa,
        along: [Int8WindowDim; 2],
        channels: usize,
        pooling: &PoolMode,
    ) -> Option<Int8Pool> {
        let [rows, columns] = along;
        let places = rows.window.checked_mul(columns.window)?;
        let known = |low: i32, high: i32| (-128..=127).contains(&low) && (-128..=127).contains(&high);
        let how = match pooling {
            PoolMode::Max(low, high) => known(*low, *high).then_some(PoolMethod::Max(*low, *high))?,
            PoolMode::Mean(low, high) => {
                (known(*low, *high) && places <= MOST_PLACES).then_some(PoolMethod::Mean(*low, *high))?
            }
            PoolMode::Sum(zero, output) => {
                let places = i32::try_from(places).ok().filter(|p| *p < 1 << 22)?;
                let start = zero.checked_mul(-places).filter(|_| (-128..=127).contains(zero))?;
                let bound = 256 * i64::from(places);
                PoolMethod::Sum(Box::new(fast_ends(unit, output, &[start; 16], &[bound; 16])?))
            }
        };
        (channels > 0 && rows.dilation == 1 && columns.dilation == 1).then_some(Int8Pool {
            unit,
            rows,
            columns,
            channels,
            how,
        })
    }

    /// Pools all images of `x` into `y`.
    pub fn run(&self, team: &ThreadPool, x: &[i8], y: &mut [i8]) {
        let (c, rows, columns) = (self.channels, self.rows, self.columns);
        let line = columns.size * c;
        let images = x.len() / (rows.size * line);
        assert_eq!(y.len(), images * rows.positions * columns.positions * c, "the result of {images} images");
        let kernel = pool_row(self.unit.level());
        let work = (images * rows.positions * columns.positions * c) as f64;
        let work = work * (rows.window * columns.window) as f64 / 8.0;
        in_chunks(team, y, columns.positions * c, work, |at, y| {
            let (image, oy) = (at / rows.positions, at % rows.positions);
            let x = &x[image * rows.size * line..(image + 1) * rows.size * line];
            let lines: Vec<*const i8> = rows.inside(oy).map(|py| x[py * line..].as_ptr()).collect();
            let fold = match &self.how {
                PoolMethod::Max(low, high) => PoolReduce::Max(*low, *high),
                PoolMethod::Mean(low, high) => PoolReduce::Mean(*low, *high),
                PoolMethod::Sum(ends) => PoolReduce::Sum(ends),
            };
            let args = Int8PoolRow { rows: &lines, columns, channels: c, fold, to: y.as_mut_ptr() };
            // SAFETY: rows are whole image rows.
            unsafe { kernel(&args) };
        });
    }
}
