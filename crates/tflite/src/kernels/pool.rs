//! Poolings of pictures. What lies outside the picture is left out.

use super::call::Call;
use super::row::operators;
use super::window::{Slide, slides};
use crate::fixed::activation_range;
use crate::op::Field;
use systole_base::{DType, Literal, Result};

operators! {
    AveragePool2D "AVERAGE_POOL_2D" 1;
        options 5 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation]; versions 1 2; Same; average
    MaxPool2D "MAX_POOL_2D" 17;
        options 5 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation]; versions 1 2; Same; max
}

/// Windows over `x: T[B, H, W, C]`.
struct Pool {
    batch: usize,
    channels: usize,
    rows: Slide,
    columns: Slide,
}

impl Pool {
    fn new(call: &Call) -> Result<Pool> {
        let [batch, h, w, channels] = call.input(0)?.of_rank::<4>()?;
        let window = [call.at_least_1(Field::FilterH)?, call.at_least_1(Field::FilterW)?];
        let [rows, columns] = slides(call, [h, w], window, false)?;
        call.check_output(&[batch, rows.positions, columns.positions, channels])?;
        Ok(Pool { batch, channels, rows, columns })
    }

    /// Each window folded, and how many places it has inside.
    fn fold<T: Copy, S: Copy>(&self, x: &[T], start: S, add: impl Fn(S, T) -> S) -> Vec<(S, usize)> {
        let mut y =
            Vec::with_capacity(self.batch * self.rows.positions * self.columns.positions * self.channels);
        let inside = |slide: &Slide, at: usize| {
            let first = (at * slide.stride).saturating_sub(slide.before);
            first..(at * slide.stride + slide.window).saturating_sub(slide.before).min(slide.size)
        };
        for b in 0..self.batch {
            for oy in 0..self.rows.positions {
                for ox in 0..self.columns.positions {
                    let (ys, xs) = (inside(&self.rows, oy), inside(&self.columns, ox));
                    let at = y.len();
                    y.resize(at + self.channels, (start, ys.len() * xs.len()));
                    for py in ys {
                        for px in xs.clone() {
                            let from = ((b * self.rows.size + py) * self.columns.size + px) * self.channels;
                            let row = &x[from..from + self.channels];
                            y[at..].iter_mut().zip(row).for_each(|(s, &x)| s.0 = add(s.0, x));
                        }
                    }
                }
            }
        }
        y
    }
}

/// `x: T[B, H, W, C] → T[B, H', W', C]`: means.
fn average(call: &Call) -> Result<Vec<Literal>> {
    let (x, pool) = (call.input(0)?, Pool::new(call)?);
    let activation = call.operator.activation()?;
    match x.dtype() {
        DType::I8 => {
            let (scale, zero) = call.output_scale()?;
            let (low, high) = activation_range(activation, scale, zero);
            let mean = |(sum, n): (i32, usize)| {
                let n = (n as i32).max(1);
                let y = if sum > 0 { sum.wrapping_add(n / 2) / n } else { sum.wrapping_sub(n / 2) / n };
                y.max(low).min(high) as i8
            };
            let sums = pool.fold(x.elements::<i8>()?, 0i32, |s, q| s.wrapping_add(q.into()));
            call.made(&sums.into_iter().map(mean).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let (low, high) = activation.bounds();
            let sums = pool.fold(x.elements::<f32>()?, 0f32, |s, v| s + v);
            let mean = |(sum, n): (f32, usize)| (sum / n.max(1) as f32).max(low).min(high);
            call.made(&sums.into_iter().map(mean).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}

/// `x: T[B, H, W, C] → T[B, H', W', C]`: the greatest.
fn max(call: &Call) -> Result<Vec<Literal>> {
    let (x, pool) = (call.input(0)?, Pool::new(call)?);
    let activation = call.operator.activation()?;
    match x.dtype() {
        DType::I8 => {
            let (scale, zero) = call.output_scale()?;
            let (low, high) = activation_range(activation, scale, zero);
            let all = pool.fold(x.elements::<i8>()?, i8::MIN, i8::max);
            call.made(
                &all.into_iter().map(|(q, _)| i32::from(q).max(low).min(high) as i8).collect::<Vec<i8>>(),
            )
        }
        DType::F32 => {
            let (low, high) = activation.bounds();
            let all = pool.fold(x.elements::<f32>()?, f32::MIN, f32::max);
            call.made(&all.into_iter().map(|(v, _)| v.max(low).min(high)).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}
