//! What operators compute, one file for each family. Shapes and types come from files of strangers: each kernel checks
//! what it reads.

mod binary;
mod call;
mod conv;
mod convert;
mod dense;
mod movement;
mod pick;
mod pool;
mod reduce;
mod resize;
mod softmax;
mod unary;
mod window;

use crate::op::Op;
pub(crate) use call::Call;
pub use softmax::IntegerSoftmax;
use systole_base::{Literal, Result};
pub use window::Slide;

/// The operator's outputs.
pub(crate) fn compute(call: &Call) -> Result<Vec<Literal>> {
    use Op::*;
    match call.operator.op {
        Conv2D => conv::conv2d(call),
        DepthwiseConv2D => conv::depthwise(call),
        TransposeConv => conv::transposed(call),
        FullyConnected => dense::fully_connected(call),
        BatchMatmul => dense::batch_matmul(call),
        AveragePool2D => pool::average(call),
        MaxPool2D => pool::max(call),
        Add | Sub | Mul | Div | Maximum | Minimum | SquaredDifference | Prelu => binary::binary(call),
        Relu | ReluN1To1 | Relu6 | LeakyRelu | HardSwish => unary::clamped(call),
        Logistic | Tanh | Elu | Exp | Gelu | Sqrt | Rsqrt | Neg => unary::function(call),
        Softmax => softmax::softmax(call),
        L2Normalization => softmax::l2_normalization(call),
        Mean | Sum | ReduceMax => reduce::reduce(call),
        ArgMax => reduce::arg_max(call),
        Quantize => convert::quantize(call),
        Dequantize => convert::dequantize(call),
        Reshape | Squeeze | ExpandDims => movement::reshape(call),
        Pad => movement::pad(call),
        Concatenation => movement::concatenation(call),
        Transpose => movement::transpose(call),
        BroadcastTo => movement::broadcast_to(call),
        Slice => pick::slice(call),
        StridedSlice => pick::strided_slice(call),
        Split => pick::split(call),
        Gather => pick::gather(call),
        SpaceToDepth | DepthToSpace => pick::space_and_depth(call),
        ResizeBilinear => resize::bilinear(call),
        ResizeNearest => resize::nearest(call),
    }
}
