//! `systole export`: writes a model's weights for Keras, PyTorch or safetensors, or the model as `.tflite` or ONNX.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{
    CommandError, CommandResult, RunCommand, check_extension, check_out, has_extension,
};
use crate::commands::import::{rows_json, rows_table};
use crate::commands::quantize::{self, FileArithmetic, QuantArgs};
use crate::models::imported;
use crate::models::preprocessing::{PREPROCESSING, preprocessing_of};
use crate::models::run_directory;
use crate::render::screen::{Screen, counted};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::{Path, PathBuf};
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, ResultExt, err};
use systole_nn::Model;
use systole_weights::{WeightFormat, export};

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// Model file, or run folder (its best model)
    model: String,
    /// Set the file format [default: by the extension of --out]
    #[arg(long, value_name = "NAME")]
    format: Option<FormatName>,
    /// Write .keras (full model), .weights.h5, .pt, .safetensors, .tflite or .onnx
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Quantize weights and activations to int8 (.tflite and ONNX)
    ///
    /// Ranges are calibrated on training data.
    #[arg(long, conflicts_with_all = ["dynamic", "float"])]
    int8: bool,
    /// Quantize only the weights to int8 (.tflite)
    #[arg(long, conflicts_with = "float")]
    dynamic: bool,
    /// Keep weights and activations in float; the default (.tflite and ONNX)
    #[arg(long)]
    float: bool,
    #[command(flatten)]
    quant: QuantArgs,
}

/// Values of `--format`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormatName {
    /// Keras 3: .keras or .weights.h5
    Keras,
    /// PyTorch: a state_dict in a .pt file
    Torch,
    /// A PyTorch state_dict as safetensors
    Safetensors,
    /// LiteRT (TensorFlow Lite) and Edge TPU: a .tflite file
    Tflite,
    /// ONNX Runtime and others: an .onnx file, opset 17
    Onnx,
}

impl FormatName {
    /// Returns the weight format (`None` for a graph of operators) and the file extensions.
    fn format(self) -> (Option<WeightFormat>, &'static [&'static str]) {
        match self {
            FormatName::Keras => (Some(WeightFormat::Keras), &[".keras", ".weights.h5"]),
            FormatName::Torch => (Some(WeightFormat::Torch), &[".pt", ".pth", ".bin"]),
            FormatName::Safetensors => (Some(WeightFormat::Safetensors), &[".safetensors"]),
            FormatName::Tflite => (None, &[".tflite"]),
            FormatName::Onnx => (None, &[".onnx"]),
        }
    }
}

impl ExportArgs {
    /// Returns the file format: that of `--format`, otherwise that of the extension of `--out`.
    fn format(&self) -> CommandResult<FormatName> {
        let named = self.format.map_or(FormatName::value_variants().to_vec(), |format| vec![format]);
        let all: Vec<&str> = named.iter().flat_map(|format| format.format().1.iter().copied()).collect();
        if self.format.is_none() && !has_extension(&self.out, &all) {
            let what = match self.out.extension() {
                Some(_) => format!("{} has the extension of no format", self.out.display()),
                None => format!("{} has no extension, which selects the format", self.out.display()),
            };
            let e = Error::new(ErrorKind::Config, what).at("--out");
            return Err(CommandError::usage(
                e.hint_command(format!("use the extension {}", all.join(" or "))),
            ));
        }
        check_extension(&self.out, &all)?;
        let found = named.into_iter().find(|format| has_extension(&self.out, format.format().1));
        found.ok_or_else(|| err!(Bug, "an extension without a format").into())
    }
}

impl RunCommand for ExportArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let named = self.format()?;
        let name = self.out.display().to_string();
        check_out(&self.out, self.force)?;
        let Some(format) = named.format().0 else { return lite(&self, named, screen) };
        if self.int8 || self.dynamic || self.float || self.quant.given().is_some() {
            let e = err!(Config, "weight files cannot be quantized").at("--format");
            return Err(CommandError::usage(
                e.hint_command("choose --format tflite or onnx, or remove --int8 and its options"),
            ));
        }
        let file = run_directory::model_file(&self.model)?;
        let mut model = imported::load_to_predict(&file)?;
        // Other formats cannot store quantization ranges.
        model.strip_quantization()?;
        let made = export(&model, format, &self.out).at(|| file.clone())?;
        write_atomically(&OsFileSystem, &self.out, &[&made.bytes])?;
        let images = write_preprocessing(&model, &file, &self.out)?;
        if screen.json {
            screen.object(&json!({
                "model_file": file, "file": self.out, "bytes": made.bytes.len(), "rows": rows_json(&made.rows),
                "notes": made.notes, "preprocessing": images,
            }));
            return Ok(0);
        }
        screen.line(rows_table(&made.rows, ["theirs", "shape", "ours", "shape", "conversion"]).trim_end());
        made.notes.iter().for_each(|note| screen.line(format!("Tensor names: {note}.")));
        screen.line(format!(
            "{name}: {}, {}",
            counted(made.rows.len() as u64, "weight"),
            counted(made.bytes.len() as u64, "byte")
        ));
        if let Some(images) = images {
            screen.line(format!("{}: size, color and scale of the images", images.display()));
        }
        Ok(0)
    }
}

/// Writes how images become the model's input next to exported weights, which have no metadata; returns the file.
fn write_preprocessing(model: &Model, path: &str, out: &Path) -> CommandResult<Option<PathBuf>> {
    let Some(images) = preprocessing_of(model, path)? else { return Ok(None) };
    let file = out.with_extension(format!("{PREPROCESSING}.json"));
    write_atomically(&OsFileSystem, &file, &[format!("{images:#}\n").as_bytes()])?;
    Ok(Some(file))
}

fn lite(args: &ExportArgs, format: FormatName, screen: &Screen) -> CommandResult {
    let kind = match (args.int8, args.dynamic) {
        (true, _) => FileArithmetic::Int8,
        (_, true) => FileArithmetic::Dynamic,
        _ => FileArithmetic::Float,
    };
    if kind == FileArithmetic::Dynamic && matches!(format, FormatName::Onnx) {
        let e = err!(Config, "weight-only int8 is not supported for ONNX").at("--dynamic");
        return Err(CommandError::usage(e.hint_command("use --int8 instead, or choose --format tflite")));
    }
    if let Some(flag) = args.quant.given().filter(|_| kind != FileArithmetic::Int8) {
        let e = err!(Config, "{flag} applies to the calibration of int8 files only").at(flag);
        return Err(CommandError::usage(e.hint_command(format!("add --int8, or remove {flag}"))));
    }
    quantize::make(&args.model, kind, &args.quant, &args.out, screen)
}
