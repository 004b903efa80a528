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
use std::ops::Deref;
use systole_base::{DType, Element, Literal, Result, TensorType, ensure, err};

/// Routines by LAPACK's names, without the letter of the element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoutineName {
    Geev,
    Gees,
    Gehrd,
    Geqp3,
    Geqrf,
    Gesdd,
    Getrf,
    Gtsv,
    GtsvPerturbed,
    Orgqr,
    Ormqr,
    Potrf,
    Syevd,
    Sytrd,
    Trsm,
    /// The permutation of rows that the pivots of an LU decomposition make.
    Permutation,
}

/// The routines, with their number of operands, and of arrays that hold the results of real and of complex matrices.
const ROUTINES: [(&str, RoutineName, usize, usize, usize); 17] = [
    ("geev", RoutineName::Geev, 1, 7, 7),
    ("gees", RoutineName::Gees, 1, 6, 8),
    ("gehrd", RoutineName::Gehrd, 1, 3, 5),
    ("geqp3", RoutineName::Geqp3, 2, 3, 5),
    ("geqrf", RoutineName::Geqrf, 1, 2, 4),
    ("gesdd", RoutineName::Gesdd, 1, 5, 8),
    ("gesvd", RoutineName::Gesdd, 1, 5, 8),
    ("getrf", RoutineName::Getrf, 1, 3, 4),
    ("gtsv", RoutineName::Gtsv, 4, 5, 9),
    (PERTURBED.1, RoutineName::GtsvPerturbed, 4, 1, 2),
    ("orgqr", RoutineName::Orgqr, 2, 1, 2),
    ("ormqr", RoutineName::Ormqr, 3, 1, 2),
    ("potrf", RoutineName::Potrf, 1, 2, 3),
    ("syevd", RoutineName::Syevd, 1, 3, 4),
    ("sytrd", RoutineName::Sytrd, 1, 5, 7),
    ("trsm", RoutineName::Trsm, 2, 1, 2),
    (PERMUTATION.1, RoutineName::Permutation, 1, 1, 1),
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
    ROUTINES.iter().map(|(known, ..)| *known).find(|known| *known == name && name != PERMUTATION.1)
}

/// Calls a routine: `config` is its name and attributes, such as `complex syevd mode=86 uplo=76`.
///
/// # Errors
/// For an unknown routine, or operands that do not fit.
pub fn call(config: &str, args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
    let own: Vec<&TensorType> = args.iter().map(|a| a.ty()).collect();
    let routine = LapackRoutine::new(config, &own, types)?;
    let mut results: Vec<Literal> = types.iter().map(|ty| Literal::zeros(ty.clone())).collect();
    let arrays: Vec<&[u8]> = args.iter().map(|a| a.bytes()).collect();
    let mut written: Vec<&mut [u8]> = results.iter_mut().map(Literal::bytes_mut).collect();
    routine.run(routine.batch(), &arrays, &mut written)?;
    Ok(results)
}

/// Number of dimensions of operand i of a routine that is called for one matrix.
fn own_dims(name: RoutineName, i: usize) -> usize {
    match (name, i) {
        (RoutineName::Orgqr | RoutineName::Ormqr | RoutineName::Geqp3, 1) => 1,
        (RoutineName::Gtsv | RoutineName::GtsvPerturbed, 0..3) | (RoutineName::Permutation, 0) => 1,
        _ => 2,
    }
}

/// Attributes of routines.
#[derive(Clone, Copy)]
enum RoutineAttribute {
    Left,
    Transpose,
    Low,
    High,
    Uplo,
    Side,
    TransX,
    Diag,
    Mode,
    ComputeLeft,
    ComputeRight,
}

/// Names of attributes, in the order of [`RoutineAttribute`].
const ATTRIBUTES: [&str; 11] = [
    "left",
    "transpose",
    "low",
    "high",
    "uplo",
    "side",
    "trans_x",
    "diag",
    "mode",
    "compute_left",
    "compute_right",
];

/// A routine with its attributes, for operands of some types: what does not change from call to call.
#[derive(Debug)]
pub struct LapackRoutine {
    name: RoutineName,
    is_complex: bool,
    is_double: bool,
    attributes: [Option<i64>; ATTRIBUTES.len()],
    /// Dimensions of each operand for one matrix; a complex operand is one.
    shapes: Vec<Vec<usize>>,
    /// Elements of each operand and result array for one matrix, and their element types.
    operands: Vec<(usize, DType)>,
    results: Vec<(usize, DType)>,
    batch: usize,
}

