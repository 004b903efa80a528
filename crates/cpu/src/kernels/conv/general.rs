//! Fallback convolution kernel for any attributes (groups, dilations, layouts), in plain loops.

use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::select::SelectResult;
use smallvec::SmallVec;
use systole_ir::op::Convolution;
use systole_ir::{DType, Result, TensorType};

/// Convolution kernel for f32 or f64 with any attributes. Sums are in f64.
pub struct GeneralConvolution {
    op: Convolution,
    bias: bool,
    x: TensorType,
    k: TensorType,
    y: TensorType,
}

impl GeneralConvolution {
    /// Creates the kernel, or returns why it does not support the convolution.
    pub fn new(c: &Convolution, bias: bool, [x, k, y]: [&TensorType; 3]) -> SelectResult<GeneralConvolution> {
        let simple = |t: DType| matches!(t, DType::F32 | DType::F64);
        if !simple(x.dtype) || x.dtype != y.dtype || y.elements() == 0 {
            return Err("its elements are neither f32 nor f64, or there are none".into());
        }
        Ok(GeneralConvolution { op: c.clone(), bias, x: x.clone(), k: k.clone(), y: y.clone() })
    }

    /// Returns the input coordinate of filter tap `w` at output coordinate `o` along spatial dimension `i`; `None` in
    /// padding and between the elements of a dilated input.
    fn source(&self, i: usize, o: usize, w: usize) -> Option<usize> {
        let c = &self.op;
        let at = (o * c.strides[i] + w * c.rhs_dilation[i]) as i64 - c.padding[i][0];
        let (at, lhs_dilation) = (usize::try_from(at).ok()?, c.lhs_dilation[i]);
        (at % lhs_dilation == 0 && at / lhs_dilation < self.x.shape[c.dims.input_spatial[i]])
            .then(|| at / lhs_dilation)
    }

    /// Collects the (input, filter) offsets of the taps that read input elements at an output position.
    fn window(&self, out: &[usize], pairs: &mut Vec<(usize, usize)>) {
        let d = &self.op.dims;
        let (xs, ks) = (self.x.shape.strides(), self.k.shape.strides());
        pairs.clear();
        pairs.push((0, 0));
        for i in 0..d.input_spatial.len() {
            let size = self.k.shape[d.kernel_spatial[i]];
            let (sx, sk) = (xs[d.input_spatial[i]], ks[d.kernel_spatial[i]]);
            let o = out[d.output_spatial[i]];
            let steps: SmallVec<[(usize, usize); 8]> = (0..size)
                .filter_map(|w| {
                    let k = if self.op.reversal[i] { size - 1 - w } else { w };
                    self.source(i, o, w).map(|at| (at * sx, k * sk))
                })
                .collect();
            *pairs = pairs.iter().flat_map(|&(x, k)| steps.iter().map(move |s| (x + s.0, k + s.1))).collect();
        }
    }

    unsafe fn run_as<T: Copy + Into<f64>>(
        &self,
        cx: &KernelContext<'_>,
        io: &Io<'_>,
        narrow: impl Fn(f64) -> T + Sync,
    ) {
        let d = &self.op.dims;
        let (xs, ks, ys) = (self.x.shape.strides(), self.k.shape.strides(), self.y.shape.strides());
        let features = self.k.shape[d.kernel_output_feature];
        let inputs = self.k.shape[d.kernel_input_feature];
        let per_group = features / (self.op.feature_groups * self.op.batch_groups);
        let images = self.x.shape[d.input_batch] / self.op.batch_groups;
        let (sx, sk) = (xs[d.input_feature], ks[d.kernel_input_feature]);
        let positions = self.y.elements() / features.max(1);
        let mut outer = self.y.shape.dims().to_vec();
        outer[d.output_feature] = 1;
        let outer = systole_ir::Shape::from(outer);
        let (x, k, y) = (Ptr::of(io.inputs[0]), Ptr::of(io.inputs[1]), Ptr(io.outputs[0]));
        let bias = Ptr::of(if self.bias { io.inputs[2] } else { std::ptr::null() });
        let body = |p: usize| {
            let index = outer.unravel(p);
            let mut pairs = Vec::new();
            self.window(&index, &mut pairs);
            let at: usize = index.iter().zip(&ys).map(|(i, s)| i * s).sum();
            for f in 0..features {
                let group = f / per_group;
                let (bg, fg) = (
                    if self.op.batch_groups > 1 { group } else { 0 },
                    if self.op.feature_groups > 1 { group } else { 0 },
                );
                let x0 = (bg * images + index[d.output_batch]) * xs[d.input_batch] + fg * inputs * sx;
                let k0 = f * ks[d.kernel_output_feature];
                let mut sum = 0f64;
                // SAFETY: offsets of taps were checked against the input; tasks have disjoint output positions.
                unsafe {
                    for &(xo, ko) in &pairs {
                        for c in 0..inputs {
                            let (a, b) = (*x.elem::<T>(x0 + xo + c * sx), *k.elem::<T>(k0 + ko + c * sk));
                            sum += a.into() * b.into();
                        }
                    }
                    if self.bias {
                        // Rounded before the bias is added, as two ops would.
                        sum = narrow(sum).into() + (*bias.elem::<T>(f)).into();
                    }
                    *y.elem::<T>(at + f * ys[d.output_feature]) = narrow(sum);
                }
            }
        };
        let taps: usize = d.kernel_spatial.iter().map(|&s| self.k.shape[s]).product();
        let work = (self.y.elements() * inputs * taps) as f64 * 1.5;
        cx.team.run_with(positions, work, cx.flush, &body);
    }
}

impl Kernel for GeneralConvolution {
    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: the arrays have the element type that was chosen.
        unsafe {
            match self.x.dtype {
                DType::F32 => self.run_as::<f32>(cx, io, |s| s as f32),
                _ => self.run_as::<f64>(cx, io, |s| s),
            }
        }
        Ok(())
    }
}
