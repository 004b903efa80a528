//! dot_general: any dimensions brought to batch × rows × products × columns, then blocked products ([`Product`]).

use super::dots::Dots;
use super::gemm::{shape_f32, shape_f64, shape_pairs, shape_quads};
use super::lanes::{narrow, widen};
use super::matmul::{Epilogue, Product, Roles, Rounding, Types, offsets};
use super::moves::Dim;
use super::pack::{Group, doubles, floats, integers};
use super::slim::Slim;
use super::thin::Thin;
use super::{Io, Kernel, Ptr};
use crate::detect::{Level, TileFn};
use crate::exec::Cx;
use systole_compile::Step;
use systole_ir::op::DotGeneral;
use systole_ir::{DType, Result, TensorType};

/// A product of matrices, or of batches of them.
pub enum DotKernel {
    F32(Product<f32>),
    /// f32 with few columns.
    Slim(Slim),
    /// The same, where both operands lie along the products; also of bf16.
    Dots(Dots),
    /// bf16 with few rows and products.
    Thin(Thin),
    F64(Product<f64>),
    Int(Product<i32>),
    AnyInt(IntProduct),
}

fn roles(ty: &TensorType, batch: &[usize], free: &[usize], inner: &[usize]) -> Roles {
    let strides = ty.shape.strides();
    let pick = |dims: &[usize]| -> Vec<Dim> {
        dims.iter().map(|&d| Dim { size: ty.shape[d], src: strides[d] as isize, dst: 0 }).collect()
    };
    Roles { batch: pick(batch), free: pick(free), inner: pick(inner) }
}

/// Operands stored as floats of at most 32 bits: widened where they are packed, rounded where sums are complete.
fn float_types(from: DType, to: DType, level: Level) -> Types<f32> {
    let round = || Some(Rounding { narrow: narrow(to, level)?, widen: widen(to, level)?, size: to.size() });
    let pack = floats(from, level);
    Types {
        size: from.size(),
        group: 1,
        pack_left: pack,
        pack_right: pack,
        plain: from == DType::F32,
        round: round(),
        correction: None,
    }
}

fn double_types() -> Types<f64> {
    Types {
        size: 8,
        group: 1,
        pack_left: doubles(),
        pack_right: doubles(),
        plain: false,
        round: None,
        correction: None,
    }
}

/// The product of narrow integers with 32-bit sums; `None` for other types.
fn int_product(ra: &Roles, rb: &Roles, from: DType, to: DType, level: Level) -> Option<Product<i32>> {
    if !matches!(to, DType::I32 | DType::U32) {
        return None;
    }
    let types = |left: Group, right: Group, group, correction| {
        let (pack_left, pack_right) = (integers(from, left, level)?, integers(from, right, level)?);
        Some(Types { size: from.size(), group, pack_left, pack_right, plain: false, round: None, correction })
    };
    let none = Epilogue::default();
    if let (DType::I8, Some(shape)) = (from, shape_quads(level)) {
        // The left bytes are taken as 128 more than they are.
        let correction = Some((0x0101_0101, (|sum: i32| sum.wrapping_mul(-128)) as fn(i32) -> i32));
        return Some(Product::new(ra, rb, shape, types(Group::Offset, Group::Bytes, 4, correction)?, none));
    }
    Some(Product::new(ra, rb, shape_pairs(level), types(Group::Words, Group::Words, 2, None)?, none))
}

