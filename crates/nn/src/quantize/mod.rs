//! Quantization-aware training (QAT): decides which tensors of a model get fake-quantization points.
//!
//! They match the int8 ops that the crate `quant` exports: batch normalization and ReLU are folded into the preceding
//! op here as well.

mod attention;
mod embedding_tables;
pub(crate) mod qat_ranges;

use crate::did_you_mean::unknown;
use crate::layer::activation::Activation;
use crate::layer::lowering::ElementWise::{Add, Average, Maximum, Minimum, Multiply, Subtract};
use crate::layer::lowering::{ConvolutionKind, ConvolutionLowering, LayerLowering};
use crate::layer::quantizer::{
    FoldedBatchNorm, QuantizationPoint, QuantizeRanges, QuantizedKernel, Quantizer, input_name,
};
use crate::layers::LayerSpec;
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use crate::model::quantize_options::Quantize;
use crate::name_pattern::means;
use systole_ir::{Error, ErrorKind, Result, ResultExt, ensure, err};

impl Architecture {
    /// Whether any layer is trained with fake quantization.
    pub fn is_quantized(&self) -> bool {
        self.nodes.iter().any(|node| node.layer.quantizer().is_some())
    }

    /// Returns the architecture with fake-quantization points.
    ///
    /// # Errors
    /// If a layer has no int8 version; names the layer.
    pub(crate) fn quantized(&self, options: &Quantize) -> Result<Architecture> {
        options.check()?;
        let quantizers = plan(self, options)?;
        let with = |(node, own): (&LayerNode, Quantizer)| LayerNode {
            layer: node.layer.clone().with_quantizer((!own.is_empty()).then_some(own)),
            ..node.clone()
        };
        Ok(Architecture { nodes: self.nodes.iter().zip(quantizers).map(with).collect(), ..self.clone() })
    }

    /// Returns the architecture without fake quantization.
    pub(crate) fn without_quantizers(&self) -> Architecture {
        let plain =
            |node: &LayerNode| LayerNode { layer: node.layer.clone().without_quantization(), ..node.clone() };
        Architecture { nodes: self.nodes.iter().map(plain).collect(), ..self.clone() }
    }
}

/// Kind of op that produces a tensor of the int8 graph.
#[derive(Clone, Copy, PartialEq)]
enum TensorProducer {
    /// A matrix product inside a composite layer such as attention.
    Inner,
    /// The convolution or dense layer `node`; `takes_relu`: whether a ReLU can be folded into it.
    Weights {
        node: usize,
        takes_relu: bool,
    },
    /// Element-wise op with two operands: sum, difference or product.
    Merge,
    /// Max pooling or reshape: ReLU commutes with it.
    Values,
    /// A constant: known before inference.
    Constant,
    Other,
}

/// A tensor of the int8 graph.
#[derive(Clone)]
struct PlannedTensor {
    maker: TensorProducer,
    /// Whether no activation or batch normalization has been folded into its producer yet.
    is_free: bool,
    /// The tensor that it reshapes or pools.
    before: Option<usize>,
    readers: usize,
    /// Group of tensors that share one scale, identified by its first tensor.
    group: usize,
    /// Where its range is stored: node and name within the node.
    place: Option<(usize, String)>,
    fixed: Option<QuantizationPoint>,
    /// Whether it is a float: a model input, or the output of a layer kept in float. Its readers quantize it.
    is_float: bool,
}

/// Names of the intermediate tensors of a layer normalization, in order.
const WITHIN: [&str; 8] = ["mean", "centred", "squared", "variance", "sum", "rsqrt", "normalized", "scaled"];

