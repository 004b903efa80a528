//! Imports and exports ONNX Resize: nearest, linear and cubic, one dimension at a time.

use super::call::{MOST_ELEMENTS, NodeCall, RuleResult, checked, output, unsupported};
use super::constants::dims_of;
use super::conv_pool::picture;
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of};
use super::op_row::{TfliteSource, operators};
use super::resize_weights::{CropWindow, weighted};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{Literal, Result, ensure, err};
use systole_ir::Tensor;
use systole_ir::op::Gather;
use systole_tflite::{FusedActivation, OptionField, TfliteOp};

operators! {
    "Resize" 10..19: resize => ResizeNearest write_resize => ResizeBilinear write_resize;
    "Upsample" 1..9: resize;
}

/// Interpolation of a Resize node.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ResizeKernel {
    Nearest,
    Linear,
    /// Keys's cubic with its coefficient `a`.
    Cubic(f64),
}

/// How output positions are mapped to the input: the node's modes, with the defaults of its opset.
pub(super) struct ResizeModes {
    pub kernel: ResizeKernel,
    /// Whether the kernel is widened when the image shrinks.
    pub antialiases: bool,
    /// Whether elements outside of the image have weight 0 instead of the border's value.
    pub excludes_outside: bool,
    coordinates: String,
    nearest: String,
}

impl ResizeModes {
    fn of(c: &NodeCall) -> Result<ResizeModes> {
        let kernel = match c.word("mode", "nearest")?.as_str() {
            "nearest" => ResizeKernel::Nearest,
            // Upsample's first definition calls it bilinear.
            "linear" | "bilinear" => ResizeKernel::Linear,
            "cubic" => ResizeKernel::Cubic(c.float("cubic_coeff_a", -0.75)?),
            other => {
                return Err(unsupported(format!("unsupported resize mode {other}"))
                    .hint("use nearest, linear or cubic"));
            }
        };
        // Before opset 11 there is one mapping: without shift, and rounded up when the image shrinks.
        let (coordinates, nearest) = match c.opset {
            ..11 => ("asymmetric", "simple"),
            _ => ("half_pixel", "round_prefer_floor"),
        };
        Ok(ResizeModes {
            kernel,
            antialiases: c.is("antialias", false)?,
            excludes_outside: c.is("exclude_outside", false)?,
            coordinates: c.word("coordinate_transformation_mode", coordinates)?,
            nearest: c.word("nearest_mode", nearest)?,
        })
    }

    /// Whether each position mixes two elements at most, those around it.
    fn is_plain_linear(&self, scale: f32) -> bool {
        self.kernel == ResizeKernel::Linear && !self.excludes_outside && (!self.antialiases || scale >= 1.0)
    }

    /// Maps an output index to a source coordinate, in f32 as runtimes do.
    fn source(&self, i: usize, old: usize, new: usize, scale: f32) -> Result<f32> {
        let (at, old, new) = (i as f32, old as f32, new as f32);
        Ok(match self.coordinates.as_str() {
            "half_pixel" => (at + 0.5) / scale - 0.5,
            "half_pixel_symmetric" => {
                let adjusted = new / (old * scale);
                old / 2.0 * (1.0 - adjusted) + (at + 0.5) / scale - 0.5
            }
            "pytorch_half_pixel" if new > 1.0 => (at + 0.5) / scale - 0.5,
            "align_corners" if new > 1.0 => at * (old - 1.0) / (new - 1.0),
            "pytorch_half_pixel" | "align_corners" => 0.0,
            "asymmetric" => at / scale,
            other => {
                return Err(unsupported(format!("unsupported coordinate_transformation_mode {other}"))
                    .hint("use half_pixel, align_corners, asymmetric or tf_crop_and_resize"));
            }
        })
    }

    /// Rounds source coordinates to indices.
    fn rounded(&self, places: &[f32], old: usize, scale: f32) -> Result<Vec<i64>> {
        let round = |v: f32| match self.nearest.as_str() {
            "simple" => Ok(if scale < 1.0 { v.ceil() } else { v.floor() }),
            "floor" => Ok(v.floor()),
            "ceil" => Ok(v.ceil()),
            "round_prefer_floor" => Ok((v - 0.5).ceil()),
            "round_prefer_ceil" => Ok((v + 0.5).floor()),
            other => Err(unsupported(format!("unsupported nearest_mode {other}"))
                .hint("use floor, ceil, round_prefer_floor or round_prefer_ceil")),
        };
        places.iter().map(|&v| Ok((round(v)? as i64).clamp(0, old as i64 - 1))).collect()
    }
}

