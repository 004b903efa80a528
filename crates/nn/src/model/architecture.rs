//! Model architecture as a graph of named layers; serializable, without weights. Also the functional API ([`Symbol`]).

use crate::layer::{Cx, Layer};
use crate::layers::{CustomLayers, LayerSpec, NestedModel, model_output};
use crate::model::layer_loops;
use serde_json::{Value, json};
use std::sync::Arc;
use systole_ir::{DType, Error, ErrorKind, Result, ResultExt, Tensor, TensorType, ensure, err};
use systole_runtime::{Buffer, Params};

/// An input of a model: its name, and the type of one sample if known.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSpec {
    /// Name of the data field that feeds it.
    pub name: String,
    /// Type of one sample, without the batch dimension. A sequential model infers it from its first data.
    pub ty: Option<TensorType>,
}

/// Source of a layer's input: a model input or another layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeInput {
    /// An input of the model.
    Input(usize),
    /// The output of an earlier layer.
    Layer(usize),
}

/// A layer in an architecture and its inputs. Nodes of the same name share weights.
#[derive(Clone, Debug)]
pub struct LayerNode {
    /// Unique name, first component of the weights' paths.
    pub name: String,
    /// The layer.
    pub layer: LayerSpec,
    /// Sources of its inputs.
    pub inputs: Vec<NodeInput>,
}

/// Architecture of a model: inputs, layers in topological order, outputs.
#[derive(Clone, Debug)]
pub struct Architecture {
    /// Inputs.
    pub inputs: Vec<InputSpec>,
    /// Layers in topological order.
    pub nodes: Vec<LayerNode>,
    /// First output.
    pub output: NodeInput,
    /// Further outputs.
    pub more_outputs: Vec<NodeInput>,
    /// Additional networks by name, with known input types, for custom training steps: see [`crate::TrainStep`].
    pub networks: Vec<(String, Architecture)>,
}

impl LayerNode {
    /// Builds the layer's output from the model's inputs and the outputs of earlier nodes.
    pub(crate) fn call(&self, cx: &mut Cx, inputs: &[Tensor], outputs: &[Tensor]) -> Tensor {
        let args: Vec<Tensor> = self.inputs.iter().map(|&s| value(s, inputs, outputs)).collect();
        cx.scope(&self.name, |cx| self.layer.call(cx, &args))
    }
}

fn value(source: NodeInput, inputs: &[Tensor], outputs: &[Tensor]) -> Tensor {
    match source {
        NodeInput::Input(i) => inputs[i].clone(),
        NodeInput::Layer(i) => outputs[i].clone(),
    }
}

impl Architecture {
    /// Creates a sequential architecture: a chain of layers.
    pub fn sequential(layers: impl IntoIterator<Item = LayerSpec>) -> Architecture {
        let mut names = LayerNames::default();
        let mut nodes: Vec<LayerNode> = Vec::new();
        let mut output = NodeInput::Input(0);
        for layer in layers {
            let name = names.unique(&layer);
            nodes.push(LayerNode { name, layer, inputs: vec![output] });
            output = NodeInput::Layer(nodes.len() - 1);
        }
        Architecture {
            inputs: vec![InputSpec { name: "image".into(), ty: None }],
            nodes,
            output,
            more_outputs: Vec::new(),
            networks: Vec::new(),
        }
    }

    /// Creates the graph of all layers that the outputs depend on, with `inputs` in the given order. Outputs are `&y`
    /// or `[&a, &b]`; several outputs are named after their layers.
    ///
    /// # Errors
    /// If an output depends on an input that is not listed, or there is no output.
    pub fn functional(inputs: &[Symbol], outputs: impl Outputs) -> Result<Architecture> {
        let mut specs = Vec::new();
        for s in inputs {
            match &*s.0 {
                SymbolNode::Input(spec) => specs.push(spec.clone()),
                SymbolNode::Layer { layer, .. } => {
                    return Err(err!(
                        Config,
                        "the output of layer {} cannot be an input of the model",
                        layer.default_name()
                    )
                    .hint("list only symbols that input(…) returned"));
                }
            }
        }
        let mut walk =
            SymbolWalk { inputs, nodes: Vec::new(), seen: Vec::new(), names: LayerNames::default() };
        let outputs = outputs.symbols();
        let (first, more) = outputs.split_first().ok_or_else(|| {
            err!(Config, "the model has no output symbol").hint("pass at least one output: [&y]")
        })?;
        let output = walk.visit(first)?;
        let more_outputs = more.iter().map(|s| walk.visit(s)).collect::<Result<_>>()?;
        let nodes = walk.nodes;
        let made = Architecture { inputs: specs, nodes, output, more_outputs, networks: Vec::new() };
        Ok(made.in_keras_order())
    }

