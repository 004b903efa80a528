//! dot_general: any dimensions brought to batch × rows × products × columns, then blocked products ([`Product`]).

use crate::kernel::Cx;
use crate::kernel::Side;
use crate::kernel::few_rows::FewRows;
use crate::kernel::inner_products::InnerProducts;
use crate::kernel::product::{Epilogue, Roles, count, joint_stride, offsets, roles};
use crate::kernel::{Io, Kernel, Ptr};
use crate::kernels::conv::Forward;
use crate::kernels::matmul::blocked::{Finish, Product, Rounding, Types};
use crate::kernels::matmul::few_columns::FewColumns;
use crate::simd::amx;
use crate::simd::gemm::{shape_f32, shape_f64, shape_halves, shape_pairs, shape_quads};
use crate::simd::level::{Level, Target};
use crate::simd::loops::{narrow, widen};
#[cfg(target_arch = "x86_64")]
use crate::simd::pack::halves;
use crate::simd::pack::{Group, doubles, floats, integers};
use systole_compile::Step;
use systole_ir::op::{Convolution, DotGeneral};
use systole_ir::{DType, Result, TensorType};

/// A product of matrices, or of batches of them.
pub enum DotKernel {
    F32(Product<f32>),
    /// f32 with few columns.
    FewColumns(FewColumns),
    /// The same, where both operands lie along the products; also of bf16.
    InnerProducts(InnerProducts),
    /// Few rows and products, and long columns.
    FewRows(FewRows),
    /// bf16 whose left operand tile registers load from where it lies.
    Rows(Box<Forward>),
    F64(Product<f64>),
    Int(Product<i32>),
    AnyInt(IntProduct),
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

/// Where rows are not packed: how many there are at least, elements of a result below which packing does not pay, and
/// products for which two panels of rows fit the first-level cache often enough.
const FEWEST_ROWS: usize = 64;
const SMALL: usize = 1 << 20;
const LONGEST: usize = 4096;
/// Multiply-adds below which splitting f32 takes longer than it saves.
const SPLIT_WORK: usize = 1 << 15;

/// The product by tile registers; `None` where those do not know the types.
fn tiled(ra: &Roles, rb: &Roles, [from, to]: [DType; 2], epilogue: Epilogue, m: &Means) -> Option<DotKernel> {
    let kernels = m.tiles?;
    let level = m.target.level.vectors();
    if from.is_int() {
        let shape = match (from, to) {
            _ if epilogue != Epilogue::default() => return None,
            (DType::I8, DType::I32 | DType::U32) => kernels.signed,
            (DType::U8, DType::I32 | DType::U32) => kernels.unsigned,
            _ => return None,
        };
        let [pack_left, pack_right] = amx::pack::packs(from, level)?;
        let types =
            Types { size: 1, group: 4, pack_left, pack_right, plain: false, round: None, correction: None };
        return Some(DotKernel::Int(Product::new(ra, rb, shape, types, epilogue)));
    }
    let [m_, n, k] = [&ra.free, &rb.free, &ra.inner].map(|dims| count(dims));
    let (shape, group) = match (from, to) {
        (DType::BF16, DType::BF16 | DType::F32) => (kernels.bf16, 2),
        (DType::F32, DType::F32) if m.target.tensor_float_32 && m_ * n * k >= SPLIT_WORK => {
            (kernels.split, 1)
        }
        _ => return None,
    };
    let [pack_left, pack_right] = amx::pack::packs(from, level)?;
    let types = Types { group, pack_left, pack_right, plain: false, ..float_types(from, to, level) };
    Some(DotKernel::F32(Product::new(ra, rb, shape, types, epilogue)))
}

/// The product as a convolution of one pixel's window, which does not pack its rows: `None` where they do not lie one
/// after the other, or are too few to share among threads with the packed columns.
fn rows_in_place(
    ra: &Roles,
    rb: &Roles,
    [from, to]: [DType; 2],
    epilogue: Epilogue,
    target: Target,
) -> Option<Forward> {
    let [m, n, k] = [&ra.free, &rb.free, &ra.inner].map(|dims| count(dims));
    let along = |r: &Roles| Some((joint_stride(&r.free)?, joint_stride(&r.inner)?));
    let by_columns = match along(rb)? {
        (1, step) if step == n => false,
        (lane, 1) if lane == k => true,
        _ => return None,
    };
    let fits = count(&ra.batch) == 1 && along(ra)? == (k, 1) && epilogue == Epilogue::default();
    if !fits || m < FEWEST_ROWS || m * n >= SMALL || k > LONGEST {
        return None;
    }
    let dims = if by_columns { [1, n, k] } else { [1, k, n] };
    let mut c = Convolution::channels_last(&[1], &[[0, 0]], &[1], 1, to);
    if by_columns {
        (c.dims.kernel_input_feature, c.dims.kernel_output_feature) = (2, 1);
    }
    let [x, y] = [(from, k), (to, n)].map(|(dtype, columns)| TensorType::new(dtype, [1, m, columns]));
    Forward::new(&c, false, [&x, &TensorType::new(from, dims), &y], target).ok()
}

/// The product of bf16 in pairs; `None` where the level has no such instruction, or for other types.
#[cfg(target_arch = "x86_64")]
fn paired(
    ra: &Roles,
    rb: &Roles,
    [from, to]: [DType; 2],
    epilogue: Epilogue,
    level: Level,
) -> Option<DotKernel> {
    if from != DType::BF16 || !matches!(to, DType::BF16 | DType::F32) {
        return None;
    }
    let shape = shape_halves(level, count(&rb.free))?;
    let pack = halves();
    let types =
        Types { group: 2, pack_left: pack, pack_right: pack, ..float_types(from, to, level.vectors()) };
    Some(DotKernel::F32(Product::new(ra, rb, shape, types, epilogue)))
}

#[cfg(not(target_arch = "x86_64"))]
fn paired(_: &Roles, _: &Roles, _: [DType; 2], _: Epilogue, _: Level) -> Option<DotKernel> {
    None
}

/// What products may use.
#[derive(Clone, Copy)]
struct Means {
    target: Target,
    tiles: Option<&'static amx::Kernels>,
}

impl DotKernel {
    /// The kernel, or `None` where the element types have no fast path.
    pub fn new(d: &DotGeneral, epilogue: Epilogue, step: &Step, target: Target) -> Option<DotKernel> {
        let (a, b) = (&step.input_types[0], &step.input_types[1]);
        let ra = roles(a, &d.lhs_batch, &d.lhs_free(a.rank()), &d.lhs_contract);
        let rb = roles(b, &d.rhs_batch, &d.rhs_free(b.rank()), &d.rhs_contract);
        DotKernel::product(&ra, &rb, [a.dtype, d.element_type], epilogue, target)
    }

