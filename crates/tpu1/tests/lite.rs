//! Tests `.tflite` graphs on TPU v1 against the interpreter, bit for bit, on random graphs.

use std::collections::BTreeSet;
use systole_base::rng::RandomStream;
use systole_base::{DType, Literal};
use systole_tflite::{
    OptionField, TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor,
};
use systole_tpu1::{Tpu1Chip, compile, of_graph};

struct Draw {
    stream: RandomStream,
    model: TfliteModel,
}

impl Draw {
    fn from(&mut self, low: usize, high: usize) -> usize {
        low + self.stream.below((high - low + 1) as u64) as usize
    }

    fn is(&mut self, one_of: u64) -> bool {
        self.stream.below(one_of) == 0
    }

    fn bytes(&mut self, n: usize) -> Vec<i8> {
        (0..n).map(|_| (self.stream.next_u32() as i8).max(-127)).collect()
    }

    /// A computed tensor with its own scale.
    fn tensor(&mut self, dims: &[usize]) -> usize {
        let scale = 0.02 + 0.05 * self.stream.uniform();
        let zero = self.from(0, 40) as i32 - 20;
        self.like(dims, TfliteQuantization::per_tensor(scale, zero))
    }

    fn like(&mut self, dims: &[usize], quantization: TfliteQuantization) -> usize {
        let name = format!("t{}", self.model.tensors.len());
        self.model.tensors.push(TfliteTensor::new(name, dims, DType::I8).quantized(quantization));
        self.model.tensors.len() - 1
    }

    fn constant(&mut self, data: Literal, scale: f32) -> usize {
        let name = format!("c{}", self.model.tensors.len());
        self.model
            .tensors
            .push(TfliteTensor::constant(name, data).quantized(TfliteQuantization::per_tensor(scale, 0)));
        self.model.tensors.len() - 1
    }

    /// Weights with a bias.
    fn weights(&mut self, dims: &[usize], filters: usize) -> [usize; 2] {
        let n = dims.iter().product::<usize>();
        let values = self.bytes(n);
        let scale = 0.01 / f32::sqrt((n / filters) as f32);
        let bias: Vec<i32> = (0..filters).map(|_| self.stream.next_u32() as i32 >> 20).collect();
        let w = self.constant(Literal::from_slice(dims, &values).unwrap(), scale);
        [w, self.constant(Literal::from_slice([filters], &bias).unwrap(), 1.0)]
    }

    fn dims(&self, t: usize) -> Vec<usize> {
        self.model.tensors[t].dims().to_vec()
    }

    fn push(&mut self, operator: TfliteOperator) -> usize {
        let made = operator.outputs[0];
        self.model.operators.push(operator);
        made
    }

    fn same_scale(&mut self, x: usize, dims: &[usize]) -> usize {
        let quantization = self.model.tensors[x].quantization.clone().unwrap();
        self.like(dims, quantization)
    }

    /// Output size and fields of a window on an image.
    fn slide(&mut self, x: usize, size: [usize; 2]) -> ([usize; 2], [usize; 2], bool) {
        let dims = self.dims(x);
        let (stride, same) = ([self.from(1, 2), self.from(1, 2)], self.is(2));
        let out = |a: usize| match same {
            true => dims[1 + a].div_ceil(stride[a]),
            false => (dims[1 + a] - size[a]) / stride[a] + 1,
        };
        ([out(0), out(1)], stride, same)
    }

    fn convolution(&mut self, x: usize, depthwise: bool) -> usize {
        let [_, h, w, c] = self.dims(x)[..] else { panic!() };
        let size = [self.from(1, h.min(3)), self.from(1, w.min(3))];
        let (out, stride, same) = self.slide(x, size);
        let multiplier = self.from(1, 2);
        let filters = if depthwise { c * multiplier } else { self.from(1, 12) };
        let dims = if depthwise { [1, size[0], size[1], filters] } else { [filters, size[0], size[1], c] };
        let [weights, bias] = self.weights(&dims, filters);
        let y = self.tensor(&[1, out[0], out[1], filters]);
        let op = if depthwise { TfliteOp::DepthwiseConv2D } else { TfliteOp::Conv2D };
        let mut o = TfliteOperator::new(op, [x, weights, bias], [y])
            .with(OptionField::Padding, f64::from(u8::from(!same)))
            .with(OptionField::StrideH, stride[0] as f64)
            .with(OptionField::StrideW, stride[1] as f64)
            .with(OptionField::Activation, [0.0, 1.0, 3.0][self.from(0, 2)]);
        if depthwise {
            o = o.with(OptionField::DepthMultiplier, multiplier as f64);
        }
        self.push(o)
    }

