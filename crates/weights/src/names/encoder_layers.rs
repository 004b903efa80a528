//! Layers that families of encoders share: attention, feed-forward network, patches, pooling and classifier.

use super::family::{TextPooling, WeightFiles};
use super::hf_config::{DerivedModel, FamilyConfig};
use super::transformer_encoder::shape_of;
use systole_ir::{DType, Result, TensorType};
use systole_nn::layers::*;
use systole_nn::{Activation, Architecture, LayerNode, NodeInput, Symbol};

/// Tensor shapes of a family's files, with errors that name a missing tensor.
pub(crate) struct TensorSizes<'a> {
    pub files: &'a WeightFiles<'a>,
    pub prefix: &'a str,
    pub config: &'a FamilyConfig<'a>,
}

impl TensorSizes<'_> {
    /// Returns the shape of a tensor, with or without the prefix, if it exists.
    pub fn find<const N: usize>(&self, name: &str) -> Option<[usize; N]> {
        let tensors = self.files.tensors;
        shape_of::<N>(tensors, &format!("{}{name}", self.prefix)).or_else(|| shape_of::<N>(tensors, name))
    }

    /// # Errors
    /// If the tensor is missing or has another rank.
    pub fn of<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        self.find(name)
            .ok_or_else(|| self.config.wrong(format!("{}{name} is missing or has another rank", self.prefix)))
    }

    /// Counts the numbered modules that have a tensor: `encoder.layer.{}.norm1.bias`.
    pub fn count(&self, pattern: &str) -> usize {
        let has = |i: usize| {
            let name = pattern.replacen("{}", &i.to_string(), 1);
            self.files.has(&format!("{}{name}", self.prefix)) || self.files.has(&name)
        };
        (0..1000).take_while(|i| has(*i)).count()
    }
}

/// Activation inside a feed-forward network.
#[derive(Clone, Copy)]
pub(crate) enum HiddenActivation {
    Plain(Activation),
    /// `x · sigmoid(1.702 · x)`.
    QuickGelu,
}

impl HiddenActivation {
    /// Reads a key of config.json.
    ///
    /// # Errors
    /// If the activation is not supported.
    pub fn of(config: &FamilyConfig<'_>, key: &str, default: &'static str) -> Result<HiddenActivation> {
        let gelu = |approximate| HiddenActivation::Plain(Activation::Gelu { approximate });
        Ok(match config.text_or(key, default)? {
            "gelu" => gelu(false),
            "gelu_new" | "gelu_pytorch_tanh" => gelu(true),
            "relu" => HiddenActivation::Plain(Activation::Relu),
            "silu" | "swish" => HiddenActivation::Plain(Activation::Silu),
            "quick_gelu" => HiddenActivation::QuickGelu,
            other => {
                let known = "gelu, gelu_new, quick_gelu, relu and silu";
                return Err(config.wrong(format!("its {key} is {other}; supported are {known}")));
            }
        })
    }

    /// Applies a layer, then the activation.
    pub fn after(self, x: &Symbol, layer: LayerSpec) -> Symbol {
        match self {
            HiddenActivation::Plain(function) => x.apply(layer.activation(function)),
            HiddenActivation::QuickGelu => {
                let x = x.apply(layer);
                let gate = x.apply(rescaling(1.702)).apply(activation("sigmoid"));
                multiply().on(&[&x, &gate])
            }
        }
    }
}

/// An attention layer and its surroundings in an encoder block.
pub(crate) struct BlockLayers {
    pub heads: usize,
    pub head_dim: usize,
    pub causal: bool,
    pub use_bias: bool,
    pub dropout: f64,
    pub epsilon: f64,
    pub activation: HiddenActivation,
}

impl BlockLayers {
    /// Attention that is as wide as `width`, with biases and GELU.
    pub fn new(heads: usize, width: usize) -> BlockLayers {
        BlockLayers {
            heads,
            head_dim: width / heads.max(1),
            causal: false,
            use_bias: true,
            dropout: 0.0,
            epsilon: 1e-12,
            activation: HiddenActivation::Plain(Activation::Gelu { approximate: false }),
        }
    }

    /// Self-attention: `x: T[B, S, D] → T[B, S, D]`, with an optional bias of the scores.
    pub fn attention(&self, x: &Symbol, bias: Option<&Symbol>, name: String) -> Symbol {
        let layer = multi_head_attention(self.heads, self.head_dim)
            .dropout(self.dropout)
            .use_causal_mask(self.causal)
            .use_bias(self.use_bias)
            .name(name);
        match bias {
            Some(bias) => layer.use_attention_bias(true).on(&[x, bias]),
            None => x.apply(layer),
        }
    }

    pub fn norm(&self, x: &Symbol, name: String) -> Symbol {
        x.apply(layer_normalization().epsilon(self.epsilon).name(name))
    }

    /// Two dense layers with the activation between them.
    pub fn feed_forward(&self, x: &Symbol, widths: [usize; 2], names: [String; 2]) -> Symbol {
        let [first, second] = names;
        let inside = self.activation.after(x, dense(widths[0]).name(first));
        inside.apply(dense(widths[1]).name(second))
    }

    /// `x + dropout(y)`.
    pub fn residual(&self, x: &Symbol, y: &Symbol) -> Symbol {
        let y = if self.dropout > 0.0 { y.apply(dropout(self.dropout)) } else { y.clone() };
        add().on(&[x, &y])
    }
}