    /// The product of operands of a type in given roles.
    pub fn product(
        ra: &Roles,
        rb: &Roles,
        types: [DType; 2],
        epilogue: Epilogue,
        target: Target,
    ) -> Option<DotKernel> {
        let [from, to] = types;
        let means = Means { target, tiles: amx::kernels_of(target.level) };
        let level = target.level.vectors();
        let small_float = |t: DType| matches!(t, DType::F32 | DType::F16 | DType::BF16);
        if let Some(dots) = InnerProducts::new(ra, rb, [from, to], epilogue, level) {
            return Some(DotKernel::InnerProducts(dots.with_pairs(target.level, 0)));
        }
        if epilogue == Epilogue::default()
            && let Some(thin) = FewRows::new(ra, rb, [from, to], level)
        {
            let thin = thin.with_pairs(target.level).with_tiles(amx::fused::fused_of(target.level));
            return Some(DotKernel::FewRows(thin));
        }
        if from == DType::F32
            && to == DType::F32
            && let Some(slim) = FewColumns::new(ra, rb, epilogue, level)
        {
            return Some(DotKernel::FewColumns(slim));
        }
        if let Some(kernel) = rows_in_place(ra, rb, [from, to], epilogue, target) {
            return Some(DotKernel::Rows(Box::new(kernel)));
        }
        if let Some(kernel) = tiled(ra, rb, [from, to], epilogue, &means) {
            return Some(kernel);
        }
        if let Some(kernel) = paired(ra, rb, [from, to], epilogue, target.level) {
            return Some(kernel);
        }
        if small_float(from) && small_float(to) {
            let types = float_types(from, to, level);
            let shape = shape_f32(level, count(&rb.free));
            return Some(DotKernel::F32(Product::new(ra, rb, shape, types, epilogue)));
        }
        if from == DType::F64 && to == DType::F64 {
            return Some(DotKernel::F64(Product::new(ra, rb, shape_f64(level), double_types(), epilogue)));
        }
        if !from.is_int() || !to.is_int() || epilogue != Epilogue::default() {
            return None;
        }
        Some(match int_product(ra, rb, from, to, level) {
            Some(p) => DotKernel::Int(p),
            None => DotKernel::AnyInt(IntProduct::new(ra, rb, from, to)),
        })
    }
}

impl DotKernel {
    /// Hands complete sums on from now on instead of storing them; whether it will.
    pub fn hand_on(&mut self) -> bool {
        match self {
            DotKernel::F32(p) => p.hand_on(),
            _ => false,
        }
    }

