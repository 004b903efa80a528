//! Graphs with routines, each beside the ops that define it.

use std::f64::consts::PI;
use std::sync::Arc;
use systole_ir::op::Routine;
use systole_ir::{DType, Graph, GraphBuilder, Literal, Tensor, TensorType};

fn finish(g: &GraphBuilder, results: &[Tensor]) -> Arc<Graph> {
    g.finish(results).unwrap_or_else(|e| panic!("{e}"))
}

fn square(k: usize, n: usize, dtype: DType) -> TensorType {
    TensorType::new(dtype, [k, n, n])
}

/// `x: T[K, N, N]` with N added on the diagonal.
fn heavy(x: &Tensor) -> Tensor {
    let (k, n) = (x.shape()[0], x.shape()[1]);
    let place = |dim| x.builder().iota(TensorType::new(DType::I32, [k, n, n]), dim);
    place(1).equal(&place(2)).select(&(x + n as f64), x)
}

/// `T[K, M, N]`: rows, columns
fn block(x: &Tensor, rows: [usize; 2], columns: [usize; 2]) -> Tensor {
    x.slice_dim(1, rows[0], rows[1]).slice_dim(2, columns[0], columns[1])
}

fn product(a: &Tensor, b: &Tensor) -> Tensor {
    a.dot_general(b, &[0], &[0], &[2], &[1])
}

/// `x: T[K, N, N]`: the decomposition of x · xᵀ + N.
pub fn cholesky(k: usize, n: usize, dtype: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("cholesky");
    let x = g.parameter(square(k, n, dtype), "x");
    let a = heavy(&x.dot_general(&x, &[0], &[0], &[2], &[2]));
    let l = Routine::Cholesky.of(&[&a], |p| {
        let mut l: Option<Tensor> = None;
        for j in 0..n {
            let own = block(&p[0], [j, n], [j, j + 1]);
            let left = match &l {
                None => own,
                Some(l) => {
                    let row = block(l, [j, j + 1], [0, j]).transpose(&[0, 2, 1]);
                    own - product(&block(l, [j, n], [0, j]), &row)
                }
            };
            let root = block(&left, [0, 1], [0, 1]).sqrt();
            let column = left.clone() / root.broadcast_to(left.shape());
            let column = column.pad(&column.scalar_like(0.0), &[0, j as i64, 0], &[0; 3], &[0; 3]);
            l = Some(match l {
                None => column,
                Some(l) => Tensor::concatenate(&[&l, &column], 2),
            });
        }
        vec![l.unwrap()]
    });
    finish(&g, &l)
}

/// `x: T[K, N, N], b: T[K, N, M]`: the system of x + N.
pub fn triangular_solve(k: usize, n: usize, m: usize, unit: bool, dtype: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("triangular_solve");
    let x = g.parameter(square(k, n, dtype), "x");
    let b = g.parameter(TensorType::new(dtype, [k, n, m]), "b");
    let l = if unit { &x * (1.0 / n as f64) } else { heavy(&x) };
    let x = Routine::TriangularSolve { unit_diagonal: unit }.of(&[&l, &b], |p| {
        let mut x: Option<Tensor> = None;
        for i in 0..n {
            let own = block(&p[1], [i, i + 1], [0, m]);
            let mut row = match &x {
                None => own,
                Some(x) => own - product(&block(&p[0], [i, i + 1], [0, i]), x),
            };
            if !unit {
                let by = block(&p[0], [i, i + 1], [i, i + 1]);
                row = row.clone() / by.broadcast_to(row.shape());
            }
            x = Some(match x {
                None => row,
                Some(x) => Tensor::concatenate(&[&x, &row], 1),
            });
        }
        vec![x.unwrap()]
    });
    finish(&g, &x)
}

/// `cos` or `sin` of 2π · j · k / n: T[rows, columns]
fn roots(like: &Tensor, [rows, columns]: [usize; 2], n: usize, part: fn(f64) -> f64) -> Tensor {
    let all = (0..rows).flat_map(|j| (0..columns).map(move |k| j * k % n));
    let one = |p: usize| {
        let value = part(2.0 * PI * p as f64 / n as f64);
        // Those of quarters are whole numbers.
        if (4 * p).is_multiple_of(n) { value.round() } else { value }
    };
    let all: Vec<f64> = all.map(one).collect();
    like.builder().constant(Literal::from_slice([rows, columns], &all).unwrap().convert(like.dtype()))
}

/// Lines of `n` elements, by the sums that define them.
pub fn fft(kind: Routine, lines: usize, n: usize, dtype: DType) -> Arc<Graph> {
    let g = GraphBuilder::new(kind.name());
    let half = n / 2 + 1;
    let size = if kind == Routine::Irfft { half } else { n };
    let line = |name: &str| g.parameter(TensorType::new(dtype, [lines, size]), name);
    let mut x = vec![line("re")];
    if kind != Routine::Rfft {
        x.push(line("im"));
    }
    let results = kind.of(&x.iter().collect::<Vec<_>>(), |p| {
        let to = if kind == Routine::Rfft { half } else { n };
        let (cos, sin) = (roots(&p[0], [size, to], n, f64::cos), roots(&p[0], [size, to], n, f64::sin));
        let by = |x: &Tensor, w: &Tensor| x.dot_general(w, &[], &[], &[1], &[0]);
        match kind {
            Routine::Rfft => vec![by(&p[0], &cos), -by(&p[0], &sin)],
            Routine::Irfft => {
                // Elements between the ends count twice: their conjugates are the other half.
                let twice: Vec<f64> =
                    (0..half).map(|k| if k == 0 || 2 * k == n { 1.0 } else { 2.0 }).collect();
                let twice = Literal::from_slice([half], &twice).unwrap().convert(dtype);
                let twice = p[0].builder().constant(twice).broadcast_in_dim(p[0].shape(), &[1]);
                vec![by(&(&p[0] * &twice), &cos) - by(&(&p[1] * &twice), &sin)]
            }
            Routine::Fft { inverse } => {
                let sin = if inverse { -sin } else { sin };
                vec![by(&p[0], &cos) + by(&p[1], &sin), by(&p[1], &cos) - by(&p[0], &sin)]
            }
            _ => unreachable!(),
        }
    });
    finish(&g, &results)
}

/// Some of each.
pub fn all() -> Vec<Arc<Graph>> {
    let dtype = DType::F32;
    vec![
        cholesky(1, 40, dtype),
        triangular_solve(1, 40, 5, false, dtype),
        fft(Routine::Fft { inverse: false }, 3, 96, dtype),
        fft(Routine::Rfft, 3, 96, dtype),
        fft(Routine::Irfft, 3, 96, dtype),
        first_sorted(),
    ]
}

/// The greatest of each line.
fn first_sorted() -> Arc<Graph> {
    let g = GraphBuilder::new("top_k");
    let x = g.parameter(TensorType::new(DType::F32, [5, 90]), "x");
    let (values, places) = x.top_k(7);
    finish(&g, &[values, places])
}
