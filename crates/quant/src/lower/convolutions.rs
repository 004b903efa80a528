//! Convolutions: kernels of Keras's layout `[h, w, in, out]` as `[out, h, w, in]`.

use super::activations::activate;
use super::call::Call;
use crate::builder::window;
use systole_ir::{Error, ErrorKind, Literal, Result};
use systole_nn::Activation;
use systole_nn::layers::{self, Padding as Layout};
use systole_tflite::{Field, Op, Operator, Padding};

fn padding(of: Layout) -> Result<Padding> {
    match of {
        Layout::Valid => Ok(Padding::Valid),
        Layout::Same => Ok(Padding::Same),
        #[allow(unreachable_patterns)]
        _ => Err(Error::new(ErrorKind::Unsupported, "causal padding has no operator of .tflite here")
            .hint("pad with a ZeroPadding1D layer and convolve with padding \"valid\"")),
    }
}

/// `[h, w, in, out] → [out, h, w, in]`.
fn kernels(w: &Literal) -> Result<(Vec<usize>, Vec<f32>)> {
    let (dims, values) = (w.shape().dims().to_vec(), w.to_f32s());
    let &[h, kw, i, o] = &dims[..] else {
        return Err(Error::new(ErrorKind::Bug, format!("a kernel of shape {dims:?}")));
    };
    let turned = (0..o).flat_map(|c| (0..h * kw * i).map(move |k| k * o + c)).map(|at| values[at]).collect();
    Ok((vec![o, h, kw, i], turned))
}

/// What all convolutions have.
struct Conv {
    strides: [usize; 2],
    dilation: [usize; 2],
    padding: Padding,
    activation: Activation,
}

impl Conv {
    fn push(
        &self,
        call: &mut Call,
        name: &str,
        x: usize,
        (dims, w): (Vec<usize>, Vec<f32>),
        (bias, output): (Vec<f32>, Vec<usize>),
    ) -> Result<usize> {
        let w = call.b.floats(format!("{name}/kernel"), dims, &w)?;
        let bias = call.b.floats(format!("{name}/bias"), [bias.len()], &bias)?;
        let operator = window(Operator::new(Op::Conv2D, [x, w, bias], []), self.padding, self.strides)
            .with(Field::DilationH, self.dilation[0] as f64)
            .with(Field::DilationW, self.dilation[1] as f64);
        let y = call.b.push(name, output, operator);
        activate(call.b, name, y, self.activation)
    }
}

pub(super) fn conv2d(call: &mut Call) -> Result<usize> {
    let a: layers::Conv2D = call.arguments()?;
    let bias = call.bias(a.use_bias, a.filters)?;
    let conv = Conv {
        strides: a.strides.dims(),
        dilation: a.dilation_rate.dims(),
        padding: padding(a.padding)?,
        activation: a.activation,
    };
    let w = kernels(&call.weight("kernel")?)?;
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    conv.push(call, &name, x, w, (bias, output))
}

/// A picture of one row.
pub(super) fn conv1d(call: &mut Call) -> Result<usize> {
    let a: layers::Conv1D = call.arguments()?;
    let config = call.node.layer.layer().config();
    if config.get("padding").and_then(serde_json::Value::as_str) == Some("causal") {
        return Err(Error::new(ErrorKind::Unsupported, "causal padding has no operator of .tflite here")
            .hint("pad with a ZeroPadding1D layer and convolve with padding \"valid\""));
    }
    let same = config.get("padding").and_then(serde_json::Value::as_str) == Some("same");
    let bias = call.bias(a.use_bias, a.filters)?;
    let conv = Conv {
        strides: [1, a.strides.0[0]],
        dilation: [1, a.dilation_rate.0[0]],
        padding: if same { Padding::Same } else { Padding::Valid },
        activation: a.activation,
    };
    let w = call.weight("kernel")?;
    let dims = w.shape().dims().to_vec();
    let w = kernels(&w.reshape([vec![1], dims].concat())?)?;
    let (name, output) = (call.name(), call.output.clone());
    let x = row(call, &name)?;
    let y = conv.push(call, &name, x, w, (bias, vec![1, 1, output[1], output[2]]))?;
    call.b.readers[y] = 1;
    call.b.reshape(&format!("{name}/steps"), y, output)
}

/// `f32[1, S, C] → f32[1, 1, S, C]`.
pub(super) fn row(call: &mut Call, name: &str) -> Result<usize> {
    let x = call.input();
    let dims = call.dims();
    call.b.reshape(&format!("{name}/row"), x, vec![1, 1, dims[1], dims[2]])
}

