//! The weights of a layer as PyTorch's module of that kind has them: names, layouts, order of gates.

use crate::map::{Part, Rule, Step};
use serde_json::Value;
use std::collections::HashMap;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Model;
use systole_nn::{LayerNode, NodeInput};

/// A model's layers with the shapes of their weights.
pub(crate) struct Layers<'a> {
    model: &'a Model,
    shapes: HashMap<String, Vec<usize>>,
}

/// A layer with what its rules need to know.
pub(crate) struct Known<'a> {
    pub name: &'a str,
    pub class: &'static str,
    config: Value,
    shapes: &'a HashMap<String, Vec<usize>>,
    /// Height, width and channels that were flattened before it.
    flattened: Option<[usize; 3]>,
}

impl<'a> Layers<'a> {
    pub(crate) fn of(model: &'a Model) -> Layers<'a> {
        let shapes = model.weights().into_iter().map(|(p, b)| (p.to_string(), b.ty().shape.to_vec()));
        Layers { model, shapes: shapes.collect() }
    }

    /// Layers that have weights, in the model's order, each once.
    pub(crate) fn weighted(&self) -> Vec<Known<'_>> {
        let nodes = &self.model.architecture().nodes;
        let mut found: Vec<Known<'_>> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let start = format!("{}/", node.name);
            let is_new = found.iter().all(|k| k.name != node.name);
            if is_new && self.shapes.keys().any(|path| path.starts_with(&start)) {
                found.push(Known {
                    name: &node.name,
                    class: node.layer.class_name(),
                    config: node.layer.layer().config(),
                    shapes: &self.shapes,
                    flattened: self.flattened(nodes, i),
                });
            }
        }
        found
    }

    /// What a Flatten right before layer `i` had: PyTorch flattens channels first.
    fn flattened(&self, nodes: &[LayerNode], mut i: usize) -> Option<[usize; 3]> {
        const KEEP: [&str; 7] = ["Dropout", "Activation", "ReLU", "LeakyReLU", "ELU", "PReLU", "Flatten"];
        loop {
            let [NodeInput::Layer(before)] = nodes.get(i)?.inputs[..] else { return None };
            let node = nodes.get(before)?;
            if node.layer.class_name() == "Flatten" {
                return match self.output_of(node.inputs.first()?)?[..] {
                    [h, w, c] => Some([h, w, c]),
                    _ => None,
                };
            }
            if !KEEP.contains(&node.layer.class_name()) {
                return None;
            }
            i = before;
        }
    }

    fn output_of(&self, source: &NodeInput) -> Option<Vec<usize>> {
        match source {
            NodeInput::Layer(i) => Some(self.model.summary_rows().get(*i)?.output_shape.to_vec()),
            NodeInput::Input(i) => {
                Some(self.model.architecture().inputs.get(*i)?.ty.as_ref()?.shape.to_vec())
            }
        }
    }
}

