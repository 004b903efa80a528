//! Tests that JIT-compiled machine code is bit-identical to the tile interpreter, for every op and random programs.

use crate::kernel::elementwise::MapKernel;
use crate::kernel::{Io, Kernel, KernelContext};
use crate::kernels::reduce::fold::ReduceKernel;
use crate::machine::thread_pool::{ThreadPool, flush_denormals, restore_denormals};
use crate::simd::jit::{JitLoop, LoadAccess, ResultSink};
use crate::simd::level::Level;
use smallvec::SmallVec;
use systole_compile::{Contraction, Map, MapInstr, MapLoad};
use systole_ir::op::{Binary, Clamp, Compare, CompareType, Convert, Direction, Monoid, Select, Unary};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Op, Scalar, Shape};

const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
const UNARIES: [Unary; 15] = [
    Unary::Abs,
    Unary::Ceil,
    Unary::Erf,
    Unary::Exponential,
    Unary::Floor,
    Unary::IsFinite,
    Unary::Log,
    Unary::Logistic,
    Unary::Negate,
    Unary::RoundNearestAfz,
    Unary::RoundNearestEven,
    Unary::Rsqrt,
    Unary::Sign,
    Unary::Sqrt,
    Unary::Tanh,
];
const FLOAT_BINARIES: [Binary; 6] =
    [Binary::Add, Binary::Subtract, Binary::Multiply, Binary::Divide, Binary::Maximum, Binary::Minimum];
const INT_BINARIES: [Binary; 10] = [
    Binary::Add,
    Binary::Subtract,
    Binary::Multiply,
    Binary::And,
    Binary::Or,
    Binary::Xor,
    Binary::ShiftLeft,
    Binary::ShiftRightLogical,
    Binary::Maximum,
    Binary::Minimum,
];

/// The levels that the code generator supports and this machine has.
fn levels() -> Vec<Level> {
    let all = [Level::Avx2, Level::Avx512, Level::Avx512Bf16].into_iter();
    all.filter(|l| l.is_available() && cfg!(target_os = "linux")).collect()
}

/// Whether a level's code requires that the thread flushes denormals to zero.
fn flushes(level: Level) -> bool {
    level == Level::Avx512Bf16
}

/// Bits of a random f32: often NaN, infinite, denormal, or at the edge of a conversion's range.
fn special(s: &mut RandomStream) -> u32 {
    const LIST: [f32; 22] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        0.625,
        88.7,
        -87.4,
        -103.9,
        1e-40,
        -1e-40,
        1e-45,
        3.4e38,
        -3.4e38,
        65519.0,
        65520.0,
        2147483648.0,
        4294967296.0,
        -2147483904.0,
    ];
    match s.below(10) {
        0 => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][s.below(3) as usize].to_bits(),
        1 => LIST[s.below(LIST.len() as u64) as usize].to_bits(),
        2 => s.next_u32(),
        3 => s.next_u32() & 0x807f_ffff,
        _ => s.range(-8.0, 8.0).to_bits(),
    }
}

/// Array whose first element is not aligned to a vector, followed by bytes that must not be written.
struct Array {
    bytes: Vec<u8>,
    dtype: DType,
}

impl Array {
    /// Unused elements before the first, for misalignment.
    const BEFORE: usize = 3;

    fn zeros(dtype: DType, n: usize) -> Array {
        // Comparisons include the 70 elements after the last one, so that writes there are found.
        Array { bytes: vec![0xa5; (Array::BEFORE + n + 70) * dtype.size()], dtype }
    }

    fn drawn(dtype: DType, n: usize, s: &mut RandomStream) -> Array {
        let mut a = Array::zeros(dtype, n);
        let size = dtype.size();
        for chunk in a.bytes.chunks_mut(size) {
            let raw = match dtype {
                DType::F32 => special(s),
                DType::BF16 => special(s) >> 16,
                DType::F16 => systole_ir::f16::from_f32(f32::from_bits(special(s))).to_bits() as u32,
                DType::Bool => s.below(2) as u32,
                // Small values, as shift counts below and above the type's width.
                _ if s.below(2) == 0 => s.below(40) as u32,
                _ => s.next_u32(),
            };
            chunk.copy_from_slice(&raw.to_le_bytes()[..size]);
        }
        a
    }

