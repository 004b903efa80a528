//! Dequantization of int8 and int4 weights as one node: block-wise scales, float result.
//!
//! Like attention, the node is a branch that always runs ([`control_builders::outlined`]): plain StableHLO that the
//! interpreter can evaluate. Backends that multiply quantized weights directly recognize it with [`DequantizeWeights`],
//! which rebuilds the branch and compares.

use super::{Op, control_builders};
use crate::{Dims, Graph, GraphBuilder, Tensor};
use std::sync::Arc;
use systole_base::{DType, TensorType};

/// Layout of a quantized weight matrix: `T[…]` of inputs × outputs or outputs × inputs, with one scale per block of
/// inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DequantizeWeights {
    /// Whether weights are int4, two per byte (low half first); otherwise int8.
    pub is_halves: bool,
    /// Shape of the float matrix.
    pub shape: Dims,
    /// Number of inputs: weights that each output sums over.
    pub inputs: usize,
    /// Whether the inputs of one output are contiguous.
    pub by_output: bool,
    /// Number of consecutive inputs that share a scale.
    pub block: usize,
    /// Whether scales have shape `[blocks, outputs]`; otherwise `[outputs, blocks]`.
    pub by_block: bool,
}

impl DequantizeWeights {
    /// Number of quantized weights.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of outputs of the quantized weight matrix.
    pub fn outputs(&self) -> usize {
        self.elements() / self.inputs.max(1)
    }

    /// Number of scales per output of the quantized weight matrix.
    pub fn blocks(&self) -> usize {
        self.inputs.div_ceil(self.block.max(1))
    }

    /// Types of the quantized weights and of their scales.
    pub fn types(&self) -> [TensorType; 2] {
        let numbers = match self.is_halves {
            false => TensorType::new(DType::I8, &self.shape[..]),
            true => TensorType::new(DType::U8, [self.elements().div_ceil(2)]),
        };
        let scales =
            if self.by_block { [self.blocks(), self.outputs()] } else { [self.outputs(), self.blocks()] };
        [numbers, TensorType::new(DType::F32, scales)]
    }

    /// `numbers, scales → f32[shape]`: dequantizes weights, as one node.
    ///
    /// ```
    /// use systole_ir::{quantized_weights::DequantizeWeights, interp, DType, GraphBuilder, Literal};
    /// let how = DequantizeWeights { is_halves: false, shape: vec![2, 2].into(), inputs: 2, by_output: false, block: 2, by_block: false };
    /// let g = GraphBuilder::new("main");
    /// let [numbers, scales] = how.types().map(|ty| g.parameter(ty, "x"));
    /// let graph = g.finish(&[how.node(&numbers, &scales)]).unwrap();
    /// let numbers = Literal::from_slice([2, 2], &[1i8, 2, 3, -4]).unwrap();
    /// let scales = Literal::from_slice([2, 1], &[0.5f32, 10.0]).unwrap();
    /// assert_eq!(interp::run(&graph, &[&numbers, &scales]).unwrap()[0].to_f32s(), [0.5, 20.0, 1.5, -40.0]);
    /// ```
    #[track_caller]
    pub fn node(&self, numbers: &Tensor, scales: &Tensor) -> Tensor {
        control_builders::outlined(numbers, || vec![self.expand(numbers, scales)]).remove(0)
    }

    /// Dequantizes weights with the ops inside [`DequantizeWeights::node`].
    #[track_caller]
    pub fn expand(&self, numbers: &Tensor, scales: &Tensor) -> Tensor {
        let (n, inputs, outputs, blocks) = (self.elements(), self.inputs, self.outputs(), self.blocks());
        let q = match self.is_halves {
            false => numbers.convert(DType::F32).reshape([n]),
            true => {
                let bytes = numbers.convert(DType::I32);
                let whole = |four: Tensor| (four.xor(&four.scalar_like(8.0)) - 8.0).convert(DType::F32);
                let low = whole(bytes.and(&bytes.scalar_like(15.0)));
                let high = whole(bytes.shift_right_logical(&bytes.scalar_like(4.0)));
                let pairs = [low, high].map(|x| x.reshape([n.div_ceil(2), 1]));
                let both = Tensor::concatenate(&[&pairs[0], &pairs[1]], 1).reshape([n.div_ceil(2) * 2]);
                both.slice_dim(0, 0, n)
            }
        };
        let wide = blocks * self.block;
        let by_block = |turned: bool| if turned { scales.transpose(&[1, 0]) } else { scales.clone() };
        let steps = match self.by_output {
            true => by_block(self.by_block)
                .broadcast_in_dim(&[outputs, blocks, self.block].into(), &[0, 1])
                .reshape([outputs, wide])
                .slice_dim(1, 0, inputs),
            false => by_block(!self.by_block)
                .broadcast_in_dim(&[blocks, self.block, outputs].into(), &[0, 2])
                .reshape([wide, outputs])
                .slice_dim(0, 0, inputs),
        };
        (q * steps.reshape([n])).reshape(&self.shape[..])
    }