    /// Computes the product where [`DotKernel::hand_on`] agreed.
    ///
    /// # Safety
    /// As for [`Kernel::run_kept`], but that there is no result.
    pub unsafe fn run_handing_on(&self, cx: &Cx<'_>, io: &Io<'_>, finish: Finish<'_>, kept: *const u8) {
        let DotKernel::F32(p) = self else { return };
        // SAFETY: by the caller's promise.
        unsafe { p.run_handing_on(cx, operands(io), finish, io.scratch, kept) }
    }
}

/// A product's operands, and its bias or null.
fn operands(io: &Io<'_>) -> [*const u8; 3] {
    [io.inputs[0], io.inputs[1], io.inputs.get(2).copied().unwrap_or(std::ptr::null())]
}

impl Kernel for DotKernel {
    fn scratch(&self) -> usize {
        match self {
            DotKernel::F32(p) => p.scratch(),
            DotKernel::FewColumns(s) => s.scratch(),
            DotKernel::InnerProducts(_) => 0,
            DotKernel::FewRows(t) => t.scratch(),
            DotKernel::Rows(r) => r.scratch(),
            DotKernel::F64(p) => p.scratch(),
            DotKernel::Int(p) => p.scratch(),
            DotKernel::AnyInt(_) => 0,
        }
    }

    fn add_to_result(&mut self) -> bool {
        match self {
            DotKernel::F32(p) => p.accumulate(),
            DotKernel::FewColumns(s) => {
                s.accumulate();
                true
            }
            DotKernel::InnerProducts(d) => d.accumulate(),
            DotKernel::FewRows(t) => t.accumulate(),
            DotKernel::F64(p) => p.accumulate(),
            DotKernel::Rows(_) | DotKernel::Int(_) | DotKernel::AnyInt(_) => false,
        }
    }

    fn take_panels(&mut self, which: Side, on: bool) -> Option<usize> {
        match self {
            DotKernel::F32(p) => p.take_panels(which, on),
            _ => None,
        }
    }

    fn kept(&self, same: &[bool]) -> usize {
        match self {
            DotKernel::F32(p) if same[1] => p.kept(),
            DotKernel::F64(p) if same[1] => p.kept(),
            DotKernel::Rows(r) => r.kept(same),
            _ => 0,
        }
    }

    unsafe fn keep(&self, cx: &Cx<'_>, inputs: &[*const u8], kept: *mut u8) {
        // SAFETY: by the caller's promise.
        unsafe {
            match self {
                DotKernel::F32(p) => p.keep(cx, inputs[1], kept),
                DotKernel::F64(p) => p.keep(cx, inputs[1], kept),
                DotKernel::Rows(r) => r.keep(cx, inputs, kept),
                _ => {}
            }
        }
    }

    unsafe fn run(&self, cx: &Cx<'_>, io: &Io<'_>) -> Result<()> {
        // SAFETY: by the caller's promise.
        unsafe { self.run_kept(cx, io, std::ptr::null()) }
    }

