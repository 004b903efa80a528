//! Matrices of whole numbers, and products with them, as data.

use super::type_check::{CheckResult, alike, op_with_bias, same};
use systole_ir::quantized_weights::DequantizeWeights;
use systole_ir::{DType, Op, TensorType};

/// A matrix of whole numbers with scales as floats, or a GEMM with it as right operand, which is not materialised then.
#[derive(Clone, Debug)]
pub struct DequantizeStep {
    /// How it lies in memory.
    pub unpack: DequantizeWeights,
    /// Which inputs the whole numbers and the scales are.
    pub at: [usize; 2],
    /// The GEMM, a `dot_general`. The step's inputs are its left operand, numbers, scales and bias.
    pub product: Option<DequantizedGemm>,
}

/// What is multiplied with a packed matrix.
#[derive(Clone, Debug)]
pub struct DequantizedGemm {
    /// The `dot_general`.
    pub op: Op,
    /// Whether a bias is the last input.
    pub bias: bool,
    /// The type as which the GEMM reads the matrix: `f32[…]`.
    pub right: TensorType,
}

impl DequantizeStep {
    /// A short name for listings and profiles.
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
        for (what, at, ty) in [("the numbers", self.at[0], numbers), ("the scales", self.at[1], scales)] {
            same(what, ins.get(at).ok_or_else(|| format!("{what} are no operand"))?, &ty)?;
        }
        match &self.product {
            None => {
                let ty = TensorType::new(DType::F32, &self.unpack.shape[..]);
                alike("the floats", outs, std::slice::from_ref(&ty))
            }
            Some(p) => {
                let left = ins.first().ok_or("a product without operands")?.clone();
                let bias = ins.last().filter(|_| p.bias).cloned();
                let operands: Vec<TensorType> = [left, p.right.clone()].into_iter().chain(bias).collect();
                op_with_bias(&p.op, p.bias, &operands, outs)
            }
        }
    }
}
