//! Int8 BATCH_MATMUL of two tensors, neither of them constant, as in attention.
//!
//! The right matrix is packed like a dense layer's weights. Its values minus the zero point may need nine bits. They
//! are then split into two or three int8 terms, and the left matrix is repeated as often.

use super::op_kernel::{OpKernel, OpKernelContext};
use crate::op_context::OpContext;
use systole_base::bug;
use systole_cpu::ThreadPool;
use systole_cpu::int8::{Int8Isa, Int8Matmul, OutputQuantization, OutputScale, in_chunks};
use systole_tflite::{OptionField, quantize_multiplier};

struct BatchMatmul {
    unit: Int8Isa,
    m: usize,
    k: usize,
    n: usize,
    /// Whether the right matrix is stored as `[N, K]`.
    is_turned: bool,
    zeros: [i32; 2],
    /// Number of int8 terms that represent a value of the right matrix.
    terms: usize,
    scale: (i32, i32),
    zero: i32,
}

impl BatchMatmul {
    /// Creates the matmul with a right matrix `[N, terms · K]`.
    fn product(&self, w: &[i8]) -> Option<Int8Matmul> {
        let scale = OutputScale::Fixed(vec![self.scale]);
        let output = OutputQuantization { bias: None, scale, zero: self.zero, low: -128, high: 127 };
        Int8Matmul::dense_once(self.unit, w, self.terms * self.k, self.zeros[0], &output)
    }

    /// Returns `b` minus its zero point as rows, each repeated for every term.
    fn columns(&self, b: &[i8]) -> Vec<i8> {
        let (k, n, width) = (self.k, self.n, self.terms * self.k);
        let mut w = vec![0; n * width];
        let mut put = |j: usize, i: usize, b: i8| {
            let mut left = i32::from(b) - self.zeros[1];
            for term in 0..self.terms {
                let own = left.clamp(-128, 127);
                w[j * width + term * k + i] = own as i8;
                left -= own;
            }
        };
        if self.is_turned {
            let rows = b.chunks_exact(k).enumerate();
            rows.for_each(|(j, row)| row.iter().enumerate().for_each(|(i, b)| put(j, i, *b)));
        } else {
            let rows = b.chunks_exact(n).enumerate();
            rows.for_each(|(i, row)| row.iter().enumerate().for_each(|(j, b)| put(j, i, *b)));
        }
        w
    }

    /// Computes one matrix product on this thread.
    fn one(&self, a: &[i8], b: &[i8], y: &mut [i8]) {
        let Some(product) = self.product(&self.columns(b)) else {
            bug!("cannot create a matmul whose values are within the limits it was chosen for")
        };
        let team = ThreadPool::new(1);
        if self.terms == 1 {
            return product.run(&team, a, y);
        }
        let mut rows: Vec<i8> = Vec::with_capacity(self.terms * a.len());
        for row in a.chunks_exact(self.k) {
            (0..self.terms).for_each(|_| rows.extend_from_slice(row));
        }
        product.run(&team, &rows, y);
    }
}

impl OpKernel for BatchMatmul {
    fn name(&self) -> &'static str {
        "batch product"
    }

    fn run(&self, cx: &OpKernelContext, y: &mut [u8]) {
        let (a, b): (&[i8], &[i8]) = (cx.bytes(0), cx.bytes(1));
        let (of_a, of_b, of_y) = (self.m * self.k, self.k * self.n, self.m * self.n);
        let y: &mut [i8] = bytemuck::cast_slice_mut(y);
        let work = y.len() as f64 * self.k as f64 / 50.0;
        in_chunks(cx.team, y, of_y, work, |at, y| {
            self.one(&a[at * of_a..][..of_a], &b[at * of_b..][..of_b], y);
        });
    }
}

/// Returns the kernel for a BATCH_MATMUL of two computed tensors without batch broadcasting.
pub(super) fn matmul(site: &OpContext) -> Option<Box<dyn OpKernel>> {
    let (a, b) = (site.bytes(0)?, site.bytes(1)?);
    let (lead, &[m, k]) = a.dims().split_last_chunk::<2>()?;
    let (lead_b, &[b0, b1]) = b.dims().split_last_chunk::<2>()?;
    let is_turned = site.operator.is(OptionField::AdjY);
    let (own, n) = if is_turned { (b1, b0) } else { (b0, b1) };
    let y = site.byte_output(&[lead, &[m, n]].concat())?;
    if lead != lead_b || own != k || k == 0 || m == 0 || n == 0 || site.operator.is(OptionField::AdjX) {
        return None;
    }
    let ((sa, za), (sb, zb), (scale, zero)) = (a.scale().ok()?, b.scale().ok()?, y.scale().ok()?);
    if !(-128..=127).contains(&za) || !(-128..=127).contains(&zb) {
        return None;
    }
    let terms = match zb {
        0 => 1,
        -128 => 3,
        _ => 2,
    };
    let scale = quantize_multiplier(f64::from(sa * sb) / f64::from(scale));
    let form = BatchMatmul { unit: site.unit, m, k, n, is_turned, zeros: [za, zb], terms, scale, zero };
    // The largest possible distance from the zero point.
    let farthest = if zb >= 0 { -128 } else { 127 };
    form.product(&form.columns(&vec![farthest; k * n])).is_some().then(|| Box::new(form) as Box<dyn OpKernel>)
}
