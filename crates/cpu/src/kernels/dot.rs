//! dot_general: any dimensions brought to batch × rows × products × columns, then blocked products.

use super::gemm::{Float, KC, Panels, Shape, View, block, pack_right, packed_len};
use super::lanes::{narrow, widen};
use super::moves::{BoxCopy, Dim};
use super::{Io, Kernel, Ptr};
use crate::detect::{Level, TileFn};
use crate::exec::{Cx, with_scratch};
use std::marker::PhantomData;
use systole_compile::Step;
use systole_ir::op::DotGeneral;
use systole_ir::{DType, Result, TensorType};

/// Products below this many multiply-adds in all are computed without packing the right operand beforehand.
const BLOCK_COLUMNS: usize = 512;

/// A product of matrices, or of batches of them.
pub struct DotKernel {
    kind: Kind,
}

enum Kind {
    F32(Product<f32>, Narrow),
    F64(Product<f64>),
    Int(IntProduct),
}

/// How stored operands become f32 and back.
struct Narrow {
    widen: Option<TileFn>,
    narrow: Option<TileFn>,
    elements: [usize; 3],
    bias: usize,
    scratch: [usize; 5],
}

/// One operand's dimensions in the roles of a product.
struct Roles {
    batch: Vec<Dim>,
    /// Rows or columns.
    free: Vec<Dim>,
    inner: Vec<Dim>,
}

fn roles(ty: &TensorType, batch: &[usize], free: &[usize], inner: &[usize]) -> Roles {
    let strides = ty.shape.strides();
    let pick = |dims: &[usize]| -> Vec<Dim> {
        dims.iter().map(|&d| Dim { size: ty.shape[d], src: strides[d] as isize, dst: 0 }).collect()
    };
    Roles { batch: pick(batch), free: pick(free), inner: pick(inner) }
}

/// The one distance by which a list of dimensions can be walked, if there is one.
fn joint_stride(dims: &[Dim]) -> Option<usize> {
    let mut stride = None;
    let mut expected = 0;
    for d in dims.iter().rev().filter(|d| d.size != 1) {
        if stride.is_none() {
            stride = Some(d.src as usize);
        } else if d.src as usize != expected {
            return None;
        }
        expected = d.src as usize * d.size;
    }
    Some(stride.unwrap_or(1))
}

/// An operand as a matrix, copied into order first where its dimensions do not line up.
struct Operand {
    /// Distance along free dimension and along products.
    free: usize,
    inner: usize,
    /// Offset of each batch element.
    batch: Vec<usize>,
    repack: Option<BoxCopy>,
    elements: usize,
}

impl Operand {
    fn new(r: &Roles, size: usize) -> Operand {
        let count = |dims: &[Dim]| dims.iter().map(|d| d.size).product::<usize>();
        let (nb, nf, nk) = (count(&r.batch), count(&r.free), count(&r.inner));
        let offsets = |dims: &[Dim]| -> Vec<usize> {
            let at = |mut i: usize| {
                let mut at = 0;
                for d in dims.iter().rev() {
                    at += i % d.size * d.src as usize;
                    i /= d.size;
                }
                at
            };
            (0..nb).map(at).collect()
        };
        if let (Some(free), Some(inner)) = (joint_stride(&r.free), joint_stride(&r.inner)) {
            let batch = offsets(&r.batch);
            return Operand { free, inner, batch, repack: None, elements: nb * nf * nk };
        }
        let mut dims: Vec<Dim> = r.batch.iter().chain(&r.free).chain(&r.inner).copied().collect();
        let mut stride = 1;
        for d in dims.iter_mut().rev() {
            d.dst = stride;
            stride *= d.size as isize;
        }
        let batch = (0..nb).map(|b| b * nf * nk).collect();
        let repack = Some(BoxCopy::new(size, &dims, 0, 0));
        Operand { free: nk, inner: 1, batch, repack, elements: nb * nf * nk }
    }
}