    fn pool(&mut self, x: usize) -> usize {
        let [_, h, w, c] = self.dims(x)[..] else { panic!() };
        let size = [self.from(1, h.min(3)), self.from(1, w.min(3))];
        let (out, stride, same) = self.slide(x, size);
        let op = if self.is(2) { TfliteOp::MaxPool2D } else { TfliteOp::AveragePool2D };
        let y = self.same_scale(x, &[1, out[0], out[1], c]);
        let o = TfliteOperator::new(op, [x], [y])
            .with(OptionField::Padding, f64::from(u8::from(!same)))
            .with(OptionField::StrideH, stride[0] as f64)
            .with(OptionField::StrideW, stride[1] as f64)
            .with(OptionField::FilterH, size[0] as f64)
            .with(OptionField::FilterW, size[1] as f64);
        self.push(o)
    }

    /// Padding, and the convolution after it.
    fn padded(&mut self, x: usize) -> usize {
        let [_, h, w, c] = self.dims(x)[..] else { panic!() };
        let pads = [self.from(0, 2), self.from(0, 2), self.from(0, 2), self.from(0, 2)];
        let data: Vec<i32> = [0, 0, pads[0], pads[1], pads[2], pads[3], 0, 0].map(|p| p as i32).to_vec();
        let paddings = self.constant(Literal::from_slice([4, 2], &data).unwrap(), 1.0);
        let big = [h + pads[0] + pads[1], w + pads[2] + pads[3]];
        let y = self.same_scale(x, &[1, big[0], big[1], c]);
        let y = self.push(TfliteOperator::new(TfliteOp::Pad, [x, paddings], [y]));
        let size = [self.from(1, big[0].min(3)), self.from(1, big[1].min(3))];
        let filters = self.from(1, 6);
        let [weights, bias] = self.weights(&[filters, size[0], size[1], c], filters);
        let z = self.tensor(&[1, big[0] - size[0] + 1, big[1] - size[1] + 1, filters]);
        let o =
            TfliteOperator::new(TfliteOp::Conv2D, [y, weights, bias], [z]).with(OptionField::Padding, 1.0);
        self.push(o.with(OptionField::StrideH, 1.0).with(OptionField::StrideW, 1.0))
    }

    fn dense(&mut self, x: usize) -> usize {
        let inputs: usize = self.dims(x).iter().product();
        let mut x = x;
        if self.dims(x).len() > 2 {
            let shape = self.model.tensors.len();
            self.model.tensors.push(TfliteTensor::constant(
                "shape",
                Literal::from_slice([2], &[1i32, inputs as i32]).unwrap(),
            ));
            let y = self.same_scale(x, &[1, inputs]);
            x = self.push(
                TfliteOperator::new(TfliteOp::Reshape, [x, shape], [y])
                    .with_list(OptionField::NewShape, vec![1, inputs as i32]),
            );
        }
        let filters = self.from(1, 24);
        let [weights, bias] = self.weights(&[filters, inputs], filters);
        let y = self.tensor(&[1, filters]);
        let activation = [0.0, 1.0][self.from(0, 1)];
        self.push(
            TfliteOperator::new(TfliteOp::FullyConnected, [x, weights, bias], [y])
                .with(OptionField::Activation, activation),
        )
    }

    fn function(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        match self.from(0, 3) {
            0 => {
                let y = self.like(&dims, TfliteQuantization::per_tensor(1.0 / 256.0, -128));
                self.push(TfliteOperator::new(TfliteOp::Logistic, [x], [y]))
            }
            1 => {
                let y = self.like(&dims, TfliteQuantization::per_tensor(1.0 / 128.0, 0));
                self.push(TfliteOperator::new(TfliteOp::Tanh, [x], [y]))
            }
            n => {
                let y = self.tensor(&dims);
                self.push(TfliteOperator::new(
                    if n == 2 { TfliteOp::Relu6 } else { TfliteOp::Relu },
                    [x],
                    [y],
                ))
            }
        }
    }

