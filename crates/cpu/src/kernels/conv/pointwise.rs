//! Pointwise (1×1) convolutions as GEMMs: `[pixels, C] · [C, F]`; the filter gradient is `[C, pixels] · [pixels, F]`.
//!
//! Each pixel reads a single input element. Large convolutions are faster as a GEMM: both operands are packed once for
//! all tiles, and threads share the packed operands. With strides, the pixels that are read are first copied to a dense
//! array.

use crate::kernel::convolution::{is_forward_of_any_rank, is_kernel_gradient};
use crate::kernel::copy::{BoxCopy, Dim};
use crate::kernel::{Io, Kernel, KernelContext, Ptr, with_scratch};
use crate::kernels::conv::strips::batch_statistics::BatchStatistics;
use crate::kernels::conv::strips::strip_arrays::{NO_GRADIENT, NO_LAYER};
use crate::select::{Problem, SelectResult};
use crate::simd::level::{CompileTarget, TileFn};
use crate::simd::loops::widen;
use crate::simd::ranges::pieces;
use smallvec::SmallVec;
use systole_compile::Kernel as Plan;
use systole_compile::{ALIGN, Step};
use systole_ir::op::{Convolution, DotGeneral};
use systole_ir::{DType, Dims, Op, Result, TensorType, ensure};

/// Reason to reject convolutions that are not a GEMM of the pixels.
const NO_PIXELS: &str = "its pixels read more than one input element, or read padding";
/// Minimum elements of the filter for which a GEMM pays off (1 MiB of f32): no L2 holds smaller blocks of it together
/// with a strip's pixels. Below that, strips are faster, because they copy nothing but the filter.
const LARGE: usize = 256 << 10;
/// Minimum channels, and features, for which a GEMM pays off. In the filter gradient, copies would take all the time
/// for a smaller result.
const WIDE: usize = 128;
/// Pixels whose statistics one task gathers.
const PIXELS: usize = 384;

/// Pointwise convolution kernel that runs as a GEMM.
pub struct Pointwise {
    product: Box<dyn Kernel>,
    /// Copies the pixels that are read to a dense array, and the bytes of that array. `None`: the operand is already
    /// dense.
    copy: Option<(BoxCopy, usize)>,
    statistics: Option<ResultStatistics>,
}

impl Pointwise {
    /// Creates the kernel of `x: [B, …, C], kernel: [1, …, C, F] → y: [B, …', F]`, with filter dimensions in any order.
    pub fn forward(
        c: &Convolution,
        bias: bool,
        [x, k, y]: [&TensorType; 3],
        problem: &Problem<'_>,
    ) -> SelectResult<Pointwise> {
        let (d, n) = (&c.dims, c.dims.input_spatial.len());
        let counts = &y.shape[1..=n];
        ensure!(is_forward_of_any_rank(c), NO_LAYER.into());
        if d.kernel_spatial.iter().any(|&s| k.shape[s] != 1) || !is_inside(c, x, &c.strides, counts) {
            return Err(NO_PIXELS.into());
        }
        let (channels, features) = (x.shape[n + 1], y.shape[n + 1]);
        if channels.min(features) < WIDE || channels * features < LARGE {
            return Err("its kernel is small: candidate direct packs only the kernel".into());
        }
        if bias && y.dtype != DType::F32 {
            return Err("its result is rounded before the bias is added, which a GEMM does not do".into());
        }
        let by_channels = d.kernel_input_feature < d.kernel_output_feature;
        let right = if by_channels { [channels, features] } else { [features, channels] };
        let product = DotGeneral {
            lhs_batch: Dims::new(),
            rhs_batch: Dims::new(),
            lhs_contract: std::iter::once(n + 1).collect(),
            rhs_contract: std::iter::once(usize::from(!by_channels)).collect(),
            element_type: y.dtype,
        };
        let (left, copy) = pixels(x, &c.strides, counts);
        let mut types = vec![left, k.with_shape(right)];
        types.extend(problem.step.input_types.get(2).filter(|_| bias).cloned());
        let product = bind(product, bias, types, y, problem)?;
        Ok(Pointwise { product, copy, statistics: None })
    }