/// `[h, w, C, m] → [1, h, w, C·m]`.
fn of_channels(call: &Call, weight: &str) -> Result<(Vec<usize>, Vec<f32>, usize)> {
    let w = call.weight(weight)?;
    let &[h, kw, c, m] = w.shape().dims() else {
        return Err(Error::new(ErrorKind::Bug, format!("a kernel of shape {}", w.shape())));
    };
    Ok((vec![1, h, kw, c * m], w.to_f32s(), m))
}

fn push_depthwise(
    call: &mut Call,
    name: &str,
    (dims, w, m): (Vec<usize>, Vec<f32>, usize),
    bias: Vec<f32>,
    conv: &Conv,
    output: Vec<usize>,
) -> Result<usize> {
    let x = call.input();
    let w = call.b.floats(format!("{name}/kernel"), dims, &w)?;
    let bias = call.b.floats(format!("{name}/bias"), [bias.len()], &bias)?;
    let operator = window(Operator::new(Op::DepthwiseConv2D, [x, w, bias], []), conv.padding, conv.strides)
        .with(Field::DepthMultiplier, m as f64)
        .with(Field::DilationH, conv.dilation[0] as f64)
        .with(Field::DilationW, conv.dilation[1] as f64);
    Ok(call.b.push(name, output, operator))
}

pub(super) fn depthwise(call: &mut Call) -> Result<usize> {
    let a: layers::DepthwiseConv2D = call.arguments()?;
    let w = of_channels(call, "kernel")?;
    let bias = call.bias(a.use_bias, w.0[3])?;
    let conv = Conv {
        strides: a.strides.dims(),
        dilation: a.dilation_rate.dims(),
        padding: padding(a.padding)?,
        activation: a.activation,
    };
    let (name, output) = (call.name(), call.output.clone());
    let y = push_depthwise(call, &name, w, bias, &conv, output)?;
    activate(call.b, &name, y, conv.activation)
}

pub(super) fn separable(call: &mut Call) -> Result<usize> {
    let a: layers::SeparableConv2D = call.arguments()?;
    let w = of_channels(call, "depthwise_kernel")?;
    let (name, output) = (call.name(), call.output.clone());
    let between = vec![1, output[1], output[2], w.0[3]];
    let first = Conv {
        strides: a.strides.0,
        dilation: a.dilation_rate.0,
        padding: padding(a.padding)?,
        activation: Activation::Linear,
    };
    let none = vec![0.0; w.0[3]];
    let x = push_depthwise(call, &format!("{name}/depthwise"), w, none, &first, between)?;
    let bias = call.bias(a.use_bias, a.filters)?;
    let w = kernels(&call.weight("pointwise_kernel")?)?;
    let second =
        Conv { strides: [1, 1], dilation: [1, 1], padding: Padding::Valid, activation: a.activation };
    second.push(call, &name, x, w, (bias, output))
}

/// `[h, w, out, in] → [out, h, w, in]`.
pub(super) fn transposed(call: &mut Call) -> Result<usize> {
    let a: layers::Conv2DTranspose = call.arguments()?;
    if a.output_padding.is_some() || a.dilation_rate.0 != [1, 1] {
        let what = "a transposed convolution with output_padding or dilation has no operator of .tflite";
        return Err(Error::new(ErrorKind::Unsupported, what).hint("leave both at their defaults"));
    }
    let w = call.weight("kernel")?;
    let (dims, values) = (w.shape().dims().to_vec(), w.to_f32s());
    let &[h, kw, o, i] = &dims[..] else {
        return Err(Error::new(ErrorKind::Bug, format!("a kernel of shape {dims:?}")));
    };
    let turned: Vec<f32> = (0..o)
        .flat_map(|c| (0..h * kw).flat_map(move |k| (0..i).map(move |d| (k * o + c) * i + d)))
        .map(|at| values[at])
        .collect();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let bias = call.bias(a.use_bias, o)?;
    let shape: Vec<i32> = output.iter().map(|&d| d as i32).collect();
    let shape = call.b.ints(format!("{name}/shape"), [4], &shape)?;
    let w = call.b.floats(format!("{name}/kernel"), [o, h, kw, i], &turned)?;
    let bias = call.b.floats(format!("{name}/bias"), [o], &bias)?;
    let operator =
        window(Operator::new(Op::TransposeConv, [shape, w, x, bias], []), padding(a.padding)?, a.strides.0);
    let y = call.b.push(&name, output, operator);
    activate(call.b, &name, y, a.activation)
}
