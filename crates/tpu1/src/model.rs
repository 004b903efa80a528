//! Int8 model format that the TPU v1 compiler reads (per-tensor scales), and its reference evaluation.

use crate::rescale::{ScaleFactor, mean};
use systole_base::{Error, ErrorKind, Result};

/// Shape of an image of one sample: `i8[height, width, channels]`. A vector has one pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Values per pixel.
    pub channels: usize,
}

impl ImageShape {
    /// Returns the shape of a vector: one pixel with `channels` channels.
    pub fn vector(channels: usize) -> ImageShape {
        ImageShape { height: 1, width: 1, channels }
    }

    /// Returns the number of pixels of the image.
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Returns the number of values of the image.
    pub fn values(&self) -> usize {
        self.pixels() * self.channels
    }
}

/// Geometry of a convolution or pooling window; each field is `[rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvWindow {
    /// Window size in taps.
    pub size: [usize; 2],
    /// Pixels between windows.
    pub stride: [usize; 2],
    /// Pixels between taps.
    pub dilation: [usize; 2],
    /// Padding at the top and on the left.
    pub before: [usize; 2],
}

impl ConvWindow {
    /// Creates a window of this size with stride 1, dilation 1 and no padding.
    pub fn of(size: [usize; 2]) -> ConvWindow {
        ConvWindow { size, stride: [1, 1], dilation: [1, 1], before: [0, 0] }
    }

    /// Returns the row and column that a tap reads for an output position, or `None` if it is padding.
    fn at(&self, place: [usize; 2], tap: [usize; 2], picture: ImageShape) -> Option<[usize; 2]> {
        let along = |axis: usize, size: usize| {
            let at = place[axis] * self.stride[axis] + tap[axis] * self.dilation[axis];
            at.checked_sub(self.before[axis]).filter(|at| *at < size)
        };
        Some([along(0, picture.height)?, along(1, picture.width)?])
    }
}

/// Zero point and range of a quantized layer result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputRange {
    /// Zero point.
    pub zero: i32,
    /// Minimum; `relu` sets this limit.
    pub low: i32,
    /// Maximum.
    pub high: i32,
}

impl OutputRange {
    pub(crate) fn of(self, x: i32) -> i8 {
        x.saturating_add(self.zero).max(self.low).min(self.high) as i8
    }
}

/// A convolution layer of TPU v1. A dense layer is a convolution whose window is the whole image.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipConvolution {
    /// Window geometry.
    pub window: ConvWindow,
    /// Number of output channels.
    pub filters: usize,
    /// Whether it is depthwise: each input channel has `filters / channels` output channels of its own.
    pub is_depthwise: bool,
    /// `i8[filters, height, width, channels]`; depthwise `i8[height, width, filters]`.
    pub weights: Vec<i8>,
    /// Bias of each filter.
    pub bias: Vec<i32>,
    /// Zero point of the input.
    pub input_zero: i32,
    /// Scale of the accumulators.
    pub scale: ScaleFactor,
    /// Zero point and range of the result.
    pub output: OutputRange,
}

/// Quantization parameters of an operand of an arithmetic op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaledOperand {
    /// Zero point.
    pub zero: i32,
    /// Scale; not used by products.
    pub scale: ScaleFactor,
}

/// Element-wise arithmetic op on two tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Sum.
    Add,
    /// Difference: first minus second.
    Subtract,
    /// Product.
    Multiply,
}

/// Operation of a TPU v1 layer: convolution, pooling, arithmetic or data movement.
#[derive(Clone, Debug, PartialEq)]
pub enum ChipOp {
    /// Convolution or dense layer.
    Convolution(ChipConvolution),
    /// Max or average pooling; padding is excluded.
    Pool {
        /// Window geometry.
        window: ConvWindow,
        /// Whether it is average pooling.
        is_mean: bool,
        /// Range of the result.
        output: OutputRange,
    },
    /// Element-wise arithmetic. For a sum or difference each operand `· 2²⁰` is scaled, then the result.
    Arithmetic(Arithmetic, [ScaledOperand; 2], ScaleFactor, OutputRange),
    /// Unary function as a lookup table: `table[value + 128]`.
    Table(Box<[i8; 256]>),
    /// Crop of an image, from this row and column on.
    Crop([usize; 2]),
    /// Concatenates the pixels of several images to one row.
    Join,
}

impl ChipOp {
    /// Returns the number of input tensors, or `None` if it is variable.
    fn operands(&self) -> Option<usize> {
        match self {
            ChipOp::Arithmetic(..) => Some(2),
            ChipOp::Join => None,
            _ => Some(1),
        }
    }
}

/// Left shift of operands of a sum before they are scaled.
pub(crate) const ADD_SHIFT: u32 = 20;

