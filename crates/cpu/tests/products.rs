//! Tests matrix products against exact sums: every layout, stored type and level, sizes around tile and block edges.
//!
//! Results must be bit-identical for any number of threads. Operands are small integers, so that sums in f32 are exact
//! and results must be equal, not close.

mod common;

use common::*;
use std::sync::Arc;
use systole_cpu::CpuBackend;
use systole_ir::op::DotGeneral;
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, TensorType};

/// A batch of products `[m, k] · [k, n]`, each operand transposed or not.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    flip: [bool; 2],
    from: DType,
    to: DType,
}

impl Case {
    fn types(&self) -> [TensorType; 2] {
        let of = |flip: bool, rows, columns| {
            let dims = if flip { [self.batch, columns, rows] } else { [self.batch, rows, columns] };
            TensorType::new(self.from, dims)
        };
        [of(self.flip[0], self.m, self.k), of(self.flip[1], self.k, self.n)]
    }

    fn graph(&self) -> Arc<Graph> {
        let g = GraphBuilder::new("product");
        let [a, b] = self.types().map(|t| g.parameter(t, "x"));
        let op = DotGeneral {
            lhs_batch: [0].as_slice().into(),
            rhs_batch: [0].as_slice().into(),
            lhs_contract: [if self.flip[0] { 1 } else { 2 }].as_slice().into(),
            rhs_contract: [if self.flip[1] { 2 } else { 1 }].as_slice().into(),
            element_type: self.to,
        };
        let y = g.emit(op, &[&a, &b]);
        g.finish(&y).unwrap()
    }

    /// Random integers from −`most` to `most`; non-negative for unsigned types.
    fn draw(&self, ty: &TensorType, most: i64, s: &mut RandomStream) -> (Vec<i64>, Literal) {
        let signed = !matches!(ty.dtype, DType::U8 | DType::U16 | DType::U32);
        let mut builder = LiteralBuilder::new(ty.clone());
        let mut values = Vec::new();
        for i in 0..ty.elements() {
            let v = s.below(2 * most as u64 + 1) as i64 - if signed { most } else { 0 };
            builder.set(i, if ty.dtype.is_float() { Scalar::Float(v as f64) } else { Scalar::Int(v) });
            values.push(v);
        }
        (values, builder.finish())
    }

    fn exact(&self, a: &[i64], b: &[i64]) -> Vec<i64> {
        let (m, n, k) = (self.m, self.n, self.k);
        let mut y = vec![0; self.batch * m * n];
        for batch in 0..self.batch {
            let (a, b) = (&a[batch * m * k..], &b[batch * k * n..]);
            for i in 0..m {
                let row = &mut y[(batch * m + i) * n..][..n];
                for x in 0..k {
                    let left = if self.flip[0] { a[x * m + i] } else { a[i * k + x] };
                    for (j, y) in row.iter_mut().enumerate() {
                        *y += left * if self.flip[1] { b[j * k + x] } else { b[x * n + j] };
                    }
                }
            }
        }
        y
    }

    fn check(&self, backends: &[&CpuBackend], seed: u64) {
        // 8-bit integers use their whole range, to test the sums of offsets.
        let most = if matches!(self.from, DType::I8 | DType::U8) { 127 } else { 4 };
        let mut s = RandomStream::new(seed, 5, 1);
        let [ta, tb] = self.types();
        let ((a, la), (b, lb)) = (self.draw(&ta, most, &mut s), self.draw(&tb, most, &mut s));
        let want = self.exact(&a, &b);
        let mut rounded = LiteralBuilder::new(TensorType::new(self.to, [self.batch, self.m, self.n]));
        for (i, &v) in want.iter().enumerate() {
            rounded.set(i, if self.to.is_float() { Scalar::Float(v as f64) } else { Scalar::Int(v) });
        }
        let want = rounded.finish();
        for backend in backends {
            let got = run(backend, &self.graph(), &[la.clone(), lb.clone()]).remove(0);
            assert!(got == want, "{self:?}: {}", first_difference(&got, &want));
        }
    }
}

fn first_difference(got: &Literal, want: &Literal) -> String {
    let differs = (0..want.ty().elements()).find(|&i| got.get(i) != want.get(i));
    differs.map_or(String::new(), |i| format!("element {i}: {:?}, not {:?}", got.get(i), want.get(i)))
}

const FLIPS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

/// Stored types and result types.
const TYPES: [(DType, DType); 10] = {
    use DType::*;
    [
        (F32, F32),
        (F64, F64),
        (BF16, BF16),
        (BF16, F32),
        (F16, F16),
        (F16, F32),
        (F32, BF16),
        (I8, I32),
        (U8, U32),
        (I16, I32),
    ]
};