/// Images as a sequence of patches: `image: T[B, H, W, C] → T[B, patches, D]`.
pub(crate) fn patches(image: &Symbol, [width, side, size]: [usize; 3], use_bias: bool, name: &str) -> Symbol {
    let convolution = conv2d(width, size).strides(size).use_bias(use_bias).name(name);
    image.apply(convolution).apply(reshape([(side * side) as i64, width as i64]).name("patches"))
}

/// Number of patches along a side, of as many positions, of which `others` are not patches.
///
/// # Errors
/// If the patches are not square.
pub(crate) fn patch_side(config: &FamilyConfig<'_>, positions: usize, others: usize) -> Result<usize> {
    let side = positions.saturating_sub(others).isqrt();
    match side > 0 && side * side + others == positions {
        true => Ok(side),
        false => Err(config.wrong(format!("its {positions} positions are not {others} and a square"))),
    }
}

/// Embeddings of a text's tokens, which mask the padding.
pub(crate) fn token_embedding(files: &WeightFiles<'_>, rows: usize, width: usize) -> LayerSpec {
    let table = embedding(rows, width).name("token_embedding");
    match files.padding {
        Some(0) => table.mask_zero(true),
        Some(other) => table.padding_token(other),
        None => table,
    }
}

/// Appends the pooling of a text's tokens to a model that returns their features.
pub(crate) fn append_pooling(architecture: &mut Architecture, pooling: TextPooling) {
    let mut layers = match pooling.mean {
        true => vec![("mean_pooling", global_average_pooling1d())],
        false => vec![("first_step", first_step())],
    };
    if pooling.normalize {
        layers.push(("normalize", unit_normalization()));
    }
    for (name, layer) in layers {
        let (name, inputs) = (name.to_string(), vec![architecture.output]);
        architecture.nodes.push(LayerNode { layer: layer.name(&name), name, inputs });
        architecture.output = NodeInput::Layer(architecture.nodes.len() - 1);
    }
}

/// Normalizes the pixels of a model of images, 0 to 255, by its image processor's mean and standard deviation.
pub(crate) fn prepend_normalization(architecture: &mut Architecture, mean: &[f64], deviation: &[f64]) {
    let moved = |source: &mut NodeInput| {
        *source = match source {
            NodeInput::Input(_) => NodeInput::Layer(0),
            NodeInput::Layer(i) => NodeInput::Layer(*i + 1),
        }
    };
    architecture.nodes.iter_mut().flat_map(|node| &mut node.inputs).for_each(moved);
    moved(&mut architecture.output);
    architecture.more_outputs.iter_mut().for_each(moved);
    let name = "pixel_normalization".to_string();
    let variance: Vec<f64> = deviation.iter().map(|d| d * d).collect();
    let layer = normalization().mean(mean.to_vec()).variance(variance).name(&name);
    architecture.nodes.insert(0, LayerNode { name, layer, inputs: vec![NodeInput::Input(0)] });
}

/// BERT's pooled output: a dense layer with tanh on the first token.
fn first_pooled(x: &Symbol, width: usize) -> Symbol {
    let first = x.apply(first_step().name("first_step"));
    first.apply(dense(width).activation(Activation::Tanh).name("pooled_dense"))
}

/// Output of an encoder of texts: classes, the pooled output, or the features of each token, which the returned pooling
/// makes one vector.
///
/// # Errors
/// If config.json has another number of classes.
pub(crate) fn text_output(
    sizes: &TensorSizes<'_>,
    x: &Symbol,
    [width, classes]: [usize; 2],
    pooler: &str,
) -> Result<(Symbol, Option<TextPooling>)> {
    let head = sizes.config.head(classes)?;
    let pooling = sizes.files.pooling.filter(|_| classes == 0);
    let is_pooled = pooling.is_none() && (classes > 0 || sizes.find::<2>(pooler).is_some());
    let y = if is_pooled { classified(&first_pooled(x, width), classes, head) } else { x.clone() };
    Ok((y, pooling))
}

/// Classification layer, if there are classes.
pub(crate) fn classified(x: &Symbol, classes: usize, function: Activation) -> Symbol {
    match classes {
        0 => x.clone(),
        n => x.apply(dense(n).activation(function).name("predictions")),
    }
}

/// Model of token ids: `tokens: i32[S]`. With `pooling`, `output` are the features of the tokens.
///
/// # Errors
/// If config.json has an unknown key.
pub(crate) fn text_model(
    inputs: &[Symbol],
    output: &Symbol,
    length: usize,
    pooling: Option<TextPooling>,
    config: FamilyConfig<'_>,
) -> Result<DerivedModel> {
    let mut architecture = Architecture::functional(inputs, output)?;
    if let Some(pooling) = pooling {
        append_pooling(&mut architecture, pooling);
    }
    let types = vec![TensorType::new(DType::I32, [length]); inputs.len()];
    Ok(DerivedModel { architecture, inputs: types, config: config.finish()? })
}

/// Model of images or other values: `shape` is that of a sample.
///
/// # Errors
/// If config.json has an unknown key.
pub(crate) fn value_model(
    input: &Symbol,
    output: &Symbol,
    shape: &[usize],
    config: FamilyConfig<'_>,
) -> Result<DerivedModel> {
    Ok(DerivedModel {
        architecture: Architecture::functional(std::slice::from_ref(input), output)?,
        inputs: vec![TensorType::new(DType::F32, shape)],
        config: config.finish()?,
    })
}
