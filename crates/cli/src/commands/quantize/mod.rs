//! `systole quantize`: quantizes a trained model to an int8 .tflite or ONNX file and reports the accuracy.

mod accuracy_limit;
mod weight_only_quantization;

use crate::args::common::{CommonArgs, DataArgs, LabelArgs};
use crate::args::exit_status::{ACCURACY_LOST, CommandError, CommandResult, RunCommand, check_out};
use crate::models::accuracy::{Int8Quality, LabeledSamples, agreeing, classes_in_floats, taken};
use crate::models::command_target::set_all;
use crate::models::imported;
use crate::models::onnx;
use crate::models::predictor::NOTE;
use crate::models::preprocessing::{PIXEL_SCALE, PREPROCESSING, preprocessing_of, stored_scale};
use crate::models::run_directory;
use crate::models::tflite;
use crate::render::screen::{Screen, note, program, quoted, table};
use crate::run::run_data::{NamedData, RunData};
use accuracy_limit::{AccuracyLimits, FloatLayers};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use systole_config::RunConfig;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_datasets::TrainingData;
use systole_ir::{DType, Literal, Result, ResultExt, err};
use systole_nn::{Model, WeightBits, counted, grouped};
use systole_onnx::OnnxModel;
use systole_quant::{
    CACHE, Calibration, LayerReport, QatModel, QuantizeOptions, RangeMethod, TensorRanges, alone,
    correct_bias, dynamic, edgetpu, equalize, lower, quantize, report, trained,
};
use systole_tflite::TfliteModel;

#[derive(Args)]
pub(crate) struct QuantizeArgs {
    /// Model file, or run folder (its best model)
    model: String,
    #[command(flatten)]
    quant: QuantArgs,
    /// Quantize weights to int8, or int4 with --activations none [default: int8]
    #[arg(long, value_name = "TYPE")]
    weights: Option<WeightsName>,
    /// Quantize activations to int8, or only the weights (none) [default: int8]
    ///
    /// With none, the output is a .safetensors file and any model is supported.
    #[arg(long, value_name = "TYPE")]
    activations: Option<ActivationsName>,
    /// Write .tflite or .onnx, or .safetensors with --activations none
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// Values of `--weights`.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum WeightsName {
    /// 8 bits, one scale per output channel
    Int8,
    /// 4 bits, one scale per 128 inputs of an output channel
    Int4,
}

/// Values of `--activations`.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ActivationsName {
    /// 8 bits
    Int8,
    /// Floats; the weights are dequantized when the model is loaded
    None,
}

/// Quantization options.
#[derive(Args)]
pub(crate) struct QuantArgs {
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    label: LabelArgs,
    /// Use this dataset, such as fashion-mnist [default: the training dataset]
    ///
    /// One of fashion-mnist, mnist, glyphs, cifar10, cifar100, folder, records.
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Calibrate with N training samples [default: 500]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    samples: Option<u64>,
    /// Measure the accuracy on N test samples; 0 skips it [default: 1000]
    #[arg(long, value_name = "N")]
    pub(crate) test_samples: Option<u64>,
    /// Set the calibration method [default: minmax]
    #[arg(long, value_name = "HOW")]
    calibrate: Option<MethodName>,
    /// Scale convolution weights per channel or per tensor [default: channel]
    #[arg(long, value_name = "WHAT")]
    per: Option<ScaleGranularity>,
    /// Keep these layers in float
    #[arg(long, value_name = "LAYER,…", value_delimiter = ',')]
    skip: Vec<String>,
    /// Equalize weight ranges across layers before quantization
    ///
    /// Cross-layer equalization.
    #[arg(long)]
    equalize: bool,
    /// Correct biases for the mean shift caused by weight rounding
    #[arg(long)]
    correct_bias: bool,
    #[command(flatten)]
    limits: AccuracyLimits,
    /// Report which operators run on a chip, and why others do not
    #[arg(long, value_name = "CHIP")]
    target: Option<TargetName>,
    /// Set any key of the model's TOML, such as data.records.encoding=latin1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// Values of `--calibrate`.
#[derive(Clone, Copy, ValueEnum)]
enum MethodName {
    /// Minimum and maximum
    Minmax,
    /// Without the outermost 0.01 percent
    Percentile,
    /// Minimum loss of information (KL divergence)
    Entropy,
    /// Minimum mean squared error
    Mse,
}

impl MethodName {
    fn method(self) -> RangeMethod {
        match self {
            MethodName::Minmax => RangeMethod::MinMax,
            MethodName::Percentile => RangeMethod::Percentile(99.99),
            MethodName::Entropy => RangeMethod::Entropy,
            MethodName::Mse => RangeMethod::Mse,
        }
    }
}

/// Values of `--per`.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ScaleGranularity {
    /// One scale per output channel
    Channel,
    /// One scale for all weights of a layer
    Tensor,
}

