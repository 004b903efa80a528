//! Fake quantization: rounds floats to quantization levels, with straight-through gradients within the range.

use systole_ir::{DType, Tensor};

/// Minimum and maximum of int8.
pub(crate) const INT8: (f64, f64) = (-128.0, 127.0);

/// Maximum of int8 weights, whose range is symmetric.
pub(crate) const NARROW: f64 = 127.0;

/// Fake-quantizes `inputs: f32[…]` to `num_bits` between `min: f32[]` and `max: f32[]`: `→ f32[…]`.
///
/// Like TensorFlow's `tf.quantization.fake_quant_with_min_max_vars`: the range is shifted slightly so that 0 is a
/// level. Gradients pass to `inputs` within the range, to `min` for values below it and to `max` for values above it.
/// `narrow_range` leaves the lowest level out.
///
/// ```
/// use systole_ir::{DType::F32, GraphBuilder, Literal, TensorType, interp};
/// use systole_nn::fake_quant_with_min_max_vars;
/// let g = GraphBuilder::new("levels");
/// let x = g.parameter(TensorType::new(F32, [3]), "x");
/// let y = fake_quant_with_min_max_vars(&x, &g.scalar(F32, 0.0), &g.scalar(F32, 25.5), 8, false);
/// let x = Literal::from_slice([3], &[1.24f32, -3.0, 99.0])?;
/// let graph = g.finish(&[y])?;
/// assert_eq!(interp::run(&graph, &[&x])?[0].to_f32s(), [1.2, 0.0, 25.5]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn fake_quant_with_min_max_vars(
    inputs: &Tensor,
    min: &Tensor,
    max: &Tensor,
    num_bits: u32,
    narrow_range: bool,
) -> Tensor {
    let (least, most) = (f64::from(u8::from(narrow_range)), (2f64.powi(num_bits as i32)) - 1.0);
    let levels = QuantizationGrid::between(&min.stop_gradient(), &max.stop_gradient(), (least, most));
    let [low, high] = levels.ends();
    let outer = |end: &Tensor, given: &Tensor| straight(end, given);
    let held = inputs.greater(&high).select(&wide(&outer(&high, max), inputs), inputs);
    let held = inputs.less(&low).select(&wide(&outer(&low, min), inputs), &held);
    straight(&levels.rounded(inputs, None), &held)
}

/// Straight-through estimator: the value of one tensor with the gradient of another.
pub(crate) fn straight(value: &Tensor, gradient: &Tensor) -> Tensor {
    // The added difference is exactly 0.
    value.stop_gradient() + (gradient - gradient.stop_gradient())
}

/// Broadcasts `t: f32[]` to the shape of `like`.
fn wide(t: &Tensor, like: &Tensor) -> Tensor {
    t.broadcast_to(like.shape())
}

/// Affine quantization levels: `scale · (q − zero_point)` for integers q from `ends.0` to `ends.1`.
pub(crate) struct QuantizationGrid {
    scale: Tensor,
    zero_point: Tensor,
    ends: (f64, f64),
}

impl QuantizationGrid {
    /// Levels of the non-empty range from `min: f32[]` to `max: f32[]`, adjusted so that 0 is a level.
    pub(crate) fn between(min: &Tensor, max: &Tensor, ends: (f64, f64)) -> QuantizationGrid {
        let scale = (max - min) / (ends.1 - ends.0);
        let zero = (-(min / &scale) + ends.0).round_nearest_afz();
        let zero_point = zero.clamp(&zero.scalar_like(ends.0), &zero.scalar_like(ends.1));
        QuantizationGrid { scale, zero_point, ends }
    }

    /// Levels with the given scale and zero point.
    pub(crate) fn of(scale: Tensor, zero_point: Tensor, ends: (f64, f64)) -> QuantizationGrid {
        QuantizationGrid { scale, zero_point, ends }
    }

