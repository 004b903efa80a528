//! Eager host arrays for map functions: cast, reshape, one-hot, arithmetic.
//!
//! Not graph tensors: nothing is traced or differentiated. An array carries the first error of its operations (no
//! `Result` at every step); the error surfaces, with its source line, when the element is pulled from the pipeline.

use crate::rescale::Rescale;
use std::panic::Location;
use std::sync::OnceLock;
use systole_base::{
    DType, Element, Error, ErrorKind, Literal, Result, Shape, TensorType, bf16, conversions, f16, user_line,
};

/// Host array, or the error of the first operation on it that failed.
///
/// Operators take scalars and arrays (with NumPy's broadcasting) and keep the array's element type; a scalar is first
/// rounded to it. Integers cannot be divided or mixed with fractions: cast first.
///
/// ```
/// use systole_base::{DType, Literal};
/// use systole_data::HostArray;
/// let x = HostArray::from(Literal::from_slice([2, 2], &[0u8, 51, 102, 255])?);
/// let y = (x.cast(DType::F32) / 255.0).flatten();
/// assert_eq!(y.get()?.as_slice::<f32>()?, [0.0, 0.2, 0.4, 1.0]);
///
/// let wrong = y.reshape([3, 3]) + 1.0;
/// assert!(wrong.get().unwrap_err().to_string().contains("cannot reshape"));
/// # Ok::<(), systole_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostArray {
    stored: Result<Literal>,
    /// Set by [`HostArray::rescale`]: the array is computed from the stored one when it is read.
    rescaled: Option<Box<RescaledArray>>,
}

#[derive(Clone, Debug)]
struct RescaledArray {
    rescale: Rescale,
    ty: TensorType,
    values: OnceLock<Literal>,
}

impl HostArray {
    /// Creates an array that carries an error instead of data.
    pub fn poisoned(error: Error) -> HostArray {
        Err(error).into()
    }

    /// Creates a rank-0 array; `value` is converted to `dtype`.
    pub fn scalar(dtype: DType, value: f64) -> HostArray {
        Literal::scalar(dtype, value).into()
    }

    /// Returns the array, or the first error.
    pub fn get(&self) -> Result<&Literal> {
        let stored = self.stored.as_ref().map_err(Clone::clone)?;
        Ok(self.rescaled.as_ref().map_or(stored, |r| r.values.get_or_init(|| r.rescale.apply(stored))))
    }

    /// Returns the array by value, or the first error.
    pub fn into_literal(self) -> Result<Literal> {
        let stored = self.stored?;
        Ok(match self.rescaled {
            Some(r) => r.values.into_inner().unwrap_or_else(|| r.rescale.apply(&stored)),
            None => stored,
        })
    }

    /// Returns element type and shape, or the first error.
    pub fn ty(&self) -> Result<&TensorType> {
        match &self.rescaled {
            Some(r) => Ok(&r.ty),
            None => self.get().map(Literal::ty),
        }
    }

    /// Applies `f` to the array's data unless the array carries an error.
    #[track_caller]
    pub fn then(self, f: impl FnOnce(Literal) -> Result<Literal>) -> HostArray {
        let caller = Location::caller();
        self.into_literal().and_then(|x| f(x).map_err(|e| at_user_line(e, caller))).into()
    }

    /// Converts pixels to inputs of a model: `x: T[…] → f32[…]`, times `scale`; divides for a scale of 1/n.
    ///
    /// Integers are converted when the array is read. Training and evaluation read them as they are, and convert them on
    /// the device: a batch of bytes is a quarter of the size.
    ///
    /// ```
    /// use systole_base::Literal;
    /// use systole_data::HostArray;
    /// let x = HostArray::from(Literal::from_slice([3], &[0u8, 51, 255])?).rescale(1.0 / 255.0);
    /// assert_eq!(x.ty()?.to_string(), "f32[3]");
    /// assert_eq!(x.get()?.as_slice::<f32>()?, [0.0, 0.2, 1.0]);
    /// # Ok::<(), systole_base::Error>(())
    /// ```
    pub fn rescale(self, scale: f64) -> HostArray {
        let rescale = Rescale::by(scale);
        match self.into_literal() {
            Ok(x) if x.dtype().is_int() => {
                let ty = TensorType::new(DType::F32, x.shape().clone());
                let rescaled = RescaledArray { rescale, ty, values: OnceLock::new() };
                HostArray { stored: Ok(x), rescaled: Some(Box::new(rescaled)) }
            }
            Ok(x) => rescale.apply(&x).into(),
            failed => failed.into(),
        }
    }

