//! Estimates how the Edge TPU compiler would map a graph, using its published rules: operators on the chip or CPU (with
//! reasons), and on-chip weight memory. The compiler itself is closed source.

use systole_ir::DType;
use systole_tflite::{FusedActivation, OptionField, TfliteModel, TfliteOp, TfliteOperator, TfliteTensor};

/// On-chip memory for weights in bytes, as users report for a small model: 7.86 MiB.
pub const CACHE: usize = 8_241_807;
/// Multiply-accumulates per second: 64 × 64 units at 480 MHz.
const PRODUCTS: f64 = 64.0 * 64.0 * 480e6;
/// Minimum latency of an inference over USB, in seconds.
const FLOOR: f64 = 0.28e-3;
/// Seconds per byte of weights that are sent for each inference: 64 KiB in 1.3 ms, including the minimum.
const SENDING: f64 = (1.3e-3 - FLOOR) / 65536.0;

/// Placement of an operator on the Edge TPU or the CPU, with the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct OperatorPlacement {
    /// Operator index in the graph.
    pub operator: usize,
    /// Why it runs on the CPU; `None` if it runs on the chip.
    pub reason: Option<String>,
}

/// Edge TPU mapping of a graph: placement of each operator, weight memory and estimated time.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeTpuMapping {
    /// Placement of each operator.
    pub operators: Vec<OperatorPlacement>,
    /// Weight bytes of the operators on the chip.
    pub weights: usize,
    /// Weight bytes that exceed the on-chip memory and are sent for each inference.
    pub sent: usize,
    /// Multiply-accumulates on the chip.
    pub products: u64,
    /// Estimated lower bound of an inference on the chip, in seconds at peak rate.
    pub seconds: f64,
}

/// Maps a graph to the Edge TPU: operators run on the chip from the inputs up to the first unsupported one; that one
/// and all later ones run on the CPU.
pub fn edgetpu(model: &TfliteModel) -> EdgeTpuMapping {
    let mut stopped: Option<String> = None;
    let mut placed = Vec::new();
    let (mut weights, mut products) = (0, 0);
    for (n, o) in model.operators.iter().enumerate() {
        let is_edge = matches!(o.op, TfliteOp::Quantize | TfliteOp::Dequantize) && at_the_edge(model, n);
        let own = if is_edge {
            Some("it quantizes or dequantizes at the graph's boundary".into())
        } else {
            refused(model, o)
        };
        let reason = match (&stopped, own) {
            (None, None) => None,
            (None, Some(why)) => {
                if !is_edge {
                    stopped = Some(format!("it comes after {}, which is not supported", model.place(n)));
                }
                Some(why)
            }
            (Some(after), own) => Some(own.unwrap_or(after.clone())),
        };
        if reason.is_none() {
            weights += constants(model, o).map(|t| t.ty.bytes()).sum::<usize>();
            products += count(model, o);
        }
        placed.push(OperatorPlacement { operator: n, reason });
    }
    let sent = weights.saturating_sub(CACHE);
    let seconds = FLOOR + products as f64 / PRODUCTS + sent as f64 * SENDING;
    EdgeTpuMapping { operators: placed, weights, sent, products, seconds }
}

fn constants<'a>(model: &'a TfliteModel, o: &'a TfliteOperator) -> impl Iterator<Item = &'a TfliteTensor> {
    o.inputs.iter().flatten().filter_map(|&i| model.tensors.get(i)).filter(|t| t.data.is_some())
}

fn at_the_edge(model: &TfliteModel, n: usize) -> bool {
    let o = &model.operators[n];
    let first = o.inputs.iter().flatten().any(|i| model.inputs.contains(i));
    first || o.outputs.iter().any(|i| model.outputs.contains(i))
}

/// Returns the number of multiply-accumulates.
fn count(model: &TfliteModel, o: &TfliteOperator) -> u64 {
    let elements = |i: usize| model.tensors.get(i).map_or(0, |t| t.ty.elements() as u64);
    let made = o.outputs.first().map_or(0, |&i| elements(i));
    let w = o.inputs.get(1).copied().flatten().and_then(|i| model.tensors.get(i));
    let Some(w) = w else { return 0 };
    let of =
        |range: std::ops::Range<usize>| w.dims().get(range).unwrap_or(&[]).iter().product::<usize>() as u64;
    let rank = w.dims().len();
    match o.op {
        TfliteOp::Conv2D | TfliteOp::FullyConnected => made * of(1..rank),
        TfliteOp::DepthwiseConv2D => made * of(1..3),
        TfliteOp::TransposeConv => o.inputs.get(2).copied().flatten().map_or(0, elements) * of(0..3),
        _ => 0,
    }
}