impl LapackRoutine {
    /// Checks a call: `config` is as for [`call`], `args` and `types` are those of the operands and results, all with the
    /// same leading batch dimensions.
    ///
    /// # Errors
    /// For an unknown routine, or operands that do not fit.
    pub fn new(config: &str, args: &[&TensorType], types: &[TensorType]) -> Result<LapackRoutine> {
        let (is_complex, rest) = match config.strip_prefix("complex ") {
            Some(rest) => (true, rest),
            None => (false, config),
        };
        let mut words = rest.split(' ').filter(|w| !w.is_empty());
        let word = words.next().unwrap_or("");
        let Some(&(word, name, count, real, complex)) = ROUTINES.iter().find(|(known, ..)| *known == word)
        else {
            return Err(err!(Unsupported, "unknown linear-algebra routine `{word}`"));
        };
        let mut attributes = [None; ATTRIBUTES.len()];
        for (key, value) in words.filter_map(|w| w.split_once('=')) {
            if let Some(i) = ATTRIBUTES.iter().position(|known| *known == key) {
                attributes[i] = value.parse().ok();
            }
        }
        let expected = if is_complex { complex } else { real };
        ensure!(
            types.len() == expected,
            err!(Data, "`{word}` has {expected} result arrays, got {}", types.len())
        );
        let is_double = args.first().is_some_and(|a| a.dtype == DType::F64);
        let call = LapackRoutine {
            name,
            is_complex: is_complex && name != RoutineName::Permutation,
            is_double,
            attributes,
            shapes: Vec::new(),
            operands: Vec::new(),
            results: Vec::new(),
            batch: 1,
        };
        call.with_shapes(word, count, args, types)
    }

    /// Adds the shapes of operands and results, which the computation indexes by.
    fn with_shapes(
        mut self,
        word: &str,
        count: usize,
        args: &[&TensorType],
        types: &[TensorType],
    ) -> Result<LapackRoutine> {
        let shapes: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        let misfit = || err!(Data, "operands of types {shapes:?} do not fit the routine `{word}`");
        let mut rest = args.iter();
        let mut lead = None;
        for i in 0..count {
            let wanted = self.operand_type(i);
            for _ in 0..self.parts(i) {
                let ty = rest.next().ok_or_else(misfit)?;
                let dims = ty.rank().checked_sub(own_dims(self.name, i)).ok_or_else(misfit)?;
                let (front, own) = ty.shape.split_at(dims);
                ensure!(*lead.get_or_insert(front) == front && ty.dtype == wanted, misfit());
                if self.shapes.len() == i {
                    self.shapes.push(own.to_vec());
                }
                ensure!(self.shapes[i] == own, misfit());
                self.operands.push((own.iter().product(), wanted));
            }
        }
        let lead = lead.unwrap_or(&[]);
        self.batch = lead.iter().product();
        for ty in types {
            let own = ty.shape.strip_prefix(lead).ok_or_else(misfit)?;
            self.results.push((own.iter().product(), ty.dtype));
        }
        ensure!(self.fits(), misfit());
        Ok(self)
    }

    /// Arrays of operand i.
    fn parts(&self, i: usize) -> usize {
        if self.is_complex && !(self.name == RoutineName::Geqp3 && i == 1) { 2 } else { 1 }
    }

    /// Element type of operand i.
    fn operand_type(&self, i: usize) -> DType {
        match (self.name, i) {
            (RoutineName::Geqp3, 1) | (RoutineName::Permutation, _) => DType::I32,
            _ if self.is_double => DType::F64,
            _ => DType::F32,
        }
    }