    /// Sorts the layers in the order of Keras's `model.layers`, and so of its weights: by decreasing distance from the
    /// output, stable.
    fn in_keras_order(self) -> Architecture {
        let depths = self.depths();
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(depths[i]));
        let mut moved_to = vec![0; order.len()];
        order.iter().enumerate().for_each(|(new, &old)| moved_to[old] = new);
        let source = |s: &NodeInput| match s {
            NodeInput::Layer(i) => NodeInput::Layer(moved_to[*i]),
            input => *input,
        };
        let node = |&old: &usize| {
            let p = &self.nodes[old];
            LayerNode { inputs: p.inputs.iter().map(source).collect(), ..p.clone() }
        };
        let output = source(&self.output);
        let more_outputs = self.more_outputs.iter().map(source).collect();
        let nodes = order.iter().map(node).collect();
        Architecture { nodes, output, more_outputs, ..self }
    }

    /// Returns all outputs of the architecture, in order.
    pub fn outputs(&self) -> impl Iterator<Item = NodeInput> + '_ {
        std::iter::once(self.output).chain(self.more_outputs.iter().copied())
    }

    /// Output names: those of their layers, as in Keras.
    pub fn output_names(&self) -> Vec<&str> {
        let name = |source: NodeInput| match source {
            NodeInput::Input(i) => self.inputs.get(i).map(|input| input.name.as_str()),
            NodeInput::Layer(i) => self.nodes.get(i).map(|node| node.name.as_str()),
        };
        self.outputs().filter_map(name).collect()
    }

    /// Whether each layer's only input is the previous layer.
    fn is_chain(&self) -> bool {
        let place = |i: usize| i.checked_sub(1).map_or(NodeInput::Input(0), NodeInput::Layer);
        let fed = self.nodes.iter().enumerate().all(|(i, node)| node.inputs == [place(i)]);
        fed && self.inputs.len() == 1 && self.outputs().eq([place(self.nodes.len())])
    }

    /// Adds a network whose weight paths start with `name`; `inputs` are the types of one sample of each input. Custom
    /// training steps call it ([`crate::StepCx::network`]), predictions do not.
    ///
    /// # Errors
    /// If the name is taken or invalid, or the number of types differs from the network's inputs.
    pub fn with_network(
        mut self,
        name: &str,
        network: Architecture,
        inputs: &[TensorType],
    ) -> Result<Architecture> {
        let refuse = |why: &str, hint: &str| {
            Err(err!(Config, "cannot add network `{name}` to this model").because(why).hint(hint))
        };
        if name.is_empty() || name.contains('/') {
            return refuse(
                "its name is the first component of its weights' paths",
                "use a name without `/`, such as discriminator",
            );
        }
        let is_taken =
            self.nodes.iter().any(|n| n.name == name) || self.networks.iter().any(|(n, _)| n == name);
        if is_taken {
            return refuse("a layer or network of that name already exists", "choose another name");
        }
        if inputs.len() != network.inputs.len() {
            let why = format!("it has {} inputs, got {} types", network.inputs.len(), inputs.len());
            return refuse(&why, "pass the type of one sample of each input");
        }
        let specs = network.inputs.iter().zip(inputs);
        let inputs = specs.map(|(s, ty)| InputSpec { name: s.name.clone(), ty: Some(ty.clone()) }).collect();
        self.networks.push((name.into(), Architecture { inputs, ..network }));
        Ok(self)
    }

    /// Whether a weight or layer path belongs to this network, or for `""` to the model's own layers.
    pub(crate) fn is_of(&self, network: &str, path: &str) -> bool {
        let begins = |name: &str| path.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        match network {
            "" => !self.networks.iter().any(|(name, _)| begins(name)),
            name => begins(name),
        }
    }

    /// Longest distance of each layer's output to the model's output.
    fn depths(&self) -> Vec<usize> {
        let mut depths = vec![0; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            for source in &node.inputs {
                if let NodeInput::Layer(j) = source {
                    depths[*j] = depths[*j].max(depths[i] + 1);
                }
            }
        }
        depths
    }

    /// Applies the model to `inputs` and returns its first output.
    pub fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let outputs = self.node_outputs(cx, inputs);
        value(self.output, inputs, &outputs)
    }

    /// Like [`Architecture::call`], with all outputs.
    pub fn call_all(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        let outputs = self.node_outputs(cx, inputs);
        self.outputs().map(|source| value(source, inputs, &outputs)).collect()
    }

    fn node_outputs(&self, cx: &mut Cx, inputs: &[Tensor]) -> Vec<Tensor> {
        // Quantization-aware layers read the ranges of other layers.
        let loops = cx.loops() && !self.is_quantized();
        let mut chains = if loops { layer_loops::chains(self) } else { Vec::new() };
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.nodes.len());
        while outputs.len() < self.nodes.len() {
            let at = outputs.len();
            let loops = chains.first_mut().filter(|chain| chain.start == at);
            let whole = loops.and_then(|chain| {
                let entry = value(chain.entry, inputs, &outputs);
                let y = chain.as_loop(self, cx, &entry);
                if y.is_none() {
                    chain.leave_one_out();
                }
                y.map(|y| (y, chain.nodes()))
            });
            match whole {
                // Nothing reads the intermediate outputs.
                Some((y, nodes)) => outputs.extend(std::iter::repeat_n(y, nodes)),
                None => outputs.push(self.nodes[at].call(cx, inputs, &outputs)),
            }
            chains.retain(|chain| chain.start >= outputs.len() && chain.is_long());
        }
        outputs
    }

    /// Like [`Architecture::call_all`], and passes each layer's output to a callback.
    pub fn call_with(
        &self,
        cx: &mut Cx,
        inputs: &[Tensor],
        mut each: impl FnMut(&LayerNode, &Tensor),
    ) -> Vec<Tensor> {
        let mut outputs: Vec<Tensor> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let y = node.call(cx, inputs, &outputs);
            each(node, &y);
            outputs.push(y);
        }
        self.outputs().map(|source| value(source, inputs, &outputs)).collect()
    }

    /// Reports the first invalid layer argument of the architecture, or different layers with the same name.
    pub fn check(&self) -> Result<()> {
        self.networks
            .iter()
            .try_for_each(|(name, network)| network.check().at(|| format!("network {name}")))?;
        for (i, node) in self.nodes.iter().enumerate() {
            node.layer.check().at(|| format!("layer {}", node.name))?;
            let namesake = self.nodes[..i].iter().find(|p| p.name == node.name);
            if namesake.is_some_and(|p| p.layer.to_json() != node.layer.to_json()) {
                return Err(err!(Config, "two different layers are named {}", node.name)
                    .because("layers of the same name share their weights, so they must be equal")
                    .hint("rename one of the two layers"));
            }
        }
        let names = self.output_names();
        match names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            None => Ok(()),
            Some((_, name)) => Err(err!(Config, "two outputs of the model are named `{name}`")
                .because("losses, metrics and labels are matched by output name")
                .hint("append identity().name(\"…\") to one of the two outputs")),
        }
    }

    /// Returns the architecture as JSON for model files.
    pub fn to_json(&self) -> Value {
        let source = |s: &NodeInput| match s {
            NodeInput::Input(i) => json!({ "input": i }),
            NodeInput::Layer(i) => json!({ "layer": i }),
        };
        let inputs: Vec<Value> = self
            .inputs
            .iter()
            .map(|i| match &i.ty {
                Some(t) => json!({"name": i.name, "dtype": t.dtype.name(), "shape": t.shape.dims()}),
                None => json!({"name": i.name}),
            })
            .collect();
        let layers: Vec<Value> = self
            .nodes
            .iter()
            .map(|p| {
                let feeds: Vec<Value> = p.inputs.iter().map(source).collect();
                json!({"name": p.name, "layer": p.layer.to_json(), "inputs": feeds})
            })
            .collect();
        let mut all = json!({"inputs": inputs, "layers": layers, "output": source(&self.output)});
        if !self.more_outputs.is_empty() {
            all["more_outputs"] = self.more_outputs.iter().map(source).collect();
        }
        if !self.networks.is_empty() {
            let named =
                |(name, network): &(String, Architecture)| json!({"name": name, "of": network.to_json()});
            all["networks"] = self.networks.iter().map(named).collect();
        }
        all
    }

    /// Reads an architecture from the JSON of a model file. Every reference is checked, so no file can cause a panic.
    pub fn from_json(value: &Value, custom: &CustomLayers) -> Result<Architecture> {
        let inputs =
            list(value, "inputs")?.iter().map(input_from_json).collect::<Result<Vec<InputSpec>>>()?;
        let mut nodes: Vec<LayerNode> = Vec::new();
        for (i, entry) in list(value, "layers")?.iter().enumerate() {
            let layer =
                entry.get("layer").ok_or_else(|| broken(format!("layer {i} has no `layer` entry")))?;
            let name = text(entry, "name")?;
            let feeds = list(entry, "inputs")?
                .iter()
                .map(|s| source_from_json(s, inputs.len(), i))
                .collect::<Result<Vec<NodeInput>>>()?;
            ensure!(!feeds.is_empty(), broken(format!("layer {name} has no inputs")));
            let layer = layer_from_json(layer, custom).at(|| format!("layer {name}"))?;
            nodes.push(LayerNode { name, layer, inputs: feeds });
        }
        let output = value.get("output").ok_or_else(|| broken("the `output` entry is missing".into()))?;
        let output = source_from_json(output, inputs.len(), nodes.len())?;
        let more =
            if value.get("more_outputs").is_some() { list(value, "more_outputs")? } else { &Vec::new() };
        let more_outputs =
            more.iter().map(|s| source_from_json(s, inputs.len(), nodes.len())).collect::<Result<_>>()?;
        let beside = match value.get("networks") {
            Some(_) => list(value, "networks")?.as_slice(),
            None => &[],
        };
        let network = |entry: &Value| {
            let of = entry.get("of").ok_or_else(|| broken("a network has no `of` entry".into()))?;
            ensure!(of.get("networks").is_none(), broken("a network contains further networks".into()));
            Ok((text(entry, "name")?, Architecture::from_json(of, custom)?))
        };
        let networks = beside.iter().map(network).collect::<Result<_>>()?;
        Ok(Architecture { inputs, nodes, output, more_outputs, networks })
    }
}

