//! [`Cx`]: the context of a layer call, through which a layer requests weights, random numbers and updates.
//!
//! Weights, penalties, value metadata, random draws and quantization-aware training state are in `context`.

use crate::layer::activation::Activation;
use crate::layer::adapter::{Adapters, adapter_paths, is_adapter};
use crate::layer::constraint::Constraint;
use crate::layer::context::penalties_and_constraints::PenaltiesAndConstraints;
use crate::layer::context::quantization::TraceQuantization;
use crate::layer::context::random_draws::{RandomDraws, mix};
use crate::layer::context::values::ValueFacts;
use crate::layer::context::weights::TraceWeights;
use crate::layer::decoding_state::DecodingState;
use crate::layer::initializer::Initializer;
use crate::layer::precision::Precision;
use crate::layer::quantized_weight::{QuantizedWeightLayout, packed_paths};
use crate::layer::quantizer::{Quantizer, ScopedQuantizer};
use std::sync::Arc;
use systole_ir::op::{RngAlgorithm, RngBitGenerator};
use systole_ir::{DType, Error, GraphBuilder, Literal, Tensor, TensorType, err, rng};
use systole_runtime::Params;

pub use crate::layer::context::weights::WeightSpec;

/// Context of a layer call: graph builder, weights, training mode, precision, random numbers.
pub struct Cx {
    builder: GraphBuilder,
    path: Vec<String>,
    training: bool,
    precision: Precision,
    weights: TraceWeights,
    rules: PenaltiesAndConstraints,
    values: ValueFacts,
    draws: RandomDraws,
    /// Quantization-aware training state.
    pub(crate) quantization: TraceQuantization,
    /// Incremental decoding state, if this call continues a previous one.
    decoding: Option<DecodingState>,
    loops: bool,
    /// `f32[]`: override of the layers' moving-statistics update rate.
    statistics_part: Option<Tensor>,
    /// Inputs requested by a separately traced segment, in order.
    fed: Option<Vec<PieceInput>>,
}

/// Meaning of a parameter of a separately traced model segment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PieceInput {
    /// A weight, by path.
    Weight(String),
    /// A random draw, by its number within the step.
    Draw(u64),
}

impl Cx {
    /// Creates a context that records requested weights as graph parameters.
    pub fn collecting(builder: &GraphBuilder, precision: Precision) -> Cx {
        let cx = Cx::new(builder, Params::new(), precision);
        Cx { weights: TraceWeights { collecting: true, ..cx.weights }, ..cx }
    }

    /// Creates an inference context that binds `weights`.
    pub fn new(builder: &GraphBuilder, weights: Params, precision: Precision) -> Cx {
        Cx {
            builder: builder.clone(),
            path: Vec::new(),
            training: false,
            precision,
            weights: TraceWeights { bound: weights, ..TraceWeights::default() },
            rules: PenaltiesAndConstraints::default(),
            values: ValueFacts::default(),
            draws: RandomDraws::default(),
            quantization: TraceQuantization::default(),
            decoding: None,
            loops: false,
            statistics_part: None,
            fed: None,
        }
    }

    /// Turns it into a context for incremental decoding.
    pub(crate) fn decoding_with(self, decoding: DecodingState) -> Cx {
        Cx { decoding: Some(decoding), ..self }
    }

    /// Returns the incremental decoding state, if any.
    pub(crate) fn decoding(&self) -> Option<&DecodingState> {
        self.decoding.as_ref()
    }

    /// `→ T[shape]`: state that the current layer kept in the previous call, initially zeros. `None` unless decoding.
    pub(crate) fn kept(&self, name: &str, dtype: DType, shape: &[usize]) -> Option<Tensor> {
        Some(self.decoding.as_ref()?.kept(&format!("{}/{name}", self.path()), dtype, shape))
    }

