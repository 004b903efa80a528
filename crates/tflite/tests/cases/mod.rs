//! Models of one operator that our writer makes, and what they are given: in floats, in int8, and mixed.

use systole_base::rng::Stream;
use systole_base::{DType, Literal};
use systole_tflite::{Activation, Field, Model, Op, Operator, Quantization, Tensor};

/// A model of one operator, and what it is given.
pub struct Case {
    pub name: String,
    pub model: Model,
    pub inputs: Vec<Literal>,
}

/// Draws constants, scales and inputs.
struct Draw(Stream);

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

    /// From 0.005 to 0.1, and any zero point.
    fn scheme(&mut self) -> Quantization {
        let zero = self.0.below(256) as i32 - 128;
        Quantization::per_tensor(self.0.range(0.005, 0.1), zero)
    }
}

/// What an operand is.
enum Kind {
    Given,
    Weights { dimension: Option<usize> },
    Bias,
    Ints(Vec<i32>),
}

/// What the steps of a bias follow from.
#[derive(Default)]
struct Scales {
    input: f32,
    weights: Vec<f32>,
}

struct Builder {
    draw: Draw,
    model: Model,
    inputs: Vec<Literal>,
}

impl Builder {
    fn new(seed: u64) -> Builder {
        Builder { draw: Draw(Stream::new(seed, 7, 0)), model: Model::default(), inputs: Vec::new() }
    }

    fn add(&mut self, t: Tensor) -> usize {
        self.model.tensors.push(t);
        self.model.tensors.len() - 1
    }

    fn given(&mut self, shape: &[usize], float: bool, scheme: Option<Quantization>) -> usize {
        let name = format!("x{}", self.inputs.len());
        let (t, x) = match float {
            true => (Tensor::new(name, shape, DType::F32), self.draw.floats(shape)),
            false => {
                let scheme = scheme.unwrap_or_else(|| self.draw.scheme());
                (Tensor::new(name, shape, DType::I8).quantized(scheme), self.draw.ints(shape))
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
                self.add(Tensor::constant("list", data))
            }
            (Kind::Weights { .. } | Kind::Bias, true) => {
                let data = self.draw.floats(shape);
                self.add(Tensor::constant("w", data))
            }
            (Kind::Weights { dimension }, false) => {
                let n: usize = shape.iter().product();
                let values: Vec<i8> = (0..n).map(|_| (self.draw.0.below(255) as i32 - 127) as i8).collect();
                let data = Literal::from_slice(shape, &values).unwrap();
                let q = match dimension {
                    Some(d) => {
                        let of: Vec<f32> = (0..shape[d]).map(|_| self.draw.0.range(0.002, 0.02)).collect();
                        Quantization::per_channel(of, d)
                    }
                    None => Quantization::per_tensor(self.draw.0.range(0.002, 0.02), 0),
                };
                scales.weights = q.scale.clone();
                self.add(Tensor::constant("w", data).quantized(q))
            }
            (Kind::Bias, false) => {
                let values: Vec<i32> = (0..shape[0]).map(|_| self.draw.0.below(4001) as i32 - 2000).collect();
                let data = Literal::from_slice(shape, &values).unwrap();
                let sums = scales.weights.iter().map(|s| s * scales.input).collect();
                let q = Quantization::per_channel(sums, 0);
                self.add(Tensor::constant("bias", data).quantized(q))
            }
        }
    }

    fn finish(mut self, name: &str, o: Operator, output: Tensor) -> Case {
        let y = self.add(output);
        let mut o = o;
        o.outputs = vec![y];
        self.model.operators.push(o);
        self.model.outputs = vec![y];
        Case { name: name.into(), model: self.model, inputs: self.inputs }
    }
}

