//! Pooling kernels (MAX_POOL_2D, AVERAGE_POOL_2D, L2_POOL_2D). Positions in the padding do not count.

use super::call::OperatorCall;
use super::op_row::operators;
use super::window::{WindowStride, slides};
use crate::fixed_point::activation_range;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result};

operators! {
    AveragePool2D "AVERAGE_POOL_2D" 1;
        options 5 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation]; versions 1 2; Same; average
    L2Pool2D "L2_POOL_2D" 12;
        options 5 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation]; versions 1 1; NoInt8; root_mean_square
    MaxPool2D "MAX_POOL_2D" 17;
        options 5 [0 Padding, 1 StrideW, 2 StrideH, 3 FilterW, 4 FilterH, 5 Activation]; versions 1 2; Same; max
}

/// Pooling windows over `x: T[B, H, W, C]`.
struct PoolWindows {
    batch: usize,
    channels: usize,
    rows: WindowStride,
    columns: WindowStride,
}

impl PoolWindows {
    fn new(call: &OperatorCall) -> Result<PoolWindows> {
        let [batch, h, w, channels] = call.input(0)?.of_rank::<4>()?;
        let window = [call.at_least_1(OptionField::FilterH)?, call.at_least_1(OptionField::FilterW)?];
        let [rows, columns] = slides(call, [h, w], window, false)?;
        call.check_output(&[batch, rows.positions, columns.positions, channels])?;
        Ok(PoolWindows { batch, channels, rows, columns })
    }

    /// Reduces each window; also returns its number of positions inside the image.
    fn fold<T: Copy, S: Copy>(&self, x: &[T], start: S, add: impl Fn(S, T) -> S) -> Vec<(S, usize)> {
        let mut y =
            Vec::with_capacity(self.batch * self.rows.positions * self.columns.positions * self.channels);
        let inside = |slide: &WindowStride, at: usize| {
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

/// A reduction: initial value, step with an element, and result from the accumulator and the number of elements.
type PoolReduction<S> = (S, fn(S, S) -> S, fn(S, S) -> S);

/// Computes `x: T[B, H, W, C] → T[B, H', W', C]`: reduces each window, then maps the result and the number of
/// positions.
fn pooled(
    call: &OperatorCall,
    (zero, add, end): PoolReduction<i32>,
    (start, add_float, end_float): PoolReduction<f32>,
) -> Result<Vec<Literal>> {
    let (x, pool) = (call.input(0)?, PoolWindows::new(call)?);
    let activation = call.operator.activation()?;
    match x.dtype() {
        DType::I8 => {
            let (scale, zero_point) = call.output_scale()?;
            let (low, high) = activation_range(activation, scale, zero_point);
            let all = pool.fold(x.elements::<i8>()?, zero, |s, q| add(s, q.into()));
            let one = |(sum, n): (i32, usize)| end(sum, (n as i32).max(1)).max(low).min(high) as i8;
            call.made(&all.into_iter().map(one).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let (low, high) = activation.bounds();
            let all = pool.fold(x.elements::<f32>()?, start, add_float);
            let one = |(sum, n): (f32, usize)| end_float(sum, n.max(1) as f32).max(low).min(high);
            call.made(&all.into_iter().map(one).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

/// Computes averages; integers are rounded half away from zero.
fn average(call: &OperatorCall) -> Result<Vec<Literal>> {
    let mean = |sum: i32, n| if sum > 0 { sum.wrapping_add(n / 2) / n } else { sum.wrapping_sub(n / 2) / n };
    pooled(call, (0, i32::wrapping_add, mean), (0.0, |s, v| s + v, |sum, n| sum / n))
}

/// Computes L2_POOL_2D: the root of the mean of the squares, in floats.
fn root_mean_square(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, pool) = (call.input(0)?, PoolWindows::new(call)?);
    let (low, high) = call.operator.activation()?.bounds();
    let all = pool.fold(x.elements::<f32>()?, 0f32, |sum, v| sum + v * v);
    let one = |(sum, n): (f32, usize)| (sum / n.max(1) as f32).sqrt().max(low).min(high);
    call.made(&all.into_iter().map(one).collect::<Vec<f32>>())
}

fn max(call: &OperatorCall) -> Result<Vec<Literal>> {
    pooled(call, (i8::MIN.into(), i32::max, |most, _| most), (f32::MIN, f32::max, |most, _| most))
}