/// Returns why the chip does not support an operator, regardless of other operators.
fn refused(model: &TfliteModel, o: &TfliteOperator) -> Option<String> {
    let tensor = |i: Option<usize>| i.and_then(|i| model.tensors.get(i));
    let x = tensor(o.inputs.first().copied().flatten())?;
    let y = tensor(o.outputs.first().copied())?;
    let is_byte = |t: &TfliteTensor| matches!(t.ty.dtype, DType::I8 | DType::U8);
    let data =
        if matches!(o.op, TfliteOp::TransposeConv) { tensor(o.inputs.get(2).copied().flatten())? } else { x };
    if !is_byte(data) || !is_byte(y) {
        return Some(format!("it computes in {}, the chip supports only int8 (`--int8`)", data.ty.dtype));
    }
    if o.inputs.iter().flatten().any(|&i| model.tensors.get(i).is_some_and(|t| t.ty.rank() > 4)) {
        return Some("it has more than four dimensions".into());
    }
    by_rule(model, o, x, y)
}

/// Operators that are supported with any arguments.
fn has_no_limits(op: TfliteOp) -> bool {
    matches!(
        op,
        TfliteOp::Add
            | TfliteOp::Sub
            | TfliteOp::Mul
            | TfliteOp::Maximum
            | TfliteOp::Minimum
            | TfliteOp::Logistic
            | TfliteOp::Relu
            | TfliteOp::Relu6
            | TfliteOp::ReluN1To1
            | TfliteOp::Tanh
            | TfliteOp::L2Normalization
            | TfliteOp::DepthwiseConv2D
            | TfliteOp::Reshape
            | TfliteOp::Slice
            | TfliteOp::SpaceToDepth
            | TfliteOp::Split
            | TfliteOp::ExpandDims
            | TfliteOp::Prelu
            | TfliteOp::Quantize
            | TfliteOp::Rsqrt
            | TfliteOp::SquaredDifference
            | TfliteOp::Transpose
            | TfliteOp::Sum
            | TfliteOp::ReduceMax
            | TfliteOp::Squeeze
    )
}

