//! The operators that are read, by their names in ONNX.

use super::call::{Call, Makes, unsupported};
use super::elementwise::{self as element, binary, several, unary};
use super::reductions::{Fold, arg_max, cumulative_sum, reduce, softmax};
use super::{
    indexing, movements, normalizations, products, quantization, recurrent, resize, sources, windows,
};
use systole_base::Error;
use systole_ir::Tensor;

/// What an operator becomes.
pub(super) type Rule = fn(&mut Call) -> Makes;

/// In the order of their names.
const TABLE: &[(&str, Rule)] = &[
    ("Abs", |c| unary(c, Tensor::abs)),
    ("Add", |c| binary(c, |a, b| a + b)),
    ("And", |c| binary(c, Tensor::and)),
    ("ArgMax", |c| arg_max(c, false)),
    ("ArgMin", |c| arg_max(c, true)),
    ("AveragePool", windows::average_pool),
    ("BatchNormalization", normalizations::batch),
    ("Cast", element::cast),
    ("CastLike", element::cast_like),
    ("Ceil", |c| unary(c, Tensor::ceil)),
    ("Celu", element::celu),
    ("Clip", element::clip),
    ("Concat", movements::concat),
    ("Constant", sources::constant),
    ("ConstantOfShape", sources::filled),
    ("Conv", windows::conv),
    ("ConvTranspose", windows::conv_transpose),
    ("Cos", |c| unary(c, Tensor::cosine)),
    ("CumSum", cumulative_sum),
    ("DepthToSpace", windows::depth_to_space),
    ("DequantizeLinear", quantization::dequantize),
    ("Div", |c| binary(c, |a, b| a / b)),
    ("Dropout", element::dropout),
    ("Einsum", products::einsum),
    ("Elu", element::elu),
    ("Equal", |c| binary(c, Tensor::equal)),
    ("Erf", |c| unary(c, Tensor::erf)),
    ("Exp", |c| unary(c, Tensor::exp)),
    ("Expand", movements::expand),
    ("EyeLike", sources::eye_like),
    ("Flatten", movements::flatten),
    ("Floor", |c| unary(c, Tensor::floor)),
    ("GRU", recurrent::gru),
    ("Gather", indexing::gather),
    ("GatherElements", indexing::gather_elements),
    ("GatherND", indexing::gather_nd),
    ("Gelu", element::gelu),
    ("Gemm", products::gemm),
    ("GlobalAveragePool", |c| windows::global_pool(c, false)),
    ("GlobalMaxPool", |c| windows::global_pool(c, true)),
    ("Greater", |c| binary(c, Tensor::greater)),
    ("GreaterOrEqual", |c| binary(c, Tensor::greater_equal)),
    ("GroupNormalization", normalizations::group),
    ("HardSigmoid", element::hard_sigmoid),
    ("HardSwish", element::hard_swish),
    ("Identity", element::identity),
    ("InstanceNormalization", normalizations::instance),
    ("IsInf", element::is_infinite),
    ("IsNaN", |c| unary(c, |x| x.not_equal(x))),
    ("LSTM", recurrent::lstm),
    ("LayerNormalization", |c| normalizations::layer(c, true)),
    ("LeakyRelu", element::leaky_relu),
    ("Less", |c| binary(c, Tensor::less)),
    ("LessOrEqual", |c| binary(c, Tensor::less_equal)),
    ("Log", |c| unary(c, Tensor::log)),
    ("LogSoftmax", |c| softmax(c, true)),
    ("MatMul", products::matmul),
    ("Max", |c| several(c, Tensor::maximum)),
    ("MaxPool", windows::max_pool),
    ("Mean", element::mean),
    ("Min", |c| several(c, Tensor::minimum)),
    ("Mish", |c| unary(c, |x| x * x.softplus().tanh())),
    ("Mod", element::modulo),
    ("Mul", |c| binary(c, |a, b| a * b)),
    ("Neg", |c| unary(c, Tensor::negate)),
    ("Not", |c| unary(c, Tensor::not)),
    ("OneHot", indexing::one_hot),
    ("Or", |c| binary(c, Tensor::or)),
    ("PRelu", element::prelu),
    ("Pad", movements::pad),
    ("Pow", element::power),
    ("QuantizeLinear", quantization::quantize),
    ("RMSNormalization", |c| normalizations::layer(c, false)),
    ("Range", sources::range),
    ("Reciprocal", |c| unary(c, |x| 1.0 / x)),
    ("ReduceL1", |c| reduce(c, Fold::L1)),
    ("ReduceL2", |c| reduce(c, Fold::L2)),
    ("ReduceLogSum", |c| reduce(c, Fold::LogSum)),
    ("ReduceLogSumExp", |c| reduce(c, Fold::LogSumExp)),
    ("ReduceMax", |c| reduce(c, Fold::Max)),
    ("ReduceMean", |c| reduce(c, Fold::Mean)),
    ("ReduceMin", |c| reduce(c, Fold::Min)),
    ("ReduceProd", |c| reduce(c, Fold::Prod)),
    ("ReduceSum", |c| reduce(c, Fold::Sum)),
    ("ReduceSumSquare", |c| reduce(c, Fold::SumSquare)),
    ("Relu", |c| unary(c, Tensor::relu)),
    ("Reshape", movements::reshape),
    ("Resize", resize::resize),
    ("Round", |c| unary(c, Tensor::round_nearest_even)),
    ("Selu", element::selu),
    ("Shape", sources::shape),
    ("Sigmoid", |c| unary(c, Tensor::logistic)),
    ("Sign", |c| unary(c, Tensor::sign)),
    ("Sin", |c| unary(c, Tensor::sine)),
    ("Size", sources::size),
    ("Slice", movements::slice),
    ("Softmax", |c| softmax(c, false)),
    ("Softplus", |c| unary(c, Tensor::softplus)),
    ("Softsign", |c| unary(c, |x| x / (x.abs() + 1.0))),
    ("SpaceToDepth", windows::space_to_depth),
    ("Split", movements::split),
    ("Sqrt", |c| unary(c, Tensor::sqrt)),
    ("Squeeze", movements::squeeze),
    ("Sub", |c| binary(c, |a, b| a - b)),
    ("Sum", |c| several(c, |a, b| a + b)),
    ("Tan", |c| unary(c, Tensor::tan)),
    ("Tanh", |c| unary(c, Tensor::tanh)),
    ("ThresholdedRelu", element::thresholded_relu),
    ("Tile", movements::tile),
    ("TopK", movements::top_k),
    ("Transpose", movements::transpose),
    ("Trilu", movements::triangle),
    ("Unsqueeze", movements::unsqueeze),
    ("Upsample", resize::resize),
    ("Where", element::choose),
    ("Xor", |c| binary(c, Tensor::xor)),
];

/// Names of the operators that are read.
pub fn operators() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// The rule of a node's operator.
pub(super) fn rule(op: &str, domain: &str) -> Result<Rule, Error> {
    let own = matches!(domain, "" | "ai.onnx");
    if let Some((_, rule)) = TABLE.iter().find(|(name, _)| *name == op).filter(|_| own) {
        return Ok(*rule);
    }
    let whose = if own { String::new() } else { format!(" of {domain}") };
    Err(unsupported(format!("the operator {op}{whose} is not read here"))
        .because(format!("these are: {}", operators().collect::<Vec<_>>().join(", ")))
        .hint("export the model without it, or run it with onnxruntime"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_stand_in_order() {
        let all: Vec<&str> = operators().collect();
        assert!(all.is_sorted(), "{all:?}");
        assert!(rule("Conv", "").is_ok() && rule("Conv", "com.mine").is_err());
    }
}
