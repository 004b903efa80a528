//! [`Cx`]: where a layer's call happens. Weights, rules, facts about values, random draws and training for eight bits have each a part
//! of their own; rounding and levels are in `rounding` and `levels`.

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
use systole_ir::{DType, Error, ErrorKind, GraphBuilder, Literal, Tensor, TensorType, rng};
use systole_runtime::Params;

pub use crate::layer::context::weights::WeightSpec;

/// Where a layer's call happens: the graph, the weights, whether it trains, the precision, random numbers.
pub struct Cx {
    builder: GraphBuilder,
    path: Vec<String>,
    training: bool,
    precision: Precision,
    weights: TraceWeights,
    rules: PenaltiesAndConstraints,
    values: ValueFacts,
    draws: RandomDraws,
    /// How layers are trained for eight bits.
    pub(crate) quantization: TraceQuantization,
    /// Where the call goes on from one before it.
    decoding: Option<DecodingState>,
    loops: bool,
    /// `f32[]`: how much of the way to a batch's statistics the moving ones go, where not as the layer says.
    statistics_part: Option<Tensor>,
    /// What a piece that is traced on its own was fed, in order.
    fed: Option<Vec<PieceInput>>,
}

/// What a parameter of a piece that is traced on its own stands for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PieceInput {
    /// A weight, by its path.
    Weight(String),
    /// A random draw: the number that tells it from other draws of the step.
    Draw(u64),
}

impl Cx {
    /// A context that records what weights are asked for, with parameters of the graph standing for them.
    pub fn collecting(builder: &GraphBuilder, precision: Precision) -> Cx {
        let cx = Cx::new(builder, Params::new(), precision);
        Cx { weights: TraceWeights { collecting: true, ..cx.weights }, ..cx }
    }

    /// A context that binds `weights`, for prediction.
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

    /// Makes it a context of a call that goes on from one before it.
    pub(crate) fn decoding_with(self, decoding: DecodingState) -> Cx {
        Cx { decoding: Some(decoding), ..self }
    }

    /// Where the call goes on from, if it does.
    pub(crate) fn decoding(&self) -> Option<&DecodingState> {
        self.decoding.as_ref()
    }

    /// `→ T[shape]`: what the current layer kept in the call before, at first zeros; `None` where no call goes on from another.
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

    /// What the next call goes on from.
    pub(crate) fn into_kept(self) -> Params {
        self.decoding.map_or_else(Params::new, DecodingState::into_new)
    }

    /// Moving statistics go this part (`f32[]`) of the way to those of the batch, whatever their layers say.
    pub(crate) fn with_statistics_part(self, part: &Tensor) -> Cx {
        Cx { statistics_part: Some(part.clone()), ..self }
    }

    /// `f32[F], f32[F] → f32[F]`: a moving statistic after a batch with its own; `momentum` of it stays.
    pub(crate) fn follow(&self, moving: &Tensor, batch: &Tensor, momentum: f64) -> Tensor {
        match &self.statistics_part {
            Some(part) => moving + (batch.stop_gradient() - moving) * part,
            None => moving * momentum + batch.stop_gradient() * (1.0 - momentum),
        }
    }

    /// Whether equal pieces of a model may become one loop.
    pub(crate) fn with_loops(self, loops: bool) -> Cx {
        Cx { loops, ..self }
    }

    /// See [`Cx::with_loops`].
    pub(crate) fn loops(&self) -> bool {
        self.loops
    }

    /// A context for tracing a piece of the model on its own, after `before` draws, with parameters of `builder` in the
    /// place of what it is fed.
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

    /// What a piece that was traced on its own is fed, in the order of its parameters; and the draws made so far.
    pub(crate) fn fed(&mut self) -> (Vec<PieceInput>, usize) {
        (self.fed.take().unwrap_or_default(), self.draws.count)
    }

    /// The key of all draws of the step, where it trains.
    pub(crate) fn draw_key(&self) -> Option<&Tensor> {
        self.draws.key.as_ref()
    }

    /// How many draws were made so far.
    pub(crate) fn draws(&mut self) -> &mut usize {
        &mut self.draws.count
    }

    /// A weight of the model by its path.
    pub(crate) fn known_weight(&self, path: &str) -> Option<&Tensor> {
        self.weights.bound.get(path)
    }

    /// All weights by their paths.
    pub(crate) fn known_weights(&self) -> &Params {
        &self.weights.bound
    }

    /// Sets the value that a weight of any layer has after this step.
    pub(crate) fn update_at(&mut self, path: String, value: Tensor) {
        self.weights.updates.insert(path, value);
    }

    /// Makes it a training context whose random draws are functions of `seed: u64[]` and `step: u64[]`.
    pub fn training_with(mut self, seed: &Tensor, step: &Tensor) -> Cx {
        self.training = true;
        self.draws.key = Some(mix(&(mix(seed) + step)));
        self.draws.step = Some(step.clone());
        self
    }

    /// `u64[]`: the number of the step, where it trains.
    pub(crate) fn step(&self) -> Option<&Tensor> {
        self.draws.step.as_ref()
    }

