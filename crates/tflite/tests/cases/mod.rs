//! Single-operator models with inputs for the reference tests: float, int8 and mixed.

mod more;

use systole_base::rng::RandomStream;
use systole_base::{DType, Literal};
use systole_tflite::{
    FusedActivation, OptionField, TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor,
};

/// A model of one operator, and its inputs.
pub struct Case {
    pub name: String,
    pub model: TfliteModel,
    pub inputs: Vec<Literal>,
}

/// Generates random constants, scales and inputs.
struct Draw(RandomStream);

impl Draw {
    fn ints(&mut self, shape: &[usize]) -> Literal {
        let n = shape.iter().product();
        let values: Vec<i8> = (0..n).map(|_| self.0.next_u32() as i8).collect();
        Literal::from_slice(shape, &values).unwrap()
    }

    fn floats(&mut self, shape: &[usize]) -> Literal {
        let n = shape.iter().product();
        Literal::from_slice(shape, &(0..n).map(|_| self.0.range(-3.0, 3.0)).collect::<Vec<f32>>()).unwrap()
    }

    /// Returns a scale from 0.005 to 0.1, and any zero point.
    fn scheme(&mut self) -> TfliteQuantization {
        let zero = self.0.below(256) as i32 - 128;
        TfliteQuantization::per_tensor(self.0.range(0.005, 0.1), zero)
    }
}

/// Kind of operand.
enum Kind {
    Given,
    Weights { dimension: Option<usize> },
    Bias,
    Ints(Vec<i32>),
}

/// Scales that determine a bias's scale.
#[derive(Default)]
struct Scales {
    input: f32,
    weights: Vec<f32>,
}

struct Builder {
    draw: Draw,
    model: TfliteModel,
    inputs: Vec<Literal>,
}

impl Builder {
    fn new(seed: u64) -> Builder {
        Builder {
            draw: Draw(RandomStream::new(seed, 7, 0)),
            model: TfliteModel::default(),
            inputs: Vec::new(),
        }
    }

    fn add(&mut self, t: TfliteTensor) -> usize {
        self.model.tensors.push(t);
        self.model.tensors.len() - 1
    }

    fn given(&mut self, shape: &[usize], float: bool, scheme: Option<TfliteQuantization>) -> usize {
        let name = format!("x{}", self.inputs.len());
        let (t, x) = match float {
            true => (TfliteTensor::new(name, shape, DType::F32), self.draw.floats(shape)),
            false => {
                let scheme = scheme.unwrap_or_else(|| self.draw.scheme());
                (TfliteTensor::new(name, shape, DType::I8).quantized(scheme), self.draw.ints(shape))
            }
        };
        let i = self.add(t);
        self.model.inputs.push(i);
        self.inputs.push(x);
        i
    }

    fn operand(&mut self, kind: Kind, shape: &[usize], float: bool, scales: &mut Scales) -> usize {
        match (kind, float) {
            (Kind::Given, _) => {
                let i = self.given(shape, float, None);
                scales.input = self.model.tensors[i].quantization.as_ref().map_or(1.0, |q| q.scale[0]);
                i
            }
            (Kind::Ints(list), _) => {
                let data = Literal::from_slice(shape, &list).unwrap();
                self.add(TfliteTensor::constant("list", data))
            }
            (Kind::Weights { .. } | Kind::Bias, true) => {
                let data = self.draw.floats(shape);
                self.add(TfliteTensor::constant("w", data))
            }
            (Kind::Weights { dimension }, false) => {
                let n: usize = shape.iter().product();
                let values: Vec<i8> = (0..n).map(|_| (self.draw.0.below(255) as i32 - 127) as i8).collect();
                let data = Literal::from_slice(shape, &values).unwrap();
                let q = match dimension {
                    Some(d) => {
                        let of: Vec<f32> = (0..shape[d]).map(|_| self.draw.0.range(0.002, 0.02)).collect();
                        TfliteQuantization::per_channel(of, d)
                    }
                    None => TfliteQuantization::per_tensor(self.draw.0.range(0.002, 0.02), 0),
                };
                scales.weights = q.scale.clone();
                self.add(TfliteTensor::constant("w", data).quantized(q))
            }
            (Kind::Bias, false) => {
                let values: Vec<i32> = (0..shape[0]).map(|_| self.draw.0.below(4001) as i32 - 2000).collect();
                let data = Literal::from_slice(shape, &values).unwrap();
                let sums = scales.weights.iter().map(|s| s * scales.input).collect();
                let q = TfliteQuantization::per_channel(sums, 0);
                self.add(TfliteTensor::constant("bias", data).quantized(q))
            }
        }
    }

