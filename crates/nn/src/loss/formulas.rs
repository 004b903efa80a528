//! Loss formulas: cross-entropies, focal, Dice, Tversky, circle and regression losses.
//!
//! Labels are t, predictions p, in f32; most formulas reduce the last axis.

use super::{EPSILON, mean_last, score_of};
use systole_ir::{DType, Tensor};

pub(super) fn sparse_crossentropy(
    y: &Tensor,
    x: &Tensor,
    is_logits: bool,
    ignore_class: Option<i64>,
) -> Tensor {
    let last = [x.rank() - 1];
    // Probabilities are renormalized after clipping, because Keras passes their logarithm to the formula for logits.
    let x = if is_logits { x.clone() } else { clipped(x).log() };
    let top = x.stop_gradient().reduce_max(&last).broadcast_except(x.shape(), &last);
    let shifted = &x - top;
    let (picked, known) = score_of(y, &shifted);
    let values = shifted.exp().sum(&last).log() - picked;
    let values = known.select(&values, &values.builder().full(values.ty(), f64::NAN));
    match ignore_class {
        Some(class) => y.equal(&y.scalar_like(class as f64)).select(&values.zeros_like(), &values),
        None => values,
    }
}

pub(super) fn binary_from_probabilities(t: &Tensor, p: &Tensor) -> Tensor {
    let p = clipped(p);
    -(t * p.log() + (1.0 - t) * (1.0 - &p).log())
}

/// Binary cross-entropy of logits: max(x, 0) − x·t + ln(1 + e^−|x|). Both parts use one comparison, so that the
/// derivative at 0 is ½ − t.
pub(super) fn binary_from_logits(t: &Tensor, x: &Tensor) -> Tensor {
    let zero = x.zeros_like();
    let positive = x.greater_equal(&zero);
    let above = positive.select(x, &zero);
    let minus_size = positive.select(&-x, x);
    above - x * t + minus_size.exp().log1p()
}

pub(super) fn clipped(p: &Tensor) -> Tensor {
    p.clamp(&p.scalar_like(EPSILON), &p.scalar_like(1.0 - EPSILON))
}

pub(super) fn smoothed(t: &Tensor, amount: f64, centre: f64) -> Tensor {
    if amount == 0.0 { t.clone() } else { t * (1.0 - amount) + amount * centre }
}

/// Absolute percentage error: 100·|t − p| / |t|.
pub(super) fn absolute_percentage(t: &Tensor, p: &Tensor) -> Tensor {
    let size = t.abs().maximum(&t.scalar_like(EPSILON));
    mean_last(&((t - p) / size).abs()) * 100.0
}

pub(super) fn squared_logarithmic(t: &Tensor, p: &Tensor) -> Tensor {
    let log = |x: &Tensor| (x.maximum(&x.scalar_like(EPSILON)) + 1.0).log();
    let e = log(p) - log(t);
    mean_last(&(&e * &e))
}

pub(super) fn cosine(t: &Tensor, p: &Tensor) -> Tensor {
    let last = [t.rank() - 1];
    let unit = |x: &Tensor| {
        let longest = x.scalar_like(1.0 / EPSILON);
        x * (x * x).sum(&last).rsqrt().minimum(&longest).broadcast_except(x.shape(), &last)
    };
    -(unit(t) * unit(p)).sum(&last)
}

/// ln cosh e, computed as e + ln(1 + e^−2e) − ln 2.
pub(super) fn log_cosh(t: &Tensor, p: &Tensor) -> Tensor {
    let e = p - t;
    mean_last(&(&e + (&e * -2.0).softplus() - 2f64.ln()))
}

/// Hinge loss: max(1 − t·p, 0); if all labels are 0 or 1, they are mapped to −1 and 1.
pub(super) fn hinge(t: &Tensor, p: &Tensor) -> Tensor {
    let is = |value: f64| t.equal(&t.scalar_like(value));
    let all: Vec<usize> = (0..t.rank()).collect();
    let binary = is(0.0).or(&is(1.0)).all(&all);
    let signs = binary.select(&(t * 2.0 - 1.0), t);
    (1.0 - signs * p).maximum(&p.zeros_like())
}

pub(super) fn categorical_hinge(t: &Tensor, p: &Tensor) -> Tensor {
    let last = [t.rank() - 1];
    let right = (t * p).sum(&last);
    let wrong = ((1.0 - t) * p).reduce_max(&last);
    (wrong - &right + 1.0).maximum(&right.zeros_like())
}

