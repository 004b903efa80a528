//! Imports and exports ONNX convolutions and pooling over `[N, C, …]`, computed with channels last.

use super::call::{NodeCall, RuleResult, checked, moved, output, unsupported};
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of};
use super::op_row::{TfliteSource, operators};
use super::pooling::max_with_places;
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{DType, Literal, Result, ensure, err};
use systole_ir::Tensor;
use systole_ir::op::{ConvDims, Convolution, Monoid, Window};
use systole_tflite::{FusedActivation, OptionField, TfliteOp, TfliteOperator};

operators! {
    "AveragePool" 1..22: average_pool => AveragePool2D write_pool;
    "Conv" 1..22: conv => Conv2D write_convolution => DepthwiseConv2D write_convolution;
    "ConvTranspose" 1..22: conv_transpose => TransposeConv write_transposed;
    "DepthToSpace" 1..28: depth_to_space => DepthToSpace write_blocks;
    "GlobalAveragePool" 1..22: |c| global_pool(c, false);
    "GlobalMaxPool" 1..22: |c| global_pool(c, true);
    "MaxPool" 1..22: max_pool => MaxPool2D write_pool;
    "SpaceToDepth" 1..28: space_to_depth => SpaceToDepth write_blocks;
}

/// Maximum window sizes and strides; sums of their products do not overflow.
const LARGEST: usize = 1 << 24;

/// Geometry of a window: sizes, strides, padding.
pub(super) struct OnnxWindow {
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    /// Padding before and after each dimension.
    padding: Vec<[i64; 2]>,
    /// Padding in the file, without what ceil_mode adds at the end.
    written: Vec<[i64; 2]>,
}

impl OnnxWindow {
    pub(super) fn of(c: &NodeCall, input: &[usize], kernel: Vec<usize>) -> Result<OnnxWindow> {
        let n = kernel.len();
        let sized = |name: &str| -> Result<Vec<usize>> {
            let list = c.sizes(name)?.unwrap_or(vec![1; n]);
            match list.len() == n && list.iter().all(|v| (1..=LARGEST).contains(v)) {
                true => Ok(list),
                false => Err(broken(format!("attribute {name} must have {n} dimensions, got {list:?}"))),
            }
        };
        if input.len() != n || kernel.iter().any(|k| !(1..=LARGEST).contains(k)) {
            return Err(broken(format!("window {kernel:?} does not fit input {input:?}")));
        }
        let mut moves = OnnxWindow {
            strides: sized("strides")?,
            dilations: sized("dilations")?,
            padding: vec![[0, 0]; n],
            written: Vec::new(),
            kernel,
        };
        moves.padding = moves.written_padding(c, input)?;
        moves.written = moves.padding.clone();
        if c.is("ceil_mode", false)? {
            moves.whole_windows(input);
        }
        Ok(moves)
    }

    /// Returns the distance from the first to the last element of a window.
    fn reach(&self, i: usize) -> i64 {
        ((self.kernel[i] - 1).saturating_mul(self.dilations[i]) + 1) as i64
    }

    fn written_padding(&self, c: &NodeCall, input: &[usize]) -> Result<Vec<[i64; 2]>> {
        let n = self.kernel.len();
        let auto = c.word("auto_pad", "NOTSET")?;
        let pads = c.ints("pads")?;
        match auto.as_str() {
            "VALID" => Ok(vec![[0, 0]; n]),
            "SAME_UPPER" | "SAME_LOWER" => Ok((0..n)
                .map(|i| {
                    let out = input[i].div_ceil(self.strides[i]).max(1) as i64;
                    let all = (out - 1) * self.strides[i] as i64 + self.reach(i) - input[i] as i64;
                    let (less, more) = (all.max(0) / 2, all.max(0) - all.max(0) / 2);
                    if auto == "SAME_UPPER" { [less, more] } else { [more, less] }
                })
                .collect()),
            "NOTSET" | "" => {
                let pads = pads.unwrap_or(vec![0; 2 * n]);
                ensure!(pads.len() == 2 * n, broken(format!("pads must have {n} dimensions, got {pads:?}")));
                (0..n).map(|i| Ok([moved(pads[i])?, moved(pads[i + n])?])).collect()
            }
            other => Err(unsupported(format!("unsupported auto_pad {other}"))),
        }
    }

