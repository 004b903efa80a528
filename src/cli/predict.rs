//! `systole predict`: classes and probabilities of pictures in JPEG, PNG or IDX files.

use super::screen::Screen;
use super::target::config_of;
use super::{Failure, Outcome};
use clap::Args;
use serde_json::json;
use std::fs::File;
use std::io::Read;
use systole::config::{fraction, scale_pixels};
use systole::datasets::fit_picture;
use systole_data::format::{idx, picture};
use systole_data::{HostArray, Sample};
use systole_ir::{DType, Error, ErrorKind, Literal, Result, ResultExt};
use systole_nn::Model;

/// Pictures in one step: enough to fill the machine, little enough for any memory.
const BATCH: usize = 256;

#[derive(Args)]
pub(crate) struct PredictArgs {
    /// A model file
    model: String,
    /// JPEG or PNG files of one picture, or IDX files (also .gz) of many
    #[arg(required = true, value_name = "IMAGES")]
    images: Vec<String>,
    /// At most so many pictures of each file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// How many classes to name for each picture
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    top: u64,
    /// Dark on light: turn the picture's brightness around (MNIST and its followers are light on dark)
    #[arg(long)]
    invert: bool,
    /// Pixels, 0 to 255, are multiplied by this [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
}

pub(crate) fn run(args: &PredictArgs, screen: &Screen) -> Outcome {
    let mut model = Model::load(&args.model)?;
    let size = picture_size(&model, &args.model)?;
    let scale = scale(args, &model, screen)?;
    // All files are read before the first answer, so that a bad one leaves no half of a result.
    let files: Vec<Literal> =
        args.images.iter().map(|path| pictures(path, size, args)).collect::<Result<_>>()?;
    for (path, images) in args.images.iter().zip(&files) {
        let many = images.shape()[0] > 1;
        for start in (0..images.shape()[0]).step_by(BATCH) {
            let part = rows(images, start, BATCH.min(images.shape()[0] - start))?;
            let scaled = scale_pixels(scale)(Sample::new([("image", part)]));
            let input = fit_input(&model, scaled.get("image")?)?;
            let answers = model.predict_on_batch(&input).at(|| path.clone())?;
            show(screen, &model, path, many, start, &answers, args.top as usize);
        }
    }
    Ok(0)
}

/// Height, width and channels that the model takes.
fn picture_size(model: &Model, path: &str) -> Result<[usize; 3]> {
    let inputs = &model.architecture().inputs;
    let ty = match inputs.as_slice() {
        [one] => one.ty.as_ref(),
        _ => None,
    };
    match ty.map(|t| t.shape.dims()) {
        Some(&[h, w, c @ (1 | 3)]) => Ok([h, w, c]),
        Some(&[h, w]) => Ok([h, w, 1]),
        other => Err(Error::new(ErrorKind::Unsupported, format!("{path} does not take pictures"))
            .because(format!("its input for one sample is {other:?}; pictures are [H, W, 1] or [H, W, 3]"))
            .hint("use the library: Model::load and predict")),
    }
}

fn scale(args: &PredictArgs, model: &Model, screen: &Screen) -> Result<f64, Failure> {
    if let Some(text) = &args.scale {
        return fraction(text).map_err(|e| Failure::usage(e.at(format!("--scale {text}"))));
    }
    if let Some(config) = config_of(model, &args.model)? {
        return Ok(config.data.scale);
    }
    screen.line(format!(
        "{} does not say how pixels were scaled: using 0 to 255 (--scale 1/255 changes that)",
        args.model
    ));
    Ok(1.0)
}

/// The pictures of a file, resized: `→ u8[N, H, W, C]`.
fn pictures(path: &str, [h, w, c]: [usize; 3], args: &PredictArgs) -> Result<Literal> {
    let all = match is_picture(path)? {
        true => HostArray::from(picture::read(path)?).expand_dims(0).into_literal()?,
        false => from_idx(path)?,
    };
    let count = all.shape()[0].min(args.limit.map_or(usize::MAX, |n| n as usize));
    let mut bytes = Vec::with_capacity(count * h * w * c);
    for i in 0..count {
        let one = rows(&all, i, 1)?.reshape(&all.shape()[1..])?;
        let one = fit_picture(one.into(), [h, w, c]).into_literal().at(|| path.into())?;
        bytes.extend(one.bytes().iter().map(|b| if args.invert { 255 - b } else { *b }));
    }
    Literal::from_slice([count, h, w, c], &bytes)
}

