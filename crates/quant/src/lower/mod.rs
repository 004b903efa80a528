//! Lowers layers to float TFLite operators for one sample, `f32[1, …]`; one module per layer family.

mod activations;
mod attention;
mod call;
mod convolutions;
mod data_movement;
mod dense;
mod embeddings;
mod matmul;
mod merge_layers;
mod normalizations;
mod poolings;
mod recurrent;

use crate::builder::TfliteBuilder;
use attention::{AttentionHeads, EncoderBlock};
use call::QuantLayerCall;
use systole_ir::{DType, ErrorKind, Result, ResultExt, ensure, err};
use systole_nn::{LayerLowering, Model as Layers, NodeInput};
use systole_onnx::{OnnxModel as Onnx, OnnxRecurrent};
use systole_tflite::{TfliteModel, TfliteTensor};

/// Lowers a built model to a float TFLite graph `f32[1, …] → f32[1, …]`. Batch normalization and activations are folded
/// into preceding operators; training-only layers (dropout, noise) are dropped.
///
/// # Errors
/// If the model is not built, or a layer has no TFLite operators; names the layer.
pub fn lower(layers: &Layers) -> Result<TfliteModel> {
    lowered(layers).map(|(model, ..)| model)
}

/// Exports a built model as float ONNX, like [`lower`] and [`systole_onnx::export`], except that LSTM and GRU layers
/// become one ONNX operator if it computes the same, instead of unrolled steps. A model with a layer that has no
/// `.tflite` operators is exported from the graph of its forward pass ([`systole_onnx::export_graph`]).
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::gru, Model};
/// let mut model = Model::sequential([gru(3)]);
/// model.build(&[TensorType::new(F32, [5, 2])])?;
/// let onnx = systole_quant::onnx(&model)?;
/// assert!(onnx.graph.nodes.iter().any(|node| node.op == "GRU"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
///
/// # Errors
/// If an op of the forward pass has no counterpart in ONNX; names the op and its layer.
pub fn onnx(layers: &Layers) -> Result<Onnx> {
    let by_layers =
        lowered(layers).and_then(|(model, _, loops)| systole_onnx::export_with_loops(&model, &loops));
    match by_layers {
        Err(e) if e.kind() == ErrorKind::Unsupported => from_graph(layers),
        other => other,
    }
}

/// Exports the graph of the forward pass, for models with layers that have no `.tflite` operators. The batch is
/// symbolic if every op allows it, otherwise 1.
fn from_graph(layers: &Layers) -> Result<Onnx> {
    let weights = layers.weights().iter().map(|(_, w)| w.to_literal()).collect::<Result<Vec<_>>>()?;
    let inputs: Vec<String> = layers.architecture().inputs.iter().map(|i| i.name.to_string()).collect();
    let small = layers.inference_graph(2)?;
    let divides = |prime: &usize| {
        let outs = small.nodes.iter().flat_map(|node| &node.outs);
        outs.flat_map(|ty| ty.shape.iter()).any(|d| *d != 0 && d.is_multiple_of(*prime))
    };
    if let Some(prime) = BATCH_SIZES.into_iter().find(|prime| !divides(prime)) {
        let graph = layers.inference_graph(prime)?;
        match systole_onnx::export_graph(&graph, &weights, &inputs, Some(prime)) {
            Err(e) if e.kind() == ErrorKind::Unsupported => {}
            other => return other,
        }
    }
    systole_onnx::export_graph(&*layers.inference_graph(1)?, &weights, &inputs, None)
}

/// Batch sizes that stand for any: primes that divide no other size of most models.
const BATCH_SIZES: [usize; 4] = [7919, 7907, 7901, 7883];

