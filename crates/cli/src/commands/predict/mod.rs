//! `systole predict`: what a model says of pictures, of records (TFRecord, CSV, NumPy), and of how a text goes on.

mod prediction;
mod sample_sources;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::{config_of, with_settings};
use crate::models::predictor::{self, OperatorGraph, Predictor};
use crate::models::run_directory;
use crate::models::test_time_augmentation;
use crate::render::screen::{Screen, note};
use crate::run::evaluation;
use clap::Args;
use prediction::{PredictionFormat, SamplePrediction};
use sample_sources::{
    InputKind, ReadOptions, SampleSource, UnreadableFile, nothing, or_go_on, stacked, tokens_of,
};
use serde_json::json;
use std::path::PathBuf;
use systole_config::{RunConfig, TestTimeAugmentation, fraction, scale_pixels};
use systole_data::Sample;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, Literal, Result, ResultExt};
use systole_nn::{Model, counted};

/// Samples in one step: enough to fill the machine, little enough for any memory.
const BATCH: usize = 256;
/// What the program exits with when some samples have no answer.
const INCOMPLETE: u8 = 1;

#[derive(Args)]
pub(crate) struct PredictArgs {
    /// A model file, or the folder of a run: its best model; or a .tflite or .onnx file
    model: String,
    /// JPEG, PNG or BMP files of one picture, IDX files (also .gz) of many; TFRecord, CSV and NumPy files with the fields
    /// that the model learnt from; texts, for models of text; folders of such, whose pictures may lie in folders within
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
    /// Tell of files and rows that cannot be read and answer the others, as is done with those of a folder
    #[arg(long)]
    keep_going: bool,
    /// Dark on light: turn the picture's brightness around (MNIST and its followers are light on dark)
    #[arg(long)]
    invert: bool,
    /// Pixels, 0 to 255, are multiplied by this [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
    /// Test-time augmentation: mix the answer with those to so many changed versions of each picture, as fastai's tta does
    /// [default: data.tta of the TOML]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "4", value_parser = clap::value_parser!(u64).range(1..=1000))]
    tta: Option<u64>,
    /// Set any key of the model's TOML, such as data.records.encoding=latin1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl RunCommand for PredictArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        run(&self, screen)
    }
}

/// Says of a model of several outputs which one answers.
fn tell_of_outputs(model: &Model, screen: &Screen) {
    if let [first, rest @ ..] = model.architecture().output_names().as_slice()
        && !rest.is_empty()
    {
        screen
            .line(format!("Answers are those of the output {first}; the model also has {}", rest.join(", ")));
    }
}

fn run(args: &PredictArgs, screen: &Screen) -> CommandResult {
    let form = args.out.as_deref().map(PredictionFormat::of).transpose().map_err(CommandError::usage)?;
    let file = run_directory::model_file(&args.model)?;
    let Predictor { mut model, operators } = predictor::answerer(&file)?;
    let config = with_settings(config_of(&model, &file)?, &args.sets, &file)?;
    let takes = InputKind::of(&model, &file)?;
    tell_of_outputs(&model, screen);
    if matches!(takes, InputKind::Text(_)) {
        model.class_names = tokens_of(&model)?;
    }
    let scale = match takes {
        InputKind::Pictures(_) => scale(args, config.as_ref(), screen)?,
        _ => 1.0,
    };
    let reading = ReadOptions {
        takes,
        model: &model,
        config: config.as_ref(),
        limit: args.limit,
        invert: args.invert,
        keep_going: args.keep_going,
    };
    // All files are opened before the first answer, so that a bad one leaves no half of a result.
    let mut sources = Vec::new();
    for path in &args.files {
        sources.extend(reading.open(path)?);
    }
    let is_of_values = config.as_ref().is_some_and(|c| c.data.is_own()) && model.class_names.is_empty();
    let tta = test_time(args, takes, config.as_ref())?;
    let mut answering =
        BatchPredictor { takes, scale, is_of_values, screen, told: 0, answers: Vec::new(), tta, operators };
    let show = |answer: SamplePrediction, model: &Model, all: &mut Vec<SamplePrediction>| match form {
        Some(_) => all.push(answer),
        None => answer.show(screen, model, takes, args.top as usize),
    };
    for source in &sources {
        match source {
            Ok(source) => answering.all(source, &mut model, &show)?,
            Err(UnreadableFile { path, error }) => answering.tell(path, None, error),
        }
    }
    if let (Some(form), Some(out)) = (form, &args.out) {
        let answers = &answering.answers;
        let text = form.text(answers, &model, takes, args.top as usize);
        write_atomically(&OsFileSystem, out, &[text.as_bytes()])?;
        let are = if answers.len() == 1 { "is" } else { "are" };
        screen.line(format!("{} {are} in {}", counted(answers.len() as u64, "prediction"), out.display()));
    }
    Ok(answering.finish())
}