    fn fits(&self) -> bool {
        let (m, n) = if own_dims(self.name, 0) == 1 { (0, 0) } else { self.size(0) };
        match self.name {
            RoutineName::Potrf
            | RoutineName::Syevd
            | RoutineName::Sytrd
            | RoutineName::Geev
            | RoutineName::Gees => m == n,
            RoutineName::Gehrd => {
                let (low, high) = self.range(n);
                m == n && low >= 1 && high <= n && low <= high.max(1)
            }
            RoutineName::Geqp3 => self.length(1) == n,
            RoutineName::Orgqr => m >= n && self.length(1) <= n,
            RoutineName::Ormqr => {
                let (rows, columns) = self.size(2);
                let own = if self.attribute(RoutineAttribute::Left) == Some(1) { rows } else { columns };
                own == m && self.length(1) <= m.min(n)
            }
            RoutineName::Trsm => {
                let (rows, columns) = self.size(1);
                m == n && m == if self.is(RoutineAttribute::Side, 'L') { rows } else { columns }
            }
            RoutineName::Gtsv | RoutineName::GtsvPerturbed => {
                (0..3).all(|i| self.length(i) == self.size(3).0)
            }
            RoutineName::Permutation => {
                self.length(0) <= self.results[0].0 && self.results[0].1 == DType::I32
            }
            RoutineName::Geqrf | RoutineName::Gesdd | RoutineName::Getrf => true,
        }
    }

    /// The routine's name.
    fn word(&self) -> &'static str {
        ROUTINES.iter().find(|(_, name, ..)| *name == self.name).map_or("", |(word, ..)| word)
    }

    /// Number of matrices.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Bytes of each operand array, or of each result array, for one matrix.
    pub fn matrix_bytes(&self) -> [Vec<usize>; 2] {
        let bytes = |all: &[(usize, DType)]| all.iter().map(|(count, dtype)| count * dtype.size()).collect();
        [bytes(&self.operands), bytes(&self.results)]
    }

    /// Computes `count` matrices; the arrays hold as many operands and results.
    ///
    /// # Errors
    /// If operands have values that the routine rejects, or results have other sizes than the routine's.
    pub fn run(&self, count: usize, args: &[&[u8]], results: &mut [&mut [u8]]) -> Result<()> {
        // Some results are not computed.
        results.iter_mut().for_each(|to| to.fill(0));
        match (self.is_complex, self.is_double) {
            _ if self.name == RoutineName::Permutation => self.permutation(args[0], results[0], count),
            (false, false) => LapackCall::<f32>::run(self, args, results, count),
            (false, true) => LapackCall::<f64>::run(self, args, results, count),
            (true, false) => LapackCall::<Complex<f32>>::run(self, args, results, count),
            (true, true) => LapackCall::<Complex<f64>>::run(self, args, results, count),
        }
    }

    /// Rows of L U in terms of those of the matrix: `pivots: i32[…, m]`, from 0, become `i32[…, n]`.
    fn permutation(&self, pivots: &[u8], result: &mut [u8], count: usize) -> Result<()> {
        let (m, n) = (self.length(0), self.results[0].0);
        let (from, to) = (i32::from_bytes(pivots), i32::from_bytes_mut(result));
        for (b, to) in to.chunks_exact_mut(n.max(1)).enumerate().take(count) {
            to.iter_mut().zip(0..).for_each(|(x, i)| *x = i);
            for (i, pivot) in from[b * m..(b + 1) * m].iter().enumerate() {
                // A number that is no row exchanges nothing: arrays of JAX have no errors that depend on values.
                if let Some(pivot) = usize::try_from(*pivot).ok().filter(|p| *p < n) {
                    to.swap(i, pivot);
                }
            }
        }
        Ok(())
    }

    fn attribute(&self, which: RoutineAttribute) -> Option<i64> {
        self.attributes[which as usize]
    }

    /// Whether an attribute is a letter: `N`.
    fn is(&self, which: RoutineAttribute, letter: char) -> bool {
        self.attribute(which) == Some(letter as i64)
    }

    /// The last dimension of an operand.
    fn length(&self, i: usize) -> usize {
        self.shapes[i].last().copied().unwrap_or(0)
    }

    /// Rows and columns of an operand.
    fn size(&self, i: usize) -> (usize, usize) {
        (self.shapes[i][0], self.shapes[i][1])
    }

    fn range(&self, n: usize) -> (usize, usize) {
        let of = |which, or: usize| self.attribute(which).map_or(or, |v| v.max(0) as usize);
        (of(RoutineAttribute::Low, 1), of(RoutineAttribute::High, n))
    }
}

