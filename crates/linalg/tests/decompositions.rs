//! Tests of decompositions by their residuals, for all element types and for sizes around the blocks' edges, and of calls by
//! LAPACK's names.

use systole_base::{DType, Literal, TensorType};
use systole_linalg::eig::{eigenvalues, eigenvectors};
use systole_linalg::eigh::eigh;
use systole_linalg::lu::{getrf, potrf, trsm};
use systole_linalg::matrix::Matrix;
use systole_linalg::qr::{geqp3, geqrf, orgqr};
use systole_linalg::scalar::{Complex, MatrixScalar, Real};
use systole_linalg::schur::{SchurElement, schur};
use systole_linalg::svd::svd;

const SIZES: [usize; 9] = [1, 2, 3, 7, 16, 31, 33, 50, 97];

/// Numbers between −1 and 1, the same in each run.
fn random<T: MatrixScalar>(rows: usize, columns: usize, seed: u64) -> Matrix<T> {
    let part = |i: usize, j: usize, k: u64| {
        let mut x = (i as u64 * 7919 + j as u64 * 104_729 + k * 1_299_709 + seed + 1)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 29;
        x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^= x >> 32;
        T::Real::of((x >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
    };
    Matrix::from_fn(rows, columns, |i, j| T::new(part(i, j, 0), part(i, j, 1)))
}

/// Largest difference, in units of rounding errors per row.
fn distance<T: MatrixScalar>(a: &Matrix<T>, b: &Matrix<T>) -> f64 {
    assert_eq!((a.rows, a.columns), (b.rows, b.columns));
    let mut most = 0.0_f64;
    for (x, y) in a.data.iter().zip(&b.data) {
        let size = (*x - *y).size() / T::Real::EPSILON;
        let size = format!("{size:?}").parse::<f64>().unwrap();
        assert!(size.is_finite(), "{x:?} {y:?}");
        most = most.max(size);
    }
    most / a.rows.max(1) as f64
}

fn assert_near<T: MatrixScalar>(what: &str, a: &Matrix<T>, b: &Matrix<T>) {
    let far = distance(a, b);
    assert!(far < 40.0, "{what} of {} by {}, {}: {far}", a.rows, a.columns, std::any::type_name::<T>());
}

fn assert_unitary<T: MatrixScalar>(what: &str, q: &Matrix<T>) {
    assert_near(what, &q.adjoint().product(q), &Matrix::identity(q.columns, q.columns));
}

fn diagonal<T: MatrixScalar>(values: &[T::Real], rows: usize, columns: usize) -> Matrix<T> {
    Matrix::from_fn(rows, columns, |i, j| if i == j { T::real(values[i]) } else { T::zero() })
}

fn of_type<T: SchurElement>()
where
    Complex<T::Real>: MatrixScalar<Real = T::Real>,
{
    for n in SIZES {
        for (rows, columns) in [(n, n), (2 * n + 3, n), (n, n + 5)] {
            let a: Matrix<T> = random(rows, columns, 1);
            qr_of(&a);
            lu_of(&a);
            svd_of(&a);
        }
        let a: Matrix<T> = random(n, n, 2);
        let mut h = a.adjoint();
        h.data.iter_mut().zip(&a.data).for_each(|(x, y)| *x += *y);
        let mut v = h.clone();
        let (values, converged) = eigh(&mut v, true);
        assert!(converged && values.is_sorted_by(|a, b| a <= b));
        assert_unitary("eigenvectors", &v);
        assert_near("eigh", &h.product(&v), &v.product(&diagonal(&values, n, n)));
        positive(&a);
        general(&a);
    }
}

fn qr_of<T: MatrixScalar>(a: &Matrix<T>) {
    let (m, n) = (a.rows, a.columns);
    let k = m.min(n);
    let check = |mut f: Matrix<T>, taus: &[T], of: &Matrix<T>| {
        let mut r = f.copied((0, k), (0, n));
        r.keep_triangle(false);
        f = f.copied((0, m), (0, k));
        orgqr(&mut f, taus);
        assert_unitary("Q", &f);
        assert_near("QR", &f.product(&r), of);
    };
    let mut f = a.clone();
    let taus = geqrf(&mut f);
    check(f, &taus, a);
    let mut f = a.clone();
    let mut order = vec![0; n];
    let taus = geqp3(&mut f, &mut order);
    let permuted = Matrix::from_fn(m, n, |i, j| a.at(i, order[j] as usize - 1));
    assert!((1..k).all(|i| f.at(i, i).modulus() <= f.at(i - 1, i - 1).modulus() * T::Real::of(1.01)));
    check(f, &taus, &permuted);
}

fn lu_of<T: MatrixScalar>(a: &Matrix<T>) {
    let (m, n) = (a.rows, a.columns);
    let k = m.min(n);
    let mut f = a.clone();
    let (pivots, info) = getrf(&mut f);
    assert_eq!(info, 0);
    let mut l = f.copied((0, m), (0, k));
    l.keep_triangle(true);
    (0..k).for_each(|i| l.set(i, i, T::ONE));
    let mut u = f.copied((0, k), (0, n));
    u.keep_triangle(false);
    let mut permuted = a.clone();
    for j in 0..n {
        pivots.iter().enumerate().for_each(|(i, p)| permuted.column_mut(j).swap(i, *p as usize - 1));
    }
    assert_near("LU", &l.product(&u), &permuted);
}

fn svd_of<T: MatrixScalar>(a: &Matrix<T>) {
    let k = a.rows.min(a.columns);
    for full in [false, true] {
        let found = svd(a.clone(), Some(full));
        let (u, vh) = (found.u.unwrap(), found.vh.unwrap());
        assert!(found.converged && found.s.is_sorted_by(|a, b| a >= b) && found.s.len() == k);
        assert_unitary("U", &u);
        assert_unitary("V", &vh.adjoint());
        assert_eq!((u.columns, vh.rows), if full { (a.rows, a.columns) } else { (k, k) });
        assert_near("SVD", &u.product(&diagonal(&found.s, u.columns, vh.rows)).product(&vh), a);
    }
}

fn positive<T: MatrixScalar>(a: &Matrix<T>) {
    let n = a.rows;
    let mut p = a.product(&a.adjoint());
    (0..n).for_each(|i| p.set(i, i, p.at(i, i) + T::ONE));
    let mut l = p.clone();
    assert_eq!(potrf(&mut l), 0);
    l.keep_triangle(true);
    assert_near("Cholesky", &l.product(&l.adjoint()), &p);
    for (lower, columns) in [(true, 3), (false, 3), (true, 1), (false, 1)] {
        let b: Matrix<T> = random(n, columns, 5);
        let of = if lower { l.clone() } else { l.transpose() };
        let mut x = b.transpose();
        trsm(&mut of.clone(), lower, false, &mut x);
        let x = x.transpose();
        let size = x.data.iter().fold(T::Real::ONE, |m, x| m.most(x.size()));
        let scaled = |m: Matrix<T>| Matrix {
            data: m.data.iter().map(|x| x.scale(T::Real::ONE / size)).collect(),
            ..m
        };
        assert_near("triangular solve", &scaled(of.product(&x)), &scaled(b.clone()));
    }
    let mut broken = p;
    broken.set(n - 1, n - 1, -T::ONE);
    assert_eq!(potrf(&mut broken), n as i32);
}

fn general<T: SchurElement>(a: &Matrix<T>)
where
    Complex<T::Real>: MatrixScalar<Real = T::Real>,
{
    let n = a.rows;
    let form = schur(a.clone());
    assert!(form.converged);
    assert_unitary("Schur vectors", &form.z);
    assert_near("Schur", &form.z.product(&form.t).product(&form.z.adjoint()), a);
    let complex =
        |m: &Matrix<T>| Matrix::from_fn(n, n, |i, j| Complex { re: m.at(i, j).re(), im: m.at(i, j).im() });
    let values = eigenvalues(&form.t);
    let lambda = Matrix::from_fn(n, n, |i, j| if i == j { values[i] } else { Complex::default() });
    let right = eigenvectors(&form, false);
    assert_near("right eigenvectors", &complex(a).product(&right), &right.product(&lambda));
    let left = eigenvectors(&form, true).adjoint();
    assert_near("left eigenvectors", &left.product(&complex(a)), &lambda.product(&left));
}

#[test]
fn decompositions_of_f32() {
    of_type::<f32>();
}

#[test]
fn decompositions_of_f64() {
    of_type::<f64>();
}

#[test]
fn decompositions_of_complex_f32() {
    of_type::<Complex<f32>>();
}

#[test]
fn decompositions_of_complex_f64() {
    of_type::<Complex<f64>>();
}

/// Batches of row-major matrices, real and complex: Q R is the operand.
#[test]
fn a_call_reads_and_writes_batches_of_row_major_arrays() {
    const SHAPE: [usize; 3] = [2, 19, 11];
    let (m, n) = (SHAPE[1], SHAPE[2]);
    let array =
        |seed: u64| Literal::from_slice(SHAPE, &random::<f64>(SHAPE[0] * m * n, 1, seed).data).unwrap();
    let whole = TensorType::new(DType::F64, SHAPE);
    let taus = TensorType::new(DType::F64, [SHAPE[0], n]);
    for operands in [vec![array(1)], vec![array(1), array(2)]] {
        let prefix = if operands.len() == 2 { "complex " } else { "" };
        let each = |ty: &TensorType| vec![ty.clone(); operands.len()];
        let types = [each(&whole), each(&taus)].concat();
        let refs: Vec<&Literal> = operands.iter().collect();
        let factored = systole_linalg::call(&format!("{prefix}geqrf"), &refs, &types).unwrap();
        let refs: Vec<&Literal> = factored.iter().collect();
        let q = systole_linalg::call(&format!("{prefix}orgqr"), &refs, &each(&whole)).unwrap();
        let element = |parts: &[Literal], b: usize, i: usize, j: usize| {
            let part =
                |k: usize| parts.get(k).map_or(0.0, |p| p.as_slice::<f64>().unwrap()[(b * m + i) * n + j]);
            Complex { re: part(0), im: part(1) }
        };
        for b in 0..SHAPE[0] {
            let q = Matrix::from_fn(m, n, |i, j| element(&q, b, i, j));
            let mut r = Matrix::from_fn(n, n, |i, j| element(&factored[..operands.len()], b, i, j));
            r.keep_triangle(false);
            assert_unitary("Q of a call", &q);
            assert_near(
                "QR of a call",
                &q.product(&r),
                &Matrix::from_fn(m, n, |i, j| element(&operands, b, i, j)),
            );
        }
    }
}

/// A call for systems with a zero pivot: regular matrices (one needs pivoting), and singular ones, whose solution is large and finite.
#[test]
fn tridiagonal_systems_with_perturbed_pivots() {
    let solved = |dl: &[f32], d: &[f32], du: &[f32], b: &[f32]| {
        let vector = |x: &[f32]| Literal::from_slice([x.len()], x).unwrap();
        let args = [vector(dl), vector(d), vector(du), Literal::from_slice([b.len(), 1], b).unwrap()];
        let ty = args[3].ty().clone();
        let refs: Vec<&Literal> = args.iter().collect();
        systole_linalg::call("gtsv_perturbed", &refs, &[ty]).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    };
    let x =
        solved(&[0.0, 2.0, -2.0, 3.0], &[1.0, 4.0, 1.0, -1.0], &[2.0, -1.0, 1.0, 0.0], &[1.0, 2.0, 3.0, 4.0]);
    x.iter().zip([8.0, -3.5, 0.0, -4.0]).for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{x:?}"));
    for (dl, d, du, b) in [
        ([0.0, 1.0, 0.0], [1.0, 3.0, 1.0], [3.0, 0.0, 0.0], [1.0, 4.0, 1e8]),
        ([0.0; 3], [0.0; 3], [0.0; 3], [1.0; 3]),
        // Elements outside the matrix have no influence.
        ([1e30, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1e30], [1e8, 1.0, 1.0]),
    ] {
        let x = solved(&dl, &d, &du, &b);
        assert!(x.iter().all(|x| x.is_finite() && x.abs() > 1e6), "{x:?}");
    }
    let a = Literal::from_slice([2], &[1.0f32, 1.0]).unwrap();
    let refs = [&a, &a, &a, &Literal::from_slice([3, 1], &[1.0f32; 3]).unwrap()];
    assert!(systole_linalg::call("gtsv_perturbed", &refs, &[refs[3].ty().clone()]).is_err());
}

/// A routine that is checked once computes parts of a batch, and rejects types that do not fit.
#[test]
fn a_routine_computes_parts_of_a_batch() {
    let ty = |dtype: DType, dims: &[usize]| TensorType::new(dtype, dims);
    let (a, pivots, info) = (ty(DType::F32, &[5, 3, 3]), ty(DType::I32, &[5, 3]), ty(DType::I32, &[5]));
    let types = [a.clone(), pivots.clone(), info.clone()];
    let x = Literal::from_slice([5, 3, 3], &random::<f32>(45, 1, 3).data).unwrap();
    let whole = systole_linalg::call("getrf", &[&x], &types).unwrap();
    let routine = systole_linalg::LapackRoutine::new("getrf", &[&a], &types).unwrap();
    assert_eq!((routine.batch(), routine.matrix_bytes()), (5, [vec![36], vec![36, 12, 4]]));
    let mut parts = types.clone().map(Literal::zeros);
    let [lu, p, i] = &mut parts;
    for (at, count) in [(0, 2), (2, 3)] {
        let each = |bytes: usize| at * bytes..(at + count) * bytes;
        let mut results =
            [&mut lu.bytes_mut()[each(36)], &mut p.bytes_mut()[each(12)], &mut i.bytes_mut()[each(4)]];
        routine.run(count, &[&x.bytes()[each(36)]], &mut results).unwrap();
    }
    assert!(parts.iter().zip(&whole).all(|(a, b)| a == b));
    let wrong = [
        vec![ty(DType::F64, &[5, 3, 3]), pivots.clone(), info.clone()],
        vec![a.clone(), pivots.clone()],
        vec![a.clone(), ty(DType::I32, &[4, 3]), info.clone()],
        vec![a.clone(), ty(DType::I32, &[5, 2]), info.clone()],
    ];
    assert!(wrong.iter().all(|types| systole_linalg::call("getrf", &[&x], types).is_err()));
    assert!(systole_linalg::call("trsm side=76", &[&x, &whole[2]], &types[..1]).is_err());
}

#[test]
fn pivots_become_a_permutation_of_rows() {
    let ty = |dims: &[usize]| TensorType::new(DType::I32, dims);
    let pivots = Literal::from_slice([2, 2], &[2i32, 1, 0, 3]).unwrap();
    let made = systole_linalg::call("permutation", &[&pivots], &[ty(&[2, 4])]).unwrap();
    assert_eq!(made[0].as_slice::<i32>().unwrap(), [2, 1, 0, 3, 0, 3, 2, 1]);
    let outside = Literal::from_slice([3], &[4i32, -1, 0]).unwrap();
    let made = systole_linalg::call("permutation", &[&outside], &[ty(&[4])]).unwrap();
    assert_eq!(made[0].as_slice::<i32>().unwrap(), [2, 1, 0, 3]);
    for wrong in [ty(&[2, 1]), ty(&[3, 4])] {
        assert!(systole_linalg::call("permutation", &[&pivots], &[wrong]).is_err());
    }
}