    /// Keeps a value of the current layer for the next call.
    pub(crate) fn keep(&mut self, name: &str, value: &Tensor) {
        let path = format!("{}/{name}", self.path());
        if let Some(decoding) = &mut self.decoding {
            decoding.keep(path, value);
        }
    }

    /// Returns the state for the next call.
    pub(crate) fn into_kept(self) -> Params {
        self.decoding.map_or_else(Params::new, DecodingState::into_new)
    }

    /// Overrides the update rate (`f32[]`) of moving statistics in all layers.
    pub(crate) fn with_statistics_part(self, part: &Tensor) -> Cx {
        Cx { statistics_part: Some(part.clone()), ..self }
    }

    /// Returns a moving statistic updated with a batch: `f32[F], f32[F] → f32[F]`, keeping `momentum` of the old value.
    pub(crate) fn follow(&self, moving: &Tensor, batch: &Tensor, momentum: f64) -> Tensor {
        match &self.statistics_part {
            Some(part) => moving + (batch.stop_gradient() - moving) * part,
            None => moving * momentum + batch.stop_gradient() * (1.0 - momentum),
        }
    }

    /// Sets whether repeated identical segments of a model may become one loop.
    pub(crate) fn with_loops(self, loops: bool) -> Cx {
        Cx { loops, ..self }
    }

    /// Returns the setting of [`Cx::with_loops`].
    pub(crate) fn loops(&self) -> bool {
        self.loops
    }

    /// Creates a context for tracing a segment separately, after `before` draws, with parameters of `builder` as its
    /// inputs.
    pub(crate) fn apart(&self, builder: &GraphBuilder, before: usize) -> Cx {
        let key = self.draws.key.as_ref().map(|key| builder.parameter(key.ty().clone(), "key"));
        Cx {
            training: self.training,
            path: self.path.clone(),
            draws: RandomDraws { key, count: before, step: None },
            fed: Some(Vec::new()),
            ..Cx::collecting(builder, self.precision)
        }
    }

    /// Returns the inputs of a separately traced segment in parameter order, and the number of draws so far.
    pub(crate) fn fed(&mut self) -> (Vec<PieceInput>, usize) {
        (self.fed.take().unwrap_or_default(), self.draws.count)
    }

    /// Returns the key of all draws of the step; `None` outside training.
    pub(crate) fn draw_key(&self) -> Option<&Tensor> {
        self.draws.key.as_ref()
    }

    /// Returns the number of draws so far.
    pub(crate) fn draws(&mut self) -> &mut usize {
        &mut self.draws.count
    }

    /// Returns a weight of the model by path.
    pub(crate) fn known_weight(&self, path: &str) -> Option<&Tensor> {
        self.weights.bound.get(path)
    }

    /// Returns all weights by path.
    pub(crate) fn known_weights(&self) -> &Params {
        &self.weights.bound
    }

    /// Sets the value of any layer's weight after this step.
    pub(crate) fn update_at(&mut self, path: String, value: Tensor) {
        self.weights.updates.insert(path, value);
    }

    /// Turns the context into a training context whose random draws depend on `seed: u64[]` and `step: u64[]`.
    pub fn training_with(mut self, seed: &Tensor, step: &Tensor) -> Cx {
        self.training = true;
        self.draws.key = Some(mix(&(mix(seed) + step)));
        self.draws.step = Some(step.clone());
        self
    }

    /// `u64[]`: the step number; `None` outside training.
    pub(crate) fn step(&self) -> Option<&Tensor> {
        self.draws.step.as_ref()
    }

    /// Number of path components.
    pub(crate) fn depth(&self) -> usize {
        self.path.len()
    }

    /// Returns the path of a weight in a sibling of the layer with a quantizer.
    pub(crate) fn beside(&self, path: &str) -> String {
        let depth = self.quantization.quantizer.as_ref().map_or(0, |at| at.of_node.saturating_sub(1));
        self.path.iter().take(depth).map(String::as_str).chain([path]).collect::<Vec<_>>().join("/")
    }

