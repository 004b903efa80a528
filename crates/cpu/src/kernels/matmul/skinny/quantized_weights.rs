//! Products of few rows by quantized weight matrices (int8 or int4 with scales), and dequantization of whole matrices.
//!
//! The integers are read once and in storage order, and sums are added in the order of [`Gemv`]. A weight is its
//! integer times its scale, rounded to f32, so results are bit-identical to the product with the dequantized matrix.

use crate::kernel::gemm_dims::{Epilogue, roles};
use crate::kernel::{Io, Kernel, KernelContext, Ptr};
use crate::kernels::matmul::skinny::gemv::{AHEAD, COLUMNS, DOTS, Gemv, LANES, ROWS, finish_dots};
use crate::select::{EVERY, Family, KernelCandidate, Problem, SelectResult};
use crate::simd::dequantize::DequantizeLoad;
use crate::simd::level::{Level, by_level};
use crate::simd::prefetch::prefetch_far;
use crate::simd::vector::Portable32;
#[cfg(target_arch = "x86_64")]
use crate::simd::vector::x86::{V8x32, V16x32};
use systole_compile::{DequantizeStep, DequantizedGemm, Kernel as Plan};
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::{Op, Result, ensure};

/// Kernel family for quantized weight matrices and products with them.
pub static FAMILY: Family = Family {
    name: "packed",
    doc: "quantized weight matrices with scales: products of few rows, and dequantization",
    takes: |step| matches!(step.kernel, Plan::Packed(_)),
    #[rustfmt::skip]
    candidates: &[
        KernelCandidate::new("gemv", EVERY, "K of at least 65, N of at least 64: the integers are read once and in \
             place, a quarter or an eighth of the bytes of floats",
            |p| {
                let (packed, product) = product_of(p)?;
                Ok(Box::new(QuantizedGemv::accept(packed, product, p)?))
            }),
        KernelCandidate::new("floats", EVERY, "dequantizes the whole matrix, for products of many rows",
            |p| match &p.step.kernel {
                Plan::Packed(packed) if packed.product.is_none() => Ok(Box::new(DequantizeMatrix::new(packed, p))),
                _ => Err("it is a product".into()),
            }),
        KernelCandidate::new("one_by_one", EVERY, "small matrices, and matrices whose integers are not stored in rows: \
             plain loops",
            |p| {
                let (packed, product) = product_of(p)?;
                Ok(Box::new(ScalarQuantizedProduct::accept(packed, product, p)?))
            }),
    ],
};

/// Returns the product of a step.
fn product_of<'a>(p: &Problem<'a>) -> SelectResult<(&'a DequantizeStep, &'a DequantizedGemm)> {
    match &p.step.kernel {
        Plan::Packed(packed) => match &packed.product {
            Some(product) => Ok((packed, product)),
            None => Err("not a product".into()),
        },
        _ => Err("not a quantized weight matrix".into()),
    }
}

/// Addresses and strides of a matrix's integers and scales.
#[derive(Clone, Copy)]
struct QuantizedMatrix {
    numbers: *const u8,
    /// Integers in a row: those of an input, or of an output.
    row: usize,
    scales: *const f32,
    /// Strides of the scales: between outputs, and between blocks of inputs.
    by_output: usize,
    by_block: usize,
    block: usize,
}

impl QuantizedMatrix {
    /// Loads lanes of a row.
    #[inline(always)]
    unsafe fn load<V: DequantizeLoad, const HALVES: bool>(&self, row: usize, at: usize, lanes: usize) -> V {
        let place = row * self.row + at;
        // SAFETY: by the caller's promise; rows of int4 start at a byte boundary, and lanes at even positions.
        unsafe {
            if HALVES {
                V::halves(self.numbers.add(place / 2), lanes)
            } else {
                V::bytes(self.numbers.add(place), lanes)
            }
        }
    }