    unsafe fn run_kept(&self, cx: &Cx<'_>, io: &Io<'_>, kept: *const u8) -> Result<()> {
        let (operands, c) = (operands(io), io.outputs[0]);
        // SAFETY: operands and result are those the kernel was made for; scratch has as many bytes as it asked for.
        unsafe {
            match self {
                DotKernel::F32(p) => p.run(cx, operands, c, io.scratch, kept),
                DotKernel::FewColumns(s) => s.run(cx, io),
                DotKernel::InnerProducts(d) => d.run(cx, io),
                DotKernel::FewRows(t) => t.run(cx, io),
                DotKernel::Rows(r) if kept.is_null() => r.run(cx, io)?,
                DotKernel::Rows(r) => r.run_kept(cx, io, kept)?,
                DotKernel::F64(p) => p.run(cx, operands, c, io.scratch, kept),
                DotKernel::Int(p) => p.run(cx, operands, c, io.scratch, std::ptr::null()),
                DotKernel::AnyInt(p) => p.run(cx, operands[0], operands[1], c),
            }
        }
        Ok(())
    }
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

/// Products by emulated tile registers, so that what surrounds the instructions is tested on every machine, and by the
/// machine's own where it has them.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::Memory;
    use crate::machine::team::Team;
    use systole_ir::rng::Stream;
    use systole_ir::{Literal, LiteralBuilder, Scalar};

    /// A batch of products `[m, k] · [k, n]`, each operand transposed or not.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        batch: usize,
        size: (usize, usize, usize),
        flip: [bool; 2],
        types: [DType; 2],
        epilogue: Epilogue,
    }

    impl Case {
        fn operands(&self) -> [TensorType; 2] {
            let (m, n, k) = self.size;
            let of = |flip: bool, rows, columns| {
                let dims = if flip { [self.batch, columns, rows] } else { [self.batch, rows, columns] };
                TensorType::new(self.types[0], dims)
            };
            [of(self.flip[0], m, k), of(self.flip[1], k, n)]
        }

        fn roles(&self) -> [Roles; 2] {
            let [a, b] = self.operands();
            let (left, right) = if self.flip[0] { ([2], [1]) } else { ([1], [2]) };
            let (inner, free) = if self.flip[1] { ([2], [1]) } else { ([1], [2]) };
            [roles(&a, &[0], &left, &right), roles(&b, &[0], &free, &inner)]
        }

        /// The kernel, which packs with the vectors of a level.
        fn kernel(&self, level: Level, tiles: &'static amx::Kernels) -> Option<DotKernel> {
            let [ra, rb] = self.roles();
            let target = Target {
                level,
                tensor_float_32: true,
                winograd: false,
                excess_precision: false,
                flush: false,
            };
            tiled(&ra, &rb, self.types, self.epilogue, &Means { target, tiles: Some(tiles) })
        }

        fn run(&self, kernel: &DotKernel, threads: usize, operands: [&Literal; 3], old: &Literal) -> Vec<u8> {
            let mut c = old.bytes().to_vec();
            let inputs = operands.map(|x| x.bytes().as_ptr());
            let scratch = Memory::new(kernel.scratch()).unwrap();
            let io = Io { inputs: &inputs, outputs: &[c.as_mut_ptr()], scratch: scratch.ptr() };
            // SAFETY: all arrays have the sizes of the product.
            unsafe { kernel.run(&Cx { team: &Team::new(threads), flush: false }, &io).unwrap() };
            c
        }

        /// Element (row, column) of an operand with its batch's elements at `of`.
        fn at(&self, operand: usize, row: usize, column: usize) -> usize {
            let (m, n, k) = self.size;
            let (rows, columns) = if operand == 0 { (m, k) } else { (k, n) };
            if self.flip[operand] { column * rows + row } else { row * columns + column }
        }

        /// Compares with exact sums.
        fn check(&self, level: Level, seed: u64) {
            for tiles in units() {
                if let Some(kernel) = self.kernel(level, tiles) {
                    self.check_kernel(&kernel, seed);
                }
            }
        }

