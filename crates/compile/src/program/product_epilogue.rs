//! A matrix product with the element-wise program that consumes its elements.

use super::check::{Checked, map, op_with_bias, stores};
use super::map::Map;
use systole_ir::{Op, TensorType};

/// A product and the element-wise program that takes its elements.
#[derive(Clone, Debug)]
pub struct ProductEpilogue {
    /// The product; its operands are the step's first inputs.
    pub op: Op,
    /// Whether a bias follows the product's own operands.
    pub bias: bool,
    /// Type of the product.
    pub product: TensorType,
    /// The program. Its inputs are the step's after the product's, then the product.
    pub map: Map,
}

impl ProductEpilogue {
    /// Inputs that are the product's.
    pub fn operands(&self) -> usize {
        2 + self.bias as usize
    }

    /// Whether the step reads input `i` only at the element that it computes.
    pub(crate) fn reads_in_place(&self, i: usize) -> bool {
        i.checked_sub(self.operands()).is_some_and(|k| self.map.linear_loads(k).is_some())
    }

    /// A short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        let bias = if self.bias { "+bias" } else { "" };
        format!("{}{bias}+map[{}]", self.op.name(), self.map.instrs.len())
    }

    /// Types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> Checked {
        let (product, others) = ins.split_at_checked(self.operands()).ok_or("a product without operands")?;
        op_with_bias(&self.op, self.bias, product, std::slice::from_ref(&self.product))?;
        let read: Vec<TensorType> = others.iter().chain([&self.product]).cloned().collect();
        map(&self.map, &read)?;
        stores(&self.map, outs)
    }
}