/// An operator on drawn operands.
fn case(
    seed: u64,
    name: &str,
    operands: Vec<(Kind, &[usize])>,
    output: &[usize],
    scheme: Scheme,
    o: Operator,
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
    let y = Tensor::new("y", output, if float { DType::F32 } else { DType::I8 });
    let y = match scheme {
        Scheme::Float => y,
        Scheme::Same => y.quantized(first.unwrap()),
        Scheme::Wide(scale) => {
            let zero = b.draw.scheme().zero_point[0] as i32 / 4;
            y.quantized(Quantization::per_tensor(scale, zero))
        }
        Scheme::Fixed(scale, zero) => y.quantized(Quantization::per_tensor(scale, zero)),
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

fn op(op: Op) -> Operator {
    Operator::new(op, [], [])
}

fn conv(of: Op, valid: bool, stride: usize, act: Activation) -> Operator {
    op(of)
        .with(Field::Padding, f64::from(u8::from(valid)))
        .with(Field::StrideH, stride as f64)
        .with(Field::StrideW, stride as f64)
        .with(Field::Activation, act.code())
}

/// All of them.
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
    all
}

fn windows(all: &mut Vec<Case>, float: bool) {
    use Kind::{Bias, Given, Ints, Weights};
    let wide = |s: f32| if float { Scheme::Float } else { Scheme::Wide(s) };
    let same = if float { Scheme::Float } else { Scheme::Same };
    let t = if float { "float" } else { "int8" };
    let mut add =
        |name: &str, operands: Vec<(Kind, &[usize])>, output: &[usize], scheme: Scheme, o: Operator| {
            let seed = all.len() as u64;
            all.push(case(seed, &format!("{name}_{t}"), operands, output, scheme, o));
        };
    let per = |d: usize| Weights { dimension: Some(d) };
    let none = Weights { dimension: None };
    let relu = Activation::Relu;
    let x: &[usize] = &[1, 9, 7, 5];
    add(
        "conv_same",
        vec![(Given, x), (per(0), &[8, 3, 3, 5]), (Bias, &[8])],
        &[1, 9, 7, 8],
        wide(0.09),
        conv(Op::Conv2D, false, 1, relu),
    );
    add(
        "conv_stride",
        vec![(Given, x), (per(0), &[6, 3, 2, 5]), (Bias, &[6])],
        &[1, 5, 4, 6],
        wide(0.2),
        conv(Op::Conv2D, false, 2, Activation::Relu6),
    );
    add(
        "conv_valid",
        vec![(Given, x), (none, &[4, 2, 3, 5]), (Bias, &[4])],
        &[1, 8, 5, 4],
        wide(0.1),
        conv(Op::Conv2D, true, 1, Activation::None),
    );
    let dilated =
        conv(Op::Conv2D, true, 1, Activation::None).with(Field::DilationH, 2.0).with(Field::DilationW, 3.0);
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
        conv(Op::Conv2D, false, 1, relu),
    );
    add(
        "conv_1x1",
        vec![(Given, &[1, 5, 5, 33]), (per(0), &[17, 1, 1, 33]), (Bias, &[17])],
        &[1, 5, 5, 17],
        wide(0.11),
        conv(Op::Conv2D, false, 1, Activation::ReluN1To1),
    );
    let m = |n: f64, o: Operator| o.with(Field::DepthMultiplier, n);
    add(
        "depthwise",
        vec![(Given, x), (per(3), &[1, 3, 3, 10]), (Bias, &[10])],
        &[1, 5, 4, 10],
        wide(0.05),
        m(2.0, conv(Op::DepthwiseConv2D, false, 2, relu)),
    );
    add(
        "depthwise_one",
        vec![(Given, x), (per(3), &[1, 3, 3, 5]), (Bias, &[5])],
        &[1, 7, 5, 5],
        wide(0.05),
        m(1.0, conv(Op::DepthwiseConv2D, true, 1, Activation::Relu6)),
    );
    add(
        "transpose_conv",
        vec![(Ints(vec![1, 12, 10, 3]), &[4]), (per(0), &[3, 3, 3, 4]), (Given, &[1, 6, 5, 4]), (Bias, &[3])],
        &[1, 12, 10, 3],
        wide(0.08),
        conv(Op::TransposeConv, false, 2, Activation::None),
    );
    add(
        "transpose_conv_valid",
        vec![(Ints(vec![1, 13, 11, 3]), &[4]), (per(0), &[3, 3, 3, 4]), (Given, &[1, 6, 5, 4]), (Bias, &[3])],
        &[1, 13, 11, 3],
        wide(0.08),
        conv(Op::TransposeConv, true, 2, relu),
    );
    add(
        "dense",
        vec![(Given, &[3, 40]), (none_again(), &[12, 40]), (Bias, &[12])],
        &[3, 12],
        wide(0.15),
        op(Op::FullyConnected).with(Field::Activation, relu.code()),
    );
    add(
        "dense_per_channel",
        vec![(Given, &[1, 64]), (per(0), &[10, 64]), (Bias, &[10])],
        &[1, 10],
        wide(0.15),
        op(Op::FullyConnected),
    );
    add(
        "dense_kept",
        vec![(Given, &[1, 4, 16]), (none_again(), &[6, 16]), (Bias, &[6])],
        &[1, 4, 6],
        wide(0.15),
        op(Op::FullyConnected).with(Field::KeepNumDims, 1.0),
    );
    let pool = |of: Op, valid: bool, s: usize, k: usize| {
        conv(of, valid, s, Activation::None).with(Field::FilterH, k as f64).with(Field::FilterW, k as f64)
    };
    for (name, of) in [("average", Op::AveragePool2D), ("max", Op::MaxPool2D)] {
        add(&format!("{name}_pool"), vec![(Given, x)], &[1, 4, 3, 5], same, pool(of, true, 2, 2));
        add(&format!("{name}_pool_same"), vec![(Given, x)], &[1, 5, 4, 5], same, pool(of, false, 2, 3));
    }
    let relu_pool = pool(Op::AveragePool2D, true, 2, 2).with(Field::Activation, relu.code());
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
        |name: &str, operands: Vec<(Kind, &[usize])>, output: &[usize], scheme: Scheme, o: Operator| {
            let seed = 100 + all.len() as u64;
            all.push(case(seed, &format!("{name}_{t}"), operands, output, scheme, o));
        };
    let x: &[usize] = &[1, 6, 5, 4];
    let relu = Activation::Relu.code();
    add("add", vec![(Given, x), (Given, x)], x, free, op(Op::Add));
    add("add_relu", vec![(Given, x), (Given, x)], x, free, op(Op::Add).with(Field::Activation, relu));
    add("add_channels", vec![(Given, x), (Given, &[4])], x, free, op(Op::Add));
    add("add_both", vec![(Given, &[1, 6, 1, 4]), (Given, &[1, 1, 5, 1])], x, free, op(Op::Add));
    add("sub", vec![(Given, x), (Given, x)], x, free, op(Op::Sub));
    add("sub_rows", vec![(Given, &[1, 1, 5, 4]), (Given, x)], x, free, op(Op::Sub));
    add("mul", vec![(Given, x), (Given, x)], x, free, op(Op::Mul));
    add(
        "mul_channels",
        vec![(Given, x), (Given, &[1, 1, 1, 4])],
        x,
        free,
        op(Op::Mul).with(Field::Activation, Activation::Relu6.code()),
    );
    add("squared_difference", vec![(Given, x), (Given, x)], x, free, op(Op::SquaredDifference));
    add("maximum", vec![(Given, x), (Given, x)], x, same, op(Op::Maximum));
    add("minimum", vec![(Given, x), (Given, &[4])], x, same, op(Op::Minimum));
    add("prelu", vec![(Given, x), (Given, &[1, 1, 4])], x, free, op(Op::Prelu));
    let kept = |k: f64, of: Op| op(of).with(Field::KeepDims, k);
    add("mean", vec![(Given, x), (Ints(vec![1, 2]), &[2])], &[1, 4], free, kept(0.0, Op::Mean));
    add("mean_kept", vec![(Given, x), (Ints(vec![-1]), &[1])], &[1, 6, 5, 1], free, kept(1.0, Op::Mean));
    add("mean_rows", vec![(Given, x), (Ints(vec![1]), &[1])], &[1, 5, 4], free, kept(0.0, Op::Mean));
    add("reduce_max", vec![(Given, x), (Ints(vec![2]), &[1])], &[1, 6, 4], same, kept(0.0, Op::ReduceMax));
    add(
        "batch_matmul",
        vec![(Given, &[2, 5, 7]), (Given, &[2, 7, 6])],
        &[2, 5, 6],
        if float { free } else { Scheme::Wide(0.5) },
        op(Op::BatchMatmul),
    );
    add(
        "batch_matmul_turned",
        vec![(Given, &[1, 2, 5, 7]), (Given, &[1, 2, 6, 7])],
        &[1, 2, 5, 6],
        if float { free } else { Scheme::Wide(0.5) },
        op(Op::BatchMatmul).with(Field::AdjY, 1.0),
    );
    let fixed = |s: f32, z: i32| if float { Scheme::Float } else { Scheme::Fixed(s, z) };
    add(
        "softmax",
        vec![(Given, &[3, 10])],
        &[3, 10],
        fixed(1.0 / 256.0, -128),
        op(Op::Softmax).with(Field::Beta, 1.0),
    );
    add(
        "softmax_wide",
        vec![(Given, &[2, 300])],
        &[2, 300],
        fixed(1.0 / 256.0, -128),
        op(Op::Softmax).with(Field::Beta, 0.5),
    );
}