/// Class names of nested models, as in Keras.
const NESTED: [&str; 2] = ["Sequential", "Functional"];

/// Reads a layer or a nested model.
fn layer_from_json(value: &Value, custom: &CustomLayers) -> Result<LayerSpec> {
    let class = value.get("class_name").and_then(Value::as_str).unwrap_or_default();
    if !NESTED.contains(&class) || custom.names().any(|name| name == class) {
        return LayerSpec::from_json(value, custom);
    }
    let config = value.get("config").ok_or_else(|| broken(format!("a {class} has no config")))?;
    LayerSpec::from(Architecture::from_json(config, custom)?).placed(value)
}

impl Layer for Architecture {
    fn class_name(&self) -> &'static str {
        if self.is_chain() { NESTED[0] } else { NESTED[1] }
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        match self.misfit(cx, inputs) {
            Some(refused) => refused,
            None => {
                let outputs = self.call_all(cx, inputs);
                cx.with_more_outputs(outputs)
            }
        }
    }

    fn config(&self) -> Value {
        self.to_json()
    }
}

impl Architecture {
    /// Returns a failing tensor if a nested model gets inputs that it does not accept.
    fn misfit(&self, cx: &Cx, inputs: &[Tensor]) -> Option<Tensor> {
        let fail = |e: Error| match inputs.first() {
            Some(x) => cx.fail(x, e),
            None => cx.builder().scalar(DType::F32, 0.0).fail(e),
        };
        if inputs.len() != self.inputs.len() {
            let what = format!("the model expects {} inputs, got {}", self.inputs.len(), inputs.len());
            return Some(fail(Error::new(ErrorKind::Graph, what).hint("apply the layer with on(&[&a, &b])")));
        }
        let wrong = self.inputs.iter().zip(inputs).find(|(spec, x)| {
            let shape = x.shape().get(1..).unwrap_or_default();
            spec.ty.as_ref().is_some_and(|ty| ty.shape.dims() != shape) && !x.is_poisoned()
        });
        let (spec, x) = wrong?;
        let takes = spec.ty.as_ref().map_or(String::new(), |ty| ty.shape.to_string());
        let what =
            format!("the model's input `{}` expects samples of shape {takes}, got {}", spec.name, x.ty());
        Some(fail(
            Error::new(ErrorKind::Graph, what).hint("build the model with any_input(…) to accept any shape"),
        ))
    }
}

