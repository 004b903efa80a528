//! Fake-quantizes the current layer's weights and activations to int8 during quantization-aware training.

use crate::layer::activation::Activation;
use crate::layer::cx::Cx;
use crate::layer::fake_quant::{
    INT8, NARROW, QuantizationGrid, fake_learned, fake_weights, in_f32, scaled_gradient, step_of_greatest,
    straight,
};
use crate::layer::fixed_point::{Int8Params, ScaledSum};
use crate::layer::initializer::Initializer;
use crate::layer::quantizer::{FoldedBatchNorm, QuantizationPoint, QuantizeRanges, Quantizer, input_name};
use std::sync::Arc;
use systole_ir::attention::HIDDEN;
use systole_ir::{DType, Literal, Tensor};

/// Maximum decay of range moving averages, as in TF-MOT.
const MOST_KEPT: f64 = 0.999;

/// Distance of causally masked attention scores below the minimum score, as in the crate `quant`.
const BELOW: f64 = 8.0;

impl Quantizer {
    /// Fake-quantizes the layer's inputs.
    pub(crate) fn read(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        let slot = |k: usize| self.inputs.get(k).and_then(Option::as_ref);
        inputs
            .iter()
            .enumerate()
            .map(|(k, x)| slot(k).map_or_else(|| x.clone(), |slot| cx.rounded(slot, &input_name(k), x)))
            .collect()
    }

    /// Fake-quantizes the layer's output.
    pub(crate) fn give(&self, cx: &mut Cx, y: &Tensor) -> Tensor {
        match (&self.output, &self.rows) {
            (Some(slot), _) => cx.rounded(slot, "output", y),
            (None, Some(slot)) => cx.rounded(slot, "rows", y),
            (None, None) => y.clone(),
        }
    }
}

impl Cx {
    /// Returns the quantizer of the current layer itself, not of an enclosing layer.
    fn own_quantizer(&self) -> Option<Arc<Quantizer>> {
        self.quantization.quantizer.as_ref().filter(|at| at.depth == self.depth()).map(|at| at.own.clone())
    }

    /// Whether the current layer has quantized sublayers.
    pub(crate) fn has_rounded_layers(&self) -> bool {
        self.own_quantizer().is_some_and(|own| !own.layers.is_empty())
    }

    /// Whether the current layer is a sublayer; quantized sublayers are always dense.
    fn is_within(&self) -> bool {
        self.quantization.quantizer.as_ref().is_some_and(|at| at.depth > at.of_node)
    }

    /// Fake-quantizes the output of a sublayer.
    pub(crate) fn given(&mut self, inputs: &[Tensor], y: Tensor) -> Tensor {
        let Some(own) = self.own_quantizer() else { return y };
        self.hand_on_levels(None, inputs, &y);
        own.give(self, &y)
    }

    /// Like [`Cx::given`], for a kernel's output times a factor that export folds into the kernel.
    pub(crate) fn given_scaled(&mut self, y: Tensor, factor: f64) -> Tensor {
        let Some(own) = self.own_quantizer() else { return y };
        let y = y * factor;
        self.made_of_weights(&y, factor);
        own.give(self, &y)
    }

    /// Computes attention weights as the softmax operator's fixed quantization parameters round them.
    pub(crate) fn rounded_softmax(&mut self, scores: &Tensor) -> Tensor {
        self.rounded(&QuantizationPoint::SIGMOID, "weights", &scores.softmax())
    }

    /// Returns a weight of a sibling layer.
    fn weight_beside(&self, path: &str) -> Option<Tensor> {
        self.known_weight(&self.beside(path)).cloned()
    }

    /// Fake-quantizes `x: T[…] → T[…]` at a quantization point of the current layer.
    fn rounded(&mut self, slot: &QuantizationPoint, name: &str, x: &Tensor) -> Tensor {
        self.rounded_where(slot, name, x, None)
    }