    fn ptr(&mut self) -> *mut u8 {
        self.bytes[Array::BEFORE * self.dtype.size()..].as_mut_ptr()
    }

    /// Like [`Array::equals`]; at a level whose code flushes denormals, all denormals of one sign are equal to zero.
    fn equals_at(&self, other: &Array, level: Level) -> bool {
        let (mut a, mut b) = (self.bytes.clone(), other.bytes.clone());
        if level == Level::Avx512Bf16 && matches!(self.dtype, DType::F32 | DType::BF16) {
            for bytes in [&mut a, &mut b] {
                for x in bytes.chunks_mut(self.dtype.size()) {
                    let upper = u16::from_le_bytes([x[x.len() - 2], x[x.len() - 1]]);
                    if upper & 0x7f80 == 0 {
                        x.fill(0);
                        x[self.dtype.size() - 1] = (upper >> 8 & 0x80) as u8;
                    }
                }
            }
        }
        Array { bytes: a, dtype: self.dtype }.equals(&Array { bytes: b, dtype: self.dtype })
    }

    /// Whether each pair of elements has the same bits or is NaN in both.
    fn equals(&self, other: &Array) -> bool {
        let size = self.dtype.size();
        let float = |raw: &[u8]| match self.dtype {
            DType::F32 => f32::from_le_bytes(raw.try_into().unwrap()),
            DType::BF16 => systole_ir::bf16::from_le_bytes(raw.try_into().unwrap()).to_f32(),
            DType::F16 => systole_ir::f16::from_le_bytes(raw.try_into().unwrap()).to_f32(),
            _ => 0.0,
        };
        let same = |(a, b): (&[u8], &[u8])| a == b || float(a).is_nan() && float(b).is_nan();
        self.bytes.chunks(size).zip(other.bytes.chunks(size)).all(same)
    }
}

/// Program under construction, and the type and number of elements of each input.
struct Draft {
    map: Map,
    inputs: Vec<(DType, usize)>,
}

impl Draft {
    fn new(dims: &[usize]) -> Draft {
        let map = Map { shape: Shape::from(dims.to_vec()), loads: vec![], instrs: vec![], stores: vec![] };
        Draft { map, inputs: Vec::new() }
    }

    fn array(&mut self, dtype: DType, strides: &[usize]) -> usize {
        let reach: usize = self.map.shape.iter().zip(strides).map(|(&d, s)| (d - 1) * s).sum();
        self.inputs.push((dtype, reach + 1));
        let strides: SmallVec<[usize; 4]> = strides.iter().copied().collect();
        self.map.loads.push(MapLoad::Array { input: self.inputs.len() - 1, dtype, strides, offset: 0 });
        self.map.loads.len() - 1
    }

    fn linear(&mut self, dtype: DType) -> usize {
        let strides = self.map.shape.strides();
        self.array(dtype, &strides)
    }

    fn push(&mut self, op: Op, args: &[usize], from: DType, to: DType) -> usize {
        let args = args.iter().copied().collect();
        self.map.instrs.push(MapInstr { op, args, from, to, contraction: None });
        self.map.loads.len() + self.map.instrs.len() - 1
    }

    /// Appends a contracted sum of three registers.
    fn contracted(&mut self, op: Binary, args: &[usize; 3], dtype: DType, place: Contraction) -> usize {
        let e = self.push(Op::Binary(op), args, dtype, dtype);
        self.map.instrs[e - self.map.loads.len()].contraction = Some(place);
        e
    }

    /// Returns a random register of this type; `None` if there is none.
    fn any(&self, dtype: DType, s: &mut RandomStream) -> Option<usize> {
        let all = 0..self.map.loads.len() + self.map.instrs.len();
        let fit: Vec<usize> = all.filter(|&e| self.map.dtype(e) == dtype).collect();
        // Prefer the last ones, which gives long chains.
        let near = fit.len().min(3) as u64;
        match fit.len() as u64 {
            0 => None,
            n if s.below(2) == 0 => Some(fit[(n - 1 - s.below(near)) as usize]),
            n => Some(fit[s.below(n) as usize]),
        }
    }

