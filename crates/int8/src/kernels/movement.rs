//! Int8 data-movement kernels (TRANSPOSE, SLICE, PAD, CONCATENATION …) as lists of copies.
//!
//! The copies are found by running the interpreter on element indices.

use super::op_kernel::{OpKernel, OpKernelContext};
use crate::op_context::OpContext;
use crate::probe::{ProbeOperand, probe};
use systole_base::{DType, Literal};
use systole_cpu::int8::in_chunks;
use systole_tflite::{OptionField, TfliteOp, axis_of};

/// Maximum elements of a moved tensor: their indices take four times as many bytes.
const MOST: usize = 1 << 22;

/// Consecutive bytes of the operand, or fill values.
#[derive(Clone, Copy)]
struct CopySpan {
    /// Offset in the operand; `None` for fill values.
    from: Option<u32>,
    bytes: u32,
}

struct DataMovementKernel {
    operand: usize,
    pieces: Vec<CopySpan>,
    fill: u8,
    /// Bytes per sample of the operand.
    x: usize,
    y: usize,
}

impl OpKernel for DataMovementKernel {
    fn name(&self) -> &'static str {
        "moves"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let x = cx.inputs.get(self.operand).copied().unwrap_or_default();
        let work = y.len() as f64 / 4.0;
        in_chunks(cx.team, y, self.y, work, |n, y| {
            let (x, mut at) = (&x[n * self.x..], 0);
            for p in &self.pieces {
                let to = &mut y[at..at + p.bytes as usize];
                match p.from {
                    Some(from) => to.copy_from_slice(&x[from as usize..][..to.len()]),
                    None => to.fill(self.fill),
                }
                at += to.len();
            }
        });
    }
}

/// Returns the kernels of TRANSPOSE, SLICE, PAD and similar operators with one computed operand.
pub(super) fn moves(site: &OpContext) -> Option<Vec<Box<dyn OpKernel>>> {
    let operand = usize::from(site.operator.op == TfliteOp::Split);
    let mut others = (0..site.operator.inputs.len()).filter(|n| *n != operand);
    let x = site.input(operand)?;
    if x.data.is_some() || !others.all(|n| site.input(n).is_some_and(|t| t.data.is_some())) {
        return None;
    }
    let outputs = site.operator.outputs.iter().map(|y| site.model.tensors.get(*y));
    let outputs = outputs.collect::<Option<Vec<_>>>()?;
    let size = x.ty.dtype.size();
    let small = |n: usize| n <= MOST && n * size <= i32::MAX as usize;
    if !outputs.iter().all(|y| y.ty.dtype == x.ty.dtype && small(y.ty.elements()))
        || !small(x.ty.elements())
        || x.ty.dtype == DType::Bool
    {
        return None;
    }
    // Indices start at 1: 0 means fill value.
    let numbers: Vec<i32> = (1..=x.ty.elements() as i32).collect();
    let value = Literal::from_slice(x.dims(), &numbers).ok()?;
    let found = probe(site, vec![ProbeOperand { operand, value }], None, Some(DType::I32))?;
    let one = |(y, numbers): (&&systole_tflite::TfliteTensor, &Literal)| {
        let is_scaled = x.ty.dtype == DType::I8 && y.quantization.is_some();
        let fill = if is_scaled { y.scale().ok()?.1 as u8 } else { 0 };
        let pieces = pieces(numbers.as_slice::<i32>().ok()?, size);
        let moves = DataMovementKernel { operand, pieces, fill, x: x.ty.bytes(), y: y.ty.bytes() };
        Some(Box::new(moves) as Box<dyn OpKernel>)
    };
    (outputs.len() == found.len()).then(|| outputs.iter().zip(&found).map(one).collect())?
}

/// Merges consecutive elements into spans.
fn pieces(numbers: &[i32], size: usize) -> Vec<CopySpan> {
    let mut all: Vec<CopySpan> = Vec::new();
    let size = size as u32;
    for &n in numbers {
        let from = n.checked_sub(1).filter(|n| *n >= 0).map(|n| n as u32 * size);
        match all.last_mut() {
            Some(last) if last.from.map(|f| f + last.bytes) == from => last.bytes += size,
            _ => all.push(CopySpan { from, bytes: size }),
        }
    }
    all
}

struct ConcatKernel {
    /// For each operand: bytes per contiguous block, and whether it is constant.
    blocks: Vec<(usize, bool)>,
    /// Number of interleaved blocks per sample.
    outer: usize,
}

impl OpKernel for ConcatKernel {
    fn name(&self) -> &'static str {
        "concatenation"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let line: usize = self.blocks.iter().map(|(n, _)| n).sum();
        let work = y.len() as f64 / 8.0;
        in_chunks(cx.team, y, line, work, |at, y| {
            let mut to = 0;
            for ((bytes, constant), x) in self.blocks.iter().zip(&cx.inputs) {
                let from = if *constant { at % self.outer } else { at } * bytes;
                y[to..to + bytes].copy_from_slice(&x[from..from + bytes]);
                to += bytes;
            }
        });
    }
}

pub(super) fn concatenation(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let parts = (0..site.operator.inputs.len()).map(|n| site.input(n)).collect::<Option<Vec<_>>>()?;
    let (first, y) = (*parts.first()?, site.output()?);
    let axis = axis_of(site.operator.int(OptionField::Axis), first.dims().len())?;
    let mut dims = first.dims().to_vec();
    dims[axis] = 0;
    for p in &parts {
        let same = |t: &systole_tflite::TfliteTensor| t.quantization.clone().map(|q| (q.scale, q.zero_point));
        let fits = p.dims().len() == dims.len()
            && p.ty.dtype == y.ty.dtype
            && p.dims().iter().zip(&dims).enumerate().all(|(i, (a, b))| i == axis || a == b)
            && (p.ty.dtype != DType::I8 || same(p) == same(y));
        if !fits {
            return None;
        }
        dims[axis] += p.dims()[axis];
    }
    if y.dims() != dims || site.operator.op != TfliteOp::Concatenation {
        return None;
    }
    let outer: usize = dims[..axis].iter().product();
    let blocks = parts.iter().map(|p| (p.ty.bytes() / outer, p.data.is_some())).collect();
    Some(Box::new(ConcatKernel { blocks, outer }))
}
