//! Pairs weights of torchvision's and Hugging Face's ResNets with Systole's: names, and an architecture with the same
//! strides.
//!
//! Keras's ResNet50 strides in a block's first convolution and adds biases; these ("v1.5") stride in the 3×3
//! convolution and have none. So they need their own architecture, with Keras's layer names.

use super::family::ModelFamily;
use super::hf_config::{DerivedModel, FamilyConfig};
use super::layer::{LayerInfo, ModelLayers};
use crate::weight_mapping::{OTHER_MODEL, WeightRule};
use serde_json::Value;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::Model;
use systole_nn::layers::{
    LayerSpec, activation, add, batch_normalization, conv2d, dense, global_average_pooling2d, max_pooling2d,
    zero_padding2d,
};
use systole_nn::{Architecture, Symbol, any_input};

pub(crate) const FAMILY: ModelFamily = ModelFamily {
    name: "ResNet",
    model_types: &["resnet"],
    about: "images: classes; also torchvision's files",
    prefix: |files| style(files.tensors).map(|_| ""),
    architecture: |files, _| architecture(files.tensors, files.config, style_of(files.tensors)?),
    is_one,
    rules: |model, files, _| rules(model, style_of(files.tensors)?),
    is_unused: |_, _, _| false,
};

/// Naming scheme of a ResNet file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ResNetNaming {
    Torchvision,
    /// With the common name prefix.
    HuggingFace(&'static str),
}

fn style_of(theirs: &[(String, Literal)]) -> Result<ResNetNaming> {
    style(theirs).ok_or_else(|| odd("its tensors do not have the names of a ResNet"))
}

/// Returns the naming scheme if the tensors are a ResNet's.
fn style(theirs: &[(String, Literal)]) -> Option<ResNetNaming> {
    let has = |name: &str| theirs.iter().any(|(n, _)| n == name);
    if has("conv1.weight") && has("layer1.0.conv1.weight") && has("layer1.0.bn1.weight") {
        return Some(ResNetNaming::Torchvision);
    }
    let prefixes = ["resnet.", ""];
    let found = prefixes.iter().find(|p| has(&format!("{p}embedder.embedder.convolution.weight")));
    found.map(|p| ResNetNaming::HuggingFace(p))
}

impl ResNetNaming {
    fn convolution(self, stack: usize, block: usize, k: usize) -> String {
        match self {
            ResNetNaming::Torchvision if k == 0 => format!("layer{stack}.{block}.downsample.0"),
            ResNetNaming::Torchvision => format!("layer{stack}.{block}.conv{k}"),
            ResNetNaming::HuggingFace(p) => format!("{}.convolution", hugging_face(p, stack, block, k)),
        }
    }

    fn normalization(self, stack: usize, block: usize, k: usize) -> String {
        match self {
            ResNetNaming::Torchvision if k == 0 => format!("layer{stack}.{block}.downsample.1"),
            ResNetNaming::Torchvision => format!("layer{stack}.{block}.bn{k}"),
            ResNetNaming::HuggingFace(p) => format!("{}.normalization", hugging_face(p, stack, block, k)),
        }
    }

    fn stem(self) -> [String; 2] {
        match self {
            ResNetNaming::Torchvision => ["conv1".into(), "bn1".into()],
            ResNetNaming::HuggingFace(p) => {
                ["convolution", "normalization"].map(|part| format!("{p}embedder.embedder.{part}"))
            }
        }
    }

    fn head(self) -> &'static str {
        match self {
            ResNetNaming::Torchvision => "fc",
            ResNetNaming::HuggingFace(_) => "classifier.1",
        }
    }
}

fn hugging_face(prefix: &str, stack: usize, block: usize, k: usize) -> String {
    let at = format!("{prefix}encoder.stages.{}.layers.{block}", stack - 1);
    if k == 0 { format!("{at}.shortcut") } else { format!("{at}.layer.{}", k - 1) }
}