    /// Appends a random instruction if there are registers of its operand types.
    fn grow(&mut self, s: &mut RandomStream) -> Option<()> {
        use DType::*;
        let float = FLOATS[s.below(3) as usize];
        let int = [I32, U32][s.below(2) as usize];
        match s.below(10) {
            9 => {
                let args = [self.any(F32, s)?, self.any(F32, s)?, self.any(F32, s)?];
                let op = [Binary::Add, Binary::Subtract][s.below(2) as usize];
                self.contracted(op, &args, F32, [Contraction::Left, Contraction::Right][s.below(2) as usize]);
            }
            0 | 1 => {
                let op = UNARIES[s.below(15) as usize];
                let to = if op == Unary::IsFinite { Bool } else { float };
                let a = self.any(float, s)?;
                self.push(Op::Unary(op), &[a], float, to);
            }
            2 | 3 => {
                let args = [self.any(float, s)?, self.any(float, s)?];
                self.push(Op::Binary(FLOAT_BINARIES[s.below(6) as usize]), &args, float, float);
            }
            4 => {
                let args = [self.any(int, s)?, self.any(int, s)?];
                self.push(Op::Binary(INT_BINARIES[s.below(10) as usize]), &args, int, int);
            }
            5 => {
                let of = [float, int][s.below(2) as usize];
                let args = [self.any(of, s)?, self.any(of, s)?];
                let direction = Direction::ALL[s.below(6) as usize].0;
                let op = Op::Compare(Compare { direction, compare_type: CompareType::of(of) });
                self.push(op, &args, of, Bool);
            }
            6 => {
                let of = [float, int, Bool][s.below(3) as usize];
                let args = [self.any(Bool, s)?, self.any(of, s)?, self.any(of, s)?];
                self.push(Op::Select(Select), &args, of, of);
            }
            7 => {
                let args = [self.any(float, s)?, self.any(float, s)?, self.any(float, s)?];
                self.push(Op::Clamp(Clamp), &args, float, float);
            }
            _ => {
                let from = [float, int, Bool, U8][s.below(4) as usize];
                let to = match from {
                    Bool | U8 => [F32, I32, U32, F16][s.below(4) as usize],
                    I32 | U32 => [F32, I32, U32][s.below(3) as usize],
                    _ => [F32, BF16, F16, I32, U32, Bool][s.below(6) as usize],
                };
                let a = self.any(from, s)?;
                self.push(Op::Convert(Convert { to }), &[a], from, to);
            }
        }
        Some(())
    }
}

/// Generates a random program with all kinds of loads.
fn drawn(s: &mut RandomStream) -> Draft {
    use DType::*;
    let dims = match s.below(6) {
        0 => vec![s.below(70) as usize + 1],
        1 => vec![s.below(3000) as usize + 1],
        2 => vec![s.below(20) as usize + 1, s.below(40) as usize + 1],
        3 => vec![s.below(5) as usize + 1, s.below(900) as usize + 100],
        4 => vec![s.below(3) as usize + 1, s.below(4) as usize + 1, s.below(200) as usize + 1],
        _ => vec![s.below(3) as usize + 2, 512 + s.below(1000) as usize],
    };
    let mut d = Draft::new(&dims);
    for _ in 0..2 + s.below(5) {
        let dtype = [F32, F32, F32, BF16, F16, I32, U32, Bool, U8][s.below(9) as usize];
        let rank = dims.len();
        let own = d.map.shape.strides();
        match s.below(8) {
            0 => {
                d.array(dtype, &vec![0; rank]);
            }
            // Broadcasts: a vector along the last dimension, then one value per row.
            1 => {
                let strides: Vec<usize> = (0..rank).map(|k| usize::from(k + 1 == rank)).collect();
                d.array(dtype, &strides);
            }
            2 => {
                let strides: Vec<usize> = (0..rank).map(|k| usize::from(k == 0 && rank > 1)).collect();
                d.array(dtype, &strides);
            }
            // Stride 2, which the program must copy to a register.
            3 => {
                let strides: Vec<usize> = own.iter().map(|&x| 2 * x).collect();
                d.array(dtype, &strides);
            }
            4 if matches!(dtype, F32 | I32 | U32) => {
                let k = s.below(rank as u64) as usize;
                let mut index = (own[k], dims[k]);
                // A dimension that the fuser merged with others.
                if s.below(4) == 0 && dims[k].is_multiple_of(2) {
                    index = [(own[k], dims[k] / 2), (2 * own[k], dims[k] / 2)][s.below(2) as usize];
                }
                d.map.loads.push(MapLoad::Iota { inner: index.0, size: index.1, dtype });
            }
            5 if dtype.is_float() => {
                let value = Scalar::Float(f32::from_bits(special(s)) as f64).round_to(dtype);
                d.map.loads.push(MapLoad::Splat { value, dtype });
            }
            _ => {
                d.linear(dtype);
            }
        }
    }
    for _ in 0..s.below(14) {
        d.grow(s);
    }
    let count = d.map.loads.len() + d.map.instrs.len();
    for _ in 0..1 + s.below(3) {
        let e = count - 1 - s.below(count.min(4) as u64) as usize;
        if !d.map.stores.contains(&e) {
            d.map.stores.push(e);
        }
    }
    d
}

