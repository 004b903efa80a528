//! Convolutions: `x: T[B, H, W, C]`, kernels `[O, h, w, I]`, of channels on their own `[1, h, w, C·m]`.

use super::call::{Arg, Call};
use super::window::{Slide, is_same, slides};
use crate::fixed::{activation_range, multiply_by_quantized_multiplier, quantize_multiplier};
use crate::model::{Tensor, broken};
use crate::op::Field;
use std::borrow::Cow;
use systole_base::{DType, Literal, Result};

/// Sums of a channel as integers of the output.
pub(super) struct Requantize {
    multipliers: Vec<(i32, i32)>,
    zero_point: i32,
    range: (i32, i32),
}

impl Requantize {
    pub fn new(call: &Call, x: &Tensor, w: &Tensor, channels: usize) -> Result<Requantize> {
        let output = call.output()?;
        let ((input_scale, _), (scale, zero_point)) = (x.scale()?, output.scale()?);
        let q =
            w.quantization.as_ref().ok_or_else(|| broken(format!("the weights {} have no scale", w.name)))?;
        if q.zero_point.iter().any(|&z| z != 0) {
            return Err(broken(format!("the weights {} have a zero point that is not 0", w.name)));
        }
        if q.scale.len() != 1 && q.scale.len() != channels {
            return Err(broken(format!("{} scales for {channels} channels", q.scale.len())));
        }
        let one = |&s: &f32| quantize_multiplier(f64::from(input_scale) * f64::from(s) / f64::from(scale));
        let multipliers: Vec<(i32, i32)> = q.scale.iter().map(one).collect();
        let range = activation_range(call.operator.activation()?, scale, zero_point);
        Ok(Requantize { multipliers, zero_point, range })
    }

    #[inline]
    pub fn apply(&self, sum: i32, channel: usize) -> i8 {
        let (m, shift) = self.multipliers[if self.multipliers.len() == 1 { 0 } else { channel }];
        let y = multiply_by_quantized_multiplier(sum, m, shift).saturating_add(self.zero_point);
        y.max(self.range.0).min(self.range.1) as i8
    }
}

/// Pictures beside kernels of int8: rounded, each for itself.
fn float_pictures<'a>(x: &Arg<'a>, w: &Arg, batch: usize) -> Result<Cow<'a, [f32]>> {
    let values = x.elements::<f32>()?;
    Ok(match w.dtype() {
        DType::F32 => Cow::Borrowed(values),
        _ => Cow::Owned(super::convert::rounded(values, batch, false)),
    })
}

/// Kernels that are int8 beside floats: their values.
fn float_weights(w: &Arg, channels: usize) -> Result<Vec<f32>> {
    if w.dtype() == DType::F32 {
        return Ok(w.elements::<f32>()?.to_vec());
    }
    super::convert::dequantized(w, channels)
}

