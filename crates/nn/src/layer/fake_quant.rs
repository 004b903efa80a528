//! Rounding to a few levels while values stay floats: in graphs that train. Gradients pass straight through the rounding, within the
//! range, and not outside of it. No layer and no state is known here.

use systole_ir::{DType, Tensor};

/// The least and greatest of int8.
pub(crate) const INT8: (f64, f64) = (-128.0, 127.0);

/// The greatest of int8 weights, which lie around 0.
pub(crate) const NARROW: f64 = 127.0;

/// `inputs: f32[…], min: f32[], max: f32[] → f32[…]`: values at one of the levels of `num_bits` between `min` and `max`, 0 among them.
///
/// TensorFlow's `tf.quantization.fake_quant_with_min_max_vars`: the range is moved a little so that 0 is a level; gradients pass to
/// `inputs` within the range, to `min` and `max` from what lies below and above. `narrow_range` leaves the lowest level out.
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

/// The value of one tensor with the gradient of another.
pub(crate) fn straight(value: &Tensor, gradient: &Tensor) -> Tensor {
    // Exactly: what is added is 0.
    value.stop_gradient() + (gradient - gradient.stop_gradient())
}

/// `t: f32[] → f32[…]` of the shape of `like`.
fn wide(t: &Tensor, like: &Tensor) -> Tensor {
    t.broadcast_to(like.shape())
}

/// Levels in even steps: `scale · (q − zero_point)` for whole q from `ends.0` to `ends.1`.
pub(crate) struct QuantizationGrid {
    scale: Tensor,
    zero_point: Tensor,
    ends: (f64, f64),
}

impl QuantizationGrid {
    /// `f32[], f32[]`: the levels of a range, 0 among them. The range must not be empty.
    pub(crate) fn between(min: &Tensor, max: &Tensor, ends: (f64, f64)) -> QuantizationGrid {
        let scale = (max - min) / (ends.1 - ends.0);
        let zero = (-(min / &scale) + ends.0).round_nearest_afz();
        let zero_point = zero.clamp(&zero.scalar_like(ends.0), &zero.scalar_like(ends.1));
        QuantizationGrid { scale, zero_point, ends }
    }

    /// Levels whose step and zero point are known.
    pub(crate) fn of(scale: Tensor, zero_point: Tensor, ends: (f64, f64)) -> QuantizationGrid {
        QuantizationGrid { scale, zero_point, ends }
    }

    /// The lowest and the highest one.
    fn ends(&self) -> [Tensor; 2] {
        [self.ends.0, self.ends.1].map(|end| (-&self.zero_point + end) * &self.scale)
    }

    /// The lowest one, to the bit that rounding has.
    pub(crate) fn lowest(&self) -> Tensor {
        let [low, _] = self.ends();
        low.stop_gradient()
    }

    /// The nearest level of each value, or the one that is known as whole steps from 0.
    fn rounded(&self, x: &Tensor, known: Option<&Tensor>) -> Tensor {
        let [low, high] = [self.ends.0, self.ends.1].map(|end| -&self.zero_point + end);
        let q = known.cloned().unwrap_or_else(|| (x / wide(&self.scale, x)).round_nearest_afz());
        let q = q.less(&low).select(&wide(&low, x), &q);
        let q = q.greater(&high).select(&wide(&high, x), &q);
        q * wide(&self.scale, x)
    }

    /// `x: f32[…], known: f32[…] → f32[…]`: the nearest levels, or the known ones; gradients pass within the range.
    pub(crate) fn fake(&self, x: &Tensor, known: Option<&Tensor>) -> Tensor {
        let [low, high] = self.ends();
        let held = x.greater(&high).select(&wide(&high.stop_gradient(), x), x);
        let held = x.less(&low).select(&wide(&low.stop_gradient(), x), &held);
        straight(&self.rounded(x, known), &held)
    }
}

/// `w: f32[…] → f32[…]`: weights in whole steps of `scale: f32[…]`, which is that of their greatest: 127 steps to either side.
pub(crate) fn fake_weights(w: &Tensor, scale: &Tensor) -> Tensor {
    straight(&((w / scale).round_nearest_afz() * scale), w)
}

/// `w: f32[…] → f32[…]`: the step that puts the greatest of each channel (`channels` are its dimensions) at 127; of zeros 1/127.
pub(crate) fn step_of_greatest(w: &Tensor, channels: &[usize]) -> Tensor {
    let others: Vec<usize> = (0..w.rank()).filter(|d| !channels.contains(d)).collect();
    let greatest = w.stop_gradient().abs().reduce_max(&others);
    let zero = greatest.zeros_like();
    let greatest = greatest.equal(&zero).select(&greatest.ones_like(), &greatest);
    (greatest / NARROW).broadcast_in_dim(w.shape(), channels)
}

/// `x: f32[…], step: f32[…] → f32[…]`: learned step size quantisation to whole steps from `low` to `high` (`f32[…]`, or scalars of its
/// shape), the nearest or the `known` ones. The gradient of the step is that of the paper: `round(x / s) − x / s` within the range, `low` and `high` outside of it;
/// [`scaled_gradient`] multiplies it. Source: Esser et al. 2020, "Learned Step Size Quantization", equations 1 to 3.
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

/// The same value, whose gradient counts `factor` times: the paper's g = 1 / √(N · Qp), so that steps change as slowly as weights.
pub(crate) fn scaled_gradient(step: &Tensor, factor: &Tensor) -> Tensor {
    straight(step, &(step * factor.stop_gradient()))
}

/// `x: T[…] → T[…]`, computed in f32; of integers the result is f32.
pub(crate) fn in_f32(x: &Tensor, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    let back = if x.dtype().is_float() { x.dtype() } else { DType::F32 };
    f(&x.convert(DType::F32)).convert(back)
}