    /// Prefetches lanes that will be read.
    #[inline(always)]
    fn prefetch<const HALVES: bool>(&self, row: usize, at: usize) {
        let place = row * self.row + at;
        prefetch_far(self.numbers.wrapping_add(if HALVES { place / 2 } else { place }));
    }

    #[inline(always)]
    unsafe fn scale(&self, output: usize, block: usize) -> *const f32 {
        self.scales.wrapping_add(output * self.by_output + block * self.by_block)
    }
}

/// Arguments of a microkernel: `k` inputs starting at `k0`, `n` outputs starting at `n0`.
struct QuantizedKernelArgs {
    w: QuantizedMatrix,
    k0: usize,
    k: usize,
    n0: usize,
    n: usize,
    /// A starting at `k0`; rows are `a_row` elements apart.
    a: *const f32,
    a_row: usize,
    /// Sums starting at `n0`; rows are `c_row` elements apart.
    c: *mut f32,
    c_row: usize,
}

/// Returns a number times its scale, rounded.
#[inline(always)]
unsafe fn times<V: DequantizeLoad>(number: V, scale: V) -> V {
    // SAFETY: the level is available.
    unsafe { number.mul_add(scale, V::splat(0.0)) }
}

/// Computes the product with lanes that are outputs.
#[inline(always)]
unsafe fn along_n<V: DequantizeLoad, const HALVES: bool, const M: usize>(s: &QuantizedKernelArgs) {
    // SAFETY: the caller's operands cover `M` rows, `k` and `n`; the level is available.
    unsafe {
        for m in 0..M {
            s.c.add(m * s.c_row).write_bytes(0, s.n);
        }
        let whole = s.k / ROWS * ROWS;
        for k in (0..whole).step_by(ROWS) {
            inputs::<V, HALVES, M, ROWS>(s, k);
        }
        for k in whole..s.k {
            inputs::<V, HALVES, M, 1>(s, k);
        }
    }
}

/// Adds `R` inputs, starting at `k`, to all outputs. Plain loops, because closures would not inherit the level's target
/// features.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn inputs<V: DequantizeLoad, const HALVES: bool, const M: usize, const R: usize>(
    s: &QuantizedKernelArgs,
    k: usize,
) {
    // SAFETY: as for `along_n`.
    unsafe {
        let mut x = [[V::splat(0.0); R]; M];
        let mut scales = [s.w.scales; R];
        for r in 0..R {
            for m in 0..M {
                x[m][r] = V::splat(*s.a.add(m * s.a_row + k + r));
            }
            scales[r] = s.w.scale(s.n0, (s.k0 + k + r) / s.w.block);
        }
        let whole = s.n / V::LANES * V::LANES;
        for at in (0..whole).step_by(V::LANES) {
            // Once per cache line.
            if at.is_multiple_of(if HALVES { 128 } else { 64 }) {
                for r in 0..R {
                    s.w.prefetch::<HALVES>(s.k0 + k + r + ROWS, s.n0 + at);
                }
            }
            let mut y = [V::splat(0.0); R];
            for r in 0..R {
                y[r] = times(
                    s.w.load::<V, HALVES>(s.k0 + k + r, s.n0 + at, V::LANES),
                    V::load(scales[r].add(at)),
                );
            }
            for m in 0..M {
                let to = s.c.add(m * s.c_row + at);
                let mut sum = V::load(to);
                for r in 0..R {
                    sum = x[m][r].mul_add(y[r], sum);
                }
                sum.store(to);
            }
        }
        let left = s.n - whole;
        if left > 0 {
            for r in 0..R {
                let scale = V::load_part(scales[r].add(whole), left);
                let y = times(s.w.load::<V, HALVES>(s.k0 + k + r, s.n0 + whole, left), scale);
                for m in 0..M {
                    let to = s.c.add(m * s.c_row + whole);
                    x[m][r].mul_add(y, V::load_part(to, left)).store_part(to, left);
                }
            }
        }
    }
}

