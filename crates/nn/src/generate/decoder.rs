//! Incremental decoding of language models with a KV cache: each token computes only its own position.
//!
//! Attention layers keep keys and values of earlier tokens, recurrent layers their states.

use crate::layer::adapter::Adapters;
use crate::layer::capability::IncrementalDecoding;
use crate::layer::decoding_state::DecodingState;
use crate::layer::lowering::LayerLowering;
use crate::layer::quantized_weight::packed_paths;
use crate::layer::{Cx, Precision};
use crate::layers::{BuiltIn, LAYER_NAMES, LayerSpec};
use crate::model::Model;
use crate::model::architecture::Architecture;
use crate::model::compiled_steps::{TracedStep, union};
use std::collections::BTreeMap;
use std::sync::Arc;
use systole_ir::{
    DType, Error, ErrorKind, GraphBuilder, Literal, Result, ResultExt, Tensor, TensorType, ensure, err,
};
use systole_runtime::{Backend, Buffer, Params, backend, jit};

/// Chunk sizes in which tokens are fed, so that only a few programs are compiled.
const PIECES: [usize; 4] = [512, 64, 8, 1];
/// Initial cache length. It doubles when full, because attention computes over the whole cache.
const LEAST_ROOM: usize = 64;

type DecodeInputs = (Params, Params, Params, Tensor, Tensor);

/// Incremental decoder of a language model: takes tokens, returns scores of the next token. Created by
/// [`Model::decoder`].
///
/// ```
/// use systole_ir::{DType::I32, TensorType};
/// use systole_nn::{applications::Gpt2, Model};
/// let small = Gpt2 { vocabulary_size: 50, num_layers: 1, num_heads: 2, hidden_dim: 8, intermediate_dim: 16,
///                    max_sequence_length: 12, ..Default::default() };
/// let mut model = Model::new(small.architecture()?);
/// model.build(&[TensorType::new(I32, [12])])?;
/// let mut decoder = model.decoder()?;
/// let scores = decoder.feed(&[3, 1, 4])?;
/// assert_eq!((scores.len(), decoder.position(), decoder.context()), (50, 3, 12));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct Decoder {
    step: TracedStep<DecodeInputs, (Tensor, Params)>,
    trainable: Params<Buffer>,
    frozen: Params<Buffer>,
    /// KV cache and recurrent states; empty before the first token.
    kept: Params<Buffer>,
    architecture: Arc<Architecture>,
    backend: Arc<dyn Backend>,
    precision: Precision,
    position: usize,
    /// Cache length in positions, at most the context.
    room: usize,
    context: usize,
    vocabulary: usize,
}

impl Model {
    /// Creates an incremental decoder of this language model.
    ///
    /// # Errors
    /// `Unsupported` if the model does not output next-token scores at each position of a token sequence, or if one of
    /// its layers depends on later positions.
    pub fn decoder(&self) -> Result<Decoder> {
        Decoder::of(self)
    }
}

impl Decoder {
    fn of(model: &Model) -> Result<Decoder> {
        let (context, vocabulary) = sizes(model)?;
        check_layers(&model.architecture)?;
        let (backend, precision) = match &model.compiled {
            Some(c) => (c.backend.clone(), c.config.precision),
            None => (backend("auto")?, Precision::Float32),
        };
        let room = LEAST_ROOM.min(context);
        let parts = match precision {
            Precision::Float32 => with_packed(model)?,
            _ => (model.architecture.clone(), model.state.trainable.clone(), model.state.frozen.clone()),
        };
        let (architecture, trainable, frozen) = &parts;
        Ok(Decoder {
            step: step_of(architecture, &backend, precision, room),
            trainable: trainable.clone(),
            frozen: frozen.clone(),
            kept: zeros(kept_types(architecture, precision, room)?),
            architecture: architecture.clone(),
            backend,
            precision,
            position: 0,
            room,
            context,
            vocabulary,
        })
    }