/// Values of `--target`.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum TargetName {
    /// Google's Edge TPU (Coral boards and USB sticks)
    Edgetpu,
}

/// Arithmetic of the written file.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum FileArithmetic {
    Int8,
    Dynamic,
    Float,
}

impl QuantArgs {
    /// Options for per-tensor scales, calibrated on `samples` samples.
    #[cfg(feature = "tpu1")]
    pub(crate) fn per_tensor(data: DataArgs, dataset: Option<String>, samples: Option<u64>) -> QuantArgs {
        QuantArgs {
            data,
            label: LabelArgs::default(),
            dataset,
            samples,
            test_samples: Some(0),
            calibrate: None,
            per: Some(ScaleGranularity::Tensor),
            skip: Vec::new(),
            equalize: false,
            correct_bias: false,
            limits: AccuracyLimits::default(),
            target: None,
            sets: Vec::new(),
        }
    }

    /// Returns the first given option.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let of_data = [
            ("--data-dir", self.data.data_dir.is_some()),
            ("--label", self.label.label.is_some()),
            ("--dataset", self.dataset.is_some()),
            ("--test-samples", self.test_samples.is_some()),
            ("--max-accuracy-drop", self.limits.max_accuracy_drop.is_some()),
            ("--max-error-increase", self.limits.max_error_increase.is_some()),
            ("--set", !self.sets.is_empty()),
        ];
        let first = of_data.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag);
        first.or_else(|| self.of_activations())
    }

    fn options(&self) -> QuantizeOptions {
        QuantizeOptions {
            per_channel: self.per != Some(ScaleGranularity::Tensor),
            skip: self.skip.clone(),
            ..QuantizeOptions::default()
        }
    }

    /// Returns the first given option that concerns activations.
    fn of_activations(&self) -> Option<&'static str> {
        let given = [("--samples", self.samples.is_some()), ("--target", self.target.is_some())];
        given.into_iter().chain(self.of_ranges()).find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// Options that control calibration, each with whether it was given.
    fn of_ranges(&self) -> [(&'static str, bool); 5] {
        [
            ("--calibrate", self.calibrate.is_some()),
            ("--per", self.per.is_some()),
            ("--skip", !self.skip.is_empty()),
            ("--equalize", self.equalize),
            ("--correct-bias", self.correct_bias),
        ]
    }

    /// Rejects options that quantization-aware training has already fixed.
    fn check_trained(&self, file: &str) -> CommandResult<()> {
        match self.of_ranges().into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((flag, _)) => {
                let e = err!(Config, "{file} was trained with int8 quantization");
                let e = e.at(flag).because("training fixed the ranges and the layers that stay in float");
                Err(CommandError::usage(e.hint_command(format!("remove {flag}"))))
            }
        }
    }

    /// Loads the training data, in order and without augmentation, with its configuration.
    pub(crate) fn load(
        &self,
        model: &Model,
        file: &str,
        screen: &Screen,
    ) -> CommandResult<(RunConfig, TrainingData)> {
        let run_data = RunData::of(model, file)?.with_scale_options(None, &self.sets);
        let named = NamedData { label: self.label.setting(), ..NamedData::of(&self.dataset, &self.data) };
        let mut draft = run_data.draft_of(model, &named)?;
        draft.set("--samples", "data.augment", "[]");
        set_all(&mut draft, &self.sets)?;
        let mut config = draft.finish()?;
        self.label.check(&config)?;
        let data = run_data.load(model, &mut config, screen)?;
        Ok((config, data))
    }
}