impl Known<'_> {
    fn shape(&self, weight: &str) -> Option<&[usize]> {
        self.shapes.get(&format!("{}/{weight}", self.name)).map(Vec::as_slice)
    }

    fn has(&self, weight: &str) -> bool {
        self.shape(weight).is_some()
    }

    fn number(&self, key: &str) -> usize {
        self.config.get(key).and_then(Value::as_u64).unwrap_or(0) as usize
    }

    /// `our weight ← prefix + theirs`; the shape there is made from ours.
    fn rule(
        &self,
        weight: &str,
        theirs: String,
        shape: impl Fn(&[usize]) -> Vec<usize>,
        steps: Vec<Step>,
    ) -> Option<Rule> {
        let ours = self.shape(weight)?;
        Some(Rule::of(&format!("{}/{weight}", self.name), ours, Part::new(theirs, &shape(ours), steps)))
    }

    fn same(&self, weight: &str, theirs: String) -> Option<Rule> {
        self.rule(weight, theirs, <[usize]>::to_vec, Vec::new())
    }

    fn bias(&self, theirs: String) -> Option<Rule> {
        let mut rule = self.same("bias", theirs)?;
        rule.parts[0].optional = true;
        Some(rule)
    }

    /// The rules of this layer, whose names there begin with `prefix`: `features.0.`, or nothing.
    ///
    /// # Errors
    /// When PyTorch has no layer of that kind whose weights are known.
    pub(crate) fn rules(&self, prefix: &str) -> Result<Vec<Rule>> {
        let p = |name: &str| format!("{prefix}{name}");
        let rules = match self.class {
            "Dense" => vec![self.dense("kernel", p("weight")), self.bias(p("bias"))],
            "Conv1D" | "Conv2D" | "Conv3D" | "Conv1DTranspose" | "Conv2DTranspose" | "Conv3DTranspose" => {
                vec![self.convolution(p("weight")), self.bias(p("bias"))]
            }
            "DepthwiseConv1D" | "DepthwiseConv2D" => vec![self.depthwise(p("weight")), self.bias(p("bias"))],
            "BatchNormalization" => vec![
                self.same("gamma", p("weight")),
                self.same("beta", p("bias")),
                self.same("moving_mean", p("running_mean")),
                self.same("moving_variance", p("running_var")),
            ],
            "LayerNormalization" | "GroupNormalization" => {
                vec![self.same("gamma", p("weight")), self.same("beta", p("bias"))]
            }
            "RMSNormalization" => vec![self.same("scale", p("weight"))],
            "PositionEmbedding" => vec![self.same("embeddings", p("weight"))],
            // Parameters of a module of one's own there.
            "LayerScale" => vec![self.same("gamma", p("gamma"))],
            "ClassToken" => vec![self.same("token", p("token"))],
            "Embedding" | "ReversibleEmbedding" => {
                let reverse =
                    self.rule("reverse_embeddings", p("reverse"), |o| vec![o[1], o[0]], permuted([1, 0]));
                vec![self.same("embeddings", p("weight")), reverse]
            }
            "PReLU" => {
                let one = |o: &[usize]| vec![o.iter().product()];
                let ours = self.shape("alpha").map(|s| vec![Step::Reshape(s.to_vec())]);
                vec![self.rule("alpha", p("weight"), one, ours.unwrap_or_default())]
            }
            "LSTM" => self.recurrent(prefix, &[0, 1, 2, 3], false),
            "SimpleRNN" => self.recurrent(prefix, &[0], false),
            "GRU" => self.recurrent(prefix, &[1, 0, 2], true),
            "MultiHeadAttention" => self.attention("", prefix),
            "TransformerBlock" => self.block(prefix),
            _ => return Err(self.unknown()),
        };
        let rules: Vec<Rule> = rules.into_iter().flatten().collect();
        let start = format!("{}/", self.name);
        let all = self.shapes.keys().filter(|path| path.starts_with(&start)).count();
        if rules.len() == all { Ok(rules) } else { Err(self.unknown()) }
    }

    fn unknown(&self) -> Error {
        let what = format!("layer {}: {} has no counterpart in PyTorch that is known", self.name, self.class);
        Error::new(ErrorKind::Config, what)
            .because("its weights there have other shapes, or there is no such module")
            .hint("Keras's files hold every layer: --format keras")
    }

    fn dense(&self, weight: &str, theirs: String) -> Option<Rule> {
        let steps = match (self.flattened, self.shape(weight)?) {
            (Some([h, w, c]), [rows, units]) if h * w * c == *rows && h * w > 1 && c > 1 => vec![
                Step::Reshape(vec![*units, c, h, w]),
                Step::Transpose(vec![2, 3, 1, 0]),
                Step::Reshape(vec![*rows, *units]),
            ],
            _ => permuted([1, 0]),
        };
        self.rule(weight, theirs, |o| vec![o[1], o[0]], steps)
    }

    /// `[out, in, window…] → [window…, in, out]`; a transposed one has in and out the other way round on both sides.
    fn convolution(&self, theirs: String) -> Option<Rule> {
        let rank = self.shape("kernel")?.len().checked_sub(2)?;
        let turned = |o: &[usize]| [&[o[rank + 1], o[rank]], &o[..rank]].concat();
        let order = (2..rank + 2).chain([1, 0]).collect();
        self.rule("kernel", theirs, turned, vec![Step::Transpose(order)])
    }

    /// `[C·m, 1, window…] → [window…, C, m]`.
    fn depthwise(&self, theirs: String) -> Option<Rule> {
        let [ref window @ .., c, m] = *self.shape("kernel")? else { return None };
        let order = (2..window.len() + 2).chain([0, 1]).collect();
        let steps = vec![Step::Reshape([&[c, m], window].concat()), Step::Transpose(order)];
        self.rule("kernel", theirs, |_| [&[c * m, 1], window].concat(), steps)
    }

    /// `weight_ih_l0: [gates·units, in]`, …; PyTorch adds two biases where Keras has one, but not for a GRU.
    fn recurrent(&self, prefix: &str, gates: &[usize], keeps_both: bool) -> Vec<Option<Rule>> {
        let level = |name: &str| format!("{prefix}{name}");
        let ordered = |more: Vec<Step>| -> Vec<Step> {
            let is_sorted = gates.windows(2).all(|w| w[0] < w[1]);
            let first = if is_sorted { Vec::new() } else { vec![Step::Gates(gates.to_vec())] };
            [first, more].concat()
        };
        let turned = |o: &[usize]| vec![o[1], o[0]];
        let kernel = |ours, theirs| self.rule(ours, level(theirs), turned, ordered(permuted([1, 0])));
        let mut rules = vec![kernel("kernel", "weight_ih_l0"), kernel("recurrent_kernel", "weight_hh_l0")];
        if let Some(shape) = self.shape("bias") {
            let n = shape[shape.len() - 1];
            let part = |name: &str| Part::new(level(name), &[n], ordered(Vec::new())).optional();
            let (first, second) = (part("bias_ih_l0"), part("bias_hh_l0"));
            let second = match keeps_both && shape.len() == 2 {
                true => Part { at: n, ..second },
                false => Part { adds: true, ..second },
            };
            let ours = format!("{}/bias", self.name);
            rules.push(Some(Rule { ours, shape: shape.to_vec(), parts: vec![first, second] }));
        }
        rules
    }

    /// `in_proj_weight: [3·E, E]`, of query, key and value.
    fn attention(&self, inside: &str, prefix: &str) -> Vec<Option<Rule>> {
        let mut rules = Vec::new();
        for (i, name) in ["query", "key", "value"].into_iter().enumerate() {
            let weight = format!("{inside}{name}/kernel");
            let Some(&[e, heads, width]) = self.shape(&weight) else { return vec![None] };
            let out = heads * width;
            let steps = vec![
                Step::Rows(i * out, out),
                Step::Transpose(vec![1, 0]),
                Step::Reshape(vec![e, heads, width]),
            ];
            rules.push(self.rule(&weight, format!("{prefix}in_proj_weight"), |_| vec![3 * out, e], steps));
            let bias = format!("{inside}{name}/bias");
            if self.has(&bias) {
                let steps = vec![Step::Rows(i * out, out), Step::Reshape(vec![heads, width])];
                rules.push(self.rule(&bias, format!("{prefix}in_proj_bias"), |_| vec![3 * out], steps));
            }
        }
        let weight = format!("{inside}attention_output/kernel");
        let Some(&[heads, width, e]) = self.shape(&weight) else { return vec![None] };
        let steps = vec![Step::Transpose(vec![1, 0]), Step::Reshape(vec![heads, width, e])];
        rules.push(self.rule(&weight, format!("{prefix}out_proj.weight"), |_| vec![e, heads * width], steps));
        let bias = format!("{inside}attention_output/bias");
        if self.has(&bias) {
            rules.push(self.same(&bias, format!("{prefix}out_proj.bias")));
        }
        rules
    }

    /// `nn.TransformerEncoderLayer`.
    fn block(&self, prefix: &str) -> Vec<Option<Rule>> {
        let mut rules = self.attention("self_attention/", &format!("{prefix}self_attn."));
        let dense = [("feedforward_intermediate_dense", "linear1"), ("feedforward_output_dense", "linear2")];
        for (ours, theirs) in dense {
            let kernel = format!("{ours}/kernel");
            let turned = |o: &[usize]| vec![o[1], o[0]];
            rules.push(self.rule(&kernel, format!("{prefix}{theirs}.weight"), turned, permuted([1, 0])));
            rules.push(self.same(&format!("{ours}/bias"), format!("{prefix}{theirs}.bias")));
        }
        for (ours, theirs) in [("self_attention_layer_norm", "norm1"), ("feedforward_layer_norm", "norm2")] {
            rules.push(self.same(&format!("{ours}/gamma"), format!("{prefix}{theirs}.weight")));
            rules.push(self.same(&format!("{ours}/beta"), format!("{prefix}{theirs}.bias")));
        }
        rules
    }

    /// How many heads, for rules of other files.
    pub(crate) fn heads(&self) -> usize {
        self.number("num_heads")
    }
}

fn permuted<const N: usize>(order: [usize; N]) -> Vec<Step> {
    vec![Step::Transpose(order.to_vec())]
}
