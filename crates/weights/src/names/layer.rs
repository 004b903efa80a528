//! Pairs a layer's weights with those of the corresponding PyTorch module: names, layouts, gate order.

use crate::weight_mapping::{LayoutStep, WeightPart, WeightRule};
use std::collections::HashMap;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::{Layer, LayerLowering, LayerNode, Model, NodeInput, WeightLayout, WeightRole};

/// Layers that Keras does not have.
pub(crate) const OURS: [&str; 9] = [
    "TransformerBlock",
    "PositionEmbedding",
    "ClassToken",
    "FirstStep",
    "SelectStep",
    "SliceSteps",
    "TokenStep",
    "RelativePositionBias",
    "WindowAttention",
];
/// What to do about a nested model, which no format of weights supports.
pub(crate) const FLATTEN: &str = "write the layers of the nested model into the model itself, and train that";

/// A model's layers with their weight shapes.
pub(crate) struct ModelLayers<'a> {
    model: &'a Model,
    shapes: HashMap<String, Vec<usize>>,
}

/// A layer with the information its rules need.
pub(crate) struct LayerInfo<'a> {
    pub name: &'a str,
    pub class: &'static str,
    layer: &'a dyn Layer,
    shapes: &'a HashMap<String, Vec<usize>>,
    /// Height, width and channels of a preceding Flatten.
    flattened: Option<[usize; 3]>,
}

impl<'a> ModelLayers<'a> {
    pub(crate) fn of(model: &'a Model) -> ModelLayers<'a> {
        let shapes = model.weights().into_iter().map(|(p, b)| (p.to_string(), b.ty().shape.to_vec()));
        ModelLayers { model, shapes: shapes.collect() }
    }

    /// Returns the distinct layers with weights, in model order.
    pub(crate) fn weighted(&self) -> Vec<LayerInfo<'_>> {
        let nodes = &self.model.architecture().nodes;
        let mut found: Vec<LayerInfo<'_>> = Vec::new();
        for (i, node) in nodes.iter().enumerate() {
            let start = format!("{}/", node.name);
            let is_new = found.iter().all(|k| k.name != node.name);
            if is_new && self.shapes.keys().any(|path| path.starts_with(&start)) {
                found.push(LayerInfo {
                    name: &node.name,
                    class: node.layer.class_name(),
                    layer: node.layer.layer(),
                    shapes: &self.shapes,
                    flattened: self.flattened(nodes, i),
                });
            }
        }
        found
    }

