//! Lowers convolutions to TFLite: converts Keras kernels `[h, w, in, out]` to `[out, h, w, in]`.

use super::activations::activate;
use super::call::QuantLayerCall;
use crate::builder::window;
use systole_ir::{Error, ErrorKind, Literal, Result, err};
use systole_nn::layers::Padding as Layout;
use systole_nn::{Activation, ConvolutionKind, ConvolutionLowering};
use systole_tflite::{OptionField, TfliteOp, TfliteOperator, TflitePadding};

pub(super) fn padding(of: Layout) -> Result<TflitePadding> {
    match of {
        Layout::Valid => Ok(TflitePadding::Valid),
        Layout::Same => Ok(TflitePadding::Same),
        Layout::Causal => Err(err!(Unsupported, "causal padding has no TFLite operator")
            .hint("pad with a ZeroPadding1D layer and convolve with padding \"valid\"")),
    }
}

/// Returns the sizes of an image; a sequence is an image of one row.
pub(super) fn of_picture(sizes: &[usize]) -> [usize; 2] {
    match *sizes {
        [one] => [1, one],
        [h, w, ..] => [h, w],
        [] => [1, 1],
    }
}

/// Permutes kernels `[h, w, in, out] → [out, h, w, in]`.
fn kernels(w: &Literal) -> Result<(Vec<usize>, Vec<f32>)> {
    let (dims, values) = (w.shape().dims().to_vec(), w.to_f32s());
    let &[h, kw, i, o] = &dims[..] else { return Err(err!(Bug, "unexpected kernel shape {dims:?}")) };
    let turned = (0..o).flat_map(|c| (0..h * kw * i).map(move |k| k * o + c)).map(|at| values[at]).collect();
    Ok((vec![o, h, kw, i], turned))
}

/// Parameters that all convolutions share.
struct ConvParams {
    strides: [usize; 2],
    dilation: [usize; 2],
    padding: TflitePadding,
    activation: Activation,
}

impl ConvParams {
    fn push(
        &self,
        call: &mut QuantLayerCall,
        name: &str,
        x: usize,
        (dims, w): (Vec<usize>, Vec<f32>),
        (bias, output): (Vec<f32>, Vec<usize>),
    ) -> Result<usize> {
        let w = call.b.floats(format!("{name}/kernel"), dims, &w)?;
        let bias = call.b.floats(format!("{name}/bias"), [bias.len()], &bias)?;
        let operator =
            window(TfliteOperator::new(TfliteOp::Conv2D, [x, w, bias], []), self.padding, self.strides)
                .with(OptionField::DilationH, self.dilation[0] as f64)
                .with(OptionField::DilationW, self.dilation[1] as f64);
        let y = call.b.push(name, output, operator);
        activate(call.b, name, y, self.activation)
    }
}

pub(super) fn convolution(call: &mut QuantLayerCall, own: &ConvolutionLowering) -> Result<usize> {
    if let ConvolutionKind::Transposed { has_output_padding } = own.kind
        && (has_output_padding || own.dilation.iter().any(|&d| d != 1))
    {
        let what = "a transposed convolution with output_padding or dilation has no TFLite operator";
        return Err(
            Error::new(ErrorKind::Unsupported, what).hint("use the default output_padding and dilation")
        );
    }
    let conv = ConvParams {
        strides: of_picture(&own.strides),
        dilation: of_picture(&own.dilation),
        padding: padding(own.padding)?,
        activation: own.activation,
    };
    match own.kind {
        ConvolutionKind::Plain if own.strides.len() == 1 => of_sequences(call, own.use_bias, &conv),
        ConvolutionKind::Plain => {
            let w = kernels(&call.weight("kernel")?)?;
            let bias = call.bias(own.use_bias, w.0[0])?;
            let (name, x, output) = (call.name(), call.input(), call.output.clone());
            conv.push(call, &name, x, w, (bias, output))
        }
        ConvolutionKind::Depthwise { .. } => depthwise(call, own.use_bias, &conv),
        ConvolutionKind::Separable => separable(call, own.use_bias, conv),
        ConvolutionKind::Transposed { .. } => transposed(call, own.use_bias, &conv),
    }
}

/// Lowers a 1D convolution as an image of one row.
fn of_sequences(call: &mut QuantLayerCall, use_bias: bool, conv: &ConvParams) -> Result<usize> {
    let w = call.weight("kernel")?;
    let dims = w.shape().dims().to_vec();
    let w = kernels(&w.reshape([vec![1], dims].concat())?)?;
    let bias = call.bias(use_bias, w.0[0])?;
    let (name, output) = (call.name(), call.output.clone());
    let x = row(call, &name)?;
    let y = conv.push(call, &name, x, w, (bias, vec![1, 1, output[1], output[2]]))?;
    call.b.readers[y] = 1;
    call.b.reshape(&format!("{name}/steps"), y, output)
}