impl QuantArgs {
    /// Returns the test samples with classes or regression targets.
    fn tests(
        &self,
        config: &RunConfig,
        data: &TrainingData,
        input: &(String, DType),
    ) -> Result<LabeledSamples> {
        let are_values = data.class_names.is_empty() && data.language.is_none();
        match self.test_samples.unwrap_or(1000) as usize {
            0 => Ok(LabeledSamples::default()),
            most => LabeledSamples::take(&config.test_pipeline(data), input, most, are_values),
        }
    }
}

impl RunCommand for QuantizeArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        if self.activations == Some(ActivationsName::None) {
            return self.weights_alone(screen);
        }
        if self.weights == Some(WeightsName::Int4) {
            let e = err!(Config, "an int8 .tflite file cannot have int4 weights");
            return Err(CommandError::usage(
                e.at("--weights").hint_command("add --activations none, or remove --weights"),
            ));
        }
        let name = self.out.display().to_string();
        if !tflite::is_lite(&name) && !onnx::is_onnx(&name) {
            let e = err!(Config, "{} is not a .tflite or .onnx file", self.out.display());
            return Err(CommandError::usage(
                e.at("--out").hint_command("write the model to a file that ends in .tflite or .onnx"),
            ));
        }
        check_out(&self.out, self.force)?;
        make(&self.model, FileArithmetic::Int8, &self.quant, &self.out, screen)
    }
}

impl QuantizeArgs {
    fn weights_alone(&self, screen: &Screen) -> CommandResult {
        if self.out.extension().is_none_or(|end| end != "safetensors") {
            let e = err!(Config, "{} is not a .safetensors file", self.out.display());
            return Err(CommandError::usage(
                e.at("--out").hint_command("write the model to a file that ends in .safetensors"),
            ));
        }
        if let Some(flag) = self.quant.of_activations() {
            let e = err!(Config, "the option does not apply to weight-only quantization").at(flag);
            return Err(CommandError::usage(e.hint_command(format!("remove {flag} or --activations none"))));
        }
        check_out(&self.out, self.force)?;
        let bits = match self.weights {
            Some(WeightsName::Int4) => WeightBits::Int4,
            _ => WeightBits::Int8,
        };
        weight_only_quantization::make(&self.model, bits, &self.quant, &self.out, screen)
    }
}

/// Writes a model as `.tflite` or ONNX, by the file's extension, and prints a report.
pub(crate) fn make(
    model: &str,
    kind: FileArithmetic,
    args: &QuantArgs,
    out: &Path,
    screen: &Screen,
) -> CommandResult {
    if args.target.is_some() && onnx::is_onnx(&out.display().to_string()) {
        let e = err!(Config, "--target edgetpu needs a .tflite file").at("--target");
        return Err(CommandError::usage(
            e.hint_command("use the extension .tflite for --out, or remove --target"),
        ));
    }
    let file = run_directory::model_file(model)?;
    let layers = imported::load_to_predict(&file)?;
    let is_float = matches!(kind, FileArithmetic::Float);
    let written = if is_float && onnx::is_onnx(&out.display().to_string()) {
        // From the layers: recurrent layers are single operators, and all layers can be exported.
        write_onnx(systole_quant::onnx(&layers).at(|| file.clone())?, &layers, None, out)?
    } else {
        let float = lower(&layers).at(|| file.clone())?;
        let mut made = match kind {
            FileArithmetic::Int8 => return int8(&layers, &float, &file, args, out, screen),
            FileArithmetic::Dynamic => dynamic(&float)?,
            FileArithmetic::Float => float,
        };
        write(&mut made, &layers, None, out)?
    };
    let object = told(out, &written, None, screen);
    if screen.json {
        screen.object(&object);
    }
    Ok(0)
}

