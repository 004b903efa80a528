//! `systole predict`: runs inference on images, records (TFRecord, CSV, NumPy) or texts.

mod arrays;
mod embedding;
mod prediction;
mod sample_sources;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::binary_output::BinaryOutput;
use crate::models::command_target::{config_of, with_settings};
use crate::models::image_preparation::ImagePreparation;
use crate::models::imported::LOGIT_SCALE;
use crate::models::predictor::{self, OperatorGraph, Predictor};
use crate::models::preprocessing::{PIXEL_SCALE, stored_scale};
use crate::models::run_directory;
use crate::models::test_time_augmentation;
use crate::render::screen::{Screen, note};
use crate::run::evaluation;
use clap::Args;
use embedding::Candidates;
use prediction::{PredictionFormat, SamplePrediction};
use sample_sources::{
    IMAGE_FORMATS, InputKind, RECORD_FORMATS, ReadOptions, SampleSource, UnreadableFile, is_named_as_picture,
    is_of_sentences, nothing, or_go_on, stacked, text_tokenizer, tokens_of,
};
use serde_json::json;
use std::path::{Path, PathBuf};
use systole_config::{
    RunConfig, TestTimeAugmentation, first_rescaling, fraction, is_scaled, rescaled_twice, scale_pixels,
    scaled_again,
};
use systole_data::Sample;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, Literal, Result, ResultExt};
use systole_nn::loss::Loss;
use systole_nn::{Activation, Model, counted};
use systole_weights::Tower;

/// Batch size: large enough for full utilization, small enough for any memory.
const BATCH: usize = 256;
/// Default number of printed classes.
const TOP: u64 = 3;
/// Exit code if some samples could not be predicted.
const INCOMPLETE: u8 = 1;

#[derive(Args)]
pub(crate) struct PredictArgs {
    /// Model file, run folder (its best model), .tflite or .onnx file, or Hugging Face folder
    model: String,
    #[arg(required_unless_present = "text", value_name = "FILES", help = files_help(), long_help = files_long_help())]
    files: Vec<String>,
    /// Classify or embed this text; repeatable
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// Predict at most N samples of each file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Print the K most likely classes of each sample [default: 3; in .csv files 1]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    top: Option<u64>,
    /// Write the predictions to this .csv or .json file instead of printing them
    ///
    /// CSV has the columns `file`, `index`, `class`, `label` (index of the class) and `probability`, then `class_2`, … for
    /// `--top` above 1; `value_0`, … for outputs that are no classes. JSON has all classes of `--top`.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Report unreadable files and rows, and continue with the others
    ///
    /// Folders are always read this way.
    #[arg(long)]
    keep_going: bool,
    /// Invert the brightness of dark-on-light images (MNIST is light on dark)
    #[arg(long)]
    invert: bool,
    /// Multiply pixel values, 0 to 255, by X [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
    /// Print embeddings: the features before the classification layer
    ///
    /// Features of several positions are averaged, without padding.
    #[arg(long, conflicts_with_all = ["top", "tta"])]
    embed: bool,
    /// Rank this text or image file by similarity to each sample; repeatable
    ///
    /// With CLIP, texts are ranked for images and images for texts, as probabilities. Other encoders report the cosine.
    #[arg(long = "candidate", value_name = "TEXT|IMAGE", conflicts_with_all = ["embed", "tta"])]
    candidates: Vec<String>,
    /// Average over N augmented versions of each image (test-time augmentation)
    ///
    /// Blends the predictions as fastai's `tta` does. [default: data.tta of the TOML]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "4", value_parser = clap::value_parser!(u64).range(1..=1000))]
    tta: Option<u64>,
    /// Set any key of the model's TOML, such as data.records.encoding=latin1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

fn files_help() -> String {
    format!("Image, {RECORD_FORMATS} or text files, or folders of these")
}

fn files_long_help() -> String {
    format!(
        "{}\n\nImages are {IMAGE_FORMATS}; IDX files (also .gz) contain many images. A NumPy array has the shape of the \
        model's input, or a batch dimension before it; pixels are scaled. Records must have the fields that the model was \
        trained on. A classifier of texts reads .txt (one text), .csv and .jsonl files (a text in each row). Folders are \
        searched for images recursively.",
        files_help()
    )
}

impl RunCommand for PredictArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        run(&self, screen)
    }

    fn only_prints(&self) -> bool {
        self.out.is_none()
    }
}