/// Asserts that machine code and interpreter give the same bits, for several ranges, with and without flushing of
/// denormals. Returns whether there was machine code.
fn check_map(d: &Draft, name: &str, level: Level, s: &mut RandomStream) -> bool {
    let n = d.map.shape.elements();
    let kernels = [false, true].map(|fuse| MapKernel::with(&d.map, level, fuse));
    let mut inputs: Vec<Array> = d.inputs.iter().map(|&(t, n)| Array::drawn(t, n, s)).collect();
    let from = s.below(n as u64 / 2 + 1) as usize;
    for (flush, range) in [(false, 0..n), (true, from..n), (false, from..n - n / 3)] {
        let flush = flush || flushes(level);
        let results = kernels.each_ref().map(|kernel| {
            let of = |&e: &usize| Array::zeros(d.map.dtype(e), n);
            let mut outputs: Vec<Array> = d.map.stores.iter().map(of).collect();
            let to: Vec<*mut u8> = outputs.iter_mut().map(Array::ptr).collect();
            let from: Vec<*const u8> = inputs.iter_mut().map(|a| a.ptr().cast_const()).collect();
            let before = flush_denormals(flush);
            // SAFETY: arrays have the elements that the program reads and writes; the level is available.
            unsafe { kernel.range(&from, &to, range.clone()) };
            restore_denormals(before);
            outputs
        });
        for (k, (a, b)) in results[0].iter().zip(&results[1]).enumerate() {
            assert!(
                a.equals_at(b, level),
                "{name} with {}: result {k} of {:?}, flush {flush}, {range:?}",
                level.name(),
                d.map
            );
        }
    }
    kernels[1].is_fused()
}

#[test]
fn random_programs_give_the_interpreters_bits() {
    for level in levels() {
        let mut fused = 0;
        for k in 0..600 {
            let s = &mut RandomStream::new(11, 0, k);
            fused += usize::from(check_map(&drawn(s), &format!("program {k}"), level, s));
        }
        // The others load constants of unsupported types or need more registers than there are.
        assert!(fused > 400, "{fused} of 600 became code of {}", level.name());
    }
}

/// Programs with ops that the JIT does not know: the others are compiled in groups.
#[test]
fn groups_give_the_interpreters_bits() {
    const UNKNOWN: [Unary; 4] = [Unary::Sine, Unary::LogPlusOne, Unary::Cbrt, Unary::ErfInv];
    for level in levels() {
        let mut grouped = 0;
        for k in 0..400 {
            let s = &mut RandomStream::new(16, 0, k);
            let mut d = drawn(s);
            for _ in 0..1 + s.below(3) {
                let float = FLOATS[s.below(3) as usize];
                if let Some(a) = d.any(float, s) {
                    d.push(Op::Unary(UNKNOWN[s.below(4) as usize]), &[a], float, float);
                }
                for _ in 0..s.below(8) {
                    d.grow(s);
                }
            }
            let last = d.map.loads.len() + d.map.instrs.len() - 1;
            if !d.map.stores.contains(&last) {
                d.map.stores.push(last);
            }
            check_map(&d, &format!("program {k}"), level, s);
            grouped += usize::from(MapKernel::with(&d.map, level, true).has_groups());
        }
        assert!(grouped > 200, "{grouped} of 400 have groups for {}", level.name());
    }
}

