//! Tests of the AMX GEMM, on emulated and (if available) real tile registers, and of the bf16 pair GEMM.

use crate::kernel::gemm_dims::{Epilogue, OperandDims, roles};
use crate::kernel::{Io, Kernel, KernelContext};
use crate::kernels::matmul::blocked::element_types::{amx, bf16_pairs};
use crate::kernels::matmul::gemm_problem::GemmProblem;
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;
use crate::simd;
use crate::simd::level::{CompileTarget, Level};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Literal, LiteralBuilder, Scalar, TensorType};

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

    fn roles(&self) -> [OperandDims; 2] {
        let [a, b] = self.operands();
        let (left, right) = if self.flip[0] { ([2], [1]) } else { ([1], [2]) };
        let (inner, free) = if self.flip[1] { ([2], [1]) } else { ([1], [2]) };
        [roles(&a, &[0], &left, &right), roles(&b, &[0], &free, &inner)]
    }

    /// Returns the kernel; operands are packed with the vectors of `level`.
    fn kernel(&self, level: Level, tiles: &'static simd::amx::AmxKernels) -> Option<Box<dyn Kernel>> {
        amx(&self.product(level), tiles).ok()
    }

    fn product(&self, level: Level) -> GemmProblem {
        let [left, right] = self.roles();
        let target = CompileTarget {
            level,
            tensor_float_32: true,
            winograd: false,
            excess_precision: false,
            flush: false,
        };
        GemmProblem { left, right, types: self.types, epilogue: self.epilogue, target }
    }

    fn run(&self, kernel: &dyn Kernel, threads: usize, operands: [&Literal; 3], old: &Literal) -> Vec<u8> {
        let mut c = old.bytes().to_vec();
        let inputs = operands.map(|x| x.bytes().as_ptr());
        let scratch = AlignedMemory::new(kernel.scratch()).unwrap();
        let io = Io { inputs: &inputs, outputs: &[c.as_mut_ptr()], scratch: scratch.ptr() };
        // SAFETY: all arrays have the product's sizes.
        unsafe { kernel.run(&KernelContext { team: &ThreadPool::new(threads), flush: false }, &io).unwrap() };
        c
    }

    /// Offset of element (row, column) of an operand within its batch entry.
    fn at(&self, operand: usize, row: usize, column: usize) -> usize {
        let (m, n, k) = self.size;
        let (rows, columns) = if operand == 0 { (m, k) } else { (k, n) };
        if self.flip[operand] { column * rows + row } else { row * columns + column }
    }

    /// Compares with exact sums.
    fn check(&self, level: Level, seed: u64) {
        for tiles in units() {
            if let Some(kernel) = self.kernel(level, tiles) {
                self.check_kernel(kernel.as_ref(), seed);
            }
        }
    }

    fn check_kernel(&self, kernel: &dyn Kernel, seed: u64) {
        let (m, n, k) = self.size;
        let mut s = RandomStream::new(seed, 5, 1);
        let [from, to] = self.types;
        // One f32 operand has more bits than a bf16.
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
        assert_eq!(differs, None, "{self:?}: an element differs from the exact sum");
    }
}

/// Draws random integers from −`most` to `most`, for unsigned types from 0 to 2 · `most`. With 128: all values of a
/// byte.
fn draw(ty: &TensorType, most: i64, s: &mut RandomStream) -> (Vec<i64>, Literal) {
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
/// Sizes around 16 (tiles), 32 (panels), 256 (column groups), K blocks of 256 bf16 or 512 bytes, and split-K.
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
fn units() -> impl Iterator<Item = &'static simd::amx::AmxKernels> {
    std::iter::once(&simd::amx::EMULATED).chain(simd::amx::kernels_of(Level::best()))
}

/// Levels that have different packing code.
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
        let kernel = bf16_pairs(&case.product(level), level).expect("a product of bf16");
        case.check_kernel(kernel.as_ref(), seed as u64);
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
        for (batch, size) in [(6, (20, 40, 24)), (2, (50, 70, 90)), (1, (2100, 40, 40)), (1, (40, 2100, 40))]
        {
            Case { batch, size, flip: [false, true], types, epilogue }.check(Level::best().vectors(), 3);
        }
    }
}

/// Returns random operands, and the exact sums with the sums of absolute products.
fn random(case: &Case) -> ([Literal; 2], Vec<(f64, f64)>) {
    let (m, n, k) = case.size;
    let mut s = RandomStream::new(8, 1, 1);
    let operands = case.operands().map(|t| systole_ir::op::ArgDomain::Uniform(-1.0, 1.0).draw(&t, &mut s));
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
        let run = |threads| case.run(kernel.as_ref(), threads, [&a, &b, &old], &old);
        let got = run(1);
        for threads in [2, 3, 8] {
            assert!(run(threads) == got, "{threads} threads");
        }
        let sums = got.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x)));
        let worst = sums.zip(&exact).map(|(y, (sum, size))| (y - sum).abs() / size).fold(0.0, f64::max);
        // Two bf16 lose up to 2⁻¹⁷ of each factor. With exact products, errors of f32 sums would be below 1e-7.
        assert!((1e-7..1e-5).contains(&worst), "{worst:e}");
    }
}
