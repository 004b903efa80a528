//! `systole evaluate`: computes loss and metrics of a saved model on test data.

use crate::args::common::{CommonArgs, DataArgs};
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::accuracy::CorrectCount;
use crate::models::command_target::{config_of, set_all};
use crate::models::model_data::{check_samples, check_tokens, set_columns, tokenizer_of, with_its_classes};
use crate::models::predictor::{Predictor, answerer, is_of_operators};
use crate::models::run_directory::{self, RunRecord};
use crate::models::test_time_augmentation;
use crate::render::screen::{Screen, counted, values};
use crate::run::confusion::Confusion;
use crate::run::generator_scores::{self, ScoreOptions};
use crate::run::run_summary::one;
use crate::run::training::{call_as_asked, load_data};
use crate::run::user_data::UserData;
use clap::Args;
use serde_json::{Map, json};
use std::path::Path;
use std::time::Instant;
use systole_config::{ConfigDraft, DataSection, RunConfig, fraction};
use systole_ir::{Error, ErrorKind, Result, ResultExt};
use systole_nn::applications::biggan::BigGan;
use systole_nn::loss::Loss;
use systole_nn::{Logs, Model};
use systole_progress::progress::called;

#[derive(Args)]
pub(crate) struct EvaluateArgs {
    /// Model file, run folder (its best model), or .tflite or .onnx file
    ///
    /// For a .tflite or .onnx file the accuracy is computed.
    model: String,
    /// Image folder by class, record file or folder, or text file to evaluate on
    ///
    /// All of the data is used. [default: the test split of the training data]
    #[arg(value_name = "DATA", conflicts_with_all = ["dataset", "data_dir"])]
    source: Option<String>,
    #[command(flatten)]
    data: DataArgs,
    /// Dataset: fashion-mnist, mnist, cifar10, … [default: the training dataset]
    ///
    /// One of fashion-mnist, mnist, glyphs, cifar10, folder, records.
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Batch size [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// Factor for pixel values, 0 to 255 [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
    /// Test-time augmentation with N augmented versions of each image
    ///
    /// Blends the predictions as fastai's `tta` does. [default: data.tta of the TOML]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "4", value_parser = clap::value_parser!(u64).range(1..=1000))]
    tta: Option<u64>,
    /// Classifier for FID and inception score of a generator: model file or run folder
    #[arg(long, value_name = "MODEL")]
    features: Option<String>,
    /// Number of generated images, and of real ones, to score [default: 10000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pictures: Option<u64>,
    /// Set any key of the model's TOML, such as data.records.encoding=latin1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl RunCommand for EvaluateArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        if is_of_operators(&self.model) { of_operators(&self, screen) } else { run(&self, screen) }
    }
}