    /// Adds padding at the end for ceil_mode, unless the last window would start in it.
    fn whole_windows(&mut self, input: &[usize]) {
        for (i, &size) in input.iter().enumerate() {
            let (stride, size) = (self.strides[i] as i64, size as i64);
            let [low, high] = self.padding[i];
            let room = size + low + high - self.reach(i);
            if room < 0 {
                continue;
            }
            let mut out = (room + stride - 1) / stride + 1;
            if (out - 1) * stride >= size + low {
                out -= 1;
            }
            let need = (out - 1) * stride + self.reach(i) - size - low;
            self.padding[i][1] = high.max(need);
        }
    }

    /// Returns the window over `[N, C, …]`.
    pub(super) fn window(&self) -> Window {
        let behind = |v: &[usize]| [&[1, 1][..], v].concat();
        let padding = [&[[0, 0]; 2][..], &self.padding].concat();
        let mut window = Window::new(&behind(&self.kernel), &behind(&self.strides), &padding);
        window.window_dilations = behind(&self.dilations).into();
        window
    }
}

/// `x: T[N, C, …] → T[N, …, C]`
pub(super) fn channels_last(x: &Tensor) -> Tensor {
    x.transpose(&[0].into_iter().chain(2..x.rank()).chain([1]).collect::<Vec<_>>())
}

/// `x: T[N, …, C] → T[N, C, …]`
pub(super) fn channels_first(x: &Tensor) -> Tensor {
    x.transpose(&[0, x.rank() - 1].into_iter().chain(1..x.rank() - 1).collect::<Vec<_>>())
}

/// Returns the spatial sizes of `[N, C, …]`.
pub(super) fn spatial(x: &Tensor) -> Result<Vec<usize>> {
    match x.shape().dims() {
        [_, _, inner @ ..] if !inner.is_empty() => Ok(inner.to_vec()),
        _ => Err(broken(format!("cannot apply a window to {}", x.ty()))),
    }
}

fn conv(c: &mut NodeCall) -> RuleResult {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let y = convolved(c, &x, &w)?;
    biased(c, y)
}

/// `x: T[N, C, …], w: T[F, C/g, …] → T[N, F, …']`: convolves with the node's attributes.
pub(super) fn convolved(c: &NodeCall, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let input = spatial(x)?;
    let n = input.len();
    ensure!(w.rank() == n + 2, broken(format!("cannot convolve {} with {}", x.ty(), w.ty())));
    let moves = OnnxWindow::of(c, &input, kernel(c, w)?)?;
    let spec = Convolution {
        strides: moves.strides.into(),
        padding: moves.padding,
        lhs_dilation: vec![1; n].into(),
        rhs_dilation: moves.dilations.into(),
        reversal: vec![false; n],
        dims: ConvDims::channels_first(n),
        feature_groups: c.count("group", 1)?,
        batch_groups: 1,
        element_type: x.dtype(),
    };
    Ok(x.convolution(w, spec))
}

/// Returns the window sizes of a convolution's weights `[F, C, …]`, which the node may repeat.
fn kernel(c: &NodeCall, w: &Tensor) -> Result<Vec<usize>> {
    let own = w.shape()[2..].to_vec();
    match c.sizes("kernel_shape")? {
        Some(stated) if stated != own => {
            Err(broken(format!("attribute kernel_shape is {stated:?}, but the weights are {}", w.ty())))
        }
        _ => Ok(own),
    }
}

fn biased(c: &mut NodeCall, y: Tensor) -> RuleResult {
    match c.optional(2)? {
        Some(bias) => output(&y + bias.broadcast_in_dim(y.shape(), &[1])),
        None => output(y),
    }
}