/// Plans the quantizer of each node.
fn plan(architecture: &Architecture, options: &Quantize) -> Result<Vec<Quantizer>> {
    check_structure(architecture, options)?;
    let nodes = &architecture.nodes;
    let mut plan = QuantizationPlan {
        architecture,
        options,
        values: Vec::new(),
        made: Vec::new(),
        quantizers: vec![Quantizer::new(options.ranges); nodes.len()],
        borrowed: Vec::new(),
    };
    for _ in &architecture.inputs {
        plan.add(TensorProducer::Other, None);
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
            "quantization-aware training does not support models with several networks or outputs".into(),
            "remove quantize, or train a model with one output",
        );
    }
    let names: Vec<&str> = architecture.nodes.iter().map(|node| node.name.as_str()).collect();
    if let Some(pattern) = options.skip.iter().find(|p| !names.iter().any(|name| means(p, name))) {
        return Err(unknown(
            &format!("pattern `{pattern}` matches no layer that could stay in float"),
            pattern,
            &names,
        ));
    }
    // Embedding tables may be used for tokens and for floats; the planner checks this.
    let is_table = |i: usize| {
        matches!(
            architecture.nodes[i].layer.layer().lowering(),
            Ok(LayerLowering::ReversibleEmbedding { .. })
        )
    };
    let again = |(i, name): &(usize, &&str)| names[..*i].contains(*name) && !is_table(*i);
    names.iter().enumerate().find(again).map_or(Ok(()), |(_, name)| Err(used_twice(name)))
}

fn used_twice(name: &str) -> Error {
    err!(Unsupported, "layer `{name}` is used twice, but can have only one set of ranges")
        .hint("use a separate layer for each call, or remove quantize")
}

impl Architecture {
    fn readers(&self, source: NodeInput) -> usize {
        let of = self.nodes.iter().flat_map(|node| &node.inputs).filter(|s| **s == source).count();
        of + usize::from(self.output == source)
    }
}

struct QuantizationPlan<'a> {
    architecture: &'a Architecture,
    options: &'a Quantize,
    values: Vec<PlannedTensor>,
    /// Output tensor of each node.
    made: Vec<usize>,
    quantizers: Vec<Quantizer>,
    /// Quantization points that use the range of another tensor.
    borrowed: Vec<(usize, String, usize)>,
}

