//! Matrix products against exact sums: every layout, stored type and instruction-set level, sizes around the edges of
//! tiles, panels, groups and blocks; and the same bits for any number of threads.
//!
//! Operands are small whole numbers, so that sums in f32 are exact and results must be equal, not close.

mod common;

use common::*;
use std::sync::Arc;
use systole_cpu::CpuBackend;
use systole_ir::op::DotGeneral;
use systole_ir::rng::Stream;
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

    /// Whole numbers from −`most` to `most`, those of unsigned types without sign.
    fn draw(&self, ty: &TensorType, most: i64, s: &mut Stream) -> (Vec<i64>, Literal) {
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
        // Bytes use their whole range: the sums of offsets must come out too.
        let most = if matches!(self.from, DType::I8 | DType::U8) { 127 } else { 4 };
        let mut s = Stream::new(seed, 5, 1);
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

/// Stored types and types of results.
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

/// Products larger than the parts that are packed at a time.
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