fn resize(c: &mut NodeCall) -> RuleResult {
    let modes = ResizeModes::of(c)?;
    let x = c.tensor(0)?;
    let rank = x.rank();
    let dims = dims_of(c, "axes", rank)?.unwrap_or((0..rank).collect());
    let crops = crops(c, &modes, dims.len())?;
    let mut y = x.clone();
    let sizes = wanted(c, &x, &dims)?;
    for (k, (&d, (size, scale))) in dims.iter().zip(sizes).enumerate() {
        let old = y.shape()[d];
        if let Some(crops) = &crops {
            c.spend(3 * size)?;
            let places: Vec<f32> = (0..size).map(|i| crops.source(k, i, old, size)).collect();
            let own = resized(c, &modes, &y, d, &places, scale)?;
            y = crops.outside_filled(&own, d, &places, old)?;
            continue;
        }
        // Also if nothing is to be done, so that a wrong mode is an error.
        modes.rounded(&[modes.source(0, old.max(1), size.max(1), scale)?], old.max(1), scale)?;
        if old == size && scale == 1.0 {
            continue;
        }
        c.spend(3 * size)?;
        let from = |i: usize| modes.source(i, old, size, scale);
        let places = (0..size).map(from).collect::<Result<Vec<f32>>>()?;
        y = resized(c, &modes, &y, d, &places, scale)?;
    }
    output(y)
}

/// Returns the new size and scale of each dimension.
fn wanted(c: &mut NodeCall, x: &Tensor, dims: &[usize]) -> Result<Vec<(usize, f32)>> {
    let policy = c.word("keep_aspect_ratio_policy", "stretch")?;
    let old: Vec<usize> = dims.iter().map(|&d| x.shape()[d]).collect();
    let is_filled =
        |c: &mut NodeCall, i: usize| -> Result<bool> { Ok(c.has(i) && c.known(i)?.ty().elements() > 0) };
    let all = if is_filled(c, 3)? {
        let sizes = c.numbers(3)?;
        ensure!(sizes.len() == old.len(), broken(format!("sizes {sizes:?} do not match {}", x.ty())));
        let size = |&s: &i64| usize::try_from(s).map_err(|_| broken(format!("invalid dimension size {s}")));
        of_sizes(&sizes.iter().map(size).collect::<Result<Vec<_>>>()?, &old, &policy)?
    } else {
        of_scales(c, x, &old)?
    };
    checked(all.iter().map(|(s, _)| *s).collect())?;
    if old.iter().zip(&all).any(|(&old, (new, _))| old == 0 && *new > 0) {
        return Err(broken(format!("cannot resize {}, which is empty", x.ty())));
    }
    Ok(all)
}

/// Resizes one dimension to source coordinates.
fn resized(
    c: &mut NodeCall,
    modes: &ResizeModes,
    x: &Tensor,
    dim: usize,
    places: &[f32],
    scale: f32,
) -> Result<Tensor> {
    let old = x.shape()[dim];
    match modes.kernel {
        ResizeKernel::Nearest => taken(x, dim, &modes.rounded(places, old, scale)?),
        _ if modes.is_plain_linear(scale) => linear(x, dim, places),
        _ => {
            c.spend(places.len().saturating_mul(old))?;
            weighted(modes, x, dim, places, scale)
        }
    }
}

/// Returns the crop of a node with tf_crop_and_resize, from its operand `roi`.
fn crops(c: &mut NodeCall, modes: &ResizeModes, n: usize) -> Result<Option<CropWindow>> {
    if modes.coordinates != "tf_crop_and_resize" {
        return Ok(None);
    }
    let roi = c.known(1)?.to_f32s();
    let fill = c.float("extrapolation_value", 0.0)?;
    match roi.len() == 2 * n {
        true => Ok(Some(CropWindow { roi, fill })),
        false => Err(broken(format!("roi must have {} numbers, got {}", 2 * n, roi.len()))),
    }
}

fn of_sizes(sizes: &[usize], old: &[usize], policy: &str) -> Result<Vec<(usize, f32)>> {
    let scale = |(&s, &o): (&usize, &usize)| s as f32 / o.max(1) as f32;
    let scales = sizes.iter().zip(old).map(scale);
    let common = match policy {
        "stretch" => return Ok(sizes.iter().copied().zip(scales).collect()),
        "not_larger" => scales.fold(f32::INFINITY, f32::min),
        "not_smaller" => scales.fold(0.0, f32::max),
        other => return Err(unsupported(format!("unsupported keep_aspect_ratio_policy {other}"))),
    };
    Ok(old.iter().map(|&o| ((o as f32 * common).round() as usize, common)).collect())
}