    /// Like [`Cx::rounded`]; values where `seen: bool[…]` is false get the lowest level.
    fn rounded_where(
        &mut self,
        slot: &QuantizationPoint,
        name: &str,
        x: &Tensor,
        seen: Option<&Tensor>,
    ) -> Tensor {
        let Some(own) = self.own_quantizer() else { return x.clone() };
        let made = self.made_of(x);
        let mut step = None;
        let y = in_f32(x, |x| {
            let (y, own_step) = match (slot, own.ranges) {
                (QuantizationPoint::Fixed { scale, zero_point }, _) => {
                    let own =
                        Int8Params { step: x.scalar_like(*scale), zero_point: x.scalar_like(*zero_point) };
                    let known = made.map(|made| made.steps(x, &own));
                    let levels = QuantizationGrid::of(own.step.clone(), own.zero_point, INT8);
                    (levels.fake(x, known.as_ref()), Some(own.step))
                }
                (QuantizationPoint::Range { own, joint }, QuantizeRanges::MovingAverage { ema_decay }) => {
                    self.in_range(x, name, (*own, joint), (ema_decay, made), seen)
                }
                // A trainable scale would not keep masked scores below all others.
                (QuantizationPoint::Range { own, joint }, QuantizeRanges::Learned) if seen.is_some() => {
                    self.in_range(x, name, (*own, joint), (None, made), seen)
                }
                (QuantizationPoint::Range { own, joint }, QuantizeRanges::Learned) => {
                    self.in_steps(x, name, (*own, joint), made)
                }
            };
            step = own_step;
            y
        });
        self.stands_for(&y, x);
        if let Some(step) = step.filter(|_| y.dtype() == DType::F32) {
            self.has_step(&y, &step);
        }
        y
    }

    /// Fake-quantizes by moving-average ranges; returns the values and the scale.
    fn in_range(
        &mut self,
        x: &Tensor,
        name: &str,
        (own, joint): (bool, &[String]),
        (decay, made): (Option<f64>, Option<ScaledSum>),
        seen: Option<&Tensor>,
    ) -> (Tensor, Option<Tensor>) {
        let mut ranges: Vec<[Tensor; 2]> = Vec::new();
        if own {
            ranges.push(self.own_range(x, name, decay, seen));
        }
        let others = joint.iter().filter_map(|at| {
            Some([self.weight_beside(&format!("{at}_min"))?, self.weight_beside(&format!("{at}_max"))?])
        });
        ranges.extend(others.collect::<Vec<_>>());
        let hide = |y: &Tensor, hidden: &Tensor| match seen {
            Some(seen) => seen.select(y, &hidden.broadcast_to(y.shape())),
            None => y.clone(),
        };
        let all = ranges.into_iter().reduce(|a, b| [a[0].minimum(&b[0]), a[1].maximum(&b[1])]);
        let Some([min, max]) = all else { return (hide(x, &x.scalar_like(HIDDEN)), None) };
        // The range is empty before the first batch.
        let is_empty = max.less_equal(&min);
        let max = is_empty.select(&(&min + 1.0), &max);
        let scale = Int8Params::of_range(&min, &max);
        let known = made.map(|made| made.steps(x, &scale));
        let levels = QuantizationGrid::of(scale.step.clone(), scale.zero_point, INT8);
        let lowest = is_empty.select(&min.scalar_like(HIDDEN), &levels.lowest());
        let y = is_empty.select(x, &levels.fake(x, known.as_ref()));
        (hide(&y, &lowest), Some(scale.step))
    }

    /// Returns the range tracked at a quantization point of the current layer; in training, updated with this batch.
    fn own_range(
        &mut self,
        x: &Tensor,
        name: &str,
        decay: Option<f64>,
        seen: Option<&Tensor>,
    ) -> [Tensor; 2] {
        let names = ["min", "max"].map(|end| format!("{name}_{end}"));
        let [min, max] = names.clone().map(|name| self.variable(&name, &[], &Initializer::Zeros, false));
        if !self.training() {
            return [min, max];
        }
        let found = match seen {
            None => followed(x, [&min, &max], &self.kept_and_new(x, decay)),
            Some(seen) => followed(&with_hidden(x, seen), [&min, &max], &self.kept_and_new(x, decay)),
        };
        for (name, value) in names.iter().zip(&found) {
            self.update(name, value.clone());
            // Points that share the range see the updated value.
            self.replace_own(name, value);
        }
        found
    }