    /// Runs `f` with the layer's own quantizer, if it has one.
    pub(crate) fn with_quantizer<R>(&mut self, own: &Arc<Quantizer>, f: impl FnOnce(&mut Cx) -> R) -> R {
        let depth = self.path.len();
        let before =
            self.quantization.quantizer.replace(ScopedQuantizer { depth, of_node: depth, own: own.clone() });
        let result = f(self);
        self.quantization.quantizer = before;
        result
    }

    /// Copies the logits and mask of `x` to `y`.
    pub(crate) fn stands_for(&mut self, y: &Tensor, x: &Tensor) {
        if let Some(logits) = self.logits_of(x) {
            self.has_logits(y, &logits);
        }
        if let Some(mask) = self.mask_of(x) {
            self.set_mask(y, &mask);
        }
    }

    /// Records the logits of `y`.
    pub(crate) fn has_logits(&mut self, y: &Tensor, logits: &Tensor) {
        self.values.logits.push((y.id(), logits.clone()));
    }

    /// Returns the graph builder of this trace.
    pub fn builder(&self) -> &GraphBuilder {
        &self.builder
    }

    /// Whether this is a training call (dropout is active, batch normalization uses batch statistics).
    pub fn training(&self) -> bool {
        self.training
    }

    /// Returns the precision policy of the model.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns the path of the current layer, such as `block_1/dense`.
    pub fn path(&self) -> String {
        self.path.join("/")
    }

    /// Runs `f` with `name` appended to the path of weights and graph nodes.
    pub fn scope<R>(&mut self, name: &str, f: impl FnOnce(&mut Cx) -> R) -> R {
        self.path.push(name.to_string());
        let before = self.quantization.quantizer.clone();
        if let Some(inner) = before.as_ref().and_then(|at| at.within(name, self.path.len())) {
            self.quantization.quantizer = Some(inner);
        }
        let builder = self.builder.clone();
        let result = builder.scope(name, || f(self));
        self.quantization.quantizer = before;
        self.path.pop();
        result
    }

    /// `→ T[shape]`: a trainable weight of the current layer, cast to the compute type.
    #[track_caller]
    pub fn weight(&mut self, name: &str, shape: &[usize], initializer: &Initializer) -> Tensor {
        self.variable(name, shape, initializer, true).convert(self.precision.compute_dtype())
    }

    /// `→ f32[shape]`: a weight of the current layer, uncast. Includes its LoRA adapters and fake quantization, if any.
    #[track_caller]
    pub fn variable(
        &mut self,
        name: &str,
        shape: &[usize],
        initializer: &Initializer,
        trainable: bool,
    ) -> Tensor {
        let stored = match self.packing_of(name, shape) {
            Some(packing) => self.unpacked(name, &packing),
            None => self.stored(name, shape, initializer, trainable),
        };
        let Some(([(_, a), (_, b)], scale)) = self.adapters_of(name, shape) else {
            return self.rounded_weight(name, stored);
        };
        let rows = a.ty().elements() / a.dim(-1).max(1);
        let product = a.reshape([rows, a.dim(-1)]).dot(&b).reshape(shape.to_vec());
        self.rounded_weight(name, stored + product * scale)
    }

    /// Returns how a weight of the current layer is quantized, if it is.
    fn packing_of(&self, name: &str, shape: &[usize]) -> Option<QuantizedWeightLayout> {
        let (depth, adapters) = self.weights.adapters.as_ref().filter(|(_, own)| !own.packed.is_empty())?;
        let inside: Vec<&str> = self.path.iter().skip(*depth).map(String::as_str).chain([name]).collect();
        adapters.packed.get(&inside.join("/")).filter(|packing| packing.shape() == shape).cloned()
    }

