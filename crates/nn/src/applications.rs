//! Whole architectures by the names of Keras's and KerasHub's: ResNet-50 and GPT-2, with their layers' names, order and
//! arguments. Depths and widths are arguments too, so that small relatives can be built and tested.

use crate::architecture::{Architecture, Symbol, any_input};
use crate::layers::*;
use crate::nearest::{unknown, with_reason};
use crate::{Activation, Initializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use systole_ir::{Error, ErrorKind, Result};

/// ResNet v1 with bottleneck blocks: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.ResNet50`.
///
/// Weights have Keras's names and order: `conv1_conv/kernel`, …, `conv5_block3_3_bn/moving_variance`,
/// `predictions/bias`. Source: He, Zhang, Ren and Sun 2015.
///
/// ```
/// use systole_nn::{Model, applications::ResNet50};
/// use systole_ir::{DType, TensorType};
/// let mut small = Model::new(ResNet50 { depths: vec![1, 2], width: 4, classes: 10, ..Default::default() }.architecture()?);
/// small.build(&[TensorType::new(DType::F32, [32, 32, 3])])?;
/// assert_eq!(small.output_type().unwrap().shape.dims(), [10]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ResNet50 {
    /// Number of classes. Default: 1000.
    pub classes: usize,
    /// Function of the last layer. Default: softmax.
    pub classifier_activation: Activation,
    /// Blocks in each stack. Default: \[3, 4, 6, 3\]; ResNet-101 has \[3, 4, 23, 3\], ResNet-152 \[3, 8, 36, 3\].
    pub depths: Vec<usize>,
    /// Filters of the first stack's inner convolutions; each stack has twice those of the one before. Default: 64.
    pub width: usize,
}

impl Default for ResNet50 {
    fn default() -> ResNet50 {
        ResNet50 {
            classes: 1000,
            classifier_activation: Activation::Softmax,
            depths: vec![3, 4, 6, 3],
            width: 64,
        }
    }
}

impl ResNet50 {
    /// The layers.
    ///
    /// # Errors
    /// When an argument is 0, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        at_least_1("resnet50", "classes", self.classes)?;
        at_least_1("resnet50", "width", self.width)?;
        at_least_1("resnet50", "depths", self.depths.iter().copied().min().unwrap_or(0))?;
        at_most("resnet50", "stacks in depths", self.depths.len(), MOST_STACKS)?;
        let blocks = self.depths.iter().fold(0, |sum: usize, d| sum.saturating_add(*d));
        at_most("resnet50", "blocks in depths", blocks, MOST_BLOCKS)?;
        let image = any_input("image");
        let x = image.apply(zero_padding2d(3).name("conv1_pad"));
        let x = convolved(&x, conv2d(self.width, 7).strides(2), "conv1").apply(relu_named("conv1_relu"));
        let mut x = x
            .apply(zero_padding2d(1).name("pool1_pad"))
            .apply(max_pooling2d(3).strides(2).name("pool1_pool"));
        for (stack, &depth) in self.depths.iter().enumerate() {
            let filters = self.width << stack;
            for block in 0..depth {
                let strides = if stack > 0 && block == 0 { 2 } else { 1 };
                let name = format!("conv{}_block{}", stack + 2, block + 1);
                x = bottleneck(&x, filters, strides, block == 0, &name);
            }
        }
        let y = x
            .apply(global_average_pooling2d().name("avg_pool"))
            .apply(dense(self.classes).activation(self.classifier_activation).name("predictions"));
        Architecture::functional(&[image], &y)
    }
}

/// `x: T[B, H, W, C] → T[B, H / strides, W / strides, 4·filters]`: 1×1, 3×3, 1×1, added to the input or, in a stack's
/// first block, to its projection.
fn bottleneck(x: &Symbol, filters: usize, strides: usize, project: bool, name: &str) -> Symbol {
    let part = |k: usize| format!("{name}_{k}");
    let shortcut = match project {
        true => convolved(x, conv2d(4 * filters, 1).strides(strides), &part(0)),
        false => x.clone(),
    };
    let relu = |k: usize| relu_named(&format!("{name}_{k}_relu"));
    let y = convolved(x, conv2d(filters, 1).strides(strides), &part(1)).apply(relu(1));
    let y = convolved(&y, conv2d(filters, 3).padding("same"), &part(2)).apply(relu(2));
    let y = convolved(&y, conv2d(4 * filters, 1), &part(3));
    let sum = add().name(format!("{name}_add")).on(&[&shortcut, &y]);
    sum.apply(relu_named(&format!("{name}_out")))
}