/// Derives the layers from the tensors, and the input type.
///
/// # Errors
/// If the head or the stem is missing, or there is no block.
pub(crate) fn architecture(
    theirs: &[(String, Literal)],
    config: Option<&Value>,
    style: ResNetNaming,
) -> Result<DerivedModel> {
    // torchvision has no config.json.
    let config = config.filter(|_| style != ResNetNaming::Torchvision);
    let config = FamilyConfig::new("ResNet", &["resnet"], config)?;
    let [in_first_stage, in_bottleneck] = strides(&config)?;
    if !config.exists() && style != ResNetNaming::Torchvision {
        config.guess("relu, and strides in the 3×3 convolutions of each stage but the first");
    }
    let shape = |name: String| {
        let found = theirs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.shape().to_vec());
        found.ok_or_else(|| lacks(&name))
    };
    let has = |name: String| theirs.iter().any(|(n, _)| *n == name);
    let out = |name: String| -> Result<usize> { Ok(shape(name)?.first().copied().unwrap_or(0)) };
    let [stem, _] = style.stem();
    let (width, channels) = match shape(format!("{stem}.weight"))?[..] {
        [width, channels, 7, 7] => (width, channels),
        ref other => {
            return Err(odd(&format!("{stem}.weight has shape {other:?}, expected [width, channels, 7, 7]")));
        }
    };
    let image = any_input("image");
    let x = image.apply(zero_padding2d(3).name("conv1_pad"));
    let x = convolved(&x, conv2d(width, 7).strides(2), "conv1").apply(relu("conv1_relu"));
    let mut x = x.apply(zero_padding2d(1).name("pool1_pad"));
    x = x.apply(max_pooling2d(3).strides(2).name("pool1_pool"));
    let mut sizes = ResNetSizes::default();
    for stack in 1..=16 {
        for block in (0..1000).take_while(|b| has(format!("{}.weight", style.convolution(stack, *b, 1)))) {
            let filters = out(format!("{}.weight", style.convolution(stack, block, 1)))?;
            let third = format!("{}.weight", style.convolution(stack, block, 3));
            let wide = if has(third.clone()) { Some(out(third)?) } else { None };
            let shape = ResNetBlock {
                filters,
                wide,
                strides: if (stack > 1 || in_first_stage) && block == 0 { 2 } else { 1 },
                in_bottleneck,
                projects: has(format!("{}.weight", style.convolution(stack, block, 0))),
            };
            x = shape.apply(&x, &format!("conv{}_block{}", stack + 1, block + 1));
            sizes.add(stack, &shape);
        }
    }
    config.same("num_channels", channels)?;
    config.same("embedding_size", width)?;
    sizes.check(&config)?;
    let classes = out(format!("{}.weight", style.head()))?;
    let head = dense(classes).activation(config.head(classes)?).name("predictions");
    let y = x.apply(global_average_pooling2d().name("avg_pool")).apply(head);
    let inputs = vec![TensorType::new(DType::F32, [224, 224, channels])];
    Ok(DerivedModel {
        architecture: Architecture::functional(&[image], &y)?,
        inputs,
        config: config.finish()?,
    })
}

/// Sizes that config.json repeats.
#[derive(Default)]
struct ResNetSizes {
    depths: Vec<usize>,
    widths: Vec<usize>,
    is_bottleneck: bool,
}

impl ResNetSizes {
    fn add(&mut self, stack: usize, block: &ResNetBlock) {
        self.depths.resize(stack, 0);
        self.depths[stack - 1] += 1;
        self.widths.resize(stack, 0);
        self.widths[stack - 1] = block.wide.unwrap_or(block.filters);
        self.is_bottleneck |= block.wide.is_some();
    }

    fn check(&self, config: &FamilyConfig<'_>) -> Result<()> {
        config.same_list("depths", &self.depths)?;
        config.same_list("hidden_sizes", &self.widths)?;
        let kind = if self.is_bottleneck { "bottleneck" } else { "basic" };
        match config.text("layer_type")? {
            Some(other) if other != kind => {
                let why = format!("config.json: layer_type is {other}, but the tensors are of {kind} blocks");
                Err(config.wrong(why))
            }
            _ => Ok(()),
        }
    }
}

/// Returns whether the first stage strides, and whether bottlenecks stride in their first convolution.
fn strides(config: &FamilyConfig<'_>) -> Result<[bool; 2]> {
    if let Some(other) = config.text("hidden_act")?.filter(|name| *name != "relu") {
        return Err(config.wrong(format!("its hidden_act is {other}, expected relu")));
    }
    Ok([config.is("downsample_in_first_stage", false)?, config.is("downsample_in_bottleneck", false)?])
}

