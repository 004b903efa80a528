//! Fake-quantization points of embedding tables, for quantization-aware training.
//!
//! Covers rows looked up for tokens, and products with float inputs for tied weights.

use super::{QuantizationPlan, TensorProducer, keeps_values, used_twice};
use crate::layer::lowering::LayerLowering;
use crate::layer::quantizer::{QuantizedKernel, Quantizer};
use crate::model::architecture::NodeInput;
use systole_ir::{DType, Result, ensure};

impl QuantizationPlan<'_> {
    /// Whether a tensor holds tokens: an integer model input, possibly reshaped. uint8 inputs are images.
    fn is_tokens(&self, mut x: usize) -> bool {
        while let Some(before) = self.values[x].before {
            x = before;
        }
        let given = self.architecture.inputs.get(x).and_then(|input| input.ty.as_ref());
        given.is_some_and(|ty| ty.dtype.is_int() && ty.dtype != DType::U8)
    }

    /// Whether the node reads tokens without quantization.
    pub(super) fn reads_tokens(&self, node: usize, x: usize) -> bool {
        match self.lowering(node) {
            Some(LayerLowering::Embedding { .. }) => true,
            Some(LayerLowering::ReversibleEmbedding { .. }) => self.is_tokens(x),
            Some(own) => keeps_values(&own) && self.is_tokens(x),
            None => false,
        }
    }

    /// Plans a `ReversibleEmbedding`: tokens are looked up; floats are multiplied, as in a dense layer without bias.
    pub(super) fn reversible_embedding(
        &mut self,
        node: usize,
        (tie_weights, is_capped): (bool, bool),
        x: usize,
    ) -> Result<usize> {
        let of_tokens = self.is_tokens(x);
        let name = &self.architecture.nodes[node].name;
        let again = |before: &usize| self.architecture.nodes[*before].name == *name;
        if (0..node).filter(again).any(|before| self.is_tokens(self.first_input(before)) == of_tokens) {
            return Err(used_twice(name));
        }
        if of_tokens {
            return Ok(self.add_at(TensorProducer::Other, node, "rows"));
        }
        ensure!(!is_capped, self.unfit(node, "ReversibleEmbedding with logit_soft_cap"));
        let name = if tie_weights { "embeddings" } else { "reverse_embeddings" };
        self.quantizers[node].kernels =
            vec![QuantizedKernel { name: name.into(), channels: Vec::new(), folded: None }];
        self.borrowed.push((node, "sums".into(), x));
        Ok(self.add_at(TensorProducer::Weights { node, takes_relu: true }, node, "output"))
    }

    fn first_input(&self, node: usize) -> usize {
        match self.architecture.nodes[node].inputs[0] {
            NodeInput::Input(i) => i,
            NodeInput::Layer(i) => self.made[i],
        }
    }

    /// Plans a position embedding: a constant, quantized in the file if an int8 op reads it.
    pub(super) fn position_embedding(&mut self, node: usize) -> usize {
        let nodes = &self.architecture.nodes;
        let reads = |reader: &usize| nodes[*reader].inputs.contains(&NodeInput::Layer(node));
        let is_float = (0..nodes.len()).filter(reads).any(|reader| self.stays_in_floats(reader));
        let y = self.add(if is_float { TensorProducer::Other } else { TensorProducer::Constant }, None);
        self.values[y].is_float = is_float;
        (self.quantizers[node].is_float, self.quantizers[node].is_constant) = (is_float, !is_float);
        y
    }

    /// Merges the quantizers of a layer used for tokens and for floats: rows of the first use, everything else of the
    /// second.
    pub(super) fn share(&mut self) {
        let nodes = &self.architecture.nodes;
        for i in 0..nodes.len() {
            let Some(first) = (0..i).find(|&first| nodes[first].name == nodes[i].name) else { continue };
            let [a, b] = [first, i].map(|at| self.quantizers[at].clone());
            let rows = a.rows.clone().or(b.rows.clone());
            let of_floats = if a.rows.is_some() { b } else { a };
            let both = Quantizer { rows, ..of_floats };
            self.quantizers[first] = both.clone();
            self.quantizers[i] = both;
        }
    }
}