impl NestedModel for Architecture {
    fn check(&self) -> Result<()> {
        let refuse = |why: &str, hint: &str| {
            Err(err!(Config, "this model cannot be used as a layer").because(why).hint(hint))
        };
        if !self.networks.is_empty() {
            return refuse("it has additional networks", "add these networks to the outer model");
        }
        Architecture::check(self)
    }

    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        let still =
            |node: &LayerNode| LayerNode { layer: node.layer.clone().trainable(false), ..node.clone() };
        let nodes = self.nodes.iter().map(still).collect();
        Layer::call(&Architecture { nodes, ..self.clone() }, cx, inputs)
    }

    fn trains(&self, path: &str) -> bool {
        let (layer, rest) = path.split_once('/').unwrap_or((path, ""));
        self.nodes.iter().find(|node| node.name == layer).is_none_or(|node| node.layer.trains(rest))
    }

    fn start(&self, path: &str) -> Option<&Buffer> {
        let (layer, rest) = path.split_once('/')?;
        self.nodes.iter().find(|node| node.name == layer)?.layer.start(rest)
    }

    fn layers(&self) -> Vec<(&str, &LayerSpec)> {
        self.nodes.iter().map(|node| (node.name.as_str(), &node.layer)).collect()
    }

    fn outputs(&self) -> usize {
        1 + self.more_outputs.len()
    }
}

