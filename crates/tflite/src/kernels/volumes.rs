//! CONV_3D, CONV_3D_TRANSPOSE, and LOCAL_RESPONSE_NORMALIZATION over channels, in floats.

use super::call::OperatorCall;
use super::op_row::operators;
use super::window::{WindowStride, is_same};
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    LocalResponseNormalization "LOCAL_RESPONSE_NORMALIZATION" 13;
        options 13 [0 Radius, 1 Bias, 2 Alpha, 3 Beta]; versions 1 1; NoInt8; local_response
    Conv3D "CONV_3D" 132;
        options 106 [0 Padding, 1 StrideD, 2 StrideW, 3 StrideH, 4 Activation, 5 DilationD, 6 DilationW, 7 DilationH];
        versions 1 1; NoInt8; conv3d
    Conv3DTranspose "CONV_3D_TRANSPOSE" 141;
        options 106 [0 Padding, 1 StrideD, 2 StrideW, 3 StrideH, 4 Activation, 5 DilationD, 6 DilationW, 7 DilationH];
        versions 1 1; NoInt8; transposed3d
}

/// Computes LOCAL_RESPONSE_NORMALIZATION: `x / (bias + α Σ x²)^β` over neighboring channels.
///
/// As LiteRT's optimized kernel; its reference kernel leaves out the last neighbor.
fn local_response(call: &OperatorCall) -> Result<Vec<Literal>> {
    let x = call.input(0)?;
    call.check_output(x.dims())?;
    ensure!(x.dtype() == DType::F32, call.unsupported(format_args!("element type {}", x.dtype())));
    let n = x.dims().last().copied().ok_or_else(|| broken("the operand is a scalar".into()))?;
    let number = |field| call.operator.number(field) as f32;
    let (bias, alpha, beta) =
        (number(OptionField::Bias), number(OptionField::Alpha), number(OptionField::Beta));
    let radius = call.operator.int(OptionField::Radius).clamp(0, n as i64) as usize;
    let mut y = Vec::with_capacity(x.ty().elements());
    for row in x.elements::<f32>()?.chunks_exact(n) {
        for (c, v) in row.iter().enumerate() {
            let near = &row[c.saturating_sub(radius)..(c + radius + 1).min(n)];
            let sum: f32 = near.iter().map(|v| v * v).sum();
            y.push(v * (bias + alpha * sum).powf(-beta));
        }
    }
    call.made(&y)
}

/// Computes CONV_3D: `x: f32[B, D, H, W, I]`, filter `[d, h, w, I, O]`, bias `[O]`.
fn conv3d(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let ([batch, depth, height, width, own], [kd, kh, kw, inputs, outputs]) =
        (x.of_rank::<5>()?, w.of_rank::<5>()?);
    ensure!(own == inputs, broken(format!("filter {} does not match {}", w.ty(), x.ty())));
    let same = is_same(call)?;
    let window = |size, window, stride, dilation| {
        WindowStride::new(size, window, call.at_least_1(stride)?, call.at_least_1(dilation)?, same)
    };
    let windows = [
        window(depth, kd, OptionField::StrideD, OptionField::DilationD)?,
        window(height, kh, OptionField::StrideH, OptionField::DilationH)?,
        window(width, kw, OptionField::StrideW, OptionField::DilationW)?,
    ];
    let [d, h, v] = windows.map(|w| w.positions);
    call.check_output(&[batch, d, h, v, outputs])?;
    let bias = call.bias::<f32>(2, outputs)?;
    let (low, high) = call.operator.activation()?.bounds();
    let (pixels, filter) = (x.elements::<f32>()?, w.elements::<f32>()?);
    let mut y = Vec::with_capacity(batch * d * h * v * outputs);
    for at in 0..batch * d * h * v {
        let place = [at / v / h % d, at / v % h, at % v];
        let mut sums = bias.map_or_else(|| vec![0f32; outputs], <[f32]>::to_vec);
        for k in 0..kd * kh * kw {
            let inner = [k / kw / kh, k / kw % kh, k % kw];
            let found = [0, 1, 2].map(|i| windows[i].place(place[i], inner[i]));
            let [Some(z), Some(r), Some(c)] = found else { continue };
            let pixel = (((at / v / h / d * depth + z) * height + r) * width + c) * inputs;
            for (i, value) in pixels[pixel..pixel + inputs].iter().enumerate() {
                let row = &filter[(k * inputs + i) * outputs..][..outputs];
                sums.iter_mut().zip(row).for_each(|(s, w)| *s += value * w);
            }
        }
        y.extend(sums.into_iter().map(|s| s.max(low).min(high)));
    }
    call.made(&y)
}