/// How often each picture is changed and answered, and how it is changed.
fn test_time(
    args: &PredictArgs,
    takes: InputKind,
    config: Option<&RunConfig>,
) -> Result<Option<(u64, TestTimeAugmentation)>, CommandError> {
    let of_config = config.and_then(|c| c.data.tta).filter(|_| matches!(takes, InputKind::Pictures(_)));
    match (args.tta.or(of_config), takes) {
        (None, _) => Ok(None),
        (Some(n), InputKind::Pictures([.., channels])) => {
            let names = config.map_or(&[][..], |c| &c.data.augment);
            let seed = config.map_or(0, |c| c.seed);
            Ok(Some((n, TestTimeAugmentation::of(names, seed, channels >= 3)?)))
        }
        (Some(_), _) => {
            let e = Error::new(ErrorKind::Config, "the model takes no pictures").at("--tta");
            Err(CommandError::usage(e.hint("leave --tta out")))
        }
    }
}

/// Puts samples to the model, and keeps count of those that have no answer.
struct BatchPredictor<'a> {
    takes: InputKind,
    scale: f64,
    /// Whether numbers are predicted, rather than classes.
    is_of_values: bool,
    screen: &'a Screen,
    told: u64,
    answers: Vec<SamplePrediction>,
    /// What answers in place of the model's layers: a .tflite or ONNX file.
    operators: Option<OperatorGraph>,
    /// How many changed versions of each picture are asked about, too.
    tta: Option<(u64, TestTimeAugmentation)>,
}