/// A nested model with newly initialized weights; converting a [`Model`](crate::Model) keeps its weights.
///
/// ```
/// use systole_nn::{Architecture, Model, input, layers::{LayerSpec, dense}};
/// let encoder = Architecture::sequential([dense(8).activation("relu"), dense(4)]);
/// let encode = LayerSpec::from(encoder).name("encoder");
/// let (a, b) = (input("a", [16]), input("b", [16]));
/// // One name, so one set of weights.
/// let both = systole_nn::layers::subtract().on(&[&a.apply(encode.clone()), &b.apply(encode)]);
/// let model = Model::functional(&[a, b], &both)?;
/// assert!(model.summary().contains("encoder (Sequential)"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
impl From<Architecture> for LayerSpec {
    #[track_caller]
    fn from(model: Architecture) -> LayerSpec {
        LayerSpec::of_model(model, Params::new())
    }
}

fn broken(why: String) -> Error {
    err!(Data, "cannot read the architecture of the model file").because(why)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value.get(key).and_then(Value::as_array).ok_or_else(|| broken(format!("`{key}` is not a list")))
}

fn text(value: &Value, key: &str) -> Result<String> {
    let found = value.get(key).and_then(Value::as_str).map(str::to_string);
    found.ok_or_else(|| broken(format!("`{key}` is not a string")))
}