        fn check_kernel(&self, kernel: &DotKernel, seed: u64) {
            let (m, n, k) = self.size;
            let mut s = Stream::new(seed, 5, 1);
            let [from, to] = self.types;
            // Of f32, one operand has more bits than a bf16.
            let most = |operand: u64| match from {
                DType::I8 => 128,
                DType::U8 => 127,
                DType::F32 if operand == seed % 2 => 2000,
                _ => 4,
            };
            let (ta, tb) = self.operands().into();
            let (row, result) = (TensorType::new(DType::F32, [n]), TensorType::new(to, [self.batch, m, n]));
            let (a, la) = draw(&ta, most(0), &mut s);
            let (b, lb) = draw(&tb, most(1), &mut s);
            let (bias, lbias) = draw(&row, 4, &mut s);
            let (old, lold) = draw(&result, 4, &mut s);
            let got = self.run(kernel, 2, [&la, &lb, &lbias], &lold);
            let mut want = LiteralBuilder::new(result);
            for (i, &old) in old.iter().enumerate() {
                let (batch, row, column) = (i / (m * n), i / n % m, i % n);
                let (a, b) = (&a[batch * m * k..], &b[batch * k * n..]);
                let mut sum: i64 = (0..k).map(|x| a[self.at(0, row, x)] * b[self.at(1, x, column)]).sum();
                sum += if self.epilogue.bias { bias[column] } else { 0 };
                sum += if self.epilogue.accumulate { old } else { 0 };
                want.set(i, if to.is_float() { Scalar::Float(sum as f64) } else { Scalar::Int(sum) });
            }
            let want = want.finish();
            let differs = got.chunks(to.size()).zip(want.bytes().chunks(to.size())).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{self:?}: the element that differs from the sums");
        }
    }

    /// Whole numbers from −`most` to `most`, those of unsigned types without sign; all bytes where it is 128.
    fn draw(ty: &TensorType, most: i64, s: &mut Stream) -> (Vec<i64>, Literal) {
        let unsigned = matches!(ty.dtype, DType::U8 | DType::U32);
        let mut builder = LiteralBuilder::new(ty.clone());
        let mut values = Vec::new();
        for i in 0..ty.elements() {
            let v = s.below(2 * most as u64 + u64::from(most < 128)) as i64 - if unsigned { 0 } else { most };
            builder.set(i, if ty.dtype.is_float() { Scalar::Float(v as f64) } else { Scalar::Int(v) });
            values.push(v);
        }
        (values, builder.finish())
    }