/// Sizes are rounded down after a product in f32: 0.7 of 10 elements are 7.
fn of_scales(c: &mut NodeCall, x: &Tensor, old: &[usize]) -> Result<Vec<(usize, f32)>> {
    let (at, old_form) = if c.node.inputs.len() == 2 { (1, true) } else { (2, false) };
    let scales: Vec<f32> = match c.attribute("scales") {
        Some(OnnxAttribute::Floats(v)) => v.clone(),
        Some(other) => return Err(broken(format!("attribute `scales` is {}", other.kind()))),
        _ if c.has(at) || old_form => c.known(at)?.to_f32s(),
        _ => return Err(broken("sizes and scales are missing")),
    };
    if scales.len() != old.len() || scales.iter().any(|s| !(*s > 0.0 && *s <= MOST_ELEMENTS as f32)) {
        return Err(broken(format!("scales {scales:?} are invalid for {}", x.ty())));
    }
    Ok(scales.iter().zip(old).map(|(&s, &o)| ((o as f32 * s).floor() as usize, s)).collect())
}

/// Gathers elements of a dimension by index.
pub(super) fn taken(x: &Tensor, dim: usize, places: &[i64]) -> Result<Tensor> {
    let at = x.builder().constant(Literal::from_slice([places.len()], places)?);
    let mut slice_sizes = x.shape().to_vec();
    slice_sizes[dim] = 1;
    let spec = Gather {
        offset_dims: (0..x.rank()).filter(|d| *d != dim).collect(),
        collapsed_slice_dims: vec![dim].into(),
        start_index_map: vec![dim].into(),
        index_vector_dim: 1,
        slice_sizes: slice_sizes.into(),
        ..Gather::rows(x.ty(), 1)
    };
    Ok(x.gather(&at, spec))
}

/// Interpolates linearly between the two nearest elements.
fn linear(x: &Tensor, dim: usize, places: &[f32]) -> Result<Tensor> {
    let last = x.shape()[dim] as f32 - 1.0;
    let inside: Vec<f32> = places.iter().map(|p| p.clamp(0.0, last.max(0.0))).collect();
    let low: Vec<i64> = inside.iter().map(|p| p.floor() as i64).collect();
    let high: Vec<i64> = low.iter().map(|p| (p + 1).min(last as i64)).collect();
    let share: Vec<f32> = inside.iter().map(|p| p - p.floor()).collect();
    let (a, b) = (taken(x, dim, &low)?, taken(x, dim, &high)?);
    let share = Literal::from_slice([share.len()], &share)?.convert(x.dtype());
    let share = x.builder().constant(share).broadcast_in_dim(a.shape(), &[dim]);
    Ok(&a + (b - &a) * share)
}

fn write_resize(e: &mut OnnxBuilder, &TfliteSource { o, y, .. }: &TfliteSource) -> Result<()> {
    let x = operand_of(o, 0)?;
    let ([_, h, w, _], [_, oh, ow, _]) = (picture(e, x)?, picture(e, y)?);
    let coordinates = match (o.is(OptionField::AlignCorners), o.is(OptionField::HalfPixelCenters)) {
        (true, _) => "align_corners",
        (_, true) => "half_pixel",
        _ => "asymmetric",
    };
    let (mode, nearest) = match (o.op, coordinates) {
        (TfliteOp::ResizeBilinear, _) => ("linear", "floor"),
        (_, "align_corners") => ("nearest", "round_prefer_ceil"),
        (_, _) => ("nearest", "floor"),
    };
    let scales = [1.0, 1.0, oh as f32 / h as f32, ow as f32 / w as f32];
    let reached = [h as f32 * scales[2], w as f32 * scales[3]].map(|v| v.floor() as usize);
    if reached != [oh, ow] {
        return Err(err!(Unsupported, "cannot resize images of {h} × {w} pixels to {oh} × {ow}")
            .hint("resize images by integer factors only"));
    }
    let own = e.names[y].clone();
    let scales = e.constant(&format!("{own}/scales"), systole_base::Literal::from_slice([4], &scales)?);
    let input = e.real(x, ChannelOrder::First)?;
    let word = |w: &str| OnnxAttribute::Text(w.into());
    e.finish(y, ChannelOrder::First, FusedActivation::None, |out| {
        OnnxNode::new("Resize", [input, String::new(), scales], out)
            .with("mode", word(mode))
            .with("coordinate_transformation_mode", word(coordinates))
            .with("nearest_mode", word(nearest))
    })
}
