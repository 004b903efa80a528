//! `systole predict`: what a model says of pictures, of records (TFRecord, CSV, NumPy), and of how a text goes on.

use super::common::Common;
use super::outcome::{Failure, Outcome, Run};
use super::run_folder;
use super::screen::Screen;
use super::target::config_of;
use crate::config::{Config, fraction, scale_pixels};
use crate::datasets::{fit_picture_on, is_of_records, record_inputs};
use clap::Args;
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use systole_data::disk::{Disk, write_atomically};
use systole_data::format::{idx, picture};
use systole_data::input::{self, Input};
use systole_data::tools::files_of;
use systole_data::{Dataset, HostArray};
use systole_ir::{DType, Error, ErrorKind, Literal, Result, ResultExt};
use systole_nn::{Model, counted};

/// Samples in one step: enough to fill the machine, little enough for any memory.
const BATCH: usize = 256;

#[derive(Args)]
pub(crate) struct PredictArgs {
    /// A model file, or the folder of a run: its best model
    model: String,
    /// JPEG or PNG files of one picture, IDX files (also .gz) of many; TFRecord, CSV and NumPy files with the fields that
    /// the model learnt from; texts, for models of text
    #[arg(required = true, value_name = "FILES")]
    files: Vec<String>,
    /// At most so many samples of each file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// How many classes to name for each sample
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    top: u64,
    /// Write a line (.csv) or an object (.json) for each sample to this file instead of showing them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Dark on light: turn the picture's brightness around (MNIST and its followers are light on dark)
    #[arg(long)]
    invert: bool,
    /// Pixels, 0 to 255, are multiplied by this [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
}

/// What a model takes of one sample.
#[derive(Clone, Copy)]
enum Takes {
    Pictures([usize; 3]),
    Numbers(usize),
    /// So many bytes of a text.
    Text(usize),
}

impl Run for PredictArgs {
    fn run(self, _: &Common, screen: &Screen) -> Outcome {
        run(&self, screen)
    }
}

fn run(args: &PredictArgs, screen: &Screen) -> Outcome {
    let form = args.out.as_deref().map(Form::of).transpose().map_err(Failure::usage)?;
    let file = run_folder::model_file(&args.model)?;
    let mut model = Model::load(&file)?;
    let config = config_of(&model, &file)?;
    let takes = takes(&model, &file)?;
    let scale = match takes {
        Takes::Pictures(_) => scale(args, config.as_ref(), screen)?,
        _ => 1.0,
    };
    // All files are opened before the first answer, so that a bad one leaves no half of a result.
    let sources: Vec<Dataset> = args
        .files
        .iter()
        .map(|path| samples(path, takes, args, &model, config.as_ref()))
        .collect::<Result<_>>()?;
    let is_of_values = config.is_some_and(|c| c.data.is_own()) && model.class_names.is_empty();
    let mut answers = Vec::new();
    for (path, source) in args.files.iter().zip(&sources) {
        let source = args.limit.map_or(source.clone(), |n| source.take(n));
        let many = source.cardinality().finite() != Some(1);
        let batches = match takes {
            Takes::Pictures(_) => source.batch(BATCH).map(scale_pixels(scale)),
            _ => source.batch(BATCH),
        };
        let mut index = 0;
        for batch in &batches {
            let batch = batch.at(|| path.clone())?;
            let (_, x) = batch.fields().next().ok_or_else(|| no_samples(path))?;
            let outputs = model.predict_on_batch(&fit_input(&model, x.get()?)?).at(|| path.clone())?;
            for row in last_values(&outputs, takes) {
                let values = if is_of_values { row } else { probabilities(&row) };
                let answer = Answer { path: path.clone(), index, many, values, is_of_values };
                index += 1;
                match form {
                    Some(_) => answers.push(answer),
                    None => answer.show(screen, &model, takes, args.top as usize),
                }
            }
        }
        if index == 0 {
            return Err(no_samples(path).into());
        }
    }
    if let (Some(form), Some(out)) = (form, &args.out) {
        let text = form.text(&answers, &model, takes, args.top as usize);
        write_atomically(&Disk, out, &[text.as_bytes()])?;
        let are = if answers.len() == 1 { "is" } else { "are" };
        screen.line(format!("{} {are} in {}", counted(answers.len() as u64, "prediction"), out.display()));
    }
    Ok(0)
}

fn no_samples(path: &str) -> Error {
    Error::new(ErrorKind::Data, "there is nothing to predict").at(path)
}