/// Groups round subnormal numbers to bf16 like the interpreter, also where the level's instruction flushes them.
#[test]
fn groups_keep_subnormal_numbers() {
    let mut d = Draft::new(&[100]);
    let x = d.linear(DType::F32);
    let narrow = d.push(Op::Convert(Convert { to: DType::BF16 }), &[x], DType::F32, DType::BF16);
    let size = d.push(Op::Unary(Unary::Abs), &[narrow], DType::BF16, DType::BF16);
    let sine = d.push(Op::Unary(Unary::Sine), &[x], DType::F32, DType::F32);
    d.map.stores.extend([size, sine]);
    let numbers: Vec<f32> = (0..100).map(|k| f32::from_bits(k * 65_000)).collect();
    for level in levels() {
        let kernel = MapKernel::with(&d.map, level, true);
        assert!(kernel.has_groups());
        let (mut rounded, mut sines) = ([0u16; 100], [0f32; 100]);
        let to = [rounded.as_mut_ptr().cast(), sines.as_mut_ptr().cast()];
        // SAFETY: the arrays have 100 elements; the level is available.
        unsafe { kernel.range(&[numbers.as_ptr().cast()], &to, 0..100) };
        let wanted = numbers.iter().map(|&x| systole_ir::bf16::from_f32(x).to_bits());
        assert!(wanted.eq(rounded), "{}", level.name());
    }
}

/// A program with more values than there are registers is divided into groups.
#[test]
fn too_many_values_are_divided_into_groups() {
    let s = &mut RandomStream::new(17, 0, 0);
    let mut d = Draft::new(&[700]);
    let loads: Vec<usize> = (0..40).map(|_| d.linear(DType::F32)).collect();
    let sqrt = |d: &mut Draft, e| d.push(Op::Unary(Unary::Sqrt), &[e], DType::F32, DType::F32);
    let up: Vec<usize> = loads.iter().map(|&e| sqrt(&mut d, e)).collect();
    let add = |a, b| d.push(Op::Binary(Binary::Add), &[a, b], DType::F32, DType::F32);
    let sum = up.into_iter().rev().reduce(add).unwrap();
    d.map.stores.push(sum);
    for level in levels() {
        assert!(!check_map(&d, "forty roots", level, s));
        assert!(MapKernel::with(&d.map, level, true).has_groups());
    }
}

#[test]
fn every_op_gives_the_interpreters_bits() {
    levels().into_iter().for_each(every_op_gives_the_interpreters_bits_on);
}