impl DotKernel {
    /// The kernel, or `None` where the element types have no fast path.
    pub fn new(d: &DotGeneral, epilogue: Epilogue, step: &Step, level: Level) -> Option<DotKernel> {
        let (a, b) = (&step.input_types[0], &step.input_types[1]);
        let ra = roles(a, &d.lhs_batch, &d.lhs_free(a.rank()), &d.lhs_contract);
        let rb = roles(b, &d.rhs_batch, &d.rhs_free(b.rank()), &d.rhs_contract);
        let (from, to) = (a.dtype, d.element_type);
        let small_float = |t: DType| matches!(t, DType::F32 | DType::F16 | DType::BF16);
        if let Some(dots) = Dots::new(&ra, &rb, [from, to], epilogue, level) {
            return Some(DotKernel::Dots(dots));
        }
        if epilogue == Epilogue::default()
            && let Some(thin) = Thin::new(&ra, &rb, [from, to], level)
        {
            return Some(DotKernel::Thin(thin));
        }
        if from == DType::F32
            && to == DType::F32
            && let Some(slim) = Slim::new(&ra, &rb, epilogue, level)
        {
            return Some(DotKernel::Slim(slim));
        }
        if small_float(from) && small_float(to) {
            let n = b.elements() / rb.batch.iter().chain(&rb.inner).map(|d| d.size).product::<usize>().max(1);
            let types = float_types(from, to, level);
            return Some(DotKernel::F32(Product::new(&ra, &rb, shape_f32(level, n), types, epilogue)));
        }
        if from == DType::F64 && to == DType::F64 {
            return Some(DotKernel::F64(Product::new(&ra, &rb, shape_f64(level), double_types(), epilogue)));
        }
        if !from.is_int() || !to.is_int() || epilogue != Epilogue::default() {
            return None;
        }
        Some(match int_product(&ra, &rb, from, to, level) {
            Some(p) => DotKernel::Int(p),
            None => DotKernel::AnyInt(IntProduct::new(&ra, &rb, from, to)),
        })
    }
}

impl Kernel for DotKernel {
    fn scratch(&self) -> usize {
        match self {
            DotKernel::F32(p) => p.scratch(),
            DotKernel::Slim(s) => s.scratch(),
            DotKernel::Dots(_) => 0,
            DotKernel::Thin(t) => t.scratch(),
            DotKernel::F64(p) => p.scratch(),
            DotKernel::Int(p) => p.scratch(),
            DotKernel::AnyInt(_) => 0,
        }
    }

    fn add_to_result(&mut self) -> bool {
        match self {
            DotKernel::F32(p) => p.accumulate(),
            DotKernel::Slim(s) => {
                s.accumulate();
                true
            }
            DotKernel::Dots(d) => d.accumulate(),
            DotKernel::Thin(t) => t.accumulate(),
            DotKernel::F64(p) => p.accumulate(),
            DotKernel::Int(_) | DotKernel::AnyInt(_) => false,
        }
    }

    fn kept(&self, same: &[bool]) -> usize {
        match self {
            DotKernel::F32(p) if same[1] => p.kept(),
            DotKernel::F64(p) if same[1] => p.kept(),
            _ => 0,
        }
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                DotKernel::F32(p) => p.keep(cx, inputs[1], kept),
                DotKernel::F64(p) => p.keep(cx, inputs[1], kept),
                _ => {}
            }
        }
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let bias = io.inputs.get(2).copied().unwrap_or(std::ptr::null());
        let (operands, c) = ([io.inputs[0], io.inputs[1], bias], io.outputs[0]);
        // SAFETY: operands and result are those the kernel was made for; scratch has as many bytes as it asked for.
        unsafe {
            match self {
                DotKernel::F32(p) => p.run(cx, operands, c, io.scratch, kept),
                DotKernel::Slim(s) => s.run(cx, io),
                DotKernel::Dots(d) => d.run(cx, io),
                DotKernel::Thin(t) => t.run(cx, io),
                DotKernel::F64(p) => p.run(cx, operands, c, io.scratch, kept),
                DotKernel::Int(p) => p.run(cx, operands, c, io.scratch, std::ptr::null()),
                DotKernel::AnyInt(p) => p.run(cx, operands[0], operands[1], c),
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

/// Sums of integer products, exact modulo the result's width.
pub struct IntProduct {
    batch: Vec<(usize, usize)>,
    inner: Vec<(usize, usize)>,
    rows: Vec<usize>,
    columns: Vec<usize>,
    from: DType,
    to: DType,
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