/// Checks the limits of each int8 operator.
fn by_rule(model: &TfliteModel, o: &TfliteOperator, x: &TfliteTensor, y: &TfliteTensor) -> Option<String> {
    let tensor = |i: Option<usize>| i.and_then(|i| model.tensors.get(i));
    let fused = o.activation().ok().filter(|a| *a != FusedActivation::None);
    match o.op {
        op if has_no_limits(op) => None,
        TfliteOp::Conv2D => {
            let w = tensor(o.inputs.get(1).copied().flatten())?;
            let is_uneven = o.int(OptionField::DilationH) != o.int(OptionField::DilationW);
            match (x.dims().last() != w.dims().last(), is_uneven) {
                (true, _) => Some(
                    "grouped convolutions need operator version 6, which the compiler rejects for the whole file".into(),
                ),
                (_, true) => Some("its dilation differs between height and width".into()),
                _ => None,
            }
        }
        TfliteOp::TransposeConv => fused.map(|_| {
            "a fused activation needs operator version 4, which the compiler rejects for the whole file"
                .into()
        }),
        TfliteOp::AveragePool2D | TfliteOp::MaxPool2D | TfliteOp::Concatenation => {
            fused.map(|_| "it has a fused activation".into())
        }
        TfliteOp::FullyConnected => {
            let rows: usize = y.dims().iter().rev().skip(1).product();
            (rows != 1).then(|| format!("its output {} has more than one row", y.ty))
        }
        TfliteOp::Mean => {
            let axes = tensor(o.inputs.get(1).copied().flatten())?.data.as_ref()?.to_f64s();
            let places = axes.iter().all(|&a| x.ty.rank() == 4 && (a == 1.0 || a == 2.0));
            match (places, x.dims().iter().product::<usize>() > 64 * 128 * 3 * 16) {
                (false, _) => Some("it does not average over height and width".into()),
                (_, true) => {
                    Some("its input is too large: use average pooling with a window of the whole size".into())
                }
                _ => None,
            }
        }
        TfliteOp::Pad => {
            let p = tensor(o.inputs.get(1).copied().flatten())?.data.as_ref()?.to_f64s();
            let outer = p.len() == 8 && p[..2].iter().chain(&p[6..]).any(|&v| v != 0.0);
            (outer || p.len() != 8).then(|| "it pads other dimensions than height and width".into())
        }
        TfliteOp::Softmax => {
            let n = y.ty.elements();
            let rows = n / y.dims().last().copied().unwrap_or(1).max(1);
            (rows != 1 || n > 16_000).then(|| {
                format!("it processes {} at once: only one row of at most 16,000 is supported", y.ty)
            })
        }
        TfliteOp::ResizeBilinear | TfliteOp::ResizeNearest => o
            .is(OptionField::HalfPixelCenters)
            .then(|| "half-pixel centers need operator version 3, which older compilers reject".into()),
        TfliteOp::StridedSlice => {
            let steps = tensor(o.inputs.get(3).copied().flatten())?.data.as_ref()?.to_f64s();
            steps.iter().any(|&s| s != 1.0).then(|| "its strides are not 1".into())
        }
        other => Some(format!("the chip does not support {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::{F32, I8, I32};
    use systole_ir::Literal;

    fn tensor(dims: &[usize], dtype: DType) -> TfliteTensor {
        TfliteTensor::new("t", dims, dtype)
    }

    fn ints(values: &[i32]) -> TfliteTensor {
        TfliteTensor::constant("c", Literal::from_slice([values.len()], values).unwrap())
    }

    fn weights(dims: &[usize]) -> TfliteTensor {
        let n = dims.iter().product();
        TfliteTensor::constant("w", Literal::from_slice(dims, &vec![1i8; n]).unwrap())
    }

    /// Maps a graph of one operator: its inputs, of which the first is the graph's, and its output.
    fn map(op: TfliteOp, inputs: Vec<TfliteTensor>, y: TfliteTensor) -> EdgeTpuMapping {
        map_with(TfliteOperator::new(op, [], []), inputs, y)
    }

    fn map_with(mut o: TfliteOperator, inputs: Vec<TfliteTensor>, y: TfliteTensor) -> EdgeTpuMapping {
        let n = inputs.len();
        o.inputs = (0..n).map(Some).collect();
        o.outputs = vec![n];
        let tensors = [inputs, vec![y]].concat();
        let (inputs, outputs) = (vec![0], vec![n]);
        edgetpu(&TfliteModel { tensors, operators: vec![o], inputs, outputs, ..TfliteModel::default() })
    }

    fn is_on_chip(mapping: &EdgeTpuMapping) -> bool {
        mapping.operators[0].reason.is_none()
    }

    #[test]
    fn products_weights_and_time_are_counted() {
        let x = || tensor(&[1, 8, 8, 3], I8);
        let conv = map(TfliteOp::Conv2D, vec![x(), weights(&[5, 3, 2, 3])], tensor(&[1, 4, 4, 5], I8));
        // Each of 80 outputs has 3 × 2 × 3 products.
        assert_eq!((conv.products, conv.weights, conv.sent), (80 * 18, 90, 0));
        assert_eq!(conv.seconds, 0.28e-3 + 1440.0 / (4096.0 * 480e6));
        let own =
            map(TfliteOp::DepthwiseConv2D, vec![x(), weights(&[1, 3, 2, 3])], tensor(&[1, 4, 4, 3], I8));
        assert_eq!((own.products, own.weights), (48 * 6, 18));
        let dense =
            map(TfliteOp::FullyConnected, vec![tensor(&[1, 6], I8), weights(&[4, 6])], tensor(&[1, 4], I8));
        assert_eq!((dense.products, dense.weights), (24, 24));
        let (size, y) = (ints(&[1, 8, 8, 2]), tensor(&[1, 8, 8, 2], I8));
        let turned =
            map(TfliteOp::TransposeConv, vec![size, weights(&[2, 3, 4, 3]), tensor(&[1, 4, 4, 3], I8)], y);
        // Each of 48 inputs has 2 × 3 × 4 products.
        assert_eq!((turned.products, turned.weights), (48 * 24, 72 + 16));
        // Weights beyond 7.86 MiB are sent for each inference.
        let rows = CACHE / 4096 + 1;
        let large = map(
            TfliteOp::FullyConnected,
            vec![tensor(&[1, 4096], I8), weights(&[rows, 4096])],
            tensor(&[1, rows], I8),
        );
        assert_eq!(large.sent, rows * 4096 - CACHE);
        let sending = large.sent as f64 * (1.3e-3 - 0.28e-3) / 65_536.0;
        assert!((large.seconds - 0.28e-3 - large.products as f64 / (4096.0 * 480e6) - sending).abs() < 1e-9);
    }

    #[test]
    fn only_int8_of_up_to_four_dimensions_runs_on_the_chip() {
        let add = |dims: &[usize], dtype| {
            map(TfliteOp::Add, vec![tensor(dims, dtype), tensor(dims, dtype)], tensor(dims, dtype))
        };
        assert!(is_on_chip(&add(&[1, 2, 2, 3], I8)) && is_on_chip(&add(&[1, 2], DType::U8)));
        assert!(!is_on_chip(&add(&[1, 2, 2, 3], F32)) && !is_on_chip(&add(&[1, 1, 2, 2, 3], I8)));
        let x = || tensor(&[1, 4], I8);
        assert!(!is_on_chip(&map(TfliteOp::Dequantize, vec![x()], tensor(&[1, 4], F32))));
        // Whatever comes after an operator without support runs on the CPU, too.
        let operators = vec![
            TfliteOperator::new(TfliteOp::Tanh, [0], [1]),
            TfliteOperator::new(TfliteOp::Exp, [1], [2]),
            TfliteOperator::new(TfliteOp::Tanh, [2], [3]),
        ];
        let tensors = vec![x(), x(), x(), x()];
        let (inputs, outputs) = (vec![0], vec![3]);
        let model = TfliteModel { tensors, operators, inputs, outputs, ..TfliteModel::default() };
        let on_chip: Vec<bool> = edgetpu(&model).operators.iter().map(|p| p.reason.is_none()).collect();
        assert_eq!(on_chip, [true, false, false]);
    }

    #[test]
    fn operators_have_their_own_limits() {
        let image = |size: usize| tensor(&[1, size, size, 4], I8);
        let conv = |channels: usize, dilation: [i32; 2]| {
            let [h, w] = dilation;
            let o = TfliteOperator::new(TfliteOp::Conv2D, [], []);
            let o = o.with(OptionField::DilationH, h).with(OptionField::DilationW, w);
            map_with(o, vec![image(8), weights(&[2, 3, 3, channels])], tensor(&[1, 8, 8, 2], I8))
        };
        assert!(is_on_chip(&conv(4, [1, 1])) && is_on_chip(&conv(4, [2, 2])));
        assert!(!is_on_chip(&conv(2, [1, 1])), "grouped");
        assert!(!is_on_chip(&conv(4, [2, 1])), "uneven dilation");
        let pool = |activation: i32| {
            let o =
                TfliteOperator::new(TfliteOp::MaxPool2D, [], []).with(OptionField::Activation, activation);
            map_with(o, vec![image(8)], image(4))
        };
        assert!(is_on_chip(&pool(0)) && !is_on_chip(&pool(1)));
        let dense = |rows: usize| {
            map(
                TfliteOp::FullyConnected,
                vec![tensor(&[rows, 6], I8), weights(&[4, 6])],
                tensor(&[rows, 4], I8),
            )
        };
        assert!(is_on_chip(&dense(1)) && !is_on_chip(&dense(2)));
        let mean =
            |axes: &[i32], size| map(TfliteOp::Mean, vec![image(size), ints(axes)], tensor(&[1, 4], I8));
        assert!(
            is_on_chip(&mean(&[1, 2], 8)) && !is_on_chip(&mean(&[3], 8)) && !is_on_chip(&mean(&[1, 2], 512))
        );
        let pad = |p: &[i32]| {
            let p = Literal::from_slice([4, 2], p).unwrap();
            map(TfliteOp::Pad, vec![image(8), TfliteTensor::constant("p", p)], image(10))
        };
        assert!(is_on_chip(&pad(&[0, 0, 1, 1, 1, 1, 0, 0])));
        assert!(!is_on_chip(&pad(&[0, 0, 1, 1, 1, 1, 0, 1])) && !is_on_chip(&pad(&[1, 0, 0, 0, 0, 0, 0, 0])));
        let softmax = |dims: &[usize]| map(TfliteOp::Softmax, vec![tensor(dims, I8)], tensor(dims, I8));
        assert!(is_on_chip(&softmax(&[1, 16_000])));
        assert!(!is_on_chip(&softmax(&[1, 16_001])) && !is_on_chip(&softmax(&[2, 10])));
        assert!(!is_on_chip(&map(TfliteOp::Exp, vec![image(8)], image(8))));
        assert!(!is_on_chip(&map(
            TfliteOp::Add,
            vec![tensor(&[1], I32), tensor(&[1], I32)],
            tensor(&[1], I32)
        )));
    }
}