impl DotKernel {
    /// The kernel, or `None` where the element types have no fast path.
    pub fn new(d: &DotGeneral, bias: bool, step: &Step, level: Level) -> Option<DotKernel> {
        let (a, b) = (&step.input_types[0], &step.input_types[1]);
        let ra = roles(a, &d.lhs_batch, &d.lhs_free(a.rank()), &d.lhs_contract);
        let rb = roles(b, &d.rhs_batch, &d.rhs_free(b.rank()), &d.rhs_contract);
        let narrow_float = |t: DType| matches!(t, DType::F32 | DType::F16 | DType::BF16);
        let out = d.element_type;
        let kind = if narrow_float(a.dtype) && narrow_float(out) {
            let product = Product::<f32>::new(&ra, &rb, bias, level);
            let (widen, narrow) = (widen(a.dtype, level), narrow(out, level));
            let n = product.n;
            let elements = [a.elements(), b.elements(), step.output_types[0].elements()];
            let mut at = 0;
            let mut scratch = [0; 5];
            let wide = |needed: bool, n: usize| if needed { (n * 4).next_multiple_of(64) } else { 0 };
            let sizes = [
                wide(widen.is_some(), elements[0]),
                wide(widen.is_some(), elements[1]),
                wide(narrow.is_some(), elements[2]),
                product.scratch(),
            ];
            for (s, size) in scratch.iter_mut().zip(sizes) {
                *s = at;
                at += size;
            }
            scratch[4] = at;
            Kind::F32(product, Narrow { widen, narrow, elements, bias: if bias { n } else { 0 }, scratch })
        } else if a.dtype == DType::F64 && out == DType::F64 {
            Kind::F64(Product::new(&ra, &rb, bias, level))
        } else if a.dtype.is_int() && out.is_int() && !bias {
            Kind::Int(IntProduct::new(&ra, &rb, a.dtype, out))
        } else {
            return None;
        };
        Some(DotKernel { kind })
    }
}

impl Kernel for DotKernel {
    fn scratch(&self) -> usize {
        match &self.kind {
            Kind::F32(_, narrow) => narrow.scratch[4],
            Kind::F64(p) => p.scratch(),
            Kind::Int(_) => 0,
        }
    }

    fn add_to_result(&mut self) -> bool {
        match &mut self.kind {
            Kind::F32(p, narrow) if narrow.narrow.is_none() => p.add = true,
            Kind::F64(p) => p.add = true,
            _ => return false,
        }
        true
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        let bias = io.inputs.get(2).copied().unwrap_or(std::ptr::null());
        // SAFETY: operands and result are those the kernel was made for; scratch has the parts laid out in `new`.
        unsafe {
            match &self.kind {
                Kind::F32(p, n) => {
                    let part = |k: usize| io.scratch.wrapping_add(n.scratch[k]);
                    let (mut a, mut b) = (io.inputs[0], io.inputs[1]);
                    if let Some(f) = n.widen {
                        convert(cx, f, (a, 2), (part(0), 4), n.elements[0]);
                        convert(cx, f, (b, 2), (part(1), 4), n.elements[1]);
                        (a, b) = (part(0), part(1));
                    }
                    let c = if n.narrow.is_some() { part(2) } else { io.outputs[0] };
                    debug_assert!(n.bias == 0 || !bias.is_null());
                    p.run(cx, a, b, c, bias, part(3));
                    if let Some(f) = n.narrow {
                        convert(cx, f, (c, 4), (io.outputs[0], 2), n.elements[2]);
                    }
                }
                Kind::F64(p) => p.run(cx, io.inputs[0], io.inputs[1], io.outputs[0], bias, io.scratch),
                Kind::Int(p) => p.run(cx, io.inputs[0], io.inputs[1], io.outputs[0]),
            }
        }
        Ok(())
    }
}

/// Applies an element-wise loop to whole arrays; each with its element size.
///
/// # Safety
/// Both arrays have `n` elements.
pub unsafe fn convert(cx: &Cx<'_>, f: TileFn, from: (*const u8, usize), to: (*mut u8, usize), n: usize) {
    const BLOCK: usize = 1 << 14;
    let (src, dst) = (Ptr::of(from.0), Ptr(to.0));
    let body = |block: usize| {
        let at = block * BLOCK;
        let (s, d) = (src.at(at * from.1).cast_const(), dst.at(at * to.1));
        // SAFETY: blocks are disjoint parts of the arrays.
        unsafe { f(d, s, s, s, BLOCK.min(n - at)) };
    };
    cx.team.run_with(n.div_ceil(BLOCK), n as f64 * 0.2, cx.flush, &body);
}