    /// Slices of the last dimension of an image or vector, or of a sequence's steps, with some concatenated again.
    fn parted(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        let axis = self.from(1, dims.len() - 1);
        let n = (2..=3).find(|n| dims[axis].is_multiple_of(*n)).unwrap_or(1);
        let at = self.constant(Literal::from_slice([], &[axis as i32]).unwrap(), 1.0);
        let mut part = dims.clone();
        part[axis] /= n;
        let parts: Vec<usize> = (0..n).map(|_| self.same_scale(x, &part)).collect();
        self.model.operators.push(
            TfliteOperator::new(TfliteOp::Split, [at, x], parts.clone())
                .with(OptionField::NumSplits, n as f64),
        );
        // Channels are concatenated; pixels only in a sequence.
        let (last, line) = (dims.len() - 1, dims.len() == 3 || dims.len() == 4 && dims[1] == 1);
        let axis = if line && self.is(2) { last - 1 } else { last };
        let chosen: Vec<usize> = (0..self.from(1, 3)).map(|_| parts[self.from(0, n - 1)]).collect();
        let mut joined = part;
        joined[axis] *= chosen.len();
        let y = self.same_scale(x, &joined);
        self.push(
            TfliteOperator::new(TfliteOp::Concatenation, chosen, [y]).with(OptionField::Axis, axis as f64),
        )
    }

    /// A slice, minus a constant or another slice.
    fn sliced(&mut self, x: usize) -> usize {
        let dims = self.dims(x);
        let (mut begin, mut size) = (vec![0i32], vec![1i32]);
        for &d in &dims[1..] {
            let own = self.from(1, d);
            begin.push(self.from(0, d - own) as i32);
            size.push(own as i32);
        }
        let wide: Vec<usize> = size.iter().map(|&s| s as usize).collect();
        let lists = [begin, size].map(|l| self.constant(Literal::from_slice([l.len()], &l).unwrap(), 1.0));
        let y = self.same_scale(x, &wide);
        let y = self.push(TfliteOperator::new(TfliteOp::Slice, [x, lists[0], lists[1]], [y]));
        let channels = wide[wide.len() - 1];
        let values = self.bytes(channels);
        let shape: Vec<usize> = wide.iter().map(|_| 1).take(wide.len() - 1).chain([channels]).collect();
        let constant = self.constant(Literal::from_slice(&shape[..], &values).unwrap(), 0.04);
        let z = self.tensor(&wide);
        let operands = if self.is(2) { [y, constant] } else { [constant, y] };
        let op = [TfliteOp::Sub, TfliteOp::Add, TfliteOp::Mul][self.from(0, 2)];
        self.push(TfliteOperator::new(op, operands, [z]))
    }

    fn mean(&mut self, x: usize) -> usize {
        let c = self.dims(x)[3];
        let axes = self.constant(Literal::from_slice([2], &[1i32, 2]).unwrap(), 1.0);
        let y = self.tensor(&[1, c]);
        self.push(TfliteOperator::new(TfliteOp::Mean, [x, axes], [y]))
    }
}

/// A random graph of a few operators, and the tensor before a final softmax, if any.
fn graph(seed: u64) -> TfliteModel {
    let mut d = Draw { stream: RandomStream::new(33, 2, seed), model: TfliteModel::default() };
    if seed % 4 == 3 {
        return parts(d);
    }
    let dims =
        if d.is(4) { vec![1, d.from(1, 30)] } else { vec![1, d.from(2, 8), d.from(2, 8), d.from(1, 10)] };
    let mut x = d.tensor(&dims);
    d.model.inputs = vec![x];
    let mut computed = vec![x];
    let first = [d.dense(x)];
    if d.is(9) || dims.len() == 2 {
        x = first[0];
    } else {
        // The first draw selected a model of one dense layer only.
        d.model.operators.clear();
        x = d.convolution(x, false);
    }
    computed.push(x);
    for _ in 0..d.from(1, 6) {
        let is_picture = d.dims(x).len() == 4;
        let same = computed.iter().copied().find(|t| *t != x && d.dims(*t) == d.dims(x));
        x = match (d.from(0, 8), is_picture, same) {
            (0 | 1, true, _) => d.convolution(x, false),
            (2, true, _) => d.convolution(x, true),
            (3, true, _) => d.pool(x),
            (4, true, _) => d.padded(x),
            (5, true, _) => d.mean(x),
            (6 | 7, _, Some(other)) => {
                let dims = d.dims(x);
                let y = d.tensor(&dims);
                let op = if d.is(3) { TfliteOp::Mul } else { TfliteOp::Add };
                d.push(TfliteOperator::new(op, [other, x], [y]))
            }
            (8, ..) => d.dense(x),
            _ => d.function(x),
        };
        computed.push(x);
    }
    if d.is(4) && d.dims(x).len() == 2 {
        let dims = d.dims(x);
        let y = d.like(&dims, TfliteQuantization::per_tensor(1.0 / 256.0, -128));
        x = d.push(TfliteOperator::new(TfliteOp::Softmax, [x], [y]).with(OptionField::Beta, 1.0));
    }
    d.model.outputs = vec![x];
    d.model
}

