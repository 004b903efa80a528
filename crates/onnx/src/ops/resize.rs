//! Imports and exports ONNX Resize: nearest and linear, one dimension at a time.

use super::call::{MOST_ELEMENTS, NodeCall, RuleResult, checked, in_order, made, unsupported};
use super::constants::dims_of;
use super::conv_pool::picture;
use super::graph_builder::{ChannelOrder, OnnxBuilder, operand_of};
use super::op_row::{TfliteSource, operators};
use crate::model::{OnnxAttribute, OnnxNode, broken};
use systole_base::{Error, ErrorKind, Literal, Result};
use systole_ir::Tensor;
use systole_ir::op::Gather;
use systole_tflite::{FusedActivation, OptionField, TfliteOp};

operators! {
    "Resize" 10..19: resize => ResizeNearest write_resize => ResizeBilinear write_resize;
    "Upsample" 1..9: resize;
}

fn resize(c: &mut NodeCall) -> RuleResult {
    let (x, is_last) = c.oriented(0)?;
    let rank = x.rank();
    let dims = dims_of(c, "axes", rank)?.unwrap_or((0..rank).collect());
    let mut y = x.clone();
    let sizes = wanted(c, &x, &dims, is_last)?;
    for (&d, (size, scale)) in dims.iter().zip(sizes) {
        let d = in_order(d, rank, is_last);
        let old = y.shape()[d];
        if old == size && scale == 1.0 {
            continue;
        }
        c.spend(3 * size)?;
        let from = |i: usize| source(c, i, old, size, scale);
        let places = (0..size).map(from).collect::<Result<Vec<f64>>>()?;
        y = match c.word("mode", "nearest")?.as_str() {
            "nearest" => taken(&y, d, &nearest(c, &places, old)?)?,
            "linear" => linear(&y, d, &places)?,
            other => {
                return Err(unsupported(format!("unsupported resize mode {other}"))
                    .hint("use Resize mode nearest or linear"));
            }
        };
    }
    made(y, is_last)
}

/// Returns the new size and scale of each dimension.
fn wanted(c: &mut NodeCall, x: &Tensor, dims: &[usize], is_last: bool) -> Result<Vec<(usize, f64)>> {
    if c.word("keep_aspect_ratio_policy", "stretch")? != "stretch" || c.is("antialias", false)? {
        return Err(unsupported("keep_aspect_ratio_policy and antialias are not supported"));
    }
    let old: Vec<usize> = dims.iter().map(|&d| x.shape()[in_order(d, x.rank(), is_last)]).collect();
    let is_filled =
        |c: &mut NodeCall, i: usize| -> Result<bool> { Ok(c.has(i) && c.known(i)?.ty().elements() > 0) };
    if is_filled(c, 3)? {
        let sizes = c.numbers(3)?;
        if sizes.len() != old.len() {
            return Err(broken(format!("sizes {sizes:?} do not match {}", x.ty())));
        }
        let one = |(&s, &o): (&i64, &usize)| {
            let s = usize::try_from(s).map_err(|_| broken(format!("invalid dimension size {s}")))?;
            Ok((s, s as f64 / o.max(1) as f64))
        };
        let all = sizes.iter().zip(&old).map(one).collect::<Result<Vec<_>>>()?;
        checked(all.iter().map(|(s, _)| *s).collect())?;
        return Ok(all);
    }
    let (at, old_form) = if c.node.inputs.len() == 2 { (1, true) } else { (2, false) };
    let scales: Vec<f64> = match c.node.attributes.get("scales") {
        Some(OnnxAttribute::Floats(v)) => v.iter().map(|&v| f64::from(v)).collect(),
        Some(other) => return Err(broken(format!("attribute `scales` is {}", other.kind()))),
        _ if c.has(at) || old_form => c.known(at)?.to_f64s(),
        _ => return Err(broken("sizes and scales are missing")),
    };
    if scales.len() != old.len() || scales.iter().any(|s| !(*s > 0.0 && *s <= MOST_ELEMENTS as f64)) {
        return Err(broken(format!("scales {scales:?} are invalid for {}", x.ty())));
    }
    let all: Vec<(usize, f64)> =
        scales.iter().zip(&old).map(|(&s, &o)| ((o as f64 * s).floor() as usize, s)).collect();
    checked(all.iter().map(|(s, _)| *s).collect())?;
    Ok(all)
}

/// Maps an output index to a source coordinate.
fn source(c: &NodeCall, i: usize, old: usize, new: usize, scale: f64) -> Result<f64> {
    let (at, old, new) = (i as f64, old as f64, new as f64);
    let default = if c.node.op == "Upsample" { "asymmetric" } else { "half_pixel" };
    let mode = c.word("coordinate_transformation_mode", default)?;
    Ok(match mode.as_str() {
        "half_pixel" => (at + 0.5) / scale - 0.5,
        "half_pixel_symmetric" => {
            let adjusted = new / (old * scale);
            old / 2.0 * (1.0 - adjusted) + (at + 0.5) / scale - 0.5
        }
        "pytorch_half_pixel" => {
            if new > 1.0 {
                (at + 0.5) / scale - 0.5
            } else {
                0.0
            }
        }
        "align_corners" => {
            if new > 1.0 {
                at * (old - 1.0) / (new - 1.0)
            } else {
                0.0
            }
        }
        "asymmetric" => at / scale,
        other => return Err(unsupported(format!("unsupported coordinate_transformation_mode {other}"))),
    })
}

fn nearest(c: &NodeCall, places: &[f64], old: usize) -> Result<Vec<i64>> {
    let default = if c.node.op == "Upsample" { "floor" } else { "round_prefer_floor" };
    let mode = c.word("nearest_mode", default)?;
    let round = |v: f64| match mode.as_str() {
        "floor" => Ok(v.floor()),
        "ceil" => Ok(v.ceil()),
        "round_prefer_floor" => Ok((v - 0.5).ceil()),
        "round_prefer_ceil" => Ok((v + 0.5).floor()),
        other => Err(unsupported(format!("unsupported nearest_mode {other}"))),
    };
    places.iter().map(|&v| Ok((round(v)? as i64).clamp(0, old as i64 - 1))).collect()
}

/// Gathers elements of a dimension by index.
fn taken(x: &Tensor, dim: usize, places: &[i64]) -> Result<Tensor> {
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
fn linear(x: &Tensor, dim: usize, places: &[f64]) -> Result<Tensor> {
    let last = x.shape()[dim] as f64 - 1.0;
    let inside: Vec<f64> = places.iter().map(|p| p.clamp(0.0, last.max(0.0))).collect();
    let low: Vec<i64> = inside.iter().map(|p| p.floor() as i64).collect();
    let high: Vec<i64> = low.iter().map(|p| (p + 1).min(last as i64)).collect();
    let share: Vec<f64> = inside.iter().map(|p| p - p.floor()).collect();
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
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("cannot resize images of {h} × {w} pixels to {oh} × {ow}"),
        )
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
