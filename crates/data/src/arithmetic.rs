//! Operators `+ - * /` and negation on [`HostArray`], with NumPy's broadcasting.
//!
//! The result has the array's element type. Scalars are weak: they are converted to the array's element type; a value
//! it cannot represent is an error.

use crate::HostArray;
use crate::host_array::{bad, native, zeros};
use std::ops::{Add, Div, Mul, Neg, Sub};
use systole_base::{DType, Literal, Result, Scalar, Shape, bf16, err, f16};

/// Right-hand side of an operator: a number or an array.
#[derive(Clone, Debug)]
pub enum ArrayOperand {
    /// Number, converted to the other side's element type.
    Scalar(f64),
    /// Array with the other side's element type.
    Array(HostArray),
}

macro_rules! operands {
    ($($variant:ident($t:ty) from $make:expr;)*) => {$(
        impl From<$t> for ArrayOperand {
            fn from(x: $t) -> ArrayOperand {
                ArrayOperand::$variant($make(x))
            }
        }
    )*};
}
operands! {
    Scalar(f64) from f64::from;
    Scalar(f32) from f64::from;
    Scalar(i32) from f64::from;
    Array(HostArray) from HostArray::from;
    Array(&HostArray) from HostArray::clone;
    Array(Literal) from HostArray::from;
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum ArithmeticOp {
    Add,
    Sub,
    Mul,
    Div,
}

// Generic over the right side, so that the result's type is known before that of a float literal.
macro_rules! operators {
    ($($op:ident $method:ident),*) => {$(
        impl<T: Into<ArrayOperand>> $op<T> for HostArray {
            type Output = HostArray;
            #[track_caller]
            fn $method(self, rhs: T) -> HostArray {
                apply(self, ArithmeticOp::$op, rhs.into())
            }
        }
    )*};
}
operators!(Add add, Sub sub, Mul mul, Div div);

impl Neg for HostArray {
    type Output = HostArray;
    #[track_caller]
    fn neg(self) -> HostArray {
        self * -1.0
    }
}

impl HostArray {
    /// Normalizes: `(x - mean) / std`, each a number or an array that broadcasts (one value per channel).
    #[track_caller]
    pub fn normalize(self, mean: impl Into<ArrayOperand>, std: impl Into<ArrayOperand>) -> HostArray {
        (self - mean) / std
    }
}

#[track_caller]
fn apply(x: HostArray, op: ArithmeticOp, rhs: ArrayOperand) -> HostArray {
    x.then(|x| match rhs {
        ArrayOperand::Scalar(s) => with_scalar(x, op, s),
        ArrayOperand::Array(y) => with_array(x, op, y.into_literal()?),
    })
}

fn check_dtype(dtype: DType, op: ArithmeticOp) -> Result<()> {
    if dtype == DType::Bool || (op == ArithmeticOp::Div && dtype.is_int()) {
        return Err(err!(Data, "{op:?} is not defined for {dtype} arrays")
            .hint("cast first, for example .cast(DType::F32)"));
    }
    Ok(())
}

/// Runs `$body` with `$T` as the Rust type of a numeric type.
macro_rules! numbers {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F16 => {
                type $T = f16;
                $body
            }
            DType::BF16 => {
                type $T = bf16;
                $body
            }
            dtype => native!(dtype, $T => $body, ()),
        }
    };
}

fn with_scalar(mut x: Literal, op: ArithmeticOp, s: f64) -> Result<Literal> {
    let dtype = x.dtype();
    check_dtype(dtype, op)?;
    // Negation of a signed array multiplies by -1; for unsigned arrays that is an error, like multiplying by 0.5.
    if dtype.is_int() && Scalar::of(dtype, s).as_f64() != s {
        return Err(err!(Data, "invalid operands for {op:?}: a {dtype} array and {s}")
            .because(format!("the element type {dtype} cannot represent {s}"))
            .hint("cast first, for example .cast(DType::F32)"));
    }
    numbers!(dtype, T => {
        let s = <T as WrappingArithmetic>::of(s);
        combine(op, x.as_mut_slice::<T>()?.iter_mut().map(|v| (v, s)));
    });
    Ok(x)
}

fn with_array(x: Literal, op: ArithmeticOp, y: Literal) -> Result<Literal> {
    check_dtype(x.dtype(), op)?;
    let wrong = |why| bad(format!("invalid operands for {op:?}: {} and {}", x.ty(), y.ty()), why);
    if x.dtype() != y.dtype() {
        return Err(
            wrong("the element types differ").hint("cast one operand to the element type of the other")
        );
    }
    let shape = broadcast_shape(x.shape(), y.shape());
    let shape = shape.ok_or_else(|| wrong("the shapes do not broadcast"))?;
    let (mut x, y) = (broadcast_to(x, &shape)?, broadcast_to(y, &shape)?);
    numbers!(x.dtype(), T => {
        combine(op, x.as_mut_slice::<T>()?.iter_mut().zip(y.as_slice::<T>()?.iter().copied()));
    });
    Ok(x)
}

/// Computes `*a = a op b` for all pairs, with one loop per operator.
fn combine<'a, T: WrappingArithmetic + 'a>(op: ArithmeticOp, pairs: impl Iterator<Item = (&'a mut T, T)>) {
    match op {
        ArithmeticOp::Add => pairs.for_each(|(a, b)| *a = a.plus(b)),
        ArithmeticOp::Sub => pairs.for_each(|(a, b)| *a = a.minus(b)),
        ArithmeticOp::Mul => pairs.for_each(|(a, b)| *a = a.times(b)),
        ArithmeticOp::Div => pairs.for_each(|(a, b)| *a = a.over(b)),
    }
}

/// Arithmetic that wraps on integers, like the compiled graph.
trait WrappingArithmetic: Copy {
    /// Converts a number to the nearest value; truncates toward 0 for integers.
    fn of(x: f64) -> Self;
    fn plus(self, o: Self) -> Self;
    fn minus(self, o: Self) -> Self;
    fn times(self, o: Self) -> Self;
    fn over(self, o: Self) -> Self;
}
macro_rules! integers {
    ($($t:ty),*) => {$(impl WrappingArithmetic for $t {
        fn of(x: f64) -> $t { x as $t }
        fn plus(self, o: $t) -> $t { self.wrapping_add(o) }
        fn minus(self, o: $t) -> $t { self.wrapping_sub(o) }
        fn times(self, o: $t) -> $t { self.wrapping_mul(o) }
        // Unreachable: `check_dtype` rejects integer division.
        fn over(self, o: $t) -> $t { self.checked_div(o).unwrap_or(0) }
    })*};
}
/// f16 and bf16 compute in f32 and round: f32 has more than twice their digits, so the result is correctly rounded.
macro_rules! floats {
    ($($t:ty: $of:expr, $wide:expr, $round:expr;)*) => {$(impl WrappingArithmetic for $t {
        fn of(x: f64) -> $t { $of(x) }
        fn plus(self, o: $t) -> $t { $round($wide(self) + $wide(o)) }
        fn minus(self, o: $t) -> $t { $round($wide(self) - $wide(o)) }
        fn times(self, o: $t) -> $t { $round($wide(self) * $wide(o)) }
        fn over(self, o: $t) -> $t { $round($wide(self) / $wide(o)) }
    })*};
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);
floats! {
    f16: f16::from_f64, f16::to_f32, f16::from_f32;
    bf16: bf16::from_f64, bf16::to_f32, bf16::from_f32;
    f32: |x| x as f32, f32::from, f32::from;
    f64: f64::from, f64::from, f64::from;
}

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

/// Broadcasts `x` to `shape`, which must be compatible.
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