    /// `→ (f32[], f32[])`: weights of the old average and of the new value in this step.
    fn kept_and_new(&self, x: &Tensor, decay: Option<f64>) -> [Tensor; 2] {
        let most = decay.unwrap_or(MOST_KEPT);
        match self.step().filter(|_| decay.is_none()) {
            None => [most, 1.0 - most].map(|part| x.scalar_like(part)),
            Some(step) => {
                let n = step.convert(DType::F32);
                let kept = ((&n + 1.0) / (&n + 10.0)).minimum(&n.scalar_like(most));
                let new = 1.0 - &kept;
                [kept, new]
            }
        }
    }

    /// Fake-quantizes by a trainable scale (LSQ); returns the values and the scale as exported.
    fn in_steps(
        &mut self,
        x: &Tensor,
        name: &str,
        (own, joint): (bool, &[String]),
        made: Option<ScaledSum>,
    ) -> (Tensor, Option<Tensor>) {
        let (step, zero) = if own {
            let names = ["step", "zero_point"].map(|what| format!("{name}_{what}"));
            let step = self.variable(&names[0], &[], &Initializer::Zeros, true);
            let zero = self.variable(&names[1], &[], &Initializer::Zeros, false);
            if self.training() {
                let [step, zero] = begun(x, [&step, &zero]);
                for (name, value) in names.iter().zip([&step, &zero]) {
                    self.update(name, value.clone());
                    self.replace_own(name, value);
                }
                (step, zero)
            } else {
                (step, zero)
            }
        } else {
            let at = joint.first().map_or("", String::as_str);
            let known = |what: &str| self.weight_beside(&format!("{at}_{what}"));
            let (Some(step), Some(zero)) = (known("step"), known("zero_point")) else {
                return (x.clone(), None);
            };
            (step, zero)
        };
        let [low, high] = [INT8.0, INT8.1].map(|end| -&zero + end);
        let features = x.ty().elements() / x.dim(0).max(1);
        let factor = (&high * features as f64).rsqrt();
        let is_empty = step.less_equal(&step.zeros_like());
        let step = is_empty.select(&step.ones_like(), &step);
        let in_file = Int8Params::of_range(&(&low * &step), &(&high * &step));
        let known = made.map(|made| made.steps(x, &in_file));
        let [step, low, high] =
            [&scaled_gradient(&step, &factor), &low, &high].map(|t| t.broadcast_to(x.shape()));
        let y = fake_learned(x, &step, [&low, &high], known.as_ref());
        (is_empty.select(x, &y), Some(in_file.step))
    }

    /// Fake-quantizes an intermediate value of the current layer, if it has a quantization point.
    pub(crate) fn rounded_within(&mut self, name: &str, x: Tensor) -> Tensor {
        self.rounded_scores(name, x, None)
    }

    /// Like [`Cx::rounded_within`] for attention scores: `scores: T[B, N, S, T], seen: bool[B, N, S, T] → T[B, N, S,
    /// T]`. Masked scores get the lowest level.
    pub(crate) fn rounded_scores(&mut self, name: &str, scores: Tensor, seen: Option<&Tensor>) -> Tensor {
        let own = self.own_quantizer();
        let slot =
            own.and_then(|own| own.within.iter().find(|(known, _)| known == name).map(|(_, s)| s.clone()));
        slot.map_or(scores.clone(), |slot| self.rounded_where(&slot, name, &scores, seen))
    }

