//! Rolls repeated identical layer blocks into loops, for compilers that are slow on long programs.
//!
//! A deep model mostly repeats one segment: a transformer block, a residual block. If a chain of segments is wired
//! identically and each traces to the same graph, one loop over their stacked weights computes the same operations on
//! the same numbers, random draws included. Weights keep their names: stacking happens inside the program.

use crate::layer::{Cx, PieceInput};
use crate::model::architecture::{Architecture, LayerNode, NodeInput};
use std::ops::Range;
use std::sync::Arc;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType, control_builders};

/// Minimum number of segments for a loop; for fewer, the stacking costs more than the loop saves.
const FEWEST: usize = 3;

/// Nodes `start..start + period · times` that look like `times` identical segments, each fed only by the previous one.
#[derive(Debug, PartialEq)]
pub(crate) struct LayerChain {
    pub(crate) start: usize,
    period: usize,
    times: usize,
    /// Input of the first segment.
    pub(crate) entry: NodeInput,
}

/// Finds the disjoint chains of an architecture, from its inputs on. Of chains with the same first node, the longest is
/// used.
pub(crate) fn chains(architecture: &Architecture) -> Vec<LayerChain> {
    let mut found = Vec::new();
    let mut start = 0;
    while start < architecture.nodes.len() {
        let longest = (architecture.nodes.len() - start) / FEWEST;
        let here = (1..=longest).filter_map(|period| LayerChain::at(architecture, start, period));
        // On ties the last one wins, so the shortest period comes last.
        match here.collect::<Vec<_>>().into_iter().rev().max_by_key(LayerChain::nodes) {
            Some(chain) => {
                start += chain.nodes();
                found.push(chain);
            }
            None => start += 1,
        }
    }
    found
}

impl LayerChain {
    fn at(architecture: &Architecture, start: usize, period: usize) -> Option<LayerChain> {
        let nodes = &architecture.nodes;
        let mut outside =
            nodes[start..start + period].iter().flat_map(|p| &p.inputs).filter(|s| !inside(s, start));
        let entry = *outside.next()?;
        if outside.any(|s| *s != entry) {
            return None;
        }
        let mut chain = LayerChain { start, period, times: 1, entry };
        while chain.continues(nodes) {
            chain.times += 1;
        }
        while chain.is_long() && !chain.is_closed(architecture) {
            chain.times -= 1;
        }
        chain.is_long().then_some(chain)
    }

    /// Whether the nodes after the chain look like a further segment.
    fn continues(&self, nodes: &[LayerNode]) -> bool {
        let shift = self.nodes();
        let Some(next) = nodes.get(self.start + shift..self.start + shift + self.period) else {
            return false;
        };
        let moved = |s: &NodeInput| match s {
            NodeInput::Layer(i) if inside(s, self.start) => NodeInput::Layer(i + shift),
            _ => NodeInput::Layer(self.start + shift - 1),
        };
        nodes[self.start..].iter().zip(next).all(|(first, node)| {
            let (a, b) = (&first.layer, &node.layer);
            // Ranges of quantization-aware layers are weights that a step updates.
            let alike = (a.class_name(), a.is_trainable(), a.is_remat())
                == (b.class_name(), b.is_trainable(), b.is_remat())
                && a.quantizer().is_none();
            alike && first.inputs.iter().map(moved).eq(node.inputs.iter().copied())
        })
    }

    /// Whether only the last node is read from outside, and no layer shares its weights with another node of the same
    /// name.
    fn is_closed(&self, architecture: &Architecture) -> bool {
        let nodes = &architecture.nodes;
        let range = self.start..self.start + self.nodes();
        let hidden =
            |s: &NodeInput| matches!(s, NodeInput::Layer(i) if range.contains(i) && i + 1 != range.end);
        let others = || nodes[..range.start].iter().chain(&nodes[range.end..]);
        let own = &nodes[range.clone()];
        let shared = |p: &LayerNode| own.iter().chain(others()).filter(|q| q.name == p.name).count() > 1;
        !architecture.outputs().any(|output| hidden(&output))
            && !others().flat_map(|p| &p.inputs).any(hidden)
            && !own.iter().any(shared)
    }

    /// Number of nodes in all segments.
    pub(crate) fn nodes(&self) -> usize {
        self.period * self.times
    }

    /// Whether it has enough segments for a loop.
    pub(crate) fn is_long(&self) -> bool {
        self.times >= FEWEST
    }

    /// Removes the first segment, whose input type may differ.
    pub(crate) fn leave_one_out(&mut self) {
        self.start += self.period;
        self.times -= 1;
        self.entry = NodeInput::Layer(self.start - 1);
    }

    /// Builds the chain's output for its input `x` as a loop. `None` if the first segments differ after tracing. If
    /// only the last ones differ, the chain is shortened.
    pub(crate) fn as_loop(&mut self, architecture: &Architecture, cx: &mut Cx, x: &Tensor) -> Option<Tensor> {
        if cx.mask_of(x).is_some() {
            return None;
        }
        let mut pieces: Vec<LayerPiece> = Vec::new();
        for k in 0..self.times {
            let start = self.start + k * self.period;
            let before = pieces.last().map_or(*cx.draws(), |p| p.draws);
            match LayerPiece::trace(architecture, start..start + self.period, cx, x.ty(), before) {
                Some(piece) if pieces.first().is_none_or(|first| first.graph == piece.graph) => {
                    pieces.push(piece)
                }
                _ => break,
            }
        }
        if pieces.len() < FEWEST || pieces[0].fed.is_empty() {
            return None;
        }
        self.times = pieces.len();
        let names = |at: usize| architecture.nodes[at].name.as_str();
        let scope = format!("{}…{}", names(self.start), names(self.start + self.nodes() - 1));
        let again =
            architecture.nodes[self.start..self.start + self.period].iter().any(|p| p.layer.is_remat());
        let builder = cx.builder().clone();
        Some(builder.scope(&scope, || looped(&pieces, cx, x, again)))
    }
}