fn shapes(all: &mut Vec<Case>, float: bool) {
    use Kind::{Given, Ints};
    let same = if float { Scheme::Float } else { Scheme::Same };
    let t = if float { "float" } else { "int8" };
    let mut add = |name: &str, operands: Vec<(Kind, &[usize])>, output: &[usize], o: Operator| {
        let seed = 200 + all.len() as u64;
        all.push(case(seed, &format!("{name}_{t}"), operands, output, same, o));
    };
    let x: &[usize] = &[1, 6, 4, 8];
    add(
        "reshape",
        vec![(Given, x), (Ints(vec![1, 192]), &[2])],
        &[1, 192],
        op(Op::Reshape).with_list(Field::NewShape, vec![1, 192]),
    );
    add(
        "squeeze",
        vec![(Given, &[1, 1, 6, 4])],
        &[1, 6, 4],
        op(Op::Squeeze).with_list(Field::SqueezeDims, vec![1]),
    );
    add("expand_dims", vec![(Given, &[2, 3]), (Ints(vec![1]), &[])], &[2, 1, 3], op(Op::ExpandDims));
    add("pad", vec![(Given, x), (Ints(vec![0, 0, 1, 2, 3, 0, 0, 0]), &[4, 2])], &[1, 9, 7, 8], op(Op::Pad));
    add("transpose", vec![(Given, x), (Ints(vec![0, 3, 1, 2]), &[4])], &[1, 8, 6, 4], op(Op::Transpose));
    add(
        "slice",
        vec![(Given, x), (Ints(vec![0, 1, 2, 0]), &[4]), (Ints(vec![1, 3, -1, 8]), &[4])],
        &[1, 3, 2, 8],
        op(Op::Slice),
    );
    let strided = op(Op::StridedSlice).with(Field::BeginMask, 1.0).with(Field::EndMask, 9.0);
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
        op(Op::Gather).with(Field::Axis, 2.0),
    );
    add("space_to_depth", vec![(Given, x)], &[1, 3, 2, 32], op(Op::SpaceToDepth).with(Field::BlockSize, 2.0));
    add("depth_to_space", vec![(Given, x)], &[1, 12, 8, 2], op(Op::DepthToSpace).with(Field::BlockSize, 2.0));
    for (name, of) in [("resize_nearest", Op::ResizeNearest), ("resize_bilinear", Op::ResizeBilinear)] {
        for (kind, field) in
            [("", None), ("_half", Some(Field::HalfPixelCenters)), ("_corners", Some(Field::AlignCorners))]
        {
            let o = field.map_or(op(of), |f| op(of).with(f, 1.0));
            add(&format!("{name}{kind}"), vec![(Given, x), (Ints(vec![9, 11]), &[2])], &[1, 9, 11, 8], o);
        }
    }
    add(
        "broadcast_to",
        vec![(Given, &[1, 1, 4]), (Ints(vec![2, 3, 4]), &[3])],
        &[2, 3, 4],
        op(Op::BroadcastTo),
    );
}