/// By the first bytes, not by the name. Pictures of formats that are not read count too: their error names the format.
fn is_picture(path: &str) -> Result<bool> {
    let wrong = |e| Error::io("cannot read", path, e).hint("check the path of the picture");
    let mut start = Vec::new();
    File::open(path).and_then(|f| f.take(16).read_to_end(&mut start)).map_err(wrong)?;
    Ok(picture::is_picture(&start) || picture::other_format(&start).is_some())
}

/// `→ u8[N, H, W, C]` from IDX files of rank 2 (one picture), 3 (grey) or 4.
fn from_idx(path: &str) -> Result<Literal> {
    let x = idx::read(path).map_err(|e| match e.what().contains("not an IDX file") {
        true => Error::new(ErrorKind::Data, format!("{path} is neither JPEG, PNG nor IDX"))
            .hint("open the picture elsewhere and save it as JPEG or PNG"),
        false => e,
    })?;
    let shape = x.shape().to_vec();
    match (x.dtype(), shape.as_slice()) {
        (DType::U8, &[h, w]) => x.reshape([1, h, w, 1]),
        (DType::U8, &[n, h, w]) => x.reshape([n, h, w, 1]),
        (DType::U8, &[_, _, _, 1..=4]) => Ok(x),
        _ => Err(Error::new(ErrorKind::Data, format!("{path} holds no pictures"))
            .because(format!("it holds {}, pictures are ui8[N, H, W]", x.ty()))
            .hint("give the file with the images, not the one with the labels")),
    }
}

/// `count` entries of the first dimension from `start` on.
fn rows(x: &Literal, start: usize, count: usize) -> Result<Literal> {
    let size = x.ty().bytes() / x.shape()[0].max(1);
    let mut dims = x.shape().to_vec();
    dims[0] = count;
    Literal::from_bytes(x.ty().with_shape(dims), &x.bytes()[start * size..(start + count) * size])
}

/// Models of `[H, W]` take no channel axis.
fn fit_input(model: &Model, x: &Literal) -> Result<Literal> {
    let rank = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map_or(3, |t| t.shape.rank());
    if rank == 3 { Ok(x.clone()) } else { x.reshape(&x.shape()[..3]) }
}

/// Probabilities: as they are, or a softmax of them where the model gives logits.
fn probabilities(row: &[f32]) -> Vec<f32> {
    let sum: f32 = row.iter().sum();
    if row.iter().all(|p| (0.0..=1.0).contains(p)) && (sum - 1.0).abs() < 0.01 {
        return row.to_vec();
    }
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = row.iter().map(|v| (v - most).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

fn show(screen: &Screen, model: &Model, path: &str, many: bool, start: usize, answers: &Literal, top: usize) {
    let n = answers.shape()[0];
    let values = answers.to_f32s();
    for (i, row) in values.chunks_exact(values.len() / n.max(1)).enumerate() {
        let p = probabilities(row);
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let name = |k: usize| model.class_names.get(k).cloned().unwrap_or_else(|| format!("class {k}"));
        let best: Vec<usize> = order.into_iter().take(top).collect();
        if screen.json {
            let class = |k: &usize| json!({"class": name(*k), "label": k, "probability": p[*k]});
            let ranked: Vec<_> = best.iter().map(class).collect();
            screen.object(&json!({
                "image": path, "index": start + i, "class": name(best[0]), "label": best[0],
                "probability": p[best[0]], "top": ranked,
            }));
        } else {
            let shown: Vec<String> =
                best.iter().map(|k| format!("{} {:.1} %", name(*k), 100.0 * p[*k])).collect();
            let place = if many { format!("{path}[{}]", start + i) } else { path.to_string() };
            let others =
                if shown.len() > 1 { format!("  ({})", shown[1..].join(", ")) } else { String::new() };
            screen.line(format!("{place}: {}{others}", shown[0]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_probabilities_and_probabilities_stay() {
        assert_eq!(probabilities(&[0.25, 0.75]), [0.25, 0.75]);
        let p = probabilities(&[1000.0, 1000.0, -1000.0]);
        assert_eq!(p, [0.5, 0.5, 0.0]);
        assert!((probabilities(&[0.1, 0.2]).iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}