fn conv_transpose(c: &mut NodeCall) -> RuleResult {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let input = spatial(&x)?;
    let n = input.len();
    let groups = c.count("group", 1)?;
    if w.rank() != n + 2 || !w.shape()[0].is_multiple_of(groups) {
        return Err(broken(format!("cannot apply a transposed convolution to {} with {}", x.ty(), w.ty())));
    }
    let moves = OnnxWindow::of(c, &input, kernel(c, &w)?)?;
    let of_window = |name: &str| match c.sizes(name)? {
        // Older files list batch and channels too.
        Some(list) if list.len() >= n => Ok(Some(list[list.len() - n..].to_vec())),
        Some(list) => Err(broken(format!("attribute {name} must have {n} dimensions, got {list:?}"))),
        None => Ok(None),
    };
    let more = of_window("output_padding")?.unwrap_or(vec![0; n]);
    let wanted = of_window("output_shape")?;
    let mut padding = Vec::new();
    for (i, &own) in input.iter().enumerate() {
        let [low, high] = cropped(c, &moves, [own, more[i]], i, wanted.as_ref().map(|s| s[i]))?;
        let reach = moves.reach(i) - 1;
        padding.push([reach - low, reach - high + more[i] as i64]);
    }
    let spec = Convolution {
        strides: vec![1; n].into(),
        padding,
        lhs_dilation: moves.strides.into(),
        rhs_dilation: moves.dilations.into(),
        reversal: vec![false; n],
        dims: ConvDims::channels_first(n),
        feature_groups: groups,
        batch_groups: 1,
        element_type: x.dtype(),
    };
    let y = x.convolution(&turned(&w, groups), spec);
    biased(c, y)
}

/// Returns the elements that a transposed convolution removes before and after a dimension; a negative number adds zeros.
fn cropped(
    c: &NodeCall,
    moves: &OnnxWindow,
    [own, more]: [usize; 2],
    i: usize,
    wanted: Option<usize>,
) -> Result<[i64; 2]> {
    let same = c.word("auto_pad", "NOTSET")?;
    let stride = moves.strides[i] as i64;
    let whole = (own as i64 - 1) * stride + moves.reach(i) + more as i64;
    let size = match wanted {
        Some(size) => size as i64,
        None if same.starts_with("SAME") => own as i64 * stride,
        None => return Ok(moves.written[i]),
    };
    let all = whole - size;
    if all < 0 {
        // Runtimes disagree about SAME, and reject more than the positions that the last stride leaves open.
        return match wanted.is_some() && -all < stride {
            true => Ok([0, all]),
            false => Err(unsupported(format!(
                "an output size of {size} is not supported: {own} positions with stride {stride} reach {whole}"
            ))
            .hint("export the model with explicit pads and output_padding")),
        };
    }
    // An odd total removes more before, except for SAME_UPPER.
    Ok(if same == "SAME_UPPER" { [all / 2, all - all / 2] } else { [all - all / 2, all / 2] })
}

/// Permutes and reverses `[C, F/g, …] → [F, C/g, …]`.
fn turned(w: &Tensor, groups: usize) -> Tensor {
    let (dims, n) = (w.shape().to_vec(), w.rank() - 2);
    let split = [&[groups, dims[0] / groups, dims[1]], &dims[2..]].concat();
    let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..n + 3).collect();
    let whole = [&[dims[1] * groups, dims[0] / groups], &dims[2..]].concat();
    w.reshape(split).transpose(&order).reshape(whole).reverse(&(2..n + 2).collect::<Vec<_>>())
}

fn max_pool(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let input = spatial(&x)?;
    let moves = OnnxWindow::of(c, &input, c.sizes("kernel_shape")?.unwrap_or_default())?;
    if c.node.outputs.get(1).is_some_and(|o| !o.is_empty()) {
        return max_with_places(&x, moves.window(), c.is("storage_order", false)?);
    }
    output(Monoid::Maximum.over_windows(&x, moves.window()))
}

fn average_pool(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let input = spatial(&x)?;
    let moves = OnnxWindow::of(c, &input, c.sizes("kernel_shape")?.unwrap_or_default())?;
    let counts_padding = c.is("count_include_pad", false)?;
    let dtype = x.dtype();
    let x = x.convert(sums_in(dtype));
    let mut y = Monoid::Add.over_windows(&x, moves.window());
    if y.is_poisoned() || y.rank() != x.rank() {
        return output(y);
    }
    let mut whole = 1.0;
    for (i, &own) in input.iter().enumerate() {
        let places = y.shape()[i + 2];
        c.spend(places)?;
        let counts: Vec<f64> =
            (0..places).map(|out| seen(&moves, i, own as i64, out, counts_padding)).collect();
        let first = counts.first().copied().unwrap_or(1.0);
        if counts.iter().all(|n| *n == first) {
            whole *= first;
            continue;
        }
        let counts = Literal::from_slice([counts.len()], &counts)?.convert(y.dtype());
        let counts = y.builder().constant(counts).broadcast_in_dim(y.shape(), &[i + 2]);
        y = y / counts;
    }
    let y = if whole == 1.0 { y } else { y / whole };
    output(y.convert(dtype))
}