    fn finish(mut self, name: &str, o: TfliteOperator, output: TfliteTensor) -> Case {
        let y = self.add(output);
        let mut o = o;
        o.outputs = vec![y];
        self.model.operators.push(o);
        self.model.outputs = vec![y];
        Case { name: name.into(), model: self.model, inputs: self.inputs }
    }
}

/// Returns an operator with random operands.
fn case(
    seed: u64,
    name: &str,
    operands: Vec<(Kind, &[usize])>,
    output: &[usize],
    scheme: Scheme,
    o: TfliteOperator,
) -> Case {
    let float = matches!(scheme, Scheme::Float);
    let mut b = Builder::new(seed);
    let (mut inputs, mut scales) = (Vec::new(), Scales::default());
    for (kind, shape) in operands {
        inputs.push(Some(b.operand(kind, shape, float, &mut scales)));
    }
    let mut o = o;
    o.inputs = inputs;
    let first = b.model.inputs.first().and_then(|&i| b.model.tensors[i].quantization.clone());
    let y = TfliteTensor::new("y", output, if float { DType::F32 } else { DType::I8 });
    let y = match scheme {
        Scheme::Float => y,
        Scheme::Same => y.quantized(first.unwrap()),
        Scheme::Wide(scale) => {
            let zero = b.draw.scheme().zero_point[0] as i32 / 4;
            y.quantized(TfliteQuantization::per_tensor(scale, zero))
        }
        Scheme::Fixed(scale, zero) => y.quantized(TfliteQuantization::per_tensor(scale, zero)),
    };
    b.finish(name, o, y)
}

#[derive(Clone, Copy)]
enum Scheme {
    Float,
    Same,
    Wide(f32),
    Fixed(f32, i32),
}

fn op(op: TfliteOp) -> TfliteOperator {
    TfliteOperator::new(op, [], [])
}

fn conv(of: TfliteOp, valid: bool, stride: usize, act: FusedActivation) -> TfliteOperator {
    op(of)
        .with(OptionField::Padding, f64::from(u8::from(valid)))
        .with(OptionField::StrideH, stride as f64)
        .with(OptionField::StrideW, stride as f64)
        .with(OptionField::Activation, act.code())
}

/// Returns all cases.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for float in [false, true] {
        windows(&mut all, float);
        arithmetic(&mut all, float);
        shapes(&mut all, float);
    }
    hybrid(&mut all);
    tables(&mut all);
    conversions(&mut all);
    logarithms(&mut all);
    all.extend(more::cases());
    all
}

