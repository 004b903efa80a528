//! Converts an int8 `.tflite` graph with per-tensor scales to TPU v1 layers.
//!
//! Supported: dense layers, convolutions (also depthwise), pooling, global means, ADD, SUB and MUL of two tensors,
//! unary functions, padding before a convolution, reshapes that keep the order of values, slices and concatenation (so
//! also unrolled recurrent layers). Slices of channels are products with a part of the identity matrix. A final softmax
//! runs on the host. Unary functions become 256-entry tables, computed with the file's interpreter.

use crate::model::{
    Arithmetic, ChipConvolution, ChipLayer, ChipModel, ChipOp, ConvWindow, ImageShape, OutputRange,
    ScaledOperand,
};
use crate::rescale::ScaleFactor;
use std::collections::BTreeMap;
use systole_base::{DType, Error, ErrorKind, Literal, Result, err};
use systole_tflite::{
    OptionField, TfliteInterpreter, TfliteModel as Graph, TfliteOp as LiteOp, TfliteOperator, TfliteTensor,
    activation_range, quantize_multiplier,
};

/// Converts a `.tflite` graph to TPU v1 layers. Returns the chip's model and the graph tensor that it computes: the
/// output, or the input of a final softmax.
///
/// # Errors
/// If an operator is not supported on the chip. The error names it and says how to fix the model.
pub fn of_graph(name: &str, graph: &Graph) -> Result<(ChipModel, usize)> {
    graph.check()?;
    let (&[input], &[output]) = (&graph.inputs[..], &graph.outputs[..]) else {
        return Err(err!(
            Unsupported,
            "the model has {} inputs and {} outputs",
            graph.inputs.len(),
            graph.outputs.len()
        )
        .at(name)
        .hint("use a model with one input and one output"));
    };
    let tensor = graph.tensor(input)?;
    let first = picture(tensor).map_err(|e| e.at(format!("input {}", tensor.name)))?;
    let mut work = GraphConverter {
        graph,
        model: ChipModel { name: name.into(), tensors: vec![first], layers: Vec::new() },
        places: BTreeMap::from([(input, ChipTensor { tensor: 0, before: [0, 0], is_padded: false })]),
        last: output,
    };
    for (n, operator) in graph.operators.iter().enumerate() {
        work.operator(operator).map_err(|e| e.at(graph.place(n)))?;
    }
    let last = work.last;
    let place = work.places.get(&last).copied();
    if work.model.layers.is_empty() || place.is_none_or(|p| p.tensor != work.model.output() || p.is_padded) {
        let what = "the model's output is not the output of its last layer";
        return Err(Error::new(ErrorKind::Unsupported, what)
            .at(name)
            .hint("use a chain of layers that ends in the model's output"));
    }
    Ok((work.model, last))
}

/// Chip tensor that holds a tensor of the graph.
#[derive(Clone, Copy)]
pub(super) struct ChipTensor {
    pub(super) tensor: usize,
    /// Rows and columns of padding that its reader adds in front.
    pub(super) before: [usize; 2],
    pub(super) is_padded: bool,
}

pub(super) struct GraphConverter<'a> {
    pub(super) graph: &'a Graph,
    pub(super) model: ChipModel,
    pub(super) places: BTreeMap<usize, ChipTensor>,
    /// Graph tensor that the model computes.
    last: usize,
}

pub(super) fn unsupported(what: impl Into<String>, hint: &str) -> Error {
    Error::new(ErrorKind::Unsupported, what).hint(hint)
}

/// Returns the image shape of a sample of a tensor.
pub(super) fn picture(tensor: &TfliteTensor) -> Result<ImageShape> {
    if tensor.ty.dtype != DType::I8 {
        let what = format!("{} is {}, but the chip computes in int8 (8 bits)", tensor.name, tensor.ty);
        return Err(unsupported(
            what,
            "run `systole quantize MODEL --per tensor --out FILE.tflite` to make an int8 model",
        ));
    }
    match *tensor.dims() {
        [1, c] => Ok(ImageShape::vector(c)),
        [1, width, channels] => Ok(ImageShape { height: 1, width, channels }),
        [1, height, width, channels] => Ok(ImageShape { height, width, channels }),
        _ => Err(unsupported(
            format!("{} is {}", tensor.name, tensor.ty),
            "use a vector, a sequence or an image per sample",
        )),
    }
}