/// Reshapes `f32[1, S, C] → f32[1, 1, S, C]`.
pub(super) fn row(call: &mut QuantLayerCall, name: &str) -> Result<usize> {
    let x = call.input();
    let dims = call.dims();
    call.b.reshape(&format!("{name}/row"), x, vec![1, 1, dims[1], dims[2]])
}

/// Permutes depthwise kernels `[h, w, C, m] → [1, h, w, C·m]`.
fn of_channels(call: &QuantLayerCall, weight: &str) -> Result<(Vec<usize>, Vec<f32>, usize)> {
    let w = call.weight(weight)?;
    let &[h, kw, c, m] = w.shape().dims() else {
        return Err(err!(Bug, "unexpected kernel shape {}", w.shape()));
    };
    Ok((vec![1, h, kw, c * m], w.to_f32s(), m))
}

fn push_depthwise(
    call: &mut QuantLayerCall,
    name: &str,
    (dims, w, m): (Vec<usize>, Vec<f32>, usize),
    bias: Vec<f32>,
    conv: &ConvParams,
    output: Vec<usize>,
) -> Result<usize> {
    let x = call.input();
    let w = call.b.floats(format!("{name}/kernel"), dims, &w)?;
    let bias = call.b.floats(format!("{name}/bias"), [bias.len()], &bias)?;
    let operator =
        window(TfliteOperator::new(TfliteOp::DepthwiseConv2D, [x, w, bias], []), conv.padding, conv.strides)
            .with(OptionField::DepthMultiplier, m as f64)
            .with(OptionField::DilationH, conv.dilation[0] as f64)
            .with(OptionField::DilationW, conv.dilation[1] as f64);
    Ok(call.b.push(name, output, operator))
}

fn depthwise(call: &mut QuantLayerCall, use_bias: bool, conv: &ConvParams) -> Result<usize> {
    let w = of_channels(call, "kernel")?;
    let bias = call.bias(use_bias, w.0[3])?;
    let (name, output) = (call.name(), call.output.clone());
    let y = push_depthwise(call, &name, w, bias, conv, output)?;
    activate(call.b, &name, y, conv.activation)
}

fn separable(call: &mut QuantLayerCall, use_bias: bool, conv: ConvParams) -> Result<usize> {
    let w = of_channels(call, "depthwise_kernel")?;
    let (name, output) = (call.name(), call.output.clone());
    let between = vec![1, output[1], output[2], w.0[3]];
    let none = vec![0.0; w.0[3]];
    let x = push_depthwise(call, &format!("{name}/depthwise"), w, none, &conv, between)?;
    let w = kernels(&call.weight("pointwise_kernel")?)?;
    let bias = call.bias(use_bias, w.0[0])?;
    let second = ConvParams { strides: [1, 1], dilation: [1, 1], padding: TflitePadding::Valid, ..conv };
    second.push(call, &name, x, w, (bias, output))
}

/// Lowers a transposed convolution; permutes kernels `[h, w, out, in] → [out, h, w, in]`.
fn transposed(call: &mut QuantLayerCall, use_bias: bool, conv: &ConvParams) -> Result<usize> {
    let w = call.weight("kernel")?;
    let (dims, values) = (w.shape().dims().to_vec(), w.to_f32s());
    let &[h, kw, o, i] = &dims[..] else { return Err(err!(Bug, "unexpected kernel shape {dims:?}")) };
    let turned: Vec<f32> = (0..o)
        .flat_map(|c| (0..h * kw).flat_map(move |k| (0..i).map(move |d| (k * o + c) * i + d)))
        .map(|at| values[at])
        .collect();
    let (name, x, output) = (call.name(), call.input(), call.output.clone());
    let bias = call.bias(use_bias, o)?;
    let shape: Vec<i32> = output.iter().map(|&d| d as i32).collect();
    let shape = call.b.ints(format!("{name}/shape"), [4], &shape)?;
    let w = call.b.floats(format!("{name}/kernel"), [o, h, kw, i], &turned)?;
    let bias = call.b.floats(format!("{name}/bias"), [o], &bias)?;
    let operator = window(
        TfliteOperator::new(TfliteOp::TransposeConv, [shape, w, x, bias], []),
        conv.padding,
        conv.strides,
    );
    let y = call.b.push(&name, output, operator);
    activate(call.b, &name, y, conv.activation)
}
