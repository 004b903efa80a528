//! Convolution kernels: CONV_2D (kernels `[O, h, w, I]`), DEPTHWISE_CONV_2D (`[1, h, w, C·m]`), TRANSPOSE_CONV; `x:
//! T[B, H, W, C]`.

use super::call::{KernelOperand, OperatorCall};
use super::op_row::{OperandTypes, operators};
use super::quantize_cast::{dequantized, rounded};
use super::window::{WindowStride, is_same, slides};
use crate::fixed_point::{activation_range, multiply_by_quantized_multiplier, quantize_multiplier};
use crate::model::{TfliteTensor, broken};
use crate::op::OptionField;
use std::borrow::Cow;
use systole_base::{DType, Literal, Result};

operators! {
    Conv2D "CONV_2D" 3;
        options 1 [0 Padding, 1 StrideW, 2 StrideH, 3 Activation, 4 DilationW, 5 DilationH];
        versions 1 3 or conv2d_version; Weights; conv2d
    DepthwiseConv2D "DEPTHWISE_CONV_2D" 4;
        options 2 [0 Padding, 1 StrideW, 2 StrideH, 3 DepthMultiplier, 4 Activation, 5 DilationW, 6 DilationH];
        versions 1 3 or depthwise_version; Weights; depthwise
    TransposeConv "TRANSPOSE_CONV" 67; options 49 [0 Padding, 1 StrideW, 2 StrideH, 3 Activation];
        versions 1 2 or transposed_version; Weights; transposed
}

fn conv2d_version(t: &OperandTypes) -> i32 {
    let channels = |t: Option<&TfliteTensor>| t.and_then(|t| t.dims().last().copied());
    match channels(t.input(0)) != channels(t.input(1)) {
        true => 6,
        false if t.is_hybrid() => 5,
        false => t.base,
    }
}

fn depthwise_version(t: &OperandTypes) -> i32 {
    let is_dilated = [OptionField::DilationW, OptionField::DilationH].iter().any(|f| t.operator.int(*f) > 1);
    match t.is_hybrid() {
        true => 6,
        false if is_dilated => t.base.max(2),
        false => t.base,
    }
}

fn transposed_version(t: &OperandTypes) -> i32 {
    match t.operator.inputs.len() {
        _ if t.operator.int(OptionField::Activation) != 0 => 4,
        4 => 3,
        _ => t.base,
    }
}

/// Requantizes a channel's accumulators to output integers.
struct ChannelRequantizer {
    multipliers: Vec<(i32, i32)>,
    zero_point: i32,
    range: (i32, i32),
}

impl ChannelRequantizer {
    fn new(
        call: &OperatorCall,
        x: &TfliteTensor,
        w: &TfliteTensor,
        channels: usize,
    ) -> Result<ChannelRequantizer> {
        let output = call.output()?;
        let ((input_scale, _), (scale, zero_point)) = (x.scale()?, output.scale()?);
        let q = w.quantization.as_ref().ok_or_else(|| broken(format!("weights {} have no scale", w.name)))?;
        if q.zero_point.iter().any(|&z| z != 0) {
            return Err(broken(format!("weights {} have a nonzero zero point", w.name)));
        }
        if q.scale.len() != 1 && q.scale.len() != channels {
            return Err(broken(format!("got {} scales for {channels} channels", q.scale.len())));
        }
        let one = |&s: &f32| quantize_multiplier(f64::from(input_scale) * f64::from(s) / f64::from(scale));
        let multipliers: Vec<(i32, i32)> = q.scale.iter().map(one).collect();
        let range = activation_range(call.operator.activation()?, scale, zero_point);
        Ok(ChannelRequantizer { multipliers, zero_point, range })
    }

    #[inline]
    fn apply(&self, sum: i32, channel: usize) -> i8 {
        let (m, shift) = self.multipliers[if self.multipliers.len() == 1 { 0 } else { channel }];
        let y = multiply_by_quantized_multiplier(sum, m, shift).saturating_add(self.zero_point);
        y.max(self.range.0).min(self.range.1) as i8
    }
}