/// Whether a source is inside the segment that starts at node `start`.
fn inside(source: &NodeInput, start: usize) -> bool {
    matches!(source, NodeInput::Layer(i) if *i >= start)
}

/// A separately traced segment.
struct LayerPiece {
    /// Signature: `input, random key (in training), weights and draws … → output, updated weights …`
    graph: Arc<Graph>,
    fed: Vec<PieceInput>,
    /// Paths of the weights that it updates.
    updates: Vec<String>,
    /// Number of the model's random draws up to its end.
    draws: usize,
}

impl LayerPiece {
    /// Traces a segment. `None` if a loop cannot represent it: the output type differs from the input type, a weight is
    /// unknown, a layer fails (the error is reported where the layer is called), or the segment has logits, masks,
    /// several outputs, penalties or constraints.
    fn trace(
        architecture: &Architecture,
        range: Range<usize>,
        cx: &Cx,
        ty: &TensorType,
        before: usize,
    ) -> Option<LayerPiece> {
        let g = GraphBuilder::new("piece");
        let x = g.parameter(ty.clone(), "x");
        let mut own = cx.apart(&g, before);
        let mut outputs: Vec<Tensor> = Vec::with_capacity(range.len());
        for node in &architecture.nodes[range.clone()] {
            let value = |s: &NodeInput| match s {
                NodeInput::Layer(i) if inside(s, range.start) => outputs[i - range.start].clone(),
                _ => x.clone(),
            };
            let args: Vec<Tensor> = node.inputs.iter().map(value).collect();
            outputs.push(own.scope(&node.name, |cx| node.layer.call(cx, &args)));
        }
        let y = outputs.pop()?;
        if y.ty() != ty
            || own.logits_of(&y).is_some()
            || own.has_rules()
            || own.has_masks()
            || own.has_more_outputs()
        {
            return None;
        }
        let (fed, draws) = own.fed();
        let (updates, values): (Vec<String>, Vec<Tensor>) = own.take_updates().into_iter().unzip();
        let results: Vec<Tensor> = std::iter::once(y).chain(values).collect();
        let graph = g.finish(&results).ok()?;
        let params = graph.params[graph.params.len() - fed.len()..].iter().map(|&p| graph.ty(p));
        let known = |(fed, ty): (&PieceInput, &TensorType)| match fed {
            PieceInput::Weight(path) => cx.known_weight(path).is_some_and(|w| w.ty() == ty),
            PieceInput::Draw(_) => true,
        };
        fed.iter().zip(params).all(known).then_some(LayerPiece { graph, fed, updates, draws })
    }
}

/// Builds a loop over identical segments and returns its output. With `again` the backward pass recomputes them
/// (rematerialization).
fn looped(pieces: &[LayerPiece], cx: &mut Cx, x: &Tensor, again: bool) -> Tensor {
    let (first, key) = (&pieces[0], cx.draw_key().cloned());
    let stacks: Vec<Tensor> = (0..first.fed.len()).map(|k| stacked(pieces, k, cx)).collect();
    let step = |carried: &[Tensor], fed: &[Tensor]| {
        let args: Vec<&Tensor> = carried.iter().chain(&key).chain(fed).collect();
        let mut results = carried[0].builder().inline(&first.graph, &args);
        let updates = results.split_off(1);
        (results, updates)
    };
    let (init, stacks) = ([x], stacks.iter().collect::<Vec<_>>());
    let (mut last, updated) = if again {
        control_builders::scan(&init, &stacks, step)
    } else {
        control_builders::scan_keeping(&init, &stacks, step)
    };
    for (k, stack) in updated.iter().enumerate() {
        for (i, piece) in pieces.iter().enumerate() {
            let own = stack.slice_dim(0, i, i + 1).reshape(&stack.shape()[1..]);
            cx.update_at(piece.updates[k].clone(), own);
        }
    }
    if let Some(piece) = pieces.last() {
        *cx.draws() = piece.draws;
    }
    last.remove(0)
}

/// Stacks parameter `k` of all segments: `→ T[pieces, …]`.
fn stacked(pieces: &[LayerPiece], k: usize, cx: &Cx) -> Tensor {
    let draws: Vec<u64> = pieces
        .iter()
        .filter_map(|p| match &p.fed[k] {
            PieceInput::Draw(draw) => Some(*draw),
            PieceInput::Weight(_) => None,
        })
        .collect();
    if let (false, Ok(draws)) = (draws.is_empty(), Literal::from_slice([draws.len()], &draws)) {
        return cx.builder().constant(draws);
    }
    let weight = |p: &LayerPiece| match &p.fed[k] {
        PieceInput::Weight(path) => {
            cx.known_weight(path).map(|w| w.reshape([&[1], w.shape().dims()].concat()))
        }
        PieceInput::Draw(_) => None,
    };
    let weights: Vec<Tensor> = pieces.iter().filter_map(weight).collect();
    Tensor::concatenate(&weights.iter().collect::<Vec<_>>(), 0)
}