/// Like [`lower`]; also returns the output tensor of each layer and the operators of recurrent layers.
pub(crate) fn lowered(layers: &Layers) -> Result<(TfliteModel, Vec<usize>, Vec<OnnxRecurrent>)> {
    let architecture = layers.architecture();
    if !layers.is_built() {
        return Err(err!(Config, "the model's shapes are not known yet")
            .hint("build the model, or load a trained model"));
    }
    let mut b = TfliteBuilder::new();
    let mut inputs = Vec::new();
    for spec in &architecture.inputs {
        let ty = spec.ty.as_ref().ok_or_else(|| err!(Config, "an input of the model has no shape"))?;
        let dims: Vec<usize> = std::iter::once(1).chain(ty.shape.iter().copied()).collect();
        let dtype = if ty.dtype.is_float() || ty.dtype == DType::U8 { DType::F32 } else { DType::I32 };
        inputs.push(b.tensor(TfliteTensor::new(&*spec.name, dims, dtype)));
    }
    b.model.inputs = inputs.clone();
    let readers = |source: NodeInput| {
        let of = architecture.nodes.iter().flat_map(|n| &n.inputs).filter(|s| **s == source).count();
        of + usize::from(architecture.output == source)
    };
    let (mut made, mut loops): (Vec<usize>, Vec<OnnxRecurrent>) = (Vec::new(), Vec::new());
    for (i, node) in architecture.nodes.iter().enumerate() {
        let of = |s: &NodeInput| match s {
            NodeInput::Input(i) => inputs[*i],
            NodeInput::Layer(i) => made[*i],
        };
        let row = layers.summary_rows().get(i);
        let row = row.ok_or_else(|| err!(Bug, "a layer of a built model has no shape"))?;
        let shape = row.output_shape.dims().to_vec();
        let output = std::iter::once(1).chain(shape).collect();
        let feeds = node.inputs.iter().map(of).collect();
        let loops = &mut loops;
        let mut call = QuantLayerCall { b: &mut b, layers, node, inputs: feeds, output, inner: None, loops };
        let y = operators(&mut call).at(|| format!("layer {}", node.name))?;
        // A layer without operators passes its input on, which then has the readers of both.
        let is_new = !node.inputs.iter().any(|s| of(s) == y);
        let more = readers(NodeInput::Layer(i));
        b.readers[y] = if is_new { more } else { b.readers[y].max(1) - 1 + more };
        made.push(y);
    }
    let output = match architecture.output {
        NodeInput::Input(i) => inputs[i],
        NodeInput::Layer(i) => made[i],
    };
    b.model.outputs = vec![output];
    b.model.check()?;
    Ok((b.model, made, loops))
}

/// Adds a layer's operators.
fn operators(call: &mut QuantLayerCall) -> Result<usize> {
    use LayerLowering::*;
    match &call.node.layer.layer().lowering()? {
        Identity | Regularization => Ok(call.input()),
        Dense { use_bias, activation } => dense::dense(call, *use_bias, *activation),
        Convolution(own) => convolutions::convolution(call, own),
        Pooling { max, size, strides, padding } => poolings::windows(call, *max, [size, strides], *padding),
        GlobalPooling { max: true } => poolings::global_max(call),
        GlobalPooling { max: false } => poolings::global_average(call),
        Activation(activation) => activations::function(call, *activation),
        Relu { max_value, negative_slope, threshold } => {
            activations::relu(call, *max_value, *negative_slope, *threshold)
        }
        LeakyRelu(slope) => Ok(activations::leaky_relu(call, *slope)),
        Elu(alpha) => activations::function(call, systole_nn::Activation::Elu { alpha: *alpha }),
        Softmax(axis) => activations::softmax(call, *axis),
        PRelu => activations::prelu(call),
        BatchNormalization { axis, epsilon, center, scale } => {
            normalizations::batch(call, *axis, *epsilon, [*scale, *center])
        }
        LayerNormalization { axis, epsilon, center, scale } => {
            normalizations::layer(call, axis, *epsilon, [*scale, *center])
        }
        Rescaling { scale, offset } => normalizations::rescaling(call, &[*scale], &[*offset]),
        Normalization { scale, offset } => normalizations::rescaling(call, scale, offset),
        ElementWise(join) => merge_layers::element_wise(call, *join),
        Concatenation(axis) => merge_layers::concatenate(call, *axis),
        Flatten | Reshape => data_movement::reshape(call),
        Permute(dims) => data_movement::permute(call, dims),
        Padding(edges) => data_movement::padding(call, edges),
        Cropping(edges) => data_movement::cropping(call, edges),
        UpSampling { bilinear } => data_movement::upsampling(call, *bilinear),
        Repeat => embeddings::repeat(call),
        Attention { heads, key_dim, value_dim, use_bias, causal, axes } => {
            ensure!(axes.as_ref().is_none_or(|axes| axes == &[1]), attention::other_axes());
            let prefix = String::new();
            let (use_bias, causal, heads) = (*use_bias, *causal, *heads);
            let of =
                AttentionHeads { prefix, heads, key_dim: *key_dim, value_dim: *value_dim, use_bias, causal };
            attention::multi_head(call, &of)
        }
        TransformerBlock { heads, causal, activation, epsilon, normalize_first } => {
            let block =
                EncoderBlock { activation: *activation, epsilon: *epsilon, is_first: *normalize_first };
            attention::transformer_block(call, *heads, *causal, &block)
        }
        Embedding { rows, mask_zero } => embeddings::embedding(call, *rows, *mask_zero),
        ReversibleEmbedding { rows, width, tie_weights, is_capped } => {
            embeddings::reversible(call, [*rows, *width], *tie_weights, *is_capped)
        }
        PositionEmbedding => embeddings::position(call),
        ClassToken => embeddings::class_token(call),
        FirstStep => embeddings::first_step(call),
        Recurrent(own) => recurrent::recurrent(call, own),
        Bidirectional { directions, join } => recurrent::bidirectional(call, directions, *join),
    }
}