/// Computes the product with lanes that are inputs: one output after another.
#[inline(always)]
unsafe fn along_k<V: DequantizeLoad, const HALVES: bool, const M: usize>(s: &QuantizedKernelArgs) {
    // SAFETY: as for `along_n`.
    unsafe {
        for n in 0..s.n {
            let row = s.n0 + n;
            let mut sums = [[V::splat(0.0); 2]; M];
            let mut from = 0;
            while from < s.k {
                let scale = V::splat(*s.w.scale(row, from / s.w.block));
                let end = s.k.min(from + s.w.block);
                let whole = from + (end - from) / (2 * V::LANES) * 2 * V::LANES;
                for at in (from..whole).step_by(2 * V::LANES) {
                    s.w.prefetch::<HALVES>(row, at + AHEAD);
                    for half in 0..2 {
                        dot::<V, HALVES, M>(s, row, at + half * V::LANES, V::LANES, scale, &mut sums, half);
                    }
                }
                for (half, at) in (whole..end).step_by(V::LANES).enumerate() {
                    dot::<V, HALVES, M>(s, row, at, V::LANES.min(end - at), scale, &mut sums, half);
                }
                from = end;
            }
            for (m, sums) in sums.iter().enumerate() {
                *s.c.add(m * s.c_row + n) = finish_dots(*sums);
            }
        }
    }
}

/// Adds the products of a vector of lanes of an output.
#[allow(clippy::needless_range_loop)] // Iterators over several arrays at once are harder to read.
#[inline(always)]
unsafe fn dot<V: DequantizeLoad, const HALVES: bool, const M: usize>(
    s: &QuantizedKernelArgs,
    row: usize,
    at: usize,
    lanes: usize,
    scale: V,
    sums: &mut [[V; 2]; M],
    half: usize,
) {
    // SAFETY: as for `along_n`.
    unsafe {
        let y = times(s.w.load::<V, HALVES>(row, at, lanes), scale);
        for m in 0..M {
            let from = s.a.add(m * s.a_row + at);
            let x = if lanes == V::LANES { V::load(from) } else { V::load_part(from, lanes) };
            sums[m][half] = x.mul_add(y, sums[m][half]);
        }
    }
}

/// Dequantizes a range of rows; `M` is unused.
#[inline(always)]
unsafe fn floats<V: DequantizeLoad, const HALVES: bool, const BY_OUTPUT: bool>(s: &QuantizedKernelArgs) {
    // SAFETY: as for `along_n`.
    unsafe {
        for row in s.k0..s.k0 + s.k {
            for at in (0..s.n).step_by(V::LANES) {
                let lanes = V::LANES.min(s.n - at);
                let scale = match BY_OUTPUT {
                    true => V::splat(*s.w.scale(row, at / s.w.block)),
                    false => V::load_part(s.w.scale(at, row / s.w.block), lanes),
                };
                times(s.w.load::<V, HALVES>(row, at, lanes), scale)
                    .store_part(s.c.add(row * s.n + at), lanes);
            }
        }
    }
}

/// Function type of a microkernel for up to eight rows; for 0 rows, [`floats`].
type QuantizedKernelFn = unsafe fn(usize, &QuantizedKernelArgs);

