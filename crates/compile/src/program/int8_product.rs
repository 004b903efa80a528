//! [`Int8Product`]: int8 GEMM or convolution step with int32 accumulators and a fused element-wise epilogue.

use super::map::Map;
use super::type_check::{CheckResult, alike, infers, map, stores};
use systole_ir::op::ConvDims;
use systole_ir::{DType, Op, TensorType};

/// Maximum number of products that are added; any sum of them fits int32.
const MOST_K: usize = 1 << 16;

/// A product of int8 operands with int32 sums, and the map that runs on its complete sums. The sums are not materialized
/// if there is a map.
#[derive(Clone, Debug)]
pub struct Int8Product {
    /// The `dot_general` or `convolution`. Its operands are the step's first two inputs.
    pub op: Op,
    /// Value of a convolution's padding: the zero point of the input.
    pub padding: i8,
    /// Type of the sums: `i32[…]`.
    pub sums: TensorType,
    /// The epilogue. Its inputs are the step's remaining inputs, then the sums.
    pub map: Option<Map>,
}

impl Int8Product {
    /// Whether there are kernels for a product: `[…, K] · [K, N]`, also with a transposed right operand, or a 2D
    /// convolution with channels last, in one group.
    pub(crate) fn supports(op: &Op, x: &TensorType, w: &TensorType, sums: &TensorType) -> bool {
        let types = [x.dtype, w.dtype, sums.dtype] == [DType::I8, DType::I8, DType::I32];
        types && sums.elements() > 0 && w.elements() > 0 && Int8Product::has_layout(op, x, w)
    }

    fn has_layout(op: &Op, x: &TensorType, w: &TensorType) -> bool {
        match op {
            Op::DotGeneral(d) => {
                d.lhs_batch.is_empty()
                    && w.rank() == 2
                    && d.rhs_contract.len() == 1
                    && d.lhs_contract.len() == 1
                    && d.lhs_contract[0] + 1 == x.rank()
                    && x.shape[d.lhs_contract[0]] <= MOST_K
            }
            Op::Convolution(c) => {
                let k: usize = w.shape.iter().take(3).product();
                c.dims == ConvDims::channels_last(2)
                    && [c.feature_groups, c.batch_groups] == [1, 1]
                    && c.lhs_dilation.iter().all(|&d| d == 1)
                    && c.reversal.iter().all(|r| !r)
                    && c.padding.iter().flatten().all(|&p| p >= 0)
                    && k <= MOST_K
            }
            _ => false,
        }
    }

    /// Short name for listings and profiles.
    pub(crate) fn name(&self) -> String {
        let epilogue = self.map.as_ref().map(|m| format!("+map[{}]", m.instrs.len()));
        format!("{} int8{}", self.op.name(), epilogue.unwrap_or_default())
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        let (product, others) = ins.split_at_checked(2).ok_or("the product has no operands")?;
        let sums = std::slice::from_ref(&self.sums);
        infers(&self.op, product, sums)?;
        let Some(epilogue) = &self.map else { return alike("sums", outs, sums) };
        let read: Vec<TensorType> = others.iter().chain(sums).cloned().collect();
        map(epilogue, &read)?;
        stores(epilogue, outs)
    }
}
