//! Compares arrays from two devices with a relative tolerance.

use systole_base::{DType, Literal, Scalar};

/// Relative tolerance between floats; `None` selects a default per type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tolerance(pub Option<f64>);

/// Elements smaller than the array's maximum by this factor are assumed to have lost digits by cancellation.
const CANCELLED: f64 = 0.1;

impl Tolerance {
    /// Returns the tolerance for a type: the requested one, or the error of reordering sums of some thousand elements.
    /// Integers and bools must be equal.
    pub fn of(self, dtype: DType) -> f64 {
        match dtype {
            DType::F64 => self.0.unwrap_or(1e-11),
            DType::F32 => self.0.unwrap_or(1e-4),
            DType::F16 => self.0.unwrap_or(1e-2),
            DType::BF16 => self.0.unwrap_or(5e-2),
            _ => 0.0,
        }
    }
}

/// The first array element that differs by more than the tolerance.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Index in the array.
    pub index: Vec<usize>,
    /// Value on the first device.
    pub first: Scalar,
    /// Value on the second device.
    pub second: Scalar,
    /// Number of differing elements.
    pub count: usize,
    /// Number of elements in the array.
    pub elements: usize,
}

/// Returns the first element that differs by more than `tolerance`; `None` if there is none. Arrays of different types
/// always differ.
pub fn compare(a: &Literal, b: &Literal, tolerance: Tolerance) -> Option<Difference> {
    let elements = a.ty().elements();
    if a.ty() != b.ty() {
        let zero = Scalar::Int(0);
        return Some(Difference { index: Vec::new(), first: zero, second: zero, count: elements, elements });
    }
    if a.bytes() == b.bytes() {
        return None;
    }
    let share = tolerance.of(a.dtype());
    let magnitude = |x: &Literal| {
        let finite = (0..elements).map(|i| x.get(i).as_f64().abs()).filter(|v| v.is_finite());
        finite.fold(0.0, f64::max)
    };
    let greatest = magnitude(a).min(magnitude(b));
    let differs = |i: &usize| match (a.get(*i), b.get(*i)) {
        (Scalar::Float(x), Scalar::Float(y)) => {
            let same = x == y || x.is_nan() && y.is_nan();
            let near = (x - y).abs() <= share * x.abs().max(y.abs()).max(CANCELLED * greatest);
            !(same || near && x.is_finite() && y.is_finite())
        }
        (x, y) => x != y,
    };
    let mut places = (0..elements).filter(differs);
    let first = places.next()?;
    Some(Difference {
        index: a.shape().unravel(first).to_vec(),
        first: a.get(first),
        second: b.get(first),
        count: 1 + places.count(),
        elements,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_no_difference_and_the_first_element_is_told() {
        let f = |x: &[f32]| Literal::from_slice([x.len()], x).unwrap();
        let usual = Tolerance::default();
        let same = |a: &[f32], b: &[f32]| compare(&f(a), &f(b), usual).is_none();
        assert!(same(&[1.0, f32::NAN, f32::INFINITY, 0.0], &[1.000_01, f32::NAN, f32::INFINITY, -0.0]));
        assert!(same(&[1.0, 1e-6], &[1.0, 2e-6]), "what cancellation leaves");
        assert!(!same(&[1e-6], &[2e-6]));
        assert!(
            !same(&[f32::NAN], &[1.0]) && !same(&[f32::INFINITY], &[f32::MAX]) && !same(&[1.0], &[f32::NAN])
        );
        let d = compare(&f(&[1.0, 2.0, 3.0]), &f(&[1.0, 5.0, 6.0]), usual).unwrap();
        assert_eq!((d.index, d.count, d.elements), (vec![1], 2, 3));
        assert_eq!((d.first, d.second), (Scalar::Float(2.0), Scalar::Float(5.0)));
        assert!(compare(&f(&[1.0]), &f(&[1.2]), Tolerance(Some(0.5))).is_none());
        let i = |x: i32| Literal::scalar(DType::I32, x.into());
        assert!(
            compare(&i(1), &i(2), Tolerance(Some(9.0))).is_some() && compare(&i(1), &i(1), usual).is_none()
        );
        assert!(compare(&i(1), &f(&[1.0]), usual).is_some());
    }
}
