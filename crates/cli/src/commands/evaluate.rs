//! `systole evaluate`: computes loss and metrics of a saved model on test data.

use crate::args::common::{CommonArgs, DataArgs, LabelArgs};
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::accuracy::CorrectCount;
use crate::models::binary_output::BinaryOutput;
use crate::models::command_target::set_all;
use crate::models::image_preparation::check_image_head;
use crate::models::imported;
use crate::models::model_data::{check_samples, in_its_order};
use crate::models::predictor::{Predictor, answerer, is_of_operators};
use crate::models::run_directory;
use crate::models::test_time_augmentation;
use crate::render::screen::{Screen, counted, note, values};
use crate::run::confusion::Confusion;
use crate::run::generator_scores::{self, ScoreOptions};
use crate::run::run_data::{NamedData, OTHER_CLASSES, RunData};
use crate::run::training::call_as_asked;
use crate::run::training_overlap::TrainingOverlap;
use clap::Args;
use serde_json::{Map, Value, json};
use std::time::Instant;
use systole_config::{RunConfig, fraction};
use systole_datasets::TrainingData;
use systole_ir::{Literal, ResultExt, err};
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
    #[command(flatten)]
    label: LabelArgs,
    /// Use this dataset, such as fashion-mnist [default: the training dataset]
    ///
    /// One of fashion-mnist, mnist, glyphs, cifar10, cifar100, folder, records.
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Set the batch size [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// Multiply pixel values, 0 to 255, by X [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
    /// Average over N augmented versions of each image (test-time augmentation)
    ///
    /// Blends the predictions as fastai's `tta` does. [default: data.tta of the TOML]
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "4", value_parser = clap::value_parser!(u64).range(1..=1000))]
    tta: Option<u64>,
    /// Compute a generator's FID and inception score with this classifier
    ///
    /// A model file or a run folder.
    #[arg(long, value_name = "MODEL")]
    features: Option<String>,
    /// Score N generated images and N real images [default: 10000]
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
    let mut model = imported::load(&file)?;
    check_image_head(&model, &file)?;
    imported::compile_unless_compiled(&mut model)?;
    let run_data = RunData::of(&model, &file)?.with_scale_options(Some(&args.scale), &args.sets);
    let mut config = config(args, &run_data, &model)?;
    if let Some(gan) = BigGan::of(&model) {
        let asked =
            ScoreOptions { features: args.features.as_deref(), pictures: args.pictures.map(|n| n as usize) };
        return generator_scores::evaluate((&file, &mut model), (&gan, &config, &run_data), asked, screen);
    }
    no_scores(args, &file)?;
    let data = run_data.load(&model, &mut config, screen)?;
    model.loss_activation_warnings().iter().for_each(|text| note(text));
    let overlap = TrainingOverlap::of(&run_data, &model, (&config, &data), screen)?;
    let began = Instant::now();
    let tta = args.tta.or(config.data.tta.filter(|_| data.is_pictures()));
    let mut confusions = (config.data.is_own() && !model.class_names.is_empty())
        .then(|| Confusion::new(model.class_names.clone()));
    let logs = match tta {
        Some(versions) => {
            let binary = BinaryOutput::of_layers(&model);
            let count = |labels: &Literal, predictions: &Literal| {
                confusions.iter_mut().for_each(|c| c.add_batch(labels, predictions, binary));
            };
            test_time_augmentation::evaluate(&mut model, &config, &data, versions, count)?
        }
        None => model.evaluate(&config.test_pipeline(&data))?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let samples = config.data.test_samples.map_or(data.test_len, |n| data.test_len.min(n as usize));
    call_as_asked(&model, &config);
    let perplexity = data.language.as_ref().and_then(|l| Perplexity::of(&model, &logs, l.bytes_per_token));
    if tta.is_none() && confusions.is_some() {
        confusions = Some(Confusion::count(&mut model, &config.test_pipeline(&data))?);
    }
    let found = EvaluationResult { logs, samples, overlap, perplexity, confusions, tta, seconds };
    found.show(&args.model, &file, &data, screen);
    Ok(0)
}

/// Metrics of a model and the samples that they are computed from.
struct EvaluationResult {
    logs: Logs,
    samples: usize,
    overlap: TrainingOverlap,
    perplexity: Option<Perplexity>,
    confusions: Option<Confusion>,
    /// Number of augmented versions of each image.
    tta: Option<u64>,
    seconds: f64,
}