/// The blocked product of one element type.
struct Product<T> {
    a: Operand,
    b: Operand,
    m: usize,
    n: usize,
    k: usize,
    shape: Shape<T>,
    /// Rows of one block of the parallel loop.
    rows: usize,
    /// The result is computed transposed: few columns, many rows that are contiguous in the left operand.
    swapped: bool,
    /// Parts that the products of each element are cut into.
    splits: usize,
    bias: bool,
    /// The product is added to what the result holds.
    add: bool,
    element: PhantomData<T>,
}

impl<T: Float> Product<T> {
    fn new(ra: &Roles, rb: &Roles, bias: bool, level: Level) -> Product<T> {
        let count = |dims: &[Dim]| dims.iter().map(|d| d.size).product::<usize>();
        let (m, n, k) = (count(&ra.free), count(&rb.free), count(&ra.inner));
        let size = std::mem::size_of::<T>();
        let (a, b) = (Operand::new(ra, size), Operand::new(rb, size));
        let swapped = n <= 16 && m >= 64 && a.free == 1 && a.inner != 1 && !bias && a.batch.len() == 1;
        let (m, n, a, b) = if swapped { (n, m, b, a) } else { (m, n, a, b) };
        let shape = T::shape(level, n);
        let rows = shape.rows * if n <= 64 { 2 } else { 8 };
        let blocks = m.div_ceil(rows) * n.div_ceil(BLOCK_COLUMNS);
        let splits = if a.batch.len() == 1 && blocks < 16 && m * n <= 1 << 20 {
            (16 / blocks.max(1)).min(k / (2 * KC)).max(1)
        } else {
            1
        };
        Product { a, b, m, n, k, shape, rows, swapped, splits, bias, add: false, element: PhantomData }
    }

    fn repacked(&self, o: &Operand) -> usize {
        if o.repack.is_some() { (o.elements * std::mem::size_of::<T>()).next_multiple_of(64) } else { 0 }
    }

    fn padded_bias(&self) -> usize {
        if self.bias {
            (self.n.next_multiple_of(self.shape.columns) * std::mem::size_of::<T>()).next_multiple_of(64)
        } else {
            0
        }
    }

    /// Whether kernels read the right operand where it lies.
    fn direct(&self) -> bool {
        self.b.free == 1
            && self.n.is_multiple_of(self.shape.columns)
            && (self.m <= 4 * self.shape.rows || self.k * self.n <= 1 << 14)
    }

    fn packed(&self) -> usize {
        if self.direct() || self.a.batch.len() > 1 {
            return 0;
        }
        (packed_len(self.shape.columns, self.k, self.n) * std::mem::size_of::<T>()).next_multiple_of(64)
    }

    fn partial(&self) -> usize {
        if self.splits > 1 { self.splits * self.m * self.n * std::mem::size_of::<T>() } else { 0 }
    }

    fn scratch(&self) -> usize {
        self.repacked(&self.a)
            + self.repacked(&self.b)
            + self.padded_bias()
            + self.packed()
            + self.partial()
            + 64
    }

    unsafe fn run(
        &self,
        cx: &Cx<'_>,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        bias: *const u8,
        scratch: *mut u8,
    ) {
        let (mut a, mut b) = if self.swapped { (b, a) } else { (a, b) };
        let size = std::mem::size_of::<T>();
        let mut at = scratch;
        // SAFETY: scratch is laid out as `scratch()` counts it.
        unsafe {
            for (operand, x) in [(&self.a, &mut a), (&self.b, &mut b)] {
                if let Some(copy) = &operand.repack {
                    copy.run(cx, *x, at);
                    *x = at;
                    at = at.wrapping_add(self.repacked(operand));
                }
            }
            let mut wide_bias: *const T = std::ptr::null();
            if self.bias {
                std::ptr::copy_nonoverlapping(bias, at, self.n * size);
                wide_bias = at.cast::<T>();
                at = at.wrapping_add(self.padded_bias());
            }
            if self.k == 0 && self.add {
                return;
            }
            if self.k == 0 {
                return self.without_products(c, wide_bias);
            }
            if self.a.batch.len() != 1 {
                return self.run_batches(cx, a.cast(), b.cast(), c.cast(), wide_bias);
            }
            let packed = at;
            let partial = at.wrapping_add(self.packed());
            let panels = self.right_panels(cx, b.cast(), packed.cast());
            let target = if self.splits > 1 { partial } else { c };
            self.run_blocks(cx, a.cast(), panels, target.cast(), wide_bias);
            if self.splits > 1 {
                self.sum_splits(cx, partial.cast(), c.cast(), wide_bias);
            }
        }
    }

