//! `+ - * /` and negation on [`HostArray`]: the element type of the array stays, arrays broadcast as in NumPy.
//!
//! Scalars are weak: they take the array's element type, or are an error where they do not fit it.

use crate::HostArray;
use crate::array::{bad, native, zeros};
use std::ops::{Add, Div, Mul, Neg, Sub};
use systole_base::{DType, Error, ErrorKind, Literal, Result, Scalar, Shape, bf16, f16};

/// The right-hand side of an operator: a number or an array.
#[derive(Clone, Debug)]
pub enum Operand {
    /// A number; takes the element type of the other side.
    Scalar(f64),
    /// An array of the other side's element type.
    Array(HostArray),
}

impl From<f64> for Operand {
    fn from(x: f64) -> Operand {
        Operand::Scalar(x)
    }
}
impl From<f32> for Operand {
    fn from(x: f32) -> Operand {
        Operand::Scalar(x.into())
    }
}
impl From<i32> for Operand {
    fn from(x: i32) -> Operand {
        Operand::Scalar(x.into())
    }
}
impl From<HostArray> for Operand {
    fn from(x: HostArray) -> Operand {
        Operand::Array(x)
    }
}
impl From<&HostArray> for Operand {
    fn from(x: &HostArray) -> Operand {
        Operand::Array(x.clone())
    }
}
impl From<Literal> for Operand {
    fn from(x: Literal) -> Operand {
        Operand::Array(x.into())
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Op {
    Add,
    Sub,
    Mul,
    Div,
}

// Generic over the right side, so that the result's type is known before a float literal's is.
impl<T: Into<Operand>> Add<T> for HostArray {
    type Output = HostArray;
    #[track_caller]
    fn add(self, rhs: T) -> HostArray {
        apply(self, Op::Add, rhs.into())
    }
}
impl<T: Into<Operand>> Sub<T> for HostArray {
    type Output = HostArray;
    #[track_caller]
    fn sub(self, rhs: T) -> HostArray {
        apply(self, Op::Sub, rhs.into())
    }
}
impl<T: Into<Operand>> Mul<T> for HostArray {
    type Output = HostArray;
    #[track_caller]
    fn mul(self, rhs: T) -> HostArray {
        apply(self, Op::Mul, rhs.into())
    }
}
impl<T: Into<Operand>> Div<T> for HostArray {
    type Output = HostArray;
    #[track_caller]
    fn div(self, rhs: T) -> HostArray {
        apply(self, Op::Div, rhs.into())
    }
}
impl Neg for HostArray {
    type Output = HostArray;
    #[track_caller]
    fn neg(self) -> HostArray {
        self * -1.0
    }
}

#[track_caller]
fn apply(x: HostArray, op: Op, rhs: Operand) -> HostArray {
    x.then(|x| match rhs {
        Operand::Scalar(s) => with_scalar(x, op, s),
        Operand::Array(y) => with_array(x, op, y.into_literal()?),
    })
}

fn check_dtype(dtype: DType, op: Op) -> Result<()> {
    if dtype == DType::Bool || (op == Op::Div && dtype.is_int()) {
        return Err(Error::new(ErrorKind::Data, format!("{op:?} is not defined for {dtype} arrays"))
            .hint("cast first, for example .cast(DType::F32)"));
    }
    Ok(())
}

fn with_scalar(mut x: Literal, op: Op, s: f64) -> Result<Literal> {
    let dtype = x.dtype();
    check_dtype(dtype, op)?;
    // Negation of a signed array multiplies by -1; for unsigned ones that is as wrong as 0.5 is.
    if dtype.is_int() && Scalar::of(dtype, s).as_f64() != s {
        return Err(Error::new(ErrorKind::Data, format!("{op:?} of a {dtype} array and {s}"))
            .because(format!("{s} is not a value of {dtype}"))
            .hint("cast first, for example .cast(DType::F32)"));
    }
    match dtype {
        DType::F16 => {
            let s = f16::from_f64(s).to_f32();
            x.as_mut_slice::<f16>()?.iter_mut().for_each(|v| *v = f16::from_f32(float(op, v.to_f32(), s)));
        }
        DType::BF16 => {
            let s = bf16::from_f64(s).to_f32();
            x.as_mut_slice::<bf16>()?.iter_mut().for_each(|v| *v = bf16::from_f32(float(op, v.to_f32(), s)));
        }
        _ => native!(dtype, T => {
            let s = s as T;
            let xs = x.as_mut_slice::<T>()?;
            match op {
                Op::Add => xs.iter_mut().for_each(|v| *v = v.plus(s)),
                Op::Sub => xs.iter_mut().for_each(|v| *v = v.minus(s)),
                Op::Mul => xs.iter_mut().for_each(|v| *v = v.times(s)),
                Op::Div => xs.iter_mut().for_each(|v| *v = v.over(s)),
            }
        }, ()),
    }
    Ok(x)
}

fn with_array(x: Literal, op: Op, y: Literal) -> Result<Literal> {
    check_dtype(x.dtype(), op)?;
    if x.dtype() != y.dtype() {
        return Err(bad(format!("{op:?} of {} and {}", x.ty(), y.ty()), "the element types differ")
            .hint("cast one of them"));
    }
    let shape = broadcast_shape(x.shape(), y.shape())
        .ok_or_else(|| bad(format!("{op:?} of {} and {}", x.ty(), y.ty()), "the shapes do not broadcast"))?;
    let (mut x, y) = (broadcast_to(x, &shape)?, broadcast_to(y, &shape)?);
    match x.dtype() {
        DType::F16 => {
            for (v, w) in x.as_mut_slice::<f16>()?.iter_mut().zip(y.as_slice::<f16>()?) {
                *v = f16::from_f32(float(op, v.to_f32(), w.to_f32()));
            }
        }
        DType::BF16 => {
            for (v, w) in x.as_mut_slice::<bf16>()?.iter_mut().zip(y.as_slice::<bf16>()?) {
                *v = bf16::from_f32(float(op, v.to_f32(), w.to_f32()));
            }
        }
        dtype => native!(dtype, T => {
            let pairs = x.as_mut_slice::<T>()?.iter_mut().zip(y.as_slice::<T>()?);
            match op {
                Op::Add => pairs.for_each(|(v, &w)| *v = v.plus(w)),
                Op::Sub => pairs.for_each(|(v, &w)| *v = v.minus(w)),
                Op::Mul => pairs.for_each(|(v, &w)| *v = v.times(w)),
                Op::Div => pairs.for_each(|(v, &w)| *v = v.over(w)),
            }
        }, ()),
    }
    Ok(x)
}

/// f16 and bf16 compute in f32 and round: f32 has more than twice their digits, so the result is rounded once.
fn float(op: Op, a: f32, b: f32) -> f32 {
    match op {
        Op::Add => a + b,
        Op::Sub => a - b,
        Op::Mul => a * b,
        Op::Div => a / b,
    }
}

/// Arithmetic that wraps on integers, as the graph's does.
trait Num: Copy {
    fn plus(self, o: Self) -> Self;
    fn minus(self, o: Self) -> Self;
    fn times(self, o: Self) -> Self;
    fn over(self, o: Self) -> Self;
}
macro_rules! integers {
    ($($t:ty),*) => {$(impl Num for $t {
        fn plus(self, o: $t) -> $t { self.wrapping_add(o) }
        fn minus(self, o: $t) -> $t { self.wrapping_sub(o) }
        fn times(self, o: $t) -> $t { self.wrapping_mul(o) }
        // Unreachable: `check_dtype` refuses integer division.
        fn over(self, o: $t) -> $t { self.checked_div(o).unwrap_or(0) }
    })*};
}
macro_rules! floats {
    ($($t:ty),*) => {$(impl Num for $t {
        fn plus(self, o: $t) -> $t { self + o }
        fn minus(self, o: $t) -> $t { self - o }
        fn times(self, o: $t) -> $t { self * o }
        fn over(self, o: $t) -> $t { self / o }
    })*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats!(f32, f64);

fn broadcast_shape(a: &Shape, b: &Shape) -> Option<Shape> {
    let rank = a.rank().max(b.rank());
    let size = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (m, n) if m == n || n == 1 => Some(m),
            (1, n) => Some(n),
            _ => None,
        })
        .collect::<Option<Vec<usize>>>()
        .map(Shape::from)
}

/// `x` repeated to `shape`, which must be what it broadcasts to.
fn broadcast_to(x: Literal, shape: &Shape) -> Result<Literal> {
    if x.shape() == shape {
        return Ok(x);
    }
    let size = x.dtype().size();
    let mut out = zeros(x.ty().with_shape(shape))?;
    let strides = x.shape().strides();
    let offset = shape.rank() - x.ty().rank();
    let from = x.bytes();
    for (index, to) in shape.indices().zip(out.bytes_mut().chunks_exact_mut(size)) {
        let at: usize = (0..strides.len())
            .map(|j| if x.shape()[j] == 1 { 0 } else { index[offset + j] * strides[j] })
            .sum();
        to.copy_from_slice(&from[at * size..][..size]);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array<T: systole_base::Element>(shape: &[usize], data: &[T]) -> HostArray {
        Literal::from_slice(shape, data).unwrap().into()
    }

    fn values(x: HostArray) -> Vec<f64> {
        x.into_literal().unwrap().to_f64s()
    }

    #[test]
    fn scalars_take_the_array_type() {
        let x = || array(&[3], &[1f32, 2., 4.]);
        assert_eq!(values(x() + 1.0), [2., 3., 5.]);
        assert_eq!(values(x() - 1.0f32), [0., 1., 3.]);
        assert_eq!(values(x() * 2), [2., 4., 8.]);
        assert_eq!(values(x() / 2.0), [0.5, 1., 2.]);
        assert_eq!(values(-x()), [-1., -2., -4.]);
        // 0.1 is rounded to the array's type before the addition.
        assert_eq!(values(array(&[1], &[1f32]) + 0.1), [(1f32 + 0.1f32) as f64]);
        assert_eq!(values(array(&[2], &[250u8, 1]) + 10), [4., 11.]);
        for dtype in [DType::F16, DType::BF16, DType::F64] {
            assert_eq!(values(x().cast(dtype) / 4.0), [0.25, 0.5, 1.], "{dtype}");
        }
    }

    #[test]
    fn misfits_are_errors_that_say_what_to_do() {
        let u = || array(&[2], &[1u8, 2]);
        for wrong in [u() / 255.0, u() * 0.5, u() + 256, u() - -1, -u(), u() + array(&[2], &[1f32, 2.])] {
            assert!(wrong.get().unwrap_err().to_string().contains("cast"), "{wrong:?}");
        }
        assert!((array(&[2], &[1f32, 2.]) + array(&[3], &[1f32, 2., 3.])).get().is_err());
        assert!((array(&[2], &[1f32, 2.]) + (u() / 2.0)).get().unwrap_err().to_string().contains("Div"));
        assert!((u().cast(DType::Bool) + 1.0).get().is_err());
    }

    #[test]
    fn arrays_broadcast_both_ways() {
        let x = || array(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]);
        assert_eq!(values(x() - array(&[3], &[1f32, 2., 3.])), [0., 0., 0., 3., 3., 3.]);
        assert_eq!(values(x() * array(&[2, 1], &[1f32, 10.])), [1., 2., 3., 40., 50., 60.]);
        assert_eq!(values(array(&[2, 1], &[1i32, 2]) + array(&[1, 2], &[10i32, 20])), [11., 21., 12., 22.]);
        assert_eq!(values(array(&[2], &[6f32, 8.]).normalize(2.0, array(&[2], &[2f32, 3.]))), [2., 2.]);
        let empty = array::<f32>(&[0, 3], &[]) + array(&[3], &[1f32, 2., 3.]);
        assert_eq!(empty.ty().unwrap().to_string(), "f32[0, 3]");
    }
}