fn windows(all: &mut Vec<Case>, float: bool) {
    use Kind::{Bias, Given, Ints, Weights};
    let wide = |s: f32| if float { Scheme::Float } else { Scheme::Wide(s) };
    let same = if float { Scheme::Float } else { Scheme::Same };
    let t = if float { "float" } else { "int8" };
    let mut add =
        |name: &str, operands: Vec<(Kind, &[usize])>, output: &[usize], scheme: Scheme, o: TfliteOperator| {
            let seed = all.len() as u64;
            all.push(case(seed, &format!("{name}_{t}"), operands, output, scheme, o));
        };
    let per = |d: usize| Weights { dimension: Some(d) };
    let none = Weights { dimension: None };
    let relu = FusedActivation::Relu;
    let x: &[usize] = &[1, 9, 7, 5];
    add(
        "conv_same",
        vec![(Given, x), (per(0), &[8, 3, 3, 5]), (Bias, &[8])],
        &[1, 9, 7, 8],
        wide(0.09),
        conv(TfliteOp::Conv2D, false, 1, relu),
    );
    add(
        "conv_stride",
        vec![(Given, x), (per(0), &[6, 3, 2, 5]), (Bias, &[6])],
        &[1, 5, 4, 6],
        wide(0.2),
        conv(TfliteOp::Conv2D, false, 2, FusedActivation::Relu6),
    );
    add(
        "conv_valid",
        vec![(Given, x), (none, &[4, 2, 3, 5]), (Bias, &[4])],
        &[1, 8, 5, 4],
        wide(0.1),
        conv(TfliteOp::Conv2D, true, 1, FusedActivation::None),
    );
    let dilated = conv(TfliteOp::Conv2D, true, 1, FusedActivation::None)
        .with(OptionField::DilationH, 2.0)
        .with(OptionField::DilationW, 3.0);
    add(
        "conv_dilated",
        vec![(Given, x), (per(0), &[3, 3, 2, 5]), (Bias, &[3])],
        &[1, 5, 4, 3],
        wide(0.12),
        dilated,
    );
    add(
        "conv_groups",
        vec![(Given, &[1, 6, 6, 6]), (per(0), &[9, 3, 3, 2]), (Bias, &[9])],
        &[1, 6, 6, 9],
        wide(0.07),
        conv(TfliteOp::Conv2D, false, 1, relu),
    );
    add(
        "conv_1x1",
        vec![(Given, &[1, 5, 5, 33]), (per(0), &[17, 1, 1, 33]), (Bias, &[17])],
        &[1, 5, 5, 17],
        wide(0.11),
        conv(TfliteOp::Conv2D, false, 1, FusedActivation::ReluN1To1),
    );
    let m = |n: f64, o: TfliteOperator| o.with(OptionField::DepthMultiplier, n);
    add(
        "depthwise",
        vec![(Given, x), (per(3), &[1, 3, 3, 10]), (Bias, &[10])],
        &[1, 5, 4, 10],
        wide(0.05),
        m(2.0, conv(TfliteOp::DepthwiseConv2D, false, 2, relu)),
    );
    add(
        "depthwise_one",
        vec![(Given, x), (per(3), &[1, 3, 3, 5]), (Bias, &[5])],
        &[1, 7, 5, 5],
        wide(0.05),
        m(1.0, conv(TfliteOp::DepthwiseConv2D, true, 1, FusedActivation::Relu6)),
    );
    add(
        "transpose_conv",
        vec![(Ints(vec![1, 12, 10, 3]), &[4]), (per(0), &[3, 3, 3, 4]), (Given, &[1, 6, 5, 4]), (Bias, &[3])],
        &[1, 12, 10, 3],
        wide(0.08),
        conv(TfliteOp::TransposeConv, false, 2, FusedActivation::None),
    );
    add(
        "transpose_conv_valid",
        vec![(Ints(vec![1, 13, 11, 3]), &[4]), (per(0), &[3, 3, 3, 4]), (Given, &[1, 6, 5, 4]), (Bias, &[3])],
        &[1, 13, 11, 3],
        wide(0.08),
        conv(TfliteOp::TransposeConv, true, 2, relu),
    );
    add(
        "dense",
        vec![(Given, &[3, 40]), (none_again(), &[12, 40]), (Bias, &[12])],
        &[3, 12],
        wide(0.15),
        op(TfliteOp::FullyConnected).with(OptionField::Activation, relu.code()),
    );
    add(
        "dense_per_channel",
        vec![(Given, &[1, 64]), (per(0), &[10, 64]), (Bias, &[10])],
        &[1, 10],
        wide(0.15),
        op(TfliteOp::FullyConnected),
    );
    add(
        "dense_kept",
        vec![(Given, &[1, 4, 16]), (none_again(), &[6, 16]), (Bias, &[6])],
        &[1, 4, 6],
        wide(0.15),
        op(TfliteOp::FullyConnected).with(OptionField::KeepNumDims, 1.0),
    );
    let pool = |of: TfliteOp, valid: bool, s: usize, k: usize| {
        conv(of, valid, s, FusedActivation::None)
            .with(OptionField::FilterH, k as f64)
            .with(OptionField::FilterW, k as f64)
    };
    for (name, of) in [("average", TfliteOp::AveragePool2D), ("max", TfliteOp::MaxPool2D)] {
        add(&format!("{name}_pool"), vec![(Given, x)], &[1, 4, 3, 5], same, pool(of, true, 2, 2));
        add(&format!("{name}_pool_same"), vec![(Given, x)], &[1, 5, 4, 5], same, pool(of, false, 2, 3));
    }
    let relu_pool = pool(TfliteOp::AveragePool2D, true, 2, 2).with(OptionField::Activation, relu.code());
    add("average_pool_relu", vec![(Given, x)], &[1, 4, 3, 5], same, relu_pool);
}