    /// Sums of nothing are zero.
    unsafe fn without_products(&self, c: *mut u8, bias: *const T) {
        let c = c.cast::<T>();
        for i in 0..self.a.batch.len() * self.m * self.n {
            // SAFETY: the result has that many elements; the bias one for each column.
            unsafe { *c.add(i) = if bias.is_null() { T::ZERO } else { *bias.add(i % self.n) } };
        }
    }

    fn left(&self, a: *const T, batch: usize) -> View<T> {
        View { ptr: a.wrapping_add(self.a.batch[batch]), row: self.a.free, col: self.a.inner }
    }

    fn right(&self, b: *const T, batch: usize) -> View<T> {
        View { ptr: b.wrapping_add(self.b.batch[batch]), row: self.b.inner, col: self.b.free }
    }

    /// The right operand in panels, block of products after block: packed by all threads, or where it lies.
    unsafe fn right_panels(&self, cx: &Cx<'_>, b: *const T, packed: *mut T) -> Right<T> {
        let view = self.right(b, 0);
        if self.direct() {
            return Right {
                ptr: view.ptr,
                block: view.row * KC,
                panel_row: self.shape.columns,
                row: view.row,
                packed: false,
            };
        }
        let (w, size) = (self.shape.columns, std::mem::size_of::<T>());
        let padded = self.n.next_multiple_of(w);
        let (from, to) = (Ptr::of(view.ptr.cast()), Ptr(packed.cast()));
        let blocks = self.k.div_ceil(KC);
        let strips = self.n.div_ceil(BLOCK_COLUMNS);
        let body = |i: usize| {
            let (kb, strip) = (i / strips, i % strips);
            let k = KC.min(self.k - kb * KC);
            let j = strip * BLOCK_COLUMNS;
            let n = BLOCK_COLUMNS.min(self.n - j);
            let part = View { ptr: from.at(0).cast_const().cast::<T>(), ..view }.from(kb * KC, j);
            // SAFETY: each block and strip has its own place in the packed operand.
            unsafe { pack_right(self.shape.columns, part, k, n, to.elem(kb * KC * padded + j * k)) };
        };
        cx.team.run_with(blocks * strips, (self.k * padded * size) as f64 * 0.15, cx.flush, &body);
        Right { ptr: packed, block: KC * padded, panel_row: 0, row: w, packed: true }
    }

    unsafe fn run_blocks(&self, cx: &Cx<'_>, a: *const T, right: Right<T>, c: *mut T, bias: *const T) {
        let strips = self.n.div_ceil(BLOCK_COLUMNS);
        let row_blocks = self.m.div_ceil(self.rows);
        let k_blocks = self.k.div_ceil(KC);
        let per_split = k_blocks.div_ceil(self.splits);
        let (ap, bp, cp, biasp) =
            (Ptr::of(a.cast()), Ptr::of(right.ptr.cast()), Ptr(c.cast()), Ptr::of(bias.cast()));
        let (right_block, right_row, panel_row, packed) =
            (right.block, right.row, right.panel_row, right.packed);
        let body = |task: usize| {
            let (split, rest) = (task / (strips * row_blocks), task % (strips * row_blocks));
            let (i, strip) = ((rest / strips) * self.rows, rest % strips);
            let j = strip * BLOCK_COLUMNS;
            let job = Job {
                rows: (i, self.rows.min(self.m - i)),
                columns: (j, BLOCK_COLUMNS.min(self.n - j)),
                blocks: split * per_split..((split + 1) * per_split).min(k_blocks),
            };
            let right = Right {
                ptr: bp.at(0).cast_const().cast::<T>(),
                block: right_block,
                panel_row,
                row: right_row,
                packed,
            };
            // The bias of a split product is added with the parts.
            let bias = if self.splits > 1 { std::ptr::null() } else { biasp.at(0).cast_const().cast::<T>() };
            let c = cp.elem::<T>(split * self.m * self.n);
            // SAFETY: each task has its own rows and columns of its own part.
            unsafe { self.job(&job, self.left(ap.at(0).cast_const().cast(), 0), &right, c, bias) };
        };
        let work = 2.0 * (self.m * self.n) as f64 * self.k as f64 / 60.0;
        cx.team.run_with(self.splits * strips * row_blocks, work, cx.flush, &body);
    }