/// By the type of the model's input.
fn takes(model: &Model, path: &str) -> Result<Takes> {
    let inputs = &model.architecture().inputs;
    let ty = match inputs.as_slice() {
        [one] => one.ty.as_ref(),
        _ => None,
    };
    let has_tokens = |t: &systole_ir::TensorType| t.dtype.is_int() && !model.architecture().inputs.is_empty();
    match ty.map(|t| (t, t.shape.dims())) {
        Some((_, &[h, w, c @ (1 | 3)])) => Ok(Takes::Pictures([h, w, c])),
        Some((_, &[h, w])) => Ok(Takes::Pictures([h, w, 1])),
        Some((t, &[n])) if has_tokens(t) => Ok(Takes::Text(n)),
        Some((_, &[n])) => Ok(Takes::Numbers(n)),
        other => Err(Error::new(
            ErrorKind::Unsupported,
            format!("{path} takes no pictures, records or text"),
        )
        .because(format!(
            "its input for one sample is {:?}; pictures are [H, W, 1] or [H, W, 3], records [N] numbers",
            other.map(|(t, _)| t.to_string())
        ))
        .hint("use the library: Model::load and predict")),
    }
}

/// The samples of a file, as the model takes them but for scaling.
fn samples(
    path: &str,
    takes: Takes,
    args: &PredictArgs,
    model: &Model,
    config: Option<&Config>,
) -> Result<Dataset> {
    let size = match takes {
        Takes::Text(length) => return last_of_text(path, length),
        Takes::Pictures(size) if !is_of_records(path) => {
            return Dataset::from_named_slices(
                path,
                [("image", pictures(path, size, args, ground(config))?)],
            );
        }
        Takes::Pictures(size) => Some(size),
        Takes::Numbers(_) => None,
    };
    let options = config.and_then(|c| c.data.records.clone()).unwrap_or_default();
    let fields: Option<Vec<String>> =
        model.notes.get("fields").and_then(|text| serde_json::from_str(text).ok());
    let files = files_of(Path::new(path))?;
    let inputs = record_inputs(files, &options, &fields.unwrap_or_default(), size, ground(config))?;
    check_numbers(&inputs, takes, path)?;
    Ok(inputs)
}

/// What transparent parts of pictures were laid on in training.
fn ground(config: Option<&Config>) -> f64 {
    config.and_then(|c| c.data.background).unwrap_or(0.0)
}

/// The first record tells whether the fields are those that the model takes.
fn check_numbers(inputs: &Dataset, takes: Takes, path: &str) -> Result<()> {
    let Takes::Numbers(wanted) = takes else { return Ok(()) };
    let first = inputs.debug().iter().next().ok_or_else(|| no_samples(path))??;
    let found = first.fields().next().map_or(0, |(_, x)| x.get().map_or(0, |x| x.ty().elements()));
    if found == wanted {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Data, format!("a record has {found} numbers, the model takes {wanted}"))
        .at(path)
        .hint("give the columns that the model learnt from and no others; `systole data inspect` shows them"))
}