/// Calibration result: value ranges, with the data and samples they come from.
struct CalibrationResult {
    /// Quantization options, from training or from the arguments.
    options: QuantizeOptions,
    /// Whether the ranges come from quantization-aware training.
    is_trained: bool,
    config: RunConfig,
    data: TrainingData,
    samples: Vec<Literal>,
    ranges: TensorRanges,
}

fn calibrated(
    layers: &Model,
    float: &TfliteModel,
    file: &str,
    args: &QuantArgs,
    screen: &Screen,
) -> CommandResult<CalibrationResult> {
    let trained = trained(layers).at(|| file.to_string())?;
    if trained.is_some() {
        args.check_trained(file)?;
    }
    let (config, data) = args.load(layers, file, screen)?;
    // With trained ranges the samples only measure the noise per layer.
    let few = if trained.is_some() { SHOWN } else { 500 };
    let samples = args.samples.map_or(few, |n| n as usize);
    let (samples, _) = taken(&config.train_pipeline(&data), &input_of(layers, float)?, samples)?;
    if let Some(QatModel { ranges, options, .. }) = trained {
        return Ok(CalibrationResult { options, is_trained: true, config, data, samples, ranges });
    }
    let method = args.calibrate.map_or(RangeMethod::MinMax, MethodName::method);
    let calibration = Calibration { method, threads: tflite::threads(), engine: tflite::engine() };
    let ranges = calibration.ranges(float, &samples).at(|| file.to_string())?;
    Ok(CalibrationResult { options: args.options(), is_trained: false, config, data, samples, ranges })
}

/// Quantizes a trained model to an int8 graph without writing a file.
#[cfg(feature = "tpu1")]
pub(crate) fn graph(model: &str, args: &QuantArgs, screen: &Screen) -> CommandResult<TfliteModel> {
    let file = run_directory::model_file(model)?;
    let mut layers = imported::load_to_predict(&file)?;
    // A quantization-aware trained model may have per-channel steps.
    layers.strip_quantization()?;
    let float = lower(&layers).at(|| file.clone())?;
    let CalibrationResult { ranges, options, .. } = calibrated(&layers, &float, &file, args, screen)?;
    Ok(quantize(&float, &ranges, &options).at(|| file.clone())?)
}