    /// One block of the result over a range of blocks of products.
    unsafe fn job(&self, job: &Job, a: View<T>, right: &Right<T>, c: *mut T, bias: *const T) {
        if job.blocks.is_empty() {
            return;
        }
        let ((i, m), (j, n)) = (job.rows, job.columns);
        let size = std::mem::size_of::<T>();
        let padded = self.n.next_multiple_of(self.shape.columns);
        let pack_left = n > 64;
        let left_len = if pack_left { m.next_multiple_of(self.shape.rows) * KC } else { 0 };
        let turned_len = if self.swapped { m * n } else { 0 };
        with_scratch((left_len + turned_len) * size + 64, |memory| {
            let packed_left = memory.cast::<T>();
            let turned = packed_left.wrapping_add(left_len);
            let (target, target_row) =
                if self.swapped { (turned, n) } else { (c.wrapping_add(i * self.n + j), self.n) };
            let last = job.blocks.end;
            for kb in job.blocks.clone() {
                let k = KC.min(self.k - kb * KC);
                let panels = if right.packed {
                    let ptr = right.ptr.wrapping_add(kb * KC * padded + j * k);
                    Panels { ptr, panel: self.shape.columns * k, row: self.shape.columns }
                } else {
                    let ptr = right.ptr.wrapping_add(kb * right.block + j);
                    Panels { ptr, panel: right.panel_row, row: right.row }
                };
                let part = a.from(i, kb * KC);
                let onto = self.add && self.splits == 1 && !self.swapped;
                let (add, at_end) =
                    (onto || kb != job.blocks.start, kb + 1 == last && kb + 1 == self.k.div_ceil(KC));
                let bias = if at_end && !bias.is_null() { bias.wrapping_add(j) } else { std::ptr::null() };
                // SAFETY: operands cover the block; the target is this task's.
                unsafe {
                    if pack_left {
                        self.left_blocks(part, (m, n, k), panels, packed_left, target, target_row, add, bias);
                    } else {
                        block(&self.shape, (m, n, k), part, panels, target, target_row, add, bias);
                    }
                }
            }
            if self.swapped {
                // Element (row, column) of the transposed result is element (column, row) of the result.
                for column in 0..n {
                    for row in 0..m {
                        // SAFETY: this task's part of the result, which has `self.m` columns.
                        unsafe {
                            let to = c.add((j + column) * self.m + i + row);
                            let y = *turned.add(row * n + column);
                            if self.add && self.splits == 1 { *to += y } else { *to = y }
                        }
                    }
                }
            }
        });
    }

    /// As [`block`], a few rows at a time with those rows packed: they stay in the nearest cache.
    #[allow(clippy::too_many_arguments)]
    unsafe fn left_blocks(
        &self,
        a: View<T>,
        (m, n, k): (usize, usize, usize),
        panels: Panels<T>,
        packed: *mut T,
        c: *mut T,
        c_row: usize,
        add: bool,
        bias: *const T,
    ) {
        let r = self.shape.rows;
        for i in (0..m).step_by(r) {
            let rows = r.min(m - i);
            // SAFETY: `packed` has room for a panel of the kernel's rows; the rest is the caller's promise.
            unsafe {
                pack_rows(a.from(i, 0), rows, k, packed);
                let view = View { ptr: packed.cast_const(), row: 1, col: rows };
                block(&self.shape, (rows, n, k), view, panels, c.wrapping_add(i * c_row), c_row, add, bias);
            }
        }
    }

