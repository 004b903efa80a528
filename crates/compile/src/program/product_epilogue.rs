//! [`ProductEpilogue`]: GEMM or convolution step with a fused element-wise epilogue, and its type check.

use super::map::Map;
use super::type_check::{CheckResult, map, op_with_bias, stores};
use systole_ir::{Op, TensorType};

/// A GEMM or a convolution, and the map that runs on its complete sums. The product's result is not materialized.
#[derive(Clone, Debug)]
pub struct ProductEpilogue {
    /// The `dot_general` or `convolution`. Its operands are the step's first inputs.
    pub op: Op,
    /// Whether a bias follows the product's operands.
    pub bias: bool,
    /// Type of the product's result, with bias: `f32[…]` for a GEMM.
    pub product: TensorType,
    /// The epilogue. Its inputs are the step's remaining inputs, then the product's result.
    pub map: Map,
}

impl ProductEpilogue {
    /// Number of inputs of the product (before those of the epilogue).
    pub fn operands(&self) -> usize {
        2 + self.bias as usize
    }

    /// Whether only the epilogue reads input `i`, and only at the index that is computed.
    pub(crate) fn reads_in_place(&self, i: usize) -> bool {
        i.checked_sub(self.operands()).is_some_and(|k| self.map.linear_loads(k).is_some())
    }

    /// Short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        let bias = if self.bias { "+bias" } else { "" };
        format!("{}{bias}+map[{}]", self.op.name(), self.map.instrs.len())
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let (product, others) = ins.split_at_checked(self.operands()).ok_or("the product has no operands")?;
        op_with_bias(&self.op, self.bias, product, std::slice::from_ref(&self.product))?;
        let read: Vec<TensorType> = others.iter().chain([&self.product]).cloned().collect();
        map(&self.map, &read)?;
        stores(&self.map, outs)
    }
}