impl EvaluationResult {
    /// Prints the result of `file`, the model that the argument `named` resolves to.
    fn show(&self, named: &str, file: &str, data: &TrainingData, screen: &Screen) {
        let shown = values(&self.logs, |n| Some(called(n)));
        screen.line(format!("{file}: {shown} on {}", self.overlap.describe(self.samples, data)));
        self.overlap.warning(named).iter().for_each(|warning| screen.line(warning));
        self.perplexity.iter().for_each(|p| screen.line(p.text()));
        if let Some(versions) = self.tta {
            screen.line(format!(
                "  test-time augmentation: the original and {} of each",
                counted(versions, "augmented version")
            ));
        }
        self.confusions.iter().for_each(|c| screen.line(c.text()));
        if screen.json {
            screen.object(&self.json(file, data));
        }
    }

    fn json(&self, file: &str, data: &TrainingData) -> Value {
        let mut object = Map::new();
        object.insert("model_file".into(), json!(file));
        object.insert("dataset".into(), json!(data.name));
        object.extend(self.logs.iter().map(|(n, v)| (n.to_string(), json!(v))));
        if let Some(p) = &self.perplexity {
            object.insert("perplexity".into(), json!(p.perplexity));
            object.insert("bits_per_byte".into(), json!(p.bits_per_byte));
        }
        object.insert("samples".into(), json!(self.samples));
        object.insert("training_samples".into(), json!(self.overlap.training_samples()));
        self.tta.iter().for_each(|versions| drop(object.insert("tta".into(), json!(versions))));
        object.insert("seconds".into(), json!(self.seconds));
        self.confusions.iter().for_each(|c| drop(object.insert("most_confused".into(), c.json())));
        object.into()
    }
}

/// Evaluates the accuracy of a .tflite or ONNX file.
fn of_operators(args: &EvaluateArgs, screen: &Screen) -> CommandResult {
    let file = &args.model;
    no_scores(args, file)?;
    if args.tta.is_some() {
        let e = err!(Config, "test-time augmentation needs a Systole model, not a .tflite or ONNX file")
            .at("--tta");
        return Err(CommandError::usage(e.hint_command("remove --tta")));
    }
    let Predictor { model, operators, binary_output } = answerer(file)?;
    let operators = operators.ok_or_else(|| err!(Bug, "the model file has no operators"))?;
    let run_data = RunData::of(&model, file)?.with_scale_options(Some(&args.scale), &args.sets);
    let mut config = config(args, &run_data, &model)?;
    let mut data = run_data.load_unmatched(&model, &mut config, screen)?;
    run_data.show_notes(&model, &config, &data)?;
    if data.language.is_none() {
        check_samples(&model, &config, &data, file)?;
        if data.class_names.is_empty() {
            let e = err!(Data, "{} has no class labels to evaluate {file} on", data.name);
            return Err(e
                .hint_command(
                    "use data with classes, or run single samples with `systole predict` or `systole run`",
                )
                .into());
        }
        if !model.class_names.is_empty() {
            data = in_its_order(&model, data, file, OTHER_CLASSES)?;
        }
    }
    let overlap = TrainingOverlap::of(&run_data, &model, (&config, &data), screen)?;
    let began = Instant::now();
    let test = config.test_pipeline(&data);
    let found = CorrectCount::of((&operators, binary_output), &test, "image").at(|| file.clone())?;
    let seconds = began.elapsed().as_secs_f64();
    let accuracy = found.right as f64 / found.answers.max(1) as f64;
    let places = match found.answers == found.samples {
        true => String::new(),
        false => format!("{} in ", counted(found.answers as u64, "position")),
    };
    screen.line(format!(
        "{file}: accuracy {accuracy:.4} on {places}{}",
        overlap.describe(found.samples, &data)
    ));
    overlap.warning(file).iter().for_each(|warning| screen.line(warning));
    if screen.json {
        screen.object(&json!({
            "model_file": file, "dataset": data.name, "accuracy": accuracy, "samples": found.samples,
            "training_samples": overlap.training_samples(), "answers": found.answers, "seconds": seconds,
        }));
    }
    Ok(0)
}

/// Rejects the options of generator scores for a model that generates no images.
fn no_scores(args: &EvaluateArgs, file: &str) -> CommandResult<()> {
    for (flag, given) in [("--features", args.features.is_some()), ("--pictures", args.pictures.is_some())] {
        if given {
            let e = err!(Config, "{file} is not an image generator");
            return Err(CommandError::usage(e.at(flag).hint_command(format!("remove {flag}"))));
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

/// Returns the configuration of the data to evaluate on, with the arguments applied.
fn config(args: &EvaluateArgs, run_data: &RunData, model: &Model) -> CommandResult<RunConfig> {
    let (source, label) = (args.source.as_deref(), args.label.setting());
    let named = NamedData { source, label, ..NamedData::of(&args.dataset, &args.data) };
    let mut draft = run_data.draft_of(model, &named)?;
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
    args.label.check(&config)?;
    if args.source.is_some() {
        // Evaluate on all of it: no part is needed for training.
        config.data.validation_split = Some(1.0);
    }
    Ok(config)
}