    unsafe fn sum_splits(&self, cx: &Cx<'_>, parts: *mut T, c: *mut T, bias: *const T) {
        const BLOCK: usize = 1 << 13;
        let total = self.m * self.n;
        let (parts, c, bias) = (Ptr(parts.cast()), Ptr(c.cast()), Ptr::of(bias.cast()));
        let splits = self.k.div_ceil(KC).div_ceil(self.k.div_ceil(KC).div_ceil(self.splits));
        let body = |block: usize| {
            let (from, to) = (block * BLOCK, ((block + 1) * BLOCK).min(total));
            let bias = bias.at(0).cast_const().cast::<T>();
            let mut step = 1;
            // SAFETY: blocks are disjoint ranges of every part and of the result.
            unsafe {
                while step < splits {
                    for p in (0..splits - step).step_by(2 * step) {
                        for i in from..to {
                            *parts.elem::<T>(p * total + i) += *parts.elem::<T>((p + step) * total + i);
                        }
                    }
                    step *= 2;
                }
                for i in from..to {
                    let mut y = *parts.elem::<T>(i);
                    if !bias.is_null() {
                        y += *bias.add(i % self.n);
                    }
                    if self.add { *c.elem::<T>(i) += y } else { *c.elem::<T>(i) = y }
                }
            }
        };
        cx.team.run_with(total.div_ceil(BLOCK), (total * splits) as f64 * 0.3, cx.flush, &body);
    }

    /// Many small products: each task packs what it needs for itself.
    unsafe fn run_batches(&self, cx: &Cx<'_>, a: *const T, b: *const T, c: *mut T, bias: *const T) {
        let (ap, bp, cp, biasp) = (Ptr::of(a.cast()), Ptr::of(b.cast()), Ptr(c.cast()), Ptr::of(bias.cast()));
        let rows = self.shape.rows * 16;
        let row_blocks = self.m.div_ceil(rows);
        let size = std::mem::size_of::<T>();
        let body = |task: usize| {
            let (batch, i) = (task / row_blocks, task % row_blocks * rows);
            let m = rows.min(self.m - i);
            let (a, b) = (ap.at(0).cast_const().cast::<T>(), bp.at(0).cast_const().cast::<T>());
            let bias = biasp.at(0).cast_const().cast::<T>();
            let c = cp.elem::<T>((batch * self.m + i) * self.n);
            let width = BLOCK_COLUMNS.min(self.n.next_multiple_of(self.shape.columns));
            let left_len = self.shape.rows * KC;
            with_scratch((left_len + width * KC) * size, |memory| {
                let packed_left = memory.cast::<T>();
                let packed = packed_left.wrapping_add(left_len);
                for kb in 0..self.k.div_ceil(KC) {
                    let k = KC.min(self.k - kb * KC);
                    let left = self.left(a, batch).from(i, kb * KC);
                    for j in (0..self.n).step_by(BLOCK_COLUMNS) {
                        let n = BLOCK_COLUMNS.min(self.n - j);
                        let at_end = kb + 1 == self.k.div_ceil(KC) && !bias.is_null();
                        let bias = if at_end { bias.wrapping_add(j) } else { std::ptr::null() };
                        // SAFETY: each task has its own rows of its own batch element.
                        unsafe {
                            pack_right(
                                self.shape.columns,
                                self.right(b, batch).from(kb * KC, j),
                                k,
                                n,
                                packed,
                            );
                            let panels = Panels {
                                ptr: packed.cast_const(),
                                panel: self.shape.columns * k,
                                row: self.shape.columns,
                            };
                            let c = c.wrapping_add(j);
                            self.left_blocks(
                                left,
                                (m, n, k),
                                panels,
                                packed_left,
                                c,
                                self.n,
                                self.add || kb > 0,
                                bias,
                            );
                        }
                    }
                }
            });
        };
        let work = 2.0 * (self.a.batch.len() * self.m * self.n) as f64 * self.k as f64 / 60.0;
        cx.team.run_with(self.a.batch.len() * row_blocks, work, cx.flush, &body);
    }
}

/// Part of a result that one task computes.
struct Job {
    rows: (usize, usize),
    columns: (usize, usize),
    /// Blocks of [`KC`] products.
    blocks: std::ops::Range<usize>,
}