fn input_from_json(value: &Value) -> Result<InputSpec> {
    let name = text(value, "name")?;
    let Some(dtype) = value.get("dtype").and_then(Value::as_str) else {
        return Ok(InputSpec { name, ty: None });
    };
    let dtype = DType::parse(dtype).ok_or_else(|| broken(format!("`{dtype}` is not an element type")))?;
    let dims = list(value, "shape")?
        .iter()
        .map(|d| d.as_u64().and_then(|d| usize::try_from(d).ok()))
        .collect::<Option<Vec<usize>>>();
    let dims = dims.ok_or_else(|| broken(format!("the shape of input {name} is not a list of sizes")))?;
    let ty = TensorType::new(dtype, dims);
    match ty.shape.checked_elements() {
        Some(n) if n < 1 << 40 => Ok(InputSpec { name, ty: Some(ty) }),
        _ => Err(broken(format!("input {name} of type {ty} is too large"))),
    }
}

fn source_from_json(value: &Value, inputs: usize, before: usize) -> Result<NodeInput> {
    let index = |key: &str| value.get(key).and_then(Value::as_u64).map(|i| i as usize);
    match (index("input"), index("layer")) {
        (Some(i), None) if i < inputs => Ok(NodeInput::Input(i)),
        (None, Some(i)) if i < before => Ok(NodeInput::Layer(i)),
        _ => Err(broken(format!("{value} is neither an input nor an earlier layer"))),
    }
}

/// Assigns Keras's default names: the class in snake case, numbered from the second on.
#[derive(Default)]
struct LayerNames(Vec<String>);

impl LayerNames {
    fn unique(&mut self, layer: &LayerSpec) -> String {
        if let Some(name) = layer.given_name() {
            self.0.push(name.to_string());
            return name.to_string();
        }
        let base = layer.default_name();
        let mut name = base.clone();
        let mut n = 0;
        while self.0.contains(&name) {
            n += 1;
            name = format!("{base}_{n}");
        }
        self.0.push(name.clone());
        name
    }
}

/// A symbolic value of a functional model: an input, or the output of a layer.
///
/// ```
/// use systole_nn::{input, layers::{add, dense}, Model};
/// let x = input("image", [784]);
/// let a = x.apply(dense(64).activation("relu"));
/// let b = a.apply(dense(64));
/// let y = add().on(&[&a, &b]).apply(dense(10));
/// let model = Model::functional(&[x], &y)?;
/// assert!(model.summary().contains("(None, 10)"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Symbol(Arc<SymbolNode>);

#[derive(Debug)]
enum SymbolNode {
    Input(InputSpec),
    Layer { layer: LayerSpec, inputs: Vec<Symbol> },
}

/// Outputs of a functional model: `&y`, or `[&a, &b]`.
pub trait Outputs {
    /// Returns the outputs in order.
    fn symbols(&self) -> Vec<&Symbol>;
}

impl Outputs for &Symbol {
    fn symbols(&self) -> Vec<&Symbol> {
        vec![self]
    }
}

impl<const N: usize> Outputs for [&Symbol; N] {
    fn symbols(&self) -> Vec<&Symbol> {
        self.to_vec()
    }
}

impl Outputs for &[Symbol] {
    fn symbols(&self) -> Vec<&Symbol> {
        self.iter().collect()
    }
}

/// `→ f32[B, shape…]`: an input of a functional model; `shape` is that of one sample.
///
/// ```
/// use systole_nn::{input, layers::dense, Model};
/// let x = input("x", [8]);
/// let y = x.apply(dense(2));
/// assert!(Model::functional(&[x], &y)?.summary().contains("(None, 2)"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn input(name: &str, shape: impl AsRef<[usize]>) -> Symbol {
    input_of(name, DType::F32, shape)
}

/// `→ T[B, …]`: an input whose type is inferred from the first data.
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{any_input, layers::dense, Model};
/// let x = any_input("x");
/// let y = x.apply(dense(2));
/// let output = Model::functional(&[x], &y)?.output_for(&[TensorType::new(F32, [8])])?;
/// assert_eq!(output.shape.dims(), [2]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn any_input(name: &str) -> Symbol {
    Symbol(Arc::new(SymbolNode::Input(InputSpec { name: name.into(), ty: None })))
}