    /// Creates the kernel of `x: [B, …, C], dy: [B, …', F] → dkernel: [1, …, C, F]`, in the form that autodiff creates.
    pub fn gradient(
        c: &Convolution,
        [x, dy, y]: [&TensorType; 3],
        problem: &Problem<'_>,
    ) -> SelectResult<Pointwise> {
        let n = c.dims.input_spatial.len();
        ensure!(is_kernel_gradient(c), NO_GRADIENT.into());
        let single = y.shape[..n].iter().all(|&taps| taps == 1);
        let dense = c.rhs_dilation.iter().all(|&step| step == 1);
        ensure!(single && dense && is_inside(c, x, &c.rhs_dilation, &dy.shape[1..=n]), NO_PIXELS.into());
        if x.shape[n + 1].min(dy.shape[n + 1]) < WIDE {
            return Err("its result is small: packing would take most of the time".into());
        }
        let (left, copy) = pixels(x, &c.rhs_dilation, &dy.shape[1..=n]);
        let contracted: Dims = (0..=n).collect();
        let product = DotGeneral {
            lhs_batch: Dims::new(),
            rhs_batch: Dims::new(),
            lhs_contract: contracted.clone(),
            rhs_contract: contracted,
            element_type: y.dtype,
        };
        let product = bind(product, false, vec![left, dy.clone()], y, problem)?;
        Ok(Pointwise { product, copy, statistics: None })
    }

    /// Adds batch statistics as two results; see [`BatchStatistics`].
    pub fn with_statistics(self, y: &TensorType, target: CompileTarget) -> Pointwise {
        Pointwise { statistics: Some(ResultStatistics::new(y, target)), ..self }
    }

    /// Bytes of scratch of the GEMM, and of the copied pixels.
    fn bytes(&self) -> [usize; 2] {
        [self.product.scratch().next_multiple_of(ALIGN), self.copy.as_ref().map_or(0, |c| c.1)]
    }
}

/// Creates the GEMM.
fn bind(
    product: DotGeneral,
    bias: bool,
    types: Vec<TensorType>,
    y: &TensorType,
    problem: &Problem<'_>,
) -> Result<Box<dyn Kernel>> {
    let step = problem.step;
    problem.bind(&Step {
        kernel: Plan::Op { op: Op::from(product), bias },
        inputs: step.inputs[..types.len()].to_vec(),
        input_types: types,
        outputs: step.outputs[..1].to_vec(),
        output_types: vec![y.clone()],
        ..step.clone()
    })
}

/// Whether `counts` pixels, `steps` apart, are all inside the input.
fn is_inside(c: &Convolution, x: &TensorType, steps: &[usize], counts: &[usize]) -> bool {
    (0..counts.len()).all(|i| {
        c.padding[i][0] == 0
            && c.lhs_dilation[i] == 1
            && counts[i] > 0
            && (counts[i] - 1) * steps[i] < x.shape[i + 1]
    })
}

/// Returns the type of the array of `counts` pixels of all images, `steps` apart. If these are not all pixels, also
/// returns the copy to such an array, and its bytes.
fn pixels(x: &TensorType, steps: &[usize], counts: &[usize]) -> (TensorType, Option<(BoxCopy, usize)>) {
    let mut dims = x.shape.to_vec();
    dims[1..=counts.len()].copy_from_slice(counts);
    let to = x.with_shape(dims);
    let (from, own) = (x.shape.strides(), to.shape.strides());
    let dim = |d: usize| {
        let step = if (1..=steps.len()).contains(&d) { steps[d - 1] } else { 1 };
        Dim { size: to.shape[d], src: (from[d] * step) as isize, dst: own[d] as isize }
    };
    let copy = (to != *x).then(|| {
        let dims: Vec<Dim> = (0..to.rank()).map(dim).collect();
        (BoxCopy::new(x.dtype.size(), &dims, 0, 0), to.bytes().next_multiple_of(ALIGN))
    });
    (to, copy)
}

