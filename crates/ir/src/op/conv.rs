//! convolution: sliding sums of products with strides, padding, dilations, groups and any layout.

use super::*;
use systole_base::{DType, Dims};

/// Which dimension of input, kernel and output means what.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvDims {
    /// Batch dimension of the input.
    pub input_batch: usize,
    /// Feature (channel) dimension of the input.
    pub input_feature: usize,
    /// Spatial dimensions of the input.
    pub input_spatial: Dims,
    /// Input-feature dimension of the kernel.
    pub kernel_input_feature: usize,
    /// Output-feature dimension of the kernel.
    pub kernel_output_feature: usize,
    /// Spatial dimensions of the kernel.
    pub kernel_spatial: Dims,
    /// Batch dimension of the output.
    pub output_batch: usize,
    /// Feature dimension of the output.
    pub output_feature: usize,
    /// Spatial dimensions of the output.
    pub output_spatial: Dims,
}

impl ConvDims {
    /// Keras's layout with `n` spatial dimensions: input `[B, …, C]`, kernel `[…, C, F]`, output `[B, …, F]`.
    pub fn channels_last(n: usize) -> ConvDims {
        let spatial: Dims = (1..=n).collect();
        ConvDims {
            input_batch: 0,
            input_feature: n + 1,
            input_spatial: spatial.clone(),
            kernel_input_feature: n,
            kernel_output_feature: n + 1,
            kernel_spatial: (0..n).collect(),
            output_batch: 0,
            output_feature: n + 1,
            output_spatial: spatial,
        }
    }
}

/// `x: T[B, …, C], kernel: T[…, C/groups, F] → U[B, …', F]` in the layout that `dims` names. Spec: convolution.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Convolution {
    /// Step of the window, for each spatial dimension.
    pub strides: Dims,
    /// Zeros before and after each spatial dimension of the input; may be negative.
    pub padding: Vec<[i64; 2]>,
    /// Holes between input elements: 1 is none.
    pub lhs_dilation: Dims,
    /// Holes between kernel elements: 1 is none.
    pub rhs_dilation: Dims,
    /// Whether the kernel runs backwards, for each spatial dimension.
    pub reversal: Vec<bool>,
    /// Layouts.
    pub dims: ConvDims,
    /// Groups of input features.
    pub feature_groups: usize,
    /// Groups of the batch.
    pub batch_groups: usize,
    /// Element type of the result.
    pub element_type: DType,
}

impl OpRule for Convolution {
    fn name(&self) -> &'static str {
        "convolution"
    }
    fn infer(&self, _args: &[&TensorType]) -> Result<Outs, Constraint> {
        Err(Constraint::new("-", "is not built yet"))
    }
    fn eval(&self, _cx: &mut EvalCx, _args: &[&Literal], _outs: &Outs) -> Result<Vec<Literal>> {
        systole_base::bug!("not built yet")
    }
    fn vjp(&self, x: &[Tensor], _: &[Tensor], _: &[Option<Tensor>]) -> Vec<Grad> {
        vec![Grad::Zero; x.len()]
    }
    fn lower(&self) -> Lowering {
        Lowering::Contract
    }
}