impl GraphConverter<'_> {
    pub(super) fn tensor(&self, operator: &TfliteOperator, n: usize) -> Result<&TfliteTensor> {
        let index = operator.inputs.get(n).copied().flatten();
        self.graph.tensor(
            index
                .ok_or_else(|| unsupported(format!("its input {n} is missing"), "export the model again"))?,
        )
    }

    pub(super) fn made<'b>(&'b self, operator: &TfliteOperator) -> Result<&'b TfliteTensor> {
        self.graph.tensor(operator.outputs.first().copied().unwrap_or(usize::MAX))
    }

    /// Returns the chip tensor of an operand.
    fn place(&self, operator: &TfliteOperator, n: usize) -> Result<ChipTensor> {
        let index = operator.inputs.get(n).copied().flatten();
        let place = index.and_then(|i| self.places.get(&i));
        place.copied().ok_or_else(|| {
            unsupported(format!("its operand {n} is constant"), "pass constants only as weights")
        })
    }

    /// Returns the chip tensor of an operand without padding.
    pub(super) fn plain(&self, operator: &TfliteOperator, n: usize) -> Result<usize> {
        let place = self.place(operator, n)?;
        match place.is_padded {
            true => Err(unsupported("its input is a padded image", "use padding only before a convolution")),
            false => Ok(place.tensor),
        }
    }

    /// Adds a layer and returns its output tensor.
    pub(super) fn add(&mut self, name: String, inputs: Vec<usize>, to: ImageShape, op: ChipOp) -> usize {
        let output = self.model.tensors.len();
        self.model.tensors.push(to);
        self.model.layers.push(ChipLayer { name, inputs, output, op });
        output
    }

    pub(super) fn push(
        &mut self,
        operator: &TfliteOperator,
        inputs: Vec<usize>,
        to: ImageShape,
        op: ChipOp,
    ) -> Result<()> {
        let output = self.add(self.made(operator)?.name.clone(), inputs, to, op);
        self.set(operator, ChipTensor { tensor: output, before: [0, 0], is_padded: false });
        Ok(())
    }

    pub(super) fn set(&mut self, operator: &TfliteOperator, place: ChipTensor) {
        self.places.extend(operator.outputs.first().map(|&made| (made, place)));
    }

    fn operator(&mut self, o: &TfliteOperator) -> Result<()> {
        match o.op {
            LiteOp::Conv2D | LiteOp::DepthwiseConv2D => self.convolution(o),
            LiteOp::FullyConnected => self.dense(o),
            LiteOp::MaxPool2D | LiteOp::AveragePool2D => self.pool(o),
            LiteOp::Add | LiteOp::Sub | LiteOp::Mul => self.two(o),
            LiteOp::Split => self.split(o),
            LiteOp::Slice => self.slice(o),
            LiteOp::Concatenation => self.concatenation(o),
            LiteOp::Mean => self.mean(o),
            LiteOp::Pad => self.pad(o),
            LiteOp::Reshape | LiteOp::Squeeze | LiteOp::ExpandDims => self.reshape(o),
            LiteOp::Softmax => {
                if o.outputs.first() != Some(&self.last) {
                    return Err(unsupported(
                        "softmax is only supported as the last layer",
                        "move the softmax to the end of the model, where it runs on the host",
                    ));
                }
                self.last = o.inputs.first().copied().flatten().unwrap_or(self.last);
                Ok(())
            }
            LiteOp::Relu
            | LiteOp::Relu6
            | LiteOp::ReluN1To1
            | LiteOp::Logistic
            | LiteOp::Tanh
            | LiteOp::LeakyRelu
            | LiteOp::Elu
            | LiteOp::HardSwish
            | LiteOp::Gelu
            | LiteOp::Exp
            | LiteOp::Quantize => self.function(o),
            other => Err(unsupported(
                format!("{other} is not supported on the first TPU"),
                "remove the layer, or quantize only the part of the model before it; supported are dense layers, convolutions, pooling, \
                 recurrent layers, sums, products and activations",
            )),
        }
    }

    /// Returns the result's scale, and its zero point with the activation's range.
    fn output(&self, o: &TfliteOperator) -> Result<(f32, OutputRange)> {
        let (scale, zero) = self.made(o)?.scale()?;
        let (low, high) = activation_range(o.activation()?, scale, zero);
        Ok((scale, OutputRange { zero, low, high }))
    }

    /// Returns weights, bias, and the factor of the sums: `input · weights / output` in f64.
    fn weights(&self, o: &TfliteOperator, filters: usize) -> Result<(Vec<i8>, Vec<i32>, f64)> {
        let (x, w) = (self.tensor(o, 0)?, self.tensor(o, 1)?);
        let constant = |t: &TfliteTensor| {
            t.data.clone().ok_or_else(|| {
                unsupported(
                    format!("its weights or bias {} are not constant", t.name),
                    "use constant weights",
                )
            })
        };
        let values = constant(w)?.as_slice::<i8>()?.to_vec();
        let bias = match o.inputs.get(2).copied().flatten() {
            Some(b) => constant(self.graph.tensor(b)?)?.as_slice::<i32>()?.to_vec(),
            None => vec![0; filters],
        };
        let q = w.quantization.as_ref();
        let scale =
            q.and_then(|q| q.scale.first().copied().filter(|s| q.scale.iter().all(|other| other == s)));
        let scale = scale.ok_or_else(|| {
            unsupported(
                "its weights have per-channel scales, but the chip supports only per-tensor scales",
                "run `systole quantize MODEL --per tensor --out FILE.tflite`",
            )
        })?;
        if q.is_some_and(|q| q.zero_point.iter().any(|z| *z != 0)) {
            return Err(unsupported(
                "its weights have a zero point other than 0",
                "quantize them symmetrically",
            ));
        }
        let factor = f64::from(x.scale()?.0) * f64::from(scale) / f64::from(self.made(o)?.scale()?.0);
        Ok((values, bias, factor))
    }

    /// Returns the window geometry; padding follows from the output's size.
    fn window(
        &self,
        o: &TfliteOperator,
        size: [usize; 2],
        from: ImageShape,
        to: ImageShape,
        dilated: bool,
    ) -> ConvWindow {
        let at_least_1 = |field: OptionField| usize::try_from(o.int(field)).unwrap_or(1).max(1);
        let stride = [at_least_1(OptionField::StrideH), at_least_1(OptionField::StrideW)];
        let dilation = match dilated {
            true => [at_least_1(OptionField::DilationH), at_least_1(OptionField::DilationW)],
            false => [1, 1],
        };
        let before = |axis: usize, size_in: usize, size_out: usize| {
            let reach = (size[axis] - 1) * dilation[axis] + 1;
            (size_out.saturating_sub(1) * stride[axis] + reach).saturating_sub(size_in) / 2
        };
        let same = o.int(OptionField::Padding) == 0;
        let before =
            if same { [before(0, from.height, to.height), before(1, from.width, to.width)] } else { [0, 0] };
        ConvWindow { size, stride, dilation, before }
    }

    fn convolution(&mut self, o: &TfliteOperator) -> Result<()> {
        let place = self.place(o, 0)?;
        let (from, to) = (self.model.tensors[place.tensor], picture(self.made(o)?)?);
        let is_depthwise = o.op == LiteOp::DepthwiseConv2D;
        let dims = self.tensor(o, 1)?.dims().to_vec();
        let &[first, height, width, last] = &dims[..] else {
            return Err(unsupported("its weights are not rank 4", "export the model again"));
        };
        let filters = if is_depthwise { last } else { first };
        if !is_depthwise && last != from.channels {
            return Err(unsupported(
                "grouped convolutions are not supported",
                "use one group, or a depthwise convolution",
            ));
        }
        if height == 0 || width == 0 || place.is_padded && o.int(OptionField::Padding) == 0 {
            return Err(unsupported(
                "a padded convolution cannot follow a padding layer",
                "use padding=\"valid\" after a padding layer",
            ));
        }
        let (weights, bias, factor) = self.weights(o, filters)?;
        let mut window = self.window(o, [height, width], from, to, true);
        if place.is_padded {
            window.before = place.before;
        }
        let (input_zero, (_, output)) = (self.tensor(o, 0)?.scale()?.1, self.output(o)?);
        let scale = ScaleFactor::fixed(factor);
        let c = ChipConvolution { window, filters, is_depthwise, weights, bias, input_zero, scale, output };
        self.push(o, vec![place.tensor], to, ChipOp::Convolution(c))
    }

    fn dense(&mut self, o: &TfliteOperator) -> Result<()> {
        let source = self.plain(o, 0)?;
        let from = self.model.tensors[source];
        let &[filters, inputs] = self.tensor(o, 1)?.dims() else {
            return Err(unsupported("its weights are not rank 2", "export the model again"));
        };
        let (size, to) = match inputs == from.values() {
            true => ([from.height, from.width], ImageShape::vector(filters)),
            false if inputs == from.channels && o.is(OptionField::KeepNumDims) => {
                ([1, 1], ImageShape { channels: filters, ..from })
            }
            false => {
                return Err(unsupported(
                    format!("its weights have {inputs} inputs, but its operand is {from:?}"),
                    "flatten the image before it",
                ));
            }
        };
        let (weights, bias, factor) = self.weights(o, filters)?;
        let (input_zero, (_, output)) = (self.tensor(o, 0)?.scale()?.1, self.output(o)?);
        let c = ChipConvolution {
            window: ConvWindow::of(size),
            filters,
            is_depthwise: false,
            weights,
            bias,
            input_zero,
            scale: ScaleFactor::Real(factor),
            output,
        };
        self.push(o, vec![source], to, ChipOp::Convolution(c))
    }

    fn pool(&mut self, o: &TfliteOperator) -> Result<()> {
        let source = self.plain(o, 0)?;
        let (from, to) = (self.model.tensors[source], picture(self.made(o)?)?);
        let size = |field: OptionField| usize::try_from(o.int(field)).unwrap_or(1).max(1);
        let window =
            self.window(o, [size(OptionField::FilterH), size(OptionField::FilterW)], from, to, false);
        let is_mean = o.op == LiteOp::AveragePool2D;
        let output = self.output(o)?.1;
        self.push(o, vec![source], to, ChipOp::Pool { window, is_mean, output })
    }

    fn two(&mut self, o: &TfliteOperator) -> Result<()> {
        let sources = vec![self.operand(o, 0, 1)?, self.operand(o, 1, 0)?];
        let to = self.model.tensors[sources[0]];
        if self.model.tensors[sources[1]] != to {
            return Err(unsupported("its operands have different shapes", "use operands of the same shape"));
        }
        let ((a, a_zero), (b, b_zero)) = (self.tensor(o, 0)?.scale()?, self.tensor(o, 1)?.scale()?);
        let (scale, output) = self.output(o)?;
        let op = match o.op {
            LiteOp::Add | LiteOp::Sub => {
                let twice = 2.0 * f64::from(a.max(b));
                let operand = |scale: f32, zero| ScaledOperand {
                    zero,
                    scale: ScaleFactor::fixed(f64::from(scale) / twice),
                };
                let last = ScaleFactor::fixed(twice / (f64::from(1 << 20) * f64::from(scale)));
                let operands = [operand(a, a_zero), operand(b, b_zero)];
                let what = if o.op == LiteOp::Add { Arithmetic::Add } else { Arithmetic::Subtract };
                ChipOp::Arithmetic(what, operands, last, output)
            }
            _ => {
                let operand = |zero| ScaledOperand { zero, scale: ScaleFactor::Real(1.0) };
                ChipOp::Arithmetic(
                    Arithmetic::Multiply,
                    [operand(a_zero), operand(b_zero)],
                    ScaleFactor::fixed(f64::from(a * b / scale)),
                    output,
                )
            }
        };
        self.push(o, sources, to, op)
    }

    /// Converts a mean over rows and columns to a depthwise convolution with ones.
    fn mean(&mut self, o: &TfliteOperator) -> Result<()> {
        let source = self.plain(o, 0)?;
        let (from, to) = (self.model.tensors[source], picture(self.made(o)?)?);
        let axes = self.tensor(o, 1)?.data.as_ref().map(Literal::to_f64s).unwrap_or_default();
        // For a sequence, the time steps are the pixels.
        let of_all = match self.tensor(o, 0)?.dims().len() {
            3 => axes == [1.0],
            _ => axes == [1.0, 2.0],
        };
        if from.pixels() == 0 || to != ImageShape::vector(from.channels) || !of_all {
            return Err(unsupported(
                "only a mean over all rows and columns is supported",
                "use global average pooling",
            ));
        }
        let ((own, input_zero), (scale, zero)) = (self.tensor(o, 0)?.scale()?, self.made(o)?.scale()?);
        let (mut multiplier, mut shift) = quantize_multiplier(f64::from(own) / f64::from(scale));
        // 1 / n is folded into the multiplier, as in the reference kernel.
        let up = (from.pixels().ilog2() as i32).min(32).min(31 + shift).max(0);
        multiplier = ((i64::from(multiplier) << up) / from.pixels() as i64) as i32;
        shift -= up;
        let c = ChipConvolution {
            window: ConvWindow::of([from.height, from.width]),
            filters: from.channels,
            is_depthwise: true,
            weights: vec![1; from.values()],
            bias: vec![0; from.channels],
            input_zero,
            scale: ScaleFactor::Fixed { multiplier, shift },
            output: OutputRange { zero, low: -128, high: 127 },
        };
        self.push(o, vec![source], to, ChipOp::Convolution(c))
    }

    fn pad(&mut self, o: &TfliteOperator) -> Result<()> {
        let source = self.plain(o, 0)?;
        let pads = self.tensor(o, 1)?.data.as_ref().map(Literal::to_f64s).unwrap_or_default();
        let &[b0, b1, top, _, left, _, c0, c1] = &pads[..] else {
            return Err(unsupported("only images can be padded", "pad only rows and columns"));
        };
        if [b0, b1, c0, c1] != [0.0; 4] || self.tensor(o, 0)?.scale()? != self.made(o)?.scale()? {
            return Err(unsupported("channels cannot be padded", "pad only rows and columns"));
        }
        self.set(o, ChipTensor { tensor: source, before: [top as usize, left as usize], is_padded: true });
        Ok(())
    }

    /// Converts a reshape that keeps the order of values. Dense layers read images directly. The input may take the new
    /// shape.
    fn reshape(&mut self, o: &TfliteOperator) -> Result<()> {
        let source = self.plain(o, 0)?;
        let (from, to) = (self.model.tensors[source], picture(self.made(o)?)?);
        let is_flat = to.pixels() == 1 && to.channels == from.values();
        // The host provides the input in the shape that its only reader expects.
        let input = self.graph.inputs.first().copied();
        let readers = self.graph.operators.iter().filter(|other| other.inputs.contains(&input)).count();
        if o.inputs.first() == Some(&input) && readers == 1 && to.values() == from.values() {
            self.model.tensors[0] = to;
        } else if from.values() != to.values() || !(is_flat || from == to) {
            return Err(unsupported(
                format!("cannot reshape {from:?} to {to:?}"),
                "use a flatten, or reshape the model's input",
            ));
        }
        let place = ChipTensor { tensor: source, before: [0, 0], is_padded: false };
        self.set(o, place);
        Ok(())
    }

    /// Converts a unary function to a table, computed with the interpreter.
    fn function(&mut self, o: &TfliteOperator) -> Result<()> {
        let source = self.plain(o, 0)?;
        let quantization = |t: &TfliteTensor| t.quantization.clone().unwrap_or_default();
        let all = |name: &str, t: &TfliteTensor| {
            TfliteTensor::new(name, [1, 256], DType::I8).quantized(quantization(t))
        };
        picture(self.made(o)?)?;
        let mut operator = o.clone();
        (operator.inputs, operator.outputs) = (vec![Some(0)], vec![1]);
        let one = Graph {
            tensors: vec![all("x", self.tensor(o, 0)?), all("y", self.made(o)?)],
            operators: vec![operator],
            inputs: vec![0],
            outputs: vec![1],
            ..Graph::default()
        };
        let x =
            Literal::from_slice([1, 256], &std::array::from_fn::<i8, 256, _>(|n| (n as i32 - 128) as i8))?;
        let y = TfliteInterpreter::new(&one)?.run(&[x])?;
        let values =
            y.first().map(|y| y.as_slice::<i8>().map(<[i8]>::to_vec)).transpose()?.unwrap_or_default();
        let table: [i8; 256] = values.try_into().map_err(|_| {
            unsupported(
                "the interpreter cannot compute it for all 256 values",
                "use an element-wise function",
            )
        })?;
        let to = self.model.tensors[source];
        self.push(o, vec![source], to, ChipOp::Table(Box::new(table)))
    }
}
