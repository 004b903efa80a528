//! Int8 kernels of CONV_2D, DEPTHWISE_CONV_2D and FULLY_CONNECTED.

use super::op_kernel::{OpKernel, OpKernelContext};
use crate::op_context::OpContext;
use systole_base::DType;
use systole_cpu::int8::{Int8DepthwiseConv, Int8Matmul, OutputQuantization, OutputScale};
use systole_tflite::{OptionField, TfliteTensor, quantize_multiplier};

impl OpKernel for Int8Matmul {
    fn name(&self) -> &'static str {
        "product"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        Int8Matmul::run(self, cx.team, cx.bytes(0), bytemuck::cast_slice_mut(y));
    }
}

impl OpKernel for Int8DepthwiseConv {
    fn name(&self) -> &'static str {
        "depthwise"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        Int8DepthwiseConv::run(self, cx.team, cx.bytes(0), bytemuck::cast_slice_mut(y));
    }
}

/// Returns the bias operand: `Some(None)` if it is omitted, `None` if it is not constant.
fn bias<'a>(site: &OpContext<'a>, n: usize) -> Option<Option<&'a [i32]>> {
    match site.operand(n) {
        None => Some(None),
        Some(_) => Some(Some(site.constant::<i32>(n)?)),
    }
}

/// Returns the output quantization of a convolution with `channels` filters.
fn output<'a>(
    site: &OpContext<'a>,
    x: &TfliteTensor,
    w: &TfliteTensor,
    channels: usize,
    y: &TfliteTensor,
) -> Option<OutputQuantization<'a>> {
    let ((x_scale, _), (scale, zero)) = (x.scale().ok()?, y.scale().ok()?);
    let q = w.quantization.as_ref().filter(|q| q.scale.len() == 1 || q.scale.len() == channels)?;
    if q.zero_point.iter().any(|z| *z != 0) {
        return None;
    }
    let one = |s: &f32| quantize_multiplier(f64::from(x_scale) * f64::from(*s) / f64::from(scale));
    let (low, high) = site.range(scale, zero)?;
    let bias = bias(site, 2)?;
    Some(OutputQuantization {
        bias,
        scale: OutputScale::Fixed(q.scale.iter().map(one).collect()),
        zero,
        low,
        high,
    })
}

pub(super) fn convolution(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (x, w) = (site.bytes(0)?, site.input(1)?);
    let (&[b, h, width, c], &[o, kh, kw, own]) = (x.dims(), w.dims()) else { return None };
    // `slides` handles padding.
    let along = site.slides([h, width], [kh, kw], true)?;
    let y = site.byte_output(&[b, along[0].positions, along[1].positions, o])?;
    if own != c {
        return None;
    }
    let output = output(site, x, w, o, y)?;
    let zero = x.scale().ok()?.1;
    Some(Box::new(Int8Matmul::convolution(site.unit, site.constant::<i8>(1)?, along, c, zero, &output)?))
}

pub(super) fn depthwise(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (x, w) = (site.bytes(0)?, site.input(1)?);
    let (&[b, h, width, c], &[1, kh, kw, o]) = (x.dims(), w.dims()) else { return None };
    let along = site.slides([h, width], [kh, kw], true)?;
    let y = site.byte_output(&[b, along[0].positions, along[1].positions, o])?;
    if c.checked_mul(site.operator.count(OptionField::DepthMultiplier)?) != Some(o) {
        return None;
    }
    let output = output(site, x, w, o, y)?;
    let (zero, w) = (x.scale().ok()?.1, site.constant::<i8>(1)?);
    if c == o {
        return Some(Box::new(Int8DepthwiseConv::new(site.unit, w, along, c, zero, &output)?));
    }
    if c != 1 {
        return None;
    }
    // With one input channel it is a convolution with transposed weights.
    let turned: Vec<i8> = (0..o).flat_map(|o_at| w.iter().copied().skip(o_at).step_by(o)).collect();
    Some(Box::new(Int8Matmul::convolution(site.unit, &turned, along, 1, zero, &output)?))
}

pub(super) fn dense(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (x, w, y) = (site.bytes(0)?, site.input(1)?, site.output()?);
    let (&[out, own], (x_scale, zero)) = (w.dims(), x.scale().ok()?) else { return None };
    let rows = x.ty.elements() / own.max(1);
    let mut dims = vec![rows, out];
    if site.operator.is(OptionField::KeepNumDims) {
        dims = x.dims().to_vec();
        *dims.last_mut()? = out;
    }
    let fits = x.ty.elements() == rows * own
        && site.operator.int(OptionField::WeightsFormat) == 0
        && y.ty.dtype == DType::I8
        && y.dims() == dims
        && y.ty.elements() == rows * out;
    if !fits {
        return None;
    }
    let (scale, y_zero) = y.scale().ok()?;
    let q = w.quantization.as_ref()?;
    let around_0 = match q.scale.len() {
        1 => w.scale().ok()?.1 == 0,
        n => n == out && q.dimension == 0,
    };
    let factor = |s: &f32| f64::from(x_scale) * f64::from(*s) / f64::from(scale);
    let (low, high) = site.range(scale, y_zero)?;
    let bias = bias(site, 2)?;
    let scale = OutputScale::Factor(q.scale.iter().map(factor).collect());
    let output = OutputQuantization { bias, scale, zero: y_zero, low, high };
    let layer = Int8Matmul::dense(site.unit, site.constant::<i8>(1)?, own, zero, &output)?;
    around_0.then(|| Box::new(layer) as Box<dyn OpKernel>)
}
