//! The forms of operators: what the engine's kernels compute.

mod batch;
mod elements;
mod form;
mod movement;
mod products;
mod rows;
mod windows;

use crate::site::Site;
pub(crate) use form::{Context, Form};
use systole_tflite::Op;

/// The forms of an operator, one for each output; `None`: it has none.
pub(crate) fn choose(site: &Site) -> Option<Vec<Box<dyn Form>>> {
    use Op::*;
    let one = |form: Option<Box<dyn Form>>| Some(vec![form?]);
    match site.operator.op {
        Conv2D => one(products::convolution(site)),
        DepthwiseConv2D => one(products::depthwise(site)),
        FullyConnected => one(products::dense(site)),
        BatchMatmul => one(batch::matmul(site)),
        AveragePool2D | MaxPool2D => one(windows::pool(site)),
        Mean | Sum | ReduceMax => one(windows::reduction(site)),
        Relu | ReluN1To1 | Relu6 | LeakyRelu | HardSwish | Logistic | Tanh | Elu | Exp | Gelu | Sqrt
        | Rsqrt | Neg | Dequantize => one(elements::table(site)),
        Quantize => one(elements::quantize(site)),
        Add | Sub | Mul | Maximum | Minimum | SquaredDifference | Prelu => one(elements::both(site)),
        Softmax => one(rows::softmax(site)),
        Concatenation => one(movement::concatenation(site)),
        Transpose | Slice | StridedSlice | Split | Gather | SpaceToDepth | DepthToSpace | ResizeNearest
        | BroadcastTo | Pad => movement::moves(site),
        _ => None,
    }
}