/// A convolution and the normalisation of its output.
fn convolved(x: &Symbol, convolution: LayerSpec, name: &str) -> Symbol {
    let normalization = batch_normalization().epsilon(1.001e-5).name(format!("{name}_bn"));
    x.apply(convolution.name(format!("{name}_conv"))).apply(normalization)
}

fn relu_named(name: &str) -> LayerSpec {
    activation("relu").name(name)
}

/// GPT-2: `tokens: I[B, S] → T[B, S, vocabulary_size]`: for each place the logits of the next token, as KerasHub's
/// `GPT2CausalLM`.
///
/// Token and position tables, `num_layers` pre-norm transformer blocks with causal attention, a normalisation, and the
/// token table again as the head. Source: Radford et al. 2019.
///
/// ```
/// use systole_nn::{Model, applications::Gpt2};
/// use systole_ir::{DType, TensorType};
/// let mut small = Model::new(
///     Gpt2 { vocabulary_size: 50, num_layers: 2, num_heads: 2, hidden_dim: 8, intermediate_dim: 16,
///            max_sequence_length: 12, ..Default::default() }.architecture()?,
/// );
/// small.build(&[TensorType::new(DType::I32, [12])])?;
/// assert_eq!(small.output_type().unwrap().shape.dims(), [12, 50]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpt2 {
    /// Number of tokens. Default: 50257.
    pub vocabulary_size: usize,
    /// Number of blocks. Default: 12.
    pub num_layers: usize,
    /// Heads of each attention. Default: 12.
    pub num_heads: usize,
    /// Width. Default: 768.
    pub hidden_dim: usize,
    /// Width inside the feed-forward part of a block. Default: 3072.
    pub intermediate_dim: usize,
    /// Fraction that is dropped while training. Default: 0.1.
    pub dropout: f64,
    /// Most tokens of a sequence. Default: 1024.
    pub max_sequence_length: usize,
    /// Whether the head is the token table. Default: true.
    pub tie_weights: bool,
    /// Whether blocks are computed again in the backward pass instead of kept. Default: false.
    pub remat: bool,
}

impl Default for Gpt2 {
    fn default() -> Gpt2 {
        Gpt2 {
            vocabulary_size: 50257,
            num_layers: 12,
            num_heads: 12,
            hidden_dim: 768,
            intermediate_dim: 3072,
            dropout: 0.1,
            max_sequence_length: 1024,
            tie_weights: true,
            remat: false,
        }
    }
}

/// GPT-2's own: normal draws of σ 0.02.
const GPT2_INITIALIZER: Initializer = Initializer::RandomNormal { mean: 0.0, stddev: 0.02 };

impl Gpt2 {
    /// The layers.
    ///
    /// # Errors
    /// When an argument is 0, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        at_least_1("gpt2", "vocabulary_size", self.vocabulary_size)?;
        at_least_1("gpt2", "hidden_dim", self.hidden_dim)?;
        at_least_1("gpt2", "max_sequence_length", self.max_sequence_length)?;
        at_most("gpt2", "num_layers", self.num_layers, MOST_BLOCKS)?;
        let tokens = any_input("tokens");
        let table = reversible_embedding(self.vocabulary_size, self.hidden_dim)
            .tie_weights(self.tie_weights)
            .embeddings_initializer(GPT2_INITIALIZER)
            .name("token_embedding");
        let x = tokens.apply(table.clone());
        let positions = position_embedding(self.max_sequence_length)
            .initializer(GPT2_INITIALIZER)
            .name("position_embedding");
        let x = add().name("embeddings_add").on(&[&x, &x.apply(positions)]);
        let mut x = x.apply(dropout(self.dropout).name("embeddings_dropout"));
        for i in 0..self.num_layers {
            x = x.apply(self.block().name(format!("transformer_layer_{i}")).remat(self.remat));
        }
        let x = x.apply(layer_normalization().epsilon(1e-5).name("layer_norm"));
        Architecture::functional(&[tokens], &x.apply(table))
    }

    fn block(&self) -> LayerSpec {
        transformer_block(self.intermediate_dim, self.num_heads)
            .dropout(self.dropout)
            .activation(Activation::Gelu { approximate: true })
            .layer_norm_epsilon(1e-5)
            .kernel_initializer(GPT2_INITIALIZER)
            .normalize_first(true)
            .use_causal_mask(true)
    }
}