    /// Dequantizes a weight that is held as integers.
    #[track_caller]
    fn unpacked(&mut self, name: &str, packing: &QuantizedWeightLayout) -> Tensor {
        let ([numbers, scales], [of_numbers, of_scales]) = (packed_paths(name), packing.types());
        let numbers = self.stored_as(&numbers, &of_numbers, &Initializer::Zeros, false);
        let scales = self.stored_as(&scales, &of_scales, &Initializer::Zeros, false);
        match self.decoding {
            // Matrix products of one token read the integers directly.
            Some(_) => packing.unpacked_in_products(&numbers, &scales),
            None => packing.unpacked_in_graph(&numbers, &scales),
        }
    }

    /// `ids: I[…] → f32[…, D]`: rows of an embedding table that is held as integers. `None` if it is not, or has
    /// adapters.
    #[track_caller]
    pub(crate) fn packed_rows(&mut self, name: &str, shape: &[usize], ids: &Tensor) -> Option<Tensor> {
        self.decoding.as_ref()?;
        let packing = self.packing_of(name, shape)?;
        if self.adapters_of(name, shape).is_some() {
            return None;
        }
        let ([numbers, scales], [of_numbers, of_scales]) = (packed_paths(name), packing.types());
        let numbers = self.stored_as(&numbers, &of_numbers, &Initializer::Zeros, false);
        let scales = self.stored_as(&scales, &of_scales, &Initializer::Zeros, false);
        packing.rows_in_graph(&numbers, &scales, ids)
    }