    /// Returns the context length: the sequence length of the model.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Returns the number of tokens fed to the decoder so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the vocabulary size of the language model.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary
    }

    /// Clears the decoder's KV cache and starts at position 0.
    pub fn restart(&mut self) {
        self.position = 0;
        let empty = |(path, kept): (&str, &Buffer)| (path.to_string(), Buffer::zeros(kept.ty().clone()));
        self.kept = self.kept.iter().map(empty).collect();
    }

    /// Feeds tokens to the decoder; returns the scores (logits) of the next token, `→ f32[vocabulary_size]`.
    ///
    /// # Errors
    /// If there are no tokens, one is outside the vocabulary, or the context would overflow. Nothing is fed then.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        self.check(tokens)?;
        self.make_room(self.position + tokens.len())?;
        let mut rest = tokens;
        let mut scores = Vec::new();
        while let Some(size) = PIECES.into_iter().find(|size| *size <= rest.len()) {
            let (piece, after) = rest.split_at(size);
            scores = self.feed_piece(piece)?;
            rest = after;
        }
        Ok(scores)
    }

    fn check(&self, tokens: &[u32]) -> Result<()> {
        let refuse = |what: String| Error::new(ErrorKind::Data, what);
        if tokens.is_empty() {
            return Err(refuse("no token was given to continue from".into()).hint("pass at least one token"));
        }
        if let Some(beyond) = tokens.iter().find(|id| **id as usize >= self.vocabulary) {
            return Err(refuse(format!(
                "token id {beyond} is out of range, the vocabulary has ids 0 to {}",
                self.vocabulary - 1
            ))
            .hint("use the tokenizer that the model was trained with"));
        }
        match self.position + tokens.len() <= self.context {
            true => Ok(()),
            false => Err(refuse(format!(
                "{} tokens after {} exceed the context length {}",
                tokens.len(),
                self.position,
                self.context
            ))
            .hint("restart the decoder with the last tokens, or use TextGenerator, which does so")),
        }
    }

    /// Extends the cache with zeros to at least `places` positions.
    fn make_room(&mut self, places: usize) -> Result<()> {
        if places <= self.room {
            return Ok(());
        }
        let room = places.next_power_of_two().min(self.context);
        let mut kept = Params::new();
        for (path, ty) in kept_types(&self.architecture, self.precision, room)? {
            let value = match self.kept.get(&path) {
                Some(old) if *old.ty() != ty => Buffer::from(extended(&old.to_literal()?, &ty)?),
                Some(old) => old.clone(),
                None => Buffer::zeros(ty),
            };
            kept.insert(path, value);
        }
        self.kept = kept;
        self.room = room;
        self.step = step_of(&self.architecture, &self.backend, self.precision, room);
        Ok(())
    }

    fn feed_piece(&mut self, piece: &[u32]) -> Result<Vec<f32>> {
        let ids: Vec<i32> = piece.iter().map(|id| *id as i32).collect();
        let tokens = Buffer::from(Literal::from_slice([1, ids.len()], &ids)?);
        let position = Buffer::from(Literal::from_slice([], &[self.position as i32])?);
        let kept = std::mem::take(&mut self.kept);
        let (scores, kept) =
            self.step.call((self.trainable.clone(), self.frozen.clone(), kept, tokens, position))?;
        self.kept = kept;
        self.position += piece.len();
        Ok(scores.to_literal()?.to_f32s())
    }
}

/// Returns the model with quantized weights of its file kept as integers, which single-token matrix products read
/// directly.
fn with_packed(model: &Model) -> Result<(Arc<Architecture>, Params<Buffer>, Params<Buffer>)> {
    let (trainable, frozen) = (&model.state.trainable, &model.state.frozen);
    let mut architecture = (*model.architecture).clone();
    let (mut gone, mut made) = (Vec::new(), Vec::new());
    for node in &mut architecture.nodes {
        // A token needs one row of a position table, which is cheaper to read than to dequantize.
        if node.layer.adapters().is_some()
            || matches!(node.layer.layer().lowering(), Ok(LayerLowering::PositionEmbedding))
        {
            continue;
        }
        let prefix = format!("{}/", node.name);
        let mut packed = BTreeMap::new();
        for (path, held) in model.packed_of(&prefix) {
            let held = held.for_products().at(|| format!("weight {prefix}{path}"))?;
            let [numbers, scales] = packed_paths(&format!("{prefix}{path}"));
            gone.push(format!("{prefix}{path}"));
            made.extend([(numbers, Buffer::from(held.numbers)), (scales, Buffer::from(held.scales))]);
            packed.insert(path, held.packing);
        }
        if !packed.is_empty() {
            let none =
                Adapters { rank: 1, alpha: 1.0, weights: Some(Vec::new()), others_train: false, packed };
            node.layer = node.layer.clone().with_adapters(Some(none));
        }
    }
    if gone.is_empty() {
        return Ok((model.architecture.clone(), trainable.clone(), frozen.clone()));
    }
    let left = |all: &Params<Buffer>| -> Vec<(String, Buffer)> {
        let kept = all.iter().filter(|(path, _)| !gone.iter().any(|g| g == path));
        kept.map(|(path, value)| (path.to_string(), value.clone())).collect()
    };
    let frozen = left(frozen).into_iter().chain(made).collect();
    Ok((Arc::new(architecture), left(trainable).into_iter().collect(), frozen))
}