/// The last bytes of a text, whose next one is to be told: `tokens: i32[length]`.
fn last_of_text(path: &str, length: usize) -> Result<Dataset> {
    let bytes = input::read(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the text"))?;
    let Some(start) = bytes.len().checked_sub(length) else {
        return Err(Error::new(ErrorKind::Data, "the text is too short")
            .at(path)
            .because(format!("it has {} bytes, the model looks at {length}", bytes.len()))
            .hint("give a longer beginning"));
    };
    let tokens: Vec<i32> = bytes[start..].iter().map(|b| i32::from(*b)).collect();
    Dataset::from_named_slices(path, [("tokens", Literal::from_slice([1, length], &tokens)?)])
}

/// What a model says of each sample; of a text, what it says at its end.
fn last_values(outputs: &Literal, takes: Takes) -> Vec<Vec<f32>> {
    let (n, values) = (outputs.shape()[0].max(1), outputs.to_f32s());
    let each = values.len() / n;
    let last = match takes {
        Takes::Text(length) => each / length.max(1),
        _ => each,
    };
    values.chunks_exact(each.max(1)).map(|row| row[each - last..].to_vec()).collect()
}

fn scale(args: &PredictArgs, config: Option<&Config>, screen: &Screen) -> Result<f64, Failure> {
    if let Some(text) = &args.scale {
        return fraction(text).map_err(|e| Failure::usage(e.at(format!("--scale {text}"))));
    }
    if let Some(config) = config {
        return Ok(config.data.scale);
    }
    screen.line(format!(
        "{} does not say how pixels were scaled: using 0 to 255 (--scale 1/255 changes that)",
        args.model
    ));
    Ok(1.0)
}

/// The pictures of a file, resized: `→ u8[N, H, W, C]`.
fn pictures(path: &str, [h, w, c]: [usize; 3], args: &PredictArgs, ground: f64) -> Result<Literal> {
    let all = match is_picture(path)? {
        true => HostArray::from(picture::read(path)?).expand_dims(0).into_literal()?,
        false => from_idx(path)?,
    };
    let count = all.shape()[0].min(args.limit.map_or(usize::MAX, |n| n as usize));
    let mut bytes = Vec::with_capacity(count * h * w * c);
    for i in 0..count {
        let one = rows(&all, i, 1)?.reshape(&all.shape()[1..])?;
        let one = fit_picture_on(one.into(), [h, w, c], ground).into_literal().at(|| path.into())?;
        bytes.extend(one.bytes().iter().map(|b| if args.invert { 255 - b } else { *b }));
    }
    Literal::from_slice([count, h, w, c], &bytes)
}

/// By the first bytes, not by the name. Pictures of formats that are not read count too: their error names the format.
fn is_picture(path: &str) -> Result<bool> {
    let wrong = |e| Error::io("cannot read", path, e).hint("check the path of the picture");
    let mut start = Vec::new();
    Input::open(path).and_then(|f| f.take(16).read_to_end(&mut start)).map_err(wrong)?;
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
    if rank + 1 == x.shape().rank() { Ok(x.clone()) } else { x.reshape(&x.shape()[..rank + 1]) }
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

/// What a model says of one sample.
struct Answer {
    path: String,
    index: usize,
    /// Whether its file has others.
    many: bool,
    values: Vec<f32>,
    /// Whether these are what is predicted, rather than probabilities of classes.
    is_of_values: bool,
}

impl Answer {
    /// The likeliest classes.
    fn best(&self, top: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.values.len()).collect();
        order.sort_by(|a, b| self.values[*b].total_cmp(&self.values[*a]));
        order.truncate(top);
        order
    }

    fn show(&self, screen: &Screen, model: &Model, takes: Takes, top: usize) {
        if screen.json {
            return screen.object(&self.json(model, takes, top));
        }
        let place = if self.many { format!("{}[{}]", self.path, self.index) } else { self.path.clone() };
        if self.is_of_values {
            let values: Vec<String> = self.values.iter().map(f32::to_string).collect();
            return screen.line(format!("{place}: {}", values.join(", ")));
        }
        let class = |k: &usize| format!("{} {:.1} %", name(model, takes, *k), 100.0 * self.values[*k]);
        let shown: Vec<String> = self.best(top).iter().map(class).collect();
        let others = if shown.len() > 1 { format!("  ({})", shown[1..].join(", ")) } else { String::new() };
        screen.line(format!("{place}: {}{others}", shown[0]));
    }

    fn json(&self, model: &Model, takes: Takes, top: usize) -> Value {
        let what = if matches!(takes, Takes::Pictures(_)) { "image" } else { "file" };
        if self.is_of_values {
            return json!({what: self.path, "index": self.index, "values": self.values});
        }
        let (best, p) = (self.best(top), &self.values);
        let class = |k: &usize| json!({"class": name(model, takes, *k), "label": k, "probability": p[*k]});
        let ranked: Vec<_> = best.iter().map(class).collect();
        json!({
            what: self.path, "index": self.index, "class": name(model, takes, best[0]), "label": best[0],
            "probability": p[best[0]], "top": ranked,
        })
    }

    fn csv(&self, model: &Model, takes: Takes) -> String {
        let place = format!("{},{}", quoted(&self.path), self.index);
        if self.is_of_values {
            return self.values.iter().fold(place, |line, v| format!("{line},{v}"));
        }
        let Some(k) = self.best(1).first().copied() else { return place };
        format!("{place},{},{k},{}", quoted(&name(model, takes, k)), self.values[k])
    }
}

/// What a class is called; the byte of a text, as it is written in a program.
fn name(model: &Model, takes: Takes, class: usize) -> String {
    match takes {
        Takes::Text(_) => match u8::try_from(class) {
            Ok(byte) => format!("'{}'", byte.escape_ascii()),
            Err(_) => format!("token {class}"),
        },
        _ => model.class_names.get(class).cloned().unwrap_or_else(|| format!("class {class}")),
    }
}

/// A field of a CSV file.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

/// What is written to a file.
#[derive(Clone, Copy)]
enum Form {
    Csv,
    Json,
}

impl Form {
    /// By the end of its name.
    fn of(path: &Path) -> Result<Form> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Ok(Form::Csv),
            Some("json") => Ok(Form::Json),
            _ => Err(Error::new(ErrorKind::Config, format!("{} is no file for predictions", path.display()))
                .at("--out")
                .hint("name it ….csv or ….json")),
        }
    }

    fn text(self, answers: &[Answer], model: &Model, takes: Takes, top: usize) -> String {
        match self {
            Form::Json => {
                let all: Vec<Value> = answers.iter().map(|a| a.json(model, takes, top)).collect();
                format!("{:#}\n", Value::from(all))
            }
            Form::Csv => {
                let values = answers.first().filter(|a| a.is_of_values).map(|a| a.values.len());
                let columns = match values {
                    Some(n) => (0..n).map(|i| format!(",value_{i}")).collect(),
                    None => ",class,label,probability".to_string(),
                };
                let lines = answers.iter().map(|a| a.csv(model, takes) + "\n");
                format!("file,index{columns}\n{}", lines.collect::<String>())
            }
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
