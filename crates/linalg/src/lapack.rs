//! Calls routines by LAPACK's names on arrays of matrices: `geqrf`, `syevd`, `gesdd`, `geev` and others.
//!
//! Arrays are row-major with leading batch dimensions; a complex array is one array of real parts and one of imaginary
//! parts. Operands, results and attributes are those of JAX's custom calls (`lapack_dgeqrf_ffi`).

use crate::eig::{eigenvalues, eigenvectors};
use crate::eigh::{eigh, sytrd};
use crate::lu::{getrf, potrf, trsm};
use crate::matrix::Matrix;
use crate::qr::{apply_q, geqp3, geqrf, orgqr};
use crate::scalar::{Complex, MatrixScalar};
use crate::schur::{Schur, SchurElement, gehrd, schur};
use crate::svd::svd;
use crate::tridiagonal::{gtsv, gtsv_perturbed};
use systole_base::{DType, Element, Literal, Result, TensorType, ensure, err};

/// The routines, with their number of operands, and of arrays that hold the results of real and of complex matrices.
const ROUTINES: [(&str, usize, usize, usize); 16] = [
    ("geev", 1, 7, 7),
    ("gees", 1, 6, 8),
    ("gehrd", 1, 3, 5),
    ("geqp3", 2, 3, 5),
    ("geqrf", 1, 2, 4),
    ("gesdd", 1, 5, 8),
    ("gesvd", 1, 5, 8),
    ("getrf", 1, 3, 4),
    ("gtsv", 4, 5, 9),
    (PERTURBED.1, 4, 1, 2),
    ("orgqr", 2, 1, 2),
    ("ormqr", 3, 1, 2),
    ("potrf", 1, 2, 3),
    ("syevd", 1, 3, 4),
    ("sytrd", 1, 5, 7),
    ("trsm", 2, 1, 2),
];

/// JAX's custom call for the permutation of an LU decomposition, on GPUs; and its routine here.
const PERMUTATION: (&str, &str) = ("cu_lu_pivots_to_permutation", "permutation");

/// JAX's custom call for tridiagonal systems that may be singular; and its routine here.
const PERTURBED: (&str, &str) = ("tridiagonal_solve_perturbed_ffi", "gtsv_perturbed");

/// Returns the routine of a custom call: `lapack_zheevd_ffi` is `syevd`, which computes with complex numbers too.
pub fn routine(target: &str) -> Option<&'static str> {
    if let Some((_, own)) = [PERMUTATION, PERTURBED].iter().find(|(known, _)| *known == target) {
        return Some(own);
    }
    let name = target.strip_prefix("lapack_")?.strip_suffix("_ffi")?;
    let name = name.strip_prefix(['s', 'd', 'c', 'z'])?;
    let name = match name {
        "heevd" => "syevd",
        "hetrd" => "sytrd",
        "ungqr" => "orgqr",
        "unmqr" => "ormqr",
        name => name,
    };
    ROUTINES.iter().map(|(known, ..)| *known).find(|known| *known == name)
}

/// Calls a routine: `config` is its name and attributes, such as `complex syevd mode=86 uplo=76`.
///
/// # Errors
/// For an unknown routine, or operands that do not fit.
pub fn call(config: &str, args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
    if config == PERMUTATION.1 {
        return permutation(args, types);
    }
    let double = args.first().is_some_and(|a| a.dtype() == DType::F64);
    match (config.strip_prefix("complex "), double) {
        (None, false) => LapackCall::<f32>::run(config, args, types),
        (None, true) => LapackCall::<f64>::run(config, args, types),
        (Some(config), false) => LapackCall::<Complex<f32>>::run(config, args, types),
        (Some(config), true) => LapackCall::<Complex<f64>>::run(config, args, types),
    }
}

/// Number of leading batch dimensions of the first operand, which has `rank` dimensions; `None` if it has too few.
pub fn batch_dims(config: &str, rank: usize) -> Option<usize> {
    let name = config.strip_prefix("complex ").unwrap_or(config).split(' ').next().unwrap_or("");
    rank.checked_sub(own_dims(name, 0))
}