fn int8(
    layers: &Model,
    float: &TfliteModel,
    file: &str,
    args: &QuantArgs,
    out: &Path,
    screen: &Screen,
) -> CommandResult {
    let equal = if args.equalize { Some(equalize(float)?) } else { None };
    let float = equal.as_ref().unwrap_or(float);
    let CalibrationResult { options, is_trained, config, data, samples, ranges } =
        calibrated(layers, float, file, args, screen)?;
    let make = |options: &QuantizeOptions| -> Result<TfliteModel> {
        let made = quantize(float, &ranges, options).at(|| file.to_string())?;
        if args.correct_bias { correct_bias(float, &made, &samples) } else { Ok(made) }
    };
    let mut made = make(&options)?;
    let written = write(&mut made, layers, data.is_pictures().then_some(config.data.scale), out)?;
    let tests = args.tests(&config, &data, &input_of(layers, float)?)?;
    let quality = Int8Quality::of(float, &made, &tests)?;
    if quality.is_none() && !tests.is_empty() {
        note("the error is not measured and not limited: the outputs are not as many as the targets");
    }
    let few = &samples[..samples.len().min(SHOWN)];
    let layers = report(float, &made, &ranges, few)?;
    let alone = match tests.are_values() {
        true => vec![None; layers.len()],
        false => each_alone(&tests, float, &ranges, &options, &layers)?,
    };
    if !screen.json {
        screen.line(layer_table(&layers, &alone).trim_end());
    }
    let seen = if is_trained { 0 } else { samples.len() };
    let mut object = told(out, &written, Some((seen, quality.as_ref())), screen);
    object["trained_ranges"] = json!(is_trained);
    object["layers"] = layers.iter().zip(&alone).map(layer_json).collect();
    if args.target.is_some() {
        object["edgetpu"] = placed(&made, screen);
    }
    let excess = quality.as_ref().and_then(|quality| args.limits.excess(quality));
    object["accepted"] = json!(quality.as_ref().map(|_| excess.is_none()));
    if let Some(excess) = &excess {
        let measure = |skip: &[String]| {
            let skip = options.skip.iter().chain(skip).cloned().collect();
            Int8Quality::of(float, &make(&QuantizeOptions { skip, ..options.clone() })?, &tests)
        };
        // Training fixed the layers in float.
        let ranked = if is_trained { Vec::new() } else { most_sensitive(&layers, &alone) };
        let remedy = FloatLayers::find(&ranked, &args.limits, measure);
        screen.line(excess);
        screen.line(
            remedy.as_ref().map_or_else(|| train_for_int8(file, is_trained), |r| r.text(&options.skip)),
        );
        object["remedy"] = json!(remedy.map(|r| r.json(&options.skip)));
    }
    if screen.json {
        screen.object(&object);
    }
    Ok(if excess.is_some() { ACCURACY_LOST } else { 0 })
}

/// Suggests quantization-aware training.
fn train_for_int8(file: &str, is_trained: bool) -> String {
    let epochs = if is_trained { "train longer" } else { "train for int8" };
    format!("  try: {epochs}: {} train --from {} --quantize --epochs 5", program(), quoted(Path::new(file)))
}