fn every_op_gives_the_interpreters_bits_on(level: Level) {
    let s = &mut RandomStream::new(12, 0, 0);
    let mut check = |from: DType, to: DType, op: Op, arity: usize| {
        let mut d = Draft::new(&[5003]);
        let types = if matches!(op, Op::Select(_)) { [DType::Bool, from, from] } else { [from; 3] };
        let args: Vec<usize> = types[..arity].iter().map(|&t| d.linear(t)).collect();
        let e = d.push(op.clone(), &args, from, to);
        d.map.stores.push(e);
        assert!(check_map(&d, op.name(), level, s), "{} of {from:?} is interpreted", op.name());
    };
    for float in FLOATS {
        for op in UNARIES {
            check(float, if op == Unary::IsFinite { DType::Bool } else { float }, Op::Unary(op), 1);
        }
        FLOAT_BINARIES.iter().for_each(|&op| check(float, float, Op::Binary(op), 2));
        check(float, float, Op::Clamp(Clamp), 3);
    }
    for int in [DType::I32, DType::U32] {
        INT_BINARIES.iter().for_each(|&op| check(int, int, Op::Binary(op), 2));
        [Unary::Negate, Unary::Not].iter().for_each(|&op| check(int, int, Op::Unary(op), 1));
    }
    for of in [DType::F32, DType::BF16, DType::F16, DType::I32, DType::U32, DType::U8, DType::I16] {
        for (direction, _) in Direction::ALL {
            let op = Op::Compare(Compare { direction, compare_type: CompareType::of(of) });
            check(of, DType::Bool, op, 2);
        }
        check(of, of, Op::Select(Select), 3);
    }
    use DType::*;
    for (from, to) in
        [(F32, I32), (F32, U32), (BF16, I32), (F32, Bool), (Bool, F32), (Bool, BF16), (Bool, U32)]
    {
        check(from, to, Op::Convert(Convert { to }), 1);
    }
    for (from, to) in [(U8, F32), (U8, BF16), (I8, F32), (U16, I32), (I32, F32), (U32, F32), (F32, F16)] {
        check(from, to, Op::Convert(Convert { to }), 1);
    }
    [Binary::And, Binary::Or, Binary::Xor].iter().for_each(|&op| check(Bool, Bool, Op::Binary(op), 2));
    check(Bool, Bool, Op::Unary(Unary::Not), 1);
}

/// Constant operands are encoded differently from arrays.
#[test]
fn constant_operands_give_the_interpreters_bits() {
    let s = &mut RandomStream::new(13, 0, 0);
    let values = [0.0, -0.0, 1.0, -2.5, 1e-40, f64::INFINITY, f64::NAN];
    for (value, op, first) in values
        .iter()
        .flat_map(|&v| FLOAT_BINARIES.map(move |op| (v, op)))
        .flat_map(|(v, op)| [true, false].map(|first| (v, op, first)))
    {
        let mut d = Draft::new(&[1000]);
        let x = d.linear(DType::F32);
        d.map
            .loads
            .push(MapLoad::Splat { value: Scalar::Float(value).round_to(DType::F32), dtype: DType::F32 });
        let args = if first { [1, x] } else { [x, 1] };
        let e = d.push(Op::Binary(op), &args, DType::F32, DType::F32);
        let mask = d.push(
            Op::Compare(Compare { direction: Direction::Lt, compare_type: CompareType::Float }),
            &[e, 1],
            DType::F32,
            DType::Bool,
        );
        let chosen = d.push(Op::Select(Select), &[mask, args[0], args[1]], DType::F32, DType::F32);
        d.map.stores.extend([e, chosen]);
        for level in levels() {
            assert!(check_map(&d, &format!("{op:?} with {value}"), level, s));
        }
    }
}