/// Reports which output of a multi-output model is shown.
fn tell_of_outputs(model: &Model, screen: &Screen) {
    if let [first, rest @ ..] = model.architecture().output_names().as_slice()
        && !rest.is_empty()
    {
        screen
            .line(format!("Predictions are from the output {first}; the model also has {}", rest.join(", ")));
    }
}

fn run(args: &PredictArgs, screen: &Screen) -> CommandResult {
    let form = args.out.as_deref().map(PredictionFormat::of).transpose().map_err(CommandError::usage)?;
    let file = run_directory::model_file(&args.model)?;
    let tower = tower(args);
    let Predictor { mut model, operators, binary_output } = opened(args, &file, tower)?;
    let config = with_settings(config_of(&model, &file)?, &args.sets, &file)?;
    let embeds = args.embed || !args.candidates.is_empty();
    let takes = InputKind::of(&model, &file, !embeds)?;
    check_image_options(args, takes)?;
    tell_of_outputs(&model, screen);
    let candidates = candidates(args, &file, screen)?;
    match takes {
        InputKind::Text(_) if embeds => return Err(no_embeddings(&model, &file).into()),
        InputKind::Text(_) => model.class_names = tokens_of(&model)?,
        _ if candidates.is_some() => model.class_names.clone_from(&args.candidates),
        _ => {}
    }
    let scale = match takes {
        InputKind::Pictures(_) => scale(args, config.as_ref(), &model, screen)?,
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
    let sources = sources(args, &reading)?;
    let is_of_values = args.embed || (!embeds && predicts_values(&model, takes, config.as_ref()));
    let mut answering = BatchPredictor {
        is_of_values,
        is_multi_label: is_multi_label(&model, takes),
        embeds,
        candidates,
        tta: test_time(args, takes, config.as_ref())?,
        operators,
        binary_output,
        ..BatchPredictor::new(takes, scale, screen)
    };
    let show = |answer: SamplePrediction, model: &Model, all: &mut Vec<SamplePrediction>| match form {
        Some(_) => all.push(answer),
        None => answer.show(screen, model, takes, args.top.unwrap_or(TOP) as usize),
    };
    for source in &sources {
        match source {
            Ok(source) => answering.all(source, &mut model, &show)?,
            Err(UnreadableFile { path, error }) => answering.tell(path, None, error),
        }
    }
    if let (Some(form), Some(out)) = (form, &args.out) {
        let top = args.top.unwrap_or(if form == PredictionFormat::Csv { 1 } else { TOP });
        let text = form.text(&answering.answers, &model, takes, top as usize);
        write_predictions(&text, answering.answers.len(), out, screen)?;
    }
    Ok(answering.finish())
}

/// Encoder of a folder of images and texts that the samples need.
fn tower(args: &PredictArgs) -> Tower {
    let is_of_texts = !args.text.is_empty() || args.files.iter().any(|file| is_of_sentences(file));
    if is_of_texts { Tower::Texts } else { Tower::Images }
}

/// Opens the model; for embeddings without its classification layer.
fn opened(args: &PredictArgs, file: &str, tower: Tower) -> Result<Predictor> {
    let predictor = predictor::answerer_of_tower(file, tower)?;
    if !args.embed && args.candidates.is_empty() {
        return Ok(predictor);
    }
    if predictor.operators.is_some() {
        let what = format!("{file} consists of operators, of which the features are unknown");
        return Err(Error::new(ErrorKind::Unsupported, what)
            .hint_command("name the model file that the operators were exported from"));
    }
    Ok(Predictor { model: embedding::without_head(predictor.model)?, ..predictor })
}

/// Error for the embeddings of a model that continues texts, or whose tokenizer is missing.
fn no_embeddings(model: &Model, file: &str) -> Error {
    if let Err(e) = text_tokenizer(model) {
        return e;
    }
    Error::new(ErrorKind::Unsupported, format!("{file} continues texts and has no embeddings"))
        .hint_command("use an encoder of texts: `systole import --list` prints the families")
}

/// Embeds the candidates of the command line: texts, or image files.
fn candidates(args: &PredictArgs, file: &str, screen: &Screen) -> Result<Option<Candidates>, CommandError> {
    let Some(first) = args.candidates.first() else { return Ok(None) };
    let is_image = |name: &String| is_named_as_picture(Path::new(name)) && Path::new(name).is_file();
    let are_images = is_image(first);
    if let Some(other) = args.candidates.iter().find(|name| is_image(name) != are_images) {
        let what = format!("the candidates `{first}` and `{other}` are a text and an image");
        let e = Error::new(ErrorKind::Config, what).at("--candidate");
        return Err(CommandError::usage(e.hint_command("pass either texts or image files as --candidate")));
    }
    let tower = if are_images { Tower::Images } else { Tower::Texts };
    let Predictor { mut model, .. } = opened(args, file, tower)?;
    let takes = InputKind::of(&model, file, false)?;
    let scale = if are_images { scale(args, None, &model, screen)? } else { 1.0 };
    let reading = ReadOptions {
        takes,
        model: &model,
        config: None,
        limit: None,
        invert: args.invert,
        keep_going: false,
    };
    let mut sources = Vec::new();
    for name in &args.candidates {
        match are_images {
            true => sources.extend(reading.open(name)?.into_iter().flatten()),
            false => sources.push(reading.text(name)?),
        }
    }
    let mut answering =
        BatchPredictor { is_of_values: true, embeds: true, ..BatchPredictor::new(takes, scale, screen) };
    for source in &sources {
        answering.all(source, &mut model, &|answer, _, all| all.push(answer))?;
    }
    let factor = model.notes.get(LOGIT_SCALE).and_then(|text| text.parse::<f32>().ok());
    let embeddings = answering.answers.iter().map(|answer| embedding::unit(&answer.values)).collect();
    Ok(Some(Candidates { embeddings, scale: factor.map(f32::exp) }))
}

/// Opens all files before the first prediction, so that a bad file does not leave a partial result.
fn sources(
    args: &PredictArgs,
    reading: &ReadOptions<'_>,
) -> Result<Vec<Result<SampleSource, UnreadableFile>>, CommandError> {
    let mut sources = Vec::new();
    for text in &args.text {
        sources.push(Ok(reading.text(text)?));
    }
    for path in &args.files {
        sources.extend(reading.open(path)?);
    }
    Ok(sources)
}

/// Whether the model predicts numbers rather than classes.
fn predicts_values(model: &Model, takes: InputKind, config: Option<&RunConfig>) -> bool {
    match takes {
        InputKind::Sentences(_) => model.output_type().is_some_and(|t| t.elements() == 1),
        _ => {
            let loss = model.compile_config().map(|compile| compile.loss.base());
            let of_classes = matches!(loss, Some(Loss::SparseCategoricalCrossentropy { .. }));
            config.is_some_and(|c| c.data.is_own()) && model.class_names.is_empty() && !of_classes
        }
    }
}

fn write_predictions(text: &str, count: usize, out: &Path, screen: &Screen) -> Result<()> {
    write_atomically(&OsFileSystem, out, &[text.as_bytes()])?;
    let are = if count == 1 { "is" } else { "are" };
    screen.line(format!("{} {are} in {}", counted(count as u64, "prediction"), out.display()));
    Ok(())
}

/// Returns the number of augmented versions and the augmentation, if test-time augmentation is on.
fn test_time(
    args: &PredictArgs,
    takes: InputKind,
    config: Option<&RunConfig>,
) -> Result<Option<(u64, TestTimeAugmentation)>, CommandError> {
    let of_config = config.and_then(|c| c.data.tta).filter(|_| matches!(takes, InputKind::Pictures(_)));
    match (args.tta.or(of_config), takes) {
        (Some(n), InputKind::Pictures([.., channels])) => {
            let names = config.map_or(&[][..], |c| &c.data.augment);
            let seed = config.map_or(0, |c| c.seed);
            Ok(Some((n, TestTimeAugmentation::of(names, seed, channels >= 3)?)))
        }
        _ => Ok(None),
    }
}

/// Rejects options for images if the model has other input.
fn check_image_options(args: &PredictArgs, takes: InputKind) -> Result<(), CommandError> {
    let options =
        [("--tta", args.tta.is_some()), ("--invert", args.invert), ("--scale", args.scale.is_some())];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) if !matches!(takes, InputKind::Pictures(_)) => {
            let e = Error::new(ErrorKind::Config, format!("`{option}` needs a model with image input"));
            Err(CommandError::usage(e.at(option).hint_command(format!("remove {option}"))))
        }
        _ => Ok(()),
    }
}