/// Computes the output of a convolution from its sums: requantized integers, or f32 clamped by the activation. `x` and
/// `w` are the operands, `bias` is the bias operand's index; with int8 weights, f32 inputs are rounded if `rounds`.
fn ended(
    call: &OperatorCall,
    [x, w]: [&KernelOperand; 2],
    bias: usize,
    rounds: bool,
    of_int8: impl FnOnce(&[i8], &[i8], i32) -> Vec<i32>,
    of_floats: impl FnOnce(&[f32], &[f32]) -> Vec<f32>,
) -> Result<Vec<Literal>> {
    let channels = call.output()?.dims().last().copied().unwrap_or(1).max(1);
    match x.dtype() {
        DType::I8 => {
            let requantize = ChannelRequantizer::new(call, x.tensor, w.tensor, channels)?;
            let bias = call.bias::<i32>(bias, channels)?;
            let sums = of_int8(x.elements()?, w.elements()?, x.tensor.scale()?.1);
            let end = |(at, sum): (usize, &i32)| {
                let channel = at % channels;
                requantize.apply(sum.wrapping_add(bias.map_or(0, |b| b[channel])), channel)
            };
            call.made(&sums.iter().enumerate().map(end).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let values = x.elements::<f32>()?;
            let is_float = w.dtype() == DType::F32;
            let kernels = match is_float {
                true => Cow::Borrowed(w.elements::<f32>()?),
                false => Cow::Owned(dequantized(w, channels)?),
            };
            let pictures = match rounds && !is_float {
                true => Cow::Owned(rounded(values, x.dims()[0], false)),
                false => Cow::Borrowed(values),
            };
            let bias = call.bias::<f32>(bias, channels)?;
            let (low, high) = call.operator.activation()?.bounds();
            let sums = of_floats(&pictures, &kernels);
            let end =
                |(at, sum): (usize, &f32)| (sum + bias.map_or(0.0, |b| b[at % channels])).max(low).min(high);
            call.made(&sums.iter().enumerate().map(end).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

fn conv2d(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let ([b, h, width, c], [o, kh, kw, i]) = (x.of_rank::<4>()?, w.of_rank::<4>()?);
    if i == 0 || !c.is_multiple_of(i) || o == 0 || !o.is_multiple_of(c / i) {
        return Err(broken(format!("{o} kernels of {i} channels do not match {c} input channels")));
    }
    let [rows, columns] = slides(call, [h, width], [kh, kw], true)?;
    call.check_output(&[b, rows.positions, columns.positions, o])?;
    let windows = PatchRows { batch: b, rows, columns, channels: c, own: i };
    let (per_group, size) = (o / (c / i), kh * kw * i);
    // Index of a channel's kernel, and of its group in a window.
    let places = move |channel: usize| {
        let group = channel / per_group;
        (group * size..(group + 1) * size, channel * size..(channel + 1) * size)
    };
    let of_int8 = |x: &[i8], w: &[i8], zero: i32| {
        let pixels: Vec<i16> = x.iter().map(|&q| i16::from(q) - zero as i16).collect();
        let kernels: Vec<i16> = w.iter().map(|&q| q.into()).collect();
        windows.each(&pixels, 0i16, o, |patch, channel| {
            let (group, kernel) = places(channel);
            dot_i16(&patch[group], &kernels[kernel])
        })
    };
    let of_floats = |x: &[f32], kernels: &[f32]| {
        windows.each(x, 0f32, o, |patch, channel| {
            let (group, kernel) = places(channel);
            dot_f32(&patch[group], &kernels[kernel])
        })
    };
    ended(call, [&x, &w], 2, true, of_int8, of_floats)
}

/// Image patches (im2col): each window as rows of numbers by group, position and channel.
struct PatchRows {
    batch: usize,
    rows: WindowStride,
    columns: WindowStride,
    channels: usize,
    /// Channels per group.
    own: usize,
}

impl PatchRows {
    /// Calls `of(window, output channel)` for every window; positions outside the image are `outside`.
    fn each<T: Copy, U>(&self, x: &[T], outside: T, outputs: usize, of: impl Fn(&[T], usize) -> U) -> Vec<U> {
        let PatchRows { batch, rows, columns, channels, own } = *self;
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

/// Computes Σ a·b.
pub(super) fn dot_i16(a: &[i16], b: &[i16]) -> i32 {
    a.iter().zip(b).fold(0i32, |sum, (&a, &b)| sum.wrapping_add(i32::from(a) * i32::from(b)))
}

/// Computes Σ a·b in sixteen interleaved sums: a fixed order, and fast.
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

fn depthwise(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let ([b, h, width, c], [_, kh, kw, o]) = (x.of_rank::<4>()?, w.of_rank::<4>()?);
    let multiplier = call.at_least_1(OptionField::DepthMultiplier)?;
    if c.checked_mul(multiplier) != Some(o) || w.dims()[0] != 1 {
        return Err(broken(format!("{o} kernels do not match {c} channels with multiplier {multiplier}")));
    }
    let slides = slides(call, [h, width], [kh, kw], true)?;
    let [rows, columns] = slides;
    call.check_output(&[b, rows.positions, columns.positions, o])?;
    let each = DepthwiseChannels { batch: b, slides, channels: c, multiplier };
    let of_int8 = |x: &[i8], w: &[i8], zero: i32| {
        each.sums(x, w, 0, |sum: i32, x, w| sum.wrapping_add((i32::from(x) - zero) * i32::from(w)))
    };
    ended(call, [&x, &w], 2, true, of_int8, |x, w| each.sums(x, w, 0.0, |sum, x, w| sum + x * w))
}

/// Depthwise convolution.
struct DepthwiseChannels {
    batch: usize,
    slides: [WindowStride; 2],
    channels: usize,
    multiplier: usize,
}

impl DepthwiseChannels {
    fn sums<X: Copy, W: Copy, S: Copy>(
        &self,
        x: &[X],
        w: &[W],
        zero: S,
        add: impl Fn(S, X, W) -> S,
    ) -> Vec<S> {
        let ([rows, columns], outputs) = (self.slides, self.channels * self.multiplier);
        let mut y = Vec::with_capacity(self.batch * rows.positions * columns.positions * outputs);
        for b in 0..self.batch {
            for oy in 0..rows.positions {
                for ox in 0..columns.positions {
                    let at = y.len();
                    y.resize(at + outputs, zero);
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

/// Computes TRANSPOSE_CONV. Inputs: output shape, kernels `[O, h, w, I]`, x, optional bias.
fn transposed(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (w, x) = (call.input(1)?, call.input(2)?);
    let ([b, h, width, c], [o, kh, kw, i]) = (x.of_rank::<4>()?, w.of_rank::<4>()?);
    let out = call.output()?;
    let [ob, oh, ow, oc] = <[usize; 4]>::try_from(out.dims())
        .map_err(|_| broken("the output must be an image of rank 4".into()))?;
    let shape = call.input(0)?.indices()?;
    if shape != [ob, oh, ow, oc].map(|d| d as i64) || (ob, oc, i) != (b, o, c) {
        return Err(broken(format!("kernels {} on {} do not give {}", w.ty(), x.ty(), out.ty)));
    }
    let (sh, sw) = (call.at_least_1(OptionField::StrideH)?, call.at_least_1(OptionField::StrideW)?);
    let before = |size: usize, out: usize, k: usize, stride: usize| -> Result<usize> {
        // Padding of the convolution that this one transposes.
        let needed = (size.saturating_sub(1)) * stride + k;
        Ok(if is_same(call)? { needed.saturating_sub(out) / 2 } else { 0 })
    };
    let scatter = TransposedConv {
        x: [b, h, width, c],
        y: [b, oh, ow, o],
        window: [kh, kw],
        strides: [sh, sw],
        before: [before(h, oh, kh, sh)?, before(width, ow, kw, sw)?],
    };
    let of_int8 = |x: &[i8], w: &[i8], zero: i32| {
        scatter.sums(x, w, 0, |sum: i32, x, w| sum.wrapping_add((i32::from(x) - zero) * i32::from(w)))
    };
    ended(call, [&x, &w], 3, true, of_int8, |x, w| scatter.sums(x, w, 0.0, |sum, x, w| sum + x * w))
}

/// Adds each pixel's kernels to a window of the output.
struct TransposedConv {
    x: [usize; 4],
    y: [usize; 4],
    window: [usize; 2],
    strides: [usize; 2],
    before: [usize; 2],
}

impl TransposedConv {
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
