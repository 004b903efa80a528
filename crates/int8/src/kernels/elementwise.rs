//! Element-wise int8 kernels: lookup tables computed with the TFLite interpreter, quantize, dequantize, add, binary
//! ops.

use super::op_kernel::{OpKernel, OpKernelContext};
use crate::op_context::OpContext;
use crate::probe::{ProbeOperand, all_bytes, probe};
use systole_base::DType;
use systole_cpu::int8::{BinaryLut, FormulaHint, Int8Add, Int8Isa, in_chunks, table as by_table};
use systole_tflite::{TfliteOp, quantize_multiplier, sum_multipliers};

/// Elements per parallel block.
const PART: usize = 1 << 14;

struct LutKernel(Box<[i8; 256]>);

impl OpKernel for LutKernel {
    fn name(&self) -> &'static str {
        "table"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        by_table(cx.team, &self.0, cx.bytes(0), bytemuck::cast_slice_mut(y));
    }
}

/// Dequantizes int8 through a table of f32.
struct Int8DequantizeKernel(Vec<[u8; 4]>);

impl OpKernel for Int8DequantizeKernel {
    fn name(&self) -> &'static str {
        "table"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let x = cx.bytes(0);
        in_chunks(cx.team, y, 4 * PART, x.len() as f64, |n, y| {
            for (y, &q) in y.chunks_exact_mut(4).zip(&x[n * PART..]) {
                y.copy_from_slice(&self.0[(i32::from(q) + 128) as usize]);
            }
        });
    }
}

/// Returns the kernel of a unary operator: a lookup table.
pub(super) fn table(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (x, y) = (site.bytes(0)?, site.output()?);
    if x.dims() != y.dims() {
        return None;
    }
    let of_all = || {
        probe(site, vec![ProbeOperand { operand: 0, value: all_bytes(&[1, 256])? }], Some(&[1, 256]), None)
    };
    match y.ty.dtype {
        DType::I8 => {
            let entries = of_all()?.first()?.as_slice::<i8>().ok()?.to_vec();
            Some(Box::new(LutKernel(entries.into_boxed_slice().try_into().ok()?)))
        }
        // Per-channel scales would need one table per channel.
        DType::F32 if x.scale().is_ok() => {
            let entries: Vec<[u8; 4]> =
                of_all()?.first()?.as_slice::<f32>().ok()?.iter().map(|v| v.to_ne_bytes()).collect();
            Some(Box::new(Int8DequantizeKernel(entries)))
        }
        _ => None,
    }
}

/// Quantizes f32 to int8.
struct QuantizeKernel {
    scale: f32,
    zero: i32,
}

/// Largest f32 below 0.5: adding it before truncation rounds half away from zero.
const BELOW_HALF: f32 = 0.5 - f32::EPSILON / 4.0;

impl OpKernel for QuantizeKernel {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let x = cx.inputs.first().copied().unwrap_or_default();
        let y: &mut [i8] = bytemuck::cast_slice_mut(y);
        in_chunks(cx.team, y, PART, x.len() as f64 / 4.0, |n, y| {
            let (x, _) = x[4 * n * PART..].as_chunks::<4>();
            for (y, v) in y.iter_mut().zip(x) {
                let q = f32::from_ne_bytes(*v) / self.scale;
                let q = (q + BELOW_HALF.copysign(q)) as i32;
                *y = q.saturating_add(self.zero).clamp(-128, 127) as i8;
            }
        });
    }
}

/// Returns the kernel of QUANTIZE: from f32, or from int8 with another scale.
pub(super) fn quantize(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let x = site.input(0)?;
    if x.ty.dtype != DType::F32 || x.data.is_some() {
        return table(site);
    }
    let (scale, zero) = site.byte_output(x.dims())?.scale().ok()?;
    Some(Box::new(QuantizeKernel { scale, zero }))
}

struct AddKernel(Int8Isa, Int8Add);

impl OpKernel for AddKernel {
    fn name(&self) -> &'static str {
        "addition"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        self.1.run(self.0, cx.team, cx.bytes(0), cx.bytes(1), bytemuck::cast_slice_mut(y));
    }
}

/// A binary operator; one operand has the result's shape, the other is broadcast.
struct BinaryLutKernel {
    pairs: BinaryLut,
    /// Index of the operand with the result's shape.
    full: usize,
    /// Number of consecutive result elements per element of the broadcast operand, and that operand's elements per
    /// sample.
    inner: usize,
    other: usize,
    is_constant: bool,
}