/// Returns the number of window elements that count along a dimension.
fn seen(moves: &OnnxWindow, i: usize, size: i64, out: usize, counts_padding: bool) -> f64 {
    let [low, high] = moves.written[i];
    let begin = (out * moves.strides[i]) as i64 - low;
    let (from, to) = if counts_padding { (-low, size + high) } else { (0, size) };
    let step = moves.dilations[i] as i64;
    let n = moves.kernel[i] as i64;
    // Counts those of begin, begin + step, … from `from` on and below `to`.
    let first = if begin < from { (from - begin + step - 1) / step } else { 0 };
    let last = if begin < to { (to - begin + step - 1) / step } else { 0 };
    (last.min(n) - first.min(n)).max(1) as f64
}

/// Imports global pooling over the whole image.
fn global_pool(c: &mut NodeCall, is_max: bool) -> RuleResult {
    let x = c.tensor(0)?;
    let inner = spatial(&x)?.len();
    let dims: Vec<usize> = (2..inner + 2).collect();
    let y = match is_max {
        true => x.reduce_max(&dims),
        false => x.convert(sums_in(x.dtype())).mean(&dims).convert(x.dtype()),
    };
    let mut shape = x.shape().to_vec();
    shape[2..].fill(1);
    output(y.reshape(shape))
}

/// Imports DepthToSpace: blocks of channels become pixels.
fn depth_to_space(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let b = c.count("blocksize", 0)?;
    let &[n, channels, h, w] = x.shape().dims() else {
        return Err(broken(format!("block size {b} does not match {}", x.ty())));
    };
    let own = channels / b.saturating_mul(b);
    let y = match c.word("mode", "DCR")?.as_str() {
        "DCR" => x.reshape([n, b, b, own, h, w]).transpose(&[0, 3, 4, 1, 5, 2]),
        "CRD" => x.reshape([n, own, b, b, h, w]).transpose(&[0, 1, 4, 2, 5, 3]),
        other => return Err(unsupported(format!("unsupported mode {other}"))),
    };
    output(y.reshape(checked(vec![n, own, h.saturating_mul(b), w.saturating_mul(b)])?))
}

/// Imports SpaceToDepth: blocks of pixels become channels.
fn space_to_depth(c: &mut NodeCall) -> RuleResult {
    let x = c.tensor(0)?;
    let b = c.count("blocksize", 0)?;
    let &[n, channels, h, w] = x.shape().dims() else {
        return Err(broken(format!("block size {b} does not match {}", x.ty())));
    };
    let split = x.reshape([n, channels, h / b, b, w / b, b]);
    let split = match c.word("mode", "DCR")?.as_str() {
        "DCR" => split.transpose(&[0, 3, 5, 1, 2, 4]),
        "CRD" => split.transpose(&[0, 1, 3, 5, 2, 4]),
        other => return Err(unsupported(format!("unsupported mode {other}"))),
    };
    let all = channels.saturating_mul(b).saturating_mul(b);
    output(split.reshape(checked(vec![n, all, h / b, w / b])?))
}