    /// Returns the input shape of a Flatten right before layer `i`, since PyTorch flattens channels first.
    fn flattened(&self, nodes: &[LayerNode], mut i: usize) -> Option<[usize; 3]> {
        loop {
            let [NodeInput::Layer(before)] = nodes.get(i)?.inputs[..] else { return None };
            let node = nodes.get(before)?;
            match node.layer.layer().lowering().ok()? {
                LayerLowering::Flatten => {
                    return match self.output_of(node.inputs.first()?)?[..] {
                        [h, w, c] => Some([h, w, c]),
                        _ => None,
                    };
                }
                LayerLowering::Identity
                | LayerLowering::Regularization
                | LayerLowering::Activation(_)
                | LayerLowering::Relu { .. }
                | LayerLowering::LeakyRelu(_)
                | LayerLowering::Elu(_)
                | LayerLowering::PRelu => i = before,
                _ => return None,
            }
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

impl LayerInfo<'_> {
    fn shape(&self, weight: &str) -> Option<&[usize]> {
        self.shapes.get(&format!("{}/{weight}", self.name)).map(Vec::as_slice)
    }

    /// Returns the rule `weight ← theirs`; the external shape follows from the weight's.
    fn rule(
        &self,
        role: &WeightRole,
        theirs: String,
        shape: &[usize],
        steps: Vec<LayoutStep>,
    ) -> Option<WeightRule> {
        let ours = self.shape(&role.name)?;
        let mut part = WeightPart::new(theirs, shape, steps);
        part.optional = role.is_optional;
        Some(WeightRule::of(&format!("{}/{}", self.name, role.name), ours, part))
    }

    /// Returns the rules of this layer for external names that start with `prefix`: `features.0.`, or empty.
    ///
    /// # Errors
    /// If no PyTorch layer with known weights corresponds to it.
    pub(crate) fn rules(&self, prefix: &str) -> Result<Vec<WeightRule>> {
        let rules: Vec<WeightRule> =
            self.layer.weight_roles().iter().filter_map(|role| self.of_role(role, prefix)).collect();
        let start = format!("{}/", self.name);
        let all = self.shapes.keys().filter(|path| path.starts_with(&start)).count();
        if rules.len() == all { Ok(rules) } else { Err(self.unknown()) }
    }

    /// Returns the paths of the layer's weights within the layer, with their shapes, in order of the paths.
    pub(crate) fn weights(&self) -> Vec<(&str, &[usize])> {
        let start = format!("{}/", self.name);
        let own = self.shapes.iter().filter_map(|(path, dims)| Some((path.strip_prefix(&start)?, &dims[..])));
        let mut all: Vec<(&str, &[usize])> = own.collect();
        all.sort_unstable();
        all
    }

    /// Returns the rule of one weight for external names that start with `prefix`.
    pub(crate) fn rule_of(&self, weight: &str, prefix: &str) -> Option<WeightRule> {
        self.layer
            .weight_roles()
            .iter()
            .find(|role| role.name == weight)
            .and_then(|role| self.of_role(role, prefix))
    }

    fn unknown(&self) -> Error {
        let what = format!("layer {}: {} has no known counterpart in PyTorch", self.name, self.class);
        let e = Error::new(ErrorKind::Config, what)
            .because("the layer's weights have other shapes in PyTorch, or there is no such module");
        match self.class {
            "Sequential" | "Functional" => e.hint(FLATTEN),
            class if OURS.contains(&class) => {
                e.hint("read Systole's own model file, which is a safetensors file")
            }
            _ => e.hint_command(
                "to export, use --format keras; to import, train this layer, or save it in Keras's format",
            ),
        }
    }

    /// Returns the rule of a weight; `None` if the layer has no weight of that name.
    fn of_role(&self, role: &WeightRole, prefix: &str) -> Option<WeightRule> {
        let ours = self.shape(&role.name)?;
        let theirs = format!("{prefix}{}", role.torch);
        let (shape, steps) = match (&role.layout, ours) {
            (WeightLayout::Same, _) => (ours.to_vec(), Vec::new()),
            (WeightLayout::Flat, _) => {
                (vec![ours.iter().product()], vec![LayoutStep::Reshape(ours.to_vec())])
            }
            (WeightLayout::Transposed, [a, b]) => (vec![*b, *a], permuted([1, 0])),
            (WeightLayout::Dense, [rows, units]) => (vec![*units, *rows], self.dense(*rows, *units)),
            // In a transposed convolution in and out are swapped on both sides.
            (WeightLayout::Convolution, [window @ .., i, o]) => {
                let order = (2..window.len() + 2).chain([1, 0]).collect();
                ([&[*o, *i], window].concat(), vec![LayoutStep::Transpose(order)])
            }
            (WeightLayout::Depthwise, [window @ .., c, m]) => {
                let order = (2..window.len() + 2).chain([0, 1]).collect();
                let steps =
                    vec![LayoutStep::Reshape([&[*c, *m], window].concat()), LayoutStep::Transpose(order)];
                ([&[c * m, 1], window].concat(), steps)
            }
            (WeightLayout::Gates(order), [a, b]) => {
                (vec![*b, *a], [ordered(order), permuted([1, 0])].concat())
            }
            (WeightLayout::GateBiases { order, both }, _) => {
                return Some(self.gate_biases(role, prefix, ours, (order, *both)));
            }
            (WeightLayout::InProjection(i), [e, heads, width]) => {
                let out = heads * width;
                let steps = vec![
                    LayoutStep::Rows(i * out, out),
                    LayoutStep::Transpose(vec![1, 0]),
                    LayoutStep::Reshape(vec![*e, *heads, *width]),
                ];
                (vec![3 * out, *e], steps)
            }
            (WeightLayout::InProjectionBias(i), [heads, width]) => {
                let out = heads * width;
                (
                    vec![3 * out],
                    vec![LayoutStep::Rows(i * out, out), LayoutStep::Reshape(vec![*heads, *width])],
                )
            }
            (WeightLayout::OutProjection, [heads, width, e]) => {
                let steps =
                    vec![LayoutStep::Transpose(vec![1, 0]), LayoutStep::Reshape(vec![*heads, *width, *e])];
                (vec![*e, heads * width], steps)
            }
            _ => return None,
        };
        self.rule(role, theirs, &shape, steps)
    }

    fn dense(&self, rows: usize, units: usize) -> Vec<LayoutStep> {
        match self.flattened {
            Some([h, w, c]) if h * w * c == rows && h * w > 1 && c > 1 => vec![
                LayoutStep::Reshape(vec![units, c, h, w]),
                LayoutStep::Transpose(vec![2, 3, 1, 0]),
                LayoutStep::Reshape(vec![rows, units]),
            ],
            _ => permuted([1, 0]),
        }
    }

    /// Adds PyTorch's two biases if the layer has one.
    fn gate_biases(
        &self,
        role: &WeightRole,
        prefix: &str,
        shape: &[usize],
        (order, both): (&[usize], bool),
    ) -> WeightRule {
        let n = shape[shape.len() - 1];
        let part = |name: &str| WeightPart::new(format!("{prefix}{name}"), &[n], ordered(order)).optional();
        let (first, second) = (part(&role.torch), part("bias_hh_l0"));
        let second = match both && shape.len() == 2 {
            true => WeightPart { at: n, ..second },
            false => WeightPart { adds: true, ..second },
        };
        let ours = format!("{}/{}", self.name, role.name);
        WeightRule { ours, shape: shape.to_vec(), parts: vec![first, second] }
    }

    /// Returns the number of attention heads.
    pub(crate) fn heads(&self) -> usize {
        match self.layer.lowering() {
            Ok(LayerLowering::Attention { heads, .. } | LayerLowering::TransformerBlock { heads, .. }) => {
                heads
            }
            _ => 0,
        }
    }
}

fn ordered(gates: &[usize]) -> Vec<LayoutStep> {
    let is_sorted = gates.windows(2).all(|w| w[0] < w[1]);
    if is_sorted { Vec::new() } else { vec![LayoutStep::Gates(gates.to_vec())] }
}

fn permuted<const N: usize>(order: [usize; N]) -> Vec<LayoutStep> {
    vec![LayoutStep::Transpose(order.to_vec())]
}
