//! Training for eight bits: what is asked for, and which layers of a structure get which places to round at. The places are those of the
//! operators that the crate `quant` writes: batch normalisation and relus are folded into what comes before them here as there.

mod attention;
mod tables;
pub(crate) mod trained_ranges;

use crate::did_you_mean::unknown;
use crate::layer::activation::Activation;
use crate::layer::quantizer::{Folded, Kernel, QuantizeRanges, Quantizer, Slot, input_name};
use crate::layers::{BatchNormalization, LayerNormalization, LayerSpec, ReLU};
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use crate::model::quantize_options::Quantize;
use crate::pattern::means;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use systole_ir::{Error, ErrorKind, Result, ResultExt};

impl Architecture {
    /// Whether layers of it are trained for eight bits.
    pub fn is_quantized(&self) -> bool {
        self.nodes.iter().any(|node| node.layer.quantizer().is_some())
    }

    /// With places to round at.
    ///
    /// # Errors
    /// Names the layer that has no form in eight bits.
    pub(crate) fn quantized(&self, options: &Quantize) -> Result<Architecture> {
        options.check()?;
        let quantizers = plan(self, options)?;
        let with = |(node, own): (&LayerNode, Quantizer)| LayerNode {
            layer: node.layer.clone().with_quantizer((!own.is_empty()).then_some(own)),
            ..node.clone()
        };
        Ok(Architecture { nodes: self.nodes.iter().zip(quantizers).map(with).collect(), ..self.clone() })
    }

    /// Without them.
    pub(crate) fn without_quantizers(&self) -> Architecture {
        let plain =
            |node: &LayerNode| LayerNode { layer: node.layer.clone().without_quantization(), ..node.clone() };
        Architecture { nodes: self.nodes.iter().map(plain).collect(), ..self.clone() }
    }
}

/// What makes a tensor of the int8 graph.
#[derive(Clone, Copy, PartialEq)]
enum Maker {
    /// A matrix within a layer of several.
    Inner,
    /// A convolution or dense layer, of the node; `takes_relu`, where relus are folded into it.
    Weights {
        node: usize,
        takes_relu: bool,
    },
    /// A sum, difference or product of two.
    Merge,
    /// The greatest of windows, or another shape: relus pass through.
    Values,
    /// Nothing: it is known before the model is given anything.
    Constant,
    Other,
}

/// A tensor of the int8 graph.
#[derive(Clone)]
struct Value {
    maker: Maker,
    /// Whether the maker has no activation and no batch normalisation folded into it yet.
    is_free: bool,
    /// What it holds the values of, in another shape.
    before: Option<usize>,
    readers: usize,
    /// Which tensors have one scale: the first of them.
    group: usize,
    /// Where its range is found: the node and the place there.
    place: Option<(usize, String)>,
    fixed: Option<Slot>,
    /// Whether a layer of floats makes it, or it is an input: who reads it rounds it.
    is_float: bool,
}

/// Layers with weights that are rounded.
const WEIGHTED: [&str; 6] =
    ["Conv2D", "Conv1D", "DepthwiseConv2D", "SeparableConv2D", "Conv2DTranspose", "Dense"];

/// Layers that give some of what they read, so that a relu after them may as well come before.
const VALUES: [&str; 6] =
    ["MaxPooling2D", "MaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling1D", "Flatten", "Reshape"];

/// Places on the way through a layer normalisation, in their order.
const WITHIN: [&str; 8] = ["mean", "centred", "squared", "variance", "sum", "rsqrt", "normalized", "scaled"];