/// Element type of operands.
trait LapackScalar: SchurElement {}

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
struct LapackCall<'c, 'a, T: MatrixScalar> {
    routine: &'c LapackRoutine,
    /// Arrays of type T, without integers.
    args: Vec<ArrayParts<'c, T::Real>>,
    integers: &'c [i32],
    results: &'c mut [&'a mut [u8]],
}

impl<T: MatrixScalar> Deref for LapackCall<'_, '_, T> {
    type Target = LapackRoutine;
    fn deref(&self) -> &LapackRoutine {
        self.routine
    }
}

impl<'c, 'a, T> LapackCall<'c, 'a, T>
where
    T: LapackScalar,
    T::Real: Element,
    Complex<T::Real>: MatrixScalar<Real = T::Real>,
{
    fn run(
        routine: &'c LapackRoutine,
        args: &'c [&'c [u8]],
        results: &'c mut [&'a mut [u8]],
        count: usize,
    ) -> Result<()> {
        let mut rest = args.iter();
        let mut part = || rest.next().copied().unwrap_or(&[]);
        let (mut arrays, mut integers): (Vec<_>, &[i32]) = (Vec::with_capacity(routine.shapes.len()), &[]);
        for i in 0..routine.shapes.len() {
            if routine.operand_type(i) == DType::I32 {
                integers = i32::from_bytes(part());
            } else {
                let re = T::Real::from_bytes(part());
                let im = if T::IS_COMPLEX { Some(T::Real::from_bytes(part())) } else { None };
                arrays.push(ArrayParts { re, im });
            }
        }
        let mut call: LapackCall<'_, '_, T> = LapackCall { routine, args: arrays, integers, results };
        (0..count).try_for_each(|b| call.one(b))
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

    /// The elements of a result array.
    fn result<E: Element>(&mut self, at: usize) -> Result<&mut [E]> {
        let dtype = self.routine.results[at].1;
        ensure!(
            dtype == E::DTYPE,
            err!(
                Data,
                "result {at} of `{}` has elements of type {dtype}, expected {}",
                self.word(),
                E::DTYPE
            )
        );
        Ok(E::from_bytes_mut(self.results[at]))
    }

    /// Writes matrix b of a result that starts with array `at`; returns the next result's array.
    fn put<U: MatrixScalar<Real = T::Real>>(&mut self, at: usize, b: usize, m: &Matrix<U>) -> Result<usize> {
        let parts = if U::IS_COMPLEX { 2 } else { 1 };
        for part in 0..parts {
            let to: &mut [T::Real] = self.result(at + part)?;
            let size = m.rows * m.columns;
            let Some(to) = to.get_mut(b * size..(b + 1) * size) else {
                return Err(err!(
                    Data,
                    "a result of `{}` has another shape than {} by {}",
                    self.word(),
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
            let to: &mut [T::Real] = self.result(at + part)?;
            let Some(to) = to.get_mut(b * size..(b + 1) * size) else {
                return Err(err!(Data, "a result of `{}` has another size than {size}", self.word()));
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
        let to: &mut [i32] = self.result(at)?;
        match to.get_mut(b * x.len()..(b + 1) * x.len()) {
            Some(to) => to.copy_from_slice(x),
            None => {
                return Err(err!(Data, "a result of `{}` has another length than {}", self.word(), x.len()));
            }
        }
        Ok(at + 1)
    }

    /// Computes one of the matrices.
    fn one(&mut self, b: usize) -> Result<()> {
        match self.name {
            RoutineName::Geqrf => {
                let mut a = self.matrix(0, b);
                let taus = geqrf(&mut a);
                let at = self.put(0, b, &a)?;
                self.put_vector(at, b, taus)?;
            }
            RoutineName::Geqp3 => {
                let mut a = self.matrix(0, b);
                let n = a.columns;
                let mut order = self.integers[b * n..(b + 1) * n].to_vec();
                let taus = geqp3(&mut a, &mut order);
                let at = self.put(0, b, &a)?;
                let at = self.put_integers(at, b, &order)?;
                self.put_vector(at, b, taus)?;
            }
            RoutineName::Orgqr => {
                let mut a = self.matrix(0, b);
                orgqr(&mut a, &self.vector(1, b));
                self.put(0, b, &a)?;
            }
            RoutineName::Ormqr => {
                let mut c = self.matrix(2, b);
                let side = (
                    self.attribute(RoutineAttribute::Left) == Some(1),
                    self.attribute(RoutineAttribute::Transpose) == Some(1),
                );
                apply_q(&self.matrix(0, b), &self.vector(1, b), side, &mut c, false);
                self.put(0, b, &c)?;
            }
            RoutineName::Getrf => {
                let mut a = self.matrix(0, b);
                let (pivots, info) = getrf(&mut a);
                let at = self.put(0, b, &a)?;
                let at = self.put_integers(at, b, &pivots)?;
                self.put_integers(at, b, &[info])?;
            }
            RoutineName::Potrf => self.cholesky(b)?,
            RoutineName::Trsm => self.triangular(b)?,
            RoutineName::Gtsv | RoutineName::GtsvPerturbed => self.tridiagonal_solve(b)?,
            RoutineName::Syevd => self.hermitian(b)?,
            RoutineName::Sytrd => self.tridiagonal(b)?,
            RoutineName::Gesdd => self.singular(b)?,
            RoutineName::Gehrd => {
                let mut a = self.matrix(0, b);
                let (low, high) = self.range(a.rows);
                let taus = gehrd(&mut a, low, high);
                let at = self.put(0, b, &a)?;
                let at = self.put_vector(at, b, taus)?;
                self.put_integers(at, b, &[0])?;
            }
            RoutineName::Gees => self.schur(b)?,
            RoutineName::Geev => self.eigen(b)?,
            RoutineName::Permutation => {}
        }
        Ok(())
    }

    fn cholesky(&mut self, b: usize) -> Result<()> {
        let a = self.matrix(0, b);
        let lower = !self.is(RoutineAttribute::Uplo, 'U');
        let mut l = if lower { a } else { a.adjoint() };
        let info = potrf(&mut l);
        let out = if lower { l } else { l.adjoint() };
        let at = self.put(0, b, &out)?;
        self.put_integers(at, b, &[info])?;
        Ok(())
    }

    fn triangular(&mut self, b: usize) -> Result<()> {
        let (left, lower) = (self.is(RoutineAttribute::Side, 'L'), self.is(RoutineAttribute::Uplo, 'L'));
        let (transpose, conjugate) =
            (!self.is(RoutineAttribute::TransX, 'N'), self.is(RoutineAttribute::TransX, 'C'));
        // Row-major arrays are transposed matrices: op(A) X = B is Xᵀ Lᵀ = Bᵀ with L = op(A), and X op(A) = B has L = op(A)ᵀ.
        let is_own = left != transpose;
        let mut l = if is_own { self.matrix(0, b) } else { self.turned(0, b) };
        if conjugate && T::IS_COMPLEX {
            l.data.iter_mut().for_each(|x| *x = x.conj());
        }
        let mut x = if left { self.turned(1, b) } else { self.matrix(1, b) };
        trsm(&mut l, lower == is_own, self.is(RoutineAttribute::Diag, 'U'), &mut x);
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
        if self.name == RoutineName::GtsvPerturbed {
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
        if self.is(RoutineAttribute::Uplo, 'U') { a.adjoint() } else { a }
    }

    fn hermitian(&mut self, b: usize) -> Result<()> {
        let mut a = self.lower(b);
        let (values, converged) = eigh(&mut a, !self.is(RoutineAttribute::Mode, 'N'));
        let at = self.put(0, b, &a)?;
        let at = self.put_vector(at, b, values)?;
        self.put_integers(at, b, &[i32::from(!converged)])?;
        Ok(())
    }

    fn tridiagonal(&mut self, b: usize) -> Result<()> {
        // The upper triangle is the lower one of the matrix with rows and columns backwards.
        let backwards = self.is(RoutineAttribute::Uplo, 'U');
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
        let vectors = if self.is(RoutineAttribute::Mode, 'N') {
            None
        } else {
            Some(self.is(RoutineAttribute::Mode, 'A'))
        };
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
        for (name, left) in [(RoutineAttribute::ComputeLeft, true), (RoutineAttribute::ComputeRight, false)] {
            if form.converged && !self.is(name, 'N') {
                self.put(at, b, &eigenvectors(&form, left))?;
            }
            at += 2;
        }
        self.put_integers(at, b, &[i32::from(!form.converged)])?;
        Ok(())
    }
}
