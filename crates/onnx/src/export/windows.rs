//! Convolutions, poolings and pictures of other sizes: with channels second, as ONNX has them.

use super::emit::{Emit, Order, operand_of};
use crate::model::{Attribute, Node};
use systole_base::{Error, ErrorKind, Result};
use systole_tflite::{Activation, Field, Op, Operator};

/// Rows and columns.
fn picture(e: &Emit, t: usize) -> Result<[usize; 4]> {
    let dims = e.tensor(t)?.dims();
    dims.try_into().map_err(|_| Error::new(ErrorKind::Unsupported, format!("a picture of shape {dims:?}")))
}

fn fields(o: &Operator, [h, w]: [Field; 2]) -> [usize; 2] {
    [h, w].map(|f| usize::try_from(o.int(f)).unwrap_or(0).max(1))
}

const STRIDES: [Field; 2] = [Field::StrideH, Field::StrideW];
const DILATIONS: [Field; 2] = [Field::DilationH, Field::DilationW];

/// Before both, then after both, for so many windows.
fn pads(input: [usize; 2], output: [usize; 2], reach: [usize; 2], strides: [usize; 2]) -> [i64; 4] {
    let all = [0, 1].map(|i| {
        let need = (output[i].max(1) - 1) * strides[i] + reach[i];
        need.saturating_sub(input[i]) as i64
    });
    [all[0] / 2, all[1] / 2, all[0] - all[0] / 2, all[1] - all[1] / 2]
}

fn signed(v: [usize; 2]) -> [i64; 2] {
    v.map(|v| v as i64)
}

pub(super) fn convolution(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (x, w, bias) = (operand_of(o, 0)?, operand_of(o, 1)?, operand_of(o, 2)?);
    let ([_, h, wide, channels], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let [_, kh, kw, inner] = picture(e, w)?;
    let (permutation, group) = match o.op {
        Op::DepthwiseConv2D => ([3, 0, 1, 2], channels),
        _ => ([0, 3, 1, 2], channels / inner.max(1)),
    };
    let (strides, dilations) = (fields(o, STRIDES), fields(o, DILATIONS));
    let reach = [(kh - 1) * dilations[0] + 1, (kw - 1) * dilations[1] + 1];
    let around = pads([h, wide], [oh, ow], reach, strides);
    let inputs = [e.real(x, Order::First)?, e.weights(w, &permutation)?, e.weights(bias, &[0])?];
    e.finish(y, Order::First, o.activation()?, |out| {
        Node::new("Conv", inputs, out)
            .ints("kernel_shape", signed([kh, kw]))
            .ints("strides", signed(strides))
            .ints("dilations", signed(dilations))
            .ints("pads", around)
            .with("group", Attribute::Int(group as i64))
    })
}

pub(super) fn transposed(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let (w, x) = (operand_of(o, 1)?, operand_of(o, 2)?);
    let ([_, h, wide, _], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let [_, kh, kw, _] = picture(e, w)?;
    let strides = fields(o, STRIDES);
    let (mut around, mut more) = ([0; 4], [0; 2]);
    for (i, (n, out, k)) in [(h, oh, kh), (wide, ow, kw)].into_iter().enumerate() {
        let whole = (n - 1) * strides[i] + k;
        let cut = whole.saturating_sub(out) as i64;
        (around[i], around[i + 2]) = (cut / 2, cut - cut / 2);
        more[i] = out.saturating_sub(whole) as i64;
    }
    let mut inputs = vec![e.real(x, Order::First)?, e.weights(w, &[3, 0, 1, 2])?];
    if let Some(bias) = o.inputs.get(3).copied().flatten() {
        inputs.push(e.weights(bias, &[0])?);
    }
    e.finish(y, Order::First, o.activation()?, |out| {
        Node::new("ConvTranspose", inputs, out)
            .ints("kernel_shape", signed([kh, kw]))
            .ints("strides", signed(strides))
            .ints("pads", around)
            .ints("output_padding", more)
    })
}

pub(super) fn pool(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let x = operand_of(o, 0)?;
    let ([_, h, w, _], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let (strides, kernel) = (fields(o, STRIDES), fields(o, [Field::FilterH, Field::FilterW]));
    let around = pads([h, w], [oh, ow], kernel, strides);
    let input = e.real(x, Order::First)?;
    // Padding does not count in averages, as is the default there too.
    let op = if o.op == Op::MaxPool2D { "MaxPool" } else { "AveragePool" };
    e.finish(y, Order::First, o.activation()?, |out| {
        Node::new(op, [input], out)
            .ints("kernel_shape", signed(kernel))
            .ints("strides", signed(strides))
            .ints("pads", around)
    })
}

pub(super) fn resize(e: &mut Emit, o: &Operator, y: usize) -> Result<()> {
    let x = operand_of(o, 0)?;
    let ([_, h, w, _], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let coordinates = match (o.is(Field::AlignCorners), o.is(Field::HalfPixelCenters)) {
        (true, _) => "align_corners",
        (_, true) => "half_pixel",
        _ => "asymmetric",
    };
    let (mode, nearest) = match (o.op, coordinates) {
        (Op::ResizeBilinear, _) => ("linear", "floor"),
        (_, "align_corners") => ("nearest", "round_prefer_ceil"),
        (_, _) => ("nearest", "floor"),
    };
    let scales = [1.0, 1.0, oh as f32 / h as f32, ow as f32 / w as f32];
    let reached = [h as f32 * scales[2], w as f32 * scales[3]].map(|v| v.floor() as usize);
    if reached != [oh, ow] {
        return Err(Error::new(ErrorKind::Unsupported, format!("{h} × {w} pixels as {oh} × {ow}"))
            .hint("enlarge by whole factors"));
    }
    let own = e.names[y].clone();
    let scales = e.constant(&format!("{own}/scales"), systole_base::Literal::from_slice([4], &scales)?);
    let input = e.real(x, Order::First)?;
    let word = |w: &str| Attribute::Text(w.into());
    e.finish(y, Order::First, Activation::None, |out| {
        Node::new("Resize", [input, String::new(), scales], out)
            .with("mode", word(mode))
            .with("coordinate_transformation_mode", word(coordinates))
            .with("nearest_mode", word(nearest))
    })
}
