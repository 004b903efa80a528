//! Tracks quantization scales and integer expressions of values during quantization-aware training.
//!
//! The training graph rounds like the operators of the exported int8 file. Values without a known expression are
//! rounded as floats.

use crate::layer::cx::Cx;
use crate::layer::fixed_point::{RequantizeRounding, ScaledSum, ScaledTerm};
use crate::layer::lowering::ElementWise::{Add, Multiply, Subtract};
use crate::layer::lowering::LayerLowering;
use systole_ir::DType::{F32, F64};
use systole_ir::Tensor;

impl Cx {
    /// Returns the scale (`f32[]`) of a value that is an integer multiple of it, if known.
    pub(crate) fn step_of_value(&self, x: &Tensor) -> Option<Tensor> {
        self.quantization.levels.iter().rev().find(|(id, _)| *id == x.id()).map(|(_, step)| step.clone())
    }

    /// Records the scale of a value.
    pub(crate) fn has_step(&mut self, y: &Tensor, step: &Tensor) {
        self.quantization.levels.push((y.id(), step.stop_gradient()));
    }

    /// Records that `y` has the same scale as `x`.
    pub(crate) fn same_levels(&mut self, y: &Tensor, x: &Tensor) {
        if let Some(step) = self.step_of_value(x) {
            self.has_step(y, &step);
        }
    }

    /// Returns the integer expression of a value, if known.
    pub(crate) fn made_of(&self, x: &Tensor) -> Option<ScaledSum> {
        self.quantization.made.iter().rev().find(|(id, _)| *id == x.id()).map(|(_, made)| made.clone())
    }

    fn is_made(&mut self, y: &Tensor, made: ScaledSum) {
        self.quantization.made.push((y.id(), made));
    }

    /// Whether the scale of any value is known.
    pub(crate) fn has_levels(&self) -> bool {
        !self.quantization.levels.is_empty()
    }

    fn numbers(&self, x: &Tensor) -> Option<(Tensor, Tensor)> {
        let step = self.step_of_value(x)?;
        Some(((x.stop_gradient() / &step).round_nearest_afz(), step))
    }

    /// Records `y = a + b`, or `a − b`.
    pub(crate) fn made_as_sum(&mut self, y: &Tensor, [a, b]: [&Tensor; 2], is_difference: bool) {
        let (Some((a, of_a)), Some((b, of_b))) = (self.numbers(a), self.numbers(b)) else { return };
        let term =
            |numbers: Tensor, unit: Tensor| ScaledTerm { numbers: Some(numbers), unit: unit.convert(F64) };
        let terms = vec![term(a, of_a), term(if is_difference { -b } else { b }, of_b)];
        let value = Some(y.clone());
        self.is_made(y, ScaledSum { value, ..ScaledSum::of(terms, RequantizeRounding::Once) });
    }

    /// Records `y = x + constant` for a positive constant, which is the maximum of its own range.
    pub(crate) fn made_with_constant(&mut self, y: &Tensor, x: &Tensor, constant: f64) {
        let Some((numbers, step)) = self.numbers(x) else { return };
        let unit = f64::from((f64::from(constant as f32) / 255.0) as f32);
        let one = |numbers: Tensor, unit: Tensor| ScaledTerm { numbers: Some(numbers), unit };
        let of_constant = one(numbers.scalar_like(255.0), numbers.builder().scalar(F64, unit));
        let terms = vec![one(numbers, step.convert(F64)), of_constant];
        self.is_made(y, ScaledSum::of(terms, RequantizeRounding::Once));
    }

    /// Records `y = a · b`.
    pub(crate) fn made_as_product(&mut self, y: &Tensor, [a, b]: [&Tensor; 2]) {
        let (Some((a, of_a)), Some((b, of_b))) = (self.numbers(a), self.numbers(b)) else { return };
        let terms = vec![ScaledTerm { numbers: Some(a * b), unit: of_a * of_b }];
        let value = Some(y.clone());
        self.is_made(y, ScaledSum { value, ..ScaledSum::of(terms, RequantizeRounding::Twice) });
    }

    /// Records that `y` is a matrix product.
    pub(crate) fn made_as_matmul(&mut self, y: &Tensor, [a, b]: [&Tensor; 2]) {
        let (Some(a), Some(b)) = (self.step_of_value(a), self.step_of_value(b)) else { return };
        let unit = (a * b).convert(F64);
        self.is_made(y, ScaledSum::of(vec![ScaledTerm { numbers: None, unit }], RequantizeRounding::Twice));
    }

