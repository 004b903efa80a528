//! Convolutions of each channel on its own, and poolings.

use crate::int8::chunks::in_chunks;
use crate::int8::output::{Output, ends, starts};
use crate::int8::unit::Unit;
use crate::machine::team::Team;
use crate::simd::int8::COLUMNS;
use crate::simd::int8::ends::Ends;
use crate::simd::int8::windows::{DepthRow, Fold, MOST_TAPS, PoolRow, depth_row, pool_row};

pub use crate::simd::int8::windows::Along;

/// A convolution of each channel on its own: `x: i8[B, H, W, C]`, `w: i8[h, w, C] → i8[B, H', W', C]`.
pub struct Depthwise {
    unit: Unit,
    rows: Along,
    columns: Along,
    channels: usize,
    weights: Vec<i32>,
    outside: Vec<i8>,
    ends: Ends,
}

impl Depthwise {
    /// `along`: lines and columns. `None`: a number could leave 32 bits, sizes do not fit, or windows are too large.
    pub fn new(
        unit: Unit,
        w: &[i8],
        along: [Along; 2],
        channels: usize,
        input_zero: i32,
        output: &Output,
    ) -> Option<Depthwise> {
        let [rows, columns] = along;
        let taps = rows.window.checked_mul(columns.window).filter(|t| (1..=MOST_TAPS).contains(t))?;
        if channels == 0 || Some(w.len()) != taps.checked_mul(channels) {
            return None;
        }
        let of =
            |c: usize| Box::new(w.iter().copied().skip(c).step_by(channels)) as Box<dyn Iterator<Item = i8>>;
        let (start, bounds) = starts(output, channels, input_zero, of)?;
        let ends = ends(output, &start, &bounds)?;
        let padded = channels.next_multiple_of(COLUMNS);
        let mut weights = vec![0; taps * padded];
        for (tap, w) in w.chunks_exact(channels).enumerate() {
            for (to, w) in weights[tap * padded..].iter_mut().zip(w) {
                *to = i32::from(i16::from(*w) as u16);
            }
        }
        let outside = vec![i8::try_from(input_zero).ok()?; channels];
        Some(Depthwise { unit, rows, columns, channels, weights, outside, ends })
    }

    /// Computes all pictures of `x`; `y` has room for the result.
    pub fn run(&self, team: &Team, x: &[i8], y: &mut [i8]) {
        let (c, rows, columns) = (self.channels, self.rows, self.columns);
        let line = columns.size * c;
        let images = x.len() / (rows.size * line);
        assert_eq!(
            y.len(),
            images * rows.positions * columns.positions * c,
            "the result of {images} pictures"
        );
        let kernel = depth_row(self.unit.level());
        let taps = rows.window * columns.window;
        in_chunks(
            team,
            y,
            columns.positions * c,
            (images * taps) as f64 * (rows.positions * line) as f64 / 8.0,
            |at, y| {
                let (image, oy) = (at / rows.positions, at % rows.positions);
                let x = &x[image * rows.size * line..(image + 1) * rows.size * line];
                let row =
                    |ky: usize| rows.place(oy, ky).map_or(std::ptr::null(), |py| x[py * line..].as_ptr());
                let lines: Vec<*const i8> = (0..rows.window).map(row).collect();
                let args = DepthRow {
                    rows: &lines,
                    columns,
                    channels: c,
                    outside: self.outside.as_ptr(),
                    weights: self.weights.as_ptr(),
                    padded: c.next_multiple_of(COLUMNS),
                    ends: &self.ends,
                    to: y.as_mut_ptr(),
                };
                // SAFETY: rows are whole lines of the picture; weights and ends have whole panels of channels.
                unsafe { kernel(&args) };
            },
        );
    }
}

/// What a pooling makes of each window; what lies outside the picture is left out.
#[derive(Clone, Debug)]
pub enum Pooling<'a> {
    /// The greatest value, within bounds.
    Max(i32, i32),
    /// The mean, rounded half away from zero, within bounds.
    Mean(i32, i32),
    /// The sum of numbers around a zero point, scaled by one fixed-point factor; of windows that lie inside.
    Sum(i32, Output<'a>),
}

/// A pooling: `x: i8[B, H, W, C] → i8[B, H', W', C]`.
pub struct Pool {
    unit: Unit,
    rows: Along,
    columns: Along,
    channels: usize,
    how: How,
}

enum How {
    Max(i32, i32),
    Mean(i32, i32),
    Sum(Box<Ends>),
}

/// Places of a window, at most: sums of so many bytes are exact in f32.
const MOST_PLACES: usize = 1 << 15;

impl Pool {
    /// `along`: lines and columns, without dilation. `None`: a number could leave its bits, or windows are too large.
    pub fn new(unit: Unit, along: [Along; 2], channels: usize, pooling: &Pooling) -> Option<Pool> {
        let [rows, columns] = along;
        let places = rows.window.checked_mul(columns.window)?;
        let known = |low: i32, high: i32| (-128..=127).contains(&low) && (-128..=127).contains(&high);
        let how = match pooling {
            Pooling::Max(low, high) => known(*low, *high).then_some(How::Max(*low, *high))?,
            Pooling::Mean(low, high) => {
                (known(*low, *high) && places <= MOST_PLACES).then_some(How::Mean(*low, *high))?
            }
            Pooling::Sum(zero, output) => {
                let places = i32::try_from(places).ok().filter(|p| *p < 1 << 22)?;
                let start = zero.checked_mul(-places).filter(|_| (-128..=127).contains(zero))?;
                let bound = 256 * i64::from(places);
                How::Sum(Box::new(ends(output, &[start; 16], &[bound; 16])?))
            }
        };
        (channels > 0 && rows.dilation == 1 && columns.dilation == 1).then_some(Pool {
            unit,
            rows,
            columns,
            channels,
            how,
        })
    }

    /// Computes all pictures of `x`; `y` has room for the result.
    pub fn run(&self, team: &Team, x: &[i8], y: &mut [i8]) {
        let (c, rows, columns) = (self.channels, self.rows, self.columns);
        let line = columns.size * c;
        let images = x.len() / (rows.size * line);
        assert_eq!(
            y.len(),
            images * rows.positions * columns.positions * c,
            "the result of {images} pictures"
        );
        let kernel = pool_row(self.unit.level());
        let work = (images * rows.positions * columns.positions * c) as f64;
        let work = work * (rows.window * columns.window) as f64 / 8.0;
        in_chunks(team, y, columns.positions * c, work, |at, y| {
            let (image, oy) = (at / rows.positions, at % rows.positions);
            let x = &x[image * rows.size * line..(image + 1) * rows.size * line];
            let lines: Vec<*const i8> = rows.inside(oy).map(|py| x[py * line..].as_ptr()).collect();
            let fold = match &self.how {
                How::Max(low, high) => Fold::Max(*low, *high),
                How::Mean(low, high) => Fold::Mean(*low, *high),
                How::Sum(ends) => Fold::Sum(ends),
            };
            let args = PoolRow { rows: &lines, columns, channels: c, fold, to: y.as_mut_ptr() };
            // SAFETY: rows are whole lines of the picture.
            unsafe { kernel(&args) };
        });
    }
}