macro_rules! kernels {
    ($name:ident, $v:ty, [$($m:literal)*] $(, $feature:literal)?) => {
        $(#[cfg(target_arch = "x86_64")] #[target_feature(enable = $feature)])?
        unsafe fn $name<const HALVES: bool, const BY_OUTPUT: bool>(rows: usize, s: &QuantizedKernelArgs) {
            match rows {
                // SAFETY: the caller's promises are those of `along_n`, `along_k` and `floats`.
                0 => unsafe { floats::<$v, HALVES, BY_OUTPUT>(s) },
                // SAFETY: as above.
                $($m => unsafe {
                    if BY_OUTPUT { along_k::<$v, HALVES, $m>(s) } else { along_n::<$v, HALVES, $m>(s) }
                },)*
                _ => {}
            }
        }
    };
}
kernels!(portable, Portable32, [1 2 3 4 5 6 7 8]);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, V8x32, [1 2 3 4 5 6 7 8], "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512, V16x32, [1 2 3 4 5 6 7 8], "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma");

/// Returns the microkernel of a level.
fn kernel(level: Level, how: &DequantizeWeights) -> QuantizedKernelFn {
    macro_rules! of {
        ($name:ident) => {
            match (how.is_halves, how.by_output) {
                (true, true) => $name::<true, true>,
                (true, false) => $name::<true, false>,
                (false, true) => $name::<false, true>,
                (false, false) => $name::<false, false>,
            }
        };
    }
    by_level!(level, of!(avx512), of!(avx2), of!(portable))
}

/// Number of integers in a row.
fn row(how: &DequantizeWeights) -> usize {
    if how.by_output { how.inputs } else { how.outputs() }
}

/// Whether each row consists of whole bytes, and blocks of whole vectors.
fn lies_in_rows(how: &DequantizeWeights) -> bool {
    (!how.is_halves || row(how).is_multiple_of(2))
        && (how.blocks() == 1 || how.block.is_multiple_of(2 * LANES))
}

/// Whether contiguous scales belong to one output: they are transposed first if lanes are outputs.
fn is_turned(how: &DequantizeWeights) -> bool {
    !how.by_output && !how.by_block && how.blocks() > 1
}

/// Bytes of transposed scales, in whole cache lines.
fn scratch_of_scales(how: &DequantizeWeights) -> usize {
    if is_turned(how) { (how.outputs() * how.blocks() * 4).next_multiple_of(64) } else { 0 }
}

/// Returns the matrix of a step; `turned` has room for its scales if they are transposed.
unsafe fn matrix(
    how: &DequantizeWeights,
    numbers: *const u8,
    scales: *const f32,
    turned: *mut f32,
) -> QuantizedMatrix {
    let (outputs, blocks) = (how.outputs(), how.blocks());
    let (by_output, by_block) = if how.by_block { (1, outputs) } else { (blocks, 1) };
    let own = QuantizedMatrix { numbers, row: row(how), scales, by_output, by_block, block: how.block };
    if !is_turned(how) {
        return own;
    }
    for (block, output) in (0..blocks).flat_map(|b| (0..outputs).map(move |o| (b, o))) {
        // SAFETY: by the caller's promise.
        unsafe { *turned.add(block * outputs + output) = *own.scale(output, block) };
    }
    QuantizedMatrix { scales: turned, by_output: 1, by_block: outputs, ..own }
}

/// GEMV kernel with a quantized weight matrix.
struct QuantizedGemv {
    plan: Gemv,
    how: DequantizeWeights,
    run: QuantizedKernelFn,
}

impl QuantizedGemv {
    fn accept(
        packed: &DequantizeStep,
        product: &DequantizedGemm,
        p: &Problem<'_>,
    ) -> SelectResult<QuantizedGemv> {
        let Op::DotGeneral(d) = &product.op else { return Err("not a product".into()) };
        let (left, right) = (&p.step.input_types[0], &product.right);
        let left = roles(left, &d.lhs_batch, &d.lhs_free(left.rank()), &d.lhs_contract);
        let right = roles(right, &d.rhs_batch, &d.rhs_free(right.rank()), &d.rhs_contract);
        let epilogue = Epilogue { bias: product.bias, accumulate: false };
        let level = p.target.level.vectors();
        let plan = Gemv::accept(&left, &right, epilogue, level)?;
        let how = packed.unpack.clone();
        let fits = [plan.k, plan.n, plan.b_step] == [how.inputs, how.outputs(), row(&how)]
            && plan.k_contiguous == how.by_output;
        ensure!(fits, "the matrix's inputs and outputs are not the K and N of the product".into());
        if !lies_in_rows(&how) {
            return Err("rows have an odd number of int4 values, or blocks are not whole vectors".into());
        }
        let run = kernel(level, &how);
        Ok(QuantizedGemv { plan, how, run })
    }
}

impl Kernel for QuantizedGemv {
    /// Bytes of scratch: A and sums as in [`Gemv`], then scales.
    fn scratch(&self) -> usize {
        self.plan.scratch().next_multiple_of(64) + scratch_of_scales(&self.how)
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let plan = &self.plan;
        // SAFETY: operands have the product's types, scratch its bytes.
        let (w, left, sums) = unsafe {
            let scales = Ptr(Ptr(io.scratch).at(plan.scratch().next_multiple_of(64)));
            let w = matrix(&self.how, io.inputs[1].cast(), io.inputs[2].cast(), scales.elem(0));
            let (left, sums) = plan.copy_left(io);
            (AssertSync(w), left, sums)
        };
        let width = if plan.k_contiguous { DOTS } else { COLUMNS };
        let along = |part: usize| part * plan.k / plan.parts;
        let body = |task: usize| {
            let (n0, part) = (task / plan.parts * width, task % plan.parts);
            let args = QuantizedKernelArgs {
                w: w.get(),
                k0: along(part),
                k: along(part + 1) - along(part),
                n0,
                n: width.min(plan.n - n0),
                a: left.elem::<f32>(along(part)).cast_const(),
                a_row: plan.k,
                c: sums.elem::<f32>(part * plan.m * plan.n + n0),
                c_row: plan.n,
            };
            // SAFETY: tasks have disjoint columns or parts, and disjoint sums; the level is available.
            unsafe { (self.run)(plan.m, &args) };
        };
        let work = (plan.k * plan.n) as f64 * 0.07;
        cx.team.run_with(plan.n.div_ceil(width) * plan.parts, work, cx.flush, &body);
        let bias = if plan.epilogue.bias { io.inputs[3].cast() } else { std::ptr::null() };
        // SAFETY: all tasks have ended.
        unsafe { plan.finish(sums.elem(0), bias, io.outputs[0].cast()) };
        Ok(())
    }
}

/// Asserts that a value can be shared between threads.
struct AssertSync<T>(T);

// SAFETY: addresses of arrays that all threads only read.
unsafe impl<T> Sync for AssertSync<T> {}

impl<T: Copy> AssertSync<T> {
    fn get(&self) -> T {
        self.0
    }
}

/// Kernel that dequantizes a whole matrix to f32.
struct DequantizeMatrix {
    how: DequantizeWeights,
    at: [usize; 2],
    run: Option<QuantizedKernelFn>,
}

/// Integers per task.
const TASK: usize = 1 << 16;

impl DequantizeMatrix {
    fn new(packed: &DequantizeStep, p: &Problem<'_>) -> DequantizeMatrix {
        let how = packed.unpack.clone();
        let run = lies_in_rows(&how).then(|| kernel(p.target.level.vectors(), &how));
        DequantizeMatrix { how, at: packed.at, run }
    }
}

impl Kernel for DequantizeMatrix {
    fn scratch(&self) -> usize {
        scratch_of_scales(&self.how)
    }

    unsafe fn run(&self, cx: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let [numbers, scales] = self.at.map(|i| io.inputs[i]);
        // SAFETY: operands have the step's types, scratch its bytes.
        let w = AssertSync(unsafe { matrix(&self.how, numbers.cast(), scales.cast(), io.scratch.cast()) });
        let (row, to) = (row(&self.how), Ptr(io.outputs[0]));
        let all = self.how.elements() / row;
        let each = (TASK / row).max(1);
        let body = |task: usize| {
            let (from, end) = (task * each, all.min((task + 1) * each));
            let args = QuantizedKernelArgs {
                w: w.get(),
                k0: from,
                k: end - from,
                n0: 0,
                n: row,
                a: std::ptr::null(),
                a_row: 0,
                c: to.elem::<f32>(0),
                c_row: 0,
            };
            match self.run {
                // SAFETY: tasks have disjoint rows; the level is available.
                Some(run) => unsafe { run(0, &args) },
                // SAFETY: as above.
                None => unsafe { plain_rows(&self.how, &args) },
            }
        };
        cx.team.run_with(all.div_ceil(each), self.how.elements() as f64 * 0.3, cx.flush, &body);
        Ok(())
    }
}

/// Dequantizes one integer.
unsafe fn one(how: &DequantizeWeights, w: &QuantizedMatrix, input: usize, output: usize) -> f32 {
    let at = if how.by_output { output * w.row + input } else { input * w.row + output };
    // SAFETY: by the caller's promise.
    unsafe {
        let number = match how.is_halves {
            true => ((*w.numbers.add(at / 2)) << (4 - at % 2 * 4)) as i8 >> 4,
            false => *w.numbers.add(at) as i8,
        };
        f32::from(number) * *w.scale(output, input / how.block)
    }
}

/// Dequantizes rows, one integer after another.
unsafe fn plain_rows(how: &DequantizeWeights, s: &QuantizedKernelArgs) {
    for row in s.k0..s.k0 + s.k {
        for at in 0..s.n {
            let (input, output) = if how.by_output { (at, row) } else { (row, at) };
            // SAFETY: by the caller's promise.
            unsafe { *s.c.add(row * s.n + at) = one(how, &s.w, input, output) };
        }
    }
}

/// Product with a quantized weight matrix in plain loops.
struct ScalarQuantizedProduct {
    how: DequantizeWeights,
    bias: bool,
    /// Offsets of rows and inputs of the left operand, and of inputs and outputs of the right operand.
    left: [Vec<usize>; 2],
    right: [Vec<usize>; 2],
}

impl ScalarQuantizedProduct {
    fn accept(
        packed: &DequantizeStep,
        product: &DequantizedGemm,
        p: &Problem<'_>,
    ) -> SelectResult<ScalarQuantizedProduct> {
        use crate::kernel::gemm_dims::offsets;
        let (a, b) = (&p.step.input_types[0], &product.right);
        let Op::DotGeneral(d) = &product.op else { return Err("not a product".into()) };
        let left = roles(a, &d.lhs_batch, &d.lhs_free(a.rank()), &d.lhs_contract);
        let right = roles(b, &d.rhs_batch, &d.rhs_free(b.rank()), &d.rhs_contract);
        Ok(ScalarQuantizedProduct {
            how: packed.unpack.clone(),
            bias: product.bias,
            left: [offsets(&left.free), offsets(&left.inner)],
            right: [offsets(&right.inner), offsets(&right.free)],
        })
    }
}

impl Kernel for ScalarQuantizedProduct {
    fn scratch(&self) -> usize {
        scratch_of_scales(&self.how)
    }

    unsafe fn run(&self, _: &KernelContext<'_>, io: &Io<'_>) -> Result<()> {
        let how = &self.how;
        // SAFETY: operands have the step's types, scratch its bytes.
        unsafe {
            let w = matrix(how, io.inputs[1].cast(), io.inputs[2].cast(), io.scratch.cast());
            let (a, y) = (io.inputs[0].cast::<f32>(), io.outputs[0].cast::<f32>());
            let ([rows, inner], [right, columns]) = (&self.left, &self.right);
            let n = columns.len();
            for (i, (row, (j, column))) in
                rows.iter().flat_map(|row| columns.iter().enumerate().map(move |c| (row, c))).enumerate()
            {
                let mut sum = if self.bias { *io.inputs[3].cast::<f32>().add(j % n) } else { 0.0 };
                for (x, k) in inner.iter().zip(right) {
                    let at = k + column;
                    let (input, output) = match how.by_output {
                        true => (at % w.row, at / w.row),
                        false => (at / w.row, at % w.row),
                    };
                    sum += *a.add(row + x) * one(how, &w, input, output);
                }
                *y.add(i) = sum;
            }
        }
        Ok(())
    }
}
