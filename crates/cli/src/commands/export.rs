//! `systole export`: a model's weights as a file of Keras, PyTorch or safetensors, or the model as
//! `.tflite` or ONNX.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand, check_out};
use crate::commands::import::{rows_json, rows_table};
use crate::commands::quantize::{self, FileArithmetic, QuantArgs};
use crate::models::run_directory;
use crate::render::screen::{Screen, counted};
use clap::{Args, ValueEnum};
use serde_json::json;
use std::path::PathBuf;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_ir::{Error, ErrorKind, ResultExt};
use systole_nn::Model;
use systole_weights::{WeightFormat, export};

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// A model file, or the folder of a run: its best model
    model: String,
    /// Whose file it becomes
    #[arg(long, value_name = "NAME")]
    format: FormatName,
    /// The file to write: .keras (with the layers) or .weights.h5, .pt, .safetensors, .tflite, .onnx
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Replace the file when it exists
    #[arg(long)]
    force: bool,
    /// .tflite and ONNX: weights, inputs, outputs and all between in eight bits, with ranges found on training data
    #[arg(long, conflicts_with_all = ["dynamic", "float"])]
    int8: bool,
    /// .tflite: weights in eight bits, all else in floats
    #[arg(long, conflicts_with = "float")]
    dynamic: bool,
    /// .tflite and ONNX: all in floats, as is the default
    #[arg(long)]
    float: bool,
    #[command(flatten)]
    quant: QuantArgs,
}

/// What `--format` takes.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum FormatName {
    /// Keras 3: .keras or .weights.h5
    Keras,
    /// PyTorch: a state_dict in a .pt file
    Torch,
    /// The state_dict of PyTorch as safetensors
    Safetensors,
    /// The model for LiteRT (TensorFlow Lite) and the Edge TPU: a .tflite file
    Tflite,
    /// The model for ONNX Runtime and others: an .onnx file, operators of version 17
    Onnx,
}

impl FormatName {
    /// The format of weights, and how files end; `None`: a model of operators.
    fn format(self) -> (Option<WeightFormat>, &'static [&'static str]) {
        match self {
            FormatName::Keras => (Some(WeightFormat::Keras), &[".keras", ".h5"]),
            FormatName::Torch => (Some(WeightFormat::Torch), &[".pt", ".pth", ".bin"]),
            FormatName::Safetensors => (Some(WeightFormat::Safetensors), &[".safetensors"]),
            FormatName::Tflite => (None, &[".tflite"]),
            FormatName::Onnx => (None, &[".onnx"]),
        }
    }
}

impl RunCommand for ExportArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        run(&self, screen)
    }
}

fn run(args: &ExportArgs, screen: &Screen) -> CommandResult {
    let (format, endings) = args.format.format();
    let name = args.out.display().to_string();
    if !endings.iter().any(|e| name.ends_with(e)) {
        let e = Error::new(ErrorKind::Config, format!("{name} is no name of such a file")).at("--out");
        return Err(CommandError::usage(e.hint(format!("end it in {}", endings.join(" or ")))));
    }
    check_out(&args.out, args.force)?;
    let Some(format) = format else { return lite(args, screen) };
    if args.int8 || args.dynamic || args.float || !args.quant.is_empty() {
        let e = Error::new(ErrorKind::Config, "files of weights alone are not quantised").at("--format");
        return Err(CommandError::usage(
            e.hint("choose --format tflite or onnx, or leave --int8 and its options out"),
        ));
    }
    let file = run_directory::model_file(&args.model)?;
    let mut model = Model::load_to_predict(&file)?;
    // Others have no ranges.
    model.strip_quantization()?;
    let made = export(&model, format, &args.out).at(|| file.clone())?;
    write_atomically(&OsFileSystem, &args.out, &[&made.bytes])?;
    if screen.json {
        screen.object(&json!({
            "model_file": file, "file": args.out, "bytes": made.bytes.len(), "rows": rows_json(&made.rows),
            "notes": made.notes,
        }));
        return Ok(0);
    }
    screen
        .line(rows_table(&made.rows, ["theirs", "shape", "ours", "shape", "how it becomes ours"]).trim_end());
    made.notes.iter().for_each(|note| screen.line(format!("Named {note}.")));
    screen.line(format!(
        "{name}: {}, {}",
        counted(made.rows.len() as u64, "weight"),
        counted(made.bytes.len() as u64, "byte")
    ));
    Ok(0)
}

fn lite(args: &ExportArgs, screen: &Screen) -> CommandResult {
    let kind = match (args.int8, args.dynamic) {
        (true, _) => FileArithmetic::Int8,
        (_, true) => FileArithmetic::Dynamic,
        _ => FileArithmetic::Float,
    };
    if kind == FileArithmetic::Dynamic && matches!(args.format, FormatName::Onnx) {
        let e = Error::new(ErrorKind::Config, "ONNX models have no weights of eight bits alone here")
            .at("--dynamic");
        return Err(CommandError::usage(e.hint("add --int8 instead, or choose --format tflite")));
    }
    if kind != FileArithmetic::Int8 && !args.quant.is_empty() {
        let e = Error::new(ErrorKind::Config, "only --int8 looks at data").at("--format");
        return Err(CommandError::usage(e.hint("add --int8, or leave the options of calibration out")));
    }
    quantize::make(&args.model, kind, &args.quant, &args.out, screen)
}