    /// How many parts the path has.
    pub(crate) fn depth(&self) -> usize {
        self.path.len()
    }

    /// The path of a weight of a layer that stands beside the one with a quantiser.
    pub(crate) fn beside(&self, path: &str) -> String {
        let depth = self.quantization.quantizer.as_ref().map_or(0, |at| at.of_node.saturating_sub(1));
        self.path.iter().take(depth).map(String::as_str).chain([path]).collect::<Vec<_>>().join("/")
    }

    /// Runs `f` for a layer with a quantiser, or as before where it has none of its own.
    pub(crate) fn with_quantizer<R>(&mut self, own: &Arc<Quantizer>, f: impl FnOnce(&mut Cx) -> R) -> R {
        let depth = self.path.len();
        let before =
            self.quantization.quantizer.replace(ScopedQuantizer { depth, of_node: depth, own: own.clone() });
        let result = f(self);
        self.quantization.quantizer = before;
        result
    }

    /// What is known of `x` holds of `y`, too: its logits and its mask.
    pub(crate) fn stands_for(&mut self, y: &Tensor, x: &Tensor) {
        if let Some(logits) = self.logits_of(x) {
            self.has_logits(y, &logits);
        }
        if let Some(mask) = self.mask_of(x) {
            self.set_mask(y, &mask);
        }
    }

    /// Says what the logits of `y` are.
    pub(crate) fn has_logits(&mut self, y: &Tensor, logits: &Tensor) {
        self.values.logits.push((y.id(), logits.clone()));
    }

    /// The graph that is being built.
    pub fn builder(&self) -> &GraphBuilder {
        &self.builder
    }

    /// Whether this call trains (dropout drops, batch normalisation uses the batch).
    pub fn training(&self) -> bool {
        self.training
    }

    /// The precision policy.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The path of the layer being called.
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

    /// `→ T[shape]`: a trainable weight of the current layer in the compute type.
    #[track_caller]
    pub fn weight(&mut self, name: &str, shape: &[usize], initializer: &Initializer) -> Tensor {
        self.variable(name, shape, initializer, true).convert(self.precision.compute_dtype())
    }

    /// `→ f32[shape]`: a weight of the current layer as it is stored; with what its adapters add, and as eight bits would have it, where
    /// it has adapters or a quantiser.
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

    /// How a weight of the current layer is packed, if it is.
    fn packing_of(&self, name: &str, shape: &[usize]) -> Option<QuantizedWeightLayout> {
        let (depth, adapters) = self.weights.adapters.as_ref().filter(|(_, own)| !own.packed.is_empty())?;
        let inside: Vec<&str> = self.path.iter().skip(*depth).map(String::as_str).chain([name]).collect();
        adapters.packed.get(&inside.join("/")).filter(|packing| packing.shape() == shape).cloned()
    }

    /// A weight that is whole numbers in memory, as floats.
    #[track_caller]
    fn unpacked(&mut self, name: &str, packing: &QuantizedWeightLayout) -> Tensor {
        let ([numbers, scales], [of_numbers, of_scales]) = (packed_paths(name), packing.types());
        let numbers = self.stored_as(&numbers, &of_numbers, &Initializer::Zeros, false);
        let scales = self.stored_as(&scales, &of_scales, &Initializer::Zeros, false);
        match self.decoding {
            // Products of one token read the numbers themselves.
            Some(_) => packing.unpacked_in_products(&numbers, &scales),
            None => packing.unpacked_in_graph(&numbers, &scales),
        }
    }

    /// `ids: I[…] → f32[…, D]`: rows of a table of the current layer that is whole numbers in memory; `None`: it is not, or has adapters.
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

    /// A and B of a weight of the current layer with their names, and what their product is multiplied by.
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