fn none_again() -> Kind {
    Kind::Weights { dimension: None }
}

fn arithmetic(all: &mut Vec<Case>, float: bool) {
    use Kind::{Given, Ints};
    let free = if float { Scheme::Float } else { Scheme::Wide(0.07) };
    let same = if float { Scheme::Float } else { Scheme::Same };
    let t = if float { "float" } else { "int8" };
    let mut add =
        |name: &str, operands: Vec<(Kind, &[usize])>, output: &[usize], scheme: Scheme, o: TfliteOperator| {
            let seed = 100 + all.len() as u64;
            all.push(case(seed, &format!("{name}_{t}"), operands, output, scheme, o));
        };
    let x: &[usize] = &[1, 6, 5, 4];
    let relu = FusedActivation::Relu.code();
    add("add", vec![(Given, x), (Given, x)], x, free, op(TfliteOp::Add));
    add(
        "add_relu",
        vec![(Given, x), (Given, x)],
        x,
        free,
        op(TfliteOp::Add).with(OptionField::Activation, relu),
    );
    add("add_channels", vec![(Given, x), (Given, &[4])], x, free, op(TfliteOp::Add));
    add("add_both", vec![(Given, &[1, 6, 1, 4]), (Given, &[1, 1, 5, 1])], x, free, op(TfliteOp::Add));
    add("sub", vec![(Given, x), (Given, x)], x, free, op(TfliteOp::Sub));
    add("sub_rows", vec![(Given, &[1, 1, 5, 4]), (Given, x)], x, free, op(TfliteOp::Sub));
    add("mul", vec![(Given, x), (Given, x)], x, free, op(TfliteOp::Mul));
    add(
        "mul_channels",
        vec![(Given, x), (Given, &[1, 1, 1, 4])],
        x,
        free,
        op(TfliteOp::Mul).with(OptionField::Activation, FusedActivation::Relu6.code()),
    );
    add("squared_difference", vec![(Given, x), (Given, x)], x, free, op(TfliteOp::SquaredDifference));
    add("maximum", vec![(Given, x), (Given, x)], x, same, op(TfliteOp::Maximum));
    add("minimum", vec![(Given, x), (Given, &[4])], x, same, op(TfliteOp::Minimum));
    add("prelu", vec![(Given, x), (Given, &[1, 1, 4])], x, free, op(TfliteOp::Prelu));
    let kept = |k: f64, of: TfliteOp| op(of).with(OptionField::KeepDims, k);
    add("mean", vec![(Given, x), (Ints(vec![1, 2]), &[2])], &[1, 4], free, kept(0.0, TfliteOp::Mean));
    add(
        "mean_kept",
        vec![(Given, x), (Ints(vec![-1]), &[1])],
        &[1, 6, 5, 1],
        free,
        kept(1.0, TfliteOp::Mean),
    );
    add("mean_rows", vec![(Given, x), (Ints(vec![1]), &[1])], &[1, 5, 4], free, kept(0.0, TfliteOp::Mean));
    add(
        "reduce_max",
        vec![(Given, x), (Ints(vec![2]), &[1])],
        &[1, 6, 4],
        same,
        kept(0.0, TfliteOp::ReduceMax),
    );
    add(
        "batch_matmul",
        vec![(Given, &[2, 5, 7]), (Given, &[2, 7, 6])],
        &[2, 5, 6],
        if float { free } else { Scheme::Wide(0.5) },
        op(TfliteOp::BatchMatmul),
    );
    add(
        "batch_matmul_turned",
        vec![(Given, &[1, 2, 5, 7]), (Given, &[1, 2, 6, 7])],
        &[1, 2, 5, 6],
        if float { free } else { Scheme::Wide(0.5) },
        op(TfliteOp::BatchMatmul).with(OptionField::AdjY, 1.0),
    );
    let fixed = |s: f32, z: i32| if float { Scheme::Float } else { Scheme::Fixed(s, z) };
    add(
        "softmax",
        vec![(Given, &[3, 10])],
        &[3, 10],
        fixed(1.0 / 256.0, -128),
        op(TfliteOp::Softmax).with(OptionField::Beta, 1.0),
    );
    add(
        "softmax_wide",
        vec![(Given, &[2, 300])],
        &[2, 300],
        fixed(1.0 / 256.0, -128),
        op(TfliteOp::Softmax).with(OptionField::Beta, 0.5),
    );
}