impl QuantizationPlan<'_> {
    fn add(&mut self, maker: TensorProducer, before: Option<usize>) -> usize {
        let group = self.values.len();
        self.values.push(PlannedTensor {
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

    /// Adds a tensor with its own range.
    fn add_at(&mut self, maker: TensorProducer, node: usize, place: &str) -> usize {
        let y = self.add(maker, None);
        self.values[y].place = Some((node, place.into()));
        y
    }

    /// Adds a tensor that shares the scale of `x`.
    fn add_alike(&mut self, maker: TensorProducer, x: usize) -> usize {
        let y = self.add(maker, Some(x));
        self.join(y, x);
        y
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.values[a].group, self.values[b].group);
        let (least, other) = (a.min(b), a.max(b));
        self.values.iter_mut().filter(|v| v.group == other).for_each(|v| v.group = least);
    }

    fn fixed_of(&self, x: usize) -> Option<QuantizationPoint> {
        let group = self.values[x].group;
        self.values.iter().filter(|v| v.group == group).find_map(|v| v.fixed.clone())
    }

    fn layer(&self, node: usize) -> &LayerSpec {
        &self.architecture.nodes[node].layer
    }

    fn lowering(&self, node: usize) -> Option<LayerLowering> {
        self.layer(node).layer().lowering().ok()
    }

    fn stays_in_floats(&self, node: usize) -> bool {
        self.options.skip.iter().any(|pattern| means(pattern, &self.architecture.nodes[node].name))
    }

    /// Plans a node; returns its output tensor.
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
        let own = self.lowering(node);
        if let Some(y) = self.folded(node, own.as_ref(), x)? {
            return Ok(y);
        }
        if own == Some(LayerLowering::PositionEmbedding) {
            return Ok(self.position_embedding(node));
        }
        if self.stays_in_floats(node) {
            self.quantizers[node].is_float = true;
            return Ok(self.float_node(node, own.as_ref(), x));
        }
        let y = self.rounded_node(node, own.as_ref(), &inputs)?;
        inputs.iter().enumerate().for_each(|(k, &x)| self.read(node, k, x));
        Ok(y)
    }

    /// Plans a node kept in float; returns its output tensor. Later ops may be folded into it.
    fn float_node(&mut self, node: usize, own: Option<&LayerLowering>, x: usize) -> usize {
        let mut is_free = true;
        let (maker, before) = match own {
            Some(own) if has_weights(own) => match own.activation() {
                Activation::Silu => (TensorProducer::Merge, None),
                activation => {
                    is_free = activation == Activation::Linear;
                    (TensorProducer::Weights { node, takes_relu: takes_relu(own) }, None)
                }
            },
            // These end with a sum or a product.
            Some(
                LayerLowering::Activation(Activation::Silu)
                | LayerLowering::ElementWise(Add | Subtract | Multiply | Average)
                | LayerLowering::BatchNormalization { .. }
                | LayerLowering::LayerNormalization { .. }
                | LayerLowering::Rescaling { .. }
                | LayerLowering::Normalization { .. }
                | LayerLowering::TransformerBlock { .. },
            ) => (TensorProducer::Merge, None),
            Some(LayerLowering::Attention { .. }) => (TensorProducer::Inner, None),
            Some(own) if keeps_values(own) => (TensorProducer::Values, Some(x)),
            _ => (TensorProducer::Other, None),
        };
        let mut y = self.add(maker, before);
        (self.values[y].is_float, self.values[y].is_free) = (true, is_free);
        if own.is_some_and(is_of_rows) {
            y = self.add(TensorProducer::Values, Some(y));
            self.values[y].is_float = true;
        }
        y
    }

    /// Adds quantization of a float value at its reader; the first reader stores its range.
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

    /// Folds the node into the preceding layer if possible, whether that is in int8 or in float.
    fn folded(&mut self, node: usize, own: Option<&LayerLowering>, x: usize) -> Result<Option<usize>> {
        match own {
            Some(
                LayerLowering::Identity
                | LayerLowering::Regularization
                | LayerLowering::Activation(Activation::Linear),
            ) => Ok(Some(x)),
            Some(LayerLowering::BatchNormalization { epsilon, scale, .. }) => {
                self.batch_normalization(node, (*epsilon, *scale), x)
            }
            Some(LayerLowering::Rescaling { .. } | LayerLowering::Normalization { .. })
                if self.weights_before(x).is_some() =>
            {
                Err(self.unfit(node, "Rescaling or Normalization after a layer with weights"))
            }
            Some(own) if is_relu(own) => self.relu(node, x),
            _ => Ok(None),
        }
    }

    /// Returns the node whose weights produce `x`, if it has no activation and `x` has no other reader.
    fn weights_before(&self, x: usize) -> Option<usize> {
        let value = &self.values[x];
        match value.maker {
            TensorProducer::Weights { node, .. } if value.readers <= 1 && value.is_free => Some(node),
            _ => None,
        }
    }

    fn batch_normalization(
        &mut self,
        node: usize,
        (epsilon, scale): (f64, bool),
        x: usize,
    ) -> Result<Option<usize>> {
        self.quantizers[node].freeze_bn_delay = self.options.freeze_bn_delay;
        let Some(before) = self.weights_before(x) else { return Ok(None) };
        let Some(kernel) = self.quantizers[before].kernels.last() else {
            // Its weights stay in float.
            return Ok(Some(x));
        };
        ensure!(kernel.folded.is_none(), self.unfit(node, "a second BatchNormalization"));
        let own = self.lowering(before);
        if let Some(LayerLowering::ReversibleEmbedding { .. }) = own {
            return Err(self.unfit(node, "BatchNormalization after a ReversibleEmbedding"));
        }
        let layer = self.architecture.nodes[node].name.clone();
        let channels = channels_of(own.as_ref(), &kernel.name);
        if let Some(kernel) = self.quantizers[before].kernels.last_mut() {
            kernel.folded = Some(FoldedBatchNorm { layer, epsilon, scale, channels });
        }
        self.move_place(x, node);
        Ok(Some(x))
    }

    /// Moves the range of a tensor to a later node that is folded into its producer.
    fn move_place(&mut self, x: usize, node: usize) {
        let value = &mut self.values[x];
        if value.place.is_some() && !value.is_float {
            value.place = Some((node, "output".into()));
        }
    }

    /// Folds a ReLU into the op that produces its input, if that op supports it.
    fn relu(&mut self, node: usize, x: usize) -> Result<Option<usize>> {
        let mut at = x;
        while self.values[at].maker == TensorProducer::Values && self.values[at].readers <= 1 {
            let Some(before) = self.values[at].before else { return Ok(None) };
            at = before;
        }
        let value = &self.values[at];
        let takes = matches!(
            value.maker,
            TensorProducer::Weights { takes_relu: true, .. } | TensorProducer::Merge | TensorProducer::Inner
        );
        if !takes || value.readers > 1 || !value.is_free {
            return Ok(None);
        }
        if value.is_float != self.values[x].is_float {
            return Err(self.unfit(node, "a ReLU separated from its producer by a layer in float"));
        }
        self.values[at].is_free = false;
        if at != x {
            self.values[x].place = self.values[at].place.take();
        }
        self.move_place(x, node);
        Ok(Some(x))
    }

    /// Plans a node in int8; returns its output tensor.
    /// A separable convolution has an intermediate tensor between its kernels, so its sums are not borrowed.
    fn rounded_node(&mut self, node: usize, own: Option<&LayerLowering>, inputs: &[usize]) -> Result<usize> {
        let (x, class) = (inputs[0], self.layer(node).class_name());
        let is_constant = |x: &usize| self.values[*x].maker == TensorProducer::Constant;
        let is_merge = matches!(own, Some(LayerLowering::ElementWise(Add | Subtract | Multiply)));
        if inputs.iter().any(is_constant) && !is_merge {
            return Err(self.unfit(node, &format!("{class} on the output of a PositionEmbedding")));
        }
        let unfit = |plan: &Self| match inputs.len() {
            n if n > 2 => plan.unfit(node, &format!("{class} with {n} inputs")),
            _ => plan.unfit(node, class),
        };
        let Some(own) = own else { return Err(unfit(self)) };
        Ok(match own {
            own if has_weights(own) => {
                if !is_separable(own) {
                    self.borrowed.push((node, "sums".into(), x));
                }
                self.weights(node, own)?
            }
            own if keeps_values(own) => self.add_alike(TensorProducer::Values, x),
            LayerLowering::Permute(_) | LayerLowering::Padding(_) | LayerLowering::Cropping(_) => {
                self.add_alike(TensorProducer::Other, x)
            }
            LayerLowering::Pooling { .. } | LayerLowering::UpSampling { .. } => {
                let y = self.add_alike(TensorProducer::Other, x);
                self.borrowed.push((node, "output".into(), y));
                y
            }
            LayerLowering::ElementWise(Add | Subtract | Multiply) if inputs.len() == 2 => {
                self.add_at(TensorProducer::Merge, node, "output")
            }
            LayerLowering::ElementWise(Maximum | Minimum) if inputs.len() != 2 => return Err(unfit(self)),
            LayerLowering::Concatenation(_) | LayerLowering::ElementWise(Maximum | Minimum) => {
                self.joined(node, inputs)?
            }
            LayerLowering::LayerNormalization { axis, center, scale, .. } => {
                self.layer_normalization(node, axis, *center, *scale)?
            }
            LayerLowering::Attention { axes, .. } => {
                self.multi_head_attention(node, axes.is_some(), inputs)?
            }
            LayerLowering::TransformerBlock { normalize_first, activation, .. } => {
                self.transformer_block(node, (*normalize_first, *activation), x)?
            }
            LayerLowering::Embedding { mask_zero: true, .. } => {
                Err(self.unfit(node, "Embedding with mask_zero"))?
            }
            LayerLowering::Embedding { .. } => self.add_at(TensorProducer::Other, node, "rows"),
            LayerLowering::ReversibleEmbedding { tie_weights, is_capped, .. } => {
                self.reversible_embedding(node, (*tie_weights, *is_capped), x)?
            }
            LayerLowering::Activation(activation) => self.activation(node, *activation)?,
            LayerLowering::Softmax(_) => self.activation(node, Activation::Softmax)?,
            LayerLowering::GlobalPooling { .. }
            | LayerLowering::Relu { .. }
            | LayerLowering::LeakyRelu(_)
            | LayerLowering::Elu(_) => self.add_at(TensorProducer::Other, node, "output"),
            _ => return Err(unfit(self)),
        })
    }

    /// Plans a node whose inputs and output share one scale.
    fn joined(&mut self, node: usize, inputs: &[usize]) -> Result<usize> {
        if inputs.iter().any(|&x| self.fixed_of(x).is_some()) {
            let class = self.layer(node).class_name();
            return Err(self.unfit(node, &format!("{class} on the output of a softmax, sigmoid or tanh")));
        }
        let y = self.add(TensorProducer::Other, None);
        inputs.iter().for_each(|&x| self.join(x, y));
        Ok(y)
    }

    fn unfit(&self, node: usize, what: &str) -> Error {
        let name = &self.architecture.nodes[node].name;
        err!(Unsupported, "quantization-aware training does not support {what}")
            .hint(format!("keep the layer in float: set quantize.skip=[\"{name}\"]"))
    }

    fn weights(&mut self, node: usize, own: &LayerLowering) -> Result<usize> {
        let kernel = |name: &str| {
            let per_channel = self.options.per_channel && !matches!(own, LayerLowering::Dense { .. });
            let channels = if per_channel { channels_of(Some(own), name) } else { Vec::new() };
            QuantizedKernel { name: name.into(), channels, folded: None }
        };
        let kernels = match is_separable(own) {
            true => vec![kernel("depthwise_kernel"), kernel("pointwise_kernel")],
            false => vec![kernel("kernel")],
        };
        self.quantizers[node].kernels = kernels;
        if is_separable(own) {
            self.add_at(TensorProducer::Other, node, "parts");
        }
        let takes_relu = takes_relu(own);
        let y = self.add_at(TensorProducer::Weights { node, takes_relu }, node, "output");
        let y = match own.activation() {
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
        // A 1-D convolution runs as a one-row image, which the op reshapes.
        Ok(if is_of_rows(own) { self.add_alike(TensorProducer::Values, y) } else { y })
    }

    /// Adds the intermediate tensors of a layer normalization, each with its own range; returns the last.
    fn layer_normalization(&mut self, node: usize, axis: &[i64], center: bool, scale: bool) -> Result<usize> {
        ensure!(axis == [-1], self.unfit(node, "LayerNormalization over axes other than -1"));
        let is_last = |place: &str| match place {
            "normalized" => !scale && !center,
            "scaled" => !scale || !center,
            _ => false,
        };
        for place in WITHIN.into_iter().filter(|place| !is_last(place)) {
            self.add_at(TensorProducer::Other, node, place);
        }
        Ok(self.add_at(TensorProducer::Merge, node, "output"))
    }

    /// Adds an activation that is an op of its own.
    fn activation(&mut self, node: usize, activation: Activation) -> Result<usize> {
        let fixed = match activation {
            Activation::Softmax | Activation::Sigmoid => QuantizationPoint::SIGMOID,
            Activation::Tanh => QuantizationPoint::TANH,
            Activation::Elu { alpha } if alpha != 1.0 => {
                return Err(self.unfit(node, "elu with an alpha other than 1"));
            }
            other if !other.has_int8() => return Err(self.unfit(node, other.name())),
            Activation::Silu => return Ok(self.add_at(TensorProducer::Merge, node, "output")),
            _ => return Ok(self.add_at(TensorProducer::Other, node, "output")),
        };
        let y = self.add(TensorProducer::Other, None);
        self.values[y].fixed = Some(fixed.clone());
        self.quantizers[node].output = Some(fixed);
        Ok(y)
    }

    /// Resolves the ranges of all quantization points; returns the quantizers.
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

    /// Returns the range of a tensor and of all tensors that share its scale.
    fn slot(&self, x: usize, is_place: bool) -> QuantizationPoint {
        if let Some(fixed) = self.fixed_of(x) {
            return fixed;
        }
        let group = self.values[x].group;
        let places = self.values.iter().enumerate().filter(|(_, v)| v.group == group);
        let named = |(at, value): (usize, &PlannedTensor)| {
            let (node, place) = value.place.as_ref()?;
            Some((at, format!("{}/{place}", self.architecture.nodes[*node].name)))
        };
        let all: Vec<(usize, String)> = places.filter_map(named).collect();
        match self.options.ranges {
            // One step size for the whole group: that of its first tensor.
            QuantizeRanges::Learned => match all.first() {
                Some((first, _)) if is_place && *first == x => {
                    QuantizationPoint::Range { own: true, joint: Vec::new() }
                }
                first => QuantizationPoint::Range {
                    own: false,
                    joint: first.map(|(_, at)| at.clone()).into_iter().collect(),
                },
            },
            QuantizeRanges::MovingAverage { .. } => {
                let joint =
                    all.into_iter().filter(|(at, _)| !is_place || *at != x).map(|(_, at)| at).collect();
                QuantizationPoint::Range { own: is_place, joint }
            }
        }
    }

    fn put(&mut self, node: usize, place: &str, slot: QuantizationPoint) {
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

/// Returns the dimensions of a kernel's output channels, counted from the last (1).
fn channels_of(own: Option<&LayerLowering>, kernel: &str) -> Vec<usize> {
    match own {
        Some(LayerLowering::Convolution(c)) => match c.kind {
            ConvolutionKind::Depthwise { .. } => vec![2, 1],
            ConvolutionKind::Separable if kernel == "depthwise_kernel" => vec![2, 1],
            ConvolutionKind::Transposed { .. } => vec![2],
            _ => vec![1],
        },
        _ => vec![1],
    }
}

/// Whether a layer has a quantized kernel.
fn has_weights(own: &LayerLowering) -> bool {
    matches!(own, LayerLowering::Dense { .. } | LayerLowering::Convolution(_))
}

/// Whether a ReLU can be folded into the op with the kernel.
fn takes_relu(own: &LayerLowering) -> bool {
    !matches!(
        own,
        LayerLowering::Convolution(ConvolutionLowering { kind: ConvolutionKind::Transposed { .. }, .. })
    )
}

fn is_separable(own: &LayerLowering) -> bool {
    matches!(own, LayerLowering::Convolution(ConvolutionLowering { kind: ConvolutionKind::Separable, .. }))
}

/// Whether a layer is a 1-D convolution, which runs on one-row images.
fn is_of_rows(own: &LayerLowering) -> bool {
    matches!(own, LayerLowering::Convolution(c) if c.strides.len() == 1)
}

/// Whether a layer's outputs are a selection of its inputs (max pooling, reshape), so that it commutes with ReLU.
fn keeps_values(own: &LayerLowering) -> bool {
    matches!(
        own,
        LayerLowering::Pooling { max: true, .. }
            | LayerLowering::GlobalPooling { max: true }
            | LayerLowering::Flatten
            | LayerLowering::Reshape
    )
}

/// Whether a layer is a ReLU that can be folded: no threshold, and a maximum of 6 or none.
fn is_relu(own: &LayerLowering) -> bool {
    match own {
        LayerLowering::Activation(activation) => *activation == Activation::Relu,
        LayerLowering::Relu { max_value: None | Some(6.0), negative_slope: 0.0, threshold: 0.0 } => true,
        _ => false,
    }
}