/// `→ dtype[B, shape…]`: an input of any element type (integers for embeddings).
///
/// ```
/// use systole_ir::DType::I32;
/// use systole_nn::{input_of, layers::embedding, Model};
/// let tokens = input_of("tokens", I32, [16]);
/// let y = tokens.apply(embedding(65, 32));
/// assert!(Model::functional(&[tokens], &y)?.summary().contains("(None, 16, 32)"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn input_of(name: &str, dtype: DType, shape: impl AsRef<[usize]>) -> Symbol {
    let ty = Some(TensorType::new(dtype, shape.as_ref()));
    Symbol(Arc::new(SymbolNode::Input(InputSpec { name: name.into(), ty })))
}

impl Symbol {
    /// Applies `layer` to this value and returns its output.
    #[track_caller]
    pub fn apply(&self, layer: impl Into<LayerSpec>) -> Symbol {
        layer.into().on(&[self])
    }

    /// Applies a nested model to this value and returns all its outputs; for other layers the only output.
    #[track_caller]
    pub fn apply_all(&self, layer: impl Into<LayerSpec>) -> Vec<Symbol> {
        layer.into().on_all(&[self])
    }
}

impl LayerSpec {
    /// Applies this layer to several values and returns its output. A named layer that is applied twice shares its
    /// weights.
    #[track_caller]
    pub fn on(self, inputs: &[&Symbol]) -> Symbol {
        let inputs = inputs.iter().map(|s| (*s).clone()).collect();
        Symbol(Arc::new(SymbolNode::Layer { layer: self.asked_here(), inputs }))
    }

    /// Like [`LayerSpec::on`], with all outputs of a nested model, which is computed once.
    ///
    /// ```
    /// use systole_nn::{input, layers::{dense, subtract, LayerSpec}, Architecture, Model};
    /// let x = input("x", [8]);
    /// let parts = Architecture::functional(&[x.clone()], [&x.apply(dense(4)), &x.apply(dense(4))])?;
    /// let y = input("y", [8]);
    /// let [a, b] = &LayerSpec::from(parts).name("parts").on_all(&[&y])[..] else { panic!() };
    /// assert!(Model::functional(&[y], &subtract().on(&[a, b]))?.summary().contains("parts (Functional)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[track_caller]
    pub fn on_all(self, inputs: &[&Symbol]) -> Vec<Symbol> {
        let outputs = self.nested().map_or(1, |model| model.outputs());
        let first = self.on(inputs);
        let more = (1..outputs).map(|index| first.apply(model_output(index)));
        std::iter::once(first.clone()).chain(more).collect()
    }
}

struct SymbolWalk<'a> {
    inputs: &'a [Symbol],
    nodes: Vec<LayerNode>,
    seen: Vec<(Symbol, NodeInput)>,
    names: LayerNames,
}

impl SymbolWalk<'_> {
    fn visit(&mut self, s: &Symbol) -> Result<NodeInput> {
        if let Some((_, at)) = self.seen.iter().find(|(seen, _)| Arc::ptr_eq(&seen.0, &s.0)) {
            return Ok(*at);
        }
        let at = match &*s.0 {
            SymbolNode::Input(spec) => {
                let listed = self.inputs.iter().position(|i| Arc::ptr_eq(&i.0, &s.0));
                NodeInput::Input(listed.ok_or_else(|| {
                    err!(Config, "the model depends on input {}, which is not listed", spec.name)
                        .hint("add the input to the model's list of inputs")
                })?)
            }
            SymbolNode::Layer { layer, inputs } => {
                let feeds = inputs.iter().map(|i| self.visit(i)).collect::<Result<Vec<NodeInput>>>()?;
                let name = self.names.unique(layer);
                self.nodes.push(LayerNode { name, layer: layer.clone(), inputs: feeds });
                NodeInput::Layer(self.nodes.len() - 1)
            }
        };
        self.seen.push((s.clone(), at));
        Ok(at)
    }
}
