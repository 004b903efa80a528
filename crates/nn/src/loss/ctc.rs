//! CTC loss (connectionist temporal classification, Graves et al. 2006), computed in the log domain.

use systole_ir::{DType, Tensor, TensorType, control_builders};

/// Logarithm of zero: finite, so that sums and derivatives stay finite.
const NEVER: f64 = -1e30;

/// CTC loss `y: i32[B, L], x: f32[B, T, C] → f32[B]`: −ln of the total probability of all alignments of the labels to T
/// steps. Class 0 is the blank and pads labels; `x` are logits. Labels that do not fit in T steps cost ∞ with zero
/// gradient; a label outside 0..C gives NaN.
pub(super) fn ctc(y: &Tensor, x: &Tensor) -> Tensor {
    let [batch, steps, classes] = [x.dim(0), x.dim(1), x.dim(2)];
    let length = y.dim(1);
    let states = 2 * length + 1;
    let g = x.builder();
    let column = |b: usize, s: usize| TensorType::new(DType::I32, [b, s]);
    // blank, first label, blank, second label … blank
    let blanks = g.full(&TensorType::new(DType::I32, [batch, length, 1]), 0.0);
    let pairs = Tensor::concatenate(&[&blanks, &y.reshape([batch, length, 1])], 2);
    let last = g.full(&column(batch, 1), 0.0);
    let said = Tensor::concatenate(&[&pairs.reshape([batch, 2 * length]), &last], 1);
    let place = g.iota(column(batch, states), 1);
    let row = g.iota(column(batch, states), 0) * classes as f64;
    let scores = x.log_softmax().transpose(&[0, 2, 1]).reshape([batch * classes, steps]);
    // [T, B, S]
    let scores = scores.take(&(row + &said)).transpose(&[2, 0, 1]);
    let never = g.full(&TensorType::new(DType::F32, [batch, states]), NEVER);
    let first = scores.slice_dim(0, 0, 1).reshape([batch, states]);
    let start = place.less(&place.scalar_like(2.0)).select(&first, &never);
    let later = |x: &Tensor, by: usize, fill: f64| {
        let fill = x.builder().full(&x.ty().with_shape([batch, by.min(states)]), fill);
        if states > by { Tensor::concatenate(&[&fill, &x.slice_dim(1, 0, states - by)], 1) } else { fill }
    };
    // Between two different labels no blank is needed.
    let two_before = later(&said, 2, 0.0);
    let skips = said.not_equal(&said.zeros_like()).and(&said.not_equal(&two_before));
    let (all, _) = control_builders::scan(&[&start], &[&scores.slice_dim(0, 1, steps)], |before, score| {
        let stay = &before[0];
        let (one, two) = (later(stay, 1, NEVER), later(stay, 2, NEVER));
        let two = skips.select(&two, &never);
        (vec![sum_of_logs(&[stay, &one, &two]) + &score[0]], vec![])
    });
    let end = y.not_equal(&y.zeros_like()).convert(DType::I32).sum(&[1]) * 2.0;
    let end = end.broadcast_except(place.shape(), &[1]);
    let is_end = place.equal(&end).or(&place.equal(&(end - 1.0)));
    let ends = is_end.select(&all[0], &never);
    let most = ends.stop_gradient().reduce_max(&[1]);
    let wide = most.broadcast_except(ends.shape(), &[1]);
    let loss = -((ends - wide).exp().sum(&[1]).log() + most);
    let (endless, none) = (g.full(loss.ty(), f64::INFINITY), g.full(loss.ty(), f64::NAN));
    let can_be_said = loss.less(&loss.scalar_like(-NEVER / 10.0));
    let known = y.greater_equal(&y.zeros_like()).and(&y.less(&y.scalar_like(classes as f64))).all(&[1]);
    known.select(&can_be_said.select(&loss, &endless), &none)
}

/// Log-sum-exp of three tensors.
fn sum_of_logs(parts: &[&Tensor; 3]) -> Tensor {
    let [a, b, c] = parts;
    let most = a.maximum(b).maximum(c).stop_gradient();
    ((*a - &most).exp() + (*b - &most).exp() + (*c - &most).exp()).log() + most
}