    /// Recognizes a graph that dequantizes weights; also returns the parameter indices of weights and scales.
    pub fn of(graph: &Graph) -> Option<(DequantizeWeights, [usize; 2])> {
        let &[result] = &graph.results[..] else { return None };
        let types = graph.param_types();
        let scales = types.iter().position(|t| t.dtype == DType::F32 && t.rank() == 2)?;
        let numbers = types.iter().position(|t| matches!(t.dtype, DType::I8 | DType::U8))?;
        if types.len() != 2 || graph.ty(result).dtype != DType::F32 {
            return None;
        }
        let is_halves = types[numbers].dtype == DType::U8;
        let shape = graph.ty(result).shape.dims();
        let elements: usize = shape.iter().product();
        let mut found = graph.nodes.iter().filter_map(|n| match &n.op {
            // The only broadcast to three dimensions gives the number of inputs per scale.
            Op::BroadcastInDim(_) if n.outs[0].rank() == 3 => Some(n.outs[0].shape.dims()),
            _ => None,
        });
        let wide = found.next()?;
        let of = |by_output: bool, by_block: bool| {
            let (outputs, block) = if by_output { (wide[0], wide[2]) } else { (wide[2], wide[1]) };
            let inputs = elements.checked_div(outputs)?;
            let how = DequantizeWeights {
                is_halves,
                shape: Dims::from_slice(shape),
                inputs,
                by_output,
                block,
                by_block,
            };
            let fits = how.types() == [types[numbers].clone(), types[scales].clone()] && block > 0;
            (fits && *how.build(graph, [numbers, scales])? == *graph).then_some((how, [numbers, scales]))
        };
        [(false, false), (false, true), (true, false), (true, true)].into_iter().find_map(|(a, b)| of(a, b))
    }

    /// Rebuilds the branch with the parameters of `graph`.
    fn build(&self, graph: &Graph, [numbers, scales]: [usize; 2]) -> Option<Arc<Graph>> {
        let g = GraphBuilder::new(&graph.name);
        let x: Vec<Tensor> = graph.param_types().iter().map(|t| g.parameter(t.clone(), "x")).collect();
        g.finish(&[self.expand(&x[numbers], &x[scales])]).ok()
    }
}

// Names of the previous version.
systole_base::renamed! { Unpack => DequantizeWeights }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_found_again() {
        for is_halves in [false, true] {
            for (by_output, by_block) in [(false, false), (false, true), (true, false), (true, true)] {
                for block in [2, 3, 6] {
                    let (outputs, inputs) = (4, 6);
                    let shape = if by_output { [outputs, inputs] } else { [inputs, outputs] };
                    let how = DequantizeWeights {
                        is_halves,
                        shape: shape[..].into(),
                        inputs,
                        by_output,
                        block,
                        by_block,
                    };
                    let g = GraphBuilder::new("main");
                    let [numbers, scales] = how.types().map(|ty| g.parameter(ty, "x"));
                    let graph = g.finish(&[how.node(&numbers, &scales)]).unwrap();
                    let branch = graph.nodes.iter().find_map(|n| match &n.op {
                        Op::Case(c) => c.branches.first().cloned(),
                        _ => None,
                    });
                    let (found, places) = DequantizeWeights::of(&branch.unwrap()).unwrap();
                    assert_eq!((found, places), (how, [0, 1]));
                }
            }
        }
    }

    #[test]
    fn what_only_looks_like_one_is_not() {
        let how = DequantizeWeights {
            is_halves: false,
            shape: vec![6, 4].into(),
            inputs: 6,
            by_output: false,
            block: 3,
            by_block: true,
        };
        let g = GraphBuilder::new("main");
        let [numbers, scales] = how.types().map(|ty| g.parameter(ty, "x"));
        let w = how.expand(&numbers, &scales);
        assert!(DequantizeWeights::of(&g.finish(std::slice::from_ref(&w)).unwrap()).is_some());
        assert!(DequantizeWeights::of(&g.finish(&[w.abs()]).unwrap()).is_none());
        assert!(DequantizeWeights::of(&g.finish(&[&w * 2.0]).unwrap()).is_none());
        assert!(DequantizeWeights::of(&g.finish(&[scales.abs()]).unwrap()).is_none());
    }
}