    /// Runs `f` for a layer with adapters, or as before where it has none of its own.
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
                    Error::new(
                        ErrorKind::Graph,
                        format!("weight {path} is {}, this call needs {ty}", known.ty()),
                    )
                    .because("a layer keeps the weights of the first input shape it saw")
                    .hint("feed the shapes the model was built with, or build a new model"),
                );
            }
            return known;
        }
        if !self.weights.collecting {
            let t = self.builder.scalar(DType::F32, 0.0);
            return t.fail(
                Error::new(ErrorKind::Graph, format!("weight {path} is missing"))
                    .because("the layer did not ask for it when the model was built")
                    .hint("ask for the same weights whether training or not"),
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

    /// Runs `f`, after which the weights that it asked for stand in the order of their sublayers in `order`: some layers
    /// apply their parts in another order than that in which Keras lists them.
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

    /// Sets the value that a non-trainable weight of the current layer has after this step; of a trained one that which the
    /// optimizer starts from.
    pub fn update(&mut self, name: &str, value: Tensor) {
        let path =
            if self.path.is_empty() { name.to_string() } else { format!("{}/{name}", self.path.join("/")) };
        self.weights.updates.insert(path, value);
    }

    /// `→ u32[shape]`: random bits, a function of (seed, step, layer, how many draws the layer made before).
    /// `None` when not training.
    #[track_caller]
    pub fn random_bits(&mut self, shape: &[usize]) -> Option<Tensor> {
        let state = self.random_state()?;
        let op = RngBitGenerator { algorithm: RngAlgorithm::Philox, ty: TensorType::new(DType::U32, shape) };
        Some(self.builder.emit(op, &[&state]).remove(1))
    }

    /// `→ u64[2]`: the state of the generator behind [`Cx::random_bits`], for one draw. `None` when not training.
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

    /// Applies an activation, remembering softmax's and sigmoid's inputs as the logits of their outputs.
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

    /// Adds to the loss for a weight of the current layer: once, however often the layer is applied, and not where it is
    /// frozen.
    pub(crate) fn penalize_weight(&mut self, name: &str, penalty: impl FnOnce() -> Tensor) {
        let path = self.path_of(name);
        let rests =
            self.weights.adapters.as_ref().is_some_and(|(_, own)| !own.others_train && !is_adapter(name));
        if !self.weights.frozen && !rests && !self.rules.penalties.iter().any(|(known, _)| *known == path) {
            self.penalize(path, penalty);
        }
    }

    /// Adds to the loss for what the current layer gives.
    pub(crate) fn penalize_output(&mut self, penalty: impl FnOnce() -> Tensor) {
        // No weight has such a path.
        self.penalize(format!("{}/", self.path()), penalty);
    }

    fn penalize(&mut self, path: String, penalty: impl FnOnce() -> Tensor) {
        if !self.weights.collecting || self.fed.is_some() {
            self.rules.penalties.push((path, penalty()));
        }
    }

    /// Where a weight of the current layer is brought back to after each step.
    pub(crate) fn constrain(&mut self, name: &str, constraint: Constraint) {
        let path = self.path_of(name);
        self.rules.constrain(path, constraint);
    }

    /// Whether layers have penalties or constraints, which a piece of a loop cannot hand on.
    pub(crate) fn has_rules(&self) -> bool {
        self.rules.has_some()
    }

    /// `f32[]`: the loss with what layers have added, of paths that are meant; the rest is forgotten.
    pub(crate) fn with_penalties(&mut self, loss: &Tensor, is_meant: impl Fn(&str) -> bool) -> Tensor {
        self.rules.with_penalties(loss, is_meant)
    }

    /// Weights after a step of the optimizer, where their constraints want them.
    pub(crate) fn constrained(&self, weights: Params) -> Params {
        self.rules.constrained(weights)
    }

    /// Runs `f` for a layer whose weights do not train.
    pub(crate) fn frozen<R>(&mut self, f: impl FnOnce(&mut Cx) -> R) -> R {
        let before = std::mem::replace(&mut self.weights.frozen, true);
        let result = f(self);
        self.weights.frozen = before;
        result
    }

    fn path_of(&self, name: &str) -> String {
        self.path.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/")
    }

    /// The logits of a softmax's or sigmoid's output.
    pub fn logits_of(&self, y: &Tensor) -> Option<Tensor> {
        self.values.logits_of(y)
    }

    /// The first output of a model in the place of a layer, which remembers the others; `outputs` is not empty.
    pub(crate) fn with_more_outputs(&mut self, outputs: Vec<Tensor>) -> Tensor {
        self.values.with_more_outputs(outputs)
    }

    /// What a model in the place of a layer returned beside its first output `x`.
    pub(crate) fn more_outputs_of(&self, x: &Tensor) -> &[Tensor] {
        self.values.more_outputs_of(x)
    }

    /// Whether a model of several outputs stands in the place of a layer.
    pub(crate) fn has_more_outputs(&self) -> bool {
        !self.values.more_outputs.is_empty()
    }

    /// `bool[B, S]`: which steps of a value count, where a layer before it says so: Keras's mask.
    pub fn mask_of(&self, x: &Tensor) -> Option<Tensor> {
        self.values.mask_of(x)
    }

    /// Says which steps of a value count: `mask: bool[B, S]`.
    pub fn set_mask(&mut self, x: &Tensor, mask: &Tensor) {
        self.values.set_mask(x, mask);
    }

    /// Whether some value has a mask.
    pub(crate) fn has_masks(&self) -> bool {
        !self.values.masks.is_empty()
    }

    /// Records that a layer cannot take what it was given; surfaces with the layer's path when the graph is finished.
    #[track_caller]
    pub fn fail(&self, x: &Tensor, error: Error) -> Tensor {
        x.fail(error)
    }

    /// What was asked for while collecting, in order.
    pub fn into_specs(self) -> Vec<WeightSpec> {
        self.weights.specs
    }

    /// From now on a weight has another value in this step.
    pub(crate) fn replace_weight(&mut self, path: &str, value: &Tensor) {
        self.weights.bound.insert(path, value.clone());
    }

    /// As [`Cx::replace_weight`], of a weight of the current layer by its name.
    pub(crate) fn replace_own(&mut self, name: &str, value: &Tensor) {
        self.weights.bound.insert(self.path_of(name), value.clone());
    }

    /// New values of weights that a training step changes by itself, by path; of trained ones before the optimizer does.
    pub fn take_updates(&mut self) -> Params {
        std::mem::take(&mut self.weights.updates)
    }
}