    /// Returns the integers of an array by [`HostArray::rescale`], and how they become its numbers.
    pub fn before_rescale(&self) -> Option<(&Literal, Rescale)> {
        Some((self.stored.as_ref().ok()?, self.rescaled.as_ref()?.rescale))
    }

    /// Casts `x: T[…] → U[…]`: float to integer truncates toward zero and saturates, integers wrap, bool is `!= 0`.
    #[track_caller]
    pub fn cast(self, dtype: DType) -> HostArray {
        self.then(|x| Ok(cast(&x, dtype)))
    }

    /// Reshapes: same elements in row-major order, new shape.
    #[track_caller]
    pub fn reshape(self, shape: impl Into<Shape>) -> HostArray {
        self.then(|x| x.reshape(shape))
    }

    /// Flattens `x: T[a, b, …] → T[a·b·…]`.
    #[track_caller]
    pub fn flatten(self) -> HostArray {
        self.then(|x| x.reshape([x.ty().elements()]))
    }

    /// Inserts a dimension of size 1 at `axis`; negative axes count from the end (-1: a new last dimension).
    #[track_caller]
    pub fn expand_dims(self, axis: isize) -> HostArray {
        self.then(|x| {
            let at = resolve_axis(axis, x.ty().rank() + 1, x.ty())?;
            let mut dims = x.shape().dims().to_vec();
            dims.insert(at, 1);
            x.reshape(dims)
        })
    }

    /// Removes the dimension of size 1 at `axis`; negative axes count from the end.
    #[track_caller]
    pub fn squeeze(self, axis: isize) -> HostArray {
        self.then(|x| {
            let at = resolve_axis(axis, x.ty().rank(), x.ty())?;
            let mut dims = x.shape().dims().to_vec();
            if dims.remove(at) != 1 {
                return Err(bad(
                    format!("cannot squeeze axis {axis} of {}", x.ty()),
                    "the size of the axis is not 1",
                ));
            }
            x.reshape(dims)
        })
    }

    /// One-hot encodes `x: integer[…] → f32[…, depth]`; out-of-range values yield all zeros, as in TensorFlow.
    #[track_caller]
    pub fn one_hot(self, depth: usize) -> HostArray {
        self.then(|x| {
            if !x.dtype().is_int() {
                return Err(bad(format!("one_hot does not support {}", x.ty()), "it requires integers"));
            }
            let mut dims = x.shape().dims().to_vec();
            dims.push(depth);
            let mut out = zeros(TensorType::new(DType::F32, dims))?;
            let row = out.as_mut_slice::<f32>()?;
            for (i, value) in (0..x.ty().elements()).map(|i| x.get(i).as_i64()).enumerate() {
                if let Some(k) = usize::try_from(value).ok().filter(|&k| k < depth) {
                    row[i * depth + k] = 1.0;
                }
            }
            Ok(out)
        })
    }
}

conversions! {
    Literal => HostArray: |x| Ok(x).into();
    &Literal => HostArray: |x| x.clone().into();
    Result<Literal> => HostArray: |x| HostArray { stored: x, rescaled: None };
}

/// Adds the caller's source line to an error.
pub(crate) fn at_user_line(error: Error, caller: &Location<'_>) -> Error {
    user_line(caller).into_iter().fold(error, Error::at)
}

/// Returns an error about an operation's argument.
pub(crate) fn bad(what: impl Into<String>, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Data, what).because(why)
}

/// Returns zeros of a type whose size was computed from input; overflow is an error.
pub(crate) fn zeros(ty: TensorType) -> Result<Literal> {
    sized(ty).map(Literal::zeros)
}

/// Like [`zeros`], for an array that is completely overwritten.
pub(crate) fn unfilled(ty: TensorType) -> Result<Literal> {
    sized(ty).map(Literal::unfilled)
}

fn sized(ty: TensorType) -> Result<TensorType> {
    match ty.shape.checked_elements().and_then(|n| n.checked_mul(ty.dtype.size())) {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(ty),
        _ => Err(bad(format!("an array of type {ty} is too large"), "its size overflows")),
    }
}