fn shapes(all: &mut Vec<Case>, float: bool) {
    use Kind::{Given, Ints};
    let same = if float { Scheme::Float } else { Scheme::Same };
    let t = if float { "float" } else { "int8" };
    let mut add = |name: &str, operands: Vec<(Kind, &[usize])>, output: &[usize], o: TfliteOperator| {
        let seed = 200 + all.len() as u64;
        all.push(case(seed, &format!("{name}_{t}"), operands, output, same, o));
    };
    let x: &[usize] = &[1, 6, 4, 8];
    add(
        "reshape",
        vec![(Given, x), (Ints(vec![1, 192]), &[2])],
        &[1, 192],
        op(TfliteOp::Reshape).with_list(OptionField::NewShape, vec![1, 192]),
    );
    add(
        "squeeze",
        vec![(Given, &[1, 1, 6, 4])],
        &[1, 6, 4],
        op(TfliteOp::Squeeze).with_list(OptionField::SqueezeDims, vec![1]),
    );
    add("expand_dims", vec![(Given, &[2, 3]), (Ints(vec![1]), &[])], &[2, 1, 3], op(TfliteOp::ExpandDims));
    add(
        "pad",
        vec![(Given, x), (Ints(vec![0, 0, 1, 2, 3, 0, 0, 0]), &[4, 2])],
        &[1, 9, 7, 8],
        op(TfliteOp::Pad),
    );
    add(
        "transpose",
        vec![(Given, x), (Ints(vec![0, 3, 1, 2]), &[4])],
        &[1, 8, 6, 4],
        op(TfliteOp::Transpose),
    );
    add(
        "slice",
        vec![(Given, x), (Ints(vec![0, 1, 2, 0]), &[4]), (Ints(vec![1, 3, -1, 8]), &[4])],
        &[1, 3, 2, 8],
        op(TfliteOp::Slice),
    );
    let strided =
        op(TfliteOp::StridedSlice).with(OptionField::BeginMask, 1.0).with(OptionField::EndMask, 9.0);
    add(
        "strided_slice",
        vec![
            (Given, x),
            (Ints(vec![0, 1, 0, 3]), &[4]),
            (Ints(vec![0, 6, 4, 0]), &[4]),
            (Ints(vec![1, 2, 1, 2]), &[4]),
        ],
        &[1, 3, 4, 3],
        strided,
    );
    add(
        "gather",
        vec![(Given, x), (Ints(vec![3, 0, 3]), &[3])],
        &[1, 6, 3, 8],
        op(TfliteOp::Gather).with(OptionField::Axis, 2.0),
    );
    add(
        "space_to_depth",
        vec![(Given, x)],
        &[1, 3, 2, 32],
        op(TfliteOp::SpaceToDepth).with(OptionField::BlockSize, 2.0),
    );
    add(
        "depth_to_space",
        vec![(Given, x)],
        &[1, 12, 8, 2],
        op(TfliteOp::DepthToSpace).with(OptionField::BlockSize, 2.0),
    );
    for (name, of) in
        [("resize_nearest", TfliteOp::ResizeNearest), ("resize_bilinear", TfliteOp::ResizeBilinear)]
    {
        for (kind, field) in [
            ("", None),
            ("_half", Some(OptionField::HalfPixelCenters)),
            ("_corners", Some(OptionField::AlignCorners)),
        ] {
            let o = field.map_or(op(of), |f| op(of).with(f, 1.0));
            add(&format!("{name}{kind}"), vec![(Given, x), (Ints(vec![9, 11]), &[2])], &[1, 9, 11, 8], o);
        }
    }
    add(
        "broadcast_to",
        vec![(Given, &[1, 1, 4]), (Ints(vec![2, 3, 4]), &[3])],
        &[2, 3, 4],
        op(TfliteOp::BroadcastTo),
    );
}