    /// Reciprocal square root of an intermediate value: `x: f32[…] → f32[…]`. The integer operator saturates for 0, so
    /// the input is at least one quantization step here.
    pub(crate) fn root_within(&mut self, name: &str, x: &Tensor) -> Tensor {
        let Some(step) = self.step_of_value(x) else { return self.rounded_within(name, x.rsqrt()) };
        let root = x.maximum(&step.broadcast_to(x.shape())).rsqrt();
        self.made_as_root(&root, x);
        self.rounded_within(name, root)
    }

    /// Fake-quantizes a constant by its current range: `f32[…] → f32[…]`. The constant is an operand of a layer with
    /// intermediate quantization points, or its whole output.
    pub(crate) fn rounded_constant(&mut self, w: Tensor) -> Tensor {
        if self.own_quantizer().is_none_or(|own| own.within.is_empty() && !own.is_constant) {
            return w;
        }
        let zero = w.scalar_like(0.0);
        let all: Vec<usize> = (0..w.rank()).collect();
        let seen = w.stop_gradient();
        let (min, max) = (seen.reduce_min(&all).minimum(&zero), seen.reduce_max(&all).maximum(&zero));
        let is_empty = max.less_equal(&min);
        let max = is_empty.select(&(&min + 255.0), &max);
        let scale = Int8Params::of_range(&min, &max);
        let levels = QuantizationGrid::of(scale.step.clone(), scale.zero_point, INT8);
        let y = is_empty.select(&w, &levels.fake(&w, None));
        self.has_step(&y, &scale.step);
        y
    }

    /// Accumulator scale of a layer with a kernel: `f64[]`, or one per channel.
    pub(crate) fn unit_of_sums(&self) -> Option<Tensor> {
        let own = self.own_quantizer()?;
        let (slot, (weights, _)) = (own.sums.as_ref()?, self.quantization.weight_steps.as_ref()?);
        let step = match slot {
            QuantizationPoint::Fixed { scale, .. } => weights.scalar_like(*scale),
            QuantizationPoint::Range { joint, .. } => self.step_of(joint, own.ranges)?,
        };
        let steps = weights.ty().elements();
        let weights = if weights.rank() == 0 { weights.clone() } else { weights.reshape([steps]) };
        Some(step.stop_gradient().convert(DType::F64) * weights.stop_gradient().convert(DType::F64))
    }

    /// Whether the current layer's activation is a separate operator.
    pub(crate) fn has_inner(&self) -> bool {
        self.own_quantizer().is_some_and(|own| own.inner.is_some())
    }

    /// Fake-quantizes a bias to the accumulator's scale: input scale times kernel scale.
    fn rounded_bias(&self, b: Tensor) -> Tensor {
        let Some(unit) = self.unit_of_sums() else { return b };
        let unit = unit.broadcast_to(b.shape());
        let is_empty = unit.less_equal(&unit.zeros_like());
        let unit = is_empty.select(&unit.ones_like(), &unit);
        let whole = (b.stop_gradient().convert(DType::F64) / &unit).round_nearest_afz();
        is_empty.select(&b, &straight(&(whole * unit).convert(DType::F32), &b))
    }

    /// `f32[]`: scale of the joint range of these quantization points; 0 before the first batch.
    fn step_of(&self, joint: &[String], ranges: QuantizeRanges) -> Option<Tensor> {
        let of = |at: &String, what: &str| self.weight_beside(&format!("{at}_{what}"));
        if ranges == QuantizeRanges::Learned {
            let at = joint.first()?;
            let (step, zero) = (of(at, "step")?, of(at, "zero_point")?);
            let [low, high] = [INT8.0, INT8.1].map(|end| (-&zero + end) * &step);
            return Some(Int8Params::of_range(&low, &high).step);
        }
        let all = joint.iter().filter_map(|at| Some([of(at, "min")?, of(at, "max")?]));
        let [min, max] = all.reduce(|a, b| [a[0].minimum(&b[0]), a[1].maximum(&b[1])])?;
        Some(Int8Params::of_range(&min, &max).step)
    }

