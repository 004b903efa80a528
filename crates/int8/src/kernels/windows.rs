//! Int8 kernels of AVERAGE_POOL_2D and MAX_POOL_2D, and of reductions over adjacent dimensions (global pooling).

use super::op_kernel::{OpKernel, OpKernelContext};
use crate::op_context::OpContext;
use systole_base::DType;
use systole_cpu::int8::{Int8Pool, Int8WindowDim, OutputQuantization, OutputScale, PoolMode};
use systole_tflite::{OptionField, TfliteOp, axis_of, mean_multiplier, quantize_multiplier};

impl OpKernel for Int8Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        Int8Pool::run(self, cx.team, cx.bytes(0), bytemuck::cast_slice_mut(y));
    }
}

pub(super) fn pool(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let x = site.bytes(0)?;
    let &[b, h, w, c] = x.dims() else { return None };
    let window = [site.operator.count(OptionField::FilterH)?, site.operator.count(OptionField::FilterW)?];
    let along = site.slides([h, w], window, false)?;
    let y = site.byte_output(&[b, along[0].positions, along[1].positions, c])?;
    let (scale, zero) = y.scale().ok()?;
    let (low, high) = site.range(scale, zero)?;
    let pooling = match site.operator.op {
        TfliteOp::MaxPool2D => PoolMode::Max(low, high),
        _ => PoolMode::Mean(low, high),
    };
    Some(Box::new(Int8Pool::new(site.unit, along, c, &pooling)?))
}

/// One window over `size` pixels.
fn whole(size: usize) -> Int8WindowDim {
    Int8WindowDim { size, window: size, stride: 1, dilation: 1, before: 0, positions: 1 }
}

pub(super) fn reduction(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (x, y) = (site.bytes(0)?, site.output()?);
    let rank = x.dims().len();
    let mut gone = vec![false; rank];
    for axis in site.indices(1)? {
        gone[axis_of(axis, rank)?] = true;
    }
    let each = || x.dims().iter().zip(&gone);
    let dims: Vec<usize> = match site.operator.is(OptionField::KeepDims) {
        true => each().map(|(&d, &g)| if g { 1 } else { d }).collect(),
        false => each().filter(|(_, g)| !**g).map(|(&d, _)| d).collect(),
    };
    if y.ty.dtype != DType::I8 || y.dims() != dims {
        return None;
    }
    // Dimensions of size 1 do not separate reduced dimensions.
    let real: Vec<(usize, bool)> = each().map(|(&d, &g)| (d, g)).filter(|(d, _)| *d > 1).collect();
    let first = real.iter().position(|(_, g)| *g)?;
    let count = real[first..].iter().take_while(|(_, g)| *g).count();
    let (middle, inner) = real[first..].split_at(count);
    if inner.iter().any(|(_, g)| *g) {
        return None;
    }
    let of = |dims: &[(usize, bool)]| dims.iter().map(|(d, _)| d).product::<usize>();
    let (n, channels) = (of(middle), of(inner));
    let along = if channels == 1 { [whole(1), whole(n)] } else { [whole(n), whole(1)] };
    let ((own, own_zero), (scale, zero)) = (x.scale().ok()?, y.scale().ok()?);
    let scaled = |multiplier| {
        let output = OutputQuantization {
            bias: None,
            scale: OutputScale::Fixed(vec![multiplier]),
            zero,
            low: -128,
            high: 127,
        };
        PoolMode::Sum(own_zero, output)
    };
    let pooling = match site.operator.op {
        TfliteOp::ReduceMax => PoolMode::Max(-128, 127),
        TfliteOp::Mean => scaled(mean_multiplier(own, scale, n)),
        _ => scaled(quantize_multiplier(f64::from(own) / f64::from(scale))),
    };
    Some(Box::new(Int8Pool::new(site.unit, along, channels, &pooling)?))
}
