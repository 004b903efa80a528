//! Lowers products of small matrices and vectors: each element of the result is a chain of fused multiply-adds.
#![forbid(unsafe_code)]

use crate::run::loop_code::lowering::LoopLowering;
use crate::simd::jit::scalar_code::ScalarValue;
use crate::simd::jit::scalar_lower::scalar_type;
use systole_compile::Step;
use systole_ir::op::{Binary, DotGeneral};
use systole_ir::{DType, TensorType};

/// Multiply-adds of the largest product.
const MOST_MULTIPLY_ADDS: usize = 256;

/// Whether scalar code computes a product.
pub fn is_small_product(dot: &DotGeneral, step: &Step) -> bool {
    let dtype = dot.element_type;
    let terms = contracted(dot, &step.input_types[0]);
    matches!(dtype, DType::F32 | DType::F64)
        && step.input_types.iter().all(|t| t.dtype == dtype && t.bytes() < 1 << 16)
        && (1..=MOST_MULTIPLY_ADDS).contains(&(terms * step.output_types[0].elements()))
}

/// Returns the number of terms of each sum.
fn contracted(dot: &DotGeneral, a: &TensorType) -> usize {
    dot.lhs_contract.iter().map(|&d| a.shape[d]).product()
}

/// Returns, for each combination of coordinates of some dimensions, the element at them, row-major.
fn walk(ty: &TensorType, dims: &[usize]) -> Vec<usize> {
    let strides = ty.shape.strides();
    dims.iter().fold(vec![0], |all, &d| {
        all.iter()
            .flat_map(|at| (0..ty.shape[d]).map(move |k| (at, k)))
            .map(|(at, k)| at + k * strides[d])
            .collect()
    })
}

/// Returns the dimensions that are neither batch dimensions nor contracted.
fn free(ty: &TensorType, batch: &[usize], contract: &[usize]) -> Vec<usize> {
    (0..ty.rank()).filter(|d| !batch.contains(d) && !contract.contains(d)).collect()
}

impl LoopLowering {
    /// Lowers a product.
    pub fn product(&mut self, program: usize, dot: &DotGeneral, step: &Step) -> Option<()> {
        let (a, b) = (&step.input_types[0], &step.input_types[1]);
        let [a_slot, b_slot] = [(program, step.inputs[0]), (program, step.inputs[1])];
        let (dtype, scalar) = (dot.element_type, scalar_type(dot.element_type)?);
        let batch = walk(a, &dot.lhs_batch).into_iter().zip(walk(b, &dot.rhs_batch));
        let rows = walk(a, &free(a, &dot.lhs_batch, &dot.lhs_contract));
        let columns = walk(b, &free(b, &dot.rhs_batch, &dot.rhs_contract));
        let terms: Vec<(usize, usize)> =
            walk(a, &dot.lhs_contract).into_iter().zip(walk(b, &dot.rhs_contract)).collect();
        let mut i = 0;
        for (a_batch, b_batch) in batch {
            for row in &rows {
                for column in &columns {
                    let mut sum: Option<ScalarValue> = None;
                    for (a_term, b_term) in &terms {
                        let x = self.element(a_slot, a_batch + row + a_term, scalar)?;
                        let y = self.element(b_slot, b_batch + column + b_term, scalar)?;
                        sum = Some(match sum {
                            Some(sum) => self.code.multiply_add(dtype, x, y, sum)?,
                            None => self.code.combine(Binary::Multiply, dtype, x, y)?,
                        });
                    }
                    self.set_element((program, step.outputs[0]), i, scalar, sum?)?;
                    i += 1;
                }
            }
        }
        Some(())
    }
}
