//! Emulates int8 fixed-point arithmetic in float graphs, bit-exact with LiteRT's kernels.
//!
//! Integers and their sums are exact in f32. Multipliers are split into parts whose products are exact too.
//!
//! Source: gemmlowp's multiplication by a quantized multiplier, which rounds twice, as in LiteRT's reference kernels.

use systole_ir::DType::{F32, F64, I32};
use systole_ir::Tensor;

/// Int8 scale and zero point of a range, as in the `.tflite` file: `f32[]` each.
pub(crate) struct Int8Params {
    pub(crate) step: Tensor,
    pub(crate) zero_point: Tensor,
}

impl Int8Params {
    /// Computes scale and zero point of `low: f32[] ≤ 0` to `high: f32[] ≥ 0`, not both 0. Uses f64 like the crate
    /// `quant`.
    pub(crate) fn of_range(low: &Tensor, high: &Tensor) -> Int8Params {
        let [low, high] = [low, high].map(|end| end.stop_gradient().convert(F64));
        let step = (&high - &low) / 255.0;
        let zero = (-(&low / &step) - 128.0).round_nearest_afz();
        let zero = zero.clamp(&zero.scalar_like(-128.0), &zero.scalar_like(127.0));
        Int8Params { step: step.convert(F32), zero_point: zero.convert(F32) }
    }
}

/// How an operator requantizes its accumulator.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum RequantizeRounding {
    /// To nearest, halves away from zero.
    Once,
    /// Rounds to a few fractional bits first, halves up, then to an integer.
    Twice,
    /// Like `Twice`, for a sum of this many numbers that is divided by their count.
    TwiceInMean(usize),
    /// To nearest, halves away from zero, on stored integers including the zero point: average pooling.
    OfCodes,
}

/// Integers times a scale: `numbers: f32[…]` times `unit: T[]`, or one unit per channel of the last dimension. `unit`
/// is f64 or f32, as in the operator.
#[derive(Clone)]
pub(crate) struct ScaledTerm {
    /// `None`: the value itself divided by `unit`.
    pub(crate) numbers: Option<Tensor>,
    pub(crate) unit: Tensor,
}

/// Integer expression of a value before rounding: a sum of scaled terms.
#[derive(Clone)]
pub(crate) struct ScaledSum {
    pub(crate) terms: Vec<ScaledTerm>,
    pub(crate) rounding: RequantizeRounding,
    /// The float value. Elements that differ from it now were changed by an activation.
    pub(crate) value: Option<Tensor>,
    /// Expression of negative values, if it differs.
    pub(crate) below: Option<Box<ScaledSum>>,
    /// `bool[…]`: where the result saturates at the maximum.
    pub(crate) beyond: Option<Tensor>,
}

impl ScaledSum {
    pub(crate) fn of(terms: Vec<ScaledTerm>, rounding: RequantizeRounding) -> ScaledSum {
        ScaledSum { terms, rounding, value: None, below: None, beyond: None }
    }

    /// Whether the expression depends on each value only, so that elements may move within their channel.
    pub(crate) fn is_of_units(&self) -> bool {
        let is_known = |term: &ScaledTerm| term.numbers.is_none();
        self.terms.iter().all(is_known)
            && self.value.is_none()
            && self.below.is_none()
            && self.beyond.is_none()
    }

    /// Like [`ScaledSum::is_of_units`], with one unit for all channels.
    pub(crate) fn is_of_one_unit(&self) -> bool {
        self.is_of_units() && self.terms.iter().all(|term| term.unit.rank() == 0)
    }

    /// `x: f32[…] → f32[…]`: the integers that the int8 operator computes for `x`, before saturation.
    pub(crate) fn steps(&self, x: &Tensor, scale: &Int8Params) -> Tensor {
        let (x, step) = (x.stop_gradient(), scale.step.stop_gradient());
        if self.rounding == RequantizeRounding::OfCodes {
            let zero = scale.zero_point.stop_gradient();
            let codes = &x / &step + &zero;
            // The mean of up to 2,000 integers is either exactly a half or farther from a half than this.
            let codes = &codes + codes.sign() * 2e-4;
            return codes.round_nearest_afz() - zero;
        }
        let nearest = || (&x / &step).round_nearest_afz();
        let mut steps = if self.terms.is_empty() { nearest() } else { self.exact(&x, &step) };
        if let Some(below) = &self.below {
            steps = x.less(&x.zeros_like()).select(&below.exact(&x, &step), &steps);
        }
        if let Some(value) = &self.value {
            steps = x.equal(&value.stop_gradient()).select(&steps, &nearest());
        }
        match &self.beyond {
            Some(beyond) => beyond.select(&steps.builder().full(steps.ty(), 1e4), &steps),
            None => steps,
        }
    }