    /// Fake-quantizes a weight of the current layer. A kernel is rounded with the following batch normalization folded
    /// in; the factor is divided out again, because the batch normalization still runs.
    pub(crate) fn rounded_weight(&mut self, name: &str, w: Tensor) -> Tensor {
        let Some(own) = self.own_quantizer() else { return w };
        if name == "bias" {
            return self.rounded_bias(w);
        }
        let Some(kernel) = own.kernels.iter().find(|kernel| kernel.name == name) else { return w };
        let factor = kernel.folded.as_ref().and_then(|folded| self.factor(folded, &w));
        let whole = factor.as_ref().map_or(w.clone(), |factor| &w * factor);
        let dims = from_last(&kernel.channels, w.rank());
        let rounded = match own.ranges {
            QuantizeRanges::MovingAverage { .. } => {
                let steps = step_of_greatest(&whole, &dims);
                let others: Vec<usize> = (0..whole.rank()).filter(|d| !dims.contains(d)).collect();
                self.quantization.weight_steps =
                    Some((steps.reduce_max(&others), whole.rank() == 2 || self.is_within()));
                fake_weights(&whole, &steps)
            }
            QuantizeRanges::Learned => self.in_weight_steps(name, &whole, &dims),
        };
        factor.map_or(rounded.clone(), |factor| rounded / factor)
    }

    fn in_weight_steps(&mut self, name: &str, w: &Tensor, dims: &[usize]) -> Tensor {
        let name = format!("{name}_step");
        let shape: Vec<usize> = dims.iter().map(|&d| w.dim(d as isize)).collect();
        let step = self.variable(&name, &shape, &Initializer::Zeros, true);
        let is_empty = step.less_equal(&step.zeros_like());
        let step = if self.training() {
            let others: Vec<usize> = (0..w.rank()).filter(|d| !dims.contains(d)).collect();
            let first = first_step(&w.stop_gradient().abs().mean(&others), &step.scalar_like(NARROW));
            let step = is_empty.select(&first, &step);
            self.update(&name, step.clone());
            step
        } else {
            is_empty.select(&step.ones_like(), &step)
        };
        self.quantization.weight_steps = Some((step.clone(), w.rank() == 2 || self.is_within()));
        let each = w.ty().elements() / step.ty().elements().max(1);
        let factor = step.scalar_like((each as f64 * NARROW).sqrt().recip());
        let wide = |t: &Tensor| t.broadcast_in_dim(w.shape(), dims);
        let ends = [-NARROW, NARROW].map(|end| w.builder().full(w.ty(), end));
        let y = fake_learned(w, &wide(&scaled_gradient(&step, &factor)), [&ends[0], &ends[1]], None);
        if self.training() { y } else { wide(&is_empty).select(w, &y) }
    }

    /// Factor of each channel in a folded batch normalization, from its moving statistics: `f32[…]` of the kernel's
    /// shape.
    fn factor(&self, folded: &FoldedBatchNorm, w: &Tensor) -> Option<Tensor> {
        let of = |name: &str| self.weight_beside(&format!("{}/{name}", folded.layer));
        let inverse = (of("moving_variance")? + folded.epsilon).rsqrt();
        let factor = if folded.scale { inverse * of("gamma")? } else { inverse };
        // A channel with factor 0 is 0 regardless of its weights.
        let factor = factor.equal(&factor.zeros_like()).select(&factor.ones_like(), &factor);
        let dims = from_last(&folded.channels, w.rank());
        let shape: Vec<usize> = dims.iter().map(|&d| w.dim(d as isize)).collect();
        Some(factor.reshape(shape).broadcast_in_dim(w.shape(), &dims))
    }