/// The right operand of a whole product.
struct Right<T> {
    ptr: *const T,
    /// Distance between blocks of products, where it was not packed.
    block: usize,
    panel_row: usize,
    row: usize,
    packed: bool,
}

/// Packs `rows` rows by `k` products so that the rows of one product lie together.
unsafe fn pack_rows<T: Copy>(a: View<T>, rows: usize, k: usize, dst: *mut T) {
    // SAFETY: the caller's view covers the range and `dst` has room for it.
    unsafe {
        if a.row == 1 {
            for x in 0..k {
                std::ptr::copy_nonoverlapping(a.ptr.add(x * a.col), dst.add(x * rows), rows);
            }
            return;
        }
        for r in 0..rows {
            let from = a.ptr.add(r * a.row);
            for x in 0..k {
                *dst.add(x * rows + r) = *from.add(x * a.col);
            }
        }
    }
}

/// Sums of integer products, exact modulo the result's width.
struct IntProduct {
    batch: Vec<(usize, usize)>,
    inner: Vec<(usize, usize)>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    from: DType,
    to: DType,
}

fn offsets(dims: &[Dim]) -> Vec<usize> {
    let mut all = vec![0];
    for d in dims {
        all = all.iter().flat_map(|&at| (0..d.size).map(move |i| at + i * d.src as usize)).collect();
    }
    all
}

impl IntProduct {
    fn new(ra: &Roles, rb: &Roles, from: DType, to: DType) -> IntProduct {
        IntProduct {
            batch: offsets(&ra.batch).into_iter().zip(offsets(&rb.batch)).collect(),
            inner: offsets(&ra.inner).into_iter().zip(offsets(&rb.inner)).collect(),
            rows: offsets(&ra.free),
            columns: offsets(&rb.free),
            from,
            to,
        }
    }

    unsafe fn run(&self, cx: &Cx<'_>, a: *const u8, b: *const u8, c: *mut u8) {
        // SAFETY: the operands have element type `from`.
        unsafe {
            match self.from {
                DType::I8 => self.run_as::<i8>(cx, a, b, c, |x| x as i64),
                DType::I16 => self.run_as::<i16>(cx, a, b, c, |x| x as i64),
                DType::I32 => self.run_as::<i32>(cx, a, b, c, |x| x as i64),
                DType::U8 => self.run_as::<u8>(cx, a, b, c, |x| x as i64),
                DType::U16 => self.run_as::<u16>(cx, a, b, c, |x| x as i64),
                DType::U32 => self.run_as::<u32>(cx, a, b, c, |x| x as i64),
                DType::U64 => self.run_as::<u64>(cx, a, b, c, |x| x as i64),
                _ => self.run_as::<i64>(cx, a, b, c, |x| x),
            }
        }
    }

    unsafe fn run_as<T: Copy>(
        &self,
        cx: &Cx<'_>,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        wide: impl Fn(T) -> i64 + Sync,
    ) {
        let (a, b, c) = (Ptr::of(a), Ptr::of(b), Ptr(c));
        let (m, n) = (self.rows.len(), self.columns.len());
        let body = |task: usize| {
            let (batch, i) = (task / m, task % m);
            let (at_a, at_b) = (self.batch[batch].0 + self.rows[i], self.batch[batch].1);
            let mut sums = vec![0i64; n];
            // SAFETY: offsets are those of elements; each task has its own row of the result.
            unsafe {
                for &(ka, kb) in &self.inner {
                    let x = wide(*a.elem::<T>(at_a + ka));
                    for (s, &j) in sums.iter_mut().zip(&self.columns) {
                        *s = s.wrapping_add(x.wrapping_mul(wide(*b.elem::<T>(at_b + kb + j))));
                    }
                }
                let size = self.to.size();
                for (j, s) in sums.iter().enumerate() {
                    let at = ((batch * m + i) * n + j) * size;
                    // Little endian: the low bytes are the value modulo the width.
                    std::ptr::copy_nonoverlapping(s.to_le_bytes().as_ptr(), c.at(at), size);
                }
            }
        };
        let tasks = self.batch.len() * m;
        cx.team.run_with(tasks, (tasks * n * self.inner.len()) as f64, cx.flush, &body);
    }
}