/// Contracted sums round once with FMA, and their signs are those of the op.
#[test]
fn contracted_sums_are_fused_multiply_adds() {
    let s = &mut RandomStream::new(18, 0, 0);
    let cases = [
        (Binary::Add, Contraction::Left, [1.0, 1.0]),
        (Binary::Add, Contraction::Right, [1.0, 1.0]),
        (Binary::Subtract, Contraction::Left, [1.0, -1.0]),
        (Binary::Subtract, Contraction::Right, [-1.0, 1.0]),
    ];
    for (level, (op, place, signs)) in levels().into_iter().flat_map(|l| cases.map(|case| (l, case))) {
        let mut d = Draft::new(&[1003]);
        let args = [0; 3].map(|_| d.linear(DType::F32));
        let e = d.contracted(op, &args, DType::F32, place);
        // Once more with operands that are read again, so that no operand's register may be overwritten.
        let again = d.push(Op::Binary(Binary::Multiply), &[e, args[0]], DType::F32, DType::F32);
        let again = d.contracted(op, &[args[1], again, args[2]], DType::F32, place);
        d.map.stores.extend([e, again]);
        assert!(check_map(&d, &format!("{op:?} {place:?}"), level, s));
        for dtype in [DType::F32, DType::F64] {
            let mut d = Draft::new(&[1003]);
            let args = [0; 3].map(|_| d.linear(dtype));
            let e = d.contracted(op, &args, dtype, place);
            d.map.stores.push(e);
            let values: Vec<[f64; 3]> =
                (0..1003).map(|_| [0; 3].map(|_| s.below(1 << 20) as f64 / 3e5 - 1.7)).collect();
            let wanted = |[a, b, c]: [f64; 3]| match dtype {
                DType::F32 => ((signs[0] * a) as f32).mul_add(b as f32, (signs[1] * c) as f32) as f64,
                _ => (signs[0] * a).mul_add(b, signs[1] * c),
            };
            let bytes = |k: usize| -> Vec<u8> {
                match dtype {
                    DType::F32 => values.iter().flat_map(|v| (v[k] as f32).to_le_bytes()).collect(),
                    _ => values.iter().flat_map(|v| v[k].to_le_bytes()).collect(),
                }
            };
            let inputs = [0, 1, 2].map(bytes);
            let mut out = vec![0u64; 1003];
            // SAFETY: the arrays have 1003 elements; the level is available.
            unsafe {
                let kernel = MapKernel::with(&d.map, level, true);
                kernel.range(&inputs.each_ref().map(|i| i.as_ptr()), &[out.as_mut_ptr().cast()], 0..1003);
            }
            for (i, v) in values.iter().enumerate() {
                let got = match dtype {
                    // SAFETY: the output has 1003 elements of f32.
                    DType::F32 => unsafe { *out.as_ptr().cast::<f32>().add(i) as f64 },
                    _ => f64::from_bits(out[i]),
                };
                assert_eq!(got, wanted(*v), "{op:?} {place:?} of {dtype:?} with {}: {v:?}", level.name());
            }
        }
    }
}

/// All unary ops over a sample of all f32 bit patterns.
#[test]
fn functions_give_the_interpreters_bits_over_all_floats() {
    let bits: Vec<f32> = (0..=u32::MAX).step_by(4099).map(f32::from_bits).collect();
    for (level, op) in levels().into_iter().flat_map(|level| UNARIES.map(|op| (level, op))) {
        for flush in [flushes(level), true] {
            let mut d = Draft::new(&[bits.len()]);
            let x = d.linear(DType::F32);
            let to = if op == Unary::IsFinite { DType::Bool } else { DType::F32 };
            let e = d.push(Op::Unary(op), &[x], DType::F32, to);
            d.map.stores.push(e);
            let results = [false, true].map(|fuse| {
                let kernel = MapKernel::with(&d.map, level, fuse);
                let mut out = Array::zeros(to, bits.len());
                let before = flush_denormals(flush);
                // SAFETY: both arrays have as many elements as the program; the level is available.
                unsafe { kernel.range(&[bits.as_ptr().cast()], &[out.ptr()], 0..bits.len()) };
                restore_denormals(before);
                out
            });
            assert!(results[0].equals_at(&results[1], level), "{op:?} with {}, flush {flush}", level.name());
        }
    }
}

/// In-place: results may alias operands that are read at the same index.
#[test]
fn results_may_lie_where_operands_do() {
    let mut d = Draft::new(&[1001]);
    let (a, b) = (d.linear(DType::F32), d.linear(DType::F32));
    let sum = d.push(Op::Binary(Binary::Add), &[a, b], DType::F32, DType::F32);
    let late = d.push(Op::Binary(Binary::Multiply), &[sum, b], DType::F32, DType::F32);
    let last = d.push(Op::Binary(Binary::Subtract), &[late, a], DType::F32, DType::F32);
    d.map.stores.extend([sum, last]);
    let run = |level: Level, fuse: bool| {
        let s = &mut RandomStream::new(14, 0, 0);
        let mut arrays = [Array::drawn(DType::F32, 1001, s), Array::drawn(DType::F32, 1001, s)];
        let at = arrays.each_mut().map(Array::ptr);
        // SAFETY: the arrays have 1001 elements; the results alias the operands, which is allowed at equal indices.
        unsafe { MapKernel::with(&d.map, level, fuse).range(&at.map(|p| p.cast_const()), &at, 0..1001) };
        arrays
    };
    for level in levels() {
        let (a, b) = (run(level, false), run(level, true));
        assert!(a[0].equals(&b[0]) && a[1].equals(&b[1]), "{}", level.name());
    }
}