    /// Applies an activation with fake-quantized input and intermediates, if the current layer has a quantizer.
    pub(crate) fn rounded_activation(&mut self, activation: Activation, x: &Tensor) -> Option<Tensor> {
        let own = self.own_quantizer()?;
        if own.inner.is_some() {
            self.made_of_weights(x, 1.0);
        }
        let x = own.inner.as_ref().map_or_else(|| x.clone(), |slot| self.rounded(slot, "inner", x));
        let y = match activation {
            // Two operators: the gate has its own quantization parameters.
            Activation::Silu => {
                let gate = self.rounded(&QuantizationPoint::SIGMOID, "gate", &x.logistic());
                let y = &x * &gate;
                self.made_as_product(&y, [&x, &gate]);
                y
            }
            other => {
                let y = other.apply(&x);
                match other {
                    Activation::Relu => self.made_as_leaky(&y, &x, 0.0),
                    Activation::LeakyRelu { negative_slope } => self.made_as_leaky(&y, &x, negative_slope),
                    _ => {}
                }
                y
            }
        };
        if activation.has_logits() {
            self.has_logits(&y, &x);
        }
        Some(y)
    }

    /// Fake-quantizes the value between the two kernels of a separable convolution.
    pub(crate) fn rounded_parts(&mut self, x: Tensor) -> Tensor {
        let own = self.own_quantizer();
        own.and_then(|own| own.parts.clone()).map_or(x.clone(), |slot| self.rounded(&slot, "parts", &x))
    }

    /// `bool[]`: whether the current batch normalization uses its moving statistics in training from this step on.
    pub(crate) fn statistics_rest(&self) -> Option<Tensor> {
        let delay = self.own_quantizer()?.freeze_bn_delay?;
        let step = self.step()?;
        let delay = step.builder().constant(Literal::from_slice([], &[delay]).ok()?);
        Some(step.greater_equal(&delay))
    }
}

/// Converts dimensions counted from the last (1) to indices.
fn from_last(dims: &[usize], rank: usize) -> Vec<usize> {
    dims.iter().map(|d| rank.saturating_sub(*d)).collect()
}

/// Updates a moving-average range with a batch. The range always contains 0; the first batch initializes it.
fn followed(x: &Tensor, [min, max]: [&Tensor; 2], [kept, new]: &[Tensor; 2]) -> [Tensor; 2] {
    let all: Vec<usize> = (0..x.rank()).collect();
    let x = x.stop_gradient();
    let zero = min.zeros_like();
    let seen = [x.reduce_min(&all).minimum(&zero), x.reduce_max(&all).maximum(&zero)];
    let is_empty = max.less_equal(min);
    let follow = |old: &Tensor, seen: &Tensor| is_empty.select(seen, &(old * kept + seen * new));
    [follow(min, &seen[0]), follow(max, &seen[1])]
}

/// `x: f32[…], seen: bool[…] → f32[…]`: replaces masked values by one slightly below the minimum, so that the range
/// includes the mask level.
fn with_hidden(x: &Tensor, seen: &Tensor) -> Tensor {
    let all: Vec<usize> = (0..x.rank()).collect();
    let x = x.stop_gradient();
    let least = seen.select(&x, &x.zeros_like()).reduce_min(&all) - BELOW;
    seen.select(&x, &least.broadcast_to(x.shape()))
}

/// Returns scale and zero point, initialized by the first batch: symmetric if it contains negative values, otherwise
/// unsigned.
fn begun(x: &Tensor, [step, zero]: [&Tensor; 2]) -> [Tensor; 2] {
    let all: Vec<usize> = (0..x.rank()).collect();
    let x = x.stop_gradient();
    let is_empty = step.less_equal(&step.zeros_like());
    let has_negative = x.reduce_min(&all).less(&zero.zeros_like());
    let first_zero = has_negative.select(&zero.zeros_like(), &zero.scalar_like(INT8.0));
    let zero = is_empty.select(&first_zero, zero);
    let first = first_step(&x.abs().mean(&all), &(-&zero + INT8.1));
    [is_empty.select(&first, step), zero]
}

/// Initial scale of LSQ: 2 · mean |x| / √Qp.
fn first_step(mean: &Tensor, most: &Tensor) -> Tensor {
    let first = mean * 2.0 / most.sqrt();
    let zero = first.zeros_like();
    first.less_equal(&zero).select(&first.ones_like(), &first)
}