/// Orders the layers by how much quantization changes them, the most sensitive first.
fn most_sensitive(layers: &[LayerReport], alone: &[Option<f64>]) -> Vec<String> {
    let mut all: Vec<(f64, f64, &str)> =
        layers.iter().zip(alone).map(|(l, alone)| (alone.unwrap_or(1.0), l.snr, l.layer.as_str())).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut names: Vec<String> = Vec::new();
    for (_, _, name) in all {
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    names
}

/// Number of samples for the noise and the accuracy cost per layer.
const SHOWN: usize = 64;

fn layer_json((l, alone): (&LayerReport, &Option<f64>)) -> serde_json::Value {
    json!({
        "layer": l.layer, "operators": l.operators, "seen": [l.seen.0, l.seen.1], "chosen": [l.chosen.0, l.chosen.1],
        "clipped": l.clipped, "snr_db": l.snr.is_finite().then_some(l.snr), "alone_agrees": alone,
    })
}

fn layer_table(layers: &[LayerReport], alone: &[Option<f64>]) -> String {
    let head = ["Layer", "ops", "range", "clipped", "signal/noise", "same class (only this layer quantized)"];
    let has_classes = alone.iter().any(Option::is_some);
    let columns = if has_classes { head.len() } else { head.len() - 1 };
    let mut rows = vec![head[..columns].iter().map(|name| name.to_string()).collect()];
    for (l, alone) in layers.iter().zip(alone) {
        let mut row = vec![
            l.layer.clone(),
            l.operators.join(" "),
            format!("{:.3} … {:.3}", l.chosen.0, l.chosen.1),
            format!("{:.3} %", 100.0 * l.clipped),
            if l.snr.is_finite() { format!("{:.1} dB", l.snr) } else { "–".into() },
            alone.map_or("–".into(), |a| format!("{:.1} %", 100.0 * a)),
        ];
        row.truncate(columns);
        rows.push(row);
    }
    table(&rows)
}

/// Reports how the Edge TPU compiler would map the file.
fn placed(made: &TfliteModel, screen: &Screen) -> serde_json::Value {
    let mapping = edgetpu(made);
    let rows: Vec<Vec<String>> = mapping
        .operators
        .iter()
        .map(|p| {
            let where_ = if p.reason.is_none() { "chip" } else { "CPU" };
            vec![made.place(p.operator), where_.into(), p.reason.clone().unwrap_or_default()]
        })
        .collect();
    if !screen.json {
        screen.line(
            "Edge TPU mapping by the published rules of its compiler (the compiler itself is closed source):",
        );
        screen.line(table(&rows).trim_end());
        screen.line(format!(
            "  {} bytes of weights in the {CACHE} bytes on the chip, {} sent per inference",
            grouped(mapping.weights as u64),
            grouped(mapping.sent as u64)
        ));
        screen.line(format!(
            "  lower bound: {:.2} ms per inference over USB ({} multiply-adds at the peak of 1.97e12 per second)",
            1e3 * mapping.seconds,
            grouped(mapping.products)
        ));
    }
    let one = |p: &systole_quant::OperatorPlacement| json!({"operator": made.place(p.operator), "on_chip": p.reason.is_none(), "why": p.reason});
    json!({
        "operators": mapping.operators.iter().map(one).collect::<Vec<_>>(), "weight_bytes": mapping.weights,
        "sent_bytes": mapping.sent, "products": mapping.products, "estimate_ms": 1e3 * mapping.seconds,
    })
}

/// Returns the name of the model's single input and its element type in the float graph.
fn input_of(layers: &Model, float: &TfliteModel) -> Result<(String, DType)> {
    let dtype = float.inputs.first().and_then(|&i| float.tensors.get(i)).map_or(DType::F32, |t| t.ty.dtype);
    match &layers.architecture().inputs[..] {
        [one] => Ok((one.name.clone(), dtype)),
        more => Err(err!(Unsupported, "calibration supports one input, but the model has {}", more.len())
            .hint("use the Rust library: systole_quant::quantize")),
    }
}

/// For each layer, the share of samples whose class is unchanged if only this layer is quantized; `None` for layers that
/// stay in floats, whose ranges training does not learn.
fn each_alone(
    tests: &LabeledSamples,
    float: &TfliteModel,
    ranges: &TensorRanges,
    options: &QuantizeOptions,
    layers: &[LayerReport],
) -> Result<Vec<Option<f64>>> {
    let samples = &tests.samples[..tests.samples.len().min(SHOWN)];
    if samples.is_empty() {
        return Ok(vec![None; layers.len()]);
    }
    let exact = classes_in_floats(float, samples)?;
    let one = |l: &LayerReport| {
        if options.skip.contains(&l.layer) {
            return Ok(None);
        }
        let found = classes_in_floats(&alone(float, ranges, options, &l.layer)?, samples)?;
        Ok(Some(agreeing(&found, &exact) as f64 / exact.iter().map(Vec::len).sum::<usize>().max(1) as f64))
    };
    layers.iter().map(one).collect()
}

/// Size of a written file.
struct QuantizedFile {
    bytes: usize,
    operators: usize,
    constant_bytes: usize,
}

/// What a reader of the file needs to know about the model.
/// `scale`: factor of the pixels that the file was calibrated on.
fn notes(layers: &Model, scale: Option<f64>, out: &Path) -> Result<BTreeMap<String, String>> {
    let mut notes: BTreeMap<String, String> =
        layers.notes.iter().map(|(key, note)| (format!("{NOTE}{key}"), note.clone())).collect();
    if !layers.class_names.is_empty() {
        notes.insert(format!("{NOTE}class_names"), json!(layers.class_names).to_string());
    }
    if let Some(images) = preprocessing_of(layers, &out.display().to_string())? {
        notes.insert(format!("{NOTE}{PREPROCESSING}"), images.to_string());
    } else if let Some(scale) = scale.map_or_else(|| stored_scale(layers), |scale| Ok(Some(scale)))? {
        notes.insert(format!("{NOTE}{PIXEL_SCALE}"), scale.to_string());
    }
    Ok(notes)
}

/// Writes a graph as `.tflite`, or as ONNX by the extension.
fn write(made: &mut TfliteModel, layers: &Model, scale: Option<f64>, out: &Path) -> Result<QuantizedFile> {
    if onnx::is_onnx(&out.display().to_string()) {
        let file = systole_onnx::export(made)?;
        return write_onnx(OnnxModel { notes: made.notes.clone(), ..file }, layers, scale, out);
    }
    made.notes.extend(notes(layers, scale, out)?);
    let bytes = made.to_bytes()?;
    write_atomically(&OsFileSystem, out, &[&bytes])?;
    let (operators, constant_bytes) = (made.operators.len(), made.constant_bytes());
    Ok(QuantizedFile { bytes: bytes.len(), operators, constant_bytes })
}

fn write_onnx(mut file: OnnxModel, layers: &Model, scale: Option<f64>, out: &Path) -> Result<QuantizedFile> {
    file.notes.extend(notes(layers, scale, out)?);
    let bytes = file.to_bytes();
    write_atomically(&OsFileSystem, out, &[&bytes])?;
    let (operators, constant_bytes) = (file.graph.nodes.len(), file.graph.constant_bytes());
    Ok(QuantizedFile { bytes: bytes.len(), operators, constant_bytes })
}

fn told(
    out: &Path,
    written: &QuantizedFile,
    found: Option<(usize, Option<&Int8Quality>)>,
    screen: &Screen,
) -> serde_json::Value {
    let calibrated = found.as_ref().map(|(samples, _)| *samples);
    let quality = found.and_then(|(_, quality)| quality);
    let object = json!({
        "file": out, "bytes": written.bytes, "operators": written.operators, "constant_bytes": written.constant_bytes,
        "calibration_samples": calibrated,
        "accuracy": quality.map(Int8Quality::json),
    });
    if screen.json {
        return object;
    }
    quality.iter().for_each(|quality| screen.line(quality_text(quality)));
    match calibrated {
        Some(0) => screen.line("The ranges come from quantization-aware training."),
        Some(samples) => screen
            .line(format!("The ranges are calibrated on {}.", counted(samples as u64, "training sample"))),
        None => {}
    }
    let size = counted(written.bytes as u64, "byte");
    let weights = grouped(written.constant_bytes as u64);
    screen.line(format!(
        "{}: {}, {size}, {weights} of them weights",
        out.display(),
        counted(written.operators as u64, "operator")
    ));
    object
}

/// Describes accuracy or RMSE of both models.
fn quality_text(quality: &Int8Quality) -> String {
    match quality {
        Int8Quality::Classes(a) => {
            let row = |what: &str, n: usize| vec![what.into(), format!("{:.2} %", 100.0 * a.share(n))];
            let rows = [row("float", a.float), row("int8", a.int8), row("same class", a.agree)];
            let places = match a.answers == a.samples {
                true => String::new(),
                false => format!("{} in ", counted(a.answers as u64, "position")),
            };
            let samples = counted(a.samples as u64, "test sample");
            format!("Accuracy on {places}{samples}:\n{}", table(&rows).trim_end())
        }
        Int8Quality::Values(e) => {
            let row = |what: &str, x: f64| vec![what.into(), format!("{x:.4}")];
            let rows = [row("float", e.float), row("int8", e.int8), row("int8 against float", e.difference)];
            let samples = counted(e.samples as u64, "test sample");
            format!(
                "RMSE on {samples}, whose targets have a standard deviation of {:.4}:\n{}",
                e.deviation,
                table(&rows).trim_end()
            )
        }
    }
}