/// Number of dimensions of operand i of a routine that is called for one matrix.
fn own_dims(name: &str, i: usize) -> usize {
    match (name, i) {
        ("orgqr" | "ormqr", 1) => 1,
        ("gtsv" | "gtsv_perturbed", 0..3) => 1,
        (name, 0) if name == PERMUTATION.1 => 1,
        _ => 2,
    }
}

/// Rows of L U in terms of those of the matrix: `pivots: i32[…, m]`, from 0, become `i32[…, n]`.
fn permutation(args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
    let ([pivots], [ty]) = (args, types) else {
        return Err(err!(Data, "a permutation has one operand and one result"));
    };
    let lead = |ty: &TensorType| ty.shape.split_last().map(|(last, lead)| (*last, lead.to_vec()));
    let fits = |(m, lead): (usize, Vec<usize>), (n, other): (usize, Vec<usize>)| lead == other && m <= n;
    let matches = lead(pivots.ty()).zip(lead(ty)).is_some_and(|(a, b)| fits(a, b));
    ensure!(matches, err!(Data, "pivots of type {} do not permute {ty}", pivots.ty()));
    let (m, n) = (pivots.shape()[pivots.shape().rank() - 1], ty.shape[ty.rank() - 1]);
    let mut result = Literal::zeros(ty.clone());
    let (from, to) = (pivots.as_slice::<i32>()?, result.as_mut_slice::<i32>()?);
    for (b, to) in to.chunks_exact_mut(n.max(1)).enumerate() {
        to.iter_mut().zip(0..).for_each(|(x, i)| *x = i);
        for (i, pivot) in from[b * m..(b + 1) * m].iter().enumerate() {
            // A number that is no row exchanges nothing: arrays of JAX have no errors that depend on values.
            if let Some(pivot) = usize::try_from(*pivot).ok().filter(|p| *p < n) {
                to.swap(i, pivot);
            }
        }
    }
    Ok(vec![result])
}

/// Element type of operands: its parts are element types of arrays.
trait LapackScalar: SchurElement {
    fn parts<'a>(args: &mut impl Iterator<Item = &'a Literal>) -> Result<ArrayParts<'a, Self::Real>>
    where
        Self::Real: Element,
    {
        let mut part = || args.next().ok_or_else(|| err!(Data, "a linear-algebra call has too few operands"));
        let first = part()?;
        let shape = first.shape().to_vec();
        let im = if Self::IS_COMPLEX { Some(part()?.as_slice()?) } else { None };
        Ok(ArrayParts { re: first.as_slice()?, im, shape })
    }
}

impl<T: SchurElement> LapackScalar for T {}

/// Rows and columns of a tile that is transposed in registers and the cache.
const TILE: usize = 8;

/// Tiles of a matrix: first row and column, numbers of rows and columns.
fn tiles(m: usize, n: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..m).step_by(TILE).flat_map(move |top| {
        (0..n).step_by(TILE).map(move |left| (top, left, TILE.min(m - top), TILE.min(n - left)))
    })
}

/// Real and imaginary parts of an array.
struct ArrayParts<'a, R> {
    re: &'a [R],
    im: Option<&'a [R]>,
    shape: Vec<usize>,
}

impl<R: Element> ArrayParts<'_, R> {
    fn at<T: MatrixScalar<Real = R>>(&self, i: usize) -> T
    where
        R: crate::scalar::Real,
    {
        match self.im {
            Some(im) => T::new(self.re[i], im[i]),
            None => T::real(self.re[i]),
        }
    }
}

/// A call on operands of element type T.
struct LapackCall<'a, T: MatrixScalar> {
    name: &'a str,
    attributes: Vec<(&'a str, i64)>,
    /// Arrays of type T, without integers.
    args: Vec<ArrayParts<'a, T::Real>>,
    integers: Option<&'a [i32]>,
    results: Vec<Literal>,
}