/// A TPU v1 layer: an operation with its input and output tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipLayer {
    /// Name, used in errors.
    pub name: String,
    /// Indices of the input tensors.
    pub inputs: Vec<usize>,
    /// Index of the output tensor.
    pub output: usize,
    /// Operation.
    pub op: ChipOp,
}

/// Int8 model: layers in execution order. Tensor 0 is the input; the last layer's output is the model's output.
#[derive(Clone, Debug, PartialEq)]
pub struct ChipModel {
    /// Name of the model.
    pub name: String,
    /// Shapes of all tensors, per sample.
    pub tensors: Vec<ImageShape>,
    /// Layers in execution order.
    pub layers: Vec<ChipLayer>,
}

impl ChipModel {
    /// Returns the shape of the model's input.
    pub fn input(&self) -> ImageShape {
        self.tensors.first().copied().unwrap_or(ImageShape::vector(0))
    }

    /// Returns the index of the TPU v1 model's output tensor.
    pub fn output(&self) -> usize {
        self.layers.last().map_or(0, |l| l.output)
    }

    /// Checks that all sizes of the model match.
    ///
    /// # Errors
    /// If the sizes of a layer do not match; the error names the layer.
    pub fn check(&self) -> Result<()> {
        let mut known = vec![false; self.tensors.len()];
        if let Some(first) = known.first_mut() {
            *first = true;
        }
        for layer in &self.layers {
            let wrong =
                |what: String| Err(Error::new(ErrorKind::Data, what).at(format!("layer `{}`", layer.name)));
            let wanted = layer.op.operands().unwrap_or(layer.inputs.len()).max(1);
            if layer.inputs.len() != wanted || layer.inputs.iter().any(|i| known.get(*i) != Some(&true)) {
                return wrong(format!("its inputs {:?} are not {wanted} computed tensors", layer.inputs));
            }
            let Some(output) = self.tensors.get(layer.output) else {
                return wrong(format!("its output tensor {} does not exist", layer.output));
            };
            if std::mem::replace(&mut known[layer.output], true) {
                return wrong(format!(
                    "its output tensor {} is already computed by another layer",
                    layer.output
                ));
            }
            let input = self.tensors[layer.inputs[0]];
            if let Some(what) =
                misfit(&layer.op, layer.inputs.iter().map(|i| self.tensors[*i]), input, *output)
            {
                return wrong(what);
            }
        }
        Ok(())
    }

    /// Evaluates the model on one sample with plain loops: `i8[height, width, channels] → i8[…]`. Call `check` first.
    pub fn evaluate(&self, input: &[i8]) -> Vec<i8> {
        let mut values: Vec<Vec<i8>> = vec![Vec::new(); self.tensors.len()];
        values[0] = input.to_vec();
        for layer in &self.layers {
            let (from, to) = (self.tensors[layer.inputs[0]], self.tensors[layer.output]);
            let x = |n: usize| &values[layer.inputs[n]];
            values[layer.output] = match &layer.op {
                ChipOp::Convolution(c) => convolve(c, x(0), from, to),
                ChipOp::Pool { window, is_mean, output } => pool(window, *is_mean, *output, x(0), from, to),
                ChipOp::Arithmetic(what, operands, scale, output) => {
                    let pairs = x(0).iter().zip(x(1));
                    pairs.map(|(a, b)| what.of(*operands, *scale, *output, *a, *b)).collect()
                }
                ChipOp::Table(table) => x(0).iter().map(|v| looked_up(table, *v)).collect(),
                ChipOp::Crop([line, column]) => {
                    let pixels = places(to).map(|[y, x]| (y + line) * from.width + x + column);
                    pixels.flat_map(|p| x(0)[p * from.channels..][..from.channels].iter().copied()).collect()
                }
                ChipOp::Join => (0..layer.inputs.len()).flat_map(|n| x(n).iter().copied()).collect(),
            };
        }
        values.swap_remove(self.output())
    }
}