impl OpKernel for BinaryLutKernel {
    fn name(&self) -> &'static str {
        if self.pairs.is_formula() { "formula of pairs" } else { "table of pairs" }
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let (a, b) = (cx.bytes(self.full), cx.bytes(1 - self.full));
        let y: &mut [i8] = bytemuck::cast_slice_mut(y);
        let own = y.len() / cx.samples.max(1);
        if self.is_constant || own == self.inner * self.other {
            return self.pairs.run(cx.team, a, b, self.inner, y);
        }
        let samples = a.chunks_exact(own.max(1)).zip(b.chunks_exact(self.other.max(1)));
        for ((a, b), y) in samples.zip(y.chunks_exact_mut(own.max(1))) {
            self.pairs.run(cx.team, a, b, self.inner, y);
        }
    }
}

/// Returns how many consecutive elements of `dims` use the same element of `own`, or `None` for another broadcast
/// pattern.
fn repeated(own: &[usize], dims: &[usize]) -> Option<usize> {
    let lead = dims.len().checked_sub(own.len())?;
    let mine = |d: usize| d.checked_sub(lead).map_or(1, |d| own[d]);
    if dims.iter().enumerate().any(|(d, &size)| mine(d) != 1 && mine(d) != size) {
        return None;
    }
    // From the end: broadcast dimensions, the operand's own dimensions, broadcast dimensions.
    let (mut inner, mut state) = (1, 0);
    for (d, &size) in dims.iter().enumerate().rev().filter(|(_, d)| **d > 1) {
        state = match (mine(d) == size, state) {
            (true, 0 | 1) => 1,
            (false, 0) => {
                inner *= size;
                0
            }
            (false, _) => 2,
            (true, _) => return None,
        };
    }
    Some(inner)
}

pub(super) fn both(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (a, b, y) = (site.input(0)?, site.input(1)?, site.output()?);
    let all = [a, b, y];
    if all.iter().any(|t| t.ty.dtype != DType::I8) {
        return None;
    }
    if let Some(sum) = sum(site) {
        return Some(sum);
    }
    let full = [a, b].iter().position(|t| t.data.is_none() && t.dims() == y.dims())?;
    let other = [a, b][1 - full];
    let inner = repeated(other.dims(), y.dims())?;
    let shapes = if full == 0 { [[256, 1], [1, 256]] } else { [[1, 256], [256, 1]] };
    let value = |operand: usize| Some(ProbeOperand { operand, value: all_bytes(&shapes[operand])? });
    let made = probe(site, vec![value(0)?, value(1)?], Some(&[256, 256]), None)?;
    let entries = made.first()?.as_slice::<i8>().ok()?.to_vec().into_boxed_slice().try_into().ok()?;
    let is_constant = other.data.is_some();
    let pairs = BinaryLut::new(site.unit, entries, likely(site, full).unwrap_or(FormulaHint::Other));
    Some(Box::new(BinaryLutKernel { pairs, full, inner, other: other.ty.elements(), is_constant }))
}

/// Returns the formula to try, with operand `full` first.
fn likely(site: &OpContext, full: usize) -> Option<FormulaHint> {
    let [(sa, za), (sb, zb)] = [site.input(full)?.scale().ok()?, site.input(1 - full)?.scale().ok()?];
    let (scale, zero) = site.output()?.scale().ok()?;
    let slope = |of: f32| f64::from(of) / f64::from(scale);
    let sign = |operand: usize| if operand == 0 { 1.0 } else { -1.0 };
    Some(match site.operator.op {
        TfliteOp::Minimum => FormulaHint::Least,
        TfliteOp::Maximum => FormulaHint::Greatest,
        TfliteOp::Add => FormulaHint::Sum([slope(sa), slope(sb)]),
        TfliteOp::Sub => FormulaHint::Sum([sign(full) * slope(sa), sign(1 - full) * slope(sb)]),
        TfliteOp::Mul => {
            FormulaHint::Product([za, zb], quantize_multiplier(f64::from(sa * sb / scale)), zero)
        }
        _ => return None,
    })
}

/// Returns the kernel of ADD or SUB of two computed tensors of the same shape.
fn sum(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (a, b) = (site.bytes(0)?, site.bytes(1)?);
    let y = site.byte_output(a.dims())?;
    let is_difference = match site.operator.op {
        TfliteOp::Add => false,
        TfliteOp::Sub => true,
        _ => return None,
    };
    if a.dims() != b.dims() {
        return None;
    }
    let ((sa, za), (sb, zb), (scale, zero)) = (a.scale().ok()?, b.scale().ok()?, y.scale().ok()?);
    let [of_a, of_b, of_sum] = sum_multipliers(sa, sb, scale);
    let (low, high) = site.range(scale, zero)?;
    let addition = Int8Add::new([za, zb], [of_a, of_b], is_difference, of_sum, (zero, low, high))?;
    Some(Box::new(AddKernel(site.unit, addition)))
}