fn at_least_1(application: &str, argument: &str, value: usize) -> Result<()> {
    if value == 0 {
        let what = format!("{application} needs {argument} of at least 1; it is 0");
        return Err(Error::new(ErrorKind::Config, what));
    }
    Ok(())
}

/// Blocks that are built at most: a slipped digit would take all memory before anything could be said.
const MOST_BLOCKS: usize = 1_000;
/// Each stack halves the picture and doubles the filters.
const MOST_STACKS: usize = 16;

fn at_most(application: &str, argument: &str, value: usize, most: usize) -> Result<()> {
    if value > most {
        let what = format!("{application} takes at most {most} {argument}; it is {value}");
        return Err(Error::new(ErrorKind::Config, what)
            .because("more are most likely a slip, and would take all memory before the first step")
            .hint("check the number's digits"));
    }
    Ok(())
}

/// The names that [`by_name`] takes.
pub const APPLICATIONS: [&str; 2] = ["resnet50", "gpt2"];

/// The architecture of a name with some of its arguments: `by_name("resnet50", &json!({"classes": 10}))`.
///
/// # Errors
/// When the name or an argument is unknown (names the nearest) or a value is wrong.
///
/// ```
/// use serde_json::json;
/// use systole_nn::applications::by_name;
/// let gpt2 = by_name("gpt2", json!({"num_layers": 2}).as_object().unwrap())?;
/// assert!(gpt2.nodes.iter().any(|p| p.name == "transformer_layer_1"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn by_name(name: &str, arguments: &Map<String, Value>) -> Result<Architecture> {
    match name {
        "resnet50" => with_arguments::<ResNet50>(name, arguments)?.architecture(),
        "gpt2" => with_arguments::<Gpt2>(name, arguments)?.architecture(),
        _ => Err(unknown(&format!("there is no application `{name}`"), name, &APPLICATIONS)),
    }
}

/// An application with some arguments replaced, one at a time, so that a wrong one is named.
fn with_arguments<A>(name: &str, arguments: &Map<String, Value>) -> Result<A>
where
    A: Default + Serialize + serde::de::DeserializeOwned,
{
    let broken = |e: serde_json::Error| Error::new(ErrorKind::Bug, e.to_string());
    let mut made = A::default();
    let mut config = serde_json::to_value(&made).map_err(broken)?;
    for (key, value) in arguments {
        let known: Vec<String> = config.as_object().into_iter().flatten().map(|(k, _)| k.clone()).collect();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        if !known.contains(&key.as_str()) {
            return Err(unknown(&format!("{name} has no argument `{key}`"), key, &known));
        }
        config[key] = value.clone();
        made = serde_json::from_value(config.clone()).map_err(|e| {
            let what = format!("{name}'s argument `{key}` cannot be {value}");
            with_reason(Error::new(ErrorKind::Config, what), &e.to_string())
        })?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_blocks_out_of_place_are_refused_before_anything_is_built() {
        let refused = |made: Result<Architecture>| made.err().unwrap().to_string();
        let deep =
            refused(Gpt2 { num_layers: 8_222_222_222_222_222_222, ..Default::default() }.architecture());
        assert!(deep.contains("at most 1000 num_layers; it is 8222222222222222222"), "{deep}");
        let deep = |depths| refused(ResNet50 { depths, ..Default::default() }.architecture());
        assert!(deep(vec![usize::MAX, 2]).contains("at most 1000 blocks in depths"));
        assert!(deep(vec![1; 70]).contains("at most 16 stacks in depths; it is 70"));
    }
}