/// Returns the accumulator type of an element type.
pub(super) fn sums_in(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// Returns the image shape.
pub(super) fn picture(e: &OnnxBuilder, t: usize) -> Result<[usize; 4]> {
    let dims = e.tensor(t)?.dims();
    dims.try_into().map_err(|_| err!(Unsupported, "expected an image of rank 4, got shape {dims:?}"))
}

fn fields(o: &TfliteOperator, [h, w]: [OptionField; 2]) -> Result<[usize; 2]> {
    let one = |f: OptionField| match usize::try_from(o.int(f)) {
        // A missing option is 0 in the file.
        Ok(n) => Ok(n.max(1)),
        Err(_) => Err(err!(
            Data,
            "invalid TFLite option {f:?}: expected an integer that is not negative, got {}",
            o.int(f)
        )),
    };
    Ok([one(h)?, one(w)?])
}

const STRIDES: [OptionField; 2] = [OptionField::StrideH, OptionField::StrideW];
const DILATIONS: [OptionField; 2] = [OptionField::DilationH, OptionField::DilationW];

/// Returns the padding before and after both dimensions for this output size.
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

fn write_convolution(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (x, w, bias) = (operand_of(o, 0)?, operand_of(o, 1)?, operand_of(o, 2)?);
    let ([_, h, wide, channels], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let [_, kh, kw, inner] = picture(e, w)?;
    let (permutation, group) = match o.op {
        TfliteOp::DepthwiseConv2D => ([3, 0, 1, 2], channels),
        _ => ([0, 3, 1, 2], channels / inner.max(1)),
    };
    let (strides, dilations) = (fields(o, STRIDES)?, fields(o, DILATIONS)?);
    let reach = [(kh - 1) * dilations[0] + 1, (kw - 1) * dilations[1] + 1];
    let around = pads([h, wide], [oh, ow], reach, strides);
    let inputs = [e.real(x, ChannelOrder::First)?, e.weights(w, &permutation)?, e.weights(bias, &[0])?];
    e.finish(y, ChannelOrder::First, o.activation()?, |out| {
        OnnxNode::new("Conv", inputs, out)
            .ints("kernel_shape", signed([kh, kw]))
            .ints("strides", signed(strides))
            .ints("dilations", signed(dilations))
            .ints("pads", around)
            .with("group", OnnxAttribute::Int(group as i64))
    })
}

fn write_transposed(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let (w, x) = (operand_of(o, 1)?, operand_of(o, 2)?);
    let ([_, h, wide, _], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let [_, kh, kw, _] = picture(e, w)?;
    let strides = fields(o, STRIDES)?;
    let (mut around, mut more) = ([0; 4], [0; 2]);
    for (i, (n, out, k)) in [(h, oh, kh), (wide, ow, kw)].into_iter().enumerate() {
        let whole = (n - 1) * strides[i] + k;
        let cut = whole.saturating_sub(out) as i64;
        (around[i], around[i + 2]) = (cut / 2, cut - cut / 2);
        more[i] = out.saturating_sub(whole) as i64;
    }
    let mut inputs = vec![e.real(x, ChannelOrder::First)?, e.weights(w, &[3, 0, 1, 2])?];
    if let Some(bias) = o.inputs.get(3).copied().flatten() {
        inputs.push(e.weights(bias, &[0])?);
    }
    e.finish(y, ChannelOrder::First, o.activation()?, |out| {
        OnnxNode::new("ConvTranspose", inputs, out)
            .ints("kernel_shape", signed([kh, kw]))
            .ints("strides", signed(strides))
            .ints("pads", around)
            .ints("output_padding", more)
    })
}

/// Exports DEPTH_TO_SPACE and SPACE_TO_DEPTH.
fn write_blocks(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let input = e.real(operand_of(o, 0)?, ChannelOrder::First)?;
    let size = OnnxAttribute::Int(o.int(OptionField::BlockSize));
    e.finish(y, ChannelOrder::First, FusedActivation::None, |out| {
        OnnxNode::new(name, [input], out).with("blocksize", size)
    })
}

fn write_pool(e: &mut OnnxBuilder, &TfliteSource { o, y, name }: &TfliteSource) -> Result<()> {
    let x = operand_of(o, 0)?;
    let ([_, h, w, _], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let (strides, kernel) = (fields(o, STRIDES)?, fields(o, [OptionField::FilterH, OptionField::FilterW])?);
    let around = pads([h, w], [oh, ow], kernel, strides);
    let input = e.real(x, ChannelOrder::First)?;
    // Padding does not count in averages, as is ONNX's default.
    e.finish(y, ChannelOrder::First, o.activation()?, |out| {
        OnnxNode::new(name, [input], out)
            .ints("kernel_shape", signed(kernel))
            .ints("strides", signed(strides))
            .ints("pads", around)
    })
}