    /// Returns A and B of a weight of the current layer with their names, and the factor of their product.
    pub(crate) fn adapters_of(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Option<([(String, Tensor); 2], f64)> {
        let (depth, adapters) = self.weights.adapters.clone()?;
        let inside: Vec<&str> = self.path.iter().skip(depth).map(String::as_str).chain([name]).collect();
        if !adapters.adapts(&inside.join("/")) {
            return None;
        }
        let [a, b] = adapters.shapes(shape)?;
        let [name_a, name_b] = adapter_paths(name);
        let a = self.stored(&name_a, &a, &Initializer::HeUniform, true);
        let b = self.stored(&name_b, &b, &Initializer::Zeros, true);
        Some(([(name_a, a), (name_b, b)], adapters.scale()))
    }

    /// Runs `f` with the layer's own adapters, if it has any.
    pub(crate) fn with_adapters<R>(
        &mut self,
        own: Option<&Arc<Adapters>>,
        f: impl FnOnce(&mut Cx) -> R,
    ) -> R {
        let Some(own) = own else { return f(self) };
        let before = self.weights.adapters.replace((self.path.len(), own.clone()));
        let result = f(self);
        self.weights.adapters = before;
        result
    }

    #[track_caller]
    fn stored(&mut self, name: &str, shape: &[usize], initializer: &Initializer, trainable: bool) -> Tensor {
        self.stored_as(name, &TensorType::new(DType::F32, shape), initializer, trainable)
    }

    #[track_caller]
    fn stored_as(
        &mut self,
        name: &str,
        ty: &TensorType,
        initializer: &Initializer,
        trainable: bool,
    ) -> Tensor {
        let path =
            if self.path.is_empty() { name.to_string() } else { format!("{}/{name}", self.path.join("/")) };
        if let Some(known) = self.weights.bound.get(&path) {
            let known = known.clone();
            if known.ty() != ty {
                return known.fail(
                    err!(Graph, "weight {path} has type {}, but this call needs {ty}", known.ty())
                        .because("weight shapes are fixed by the first input shape")
                        .hint(
                            "feed inputs of the shapes that the model was built with, or build a new model",
                        ),
                );
            }
            return known;
        }
        if !self.weights.collecting {
            let t = self.builder.scalar(DType::F32, 0.0);
            return t.fail(
                err!(Graph, "weight {path} is missing")
                    .because("the layer did not request this weight when the model was built")
                    .hint("request the same weights in training and inference"),
            );
        }
        let t = self.builder.parameter(ty.clone(), &path);
        if let Some(fed) = &mut self.fed {
            fed.push(PieceInput::Weight(path.clone()));
        }
        let spec = WeightSpec {
            path: path.clone(),
            shape: ty.shape.to_vec(),
            dtype: ty.dtype,
            initializer: initializer.clone(),
            trainable,
        };
        self.weights.specs.push(spec);
        self.weights.bound.insert(path, t.clone());
        t
    }

    /// Runs `f`, then sorts the weights it requested by sublayer as in `order`. Some layers call their sublayers in
    /// another order than Keras lists them.
    pub(crate) fn weights_in_order<R>(&mut self, order: &[&str], f: impl FnOnce(&mut Cx) -> R) -> R {
        let (before, prefix) = (self.weights.specs.len(), self.path.join("/").len());
        let result = f(self);
        let place = |w: &WeightSpec| {
            let own = w.path.get(prefix..).unwrap_or_default().trim_start_matches('/');
            order.iter().position(|part| own.split('/').next() == Some(*part))
        };
        self.weights.specs[before..].sort_by_key(|w| place(w).unwrap_or(order.len()));
        result
    }

    /// Sets the value of a non-trainable weight of the current layer after this step. For a trainable weight, sets the
    /// value that the optimizer starts from.
    pub fn update(&mut self, name: &str, value: Tensor) {
        let path =
            if self.path.is_empty() { name.to_string() } else { format!("{}/{name}", self.path.join("/")) };
        self.weights.updates.insert(path, value);
    }

    /// `→ u32[shape]`: random bits, determined by seed, step, layer and the layer's number of earlier draws. `None`
    /// outside training.
    #[track_caller]
    pub fn random_bits(&mut self, shape: &[usize]) -> Option<Tensor> {
        let state = self.random_state()?;
        let op = RngBitGenerator { algorithm: RngAlgorithm::Philox, ty: TensorType::new(DType::U32, shape) };
        Some(self.builder.emit(op, &[&state]).remove(1))
    }

    /// Returns the generator state for one draw of random bits, `→ u64[2]` ([`Cx::random_bits`]). `None` outside
    /// training.
    #[track_caller]
    pub fn random_state(&mut self) -> Option<Tensor> {
        let key = self.draws.key.clone()?;
        let draw = rng::hash_name(&self.path.join("/")) ^ rng::mix(self.draws.count as u64);
        self.draws.count += 1;
        let draw = match &mut self.fed {
            None => self.builder.constant(Literal::from_slice([], &[draw]).ok()?),
            Some(fed) => {
                fed.push(PieceInput::Draw(draw));
                self.builder.parameter(key.ty().clone(), "place")
            }
        };
        let key = key.xor(&draw).reshape([1]);
        Some(Tensor::concatenate(&[&key, &key.zeros_like()], 0))
    }

    /// Applies an activation. Records the inputs of softmax and sigmoid as the logits of their outputs.
    #[track_caller]
    pub fn activate(&mut self, activation: Activation, x: &Tensor) -> Tensor {
        if let Some(y) = self.rounded_activation(activation, x) {
            return y;
        }
        let y = activation.apply(x);
        if activation.has_logits() {
            self.has_logits(&y, x);
        }
        y
    }

    /// Adds a penalty on a weight of the current layer to the loss: once per weight, and not if it is frozen.
    pub(crate) fn penalize_weight(&mut self, name: &str, penalty: impl FnOnce() -> Tensor) {
        let path = self.path_of(name);
        let rests =
            self.weights.adapters.as_ref().is_some_and(|(_, own)| !own.others_train && !is_adapter(name));
        if !self.weights.frozen && !rests && !self.rules.penalties.iter().any(|(known, _)| *known == path) {
            self.penalize(path, penalty);
        }
    }

    /// Adds a penalty on the current layer's output to the loss.
    pub(crate) fn penalize_output(&mut self, penalty: impl FnOnce() -> Tensor) {
        // The trailing slash cannot occur in a weight's path.
        self.penalize(format!("{}/", self.path()), penalty);
    }

    fn penalize(&mut self, path: String, penalty: impl FnOnce() -> Tensor) {
        if !self.weights.collecting || self.fed.is_some() {
            self.rules.penalties.push((path, penalty()));
        }
    }

    /// Registers a constraint on a weight of the current layer, applied after each step.
    pub(crate) fn constrain(&mut self, name: &str, constraint: Constraint) {
        let path = self.path_of(name);
        self.rules.constrain(path, constraint);
    }

    /// Whether layers have penalties or constraints, which prevent rolling segments into a loop.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.has_some()
    }