#[test]
fn folds_give_the_interpreters_bits() {
    let team = ThreadPool::new(1);
    let monoids = [Monoid::Add, Monoid::Multiply, Monoid::Minimum, Monoid::Maximum];
    for (level, k) in levels().into_iter().flat_map(|level| (0..400).map(move |k| (level, k))) {
        let s = &mut RandomStream::new(15, 0, k);
        let mut d = drawn(s);
        let folded: Vec<bool> = d.map.shape.iter().map(|_| s.below(2) == 0).collect();
        let dtype = d.map.dtype(*d.map.stores.last().unwrap());
        let register = d.map.stores.pop().unwrap();
        d.map.stores = vec![register];
        let monoid = monoids[s.below(4) as usize];
        let kept: usize = d.map.shape.iter().zip(&folded).filter(|(_, f)| !**f).map(|(d, _)| *d).product();
        let mut inputs: Vec<Array> = d.inputs.iter().map(|&(t, n)| Array::drawn(t, n, s)).collect();
        inputs.push(Array::drawn(dtype, 1, s));
        let results = [false, true].map(|fuse| {
            let kernel = ReduceKernel::with(&d.map, &folded, monoid, dtype, level, fuse);
            let mut out = Array::zeros(dtype, kept);
            let mut scratch = vec![0u64; kernel.scratch() / 8 + 1];
            let from: Vec<*const u8> = inputs.iter_mut().map(|a| a.ptr().cast_const()).collect();
            let io = Io { inputs: &from, outputs: &[out.ptr()], scratch: scratch.as_mut_ptr().cast() };
            let before = flush_denormals(flushes(level));
            // SAFETY: arrays have the elements that the program reads and writes; the level is available.
            unsafe { kernel.run(&KernelContext { team: &team, flush: flushes(level) }, &io).unwrap() };
            restore_denormals(before);
            out
        });
        assert!(
            results[0].equals_at(&results[1], level),
            "fold {k} with {}: {monoid:?} of {:?} over {folded:?}",
            level.name(),
            d.map
        );
    }
}

#[test]
fn what_it_does_not_know_is_left_to_the_interpreter() {
    let loop_of = |op: Unary, dtype: DType, level: Level| {
        let mut d = Draft::new(&[100]);
        let x = d.linear(dtype);
        let e = d.push(Op::Unary(op), &[x], dtype, dtype);
        d.map.stores.push(e);
        JitLoop::new(&d.map, &[LoadAccess::Stream], ResultSink::Arrays, level).is_some()
    };
    assert!(!loop_of(Unary::Sine, DType::F32, Level::Avx512));
    assert!(!loop_of(Unary::Abs, DType::F64, Level::Avx512));
    assert!(!loop_of(Unary::Abs, DType::F32, Level::Portable));
    // Code for AVX-512 can be generated on any x86-64 Linux machine, code for AVX2 only with F16C.
    let here = cfg!(all(target_arch = "x86_64", target_os = "linux"));
    assert_eq!(loop_of(Unary::Abs, DType::F32, Level::Avx512), here);
    assert!(!Level::Avx2.is_available() || loop_of(Unary::Abs, DType::F32, Level::Avx2) == here);
    // More live values than registers.
    let mut d = Draft::new(&[100]);
    let loads: Vec<usize> = (0..40).map(|_| d.linear(DType::F32)).collect();
    let up: Vec<usize> =
        loads.iter().map(|&e| d.push(Op::Unary(Unary::Sqrt), &[e], DType::F32, DType::F32)).collect();
    let sum = up
        .iter()
        .rev()
        .copied()
        .reduce(|a, b| d.push(Op::Binary(Binary::Add), &[a, b], DType::F32, DType::F32));
    d.map.stores.push(sum.unwrap());
    assert!(JitLoop::new(&d.map, &[LoadAccess::Stream; 40], ResultSink::Arrays, Level::Avx512).is_none());
}