impl BatchPredictor<'_> {
    /// The answers for the samples of a file or folder.
    fn all(
        &mut self,
        source: &SampleSource,
        model: &mut Model,
        show: &impl Fn(SamplePrediction, &Model, &mut Vec<SamplePrediction>),
    ) -> Result<()> {
        let (mut waiting, mut count) = (Vec::new(), 0);
        for (index, item) in source.elements.iter().enumerate() {
            count += 1;
            match item {
                Ok(sample) => waiting.push((index, sample)),
                Err(e) if source.goes_on => {
                    let (path, within, many) = source.place(index);
                    self.tell(&path, many.then_some(within), &e);
                }
                Err(e) => return Err(or_go_on(e.at(source.path.clone()), &source.path)),
            }
            if waiting.len() == BATCH {
                self.batch(source, std::mem::take(&mut waiting), model, show)?;
            }
        }
        if count == 0 {
            return Err(nothing(&source.path));
        }
        self.batch(source, waiting, model, show)
    }

    /// What the model says of `x`, whose pixels are as they were read.
    fn outputs(&self, x: Literal, model: &mut Model) -> Result<Literal> {
        let x = match self.takes {
            InputKind::Pictures(_) => {
                scale_pixels(self.scale)(Sample::new([("image", x)])).get("image")?.clone()
            }
            _ => x,
        };
        let x = fit_input(model, &x)?;
        match &self.operators {
            Some(operators) => operators.predict(&x),
            None => model.predict_on_batch(&x),
        }
    }

    fn batch(
        &mut self,
        source: &SampleSource,
        samples: Vec<(usize, Sample)>,
        model: &mut Model,
        show: &impl Fn(SamplePrediction, &Model, &mut Vec<SamplePrediction>),
    ) -> Result<()> {
        if samples.is_empty() {
            return Ok(());
        }
        let inputs = samples.iter().map(|(_, s)| match s.fields().next() {
            Some((_, x)) => x.get(),
            None => Err(nothing(&source.path)),
        });
        let x = stacked(&inputs.collect::<Result<Vec<_>>>()?).at(|| source.path.clone())?;
        let first = samples.first().map_or(0, |(i, _)| *i as u64);
        let mut outputs = self.outputs(x.clone(), model).at(|| source.path.clone())?;
        if let Some((versions, changes)) = &self.tta {
            let of = |v| self.outputs(test_time_augmentation::version(&x, changes, v, first)?, model);
            let answers = (1..=*versions).map(of).collect::<Result<Vec<_>>>().at(|| source.path.clone())?;
            outputs = test_time_augmentation::blended(&outputs, &answers)?;
        }
        for ((index, _), row) in samples.iter().zip(last_values(&outputs, self.takes)) {
            let (path, index, many) = source.place(*index);
            if row.iter().any(|v| !v.is_finite()) {
                self.tell(&path, many.then_some(index), &not_finite());
                continue;
            }
            let values = if self.is_of_values { row } else { evaluation::probabilities(&row) };
            show(
                SamplePrediction { path, index, many, values, is_of_values: self.is_of_values },
                model,
                &mut self.answers,
            );
        }
        Ok(())
    }

    /// Says why a sample has no answer; `index`: its number in a file of several.
    fn tell(&mut self, path: &str, index: Option<usize>, error: &Error) {
        self.told += 1;
        let place = index.map_or(path.to_string(), |i| format!("{path}[{i}]"));
        note(&format!("{place} has no answer: {error}"));
        if self.screen.json {
            let what = if matches!(self.takes, InputKind::Pictures(_)) { "image" } else { "file" };
            self.screen.object(&json!({
                what: path, "index": index.unwrap_or(0), "error": error.what(), "where": error.places().join(", in "),
            }));
        }
    }

    /// What the program exits with.
    fn finish(&self) -> u8 {
        match self.told {
            0 => return 0,
            1 => note("1 sample has no answer"),
            n => note(&format!("{n} samples have no answer")),
        }
        INCOMPLETE
    }
}

/// What a model says of each sample; of a text, what it says at its end.
fn last_values(outputs: &Literal, takes: InputKind) -> Vec<Vec<f32>> {
    let (n, values) = (outputs.shape()[0].max(1), outputs.to_f32s());
    let each = values.len() / n;
    let last = match takes {
        InputKind::Text(length) => each / length.max(1),
        _ => each,
    };
    values.chunks_exact(each.max(1)).map(|row| row[each - last..].to_vec()).collect()
}

fn scale(args: &PredictArgs, config: Option<&RunConfig>, screen: &Screen) -> Result<f64, CommandError> {
    if let Some(text) = &args.scale {
        return fraction(text).map_err(|e| CommandError::usage(e.at(format!("--scale {text}"))));
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

/// Models of `[H, W]` take no channel axis.
fn fit_input(model: &Model, x: &Literal) -> Result<Literal> {
    let rank = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map_or(3, |t| t.shape.rank());
    if rank + 1 == x.shape().rank() { Ok(x.clone()) } else { x.reshape(&x.shape()[..rank + 1]) }
}

/// An answer that says nothing.
fn not_finite() -> Error {
    Error::new(ErrorKind::Numeric, "what the model gives for it is not a finite number")
        .because("a weight of the model is not finite, or the sample's values are too large for it")
        .hint("take another model of the run's folder, such as NAME.best.safetensors, or train again")
}
