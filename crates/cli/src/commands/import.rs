//! `systole import`: converts PyTorch, Hugging Face and Keras weights to a model file.

use crate::args::common::CommonArgs;
use crate::args::download::DownloadArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand, check_extension, check_out};
use crate::models::command_target::{CommandTarget, config_of};
use crate::models::image_preparation::ImagePreparation;
use crate::models::imported::{
    FolderTokenizer, built, keep_settings, name_classes, shortened, unknown_model,
};
use crate::models::model_data::tokenizer_of;
use crate::models::pretrained;
use crate::render::screen::{Screen, counted, note, program, quoted, table};
use crate::run::training::load_data;
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use systole_config::{first_rescaling, shown_factor, size_conflicts};
use systole_datasets::DataDir;
use systole_ir::{Error, ErrorKind, ResultExt, TensorType};
use systole_nn::Model;
use systole_weights::{
    FamilyInfo, FetchedModel, ImportReport, ImportRow, Tower, WeightSource, families, pretrained_entries,
};

#[derive(Args)]
pub(crate) struct ImportArgs {
    /// Weights: .pt, .pth, .safetensors, .keras, .h5, a Hugging Face folder, or a pretrained model
    ///
    /// Pretrained models have names: hf:OWNER/NAME[@REVISION], keras:ResNet50, torchvision:resnet50[@WEIGHTS].
    #[arg(required_unless_present = "list")]
    file: Option<PathBuf>,
    /// Use the layers of this preset, TOML file or model [default: those in the file]
    #[arg(long, value_name = "PRESET|TOML|MODEL")]
    model: Option<String>,
    /// Write this model file
    #[arg(short, long, value_name = "FILE.safetensors", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Skip tensors that the model does not have
    #[arg(long)]
    partial: bool,
    /// Read this encoder of a model of images and texts [default: images]
    #[arg(long, value_name = "ENCODER", value_parser = ["images", "texts"])]
    encoder: Option<String>,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// List the model families whose folders are read without --model, and pretrained models
    #[arg(long, conflicts_with_all = ["file", "out", "model", "partial", "encoder", "force"])]
    list: bool,
    #[command(flatten)]
    download: DownloadArgs,
}

/// Arguments of an import.
struct ImportFiles<'a> {
    file: &'a PathBuf,
    out: &'a PathBuf,
    args: &'a ImportArgs,
}

impl RunCommand for ImportArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        match (&self.file, &self.out) {
            (Some(file), Some(out)) => run(&ImportFiles { file, out, args: &self }, screen),
            _ => list(screen),
        }
    }

    fn only_prints(&self) -> bool {
        self.list
    }
}

/// Lists the model families.
fn list(screen: &Screen) -> CommandResult {
    if screen.json {
        let family = |f: FamilyInfo| json!({"name": f.name, "model_types": f.model_types, "about": f.about});
        screen.object(&families().map(family).collect::<Value>());
        return Ok(0);
    }
    let mut rows =
        vec![["family", "model_type in config.json", "inputs: outputs"].map(String::from).to_vec()];
    rows.extend(families().map(|f| vec![f.name.into(), f.model_types.join(", "), f.about.into()]));
    screen.line(table(&rows));
    list_pretrained(screen);
    Ok(0)
}

/// Lists the pretrained models of Keras and torchvision.
fn list_pretrained(screen: &Screen) {
    let mut rows = vec![["pretrained", "file", "digest"].map(String::from).to_vec()];
    rows.extend(pretrained_entries().map(|entry| {
        let digest = entry.file.digests.first().map_or("none published", |digest| digest.algorithm());
        vec![entry.full_name(), format!("{}{}", entry.source, entry.file.file), digest.into()]
    }));
    screen.line(table(&rows));
    if pretrained_entries().any(|entry| entry.last_tried.is_none()) {
        screen.detail("Addresses not yet tried by Systole's authors: all of these");
    }
}

/// Opened weights, their folder, and for a pretrained model what was fetched.
type OpenedWeights = (WeightSource, PathBuf, Option<FetchedModel>);

/// Opens the weights: a file, a folder, or a pretrained model, which is downloaded first.
fn opened(args: &ImportFiles<'_>, screen: &Screen) -> CommandResult<OpenedWeights> {
    let name = args.file.to_string_lossy();
    let download = &args.args.download;
    download.check()?;
    let dir = download.apply(DataDir::default());
    if let Some(fetched) = pretrained::fetched(&name, dir)? {
        screen.line(pretrained::description(&name, &fetched));
        return Ok((fetched.open()?, fetched.folder.clone(), Some(fetched)));
    }
    if !args.file.exists() {
        return Err(crate::args::missing_path::missing(args.file).into());
    }
    Ok((WeightSource::open(args.file)?, args.file.clone(), None))
}