/// Returns why a layer's sizes do not match, if so.
fn misfit(
    op: &ChipOp,
    mut all: impl Iterator<Item = ImageShape>,
    input: ImageShape,
    output: ImageShape,
) -> Option<String> {
    let told = |what: &str| Some(format!("{what} do not match the shapes {input:?} → {output:?}"));
    match op {
        ChipOp::Convolution(c) => {
            let taps = c.window.size[0] * c.window.size[1];
            let weights = if c.is_depthwise { taps * c.filters } else { taps * c.filters * input.channels };
            let grouped = !c.is_depthwise || input.channels > 0 && c.filters.is_multiple_of(input.channels);
            let fits =
                c.weights.len() == weights && c.bias.len() == c.filters && output.channels == c.filters;
            if fits && grouped && !c.window.stride.contains(&0) { None } else { told("its weights") }
        }
        ChipOp::Pool { window, .. } => {
            let fits = input.channels == output.channels && !window.stride.contains(&0);
            if fits { None } else { told("channels") }
        }
        ChipOp::Crop([line, column]) => {
            let fits = input.channels == output.channels
                && output.height.checked_add(*line).is_some_and(|end| end <= input.height)
                && output.width.checked_add(*column).is_some_and(|end| end <= input.width);
            if fits { None } else { told("its offset and size") }
        }
        ChipOp::Join => {
            let fits = |(pixels, same): (usize, bool)| pixels == output.width && same && output.height == 1;
            let all =
                all.fold((0, true), |(n, same), p| (n + p.pixels(), same && p.channels == output.channels));
            if fits(all) { None } else { told("its operands") }
        }
        ChipOp::Arithmetic(..) | ChipOp::Table(_) => {
            if all.all(|p| p == output) {
                None
            } else {
                told("its operands")
            }
        }
    }
}

fn taps(window: &ConvWindow) -> impl Iterator<Item = [usize; 2]> + use<> {
    let [lines, columns] = window.size;
    (0..lines).flat_map(move |r| (0..columns).map(move |s| [r, s]))
}

fn places(picture: ImageShape) -> impl Iterator<Item = [usize; 2]> {
    (0..picture.height).flat_map(move |y| (0..picture.width).map(move |x| [y, x]))
}

fn convolve(c: &ChipConvolution, x: &[i8], from: ImageShape, to: ImageShape) -> Vec<i8> {
    let mut y = Vec::with_capacity(to.values());
    for place in places(to) {
        for filter in 0..c.filters {
            let mut sum = c.bias[filter];
            for tap @ [r, s] in taps(&c.window) {
                let Some([line, column]) = c.window.at(place, tap, from) else { continue };
                let pixel = (line * from.width + column) * from.channels;
                let tap = r * c.window.size[1] + s;
                let mut add = |channel: usize, weight: i8| {
                    let value = i32::from(x[pixel + channel]) - c.input_zero;
                    sum = sum.wrapping_add(i32::from(weight) * value);
                };
                match c.is_depthwise {
                    true => add(filter / (c.filters / from.channels), c.weights[tap * c.filters + filter]),
                    false => {
                        let first = (filter * c.window.size[0] * c.window.size[1] + tap) * from.channels;
                        (0..from.channels).for_each(|channel| add(channel, c.weights[first + channel]));
                    }
                }
            }
            y.push(c.output.of(c.scale.apply(sum)));
        }
    }
    y
}

fn pool(
    window: &ConvWindow,
    is_mean: bool,
    output: OutputRange,
    x: &[i8],
    from: ImageShape,
    to: ImageShape,
) -> Vec<i8> {
    let mut y = Vec::with_capacity(to.values());
    for place in places(to) {
        for channel in 0..to.channels {
            let inside = taps(window).filter_map(|tap| window.at(place, tap, from));
            let values: Vec<i8> =
                inside.map(|[l, c]| x[(l * from.width + c) * from.channels + channel]).collect();
            y.push(pooled(is_mean, output, &values));
        }
    }
    y
}

/// Returns the maximum or the mean of values.
pub(crate) fn pooled(is_mean: bool, output: OutputRange, values: &[i8]) -> i8 {
    let value = match is_mean {
        true => mean(values.iter().map(|v| i32::from(*v)).sum(), values.len() as i32),
        false => values.iter().map(|v| i32::from(*v)).max().unwrap_or(-128),
    };
    value.max(output.low).min(output.high) as i8
}

impl Arithmetic {
    /// Computes the result for two values.
    pub(crate) fn of(
        self,
        [left, right]: [ScaledOperand; 2],
        scale: ScaleFactor,
        output: OutputRange,
        a: i8,
        b: i8,
    ) -> i8 {
        let (a, b) = (i32::from(a) - left.zero, i32::from(b) - right.zero);
        let scaled = |of: ScaledOperand, x: i32| of.scale.apply(x << ADD_SHIFT);
        output.of(scale.apply(match self {
            Arithmetic::Add => scaled(left, a).wrapping_add(scaled(right, b)),
            Arithmetic::Subtract => scaled(left, a).wrapping_sub(scaled(right, b)),
            Arithmetic::Multiply => a * b,
        }))
    }
}

pub(crate) fn looked_up(table: &[i8; 256], value: i8) -> i8 {
    table[(i32::from(value) + 128) as usize]
}

// Names of the previous version.
systole_base::renamed! { Convolution => ChipConvolution, Layer => ChipLayer, Model => ChipModel, Op => ChipOp, Operand => ScaledOperand, Output => OutputRange, Picture => ImageShape, Window => ConvWindow }