pub(super) fn conv2d(call: &Call) -> Result<Vec<Literal>> {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let ([b, h, width, c], [o, kh, kw, i]) = (x.of_rank::<4>()?, w.of_rank::<4>()?);
    if i == 0 || !c.is_multiple_of(i) || o == 0 || !o.is_multiple_of(c / i) {
        return Err(broken(format!("{o} kernels of {i} channels on {c} channels")));
    }
    let slides = slides(call, [h, width], [kh, kw], true)?;
    let [rows, columns] = slides;
    call.check_output(&[b, rows.positions, columns.positions, o])?;
    let windows = Windows { batch: b, rows, columns, channels: c, own: i };
    let (per_group, size) = (o / (c / i), kh * kw * i);
    match x.dtype() {
        DType::I8 => {
            let requantize = Requantize::new(call, x.tensor, w.tensor, o)?;
            let zero = x.tensor.scale()?.1 as i16;
            let bias = call.bias::<i32>(2, o)?;
            let pixels: Vec<i16> = x.elements::<i8>()?.iter().map(|&q| i16::from(q) - zero).collect();
            let kernels: Vec<i16> = w.elements::<i8>()?.iter().map(|&q| q.into()).collect();
            let y = windows.each(&pixels, 0i16, o, |patch, channel| {
                let group = channel / per_group;
                let sum = dot_i16(
                    &patch[group * size..(group + 1) * size],
                    &kernels[channel * size..(channel + 1) * size],
                );
                requantize.apply(sum.wrapping_add(bias.map_or(0, |b| b[channel])), channel)
            });
            call.made(&y)
        }
        DType::F32 => {
            let kernels = float_weights(&w, o)?;
            let bias = call.bias::<f32>(2, o)?;
            let (low, high) = call.operator.activation()?.bounds();
            let y = windows.each(&float_pictures(&x, &w, b)?, 0f32, o, |patch, channel| {
                let group = channel / per_group;
                let sum = dot_f32(
                    &patch[group * size..(group + 1) * size],
                    &kernels[channel * size..(channel + 1) * size],
                );
                (sum + bias.map_or(0.0, |b| b[channel])).max(low).min(high)
            });
            call.made(&y)
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}

/// Windows of a picture, each as rows of numbers: by group, by place, by channel.
struct Windows {
    batch: usize,
    rows: Slide,
    columns: Slide,
    channels: usize,
    /// Channels of a group.
    own: usize,
}

impl Windows {
    /// `of(window, output channel)` for every window; what lies outside the picture is `outside`.
    fn each<T: Copy, U>(&self, x: &[T], outside: T, outputs: usize, of: impl Fn(&[T], usize) -> U) -> Vec<U> {
        let Windows { batch, rows, columns, channels, own } = *self;
        let taps = rows.window * columns.window;
        let mut patch = vec![outside; taps * channels];
        let mut y = Vec::with_capacity(batch * rows.positions * columns.positions * outputs);
        for b in 0..batch {
            for oy in 0..rows.positions {
                for ox in 0..columns.positions {
                    for ky in 0..rows.window {
                        for kx in 0..columns.window {
                            let place = rows.place(oy, ky).zip(columns.place(ox, kx));
                            let from =
                                place.map(|(py, px)| ((b * rows.size + py) * columns.size + px) * channels);
                            for g in 0..channels / own {
                                let to = (g * taps + ky * columns.window + kx) * own;
                                match from {
                                    Some(from) => {
                                        let from = from + g * own;
                                        patch[to..to + own].copy_from_slice(&x[from..from + own]);
                                    }
                                    None => patch[to..to + own].fill(outside),
                                }
                            }
                        }
                    }
                    y.extend((0..outputs).map(|channel| of(&patch, channel)));
                }
            }
        }
        y
    }
}

/// Σ a·b.
pub(super) fn dot_i16(a: &[i16], b: &[i16]) -> i32 {
    a.iter().zip(b).fold(0i32, |sum, (&a, &b)| sum.wrapping_add(i32::from(a) * i32::from(b)))
}

/// Σ a·b, in sixteen interleaved sums: the order is fixed, and fast.
pub(super) fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    let (a, b) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for i in 0..16 {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

pub(super) fn depthwise(call: &Call) -> Result<Vec<Literal>> {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let ([b, h, width, c], [_, kh, kw, o]) = (x.of_rank::<4>()?, w.of_rank::<4>()?);
    let multiplier = call.at_least_1(Field::DepthMultiplier)?;
    if c.checked_mul(multiplier) != Some(o) || w.dims()[0] != 1 {
        return Err(broken(format!("{o} kernels on {c} channels, {multiplier} for each")));
    }
    let slides = slides(call, [h, width], [kh, kw], true)?;
    let [rows, columns] = slides;
    call.check_output(&[b, rows.positions, columns.positions, o])?;
    let each = Channels { batch: b, slides, channels: c, multiplier };
    match x.dtype() {
        DType::I8 => {
            let requantize = Requantize::new(call, x.tensor, w.tensor, o)?;
            let zero = x.tensor.scale()?.1;
            let bias = call.bias::<i32>(2, o)?;
            let add = |sum: i32, x: i8, w: i8| sum.wrapping_add((i32::from(x) - zero) * i32::from(w));
            let start = |channel: usize| bias.map_or(0, |b| b[channel]);
            let y = each.sums(x.elements::<i8>()?, w.elements::<i8>()?, |_| 0i32, add);
            let end = |(at, sum): (usize, &i32)| requantize.apply(sum.wrapping_add(start(at % o)), at % o);
            call.made(&y.iter().enumerate().map(end).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let kernels = float_weights(&w, o)?;
            let bias = call.bias::<f32>(2, o)?;
            let (low, high) = call.operator.activation()?.bounds();
            let y = each.sums(&float_pictures(&x, &w, b)?, &kernels, |_| 0f32, |sum, x, w| sum + x * w);
            let end = |(at, sum): (usize, &f32)| (sum + bias.map_or(0.0, |b| b[at % o])).max(low).min(high);
            call.made(&y.iter().enumerate().map(end).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}

/// Channels that are convolved on their own.
struct Channels {
    batch: usize,
    slides: [Slide; 2],
    channels: usize,
    multiplier: usize,
}

impl Channels {
    fn sums<X: Copy, W: Copy, S: Copy>(
        &self,
        x: &[X],
        w: &[W],
        start: impl Fn(usize) -> S,
        add: impl Fn(S, X, W) -> S,
    ) -> Vec<S> {
        let ([rows, columns], outputs) = (self.slides, self.channels * self.multiplier);
        let mut y = Vec::with_capacity(self.batch * rows.positions * columns.positions * outputs);
        for b in 0..self.batch {
            for oy in 0..rows.positions {
                for ox in 0..columns.positions {
                    let at = y.len();
                    y.extend((0..outputs).map(&start));
                    let sums = &mut y[at..];
                    for ky in 0..rows.window {
                        for kx in 0..columns.window {
                            let Some((py, px)) = rows.place(oy, ky).zip(columns.place(ox, kx)) else {
                                continue;
                            };
                            let x = &x[((b * rows.size + py) * columns.size + px) * self.channels..];
                            let w = &w[(ky * columns.window + kx) * outputs..];
                            for (o, sum) in sums.iter_mut().enumerate() {
                                *sum = add(*sum, x[o / self.multiplier], w[o]);
                            }
                        }
                    }
                }
            }
        }
        y
    }
}

/// Inputs: the output's shape, kernels `[O, h, w, I]`, x, perhaps a bias.
pub(super) fn transposed(call: &Call) -> Result<Vec<Literal>> {
    let (w, x) = (call.input(1)?, call.input(2)?);
    let ([b, h, width, c], [o, kh, kw, i]) = (x.of_rank::<4>()?, w.of_rank::<4>()?);
    let out = call.output()?;
    let [ob, oh, ow, oc] =
        <[usize; 4]>::try_from(out.dims()).map_err(|_| broken("its output is no picture".into()))?;
    let shape = call.input(0)?.indices()?;
    if shape != [ob, oh, ow, oc].map(|d| d as i64) || (ob, oc, i) != (b, o, c) {
        return Err(broken(format!("kernels {} on {} make no {}", w.tensor.ty, x.tensor.ty, out.ty)));
    }
    let (sh, sw) = (call.at_least_1(Field::StrideH)?, call.at_least_1(Field::StrideW)?);
    let before = |size: usize, out: usize, k: usize, stride: usize| -> Result<usize> {
        // The padding of the convolution of which this is the transpose.
        let needed = (size.saturating_sub(1)) * stride + k;
        Ok(if is_same(call)? { needed.saturating_sub(out) / 2 } else { 0 })
    };
    let scatter = Scatter {
        x: [b, h, width, c],
        y: [b, oh, ow, o],
        window: [kh, kw],
        strides: [sh, sw],
        before: [before(h, oh, kh, sh)?, before(width, ow, kw, sw)?],
    };
    match x.dtype() {
        DType::I8 => {
            let requantize = Requantize::new(call, x.tensor, w.tensor, o)?;
            let zero = x.tensor.scale()?.1;
            let bias = call.bias::<i32>(3, o)?;
            let add = |sum: i32, x: i8, w: i8| sum.wrapping_add((i32::from(x) - zero) * i32::from(w));
            let y = scatter.sums(x.elements::<i8>()?, w.elements::<i8>()?, 0i32, add);
            let end = |(at, sum): (usize, &i32)| {
                requantize.apply(sum.wrapping_add(bias.map_or(0, |b| b[at % o])), at % o)
            };
            call.made(&y.iter().enumerate().map(end).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let kernels = float_weights(&w, o)?;
            let bias = call.bias::<f32>(3, o)?;
            let (low, high) = call.operator.activation()?.bounds();
            let y = scatter.sums(x.elements::<f32>()?, &kernels, 0f32, |sum, x, w| sum + x * w);
            let end = |(at, sum): (usize, &f32)| (sum + bias.map_or(0.0, |b| b[at % o])).max(low).min(high);
            call.made(&y.iter().enumerate().map(end).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("elements of type {other}"))),
    }
}

/// Each pixel adds its kernels to a window of the output.
struct Scatter {
    x: [usize; 4],
    y: [usize; 4],
    window: [usize; 2],
    strides: [usize; 2],
    before: [usize; 2],
}

impl Scatter {
    fn sums<X: Copy, W: Copy, S: Copy>(
        &self,
        x: &[X],
        w: &[W],
        zero: S,
        add: impl Fn(S, X, W) -> S,
    ) -> Vec<S> {
        let ([b, h, width, c], [_, oh, ow, o], [kh, kw]) = (self.x, self.y, self.window);
        let mut y = vec![zero; b * oh * ow * o];
        for at in 0..b * h * width {
            let (n, py, px) = (at / (h * width), at / width % h, at % width);
            for ky in 0..kh {
                for kx in 0..kw {
                    let inside = |p: usize, k: usize, d: usize, limit: usize| {
                        (p * self.strides[d] + k).checked_sub(self.before[d]).filter(|&q| q < limit)
                    };
                    let Some((oy, ox)) = inside(py, ky, 0, oh).zip(inside(px, kx, 1, ow)) else { continue };
                    for channel in 0..o {
                        let sum = &mut y[((n * oh + oy) * ow + ox) * o + channel];
                        let kernel = &w[((channel * kh + ky) * kw + kx) * c..][..c];
                        *sum =
                            x[at * c..(at + 1) * c].iter().zip(kernel).fold(*sum, |s, (&x, &w)| add(s, x, w));
                    }
                }
            }
        }
        y
    }
}