/// Runs the model on samples in batches and counts the samples that failed.
struct BatchPredictor<'a> {
    takes: InputKind,
    scale: f64,
    /// Whether the model predicts numbers rather than classes.
    is_of_values: bool,
    /// Whether each class has a probability of its own: the last layer is a sigmoid.
    is_multi_label: bool,
    screen: &'a Screen,
    told: u64,
    answers: Vec<SamplePrediction>,
    /// Operators of a .tflite or ONNX file, which replace the model's layers.
    operators: Option<OperatorGraph>,
    /// Meaning of a single output for two classes: probability or logit.
    binary_output: BinaryOutput,
    /// Test-time augmentation: number of versions and augmentation.
    tta: Option<(u64, TestTimeAugmentation)>,
    /// Whether the outputs are features, which are averaged over positions.
    embeds: bool,
    /// Candidates whose similarities replace the outputs.
    candidates: Option<Candidates>,
}

impl<'a> BatchPredictor<'a> {
    /// Predicts classes with the layers of the model.
    fn new(takes: InputKind, scale: f64, screen: &'a Screen) -> BatchPredictor<'a> {
        BatchPredictor {
            takes,
            scale,
            is_of_values: false,
            is_multi_label: false,
            screen,
            told: 0,
            answers: Vec::new(),
            operators: None,
            binary_output: BinaryOutput::Probability,
            tta: None,
            embeds: false,
            candidates: None,
        }
    }

    /// Predicts the samples of a file or folder.
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

    /// Runs the model on `x`, which has unscaled pixels.
    fn outputs(&self, x: Literal, model: &mut Model) -> Result<Literal> {
        let x = match self.takes {
            InputKind::Pictures(_) => {
                scale_pixels(self.scale)(Sample::new([("image", x)])).get("image")?.clone()
            }
            _ => x,
        };
        if matches!(self.takes, InputKind::Sentences(_)) {
            let outputs = sentence_outputs(x.clone(), model)?;
            return if self.embeds { embedding::pooled(&outputs, Some(&x), model) } else { Ok(outputs) };
        }
        let x = fit_input(model, &x)?;
        match &self.operators {
            Some(operators) => operators.predict(&x),
            None if self.embeds => embedding::pooled(&model.predict_on_batch(&x)?, None, model),
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
        if first == 0 && self.scale < 1.0 && samples.iter().all(|(_, s)| s.get("image").is_ok_and(is_scaled))
        {
            note(&scaled_again(&source.path, self.scale, "pass --scale 1"));
        }
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
            let is_similarity = self.candidates.as_ref().is_some_and(|c| c.scale.is_none());
            let is_of_values = self.is_of_values || self.is_single_value(&row, model);
            let values = self.values(row, is_of_values);
            let answer = SamplePrediction { path, index, many, values, is_of_values, is_similarity };
            show(answer, model, &mut self.answers);
        }
        Ok(())
    }

    /// Whether one output is a number: it is neither the probability of a class nor the logit of two named classes.
    fn is_single_value(&self, row: &[f32], model: &Model) -> bool {
        let is_of_classes = model.class_names.len() == 2 || self.binary_output == BinaryOutput::Probability;
        row.len() == 1 && !is_of_classes && self.candidates.is_none()
    }

    /// Probabilities of the classes, similarities to the candidates, or the outputs themselves.
    fn values(&self, row: Vec<f32>, is_of_values: bool) -> Vec<f32> {
        if let Some(candidates) = &self.candidates {
            return candidates.similarities(&row);
        }
        match (is_of_values || self.is_multi_label, row.as_slice()) {
            (true, _) => row,
            (false, [output]) => self.binary_output.probabilities(*output).to_vec(),
            (false, _) => evaluation::probabilities(&row),
        }
    }

    /// Reports why a sample could not be predicted; `index` is its number in a file of several.
    fn tell(&mut self, path: &str, index: Option<usize>, error: &Error) {
        self.told += 1;
        let place = index.map_or(path.to_string(), |i| format!("{path}[{i}]"));
        note(&format!("no prediction for {place}: {error}"));
        if self.screen.json {
            let what = if matches!(self.takes, InputKind::Pictures(_)) { "image" } else { "file" };
            self.screen.object(&json!({
                what: path, "index": index.unwrap_or(0), "error": error.what(), "where": error.places().join(", in "),
            }));
        }
    }

    /// Prints the number of failed samples and returns the exit code.
    fn finish(&self) -> u8 {
        match self.told {
            0 => return 0,
            1 => note("1 sample has no prediction"),
            n => note(&format!("{n} samples have no prediction")),
        }
        INCOMPLETE
    }
}

/// Whether each class has a probability of its own: the last layer is a sigmoid. One sigmoid of an image or a record is
/// the probability of the second of two classes.
fn is_multi_label(model: &Model, takes: InputKind) -> bool {
    let last = model.architecture().output_activation(0);
    let is_sigmoid = last.is_some_and(|(_, activation)| activation == Activation::Sigmoid);
    is_sigmoid
        && match takes {
            InputKind::Sentences(_) => true,
            InputKind::Text(_) => false,
            InputKind::Pictures(_) | InputKind::Numbers(_) => {
                model.output_type().is_some_and(|t| t.elements() > 1)
            }
        }
}

/// Runs a classifier of texts on `x: i32[B, S]`, padded; segment ids are 0.
fn sentence_outputs(x: Literal, model: &mut Model) -> Result<Literal> {
    model.set_sequence_length(x.shape()[1]);
    let segments = Literal::zeros(x.ty().clone());
    let names: Vec<String> = model.architecture().inputs.iter().map(|i| i.name.clone()).collect();
    let first = names.first().cloned().unwrap_or_default();
    let mut batch = Sample::new([(first, x)]);
    for name in names.into_iter().skip(1) {
        batch = batch.with(&name, segments.clone());
    }
    model.predict_on_sample(&batch)
}

/// Returns the outputs of each sample; for text, those of the last position.
fn last_values(outputs: &Literal, takes: InputKind) -> Vec<Vec<f32>> {
    let (n, values) = (outputs.shape()[0].max(1), outputs.to_f32s());
    let each = values.len() / n;
    let last = match takes {
        InputKind::Text(length) => each / length.max(1),
        _ => each,
    };
    values.chunks_exact(each.max(1)).map(|row| row[each - last..].to_vec()).collect()
}

/// Returns the factor for pixels, and warns if the model's first layer scales them too.
fn scale(
    args: &PredictArgs,
    config: Option<&RunConfig>,
    model: &Model,
    screen: &Screen,
) -> Result<f64, CommandError> {
    let scale = match (&args.scale, config) {
        (Some(text), _) => {
            fraction(text).map_err(|e| CommandError::usage(e.at(format!("--scale {text}"))))?
        }
        (None, Some(config)) => config.data.scale,
        // Its mean and standard deviation are those of pixels from 0 to 255.
        (None, None) if ImagePreparation::in_model(model)?.is_some() => 1.0,
        (None, None) if model.notes.contains_key(PIXEL_SCALE) => stored_scale(model)?.unwrap_or(1.0),
        (None, None) => {
            let how = match first_rescaling(model.architecture()) {
                Some(_) => "which its first layer rescales",
                None => "set it with --scale 1/255",
            };
            screen.line(format!("{} contains no pixel scale: using 0 to 255 ({how})", args.model));
            1.0
        }
    };
    rescaled_twice(model.architecture(), scale, "pass --scale 1").iter().for_each(|text| note(text));
    Ok(scale)
}

/// Removes the channel axis for models with `[H, W]` input.
fn fit_input(model: &Model, x: &Literal) -> Result<Literal> {
    let rank = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map_or(3, |t| t.shape.rank());
    if rank + 1 == x.shape().rank() { Ok(x.clone()) } else { x.reshape(&x.shape()[..rank + 1]) }
}

/// Error for non-finite outputs.
fn not_finite() -> Error {
    Error::new(ErrorKind::Numeric, "the model's output is not finite")
        .because("a weight of the model is not finite, or the sample's values are too large")
        .hint_command("use another model of the run folder, such as NAME.best.safetensors, or train again")
}