/// A sequence or image that is split and concatenated again.
fn parts(mut d: Draw) -> TfliteModel {
    let dims = match d.from(0, 2) {
        0 => vec![1, d.from(2, 40)],
        1 => vec![1, d.from(2, 6), d.from(1, 12)],
        _ => vec![1, d.from(1, 4), d.from(2, 5), d.from(1, 12)],
    };
    let mut x = d.tensor(&dims);
    d.model.inputs = vec![x];
    for _ in 0..d.from(1, 4) {
        x = match d.from(0, 3) {
            0 | 1 => d.parted(x),
            2 => d.sliced(x),
            _ => d.function(x),
        };
    }
    // An unread result must not come last.
    x = d.function(x);
    d.model.outputs = vec![x];
    d.model
}

#[test]
fn two_hundred_random_graphs_give_the_interpreters_bits() {
    let mut ops = BTreeSet::new();
    for seed in 0..220 {
        let graph = graph(seed);
        let (model, last) = of_graph("drawn", &graph).unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        let mut draw = RandomStream::new(33, 3, seed);
        let chip = Tpu1Chip {
            matrix: [4, 8, 16][draw.below(3) as usize],
            accumulators: [32, 4096][draw.below(2) as usize],
            unified_buffer: 1 << 18,
            ..Tpu1Chip::v1()
        };
        let batch = 1 + draw.below(4) as usize;
        let values = model.input().values();
        let input: Vec<i8> = (0..batch * values).map(|_| draw.next_u32() as i8).collect();
        let mut expected = Vec::new();
        for sample in input.chunks(values) {
            let dims = graph.tensors[graph.inputs[0]].dims();
            let x = Literal::from_slice(dims, sample).unwrap();
            let run = TfliteInterpreter::new(&graph).unwrap().run_with(&[x], |t, y| {
                if t == last {
                    expected.extend_from_slice(y.as_slice::<i8>().unwrap());
                }
            });
            run.unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        }
        let program = compile(&chip, &model, batch).unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        let run = program.run(&chip, &input).unwrap_or_else(|e| panic!("graph {seed}: {e}"));
        assert_eq!(
            run.output,
            expected,
            "graph {seed}: {:?}",
            graph.operators.iter().map(|o| o.op).collect::<Vec<_>>()
        );
        // The chip model's reference evaluation agrees, too.
        assert_eq!(model.evaluate(&input[..values]), expected[..expected.len() / batch], "graph {seed}");
        ops.extend(graph.operators.iter().map(|o| o.op));
    }
    assert!(ops.len() >= 17, "{ops:?}");
}

#[test]
fn what_has_no_form_here_is_told_with_the_operator_and_a_way_out() {
    let told = |change: &dyn Fn(&mut Draw) -> usize| {
        let mut d = Draw { stream: RandomStream::new(1, 1, 1), model: TfliteModel::default() };
        let x = d.tensor(&[1, 4, 4, 3]);
        d.model.inputs = vec![x];
        let y = change(&mut d);
        d.model.outputs = vec![y];
        of_graph("drawn", &d.model).unwrap_err().to_string()
    };
    let e = told(&|d| {
        let y = d.convolution(0, true);
        let weights = d.model.operators[0].inputs[1].unwrap();
        let filters = d.model.tensors[weights].dims()[3];
        let scales = (0..filters).map(|n| 0.01 + n as f32).collect();
        d.model.tensors[weights].quantization = Some(TfliteQuantization::per_channel(scales, 3));
        y
    });
    assert!(e.contains("--per tensor") && e.contains("CONV_2D"), "{e}");
    let e = told(&|d| {
        let y = d.tensor(&[1, 4, 4, 3]);
        d.push(TfliteOperator::new(TfliteOp::Maximum, [0, 0], [y]))
    });
    assert!(e.contains("MAXIMUM") && e.contains("operator 0") && e.contains("recurrent"), "{e}");
    let e = told(&|d| {
        d.model.tensors[0].ty.dtype = DType::F32;
        d.convolution(0, false)
    });
    assert!(e.contains("int8") && e.contains("`systole quantize"), "{e}");
}