/// Floats on weights of int8.
fn hybrid(all: &mut Vec<Case>) {
    let mut add = |name: &str, shapes: [&[usize]; 3], output: &[usize], per: Option<usize>, o: Operator| {
        let mut b = Builder::new(300 + all.len() as u64);
        let mut scales = Scales { input: 1.0, weights: Vec::new() };
        let x = b.given(shapes[0], true, None);
        let w = b.operand(Kind::Weights { dimension: per }, shapes[1], false, &mut scales);
        let bias = b.operand(Kind::Bias, shapes[2], true, &mut scales);
        let mut o = o;
        o.inputs = vec![Some(x), Some(w), Some(bias)];
        all.push(b.finish(name, o, Tensor::new("y", output, DType::F32)));
    };
    let act = Activation::Relu;
    add("dense_hybrid", [&[3, 40], &[12, 40], &[12]], &[3, 12], None, op(Op::FullyConnected));
    add(
        "conv_hybrid",
        [&[1, 7, 6, 5], &[8, 3, 3, 5], &[8]],
        &[1, 7, 6, 8],
        Some(0),
        conv(Op::Conv2D, false, 1, act),
    );
    let depthwise = conv(Op::DepthwiseConv2D, false, 1, act).with(Field::DepthMultiplier, 1.0);
    add("depthwise_hybrid", [&[1, 7, 6, 5], &[1, 3, 3, 5], &[5]], &[1, 7, 6, 5], Some(3), depthwise);
}