/// Adds cases of floats with int8 weights.
fn hybrid(all: &mut Vec<Case>) {
    let mut add =
        |name: &str, shapes: [&[usize]; 3], output: &[usize], per: Option<usize>, o: TfliteOperator| {
            let mut b = Builder::new(300 + all.len() as u64);
            let mut scales = Scales { input: 1.0, weights: Vec::new() };
            let x = b.given(shapes[0], true, None);
            let w = b.operand(Kind::Weights { dimension: per }, shapes[1], false, &mut scales);
            let bias = b.operand(Kind::Bias, shapes[2], true, &mut scales);
            let mut o = o;
            o.inputs = vec![Some(x), Some(w), Some(bias)];
            all.push(b.finish(name, o, TfliteTensor::new("y", output, DType::F32)));
        };
    let act = FusedActivation::Relu;
    add("dense_hybrid", [&[3, 40], &[12, 40], &[12]], &[3, 12], None, op(TfliteOp::FullyConnected));
    add(
        "conv_hybrid",
        [&[1, 7, 6, 5], &[8, 3, 3, 5], &[8]],
        &[1, 7, 6, 8],
        Some(0),
        conv(TfliteOp::Conv2D, false, 1, act),
    );
    let depthwise = conv(TfliteOp::DepthwiseConv2D, false, 1, act).with(OptionField::DepthMultiplier, 1.0);
    add("depthwise_hybrid", [&[1, 7, 6, 5], &[1, 3, 3, 5], &[5]], &[1, 7, 6, 5], Some(3), depthwise);
    let asymmetric = op(TfliteOp::FullyConnected).with(OptionField::AsymmetricInputs, 1.0);
    add("dense_hybrid_asymmetric", [&[3, 40], &[12, 40], &[12]], &[3, 12], None, asymmetric);
}

/// Returns an operator over all 256 integers.
fn every(op: TfliteOperator, name: &str, x: TfliteQuantization, y: TfliteQuantization) -> Case {
    let values: Vec<i8> = (-128..=127).collect();
    let shape = [1, 256];
    let tensor =
        |n: &str, q: &TfliteQuantization| TfliteTensor::new(n, shape, DType::I8).quantized(q.clone());
    let mut o = op;
    (o.inputs, o.outputs) = (vec![Some(0)], vec![1]);
    let model = TfliteModel {
        tensors: vec![tensor("x", &x), tensor("y", &y)],
        operators: vec![o],
        inputs: vec![0],
        outputs: vec![1],
        ..TfliteModel::default()
    };
    Case { name: name.into(), model, inputs: vec![Literal::from_slice(shape, &values).unwrap()] }
}