    /// Returns the loss (`f32[]`) plus the penalties of paths selected by `is_meant`; clears all penalties.
    pub(crate) fn with_penalties(&mut self, loss: &Tensor, is_meant: impl Fn(&str) -> bool) -> Tensor {
        self.rules.with_penalties(loss, is_meant)
    }

    /// Applies the constraints to weights after an optimizer step.
    pub(crate) fn constrained(&self, weights: Params) -> Params {
        self.rules.constrained(weights)
    }

    /// Runs `f` for a layer with frozen weights.
    pub(crate) fn frozen<R>(&mut self, f: impl FnOnce(&mut Cx) -> R) -> R {
        let before = std::mem::replace(&mut self.weights.frozen, true);
        let result = f(self);
        self.weights.frozen = before;
        result
    }

    fn path_of(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/")
    }

    /// Returns the logits of a softmax or sigmoid output.
    pub fn logits_of(&self, y: &Tensor) -> Option<Tensor> {
        self.values.logits_of(y)
    }

    /// Returns the first output of a nested model and records the others; `outputs` is not empty.
    pub(crate) fn with_more_outputs(&mut self, outputs: Vec<Tensor>) -> Tensor {
        self.values.with_more_outputs(outputs)
    }

    /// Returns the outputs of a nested model after its first output `x`.
    pub(crate) fn more_outputs_of(&self, x: &Tensor) -> &[Tensor] {
        self.values.more_outputs_of(x)
    }

    /// Whether any nested model has several outputs.
    pub(crate) fn has_more_outputs(&self) -> bool {
        !self.values.more_outputs.is_empty()
    }

    /// Returns the Keras mask of a value, if it has one: `bool[B, S]`, the valid time steps.
    pub fn mask_of(&self, x: &Tensor) -> Option<Tensor> {
        self.values.mask_of(x)
    }

    /// Sets the mask of a value: `mask: bool[B, S]`, the valid time steps.
    pub fn set_mask(&mut self, x: &Tensor, mask: &Tensor) {
        self.values.set_mask(x, mask);
    }

    /// Whether any value has a mask.
    pub(crate) fn has_masks(&self) -> bool {
        !self.values.masks.is_empty()
    }

    /// Records an error of the current layer; reported with the layer's path when the graph is finished.
    #[track_caller]
    pub fn fail(&self, x: &Tensor, error: Error) -> Tensor {
        x.fail(error)
    }

    /// Returns the specifications of the weights that layers requested, in order.
    pub fn into_specs(self) -> Vec<WeightSpec> {
        self.weights.specs
    }

    /// Replaces a weight's value for the rest of this step.
    pub(crate) fn replace_weight(&mut self, path: &str, value: &Tensor) {
        self.weights.bound.insert(path, value.clone());
    }

    /// Like [`Cx::replace_weight`], but for a weight of the current layer, by name.
    pub(crate) fn replace_own(&mut self, name: &str, value: &Tensor) {
        self.weights.bound.insert(self.path_of(name), value.clone());
    }

    /// Takes the weight values set by this step, by path. Trainable weights have the value before the optimizer's
    /// update.
    pub fn take_updates(&mut self) -> Params {
        std::mem::take(&mut self.weights.updates)
    }
}