/// Compiles a decoding step with a cache of `room` positions.
fn step_of(
    architecture: &Arc<Architecture>,
    backend: &Arc<dyn Backend>,
    precision: Precision,
    room: usize,
) -> TracedStep<DecodeInputs, (Tensor, Params)> {
    let of = architecture.clone();
    let traced: Box<dyn Fn(DecodeInputs) -> (Tensor, Params) + Send + Sync> =
        Box::new(move |(trainable, frozen, kept, tokens, position)| {
            let builder = position.builder().clone();
            let decoding = DecodingState::new(&position, room, kept);
            let cx = Cx::new(&builder, union(&trainable, &frozen), precision).decoding_with(decoding);
            decode(&of, cx, &tokens)
        });
    jit(traced).on(backend.clone()).named("decode step").flush_denormals(true).excess_precision(true)
}

fn zeros(types: Vec<(String, TensorType)>) -> Params<Buffer> {
    types.into_iter().map(|(path, ty)| (path, Buffer::zeros(ty))).collect()
}

/// Pads values with zeros to a type with larger dimensions.
fn extended(values: &Literal, ty: &TensorType) -> Result<Literal> {
    let (old, size) = (values.ty().clone(), ty.dtype.size());
    let (from, to) = (old.shape.strides(), ty.shape.strides());
    let mut bytes = vec![0u8; ty.elements() * size];
    let run = old.shape.dims().last().copied().unwrap_or(1);
    for at in (0..old.elements()).step_by(run.max(1)) {
        let place: usize = (0..old.rank()).map(|d| at / from[d] % old.shape[d] * to[d]).sum();
        bytes[place * size..][..run * size].copy_from_slice(&values.bytes()[at * size..][..run * size]);
    }
    Literal::from_bytes(ty.clone(), &bytes)
}

/// Traces a step `tokens: i32[1, S] → f32[V]`: scores after the last token, and the new cache.
fn decode(architecture: &Architecture, mut cx: Cx, tokens: &Tensor) -> (Tensor, Params) {
    let y = architecture.call(&mut cx, std::slice::from_ref(tokens));
    let y = cx.logits_of(&y).unwrap_or(y);
    let last = match y.rank() {
        3 => y.slice_dim(1, y.dim(1).saturating_sub(1), y.dim(1)).reshape([y.dim(2)]),
        _ => y,
    };
    (last.convert(DType::F32), cx.into_kept())
}

/// Returns names and types of the cache, by tracing one token.
fn kept_types(
    architecture: &Arc<Architecture>,
    precision: Precision,
    context: usize,
) -> Result<Vec<(String, TensorType)>> {
    let g = GraphBuilder::new("decode");
    let tokens = g.parameter(TensorType::new(DType::I32, [1, 1]), "tokens");
    let position = g.parameter(TensorType::scalar(DType::I32), "position");
    let decoding = DecodingState::new(&position, context, Params::new());
    let cx = Cx::collecting(&g, precision).decoding_with(decoding);
    let (scores, kept) = decode(architecture, cx, &tokens);
    let types = kept.iter().map(|(path, value)| (path.to_string(), value.ty().clone())).collect();
    g.finish(&[scores]).at(|| "incremental decoding".into())?;
    Ok(types)
}

/// Returns the sequence length and vocabulary size of a language model.
fn sizes(model: &Model) -> Result<(usize, usize)> {
    let input = match model.architecture.inputs.as_slice() {
        [one] => one.ty.as_ref(),
        _ => None,
    };
    let output = model.output_type();
    if let (Some(input), Some(output)) = (input, output)
        && input.dtype.is_int()
        && let (&[context], &[places, vocabulary]) = (input.shape.dims(), output.shape.dims())
        && context == places
        && context * vocabulary > 0
    {
        return Ok((context, vocabulary));
    }
    let shown = |ty: Option<&TensorType>| ty.map_or("unknown".into(), TensorType::to_string);
    Err(err!(Unsupported, "the model is not a language model")
        .because(format!(
            "the model maps {} to {}; a language model maps integers [S] to scores [S, tokens]",
            shown(input),
            shown(output)
        ))
        .hint("train a language model: systole train my.txt"))
}

fn check_layers(architecture: &Architecture) -> Result<()> {
    architecture.nodes.iter().try_for_each(|node| check_layer(&node.name, &node.layer))
}

fn check_layer(name: &str, layer: &LayerSpec) -> Result<()> {
    if let Some(model) = layer.nested() {
        return model.layers().into_iter().try_for_each(|(name, layer)| check_layer(name, layer));
    }
    let Err(e) = layer.layer().decoding() else { return Ok(()) };
    let e = e.at(format!("layer {name}"));
    ensure!(e.hint_text().is_none(), e);
    let keeps = |class: &&&str| {
        let layer = BuiltIn::with_defaults(class);
        layer.is_some_and(|own| matches!(own.layer().decoding(), Ok(IncrementalDecoding::Stateful)))
    };
    let mut able: Vec<&str> = LAYER_NAMES.iter().filter(keeps).copied().collect();
    able.sort_unstable();
    Err(e
        .hint(format!("use a model of {} and layers that process each position separately", able.join(", "))))
}