fn tables(all: &mut Vec<Case>) {
    let q = TfliteQuantization::per_tensor;
    for (i, scale) in [0.021, 0.05, 0.1173].into_iter().enumerate() {
        let x = || q(scale, 9 * i as i32 - 7);
        let mut add = |name: &str, o: TfliteOperator, y: TfliteQuantization| {
            all.push(every(o, &format!("{name}_{i}"), x(), y))
        };
        add("logistic", op(TfliteOp::Logistic), q(1.0 / 256.0, -128));
        add("tanh", op(TfliteOp::Tanh), q(1.0 / 128.0, 0));
        add("relu", op(TfliteOp::Relu), q(scale * 0.6, -128));
        add("relu6", op(TfliteOp::Relu6), q(0.0235, -128));
        add("relu_n1", op(TfliteOp::ReluN1To1), q(0.01, 4));
        add("leaky_relu", op(TfliteOp::LeakyRelu).with(OptionField::Alpha, 0.3), q(scale * 0.7, -50));
        add("hard_swish", op(TfliteOp::HardSwish), q(scale * 0.9, -100));
        add("gelu", op(TfliteOp::Gelu), q(scale * 0.8, -100));
        add("gelu_tanh", op(TfliteOp::Gelu).with(OptionField::Approximate, 1.0), q(scale * 0.8, -100));
        add("exp", op(TfliteOp::Exp), q(scale, -128));
        add("requantize", op(TfliteOp::Quantize), q(scale * 1.37, 11));
    }
}

fn conversions(all: &mut Vec<Case>) {
    let scheme = || TfliteQuantization::per_tensor(0.0173, -20);
    let shape = [1, 200];
    let mut draw = Draw(RandomStream::new(900, 7, 0));
    let model = |from: TfliteTensor, to: TfliteTensor, of: TfliteOp| TfliteModel {
        tensors: vec![from, to],
        operators: vec![TfliteOperator::new(of, [0], [1])],
        inputs: vec![0],
        outputs: vec![1],
        ..TfliteModel::default()
    };
    let float = || TfliteTensor::new("f", shape, DType::F32);
    let int = || TfliteTensor::new("q", shape, DType::I8).quantized(scheme());
    all.push(Case {
        name: "quantize".into(),
        model: model(float(), int(), TfliteOp::Quantize),
        inputs: vec![draw.floats(&shape)],
    });
    all.push(Case {
        name: "dequantize".into(),
        model: model(int(), float(), TfliteOp::Dequantize),
        inputs: vec![draw.ints(&shape)],
    });
}

/// Adds LOG of floats, some negative, and of all integers from 0 on.
fn logarithms(all: &mut Vec<Case>) {
    let mut draw = Draw(RandomStream::new(901, 7, 0));
    let float = |name: &str| TfliteTensor::new(name, [1, 200], DType::F32);
    let model = TfliteModel {
        tensors: vec![float("x"), float("y")],
        operators: vec![TfliteOperator::new(TfliteOp::Log, [0], [1])],
        inputs: vec![0],
        outputs: vec![1],
        ..TfliteModel::default()
    };
    all.push(Case { name: "log_float".into(), model, inputs: vec![draw.floats(&[1, 200])] });
    let q = TfliteQuantization::per_tensor;
    for (i, (scale, y)) in [(0.02, q(0.05, 97)), (0.1, q(0.02, -3))].into_iter().enumerate() {
        all.push(every(op(TfliteOp::Log), &format!("log_{i}"), q(scale, -128), y));
    }
}