    /// Lowest and highest level.
    fn ends(&self) -> [Tensor; 2] {
        [self.ends.0, self.ends.1].map(|end| (-&self.zero_point + end) * &self.scale)
    }

    /// Lowest level, bit-identical to the result of rounding.
    pub(crate) fn lowest(&self) -> Tensor {
        let [low, _] = self.ends();
        low.stop_gradient()
    }

    /// Rounds each value to the nearest level, or uses the `known` integers (relative to the zero point).
    fn rounded(&self, x: &Tensor, known: Option<&Tensor>) -> Tensor {
        let [low, high] = [self.ends.0, self.ends.1].map(|end| -&self.zero_point + end);
        let q = known.cloned().unwrap_or_else(|| (x / wide(&self.scale, x)).round_nearest_afz());
        let q = q.less(&low).select(&wide(&low, x), &q);
        let q = q.greater(&high).select(&wide(&high, x), &q);
        q * wide(&self.scale, x)
    }

    /// Fake-quantizes `x: f32[…]` to the nearest or the `known` levels: `→ f32[…]`. Gradients pass within the range.
    pub(crate) fn fake(&self, x: &Tensor, known: Option<&Tensor>) -> Tensor {
        let [low, high] = self.ends();
        let held = x.greater(&high).select(&wide(&high.stop_gradient(), x), x);
        let held = x.less(&low).select(&wide(&low.stop_gradient(), x), &held);
        straight(&self.rounded(x, known), &held)
    }
}

/// Fake-quantizes weights `w: f32[…]` with `scale: f32[…]`, which maps the maximum magnitude to 127: `→ f32[…]`.
pub(crate) fn fake_weights(w: &Tensor, scale: &Tensor) -> Tensor {
    straight(&((w / scale).round_nearest_afz() * scale), w)
}

/// `w: f32[…] → f32[…]`: symmetric scale per channel (`channels` are its dimensions), max |w| / 127; 1/127 for all-zero
/// channels.
pub(crate) fn step_of_greatest(w: &Tensor, channels: &[usize]) -> Tensor {
    let others: Vec<usize> = (0..w.rank()).filter(|d| !channels.contains(d)).collect();
    let greatest = w.stop_gradient().abs().reduce_max(&others);
    let zero = greatest.zeros_like();
    let greatest = greatest.equal(&zero).select(&greatest.ones_like(), &greatest);
    (greatest / NARROW).broadcast_in_dim(w.shape(), channels)
}

/// Learned step size quantization (LSQ) of `x: f32[…]` with scale `step: f32[…]`: `→ f32[…]`.
///
/// Rounds to integers from `low` to `high` (`f32[…]`, or scalars of its shape), the nearest or the `known` ones. The
/// scale's gradient is `round(x / s) − x / s` within the range, `low` or `high` outside; [`scaled_gradient`] multiplies
/// it. Source: Esser et al. 2020, "Learned Step Size Quantization", equations 1 to 3.
pub(crate) fn fake_learned(
    x: &Tensor,
    step: &Tensor,
    [low, high]: [&Tensor; 2],
    known: Option<&Tensor>,
) -> Tensor {
    let r = x / step;
    let held = r.greater(high).select(&high.stop_gradient(), &r);
    let held = r.less(low).select(&low.stop_gradient(), &held);
    let steps = known.map_or_else(|| held.round_nearest_afz(), |known| known.maximum(low).minimum(high));
    straight(&steps, &held) * step
}

/// Multiplies the gradient of `step` by `factor`, without changing its value: g = 1 / √(N · Qp) in the LSQ paper.
pub(crate) fn scaled_gradient(step: &Tensor, factor: &Tensor) -> Tensor {
    straight(step, &(step * factor.stop_gradient()))
}

/// Applies `f` in f32: `x: T[…] → T[…]`; for integer inputs the result stays f32.
pub(crate) fn in_f32(x: &Tensor, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let back = if x.dtype().is_float() { x.dtype() } else { DType::F32 };
    f(&x.convert(DType::F32)).convert(back)
}