/// Gathers statistics of a result that was just written, starting with its end, which is still in cache.
struct ResultStatistics {
    gathered: BatchStatistics,
    images: usize,
    /// Pixels of an image, and its parts as (first pixel, pixels). One task gathers each part.
    pixels: usize,
    parts: Vec<(usize, usize)>,
    features: usize,
    /// Offsets of the pixels of a part.
    rows: Vec<usize>,
    element: usize,
    widen: Option<TileFn>,
}

impl ResultStatistics {
    fn new(y: &TensorType, target: CompileTarget) -> ResultStatistics {
        let features = y.shape[y.rank() - 1];
        let pixels = y.elements() / y.shape[0] / features;
        let parts: Vec<(usize, usize)> = pieces(pixels, PIXELS).collect();
        let most = parts.iter().map(|p| p.1).max().unwrap_or(0);
        let level = target.level.vectors();
        ResultStatistics {
            gathered: BatchStatistics::new(features, parts.iter().map(|p| p.1).collect(), level),
            images: y.shape[0],
            pixels,
            parts,
            features,
            rows: (0..most).map(|i| i * features).collect(),
            element: y.dtype.size(),
            widen: widen(y.dtype, level),
        }
    }

    fn bytes(&self) -> usize {
        self.gathered.elements(self.images) * 4
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>, left: Ptr) {
        let y = Ptr(io.outputs[0]);
        let tasks = self.images * self.parts.len();
        let body = |task: usize| {
            let (image, part) =
                ((tasks - 1 - task) / self.parts.len(), (tasks - 1 - task) % self.parts.len());
            let (from, count) = self.parts[part];
            let elements = count * self.features;
            let at = y.at((image * self.pixels + from) * self.features * self.element);
            let gather = |c: *const f32| {
                // SAFETY: the part's pixels; `left` has room for the partial statistics of all parts.
                unsafe {
                    let rows = &self.rows[..count];
                    self.gathered.gather((image, 1, part), (c, rows), (0, self.features), left.elem(0));
                }
            };
            match self.widen {
                None => gather(at.cast()),
                Some(widen) => with_scratch(elements * 4, |wide| {
                    // SAFETY: both sides have `elements` elements.
                    unsafe { widen(wide, at, at, at, elements) };
                    gather(wide.cast());
                }),
            }
        };
        let work = (self.images * self.pixels * self.features) as f64 * 0.2;
        cx.team.run_with(tasks, work, cx.flush, &body);
        // SAFETY: every part has stored its partial statistics.
        unsafe { self.gathered.write(self.images, left, io) };
    }
}

impl Kernel for Pointwise {
    fn scratch(&self) -> usize {
        let statistics = self.statistics.as_ref().map_or(0, ResultStatistics::bytes);
        self.bytes().iter().sum::<usize>() + statistics
    }

    fn add_to_result(&mut self) -> bool {
        self.product.add_to_result()
    }

    fn kept(&self, same: &[bool]) -> usize {
        // An operand that each call copies cannot be precomputed.
        let mut same = same.to_vec();
        same[0] &= self.copy.is_none();
        self.product.kept(&same)
    }

    unsafe fn keep(&self, cx: &KernelContext<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise, which is that of the GEMM.
        unsafe { self.product.keep(cx, inputs, kept) };
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &KernelContext<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let [product, copied] = self.bytes();
        let to = io.scratch.wrapping_add(product);
        let mut inputs: SmallVec<[*const u8; 3]> = io.inputs.into();
        // SAFETY: by the caller's promise; scratch has the layout that `bytes` counts.
        unsafe {
            if let Some((copy, _)) = &self.copy {
                copy.run(cx, inputs[0], to);
                inputs[0] = to;
            }
            let of_product = Io { inputs: &inputs, outputs: &io.outputs[..1], scratch: io.scratch };
            match kept.is_null() {
                true => self.product.run(cx, &of_product)?,
                false => self.product.run_kept(cx, &of_product, kept)?,
            }
            if let Some(s) = &self.statistics {
                s.run(cx, io, Ptr(to.wrapping_add(copied)));
            }
        }
        Ok(())
    }
}