/// Computes CONV_3D_TRANSPOSE: output shape, filter `[d, h, w, O, I]`, `x: f32[B, D, H, W, I]`, optional bias `[O]`.
fn transposed3d(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (w, x) = (call.input(1)?, call.input(2)?);
    let ([batch, depth, height, width, inputs], [kd, kh, kw, outputs, own]) =
        (x.of_rank::<5>()?, w.of_rank::<5>()?);
    let shape =
        call.input(0)?.indices()?.iter().map(|&d| usize::try_from(d).ok()).collect::<Option<Vec<_>>>();
    let shape: [usize; 5] =
        shape.and_then(|s| s.try_into().ok()).ok_or_else(|| broken("the output must have rank 5".into()))?;
    ensure!(
        own == inputs && shape[0] == batch && shape[4] == outputs,
        broken(format!("filter {} on {} does not give {shape:?}", w.ty(), x.ty()))
    );
    let n = call.check_output(&shape)?;
    let same = is_same(call)?;
    let side = |size: usize, out: usize, window: usize, stride, dilation| -> Result<[usize; 3]> {
        let (stride, dilation) = (call.at_least_1(stride)?, call.at_least_1(dilation)?);
        // Padding of the convolution that this one transposes.
        let reach = window.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        let needed = size.saturating_sub(1).saturating_mul(stride).saturating_add(reach);
        Ok([stride, dilation, if same { needed.saturating_sub(out) / 2 } else { 0 }])
    };
    let sides = [
        side(depth, shape[1], kd, OptionField::StrideD, OptionField::DilationD)?,
        side(height, shape[2], kh, OptionField::StrideH, OptionField::DilationH)?,
        side(width, shape[3], kw, OptionField::StrideW, OptionField::DilationW)?,
    ];
    let (pixels, filter) = (x.elements::<f32>()?, w.elements::<f32>()?);
    let mut y = vec![0f32; n];
    for at in 0..batch * depth * height * width {
        let place = [at / width / height % depth, at / width % height, at % width];
        let row = &pixels[at * inputs..(at + 1) * inputs];
        for k in 0..kd * kh * kw {
            let inner = [k / kw / kh, k / kw % kh, k % kw];
            let found = [0, 1, 2].map(|i| {
                let [stride, dilation, before] = sides[i];
                (place[i] * stride + inner[i] * dilation).checked_sub(before).filter(|p| *p < shape[i + 1])
            });
            let [Some(z), Some(r), Some(c)] = found else { continue };
            let to = (((at / width / height / depth * shape[1] + z) * shape[2] + r) * shape[3] + c) * outputs;
            for (o, sum) in y[to..to + outputs].iter_mut().enumerate() {
                let kernel = &filter[(k * outputs + o) * inputs..][..inputs];
                *sum += row.iter().zip(kernel).map(|(x, w)| x * w).sum::<f32>();
            }
        }
    }
    let bias = call.bias::<f32>(3, outputs)?;
    let (low, high) = call.operator.activation()?.bounds();
    for (i, v) in y.iter_mut().enumerate() {
        *v = (*v + bias.map_or(0.0, |b| b[i % outputs.max(1)])).max(low).min(high);
    }
    call.made(&y)
}