#[test]
fn every_layout_type_and_level() {
    // Around tiles and vectors; around groups of columns; around blocks of steps; small results of long sums.
    let sizes = [
        (1, 1, 1),
        (1, 17, 3),
        (3, 33, 5),
        (13, 31, 18),
        (15, 16, 385),
        (25, 9, 40),
        (29, 64, 7),
        (43, 65, 33),
        (44, 100, 129),
        (57, 257, 70),
        (2, 520, 9),
        (130, 10, 4),
        (50, 530, 400),
        (9, 7, 1700),
    ];
    for level in levels() {
        let backend = backend(level, 2);
        for (from, to) in TYPES {
            for (i, (m, n, k)) in sizes.into_iter().enumerate() {
                for flip in FLIPS {
                    Case { batch: 1, m, n, k, flip, from, to }.check(&[&backend], i as u64);
                }
            }
        }
    }
}

#[test]
fn batches_and_long_sums() {
    let types = TYPES.into_iter().filter(|t| t.0 != DType::U8);
    for (i, (from, to)) in types.enumerate() {
        let backends: Vec<CpuBackend> = levels().map(|l| backend(l, 2)).collect();
        let all: Vec<&CpuBackend> = backends.iter().collect();
        let flip = FLIPS[i % 4];
        Case { batch: 6, m: 20, n: 40, k: 24, flip, from, to }.check(&all, 1);
        Case { batch: 2, m: 50, n: 70, k: 30, flip, from, to }.check(&all, 2);
        Case { batch: 3, m: 0, n: 4, k: 5, flip, from, to }.check(&all, 3);
        Case { batch: 5, m: 3, n: 4, k: 0, flip, from, to }.check(&all, 4);
        Case { batch: 1, m: 60, n: 70, k: 1200, flip, from, to }.check(&all, 5);
    }
}