/// An operator over all 256 integers.
fn every(op: Operator, name: &str, x: Quantization, y: Quantization) -> Case {
    let values: Vec<i8> = (-128..=127).collect();
    let shape = [1, 256];
    let tensor = |n: &str, q: &Quantization| Tensor::new(n, shape, DType::I8).quantized(q.clone());
    let mut o = op;
    (o.inputs, o.outputs) = (vec![Some(0)], vec![1]);
    let model = Model {
        tensors: vec![tensor("x", &x), tensor("y", &y)],
        operators: vec![o],
        inputs: vec![0],
        outputs: vec![1],
        ..Model::default()
    };
    Case { name: name.into(), model, inputs: vec![Literal::from_slice(shape, &values).unwrap()] }
}

fn tables(all: &mut Vec<Case>) {
    let q = Quantization::per_tensor;
    for (i, scale) in [0.021, 0.05, 0.1173].into_iter().enumerate() {
        let x = || q(scale, 9 * i as i32 - 7);
        let mut add =
            |name: &str, o: Operator, y: Quantization| all.push(every(o, &format!("{name}_{i}"), x(), y));
        add("logistic", op(Op::Logistic), q(1.0 / 256.0, -128));
        add("tanh", op(Op::Tanh), q(1.0 / 128.0, 0));
        add("relu", op(Op::Relu), q(scale * 0.6, -128));
        add("relu6", op(Op::Relu6), q(0.0235, -128));
        add("relu_n1", op(Op::ReluN1To1), q(0.01, 4));
        add("leaky_relu", op(Op::LeakyRelu).with(Field::Alpha, 0.3), q(scale * 0.7, -50));
        add("hard_swish", op(Op::HardSwish), q(scale * 0.9, -100));
        add("gelu", op(Op::Gelu), q(scale * 0.8, -100));
        add("gelu_tanh", op(Op::Gelu).with(Field::Approximate, 1.0), q(scale * 0.8, -100));
        add("exp", op(Op::Exp), q(scale, -128));
        add("requantize", op(Op::Quantize), q(scale * 1.37, 11));
    }
}

fn conversions(all: &mut Vec<Case>) {
    let scheme = || Quantization::per_tensor(0.0173, -20);
    let shape = [1, 200];
    let mut draw = Draw(Stream::new(900, 7, 0));
    let model = |from: Tensor, to: Tensor, of: Op| Model {
        tensors: vec![from, to],
        operators: vec![Operator::new(of, [0], [1])],
        inputs: vec![0],
        outputs: vec![1],
        ..Model::default()
    };
    let float = || Tensor::new("f", shape, DType::F32);
    let int = || Tensor::new("q", shape, DType::I8).quantized(scheme());
    all.push(Case {
        name: "quantize".into(),
        model: model(float(), int(), Op::Quantize),
        inputs: vec![draw.floats(&shape)],
    });
    all.push(Case {
        name: "dequantize".into(),
        model: model(int(), float(), Op::Dequantize),
        inputs: vec![draw.ints(&shape)],
    });
}

/// LOG of floats, of which some are negative, and over all integers from 0 on.
fn logarithms(all: &mut Vec<Case>) {
    let mut draw = Draw(Stream::new(901, 7, 0));
    let float = |name: &str| Tensor::new(name, [1, 200], DType::F32);
    let model = Model {
        tensors: vec![float("x"), float("y")],
        operators: vec![Operator::new(Op::Log, [0], [1])],
        inputs: vec![0],
        outputs: vec![1],
        ..Model::default()
    };
    all.push(Case { name: "log_float".into(), model, inputs: vec![draw.floats(&[1, 200])] });
    let q = Quantization::per_tensor;
    for (i, (scale, y)) in [(0.02, q(0.05, 97)), (0.1, q(0.02, -3))].into_iter().enumerate() {
        all.push(every(op(Op::Log), &format!("log_{i}"), q(scale, -128), y));
    }
}