fn run(args: &ImportFiles<'_>, screen: &Screen) -> CommandResult {
    check_extension(args.out, &[".safetensors"])?;
    check_out(args.out, args.args.force)?;
    let (mut source, folder, fetched) = opened(args, screen)?;
    select_encoder(args.args, &mut source)?;
    let place = || args.file.display().to_string();
    let mut tokenizer = FolderTokenizer::of(&folder);
    tokenizer.mask_padding(&mut source);
    let (mut model, is_derived) = model(args, &source, screen)?;
    let mut report = source.fill(&mut model, args.args.partial).at(place)?;
    tokenizer.keep_in(&mut model);
    name_classes(&mut model, &source);
    keep_settings(&mut model, &source);
    report.notes.extend(tokenizer.note);
    let (guesses, unused) =
        if is_derived { (source.guesses()?, source.unused_settings()?) } else { (Vec::new(), Vec::new()) };
    model.save(args.out)?;
    show(args, (&source, fetched.as_ref()), &model, &report, [&guesses, &unused], screen);
    Ok(0)
}

/// Applies `--encoder` to a file with encoders of images and of texts.
fn select_encoder(args: &ImportArgs, source: &mut WeightSource) -> Result<(), CommandError> {
    let Some(name) = &args.encoder else { return Ok(()) };
    if !source.has_towers() {
        let e = Error::new(ErrorKind::Config, "the file does not have encoders of images and of texts");
        return Err(CommandError::usage(e.at("--encoder").hint_command("remove --encoder")));
    }
    source.select_tower(if name == "texts" { Tower::Texts } else { Tower::Images });
    Ok(())
}

/// Builds the model for the weights: named by `--model`, or described by the file. Also returns whether its sizes are
/// derived from the file.
fn model(
    args: &ImportFiles<'_>,
    source: &WeightSource,
    screen: &Screen,
) -> Result<(Model, bool), CommandError> {
    let place = || args.file.display().to_string();
    let Some(name) = &args.args.model else {
        let told = source.architecture().at(place)?;
        let unknown = || CommandError::usage(unknown_model(&place(), source));
        let (layers, inputs) = told.ok_or_else(unknown)?;
        return Ok((built(layers, &inputs, None).at(place)?, true));
    };
    let target = CommandTarget::of_model(name).map_err(|e| CommandError::usage(e.at("--model")))?;
    let Some(config) = target.config()? else {
        let CommandTarget::Model(path) = &target else {
            return Err(
                Error::new(ErrorKind::Bug, "the command's target has no training configuration").into()
            );
        };
        return Ok((Model::load_to_predict(path)?, false));
    };
    // The sizes are those of the file; for files of other frameworks also the placement of the strides.
    let told = match config.model.is_some() {
        true => source.architecture().at(place)?,
        false => None,
    };
    match told {
        Some((layers, inputs)) => {
            for (key, what) in size_conflicts(&config, &layers) {
                note(&format!("{key} is not used, because the sizes come from {}: {what}", place()));
            }
            Ok((built(layers, &inputs, Some(&config)).at(place)?, true))
        }
        // The data of the user states the shape of a sample.
        None if config.data.dataset == "records" && config.data.dir.is_some() => {
            let data = load_data(&config, screen)?;
            Ok((config.model(&config.sample_of(&data), &[])?, false))
        }
        None => Ok((config.untrained()?, false)),
    }
}

/// Formats a shape: `[3, 3, 64, 64]`.
fn dims(shape: &[usize]) -> String {
    format!("{shape:?}")
}

/// Table of source and target weights.
pub(crate) fn rows_table(rows: &[ImportRow], heads: [&str; 5]) -> String {
    let mut lines = vec![heads.map(String::from).to_vec()];
    lines.extend(
        rows.iter()
            .map(|r| vec![r.theirs.clone(), dims(&r.from), r.ours.clone(), dims(&r.to), r.how.clone()]),
    );
    table(&lines)
}

pub(crate) fn rows_json(rows: &[ImportRow]) -> Vec<Value> {
    let row =
        |r: &ImportRow| json!({"theirs": r.theirs, "from": r.from, "ours": r.ours, "to": r.to, "how": r.how});
    rows.iter().map(row).collect()
}