pub(super) fn divergence(t: &Tensor, p: &Tensor) -> Tensor {
    let kept = |x: &Tensor| x.clamp(&x.scalar_like(EPSILON), &x.scalar_like(1.0));
    let (t, p) = (kept(t), kept(p));
    (&t * (&t / p).log()).sum(&[t.rank() - 1])
}

pub(super) fn poisson(t: &Tensor, p: &Tensor) -> Tensor {
    mean_last(&(p - t * (p + EPSILON).log()))
}

/// Binary focal loss: cross-entropy times (1 − pₜ)^γ and, with α, times α for label 1 and 1 − α for label 0.
pub(super) fn binary_focal(t: &Tensor, p: &Tensor, alpha: Option<f64>, gamma: f64) -> Tensor {
    let right = t * p + (1.0 - t) * (1.0 - p);
    let wrong = 1.0 - right;
    let focal = wrong.power(&wrong.scalar_like(gamma)) * binary_from_probabilities(t, p);
    match alpha {
        Some(alpha) => (t * alpha + (1.0 - t) * (1.0 - alpha)) * focal,
        None => focal,
    }
}

pub(super) fn categorical_focal(t: &Tensor, p: &Tensor, alpha: f64, gamma: f64) -> Tensor {
    let last = [p.rank() - 1];
    let p = clipped(&(p / p.sum(&last).broadcast_except(p.shape(), &last)));
    let wrong = 1.0 - &p;
    let factor = wrong.power(&wrong.scalar_like(gamma)) * alpha;
    (factor * -(t * p.log())).sum(&last)
}

pub(super) fn dice(t: &Tensor, p: &Tensor, axes: &[usize]) -> Tensor {
    let both = (t * p).sum(axes);
    1.0 - both * 2.0 / (t.sum(axes) + p.sum(axes) + EPSILON)
}

pub(super) fn tversky(t: &Tensor, p: &Tensor, alpha: f64, beta: f64, axes: &[usize]) -> Tensor {
    let both = (t * p).sum(axes);
    // Keras's names are swapped: α weighs false negatives.
    let missed = ((1.0 - p) * t).sum(axes);
    let wrong = (p * (1.0 - t)).sum(axes);
    1.0 - &both / (&both + missed * alpha + wrong * beta + EPSILON)
}

/// Generalized cross-entropy: (1 − p^q) / q of the true class's probability; NaN for a class out of range.
pub(super) fn generalized_crossentropy(y: &Tensor, p: &Tensor, q: f64) -> Tensor {
    let (own, known) = score_of(y, p);
    let values = (1.0 - own.power(&own.scalar_like(q))) / q;
    known.select(&values, &values.builder().full(values.ty(), f64::NAN))
}

/// Circle loss: `y: I[B], p: f32[B, D]` of unit length `→ f32[B]`.
pub(super) fn circle(y: &Tensor, p: &Tensor, gamma: f64, margin: f64, remove_diagonal: bool) -> Tensor {
    let distance = 1.0 - p.dot(&p.transpose(&[1, 0]));
    let distance = distance.maximum(&distance.zeros_like());
    let across = y.broadcast_except(distance.shape(), &[0]);
    let alike = y.broadcast_except(distance.shape(), &[1]).equal(&across);
    let mut pairs = alike.clone();
    if remove_diagonal {
        let place = distance.ty().with_dtype(DType::I32);
        let (row, column) = (p.builder().iota(place.clone(), 0), p.builder().iota(place, 1));
        pairs = pairs.and(&row.not_equal(&column));
    }
    let others = alike.not();
    let weight = |w: Tensor, of: &Tensor| (w * of.convert(DType::F32)).maximum(&distance.zeros_like());
    let near = weight(&distance + margin, &pairs) * (margin - &distance) * -gamma;
    let far = weight((1.0 + margin) - &distance, &others) * ((1.0 - margin) - &distance) * gamma;
    (log_of_sum(&near, &pairs) + log_of_sum(&far, &others)).softplus()
}

/// Masked log-sum-exp `→ f32[B]`: ln Σ exp(x) over a row's chosen values; a very negative number if none is chosen.
fn log_of_sum(x: &Tensor, chosen: &Tensor) -> Tensor {
    let x = chosen.select(x, &x.builder().full(x.ty(), -1e30));
    let most = x.stop_gradient().reduce_max(&[1]);
    (&x - most.broadcast_except(x.shape(), &[1])).exp().sum(&[1]).log() + most
}