    fn exact(&self, x: &Tensor, step: &Tensor) -> Tensor {
        let mut kept = None;
        let mut whole: Option<Tensor> = None;
        let mut rest: Option<Tensor> = None;
        let add = |sum: &mut Option<Tensor>, more: Tensor| {
            *sum = Some(sum.take().map_or(more.clone(), |sum| sum + more));
        };
        for term in &self.terms {
            let ratio = (&term.unit / &step.convert(term.unit.dtype())).convert(F64);
            let mut factor = match self.rounding {
                RequantizeRounding::TwiceInMean(n) => &ratio / (n as f64),
                _ => ratio.clone(),
            };
            if self.rounding != RequantizeRounding::Once {
                let bits = first_bits(&ratio, self.rounding);
                factor = factor * bits.convert(F64);
                kept = Some(bits);
            }
            let unit = || (x / &term.unit.convert(F32)).round_nearest_afz();
            let numbers = term.numbers.as_ref().map_or_else(unit, Tensor::stop_gradient);
            for (part, more) in products(&numbers, &factor) {
                add(&mut whole, part);
                add(&mut rest, more);
            }
        }
        let (Some(whole), Some(rest)) = (whole, rest) else { return x.clone() };
        match kept {
            Some(kept) => ((whole + (rest + 0.5).floor()) / kept).round_nearest_afz(),
            None => nearest_of(&whole, &rest),
        }
    }
}

/// `d: f64[…] → f32[…]`: 2 to the power of the number of fractional bits kept by the first of two roundings.
fn first_bits(d: &Tensor, rounding: RequantizeRounding) -> Tensor {
    // The exponent of d as a fraction in ½..1; more than 15 bits change nothing.
    let number = |t: &Tensor, v: i32| t.scalar_like(f64::from(v));
    let bits = d.convert(F32).bitcast_convert(I32);
    let shift = bits.shift_right_logical(&number(&bits, 23));
    let shift = &shift - &number(&shift, 126);
    let right = match rounding {
        RequantizeRounding::TwiceInMean(n) => {
            let up = number(&shift, n.max(1).ilog2() as i32);
            let room = &shift + &number(&shift, 31);
            up.minimum(&room).maximum(&number(&shift, 0)) - &shift
        }
        _ => -&shift,
    };
    let right = right.maximum(&number(&right, 0)).minimum(&number(&right, 15));
    let power = &right + &number(&right, 127);
    power.shift_left(&number(&power, 23)).bitcast_convert(F32)
}

/// `n: f32[…]` (integers), `d: f64[…] → [(f32[…], f32[…])]`: parts of n · d, each as integer and remainder.
fn products(n: &Tensor, d: &Tensor) -> Vec<(Tensor, Tensor)> {
    // Products of two 12-bit numbers are exact.
    let high = d.convert(F32).reduce_precision(8, 11);
    let low = (d - high.convert(F64)).convert(F32);
    let upper = (n * (1.0 / 4096.0)).floor() * 4096.0;
    let lower = n - &upper;
    let parts = [upper * &high, lower * high, n * low];
    parts
        .into_iter()
        .map(|p| {
            let below = p.floor();
            let rest = p - &below;
            (below, rest)
        })
        .collect()
}

/// `whole: f32[…], rest: f32[…] ≥ 0 → f32[…]`: their sum rounded to nearest, halves away from zero.
fn nearest_of(whole: &Tensor, rest: &Tensor) -> Tensor {
    let carry = rest.floor();
    let (whole, rest) = (whole + &carry, rest - &carry);
    let (half, one) = (rest.scalar_like(0.5), rest.ones_like());
    let up = rest.greater_equal(&half).select(&one, &rest.zeros_like());
    let down = rest.equal(&half).and(&whole.less(&whole.zeros_like()));
    &whole + down.select(&rest.zeros_like(), &up)
}
