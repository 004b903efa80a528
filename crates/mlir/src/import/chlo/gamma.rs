//! Imports lgamma and digamma with Lanczos's approximation. `x` is f32 or f64.
//!
//! Source: CHLO's decomposition; Lanczos, A precision approximation of the gamma function (1964), with g = 7 and n = 9.

use std::f64::consts::PI;
use systole_ir::Tensor;

const G: f64 = 7.0;
const BASE: f64 = 0.999_999_999_999_809_9;
#[rustfmt::skip]
const COEFFICIENTS: [f64; 8] = [
    676.520_368_121_885_1, -1_259.139_216_722_402_8, 771.323_428_777_653_1, -176.615_029_162_140_6,
    12.507_343_278_686_905, -0.138_571_095_265_720_12, 9.984_369_578_019_572e-6, 1.505_632_735_149_311_6e-7,
];

/// Terms that both functions share: whether x is reflected, z, t(z) = z + g + ½ and log t.
struct LanczosTerms {
    reflects: Tensor,
    z: Tensor,
    t: Tensor,
    log_t: Tensor,
}

impl LanczosTerms {
    fn of(x: &Tensor) -> LanczosTerms {
        let reflects = x.less(&x.scalar_like(0.5));
        let z = reflects.select(&-x, &(x - 1.0));
        let t = &z + (G + 0.5);
        let log_t = (&z / (G + 0.5)).log1p() + (G + 0.5).ln();
        LanczosTerms { reflects, z, t, log_t }
    }

    /// Returns a(z) = base + Σ cₖ / (z + k).
    fn sum(&self) -> Tensor {
        let base = self.z.builder().full(self.z.ty(), BASE);
        let terms = COEFFICIENTS.iter().zip(1i32..);
        terms.fold(base, |sum, (&c, k)| sum + c / (&self.z + f64::from(k)))
    }

    /// Returns the derivative a′(z).
    fn slope(&self) -> Tensor {
        let terms = COEFFICIENTS.iter().zip(1i32..);
        terms.fold(self.z.zeros_like(), |sum, (&c, k)| {
            let at = &self.z + f64::from(k);
            sum - c / (&at * &at)
        })
    }
}

/// Computes ln |Γ(x)|; +∞ at the poles and at both infinities.
pub(super) fn lgamma(x: &Tensor) -> Tensor {
    let terms = LanczosTerms::of(x);
    // (z + ½) · ln t − t, without overflow.
    let r = (&terms.z + 0.5 - &terms.t / &terms.log_t) * &terms.log_t;
    let direct = r + (2.0 * PI).ln() / 2.0 + terms.sum().log();
    // ln π − lgamma(1 − x) − ln |sin πx|; the fraction of |x| is folded at ½ to keep the precision of π·fraction.
    let size = x.abs();
    let fraction = &size - &size.floor();
    let fraction = fraction.greater(&x.scalar_like(0.5)).select(&(1.0 - &fraction), &fraction);
    let sine = (fraction * PI).sine().log();
    let reflected = PI.ln() - &sine - &direct;
    let reflected = sine.is_finite().select(&reflected, &-&sine);
    let value = terms.reflects.select(&reflected, &direct);
    let infinity = x.scalar_like(f64::INFINITY);
    size.equal(&infinity).select(&infinity, &value)
}

/// Computes the derivative of ln Γ(x); NaN at the poles.
pub(super) fn digamma(x: &Tensor) -> Tensor {
    let terms = LanczosTerms::of(x);
    let direct = &terms.log_t + terms.slope() / terms.sum() - G / &terms.t;
    // digamma(1 − x) − π·cot πx, with x shifted into [−½, ½].
    let reduced = (x + (x + 0.5).floor().abs()) * PI;
    let reflected = &direct - reduced.cosine() * PI / reduced.sine();
    let value = terms.reflects.select(&reflected, &direct);
    let is_pole = x.less_equal(&x.scalar_like(0.0)).and(&x.equal(&x.floor()));
    is_pole.select(&x.scalar_like(f64::NAN), &value)
}