fn resolve_axis(axis: isize, rank: usize, ty: &TensorType) -> Result<usize> {
    let at = if axis < 0 { axis + rank as isize } else { axis };
    if (0..rank as isize).contains(&at) {
        return Ok(at as usize);
    }
    Err(bad(
        format!("axis {axis} is out of range for {ty}"),
        format!("choose an axis from -{rank} to {}", rank as isize - 1),
    ))
}

/// Runs `$body` with `$T` as the Rust type of a type with native arithmetic; `$other` for bool, f16, bf16.
macro_rules! native {
    ($dtype:expr, $T:ident => $body:expr, $other:expr) => {{
        use systole_base::DType::*;
        macro_rules! with {
            ($t:ty) => {{
                type $T = $t;
                $body
            }};
        }
        match $dtype {
            I8 => with!(i8),
            I16 => with!(i16),
            I32 => with!(i32),
            I64 => with!(i64),
            U8 => with!(u8),
            U16 => with!(u16),
            U32 => with!(u32),
            U64 => with!(u64),
            F32 => with!(f32),
            F64 => with!(f64),
            _ => $other,
        }
    }};
}
pub(crate) use native;

/// Rust's `as` equals StableHLO's convert for native types, so typed loops replace the element-wise conversion there.
pub(crate) fn cast(x: &Literal, to: DType) -> Literal {
    fn each<S: Element, D: Element>(x: &Literal, f: impl Fn(S) -> D) -> Result<Literal> {
        let mut out = Literal::unfilled(x.ty().with_dtype(D::DTYPE));
        for (d, &s) in out.as_mut_slice::<D>()?.iter_mut().zip(x.as_slice::<S>()?) {
            *d = f(s);
        }
        Ok(out)
    }
    let done = match (x.dtype(), to) {
        (a, b) if a == b => return x.clone(),
        (DType::F32, DType::BF16) => each(x, bf16::from_f32),
        (DType::F32, DType::F16) => each(x, f16::from_f32),
        (DType::BF16, DType::F32) => each(x, bf16::to_f32),
        (DType::F16, DType::F32) => each(x, f16::to_f32),
        _ => {
            native!(x.dtype(), S => native!(to, D => each(x, |s: S| s as D), Ok(x.convert(to))), Ok(x.convert(to)))
        }
    };
    done.unwrap_or_else(|_| x.convert(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cast_agrees_with_convert_for_every_pair() {
        let values = [0.0, 1.0, -1.0, 2.5, -2.5, 127.5, 255.9, 300.0, -129.0, 7e4, 5e9, -5e9, 1e20, f64::NAN];
        for from in DType::ALL {
            let x = Literal::from_slice([values.len()], &values).unwrap().convert(from);
            for to in DType::ALL {
                assert_eq!(
                    cast(&x, to).to_f64s().map_nan(),
                    x.convert(to).to_f64s().map_nan(),
                    "{from} to {to}"
                );
            }
        }
    }

    trait MapNan {
        fn map_nan(self) -> Vec<Option<f64>>;
    }
    impl MapNan for Vec<f64> {
        fn map_nan(self) -> Vec<Option<f64>> {
            self.into_iter().map(|v| (!v.is_nan()).then_some(v)).collect()
        }
    }

    #[test]
    fn shapes() {
        let x = || HostArray::from(Literal::from_slice([2, 3], &[1u8, 2, 3, 4, 5, 6]).unwrap());
        assert_eq!(x().expand_dims(-1).ty().unwrap().to_string(), "ui8[2, 3, 1]");
        assert_eq!(x().expand_dims(0).squeeze(0).ty().unwrap().to_string(), "ui8[2, 3]");
        assert_eq!(x().flatten().ty().unwrap().to_string(), "ui8[6]");
        assert!(x().expand_dims(3).get().unwrap_err().to_string().contains("axis 3"));
        assert!(x().expand_dims(-4).get().is_err());
        assert!(x().squeeze(1).get().unwrap_err().to_string().contains("not 1"));
        assert!(HostArray::scalar(DType::F32, 1.0).squeeze(0).get().is_err());
    }

    #[test]
    fn one_hot_leaves_unknown_classes_empty() {
        let x = HostArray::from(Literal::from_slice([3], &[2i32, 0, -1]).unwrap());
        let y = x.one_hot(3).into_literal().unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap(), [0., 0., 1., 1., 0., 0., 0., 0., 0.]);
        assert!(HostArray::scalar(DType::F32, 1.0).one_hot(3).get().is_err());
        assert!(HostArray::scalar(DType::I32, 1.0).one_hot(usize::MAX).get().is_err());
    }
}
