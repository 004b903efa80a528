//! Describes (as data) kernels on quantized weights: dequantization, and GEMMs that read int8 or int4 weights directly.

use super::type_check::{CheckResult, alike, op_with_bias, same};
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::{DType, Op, TensorType};

/// Dequantization of a weight matrix, or a GEMM with it as right operand; the GEMM does not materialize the floats.
#[derive(Clone, Debug)]
pub struct DequantizeStep {
    /// Layout of the quantized weights.
    pub unpack: DequantizeWeights,
    /// Input indices of the quantized weights and of the scales.
    pub at: [usize; 2],
    /// The GEMM, a `dot_general`. The step's inputs are its left operand, quantized weights, scales and bias.
    pub product: Option<DequantizedGemm>,
}

/// GEMM with a dequantized right operand.
#[derive(Clone, Debug)]
pub struct DequantizedGemm {
    /// The `dot_general`.
    pub op: Op,
    /// Whether a bias is the last input.
    pub bias: bool,
    /// Type in which the GEMM reads the matrix: `f32[…]`.
    pub right: TensorType,
}

impl DequantizeStep {
    /// Short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        let bits = if self.unpack.is_halves { 4 } else { 8 };
        match &self.product {
            None => format!("unpack int{bits}"),
            Some(p) => format!("{} int{bits}{}", p.op.name(), if p.bias { "+bias" } else { "" }),
        }
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let [numbers, scales] = self.unpack.types();
        for (what, at, ty) in [("quantized weights", self.at[0], numbers), ("scales", self.at[1], scales)] {
            same(what, ins.get(at).ok_or_else(|| format!("operand with {what} is missing"))?, &ty)?;
        }
        match &self.product {
            None => {
                let ty = TensorType::new(DType::F32, &self.unpack.shape[..]);
                alike("dequantized matrix", outs, std::slice::from_ref(&ty))
            }
            Some(p) => {
                let left = ins.first().ok_or("the GEMM has no operands")?.clone();
                let bias = ins.last().filter(|_| p.bias).cloned();
                let operands: Vec<TensorType> = [left, p.right.clone()].into_iter().chain(bias).collect();
                op_with_bias(&p.op, p.bias, &operands, outs)
            }
        }
    }
}
