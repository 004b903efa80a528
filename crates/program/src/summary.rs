//! Summarizes an array: first elements, minimum, maximum, mean, and counts of NaN and infinities.

use std::fmt::Write;
use systole_base::{Literal, Scalar};

/// Number of elements shown.
const FIRST: usize = 8;

/// Summary of an array's values; a complex array is held in two arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct ArraySummary {
    /// First elements as text.
    pub first: Vec<String>,
    /// Number of elements of the array.
    pub elements: usize,
    /// Minimum, maximum and mean of the elements that are not NaN; for complex ones of their absolute values. `None` if
    /// there are none, or for bools.
    pub range: Option<(f64, f64, f64)>,
    /// Number of NaN elements.
    pub nan: usize,
    /// Number of infinite elements.
    pub infinite: usize,
}

impl ArraySummary {
    /// Summarizes the arrays that hold one value.
    pub fn of(held: &[Literal]) -> ArraySummary {
        let elements = held.first().map_or(0, |x| x.ty().elements());
        let complex = held.len() == 2;
        let number = |i: usize| match held {
            [re, im] => re.get(i).as_f64().hypot(im.get(i).as_f64()),
            _ => held.first().map_or(f64::NAN, |x| x.get(i).as_f64()),
        };
        let (mut nan, mut infinite, mut sum, mut low, mut high) =
            (0, 0, 0.0, f64::INFINITY, f64::NEG_INFINITY);
        for v in (0..elements).map(number) {
            nan += usize::from(v.is_nan());
            infinite += usize::from(v.is_infinite());
            if !v.is_nan() {
                (sum, low, high) = (sum + v, v.min(low), v.max(high));
            }
        }
        let is_bool = held.first().is_some_and(|x| x.ty().dtype == systole_base::DType::Bool);
        let counted = elements - nan;
        let range = (counted > 0 && !is_bool).then(|| (low, high, sum / counted as f64));
        let shown = |i: usize| match held {
            [re, im] if complex => {
                let im = text(im.get(i));
                let sign = if im.starts_with('-') { "" } else { "+" };
                format!("{}{sign}{im}i", text(re.get(i)))
            }
            _ => held.first().map_or(String::new(), |x| text(x.get(i))),
        };
        let first = (0..elements.min(FIRST)).map(shown).collect();
        ArraySummary { first, elements, range, nan, infinite }
    }
}

impl std::fmt::Display for ArraySummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut line = format!("[{}", self.first.join(", "));
        if self.elements > self.first.len() {
            line += ", …";
        }
        line.push(']');
        if let Some((low, high, mean)) = self.range.filter(|_| self.elements > 1) {
            write!(line, "  min {}, max {}, mean {}", short(low), short(high), short(mean))?;
        }
        for (count, what) in [(self.nan, "NaN"), (self.infinite, "infinite")] {
            if count > 0 {
                write!(line, "{} {count} {what}", if line.ends_with(']') { " " } else { "," })?;
            }
        }
        f.write_str(&line)
    }
}

/// Formats an array element.
pub fn text(value: Scalar) -> String {
    match value {
        Scalar::Bool(b) => b.to_string(),
        Scalar::Int(i) => i.to_string(),
        Scalar::Uint(u) => u.to_string(),
        Scalar::Float(v) => short(v),
    }
}

/// Formats a number with six significant digits.
pub fn short(v: f64) -> String {
    if v == 0.0 || !v.is_finite() {
        return format!("{v}");
    }
    let exponent = v.abs().log10().floor();
    if (-4.0..6.0).contains(&exponent) {
        let digits = (5.0 - exponent).clamp(0.0, 9.0) as usize;
        let text = format!("{v:.digits$}");
        return match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
            false => text,
        };
    }
    let text = format!("{v:.5e}");
    match text.split_once('e') {
        Some((m, e)) => format!("{}e{e}", m.trim_end_matches('0').trim_end_matches('.')),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(x: &[f32]) -> Literal {
        Literal::from_slice([x.len()], x).unwrap()
    }

    #[test]
    fn arrays_are_told_in_a_line() {
        let told = |held: &[Literal]| ArraySummary::of(held).to_string();
        assert_eq!(told(&[f32s(&[1.0, 2.5, -3.0])]), "[1, 2.5, -3]  min -3, max 2.5, mean 0.166667");
        assert_eq!(told(&[f32s(&[f32::NAN, f32::NAN])]), "[NaN, NaN]  2 NaN");
        assert_eq!(
            told(&[f32s(&[f32::NAN, 1.0, f32::INFINITY])]),
            "[NaN, 1, inf]  min 1, max inf, mean inf, 1 NaN, 1 infinite"
        );
        assert_eq!(told(&[f32s(&[])]), "[]");
        assert_eq!(told(&[f32s(&[3.0, 0.0]), f32s(&[4.0, -2.0])]), "[3+4i, 0-2i]  min 2, max 5, mean 3.5");
        let many = Literal::from_slice([20], &(0..20).collect::<Vec<i32>>()).unwrap();
        assert_eq!(told(&[many]), "[0, 1, 2, 3, 4, 5, 6, 7, …]  min 0, max 19, mean 9.5");
        assert_eq!(told(&[Literal::from_bools([2], &[true, false]).unwrap()]), "[true, false]");
        assert_eq!(told(&[Literal::scalar(systole_base::DType::F32, 7.0)]), "[7]");
    }

    #[test]
    fn numbers_have_six_digits() {
        for (v, text) in [
            (1.0, "1"),
            (0.333_333_333, "0.333333"),
            (123_456.7, "123457"),
            (1_234_567.0, "1.23457e6"),
            (-1e-7, "-1e-7"),
            (0.001_234_567_8, "0.00123457"),
            (100.0, "100"),
            (f64::NEG_INFINITY, "-inf"),
            (-0.0, "-0"),
        ] {
            assert_eq!(short(v), text);
        }
    }
}
