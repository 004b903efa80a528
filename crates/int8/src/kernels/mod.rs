//! The forms of operators: what the engine's kernels compute.

mod batch_matmul;
mod elementwise;
mod movement;
mod op_kernel;
mod products;
mod softmax;
mod windows;

use crate::op_context::Site;
pub(crate) use op_kernel::{Context, Form};
use systole_tflite::Op;

/// The forms of an operator, one for each output; `None`: it has none.
pub(crate) fn choose(site: &Site) -> Option<Vec<Box<dyn Form>>> {
    let one = |form: Option<Box<dyn Form>>| Some(vec![form?]);
    match site.operator.op {
        Op::Conv2D => one(products::convolution(site)),
        Op::DepthwiseConv2D => one(products::depthwise(site)),
        Op::FullyConnected => one(products::dense(site)),
        Op::BatchMatmul => one(batch_matmul::matmul(site)),
        Op::AveragePool2D | Op::MaxPool2D => one(windows::pool(site)),
        Op::Mean | Op::Sum | Op::ReduceMax => one(windows::reduction(site)),
        Op::Dequantize => one(elementwise::table(site)),
        Op::Quantize => one(elementwise::quantize(site)),
        Op::Add | Op::Sub | Op::Mul | Op::Maximum | Op::Minimum | Op::SquaredDifference | Op::Prelu => {
            one(elementwise::both(site))
        }
        Op::Softmax => one(softmax::softmax(site)),
        Op::Concatenation => one(movement::concatenation(site)),
        Op::Transpose
        | Op::Slice
        | Op::StridedSlice
        | Op::Split
        | Op::Gather
        | Op::SpaceToDepth
        | Op::DepthToSpace
        | Op::ResizeNearest
        | Op::BroadcastTo
        | Op::Pad => movement::moves(site),
        op if op.is_unary() => one(elementwise::table(site)),
        _ => None,
    }
}