/// Products larger than the blocks that are packed at a time.
#[test]
fn large_products() {
    let backends: Vec<CpuBackend> =
        levels().filter(|l| l.name() != "portable").map(|l| backend(l, 2)).collect();
    let all: Vec<&CpuBackend> = backends.iter().collect();
    for (from, to) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::I8, DType::I32)] {
        for (i, (m, n, k)) in [(4200, 90, 70), (70, 4500, 50), (100, 60, 9000)].into_iter().enumerate() {
            let flip = FLIPS[(i + 1) % 4];
            Case { batch: 1, m, n, k, flip, from, to }.check(&all, i as u64);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let sizes =
        [(1, 300, 200, 800), (1, 10, 10, 5000), (1, 700, 40, 90), (9, 33, 65, 50), (1, 100, 600, 800)];
    for level in levels() {
        let backends: Vec<CpuBackend> = [1, 2, 3, 4, 8].map(|t| backend(level, t)).into();
        for (from, to) in [(DType::F32, DType::F32), (DType::BF16, DType::BF16), (DType::F64, DType::F64)] {
            for (batch, m, n, k) in sizes {
                let case = Case { batch, m, n, k, flip: [false, true], from, to };
                let graph = case.graph();
                let args = arguments(&graph, -1.0, 1.0, 7);
                let first = run(&backends[0], &graph, &args);
                for other in &backends[1..] {
                    assert!(first == run(other, &graph, &args), "{level:?}, {case:?}");
                }
            }
        }
    }
}

/// A product with a quantized matrix, compared with one with its dequantized floats.
#[derive(Clone, Copy, Debug)]
struct Packed {
    rows: usize,
    inputs: usize,
    outputs: usize,
    is_halves: bool,
    by_output: bool,
    by_block: bool,
    block: usize,
    bias: bool,
}

impl Packed {
    fn how(&self) -> DequantizeWeights {
        let shape = if self.by_output { [self.outputs, self.inputs] } else { [self.inputs, self.outputs] };
        DequantizeWeights {
            is_halves: self.is_halves,
            shape: shape[..].into(),
            inputs: self.inputs,
            by_output: self.by_output,
            block: self.block,
            by_block: self.by_block,
        }
    }

    /// `x, quantized weights, scales, bias → y`, or with the floats `x, w, bias → y`.
    fn graph(&self, of_floats: bool) -> Arc<Graph> {
        let g = GraphBuilder::new("packed");
        let x = g.parameter(TensorType::new(DType::F32, [1, self.rows, self.inputs]), "x");
        let w = match of_floats {
            true => g.parameter(TensorType::new(DType::F32, &self.how().shape[..]), "w"),
            false => {
                let [numbers, scales] = self.how().types().map(|ty| g.parameter(ty, "w"));
                self.how().node(&numbers, &scales)
            }
        };
        let mut y = x.dot_general(&w, &[], &[], &[2], &[if self.by_output { 1 } else { 0 }]);
        if self.bias {
            y = y + g.parameter(TensorType::new(DType::F32, [self.outputs]), "bias");
        }
        g.finish(&[y]).unwrap()
    }

    /// x, quantized weights, scales and bias; and the floats.
    fn draw(&self, s: &mut RandomStream) -> (Vec<Literal>, Literal) {
        let mut floats = |n: usize| -> Vec<f32> { (0..n).map(|_| s.range(-1.0, 1.0)).collect() };
        let of = |shape: &[usize], v: &[f32]| Literal::from_slice(shape, v).unwrap();
        let [numbers, scales] = self.how().types();
        let x = of(&[1, self.rows, self.inputs], &floats(self.rows * self.inputs));
        let steps = floats(scales.elements());
        let bias = floats(self.outputs);
        let n = self.inputs * self.outputs;
        let most = if self.is_halves { 8 } else { 128 };
        let whole: Vec<i8> = (0..n).map(|_| (s.below(2 * most) as i64 - most as i64) as i8).collect();
        let held = match self.is_halves {
            false => Literal::from_slice(numbers.shape.dims(), &whole).unwrap(),
            true => {
                let byte = |p: &[i8]| (p[0] as u8 & 15) | (p.get(1).map_or(5, |q| *q as u8) & 15) << 4;
                let bytes: Vec<u8> = whole.chunks(2).map(byte).collect();
                Literal::from_slice([bytes.len()], &bytes).unwrap()
            }
        };
        let (outputs, blocks) = (self.outputs, self.inputs.div_ceil(self.block));
        let weight = |at: usize| {
            let (input, output) = match self.by_output {
                true => (at % self.inputs, at / self.inputs),
                false => (at / outputs, at % outputs),
            };
            let block = input / self.block;
            let at_scale = if self.by_block { block * outputs + output } else { output * blocks + block };
            f32::from(whole[at]) * steps[at_scale]
        };
        let w: Vec<f32> = (0..n).map(weight).collect();
        let mut all = vec![x, held, of(scales.shape.dims(), &steps)];
        if self.bias {
            all.push(of(&[outputs], &bias));
        }
        (all, of(&self.how().shape, &w))
    }
}

impl Packed {
    /// Sums of the products of floats, in f64.
    fn sums(&self, args: &[Literal]) -> Literal {
        let all: Vec<Vec<f32>> = args.iter().map(|a| a.to_f32s()).collect();
        let at = |row: usize, output: usize| {
            let weight = |k: usize| match self.by_output {
                true => all[1][output * self.inputs + k],
                false => all[1][k * self.outputs + output],
            };
            let sum: f64 = (0..self.inputs)
                .map(|k| f64::from(all[0][row * self.inputs + k]) * f64::from(weight(k)))
                .sum();
            (sum + all.get(2).map_or(0.0, |bias| f64::from(bias[output]))) as f32
        };
        let y: Vec<f32> = (0..self.rows)
            .flat_map(|r| (0..self.outputs).map(move |o| (r, o)))
            .map(|(r, o)| at(r, o))
            .collect();
        Literal::from_slice([1, self.rows, self.outputs], &y).unwrap()
    }
}

/// Bit-identical if the floats would be multiplied by the kernel for few rows; else within the error of sums.
#[test]
fn whole_numbers_are_multiplied_as_their_floats() {
    let case = |rows, [inputs, outputs]: [usize; 2], block| Packed {
        rows,
        inputs,
        outputs,
        is_halves: false,
        by_output: false,
        by_block: false,
        block,
        bias: rows % 2 == 1,
    };
    let sizes = [
        case(1, [768, 96], 768),
        case(1, [300, 130], 128),
        case(3, [131, 64], 128),
        case(8, [257, 100], 128),
        case(1, [130, 4100], 128),
        case(2, [66, 77], 66),
        case(1, [70, 64], 24),
        // Small ones, and more rows than are read in place.
        case(1, [5, 6], 2),
        case(4, [64, 33], 64),
        case(9, [70, 66], 70),
        case(40, [129, 65], 128),
    ];
    let mut s = RandomStream::new(9, 1, 0);
    for size in sizes {
        for (is_halves, by_output, by_block) in (0..8).map(|i| (i & 1 == 1, i & 2 == 2, i & 4 == 4)) {
            let case = Packed { is_halves, by_output, by_block, ..size };
            let (args, floats) = case.draw(&mut s);
            let (packed, plain) = (case.graph(false), case.graph(true));
            let of_floats: Vec<Literal> =
                [&args[0], &floats].into_iter().chain(args.get(3)).cloned().collect();
            let want = case.sums(&of_floats);
            if case.inputs < 66 {
                assert!(oracle(&packed, &args) == oracle(&plain, &of_floats), "{case:?}");
            }
            for level in levels() {
                let threads = 1 + case.inputs % 2;
                let made = run(&backend(level, threads), &packed, &args);
                // Sums of terms as large as the result.
                let (ulps, at) = distance(&made[0], &want, true);
                let most = 8.0 + case.inputs as f64 / 8.0;
                assert!(ulps <= most, "{case:?} on {level:?}: {ulps} ulps at {at}");
                let lies_in_rows = (!is_halves
                    || (if by_output { case.inputs } else { case.outputs }) % 2 == 0)
                    && (case.block >= case.inputs || case.block.is_multiple_of(32));
                if case.rows > 8 || case.inputs > 64 && case.outputs >= 64 && lies_in_rows {
                    let same = run(&backend(level, threads), &plain, &of_floats);
                    assert!(made == same, "{case:?} on {level:?}: other bits than with floats");
                }
            }
        }
    }
}