impl<'a, T> LapackCall<'a, T>
where
    T: LapackScalar,
    T::Real: Element,
    Complex<T::Real>: MatrixScalar<Real = T::Real>,
{
    fn run(config: &'a str, args: &[&'a Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
        let mut words = config.split(' ').filter(|w| !w.is_empty());
        let name = words.next().unwrap_or("");
        let Some((_, operands, results, complex_results)) =
            ROUTINES.iter().find(|(known, ..)| *known == name)
        else {
            return Err(err!(Unsupported, "unknown linear-algebra routine `{name}`"));
        };
        let attributes =
            words.filter_map(|w| w.split_once('=')).filter_map(|(k, v)| Some((k, v.parse().ok()?)));
        let attributes = attributes.collect();
        let mut rest = args.iter().copied();
        let mut arrays = Vec::new();
        let mut integers = None;
        for i in 0..*operands {
            if name == "geqp3" && i == 1 {
                integers = rest.next().map(|l| l.as_slice::<i32>()).transpose()?;
            } else {
                arrays.push(T::parts(&mut rest)?);
            }
        }
        let mut call: LapackCall<'_, T> = LapackCall {
            name,
            attributes,
            args: arrays,
            integers,
            results: types.iter().map(|ty| Literal::zeros(ty.clone())).collect(),
        };
        let expected = if T::IS_COMPLEX { *complex_results } else { *results };
        ensure!(
            types.len() == expected,
            err!(Data, "`{name}` has {expected} result arrays, got {}", types.len())
        );
        call.check()?;
        for b in 0..call.batch() {
            call.one(b)?;
        }
        Ok(call.results)
    }

    fn attribute(&self, name: &str) -> Option<i64> {
        self.attributes.iter().find(|(k, _)| *k == name).map(|(_, v)| *v)
    }

    /// Whether an attribute is a letter: `N`.
    fn is(&self, name: &str, letter: char) -> bool {
        self.attribute(name) == Some(letter as i64)
    }

    /// Checks shapes of operands: the rest of the code indexes by them.
    fn check(&self) -> Result<()> {
        let lead = |i: usize| {
            let shape = &self.args[i].shape;
            shape.len().checked_sub(own_dims(self.name, i)).map(|n| &shape[..n])
        };
        let same = (0..self.args.len()).all(|i| lead(i).is_some() && lead(i) == lead(0));
        let whole = self.args.iter().all(|a| a.im.is_none_or(|im| im.len() == a.re.len()));
        let fits = same && whole && self.fits();
        let shapes: Vec<&Vec<usize>> = self.args.iter().map(|a| &a.shape).collect();
        ensure!(fits, err!(Data, "operands of shapes {shapes:?} do not fit the routine `{}`", self.name));
        Ok(())
    }

    fn fits(&self) -> bool {
        let (m, n) = if self.name.starts_with("gtsv") { (0, 0) } else { self.size(0) };
        match self.name {
            "potrf" | "syevd" | "sytrd" | "geev" | "gees" => m == n,
            "gehrd" => {
                let (low, high) = self.range(n);
                m == n && low >= 1 && high <= n && low <= high.max(1)
            }
            "geqp3" => self.integers.is_some_and(|p| p.len() == n * self.batch()),
            "orgqr" => m >= n && self.length(1) <= n,
            "ormqr" => {
                let (rows, columns) = self.size(2);
                let own = if self.attribute("left") == Some(1) { rows } else { columns };
                own == m && self.length(1) <= m.min(n)
            }
            "trsm" => {
                let (rows, columns) = self.size(1);
                m == n && m == if self.is("side", 'L') { rows } else { columns }
            }
            "gtsv" | "gtsv_perturbed" => (0..3).all(|i| self.length(i) == self.size(3).0),
            _ => true,
        }
    }

    /// The last dimension.
    fn length(&self, i: usize) -> usize {
        self.args[i].shape.last().copied().unwrap_or(0)
    }

    /// Rows and columns.
    fn size(&self, i: usize) -> (usize, usize) {
        let shape = &self.args[i].shape;
        (shape[shape.len() - 2], shape[shape.len() - 1])
    }

    fn range(&self, n: usize) -> (usize, usize) {
        let of = |name: &str, or: usize| self.attribute(name).map_or(or, |v| v.max(0) as usize);
        (of("low", 1), of("high", n))
    }

    fn batch(&self) -> usize {
        let shape = &self.args[0].shape;
        shape[..shape.len() - own_dims(self.name, 0)].iter().product()
    }

    fn matrix(&self, i: usize, b: usize) -> Matrix<T> {
        let (m, n) = self.size(i);
        let array = &self.args[i];
        let range = b * m * n..(b + 1) * m * n;
        let (re, im) = (&array.re[range.clone()], array.im.map(|im| &im[range.clone()]));
        let mut out = Matrix::zeros(m, n);
        for (top, left, height, width) in tiles(m, n) {
            let mut tile = [[T::zero(); TILE]; TILE];
            for r in 0..height {
                let at = (top + r) * n + left;
                let row = &re[at..at + width];
                match im.map(|im| &im[at..at + width]) {
                    None => row.iter().enumerate().for_each(|(c, x)| tile[c][r] = T::real(*x)),
                    Some(im) => (0..width).for_each(|c| tile[c][r] = T::new(row[c], im[c])),
                }
            }
            for (c, column) in tile.iter().enumerate().take(width) {
                let at = top + (left + c) * m;
                out.data[at..at + height].copy_from_slice(&column[..height]);
            }
        }
        out
    }

    /// The transpose of matrix b, which has the order of the array.
    fn turned(&self, i: usize, b: usize) -> Matrix<T> {
        let (m, n) = self.size(i);
        let range = b * m * n..(b + 1) * m * n;
        let data = range.map(|at| self.args[i].at(at)).collect();
        Matrix { data, rows: n, columns: m }
    }

    fn vector(&self, i: usize, b: usize) -> Vec<T> {
        let n = self.length(i);
        (b * n..(b + 1) * n).map(|k| self.args[i].at(k)).collect()
    }

    /// Writes matrix b of a result that starts with array `at`; returns the next result's array.
    fn put<U: MatrixScalar<Real = T::Real>>(&mut self, at: usize, b: usize, m: &Matrix<U>) -> Result<usize> {
        let parts = if U::IS_COMPLEX { 2 } else { 1 };
        for part in 0..parts {
            let to: &mut [T::Real] = self.results[at + part].as_mut_slice()?;
            let size = m.rows * m.columns;
            let Some(to) = to.get_mut(b * size..(b + 1) * size) else {
                return Err(err!(
                    Data,
                    "a result of `{}` has another shape than {} by {}",
                    self.name,
                    m.rows,
                    m.columns
                ));
            };
            for (top, left, height, width) in tiles(m.rows, m.columns) {
                let mut tile = [[T::Real::default(); TILE]; TILE];
                for c in 0..width {
                    let at = top + (left + c) * m.rows;
                    let column = &m.data[at..at + height];
                    for (r, x) in column.iter().enumerate() {
                        tile[r][c] = if part == 0 { x.re() } else { x.im() };
                    }
                }
                for (r, row) in tile.iter().enumerate().take(height) {
                    let at = (top + r) * m.columns + left;
                    to[at..at + width].copy_from_slice(&row[..width]);
                }
            }
        }
        Ok(at + parts)
    }

    /// Like [`LapackCall::put`], for the transpose of the result.
    fn put_turned(&mut self, at: usize, b: usize, m: &Matrix<T>) -> Result<usize> {
        let size = m.data.len();
        let parts = if T::IS_COMPLEX { 2 } else { 1 };
        for part in 0..parts {
            let to: &mut [T::Real] = self.results[at + part].as_mut_slice()?;
            let Some(to) = to.get_mut(b * size..(b + 1) * size) else {
                return Err(err!(Data, "a result of `{}` has another size than {size}", self.name));
            };
            to.iter_mut().zip(&m.data).for_each(|(to, x)| *to = if part == 0 { x.re() } else { x.im() });
        }
        Ok(at + parts)
    }

    fn put_vector<U: MatrixScalar<Real = T::Real>>(
        &mut self,
        at: usize,
        b: usize,
        x: Vec<U>,
    ) -> Result<usize> {
        let rows = x.len();
        self.put(at, b, &Matrix { data: x, rows, columns: 1 })
    }

    fn put_integers(&mut self, at: usize, b: usize, x: &[i32]) -> Result<usize> {
        let to: &mut [i32] = self.results[at].as_mut_slice()?;
        match to.get_mut(b * x.len()..(b + 1) * x.len()) {
            Some(to) => to.copy_from_slice(x),
            None => {
                return Err(err!(Data, "a result of `{}` has another length than {}", self.name, x.len()));
            }
        }
        Ok(at + 1)
    }

    /// Computes one of the matrices.
    fn one(&mut self, b: usize) -> Result<()> {
        match self.name {
            "geqrf" => {
                let mut a = self.matrix(0, b);
                let taus = geqrf(&mut a);
                let at = self.put(0, b, &a)?;
                self.put_vector(at, b, taus)?;
            }
            "geqp3" => {
                let mut a = self.matrix(0, b);
                let n = a.columns;
                let mut order = self.integers.map_or(Vec::new(), |p| p[b * n..(b + 1) * n].to_vec());
                let taus = geqp3(&mut a, &mut order);
                let at = self.put(0, b, &a)?;
                let at = self.put_integers(at, b, &order)?;
                self.put_vector(at, b, taus)?;
            }
            "orgqr" => {
                let mut a = self.matrix(0, b);
                orgqr(&mut a, &self.vector(1, b));
                self.put(0, b, &a)?;
            }
            "ormqr" => {
                let mut c = self.matrix(2, b);
                let side = (self.attribute("left") == Some(1), self.attribute("transpose") == Some(1));
                apply_q(&self.matrix(0, b), &self.vector(1, b), side, &mut c, false);
                self.put(0, b, &c)?;
            }
            "getrf" => {
                let mut a = self.matrix(0, b);
                let (pivots, info) = getrf(&mut a);
                let at = self.put(0, b, &a)?;
                let at = self.put_integers(at, b, &pivots)?;
                self.put_integers(at, b, &[info])?;
            }
            "potrf" => self.cholesky(b)?,
            "trsm" => self.triangular(b)?,
            "gtsv" | "gtsv_perturbed" => self.tridiagonal_solve(b)?,
            "syevd" => self.hermitian(b)?,
            "sytrd" => self.tridiagonal(b)?,
            "gesdd" | "gesvd" => self.singular(b)?,
            "gehrd" => {
                let mut a = self.matrix(0, b);
                let (low, high) = self.range(a.rows);
                let taus = gehrd(&mut a, low, high);
                let at = self.put(0, b, &a)?;
                let at = self.put_vector(at, b, taus)?;
                self.put_integers(at, b, &[0])?;
            }
            "gees" => self.schur(b)?,
            _ => self.eigen(b)?,
        }
        Ok(())
    }

    fn cholesky(&mut self, b: usize) -> Result<()> {
        let a = self.matrix(0, b);
        let lower = !self.is("uplo", 'U');
        let mut l = if lower { a } else { a.adjoint() };
        let info = potrf(&mut l);
        let out = if lower { l } else { l.adjoint() };
        let at = self.put(0, b, &out)?;
        self.put_integers(at, b, &[info])?;
        Ok(())
    }

    fn triangular(&mut self, b: usize) -> Result<()> {
        let (left, lower) = (self.is("side", 'L'), self.is("uplo", 'L'));
        let (transpose, conjugate) = (!self.is("trans_x", 'N'), self.is("trans_x", 'C'));
        // Row-major arrays are transposed matrices: op(A) X = B is Xᵀ Lᵀ = Bᵀ with L = op(A), and X op(A) = B has L = op(A)ᵀ.
        let is_own = left != transpose;
        let mut l = if is_own { self.matrix(0, b) } else { self.turned(0, b) };
        if conjugate && T::IS_COMPLEX {
            l.data.iter_mut().for_each(|x| *x = x.conj());
        }
        let mut x = if left { self.turned(1, b) } else { self.matrix(1, b) };
        trsm(&mut l, lower == is_own, self.is("diag", 'U'), &mut x);
        if left {
            self.put_turned(0, b, &x)?
        } else {
            self.put(0, b, &x)?
        };
        Ok(())
    }

    fn tridiagonal_solve(&mut self, b: usize) -> Result<()> {
        let (mut below, mut d, mut above) = (self.vector(0, b), self.vector(1, b), self.vector(2, b));
        let mut x = self.matrix(3, b);
        // The first element of the lower diagonal is outside the matrix.
        let start = 1.min(below.len());
        if self.name == PERTURBED.1 {
            gtsv_perturbed(&mut below[start..], &mut d, &mut above, x.view_mut());
            self.put(0, b, &x)?;
            return Ok(());
        }
        let info = gtsv(&mut below[start..], &mut d, &mut above, x.view_mut());
        let mut at = 0;
        for vector in [below, d, above] {
            at = self.put_vector(at, b, vector)?;
        }
        let at = self.put(at, b, &x)?;
        self.put_integers(at, b, &[info])?;
        Ok(())
    }

    /// The matrix whose lower triangle holds the Hermitian operand.
    fn lower(&self, b: usize) -> Matrix<T> {
        let a = self.matrix(0, b);
        if self.is("uplo", 'U') { a.adjoint() } else { a }
    }

    fn hermitian(&mut self, b: usize) -> Result<()> {
        let mut a = self.lower(b);
        let (values, converged) = eigh(&mut a, !self.is("mode", 'N'));
        let at = self.put(0, b, &a)?;
        let at = self.put_vector(at, b, values)?;
        self.put_integers(at, b, &[i32::from(!converged)])?;
        Ok(())
    }

    fn tridiagonal(&mut self, b: usize) -> Result<()> {
        // The upper triangle is the lower one of the matrix with rows and columns backwards.
        let backwards = self.is("uplo", 'U');
        let flip = |a: Matrix<T>| {
            let n = a.rows;
            if backwards { Matrix::from_fn(n, n, |i, j| a.at(n - 1 - i, n - 1 - j)) } else { a }
        };
        let original = self.matrix(0, b);
        let mut a = flip(original.clone());
        let mut t = sytrd(&mut a);
        let mut a = flip(a);
        for j in 0..a.columns {
            for i in 0..a.rows {
                let outside = if backwards { i > j } else { i < j };
                if outside {
                    a.set(i, j, original.at(i, j));
                }
            }
        }
        if backwards {
            t.d.reverse();
            t.e.reverse();
            t.taus.reverse();
        }
        let at = self.put(0, b, &a)?;
        let at = self.put_vector(at, b, t.d)?;
        let at = self.put_vector(at, b, t.e)?;
        let at = self.put_vector(at, b, t.taus)?;
        self.put_integers(at, b, &[0])?;
        Ok(())
    }

    fn singular(&mut self, b: usize) -> Result<()> {
        let a = self.matrix(0, b);
        let vectors = if self.is("mode", 'N') { None } else { Some(self.is("mode", 'A')) };
        let found = svd(a, vectors);
        // The operand's memory, of which LAPACK leaves the contents open, is the first result.
        let mut at = if T::IS_COMPLEX { 2 } else { 1 };
        at = self.put_vector(at, b, found.s)?;
        let parts = if T::IS_COMPLEX { 2 } else { 1 };
        for matrix in [found.u, found.vh] {
            if let Some(matrix) = matrix {
                self.put(at, b, &matrix)?;
            }
            at += parts;
        }
        self.put_integers(at, b, &[i32::from(!found.converged)])?;
        Ok(())
    }

    /// Eigenvalues: two arrays for real matrices, one complex array otherwise.
    fn put_eigenvalues(&mut self, at: usize, b: usize, values: Vec<Complex<T::Real>>) -> Result<usize> {
        if T::IS_COMPLEX {
            return self.put_vector(at, b, values);
        }
        let at = self.put_vector(at, b, values.iter().map(|x| x.re).collect())?;
        self.put_vector(at, b, values.iter().map(|x| x.im).collect())
    }

    fn schur(&mut self, b: usize) -> Result<()> {
        let Schur { t, z, converged } = schur(self.matrix(0, b));
        let values = eigenvalues(&t);
        let at = self.put(0, b, &t)?;
        let at = self.put(at, b, &z)?;
        let at = self.put_eigenvalues(at, b, values)?;
        let at = self.put_integers(at, b, &[0])?;
        self.put_integers(at, b, &[i32::from(!converged)])?;
        Ok(())
    }

    fn eigen(&mut self, b: usize) -> Result<()> {
        let form = schur(self.matrix(0, b));
        let mut at = self.put_eigenvalues(0, b, eigenvalues(&form.t))?;
        for (name, left) in [("compute_left", true), ("compute_right", false)] {
            if form.converged && !self.is(name, 'N') {
                self.put(at, b, &eigenvectors(&form, left))?;
            }
            at += 2;
        }
        self.put_integers(at, b, &[i32::from(!form.converged)])?;
        Ok(())
    }
}