/// The quantiser of each node.
fn plan(architecture: &Architecture, options: &Quantize) -> Result<Vec<Quantizer>> {
    check_structure(architecture, options)?;
    let nodes = &architecture.nodes;
    let mut plan = Plan {
        architecture,
        options,
        values: Vec::new(),
        made: Vec::new(),
        quantizers: vec![Quantizer::new(options.ranges); nodes.len()],
        borrowed: Vec::new(),
    };
    for _ in &architecture.inputs {
        plan.add(Maker::Other, None);
        if let Some(value) = plan.values.last_mut() {
            value.is_float = true;
        }
    }
    for (i, node) in nodes.iter().enumerate() {
        let before = plan.values.len();
        let y = plan.node(i).at(|| format!("layer {}", node.name))?;
        let more = architecture.readers(NodeInput::Layer(i));
        let value = &mut plan.values[y];
        let is_new = y >= before;
        value.readers = if is_new { more } else { value.readers.max(1) - 1 + more };
        plan.made.push(y);
    }
    Ok(plan.finish())
}

fn check_structure(architecture: &Architecture, options: &Quantize) -> Result<()> {
    let refuse = |what: String, hint: &str| Err(Error::new(ErrorKind::Unsupported, what).hint(hint));
    if !architecture.networks.is_empty() || !architecture.more_outputs.is_empty() {
        return refuse(
            "models of several networks or outputs are not trained for eight bits".into(),
            "leave quantize out, or train a model of one output",
        );
    }
    let names: Vec<&str> = architecture.nodes.iter().map(|node| node.name.as_str()).collect();
    if let Some(pattern) = options.skip.iter().find(|p| !names.iter().any(|name| means(p, name))) {
        return Err(unknown(
            &format!("`{pattern}` means no layer that could stay in floats"),
            pattern,
            &names,
        ));
    }
    // Tables are used for tokens and for floats; which of both it is, the plan sees.
    let is_table = |i: usize| architecture.nodes[i].layer.class_name() == "ReversibleEmbedding";
    let again = |(i, name): &(usize, &&str)| names[..*i].contains(*name) && !is_table(*i);
    names.iter().enumerate().find(again).map_or(Ok(()), |(_, name)| Err(used_twice(name)))
}

fn used_twice(name: &str) -> Error {
    let what = format!("layer {name} is used twice, and has one set of ranges");
    Error::new(ErrorKind::Unsupported, what).hint("give its uses layers of their own, or leave quantize out")
}

impl Architecture {
    fn readers(&self, source: NodeInput) -> usize {
        let of = self.nodes.iter().flat_map(|node| &node.inputs).filter(|s| **s == source).count();
        of + usize::from(self.output == source)
    }
}

struct Plan<'a> {
    architecture: &'a Architecture,
    options: &'a Quantize,
    values: Vec<Value>,
    /// What each node gives.
    made: Vec<usize>,
    quantizers: Vec<Quantizer>,
    /// Places that round by the range of a tensor whose range is found elsewhere.
    borrowed: Vec<(usize, String, usize)>,
}

fn config<T: DeserializeOwned>(layer: &LayerSpec) -> Result<T> {
    serde_json::from_value(layer.layer().config()).map_err(|e| {
        Error::new(ErrorKind::Bug, format!("the arguments of {} cannot be read", layer.class_name()))
            .because(e.to_string())
    })
}

/// The activation of a layer's arguments.
fn activation_of(layer: &LayerSpec) -> Result<Activation> {
    #[derive(Deserialize)]
    struct Has {
        #[serde(default)]
        activation: Activation,
    }
    config::<Has>(layer).map(|has| has.activation)
}

