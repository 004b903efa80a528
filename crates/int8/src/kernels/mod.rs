//! Selects the CPU engine's int8 kernel for each `.tflite` operator.

mod batch_matmul;
mod elementwise;
mod movement;
mod op_kernel;
mod products;
mod softmax;
mod windows;

use crate::op_context::OpContext;
pub(crate) use op_kernel::{OpKernel, OpKernelContext};
use systole_tflite::TfliteOp;

/// Returns the kernels of an operator, one per output, or `None` if it has none.
pub(crate) fn choose(site: &OpContext) -> Option<Vec<Box<dyn OpKernel>>> {
    let one = |form: Option<Box<dyn OpKernel>>| Some(vec![form?]);
    match site.operator.op {
        TfliteOp::Conv2D => one(products::convolution(site)),
        TfliteOp::DepthwiseConv2D => one(products::depthwise(site)),
        TfliteOp::FullyConnected => one(products::dense(site)),
        TfliteOp::BatchMatmul => one(batch_matmul::matmul(site)),
        TfliteOp::AveragePool2D | TfliteOp::MaxPool2D => one(windows::pool(site)),
        TfliteOp::Mean | TfliteOp::Sum | TfliteOp::ReduceMax => one(windows::reduction(site)),
        TfliteOp::Dequantize => one(elementwise::table(site)),
        TfliteOp::Quantize => one(elementwise::quantize(site)),
        TfliteOp::Add
        | TfliteOp::Sub
        | TfliteOp::Mul
        | TfliteOp::Maximum
        | TfliteOp::Minimum
        | TfliteOp::SquaredDifference
        | TfliteOp::Prelu => one(elementwise::both(site)),
        TfliteOp::Softmax => one(softmax::softmax(site)),
        TfliteOp::Concatenation => one(movement::concatenation(site)),
        TfliteOp::Transpose
        | TfliteOp::Slice
        | TfliteOp::StridedSlice
        | TfliteOp::Split
        | TfliteOp::Gather
        | TfliteOp::SpaceToDepth
        | TfliteOp::DepthToSpace
        | TfliteOp::ResizeNearest
        | TfliteOp::BroadcastTo
        | TfliteOp::Pad => movement::moves(site),
        op if op.is_unary() => one(elementwise::table(site)),
        _ => None,
    }
}