    const FLIPS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];
    /// Around tiles of 16, panels of 32, groups of 256 columns, blocks of 256 bf16 or 512 bytes, splits of long sums.
    const SIZES: [(usize, usize, usize); 15] = [
        (1, 1, 1),
        (1, 33, 40),
        (15, 16, 31),
        (16, 17, 64),
        (17, 15, 65),
        (31, 32, 33),
        (33, 31, 257),
        (40, 48, 600),
        (64, 64, 64),
        (70, 300, 70),
        (49, 65, 1030),
        (300, 20, 270),
        (5, 6, 5000),
        (20, 530, 300),
        (3, 4, 0),
    ];
    const TYPES: [[DType; 2]; 5] = {
        use DType::*;
        [[BF16, BF16], [BF16, F32], [F32, F32], [I8, I32], [U8, U32]]
    };

    /// Emulated tile registers, and those of this machine.
    fn units() -> impl Iterator<Item = &'static amx::Kernels> {
        std::iter::once(&amx::EMULATED).chain(amx::kernels_of(Level::best()))
    }

    /// Levels whose vectors pack differently.
    fn levels() -> impl Iterator<Item = Level> {
        [Level::Portable, Level::Avx512].into_iter().filter(|l| l.is_available())
    }

    #[test]
    fn tile_registers_compute_every_size_and_layout() {
        for level in levels() {
            for types in TYPES {
                for (i, size) in SIZES.into_iter().enumerate() {
                    for flip in FLIPS {
                        Case { batch: 1, size, flip, types, epilogue: Epilogue::default() }
                            .check(level, i as u64);
                    }
                }
            }
        }
    }

    #[test]
    fn pairs_of_bf16_compute_every_size_and_layout() {
        let level = Level::Avx512Bf16;
        if !level.is_available() {
            return;
        }
        let check = |case: Case, seed: usize| {
            let [ra, rb] = case.roles();
            let kernel = paired(&ra, &rb, case.types, case.epilogue, level).expect("a product of bf16");
            case.check_kernel(&kernel, seed as u64);
        };
        for types in TYPES.into_iter().filter(|t| t[0] == DType::BF16) {
            for (i, size) in SIZES.into_iter().enumerate() {
                for flip in FLIPS {
                    check(Case { batch: 1, size, flip, types, epilogue: Epilogue::default() }, i);
                }
                for (bias, accumulate) in [(true, false), (false, true), (true, true)] {
                    let epilogue = Epilogue { bias, accumulate };
                    check(Case { batch: 1, size, flip: [false; 2], types, epilogue }, i);
                }
            }
            for (batch, size) in [(6, (20, 41, 25)), (2, (50, 70, 91)), (1, (2100, 40, 1700))] {
                check(Case { batch, size, flip: [false, true], types, epilogue: Epilogue::default() }, batch);
            }
        }
    }

    #[test]
    fn tile_registers_add_to_sums_and_biases() {
        for types in [[DType::BF16, DType::F32], [DType::BF16, DType::BF16], [DType::F32, DType::F32]] {
            for size in [(32, 64, 128), (33, 47, 700), (64, 96, 600), (7, 9, 3000), (100, 30, 20)] {
                for (bias, accumulate) in [(true, false), (false, true), (true, true)] {
                    let epilogue = Epilogue { bias, accumulate };
                    Case { batch: 1, size, flip: [false; 2], types, epilogue }.check(Level::Portable, 1);
                }
            }
        }
    }

    #[test]
    fn tile_registers_compute_batches_and_large_products() {
        let epilogue = Epilogue::default();
        for types in TYPES {
            for (batch, size) in
                [(6, (20, 40, 24)), (2, (50, 70, 90)), (1, (2100, 40, 40)), (1, (40, 2100, 40))]
            {
                Case { batch, size, flip: [false, true], types, epilogue }.check(Level::best().vectors(), 3);
            }
        }
    }

    /// Random operands, and the exact sums with the sums of absolute values.
    fn random(case: &Case) -> ([Literal; 2], Vec<(f64, f64)>) {
        let (m, n, k) = case.size;
        let mut s = Stream::new(8, 1, 1);
        let operands = case.operands().map(|t| systole_ir::op::Domain::Uniform(-1.0, 1.0).draw(&t, &mut s));
        let value = |o: usize, i: usize| match operands[o].get(i) {
            Scalar::Float(x) => x,
            other => panic!("{other:?}"),
        };
        let products = |i: usize| {
            let all = (0..k).map(|x| value(0, case.at(0, i / n, x)) * value(1, case.at(1, x, i % n)));
            all.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()))
        };
        let sums = (0..m * n).map(products).collect();
        (operands, sums)
    }

    #[test]
    fn split_floats_keep_sixteen_bits_and_any_number_of_threads_the_same() {
        let types = [DType::F32; 2];
        let epilogue = Epilogue::default();
        let case = Case { batch: 1, size: (70, 90, 800), flip: [false; 2], types, epilogue };
        let ([a, b], exact) = random(&case);
        let old = Literal::zeros(TensorType::new(DType::F32, [1, 70, 90]));
        for tiles in units() {
            let kernel = case.kernel(Level::Portable, tiles).unwrap();
            let run = |threads| case.run(&kernel, threads, [&a, &b, &old], &old);
            let got = run(1);
            for threads in [2, 3, 8] {
                assert!(run(threads) == got, "{threads} threads");
            }
            let sums = got.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x)));
            let worst = sums.zip(&exact).map(|(y, (sum, size))| (y - sum).abs() / size).fold(0.0, f64::max);
            // Two bf16 leave out 2⁻¹⁷ of each factor; f32 sums of exact products would be below 1e-7.
            assert!((1e-7..1e-5).contains(&worst), "{worst:e}");
        }
    }
}
