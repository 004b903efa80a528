//! Fake-quantization points inside attention and transformer blocks, for quantization-aware training.
//!
//! They match the int8 ops that the crate `quant` exports for these layers.

use super::{QuantizationPlan, TensorProducer, WITHIN};
use crate::layer::activation::Activation;
use crate::layer::quantizer::QuantizedKernel;
use systole_ir::{Result, ensure};

impl QuantizationPlan<'_> {
    pub(super) fn multi_head_attention(
        &mut self,
        node: usize,
        has_axes: bool,
        inputs: &[usize],
    ) -> Result<usize> {
        ensure!(!has_axes, self.unfit(node, "MultiHeadAttention with attention_axes"));
        let (query, value) = (inputs[0], inputs.get(1).copied().unwrap_or(inputs[0]));
        let key = inputs.get(2).copied().unwrap_or(value);
        self.attention(node, "", [query, key, value], "output")
    }

    /// Adds attention up to the output projection, whose range is stored under `last`.
    fn attention(&mut self, node: usize, path: &str, of: [usize; 3], last: &str) -> Result<usize> {
        for (part, x) in ["query", "key", "value"].iter().zip(of) {
            let inner = format!("{path}{part}");
            self.product(node, &inner, x);
            self.add_at(TensorProducer::Other, node, &format!("{inner}/output"));
        }
        self.add_at(TensorProducer::Other, node, &format!("{path}scores"));
        let heads = self.add_at(TensorProducer::Other, node, &format!("{path}heads"));
        self.product(node, &format!("{path}attention_output"), heads);
        Ok(self.add_at(TensorProducer::Inner, node, last))
    }

    /// Adds an inner layer that multiplies by a kernel matrix.
    fn product(&mut self, node: usize, path: &str, x: usize) {
        let kernel = QuantizedKernel { name: "kernel".into(), channels: Vec::new(), folded: None };
        self.quantizers[node].within_mut(path).kernels.push(kernel);
        self.borrowed.push((node, format!("{path}/sums"), x));
    }

    pub(super) fn transformer_block(
        &mut self,
        node: usize,
        (first, activation): (bool, Activation),
        x: usize,
    ) -> Result<usize> {
        let sum = |part: &str, is_end: bool| {
            if first && is_end { "output".to_string() } else { format!("{part}_sum") }
        };
        let entering = if first { self.norm(node, "self_attention", false) } else { x };
        self.attention(node, "self_attention/", [entering; 3], "self_attention/attention_output/output")?;
        let mut y = self.add_at(TensorProducer::Merge, node, &sum("self_attention", false));
        if !first {
            y = self.norm(node, "self_attention", false);
        }
        let entering = if first { self.norm(node, "feedforward", false) } else { y };
        let inside = self.inner_dense(node, "feedforward_intermediate_dense", entering, activation)?;
        self.inner_dense(node, "feedforward_output_dense", inside, Activation::Linear)?;
        y = self.add_at(TensorProducer::Merge, node, &sum("feedforward", true));
        Ok(if first { y } else { self.norm(node, "feedforward", true) })
    }

    fn norm(&mut self, node: usize, part: &str, is_end: bool) -> usize {
        let path = format!("{part}_layer_norm");
        for place in WITHIN {
            self.add_at(TensorProducer::Other, node, &format!("{path}/{place}"));
        }
        let last = if is_end { "output".to_string() } else { format!("{path}/output") };
        self.add_at(TensorProducer::Merge, node, &last)
    }

    fn inner_dense(&mut self, node: usize, path: &str, x: usize, activation: Activation) -> Result<usize> {
        self.product(node, path, x);
        let y = self.add_at(TensorProducer::Other, node, &format!("{path}/output"));
        match activation {
            Activation::Linear | Activation::Relu => Ok(y),
            Activation::Gelu { .. } | Activation::LeakyRelu { .. } => {
                self.values[y].place = Some((node, format!("{path}/inner")));
                Ok(self.add_at(TensorProducer::Other, node, &format!("{path}/output")))
            }
            other => Err(self.unfit(node, &format!("TransformerBlock with {}", other.name()))),
        }
    }
}