impl Plan<'_> {
    fn add(&mut self, maker: Maker, before: Option<usize>) -> usize {
        let group = self.values.len();
        self.values.push(Value {
            maker,
            is_free: true,
            before,
            readers: 0,
            group,
            place: None,
            fixed: None,
            is_float: false,
        });
        group
    }

    /// A tensor with a range of its own.
    fn add_at(&mut self, maker: Maker, node: usize, place: &str) -> usize {
        let y = self.add(maker, None);
        self.values[y].place = Some((node, place.into()));
        y
    }

    /// A tensor of the scale of another.
    fn add_alike(&mut self, maker: Maker, x: usize) -> usize {
        let y = self.add(maker, Some(x));
        self.join(y, x);
        y
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.values[a].group, self.values[b].group);
        let (least, other) = (a.min(b), a.max(b));
        self.values.iter_mut().filter(|v| v.group == other).for_each(|v| v.group = least);
    }

    fn fixed_of(&self, x: usize) -> Option<Slot> {
        let group = self.values[x].group;
        self.values.iter().filter(|v| v.group == group).find_map(|v| v.fixed.clone())
    }

    fn layer(&self, node: usize) -> &LayerSpec {
        &self.architecture.nodes[node].layer
    }

    fn stays_in_floats(&self, node: usize) -> bool {
        self.options.skip.iter().any(|pattern| means(pattern, &self.architecture.nodes[node].name))
    }

    /// What the node gives.
    fn node(&mut self, node: usize) -> Result<usize> {
        let sources = self.architecture.nodes[node].inputs.clone();
        let inputs: Vec<usize> = sources
            .iter()
            .map(|s| match s {
                NodeInput::Input(i) => *i,
                NodeInput::Layer(i) => self.made[*i],
            })
            .collect();
        let x = inputs[0];
        let class = self.layer(node).class_name();
        if let Some(y) = self.folded(node, class, x)? {
            return Ok(y);
        }
        if class == "PositionEmbedding" {
            return Ok(self.position_embedding(node));
        }
        if self.stays_in_floats(node) {
            self.quantizers[node].is_float = true;
            return self.float_node(node, class, &inputs);
        }
        let y = self.rounded_node(node, class, &inputs)?;
        inputs.iter().enumerate().for_each(|(k, &x)| self.read(node, k, x));
        Ok(y)
    }

    /// What the node gives in floats, with what may be folded into it.
    fn float_node(&mut self, node: usize, class: &str, inputs: &[usize]) -> Result<usize> {
        let mut is_free = true;
        let (maker, before) = match class {
            _ if WEIGHTED.contains(&class) => match activation_of(self.layer(node))? {
                Activation::Silu => (Maker::Merge, None),
                activation => {
                    let takes_relu = class != "Conv2DTranspose";
                    is_free = activation == Activation::Linear;
                    (Maker::Weights { node, takes_relu }, None)
                }
            },
            "Activation" if activation_of(self.layer(node))? == Activation::Silu => (Maker::Merge, None),
            // They end with a sum or a product.
            "Add" | "Subtract" | "Multiply" | "Average" | "BatchNormalization" | "LayerNormalization"
            | "Rescaling" | "TransformerBlock" => (Maker::Merge, None),
            "MultiHeadAttention" => (Maker::Inner, None),
            _ if VALUES.contains(&class) => (Maker::Values, Some(inputs[0])),
            _ => (Maker::Other, None),
        };
        let mut y = self.add(maker, before);
        (self.values[y].is_float, self.values[y].is_free) = (true, is_free);
        if class == "Conv1D" {
            y = self.add(Maker::Values, Some(y));
            self.values[y].is_float = true;
        }
        Ok(y)
    }

    /// A value of floats is rounded by who reads it; the first one has its range.
    fn read(&mut self, node: usize, k: usize, x: usize) {
        if self.reads_tokens(node, x) {
            return;
        }
        let value = &mut self.values[x];
        if !value.is_float {
            return;
        }
        value.place.get_or_insert((node, input_name(k)));
        let inputs = &mut self.quantizers[node].inputs;
        inputs.resize(inputs.len().max(k + 1), None);
        self.borrowed.push((node, input_name(k), x));
    }

    /// What becomes part of the layer before, whether that is in eight bits or not.
    fn folded(&mut self, node: usize, class: &str, x: usize) -> Result<Option<usize>> {
        let y = match class {
            "Identity"
            | "Dropout"
            | "SpatialDropout1D"
            | "SpatialDropout2D"
            | "SpatialDropout3D"
            | "GaussianNoise"
            | "GaussianDropout"
            | "AlphaDropout"
            | "ActivityRegularization" => Some(x),
            "BatchNormalization" => self.batch_normalization(node, x)?,
            "Rescaling" => {
                if self.weights_before(x).is_some() {
                    return Err(self.unfit(node, "Rescaling behind weights"));
                }
                None
            }
            "Activation" if activation_of(self.layer(node))? == Activation::Linear => Some(x),
            "ReLU" | "Activation" if is_relu(self.layer(node))? => self.relu(node, x)?,
            _ => None,
        };
        Ok(y)
    }

    /// The node whose weights make a tensor that nothing else reads, without activation.
    fn weights_before(&self, x: usize) -> Option<usize> {
        let value = &self.values[x];
        match value.maker {
            Maker::Weights { node, .. } if value.readers <= 1 && value.is_free => Some(node),
            _ => None,
        }
    }

    fn batch_normalization(&mut self, node: usize, x: usize) -> Result<Option<usize>> {
        let own: BatchNormalization = config(self.layer(node))?;
        self.quantizers[node].freeze_bn_delay = self.options.freeze_bn_delay;
        let Some(before) = self.weights_before(x) else { return Ok(None) };
        let Some(kernel) = self.quantizers[before].kernels.last() else {
            // Its weights stay floats.
            return Ok(Some(x));
        };
        if kernel.folded.is_some() {
            return Err(self.unfit(node, "a second batch normalisation"));
        }
        let class = self.layer(before).class_name();
        if class == "ReversibleEmbedding" {
            return Err(self.unfit(node, "BatchNormalization behind a ReversibleEmbedding"));
        }
        let layer = self.architecture.nodes[node].name.clone();
        let channels = channels_of(class, &kernel.name);
        if let Some(kernel) = self.quantizers[before].kernels.last_mut() {
            kernel.folded = Some(Folded { layer, epsilon: own.epsilon, scale: own.scale, channels });
        }
        self.move_place(x, node);
        Ok(Some(x))
    }

    /// The range of a tensor is found behind a later node that is part of it.
    fn move_place(&mut self, x: usize, node: usize) {
        let value = &mut self.values[x];
        if value.place.is_some() && !value.is_float {
            value.place = Some((node, "output".into()));
        }
    }

    /// A relu in the operator that makes what it reads, if that takes one.
    fn relu(&mut self, node: usize, x: usize) -> Result<Option<usize>> {
        let mut at = x;
        while self.values[at].maker == Maker::Values && self.values[at].readers <= 1 {
            let Some(before) = self.values[at].before else { return Ok(None) };
            at = before;
        }
        let value = &self.values[at];
        let takes =
            matches!(value.maker, Maker::Weights { takes_relu: true, .. } | Maker::Merge | Maker::Inner);
        if !takes || value.readers > 1 || !value.is_free {
            return Ok(None);
        }
        if value.is_float != self.values[x].is_float {
            return Err(self.unfit(node, "a relu on the other side of a layer in floats"));
        }
        self.values[at].is_free = false;
        if at != x {
            self.values[x].place = self.values[at].place.take();
        }
        self.move_place(x, node);
        Ok(Some(x))
    }

    /// What the node gives in eight bits.
    fn rounded_node(&mut self, node: usize, class: &str, inputs: &[usize]) -> Result<usize> {
        let x = inputs[0];
        let is_constant = |x: &usize| self.values[*x].maker == Maker::Constant;
        if inputs.iter().any(is_constant) && !["Add", "Subtract", "Multiply"].contains(&class) {
            return Err(self.unfit(node, &format!("{class} of what a PositionEmbedding gives")));
        }
        Ok(match class {
            _ if WEIGHTED.contains(&class) => {
                // Between the two kernels of a separable convolution other values lie.
                if class != "SeparableConv2D" {
                    self.borrowed.push((node, "sums".into(), x));
                }
                self.weights(node, class)?
            }
            _ if VALUES.contains(&class) => self.add_alike(Maker::Values, x),
            "Permute" | "ZeroPadding2D" | "ZeroPadding1D" | "Cropping2D" | "Cropping1D" => {
                self.add_alike(Maker::Other, x)
            }
            "AveragePooling2D" | "AveragePooling1D" | "UpSampling2D" => {
                let y = self.add_alike(Maker::Other, x);
                self.borrowed.push((node, "output".into(), y));
                y
            }
            "GlobalAveragePooling2D" | "GlobalAveragePooling1D" => self.add_at(Maker::Other, node, "output"),
            "Add" | "Subtract" | "Multiply" if inputs.len() == 2 => self.add_at(Maker::Merge, node, "output"),
            "Maximum" | "Minimum" | "Concatenate" if class == "Concatenate" || inputs.len() == 2 => {
                if inputs.iter().any(|&x| self.fixed_of(x).is_some()) {
                    return Err(
                        self.unfit(node, &format!("{class} of what a softmax, sigmoid or tanh gives"))
                    );
                }
                let y = self.add(Maker::Other, None);
                inputs.iter().for_each(|&x| self.join(x, y));
                y
            }
            "LayerNormalization" => self.layer_normalization(node)?,
            "MultiHeadAttention" => self.multi_head_attention(node, inputs)?,
            "TransformerBlock" => self.transformer_block(node, x)?,
            "Embedding" => self.embedding(node)?,
            "ReversibleEmbedding" => self.reversible_embedding(node, x)?,
            "Activation" => {
                let activation = activation_of(self.layer(node))?;
                self.activation(node, activation)?
            }
            "Softmax" => self.activation(node, Activation::Softmax)?,
            "ReLU" | "LeakyReLU" | "ELU" => self.add_at(Maker::Other, node, "output"),
            other => {
                let what = match inputs.len() {
                    n if n > 2 => format!("{other} of {n} inputs"),
                    _ => other.to_string(),
                };
                return Err(self.unfit(node, &what));
            }
        })
    }

    fn unfit(&self, node: usize, what: &str) -> Error {
        let name = &self.architecture.nodes[node].name;
        Error::new(ErrorKind::Unsupported, format!("{what} is not trained for eight bits"))
            .hint(format!("leave it in floats: skip = [\"{name}\"]"))
    }

    fn weights(&mut self, node: usize, class: &str) -> Result<usize> {
        let kernel = |name: &str| {
            let per_channel = self.options.per_channel && class != "Dense";
            let channels = if per_channel { channels_of(class, name) } else { Vec::new() };
            Kernel { name: name.into(), channels, folded: None }
        };
        let kernels = match class {
            "SeparableConv2D" => vec![kernel("depthwise_kernel"), kernel("pointwise_kernel")],
            _ => vec![kernel("kernel")],
        };
        self.quantizers[node].kernels = kernels;
        if class == "SeparableConv2D" {
            self.add_at(Maker::Other, node, "parts");
        }
        let activation = activation_of(self.layer(node))?;
        let takes_relu = class != "Conv2DTranspose";
        let y = self.add_at(Maker::Weights { node, takes_relu }, node, "output");
        let y = match activation {
            Activation::Linear => y,
            Activation::Relu if takes_relu => {
                self.values[y].is_free = false;
                y
            }
            activation => {
                self.values[y].place = Some((node, "inner".into()));
                self.values[y].is_free = false;
                self.activation(node, activation)?
            }
        };
        // A picture of one row: the operator gives it in another shape.
        Ok(if class == "Conv1D" { self.add_alike(Maker::Values, y) } else { y })
    }

    /// Operators one after the other, each with a range of its own; the last one is what the layer gives.
    fn layer_normalization(&mut self, node: usize) -> Result<usize> {
        let own: LayerNormalization = config(self.layer(node))?;
        if own.axis.0 != [-1] {
            return Err(self.unfit(node, "LayerNormalization over other axes than the last, −1,"));
        }
        let is_last = |place: &str| match place {
            "normalized" => !own.scale && !own.center,
            "scaled" => !own.scale || !own.center,
            _ => false,
        };
        for place in WITHIN.into_iter().filter(|place| !is_last(place)) {
            self.add_at(Maker::Other, node, place);
        }
        Ok(self.add_at(Maker::Merge, node, "output"))
    }

    /// An activation that is an operator of its own.
    fn activation(&mut self, node: usize, activation: Activation) -> Result<usize> {
        let fixed = match activation {
            Activation::Softmax | Activation::Sigmoid => Slot::SIGMOID,
            Activation::Tanh => Slot::TANH,
            Activation::Softplus => return Err(self.unfit(node, "softplus")),
            Activation::Elu { alpha } if alpha != 1.0 => return Err(self.unfit(node, "elu with an alpha")),
            Activation::Silu => return Ok(self.add_at(Maker::Merge, node, "output")),
            _ => return Ok(self.add_at(Maker::Other, node, "output")),
        };
        let y = self.add(Maker::Other, None);
        self.values[y].fixed = Some(fixed.clone());
        self.quantizers[node].output = Some(fixed);
        Ok(y)
    }

    /// The quantisers, with the ranges that each place has.
    fn finish(mut self) -> Vec<Quantizer> {
        for (node, place, x) in std::mem::take(&mut self.borrowed) {
            let slot = self.slot(x, false);
            self.put(node, &place, slot);
        }
        for x in 0..self.values.len() {
            let Some((node, place)) = self.values[x].place.clone() else { continue };
            let slot = self.slot(x, true);
            self.put(node, &place, slot);
        }
        self.share();
        self.quantizers
    }

    /// The range of a tensor and of all that have one scale with it.
    fn slot(&self, x: usize, is_place: bool) -> Slot {
        if let Some(fixed) = self.fixed_of(x) {
            return fixed;
        }
        let group = self.values[x].group;
        let places = self.values.iter().enumerate().filter(|(_, v)| v.group == group);
        let named = |(at, value): (usize, &Value)| {
            let (node, place) = value.place.as_ref()?;
            Some((at, format!("{}/{place}", self.architecture.nodes[*node].name)))
        };
        let all: Vec<(usize, String)> = places.filter_map(named).collect();
        match self.options.ranges {
            // One step for all: that of the first.
            QuantizeRanges::Learned => match all.first() {
                Some((first, _)) if is_place && *first == x => Slot::Range { own: true, joint: Vec::new() },
                first => {
                    Slot::Range { own: false, joint: first.map(|(_, at)| at.clone()).into_iter().collect() }
                }
            },
            QuantizeRanges::MovingAverage { .. } => {
                let joint =
                    all.into_iter().filter(|(at, _)| !is_place || *at != x).map(|(_, at)| at).collect();
                Slot::Range { own: is_place, joint }
            }
        }
    }

    fn put(&mut self, node: usize, place: &str, slot: Slot) {
        let own = &mut self.quantizers[node];
        let (own, place) = match place.rsplit_once('/') {
            Some((path, place)) => (own.within_mut(path), place),
            None => (own, place),
        };
        match place {
            "output" => own.output = Some(slot),
            "rows" => own.rows = Some(slot),
            "inner" => own.inner = Some(slot),
            "parts" => own.parts = Some(slot),
            "sums" => own.sums = Some(slot).filter(|_| own.kernels.iter().all(|k| k.folded.is_none())),
            other => match (0..own.inputs.len()).find(|k| input_name(*k) == other) {
                Some(k) => own.inputs[k] = Some(slot),
                None => own.within.push((other.into(), slot)),
            },
        }
    }
}

/// The dimensions of a kernel's output channels, from the last one (1) on.
fn channels_of(class: &str, kernel: &str) -> Vec<usize> {
    match (class, kernel) {
        ("DepthwiseConv2D", _) | (_, "depthwise_kernel") => vec![2, 1],
        ("Conv2DTranspose", _) => vec![2],
        _ => vec![1],
    }
}

/// Whether a layer is a relu that other operators take in: without a threshold, up to 6 or without limit.
fn is_relu(layer: &LayerSpec) -> Result<bool> {
    if layer.class_name() == "Activation" {
        return Ok(activation_of(layer)? == Activation::Relu);
    }
    let own: ReLU = config(layer)?;
    Ok(own.threshold == 0.0 && own.negative_slope == 0.0 && [None, Some(6.0)].contains(&own.max_value))
}
