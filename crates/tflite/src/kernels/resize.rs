//! TFLite image resize kernels (nearest, bilinear): `x: T[B, H, W, C] → T[B, H', W', C]`.

use super::call::{KernelOperand, OperatorCall};
use super::data_movement::picked;
use super::op_row::{OperandTypes, operators};
use crate::model::broken;
use crate::op::OptionField;
use systole_base::{DType, Literal, Result};

operators! {
    ResizeBilinear "RESIZE_BILINEAR" 23; options 15 [2 AlignCorners, 3 HalfPixelCenters];
        versions 1 2 or version; Same; bilinear
    ResizeNearest "RESIZE_NEAREST_NEIGHBOR" 97; options 74 [0 AlignCorners, 1 HalfPixelCenters];
        versions 1 2 or version; Same; nearest
}

fn version(t: &OperandTypes) -> i32 {
    if t.operator.is(OptionField::HalfPixelCenters) { 3 } else { t.base }
}

/// Returns the operand, its shape, and the new height and width.
fn sizes<'a>(call: &OperatorCall<'a>) -> Result<(KernelOperand<'a>, [usize; 4], [usize; 2])> {
    let x = call.input(0)?;
    let [b, h, w, c] = x.of_rank::<4>()?;
    let size = call.input(1)?.indices()?;
    let &[oh, ow] = &size[..] else {
        return Err(broken(format!("the size must have two entries, got {size:?}")));
    };
    let inside = |v: i64| usize::try_from(v).ok().filter(|v| (1..1 << 20).contains(v));
    let found = inside(oh).zip(inside(ow)).filter(|_| (1..1 << 20).contains(&h) && (1..1 << 20).contains(&w));
    let (oh, ow) = found.ok_or_else(|| broken(format!("cannot resize {} to {size:?}", x.ty())))?;
    call.check_output(&[b, oh, ow, c])?;
    Ok((x, [b, h, w, c], [oh, ow]))
}

fn nearest(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, [b, h, w, c], [oh, ow]) = sizes(call)?;
    let option = |field| call.operator.is(field);
    let (align, half) = (option(OptionField::AlignCorners), option(OptionField::HalfPixelCenters));
    let place = |at: usize, size: usize, out: usize| {
        let scale =
            if align && out > 1 { (size - 1) as f32 / (out - 1) as f32 } else { size as f32 / out as f32 };
        let at = (at as f32 + if half { 0.5 } else { 0.0 }) * scale;
        (if align { at.round() } else { at.floor() }.max(0.0) as usize).min(size - 1)
    };
    let mut places = Vec::new();
    for n in 0..b {
        for y in 0..oh {
            let row = n * h + place(y, h, oh);
            for column in 0..ow {
                let from = (row * w + place(column, w, ow)) * c;
                places.extend(from..from + c);
            }
        }
    }
    picked(call, &x, &places)
}

fn bilinear(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, [b, h, w, c], [oh, ow]) = sizes(call)?;
    let (align, half) =
        (call.operator.is(OptionField::AlignCorners), call.operator.is(OptionField::HalfPixelCenters));
    let of_all = |of: &dyn Fn(usize, usize, usize, usize) -> f64| {
        let mut y = Vec::with_capacity(b * oh * ow * c);
        for at in 0..b * oh * ow {
            let (n, oy, ox) = (at / (oh * ow), at / ow % oh, at % ow);
            y.extend((0..c).map(|channel| of(n, oy, ox, channel)));
        }
        y
    };
    let at = |n: usize, y: usize, x: usize, channel: usize| ((n * h + y) * w + x) * c + channel;
    match x.dtype() {
        DType::I8 => {
            let values = x.elements::<i8>()?;
            let position = |i, size, out| PixelPosition::new(i, size, out, align, half);
            let rows: Vec<PixelPosition> = (0..oh).map(|i| position(i, h, oh)).collect();
            let columns: Vec<PixelPosition> = (0..ow).map(|i| position(i, w, ow)).collect();
            let y = of_all(&|n, oy, ox, channel| {
                let (r, k) = (&rows[oy], &columns[ox]);
                let q = |y: usize, x: usize| i64::from(values[at(n, y, x, channel)]);
                let sum = q(r.low, k.low) * r.of_low * k.of_low
                    + q(r.high, k.low) * r.of_high * k.of_low
                    + q(r.low, k.high) * r.of_low * k.of_high
                    + q(r.high, k.high) * r.of_high * k.of_high;
                let nudge = if sum > 0 { 1 << 19 } else { -(1 << 19) };
                ((sum + nudge) / (1 << 20)) as f64
            });
            call.made(&y.iter().map(|&v| v as i8).collect::<Vec<i8>>())
        }
        DType::F32 => {
            let values = x.elements::<f32>()?;
            let scale = |size: usize, out: usize| match align && out > 1 {
                true => (size - 1) as f32 / (out - 1) as f32,
                false => size as f32 / out as f32,
            };
            let (sh, sw) = (scale(h, oh), scale(w, ow));
            let place = |i: usize, scale: f32, size: usize| {
                let at = if half { (i as f32 + 0.5) * scale - 0.5 } else { i as f32 * scale };
                let low = (at.floor().max(0.0) as usize).min(size - 1);
                (at, low, (at.ceil().max(0.0) as usize).min(size - 1))
            };
            let y = of_all(&|n, oy, ox, channel| {
                let ((fy, y0, y1), (fx, x0, x1)) = (place(oy, sh, h), place(ox, sw, w));
                let (dy, dx) = (fy - y0 as f32, fx - x0 as f32);
                let v = |y: usize, x: usize| values[at(n, y, x, channel)];
                let sum = v(y0, x0) * (1.0 - dy) * (1.0 - dx)
                    + v(y1, x0) * dy * (1.0 - dx)
                    + v(y0, x1) * (1.0 - dy) * dx
                    + v(y1, x1) * dy * dx;
                sum.into()
            });
            call.made(&y.iter().map(|&v| v as f32).collect::<Vec<f32>>())
        }
        other => Err(call.unsupported(format_args!("element type {other}"))),
    }
}

/// Position between two pixels, in units of 1/1024.
struct PixelPosition {
    low: usize,
    high: usize,
    of_low: i64,
    of_high: i64,
}

impl PixelPosition {
    fn new(i: usize, size: usize, out: usize, align: bool, half: bool) -> PixelPosition {
        let (i, n, m) = (i as i64, size as i64, out as i64);
        let scale = match align && m > 1 {
            true => (1024 * (n - 1) + (m - 1) / 2) / (m - 1),
            false => (1024 * n + m / 2) / m,
        };
        let at = if half { i * scale + scale / 2 - 512 } else { i * scale };
        let low = (at / 1024).max(0).min(n - 1);
        let high = ((at + 1023) / 1024).clamp(0, n - 1);
        let of_high = at - 1024 * low;
        PixelPosition { low: low as usize, high: high as usize, of_low: 1024 - of_high, of_high }
    }
}