fn lacks(name: &str) -> Error {
    odd(&format!("{name} is missing"))
}

fn odd(why: &str) -> Error {
    Error::new(ErrorKind::Data, "the tensor names are a ResNet's, but the ResNet is incomplete")
        .because(why)
        .hint_command(OTHER_MODEL)
}

struct ResNetBlock {
    filters: usize,
    /// Filters of a bottleneck's third convolution.
    wide: Option<usize>,
    strides: usize,
    /// Whether a bottleneck strides in its first convolution, not in the second.
    in_bottleneck: bool,
    projects: bool,
}

impl ResNetBlock {
    fn apply(&self, x: &Symbol, name: &str) -> Symbol {
        let out = self.wide.unwrap_or(self.filters);
        let part = |k: usize| format!("{name}_{k}");
        let shortcut = match self.projects {
            true => convolved(x, conv2d(out, 1).strides(self.strides), &part(0)),
            false => x.clone(),
        };
        let wide = |x: &Symbol, k: usize, strides: usize| {
            let padded = x.apply(zero_padding2d(1).name(format!("{name}_{k}_pad")));
            convolved(&padded, conv2d(self.filters, 3).strides(strides), &part(k))
        };
        let y = match self.wide {
            Some(out) => {
                let [first, second] = if self.in_bottleneck { [self.strides, 1] } else { [1, self.strides] };
                let y = convolved(x, conv2d(self.filters, 1).strides(first), &part(1));
                let y = y.apply(relu(&format!("{name}_1_relu")));
                let y = wide(&y, 2, second).apply(relu(&format!("{name}_2_relu")));
                convolved(&y, conv2d(out, 1), &part(3))
            }
            None => {
                let y = wide(x, 1, self.strides).apply(relu(&format!("{name}_1_relu")));
                wide(&y, 2, 1)
            }
        };
        let sum = add().name(format!("{name}_add")).on(&[&shortcut, &y]);
        sum.apply(relu(&format!("{name}_out")))
    }
}

fn convolved(x: &Symbol, convolution: LayerSpec, name: &str) -> Symbol {
    let normalization = batch_normalization().epsilon(1e-5).momentum(0.9).name(format!("{name}_bn"));
    x.apply(convolution.use_bias(false).name(format!("{name}_conv"))).apply(normalization)
}

fn relu(name: &str) -> LayerSpec {
    activation("relu").name(name)
}

/// Whether a model has the layer names of Keras's ResNets.
pub(crate) fn is_one(model: &Model) -> bool {
    let has = |name: &str| model.architecture().nodes.iter().any(|n| n.name == name);
    has("conv1_conv") && has("conv2_block1_1_conv") && has("predictions")
}

/// Returns the rules for all layers of a ResNet.
///
/// # Errors
/// If a layer does not have a name of Keras's ResNets.
pub(crate) fn rules(model: &Model, style: ResNetNaming) -> Result<Vec<WeightRule>> {
    let layers = ModelLayers::of(model);
    let mut all = Vec::new();
    for layer in layers.weighted() {
        let name = theirs(&layer, style).ok_or_else(|| {
            Error::new(ErrorKind::Config, format!("layer {} has no name in PyTorch's ResNets", layer.name))
        })?;
        all.extend(layer.rules(&format!("{name}."))?);
    }
    Ok(all)
}

fn theirs(layer: &LayerInfo<'_>, style: ResNetNaming) -> Option<String> {
    let [convolution, normalization] = style.stem();
    match layer.name {
        "conv1_conv" => return Some(convolution),
        "conv1_bn" => return Some(normalization),
        "predictions" => return Some(style.head().into()),
        _ => {}
    }
    // conv3_block2_1_bn
    let mut parts = layer.name.split('_');
    let stack: usize = parts.next()?.strip_prefix("conv")?.parse().ok()?;
    let block: usize = parts.next()?.strip_prefix("block")?.parse().ok()?;
    let (k, kind): (usize, _) = (parts.next()?.parse().ok()?, parts.next()?);
    let (stack, block) = (stack.checked_sub(1).filter(|s| *s > 0)?, block.checked_sub(1)?);
    match kind {
        "conv" => Some(style.convolution(stack, block, k)),
        "bn" => Some(style.normalization(stack, block, k)),
        _ => None,
    }
}