fn show(
    args: &ImportFiles<'_>,
    (source, fetched): (&WeightSource, Option<&FetchedModel>),
    model: &Model,
    report: &ImportReport,
    [guesses, unused]: [&[String]; 2],
    screen: &Screen,
) {
    let params: usize = model.weights().iter().map(|(_, b)| b.ty().elements()).sum();
    if screen.json {
        let has_config = config_of(model, "").ok().flatten().is_some();
        screen.object(&json!({
            "file": args.file, "kind": source.kind(), "model_file": args.out, "params": params,
            "rows": rows_json(&report.rows), "left_over": report.left_over, "notes": report.notes, "warnings": report.warnings, "guesses": guesses,
            "unused_settings": unused,
            "output_shape": model.output_type().map(|t| t.shape.to_vec()), "has_config": has_config,
            "pretrained": fetched.map(|f| json!({
                "revision": f.revision, "license": f.license, "verified": f.verified, "folder": f.folder, "is_new": f.is_new,
            })),
        }));
        return;
    }
    screen.line(rows_table(&report.rows, ["theirs", "shape", "ours", "shape", "conversion"]).trim_end());
    for name in &report.left_over {
        screen.line(format!("skipped: {name}"));
    }
    for note in &report.notes {
        screen.line(match note.strip_prefix("ignored: ") {
            Some(ignored) => format!("Ignored: {ignored}."),
            None => format!("Matched {note}."),
        });
    }
    report.warnings.iter().for_each(|warning| screen.line(format!("Check {warning}.")));
    for guess in guesses {
        screen.line(format!("Guessed, because no file states it: {guess}."));
    }
    if !unused.is_empty() {
        screen.line(format!("Not used, which changes further training only: {}.", shortened(unused)));
    }
    if let Some(factor) = first_rescaling(model.architecture()) {
        screen.line(format!(
            "The first layer rescales pixels by {}: pass --scale 1 to predict and evaluate.",
            shown_factor(factor)
        ));
    } else if lacks_scale(model) {
        screen.line(
            "The file does not state the scale of pixels: predict uses 0 to 255, and evaluate the scale of the dataset's \
             preset; pass --scale 1/255 if the model was trained on 0 to 1.",
        );
    }
    screen.line(format!(
        "{}: {} from {}, {}",
        args.out.display(),
        counted(report.rows.len() as u64, "weight"),
        source.kind(),
        counted(params as u64, "parameter"),
    ));
    screen.line(format!("Next:{}", next_commands(args, model)));
}

/// Whether the model reads images, and has no configuration that states their scale.
fn lacks_scale(model: &Model) -> bool {
    let is_prepared = ImagePreparation::in_model(model).is_ok_and(|found| found.is_some());
    reads_images(model) && !is_prepared && config_of(model, "").ok().flatten().is_none()
}

fn reads_images(model: &Model) -> bool {
    let [input] = model.architecture().inputs.as_slice() else { return false };
    let image = |t: &TensorType| t.dtype.is_float() && matches!(t.shape.dims(), [_, _] | [_, _, 1 | 3]);
    input.ty.as_ref().is_some_and(image)
}

/// Returns the commands that use the imported model, a line each.
fn next_commands(args: &ImportFiles<'_>, model: &Model) -> String {
    let scale = match (first_rescaling(model.architecture()), lacks_scale(model)) {
        (Some(_), _) => " --scale 1",
        (None, true) => " --scale 1/255",
        (None, false) => "",
    };
    let data = if lacks_scale(model) { " FOLDER" } else { "" };
    // The last layer of a folder's model is named by its family.
    let has_head = classifies(model) || ImagePreparation::in_model(model).is_ok_and(|found| found.is_none());
    let is_classifier = has_head && model.output_type().is_some_and(|t| t.rank() == 1);
    let tokenizer = tokenizer_of(model).ok().flatten();
    let uses = match tokenizer {
        _ if reads_images(model) && is_classifier => {
            vec![("predict", format!("IMAGE{scale}")), ("evaluate", format!("{data}{scale}"))]
        }
        _ if reads_images(model) => vec![("predict", format!("IMAGE --embed{scale}"))],
        Some(t) if t.pads() && classifies(model) => vec![("predict", "--text TEXT".into())],
        Some(t) if t.pads() => vec![("predict", "--text TEXT --embed".into())],
        Some(t) if !t.pads() => vec![("generate", "--prompt TEXT".into())],
        _ => vec![("predict", "FILES".into())],
    };
    let (program, out) = (program(), quoted(args.out));
    let all = [("summary", String::new())].into_iter().chain(uses);
    all.map(|(command, options)| {
        format!("\n  {program} {command} {out} {}", options.trim()).trim_end().into()
    })
    .collect::<Vec<String>>()
    .concat()
}

/// Whether the model's last layer is a classification head.
fn classifies(model: &Model) -> bool {
    let last = model.architecture().nodes.last();
    last.is_some_and(|node| node.name == "predictions") || !model.class_names.is_empty()
}