fn run(args: &EvaluateArgs, screen: &Screen) -> CommandResult {
    let file = run_directory::model_file(&args.model)?;
    let mut model = Model::load(&file)?;
    let mut config = config(args, &file, &model)?;
    if let Some(gan) = BigGan::of(&model) {
        let asked =
            ScoreOptions { features: args.features.as_deref(), pictures: args.pictures.map(|n| n as usize) };
        return generator_scores::evaluate((&file, &mut model), (&gan, &config), asked, screen);
    }
    no_scores(args, &file)?;
    config.data.known_tokenizer = tokenizer_of(&model)?;
    let data = load_data(&config, screen).at(|| format!("the data for {file}"))?;
    check_samples(&model, &config, &data, &file)?;
    let data = with_its_classes(&model, data, &file, "")?;
    check_tokens(&model, &data)?;
    let began = Instant::now();
    let tta = args.tta.or(config.data.tta.filter(|_| data.is_pictures()));
    let logs = match tta {
        Some(versions) => test_time_augmentation::evaluate(&mut model, &config, &data, versions)?,
        None => model.evaluate(&config.test_pipeline(&data))?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let samples = config.data.test_samples.map_or(data.test_len, |n| data.test_len.min(n as usize));
    call_as_asked(&model, &config);
    let shown = values(&logs, |n| Some(called(n)));
    screen.line(format!(
        "{file}: {shown} on {} of {}",
        counted(samples as u64, &format!("test {}", one(data.elements))),
        data.name
    ));
    let perplexity = data.language.as_ref().and_then(|l| Perplexity::of(&model, &logs, l.bytes_per_token));
    perplexity.iter().for_each(|p| screen.line(p.text()));
    if let Some(versions) = tta {
        screen.line(format!(
            "  test-time augmentation: the original and {} of each",
            counted(versions, "augmented version")
        ));
    }
    let confusions = match config.data.is_own() && !data.class_names.is_empty() {
        true => Some(Confusion::count(&mut model, &config.test_pipeline(&data))?),
        false => None,
    };
    confusions.iter().for_each(|c| screen.line(c.text()));
    if screen.json {
        let mut object = Map::new();
        object.insert("model_file".into(), json!(file));
        object.insert("dataset".into(), json!(data.name));
        object.extend(logs.iter().map(|(n, v)| (n.to_string(), json!(v))));
        if let Some(p) = &perplexity {
            object.insert("perplexity".into(), json!(p.perplexity));
            object.insert("bits_per_byte".into(), json!(p.bits_per_byte));
        }
        object.insert("samples".into(), json!(samples));
        tta.iter().for_each(|versions| drop(object.insert("tta".into(), json!(versions))));
        object.insert("seconds".into(), json!(seconds));
        confusions.iter().for_each(|c| drop(object.insert("most_confused".into(), c.json())));
        screen.object(&object.into());
    }
    Ok(0)
}

/// Evaluates the accuracy of a .tflite or ONNX file.
fn of_operators(args: &EvaluateArgs, screen: &Screen) -> CommandResult {
    let file = &args.model;
    no_scores(args, file)?;
    if args.tta.is_some() {
        let e = Error::new(
            ErrorKind::Config,
            "test-time augmentation needs a Systole model, not a .tflite or ONNX file",
        )
        .at("--tta");
        return Err(CommandError::usage(e.hint("remove --tta")));
    }
    let Predictor { model, operators } = answerer(file)?;
    let operators = operators.ok_or_else(|| Error::new(ErrorKind::Bug, "the model file has no operators"))?;
    let mut config = config(args, file, &model)?;
    config.data.known_tokenizer = tokenizer_of(&model)?;
    let mut data = load_data(&config, screen).at(|| format!("the data for {file}"))?;
    if data.language.is_none() {
        check_samples(&model, &config, &data, file)?;
        if data.class_names.is_empty() {
            let e = Error::new(
                ErrorKind::Data,
                format!("{} has no class labels to evaluate {file} on", data.name),
            );
            return Err(e
                .hint("use data with classes, or run single samples with `systole predict` or `systole run`")
                .into());
        }
        if !model.class_names.is_empty() {
            data = data.with_classes(&model.class_names)?;
        }
    }
    let began = Instant::now();
    let found = CorrectCount::of(&operators, &config.test_pipeline(&data), "image").at(|| file.clone())?;
    let seconds = began.elapsed().as_secs_f64();
    let accuracy = found.right as f64 / found.answers.max(1) as f64;
    let places = match found.answers == found.samples {
        true => String::new(),
        false => format!("{} in ", counted(found.answers as u64, "position")),
    };
    screen.line(format!(
        "{file}: accuracy {accuracy:.4} on {places}{} of {}",
        counted(found.samples as u64, &format!("test {}", one(data.elements))),
        data.name
    ));
    if screen.json {
        screen.object(&json!({
            "model_file": file, "dataset": data.name, "accuracy": accuracy, "samples": found.samples,
            "answers": found.answers, "seconds": seconds,
        }));
    }
    Ok(0)
}

/// Rejects the options of generator scores for a model that generates no images.
fn no_scores(args: &EvaluateArgs, file: &str) -> Result<(), CommandError> {
    for (flag, given) in [("--features", args.features.is_some()), ("--pictures", args.pictures.is_some())] {
        if given {
            let e = Error::new(ErrorKind::Config, format!("{file} is not an image generator"));
            return Err(CommandError::usage(e.at(flag).hint("remove the option")));
        }
    }
    Ok(())
}

/// Perplexity of a language model.
struct Perplexity {
    /// Perplexity per token: exp of the mean negative log-likelihood.
    perplexity: f64,
    /// Comparable between models with different tokenizers.
    bits_per_byte: f64,
}

impl Perplexity {
    /// Computes the perplexity if the loss is the mean negative log-likelihood.
    fn of(model: &Model, logs: &Logs, bytes_per_token: f64) -> Option<Perplexity> {
        let loss = &model.compile_config()?.loss;
        let nats =
            logs.get("loss").filter(|_| matches!(loss.base(), Loss::SparseCategoricalCrossentropy { .. }))?;
        Some(Perplexity {
            perplexity: nats.exp(),
            bits_per_byte: nats / std::f64::consts::LN_2 / bytes_per_token,
        })
    }

    fn text(&self) -> String {
        format!("  perplexity {:.2} per token, {:.3} bits per byte", self.perplexity, self.bits_per_byte)
    }
}

/// Returns the configuration in the model file, or the named dataset's preset, with the arguments applied.
fn config(args: &EvaluateArgs, file: &str, model: &Model) -> Result<RunConfig, CommandError> {
    let known = config_of(model, file)?;
    let own = args.source.as_deref().map(|name| own_data(name).map(|own| (name, own))).transpose()?;
    let mut draft = match (&known, &args.dataset) {
        (None, None) if own.is_some() => ConfigDraft::preset("folder")?,
        (Some(config), _) => {
            ConfigDraft::parse(&config.to_toml()?, &format!("the configuration stored in {file}"))?
        }
        (None, Some(dataset)) => ConfigDraft::preset(dataset).map_err(CommandError::usage)?,
        (None, None) => {
            let e = Error::new(ErrorKind::Config, format!("{file} does not contain its training dataset"));
            return Err(CommandError::usage(e.hint("name the dataset with --dataset")));
        }
    };
    let other_data =
        args.dataset.as_deref().is_some_and(|d| known.as_ref().is_none_or(|k| k.data.dataset != d));
    if let Some(name) = &args.dataset {
        draft.set_text(format!("--dataset {name}"), "data.dataset", name);
    }
    if let Some(config) = known.as_ref().filter(|_| !other_data) {
        set_columns(&mut draft, config, model, file);
    }
    if other_data {
        // Folder and size of the original dataset do not apply to the named one.
        draft.set("--dataset", "data.dir", "none");
        draft.set("--dataset", "data.test_samples", "none");
    }
    // The model file does not contain the data folder, but the run record does.
    let run = RunRecord::read(Path::new(&args.model))?.map(|run| run.config.data).filter(DataSection::is_own);
    if let Some((name, own)) = &own {
        own.set(&mut draft, name, known.as_ref(), model);
    } else if let Some(dir) = run.and_then(|data| data.dir).filter(|_| !other_data) {
        draft.set_text(&args.model, "data.dir", &dir.display().to_string());
    }
    if let Some(dir) = &args.data.data_dir {
        draft.set_text("--data-dir", "data.dir", &dir.display().to_string());
    }
    if let Some(n) = args.batch_size {
        draft.set(format!("--batch-size {n}"), "fit.batch_size", &n.to_string());
    }
    if let Some(scale) = &args.scale {
        let flag = format!("--scale {scale}");
        let value = fraction(scale).map_err(|e| CommandError::usage(e.at(flag.clone())))?;
        draft.set(flag, "data.scale", &format!("{value:?}"));
    }
    set_all(&mut draft, &args.sets)?;
    let mut config = draft.finish()?;
    if own.is_some() {
        // Evaluate on all of it: no part is needed for training.
        config.data.validation_split = Some(1.0);
    }
    Ok(config)
}

fn own_data(name: &str) -> Result<UserData, CommandError> {
    UserData::of(name)?.ok_or_else(|| {
        let e = Error::new(ErrorKind::Config, format!("cannot evaluate on {name}"));
        CommandError::usage(e.hint(
            "name a folder with one image folder per class, a record file (.csv, .npz, .tfrecord, .tar) or a \
             text file (.txt); or name a published dataset with --dataset",
        ))
    })
}
