//! Problem description of a pooled convolution: operands, results, and an optional matrix product that follows.

use crate::kernel::dot_product_gemm::InnerProducts;
use crate::kernel::gemm_dims::{Epilogue, roles};
use crate::kernel::{Io, Ptr};
use crate::select::{Problem, SelectResult};
use crate::simd::level::{CompileTarget, Level};
use systole_compile::Kernel as Plan;
use systole_compile::{MaxPoolArgmax, Step};
use systole_ir::TensorType;
use systole_ir::op::Convolution;

/// Reason to reject a pooled convolution followed by a matrix product that [`InnerProducts`] does not support.
pub const NO_PRODUCT: &str = "no kernel can sum the product that follows image by image";

/// A convolution with fused max pooling, as its candidate kernels see it.
///
/// Inputs of the step: input, kernel and, optionally, bias; then those of a product. Results: maxima; optionally
/// argmax; optionally the product.
#[derive(Clone, Copy)]
pub struct PooledConvolution<'a> {
    pub c: &'a Convolution,
    pub pool: &'a MaxPoolArgmax,
    pub step: &'a Step,
    pub target: CompileTarget,
    /// Types of the convolution's input, kernel and, optionally, bias.
    pub inputs: &'a [TensorType],
    /// Types of the product's right operand and, optionally, its bias. Empty without a product.
    pub of_product: &'a [TensorType],
    /// Type of the maxima.
    pub y: &'a TensorType,
}

impl<'a> PooledConvolution<'a> {
    /// Describes a program step as a pooled convolution.
    pub fn of(p: &Problem<'a>) -> SelectResult<PooledConvolution<'a>> {
        let Plan::Pool(pool) = &p.step.kernel else { return Err("the step has no pooling".into()) };
        let c = pool.conv.as_ref().ok_or("the pooling has no fused convolution")?;
        let types = &p.step.input_types;
        let (inputs, of_product) = types.split_at(types.len() - pool.product);
        let y = &p.step.output_types[0];
        Ok(PooledConvolution { c, pool, step: p.step, target: p.target, inputs, of_product, y })
    }

    /// Whether the convolution has a bias.
    pub fn has_bias(&self) -> bool {
        self.inputs.len() > 2
    }

    /// Returns the dense layer fused after the max pooling (y · Wᵀ + bias), or `None` if there is none.
    /// `at_a_time`: maxima that are multiplied per call (0: all).
    pub fn product(&self, at_a_time: usize, level: Level) -> SelectResult<Option<InnerProducts>> {
        let [right, bias @ ..] = self.of_product else { return Ok(None) };
        let y = self.y;
        let rows = y.with_shape([y.shape[0], y.elements() / y.shape[0]]);
        let [left, right] = [&rows, right].map(|t| roles(t, &[], &[0], &[1]));
        let epilogue = Epilogue { bias: !bias.is_empty(), accumulate: false };
        let product = InnerProducts::new(&left, &right, [y.dtype; 2], epilogue, level.vectors());
        Ok(Some(product.ok_or(NO_PRODUCT)?.with_pairs(level, at_a_time)))
    }
}

/// Result arrays of a pooled convolution.
#[derive(Clone, Copy)]
pub struct PoolOutputs {
    pub y: Ptr,
    /// Row-major index of each window's maximum within the window.
    pub argmax: Option<Ptr>,
}

impl PoolOutputs {
    /// Returns the results of a call. `product`: whether the last one belongs to a product.
    pub fn of(io: &Io<'_>, product: bool) -> PoolOutputs {
        let results = &io.outputs[..io.outputs.len() - usize::from(product)];
        PoolOutputs { y: Ptr(results[0]), argmax: results.get(1).map(|&p| Ptr(p)) }
    }
}