    /// Records that `y` is the mean of `x` over `dims`.
    pub(crate) fn made_as_mean(&mut self, y: &Tensor, x: &Tensor, dims: &[usize]) {
        let Some((numbers, step)) = self.numbers(x).filter(|_| self.mask_of(x).is_none()) else { return };
        let n: usize = dims.iter().map(|&d| x.dim(d as isize)).product();
        let sums = numbers.sum(dims).reshape(y.shape().clone());
        let terms = vec![ScaledTerm { numbers: Some(sums), unit: step.convert(F64) }];
        self.is_made(y, ScaledSum::of(terms, RequantizeRounding::TwiceInMean(n)));
    }

    /// Records a leaky ReLU as a separate operator: `y` is `x` if positive, otherwise `slope · x`.
    pub(crate) fn made_as_leaky(&mut self, y: &Tensor, x: &Tensor, slope: f64) {
        let Some((numbers, step)) = self.numbers(x) else { return };
        let above = Some(numbers.maximum(&numbers.scalar_like(0.0)));
        let of = |numbers: Option<Tensor>, unit: Tensor| {
            ScaledSum::of(vec![ScaledTerm { numbers, unit }], RequantizeRounding::Twice)
        };
        let below = (slope != 0.0).then(|| Box::new(of(Some(numbers), &step * slope)));
        self.is_made(y, ScaledSum { below, ..of(above, step) });
    }

    /// Records a reciprocal square root `y` of `x`, which saturates at the maximum level for 0.
    pub(crate) fn made_as_root(&mut self, y: &Tensor, x: &Tensor) {
        if self.step_of_value(x).is_some() {
            let beyond = Some(x.stop_gradient().less_equal(&x.zeros_like()));
            self.is_made(y, ScaledSum { beyond, ..ScaledSum::of(Vec::new(), RequantizeRounding::Once) });
        }
    }

    /// Records that `y` is `factor` times the product of the current layer's input and kernel.
    pub(crate) fn made_of_weights(&mut self, y: &Tensor, factor: f64) {
        let Some(unit) = self.unit_of_sums().map(|unit| unit * factor) else { return };
        let fits = unit.rank() == 0 || y.rank() > 0 && unit.shape().dims() == &y.shape()[y.rank() - 1..];
        if fits && y.dtype() == F32 {
            let is_dense = self.quantization.weight_steps.as_ref().is_some_and(|(_, is_dense)| *is_dense);
            let rounding = if is_dense { RequantizeRounding::Once } else { RequantizeRounding::Twice };
            self.is_made(y, ScaledSum::of(vec![ScaledTerm { numbers: None, unit }], rounding));
        }
    }

    /// Propagates scales and expressions of a layer's inputs to its output, before the output is rounded.
    pub(crate) fn hand_on_levels(&mut self, layer: Option<&LayerLowering>, inputs: &[Tensor], y: &Tensor) {
        use LayerLowering::*;
        match (layer, inputs) {
            (Some(ElementWise(Add)), [a, b]) => self.made_as_sum(y, [a, b], false),
            (Some(ElementWise(Subtract)), [a, b]) => self.made_as_sum(y, [a, b], true),
            (Some(ElementWise(Multiply)), [a, b]) => self.made_as_product(y, [a, b]),
            (Some(GlobalPooling { max: false }), [x]) => {
                self.made_as_mean(y, x, &(1..x.rank().max(2) - 1).collect::<Vec<_>>());
            }
            (Some(Pooling { max: false, .. }), [_]) => {
                self.is_made(y, ScaledSum::of(Vec::new(), RequantizeRounding::OfCodes));
            }
            (Some(Embedding { .. } | ReversibleEmbedding { .. }), [x]) if x.dtype().is_int() => {
                // An integer table: each row is rounded independently.
                self.is_made(y, ScaledSum::of(Vec::new(), RequantizeRounding::Once));
            }
            (Some(Relu { .. } | Activation(_)), [x]) => {
                // A batch normalization folded into the previous layer: other readers see the rounded value.
                if let Some(made) = self.made_of(x) {
                    self.is_made(y, made);
                }
            }
            (Some(own), [x]) if moves_elements(own) => match self.made_of(x) {
                Some(made)
                    if made.is_of_one_unit()
                        || made.is_of_units() && matches!(own, Pooling { .. } | GlobalPooling { .. }) =>
                {
                    self.is_made(y, made);
                }
                Some(_) => {}
                None => self.same_levels(y, x),
            },
            _ if self.has_inner() => {}
            _ => self.made_of_weights(y, 1.0),
        }
    }
}

/// Whether a layer only moves input elements or inserts zeros.
fn moves_elements(layer: &LayerLowering) -> bool {
    use LayerLowering::*;
    matches!(
        layer,
        Identity
            | Flatten
            | Reshape
            | Permute(_)
            | Repeat
            | Padding(_)
            | Cropping(_)
            | Pooling { max: true, .. }
            | GlobalPooling { max: true }
    )
}
