//! Puts NaN, infinities and subnormals into arrays, and compares results that contain them.

use systole_ir::rng::RandomStream;
use systole_ir::{Graph, Literal, LiteralBuilder, Scalar};

/// Special numbers to put into one operand: label, values, count.
pub const ODD: [(&str, &[f64], usize); 5] = [
    ("NaN", &[f64::NAN], 1),
    ("an infinity", &[f64::INFINITY], 1),
    ("a negative infinity", &[f64::NEG_INFINITY], 1),
    ("subnormal numbers and zeros", &[1e-40, -3e-42, 6e-8, 0.0, -0.0], 40),
    ("everything", &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-40, 0.0, -0.0], 6),
];

/// Returns `x` with some of `values` among its elements.
pub fn with_odd(x: &Literal, values: &[f64], count: usize, s: &mut RandomStream) -> Literal {
    let n = x.ty().elements();
    let mut b = LiteralBuilder::new(x.ty().clone());
    (0..n).for_each(|k| b.set(k, x.get(k)));
    for k in 0..count.min(n) {
        b.set(s.below(n as u64) as usize, Scalar::of(x.dtype(), values[k % values.len()]));
    }
    b.finish()
}

/// Permitted differences in non-finite results.
#[derive(Clone, Copy)]
pub struct Allowed {
    /// An infinity may become a NaN.
    pub other_class: bool,
    /// Finite numbers may become NaN: next to others in a tile, or by a product with padding zeros.
    pub spread: bool,
}

/// Whether a program has convolutions. By the specification padding zeros are multiplied too, and zero times a
/// non-finite number is NaN. The interpreter skips padding; some kernels do, others do not.
pub fn convolves(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.name() == "convolution")
}

/// Returns how a result differs: in its non-finite elements, or by more than the tolerance in the finite ones.
pub fn difference(got: &Literal, want: &Literal, allowed: Allowed, tolerance: f64) -> Option<String> {
    let (mut x, mut y) = (got.to_f64s(), want.to_f64s());
    let mut worst = None;
    for (i, (g, w)) in x.iter_mut().zip(&mut y).enumerate() {
        let same = match (g.is_finite(), w.is_finite()) {
            (true, true) => continue,
            (false, false) => allowed.other_class || g.is_nan() && (w.is_nan() || allowed.spread) || g == w,
            (false, true) => allowed.spread,
            (true, false) => false,
        };
        if !same && worst.is_none() {
            worst = Some(format!("element {i} of {} is {g}, not {w}", got.ty()));
        }
        (*g, *w) = (0.0, 0.0);
    }
    if worst.is_some() {
        return worst;
    }
    let diff: f64 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
    let norm: f64 = y.iter().map(|y| y * y).sum();
    let far = (diff / norm.max(1e-60)).sqrt();
    (diff > 0.0 && far > tolerance).then(|| format!("finite elements of {}: {far:e}", got.ty()))
}
